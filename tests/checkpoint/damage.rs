//! Damaged checkpoints: the one before is used, and all that is wrong is named.

use super::{files, names, run};
use gradring::Error;
use gradring::checkpoint::{Damage, Value, inspect};
use std::fs;
use std::path::Path;

/// Two checkpoints: in the first everything is 1, in the second 2.
fn two(directory: &Path) {
    let replica = run(directory);
    let vector = replica
        .keep_value(Value::shared("vector", vec![0.0_f32; 2000]))
        .unwrap();
    let count = replica
        .keep_value(Value::per_replica("count", 0_u64))
        .unwrap();
    for number in [1, 2] {
        vector.lock().unwrap().fill(number as f32);
        *count.lock().unwrap() = number;
        replica.checkpoint().unwrap().unwrap();
    }
}

/// A run goes on from the first, and says what is wrong with the second.
fn falls_back(directory: &Path, what: &str) -> Vec<Damage> {
    let replica = run(directory);
    let resumed = replica.resumed().unwrap().expect("the first is whole");
    assert_eq!(resumed.number, 1, "{what}");
    assert_eq!(resumed.skipped.len(), 1, "{what}");
    let skipped = &resumed.skipped[0];
    assert_eq!(skipped.number, 2);
    assert_eq!(skipped.path, directory.join("checkpoint-2"));
    assert!(skipped.to_string().contains("checkpoint-2"));
    let vector = replica
        .keep_value(Value::shared("vector", Vec::<f32>::new()))
        .unwrap();
    let count = replica
        .keep_value(Value::per_replica("count", 0_u64))
        .unwrap();
    assert_eq!(
        (vector.lock().unwrap()[7], *count.lock().unwrap()),
        (1.0, 1),
        "{what}"
    );
    skipped.damages.clone()
}

/// Does something to each file of the second checkpoint, one after the other.
fn each_file(change: impl Fn(&Path), expected: impl Fn(&Damage) -> bool) {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    two(directory);
    let second = directory.join("checkpoint-2");
    let files = files(&second);
    assert_eq!(files.len(), 3);
    for path in files {
        let before = fs::read(&path).unwrap();
        change(&path);
        let name = path.file_name().unwrap().to_str().unwrap();
        let damages = falls_back(directory, name);
        assert_eq!(damages.len(), 1, "{damages:?}");
        assert!(
            damages[0].to_string().contains(name),
            "{name}: {}",
            damages[0]
        );
        assert!(expected(&damages[0]), "{name}: {:?}", damages[0]);
        let found = inspect(directory).unwrap();
        assert!(!found.is_sound());
        assert_eq!(found.checkpoints[0].damages, damages);
        assert_eq!(
            found.newest_sound().unwrap().path,
            directory.join("checkpoint-1")
        );
        if path.is_dir() {
            fs::remove_dir(&path).unwrap();
        } else if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, before).unwrap();
    }
    assert!(inspect(directory).unwrap().is_sound());
}

#[test]
fn a_bit_that_flips_in_any_file_is_found() {
    for place in [0.0, 0.3, 0.9999] {
        for bit in [0, 7] {
            let flip = |path: &Path| {
                let mut bytes = fs::read(path).unwrap();
                let at = (bytes.len() as f64 * place) as usize;
                bytes[at] ^= 1 << bit;
                fs::write(path, bytes).unwrap();
            };
            each_file(flip, |damage| {
                matches!(damage, Damage::Checksum { .. } | Damage::Content { .. })
            });
        }
    }
}

#[test]
fn a_file_of_another_length_is_found() {
    for change in [-1, 1, i64::MIN] {
        let cut = |path: &Path| {
            let mut bytes = fs::read(path).unwrap();
            let length = (bytes.len() as i64).saturating_add(change).max(0);
            bytes.resize(length as usize, b'\n');
            fs::write(path, bytes).unwrap();
        };
        each_file(cut, |damage| {
            matches!(
                damage,
                Damage::Length { .. } | Damage::Content { .. } | Damage::Checksum { .. }
            )
        });
    }
}

#[test]
fn a_file_that_is_gone_or_something_else_is_found() {
    each_file(
        |path| fs::remove_file(path).unwrap(),
        |damage| matches!(damage, Damage::Missing { .. }),
    );
    each_file(
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        |damage| matches!(damage, Damage::NoFile { .. }),
    );
    each_file(
        |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        },
        |damage| matches!(damage, Damage::NoFile { .. }),
    );
}

#[test]
fn a_checkpoint_under_another_number_is_found() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    fs::rename(
        folder.path().join("checkpoint-1"),
        folder.path().join("checkpoint-3"),
    )
    .unwrap();
    let replica = run(folder.path());
    let resumed = replica.resumed().unwrap().unwrap();
    assert_eq!(resumed.number, 2);
    assert_eq!(resumed.skipped[0].number, 3);
    let text = resumed.skipped[0].to_string();
    assert!(text.contains("checkpoint 1, expected 3"), "{text}");
}

#[test]
fn a_damaged_checkpoint_takes_no_place_of_one_that_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    fs::remove_file(folder.path().join("checkpoint-2/manifest")).unwrap();
    let replica = run(folder.path());
    replica.checkpoint().unwrap().unwrap();
    assert_eq!(
        names(folder.path()),
        ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    );
    replica.checkpoint().unwrap().unwrap();
    assert_eq!(names(folder.path()), ["checkpoint-3", "checkpoint-4"]);
}

#[test]
fn where_nothing_is_whole_a_run_does_not_begin_from_nothing() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    fs::write(folder.path().join("checkpoint-1/vector.shared"), "x").unwrap();
    fs::remove_file(folder.path().join("checkpoint-2/count.rank-0")).unwrap();
    let replica = run(folder.path());
    let error = replica
        .keep_value(Value::shared("vector", vec![0.0_f32]))
        .unwrap_err();
    assert!(matches!(error, Error::NotLoaded { .. }), "{error}");
    let text = error.to_string();
    for part in [
        "checkpoint-1",
        "checkpoint-2",
        "vector.shared",
        "count.rank-0 is missing",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(replica.checkpoint().is_err());
    assert_eq!(names(folder.path()), ["checkpoint-1", "checkpoint-2"]);
}

#[test]
fn damage_that_comes_after_the_checkpoint_was_chosen_is_found_while_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    let replica = run(folder.path());
    assert_eq!(replica.resumed().unwrap().unwrap().number, 2);
    let path = folder.path().join("checkpoint-2/vector.shared");
    let mut bytes = fs::read(&path).unwrap();
    bytes[5000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = replica
        .keep_value(Value::shared("vector", vec![9.0_f32; 2000]))
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotLoaded { path: found, .. } if *found == path),
        "{error}"
    );
    assert!(error.to_string().contains("CRC"), "{error}");
}

#[test]
fn a_state_that_is_another_one_now_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    two(folder.path());
    let replica = run(folder.path());
    let says = |error: Error, expected: &str| {
        let text = error.to_string();
        assert!(
            matches!(error, Error::NotLoaded { .. }) && text.contains(expected),
            "{text}"
        );
    };
    let other_length = Value::shared("vector", vec![0.0_f32; 1999]);
    says(
        replica.keep_value(other_length).unwrap_err(),
        "expected 1999, found 2000",
    );
    says(
        replica.keep_value(Value::shared("vector", 1)).unwrap_err(),
        "expected value, found vector",
    );
    says(
        replica
            .keep_value(Value::per_replica("vector", vec![0.0_f32]))
            .unwrap_err(),
        "expected per replica, found shared",
    );
    says(
        replica
            .keep_value(Value::per_replica("count", String::new()))
            .unwrap_err(),
        "state count",
    );
    // None of them has taken the name.
    let vector = replica
        .keep_value(Value::shared("vector", vec![0.0_f32; 2000]))
        .unwrap();
    assert_eq!(vector.lock().unwrap()[0], 2.0);
}
