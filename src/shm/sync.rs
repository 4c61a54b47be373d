//! The one facade over core's atomics and loom's, and the words that are built on it.
//!
//! Everything that lies in shared memory is made of these types, so that loom's models run the shipped code. In an
//! ordinary build each has the size and alignment of the integer inside and is valid when all its bytes are zero.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub use super::futex::Futex;
pub use super::site::*;
pub use super::word::Word;

/// A value alone on its cache lines.
pub type Padded<T> = crossbeam_utils::CachePadded<T>;
