//! The hash of parameters in the memory of a device.

use super::context::GpuContext;
use super::error::GpuError;
use super::kernels::{Access, Kernel, source};
use super::slices::{GradRef, PARAMETERS};
use super::transfer::{Download, Uploads};
use super::whole::submit;
use super::windows::{Piece, Windows};
use wgpu::{BindingResource, Buffer, BufferBinding, BufferUsages, ComputePassDescriptor, Device};

/// Elements of a workgroup of the kernel `hash`.
pub(super) const TILE: u32 = 16_384;

/// Dispatches of the kernel `hash` between two submissions.
pub(super) const DISPATCHES: usize = 128;

/// What a dispatch of the kernel `hash` is told.
const HASHED: u64 = 12;

pub(super) fn hash_kernel(device: &Device) -> Kernel {
    let bindings = [Access::Uniform, Access::Read, Access::ReadWrite];
    Kernel::new(device, source!("hash", "arithmetic"), &bindings, &[])
}

/// What the hash needs on a device.
pub(super) struct Hashing {
    uploads: Uploads,
    hashed: Buffer,
    totals: Buffer,
    windows: Windows<1>,
    stride: usize,
}

impl Hashing {
    pub(super) fn new(context: &GpuContext) -> Result<Hashing, GpuError> {
        let alignment = context
            .device()
            .limits()
            .min_uniform_buffer_offset_alignment;
        let stride = alignment.max(16) as usize;
        let uniforms = DISPATCHES * stride;
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let totals = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        Ok(Hashing {
            uploads: Uploads::new(context, uniforms)?,
            hashed: context.buffer("the parts to hash", uniforms as u64, usage, false)?,
            totals: context.buffer("the hash", 8, totals, false)?,
            windows: Windows::new(context),
            stride,
        })
    }

    pub(super) fn sums(
        &mut self,
        context: &GpuContext,
        download: &mut Download,
        parts: &[GradRef<'_>],
    ) -> Result<[u32; 2], GpuError> {
        let kernel = &context.kernels().hash;
        let mut pieces = Vec::new();
        self.windows
            .cut("parameters", PARAMETERS, parts, 0..usize::MAX, &mut pieces)?;
        for piece in &pieces {
            self.windows.bind(piece.window, 0, |target| {
                let hashed = BindingResource::Buffer(BufferBinding {
                    buffer: &self.hashed,
                    offset: 0,
                    size: HASHED.next_multiple_of(16).try_into().ok(),
                });
                let buffers = [hashed, target, self.totals.as_entire_binding()];
                context.scoped("parameters", |device| kernel.bind(device, &buffers))
            })?;
        }
        let staging = download.buffer(8)?.clone();
        let mut index = None;
        // Without any piece there is still the sum of nothing to fetch.
        let none = std::iter::once(&[][..]).filter(|_| pieces.is_empty());
        let groups = pieces.chunks(DISPATCHES).chain(none);
        for (number, pieces) in groups.enumerate() {
            let hashed = self.hashed_of(pieces);
            self.uploads.write(&hashed, &self.hashed, 0)?;
            let (windows, totals) = (&self.windows, &self.totals);
            let stride = self.stride;
            index = Some(submit(
                context,
                "hashing parameters",
                &mut self.uploads,
                |commands| {
                    if number == 0 {
                        commands.clear_buffer(totals, 0, None);
                    }
                    let mut pass = commands.begin_compute_pass(&ComputePassDescriptor {
                        label: Some("gradring: hash"),
                        timestamp_writes: None,
                    });
                    for (at, piece) in pieces.iter().enumerate() {
                        if let Some(bound) = windows.bound(piece.window, 0) {
                            let tiles = (piece.elements.len() as u64).div_ceil(u64::from(TILE));
                            kernel.dispatch(&mut pass, bound, Some((at * stride) as u32), tiles);
                        }
                    }
                    drop(pass);
                    commands.copy_buffer_to_buffer(totals, 0, &staging, 0, 8);
                },
            )?);
        }
        self.windows.forget();
        match index {
            None => Ok([0; 2]),
            Some(index) => download.read(index, 8, |bytes| {
                let (words, _) = bytes.as_chunks::<4>();
                [0, 1].map(|word| u32::from_le_bytes(words[word]))
            }),
        }
    }

    /// What the dispatches of these pieces are told.
    fn hashed_of(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            bytes.resize(at * self.stride, 0);
            let Piece { elements, from, .. } = piece;
            let numbers = [elements.start, *from as u32, elements.len() as u32];
            bytes.extend_from_slice(bytemuck::cast_slice(&numbers));
        }
        bytes
    }
}
