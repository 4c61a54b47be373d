//! Model 19: a rank that is as far ahead as it may be, and the rank that it waits for.

use crate::run::{DEADLOCK, Memory, RACE, check_reaching, notices, reached, send, take};
use gradring::shm::bell::{Asleep, Bells};
use gradring::shm::pace::{Pace, slowest};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::sync::Ordering::{Acquire, Relaxed, Release};
use gradring::shm::sync::{AtomicU64, Futex, Padded, Site, mutate, weaken};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

const SLEPT: &str = "the rank ahead slept";
const NO_SLEEP: &str = "the rank ahead had no need to sleep";
const TAKEN: &str = "the marker was taken";
const NOT_YET: &str = "the marker had not come";
const STILL_STEPPING: &str = "the rank had not gone";
const GONE: &str = "the rank had gone";
const UNKNOWN: &str = "gone into an unknown operation";
const OLD: &str = "a count of the time before the settle";

/// How a rank lets the one ahead of it go on.
#[derive(Clone, Copy)]
enum Lets {
    Steps,
    GoesAway,
}

struct Shared {
    asleep: Asleep,
    futexes: [Padded<Futex>; 2],
    paces: [Pace; 2],
}

impl Shared {
    fn bells(&self) -> Bells<'_> {
        Bells::new(&self.asleep, &self.futexes)
    }
}

/// Rank 0 has made two steps, rank 1 none, and nobody may make a step that brings it more than two ahead.
fn a_rank_ahead_and_one_that(lets: Lets) {
    let shared = Arc::new(Shared {
        asleep: Asleep::new(),
        futexes: [Padded::new(Futex::new()), Padded::new(Futex::new())],
        paces: [Pace::new(), Pace::new()],
    });
    shared.paces[0].stepping(2);
    shared.paces[1].stepping(0);
    let behind = {
        let shared = shared.clone();
        thread::spawn(move || {
            match lets {
                Lets::Steps => shared.paces[1].stepping(1),
                Lets::GoesAway => shared.paces[1].away(0),
            }
            shared.bells().ring();
        })
    };
    let may_step = || {
        let slowest = slowest([(1, shared.paces[1].get())].into_iter());
        slowest.is_none_or(|(_, steps)| 2 - steps < 2)
    };
    while !may_step() {
        let ready = shared.bells().sleep_unless(0, Duration::ZERO, may_step);
        reached(if ready { NO_SLEEP } else { SLEPT });
    }
    behind.join().expect("loom reports a panic itself");
}

/// A rank publishes its last record, goes into a settle and publishes its marker; another takes both and looks.
fn a_rank_that_settles() {
    let memory = Memory::new(1, 2);
    let pace = Arc::new(Pace::new());
    pace.stepping(3);
    let settles = {
        let (memory, pace) = (memory.clone(), pace.clone());
        thread::spawn(move || {
            let mut producer = Producer::default();
            assert!(send(memory.ring(), &mut producer, 0, 0));
            pace.away(0);
            assert!(send(memory.ring(), &mut producer, 1, 0));
        })
    };
    let mut consumer = Consumer::at(0, 0);
    for _ in 0..3 {
        match take(memory.ring(), &mut consumer) {
            Some(1) => {
                assert_eq!(pace.get().steps, 0, "{OLD}");
                reached(TAKEN);
            }
            Some(_) => {}
            None => reached(NOT_YET),
        }
    }
    settles.join().expect("loom reports a panic itself");
}

/// A rank announces an operation and goes into it; whoever sees that it has gone must see into which one.
fn a_rank_that_goes_into_an_operation() {
    let shared = Arc::new((Pace::new(), AtomicU64::new(6)));
    shared.0.stepping(3);
    let goes = {
        let shared = shared.clone();
        thread::spawn(move || {
            shared.1.store(7, Release);
            shared.0.away(0);
        })
    };
    for _ in 0..2 {
        let seen = shared.0.get();
        if seen.stepping {
            assert_eq!(seen.steps, 3);
            reached(STILL_STEPPING);
        } else {
            assert_eq!(shared.1.load(Acquire), 7, "{UNKNOWN}");
            reached(GONE);
        }
    }
    goes.join().expect("loom reports a panic itself");
}

#[test]
fn a_rank_that_has_gone_away_has_said_where_to() {
    check_reaching(4, &[STILL_STEPPING, GONE], || {
        a_rank_that_goes_into_an_operation();
    });
}

#[test]
fn going_away_without_ordering_is_noticed() {
    notices(
        || weaken(Site::PaceStore, Relaxed),
        UNKNOWN,
        2,
        a_rank_that_goes_into_an_operation,
    );
}

#[test]
fn a_pace_read_without_ordering_is_noticed() {
    notices(
        || weaken(Site::PaceLoad, Relaxed),
        UNKNOWN,
        2,
        a_rank_that_goes_into_an_operation,
    );
}

#[test]
fn a_rank_ahead_goes_on_when_the_other_has_stepped() {
    check_reaching(3, &[SLEPT, NO_SLEEP], || {
        a_rank_ahead_and_one_that(Lets::Steps);
    });
}

#[test]
fn a_rank_ahead_goes_on_when_the_other_goes_into_an_operation() {
    check_reaching(3, &[SLEPT, NO_SLEEP], || {
        a_rank_ahead_and_one_that(Lets::GoesAway);
    });
}

#[test]
fn a_step_that_rings_without_its_fence_is_noticed() {
    notices(
        || mutate(Site::RingFence),
        DEADLOCK,
        3,
        || {
            a_rank_ahead_and_one_that(Lets::Steps);
        },
    );
}

#[test]
fn going_away_without_a_word_is_noticed_by_who_waits() {
    notices(
        || mutate(Site::AwayForgotten),
        DEADLOCK,
        3,
        || {
            a_rank_ahead_and_one_that(Lets::GoesAway);
        },
    );
}

#[test]
fn who_has_taken_a_marker_sees_no_count_of_the_time_before() {
    check_reaching(4, &[TAKEN, NOT_YET], a_rank_that_settles);
}

#[test]
fn going_away_without_a_word_is_noticed_behind_the_marker() {
    notices(|| mutate(Site::AwayForgotten), OLD, 2, a_rank_that_settles);
}

#[test]
fn a_marker_published_too_weakly_is_noticed() {
    notices(
        || weaken(Site::TailStore, Relaxed),
        RACE,
        2,
        a_rank_that_settles,
    );
}
