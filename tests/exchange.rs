//! Steps with real processes: replicas that stay identical, uneven data, errors that leave a run usable.

#[path = "exchange/ends.rs"]
mod ends;
#[path = "exchange/parts.rs"]
mod parts;
#[path = "exchange/ranges.rs"]
mod ranges;
#[path = "exchange/streamed.rs"]
mod streamed;
mod world;

use gradring::codec::policy::Magnitude;
use gradring::codec::{Apply, CHUNK, ChunkOptions, Path, Record, Unit, canon};
use gradring::{Error, Exchange, Fixed, Quantile, Reduction, Replica, parameter_hash};
use world::{Setup, World, tell};

/// A number that depends on nothing but its arguments; heavy-tailed, as updates are.
fn noise(rank: usize, step: usize, i: usize) -> f32 {
    let mut x = (rank as u64 + 1) << 48 ^ (step as u64 + 1) << 32 ^ i as u64;
    for _ in 0..2 {
        x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
        x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    }
    let uniform = (x >> 40) as f32 / (1 << 24) as f32 - 0.5;
    1e-2 * uniform / (1.05 - 2.0 * uniform.abs())
}

fn update(rank: usize, step: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| noise(rank, step, i)).collect()
}

const LENGTH: usize = CHUNK + 1000;
const STEPS: usize = 30;

fn unit() -> Unit {
    Unit::new(0.0078125, 0.0078125).expect("8 significant bits")
}

/// What N replicas must hold: each residual by itself, every record applied by itself, in rank order.
fn simulate(
    world_size: usize,
    reduction: Reduction,
    gives: impl Fn(usize, usize) -> bool,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let path = Path::Scalar;
    let mut parameters: Vec<f32> = (0..LENGTH).map(|i| noise(99, 0, i)).collect();
    let mut residuals = vec![vec![0.0_f32; LENGTH]; world_size];
    for step in 0..STEPS {
        let giving: Vec<usize> = (0..world_size).filter(|&rank| gives(rank, step)).collect();
        for rank in giving.iter().copied() {
            let mut payload = Vec::new();
            let update = update(rank, step, LENGTH);
            let x = match reduction {
                Reduction::Mean => canon(unit().v() * (1.0 / giving.len() as f32)),
                Reduction::Sum => unit().v(),
            };
            for start in (0..LENGTH).step_by(CHUNK) {
                let range = start..(start + CHUNK).min(LENGTH);
                payload.clear();
                let sent = path
                    .encode(
                        &mut residuals[rank][range.clone()],
                        &update[range.clone()],
                        unit(),
                        &ChunkOptions::default(),
                        &mut payload,
                    )
                    .expect("equal lengths");
                let record = Record {
                    format: sent.format,
                    hits: sent.hits,
                    elements: range.len(),
                    payload: &payload,
                };
                path.apply(&record, x, Apply::Subtract, &mut parameters[range])
                    .expect("an own record");
            }
        }
    }
    (parameters, residuals)
}

fn fixed() -> Fixed {
    Fixed::new(unit().t()).expect("a threshold")
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let (rank, world_size) = (replica.rank(), replica.world_size());
    match case.as_str() {
        "steps" | "uneven" => {
            let reduction = if case == "steps" {
                Reduction::Mean
            } else {
                Reduction::Sum
            };
            let mut exchange = Exchange::builder(LENGTH)
                .reduction(reduction)
                .policy(fixed())
                .build(&replica)
                .expect("agreed");
            // Only rank 0's count.
            let mut parameters: Vec<f32> = (0..LENGTH).map(|i| noise(99 + rank, 0, i)).collect();
            exchange.start(&mut parameters).expect("starts");
            for step in 0..STEPS {
                let update = update(rank, step, LENGTH);
                let gives = case == "steps" || gives_unevenly(rank, step);
                let report = exchange
                    .step(gives.then_some(&update), &mut parameters)
                    .expect("steps");
                assert_eq!(report.hits > 0, gives);
                assert_eq!(report.step, step as u64);
            }
            tell(format!("parameters {:016x}", parameter_hash(&parameters)));
            tell(format!(
                "residual {:016x}",
                parameter_hash(exchange.residual())
            ));
        }
        "formats" => {
            // Rank r's density and code path are its own; the parameters are everybody's.
            let density = [0.3, 1e-3, 1e-2, 0.1][rank % 4];
            let path = if rank % 2 == 0 {
                Path::best()
            } else {
                Path::Scalar
            };
            let policy = Quantile::new(density)
                .expect("a density")
                .with_magnitude(if rank == 0 {
                    Magnitude::Threshold
                } else {
                    Magnitude::Mean
                });
            let mut exchange = Exchange::builder(LENGTH)
                .policy(policy)
                .path(path)
                .check_every(3)
                .build(&replica)
                .expect("agreed");
            let mut parameters = vec![0.0; LENGTH];
            exchange.start(&mut parameters).expect("starts");
            let mut formats = (0, 0);
            for step in 0..STEPS {
                let update = update(rank, step, LENGTH);
                let report = exchange
                    .step(Some(&update), &mut parameters)
                    .expect("steps");
                formats = (
                    formats.0 + report.sparse_chunks,
                    formats.1 + report.bitmap_chunks,
                );
                if step > 0 {
                    assert!(
                        (report.density / density - 1.0).abs() < 0.25,
                        "density {}",
                        report.density
                    );
                }
            }
            tell(format!("parameters {:016x}", parameter_hash(&parameters)));
            tell(format!(
                "formats {} {}",
                u8::from(formats.0 > 0),
                u8::from(formats.1 > 0)
            ));
        }
        "sum" => {
            let mut exchange = Exchange::builder(LENGTH)
                .reduction(Reduction::Sum)
                .policy(fixed())
                .build(&replica)
                .expect("agreed");
            let mut sum = vec![f32::NAN; LENGTH];
            let own = update(rank, 0, LENGTH);
            exchange.all_reduce(Some(&own), &mut sum).expect("steps");
            let mut expected = vec![0.0_f32; LENGTH];
            for other in 0..world_size {
                for (sum, u) in expected.iter_mut().zip(update(other, 0, LENGTH)) {
                    if u.abs() >= unit().t() {
                        *sum = canon(*sum + unit().v().copysign(u));
                    }
                }
            }
            assert!(
                sum.iter()
                    .zip(&expected)
                    .all(|(a, b)| a.to_bits() == b.to_bits())
            );
            exchange.check(&mut sum).expect("the same everywhere");
            tell("done");
        }
        "epoch end" => {
            let mut exchange = Exchange::builder(10).build(&replica).expect("agreed");
            let mut parameters = vec![1.5; 10];
            let report = exchange.step(None, &mut parameters).expect("steps");
            assert!(report.epoch_ended());
            assert_eq!((exchange.steps(), parameters), (0, vec![1.5; 10]));
            let mut sum = vec![7.0; 10];
            assert!(
                exchange
                    .all_reduce(None, &mut sum)
                    .expect("steps")
                    .epoch_ended()
            );
            assert_eq!(sum, vec![7.0; 10]);
            tell("done");
        }
        "not finite" => {
            let mut exchange = Exchange::builder(4)
                .policy(fixed())
                .build(&replica)
                .expect("agreed");
            let mut parameters = vec![0.0; 4];
            let mut update = vec![1.0; 4];
            if rank == 1 {
                (update[0], update[2]) = (f32::NAN, f32::INFINITY);
            }
            let error = exchange
                .step(Some(&update), &mut parameters)
                .expect_err("not all are finite");
            assert!(!error.ends_the_run());
            tell(format!("error {error}"));
            tell(format!("parameters {parameters:?}"));
            assert_eq!(exchange.steps(), 1);
            exchange
                .step(Some(&[1.0; 4]), &mut parameters)
                .expect("the exchange stays usable");
        }
        "diverged" => {
            let mut exchange = Exchange::builder(1000)
                .check_every(2)
                .build(&replica)
                .expect("agreed");
            let mut parameters = vec![0.0_f32; 1000];
            for step in 0.. {
                if step == 3 && rank == 1 {
                    // One bit of one element.
                    parameters[500] = f32::from_bits(parameters[500].to_bits() ^ 1);
                }
                match exchange.step(Some(&update(rank, step, 1000)), &mut parameters) {
                    Ok(_) => assert!(step < 4),
                    Err(error) => {
                        assert_eq!(step, 4, "compared in the step after the next checked one");
                        assert!(
                            matches!(&error, Error::Diverged { step: 3, hashes } if hashes.len() == world_size)
                        );
                        tell(format!("error {error}"));
                        let later = replica.barrier().expect_err("the run is over");
                        assert_eq!(later.to_string(), error.to_string());
                        // The step that this error ended says it again, whatever of it had been done.
                        let again = exchange
                            .step(Some(&update(rank, step, 1000)), &mut parameters)
                            .expect_err("the run is over");
                        assert_eq!(again.to_string(), error.to_string());
                        break;
                    }
                }
            }
        }
        "checked" => {
            let mut exchange = Exchange::builder(1000).build(&replica).expect("agreed");
            let mut sum = vec![0.0_f32; 1000];
            let update = update(rank, 0, 1000);
            exchange.all_reduce(Some(&update), &mut sum).expect("steps");
            exchange.check(&mut sum).expect("the same everywhere");
            sum[rank % 2] += 1.0;
            let error = exchange.check(&mut sum).expect_err("odd ranks differ");
            assert!(
                matches!(&error, Error::Diverged { step: 0, hashes } if hashes.len() == world_size)
            );
            tell(format!("error {error}"));
        }
        "lengths" => {
            let mut exchange = Exchange::builder(10).build(&replica).expect("agreed");
            let mut parameters = vec![0.0; 10];
            if rank == 0 {
                // Local errors: the others wait for this rank meanwhile.
                for wrong in [0, 9, 11] {
                    let update = vec![1.0; wrong];
                    let error = exchange
                        .step(Some(&update), &mut parameters)
                        .expect_err("wrong length");
                    assert!(
                        matches!(error, Error::Length { what: "the update", expected: 10, found } if found == wrong)
                    );
                    let error = exchange
                        .step(None, &mut vec![0.0; wrong])
                        .expect_err("wrong length");
                    assert!(matches!(
                        error,
                        Error::Length {
                            what: "parameters",
                            ..
                        }
                    ));
                    assert!(!error.ends_the_run());
                }
                assert!(
                    Exchange::builder(0)
                        .build(&replica)
                        .is_err_and(|error| !error.ends_the_run())
                );
                assert!(Exchange::builder(1).check_every(0).build(&replica).is_err());
            }
            exchange
                .step(Some(&[1.0; 10]), &mut parameters)
                .expect("steps");
            assert_eq!(exchange.steps(), 1);
            tell("done");
        }
        "disagree" => {
            let two = Exchange::builder(10 + rank)
                .build(&replica)
                .expect_err("lengths differ");
            let three = Exchange::builder(10)
                .reduction(if rank == 0 {
                    Reduction::Sum
                } else {
                    Reduction::Mean
                })
                .build(&replica)
                .expect_err("reductions differ");
            let four = match rank {
                0 => Exchange::builder(10).policy(fixed()).build(&replica),
                _ => Exchange::builder(10).build(&replica),
            }
            .expect_err("policies differ");
            for error in [two, three, four] {
                assert!(!error.ends_the_run());
                tell(format!("error {error}"));
            }
            Exchange::builder(10)
                .build(&replica)
                .expect("the run stays usable");
        }
        "two exchanges" => {
            let mut first = Exchange::builder(1000)
                .name("first")
                .build(&replica)
                .expect("agreed");
            let mut second = Exchange::builder(2000)
                .name("second")
                .build(&replica)
                .expect("agreed");
            let (mut one, mut two) = (vec![0.0; 1000], vec![0.0; 2000]);
            for step in 0..20 {
                first
                    .step(Some(&update(rank, step, 1000)), &mut one)
                    .expect("steps");
                replica.barrier().expect("all come");
                second
                    .step(Some(&update(rank, step, 2000)), &mut two)
                    .expect("steps");
            }
            tell(format!(
                "parameters {:016x} {:016x}",
                parameter_hash(&one),
                parameter_hash(&two)
            ));
        }
        "other order" => {
            let mut first = Exchange::builder(1000)
                .name("first")
                .build(&replica)
                .expect("agreed");
            let mut second = Exchange::builder(1000)
                .name("second")
                .build(&replica)
                .expect("agreed");
            let mut parameters = vec![0.0_f32; 1000];
            let exchange = if rank == 0 { &mut first } else { &mut second };
            let error = exchange
                .step(Some(&update(rank, 0, 1000)), &mut parameters)
                .expect_err("they differ");
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            tell(format!("error {error}"));
        }
        other => assert!(
            ranges::replica(other, &replica)
                || ends::replica(other, &replica)
                || parts::replica(other, &replica)
                || streamed::replica(other, &replica),
            "no case {other}"
        ),
    }
}

fn gives_unevenly(rank: usize, step: usize) -> bool {
    !(rank + step).is_multiple_of(3) || rank == step % 2
}

fn all_say(ended: &[world::Ended], begin: &str) -> String {
    let said: Vec<&str> = ended.iter().map(|replica| replica.one(begin)).collect();
    assert!(
        said.iter().all(|other| other == &said[0]),
        "{begin}: {said:?}"
    );
    said[0].to_owned()
}

#[test]
fn replicas_hold_what_one_process_gets_that_sums_in_rank_order() {
    for world_size in [1, 2, 3, 4, 8] {
        let (parameters, residuals) = simulate(world_size, Reduction::Mean, |_, _| true);
        let ended = World::start("steps", world_size).succeed();
        assert_eq!(
            all_say(&ended, "parameters"),
            format!("{:016x}", parameter_hash(&parameters))
        );
        for (replica, residual) in ended.iter().zip(&residuals) {
            assert_eq!(
                replica.one("residual"),
                format!("{:016x}", parameter_hash(residual))
            );
        }
    }
}

#[test]
fn ranks_without_data_keep_their_residual_and_get_the_same_sum() {
    for world_size in [2, 3, 5] {
        let (parameters, residuals) = simulate(world_size, Reduction::Sum, gives_unevenly);
        let ended = World::start("uneven", world_size).succeed();
        assert_eq!(
            all_say(&ended, "parameters"),
            format!("{:016x}", parameter_hash(&parameters))
        );
        for (replica, residual) in ended.iter().zip(&residuals) {
            assert_eq!(
                replica.one("residual"),
                format!("{:016x}", parameter_hash(residual))
            );
        }
    }
}

#[test]
fn replicas_are_identical_whatever_format_density_magnitude_and_path_each_has() {
    let ended = World::start("formats", 4).succeed();
    all_say(&ended, "parameters");
    assert_eq!(ended[0].one("formats"), "0 1");
    assert_eq!(ended[1].one("formats"), "1 0");
}

#[test]
fn the_smallest_ring_carries_every_record() {
    let setup = Setup {
        ring_capacity: 1 << 19,
        cores: 1,
        ..Setup::default()
    };
    let ended = World::with("formats", 3, &setup).succeed();
    all_say(&ended, "parameters");
}

#[test]
fn all_reduce_hands_the_sum_over_in_rank_order() {
    World::start("sum", 3).succeed();
}

#[test]
fn a_step_in_which_nobody_gives_data_changes_nothing() {
    World::start("epoch end", 2).succeed();
}

#[test]
fn elements_that_are_not_finite_are_left_out_and_reported_alike() {
    let ended = World::start("not finite", 3).succeed();
    let error = all_say(&ended, "error");
    assert!(error.starts_with("2 elements"), "{error}");
    assert!(error.contains("rank 1 (2 elements)"), "{error}");
    all_say(&ended, "parameters");
}

#[test]
fn parameters_that_differ_in_one_bit_are_found_by_all() {
    let ended = World::start("diverged", 3).succeed();
    let error = all_say(&ended, "error");
    assert!(error.contains("after step 3"), "{error}");
}

#[test]
fn parameters_that_a_trainer_keeps_itself_are_compared_when_it_asks() {
    for world_size in [2, 3, 5] {
        let ended = World::start("checked", world_size).succeed();
        all_say(&ended, "error");
    }
}

#[test]
fn a_wrong_length_is_a_local_error_and_publishes_nothing() {
    World::start("lengths", 2).succeed();
}

#[test]
fn exchanges_that_differ_are_refused_alike_with_every_value() {
    let ended = World::start("disagree", 3).succeed();
    let errors = |ended: &world::Ended| -> Vec<String> {
        ended
            .heard
            .iter()
            .filter_map(|line| line.strip_prefix("error ").map(str::to_owned))
            .collect()
    };
    let first = errors(&ended[0]);
    assert_eq!(first.len(), 3);
    assert!(
        first[0].contains("length") && first[0].contains("rank 2 has 12"),
        "{first:?}"
    );
    assert!(
        first[1].contains("reduction") && first[1].contains("rank 0 has Sum"),
        "{first:?}"
    );
    assert!(first[2].contains("policy"), "{first:?}");
    assert!(ended.iter().all(|replica| errors(replica) == first));
}

#[test]
fn two_exchanges_of_one_replica_interleave() {
    let ended = World::start("two exchanges", 3).succeed();
    all_say(&ended, "parameters");
}

#[test]
fn steps_of_two_exchanges_in_another_order_are_a_mismatch_on_all() {
    let ended = World::start("other order", 2).succeed();
    let error = all_say(&ended, "error");
    assert!(
        error.contains("exchange 0") && error.contains("exchange 1"),
        "{error}"
    );
}
