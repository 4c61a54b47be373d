//! Residual and velocity, as a saved state has them.

use super::Encoder;
use super::home::Home;
use crate::codec::encode::EncodeError;
use crate::codec::given::Given;
use crate::codec::{Dense, canon};
use std::ops::Range;
use thiserror::Error;

impl Encoder {
    /// The momentum memory's velocity, by element; `None` without such a memory.
    #[must_use]
    pub fn velocity(&self) -> Option<&[f32]> {
        self.memory.as_ref().map(|memory| memory.velocity())
    }

    /// Goes on from this residual and, with a momentum memory, this velocity. They may come from a damaged file.
    ///
    /// # Errors
    /// [`VectorsError`]; nothing has changed then.
    pub fn restore_vectors(
        &mut self,
        residual: &[f32],
        velocity: Option<&[f32]>,
    ) -> Result<(), VectorsError> {
        if self.is_open() {
            return Err(VectorsError::Open);
        }
        let expected = self.memory.is_some();
        if velocity.is_some() != expected {
            return Err(VectorsError::Velocity { expected });
        }
        check("residual", self.elements(), residual)?;
        if let Some(velocity) = velocity {
            check("velocity", self.elements(), velocity)?;
        }
        #[cfg(feature = "gpu")]
        self.restore_on_gpu(residual)?;
        match &mut self.home {
            Home::Processor(home) => {
                home.residual.copy_from_slice(residual);
                home.touched = false;
            }
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => {}
        }
        if let (Some(memory), Some(velocity)) = (&mut self.memory, velocity) {
            memory.velocity_mut().copy_from_slice(velocity);
        }
        Ok(())
    }

    /// A copy of the residual, wherever it is: canonical, but for elements that are not finite, which a trainer may have
    /// left there. On a GPU it waits for all that was submitted; when that is lost, this is the last copy that
    /// `EncoderBuilder::snapshot_every` has made.
    ///
    /// # Errors
    /// `EncodeError::Gpu`.
    pub fn download_residual(&self) -> Result<Vec<f32>, EncodeError> {
        match &self.home {
            Home::Processor(home) => Ok(home.residual.iter().copied().map(canon).collect()),
            #[cfg(feature = "gpu")]
            Home::Gpu(home) => Ok(home.download()?),
        }
    }

    /// Begins to take all of the residual with [`take_whole`](Self::take_whole). Blocking, on a GPU.
    pub(crate) fn begin_flush(&mut self) -> Result<(), EncodeError> {
        self.check_closed()?;
        #[cfg(feature = "gpu")]
        self.flush_on_gpu()?;
        Ok(())
    }

    /// Appends all of some elements' residual, canonical, as f32, and leaves +0 there. How many were not finite and became
    /// +0. At most a chunk, after [`begin_flush`](Self::begin_flush).
    pub(crate) fn take_whole(
        &mut self,
        elements: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<u64, EncodeError> {
        let residual = self.home.flushed().get_mut(elements);
        let residual = residual.ok_or(EncodeError::NotBegun)?;
        let given = Given::InResidual;
        let encoded = self.path.encode_dense(residual, given, Dense::F32, out)?;
        Ok(u64::from(encoded.dropped))
    }

    /// Whether a step has begun and not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.next.is_some() || self.stream.is_open()
    }
}

fn check(what: &'static str, expected: usize, vector: &[f32]) -> Result<(), VectorsError> {
    let found = vector.len();
    if found != expected {
        return Err(VectorsError::Length {
            what,
            expected,
            found,
        });
    }
    let is_right = |x: f32| x.is_finite() && canon(x).to_bits() == x.to_bits();
    match vector.iter().position(|&x| !is_right(x)) {
        None => Ok(()),
        Some(element) => Err(VectorsError::Value {
            what,
            element,
            found: vector[element],
        }),
    }
}

/// Why an encoder cannot go on from saved vectors.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum VectorsError {
    /// A step is under way.
    #[error("a step has begun and not ended")]
    Open,
    /// A velocity without a momentum memory, or none with one.
    #[error("a velocity: expected {expected}, found {}", !expected)]
    Velocity {
        /// Whether there should be one.
        expected: bool,
    },
    /// Another length than the vector.
    #[error("a {what} of {found} elements; the vector has {expected}")]
    Length {
        /// Which of the two.
        what: &'static str,
        /// The vector's elements.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A number that no encoder leaves.
    #[error(
        "element {element} of the {what} is {found:e}; it must be finite, and neither subnormal nor -0"
    )]
    Value {
        /// Which of the two.
        what: &'static str,
        /// The element.
        element: usize,
        /// The number.
        found: f32,
    },
    /// The GPU on which the residual is.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] crate::codec::gpu::GpuError),
}
