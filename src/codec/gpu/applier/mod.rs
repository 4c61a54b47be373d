//! Records onto parameters, or onto a sum, in the memory of a device.

mod batch;
mod items;
mod kernels;
mod not_finite;

use super::context::GpuContext;
use super::error::GpuError;
use super::slices::{GradRef, PARAMETERS};
use super::transfer::Uploads;
use super::windows::{Piece, Windows};
use crate::codec::apply::{Apply, checked};
use crate::codec::format::{Checked, DecodeError, Format, Record};
use crate::codec::parameters::Parameters;
use crate::codec::{BLOCK, canon, dense};
use batch::{Batch, DISPATCHES, ITEMS, Item, PAYLOAD};
use items::items_of;
pub(super) use kernels::ApplyKernels;
use kernels::Kind;
use not_finite::NotFinite;
use std::ops::Range;
use thiserror::Error;
use wgpu::{
    BindGroup, BindingResource, Buffer, BufferBinding, BufferUsages, CommandEncoder,
    ComputePassDescriptor, SubmissionIndex,
};

/// Why a record could not be applied on a device.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GpuApplyError {
    /// The record, or the target's length, is wrong: nothing was applied.
    #[error(transparent)]
    Record(#[from] DecodeError),
    /// The device.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// Bytes of what a dispatch is told.
const DISPATCHED: u64 = 16;

/// What a kernel reads and writes beside its target.
struct Shared {
    dispatched: Buffer,
    payload: Buffer,
    items: Buffer,
    not_finite: Buffer,
}

impl Shared {
    /// Binds them, and a target, for a kernel.
    fn bind(
        &self,
        context: &GpuContext,
        kind: Kind,
        target: BindingResource<'_>,
    ) -> Result<BindGroup, GpuError> {
        let dispatched = BindingResource::Buffer(BufferBinding {
            buffer: &self.dispatched,
            offset: 0,
            size: DISPATCHED.try_into().ok(),
        });
        let buffers = [
            dispatched,
            self.payload.as_entire_binding(),
            self.items.as_entire_binding(),
            target,
            self.not_finite.as_entire_binding(),
        ];
        let kernel = context.kernels().apply.of(kind);
        #[cfg(test)]
        context.note_made();
        context.scoped("parameters", |device| kernel.bind(device, &buffers))
    }
}

/// Applies records to parameters, or to a sum, in the memory of a device.
///
/// The bits are those of [`Path::apply_at`](crate::codec::Path::apply_at), whatever the order of the calls. Records are
/// collected and go to the device together; [`finish`](Self::finish) submits the rest. It has 12 MiB of staging memory,
/// 4 MiB of its own and 4 MiB on the device, however large the target is, and makes no buffers after that.
pub struct GpuApplier {
    context: GpuContext,
    uploads: Uploads,
    shared: Shared,
    windows: Windows<{ Kind::ALL.len() }>,
    not_finite: NotFinite,
    batch: Batch,
    /// Bytes from a dispatch's uniform numbers to the next one's.
    stride: usize,
    pieces: Vec<Piece>,
    /// The items of one piece.
    items: Vec<Item>,
    /// All of a batch's items, and all of its dispatches' numbers, as they go to the device.
    table: Vec<Item>,
    dispatched: Vec<u8>,
}

impl std::fmt::Debug for GpuApplier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GpuApplier").field(&self.context).finish()
    }
}

impl GpuApplier {
    /// An applier on this device.
    ///
    /// # Errors
    /// [`GpuError`] when there is no memory for its buffers.
    pub fn new(context: &GpuContext) -> Result<GpuApplier, GpuError> {
        let alignment = context
            .device()
            .limits()
            .min_uniform_buffer_offset_alignment;
        let stride = DISPATCHED.next_multiple_of(u64::from(alignment.max(16))) as usize;
        let uniforms = DISPATCHES * stride;
        let items = ITEMS * size_of::<Item>();
        let buffer = |what, bytes: usize, usage| {
            context.buffer(what, bytes as u64, usage | BufferUsages::COPY_DST, false)
        };
        let not_finite = NotFinite::new(context)?;
        Ok(GpuApplier {
            uploads: Uploads::new(context, PAYLOAD + items + uniforms)?,
            shared: Shared {
                dispatched: buffer("the dispatches", uniforms, BufferUsages::UNIFORM)?,
                payload: buffer("the payloads", PAYLOAD, BufferUsages::STORAGE)?,
                items: buffer("the items", items, BufferUsages::STORAGE)?,
                not_finite: not_finite.counter().clone(),
            },
            windows: Windows::new(context),
            not_finite,
            batch: Batch::new(),
            stride,
            pieces: Vec::new(),
            items: Vec::new(),
            table: Vec::new(),
            dispatched: Vec::new(),
            context: context.clone(),
        })
    }

    /// Applies a record to the elements from `start` on. All of it is checked first, as
    /// [`Path::apply_at`](crate::codec::Path::apply_at) does; `x` is the scaled unit as there. What does not fit the
    /// upload buffers any more is submitted; only a device that is several submissions behind is waited for.
    ///
    /// # Errors
    /// [`GpuApplyError`]. After [`GpuApplyError::Record`], and after [`GpuError::Buffer`] and
    /// [`GpuError::InHostMemory`], nothing of this record was applied.
    pub fn apply(
        &mut self,
        record: &Record<'_>,
        x: f32,
        how: Apply,
        target: &[GradRef<'_>],
        start: usize,
    ) -> Result<(), GpuApplyError> {
        let found = target.elements();
        let end = start.checked_add(record.elements);
        let Some(end) = end.filter(|&end| end <= found) else {
            return Err(DecodeError::Place {
                elements: record.elements,
                start,
                found,
            }
            .into());
        };
        let (record, x) = checked(record, x, how)?;
        let kind = match record.record().format {
            Format::Sparse => Kind::Sparse,
            Format::Bitmap => Kind::Bitmap,
            Format::DenseF32 | Format::DenseBf16 => Kind::Values,
        };
        self.cut(target, start..end)?;
        for piece in &self.pieces {
            let make = |target: BindingResource<'_>| self.shared.bind(&self.context, kind, target);
            self.windows.bind(piece.window, kind as usize, make)?;
        }
        Ok(self.push(&record, x, kind)?)
    }

    /// Makes elements +0, after what was applied before.
    ///
    /// # Errors
    /// [`GpuError`]: then nothing was made +0, unless the device is lost.
    pub fn clear(
        &mut self,
        target: &[GradRef<'_>],
        elements: Range<usize>,
    ) -> Result<(), GpuError> {
        self.cut(target, elements)?;
        for piece in &self.pieces {
            self.batch.make_zero(piece);
        }
        Ok(())
    }

    /// Submits what has not been submitted yet: the target is complete for whatever is submitted after it. Buffers that
    /// nothing has been applied to since the last time are let go.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn finish(&mut self) -> Result<(), GpuError> {
        if !self.batch.is_empty() || self.not_finite.wants_copy() {
            self.submit(true)?;
        }
        self.windows.forget();
        Ok(())
    }

    /// Hits and dense values, since the last call, whose target was not finite, as far as they are known without waiting:
    /// those of a step are known in the next one.
    pub fn take_not_finite(&mut self) -> u64 {
        self.not_finite.take(&self.context)
    }

    /// The pieces of some elements of a target.
    fn cut(&mut self, target: &[GradRef<'_>], elements: Range<usize>) -> Result<(), GpuError> {
        self.windows
            .cut("parameters", PARAMETERS, target, elements, &mut self.pieces)
    }

    /// Adds a checked record to the batch, on the pieces of its elements.
    fn push(&mut self, record: &Checked<'_>, x: f32, kind: Kind) -> Result<(), GpuError> {
        let mut place = self.put(record, x)?;
        let pieces = std::mem::take(&mut self.pieces);
        let mut items = std::mem::take(&mut self.items);
        for piece in &pieces {
            items.clear();
            items_of(record, x, piece, &mut items);
            if items.is_empty() {
                continue;
            }
            let mut layer = self.batch.layer(piece);
            for item in &items {
                if !self.batch.has_room() {
                    self.submit(false)?;
                    place = self.put(record, x)?;
                    layer = self.batch.layer(piece);
                }
                let item = Item {
                    place: place + item.place,
                    ..*item
                };
                self.batch.add(layer, piece.window, kind, item);
            }
        }
        (self.pieces, self.items) = (pieces, items);
        Ok(())
    }

    /// Puts a record's entries into the batch's payload: where they begin, in units of an entry.
    fn put(&mut self, record: &Checked<'_>, x: f32) -> Result<u32, GpuError> {
        let Record {
            format,
            elements,
            payload,
            ..
        } = record.record();
        let bytes = match format {
            Format::Sparse | Format::Bitmap => payload.len(),
            Format::DenseF32 | Format::DenseBf16 => 4 * elements,
        };
        if bytes > self.batch.room() {
            self.submit(false)?;
        }
        let to = &mut self.batch.payload;
        if format != Format::Sparse {
            to.resize(to.len().next_multiple_of(4), 0);
        }
        let at = to.len() as u32;
        Ok(match format {
            Format::Sparse => {
                to.extend_from_slice(&payload[2 * elements.div_ceil(BLOCK)..]);
                at / 2
            }
            Format::Bitmap => {
                to.extend_from_slice(payload);
                at * 4
            }
            Format::DenseF32 => {
                let (values, _) = payload.as_chunks::<4>();
                let scaled = |value: &[u8; 4]| canon(f32::from_le_bytes(*value) * x).to_le_bytes();
                to.extend(values.iter().flat_map(scaled));
                at / 4
            }
            Format::DenseBf16 => {
                let (values, _) = payload.as_chunks::<2>();
                let single = |value: &[u8; 2]| dense::from_bf16(u16::from_le_bytes(*value));
                to.extend(
                    values
                        .iter()
                        .flat_map(|value| canon(single(value) * x).to_le_bytes()),
                );
                at / 4
            }
        })
    }

    /// Submits the batch; at the end of a step with a copy of what was counted.
    fn submit(&mut self, ends: bool) -> Result<(), GpuError> {
        let done = self.submit_batch(ends);
        // After an error what was to be applied is gone with it, and the next batch begins anew.
        self.batch.clear();
        let done = self.uploads.settle(done).map(drop);
        let told = self.not_finite.submitted(&self.context, done.is_ok());
        done.and(told)
    }

    fn submit_batch(&mut self, ends: bool) -> Result<SubmissionIndex, GpuError> {
        const DURING: &str = "applying records";
        self.write()?;
        let commands = self.context.clone().scoped(DURING, |device| {
            let mut commands = device.create_command_encoder(&Default::default());
            self.uploads.record(&mut commands);
            self.record(&mut commands);
            if self.batch.dispatches() > 0 {
                self.not_finite.counts();
            }
            if ends && self.not_finite.wants_copy() {
                self.not_finite.record(&mut commands);
            }
            commands.finish()
        })?;
        self.context.submit(DURING, [commands])
    }

    /// Writes payload, items and dispatches to the upload buffer.
    fn write(&mut self) -> Result<(), GpuError> {
        let GpuApplier { batch, shared, .. } = self;
        let payload = &mut batch.payload;
        payload.resize(payload.len().next_multiple_of(4), 0);
        self.uploads.write(payload, &shared.payload, 0)?;
        self.table.clear();
        self.dispatched.clear();
        for number in 0..batch.dispatches() {
            let items = &batch.group(number).items;
            let numbers = [self.table.len() as u32, items.len() as u32];
            self.dispatched.resize(number * self.stride, 0);
            self.dispatched
                .extend_from_slice(bytemuck::cast_slice(&numbers));
            self.table.extend_from_slice(items);
        }
        let table = bytemuck::cast_slice(&self.table);
        self.uploads.write(table, &shared.items, 0)?;
        self.uploads.write(&self.dispatched, &shared.dispatched, 0)
    }

    /// Records the batch's layers. A pass ends only where elements are to become +0 between its dispatches.
    fn record(&self, commands: &mut CommandEncoder) {
        let kernels = &self.context.kernels().apply;
        let layers = self.batch.layers();
        for layers in layers.chunk_by(|_, next| next.clears.is_empty()) {
            for (window, elements) in &layers[0].clears {
                let window = self.windows.window(*window);
                let offset = window.offset + 4 * u64::from(elements.start);
                let bytes = 4 * elements.len() as u64;
                commands.clear_buffer(&window.buffer, offset, Some(bytes));
            }
            if layers.iter().all(|layer| layer.groups.is_empty()) {
                continue;
            }
            let mut pass = commands.begin_compute_pass(&ComputePassDescriptor {
                label: Some("gradring: apply"),
                timestamp_writes: None,
            });
            for &number in layers.iter().flat_map(|layer| &layer.groups) {
                let group = self.batch.group(number);
                if let Some(bound) = self.windows.bound(group.window, group.kind as usize) {
                    let offset = Some((number * self.stride) as u32);
                    let workgroups = group.items.len() as u64;
                    kernels
                        .of(group.kind)
                        .dispatch(&mut pass, bound, offset, workgroups);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CHUNK;
    use wgpu::{Device, DeviceDescriptor};

    #[test]
    fn steps_after_the_first_make_neither_buffers_nor_bindings() {
        // A device that does nothing, but sees what is asked of it.
        let (device, queue) = Device::noop(&DeviceDescriptor::default());
        let context = GpuContext::from_wgpu(device, queue).expect("it takes everything");
        let parameters = [300_000, 5, 77_000].map(|elements| {
            let made = context.buffer("parameters", 4 * elements, PARAMETERS, false);
            made.expect("memory")
        });
        let target = parameters.each_ref().map(GradRef::device);
        let mut applier = GpuApplier::new(&context).expect("memory");
        let payload = [0; 4 * 90_000];
        let mut made = 0;
        for step in 0..6 {
            for start in (0..300_000).step_by(60_000) {
                for (format, bytes) in [(Format::DenseF32, 4), (Format::Bitmap, 0)] {
                    let elements = 70_000;
                    let bytes = if bytes > 0 {
                        bytes * elements
                    } else {
                        elements / 4
                    };
                    let record = Record {
                        format,
                        hits: 0,
                        elements,
                        payload: &payload[..bytes],
                    };
                    applier
                        .apply(&record, 1.0, Apply::Add, &target, start)
                        .expect("good records");
                }
            }
            applier.clear(&target, 0..CHUNK).expect("a good target");
            applier.finish().expect("the device works");
            if step == 0 {
                made = context.made();
            }
            assert_eq!(context.made(), made, "in step {step}");
        }
    }
}
