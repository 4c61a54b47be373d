//! Model 20: a consumer that has left holds nothing, and one that reads its last frame still does.

use crate::run::{Memory, RACE, check_reaching, drain, header, notices, reached, take_some};
use gradring::shm::ring::{Consumer, Producer, Refused};
use gradring::shm::seat::{Seat, Seated};
use gradring::shm::sync::Ordering::Relaxed;
use gradring::shm::sync::{Site, mutate, weaken};
use loom::thread;
use std::sync::Arc;

const FULL: &str = "the ring was full";
const PASSED: &str = "the one that had left was passed";
const PAYLOAD: usize = 8;

/// A ring of two frames, both published. Consumer 1 reads one of them, keeps it, and leaves; consumer 0 stays. Meanwhile
/// the producer has a third frame.
fn a_producer_and_a_consumer_that_leaves() {
    let memory = Memory::new(2, 4);
    let seat = Arc::new(Seat::new());
    assert!(seat.claim());
    seat.joined();
    let mut producer = Producer::default();
    let publish = |producer: &mut Producer, seat: &Seat, value: u64| {
        let has_left = |consumer| consumer == 1 && seat.get() == Seated::Left;
        match memory.ring().reserve_past(producer, PAYLOAD, has_left) {
            Ok(mut grant) => {
                assert!(grant.write(0, &value.to_ne_bytes()));
                grant.commit(header(value));
                true
            }
            Err(Refused::Full) => false,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(publish(&mut producer, &seat, 0) && publish(&mut producer, &seat, 1));
    let leaves = {
        let (memory, seat) = (memory.clone(), seat.clone());
        thread::spawn(move || {
            let mut consumer = Consumer::at(1, 0);
            let ring = memory.ring();
            let grant = ring
                .peek(&mut consumer)
                .expect("nobody breaks the protocol");
            let grant = grant.expect("two frames are there");
            let mut payload = Vec::new();
            grant.copy_payload(&mut payload);
            assert_eq!(payload, 0_u64.to_ne_bytes(), "the frame is torn");
            drop(grant);
            seat.leave();
        })
    };
    let mut stays = Consumer::at(0, 0);
    let next = take_some(memory.ring(), &mut stays, 2);
    let mut sent = 2;
    for _ in 0..2 {
        if publish(&mut producer, &seat, sent) {
            sent += 1;
            reached(PASSED);
        } else {
            reached(FULL);
        }
    }
    drain(memory.ring(), &mut stays, next, sent);
    leaves.join().expect("loom reports a panic itself");
}

#[test]
fn who_has_left_is_passed_and_who_still_reads_is_not() {
    check_reaching(4, &[FULL, PASSED], a_producer_and_a_consumer_that_leaves);
}

#[test]
fn passing_a_consumer_that_reads_is_noticed() {
    notices(
        || mutate(Site::PassesReader),
        RACE,
        2,
        a_producer_and_a_consumer_that_leaves,
    );
}

#[test]
fn leaving_without_ordering_is_noticed_by_the_producer() {
    notices(
        || weaken(Site::SeatStore, Relaxed),
        RACE,
        2,
        a_producer_and_a_consumer_that_leaves,
    );
}

#[test]
fn a_leave_seen_without_ordering_is_noticed_by_the_producer() {
    notices(
        || weaken(Site::SeatLoad, Relaxed),
        RACE,
        2,
        a_producer_and_a_consumer_that_leaves,
    );
}
