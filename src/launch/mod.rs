//! Starting a run: spawn the replicas, pass on what they write, watch them, clean up behind them.
//!
//! `gradring run` is this module with a command line. A program can also start itself as replicas:
//!
//! ```no_run
//! # fn train() {}
//! use gradring::launch::Launch;
//!
//! fn main() -> Result<(), gradring::launch::LaunchError> {
//!     if gradring::Replica::is_replica() {
//!         train(); // calls Replica::join()
//!         return Ok(());
//!     }
//!     let outcome = Launch::this_program().replicas(2).run()?;
//!     if !outcome.is_success() {
//!         eprintln!("{outcome}");
//!     }
//!     std::process::exit(outcome.code.into());
//! }
//! ```
//!
//! What a run promises: when [`Launch::run`] returns, every replica has ended, with all that it started in its process
//! group, and the shared segment has no name any more. If the launcher itself dies, the replicas die with it: by the
//! kernel's parent-death signal, by a pipe that hangs up, and by the launcher's life token in the segment. What a
//! replica's shell has started and has not joined the run is reached by none of these.

mod error;
mod event;
mod lines;
mod outcome;
mod output;
mod process;
mod spawn;
mod stopper;
mod supervise;
mod world;

use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

pub use error::LaunchError;
pub use outcome::{Culprit, How, Outcome, RankEnd};
pub use stopper::Stopper;

use output::Output;
use process::{Process, Processes};
use spawn::Recipe;
use supervise::Run;
use world::World;

/// The grace time unless another is given.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);
pub use crate::shm::layout::DEFAULT_RING_CAPACITY;

/// A run to be started: which program, with what, how many times.
///
/// Each replica gets, beside the environment of this process and [`env`](Self::env):
///
/// | variable | value |
/// |---|---|
/// | `GRADRING_SEGMENT` | the name of the run's shared segment |
/// | `GRADRING_RANK`, `RANK`, `LOCAL_RANK` | its number, from 0 |
/// | `GRADRING_WORLD_SIZE`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE` | how many there are |
/// | `GRADRING_LIFELINE` | the descriptor of a pipe that hangs up when the launcher is gone |
/// | `GRADRING_DEADLINE` | seconds, if [`deadline`](Self::deadline) was given |
///
/// Its standard input is empty (`/dev/null`): there is one input and many replicas. It runs in a session of its own, with
/// no signal blocked or ignored.
#[derive(Debug)]
#[must_use = "a launch does nothing until `run`"]
pub struct Launch {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    replicas: usize,
    grace: Duration,
    ring_capacity: usize,
    prefix: bool,
    /// Whether the kernel may be asked for descriptors of processes; without, their ends are looked for by the clock.
    pidfds: bool,
    stopper: Stopper,
}

impl Launch {
    /// One replica of `program`, which is looked for as `execvp` does.
    pub fn new(program: impl Into<OsString>) -> Launch {
        Launch {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            replicas: 1,
            grace: DEFAULT_GRACE,
            ring_capacity: DEFAULT_RING_CAPACITY,
            prefix: true,
            pidfds: true,
            stopper: Stopper::new(),
        }
    }

    /// One replica of the program that calls this, with the arguments of this process.
    pub fn this_program() -> Launch {
        let program = match std::env::current_exe() {
            Ok(program) if program.exists() => program.into(),
            // Replaced since it was started: the kernel still has what runs.
            _ => OsString::from("/proc/self/exe"),
        };
        Launch::new(program).args(std::env::args_os().skip(1))
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Launch {
        self.args.push(arg.into());
        self
    }

    /// More arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Launch {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A variable in the environment of every replica.
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Launch {
        self.env.push((key.into(), value.into()));
        self
    }

    /// How many replicas, 1 to 255.
    pub fn replicas(mut self, replicas: usize) -> Launch {
        self.replicas = replicas;
        self
    }

    /// How long a replica that is asked to stop may take before it is killed; the same on every path. Default 30 s.
    pub fn grace(mut self, grace: Duration) -> Launch {
        self.grace = grace;
        self
    }

    /// The capacity of each replica's ring, a power of two in bytes. Default 1 MiB.
    pub fn ring_capacity(mut self, bytes: usize) -> Launch {
        self.ring_capacity = bytes;
        self
    }

    /// How long a replica waits for others without any progress before that is an error.
    pub fn deadline(self, deadline: Duration) -> Launch {
        self.env(crate::replica::DEADLINE, deadline.as_secs_f64().to_string())
    }

    /// Whether `[rank] ` stands before each line that a replica writes. Default yes.
    pub fn prefix(mut self, prefix: bool) -> Launch {
        self.prefix = prefix;
        self
    }

    /// Something that stops this run from another thread or a signal handler.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Starts the replicas and returns when the last has ended.
    ///
    /// Blocks the calling thread, which must be the one that lives as long as they do: the kernel kills them when it ends.
    /// Waits for the replicas' pids only, installs no signal handlers, makes no subreaper. What the replicas write goes
    /// to this process's standard output and standard error, whole lines at a time, through two threads; what the
    /// launcher itself has to say goes to standard error with `gradring: ` before it. They take the locks of
    /// [`std::io::stdout`] and [`std::io::stderr`] for each piece, so the calling thread must not hold these.
    ///
    /// # Errors
    ///
    /// Only if the run does not come about: nothing of it is left then. A run that failed is an [`Outcome`].
    pub fn run(self) -> Result<Outcome, LaunchError> {
        match self.replicas {
            0 => return Err(LaunchError::NoReplicas),
            1..=255 => {}
            asked => return Err(LaunchError::TooManyReplicas { asked }),
        }
        let began = Instant::now();
        let world = World::create(self.replicas, self.ring_capacity)?;
        let os = |call| move |source| LaunchError::Os { call, source };
        let stopped = self.stopper.listen().map_err(os("eventfd"))?;
        if self.stopper.asked() > 0 {
            return Ok(Outcome::never_started(
                self.stopper.signals().0,
                began.elapsed(),
            ));
        }
        let (lifeline, lifeline_end) = spawn::lifeline().map_err(os("pipe"))?;
        let recipe = Recipe {
            program: self.program,
            args: self.args,
            env: self.env,
            segment: world.name().to_owned(),
            world_size: self.replicas,
            lifeline: lifeline_end,
        };
        // From here on an early return kills those that run.
        let mut processes = Processes::new();
        let mut pipes = Vec::with_capacity(self.replicas);
        for rank in 0..self.replicas {
            let spawned =
                spawn::spawn(&recipe, rank).map_err(|error| spawn_error(&recipe, rank, error))?;
            processes.list.push(Process::new(spawned.pid, self.pidfds));
            pipes.push((spawned.stdout, spawned.stderr));
        }
        // This process's copy of the replicas' end is not needed any more.
        drop(recipe);
        let output =
            Output::start(pipes, self.prefix).map_err(os("starting the output threads"))?;
        let grace = self.grace;
        let stopper = &self.stopper;
        let lifeline = Some(lifeline);
        Run {
            processes,
            output,
            world,
            lifeline,
            stopper,
            stopped,
            grace,
            began,
        }
        .supervise()
    }
}

/// What a failed start means to somebody who typed the program's name.
fn spawn_error(recipe: &Recipe, rank: usize, source: io::Error) -> LaunchError {
    let given = recipe.env.iter().rev().find(|(key, _)| key == "PATH");
    let path = given
        .map(|(_, value)| value.clone())
        .or_else(|| std::env::var_os("PATH"));
    let found = spawn::find(&recipe.program, path.as_deref());
    let why = match source.raw_os_error() {
        Some(libc::ENOENT) if found.is_some() => {
            "its interpreter or loader is not there".to_owned()
        }
        Some(libc::ENOENT) => {
            return LaunchError::NotFound {
                program: recipe.program.clone(),
            };
        }
        Some(libc::EACCES) if found.as_ref().is_some_and(|found| found.is_dir()) => {
            "it is a directory".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => "no permission".to_owned(),
        Some(libc::ENOEXEC) => "it is no program for this machine".to_owned(),
        Some(libc::ETXTBSY | libc::ENOTDIR | libc::ELIBBAD | libc::EISDIR) => plain(&source),
        _ => return LaunchError::Spawn { rank, source },
    };
    let program = found.unwrap_or_else(|| recipe.program.clone().into());
    LaunchError::NotExecutable { program, why }
}

/// The system's words without the number behind them.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sees only the clock, as on a kernel without pidfd_open.
    fn without_pidfds(script: &str) -> Launch {
        let mut launch = Launch::new("/bin/sh").arg("-c").arg(script).replicas(2);
        launch.pidfds = false;
        launch
    }

    #[test]
    fn zero_and_256_replicas_are_typed_errors() {
        assert!(matches!(
            Launch::new("true").replicas(0).run(),
            Err(LaunchError::NoReplicas)
        ));
        let error = Launch::new("true").replicas(256).run().unwrap_err();
        assert!(matches!(error, LaunchError::TooManyReplicas { asked: 256 }));
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn without_pidfds_a_failure_stops_the_others_all_the_same() {
        let script = "[ $RANK = 1 ] && exit 9; while :; do sleep 0.05; done";
        let outcome = without_pidfds(script).run().unwrap();
        assert_eq!(outcome.code, 9);
        assert_eq!(outcome.culprit.unwrap().rank, 1);
        assert_eq!(outcome.ranks[0].how, How::StoppedByUs);
    }

    #[test]
    fn a_run_that_was_stopped_before_it_began_starts_nothing() {
        let launch = Launch::new("/nonexistent").replicas(2);
        launch.stopper().stop(libc::SIGTERM);
        let outcome = launch.run().unwrap();
        assert_eq!(
            (outcome.code, outcome.stopped_by),
            (143, Some(libc::SIGTERM))
        );
        assert!(outcome.ranks.is_empty());
    }
}
