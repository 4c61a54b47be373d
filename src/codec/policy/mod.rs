//! Which threshold and unit a step uses.
//!
//! | policy | threshold | source |
//! |---|---|---|
//! | [`Quantile`] (default) | such that a given density of this same step's elements are hits | DGC's sampling (Lin 2018), with the sample taken before the step and selected exactly |
//! | [`Fixed`] | always the same | Strom 2015; Deeplearning4j's `FixedThresholdAlgorithm` |
//! | [`Adaptive`] | a small factor up or down after a step whose density left a band | Deeplearning4j's `AdaptiveThresholdAlgorithm` |
//! | [`TargetDensity`] | a small factor up or down after every step, towards a density | Deeplearning4j's `TargetSparsityThresholdAlgorithm` |
//! | your own | what you like | [`ThresholdPolicy`] |
//!
//! What a hit sends ([`Magnitude`]) and a limit on the hits of a step can be set on each of them.
//!
//! Policies may differ between replicas: threshold and unit travel in each record.

mod adaptive;
mod counting;
mod feedback;
mod fixed;
mod memory;
mod quantile;
mod selection;
mod settings;
mod state;
mod target_density;

pub use adaptive::Adaptive;
pub use counting::Counting;
pub use fixed::Fixed;
pub use quantile::Quantile;
pub use settings::Magnitude;
pub use state::{PolicyState, PolicyStateError};
pub use target_density::TargetDensity;

use super::Unit;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use thiserror::Error;

/// What a policy knows of the step it is asked about.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput<'a> {
    /// How many steps came before this one.
    pub step: u64,
    /// Elements of all ranges that share this threshold.
    pub elements: usize,
    /// A systematic sample of this step's |s|, in index order, of at least the size that the policy asked for or all
    /// elements; empty for a policy that asks for none.
    pub sample: &'a [f32],
    /// What came of the step before; `None` at the first.
    pub last: Option<LastStep>,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastStep {
    /// What it used.
    pub unit: Unit,
    /// The hits that it sent.
    pub hits: u64,
    /// Hits by elements.
    pub density: f64,
    /// The mean |s| of the hits that it sent, or of a sample of them; `None` if it sent none.
    pub mean: Option<f64>,
}

/// Chooses threshold and unit, step by step.
///
/// A policy of your own is one `impl`:
///
/// ```
/// use gradring::codec::policy::{PolicyInput, ThresholdPolicy};
/// use gradring::codec::Unit;
///
/// /// What lies above three times the root mean square of a sample is sent, but at most a tenth of all elements.
/// #[derive(Debug)]
/// struct Outliers;
///
/// impl ThresholdPolicy for Outliers {
///     fn kind(&self) -> &'static str { "Outliers" }
///     fn sample_size(&self, elements: usize, _step: u64) -> usize { elements.min(10_000) }
///     fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
///         let squares: f32 = input.sample.iter().map(|s| s * s).sum();
///         let t = 3.0 * (squares / input.sample.len().max(1) as f32).sqrt();
///         Unit::nearest(t, 1.5 * t)
///     }
///     fn limit(&self, elements: usize, _step: u64) -> Option<usize> { Some(elements / 10) }
/// }
///
/// let mut policy = Outliers;
/// let input = PolicyInput { step: 0, elements: 4, sample: &[1.0, 1.0, 1.0, 1.0], last: None };
/// assert_eq!(policy.unit(&input).t(), 3.0);
/// ```
///
/// One that remembers something from step to step says what in [`state`](Self::state), [`restore`](Self::restore) and
/// [`merge`](Self::merge) too.
pub trait ThresholdPolicy: Send + Debug {
    /// The policy's name. Replicas of one exchange must agree on it.
    fn kind(&self) -> &'static str;

    /// How many |s| of a vector of `elements` it wants to see before this step; 0: none.
    fn sample_size(&self, elements: usize, step: u64) -> usize;

    /// Threshold and unit of the step that `input` describes.
    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit;

    /// The most hits of this step over `elements`; `None`: as many as there are.
    fn limit(&self, elements: usize, step: u64) -> Option<usize>;

    /// What [`restore`](Self::restore) needs to go on bit for bit. As it stands, for a policy without memory: no numbers.
    fn state(&self) -> PolicyState {
        PolicyState::new(self.kind(), [])
    }

    /// Goes on from a state, which may come from a damaged file. As it stands, for a policy without memory.
    ///
    /// # Errors
    /// [`PolicyStateError`] if the state is none of this policy; nothing changed then.
    fn restore(&mut self, state: &PolicyState) -> Result<(), PolicyStateError> {
        state.expect_none(self.kind())
    }

    /// The states of several replicas as one. As it stands, for a policy without memory.
    ///
    /// # Errors
    /// [`PolicyStateError`] if there are none, or one is none of this policy.
    fn merge(&self, states: &[PolicyState]) -> Result<PolicyState, PolicyStateError> {
        for state in states {
            state.expect_none(self.kind())?;
        }
        states.first().cloned().ok_or(PolicyStateError::Nothing)
    }
}

impl<P: ThresholdPolicy + ?Sized> ThresholdPolicy for Box<P> {
    fn kind(&self) -> &'static str {
        (**self).kind()
    }

    fn sample_size(&self, elements: usize, step: u64) -> usize {
        (**self).sample_size(elements, step)
    }

    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        (**self).unit(input)
    }

    fn limit(&self, elements: usize, step: u64) -> Option<usize> {
        (**self).limit(elements, step)
    }

    fn state(&self) -> PolicyState {
        (**self).state()
    }

    fn restore(&mut self, state: &PolicyState) -> Result<(), PolicyStateError> {
        (**self).restore(state)
    }

    fn merge(&self, states: &[PolicyState]) -> Result<PolicyState, PolicyStateError> {
        (**self).merge(states)
    }
}

/// A policy cannot be made with these numbers.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum PolicyError {
    /// A threshold out of range.
    #[error("a threshold of {found:e}; it must be from 2^-100 to 2^98")]
    Threshold {
        /// The threshold.
        found: f32,
    },
    /// A first threshold out of range.
    #[error("a first threshold of {found:e}; it must be from 2^-100 to 2^98")]
    Initial {
        /// The threshold.
        found: f64,
    },
    /// A floor above a ceiling.
    #[error("thresholds from {floor:e} to {ceiling:e}; the floor must be at most the ceiling")]
    Bounds {
        /// The least threshold.
        floor: f32,
        /// The largest threshold.
        ceiling: f32,
    },
    /// A factor out of range.
    #[error("a factor of {found}; it must be at least 0.5 and below 1")]
    Decay {
        /// The factor.
        found: f64,
    },
    /// A density out of range.
    #[error("a density of {found}; it must be above 0 and at most 1")]
    Density {
        /// The density.
        found: f64,
    },
    /// A target out of range.
    #[error("a target density of {found}; it must be above 0 and below 1")]
    Target {
        /// The density.
        found: f64,
    },
    /// Densities that are no band.
    #[error("densities from {least} to {most}; they must be above 0, at most 1 and in order")]
    Band {
        /// The least density.
        least: f64,
        /// The largest density.
        most: f64,
    },
    /// A warm-up that would not fall.
    #[error("a warm-up from 0.25 to a density of {density}; it must be below 0.25")]
    WarmUp {
        /// The density.
        density: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boxed_policy_is_the_policy_in_the_box() {
        let mut plain = Adaptive::dl4j().with_limit(9);
        let mut boxed: Box<dyn ThresholdPolicy> = Box::new(plain.clone());
        let input = PolicyInput {
            step: 0,
            elements: 1000,
            sample: &[],
            last: None,
        };
        let through = &mut boxed as &mut dyn ThresholdPolicy;
        assert_eq!(through.kind(), plain.kind());
        assert_eq!(through.unit(&input), plain.unit(&input));
        assert_eq!(
            (through.limit(1000, 1), through.sample_size(1000, 1)),
            (Some(9), 0)
        );
        assert_eq!(through.state(), plain.state());
        assert_eq!(through.restore(&plain.state()), Ok(()));
        assert_eq!(through.merge(&[plain.state()]), Ok(plain.state()));
    }
}
