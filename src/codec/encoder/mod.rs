//! A whole vector's encoder: residual, thresholds, momentum memory, post-processor and threads of one replica.
//!
//! A step is [`Encoder::begin`], which chooses the thresholds, [`Encoder::encode`] for each chunk in visiting order, and
//! [`Encoder::end`]. Chunks are visited from number `step mod chunks` on, so that a limit starves none of them. A
//! [streamed](Encoder::begin_streamed) step takes its update part by part.
//!
//! The residual is in this process's memory, or in that of a GPU (`EncoderBuilder::gpu`), which encodes all chunks of a
//! step when it begins. What is chosen, counted and remembered is the same code for both.

mod backend;
mod builder;
mod home;
#[cfg(feature = "gpu")]
mod on_gpu;
mod on_processor;
mod scope;
mod slot;
mod states;
mod steps;
mod streamed;
mod vectors;

pub use backend::Backend;
pub use builder::{EncoderBuilder, EncoderError, MOST_THREADS};
pub use scope::{ScopeState, ScopeStateError};
pub use vectors::VectorsError;

use super::cpu::Path;
use super::memory::Velocity;
use super::post::PostProcessor;
use super::ranges::Chunk;
use super::stats::{ResidualPercentiles, ScopeStats, StepStats};
use super::{Format, Unit};
use home::Home;
use scope::Scope;
use std::ops::Range;
use std::sync::Arc;
use streamed::Stream;

/// One chunk's message; its payload is [`Encoder::payload`].
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Where in the vector the chunk lies.
    pub elements: Range<usize>,
    /// How the payload is laid out.
    pub format: Format,
    /// Threshold and unit of the hits; `None` of a dense chunk.
    pub unit: Option<Unit>,
    /// The hits sent.
    pub hits: u32,
}

/// Encodes one replica's updates of a whole vector.
///
/// ```
/// use gradring::codec::policy::Fixed;
/// use gradring::codec::{Apply, Dense, Encoder, NamedRange, Path, Record};
///
/// let mut encoder = Encoder::builder(4)
///     .ranges([NamedRange::compressed("weights", 3), NamedRange::dense("bias", 1, Dense::F32)])
///     .policy(Fixed::new(0.25)?)
///     .build()?;
/// let update = [0.5, -0.25, 0.125, 0.0625];
/// let mut parameters = [1.0; 4];
/// encoder.begin(0, &update)?;
/// for visit in 0..encoder.chunks() {
///     let message = encoder.encode(visit, &update)?;
///     let record = Record {
///         format: message.format,
///         hits: message.hits,
///         elements: message.elements.len(),
///         payload: encoder.payload(),
///     };
///     let unit = message.unit.map_or(1.0, |unit| unit.v());
///     Path::best().apply(&record, unit, Apply::Subtract, &mut parameters[message.elements])?;
/// }
/// encoder.end()?;
/// assert_eq!(parameters, [0.75, 1.25, 1.0, 0.9375]);
/// assert_eq!(encoder.residual(), [0.25, 0.0, 0.125, 0.0]);
/// assert_eq!(encoder.stats().hits, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Encoder {
    elements: usize,
    path: Path,
    home: Home,
    chunks: Arc<[Chunk]>,
    scopes: Vec<Scope>,
    post: Option<Arc<dyn PostProcessor>>,
    memory: Option<Velocity>,
    step: u64,
    /// The chunk that is visited first, modulo their number.
    first: u64,
    /// The visit whose turn it is in the step that has begun; `None` between steps.
    next: Option<usize>,
    stream: Stream,
    magnitudes: Vec<f32>,
    hits: Option<Vec<usize>>,
    /// Of each scope, and the room that making them takes.
    percentiles: Option<(Vec<ResidualPercentiles>, Vec<f32>)>,
    stats: StepStats,
    /// Elements that were dropped in a step that was given up.
    unreported: u64,
}

impl Encoder {
    /// An encoder of vectors of `elements`.
    #[must_use]
    pub fn builder(elements: usize) -> EncoderBuilder {
        EncoderBuilder::new(elements)
    }

    /// Elements of the vector.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Chunks of the vector.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Where all chunks lie, and how they are encoded.
    pub(crate) fn layout(&self) -> Arc<[Chunk]> {
        Arc::clone(&self.chunks)
    }

    /// The instruction set.
    #[must_use]
    pub fn path(&self) -> Path {
        self.path
    }

    /// Where it does its work.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match &self.home {
            Home::Processor(_) => Backend::Processor(self.path),
            #[cfg(feature = "gpu")]
            Home::Gpu(home) => Backend::Gpu {
                adapter: home.adapter(),
            },
        }
    }

    /// What has not been sent yet, by element. Empty while that is in the memory of a GPU: see
    /// [`download_residual`](Self::download_residual).
    #[must_use]
    pub fn residual(&self) -> &[f32] {
        self.home.residual()
    }

    /// The same, for trainers that add their updates to it themselves, between steps: a step of [`InResidual`] then reads
    /// 4 bytes an element, where one of an update moves 12. Subnormal numbers and -0 count as +0. What is not finite
    /// becomes +0 in the next step, and is counted as dropped. Empty while the residual is in the memory of a GPU, where
    /// such trainers add to its buffers.
    ///
    /// [`InResidual`]: super::InResidual
    pub fn residual_mut(&mut self) -> &mut [f32] {
        match &mut self.home {
            Home::Processor(home) => {
                home.touched = true;
                &mut home.residual
            }
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => &mut [],
        }
    }

    /// What the step did, so far.
    #[must_use]
    pub fn stats(&self) -> &StepStats {
        &self.stats
    }

    /// What each threshold did: first that of the ranges that share one, if there are any, then those of ranges of their
    /// own.
    pub fn scopes(&self) -> impl ExactSizeIterator<Item = &ScopeStats> {
        self.scopes.iter().map(|scope| &scope.stats)
    }

    /// The elements that the step sent as hits, in the order of its visits, ascending in each chunk: for trainers that
    /// start their own momentum anew there (factor masking). Empty unless [`EncoderBuilder::keep_hits`] was asked for.
    #[must_use]
    pub fn hits(&self) -> &[usize] {
        self.hits.as_deref().unwrap_or_default()
    }

    /// How each scope's residual compares with its threshold, after the step that ended last. Empty unless
    /// [`EncoderBuilder::debug`] was asked for.
    #[must_use]
    pub fn percentiles(&self) -> &[ResidualPercentiles] {
        self.percentiles
            .as_ref()
            .map_or(&[], |(percentiles, _)| percentiles)
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder")
            .field("elements", &self.elements())
            .field("backend", &self.backend().to_string())
            .finish_non_exhaustive()
    }
}
