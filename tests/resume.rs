//! The examples, stopped and killed anywhere: what goes on ends as what was never stopped.
//!
//! `cargo test` builds the examples; for `cargo test --test resume` they must have been built before.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use random::Random;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

#[path = "plain/random.rs"]
mod random;

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(120);
/// Samples that an epoch of `digits` and one of `mnist` see.
const DIGITS: i64 = 1_440;
const MNIST: i64 = 8_000;
/// What must not depend on whether a run was stopped. (`steps_per_second` may.)
const RESULTS: [&str; 10] = [
    "hashes",
    "identical",
    "samples",
    "steps",
    "losses",
    "validation_losses",
    "accuracies",
    "compression",
    "density",
    "clipped",
];

/// A run of an example. Dropped, it is killed, and with it its replicas.
struct Run {
    parent: Child,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
}

/// How a run ended.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Run {
    fn start(words: &str, checkpoints: Option<&Path>) -> Self {
        Self::start_with(words, checkpoints, Stdio::piped())
    }

    /// On a terminal, where it draws a bar.
    fn start_on_terminal(words: &str, checkpoints: Option<&Path>) -> Self {
        let (mut end, mut terminal) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: both are valid for writes; null asks for no name and for the defaults.
        let opened =
            unsafe { libc::openpty(&mut end, &mut terminal, none, none.cast(), none.cast()) };
        assert_eq!(opened, 0, "a terminal");
        // SAFETY: just opened, and nobody else's.
        let (end, terminal) = unsafe { (File::from_raw_fd(end), OwnedFd::from_raw_fd(terminal)) };
        let mut run = Self::start_with(words, checkpoints, terminal.into());
        run.err = Some(read(end));
        run
    }

    fn start_with(words: &str, checkpoints: Option<&Path>, err: Stdio) -> Self {
        let mut words = words.split_whitespace();
        let name = words.next().expect("the example's name");
        let test = std::env::current_exe().expect("this program has a path");
        let built = test.ancestors().nth(2).expect("it lies in target/*/deps");
        let program = built.join("examples").join(name);
        assert!(
            program.exists(),
            "{} is not built: cargo build --examples",
            program.display()
        );
        let mut command = Command::new(program);
        command.args(words).arg("--json");
        if let Some(directory) = checkpoints {
            command.arg("--checkpoint-dir").arg(directory);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(err);
        let goes_along = || Ok(set_pdeathsig(Signal::SIGKILL)?);
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(goes_along) };
        let mut parent = command.spawn().expect("it can be started");
        let out = parent.stdout.take().map(read);
        let err = parent.stderr.take().map(read);
        Self { parent, out, err }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.parent.id() as i32)
    }

    /// The processes that the parent has started and that have not ended.
    fn replicas(&self) -> Vec<Pid> {
        let own = self.pid().to_string();
        let of = |entry: fs::DirEntry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let mut fields = stat.rsplit(')').next()?.split_whitespace();
            let is_running = fields.next()? != "Z";
            (fields.next()? == own && is_running).then(|| Pid::from_raw(pid))
        };
        let all = fs::read_dir("/proc").expect("/proc");
        all.filter_map(Result::ok).filter_map(of).collect()
    }

    /// Waits until a checkpoint newer than `than` is there. Whether there is one: else the run has ended.
    fn wait_for_checkpoint(&mut self, directory: &Path, than: u64) -> bool {
        let until = Instant::now() + PATIENCE;
        while newest(directory) <= than {
            if self.parent.try_wait().expect("its status").is_some() {
                return newest(directory) > than;
            }
            assert!(Instant::now() < until, "no checkpoint after {than}");
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn wait_for_replicas(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.replicas().len() < count {
            assert!(Instant::now() < until, "no {count} replicas");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal to the parent or to one of the replicas. What has ended meanwhile gets none.
    fn signal_somebody(&self, signal: Signal, random: &mut Random) {
        let mut all = self.replicas();
        if all.is_empty() {
            // The parent is at the dense run: nothing is left to be stopped.
            return;
        }
        all.push(self.pid());
        let _ = kill(random.one_of(&all), signal);
    }

    fn end(mut self) -> Ended {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.parent.try_wait().expect("its status") {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "the run does not end"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        let text = |reader: Option<JoinHandle<String>>| {
            let reader = reader.expect("read once");
            reader.join().expect("a reader")
        };
        Ended {
            code: status
                .code()
                .unwrap_or(128 + status.signal().unwrap_or_default()),
            out: text(self.out.take()),
            err: text(self.err.take()),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}

fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let mut some = [0; 4096];
        // A terminal that nobody has open any more ends with an error.
        while let Ok(length @ 1..) = from.read(&mut some) {
            all.extend_from_slice(&some[..length]);
        }
        String::from_utf8_lossy(&all).into_owned()
    })
}

/// The number of the newest checkpoint; 0 if there is none.
fn newest(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let number = |entry: fs::DirEntry| -> Option<u64> {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("checkpoint-")?.parse().ok()
    };
    let numbers = entries.filter_map(Result::ok).filter_map(number);
    numbers.max().unwrap_or(0)
}

impl Ended {
    /// The line for programs of a run that has done its work.
    fn results(&self) -> Value {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        let line = self.out.lines().last().expect("a line");
        serde_json::from_str(line).expect("JSON")
    }

    /// Checks that it was stopped, has said so, and has the stop's code.
    fn assert_stopped(&self, code: i32) {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(
            self.err.contains("the same command goes on"),
            "{}",
            self.err
        );
    }
}

fn run(words: &str, checkpoints: Option<&Path>) -> Value {
    Run::start(words, checkpoints).end().results()
}

fn assert_same(found: &Value, expected: &Value) {
    for key in RESULTS {
        assert!(expected.get(key).is_some(), "there is no {key}");
        assert_eq!(found[key], expected[key], "{key}");
    }
    assert_eq!(found["identical"], true);
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("checkpoints");
    (directory, path)
}

/// Runs it with stops at random moments until it has ended by itself; what it ended with, and how often it was stopped by
/// agreement.
fn run_with_stops(words: &str, most: usize, random: &mut Random) -> (Value, usize) {
    let (_removed, directory) = directory();
    let often = format!("{words} --checkpoint-every 0.02");
    let mut stops = 0;
    for attempt in 0..most {
        // One in three without checkpoints by the clock: the stop makes the only one.
        let by_clock = attempt % 3 != 2;
        let before = newest(&directory);
        let mut run = Run::start(if by_clock { &often } else { words }, Some(&directory));
        if by_clock {
            run.wait_for_checkpoint(&directory, before);
        } else {
            run.wait_for_replicas(1);
        }
        thread::sleep(Duration::from_millis(random.below(60)));
        let signal = random.one_of(&[Signal::SIGTERM, Signal::SIGINT]);
        if by_clock {
            run.signal_somebody(signal, random);
        } else {
            // Replicas end by a signal as long as they have nothing to keep.
            let _ = kill(run.pid(), signal);
        }
        let ended = run.end();
        if ended.code == 0 {
            return (ended.results(), stops);
        }
        let all = format!("{}{}", ended.out, ended.err);
        assert_eq!(ended.code, 128 + signal as i32, "{all}");
        stops += usize::from(ended.err.contains("stopped by agreement"));
    }
    (run(words, Some(&directory)), stops)
}

#[test]
fn mnist_stopped_at_random_moments_ends_with_the_bits_of_a_run_that_was_never_stopped() {
    let words = "mnist -n 2 --epochs 2";
    let never = run(words, None);
    assert_eq!(never["samples"], 2 * MNIST);
    assert_eq!(never["validation_losses"].as_array().map(Vec::len), Some(2));
    let (stopped, stops) = run_with_stops(words, 8, &mut Random(1));
    assert!(stops >= 3, "only {stops} stops");
    assert_same(&stopped, &never);
}

#[test]
fn every_way_to_keep_the_momentum_and_exchanges_of_one_epoch_resume_with_the_same_bits() {
    for (seed, options) in [
        "--momentum masked",
        "--momentum memory",
        "--policy dl4j",
        "--policy dl4j-spark",
        "-n 3 --policy adaptive --limit 40",
    ]
    .iter()
    .enumerate()
    {
        // Long enough for a stop to come before the end.
        let words = format!("digits --epochs 60 {options}");
        let never = run(&words, None);
        let (stopped, stops) = run_with_stops(&words, 3, &mut Random(seed as u64));
        assert!(stops >= 1, "{options}: it was never stopped");
        assert_same(&stopped, &never);
    }
}

#[test]
fn a_killed_replica_costs_a_restart_and_no_bit() {
    let never = run("mnist -n 2 --epochs 2", None);
    let (_removed, directory) = directory();
    let words = "mnist -n 2 --epochs 2 --max-restarts 1 --checkpoint-every 0.1";
    let mut run = Run::start(words, Some(&directory));
    assert!(run.wait_for_checkpoint(&directory, 0));
    let replicas = run.replicas();
    assert_eq!(replicas.len(), 2);
    kill(Random(3).one_of(&replicas), Signal::SIGKILL).expect("it is there");
    let ended = run.end();
    assert_same(&ended.results(), &never);
    assert!(ended.err.contains("1 of 1 restart used"), "{}", ended.err);
    assert!(ended.out.contains("goes on from"), "{}", ended.out);
}

#[test]
fn two_replicas_then_three_then_one_see_every_sample_exactly_once() {
    let (_removed, directory) = directory();
    for replicas in [2, 3] {
        let words = format!("digits -n {replicas} --epochs 60 --checkpoint-every 0.02");
        let before = newest(&directory);
        let mut run = Run::start(&words, Some(&directory));
        assert!(run.wait_for_checkpoint(&directory, before));
        run.signal_somebody(Signal::SIGTERM, &mut Random(replicas));
        run.end().assert_stopped(143);
    }
    let alone = run("digits -n 1 --epochs 60", Some(&directory));
    assert_eq!(alone["samples"], 60 * DIGITS);
    assert_eq!(
        alone["validation_losses"].as_array().map(Vec::len),
        Some(60)
    );
    assert_eq!(
        (&alone["replicas"], &alone["identical"]),
        (&1.into(), &true.into())
    );
    assert!(alone["accuracy"].as_f64() > Some(0.95), "{alone}");
}

#[test]
fn a_run_that_has_ended_goes_on_with_more_epochs_and_with_no_other_run() {
    let (_removed, directory) = directory();
    let first = run("digits -n 2 --epochs 2", Some(&directory));
    assert_eq!(first["samples"], 2 * DIGITS);
    assert_same(&run("digits -n 2 --epochs 2", Some(&directory)), &first);

    for (words, said) in [
        ("digits --epochs 3 --seed 1", "seed 0, and this one has 1"),
        ("digits --epochs 1", "--epochs is 1, but"),
        ("mnist --epochs 3", "example digits, and this one has mnist"),
        (
            "digits --momentum memory",
            "momentum own, and this one has memory",
        ),
    ] {
        let ended = Run::start(words, Some(&directory)).end();
        assert_eq!(ended.code, 2, "{}", ended.err);
        assert!(ended.err.contains(said), "{}", ended.err);
    }
    let more = run("digits -n 3 --epochs 3", Some(&directory));
    assert_eq!(more["samples"], 3 * DIGITS);
    let losses = more["validation_losses"].as_array().expect("an array");
    assert_eq!(
        losses[..2],
        first["validation_losses"].as_array().expect("an array")[..]
    );
    assert_eq!(losses.len(), 3);
}

#[test]
fn without_a_directory_a_stopped_run_says_that_nothing_is_kept() {
    let run = Run::start("mnist -n 2 --epochs 1000", None);
    run.wait_for_replicas(2);
    kill(run.pid(), Signal::SIGINT).expect("it is there");
    let ended = run.end();
    assert_eq!(ended.code, 130, "{}{}", ended.out, ended.err);
    assert!(ended.err.contains("nothing of it is kept"), "{}", ended.err);
}

#[test]
fn a_directory_in_which_nothing_can_be_saved_is_told_before_anything_is_lost() {
    let nowhere = Path::new("/proc/nothing");
    let ended = Run::start("digits -n 2 --epochs 1", Some(nowhere)).end();
    assert_ne!(ended.code, 0, "{}{}", ended.out, ended.err);
    let told = ended.err.find("no checkpoint can be made in /proc/nothing");
    let failed = ended
        .err
        .find("no checkpoint was made: rank 0, /proc/nothing");
    assert!(told.is_some() && told < failed, "{}", ended.err);
}

#[test]
fn ctrl_c_at_a_terminal_stops_in_order_too() {
    let words = "digits -n 2 --epochs 40";
    let never = run(words, None);
    let (_removed, directory) = directory();
    let often = format!("{words} --checkpoint-every 0.02");
    let mut run = Run::start_on_terminal(&often, Some(&directory));
    assert!(run.wait_for_checkpoint(&directory, 0));
    kill(run.pid(), Signal::SIGINT).expect("it is there");
    let ended = run.end();
    ended.assert_stopped(130);
    assert!(ended.err.contains('░'), "no bar: {}", ended.err);
    let again = Run::start_on_terminal(words, Some(&directory)).end();
    assert_same(&again.results(), &never);
    assert!(again.err.contains("goes on from"), "{}", again.err);
}
