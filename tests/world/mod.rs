//! A world of real processes for tests: this test's own program, started again as replicas, without a launcher, so that
//! the test itself decides who is killed, stopped or late.
//!
//! A test file declares a test named `replica` that returns at once unless [`case`] names what this process is to do.
//! What a replica [`tell`]s comes back line by line.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use gradring::replica::{DEADLINE, RANK, SEGMENT, WORLD_SIZE};
use gradring::shm::layout::DEFAULT_RING_CAPACITY;
use gradring::shm::segment::{Config, Segment};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const CASE: &str = "GRADRING_TEST_CASE";
const START: &str = "GRADRING_TEST_START";
const MARK: &str = "@ ";
/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What this process is to do, if a test has started it as a replica.
pub fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// Says something to the test that started this process.
pub fn tell(what: impl std::fmt::Display) {
    use std::io::Write;
    let line = format!("\n{MARK}{}\n", what.to_string().replace('\n', " "));
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("the test reads this");
}

/// How a world is made.
pub struct Setup {
    pub ring_capacity: usize,
    pub cores: usize,
    pub deadline: Duration,
    /// A program and arguments in front of the replica's own, such as `taskset -c 0`.
    pub wrapper: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// The number of the operation before the first, and where all rings begin.
    pub begin: (u64, u64),
}

impl Default for Setup {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            ring_capacity: DEFAULT_RING_CAPACITY,
            cores,
            deadline: Duration::from_secs(120),
            wrapper: Vec::new(),
            environment: Vec::new(),
            begin: (0, 0),
        }
    }
}

/// One replica's process.
pub struct Process {
    child: Child,
    told: Receiver<String>,
    /// Everything that it has told, once [`World::finish`] or [`Process::hear`] has read it.
    pub heard: Vec<String>,
}

impl Process {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the process is there until it is waited for");
    }

    /// Waits until it tells a line that begins so; the line.
    pub fn hear(&mut self, begin: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self
                .told
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    self.heard.push(line.clone());
                    if line.starts_with(begin) {
                        return line;
                    }
                }
                Err(error) => panic!("no line '{begin}..' ({error}); heard {:?}", self.heard),
            }
        }
    }

    /// What the kernel says of it: R running, S asleep, T stopped, Z ended, ..
    fn state(&self) -> char {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = std::fs::read_to_string(&path).expect("it is there until it is waited for");
        let rest = stat.rsplit(')').next().map(str::trim_start);
        rest.and_then(|rest| rest.chars().next()).expect("a state")
    }

    /// Waits until the kernel has stopped it.
    pub fn wait_for_stop(&self) {
        let end = Instant::now() + PATIENCE;
        while self.state() != 'T' {
            assert!(Instant::now() < end, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Stops it, unless it has ended. Whether it is stopped now.
    pub fn stop(&self) -> bool {
        self.signal(Signal::SIGSTOP);
        let end = Instant::now() + PATIENCE;
        loop {
            match self.state() {
                'T' => return true,
                'Z' => return false,
                _ => assert!(Instant::now() < end, "it does not stop"),
            }
            std::thread::yield_now();
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("an own child") {
                self.heard.extend(self.told.iter());
                return status;
            }
            assert!(
                Instant::now() < end,
                "a replica does not end; heard {:?}",
                self.heard
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Replicas of one segment.
pub struct World {
    pub segment: Segment,
    pub replicas: Vec<Process>,
}

/// How a replica ended and what it told.
pub struct Ended {
    pub status: ExitStatus,
    pub heard: Vec<String>,
}

impl Ended {
    /// The rest of the only line that begins so.
    pub fn one(&self, begin: &str) -> &str {
        let mut found = self
            .heard
            .iter()
            .filter_map(|line| line.strip_prefix(begin));
        let line = found
            .next()
            .unwrap_or_else(|| panic!("no line '{begin}' in {:?}", self.heard));
        assert_eq!(
            found.next(),
            None,
            "two lines '{begin}' in {:?}",
            self.heard
        );
        line.trim()
    }
}

impl World {
    pub fn start(case: &str, world_size: usize) -> Self {
        Self::with(case, world_size, &Setup::default())
    }

    pub fn with(case: &str, world_size: usize, setup: &Setup) -> Self {
        let mut world = Self::empty(world_size, setup);
        for rank in 0..world_size {
            world.add(case, rank, setup);
        }
        world
    }

    /// A segment without any replica.
    pub fn empty(world_size: usize, setup: &Setup) -> Self {
        let config = Config {
            ring_capacity: setup.ring_capacity,
            ..Config::new(world_size, setup.cores)
        };
        let segment = Segment::create(&config).expect("room for a segment");
        segment.begin_rings_at(setup.begin.1);
        Self {
            segment,
            replicas: Vec::new(),
        }
    }

    /// Starts one more process as `rank`.
    pub fn add(&mut self, case: &str, rank: usize, setup: &Setup) {
        let program = std::env::current_exe().expect("this program has a path");
        let mut words: Vec<std::ffi::OsString> = setup
            .wrapper
            .iter()
            .map(Into::into)
            .chain([program.into()])
            .collect();
        words.extend(["--exact", "replica", "--nocapture", "--test-threads=1"].map(Into::into));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env(CASE, case)
            .env(SEGMENT, self.segment.name())
            .env(RANK, rank.to_string())
            .env(WORLD_SIZE, self.segment.world_size().to_string())
            .env(DEADLINE, setup.deadline.as_secs_f64().to_string())
            .env(START, format!("{} {}", setup.begin.0, setup.begin.1))
            .envs(setup.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let out = child.stdout.take().expect("it is piped");
        let (sender, told) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(MARK)
                    && sender.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        self.replicas.push(Process {
            child,
            told,
            heard: Vec::new(),
        });
    }

    /// Waits until all have told a line that begins so.
    pub fn hear(&mut self, begin: &str) {
        for replica in &mut self.replicas {
            replica.hear(begin);
        }
    }

    /// Waits for all; nothing of the world is left.
    pub fn finish(mut self) -> Vec<Ended> {
        let ended = self.replicas.iter_mut().map(|replica| {
            let status = replica.wait();
            Ended {
                status,
                heard: std::mem::take(&mut replica.heard),
            }
        });
        ended.collect()
    }

    /// Waits for all; each must have ended with 0.
    pub fn succeed(self) -> Vec<Ended> {
        let ended = self.finish();
        for (rank, replica) in ended.iter().enumerate() {
            assert!(
                replica.status.success(),
                "rank {rank}: {}, told {:?}",
                replica.status,
                replica.heard
            );
        }
        ended
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for replica in &mut self.replicas {
            // Kills only what has not been waited for: an own child, whatever became of the test.
            let _ = replica.child.kill();
            let _ = replica.child.wait();
        }
        let _ = self.segment.unlink();
    }
}
