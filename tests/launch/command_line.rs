//! What a person types, and what comes back.

use crate::tool::{Running, gradring, run, text};

fn refused(args: &[&str]) -> String {
    let mut command = gradring();
    command.args(args);
    let ended = Running::start(command).finish();
    assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
    assert_eq!(
        ended.stderr.lines().count(),
        1,
        "{args:?}: {}",
        ended.stderr
    );
    assert_eq!(text(&ended.stdout), "");
    ended.stderr
}

#[test]
fn a_usage_error_is_one_line_and_code_2() {
    assert!(refused(&["run", "-n", "0", "true"]).contains("0 replicas cannot run"));
    assert!(refused(&["run", "-n", "256", "true"]).contains("256 replicas are too many"));
    assert!(refused(&["run", "-n", "-1", "true"]).contains("-1"));
    assert!(refused(&["run", "-n", "two", "true"]).contains("'two'"));
    assert!(refused(&["run", "-n", "2"]).contains("<PROGRAM>"));
    assert!(refused(&["run", "true"]).contains("--replicas <N>"));
    assert!(refused(&["run", "-n", "2", "--grace", "-1", "true"]).contains("--grace"));
    assert!(refused(&["run", "-n", "2", "--grace", "inf", "true"]).contains("--grace"));
    assert!(refused(&["run", "-n", "2", "--deadline", "0", "true"]).contains("above 0"));
    assert!(refused(&["run", "-n", "2", "--ring", "1X", "true"]).contains("1048576 or 1M"));
    assert!(refused(&["run", "-n", "2", "--resize", "3", "true"]).contains("--max-restarts"));
    let restarted = |size| {
        refused(&[
            "run",
            "-n",
            "2",
            "--max-restarts",
            "1",
            "--resize",
            size,
            "true",
        ])
    };
    assert!(restarted("0").contains("0 replicas cannot run"));
    assert!(restarted("256").contains("256 replicas are too many"));
    assert!(
        refused(&["run", "-n", "2", "--checkpoint-keep", "0", "true"])
            .contains("--checkpoint-keep")
    );
    assert!(refused(&["run", "-n", "2", "--checkpoint-every", "0", "true"]).contains("above 0"));
    assert!(refused(&["run", "-n", "2", "--no-such-option", "true"]).contains("--no-such-option"));
    assert!(refused(&["no-such-command"]).contains("no-such-command"));
    refused(&[]);
}

#[test]
fn the_exit_code_holds_where_nobody_can_be_told_why() {
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    for (args, expected) in [
        (&["run", "-n", "2", "sh", "-c", "exit 3"][..], 3),
        (&["run", "-n", "2", "no-such-program"], 127),
        (&["run", "-n", "2", "/"], 126),
        (&["run", "-n", "0", "true"], 2),
        (&["run", "-n", "two", "true"], 2),
    ] {
        let status = gradring().args(args).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{args:?}");
    }
}

#[test]
fn help_and_version_succeed() {
    for (args, expected) in [
        (&["--help"][..], "run"),
        (&["run", "--help"], "--grace <SECONDS>"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let mut command = gradring();
        command.args(args);
        let ended = Running::start(command).finish();
        assert_eq!(ended.code, 0);
        assert!(
            text(&ended.stdout).contains(expected),
            "{}",
            text(&ended.stdout)
        );
    }
}

#[test]
fn the_programs_own_options_need_no_separator() {
    let mut command = gradring();
    command.args(["run", "-n", "1", "echo", "-n", "3", "--", "--grace"]);
    let ended = Running::start(command).finish();
    assert_eq!((ended.code, text(&ended.stdout)), (0, "[0] 3 -- --grace\n"));
}

#[test]
fn a_program_that_is_not_there_is_named_and_ends_with_127() {
    for program in ["no-such-program", "/no/such/program", "./no-such-program"] {
        let mut command = gradring();
        command.args(["run", "-n", "3", program]);
        let ended = Running::start(command).finish();
        assert_eq!(ended.code, 127);
        assert_eq!(
            ended.stderr,
            format!("gradring: {program}: program not found\n")
        );
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_named_and_ends_with_126() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "text").unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (program, why) in [
        (plain.as_path(), "no permission"),
        (folder.path(), "it is a directory"),
        (&script, "its interpreter or loader is not there"),
        (&plain.join("below"), "Not a directory"),
    ] {
        let mut command = gradring();
        command.args(["run", "-n", "3"]).arg(program);
        let ended = Running::start(command).finish();
        assert_eq!(ended.code, 126, "{}", ended.stderr);
        let expected = format!(
            "gradring: {}: cannot be executed: {why}\n",
            program.display()
        );
        assert_eq!(ended.stderr, expected);
    }
}

#[test]
fn a_replica_knows_its_place_by_its_environment() {
    let script = "echo $GRADRING_RANK $RANK $LOCAL_RANK of $GRADRING_WORLD_SIZE $WORLD_SIZE $LOCAL_WORLD_SIZE \
                  deadline $GRADRING_DEADLINE";
    let ended = run(3, &["--deadline", "2.5"], script);
    assert_eq!(ended.code, 0);
    let expected = [0, 1, 2].map(|r| format!("[{r}] {r} {r} {r} of 3 3 3 deadline 2.5"));
    assert_eq!(ended.sorted(), expected);
}

#[test]
fn a_replica_has_empty_input_a_session_of_its_own_and_no_ignored_signals() {
    // As under nohup, or in the background of a script.
    let script = "trap '' INT TERM HUP USR1; exec \"$0\" run -n 1 -- /bin/sh -c '
        cat
        read -r _ _ _ _ group session rest </proc/$$/stat
        [ $group = $$ ] && [ $session = $$ ] && echo own session
        while read -r name value; do case $name in SigIgn:|SigBlk:) echo $name $value; esac; done </proc/self/status'";
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_gradring")]);
    let ended = Running::start(command).finish();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        text(&ended.stdout).starts_with("[0] own session\n"),
        "{}",
        text(&ended.stdout)
    );
    for line in text(&ended.stdout).lines().skip(1) {
        let mask = u64::from_str_radix(line.split(' ').next_back().unwrap(), 16).unwrap();
        // 32 and 33 are the C library's own.
        assert_eq!(mask & !(0b11 << 31), 0, "{line}");
    }
    assert_eq!(text(&ended.stdout).lines().count(), 3);
}

#[test]
fn two_runs_at_once_do_not_meet() {
    let script = "echo $GRADRING_SEGMENT $RANK";
    let runs = [
        crate::tool::start(2, &[], script),
        crate::tool::start(3, &[], script),
    ];
    let [two, three] = runs.map(Running::finish);
    assert_eq!((two.code, three.code), (0, 0));
    let name = |line: &String| line.split(' ').nth(1).unwrap().to_owned();
    let (mut two, mut three): (Vec<_>, Vec<_>) = (
        two.sorted().iter().map(name).collect(),
        three.sorted().iter().map(name).collect(),
    );
    assert_eq!((two.len(), three.len()), (2, 3));
    two.dedup();
    three.dedup();
    assert_eq!((two.len(), three.len()), (1, 1));
    assert_ne!(two, three);
}
