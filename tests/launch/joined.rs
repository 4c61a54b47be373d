//! Replicas that join, and how the launcher sees what becomes of them.

use std::io::Write;
use std::process::Command;

use gradring::Replica;
use gradring::replica::{Error, Flags, Stop};

use crate::resumed;
use crate::tool::{Ended, Running, gradring, has_name, kill, until};

const CASE: &str = "GRADRING_TEST_CASE";

/// This test's program as `replicas` replicas that do what `case` says.
pub(crate) fn launcher(replicas: usize, options: &[&str], case: &str) -> Command {
    let mut command = gradring();
    command
        .args(["run", "-n", &replicas.to_string()])
        .args(options)
        .arg("--");
    command.arg(std::env::current_exe().expect("a path")).args([
        "--exact",
        "replica",
        "--nocapture",
    ]);
    command.env(CASE, case);
    command
}

/// The same with a shell between the launcher and each replica.
pub(crate) fn behind_a_shell(replicas: usize, case: &str) -> Command {
    let script = "echo shell $$; \"$0\" --exact replica --nocapture; exit $?";
    behind(script, replicas, &[], case)
}

/// The same with this script between the launcher and each replica, whose program is `$0`.
pub(crate) fn behind(script: &str, replicas: usize, options: &[&str], case: &str) -> Command {
    let mut command = gradring();
    command
        .args(["run", "-n", &replicas.to_string()])
        .args(options)
        .args(["--", "/bin/sh", "-c", script])
        .arg(std::env::current_exe().expect("a path"))
        .env(CASE, case);
    command
}

pub(crate) fn start(replicas: usize, options: &[&str], case: &str) -> Running {
    Running::start(launcher(replicas, options, case))
}

fn run(replicas: usize, options: &[&str], case: &str) -> Ended {
    start(replicas, options, case).finish()
}

/// Waits until the replicas of a generation run that [agree](until_agreed).
pub(crate) fn all_run(run: &Running, replicas: usize, restart: usize) {
    let end = format!(" of {replicas} restart {restart}");
    for rank in 0..replicas {
        let begin = format!("[{rank}] @ runs ");
        until("they run", || {
            let lines = run.stdout.lines(&begin);
            lines.iter().any(|line| line.ends_with(&end))
        });
    }
}

/// A line that a test can find between what the test harness says.
pub(crate) fn tell(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n@ {what}\n").as_bytes())
        .and_then(|()| out.flush())
        .expect("a pipe");
}

fn join() -> Replica {
    let replica = Replica::join().expect("the launcher's run");
    tell(format_args!("joined {}", std::process::id()));
    replica
}

/// Barriers until all have agreed to stop.
fn until_agreed(replica: &Replica) -> Result<Stop, Error> {
    // From here on a signal is a flag.
    replica.stop_requested();
    replica.barrier()?;
    tell(format_args!(
        "runs {} of {} restart {}",
        std::process::id(),
        replica.world_size(),
        std::env::var("GRADRING_RESTART").expect("always set")
    ));
    loop {
        replica.barrier()?;
        if let Some(stop) = replica.stop_requested() {
            return Ok(stop);
        }
    }
}

fn wait_for_ever() {
    loop {
        std::thread::park();
    }
}

/// What a replica does. It ends here, with its own exit code.
pub(crate) fn replica() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    let rank: usize = std::env::var("RANK")
        .expect("a rank")
        .parse()
        .expect("a number");
    tell(format_args!(
        "segment {}",
        std::env::var("GRADRING_SEGMENT").expect("a segment")
    ));
    let culprit = rank == 1;
    let barriers = |replica: &Replica| -> i32 {
        loop {
            if let Err(error) = replica.barrier() {
                eprintln!("rank {rank}: {error}");
                return 1;
            }
        }
    };
    let code = match (&*case, culprit) {
        ("all_join", _) => {
            let replica = join();
            replica.barrier().expect("all come");
            tell(format_args!(
                "rank {} of {}",
                replica.rank(),
                replica.world_size()
            ));
            0
        }
        ("wait_for_ever", _) => {
            let _replica = join();
            wait_for_ever();
            0
        }
        ("never_joins", true) => 0,
        ("is_slow_to_join", true) => {
            tell(format_args!("waits {}", std::process::id()));
            wait_for_ever();
            0
        }
        ("is_large", true) => {
            let memory = vec![1_u8; 512 << 20];
            let replica = join();
            let code = barriers(&replica);
            drop(memory);
            code
        }
        ("exits_without_leaving", true) => {
            let replica = join();
            replica.barrier().expect("all come");
            std::process::exit(0);
        }
        ("aborts", true) => {
            let replica = join();
            replica.abort("the loss is not a number");
            // Whoever aborts may take its time, and another one may well be the first to end.
            drop(replica);
            17
        }
        ("panics", true) => {
            let _replica = join();
            panic!("as the test wants it");
        }
        ("swallows_the_error", _) => {
            let replica = join();
            if culprit {
                replica.abort("for no reason");
            }
            barriers(&replica);
            0
        }
        ("stops_itself", true) => {
            let replica = join();
            replica.barrier().expect("all come");
            kill(std::process::id(), libc::SIGSTOP);
            barriers(&replica)
        }
        // The last rank of a world of 3 or more has no place to run.
        ("agrees_but_cannot_grow", _) if rank >= 2 => 5,
        ("agrees_but_cannot_grow_when_joined", _) if rank >= 2 => {
            let _replica = join();
            std::process::exit(5);
        }
        ("crashes_when_agreed", _) => {
            let replica = join();
            let _ = until_agreed(&replica);
            if culprit {
                kill(std::process::id(), libc::SIGKILL);
            }
            barriers(&replica)
        }
        ("resizes_itself", _) => {
            let replica = join();
            if culprit {
                replica.raise(Flags::RESIZE);
            }
            until_agreed(&replica).map_or(1, |stop| stop.exit_code().into())
        }
        (case, _) if case.starts_with("counts") => match resumed::counts(case, rank) {
            Ok(stop) => stop.exit_code().into(),
            Err(error) => {
                eprintln!("rank {rank}: {error}");
                1
            }
        },
        ("agrees_but_crashes_at_first", true)
            if std::env::var("GRADRING_RESTART").as_deref() == Ok("0") =>
        {
            let _ = until_agreed(&join());
            kill(std::process::id(), libc::SIGKILL);
            0
        }
        ("agrees_and_fails", true) => until_agreed(&join()).map_or(1, |_| 9),
        ("agrees_and_stays", true) => {
            drop(until_agreed(&join()));
            tell("stays");
            wait_for_ever();
            0
        }
        ("agrees_and_ends_with_0", _) => until_agreed(&join()).map_or(1, |_| 0),
        ("fails_at_first", true) if std::env::var("GRADRING_RESTART").as_deref() == Ok("0") => {
            let replica = join();
            replica.barrier().expect("all come");
            std::process::exit(3);
        }
        (case, _) if case.starts_with("agrees") || case == "fails_at_first" => {
            match until_agreed(&join()) {
                Ok(stop) => {
                    tell(format_args!("stops: {stop}"));
                    stop.exit_code().into()
                }
                Err(error) => {
                    eprintln!("rank {rank}: {error}");
                    1
                }
            }
        }
        _ => barriers(&join()),
    };
    std::process::exit(code);
}

fn report(ended: &Ended) -> &str {
    ended
        .stderr
        .split("gradring: rank ")
        .last()
        .unwrap_or_default()
}

#[test]
fn replicas_that_all_join_and_leave_succeed() {
    let ended = run(3, &[], "all_join");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for rank in 0..3 {
        assert!(
            ended
                .sorted()
                .contains(&format!("[{rank}] @ rank {rank} of 3")),
            "{ended:?}"
        );
    }
}

#[test]
fn a_killed_replica_is_the_culprit_whoever_ends_first() {
    let run = start(3, &[], "barriers");
    let pids = [0, 1, 2].map(|rank| run.stdout.line(&format!("[{rank}] @ joined ")));
    let name = run.stdout.line("[0] @ segment ");
    kill(pids[1].parse().unwrap(), libc::SIGKILL);
    let ended = run.finish();
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    let expected = format!("1 (pid {}) failed first: killed by SIGKILL after ", pids[1]);
    assert!(report(&ended).starts_with(&expected), "{}", ended.stderr);
    assert!(!has_name(&name));
}

#[test]
fn a_killed_replica_with_much_memory_is_the_culprit_too() {
    let run = start(2, &[], "is_large");
    let pid = run.stdout.line("[1] @ joined ");
    run.stdout.line("[0] @ joined ");
    kill(pid.parse().unwrap(), libc::SIGKILL);
    let ended = run.finish();
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
}

#[test]
fn a_replica_that_is_killed_before_it_joins_is_the_culprit() {
    let run = start(3, &[], "is_slow_to_join");
    let pid = run.stdout.line("[1] @ waits ");
    kill(pid.parse().unwrap(), libc::SIGKILL);
    let ended = run.finish();
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
}

#[test]
fn a_replica_behind_a_shell_is_watched_as_well() {
    let run = Running::start(behind_a_shell(2, "barriers"));
    let pids = [0, 1].map(|rank| run.stdout.line(&format!("[{rank}] @ joined ")));
    kill(pids[1].parse().unwrap(), libc::SIGKILL);
    let ended = run.finish();
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
}

#[test]
fn a_rank_that_ends_well_without_joining_while_others_wait_is_a_failure() {
    let ended = run(3, &[], "never_joins");
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
    assert!(report(&ended).contains("exit code 0"), "{}", ended.stderr);
    assert!(
        report(&ended).contains("it ended without joining"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_rank_that_ends_well_without_leaving_is_a_failure() {
    let ended = run(2, &[], "exits_without_leaving");
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
}

#[test]
fn an_abort_is_reported_with_its_reason_and_the_aborters_exit_code() {
    let ended = run(3, &[], "aborts");
    assert_eq!(ended.code, 17, "{}", ended.stderr);
    let expected = "it aborted the run: the loss is not a number";
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
    assert!(report(&ended).contains(expected), "{}", ended.stderr);
}

#[test]
fn a_panic_is_reported_with_its_message() {
    let ended = run(2, &[], "panics");
    assert_eq!(ended.code, 101, "{}", ended.stderr);
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
    assert!(
        report(&ended).contains("  | as the test wants it"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_run_whose_replicas_swallow_its_error_has_failed_all_the_same() {
    let ended = run(2, &[], "swallows_the_error");
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(
        report(&ended).contains("it aborted the run: for no reason"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_stopped_replica_is_named_although_it_never_ends() {
    let ended = run(2, &["--deadline", "1"], "stops_itself");
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(report(&ended).starts_with("1 (pid "), "{}", ended.stderr);
    assert!(
        report(&ended).contains("did not go on within the deadline"),
        "{}",
        ended.stderr
    );
    assert!(
        report(&ended).contains("its process did not end by itself"),
        "{}",
        ended.stderr
    );
}

#[test]
fn joined_replicas_stop_by_a_forwarded_signal_without_a_failure() {
    // More than once: one may see another die of the signal before its own has come to it.
    for _ in 0..8 {
        let run = start(3, &[], "barriers");
        for rank in 0..3 {
            run.stdout.line(&format!("[{rank}] @ joined "));
        }
        run.signal(libc::SIGTERM);
        let ended = run.finish();
        assert_eq!(ended.code, 143, "{}", ended.stderr);
        assert!(!ended.stderr.contains("failed first"), "{}", ended.stderr);
    }
}

#[test]
fn two_runs_of_replicas_that_join_go_on_side_by_side() {
    let runs = [start(2, &[], "all_join"), start(3, &[], "all_join")];
    for run in runs {
        let ended = run.finish();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
}
