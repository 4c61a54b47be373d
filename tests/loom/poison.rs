//! Model 11: two find a culprit at once.

use crate::run::{RACE, check_reaching, notices, reached};
use gradring::shm::poison::{Poison, Verdict};
use gradring::shm::sync::Ordering::Relaxed;
use gradring::shm::sync::{Site, mutate, weaken};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// The word, and what each finder writes before it poisons.
struct Shared {
    poison: Poison,
    reasons: [UnsafeCell<u64>; 2],
}

// SAFETY: loom checks every access to the cells.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn reason(shared: &Shared, verdict: Verdict) -> u64 {
    // SAFETY: the finder wrote it before it poisoned, and never again.
    shared.reasons[usize::from(verdict.rank)].with(|cell| unsafe { *cell })
}

fn two_finders() {
    let shared = Arc::new(Shared {
        poison: Poison::new(),
        reasons: [UnsafeCell::new(0), UnsafeCell::new(0)],
    });
    let finders = [0, 1].map(|me: u8| {
        let shared = shared.clone();
        thread::spawn(move || {
            // SAFETY: read only by those who see this finder's verdict.
            shared.reasons[usize::from(me)].with_mut(|cell| unsafe { *cell = 100 + u64::from(me) });
            let held = shared.poison.set(Verdict::new(me, 1, 7));
            assert_eq!(reason(&shared, held), 100 + u64::from(held.rank));
            held
        })
    });
    let seen = shared.poison.get();
    if let Some(verdict) = seen {
        assert_eq!(reason(&shared, verdict), 100 + u64::from(verdict.rank));
    }
    reached(if seen.is_some() {
        "somebody saw a verdict early"
    } else {
        "somebody looked too early"
    });
    let held = finders.map(|finder| finder.join().expect("loom reports a panic itself"));
    assert_eq!(held[0], held[1], "all agree");
    assert_eq!(shared.poison.get(), Some(held[0]), "all agree");
    assert!(seen.is_none_or(|seen| seen == held[0]), "all agree");
    reached(["the first finder won", "the second finder won"][usize::from(held[0].rank)]);
}

#[test]
fn one_culprit_is_found_and_all_agree() {
    check_reaching(
        4,
        &[
            "somebody saw a verdict early",
            "somebody looked too early",
            "the first finder won",
            "the second finder won",
        ],
        two_finders,
    );
}

#[test]
fn a_verdict_that_is_stored_is_noticed() {
    notices(|| mutate(Site::PoisonByStore), "all agree", 2, two_finders);
}

#[test]
fn a_verdict_that_does_not_publish_its_reason_is_noticed() {
    notices(|| weaken(Site::PoisonSet, Relaxed), RACE, 2, two_finders);
}

#[test]
fn a_loser_that_does_not_see_the_winners_reason_is_noticed() {
    notices(|| weaken(Site::PoisonFound, Relaxed), RACE, 2, two_finders);
}

#[test]
fn a_verdict_read_without_its_reason_is_noticed() {
    notices(|| weaken(Site::PoisonGet, Relaxed), RACE, 2, two_finders);
}
