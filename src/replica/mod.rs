//! A replica of a run: joining, rank and world size, and what all replicas do together.

mod all_reduce;
mod cause;
mod collectives;
mod counters;
mod error;
mod flags;
mod handle;
mod inline;
mod join;
pub mod op;
mod operation;
pub mod phases;
pub(crate) mod port;
pub mod progress;
pub(crate) mod raw;
pub(crate) mod record;
pub(crate) mod reduce;
mod settings;
pub(crate) mod shared;
mod signals;
mod stage;
mod start;
mod variables;
pub(crate) mod wait;

pub use cause::{Cause, LAUNCHER};
pub(crate) use collectives::{PIECE, broadcast, gather};
pub use counters::Counters;
pub use error::Error;
pub use flags::{Flags, Stop};
pub use handle::{BarrierTicket, Replica};
pub(crate) use inline::read_text;
pub use join::{Builder, DEADLINE, LIFELINE, RANK, SEGMENT, WORLD_SIZE};
pub(crate) use operation::Kind;
pub use operation::Operation;
pub use settings::{CHECKPOINT_DIRECTORY, CHECKPOINT_EVERY, CHECKPOINT_KEEP, RESTART};
pub(crate) use signals::{ECHO, disposition, milliseconds};
