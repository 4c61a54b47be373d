//! A replica that dies at a chosen moment of every schedule and operation.

use super::schedules::{Doing, OPERATIONS};
use super::world::{PATIENCE, World, tell};
use super::{setup, survivors_say};
use gradring::shm::life::{Life, look};
use gradring::{Error, Replica};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// By operation, the points that every rank comes to in it again and again.
fn points(operation: &str) -> &'static [&'static str] {
    match operation {
        "uncompressed flat" | "uncompressed scattered" | "uncompressed bf16" => &[
            "announced",
            "frame-written",
            "tail-stored",
            "frame-read",
            "folded",
        ],
        "asynchronous" => &[
            "frame-written",
            "tail-stored",
            "frame-read",
            "step-out",
            "marker-taken",
        ],
        "asynchronous without data" => &["frame-read", "step-out", "announced", "marker-taken"],
        "settle" | "asynchronous finish_epoch" => &[
            "announced",
            "frame-written",
            "tail-stored",
            "frame-read",
            "step-out",
            "marker-taken",
        ],
        "streamed" | "streamed onto a sum" | "streamed without data" => &[
            "announced",
            "frame-written",
            "tail-stored",
            "frame-read",
            "parts-out",
        ],
        "check" => &["announced", "value-written"],
        "long broadcast" => &["announced", "frame-read"],
        "very long all_gather" => &[
            "announced",
            "value-written",
            "frame-written",
            "tail-stored",
            "frame-read",
        ],
        "long all_reduce" => &["frame-written", "tail-stored", "frame-read", "folded"],
        _ => &["announced", "frame-written", "tail-stored", "frame-read"],
    }
}

/// Waits until a rank has died; when that was seen.
fn death(world: &World, rank: usize) -> Instant {
    let end = Instant::now() + PATIENCE;
    while look(&world.segment.rank(rank).life) != Life::Dead {
        assert!(Instant::now() < end, "rank {rank} does not come to its end");
        std::thread::yield_now();
    }
    Instant::now()
}

/// Of times between a death and the error of all others the one that a tenth of them are below: on a machine that is busy
/// with other things most may be late, but not all.
fn best_tenth(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    println!(
        "{} deaths: all others had the error after {:?}, at most {:?}",
        times.len(),
        times[times.len() / 2],
        times[times.len() - 1]
    );
    times[times.len() / 10]
}

fn errors_of_others(world: &mut World, victim: usize, expected: &str) {
    let others = (0..world.replicas.len()).filter(|&rank| rank != victim);
    for rank in others {
        let error = world.replicas[rank].hear("error");
        assert_eq!(error, format!("error {expected}"), "rank {rank}");
    }
}

#[test]
fn a_replica_killed_at_any_point_of_any_operation_is_reported_by_all_others() {
    let mut times = Vec::new();
    for operation in OPERATIONS {
        for point in points(operation) {
            for (victim, nth) in [(1, 12), (0, 20), (2, 37)] {
                let mut setup = setup(operation);
                let crash = (
                    "GRADRING_CRASH_POINT".to_owned(),
                    format!("{victim} {point} {nth}"),
                );
                setup.environment.push(crash);
                let mut world = World::with("until error", 3, &setup);
                let died = death(&world, victim);
                println!("{operation}: rank {victim} at {point} {nth}");
                errors_of_others(&mut world, victim, &format!("died {victim}"));
                assert!(
                    died.elapsed() < Duration::from_secs(5),
                    "not at the deadline"
                );
                times.push(died.elapsed());
                survivors_say(&world.finish(), victim, &format!("died {victim}"));
            }
        }
    }
    assert!(best_tenth(times) < Duration::from_millis(100));
}

#[test]
fn a_replica_killed_at_any_time_of_any_operation_is_reported_by_all_others() {
    let mut times = Vec::new();
    for operation in OPERATIONS {
        let mut world = World::with("until error", 3, &setup(operation));
        world.hear("running");
        world.replicas[1].signal(Signal::SIGKILL);
        let died = death(&world, 1);
        errors_of_others(&mut world, 1, "died 1");
        times.push(died.elapsed());
        survivors_say(&world.finish(), 1, "died 1");
    }
    assert!(best_tenth(times) < Duration::from_millis(100));
}

#[test]
fn the_last_one_alive_has_the_error_in_every_schedule() {
    for operation in OPERATIONS {
        let mut world = World::with("until error", 4, &setup(operation));
        world.hear("running");
        for rank in [3, 0, 1] {
            world.replicas[rank].signal(Signal::SIGKILL);
        }
        let error = world.replicas[2].hear("error");
        assert!(error.starts_with("error died"), "{operation}: {error}");
    }
}

#[test]
fn a_death_reaches_replicas_that_wait_in_different_operations() {
    // Rank 1 has made one asynchronous step and makes no more; rank 0 waits for it in a settle, rank 2 with its next step.
    let mut world = World::with("apart", 3, &setup(""));
    world.replicas[1].hear("stops");
    world.replicas[1].wait_for_stop();
    for rank in [0, 2] {
        world.replicas[rank].hear("comes");
    }
    let end = Instant::now() + PATIENCE;
    let pace = |rank: usize| world.segment.rank(rank).pace.get();
    while pace(0).stepping || pace(2).steps < 3 {
        assert!(Instant::now() < end, "{:?} {:?}", pace(0), pace(2));
        std::thread::yield_now();
    }
    world.replicas[1].signal(Signal::SIGKILL);
    let died = death(&world, 1);
    errors_of_others(&mut world, 1, "died 1");
    println!("both had the error after {:?}", died.elapsed());
    survivors_say(&world.finish(), 1, "died 1");
}

/// What the ranks of the test above do; the error with which it ends.
pub(crate) fn apart(replica: &Replica) -> Error {
    let ended = Doing::new(replica, "settle").and_then(|mut doing| {
        tell("comes");
        doing.apart()
    });
    ended.expect_err("rank 1 dies")
}
