//! Shared memory, and not a word about training: segment, layout, ring, barrier, bell, life token.

pub mod barrier;
pub mod bell;
pub mod frame;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod life;
pub mod poison;
pub mod ring;
#[cfg(not(loom))]
pub mod segment;
pub mod sync;
