//! Pure parts.
#[allow(dead_code)]
mod order;
#[allow(dead_code)]
mod position;
#[allow(dead_code)]
mod positions;
#[allow(dead_code)]
mod sampler;
#[allow(dead_code)]
mod split;
#[allow(dead_code)]
mod state;
#[cfg(test)]
mod simulation;
pub use sampler::{Pass,Sampler};
