//! What records are applied to: a vector in this process's memory, or in the memory of a GPU, where it then is applied.

use super::device::Device;
use super::taking::not_applied;
#[cfg(feature = "gpu")]
use crate::codec::gpu::{GpuApplier, GpuApplyError, GpuError, GradRef};
use crate::codec::{Apply, DecodeError, Parameters, Path, Record, parameters};
use crate::replica::Error;
use crate::replica::wait::Wait;
use std::ops::Range;

/// A step's target, and how records come onto it.
pub(super) struct Onto<'a> {
    pub(super) apply: Apply,
    path: Path,
    place: Place<'a>,
}

enum Place<'a> {
    Host(&'a mut dyn Parameters),
    #[cfg(feature = "gpu")]
    Device(&'a mut GpuApplier, &'a [GradRef<'a>]),
}

/// Why a record was not applied.
pub(super) enum NotApplied {
    Record(DecodeError),
    #[cfg(feature = "gpu")]
    Gpu(GpuError),
}

impl<'a> Onto<'a> {
    /// This target, whose applier is there if it is on a device.
    pub(super) fn new(
        device: &'a mut Device,
        path: Path,
        target: &'a mut dyn Parameters,
        apply: Apply,
    ) -> Self {
        Self {
            apply,
            path,
            place: Place::of(device, target),
        }
    }

    /// Applies a record to the elements from `start` on; `x` is the scaled unit. How many elements that it met were not
    /// finite, as far as that is known at once.
    pub(super) fn apply(
        &mut self,
        record: &Record<'_>,
        x: f32,
        start: usize,
    ) -> Result<u64, NotApplied> {
        let (path, how) = (self.path, self.apply);
        match &mut self.place {
            Place::Host(target) => {
                let applied = path.apply_at(record, x, how, &mut **target, start);
                Ok(u64::from(applied.map_err(NotApplied::Record)?.not_finite))
            }
            #[cfg(feature = "gpu")]
            Place::Device(applier, parts) => {
                applier.apply(record, x, how, parts, start)?;
                Ok(0)
            }
        }
    }

    /// Makes elements +0, before the first record that is added to them.
    pub(super) fn clear(&mut self, elements: Range<usize>) -> Result<(), NotApplied> {
        match &mut self.place {
            Place::Host(target) => {
                parameters::clear(&mut **target, elements);
                Ok(())
            }
            #[cfg(feature = "gpu")]
            Place::Device(applier, parts) => Ok(applier.clear(parts, elements)?),
        }
    }

    /// Sees to it that all records reach the target before anything else that is done with it. How many elements were
    /// not finite that had not been known.
    pub(super) fn finish(&mut self) -> Result<u64, NotApplied> {
        match &mut self.place {
            Place::Host(_) => Ok(0),
            #[cfg(feature = "gpu")]
            Place::Device(applier, _) => {
                applier.finish()?;
                Ok(applier.take_not_finite())
            }
        }
    }
}

impl<'a> Place<'a> {
    #[cfg(feature = "gpu")]
    fn of(device: &'a mut Device, target: &'a mut dyn Parameters) -> Self {
        if target.device().is_some()
            && let Some(applier) = device.applier()
        {
            let target: &'a dyn Parameters = target;
            return Self::Device(applier, target.device().unwrap_or_default());
        }
        Self::Host(target)
    }

    #[cfg(not(feature = "gpu"))]
    fn of(_: &'a mut Device, target: &'a mut dyn Parameters) -> Self {
        Self::Host(target)
    }
}

impl NotApplied {
    /// Ends the run because a record of `rank` was not applied: its fault, unless it is that of this rank's own target or
    /// device.
    pub(super) fn ends(self, wait: &Wait<'_>, rank: usize) -> Error {
        match self {
            Self::Record(error) => not_applied(wait, rank, error),
            #[cfg(feature = "gpu")]
            Self::Gpu(error) => wait.broken_off(Error::Gpu(error)),
        }
    }

    /// The same of an own record, which is never refused.
    pub(super) fn of_own(self) -> Error {
        match self {
            Self::Record(error) => Error::Invalid {
                what: "an own record",
                expected: "one that can be applied".into(),
                found: error.to_string(),
            },
            #[cfg(feature = "gpu")]
            Self::Gpu(error) => Error::Gpu(error),
        }
    }
}

#[cfg(feature = "gpu")]
impl From<GpuApplyError> for NotApplied {
    fn from(error: GpuApplyError) -> Self {
        match error {
            GpuApplyError::Record(error) => Self::Record(error),
            GpuApplyError::Gpu(error) => Self::Gpu(error),
        }
    }
}

#[cfg(feature = "gpu")]
impl From<GpuError> for NotApplied {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}
