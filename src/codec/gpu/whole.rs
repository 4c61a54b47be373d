//! Whole vectors between this process and a device, and what is computed of whole vectors.

use super::context::GpuContext;
use super::error::GpuError;
use super::slices::GradRef;

/// Copies all elements to this process's memory, which has as many. Waits.
pub(crate) fn download(
    context: &GpuContext,
    parts: &[GradRef<'_>],
    to: &mut [f32],
) -> Result<(), GpuError> {
    let _ = (context, parts, to);
    todo!()
}

/// Copies all elements from this process's memory. Parts in this process's memory cannot be written and are an error.
pub(crate) fn upload(
    context: &GpuContext,
    from: &[f32],
    parts: &[GradRef<'_>],
) -> Result<(), GpuError> {
    let _ = (context, from, parts);
    todo!()
}

/// The two sums of [`parameter_hash`](crate::parameter_hash). Waits.
pub(crate) fn hash_sums(context: &GpuContext, parts: &[GradRef<'_>]) -> Result<[u32; 2], GpuError> {
    let _ = (context, parts);
    todo!()
}
