//! What an encoder is made with.

use super::Encoder;
use super::scope::Scope;
use super::slot::Slot;
use super::streamed::Stream;
use crate::codec::cpu::Path;
use crate::codec::memory::{MomentumMemory, Velocity};
use crate::codec::policy::{Quantile, ThresholdPolicy};
use crate::codec::pool::Pool;
use crate::codec::post::PostProcessor;
use crate::codec::ranges::{Chunk, ChunkCoding, Coding, NamedRange, chunks};
use crate::codec::residual::{Residual, ResidualError};
use crate::codec::stats::StepStats;
use std::sync::Arc;
use thiserror::Error;

/// The most threads that an encoder can have.
pub const MOST_THREADS: usize = 64;

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
    /// Default: 1.
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
        let residual = Residual::zeroed(self.elements)?;
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
        let chunks: Vec<Chunk> = chunks(codings).collect();
        let memory = match self.memory {
            Some(settings) => Some(Velocity::new(settings, self.replicas, self.elements)?),
            None => None,
        };
        let pool = if self.threads > 1 {
            Some(
                Pool::new(self.threads).map_err(|error| EncoderError::Spawn {
                    threads: self.threads,
                    error: error.to_string(),
                })?,
            )
        } else {
            None
        };
        let most = chunks.iter().map(|chunk| chunk.elements.len()).max();
        let slots = (0..self.threads)
            .map(|_| Slot::new(most.unwrap_or(0)))
            .collect();
        Ok(Encoder {
            path: self.path,
            residual,
            touched: false,
            chunks: chunks.into(),
            scopes,
            post: self.post,
            memory,
            pool,
            slots,
            batch: 0..0,
            current: 0,
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
}
