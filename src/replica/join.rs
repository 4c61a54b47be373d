//! Joining a run: from the launcher's variables, or alone.

use super::error::Error;
use super::operation::{Kind, Operation};
use super::settings::{Asked, Settings};
use super::shared::Shared;
use super::signals;
use super::start::start;
use super::variables::{number, seconds};
use super::wait::{Look, Wait};
use crate::shm::crash::{self, Point};
use crate::shm::life::{Holder, Keeper};
use crate::shm::seat::Seated;
use crate::shm::segment::{Config, Segment};
use crate::shm::state::{Muster, muster};
use crate::shm::sync::Ordering;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the variable with the segment's name.
pub const SEGMENT: &str = "GRADRING_SEGMENT";
/// Name of the variable with the rank.
pub const RANK: &str = "GRADRING_RANK";
/// Name of the variable with the world size.
pub const WORLD_SIZE: &str = "GRADRING_WORLD_SIZE";
/// Name of the variable with the number of the descriptor on which a dead launcher is noticed.
pub const LIFELINE: &str = "GRADRING_LIFELINE";
/// Name of the variable with the deadline of every wait, in seconds.
pub const DEADLINE: &str = "GRADRING_DEADLINE";

/// How to join, where the defaults do not fit.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    deadline: Option<Duration>,
    join_timeout: Option<Duration>,
    asked: Asked,
}

impl Builder {
    /// The deadline of every wait, counted from this replica's own last progress. Default: `GRADRING_DEADLINE` in
    /// seconds, else 10 minutes.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long to wait until all replicas have joined. Default: 60 s.
    #[must_use]
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// Where checkpoints are written, and where the newest one is looked for when the run begins. The same on all
    /// replicas. Default: `GRADRING_CHECKPOINT_DIR`, else nowhere.
    #[must_use]
    pub fn checkpoint_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.asked.directory = Some(path.into());
        self
    }

    /// Asks for a checkpoint so often, by rank 0's clock; it is made at the next batch, epoch or
    /// `checkpoint_point` of all. Default: `GRADRING_CHECKPOINT_EVERY` in seconds, else only when it is asked for.
    #[must_use]
    pub fn checkpoint_every(mut self, time: Duration) -> Self {
        self.asked.every = Some(time);
        self
    }

    /// How many checkpoints are kept, at least 1. Default: `GRADRING_CHECKPOINT_KEEP`, else 2: the newest, and the one
    /// before in case that is damaged.
    #[must_use]
    pub fn checkpoint_keep(mut self, checkpoints: usize) -> Self {
        self.asked.keep = Some(checkpoints);
        self
    }

    /// Whether batches, epochs and checkpoint points end this process when all replicas have agreed to stop, after a
    /// checkpoint, with the code 143 (130 after Ctrl-C). Default: yes. If not, loops end early, and
    /// [`stop_requested`](super::Replica::stop_requested) says why. The same on all replicas.
    #[must_use]
    pub fn exit_on_stop(mut self, exits: bool) -> Self {
        self.asked.exit_on_stop = exits;
        self
    }

    /// Whether SIGTERM and SIGINT ask all replicas to stop, once this one looks at that: from its first
    /// [`stop_requested`](super::Replica::stop_requested), checkpoint point, kept state, epoch, data loop or
    /// `finish_epoch` on. Before that, and if not, they do what they do without gradring. Handlers that were installed
    /// before are called too. A second Ctrl-C ends the process. Default: yes.
    #[must_use]
    pub fn handle_signals(mut self, handles: bool) -> Self {
        self.asked.handle_signals = handles;
        self
    }

    /// Joins the run that the environment names, or a world of one where it names none. Returns when all have joined.
    ///
    /// # Errors
    /// [`Error::Environment`], [`Error::Segment`], [`Error::RankTaken`], [`Error::JoinTimedOut`], or what ended the run
    /// meanwhile.
    pub fn join(&self) -> Result<super::Replica, Error> {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None => seconds(DEADLINE)?.unwrap_or(Duration::from_secs(600)),
        };
        let settings = self.asked.settle()?;
        if settings.handle_signals {
            signals::install().map_err(|source| Error::Os {
                call: "installing signal handlers",
                source,
            })?;
        }
        let timeout = self.join_timeout.unwrap_or(Duration::from_secs(60));
        // A century at most: the clock ends somewhere.
        let timeout = timeout.min(Duration::from_secs(100 * 365 * 24 * 3600));
        let until = Instant::now() + timeout;
        let (segment, rank, lifeline) = match std::env::var_os(RANK) {
            None => (alone()?, 0, None),
            Some(_) => attach(until)?,
        };
        let shared = Arc::new(sit(Arc::new(segment), rank, lifeline, deadline, settings)?);
        all_join(&shared, timeout)?;
        Ok(super::Replica::new(shared))
    }
}

/// Whether this process was started as a replica of a run.
pub(crate) fn is_replica() -> bool {
    std::env::var_os(RANK).is_some()
}

fn alone() -> Result<Segment, Error> {
    Ok(Segment::alone(&Config::new(1, 1))?)
}

fn attach(until: Instant) -> Result<(Segment, usize, Option<OwnedFd>), Error> {
    let rank: usize = number(RANK, "a rank")?.unwrap_or(0);
    let expected = || "the number of replicas, 1 to 255".to_owned();
    let world_size: usize =
        number(WORLD_SIZE, "the number of replicas, 1 to 255")?.ok_or_else(|| {
            Error::Environment {
                variable: WORLD_SIZE,
                expected: expected(),
                found: "not set".into(),
            }
        })?;
    if world_size == 0 || world_size > 255 {
        let found = format!("{world_size:?}");
        return Err(Error::Environment {
            variable: WORLD_SIZE,
            expected: expected(),
            found,
        });
    }
    if rank >= world_size {
        let expected = format!("a rank below {WORLD_SIZE} ({world_size})");
        return Err(Error::Environment {
            variable: RANK,
            expected,
            found: rank.to_string(),
        });
    }
    let name = std::env::var(SEGMENT).map_err(|_| Error::Environment {
        variable: SEGMENT,
        expected: "the name of the run's segment".into(),
        found: std::env::var_os(SEGMENT)
            .map_or_else(|| "not set".into(), |text| format!("{text:?}")),
    })?;
    let segment = Segment::open(&name, world_size, until)?;
    let lifeline = number::<RawFd>(LIFELINE, "the number of an open descriptor")?;
    Ok((segment, rank, lifeline.and_then(adopt)))
}

/// Takes over the lifeline's descriptor, if it is one: a pipe that is open for reading.
fn adopt(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: fcntl and fstat only look at a number; a closed one gives an error.
    let mode = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: as above; fstat writes at most one stat to the place that it is given.
    let found = unsafe { libc::fstat(descriptor, status.as_mut_ptr()) };
    if mode < 0 || found != 0 || mode & libc::O_ACCMODE != libc::O_RDONLY {
        return None;
    }
    // SAFETY: zeroed is a valid stat, and fstat has filled it.
    let status = unsafe { status.assume_init() };
    if status.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return None;
    }
    // A copy, so that a second join in this process finds the descriptor too.
    // SAFETY: the descriptor is open, and what F_DUPFD_CLOEXEC returns belongs to nobody else.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: as above: a fresh descriptor.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Claims the rank's seat and starts the engine thread that holds its life token.
fn sit(
    segment: Arc<Segment>,
    rank: usize,
    lifeline: Option<OwnedFd>,
    deadline: Duration,
    settings: Settings,
) -> Result<Shared, Error> {
    let lines = segment.rank(rank);
    if !lines.state.claim() {
        return Err(Error::RankTaken {
            rank,
            pid: lines.identity.pid.load(Ordering::Relaxed),
        });
    }
    crash::point(Point::Claimed);
    lines
        .identity
        .pid
        .store(std::process::id(), Ordering::Relaxed);
    let keeper =
        Keeper::start(Arc::clone(&segment), Holder::Rank(rank), lifeline).map_err(|source| {
            Error::Os {
                call: "starting the engine thread",
                source,
            }
        })?;
    crash::point(Point::Alive);
    lines.state.joined();
    segment.bells().ring();
    let begin = start();
    Ok(Shared::new(
        Arc::clone(&segment),
        rank,
        deadline,
        keeper,
        begin,
        settings,
    ))
}

fn all_join(shared: &Shared, timeout: Duration) -> Result<(), Error> {
    let operation = Operation::new(Kind::Join, 0, 0, 0);
    let wait = Wait {
        deadline: timeout,
        ..shared.wait(operation, 0)
    };
    let began = Instant::now();
    let segment = &shared.segment;
    let seats = || (0..shared.world_size).map(|rank| &*segment.rank(rank).state);
    let missing = || {
        let ranks = seats().enumerate();
        ranks
            .filter(|(_, seat)| matches!(seat.get(), Seated::Free | Seated::Joining))
            .map(|(rank, _)| rank)
    };
    let all = wait.until(|| match muster(segment.state(), seats()) {
        // Named: the poison of the deadline is on who has not come, not on who has waited for it.
        Muster::Missing => Ok(Look::Pending(missing().next())),
        Muster::Complete => Ok(Look::Ready(())),
        Muster::Last => {
            segment.bells().ring();
            Ok(Look::Ready(()))
        }
    });
    match all {
        // Who was missing and comes after all hears that it was too late.
        Err(Error::TimedOut { rank: first, .. }) if first != shared.rank => {
            let mut ranks: Vec<usize> = missing().collect();
            if !ranks.contains(&first) {
                ranks.insert(0, first);
            }
            Err(Error::JoinTimedOut {
                waited: began.elapsed().min(timeout),
                missing: ranks,
            })
        }
        other => other,
    }
}
