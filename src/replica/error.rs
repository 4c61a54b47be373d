//! The one error of everything that replicas do together.

use super::operation::Operation;
use crate::shm::segment::SegmentError;
use std::fmt;
use std::time::Duration;

/// What can go wrong between replicas.
///
/// Three kinds. *Local* errors are found before anything was published: the operation has not happened and the run
/// goes on. *Agreed* ones are the same on all replicas, and the run goes on. All others *end the run*: every replica
/// gets the same error from whatever it waits for or begins next, and the way on is a new run.
/// [`Error::ends_the_run`] tells which.
#[derive(Debug, thiserror::Error)]
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
    /// A barrier was entered and not yet finished. Local.
    #[error("a barrier ticket of this replica is still open")]
    TicketOpen,
    /// A step in parts has begun and is not finished: it owns the replica, against asynchronous steps too. Local.
    #[error("a step in parts of this replica is still open")]
    StepOpen,
}

impl Error {
    /// Whether the run is over: a local or an agreed error leaves it usable.
    pub fn ends_the_run(&self) -> bool {
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
        )
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
