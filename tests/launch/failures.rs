//! Who failed first, and with what the launcher ends.

use std::time::Duration;

use crate::tool::{Gate, kill, run, start, text};

#[test]
fn all_succeed_and_nothing_is_said() {
    let ended = run(4, &[], "exit 0");
    assert_eq!(
        (ended.code, text(&ended.stdout), &*ended.stderr),
        (0, "", "")
    );
}

#[test]
fn the_exit_code_is_the_culprits_and_the_report_says_who_and_why() {
    let script = "if [ $RANK = 1 ]; then echo 'it is broken' >&2; exit 3; fi; sleep 1000";
    let ended = run(3, &[], script);
    assert_eq!(ended.code, 3);
    assert!(
        ended.took < Duration::from_secs(20),
        "the others were stopped: {:?}",
        ended.took
    );
    assert!(
        ended
            .stderr
            .starts_with("[1] it is broken\ngradring: rank 1 (pid "),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains(") failed first: exit code 3 after "),
        "{}",
        ended.stderr
    );
    let rest = "s\n  the last lines of its stderr:\n  | it is broken\n  \
                ranks 0, 2 stopped by us (killed by SIGTERM)\n  exit code 3\n";
    assert!(ended.stderr.ends_with(rest), "{}", ended.stderr);
}

#[test]
fn a_crash_is_128_and_the_signal() {
    let ended = run(2, &[], "[ $RANK = 0 ] && kill -SEGV $$; sleep 1000");
    assert_eq!(ended.code, 139);
    assert!(ended.stderr.contains("rank 0 (pid "), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("failed first: killed by SIGSEGV"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_rank_that_somebody_kills_is_named() {
    let run = start(3, &[], "echo $$; sleep 1000");
    let pids = [0, 1, 2].map(|rank| run.stdout.line(&format!("[{rank}] ")));
    kill(pids[2].parse().unwrap(), libc::SIGKILL);
    let ended = run.finish();
    assert_eq!(ended.code, 137);
    let expected = format!(
        "gradring: rank 2 (pid {}) failed first: killed by SIGKILL",
        pids[2]
    );
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("ranks 0, 1 stopped by us"),
        "{}",
        ended.stderr
    );
}

#[test]
fn who_succeeds_early_is_not_the_culprit_of_a_later_failure() {
    let run = start(
        2,
        &[],
        "[ $RANK = 0 ] && exit 0; echo $$; kill -STOP $$; exit 7",
    );
    let pid: u32 = run.stdout.line("[1] ").parse().unwrap();
    // Rank 0's end does not end the run; rank 1 goes on when it is let go.
    crate::tool::until("rank 1 stops itself", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    });
    kill(pid, libc::SIGCONT);
    let ended = run.finish();
    assert_eq!(ended.code, 7);
    assert!(ended.stderr.contains("rank 1 (pid"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("rank 0 succeeded"),
        "{}",
        ended.stderr
    );
}

#[test]
fn the_report_has_the_last_20_lines_of_the_culprits_stderr() {
    let script = "[ $RANK = 1 ] && sleep 1000; i=0; while [ $i -lt 50 ]; do echo line $i >&2; i=$((i+1)); done; \
                  printf last >&2; exit 1";
    let ended = run(2, &[], script);
    assert_eq!(ended.code, 1);
    let report = ended
        .stderr
        .split("the last lines of its stderr:\n")
        .nth(1)
        .unwrap();
    let lines: Vec<&str> = report
        .lines()
        .filter_map(|line| line.strip_prefix("  | "))
        .collect();
    let mut expected: Vec<String> = (31..50).map(|i| format!("line {i}")).collect();
    expected.push("last".to_owned());
    assert_eq!(lines, expected);
}

#[test]
fn a_replica_that_does_not_stop_is_killed_after_the_grace_time() {
    let script = "[ $RANK = 0 ] && { trap '' TERM; echo ready; while :; do sleep 1000; done; }; \
                  read -r _ <$GATE; exit 5";
    let gate = Gate::new();
    let run = start(2, &["--grace", "1"], &gate.before(script));
    run.stdout.line("[0] ready");
    gate.open();
    run.stderr
        .line("gradring: rank 1 failed (exit code 5); waiting for rank 0 to stop");
    let ended = run.finish();
    assert_eq!(ended.code, 5);
    assert!(
        ended
            .stderr
            .contains("rank 0 stopped by us (killed by SIGKILL)"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_replica_that_fails_by_itself_after_the_culprit_is_told_apart() {
    let script = "[ $RANK = 0 ] && { read -r _ <$GATE; exit 4; }; \
                  trap 'exit 9' TERM; echo ready; sleep 1000 & wait";
    let gate = Gate::new();
    let run = start(2, &[], &gate.before(script));
    run.stdout.line("[1] ready");
    gate.open();
    let ended = run.finish();
    assert_eq!(ended.code, 4);
    assert!(
        ended
            .stderr
            .contains("rank 1 failed after rank 0 (exit code 9)"),
        "{}",
        ended.stderr
    );
}
