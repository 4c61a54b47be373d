//! Models 1 to 4: what is published arrives, once, in order, whole, at every consumer.

use crate::run::{
    Memory, OVERTAKEN, RACE, check_reaching, drain, notices, reached, send, take_some,
};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::sync::{Ordering::Relaxed, Site, mutate, weaken};
use loom::thread;

/// A consumer was behind, and the producer was refused.
const FULL: &str = "the ring was full";
/// The consumers gave the room back in time for every frame.
const ALL_SENT: &str = "all frames were sent";

/// One producer that tries `sends` times to publish, and `consumers` that try `takes` times to take; then everything is
/// drained.
#[derive(Clone, Copy)]
struct Scenario {
    position: u64,
    units: usize,
    payload: usize,
    consumers: usize,
    sends: usize,
    takes: usize,
}

impl Scenario {
    fn run(self) {
        let memory = Memory::at(self.position, self.consumers, self.units);
        let consumers: Vec<_> = (0..self.consumers)
            .map(|me| {
                let memory = memory.clone();
                thread::spawn(move || {
                    let mut consumer = Consumer::at(me, self.position);
                    let next = take_some(memory.ring(), &mut consumer, self.takes);
                    (consumer, next)
                })
            })
            .collect();
        let mut producer = Producer::at(self.position);
        let mut sent = 0;
        for _ in 0..self.sends {
            if send(memory.ring(), &mut producer, sent, self.payload) {
                sent += 1;
            } else {
                reached(FULL);
            }
        }
        if sent == self.sends as u64 {
            reached(ALL_SENT);
        }
        for consumer in consumers {
            let (mut consumer, next) = consumer.join().expect("loom reports a panic itself");
            drain(memory.ring(), &mut consumer, next, sent);
        }
    }
}

/// 1: two frames of two units each fit.
const ONE_CONSUMER: Scenario = Scenario {
    position: 0,
    units: 4,
    payload: 8,
    consumers: 1,
    sends: 4,
    takes: 3,
};
/// 2: the third frame needs the place of the first.
const TWO_CONSUMERS: Scenario = Scenario {
    position: 0,
    units: 2,
    payload: 0,
    consumers: 2,
    sends: 3,
    takes: 1,
};
/// 3: twice around, across the boundary of signed positions.
const WRAP_AROUND: Scenario = Scenario {
    position: (1 << 63) - 64,
    units: 2,
    payload: 0,
    consumers: 2,
    sends: 4,
    takes: 2,
};
/// 4.
const THREE_CONSUMERS: Scenario = Scenario {
    position: 0,
    units: 2,
    payload: 0,
    consumers: 3,
    sends: 3,
    takes: 1,
};

#[test]
fn one_consumer_takes_everything_in_order() {
    check_reaching(4, &[FULL, ALL_SENT], || ONE_CONSUMER.run());
}

#[test]
fn a_tail_stored_too_weakly_is_noticed() {
    notices(
        || weaken(Site::TailStore, Relaxed),
        RACE,
        2,
        || {
            ONE_CONSUMER.run();
        },
    );
}

#[test]
fn a_tail_loaded_too_weakly_is_noticed() {
    notices(
        || weaken(Site::TailLoad, Relaxed),
        RACE,
        2,
        || {
            ONE_CONSUMER.run();
        },
    );
}

#[test]
fn the_producer_never_overwrites_what_the_slower_consumer_reads() {
    check_reaching(4, &[FULL, ALL_SENT], || TWO_CONSUMERS.run());
}

#[test]
fn a_cursor_stored_too_weakly_is_noticed() {
    notices(
        || weaken(Site::CursorStore, Relaxed),
        RACE,
        2,
        || {
            TWO_CONSUMERS.run();
        },
    );
}

#[test]
fn a_cursor_loaded_too_weakly_is_noticed() {
    notices(
        || weaken(Site::GateLoad, Relaxed),
        RACE,
        2,
        || {
            TWO_CONSUMERS.run();
        },
    );
}

#[test]
fn waiting_for_the_fastest_consumer_is_noticed() {
    notices(
        || mutate(Site::GateFastest),
        OVERTAKEN,
        2,
        || {
            TWO_CONSUMERS.run();
        },
    );
}

#[test]
fn two_consumers_take_everything_around_the_ring() {
    check_reaching(3, &[FULL, ALL_SENT], || WRAP_AROUND.run());
}

#[test]
fn a_unit_too_much_room_is_noticed() {
    notices(
        || mutate(Site::RoomOffByOne),
        OVERTAKEN,
        2,
        || {
            WRAP_AROUND.run();
        },
    );
}

#[test]
fn the_producer_waits_for_all_of_three_consumers() {
    check_reaching(3, &[FULL, ALL_SENT], || THREE_CONSUMERS.run());
}

#[test]
fn a_forgotten_cursor_is_noticed() {
    notices(
        || mutate(Site::GateForgetsOne),
        OVERTAKEN,
        2,
        || {
            THREE_CONSUMERS.run();
        },
    );
}
