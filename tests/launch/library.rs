//! The launcher as a library.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use gradring::launch::{How, Launch, LaunchError, Outcome, Stopper};

use crate::tool::Gate;

fn shell(script: &str) -> Launch {
    Launch::new("/bin/sh").arg("-c").arg(script)
}

#[test]
fn an_outcome_says_all_that_the_report_says() {
    let script = "[ $RANK = 1 ] && { echo why >&2; exit 3; }; sleep 1000";
    let outcome = shell(script).replicas(2).run().unwrap();
    assert!(!outcome.is_success());
    assert_eq!(outcome.code, 3);
    let culprit = outcome.culprit.as_ref().unwrap();
    assert_eq!((culprit.rank, culprit.status.unwrap().code()), (1, Some(3)));
    assert_eq!(culprit.stderr_tail, ["why"]);
    assert!(culprit.after <= outcome.elapsed);
    let hows: Vec<How> = outcome.ranks.iter().map(|end| end.how).collect();
    assert_eq!(hows, [How::StoppedByUs, How::Failed]);
    assert_eq!(outcome.ranks[1].pid, culprit.pid);
    assert!(
        outcome
            .report()
            .starts_with(&format!("rank 1 (pid {}) failed first", culprit.pid))
    );
}

/// Runs a script of one replica; `stop` is called as soon as the script has written a line to `$GATE`.
fn stopped(script: &str, stop: impl FnOnce(Stopper) + Send + 'static) -> Outcome {
    let ready = Gate::new();
    let launch = shell(&ready.before(script)).grace(Duration::from_secs(1000));
    let stopper = launch.stopper();
    let stopping = std::thread::spawn(move || {
        ready.wait();
        stop(stopper);
    });
    let outcome = launch.run().unwrap();
    stopping.join().unwrap();
    outcome
}

#[test]
fn a_run_can_be_stopped_from_another_thread() {
    let script = "echo >$GATE; exec sleep 1000";
    let outcome = stopped(script, |stopper| stopper.stop(libc::SIGTERM));
    assert_eq!(
        (outcome.code, outcome.stopped_by),
        (143, Some(libc::SIGTERM))
    );
    assert!(outcome.culprit.is_none());
    assert_eq!(outcome.ranks[0].how, How::StoppedByUs);
    assert_eq!(
        outcome.ranks[0].status.unwrap().signal(),
        Some(libc::SIGTERM)
    );
}

#[test]
fn a_second_stop_kills_whoever_is_deaf() {
    let script = "trap '' INT; echo >$GATE; while :; do sleep 1000; done";
    let outcome = stopped(script, |stopper| {
        stopper.clone().stop(libc::SIGINT);
        stopper.stop(libc::SIGINT);
    });
    assert_eq!(outcome.code, 130);
    assert_eq!(
        outcome.ranks[0].status.unwrap().signal(),
        Some(libc::SIGKILL)
    );
}

#[test]
fn a_sigterm_that_comes_twice_at_once_leaves_the_grace_time() {
    let script = "trap 'exit 0' TERM; echo >$GATE; sleep 1000 & wait";
    let outcome = stopped(script, |stopper| {
        stopper.stop(libc::SIGTERM);
        stopper.stop(libc::SIGTERM);
    });
    assert_eq!(outcome.code, 143);
    assert_eq!(outcome.ranks[0].how, How::Succeeded);
}

#[test]
fn an_environment_variable_reaches_every_replica() {
    let script = "[ \"$COLOUR\" = 'deep blue' ]";
    let outcome = shell(script)
        .replicas(3)
        .env("COLOUR", "deep blue")
        .run()
        .unwrap();
    assert!(outcome.is_success(), "{outcome}");
    assert!(outcome.ranks.iter().all(|end| end.how == How::Succeeded));
}

#[test]
fn runs_in_several_threads_wait_for_their_own_replicas_only() {
    let runs: Vec<_> = (1..6)
        .map(|code| std::thread::spawn(move || shell(&format!("exit {code}")).run().unwrap().code))
        .collect();
    let codes: Vec<u8> = runs.into_iter().map(|run| run.join().unwrap()).collect();
    assert_eq!(codes, [1, 2, 3, 4, 5]);
}

#[test]
fn a_ring_that_is_no_ring_is_an_error_of_the_segment() {
    let error = shell("exit 0").ring_capacity(1000).run().unwrap_err();
    assert!(matches!(error, LaunchError::Segment(_)), "{error:?}");
    assert!(error.to_string().contains("1000"), "{error}");
}

#[test]
fn a_program_is_looked_for_in_the_path_that_the_replicas_get() {
    let error = Launch::new("sh").env("PATH", "/nowhere").run().unwrap_err();
    assert!(matches!(error, LaunchError::NotFound { .. }), "{error:?}");
    assert_eq!(error.exit_code(), 127);
}
