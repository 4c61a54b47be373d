//! Dense sums with real processes: `Replica::all_reduce` of any length and the uncompressed exchange give on every
//! replica, bit for bit, what one process gets that adds up in rank order; and errors are the same everywhere.

mod world;

use gradring::codec::policy::Quantile;
use gradring::codec::{Path, canon};
use gradring::op::{And, Max, Min, Op, Or, Sum, Value};
use gradring::shm::layout::MIN_RING_CAPACITY;
use gradring::{
    Clipping, Dense, Error, Exchange, Flags, MomentumMemory, NamedRange, Reduction, Replica,
    Report, parameter_hash,
};
use half::{bf16, f16};
use std::time::{Duration, Instant};
use world::{Ended, Setup, World, tell};

/// Elements of a chunk of f32, and half as many as of bf16; up to here the flat way is taken.
const CHUNK: usize = 32_768;

/// A number that depends on nothing but its arguments, of any size.
fn noise(rank: usize, step: usize, i: usize) -> f32 {
    let mut x = (rank as u64 + 1) << 48 ^ (step as u64 + 1) << 32 ^ i as u64;
    for _ in 0..2 {
        x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
        x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    }
    let uniform = (x >> 40) as f32 / (1 << 24) as f32 - 0.5;
    // Of very different sizes, so that another order of adding up gives other bits.
    uniform * [1e-6, 1.0, 3e4][x as usize % 3]
}

fn update(rank: usize, step: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| noise(rank, step, i)).collect()
}

/// To nearest even, never to infinity.
fn rounded(x: f32) -> f32 {
    let near = bf16::from_f32(canon(x));
    if near.is_infinite() && x.is_finite() {
        f32::from_bits(x.to_bits() & 0xffff_0000)
    } else {
        near.to_f32()
    }
}

/// The sum of those updates that there are, and by rank how many elements were left out.
fn simulated(
    number: Dense,
    reduction: Reduction,
    updates: &[Option<Vec<f32>>],
    length: usize,
) -> (Vec<f32>, Vec<u64>) {
    let round = |x: f32| if number == Dense::Bf16 { rounded(x) } else { x };
    let mut sum = vec![0.0_f32; length];
    let mut dropped = vec![0; updates.len()];
    for (dropped, update) in dropped.iter_mut().zip(updates) {
        for (s, x) in sum.iter_mut().zip(update.iter().flatten()) {
            let next = *s + canon(round(*x));
            if next.is_finite() {
                *s = canon(next);
            } else {
                *dropped += 1;
            }
        }
    }
    let inverse = match reduction {
        Reduction::Mean => 1.0 / updates.iter().flatten().count() as f32,
        Reduction::Sum => 1.0,
    };
    for s in &mut sum {
        *s = canon(round(*s) * inverse);
    }
    (sum, dropped)
}

fn subtracted(parameters: &[f32], sum: &[f32]) -> Vec<f32> {
    let pairs = parameters.iter().zip(sum);
    pairs.map(|(p, s)| canon(canon(*p) - s)).collect()
}

#[track_caller]
fn same_bits(found: &[f32], expected: &[f32], what: &str) {
    let differs = found
        .iter()
        .zip(expected)
        .position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(found.len(), expected.len(), "{what}");
    if let Some(at) = differs {
        panic!(
            "{what}: element {at} is {:e}, expected {:e}",
            found[at], expected[at]
        );
    }
}

/// Lengths around the borders of lines, slices and chunks, of both kinds of numbers.
const LENGTHS: [usize; 14] = [
    1,
    2,
    15,
    17,
    1000,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    CHUNK + 16 * 5,
    2 * CHUNK - 1,
    2 * CHUNK + 1,
    3 * CHUNK,
    4 * CHUNK + 17,
    5 * CHUNK + 1003,
];

/// Every type and operation at this length, against a fold in rank order.
fn all_types(replica: &Replica, length: usize) {
    fn one<T: Value + PartialEq + std::fmt::Debug, O: Op<T>>(
        replica: &Replica,
        length: usize,
        op: O,
        of: impl Fn(usize, usize) -> T,
        same: impl Fn(&T, &T) -> bool,
    ) {
        let mut values: Vec<T> = (0..length).map(|i| of(replica.rank(), i)).collect();
        replica.all_reduce(&mut values, op).expect("reduces");
        for (i, found) in values.iter().enumerate() {
            let expected =
                (1..replica.world_size()).fold(of(0, i), |a, rank| O::combine(a, of(rank, i)));
            assert!(
                same(found, &expected),
                "{length} elements, {i}: {found:?}, expected {expected:?}"
            );
        }
    }
    let single = |rank: usize, i: usize| match (rank + i) % 97 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        _ => noise(rank, 1, i),
    };
    let double = |rank: usize, i: usize| f64::from(single(rank, i)) * 1.1;
    // A NaN's own bits are the processor's; that it is one is everybody's.
    let singles = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let doubles = |a: &f64, b: &f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    one(replica, length, Sum, single, singles);
    one(replica, length, Min, single, singles);
    one(replica, length, Max, single, singles);
    one(replica, length, Sum, double, doubles);
    one(replica, length, Max, double, doubles);
    one(replica, length, Min, double, doubles);
    let bits = |rank: usize, i: usize| {
        u64::from(noise(rank, 2, i).to_bits()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    };
    macro_rules! integers {
        ($($type:ty)*) => {$(
            let of = |rank: usize, i: usize| bits(rank, i) as $type;
            let same = |a: &$type, b: &$type| a == b;
            one(replica, length, Sum, of, same);
            one(replica, length, Min, of, same);
            one(replica, length, Max, of, same);
            one(replica, length, And, of, same);
            one(replica, length, Or, of, same);
        )*};
    }
    integers!(i32 i64 u32 u64);
}

fn build(replica: &Replica, length: usize, number: Dense, reduction: Reduction) -> Exchange {
    Exchange::builder(length)
        .uncompressed(number)
        .reduction(reduction)
        .check_every(1)
        .build(replica)
        .expect("agreed")
}

/// A message that is the same on all ranks, whatever each was doing.
fn kind(error: &Error) -> String {
    match error {
        Error::ReplicaDied { rank, .. } => format!("died {rank}"),
        Error::Mismatch { came, .. } => {
            let came = came.iter().map(|(rank, what)| format!("{rank}: {what}"));
            format!("mismatch {}", came.collect::<Vec<_>>().join("; "))
        }
        other => other.to_string(),
    }
}

/// Which ranks give data in which step.
fn gives_unevenly(rank: usize, step: usize) -> bool {
    step.is_multiple_of(3) || (rank + step).is_multiple_of(3)
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let (rank, world_size) = (replica.rank(), replica.world_size());
    let ranks = || 0..world_size;
    match case.as_str() {
        "sums" => {
            for number in [Dense::F32, Dense::Bf16] {
                for (at, length) in LENGTHS.into_iter().enumerate() {
                    let reduction = [Reduction::Mean, Reduction::Sum][at % 2];
                    let mut exchange = build(&replica, length, number, reduction);
                    assert!(exchange.residual().is_empty());
                    let mut parameters: Vec<f32> =
                        (0..length).map(|i| noise(99 + rank, 0, i)).collect();
                    exchange.start(&mut parameters).expect("starts");
                    let mut expected: Vec<f32> = (0..length).map(|i| noise(99, 0, i)).collect();
                    for step in 0..2 {
                        let updates: Vec<_> =
                            ranks().map(|r| Some(update(r, step, length))).collect();
                        let own = &updates[rank];
                        let (sum, _) = simulated(number, reduction, &updates, length);
                        let what = format!("{number}, {length} elements, step {step}");

                        let mut given = vec![f32::NAN; length];
                        let own = own.as_ref().expect("it gives");
                        exchange.all_reduce(Some(own), &mut given).expect("sums");
                        same_bits(&given, &sum, &what);

                        let report = exchange.step(Some(own), &mut parameters).expect("steps");
                        expected = subtracted(&expected, &sum);
                        same_bits(&parameters, &expected, &what);
                        check_report(&report, own, world_size, number);
                    }
                }
            }
            tell("done");
        }
        "types" => {
            for length in [0, 1, 128, 129, 257, 1025, CHUNK / 2 + 1, CHUNK + 7] {
                all_types(&replica, length);
            }
            tell("done");
        }
        "long" => {
            for length in [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17, 1_000_003] {
                let mut values = update(rank, 0, length);
                replica.all_reduce(&mut values, Sum).expect("reduces");
                let mut expected = update(0, 0, length);
                for other in 1..world_size {
                    for (sum, x) in expected.iter_mut().zip(update(other, 0, length)) {
                        *sum += x;
                    }
                }
                same_bits(&values, &expected, "a long vector");
            }
            tell("done");
        }
        "ways" => {
            // The same elements in one long vector, scattered from 3 ranks on, and in short ones, flat.
            let length = 5 * CHUNK + 333;
            let given = update(rank, 0, length);
            let mut long = given.clone();
            replica.all_reduce(&mut long, Sum).expect("reduces");
            let mut short = given.clone();
            for piece in short.chunks_mut(10_007) {
                replica.all_reduce(piece, Sum).expect("reduces");
            }
            same_bits(&long, &short, "flat and scattered");
            for number in [Dense::F32, Dense::Bf16] {
                let mut whole = build(&replica, length, number, Reduction::Mean);
                let mut long = vec![0.0; length];
                whole.all_reduce(Some(&given), &mut long).expect("sums");
                let mut short = vec![0.0; length];
                for (given, sum) in given.chunks(40_007).zip(short.chunks_mut(40_007)) {
                    for (given, sum) in given.chunks(10_007).zip(sum.chunks_mut(10_007)) {
                        let mut part = build(&replica, given.len(), number, Reduction::Mean);
                        part.all_reduce(Some(&given), sum).expect("sums");
                    }
                }
                same_bits(&long, &short, "flat and scattered");
            }
            tell("done");
        }
        "uneven" => {
            for (number, length) in [
                (Dense::F32, 100),
                (Dense::F32, 3 * CHUNK + 5),
                (Dense::Bf16, 5 * CHUNK),
            ] {
                let mut exchange = build(&replica, length, number, Reduction::Mean);
                let mut expected = vec![0.5_f32; length];
                let mut parameters = expected.clone();
                for step in 0..6 {
                    let updates: Vec<_> = ranks()
                        .map(|r| gives_unevenly(r, step).then(|| update(r, step, length)))
                        .collect();
                    let own = updates[rank].as_ref();
                    let report = exchange
                        .step(own.map(|own| own as &dyn gradring::Update), &mut parameters)
                        .expect("steps");
                    let contributors = updates.iter().flatten().count();
                    assert_eq!(report.contributors, contributors);
                    assert_eq!(report.epoch_ended(), contributors == 0);
                    if contributors > 0 {
                        let (sum, _) = simulated(number, Reduction::Mean, &updates, length);
                        expected = subtracted(&expected, &sum);
                    }
                    same_bits(&parameters, &expected, "uneven");
                }
                // Nobody has data: nothing changes and nothing counts.
                let steps = exchange.steps();
                let report = exchange.step(None, &mut parameters).expect("steps");
                assert!(report.epoch_ended() && exchange.steps() == steps);
                let mut sum = vec![7.0; length];
                let report = exchange.all_reduce(None, &mut sum).expect("steps");
                assert!(report.epoch_ended() && sum == vec![7.0; length]);
                same_bits(&parameters, &expected, "at the end of an epoch");
            }
            tell("done");
        }
        "not finite" => {
            for (number, length) in [
                (Dense::F32, 40),
                (Dense::F32, 2 * CHUNK + 9),
                (Dense::Bf16, 4 * CHUNK + 9),
            ] {
                let mut exchange = build(&replica, length, number, Reduction::Sum);
                let updates: Vec<_> = ranks()
                    .map(|r| {
                        let mut update = update(r, 0, length);
                        // Everybody's third is so large that two of them are infinite; the first and the last are not
                        // finite at all at the last rank.
                        update[3] = 3e38;
                        if r + 1 == world_size {
                            (update[0], update[length - 1]) = (f32::NAN, f32::NEG_INFINITY);
                        }
                        Some(update)
                    })
                    .collect();
                let (sum, dropped) = simulated(number, Reduction::Sum, &updates, length);
                let first = dropped.iter().position(|count| *count > 0).expect("some");
                let own = updates[rank].as_ref().expect("it gives");
                let mut parameters = vec![1.0; length];
                let error = exchange
                    .step(Some(own), &mut parameters)
                    .expect_err("not all are finite");
                match &error {
                    Error::NonFinite {
                        first: found,
                        total,
                    } => {
                        assert_eq!(*found, (first, dropped[first]));
                        assert_eq!(*total, dropped.iter().sum::<u64>());
                        assert_eq!(*total, 2 + world_size as u64 - 1);
                    }
                    other => panic!("{other}"),
                }
                assert!(!error.ends_the_run());
                tell(format!("error {error}"));
                same_bits(
                    &parameters,
                    &subtracted(&vec![1.0; length], &sum),
                    "without those",
                );
                assert_eq!(exchange.steps(), 1);
                let report = exchange.step(Some(&vec![0.5; length]), &mut parameters);
                assert_eq!(report.expect("it stays usable").dropped, 0);
            }
            tell("done");
        }
        "given types" => {
            let length = CHUNK + 100;
            for number in [Dense::F32, Dense::Bf16] {
                let mut exchange = build(&replica, length, number, Reduction::Mean);
                let halves = |r: usize| -> Vec<f16> {
                    update(r, 0, length)
                        .iter()
                        .map(|x| f16::from_f32(*x))
                        .collect()
                };
                let brains = |r: usize| -> Vec<bf16> {
                    update(r, 0, length)
                        .iter()
                        .map(|x| bf16::from_f32(*x))
                        .collect()
                };
                // Rank 0 gives f16, rank 1 bf16, the others f32; each has its own code path.
                let updates: Vec<_> = ranks()
                    .map(|r| {
                        Some(match r {
                            0 => halves(0).iter().map(|x| x.to_f32()).collect(),
                            1 => brains(1).iter().map(|x| x.to_f32()).collect(),
                            r => update(r, 0, length),
                        })
                    })
                    .collect();
                let mut sum = vec![0.0; length];
                match rank {
                    0 => exchange.all_reduce(Some(&halves(0)), &mut sum),
                    1 => exchange.all_reduce(Some(&brains(1)), &mut sum),
                    r => exchange.all_reduce(Some(&update(r, 0, length)), &mut sum),
                }
                .expect("sums");
                let (expected, _) = simulated(number, Reduction::Mean, &updates, length);
                same_bits(&sum, &expected, "of other types");
            }
            for path in Path::ALL.into_iter().filter(|path| path.is_available()) {
                let mut exchange = Exchange::builder(length)
                    .uncompressed(Dense::Bf16)
                    .path(if rank == 0 { Path::Scalar } else { path })
                    .build(&replica)
                    .expect("a path need not agree");
                let mut parameters = vec![0.0; length];
                exchange
                    .step(Some(&update(rank, 0, length)), &mut parameters)
                    .expect("steps");
                exchange
                    .check(&mut parameters)
                    .expect("the same everywhere");
            }
            tell("done");
        }
        "settings" => {
            let builder = || Exchange::builder(10).uncompressed(Dense::F32);
            let quantile = Quantile::new(0.1).expect("a density");
            for (what, wrong) in [
                ("a threshold policy", builder().policy(quantile)),
                (
                    "ranges",
                    builder().ranges([NamedRange::compressed("all", 10)]),
                ),
                (
                    "a post-processor",
                    builder().post_processor(Clipping::new(4.0, 1).expect("numbers")),
                ),
                (
                    "a momentum memory",
                    builder().momentum(MomentumMemory::new(0.9).expect("a factor")),
                ),
                ("encoding threads", builder().threads(1)),
                ("keeping hits", builder().keep_hits(false)),
                ("debugging percentiles", builder().debug(true)),
            ] {
                match wrong.build(&replica) {
                    Err(Error::Invalid { what: found, .. }) => assert_eq!(found, what),
                    other => panic!("{what}: {other:?}"),
                }
            }
            assert!(
                Exchange::builder(0)
                    .uncompressed(Dense::F32)
                    .build(&replica)
                    .is_err()
            );
            let number = if rank == 0 { Dense::F32 } else { Dense::Bf16 };
            let one = Exchange::builder(10).uncompressed(number).build(&replica);
            let two = match rank {
                0 => builder().build(&replica),
                _ => Exchange::builder(10).build(&replica),
            };
            for error in [one, two] {
                let error = error.expect_err("they differ");
                assert!(!error.ends_the_run());
                tell(format!("error {error}"));
            }
            let mut exchange = builder().build(&replica).expect("the run goes on");
            for wrong in [0, 9, 11] {
                let error = exchange.step(Some(&vec![0.0; wrong]), &mut [0.0; 10]);
                assert!(matches!(error, Err(Error::Length { expected: 10, .. })));
                let error = exchange.step(None, &mut vec![0.0; wrong]);
                assert!(matches!(error, Err(Error::Length { expected: 10, .. })));
            }
            exchange
                .step(Some(&[1.0; 10]), &mut [0.0; 10])
                .expect("steps");
        }
        "diverged" => {
            let length = 2 * CHUNK;
            let mut exchange = Exchange::builder(length)
                .uncompressed(Dense::F32)
                .check_every(2)
                .build(&replica)
                .expect("agreed");
            let mut parameters = vec![0.0; length];
            for step in 0.. {
                if step == 3 && rank == 1 {
                    parameters[length / 2] += 1.0;
                }
                if let Err(error) =
                    exchange.step(Some(&update(rank, step, length)), &mut parameters)
                {
                    assert_eq!(step, 4, "compared in the step after the next checked one");
                    let right =
                        |hashes: &[u64]| hashes.len() == world_size && hashes[0] != hashes[1];
                    assert!(matches!(&error, Error::Diverged { step: 3, hashes } if right(hashes)));
                    tell(format!("error {error}"));
                    break;
                }
            }
        }
        "flags" => {
            let length: usize = std::env::var("LENGTH")
                .expect("set")
                .parse()
                .expect("a number");
            if rank + 1 == world_size {
                replica.raise(Flags::INTERRUPT);
            }
            if length < CHUNK {
                replica
                    .all_reduce(&mut vec![1.0_f32; length], Sum)
                    .expect("reduces");
            } else if length.is_multiple_of(2) {
                let mut exchange = build(&replica, length, Dense::F32, Reduction::Mean);
                exchange.step(None, &mut vec![1.0; length]).expect("steps");
            } else {
                replica
                    .all_reduce(&mut vec![1_i64; length], Sum)
                    .expect("reduces");
            }
            assert_eq!(replica.agreed(), Flags::INTERRUPT);
            tell("done");
        }
        "crowd" => {
            let length = 6 * CHUNK + 1;
            let mut exchange = build(&replica, length, Dense::F32, Reduction::Mean);
            let mut parameters = vec![0.0; length];
            for step in 0..20 {
                exchange
                    .step(Some(&update(rank, step, length)), &mut parameters)
                    .expect("steps");
                let mut values = vec![rank as f32; length];
                replica.all_reduce(&mut values, Max).expect("reduces");
                assert!(values.iter().all(|x| *x == world_size as f32 - 1.0));
            }
            tell(format!("parameters {:016x}", parameter_hash(&parameters)));
        }
        "until error" => {
            let length: usize = std::env::var("LENGTH")
                .expect("set")
                .parse()
                .expect("a number");
            let error = until_error(&replica, length);
            assert!(error.ends_the_run());
            tell(format!("error {}", kind(&error)));
        }
        "mismatch" => {
            let error = match (std::env::var("WHAT").as_deref(), rank) {
                (Ok("length"), 1) => replica.all_reduce(&mut vec![0.0_f32; 5 * CHUNK + 1], Sum),
                (Ok("length"), _) => replica.all_reduce(&mut vec![0.0_f32; 5 * CHUNK], Sum),
                (Ok("short"), 1) => replica.all_reduce(&mut [0.0_f32; 7], Sum),
                (Ok("short"), _) => replica.all_reduce(&mut vec![0.0_f32; 5 * CHUNK], Sum),
                (Ok("type"), 1) => replica.all_reduce(&mut vec![0_u32; CHUNK], Sum),
                (Ok("type"), _) => replica.all_reduce(&mut vec![0.0_f32; CHUNK], Sum),
                (Ok("op"), 1) => replica.all_reduce(&mut vec![0_u32; 5 * CHUNK], Max),
                (Ok("op"), _) => replica.all_reduce(&mut vec![0_u32; 5 * CHUNK], Sum),
                (Ok("inline op"), 1) => replica.all_reduce(&mut [0_u32; 2], Max),
                (Ok("inline op"), _) => replica.all_reduce(&mut [0_u32; 2], Sum),
                (other, _) => {
                    assert_eq!(other, Ok("kind"));
                    let length = 2 * CHUNK;
                    let mut exchange = build(&replica, length, Dense::F32, Reduction::Mean);
                    let (own, mut target) = (vec![1.0; length], vec![0.0; length]);
                    match rank {
                        1 => exchange.all_reduce(Some(&own), &mut target),
                        _ => exchange.step(Some(&own), &mut target),
                    }
                    .map(drop)
                }
            };
            tell(format!("error {}", kind(&error.expect_err("they differ"))));
        }
        other => panic!("no case {other}"),
    }
}

fn check_report(report: &Report, own: &[f32], world_size: usize, number: Dense) {
    let bytes = own.len() * number.bytes();
    assert_eq!(
        (report.contributors, report.dropped, report.hits),
        (world_size, 0, 0)
    );
    // Every value, a header for each chunk, and where slices are reduced one of them too.
    let most = bytes + bytes / world_size + 64 * world_size + (bytes / 131_072 + 2) * 2 * 128;
    let found = report.bytes as usize;
    assert!(
        bytes + 64 <= found && found <= most,
        "{found} bytes for {bytes}"
    );
    let l1: f64 = own.iter().map(|x| f64::from(x.abs())).sum();
    assert!(
        report.l1_sent > 0.7 * l1 && report.l1_sent < 1.4 * l1 || own.len() < 1000,
        "{} for {l1}",
        report.l1_sent
    );
    assert!(report.encode_ns > 0 && report.decode_ns > 0);
}

/// Dense sums of this length in turns until an error ends the run.
fn until_error(replica: &Replica, length: usize) -> Error {
    let mut exchange = match Exchange::builder(length)
        .uncompressed(Dense::F32)
        .build(replica)
    {
        Ok(exchange) => exchange,
        Err(error) => return error,
    };
    let (own, mut values, mut parameters) =
        (vec![1e-3; length], vec![0.0_f32; length], vec![0.0; length]);
    tell("running");
    loop {
        if let Err(error) = replica.all_reduce(&mut values, Sum) {
            return error;
        }
        if let Err(error) = exchange.step(Some(&own), &mut parameters) {
            return error;
        }
    }
}

fn all_done(ended: &[Ended]) {
    for replica in ended {
        replica.one("done");
    }
}

fn with(name: &str, value: &str) -> Setup {
    Setup {
        environment: vec![(name.into(), value.into())],
        ..Setup::default()
    }
}

#[test]
fn every_replica_has_the_bits_of_one_process_that_sums_in_rank_order() {
    for world_size in 1..=8 {
        all_done(&World::start("sums", world_size).succeed());
    }
}

#[test]
fn every_type_and_operation_reduces_in_rank_order_at_any_length() {
    for world_size in [1, 2, 3, 5] {
        all_done(&World::start("types", world_size).succeed());
    }
}

#[test]
fn long_vectors_are_reduced_in_rank_order() {
    for world_size in 1..=8 {
        all_done(&World::start("long", world_size).succeed());
    }
}

#[test]
fn the_way_of_the_values_changes_no_bit() {
    for world_size in [2, 3, 4, 7] {
        all_done(&World::start("ways", world_size).succeed());
    }
}

#[test]
fn replicas_without_data_take_part_and_the_mean_is_of_those_that_gave() {
    for world_size in [1, 2, 4, 5] {
        all_done(&World::start("uneven", world_size).succeed());
    }
}

#[test]
fn what_is_not_finite_is_left_out_and_told_alike_to_all() {
    for world_size in [1, 2, 3, 6] {
        let ended = World::start("not finite", world_size).succeed();
        all_done(&ended);
        let errors = |ended: &Ended| -> Vec<String> {
            ended
                .heard
                .iter()
                .filter(|line| line.starts_with("error"))
                .cloned()
                .collect()
        };
        assert_eq!(errors(&ended[0]).len(), 3);
        assert!(ended.iter().all(|other| errors(other) == errors(&ended[0])));
    }
}

#[test]
fn updates_of_any_type_on_any_code_path_give_the_same_bits() {
    for world_size in [1, 2, 4] {
        all_done(&World::start("given types", world_size).succeed());
    }
}

#[test]
fn settings_of_compression_are_refused_and_the_others_must_agree() {
    let ended = World::start("settings", 2).succeed();
    for replica in &ended {
        let errors: Vec<&String> = replica
            .heard
            .iter()
            .filter(|line| line.starts_with("error"))
            .collect();
        assert_eq!(errors.len(), 2, "{:?}", replica.heard);
        assert!(
            errors[0].contains("schedule differs")
                && errors[0].contains("rank 1 has uncompressed as bf16")
        );
        assert!(errors[1].contains("rank 0 has uncompressed as f32, rank 1 has lockstep"));
    }
}

#[test]
fn replicas_that_drift_apart_are_found_without_compression_too() {
    for world_size in [2, 3] {
        let ended = World::start("diverged", world_size).succeed();
        assert!(
            ended
                .iter()
                .all(|other| other.one("error") == ended[0].one("error"))
        );
    }
}

#[test]
fn flags_are_agreed_whatever_way_the_values_go() {
    for length in [1, 1000, CHUNK, 2 * CHUNK, 2 * CHUNK + 1] {
        for world_size in [2, 3] {
            all_done(
                &World::with("flags", world_size, &with("LENGTH", &length.to_string())).succeed(),
            );
        }
    }
}

#[test]
fn small_rings_and_few_processors_change_no_bit() {
    let crowded = |ring_capacity: usize, cores: usize| {
        let setup = Setup {
            ring_capacity,
            cores,
            ..Setup::default()
        };
        let ended = World::with("crowd", 5, &setup).succeed();
        let found = ended[0].one("parameters").to_owned();
        assert!(ended.iter().all(|other| other.one("parameters") == found));
        found
    };
    let plenty = crowded(1 << 20, 8);
    assert_eq!(crowded(MIN_RING_CAPACITY, 1), plenty);
    assert_eq!(crowded(MIN_RING_CAPACITY, 8), plenty);
}

#[test]
fn a_replica_killed_in_the_middle_is_reported_to_every_other() {
    for (world_size, length) in [(2, 4 * CHUNK), (4, 600), (4, 6 * CHUNK + 1)] {
        for point in [
            "frame-written 3",
            "tail-stored 5",
            "frame-read 9",
            "frame-read 70",
        ] {
            let mut setup = with("LENGTH", &length.to_string());
            setup
                .environment
                .push(("GRADRING_CRASH_POINT".into(), format!("1 {point}")));
            let began = Instant::now();
            let ended = World::with("until error", world_size, &setup).finish();
            for (rank, survivor) in ended.iter().enumerate().filter(|(rank, _)| *rank != 1) {
                assert!(
                    survivor.status.success(),
                    "rank {rank}: {:?}",
                    survivor.heard
                );
                assert_eq!(
                    survivor.one("error"),
                    "died 1",
                    "{point}, {length} elements"
                );
            }
            assert!(!ended[1].status.success(), "{point} was reached");
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "not at the deadline"
            );
        }
    }
}

#[test]
fn replicas_that_come_for_different_sums_are_told_who_came_for_what() {
    let long = 5 * CHUNK;
    for (what, zero, one) in [
        (
            "length",
            format!("all_reduce of {long} values (sum of f32)"),
            format!("all_reduce of {} values (sum of f32)", long + 1),
        ),
        (
            "short",
            format!("all_reduce of {long} values (sum of f32)"),
            "all_reduce of 7 values (sum of f32)".into(),
        ),
        (
            "type",
            format!("all_reduce of {CHUNK} values (sum of f32)"),
            format!("all_reduce of {CHUNK} values (sum of u32)"),
        ),
        (
            "op",
            format!("all_reduce of {long} values (sum of u32)"),
            format!("all_reduce of {long} values (max of u32)"),
        ),
        (
            "inline op",
            "all_reduce of 2 values (sum of u32)".into(),
            "all_reduce of 2 values (max of u32)".into(),
        ),
        (
            "kind",
            format!("uncompressed step of exchange 0 ({} elements)", 2 * CHUNK),
            format!(
                "uncompressed all_reduce of exchange 0 ({} elements)",
                2 * CHUNK
            ),
        ),
    ] {
        for world_size in [2, 4] {
            for replica in World::with("mismatch", world_size, &with("WHAT", what)).succeed() {
                let error = replica.one("error");
                assert!(error.starts_with("mismatch"), "{what}: {error}");
                // A rank that had not come when the first saw it is not named.
                assert!(error.contains(&format!("1: {one}")), "{what}: {error}");
                assert!(error.contains(&zero), "{what}: {error}");
            }
        }
    }
}
