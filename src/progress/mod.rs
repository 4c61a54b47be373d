//! Epochs and data loops.
mod order;
mod positions;
mod sampler;
mod split;
pub use sampler::{Pass, Sampler};
