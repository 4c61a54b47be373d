#![cfg_attr(feature = "gpu", doc = include_str!("../README.md"))]
// Its examples need all features.
#![cfg_attr(
    not(feature = "gpu"),
    doc = "Data-parallel training on one node. README.md is this crate's page."
)]

#[cfg(not(target_os = "linux"))]
compile_error!("gradring's engine needs Linux: futexes, robust lists and /dev/shm");

#[cfg(not(loom))]
pub mod checkpoint;
pub mod codec;
#[cfg(not(loom))]
pub mod exchange;
#[cfg(not(loom))]
pub mod launch;
#[cfg(not(loom))]
pub mod metrics;
#[cfg(not(loom))]
pub mod progress;
#[cfg(not(loom))]
pub mod replica;
pub mod shm;

/// What of the replica's code the loom models run.
#[cfg(loom)]
pub mod replica {
    pub mod phases;
    pub mod progress;
}

#[cfg(all(feature = "gpu", not(loom)))]
pub use codec::gpu::{GpuContext, GpuError, GradRef, Selection, wgpu};
#[cfg(not(loom))]
pub use codec::policy::{Adaptive, Fixed, Quantile, TargetDensity, ThresholdPolicy};
#[cfg(not(loom))]
pub use codec::{
    Clipping, Dense, Given, InResidual, MomentumMemory, NamedRange, Parameters, PostProcessor,
    Update,
};
#[cfg(not(loom))]
pub use exchange::{
    Asynchronous, BackendChoice, BackendKind, Bypass, EpochEnd, Exchange, OpenStep, Reduction,
    Report, SettleReport, parameter_hash,
};
#[cfg(not(loom))]
pub use launch::Launch;
#[cfg(not(loom))]
pub use metrics::{Accumulator, Synchronized};
#[cfg(not(loom))]
pub use progress::{Batch, Batches, Epochs, Sampler};
#[cfg(not(loom))]
pub use replica::{Error, Flags, Replica, Stop, op};
