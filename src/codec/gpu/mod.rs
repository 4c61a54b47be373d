//! The codec on a GPU, through wgpu: the same bits as on the processor.
//!
//! Updates that are in the memory of a GPU are encoded there, and only the message crosses the bus.

mod applier;
mod context;
mod error;
mod kernels;
mod slices;
mod transfer;
mod vector;
mod whole;
mod windows;

pub use applier::{GpuApplier, GpuApplyError};
pub use context::{GpuContext, Selection, adapters};
pub use error::GpuError;
pub use slices::GradRef;
pub(crate) use vector::{GpuChunk, GpuStep, GpuVector};
// For this package's own benchmark.
#[doc(hidden)]
pub use vector::{StageTimes, TimedVector};
/// The version of wgpu whose devices and buffers are used.
pub use wgpu;
pub(crate) use whole::Whole;
