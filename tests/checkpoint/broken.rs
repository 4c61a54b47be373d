//! Checkpoints that cannot be made: an error, and what was there before is as it was.

use super::children::{Child, not_run, private_shared_memory, within};
use super::{is_not_saved, names, run};
use gradring::checkpoint::{State, StateError, Value, Whose};
use std::io::{self, Read, Write};
use std::path::Path;

/// A state that fails after some bytes.
pub(crate) struct Failing {
    pub(crate) fails: bool,
    pub(crate) whose: Whose,
}

impl State for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn whose(&self) -> Whose {
        self.whose
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        let failed = io::Error::other("it does not want to");
        let written = out.write_all(&[7; 100_000]);
        let failed = if self.fails { Err(failed) } else { written };
        failed.map_err(|error| StateError::io("failing", error))
    }

    fn load(&mut self, _: &mut dyn Read) -> Result<(), StateError> {
        Ok(())
    }
}

#[test]
fn a_state_that_cannot_be_written_leaves_the_checkpoints_before() {
    let folder = tempfile::tempdir().unwrap();
    let replica = run(folder.path());
    let (fails, whose) = (false, Whose::Shared);
    let failing = replica.keep(Failing { fails, whose }).unwrap();
    replica.checkpoint().unwrap().unwrap();
    failing.lock().unwrap().fails = true;
    for _ in 0..2 {
        let error = replica.checkpoint().unwrap_err();
        assert!(is_not_saved(&error, "it does not want to"), "{error}");
        assert!(error.to_string().contains("failing.shared"), "{error}");
        assert!(!error.ends_the_run());
        assert_eq!(names(folder.path()), ["checkpoint-1"]);
    }
    failing.lock().unwrap().fails = false;
    assert_eq!(replica.checkpoint().unwrap().unwrap().number, 2);
}

#[test]
fn a_directory_that_cannot_be_made_or_has_no_number_left_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let replica = run(&file.join("below"));
    assert!(replica.checkpoint().is_err());
    let last = folder.path().join(format!("checkpoint-{}", u64::MAX));
    // A file is no checkpoint, but its name is taken.
    std::fs::write(&last, "x").unwrap();
    let error = run(folder.path()).resumed().unwrap_err();
    assert!(error.to_string().contains(&u64::MAX.to_string()), "{error}");
    std::fs::remove_file(&last).unwrap();
    let replica = run(folder.path());
    replica.resumed().unwrap();
    std::fs::write(&last, "x").unwrap();
    assert!(is_not_saved(
        &replica.checkpoint().unwrap_err(),
        "no number"
    ));
}

#[test]
fn a_full_disk_is_an_error_and_the_checkpoint_before_is_whole() {
    let test = "a_full_disk_is_an_error_and_the_checkpoint_before_is_whole";
    let Some(front) = private_shared_memory("8m") else {
        return not_run(
            test,
            "no file system of its own, neither as root nor in a user namespace",
        );
    };
    Child::spawn(&mut within(&front, "full disk", &[])).passes();
}

pub(crate) fn full_disk() {
    let directory = Path::new("/dev/shm/checkpoints");
    let replica = run(directory);
    let small = replica
        .keep_value(Value::shared("small", vec![1.0_f32; 100_000]))
        .unwrap();
    let large = replica
        .keep_value(Value::shared("large", Vec::<f32>::new()))
        .unwrap();
    replica.checkpoint().unwrap().unwrap();
    let free = || {
        nix::sys::statvfs::statvfs("/dev/shm")
            .unwrap()
            .blocks_available()
    };
    let before = free();
    *large.lock().unwrap() = vec![2.0; 4 << 20];
    small.lock().unwrap().fill(2.0);
    for _ in 0..3 {
        let error = replica.checkpoint().unwrap_err();
        assert!(is_not_saved(&error, "No space left"), "{error}");
        assert!(error.to_string().contains("large.shared"), "{error}");
        assert_eq!(names(directory), ["checkpoint-1"]);
        assert_eq!(
            free(),
            before,
            "everything that the attempt had taken is back"
        );
    }
    {
        let replica = run(directory);
        let small = replica
            .keep_value(Value::shared("small", Vec::<f32>::new()))
            .unwrap();
        assert_eq!(small.lock().unwrap()[99_999], 1.0);
    }
    large.lock().unwrap().truncate(1000);
    assert_eq!(replica.checkpoint().unwrap().unwrap().number, 2);
}
