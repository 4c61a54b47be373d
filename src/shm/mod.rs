//! Shared memory, and not a word about training: segment, layout, ring, barrier, bell, life token.

pub mod arena;
#[cfg(not(loom))]
mod attach;
pub mod barrier;
pub mod bell;
pub mod cells;
pub mod crash;
#[cfg(not(loom))]
mod create;
#[cfg(not(loom))]
mod descriptor;
pub mod frame;
mod futex;
#[cfg(not(loom))]
pub mod header;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod life;
#[cfg(not(loom))]
mod lines;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod name;
pub mod pace;
pub mod poison;
mod position;
pub mod ring;
pub mod seat;
#[cfg(not(loom))]
pub mod segment;
mod site;
pub mod state;
pub mod sync;
mod word;
