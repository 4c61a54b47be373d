//! Models 13 and 14: a header is complete when it says so; a rank is claimed once; all know when all have joined.

use crate::run::{RACE, check, notices};
use gradring::shm::seat::Seat;
use gradring::shm::state::{Muster, Phase, State, muster};
use gradring::shm::sync::Ordering::Relaxed;
use gradring::shm::sync::{Mutation, Site, mutate, weaken};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A state, two seats, and for each seat what its rank writes while it joins. The header's fields are `notes` too.
struct Shared {
    state: State,
    seats: [Seat; 2],
    notes: [UnsafeCell<u64>; 2],
}

// SAFETY: loom checks every access to the cells.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: State::new(),
            seats: [Seat::new(), Seat::new()],
            notes: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn write(&self, which: usize, value: u64) {
        // SAFETY: written by the creator before it publishes, or by the one who claimed the seat before it has joined.
        self.notes[which].with_mut(|note| unsafe { *note = value });
    }

    fn read(&self, which: usize) -> u64 {
        // SAFETY: read after the state or the seats said that it is complete.
        self.notes[which].with(|note| unsafe { *note })
    }

    fn muster(&self) -> Muster {
        muster(&self.state, self.seats.iter())
    }
}

fn publish_and_open() {
    let shared = Shared::new();
    let creator = {
        let shared = shared.clone();
        thread::spawn(move || {
            shared.write(0, 11);
            shared.write(1, 22);
            shared.state.publish();
        })
    };
    for _ in 0..2 {
        if shared.state.get() == Phase::Ready {
            assert_eq!((shared.read(0), shared.read(1)), (11, 22));
        }
    }
    creator.join().expect("loom reports a panic itself");
    assert_eq!(shared.state.get(), Phase::Ready);
}

#[test]
fn a_header_that_is_ready_is_complete() {
    check(3, publish_and_open);
}

#[test]
fn a_header_published_without_ordering_is_noticed() {
    notices(
        || weaken(Site::StatePublish, Relaxed),
        RACE,
        2,
        publish_and_open,
    );
}

#[test]
fn a_header_read_without_ordering_is_noticed() {
    notices(
        || weaken(Site::StateLoad, Relaxed),
        RACE,
        2,
        publish_and_open,
    );
}

/// What came of an attempt to join.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joined {
    Taken,
    As(Muster),
}

fn join(shared: &Shared, rank: usize) -> Joined {
    if !shared.seats[rank].claim() {
        return Joined::Taken;
    }
    shared.write(rank, 7);
    shared.seats[rank].joined();
    let found = shared.muster();
    if found != Muster::Missing {
        assert_eq!((shared.read(0), shared.read(1)), (7, 7), "all have joined");
    }
    Joined::As(found)
}

/// Two ranks join at once; somebody else wants to be one of them.
fn three_for_two_seats() {
    let shared = Shared::new();
    shared.state.publish();
    let joiners = [0, 1].map(|rank| {
        let shared = shared.clone();
        thread::spawn(move || join(&shared, rank))
    });
    let mine = join(&shared, 1);
    let theirs = joiners.map(|joiner| joiner.join().expect("loom reports a panic itself"));
    let all = [mine, theirs[0], theirs[1]];
    let count = |what| all.iter().filter(|joined| **joined == what).count();
    assert_eq!(count(Joined::Taken), 1, "a seat is taken once");
    assert_eq!(
        count(Joined::As(Muster::Last)),
        1,
        "exactly one is the last"
    );
}

fn joining_notices(mutation: impl FnOnce() -> Mutation, reason: &str) {
    notices(mutation, reason, 2, three_for_two_seats);
}

#[test]
fn each_seat_is_taken_once_and_exactly_one_rank_is_the_last() {
    check(3, three_for_two_seats);
}

#[test]
fn a_seat_claimed_by_load_and_store_is_noticed() {
    joining_notices(|| mutate(Site::ClaimByStore), RACE);
}

#[test]
fn two_that_are_both_the_last_are_noticed() {
    joining_notices(|| mutate(Site::FillByStore), "exactly one is the last");
}

#[test]
fn a_muster_without_its_fence_is_noticed() {
    joining_notices(|| mutate(Site::MusterFence), "exactly one is the last");
}

#[test]
fn a_seat_stored_without_ordering_is_noticed() {
    joining_notices(|| weaken(Site::SeatStore, Relaxed), RACE);
}

#[test]
fn a_seat_loaded_without_ordering_is_noticed() {
    joining_notices(|| weaken(Site::SeatLoad, Relaxed), RACE);
}

#[test]
fn a_rank_that_leaves_at_once_is_not_missed_by_the_others() {
    check(3, || {
        let shared = Shared::new();
        shared.state.publish();
        let quick = {
            let shared = shared.clone();
            thread::spawn(move || {
                let joined = join(&shared, 0);
                // It leaves only after it knows that all have joined.
                if joined != Joined::As(Muster::Missing) {
                    shared.seats[0].leave();
                }
                joined
            })
        };
        let mine = join(&shared, 1);
        let theirs = quick.join().expect("loom reports a panic itself");
        if theirs != Joined::As(Muster::Missing) {
            assert_eq!(shared.muster(), Muster::Complete);
        } else {
            assert!(mine == Joined::As(Muster::Last), "at least one sees both");
        }
    });
}
