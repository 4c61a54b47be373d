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

pub use fixed::Fixed;
pub use quantile::{Magnitude, Quantile};

use super::Unit;
use std::fmt::Debug;
use thiserror::Error;

/// What a policy knows of the step it is asked about.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput<'a> {
    /// Elements of the whole vector.
    pub elements: usize,
    /// A systematic sample of this step's |s|, in index order, of at least the size that the policy asked for or all
    /// elements; empty for a policy that asks for none.
    pub sample: &'a [f32],
    /// What came of the step before; `None` at the first.
    pub last: Option<LastStep>,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastStep {
    /// What it used.
    pub unit: Unit,
    /// The hits that it sent.
    pub hits: u64,
    /// Hits by elements.
    pub density: f64,
}

/// Chooses threshold and unit, step by step.
pub trait ThresholdPolicy: Send + Debug {
    /// The policy's name. Replicas of one exchange must agree on it.
    fn kind(&self) -> &'static str;

    /// How many |s| of a vector of `elements` it wants to see before each step; 0: none.
    fn sample_size(&self, elements: usize) -> usize;

    /// Threshold and unit of the step that `input` describes.
    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit;

    /// The most hits of a step over `elements`; `None`: as many as there are.
    fn limit(&self, elements: usize) -> Option<usize>;
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
