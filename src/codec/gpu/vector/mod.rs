//! A vector's residual on a device, and the encoding of it.
//!
//! A step is one submission: `accumulate` and `count` add the update, mark hits in a mask of a bit an element, and count
//! them; `plan` says what is sent of each chunk and where in the message it lies; `sparse`, `bitmap`, `dense_f32` and
//! `dense_bf16` write the message and take from the residual what it sends; `seen` adds what the mean is made of, `clamp`
//! clips, `look` samples what stays. Then one read-back of outcomes and message. This is reduce-then-scan: ranks of hits
//! follow from counts alone, so that the bytes do not depend on which workgroup comes first.

mod bound;
mod feed;
mod kernels;
mod layout;
mod memory;
mod outcome;
mod sampler;
mod source;
#[cfg(test)]
mod tests;
mod timed;

pub(super) use kernels::EncodeKernels;
pub use timed::{StageTimes, TimedVector};

use super::context::GpuContext;
use super::error::GpuError;
use super::slices::DeviceSlice;
use super::transfer::{Download, Uploads};
use crate::codec::Unit;
use crate::codec::encode::Clip;
use crate::codec::format::Format;
use crate::codec::given::Given;
use crate::codec::ranges::{Chunk, ChunkCoding};
use bound::{Bindable, Bound, Use};
use feed::Feed;
use layout::{Layout, OUTCOME_WORDS};
use memory::{Memory, SLOT};
use outcome::{CUT_WORDS, Outcome};
use sampler::Sampler;
use source::Shares;
use std::ops::Range;
use std::sync::Arc;
use timed::{Stage, Timer};
use wgpu::{BufferUsages, CommandEncoder, ComputePassDescriptor, SubmissionIndex};

/// What a step encodes with.
pub(crate) struct GpuStep<'a> {
    /// Its number.
    pub(crate) step: u64,
    /// The chunk that is visited first, modulo their number.
    pub(crate) first: u64,
    /// Of each scope: threshold and unit, and how many hits may be sent (`usize::MAX`: all).
    pub(crate) scopes: &'a [(Unit, usize)],
    /// Clamp what stays.
    pub(crate) clip: Option<Clip>,
}

/// What came of a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GpuChunk {
    pub(crate) format: Format,
    pub(crate) hits: u32,
    /// As [`Encoded::mean`](crate::codec::Encoded::mean), to the bit.
    pub(crate) mean: f64,
    /// As [`Encoded::residual_max`](crate::codec::Encoded::residual_max), to the bit.
    pub(crate) residual_max: f32,
    /// As [`Encoded::residual_l1`](crate::codec::Encoded::residual_l1), to about 1e-6 of it.
    pub(crate) residual_l1: f64,
}

/// A vector's residual on a device.
pub(crate) struct GpuVector {
    context: GpuContext,
    chunks: Arc<[Chunk]>,
    layout: Layout,
    /// Of a vector without elements there is none.
    memory: Option<Memory>,
    /// What a step needs of this process, but for its update.
    uploads: Uploads,
    download: Download,
    /// Updates in this process's memory, and the buffer to which they go. Not there before there is one.
    host: Option<(Feed, wgpu::Buffer)>,
    sampler: Option<Sampler>,
    bound: Bound,
    record_after: Option<CommandEncoder>,
    /// For this package's own benchmark.
    timer: Option<Timer>,
    came: Came,
}

/// What came of the last step.
#[derive(Default)]
struct Came {
    chunks: Vec<GpuChunk>,
    /// Where each chunk's payload lies in the message, in bytes.
    payloads: Vec<Range<usize>>,
    /// All windows' messages.
    message: Vec<u8>,
    dropped: u64,
    clipped: f64,
}

impl GpuVector {
    /// A residual of +0, cut into these chunks; `ChunkCoding::Threshold(scope)` has scopes below `scopes`.
    pub(crate) fn new(
        context: &GpuContext,
        chunks: Arc<[Chunk]>,
        scopes: usize,
    ) -> Result<GpuVector, GpuError> {
        let elements = chunks.last().map_or(0, |chunk| chunk.elements.end);
        if elements > MOST_ELEMENTS {
            return Err(GpuError::Refused {
                adapter: context.name(),
                what: "a vector",
                why: format!("it has {elements} elements; at most {MOST_ELEMENTS} can be numbered"),
            });
        }
        // An update's binding begins up to an alignment before its first element.
        let most = context.most_bound() - context.alignment();
        let layout = Layout::new(&chunks, scopes, most);
        let memory = if layout.windows.is_empty() {
            None
        } else {
            Some(Memory::new(context, &layout)?)
        };
        let bytes = step_bytes(&layout, 0);
        Ok(GpuVector {
            context: context.clone(),
            chunks,
            layout,
            memory,
            uploads: Uploads::new(context, bytes)?,
            download: Download::new(context),
            host: None,
            sampler: None,
            bound: Bound::default(),
            record_after: None,
            timer: None,
            came: Came::default(),
        })
    }

    pub(crate) fn context(&self) -> &GpuContext {
        &self.context
    }

    fn elements(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk.elements.end)
    }

    /// Puts the first submission of the next step behind these commands of the caller's, and into the same submission.
    /// Of several, all but the last are submitted now.
    pub(crate) fn record_after(&mut self, commands: wgpu::CommandEncoder) -> Result<(), GpuError> {
        if let Some(before) = self.record_after.replace(commands) {
            submit(&self.context, before)?;
        }
        Ok(())
    }

    /// Appends |s| of the elements of these pieces of the vector, in their order: to the bit what the processor's kernel
    /// gives. Changes nothing. One read-back for each 2^20 of them.
    pub(crate) fn magnitudes(
        &mut self,
        update: Given<'_>,
        pieces: &[Range<usize>],
        out: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let elements = self.chunks.last().map_or(0, |chunk| chunk.elements.end);
        let parts = source::parts_of(update)?;
        let sampler = match &mut self.sampler {
            Some(sampler) => sampler,
            none => none.insert(Sampler::new(&self.context, elements)?),
        };
        let mut commands = match self.record_after.take() {
            Some(commands) => commands,
            None => feed::commands(&self.context)?,
        };
        let windows = &self.layout.windows;
        sampler.sample(
            windows,
            memory,
            &mut self.bound,
            parts.as_deref(),
            pieces,
            &mut commands,
            out,
        )
    }

    /// Encodes all chunks: one submission and one read-back (two where the guess of the message's length was too short).
    /// Of an update in this process's memory its upload is submitted before.
    ///
    /// After an error the residual may have the update or parts of it.
    pub(crate) fn encode(&mut self, update: Given<'_>, step: &GpuStep<'_>) -> Result<(), GpuError> {
        self.came.forget();
        let parts = source::parts_of(update)?;
        self.bound.begin();
        let mut commands = match self.record_after.take() {
            Some(commands) => commands,
            None => feed::commands(&self.context)?,
        };
        if self.memory.is_none() {
            let commands = self
                .context
                .scoped("the caller's commands", |_| commands.finish())?;
            self.context.submit("the caller's commands", [commands])?;
            return Ok(());
        }
        let shares = parts.map(|parts| source::shares(&parts, &self.layout.windows));
        self.upload_step(shares.as_deref(), step, &mut commands)?;
        for window in 0..self.layout.windows.len() {
            let of_window = shares.as_ref().map(|shares| &shares[window]);
            self.count(window, of_window, &mut commands)?;
        }
        self.emit(step, &mut commands);
        self.read_back(step, commands)
    }

    /// Uploads what the kernels need to know of a step, and clears what they count in.
    fn upload_step(
        &mut self,
        shares: Option<&[Shares<'_>]>,
        step: &GpuStep<'_>,
        commands: &mut CommandEncoder,
    ) -> Result<(), GpuError> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let alignment = self.context.alignment();
        let windows = &self.layout.windows;
        let all_chunks = self.chunks.len();
        let first = (step.first % all_chunks as u64) as u32;
        let rotation = (step.step as u32).wrapping_mul(0x9E37_79B1);

        let mut parts: Vec<[u32; 4]> = Vec::new();
        let mut slots = vec![0u32; windows.len() * SLOT / 4];
        for (number, (window, slot)) in windows
            .iter()
            .zip(slots.chunks_exact_mut(SLOT / 4))
            .enumerate()
        {
            let mut skip = 0;
            if let Some(shares) = shares.map(|shares| &shares[number]) {
                let skip_of = |from: &Option<DeviceSlice<'_>>| {
                    from.as_ref()
                        .map_or(0, |slice| Bindable::of(slice, alignment).1)
                };
                if shares.is_whole(window) {
                    skip = skip_of(&shares.shares[0].from);
                } else {
                    parts.extend(shares.shares.iter().map(|share| {
                        let skip = match share.from {
                            Some(_) => skip_of(&share.from),
                            None => share.start as u32,
                        };
                        let tiles = share.len.div_ceil(layout::TILE) as u32;
                        [share.start as u32, share.len as u32, skip, tiles]
                    }));
                }
            }
            slot[..8].copy_from_slice(&[
                window.tiles.start as u32,
                window.tiles.len() as u32,
                window.chunks.start as u32,
                window.chunks.len() as u32,
                skip,
                rotation,
                all_chunks as u32,
                self.layout.order.len() as u32,
            ]);
        }
        let mut scopes: Vec<u32> = Vec::new();
        for (places, &(unit, limit)) in self.layout.scopes.iter().zip(step.scopes) {
            let order = &self.layout.order[places.clone()];
            let pivot = places.start + order.partition_point(|&chunk| chunk < first);
            scopes.extend([
                unit.t().to_bits(),
                unit.v().to_bits(),
                outcome::bound(step, unit),
                u32::try_from(limit).unwrap_or(u32::MAX),
                places.start as u32,
                pivot as u32,
                places.end as u32,
            ]);
        }

        if step_bytes(&self.layout, parts.len()) > self.uploads.room() {
            self.uploads = Uploads::new(&self.context, step_bytes(&self.layout, 2 * parts.len()))?;
        }
        if memory.make_room_for_parts(&self.context, parts.len())? {
            self.bound.forget(Use::Accumulate);
        }
        let uploads = &mut self.uploads;
        uploads.write(bytemuck::cast_slice(&slots), &memory.slots, 0)?;
        uploads.write(bytemuck::cast_slice(&scopes), &memory.scopes, 0)?;
        if !parts.is_empty() {
            let mut slots = vec![0u32; parts.len() * SLOT / 4];
            for (slot, part) in slots.chunks_exact_mut(SLOT / 4).zip(&parts) {
                slot[..4].copy_from_slice(part);
            }
            uploads.write(bytemuck::cast_slice(&slots), &memory.parts, 0)?;
        }
        uploads.record(commands);
        commands.clear_buffer(&memory.totals, 0, None);
        if step.clip.is_some() {
            commands.clear_buffer(&memory.cut, 0, None);
        }
        for window in &mut memory.windows {
            if window.written > 0 {
                commands.clear_buffer(&window.message, 0, Some(4 * window.written));
            }
            // Until it is known how much it was.
            window.written = window.message.size() / 4;
        }
        memory.next_part = 0;
        Ok(())
    }

    /// Records the counting of a window's hits.
    fn count(
        &mut self,
        number: usize,
        shares: Option<&Shares<'_>>,
        commands: &mut CommandEncoder,
    ) -> Result<(), GpuError> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let kernels = &self.context.kernels().encode;
        let window = &self.layout.windows[number];
        let slot = Some((SLOT * number) as u32);
        let alignment = self.context.alignment();
        let mut adding = Vec::new();
        let mut whole = None;
        if let Some(shares) = shares {
            if !shares.host.is_empty() {
                let elements = self
                    .layout
                    .windows
                    .iter()
                    .map(|window| window.elements.len())
                    .max()
                    .unwrap_or(0);
                let (feed, buffer) = match &mut self.host {
                    Some(host) => host,
                    none => none.insert(host(&self.context, elements)?),
                };
                for &(start, values) in &shares.host {
                    feed.write_values(commands, values, buffer, 4 * start as u64)?;
                }
                // What this step's own uploads are recorded in goes with it.
                let index = feed.flush(commands)?;
                self.uploads.submitted(&index)?;
            }
            let own = self.host.as_ref().map(|(_, buffer)| buffer);
            let is_whole = shares.is_whole(window);
            for share in &shares.shares {
                let slice = match (share.from, own) {
                    (Some(slice), _) => slice,
                    (None, Some(buffer)) => DeviceSlice {
                        buffer,
                        offset: 0,
                        len: window.elements.len() as u64,
                    },
                    (None, None) => continue,
                };
                let (bindable, _) = Bindable::of(&slice, alignment);
                let memory = &*memory;
                if is_whole {
                    whole = Some(self.bound.get(Use::Count, number, bindable, |update| {
                        memory.bind_count(&self.context, number, update)
                    })?);
                } else {
                    let bound = self
                        .bound
                        .get(Use::Accumulate, number, bindable, |update| {
                            memory.bind_accumulate(&self.context, number, update)
                        })?;
                    adding.push((bound, share.len.div_ceil(layout::TILE) as u64));
                }
            }
        }
        let ends = [number == 0, number + 1 == self.layout.windows.len()];
        let mut pass = commands.begin_compute_pass(&ComputePassDescriptor {
            label: Some("count"),
            timestamp_writes: timed::writes(self.timer.as_ref(), Stage::Count, ends),
        });
        for (bound, tiles) in &adding {
            let part = Some((SLOT * memory.next_part) as u32);
            memory.next_part += 1;
            kernels.accumulate.dispatch(&mut pass, bound, part, *tiles);
        }
        let tiles = window.tiles.len() as u64;
        match &whole {
            Some(bound) => kernels.count.dispatch(&mut pass, bound, slot, tiles),
            None => {
                let bound = &memory.windows[number].count_in_residual;
                kernels
                    .count_in_residual
                    .dispatch(&mut pass, bound, slot, tiles);
            }
        }
        Ok(())
    }

    /// Records everything behind the counting.
    fn emit(&self, step: &GpuStep<'_>, commands: &mut CommandEncoder) {
        let Some(memory) = &self.memory else { return };
        let kernels = &self.context.kernels().encode;
        let pass_of = |label, stage| ComputePassDescriptor {
            label: Some(label),
            timestamp_writes: timed::writes(self.timer.as_ref(), stage, [true, true]),
        };
        let windows = || {
            let bound = memory.windows.iter().enumerate();
            bound
                .zip(&self.layout.windows)
                .map(|((number, bound), window)| {
                    let (tiles, chunks) = (window.tiles.len() as u64, window.chunks.len() as u64);
                    let slot = Some((SLOT * number) as u32);
                    (window, bound, slot, tiles, chunks)
                })
        };
        let mut pass = commands.begin_compute_pass(&pass_of("plan", Stage::Plan));
        kernels.plan.dispatch(&mut pass, &memory.plan, Some(0), 1);
        drop(pass);
        let mut pass = commands.begin_compute_pass(&pass_of("write", Stage::Write));
        for (window, bound, slot, tiles, chunks) in windows() {
            if window.has_hits {
                kernels
                    .sparse
                    .dispatch(&mut pass, &bound.sparse, slot, tiles);
                kernels
                    .bitmap
                    .dispatch(&mut pass, &bound.bitmap, slot, tiles);
                kernels.seen.dispatch(&mut pass, &bound.seen, slot, chunks);
            }
            if window.has_f32 {
                kernels
                    .dense_f32
                    .dispatch(&mut pass, &bound.dense_f32, slot, tiles);
            }
            if window.has_bf16 {
                kernels
                    .dense_bf16
                    .dispatch(&mut pass, &bound.dense_bf16, slot, tiles);
            }
        }
        drop(pass);
        let mut pass = commands.begin_compute_pass(&pass_of("look", Stage::Look));
        for (window, bound, slot, tiles, chunks) in windows() {
            if step.clip.is_some() && window.has_hits {
                kernels.clamp.dispatch(&mut pass, &bound.clamp, slot, tiles);
            }
            kernels.look.dispatch(&mut pass, &bound.look, slot, chunks);
        }
    }

    /// Submits a step, and reads back what came of it.
    fn read_back(
        &mut self,
        step: &GpuStep<'_>,
        mut commands: CommandEncoder,
    ) -> Result<(), GpuError> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let records = 4 * OUTCOME_WORDS * (self.chunks.len() + 1);
        let cut = match step.clip {
            Some(_) => 4 * CUT_WORDS * self.layout.scopes.len(),
            None => 0,
        };
        let guesses: Vec<usize> = memory.windows.iter().map(|window| window.guess).collect();
        let all = records + cut + 4 * guesses.iter().sum::<usize>();
        let staging = self.download.buffer(all as u64)?;
        commands.copy_buffer_to_buffer(&memory.outcomes, 0, staging, 0, records as u64);
        let mut at = records as u64;
        if cut > 0 {
            commands.copy_buffer_to_buffer(&memory.cut, 0, staging, at, cut as u64);
            at += cut as u64;
        }
        for (window, guess) in memory.windows.iter().zip(&guesses) {
            let bytes = 4 * *guess as u64;
            if bytes > 0 {
                commands.copy_buffer_to_buffer(&window.message, 0, staging, at, bytes);
            }
            at += bytes;
        }
        let index = submit(&self.context, commands)?;
        self.uploads.submitted(&index)?;

        let (chunks, layout, came) = (&self.chunks, &self.layout, &mut self.came);
        let read = self.download.read(index, all as u64, |bytes| {
            let (records, rest) = bytes.split_at(records);
            let (cut, message) = rest.split_at(cut);
            came.read(chunks, layout, step, records, cut, message, &guesses)
        })?;
        let Some(Read {
            outcomes,
            lengths,
            is_short,
        }) = read
        else {
            return Err(GpuError::Refused {
                adapter: self.context.name(),
                what: "encoding",
                why: "it gave what no kernel gives".to_owned(),
            });
        };
        for (window, &length) in memory.windows.iter_mut().zip(&lengths) {
            window.written = length as u64;
            window.expect(length);
        }
        if is_short {
            let mut commands = feed::commands(&self.context)?;
            let missing = |(&length, &guess): (&usize, &usize)| length.saturating_sub(guess);
            let all: usize = lengths.iter().zip(&guesses).map(missing).sum();
            let staging = self.download.buffer(4 * all as u64)?;
            let mut at = 0;
            for (window, pair) in memory.windows.iter().zip(lengths.iter().zip(&guesses)) {
                let bytes = 4 * missing(pair) as u64;
                if bytes > 0 {
                    let from = 4 * *pair.1 as u64;
                    commands.copy_buffer_to_buffer(&window.message, from, staging, at, bytes);
                }
                at += bytes;
            }
            let index = submit(&self.context, commands)?;
            self.download.read(index, 4 * all as u64, |bytes| {
                let (mut base, mut at) = (0, 0);
                for pair in lengths.iter().zip(&guesses) {
                    let (length, missing) = (4 * pair.0, 4 * missing(pair));
                    let end = base + length;
                    came.message[end - missing..end].copy_from_slice(&bytes[at..at + missing]);
                    base = end;
                    at += missing;
                }
            })?;
        }
        came.note(chunks, step, &outcomes);
        Ok(())
    }

    /// What came of a chunk in the last [`encode`](Self::encode).
    pub(crate) fn chunk(&self, chunk: usize) -> GpuChunk {
        self.came.chunks[chunk]
    }

    /// Its payload.
    pub(crate) fn payload(&self, chunk: usize) -> &[u8] {
        &self.came.message[self.came.payloads[chunk].clone()]
    }

    /// Elements that the last encode dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.came.dropped
    }

    /// What clipping took away in it.
    pub(crate) fn clipped(&self) -> f64 {
        self.came.clipped
    }

    /// The residual, canonical; elements that are not finite (a trainer wrote them in place) are as they are.
    pub(crate) fn residual(&self) -> Result<Vec<f32>, GpuError> {
        let mut residual = Vec::with_capacity(self.elements());
        let mut download = Download::new(&self.context);
        for (buffer, elements) in self.buffers() {
            let end = 4 * elements as u64;
            for start in (0..end).step_by(PIECE) {
                let bytes = (end - start).min(PIECE as u64);
                let mut commands = feed::commands(&self.context)?;
                let staging = download.buffer(bytes)?;
                commands.copy_buffer_to_buffer(buffer, start, staging, 0, bytes);
                let index = submit(&self.context, commands)?;
                download.read(index, bytes, |bytes| {
                    let words = 0..bytes.len() / 4;
                    let numbers = words.map(|at| f32::from_bits(outcome::word(bytes, at)));
                    residual.extend(numbers.map(crate::codec::canon));
                })?;
            }
        }
        Ok(residual)
    }

    /// Replaces the residual.
    pub(crate) fn restore(&mut self, residual: &[f32]) -> Result<(), GpuError> {
        let mut feed = Feed::new(&self.context, 4 * residual.len())?;
        let mut commands = feed::commands(&self.context)?;
        let mut rest = residual;
        for (buffer, elements) in self.buffers() {
            let (now, later) = rest.split_at(elements.min(rest.len()));
            feed.write(&mut commands, bytemuck::cast_slice(now), buffer, 0)?;
            rest = later;
        }
        feed.flush(&mut commands)?;
        Ok(())
    }

    /// The buffers in which the residual lies, in order, and the elements of each.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (&wgpu::Buffer, usize)> {
        let windows = self.memory.iter().flat_map(|memory| &memory.windows);
        let elements = self.layout.windows.iter();
        windows
            .zip(elements)
            .map(|(memory, window)| (&memory.residual, window.elements.len()))
    }
}

/// The most elements that kernels can number, with all that is counted of them.
const MOST_ELEMENTS: usize = 1 << 31;

/// Bytes of the residual that are downloaded at a time.
const PIECE: usize = 16 << 20;

/// Bytes that a step uploads, but for its update: of windows, scopes and parts, with the gaps between.
fn step_bytes(layout: &Layout, parts: usize) -> usize {
    SLOT * (layout.windows.len() + parts) + 4 * memory::SCOPE_WORDS * layout.scopes.len() + 32
}

/// A buffer for updates in this process's memory, and the way to it.
fn host(context: &GpuContext, elements: usize) -> Result<(Feed, wgpu::Buffer), GpuError> {
    let bytes = 4 * elements;
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
    Ok((
        Feed::new(context, bytes)?,
        context.buffer("an update", bytes as u64, usage, false)?,
    ))
}

fn submit(context: &GpuContext, commands: CommandEncoder) -> Result<SubmissionIndex, GpuError> {
    let commands = context.scoped("the commands of a step", |_| commands.finish())?;
    context.submit("a step", [commands])
}

/// What was read back of a step.
struct Read {
    outcomes: Vec<Outcome>,
    /// Of each window's message, in words.
    lengths: Vec<usize>,
    /// Whether a message is longer than what was read of it.
    is_short: bool,
}

impl Came {
    fn forget(&mut self) {
        self.chunks.clear();
        self.payloads.clear();
        self.message.clear();
        (self.dropped, self.clipped) = (0, 0.0);
    }

    /// Takes over what was read back. `None` if it makes no sense.
    #[allow(clippy::too_many_arguments, reason = "what one read-back brings")]
    fn read(
        &mut self,
        chunks: &[Chunk],
        layout: &Layout,
        step: &GpuStep<'_>,
        records: &[u8],
        cut: &[u8],
        mut message: &[u8],
        guesses: &[usize],
    ) -> Option<Read> {
        let mut outcomes = Vec::with_capacity(chunks.len());
        let mut end = 0;
        for (at, chunk) in chunks.iter().enumerate() {
            let outcome = Outcome::read(records, at, chunk)?;
            if outcome.words.start != end {
                return None;
            }
            end = outcome.words.end;
            outcomes.push(outcome);
        }
        let mut lengths = Vec::with_capacity(guesses.len());
        let mut is_short = false;
        for (window, &guess) in layout.windows.iter().zip(guesses) {
            let of_window = &outcomes[window.chunks.clone()];
            let length: usize = of_window.iter().map(|outcome| outcome.words.len()).sum();
            if length > window.message {
                return None;
            }
            lengths.push(length);
            is_short |= length > guess;
            let (all, later) = message.split_at(4 * guess);
            let read = 4 * length.min(guess);
            self.message.extend_from_slice(&all[..read]);
            self.message
                .resize(self.message.len() + 4 * length - read, 0);
            message = later;
        }
        self.dropped = u64::from(outcome::word(records, OUTCOME_WORDS * chunks.len()));
        if !cut.is_empty() {
            let scopes = cut.chunks_exact(4 * CUT_WORDS).zip(step.scopes);
            self.clipped = scopes
                .map(|(cut, &(unit, _))| outcome::taken(cut, outcome::bound(step, unit)))
                .sum();
        }
        Some(Read {
            outcomes,
            lengths,
            is_short,
        })
    }

    /// Makes the chunks' numbers, now that all of the message is there.
    fn note(&mut self, chunks: &[Chunk], step: &GpuStep<'_>, outcomes: &[Outcome]) {
        for (chunk, outcome) in chunks.iter().zip(outcomes) {
            let unit = match chunk.coding {
                ChunkCoding::Threshold(scope) => step.scopes.get(scope).map(|&(unit, _)| unit),
                ChunkCoding::Dense(_) => None,
            };
            let bytes = 4 * outcome.words.start..4 * outcome.words.end;
            let message = &self.message[bytes.clone()];
            let made = outcome.chunk(chunk.elements.len(), unit, message);
            self.chunks.push(made);
            self.payloads
                .push(bytes.start..bytes.start + outcome.payload);
        }
    }
}
