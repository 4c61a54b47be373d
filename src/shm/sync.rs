//! The one facade over std's atomics and loom's.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A value alone on its cache lines.
pub type Padded<T> = crossbeam_utils::CachePadded<T>;
/// 8 bytes of plain data, read and written as one.
#[repr(transparent)]
pub struct Word<T: bytemuck::NoUninit>(atomic::Atomic<T>);
/// A u32 that threads of several processes can sleep on.
#[repr(transparent)]
pub struct Futex(AtomicU32);
