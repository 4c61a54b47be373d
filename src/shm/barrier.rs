//! A barrier of one word a rank.
//!
//! ```text
//!  63        32   31   30      0
//! [  identity |raised| number  ]      two of them for each rank: one for even numbers, one for odd ones
//! ```
//!
//! Every rank counts its operations. To arrive at number n it stores n, what it has come for and whether it has a flag up
//! into its own word; all have arrived when every rank's word says n. No word has two writers and none is ever reset: an
//! arrival costs one store, and travels to each waiter in one hand-over. A central counter takes two, the arrival and the
//! release, and the last arriver's exchange competes with the looks of those who wait.
//!
//! Of the number 31 bits are kept, and the bits above are added to the identity: a word that a rank wrote 2^31 operations
//! ago, or never, does not pass for an arrival. It looks like one with another identity: who sees a [`Look::Mismatch`] asks
//! the ranks what they have come for before it believes it.
//!
//! Nobody can arrive at n + 2 before everybody has passed n + 1, so nobody overwrites a word of number n that somebody
//! still looks for: hence two words. Whoever waits knows who is missing.

use super::sync::{AtomicU64, Ordering, Site, mutant, ord};

const NUMBER_MASK: u64 = (1 << 31) - 1;
const RAISED: u64 = 1 << 31;
const IDENTITY: u32 = 32;

/// One rank's words. They belong on lines of their own: all others look at them while they wait.
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | its rank | every rank | store Release, load Acquire | 8, 9, 10 |
#[derive(Debug, Default)]
#[repr(C)]
pub struct Arrival {
    words: [AtomicU64; 2],
}

/// Proof of arrival.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Ticket {
    number: u64,
    identity: u32,
}

/// What a look at all ranks' words says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// This rank is missing, and perhaps others after it.
    Waiting {
        /// The lowest rank that is missing.
        rank: usize,
    },
    /// All have arrived with the same identity.
    Passed {
        /// Some of them with a raised flag.
        stop: bool,
    },
    /// All have arrived, not all with the same identity; or one has not, and its word is 2^31 operations old.
    Mismatch {
        /// Some of them with a raised flag.
        stop: bool,
    },
}

/// An identity with what the word does not keep of the number.
fn marked(identity: u32, number: u64) -> u32 {
    identity.wrapping_add((number >> 31) as u32)
}

fn place(number: u64) -> usize {
    if mutant(Site::OneArrivalWord) {
        0
    } else {
        (number & 1) as usize
    }
}

impl Arrival {
    /// Has not arrived anywhere.
    pub fn new() -> Self {
        Self {
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Arrives at barrier `number`, above 0 and higher than the one before, having come for `identity`. `raised`: with a
    /// flag up. A rank must have seen all others arrive at its last barrier before it arrives at the next but one.
    pub fn arrive(&self, number: u64, identity: u32, raised: bool) -> Ticket {
        let raised = if raised { RAISED } else { 0 };
        let identity = marked(identity, number);
        let word = (u64::from(identity) << IDENTITY) | raised | (number & NUMBER_MASK);
        // Release publishes what this rank wrote before. Pairs with `look`.
        self.words[place(number)].store(word, ord(Site::Arrival, Ordering::Release));
        Ticket { number, identity }
    }
}

impl Ticket {
    /// Whether all have arrived; `arrivals` are all ranks', this one's included, in rank order. One Acquire load each.
    ///
    /// Since all look at the same words, all see the same.
    #[inline]
    pub fn look<'a>(self, arrivals: impl Iterator<Item = &'a Arrival>) -> Look {
        let (mut same, mut stop) = (true, false);
        for (rank, arrival) in arrivals.enumerate() {
            // Acquire: what the rank wrote before it arrived is seen by whoever passes. Pairs with `arrive`.
            let word =
                arrival.words[place(self.number)].load(ord(Site::ArrivalLook, Ordering::Acquire));
            if word & NUMBER_MASK != self.number & NUMBER_MASK {
                return Look::Waiting { rank };
            }
            same &= (word >> IDENTITY) as u32 == self.identity;
            stop |= word & RAISED != 0;
        }
        if same {
            Look::Passed { stop }
        } else {
            Look::Mismatch { stop }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// All arrive one after another, each seeing who is missing; what all see in the end.
    fn all_arrive(
        arrivals: &[Arrival],
        number: u64,
        identity: impl Fn(usize) -> u32,
        raised: impl Fn(usize) -> bool,
    ) -> Look {
        let mut tickets: Vec<Ticket> = Vec::new();
        for (rank, arrival) in arrivals.iter().enumerate() {
            for ticket in &tickets {
                assert_eq!(ticket.look(arrivals.iter()), Look::Waiting { rank });
            }
            tickets.push(arrival.arrive(number, identity(rank), raised(rank)));
        }
        let look = |ticket: &Ticket| ticket.look(arrivals.iter());
        let first = look(&tickets[0]);
        assert!(tickets.iter().all(|ticket| look(ticket) == first));
        first
    }

    #[test]
    fn all_pass_when_the_last_has_arrived_whatever_the_number() {
        for world_size in [1, 2, 3, 8, 255] {
            let arrivals: Vec<Arrival> = (0..world_size).map(|_| Arrival::new()).collect();
            for number in (1..5)
                .chain((1 << 31) - 2..(1 << 31) + 3)
                .chain((1 << 32) - 2..(1 << 32) + 3)
                .chain(u64::MAX - 3..=u64::MAX)
            {
                let raised = number % 3 == 0;
                assert_eq!(
                    all_arrive(&arrivals, number, |_| 77, |rank| raised && rank == 0),
                    Look::Passed { stop: raised }
                );
            }
        }
    }

    #[test]
    fn one_rank_with_another_identity_is_a_mismatch_for_all() {
        for world_size in [2, 3, 255] {
            let arrivals: Vec<Arrival> = (0..world_size).map(|_| Arrival::new()).collect();
            for (number, odd) in (1..).zip([0, 1, world_size - 1]) {
                let look = all_arrive(&arrivals, number, |rank| u32::from(rank == odd), |_| true);
                assert_eq!(look, Look::Mismatch { stop: true });
            }
            let look = all_arrive(&arrivals, 1000, |_| 5, |_| false);
            assert_eq!(
                look,
                Look::Passed { stop: false },
                "a mismatch is over with its barrier"
            );
        }
    }

    #[test]
    fn a_rank_that_has_arrived_at_the_next_barrier_does_not_hide_this_one() {
        let arrivals = [Arrival::new(), Arrival::new()];
        let slow = arrivals[0].arrive(7, 1, false);
        let _ = arrivals[1].arrive(7, 1, true);
        let _ = arrivals[1].arrive(8, 2, false);
        assert_eq!(slow.look(arrivals.iter()), Look::Passed { stop: true });
    }

    #[test]
    fn a_word_of_long_ago_passes_for_no_arrival() {
        for number in [1 << 31, (1 << 31) + 1, 5 << 31, 1 << 63] {
            let arrivals = [Arrival::new(), Arrival::new()];
            let slow = arrivals[0].arrive(number, 7, false);
            // Never, and with the same identity in numbers that have the same lower bits.
            assert!(matches!(slow.look(arrivals.iter()), Look::Mismatch { .. }) || number % 2 == 1);
            let _ = arrivals[1].arrive(number - (1 << 31), 7, false);
            assert_eq!(
                slow.look(arrivals.iter()),
                Look::Mismatch { stop: false },
                "{number}"
            );
            let _ = arrivals[1].arrive(number, 7, false);
            assert_eq!(slow.look(arrivals.iter()), Look::Passed { stop: false });
        }
    }

    #[test]
    fn any_words_give_some_look() {
        let arrivals = [Arrival::new(), Arrival::new()];
        for word in [0, 1, u64::MAX, NUMBER_MASK, RAISED, 7 | RAISED] {
            let ticket = arrivals[0].arrive(7, 3, false);
            arrivals[1].words[1].store(word, Ordering::Relaxed);
            let expected = match word {
                word if word & NUMBER_MASK != 7 => Look::Waiting { rank: 1 },
                _ => Look::Mismatch { stop: true },
            };
            assert_eq!(ticket.look(arrivals.iter()), expected);
        }
    }
}
