//! The kernels of `shaders/`, compiled for a device.
//!
//! A kernel's source is its own file behind those of `shaders/shared` that it needs: WGSL does not mind the order of
//! declarations, so that including is putting together.

use super::applier::ApplyKernels;
use super::vector::EncodeKernels;
use super::whole;
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingResource, BindingType, BufferBindingType, ComputePass,
    ComputePipeline, ComputePipelineDescriptor, Device, PipelineCompilationOptions,
    PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderSource, ShaderStages,
};

/// A kernel's name and its whole source.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

/// The source of `shaders/NAME.wgsl`, with the shared files that it needs before it.
macro_rules! source {
    ($name:literal $(, $shared:literal)*) => {
        $crate::codec::gpu::kernels::Source {
            name: $name,
            text: concat!(
                $(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/shared/", $shared, ".wgsl")), "\n",)*
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl")),
            ),
        }
    };
}
pub(super) use source;

/// What a kernel does with a binding, in the order of their numbers in group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// A uniform buffer, at an offset that is given with each dispatch.
    Uniform,
    Read,
    ReadWrite,
}

/// A compiled kernel.
pub(super) struct Kernel {
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
    name: &'static str,
}

impl Kernel {
    /// Compiles `main` of a source, with these values of its `override`s.
    pub(super) fn new(
        device: &Device,
        source: Source,
        bindings: &[Access],
        constants: &[(&str, f64)],
    ) -> Kernel {
        let entries: Vec<BindGroupLayoutEntry> = (0..).zip(bindings).map(layout_entry).collect();
        let layout = device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: Some(source.name),
            entries: &entries,
        });
        let module = device.create_shader_module(ShaderModuleDescriptor {
            label: Some(source.name),
            source: ShaderSource::Wgsl(source.text.into()),
        });
        let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: Some(source.name),
            bind_group_layouts: &[Some(&layout)],
            ..PipelineLayoutDescriptor::default()
        });
        let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(source.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: PipelineCompilationOptions {
                constants,
                ..PipelineCompilationOptions::default()
            },
            cache: None,
        });
        Kernel {
            pipeline,
            layout,
            name: source.name,
        }
    }

    /// Binds buffers, in the order of the bindings.
    pub(super) fn bind(&self, device: &Device, buffers: &[BindingResource<'_>]) -> BindGroup {
        let entries: Vec<BindGroupEntry<'_>> = (0..)
            .zip(buffers)
            .map(|(binding, resource)| BindGroupEntry {
                binding,
                resource: resource.clone(),
            })
            .collect();
        device.create_bind_group(&BindGroupDescriptor {
            label: Some(self.name),
            layout: &self.layout,
            entries: &entries,
        })
    }

    /// Runs so many workgroups, in a grid of two dimensions whose last row may have some too many: the kernel leaves those
    /// out. `offset`: of the uniform buffer, if the kernel has one.
    pub(super) fn dispatch(
        &self,
        pass: &mut ComputePass<'_>,
        bound: &BindGroup,
        offset: Option<u32>,
        workgroups: u64,
    ) {
        if workgroups == 0 {
            return;
        }
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, bound, offset.as_slice());
        let (x, y) = grid(workgroups);
        pass.dispatch_workgroups(x, y, 1);
    }
}

/// The most workgroups of a dimension.
const ACROSS: u64 = 65_535;

/// As few rows as hold so many workgroups, and as few workgroups a row as these rows need.
fn grid(workgroups: u64) -> (u32, u32) {
    let rows = workgroups.div_ceil(ACROSS).clamp(1, ACROSS);
    let across = workgroups.div_ceil(rows).min(ACROSS);
    (across as u32, rows as u32)
}

fn layout_entry((binding, access): (u32, &Access)) -> BindGroupLayoutEntry {
    let ty = match access {
        Access::Uniform => BufferBindingType::Uniform,
        Access::Read => BufferBindingType::Storage { read_only: true },
        Access::ReadWrite => BufferBindingType::Storage { read_only: false },
    };
    BindGroupLayoutEntry {
        binding,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer {
            ty,
            has_dynamic_offset: *access == Access::Uniform,
            min_binding_size: None,
        },
        count: None,
    }
}

/// All kernels of a device.
pub(super) struct Kernels {
    pub(super) encode: EncodeKernels,
    pub(super) apply: ApplyKernels,
    pub(super) hash: Kernel,
}

impl Kernels {
    pub(super) fn new(device: &Device) -> Kernels {
        Kernels {
            encode: EncodeKernels::new(device),
            apply: ApplyKernels::new(device),
            hash: whole::hash_kernel(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_room_for_all_workgroups_and_little_more() {
        for workgroups in [
            1,
            2,
            65_535,
            65_536,
            131_070,
            131_071,
            1 << 20,
            (1 << 31) / 256,
        ] {
            let (x, y) = grid(workgroups);
            assert!(u64::from(x) <= ACROSS && u64::from(y) <= ACROSS);
            let all = u64::from(x) * u64::from(y);
            assert!(
                all >= workgroups && all < workgroups + u64::from(y),
                "{workgroups}: {x} x {y}"
            );
        }
    }
}
