//! A replica that is killed in each step of a save: what is loaded then is all of the old checkpoint, or all of the new one.

use super::{names, setup, world};
use crate::world::{World, tell};
use gradring::checkpoint::Value;
use gradring::{Error, Replica};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

/// Goes on to step `words[1]`, with a checkpoint after each; tells from which step it goes on.
pub(crate) fn train(words: &[&str]) {
    let last: u64 = words[1].parse().expect("a number");
    let replica = Replica::join().expect("joins");
    if let Err(error) = steps(&replica, last) {
        tell(format!("error {error}"));
    }
}

fn steps(replica: &Replica, last: u64) -> Result<(), Error> {
    let rank = replica.rank() as f32;
    let step = replica.keep_value(Value::shared("step", 0_u64))?;
    let parameters = replica.keep_value(Value::shared("parameters", vec![0.0_f32; 70_000]))?;
    let own = replica.keep_value(Value::per_replica("own", vec![0.0_f32; 3000]))?;
    let from = *step.lock()?;
    // All are of the same step, or the set is none.
    assert!(parameters.lock()?.iter().all(|&x| x == from as f32));
    let expected = if from == 0 { 0.0 } else { from as f32 + rank };
    assert!(own.lock()?.iter().all(|&x| x == expected));
    tell(format!("from {from}"));
    for now in from + 1..=last {
        *step.lock()? = now;
        parameters.lock()?.fill(now as f32);
        own.lock()?.fill(now as f32 + rank);
        replica.checkpoint()?;
        tell(format!("saved {now}"));
    }
    Ok(())
}

/// Kills `victim` at the n-th passing of a point in the third save; from which step two replicas go on then.
fn goes_on_from(directory: &Path, victim: usize, point: &str, nth: usize) -> u64 {
    let mut setup = setup(directory);
    let crash = format!("{victim} {point} {nth}");
    let crash = ("GRADRING_CRASH_POINT".to_owned(), crash);
    setup.environment.push(crash);
    let ended = World::with("train 9", 2, &setup).finish();
    let died = Some(Signal::SIGKILL as i32);
    assert_eq!(
        ended[victim].status.signal(),
        died,
        "{point} {nth} is never passed"
    );
    let error = ended[1 - victim].one("error");
    assert!(error.contains(&format!("rank {victim} died")), "{error}");
    let saved = |line: &&String| line.starts_with("saved");
    assert_eq!(ended[1 - victim].heard.iter().filter(saved).count(), 2);

    let again = world("train 5", 2, directory).succeed();
    let names = names(directory);
    assert_eq!(names.len(), 2, "{point} {nth}: {names:?}");
    assert!(
        names.iter().all(|name| name.starts_with("checkpoint-")),
        "{names:?}"
    );
    assert_eq!(again[0].one("from"), again[1].one("from"));
    again[0].one("from").parse().expect("a number")
}

#[test]
fn whenever_a_replica_is_killed_in_a_save_all_of_one_checkpoint_is_left() {
    for (victim, point, nth, expected) in [
        (0, "temporary-made", 3, 2),
        // Three states each time.
        (0, "state-written", 7, 2),
        (0, "state-written", 9, 2),
        (1, "state-written", 3, 2),
        (0, "states-synced", 3, 2),
        (1, "states-synced", 3, 3),
        (0, "manifest-written", 3, 2),
        (0, "renamed", 3, 3),
        (0, "pruned", 3, 3),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let from = goes_on_from(folder.path(), victim, point, nth);
        assert_eq!(from, expected, "rank {victim} killed at {point} {nth}");
    }
}

#[test]
fn a_save_that_is_killed_at_any_time_leaves_all_of_one_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut least = 0;
    for round in 0..5 {
        let mut running = world("train 100000", 2, folder.path());
        running.replicas[0].hear("from");
        running.replicas[0].hear("saved");
        for _ in 0..round {
            running.replicas[0].hear("saved");
        }
        running.replicas[round % 2].signal(Signal::SIGKILL);
        let ended = running.finish();
        let saved = ended.iter().flat_map(|ended| &ended.heard);
        let saved = saved.filter_map(|line| line.strip_prefix("saved "));
        let told = saved
            .map(|step| step.parse::<u64>().expect("a number"))
            .max();
        let again = world("train 0", 2, folder.path()).succeed();
        let from: u64 = again[0].one("from").parse().expect("a number");
        assert!(
            from >= told.unwrap_or(0),
            "what was said to be saved is there"
        );
        assert!(from > least, "{from} after {least}");
        least = from;
    }
}
