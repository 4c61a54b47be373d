//! Magnitudes of some elements, before the step.

use super::bound::{Bindable, Bound, Use};
use super::feed::{Commands, Feed};
use super::layout::Window;
use super::memory::{Memory, SLOT, bind, slot_of};
use super::outcome::word;
use super::source::Part;
use crate::codec::gpu::context::GpuContext;
use crate::codec::gpu::error::GpuError;
use crate::codec::gpu::slices::DeviceSlice;
use crate::codec::gpu::transfer::Download;
use std::ops::Range;
use wgpu::{Buffer, BufferUsages, ComputePassDescriptor};

/// Elements of a batch, at most: what one read-back brings.
const ELEMENTS: usize = 1 << 20;
/// Elements of a piece, at most: a workgroup's work.
const PIECE: usize = 1024;
/// Pieces of a batch, and dispatches, at most: an update of a thousand parts needs one read-back too.
const PIECES: usize = 1 << 14;
const GROUPS: usize = 1 << 10;

/// Buffers for samples.
pub(super) struct Sampler {
    context: GpuContext,
    feed: Feed,
    download: Download,
    pieces: Buffer,
    /// The update's elements, where they come from this process.
    update: Buffer,
    magnitudes: Buffer,
    slots: Buffer,
    elements: usize,
    batch: Batch,
}

/// Pieces that are read back together.
#[derive(Default)]
struct Batch {
    /// Where in the residual and in the update, how long, and where to.
    pieces: Vec<[u32; 4]>,
    /// Pieces of one window and of one part of the update: both, where the first one is and how many.
    groups: Vec<(usize, Source, usize, usize)>,
    elements: usize,
}

/// Where an update's elements come from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Residual,
    Host,
    /// The part of this number, from and to these elements.
    Device(usize, usize, usize),
}

impl Sampler {
    pub(super) fn new(context: &GpuContext, elements: usize) -> Result<Sampler, GpuError> {
        let elements = elements.clamp(PIECE, ELEMENTS);
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
        let made = |what, bytes: usize, usage| context.buffer(what, bytes as u64, usage, false);
        Ok(Sampler {
            context: context.clone(),
            feed: Feed::new(context, 1 << 20)?,
            download: Download::new(context),
            pieces: made("a sample's pieces", 16 * PIECES, usage)?,
            update: made("a sample of an update", 4 * elements, usage)?,
            magnitudes: made(
                "a sample",
                4 * elements,
                BufferUsages::STORAGE | BufferUsages::COPY_SRC,
            )?,
            slots: made(
                "a sample's dispatches",
                SLOT * GROUPS,
                BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            )?,
            elements,
            batch: Batch::default(),
        })
    }

    /// Appends |s| of pieces of the vector. `parts`: the update's; `None` if it is in the residual.
    #[allow(clippy::too_many_arguments, reason = "borrows of a vector's fields")]
    pub(super) fn sample(
        &mut self,
        windows: &[Window],
        memory: &Memory,
        bound: &mut Bound,
        parts: Option<&[Part<'_>]>,
        pieces: &[Range<usize>],
        commands: &mut Commands,
        out: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        // An error may have left some of another step.
        self.batch.clear();
        let alignment = self.context.alignment();
        let mut ends = Vec::new();
        if let Some(parts) = parts {
            let mut end = 0usize;
            ends.extend(parts.iter().map(|part| {
                end = end.saturating_add(part.len());
                end
            }));
        }
        let all = windows.last().map_or(0, |window| window.elements.end);
        // What this step's caller recorded is submitted even if nothing is asked for.
        let mut is_open = true;
        for piece in pieces {
            let (mut start, end) = (piece.start, piece.end.min(all));
            while start < end {
                let window = windows.partition_point(|window| window.elements.end <= start);
                let of_window = &windows[window].elements;
                let mut count = (end - start).min(of_window.end - start).min(PIECE);
                count = count.min(self.elements - self.batch.elements);
                let mut source = Source::Residual;
                let mut at = 0;
                if let Some(parts) = parts {
                    let part = ends.partition_point(|&end| end <= start);
                    let Some(found) = parts.get(part) else {
                        break;
                    };
                    count = count.min(ends[part] - start);
                    let first = ends[part] - found.len();
                    match found.slice(start - first, count) {
                        Part::Host(values) => {
                            (source, at) = (Source::Host, self.batch.elements);
                            let to = 4 * at as u64;
                            self.feed.write_values(commands, values, &self.update, to)?;
                        }
                        Part::Device(_) => {
                            let from = of_window.start.max(first);
                            let to = of_window.end.min(ends[part]);
                            source = Source::Device(part, from - first, to - from);
                            if let Part::Device(slice) = found.slice(from - first, to - from) {
                                at = Bindable::of(&slice, alignment).1 as usize + start - from;
                            }
                        }
                    }
                }
                let in_window = start - of_window.start;
                self.batch.add(window, source, in_window, at, count);
                start += count;
                if self.batch.is_full(self.elements) {
                    self.run(memory, bound, parts, commands, out)?;
                    is_open = false;
                    *commands = Commands::new(&self.context)?;
                }
            }
        }
        if is_open || self.batch.elements > 0 {
            self.run(memory, bound, parts, commands, out)?;
        }
        Ok(())
    }

    /// Makes the magnitudes of a batch.
    fn run(
        &mut self,
        memory: &Memory,
        bound: &mut Bound,
        parts: Option<&[Part<'_>]>,
        commands: &mut Commands,
        out: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        let batch = &mut self.batch;
        let pieces = bytemuck::cast_slice(&batch.pieces);
        self.feed.write(commands, pieces, &self.pieces, 0)?;
        let mut slots = vec![0u32; SLOT / 4 * batch.groups.len()];
        for (slot, &(_, source, first, count)) in
            slots.chunks_exact_mut(SLOT / 4).zip(&batch.groups)
        {
            let in_residual = u32::from(source == Source::Residual);
            slot[..3].copy_from_slice(&[first as u32, count as u32, in_residual]);
        }
        let slots = bytemuck::cast_slice(&slots);
        self.feed.write(commands, slots, &self.slots, 0)?;
        // What the pass reads is submitted before it.
        self.feed.flush(commands)?;

        let kernel = &self.context.kernels().encode.magnitudes;
        let alignment = self.context.alignment();
        let mut groups = Vec::with_capacity(batch.groups.len());
        for &(window, source, _, count) in &batch.groups {
            let slice = match (source, parts) {
                (Source::Device(part, from, len), Some(parts)) => {
                    match parts[part].slice(from, len) {
                        Part::Device(slice) => slice,
                        Part::Host(_) => continue,
                    }
                }
                _ => DeviceSlice {
                    buffer: &self.update,
                    offset: 0,
                    len: self.elements as u64,
                },
            };
            let (bindable, _) = Bindable::of(&slice, alignment);
            let group = bound.get(Use::Magnitudes, window, bindable, |update| {
                let bindings = [
                    slot_of(&self.slots),
                    self.pieces.as_entire_binding(),
                    update,
                    memory.windows[window].residual.as_entire_binding(),
                    self.magnitudes.as_entire_binding(),
                ];
                bind(&self.context, kernel, &bindings)
            })?;
            groups.push((group, count as u64));
        }
        let mut pass = commands.encoder.begin_compute_pass(&ComputePassDescriptor {
            label: Some("magnitudes"),
            timestamp_writes: None,
        });
        for (at, (group, count)) in groups.iter().enumerate() {
            kernel.dispatch(&mut pass, group, Some((SLOT * at) as u32), *count);
        }
        drop(pass);
        let bytes = 4 * batch.elements as u64;
        let next = Commands::new(&self.context)?;
        let mut full = std::mem::replace(commands, next);
        let staging = self.download.buffer(bytes)?;
        if bytes > 0 {
            full.encoder
                .copy_buffer_to_buffer(&self.magnitudes, 0, staging, 0, bytes);
        }
        let index = full.submit(&self.context, "a sample")?;
        if bytes > 0 {
            self.download.read(index, bytes, |bytes| {
                let words = 0..bytes.len() / 4;
                out.extend(words.map(|at| f32::from_bits(word(bytes, at))));
            })?;
        }
        batch.clear();
        Ok(())
    }
}

impl Batch {
    fn clear(&mut self) {
        self.pieces.clear();
        self.groups.clear();
        self.elements = 0;
    }

    fn add(
        &mut self,
        window: usize,
        source: Source,
        residual: usize,
        update: usize,
        elements: usize,
    ) {
        match self.groups.last_mut() {
            Some(last) if last.0 == window && last.1 == source => last.3 += 1,
            _ => self.groups.push((window, source, self.pieces.len(), 1)),
        }
        self.pieces
            .push([residual, update, elements, self.elements].map(|number| number as u32));
        self.elements += elements;
    }

    fn is_full(&self, elements: usize) -> bool {
        self.elements == elements || self.pieces.len() == PIECES || self.groups.len() == GROUPS
    }
}
