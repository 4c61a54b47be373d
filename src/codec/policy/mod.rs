//! Which threshold and unit a step uses.
//!
//! | policy | threshold | source |
//! |---|---|---|
//! | [`Quantile`] (default) | such that a given density of this same step's elements are hits | DGC's sampling (Lin 2018), with the sample taken before the step and selected exactly |
//! | [`Fixed`] | always the same | Strom 2015; Deeplearning4j's `FixedThresholdAlgorithm` |
//!
//! Policies may differ between replicas: threshold and unit travel in each record.

mod fixed;
mod quantile;
mod state;

pub use fixed::Fixed;
pub use quantile::{Magnitude, Quantile};
pub use state::{PolicyState, PolicyStateError};

use super::Unit;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use thiserror::Error;

/// What a policy knows of the step it is asked about.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput<'a> {
    /// How many steps came before this one.
    pub step: u64,
    /// Elements of the whole vector.
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

/// A policy cannot be made with these numbers.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum PolicyError {
    /// A threshold out of range.
    #[error("a threshold of {found:e}; it must be from 2^-100 to 2^98")]
    Threshold {
        /// The threshold.
        found: f32,
    },
    /// A density out of range.
    #[error("a density of {found}; it must be above 0 and at most 1")]
    Density {
        /// The density.
        found: f64,
    },
}
