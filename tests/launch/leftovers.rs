//! Nothing outlives a run: no process, no segment.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::joined;
use crate::tool::{Running, has_name, lives, run, start, text, until};

#[test]
fn the_segment_is_there_during_the_run_and_gone_after_it() {
    let run = start(2, &[], "echo $GRADRING_SEGMENT; sleep 1000");
    let name = run.stdout.line("[0] ");
    assert!(has_name(&name));
    run.signal(libc::SIGTERM);
    run.finish();
    assert!(!has_name(&name));
}

#[test]
fn grandchildren_are_gone_with_their_rank() {
    let ended = run(2, &[], "sleep 1000 & echo $!; exit 0");
    assert_eq!(ended.code, 0);
    for line in ended.sorted() {
        until("the grandchild is gone", || !lives(&line[4..]));
    }
    let ended = run(
        2,
        &[],
        "sleep 1000 & echo $!; [ $RANK = 1 ] && exit 3; wait",
    );
    assert_eq!(ended.code, 3);
    for line in ended.sorted() {
        until("the grandchild is gone", || !lives(&line[4..]));
    }
}

#[test]
fn a_killed_launcher_leaves_no_replica() {
    let mut run = start(3, &[], "echo $$; trap '' TERM; exec sleep 1000");
    let pids = [0, 1, 2].map(|rank| run.stdout.line(&format!("[{rank}] ")));
    run.signal(libc::SIGKILL);
    assert_eq!(run.wait(), 137);
    for pid in pids {
        until("the replica is gone", || !lives(&pid));
    }
}

#[test]
fn a_killed_launcher_leaves_no_replica_behind_a_shell_either() {
    // The shell is the launcher's child, the replica is the shell's.
    let mut run = Running::start(joined::behind_a_shell(2, "wait_for_ever"));
    let told = |rank: usize| run.stdout.line(&format!("[{rank}] @ joined "));
    let pids = [told(0), told(1)];
    let shells = [0, 1].map(|rank| run.stdout.line(&format!("[{rank}] shell ")));
    for (pid, shell) in pids.iter().zip(&shells) {
        assert_ne!(pid, shell);
        assert!(lives(pid) && lives(shell));
    }
    run.signal(libc::SIGKILL);
    assert_eq!(run.wait(), 137);
    for pid in pids.iter().chain(&shells) {
        until("the replica and its shell are gone", || !lives(pid));
    }
}

/// Runs a script in which /dev/shm is a file system of its own.
fn with_own_shared_memory(script: &str) -> Option<(i32, String)> {
    for options in [&["-m"][..], &["-Urm"]] {
        let mut command = Command::new("unshare");
        command
            .args(options)
            .args(["/bin/sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]);
        let possible = command
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if possible {
            let mut command = Command::new("unshare");
            let script = format!("mount -t tmpfs -o size=64m tmpfs /dev/shm || exit 99\n{script}");
            command
                .args(options)
                .args(["/bin/sh", "-c", &script, env!("CARGO_BIN_EXE_gradring")]);
            let output = command.stdin(Stdio::null()).output().unwrap();
            let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
            return Some((output.status.code().unwrap_or(-1), said));
        }
    }
    assert!(
        std::env::var_os("GRADRING_REQUIRE_NAMESPACES").is_none_or(|value| value != "1"),
        "unshare -m is not possible here, and was said to be"
    );
    let _ = writeln!(
        std::io::stderr(),
        "NOT RUN: unshare -m is not possible here"
    );
    None
}

#[test]
fn no_path_leaves_a_segment() {
    let script = r#"
        clean() { [ -z "$(ls -A /dev/shm)" ] || { echo "after $1: $(ls /dev/shm)"; exit 1; }; }
        "$0" run -n 2 true; clean success
        "$0" run -n 2 false; clean failure
        "$0" run -n 2 no-such-program; [ $? = 127 ] || exit 2; clean 127
        "$0" run -n 2 /etc/passwd; [ $? = 126 ] || exit 3; clean 126
        "$0" run -n 2 -- sh -c 'kill -KILL $$'; [ $? = 137 ] || exit 4; clean kill
        "$0" run -n 2 -- sh -c 'kill -TERM $PPID; sleep 1000'; [ $? = 143 ] || exit 5; clean stop
        "$0" run -n 2 --max-restarts 2 false; [ $? = 1 ] || exit 7; clean restarts
        "$0" run -n 2 --max-restarts 9 -- sh -c '[ $GRADRING_RESTART = 1 ] && kill -TERM $PPID; [ $RANK = 0 ] && exit 3; sleep 1000'
        case $? in 143|3) ;; *) exit 8;; esac; clean 'stop of a restarted run'
        (ulimit -n 20; "$0" run -n 8 -- sleep 1000); [ $? = 1 ] || exit 6; clean 'no descriptors left'
    "#;
    if let Some((code, said)) = with_own_shared_memory(script) {
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("could not be started: "), "{said}");
    }
}

#[test]
fn without_room_in_shared_memory_the_need_is_said() {
    let script = "mount -o remount,size=1m /dev/shm; \"$0\" run -n 4 true; code=$?; ls -A /dev/shm; exit $code";
    if let Some((code, said)) = with_own_shared_memory(script) {
        assert_eq!(code, 1, "{said}");
        assert!(
            said.starts_with("gradring: /dev/shm has no room: "),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "nothing is left: {said}");
    }
}

#[test]
fn without_room_in_shared_memory_a_resize_is_refused() {
    let script = r#"
        mkfifo /dev/shm/pipe
        "$0" run -n 2 --checkpoint-dir d -- sh -c 'echo ready; exec sleep 1000' >/dev/shm/pipe &
        read -r _ </dev/shm/pipe
        "$0" resize 255 $!
        code=$?
        kill $!
        wait $!
        exit $code
    "#;
    if let Some((code, said)) = with_own_shared_memory(script) {
        assert_eq!(code, 1, "{said}");
        let expected = "gradring: refused: /dev/shm has no room for 255 replicas: ";
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn a_run_that_cannot_start_all_its_replicas_leaves_none() {
    // Enough descriptors for some of the eight.
    let script =
        "ulimit -n 24; exec \"$0\" run -n 8 -- /bin/sh -c 'echo $$ >>\"$1\"; sleep 1000' sh \"$1\"";
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_gradring")])
        .arg(&pids);
    let ended = Running::start(command).finish();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("could not be started: "),
        "{}",
        ended.stderr
    );
    for pid in std::fs::read_to_string(&pids).unwrap_or_default().lines() {
        assert!(!lives(pid), "{pid}");
    }
}

#[test]
fn a_killed_launchers_segment_is_swept_by_the_next() {
    let mut first = start(1, &[], "echo $GRADRING_SEGMENT; exec sleep 1000");
    let name = first.stdout.line("[0] ");
    first.signal(libc::SIGKILL);
    first.wait();
    run(1, &[], "exit 0");
    assert!(!has_name(&name));
}
