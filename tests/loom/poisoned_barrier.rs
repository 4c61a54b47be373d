//! Model 10: a barrier at which somebody ends the run.

use crate::run::{DEADLOCK, check_reaching, notices, reached};
use gradring::shm::barrier::{Arrival, Look, Ticket};
use gradring::shm::bell::{Asleep, Bells};
use gradring::shm::poison::{Poison, Verdict};
use gradring::shm::seat::{Sight, sight};
use gradring::shm::sync::Ordering::Relaxed;
use gradring::shm::sync::{Futex, Padded, Site, mutate, weaken};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

/// Who ends the run, and why.
const VERDICT: Verdict = Verdict::new(1, 4, 2);

struct Shared {
    arrivals: Vec<Arrival>,
    poison: Poison,
    asleep: Asleep,
    futexes: Vec<Padded<Futex>>,
}

impl Shared {
    fn new(world_size: usize) -> Arc<Self> {
        Arc::new(Self {
            arrivals: (0..world_size).map(|_| Arrival::new()).collect(),
            poison: Poison::new(),
            asleep: Asleep::new(),
            futexes: (0..world_size).map(|_| Padded::new(Futex::new())).collect(),
        })
    }

    fn bells(&self) -> Bells<'_> {
        Bells::new(&self.asleep, &self.futexes)
    }

    fn arrive(&self, rank: usize) -> Ticket {
        let ticket = self.arrivals[rank].arrive(1, 5, false);
        self.bells().ring();
        ticket
    }

    fn end(&self) {
        assert_eq!(self.poison.set(VERDICT), VERDICT);
        self.bells().ring();
    }

    fn passed(&self, ticket: Ticket) -> Option<()> {
        match ticket.look(self.arrivals.iter()) {
            Look::Waiting { .. } => None,
            look => {
                assert_eq!(look, Look::Passed { stop: false });
                Some(())
            }
        }
    }

    /// As a rank waits once it has spun for long enough: asleep between two looks at everything that may end the wait.
    fn wait(&self, me: usize, ticket: Ticket) -> Result<(), Verdict> {
        loop {
            match sight(|| self.passed(ticket), || self.poison.get()) {
                Sight::Came(()) => return Ok(()),
                Sight::Gone(verdict) => return Err(verdict),
                Sight::NotYet => {}
            }
            let ready = self.bells().sleep_unless(me, Duration::ZERO, || {
                self.passed(ticket).is_some() || self.poison.get().is_some()
            });
            if !ready {
                reached(SLEPT);
            }
        }
    }
}

const SLEPT: &str = "a rank slept";

/// Rank 1 arrives and then ends the run, while rank 0 waits at the barrier. It rings no bell in between, whose fence would
/// order the two: the poison alone must.
fn poisoned_after_the_last_arrival() {
    let shared = Shared::new(2);
    let other = {
        let shared = shared.clone();
        thread::spawn(move || {
            let _ = shared.arrivals[1].arrive(1, 5, false);
            shared.end();
        })
    };
    let ticket = shared.arrive(0);
    assert_eq!(
        shared.wait(0, ticket),
        Ok(()),
        "what came before the poison counts"
    );
    other.join().expect("loom reports a panic itself");
    assert_eq!(shared.poison.get(), Some(VERDICT), "poison is never lost");
}

/// Some of three ranks wait at the barrier; the last one ends the run instead of arriving.
fn poisoned_instead_of_the_last_arrival() {
    let shared = Shared::new(3);
    let others = [0, 1].map(|me| {
        let shared = shared.clone();
        thread::spawn(move || {
            let ticket = shared.arrive(me);
            shared.wait(me, ticket)
        })
    });
    shared.end();
    for other in others {
        let ended = other.join().expect("loom reports a panic itself");
        assert_eq!(ended, Err(VERDICT), "every waiter returns the error");
    }
}

#[test]
fn what_came_before_the_poison_counts() {
    check_reaching(4, &[SLEPT], poisoned_after_the_last_arrival);
}

#[test]
fn poison_that_does_not_order_the_arrivals_before_it_is_noticed() {
    for site in [Site::PoisonGet, Site::PoisonSet] {
        notices(
            move || weaken(site, Relaxed),
            "what came before the poison counts",
            3,
            poisoned_after_the_last_arrival,
        );
    }
}

#[test]
fn no_second_look_at_a_poisoned_barrier_is_noticed() {
    notices(
        || mutate(Site::NoSecondLook),
        "what came before the poison counts",
        3,
        poisoned_after_the_last_arrival,
    );
}

#[test]
fn every_rank_at_a_poisoned_barrier_returns_the_error() {
    check_reaching(3, &[SLEPT], poisoned_instead_of_the_last_arrival);
}

#[test]
fn poison_that_wakes_nobody_is_noticed() {
    for site in [Site::RingFence, Site::SleepFence, Site::BitAfterCheck] {
        notices(
            move || mutate(site),
            DEADLOCK,
            2,
            poisoned_instead_of_the_last_arrival,
        );
    }
}
