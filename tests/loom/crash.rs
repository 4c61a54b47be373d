//! Model 7: a producer that ends anywhere leaves a prefix of whole frames.

use crate::run::{
    Memory, RACE, check, check_reaching, drain, header, notices, reached, send, take_some,
};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::sync::{Site, mutate};
use loom::thread;

/// Where the producer ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It has reserved.
    Reserved,
    /// It has written half of the payload.
    HalfWritten,
    /// It has written the payload.
    Written,
    /// It is inside of the commit.
    Inside(Site),
    /// It has published; nobody was woken.
    Published,
}

const ENDS: [End; 6] = [
    End::Reserved,
    End::HalfWritten,
    End::Written,
    End::Inside(Site::StopAfterPadding),
    End::Inside(Site::StopAfterHeader),
    End::Published,
];

/// Two units of payload, in a ring of 8 that starts at its last but one, so that the first frame needs padding.
const PAYLOAD: usize = 128;
const POSITION: u64 = 6 * 64;

/// The producer publishes `whole` frames and ends in the next one.
fn a_producer_that_ends(whole: u64, end: End) {
    let memory = Memory::at(POSITION, 1, 8);
    let taker = {
        let memory = memory.clone();
        thread::spawn(move || {
            let mut consumer = Consumer::at(0, POSITION);
            let next = take_some(memory.ring(), &mut consumer, 3);
            (consumer, next)
        })
    };
    let ring = memory.ring();
    let mut producer = Producer::at(POSITION);
    for value in 0..whole {
        assert!(send(ring, &mut producer, value, PAYLOAD));
    }
    let mut grant = ring
        .reserve(&mut producer, PAYLOAD)
        .expect("two frames and the padding fit");
    let written = match end {
        End::Reserved => 0,
        End::HalfWritten => PAYLOAD / 2,
        _ => PAYLOAD,
    };
    for at in (0..written).step_by(8) {
        assert!(grant.write(at, &whole.to_ne_bytes()));
    }
    match end {
        End::Inside(site) => {
            let stop = mutate(site);
            grant.commit(header(whole));
            drop(stop);
        }
        End::Published => grant.commit(header(whole)),
        _ => drop(grant),
    }
    let published = whole + u64::from(matches!(end, End::Published));
    let (mut consumer, next) = taker.join().expect("loom reports a panic itself");
    drain(memory.ring(), &mut consumer, next, published);
}

#[test]
fn a_producer_that_ends_anywhere_leaves_whole_frames_only() {
    for whole in 0..2 {
        for end in ENDS {
            check(3, move || a_producer_that_ends(whole, end));
        }
    }
}

#[test]
fn a_dropped_grant_leaves_room_for_the_next() {
    check_reaching(3, &["the third was sent"], || {
        let memory = Memory::new(1, 2);
        let taker = {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut consumer = Consumer::at(0, 0);
                let next = take_some(memory.ring(), &mut consumer, 2);
                (consumer, next)
            })
        };
        let mut producer = Producer::default();
        let mut sent = 0;
        for _ in 0..3 {
            drop(memory.ring().reserve(&mut producer, 0));
            sent += u64::from(send(memory.ring(), &mut producer, sent, 0));
        }
        if sent == 3 {
            reached("the third was sent");
        }
        let (mut consumer, next) = taker.join().expect("loom reports a panic itself");
        drain(memory.ring(), &mut consumer, next, sent);
    });
}

#[test]
fn a_tail_stored_before_the_frame_is_complete_is_noticed() {
    notices(
        || mutate(Site::TailBeforeFrame),
        RACE,
        2,
        || {
            a_producer_that_ends(0, End::Published);
        },
    );
}
