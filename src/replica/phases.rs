//! The items of a reduction over the rings, in their one order.
//!
//! *Flat*: every rank publishes all of its values and folds everybody's. *Scattered* (reduce-scatter, then all-gather):
//! each chunk has a slice for each rank; a rank folds everybody's values of its own slice only and publishes what came
//! out. The items are D0 D1 R0 D2 R1 .. then, D(c) a rank's contribution to chunk c and R(c) its reduced slice of it: a
//! contribution ahead, so that nobody waits for a slice that was only just folded. R(c) needs D(c) of all ranks, which
//! come before it; so this is a fixed list whose publication depends only on takes of lower items, as the
//! [progress rule](super::progress) wants it.

use crate::shm::sync::{Site, mutant};
use std::ops::Range;

/// What an item is, with the number of its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// A rank's own values.
    Contribution(u64),
    /// The reduced values of a rank's own slice.
    Reduced(u64),
}

/// The items of one reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    chunks: u64,
    scattered: bool,
}

impl Phases {
    /// Those of `chunks` chunks.
    #[must_use]
    pub fn new(chunks: u64, scattered: bool) -> Self {
        Self { chunks, scattered }
    }

    /// How many items there are.
    #[must_use]
    pub fn items(self) -> u64 {
        if self.scattered {
            2 * self.chunks
        } else {
            self.chunks
        }
    }

    /// What item number `at`, below [`items`](Self::items), is.
    #[must_use]
    pub fn item(self, at: u64) -> Item {
        if !self.scattered {
            return Item::Contribution(at);
        }
        if at + 1 == self.items() {
            return Item::Reduced(self.chunks - 1);
        }
        match (at, at % 2) {
            (0, _) => Item::Contribution(0),
            (_, 1) => Item::Contribution(at.div_ceil(2)),
            _ => Item::Reduced(at / 2 - 1),
        }
    }

    /// Whether item `at` may be published by a rank that takes item `taking` next: a reduced slice only when all ranks'
    /// contributions to its chunk have been taken, that is: folded.
    #[must_use]
    pub fn may_publish(self, at: u64, taking: u64) -> bool {
        match self.item(at) {
            Item::Contribution(_) => true,
            Item::Reduced(_) if mutant(Site::ReducedTooEarly) => true,
            Item::Reduced(chunk) => taking > self.contribution(chunk),
        }
    }

    /// The number of a chunk's contribution.
    fn contribution(self, chunk: u64) -> u64 {
        if self.scattered && chunk > 0 {
            2 * chunk - 1
        } else {
            chunk
        }
    }
}

/// Which of `length` elements belong to `rank`: slices as equal as whole lines of 16 elements allow; the last ones may
/// be empty.
#[must_use]
pub fn slice(length: usize, rank: usize, world_size: usize) -> Range<usize> {
    const LINE: usize = 16;
    let each = length.div_ceil(LINE).div_ceil(world_size.max(1)) * LINE;
    let start = (rank * each).min(length);
    start..(start + each).min(length)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Item, Phases, slice};

    #[test]
    fn a_contribution_is_always_one_ahead_of_the_reduced_slice() {
        use Item::{Contribution as D, Reduced as R};
        let items = |chunks: u64| -> Vec<Item> {
            let phases = Phases::new(chunks, true);
            (0..phases.items()).map(|at| phases.item(at)).collect()
        };
        assert_eq!(items(0), []);
        assert_eq!(items(1), [D(0), R(0)]);
        assert_eq!(items(2), [D(0), D(1), R(0), R(1)]);
        assert_eq!(items(4), [D(0), D(1), R(0), D(2), R(1), D(3), R(2), R(3)]);
        let flat = Phases::new(3, false);
        assert_eq!(flat.items(), 3);
        assert_eq!(flat.item(2), D(2));
    }

    #[test]
    fn a_reduced_slice_waits_for_all_contributions_to_its_chunk_and_for_nothing_else() {
        let phases = Phases::new(4, true);
        for at in 0..phases.items() {
            let least = (0..=at).find(|&taking| phases.may_publish(at, taking));
            let expected = match phases.item(at) {
                Item::Contribution(_) => 0,
                Item::Reduced(chunk) => {
                    let contribution = Item::Contribution(chunk);
                    1 + (0..at)
                        .find(|&before| phases.item(before) == contribution)
                        .expect("it comes before")
                }
            };
            assert_eq!(least, Some(expected), "item {at}");
        }
    }

    #[test]
    fn slices_cover_a_chunk_without_gap_or_overlap() {
        for length in [0, 1, 15, 16, 17, 1000, 32_768] {
            for world_size in [1, 2, 3, 5, 8, 255] {
                let mut end = 0;
                for rank in 0..world_size {
                    let slice = slice(length, rank, world_size);
                    assert!(slice.start == end && slice.end >= end);
                    end = slice.end;
                }
                assert_eq!(end, length);
            }
        }
    }
}
