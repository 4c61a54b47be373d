//! What is to be run, and how.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::desk::Desk;
use super::error::LaunchError;
use super::generation::Generation;
use super::outcome::Outcome;
use super::plan::Plan;
use super::stopper::Stopper;
use crate::replica::{CHECKPOINT_DIRECTORY, CHECKPOINT_EVERY, CHECKPOINT_KEEP};
use crate::shm::cells::DEFAULT_CELLS;
use crate::shm::layout::{DEFAULT_RING_CAPACITY, MAX_WORLD_SIZE};

/// The grace time unless another is given.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// How long replicas may take to agree on a resize unless another time is given.
pub const DEFAULT_RESIZE_TIMEOUT: Duration = Duration::from_secs(600);

/// A run to be started: which program, with what, how many times.
///
/// Each replica gets, beside the environment of this process and [`env`](Self::env):
///
/// | variable | value |
/// |---|---|
/// | `GRADRING_SEGMENT` | the name of the generation's shared segment |
/// | `GRADRING_RANK`, `RANK`, `LOCAL_RANK` | its number, from 0 |
/// | `GRADRING_WORLD_SIZE`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE` | how many there are |
/// | `GRADRING_RESTART` | how many generations of this run there have been before |
/// | `GRADRING_LIFELINE` | the descriptor of a pipe that hangs up when the launcher is gone |
/// | `GRADRING_DEADLINE` | seconds, if [`deadline`](Self::deadline) was given |
/// | `GRADRING_CHECKPOINT_DIR`, `_EVERY`, `_KEEP` | where, how often (seconds) and how many, if they were given |
///
/// Its standard input is empty (`/dev/null`): there is one input and many replicas. It runs in a session of its own, with
/// no signal blocked or ignored.
#[derive(Debug)]
#[must_use = "a launch does nothing until `run`"]
pub struct Launch {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) replicas: usize,
    pub(super) grace: Duration,
    pub(super) ring_capacity: usize,
    pub(super) cells: usize,
    pub(super) prefix: bool,
    pub(super) max_restarts: usize,
    pub(super) resize_on_restart: Option<usize>,
    pub(super) resize_timeout: Duration,
    /// Whether the kernel may be asked for descriptors of processes; without, their ends are looked for by the clock.
    pub(super) pidfds: bool,
    pub(super) stopper: Stopper,
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
            cells: DEFAULT_CELLS,
            prefix: true,
            max_restarts: 0,
            resize_on_restart: None,
            resize_timeout: DEFAULT_RESIZE_TIMEOUT,
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
    ///
    /// A checkpoint that is made because of the stop has to fit in. Whoever goes on when others have ended because all had
    /// agreed to stop is asked to end after this time, and killed after as much again.
    pub fn grace(mut self, grace: Duration) -> Launch {
        self.grace = grace;
        self
    }

    /// The capacity of each replica's ring, a power of two in bytes. Default 1 MiB.
    pub fn ring_capacity(mut self, bytes: usize) -> Launch {
        self.ring_capacity = bytes;
        self
    }

    /// How many cells each replica has in the segment for what it sums up. Default 256.
    pub fn cells(mut self, cells: usize) -> Launch {
        self.cells = cells;
        self
    }

    /// How long a replica waits for others without any progress before that is an error.
    pub fn deadline(self, deadline: Duration) -> Launch {
        self.env(crate::replica::DEADLINE, deadline.as_secs_f64().to_string())
    }

    /// Where the replicas keep their checkpoints. Without, they make none, unless their program or the environment of
    /// this process says where.
    pub fn checkpoint_directory(self, directory: impl Into<PathBuf>) -> Launch {
        self.env(CHECKPOINT_DIRECTORY, directory.into())
    }

    /// After how much time a checkpoint is due. Without, there is one when the run is stopped or resized, and when the
    /// program asks for it.
    pub fn checkpoint_every(self, interval: Duration) -> Launch {
        self.env(CHECKPOINT_EVERY, interval.as_secs_f64().to_string())
    }

    /// How many checkpoints are kept.
    pub fn checkpoint_keep(self, checkpoints: usize) -> Launch {
        self.env(CHECKPOINT_KEEP, checkpoints.to_string())
    }

    /// How often the run may be started again after a failure, from the newest checkpoint, or from scratch where there
    /// is none. Default 0. A program that cannot be executed is not tried again. A new generation begins when all that the
    /// one before wrote is passed on.
    pub fn max_restarts(mut self, restarts: usize) -> Launch {
        self.max_restarts = restarts;
        self
    }

    /// How many replicas a run has that was restarted after a failure. Default: as many as before. If so many cannot be
    /// started, as many as before all the same. Needs [`max_restarts`](Self::max_restarts).
    pub fn resize_on_restart(mut self, replicas: usize) -> Launch {
        self.resize_on_restart = Some(replicas);
        self
    }

    /// How long the replicas may take to agree on a resize that [`resize`](super::resize) asks for, before it is taken
    /// back. Default 10 minutes.
    pub fn resize_timeout(mut self, timeout: Duration) -> Launch {
        self.resize_timeout = timeout;
        self
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

    /// Starts the replicas and returns when the last of the last generation has ended.
    ///
    /// Blocks the calling thread, which must be the one that lives as long as they do: the kernel kills them when it ends.
    /// Waits for the replicas' pids only, installs no signal handlers (so that Ctrl-C ends this process and all replicas
    /// without a checkpoint, unless its [`stopper`](Launch::stopper) [forwards signals](Stopper::forward_signals)), makes no subreaper. What the replicas
    /// write goes to this process's standard output and standard error, whole lines at a time, through two threads; what the
    /// launcher itself has to say goes to standard error with `gradring: ` before it. They take the locks of
    /// [`std::io::stdout`] and [`std::io::stderr`] for each piece, so the calling thread must not hold these. Meanwhile
    /// [`resize`](super::resize) finds the run.
    ///
    /// # Errors
    ///
    /// Only if the run, or a new generation of it, does not come about: nothing of it is left then. A run that failed is
    /// an [`Outcome`].
    pub fn run(self) -> Result<Outcome, LaunchError> {
        let outcome = self.generations();
        self.stopper.over();
        outcome
    }

    fn generations(&self) -> Result<Outcome, LaunchError> {
        self.check()?;
        let began = Instant::now();
        let mut plan = Plan::new(self);
        let stopped = self.stopper.listen().map_err(|source| LaunchError::Os {
            call: "eventfd",
            source,
        })?;
        let mut desk = Desk::open(self, &mut plan);
        loop {
            if self.stopper.asked() > 0 {
                let signal = self.stopper.signals().0;
                return Ok(Outcome::not_begun(signal, began.elapsed(), &plan));
            }
            let generation = match Generation::start(self, &plan, stopped, began) {
                Ok(generation) => generation,
                Err(error) => {
                    let line = match plan.go_back(&error) {
                        Some(line) => line,
                        None => return Err(error),
                    };
                    desk.failed(&line);
                    plan.say(line);
                    continue;
                }
            };
            plan.has_started();
            for line in plan.unsaid() {
                generation.output.say(&line);
            }
            let outcome = generation.supervise(&mut plan, &mut desk)?;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
    }

    /// What can be seen to be wrong before anything is started.
    fn check(&self) -> Result<(), LaunchError> {
        for asked in [Some(self.replicas), self.resize_on_restart]
            .into_iter()
            .flatten()
        {
            match asked {
                0 => return Err(LaunchError::NoReplicas),
                1..=MAX_WORLD_SIZE => {}
                _ => return Err(LaunchError::TooManyReplicas { asked }),
            }
        }
        if self.max_restarts == 0
            && let Some(replicas) = self.resize_on_restart
        {
            return Err(LaunchError::NoRestarts { replicas });
        }
        Ok(())
    }

    /// Where the replicas are told to keep checkpoints: by this launch, or by the environment that they inherit.
    pub(super) fn directory(&self) -> Option<PathBuf> {
        let mut given = self.env.iter().rev();
        let given = given.find(|(key, _)| key == CHECKPOINT_DIRECTORY);
        let directory = match given {
            Some((_, directory)) => directory.clone(),
            None => std::env::var_os(CHECKPOINT_DIRECTORY)?,
        };
        (!directory.is_empty()).then(|| directory.into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::How;
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
        let restarted = |replicas| {
            Launch::new("true")
                .max_restarts(1)
                .resize_on_restart(replicas)
                .run()
        };
        assert!(matches!(restarted(0), Err(LaunchError::NoReplicas)));
        assert!(matches!(
            restarted(256),
            Err(LaunchError::TooManyReplicas { asked: 256 })
        ));
    }

    #[test]
    fn a_size_for_restarts_needs_restarts() {
        let error = Launch::new("true").resize_on_restart(3).run().unwrap_err();
        assert!(matches!(error, LaunchError::NoRestarts { replicas: 3 }));
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

    #[test]
    fn an_empty_directory_is_no_checkpoint_directory() {
        let launch = Launch::new("true").checkpoint_directory("d");
        assert_eq!(launch.directory(), Some("d".into()));
        assert_eq!(launch.env(CHECKPOINT_DIRECTORY, "").directory(), None);
    }
}
