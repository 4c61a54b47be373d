//! What the memory of the device can do: the same run, the same vectors, the same clock.

use gradring::codec::gpu::{GpuContext, wgpu};
use std::time::{Duration, Instant};
use wgpu::{BufferUsages, Features};

/// Threads of a workgroup, each of which takes four elements.
const GROUP: usize = 4 * 256;

/// A kernel that reads two vectors and writes one.
pub(crate) struct Roofline<'a> {
    context: &'a GpuContext,
    pipeline: wgpu::ComputePipeline,
    bound: wgpu::BindGroup,
    workgroups: u32,
    /// The device's clock, if it can be read: the readings on the device, and here.
    clock: Option<(wgpu::QuerySet, wgpu::Buffer, wgpu::Buffer)>,
}

impl<'a> Roofline<'a> {
    /// Reads the first buffer and the second one, and writes the second one; they have as many elements, a multiple of 4.
    pub(crate) fn new(
        context: &'a GpuContext,
        update: &wgpu::Buffer,
        residual: &wgpu::Buffer,
        elements: usize,
    ) -> Roofline<'a> {
        let device = context.device();
        let module = device.create_shader_module(wgpu::include_wgsl!("roofline.wgsl"));
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let entries = [update, residual].map(wgpu::Buffer::as_entire_binding);
        let entries: Vec<wgpu::BindGroupEntry<'_>> = (0..)
            .zip(entries)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let bound = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let has_clock = device.features().contains(Features::TIMESTAMP_QUERY);
        let clock = has_clock.then(|| {
            let queries = device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            });
            let buffer = |usage| {
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: None,
                    size: 16,
                    usage,
                    mapped_at_creation: false,
                })
            };
            let resolved = buffer(BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC);
            let read = buffer(BufferUsages::MAP_READ | BufferUsages::COPY_DST);
            (queries, resolved, read)
        });
        Roofline {
            context,
            pipeline,
            bound,
            workgroups: elements.div_ceil(GROUP) as u32,
            clock,
        }
    }

    /// Whether its time is one of the device's clock; else it is from the submission to its end.
    pub(crate) fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// How long the kernel takes.
    pub(crate) fn run(&self) -> Duration {
        let (device, queue) = (self.context.device(), self.context.queue());
        let mut commands = device.create_command_encoder(&Default::default());
        let clock = self.clock.as_ref();
        let mut pass = commands.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes: clock.map(|(queries, _, _)| wgpu::ComputePassTimestampWrites {
                query_set: queries,
                beginning_of_pass_write_index: Some(0),
                end_of_pass_write_index: Some(1),
            }),
        });
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bound, &[]);
        pass.dispatch_workgroups(self.workgroups, 1, 1);
        drop(pass);
        if let Some((queries, resolved, read)) = clock {
            commands.resolve_query_set(queries, 0..2, resolved, 0);
            commands.copy_buffer_to_buffer(resolved, 0, read, 0, 16);
        }
        let begun = Instant::now();
        queue.submit([commands.finish()]);
        let Some((_, _, read)) = clock else {
            wait(self.context);
            return begun.elapsed();
        };
        let readings = bytes(self.context, read, 16);
        let reading = |at: usize| readings[at..at + 8].try_into().map(u64::from_le_bytes);
        let ticks = match (reading(0), reading(8)) {
            (Ok(begin), Ok(end)) => end.saturating_sub(begin),
            _ => 0,
        };
        Duration::from_nanos((ticks as f64 * f64::from(queue.get_timestamp_period())) as u64)
    }
}

/// Waits until the device has done all that was submitted.
pub(crate) fn wait(context: &GpuContext) {
    context
        .device()
        .poll(wgpu::PollType::wait_indefinitely())
        .expect("the device works");
}

/// The first bytes of a buffer that can be mapped.
pub(crate) fn bytes(context: &GpuContext, buffer: &wgpu::Buffer, count: u64) -> Vec<u8> {
    let slice = buffer.slice(..count);
    slice.map_async(wgpu::MapMode::Read, |mapped| mapped.expect("it is mapped"));
    wait(context);
    let bytes = slice.get_mapped_range().expect("it is mapped").to_vec();
    buffer.unmap();
    bytes
}
