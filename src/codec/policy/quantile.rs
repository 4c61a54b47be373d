//! The threshold that makes a given density of this same step's elements hits.

use super::{PolicyError, PolicyInput, ThresholdPolicy};
use crate::codec::Unit;

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
    /// Bits of the sample's larger elements; kept for its memory.
    larger: Vec<u32>,
}

impl Default for Quantile {
    /// Density 1e-2.
    fn default() -> Quantile {
        Quantile {
            density: 1e-2,
            magnitude: Magnitude::default(),
            larger: Vec::new(),
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

    /// The k-th largest of the sample, in bits: all are at least +0, so bits and numbers have the same order.
    ///
    /// Only elements of at least `floor` are selected among, if there are k of those: usually a few hundred instead of
    /// a quarter of a million.
    fn kth_largest(&mut self, sample: &[f32], k: usize, floor: f32) -> f32 {
        collect_from(sample, floor.to_bits(), &mut self.larger);
        if self.larger.len() < k {
            collect_from(sample, 0, &mut self.larger);
        }
        let at = self.larger.len() - k;
        let (_, &mut bits, _) = self.larger.select_nth_unstable(at);
        f32::from_bits(bits)
    }

    /// The threshold of 8 significant bits next to `kth`, the k-th largest of the sample, with which the number of the
    /// sample's hits is nearest to k; of two equally near the lower one.
    ///
    /// Error feedback leaves many elements just below the threshold of the step before. Always cutting down would let
    /// several per cent more of them through than asked for.
    fn nearest_threshold(&self, sample: &[f32], k: usize, kth: f32) -> f32 {
        let below = Unit::nearest_threshold(kth);
        let above = Unit::nearest_threshold(f32::from_bits(below.to_bits() + 0x1_0000));
        let hits = |t: f32| sample.iter().filter(|&&x| x >= t).count();
        let (many, few) = (hits(below), hits(above));
        if k.saturating_sub(few) < many.saturating_sub(k) {
            above
        } else {
            below
        }
    }
}

/// Replaces `larger` by the bits of the elements of `sample` that are at least `floor`.
fn collect_from(sample: &[f32], floor: u32, larger: &mut Vec<u32>) {
    // Every element is written and the place moves on only for those that count: no branch to guess.
    larger.clear();
    larger.resize(sample.len(), 0);
    let mut count = 0;
    for x in sample {
        let bits = x.to_bits();
        larger[count] = bits;
        count += usize::from(bits >= floor);
    }
    larger.truncate(count);
}

/// The f64 mean, in index order, of the sample's elements of at least `t`; `t` if there is none.
fn mean_from(sample: &[f32], t: f32) -> f64 {
    let (mut sum, mut count) = (0f64, 0u32);
    for &x in sample {
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

    fn sample_size(&self, elements: usize) -> usize {
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
        let floor = input.last.map_or(0.0, |last| last.unit.t() / 2.0);
        let k = k.clamp(1, sample.len());
        let kth = self.kth_largest(sample, k, floor);
        let t = self.nearest_threshold(sample, k, kth);
        match self.magnitude {
            Magnitude::Threshold => Unit::nearest(t, t),
            Magnitude::Mean => {
                Unit::nearest(t, mean_from(sample, t).min(2.0 * f64::from(t)) as f32)
            }
        }
    }

    fn limit(&self, elements: usize) -> Option<usize> {
        Some(self.wanted(elements).saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_of_eight_bits_lies_on_the_side_whose_hits_are_nearer_to_those_wanted() {
        let quantile = Quantile::default();
        // 8-bit neighbours 1.0 and 1.0078125; the third largest, 1.006, lies between them.
        let crowded = [1.02, 1.01, 1.006, 1.004, 1.003, 1.001];
        assert_eq!(quantile.nearest_threshold(&crowded, 3, 1.006), 1.007_812_5);
        let sparse = [1.02, 1.01, 1.006, 0.5];
        assert_eq!(quantile.nearest_threshold(&sparse, 3, 1.006), 1.0);
        assert_eq!(quantile.nearest_threshold(&[0.0; 4], 2, 0.0), Unit::LEAST);
    }
}
