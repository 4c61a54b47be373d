//! What an encoder refuses, and that nothing has changed then.

use super::plain::{Random, bits};
use super::step;
use gradring::codec::policy::{Fixed, PolicyInput, Quantile, ThresholdPolicy};
use gradring::codec::{
    CHUNK, Dense, EncodeError, Encoder, EncoderBuilder, EncoderError, MOST_THREADS, MomentumMemory,
    NamedRange, Unit,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const ELEMENTS: usize = 5 * 40;

/// Five chunks, one of them dense.
fn builder() -> EncoderBuilder {
    let range = |at: usize| NamedRange::compressed(format!("{at}"), 40);
    Encoder::builder(ELEMENTS)
        .ranges(
            (0..4)
                .map(range)
                .chain([NamedRange::dense("dense", 40, Dense::Bf16)]),
        )
        .policy(Fixed::new(0.25).unwrap().with_limit(50))
        .momentum(MomentumMemory::new(0.5).unwrap(), 1)
        .keep_hits(true)
}

fn update(random: &mut Random) -> Vec<f32> {
    (0..ELEMENTS).map(|_| random.laplace(0.1)).collect()
}

/// Everything that can be seen of an encoder.
fn seen(encoder: &Encoder) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        bits(encoder.residual()),
        encoder.payload(),
        encoder.stats(),
        encoder.scopes().collect::<Vec<_>>(),
        encoder.hits(),
        encoder.scope_states(),
    )
}

/// What is done wrongly.
type Wrong = fn(&mut Encoder) -> Result<(), EncodeError>;

#[test]
fn what_comes_out_of_turn_is_refused_and_changes_nothing() {
    const VALUES: [f32; ELEMENTS] = [9.0; ELEMENTS];
    let unfinished = |found| EncodeError::Unfinished { expected: 5, found };
    let turn = |expected, found| EncodeError::Turn { expected, found };
    let encode: fn(&mut Encoder, usize) -> Result<(), EncodeError> =
        |encoder, visit| encoder.encode(visit, &VALUES).map(drop);
    for threads in 1..=4 {
        let mut random = Random(5);
        let [mut one, mut other] = [0, 1].map(|_| builder().threads(threads).build().unwrap());
        let refused = |encoder: &mut Encoder, wrong: Wrong, error: EncodeError| {
            let before = seen(encoder);
            assert_eq!(wrong(encoder), Err(error.clone()));
            assert_eq!(seen(encoder), before, "{error}");
        };
        let begin: Wrong = |encoder| encoder.begin(3, &VALUES);
        let end: Wrong = Encoder::end;
        let first: Wrong = |encoder| encoder.encode(0, &VALUES).map(drop);
        let past: Wrong = |encoder| encoder.encode(5, &VALUES).map(drop);
        let far: Wrong = |encoder| encoder.encode(usize::MAX, &VALUES).map(drop);
        for number in 0..6 {
            let update = update(&mut random);
            // Between steps nothing but a beginning is possible.
            refused(&mut one, first, EncodeError::NotBegun);
            refused(&mut one, end, EncodeError::NotBegun);
            let lengths = |found| EncodeError::Lengths {
                expected: ELEMENTS,
                found,
            };
            refused(
                &mut one,
                |encoder| encoder.begin(0, &VALUES[1..]),
                lengths(ELEMENTS - 1),
            );
            one.begin(number, &update).unwrap();
            other.begin(number, &update).unwrap();
            for visit in 0..5 {
                refused(&mut one, begin, unfinished(visit));
                refused(&mut one, end, unfinished(visit));
                refused(
                    &mut one,
                    past,
                    EncodeError::Visit {
                        expected: 5,
                        found: 5,
                    },
                );
                let found = usize::MAX;
                refused(&mut one, far, EncodeError::Visit { expected: 5, found });
                refused(
                    &mut one,
                    |encoder| encoder.encode(0, &[0.0f32; ELEMENTS + 1]).map(drop),
                    lengths(ELEMENTS + 1),
                );
                for wrong in (0..5).filter(|&wrong| wrong != visit) {
                    let before = seen(&one);
                    assert_eq!(encode(&mut one, wrong), Err(turn(visit, wrong)));
                    assert_eq!(seen(&one), before);
                }
                let found = one.encode(visit, &update).unwrap();
                assert_eq!(found, other.encode(visit, &update).unwrap());
                assert_eq!(one.payload(), other.payload());
            }
            for again in 0..5 {
                assert_eq!(encode(&mut one, again), Err(turn(5, again)));
            }
            refused(&mut one, begin, unfinished(5));
            one.end().unwrap();
            other.end().unwrap();
            assert_eq!(seen(&one), seen(&other));
        }
    }
}

#[test]
fn a_step_of_wrong_values_does_not_leave_the_memory_of_chunks() {
    // Other values in each visit than in the beginning: wrong numbers, and nothing worse.
    for threads in [1, 3] {
        let mut random = Random(9);
        let mut encoder = builder().threads(threads).build().unwrap();
        for number in 0..20 {
            encoder.begin(number, &update(&mut random)).unwrap();
            for visit in 0..5 {
                encoder.encode(visit, &update(&mut random)).unwrap();
            }
            encoder.end().unwrap();
            assert!(encoder.residual().iter().all(|r| r.is_finite()));
        }
    }
}

#[test]
fn numbers_that_make_no_encoder_are_refused() {
    let refusal = |builder: EncoderBuilder| builder.build().map(drop).unwrap_err();
    for found in [0, MOST_THREADS + 1, usize::MAX] {
        assert_eq!(
            refusal(builder().threads(found)),
            EncoderError::Threads { found }
        );
    }
    let range = |elements| NamedRange::compressed("range", elements);
    let dense = |elements| NamedRange::dense("dense", elements, Dense::F32);
    for (ranges, found) in [
        (vec![range(99)], 99),
        (vec![range(50), dense(51)], 101),
        (vec![dense(0)], 0),
        (vec![range(usize::MAX), range(101)], usize::MAX),
    ] {
        let expected = 100;
        assert_eq!(
            refusal(Encoder::builder(100).ranges(ranges)),
            EncoderError::Ranges { expected, found }
        );
    }
    let memory = MomentumMemory::new(0.9).unwrap();
    assert_eq!(
        refusal(builder().momentum(memory, 0)),
        EncoderError::Replicas
    );
    for elements in [usize::MAX, usize::MAX / 4, usize::MAX / 16] {
        assert!(matches!(
            refusal(Encoder::builder(elements)),
            EncoderError::Memory(_)
        ));
    }
}

#[test]
fn as_many_threads_as_there_can_be_encode_few_chunks() {
    for elements in [1, 1000, CHUNK + 1] {
        let update: Vec<f32> = (0..elements).map(|i| i as f32 / 1000.0).collect();
        let [mut one, mut most] = [1, MOST_THREADS]
            .map(|threads| Encoder::builder(elements).threads(threads).build().unwrap());
        for number in 0..3 {
            let (a, b) = (
                step(&mut one, number, (&update).into()),
                step(&mut most, number, (&update).into()),
            );
            assert!(a == b);
        }
        assert_eq!(bits(one.residual()), bits(most.residual()));
    }
}

/// Asks for more than there is.
#[derive(Debug)]
struct Greedy;

impl ThresholdPolicy for Greedy {
    fn kind(&self) -> &'static str {
        "Greedy"
    }
    fn sample_size(&self, _elements: usize, _step: u64) -> usize {
        usize::MAX
    }
    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        assert_eq!(input.sample.len(), input.elements);
        Unit::nearest(f32::NAN, f32::INFINITY)
    }
    fn limit(&self, _elements: usize, _step: u64) -> Option<usize> {
        Some(usize::MAX)
    }
}

#[test]
fn vectors_and_ranges_without_elements_are_encoded_too() {
    let nothing: [f32; 0] = [];
    for threads in [1, 4] {
        let empty = |at: usize| NamedRange::compressed(format!("{at}"), 0);
        let builders = [
            Encoder::builder(0),
            Encoder::builder(0).policy(Greedy),
            Encoder::builder(0).ranges([
                empty(0),
                empty(1).with_policy(Greedy),
                empty(2).with_policy(Quantile::default()),
                NamedRange::dense("none", 0, Dense::F32),
            ]),
        ];
        for builder in builders {
            let mut encoder = builder.threads(threads).debug(true).build().unwrap();
            assert_eq!((encoder.elements(), encoder.chunks()), (0, 0));
            for number in 0..3 {
                encoder.begin(number, &nothing).unwrap();
                let (expected, found) = (0, 0);
                let error = encoder.encode(0, &nothing).unwrap_err();
                assert_eq!(error, EncodeError::Visit { expected, found });
                encoder.end().unwrap();
            }
            assert_eq!((encoder.stats().hits, encoder.payload().len()), (0, 0));
            assert!(encoder.percentiles().iter().all(|of| of.elements == 0));
        }
        // Among others they are no chunks.
        let mut encoder = Encoder::builder(3)
            .ranges([
                empty(0),
                NamedRange::compressed("1", 3),
                empty(2).with_policy(Greedy),
            ])
            .policy(Greedy)
            .threads(threads)
            .build()
            .unwrap();
        let messages = step(&mut encoder, 0, (&[1.0, 0.0, -1.0]).into());
        assert_eq!((messages.len(), messages[0].0.hits), (1, 2));
        assert_eq!(
            encoder
                .scopes()
                .map(|scope| scope.elements)
                .collect::<Vec<_>>(),
            [3, 0]
        );
    }
}

/// Panics in one step.
#[derive(Debug)]
struct Panics;

impl ThresholdPolicy for Panics {
    fn kind(&self) -> &'static str {
        "Panics"
    }
    fn sample_size(&self, _elements: usize, _step: u64) -> usize {
        0
    }
    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        assert_ne!(input.step, 1, "a panic that the test asks for");
        Unit::nearest(0.25, 0.25)
    }
    fn limit(&self, _elements: usize, _step: u64) -> Option<usize> {
        None
    }
}

#[test]
fn a_policy_that_panics_leaves_an_encoder_that_can_go_on() {
    let mut encoder = Encoder::builder(100)
        .policy(Panics)
        .threads(2)
        .build()
        .unwrap();
    let update = [0.3f32; 100];
    step(&mut encoder, 0, (&update).into());
    let panicked = catch_unwind(AssertUnwindSafe(|| encoder.begin(1, &update)));
    assert!(panicked.is_err());
    let error = encoder.encode(0, &update).unwrap_err();
    assert_eq!(error, EncodeError::NotBegun);
    step(&mut encoder, 2, (&update).into());
    assert_eq!(encoder.stats().hits, 100);
}
