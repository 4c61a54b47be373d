//! Restarts and resizes of replicas that keep checkpoints: nothing is lost, nothing is done twice.

use std::path::Path;
use std::time::{Duration, Instant};

use gradring::Replica;
use gradring::checkpoint::Value;
use gradring::replica::{Error, Stop};

use crate::joined::{start, tell};
use crate::tool::{Ended, Running, gradring, kill, until};

/// What a replica does that counts together with the others, from where the run has stopped.
pub(crate) fn counts(case: &str, rank: usize) -> Result<Stop, Error> {
    let replica = Replica::builder().exit_on_stop(false).join()?;
    if case == "counts_without_merging" {
        // What becomes of it where there are more replicas, nobody has said.
        let _own = replica.keep_value(Value::per_replica("own", rank as u64))?;
    }
    let count = replica.keep_value(Value::shared("count", 0_u64))?;
    let at = *count.lock()?;
    let pid = std::process::id();
    let restart = std::env::var("GRADRING_RESTART").expect("always set");
    tell(format_args!(
        "restart {restart}: {pid} of {} begins at {at}",
        replica.world_size()
    ));
    loop {
        if let Some(stop) = replica.checkpoint_point()? {
            tell(format_args!(
                "restart {restart}: stops at {}",
                *count.lock()?
            ));
            return Ok(stop);
        }
        *count.lock()? += 1;
        let now = *count.lock()?;
        if case == "counts_and_crashes_at_first" && restart == "0" {
            if now % 10 == 0 {
                replica.checkpoint()?;
            }
            if now == 55 && rank == 1 {
                kill(std::process::id(), libc::SIGKILL);
            }
        }
    }
}

fn running(folder: &Path, options: &[&str], case: &str) -> Running {
    let directory = folder.to_str().unwrap();
    start(
        2,
        &[&["--checkpoint-dir", directory], options].concat(),
        case,
    )
}

/// At which count each replica of a generation begins: the same.
fn begin(run: &Running, replicas: usize, restart: usize) -> u64 {
    let at = |rank: usize| {
        let line = run.stdout.line(&format!("[{rank}] @ restart {restart}: "));
        let expected = format!(" of {replicas} begins at ");
        let (_, at) = line
            .split_once(&expected)
            .unwrap_or_else(|| panic!("{line}"));
        at.parse().unwrap()
    };
    let first = at(0);
    for rank in 1..replicas {
        assert_eq!(at(rank), first);
    }
    first
}

/// At which count a generation stops.
fn end(run: &Running, restart: usize) -> u64 {
    let line = run
        .stdout
        .line(&format!("[0] @ restart {restart}: stops at "));
    line.parse().unwrap()
}

/// `gradring resize REPLICAS RUN`, to its end.
fn resized(run: &Running, replicas: usize) -> Ended {
    let mut command = gradring();
    command.args(["resize", &replicas.to_string(), &run.pid().to_string()]);
    Running::start(command).finish()
}

#[test]
fn a_resized_run_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let run = running(folder.path(), &[], "counts");
    assert_eq!(begin(&run, 2, 0), 0);
    for (restart, replicas) in [(1, 4), (2, 1), (3, 3)] {
        let asked = Instant::now();
        let ended = resized(&run, replicas);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        println!("{replicas} replicas after {:?}", asked.elapsed());
        let stopped = end(&run, restart - 1);
        assert_eq!(begin(&run, replicas, restart), stopped);
    }
    run.signal(libc::SIGTERM);
    assert_eq!(run.finish().code, 143);
}

#[test]
fn a_stopped_run_goes_on_where_it_was_whoever_got_the_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut stopped = 0;
    for (at_launcher, signal, code) in [
        (true, libc::SIGTERM, 143),
        (false, libc::SIGTERM, 143),
        (true, libc::SIGINT, 130),
        (false, libc::SIGINT, 130),
    ] {
        let run = running(folder.path(), &[], "counts");
        assert_eq!(begin(&run, 2, 0), stopped);
        let line = run.stdout.line("[1] @ restart 0: ");
        let pid: u32 = line.split(' ').next().unwrap().parse().unwrap();
        // Something happens in between.
        std::thread::sleep(Duration::from_millis(20));
        match at_launcher {
            true => run.signal(signal),
            false => kill(pid, signal),
        }
        let before = std::mem::replace(&mut stopped, end(&run, 0));
        assert!(stopped > before, "{stopped} > {before}");
        let ended = run.finish();
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
    }
}

#[test]
fn a_run_is_restarted_from_its_newest_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--max-restarts", "1", "--resize", "3"];
    let run = running(folder.path(), &options, "counts_and_crashes_at_first");
    assert_eq!(begin(&run, 2, 0), 0);
    let line = run.stderr.line("gradring: rank 1 (pid ");
    assert!(line.contains("failed first: killed by SIGKILL"), "{line}");
    let expected = "; restart 1 of 1 begins, with 3 replicas, from the newest checkpoint in ";
    let (_, directory) = line.split_once(expected).expect(&line);
    let directory = directory.strip_suffix(", if there is one");
    assert_eq!(directory.map(Path::new), Some(folder.path()));
    assert_eq!(begin(&run, 3, 1), 50);
    run.signal(libc::SIGTERM);
    assert_eq!(run.finish().code, 143);
}

#[test]
fn a_resize_that_cannot_be_resumed_falls_back_to_the_same_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = running(folder.path(), &[], "counts_without_merging");
    assert_eq!(begin(&run, 2, 0), 0);
    let ended = resized(&run, 3);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("back to 2 from the same checkpoint"),
        "{}",
        ended.stderr
    );
    let stopped = end(&run, 0);
    assert_eq!(begin(&run, 2, 2), stopped);
    // Why is on the launcher's standard error.
    until("it is said why", || {
        !run.stderr.lines("[0] rank 0: ").is_empty()
    });
    run.signal(libc::SIGTERM);
    assert_eq!(run.finish().code, 143);
}

/// Kills a process of this run, if it still is one.
fn kill_replica(pid: u32) {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if String::from_utf8_lossy(&command).contains("--exact\0replica") {
        // SAFETY: kill takes no pointers.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
    }
}

#[test]
fn resizes_and_deaths_at_any_moment_lose_nothing_that_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--max-restarts", "1000", "--checkpoint-every", "0.02"];
    let run = running(folder.path(), &options, "counts");
    assert_eq!(begin(&run, 2, 0), 0);
    // xorshift: the moments are different each time all the same.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut resizes = 0;
    for _ in 0..12 {
        let replicas = 1 + random(4) as usize;
        let moment = Duration::from_millis(random(80));
        let victim = random(4) as usize;
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| resized(&run, replicas));
            std::thread::sleep(moment);
            let lines = run.stdout.lines(&format!("[{victim}] @ restart "));
            let begun = lines.iter().rev().find(|line| line.contains(" begins at "));
            if let Some(line) = begun {
                let pid = line.split(' ').nth(1).unwrap();
                kill_replica(pid.parse().unwrap());
            }
            let ended = asks.join().unwrap();
            assert!(matches!(ended.code, 0 | 1), "{}", ended.stderr);
            resizes += usize::from(ended.code == 0);
        });
    }
    assert!(resizes > 0, "not all can fail");
    // The last generation runs, or comes to run: a run that has another size already says so, and begins at once.
    until("a resize comes about", || resized(&run, 2).code == 0);
    run.signal(libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    // Each generation begins with all its ranks at the same count, and never before the one before it.
    let text = crate::tool::text(&ended.stdout);
    let mut begins: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
    for line in text.lines().filter(|line| line.contains(" begins at ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let restart = words[3].trim_end_matches(':').parse().unwrap();
        begins
            .entry(restart)
            .or_default()
            .push(words[words.len() - 1].parse().unwrap());
    }
    let mut before = 0;
    for (restart, counts) in &begins {
        assert!(
            counts.iter().all(|count| *count == counts[0]),
            "{restart}: {counts:?}"
        );
        assert!(
            counts[0] >= before,
            "{restart}: {} after {before}",
            counts[0]
        );
        before = counts[0];
    }
    assert!(begins.len() > 3, "{begins:?}");
}
