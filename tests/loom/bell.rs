//! Model 12: one waiter, two conditions, two notifiers. A lost wake-up is a deadlock: the model's kernel has no timeout.

use crate::run::{DEADLOCK, check_reaching, notices, reached};
use gradring::shm::bell::{Asleep, Bells};
use gradring::shm::sync::Ordering::{Acquire, Release};
use gradring::shm::sync::{AtomicU64, Futex, Padded, Site, mutate};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

const SLEPT: &str = "the waiter slept";
const NO_SLEEP: &str = "the waiter had no need to sleep";

struct Shared {
    asleep: Asleep,
    futexes: [Padded<Futex>; 2],
    conditions: [AtomicU64; 2],
}

impl Shared {
    fn bells(&self) -> Bells<'_> {
        Bells::new(&self.asleep, &self.futexes)
    }

    fn came(&self) -> u64 {
        self.conditions
            .iter()
            .map(|condition| condition.load(Acquire))
            .sum()
    }
}

fn two_notifiers() {
    let shared = Arc::new(Shared {
        asleep: Asleep::new(),
        futexes: [Padded::new(Futex::new()), Padded::new(Futex::new())],
        conditions: [AtomicU64::new(0), AtomicU64::new(0)],
    });
    let notifiers = [0, 1].map(|which| {
        let shared = shared.clone();
        thread::spawn(move || {
            shared.conditions[which].store(1, Release);
            shared.bells().ring();
        })
    });
    // As a rank waits: for any of several conditions, until it has seen them all.
    let mut seen = 0;
    while seen < 2 {
        let ready = shared
            .bells()
            .sleep_unless(1, Duration::ZERO, || shared.came() > seen);
        reached(if ready { NO_SLEEP } else { SLEPT });
        seen = shared.came();
    }
    for notifier in notifiers {
        notifier.join().expect("loom reports a panic itself");
    }
}

#[test]
fn no_wake_up_is_lost() {
    check_reaching(3, &[SLEPT, NO_SLEEP], two_notifiers);
}

#[test]
fn a_notifier_without_its_fence_is_noticed() {
    notices(|| mutate(Site::RingFence), DEADLOCK, 3, two_notifiers);
}

#[test]
fn a_waiter_without_its_fence_is_noticed() {
    notices(|| mutate(Site::SleepFence), DEADLOCK, 3, two_notifiers);
}

#[test]
fn a_waiter_that_looks_before_it_says_that_it_sleeps_is_noticed() {
    notices(|| mutate(Site::BitAfterCheck), DEADLOCK, 3, two_notifiers);
}

#[test]
fn a_waiter_that_reads_its_bell_too_late_is_noticed() {
    notices(|| mutate(Site::HeardAfterCheck), DEADLOCK, 3, two_notifiers);
}
