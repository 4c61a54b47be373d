//! What is done to the residual after a chunk's hits.

use super::Unit;
use super::arithmetic::canon;
use super::encode::{Clip, ClipError};
use std::fmt::Debug;
use thiserror::Error;

/// A chunk whose hits have been sent.
#[derive(Clone, Copy, Debug)]
pub struct PostInput {
    /// How many steps came before this one.
    pub step: u64,
    /// What this step's hits sent.
    pub unit: Unit,
}

/// Changes what stays, chunk by chunk, after the hits. Deeplearning4j's `ResidualPostProcessor`.
///
/// What it takes away is lost for training, and reported. Everything must follow from the element itself and from
/// `input`: chunks are visited in any order, by several threads. Ranges that are sent dense are left out.
pub trait PostProcessor: Send + Sync + Debug {
    /// The processor's name, for messages. Replicas of one exchange must agree on it.
    fn kind(&self) -> &'static str;

    /// The bound to which this step's residual is clamped, `None`: it is not. Costs nothing where nothing is past it.
    fn clip(&self, step: u64) -> Option<Clip> {
        let _ = step;
        None
    }

    /// Whether [`process`](Self::process) may change anything. One that says no has nothing but its [`clip`](Self::clip):
    /// `process` is never called, and an encoder on a GPU can have it.
    fn processes(&self) -> bool {
        true
    }

    /// Anything else: changes a chunk's residual and gives the sum of the magnitudes that it took away; `None` if it
    /// changed nothing. A number that it leaves and that is not finite, subnormal or -0 becomes +0.
    fn process(&self, input: &PostInput, residual: &mut [f32]) -> Option<f64> {
        let _ = (input, residual);
        None
    }
}

/// Runs the part of `post` that is not fused: what it took away, `None` if it changed nothing.
pub(super) fn process(
    post: &dyn PostProcessor,
    input: &PostInput,
    residual: &mut [f32],
) -> Option<f64> {
    if !post.processes() {
        return None;
    }
    let taken = post.process(input, residual)?;
    for r in residual {
        *r = if r.is_finite() { canon(*r) } else { 0.0 };
    }
    Some(taken)
}

/// Clamps the residual to a multiple of the threshold every few steps, as Deeplearning4j's `ResidualClippingPostProcessor`
/// (5 and 5 in its Spark training). With a threshold that fits from the first step on it never bites; under one that is
/// too low it repairs what it can by throwing mass away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clipping {
    clip: Clip,
    every: u64,
}

impl Clipping {
    /// Clamps to `multiple` thresholds in the steps s > 0 of which s mod `every` is 0.
    ///
    /// # Errors
    /// [`ClippingError`] when `multiple` is below 2 or no number, or `every` is 0.
    pub fn new(multiple: f32, every: u64) -> Result<Clipping, ClippingError> {
        let clip = Clip::new(multiple)?;
        if every == 0 {
            return Err(ClippingError::Every);
        }
        Ok(Clipping { clip, every })
    }
}

impl PostProcessor for Clipping {
    fn kind(&self) -> &'static str {
        "Clipping"
    }

    fn clip(&self, step: u64) -> Option<Clip> {
        (step > 0 && step.is_multiple_of(self.every)).then_some(self.clip)
    }

    fn processes(&self) -> bool {
        false
    }
}

/// [`Clipping`] cannot be made with these numbers.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum ClippingError {
    /// The multiple is too small.
    #[error(transparent)]
    Multiple(#[from] ClipError),
    /// In no step at all.
    #[error("clipping every 0 steps; it must be at least 1")]
    Every,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_bites_in_its_steps_only() {
        let clipping = Clipping::new(5.0, 5).unwrap();
        let steps: Vec<u64> = (0..16)
            .filter(|&step| clipping.clip(step).is_some())
            .collect();
        assert_eq!(steps, [5, 10, 15]);
        assert_eq!(Clipping::new(5.0, 0), Err(ClippingError::Every));
        assert_eq!(
            Clipping::new(1.5, 1),
            Err(ClippingError::Multiple(ClipError { found: 1.5 }))
        );
    }

    #[test]
    fn a_processor_that_only_clips_is_not_asked_for_more() {
        #[derive(Debug)]
        struct Liar;
        impl PostProcessor for Liar {
            fn kind(&self) -> &'static str {
                "Liar"
            }
            fn processes(&self) -> bool {
                false
            }
            fn process(&self, _: &PostInput, residual: &mut [f32]) -> Option<f64> {
                residual.fill(0.0);
                Some(1.0)
            }
        }
        let input = PostInput {
            step: 1,
            unit: Unit::new(1.0, 1.0).unwrap(),
        };
        let mut residual = [1.0; 2];
        assert_eq!(process(&Liar, &input, &mut residual), None);
        assert_eq!(residual, [1.0; 2]);
        assert!(!Clipping::new(5.0, 5).unwrap().processes());
    }

    #[test]
    fn what_a_processor_leaves_is_made_canonical() {
        #[derive(Debug)]
        struct Scribble;
        impl PostProcessor for Scribble {
            fn kind(&self) -> &'static str {
                "Scribble"
            }
            fn process(&self, _: &PostInput, residual: &mut [f32]) -> Option<f64> {
                residual.copy_from_slice(&[f32::NAN, f32::INFINITY, -0.0, 1e-45, 2.0]);
                Some(3.0)
            }
        }
        let input = PostInput {
            step: 1,
            unit: Unit::new(1.0, 1.0).unwrap(),
        };
        let mut residual = [1.0; 5];
        assert_eq!(process(&Scribble, &input, &mut residual), Some(3.0));
        let bits = residual.map(f32::to_bits);
        assert_eq!(bits, [0.0, 0.0, 0.0, 0.0, 2.0].map(f32::to_bits));
    }
}
