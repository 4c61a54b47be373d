//! Accumulators and positions together: sums that are exact through restarts at any world size.

use crate::harness::{Generation, Setup, elastic, elastic_with};
use gradring::Replica;
use gradring::metrics::Accumulator;
use gradring::progress::{Batch, Sampler};
use nix::sys::signal::{Signal, raise};

/// Counts samples, and adds up their indices.
fn count(sums: &Accumulator, batch: &Batch) {
    for &sample in batch.indices() {
        sums.add("n", 1).unwrap();
        sums.add("sum", sample as f64).unwrap();
    }
}

/// Tells how many samples there were and their sum.
fn tell(generation: &Generation, sums: &mut Accumulator, what: &str) {
    let all = sums.synchronized().unwrap();
    let (n, sum) = (all.count("n").unwrap(), all.sum("sum").unwrap());
    generation.tell(format!("{what} {n} {sum}"));
}

#[test]
fn synchronizations_before_a_restart_are_replayed_and_the_next_one_is_live() {
    let name = "sums::synchronizations_before_a_restart_are_replayed_and_the_next_one_is_live";
    elastic(name, 1, |generation| {
        let replica = Replica::join().unwrap();
        let mut a = replica.accumulator("a").unwrap();
        let rank = replica.rank() as i64;
        // Replayed from the second generation on: what is added before is dropped.
        a.add("a", 15).unwrap();
        {
            let all = a.synchronized().unwrap();
            assert_eq!((all.count("a").unwrap(), all.len()), (15, 1));
            assert_eq!(all.replayed(), generation.number > 0);
        }
        if generation.number == 0 {
            a.sub("a", 5).unwrap();
            replica.checkpoint().unwrap();
            return 4;
        }
        // Replayed in the third generation.
        a.add("a", rank).unwrap();
        a.add("b", rank).unwrap();
        {
            let all = a.synchronized().unwrap();
            assert_eq!((all.count("a").unwrap(), all.count("b").unwrap()), (16, 6));
            assert_eq!(all.replayed(), generation.number > 1);
        }
        if generation.number == 1 {
            replica.checkpoint().unwrap();
            return 2;
        }
        a.sub("b", 5).unwrap();
        a.sub("c", 5).unwrap();
        {
            let mut all = a.synchronized().unwrap();
            let counts = ["a", "b", "c"].map(|key| all.count(key).unwrap());
            assert_eq!(counts, [16, -4, -10]);
            all.clear();
        }
        assert!(a.synchronized().unwrap().is_empty());
        0
    });
}

#[test]
fn deltas_of_3_then_2_then_5_replicas_and_1_are_2536() {
    let name = "sums::deltas_of_3_then_2_then_5_replicas_and_1_are_2536";
    let ended = elastic(name, 3, |generation| {
        let replica = Replica::join().unwrap();
        let mut deltas = replica.accumulator("deltas").unwrap();
        let factor = 10_i64.pow(generation.number as u32);
        let rank = replica.rank() as i64;
        let own = format!("generation {} rank {rank}", generation.number);
        deltas.add("x", factor * (rank + 1)).unwrap();
        deltas.add("exact", 0.1 * factor as f64).unwrap();
        deltas.add(&own, 1).unwrap();
        if generation.number < 3 {
            replica.checkpoint().unwrap();
            return [2, 5, 1][generation.number];
        }
        let all = deltas.synchronized().unwrap();
        generation.tell(format!("x {}", all.count("x").unwrap()));
        generation.tell(format!("keys {}", all.len()));
        0
    });
    assert_eq!(ended[3].all("x"), [["2536"]]);
    assert_eq!(
        ended[3].all("keys"),
        [["13"]],
        "x, exact, one of each of 11 replicas"
    );
}

#[test]
fn a_loop_can_synchronize_as_often_as_it_likes() {
    let name = "sums::a_loop_can_synchronize_as_often_as_it_likes";
    let ended = elastic(name, 2, |generation| {
        let replica = Replica::join().unwrap();
        let sampler = Sampler::new(12).global_batch(4);
        let mut each = replica.accumulator("each").unwrap();
        let mut once = replica.accumulator("once").unwrap();
        for epoch in replica.epochs(1).unwrap() {
            epoch.unwrap();
            for (at, batch) in replica.batches("train", sampler).unwrap().enumerate() {
                let batch = batch.unwrap();
                count(&each, &batch);
                count(&once, &batch);
                tell(generation, &mut each, "each");
                if at == 1 {
                    tell(generation, &mut once, "once");
                }
            }
            tell(generation, &mut once, "once");
        }
        0
    });
    assert_eq!(ended[0].all("each"), vec![["4 6", "8 28", "12 66"]; 2]);
    assert_eq!(ended[0].all("once"), vec![["8 28", "12 66"]; 2]);
}

#[test]
fn a_synchronization_after_the_epochs_counts_what_came_before() {
    let name = "sums::a_synchronization_after_the_epochs_counts_what_came_before";
    let ended = elastic(name, 3, |generation| {
        let replica = Replica::join().unwrap();
        let mut sums = replica.accumulator("training").unwrap();
        for epoch in replica.epochs(2).unwrap() {
            epoch.unwrap();
            for batch in replica.batches("train", Sampler::new(12).batch(2)).unwrap() {
                count(&sums, &batch.unwrap());
            }
            tell(generation, &mut sums, "n");
        }
        tell(generation, &mut sums, "n");
        0
    });
    assert_eq!(ended[0].all("n"), vec![["12 66", "24 132", "24 132"]; 3]);
}

#[test]
fn a_cleared_block_is_replayed_whole_after_two_restarts() {
    let name = "sums::a_cleared_block_is_replayed_whole_after_two_restarts";
    let ended = elastic(name, 1, |generation| {
        let replica = Replica::join().unwrap();
        let mut sums = replica.accumulator("sums").unwrap();
        let sampler = Sampler::new(12).global_batch(4).shuffled(3);
        for epoch in replica.epochs(1).unwrap() {
            epoch.unwrap();
            for batch in replica.batches("train", sampler).unwrap() {
                count(&sums, &batch.unwrap());
            }
            tell(generation, &mut sums, "train");
            sums.synchronized().unwrap().clear();
            for batch in replica.batches("valid", sampler).unwrap() {
                count(&sums, &batch.unwrap());
                if generation.number < 2 {
                    replica.checkpoint().unwrap();
                    return 3 - generation.number;
                }
            }
            tell(generation, &mut sums, "valid");
        }
        0
    });
    for (number, ended) in ended.iter().enumerate() {
        let ranks = [1, 3, 2][number];
        assert_eq!(ended.all("train"), vec![["12 66"]; ranks], "{number}");
    }
    assert_eq!(ended[2].all("valid"), vec![["12 66"]; 2]);
}

#[test]
fn three_loops_restarted_with_more_replicas_count_twelve_each() {
    let name = "sums::three_loops_restarted_with_more_replicas_count_twelve_each";
    let ended = elastic(name, 1, |generation| {
        let replica = Replica::join().unwrap();
        let mut all = ["a", "b", "c"].map(|name| replica.accumulator(name).unwrap());
        for epoch in replica.epochs(1).unwrap() {
            epoch.unwrap();
            for (order, sums) in all.iter_mut().enumerate() {
                // The last two are of one name.
                let name = ["a", "b", "b"][order];
                let sampler = Sampler::new(12).global_batch(4).shuffled(3);
                for (at, batch) in replica.batches(name, sampler).unwrap().enumerate() {
                    count(sums, &batch.unwrap());
                    let stops = [(1, 0), (2, 0), (2, 0)];
                    if stops.get(generation.number) == Some(&(order, at)) {
                        replica.checkpoint().unwrap();
                        return [3, 4, 2][generation.number];
                    }
                }
                tell(generation, sums, "loop");
            }
        }
        0
    });
    assert_eq!(ended.len(), 4);
    assert_eq!(ended[3].all("loop"), vec![vec!["12 66"; 3]; 2]);
}

#[test]
fn after_a_crash_three_epochs_of_twelve_are_thirty_six() {
    let name = "sums::after_a_crash_three_epochs_of_twelve_are_thirty_six";
    let setup = Setup {
        killed: Some(137),
        ..Setup::default()
    };
    let ended = elastic_with(name, 2, &setup, |generation| {
        generation.next(3);
        let replica = Replica::join().unwrap();
        let mut sums = replica.accumulator("training").unwrap();
        for epoch in replica.epochs(3).unwrap() {
            let epoch = epoch.unwrap();
            let batches = replica.batches("train", Sampler::new(12).batch(2)).unwrap();
            for (at, batch) in batches.enumerate() {
                count(&sums, &batch.unwrap());
                if generation.number == 0 && (epoch, at) == (0, 0) {
                    replica.checkpoint().unwrap();
                }
                if generation.number == 0 && (epoch, at) == (2, 1) {
                    raise(Signal::SIGKILL).unwrap();
                }
            }
        }
        assert_eq!(generation.number, 1);
        tell(generation, &mut sums, "n");
        0
    });
    assert_eq!(ended[1].all("n"), vec![["36 198"]; 3]);
}
