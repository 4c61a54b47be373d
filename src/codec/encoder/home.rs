//! Where a residual is, and with it what encodes it.

use super::on_processor::OnProcessor;
#[cfg(feature = "gpu")]
use crate::codec::encode::length;
use crate::codec::encode::{EncodeError, lengths};
use crate::codec::given::Given;

/// Where a residual is, and what encodes it there.
pub(super) enum Home {
    Processor(OnProcessor),
    #[cfg(feature = "gpu")]
    Gpu(Box<super::on_gpu::OnGpu>),
}

impl Home {
    /// The processor's, for what is done nowhere else.
    pub(super) fn processor(
        &mut self,
        what: &'static str,
    ) -> Result<&mut OnProcessor, EncodeError> {
        self.check_processor(what)?;
        match self {
            Home::Processor(home) => Ok(home),
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => Err(EncodeError::OnGpu { what }),
        }
    }

    /// Refuses on a GPU.
    pub(super) fn check_processor(&self, what: &'static str) -> Result<(), EncodeError> {
        if self.is_gpu() {
            Err(EncodeError::OnGpu { what })
        } else {
            Ok(())
        }
    }

    fn is_gpu(&self) -> bool {
        match self {
            Home::Processor(_) => false,
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => true,
        }
    }

    /// Refuses an update that is not of so many elements, or that cannot be here.
    pub(super) fn check_length(
        &self,
        elements: usize,
        update: Given<'_>,
    ) -> Result<(), EncodeError> {
        match self {
            Home::Processor(_) => lengths(elements, update),
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => length(elements, update),
        }
    }

    /// The residual; empty on a GPU.
    pub(super) fn residual(&self) -> &[f32] {
        match self {
            Home::Processor(home) => &home.residual,
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => &[],
        }
    }

    /// The residual after the step that has ended; of a GPU as it was copied for that.
    pub(super) fn looked_at(&self) -> &[f32] {
        match self {
            Home::Processor(home) => &home.residual,
            #[cfg(feature = "gpu")]
            Home::Gpu(home) => home.looked_at(),
        }
    }

    /// The residual that is flushed; of a GPU as it was copied for that.
    pub(super) fn flushed(&mut self) -> &mut [f32] {
        match self {
            Home::Processor(home) => &mut home.residual,
            #[cfg(feature = "gpu")]
            Home::Gpu(home) => home.flushed(),
        }
    }

    /// The payload of the chunk that was encoded last.
    pub(super) fn payload(&self) -> &[u8] {
        match self {
            Home::Processor(home) => home.payload(),
            #[cfg(feature = "gpu")]
            Home::Gpu(home) => home.payload(),
        }
    }
}
