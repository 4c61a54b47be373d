//! The threshold that makes a given density of this same step's elements hits.

use super::selection::{Selection, sample_size, wanted};
use super::settings::{Magnitude, Settings, common_settings, given_threshold};
use super::{PolicyError, PolicyInput, ThresholdPolicy};
use crate::codec::Unit;

/// The density that a warm-up begins with, as Deep Gradient Compression's does (Lin 2018).
const WARM_UP_FROM: f64 = 0.25;

/// The threshold that makes a given density of this same step's elements hits, from a sample of them.
///
/// With `H = min(n, max(32, round(density n)))` hits wanted of `n` elements, the sample has at least 250 expected hits,
/// or all elements, and the threshold is the sample's k-th largest, `k = round(H m / n)`, at least 1. So the density
/// is right from the first step on, whatever the scale. The limit is `2 H` unless told otherwise: where many elements
/// are equal, as in an adaptive optimizer's first steps, a threshold alone would let all of them through.
///
/// Where fewer than H elements are not 0, where H is more than the density asks for, and where the threshold would send
/// less than a sixteenth of what a larger one does, fewer hits are taken, those that send most: a hit sends at most two
/// thresholds, and one of next to nothing would keep the residual back for ever.
///
/// It has no memory: its [`PolicyState`](super::PolicyState) has no numbers.
#[derive(Clone, Debug)]
pub struct Quantile {
    density: f64,
    /// Steps of the warm-up.
    warm_up: u64,
    floor: f32,
    settings: Settings,
    selection: Selection,
}

common_settings!(Quantile, settings);

impl Default for Quantile {
    /// Density 1e-2, [`Magnitude::Mean`].
    fn default() -> Quantile {
        Quantile {
            density: 1e-2,
            warm_up: 0,
            floor: Unit::LEAST,
            settings: Settings::new(Magnitude::Mean),
            selection: Selection::default(),
        }
    }
}

impl Quantile {
    /// A policy for `density`, hits by elements.
    ///
    /// # Errors
    /// [`PolicyError::Density`] unless it is above 0 and at most 1.
    pub fn new(density: f64) -> Result<Quantile, PolicyError> {
        if density > 0.0 && density <= 1.0 {
            Ok(Quantile {
                density,
                ..Quantile::default()
            })
        } else {
            Err(PolicyError::Density { found: density })
        }
    }

    /// With densities that fall from 0.25 to the one asked for over the first `steps` steps, by the same factor each
    /// step. Helps where few steps are made, or the density is below 1e-2 (Lin 2018).
    ///
    /// # Errors
    /// [`PolicyError::WarmUp`] unless the density is below 0.25.
    pub fn with_warm_up(self, steps: u64) -> Result<Quantile, PolicyError> {
        if self.density < WARM_UP_FROM {
            Ok(Quantile {
                warm_up: steps,
                ..self
            })
        } else {
            Err(PolicyError::WarmUp {
                density: self.density,
            })
        }
    }

    /// With thresholds of at least `floor`, cut to 8 significant bits: while fewer elements than wanted are as large,
    /// fewer are sent.
    ///
    /// # Errors
    /// [`PolicyError::Threshold`] unless it is from 2^-100 to 2^98.
    pub fn with_floor(self, floor: f32) -> Result<Quantile, PolicyError> {
        Ok(Quantile {
            floor: given_threshold(floor)?,
            ..self
        })
    }

    /// The density wanted of a step.
    #[must_use]
    pub fn density_at(&self, step: u64) -> f64 {
        if step >= self.warm_up {
            return self.density;
        }
        let done = step as f64 / self.warm_up as f64;
        let density = WARM_UP_FROM.powf(1.0 - done) * self.density.powf(done);
        density.max(self.density)
    }
}

impl ThresholdPolicy for Quantile {
    fn kind(&self) -> &'static str {
        "Quantile"
    }

    fn sample_size(&self, elements: usize, step: u64) -> usize {
        sample_size(self.density_at(step), elements)
    }

    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        let elements = input.elements;
        // The density falls during the warm-up, so the samples grow up to this one.
        self.selection
            .reserve(elements, sample_size(self.density, elements));
        let t = self
            .selection
            .threshold_that_sends(
                self.density_at(input.step),
                elements,
                input.sample,
                input.last.map(|last| last.unit.t()),
            )
            .map_or(self.floor, |t| t.max(self.floor));
        self.settings.unit(t, || self.selection.mean_from(t))
    }

    fn limit(&self, elements: usize, step: u64) -> Option<usize> {
        let wanted = wanted(self.density_at(step), elements);
        self.settings.limit(Some(wanted.saturating_mul(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::cut8;
    use crate::codec::policy::LastStep;

    fn input(elements: usize, sample: &[f32]) -> PolicyInput<'_> {
        PolicyInput {
            step: 0,
            elements,
            sample,
            last: None,
        }
    }

    /// Positive numbers, in no order.
    fn scattered(count: u32) -> Vec<f32> {
        (0..count)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e4)
            .collect()
    }

    #[test]
    fn the_threshold_is_next_to_the_kth_largest_of_the_sample_and_the_unit_the_mean_of_the_hits() {
        let sample = scattered(50_000);
        let mut sorted = sample.clone();
        sorted.sort_by(f32::total_cmp);
        for density in [1e-3, 1e-2, 0.25, 0.75] {
            let mut quantile = Quantile::new(density).unwrap();
            let unit = quantile.unit(&input(200_000, &sample));
            let k = (50_000.0 * density) as usize;
            let below = cut8(sorted[50_000 - k]).max(Unit::LEAST);
            let above = f32::from_bits(below.to_bits() + 0x1_0000);
            let count = |t: f32| sample.iter().filter(|&&x| x >= t).count();
            let t = if count(above) > 0 && k.abs_diff(count(above)) < k.abs_diff(count(below)) {
                above
            } else {
                below
            };
            let hits: Vec<f64> = sample
                .iter()
                .filter(|&&x| x >= t)
                .map(|&x| f64::from(x))
                .collect();
            let mean = hits.iter().sum::<f64>() / hits.len() as f64;
            assert_eq!(unit.t(), t);
            assert_eq!(unit.v(), cut8(mean.min(2.0 * f64::from(t)) as f32));

            let mut plain = Quantile::new(density)
                .unwrap()
                .with_magnitude(Magnitude::Threshold);
            assert_eq!(
                plain.unit(&input(200_000, &sample)),
                Unit::new(t, t).unwrap()
            );
        }
    }

    #[test]
    fn what_the_last_step_used_changes_the_effort_and_not_the_result() {
        let sample = scattered(40_000);
        let mut quantile = Quantile::new(1e-2).unwrap();
        let expected = quantile.unit(&input(90_000, &sample));
        for factor in [1e-6, 0.5, 0.99, 1.0, 1.01, 1.33, 1.34, 3.9, 4.1, 1e6] {
            let t = cut8(expected.t() * factor);
            let last = LastStep {
                unit: Unit::new(t, t).unwrap(),
                hits: 900,
                density: 1e-2,
                mean: None,
            };
            let unit = quantile.unit(&PolicyInput {
                last: Some(last),
                ..input(90_000, &sample)
            });
            assert_eq!(unit, expected, "after {factor}");
        }
    }

    #[test]
    fn samples_without_a_quantile_give_a_unit_all_the_same() {
        let mut quantile = Quantile::default();
        let least = Unit::new(Unit::LEAST, Unit::LEAST).unwrap();
        assert_eq!(quantile.unit(&input(0, &[])), least);
        assert_eq!(quantile.unit(&input(1000, &[])), least);
        assert_eq!(quantile.unit(&input(1000, &[0.0; 1000])), least);
        assert_eq!(
            quantile.unit(&input(1, &[0.5])),
            Unit::new(0.5, 0.5).unwrap()
        );
        assert_eq!(quantile.unit(&input(3, &[f32::MAX; 3])).t(), Unit::MOST);
        assert_eq!(quantile.unit(&input(2, &[f32::NAN; 2])), least);
        // Fewer hits than wanted are not 0: they are sent.
        let mut few = [0.0; 1000];
        few[7] = 3.0;
        assert_eq!(
            quantile.unit(&input(1000, &few)),
            Unit::new(3.0, 3.0).unwrap()
        );
    }

    #[test]
    fn sample_and_limit_follow_from_density_and_length() {
        let hundredth = Quantile::default();
        assert_eq!(hundredth.sample_size(25_557_032, 0), 25_001);
        assert_eq!(hundredth.limit(25_557_032, 0), Some(2 * 255_570));
        assert_eq!(hundredth.sample_size(1000, 0), 1000);
        assert_eq!(hundredth.limit(1000, 0), Some(64));
        assert_eq!(hundredth.limit(10, 0), Some(20));
        assert_eq!(
            (hundredth.sample_size(0, 0), hundredth.limit(0, 0)),
            (0, Some(0))
        );
        assert_eq!(
            Quantile::new(1e-3).unwrap().sample_size(1 << 30, 0),
            250_000
        );
        assert_eq!(Quantile::new(1.0).unwrap().sample_size(1000, 0), 250);
    }

    #[test]
    fn densities_that_are_none_are_refused() {
        for found in [0.0, -0.1, 1.1, f64::INFINITY] {
            assert_eq!(
                Quantile::new(found).err(),
                Some(PolicyError::Density { found })
            );
        }
        assert!(Quantile::new(f64::NAN).is_err());
    }

    #[test]
    fn a_warm_up_falls_from_a_quarter_to_the_density_by_the_same_factor_each_step() {
        let policy = Quantile::new(1e-3).unwrap().with_warm_up(10).unwrap();
        assert_eq!(policy.density_at(0), 0.25);
        let factor = (1e-3f64 / 0.25).powf(0.1);
        for step in 0..10 {
            let (now, next) = (policy.density_at(step), policy.density_at(step + 1));
            assert!((next / now / factor - 1.0).abs() < 1e-12, "step {step}");
        }
        assert_eq!(policy.density_at(10), 1e-3);
        assert_eq!(policy.density_at(u64::MAX), 1e-3);
        // Sample and limit follow it.
        let n = 1 << 20;
        assert_eq!(policy.sample_size(n, 0), 1000);
        assert_eq!(policy.limit(n, 0), Some(n / 2));
        assert_eq!(policy.sample_size(n, 10), 249_899);
        assert_eq!(policy.limit(n, 10), Some(2 * 1049));
        // Rounding never takes it below the density asked for.
        for steps in 1..200 {
            let just_below = 0.25f64.next_down();
            let policy = Quantile::new(just_below).unwrap();
            let policy = policy.with_warm_up(steps).unwrap();
            assert!((0..steps).all(|step| policy.density_at(step) >= just_below));
        }
        let none = Quantile::new(1e-3).unwrap().with_warm_up(0).unwrap();
        assert_eq!(none.density_at(0), 1e-3);
        for density in [0.25, 1.0] {
            assert_eq!(
                Quantile::new(density).unwrap().with_warm_up(5).err(),
                Some(PolicyError::WarmUp { density })
            );
        }
    }

    #[test]
    fn a_floor_is_kept_and_the_mean_is_of_what_lies_above_it() {
        let sample = [5.0, 3.0, 0.5, 0.25, 0.125];
        let mut policy = Quantile::new(1.0).unwrap().with_floor(2.5).unwrap();
        let unit = policy.unit(&input(5, &sample));
        assert_eq!((unit.t(), unit.v()), (2.5, 4.0));
        let dead = policy.unit(&input(5, &[0.0; 5]));
        assert_eq!((dead.t(), dead.v()), (2.5, 2.5));
        let none = policy.unit(&input(0, &[]));
        assert_eq!((none.t(), none.v()), (2.5, 2.5));
        for found in [0.0, -1.0, f32::INFINITY, 1e38] {
            assert_eq!(
                Quantile::default().with_floor(found).err(),
                Some(PolicyError::Threshold { found })
            );
        }
        assert!(Quantile::default().with_floor(f32::NAN).is_err());
    }

    #[test]
    fn the_limit_can_be_another_one_or_none() {
        let policy = Quantile::default().with_limit(7);
        assert_eq!(policy.limit(1 << 20, 0), Some(7));
        assert_eq!(policy.without_limit().limit(1 << 20, 0), None);
    }
}
