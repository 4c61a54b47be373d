//! Starting the launcher and looking at what it does, without ever sleeping for luck.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The launcher's command line. It hears of a hang-up even where these tests were started to ignore it, as nohup does.
pub(crate) fn gradring() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradring"));
    // SAFETY: sigaction only, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
    command
}

/// `gradring run -n N OPTIONS -- sh -c SCRIPT`, to its end.
pub(crate) fn run(replicas: usize, options: &[&str], script: &str) -> Ended {
    start(replicas, options, script).finish()
}

/// `gradring run -n N OPTIONS -- sh -c SCRIPT`.
pub(crate) fn start(replicas: usize, options: &[&str], script: &str) -> Running {
    let mut command = gradring();
    command
        .args(["run", "-n", &replicas.to_string()])
        .args(options);
    command.args(["--", "/bin/sh", "-c", script]);
    Running::start(command)
}

/// A launcher that runs. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    began: Instant,
    pub(crate) stdout: Stream,
    pub(crate) stderr: Stream,
}

/// A launcher that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// As a shell would say it.
    pub(crate) code: i32,
    pub(crate) took: Duration,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    /// Standard output's lines, sorted: between replicas there is no order.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut lines: Vec<String> = text(&self.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Running {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().expect("the launcher starts");
        let stdout = Stream::new(child.stdout.take().expect("piped"));
        let stderr = Stream::new(child.stderr.take().expect("piped"));
        Running {
            child,
            began,
            stdout,
            stderr,
        }
    }

    /// The launcher's process id: by it the run is known.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: i32) {
        kill(self.child.id(), signal);
    }

    /// Waits for its end, and takes what it wrote.
    pub(crate) fn finish(mut self) -> Ended {
        let code = self.wait();
        let took = self.began.elapsed();
        Ended {
            code,
            took,
            stdout: self.stdout.all(),
            stderr: text(&self.stderr.all()).to_owned(),
        }
    }

    pub(crate) fn wait(&mut self) -> i32 {
        let mut status = None;
        until("the launcher ends", || {
            status = self.child.try_wait().expect("an own child");
            status.is_some()
        });
        status
            .and_then(|s| s.code().or(s.signal().map(|n| 128 + n)))
            .expect("a status")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What comes from one of the launcher's streams, gathered while it comes.
pub(crate) struct Stream {
    so_far: Arc<(Mutex<Vec<u8>>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    fn new(mut from: impl Read + Send + 'static) -> Stream {
        let so_far = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let into = Arc::clone(&so_far);
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                into.0
                    .lock()
                    .expect("no panic")
                    .extend_from_slice(&buffer[..read]);
                into.1.notify_all();
            }
        });
        Stream {
            so_far,
            reader: Some(reader),
        }
    }

    /// Waits for a whole line that begins so; the rest of it.
    pub(crate) fn line(&self, begin: &str) -> String {
        let find = |so_far: &[u8]| {
            let whole = so_far
                .split_inclusive(|byte| *byte == b'\n')
                .filter(|line| line.ends_with(b"\n"));
            let mut lines = whole.map(|line| text(line).trim_end().to_owned());
            lines.find_map(|line| line.strip_prefix(begin).map(str::to_owned))
        };
        let (so_far, changed) = &*self.so_far;
        let guard = so_far.lock().expect("no panic");
        let (guard, _) = changed
            .wait_timeout_while(guard, PATIENCE, |so_far| find(so_far).is_none())
            .expect("no panic");
        find(&guard).unwrap_or_else(|| panic!("no line '{begin}' in '{}'", text(&guard)))
    }

    /// The rests of all whole lines so far that begin so.
    pub(crate) fn lines(&self, begin: &str) -> Vec<String> {
        let so_far = self.so_far.0.lock().expect("no panic");
        let whole = so_far.rsplitn(2, |byte| *byte == b'\n').nth(1);
        let lines = text(whole.unwrap_or_default()).lines();
        lines
            .filter_map(|line| line.strip_prefix(begin).map(str::to_owned))
            .collect()
    }

    fn all(&mut self) -> Vec<u8> {
        self.reader.take().expect("once").join().expect("no panic");
        std::mem::take(&mut self.so_far.0.lock().expect("no panic"))
    }
}

/// A line that a script waits for by `read -r _ <$GATE`, so that the test decides when it goes on; or that it writes by
/// `echo >$GATE`, so that the test knows how far it is.
pub(crate) struct Gate {
    folder: tempfile::TempDir,
    pipe: std::fs::File,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gate");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a named pipe");
        // Open at both ends: neither this nor the script's open blocks.
        let pipe = std::fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("a pipe");
        Gate { folder, pipe }
    }

    /// `script` with `$GATE` set.
    pub(crate) fn before(&self, script: &str) -> String {
        format!(
            "GATE={}; {script}",
            self.folder.path().join("gate").display()
        )
    }

    pub(crate) fn open(&self) {
        (&self.pipe).write_all(b"\n").expect("room in the pipe");
    }

    pub(crate) fn wait(&self) {
        (&self.pipe).read_exact(&mut [0]).expect("a line");
    }
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn kill(pid: u32, signal: i32) {
    // SAFETY: kill takes no pointers.
    let rc = unsafe { libc::kill(pid as libc::pid_t, signal) };
    assert_eq!(rc, 0, "kill {pid}: {}", std::io::Error::last_os_error());
}

/// Whether there is such a process, and it is more than a zombie.
pub(crate) fn lives(pid: &str) -> bool {
    let pid: u32 = pid.trim().parse().expect("a pid");
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

/// Whether the segment with this name is there.
pub(crate) fn has_name(segment: &str) -> bool {
    assert!(
        segment.starts_with("/gradring-"),
        "a segment's name: {segment}"
    );
    std::path::Path::new(&format!("/dev/shm{segment}")).exists()
}

/// Waits until a second Ctrl-C is no echo of the first one.
pub(crate) fn let_echoes_pass() {
    std::thread::sleep(std::time::Duration::from_millis(200));
}
