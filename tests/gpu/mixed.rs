//! Replicas on a GPU among replicas on the processor.

use super::device::{all_reduce, step};
use super::world::tell;
use super::{Mode, all_alike, hash, mode_of, update};
use gradring::codec::CHUNK;
use gradring::exchange::external::{DEFAULT_LIMIT, ExternalUpdate, queue};
use gradring::exchange::{BackendChoice, BackendKind};
use gradring::{
    Adaptive, Asynchronous, Bypass, Clipping, Dense, EpochEnd, Error, Exchange, Fixed, NamedRange,
    Quantile, Reduction, Replica,
};

const LENGTH: usize = 40_000;
/// Of several chunks.
const LONG: usize = CHUNK + 20_003;

pub(crate) fn replica(case: &str, replica: &Replica) -> bool {
    let what = case.rsplit_once(' ').map_or(case, |(what, _)| what);
    let run: fn(&Replica, &str, &Mode) = match what {
        "steps" => steps,
        "chunks" => chunks,
        "sums" => sums,
        "external" => external,
        "bypass" | "whole" => bypass,
        "streamed" | "f32" | "bf16" => staged,
        "asynchronous" => asynchronous,
        "epochs" => epochs,
        "not finite" => not_finite,
        _ => return false,
    };
    let (what, mode) = mode_of(case, replica);
    run(replica, what, &mode);
    true
}

fn quantile(density: f64) -> Quantile {
    Quantile::new(density).expect("a density")
}

/// Compares what a report says of backends with what was asked for.
fn check_backend(exchange: &Exchange, mode: &Mode, backend: BackendKind) {
    let expected = match mode.backend {
        BackendChoice::Gpu => BackendKind::Gpu,
        _ => BackendKind::Processor,
    };
    assert_eq!(backend, expected);
    let says = exchange.backend().to_string();
    assert_eq!(says.contains("GPU"), expected == BackendKind::Gpu, "{says}");
}

fn steps(replica: &Replica, _: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LENGTH)
        .policy(quantile([0.01, 0.2, 0.05, 0.01][rank % 4]))
        .ranges([
            NamedRange::compressed("weights", 33_000),
            NamedRange::dense("bias", 70, Dense::Bf16),
            NamedRange::compressed("embedding", LENGTH - 33_170)
                .with_policy(Adaptive::dl4j().with_limit(900)),
            NamedRange::dense("scale", 100, Dense::F32),
        ])
        .post_processor(Clipping::new(3.0, 4).expect("a clipping"))
        .check_every(3);
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    // Only rank 0's count.
    let mut parameters = mode.vector(&update(99 + rank, 0, LENGTH), &[7, 0, 20_000, 1]);
    parameters
        .onto(|parameters| exchange.start(parameters))
        .expect("starts");
    let mut given = mode.vector(&vec![0.0; LENGTH], &[1, 32_768, 0]);
    for number in 0..200 {
        // Uneven: nobody in step 7.
        let gives = number != 7 && !(rank + number).is_multiple_of(5);
        given.set(&update(rank, number, LENGTH));
        let report = step(&mut exchange, gives.then_some(&given), &mut parameters);
        let report = report.expect("steps");
        assert_eq!(report.hits > 0, gives, "step {number}");
        check_backend(&exchange, mode, report.backend);
    }
    parameters
        .onto(|parameters| exchange.check(parameters))
        .expect("identical");
    tell(format!("parameters {}", hash(&parameters.get())));
    let residual = exchange.encoder().download_residual().expect("it is there");
    tell(format!("residual {}", hash(&residual)));
    assert_eq!(
        exchange.residual().is_empty(),
        mode.backend == BackendChoice::Gpu
    );
    // All that waits, at once.
    parameters
        .onto(|parameters| exchange.flush(parameters))
        .expect("flushes");
    tell(format!("flushed {}", hash(&parameters.get())));
    let residual = exchange.encoder().download_residual().expect("it is there");
    assert!(residual.iter().all(|r| r.to_bits() == 0));
    // It goes on from +0.
    let report = step(&mut exchange, Some(&given), &mut parameters).expect("steps");
    tell(format!("after {} {}", report.hits, hash(&parameters.get())));
}

fn chunks(replica: &Replica, _: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LONG)
        .policy(quantile([0.3, 0.001, 0.02][rank % 3]))
        .reduction(Reduction::Sum)
        .check_every(1);
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&vec![0.25; LONG], &[100_000, 100_000]);
    let mut given = mode.vector(&vec![0.0; LONG], &[]);
    let mut stats = Vec::new();
    for number in 0..6 {
        given.set(&update(rank, number, LONG));
        let report = step(&mut exchange, Some(&given), &mut parameters).expect("steps");
        stats.extend([
            report.hits,
            report.sparse_chunks,
            report.bitmap_chunks,
            report.bytes,
            report.threshold.to_bits().into(),
            report.unit.to_bits().into(),
            report.residual_max.to_bits().into(),
        ]);
    }
    tell(format!("parameters {}", hash(&parameters.get())));
    tell(format!("stats {stats:?}"));
}

/// Sums that are handed over, and those of a flush.
fn sums(replica: &Replica, _: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LONG).policy(quantile(0.01));
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut sum = mode.vector(&vec![7.0; LONG], &[50_001]);
    let mut given = mode.vector(&vec![0.0; LONG], &[3]);
    let mut hashes = Vec::new();
    for number in 0..8 {
        // Nobody in step 2: the sum stays as it is.
        let gives = number != 2 && !(number + rank).is_multiple_of(3);
        given.set(&update(rank, number, LONG));
        all_reduce(&mut exchange, gives.then_some(&given), &mut sum).expect("reduces");
        hashes.push(hash(&sum.get()));
    }
    let flushed = sum.onto(|sum| exchange.flush_all_reduce(sum));
    flushed.expect("flushes");
    hashes.push(hash(&sum.get()));
    tell(format!("sums {hashes:?}"));
}

/// Updates from elsewhere come behind those of all ranks.
fn external(replica: &Replica, _: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LONG)
        .policy(quantile(0.01))
        .check_every(2);
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let (sender, source) = queue(LONG, DEFAULT_LIMIT);
    exchange.attach(source).expect("one of its length");
    let mut parameters = mode.vector(&vec![0.5; LONG], &[CHUNK + 1]);
    let mut given = mode.vector(&vec![0.0; LONG], &[]);
    let mut applied = 0;
    for number in 0..6 {
        let external = match (rank + number) % 3 {
            0 => ExternalUpdate::dense(update(50 + rank, number, LONG)).expect("finite"),
            1 => {
                let hits = (0..LONG).step_by(97 + number).map(|i| (i, i % 2 == 0));
                ExternalUpdate::hits(LONG, 0.375, hits).expect("ascending")
            }
            _ => ExternalUpdate::hits(LONG, 0.1, [(LONG - 1, true)]).expect("one"),
        };
        sender.send(external).expect("there is room");
        given.set(&update(rank, number, LONG));
        let report = step(&mut exchange, Some(&given), &mut parameters).expect("steps");
        applied += report.external_updates;
    }
    tell(format!("applied {applied}"));
    tell(format!("parameters {}", hash(&parameters.get())));
}

/// A world of one without its ring.
fn bypass(replica: &Replica, what: &str, mode: &Mode) {
    let how = match what {
        "whole" => Bypass::Whole,
        _ => Bypass::Encoded,
    };
    let builder = Exchange::builder(LONG).policy(quantile(0.01)).bypass(how);
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let (sender, source) = queue(LONG, DEFAULT_LIMIT);
    exchange.attach(source).expect("one of its length");
    let mut parameters = mode.vector(&vec![0.5; LONG], &[9, CHUNK]);
    let mut sum = mode.vector(&vec![0.0; LONG], &[CHUNK]);
    let mut given = mode.vector(&vec![0.0; LONG], &[1000]);
    for number in 0..5 {
        let hits = (0..LONG).step_by(1001).map(|i| (i, i % 2 == 0));
        let external = ExternalUpdate::hits(LONG, 0.375, hits).expect("ascending");
        sender.send(external).expect("there is room");
        given.set(&update(0, number, LONG));
        let report = step(&mut exchange, Some(&given), &mut parameters).expect("steps");
        assert_eq!(report.external_updates, 1);
        all_reduce(&mut exchange, Some(&given), &mut sum).expect("reduces");
    }
    tell(format!("parameters {}", hash(&parameters.get())));
    tell(format!("sum {}", hash(&sum.get())));
}

/// Schedules that work on the processor alone.
fn staged(replica: &Replica, what: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LONG).check_every(2);
    let builder = match what {
        "streamed" => builder.streamed().policy(quantile(0.01)),
        "f32" => builder.uncompressed(Dense::F32),
        _ => builder.uncompressed(Dense::Bf16),
    };
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&update(70 + rank, 0, LONG), &[5, 0, CHUNK]);
    parameters
        .onto(|parameters| exchange.start(parameters))
        .expect("starts");
    let mut sum = mode.vector(&vec![0.0; LONG], &[CHUNK]);
    let mut given = mode.vector(&vec![0.0; LONG], &[1000]);
    for number in 0..4 {
        let mut values = update(rank, number, LONG);
        if number == 2 && rank == 2 {
            // Told to all, and left out: everything else is applied.
            values[CHUNK] = f32::NAN;
        }
        given.set(&values);
        let gives = !(rank + number).is_multiple_of(3);
        match step(&mut exchange, gives.then_some(&given), &mut parameters) {
            Ok(report) => assert_eq!(report.backend, BackendKind::Processor),
            Err(Error::NonFinite { first, total }) => {
                assert_eq!((first, total, number), ((2, 1), 1, 2));
                given.set(&update(rank, number, LONG));
            }
            Err(error) => panic!("{error}"),
        }
        all_reduce(&mut exchange, gives.then_some(&given), &mut sum).expect("reduces");
        if what == "streamed" {
            // In parts: the update is this process's, the parameters are where they are.
            let mut open = exchange.begin().expect("begins");
            let values = update(rank, 100 + number, LONG);
            open.push(CHUNK..LONG, &values[CHUNK..]).expect("a part");
            open.push(0..CHUNK, &values[..CHUNK]).expect("a part");
            let finished = parameters.onto(|parameters| open.finish(parameters));
            finished.expect("finishes");
        }
    }
    tell(format!("parameters {}", hash(&parameters.get())));
    tell(format!("sum {}", hash(&sum.get())));
}

/// Replicas that are identical once they have settled.
fn asynchronous(replica: &Replica, _: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LENGTH)
        .policy(quantile(0.02))
        .asynchronous(Asynchronous {
            max_lag: 2,
            settle_every: 5,
        });
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[77]);
    let mut given = mode.vector(&vec![0.0; LENGTH], &[78]);
    for number in 0..12 {
        given.set(&update(rank, number, LENGTH));
        step(&mut exchange, Some(&given), &mut parameters).expect("steps");
    }
    let settled = parameters.onto(|parameters| exchange.settle(parameters));
    settled.expect("settles");
    let ended = parameters.onto(|parameters| exchange.finish_epoch(parameters));
    assert_eq!(ended.expect("ends"), EpochEnd::Ended);
    parameters
        .onto(|parameters| exchange.check(parameters))
        .expect("identical");
    tell(format!("settled {}", hash(&parameters.get())));
}

/// Ends of epochs to which replicas come after another number of steps.
fn epochs(replica: &Replica, _: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LENGTH)
        .policy(quantile(0.02))
        .check_every(1);
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[77]);
    let mut sum = mode.vector(&vec![0.0; LENGTH], &[78]);
    let mut given = mode.vector(&vec![0.0; LENGTH], &[79]);
    let mut hashes = Vec::new();
    for epoch in 0..2 {
        for number in 0..2 * rank + epoch {
            given.set(&update(rank, 10 * epoch + number, LENGTH));
            step(&mut exchange, Some(&given), &mut parameters).expect("steps");
        }
        let ended = parameters.onto(|parameters| exchange.finish_epoch(parameters));
        assert_eq!(ended.expect("ends"), EpochEnd::Ended);
        for number in 0..rank {
            given.set(&update(rank, 10 * epoch + number, LENGTH));
            all_reduce(&mut exchange, Some(&given), &mut sum).expect("reduces");
        }
        let mut steps = 0;
        let ended = sum.onto(|sum| exchange.finish_epoch_with(sum, |_, _| steps += 1));
        assert_eq!(ended.expect("ends"), EpochEnd::Ended);
        assert_eq!(steps, replica.world_size() - 1 - rank);
        hashes.push([hash(&parameters.get()), hash(&sum.get())]);
    }
    tell(format!("hashes {hashes:?}"));
}

/// What is not finite among parameters stays, and is counted: on a device one step late. Among updates it is left out and
/// told.
fn not_finite(replica: &Replica, _: &str, mode: &Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LENGTH)
        .policy(Fixed::new(1.0).expect("a threshold"))
        .check_every(1);
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut values = vec![0.5; LENGTH];
    (values[5], values[30_000]) = (f32::INFINITY, f32::NAN);
    let mut parameters = mode.vector(&values, &[6]);
    let mut met = Vec::new();
    for number in 0..5 {
        let mut values = vec![0.0; LENGTH];
        for at in [4, 5, 30_000] {
            values[at] = 1.0;
        }
        if number == 3 && rank == 1 {
            (values[7], values[8]) = (f32::NAN, f32::NEG_INFINITY);
        }
        let given = mode.vector(&values, &[]);
        match step(&mut exchange, Some(&given), &mut parameters) {
            Ok(report) => met.push(report.parameters_not_finite),
            Err(Error::NonFinite { first, total }) => {
                assert_eq!((first, total, number), ((1, 2), 2, 3));
            }
            Err(error) => panic!("{error}"),
        }
    }
    // Two of each rank in each step that has told of them.
    let of_a_step = 2 * replica.world_size() as u64;
    let total: u64 = met.iter().sum();
    if mode.memory == super::Memory::Host {
        assert_eq!(met, [of_a_step; 4]);
    } else {
        // A device that is quick tells of a step in that step already, the last one too.
        assert!((2 * of_a_step..=5 * of_a_step).contains(&total), "{met:?}");
    }
    tell(format!("parameters {}", hash(&parameters.get())));
}

/// What all replicas of a world must have told alike.
fn told_alike(what: &str, modes: &str, line: &str) {
    if !super::device::is_here() {
        return;
    }
    let case = format!("{what} {modes}");
    let ended = super::World::start(&case, modes.len()).succeed();
    let first = ended[0].one(line);
    assert!(ended.iter().all(|replica| replica.one(line) == first));
}

#[test]
fn replicas_with_and_without_a_gpu_are_identical_over_200_steps_and_send_what_the_processor_sends()
{
    all_alike(
        "steps",
        "hdg",
        &["parameters", "residual", "flushed", "after"],
    );
}

#[test]
fn a_replica_alone_on_a_gpu_holds_what_it_would_hold_on_the_processor() {
    all_alike(
        "steps",
        "d",
        &["parameters", "residual", "flushed", "after"],
    );
}

#[test]
fn vectors_on_a_device_need_no_encoder_there() {
    all_alike(
        "steps",
        "sh",
        &["parameters", "residual", "flushed", "after"],
    );
}

#[test]
fn vectors_of_several_chunks_and_their_reports_are_those_of_the_processor() {
    all_alike("chunks", "dgs", &["parameters", "stats"]);
}

#[test]
fn sums_are_handed_over_in_the_memory_of_a_device() {
    all_alike("sums", "dhs", &["sums"]);
}

#[test]
fn external_updates_come_in_the_same_place_on_a_device() {
    all_alike("external", "dsg", &["applied", "parameters"]);
}

#[test]
fn a_world_of_one_without_its_ring_works_on_a_device() {
    all_alike("bypass", "d", &["parameters", "sum"]);
    all_alike("bypass", "s", &["parameters", "sum"]);
    all_alike("whole", "s", &["parameters", "sum"]);
}

#[test]
fn every_schedule_takes_vectors_on_a_device() {
    for what in ["streamed", "f32", "bf16"] {
        all_alike(what, "shs", &["parameters", "sum"]);
    }
}

#[test]
fn asynchronous_replicas_with_vectors_on_a_device_settle_alike() {
    told_alike("asynchronous", "shs", "settled");
}

#[test]
fn what_is_not_finite_is_treated_alike_on_a_device() {
    all_alike("not finite", "dsg", &["parameters"]);
}

#[test]
fn epochs_end_alike_where_vectors_are_on_a_device() {
    all_alike("epochs", "dsh", &["hashes"]);
}
