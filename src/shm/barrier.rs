//! A barrier in one word.
//!
//! ```text
//!  63           32 31     30       29   28        16 15     8 7        0
//! [sum of identities|poison|mismatch|stop|generation|stops    |arrivals ]
//! ```
//!
//! An arrival is one addition. The last arriver sees the whole sum: if all have come with its own identity, it is N times
//! that (up to one chance in 2^32). It closes the generation: the next number, the mismatch and stop bits, everything else
//! cleared. These bits hold until the next generation is closed, and that needs an arrival of every rank, hence of those
//! that still look.
//!
//! No field runs into its neighbour: at most N <= 255 arrivals and stops fall into one generation, the generation wraps
//! inside its 13 bits, and the sum is at the top, where its carry leaves the word.

use super::sync::{AtomicU64, Ordering, Padded, Site, mutant, ord};

const STOPS: u32 = 8;
const GENERATION: u32 = 16;
const GENERATION_MASK: u64 = (1 << 13) - 1;
const STOP: u64 = 1 << 29;
const MISMATCH: u64 = 1 << 30;
const POISON: u64 = 1 << 31;
const SUM: u32 = 32;

/// The barrier's word, alone on its line.
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | every rank adds, the last exchanges | every rank | addition and exchange AcqRel, look Acquire | 8, 9 |
/// | whoever poisons sets a bit | every rank | Release | 10 |
#[derive(Debug, Default)]
#[repr(C)]
pub struct Barrier {
    word: Padded<AtomicU64>,
}

/// Proof of arrival.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Ticket {
    generation: u64,
}

/// What a look at the barrier says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Somebody is missing.
    Waiting,
    /// All have arrived with the same identity.
    Passed {
        /// Some of them with a raised flag.
        stop: bool,
    },
    /// All have arrived, not all with the same identity.
    Mismatch {
        /// Some of them with a raised flag.
        stop: bool,
    },
    /// Poisoned before all had arrived.
    Poisoned,
}

fn generation(word: u64) -> u64 {
    word >> GENERATION & GENERATION_MASK
}

/// The word after the last arrival, which made it `full`.
fn closed(full: u64, world_size: u8, identity: u32) -> u64 {
    let sum = (full >> SUM) as u32;
    let mut next = ((generation(full) + 1) & GENERATION_MASK) << GENERATION;
    if sum != identity.wrapping_mul(u32::from(world_size)) {
        next |= MISMATCH;
    }
    if full >> STOPS & 0xFF != 0 {
        next |= STOP;
    }
    next
}

impl Barrier {
    /// Nobody has arrived.
    pub fn new() -> Self {
        Self {
            word: Padded::new(AtomicU64::new(0)),
        }
    }

    /// Arrives, and closes the generation if this was the last of `world_size` ranks.
    ///
    /// `identity`: what this rank has come for. `raised`: it has a flag up. A rank must see the ticket closed before it
    /// arrives again.
    pub fn arrive(&self, world_size: u8, identity: u32, raised: bool) -> Ticket {
        let arrival = u64::from(identity) << SUM | u64::from(raised) << STOPS | 1;
        // Release publishes what this rank wrote before; Acquire gives the last arriver what all others wrote, and its
        // exchange passes it on. Pairs with `look`.
        let found = self
            .word
            .fetch_add(arrival, ord(Site::Arrival, Ordering::AcqRel));
        let ticket = Ticket {
            generation: generation(found),
        };
        if found & POISON != 0 {
            // It can never be closed any more. Without a trace, so that no number of arrivals can overflow.
            self.word.fetch_sub(arrival, Ordering::Relaxed);
            return ticket;
        }
        let full = found.wrapping_add(arrival);
        if full & 0xFF == u64::from(world_size) {
            let next = closed(full, world_size, identity);
            if mutant(Site::BarrierCloseByStore) {
                self.word.store(next, Ordering::Release);
            } else {
                // All have arrived, so only a poison bit can have come in between. It must not be lost, and it wins:
                // nobody has passed yet.
                let _poisoned = self
                    .word
                    .compare_exchange(full, next, Ordering::AcqRel, Ordering::Acquire)
                    .is_err();
            }
        }
        ticket
    }

    /// Whether all have arrived. One Acquire load.
    ///
    /// Whoever has been let through is told so, also if the barrier was poisoned later.
    #[inline]
    pub fn look(&self, ticket: Ticket) -> Look {
        let word = self.word.load(ord(Site::BarrierLook, Ordering::Acquire));
        let stop = word & STOP != 0;
        if generation(word) != ticket.generation {
            if word & MISMATCH != 0 {
                Look::Mismatch { stop }
            } else {
                Look::Passed { stop }
            }
        } else if word & POISON != 0 {
            Look::Poisoned
        } else {
            Look::Waiting
        }
    }

    /// Poisons for good: nobody passes who has not been let through before.
    ///
    /// Who sees it also sees what the caller wrote before, the poison word above all.
    pub fn poison(&self) {
        self.word
            .fetch_or(POISON, ord(Site::BarrierPoison, Ordering::AcqRel));
    }

    /// How many have arrived in the open generation. For reports only: it is old when it is read.
    pub fn arrived(&self) -> u8 {
        (self.word.load(Ordering::Relaxed) & 0xFF) as u8
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SAME: u32 = 0xDEAD_BEEF;

    fn all_arrive(
        barrier: &Barrier,
        world_size: u8,
        identity: impl Fn(u8) -> u32,
        raised: impl Fn(u8) -> bool,
    ) -> Look {
        let mut tickets = Vec::new();
        for rank in 0..world_size {
            for ticket in &tickets {
                assert_eq!(barrier.look(*ticket), Look::Waiting);
            }
            tickets.push(barrier.arrive(world_size, identity(rank), raised(rank)));
        }
        let looks: Vec<_> = tickets.iter().map(|ticket| barrier.look(*ticket)).collect();
        assert!(
            looks.iter().all(|look| *look == looks[0]),
            "all ranks see the same: {looks:?}"
        );
        looks[0]
    }

    #[test]
    fn all_pass_when_the_last_has_arrived() {
        for world_size in [1, 2, 3, 8, 254, 255] {
            let barrier = Barrier::new();
            assert_eq!(
                all_arrive(&barrier, world_size, |_| SAME, |_| false),
                Look::Passed { stop: false }
            );
            assert_eq!(
                all_arrive(&barrier, world_size, |_| u32::MAX, |_| true),
                Look::Passed { stop: true }
            );
            assert_eq!(
                all_arrive(&barrier, world_size, |_| 0, |_| false),
                Look::Passed { stop: false }
            );
        }
    }

    #[test]
    fn one_raised_flag_stops_all_and_only_this_once() {
        for raiser in [0, 1, 254] {
            let barrier = Barrier::new();
            assert_eq!(
                all_arrive(&barrier, 255, |_| SAME, |rank| rank == raiser),
                Look::Passed { stop: true }
            );
            assert_eq!(
                all_arrive(&barrier, 255, |_| SAME, |_| false),
                Look::Passed { stop: false }
            );
        }
    }

    #[test]
    fn one_other_identity_is_a_mismatch_for_all_and_only_this_once() {
        for other in [0, 1, 254] {
            let barrier = Barrier::new();
            let identity = |rank| if rank == other { SAME + 1 } else { SAME };
            assert_eq!(
                all_arrive(&barrier, 255, identity, |_| true),
                Look::Mismatch { stop: true }
            );
            assert_eq!(
                all_arrive(&barrier, 255, |_| SAME, |_| false),
                Look::Passed { stop: false }
            );
        }
    }

    #[test]
    fn no_field_runs_into_its_neighbour_while_the_generation_wraps() {
        // All fields as full as they get, twice around the 13 bits.
        let barrier = Barrier::new();
        for round in 0..2 * (GENERATION_MASK + 1) + 3 {
            assert_eq!(
                generation(barrier.word.load(Ordering::Relaxed)),
                round & GENERATION_MASK
            );
            for rank in 0..255u8 {
                let ticket = barrier.arrive(255, u32::MAX, true);
                let expected = if rank == 254 {
                    Look::Passed { stop: true }
                } else {
                    Look::Waiting
                };
                assert_eq!(barrier.look(ticket), expected, "round {round}, rank {rank}");
            }
            let word = barrier.word.load(Ordering::Relaxed);
            assert_eq!(
                word & !(GENERATION_MASK << GENERATION),
                STOP,
                "only generation and bits are left"
            );
        }
    }

    #[test]
    fn nobody_passes_a_poisoned_barrier_who_had_not_passed_before() {
        let barrier = Barrier::new();
        let passed = barrier.arrive(1, SAME, false);
        barrier.poison();
        assert_eq!(barrier.look(passed), Look::Passed { stop: false });
        // No number of arrivals makes it look passed, closed, or anything else.
        for _ in 0..100_000 {
            let ticket = barrier.arrive(1, SAME, true);
            assert_eq!(barrier.look(ticket), Look::Poisoned);
        }
        assert_eq!(barrier.arrived(), 0);
    }

    #[test]
    fn a_waiter_learns_of_poison() {
        let barrier = Barrier::new();
        let first = barrier.arrive(3, SAME, false);
        barrier.poison();
        let late = [
            barrier.arrive(3, SAME, false),
            barrier.arrive(3, SAME, false),
        ];
        for ticket in [first, late[0], late[1]] {
            assert_eq!(barrier.look(ticket), Look::Poisoned);
        }
        assert_eq!(barrier.arrived(), 1);
    }

    #[test]
    fn any_word_gives_a_look_and_no_panic() {
        let barrier = Barrier::new();
        let mut word = 0x9E37_79B9_7F4A_7C15u64;
        for _ in 0..100_000 {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            barrier.word.store(word, Ordering::Relaxed);
            let ticket = barrier.arrive(255, word as u32, true);
            let _any = barrier.look(ticket);
        }
    }

    #[test]
    fn no_rank_is_ever_a_round_ahead() {
        let barrier = Barrier::new();
        let rounds: [AtomicU64; 3] = core::array::from_fn(|_| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for me in 0..3 {
                let (barrier, rounds) = (&barrier, &rounds);
                scope.spawn(move || {
                    for round in 1..=3_000 {
                        rounds[me].store(round, Ordering::Relaxed);
                        let ticket = barrier.arrive(3, round as u32, false);
                        while barrier.look(ticket) == Look::Waiting {
                            std::thread::yield_now();
                        }
                        assert_eq!(barrier.look(ticket), Look::Passed { stop: false });
                        for other in rounds {
                            let found = other.load(Ordering::Relaxed);
                            assert!(
                                found == round || found == round + 1,
                                "{found} in round {round}"
                            );
                        }
                    }
                });
            }
        });
    }
}
