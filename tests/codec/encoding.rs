//! A chunk with a threshold: every path gives the bits of the plain model, whatever the data.

use super::plain::{
    self, Kind, Random, bits, first_difference, kinds, lengths, lengths_around_everything, options,
    paths, residual, units, vector,
};
use gradring::codec::{
    Apply, Budget, CHUNK, ChunkOptions, Clip, EncodeError, Encoded, Format, Record, Unit, Values,
    cut8,
};
use half::{bf16, f16};
use proptest::prelude::*;

fn same(a: &Encoded, b: &Encoded) -> bool {
    (a.format, a.hits, a.dropped) == (b.format, b.hits, b.dropped)
        && a.clipped.to_bits() == b.clipped.to_bits()
        && a.residual_max.to_bits() == b.residual_max.to_bits()
        && a.residual_l1.to_bits() == b.residual_l1.to_bits()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_path_encodes_any_data_to_the_models_bits(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_residual, of_update) in (kinds(), kinds()),
    ) {
        let random = &mut Random(seed);
        let before = residual(random, length, of_residual, unit);
        let update = vector(random, length, of_update, unit);
        let options = options(length, seed);
        let expected = plain::encode(&before, &update, unit, &options);
        let format = plain::smaller(length, expected.hits.len());
        let expected_payload = plain::payload(format, length, &expected.hits);

        let mut first: Option<Encoded> = None;
        for path in paths() {
            let mut after = before.clone();
            let mut out = vec![7];
            let sent = path.encode(&mut after, &update, unit, &options, &mut out).unwrap();
            prop_assert_eq!(sent.format, format, "on {}", path);
            prop_assert!(out[0] == 7 && out[1..] == expected_payload, "payload on {}", path);
            let differs = first_difference(&after, &expected.residual);
            prop_assert_eq!(differs, None, "residual on {}", path);
            prop_assert_eq!(sent.hits as usize, expected.hits.len());
            prop_assert_eq!(sent.dropped, expected.dropped, "on {}", path);
            let error = (sent.clipped - expected.clipped).abs();
            prop_assert!(error <= 1e-12 * expected.clipped, "clipped {} on {}", sent.clipped, path);
            prop_assert!(same(first.get_or_insert(sent), &sent), "{:?} and {:?}", first, sent);

            let largest = expected.residual.iter().fold(0f32, |most, r| most.max(r.abs()));
            prop_assert!(sent.residual_max <= largest);
            if length <= 1024 {
                let l1: f64 = expected.residual.iter().map(|r| f64::from(r.abs())).sum();
                prop_assert_eq!(sent.residual_max, largest);
                prop_assert!((sent.residual_l1 - l1).abs() <= 1e-5 * l1 || !l1.is_finite() || l1 > 1e37);
            }
        }
    }
}

#[test]
fn a_payload_buffer_grows_once() {
    for path in paths() {
        let mut random = Random(5);
        let mut out = Vec::new();
        let unit = Unit::new(1.0, 1.0).unwrap();
        let mut seen = None;
        for step in 0..12 {
            let density = [1e-4, 0.9, 0.12, 0.13][step % 4];
            let update = vector(&mut random, CHUNK, Kind::Ordinary(density), unit);
            let mut residual = vec![0.0; CHUNK];
            let budget = (step % 2 == 0).then_some(Budget {
                max_hits: 1000,
                start: step,
            });
            out.clear();
            path.encode(
                &mut residual,
                &update,
                unit,
                &ChunkOptions { clip: None, budget },
                &mut out,
            )
            .unwrap();
            let now = (out.as_ptr(), out.capacity());
            assert_eq!(*seen.get_or_insert(now), now, "on {path}, step {step}");
        }
    }
}

#[test]
fn lengths_that_cannot_be_encoded_are_errors_and_change_nothing() {
    let unit = Unit::new(1.0, 1.0).unwrap();
    let options = ChunkOptions::default();
    for path in paths() {
        let mut out = vec![1, 2];
        let mut residual = vec![2.0; 5];
        let error = path.encode(&mut residual, &[3.0; 4], unit, &options, &mut out);
        assert_eq!(
            error.unwrap_err(),
            EncodeError::Lengths {
                expected: 5,
                found: 4
            }
        );
        let mut long = vec![2.0; CHUNK + 1];
        let error = path.encode(&mut long, &vec![3.0; CHUNK + 1], unit, &options, &mut out);
        assert_eq!(
            error.unwrap_err(),
            EncodeError::TooLong { found: CHUNK + 1 }
        );
        let error = path.magnitudes(&residual, &[3.0; 4], 1, 0, &mut Vec::new());
        assert_eq!(
            error.unwrap_err(),
            EncodeError::Lengths {
                expected: 5,
                found: 4
            }
        );
        assert_eq!((out, residual), (vec![1, 2], vec![2.0; 5]));
        assert!(long.iter().all(|&r| r == 2.0));
    }
}

/// An update in each of the types that it can have, and what it is as f32.
fn in_every_type(update: &[f32], mut with: impl FnMut(&str, Values<'_>, &[f32])) {
    with("f32", Values::F32(update), update);
    let f16s: Vec<f16> = update.iter().map(|&u| f16::from_f32(u)).collect();
    let singles: Vec<f32> = f16s.iter().map(|u| u.to_f32()).collect();
    with("f16", Values::F16(&f16s), &singles);
    let bf16s: Vec<bf16> = update.iter().map(|&u| bf16::from_f32(u)).collect();
    let singles: Vec<f32> = bf16s.iter().map(|u| u.to_f32()).collect();
    with("bf16", Values::Bf16(&bf16s), &singles);
}

#[test]
fn every_path_type_length_format_and_limit_gives_the_models_bits() {
    let mut random = Random(29);
    let mut formats = [0u32; 3];
    for length in lengths_around_everything() {
        // In reach of f16, on both sides of the change of formats; the last one has special numbers everywhere.
        for (at, kind) in [
            Kind::Ordinary(2e-3),
            Kind::Ordinary(0.125),
            Kind::Ordinary(0.7),
            Kind::Single(700),
            Kind::Edges,
        ]
        .into_iter()
        .enumerate()
        {
            let t = cut8(0.01 + 0.3 * random.unit() as f32);
            let unit = Unit::nearest(t, 1.3 * t);
            let before = residual(&mut random, length, kind, unit);
            let update = vector(&mut random, length, kind, unit);
            let start = random.below(2 * length as u64 + 1) as usize;
            in_every_type(&update, |name, update, singles| {
                let all = plain::encode(&before, singles, unit, &ChunkOptions::default());
                let hits = all.hits.len();
                for most in [None, Some(0), Some(1), Some(hits / 2), Some(hits)] {
                    let options = ChunkOptions {
                        budget: most.map(|max_hits| Budget { max_hits, start }),
                        clip: (at == 2).then(|| Clip::new(2.5).unwrap()),
                    };
                    let expected = plain::encode(&before, singles, unit, &options);
                    let format = plain::smaller(length, expected.hits.len());
                    let payload = plain::payload(format, length, &expected.hits);
                    formats[format as usize] += 1;
                    for path in paths() {
                        let case = format!(
                            "{length} elements of {kind:?} as {name}, at most {most:?} hits, on {path}"
                        );
                        let (mut after, mut out) = (before.clone(), Vec::new());
                        let sent = path
                            .encode(&mut after, update, unit, &options, &mut out)
                            .unwrap();
                        assert_eq!(sent.format, format, "{case}");
                        assert!(out == payload, "payload of {case}");
                        let differs = first_difference(&after, &expected.residual);
                        assert_eq!(differs, None, "residual of {case}");
                        assert_eq!(sent.hits as usize, expected.hits.len(), "{case}");
                        assert_eq!(sent.dropped, expected.dropped, "{case}");
                        let error = (sent.clipped - expected.clipped).abs();
                        assert!(error <= 1e-12 * expected.clipped, "clipped of {case}");
                    }
                }
            });
        }
    }
    assert!(formats[Format::Sparse as usize] > 500 && formats[Format::Bitmap as usize] > 500);
}

#[test]
fn every_half_there_is_counts_as_its_single() {
    let mut random = Random(31);
    let unit = Unit::new(0.25, 0.25).unwrap();
    let f16s: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let bf16s: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let singles: [Vec<f32>; 2] = [
        f16s.iter().map(|u| u.to_f32()).collect(),
        bf16s.iter().map(|u| u.to_f32()).collect(),
    ];
    for kind in [Kind::Single(u64::MAX), Kind::Mixed, Kind::Edges] {
        let before = residual(&mut random, singles[0].len(), kind, unit);
        let options = ChunkOptions::default();
        for (values, singles) in [Values::F16(&f16s), Values::Bf16(&bf16s)]
            .iter()
            .zip(&singles)
        {
            let expected = plain::encode(&before, singles, unit, &options);
            for path in paths() {
                let (mut after, mut out) = (before.clone(), Vec::new());
                let sent = path
                    .encode(&mut after, *values, unit, &options, &mut out)
                    .unwrap();
                assert_eq!(
                    first_difference(&after, &expected.residual),
                    None,
                    "on {path}"
                );
                assert_eq!(sent.dropped, expected.dropped, "on {path}");
                assert!(out == plain::payload(sent.format, before.len(), &expected.hits));

                let (mut of_halves, mut of_singles) = (Vec::new(), Vec::new());
                path.magnitudes(&before, *values, 9000, 7, &mut of_halves)
                    .unwrap();
                path.magnitudes(&before, singles, 9000, 7, &mut of_singles)
                    .unwrap();
                assert!(bits(&of_halves) == bits(&of_singles), "sample on {path}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_message_reads_back_as_what_was_sent(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_residual, of_update) in (kinds(), kinds()),
    ) {
        let random = &mut Random(seed);
        let before = residual(random, length, of_residual, unit);
        let update = vector(random, length, of_update, unit);
        let options = options(length, seed);
        let expected = plain::encode(&before, &update, unit, &options).hits;
        for path in paths() {
            let mut out = Vec::new();
            let sent = path.encode(&mut before.clone(), &update, unit, &options, &mut out).unwrap();
            prop_assert!(
                plain::decode(sent.format, length, &out) == plain::Message::Hits(expected.clone())
            );
            // Onto zeros it is the message; elsewhere nothing is written.
            let record = Record { format: sent.format, hits: sent.hits, elements: length, payload: &out };
            let mut message = vec![0.0f32; length];
            for &(i, negative) in &expected {
                message[i] = if negative { -unit.v() } else { unit.v() };
            }
            let mut sum = vec![0.0; length];
            path.apply(&record, unit.v(), Apply::Add, &mut sum).unwrap();
            prop_assert_eq!(first_difference(&sum, &message), None);
            let marks = vector(random, length, Kind::AnyBits, unit);
            let mut marked = marks.clone();
            path.apply(&record, unit.v(), Apply::Subtract, &mut marked).unwrap();
            let untouched = (0..length).filter(|&i| message[i] == 0.0);
            for i in untouched {
                prop_assert_eq!(marked[i].to_bits(), marks[i].to_bits());
            }
        }
    }
}
