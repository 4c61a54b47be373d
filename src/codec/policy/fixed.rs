//! Always the same threshold.

use super::settings::{Magnitude, Settings, common_settings, given_threshold};
use super::{PolicyError, PolicyInput, ThresholdPolicy};
use crate::codec::Unit;

/// Always the same threshold (Strom 2015; Deeplearning4j's `FixedThresholdAlgorithm`), and as each hit's value unless
/// told otherwise. For those who know their update's scale; see [`Quantile`](super::Quantile) for those who do not.
///
/// It has no memory: its [`PolicyState`](super::PolicyState) has no numbers.
#[derive(Clone, Debug)]
pub struct Fixed {
    threshold: f32,
    settings: Settings,
}

common_settings!(Fixed, settings);

impl Fixed {
    /// `threshold`, cut to 8 significant bits, with [`Magnitude::Threshold`] and without a limit.
    ///
    /// # Errors
    /// [`PolicyError::Threshold`] unless it is from 2^-100 to 2^98.
    pub fn new(threshold: f32) -> Result<Fixed, PolicyError> {
        Ok(Fixed {
            threshold: given_threshold(threshold)?,
            settings: Settings::new(Magnitude::Threshold),
        })
    }
}

impl ThresholdPolicy for Fixed {
    fn kind(&self) -> &'static str {
        "Fixed"
    }

    fn sample_size(&self, _elements: usize, _step: u64) -> usize {
        0
    }

    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        let mean = || input.last.and_then(|last| last.mean);
        self.settings.unit(self.threshold, mean)
    }

    fn limit(&self, _elements: usize, _step: u64) -> Option<usize> {
        self.settings.limit(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::cut8;
    use crate::codec::policy::LastStep;

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
        assert_eq!(fixed.clone().without_limit().limit(10, 0), None);
        assert_eq!(
            Fixed::new(0.0).err(),
            Some(PolicyError::Threshold { found: 0.0 })
        );

        let mut mean = fixed.with_magnitude(Magnitude::Mean);
        assert_eq!(mean.unit(&input), unit);
        let last = LastStep {
            unit,
            hits: 2,
            density: 0.2,
            mean: Some(1.5e-3),
        };
        let next = mean.unit(&PolicyInput {
            last: Some(last),
            ..input
        });
        assert_eq!((next.t(), next.v()), (cut8(1e-3), cut8(1.5e-3)));
    }
}
