//! Accumulators through restarts: what was counted is counted once, and what was shown is shown again.
//!
//! Each run of a case is a world of its own; all of them share one directory of checkpoints.

use crate::world::{Setup, World};
use gradring::checkpoint::Value;
use gradring::progress::Sampler;
use gradring::{Accumulator, Error, Replica};

/// Which run of a case this is, from 0.
fn run_number() -> usize {
    let run = std::env::var("RUN").expect("the test says");
    run.parse().expect("a number")
}

/// Runs a case in worlds of these sizes, one after another.
fn runs(case: &str, world_sizes: &[usize]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    for (run, &world_size) in world_sizes.iter().enumerate() {
        let environment = vec![
            ("GRADRING_CHECKPOINT_DIR".to_owned(), path.clone()),
            ("RUN".to_owned(), run.to_string()),
        ];
        let setup = Setup {
            environment,
            ..Setup::default()
        };
        World::with(&format!("restarts {case}"), world_size, &setup).succeed();
    }
}

/// How many keys, and some of them.
fn shown(a: &mut Accumulator, keys: &[&str]) -> (usize, Vec<i64>) {
    let all = a.synchronized().expect("all come");
    let counts = keys.iter().map(|key| all.count(key).expect("is there"));
    (all.len(), counts.collect())
}

/// Goes through a loop over so many samples and counts them; how many this replica had.
fn count_samples(replica: &Replica, a: &Accumulator, name: &str, samples: usize) {
    let sampler = Sampler::new(samples).batch(4);
    for batch in replica.batches(name, sampler).expect("no other loop") {
        let batch = batch.expect("all go on");
        a.add("n", batch.indices().len()).expect("adds");
        a.add("sum", batch.indices().iter().sum::<usize>())
            .expect("adds");
    }
}

pub(crate) fn replica(case: &str, replica: &Replica) {
    let (rank, n, run) = (
        replica.rank() as i64,
        replica.world_size() as i64,
        run_number(),
    );
    let save = || replica.checkpoint().expect("saves").expect("a directory");
    match case {
        // AdaptDL's own test of accumulators.
        "upstream" => {
            let mut a = replica.accumulator("a").unwrap();
            if run == 0 {
                a.add("a", 15).unwrap();
            }
            // Added by code that runs again: it has been counted.
            if run > 0 {
                a.add("a", 1000).unwrap();
            }
            let all = a.synchronized().unwrap();
            assert_eq!((all.count("a").unwrap(), all.replayed()), (15, run > 0));
            drop(all);
            if run == 0 {
                a.sub("a", 5).unwrap();
                save();
                return;
            }
            if run == 1 {
                a.add("a", rank).unwrap();
                a.add("b", rank).unwrap();
            }
            assert_eq!(shown(&mut a, &["a", "b"]), (2, vec![16, 6]));
            if run == 1 {
                save();
                return;
            }
            a.extend([("b", -5), ("c", -5)]).unwrap();
            assert_eq!(shown(&mut a, &["a", "b", "c"]), (3, vec![16, -4, -10]));
            // The block before kept everything; this one removes it.
            let mut all = a.synchronized().unwrap();
            all.clear();
            drop(all);
            assert_eq!(shown(&mut a, &[]), (0, vec![]));
        }
        "other sizes" => {
            let mut a = replica.accumulator("a").unwrap();
            let each = [1, 10, 100, 1000][run];
            a.add("x", each * (rank + 1)).unwrap();
            a.add(&format!("of {run} {rank}"), 1).unwrap();
            a.add("tenth", 0.1).unwrap();
            save();
            if run == 3 {
                let all = a.synchronized().unwrap();
                assert_eq!(all.count("x").unwrap(), 2536);
                assert_eq!(all.len(), 2 + 11, "keys that only some ranks had");
                assert_eq!(all.sum("tenth").unwrap(), 1.1);
            }
        }
        "in a loop" => {
            // B1: three synchronizations inside of one loop.
            let mut a = replica.accumulator("a").unwrap();
            let mut seen = Vec::new();
            let sampler = Sampler::new(12).global_batch(4);
            for batch in replica.batches("loop", sampler).unwrap() {
                a.add("n", batch.unwrap().indices().len()).unwrap();
                seen.push(a.synchronized().unwrap().count("n").unwrap());
            }
            assert_eq!(seen, [4, 8, 12]);
            assert_eq!(shown(&mut a, &["n"]), (1, vec![12]));
        }
        "a loop of one's own" => {
            // It goes on from a step that was kept, and does not run from the top again.
            let mut a = replica.accumulator("a").unwrap();
            let step = replica.keep_value(Value::shared("step", 0_i64)).unwrap();
            assert_eq!(*step.lock().unwrap(), [0, 3][run]);
            while *step.lock().unwrap() < 6 {
                *step.lock().unwrap() += 1;
                a.add("n", 10 / n).unwrap();
                let all = a.synchronized_unrecorded().unwrap();
                assert_eq!(all.count("n").unwrap(), 10 * *step.lock().unwrap());
                assert!(!all.replayed());
                drop(all);
                if (run, *step.lock().unwrap()) == (0, 3) {
                    save();
                    return;
                }
            }
        }
        "in a loop and after it" => {
            let mut a = replica.accumulator("a").unwrap();
            let mut seen = Vec::new();
            for epoch in replica.epochs(2).unwrap() {
                let epoch = epoch.unwrap();
                let sampler = Sampler::new(12).global_batch(4);
                let batches = replica.batches("loop", sampler).unwrap();
                for (at, batch) in batches.enumerate() {
                    a.add("n", batch.unwrap().indices().len()).unwrap();
                    if at == 1 {
                        let all = a.synchronized().unwrap();
                        assert!(!all.replayed());
                        seen.push(all.count("n").unwrap());
                    }
                }
                let all = a.synchronized().unwrap();
                seen.push(all.count("n").unwrap());
                drop(all);
                if run == 0 && epoch == 1 {
                    save();
                    assert_eq!(seen, [8, 12, 20, 24]);
                    return;
                }
            }
            assert_eq!(
                seen,
                [24],
                "the loop is not run again, what followed is shown again"
            );
        }
        "after the epochs" => {
            // B2
            let mut a = replica.accumulator("a").unwrap();
            let mut seen = Vec::new();
            for epoch in replica.epochs(2).unwrap() {
                epoch.unwrap();
                count_samples(replica, &a, "loop", 12);
                seen.push(a.synchronized().unwrap().count("n").unwrap());
            }
            seen.push(a.synchronized().unwrap().count("n").unwrap());
            if run == 0 {
                assert_eq!(seen, [12, 24, 24]);
                save();
            } else {
                assert_eq!(
                    seen,
                    [24],
                    "the epochs are over, what followed is shown again"
                );
            }
        }
        "twice in one epoch" => {
            // B3: a block that clears, and two restarts in the loop that follows it.
            let mut a = replica.accumulator("a").unwrap();
            for epoch in replica.epochs(1).unwrap() {
                epoch.unwrap();
                count_samples(replica, &a, "train", 12);
                let mut all = a.synchronized().unwrap();
                assert_eq!((all.count("n").unwrap(), all.replayed()), (12, run > 0));
                all.clear();
                all.insert("junk", 1).unwrap();
                all.remove("junk");
                drop(all);
                let sampler = Sampler::new(12).global_batch(4);
                let batches = replica.batches("valid", sampler).unwrap();
                for (at, batch) in batches.enumerate() {
                    a.add("valid", batch.unwrap().indices().len()).unwrap();
                    if run < 2 && at == 0 {
                        save();
                        return;
                    }
                }
                assert_eq!(shown(&mut a, &["valid"]), (1, vec![12]));
            }
        }
        "a condition" => {
            // B9: a synchronization that only the first run comes to.
            let mut a = replica.accumulator("a").unwrap();
            a.add("n", 1).unwrap();
            if run == 0 {
                drop(a.synchronized().unwrap());
                a.add("n", 10).unwrap();
            }
            let second = a.synchronized().map(|all| all.count("n").unwrap());
            if run == 0 {
                assert_eq!(second.unwrap(), 11 * n);
                save();
                return;
            }
            match second {
                Err(Error::Replay {
                    accumulator,
                    epoch: None,
                    ordinal: 0,
                    expected,
                    found,
                }) => {
                    assert_eq!(accumulator, "a");
                    assert!(expected != found && found.contains("restarts.rs:"));
                }
                other => panic!("{other:?}"),
            }
            replica.barrier().expect("the run goes on");
        }
        "never asked for" => {
            if run != 1 {
                let mut a = replica.accumulator("a").unwrap();
                if run == 0 {
                    a.add("n", 5).unwrap();
                    save();
                } else {
                    assert_eq!(shown(&mut a, &["n"]), (1, vec![5 * n]));
                }
            } else {
                replica.accumulator("b").unwrap();
                save();
            }
        }
        "initial" => {
            let mut a = replica.accumulator_from("a", [("a", 1)]).unwrap();
            if run == 0 {
                a.add("a", 1).unwrap();
                save();
            } else {
                assert_eq!(shown(&mut a, &["a"]), (1, vec![1 + 3]), "the checkpoint's");
            }
        }
        "only some" => {
            // Rank 0 has two accumulators, of which the others learn by the checkpoint.
            let mut a = replica.accumulator("a").unwrap();
            let b = (rank == 0).then(|| replica.accumulator("b").unwrap());
            a.add("n", 1).unwrap();
            if let Some(b) = &b {
                b.add("n", 7).unwrap();
            }
            save();
            if let Some(b) = &b {
                b.add("n", 3).unwrap();
            }
            drop(b);
            let mut b = replica.accumulator("b").unwrap();
            b.add("n", 100).unwrap();
            assert_eq!(shown(&mut b, &["n"]), (1, vec![10 + 100 * n]));
            assert_eq!(shown(&mut a, &["n"]), (1, vec![n]));
        }
        "anywhere" => {
            // In epochs and in loops too, where AdaptDL refuses.
            for epoch in replica.epochs(2).unwrap() {
                epoch.unwrap();
                let sampler = Sampler::new(8).global_batch(4);
                for batch in replica.batches("loop", sampler).unwrap() {
                    let mut a = replica.accumulator("made in a loop").unwrap();
                    a.add("n", batch.unwrap().indices().len()).unwrap();
                    drop(a.synchronized().unwrap());
                }
            }
            let mut a = replica.accumulator("made in a loop").unwrap();
            assert_eq!(shown(&mut a, &["n"]), (1, vec![16]));
        }
        "crash" => {
            // Three epochs of 12; a checkpoint after the first batch, and an end without one.
            let mut a = replica.accumulator("a").unwrap();
            for epoch in replica.epochs(3).unwrap() {
                let epoch = epoch.unwrap();
                let sampler = Sampler::new(12).global_batch(4);
                let batches = replica.batches("loop", sampler).unwrap();
                for (at, batch) in batches.enumerate() {
                    a.add("n", batch.unwrap().indices().len()).unwrap();
                    if run == 0 && (epoch, at) == (0, 0) {
                        save();
                    }
                }
                drop(a.synchronized().unwrap());
                if run == 0 && epoch == 2 {
                    return;
                }
            }
            assert_eq!(shown(&mut a, &["n"]), (1, vec![36]));
        }
        other => panic!("no case {other}"),
    }
}

#[test]
fn upstreams_own_restarts_give_what_they_give_upstream() {
    runs("upstream", &[1, 4, 2]);
}

#[test]
fn three_two_five_and_one_replicas_count_2536() {
    runs("other sizes", &[3, 2, 5, 1]);
}

#[test]
fn synchronizations_inside_of_a_loop_see_what_came_so_far() {
    runs("in a loop", &[1]);
    runs("in a loop", &[2]);
}

#[test]
fn synchronizations_inside_of_a_loop_do_not_count_for_the_replay() {
    runs("in a loop and after it", &[2, 3]);
}

#[test]
fn a_synchronization_that_is_not_recorded_is_never_replayed() {
    runs("a loop of one's own", &[1, 2]);
}

#[test]
fn a_synchronization_after_the_epochs_is_one_like_any_other() {
    runs("after the epochs", &[1, 2]);
}

#[test]
fn a_replayed_block_does_not_change_what_it_shows() {
    runs("twice in one epoch", &[2, 1, 2]);
}

#[test]
fn a_conditional_synchronization_is_found_when_it_is_replayed() {
    runs("a condition", &[1, 2]);
}

#[test]
fn accumulators_that_a_run_does_not_ask_for_are_carried_over() {
    runs("never asked for", &[2, 1, 2]);
}

#[test]
fn a_checkpoint_replaces_initial_content() {
    runs("initial", &[3, 2]);
}

#[test]
fn a_checkpoint_merges_accumulators_that_only_some_replicas_have() {
    runs("only some", &[3]);
}

#[test]
fn an_accumulator_may_be_made_anywhere() {
    runs("anywhere", &[2]);
}

#[test]
fn a_crash_loses_no_sample_and_counts_none_twice() {
    runs("crash", &[1, 2]);
}
