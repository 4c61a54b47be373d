//! Barrier, broadcast, all_gather, all_reduce, flags: what they give, in worlds of 1 to 5 real processes.

mod world;

use gradring::op::{And, Max, Min, Or, Sum};
use gradring::{Error, Flags, Replica};
use world::{Setup, World, tell};

fn bytes_of(rank: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + rank * 7) as u8).collect()
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let (rank, world_size) = (replica.rank(), replica.world_size());
    match case.as_str() {
        "broadcast" => {
            // Nothing, one, around a piece, many pieces; more than any ring.
            for length in [0, 1, 32_767, 32_768, 32_769, 1_000_003] {
                for root in [0, world_size - 1] {
                    let mut vector = vec![rank as f32; length];
                    if rank == root {
                        // Any bits travel unchanged, NaN too.
                        vector = (0..length)
                            .map(|i| f32::from_bits((i as u32).wrapping_mul(2_654_435_769)))
                            .collect();
                    }
                    replica.broadcast(root, &mut vector).expect("broadcasts");
                    let right = |(i, x): (usize, &f32)| {
                        x.to_bits() == (i as u32).wrapping_mul(2_654_435_769)
                    };
                    assert!(vector.iter().enumerate().all(right));
                }
            }
            let error = replica
                .broadcast(world_size, &mut [])
                .expect_err("no such root");
            assert!(matches!(error, Error::Invalid { .. }) && !error.ends_the_run());
            replica.barrier().expect("the run goes on");
        }
        "gather" => {
            for round in 0..4 {
                for lengths in [
                    [0, 0, 0, 0, 0],
                    [1, 0, 1024, 5, 7],
                    [1025, 0, 3, 400_000, 131_072],
                    [2_000_000; 5],
                ] {
                    let mine = bytes_of(rank + round, lengths[rank]);
                    let all = replica.all_gather(&mine).expect("gathers");
                    assert_eq!(all.len(), world_size);
                    for (other, bytes) in all.iter().enumerate() {
                        assert_eq!(*bytes, bytes_of(other + round, lengths[other]));
                    }
                }
            }
        }
        "reduce" => {
            let n = world_size as u64;
            let mut values = [rank as u64 + 1, 10, u64::MAX];
            replica.all_reduce(&mut values, Sum).expect("reduces");
            assert_eq!(values, [n * (n + 1) / 2, 10 * n, n.wrapping_neg()]);
            let mut values = [rank as f64, -(rank as f64)];
            replica.all_reduce(&mut values, Min).expect("reduces");
            assert_eq!(values, [0.0, -(n as f64 - 1.0)]);
            let mut values = [rank as i32, -(rank as i32)];
            replica.all_reduce(&mut values, Max).expect("reduces");
            assert_eq!(values, [n as i32 - 1, 0]);
            let mut values = [1_u32 << rank, u32::MAX];
            replica.all_reduce(&mut values, Or).expect("reduces");
            assert_eq!(values, [(1 << n) - 1, u32::MAX]);
            let mut values = [!(1_i64 << rank)];
            replica.all_reduce(&mut values, And).expect("reduces");
            assert_eq!(values, [!((1 << n) - 1)]);
            let mut nothing: [f32; 0] = [];
            replica
                .all_reduce(&mut nothing, Sum)
                .expect("reduces nothing");
            // In rank order, so that all get the same bits: with 1e8 first the small ones are lost one by one.
            let mut values = [if rank == 0 { 1e8_f32 } else { 3.0 }];
            replica.all_reduce(&mut values, Sum).expect("reduces");
            assert_eq!(values[0], (1..world_size).fold(1e8_f32, |sum, _| sum + 3.0));
            // More than travels inline.
            let mut many = vec![rank as f32; 100_000];
            replica.all_reduce(&mut many, Sum).expect("reduces");
            assert!(many.iter().all(|x| *x == (n * (n - 1) / 2) as f32));
        }
        "barriers" => {
            for _ in 0..1000 {
                replica.barrier().expect("all come");
            }
            for _ in 0..100 {
                let ticket = replica.arrive().expect("arrives");
                assert!(matches!(replica.arrive(), Err(Error::TicketOpen)));
                ticket.wait().expect("all come");
            }
            // A dropped ticket is finished by the next operation, whichever that is.
            let _ = replica.arrive().expect("arrives");
            replica.barrier().expect("all come");
            let _ = replica.arrive().expect("arrives");
            let next = replica.arrive().expect("the dropped one is finished first");
            // Here one whose barrier another operation has finished waits for nothing more, not for a later one.
            replica.barrier().expect("all come");
            let last = replica.arrive().expect("arrives");
            next.wait().expect("is over");
            assert!(matches!(replica.arrive(), Err(Error::TicketOpen)));
            last.wait().expect("all come");
        }
        "flags" => {
            assert_eq!(replica.agreed(), Flags::NONE);
            replica.barrier().expect("all come");
            assert_eq!(replica.agreed(), Flags::NONE);
            if rank == world_size - 1 {
                replica.raise(Flags::CHECKPOINT);
            }
            match std::env::var("OPERATION").as_deref() {
                Ok("barrier") => replica.barrier().expect("all come"),
                Ok("broadcast") => replica.broadcast(0, &mut [0.0]).expect("broadcasts"),
                Ok("all_gather") => drop(replica.all_gather(&[]).expect("gathers")),
                Ok("all_reduce") => replica.all_reduce(&mut [1_u32], Sum).expect("reduces"),
                Ok("step") => {
                    let mut exchange = gradring::Exchange::builder(10)
                        .build(&replica)
                        .expect("agreed");
                    exchange
                        .step(None, &mut [0.0; 10])
                        .map(drop)
                        .expect("steps");
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(replica.agreed(), Flags::CHECKPOINT);
        }
        other => panic!("no case {other}"),
    }
    tell("done");
}

fn everywhere(case: &str) {
    for world_size in [1, 2, 3, 5] {
        World::start(case, world_size).succeed();
    }
}

#[test]
fn broadcast_gives_the_bits_of_the_root_at_any_length() {
    everywhere("broadcast");
}

#[test]
fn broadcast_passes_through_the_smallest_ring_on_one_core() {
    let setup = Setup {
        ring_capacity: 1 << 19,
        cores: 1,
        ..Setup::default()
    };
    World::with("broadcast", 3, &setup).succeed();
}

#[test]
fn all_gather_gives_what_every_rank_gave_inline_and_through_the_rings() {
    everywhere("gather");
}

#[test]
fn all_reduce_gives_the_same_numbers_to_all() {
    everywhere("reduce");
}

#[test]
fn the_longest_deadlines_are_ones_like_any_other() {
    let most = std::time::Duration::MAX;
    let alone = Replica::builder().join_timeout(most).deadline(most).join();
    alone.expect("joins").barrier().expect("all come");
    // As the launcher hands it over: more seconds than a duration holds, by the rounding of a float.
    let setup = Setup {
        deadline: most,
        ..Setup::default()
    };
    World::with("barriers", 2, &setup).succeed();
}

#[test]
fn a_thousand_barriers_and_open_tickets() {
    everywhere("barriers");
}

#[test]
fn a_raised_flag_is_agreed_by_whatever_operation_comes_next() {
    for operation in ["barrier", "broadcast", "all_gather", "all_reduce", "step"] {
        let environment = vec![("OPERATION".to_owned(), operation.to_owned())];
        World::with(
            "flags",
            3,
            &Setup {
                environment,
                ..Setup::default()
            },
        )
        .succeed();
    }
}
