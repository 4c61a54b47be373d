//! Chunks whose turn is taken without sending anything.

use super::config::{Coding, Config, Policy, Post};
use super::model::{Model, Sent};
use super::plain::{Random, bits, first_difference, paths};
use super::steps::updates;
use gradring::codec::policy::Magnitude;
use gradring::codec::{Dense, EncodeError, Encoder, Message, VectorsError};

/// A step of which some visits are only accumulated; the messages of the others with their payloads.
fn step(
    encoder: &mut Encoder,
    number: u64,
    update: &[f32],
    kept: &[bool],
) -> Vec<(Message, Vec<u8>)> {
    encoder.begin(number, update).unwrap();
    let mut messages = Vec::new();
    for (visit, &kept) in kept.iter().enumerate() {
        if kept {
            encoder.accumulate(visit, update).unwrap();
            assert!(encoder.payload().is_empty());
        } else {
            let message = encoder.encode(visit, update).unwrap();
            messages.push((message, encoder.payload().to_vec()));
        }
    }
    encoder.end().unwrap();
    messages
}

fn compare(encoder: &Encoder, messages: &[(Message, Vec<u8>)], model: &Model, expected: &Sent) {
    assert_eq!(messages.len(), expected.messages.len());
    for ((message, payload), chunk) in messages.iter().zip(&expected.messages) {
        let wanted = Message {
            elements: chunk.elements.clone(),
            format: chunk.format,
            unit: chunk.unit,
            hits: chunk.hits as u32,
        };
        assert_eq!(*message, wanted);
        assert!(*payload == chunk.payload, "payload of {message:?}");
    }
    assert_eq!(first_difference(encoder.residual(), &model.residual), None);
    assert_eq!(encoder.hits(), expected.hits);
    assert_eq!(encoder.stats().dropped, expected.dropped);
    for (scope, (_, elements, unit, hits, _)) in encoder.scopes().zip(&expected.scopes) {
        assert_eq!((scope.unit, scope.hits), (Some(*unit), *hits));
        assert_eq!(scope.density, *hits as f64 / (*elements).max(1) as f64);
    }
}

#[test]
fn what_is_kept_is_all_of_a_chunks_sum_whatever_was_drafted() {
    let mut kept_in_all = 0;
    for seed in 5000..5120 {
        let mut random = Random(seed);
        let config = Config::any(&mut random);
        let updates = updates(&mut random, &config);
        let path = paths().nth(seed as usize % paths().count()).unwrap();
        let threads = [1, 2, 3, 5, 64][seed as usize % 5];
        let builder = config.builder().path(path).threads(threads);
        let mut encoder = builder.build().unwrap();
        let mut model = Model::new(&config);
        for (update, number) in updates.iter().zip(config.first..) {
            let one_in = random.one_of(&[1, 2, 3, 10]);
            let kept: Vec<bool> = (0..encoder.chunks())
                .map(|_| random.below(one_in) == 0)
                .collect();
            let expected = model.step_keeping(number, update, &kept);
            let messages = step(&mut encoder, number, update, &kept);
            compare(&encoder, &messages, &model, &expected);
            kept_in_all += kept.iter().filter(|kept| **kept).count();
        }
    }
    assert!(kept_in_all > 1000);
}

#[test]
fn numbers_past_every_unit_and_roundings_of_values_come_back_to_the_bit() {
    // Past 2^16 units a hit rounds, and near the least numbers a bf16's rest is lost.
    let ranges = (0..8).map(|at| {
        let coding = match at % 4 {
            0 => Coding::Dense(Dense::Bf16),
            1 => Coding::Dense(Dense::F32),
            _ => Coding::Shared,
        };
        (257, coding)
    });
    let config = Config {
        ranges: ranges.collect(),
        policy: Policy::Fixed(2f32.powi(-100), Some(900), Magnitude::Threshold),
        post: Post::Clipping(2.0, 1),
        memory: None,
        first: 1,
    };
    for (path, threads) in paths().flat_map(|path| [1, 2, 3, 8, 64].map(|n| (path, n))) {
        let mut random = Random(threads as u64);
        let mut encoder = config
            .builder()
            .path(path)
            .threads(threads)
            .build()
            .unwrap();
        let mut model = Model::new(&config);
        for number in 1..9 {
            let one = |random: &mut Random| {
                let power = random.one_of(&[2f64.powi(-100), 2f64.powi(-122), 1e-24, 3e30]);
                random.laplace(power)
            };
            let update: Vec<f32> = (0..config.elements()).map(|_| one(&mut random)).collect();
            let kept: Vec<bool> = (0..8).map(|_| random.coin()).collect();
            let expected = model.step_keeping(number, &update, &kept);
            let messages = step(&mut encoder, number, &update, &kept);
            compare(&encoder, &messages, &model, &expected);
        }
    }
}

#[test]
fn policies_hear_as_many_hits_as_all_chunks_would_have_had() {
    let config = Config {
        ranges: vec![(100, Coding::Shared); 4],
        policy: Policy::TargetDensity(0.5),
        post: Post::None,
        memory: None,
        first: 0,
    };
    let mut encoder = config.builder().build().unwrap();
    let update: Vec<f32> = (0..400).map(|i| 1.0 + (i % 10) as f32).collect();
    step(&mut encoder, 0, &update, &[false; 4]);
    step(&mut encoder, 4, &update, &[false, true, true, false]);
    let sent = encoder.scopes().next().unwrap().hits;
    let last = encoder.scope_states()[0].last.unwrap();
    assert_eq!(last.hits, 2 * sent);
    assert_eq!(last.density, sent as f64 / 200.0);
    // With nothing sent there is no news, and a threshold that follows the density stays where it is.
    let next = |encoder: &mut Encoder, number, kept| {
        step(encoder, number, &update, &[kept; 4]);
        encoder.scopes().next().unwrap().unit.unwrap()
    };
    let unit = next(&mut encoder, 8, true);
    assert_eq!(encoder.scope_states()[0].last, Some(last));
    for number in [12, 16, 20] {
        assert_eq!(next(&mut encoder, number, true), unit);
        assert_eq!(encoder.scope_states()[0].last, Some(last));
    }
    assert_eq!(next(&mut encoder, 24, false), unit);
    assert_ne!(next(&mut encoder, 28, false), unit);
}

#[test]
fn a_turn_is_taken_once_whether_something_is_sent_or_not() {
    let update = [0.5f32; 200];
    let config = Config {
        ranges: vec![(50, Coding::Shared); 4],
        policy: Policy::Fixed(0.25, None, Magnitude::Threshold),
        post: Post::None,
        memory: None,
        first: 0,
    };
    for threads in [1, 3] {
        let mut encoder = config.builder().threads(threads).build().unwrap();
        let refused = encoder.accumulate(0, &update);
        assert_eq!(refused, Err(EncodeError::NotBegun));
        encoder.begin(0, &update).unwrap();
        let turn = |expected, found| Err(EncodeError::Turn { expected, found });
        assert_eq!(encoder.accumulate(1, &update), turn(0, 1));
        encoder.accumulate(0, &update).unwrap();
        assert_eq!(encoder.accumulate(0, &update), turn(1, 0));
        assert_eq!(encoder.encode(0, &update).map(drop), turn(1, 0));
        let (expected, found) = (200, 3);
        let refused = encoder.accumulate(1, &update[..3]);
        assert_eq!(refused, Err(EncodeError::Lengths { expected, found }));
        encoder.encode(1, &update).unwrap();
        encoder.accumulate(2, &update).unwrap();
        let (expected, found) = (4, 3);
        assert_eq!(
            encoder.end(),
            Err(EncodeError::Unfinished { expected, found })
        );
        encoder.accumulate(3, &update).unwrap();
        let (expected, found) = (4, 4);
        let refused = encoder.accumulate(4, &update);
        assert_eq!(refused, Err(EncodeError::Visit { expected, found }));
        encoder.end().unwrap();
        assert_eq!(encoder.stats().hits, 50);
        assert_eq!(encoder.residual()[60], 0.25);
        assert_eq!(encoder.residual()[10], 0.5);
    }
}

#[test]
fn an_encoder_goes_on_from_anothers_vectors_bit_for_bit() {
    for seed in 6000..6030 {
        let mut random = Random(seed);
        let config = Config::any(&mut random);
        let updates = updates(&mut random, &config);
        let (before, after) = updates.split_at(3);
        let mut old = config.builder().build().unwrap();
        for (update, number) in before.iter().zip(config.first..) {
            super::step(&mut old, number, update.into());
        }
        let mut new = config.builder().build().unwrap();
        new.residual_mut().fill(f32::NAN);
        new.restore_scopes(&old.scope_states()).unwrap();
        let velocity = old.velocity().map(<[f32]>::to_vec);
        assert_eq!(velocity.is_some(), config.memory.is_some());
        new.restore_vectors(old.residual(), velocity.as_deref())
            .unwrap();
        for (update, number) in after.iter().zip(config.first + 3..) {
            let expected = super::step(&mut old, number, update.into());
            assert!(super::step(&mut new, number, update.into()) == expected);
            assert_eq!(bits(new.residual()), bits(old.residual()));
            assert_eq!(new.velocity().map(bits), old.velocity().map(bits));
        }
    }
}

#[test]
fn vectors_that_no_encoder_leaves_are_refused_and_change_nothing() {
    let config = |memory| Config {
        ranges: vec![(4, Coding::Shared)],
        policy: Policy::Fixed(0.25, None, Magnitude::Threshold),
        post: Post::None,
        memory,
        first: 0,
    };
    let mut encoder = config(Some((0.5, None, 1))).builder().build().unwrap();
    super::step(&mut encoder, 0, (&[0.1, -0.2, 0.0, 0.3]).into());
    let seen = |encoder: &Encoder| (bits(encoder.residual()), encoder.velocity().map(bits));
    let before = seen(&encoder);
    let fine = [0.5f32, 0.0, -1.5, f32::MIN_POSITIVE];
    let mut refused = |residual: &[f32], velocity: Option<&[f32]>| {
        let error = encoder.restore_vectors(residual, velocity).unwrap_err();
        assert_eq!(seen(&encoder), before, "{error}");
        error
    };
    for found in [-0.0, 1e-45, -1e-40, f32::INFINITY, f32::NEG_INFINITY] {
        let damaged = [0.5, 0.0, found, 1.0];
        let element = 2;
        let what = "residual";
        assert_eq!(
            refused(&damaged, Some(&fine)),
            VectorsError::Value {
                what,
                element,
                found
            }
        );
        let what = "velocity";
        assert_eq!(
            refused(&fine, Some(&damaged)),
            VectorsError::Value {
                what,
                element,
                found
            }
        );
    }
    let nan = [f32::NAN, 0.0, 0.0, 0.0];
    assert!(matches!(
        refused(&nan, Some(&fine)),
        VectorsError::Value { element: 0, .. }
    ));
    let length = |what, found| VectorsError::Length {
        what,
        expected: 4,
        found,
    };
    assert_eq!(refused(&fine[1..], Some(&fine)), length("residual", 3));
    assert_eq!(refused(&fine, Some(&[0.0; 5])), length("velocity", 5));
    assert_eq!(
        refused(&fine, None),
        VectorsError::Velocity { expected: true }
    );
    let mut plain = config(None).builder().build().unwrap();
    assert_eq!(
        plain.restore_vectors(&fine, Some(&fine)),
        Err(VectorsError::Velocity { expected: false })
    );
    plain.begin(0, &fine).unwrap();
    let refused = plain.restore_vectors(&fine, None);
    assert_eq!(refused, Err(VectorsError::Open));
    plain.encode(0, &fine).unwrap();
    plain.end().unwrap();
    plain.restore_vectors(&fine, None).unwrap();
    assert_eq!(bits(plain.residual()), bits(&fine));
}
