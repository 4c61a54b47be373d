//! The kernels that apply records.

use crate::codec::gpu::kernels::{Access, Kernel, source};
use wgpu::Device;

/// What an item's entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// The hits of a block.
    Sparse,
    /// A bitmap's elements.
    Bitmap,
    /// Values, scaled already.
    Values,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Sparse, Kind::Bitmap, Kind::Values];

    /// The most entries of an item. A workgroup has 256 threads; each of them is to have a few entries at most where
    /// records are short, and where they are long not too many items are to be made.
    pub(super) fn most(self) -> usize {
        match self {
            Kind::Sparse => 1024,
            Kind::Bitmap => 4096,
            Kind::Values => 2048,
        }
    }
}

/// The kernels that apply records.
pub(in crate::codec::gpu) struct ApplyKernels([Kernel; Kind::ALL.len()]);

impl ApplyKernels {
    pub(in crate::codec::gpu) fn new(device: &Device) -> ApplyKernels {
        let bindings = [
            Access::Uniform,
            Access::Read,
            Access::Read,
            Access::ReadWrite,
            Access::ReadWrite,
        ];
        ApplyKernels(Kind::ALL.map(|kind| {
            let source = match kind {
                Kind::Sparse => source!("apply_sparse", "arithmetic", "applying"),
                Kind::Bitmap => source!("apply_bitmap", "arithmetic", "applying"),
                Kind::Values => source!("apply_f32", "arithmetic", "applying"),
            };
            Kernel::new(device, source, &bindings, &[])
        }))
    }

    pub(super) fn of(&self, kind: Kind) -> &Kernel {
        &self.0[kind as usize]
    }
}
