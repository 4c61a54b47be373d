//! Model 15: a reader and a rank that leaves or dies. What it published is read; only then it is gone.

use crate::run::{Memory, check_reaching, notices, reached, send, take};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::seat::{Seat, Seated, Sight, sight};
use gradring::shm::sync::Ordering::{AcqRel, Acquire, Relaxed};
use gradring::shm::sync::{AtomicU32, Site, mutate, weaken};
use loom::thread;
use std::sync::Arc;

/// What the kernel sets in a life token.
const OWNER_DIED: u32 = 0x4000_0000;
const PUBLISHED: u64 = 2;

const NOT_YET: &str = "the reader was ahead of the rank";
const GONE: &str = "the rank was gone";

struct Shared {
    memory: Arc<Memory>,
    seat: Seat,
    life: AtomicU32,
}

/// How a rank comes to its end.
#[derive(Clone, Copy)]
enum End {
    /// It says so.
    Leaves,
    /// The kernel says so, by an atomic operation that is a full barrier.
    Dies,
}

fn a_reader_and(end: End) {
    let shared = Arc::new(Shared {
        memory: Memory::new(1, 2),
        seat: Seat::new(),
        life: AtomicU32::new(1234),
    });
    assert!(shared.seat.claim());
    shared.seat.joined();
    let rank = {
        let shared = shared.clone();
        thread::spawn(move || {
            let mut producer = Producer::default();
            for value in 0..PUBLISHED {
                assert!(send(shared.memory.ring(), &mut producer, value, 0));
            }
            match end {
                End::Leaves => shared.seat.leave(),
                End::Dies => {
                    shared.life.fetch_or(OWNER_DIED, AcqRel);
                }
            }
        })
    };
    let gone = || match end {
        End::Leaves => shared.seat.get() == Seated::Left,
        End::Dies => shared.life.load(Acquire) & OWNER_DIED != 0,
    };
    let mut consumer = Consumer::at(0, 0);
    let mut taken = 0;
    for _ in 0..PUBLISHED + 2 {
        match sight(
            || take(shared.memory.ring(), &mut consumer),
            || gone().then_some(()),
        ) {
            Sight::Came(value) => {
                assert_eq!(value, taken);
                taken += 1;
            }
            Sight::NotYet => reached(NOT_YET),
            Sight::Gone(()) => {
                assert_eq!(taken, PUBLISHED, "gone with something left to read");
                reached(GONE);
                break;
            }
        }
    }
    rank.join().expect("loom reports a panic itself");
}

const LEFT_BEHIND: &str = "gone with something left to read";

#[test]
fn what_a_rank_published_is_read_before_it_has_left() {
    check_reaching(4, &[NOT_YET, GONE], || a_reader_and(End::Leaves));
}

#[test]
fn what_a_rank_published_is_read_before_it_is_dead() {
    check_reaching(4, &[NOT_YET, GONE], || a_reader_and(End::Dies));
}

#[test]
fn no_second_look_at_who_left_is_noticed() {
    notices(
        || mutate(Site::NoSecondLook),
        LEFT_BEHIND,
        2,
        || {
            a_reader_and(End::Leaves);
        },
    );
}

#[test]
fn no_second_look_at_who_died_is_noticed() {
    notices(
        || mutate(Site::NoSecondLook),
        LEFT_BEHIND,
        2,
        || {
            a_reader_and(End::Dies);
        },
    );
}

#[test]
fn leaving_without_ordering_is_noticed() {
    notices(
        || weaken(Site::SeatStore, Relaxed),
        LEFT_BEHIND,
        2,
        || {
            a_reader_and(End::Leaves);
        },
    );
}

#[test]
fn an_end_read_without_ordering_is_noticed() {
    notices(
        || weaken(Site::SeatLoad, Relaxed),
        LEFT_BEHIND,
        2,
        || {
            a_reader_and(End::Leaves);
        },
    );
}
