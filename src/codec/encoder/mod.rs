//! A whole vector's encoder: residual, thresholds, momentum memory, post-processor and threads of one replica.
//!
//! A step is [`Encoder::begin`], which chooses the thresholds, [`Encoder::encode`] for each chunk in visiting order, and
//! [`Encoder::end`]. Chunks are visited from number `step mod chunks` on, so that a limit starves none of them. A
//! [streamed](Encoder::begin_streamed) step takes its update part by part.

mod builder;
mod scope;
mod slot;
mod states;
mod streamed;
mod vectors;

pub use builder::{EncoderBuilder, EncoderError, MOST_THREADS};
pub use scope::{ScopeState, ScopeStateError};
pub use vectors::VectorsError;

use super::cpu::Path;
use super::encode::{Budget, ChunkOptions, EncodeError, lengths, look_at};
use super::given::Given;
use super::memory::Velocity;
use super::pool::Pool;
use super::post::{self, PostInput, PostProcessor};
use super::ranges::{Chunk, ChunkCoding, visited};
use super::residual::Residual;
use super::stats::{ResidualPercentiles, ScopeStats, StepStats};
use super::{Dense, Format, Unit, canon, dense};
use scope::Scope;
use slot::{Aim, Disjoint, Slot};
use std::ops::Range;
use std::sync::Arc;
use streamed::Stream;

/// One chunk's message; its payload is [`Encoder::payload`].
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Where in the vector the chunk lies.
    pub elements: Range<usize>,
    /// How the payload is laid out.
    pub format: Format,
    /// Threshold and unit of the hits; `None` of a dense chunk.
    pub unit: Option<Unit>,
    /// The hits sent.
    pub hits: u32,
}

/// Encodes one replica's updates of a whole vector.
///
/// ```
/// use gradring::codec::policy::Fixed;
/// use gradring::codec::{Apply, Dense, Encoder, NamedRange, Path, Record};
///
/// let mut encoder = Encoder::builder(4)
///     .ranges([NamedRange::compressed("weights", 3), NamedRange::dense("bias", 1, Dense::F32)])
///     .policy(Fixed::new(0.25)?)
///     .build()?;
/// let update = [0.5, -0.25, 0.125, 0.0625];
/// let mut parameters = [1.0; 4];
/// encoder.begin(0, &update)?;
/// for visit in 0..encoder.chunks() {
///     let message = encoder.encode(visit, &update)?;
///     let record = Record {
///         format: message.format,
///         hits: message.hits,
///         elements: message.elements.len(),
///         payload: encoder.payload(),
///     };
///     let unit = message.unit.map_or(1.0, |unit| unit.v());
///     Path::best().apply(&record, unit, Apply::Subtract, &mut parameters[message.elements])?;
/// }
/// encoder.end()?;
/// assert_eq!(parameters, [0.75, 1.25, 1.0, 0.9375]);
/// assert_eq!(encoder.residual(), [0.25, 0.0, 0.125, 0.0]);
/// assert_eq!(encoder.stats().hits, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Encoder {
    path: Path,
    residual: Residual,
    /// Whether others may have written to the residual since it was canonical.
    touched: bool,
    chunks: Arc<[Chunk]>,
    scopes: Vec<Scope>,
    post: Option<Arc<dyn PostProcessor>>,
    memory: Option<Velocity>,
    pool: Option<Pool>,
    /// One a thread.
    slots: Vec<Slot>,
    /// The visits whose chunks the slots hold.
    batch: Range<usize>,
    /// The slot that was finished last.
    current: usize,
    step: u64,
    /// The chunk that is visited first, modulo their number.
    first: u64,
    /// The visit whose turn it is in the step that has begun; `None` between steps.
    next: Option<usize>,
    stream: Stream,
    magnitudes: Vec<f32>,
    hits: Option<Vec<usize>>,
    /// Of each scope, and the room that making them takes.
    percentiles: Option<(Vec<ResidualPercentiles>, Vec<f32>)>,
    stats: StepStats,
    /// Elements that were dropped in a step that was given up.
    unreported: u64,
}

impl Encoder {
    /// An encoder of vectors of `elements`.
    #[must_use]
    pub fn builder(elements: usize) -> EncoderBuilder {
        EncoderBuilder::new(elements)
    }

    /// Elements of the vector.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.residual.len()
    }

    /// Chunks of the vector.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Where all chunks lie, and how they are encoded.
    pub(crate) fn layout(&self) -> Arc<[Chunk]> {
        Arc::clone(&self.chunks)
    }

    /// The instruction set.
    #[must_use]
    pub fn path(&self) -> Path {
        self.path
    }

    /// What has not been sent yet, by element.
    #[must_use]
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// The same, for trainers that add their updates to it themselves, between steps: a step of [`InResidual`] then reads
    /// 4 bytes an element, where one of an update moves 12. Subnormal numbers and -0 count as +0. What is not finite
    /// becomes +0 in the next step, and is counted as dropped.
    ///
    /// [`InResidual`]: super::InResidual
    pub fn residual_mut(&mut self) -> &mut [f32] {
        self.touched = true;
        &mut self.residual
    }

    /// Begins step number `step` (from 0): takes the update into the momentum memory, if there is one, and chooses the
    /// thresholds.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when the update has another length than the vector; [`EncodeError::InResidual`] with a
    /// momentum memory; [`EncodeError::Unfinished`] when the step before has not [ended](Self::end). Nothing has changed
    /// then.
    pub fn begin<'a>(
        &mut self,
        step: u64,
        update: impl Into<Given<'a>>,
    ) -> Result<(), EncodeError> {
        let update = update.into();
        self.check(update)?;
        self.check_closed()?;
        // The pass of what is in the residual does it by itself.
        self.begin_anew(step, matches!(update, Given::InResidual));
        let update = match &mut self.memory {
            Some(memory) => {
                self.stats.dropped += memory.accumulate(update);
                memory.values()
            }
            None => update,
        };
        for scope in &mut self.scopes {
            scope.choose(
                self.path,
                &self.residual,
                update,
                step,
                &mut self.magnitudes,
            );
        }
        self.next = Some(0);
        Ok(())
    }

    /// Visits the chunks of the step that has begun from this one on, instead of from number `step mod chunks`: before the
    /// first visit, for exchanges that cannot always send all of them.
    pub(crate) fn visit_from(&mut self, chunk: usize) {
        debug_assert_eq!(self.next, Some(0), "before the first visit");
        self.first = chunk as u64;
    }

    /// Refuses while a step is under way.
    fn check_closed(&self) -> Result<(), EncodeError> {
        let found = if self.stream.is_open() {
            Some(self.stream.encoded())
        } else {
            self.next
        };
        match found {
            None => Ok(()),
            Some(found) => Err(EncodeError::Unfinished {
                expected: self.chunks(),
                found,
            }),
        }
    }

    /// What each kind of step begins with.
    fn begin_anew(&mut self, step: u64, reads_in_place: bool) {
        self.step = step;
        self.first = step;
        self.batch = 0..0;
        self.stats = StepStats {
            dropped: std::mem::take(&mut self.unreported),
            ..StepStats::default()
        };
        if let Some(hits) = &mut self.hits {
            hits.clear();
        }
        if std::mem::take(&mut self.touched) && !reads_in_place {
            self.stats.dropped += make_canonical(&mut self.residual);
        }
    }

    /// Appends all of some elements' residual, canonical, as f32, and leaves +0 there. How many were not finite and became
    /// +0. At most a chunk.
    pub(crate) fn take_whole(
        &mut self,
        elements: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<u64, EncodeError> {
        let residual = &mut self.residual[elements];
        let given = Given::InResidual;
        let encoded = self.path.encode_dense(residual, given, Dense::F32, out)?;
        Ok(u64::from(encoded.dropped))
    }

    /// Whether a step can be made of this update.
    pub(crate) fn check(&self, update: Given<'_>) -> Result<(), EncodeError> {
        if self.memory.is_some() && matches!(update, Given::InResidual) {
            return Err(EncodeError::InResidual);
        }
        lengths(self.elements(), update)
    }

    /// Encodes the chunk that is visited as number `visit` in the step that has begun. Each must be visited once, in
    /// order, with the same update.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when the update has another length than the vector; [`EncodeError::NotBegun`];
    /// [`EncodeError::Visit`] past the last chunk, [`EncodeError::Turn`] when it is another one's turn. Nothing has
    /// changed then.
    pub fn encode<'a>(
        &mut self,
        visit: usize,
        update: impl Into<Given<'a>>,
    ) -> Result<Message, EncodeError> {
        self.take_turn(visit, update.into(), Aim::Send)?;
        self.finish()
    }

    /// Takes a visit's turn, but sends nothing: all that the chunk has stays in the residual, and no post-processor takes
    /// any of it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn accumulate<'a>(
        &mut self,
        visit: usize,
        update: impl Into<Given<'a>>,
    ) -> Result<(), EncodeError> {
        self.take_turn(visit, update.into(), Aim::Keep)?;
        let slot = &mut self.slots[self.current];
        let residual = &mut self.residual[self.chunks[slot.chunk].elements.clone()];
        let (dropped, most, l1) = slot.keep(self.path.kernels(), residual);
        self.stats.residual_max = self.stats.residual_max.max(most);
        self.stats.residual_l1 += l1;
        self.stats.dropped += u64::from(dropped);
        Ok(())
    }

    /// Makes the visit's chunk that of the current slot, with the first stage done.
    fn take_turn(&mut self, visit: usize, update: Given<'_>, aim: Aim) -> Result<(), EncodeError> {
        self.check(update)?;
        if self.stream.is_open() {
            return Err(EncodeError::Streamed);
        }
        let next = self.next.ok_or(EncodeError::NotBegun)?;
        if visit >= self.chunks() {
            return Err(EncodeError::Visit {
                expected: self.chunks(),
                found: visit,
            });
        }
        if visit != next {
            return Err(EncodeError::Turn {
                expected: next,
                found: visit,
            });
        }
        if !self.batch.contains(&visit) {
            self.fill(visit, update, aim);
        }
        // Whatever becomes of it, a chunk is finished once: what stands in its slot is used up by that.
        self.next = Some(visit + 1);
        self.current = visit - self.batch.start;
        Ok(())
    }

    /// Takes the next chunks through the first stage, one a thread. What becomes of the first one is known.
    fn fill(&mut self, visit: usize, update: Given<'_>, aim: Aim) {
        let count = self.slots.len().min(self.chunks() - visit);
        self.batch = 0..0;
        for (ahead, slot) in self.slots[..count].iter_mut().enumerate() {
            slot.chunk = visited(self.first, visit + ahead, self.chunks.len());
            slot.aim = if ahead == 0 { aim } else { Aim::Either };
            slot.unit = None;
            if let ChunkCoding::Threshold(scope) = self.chunks[slot.chunk].coding {
                slot.unit = self.scopes[scope].stats.unit;
                // Before a chunk's turn comes, those before it may use up its scope's budget.
                let most = self.scopes[scope].left;
                slot.budgets = (most, most);
            }
        }
        let update = self.memory.as_ref().map_or(update, Velocity::values);
        let (kernels, chunks) = (self.path.kernels(), &self.chunks);
        let slots = &mut self.slots[..count];
        match &mut self.pool {
            Some(pool) if count > 1 => {
                let slots = Disjoint::of(slots);
                let residual = Disjoint::of(&mut self.residual[..]);
                pool.run(count, &|piece| {
                    // SAFETY: each piece has a slot and a chunk of its own: a batch has each chunk once.
                    let (slot, residual) = unsafe {
                        let slot = &mut slots.range(piece..piece + 1)[0];
                        let elements = chunks[slot.chunk].elements.clone();
                        (slot, residual.range(elements))
                    };
                    slot.fill(kernels, &chunks[slot.chunk], residual, update);
                });
            }
            _ => {
                for slot in slots {
                    let chunk = &chunks[slot.chunk];
                    let residual = &mut self.residual[chunk.elements.clone()];
                    slot.fill(kernels, chunk, residual, update);
                }
            }
        }
        self.batch = visit..visit + count;
    }

    /// The second stage of the current slot's chunk.
    fn finish(&mut self) -> Result<Message, EncodeError> {
        let slot = &mut self.slots[self.current];
        let chunk = &self.chunks[slot.chunk];
        let residual = &mut self.residual[chunk.elements.clone()];
        let stats = &mut self.stats;
        let mut encoded = match chunk.coding {
            ChunkCoding::Threshold(scope) => {
                let unit = slot.unit.ok_or(EncodeError::NotBegun)?;
                let scope = &mut self.scopes[scope];
                let options = ChunkOptions {
                    clip: self.post.as_ref().and_then(|post| post.clip(self.step)),
                    budget: (scope.left < usize::MAX).then(|| Budget {
                        max_hits: scope.left,
                        start: (self.step as u32).wrapping_mul(0x9E37_79B1) as usize,
                    }),
                };
                let encoded = slot
                    .draft
                    .finish(self.path.kernels(), residual, unit, &options);
                let hits = u64::from(encoded.hits);
                if scope.left < usize::MAX {
                    scope.left -= encoded.hits as usize;
                }
                scope.stats.hits += hits;
                scope.tested += chunk.elements.len();
                scope.mass += encoded.mean * hits as f64;
                stats.hits += hits;
                stats.l1_sent += hits as f64 * f64::from(unit.v());
                encoded
            }
            ChunkCoding::Dense(number) => {
                let encoded = slot.send_whole(self.path.kernels(), residual, number);
                stats.dense_chunks += 1;
                stats.l1_sent += dense::l1(number, slot.draft.payload());
                encoded
            }
        };
        match encoded.format {
            Format::Sparse => stats.sparse_chunks += 1,
            Format::Bitmap => stats.bitmap_chunks += 1,
            Format::DenseF32 | Format::DenseBf16 => {}
        }
        if let (Some(post), Some(unit)) = (&self.post, slot.unit) {
            let input = PostInput {
                step: self.step,
                unit,
            };
            if let Some(taken) = post::process(&**post, &input, residual) {
                encoded.clipped += taken;
                (encoded.residual_max, encoded.residual_l1) = look_at(residual);
            }
        }
        stats.residual_max = stats.residual_max.max(encoded.residual_max);
        stats.residual_l1 += encoded.residual_l1;
        stats.clipped += encoded.clipped;
        stats.dropped += u64::from(encoded.dropped);
        if slot.unit.is_some() && (self.memory.is_some() || self.hits.is_some()) {
            let start = chunk.elements.start;
            slot.draft.each_hit(|index| {
                if let Some(memory) = &mut self.memory {
                    memory.mask(start + index);
                }
                if let Some(hits) = &mut self.hits {
                    hits.push(start + index);
                }
            });
        }
        Ok(Message {
            elements: chunk.elements.clone(),
            format: encoded.format,
            unit: slot.unit,
            hits: encoded.hits,
        })
    }

    /// The payload of the chunk that was encoded last.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.slots[self.current].draft.payload()
    }

    /// Ends a step all of whose chunks have been encoded: policies hear of it in the next one.
    ///
    /// # Errors
    /// [`EncodeError::Unfinished`] while chunks have not been encoded, [`EncodeError::Missing`] while parts have not been
    /// pushed in a streamed step, [`EncodeError::NotBegun`]; nothing has changed then.
    pub fn end(&mut self) -> Result<(), EncodeError> {
        if self.stream.is_open() {
            self.end_stream()?;
            self.look_back();
            return Ok(());
        }
        let (expected, found) = (self.chunks(), self.next.ok_or(EncodeError::NotBegun)?);
        if found < expected {
            return Err(EncodeError::Unfinished { expected, found });
        }
        self.next = None;
        for scope in &mut self.scopes {
            scope.end();
        }
        self.look_back();
        Ok(())
    }

    /// Makes the percentiles of a step that has ended, where they are wanted.
    fn look_back(&mut self) {
        if let Some((percentiles, room)) = &mut self.percentiles {
            percentiles.clear();
            for scope in &self.scopes {
                let ranges = scope.ranges.iter();
                let residual = ranges.flat_map(|range| &self.residual[range.clone()]);
                let t = scope.stats.unit.map_or(0.0, Unit::t);
                percentiles.push(ResidualPercentiles::of(residual, t, room));
            }
        }
    }

    /// What the step did, so far.
    #[must_use]
    pub fn stats(&self) -> &StepStats {
        &self.stats
    }

    /// What each threshold did: first that of the ranges that share one, if there are any, then those of ranges of their
    /// own.
    pub fn scopes(&self) -> impl ExactSizeIterator<Item = &ScopeStats> {
        self.scopes.iter().map(|scope| &scope.stats)
    }

    /// The elements that the step sent as hits, in the order of its visits, ascending in each chunk: for trainers that
    /// start their own momentum anew there (factor masking). Empty unless [`EncoderBuilder::keep_hits`] was asked for.
    #[must_use]
    pub fn hits(&self) -> &[usize] {
        self.hits.as_deref().unwrap_or_default()
    }

    /// How each scope's residual compares with its threshold, after the step that ended last. Empty unless
    /// [`EncoderBuilder::debug`] was asked for.
    #[must_use]
    pub fn percentiles(&self) -> &[ResidualPercentiles] {
        self.percentiles
            .as_ref()
            .map_or(&[], |(percentiles, _)| percentiles)
    }
}

/// Makes what is not finite, subnormal or -0 +0. How many were not finite.
fn make_canonical(residual: &mut [f32]) -> u64 {
    let mut dropped = 0;
    for r in residual {
        let finite = r.is_finite();
        dropped += u64::from(!finite);
        *r = if finite { canon(*r) } else { 0.0 };
    }
    dropped
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder")
            .field("elements", &self.elements())
            .field("path", &self.path)
            .field("threads", &self.slots.len())
            .finish_non_exhaustive()
    }
}
