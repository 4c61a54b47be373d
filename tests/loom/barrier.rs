//! Models 8 to 10: the barrier.

use crate::run::{RACE, check, notices};
use gradring::shm::barrier::{Barrier, Look, Ticket};
use gradring::shm::poison::{Poison, Verdict};
use gradring::shm::sync::Ordering::{Acquire, Relaxed};
use gradring::shm::sync::{Mutation, Site, mutate, weaken};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A barrier, and for each rank two cells that it writes before it arrives, in turn.
struct Shared {
    barrier: Barrier,
    cells: Vec<[UnsafeCell<u64>; 2]>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// At most this many looks in a round; whoever has not passed by then goes home.
const LOOKS: usize = 2;

fn wait(barrier: &Barrier, ticket: Ticket) -> Look {
    let looks = (0..LOOKS).map(|_| barrier.look(ticket));
    let mut last = Look::Waiting;
    for look in looks {
        last = look;
        if last != Look::Waiting {
            break;
        }
    }
    last
}

/// Rank `me` writes its cell, arrives, and if it passes reads all cells; `rounds` times.
fn go(shared: &Shared, me: usize, rounds: u64) {
    let world_size = shared.cells.len() as u8;
    for round in 0..rounds {
        let cell = |rank: usize| &shared.cells[rank][(round % 2) as usize];
        // SAFETY: whoever reads this cell has done so before it arrived in the round before this one.
        cell(me).with_mut(|cell| unsafe { *cell = round + 1 });
        let raised = round == 1 && me == 0;
        let ticket = shared.barrier.arrive(world_size, 77 + round as u32, raised);
        match wait(&shared.barrier, ticket) {
            Look::Waiting => return,
            look => assert_eq!(look, Look::Passed { stop: round == 1 }),
        }
        for rank in 0..shared.cells.len() {
            // SAFETY: its rank writes it again only after all, this one too, have arrived once more.
            let found = cell(rank).with(|cell| unsafe { *cell });
            assert_eq!(found, round + 1, "no rank is a round ahead or behind");
        }
    }
}

fn ranks(world_size: usize, rounds: u64) {
    let shared = Arc::new(Shared {
        barrier: Barrier::new(),
        cells: (0..world_size)
            .map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)])
            .collect(),
    });
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
    check(3, || ranks(4, 1));
}

#[test]
fn an_arrival_without_any_ordering_is_noticed() {
    notices(|| weaken(Site::Arrival, Relaxed), RACE, 2, || ranks(2, 2));
}

#[test]
fn an_arrival_that_publishes_nothing_is_noticed() {
    notices(|| weaken(Site::Arrival, Acquire), RACE, 2, || ranks(3, 1));
}

#[test]
fn a_look_without_ordering_is_noticed() {
    notices(
        || weaken(Site::BarrierLook, Relaxed),
        RACE,
        2,
        || {
            ranks(3, 1);
        },
    );
}

#[test]
fn two_ranks_that_come_for_different_things_both_learn_of_it() {
    check(3, || {
        let barrier = Arc::new(Barrier::new());
        let other = {
            let barrier = barrier.clone();
            thread::spawn(move || barrier.arrive(2, 1, false))
        };
        let mine = barrier.arrive(2, 2, true);
        let theirs = other.join().expect("loom reports a panic itself");
        for ticket in [mine, theirs] {
            assert_eq!(barrier.look(ticket), Look::Mismatch { stop: true });
        }
        // The next round knows nothing of it.
        let again = [barrier.arrive(2, 3, false), barrier.arrive(2, 3, false)];
        assert_eq!(barrier.look(again[0]), Look::Passed { stop: false });
        assert_eq!(barrier.look(again[1]), Look::Passed { stop: false });
    });
}

/// Two ranks arrive while a third party finds one of them guilty.
fn poisoned_meanwhile() {
    let shared = Arc::new((Barrier::new(), Poison::new()));
    let rank = |me: u32| {
        let shared = shared.clone();
        move || {
            let (barrier, poison) = &*shared;
            let ticket = barrier.arrive(2, 5, me == 1);
            let first = barrier.look(ticket);
            if first == Look::Poisoned {
                assert!(poison.get().is_some(), "the verdict comes with the bit");
            }
            if first != Look::Waiting {
                assert_eq!(barrier.look(ticket), first, "nobody passes after all");
            }
            ticket
        }
    };
    let ranks = [thread::spawn(rank(0)), thread::spawn(rank(1))];
    let (barrier, poison) = &*shared;
    let verdict = Verdict::new(1, 4, 9);
    assert_eq!(poison.set(verdict), verdict);
    barrier.poison();
    let looks = ranks.map(|rank| {
        let ticket = rank.join().expect("loom reports a panic itself");
        barrier.look(ticket)
    });
    assert_eq!(looks[0], looks[1], "both pass or none");
    assert_ne!(looks[0], Look::Waiting, "every waiter is told");
    let late = barrier.arrive(2, 5, false);
    assert_eq!(barrier.look(late), Look::Poisoned, "the poison is lost");
}

fn poison_is_noticed(mutation: impl FnOnce() -> Mutation, reason: &str) {
    notices(mutation, reason, 2, poisoned_meanwhile);
}

#[test]
fn poison_is_never_lost_and_reaches_every_waiter() {
    check(4, poisoned_meanwhile);
}

#[test]
fn a_barrier_closed_by_a_store_is_noticed() {
    poison_is_noticed(
        || mutate(Site::BarrierCloseByStore),
        "nobody passes after all",
    );
}

#[test]
fn a_poison_bit_without_ordering_is_noticed() {
    poison_is_noticed(
        || weaken(Site::BarrierPoison, Relaxed),
        "the verdict comes with the bit",
    );
}
