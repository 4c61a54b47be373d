//! What benches of several replicas share: a task for them, rows of numbers back, and time that the slowest one decides.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each bench includes this as a module and uses its own part"
)]

use gradring::launch::Launch;
use gradring::{Replica, op};
use std::time::Instant;

const RESULT: &str = "GRADRING_BENCH_RESULT";
const TASK: &str = "GRADRING_BENCH_TASK";

/// Starts this program as replicas, which do `task`, and gives rank 0's rows. Ends the bench where they fail.
pub fn launch(world_size: usize, task: &str) -> Vec<Vec<f64>> {
    launch_with(world_size, task, |launch| launch)
}

/// As [`launch`], with more settings.
pub fn launch_with(
    world_size: usize,
    task: &str,
    settings: impl FnOnce(Launch) -> Launch,
) -> Vec<Vec<f64>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("result");
    let launch = Launch::this_program()
        .replicas(world_size)
        .env(TASK, task)
        .env(RESULT, &file);
    let outcome = settings(launch).run();
    match outcome {
        Ok(outcome) if outcome.code == 0 => {}
        other => {
            eprintln!("the replicas failed: {other:?}");
            std::process::exit(1);
        }
    }
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let numbers = |line: &str| {
        line.split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect()
    };
    text.lines().map(numbers).collect()
}

/// What this replica is to do, word by word.
pub fn task() -> Vec<String> {
    let task = std::env::var(TASK).unwrap_or_default();
    task.split_whitespace().map(str::to_owned).collect()
}

/// The task's word at this place, as a number.
pub fn number<T: std::str::FromStr>(task: &[String], at: usize) -> T {
    let number = task.get(at).and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("word {at} of {task:?} is no number"))
}

/// Hands rank 0's rows to the bench.
pub fn hand_over(replica: &Replica, rows: &[Vec<f64>]) {
    if replica.rank() > 0 {
        return;
    }
    let lines = rows.iter().map(|row| {
        let numbers: Vec<String> = row.iter().map(f64::to_string).collect();
        numbers.join(" ") + "\n"
    });
    let file = std::env::var_os(RESULT).expect("the bench names it");
    std::fs::write(file, lines.collect::<String>()).expect("a temporary file");
}

/// Seconds of one `work` of `repeats`, all replicas at once, of the slowest.
pub fn seconds(replica: &Replica, repeats: usize, mut work: impl FnMut()) -> f64 {
    replica.barrier().expect("all come");
    let start = Instant::now();
    for _ in 0..repeats {
        work();
    }
    slowest(replica, start.elapsed().as_secs_f64() / repeats as f64)
}

/// The largest of all replicas' numbers.
pub fn slowest(replica: &Replica, number: f64) -> f64 {
    let mut number = [number];
    replica.all_reduce(&mut number, op::Max).expect("reduces");
    number[0]
}
