//! Records onto any target, and records of any bytes.

use super::plain::{self, Kind, Random, bits, lengths, paths, units, vector};
use gradring::codec::{Apply, CHUNK, Format, Record, canon, payload_len};
use proptest::prelude::*;

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
