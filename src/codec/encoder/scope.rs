//! Ranges that share a threshold, and what their policy goes on from.

use crate::codec::cpu::Kernels;
use crate::codec::given::{Given, nothing};
use crate::codec::policy::{LastStep, PolicyInput, PolicyState, PolicyStateError, ThresholdPolicy};
use crate::codec::sample::Places;
use crate::codec::stats::ScopeStats;
use crate::codec::{Path, Unit, sample};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::Range;
use thiserror::Error;

/// Ranges that share a threshold.
pub(super) struct Scope {
    pub(super) policy: Box<dyn ThresholdPolicy>,
    pub(super) ranges: Vec<Range<usize>>,
    pub(super) stats: ScopeStats,
    /// Hits that the limit still allows.
    pub(super) left: usize,
    pub(super) last: Option<LastStep>,
    /// The sum of the hits' |s|.
    pub(super) mass: f64,
    /// Elements that were held against the threshold in this step: those of chunks that were encoded.
    pub(super) tested: usize,
    /// Whether the last step's unit met no element.
    is_untested: bool,
    pub(super) gathered: Gathered,
}

/// |s| of some elements of a streamed step, for the threshold of the next one.
#[derive(Default)]
pub(super) struct Gathered {
    sample: Vec<f32>,
    /// Where they lie in the scope's ranges; `None` if the next step wants none.
    places: Option<Places>,
    /// Whether it is of all of a step.
    is_complete: bool,
}

impl Scope {
    pub(super) fn new(name: String, policy: Box<dyn ThresholdPolicy>) -> Scope {
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
            tested: 0,
            is_untested: false,
            gathered: Gathered::default(),
        }
    }

    pub(super) fn add(&mut self, range: Range<usize>) {
        self.stats.elements += range.len();
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// Chooses this step's threshold, unit and limit.
    pub(super) fn choose(
        &mut self,
        path: Path,
        residual: &[f32],
        update: Given<'_>,
        step: u64,
        magnitudes: &mut Vec<f32>,
    ) {
        self.gathered.is_complete = false;
        let wanted = self.wanted(step);
        magnitudes.clear();
        if wanted > 0 {
            let (kernels, ranges) = (path.kernels(), &self.ranges);
            sample::magnitudes(kernels, residual, update, ranges, wanted, step, magnitudes);
        }
        self.choose_from(step, magnitudes);
    }

    /// Appends the pieces of the vector whose |s| the policy wants to see before a step. How many elements they have in
    /// all.
    #[cfg(feature = "gpu")]
    pub(super) fn pieces(&mut self, step: u64, out: &mut Vec<Range<usize>>) -> usize {
        self.gathered.is_complete = false;
        match self.wanted(step) {
            0 => 0,
            wanted => sample::pieces(&self.ranges, wanted, step, out),
        }
    }

    /// How many |s| the policy wants to see before a step.
    fn wanted(&self, step: u64) -> usize {
        let elements = self.stats.elements;
        self.policy.sample_size(elements, step).min(elements)
    }

    /// Chooses this step's threshold, unit and limit with this sample.
    pub(super) fn choose_from(&mut self, step: u64, sample: &[f32]) -> Unit {
        let elements = self.stats.elements;
        let unit = match self.stats.unit {
            // There is no news: a policy that is told the same twice would go twice as far.
            Some(unit) if self.is_untested && sample.is_empty() => unit,
            _ => self.policy.unit(&PolicyInput {
                step,
                elements,
                sample,
                last: self.last,
            }),
        };
        self.stats.unit = Some(unit);
        self.left = self.policy.limit(elements, step).unwrap_or(usize::MAX);
        self.stats.hits = 0;
        (self.mass, self.tested) = (0.0, 0);
        unit
    }

    /// Chooses a streamed step's threshold, with the sample that was gathered during the step before. If that is wanted
    /// and not there, the choice is left to [`choose_by_chunk`](Self::choose_by_chunk).
    pub(super) fn choose_streamed(&mut self, step: u64) {
        let sample = std::mem::take(&mut self.gathered.sample);
        let is_complete = std::mem::take(&mut self.gathered.is_complete);
        let is_wanted = self.wanted(step) > 0;
        if is_wanted && !is_complete {
            self.stats.unit = None;
        } else {
            self.choose_from(step, if is_wanted { &sample } else { &[] });
        }
        self.gathered.sample = sample;
        if self.stats.unit.is_some() {
            self.begin_to_gather(step);
        }
    }

    /// Chooses a streamed step's threshold, if there is none yet, by the first chunk that is complete.
    pub(super) fn choose_by_chunk(
        &mut self,
        path: Path,
        residual: &[f32],
        step: u64,
        magnitudes: &mut Vec<f32>,
    ) {
        if self.stats.unit.is_some() {
            return;
        }
        let (kernels, all) = (path.kernels(), 0..residual.len());
        let wanted = self.wanted(step).min(residual.len());
        magnitudes.clear();
        sample::magnitudes(
            kernels,
            residual,
            Given::InResidual,
            &[all],
            wanted,
            step,
            magnitudes,
        );
        self.choose_from(step, magnitudes);
        self.begin_to_gather(step);
    }

    /// Makes room for the sample of the step after `step`.
    fn begin_to_gather(&mut self, step: u64) {
        let next = step.wrapping_add(1);
        let wanted = self.wanted(next);
        let Gathered { sample, places, .. } = &mut self.gathered;
        *places = (wanted > 0).then(|| Places::new(self.stats.elements, wanted, next));
        sample.clear();
        sample.resize(places.map_or(0, |places| places.len()), 0.0);
    }

    /// Takes a chunk's share of the sample for the next step.
    pub(super) fn gather(
        &mut self,
        kernels: Kernels,
        chunk: Range<usize>,
        residual: &[f32],
        magnitudes: &mut Vec<f32>,
    ) {
        let Gathered { sample, places, .. } = &mut self.gathered;
        let Some(places) = places else { return };
        let ranges = self.ranges.iter();
        let before = ranges.take_while(|range| range.start <= chunk.start);
        let start: usize = before
            .map(|range| range.len().min(chunk.start - range.start))
            .sum();
        places.among(start..start + chunk.len(), |at, elements| {
            magnitudes.clear();
            let piece = &residual[elements.start - start..elements.end - start];
            kernels.magnitudes(piece, nothing(piece.len()), magnitudes);
            sample[at..at + piece.len()].copy_from_slice(magnitudes);
        });
    }

    /// The sample for the next streamed step; empty if there is none.
    pub(super) fn sample(&self) -> &[f32] {
        if self.gathered.is_complete {
            &self.gathered.sample
        } else {
            &[]
        }
    }

    pub(super) fn restore_sample(&mut self, sample: &[f32]) {
        self.gathered.sample.clear();
        self.gathered.sample.extend_from_slice(sample);
        self.gathered.is_complete = !sample.is_empty();
    }

    pub(super) fn restore(&mut self, state: &ScopeState) -> Result<(), ScopeStateError> {
        let elements = self.stats.elements;
        if let Some(LastStep { hits, mean, .. }) = state.last
            && (hits > elements as u64
                || mean.is_some() != (hits > 0)
                || mean.is_some_and(|mean| !(mean.is_finite() && mean > 0.0)))
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

    pub(super) fn error(&self, source: PolicyStateError) -> ScopeStateError {
        ScopeStateError::Policy {
            name: self.stats.name.clone(),
            source,
        }
    }

    /// Notes what came of the step.
    pub(super) fn end(&mut self) {
        let Some(unit) = self.stats.unit else { return };
        let (hits, elements) = (self.stats.hits, self.stats.elements);
        let density = |hits: u64| hits as f64 / elements.max(1) as f64;
        self.stats.density = density(hits);
        self.is_untested = self.tested < elements.min(1);
        if self.is_untested {
            return;
        }
        // Chunks that were only accumulated would have had as many hits as the others.
        let all = if self.tested == elements {
            hits
        } else {
            let all = u128::from(hits) * elements as u128 / self.tested as u128;
            (all as u64).min(elements as u64)
        };
        self.last = Some(LastStep {
            unit,
            hits: all,
            density: density(all),
            mean: (hits > 0).then(|| self.mass / hits as f64),
        });
    }

    /// Gives up a step that has met no element.
    pub(super) fn give_up(&mut self) {
        self.is_untested = self.stats.unit.is_some();
    }

    /// Ends a streamed step.
    pub(super) fn end_streamed(&mut self) {
        self.end();
        self.gathered.is_complete = self.gathered.places.is_some();
    }
}

/// What one scope's policy goes on from.
///
/// With serde its numbers become integers that have their bits, as those of a [`PolicyState`] do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopeState {
    /// The policy's own state.
    pub policy: PolicyState,
    /// What came of the step before.
    #[serde(serialize_with = "write_last", deserialize_with = "read_last")]
    pub last: Option<LastStep>,
}

/// A [`LastStep`] in integers.
#[derive(Serialize, Deserialize)]
struct LastBits {
    unit: Unit,
    hits: u64,
    density: u64,
    mean: Option<u64>,
}

fn write_last<S: Serializer>(last: &Option<LastStep>, serializer: S) -> Result<S::Ok, S::Error> {
    let bits = last.map(|last| LastBits {
        unit: last.unit,
        hits: last.hits,
        density: last.density.to_bits(),
        mean: last.mean.map(f64::to_bits),
    });
    bits.serialize(serializer)
}

fn read_last<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LastStep>, D::Error> {
    let bits = Option::<LastBits>::deserialize(deserializer)?;
    Ok(bits.map(|last| LastStep {
        unit: last.unit,
        hits: last.hits,
        density: f64::from_bits(last.density),
        mean: last.mean.map(f64::from_bits),
    }))
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
    /// More hits than elements, a mean that is none, or hits without a mean.
    #[error(
        "{name}: a last step of {hits} hits with a mean of {mean:?}; it has {elements} elements"
    )]
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
    /// A streamed step is under way.
    #[error("a step has begun and not ended")]
    Open,
    /// More sampled elements than there are.
    #[error("{name}: a sample of {found} elements; it has {elements}")]
    SampleLength {
        /// The scope's name.
        name: String,
        /// The scope's elements.
        elements: usize,
        /// The sample's.
        found: usize,
    },
    /// A sampled number that no encoder gathers.
    #[error(
        "{name}: element {element} of the sample is {found:e}; it must be +0, or finite, above 0 and not subnormal"
    )]
    Sample {
        /// The scope's name.
        name: String,
        /// Which of the sample's.
        element: usize,
        /// The number.
        found: f32,
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
