//! The threshold that makes a given density of a step's elements hits, from a sample of them.

use crate::codec::{Unit, cut8};

/// Expected hits in the sample: the density's error is about one in the square root of these, 6 %.
const SAMPLE_HITS: usize = 250;
/// No vector is asked for fewer hits than this.
const LEAST_HITS: usize = 32;

/// Hits wanted of `elements` at `density`.
pub(super) fn wanted(density: f64, elements: usize) -> usize {
    let hits = (density * elements as f64).round() as usize;
    hits.max(LEAST_HITS).min(elements)
}

/// Hits wanted of a sample of `elements`, at least 1.
fn wanted_of(density: f64, elements: usize, sample: &[f32]) -> usize {
    let share = wanted(density, elements) as f64 / elements.max(1) as f64;
    let k = (share * sample.len() as f64).round() as usize;
    k.clamp(1, sample.len().max(1))
}

/// Elements that a sample needs for the quantile of `density`.
pub(super) fn sample_size(density: f64, elements: usize) -> usize {
    let hits = wanted(density, elements);
    if hits <= SAMPLE_HITS {
        return elements;
    }
    let size = (SAMPLE_HITS as u128 * elements as u128).div_ceil(hits as u128);
    size as usize
}

/// A threshold with which fewer hits would send more than this many times as much keeps nearly all back.
const STALLED: f64 = 16.0;

/// The largest elements of a sample that send most together.
#[derive(Clone, Copy)]
struct Best {
    /// How many.
    hits: usize,
    /// The least of them.
    least: f32,
    /// What they send together.
    sent: f64,
}

/// The sample's larger elements, kept from step to step for their memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    larger: Vec<f32>,
    /// Their bits.
    ordered: Vec<u32>,
}

impl Selection {
    /// Makes room for samples of `size` elements asked for of `elements`, so that later ones need no memory.
    pub(super) fn reserve(&mut self, elements: usize, size: usize) {
        let most = most_sampled(elements, size);
        self.larger.clear();
        self.larger.reserve_exact(most);
        self.ordered.clear();
        self.ordered.reserve_exact(most);
    }

    /// The threshold with which `density` of `elements` are hits, of 8 significant bits; `None` where it would be 0,
    /// since fewer elements of the sample than wanted are not.
    ///
    /// `guess` is about what it is, if known, and changes only the effort.
    pub(super) fn threshold(
        &mut self,
        density: f64,
        elements: usize,
        sample: &[f32],
        guess: Option<f32>,
    ) -> Option<f32> {
        let k = wanted_of(density, elements, sample);
        let kth = self.kth_largest(sample, k, guess);
        (kth > 0.0).then(|| nearest_threshold(&self.larger, k, kth))
    }

    /// As [`threshold`](Self::threshold), but where that would send next to nothing, fewer hits are taken: as many of the
    /// wanted ones as send most together. `None` if all of the sample is 0.
    ///
    /// A hit sends at most two thresholds. So where fewer elements are not 0 than are wanted, the least threshold would
    /// send nothing at all, step after step; where fewer are not tiny, as in an embedding most of whose rows have only the
    /// tail of an old momentum, next to nothing; and in a short vector, of which [`LEAST_HITS`] are wanted whatever the
    /// density, its least element would say how much of the largest goes out.
    pub(super) fn threshold_that_sends(
        &mut self,
        density: f64,
        elements: usize,
        sample: &[f32],
        guess: Option<f32>,
    ) -> Option<f32> {
        let t = self.threshold(density, elements, sample, guess);
        let asked = (density * elements as f64).round() as usize;
        let is_short = asked < wanted(density, elements);
        let k = wanted_of(density, elements, sample);
        if let Some(t) = t
            && !is_short
        {
            return Some(self.unless_stalled(k, t));
        }
        let not_zero = self.larger.iter().filter(|&&x| x > 0.0).count();
        // A long vector's density stays near to the one asked for as long as it can.
        let near = k - k / 4;
        let fewest = if is_short || not_zero < near { 1 } else { near };
        match self.sending_most(fewest, k) {
            Some(best) if best.hits < k => Some(Unit::nearest_threshold(best.least)),
            _ => t,
        }
    }

    /// `t`, made of the last sample's k-th largest element, unless fewer hits would send more than [`STALLED`] times as
    /// much: then the threshold with which most is sent.
    fn unless_stalled(&mut self, k: usize, t: f32) -> f32 {
        let first = self.ordered.len().saturating_sub(k);
        let all: f64 = self.ordered[first..]
            .iter()
            .map(|&bits| f64::from(f32::from_bits(bits)))
            .sum();
        // No hits can send more than all there is. Half, because this sum is in any order.
        let sent = 2.0 * f64::from(t) * k as f64;
        if STALLED / 2.0 * sent > all {
            return t;
        }
        match self.sending_most(1, k) {
            Some(best) if best.sent > STALLED * sent => Unit::nearest_threshold(best.least),
            _ => t,
        }
    }

    /// How many of the last sample's k largest elements send most, but at least `fewest`, of equally much the most.
    /// `None` if there is none but 0.
    fn sending_most(&mut self, fewest: usize, k: usize) -> Option<Best> {
        let first = self.ordered.len().saturating_sub(k);
        let largest = &mut self.ordered[first..];
        largest.sort_unstable_by(|a, b| b.cmp(a));
        let (mut sum, mut best) = (0f64, None::<Best>);
        for (before, &bits) in largest.iter().enumerate() {
            let (hits, least) = (before + 1, f32::from_bits(bits));
            sum += f64::from(least);
            // Each sends the mean of all, or two thresholds.
            let sent = sum.min(2.0 * f64::from(least) * hits as f64);
            if hits >= fewest && sent > 0.0 && best.is_none_or(|best| sent >= best.sent) {
                best = Some(Best { hits, least, sent });
            }
        }
        best
    }

    /// The f64 mean, in index order, of the last sample's elements of at least `t`, the threshold made of it or a larger
    /// one; `None` if there are none.
    pub(super) fn mean_from(&self, t: f32) -> Option<f64> {
        let (mut sum, mut count) = (0f64, 0u32);
        for &x in &self.larger {
            if x >= t {
                sum += f64::from(x);
                count += 1;
            }
        }
        (count > 0).then(|| sum / f64::from(count))
    }

    /// The k-th largest of the sample. Afterwards `larger` holds all elements that are at least that, or that cut to 8
    /// significant bits, and perhaps more, in index order.
    ///
    /// Elements of about the size of `guess` are looked at first, usually a few hundred instead of a quarter of a
    /// million. If there are not k of them, more are.
    fn kth_largest(&mut self, sample: &[f32], k: usize, guess: Option<f32>) -> f32 {
        let guesses = guess
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

/// The most elements of a sample of `size` asked for of `elements`: it comes in whole runs, and as everything where that
/// is hardly more.
fn most_sampled(elements: usize, size: usize) -> usize {
    elements.min(size.saturating_add(size / 4).saturating_add(128))
}

/// The threshold of 8 significant bits next to `kth`, the k-th largest of a sample, with which the number of hits in the
/// sample is nearest to k; of two equally near, and where the upper one has no hits, the lower one. `larger`: all
/// elements of the sample that are at least `kth` cut to 8 significant bits, or more.
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
        let all_just_below = [1.006, 1.004, 1.003, 1.001];
        assert_eq!(nearest_threshold(&all_just_below, 1, 1.006), 1.0);
        assert_eq!(nearest_threshold(&[0.0; 4], 2, 0.0), Unit::LEAST);
    }

    #[test]
    fn a_sample_of_too_few_elements_that_are_not_0_has_no_threshold() {
        let mut selection = Selection::default();
        let mut sample = [0.0; 1000];
        assert_eq!(selection.threshold(1e-2, 1000, &sample, None), None);
        assert_eq!(selection.mean_from(1.0), None);
        sample[..31].fill(3.0);
        assert_eq!(selection.threshold(1e-2, 1000, &sample, None), None);
        sample[31] = 2.0;
        assert_eq!(selection.threshold(1e-2, 1000, &sample, None), Some(2.0));
        assert_eq!(selection.mean_from(2.0), Some(95.0 / 32.0));
        assert_eq!(selection.mean_from(3.5), None);
        assert_eq!(selection.threshold(1e-2, 1000, &[], None), None);
        assert_eq!(selection.threshold(1e-2, 0, &[], None), None);
        let none = [f32::NAN; 2];
        assert_eq!(selection.threshold(1e-2, 2, &none, None), None);
    }

    #[test]
    fn where_the_quantile_would_send_nothing_as_many_hits_are_taken_as_send_most() {
        let mut selection = Selection::default();
        let mut t = |density, sample: &[f32]| {
            selection.threshold_that_sends(density, sample.len(), sample, Some(0.25))
        };
        // 32 are wanted and 3 are not 0: 1.0 and 1.5 send 2.5, all three 3 times twice 2^-10.
        let mut sample = [0.0; 1000];
        (sample[3], sample[500], sample[999]) = (1.5, 2f32.powi(-10), 1.0);
        assert_eq!(t(1e-2, &sample), Some(1.0));
        // With 0.75 in its place all three send most.
        sample[500] = 0.75;
        assert_eq!(t(1e-2, &sample), Some(0.75));
        assert_eq!(t(1e-2, &[0.0; 1000]), None);
        assert_eq!(t(1e-2, &[]), None);

        // All of a short vector are wanted, and two send most.
        assert_eq!(t(1e-2, &[3.0, 2.0, 1e-6]), Some(2.0));
        // Each of two sends 2.0, and the one alone 3.9.
        assert_eq!(t(1e-2, &[-0.0, 1.0, 3.9]), Some(1.0));
        assert_eq!(t(1e-2, &[0.5, 3.9]), Some(3.890_625));
        // Three are asked for; one sends most.
        let mut uneven = [0.0; 320];
        uneven[7..11].copy_from_slice(&[1e-3, 64.0, 2e-3, 1e-3]);
        assert_eq!(t(1e-2, &uneven), Some(64.0));
        // Asked for are all, but all would send next to nothing.
        assert_eq!(t(1.0, &[3.0, 2.0, 1e-6]), Some(2.0));
        assert_eq!(t(1.0, &[3.0, 2.0, 0.5]), Some(0.5));

        // A vector long enough for its density keeps to it while 10 alone would not send more than 16 times as much.
        let mut long = [1e-2; 4000];
        long[..10].fill(1.0);
        let above = f32::from_bits(cut8(1e-2).to_bits() + 0x1_0000);
        assert_eq!(t(1e-2, &long), Some(above));
        long[10..].fill(cut8(1e-3));
        assert_eq!(t(1e-2, &long), Some(1.0));
        long[10..].fill(1e-30);
        assert_eq!(t(1e-2, &long), Some(1.0));
        let mut few = [0.0; 4000];
        few[..35].fill(0.5);
        few[..29].fill(1.0);
        few[..10].fill(64.0);
        assert_eq!(t(1e-2, &few), Some(0.5));
        few[30] = 0.0;
        few[31..].fill(0.0);
        assert_eq!(t(1e-2, &few), Some(0.5));
        few[29] = 0.0;
        assert_eq!(t(1e-2, &few), Some(64.0));
    }

    #[test]
    fn no_sample_is_larger_than_the_room_that_is_made_for_it() {
        let path = crate::codec::Path::best();
        let zeros = vec![0.0; 20_000];
        for elements in [0, 1, 79, 80, 81, 1000, 5119, 5120, 5121, 20_000] {
            for size in (0..=elements).step_by(1 + elements / 997) {
                let (zeros, mut sample) = (&zeros[..elements], Vec::new());
                path.magnitudes(zeros, zeros, size, 1, &mut sample).unwrap();
                let most = most_sampled(elements, size);
                assert!(sample.len() <= most, "{size} of {elements}");
            }
        }
    }

    #[test]
    fn room_for_the_largest_sample_is_made_once() {
        let sample = [1.0; 5000];
        let mut selection = Selection::default();
        selection.reserve(1 << 20, 4000);
        let room = (selection.larger.capacity(), selection.ordered.capacity());
        for size in [100, 1000, 5000] {
            selection.reserve(1 << 20, 4000);
            selection.threshold(1e-2, 1 << 20, &sample[..size], None);
        }
        let after = (selection.larger.capacity(), selection.ordered.capacity());
        assert_eq!(after, room);
        selection.reserve(10, 4000);
        assert_eq!(selection.larger.capacity(), room.0);
    }
}
