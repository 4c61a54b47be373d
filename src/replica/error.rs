//! The one error of everything that replicas do together.

use super::operation::Operation;
#[cfg(feature = "gpu")]
use crate::codec::gpu::GpuError;
use crate::shm::segment::SegmentError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What can go wrong between replicas.
///
/// Three kinds. *Local* errors are found before anything was published: the operation has not happened and the run
/// goes on. *Agreed* ones are the same on all replicas, and the run goes on. All others *end the run*: every replica
/// gets the same error from whatever it waits for or begins next, and the way on is a new run.
/// [`Error::ends_the_run`] tells which.
///
/// Its `Debug` text is its message too: that is what a `main` prints that returns it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The shared segment could not be made or attached.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The operating system refused something.
    #[error("{call}: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// An environment variable does not hold what it must.
    #[error("environment variable {variable} is {found}, expected {expected}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// What it must hold.
        expected: String,
        /// What it holds, quoted, or "not set".
        found: String,
    },
    /// Another process is this rank. A helper program that was started by a replica inherits its environment: it must
    /// not join, or must have `GRADRING_RANK` and `GRADRING_SEGMENT` removed.
    #[error(
        "rank {rank} is taken by process {pid}; a helper program that inherits GRADRING_* from a replica must not join"
    )]
    RankTaken {
        /// The rank asked for.
        rank: usize,
        /// Who has it.
        pid: u32,
    },
    /// Not all replicas came in time.
    #[error(
        "not all replicas joined within {waited:?}: missing {}",
        Ranks(missing)
    )]
    JoinTimedOut {
        /// How long this one waited.
        waited: Duration,
        /// Who had not come.
        missing: Vec<usize>,
    },
    /// A replica died without leaving.
    #[error("rank {rank} died (seen in {during})")]
    ReplicaDied {
        /// Who.
        rank: usize,
        /// What this replica was doing.
        during: Operation,
    },
    /// A replica left, and this operation needs it.
    #[error("rank {rank} has left, {during} needs it")]
    ReplicaLeft {
        /// Who.
        rank: usize,
        /// What this replica was doing.
        during: Operation,
    },
    /// The launcher died: nobody watches this run any more.
    #[error("the launcher died (seen in {during})")]
    LauncherGone {
        /// What this replica was doing.
        during: Operation,
    },
    /// A replica did not come, or did not go on, within the deadline. It may be stopped or stuck.
    #[error("rank {rank} did not go on within the deadline ({deadline:?}; seen in {during})")]
    TimedOut {
        /// Who is waited for.
        rank: usize,
        /// This replica's deadline.
        deadline: Duration,
        /// What this replica was doing.
        during: Operation,
    },
    /// Replicas came for different operations. The same on all of them.
    #[error("operation {number} differs between replicas: {}", Came(came))]
    Mismatch {
        /// The operation's number.
        number: u64,
        /// Who came for what.
        came: Vec<(usize, Operation)>,
    },
    /// Replicas asked for the same thing with different settings. Agreed: the run goes on, the thing was not made.
    #[error("{what}: {field} differs between replicas: {}", Values(values))]
    Disagreement {
        /// What was to be made.
        what: String,
        /// Which setting.
        field: String,
        /// Each rank's value.
        values: Vec<(usize, String)>,
    },
    /// Bytes in the segment that no correct replica writes.
    #[error("rank {rank} broke the protocol: {what}")]
    Protocol {
        /// Whose bytes.
        rank: usize,
        /// What is wrong with them; what was expected, what was found.
        what: String,
    },
    /// A replica's thread panicked.
    #[error("rank {rank} panicked")]
    Panicked {
        /// Who.
        rank: usize,
    },
    /// A replica called [`abort`](crate::Replica::abort).
    #[error("rank {rank} aborted the run: {reason}")]
    Aborted {
        /// Who.
        rank: usize,
        /// Its reason.
        reason: String,
    },
    /// A replica gave up a step after a part of it had been published.
    #[error("rank {rank} gave up a step that it had begun")]
    StepAborted {
        /// Who.
        rank: usize,
    },
    /// A replica's process ended before it joined.
    #[error("rank {rank} ended without joining")]
    NeverJoined {
        /// Who.
        rank: usize,
    },
    /// Replicas hold different parameters. The same on all of them.
    #[error("parameters differ after step {step}: hashes {}", Hashes(hashes))]
    Diverged {
        /// The step after which the hashes were taken.
        step: u64,
        /// Each rank's hash.
        hashes: Vec<u64>,
    },
    /// Elements of an update were not finite; they were left out, the step happened. Agreed: the same on all.
    #[error(
        "{total} elements of the updates were not finite, first at rank {} ({} elements); they were left out",
        first.0, first.1
    )]
    NonFinite {
        /// The lowest rank that had such elements, and how many.
        first: (usize, u64),
        /// Over all ranks.
        total: u64,
    },
    /// A slice of the wrong length. Local.
    #[error("{what} has {found} elements, expected {expected}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// What it should have.
        expected: usize,
        /// What it has.
        found: usize,
    },
    /// Something that was asked for cannot be. Local.
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// Which setting or argument.
        what: &'static str,
        /// What is possible.
        expected: String,
        /// What was asked for.
        found: String,
    },
    /// A replica has made asynchronous steps since the last [`settle`](crate::Exchange::settle), and this operation needs
    /// the rings that they use. Local (the operation has not happened, and nobody else hears of it), but agreed where it is
    /// an all_gather, all_reduce or check.
    #[error(
        "rank {rank} has made asynchronous steps since the last settle; settle before {operation}"
    )]
    Unsettled {
        /// The lowest such rank that was seen, this one first.
        rank: usize,
        /// What was asked for.
        operation: Operation,
    },
    /// An accumulator has something else under this key. Local.
    #[error("accumulator {accumulator}: {key} is {found}, and cannot be {expected}")]
    Kind {
        /// The accumulator's name.
        accumulator: String,
        /// Which of its keys.
        key: String,
        /// What was to be added.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A count would be more than an i64 holds. Local where it is added, and nothing was; agreed at a synchronization,
    /// and everything stays as it was.
    #[error("accumulator {accumulator}: the count {key} would be more than 64 bits hold")]
    Overflow {
        /// The accumulator's name.
        accumulator: String,
        /// Which of its keys.
        key: String,
    },
    /// A replica's cells are full. Local.
    #[error(
        "accumulator {accumulator}: {key} needs {needed} cells, and of {cells} too few are left (launch with --metrics N)"
    )]
    MetricsFull {
        /// The accumulator's name.
        accumulator: String,
        /// The key that was to be added.
        key: String,
        /// How many cells a replica has.
        cells: usize,
        /// How many it needs.
        needed: usize,
    },
    /// Replayed code has come to another synchronization than it came to before the restart. Local, and the same on all.
    #[error(
        "accumulator {accumulator}: synchronization {ordinal} of {} was at {expected} before the restart, now at {found}; \
         it must be the same one, for what is replayed has been counted already",
        Epoch(epoch)
    )]
    Replay {
        /// The accumulator's name.
        accumulator: String,
        /// Which epoch; `None` outside of epochs.
        epoch: Option<u64>,
        /// Which synchronization of this epoch, from 0.
        ordinal: u64,
        /// Where it was called before.
        expected: String,
        /// Where it is called now.
        found: String,
    },
    /// Something of this name is there already. Local.
    #[error("there is a {what} called {name} already")]
    Duplicate {
        /// What it is.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A data loop is not the one that the checkpoint has in its place. Local, and the same on all.
    #[error(
        "data loop {position} of {}: the checkpoint has {expected}, found {found}",
        Epoch(epoch)
    )]
    OtherLoop {
        /// Which epoch; `None` outside of epochs.
        epoch: Option<u64>,
        /// Which loop of this epoch, from 0.
        position: u64,
        /// What the checkpoint has there.
        expected: String,
        /// What the program runs there.
        found: String,
    },
    /// A checkpoint was not made. Agreed: the same on all; the checkpoint before is untouched.
    #[error("no checkpoint was made: rank {rank}, {}: {why}", path.display())]
    NotSaved {
        /// Where it failed.
        rank: usize,
        /// What was to be written.
        path: PathBuf,
        /// Why it was not.
        why: String,
    },
    /// A state was not loaded. Local; the state has not changed.
    #[error("state {state} was not loaded from {}: {why}", path.display())]
    NotLoaded {
        /// The state's name.
        state: String,
        /// Where it was to be loaded from.
        path: PathBuf,
        /// Why it was not.
        #[source]
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A GPU refused what it was to do before the operation began, or cannot do it. Local.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// This replica's GPU failed inside of an operation. For the others this replica has
    /// [aborted](Self::Aborted), with this as its reason.
    #[cfg(feature = "gpu")]
    #[error("inside of an operation: {0}")]
    GpuFailed(#[source] GpuError),
    /// A barrier was entered and not yet finished. Local.
    #[error("a barrier ticket of this replica is still open")]
    TicketOpen,
    /// A step in parts has begun and is not finished: it owns the replica, against asynchronous steps too. Local.
    #[error("a step in parts of this replica is still open")]
    StepOpen,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Whether the run is over: a local or an agreed error leaves it usable.
    pub fn ends_the_run(&self) -> bool {
        #[cfg(feature = "gpu")]
        if let Self::Gpu(_) = self {
            return false;
        }
        !matches!(
            self,
            Self::Environment { .. }
                | Self::Disagreement { .. }
                | Self::NonFinite { .. }
                | Self::Length { .. }
                | Self::Invalid { .. }
                | Self::TicketOpen
                | Self::StepOpen
                | Self::Unsettled { .. }
                | Self::Kind { .. }
                | Self::Overflow { .. }
                | Self::MetricsFull { .. }
                | Self::Replay { .. }
                | Self::Duplicate { .. }
                | Self::OtherLoop { .. }
                | Self::NotSaved { .. }
                | Self::NotLoaded { .. }
        )
    }
}

struct Epoch<'a>(&'a Option<u64>);
impl fmt::Display for Epoch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(epoch) => write!(f, "epoch {epoch}"),
            None => f.write_str("the time outside of epochs"),
        }
    }
}

struct Ranks<'a>(&'a [usize]);
impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (i, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

struct Came<'a>(&'a [(usize, Operation)]);
impl fmt::Display for Came<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (rank, operation)) in self.0.iter().enumerate() {
            write!(
                f,
                "{}rank {rank} came for {operation}",
                if i == 0 { "" } else { ", " }
            )?;
        }
        Ok(())
    }
}

struct Values<'a>(&'a [(usize, String)]);
impl fmt::Display for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (rank, value)) in self.0.iter().enumerate() {
            write!(
                f,
                "{}rank {rank} has {value}",
                if i == 0 { "" } else { ", " }
            )?;
        }
        Ok(())
    }
}

struct Hashes<'a>(&'a [u64]);
impl fmt::Display for Hashes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, hash) in self.0.iter().enumerate() {
            write!(
                f,
                "{}rank {rank} {hash:016x}",
                if rank == 0 { "" } else { ", " }
            )?;
        }
        Ok(())
    }
}
