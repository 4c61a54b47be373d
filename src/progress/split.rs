//! How the remaining positions of a loop are split into iterations, and an iteration's positions over the replicas.
//!
//! An iteration takes the next positions, as many as all replicas take together, or what is left. Each replica's part is
//! contiguous; parts differ by one at most, and so does what each replica has had since the loop began: the larger parts go
//! round. So all replicas make the same number of iterations, no position is padded or given twice, and whoever knows how
//! many iterations a rank has begun knows which positions it has had.

use super::positions::{Positions, Sequence};
use std::ops::Range;

/// More ranges than a state may have: ranks that are this far apart in one loop are none that follow the rules.
const MOST_RANGES: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Split {
    /// What was done before.
    before: Positions,
    remaining: Sequence,
    /// How many positions all replicas take in an iteration; at least 1.
    together: u64,
    world_size: u64,
}

impl Split {
    /// Of the positions below `samples` that are not in `before`.
    pub(crate) fn new(samples: u64, before: Positions, together: u64, world_size: usize) -> Self {
        Self {
            remaining: before.others(samples),
            before,
            together: together.max(1),
            world_size: world_size.max(1) as u64,
        }
    }

    /// What was done before.
    pub(crate) fn before(&self) -> &Positions {
        &self.before
    }

    /// How many iterations there are.
    pub(crate) fn iterations(&self) -> u64 {
        self.remaining.len().div_ceil(self.together)
    }

    /// How many positions there are.
    pub(crate) fn len(&self) -> u64 {
        self.remaining.len()
    }

    /// Which elements of the sequence an iteration takes; an empty range past the end.
    pub(crate) fn window(&self, iteration: u64) -> Range<u64> {
        let start = iteration.saturating_mul(self.together).min(self.len());
        start..start.saturating_add(self.together).min(self.len())
    }

    /// Which of them are a rank's.
    fn part(&self, iteration: u64, rank: usize) -> Range<u64> {
        let window = self.window(iteration);
        let (each, more) = (
            (window.end - window.start) / self.world_size,
            (window.end - window.start) % self.world_size,
        );
        // The ranks from `first` on, around the end, have one more each.
        let first = (iteration % self.world_size) * (self.together % self.world_size);
        let first = first % self.world_size;
        let around = (first + more).saturating_sub(self.world_size);
        let larger = |rank: u64| rank.min(around) + rank.clamp(first, first + more) - first;
        let before = |rank: u64| window.start + rank * each + larger(rank);
        before(rank as u64)..before(rank as u64 + 1)
    }

    /// The ranges of positions that are a rank's in an iteration.
    pub(crate) fn positions(
        &self,
        iteration: u64,
        rank: usize,
    ) -> impl Iterator<Item = Range<u64>> + '_ {
        self.remaining.slice(self.part(iteration, rank))
    }

    /// The positions that are done when each rank has begun so many iterations. `None` if the ranks are further apart than
    /// any that follow the rules.
    pub(crate) fn done(&self, begun: &[u64]) -> Option<Positions> {
        let least = begun.iter().copied().min().unwrap_or(0);
        let ahead: u64 = begun
            .iter()
            .map(|begun| begun.min(&self.iterations()).saturating_sub(least))
            .fold(0, u64::saturating_add);
        if ahead > MOST_RANGES {
            return None;
        }
        let mut pieces = self.before.ranges().to_vec();
        pieces.extend(self.remaining.slice(0..self.window(least).start));
        for (rank, &begun) in begun.iter().enumerate() {
            for iteration in least..begun.min(self.iterations()) {
                pieces.extend(self.positions(iteration, rank));
            }
        }
        Some(Positions::of(pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::{Positions, Split};
    use proptest::prelude::*;

    fn all(split: &Split, iteration: u64, world_size: usize) -> Vec<Vec<u64>> {
        let part = |rank| split.positions(iteration, rank).flatten().collect();
        (0..world_size).map(part).collect()
    }

    proptest! {
        #[test]
        fn parts_are_even_and_each_position_is_in_one(
            samples in 0..200_u64,
            pieces in prop::collection::vec((0..200_u64, 0..40_u64), 0..4),
            together in 1..50_u64,
            world_size in 1..9_usize,
        ) {
            let pieces = pieces.into_iter().map(|(at, n)| at.min(samples)..(at + n).min(samples));
            let before = Positions::of(pieces.collect());
            let split = Split::new(samples, before.clone(), together, world_size);
            let mut found: Vec<u64> = Vec::new();
            let mut had = vec![0; world_size];
            for iteration in 0..split.iterations() {
                let parts = all(&split, iteration, world_size);
                let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
                for (had, size) in had.iter_mut().zip(&sizes) {
                    *had += size;
                }
                for sizes in [&sizes, &had] {
                    prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                }
                let sum = sizes.iter().sum::<usize>() as u64;
                prop_assert!(sum == together || iteration + 1 == split.iterations() && sum > 0 && sum < together);
                found.extend(parts.iter().flatten());
            }
            let expected: Vec<u64> = before.others(samples).slice(0..samples).flatten().collect();
            prop_assert_eq!(found, expected);
            prop_assert!(all(&split, split.iterations(), world_size).concat().is_empty());
        }

        #[test]
        fn what_is_done_is_what_each_rank_has_begun(
            samples in 0..150_u64,
            together in 1..30_u64,
            begun in prop::collection::vec(0..12_u64, 1..6),
        ) {
            let before = Positions::of(vec![9.min(samples)..5.min(samples), 3.min(samples)..9.min(samples)]);
            let split = Split::new(samples, before.clone(), together, begun.len());
            let mut pieces = before.ranges().to_vec();
            for (rank, begun) in begun.iter().enumerate() {
                pieces.extend((0..*begun).flat_map(|iteration| split.positions(iteration, rank)));
            }
            prop_assert_eq!(split.done(&begun), Some(Positions::of(pieces)));
        }
    }

    #[test]
    fn ranks_that_are_absurdly_far_apart_are_refused_at_once() {
        let split = Split::new(u64::MAX, Positions::default(), 1, 2);
        assert_eq!(split.done(&[0, u64::MAX]), None);
        let done = split.done(&[1 << 60, 1 << 60]).unwrap();
        assert_eq!(
            done,
            Positions::from_numbers(&[0, 1 << 60], 1 << 60).unwrap()
        );
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let split = Split::new(u64::MAX, Positions::default(), u64::MAX, 255);
        assert_eq!(split.iterations(), 1);
        let last = split.positions(0, 254).last().unwrap();
        assert_eq!(last.end, u64::MAX);
        assert!(split.window(u64::MAX).is_empty());
    }
}
