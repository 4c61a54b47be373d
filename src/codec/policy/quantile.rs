//! The threshold that makes a given density of this same step's elements hits.

use super::{PolicyError, PolicyInput, ThresholdPolicy};
use crate::codec::{Unit, cut8};

/// Expected hits in the sample: the density's error is about one in the square root of these, 6 %.
const SAMPLE_HITS: usize = 250;
/// No vector is asked for fewer hits than this.
const LEAST_HITS: usize = 32;

/// What a hit sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Magnitude {
    /// The mean |s| of the hits, at most two thresholds (sparse ternary compression, Sattler 2019): the same bytes move
    /// the parameters further.
    #[default]
    Mean,
    /// The threshold.
    Threshold,
}

/// The threshold that makes a given density of this same step's elements hits, from a sample of them.
///
/// With `H = min(n, max(32, round(density n)))` hits wanted of `n` elements, the sample has at least 250 expected hits,
/// or all elements, and the threshold is the sample's k-th largest, `k = round(H m / n)`, at least 1. So the density
/// is right from the first step on, whatever the scale. The limit is `2 H`: where many elements are equal, as in an
/// adaptive optimizer's first steps, a threshold alone would let all of them through.
#[derive(Clone, Debug)]
pub struct Quantile {
    density: f64,
    magnitude: Magnitude,
    /// The sample's larger elements, and their bits; kept for their memory.
    larger: Vec<f32>,
    ordered: Vec<u32>,
}

impl Default for Quantile {
    /// Density 1e-2.
    fn default() -> Quantile {
        Quantile {
            density: 1e-2,
            magnitude: Magnitude::default(),
            larger: Vec::new(),
            ordered: Vec::new(),
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

    /// With this magnitude.
    #[must_use]
    pub fn with_magnitude(self, magnitude: Magnitude) -> Quantile {
        Quantile { magnitude, ..self }
    }

    /// Hits wanted of `elements`.
    fn wanted(&self, elements: usize) -> usize {
        let hits = (self.density * elements as f64).round() as usize;
        hits.max(LEAST_HITS).min(elements)
    }

    /// The k-th largest of the sample. Afterwards `larger` holds all elements that are at least that, or that cut to 8
    /// significant bits, and perhaps more, in index order.
    ///
    /// `last` is the step's before, and only a guess: elements of about its size are looked at first, usually a few
    /// hundred instead of a quarter of a million. If there are not k of them, more are.
    fn kth_largest(&mut self, sample: &[f32], k: usize, last: Option<f32>) -> f32 {
        let guesses = last
            .into_iter()
            .flat_map(|t| [0.75 * t, 0.25 * t])
            .map(cut8);
        for floor in guesses.chain([0.0]) {
            collect_from(sample, floor, &mut self.larger);
            if self.larger.len() >= k {
                break;
            }
        }
        self.ordered.clear();
        self.ordered
            .extend(self.larger.iter().map(|x| x.abs().to_bits()));
        // All are at least +0, so bits and numbers have the same order.
        if self.ordered.is_empty() {
            return 0.0;
        }
        let at = self.ordered.len().saturating_sub(k);
        let (_, &mut bits, _) = self.ordered.select_nth_unstable(at);
        f32::from_bits(bits)
    }
}

/// The threshold of 8 significant bits next to `kth`, the k-th largest of a sample, with which the number of hits in the
/// sample is nearest to k; of two equally near, and where
/// the upper one has no hits, the lower one. `larger`: all elements of the sample that are at least `kth`
/// cut to 8 significant bits, or more.
///
/// Error feedback leaves many elements just below the threshold of the step before. Always cutting down would let
/// several per cent more of them through than asked for.
fn nearest_threshold(larger: &[f32], k: usize, kth: f32) -> f32 {
    let below = Unit::nearest_threshold(kth);
    let above = Unit::nearest_threshold(f32::from_bits(below.to_bits() + 0x1_0000));
    let hits = |t: f32| larger.iter().filter(|&&x| x >= t).count();
    let (many, few) = (hits(below), hits(above));
    if few > 0 && k.saturating_sub(few) < many.saturating_sub(k) {
        above
    } else {
        below
    }
}

/// Replaces `larger` by the elements of `sample` that are at least `floor`, in their order.
fn collect_from(sample: &[f32], floor: f32, larger: &mut Vec<f32>) {
    larger.clear();
    for few in sample.chunks(32) {
        // Most of the time none is, and this needs no branch for each.
        if few.iter().fold(false, |any, &x| any | (x >= floor)) {
            larger.extend(few.iter().filter(|&&x| x >= floor));
        }
    }
}

/// The f64 mean, in index order, of the elements of at least `t`; `t` if there is none.
fn mean_from(elements: &[f32], t: f32) -> f64 {
    let (mut sum, mut count) = (0f64, 0u32);
    for &x in elements {
        if x >= t {
            sum += f64::from(x);
            count += 1;
        }
    }
    if count == 0 {
        f64::from(t)
    } else {
        sum / f64::from(count)
    }
}

impl ThresholdPolicy for Quantile {
    fn kind(&self) -> &'static str {
        "Quantile"
    }

    fn sample_size(&self, elements: usize, _step: u64) -> usize {
        let hits = self.wanted(elements);
        if hits <= SAMPLE_HITS {
            return elements;
        }
        let size = (SAMPLE_HITS as u128 * elements as u128).div_ceil(hits as u128);
        size as usize
    }

    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        let (elements, sample) = (input.elements, input.sample);
        let share = self.wanted(elements) as f64 / elements.max(1) as f64;
        let k = (share * sample.len() as f64).round() as usize;
        if sample.is_empty() {
            return Unit::nearest(Unit::LEAST, Unit::LEAST);
        }
        let k = k.clamp(1, sample.len());
        let kth = self.kth_largest(sample, k, input.last.map(|last| last.unit.t()));
        let t = nearest_threshold(&self.larger, k, kth);
        match self.magnitude {
            Magnitude::Threshold => Unit::nearest(t, t),
            Magnitude::Mean => {
                Unit::nearest(t, mean_from(&self.larger, t).min(2.0 * f64::from(t)) as f32)
            }
        }
    }

    fn limit(&self, elements: usize, _step: u64) -> Option<usize> {
        Some(self.wanted(elements).saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        for density in [1e-3, 1e-2, 0.25, 1.0] {
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
        // Fewer hits than wanted are not 0: the others of the sample count for the quantile too.
        let mut few = [0.0; 1000];
        few[7] = 3.0;
        assert_eq!(
            quantile.unit(&input(1000, &few)),
            Unit::nearest(Unit::LEAST, f32::MAX)
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
    fn the_threshold_of_eight_bits_lies_on_the_side_whose_hits_are_nearer_to_those_wanted() {
        // 8-bit neighbours 1.0 and 1.0078125; the third largest, 1.006, lies between them.
        let crowded = [1.02, 1.01, 1.006, 1.004, 1.003, 1.001];
        assert_eq!(nearest_threshold(&crowded, 3, 1.006), 1.007_812_5);
        let sparse = [1.02, 1.01, 1.006, 0.5];
        assert_eq!(nearest_threshold(&sparse, 3, 1.006), 1.0);
        let all_just_below = [1.006, 1.004, 1.003, 1.001];
        assert_eq!(nearest_threshold(&all_just_below, 1, 1.006), 1.0);
        assert_eq!(nearest_threshold(&[0.0; 4], 2, 0.0), Unit::LEAST);
    }
}
