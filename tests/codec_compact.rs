//! The compact format: what goes in comes out, it is near the entropy, and any bytes are refused or are the one stream
//! of what they say.

use gradring::codec::compact::{CompactError, decode, decode_front, encode};
use gradring::codec::{Apply, BLOCK, CHUNK, Format, Path, Record, payload_len};
use proptest::prelude::*;
use random::Random;

#[path = "plain/random.rs"]
mod random;

/// Elements and their signs, ascending.
type Hits = Vec<(usize, bool)>;

fn evenly(random: &mut Random, elements: usize, density: f64) -> Hits {
    (0..elements)
        .map(|i| (i, random.happens(density), random.next() & 1 == 1))
        .filter(|(_, hit, _)| *hit)
        .map(|(i, _, negative)| (i, negative))
        .collect()
}

/// Rows of which some have hits and most have none, as in an embedding.
fn in_rows(random: &mut Random, elements: usize, row: usize, density: f64) -> Hits {
    let mut hits = Vec::new();
    for first in (0..elements).step_by(row) {
        if random.happens(density) {
            let end = (first + row).min(elements);
            hits.extend(
                (first..end).filter_map(|i| random.happens(0.5).then_some((i, i % 3 == 0))),
            );
        }
    }
    hits
}

fn payload(format: Format, elements: usize, hits: &Hits) -> Vec<u8> {
    let mut payload = vec![0; payload_len(format, elements, hits.len()).unwrap()];
    let blocks = elements.div_ceil(BLOCK);
    for (at, &(i, negative)) in hits.iter().enumerate() {
        match format {
            Format::Sparse => {
                let count = &mut payload[2 * (i / BLOCK)..][..2];
                let more = u16::from_le_bytes([count[0], count[1]]) + 1;
                count.copy_from_slice(&more.to_le_bytes());
                let code = (i % BLOCK) as u16 | u16::from(negative) << 15;
                payload[2 * (blocks + at)..][..2].copy_from_slice(&code.to_le_bytes());
            }
            _ => payload[i / 4] |= (1 + u8::from(negative)) << (2 * (i % 4)),
        }
    }
    payload
}

fn stream(format: Format, elements: usize, hits: &Hits) -> Vec<u8> {
    let payload = payload(format, elements, hits);
    let hits = hits.len() as u32;
    let record = Record {
        format,
        hits,
        elements,
        payload: &payload,
    };
    let mut bytes = vec![7; 3];
    let taken = encode(&record, &mut bytes).unwrap();
    assert_eq!(
        (taken, &bytes[..3]),
        (bytes.len() - 3, &[7, 7, 7][..]),
        "it appends"
    );
    bytes.split_off(3)
}

/// The bits of a random ternary vector of this density.
fn entropy(elements: usize, hits: usize) -> f64 {
    let p = hits as f64 / elements as f64;
    let term = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    elements as f64 * (term(p) + term(1.0 - p)) + hits as f64
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0usize..200,
        4 => 200usize..9000,
        3 => prop::sample::select(vec![BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 33, 2 * BLOCK + 17]),
        2 => prop::sample::select(vec![CHUNK - 1, CHUNK]),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Evenly(f64),
    Rows(usize, f64),
    All,
    /// Nothing but the first and the last elements of blocks, and their neighbours.
    Edges,
    /// Each block with a density of its own.
    Blocks,
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => (0f64..5.0).prop_map(|x| Kind::Evenly(10f64.powf(-x))),
        2 => (1usize..3000, 0f64..1.0).prop_map(|(row, density)| Kind::Rows(row, density * density)),
        1 => Just(Kind::All),
        1 => Just(Kind::Edges),
        2 => Just(Kind::Blocks),
    ]
}

fn hits(random: &mut Random, elements: usize, kind: Kind) -> Hits {
    match kind {
        Kind::Evenly(density) => evenly(random, elements, density),
        Kind::Rows(row, density) => in_rows(random, elements, row, density),
        Kind::All => evenly(random, elements, 1.0),
        Kind::Edges => (0..elements)
            .filter(|i| [0, 1, BLOCK - 2, BLOCK - 1].contains(&(i % BLOCK)) || i + 1 == elements)
            .map(|i| (i, i % 3 == 1))
            .filter(|_| random.happens(0.7))
            .collect(),
        Kind::Blocks => {
            let mut hits = Vec::new();
            for first in (0..elements).step_by(BLOCK) {
                let density = [0.0, 1e-3, 1e-2, 0.1, 0.5, 1.0][random.index(6)];
                let found = evenly(random, BLOCK.min(elements - first), density);
                hits.extend(found.into_iter().map(|(i, negative)| (first + i, negative)));
            }
            hits
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_goes_in_comes_out_whatever_the_format_and_the_hits(
        (elements, kind, seed) in (lengths(), kinds(), any::<u64>()),
    ) {
        let hits = hits(&mut Random(seed), elements, kind);
        let bytes = stream(Format::Sparse, elements, &hits);
        prop_assert_eq!(&stream(Format::Bitmap, elements, &hits), &bytes);
        prop_assert!(8 * bytes.len() <= 35 * hits.len() + 33 + 7);

        let mut back = vec![9; 5];
        decode(&bytes, elements, hits.len() as u32, &mut back).unwrap();
        prop_assert_eq!(back.drain(..5).collect::<Vec<_>>(), [9; 5], "it appends");
        prop_assert!(back == payload(Format::Sparse, elements, &hits));
        // It is a record as any.
        let record = Record {
            format: Format::Sparse, hits: hits.len() as u32, elements, payload: &back,
        };
        let mut sum = vec![0.0; elements];
        Path::best().apply(&record, 1.0, Apply::Add, &mut sum).unwrap();
        prop_assert_eq!(sum.iter().filter(|x| **x != 0.0).count(), hits.len());

        // Another stream may follow.
        let mut longer = bytes.clone();
        longer.extend([0xa5; 11]);
        let mut again = Vec::new();
        let taken = decode_front(&longer, elements, hits.len() as u32, &mut again);
        prop_assert_eq!(taken, Ok(bytes.len()));
        prop_assert!(again == back);
    }

    #[test]
    fn any_bytes_are_refused_or_are_the_one_stream_of_what_they_say(
        (elements, kind, seed) in (lengths(), kinds(), any::<u64>()),
        (changes, fresh) in (0usize..4, any::<bool>()),
    ) {
        let random = &mut Random(seed);
        let hits = hits(random, elements, kind);
        let (mut count, mut elements, mut bytes) =
            (hits.len() as u32, elements, stream(Format::Sparse, elements, &hits));
        if fresh {
            // Many ones make short gaps, and so hits that fit.
            bytes.iter_mut().for_each(|byte| *byte = (random.next() | random.next()) as u8);
        }
        for _ in 0..changes {
            let at = random.index(bytes.len().max(1));
            match random.index(12) {
                0 => count = random.next() as u32,
                1 => count = count.wrapping_add(random.index(3) as u32).wrapping_sub(1),
                2 => elements = random.index(2 * CHUNK),
                3 => bytes.truncate(at),
                4 => bytes.push(random.next() as u8),
                5 => elements += 1,
                _ => if let Some(byte) = bytes.get_mut(at) { *byte ^= 1 << random.index(8) },
            }
        }
        let mut back = vec![1, 2, 3];
        match decode(&bytes, elements, count, &mut back) {
            Err(_) => prop_assert_eq!(back, [1, 2, 3], "an error appends nothing"),
            Ok(()) => {
                let payload = &back[3..];
                let record = Record { format: Format::Sparse, hits: count, elements, payload };
                let mut again = Vec::new();
                encode(&record, &mut again).expect("what was decoded is a right record");
                prop_assert!(again == bytes, "a set of hits has one stream");
            }
        }
    }
}

#[test]
fn evenly_spread_hits_take_within_2_percent_of_their_entropy() {
    let random = &mut Random(41);
    for density in [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 5e-2] {
        // Single chunks, each with its own byte's end and its own luck: together; and a vector of many chunks.
        let chunks = if density < 1e-3 { 300 } else { 20 };
        let (mut bits, mut floor) = (0, 0.0);
        for _ in 0..chunks {
            let hits = evenly(random, CHUNK, density);
            let taken = 8 * stream(Format::Sparse, CHUNK, &hits).len();
            let least = entropy(CHUNK, hits.len());
            // No single chunk is far from it either: a byte's end and some bits of luck.
            assert!(
                (taken as f64) < 1.02 * least + 16.0,
                "density {density}: {taken} of {least}"
            );
            bits += taken;
            floor += least;
        }
        let over = bits as f64 / floor - 1.0;
        assert!(
            (-0.01..=0.02).contains(&over),
            "density {density}: {:.2} % over",
            100.0 * over
        );
    }
}

#[test]
fn a_nearly_empty_chunk_has_no_overhead() {
    for hits in 0..=3 {
        for first in [0, 12_345, CHUNK - 4] {
            let hits: Hits = (0..hits).map(|i| (first + i, false)).collect();
            let bytes = stream(Format::Sparse, CHUNK, &hits);
            assert!(
                bytes.len() <= 3 * hits.len(),
                "{} hits in {} bytes",
                hits.len(),
                bytes.len()
            );
        }
    }
    assert!(stream(Format::Sparse, 0, &vec![]).is_empty());
}

#[test]
fn clustered_hits_take_fewer_bits_than_evenly_spread_ones() {
    let random = &mut Random(5);
    // One row of 768 in a hundred, half of it hits.
    let hits = in_rows(random, CHUNK, 768, 0.02);
    let bytes = stream(Format::Sparse, CHUNK, &hits);
    let per_hit = 8.0 * bytes.len() as f64 / hits.len() as f64;
    assert!(
        hits.len() > 1000 && per_hit < 3.5,
        "{per_hit:.2} bits for each of {}",
        hits.len()
    );
    // Nor do single hits far away harm them.
    let mut with_strays = hits.clone();
    with_strays.extend((0..CHUNK).step_by(BLOCK / 3).map(|i| (i, true)));
    with_strays.sort_unstable();
    with_strays.dedup_by_key(|hit| hit.0);
    let more = stream(Format::Sparse, CHUNK, &with_strays).len() - bytes.len();
    assert!(8 * more <= 40 * 24, "24 strays took {more} bytes");
}

#[test]
fn dense_hits_never_take_more_than_a_bitmap() {
    let random = &mut Random(6);
    for density in [0.1, 0.3, 0.5, 0.8, 0.99, 1.0] {
        let hits = evenly(random, CHUNK, density);
        let bytes = stream(Format::Bitmap, CHUNK, &hits);
        assert!(
            bytes.len() <= CHUNK / 4 + 1,
            "density {density}: {} bytes",
            bytes.len()
        );
    }
}

#[test]
fn each_way_in_which_a_stream_can_be_wrong_has_its_name() {
    let refusal = |bytes: &[u8], elements, hits| {
        let mut out = vec![5];
        let error = decode(bytes, elements, hits, &mut out).unwrap_err();
        assert_eq!(out, [5]);
        error
    };
    let random = &mut Random(9);
    let hits = evenly(random, CHUNK, 1e-2);
    let count = hits.len() as u32;
    let fine = stream(Format::Sparse, CHUNK, &hits);

    assert_eq!(
        refusal(&fine, CHUNK + 1, count),
        CompactError::Elements {
            expected: CHUNK,
            found: CHUNK + 1
        }
    );
    assert_eq!(
        refusal(&fine, 5, 6),
        CompactError::TooManyHits {
            elements: 5,
            found: 6
        }
    );
    let short = |found| CompactError::Short {
        hits: hits.len(),
        found,
    };
    assert_eq!(
        refusal(&fine[..fine.len() - 1], CHUNK, count),
        short(fine.len() - 1)
    );
    assert_eq!(refusal(&[], CHUNK, count), short(0));
    assert_eq!(
        refusal(&[0xff; 8], CHUNK, u32::MAX / 2 % CHUNK as u32),
        CompactError::Short {
            hits: (u32::MAX / 2) as usize % CHUNK,
            found: 8
        }
    );
    let mut longer = fine.clone();
    longer.push(0);
    assert_eq!(
        refusal(&longer, CHUNK, count),
        CompactError::Length {
            expected: fine.len(),
            found: fine.len() + 1
        }
    );
    assert_eq!(
        refusal(&[0], 7, 0),
        CompactError::Length {
            expected: 0,
            found: 1
        }
    );

    // Element 3 of 4, then one more behind the end: with k = 0, bits 0, 0001 0, 1 0.
    assert_eq!(
        refusal(&[0b0101_0000], 4, 2),
        CompactError::Index {
            hit: 1,
            expected: 4,
            found: 4
        }
    );
    // Element 2, and a gap of 4: bits 0, 001 0, 00001.
    assert_eq!(
        refusal(&[0b0000_1000, 0b10], 4, 2),
        CompactError::Index {
            hit: 1,
            expected: 4,
            found: 7
        }
    );

    // The longest gaps that a stream can say: an escape of a single hit's parameter, and of a block's own largest.
    let longest = (16 << 17) + (1 << 18) - 1;
    assert_eq!(
        refusal(&[0, 0, 0xfc, 0xff, 0x0f], CHUNK, 1),
        CompactError::Index {
            hit: 0,
            expected: CHUNK,
            found: longest
        }
    );
    // Bits 1, 1111 for each of 8 blocks, then 16 zeros, 0, 18 ones.
    let mut own = [0xff; 11];
    own[4] = 0x01;
    own[5] = 0x00;
    own[6] = 0xfc;
    assert_eq!(
        refusal(&own, CHUNK, 2),
        CompactError::Index {
            hit: 0,
            expected: CHUNK,
            found: (16 << 15) + (1 << 18) - 1
        }
    );

    // Elements 0 and 1 of 4: bits 0, 1 0, 1 0, and zeros.
    let two = stream(Format::Sparse, 4, &vec![(0, false), (1, false)]);
    assert_eq!(two, [0b0000_1010]);
    assert_eq!(
        refusal(&[0b1100_1010], 4, 2),
        CompactError::Padding { found: 0b110 }
    );

    // The same with a parameter of its own: bits 1, 0000, 1 0, 1 0.
    assert_eq!(
        refusal(&[0b1010_0001, 0], 4, 2),
        CompactError::Kind { own: true }
    );

    // A block of rows has a parameter of its own, and no other will do.
    let rows: Hits = (0..400).map(|i| (i, false)).collect();
    let fine = stream(Format::Sparse, BLOCK, &rows);
    assert_eq!(fine[0] & 0b1_1111, 0b0_0001, "its own parameter, 0");
    // Gaps of 0 with k = 1: 1, 0, 0.
    let mut wrong = vec![0u8; (5usize + 3 * 400).div_ceil(8)];
    wrong[0] = 0b0_0011;
    for i in 0..400 {
        let at = 5 + 3 * i;
        wrong[at / 8] |= 1 << (at % 8);
    }
    assert_eq!(
        refusal(&wrong, BLOCK, 400),
        CompactError::Parameter {
            block: 0,
            expected: 0,
            found: 1
        }
    );
}

#[test]
fn what_has_no_hits_to_encode_is_refused() {
    let mut out = vec![3];
    let wrong = Record {
        format: Format::Sparse,
        hits: 2,
        elements: 9,
        payload: &[1, 0, 4, 0],
    };
    let error = encode(&wrong, &mut out).unwrap_err();
    assert!(matches!(error, CompactError::Record(_)), "{error}");
    let dense = Record {
        format: Format::DenseF32,
        hits: 0,
        elements: 1,
        payload: &1f32.to_le_bytes(),
    };
    assert_eq!(
        encode(&dense, &mut out).unwrap_err(),
        CompactError::Dense {
            format: Format::DenseF32
        }
    );
    assert_eq!(out, [3]);
}
