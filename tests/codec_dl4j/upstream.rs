//! Upstream's own tests.

use super::random::Random;
use gradring::codec::compat::{
    CompatError, Sent, decode, encode_bitmap, encode_threshold, from_bytes, to_bytes,
};

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
