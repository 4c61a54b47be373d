//! Streamed steps: parts in any order against the plain model, thresholds from the step before, and what is refused.

use super::config::{Coding, Config, Policy, Post};
use super::model::Model;
use super::plain::{Random, bits, first_difference, paths};
use super::steps::updates;
use super::{step, step_given};
use gradring::codec::policy::{Magnitude, PolicyInput, ThresholdPolicy};
use gradring::codec::{
    CHUNK, Dense, EncodeError, Encoder, Given, Message, MomentumMemory, NamedRange,
    ScopeStateError, Unit, Values,
};
use std::ops::Range;

/// A vector cut anywhere, its parts in any order.
fn shuffled_parts(random: &mut Random, elements: usize, longest: u64) -> Vec<Range<usize>> {
    let (mut parts, mut start) = (Vec::new(), 0);
    while start < elements || random.coin() {
        let length = match random.below(5) {
            0 => 0,
            1 => random.below(20),
            _ => random.below(longest + 1),
        };
        let end = elements.min(start + length as usize);
        parts.push(start..end);
        start = end;
    }
    shuffle(random, &mut parts);
    parts
}

fn shuffle<T>(random: &mut Random, list: &mut [T]) {
    for last in (1..list.len()).rev() {
        list.swap(last, random.index(last + 1));
    }
}

type Messages = Vec<(Message, Vec<u8>)>;

/// When chunks are encoded.
#[derive(Clone, Copy, Debug)]
enum When {
    /// As soon as they are complete.
    AtOnce,
    /// After all parts, in any order.
    AtTheEnd,
    /// Some at once, some later.
    NowAndThen,
}

/// A streamed step; which chunks were complete in which order, in which they were encoded, and their messages.
fn stream(
    encoder: &mut Encoder,
    number: u64,
    update: &[f32],
    parts: &[Range<usize>],
    when: When,
    random: &mut Random,
) -> (Vec<usize>, Vec<usize>, Messages) {
    let (mut complete, mut order, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut messages = Vec::new();
    encoder.begin_streamed(number).unwrap();
    let mut encode = |encoder: &mut Encoder, chunk| {
        let message = encoder.encode_complete(chunk).unwrap();
        messages.push((message, encoder.payload().to_vec()));
        order.push(chunk);
    };
    for part in parts {
        let before = complete.len();
        encoder
            .push(part.clone(), &update[part.clone()], &mut complete)
            .unwrap();
        waiting.extend_from_slice(&complete[before..]);
        match when {
            When::AtTheEnd => {}
            When::NowAndThen if random.coin() => {}
            _ => waiting.drain(..).for_each(|chunk| encode(encoder, chunk)),
        }
    }
    shuffle(random, &mut waiting);
    waiting.drain(..).for_each(|chunk| encode(encoder, chunk));
    encoder.end().unwrap();
    (complete, order, messages)
}

#[test]
fn a_streamed_step_sends_and_keeps_what_a_plain_model_does() {
    let (mut limited, mut masked) = (0, 0);
    for seed in 7000..7150 {
        let mut random = Random(seed);
        let mut config = Config::any(&mut random);
        if let Some((_, norm, _)) = &mut config.memory {
            *norm = None;
        }
        let updates = updates(&mut random, &config);
        let path = paths().nth(seed as usize % paths().count()).unwrap();
        let threads = 1 + seed as usize % 3;
        let mut encoder = config
            .builder()
            .path(path)
            .threads(threads)
            .build()
            .unwrap();
        let mut model = Model::new(&config);
        for (update, number) in updates.iter().zip(config.first..) {
            let case = format!("seed {seed}, step {number} of {config:?} on {path}");
            // Now and then a step that is none: the next one begins anew.
            if random.below(5) == 0 {
                let expected = model.step(number, update);
                step(&mut encoder, number, update.into());
                assert_eq!(encoder.hits(), expected.hits, "{case}");
                continue;
            }
            let longest = random.one_of(&[30, 700, 100_000]);
            let parts = shuffled_parts(&mut random, update.len(), longest);
            let when = random.one_of(&[When::AtOnce, When::AtTheEnd, When::NowAndThen]);
            let (complete, order, messages) =
                stream(&mut encoder, number, update, &parts, when, &mut random);
            let expected = model.streamed_step(number, update, &complete, &order);
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
            assert_eq!(encoder.stats().dropped, expected.dropped, "{case}");
            for (scope, (_, _, unit, hits, unlimited)) in encoder.scopes().zip(&expected.scopes) {
                assert_eq!((scope.unit, scope.hits), (Some(*unit), *hits), "{case}");
                limited += u64::from((*hits as usize) < *unlimited);
            }
            masked += u64::from(config.memory.is_some() && !expected.hits.is_empty());
        }
    }
    assert!(limited > 50 && masked > 50, "{limited} {masked}");
}

#[test]
fn with_a_threshold_that_is_given_a_streamed_step_is_any_other_step() {
    for seed in 8000..8030 {
        let mut random = Random(seed);
        let config = Config {
            policy: Policy::Fixed(0.1, None, Magnitude::Threshold),
            ranges: vec![
                (3000, Coding::Shared),
                (70, Coding::Dense(Dense::Bf16)),
                (5000, Coding::Shared),
                (33, Coding::Own(Policy::Fixed(0.3, None, Magnitude::Mean))),
                (40_000, Coding::Dense(Dense::F32)),
            ],
            memory: (seed % 2 == 0).then_some((0.9, None, 2)),
            post: Post::Clipping(3.0, 2),
            first: seed,
        };
        let [mut streamed, mut whole] = [0, 1].map(|_| config.builder().build().unwrap());
        for (update, number) in updates(&mut random, &config).iter().zip(config.first..) {
            let parts = shuffled_parts(&mut random, update.len(), 3000);
            let (.., mut found) = stream(
                &mut streamed,
                number,
                update,
                &parts,
                When::NowAndThen,
                &mut random,
            );
            let mut expected = step(&mut whole, number, update.into());
            for messages in [&mut found, &mut expected] {
                messages.sort_by_key(|(message, _)| message.elements.start);
            }
            assert!(found == expected, "seed {seed}, step {number}");
            assert_eq!(bits(streamed.residual()), bits(whole.residual()));
            assert_eq!(streamed.stats().dropped, whole.stats().dropped);
            assert_eq!(streamed.stats().hits, whole.stats().hits);
            assert_eq!(streamed.velocity().map(bits), whole.velocity().map(bits));
        }
    }
}

#[test]
fn the_density_of_streamed_steps_is_near_the_one_asked_for_a_step_late() {
    let elements = CHUNK + 90_000;
    let mut encoder = Encoder::builder(elements).build().unwrap();
    let mut random = Random(83);
    let mut densities = Vec::new();
    for number in 0..30 {
        let update: Vec<f32> = (0..elements).map(|_| random.laplace(1.0)).collect();
        // As backward makes them: the last first.
        let mut parts: Vec<Range<usize>> = (0..elements)
            .step_by(10_000)
            .map(|start| start..elements.min(start + 10_000))
            .collect();
        parts.reverse();
        stream(
            &mut encoder,
            number,
            &update,
            &parts,
            When::AtOnce,
            &mut random,
        );
        densities.push(encoder.scopes().next().unwrap().density);
    }
    // The residual grows for some steps, and each threshold is made of the one before.
    let within = |range: Range<f64>| densities.iter().all(|density| range.contains(density));
    assert!(within(0.008..0.0202), "{densities:?}");
    let later = densities[10..].iter().sum::<f64>() / 20.0;
    assert!((0.009..0.013).contains(&later), "{later} of {densities:?}");
}

#[test]
fn samples_are_saved_and_restored_bit_for_bit() {
    let policies = [
        Policy::Quantile(0.05, Magnitude::Mean),
        Policy::WarmUp(0.02, 6),
        Policy::Adaptive(0.02, 0.03, None, Magnitude::Mean),
    ];
    for (policy, seed) in policies.into_iter().zip(90..) {
        let config = Config {
            ranges: vec![
                (9000, Coding::Shared),
                (70, Coding::Dense(Dense::F32)),
                (
                    8000,
                    Coding::Own(Policy::Quantile(0.1, Magnitude::Threshold)),
                ),
                (7000, Coding::Shared),
            ],
            policy,
            post: Post::None,
            memory: None,
            first: 0,
        };
        let mut random = Random(seed);
        let mut old = config.builder().build().unwrap();
        assert!(old.samples().all(<[f32]>::is_empty));
        for number in 0..10 {
            let mut new = config.builder().build().unwrap();
            new.restore_scopes(&old.scope_states()).unwrap();
            new.restore_vectors(old.residual(), None).unwrap();
            let samples: Vec<Vec<f32>> = old.samples().map(<[f32]>::to_vec).collect();
            new.restore_samples(&samples).unwrap();
            assert!(new.samples().eq(old.samples()));
            let update: Vec<f32> = (0..config.elements())
                .map(|_| random.laplace(0.1))
                .collect();
            let parts = shuffled_parts(&mut random, update.len(), 3000);
            let [expected, found] = [&mut old, &mut new].map(|encoder| {
                let order = &mut Random(number);
                stream(encoder, number, &update, &parts, When::NowAndThen, order)
            });
            assert!(found == expected, "{policy:?}, step {number}");
            assert_eq!(bits(new.residual()), bits(old.residual()));
        }
        assert!(old.samples().any(|sample| !sample.is_empty()));
        // A step that is not streamed knows its own numbers.
        let update = vec![0.1f32; config.elements()];
        step(&mut old, 10, (&update).into());
        assert!(old.samples().all(<[f32]>::is_empty));
    }
}

#[test]
fn damaged_samples_are_refused_and_change_nothing() {
    let mut encoder = Encoder::builder(100)
        .ranges([
            NamedRange::compressed("one", 60),
            NamedRange::compressed("two", 40).with_policy(Policy::TargetDensity(0.5).make()),
        ])
        .build()
        .unwrap();
    let fine: Vec<Vec<f32>> = vec![vec![0.5; 60], vec![0.0, 2.0]];
    encoder.restore_samples(&fine).unwrap();
    let mut refused = |damaged: &[Vec<f32>]| {
        let error = encoder.restore_samples(damaged).unwrap_err();
        assert!(encoder.samples().eq(fine.iter().map(Vec::as_slice)));
        error
    };
    let (expected, found) = (2, 1);
    assert_eq!(
        refused(&fine[..1]),
        ScopeStateError::Count { expected, found }
    );
    let name = "two".to_owned();
    let (elements, found) = (40, 41);
    assert_eq!(
        refused(&[vec![], vec![1.0; 41]]),
        ScopeStateError::SampleLength {
            name: name.clone(),
            elements,
            found
        }
    );
    for found in [-0.0, -1.0, 1e-45, f32::INFINITY, f32::NAN] {
        let error = refused(&[vec![1.0], vec![1.0, found]]);
        assert!(
            matches!(&error, ScopeStateError::Sample { name: of, element: 1, .. } if *of == name),
            "{error}"
        );
    }
    encoder.begin_streamed(0).unwrap();
    let error = encoder.restore_samples(&fine).unwrap_err();
    assert_eq!(error, ScopeStateError::Open);
}

/// Everything that can be seen of an encoder.
fn seen(encoder: &Encoder) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?}",
        bits(encoder.residual()),
        encoder.payload(),
        encoder.stats(),
        encoder.scopes().collect::<Vec<_>>(),
        encoder.hits(),
    )
}

#[test]
fn what_does_not_belong_in_a_streamed_step_is_refused_and_changes_nothing() {
    let ranges = (0..4).map(|at| NamedRange::compressed(format!("{at}"), 50));
    let mut encoder = Encoder::builder(200)
        .ranges(ranges)
        .policy(Policy::Fixed(0.25, None, Magnitude::Threshold).make())
        .build()
        .unwrap();
    let update = [0.5f32; 200];
    let mut complete = Vec::new();
    let mut push = |encoder: &mut Encoder, elements: Range<usize>, length: usize| {
        let before = (seen(encoder), complete.clone());
        let pushed = encoder.push(elements, &update[..length], &mut complete);
        if pushed.is_err() {
            assert!((seen(encoder), complete.clone()) == before, "{pushed:?}");
        }
        pushed.map(|()| std::mem::take(&mut complete))
    };
    assert_eq!(push(&mut encoder, 0..1, 1), Err(EncodeError::NotStreamed));
    assert_eq!(
        encoder.encode_complete(0).map(drop),
        Err(EncodeError::NotStreamed)
    );
    assert_eq!(encoder.abandon_streamed(), Err(EncodeError::NotStreamed));
    assert_eq!(encoder.end(), Err(EncodeError::NotBegun));
    // Nor in one that is not.
    encoder.begin(0, &update).unwrap();
    assert_eq!(push(&mut encoder, 0..1, 1), Err(EncodeError::NotStreamed));
    let unfinished = |found| Err(EncodeError::Unfinished { expected: 4, found });
    assert_eq!(encoder.begin_streamed(1), unfinished(0));
    for visit in 0..4 {
        encoder.encode(visit, &update).unwrap();
    }
    encoder.end().unwrap();

    encoder.begin_streamed(1).unwrap();
    assert_eq!(encoder.begin_streamed(2), unfinished(0));
    assert_eq!(encoder.begin(2, &update), unfinished(0));
    let streamed = Err(EncodeError::Streamed);
    assert_eq!(encoder.encode(0, &update).map(drop), streamed);
    assert_eq!(encoder.accumulate(0, &update), streamed);
    for (start, end) in [
        (0, 201),
        (200, 201),
        (5, 4),
        (usize::MAX, 3),
        (3, usize::MAX),
    ] {
        let elements = 200;
        assert_eq!(
            push(&mut encoder, start..end, 1),
            Err(EncodeError::Part {
                start,
                end,
                elements
            })
        );
    }
    let (expected, found) = (10, 9);
    assert_eq!(
        push(&mut encoder, 40..50, 9),
        Err(EncodeError::Lengths { expected, found })
    );
    assert_eq!(push(&mut encoder, 200..200, 0), Ok(vec![]));
    assert_eq!(push(&mut encoder, 30..60, 30), Ok(vec![]));
    assert_eq!(push(&mut encoder, 70..80, 10), Ok(vec![]));
    for (elements, start, end) in [
        (30..60, 30, 60),
        (0..200, 30, 60),
        (59..61, 59, 60),
        (25..31, 30, 31),
        (60..71, 70, 71),
        (61..200, 70, 80),
        (79..80, 79, 80),
        (40..41, 40, 41),
    ] {
        let length = elements.len();
        assert_eq!(
            push(&mut encoder, elements, length),
            Err(EncodeError::Overlap { start, end })
        );
    }
    assert_eq!(push(&mut encoder, 0..30, 30), Ok(vec![0]));
    assert_eq!(push(&mut encoder, 60..70, 10), Ok(vec![]));
    let again = encoder.encode_complete(4).map(drop);
    let (expected, found) = (4, 4);
    assert_eq!(again, Err(EncodeError::Chunk { expected, found }));
    let (chunk, left) = (1, 20);
    let early = encoder.encode_complete(1).map(drop);
    assert_eq!(early, Err(EncodeError::Incomplete { chunk, left }));
    encoder.encode_complete(0).unwrap();
    let chunk = 0;
    let again = encoder.encode_complete(0).map(drop);
    assert_eq!(again, Err(EncodeError::Again { chunk }));
    let (start, end) = (80, 200);
    assert_eq!(encoder.end(), Err(EncodeError::Missing { start, end }));
    assert_eq!(push(&mut encoder, 150..200, 50), Ok(vec![3]));
    let (start, end) = (80, 150);
    assert_eq!(encoder.end(), Err(EncodeError::Missing { start, end }));
    assert_eq!(push(&mut encoder, 80..150, 70), Ok(vec![1, 2]));
    assert_eq!(encoder.end(), unfinished(1));
    assert_eq!(encoder.abandon_streamed(), unfinished(1));
    for chunk in [3, 1, 2] {
        encoder.encode_complete(chunk).unwrap();
    }
    encoder.end().unwrap();
    assert_eq!(encoder.end(), Err(EncodeError::NotBegun));
    // Twice 0.5, of which twice 0.25 went out.
    assert_eq!(encoder.residual(), [0.5; 200]);
}

#[test]
fn a_step_that_is_given_up_leaves_what_was_pushed_in_the_residual() {
    let mut encoder = Encoder::builder(100).build().unwrap();
    encoder.begin_streamed(0).unwrap();
    let mut complete = Vec::new();
    encoder.push(10..30, &[2.0; 20], &mut complete).unwrap();
    encoder.abandon_streamed().unwrap();
    assert!(complete.is_empty());
    let mut expected = [0.0; 100];
    expected[10..30].fill(2.0);
    assert_eq!(encoder.residual(), expected);
    let messages = step_given(&mut encoder, 0, Given::InResidual);
    assert_eq!(messages[0].0.hits, 20);
}

#[test]
fn local_clipping_needs_the_whole_gradient() {
    let memory = MomentumMemory::new(0.5).unwrap();
    let clipping = memory.with_local_clipping(1.0).unwrap();
    let build = |memory| {
        let builder = Encoder::builder(3).momentum(memory, 1);
        builder.build().unwrap()
    };
    let refused = build(clipping).begin_streamed(0);
    assert_eq!(refused, Err(EncodeError::StreamedClipping));
    build(memory).begin_streamed(0).unwrap();
}

#[test]
fn a_vector_without_elements_is_streamed_too() {
    let mut encoder = Encoder::builder(0).build().unwrap();
    for number in 0..3 {
        encoder.begin_streamed(number).unwrap();
        let nothing: &[f32] = &[];
        encoder.push(0..0, nothing, &mut Vec::new()).unwrap();
        encoder.end().unwrap();
    }
    assert_eq!(encoder.stats().hits, 0);
}

/// Panics in one step, when it is asked for a unit.
#[derive(Debug)]
struct Panics;

impl ThresholdPolicy for Panics {
    fn kind(&self) -> &'static str {
        "Panics"
    }
    fn sample_size(&self, elements: usize, _: u64) -> usize {
        elements
    }
    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        assert_eq!(input.sample.len(), input.elements);
        assert_ne!(input.step, 1, "a panic that the test asks for");
        Unit::nearest(0.25, 0.25)
    }
    fn limit(&self, _: usize, _: u64) -> Option<usize> {
        None
    }
}

#[test]
fn a_policy_that_panics_leaves_an_encoder_that_can_go_on() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut encoder = Encoder::builder(100).policy(Panics).build().unwrap();
    let update = [0.3f32; 100];
    let stream_all = |encoder: &mut Encoder, number| {
        encoder.begin_streamed(number).unwrap();
        encoder
            .push(0..100, Values::F32(&update), &mut Vec::new())
            .unwrap();
        encoder.encode_complete(0).unwrap();
        encoder.end().unwrap();
    };
    stream_all(&mut encoder, 0);
    let panicked = catch_unwind(AssertUnwindSafe(|| encoder.begin_streamed(1)));
    assert!(panicked.is_err());
    assert_eq!(encoder.end(), Err(EncodeError::NotBegun));
    // The sample is lost with it: this one begins anew.
    stream_all(&mut encoder, 2);
    assert_eq!(encoder.stats().hits, 100);
}
