//! Always the same threshold.

use super::{PolicyError, PolicyInput, ThresholdPolicy};
use crate::codec::{Unit, cut8};

/// Always the same threshold, which is also the unit. For those who know their update's scale; see
/// [`Quantile`](super::Quantile) for those who do not.
#[derive(Clone, Debug)]
pub struct Fixed {
    unit: Unit,
    limit: Option<usize>,
}

impl Fixed {
    /// `threshold`, cut to 8 significant bits, without a limit.
    ///
    /// # Errors
    /// [`PolicyError::Threshold`] unless it is from 2^-100 to 2^98.
    pub fn new(threshold: f32) -> Result<Fixed, PolicyError> {
        let refused = PolicyError::Threshold { found: threshold };
        let t = cut8(threshold);
        if t > Unit::MOST {
            return Err(refused);
        }
        let unit = Unit::new(t, t).map_err(|_| refused)?;
        Ok(Fixed { unit, limit: None })
    }

    /// At most `hits` a step.
    #[must_use]
    pub fn with_limit(self, hits: usize) -> Fixed {
        Fixed {
            limit: Some(hits),
            ..self
        }
    }
}

impl ThresholdPolicy for Fixed {
    fn kind(&self) -> &'static str {
        "Fixed"
    }

    fn sample_size(&self, _elements: usize, _step: u64) -> usize {
        0
    }

    fn unit(&mut self, _input: &PolicyInput<'_>) -> Unit {
        self.unit
    }

    fn limit(&self, _elements: usize, _step: u64) -> Option<usize> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_threshold_is_cut_once_and_stays() {
        let mut fixed = Fixed::new(1e-3).unwrap().with_limit(7);
        let input = PolicyInput {
            step: 0,
            elements: 10,
            sample: &[],
            last: None,
        };
        let unit = fixed.unit(&input);
        assert_eq!((unit.t(), unit.v()), (cut8(1e-3), cut8(1e-3)));
        assert_eq!(fixed.limit(10, 0), Some(7));
        for found in [0.0, -1.0, f32::INFINITY, 1e38, 1e-38] {
            assert_eq!(
                Fixed::new(found).err(),
                Some(PolicyError::Threshold { found })
            );
        }
        assert!(Fixed::new(f32::NAN).is_err());
    }
}
