//! Stops on which the replicas agree.

use crate::joined::{all_run, behind, behind_a_shell, start};
use crate::tool::{Ended, Running, kill, lives, run, until};

/// Three replicas that run; their pids.
fn running(options: &[&str], case: &str) -> (Running, [u32; 3]) {
    let run = start(3, options, case);
    let pids = [0, 1, 2].map(|rank| {
        let line = run.stdout.line(&format!("[{rank}] @ runs "));
        line.split(' ').next().unwrap().parse().unwrap()
    });
    (run, pids)
}

fn stopped_by_agreement(ended: &Ended, code: i32, signal: &str) {
    assert_eq!(ended.code, code, "{}", ended.stderr);
    assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
    let expected = format!("gradring: stopped by {signal} after ");
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
    let expected = format!("\n  ranks 0-2 stopped by agreement (exit code {code})\n");
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
}

#[test]
fn a_signal_at_one_replica_stops_all_and_is_no_failure() {
    for (signal, name, code) in [
        (libc::SIGTERM, "SIGTERM", 143),
        (libc::SIGINT, "SIGINT", 130),
    ] {
        let (run, pids) = running(&[], "agrees");
        kill(pids[1], signal);
        stopped_by_agreement(&run.finish(), code, name);
    }
}

#[test]
fn a_signal_at_the_launcher_is_agreed_on_too() {
    for (signal, name, code) in [
        (libc::SIGTERM, "SIGTERM", 143),
        (libc::SIGINT, "SIGINT", 130),
    ] {
        let (run, _) = running(&["--grace", "1000"], "agrees");
        run.signal(signal);
        stopped_by_agreement(&run.finish(), code, name);
    }
}

#[test]
fn an_agreed_stop_is_not_followed_by_a_restart() {
    let (run, pids) = running(&["--max-restarts", "5"], "agrees");
    kill(pids[2], libc::SIGTERM);
    let ended = run.finish();
    stopped_by_agreement(&ended, 143, "SIGTERM");
    assert!(
        ended.stderr.contains("0 of 5 restarts used"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_program_that_ends_an_agreed_stop_with_0_was_stopped_all_the_same() {
    let (run, pids) = running(&[], "agrees_and_ends_with_0");
    kill(pids[0], libc::SIGINT);
    let ended = run.finish();
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("ranks 0-2 succeeded"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_replica_that_crashes_after_the_agreement_is_the_culprit() {
    let (run, pids) = running(&["--max-restarts", "5"], "crashes_when_agreed");
    kill(pids[0], libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    let expected = format!("rank 1 (pid {}) failed first: killed by SIGKILL", pids[1]);
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
    // Somebody wanted the run to stop.
    assert!(
        ended.stderr.contains("0 of 5 restarts used"),
        "{}",
        ended.stderr
    );
}

#[test]
fn who_does_not_stop_as_agreed_after_a_signal_to_the_launcher_is_the_culprit() {
    for (case, code, how) in [
        ("crashes_when_agreed", 137, "killed by SIGKILL"),
        ("agrees_and_fails", 9, "exit code 9"),
    ] {
        let (run, pids) = running(&["--max-restarts", "5"], case);
        run.signal(libc::SIGTERM);
        let ended = run.finish();
        assert_eq!(ended.code, code, "{}", ended.stderr);
        let expected = format!("rank 1 (pid {}) failed first: {how}", pids[1]);
        assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("0 of 5 restarts used"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn replicas_behind_shells_that_a_signal_kills_stop_in_order_all_the_same() {
    let run = Running::start(behind_a_shell(3, "agrees"));
    all_run(&run, 3, 0);
    run.signal(libc::SIGTERM);
    for rank in 0..3 {
        run.stdout.line(&format!("[{rank}] @ stops: terminated"));
    }
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
}

#[test]
fn a_replica_behind_a_killed_shell_has_the_grace_time_and_no_more() {
    // The replica inherits that the signal is ignored, and its shell does not.
    let script = "trap '' TERM; \"$0\" --exact replica --nocapture & trap - TERM; wait; exit $?";
    let run = Running::start(behind(script, 2, &["--grace", "1"], "wait_for_ever"));
    let pids = [0, 1].map(|rank| run.stdout.line(&format!("[{rank}] @ joined ")));
    let asked = std::time::Instant::now();
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    assert!(asked.elapsed() >= std::time::Duration::from_secs(1));
    for pid in pids {
        until("the replica is gone", || !lives(&pid));
    }
}

#[test]
fn who_goes_on_after_all_have_agreed_to_stop_has_the_grace_time_and_no_more() {
    let (run, pids) = running(&["--grace", "1"], "agrees_and_stays");
    kill(pids[0], libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    let expected = format!(
        "gradring: rank 1 (pid {}) still runs 1 s after all had agreed to stop: it is asked to end",
        pids[1]
    );
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
    let expected = "rank 1 stopped by us (killed by SIG";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
}

#[test]
fn exit_code_143_without_an_agreement_is_a_failure() {
    let ended = run(2, &[], "[ $RANK = 1 ] && exit 143; sleep 1000");
    assert_eq!(ended.code, 143);
    assert!(ended.stderr.contains("rank 1 (pid "), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("failed first: exit code 143"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_resize_of_which_the_launcher_knows_nothing_is_a_stop() {
    let ended = start(2, &[], "resizes_itself").finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("ranks 0, 1 stopped by agreement"),
        "{}",
        ended.stderr
    );
}
