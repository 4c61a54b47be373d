//! Honest users: the ring is a queue for each consumer.

use crate::memory::{KIND, Memory, position, send, take};
use gradring::shm::frame::{Header, UNIT};
use gradring::shm::ring::{Arena, Consumer, Producer, Refused, Ring};
use gradring::shm::sync::Ordering;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Action {
    /// Publish so many bytes, of so many reserved, if there is room.
    Send { payload: usize, reserved: usize },
    /// Reserve, write, and drop.
    GiveUp { payload: usize },
    /// A consumer takes a frame if there is one.
    Take { consumer: usize },
    /// A consumer looks and does not take.
    Look { consumer: usize },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0..2_100usize, 0..100usize).prop_map(|(payload, more)| Action::Send {
            payload,
            reserved: payload + more,
        }),
        1 => (0..2_100usize).prop_map(|payload| Action::GiveUp { payload }),
        6 => (0..4usize).prop_map(|consumer| Action::Take { consumer }),
        1 => (0..4usize).prop_map(|consumer| Action::Look { consumer }),
    ]
}

/// Room that a frame of this payload takes at this position, padding included.
fn taken_at(position: u64, payload: usize, capacity: u64) -> u64 {
    let units = ((UNIT + payload).div_ceil(UNIT) * UNIT) as u64;
    let left = capacity - position % capacity;
    if units > left { left + units } else { units }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_ring_is_a_queue_for_each_consumer(
        start in position(),
        log in 7..13u32,
        consumers in 1..5usize,
        actions in prop::collection::vec(action(), 1..300),
    ) {
        let memory = Memory::at(start, consumers, 1 << log);
        let ring = memory.ring();
        let capacity = ring.capacity();
        prop_assert_eq!(capacity, 1 << log);
        prop_assert_eq!(ring.max_payload() as u64, capacity / 2 - UNIT as u64);
        let mut producer = Producer::at(start);
        let mut readers: Vec<_> = (0..consumers).map(|me| Consumer::at(me, start)).collect();
        let mut queues = vec![VecDeque::new(); consumers];
        let mut seed = 0u8;
        let cursor = |me: usize| memory.cursors[me].load(Ordering::Relaxed);
        for action in actions {
            let gate = (0..consumers).map(cursor).min().expect("one at least");
            let published = producer.position();
            prop_assert_eq!(published, memory.tail.load(Ordering::Relaxed));
            prop_assert!(published - gate <= capacity);
            match action {
                Action::Send { payload, reserved } => {
                    let room = capacity - (published - gate);
                    match ring.reserve(&mut producer, reserved) {
                        Ok(mut grant) => {
                            prop_assert!(taken_at(published, reserved, capacity) <= room);
                            grant.shorten(reserved + 1);
                            prop_assert_eq!(grant.payload_len(), reserved);
                            grant.shorten(payload);
                            prop_assert_eq!(grant.payload_len(), payload);
                            seed = seed.wrapping_add(1);
                            prop_assert!(grant.write(0, &vec![seed; payload]));
                            prop_assert!(!grant.write(payload, &[0]));
                            let mut header = Header::new(KIND);
                            header.user = [seed; 44];
                            header.tail = [seed; 8];
                            grant.commit(header);
                            for queue in &mut queues {
                                queue.push_back((seed, payload));
                            }
                        }
                        Err(Refused::Full) => {
                            prop_assert!(taken_at(published, reserved, capacity) > room);
                            prop_assert!(gate < published, "an empty ring has room for every frame");
                        }
                        Err(Refused::TooLarge { max }) => {
                            prop_assert_eq!(max, ring.max_payload());
                            prop_assert!(reserved > max);
                        }
                        Err(other) => prop_assert!(false, "{other}"),
                    }
                }
                Action::GiveUp { payload } => {
                    if let Ok(mut grant) = ring.reserve(&mut producer, payload) {
                        prop_assert!(grant.write(0, &vec![0xEE; payload]));
                    }
                    prop_assert_eq!(producer.position(), published);
                }
                Action::Take { consumer } => {
                    let me = consumer % consumers;
                    let before = cursor(me);
                    let found = take(ring, &mut readers[me]).expect("all are honest");
                    prop_assert_eq!(found, queues[me].pop_front());
                    prop_assert_eq!(cursor(me) > before, found.is_some());
                }
                Action::Look { consumer } => {
                    let me = consumer % consumers;
                    let before = cursor(me);
                    let seen = ring.peek(&mut readers[me]).expect("all are honest");
                    let seen = seen.map(|grant| (grant.header().user[0], grant.payload_len()));
                    prop_assert_eq!(seen, queues[me].front().copied());
                    prop_assert_eq!(cursor(me), before, "a look consumes nothing");
                }
            }
            prop_assert!((0..consumers).all(|me| ring.released(me) == cursor(me)));
        }
        for (reader, queue) in readers.iter_mut().zip(&mut queues) {
            while let Some(expected) = queue.pop_front() {
                prop_assert_eq!(take(ring, reader), Ok(Some(expected)));
            }
            prop_assert_eq!(take(ring, reader), Ok(None));
            prop_assert_eq!(reader.position(), producer.position());
        }
    }

    #[test]
    fn a_write_outside_of_the_payload_is_refused(
        payload in 0..200usize,
        offset in prop_oneof![0..300usize, Just(usize::MAX), Just(usize::MAX - 10), Just(1 << 63)],
        length in 0..300usize,
    ) {
        let memory = Memory::at(512 - 64, 1, 512);
        let mut producer = Producer::at(512 - 64);
        let mut grant = memory.ring().reserve(&mut producer, payload.min(192)).expect("empty");
        let fits = offset.checked_add(length).is_some_and(|end| end <= payload.min(192));
        prop_assert_eq!(grant.write(offset, &vec![9; length]), fits);
        grant.commit(Header::new(KIND));
        let mut consumer = Consumer::at(0, 512 - 64);
        let grant = memory.ring().peek(&mut consumer).expect("honest").expect("published");
        let mut read = vec![0; length];
        prop_assert_eq!(grant.read(offset, &mut read), fits);
        prop_assert_eq!(read, vec![if fits { 9 } else { 0 }; length]);
    }
}

#[test]
fn the_largest_frame_fits_an_empty_ring_at_every_offset() {
    for units in 0..16u64 {
        let start = (1 << 63) - 8 * 64 + units * 64;
        let memory = Memory::at(start, 1, 1024);
        let (mut producer, mut consumer) = (Producer::at(start), Consumer::at(0, start));
        let max = memory.ring().max_payload();
        assert_eq!(max, 448);
        for seed in 0..40 {
            send(memory.ring(), &mut producer, seed, max).expect("empty");
            assert_eq!(take(memory.ring(), &mut consumer), Ok(Some((seed, max))));
        }
        let refusal = send(memory.ring(), &mut producer, 0, max + 1).expect_err("too large");
        assert_eq!(refusal, Refused::TooLarge { max });
        let refusal = send(memory.ring(), &mut producer, 0, 1 << 40);
        assert_eq!(refusal, Err(Refused::TooLarge { max }));
    }
}

#[test]
fn a_ring_too_small_for_any_frame_refuses_all() {
    for length in [0, 8, 63, 64, 100, 127] {
        let memory = Memory::at(0, 1, 128);
        // SAFETY: as in `Memory::ring`.
        let arena = unsafe { Arena::from_raw(memory.base, length) };
        let ring = Ring::new(&memory.tail, &memory.cursors, arena);
        let refusal = ring.reserve(&mut Producer::default(), 0).map(|_| ());
        assert_eq!(refusal, Err(Refused::TooLarge { max: 0 }));
        memory.tail.store(64, Ordering::Relaxed);
        assert!(ring.peek(&mut Consumer::at(0, 0)).is_err());
    }
}

#[test]
fn a_ring_without_consumers_is_never_full() {
    let memory = Memory::at(0, 0, 256);
    let mut producer = Producer::default();
    for seed in 0..100 {
        send(memory.ring(), &mut producer, seed, 64).expect("nobody holds anything");
    }
    assert_eq!(memory.ring().released(0), 0, "no such consumer");
}

/// A fixed sequence of frame sizes, the same for both sides.
fn sizes(seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % 1_985
    })
}

#[test]
fn threads_that_hammer_a_ring_lose_and_tear_nothing() {
    const FRAMES: usize = 20_000;
    let start = (1 << 32) - 64 * 100;
    let memory = Memory::at(start, 3, 4096);
    std::thread::scope(|scope| {
        for me in 0..3 {
            let memory = &memory;
            scope.spawn(move || {
                let mut consumer = Consumer::at(me, start);
                for (frame, payload) in sizes(7).take(FRAMES).enumerate() {
                    let found = loop {
                        match take(memory.ring(), &mut consumer).expect("all are honest") {
                            Some(found) => break found,
                            None => std::thread::yield_now(),
                        }
                    };
                    assert_eq!(found, (frame as u8, payload));
                }
            });
        }
        let mut producer = Producer::at(start);
        for (frame, payload) in sizes(7).take(FRAMES).enumerate() {
            while let Err(refusal) = send(memory.ring(), &mut producer, frame as u8, payload) {
                assert_eq!(refusal, Refused::Full);
                std::thread::yield_now();
            }
        }
    });
    let tail = memory.tail.load(Ordering::Relaxed);
    assert!(
        memory
            .cursors
            .iter()
            .all(|cursor| cursor.load(Ordering::Relaxed) == tail)
    );
}
