//! The asynchronous schedule with real processes: nothing is lost, nobody is held up by a slow replica within the lag
//! allowed, and all are identical after a settle.
//!
//! Updates are multiples of 2^-11 and the unit is 2^-7, so that every sum in here is exact whatever its order.

mod world;

use gradring::codec::{BLOCK, cut8};
use gradring::shm::layout::{DEFAULT_RING_CAPACITY, MIN_RING_CAPACITY};
use gradring::shm::life::{Life, look};
use gradring::shm::ring::{Consumer, Producer};
use gradring::{
    Asynchronous, Dense, EpochEnd, Error, Exchange, Fixed, Flags, NamedRange, Reduction, Replica,
    op, parameter_hash,
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use world::{Ended, PATIENCE, Setup, World, tell};

const PART: usize = 20_000;
const PARTS: usize = 12;
const LENGTH: usize = PART * PARTS;

/// Chunks of every kind, all small, so that a ring holds several steps.
fn ranges() -> Vec<NamedRange> {
    (0..PARTS)
        .map(|part| match part {
            3 => NamedRange::dense("bias", PART, Dense::F32),
            5 => NamedRange::dense("norm", PART, Dense::Bf16),
            _ => NamedRange::compressed(format!("layer {part}"), PART),
        })
        .collect()
}

/// A number that depends on nothing but its arguments.
fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF0;
    x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

/// A dyadic update.
fn update(rank: usize, step: usize) -> Vec<f32> {
    let start = random((rank as u64) << 32 | step as u64);
    let mut x = start | 1;
    let mut number = || {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((x >> 33) % 25) as f32 - 12.0
    };
    (0..LENGTH).map(|_| number() / 2048.0).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The exchange that the environment asks for.
fn build(replica: &Replica) -> Result<Exchange, Error> {
    let mean = number("MEAN").is_some();
    Exchange::builder(LENGTH)
        .ranges(ranges())
        .policy(Fixed::new(0.0078125).expect("a threshold"))
        .reduction(if mean {
            Reduction::Mean
        } else {
            Reduction::Sum
        })
        .asynchronous(Asynchronous {
            max_lag: number("MAX_LAG").unwrap_or(8),
            settle_every: number("SETTLE_EVERY").unwrap_or(10),
        })
        .build(replica)
}

fn start() -> Vec<f32> {
    (0..LENGTH).map(|i| (i % 64) as f32 / 64.0).collect()
}

/// What all residuals and all updates add up to is what was applied, element by element, to the last bit.
fn conserves(replica: &Replica, exchange: &Exchange, given: &[f32], parameters: &[f32]) {
    let scale = if number("MEAN").is_some() {
        1.0 / replica.world_size() as f32
    } else {
        1.0
    };
    let sent: Vec<f32> = given
        .iter()
        .zip(exchange.residual())
        .map(|(given, residual)| given - residual)
        .collect();
    let all = replica
        .all_gather(bytemuck::cast_slice(&sent))
        .expect("settled");
    let mut sum = vec![0.0_f32; LENGTH];
    for part in all {
        for (sum, bytes) in sum.iter_mut().zip(part.as_chunks::<4>().0) {
            *sum += f32::from_le_bytes(*bytes);
        }
    }
    for (i, (start, sum)) in start().iter().zip(&sum).enumerate() {
        assert_eq!(start - sum * scale, parameters[i], "element {i}");
    }
    assert!(sum.iter().any(|sum| *sum != 0.0), "something was sent");
}

/// How all went, over a replica's run.
#[derive(Default)]
struct Seen {
    accumulated: u64,
    lag: u64,
    waits: u64,
    records: u64,
    bytes: u64,
    settles: u64,
}

impl Seen {
    fn note(&mut self, report: &gradring::Report) {
        self.accumulated += report.accumulated_chunks;
        self.lag = self.lag.max(report.lag);
        self.waits += report.lag_waits;
        self.records += report.applied_records;
        self.bytes += report.bytes;
        self.settles += u64::from(report.settled.is_some());
    }

    fn tell(&self) {
        tell(format!("accumulated {}", self.accumulated));
        tell(format!("lag {}", self.lag));
        tell(format!("waits {}", self.waits));
        tell(format!("records {}", self.records));
        tell(format!("settles {}", self.settles));
    }
}

fn add(given: &mut [f32], update: &[f32]) {
    for (given, u) in given.iter_mut().zip(update) {
        *given += u;
    }
}

/// A whole epoch: steps at this rank's own speed, the end, and the balance.
fn epoch(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = build(replica).expect("agreed");
    let mut parameters = if rank == 0 {
        start()
    } else {
        vec![0.0; LENGTH]
    };
    exchange.start(&mut parameters).expect("starts");
    let mut given = vec![0.0; LENGTH];
    let mut seen = Seen::default();
    let steps = number("STEPS").unwrap_or(35) + number("UNEVEN").unwrap_or(0) * rank as u64;
    tell("running");
    for step in 0..steps as usize {
        if number("SLOW") == Some(rank as u64) {
            let most = number("DELAY").unwrap_or(5000);
            std::thread::sleep(Duration::from_micros(random(step as u64) % most));
        }
        let update = update(rank, step);
        add(&mut given, &update);
        let report = exchange
            .step(Some(&update), &mut parameters)
            .expect("steps");
        assert!(!report.epoch_ended());
        assert_eq!(report.step, step as u64);
        if let Some(settled) = &report.settled {
            assert_eq!(settled.largest_difference, 0.0, "every sum is exact");
            assert!(!settled.all_done);
            assert_eq!(settled.steps, number("SETTLE_EVERY").unwrap_or(10));
        }
        seen.note(&report);
    }
    assert_eq!(
        exchange.finish_epoch(&mut parameters).expect("ends"),
        EpochEnd::Ended
    );
    exchange.check(&mut parameters).expect("identical");
    conserves(replica, &exchange, &given, &parameters);
    seen.tell();
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

/// Steps until the run is over.
fn until_error(replica: &Replica) -> Error {
    let mut exchange = match build(replica) {
        Ok(exchange) => exchange,
        Err(error) => return error,
    };
    let mut parameters = vec![0.0; LENGTH];
    let updates = [update(replica.rank(), 0), update(replica.rank(), 1)];
    tell("running");
    for step in 0.. {
        match exchange.step(Some(&updates[step % 2]), &mut parameters) {
            Ok(_) => {}
            Err(error) => {
                assert!(error.ends_the_run(), "{error}");
                assert!(replica.barrier().is_err(), "the run is over");
                return error;
            }
        }
    }
    unreachable!("it steps for ever")
}

fn report(error: &Error) {
    match error {
        Error::ReplicaDied { rank, .. } => tell(format!("error died {rank}")),
        Error::ReplicaLeft { rank, .. } => tell(format!("error left {rank}")),
        Error::TimedOut { rank, .. } => tell(format!("error timed out {rank}")),
        other => tell(format!("error {other}")),
    }
}

fn is_unsettled<T: std::fmt::Debug>(result: Result<T, Error>, by: usize) {
    match result {
        Err(error @ Error::Unsettled { rank, .. }) if rank == by => {
            assert!(!error.ends_the_run());
        }
        other => panic!("expected an error that names rank {by} as unsettled, found {other:?}"),
    }
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let rank = replica.rank();
    match case.as_str() {
        "epoch" => epoch(&replica),
        "until error" => report(&until_error(&replica)),
        "several epochs" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            exchange.start(&mut parameters).expect("starts");
            let mut given = vec![0.0; LENGTH];
            for epoch in 0..4 {
                // One has no data in some epochs, none has any in the last.
                let steps = [5 + 9 * rank, 23, 3 * rank, 0][epoch];
                for step in 0..steps {
                    let update = update(rank, 100 * epoch + step);
                    add(&mut given, &update);
                    exchange
                        .step(Some(&update), &mut parameters)
                        .expect("steps");
                }
                let ended = exchange.finish_epoch(&mut parameters).expect("ends");
                assert_eq!(ended, EpochEnd::Ended);
                // Between epochs everything works.
                replica.broadcast(0, &mut [0.5; 10]).expect("settled");
                exchange.check(&mut parameters).expect("identical");
            }
            conserves(&replica, &exchange, &given, &parameters);
            tell(format!("parameters {:016x}", parameter_hash(&parameters)));
        }
        "none without data" => {
            // All make the same number of iterations, some without data: steps without data count for settles.
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            let mut given = vec![0.0; LENGTH];
            let mut settles = 0;
            for step in 0..25 {
                let update = update(rank, step);
                let gives = !(step + rank).is_multiple_of(3);
                if gives {
                    add(&mut given, &update);
                }
                let update = gives.then_some(&update);
                let report = exchange
                    .step(update.map(|update| update as _), &mut parameters)
                    .expect("steps");
                assert_eq!(report.bytes > 0, gives);
                settles += u64::from(report.settled.is_some());
            }
            assert_eq!(settles, 2);
            let settled = exchange.settle(&mut parameters).expect("settles");
            assert_eq!((settled.settle, settled.steps), (2, 5));
            conserves(&replica, &exchange, &given, &parameters);
            tell(format!("parameters {:016x}", parameter_hash(&parameters)));
        }
        "stops" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            let update = update(rank, 0);
            let mut waits = 0;
            tell("running");
            for step in 0..20 {
                if rank == 1 && step == 3 {
                    nix::sys::signal::raise(Signal::SIGSTOP).expect("stops");
                }
                let report = exchange
                    .step(Some(&update), &mut parameters)
                    .expect("steps");
                waits += report.lag_waits;
                assert!(report.lag <= 5);
            }
            exchange.settle(&mut parameters).expect("settles");
            tell(format!("waits {waits}"));
        }
        "leaves" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            let own = update(rank, 0);
            exchange.step(Some(&own), &mut parameters).expect("steps");
            exchange.finish_epoch(&mut parameters).expect("ends");
            if rank == 2 {
                tell("left");
                return;
            }
            let mut seen = Seen::default();
            // The ring of the one that has left filled up long ago, if its cursor still counted.
            for _ in 0..200 {
                let report = exchange.step(Some(&own), &mut parameters).expect("steps");
                seen.note(&report);
            }
            assert!(seen.bytes > 5 * DEFAULT_RING_CAPACITY as u64);
            // Both have stepped before one of them finds that the settle has nobody to wait for.
            nix::sys::signal::raise(Signal::SIGSTOP).expect("stops");
            // Of two that are never more than 2 steps apart none ever finds its ring full.
            assert_eq!(seen.accumulated, 0);
            assert!(seen.records > 0);
            let error = exchange.settle(&mut parameters).expect_err("it has left");
            report(&error);
        }
        "leaves unsettled" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            let own = update(rank, 0);
            if rank == 2 {
                exchange.step(Some(&own), &mut parameters).expect("steps");
                return;
            }
            report(&until_settle_fails(&mut exchange, &own, &mut parameters));
        }
        "unsettled" => unsettled(&replica),
        "one has not stepped" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            if rank == 0 {
                let own = update(rank, 0);
                exchange.step(Some(&own), &mut parameters).expect("steps");
            }
            replica.barrier().expect("allowed");
            is_unsettled(replica.broadcast(0, &mut parameters), 0);
            // Only who has not stepped brings a long part: the same error on both all the same.
            let part = vec![7; if rank == 1 { 5000 } else { 5 }];
            is_unsettled(replica.all_gather(&part), 0);
            is_unsettled(exchange.check(&mut parameters), 0);
            assert_eq!(
                replica.all_gather(&[rank as u8]).expect("short"),
                [[0], [1]]
            );
            exchange.settle(&mut parameters).expect("settles");
            replica.broadcast(0, &mut parameters).expect("settled");
            exchange.check(&mut parameters).expect("identical");
            tell("done");
        }
        "a step during a broadcast" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            replica.barrier().expect("all come");
            if rank == 0 {
                // Rank 1 is inside a broadcast by now, which this rank never comes for.
                std::thread::sleep(Duration::from_millis(30));
                let own = update(rank, 0);
                exchange.step(Some(&own), &mut parameters).expect("steps");
                is_unsettled(replica.broadcast(1, &mut parameters), 0);
                let error = exchange
                    .settle(&mut parameters)
                    .expect_err("rank 1 is elsewhere");
                assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            } else {
                let error = replica
                    .broadcast(1, &mut parameters)
                    .expect_err("unsettled");
                assert!(
                    matches!(error, Error::Mismatch { .. } | Error::Unsettled { .. }),
                    "{error}"
                );
            }
            tell("done");
        }
        "disagreement" => {
            let settings = |max_lag, settle_every| Asynchronous {
                max_lag,
                settle_every,
            };
            let fields = [
                ("schedule", [None, Some(settings(8, 64))]),
                ("max_lag", [Some(settings(8, 64)), Some(settings(9, 64))]),
                (
                    "settle_every",
                    [Some(settings(8, 64)), Some(settings(8, 65))],
                ),
            ];
            for (expected, schedules) in fields {
                let mut builder = Exchange::builder(100);
                if let Some(settings) = schedules[rank] {
                    builder = builder.asynchronous(settings);
                }
                match builder.build(&replica) {
                    Err(Error::Disagreement { field, values, .. }) => {
                        assert_eq!(field, expected);
                        assert_eq!(values.len(), 2);
                    }
                    other => panic!("expected a disagreement, found {other:?}"),
                }
            }
            for settings in [settings(0, 64), settings(8, 0)] {
                let result = Exchange::builder(100)
                    .asynchronous(settings)
                    .build(&replica);
                assert!(matches!(result, Err(Error::Invalid { .. })), "local");
            }
            build(&replica).expect("the run goes on");
            tell("done");
        }
        "flags" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            let own = update(rank, 0);
            if rank == 0 {
                // It has no data, and waits for the others' settles.
                let ended = exchange.finish_epoch(&mut parameters).expect("ends");
                assert_eq!(ended, EpochEnd::Interrupted(Flags::CHECKPOINT));
                assert_eq!(replica.agreed(), Flags::CHECKPOINT);
                // A checkpoint, say.
                replica.barrier().expect("all come");
                let ended = exchange.finish_epoch(&mut parameters).expect("ends");
                assert_eq!(ended, EpochEnd::Ended);
                tell("done");
                return;
            }
            for step in 0..25 {
                if rank == 1 && step == 13 {
                    replica.raise(Flags::CHECKPOINT);
                }
                let before = replica.agreed();
                let report = exchange.step(Some(&own), &mut parameters).expect("steps");
                let after = replica.agreed();
                if after != before {
                    assert_eq!((step, after), (19, Flags::CHECKPOINT), "at a settle only");
                    assert_eq!(
                        report.settled.map(|settled| settled.flags),
                        Some(Flags::CHECKPOINT)
                    );
                    replica.barrier().expect("all come");
                }
            }
            let ended = exchange.finish_epoch(&mut parameters).expect("ends");
            assert_eq!(ended, EpochEnd::Ended);
            tell("done");
        }
        "not finite" => {
            let mut exchange = build(&replica).expect("agreed");
            let mut parameters = start();
            let mut own = update(rank, 0);
            if rank > 0 {
                own[7] = f32::NAN;
                own[PART * 3] = f32::INFINITY;
            }
            for _ in 0..3 {
                exchange
                    .step(Some(&own), &mut parameters)
                    .expect("told at the settle");
            }
            match exchange.settle(&mut parameters) {
                Err(Error::NonFinite { first, total }) => assert_eq!((first, total), ((1, 6), 12)),
                other => panic!("expected elements that were not finite, found {other:?}"),
            }
            assert!(parameters.iter().all(|parameter| parameter.is_finite()));
            exchange.settle(&mut parameters).expect("and only once");
            tell("done");
        }
        "stopped" => {
            // Rank 1 stops behind its step, rank 0 in front of its own.
            let mut exchange = small(&replica);
            let mut parameters = vec![0.0; 1000];
            if rank == 0 {
                tell("made");
                nix::sys::signal::raise(Signal::SIGSTOP).expect("stops");
            }
            let result = exchange
                .step(Some(&vec![0.5_f32; 1000]), &mut parameters)
                .map(drop);
            if rank == 1 {
                assert!(result.is_ok(), "{result:?}");
                tell("made");
                nix::sys::signal::raise(Signal::SIGSTOP).expect("stops");
            }
            match result.and_then(|()| exchange.settle(&mut parameters).map(drop)) {
                Err(Error::Protocol { rank, what }) => {
                    tell(format!("what {what}"));
                    tell(format!("error protocol {rank}"));
                }
                other => tell(format!("error {other:?}")),
            }
        }
        "little room" => {
            const BLOCKS: usize = 20;
            let ranges = (0..BLOCKS)
                .map(|block| NamedRange::dense(format!("block {block}"), BLOCK, Dense::F32));
            let mut exchange = Exchange::builder(BLOCKS * BLOCK)
                .ranges(ranges)
                .asynchronous(Asynchronous::default())
                .build(&replica)
                .expect("agreed");
            let mut parameters = vec![0.0; BLOCKS * BLOCK];
            let update = vec![1.0_f32; BLOCKS * BLOCK];
            // One steps, then the other takes what there was room for: three records of a block.
            for _ in 0..7 {
                if rank == 0 {
                    let report = exchange
                        .step(Some(&update), &mut parameters)
                        .expect("steps");
                    assert_eq!(report.accumulated_chunks, BLOCKS as u64 - 3);
                }
                replica.barrier().expect("all come");
                if rank == 1 {
                    let report = exchange.step(None, &mut parameters).expect("steps");
                    assert_eq!(report.applied_records, 3);
                }
                replica.barrier().expect("all come");
            }
            for (block, parameters) in parameters.chunks(BLOCK).enumerate() {
                assert!(
                    parameters[0] < 0.0,
                    "block {block} had no turn in seven steps"
                );
            }
            exchange.settle(&mut parameters).expect("settles");
            tell("done");
        }
        "rounding" => {
            // Sums that are not exact: replicas differ before a settle by roundings, and not after it.
            let threshold = cut8(0.0078125 + 0.001 * rank as f32);
            let mut exchange = Exchange::builder(1000)
                .policy(Fixed::new(threshold).expect("a threshold"))
                .asynchronous(Asynchronous {
                    max_lag: 8,
                    settle_every: 16,
                })
                .build(&replica)
                .expect("agreed");
            let mut parameters = vec![1.0 / 3.0; 1000];
            let mut largest = 0.0_f32;
            for step in 0..64 {
                let update: Vec<f32> = (0..1000)
                    .map(|i| {
                        (random((rank * 64 + step) as u64 * 1000 + i) % 1000) as f32 / 30_000.0
                    })
                    .collect();
                let report = exchange
                    .step(Some(&update), &mut parameters)
                    .expect("steps");
                if let Some(settled) = report.settled {
                    largest = largest.max(settled.largest_difference);
                }
            }
            exchange
                .check(&mut parameters)
                .expect("identical after a settle");
            assert!(
                0.0 < largest && largest < 1e-4,
                "roundings, and nothing else: {largest}"
            );
            tell(format!("largest {largest}"));
            tell(format!("parameters {:016x}", parameter_hash(&parameters)));
        }
        other => panic!("no case {other}"),
    }
}

/// One chunk of each kind.
fn small(replica: &Replica) -> Exchange {
    let ranges = [
        NamedRange::compressed("weights", 990),
        NamedRange::dense("bias", 10, Dense::F32),
    ];
    Exchange::builder(1000)
        .ranges(ranges)
        .policy(Fixed::new(0.25).expect("a threshold"))
        .asynchronous(Asynchronous::default())
        .build(replica)
        .expect("agreed")
}

fn until_settle_fails(exchange: &mut Exchange, own: &[f32], parameters: &mut [f32]) -> Error {
    loop {
        if let Err(error) = exchange.step(Some(&own), parameters) {
            return error;
        }
    }
}

fn unsettled(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = build(replica).expect("agreed");
    let mut other = build(replica).expect("agreed");
    let mut lockstep = Exchange::builder(LENGTH).build(replica).expect("agreed");
    let mut parameters = start();
    exchange.start(&mut parameters).expect("nothing to settle");
    let own = update(rank, 0);
    exchange.step(Some(&own), &mut parameters).expect("steps");

    is_unsettled(replica.broadcast(0, &mut parameters), rank);
    is_unsettled(exchange.start(&mut parameters), rank);
    is_unsettled(lockstep.step(Some(&own), &mut parameters), rank);
    is_unsettled(lockstep.step(None, &mut parameters), rank);
    is_unsettled(lockstep.all_reduce(Some(&own), &mut parameters), rank);
    is_unsettled(other.step(Some(&own), &mut parameters), rank);
    is_unsettled(other.settle(&mut parameters), rank);
    // Agreed, and so the same on all.
    is_unsettled(exchange.check(&mut parameters), 0);
    is_unsettled(replica.all_gather(&[1; 5000]), 0);
    is_unsettled(replica.all_reduce(&mut [1.0_f64; 1000], op::Sum), 0);

    // What does not need the rings goes on.
    replica.barrier().expect("allowed");
    let ticket = replica.arrive().expect("allowed");
    exchange.step(Some(&own), &mut parameters).expect("between");
    ticket.wait().expect("all come");
    let mut sum = [1_u64];
    replica.all_reduce(&mut sum, op::Sum).expect("allowed");
    assert_eq!(sum, [replica.world_size() as u64]);

    assert!(matches!(
        lockstep.settle(&mut parameters),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        exchange.all_reduce(Some(&own), &mut parameters),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        exchange.step(Some(&own), &mut [0.0; 3]),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        exchange.settle(&mut [0.0; 3]),
        Err(Error::Length { .. })
    ));

    let settled = exchange.settle(&mut parameters).expect("settles");
    assert_eq!(settled.steps, 2);
    exchange.check(&mut parameters).expect("identical");
    replica.broadcast(0, &mut parameters).expect("settled");
    replica.all_gather(&[1; 5000]).expect("settled");
    lockstep.step(Some(&own), &mut parameters).expect("settled");
    other.step(Some(&own), &mut parameters).expect("settled");
    is_unsettled(exchange.step(Some(&own), &mut parameters), rank);
    other.settle(&mut parameters).expect("settles");
    exchange.step(Some(&own), &mut parameters).expect("settled");
    exchange.settle(&mut parameters).expect("settles");
    tell("done");
}

fn setup(environment: &[(&str, u64)]) -> Setup {
    Setup {
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_string()))
            .collect(),
        ..Setup::default()
    }
}

fn on_cores(cores: usize, setup: Setup) -> Setup {
    let list = if cores == 1 { "0" } else { "0,1" };
    Setup {
        wrapper: ["taskset", "-c", list].map(str::to_owned).to_vec(),
        cores,
        ..setup
    }
}

fn all_say_the_same(ended: &[Ended]) {
    let hashes: Vec<&str> = ended
        .iter()
        .map(|replica| replica.one("parameters"))
        .collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

fn count(replica: &Ended, what: &str) -> u64 {
    replica.one(what).parse().expect("a count")
}

#[test]
fn one_to_eight_replicas_lose_nothing_and_are_identical_after_an_epoch() {
    for (world_size, cores) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (8, 2), (8, 1)] {
        let ended = World::with("epoch", world_size, &on_cores(cores, setup(&[]))).succeed();
        all_say_the_same(&ended);
        for replica in &ended {
            assert_eq!(count(replica, "settles"), 3);
            assert!(count(replica, "lag") <= 8);
        }
    }
}

#[test]
fn a_mean_divides_by_the_world_size() {
    for world_size in [2, 4] {
        let ended = World::with("epoch", world_size, &setup(&[("MEAN", 1)])).succeed();
        all_say_the_same(&ended);
    }
}

#[test]
fn uneven_ends_are_waited_for() {
    // Rank r has 11 r steps more than rank 0, and so a settle more at least.
    let environment = [("UNEVEN", 11), ("STEPS", 5)];
    let ended = World::with("epoch", 4, &setup(&environment)).succeed();
    all_say_the_same(&ended);
    for (rank, replica) in ended.iter().enumerate() {
        assert_eq!(count(replica, "settles"), (5 + 11 * rank as u64) / 10);
    }
}

#[test]
fn several_epochs_follow_each_other() {
    for world_size in [1, 3] {
        all_say_the_same(&World::start("several epochs", world_size).succeed());
    }
}

#[test]
fn steps_without_data_count_for_settles() {
    for world_size in [1, 2, 5] {
        all_say_the_same(&World::start("none without data", world_size).succeed());
    }
}

#[test]
fn a_replica_delayed_at_random_loses_nothing_and_is_waited_for_at_max_lag_only() {
    let environment = [
        ("SLOW", 1),
        ("MAX_LAG", 3),
        ("SETTLE_EVERY", 12),
        ("DELAY", 20_000),
    ];
    let ended = World::with("epoch", 3, &setup(&environment)).succeed();
    all_say_the_same(&ended);
    assert!(ended.iter().all(|replica| count(replica, "lag") <= 3));
    assert!(count(&ended[0], "waits") > 0, "a bound that was reached");
}

#[test]
fn nobody_is_further_ahead_behind_a_settle_either() {
    // Eight on one core: whoever leaves a settle first has the core, and the others are still inside.
    let environment = [("MAX_LAG", 1), ("SETTLE_EVERY", 10), ("STEPS", 60)];
    let ended = World::with("epoch", 8, &on_cores(1, setup(&environment))).succeed();
    let lags: Vec<u64> = ended.iter().map(|replica| count(replica, "lag")).collect();
    assert!(lags.iter().all(|lag| *lag <= 1), "{lags:?}");
}

#[test]
fn a_full_ring_blocks_nobody_and_loses_nothing() {
    let environment = [
        ("SLOW", 1),
        ("MAX_LAG", 1000),
        ("SETTLE_EVERY", 1000),
        ("DELAY", 100_000),
        ("STEPS", 60),
    ];
    let setup = Setup {
        ring_capacity: MIN_RING_CAPACITY,
        ..setup(&environment)
    };
    let ended = World::with("epoch", 2, &setup).succeed();
    all_say_the_same(&ended);
    assert!(count(&ended[0], "accumulated") > 0, "its ring was full");
    assert_eq!(count(&ended[0], "waits"), 0);
    assert!(count(&ended[0], "lag") > 10, "it went on");
}

#[test]
fn chunks_take_turns_where_there_is_room_for_few() {
    let setup = Setup {
        ring_capacity: MIN_RING_CAPACITY,
        ..setup(&[])
    };
    for ended in World::with("little room", 2, &setup).succeed() {
        ended.one("done");
    }
}

#[test]
fn a_replica_stopped_and_continued_at_random_loses_nothing() {
    let environment = [("STEPS", 150), ("SETTLE_EVERY", 25)];
    let setup = Setup {
        ring_capacity: MIN_RING_CAPACITY,
        ..setup(&environment)
    };
    let mut world = World::with("epoch", 4, &setup);
    world.hear("running");
    for round in 0..20 {
        let victim = random(round) as usize % 4;
        world.replicas[victim].signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(random(round + 100) % 30));
        world.replicas[victim].signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(random(round + 200) % 10));
    }
    all_say_the_same(&world.succeed());
}

#[test]
fn nobody_waits_for_a_stopped_replica_before_max_lag() {
    let mut world = World::with("stops", 3, &setup(&[("MAX_LAG", 5), ("SETTLE_EVERY", 100)]));
    world.hear("running");
    world.replicas[1].wait_for_stop();
    let steps = |world: &World, rank: usize| world.segment.rank(rank).pace.get().steps;
    let end = Instant::now() + PATIENCE;
    while !(steps(&world, 0) == 8 && steps(&world, 2) == 8) {
        assert!(Instant::now() < end, "somebody waits too early");
        std::thread::yield_now();
    }
    // Nobody goes on from there.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!([0, 1, 2].map(|rank| steps(&world, rank)), [8, 3, 8]);
    world.replicas[1].signal(Signal::SIGCONT);
    let ended = world.succeed();
    assert!(count(&ended[0], "waits") > 0 && count(&ended[2], "waits") > 0);
}

#[test]
fn a_replica_that_stays_stopped_is_reported_at_the_deadline() {
    let setup = Setup {
        deadline: Duration::from_secs(1),
        ..setup(&[])
    };
    let mut world = World::with("until error", 3, &setup);
    world.hear("running");
    world.replicas[1].signal(Signal::SIGSTOP);
    for rank in [0, 2] {
        assert_eq!(world.replicas[rank].hear("error"), "error timed out 1");
    }
    world.replicas[1].signal(Signal::SIGCONT);
    assert_eq!(world.succeed()[1].one("error"), "timed out 1");
}

#[test]
fn a_killed_replica_is_reported_to_all_within_100_ms() {
    // Once in three is enough: the machine may be busy with something else.
    let mut quickest = [Duration::MAX; 2];
    for round in 0..6 {
        // Seen from the settles and the waits of those ahead, and from steps that wait for nothing.
        let never = [("MAX_LAG", 1_000_000), ("SETTLE_EVERY", 1_000_000)];
        let environment: &[_] = if round % 2 == 0 { &[] } else { &never };
        let mut world = World::with("until error", 4, &setup(environment));
        world.hear("running");
        std::thread::sleep(Duration::from_millis(random(round) % 20));
        let killed = Instant::now();
        world.replicas[1].signal(Signal::SIGKILL);
        for rank in [0, 2, 3] {
            assert_eq!(world.replicas[rank].hear("error"), "error died 1");
        }
        let quickest = &mut quickest[round as usize % 2];
        *quickest = killed.elapsed().min(*quickest);
        assert!(killed.elapsed() < Duration::from_secs(5));
    }
    println!("all had the error after the kill within {quickest:?}");
    assert!(
        quickest
            .iter()
            .all(|quickest| *quickest < Duration::from_millis(100)),
        "{quickest:?}"
    );
}

#[test]
fn a_death_at_any_point_of_a_step_or_settle_is_reported() {
    for point in ["frame-written", "tail-stored", "frame-read"] {
        for nth in [1, 30, 120, 241] {
            let mut setup = setup(&[("SETTLE_EVERY", 10)]);
            let crash = (
                "GRADRING_CRASH_POINT".to_owned(),
                format!("1 {point} {nth}"),
            );
            setup.environment.push(crash);
            let mut world = World::with("until error", 3, &setup);
            for rank in [0, 2] {
                let error = world.replicas[rank].hear("error");
                assert_eq!(error, "error died 1", "{point} {nth}");
            }
            assert_eq!(look(&world.segment.rank(1).life), Life::Dead);
        }
    }
}

#[test]
fn a_replica_that_left_after_its_epoch_holds_nobodys_ring() {
    let environment = [("MAX_LAG", 2), ("SETTLE_EVERY", 1_000_000)];
    let mut world = World::with("leaves", 3, &setup(&environment));
    world.replicas[2].hear("left");
    for rank in [0, 1] {
        world.replicas[rank].wait_for_stop();
    }
    for rank in [0, 1] {
        world.replicas[rank].signal(Signal::SIGCONT);
    }
    for rank in [0, 1] {
        assert_eq!(world.replicas[rank].hear("error"), "error left 2");
    }
    world.succeed();
}

#[test]
fn a_replica_that_left_unsettled_is_reported_at_the_next_settle() {
    let ended = World::start("leaves unsettled", 3).succeed();
    for replica in &ended[..2] {
        assert_eq!(replica.one("error"), "left 2");
    }
}

#[test]
fn what_must_wait_for_a_settle_is_refused_before_it() {
    for world_size in [1, 3] {
        for ended in World::with("unsettled", world_size, &setup(&[("SETTLE_EVERY", 64)])).succeed()
        {
            ended.one("done");
        }
    }
}

#[test]
fn a_rank_that_has_not_stepped_is_told_who_has() {
    for ended in World::start("one has not stepped", 2).succeed() {
        ended.one("done");
    }
}

#[test]
fn steps_during_another_operation_are_told_apart_from_it() {
    for ended in World::start("a step during a broadcast", 2).succeed() {
        ended.one("done");
    }
}

#[test]
fn schedules_that_differ_are_a_disagreement() {
    for ended in World::start("disagreement", 2).succeed() {
        ended.one("done");
    }
}

#[test]
fn flags_are_agreed_at_settles_only_and_interrupt_those_who_are_done() {
    for ended in World::start("flags", 3).succeed() {
        ended.one("done");
    }
}

#[test]
fn elements_that_are_not_finite_are_told_at_the_settle() {
    for ended in World::with("not finite", 3, &setup(&[("SETTLE_EVERY", 64)])).succeed() {
        ended.one("done");
    }
}

/// Rank 1's two records as it published them, and a third one that it did not write; what rank 0 says of it.
fn forged(change: impl FnOnce(&mut [u8; 64], &mut Vec<u8>)) -> String {
    let mut world = World::start("stopped", 2);
    for replica in &mut world.replicas {
        replica.hear("made");
        replica.wait_for_stop();
    }
    let ring = world.segment.ring(1);
    let mut reader = Consumer::at(0, 0);
    let first = ring.peek(&mut reader).expect("a good record");
    let first = first.expect("it is there");
    let mut payload = Vec::new();
    first.copy_payload(&mut payload);
    let mut header: [u8; 64] = bytemuck::cast(*first.header());
    change(&mut header, &mut payload);
    // Three units for 990 elements and their hits, less for 10 values; rank 0 is where rank 1's first record begins.
    let mut position = 0_u64;
    for length in [first.payload_len(), 40] {
        position += (64 + length as u64).next_multiple_of(64);
    }
    drop(first);
    let mut producer = Producer::at(position);
    // The ring fills in length and checksum, so that only what an exchange checks can be wrong.
    let mut grant = ring.reserve(&mut producer, payload.len()).expect("room");
    assert!(grant.write(0, &payload));
    grant.commit(bytemuck::cast(header));
    world.replicas[0].signal(Signal::SIGCONT);
    let error = world.replicas[0].hear("error");
    assert_eq!(error, "error protocol 1", "{:?}", world.replicas[0].heard);
    let heard = &world.replicas[0].heard;
    let what = heard.iter().find_map(|line| line.strip_prefix("what "));
    what.expect("told before").to_owned()
}

#[test]
fn a_record_that_no_replica_publishes_is_a_broken_protocol() {
    // Bytes of the header, and what they become.
    let fields: [(usize, &[u8]); 12] = [
        (4, &[0]),
        (4, &[0xff]),
        (7, &[77]),
        (7, &[3]),
        (8, &[9, 0]),
        (10, &[0, 0xff]),
        (14, &[1, 0]),
        (28, &[1, 0, 0, 0]),
        (36, &[2, 0, 0, 0]),
        (36, &[0xff; 4]),
        (40, &[1]),
        (52, &[0xff; 4]),
    ];
    for (at, bytes) in fields {
        let what = forged(|header, _| header[at..at + bytes.len()].copy_from_slice(bytes));
        assert!(!what.is_empty(), "byte {at}: {bytes:?}");
    }
    for kind in [1, 2, 3, 8, 99] {
        // Left for the settle, in which it has no place.
        let what = forged(|header, _| header[3] = kind);
        assert!(!what.is_empty(), "kind {kind}");
    }
    forged(|_, payload| payload.truncate(payload.len() - 1));
    forged(|_, payload| payload.clear());
    // The first record has all 990 elements as hits, in a bitmap: 11 is none.
    let what = forged(|_, payload| payload[0] = 0xff);
    assert!(what.contains("bitmap"), "{what}");
}

#[test]
fn roundings_differ_between_settles_and_are_told() {
    let ended = World::start("rounding", 3).succeed();
    all_say_the_same(&ended);
    let largest: Vec<&str> = ended.iter().map(|replica| replica.one("largest")).collect();
    assert!(
        largest.iter().all(|other| *other == largest[0]),
        "the same on all: {largest:?}"
    );
}
