//! Any numbers and any words.

use super::numbers::{Number, bits, dyadic};
use super::random::Random;
use gradring::codec::compat::{Sent, decode, encode_bitmap, encode_threshold};
use proptest::prelude::*;

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
    let before: Vec<T> = dyadic(&mut Random(seed), n, density);
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
