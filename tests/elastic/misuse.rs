//! Programs that do what they must not.

use crate::harness::elastic;
use crate::seen::{Seen, exactly_once};
use gradring::progress::Sampler;
use gradring::{Error, Replica};

#[test]
fn replicas_that_come_to_different_loops_all_hear_of_it_and_go_on() {
    let name = "misuse::replicas_that_come_to_different_loops_all_hear_of_it_and_go_on";
    elastic(name, 3, |_| {
        let replica = Replica::join().unwrap();
        let sampler = Sampler::new(12).batch(1);
        let odd = replica.rank() == 1;
        let name = if odd { "other" } else { "train" };
        let longer = if odd {
            Sampler::new(13).batch(1)
        } else {
            sampler
        };
        let bigger = if odd { sampler.batch(2) } else { sampler };
        for error in [
            replica.batches(name, sampler).unwrap_err(),
            replica.batches("train", longer).unwrap_err(),
            replica.batches("train", bigger).unwrap_err(),
        ] {
            let Error::Disagreement { ref values, .. } = error else {
                panic!("{error}");
            };
            let ranks: Vec<usize> = values.iter().map(|(rank, _)| *rank).collect();
            assert_eq!(ranks, [0, 1, 2]);
            assert_eq!(values[0].1, values[2].1);
            assert_ne!(values[0].1, values[1].1);
            assert!(!error.ends_the_run());
        }
        assert_eq!(replica.batches("train", sampler).unwrap().count(), 4);
        0
    });
}

#[test]
fn another_loop_than_before_the_restart_is_the_same_error_on_all() {
    let name = "misuse::another_loop_than_before_the_restart_is_the_same_error_on_all";
    elastic(name, 1, |generation| {
        let replica = Replica::join().unwrap();
        let sampler = Sampler::new(12).batch(1);
        for epoch in replica.epochs(1).unwrap() {
            epoch.unwrap();
            if generation.number == 0 {
                assert_eq!(replica.batches("train", sampler).unwrap().count(), 12);
                replica.checkpoint().unwrap();
                return 2;
            }
            let error = replica.batches("valid", sampler).unwrap_err();
            let expected = "data loop 0 of epoch 0: the checkpoint has \"train\", found \"valid\"";
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!error.ends_the_run());
            assert_eq!(replica.batches("train", sampler).unwrap().count(), 0);
            assert_eq!(replica.batches("valid", sampler).unwrap().count(), 6);
        }
        0
    });
}

#[test]
fn one_loop_at_a_time() {
    elastic("misuse::one_loop_at_a_time", 1, |_| {
        let replica = Replica::join().unwrap();
        let sampler = Sampler::new(3);
        let mut epochs = replica.epochs(2).unwrap();
        assert_eq!(epochs.next().unwrap().unwrap(), 0);
        let refused = |what: Result<(), Error>| {
            let error = what.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            assert!(!error.ends_the_run());
        };
        refused(replica.epochs(3).map(drop));
        let mut batches = replica.batches("a", sampler).unwrap();
        refused(replica.batches("b", sampler).map(drop));
        batches.next().unwrap().unwrap();
        refused(replica.epochs(3).map(drop));
        // The epoch cannot end while its loop lives; that ends the loop over epochs, and its epoch begins again.
        refused(epochs.next().unwrap().map(drop));
        assert!(epochs.next().is_none());
        assert!(batches.next().is_none());
        assert_eq!(replica.finished_epochs().unwrap(), 0);
        let mut epochs = replica.epochs(1).unwrap();
        assert_eq!(epochs.next().unwrap().unwrap(), 0);
        assert_eq!(
            replica.batches("a", sampler).unwrap().count(),
            2,
            "what remains"
        );
        assert!(epochs.next().is_none());
        refused(replica.batches("c", Sampler::new(3).batch(0)).map(drop));
        refused(replica.batches("", sampler).map(drop));
        0
    });
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_loop_and_it_goes_on() {
    let name = "misuse::a_checkpoint_that_cannot_be_written_ends_the_loop_and_it_goes_on";
    let ended = elastic(name, 2, |generation| {
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        let sampler = Sampler::new(20).batch(2).shuffled(1);
        let mut errors = 0;
        for epoch in replica.epochs(1).unwrap() {
            epoch.unwrap();
            // Until the loop has ended without an error.
            loop {
                let mut failed = false;
                for batch in replica.batches("train", sampler).unwrap() {
                    match batch {
                        Ok(batch) => seen.see("train", &batch),
                        Err(error) => {
                            assert!(matches!(error, Error::NotSaved { .. }), "{error}");
                            failed = true;
                            errors += 1;
                            break;
                        }
                    }
                    if errors == 0 && seen.len() == 4 && replica.rank() == 0 {
                        // A file where the directory should be.
                        let _ = std::fs::remove_dir_all(generation.checkpoints());
                        std::fs::write(generation.checkpoints(), "in the way").unwrap();
                        replica.raise(gradring::Flags::CHECKPOINT);
                    }
                }
                replica.barrier().unwrap();
                if !failed {
                    break;
                }
                if replica.rank() == 0 {
                    let _ = std::fs::remove_file(generation.checkpoints());
                }
                replica.barrier().unwrap();
            }
        }
        assert_eq!(errors, 1);
        assert!(replica.checkpoint().unwrap().is_some());
        seen.tell(generation);
        0
    });
    exactly_once(&ended, &[("train", 20)]);
}
