//! What several replicas make of it: agreement, mismatches, death, hostile words, and a look from outside.

use crate::world::{Setup, World, tell};
use gradring::metrics::{Kind, live};
use gradring::op::Sum;
use gradring::{Error, Replica};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn disagreement(result: Result<(), Error>) -> (String, String, Vec<(usize, String)>) {
    match result {
        Err(Error::Disagreement {
            what,
            field,
            values,
        }) => (what, field, values),
        other => panic!("{other:?}"),
    }
}

/// The content of an accumulator is not that of the others: the same error on all, however often; who has what.
fn differs(a: &mut gradring::Accumulator, name: &str) -> Vec<(usize, String)> {
    let first = disagreement(a.synchronized().map(drop));
    let expected = "what its content began with and the last block made of it";
    assert_eq!(
        (&*first.0, &*first.1),
        (&*format!("accumulator {name}"), expected)
    );
    for (rank, text) in &first.2 {
        assert_eq!(*text != first.2[0].1, *rank == 1, "{:?}", first.2);
    }
    assert_eq!(disagreement(a.synchronized().map(drop)), first);
    first.2
}

fn values(all: &[(usize, &str)]) -> Vec<(usize, String)> {
    all.iter()
        .map(|(rank, text)| (*rank, (*text).to_owned()))
        .collect()
}

pub(crate) fn replica(case: &str, replica: &Replica) {
    let (rank, world_size) = (replica.rank(), replica.world_size());
    let (r, n) = (rank as i64, world_size as i64);
    let mut a = replica.accumulator("a").expect("is new");
    match case {
        "kinds" => {
            let (min, max) = (a.min("min").unwrap(), a.max("max").unwrap());
            let mean = a.mean("mean").unwrap();
            let histogram = a.histogram("h", &[0.5, 1.5]).unwrap();
            for round in 1..=20 {
                a.add("sum", 0.1).unwrap();
                a.add("count", r).unwrap();
                a.add("v", [1, r]).unwrap();
                a.add(&format!("only {rank}"), 1).unwrap();
                min.add(rank as f64).unwrap();
                max.add(rank as f64).unwrap();
                (0..=rank).for_each(|x| mean.add(x as f64).unwrap());
                histogram.add(rank as f64).unwrap();
                // One that is quick adds again before the others have read.
                let all = a.synchronized().unwrap();
                let ranks = n * (n - 1) / 2;
                assert_eq!(all.count("count").unwrap(), ranks * round);
                assert_eq!(all.counts("v").unwrap(), [n * round, ranks * round]);
                assert_eq!(all.len(), 7 + world_size);
                for rank in 0..world_size {
                    assert_eq!(all.count(&format!("only {rank}")).unwrap(), round);
                }
                assert_eq!(all.min("min").unwrap(), 0.0);
                assert_eq!(all.max("max").unwrap(), (n - 1) as f64);
                let numbers: i64 = (1..=n).sum();
                let total: i64 = (0..n).map(|rank| rank * (rank + 1) / 2).sum();
                let expected = (total * round) as f64 / (numbers * round) as f64;
                assert_eq!(all.mean("mean").unwrap(), expected);
                assert_eq!(all.count("h").unwrap(), n * round);
                let mut sums = [all.sum("sum").unwrap().to_bits(), 1];
                drop(all);
                replica.all_reduce(&mut sums, gradring::op::Max).unwrap();
                let bits = a.synchronized().unwrap().sum("sum").unwrap().to_bits();
                assert_eq!(sums[0], bits, "the same bits on all");
            }
        }
        "initial" => {
            let mut b = replica.accumulator_from("b", [("a", 1)]).unwrap();
            assert_eq!(b.synchronized().unwrap().count("a").unwrap(), 1);
        }
        "begins late" => {
            a.add("n", 1).unwrap();
            let begin = || replica.accumulator_from("best", [("epochs", 5)]).unwrap();
            let early = (rank == 0).then(begin);
            // Merges without a directory too.
            replica.checkpoint().unwrap();
            let mut best = early.unwrap_or_else(begin);
            best.add("epochs", 1).unwrap();
            assert_eq!(best.synchronized().unwrap().count("epochs").unwrap(), 5 + n);
            // The other way round: others have given it, and rank 0 has added to it before.
            let name = "of others";
            let begin = || replica.accumulator_from(name, [("x", 0.5)]).unwrap();
            let early = (rank > 0).then(begin);
            if let Some(early) = &early {
                early.add("x", 0.25).unwrap();
            }
            replica.checkpoint().unwrap();
            let mut late = early.unwrap_or_else(begin);
            let sum = late.synchronized().unwrap().sum("x").unwrap();
            assert_eq!(sum, 0.5 + 0.25 * (n - 1) as f64);
        }
        "other beginnings" => {
            let initial = if rank == 1 { 7 } else { 8 };
            let mut b = replica.accumulator_from("b", [("x", initial)]).unwrap();
            let mut c = match rank {
                1 => replica.accumulator_from("c", [("x", 1.0)]).unwrap(),
                _ => replica.accumulator_from("c", [("x", 1)]).unwrap(),
            };
            match rank {
                1 => c.add("x", 1.0).unwrap(),
                _ => c.add("x", 1).unwrap(),
            }
            let found = differs(&mut b, "b");
            differs(&mut c, "c");
            let refused = disagreement(replica.checkpoint().map(drop));
            assert_eq!(refused.2, found, "a checkpoint finds it too");
            a.add("n", 1).unwrap();
            assert_eq!(a.synchronized().expect("goes on").count("n").unwrap(), n);
        }
        "other blocks" => {
            let mut b = replica.accumulator("b").unwrap();
            a.add("n", 1).unwrap();
            b.add("n", 1).unwrap();
            let mut all = a.synchronized().unwrap();
            if rank != 1 {
                all.clear();
            }
            drop(all);
            a.add("n", 1).unwrap();
            let found = differs(&mut a, "a");
            assert_eq!(found[1], (1, "nothing".to_owned()));
            // Who panics in a block has not done all of it.
            let block = std::panic::AssertUnwindSafe(|| {
                let mut all = b.synchronized().unwrap();
                all.insert("first", 1).unwrap();
                assert!(rank != 1, "on purpose");
                all.remove("n");
            });
            assert_eq!(std::panic::catch_unwind(block).is_err(), rank == 1);
            differs(&mut b, "b");
            // The same on all is nothing to complain of.
            let mut c = replica.accumulator("c").unwrap();
            for round in 0..3 {
                c.add("n", 1).unwrap();
                let mut all = c.synchronized().unwrap();
                assert_eq!(all.count("n").unwrap(), n + round.min(1));
                all.insert("m", vec![round]).unwrap();
                all.clear();
                all.insert("n", 1).unwrap();
            }
        }
        "other kinds" => {
            match rank {
                1 => a.add("loss", 1).unwrap(),
                _ => a.add("loss", 1.0).unwrap(),
            }
            a.add("n", 1).unwrap();
            for _ in 0..3 {
                let (what, field, found) = disagreement(a.synchronized().map(drop));
                assert_eq!((&*what, &*field), ("accumulator a", "key loss"));
                let expected = [(0, "a sum"), (1, "a count"), (2, "a sum")];
                assert_eq!(found, values(&expected[..world_size]));
                // Nothing is lost, and more can be added.
                a.add("n", 1).unwrap();
                let refused = disagreement(replica.checkpoint().map(drop));
                assert_eq!(refused, (what, field, found));
            }
            if rank == 1 {
                a.discard("loss").unwrap();
                a.add("loss", 2.0).unwrap();
            }
            let all = a.synchronized().expect("the job goes on");
            assert_eq!(all.count("n").unwrap(), 4 * n);
            assert_eq!(all.sum("loss").unwrap(), (n - 1) as f64 + 2.0);
        }
        "other shapes" => {
            a.add("v", vec![1.0; 2 + rank % 2]).unwrap();
            let (what, field, found) = disagreement(a.synchronized().map(drop));
            assert_eq!((&*what, &*field), ("accumulator a", "key v"));
            let all = [
                (0, "a vector of 2 sums"),
                (1, "a vector of 3 sums"),
                (2, "a vector of 2 sums"),
            ];
            assert_eq!(found, values(&all[..world_size]));
            a.discard("v").unwrap();
            let edges = if rank == 0 { [0.0, 1.0] } else { [0.0, 2.0] };
            a.histogram("h", &edges).unwrap().add(1.0).unwrap();
            let (_, field, found) = disagreement(a.synchronized().map(drop));
            assert_eq!(field, "key h");
            assert_eq!(found[0].1, "a histogram with 2 edges (0, 1)");
            assert_eq!(found[1].1, "a histogram with 2 edges (0, 2)");
            a.discard("h").unwrap();
            assert!(a.synchronized().expect("the job goes on").is_empty());
        }
        "overflow" => {
            a.add("n", i64::MAX / 2 + 1).unwrap();
            let error = a.synchronized().map(drop).unwrap_err();
            assert!(
                matches!(&error, Error::Overflow { key, .. } if key == "n"),
                "{error}"
            );
            a.sub("n", i64::MAX / 2).unwrap();
            assert_eq!(a.synchronized().unwrap().count("n").unwrap(), n);
            // What is too much on the way and not in the end is none.
            a.add("m", if rank == 0 { i64::MAX } else { -1 }).unwrap();
            a.sub("m", if rank == 0 { 0 } else { -2 }).unwrap();
            if rank == world_size - 1 {
                a.sub("m", n).unwrap();
            }
            let sum = a.synchronized().unwrap().count("m").unwrap();
            assert_eq!(sum, i64::MAX - 1);
        }
        "other accumulators" => {
            let mut b = replica.accumulator("b").unwrap();
            a.add("x", 1).unwrap();
            b.add("y", 100).unwrap();
            let result = if rank == 1 {
                b.synchronized().map(drop)
            } else {
                a.synchronized().map(drop)
            };
            let (what, field, found) = disagreement(result);
            assert_eq!((&*what, &*field), ("a synchronization", "accumulator"));
            assert_eq!(found, values(&[(0, "a"), (1, "b"), (2, "a")]));
            assert_eq!(a.synchronized().expect("goes on").count("x").unwrap(), n);
            assert_eq!(
                b.synchronized().expect("goes on").count("y").unwrap(),
                100 * n
            );
        }
        "other places" => {
            let expected = [
                (0, "number 0 outside of epochs"),
                (1, "number 0 of epoch 0"),
            ];
            let differs = |a: &mut gradring::Accumulator| {
                let (what, field, found) = disagreement(a.synchronized().map(drop));
                assert_eq!(what, "a synchronization of accumulator a");
                assert_eq!((&*field, found), ("its place", values(&expected)));
            };
            if rank == 1 {
                for epoch in replica.epochs(1).unwrap() {
                    epoch.unwrap();
                    differs(&mut a);
                }
            } else {
                // What an epoch begins with.
                replica.checkpoint_point().unwrap();
                differs(&mut a);
                replica.checkpoint_point().unwrap();
            }
        }
        "a barrier" => {
            let error = if rank == 0 {
                a.synchronized().map(drop)
            } else {
                replica.barrier()
            };
            assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
            drop(a.synchronized().expect("the run goes on"));
        }
        "one exits" => {
            if rank == 1 {
                return;
            }
            a.add("n", 1).unwrap();
            let error = a.synchronized().map(drop).unwrap_err();
            assert!(
                matches!(error, Error::ReplicaLeft { rank: 1, .. }),
                "{error}"
            );
        }
        "one sleeps" => {
            if rank == 1 {
                replica.barrier().unwrap_err();
                return;
            }
            let error = a.synchronized().map(drop).unwrap_err();
            let named = matches!(
                error,
                Error::TimedOut { rank: 1, .. } | Error::Mismatch { .. }
            );
            assert!(named, "{error}");
        }
        "hostile" => {
            // One rank's words are written over while all add and synchronize.
            tell("going");
            let mut rounds = 0;
            let error = loop {
                let added = a.add("n", 1).and_then(|()| a.add("x", 0.5));
                let added = added.and_then(|()| a.add("v", [1.0, 2.0]));
                match added.and_then(|()| a.synchronized().map(drop)) {
                    Err(error) if error.ends_the_run() => break error,
                    // What they disagree on they may disagree on for ever.
                    Ok(()) | Err(_) => rounds += 1,
                }
                if rounds >= 2000 {
                    return tell("2000 rounds");
                }
            };
            let known = matches!(
                error,
                Error::Protocol { .. } | Error::Mismatch { .. } | Error::ReplicaLeft { .. }
            );
            assert!(known, "{error}");
            tell(error);
        }
        "live" => {
            let (best, mean) = (a.max("best").unwrap(), a.mean("mean").unwrap());
            tell("asked");
            replica.barrier().unwrap();
            for round in 0..3 {
                a.add("n", 2).unwrap();
                a.add("loss", 0.5).unwrap();
                best.add(f64::from(round)).unwrap();
                mean.add_many(3.0, 4).unwrap();
                a.synchronized().unwrap().clear();
            }
            tell("added");
        }
        "races" => {
            // Nothing but adding and synchronizing, as fast as it goes, with gaps at random ranks.
            let sum = a.sum("sum").unwrap();
            let mut random = rank as u64 + 1;
            let mut expected = 0;
            for round in 0..3000_i64 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                for _ in 0..random >> 61 {
                    std::thread::yield_now();
                }
                sum.add(round as f64).unwrap();
                a.add("n", round).unwrap();
                expected += round * n;
                let all = a.synchronized().unwrap();
                assert_eq!(all.count("n").unwrap(), expected);
                assert_eq!(all.sum("sum").unwrap(), expected as f64);
            }
            let mut checked = [1_u64];
            replica.all_reduce(&mut checked, Sum).unwrap();
        }
        other => panic!("no case {other}"),
    }
}

fn run(case: &str, world_sizes: &[usize]) {
    for &world_size in world_sizes {
        World::start(&format!("together {case}"), world_size).succeed();
    }
}

#[test]
fn every_kind_adds_up_and_is_the_same_on_all_replicas() {
    run("kinds", &[1, 2, 3, 5]);
}

#[test]
fn quick_and_slow_replicas_never_mix_two_synchronizations() {
    run("races", &[2, 3]);
}

#[test]
fn initial_content_counts_once() {
    run("initial", &[3]);
}

#[test]
fn initial_content_is_the_same_for_a_replica_that_comes_after_a_checkpoint() {
    run("begins late", &[2, 3]);
}

#[test]
fn replicas_that_begin_with_other_content_are_told_so() {
    run("other beginnings", &[2, 3]);
}

#[test]
fn replicas_that_do_other_things_in_a_block_are_told_so() {
    run("other blocks", &[2, 3]);
}

#[test]
fn kinds_that_differ_are_the_same_error_on_all_and_the_job_goes_on() {
    run("other kinds", &[2, 3]);
}

#[test]
fn shapes_and_edges_that_differ_are_the_same_error_on_all() {
    run("other shapes", &[2, 3]);
}

#[test]
fn an_overflow_is_found_by_all_and_nothing_is_lost() {
    run("overflow", &[2, 3]);
}

#[test]
fn replicas_that_synchronize_different_accumulators_are_told_who_came_for_which() {
    run("other accumulators", &[3]);
}

#[test]
fn replicas_in_different_epochs_are_told_so() {
    run("other places", &[2]);
}

#[test]
fn a_barrier_is_no_synchronization() {
    run("a barrier", &[2, 3]);
}

#[test]
fn a_replica_that_exits_instead_is_named() {
    run("one exits", &[2, 3]);
}

#[test]
fn a_replica_that_never_comes_is_named_at_the_deadline() {
    let setup = Setup {
        deadline: Duration::from_millis(300),
        ..Setup::default()
    };
    let mut world = World::empty(2, &setup);
    for rank in 0..2 {
        world.add("together one sleeps", rank, &setup);
    }
    world.finish();
}

#[test]
fn a_display_sees_what_is_added_without_asking() {
    let mut world = World::start("together live", 2);
    world.hear("asked");
    world.hear("added");
    let all = live(&world.segment);
    let of = |rank: usize, key: &str| {
        let found = all.iter().find(|it| it.rank == rank && it.key == key);
        found.expect("is there").clone()
    };
    assert_eq!(all.len(), 8);
    for rank in 0..2 {
        assert!(all.iter().all(|it| it.accumulator == "a"));
        let n = of(rank, "n");
        assert_eq!((n.kind, n.count, n.number), (Kind::Count, 6, None));
        let loss = of(rank, "loss");
        assert_eq!(
            (loss.kind, loss.count, loss.number),
            (Kind::Sum, 3, Some(1.5))
        );
        let best = of(rank, "best");
        assert_eq!(
            (best.kind, best.count, best.number),
            (Kind::Max, 3, Some(2.0))
        );
        let mean = of(rank, "mean");
        assert_eq!(
            (mean.kind, mean.count, mean.number),
            (Kind::Mean, 12, Some(9.0))
        );
    }
    world.succeed();
}

#[test]
fn words_that_somebody_scribbles_on_are_an_error_or_a_wrong_number() {
    for seed in 1..=4_u64 {
        let mut world = World::start("together hostile", 2);
        world.hear("going");
        let words = world.segment.cells(1);
        let mut random = seed;
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            random >> 20
        };
        for _ in 0..200 {
            let at = match next() % 3 {
                0 => next() as usize % words.len(),
                1 => next() as usize % 200,
                _ => 16 + 324 * 32 + next() as usize % 700,
            };
            let value = match next() % 4 {
                0 => next() % 10,
                1 => u64::MAX,
                2 => next() % words.len() as u64,
                _ => next() << 20 | next(),
            };
            words[at].store(value, Relaxed);
            let _ = live(&world.segment);
            std::thread::sleep(Duration::from_micros(200));
        }
        for (rank, ended) in world.finish().iter().enumerate() {
            assert!(ended.status.success(), "rank {rank}: {:?}", ended.heard);
        }
    }
}
