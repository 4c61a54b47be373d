//! A threshold that follows the density of the step before, in small equal factors.

use super::counting::Counting;
use super::memory::{Memory, THRESHOLDS};
use super::selection::{Selection, sample_size};
use super::settings::{Magnitude, Settings, given_threshold};
use super::{LastStep, PolicyError, PolicyInput, PolicyState, PolicyStateError};
use crate::codec::Unit;
use std::ops::RangeInclusive;

/// A factor of 2 in 20 steps: 2^(-1/20), as Deeplearning4j has it.
const DECAY: f64 = 0.965_936_328_924_845_6;
/// Deeplearning4j's first threshold.
const DL4J_INITIAL: f64 = 1e-4;

/// A threshold that falls by a factor after a step of too few hits and rises by it after one of too many.
///
/// The threshold is an f64: cut to 8 significant bits after every step it would hardly rise, as each cut is up to a
/// fifth of the factor. Only the step's [`Unit`] is cut.
#[derive(Clone, Debug)]
pub(super) struct Feedback {
    /// The densities that keep the threshold.
    wanted: RangeInclusive<f64>,
    initial: Option<f64>,
    decay: f64,
    floor: f32,
    ceiling: f32,
    counting: Counting,
    pub(super) settings: Settings,
    memory: Memory,
    selection: Selection,
}

impl Feedback {
    pub(super) fn new(wanted: RangeInclusive<f64>) -> Feedback {
        Feedback {
            wanted,
            initial: None,
            decay: DECAY,
            floor: Unit::LEAST,
            ceiling: Unit::MOST,
            counting: Counting::Hits,
            settings: Settings::new(Magnitude::Threshold),
            memory: Memory::default(),
            selection: Selection::default(),
        }
    }

    pub(super) fn dl4j(self) -> Feedback {
        Feedback {
            initial: Some(DL4J_INITIAL),
            counting: Counting::Dl4j,
            ..self
        }
    }

    pub(super) fn starting_at(self, t: f64) -> Result<Feedback, PolicyError> {
        if !THRESHOLDS.contains(&t) {
            return Err(PolicyError::Initial { found: t });
        }
        Ok(Feedback {
            initial: Some(t),
            ..self
        })
    }

    pub(super) fn with_decay(self, decay: f64) -> Result<Feedback, PolicyError> {
        if !(0.5..1.0).contains(&decay) {
            return Err(PolicyError::Decay { found: decay });
        }
        Ok(Feedback { decay, ..self })
    }

    pub(super) fn with_bounds(self, floor: f32, ceiling: f32) -> Result<Feedback, PolicyError> {
        let bounds = (given_threshold(floor)?, given_threshold(ceiling)?);
        if bounds.0 > bounds.1 {
            return Err(PolicyError::Bounds { floor, ceiling });
        }
        Ok(Feedback {
            floor: bounds.0,
            ceiling: bounds.1,
            ..self
        })
    }

    pub(super) fn with_floor(self, floor: f32) -> Result<Feedback, PolicyError> {
        let ceiling = self.ceiling;
        self.with_bounds(floor, ceiling)
    }

    pub(super) fn with_ceiling(self, ceiling: f32) -> Result<Feedback, PolicyError> {
        let floor = self.floor;
        self.with_bounds(floor, ceiling)
    }

    pub(super) fn with_counting(self, counting: Counting) -> Feedback {
        Feedback { counting, ..self }
    }

    pub(super) fn threshold(&self) -> Option<f64> {
        self.memory.threshold
    }

    pub(super) fn density(&self) -> Option<f64> {
        self.memory.density
    }

    /// The density whose quantile is the first threshold: the geometric middle of those wanted.
    fn first_density(&self) -> f64 {
        (self.wanted.start() * self.wanted.end()).sqrt()
    }

    pub(super) fn sample_size(&self, elements: usize) -> usize {
        if self.memory.threshold.is_some() || self.initial.is_some() {
            return 0;
        }
        sample_size(self.first_density(), elements)
    }

    pub(super) fn limit(&self) -> Option<usize> {
        self.settings.limit(None)
    }

    pub(super) fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        let density = input.last.map(|last| self.count(&last, input.elements));
        let t = match (self.memory.threshold, self.initial) {
            (Some(t), _) => {
                self.memory.density = density.or(self.memory.density);
                self.memory.density.map_or(t, |r| self.steered(t, r))
            }
            (None, Some(initial)) => initial,
            (None, None) => return self.first(input),
        };
        let t = self.within_bounds(t);
        self.memory.threshold = Some(t);
        let mean = || input.last.and_then(|last| last.mean);
        self.settings.unit(t as f32, mean)
    }

    /// The first threshold, which is the quantile of the first sample that has one. As long as there is none, it is the
    /// least, and the next step tries again.
    fn first(&mut self, input: &PolicyInput<'_>) -> Unit {
        let density = self.first_density();
        let quantile = self
            .selection
            .threshold(density, input.elements, input.sample, None);
        let t = self.within_bounds(quantile.unwrap_or(Unit::LEAST).into());
        let unit = self
            .settings
            .unit(t as f32, || self.selection.mean_from(t as f32));
        if quantile.is_some() {
            self.memory.threshold = Some(t);
            // No further sample is asked for.
            self.selection = Selection::default();
        }
        unit
    }

    fn within_bounds(&self, t: f64) -> f64 {
        t.clamp(self.floor.into(), self.ceiling.into())
    }

    /// The density of the step before.
    fn count(&mut self, last: &LastStep, elements: usize) -> f64 {
        let density = match self.counting {
            Counting::Hits => (last.hits as f64 / elements.max(1) as f64).min(1.0),
            Counting::Dl4j => {
                let (density, mode) = self.memory.mode.after(last.hits, elements);
                self.memory.mode = mode;
                density
            }
        };
        // How many there were of a step that its limit cut short is not known, only that they were too many. Taking
        // those sent for all would let the threshold fall to its floor under a limit below the density wanted.
        match self.limit() {
            Some(limit) if last.hits >= limit as u64 => 1.0,
            _ => density,
        }
    }

    fn steered(&self, t: f64, density: f64) -> f64 {
        if density < *self.wanted.start() {
            t * self.decay
        } else if density > *self.wanted.end() {
            t / self.decay
        } else {
            t
        }
    }

    pub(super) fn state(&self, kind: &str) -> PolicyState {
        self.memory.write(kind)
    }

    pub(super) fn restore(
        &mut self,
        kind: &str,
        state: &PolicyState,
    ) -> Result<(), PolicyStateError> {
        self.memory = Memory::read(kind, state)?;
        Ok(())
    }

    pub(super) fn merge(
        kind: &str,
        states: &[PolicyState],
    ) -> Result<PolicyState, PolicyStateError> {
        let memories = states
            .iter()
            .map(|state| Memory::read(kind, state))
            .collect::<Result<Vec<Memory>, _>>()?;
        match memories.as_slice() {
            [] => Err(PolicyStateError::Nothing),
            memories => Ok(Memory::merged(memories).write(kind)),
        }
    }
}

/// The methods that [`Adaptive`](super::Adaptive) and [`TargetDensity`](super::TargetDensity) have in common.
macro_rules! feedback_policy {
    ($policy:ident) => {
        $crate::codec::policy::settings::common_settings!($policy, feedback.settings);

        impl $policy {
            /// With this first threshold instead of the first update's quantile. It is kept as it is, not cut.
            ///
            /// # Errors
            /// [`PolicyError::Initial`] unless it is from 2^-100 to 2^98.
            pub fn starting_at(self, t: f64) -> Result<$policy, PolicyError> {
                let feedback = self.feedback.starting_at(t)?;
                Ok($policy { feedback })
            }

            /// With this factor by which the threshold falls or rises in a step. Default: 2^(-1/20), 2 in 20 steps.
            ///
            /// # Errors
            /// [`PolicyError::Decay`] unless it is at least 0.5 and below 1.
            pub fn with_decay(self, decay: f64) -> Result<$policy, PolicyError> {
                let feedback = self.feedback.with_decay(decay)?;
                Ok($policy { feedback })
            }

            /// With thresholds of at least `floor`, cut to 8 significant bits. Default: 2^-100. While an update is 0 or
            /// nearly so the threshold falls and falls, and takes as many steps to come back.
            ///
            /// # Errors
            /// [`PolicyError::Threshold`] unless it is from 2^-100 to 2^98; [`PolicyError::Bounds`] if it is above the
            /// ceiling.
            pub fn with_floor(self, floor: f32) -> Result<$policy, PolicyError> {
                let feedback = self.feedback.with_floor(floor)?;
                Ok($policy { feedback })
            }

            /// With thresholds of at most `ceiling`, cut to 8 significant bits. Default: 2^98.
            ///
            /// # Errors
            /// [`PolicyError::Threshold`] unless it is from 2^-100 to 2^98; [`PolicyError::Bounds`] if it is below the
            /// floor.
            pub fn with_ceiling(self, ceiling: f32) -> Result<$policy, PolicyError> {
                let feedback = self.feedback.with_ceiling(ceiling)?;
                Ok($policy { feedback })
            }

            /// With this way of counting the density. Default: [`Counting::Hits`].
            #[must_use]
            pub fn with_counting(self, counting: Counting) -> $policy {
                let feedback = self.feedback.with_counting(counting);
                $policy { feedback }
            }

            /// The last step's threshold, before it was cut to 8 significant bits; `None` before the first.
            #[must_use]
            pub fn threshold(&self) -> Option<f64> {
                self.feedback.threshold()
            }

            /// The last density counted; `None` before the first.
            #[must_use]
            pub fn density(&self) -> Option<f64> {
                self.feedback.density()
            }
        }

        impl ThresholdPolicy for $policy {
            fn kind(&self) -> &'static str {
                stringify!($policy)
            }

            fn sample_size(&self, elements: usize, _step: u64) -> usize {
                self.feedback.sample_size(elements)
            }

            fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
                self.feedback.unit(input)
            }

            fn limit(&self, _elements: usize, _step: u64) -> Option<usize> {
                self.feedback.limit()
            }

            fn state(&self) -> PolicyState {
                self.feedback.state(self.kind())
            }

            fn restore(&mut self, state: &PolicyState) -> Result<(), PolicyStateError> {
                let kind = self.kind();
                self.feedback.restore(kind, state)
            }

            fn merge(&self, states: &[PolicyState]) -> Result<PolicyState, PolicyStateError> {
                Feedback::merge(self.kind(), states)
            }
        }
    };
}
pub(super) use feedback_policy;
