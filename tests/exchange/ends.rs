//! Uneven ends, flushing, and worlds of one without rings.

use super::world::{World, tell};
use super::{LENGTH, Reduction, all_say, fixed, noise, update};
use gradring::codec::{Values, canon};
use gradring::replica::Counters;
use gradring::{
    Asynchronous, Bypass, EpochEnd, Error, Exchange, Flags, InResidual, MomentumMemory, Quantile,
    Replica, parameter_hash,
};

/// How many updates a rank has in an epoch; rank 2 has none at all.
fn updates_of(rank: usize) -> usize {
    [7, 3, 0, 5, 1, 7, 2, 4][rank]
}

/// Numbers that are multiples of 2^-20 and small enough for sums of many to be exact.
fn dyadic(rank: usize, step: usize, length: usize) -> Vec<f32> {
    let quantum = 1.0 / (1 << 20) as f32;
    (0..length)
        .map(|i| (noise(rank, step, i) / quantum).round() * quantum)
        .collect()
}

pub(super) fn replica(case: &str, replica: &Replica) -> bool {
    match case {
        "finish epochs" => finish_epochs(replica),
        "finish epochs with" => finish_epochs_with(replica),
        "interrupted" => interrupted(replica),
        "not finite at the end" => not_finite(replica),
        "not finite and flagged" => not_finite_and_flagged(replica),
        "flush" => flush(replica),
        "flush what is not finite" => flush_not_finite(replica),
        "bypass of many" => {
            for how in [Bypass::Encoded, Bypass::Whole] {
                let error = Exchange::builder(10).bypass(how).build(replica);
                let error = error.expect_err("there are two");
                assert!(matches!(&error, Error::Invalid { found, .. } if found == "2 replicas"));
            }
            replica.barrier().expect("the run goes on");
        }
        "counters" => counters(replica),
        _ => return false,
    }
    true
}

/// Three epochs, each of uneven length, against the same steps with `None`.
fn finish_epochs(replica: &Replica) {
    let rank = replica.rank();
    let make = || {
        Exchange::builder(LENGTH)
            .policy(fixed())
            .build(replica)
            .expect("agreed")
    };
    let mut exchange = make();
    let mut parameters = vec![0.5_f32; LENGTH];
    let most = (0..replica.world_size())
        .map(updates_of)
        .max()
        .expect("a rank");
    let mut steps = 0;
    for epoch in 0..3 {
        for step in 0..updates_of(rank) {
            let update = update(rank, 10 * epoch + step, LENGTH);
            exchange
                .step(Some(&update), &mut parameters)
                .expect("steps");
        }
        let end = exchange.finish_epoch(&mut parameters).expect("finishes");
        assert_eq!(end, EpochEnd::Ended);
        steps += most as u64;
        assert_eq!(exchange.steps(), steps, "an epoch's end is no step");
    }
    let mut other = make();
    let mut expected = vec![0.5_f32; LENGTH];
    for epoch in 0..3 {
        for step in 0..most {
            let update = update(rank, 10 * epoch + step, LENGTH);
            let update = (step < updates_of(rank)).then_some(&update as _);
            other.step(update, &mut expected).expect("steps");
        }
    }
    assert!(parameters == expected && exchange.residual() == other.residual());
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

fn finish_epochs_with(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = Exchange::builder(LENGTH)
        .policy(fixed())
        .build(replica)
        .expect("agreed");
    let (mut parameters, mut sum) = (vec![0.5_f32; LENGTH], vec![0.0_f32; LENGTH]);
    let mut seen = Vec::new();
    fn apply(parameters: &mut [f32], sum: &[f32]) {
        for (p, s) in parameters.iter_mut().zip(sum) {
            *p -= 0.25 * s;
        }
    }
    for step in 0..updates_of(rank) {
        let update = update(rank, step, LENGTH);
        let report = exchange.all_reduce(Some(&update), &mut sum).expect("steps");
        apply(&mut parameters, &sum);
        seen.push(report.contributors);
    }
    let end = exchange.finish_epoch_with(&mut sum, |sum, report| {
        apply(&mut parameters, sum);
        seen.push(report.contributors);
    });
    assert_eq!(end.expect("finishes"), EpochEnd::Ended);
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
    tell(format!("contributors {seen:?}"));
}

fn interrupted(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = Exchange::builder(1000).build(replica).expect("agreed");
    let mut parameters = vec![0.0_f32; 1000];
    if rank != 1 {
        assert_eq!(
            exchange.finish_epoch(&mut parameters).expect("goes on"),
            EpochEnd::Interrupted(Flags::CHECKPOINT)
        );
        tell(format!("interrupted after {}", exchange.steps()));
        assert_eq!(
            exchange.finish_epoch(&mut parameters).expect("goes on"),
            EpochEnd::Interrupted(Flags::TERMINATE)
        );
        assert_eq!(
            exchange.finish_epoch(&mut parameters).expect("ends"),
            EpochEnd::Ended,
            "what was agreed before the call is its caller's"
        );
        tell(format!("parameters {:016x}", parameter_hash(&parameters)));
        return;
    }
    for step in 0..6 {
        match step {
            3 => replica.raise(Flags::CHECKPOINT),
            4 => replica.raise(Flags::TERMINATE),
            _ => {}
        }
        exchange
            .step(Some(&update(rank, step, 1000)), &mut parameters)
            .expect("steps");
        let both = Flags::CHECKPOINT | Flags::TERMINATE;
        let none = Flags::NONE;
        let agreed = [none, none, none, Flags::CHECKPOINT, both, both][step];
        assert_eq!(replica.agreed(), agreed);
    }
    assert_eq!(
        exchange.finish_epoch(&mut parameters).expect("ends"),
        EpochEnd::Ended
    );
    tell("interrupted after 4");
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

fn not_finite(replica: &Replica) {
    let mut exchange = Exchange::builder(4)
        .policy(fixed())
        .build(replica)
        .expect("agreed");
    let mut parameters = vec![0.0_f32; 4];
    let error = if replica.rank() == 0 {
        exchange
            .step(Some(&[1.0, f32::NAN, 1.0, 1.0]), &mut parameters)
            .map(drop)
    } else {
        exchange.finish_epoch(&mut parameters).map(drop)
    };
    let error = error.expect_err("one element is not finite");
    assert!(
        matches!(
            error,
            Error::NonFinite {
                first: (0, 1),
                total: 1
            }
        ),
        "{error}"
    );
    assert_eq!(exchange.steps(), 1);
    let end = exchange
        .finish_epoch(&mut parameters)
        .expect("the exchange stays usable");
    assert_eq!(end, EpochEnd::Ended);
    tell(format!("parameters {parameters:?}"));
}

/// A flag that was agreed on in a step that is reported as not finite is told by the next call, at once.
fn not_finite_and_flagged(replica: &Replica) {
    let settings = [None, Some(Asynchronous::default())];
    let flags = [Flags::INTERRUPT, Flags::CHECKPOINT];
    for (flag, settings) in flags.into_iter().zip(settings) {
        let builder = Exchange::builder(4).name(flag.to_string()).policy(fixed());
        let builder = match settings {
            None => builder,
            Some(settings) => builder.asynchronous(settings),
        };
        let mut exchange = builder.build(replica).expect("agreed");
        let mut parameters = vec![0.0_f32; 4];
        let error = if replica.rank() == 0 {
            replica.raise(flag);
            let own = [1.0, f32::NAN, 1.0, 1.0];
            let stepped = exchange.step(Some(&own), &mut parameters).map(drop);
            match settings {
                None => stepped,
                Some(_) => exchange.settle(&mut parameters).map(drop),
            }
        } else {
            exchange.finish_epoch(&mut parameters).map(drop)
        };
        let error = error.expect_err("one element is not finite");
        assert!(matches!(error, Error::NonFinite { .. }), "{error}");
        if replica.rank() == 0 {
            assert!(replica.agreed().contains(flag));
        } else {
            let end = exchange.finish_epoch(&mut parameters).expect("goes on");
            assert_eq!(end, EpochEnd::Interrupted(flag));
        }
        // What is done about it.
        replica.barrier().expect("all come");
        let end = exchange.finish_epoch(&mut parameters).expect("goes on");
        assert_eq!(end, EpochEnd::Ended);
    }
    tell("done");
}

/// What was sent and what is flushed are all that was given: exactly, with numbers of one grid.
fn flush(replica: &Replica) {
    let (rank, world_size) = (replica.rank(), replica.world_size());
    let mut exchange = Exchange::builder(LENGTH)
        .reduction(Reduction::Sum)
        .policy(fixed())
        .build(replica)
        .expect("agreed");
    let (mut parameters, mut given) = (vec![0.0_f32; LENGTH], vec![0.0_f64; LENGTH]);
    for step in 0..5 {
        exchange
            .step(Some(&dyadic(rank, step, LENGTH)), &mut parameters)
            .expect("steps");
        for rank in 0..world_size {
            for (sum, u) in given.iter_mut().zip(dyadic(rank, step, LENGTH)) {
                *sum += f64::from(u);
            }
        }
    }
    assert!(exchange.residual().iter().any(|r| *r != 0.0));
    let report = exchange.flush(&mut parameters).expect("flushes");
    assert_eq!((report.contributors, exchange.steps()), (world_size, 5));
    assert!(exchange.residual().iter().all(|r| r.to_bits() == 0));
    for (p, given) in parameters.iter().zip(&given) {
        assert_eq!(f64::from(-*p), *given);
    }
    exchange
        .check(&mut parameters)
        .expect("the same everywhere");

    // Onto a sum, and from a residual that was written in place.
    exchange.residual_mut().fill(0.25);
    let mut sum = vec![f32::NAN; LENGTH];
    exchange.flush_all_reduce(&mut sum).expect("flushes");
    assert!(sum.iter().all(|s| *s == 0.25 * world_size as f32));
    exchange
        .step(Some(&dyadic(rank, 9, LENGTH)), &mut parameters)
        .expect("steps go on");
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

fn flush_not_finite(replica: &Replica) {
    let mut exchange = Exchange::builder(3).build(replica).expect("agreed");
    if replica.rank() == 1 {
        exchange
            .residual_mut()
            .copy_from_slice(&[1.0, f32::NAN, -0.0]);
    }
    let mut parameters = vec![0.0_f32; 3];
    let error = exchange
        .flush(&mut parameters)
        .expect_err("one is not finite");
    assert!(
        matches!(
            error,
            Error::NonFinite {
                first: (1, 1),
                total: 1
            }
        ),
        "{error}"
    );
    assert_eq!(parameters, [-0.5, 0.0, 0.0]);
    assert!(exchange.residual().iter().all(|r| r.to_bits() == 0));
    tell("done");
}

fn counters(replica: &Replica) {
    let mut exchange = Exchange::builder(1000).build(replica).expect("agreed");
    let mut parameters = vec![0.0_f32; 1000];
    let (mut hits, mut bytes) = (0, 0);
    for step in 0..7 {
        let update = update(replica.rank(), step, 1000);
        let update = (replica.rank() == 0 || step < 3).then_some(&update as _);
        let report = exchange.step(update, &mut parameters).expect("steps");
        (hits, bytes) = (hits + report.hits, bytes + report.bytes);
    }
    // No step, but bytes.
    bytes += exchange.flush(&mut parameters).expect("flushes").bytes;
    tell(format!("hits {hits}"));
    tell(format!("bytes {bytes}"));
}

#[test]
fn ranks_whose_data_runs_out_early_take_part_until_nobody_has_any() {
    for world_size in [1, 2, 3, 4, 8] {
        let ended = World::start("finish epochs", world_size).succeed();
        all_say(&ended, "parameters");
    }
}

#[test]
fn sums_that_come_after_the_own_data_has_run_out_are_applied_alike() {
    let ended = World::start("finish epochs with", 4).succeed();
    all_say(&ended, "parameters");
    assert_eq!(all_say(&ended, "contributors"), "[3, 3, 3, 2, 2, 1, 1]");
}

#[test]
fn an_agreed_flag_interrupts_the_end_of_an_epoch_after_the_same_step() {
    let ended = World::start("interrupted", 3).succeed();
    assert_eq!(all_say(&ended, "interrupted"), "after 4");
    all_say(&ended, "parameters");
}

#[test]
fn what_is_not_finite_is_told_to_ranks_without_data_too() {
    let ended = World::start("not finite at the end", 3).succeed();
    all_say(&ended, "parameters");
}

#[test]
fn a_flag_agreed_on_in_a_step_that_was_not_finite_is_not_lost() {
    World::start("not finite and flagged", 3).succeed();
}

#[test]
fn a_flush_sends_all_that_waits_and_nothing_is_lost() {
    for world_size in [1, 2, 3, 5] {
        let ended = World::start("flush", world_size).succeed();
        all_say(&ended, "parameters");
    }
}

#[test]
fn what_is_not_finite_in_a_residual_is_left_out_of_a_flush_and_counted() {
    World::start("flush what is not finite", 2).succeed();
}

#[test]
fn a_bypass_is_for_a_world_of_one() {
    World::start("bypass of many", 2).succeed();
}

#[test]
fn displays_read_what_each_rank_has_done_from_outside() {
    let mut world = World::start("counters", 2);
    let bytes = [0, 1].map(|rank| world.replicas[rank].hear("bytes"));
    let counters = [0, 1].map(|rank| Counters::read(world.segment.rank(rank)));
    let ended = world.succeed();
    for rank in [0, 1] {
        let counted = counters[rank];
        assert_eq!((counted.steps, counted.updates), (7, [7, 3][rank]));
        assert_eq!(counted.hits.to_string(), ended[rank].one("hits"));
        assert_eq!(format!("bytes {}", counted.bytes), bytes[rank]);
        assert!(
            counted.density > 0.02 && counted.density < 0.05,
            "{counted:?}"
        );
        assert!(counted.threshold > 0.0 && counted.residual_l1 > 0.0);
        assert!(counted.encode_ns > 0 && counted.decode_ns > 0 && counted.wait_ns > 0);
    }
}

fn alone() -> Replica {
    Replica::join().expect("a world of one")
}

#[test]
fn a_bypass_that_encodes_gives_what_the_ring_gives() {
    let replica = alone();
    let make = |bypass: bool| {
        let builder = Exchange::builder(LENGTH).policy(Quantile::new(0.2).expect("a density"));
        let builder = if bypass {
            builder.bypass(Bypass::Encoded)
        } else {
            builder
        };
        builder.build(&replica).expect("made")
    };
    let (mut with, mut without) = (make(false), make(true));
    let (mut p, mut q) = (vec![0.5_f32; LENGTH], vec![0.5_f32; LENGTH]);
    let (mut a, mut b) = (vec![1.0_f32; LENGTH], vec![2.0_f32; LENGTH]);
    for step in 0..6 {
        let mut update = update(0, step, LENGTH);
        if step == 4 {
            update[7] = f32::NAN;
        }
        let reports = [
            with.step(Some(&update), &mut p),
            without.step(Some(&update), &mut q),
        ];
        match reports {
            [Ok(one), Ok(other)] => {
                assert_eq!(
                    (one.hits, one.bytes, one.unit),
                    (other.hits, other.bytes, other.unit)
                );
                assert_eq!(one.contributors, 1);
            }
            [
                Err(Error::NonFinite { total: 1, .. }),
                Err(Error::NonFinite { total: 1, .. }),
            ] => {
                assert_eq!(step, 4);
            }
            other => panic!("{other:?}"),
        }
        with.all_reduce(Some(&update), &mut a).ok();
        without.all_reduce(Some(&update), &mut b).ok();
        assert!(p == q && a == b && with.residual() == without.residual());
        assert_eq!(with.steps(), without.steps());
    }
    assert!(without.step(None, &mut q).expect("steps").epoch_ended());
    assert_eq!(without.finish_epoch(&mut q).expect("ends"), EpochEnd::Ended);
    replica.raise(Flags::INTERRUPT);
    without
        .step(Some(&update(0, 9, LENGTH)), &mut q)
        .expect("steps");
    assert_eq!(
        replica.agreed(),
        Flags::INTERRUPT,
        "flags are agreed on without a ring too"
    );
}

#[test]
fn a_bypass_that_applies_whole_updates_leaves_the_residual_as_it_is() {
    let replica = alone();
    let mut exchange = Exchange::builder(10_000)
        .bypass(Bypass::Whole)
        .build(&replica)
        .expect("made");
    exchange.residual_mut()[3] = 0.125;
    let mut parameters: Vec<f32> = (0..10_000).map(|i| noise(5, 5, i)).collect();
    parameters[2] = f32::INFINITY;
    let mut expected = parameters.clone();
    let mut u = update(0, 0, 10_000);
    (u[0], u[1]) = (f32::NEG_INFINITY, 1e-40);
    for (p, u) in expected.iter_mut().zip(&u) {
        if u.is_finite() && p.is_finite() {
            *p = canon(canon(*p) - canon(*u));
        }
    }
    let error = exchange
        .step(Some(&u), &mut parameters)
        .expect_err("one is not finite");
    assert!(matches!(error, Error::NonFinite { first: (0, 1), .. }));
    assert!(parameters == expected && exchange.steps() == 1);
    assert!(
        exchange
            .residual()
            .iter()
            .enumerate()
            .all(|(i, r)| (*r != 0.0) == (i == 3))
    );
    let mut sum = vec![f32::NAN; 10_000];
    let parts: Vec<Values> = vec![
        (&u[1..5000]).into(),
        (&u[5000..]).into(),
        (&[2.0_f32]).into(),
    ];
    exchange
        .all_reduce(Some(&parts), &mut sum)
        .expect("all are finite");
    assert_eq!((sum[0], sum[9998], sum[9999]), (0.0, u[9999], 2.0));

    let error = exchange
        .step(Some(&InResidual), &mut parameters)
        .expect_err("nothing to apply");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let momentum = MomentumMemory::new(0.9).expect("a momentum");
    let error = Exchange::builder(10)
        .bypass(Bypass::Whole)
        .momentum(momentum)
        .build(&replica)
        .expect_err("nothing would use it");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let error = Exchange::builder(10)
        .bypass(Bypass::Whole)
        .bypass(Bypass::Encoded)
        .build(&replica)
        .expect_err("one of them");
    assert!(
        error
            .to_string()
            .contains("a bypass with whole updates and a bypass"),
        "{error}"
    );
}
