//! A vector's residual on a device, and the encoding of it.

use super::context::GpuContext;
use super::error::GpuError;
use crate::codec::Unit;
use crate::codec::encode::Clip;
use crate::codec::format::Format;
use crate::codec::given::Given;
use crate::codec::ranges::Chunk;
use std::ops::Range;
use std::sync::Arc;

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
pub(crate) struct GpuVector {}

impl GpuVector {
    /// A residual of +0, cut into these chunks; `ChunkCoding::Threshold(scope)` has scopes below `scopes`.
    pub(crate) fn new(
        context: &GpuContext,
        chunks: Arc<[Chunk]>,
        scopes: usize,
    ) -> Result<GpuVector, GpuError> {
        let _ = (context, chunks, scopes);
        todo!()
    }

    pub(crate) fn context(&self) -> &GpuContext {
        todo!()
    }

    /// Puts the first submission of the next step behind these commands of the caller's, and into the same submission.
    pub(crate) fn record_after(&mut self, commands: wgpu::CommandEncoder) {
        let _ = commands;
        todo!()
    }

    /// Appends |s| of the elements of these pieces of the vector, in their order: to the bit what the processor's kernel
    /// gives. Changes nothing. One read-back.
    pub(crate) fn magnitudes(
        &mut self,
        update: Given<'_>,
        pieces: &[Range<usize>],
        out: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        let _ = (update, pieces, out);
        todo!()
    }

    /// Encodes all chunks: one submission and one read-back (two where the guess of the message's length was too short).
    pub(crate) fn encode(&mut self, update: Given<'_>, step: &GpuStep<'_>) -> Result<(), GpuError> {
        let _ = (update, step);
        todo!()
    }

    /// What came of a chunk in the last [`encode`](Self::encode).
    pub(crate) fn chunk(&self, chunk: usize) -> GpuChunk {
        let _ = chunk;
        todo!()
    }

    /// Its payload.
    pub(crate) fn payload(&self, chunk: usize) -> &[u8] {
        let _ = chunk;
        todo!()
    }

    /// Elements that the last encode dropped.
    pub(crate) fn dropped(&self) -> u64 {
        todo!()
    }

    /// What clipping took away in it.
    pub(crate) fn clipped(&self) -> f64 {
        todo!()
    }

    /// The residual, canonical; elements that are not finite (a trainer wrote them in place) are as they are.
    pub(crate) fn residual(&self) -> Result<Vec<f32>, GpuError> {
        todo!()
    }

    /// Replaces the residual.
    pub(crate) fn restore(&mut self, residual: &[f32]) -> Result<(), GpuError> {
        let _ = residual;
        todo!()
    }

    /// The buffers in which the residual lies, in order, and the elements of each.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (&wgpu::Buffer, usize)> {
        std::iter::empty()
    }
}
