//! A threshold that keeps the density near a target.

use super::feedback::{Feedback, feedback_policy};
use super::{
    Counting, Magnitude, PolicyError, PolicyInput, PolicyState, PolicyStateError, ThresholdPolicy,
};
use crate::codec::Unit;

/// The threshold falls by 2^(-1/20) after a step whose density lay below the target, and rises by it after one whose
/// density lay above (Deeplearning4j's `TargetSparsityThresholdAlgorithm`): [`Adaptive`](super::Adaptive) with a band
/// of one density, so that it hardly ever stays.
///
/// First threshold, limit and memory are as there; [`Quantile`](super::Quantile) meets a density better, for the price
/// of a sample a step.
#[derive(Clone, Debug)]
pub struct TargetDensity {
    feedback: Feedback,
}

feedback_policy!(TargetDensity);

impl Default for TargetDensity {
    /// Density 1e-3, [`Magnitude::Threshold`], no limit.
    fn default() -> TargetDensity {
        TargetDensity {
            feedback: Feedback::new(1e-3..=1e-3),
        }
    }
}

impl TargetDensity {
    /// A policy for the density `target`, hits by elements. Deeplearning4j takes targets below 1/16 only, where its
    /// messages are sparse; ours may be as dense as they like.
    ///
    /// # Errors
    /// [`PolicyError::Target`] unless it is above 0 and below 1.
    pub fn new(target: f64) -> Result<TargetDensity, PolicyError> {
        if target > 0.0 && target < 1.0 {
            Ok(TargetDensity {
                feedback: Feedback::new(target..=target),
            })
        } else {
            Err(PolicyError::Target { found: target })
        }
    }

    /// Deeplearning4j's defaults to the letter: a first threshold of 1e-4 and its own [`Counting`]. For comparison, as
    /// [`Adaptive::dl4j`](super::Adaptive::dl4j).
    #[must_use]
    pub fn dl4j() -> TargetDensity {
        TargetDensity {
            feedback: TargetDensity::default().feedback.dl4j(),
        }
    }
}
