//! Bytes that no honest peer writes.

use crate::memory::{KIND, Memory, position, send, take};
use gradring::shm::frame::{Corrupt, Header, MAGIC, PADDING, UNIT, VERSION};
use gradring::shm::ring::{Consumer, Producer, Refused};
use gradring::shm::sync::Ordering;
use proptest::prelude::*;

/// A header with a right checksum, whatever it says.
fn forged(kind: u8, length: u32) -> [u8; UNIT] {
    let mut bytes = [0u8; UNIT];
    bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[2] = VERSION;
    bytes[3] = kind;
    bytes[48..52].copy_from_slice(&length.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Something that no honest peer does.
#[derive(Clone, Debug)]
enum Hostility {
    Tail(u64),
    Cursor(usize, u64),
    Arena(usize, Vec<u8>),
    Forged { unit: usize, kind: u8, length: u32 },
}

fn hostile_position(start: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..200u64).prop_map(move |units| start.wrapping_add(units * UNIT as u64)),
        (0..10_000u64).prop_map(move |bytes| start.wrapping_add(bytes)),
        Just(u64::MAX),
        Just(u64::MAX - 63),
        Just(0),
    ]
}

fn hostility(start: u64) -> impl Strategy<Value = Hostility> {
    let length = prop_oneof![
        any::<u32>(),
        0..5_000u32,
        (0..80u32).prop_map(|units| units * 64)
    ];
    prop_oneof![
        hostile_position(start).prop_map(Hostility::Tail),
        (0..3usize, hostile_position(start)).prop_map(|(me, at)| Hostility::Cursor(me, at)),
        (any::<usize>(), prop::collection::vec(any::<u8>(), 1..100))
            .prop_map(|(at, bytes)| Hostility::Arena(at % 100_000, bytes)),
        (0..64usize, 0..3u8, length).prop_map(|(unit, kind, length)| Hostility::Forged {
            unit,
            kind,
            length,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_in_the_segment_cause_a_panic_or_an_access_outside(
        (start, script) in position().prop_flat_map(|start| {
            let step = (hostility(start), 0..2_200usize, 0..3usize);
            (Just(start), prop::collection::vec(step, 1..60))
        }),
        log in 6..12u32,
    ) {
        let memory = Memory::at(start, 3, 1 << log);
        let ring = memory.ring();
        let mut producer = Producer::at(start);
        let mut readers: Vec<_> = (0..3).map(|me| Consumer::at(me, start)).collect();
        for (hostility, payload, me) in script {
            match hostility {
                Hostility::Tail(at) => memory.tail.store(at, Ordering::Relaxed),
                Hostility::Cursor(me, at) => memory.cursors[me].store(at, Ordering::Relaxed),
                Hostility::Arena(at, bytes) => memory.scribble(at, &bytes),
                Hostility::Forged { unit, kind, length } => {
                    memory.scribble(unit * UNIT, &forged(kind, length));
                }
            }
            if let Ok(mut grant) = ring.reserve(&mut producer, payload) {
                prop_assert!(grant.write(0, &vec![1; payload]));
                // Every byte of the grant, up to the one before the forbidden page.
                let first = grant.as_mut_ptr();
                for i in 0..payload {
                    // SAFETY: the grant says so; it is what is tested.
                    unsafe { first.add(i).write_volatile(2) };
                }
                grant.commit(Header::new(KIND));
            }
            for reader in [me, (me + 1) % 3] {
                if let Ok(Some(grant)) = ring.peek(&mut readers[reader]) {
                    let mut payload = Vec::new();
                    grant.copy_payload(&mut payload);
                    prop_assert_eq!(payload.len(), grant.payload_len());
                    prop_assert!(payload.len() <= ring.max_payload());
                    let first = grant.as_ptr();
                    for i in 0..payload.len() {
                        // SAFETY: the grant says so; it is what is tested.
                        unsafe { first.add(i).read_volatile() };
                    }
                    if i32::from(payload.first().copied().unwrap_or(0)) % 2 == 0 {
                        grant.release();
                    }
                }
            }
            prop_assert_eq!(ring.released(3), 0, "no such consumer");
        }
    }
}

#[test]
fn every_flipped_byte_of_a_header_is_corrupt_and_consumes_nothing() {
    let memory = Memory::at(0, 1, 1024);
    let (mut producer, mut consumer) = (Producer::default(), Consumer::at(0, 0));
    send(memory.ring(), &mut producer, 5, 100).expect("empty");
    for at in 0..UNIT {
        for change in [1, 0x80, 0xFF] {
            let byte = memory.byte(at);
            memory.scribble(at, &[byte ^ change]);
            let refusal = memory.ring().peek(&mut consumer).err();
            assert!(refusal.is_some(), "byte {at} xor {change}");
            assert_eq!(memory.cursors[0].load(Ordering::Relaxed), 0);
            memory.scribble(at, &[byte]);
        }
    }
    assert_eq!(take(memory.ring(), &mut consumer), Ok(Some((5, 100))));
}

#[test]
fn a_length_that_cannot_be_is_corrupt_also_with_a_right_checksum() {
    // 512 bytes published, of a ring of 1024.
    let look = |offset: u64, kind: u8, length: u32| {
        let memory = Memory::at(offset, 1, 1024);
        memory.tail.store(offset + 512, Ordering::Relaxed);
        memory.scribble(offset as usize, &forged(kind, length));
        let mut consumer = Consumer::at(0, offset);
        let found = memory
            .ring()
            .peek(&mut consumer)
            .map(|grant| grant.is_some());
        assert_eq!(memory.cursors[0].load(Ordering::Relaxed), offset);
        found
    };
    for length in [0, 1, 63, 513, 576, 1024, u32::MAX] {
        let found = u64::from(length);
        assert_eq!(
            look(0, KIND, length),
            Err(Corrupt::Length {
                min: 64,
                max: 512,
                found
            })
        );
    }
    for length in [64, 65, 511, 512] {
        assert_eq!(look(0, KIND, length), Ok(true));
    }
    // 128 bytes are left before the end.
    assert_eq!(look(896, KIND, 128), Ok(true));
    assert_eq!(
        look(896, KIND, 129),
        Err(Corrupt::Length {
            min: 64,
            max: 128,
            found: 129
        })
    );
    // Padding reaches the end exactly, is shorter than half the ring, and has a frame behind it.
    assert_eq!(
        look(896, PADDING, 64),
        Err(Corrupt::Padding {
            room: 128,
            found: 64
        })
    );
    assert_eq!(
        look(896, PADDING, 129),
        Err(Corrupt::Padding {
            room: 128,
            found: 129
        })
    );
    assert_eq!(
        look(0, PADDING, 512),
        Err(Corrupt::Padding {
            room: 1024,
            found: 512
        })
    );
    assert_eq!(
        look(512, PADDING, 512),
        Err(Corrupt::Padding {
            room: 512,
            found: 512
        })
    );
}

#[test]
fn padding_without_a_frame_behind_it_is_corrupt() {
    let look = |published: u64, behind: [u8; UNIT]| {
        let memory = Memory::at(896, 1, 1024);
        memory.tail.store(896 + published, Ordering::Relaxed);
        memory.scribble(896, &forged(PADDING, 128));
        memory.scribble(0, &behind);
        let mut consumer = Consumer::at(0, 896);
        memory
            .ring()
            .peek(&mut consumer)
            .map(|grant| grant.is_some())
    };
    let padding = Corrupt::Padding {
        room: 128,
        found: 128,
    };
    assert_eq!(look(128, forged(KIND, 64)), Err(padding));
    assert_eq!(look(192, forged(KIND, 64)), Ok(true));
    assert_eq!(
        look(192, forged(PADDING, 64)),
        Err(Corrupt::Padding {
            room: 1024,
            found: 64
        })
    );
}

#[test]
fn impossible_positions_are_named() {
    let memory = Memory::at(1024, 2, 512);
    let ring = memory.ring();
    let mut consumer = Consumer::at(0, 1024);
    let mut tail = |at| {
        memory.tail.store(at, Ordering::Relaxed);
        ring.peek(&mut consumer).map(|grant| grant.is_some())
    };
    assert_eq!(
        tail(960),
        Err(Corrupt::TailWentBack {
            expected: 1024,
            found: 960
        })
    );
    assert_eq!(
        tail(1600),
        Err(Corrupt::TailTooFar {
            expected: 1536,
            found: 1600
        })
    );
    assert_eq!(tail(1025), Err(Corrupt::Misaligned { found: 1025 }));
    assert_eq!(tail(1024), Ok(false));

    let mut producer = Producer::at(1024);
    for seed in 0..2 {
        send(ring, &mut producer, seed, 192).expect("empty");
    }
    let mut cursor = |at| {
        memory.cursors[1].store(at, Ordering::Relaxed);
        ring.reserve(&mut producer, 0)
            .map(|_| ())
            .expect_err("full")
    };
    let corrupt = |why| Refused::Corrupt { consumer: 1, why };
    let back = Corrupt::CursorWentBack {
        expected: 1024,
        found: 960,
    };
    assert_eq!(cursor(960), corrupt(back));
    let past = Corrupt::CursorPastTail {
        expected: 1536,
        found: 1600,
    };
    assert_eq!(cursor(1600), corrupt(past));
    assert_eq!(cursor(1030), corrupt(Corrupt::Misaligned { found: 1030 }));
    assert_eq!(cursor(1024), Refused::Full);
}
