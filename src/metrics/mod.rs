//! Metrics over all replicas: exact, the same bits on all of them, and through restarts.
//!
//! [`Accumulator`] is where to begin: its page is a whole epoch loop.

mod accumulator;
mod addend;
mod bytes;
mod content;
mod handles;
mod history;
mod live;
mod peers;
mod registry;
mod saved;
mod synchronize;
mod synchronized;
mod value;

pub use crate::shm::cells::Kind;
pub use accumulator::Accumulator;
pub use addend::Addend;
pub use handles::{Count, Counts, Histogram, Max, Mean, Min, Sum, Sums};
pub use live::{Live, live, live_of};
pub use synchronized::Synchronized;
pub use value::Value;
