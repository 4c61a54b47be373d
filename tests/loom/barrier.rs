//! Models 8 to 10: the barrier.

use crate::run::{RACE, check, notices};
use gradring::shm::barrier::{Arrival, Look, Ticket};
use gradring::shm::poison::{Poison, Verdict};
use gradring::shm::sync::Ordering::Relaxed;
use gradring::shm::sync::{Site, mutate, weaken};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// All ranks' words, and for each rank two cells that it writes before it arrives, in turn.
struct Shared {
    arrivals: Vec<Arrival>,
    cells: Vec<[UnsafeCell<u64>; 2]>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(world_size: usize) -> Arc<Self> {
        Arc::new(Self {
            arrivals: (0..world_size).map(|_| Arrival::new()).collect(),
            cells: (0..world_size)
                .map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)])
                .collect(),
        })
    }

    fn look(&self, ticket: Ticket) -> Look {
        ticket.look(self.arrivals.iter())
    }
}

/// At most this many looks in a round; whoever has not passed by then goes home.
const LOOKS: usize = 2;

/// Rank `me` writes its cell, arrives, and if it passes reads all cells; `rounds` times.
fn go(shared: &Shared, me: usize, rounds: u64) {
    for round in 1..=rounds {
        let cell = |rank: usize| &shared.cells[rank][(round % 2) as usize];
        // SAFETY: whoever reads this cell has done so before it arrived in the round before this one.
        cell(me).with_mut(|cell| unsafe { *cell = round });
        let raised = round == 2 && me == 0;
        let ticket = shared.arrivals[me].arrive(round, 77 + round as u32, raised);
        let looks = (0..LOOKS).map(|_| shared.look(ticket));
        let Some(look) = looks
            .into_iter()
            .find(|look| !matches!(look, Look::Waiting { .. }))
        else {
            return;
        };
        assert_eq!(look, Look::Passed { stop: round == 2 });
        for rank in 0..shared.cells.len() {
            // SAFETY: its rank writes it again only after all, this one too, have arrived once more.
            let found = cell(rank).with(|cell| unsafe { *cell });
            assert_eq!(found, round, "no rank is a round ahead or behind");
        }
    }
}

fn ranks(world_size: usize, rounds: u64) {
    let shared = Shared::new(world_size);
    let others: Vec<_> = (1..world_size)
        .map(|me| {
            let shared = shared.clone();
            thread::spawn(move || go(&shared, me, rounds))
        })
        .collect();
    go(&shared, 0, rounds);
    for other in others {
        other.join().expect("loom reports a panic itself");
    }
}

#[test]
fn two_ranks_see_each_others_writes_in_every_round() {
    check(4, || ranks(2, 3));
}

#[test]
fn three_ranks_see_each_others_writes() {
    check(3, || ranks(3, 1));
}

#[test]
fn four_ranks_see_each_others_writes() {
    check(2, || ranks(4, 1));
}

#[test]
fn an_arrival_without_ordering_is_noticed() {
    notices(|| weaken(Site::Arrival, Relaxed), RACE, 2, || ranks(2, 2));
    notices(|| weaken(Site::Arrival, Relaxed), RACE, 2, || ranks(3, 1));
}

#[test]
fn a_look_without_ordering_is_noticed() {
    notices(
        || weaken(Site::ArrivalLook, Relaxed),
        RACE,
        2,
        || ranks(2, 2),
    );
    notices(
        || weaken(Site::ArrivalLook, Relaxed),
        RACE,
        2,
        || ranks(3, 1),
    );
}

/// The other rank is quick: it passes and arrives at the next barrier while this one still looks for the first.
fn a_quick_rank() {
    let shared = Shared::new(2);
    let mine = shared.arrivals[0].arrive(1, 5, false);
    let other = {
        let shared = shared.clone();
        thread::spawn(move || {
            let first = shared.arrivals[1].arrive(1, 5, true);
            assert_eq!(shared.look(first), Look::Passed { stop: true });
            let second = shared.arrivals[1].arrive(2, 6, false);
            assert_eq!(shared.look(second), Look::Waiting { rank: 0 });
        })
    };
    let early = shared.look(mine);
    other.join().expect("loom reports a panic itself");
    assert_eq!(
        shared.look(mine),
        Look::Passed { stop: true },
        "the first barrier is still there"
    );
    assert!(matches!(
        early,
        Look::Waiting { rank: 1 } | Look::Passed { stop: true }
    ));
}

#[test]
fn a_rank_that_runs_ahead_does_not_hide_its_arrival() {
    check(4, a_quick_rank);
}

#[test]
fn one_word_for_two_barriers_is_noticed() {
    notices(
        || mutate(Site::OneArrivalWord),
        "the first barrier is still there",
        2,
        a_quick_rank,
    );
}

#[test]
fn two_ranks_that_come_for_different_things_both_learn_of_it() {
    check(3, || {
        let shared = Shared::new(2);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.arrivals[1].arrive(1, 1, false))
        };
        let mine = shared.arrivals[0].arrive(1, 2, true);
        let theirs = other.join().expect("loom reports a panic itself");
        for ticket in [mine, theirs] {
            assert_eq!(shared.look(ticket), Look::Mismatch { stop: true });
        }
        // The next round knows nothing of it.
        let again = [0, 1].map(|rank: usize| shared.arrivals[rank].arrive(2, 3, false));
        assert_eq!(
            again.map(|ticket| shared.look(ticket)),
            [Look::Passed { stop: false }; 2]
        );
    });
}

/// A rank arrives and then ends the run; another one looks for its arrival, then for poison, then for its arrival again.
fn poisoned_after_arriving() {
    let shared = Arc::new((Shared::new(2), Poison::new()));
    let mine = shared.0.arrivals[0].arrive(1, 5, false);
    let verdict = Verdict::new(1, 4, 2);
    let other = {
        let shared = shared.clone();
        thread::spawn(move || {
            let _ = shared.0.arrivals[1].arrive(1, 5, false);
            assert_eq!(shared.1.set(verdict), verdict);
        })
    };
    let (ranks, poison) = &*shared;
    let first = ranks.look(mine);
    if let Some(found) = poison.get() {
        assert_eq!(found, verdict);
        let second = ranks.look(mine);
        assert_eq!(
            second,
            Look::Passed { stop: false },
            "what came before the poison counts"
        );
    } else if first == (Look::Waiting { rank: 1 }) {
        other.join().expect("loom reports a panic itself");
        assert_eq!(poison.get(), Some(verdict), "the poison is never lost");
        return;
    }
    other.join().expect("loom reports a panic itself");
}

#[test]
fn who_sees_poison_sees_the_arrivals_before_it() {
    check(4, poisoned_after_arriving);
}

#[test]
fn poison_read_or_set_without_ordering_is_noticed() {
    for site in [Site::PoisonGet, Site::PoisonSet] {
        notices(
            move || weaken(site, Relaxed),
            "what came before the poison counts",
            2,
            poisoned_after_arriving,
        );
    }
}
