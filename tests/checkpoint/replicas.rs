//! Several replicas: the same outcome on all, and other numbers of them afterwards.

use super::broken::Failing;
use super::{names, setup, world};
use crate::world::{Ended, World, tell};
use gradring::checkpoint::{State, StateError, Value, Whose};
use gradring::codec::policy::Quantile;
use gradring::{Error, Exchange, Flags, Replica, parameter_hash};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

/// Tells the outcome in words that do not depend on the rank.
fn outcome<T: std::fmt::Debug>(what: &str, result: &Result<Option<T>, Error>) {
    match result {
        Ok(made) => tell(format!("{what} ok {}", made.is_some())),
        Err(error) => tell(format!("{what} error {error}")),
    }
}

pub(crate) fn replica(words: &[&str]) {
    if words[0] == "stop" {
        return stop(words);
    }
    let replica = match words[0] {
        "slow" | "verify" => Replica::builder()
            .deadline(Duration::from_millis(400))
            .join(),
        "apart" => {
            let here = std::env::temp_dir().join(format!("{}-{}", words[1], std::process::id()));
            Replica::builder().checkpoint_directory(here).join()
        }
        _ => Replica::join(),
    };
    let replica = replica.expect("joins");
    let rank = replica.rank();
    match words[0] {
        "change" => change(&replica).expect("goes on"),
        "unmerged" => {
            let count = replica.keep_value(Value::per_replica("count", 0));
            match count {
                Err(error) => tell(format!("error {error}")),
                Ok(_) => outcome("save", &replica.checkpoint()),
            }
        }
        "differ" => {
            let common = replica
                .keep_value(Value::shared("common", 1))
                .expect("kept");
            let whose = if rank == 1 {
                Whose::Replica
            } else {
                Whose::Shared
            };
            let other = Failing {
                fails: false,
                whose,
            };
            match words[1] {
                "names" if rank == 1 => {}
                _ => drop(replica.keep(other).expect("kept")),
            }
            outcome("first", &replica.checkpoint());
            // The run goes on.
            replica.barrier().expect("all come");
            drop(common);
        }
        "refuse" => {
            let common = replica
                .keep_value(Value::shared("common", 1))
                .expect("kept");
            let (fails, whose) = (words[1] == "failing" && rank == 1, Whose::Replica);
            let failing = replica.keep(Failing { fails, whose }).expect("kept");
            outcome("before", &replica.resumed());
            let is = |how| words[1] == how && rank == 1;
            let streamed = Exchange::builder(8).name("streamed").streamed();
            let mut streamed = streamed.build(&replica).expect("agreed");
            let mut sums = replica.accumulator("sums").expect("room");
            let guard = is("held").then(|| common.lock().expect("free"));
            // All come to it, and rank 1 does not leave it.
            let mut block = Some(sums.synchronized().expect("all come"));
            if !is("block") {
                block = None;
            }
            let open = is("open").then(|| streamed.begin().expect("none is open"));
            outcome("first", &replica.checkpoint());
            drop((guard, open, block));
            failing.lock().expect("free").fails = false;
            outcome("second", &replica.checkpoint());
        }
        "slow" => {
            replica.keep(Slow).expect("kept");
            outcome("save", &replica.checkpoint());
            replica.barrier().expect("all come");
        }
        "verify" => outcome("resume", &replica.resumed()),
        "move" => {
            let kept = replica.keep_value(Value::shared("common", 1));
            kept.expect("kept");
            std::env::set_current_dir("/").expect("is there");
            let saved = replica.checkpoint().expect("saves").expect("a directory");
            tell(format!("path {}", saved.path.display()));
        }
        "exchange" => exchange(&replica, words),
        "leave" => {
            let exchange = Exchange::builder(100).build(&replica).expect("made");
            let exchange = replica.keep(exchange).expect("kept");
            replica.barrier().expect("all come");
            if rank == 0 {
                drop((replica, exchange));
                tell("left");
                // Alive until the other one has seen that it has left.
                std::thread::sleep(Duration::from_secs(1));
                return;
            }
            let error = replica.barrier().expect_err("rank 0 has left");
            tell(format!("error {error}"));
        }
        "apart" => outcome("save", &replica.checkpoint()),
        other => panic!("no case {other}"),
    }
}

/// What it loads, it tells; then it saves something else.
fn change(replica: &Replica) -> Result<(), Error> {
    let rank = replica.rank();
    let shared = replica.keep_value(Value::shared("shared", 0_u64))?;
    let mean = replica.keep_value(Value::per_replica("mean", vec![0.0_f32; 3]))?;
    let sum = Value::per_replica("sum", 0_u64).merged_by(|old, rank, world_size| {
        let mine = old
            .iter()
            .enumerate()
            .filter(|(i, _)| i % world_size == rank);
        mine.map(|(_, x)| x).sum()
    });
    let sum = replica.keep_value(sum)?;
    tell(format!(
        "has {} {:?} {}",
        *shared.lock()?,
        *mean.lock()?,
        *sum.lock()?
    ));
    *shared.lock()? += 10;
    mean.lock()?[0] += rank as f32;
    *sum.lock()? += rank as u64 + 1;
    replica.checkpoint()?;
    Ok(())
}

#[test]
fn what_n_replicas_saved_goes_on_with_any_number_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let has = |world_size| -> Vec<String> {
        let ended = world("change", world_size, folder.path()).succeed();
        ended
            .iter()
            .map(|ended| ended.one("has").to_owned())
            .collect()
    };
    assert_eq!(has(1), ["0 [0.0, 0.0, 0.0] 0"]);
    // 0 and 1 in sum, of rank 0 only.
    assert_eq!(has(2), ["10 [0.0, 0.0, 0.0] 1", "10 [0.0, 0.0, 0.0] 0"]);
    // The same number: each has its own.
    assert_eq!(has(2), ["20 [0.0, 0.0, 0.0] 2", "20 [1.0, 0.0, 0.0] 2"]);
    let one = "30 [1.0, 0.0, 0.0]";
    assert_eq!(
        has(3),
        [format!("{one} 3"), format!("{one} 4"), format!("{one} 0")]
    );
    assert_eq!(has(1), ["40 [2.0, 0.0, 0.0] 13"]);
}

#[test]
fn a_value_that_nobody_can_merge_is_an_error_with_another_number_of_replicas() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut told = Vec::new();
    for world_size in [2, 2, 3] {
        let ended = world("unmerged", world_size, folder.path()).succeed();
        told.push(
            ended
                .iter()
                .map(|ended| ended.heard.join("|"))
                .collect::<Vec<_>>(),
        );
    }
    assert!(
        told[..2]
            .iter()
            .flatten()
            .all(|told| told == "save ok true"),
        "{told:?}"
    );
    for told in &told[2] {
        assert!(told.contains("is of 2 replicas, found 3"), "{told}");
    }
}

/// What all have told at this point is the same.
fn same<'a>(ended: &'a [Ended], begin: &str) -> &'a str {
    let first = ended[0].one(begin);
    for other in ended {
        assert_eq!(other.one(begin), first);
    }
    first
}

#[test]
fn replicas_that_keep_different_states_have_the_same_error() {
    for (how, expected) in [
        (
            "names",
            "rank 0 has shared, rank 1 has none, rank 2 has shared",
        ),
        (
            "kinds",
            "rank 0 has shared, rank 1 has per replica, rank 2 has shared",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let ended = world(&format!("differ {how}"), 3, folder.path()).succeed();
        let error = same(&ended, "first error");
        assert!(
            error.contains("state failing") && error.contains(expected),
            "{error}"
        );
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn what_one_replica_cannot_do_is_the_same_error_on_all_and_the_run_goes_on() {
    for (how, expected) in [
        ("held", "a guard of it is held"),
        ("open", "a step in parts is open"),
        ("block", "synchronized"),
        ("failing", "it does not want to"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let ended = world(&format!("refuse {how}"), 3, folder.path()).succeed();
        let error = same(&ended, "first error");
        assert!(
            error.contains("rank 1") && error.contains(expected),
            "{error}"
        );
        assert_eq!(same(&ended, "second"), "ok true");
        assert_eq!(names(folder.path()), ["checkpoint-1"]);
    }
}

#[test]
fn replicas_that_see_different_directories_have_the_same_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder
        .path()
        .file_name()
        .expect("a name")
        .to_str()
        .expect("a text")
        .to_owned();
    let case = format!("apart {name}");
    let ended = world(&case, 2, folder.path()).succeed();
    let error = same(&ended, "save error");
    assert!(error.contains("no checkpoint was made: rank 1"), "{error}");
    for entry in std::fs::read_dir(std::env::temp_dir())
        .expect("readable")
        .flatten()
    {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("{name}-"))
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A state that takes longer than the deadline of the others' waits.
struct Slow;

impl State for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn whose(&self) -> Whose {
        Whose::Shared
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        std::thread::sleep(Duration::from_millis(1500));
        out.write_all(b"slow")
            .map_err(|error| StateError::io("slow", error))
    }

    fn load(&mut self, _: &mut dyn Read) -> Result<(), StateError> {
        Ok(())
    }
}

#[test]
fn a_trainer_that_changes_its_directory_goes_on_saving_in_the_same_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("is there");
    let mut setup = setup(Path::new("here"));
    let text = path.to_str().expect("a text");
    setup.wrapper = ["env", "-C", text].map(str::to_owned).to_vec();
    for ended in World::with("move", 2, &setup).succeed() {
        let expected = path.join("here/checkpoint-1");
        assert_eq!(Path::new(ended.one("path ")), expected);
        assert!(expected.join("manifest").is_file());
    }
}

#[test]
fn reading_may_take_longer_than_any_deadline() {
    let folder = tempfile::tempdir().expect("a folder");
    // Holes are read as other bytes are: a second, or half of one.
    let checkpoint = folder.path().join("checkpoint-1");
    std::fs::create_dir(&checkpoint).expect("made");
    let (bytes, name) = (1_u64 << 30, "large");
    let large = std::fs::File::create(checkpoint.join("large.shared")).expect("made");
    large.set_len(bytes).expect("room");
    let json = format!(
        r#"{{"format": 1, "number": 1, "world_size": 2, "written": "2026-01-31T23:59:59Z", "restart": 0, "states":
        [{{"name": "{name}", "whose": "shared", "checkpoint": 1, "files":
        [{{"file": "{name}.shared", "bytes": {bytes}, "crc32c": "00000000"}}]}}]}}
"#
    );
    let crc = crc32c::crc32c(json.as_bytes());
    let manifest = format!("{json}crc32c {crc:08x}\n");
    std::fs::write(checkpoint.join("manifest"), manifest).expect("written");
    // It is damaged, which is known when all of it is read.
    for ended in world("verify", 2, folder.path()).succeed() {
        let error = ended.one("resume error");
        assert!(error.contains("large.shared is damaged"), "{error}");
    }
}

#[test]
fn writing_may_take_longer_than_any_deadline() {
    let folder = tempfile::tempdir().expect("a folder");
    let ended = world("slow", 2, folder.path()).succeed();
    assert_eq!(same(&ended, "save"), "ok true");
}

#[test]
fn a_kept_exchange_does_not_hold_a_replica_in_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let ended = world("leave", 2, folder.path()).succeed();
    assert!(
        ended[1].one("error").contains("rank 0 has left"),
        "{:?}",
        ended[1].heard
    );
}

/// `exchange FROM-SCRATCH-TO`: steps until that number, tells the hash of the parameters.
fn exchange(replica: &Replica, words: &[&str]) {
    let last: u64 = words[1].parse().expect("a number");
    let length = 50_000;
    let exchange = Exchange::builder(length).policy(Quantile::new(0.02).expect("a density"));
    let exchange = replica
        .keep(exchange.build(replica).expect("made"))
        .expect("kept");
    let parameters = replica.keep_value(Value::shared("parameters", vec![1.0_f32; length]));
    let parameters = parameters.expect("kept");
    while exchange.lock().expect("free").steps() < last {
        {
            let (mut exchange, mut parameters) = (
                exchange.lock().expect("free"),
                parameters.lock().expect("free"),
            );
            let (step, rank) = (exchange.steps() as usize, replica.rank());
            let update = |i: usize| ((i * 7919 + step * 31 + rank * 17) % 1009) as f32 * 1e-5;
            let update: Vec<f32> = (0..length).map(update).collect();
            exchange
                .step(Some(&update), &mut parameters)
                .expect("steps");
        }
        if exchange.lock().expect("free").steps().is_multiple_of(4) {
            replica.checkpoint().expect("is made");
        }
    }
    tell(format!(
        "hash {:x?}",
        parameter_hash(&parameters.lock().expect("free"))
    ));
}

#[test]
fn a_resumed_exchange_goes_on_as_if_it_had_never_stopped() {
    let run = |lasts: &[u64]| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut hash = String::new();
        for last in lasts {
            let ended = world(&format!("exchange {last}"), 2, folder.path()).succeed();
            hash = same(&ended, "hash").to_owned();
        }
        hash
    };
    // Stopped after 6 it goes on from 4.
    assert_eq!(run(&[16]), run(&[6, 9, 16]));
}

/// Counts until somebody is asked to stop; `stop here` returns from the point, `stop exit` ends there.
fn stop(words: &[&str]) {
    let replica = Replica::builder()
        .exit_on_stop(words[1] == "exit")
        .join()
        .expect("joins");
    let count = replica
        .keep_value(Value::shared("count", 0_u64))
        .expect("kept");
    tell(format!("from {}", *count.lock().expect("free")));
    loop {
        *count.lock().expect("free") += 1;
        if replica.rank() == 1 && (*count.lock().expect("free")).is_multiple_of(5) {
            replica.raise(Flags::TERMINATE);
        }
        let stopped = replica.checkpoint_point().expect("is made");
        if let Some(stop) = stopped {
            tell(format!(
                "stopped {stop} at {}",
                *count.lock().expect("free")
            ));
            // All has been saved.
            *count.lock().expect("free") += 1000;
            let saved = replica.checkpoint().expect("is there").expect("was made");
            tell(format!("saved {}", saved.number));
            return;
        }
    }
}

#[test]
fn a_stop_at_a_checkpoint_point_saves_and_the_next_run_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |how: &str, directory: &Path| -> (Vec<Option<i32>>, Vec<Ended>) {
        let ended = World::with(&format!("stop {how}"), 2, &setup(directory)).finish();
        (
            ended.iter().map(|ended| ended.status.code()).collect(),
            ended,
        )
    };
    let (codes, first) = run("here", folder.path());
    assert_eq!(codes, [Some(0), Some(0)]);
    let stopped: u64 = same(&first, "stopped terminated at")
        .parse()
        .expect("a number");
    assert!((5..=6).contains(&stopped), "{stopped}");
    assert_eq!(same(&first, "saved"), "1");
    let (codes, second) = run("exit", folder.path());
    assert_eq!(codes, [Some(143), Some(143)]);
    assert_eq!(same(&second, "from"), stopped.to_string());
    let (_, third) = run("exit", folder.path());
    let from: u64 = same(&third, "from").parse().expect("a number");
    assert!((10..=11).contains(&from), "{from}");
}
