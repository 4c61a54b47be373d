//! Steps of encoders made at random, against the model and against one another.

use super::config::{Config, Policy, kind_of};
use super::model::Model;
use super::plain::{Kind, Random, bits, first_difference, paths, vector};
use super::{step, step_given};
use gradring::codec::policy::Magnitude;
use gradring::codec::{
    Encoder, Given, Message, ResidualPercentiles, ScopeState, ScopeStats, StepStats, Unit, Values,
};
use half::{bf16, f16};

const STEPS: usize = 7;

/// The updates of a run, as f32.
pub(super) fn updates(random: &mut Random, config: &Config) -> Vec<Vec<f32>> {
    let unit = Unit::nearest(random.one_of(&[0.25, 0.05, 3e-6]), 1.0);
    let one = |random: &mut Random| {
        let kind = kind_of(random);
        vector(random, config.elements(), kind, unit)
    };
    (0..STEPS).map(|_| one(random)).collect()
}

#[test]
fn an_encoder_sends_and_keeps_what_a_plain_model_does() {
    let (mut limited, mut inside, mut clipped, mut masked) = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut random = Random(seed);
        let config = Config::any(&mut random);
        let mut model = Model::new(&config);
        let mut encoder = config
            .builder()
            .threads(1 + seed as usize % 4)
            .path(paths().nth(seed as usize % paths().count()).unwrap())
            .build()
            .unwrap();
        for (update, past) in updates(&mut random, &config).iter().zip(0..) {
            let number = config.first + past;
            let case = format!("seed {seed}, step {number} of {config:?}");
            let expected = model.step(number, update);
            let messages = step(&mut encoder, number, update.into());

            assert_eq!(messages.len(), expected.messages.len(), "{case}");
            for ((message, payload), chunk) in messages.iter().zip(&expected.messages) {
                let wanted = Message {
                    elements: chunk.elements.clone(),
                    format: chunk.format,
                    unit: chunk.unit,
                    hits: chunk.hits as u32,
                };
                assert_eq!(*message, wanted, "{case}");
                assert!(*payload == chunk.payload, "payload of {message:?}, {case}");
            }
            let differs = first_difference(encoder.residual(), &model.residual);
            assert_eq!(differs, None, "residual, {case}");
            assert!(encoder.hits() == expected.hits, "hits, {case}");

            let stats = encoder.stats();
            assert_eq!(stats.hits as usize, expected.hits.len(), "{case}");
            assert_eq!(stats.dropped, expected.dropped, "{case}");
            let error = (stats.clipped - expected.clipped).abs();
            assert!(
                error <= 1e-12 * expected.clipped,
                "{} clipped, {case}",
                stats.clipped
            );
            let of = |wanted: &str| {
                let formats = messages
                    .iter()
                    .map(|(message, _)| message.format.to_string());
                formats.filter(|format| format.starts_with(wanted)).count() as u64
            };
            let chunks = (stats.sparse_chunks, stats.bitmap_chunks, stats.dense_chunks);
            assert_eq!(chunks, (of("sparse"), of("bitmap"), of("dense")), "{case}");
            if stats.dense_chunks == 0 {
                assert_eq!(
                    stats.l1_sent.to_bits(),
                    expected.l1_of_hits.to_bits(),
                    "{case}"
                );
            } else {
                assert!(stats.l1_sent >= expected.l1_of_hits * 0.999_999, "{case}");
            }
            let largest = model
                .residual
                .iter()
                .fold(0f32, |most, r| most.max(r.abs()));
            assert!(stats.residual_max <= largest, "{case}");

            assert_eq!(encoder.scopes().len(), expected.scopes.len());
            for (scope, (name, elements, unit, hits, unlimited)) in
                encoder.scopes().zip(&expected.scopes)
            {
                assert_eq!((&scope.name, scope.elements), (name, *elements), "{case}");
                assert_eq!((scope.unit, scope.hits), (Some(*unit), *hits), "{case}");
                assert_eq!(scope.density, *hits as f64 / (*elements).max(1) as f64);
                limited += u64::from((*hits as usize) < *unlimited);
            }
            for (found, (elements, percentiles, above)) in
                encoder.percentiles().iter().zip(model.percentiles())
            {
                assert_eq!((found.elements, found.above), (elements, above), "{case}");
                assert_eq!(bits(&found.percentiles), bits(&percentiles), "{case}");
            }
            inside += u64::from(expected.limit_inside);
            clipped += u64::from(expected.clipped > 0.0);
            masked += u64::from(config.memory.is_some() && !expected.hits.is_empty());
        }
    }
    // Each of these was met often enough to count.
    let met = [limited, inside, clipped, masked];
    assert!(met.iter().all(|&times| times > 50), "{met:?}");
}

/// All that an encoder says of a step.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    messages: Vec<(Message, Vec<u8>)>,
    residual: Vec<u32>,
    stats: StepStats,
    scopes: Vec<ScopeStats>,
    hits: Vec<usize>,
    percentiles: Vec<ResidualPercentiles>,
    states: Vec<ScopeState>,
}

pub(super) fn said<'a>(encoder: &mut Encoder, number: u64, update: impl Into<Given<'a>>) -> Said {
    Said {
        messages: step_given(encoder, number, update.into()),
        residual: bits(encoder.residual()),
        stats: encoder.stats().clone(),
        scopes: encoder.scopes().cloned().collect(),
        hits: encoder.hits().to_vec(),
        percentiles: encoder.percentiles().to_vec(),
        states: encoder.scope_states(),
    }
}

#[test]
fn threads_and_paths_change_nothing_that_an_encoder_says() {
    for seed in 1000..1040 {
        let mut random = Random(seed);
        let config = Config::any(&mut random);
        let updates = updates(&mut random, &config);
        let f16s: Vec<Vec<f16>> = updates
            .iter()
            .map(|u| u.iter().map(|&u| f16::from_f32(u)).collect())
            .collect();
        let bf16s: Vec<Vec<bf16>> = updates
            .iter()
            .map(|u| u.iter().map(|&u| bf16::from_f32(u)).collect())
            .collect();
        // Of each step the type of its update differs.
        let values = |at: usize| match at % 3 {
            0 => Values::F32(&updates[at]),
            1 => Values::F16(&f16s[at]),
            _ => Values::Bf16(&bf16s[at]),
        };
        let mut plain = config.builder().build().unwrap();
        let expected: Vec<Said> = (0..STEPS)
            .map(|at| said(&mut plain, config.first + at as u64, values(at)))
            .collect();
        for (path, threads) in paths().flat_map(|path| [1, 2, 3, 4].map(|n| (path, n))) {
            let mut encoder = config
                .builder()
                .path(path)
                .threads(threads)
                .build()
                .unwrap();
            for (at, expected) in expected.iter().enumerate() {
                let found = said(&mut encoder, config.first + at as u64, values(at));
                assert!(
                    found == *expected,
                    "{threads} threads on {path}, seed {seed}, step {at} of {config:?}"
                );
            }
        }
    }
}

#[test]
fn halves_are_encoded_as_their_singles() {
    for seed in 2000..2020 {
        let mut random = Random(seed);
        let config = Config::any(&mut random);
        let mut encoders: Vec<Encoder> = (0..4)
            .map(|_| {
                config
                    .builder()
                    .path(paths().last().unwrap())
                    .build()
                    .unwrap()
            })
            .collect();
        for (update, past) in updates(&mut random, &config).iter().zip(0..) {
            let f16s: Vec<f16> = update.iter().map(|&u| f16::from_f32(u)).collect();
            let bf16s: Vec<bf16> = update.iter().map(|&u| bf16::from_f32(u)).collect();
            let of_f16s: Vec<f32> = f16s.iter().map(|u| u.to_f32()).collect();
            let of_bf16s: Vec<f32> = bf16s.iter().map(|u| u.to_f32()).collect();
            let number = config.first + past;
            let pairs = [
                [Values::F16(&f16s), Values::F32(&of_f16s)],
                [Values::Bf16(&bf16s), Values::F32(&of_bf16s)],
            ];
            for (encoders, values) in encoders.chunks_mut(2).zip(pairs) {
                let [half, single] = [0, 1].map(|i| said(&mut encoders[i], number, values[i]));
                assert!(half == single, "seed {seed}, step {past} of {config:?}");
            }
        }
    }
}

#[test]
fn the_mean_of_the_hits_that_a_policy_hears_is_that_of_their_sums() {
    // Up to 64 hits a chunk are all looked at.
    let mut encoder = Encoder::builder(600)
        .policy(Policy::Fixed(0.25, None, Magnitude::Mean).make())
        .build()
        .unwrap();
    let mut random = Random(3);
    let (mut last_mean, mut means) = (None, 0);
    for number in 0..20 {
        let unit = Unit::nearest(0.25, 0.25);
        let update = vector(&mut random, 600, Kind::Ordinary(5e-3), unit);
        let sums: Vec<f64> = encoder
            .residual()
            .iter()
            .zip(&update)
            .map(|(r, u)| f64::from(r + u).abs())
            .filter(|s| *s >= 0.25)
            .collect();
        step(&mut encoder, number, (&update).into());
        // The unit is that of the mean of the step before.
        let v = encoder.scopes().next().unwrap().unit.unwrap().v();
        let expected = last_mean.map_or(0.25, |mean: f64| Unit::nearest(0.25, mean as f32).v());
        assert_eq!(v, expected, "step {number}");
        let mean = encoder.scope_states()[0].last.unwrap().mean;
        assert!(sums.len() <= 64, "{}", sums.len());
        let exact = sums.iter().sum::<f64>() / sums.len() as f64;
        match mean {
            None => assert!(sums.is_empty()),
            Some(mean) => assert!((mean / exact - 1.0).abs() < 1e-9, "{mean} is not {exact}"),
        }
        means += u32::from(mean.is_some());
        last_mean = mean;
    }
    assert!(means > 10);
}
