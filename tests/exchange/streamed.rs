//! Streamed steps: parts in any order, the same bits as whole updates in lockstep.

use super::world::{Setup, World, tell};
use super::{all_say, noise, update};
use gradring::codec::{BLOCK, Dense, Values};
use gradring::exchange::Builder;
use gradring::shm::layout::MIN_RING_CAPACITY;
use gradring::{
    EpochEnd, Error, Exchange, Fixed, InResidual, NamedRange, Quantile, Reduction, Replica, op,
    parameter_hash,
};
use std::ops::Range;

/// Ranges of which each is a chunk, or two where it is dense.
const LENGTHS: [usize; 7] = [5000, 40_000, 1, 33_000, 20_000, 7, 12_345];

fn length() -> usize {
    LENGTHS.iter().sum()
}

fn ranges() -> Vec<NamedRange> {
    let ranges = LENGTHS.iter().enumerate().map(|(i, &length)| match i {
        1 => NamedRange::dense("1", length, Dense::F32),
        3 => NamedRange::dense("3", length, Dense::Bf16),
        _ => NamedRange::compressed(i.to_string(), length),
    });
    ranges.collect()
}

fn builder() -> Builder {
    Exchange::builder(length())
        .ranges(ranges())
        .policy(Fixed::new(0.0078125).expect("a threshold"))
        .check_every(2)
}

/// A number that depends on its arguments alone.
fn random(rank: usize, step: usize, i: usize, below: usize) -> usize {
    (noise(rank, step, i).to_bits() as usize >> 3) % below
}

/// Some parts that cover the vector, in some order.
fn parts(rank: usize, step: usize) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = (0..3 + random(rank, step, 0, 20))
        .map(|i| random(rank, step, i + 1, length()))
        .collect();
    cuts.extend([0, length()]);
    cuts.sort_unstable();
    let mut parts: Vec<Range<usize>> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
    for i in (1..parts.len()).rev() {
        parts.swap(i, random(rank, step + 1000, i, i + 1));
    }
    parts
}

fn gives(rank: usize, step: usize) -> bool {
    step < 3 || !(rank + step).is_multiple_of(3)
}

pub(super) fn replica(case: &str, replica: &Replica) -> bool {
    match case {
        "streamed as lockstep" => as_lockstep(replica),
        "streamed by quantile" => by_quantile(replica),
        "streamed through a small ring" => through_a_small_ring(replica),
        "streamed misuse" => misuse(replica),
        "streamed given up" => given_up(replica),
        "streamed with a limit" => with_a_limit(replica),
        "streamed not finite" => not_finite(replica),
        "streamed and not" => streamed_and_not(replica),
        _ => return false,
    }
    true
}

fn as_lockstep(replica: &Replica) {
    let rank = replica.rank();
    let mut streamed = builder().streamed().build(replica).expect("agreed");
    let mut lockstep = builder().build(replica).expect("agreed");
    let mut p = vec![0.5_f32; length()];
    let mut q = vec![p[..1000].to_vec(), vec![], p[1000..].to_vec()];
    let (mut a, mut b) = (vec![1.0_f32; length()], vec![1.0_f32; length()]);
    for step in 0..12 {
        let own = update(rank, step, length());
        let given = gives(rank, step);
        if step % 4 == 3 {
            let mut open = streamed.begin_all_reduce().expect("begins");
            for part in parts(rank, step).into_iter().filter(|_| given) {
                open.push(part.clone(), &own[part]).expect("is pushed");
            }
            let one = open.finish(&mut a).expect("finishes");
            let other = lockstep
                .all_reduce(given.then_some(&own as _), &mut b)
                .expect("steps");
            assert_eq!(
                (one.contributors, one.hits),
                (other.contributors, other.hits)
            );
            assert!(a == b);
        } else if step % 4 == 2 {
            // A whole update, in one slice or in parts.
            let halves: Vec<Values> = vec![(&own[..777]).into(), (&own[777..]).into()];
            let one = if rank == 0 {
                streamed.step(given.then_some(&halves as _), &mut p)
            } else {
                streamed.step(given.then_some(&own as _), &mut p)
            };
            let other = lockstep.step(given.then_some(&own as _), &mut q);
            assert_eq!(one.expect("steps").bytes, other.expect("steps").bytes);
        } else {
            let mut open = streamed.begin().expect("begins");
            for part in parts(rank, step).into_iter().filter(|_| given) {
                open.push(part.clone(), &own[part]).expect("is pushed");
            }
            let one = open.finish(&mut p).expect("finishes");
            drop(open);
            let other = lockstep
                .step(given.then_some(&own as _), &mut q)
                .expect("steps");
            assert_eq!(one.step, other.step);
            assert_eq!((one.hits, one.bytes), (other.hits, other.bytes));
            assert_eq!(one.dense_chunks, if given { 4 } else { 0 });
        }
        assert!(p == q.concat(), "after step {step}");
        assert!(
            streamed.residual() == lockstep.residual(),
            "after step {step}"
        );
        assert_eq!(streamed.steps(), lockstep.steps());
    }
    let nothing = streamed
        .begin()
        .expect("begins")
        .finish(&mut p)
        .expect("finishes");
    assert!(nothing.epoch_ended() && streamed.steps() == lockstep.steps());
    let end = streamed.finish_epoch(&mut p).expect("ends");
    assert_eq!(end, EpochEnd::Ended);
    tell(format!("parameters {:016x}", parameter_hash(&p)));
}

fn by_quantile(replica: &Replica) {
    let (rank, length) = (replica.rank(), 300_000);
    let mut exchange = Exchange::builder(length)
        .policy(Quantile::new(0.01).expect("a density"))
        .streamed()
        .check_every(3)
        .build(replica)
        .expect("agreed");
    let mut parameters = vec![0.0_f32; length];
    for step in 0..20 {
        let own = update(rank, step, length);
        let mut open = exchange.begin().expect("begins");
        let cut = [100_000, 280_000][step % 2];
        open.push(cut..length, &own[cut..]).expect("is pushed");
        open.push(0..cut, &own[..cut]).expect("is pushed");
        let report = open.finish(&mut parameters).expect("finishes");
        if step >= 2 {
            assert!(
                (0.005..0.02).contains(&report.density),
                "{step}: {report:?}"
            );
        }
    }
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

/// Three dense blocks fill the smallest ring: what comes later is left to the end.
fn through_a_small_ring(replica: &Replica) {
    let (rank, length) = (replica.rank(), 9 * BLOCK + 5);
    let make = || {
        Exchange::builder(length)
            .ranges([
                NamedRange::dense("dense", 8 * BLOCK, Dense::F32),
                NamedRange::compressed("rest", BLOCK + 5),
            ])
            .reduction(Reduction::Sum)
    };
    let mut streamed = make().streamed().build(replica).expect("agreed");
    let mut lockstep = make()
        .policy(Quantile::default())
        .build(replica)
        .expect("agreed");
    let (mut p, mut q) = (vec![0.0_f32; length], vec![0.0_f32; length]);
    for step in 0..3 {
        let own = update(rank, step, length);
        let mut open = streamed.begin().expect("begins");
        for block in (0..9).rev() {
            let part = block * BLOCK..if block == 8 {
                length
            } else {
                (block + 1) * BLOCK
            };
            open.push(part.clone(), &own[part]).expect("is pushed");
        }
        open.finish(&mut p).expect("finishes");
        lockstep.step(Some(&own), &mut q).expect("steps");
        assert!(p[..8 * BLOCK] == q[..8 * BLOCK]);
    }
    tell(format!("parameters {:016x}", parameter_hash(&p)));
}

fn misuse(replica: &Replica) {
    let rank = replica.rank();
    let other = replica.clone();
    let mut exchange = builder().streamed().build(replica).expect("agreed");
    let mut second = Exchange::builder(10).build(replica).expect("agreed");
    let mut parameters = vec![0.0_f32; length()];
    let own = update(rank, 0, length());
    let mut open = exchange.begin().expect("begins");

    let is_open = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::StepOpen)), "{result:?}");
    };
    is_open(other.barrier());
    is_open(other.arrive().map(drop));
    is_open(other.broadcast(0, &mut [0.0; 10]));
    is_open(other.all_gather(&[1]).map(drop));
    is_open(other.all_reduce(&mut [1_u32], op::Sum));
    is_open(other.all_reduce(&mut [1_u32; 1000], op::Sum));
    is_open(second.step(None, &mut [0.0; 10]).map(drop));
    is_open(second.flush(&mut [0.0; 10]).map(drop));
    is_open(second.start(&mut [0.0; 10]));
    is_open(second.check(&mut [0.0; 10]));
    is_open(Exchange::builder(10).build(&other).map(drop));

    let is_local = |result: Result<(), Error>| {
        let error = result.expect_err("it is refused");
        assert!(
            matches!(error, Error::Length { .. } | Error::Invalid { .. }),
            "{error}"
        );
        assert!(!error.ends_the_run());
    };
    // A part of another length than its range; past the end; backwards; overlapping.
    is_local(open.push(0..10, &own[..9]));
    is_local(open.push(length() - 1..length() + 1, &own[..2]));
    is_local(open.push(usize::MAX - 1..usize::MAX, &own[..1]));
    open.push(100..200, &own[100..200]).expect("is pushed");
    is_local(open.push(0..101, &own[0..101]));
    is_local(open.push(199..300, &own[199..300]));
    is_local(open.push(150..160, &own[150..160]));
    is_local(open.push(0..length(), &own));
    open.push(7..7, &own[..0]).expect("nothing");
    // Elements are missing.
    is_local(open.finish(&mut parameters).map(drop));
    open.push(0..100, &own[0..100]).expect("is pushed");
    open.push(200..length(), &own[200..]).expect("is pushed");
    is_local(open.finish(&mut [0.0_f32; 3]).map(drop));
    open.finish(&mut parameters).expect("finishes");
    is_local(open.push(0..1, &own[..1]));
    is_local(open.finish(&mut parameters).map(drop));
    drop(open);

    let mut expected = builder().build(replica).expect("agreed");
    let mut sum = vec![0.0_f32; length()];
    expected.step(Some(&own), &mut sum).expect("steps");
    assert!(parameters == sum && exchange.residual() == expected.residual());
    is_local(exchange.step(Some(&InResidual), &mut parameters).map(drop));
    is_local(expected.begin().map(drop));
    replica.barrier().expect("the run goes on");
    tell("done");
}

fn given_up(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = builder().streamed().build(replica).expect("agreed");
    let mut parameters = vec![0.0_f32; length()];
    let own = update(rank, 0, length());
    // Nothing has gone out: it has not happened, and what was given stays in the residual.
    let mut open = exchange.begin().expect("begins");
    open.push(1..4000, &own[1..4000]).expect("is pushed");
    drop(open);
    drop(exchange.begin().expect("begins"));
    assert!(exchange.residual()[1..4000] == own[1..4000]);
    replica.barrier().expect("the run goes on");
    let zero = vec![0.0_f32; length()];
    let report = exchange.step(Some(&zero), &mut parameters).expect("steps");
    assert!(report.hits > 0, "what was given went out");
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));

    // Something has.
    let error = if rank == 1 {
        let mut open = exchange.begin().expect("begins");
        open.push(0..5000, &own[..5000]).expect("is pushed");
        drop(open);
        replica.barrier().expect_err("the run is over")
    } else {
        exchange
            .step(Some(&own), &mut parameters)
            .expect_err("rank 1 gave up")
    };
    assert!(matches!(error, Error::StepAborted { rank: 1 }), "{error}");
    tell(format!("error {error}"));
}

fn with_a_limit(replica: &Replica) {
    let rank = replica.rank();
    let policy = Fixed::new(0.0078125).expect("a threshold").with_limit(100);
    let mut exchange = Exchange::builder(length())
        .ranges(ranges())
        .policy(policy)
        .streamed()
        .check_every(1)
        .build(replica)
        .expect("agreed");
    let mut parameters = vec![0.0_f32; length()];
    for step in 0..6 {
        let own = update(rank, step, length());
        let mut open = exchange.begin().expect("begins");
        for part in parts(rank, step) {
            open.push(part.clone(), &own[part]).expect("is pushed");
        }
        let report = open.finish(&mut parameters).expect("finishes");
        assert_eq!(report.hits, 100);
    }
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

fn not_finite(replica: &Replica) {
    let mut exchange = builder().streamed().build(replica).expect("agreed");
    let mut parameters = vec![0.0_f32; length()];
    let mut own = update(replica.rank(), 0, length());
    if replica.rank() == 1 {
        (own[0], own[length() - 1]) = (f32::NAN, f32::INFINITY);
    }
    let mut open = exchange.begin().expect("begins");
    open.push(5000..length(), &own[5000..]).expect("is pushed");
    open.push(0..5000, &own[..5000]).expect("is pushed");
    let error = open
        .finish(&mut parameters)
        .expect_err("two are not finite");
    assert!(
        matches!(
            error,
            Error::NonFinite {
                first: (1, 2),
                total: 2
            }
        ),
        "{error}"
    );
    drop(open);
    assert_eq!(exchange.steps(), 1);
    exchange
        .step(None, &mut parameters)
        .expect("the exchange stays usable");
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

fn streamed_and_not(replica: &Replica) {
    let builder = match replica.rank() {
        0 => builder().streamed(),
        _ => builder(),
    };
    let error = builder.build(replica).expect_err("they differ");
    assert!(
        matches!(&error, Error::Disagreement { field, .. } if field == "schedule"),
        "{error}"
    );
    tell("done");
}

#[test]
fn parts_in_any_order_give_the_bits_of_whole_updates_in_lockstep() {
    for world_size in [1, 2, 3, 5, 8] {
        let ended = World::start("streamed as lockstep", world_size).succeed();
        all_say(&ended, "parameters");
    }
    let crowded = Setup {
        cores: 1,
        ring_capacity: MIN_RING_CAPACITY,
        ..Setup::default()
    };
    all_say(
        &World::with("streamed as lockstep", 4, &crowded).succeed(),
        "parameters",
    );
}

#[test]
fn thresholds_of_streamed_steps_follow_from_the_step_before() {
    for world_size in [1, 3] {
        let ended = World::start("streamed by quantile", world_size).succeed();
        all_say(&ended, "parameters");
    }
}

#[test]
fn what_does_not_fit_the_ring_is_left_to_the_end_of_the_step() {
    let setup = Setup {
        ring_capacity: MIN_RING_CAPACITY,
        ..Setup::default()
    };
    for world_size in [1, 2, 3] {
        let world = World::with("streamed through a small ring", world_size, &setup);
        all_say(&world.succeed(), "parameters");
    }
}

#[test]
fn an_open_step_owns_the_replica_and_wrong_parts_are_local_errors() {
    for world_size in [1, 2] {
        World::start("streamed misuse", world_size).succeed();
    }
}

#[test]
fn a_step_that_is_given_up_ends_the_run_if_something_had_gone_out() {
    let ended = World::start("streamed given up", 3).succeed();
    all_say(&ended, "parameters");
    all_say(&ended, "error");
}

#[test]
fn a_limit_is_spent_in_the_order_in_which_chunks_go_out() {
    all_say(
        &World::start("streamed with a limit", 3).succeed(),
        "parameters",
    );
}

#[test]
fn what_is_not_finite_in_any_part_is_reported_on_all() {
    all_say(
        &World::start("streamed not finite", 3).succeed(),
        "parameters",
    );
}

#[test]
fn replicas_that_stream_and_replicas_that_do_not_make_no_exchange() {
    World::start("streamed and not", 2).succeed();
}
