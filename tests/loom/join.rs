//! Models 13 and 14: a header is complete when it says so; a rank is claimed once; all know when all have joined.

use crate::run::{DEADLOCK, RACE, check_reaching, notices, reached};
use gradring::shm::bell::{Asleep, Bells};
use gradring::shm::seat::Seat;
use gradring::shm::state::{Muster, Phase, State, muster};
use gradring::shm::sync::Ordering::Relaxed;
use gradring::shm::sync::{Futex, Mutation, Padded, Site, mutate, weaken};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

/// A state, some seats, for each seat what its rank writes while it joins, and the bells. The header's fields are `notes`
/// too.
struct Shared {
    state: State,
    seats: Vec<Seat>,
    notes: Vec<UnsafeCell<u64>>,
    asleep: Asleep,
    futexes: Vec<Padded<Futex>>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(seats: usize) -> Arc<Self> {
        Arc::new(Self {
            state: State::new(),
            seats: (0..seats).map(|_| Seat::new()).collect(),
            notes: (0..seats).map(|_| UnsafeCell::new(0)).collect(),
            asleep: Asleep::new(),
            futexes: (0..seats).map(|_| Padded::new(Futex::new())).collect(),
        })
    }

    fn bells(&self) -> Bells<'_> {
        Bells::new(&self.asleep, &self.futexes)
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
        let found = muster(&self.state, self.seats.iter());
        match found {
            Muster::Missing => reached(TOO_EARLY),
            Muster::Last => reached(LAST),
            Muster::Complete => reached(NOT_LAST),
        }
        if found != Muster::Missing {
            let all = (0..self.seats.len()).all(|rank| self.read(rank) == 7);
            assert!(all, "all have joined");
        }
        found
    }
}

fn publish_and_open() {
    let shared = Shared::new(2);
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
            reached("ready");
        } else {
            reached("not ready yet");
        }
    }
    creator.join().expect("loom reports a panic itself");
    assert_eq!(shared.state.get(), Phase::Ready);
}

#[test]
fn a_header_that_is_ready_is_complete() {
    check_reaching(3, &["ready", "not ready yet"], publish_and_open);
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

const TOO_EARLY: &str = "a rank was too early";
const LAST: &str = "a rank was the last";
const NOT_LAST: &str = "a rank found that another was the last";

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
    Joined::As(shared.muster())
}

/// Two ranks join at once; somebody else wants to be one of them.
fn three_for_two_seats() {
    let shared = Shared::new(2);
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
    check_reaching(3, &[TOO_EARLY, LAST, NOT_LAST], three_for_two_seats);
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

/// Three ranks join; one of them looks twice.
fn three_ranks() {
    let shared = Shared::new(3);
    shared.state.publish();
    let others = [0, 1].map(|rank| {
        let shared = shared.clone();
        thread::spawn(move || join(&shared, rank))
    });
    let mut found = vec![join(&shared, 2)];
    if found[0] == Joined::As(Muster::Missing) {
        found.push(Joined::As(shared.muster()));
    }
    found.extend(others.map(|other| other.join().expect("loom reports a panic itself")));
    let last = found
        .iter()
        .filter(|joined| **joined == Joined::As(Muster::Last));
    assert_eq!(last.count(), 1, "exactly one is the last");
}

#[test]
fn whoever_learns_that_all_have_joined_sees_what_each_of_them_wrote() {
    check_reaching(3, &[TOO_EARLY, LAST, NOT_LAST], three_ranks);
}

#[test]
fn a_last_rank_that_does_not_publish_what_it_saw_is_noticed() {
    notices(|| weaken(Site::Fill, Relaxed), RACE, 3, three_ranks);
}

/// Two ranks join, each asleep until both have; one leaves at once.
fn two_ranks_wait_for_each_other() {
    let shared = Shared::new(2);
    shared.state.publish();
    let quick = {
        let shared = shared.clone();
        thread::spawn(move || {
            let last = join_and_wait(&shared, 0);
            shared.seats[0].leave();
            last
        })
    };
    let last = join_and_wait(&shared, 1);
    assert!(
        last != quick.join().expect("loom reports a panic itself"),
        "exactly one is the last"
    );
}

/// Joins and sleeps until all have; whether this rank was the last.
fn join_and_wait(shared: &Shared, rank: usize) -> bool {
    assert!(shared.seats[rank].claim());
    shared.write(rank, 7);
    shared.seats[rank].joined();
    shared.bells().ring();
    let mut found = shared.muster();
    while found == Muster::Missing {
        let ready = shared.bells().sleep_unless(rank, Duration::ZERO, || {
            found = shared.muster();
            found != Muster::Missing
        });
        if !ready {
            reached(SLEPT);
            found = shared.muster();
        }
    }
    if found == Muster::Last {
        shared.bells().ring();
    }
    found == Muster::Last
}

const SLEPT: &str = "a rank slept until all had joined";

#[test]
fn a_rank_that_sleeps_while_others_join_is_woken() {
    check_reaching(4, &[SLEPT, LAST, NOT_LAST], two_ranks_wait_for_each_other);
}

// The bells' own fences are not what this rests on: the muster has one too.
#[test]
fn a_rank_that_falls_asleep_wrongly_while_others_join_is_noticed() {
    for site in [Site::BitAfterCheck, Site::HeardAfterCheck] {
        notices(
            move || mutate(site),
            DEADLOCK,
            3,
            two_ranks_wait_for_each_other,
        );
    }
}

#[test]
fn a_rank_that_leaves_at_once_is_not_missed_by_the_others() {
    check_reaching(3, &["the quick one left"], || {
        let shared = Shared::new(2);
        shared.state.publish();
        let quick = {
            let shared = shared.clone();
            thread::spawn(move || {
                let joined = join(&shared, 0);
                // It leaves only after it knows that all have joined.
                if joined != Joined::As(Muster::Missing) {
                    shared.seats[0].leave();
                    reached("the quick one left");
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
