//! Models 17 and 18: what ranks add in two buffers that take turns, and what a display sees meanwhile.

use crate::run::{check_reaching, notices, reached};
use gradring::shm::barrier::{Arrival, Look};
use gradring::shm::cells::{
    Deltas, Directory, Entry, Key, Kind, Mirror, Region, Shape, count, each_pending, words,
};
use gradring::shm::sync::AtomicU64;
use gradring::shm::sync::Ordering::Relaxed;
use gradring::shm::sync::{Site, mutate, weaken};
use loom::thread;
use std::sync::Arc;

const CELLS: usize = 2;
const ALL_PASSED: &str = "all ranks synchronized as often as they wanted";
const SOME_MISSED: &str = "a rank looked too early";
const WRONG: &str = "not what all ranks have added";
const NOT_WHOLE: &str = "an entry is not whole";
const ONE_KEY: &str = "the display saw one key";
const TWO_KEYS: &str = "the display saw both keys";

fn zeros() -> Vec<AtomicU64> {
    let words = words(CELLS).expect("few");
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

struct Shared {
    arrivals: Vec<Arrival>,
    words: Vec<Vec<AtomicU64>>,
}

impl Shared {
    fn region(&self, rank: usize) -> Region<'_> {
        Region::new(&self.words[rank], CELLS)
    }
}

/// A rank that adds to an accumulator.
struct Rank<'a> {
    region: Region<'a>,
    directory: Directory,
    deltas: Deltas,
}

impl<'a> Rank<'a> {
    fn new(region: Region<'a>) -> Self {
        let mut directory = Directory::default();
        let accumulator = directory.accumulator(region, "a").expect("has room");
        Self {
            region,
            directory,
            deltas: Deltas::new(accumulator),
        }
    }

    fn key(&mut self, name: &str) -> Key {
        let shape = Shape {
            kind: Kind::Count,
            length: 1,
        };
        let made = self.directory.key(self.region, 0, shape, name, &[]);
        let (number, start) = made.expect("has room");
        Key {
            number,
            start,
            shape,
        }
    }
}

/// What a rank has for a round: every set of ranks and rounds has another sum.
fn given(rank: usize, round: u64) -> i64 {
    1 << (8 * rank as u64 + 2 * round)
}

/// What happens in a round.
#[derive(Clone, Copy, PartialEq)]
enum Round {
    Fresh,
    /// What was added is dropped, and nobody is asked.
    Replayed,
}

/// Rank `me` adds and synchronizes, round by round. It looks at most `looks` times whether all have come.
fn go(shared: &Shared, me: usize, rounds: &[Round], looks: usize) -> bool {
    let mut rank = Rank::new(shared.region(me));
    let region = rank.region;
    let mut arrivals = 0;
    let mut known: [Option<Key>; 2] = [None; 2];
    for (round, kind) in rounds.iter().enumerate() {
        // Another key in turn, which is new in the second round.
        let key = *known[round % 2].get_or_insert_with(|| rank.key(["x", "y"][round % 2]));
        let at = rank.deltas.touch(region, key);
        count(&shared.words[me][at], given(me, round as u64)).expect("fits");
        if *kind == Round::Replayed {
            rank.deltas.forget(region);
            continue;
        }
        let buffer = rank.deltas.buffer();
        rank.deltas.publish(region);
        arrivals += 1;
        let ticket = shared.arrivals[me].arrive(arrivals, 77, false);
        let mut looks = (0..looks).map(|_| ticket.look(shared.arrivals.iter()));
        match looks.find(|look| !matches!(look, Look::Waiting { .. })) {
            Some(look) => assert_eq!(look, Look::Passed { stop: false }),
            None => return false,
        }
        let mut sum = 0;
        for rank in 0..shared.words.len() {
            let whole = each_pending(shared.region(rank), 0, buffer, |_, entry, elements| {
                assert!(
                    matches!(entry, Entry::Key { accumulator: 0, .. }),
                    "{WRONG}"
                );
                sum += elements[0].load(Relaxed) as i64;
            });
            assert!(whole, "{WRONG}");
        }
        let all = (0..shared.words.len()).map(|rank| given(rank, round as u64));
        assert_eq!(sum, all.sum::<i64>(), "{WRONG}");
        rank.deltas.advance(region);
    }
    true
}

fn two_ranks(rounds: &'static [Round], looks: usize) {
    let shared = Arc::new(Shared {
        arrivals: (0..2).map(|_| Arrival::new()).collect(),
        words: vec![zeros(), zeros()],
    });
    let other = {
        let shared = shared.clone();
        thread::spawn(move || go(&shared, 1, rounds, looks))
    };
    let first = go(&shared, 0, rounds, looks);
    let second = other.join().expect("loom reports a panic itself");
    reached(if first && second {
        ALL_PASSED
    } else {
        SOME_MISSED
    });
}

/// Three synchronizations of which one is replayed.
const THREE: &[Round] = &[Round::Fresh, Round::Replayed, Round::Fresh];
const TWO: &[Round] = &[Round::Fresh, Round::Fresh];

/// A rank makes two keys and adds; a display looks.
fn a_display() {
    let shared = Arc::new(zeros());
    let adds = {
        let shared = shared.clone();
        thread::spawn(move || {
            let mut rank = Rank::new(Region::new(&shared, CELLS));
            for name in ["x", "y"] {
                let key = rank.key(name);
                let at = rank.deltas.touch(rank.region, key);
                for _ in 0..2 {
                    count(&shared[at], 1).expect("fits");
                    let mirror = shared[key.start..].first_chunk().expect("has one");
                    Mirror::new(mirror).count(1);
                }
            }
        })
    };
    let region = Region::new(&shared, CELLS);
    for number in 0..region.entries() {
        let name = region.text(number);
        let Some(Entry::Key { start, .. }) = region.entry(number) else {
            assert_eq!((number, name.as_deref()), (0, Some("a")), "{NOT_WHOLE}");
            continue;
        };
        let expected = ["a", "x", "y"][number as usize];
        assert_eq!(name.as_deref(), Some(expected), "{NOT_WHOLE}");
        let seen = region.mirror(start).expect("has one").counted();
        assert!((0..=2).contains(&seen));
        reached(if number == 1 { ONE_KEY } else { TWO_KEYS });
    }
    adds.join().expect("loom reports a panic itself");
}

#[test]
fn ranks_read_what_all_have_added_while_the_quick_ones_add_again() {
    check_reaching(4, &[ALL_PASSED, SOME_MISSED], || two_ranks(TWO, 2));
}

#[test]
fn a_replayed_synchronization_takes_no_turn_of_the_buffers() {
    check_reaching(4, &[ALL_PASSED, SOME_MISSED], || two_ranks(THREE, 2));
}

#[test]
fn one_buffer_is_noticed() {
    notices(|| mutate(Site::OneBuffer), WRONG, 1, || two_ranks(THREE, 1));
}

#[test]
fn a_replay_that_takes_a_turn_is_noticed() {
    notices(
        || mutate(Site::ReplayAdvances),
        WRONG,
        1,
        || two_ranks(THREE, 1),
    );
}

#[test]
fn clearing_before_all_have_come_is_noticed() {
    notices(
        || mutate(Site::ClearBeforeBarrier),
        WRONG,
        2,
        || two_ranks(TWO, 1),
    );
}

#[test]
fn one_count_of_keys_for_both_buffers_is_noticed() {
    notices(|| mutate(Site::OneKeyCount), WRONG, 2, || two_ranks(TWO, 1));
}

#[test]
fn arrivals_without_ordering_are_noticed() {
    notices(
        || weaken(Site::Arrival, Relaxed),
        WRONG,
        2,
        || two_ranks(TWO, 1),
    );
    notices(
        || weaken(Site::ArrivalLook, Relaxed),
        WRONG,
        2,
        || two_ranks(TWO, 1),
    );
}

#[test]
fn a_display_sees_whole_entries_or_none() {
    check_reaching(4, &[ONE_KEY, TWO_KEYS], a_display);
}

#[test]
fn entries_published_too_weakly_are_noticed() {
    notices(
        || weaken(Site::EntriesStore, Relaxed),
        NOT_WHOLE,
        2,
        a_display,
    );
}

#[test]
fn entries_read_too_weakly_are_noticed() {
    notices(
        || weaken(Site::EntriesLoad, Relaxed),
        NOT_WHOLE,
        2,
        a_display,
    );
}
