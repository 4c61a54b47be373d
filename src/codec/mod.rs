//! Vectors in, bytes out, and not a word about processes.
//!
//! A replica's update is added to its *residual*; every element of the sum that is at least the *threshold* sends one
//! *unit* of its sign and keeps the rest, so that nothing is lost, only late (error feedback; Seide 2014, Strom 2015).
//! The vector is cut into chunks of at most [`CHUNK`] elements and each chunk becomes one record: a format, a number
//! of hits and a payload.
//!
//! | module | what it holds |
//! |---|---|
//! | [`arithmetic`] | the canonical numbers that make every processor give the same bits; [`Unit`] |
//! | [`format`](mod@format) | what a payload looks like, its length, and the checks on one that came from elsewhere |
//! | [`encode`] | one fused pass: accumulate, threshold, collect |
//! | [`dense`] | a chunk without compression |
//! | [`values`] | numbers of f32, f16 and bf16 |
//! | [`given`] | updates: slices, parts in the memory of a GPU, or in the residual already |
//! | [`parameters`] | what records are applied to: slices, or parts in the memory of a GPU |
//! | [`apply`] | a record onto parameters or onto a sum |
//! | [`sample`] | the magnitudes of some elements, before the step |
//! | [`Encoder`] | a whole vector: residual, thresholds by range, momentum memory, post-processor, threads |
//! | [`policy`] | which threshold and unit a step uses |
//! | [`residual`] | the residual's memory |
//! | [`compact`] | a chunk's hits within 2 % of their entropy: off the node, in checkpoints |
//! | [`compat`] | Deeplearning4j's two formats, to talk to JVM peers |
//! | `gpu` | the codec on a GPU, with the same bits (feature `gpu`) |
//! | [`cpu`] | the instruction sets, and the one place that picks among them |
//!
//! ```
//! use gradring::codec::{Apply, ChunkOptions, Path, Record, Unit};
//!
//! let path = Path::best();
//! let unit = Unit::new(0.25, 0.25)?;
//! let mut residual = [0.0; 4];
//! let mut payload = Vec::new();
//! let update = [0.5, -0.25, 0.125, 0.0];
//! let sent = path.encode(&mut residual, &update, unit, &ChunkOptions::default(), &mut payload)?;
//! assert_eq!(sent.hits, 2);
//! assert_eq!(residual, [0.25, 0.0, 0.125, 0.0]);
//!
//! let mut parameters = [1.0; 4];
//! let record = Record { format: sent.format, hits: sent.hits, elements: 4, payload: &payload };
//! path.apply(&record, unit.v(), Apply::Subtract, &mut parameters)?;
//! assert_eq!(parameters, [0.75, 1.25, 1.0, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod apply;
pub mod arithmetic;
pub mod compact;
pub mod compat;
pub mod cpu;
pub mod dense;
mod draft;
pub mod encode;
mod encoder;
pub mod format;
pub mod given;
#[cfg(feature = "gpu")]
pub mod gpu;
mod hash;
mod memory;
pub mod parameters;
pub mod policy;
mod pool;
mod post;
mod ranges;
pub mod residual;
pub mod sample;
mod stats;
pub mod values;

pub use apply::{Applied, Apply};
pub use arithmetic::{Unit, UnitError, canon, cut8};
pub use cpu::{Path, PathError};
pub use dense::Dense;
pub use encode::{Budget, ChunkOptions, Clip, ClipError, EncodeError, Encoded};
pub use encoder::{
    Backend, Encoder, EncoderBuilder, EncoderError, MOST_THREADS, Message, ScopeState,
    ScopeStateError, VectorsError,
};
pub use format::{DecodeError, Format, Record, UnknownFormat, payload_len};
pub(crate) use format::{bitmap_len, sparse_len};
pub use given::{Given, InResidual, Update};
pub(crate) use hash::sums_from as hash_sums_from;
pub(crate) use memory::pieces;
pub use memory::{MemoryError, MomentumMemory};
pub use parameters::Parameters;
pub use post::{Clipping, ClippingError, PostInput, PostProcessor};
pub use ranges::NamedRange;
pub(crate) use ranges::{Chunk, ChunkCoding, in_dense_chunks, visited};
pub use residual::{Residual, ResidualError};
pub use stats::{ResidualPercentiles, ScopeStats, StepStats};
pub use values::Values;

/// Elements of a block: what a hit's 15-bit index can address.
pub const BLOCK: usize = 32_768;

/// The most elements of a chunk: 8 blocks. What the pipeline moves at a time, and one record carries.
pub const CHUNK: usize = 8 * BLOCK;
