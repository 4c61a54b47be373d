//! A vector's residual on a device, and the encoding of it.
//!
//! A step is one submission: `accumulate` and `count` add the update, mark hits in a mask of a bit an element, and count
//! them; `plan` says what is sent of each chunk and where in the message it lies; `sparse`, `bitmap`, `dense_f32` and
//! `dense_bf16` write the message and take from the residual what it sends; `seen` adds what the mean is made of, `clamp`
//! clips, `look` samples what stays. Then one read-back of outcomes and message. This is reduce-then-scan: ranks of hits
//! follow from counts alone, so that the bytes do not depend on which workgroup comes first.

mod bound;
mod came;
mod feed;
mod kernels;
mod layout;
mod memory;
mod outcome;
mod record;
mod sampler;
mod source;
#[cfg(test)]
mod tests;
mod timed;

pub(super) use kernels::EncodeKernels;
pub use timed::{StageTimes, TimedVector};

use super::context::GpuContext;
use super::error::GpuError;
use super::slices::GradRef;
use super::transfer::{Download, Uploads};
use crate::codec::encode::Clip;
use crate::codec::format::Format;
use crate::codec::given::Given;
use crate::codec::ranges::Chunk;
use crate::codec::{Unit, canon};
use bound::Bound;
use came::Came;
use feed::{Commands, Feed};
use layout::Layout;
use memory::Memory;
use record::step_bytes;
use sampler::Sampler;
use std::ops::Range;
use std::sync::Arc;
use timed::Timer;
use wgpu::CommandBuffer;

/// What a step encodes with.
pub(crate) struct GpuStep<'a> {
    /// Its number.
    pub(crate) step: u64,
    /// The chunk that is visited first, modulo their number.
    pub(crate) first: u64,
    /// Of each scope: threshold and unit, and how many hits may be sent (`usize::MAX`: all).
    pub(crate) scopes: &'a [(Unit, usize)],
    /// Clamp what stays.
    pub(crate) clip: Option<Clip>,
}

/// What came of a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GpuChunk {
    pub(crate) format: Format,
    pub(crate) hits: u32,
    /// As [`Encoded::mean`](crate::codec::Encoded::mean), to the bit.
    pub(crate) mean: f64,
    /// As [`Encoded::residual_max`](crate::codec::Encoded::residual_max), to the bit.
    pub(crate) residual_max: f32,
    /// As [`Encoded::residual_l1`](crate::codec::Encoded::residual_l1), to about 1e-6 of it.
    pub(crate) residual_l1: f64,
}

/// A vector's residual on a device.
pub(crate) struct GpuVector {
    context: GpuContext,
    chunks: Arc<[Chunk]>,
    layout: Layout,
    /// Of a vector without elements there is none.
    memory: Option<Memory>,
    /// What a step needs of this process, but for its update.
    uploads: Uploads,
    download: Download,
    /// Updates in this process's memory, and the buffer to which they go. Not there before there is one.
    host: Option<(Feed, wgpu::Buffer)>,
    sampler: Option<Sampler>,
    bound: Bound,
    record_after: Option<CommandBuffer>,
    /// For this package's own benchmark.
    timer: Option<Timer>,
    came: Came,
}

impl GpuVector {
    /// A residual of +0, cut into these chunks; `ChunkCoding::Threshold(scope)` has scopes below `scopes`.
    pub(crate) fn new(
        context: &GpuContext,
        chunks: Arc<[Chunk]>,
        scopes: usize,
    ) -> Result<GpuVector, GpuError> {
        let elements = chunks.last().map_or(0, |chunk| chunk.elements.end);
        if elements > MOST_ELEMENTS {
            return Err(GpuError::Refused {
                adapter: context.name(),
                what: "a vector",
                why: format!("it has {elements} elements; at most {MOST_ELEMENTS} can be numbered"),
            });
        }
        // An update's binding begins up to an alignment before its first element.
        let most = context.most_bound() - context.alignment();
        let layout = Layout::new(&chunks, scopes, most);
        let memory = if layout.windows.is_empty() {
            None
        } else {
            Some(Memory::new(context, &layout)?)
        };
        let bytes = step_bytes(&layout, 0);
        Ok(GpuVector {
            context: context.clone(),
            chunks,
            layout,
            memory,
            uploads: Uploads::new(context, bytes)?,
            download: Download::new(context),
            host: None,
            sampler: None,
            bound: Bound::default(),
            record_after: None,
            timer: None,
            came: Came::default(),
        })
    }

    pub(crate) fn context(&self) -> &GpuContext {
        &self.context
    }

    fn elements(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk.elements.end)
    }

    /// Puts the first submission of the next step behind these commands of the caller's, and into the same submission.
    /// Of several, all but the last are submitted now.
    pub(crate) fn record_after(&mut self, commands: CommandBuffer) -> Result<(), GpuError> {
        match self.record_after.replace(commands) {
            Some(before) => self.context.submit_commands(before),
            None => Ok(()),
        }
    }

    /// Appends |s| of the elements of these pieces of the vector, in their order: to the bit what the processor's kernel
    /// gives. Changes nothing. One read-back for each 2^20 of them.
    pub(crate) fn magnitudes(
        &mut self,
        update: Given<'_>,
        pieces: &[Range<usize>],
        out: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let elements = self.elements();
        let parts = source::parts_of(update)?;
        let sampler = match &mut self.sampler {
            Some(sampler) => sampler,
            none => none.insert(Sampler::new(&self.context, elements)?),
        };
        let mut commands = Commands::behind(self.record_after.take(), &self.context)?;
        let windows = &self.layout.windows;
        sampler.sample(
            windows,
            memory,
            &mut self.bound,
            parts.as_deref(),
            pieces,
            &mut commands,
            out,
        )
    }

    /// Encodes all chunks: one submission and one read-back (two where the guess of the message's length was too short).
    /// Of an update in this process's memory its upload is submitted before.
    ///
    /// After an error the residual may have the update or parts of it.
    pub(crate) fn encode(&mut self, update: Given<'_>, step: &GpuStep<'_>) -> Result<(), GpuError> {
        self.came.forget();
        let parts = source::parts_of(update)?;
        self.bound.begin();
        let before = self.record_after.take();
        if self.memory.is_none() {
            return match before {
                Some(before) => self.context.submit_commands(before),
                None => self.context.check("a step"),
            };
        }
        let mut commands = Commands::behind(before, &self.context)?;
        let shares = parts.map(|parts| source::shares(&parts, &self.layout.windows));
        self.upload_step(shares.as_deref(), step, &mut commands.encoder)?;
        for window in 0..self.layout.windows.len() {
            let of_window = shares.as_ref().map(|shares| &shares[window]);
            self.count(window, of_window, &mut commands)?;
        }
        self.emit(step, &mut commands.encoder);
        self.read_back(step, commands)
    }

    /// What came of a chunk in the last [`encode`](Self::encode).
    pub(crate) fn chunk(&self, chunk: usize) -> GpuChunk {
        self.came.chunks[chunk]
    }

    /// Its payload.
    pub(crate) fn payload(&self, chunk: usize) -> &[u8] {
        &self.came.message[self.came.payloads[chunk].clone()]
    }

    /// Elements that the last encode dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.came.dropped
    }

    /// What clipping took away in it.
    pub(crate) fn clipped(&self) -> f64 {
        self.came.clipped
    }

    /// The residual, canonical; elements that are not finite (a trainer wrote them in place) are as they are.
    pub(crate) fn residual(&self) -> Result<Vec<f32>, GpuError> {
        let mut residual = self.context.download(&self.parts())?;
        for r in &mut residual {
            *r = canon(*r);
        }
        Ok(residual)
    }

    /// Replaces the residual.
    pub(crate) fn restore(&mut self, residual: &[f32]) -> Result<(), GpuError> {
        self.context.upload(residual, &self.parts())
    }

    /// The buffers in which the residual lies.
    pub(crate) fn residuals(&self) -> impl Iterator<Item = &wgpu::Buffer> {
        let windows = self.memory.iter().flat_map(|memory| &memory.windows);
        windows.map(|window| &window.residual)
    }

    /// What of each of them, in order.
    pub(crate) fn parts(&self) -> Vec<GradRef<'_>> {
        self.residuals()
            .zip(&self.layout.windows)
            .map(|(buffer, window)| GradRef::Device {
                buffer,
                offset: 0,
                len: window.elements.len() as u64,
            })
            .collect()
    }
}

/// The most elements that kernels can number, with all that is counted of them.
const MOST_ELEMENTS: usize = 1 << 31;
