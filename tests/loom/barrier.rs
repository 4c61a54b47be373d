//! Models 8 and 9: the barrier.

use crate::run::{RACE, check, check_reaching, notices, reached};
use gradring::shm::barrier::{Arrival, Look, Ticket};
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

/// What some interleaving must come to.
const ALL_PASSED: &str = "all ranks passed all rounds";
const SOME_MISSED: &str = "a rank looked too early";

/// Rank `me` writes its cell, arrives, and if it passes reads all cells; `rounds` times. It looks at most `looks` times in
/// a round and goes home if it has not passed by then. Whether it has passed them all.
fn go(shared: &Shared, me: usize, rounds: u64, looks: usize) -> bool {
    for round in 1..=rounds {
        let cell = |rank: usize| &shared.cells[rank][(round % 2) as usize];
        // SAFETY: whoever reads this cell has done so before it arrived in the round before this one.
        cell(me).with_mut(|cell| unsafe { *cell = round });
        let raised = round == 2 && me == 0;
        let ticket = shared.arrivals[me].arrive(round, 77 + round as u32, raised);
        let looks = (0..looks).map(|_| shared.look(ticket));
        let Some(look) = looks
            .into_iter()
            .find(|look| !matches!(look, Look::Waiting { .. }))
        else {
            return false;
        };
        assert_eq!(look, Look::Passed { stop: round == 2 });
        for rank in 0..shared.cells.len() {
            // SAFETY: its rank writes it again only after all, this one too, have arrived once more.
            let found = cell(rank).with(|cell| unsafe { *cell });
            assert_eq!(found, round, "no rank is a round ahead or behind");
        }
    }
    true
}

fn ranks(world_size: usize, rounds: u64, looks: usize) {
    let shared = Shared::new(world_size);
    let others: Vec<_> = (1..world_size)
        .map(|me| {
            let shared = shared.clone();
            thread::spawn(move || go(&shared, me, rounds, looks))
        })
        .collect();
    let mut passed = usize::from(go(&shared, 0, rounds, looks));
    for other in others {
        passed += usize::from(other.join().expect("loom reports a panic itself"));
    }
    reached(if passed == world_size {
        ALL_PASSED
    } else {
        SOME_MISSED
    });
}

#[test]
fn two_ranks_see_each_others_writes_in_every_round() {
    check_reaching(4, &[ALL_PASSED, SOME_MISSED], || ranks(2, 3, 2));
}

#[test]
fn three_ranks_see_each_others_writes() {
    check_reaching(3, &[ALL_PASSED, SOME_MISSED], || ranks(3, 1, 2));
}

#[test]
fn four_ranks_see_each_others_writes() {
    check_reaching(3, &[ALL_PASSED, SOME_MISSED], || ranks(4, 1, 1));
}

#[test]
fn an_arrival_without_ordering_is_noticed() {
    notices(
        || weaken(Site::Arrival, Relaxed),
        RACE,
        2,
        || ranks(2, 2, 2),
    );
    notices(
        || weaken(Site::Arrival, Relaxed),
        RACE,
        2,
        || ranks(3, 1, 2),
    );
    notices(
        || weaken(Site::Arrival, Relaxed),
        RACE,
        3,
        || ranks(4, 1, 1),
    );
}

#[test]
fn a_look_without_ordering_is_noticed() {
    notices(
        || weaken(Site::ArrivalLook, Relaxed),
        RACE,
        2,
        || ranks(2, 2, 2),
    );
    notices(
        || weaken(Site::ArrivalLook, Relaxed),
        RACE,
        2,
        || ranks(3, 1, 2),
    );
    notices(
        || weaken(Site::ArrivalLook, Relaxed),
        RACE,
        3,
        || ranks(4, 1, 1),
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

/// Two ranks meet that have come for different things, one with a flag up, and then once more for the same.
fn a_mismatch_and_then_none() {
    let shared = Shared::new(2);
    let other = {
        let shared = shared.clone();
        thread::spawn(move || {
            let ticket = shared.arrivals[1].arrive(1, 1, false);
            let early = shared.look(ticket);
            (ticket, early)
        })
    };
    let mine = shared.arrivals[0].arrive(1, 2, true);
    let early = shared.look(mine);
    let (theirs, also_early) = other.join().expect("loom reports a panic itself");
    for early in [early, also_early] {
        match early {
            Look::Waiting { .. } => reached("one looked too early"),
            Look::Mismatch { stop: true } => reached("one learnt of it at once"),
            other => panic!("{other:?}"),
        }
    }
    for ticket in [mine, theirs] {
        assert_eq!(shared.look(ticket), Look::Mismatch { stop: true });
    }
    // The next round knows nothing of it.
    let again = [0, 1].map(|rank: usize| shared.arrivals[rank].arrive(2, 3, false));
    assert_eq!(
        again.map(|ticket| shared.look(ticket)),
        [Look::Passed { stop: false }; 2]
    );
}

#[test]
fn two_ranks_that_come_for_different_things_both_learn_of_it() {
    check_reaching(
        4,
        &["one looked too early", "one learnt of it at once"],
        a_mismatch_and_then_none,
    );
}
