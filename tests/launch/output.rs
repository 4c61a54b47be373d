//! What the replicas write, and what comes of it.

use std::collections::HashMap;
use std::process::Stdio;

use crate::tool::{Running, gradring, lives, run, start, text, until};

#[test]
fn lines_stay_whole_and_in_order_while_all_write_at_once() {
    // printf writes each piece by itself.
    let script = "i=0; while [ $i -lt 1000 ]; do printf 'rank %s ' $RANK; printf 'line '; printf '%s\\n' $i; \
                  printf 'e %s' $i >&2; echo >&2; i=$((i+1)); done";
    let ended = run(4, &[], script);
    assert_eq!(ended.code, 0);
    let mut next: HashMap<usize, usize> = HashMap::new();
    for line in text(&ended.stdout).lines() {
        let rank: usize = line[1..2].parse().unwrap();
        let next = next.entry(rank).or_default();
        assert_eq!(line, format!("[{rank}] rank {rank} line {next}"));
        *next += 1;
    }
    assert_eq!(
        next,
        HashMap::from([(0, 1000), (1, 1000), (2, 1000), (3, 1000)])
    );
    let errors = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("[3] e "));
    assert!(errors.eq((0..1000).map(|i| format!("[3] e {i}"))));
}

#[test]
fn both_streams_into_one_file_keep_their_lines_whole() {
    let script = "\"$0\" run -n 3 -- /bin/sh -c 'i=0; while [ $i -lt 300 ]; do \
                  echo out $RANK.$i.; echo err $RANK.$i. >&2; i=$((i+1)); done' 2>&1";
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_gradring")]);
    let ended = Running::start(command).finish();
    assert_eq!(ended.code, 0);
    let mut expected = Vec::new();
    for (rank, i) in (0..3).flat_map(|rank| (0..300).map(move |i| (rank, i))) {
        expected.push(format!("[{rank}] out {rank}.{i}."));
        expected.push(format!("[{rank}] err {rank}.{i}."));
    }
    expected.sort();
    assert!(ended.sorted() == expected);
}

#[test]
fn a_last_line_without_newline_does_not_run_into_another_ranks() {
    let ended = run(3, &[], "printf \"end of $RANK\"; printf \"no newline\" >&2");
    assert_eq!(
        ended.sorted(),
        ["[0] end of 0", "[1] end of 1", "[2] end of 2"]
    );
    assert_eq!(
        ended
            .stderr
            .lines()
            .filter(|line| line.ends_with("] no newline"))
            .count(),
        3
    );
}

#[test]
fn nothing_of_very_long_lines_is_lost() {
    // 300,000 of one letter per rank in one line, then a short one.
    let script = "head -c 300000 /dev/zero | tr '\\0' \"$RANK\"; echo; echo end";
    let ended = run(3, &[], script);
    assert_eq!(ended.code, 0);
    let mut count: HashMap<char, usize> = HashMap::new();
    for line in text(&ended.stdout).lines() {
        let rank = line.chars().nth(1).unwrap();
        let rest = line.strip_prefix(&format!("[{rank}] ")).unwrap();
        if rest != "end" {
            assert!(
                rest.chars().all(|c| c == rank),
                "text of another rank in a line of {rank}"
            );
            *count.entry(rank).or_default() += rest.len();
        }
    }
    assert_eq!(
        count,
        HashMap::from([('0', 300_000), ('1', 300_000), ('2', 300_000)])
    );
    assert_eq!(
        ended
            .sorted()
            .iter()
            .filter(|line| line.ends_with("] end"))
            .count(),
        3
    );
}

#[test]
fn bytes_that_are_no_text_come_through_unchanged() {
    let script = "printf '\\377\\000\\200\\r\\033[1m\\n'";
    let ended = run(1, &[], script);
    assert_eq!(ended.stdout, b"[0] \xff\x00\x80\r\x1b[1m\n");
    let ended = run(1, &["--no-prefix"], script);
    assert_eq!(ended.stdout, b"\xff\x00\x80\r\x1b[1m\n");
}

#[test]
fn nobody_reading_the_output_does_not_hold_up_the_replicas() {
    // Far more than a pipe holds, then the end that says that all was written.
    let script = "head -c 1000000 /dev/zero | tr '\\0' '\\n' && echo written >&2; exit 4";
    let mut command = gradring();
    command.args(["run", "-n", "1", "--", "/bin/sh", "-c", script]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(
        text(&output.stderr).starts_with("[0] written\n"),
        "{}",
        text(&output.stderr)
    );
}

/// A launcher whose standard output is a pipe that nobody reads yet, full: rank 0 writes into it for ever. And the pids of
/// both ranks.
fn full(options: &[&str]) -> (std::process::Child, std::io::PipeReader, [String; 2]) {
    let script = "echo $$ >&2; [ $RANK = 0 ] && exec yes; exec sleep 1000";
    let mut command = gradring();
    command.args(["run", "-n", "2"]).args(options);
    command.args(["--", "/bin/sh", "-c", script]);
    let (reader, writer) = std::io::pipe().unwrap();
    command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(child.stderr.as_mut().unwrap()));
    let mut pids = [String::new(), String::new()];
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        let rank = usize::from(line.starts_with("[1]"));
        pids[rank] = line[4..].to_owned();
    }
    until("the pipe is full", || {
        let mut count: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int, to `count`.
        unsafe {
            libc::ioctl(
                std::os::fd::AsRawFd::as_raw_fd(&reader),
                libc::FIONREAD,
                &mut count,
            )
        };
        count >= 4096
    });
    (child, reader, pids)
}

#[test]
fn a_full_standard_output_does_not_stop_the_watch() {
    let (mut child, mut reader, pids) = full(&[]);
    crate::tool::kill(pids[1].parse().unwrap(), libc::SIGKILL);
    until("rank 0 is stopped because rank 1 was killed", || {
        !lives(&pids[0])
    });
    // What was written is not lost: the end waits for who reads.
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(137));
}

#[test]
fn a_full_standard_output_does_not_stop_a_second_ctrl_c() {
    let (mut child, _reader, pids) = full(&[]);
    crate::tool::kill(child.id(), libc::SIGINT);
    until("both are stopped", || !lives(&pids[0]) && !lives(&pids[1]));
    crate::tool::let_echoes_pass();
    crate::tool::kill(child.id(), libc::SIGINT);
    let mut status = None;
    until("the launcher ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
}

#[test]
fn a_full_standard_output_does_not_stop_a_ctrl_c_between_two_generations() {
    let (mut child, _reader, pids) = full(&["--max-restarts", "5"]);
    crate::tool::kill(pids[1].parse().unwrap(), libc::SIGKILL);
    // Announced, and not begun: what the first generation wrote comes first.
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("restart 1 of 5 begins")));
    crate::tool::kill(child.id(), libc::SIGINT);
    let rest: Vec<String> = lines.map(|line| line.unwrap()).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    let expected = "gradring: stopped by SIGINT after ";
    assert!(rest[0].starts_with(expected), "{rest:?}");
}

#[test]
fn who_keeps_the_pipe_open_after_its_rank_does_not_hold_up_the_end() {
    // In a session of its own, so that the launcher cannot reach it; it must be killed here.
    let run = start(
        2,
        &[],
        "[ $RANK = 0 ] && { setsid sleep 1000 & echo $!; }; exit 0",
    );
    let pid = run.stdout.line("[0] ");
    let ended = run.finish();
    assert!(lives(&pid), "it holds the pipe to the end");
    crate::tool::kill(pid.parse().unwrap(), libc::SIGKILL);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn what_a_tee_behind_a_replica_has_still_to_write_is_waited_for() {
    // The shell ends before its background reader has written.
    let ended = run(
        1,
        &[],
        "{ read -r _ </dev/null; sleep 0.2; echo late; } & echo early",
    );
    assert_eq!(text(&ended.stdout), "[0] early\n[0] late\n");
}
