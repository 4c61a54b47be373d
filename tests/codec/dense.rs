//! Chunks without compression against the plain model, on every path, and payloads that no encoder writes.

use super::plain::{
    self, Kind, Random, bits, first_difference, kinds, lengths, lengths_around_everything, paths,
    residual, units, vector,
};
use gradring::codec::{
    Apply, CHUNK, DecodeError, Dense, EncodeError, Format, Record, Unit, Values, canon,
};
use half::{bf16, f16};
use proptest::prelude::*;

const NUMBERS: [Dense; 2] = [Dense::F32, Dense::Bf16];

/// The payload of these values, of which all are values of that number.
fn payload(number: Dense, values: &[f32]) -> Vec<u8> {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    match number {
        Dense::F32 => bytes.collect(),
        // The upper halves.
        Dense::Bf16 => bytes
            .collect::<Vec<u8>>()
            .chunks(4)
            .flat_map(|x| [x[2], x[3]])
            .collect(),
    }
}

/// Encodes on every path and compares with the model of the update as f32.
fn is_the_models(before: &[f32], update: Values<'_>, singles: &[f32], number: Dense) {
    let (message, rest, dropped) = plain::dense(before, singles, number);
    let expected = payload(number, &message);
    for path in paths() {
        let case = format!("{} elements as {number} on {path}", before.len());
        let (mut after, mut out) = (before.to_vec(), vec![7]);
        let sent = path
            .encode_dense(&mut after, update, number, &mut out)
            .unwrap();
        assert!(out[0] == 7 && out[1..] == expected, "payload of {case}");
        assert_eq!(first_difference(&after, &rest), None, "residual of {case}");
        assert_eq!((sent.format, sent.hits), (number.format(), 0), "{case}");
        assert_eq!((sent.dropped, sent.clipped), (dropped, 0.0), "{case}");
        assert_eq!(
            plain::decode(sent.format, before.len(), &out[1..]),
            plain::Message::Values(bits(&message)),
            "{case}"
        );
        // Onto zeros it is the message.
        let record = Record {
            format: sent.format,
            hits: 0,
            elements: before.len(),
            payload: &out[1..],
        };
        let mut sum = vec![0.0; before.len()];
        path.apply(&record, 1.0, Apply::Add, &mut sum).unwrap();
        assert_eq!(first_difference(&sum, &message), None, "message of {case}");
    }
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
        for number in NUMBERS {
            is_the_models(&before, (&update).into(), &update, number);
        }
    }

    #[test]
    fn every_path_applies_values_to_any_target(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_values, of_target) in (kinds(), kinds()),
        inverse in prop_oneof![
            Just(1.0f32), Just(0.5), Just(1.0 / 3.0), Just(1.0 / 255.0), Just(0.0),
            Just(f32::MIN_POSITIVE), Just(1e-30), Just(1e30), Just(f32::MAX),
        ],
    ) {
        let random = &mut Random(seed);
        let of_residuals = residual(random, length, of_values, unit);
        let target = vector(random, length, of_target, unit);
        for number in NUMBERS {
            let values: Vec<f32> = match number {
                Dense::F32 => of_residuals.clone(),
                Dense::Bf16 => of_residuals.iter().map(|&x| plain::to_bf16(x)).collect(),
            };
            let payload = payload(number, &values);
            for how in [Apply::Subtract, Apply::Add] {
                let mut not_finite = 0;
                let expected: Vec<f32> = target.iter().zip(&values).map(|(&p, &value)| {
                    let x = canon(value * inverse);
                    not_finite += u32::from(!p.is_finite());
                    match how {
                        _ if !p.is_finite() => p,
                        Apply::Subtract => canon(canon(p) - x),
                        Apply::Add => canon(canon(p) + x),
                    }
                }).collect();
                for path in paths() {
                    let record = Record {
                        format: number.format(), hits: 0, elements: length, payload: &payload,
                    };
                    let mut after = target.clone();
                    let applied = path.apply(&record, inverse, how, &mut after).unwrap();
                    let differs = first_difference(&after, &expected);
                    prop_assert_eq!(differs, None, "{:?} of {} on {}", how, number, path);
                    prop_assert_eq!(applied.not_finite, not_finite);
                }
            }
        }
    }

    #[test]
    fn any_bytes_decode_to_an_error_or_to_what_they_say(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (number, changes, fresh) in (prop::sample::select(NUMBERS.to_vec()), 0usize..4, any::<bool>()),
    ) {
        let random = &mut Random(seed);
        let kind = if fresh { Kind::AnyBits } else { Kind::Mixed };
        let values = vector(random, length, kind, unit);
        let values: Vec<f32> = match number {
            _ if fresh => values,
            Dense::F32 => values.iter().map(|&x| if x.is_finite() { canon(x) } else { 1.0 }).collect(),
            Dense::Bf16 => values
                .iter()
                .map(|&x| if x.is_finite() { plain::to_bf16(canon(x)) } else { 1.0 })
                .collect(),
        };
        let mut bytes = payload(number, &values);
        let (mut hits, mut elements) = (0, length);
        for _ in 0..changes {
            let at = random.below(bytes.len().max(1) as u64) as usize;
            match random.below(12) {
                0 => hits = random.next() as u32,
                1 => elements = random.below(2 * CHUNK as u64) as usize,
                2 => bytes.truncate(at),
                3 => bytes.push(random.next() as u8),
                _ => if let Some(byte) = bytes.get_mut(at) { *byte ^= 1 << random.below(8) },
            }
        }
        let size = number.bytes();
        let whole = bytes.len() == size * elements && elements <= CHUNK && hits == 0;
        let read = |value: &[u8]| f32::from_bits(match *value {
            [a, b] => u32::from_le_bytes([0, 0, a, b]),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => panic!("a value has 2 or 4 bytes"),
        });
        let is_wrong = |&x: &f32| !x.is_finite() || canon(x).to_bits() != x.to_bits();
        let said: Vec<f32> = bytes.chunks_exact(size).map(read).collect();
        let wrong = said.iter().position(is_wrong);

        let record = Record { format: number.format(), hits, elements, payload: &bytes };
        let target = vector(random, elements, Kind::Mixed, unit);
        for path in paths() {
            let mut after = target.clone();
            match path.apply(&record, 1.0, Apply::Add, &mut after) {
                Ok(_) => {
                    prop_assert!(whole && wrong.is_none(), "accepted on {}", path);
                    let fine = (0..elements).all(|i| {
                        let p = target[i];
                        let moved = if p.is_finite() { canon(canon(p) + said[i]) } else { p };
                        moved.to_bits() == after[i].to_bits()
                    });
                    prop_assert!(fine, "what was applied on {}", path);
                }
                Err(error) => {
                    prop_assert!(!whole || wrong.is_some(), "{} on {}", error, path);
                    prop_assert!(bits(&after) == bits(&target), "an error applies nothing");
                    if whole {
                        let DecodeError::Value { element, found } = error else {
                            return Err(TestCaseError::fail(format!("{error}")));
                        };
                        prop_assert_eq!(Some(element), wrong);
                        prop_assert_eq!(found.to_bits(), said[element].to_bits());
                    }
                }
            }
        }
    }
}

#[test]
fn every_length_and_type_gives_the_models_bits() {
    let mut random = Random(37);
    let unit = Unit::new(0.25, 0.25).unwrap();
    for length in lengths_around_everything() {
        for kind in [Kind::Ordinary(0.1), Kind::Edges] {
            let before = residual(&mut random, length, kind, unit);
            let update = vector(&mut random, length, kind, unit);
            let f16s: Vec<f16> = update.iter().map(|&u| f16::from_f32(u)).collect();
            let bf16s: Vec<bf16> = update.iter().map(|&u| bf16::from_f32(u)).collect();
            let of_f16s: Vec<f32> = f16s.iter().map(|u| u.to_f32()).collect();
            let of_bf16s: Vec<f32> = bf16s.iter().map(|u| u.to_f32()).collect();
            for number in NUMBERS {
                is_the_models(&before, (&update).into(), &update, number);
                is_the_models(&before, (&f16s).into(), &of_f16s, number);
                is_the_models(&before, (&bf16s).into(), &of_bf16s, number);
            }
        }
    }
}

#[test]
fn every_half_there_is_counts_as_its_single() {
    let f16s: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let bf16s: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let of_f16s: Vec<f32> = f16s.iter().map(|u| u.to_f32()).collect();
    let of_bf16s: Vec<f32> = bf16s.iter().map(|u| u.to_f32()).collect();
    let mut random = Random(41);
    let unit = Unit::new(0.25, 0.25).unwrap();
    for kind in [Kind::Single(u64::MAX), Kind::Edges] {
        let before = residual(&mut random, f16s.len(), kind, unit);
        for number in NUMBERS {
            is_the_models(&before, (&f16s).into(), &of_f16s, number);
            is_the_models(&before, (&bf16s).into(), &of_bf16s, number);
        }
    }
}

#[test]
fn what_can_be_no_dense_chunk_is_an_error_and_changes_nothing() {
    for (path, number) in paths().flat_map(|path| NUMBERS.map(|number| (path, number))) {
        let mut out = vec![1, 2];
        let mut residual = vec![2.0; 5];
        let error = path.encode_dense(&mut residual, &[3.0; 6], number, &mut out);
        let (expected, found) = (5, 6);
        assert_eq!(error.unwrap_err(), EncodeError::Lengths { expected, found });
        let mut long = vec![2.0; CHUNK + 1];
        let error = path.encode_dense(&mut long, &vec![3.0; CHUNK + 1], number, &mut out);
        assert_eq!(
            error.unwrap_err(),
            EncodeError::TooLong { found: CHUNK + 1 }
        );
        assert_eq!((&out[..], &residual[..]), (&[1, 2][..], &[2.0; 5][..]));
        assert!(long.iter().all(|&r| r == 2.0));

        let payload = payload(number, &[1.0; 5]);
        let record = Record {
            format: number.format(),
            hits: 0,
            elements: 5,
            payload: &payload,
        };
        let refuses = |record: Record<'_>, x: f32, length: usize| {
            let mut target = vec![3.0; length];
            let error = path.apply(&record, x, Apply::Add, &mut target).unwrap_err();
            assert!(target.iter().all(|&p| p == 3.0));
            error
        };
        for x in [-1.0, -0.0, 1e-45, f32::INFINITY] {
            assert_eq!(refuses(record, x, 5), DecodeError::ScaledUnit { found: x });
        }
        assert!(matches!(
            refuses(record, f32::NAN, 5),
            DecodeError::ScaledUnit { .. }
        ));
        let (expected, found) = (5, 4);
        assert_eq!(
            refuses(record, 1.0, 4),
            DecodeError::TargetLength { expected, found }
        );
        let (expected, found) = (0, 1);
        let hits = Record { hits: 1, ..record };
        assert_eq!(
            refuses(hits, 1.0, 5),
            DecodeError::TooManyHits { expected, found }
        );
        // Another format's payload is none.
        for format in Format::ALL
            .into_iter()
            .filter(|format| *format != record.format)
        {
            refuses(Record { format, ..record }, 1.0, 5);
        }
    }
}
