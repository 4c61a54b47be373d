//! Model 5: frames of different sizes, and padding where the end of the ring is too short.

use crate::run::{Memory, RACE, check_reaching, drain, notices, reached, send, take_some};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::sync::{Site, mutate};
use loom::thread;

/// Units of the frames: the third one does not fit the last unit of the ring.
const PAYLOADS: [usize; 4] = [0, 8, 8, 0];

fn frames_of_one_and_two_units() {
    let memory = Memory::new(1, 4);
    let taker = {
        let memory = memory.clone();
        thread::spawn(move || {
            let mut consumer = Consumer::at(0, 0);
            let mut position = 0;
            let mut next = 0;
            for _ in 0..4 {
                next += take_from(&memory, &mut consumer, next);
                assert!(consumer.position() >= position, "positions only grow");
                position = consumer.position();
            }
            (consumer, next)
        })
    };
    let mut producer = Producer::default();
    let mut sent = 0;
    for _ in 0..PAYLOADS.len() + 1 {
        if let Some(&payload) = PAYLOADS.get(sent) {
            sent += usize::from(send(memory.ring(), &mut producer, sent as u64, payload));
        }
    }
    let (mut consumer, next) = taker.join().expect("loom reports a panic itself");
    if sent == PAYLOADS.len() {
        reached("all frames were sent");
    }
    if next > 2 {
        reached("a frame behind padding was taken at once");
    }
    drain(memory.ring(), &mut consumer, next, sent as u64);
    assert_eq!(consumer.position(), producer.position());
}

fn take_from(memory: &Memory, consumer: &mut Consumer, next: u64) -> u64 {
    match crate::run::take(memory.ring(), consumer) {
        Some(value) => {
            assert_eq!(value, next, "in order");
            1
        }
        None => 0,
    }
}

#[test]
fn padding_is_skipped_and_never_delivered() {
    check_reaching(
        3,
        &[
            "all frames were sent",
            "a frame behind padding was taken at once",
        ],
        frames_of_one_and_two_units,
    );
}

#[test]
fn a_frame_behind_padding_is_there_when_the_padding_is() {
    check_reaching(2, &["nothing had come yet", "the frame had come"], || {
        // The very first frame needs padding, so that the consumer meets it at every moment.
        let memory = Memory::at(3 * 64, 1, 4);
        let taker = {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut consumer = Consumer::at(0, 3 * 64);
                let next = take_some(memory.ring(), &mut consumer, 2);
                (consumer, next)
            })
        };
        let mut producer = Producer::at(3 * 64);
        assert!(
            send(memory.ring(), &mut producer, 0, 8),
            "an empty ring has room"
        );
        let (mut consumer, next) = taker.join().expect("loom reports a panic itself");
        reached(if next == 0 {
            "nothing had come yet"
        } else {
            "the frame had come"
        });
        drain(memory.ring(), &mut consumer, next, 1);
    });
}

#[test]
fn delivered_padding_is_noticed() {
    notices(
        || mutate(Site::PaddingDelivered),
        "only the user's frames",
        2,
        frames_of_one_and_two_units,
    );
}

#[test]
fn padding_written_after_the_tail_is_noticed() {
    notices(
        || mutate(Site::PaddingAfterTail),
        RACE,
        2,
        frames_of_one_and_two_units,
    );
}
