//! A rank's pace: how many asynchronous steps it has made since the last settle, and whether it is stepping at all.
//!
//! Nobody may be far ahead of the slowest rank that is stepping. One that is inside an operation, or in the end of its
//! epoch, is not: it may be waiting for the very rank that would wait for it. (Of operations that both have been in
//! nobody waits for anybody any more.)

use super::sync::{AtomicU64, Ordering, Site, mutant, ord};

/// What a rank's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Steps since the last settle.
    pub steps: u64,
    /// Whether the rank is outside of every operation, on its way to its next step.
    pub stepping: bool,
}

/// The word: the lowest bit says whether the rank is stepping, the others count.
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | its rank | everybody | store Release, load Acquire; who waits for a change is woken by the [bells](super::bell) | 19 |
///
/// Whoever sees that a rank has gone into an operation also sees which one: it is announced before. That it has gone into
/// a settle is stored before its marker is published, so whoever has taken the marker never sees a count of the time
/// before.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Pace(AtomicU64);

impl Pace {
    /// Of a rank that has not begun.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The rank has made so many steps and goes on to the next one.
    #[inline]
    pub fn stepping(&self, steps: u64) {
        self.0
            .store(steps << 1 | 1, ord(Site::PaceStore, Ordering::Release));
    }

    /// The rank goes into an operation, which it has announced. Others may wait for that: ring the bells.
    #[inline]
    pub fn away(&self, steps: u64) {
        if !mutant(Site::AwayForgotten) {
            // Release: publishes the announcement. Pairs with the load in `get`.
            self.0
                .store(steps << 1, ord(Site::PaceStore, Ordering::Release));
        }
    }

    /// One Acquire load.
    #[inline]
    pub fn get(&self) -> Seen {
        let word = self.0.load(ord(Site::PaceLoad, Ordering::Acquire));
        Seen {
            steps: word >> 1,
            stepping: word & 1 != 0,
        }
    }
}

/// Of those that are stepping, who has made the fewest steps, and how many. `None` if nobody is.
pub fn slowest(paces: impl Iterator<Item = (usize, Seen)>) -> Option<(usize, u64)> {
    paces
        .filter(|(_, seen)| seen.stepping)
        .map(|(rank, seen)| (rank, seen.steps))
        .min_by_key(|(_, steps)| *steps)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_count_survives_going_away_and_coming_back() {
        let pace = Pace::new();
        let seen = |steps, stepping| Seen { steps, stepping };
        assert_eq!(pace.get(), seen(0, false));
        pace.stepping(7);
        assert_eq!(pace.get(), seen(7, true));
        pace.away(7);
        assert_eq!(pace.get(), seen(7, false));
    }

    #[test]
    fn the_slowest_is_sought_among_those_that_step() {
        let paces = |all: &[(u64, bool)]| {
            let paces = all
                .iter()
                .map(|&(steps, stepping)| Seen { steps, stepping });
            slowest(paces.enumerate())
        };
        assert_eq!(paces(&[]), None);
        assert_eq!(paces(&[(3, false), (9, false)]), None);
        assert_eq!(
            paces(&[(3, false), (9, true), (5, true), (5, true)]),
            Some((2, 5))
        );
    }
}
