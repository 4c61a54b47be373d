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
/// sample is nearest to k; of two equally near the lower one. `larger`: all elements of the sample that are at least `kth`
/// cut to 8 significant bits, or more.
///
/// Error feedback leaves many elements just below the threshold of the step before. Always cutting down would let
/// several per cent more of them through than asked for.
fn nearest_threshold(larger: &[f32], k: usize, kth: f32) -> f32 {
    let below = Unit::nearest_threshold(kth);
    let above = Unit::nearest_threshold(f32::from_bits(below.to_bits() + 0x1_0000));
    let hits = |t: f32| larger.iter().filter(|&&x| x >= t).count();
    let (many, few) = (hits(below), hits(above));
    if k.saturating_sub(few) < many.saturating_sub(k) {
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

    fn limit(&self, elements: usize) -> Option<usize> {
        Some(self.wanted(elements).saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_of_eight_bits_lies_on_the_side_whose_hits_are_nearer_to_those_wanted() {
        // 8-bit neighbours 1.0 and 1.0078125; the third largest, 1.006, lies between them.
        let crowded = [1.02, 1.01, 1.006, 1.004, 1.003, 1.001];
        assert_eq!(nearest_threshold(&crowded, 3, 1.006), 1.007_812_5);
        let sparse = [1.02, 1.01, 1.006, 0.5];
        assert_eq!(nearest_threshold(&sparse, 3, 1.006), 1.0);
        assert_eq!(nearest_threshold(&[0.0; 4], 2, 0.0), Unit::LEAST);
    }
}
