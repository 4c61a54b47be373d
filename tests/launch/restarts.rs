//! One run, several generations.

use gradring::launch::Launch;

use crate::joined;
use crate::tool::{Ended, Gate, Running, has_name, lives, run, start, text, until};

/// Fails in the first generation, and does something else after it.
fn fails_at_first(then: &str) -> String {
    format!("if [ $GRADRING_RESTART = 0 ]; then [ $RANK = 1 ] && exit 3; sleep 1000; fi; {then}")
}

fn says(ended: &Ended, what: &str) {
    assert!(
        ended.stderr.contains(what),
        "no '{what}' in: {}",
        ended.stderr
    );
}

#[test]
fn a_failed_run_is_started_again() {
    let script = fails_at_first("echo generation $GRADRING_RESTART");
    let ended = run(2, &["--max-restarts", "2"], &script);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.sorted(), ["[0] generation 1", "[1] generation 1"]);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ended.stderr);
    assert!(
        lines[0].starts_with("gradring: rank 1 (pid "),
        "{}",
        lines[0]
    );
    assert!(
        lines[0].contains(") failed first: exit code 3 after "),
        "{}",
        lines[0]
    );
    let expected = "; restart 1 of 2 begins, with 2 replicas, from scratch, as there is no checkpoint directory";
    assert!(lines[0].ends_with(expected), "{}", lines[0]);
    assert!(
        lines[1].starts_with("gradring: all replicas succeeded in "),
        "{}",
        lines[1]
    );
    assert_eq!(lines[2], "  1 of 2 restarts used");
}

#[test]
fn replicas_that_join_meet_again_in_the_next_generation() {
    let run = joined::start(3, &["--max-restarts", "1"], "fails_at_first");
    let first = run.stdout.line("[0] @ segment ");
    run.stderr.line("gradring: rank 1 (pid ");
    joined::all_run(&run, 3, 1);
    assert!(
        !has_name(&first),
        "the segment of the first generation is gone"
    );
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    says(&ended, "1 of 1 restart used");
}

#[test]
fn the_replicas_know_where_how_often_and_how_many_checkpoints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let script = fails_at_first(
        "echo $GRADRING_CHECKPOINT_DIR $GRADRING_CHECKPOINT_EVERY $GRADRING_CHECKPOINT_KEEP",
    );
    let options = [
        "--checkpoint-dir",
        folder,
        "--checkpoint-every",
        "2.5",
        "--checkpoint-keep",
        "7",
    ];
    let ended = run(
        2,
        &[&options[..], &["--max-restarts", "1"]].concat(),
        &script,
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let expected = [0, 1].map(|rank| format!("[{rank}] {folder} 2.5 7"));
    assert_eq!(ended.sorted(), expected);
    says(
        &ended,
        &format!(
            "; restart 1 of 1 begins, with 2 replicas, from the newest checkpoint in {folder}, if there is one\n"
        ),
    );
}

#[test]
fn restarts_come_to_an_end_and_the_last_failure_is_the_reports() {
    let script = "echo generation $GRADRING_RESTART >&2; exit $((4 + GRADRING_RESTART))";
    let ended = run(1, &["--max-restarts", "2"], script);
    assert_eq!(ended.code, 6, "{}", ended.stderr);
    says(&ended, "exit code 4 after ");
    says(&ended, "; restart 1 of 2 begins, with 1 replica, ");
    says(&ended, "exit code 5 after ");
    says(&ended, "; restart 2 of 2 begins, with 1 replica, ");
    let report = ended.stderr.split("[0] generation 2\n").nth(1).unwrap();
    assert!(
        report.contains(" failed first: exit code 6 after "),
        "{report}"
    );
    let end = "  the last lines of its stderr:\n  | generation 2\n  2 of 2 restarts used\n  exit code 6\n";
    assert!(report.ends_with(end), "{report}");
}

#[test]
fn a_restarted_run_can_have_another_size() {
    let script = fails_at_first("echo of $WORLD_SIZE");
    let ended = run(2, &["--max-restarts", "1", "--resize", "3"], &script);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.sorted(), ["[0] of 3", "[1] of 3", "[2] of 3"]);
    says(&ended, "restart 1 of 1 begins, with 3 replicas");
}

#[test]
fn a_size_that_cannot_be_started_gives_way_to_the_size_before() {
    // Enough descriptors for two replicas, and not for forty.
    let limited = "ulimit -n 64; exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_gradring")]);
    command.args(["run", "-n", "2", "--max-restarts", "1", "--resize", "40"]);
    let script = fails_at_first("echo of $WORLD_SIZE");
    command.args(["--", "/bin/sh", "-c", &script]);
    let ended = Running::start(command).finish();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.sorted(), ["[0] of 2", "[1] of 2"]);
    says(&ended, "the run does not go on with 40 replicas (rank ");
    says(&ended, " could not be started: Too many open files");
    says(&ended, "): back to 2\n");
}

#[test]
fn nothing_of_a_generation_outlives_it() {
    let gate = Gate::new();
    let script = fails_at_first("echo second; read -r _ <$GATE");
    let script = format!(
        "[ $GRADRING_RESTART = 0 ] && {{ sleep 1000 & echo child $! $GRADRING_SEGMENT; }}; {script}"
    );
    let run = start(2, &["--max-restarts", "1"], &gate.before(&script));
    let children = [0, 1].map(|rank| run.stdout.line(&format!("[{rank}] child ")));
    for rank in 0..2 {
        run.stdout.line(&format!("[{rank}] second"));
    }
    for child in children {
        let (pid, segment) = child.split_once(' ').unwrap();
        until("the grandchild is gone", || !lives(pid));
        assert!(!has_name(segment));
    }
    gate.open();
    gate.open();
    assert_eq!(run.finish().code, 0);
}

#[test]
fn what_a_generation_writes_comes_before_what_the_next_one_writes() {
    let script = "i=0; while [ $i -lt 3000 ]; do echo $GRADRING_RESTART line $i; i=$((i+1)); done; \
                  printf half; exit $((3 - GRADRING_RESTART))";
    let ended = run(1, &["--max-restarts", "3"], script);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let mut expected = String::new();
    for restart in 0..4 {
        for line in 0..3000 {
            expected += &format!("[0] {restart} line {line}\n");
        }
        expected += "[0] half\n";
    }
    assert!(text(&ended.stdout) == expected);
}

#[test]
fn a_stop_in_a_later_generation_ends_the_run() {
    let script = fails_at_first("echo second; exec sleep 1000");
    let run = start(2, &["--max-restarts", "5"], &script);
    run.stdout.line("[0] second");
    run.stdout.line("[1] second");
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    says(&ended, "stopped by SIGTERM after ");
    says(&ended, "1 of 5 restarts used");
}

#[test]
fn a_stop_as_soon_as_a_restart_is_announced_ends_the_run() {
    let run = start(
        2,
        &["--max-restarts", "5"],
        &fails_at_first("exec sleep 1000"),
    );
    run.stderr.line("gradring: rank 1 (pid ");
    run.signal(libc::SIGINT);
    let ended = run.finish();
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    says(&ended, "stopped by SIGINT after ");
    assert!(!ended.stderr.contains("restart 2"), "{}", ended.stderr);
}

#[test]
fn a_second_ctrl_c_kills_at_once_in_a_later_generation() {
    let deaf = "trap 'echo got INT' INT; echo second; while :; do sleep 1000 & wait; done";
    let options = ["--max-restarts", "5", "--grace", "1000"];
    let run = start(2, &options, &fails_at_first(deaf));
    for rank in 0..2 {
        run.stdout.line(&format!("[{rank}] second"));
    }
    run.signal(libc::SIGINT);
    for rank in 0..2 {
        run.stdout.line(&format!("[{rank}] got INT"));
    }
    crate::tool::let_echoes_pass();
    run.signal(libc::SIGINT);
    let ended = run.finish();
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    says(&ended, "SIGINT: the replicas are killed");
}

#[test]
fn a_stop_while_a_failed_generation_ends_is_not_followed_by_a_restart() {
    let script = "[ $RANK = 1 ] && { read -r _ <$GATE; exit 6; }; trap '' TERM; echo ready; while :; do sleep 1000; done";
    let gate = Gate::new();
    let run = start(
        2,
        &["--grace", "1000", "--max-restarts", "5"],
        &gate.before(script),
    );
    run.stdout.line("[0] ready");
    gate.open();
    run.stderr
        .line("gradring: rank 1 failed (exit code 6); waiting for rank 0 to stop");
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 6, "the failure came first: {}", ended.stderr);
    says(&ended, "0 of 5 restarts used");
}

#[test]
fn a_launcher_that_is_killed_in_a_later_generation_leaves_no_replica() {
    let script = fails_at_first("trap '' TERM; echo $$; exec sleep 1000");
    let mut run = start(2, &["--max-restarts", "1"], &script);
    let pids = [0, 1].map(|rank| run.stdout.line(&format!("[{rank}] ")));
    run.signal(libc::SIGKILL);
    assert_eq!(run.wait(), 137);
    for pid in pids {
        until("the replica is gone", || !lives(&pid));
    }
}

#[test]
fn a_program_that_is_gone_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, "#!/bin/sh\nrm \"$0\"\nexit 3\n").unwrap();
    std::fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let error = Launch::new(&program).max_restarts(5).run().unwrap_err();
    assert_eq!(error.exit_code(), 127, "{error}");
}

#[test]
fn an_outcome_counts_the_restarts() {
    let launch = Launch::new("/bin/sh")
        .arg("-c")
        .arg("exit $((GRADRING_RESTART < 2))");
    let outcome = launch.max_restarts(9).run().unwrap();
    assert!(outcome.is_success());
    assert_eq!((outcome.restarts, outcome.max_restarts), (2, 9));
    assert_eq!(outcome.ranks.len(), 1);
}
