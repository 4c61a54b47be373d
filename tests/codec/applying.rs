//! Records onto any target, and records of any bytes.

use super::plain::{self, Kind, Random, bits, lengths, paths, units, vector};
use gradring::codec::{Apply, CHUNK, DecodeError, Format, Parameters, Record, canon, payload_len};
use proptest::prelude::*;

/// A vector cut anywhere, also into nothing.
fn cut(random: &mut Random, mut vector: &[f32], longest: u64) -> Vec<Vec<f32>> {
    let mut parts = Vec::new();
    while !vector.is_empty() || random.coin() {
        let length = random.below(longest + 1) as usize * usize::from(random.below(5) > 0);
        let (now, rest) = vector.split_at(vector.len().min(length));
        vector = rest;
        parts.push(now.to_vec());
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_path_applies_either_format_to_any_target(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        density in (0f64..4.0).prop_map(|x| 10f64.powf(-x)),
        inverse in prop_oneof![Just(1.0f32), Just(0.5), Just(1.0 / 3.0), Just(1e-30)],
    ) {
        let random = &mut Random(seed);
        let hits: Vec<(usize, bool)> = (0..length)
            .filter(|_| random.unit() < density)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|i| (i, random.next() & 1 == 1))
            .collect();
        let x = canon(unit.v() * inverse);
        let kind = if seed % 2 == 0 { Kind::Mixed } else { Kind::AnyBits };
        let target = vector(random, length, kind, unit);
        for how in [Apply::Subtract, Apply::Add] {
            let mut expected = target.clone();
            let mut not_finite = 0;
            for &(i, negative) in &hits {
                let x = if negative { -x } else { x };
                let p = expected[i];
                expected[i] = match how {
                    _ if !p.is_finite() => p,
                    Apply::Subtract => canon(canon(p) - x),
                    Apply::Add => canon(canon(p) + x),
                };
                not_finite += u32::from(!p.is_finite());
            }
            for (path, format) in paths().flat_map(|p| [(p, Format::Sparse), (p, Format::Bitmap)]) {
                let payload = plain::payload(format, length, &hits);
                let hits = hits.len() as u32;
                let record = Record { format, hits, elements: length, payload: &payload };
                let mut after = target.clone();
                let applied = path.apply(&record, x, how, &mut after).unwrap();
                prop_assert!(bits(&after) == bits(&expected), "{:?} of {} on {}", how, format, path);
                prop_assert_eq!(applied.not_finite, not_finite);
            }
        }
    }

    #[test]
    fn any_bytes_decode_to_an_error_or_to_what_they_say(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (format, changes) in (prop::sample::select(vec![Format::Sparse, Format::Bitmap]), 0usize..4),
        fresh in any::<bool>(),
    ) {
        let random = &mut Random(seed);
        let chosen: Vec<usize> = (0..length).filter(|_| random.below(9) == 0).collect();
        let hits: Vec<(usize, bool)> =
            chosen.into_iter().map(|i| (i, random.next() & 1 == 1)).collect();
        let mut bytes = plain::payload(format, length, &hits);
        let (mut count, mut elements) = (hits.len() as u32, length);
        if fresh {
            bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
        }
        for _ in 0..changes {
            let at = random.below(bytes.len().max(1) as u64) as usize;
            match random.below(12) {
                0 => count = random.next() as u32,
                1 => count = count.wrapping_add(random.below(3) as u32).wrapping_sub(1),
                2 => elements = random.below(2 * CHUNK as u64) as usize,
                3 => bytes.truncate(at),
                4 => bytes.push(random.next() as u8),
                _ => if let Some(byte) = bytes.get_mut(at) { *byte ^= 1 << random.below(8) },
            }
        }
        let record = Record { format, hits: count, elements, payload: &bytes };
        let target = vector(random, elements, Kind::Mixed, unit);
        let mut outcomes = paths().map(|path| {
            let mut after = target.clone();
            let outcome = path.apply(&record, unit.v(), Apply::Add, &mut after);
            (outcome, bits(&after))
        });
        let first = outcomes.next().expect("there is always the scalar path");
        if first.0.is_err() {
            prop_assert!(first.1 == bits(&target), "an error applies nothing");
        } else {
            prop_assert_eq!(Some(bytes.len()), payload_len(format, elements, count as usize));
            let touched = first.1.iter().zip(&target).filter(|(a, b)| **a != b.to_bits()).count();
            prop_assert!(touched <= count as usize);
        }
        for other in outcomes {
            prop_assert!(other == first, "{:?} and {:?}", other.0, first.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn a_record_is_applied_to_parts_as_to_the_vector_that_they_make(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        density in (0f64..4.0).prop_map(|x| 10f64.powf(-x)),
        longest in prop::sample::select(vec![1, 15, 40, 700, 5000, 300_000]),
    ) {
        let random = &mut Random(seed);
        // Many parts of one element each of a large chunk take the test a while.
        let longest = if length > 9000 { longest.max(40) } else { longest };
        let hits: Vec<(usize, bool)> = (0..length)
            .filter(|_| random.unit() < density)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|i| (i, random.coin()))
            .collect();
        let [before, after] = [0, 1].map(|_| random.below(100) as usize);
        let kind = if random.coin() { Kind::Mixed } else { Kind::AnyBits };
        let target = vector(random, before + length + after, kind, unit);
        let values = plain::payload_of_values(random, length, unit);
        for path in paths() {
            for format in Format::ALL {
                let payload = match format {
                    Format::DenseF32 => values.clone(),
                    // The upper halves.
                    Format::DenseBf16 => values.chunks(4).flat_map(|x| [x[2], x[3]]).collect(),
                    _ => plain::payload(format, length, &hits),
                };
                let count = if format.dense().is_some() { 0 } else { hits.len() as u32 };
                let record = Record { format, hits: count, elements: length, payload: &payload };
                let how = if random.coin() { Apply::Add } else { Apply::Subtract };
                let mut expected = target.clone();
                let inside = &mut expected[before..before + length];
                let applied = path.apply(&record, unit.v(), how, inside);
                let mut parts = cut(random, &target, longest);
                let found = path.apply_at(&record, unit.v(), how, &mut parts, before);
                prop_assert_eq!(found, applied, "{} on {}", format, path);
                prop_assert!(bits(&parts.concat()) == bits(&expected), "{} on {}", format, path);
                // One slice, and borrowed slices.
                let mut flat = target.clone();
                path.apply_at(&record, unit.v(), how, &mut flat, before).unwrap();
                prop_assert!(bits(&flat) == bits(&expected));
                let mut parts = cut(random, &target, longest);
                let mut slices: Vec<&mut [f32]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
                path.apply_at(&record, unit.v(), how, &mut slices, before).unwrap();
                prop_assert!(bits(&parts.concat()) == bits(&expected));
            }
        }
    }
}

/// Parameters that are not what they say.
struct Liar {
    says: usize,
    has: Vec<f32>,
    /// Whether all calls give all there is, whatever was asked for.
    gives_all: bool,
}

impl Parameters for Liar {
    fn elements(&self) -> usize {
        self.says
    }

    fn rest(&mut self, element: usize) -> &mut [f32] {
        let first = if self.gives_all { 0 } else { element };
        self.has.get_mut(first..).unwrap_or_default()
    }
}

/// The same, one call for all.
struct Flood(Vec<f32>);

impl Parameters for Flood {
    fn elements(&self) -> usize {
        self.0.len()
    }

    fn rest(&mut self, _: usize) -> &mut [f32] {
        &mut []
    }

    fn each(&mut self, _: std::ops::Range<usize>, with: &mut dyn FnMut(&mut [f32])) {
        (0..3).for_each(|_| with(&mut self.0));
    }
}

#[test]
fn records_that_do_not_fit_their_place_are_refused() {
    let hits = [(0, false), (3, true), (9, false)];
    for (path, format) in paths().flat_map(|p| [(p, Format::Sparse), (p, Format::Bitmap)]) {
        let payload = plain::payload(format, 10, &hits);
        let record = Record {
            format,
            hits: 3,
            elements: 10,
            payload: &payload,
        };
        let mut parts = vec![vec![1.0; 4], vec![1.0; 9]];
        for start in [4, 13, 14, usize::MAX, usize::MAX - 9] {
            let refused = path.apply_at(&record, 0.5, Apply::Add, &mut parts, start);
            let (elements, found) = (10, 13);
            assert_eq!(
                refused,
                Err(DecodeError::Place {
                    elements,
                    start,
                    found
                })
            );
        }
        let damaged = Record { hits: 2, ..record };
        let refused = path.apply_at(&damaged, 0.5, Apply::Add, &mut parts, 1);
        assert!(refused.is_err());
        let refused = path.apply_at(&record, -0.5, Apply::Add, &mut parts, 1);
        assert_eq!(refused, Err(DecodeError::ScaledUnit { found: -0.5 }));
        assert!(parts.concat().iter().all(|&p| p == 1.0));
        path.apply_at(&record, 0.5, Apply::Add, &mut parts, 3)
            .unwrap();
        let mut expected = [1.0; 13];
        (expected[3], expected[6], expected[12]) = (1.5, 0.5, 1.5);
        assert_eq!(parts.concat(), expected);

        // What a list says of itself is not believed.
        let mut short = Liar {
            says: 20,
            has: vec![1.0; 7],
            gives_all: false,
        };
        let refused = path.apply_at(&record, 0.5, Apply::Add, &mut short, 0);
        assert_eq!(refused, Err(DecodeError::Part { element: 7 }));
        let mut long = Liar {
            gives_all: true,
            ..short
        };
        path.apply_at(&record, 0.5, Apply::Add, &mut long, 2)
            .unwrap();
        let mut flood = Flood(vec![1.0; 12]);
        path.apply_at(&record, 0.5, Apply::Add, &mut flood, 0)
            .unwrap();
        let changed = flood.0.iter().filter(|&&p| p != 1.0).count();
        assert_eq!(changed, 3);
    }
}
