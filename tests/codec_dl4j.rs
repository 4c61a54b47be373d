//! Deeplearning4j's formats: its own vectors word for word, its tests, and what it gets wrong.

use gradring::codec::compat::{
    CompatError, Decoded, Element, Encoding, Handler, Mode, Sent, check_length, decode,
    encode_bitmap, encode_threshold, from_bytes, max_message_words, to_bytes,
};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Debug;

/// An element type as the tests see it: numbers from cases, and bits to compare.
trait Number: Element + Debug {
    fn of(x: f64) -> Self;
    fn bits(self) -> u64;
    fn any(bits: u64) -> Self;
}

impl Number for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
    fn any(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
}

impl Number for f64 {
    fn of(x: f64) -> f64 {
        x
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn any(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
}

fn bits<T: Number>(numbers: &[T]) -> Vec<u64> {
    numbers.iter().map(|x| x.bits()).collect()
}

/// Equal as numbers, NaN to NaN, and 0 to -0 as the cases are written.
fn equal<T: Number>(found: &[T], expected: &[T]) -> bool {
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(a, b)| a == b || is_nan(a) && is_nan(b))
}

fn is_nan<T: Number>(x: &T) -> bool {
    x.partial_cmp(x).is_none()
}

fn numbers<T: Number>(values: &[Value]) -> Vec<T> {
    let number = |value: &Value| match value {
        Value::String(name) => name.parse::<f64>().expect("NaN or an infinity"),
        value => value.as_f64().expect("a number"),
    };
    values.iter().map(|value| T::of(number(value))).collect()
}

#[derive(Deserialize)]
struct Cases {
    threshold: Vec<Case>,
    bitmap: Vec<Case>,
    bitmap_words: Vec<(usize, usize)>,
    bad_messages: Vec<Bad>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    dtype: Option<String>,
    t: f64,
    limit: Option<usize>,
    x: Vec<Value>,
    message: Option<Vec<i32>>,
    residual: Option<Vec<Value>>,
    decoded: Option<Vec<Value>>,
    touched: Option<usize>,
}

#[derive(Deserialize)]
struct Bad {
    name: String,
    message: Vec<i32>,
    expects_len: Option<usize>,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("data/dl4j.json")).expect("the cases can be read")
}

fn threshold_case<T: Number>(case: &Case) {
    let name = &case.name;
    let mut x: Vec<T> = numbers(&case.x);
    let before = x.clone();
    let mut message = vec![77];
    let sent = encode_threshold(&mut x, case.t as f32, case.limit, &mut message).unwrap();
    assert_eq!(message.remove(0), 77, "it appends");
    assert!(
        equal(&x, &numbers(case.residual.as_ref().unwrap())),
        "{name}: {x:?}"
    );
    let Some(expected) = &case.message else {
        assert!(matches!(sent, Sent::Nothing { .. }), "{name}: {sent:?}");
        assert_eq!((message, bits(&x)), (vec![], bits(&before)), "{name}");
        return;
    };
    assert_eq!(&message, expected, "{name}");
    let hits = expected.len() - 4;
    assert_eq!(sent, Sent::Threshold { hits }, "{name}");
    let mut sum = vec![T::of(0.0); x.len()];
    let decoded = decode(&message, &mut sum).unwrap();
    let threshold = case.t as f32;
    assert_eq!(
        decoded,
        Decoded {
            encoding: Encoding::Threshold,
            threshold,
            touched: hits
        },
        "{name}"
    );
    assert!(
        equal(&sum, &numbers(case.decoded.as_ref().unwrap())),
        "{name}: {sum:?}"
    );
}

#[test]
fn threshold_messages_are_upstreams_word_for_word() {
    let cases = cases().threshold;
    assert_eq!(cases.len(), 7);
    for case in cases {
        match case.dtype.as_deref() {
            None => threshold_case::<f32>(&case),
            Some("f64") => threshold_case::<f64>(&case),
            Some(other) => panic!("{}: {other}", case.name),
        }
    }
}

#[test]
fn bitmap_messages_are_upstreams_word_for_word() {
    let cases = cases().bitmap;
    assert_eq!(cases.len(), 2);
    for case in cases {
        let name = &case.name;
        let mut x: Vec<f32> = numbers(&case.x);
        let before = x.clone();
        let mut message = vec![77];
        let touched = encode_bitmap(&mut x, case.t as f32, &mut message).unwrap();
        assert_eq!(message.remove(0), 77, "it appends");
        assert_eq!(Some(touched), case.touched, "{name}");
        assert_eq!(Some(&message), case.message.as_ref(), "{name}");
        let expected: Vec<f32> = numbers(case.decoded.as_ref().unwrap());
        let left: Vec<f32> = before
            .iter()
            .zip(&expected)
            .map(|(x, sent)| x - sent)
            .collect();
        assert!(equal(&x, &left), "{name}: {x:?}");

        let mut sum = vec![0f32; x.len()];
        let decoded = decode(&message, &mut sum).unwrap();
        let threshold = case.t as f32;
        assert_eq!(
            decoded,
            Decoded {
                encoding: Encoding::Bitmap,
                threshold,
                touched
            },
            "{name}"
        );
        assert!(equal(&sum, &expected), "{name}: {sum:?}");
    }
}

#[test]
fn a_bitmap_has_a_spare_word_where_the_last_one_is_full() {
    for (elements, words) in cases().bitmap_words {
        let mut message = Vec::new();
        encode_bitmap(&mut vec![1f32; elements], 0.5, &mut message).unwrap();
        assert_eq!(
            (message.len(), max_message_words(elements)),
            (words, words),
            "{elements}"
        );
        let spare = elements % 16 == 0;
        assert_eq!(message[words - 1] == 0, spare, "{elements}");
    }
}

#[test]
fn each_bad_message_is_refused_for_its_reason() {
    let cases = cases().bad_messages;
    assert_eq!(cases.len(), 11);
    let elements = 8;
    for Bad {
        name,
        message,
        expects_len,
    } in cases
    {
        let expected = match name.as_str() {
            "shorter than its header" => CompatError::Short { found: 3 },
            "count beyond the message" => CompatError::Count {
                expected: 2,
                found: 5,
            },
            "index zero" => CompatError::Index {
                word: 4,
                elements,
                found: 0,
            },
            "index past the vector" => CompatError::Index {
                word: 5,
                elements,
                found: 9,
            },
            "index of i32::MIN" => CompatError::Index {
                word: 5,
                elements,
                found: i32::MIN,
            },
            "unknown encoding" => CompatError::Encoding { found: 7 },
            "length of another vector" => CompatError::Length {
                expected: 8,
                found: 9,
            },
            "negative count" => CompatError::Count {
                expected: 2,
                found: -2,
            },
            "bitmap cut short" => CompatError::Words {
                expected: 6,
                found: 5,
            },
            "threshold negative" => CompatError::Threshold { found: -1.0 },
            "threshold NaN" => CompatError::Threshold { found: f32::NAN },
            other => panic!("no reason is known for {other}"),
        };
        // A target of the length that the message says, unless it is to be another.
        let length = expects_len.unwrap_or(message[1] as usize);
        refuses::<f32>(&name, &message, length, expected);
        refuses::<f64>(&name, &message, length, expected);
    }
}

fn refuses<T: Number>(name: &str, message: &[i32], length: usize, expected: CompatError) {
    let mut target = vec![T::of(0.5); length];
    let error = decode(message, &mut target).unwrap_err();
    // As text, so that a NaN is one.
    assert_eq!(format!("{error:?}"), format!("{expected:?}"), "{name}");
    assert!(!error.to_string().is_empty());
    assert!(
        target.iter().all(|x| *x == T::of(0.5)),
        "{name}: an error adds nothing"
    );
}

#[test]
fn bits_and_words_that_no_vector_has_are_refused() {
    let t = 1f32.to_bits() as i32;
    let refuses = |message: &[i32], length, expected| {
        refuses::<f32>("", message, length, expected);
        refuses::<f64>("", message, length, expected);
    };
    // Behind element 18, value and sign.
    for last in [1 << 2, 1 << 18, i32::MIN] {
        refuses(
            &[18, 18, t, 1, 0, last],
            18,
            CompatError::Spare {
                elements: 18,
                found: last,
            },
        );
    }
    refuses(
        &[16, 16, t, 1, 0, 1],
        16,
        CompatError::Spare {
            elements: 16,
            found: 1,
        },
    );
    refuses(
        &[0, 0, t, 1, 1],
        0,
        CompatError::Spare {
            elements: 0,
            found: 1,
        },
    );
    refuses(
        &[3, 18, t, 1, 0, 0],
        18,
        CompatError::Length {
            expected: 18,
            found: 3,
        },
    );
    refuses(
        &[18, 18, t, 1, 0, 0, 0],
        18,
        CompatError::Words {
            expected: 6,
            found: 7,
        },
    );
    refuses(
        &[1, 8, t, 0, 1, 2],
        8,
        CompatError::Count {
            expected: 2,
            found: 1,
        },
    );
    refuses(
        &[0, -1, t, 0],
        8,
        CompatError::Length {
            expected: 8,
            found: -1,
        },
    );
    refuses(&[], 0, CompatError::Short { found: 0 });
    for threshold in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY] {
        let bits = threshold.to_bits() as i32;
        refuses(
            &[1, 8, bits, 0, 1],
            8,
            CompatError::Threshold { found: threshold },
        );
    }
}

#[test]
fn messages_that_upstream_decodes_are_decoded_though_it_never_sends_them() {
    let t = 0.5f32.to_bits() as i32;
    let mut target = [1f32; 3];
    assert_eq!(decode(&[0, 3, t, 0], &mut target).unwrap().touched, 0);
    assert_eq!(decode(&[1, 3, t, 0, -3], &mut target).unwrap().touched, 1);
    assert_eq!(target, [1.0, 1.0, 0.5]);
    // An element named twice is added twice, and the order is free.
    assert_eq!(
        decode(&[4, 3, t, 0, 2, -3, 2, 1], &mut target)
            .unwrap()
            .touched,
        4
    );
    assert_eq!(target, [1.5, 2.0, 0.0]);
}

// Upstream's own tests.

#[test]
fn ties_of_a_decimal_threshold_go_out_and_come_back() {
    let before = [0f32, 0.0, 1e-3, -1e-3, 0.0, 0.0];
    let (mut x, mut message) = (before, Vec::new());
    assert_eq!(encode_bitmap(&mut x, 1e-3, &mut message), Ok(2));
    assert_eq!((message.len(), x), (5, [0.0; 6]));
    let mut sum = [0f32; 6];
    decode(&message, &mut sum).unwrap();
    assert_eq!(sum, before);
    decode(&message, &mut x).unwrap();
    assert_eq!(x, before);
}

#[test]
fn a_bitmap_added_to_what_it_left_restores_the_vector() {
    let mut random = Random(1);
    let mut check = |n, low: f32, high: f32, t: f32, error: f32| {
        let before: Vec<f32> = (0..n)
            .map(|_| low + (high - low) * random.unit() as f32)
            .collect();
        let (mut x, mut message) = (before.clone(), Vec::new());
        encode_bitmap(&mut x, t, &mut message).unwrap();
        let left = x.clone();
        decode(&message, &mut x).unwrap();
        assert!(
            x.iter().zip(&before).all(|(a, b)| (a - b).abs() <= error),
            "{low}..{high}"
        );
        (before, left, message)
    };
    check(10_000, 0.0, 1.0, 0.1, 1e-7);
    check(10_000, -1.0, 1.0, 1e-3, 1e-5);
    let (before, left, _) = check(10_000, -1.0, -0.5, 0.1, 1e-7);
    assert!(before.iter().zip(&left).all(|(x, left)| *left == x + 0.1));
    let (_, left, message) = check(256_000, 1.0, 1.0, 0.5, 0.0);
    assert!(left.iter().all(|x| *x == 0.5));
    assert!(message[4..16_004].iter().all(|word| *word == 0xffff));
}

#[test]
fn doubles_keep_what_the_rounded_threshold_leaves_and_messages_add_up() {
    let t = 1e-3f32;
    let wide = f64::from(t);
    for sign in [1.0, -1.0] {
        let before = [1.0, 2.0, 0.0, 0.0, -1.0, -1.0].map(|x: f64| sign * x);
        let (mut x, mut message) = (before, Vec::new());
        let sent = encode_threshold(&mut x, t, None, &mut message);
        assert_eq!(sent, Ok(Sent::Threshold { hits: 4 }));
        let unit = [wide, wide, 0.0, 0.0, -wide, -wide].map(|x| sign * x);
        assert_eq!(x, std::array::from_fn(|i| before[i] - unit[i]));

        // Through bytes, as from a peer.
        let (mut bytes, mut copy) = (Vec::new(), Vec::new());
        to_bytes(&message, &mut bytes);
        assert_eq!(bytes[..8], [4, 0, 0, 0, 6, 0, 0, 0]);
        from_bytes(&bytes, &mut copy).unwrap();
        assert_eq!(copy, message);
        let mut sum = [0f64; 6];
        decode(&copy, &mut sum).unwrap();
        assert_eq!(sum, unit);
        decode(&copy, &mut sum).unwrap();
        assert_eq!(sum, unit.map(|x| 2.0 * x));
    }
    let mut x = [1.5, 2.5, -3.5f64];
    let mut message = Vec::new();
    encode_threshold(&mut x, 0.5, None, &mut message).unwrap();
    assert_eq!(x, [1.0, 2.0, -3.0]);
    decode(&message, &mut x).unwrap();
    assert_eq!(x, [1.5, 2.5, -3.5]);
}

#[test]
fn bytes_that_are_no_words_are_refused() {
    let mut words = vec![1];
    assert_eq!(
        from_bytes(&[1, 2, 3, 4, 5], &mut words),
        Err(CompatError::Bytes { found: 5 })
    );
    assert_eq!(words, [1]);
    from_bytes(&[0xff, 0xff, 0xff, 0x7f], &mut words).unwrap();
    assert_eq!(words, [1, i32::MAX]);
}

#[test]
fn a_limit_keeps_the_lowest_indices_and_the_rest_of_the_mass() {
    for (n, limit) in [(10, 3), (1000, 100), (6, 3), (64, 33), (64, 64), (64, 900)] {
        let mut x = vec![1f32; n];
        let mut message = Vec::new();
        let hits = limit.min(n);
        let sent = encode_threshold(&mut x, 1.0, Some(limit), &mut message);
        assert_eq!(sent, Ok(Sent::Threshold { hits }));
        assert_eq!(message.len(), hits + 4);
        assert!(x[..hits].iter().all(|x| *x == 0.0) && x[hits..].iter().all(|x| *x == 1.0));
    }
    for limit in [0, 1] {
        let mut x = [1f32; 10];
        let mut message = Vec::new();
        let sent = encode_threshold(&mut x, 1.0, Some(limit), &mut message);
        assert_eq!(sent, Ok(Sent::Nothing { hits: 10 }));
        assert_eq!((x, message), ([1.0; 10], vec![]));
    }
}

#[test]
fn hits_at_the_front_and_hits_far_apart_are_found_exactly() {
    for hits in 5..35 {
        let mut x = vec![0f32; 10_000];
        x[..hits].fill(2e-3);
        let mut message = Vec::new();
        encode_threshold(&mut x, 1e-3, None, &mut message).unwrap();
        assert_eq!(message.len(), hits + 4);
        assert!(x[..hits].iter().all(|x| *x == 1e-3) && x[hits..].iter().all(|x| *x == 0.0));
    }
    let mut x = vec![0f32; 16_384];
    x.iter_mut().step_by(20).take(96).for_each(|x| *x = 1.0);
    let mut message = Vec::new();
    encode_threshold(&mut x, 0.9, None, &mut message).unwrap();
    let mut sum = vec![0f32; 16_384];
    decode(&message, &mut sum).unwrap();
    for i in 0..16_384 {
        let hit = i % 20 == 0 && i < 96 * 20;
        assert_eq!(
            (x[i], sum[i]),
            if hit { (1.0 - 0.9f32, 0.9) } else { (0.0, 0.0) },
            "{i}"
        );
    }
}

#[test]
fn a_vector_of_ten_million_hits_goes_out_and_comes_back() {
    for n in [256_000, 10_000_000] {
        let mut x = vec![1f32; n];
        let mut message = Vec::new();
        encode_threshold(&mut x, 0.5, None, &mut message).unwrap();
        assert_eq!(message.len(), n + 4);
        assert!(x.iter().all(|x| *x == 0.5));
        assert_eq!(message[n + 3], n as i32);
        decode(&message, &mut x).unwrap();
        assert!(x.iter().all(|x| *x == 1.0));
    }
}

// The handler.

#[test]
fn the_handler_switches_where_upstream_does() {
    let n = 10_000;
    let mut handler = Handler::new();
    assert_eq!(handler.mode(), Mode::Dense);
    for leading in 10..2000 {
        let was = handler.mode();
        let (mut x, mut message) = (vec![0f32; n], Vec::new());
        x[..leading].fill(2e-3);
        let sent = handler.encode(&mut x, 1e-3, &mut message).unwrap();
        assert!(message.len() < n / 16 + 6, "{leading}");
        if leading == 10 {
            assert_eq!((sent, message.len()), (Sent::Bitmap { touched: 10 }, 630));
        }
        match was {
            Mode::Dense => {
                assert_eq!(sent, Sent::Bitmap { touched: leading });
                assert_eq!(handler.mode() == Mode::Sparse, leading < 315, "{leading}");
            }
            Mode::Sparse if leading + 4 >= 625 => {
                assert_eq!(sent, Sent::Bitmap { touched: leading });
                assert_eq!(handler.mode(), Mode::Dense, "{leading}");
            }
            Mode::Sparse => {
                assert_eq!(sent, Sent::Threshold { hits: leading });
                assert_eq!(handler.mode(), Mode::Sparse, "{leading}");
            }
        }
    }
    assert_eq!(handler.mode(), Mode::Dense);
}

#[test]
fn no_message_is_longer_than_what_a_ring_is_sized_by() {
    for n in [0, 1, 15, 16, 31, 32, 96, 111, 112, 113, 1600, 4000] {
        for mode in [Mode::Dense, Mode::Sparse] {
            for hits in 0..=n {
                let (mut x, mut message) = (vec![0f32; n], Vec::new());
                // Spread over the vector, some of them halves in a bitmap.
                for i in 0..hits {
                    x[i * n / hits] = if i % 3 == 0 { -0.75 } else { 1.0 };
                }
                Handler::with_mode(mode)
                    .encode(&mut x, 0.5 + (hits % 2) as f32 / 2.0, &mut message)
                    .unwrap();
                assert!(message.len() <= max_message_words(n), "{hits} of {n}");
            }
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Multiples of 2^-10, of which about this share can be hits of 1/16, and most others are 0.
    fn dyadic<T: Number>(&mut self, n: usize, density: f64) -> Vec<T> {
        let one = |random: &mut Random| {
            let most = match random.unit() {
                x if x <= density => 256,
                x if x > 0.98 => 8,
                _ => 0,
            };
            let quanta = random.below(2 * most + 1) as f64 - most as f64;
            T::of(quanta / 1024.0)
        };
        (0..n).map(|_| one(self)).collect()
    }
}

/// A run of a handler over a residual that fills again and again: each message and what it leaves are what there was.
fn nothing_is_lost<T: Number>(n: usize, seen: &mut Vec<(Mode, Mode, &'static str)>) {
    let random = &mut Random(n as u64);
    let mut handler = Handler::new();
    let mut x = vec![T::of(0.0); n];
    for step in 0..300 {
        let density = match step % 20 {
            0..8 => 0.0,
            8..13 => 1.0 / n.max(1) as f64,
            13..15 => 0.01,
            15 => 0.04,
            16 => 0.08,
            _ => 0.5,
        };
        for (x, more) in x.iter_mut().zip(random.dyadic::<T>(n, density)) {
            *x = *x + more;
        }
        let (before, was, mut message) = (x.clone(), handler.mode(), Vec::new());
        let sent = handler.encode(&mut x, 0.0625, &mut message).unwrap();
        assert!(message.len() <= max_message_words(n));
        let mut sum = x.clone();
        let kind = match sent {
            Sent::Nothing { hits } => {
                assert_eq!((hits, message.len()), (0, 0));
                "nothing"
            }
            Sent::Threshold { hits } => {
                assert_eq!(decode(&message, &mut sum).unwrap().touched, hits);
                if hits == 1 {
                    "a single one"
                } else {
                    "threshold"
                }
            }
            Sent::Bitmap { touched } => {
                assert_eq!(decode(&message, &mut sum).unwrap().touched, touched);
                "bitmap"
            }
        };
        assert!(sum == before, "step {step} of {n}: {was:?}, {sent:?}");
        let hits = |x: &[T]| {
            x.iter()
                .filter(|x| **x >= T::of(0.0625) || **x <= T::of(-0.0625))
                .count()
        };
        assert!(
            hits(&before) == 0 || kind != "nothing",
            "a hit of {n} waits: {was:?}"
        );
        seen.push((was, handler.mode(), kind));
    }
}

#[test]
fn nothing_is_lost_in_any_transition() {
    for n in [
        0, 1, 2, 5, 16, 17, 31, 32, 33, 48, 95, 96, 97, 111, 112, 113, 160, 1600, 1601, 10_000,
    ] {
        let mut seen = Vec::new();
        nothing_is_lost::<f32>(n, &mut seen);
        nothing_is_lost::<f64>(n, &mut seen);
        let expect = |transition| assert!(seen.contains(&transition), "{n}: no {transition:?}");
        use Mode::{Dense, Sparse};
        if n > 0 {
            expect((Dense, Sparse, "bitmap"));
            expect((Sparse, Dense, "bitmap"));
        }
        if n < 2000 {
            expect((Sparse, Sparse, "nothing"));
        }
        if (96..2000).contains(&n) {
            expect((Sparse, Sparse, "a single one"));
        }
        if n >= 112 {
            expect((Sparse, Sparse, "threshold"));
        }
        if n >= 1600 {
            expect((Dense, Dense, "bitmap"));
        }
    }
}

#[test]
fn a_fallback_loses_none_of_the_mass_that_upstream_loses() {
    let mut x = vec![0f32; 1600];
    x[..200].fill(0.03);
    let mut message = Vec::new();
    let mut handler = Handler::with_mode(Mode::Sparse);
    let sent = handler.encode(&mut x, 0.01, &mut message).unwrap();
    assert_eq!(
        (sent, handler.mode()),
        (Sent::Bitmap { touched: 200 }, Mode::Dense)
    );
    assert!(x[..200].iter().all(|x| *x == 0.03 - 0.01));
}

#[test]
fn a_handler_that_is_refused_stays_as_it_was() {
    let mut handler = Handler::with_mode(Mode::Sparse);
    let (mut x, mut message) = ([1f32; 40], Vec::new());
    let error = handler.encode(&mut x, f32::NAN, &mut message).unwrap_err();
    assert!(matches!(error, CompatError::Threshold { .. }));
    assert_eq!(
        (handler.mode(), x, message),
        (Mode::Sparse, [1.0; 40], vec![])
    );
}

// Numbers that are special.

#[test]
fn thresholds_that_are_none_are_refused_and_change_nothing() {
    for t in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (mut x, mut message) = ([1f32, -1.0, 0.0], vec![3]);
        for error in [
            encode_threshold(&mut x, t, None, &mut message).unwrap_err(),
            encode_bitmap(&mut x, t, &mut message).unwrap_err(),
        ] {
            assert_eq!(
                format!("{error:?}"),
                format!("{:?}", CompatError::Threshold { found: t })
            );
        }
        assert_eq!((x, &message[..]), ([1.0, -1.0, 0.0], &[3][..]));
    }
}

#[test]
fn a_subnormal_threshold_is_one_as_any() {
    let least = f32::from_bits(1);
    for t in [least, f32::from_bits(3), f32::MIN_POSITIVE] {
        let before = [
            t,
            -t,
            0.0,
            -0.0,
            1.0,
            -1.0,
            t / 2.0,
            -t / 2.0,
            f32::MIN_POSITIVE,
        ];
        for bitmap in [false, true] {
            let (mut x, mut message) = (before, Vec::new());
            if bitmap {
                encode_bitmap(&mut x, t, &mut message).unwrap();
            } else {
                encode_threshold(&mut x, t, None, &mut message).unwrap();
            }
            assert_eq!(x[..2], [0.0, 0.0]);
            decode(&message, &mut x).unwrap();
            assert_eq!(x, before);
        }
    }
    // Doubles can be smaller still.
    let (mut x, mut message) = (
        [f64::from(least), -f64::from(least) / 2.0, 5e-324],
        Vec::new(),
    );
    assert_eq!(encode_bitmap(&mut x, least, &mut message), Ok(2));
    assert_eq!(x, [0.0, 0.0, 5e-324]);
}

#[test]
fn nan_stays_infinities_repeat_and_negative_zero_is_no_hit() {
    let before = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        1e-45,
        -1e-45,
        f32::MAX,
        -0.5,
    ];
    let mut x = before;
    for _ in 0..3 {
        let mut message = Vec::new();
        encode_threshold(&mut x, 1.0, None, &mut message).unwrap();
        assert_eq!(message[4..], [2, -3, 7], "again and again");
        assert_eq!(bits(&x), bits(&before));
        encode_bitmap(&mut x, 1.0, &mut message).unwrap();
        // The half goes out once.
        x[7] = -0.5;
        assert_eq!(bits(&x), bits(&before));
    }
}

#[test]
fn vectors_of_no_and_of_one_element_have_messages() {
    let mut none = [0f32; 0];
    let mut message = Vec::new();
    assert_eq!(
        encode_threshold(&mut none, 1.0, None, &mut message),
        Ok(Sent::Nothing { hits: 0 })
    );
    assert_eq!(encode_bitmap(&mut none, 1.0, &mut message), Ok(0));
    assert_eq!(message, [0, 0, 1f32.to_bits() as i32, 1, 0]);
    assert_eq!(decode(&message, &mut none).unwrap().touched, 0);

    let mut one = [3f64];
    message.clear();
    assert_eq!(
        encode_threshold(&mut one, 1.0, None, &mut message),
        Ok(Sent::Nothing { hits: 1 })
    );
    assert_eq!((one, message.len()), ([3.0], 0));
    let mut handler = Handler::with_mode(Mode::Sparse);
    assert_eq!(
        handler.encode(&mut one, 1.0, &mut message),
        Ok(Sent::Bitmap { touched: 1 })
    );
    assert_eq!(one, [2.0]);
}

#[test]
fn lengths_that_an_index_cannot_name_are_refused() {
    assert_eq!(check_length(i32::MAX as usize), Ok(()));
    let found = i32::MAX as usize + 1;
    assert_eq!(check_length(found), Err(CompatError::TooLong { found }));
    assert_eq!(
        check_length(usize::MAX),
        Err(CompatError::TooLong { found: usize::MAX })
    );
}

// Any numbers and any words.

fn vectors<T: Number>(seed: u64, n: usize) -> Vec<T> {
    let random = &mut Random(seed);
    let kind = random.below(3);
    let special = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -0.0,
        1e-45,
        0.25,
        -0.25,
        0.125,
        -0.125,
    ];
    let one = |random: &mut Random| match kind {
        0 => T::any(random.next()),
        1 if random.below(4) == 0 => T::of(special[random.below(9) as usize]),
        _ => T::of((random.below(2049) as f64 - 1024.0) / 2048.0),
    };
    (0..n).map(|_| one(random)).collect()
}

/// The formats' rules, one element at a time: a bitmap's or a threshold message's words, and what stays.
fn model<T: Number>(x: &[T], t: f32, bitmap: bool) -> (Vec<i32>, Vec<T>) {
    let (n, bits, wide) = (x.len() as i32, t.to_bits() as i32, T::of(t.into()));
    let half = T::of(f64::from(t) / 2.0);
    let zero = T::of(0.0);
    let (mut left, mut words) = (x.to_vec(), vec![0i32; x.len() / 16 + 1]);
    let mut hits = Vec::new();
    for (i, x) in left.iter_mut().enumerate() {
        let (value, sign) = (1 << (i % 16), 1 << (i % 16 + 16));
        if *x >= wide {
            *x = *x - wide;
            hits.push(i as i32 + 1);
            words[i / 16] |= value;
        } else if *x <= zero - wide {
            *x = *x + wide;
            hits.push(-1 - i as i32);
            words[i / 16] |= value | sign;
        } else if bitmap && *x <= zero - half {
            *x = *x + half;
            words[i / 16] |= sign;
        }
    }
    let message = if bitmap {
        [vec![n, n, bits, 1], words].concat()
    } else {
        [vec![hits.len() as i32, n, bits, 0], hits].concat()
    };
    (message, left)
}

fn agrees_with_the_model<T: Number>(n: usize, seed: u64) {
    let before: Vec<T> = vectors(seed, n);
    let (mut x, mut message) = (before.clone(), Vec::new());
    let sent = encode_threshold(&mut x, 0.25, None, &mut message).unwrap();
    let (expected, left) = model(&before, 0.25, false);
    if let Sent::Nothing { hits } = sent {
        assert!(hits < 2 && expected.len() == hits + 4 && message.is_empty());
        assert_eq!(bits(&x), bits(&before));
    } else {
        assert_eq!((&message, bits(&x)), (&expected, bits(&left)));
    }
    let (mut x, mut message) = (before.clone(), Vec::new());
    encode_bitmap(&mut x, 0.25, &mut message).unwrap();
    let (expected, left) = model(&before, 0.25, true);
    assert_eq!((&message, bits(&x)), (&expected, bits(&left)));
}

fn conserves<T: Number>(n: usize, seed: u64, density: f64) {
    let before: Vec<T> = Random(seed).dyadic(n, density);
    for bitmap in [false, true] {
        let (mut x, mut message) = (before.clone(), Vec::new());
        if bitmap {
            encode_bitmap(&mut x, 0.0625, &mut message).unwrap();
        } else if let Sent::Nothing { .. } =
            encode_threshold(&mut x, 0.0625, None, &mut message).unwrap()
        {
            continue;
        }
        decode(&message, &mut x).unwrap();
        assert!(x == before);
    }
}

fn is_refused_or_adds_what_it_says<T: Number>(message: &[i32], n: usize, seed: u64) {
    let before: Vec<T> = vectors(seed, n);
    let mut target = before.clone();
    match decode(message, &mut target) {
        Err(_) => assert_eq!(bits(&target), bits(&before), "an error adds nothing"),
        Ok(decoded) => {
            assert_eq!(message[1] as usize, n);
            let changed = bits(&target)
                .iter()
                .zip(bits(&before))
                .filter(|(a, b)| **a != *b)
                .count();
            assert!(changed <= decoded.touched && decoded.touched <= 16 * message.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn encoders_follow_the_rules_for_any_numbers(n in 0usize..300, seed: u64) {
        agrees_with_the_model::<f32>(n, seed);
        agrees_with_the_model::<f64>(n, seed);
    }

    #[test]
    fn what_is_sent_and_what_stays_add_up_to_what_was(
        (n, seed, density) in (0usize..300, any::<u64>(), 0f64..1.0),
    ) {
        conserves::<f32>(n, seed, density);
        conserves::<f64>(n, seed, density);
    }

    #[test]
    fn any_words_are_refused_or_add_what_they_say(
        (n, seed, changes, fresh) in (0usize..100, any::<u64>(), 0usize..4, 0u8..4),
    ) {
        let random = &mut Random(seed);
        let mut x: Vec<f32> = vectors(seed, n);
        let mut message = Vec::new();
        if fresh == 0 {
            message.extend((0..random.below(40)).map(|_| random.next() as i32));
        } else if seed & 1 == 0 {
            encode_bitmap(&mut x, 0.25, &mut message).unwrap();
        } else {
            encode_threshold(&mut x, 0.25, None, &mut message).unwrap();
        }
        for _ in 0..changes {
            let at = random.below(message.len().max(1) as u64) as usize;
            match random.below(8) {
                0 => message.truncate(at),
                1 => message.push(random.next() as i32),
                2 => if let Some(word) = message.get_mut(at % 4) { *word = random.next() as i32 },
                3 => if let Some(word) = message.get_mut(at) { *word = -*word },
                4 => if let Some(word) = message.get_mut(at) { *word = random.below(200) as i32 - 100 },
                _ => if let Some(word) = message.get_mut(at) { *word ^= 1 << random.below(32) },
            }
        }
        is_refused_or_adds_what_it_says::<f32>(&message, n, seed);
        is_refused_or_adds_what_it_says::<f64>(&message, n, seed);
    }
}
