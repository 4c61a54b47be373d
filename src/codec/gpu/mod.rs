//! The codec on a GPU, through wgpu: the same bits as on the processor.
//!
//! Updates that are in the memory of a GPU are encoded there, and only the message crosses the bus.
//!
//! | type | what it is |
//! |---|---|
//! | [`GpuContext`] | a device and its queue: the caller's, or one of its own on an adapter that a [`Selection`] names |
//! | [`GradRef`] | an update, or parameters, or a part of them, in this process's memory or in a buffer |
//! | [`Encoder`](super::Encoder) | encodes on a device if it was [given](super::EncoderBuilder::gpu) one |
//! | [`GpuApplier`] | applies records to parameters in the memory of a device |
//! | [`GpuError`] | why something could not be done |
//!
//! The kernels are in `shaders/`, one a file, named as their twins in `codec/cpu/scalar.rs`. They see floats as the bits of
//! integers, and make nothing but single additions of canonical numbers, so that a device which flushes subnormals or takes
//! for granted that there are no infinities gives the same bits as one that does not. Ranks of hits follow from counts
//! (reduce, then scan), never from the order in which workgroups come, and no size of a subgroup is taken for granted.
//! Vectors are cut into windows that fit the device's bindings.
//!
//! ```no_run
//! use gradring::codec::gpu::{GpuApplier, GpuContext, GradRef, Selection, wgpu};
//! use gradring::codec::{Apply, Encoder, Record, Unit};
//!
//! let context = GpuContext::new(&Selection::from_env()?)?;
//! let buffer = context.device().create_buffer(&wgpu::BufferDescriptor {
//!     label: None,
//!     size: 4 * 100_000,
//!     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
//!     mapped_at_creation: false,
//! });
//! let parameters = [GradRef::device(&buffer)];
//! let update = vec![1e-3_f32; 100_000];
//! let mut encoder = Encoder::builder(100_000).gpu(context.clone()).build()?;
//! let mut applier = GpuApplier::new(&context)?;
//! encoder.begin(0, &update)?;
//! for visit in 0..encoder.chunks() {
//!     let message = encoder.encode(visit, &update)?;
//!     let record = Record {
//!         format: message.format,
//!         hits: message.hits,
//!         elements: message.elements.len(),
//!         payload: encoder.payload(),
//!     };
//!     let unit = message.unit.map_or(1.0, Unit::v);
//!     applier.apply(&record, unit, Apply::Subtract, &parameters, message.elements.start)?;
//! }
//! encoder.end()?;
//! applier.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod applier;
mod context;
#[cfg(test)]
#[path = "../../../tests/codec_gpu/device.rs"]
pub(crate) mod device;
mod error;
mod hashing;
mod kernels;
mod selection;
mod slices;
mod transfer;
mod vector;
mod whole;
mod windows;

pub use applier::{GpuApplier, GpuApplyError};
pub use context::GpuContext;
pub use error::GpuError;
pub use selection::{Selection, adapters};
pub use slices::GradRef;
pub(crate) use slices::{PARAMETERS, check_apart};
pub(crate) use vector::{GpuStep, GpuVector};
// For this package's own benchmark.
#[doc(hidden)]
pub use vector::{StageTimes, TimedVector};
/// The version of wgpu whose devices and buffers are used.
pub use wgpu;
pub(crate) use whole::Whole;
