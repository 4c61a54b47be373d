//! What an encoder is made with.

use super::Encoder;
use super::home::Home;
#[cfg(feature = "gpu")]
use super::on_gpu::{self, Snapshots};
use super::on_processor::{OnProcessor, Threads};
use super::scope::Scope;
use super::streamed::Stream;
use crate::codec::cpu::Path;
#[cfg(feature = "gpu")]
use crate::codec::gpu::{GpuContext, GpuError};
use crate::codec::memory::{MomentumMemory, Velocity};
use crate::codec::policy::{Quantile, ThresholdPolicy};
use crate::codec::post::PostProcessor;
use crate::codec::ranges::{Chunk, ChunkCoding, Coding, NamedRange, chunks};
use crate::codec::residual::{Residual, ResidualError};
use crate::codec::stats::StepStats;
use std::sync::Arc;
use thiserror::Error;

/// The most threads that an encoder can have.
pub const MOST_THREADS: usize = 64;

/// Far more elements than any GPU has memory for: lists of their chunks are small.
#[cfg(feature = "gpu")]
const MOST_ON_GPU: u64 = 1 << 40;

/// How an encoder is made.
#[derive(Debug)]
pub struct EncoderBuilder {
    elements: usize,
    pub(crate) name: String,
    pub(crate) ranges: Vec<NamedRange>,
    pub(crate) policy: Box<dyn ThresholdPolicy>,
    pub(crate) post: Option<Arc<dyn PostProcessor>>,
    pub(crate) memory: Option<MomentumMemory>,
    pub(crate) replicas: usize,
    pub(crate) threads: usize,
    pub(crate) path: Path,
    pub(crate) keeps_hits: bool,
    pub(crate) debug: bool,
    #[cfg(feature = "gpu")]
    pub(super) gpu: Option<GpuContext>,
    #[cfg(feature = "gpu")]
    pub(super) snapshot_every: u64,
    #[cfg(feature = "gpu")]
    pub(super) falls_back: bool,
    #[cfg(feature = "gpu")]
    pub(super) needs_gpu: bool,
}

impl EncoderBuilder {
    pub(super) fn new(elements: usize) -> EncoderBuilder {
        EncoderBuilder {
            elements,
            name: "vector".to_owned(),
            ranges: Vec::new(),
            policy: Box::new(Quantile::default()),
            post: None,
            memory: None,
            replicas: 1,
            threads: 1,
            path: Path::best(),
            keeps_hits: false,
            debug: false,
            #[cfg(feature = "gpu")]
            gpu: None,
            #[cfg(feature = "gpu")]
            snapshot_every: 0,
            #[cfg(feature = "gpu")]
            falls_back: false,
            #[cfg(feature = "gpu")]
            needs_gpu: true,
        }
    }

    /// The vector's name, which is that of the threshold that ranges share. Default: "vector".
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The ranges of the vector; their lengths must add up to its length. Default: one, compressed.
    #[must_use]
    pub fn ranges(mut self, ranges: impl IntoIterator<Item = NamedRange>) -> Self {
        self.ranges = ranges.into_iter().collect();
        self
    }

    /// Chooses the threshold of all ranges that have no policy of their own. Default: [`Quantile`] at density 1e-2.
    #[must_use]
    pub fn policy(mut self, policy: impl ThresholdPolicy + 'static) -> Self {
        self.policy = Box::new(policy);
        self
    }

    /// What is done to the residual after the hits. Default: nothing.
    #[must_use]
    pub fn post_processor(mut self, post: impl PostProcessor + 'static) -> Self {
        self.post = Some(Arc::new(post));
        self
    }

    /// Momentum in front of the encoder, in a run of so many replicas, at least 1. Default: none.
    #[must_use]
    pub fn momentum(mut self, memory: MomentumMemory, replicas: usize) -> Self {
        (self.memory, self.replicas) = (Some(memory), replicas);
        self
    }

    /// How many threads encode, the caller's included; the bytes are those of one. Streamed steps use the caller's alone.
    /// An encoder on a GPU needs none, and has them for the processor in case that it falls back to it. Default: 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// The instruction set. Default: [`Path::best`].
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// Keeps the places of a step's hits for [`Encoder::hits`]. Default: no.
    #[must_use]
    pub fn keep_hits(mut self, keep: bool) -> Self {
        self.keeps_hits = keep;
        self
    }

    /// Makes [`Encoder::percentiles`] after each step: a copy of the residual and a selection in it, which take 10 to 50
    /// times as long as the step, and 4 bytes an element. Default: no.
    #[must_use]
    pub fn debug(mut self, debug: bool) -> Self {
        self.debug = debug;
        self
    }

    /// Keeps the residual in the memory of this GPU, and encodes there, with the same bytes. Updates may be in either
    /// memory. Default: on the processor.
    ///
    /// A step's chunks are all encoded in [`Encoder::begin`]. Not on a GPU are: momentum memories, post-processors that do
    /// more than [clip](PostProcessor::processes), streamed steps, and [`Encoder::accumulate`].
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn gpu(mut self, context: GpuContext) -> Self {
        self.gpu = Some(context);
        self
    }

    /// Copies the residual from the GPU to this process's memory after each so many steps, 0: never. If the device is lost,
    /// what the steps since the last copy have changed in the residual is all that is lost with it: what they took in and
    /// did not send is never sent, and what they sent of older mass is sent again. A copy takes 4 bytes
    /// an element, twice that while it is made; a residual on the processor needs none. Default: 0.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn snapshot_every(mut self, steps: u64) -> Self {
        self.snapshot_every = steps;
        self
    }

    /// Goes on on the processor if the device is lost, does not end its work in time, or has no memory left: with the
    /// last [copy](Self::snapshot_every) of the residual, without one with +0. The step under way is made there too, if its
    /// update is in this process's memory. Default: no; it is an error then.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn fall_back(mut self, yes: bool) -> Self {
        self.falls_back = yes;
        self
    }

    /// The GPU is only what seems best: if there is no room on it now, the processor encodes.
    #[cfg(feature = "gpu")]
    pub(crate) fn if_there_is_room(mut self) -> Self {
        self.needs_gpu = false;
        self
    }

    /// Which setting a GPU does not do.
    #[cfg(feature = "gpu")]
    pub(crate) fn gpu_cannot(&self) -> Option<String> {
        if self.memory.is_some() {
            return Some("a momentum memory".to_owned());
        }
        let post = self.post.as_ref().filter(|post| post.processes())?;
        Some(format!(
            "the post-processor {}, which does more than clip",
            post.kind()
        ))
    }

    /// Whether the residual is to be in the memory of a GPU, which has to be able to do what is asked for.
    fn is_for_gpu(&self) -> Result<bool, EncoderError> {
        #[cfg(feature = "gpu")]
        if self.gpu.is_some() {
            if let Some(what) = self.gpu_cannot() {
                return Err(EncoderError::OnGpu { what });
            }
            if self.elements as u64 > MOST_ON_GPU {
                let elements = self.elements;
                return Err(ResidualError { elements }.into());
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Makes the encoder, with a residual of +0.
    ///
    /// # Errors
    /// [`EncoderError`].
    pub fn build(self) -> Result<Encoder, EncoderError> {
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return Err(EncoderError::Threads {
                found: self.threads,
            });
        }
        if self.replicas == 0 {
            return Err(EncoderError::Replicas);
        }
        let is_for_gpu = self.is_for_gpu()?;
        let mut ranges = self.ranges;
        if ranges.is_empty() {
            ranges.push(NamedRange::compressed(self.name.clone(), self.elements));
        }
        let found = ranges
            .iter()
            .try_fold(0usize, |sum, range| sum.checked_add(range.elements));
        if found != Some(self.elements) {
            return Err(EncoderError::Ranges {
                expected: self.elements,
                found: found.unwrap_or(usize::MAX),
            });
        }
        // First of all that grows with the vector: a length that no memory holds is an error here.
        let in_memory = if is_for_gpu { 0 } else { self.elements };
        let residual = Residual::zeroed(in_memory)?;
        let mut scopes = Vec::new();
        if ranges.iter().any(|r| matches!(r.coding, Coding::Shared)) {
            scopes.push(Scope::new(self.name, self.policy));
        }
        let mut codings = Vec::with_capacity(ranges.len());
        let mut start = 0;
        for range in ranges {
            let elements = start..start + range.elements;
            start = elements.end;
            let coding = match range.coding {
                Coding::Shared => ChunkCoding::Threshold(0),
                Coding::Own(policy) => {
                    scopes.push(Scope::new(range.name, policy));
                    ChunkCoding::Threshold(scopes.len() - 1)
                }
                Coding::Dense(number) => ChunkCoding::Dense(number),
            };
            if let ChunkCoding::Threshold(scope) = coding {
                scopes[scope].add(elements.clone());
            }
            codings.push((elements.len(), coding));
        }
        let chunks: Arc<[Chunk]> = chunks(codings).collect();
        let memory = match self.memory {
            Some(settings) => Some(Velocity::new(settings, self.replicas, self.elements)?),
            None => None,
        };
        let on_processor = || {
            let threads = Threads::new(self.threads)?;
            let home = OnProcessor::new(residual, &chunks, threads);
            Ok::<_, EncoderError>(Home::Processor(home))
        };
        #[cfg(not(feature = "gpu"))]
        let home = on_processor()?;
        #[cfg(feature = "gpu")]
        let home = match &self.gpu {
            None => on_processor()?,
            Some(context) => {
                let threads = || Threads::new(self.threads);
                let snapshots = Snapshots::every(self.snapshot_every);
                let falls_back = self.falls_back.then(threads).transpose()?;
                let made = on_gpu::home(context, &chunks, scopes.len(), snapshots, falls_back);
                match made {
                    Err(EncoderError::Gpu(error)) if !self.needs_gpu => {
                        on_gpu::without(error, &chunks, threads()?)?
                    }
                    made => made?,
                }
            }
        };
        Ok(Encoder {
            elements: self.elements,
            path: self.path,
            home,
            chunks,
            scopes,
            post: self.post,
            memory,
            step: 0,
            first: 0,
            next: None,
            stream: Stream::default(),
            magnitudes: Vec::new(),
            hits: self.keeps_hits.then(Vec::new),
            percentiles: self.debug.then(|| (Vec::new(), Vec::new())),
            stats: StepStats::default(),
            unreported: 0,
        })
    }
}

/// Why there is no encoder.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EncoderError {
    /// The ranges do not cover the vector.
    #[error("the ranges have {found} elements in all; the vector has {expected}")]
    Ranges {
        /// The vector's.
        expected: usize,
        /// The ranges'.
        found: usize,
    },
    /// A momentum memory in a run of no replicas.
    #[error("a momentum memory for 0 replicas; there is at least 1")]
    Replicas,
    /// No threads, or too many.
    #[error("{found} threads; an encoder can have 1 to {MOST_THREADS}")]
    Threads {
        /// How many were asked for.
        found: usize,
    },
    /// The system refused a thread.
    #[error("the system gives no {threads} threads: {error}")]
    Spawn {
        /// How many were asked for.
        threads: usize,
        /// What it says.
        error: String,
    },
    /// No memory.
    #[error(transparent)]
    Memory(#[from] ResidualError),
    /// What a GPU does not do.
    #[error("an encoder on a GPU cannot have this: {what}")]
    OnGpu {
        /// What was asked for.
        what: String,
    },
    /// The GPU.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] GpuError),
}
