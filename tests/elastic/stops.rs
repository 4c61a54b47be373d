//! Stopping by agreement.

use crate::harness::{Setup, elastic, elastic_with};
use crate::seen::{Seen, exactly_once};
use gradring::progress::Sampler;
use gradring::{Replica, Stop};
use nix::sys::signal::{Signal, raise};
use std::path::Path;

/// A signal to `rank` in its third batch.
fn a_signal_in_the_third_batch(name: &str, rank: usize, signal: Signal, code: u8) {
    let setup = Setup {
        environment: vec![("RANK_TO_STOP", rank.to_string())],
        ..Setup::default()
    };
    let ended = elastic_with(name, 3, &setup, |generation| {
        generation.next(2);
        let rank: usize = std::env::var("RANK_TO_STOP").unwrap().parse().unwrap();
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        for epoch in replica.epochs(2).unwrap() {
            let epoch = epoch.unwrap();
            let sampler = Sampler::new(50).batch(2).shuffled(9);
            for (at, batch) in (1..).zip(replica.batches("train", sampler).unwrap()) {
                seen.see(&format!("{epoch}"), &batch.unwrap());
                generation.tell(format!("batch {at}"));
                if generation.number == 0 && (epoch, at, replica.rank()) == (1, 3, rank) {
                    raise(signal).unwrap();
                }
            }
        }
        seen.tell(generation);
        0
    });
    assert_eq!(ended.len(), 2);
    assert_eq!(ended[0].outcome.code, code);
    assert!(ended[0].outcome.culprit.is_none(), "{}", ended[0].outcome);
    let batches: Vec<usize> = ended[0].told.iter().map(Vec::len).collect();
    // 9 in epoch 0, and in epoch 1 those until all have agreed: the third, and one more at most.
    assert!(
        batches
            .iter()
            .all(|batches| *batches == batches_of(&ended[0].told[0]))
    );
    assert!((12..=13).contains(&batches[0]), "{batches:?}");
    exactly_once(&ended, &[("0", 50), ("1", 50)]);
}

fn batches_of(told: &[String]) -> usize {
    told.iter().filter(|line| line.starts_with("batch")).count()
}

#[test]
fn a_sigterm_at_any_rank_stops_all_after_the_same_batch() {
    let name = "stops::a_sigterm_at_any_rank_stops_all_after_the_same_batch";
    for rank in 0..3 {
        a_signal_in_the_third_batch(name, rank, Signal::SIGTERM, 143);
    }
}

#[test]
fn a_ctrl_c_at_any_rank_stops_all_after_the_same_batch() {
    let name = "stops::a_ctrl_c_at_any_rank_stops_all_after_the_same_batch";
    for rank in 0..3 {
        a_signal_in_the_third_batch(name, rank, Signal::SIGINT, 130);
    }
}

#[test]
fn a_stop_of_the_launcher_stops_all_after_the_same_batch() {
    let name = "stops::a_stop_of_the_launcher_stops_all_after_the_same_batch";
    let watch = |number: usize, stopper: gradring::launch::Stopper, directory: &Path| {
        let directory = directory.to_owned();
        std::thread::spawn(move || {
            // Until the loop has begun.
            let begun = directory.join(format!("begun-{number}"));
            while number < 3 && !begun.exists() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            if number < 3 {
                stopper.stop(if number == 1 {
                    libc::SIGINT
                } else {
                    libc::SIGTERM
                });
            }
        });
    };
    let setup = Setup {
        watch: &watch,
        ..Setup::default()
    };
    let ended = elastic_with(name, 2, &setup, |generation| {
        generation.next(3 - generation.number % 3);
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        let sampler = Sampler::new(100_000).global_batch(1);
        let sampler = if generation.number < 3 {
            sampler
        } else {
            sampler.global_batch(1000)
        };
        let mut batches = 0;
        for batch in replica.batches("train", sampler).unwrap() {
            seen.see("train", &batch.unwrap());
            batches += 1;
            if batches == 1 {
                let begun = generation
                    .shared()
                    .join(format!("begun-{}", generation.number));
                std::fs::write(begun, "").unwrap();
            }
        }
        assert_eq!(generation.number, 3);
        seen.tell(generation);
        0
    });
    let codes: Vec<u8> = ended.iter().map(|ended| ended.outcome.code).collect();
    assert_eq!(codes, [143, 130, 143, 0]);
    exactly_once(&ended, &[("train", 100_000)]);
}

#[test]
fn a_trainer_that_stops_by_itself_leaves_its_loops_unfinished() {
    let name = "stops::a_trainer_that_stops_by_itself_leaves_its_loops_unfinished";
    let ended = elastic(name, 2, |generation| {
        let replica = Replica::builder().exit_on_stop(false).join().unwrap();
        let seen = Seen::of(&replica);
        for epoch in replica.epochs(2).unwrap() {
            let epoch = epoch.unwrap();
            let sampler = Sampler::new(12).batch(2);
            for batch in replica.batches("train", sampler).unwrap() {
                seen.see(&format!("train{epoch}"), &batch.unwrap());
                if generation.number == 0 && replica.rank() == 1 && seen.len() == 4 {
                    raise(Signal::SIGTERM).unwrap();
                }
            }
            for batch in replica.batches("valid", sampler).unwrap() {
                seen.see(&format!("valid{epoch}"), &batch.unwrap());
                if generation.number == 1 && replica.rank() == 0 {
                    raise(Signal::SIGINT).unwrap();
                }
            }
        }
        match replica.stop_requested() {
            None => {
                assert_eq!(replica.finished_epochs().unwrap(), 2);
                seen.tell(generation);
                0
            }
            Some(stop) => {
                assert_eq!(stop, [Stop::Terminate, Stop::Interrupt][generation.number]);
                assert_eq!(replica.finished_epochs().unwrap(), 0);
                assert_eq!(replica.batches("more", Sampler::new(3)).unwrap().count(), 0);
                assert_eq!(replica.epochs(9).unwrap().count(), 0);
                3 - generation.number
            }
        }
    });
    assert_eq!(ended.len(), 3);
    let loops = ["train0", "train1", "valid0", "valid1"].map(|name| (name, 12));
    exactly_once(&ended, &loops);
}

#[test]
fn what_a_trainer_synchronizes_after_it_broke_off_comes_again_with_all_that_was_left() {
    let name =
        "stops::what_a_trainer_synchronizes_after_it_broke_off_comes_again_with_all_that_was_left";
    let ended = elastic(name, 2, |generation| {
        let replica = Replica::builder().exit_on_stop(false).join().unwrap();
        let seen = Seen::of(&replica);
        let mut a = replica.accumulator("a").unwrap();
        for epoch in replica.epochs(2).unwrap() {
            let epoch = epoch.unwrap();
            for (at, batch) in (0..).zip(
                replica
                    .batches("train", Sampler::new(20).global_batch(2))
                    .unwrap(),
            ) {
                let batch = batch.unwrap();
                seen.see(&format!("{epoch}"), &batch);
                a.add("n", batch.len()).unwrap();
                if (generation.number, at) == (0, 3) {
                    replica.raise(gradring::Flags::RESIZE);
                    replica.barrier().unwrap();
                }
                if replica.stop_requested().is_some() {
                    break;
                }
            }
            let mut all = a.synchronized().unwrap();
            generation.tell(format!("n {}", all.count("n").unwrap()));
            assert!(!all.replayed());
            all.clear();
        }
        if replica.stop_requested().is_some() {
            return 3;
        }
        seen.tell(generation);
        0
    });
    assert_eq!(ended.len(), 2);
    exactly_once(&ended, &[("0", 20), ("1", 20)]);
    assert_eq!(ended[0].all("n"), [["8"], ["8"]], "what there was so far");
    assert_eq!(ended[1].all("n"), [["20", "20"]; 3]);
}

#[test]
fn a_break_because_of_a_stop_leaves_nothing_out_where_the_next_thing_ends_the_process_too() {
    let name = "stops::a_break_because_of_a_stop_leaves_nothing_out_where_the_next_thing_ends_the_process_too";
    let ended = elastic(name, 2, |generation| {
        generation.next(3);
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        let mut a = replica.accumulator("a").unwrap();
        for epoch in replica.epochs(2).unwrap() {
            let epoch = epoch.unwrap();
            let sampler = Sampler::new(20).global_batch(2);
            for (at, batch) in (0..).zip(replica.batches("train", sampler).unwrap()) {
                let batch = batch.unwrap();
                seen.see(&format!("{epoch}"), &batch);
                a.add("n", batch.len()).unwrap();
                if (generation.number, at, replica.rank()) == (0, 3, 1) {
                    replica.raise(gradring::Flags::TERMINATE);
                }
                replica.barrier().unwrap();
                if replica.stop_requested().is_some() {
                    break;
                }
            }
            let mut all = a.synchronized().unwrap();
            generation.tell(format!("n {}", all.count("n").unwrap()));
            all.clear();
        }
        seen.tell(generation);
        0
    });
    assert_eq!(ended.len(), 2);
    assert_eq!(ended[0].outcome.code, 143);
    exactly_once(&ended, &[("0", 20), ("1", 20)]);
    assert_eq!(ended[0].all("n"), [[""; 0]; 2]);
    assert_eq!(ended[1].all("n"), [["20", "20"]; 3]);
}

#[test]
fn a_trainer_that_breaks_off_because_of_a_stop_goes_on_there() {
    let name = "stops::a_trainer_that_breaks_off_because_of_a_stop_goes_on_there";
    let ended = elastic(name, 3, |generation| {
        let replica = Replica::builder().exit_on_stop(false).join().unwrap();
        let seen = Seen::of(&replica);
        'epochs: for epoch in replica.epochs(2).unwrap() {
            let epoch = epoch.unwrap();
            for batch in replica.batches("train", Sampler::new(30).batch(1)).unwrap() {
                seen.see(&format!("{epoch}"), &batch.unwrap());
                if generation.number == 0 && replica.rank() == 2 && seen.len() == 3 {
                    replica.raise(gradring::Flags::RESIZE);
                }
                replica.barrier().unwrap();
                if replica.stop_requested() == Some(Stop::Resize) {
                    break 'epochs;
                }
            }
        }
        if replica.stop_requested().is_some() {
            assert!(replica.checkpoint_point().unwrap().is_some());
            return 2;
        }
        seen.tell(generation);
        0
    });
    assert_eq!(ended.len(), 2);
    exactly_once(&ended, &[("0", 30), ("1", 30)]);
}
