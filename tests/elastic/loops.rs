//! The cases of AdaptDL's tests for epochs and loaders, and those in which it counts wrongly.

use crate::harness::{Setup, elastic, elastic_with};
use crate::seen::{Seen, all, exactly_once};
use gradring::progress::Sampler;
use gradring::{Asynchronous, Exchange, Flags, Replica, Update};
use std::time::Duration;

#[test]
fn epochs_go_on_with_the_one_that_was_left() {
    let ended = elastic(
        "loops::epochs_go_on_with_the_one_that_was_left",
        1,
        |generation| {
            let replica = Replica::join().unwrap();
            generation.tell(format!("finished {}", replica.finished_epochs().unwrap()));
            for epoch in replica.epochs(10).unwrap() {
                let epoch = epoch.unwrap();
                assert_eq!(replica.epoch(), Some(epoch));
                assert_eq!(replica.finished_epochs().unwrap(), epoch);
                generation.tell(format!("epoch {epoch}"));
                if generation.number == 0 && epoch == 5 {
                    replica.checkpoint().unwrap();
                    return 5;
                }
            }
            assert_eq!(replica.epoch(), None);
            assert_eq!(replica.finished_epochs().unwrap(), 10);
            assert!(
                replica.epochs(10).unwrap().next().is_none(),
                "all are finished"
            );
            let later: Vec<u64> = replica.epochs(12).unwrap().map(Result::unwrap).collect();
            assert_eq!(later, [10, 11], "consecutive loops count on");
            0
        },
    );
    assert_eq!(ended[0].all("finished"), [["0"]]);
    assert_eq!(ended[0].all("epoch"), [["0", "1", "2", "3", "4", "5"]]);
    assert_eq!(ended[1].all("finished"), vec![vec!["5"]; 5]);
    assert_eq!(
        ended[1].all("epoch"),
        vec![vec!["5", "6", "7", "8", "9"]; 5]
    );
}

#[test]
fn an_epoch_is_finished_however_it_is_left() {
    elastic("loops::an_epoch_is_finished_however_it_is_left", 1, |_| {
        let replica = Replica::join().unwrap();
        for epoch in replica.epochs(10).unwrap() {
            if epoch.unwrap() == 1 {
                break;
            }
        }
        assert_eq!(replica.finished_epochs().unwrap(), 2);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut epochs = replica.epochs(10).unwrap();
            assert_eq!(epochs.next().unwrap().unwrap(), 2);
            assert_eq!(epochs.next().unwrap().unwrap(), 3);
            panic!("in the body");
        }));
        assert!(caught.is_err());
        assert_eq!(replica.finished_epochs().unwrap(), 4);
        drop(replica.epochs(10).unwrap());
        assert_eq!(replica.finished_epochs().unwrap(), 4, "none had begun");
        0
    });
}

#[test]
fn a_data_loop_goes_on_with_what_remains_at_any_world_size() {
    let name = "loops::a_data_loop_goes_on_with_what_remains_at_any_world_size";
    let ended = elastic(name, 1, |generation| {
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        let sampler = Sampler::new(100).global_batch(10).shuffled(1);
        let batches = replica.batches("train", sampler).unwrap();
        generation.tell(format!("left {}", batches.iterations_left()));
        let stop_after = [2, 5, 100][generation.number];
        for (at, batch) in (1..).zip(batches) {
            let batch = batch.unwrap();
            assert_eq!(batch.together(), 10);
            seen.see("train", &batch);
            if at == stop_after {
                replica.checkpoint().unwrap();
                return [4, 2][generation.number];
            }
        }
        seen.tell(generation);
        0
    });
    exactly_once(&ended, &[("train", 100)]);
    assert_eq!(ended[0].all("left"), [["10"]]);
    assert_eq!(ended[1].all("left"), vec![vec!["8"]; 4]);
    assert_eq!(ended[2].all("left"), vec![vec!["3"]; 2]);
}

#[test]
fn a_loop_that_was_broken_off_is_over() {
    elastic("loops::a_loop_that_was_broken_off_is_over", 2, |_| {
        let replica = Replica::join().unwrap();
        let sampler = Sampler::new(100).global_batch(10);
        for (at, batch) in replica.batches("train", sampler).unwrap().enumerate() {
            batch.unwrap();
            if at == 5 {
                break;
            }
        }
        assert_eq!(replica.batches("train", sampler).unwrap().count(), 10);
        0
    });
}

#[test]
fn ten_samples_are_ten_for_any_number_of_replicas() {
    let name = "loops::ten_samples_are_ten_for_any_number_of_replicas";
    let ended = elastic(name, 1, |generation| {
        let replica = Replica::join().unwrap();
        let mut iterations = 0;
        for epoch in replica.epochs(generation.number as u64 + 1).unwrap() {
            epoch.unwrap();
            for batch in replica.batches("train", Sampler::new(10).batch(4)).unwrap() {
                iterations += 1;
                for sample in batch.unwrap().indices() {
                    generation.tell(format!("sample {sample}"));
                }
            }
        }
        generation.tell(format!("iterations {iterations}"));
        replica.checkpoint().unwrap();
        (replica.world_size() + 1) % 5
    });
    assert_eq!(ended.len(), 4);
    for (number, ended) in ended.iter().enumerate() {
        let samples = ended.numbers("sample");
        assert!(samples.iter().copied().eq(0..10), "{number}: {samples:?}");
        assert_eq!(samples.iter().sum::<usize>(), 45);
        let iterations = [3, 2, 1, 1][number];
        assert_eq!(ended.numbers("iterations"), vec![iterations; number + 1]);
    }
}

/// Three loops of 12 in an epoch, four samples at a time; left after `stop_at` batches in loop `stop_in`, once.
fn three_loops(name: &str, loops: [&str; 3], stop_in: usize, stop_at: usize, worlds: [usize; 2]) {
    let ended = elastic(name, worlds[0], |generation| {
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        for epoch in replica.epochs(1).unwrap() {
            epoch.unwrap();
            for (order, name) in loops.into_iter().enumerate() {
                let sampler = Sampler::new(12).global_batch(4).shuffled(3);
                let batches = replica.batches(name, sampler).unwrap();
                for (at, batch) in (1..).zip(batches) {
                    seen.see(&format!("{order}"), &batch.unwrap());
                    if generation.number == 0 && (order, at) == (stop_in, stop_at) {
                        replica.checkpoint().unwrap();
                        return worlds[1];
                    }
                }
            }
        }
        seen.tell(generation);
        0
    });
    exactly_once(&ended, &[("0", 12), ("1", 12), ("2", 12)]);
    let sums: Vec<usize> = all(&ended).values().map(|seen| seen.iter().sum()).collect();
    assert_eq!(sums, [66, 66, 66]);
}

#[test]
fn a_restart_in_the_third_loop_skips_the_first_two() {
    let name = "loops::a_restart_in_the_third_loop_skips_the_first_two";
    three_loops(name, ["a", "b", "c"], 2, 1, [1, 1]);
}

#[test]
fn a_loop_that_runs_twice_goes_on_in_its_second_pass() {
    let name = "loops::a_loop_that_runs_twice_goes_on_in_its_second_pass";
    three_loops(name, ["a", "a", "a"], 1, 2, [1, 1]);
}

#[test]
fn a_restart_with_three_replicas_in_the_second_loop_loses_nothing() {
    let name = "loops::a_restart_with_three_replicas_in_the_second_loop_loses_nothing";
    three_loops(name, ["a", "b", "c"], 1, 1, [1, 3]);
}

#[test]
fn a_crash_takes_position_and_sums_back_to_the_same_checkpoint() {
    let name = "loops::a_crash_takes_position_and_sums_back_to_the_same_checkpoint";
    let setup = Setup {
        killed: Some(137),
        ..Setup::default()
    };
    let ended = elastic_with(name, 2, &setup, |generation| {
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        generation.next(2);
        for epoch in replica.epochs(3).unwrap() {
            let epoch = epoch.unwrap();
            let batches = replica.batches("train", Sampler::new(12).batch(2)).unwrap();
            for (at, batch) in batches.enumerate() {
                seen.see(&format!("{epoch}"), &batch.unwrap());
                if generation.number == 0 && (epoch, at) == (0, 0) {
                    replica.checkpoint().unwrap();
                }
                if generation.number == 0 && (epoch, at) == (2, 1) {
                    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
                }
            }
        }
        assert!(generation.number == 1);
        seen.tell(generation);
        0
    });
    exactly_once(&ended, &[("0", 12), ("1", 12), ("2", 12)]);
}

#[test]
fn loops_outside_of_epochs_have_a_position_too() {
    let name = "loops::loops_outside_of_epochs_have_a_position_too";
    let ended = elastic(name, 2, |generation| {
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        let sampler = Sampler::new(9).batch(1).shuffled(8);
        let mut stops = [(0, 1), (1, 2), (2, 1)].into_iter();
        let stop = stops.nth(generation.number);
        let run = |order: usize| {
            let name = format!("{order}");
            for (at, batch) in (1..).zip(replica.batches(&name, sampler).unwrap()) {
                seen.see(&name, &batch.unwrap());
                if stop == Some((order, at)) {
                    replica.checkpoint().unwrap();
                    return true;
                }
            }
            false
        };
        if run(0) {
            return 1;
        }
        for epoch in replica.epochs(2).unwrap() {
            epoch.unwrap();
            // In epoch 0 of generation 1; nothing is left of it in epoch 1.
            if replica.finished_epochs().unwrap() == 0 && run(1) {
                return 3;
            }
        }
        if run(2) {
            return 2;
        }
        seen.tell(generation);
        0
    });
    assert_eq!(ended.len(), 4);
    exactly_once(&ended, &[("0", 9), ("1", 9), ("2", 9)]);
}

#[test]
fn an_empty_data_set_is_an_empty_loop() {
    elastic("loops::an_empty_data_set_is_an_empty_loop", 2, |_| {
        let replica = Replica::join().unwrap();
        let mut batches = replica.batches("train", Sampler::new(0).batch(4)).unwrap();
        assert_eq!(batches.iterations_left(), 0);
        assert!(batches.next().is_none());
        let few: Vec<usize> = replica
            .batches("few", Sampler::new(1).batch(4))
            .unwrap()
            .map(|batch| batch.unwrap().len())
            .collect();
        assert_eq!(few, [usize::from(replica.rank() == 0)]);
        0
    });
}

#[test]
fn asynchronous_replicas_stop_at_a_settle_and_lose_nothing() {
    let name = "loops::asynchronous_replicas_stop_at_a_settle_and_lose_nothing";
    let ended = elastic(name, 3, |generation| {
        generation.next(2);
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        let settings = Asynchronous {
            settle_every: 8,
            ..Asynchronous::default()
        };
        let exchange = Exchange::builder(64).asynchronous(settings);
        let mut exchange = exchange.build(&replica).unwrap();
        let mut parameters = vec![0.5_f32; 64];
        for epoch in replica.epochs(2).unwrap() {
            let epoch = epoch.unwrap();
            // Not as many iterations as settle, and not as many samples as iterations take.
            let sampler = Sampler::new(170).batch(2).shuffled(6);
            let batches = replica.batches("train", sampler).unwrap();
            for (at, batch) in (1..).zip(batches) {
                let batch = batch.unwrap();
                seen.see(&format!("{epoch}"), &batch);
                generation.tell(format!("batch {epoch} {at}"));
                let update = vec![batch.len() as f32; 64];
                let update = (!batch.is_empty()).then_some(&update as &dyn Update);
                exchange.step(update, &mut parameters).unwrap();
                if generation.number == 0 && epoch == 1 && at == 3 && replica.rank() == 1 {
                    replica.raise(Flags::TERMINATE);
                }
                if replica.rank() == 2 {
                    // The others go ahead.
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
            exchange.settle(&mut parameters).unwrap();
        }
        assert_eq!(generation.number, 1);
        seen.tell(generation);
        0
    });
    assert_eq!(ended[0].outcome.code, 143);
    let last = |told: &Vec<String>| told.last().unwrap().clone();
    assert!(
        ended[0]
            .told
            .iter()
            .map(last)
            .all(|line| line == "batch 1 8")
    );
    exactly_once(&ended, &[("0", 170), ("1", 170)]);
}
