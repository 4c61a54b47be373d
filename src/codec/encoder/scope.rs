//! Ranges that share a threshold, and what their policy goes on from.

use crate::codec::given::Given;
use crate::codec::policy::{LastStep, PolicyInput, PolicyState, PolicyStateError, ThresholdPolicy};
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
        let elements = self.stats.elements;
        let wanted = self.policy.sample_size(elements, step).min(elements);
        magnitudes.clear();
        if wanted > 0 {
            let (kernels, ranges) = (path.kernels(), &self.ranges);
            sample::magnitudes(kernels, residual, update, ranges, wanted, step, magnitudes);
        }
        let unit = self.policy.unit(&PolicyInput {
            step,
            elements,
            sample: magnitudes,
            last: self.last,
        });
        self.stats.unit = Some(unit);
        self.left = self.policy.limit(elements, step).unwrap_or(usize::MAX);
        self.stats.hits = 0;
        self.mass = 0.0;
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
    /// The policy refuses its state.
    #[error("{name}: {source}")]
    Policy {
        /// The scope's name.
        name: String,
        /// Why.
        source: PolicyStateError,
    },
}
