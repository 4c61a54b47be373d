//! An exchange as a state: resumed bit for bit, merged for another number of replicas, refused when damaged.

#[path = "plain/random.rs"]
mod random;
mod world;

use gradring::checkpoint::{State, StateError, Whose};
use gradring::codec::Path;
use gradring::codec::policy::Quantile;
use gradring::{
    Adaptive, Clipping, Dense, Error, Exchange, Fixed, MomentumMemory, NamedRange, Replica,
    TargetDensity,
};
use random::Random;
use std::io::{Read, Write};
use world::{World, tell};

/// The plain file writer of these tests.
fn to_file(state: &dyn State, path: &std::path::Path) -> Result<(), StateError> {
    let mut file = std::fs::File::create(path).expect("a new file");
    state.save(&mut file)
}

fn from_file(state: &mut dyn State, path: &std::path::Path) -> Result<(), StateError> {
    let mut file = std::fs::File::open(path).expect("it was written");
    state.load(&mut file)
}

fn saved(state: &dyn State) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.save(&mut bytes).expect("between steps");
    bytes
}

/// What rank `rank` of `world_size` has after it merged these.
fn merge(
    state: &mut dyn State,
    old: &[Vec<u8>],
    rank: usize,
    world_size: usize,
) -> Result<(), StateError> {
    let mut files: Vec<&[u8]> = old.iter().map(Vec::as_slice).collect();
    let mut readers: Vec<&mut dyn Read> = files.iter_mut().map(|file| file as _).collect();
    state.merge(&mut readers, rank, world_size)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

const LENGTH: usize = 300_000 + 70;

fn update(rank: usize, step: usize, length: usize) -> Vec<f32> {
    let mut random = Random((rank as u64) << 32 | step as u64);
    (0..length).map(|_| random.laplace(1e-3)).collect()
}

/// Exchanges of several kinds, whose threads and path are free.
fn exchange(kind: usize, threads: usize, path: Path, replica: &Replica) -> Exchange {
    let builder = Exchange::builder(LENGTH)
        .check_every(11)
        .threads(threads)
        .path(path);
    let quantile = || Quantile::new(0.02).expect("a density");
    let builder = match kind {
        0 => builder.policy(quantile().with_warm_up(20).expect("a warm-up")),
        1 => builder.policy(Adaptive::dl4j()),
        2 => builder
            .ranges([
                NamedRange::compressed("weights", 280_000),
                NamedRange::dense("bias", 70, Dense::Bf16),
                NamedRange::compressed("embedding", 20_000)
                    .with_policy(TargetDensity::dl4j().with_limit(900)),
            ])
            .post_processor(Clipping::new(3.0, 4).expect("a clipping")),
        3 => builder.policy(quantile()).momentum(
            MomentumMemory::new(0.9)
                .and_then(|memory| memory.with_local_clipping(0.2))
                .expect("a memory"),
        ),
        // What the next threshold is made of is gathered by the step before.
        _ => builder
            .policy(quantile())
            .momentum(MomentumMemory::new(0.9).expect("a momentum"))
            .streamed(),
    };
    builder.build(replica).expect("agreed")
}

const KINDS: usize = 5;
const STEPS: usize = 25;

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let rank = replica.rank();
    match case.as_str() {
        "resume" => {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("exchange");
            let others: Vec<Path> = Path::ALL
                .into_iter()
                .filter(|path| path.is_available())
                .collect();
            for kind in 0..KINDS {
                let step = |exchange: &mut Exchange, step: usize, parameters: &mut Vec<f32>| {
                    let update = update(rank, step, LENGTH);
                    // Uneven, so that replicas remember different things.
                    let gives = !(rank + step).is_multiple_of(4);
                    exchange
                        .step(gives.then_some(&update), parameters)
                        .expect("steps");
                };
                let mut never_stopped = exchange(kind, 1, Path::Scalar, &replica);
                let mut expected = vec![0.0_f32; LENGTH];
                // Before the first step; where a hash waits to be compared; anywhere.
                for stop in [0, 11, 17] {
                    let mut resumed = exchange(kind, 1 + rank, Path::best(), &replica);
                    let mut parameters = vec![0.0_f32; LENGTH];
                    for number in 0..stop {
                        step(&mut resumed, number, &mut parameters);
                    }
                    to_file(&resumed, &file).expect("between steps");
                    let path = others[(kind + stop + rank) % others.len()];
                    resumed = exchange(kind, 3 - rank, path, &replica);
                    from_file(&mut resumed, &file).expect("its own");
                    assert_eq!(resumed.steps(), stop as u64);
                    for number in stop..STEPS {
                        step(&mut resumed, number, &mut parameters);
                    }
                    if stop == 0 {
                        for number in 0..STEPS {
                            step(&mut never_stopped, number, &mut expected);
                        }
                    }
                    assert!(bits(&parameters) == bits(&expected), "kind {kind}, {stop}");
                    let (resumed, never) = (saved(&resumed), saved(&never_stopped));
                    assert!(resumed == never, "kind {kind}, stopped after {stop}");
                }
            }
            tell("done");
        }
        "diverged" => {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("exchange");
            let mut exchange = exchange(0, 1, Path::best(), &replica);
            let mut parameters = vec![0.0_f32; LENGTH];
            for step in 0..11 {
                if step == 5 && rank == 1 {
                    parameters[LENGTH - 1] = 1.0;
                }
                exchange
                    .step(Some(&update(rank, step, LENGTH)), &mut parameters)
                    .expect("not yet compared");
            }
            to_file(&exchange, &file).expect("between steps");
            let mut resumed = self::exchange(0, 1, Path::best(), &replica);
            from_file(&mut resumed, &file).expect("its own");
            let error = resumed
                .step(Some(&update(rank, 11, LENGTH)), &mut parameters)
                .expect_err("the hash from before is compared");
            assert!(matches!(error, Error::Diverged { step: 10, .. }), "{error}");
            // Nobody may save what such a step left behind.
            let error = resumed.save(&mut Vec::new()).expect_err("the run is over");
            assert!(matches!(error, StateError::NotNow { .. }), "{error}");
            let error = from_file(&mut resumed, &file).expect_err("the run is over");
            assert!(matches!(error, StateError::NotNow { .. }), "{error}");
            tell("done");
        }
        other => panic!("no case {other}"),
    }
}

#[test]
fn a_run_that_stopped_goes_on_bit_for_bit_with_other_threads_and_paths() {
    for replica in World::start("resume", 2).succeed() {
        replica.one("done");
    }
}

#[test]
fn a_hash_that_waits_to_be_compared_is_compared_after_resuming() {
    for replica in World::start("diverged", 2).succeed() {
        replica.one("done");
    }
}

/// An exchange of a replica that is alone: what its peers would have is merged by hand.
fn alone(length: usize, momentum: Option<f32>) -> Exchange {
    let replica = Replica::join().expect("joins alone");
    let builder = Exchange::builder(length).policy(Fixed::new(1.0).expect("a threshold"));
    let builder = match momentum {
        Some(momentum) => builder.momentum(MomentumMemory::new(momentum).expect("a memory")),
        None => builder,
    };
    builder.build(&replica).expect("alone")
}

/// The states of so many replicas after `steps` steps of these updates.
fn run(
    world_size: usize,
    steps: usize,
    mut make: impl FnMut() -> Exchange,
    mut update: impl FnMut(usize) -> Vec<f32>,
) -> Vec<Exchange> {
    (0..world_size)
        .map(|rank| {
            let mut exchange = make();
            let mut parameters = vec![0.0; exchange.residual().len()];
            for _ in 0..steps {
                let update = update(rank);
                exchange
                    .step(Some(&update), &mut parameters)
                    .expect("steps");
            }
            exchange
        })
        .collect()
}

/// The sum over replicas, of each element; exact where the values are dyadic.
fn sums(replicas: &[Exchange]) -> Vec<f64> {
    let mut sums = vec![0.0; replicas[0].residual().len()];
    for replica in replicas {
        for (sum, r) in sums.iter_mut().zip(replica.residual()) {
            *sum += f64::from(*r);
        }
    }
    sums
}

#[test]
fn another_number_of_replicas_keeps_the_sum_of_residuals_exactly_on_dyadic_values() {
    let length = 1000;
    let mut random = Random(5);
    let dyadic = |_: usize| -> Vec<f32> {
        let mut number = || random.below(1 << 11) as f32 / 1024.0 - 1.0;
        (0..length).map(|_| number()).collect()
    };
    let mut replicas = run(4, 3, || alone(length, None), dyadic);
    let expected = sums(&replicas);
    assert!(expected.iter().filter(|sum| **sum != 0.0).count() > 900);
    for world_size in [2, 3, 5, 1, 6, 6] {
        let old: Vec<Vec<u8>> = replicas.iter().map(|replica| saved(replica)).collect();
        replicas = (0..world_size)
            .map(|rank| {
                let mut replica = alone(length, None);
                merge(&mut replica, &old, rank, world_size).expect("states of one run");
                assert_eq!(replica.steps(), 3);
                replica
            })
            .collect();
        assert_eq!(sums(&replicas), expected, "{world_size} replicas");
    }
}

#[test]
fn residuals_are_added_in_order_of_rank_and_velocities_averaged() {
    let length = 500;
    let mut random = Random(6);
    let update = |_: usize| -> Vec<f32> { (0..length).map(|_| random.laplace(0.3)).collect() };
    let old = run(5, 4, || alone(length, Some(0.5)), update);
    let bytes: Vec<Vec<u8>> = old.iter().map(|replica| saved(replica)).collect();
    let velocity = |exchange: &Exchange| exchange.encoder().velocity().expect("one").to_vec();
    for world_size in [2, 3, 8] {
        for rank in 0..world_size {
            let mut new = alone(length, Some(0.5));
            merge(&mut new, &bytes, rank, world_size).expect("states of one run");
            let mut residual = vec![0.0_f32; length];
            for of in (rank..old.len()).step_by(world_size) {
                for (sum, r) in residual.iter_mut().zip(old[of].residual()) {
                    *sum += r;
                }
            }
            assert_eq!(bits(new.residual()), bits(&residual));
            let mut means = vec![0.0_f64; length];
            for of in &old {
                for (mean, w) in means.iter_mut().zip(velocity(of)) {
                    *mean += f64::from(w) / 5.0;
                }
            }
            for (found, mean) in velocity(&new).into_iter().zip(means) {
                assert!(
                    (f64::from(found) - mean).abs() < 1e-6,
                    "{found}, not {mean}"
                );
            }
        }
    }
    // As many as before: each has its own again.
    let mut same = alone(length, Some(0.5));
    merge(&mut same, &bytes, 3, 5).expect("its own");
    assert!(saved(&same) == bytes[3]);
}

#[test]
fn thresholds_of_all_replicas_become_one() {
    let replica = || {
        let replica = Replica::join().expect("joins alone");
        let policy = TargetDensity::dl4j();
        let exchange = Exchange::builder(2000).policy(policy).build(&replica);
        exchange.expect("alone")
    };
    let mut random = Random(7);
    let update = |rank: usize| -> Vec<f32> {
        let scale = 1e-3 * (1 << rank) as f64;
        (0..2000).map(|_| random.laplace(scale)).collect()
    };
    let old = run(3, 6, replica, update);
    let states: Vec<_> = old.iter().map(|old| old.encoder().scope_states()).collect();
    let expected = old[0].encoder().merge_scopes(&states).expect("of one run");
    let bytes: Vec<Vec<u8>> = old.iter().map(|replica| saved(replica)).collect();
    for rank in 0..2 {
        let mut new = replica();
        merge(&mut new, &bytes, rank, 2).expect("states of one run");
        assert_eq!(new.encoder().scope_states(), expected);
    }
}

/// A small exchange that has something of everything.
fn small() -> Exchange {
    let replica = Replica::join().expect("joins alone");
    let mut exchange = Exchange::builder(12)
        .name("small")
        .ranges([
            NamedRange::compressed("a", 7),
            NamedRange::compressed("b", 3).with_policy(TargetDensity::dl4j()),
            NamedRange::dense("c", 2, Dense::Bf16),
        ])
        .policy(Adaptive::dl4j())
        .momentum(MomentumMemory::new(0.5).expect("a memory"))
        .build(&replica)
        .expect("alone");
    let mut parameters = [0.0; 12];
    for step in 0..2 {
        exchange
            .step(Some(&update(3, step, 12)), &mut parameters)
            .expect("steps");
    }
    exchange
}

#[test]
fn every_damaged_byte_is_refused_and_changes_nothing() {
    let good = saved(&small());
    let mut exchange = small();
    exchange
        .step(Some(&update(3, 2, 12)), &mut [0.0; 12])
        .expect("steps");
    let before = saved(&exchange);
    assert_ne!(good, before);
    let mut refused = |bytes: &[u8]| {
        let error = exchange.load(&mut &*bytes).expect_err("it is damaged");
        assert!(saved(&exchange) == before, "{error}");
        // Nor as one of several.
        let old = [good.clone(), bytes.to_vec(), good.clone()];
        merge(&mut exchange, &old, 0, 2).expect_err("it is damaged");
        merge(&mut exchange, &old, 1, 3).expect_err("it is damaged");
        assert!(saved(&exchange) == before, "{error}");
        error
    };
    for at in 0..good.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = good.clone();
            damaged[at] ^= change;
            refused(&damaged);
        }
    }
    for end in 0..good.len() {
        let error = refused(&good[..end]);
        assert!(matches!(error, StateError::Short { .. }), "{error}");
    }
    let mut long = good.clone();
    long.push(0);
    assert!(matches!(refused(&long), StateError::Long { .. }));
    assert!(matches!(refused(&[b'x'; 200]), StateError::Magic { .. }));
    exchange.load(&mut &good[..]).expect("it is whole");
    assert!(saved(&exchange) == good);
}

#[test]
fn bytes_that_are_right_but_for_one_number_are_refused() {
    let mut exchange = small();
    let before = saved(&exchange);
    let body = before.len() - 4;
    // The vectors are the last thing before the checksum.
    let (velocity, residual) = (body - 4 * 12, body - 8 * 12);
    let mut load = |at: usize, bytes: &[u8]| {
        let mut forged = before.clone();
        forged[at..at + bytes.len()].copy_from_slice(bytes);
        let crc = crc32c::crc32c(&forged[..body]);
        forged[body..].copy_from_slice(&crc.to_le_bytes());
        let result = exchange.load(&mut &forged[..]);
        assert_eq!(result.is_err(), saved(&exchange) == before);
        result
    };
    for (start, what) in [
        (residual, "element of the residual"),
        (velocity, "element of the velocity"),
    ] {
        for wrong in [f32::NAN, f32::INFINITY, -0.0, 1e-40, -1e-45] {
            let error = load(start + 4 * 5, &wrong.to_le_bytes()).expect_err("no such number");
            assert!(
                matches!(error, StateError::Number { what: of, at: 5, .. } if of == what),
                "{error}"
            );
        }
    }
    // Behind the magic, the version, the kind, the name, the length, the ranges and the flag.
    let head = 8 + 4 + (4 + 8) + (4 + 5) + 8;
    let text = |at: usize| {
        let length = u32::from_le_bytes(before[at..at + 4].try_into().expect("four bytes"));
        at + 4 + length as usize
    };
    let steps = text(text(text(head + 4))) + 1;
    assert_eq!(before[steps..steps + 8], 2_u64.to_le_bytes());
    let error = load(steps, &(1_u64 << 63).to_le_bytes()).expect_err("too many steps");
    assert!(matches!(error, StateError::Differs { .. }), "{error}");
    let version = load(8, &2_u32.to_le_bytes()).expect_err("a later version");
    assert!(
        matches!(
            version,
            StateError::Version {
                expected: 1,
                found: 2,
                ..
            }
        ),
        "{version}"
    );
    // A policy's numbers: of the first threshold, behind its kind and their number.
    let numbers = text(steps + 8 + 1 + 4) + 4;
    let error = load(numbers, &0.5_f64.to_le_bytes()).expect_err("no mode");
    assert!(matches!(error, StateError::Scopes { .. }), "{error}");
    load(steps, &7_u64.to_le_bytes()).expect("another number of steps");
}

#[test]
fn a_state_of_another_exchange_is_refused_with_what_differs() {
    let replica = || Replica::join().expect("joins alone");
    let build = |builder: gradring::exchange::Builder| builder.build(&replica()).expect("alone");
    let builder = || Exchange::builder(10).name("one");
    let good = saved(&build(builder()));
    let others = [
        (builder().name("two"), "name of the exchange"),
        (builder().name("o"), "name of the exchange"),
        (Exchange::builder(11).name("one"), "elements"),
        (
            builder().ranges([
                NamedRange::compressed("a", 4),
                NamedRange::compressed("b", 6),
            ]),
            "number of ranges",
        ),
        (
            builder().ranges([NamedRange::dense("one", 10, Dense::F32)]),
            "a range",
        ),
        (
            builder().momentum(MomentumMemory::new(0.9).expect("a memory")),
            "whether there is a velocity",
        ),
        (builder().policy(Adaptive::dl4j()), "policy"),
    ];
    for (other, differs) in others {
        let mut other = build(other);
        let before = saved(&other);
        let error = other.load(&mut &good[..]).expect_err("another one");
        assert!(
            matches!(&error, StateError::Differs { what, .. } if what == differs),
            "{error}"
        );
        assert!(saved(&other) == before);
    }
    // One that says the same in more words is the same.
    let mut same = build(
        builder()
            .ranges([NamedRange::compressed("one", 10)])
            .threads(2),
    );
    same.load(&mut &good[..]).expect("the same");
    assert_eq!((State::name(&same), same.whose()), ("one", Whose::Replica));
}

#[test]
fn an_exchange_without_compression_keeps_its_steps_and_its_hash() {
    let make = || {
        let replica = Replica::join().expect("joins alone");
        let builder = Exchange::builder(6).uncompressed(Dense::F32).check_every(3);
        builder.build(&replica).expect("alone")
    };
    let mut exchange = make();
    let mut parameters = [0.0_f32; 6];
    for _ in 0..3 {
        exchange
            .step(Some(&[0.5; 6]), &mut parameters)
            .expect("steps");
    }
    let bytes = saved(&exchange);
    assert!(bytes.len() < 150, "{} bytes", bytes.len());
    let mut again = make();
    again.load(&mut &bytes[..]).expect("its own");
    assert_eq!(again.steps(), 3);
    assert!(saved(&again) == bytes);
    let old = [bytes.clone(), bytes.clone()];
    let mut merged = make();
    merge(&mut merged, &old, 0, 1).expect("of one moment");
    assert!(saved(&merged) == bytes);
    for range in [
        NamedRange::dense("model", 6, Dense::F32),
        NamedRange::compressed("model", 6),
    ] {
        let replica = Replica::join().expect("joins alone");
        let other = Exchange::builder(6).ranges([range]).build(&replica);
        let mut other = other.expect("alone");
        let error = other.load(&mut &bytes[..]).expect_err("it compresses");
        assert!(matches!(error, StateError::Differs { .. }), "{error}");
        let error = again
            .load(&mut &saved(&other)[..])
            .expect_err("it does not compress");
        assert!(matches!(error, StateError::Differs { .. }), "{error}");
    }
}

#[test]
fn states_of_different_moments_are_not_merged() {
    let updates = |_: usize| vec![0.25; 8];
    let mut two = run(2, 2, || alone(8, None), updates);
    let three = run(1, 3, || alone(8, None), updates);
    let mut new = alone(8, None);
    let before = saved(&new);
    let mut refused = |old: &[Vec<u8>], rank: usize, world_size: usize| {
        let error = merge(&mut new, old, rank, world_size).expect_err("not of one moment");
        assert!(saved(&new) == before);
        error
    };
    let old = [saved(&two[0]), saved(&two[1]), saved(&three[0])];
    let error = refused(&old, 0, 2);
    assert!(
        matches!(&error, StateError::Differs { what, .. } if what == "number of steps of rank 2"),
        "{error}"
    );
    assert!(matches!(
        refused(&old[..2], 3, 3),
        StateError::Rank {
            expected: 3,
            found: 3,
            ..
        }
    ));
    assert!(matches!(refused(&[], 0, 3), StateError::Rank { .. }));
    // The hashes of the parameters: of a step that is checked.
    let mut parameters = vec![vec![0.0_f32; 8]; 2];
    parameters[1][0] = 1.0;
    let first: Vec<Vec<u8>> = (0..2)
        .map(|rank| {
            two[rank] = alone(8, None);
            two[rank]
                .step(Some(&[0.25; 8]), &mut parameters[rank])
                .expect("steps");
            saved(&two[rank])
        })
        .collect();
    let error = refused(&first, 0, 1);
    assert!(
        matches!(&error, StateError::Differs { what, .. } if what.starts_with("hash of the parameters")),
        "{error}"
    );
}

#[test]
fn residuals_whose_sum_is_infinite_are_refused() {
    // The largest threshold that there is leaves most of this in the residual.
    let huge = |_: usize| vec![f32::MAX; 3];
    let old: Vec<Vec<u8>> = run(2, 1, || alone(3, None), huge)
        .iter()
        .map(|replica| saved(replica))
        .collect();
    let mut new = alone(3, None);
    let before = saved(&new);
    let error = merge(&mut new, &old, 0, 1).expect_err("it is no number");
    assert!(
        matches!(
            error,
            StateError::Number {
                what: "sum of residuals",
                at: 0,
                ..
            }
        ),
        "{error}"
    );
    assert!(saved(&new) == before);
}

#[test]
fn a_residual_that_a_trainer_writes_is_saved_as_the_next_step_finds_it() {
    let mut exchange = alone(4, None);
    exchange
        .residual_mut()
        .copy_from_slice(&[0.5, -0.0, 1e-40, -0.25]);
    let bytes = saved(&exchange);
    let mut again = alone(4, None);
    again.load(&mut &bytes[..]).expect("its own");
    assert_eq!(bits(again.residual()), bits(&[0.5, 0.0, 0.0, -0.25]));
    exchange.residual_mut()[2] = f32::INFINITY;
    let error = exchange.save(&mut Vec::new()).expect_err("no number");
    assert!(matches!(error, StateError::Number { at: 2, .. }), "{error}");
    // The next step says so too, and then it can be saved.
    let mut parameters = [0.0; 4];
    let error = exchange
        .step(Some(&gradring::InResidual), &mut parameters)
        .expect_err("not finite");
    assert!(matches!(error, Error::NonFinite { .. }), "{error}");
    saved(&exchange);
}

#[test]
fn files_that_fail_say_so() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    /// A file one byte at a time, which is interrupted, and fails at its end.
    struct Broken<'a>(&'a [u8], bool);
    impl Read for Broken<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            match self.0.split_first() {
                None => Err(std::io::ErrorKind::TimedOut.into()),
                Some((first, rest)) => {
                    self.0 = rest;
                    out[0] = *first;
                    Ok(1)
                }
            }
        }
    }
    let mut exchange = small();
    let error = exchange.save(&mut Full).expect_err("no room");
    assert!(matches!(error, StateError::Io { .. }), "{error}");
    let bytes = saved(&exchange);
    let mut broken = Broken(&bytes, false);
    let error = exchange.load(&mut broken).expect_err("no end");
    assert!(matches!(error, StateError::Io { .. }), "{error}");
    let mut whole = Broken(&bytes, false).chain(&[][..]);
    let _ = exchange.load(&mut whole);
    assert!(saved(&exchange) == bytes);
}
