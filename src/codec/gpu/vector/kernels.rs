//! The kernels of encoding.

use crate::codec::gpu::kernels::{Access, Kernel, source};
use wgpu::{Device, Features};

use Access::{Read, ReadWrite, Uniform};

/// The kernels of encoding, compiled.
pub(in crate::codec::gpu) struct EncodeKernels {
    pub(super) accumulate: Kernel,
    pub(super) count: Kernel,
    pub(super) count_in_residual: Kernel,
    pub(super) plan: Kernel,
    pub(super) sparse: Kernel,
    pub(super) bitmap: Kernel,
    pub(super) dense_f32: Kernel,
    pub(super) dense_bf16: Kernel,
    pub(super) seen: Kernel,
    pub(super) clamp: Kernel,
    pub(super) look: Kernel,
    pub(super) magnitudes: Kernel,
}

impl EncodeKernels {
    /// Those that suit the device: with subgroups if it has them.
    pub(in crate::codec::gpu) fn new(device: &Device) -> EncodeKernels {
        let kernel = |source, bindings: &[Access]| Kernel::new(device, source, bindings, &[]);
        let counting = if device.features().contains(Features::SUBGROUP) {
            source!("count_subgroups", "arithmetic", "layout", "count")
        } else {
            source!("count", "arithmetic", "layout", "count")
        };
        let count = |in_residual: bool| {
            let bindings = [
                Uniform, Read, ReadWrite, ReadWrite, Read, Read, Read, ReadWrite, ReadWrite,
            ];
            let constants = [("IN_RESIDUAL", f64::from(u8::from(in_residual)))];
            Kernel::new(device, counting, &bindings, &constants)
        };
        let hits = [
            Uniform, Read, Read, Read, Read, Read, Read, ReadWrite, ReadWrite,
        ];
        let dense = [Uniform, Read, Read, Read, ReadWrite, ReadWrite];
        EncodeKernels {
            accumulate: kernel(
                source!("accumulate", "arithmetic", "layout"),
                &[Uniform, Read, ReadWrite, ReadWrite],
            ),
            count: count(false),
            count_in_residual: count(true),
            plan: kernel(
                source!("plan", "layout", "seen"),
                &[Uniform, Read, Read, Read, Read, ReadWrite, ReadWrite],
            ),
            sparse: kernel(source!("sparse", "arithmetic", "layout", "ranks"), &hits),
            bitmap: kernel(source!("bitmap", "arithmetic", "layout", "ranks"), &hits),
            dense_f32: kernel(source!("dense_f32", "arithmetic", "layout"), &dense),
            dense_bf16: kernel(source!("dense_bf16", "arithmetic", "layout"), &dense),
            seen: kernel(
                source!("seen", "arithmetic", "layout", "seen"),
                &[Uniform, Read, Read, Read, ReadWrite],
            ),
            clamp: kernel(
                source!("clamp", "arithmetic", "layout"),
                &[Uniform, Read, Read, Read, Read, ReadWrite, ReadWrite],
            ),
            look: kernel(
                source!("look", "arithmetic", "layout"),
                &[Uniform, Read, Read, ReadWrite],
            ),
            magnitudes: kernel(
                source!("magnitudes", "arithmetic"),
                &[Uniform, Read, Read, Read, ReadWrite],
            ),
        }
    }
}
