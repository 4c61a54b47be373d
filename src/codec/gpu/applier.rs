//! Records onto parameters, or onto a sum, in the memory of a device.

use super::context::GpuContext;
use super::error::GpuError;
use super::slices::GradRef;
use crate::codec::apply::Apply;
use crate::codec::format::{DecodeError, Record};
use std::ops::Range;
use thiserror::Error;

/// Why a record could not be applied on a device.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GpuApplyError {
    /// The record, or the target's length, is wrong: nothing was applied.
    #[error(transparent)]
    Record(#[from] DecodeError),
    /// The device.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// Applies records to parameters, or to a sum, in the memory of a device.
pub struct GpuApplier {}

impl GpuApplier {
    /// An applier on this device.
    ///
    /// # Errors
    /// [`GpuError`] when there is no memory for its buffers.
    pub fn new(context: &GpuContext) -> Result<GpuApplier, GpuError> {
        let _ = context;
        todo!()
    }

    /// Applies a record to the elements from `start` on. All of it is checked first, as
    /// [`Path::apply_at`](crate::codec::Path::apply_at) does; `x` is the scaled unit as there. Nothing is waited for: what
    /// does not fit the upload buffers any more is submitted.
    ///
    /// # Errors
    /// [`GpuApplyError`].
    pub fn apply(
        &mut self,
        record: &Record<'_>,
        x: f32,
        how: Apply,
        target: &[GradRef<'_>],
        start: usize,
    ) -> Result<(), GpuApplyError> {
        let _ = (record, x, how, target, start);
        todo!()
    }

    /// Makes elements +0, after what was applied before.
    pub fn clear(
        &mut self,
        target: &[GradRef<'_>],
        elements: Range<usize>,
    ) -> Result<(), GpuError> {
        let _ = (target, elements);
        todo!()
    }

    /// Submits what has not been submitted yet: the target is complete for whatever is submitted after it.
    pub fn finish(&mut self, target: &[GradRef<'_>]) -> Result<(), GpuError> {
        let _ = target;
        todo!()
    }

    /// Hits and dense values, since the last call, whose target was not finite, as far as they are known without waiting:
    /// those of a step are known in the next one.
    pub fn take_not_finite(&mut self) -> u64 {
        todo!()
    }
}
