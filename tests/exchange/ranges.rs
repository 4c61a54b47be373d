//! Steps of vectors with ranges of all kinds: replicas that differ in everything that may differ stay identical.

use super::world::{self, Setup, World, tell};
use super::{all_say, noise};
use gradring::codec::policy::Adaptive;
use gradring::codec::{
    Apply, Clipping, Dense, Encoder, Given, MomentumMemory, NamedRange, Path, Record, Unit, canon,
};
use gradring::exchange::Builder;
use gradring::shm::layout::MIN_RING_CAPACITY;
use gradring::{Error, Exchange, Fixed, Quantile, Reduction, Replica, parameter_hash};
use half::{bf16, f16};

const STEPS: usize = 12;
const LENGTHS: [usize; 5] = [40_000, 33_000, 50_000, 33_000, 7];

fn length() -> usize {
    LENGTHS.iter().sum()
}

/// Chunks of the ranges: each compressed one is one, each dense one two blocks, of which the first fills a frame.
const CHUNKS: u64 = 7;

fn ranges(rank: usize) -> [NamedRange; 5] {
    let own = Fixed::new(2e-3 * (1 + rank) as f32).expect("a threshold");
    let [weights, bias, embedding, norm, rest] = LENGTHS;
    [
        NamedRange::compressed("weights", weights),
        NamedRange::dense("bias", bias, Dense::F32),
        NamedRange::compressed("embedding", embedding).with_policy(own),
        NamedRange::dense("norm", norm, Dense::Bf16),
        NamedRange::compressed("rest", rest),
    ]
}

fn policy(rank: usize) -> Quantile {
    let density = [0.3, 1e-2, 0.1, 1e-3][rank % 4];
    Quantile::new(density).expect("a density")
}

fn memory() -> MomentumMemory {
    let memory = MomentumMemory::new(0.9).expect("a momentum");
    memory.with_local_clipping(20.0).expect("a norm")
}

fn clipping() -> Clipping {
    Clipping::new(3.0, 2).expect("numbers for clipping")
}

/// In what type a rank has its updates.
fn as_rank_has_it(rank: usize, singles: Vec<f32>) -> Update {
    match rank % 3 {
        0 => Update::Singles(singles),
        1 => Update::Bf16s(singles.iter().map(|&x| bf16::from_f32(x)).collect()),
        _ => Update::F16s(singles.iter().map(|&x| f16::from_f32(x)).collect()),
    }
}

enum Update {
    Singles(Vec<f32>),
    F16s(Vec<f16>),
    Bf16s(Vec<bf16>),
}

impl gradring::codec::Update for Update {
    fn given(&self) -> Given<'_> {
        match self {
            Update::Singles(values) => values.into(),
            Update::F16s(values) => values.into(),
            Update::Bf16s(values) => values.into(),
        }
    }
}

impl Update {
    fn singles(self) -> Vec<f32> {
        match self {
            Update::Singles(values) => values,
            Update::F16s(values) => values.iter().map(|x| x.to_f32()).collect(),
            Update::Bf16s(values) => values.iter().map(|x| x.to_f32()).collect(),
        }
    }
}

fn update(rank: usize, step: usize) -> Update {
    let singles = (0..length()).map(|i| noise(rank, step, i)).collect();
    as_rank_has_it(rank, singles)
}

/// In one step nobody has data, in others some have none.
fn gives(rank: usize, step: usize) -> bool {
    step != 7 && (step.is_multiple_of(2) || !(rank + step).is_multiple_of(3))
}

fn first_parameters() -> Vec<f32> {
    (0..length()).map(|i| noise(99, 0, i)).collect()
}

/// A run's settings, by the name of its case.
struct Settings {
    reduction: Reduction,
    remembers: bool,
}

impl Settings {
    fn of(case: &str) -> Settings {
        Settings {
            reduction: if case.contains("mean") {
                Reduction::Mean
            } else {
                Reduction::Sum
            },
            remembers: case.contains("memory"),
        }
    }
}

/// What all must hold, and each keep: one process, one thread, plain code, every record by itself in rank order.
fn simulate(world_size: usize, settings: &Settings) -> (Vec<f32>, Vec<Vec<f32>>) {
    let encoder = |rank: usize| {
        let builder = Encoder::builder(length())
            .ranges(ranges(rank))
            .policy(policy(rank))
            .path(Path::Scalar);
        let builder = if settings.remembers {
            builder
                .momentum(memory(), world_size)
                .post_processor(clipping())
        } else {
            builder
        };
        builder.build().expect("an encoder")
    };
    let mut encoders: Vec<Encoder> = (0..world_size).map(encoder).collect();
    let mut parameters = first_parameters();
    let mut number = 0;
    for step in 0..STEPS {
        let giving: Vec<usize> = (0..world_size).filter(|&rank| gives(rank, step)).collect();
        for &rank in &giving {
            let (encoder, update) = (&mut encoders[rank], update(rank, step).singles());
            encoder.begin(number, &update).expect("one length");
            for visit in 0..encoder.chunks() {
                let message = encoder.encode(visit, &update).expect("its turn");
                let record = Record {
                    format: message.format,
                    hits: message.hits,
                    elements: message.elements.len(),
                    payload: encoder.payload(),
                };
                let unit = message.unit.map_or(1.0, Unit::v);
                let x = match settings.reduction {
                    Reduction::Mean => canon(unit * (1.0 / giving.len() as f32)),
                    Reduction::Sum => unit,
                };
                let target = &mut parameters[message.elements];
                Path::Scalar
                    .apply(&record, x, Apply::Subtract, target)
                    .expect("an own record");
            }
            encoder.end().expect("all chunks");
        }
        number += u64::from(!giving.is_empty());
    }
    let residuals = encoders.iter().map(|encoder| encoder.residual().to_vec());
    (parameters, residuals.collect())
}

/// What a process does in a case of this file; false if it is none.
pub(super) fn replica(case: &str, replica: &Replica) -> bool {
    match case {
        "ranges, mean" | "ranges, sum" | "ranges, mean, memory" => steps(case, replica),
        "ranges, all reduce" => sums(replica),
        "disagree on ranges" => disagree(replica),
        "memory, not finite" => not_finite(replica),
        _ => return false,
    }
    true
}

fn steps(case: &str, replica: &Replica) {
    let (rank, settings) = (replica.rank(), Settings::of(case));
    let builder = Exchange::builder(length())
        .reduction(settings.reduction)
        .ranges(ranges(rank))
        .policy(policy(rank))
        .threads(1 + rank % 3)
        .check_every(3);
    let builder = if settings.remembers {
        builder.momentum(memory()).post_processor(clipping())
    } else {
        builder
    };
    let mut exchange = builder.build(replica).expect("agreed");
    // What rank 1 was told in its environment holds.
    assert_eq!(exchange.path() == Path::Scalar, rank == 1);
    let mut parameters = first_parameters();
    exchange.start(&mut parameters).expect("starts");
    for step in 0..STEPS {
        let update = update(rank, step);
        let gives = gives(rank, step);
        let given: Option<&dyn gradring::codec::Update> = if gives { Some(&update) } else { None };
        let report = exchange.step(given, &mut parameters).expect("steps");
        let contributors = (0..replica.world_size()).filter(|&rank| self::gives(rank, step));
        assert_eq!(report.contributors, contributors.count());
        let chunks = report.sparse_chunks + report.bitmap_chunks + report.dense_chunks;
        assert_eq!(chunks, if gives { CHUNKS } else { 0 });
        assert_eq!(report.dense_chunks, if gives { 4 } else { 0 });
        assert!(settings.remembers || report.clipped == 0.0);
    }
    let anybody = |step: &usize| (0..replica.world_size()).any(|rank| self::gives(rank, *step));
    assert_eq!(exchange.steps(), (0..STEPS).filter(anybody).count() as u64);
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
    tell(format!(
        "residual {:016x}",
        parameter_hash(exchange.residual())
    ));
}

fn sums(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = Exchange::builder(length())
        .ranges(ranges(rank))
        .policy(policy(rank))
        .threads(1 + rank)
        .build(replica)
        .expect("agreed");
    let mut sum = vec![f32::NAN; length()];
    for step in 0..3 {
        let update = update(rank, step);
        exchange.all_reduce(Some(&update), &mut sum).expect("steps");
        exchange.check(&mut sum).expect("the same everywhere");
        // Dense ranges hold the whole sum of this step, to the last bit.
        if step == 0 {
            let inverse = 1.0 / replica.world_size() as f32;
            let updates: Vec<Vec<f32>> = (0..replica.world_size())
                .map(|rank| self::update(rank, 0).singles())
                .collect();
            for i in LENGTHS[0]..LENGTHS[0] + LENGTHS[1] {
                let expected = updates.iter().fold(0.0, |sum, update| {
                    canon(sum + canon(canon(update[i]) * inverse))
                });
                assert_eq!(sum[i].to_bits(), expected.to_bits(), "element {i}");
            }
        }
    }
    assert!(sum.iter().all(|x| x.is_finite()));
    tell(format!("sum {:016x}", parameter_hash(&sum)));
}

/// Starts one replica a rank; rank 1 is told to use the plainest code.
fn start(case: &str, world_size: usize) -> Vec<world::Ended> {
    with(case, world_size, Setup::default)
}

fn with(case: &str, world_size: usize, setup: impl Fn() -> Setup) -> Vec<world::Ended> {
    let mut world = World::empty(world_size, &setup());
    for rank in 0..world_size {
        let told = if rank == 1 {
            vec![("GRADRING_SIMD".into(), "scalar".into())]
        } else {
            vec![]
        };
        let setup = Setup {
            environment: told,
            ..setup()
        };
        world.add(case, rank, &setup);
    }
    world.succeed()
}

#[test]
fn replicas_are_identical_whatever_path_threads_density_and_type_of_update_each_has() {
    for world_size in 1..=4 {
        for case in ["ranges, mean", "ranges, sum", "ranges, mean, memory"] {
            let (parameters, residuals) = simulate(world_size, &Settings::of(case));
            let ended = start(case, world_size);
            let expected = format!("{:016x}", parameter_hash(&parameters));
            assert_eq!(
                all_say(&ended, "parameters"),
                expected,
                "{case} of {world_size}"
            );
            for (replica, residual) in ended.iter().zip(&residuals) {
                let expected = format!("{:016x}", parameter_hash(residual));
                assert_eq!(replica.one("residual"), expected, "{case} of {world_size}");
            }
        }
    }
}

#[test]
fn the_smallest_ring_carries_whole_blocks_of_dense_ranges() {
    let case = "ranges, mean";
    let (parameters, _) = simulate(3, &Settings::of(case));
    let ended = with(case, 3, || Setup {
        ring_capacity: MIN_RING_CAPACITY,
        cores: 1,
        ..Setup::default()
    });
    let expected = format!("{:016x}", parameter_hash(&parameters));
    assert_eq!(all_say(&ended, "parameters"), expected);
}

#[test]
fn sums_of_ranges_are_the_same_everywhere() {
    for world_size in [1, 3] {
        let ended = start("ranges, all reduce", world_size);
        all_say(&ended, "sum");
    }
}

fn disagree(replica: &Replica) {
    let rank = replica.rank();
    let compressed = |name: &str, elements: usize| NamedRange::compressed(name, elements);
    let dense = |number: Dense| NamedRange::dense("b", 4, number);
    let builder = || Exchange::builder(10).name("model");
    // Each rank makes the same; only rank 1 something else in one place.
    type Make<'a> = Box<dyn Fn(bool) -> Builder + 'a>;
    let memory = |momentum: f32| MomentumMemory::new(momentum).expect("a momentum");
    let makes: Vec<Make<'_>> = vec![
        Box::new(|odd| {
            let two = [compressed("a", 6), compressed("b", 4)];
            if odd {
                builder()
            } else {
                builder().ranges(two)
            }
        }),
        Box::new(|odd| {
            builder().ranges([
                compressed("a", 6 - usize::from(odd)),
                compressed("b", 4 + usize::from(odd)),
            ])
        }),
        Box::new(|odd| {
            builder().ranges([
                compressed("a", 6),
                compressed(if odd { "c" } else { "b" }, 4),
            ])
        }),
        Box::new(|odd| {
            let b = if odd {
                dense(Dense::F32)
            } else {
                compressed("b", 4)
            };
            builder().ranges([compressed("a", 6), b])
        }),
        Box::new(|odd| {
            let number = if odd { Dense::F32 } else { Dense::Bf16 };
            builder().ranges([compressed("a", 6), dense(number)])
        }),
        Box::new(|odd| {
            let b = compressed("b", 4);
            let b = if odd {
                b
            } else {
                b.with_policy(Quantile::default())
            };
            builder().ranges([compressed("a", 6), b])
        }),
        Box::new(|odd| {
            let b = compressed("b", 4);
            let b = if odd {
                b.with_policy(Adaptive::default())
            } else {
                b.with_policy(Quantile::default())
            };
            builder().ranges([compressed("a", 6), b])
        }),
        Box::new(|odd| {
            if odd {
                builder()
            } else {
                builder().post_processor(clipping())
            }
        }),
        Box::new(|odd| {
            if odd {
                builder()
            } else {
                builder().momentum(memory(0.9))
            }
        }),
        Box::new(|odd| builder().momentum(memory(if odd { 0.5 } else { 0.9 }))),
        Box::new(|odd| {
            let memory = memory(0.9);
            let clipped = memory.with_local_clipping(2.0).expect("a norm");
            builder().momentum(if odd { clipped } else { memory })
        }),
    ];
    for make in makes {
        let error = make(rank == 1).build(replica).expect_err("they differ");
        assert!(!error.ends_the_run());
        let Error::Disagreement { field, values, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(values.len(), replica.world_size());
        let odd = values
            .iter()
            .filter(|(rank, value)| *value != values[0].1 && *rank == 1);
        assert_eq!(odd.count(), 1, "only rank 1 differs: {values:?}");
        assert!(
            values
                .iter()
                .all(|(rank, value)| *rank == 1 || *value == values[0].1)
        );
        tell(format!(
            "error {field}: {} and {}",
            values[0].1, values[1].1
        ));
    }
    // What may differ: numbers of policies, of clipping, threads, what is kept.
    let own = |rank: usize| Fixed::new(1e-3 * (1 + rank) as f32).expect("a threshold");
    let mut exchange = builder()
        .ranges([
            compressed("a", 6).with_policy(own(rank)),
            dense(Dense::Bf16),
        ])
        .policy(policy(rank))
        .post_processor(Clipping::new(2.0 + rank as f32, 1 + rank as u64).expect("numbers"))
        .threads(1 + rank)
        .keep_hits(rank == 0)
        .debug(rank == 1)
        .build(replica)
        .expect("agreed");
    let mut parameters = [1.0; 10];
    exchange
        .step(Some(&[0.5; 10]), &mut parameters)
        .expect("steps");
    exchange
        .check(&mut parameters)
        .expect("the same everywhere");
    assert_eq!(
        exchange.encoder().hits().len(),
        if rank == 0 { 6 } else { 0 }
    );
    assert_eq!(
        exchange.encoder().percentiles().len(),
        usize::from(rank == 1)
    );

    // What cannot be is a local error: nobody else hears of it.
    if rank == 0 {
        for wrong in [
            builder().threads(0),
            builder().threads(65),
            builder().ranges([compressed("a", 9)]),
            builder().ranges([compressed("a", 9), dense(Dense::F32)]),
        ] {
            let error = wrong.build(replica).expect_err("it cannot be");
            assert!(
                matches!(error, Error::Invalid { .. }) && !error.ends_the_run(),
                "{error}"
            );
        }
    }
    replica.barrier().expect("the run goes on");
}

#[test]
fn ranges_post_processors_and_memories_that_differ_are_refused_alike_with_every_value() {
    let ended = World::start("disagree on ranges", 3).succeed();
    let errors = |ended: &world::Ended| -> Vec<String> {
        let lines = ended.heard.iter();
        lines
            .filter_map(|line| line.strip_prefix("error ").map(str::to_owned))
            .collect()
    };
    let first = errors(&ended[0]);
    assert!(ended.iter().all(|replica| errors(replica) == first));
    let expected = [
        "number of ranges: 2 and 0",
        "range 0: a (6 elements, shared threshold) and a (5 elements, shared threshold)",
        "range 1: b (4 elements, shared threshold) and c (4 elements, shared threshold)",
        "range 1: b (4 elements, shared threshold) and b (4 elements, dense f32)",
        "range 1: b (4 elements, dense bf16) and b (4 elements, dense f32)",
        "range 1: b (4 elements, own threshold by Quantile) and b (4 elements, shared threshold)",
        "range 1: b (4 elements, own threshold by Quantile) and b (4 elements, own threshold by Adaptive)",
        "post-processor: Clipping and none",
    ];
    assert_eq!(first[..expected.len()], expected);
    let memories = &first[expected.len()..];
    assert_eq!(memories.len(), 3);
    for (error, values) in memories
        .iter()
        .zip([["0.9", "none"], ["0.9", "0.5"], ["None", "2.0"]])
    {
        assert!(error.starts_with("momentum memory: "), "{error}");
        assert!(values.iter().all(|value| error.contains(value)), "{error}");
    }
}

fn not_finite(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = Exchange::builder(6)
        .ranges([
            NamedRange::compressed("a", 4),
            NamedRange::dense("b", 2, Dense::F32),
        ])
        .policy(Fixed::new(0.25).expect("a threshold"))
        .momentum(MomentumMemory::new(0.5).expect("a momentum"))
        .build(replica)
        .expect("agreed");
    let mut parameters = vec![1.0; 6];
    let mut gradient = [0.5, 0.125, 0.5, 0.0, 0.5, 0.5];
    exchange
        .step(Some(&gradient), &mut parameters)
        .expect("steps");
    if rank == 1 {
        (gradient[0], gradient[1], gradient[4]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    }
    let error = exchange
        .step(Some(&gradient), &mut parameters)
        .expect_err("not all are finite");
    assert!(
        matches!(
            error,
            Error::NonFinite {
                first: (1, 3),
                total: 3
            }
        ),
        "{error}"
    );
    assert!(!error.ends_the_run());
    assert_eq!(exchange.steps(), 2, "it happened");
    if rank == 1 {
        // A velocity of 0.125 went on to 0.0625, without the gradient; what is sent dense leaves nothing.
        assert_eq!(exchange.residual()[1], 0.125 + 0.0625);
        assert_eq!(exchange.residual()[4..], [0.0, 0.0]);
    }
    exchange
        .check(&mut parameters)
        .expect("the same everywhere");
    assert!(parameters.iter().all(|p| p.is_finite()));
    exchange
        .step(Some(&[0.5; 6]), &mut parameters)
        .expect("the exchange stays usable");
    tell(format!("parameters {parameters:?}"));
}

#[test]
fn gradients_that_are_not_finite_are_reported_alike_from_a_momentum_memory() {
    let ended = World::start("memory, not finite", 3).succeed();
    all_say(&ended, "parameters");
}
