//! A running run gets another size.

use std::io::Write;
use std::process::{Command, Stdio};

use gradring::launch::{ResizeError, resize, runs};

use crate::joined::{self, all_run};
use crate::tool::{Ended, Gate, Running, gradring, kill, lives, start, text, until};

/// A run whose replicas may be resized, as soon as all run.
fn running(replicas: usize, options: &[&str], case: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let options = [&["--checkpoint-dir", directory], options].concat();
    let run = joined::start(replicas, &options, case);
    for rank in 0..replicas {
        run.stdout.line(&format!(
            "[{rank}] @ {}",
            if case.starts_with("agrees") {
                "runs "
            } else {
                "joined "
            }
        ));
    }
    (run, folder)
}

fn ask(run: &Running, replicas: &str) -> Command {
    let mut command = gradring();
    command.args(["resize", replicas, &run.pid().to_string()]);
    command
}

/// `gradring resize REPLICAS RUN`, to its end.
fn resized(run: &Running, replicas: usize) -> Ended {
    Running::start(ask(run, &replicas.to_string())).finish()
}

fn refused(run: &Running, replicas: usize, why: &str) {
    let ended = resized(run, replicas);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(
        ended.stderr.starts_with("gradring: refused: "),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
}

fn stop(run: Running) -> Ended {
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    ended
}

#[test]
fn a_run_grows_and_shrinks() {
    let (run, _folder) = running(2, &["--max-restarts", "1"], "agrees");
    let ended = resized(&run, 4);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(
        lines,
        [
            "gradring: the run is asked to go on with 4 replicas instead of 2; it stops at its next checkpoint point",
            "gradring: 2 replicas have stopped by agreement; the run goes on with 4",
            "gradring: the run has 4 replicas now",
        ]
    );
    all_run(&run, 4, 1);
    assert_eq!(resized(&run, 1).code, 0);
    all_run(&run, 1, 2);
    let ended = stop(run);
    for line in &lines[1..] {
        assert!(ended.stderr.contains(line), "{}", ended.stderr);
    }
    assert!(
        ended.stderr.contains("0 of 1 restart used"),
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
}

#[test]
fn a_resize_that_cannot_start_falls_back_to_the_size_before() {
    for case in [
        "agrees_but_cannot_grow",
        "agrees_but_cannot_grow_when_joined",
    ] {
        let (run, _folder) = running(2, &[], case);
        let ended = resized(&run, 3);
        assert_eq!(ended.code, 1, "{}", ended.stderr);
        let last = ended.stderr.lines().last().unwrap();
        assert!(
            last.starts_with("gradring: the run does not go on with 3 replicas (rank 2 (pid "),
            "{last}"
        );
        assert!(
            last.contains(") failed first: exit code 5 after "),
            "{last}"
        );
        assert!(
            last.ends_with("): back to 2 from the same checkpoint"),
            "{last}"
        );
        all_run(&run, 2, 2);
        // And the run can still be resized.
        assert_eq!(resized(&run, 1).code, 0);
        let ended = stop(run);
        assert!(ended.stderr.contains(last), "{}", ended.stderr);
    }
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let (run, _folder) = running(2, &[], "agrees");
    refused(
        &run,
        0,
        "0 replicas cannot run: the number must be 1 to 255",
    );
    refused(&run, 256, "256 replicas cannot run");
    let ended = resized(&run, 2);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stderr, "gradring: the run has 2 replicas already\n");
    all_run(&run, 2, 0);
    stop(run);
}

#[test]
fn without_a_checkpoint_directory_a_resize_is_refused() {
    let run = joined::start(2, &[], "agrees");
    run.stdout.line("[0] @ runs ");
    refused(&run, 3, "the run has no checkpoint directory");
    stop(run);
}

#[test]
fn a_run_that_is_being_stopped_or_has_an_ended_replica_is_not_resized() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let options = ["--checkpoint-dir", directory, "--grace", "1000"];
    let run = start(
        1,
        &options,
        "trap 'echo got TERM' TERM; echo ready; while :; do sleep 1000 & wait; done",
    );
    run.stdout.line("[0] ready");
    run.signal(libc::SIGTERM);
    run.stdout.line("[0] got TERM");
    refused(&run, 2, "the run is being stopped");
    run.signal(libc::SIGINT);
    run.finish();
    let run = start(
        2,
        &options,
        "[ $RANK = 0 ] && { echo $$; exit 0; }; exec sleep 1000",
    );
    let pid = run.stdout.line("[0] ");
    until("rank 0 has ended", || !lives(&pid));
    refused(&run, 3, "rank 0 has ended");
    stop(run);
}

#[test]
fn a_resize_that_is_not_agreed_in_time_is_taken_back() {
    let (run, _folder) = running(2, &["--resize-timeout", "1"], "wait_for_ever");
    let asked = Running::start(ask(&run, "3"));
    asked.stderr.line("gradring: the run is asked");
    refused(&run, 4, "the run is being resized to 3 replicas already");
    let ended = asked.finish();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let line =
        "gradring: the resize to 3 replicas was not agreed on within 1 s and is taken back\n";
    assert!(ended.stderr.ends_with(line), "{}", ended.stderr);
    // Whoever asks again is heard again.
    let asked = Running::start(ask(&run, "3"));
    asked.stderr.line("gradring: the run is asked");
    let ended = stop(run);
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
    let ended = asked.finish();
    assert_eq!(ended.code, 1);
    assert!(
        ended.stderr.ends_with("gradring: the run was stopped\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn who_waits_for_a_resize_is_told_of_a_failure() {
    let (run, _folder) = running(2, &[], "wait_for_ever");
    let pid: u32 = run.stdout.line("[1] @ joined ").parse().unwrap();
    let asked = Running::start(ask(&run, "3"));
    asked.stderr.line("gradring: the run is asked");
    kill(pid, libc::SIGKILL);
    assert_eq!(run.finish().code, 137);
    let ended = asked.finish();
    assert_eq!(ended.code, 1);
    assert!(
        ended.stderr.contains("failed first: killed by SIGKILL"),
        "{}",
        ended.stderr
    );
}

#[test]
fn who_waits_for_a_resize_is_told_that_the_launcher_is_gone() {
    let (run, _folder) = running(2, &[], "wait_for_ever");
    let asked = Running::start(ask(&run, "3"));
    asked.stderr.line("gradring: the run is asked");
    run.signal(libc::SIGKILL);
    let ended = asked.finish();
    assert_eq!(ended.code, 1);
    let expected = format!("gradring: run {} ended before it was resized\n", run.pid());
    assert!(ended.stderr.ends_with(&expected), "{}", ended.stderr);
}

#[test]
fn a_client_that_goes_away_takes_nothing_back() {
    let (run, _folder) = running(2, &[], "agrees");
    let asked = Running::start(ask(&run, "3"));
    asked.stderr.line("gradring: the run is asked");
    drop(asked);
    all_run(&run, 3, 1);
    stop(run);
}

#[test]
fn a_run_is_found_by_its_launchers_process_id() {
    let (one, _folder) = running(1, &[], "agrees");
    let (other, _folder) = running(1, &[], "agrees");
    let pids = [&one, &other].map(|run| run.pid().to_string());
    let found = runs().unwrap();
    for pid in &pids {
        assert!(found.contains(pid), "{pid}: {found:?}");
    }
    // Which one is meant is not clear.
    let mut command = gradring();
    command.args(["resize", "2"]);
    let ended = Running::start(command).finish();
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.ends_with("; say which\n"), "{}", ended.stderr);
    for pid in &pids {
        assert!(ended.stderr.contains(pid), "{pid}: {}", ended.stderr);
    }
    let mut told = Vec::new();
    let line = resize(Some(&pids[0]), 2, &mut |line| told.push(line.to_owned())).unwrap();
    assert_eq!(line, "the run has 2 replicas now");
    assert_eq!(told.len(), 2, "{told:?}");
    all_run(&one, 2, 1);
    stop(one);
    stop(other);
    let error = resize(Some(&pids[0]), 2, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ResizeError::NotFound { .. }), "{error:?}");
    for run in ["", "no such run", &"9".repeat(500), "\0"] {
        let error = resize(Some(run), 2, &mut |_| {}).unwrap_err();
        assert!(matches!(error, ResizeError::NotFound { .. }), "{error:?}");
    }
}

#[test]
fn a_size_that_cannot_be_started_gives_way_to_the_size_before() {
    // Enough descriptors for two replicas, and not for forty.
    let script = "ulimit -n 64; exec \"$0\" \"$@\"";
    let folder = tempfile::tempdir().unwrap();
    let plain = joined::launcher(
        2,
        &["--checkpoint-dir", folder.path().to_str().unwrap()],
        "agrees",
    );
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script])
        .arg(plain.get_program())
        .args(plain.get_args());
    command.envs(
        plain
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    let run = Running::start(command);
    all_run(&run, 2, 0);
    let ended = resized(&run, 40);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("gradring: the run does not go on with 40 replicas (rank "),
        "{last}"
    );
    assert!(
        last.contains("could not be started: Too many open files"),
        "{last}"
    );
    all_run(&run, 2, 1);
    assert_eq!(resized(&run, 3).code, 0);
    let ended = stop(run);
    assert!(ended.stderr.contains(last), "{}", ended.stderr);
}

#[test]
fn a_replica_that_fails_after_all_have_agreed_on_a_resize_is_a_failure() {
    for (options, code) in [(&[][..], 137), (&["--max-restarts", "1"], 143)] {
        let (run, _folder) = running(2, options, "agrees_but_crashes_at_first");
        let ended = resized(&run, 3);
        assert_eq!(ended.code, 1, "{}", ended.stderr);
        assert!(
            ended.stderr.contains("failed first: killed by SIGKILL"),
            "{}",
            ended.stderr
        );
        if code == 143 {
            // As many as before: that failure was not the new size's.
            all_run(&run, 2, 1);
            run.signal(libc::SIGTERM);
        }
        let ended = run.finish();
        assert_eq!(ended.code, code, "{}", ended.stderr);
    }
}

#[test]
fn who_goes_on_after_a_resize_was_agreed_does_not_hold_it_up() {
    let (run, _folder) = running(2, &["--grace", "1"], "agrees_and_stays");
    let ended = resized(&run, 3);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    all_run(&run, 3, 1);
    stop(run);
}

#[test]
fn a_stop_while_a_resized_run_starts_ends_it() {
    // The third replica joins only when it is let in.
    let gate = Gate::new();
    let script = gate.before("[ $RANK = 2 ] && { echo waits; read -r _ <$GATE; }; exec \"$0\" --exact replica --nocapture");
    let folder = tempfile::tempdir().unwrap();
    let options = ["--checkpoint-dir", folder.path().to_str().unwrap()];
    let run = Running::start(joined::behind(&script, 2, &options, "agrees"));
    all_run(&run, 2, 0);
    let asked = Running::start(ask(&run, "3"));
    run.stdout.line("[2] waits");
    refused(&run, 4, "the run is being resized to 3 replicas already");
    let ended = stop(run);
    assert!(
        ended.stderr.contains("stopped by SIGTERM after"),
        "{}",
        ended.stderr
    );
    let ended = asked.finish();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(
        ended.stderr.ends_with("gradring: the run was stopped\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_stop_between_the_two_sizes_ends_the_run() {
    // What the shell has started holds the output open, so that the launcher waits a second for its last words.
    let script = "sleep 1000 & exec \"$0\" --exact replica --nocapture";
    let folder = tempfile::tempdir().unwrap();
    let options = ["--checkpoint-dir", folder.path().to_str().unwrap()];
    let run = Running::start(joined::behind(script, 2, &options, "agrees"));
    all_run(&run, 2, 0);
    let asked = Running::start(ask(&run, "3"));
    for rank in 0..2 {
        let line = run.stdout.line(&format!("[{rank}] @ runs "));
        let pid = line.split(' ').next().unwrap();
        run.stdout
            .line(&format!("[{rank}] @ stops: stopped to be resized"));
        until("it has ended", || !lives(pid));
    }
    let ended = stop(run);
    let expected = "gradring: stopped by SIGTERM after ";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    assert_eq!(asked.finish().code, 1);
}

/// Runs a script where no other run is seen, with a folder as `$1`.
fn in_own_network(script: &str) -> Option<(i32, String)> {
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-n"][..], &["-Urn"]] {
        let unshare = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(options).args(["/bin/sh", "-c", script]);
            command
                .arg(env!("CARGO_BIN_EXE_gradring"))
                .arg(folder.path());
            command.stdin(Stdio::null()).output()
        };
        if unshare("exit 0").is_ok_and(|output| output.status.success()) {
            let output = unshare(script).unwrap();
            return Some((
                output.status.code().unwrap_or(-1),
                text(&output.stderr).to_owned(),
            ));
        }
    }
    assert!(
        std::env::var_os("GRADRING_REQUIRE_NAMESPACES").is_none_or(|value| value != "1"),
        "unshare -n is not possible here, and was said to be"
    );
    let _ = writeln!(
        std::io::stderr(),
        "NOT RUN: unshare -n is not possible here"
    );
    None
}

#[test]
fn the_only_run_needs_no_name() {
    let script = r#"
        "$0" resize 2 && exit 2
        mkfifo "$1/pipe" || exit 3
        "$0" run -n 1 --checkpoint-dir "$1" -- sh -c 'echo ready; exec sleep 1000' >"$1/pipe" &
        read -r _ <"$1/pipe"
        "$0" resize 1
        code=$?
        kill $!
        wait $!
        exit $code
    "#;
    let Some((code, said)) = in_own_network(script) else {
        return;
    };
    assert_eq!(code, 0, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "gradring: no run of this user is found on this machine",
            "gradring: the run has 1 replica already"
        ]
    );
}

#[test]
fn a_usage_error_of_a_resize_is_one_line_and_code_2() {
    for args in [
        &["resize"][..],
        &["resize", "-1"],
        &["resize", "two"],
        &["resize", "2", "3", "4"],
    ] {
        let mut command = gradring();
        command.args(args);
        let ended = Running::start(command).finish();
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
}
