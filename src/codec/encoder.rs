//! A whole vector's encoder: residual, thresholds, momentum memory, post-processor and threads of one replica.
//!
//! A step is [`Encoder::begin`], which chooses the thresholds, [`Encoder::encode`] for each chunk in visiting order, and
//! [`Encoder::end`]. Chunks are visited from number `step mod chunks` on, so that a limit starves none of them.

use super::cpu::{Kernels, Path};
use super::draft::Draft;
use super::encode::{Budget, ChunkOptions, EncodeError, Encoded};
use super::memory::{MomentumMemory, Velocity};
use super::policy::{LastStep, PolicyInput, PolicyState, PolicyStateError, Quantile, ThresholdPolicy};
use super::pool::Pool;
use super::post::{self, PostInput, PostProcessor};
use super::ranges::{Chunk, ChunkCoding, Coding, NamedRange, chunks};
use super::residual::{Residual, ResidualError};
use super::stats::{ResidualPercentiles, ScopeStats, StepStats};
use super::values::with_slice;
use super::{Format, Unit, Values, dense};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// The most threads that an encoder can have.
pub const MOST_THREADS: usize = 64;

/// How an encoder is made.
#[derive(Debug)]
pub struct EncoderBuilder {
    elements: usize,
    pub(crate) name: String,
    pub(crate) ranges: Vec<NamedRange>,
    pub(crate) policy: Box<dyn ThresholdPolicy>,
    pub(crate) post: Option<Arc<dyn PostProcessor>>,
    pub(crate) memory: Option<MomentumMemory>,
    pub(crate) replicas: usize,
    pub(crate) threads: usize,
    pub(crate) path: Path,
    pub(crate) keeps_hits: bool,
    pub(crate) debug: bool,
}

impl EncoderBuilder {
    /// The ranges of the vector; their lengths must add up to its length. Default: one, compressed.
    #[must_use]
    pub fn ranges(mut self, ranges: impl IntoIterator<Item = NamedRange>) -> Self {
        self.ranges = ranges.into_iter().collect();
        self
    }

    /// Chooses the threshold of all ranges that have no policy of their own. Default: [`Quantile`] at density 1e-2.
    #[must_use]
    pub fn policy(mut self, policy: impl ThresholdPolicy + 'static) -> Self {
        self.policy = Box::new(policy);
        self
    }

    /// What is done to the residual after the hits. Default: nothing.
    #[must_use]
    pub fn post_processor(mut self, post: impl PostProcessor + 'static) -> Self {
        self.post = Some(Arc::new(post));
        self
    }

    /// Momentum in front of the encoder, in a run of so many replicas. Default: none.
    #[must_use]
    pub fn momentum(mut self, memory: MomentumMemory, replicas: usize) -> Self {
        (self.memory, self.replicas) = (Some(memory), replicas);
        self
    }

    /// How many threads encode, the caller's included; the bytes are those of one. Default: 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// The instruction set. Default: [`Path::best`].
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// Keeps the places of a step's hits for [`Encoder::hits`]. Default: no.
    #[must_use]
    pub fn keep_hits(mut self, keep: bool) -> Self {
        self.keeps_hits = keep;
        self
    }

    /// Makes [`Encoder::percentiles`] after each step: a copy of the residual, and a selection. Default: no.
    #[must_use]
    pub fn debug(mut self, debug: bool) -> Self {
        self.debug = debug;
        self
    }

    /// Makes the encoder, with a residual of +0.
    ///
    /// # Errors
    /// [`EncoderError`].
    pub fn build(self) -> Result<Encoder, EncoderError> {
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return Err(EncoderError::Threads {
                found: self.threads,
            });
        }
        let mut ranges = self.ranges;
        if ranges.is_empty() {
            ranges.push(NamedRange::compressed(self.name.clone(), self.elements));
        }
        let found = ranges
            .iter()
            .try_fold(0usize, |sum, range| sum.checked_add(range.elements));
        if found != Some(self.elements) {
            return Err(EncoderError::Ranges {
                expected: self.elements,
                found: found.unwrap_or(usize::MAX),
            });
        }
        let mut scopes = Vec::new();
        if ranges.iter().any(|r| matches!(r.coding, Coding::Shared)) {
            scopes.push(Scope::new(self.name, self.policy));
        }
        let mut codings = Vec::with_capacity(ranges.len());
        let mut start = 0;
        for range in ranges {
            let elements = start..start + range.elements;
            start = elements.end;
            let coding = match range.coding {
                Coding::Shared => ChunkCoding::Threshold(0),
                Coding::Own(policy) => {
                    scopes.push(Scope::new(range.name, policy));
                    ChunkCoding::Threshold(scopes.len() - 1)
                }
                Coding::Dense(number) => ChunkCoding::Dense(number),
            };
            if let ChunkCoding::Threshold(scope) = coding {
                scopes[scope].add(elements.clone());
            }
            codings.push((elements.len(), coding));
        }
        let chunks: Vec<Chunk> = chunks(codings).collect();
        let memory = match self.memory {
            Some(settings) => Some(Velocity::new(settings, self.replicas, self.elements)?),
            None => None,
        };
        let pool = if self.threads > 1 {
            Some(Pool::new(self.threads).map_err(|error| EncoderError::Spawn {
                threads: self.threads,
                error: error.to_string(),
            })?)
        } else {
            None
        };
        let most = chunks.iter().map(|chunk| chunk.elements.len()).max();
        let slots = (0..self.threads)
            .map(|_| Slot::new(most.unwrap_or(0)))
            .collect();
        Ok(Encoder {
            path: self.path,
            residual: Residual::zeroed(self.elements)?,
            chunks: chunks.into(),
            scopes,
            post: self.post,
            memory,
            pool,
            slots,
            batch: 0..0,
            current: 0,
            step: 0,
            magnitudes: Vec::new(),
            hits: self.keeps_hits.then(Vec::new),
            percentiles: self.debug.then(|| (Vec::new(), Vec::new())),
            stats: StepStats::default(),
        })
    }
}

/// Ranges that share a threshold.
struct Scope {
    policy: Box<dyn ThresholdPolicy>,
    ranges: Vec<Range<usize>>,
    stats: ScopeStats,
    /// Hits that the limit still allows.
    left: usize,
    last: Option<LastStep>,
    /// The sum of the hits' |s|.
    mass: f64,
}

impl Scope {
    fn new(name: String, policy: Box<dyn ThresholdPolicy>) -> Scope {
        Scope {
            policy,
            ranges: Vec::new(),
            stats: ScopeStats {
                name,
                elements: 0,
                unit: None,
                hits: 0,
                density: 0.0,
            },
            left: 0,
            last: None,
            mass: 0.0,
        }
    }

    fn add(&mut self, range: Range<usize>) {
        self.stats.elements += range.len();
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// Chooses this step's threshold, unit and limit.
    fn choose(
        &mut self,
        path: Path,
        residual: &[f32],
        update: Values<'_>,
        step: u64,
        sample: &mut Vec<f32>,
    ) -> Result<(), EncodeError> {
        let elements = self.stats.elements;
        let wanted = self.policy.sample_size(elements, step);
        sample.clear();
        for range in self.ranges.iter().filter(|_| wanted > 0) {
            // Each range's share of the sample is its share of the elements.
            let share = (wanted as u128 * range.len() as u128).div_ceil(elements as u128) as usize;
            let (residual, update) = (&residual[range.clone()], update.slice(range.clone()));
            path.magnitudes(residual, update, share, step, sample)?;
        }
        let unit = self.policy.unit(&PolicyInput {
            step,
            elements,
            sample,
            last: self.last,
        });
        self.stats.unit = Some(unit);
        self.left = self.policy.limit(elements, step).unwrap_or(usize::MAX);
        self.stats.hits = 0;
        self.mass = 0.0;
        Ok(())
    }

    fn restore(&mut self, state: &ScopeState) -> Result<(), ScopeStateError> {
        let elements = self.stats.elements;
        if let Some(LastStep { hits, mean, .. }) = state.last
            && (hits > elements as u64 || mean.is_some_and(|mean| !(mean.is_finite() && mean > 0.0)))
        {
            let name = self.stats.name.clone();
            return Err(ScopeStateError::Last {
                name,
                elements,
                hits,
                mean,
            });
        }
        self.policy
            .restore(&state.policy)
            .map_err(|source| self.error(source))?;
        self.last = state.last.map(|last| LastStep {
            density: last.hits as f64 / elements.max(1) as f64,
            ..last
        });
        Ok(())
    }

    fn error(&self, source: PolicyStateError) -> ScopeStateError {
        ScopeStateError::Policy {
            name: self.stats.name.clone(),
            source,
        }
    }

    /// Notes what came of the step.
    fn end(&mut self) {
        let Some(unit) = self.stats.unit else { return };
        let hits = self.stats.hits;
        self.stats.density = hits as f64 / self.stats.elements.max(1) as f64;
        self.last = Some(LastStep {
            unit,
            hits,
            density: self.stats.density,
            mean: (hits > 0).then(|| self.mass / hits as f64),
        });
    }
}

/// A chunk that a thread has taken through the fused pass, or all of one that is dense.
struct Slot {
    draft: Draft,
    chunk: usize,
    unit: Option<Unit>,
    /// What a dense chunk came to.
    whole: Option<Encoded>,
    budgets: (usize, usize),
}

impl Slot {
    fn new(elements: usize) -> Slot {
        Slot {
            draft: Draft::with_room(elements),
            chunk: 0,
            unit: None,
            whole: None,
            budgets: (0, 0),
        }
    }
}

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
/// encoder.begin(0, (&update).into())?;
/// for visit in 0..encoder.chunks() {
///     let message = encoder.encode(visit, (&update).into())?;
///     let record = Record {
///         format: message.format,
///         hits: message.hits,
///         elements: message.elements.len(),
///         payload: encoder.payload(),
///     };
///     let unit = message.unit.map_or(1.0, |unit| unit.v());
///     Path::best().apply(&record, unit, Apply::Subtract, &mut parameters[message.elements])?;
/// }
/// encoder.end();
/// assert_eq!(parameters, [0.75, 1.25, 1.0, 0.9375]);
/// assert_eq!(encoder.residual(), [0.25, 0.0, 0.125, 0.0]);
/// assert_eq!(encoder.stats().hits, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Encoder {
    path: Path,
    residual: Residual,
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
    magnitudes: Vec<f32>,
    hits: Option<Vec<usize>>,
    /// Of each scope, and the room that making them takes.
    percentiles: Option<(Vec<ResidualPercentiles>, Vec<f32>)>,
    stats: StepStats,
}

impl Encoder {
    /// An encoder of vectors of `elements`.
    #[must_use]
    pub fn builder(elements: usize) -> EncoderBuilder {
        EncoderBuilder {
            elements,
            name: "vector".to_owned(),
            ranges: Vec::new(),
            policy: Box::new(Quantile::default()),
            post: None,
            memory: None,
            replicas: 1,
            threads: 1,
            path: Path::best(),
            keeps_hits: false,
            debug: false,
        }
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

    /// Begins step number `step` (from 0): takes the update into the momentum memory, if there is one, and chooses the
    /// thresholds.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when the update has another length than the vector; nothing has changed then.
    pub fn begin(&mut self, step: u64, update: Values<'_>) -> Result<(), EncodeError> {
        self.check(update)?;
        self.step = step;
        self.batch = 0..0;
        self.stats = StepStats::default();
        if let Some(hits) = &mut self.hits {
            hits.clear();
        }
        let update = match &mut self.memory {
            Some(memory) => {
                self.stats.dropped = memory.accumulate(update);
                memory.values()
            }
            None => update,
        };
        for scope in &mut self.scopes {
            scope.choose(self.path, &self.residual, update, step, &mut self.magnitudes)?;
        }
        Ok(())
    }

    fn check(&self, update: Values<'_>) -> Result<(), EncodeError> {
        let (expected, found) = (self.elements(), update.len());
        if found == expected {
            Ok(())
        } else {
            Err(EncodeError::Lengths { expected, found })
        }
    }

    /// Encodes the chunk that is visited as number `visit` in the step that has begun. Each must be visited once, in
    /// order, with the same update.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when the update has another length than the vector; [`EncodeError::Visit`] past the last
    /// chunk.
    pub fn encode(&mut self, visit: usize, update: Values<'_>) -> Result<Message, EncodeError> {
        self.check(update)?;
        if visit >= self.chunks() {
            return Err(EncodeError::Visit {
                expected: self.chunks(),
                found: visit,
            });
        }
        if !self.batch.contains(&visit) {
            self.fill(visit, update);
        }
        self.current = visit - self.batch.start;
        Ok(self.finish())
    }

    /// Takes the next chunks through the first stage, one a thread.
    fn fill(&mut self, visit: usize, update: Values<'_>) {
        let count = self.slots.len().min(self.chunks() - visit);
        self.batch = visit..visit + count;
        let first = (self.step % self.chunks() as u64) as usize;
        for (ahead, slot) in self.slots[..count].iter_mut().enumerate() {
            slot.chunk = (first + visit + ahead) % self.chunks.len();
        }
        // Before a chunk's turn comes, those before it in this batch may use up its scope's budget.
        for at in 0..count {
            let (before, rest) = self.slots.split_at_mut(at);
            let slot = &mut rest[0];
            slot.unit = None;
            if let ChunkCoding::Threshold(scope) = self.chunks[slot.chunk].coding {
                let coding = ChunkCoding::Threshold(scope);
                let others = before
                    .iter()
                    .map(|other| &self.chunks[other.chunk])
                    .filter(|chunk| chunk.coding == coding);
                let most = self.scopes[scope].left;
                let least = most.saturating_sub(others.map(|chunk| chunk.elements.len()).sum());
                slot.budgets = (least, most);
                slot.unit = self.scopes[scope].stats.unit;
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
    }

    /// The second stage of the current slot's chunk.
    fn finish(&mut self) -> Message {
        let slot = &mut self.slots[self.current];
        let chunk = &self.chunks[slot.chunk];
        let residual = &mut self.residual[chunk.elements.clone()];
        let stats = &mut self.stats;
        let mut encoded = match (slot.whole, slot.unit, chunk.coding) {
            (None, Some(unit), ChunkCoding::Threshold(scope)) => {
                let scope = &mut self.scopes[scope];
                let options = ChunkOptions {
                    clip: self.post.as_ref().and_then(|post| post.clip(self.step)),
                    budget: (scope.left < usize::MAX).then(|| Budget {
                        max_hits: scope.left,
                        start: (self.step as u32).wrapping_mul(0x9E37_79B1) as usize,
                    }),
                };
                let encoded = slot.draft.finish(self.path.kernels(), residual, unit, &options);
                let hits = u64::from(encoded.hits);
                if scope.left < usize::MAX {
                    scope.left -= encoded.hits as usize;
                }
                scope.stats.hits += hits;
                scope.mass += encoded.mean * hits as f64;
                stats.hits += hits;
                stats.l1_sent += hits as f64 * f64::from(unit.v());
                encoded
            }
            (Some(encoded), ..) => {
                stats.dense_chunks += 1;
                if let Some(number) = encoded.format.dense() {
                    stats.l1_sent += dense::l1(number, slot.draft.payload());
                }
                encoded
            }
            // `fill` gives each slot a unit or a whole.
            _ => unreachable!("a chunk is finished once, after it was filled"),
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
            encoded.clipped += post::process(&**post, &input, residual);
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
        Message {
            elements: chunk.elements.clone(),
            format: encoded.format,
            unit: slot.unit,
            hits: encoded.hits,
        }
    }

    /// The payload of the chunk that was encoded last.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.slots[self.current].draft.payload()
    }

    /// Ends a step all of whose chunks have been encoded: policies hear of it in the next one.
    pub fn end(&mut self) {
        for scope in &mut self.scopes {
            scope.end();
        }
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

    /// What the policies go on from, by scope.
    #[must_use]
    pub fn scope_states(&self) -> Vec<ScopeState> {
        let state = |scope: &Scope| ScopeState {
            policy: scope.policy.state(),
            last: scope.last,
        };
        self.scopes.iter().map(state).collect()
    }

    /// Goes on from such states, bit for bit. They may come from a damaged file.
    ///
    /// # Errors
    /// [`ScopeStateError`] when they are not as many as there are scopes, or one is none of its scope; nothing has
    /// changed then.
    pub fn restore_scopes(&mut self, states: &[ScopeState]) -> Result<(), ScopeStateError> {
        self.check_count(states)?;
        let before = self.scope_states();
        for (at, state) in states.iter().enumerate() {
            if let Err(error) = self.scopes[at].restore(state) {
                for (scope, state) in self.scopes.iter_mut().zip(&before).take(at + 1) {
                    // Its own state of a moment ago.
                    let _ = scope.restore(state);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The states of several replicas as one, scope by scope; thresholds by their geometric mean. For a run that goes on
    /// with another number of replicas.
    ///
    /// # Errors
    /// As [`restore_scopes`](Self::restore_scopes).
    pub fn merge_scopes(&self, states: &[Vec<ScopeState>]) -> Result<Vec<ScopeState>, ScopeStateError> {
        for states in states {
            self.check_count(states)?;
        }
        let merge = |(at, scope): (usize, &Scope)| {
            let states: Vec<PolicyState> =
                states.iter().map(|states| states[at].policy.clone()).collect();
            let policy = scope.policy.merge(&states).map_err(|source| scope.error(source))?;
            // What came of the step before differs: the policy goes on from its own state alone.
            Ok(ScopeState { policy, last: None })
        };
        self.scopes.iter().enumerate().map(merge).collect()
    }

    fn check_count(&self, states: &[ScopeState]) -> Result<(), ScopeStateError> {
        let (expected, found) = (self.scopes.len(), states.len());
        if found == expected {
            Ok(())
        } else {
            Err(ScopeStateError::Count { expected, found })
        }
    }
}

/// What one scope's policy goes on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopeState {
    /// The policy's own state.
    pub policy: PolicyState,
    /// What came of the step before.
    pub last: Option<LastStep>,
}

/// Why states cannot be restored or merged.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ScopeStateError {
    /// Not as many as there are scopes.
    #[error("{found} states; the encoder has {expected} thresholds")]
    Count {
        /// The scopes.
        expected: usize,
        /// The states.
        found: usize,
    },
    /// More hits than elements, or a mean that is none.
    #[error("{name}: a last step of {hits} hits with a mean of {mean:?}; it has {elements} elements")]
    Last {
        /// The scope's name.
        name: String,
        /// The scope's elements.
        elements: usize,
        /// The hits.
        hits: u64,
        /// The mean.
        mean: Option<f64>,
    },
    /// The policy refuses its state.
    #[error("{name}: {source}")]
    Policy {
        /// The scope's name.
        name: String,
        /// Why.
        source: PolicyStateError,
    },
}

impl Slot {
    fn fill(&mut self, kernels: Kernels, chunk: &Chunk, residual: &mut [f32], update: Values<'_>) {
        self.whole = None;
        self.draft.payload_mut().clear();
        let update = update.slice(chunk.elements.clone());
        with_slice!(update, update => match (chunk.coding, self.unit) {
            (ChunkCoding::Threshold(_), Some(unit)) => {
                let (least, most) = self.budgets;
                self.draft.fill(kernels, residual, update, unit, least..=most);
            }
            (ChunkCoding::Dense(number), _) => {
                let out = self.draft.payload_mut();
                self.whole = dense::encode(kernels, residual, update, number, out).ok();
            }
            (ChunkCoding::Threshold(_), None) => {}
        });
    }
}

/// A slice whose parts several threads may borrow, if the parts do not overlap.
struct Disjoint<T> {
    start: *mut T,
    length: usize,
}

// SAFETY: it hands out mutable borrows of its elements, and nothing else.
unsafe impl<T: Send> Sync for Disjoint<T> {}

impl<T> Disjoint<T> {
    fn of(slice: &mut [T]) -> Disjoint<T> {
        Disjoint {
            start: slice.as_mut_ptr(),
            length: slice.len(),
        }
    }

    /// Some elements.
    ///
    /// # Safety
    /// The slice is still borrowed for this, and nobody else has any of these elements.
    #[allow(clippy::mut_from_ref, reason = "the caller's promise")]
    unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: inside, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
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

/// Why there is no encoder.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EncoderError {
    /// The ranges do not cover the vector.
    #[error("the ranges have {found} elements in all; the vector has {expected}")]
    Ranges {
        /// The vector's.
        expected: usize,
        /// The ranges'.
        found: usize,
    },
    /// No threads, or too many.
    #[error("{found} threads; an encoder can have 1 to {MOST_THREADS}")]
    Threads {
        /// How many were asked for.
        found: usize,
    },
    /// The system refused a thread.
    #[error("the system gives no {threads} threads: {error}")]
    Spawn {
        /// How many were asked for.
        threads: usize,
        /// What it says.
        error: String,
    },
    /// No memory.
    #[error(transparent)]
    Memory(#[from] ResidualError),
}
