//! Model 6: records larger than the ring pass through it, and nobody waits for somebody who waits for him.

use crate::run::{DEADLOCK, Memory, check, check_reaching, notices, reached, send, take};
use gradring::replica::progress::{Advance, Lists, advance};
use gradring::shm::bell::{Asleep, Bells};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::sync::{Futex, Padded, Site, mutate};
use loom::thread;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Frames of a record; the ring has room for two.
const FRAMES: u64 = 3;

const SLEPT: [&str; 2] = ["rank 0 slept", "rank 1 slept"];

struct Shared {
    rings: Vec<Arc<Memory>>,
    asleep: Asleep,
    futexes: Vec<Padded<Futex>>,
}

impl Shared {
    fn new(world_size: usize) -> Arc<Self> {
        Arc::new(Self {
            rings: (0..world_size)
                .map(|_| Memory::new(world_size, 2))
                .collect(),
            asleep: Asleep::new(),
            futexes: (0..world_size).map(|_| Padded::new(Futex::new())).collect(),
        })
    }

    fn bells(&self) -> Bells<'_> {
        Bells::new(&self.asleep, &self.futexes)
    }
}

/// One record of each of the first `publishers` ranks, all of one chunk.
struct Exchange<'a> {
    shared: &'a Shared,
    me: usize,
    publishers: usize,
    producer: Producer,
    consumers: Vec<Consumer>,
    published: u64,
    taken: Vec<u64>,
}

impl Exchange<'_> {
    /// The rank whose record is being taken.
    fn turn(&self) -> Option<usize> {
        let rank = self.taken.len() / FRAMES as usize;
        (rank < self.publishers).then_some(rank)
    }
}

impl Lists for Exchange<'_> {
    type Error = Infallible;

    fn publishing(&self) -> Option<u64> {
        (self.me < self.publishers && self.published < FRAMES).then_some(0)
    }

    fn taking(&self) -> Option<u64> {
        self.turn().map(|_| 0)
    }

    fn publish(&mut self) -> Result<bool, Infallible> {
        let ring = self.shared.rings[self.me].ring();
        let value = 10 * self.me as u64 + self.published;
        let went = send(ring, &mut self.producer, value, 0);
        self.published += u64::from(went);
        Ok(went)
    }

    fn take(&mut self) -> Result<bool, Infallible> {
        let Some(rank) = self.turn() else {
            return Ok(false);
        };
        let came = take(self.shared.rings[rank].ring(), &mut self.consumers[rank]);
        self.taken.extend(came);
        Ok(came.is_some())
    }
}

/// As an operation runs: turn after turn, and asleep while neither list can go on.
fn run(shared: &Shared, me: usize, publishers: usize) {
    let mut exchange = Exchange {
        shared,
        me,
        publishers,
        producer: Producer::default(),
        consumers: (0..shared.rings.len())
            .map(|_| Consumer::at(me, 0))
            .collect(),
        published: 0,
        taken: Vec::new(),
    };
    let turn = |exchange: &mut Exchange<'_>| {
        let Ok(went) = advance(exchange, 1);
        if went == Advance::Went {
            shared.bells().ring();
        }
        went
    };
    loop {
        match turn(&mut exchange) {
            Advance::Went => {}
            Advance::Finished => break,
            Advance::Blocked => {
                let ready = shared.bells().sleep_unless(me, Duration::ZERO, || {
                    turn(&mut exchange) != Advance::Blocked
                });
                if !ready {
                    reached(SLEPT[me]);
                }
            }
        }
    }
    let expected: Vec<u64> = (0..publishers as u64)
        .flat_map(|rank| (0..FRAMES).map(move |frame| 10 * rank + frame))
        .collect();
    assert_eq!(exchange.taken, expected, "the records are not whole");
}

fn ranks(world_size: usize, publishers: usize) {
    let shared = Shared::new(world_size);
    let others: Vec<_> = (1..world_size)
        .map(|me| {
            let shared = shared.clone();
            thread::spawn(move || run(&shared, me, publishers))
        })
        .collect();
    run(&shared, 0, publishers);
    for other in others {
        other.join().expect("loom reports a panic itself");
    }
}

#[test]
fn a_record_larger_than_the_ring_passes_through_it() {
    check_reaching(3, &SLEPT, || ranks(2, 1));
}

#[test]
fn two_ranks_pass_records_larger_than_their_rings_to_each_other() {
    check_reaching(3, &SLEPT, || ranks(2, 2));
}

#[test]
fn a_publisher_that_waits_for_room_without_taking_is_noticed() {
    notices(
        || mutate(Site::PublishBlocks),
        DEADLOCK,
        2,
        || {
            ranks(2, 2);
        },
    );
}

#[test]
fn even_alone_a_publisher_must_take_while_it_waits_for_room() {
    check(2, || ranks(1, 1));
    notices(
        || mutate(Site::PublishBlocks),
        DEADLOCK,
        2,
        || {
            ranks(1, 1);
        },
    );
}
