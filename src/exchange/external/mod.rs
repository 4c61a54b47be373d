//! External updates: from somewhere that is no replica of this run, to all replicas, in the same place of the same step.
//!
//! A source is attached at one replica. Before each step it is asked, without waiting; what it has goes out behind the last
//! chunk of all ranks, and every replica applies it as it applies its peers' records. Deeplearning4j's external source and
//! its tail, with one place in the order for all.
//!
//! | source | where updates come from |
//! |---|---|
//! | [`queue`] | other threads of this process |
//! | [`SocketSource`] | other processes, over a Unix socket: compact records, or Deeplearning4j's messages |
//! | your own | [`UpdateSource`] |

mod client;
mod error;
mod frame;
mod message;
mod pass;
mod queue;
mod socket;
mod sources;
mod sum;
mod update;

pub(super) use pass::{Pass, apply_here};
pub(super) use sources::Sources;

pub use client::SocketClient;
pub use error::{FrameError, SourceError};
pub use queue::{DEFAULT_LIMIT, QueueSender, QueueSource, queue};
pub use socket::{SocketOptions, SocketSource};
pub use update::ExternalUpdate;

/// Where external updates come from.
pub trait UpdateSource: Send {
    /// Elements of its updates; those of the exchange that it is attached to.
    fn elements(&self) -> usize;

    /// All that has come since it was asked last, added up in order of arrival; `None` if nothing has. Must not wait for
    /// anything to come.
    ///
    /// # Errors
    /// [`SourceError`] when no more will come.
    fn poll(&mut self) -> Result<Option<ExternalUpdate>, SourceError>;

    /// Takes back what [`poll`](Self::poll) gave and no step could use: it comes first again.
    fn give_back(&mut self, update: ExternalUpdate);

    /// What it has done so far.
    fn counts(&self) -> SourceCounts {
        SourceCounts::default()
    }
}

impl<S: UpdateSource + ?Sized> UpdateSource for Box<S> {
    fn elements(&self) -> usize {
        (**self).elements()
    }

    fn poll(&mut self) -> Result<Option<ExternalUpdate>, SourceError> {
        (**self).poll()
    }

    fn give_back(&mut self, update: ExternalUpdate) {
        (**self).give_back(update);
    }

    fn counts(&self) -> SourceCounts {
        (**self).counts()
    }
}

/// What a source has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceCounts {
    /// Updates taken from senders.
    pub accepted: u64,
    /// Updates refused, with the reason told to the sender.
    pub refused: u64,
    /// Times that a backlog beyond the limit was added up.
    pub collapsed: u64,
    /// Elements that were left out of a sum, which they would have made infinite.
    pub left_out: u64,
}
