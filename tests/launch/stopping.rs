//! Ctrl-C, SIGTERM and what comes of them.

use std::time::Duration;

use crate::tool::{Ended, Gate, Running, start};

/// Says what it got, and ends gracefully.
const GRACEFUL: &str = "trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 0' TERM; \
                        trap 'echo got HUP; exit 0' HUP; trap 'echo got QUIT; exit 0' QUIT; \
                        echo ready; sleep 1000 & wait";
/// Says what it got, and goes on.
const DEAF: &str = "trap 'echo got INT' INT; trap 'echo got TERM' TERM; echo ready; \
                    while :; do sleep 1000 & wait; done";

fn ready(replicas: usize, options: &[&str], script: &str) -> Running {
    let run = start(replicas, options, script);
    for rank in 0..replicas {
        run.stdout.line(&format!("[{rank}] ready"));
    }
    run
}

fn no_failure(ended: &Ended) {
    assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
}

#[test]
fn a_signal_is_forwarded_and_is_no_failure() {
    let signals = [
        (libc::SIGINT, "INT", 130),
        (libc::SIGTERM, "TERM", 143),
        (libc::SIGHUP, "HUP", 129),
        (libc::SIGQUIT, "QUIT", 131),
    ];
    for (signal, name, code) in signals {
        let run = ready(2, &[], GRACEFUL);
        run.signal(signal);
        run.stderr.line(&format!(
            "gradring: SIG{name}: the replicas are asked to stop"
        ));
        let ended = run.finish();
        assert_eq!(ended.code, code, "{}", ended.stderr);
        for rank in 0..2 {
            let line = format!("[{rank}] got {name}");
            assert!(ended.sorted().contains(&line), "{:?}", ended.sorted());
        }
        no_failure(&ended);
        assert!(
            ended
                .stderr
                .contains(&format!("stopped by SIG{name} after ")),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn replicas_that_a_forwarded_signal_kills_are_no_failure() {
    let run = ready(3, &[], "echo ready; sleep 1000");
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143);
    no_failure(&ended);
    let expected = "ranks 0-2 stopped by us (killed by SIGTERM)";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
}

#[test]
fn a_replica_that_ignores_sigterm_is_killed_after_the_grace_time() {
    let run = ready(2, &["--grace", "1"], DEAF);
    let sent = std::time::Instant::now();
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143);
    assert!(
        sent.elapsed() >= Duration::from_secs(1),
        "{:?}",
        sent.elapsed()
    );
    assert!(ended.sorted().contains(&"[0] got TERM".to_owned()));
    assert!(
        ended
            .stderr
            .contains("ranks 0, 1 stopped by us (killed by SIGKILL)"),
        "{}",
        ended.stderr
    );
    no_failure(&ended);
}

#[test]
fn the_echo_of_a_ctrl_c_is_no_second_one() {
    let run = ready(2, &["--grace", "1000"], GRACEFUL);
    run.signal(libc::SIGINT);
    run.signal(libc::SIGINT);
    let ended = run.finish();
    assert_eq!(ended.code, 130);
    assert!(!ended.stderr.contains("are killed"), "{}", ended.stderr);
}

#[test]
fn a_second_ctrl_c_kills_at_once() {
    let run = ready(2, &["--grace", "1000"], DEAF);
    run.signal(libc::SIGINT);
    for rank in 0..2 {
        run.stdout.line(&format!("[{rank}] got INT"));
    }
    crate::tool::let_echoes_pass();
    run.signal(libc::SIGINT);
    let ended = run.finish();
    assert_eq!(ended.code, 130);
    assert!(
        ended.stderr.contains("SIGINT: the replicas are killed"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_stop_while_the_others_are_given_grace_after_a_failure_kills_them_at_once() {
    let script = format!("[ $RANK = 1 ] && {{ read -r _ <$GATE; exit 6; }}; {DEAF}");
    let gate = Gate::new();
    let run = start(2, &["--grace", "1000"], &gate.before(&script));
    run.stdout.line("[0] ready");
    gate.open();
    run.stderr
        .line("gradring: rank 1 failed (exit code 6); waiting for rank 0 to stop");
    run.signal(libc::SIGINT);
    let ended = run.finish();
    assert_eq!(ended.code, 6, "the failure came first: {}", ended.stderr);
}

#[test]
fn a_grace_time_that_no_clock_reaches_is_one_all_the_same() {
    for grace in ["1e19", "1e12"] {
        let run = ready(2, &["--grace", grace], GRACEFUL);
        run.signal(libc::SIGTERM);
        assert_eq!(run.finish().code, 143);
    }
}

#[test]
fn a_stopped_replica_stops_too() {
    let run = ready(
        2,
        &["--grace", "1000"],
        "[ $RANK = 1 ] && { echo ready; kill -STOP $$; }; echo ready; sleep 1000",
    );
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
}

#[test]
fn a_signal_that_the_launcher_was_started_to_ignore_stays_ignored() {
    let script = "trap '' HUP; exec \"$0\" run -n 1 -- /bin/sh -c 'echo ready; sleep 1000'";
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_gradring")]);
    let run = Running::start(command);
    run.stdout.line("[0] ready");
    run.signal(libc::SIGHUP);
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143);
}
