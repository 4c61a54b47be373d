//! Children for tests with real processes: this test's own program, started again to do one named thing.
//!
//! A test file has one test `child` that returns at once unless [`role`] says what this process is to do. Parent and
//! child talk in lines: what the child [`tell`]s the parent can [`Child::hear`], and the other way round.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const ROLE: &str = "GRADRING_TEST_ROLE";
const WORDS: &str = "GRADRING_TEST_WORDS";
/// Everything that a child says begins so; the rest is the test harness's.
const MARK: &str = "@ ";
/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What this process is to do and with what, if a test has started it.
pub(crate) fn role() -> Option<(String, Vec<String>)> {
    let role = std::env::var(ROLE).ok()?;
    let words = std::env::var(WORDS).expect("the parent sets both");
    Some((role, words.split_whitespace().map(str::to_owned).collect()))
}

/// Says a line to the test that started this process.
pub(crate) fn tell(what: impl Display) {
    // Past the standard library's lock and buffer: some children say things after a fork.
    let line = format!("\n{MARK}{what}\n");
    let written = nix::unistd::write(std::io::stdout(), line.as_bytes());
    assert_eq!(written, Ok(line.len()));
}

/// The next line from the test that started this process; `None` when it has gone.
pub(crate) fn listen() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin()
        .lock()
        .read_line(&mut line)
        .expect("a pipe to the test");
    (read > 0).then(|| line.trim().to_owned())
}

/// This program in that role.
pub(crate) fn command(role: &str, words: &[&dyn Display]) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    within(&[program], role, words)
}

/// What `front` and its words start, in that role: they must end by starting this program with the words that follow.
pub(crate) fn within(front: &[PathBuf], role: &str, words: &[&dyn Display]) -> Command {
    let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    let mut command = Command::new(&front[0]);
    command
        .args(&front[1..])
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(WORDS, words.join(" "))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // A child does not outlive its test, even when that is killed.
    let goes_along = || Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(goes_along) };
    command
}

/// A child. Dropped, it is killed and waited for.
pub(crate) struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    told: Receiver<String>,
    heard: Vec<String>,
}

impl Child {
    pub(crate) fn start(role: &str, words: &[&dyn Display]) -> Child {
        Child::spawn(&mut command(role, words))
    }

    pub(crate) fn spawn(command: &mut Command) -> Child {
        let mut process = command.spawn().expect("this program starts again");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let (say, told) = channel();
        // Ends when the child and all who inherited its output have ended, or nobody listens.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(MARK)
                    && say.send(line.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        Child {
            input: process.stdin.take(),
            process,
            told,
            heard: Vec::new(),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    /// Waits for a line that begins so; the rest of it.
    pub(crate) fn hear(&mut self, begin: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(begin) {
                        return rest.trim().to_owned();
                    }
                    self.heard.push(line);
                }
                Err(error) => panic!("no line '{begin}' ({error}); heard {:?}", self.heard),
            }
        }
    }

    /// Says a line to the child.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("nobody has closed it");
        writeln!(input, "{line}").expect("the child listens");
    }

    pub(crate) fn kill(&self) {
        kill(self.pid(), Signal::SIGKILL).expect("not waited for yet");
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.input = None;
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("an own child") {
                return status;
            }
            assert!(
                Instant::now() < end,
                "the child does not end; heard {:?}",
                self.heard
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it has ended; it must have passed.
    pub(crate) fn passes(mut self) {
        let status = self.wait();
        assert!(status.success(), "{status}; heard {:?}", self.heard);
    }

    /// Kills it and waits for it; nothing else may have ended it.
    pub(crate) fn murder(&mut self) {
        self.kill();
        assert_eq!(self.wait().signal(), Some(libc::SIGKILL));
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail harmlessly where it has been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program and its words that run what follows where /dev/shm is a file system of its own, of `size`; `None` where the
/// system does not allow it, which the test must say.
pub(crate) fn private_shared_memory(size: &str) -> Option<Vec<PathBuf>> {
    let flags: &[&str] = if nix::unistd::geteuid().is_root() {
        &["-m", "-Urm"]
    } else {
        &["-Urm"]
    };
    let script = format!("mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm && exec \"$@\"");
    let words = |flag: &str| -> Vec<PathBuf> {
        ["unshare", flag, "sh", "-c", script.as_str(), "sh"]
            .map(PathBuf::from)
            .to_vec()
    };
    let flag = flags.iter().find(|flag| {
        let words = words(flag);
        Command::new(&words[0])
            .args(&words[1..])
            .arg("true")
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })?;
    let mut front = words(flag);
    front.push(std::env::current_exe().expect("this program has a path"));
    Some(front)
}

/// Says that a test has not run, and fails where it must.
pub(crate) fn not_run(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "NOT RUN: {test}: {why}");
    let required = std::env::var("GRADRING_REQUIRE_NAMESPACES").is_ok_and(|value| value == "1");
    assert!(!required, "{test} must run here: {why}");
}
