//! The handler: which encoding, and nothing lost.

use super::numbers::{Number, dyadic};
use super::random::Random;
use gradring::codec::compat::{CompatError, Handler, Mode, Sent, decode, max_message_words};

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
        for (x, more) in x.iter_mut().zip(dyadic::<T>(random, n, density)) {
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
