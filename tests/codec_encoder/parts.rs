//! Updates as lists of slices, and in the residual: what an encoder makes of them is what it makes of the whole vector.

use super::config::{Coding, Config, Policy, Post};
use super::plain::{Random, bits, paths};
use super::steps::{said, updates};
use super::{step, step_given};
use gradring::codec::policy::{Fixed, Magnitude};
use gradring::codec::{
    CHUNK, Dense, EncodeError, Encoder, Given, InResidual, MomentumMemory, Update, Values, canon,
};
use half::{bf16, f16};

/// A tensor in one of the types.
enum Tensor {
    Single(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Tensor {
    fn values(&self) -> Values<'_> {
        match self {
            Tensor::Single(x) => x.into(),
            Tensor::F16(x) => x.into(),
            Tensor::Bf16(x) => x.into(),
        }
    }

    fn singles(&self) -> Vec<f32> {
        match self {
            Tensor::Single(x) => x.clone(),
            Tensor::F16(x) => x.iter().map(|x| x.to_f32()).collect(),
            Tensor::Bf16(x) => x.iter().map(|x| x.to_f32()).collect(),
        }
    }
}

/// A vector cut anywhere, also into nothing, its parts in any type.
fn cut(random: &mut Random, mut vector: &[f32], longest: u64) -> Vec<Tensor> {
    let mut parts = Vec::new();
    while !vector.is_empty() || random.coin() {
        let length = match random.below(6) {
            0 => 0,
            1 => random.below(40),
            _ => random.below(longest + 1),
        };
        let (now, rest) = vector.split_at(vector.len().min(length as usize));
        vector = rest;
        parts.push(match random.below(4) {
            0 => Tensor::F16(now.iter().map(|&x| f16::from_f32(x)).collect()),
            1 => Tensor::Bf16(now.iter().map(|&x| bf16::from_f32(x)).collect()),
            _ => Tensor::Single(now.to_vec()),
        });
    }
    parts
}

#[test]
fn parts_are_encoded_as_the_vector_that_they_make() {
    for seed in 3000..3100 {
        let mut random = Random(seed);
        let config = Config::any(&mut random);
        let updates = updates(&mut random, &config);
        let path = paths().nth(seed as usize % paths().count()).unwrap();
        let build = |threads| {
            config
                .builder()
                .path(path)
                .threads(threads)
                .build()
                .unwrap()
        };
        let mut whole = build(1);
        let mut in_parts = [1, 2, 3].map(build);
        for (update, number) in updates.iter().zip(config.first..) {
            let longest = random.one_of(&[7, 200, 5000, 40_000]);
            let tensors = cut(&mut random, update, longest);
            let flat: Vec<f32> = tensors.iter().flat_map(Tensor::singles).collect();
            let parts: Vec<Values<'_>> = tensors.iter().map(Tensor::values).collect();
            let expected = said(&mut whole, number, &flat);
            for (encoder, threads) in in_parts.iter_mut().zip(1..) {
                let found = said(encoder, number, &parts);
                assert!(
                    found == expected,
                    "{threads} threads on {path}, seed {seed}, step {number} of {config:?}"
                );
            }
        }
    }
}

#[test]
fn parts_of_a_long_vector_are_encoded_as_it_is() {
    let elements = CHUNK + 70_001;
    let mut random = Random(71);
    let [mut whole, mut in_parts] = [1, 2].map(|threads| {
        let builder = Encoder::builder(elements).threads(threads);
        builder.build().unwrap()
    });
    for number in 0..4 {
        let update: Vec<f32> = (0..elements).map(|_| random.laplace(1.0)).collect();
        let tensors = cut(&mut random, &update, 90_000);
        let flat: Vec<f32> = tensors.iter().flat_map(Tensor::singles).collect();
        let parts: Vec<Values<'_>> = tensors.iter().map(Tensor::values).collect();
        // Any of the ways in which a list can be handed over.
        let found = match number {
            0 => said(&mut in_parts, number, &parts),
            1 => said(&mut in_parts, number, &parts[..]),
            2 => said(&mut in_parts, number, &parts as &dyn Update),
            _ => said(&mut in_parts, number, Given::Parts(&parts)),
        };
        assert!(found == said(&mut whole, number, &flat));
    }
}

#[test]
fn parts_of_another_length_in_all_are_refused() {
    let mut encoder = Encoder::builder(10).build().unwrap();
    let (three, four) = ([1.0f32; 3], [1.0f32; 4]);
    let parts: [Values<'_>; 3] = [(&three).into(), (&four).into(), (&four).into()];
    let lengths = |found| EncodeError::Lengths {
        expected: 10,
        found,
    };
    assert_eq!(encoder.begin(0, &parts), Err(lengths(11)));
    assert_eq!(encoder.begin(0, &parts[..2]), Err(lengths(7)));
    assert_eq!(encoder.begin(0, Given::Parts(&[])), Err(lengths(0)));
    let parts = [parts[0], parts[0], parts[1]];
    encoder.begin(0, &parts).unwrap();
    let short = encoder.encode(0, &parts[..2]).map(drop);
    assert_eq!(short, Err(lengths(6)));
    encoder.encode(0, &parts).unwrap();
    encoder.end().unwrap();
}

#[test]
fn what_is_in_the_residual_is_encoded_as_what_is_handed_over() {
    for seed in 4000..4080 {
        let mut random = Random(seed);
        let config = Config {
            memory: None,
            ..Config::any(&mut random)
        };
        let updates = updates(&mut random, &config);
        let path = paths().nth(seed as usize % paths().count()).unwrap();
        let build = |threads| {
            config
                .builder()
                .path(path)
                .threads(threads)
                .build()
                .unwrap()
        };
        let (mut given, mut in_place) = (build(1), build(1 + seed as usize % 3));
        for (update, number) in updates.iter().zip(config.first..) {
            // No sum overflows: in place it would take the residual with it.
            let fine = |&u: &f32| if u.abs() < 1e37 { canon(u) } else { 0.0 };
            let update: Vec<f32> = update.iter().map(fine).collect();
            // As a trainer adds them: the sums are those of the codec, but not canonical.
            for (r, u) in in_place.residual_mut().iter_mut().zip(&update) {
                *r += u;
            }
            let expected = said(&mut given, number, &update);
            let found = said(&mut in_place, number, InResidual);
            assert!(
                found == expected,
                "on {path}, seed {seed}, step {number} of {config:?}"
            );
        }
    }
}

#[test]
fn what_is_not_finite_in_the_residual_is_dropped_and_counted() {
    for path in paths() {
        let config = Config {
            ranges: vec![(70, Coding::Shared), (3, Coding::Dense(Dense::F32))],
            policy: Policy::Fixed(1.0, None, Magnitude::Threshold),
            post: Post::None,
            memory: None,
            first: 0,
        };
        let touch = |encoder: &mut Encoder| {
            let residual = encoder.residual_mut();
            residual[..5].copy_from_slice(&[f32::NAN, -1.5, -0.0, 1e-45, f32::NEG_INFINITY]);
            residual[70..].copy_from_slice(&[f32::NAN, 0.5, -1e-40]);
        };
        let expected = [0.0, -0.5, 0.0, 0.0, 0.0];
        let mut encoder = config.builder().path(path).build().unwrap();
        touch(&mut encoder);
        let messages = step_given(&mut encoder, 0, Given::InResidual);
        assert_eq!(encoder.stats().dropped, 3);
        assert_eq!(bits(&encoder.residual()[..5]), bits(&expected));
        let dense: Vec<u8> = [0.0f32, 0.5, 0.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        assert_eq!(messages[1].1, dense);
        // Also when the next step is one of an update.
        touch(&mut encoder);
        step(&mut encoder, 1, (&[0.0f32; 73]).into());
        assert_eq!(encoder.stats().dropped, 3);
        assert_eq!(bits(&encoder.residual()[..5]), bits(&expected));
        step(&mut encoder, 2, (&[0.0f32; 73]).into());
        assert_eq!(encoder.stats().dropped, 0);
    }
}

#[test]
fn a_momentum_memory_refuses_what_is_in_the_residual() {
    let mut encoder = Encoder::builder(3)
        .policy(Fixed::new(1.0).unwrap())
        .momentum(MomentumMemory::new(0.5).unwrap(), 1)
        .build()
        .unwrap();
    assert_eq!(encoder.begin(0, InResidual), Err(EncodeError::InResidual));
    encoder.begin(0, &[1.0; 3]).unwrap();
    let refused = encoder.encode(0, InResidual).map(drop);
    assert_eq!(refused, Err(EncodeError::InResidual));
    encoder.encode(0, &[1.0; 3]).unwrap();
    encoder.end().unwrap();
    assert_eq!(encoder.stats().hits, 3);
}
