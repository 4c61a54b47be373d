//! A threshold that keeps the density in a band.

use super::feedback::{Feedback, feedback_policy};
use super::{
    Counting, Magnitude, PolicyError, PolicyInput, PolicyState, PolicyStateError, ThresholdPolicy,
};
use crate::codec::Unit;

/// The threshold falls by 2^(-1/20) after a step whose density lay below a band, rises by it after one whose density
/// lay above, and stays otherwise (Deeplearning4j's `AdaptiveThresholdAlgorithm`).
///
/// It needs no sample but before its first step, whose threshold is the quantile in the band's geometric middle: a
/// start far off takes 66 steps a decade, in which far too much or next to nothing is sent. A step that its limit cut
/// short counts as too dense.
///
/// It remembers the threshold and the last density. Without a last step, as after [`restore`](ThresholdPolicy::restore)
/// in a new run, it goes on from these.
#[derive(Clone, Debug)]
pub struct Adaptive {
    feedback: Feedback,
}

feedback_policy!(Adaptive);

impl Default for Adaptive {
    /// Densities of 1e-4 to 1e-2, [`Magnitude::Threshold`], no limit.
    fn default() -> Adaptive {
        Adaptive {
            feedback: Feedback::new(1e-4..=1e-2),
        }
    }
}

impl Adaptive {
    /// A policy for densities, hits by elements, from `least` to `most`.
    ///
    /// # Errors
    /// [`PolicyError::Band`] unless `0 < least <= most <= 1`.
    pub fn new(least: f64, most: f64) -> Result<Adaptive, PolicyError> {
        // Written so that a NaN fails it.
        if 0.0 < least && least <= most && most <= 1.0 {
            Ok(Adaptive {
                feedback: Feedback::new(least..=most),
            })
        } else {
            Err(PolicyError::Band { least, most })
        }
    }

    /// Deeplearning4j's defaults to the letter: a first threshold of 1e-4 and its own [`Counting`]. For comparison: its
    /// first threshold is most often far too low, and what is not sent in the steps that it takes to rise piles up.
    #[must_use]
    pub fn dl4j() -> Adaptive {
        Adaptive {
            feedback: Adaptive::default().feedback.dl4j(),
        }
    }
}
