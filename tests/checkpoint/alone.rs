//! One replica: what is kept comes back.

use super::{is_not_saved, names, run, run_keeping};
use gradring::Error;
use gradring::checkpoint::{State, StateError, Value, Whose};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Schedule {
    Warm { steps: u64 },
    Cosine(f64, Option<i8>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Optimizer {
    schedule: Schedule,
    rates: BTreeMap<String, f32>,
    seed: u128,
    nothing: (),
    numbers: Vec<f32>,
}

fn optimizer() -> Optimizer {
    Optimizer {
        schedule: Schedule::Cosine(0.1, Some(-3)),
        rates: [
            ("bias".to_owned(), 0.1),
            ("größe".to_owned(), f32::MIN_POSITIVE),
        ]
        .into(),
        seed: u128::MAX - 5,
        nothing: (),
        numbers: vec![0.1, -0.0, f32::INFINITY, 1e-45],
    }
}

/// A state of a trainer's own.
struct Words(Vec<u8>);

impl State for Words {
    fn name(&self) -> &str {
        "words/and bytes"
    }

    fn whose(&self) -> Whose {
        Whose::Replica
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        out.write_all(&self.0)
            .map_err(|error| StateError::io(self.name(), error))
    }

    fn load(&mut self, from: &mut dyn Read) -> Result<(), StateError> {
        let mut bytes = Vec::new();
        let read = from.read_to_end(&mut bytes);
        read.map_err(|error| StateError::io("words/and bytes", error))?;
        self.0 = bytes;
        Ok(())
    }
}

#[test]
fn everything_that_is_kept_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("made/when needed");
    let vector: Vec<f32> = (0..100_000).map(|i| f32::from_bits(i * 40_003)).collect();
    {
        let replica = run(&directory);
        assert_eq!(replica.resumed().unwrap(), None);
        let kept = replica
            .keep_value(Value::shared("vector", vector.clone()))
            .unwrap();
        assert!(!kept.resumed());
        replica
            .keep_value(Value::shared("none", Vec::<f32>::new()))
            .unwrap();
        let later = replica
            .keep_value(Value::shared("optimizer", None))
            .unwrap();
        replica.keep(Words(b"one\0two".to_vec())).unwrap();
        *later.lock().unwrap() = Some(optimizer());
        let saved = replica.checkpoint().unwrap().expect("there is a directory");
        assert_eq!(saved.number, 1);
        assert_eq!(saved.path, directory.join("checkpoint-1"));
        assert!(saved.bytes > 400_000, "{saved:?}");
        assert!(saved.not_removed.is_empty());
    }
    let replica = run(&directory);
    let resumed = replica.resumed().unwrap().expect("there is a checkpoint");
    assert_eq!((resumed.number, resumed.world_size), (1, 1));
    assert!(resumed.skipped.is_empty());
    for start in [vec![], vec![7.0; vector.len()]] {
        let replica = run(&directory);
        let kept = replica.keep_value(Value::shared("vector", start)).unwrap();
        assert!(kept.resumed());
        let bits = |vector: &[f32]| vector.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&kept.lock().unwrap()), bits(&vector));
    }
    let kept = replica
        .keep_value(Value::shared("none", vec![1.0_f32; 0]))
        .unwrap();
    assert!(kept.resumed() && kept.lock().unwrap().is_empty());
    let kept = replica
        .keep_value(Value::<Option<Optimizer>>::shared("optimizer", None))
        .unwrap();
    assert_eq!(*kept.lock().unwrap(), Some(optimizer()));
    let kept = replica.keep(Words(vec![])).unwrap();
    assert_eq!(kept.lock().unwrap().0, b"one\0two");
    let new = replica.keep_value(Value::shared("new", 5_u8)).unwrap();
    assert!(!new.resumed());
    assert_eq!(*new.lock().unwrap(), 5);
}

#[test]
fn numbers_go_on_over_runs_and_only_the_newest_stay() {
    let folder = tempfile::tempdir().unwrap();
    let junk = ["checkpoint-old", "checkpoint-007", ".tmp-note", "notes"];
    for name in junk {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("manifest"), "junk").unwrap();
    }
    let checkpoints = || -> Vec<String> {
        let mut names = names(folder.path());
        names.retain(|name| !junk.contains(&name.as_str()));
        names
    };
    for last in [2, 4] {
        let replica = run(folder.path());
        let count = replica.keep_value(Value::shared("count", 0)).unwrap();
        assert_eq!(*count.lock().unwrap(), last - 2);
        for _ in 0..2 {
            *count.lock().unwrap() += 1;
            let saved = replica.checkpoint().unwrap().unwrap();
            assert_eq!(saved.number, *count.lock().unwrap());
        }
        assert_eq!(
            checkpoints(),
            [
                format!("checkpoint-{}", last - 1),
                format!("checkpoint-{last}")
            ]
        );
    }
    run_keeping(folder.path(), 1).checkpoint().unwrap();
    assert_eq!(checkpoints(), ["checkpoint-5"]);
    for name in junk {
        assert_eq!(names(&folder.path().join(name)), ["manifest"]);
    }
}

#[test]
fn what_a_run_has_not_kept_yet_is_carried_from_checkpoint_to_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    {
        let replica = run(folder.path());
        replica.keep_value(Value::shared("early", 1)).unwrap();
        replica
            .keep_value(Value::shared("late", vec![2.5_f32; 10]))
            .unwrap();
        replica
            .keep_value(Value::per_replica("never", "x".to_owned()))
            .unwrap();
        replica.checkpoint().unwrap();
    }
    {
        let replica = run_keeping(folder.path(), 1);
        let early = replica.keep_value(Value::shared("early", 0)).unwrap();
        for _ in 0..3 {
            *early.lock().unwrap() += 1;
            replica.checkpoint().unwrap();
        }
        assert_eq!(names(folder.path()), ["checkpoint-4"]);
        // The checkpoint that it came from is gone.
        let late = replica.keep_value(Value::shared("late", vec![])).unwrap();
        assert_eq!(*late.lock().unwrap(), [2.5_f32; 10]);
        late.lock().unwrap()[0] = 3.0;
        replica.checkpoint().unwrap();
    }
    let found = gradring::checkpoint::inspect(folder.path()).unwrap();
    let content = found.newest_sound().unwrap().content.as_ref().unwrap();
    let written: Vec<(&str, u64)> = content
        .states
        .iter()
        .map(|state| (state.name.as_str(), state.checkpoint))
        .collect();
    assert_eq!(written, [("early", 5), ("late", 5), ("never", 1)]);
    let replica = run(folder.path());
    let early = replica.keep_value(Value::shared("early", 0)).unwrap();
    let late = replica
        .keep_value(Value::shared("late", Vec::<f32>::new()))
        .unwrap();
    let never = replica
        .keep_value(Value::per_replica("never", String::new()))
        .unwrap();
    assert_eq!(*early.lock().unwrap(), 4);
    assert_eq!(late.lock().unwrap()[..2], [3.0, 2.5]);
    assert_eq!(*never.lock().unwrap(), "x");
}

#[test]
fn two_states_of_one_name_and_names_of_no_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let replica = run(folder.path());
    let kept = replica.keep_value(Value::shared("name", 1)).unwrap();
    let error = replica.keep_value(Value::shared("name", 2)).unwrap_err();
    assert!(
        matches!(&error, Error::Duplicate { name, .. } if name == "name"),
        "{error}"
    );
    assert!(!error.ends_the_run());
    // The handle may go: the state is still that of this name.
    drop(kept);
    assert!(replica.keep_value(Value::per_replica("name", 2)).is_err());
    for name in [String::new(), "x".repeat(201)] {
        let error = replica.keep_value(Value::shared(name, 1)).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    let saved = replica.checkpoint().unwrap().unwrap();
    assert_eq!(names(&saved.path), ["manifest", "name.shared"]);
}

#[test]
fn without_a_directory_there_is_nothing_to_save_or_to_resume() {
    let replica = gradring::Replica::builder()
        .handle_signals(false)
        .join()
        .unwrap();
    let kept = replica.keep_value(Value::shared("value", 1)).unwrap();
    assert_eq!(replica.checkpoint().unwrap(), None);
    assert_eq!(replica.checkpoint_point().unwrap(), None);
    assert_eq!(replica.resumed().unwrap(), None);
    let guard = kept.lock().unwrap();
    // What would not work with a directory does not work without.
    let error = replica.checkpoint().unwrap_err();
    assert!(is_not_saved(&error, "a guard of it is held"), "{error}");
    drop(guard);
}

#[test]
fn a_checkpoint_needs_all_guards_and_a_thread_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let replica = run(folder.path());
    let kept = replica.keep_value(Value::shared("value", 1)).unwrap();
    let again = kept.clone();
    {
        let mut guard = kept.lock().unwrap();
        let error = again.lock().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        *guard += 1;
        let error = replica.checkpoint().unwrap_err();
        assert!(is_not_saved(&error, "value"), "{error}");
        // Told before anything is due.
        let error = replica.checkpoint_point().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        // Another thread waits for its turn.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *again.lock().unwrap() += 1);
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!other.is_finished());
            drop(guard);
        });
    }
    assert_eq!(*kept.lock().unwrap(), 3);
    replica.checkpoint().unwrap().unwrap();
    let panicked = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _guard = kept.lock().unwrap();
            std::panic::resume_unwind(Box::new(()));
        });
        thread.join()
    });
    panicked.unwrap_err();
    assert!(matches!(kept.lock(), Err(Error::Invalid { .. })));
    assert!(is_not_saved(&replica.checkpoint().unwrap_err(), "panicked"));
    assert_eq!(names(folder.path()), ["checkpoint-1"]);
}

#[test]
fn a_state_that_holds_its_own_handle_and_asks_for_it_has_an_error() {
    struct Asking(std::sync::OnceLock<gradring::checkpoint::Kept<Asking>>);
    impl State for Asking {
        fn name(&self) -> &str {
            "asking"
        }
        fn whose(&self) -> Whose {
            Whose::Shared
        }
        fn save(&self, _: &mut dyn Write) -> Result<(), StateError> {
            let asked = self
                .0
                .get()
                .expect("set")
                .lock()
                .err()
                .map(|error| error.to_string());
            Err(StateError::NotNow {
                state: "asking".to_owned(),
                why: asked.expect("it is locked"),
            })
        }
        fn load(&mut self, _: &mut dyn Read) -> Result<(), StateError> {
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let replica = run(folder.path());
    let kept = replica.keep(Asking(std::sync::OnceLock::new())).unwrap();
    assert!(kept.lock().unwrap().0.set(kept.clone()).is_ok());
    let error = replica.checkpoint().unwrap_err();
    assert!(is_not_saved(&error, "a second one of asking"), "{error}");
}
