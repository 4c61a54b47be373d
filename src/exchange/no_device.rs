//! Vectors on devices, in a build that has none: all vectors are in this process's memory.

use super::{Exchange, hash};
use crate::checkpoint::StateError;
use crate::codec::{Given, Parameters};
use crate::replica::Error;

/// What an exchange has for vectors on a device: nothing.
#[derive(Debug, Default)]
pub(super) struct Device;

impl Exchange {
    pub(super) fn check_update(&self, _: Option<Given<'_>>) -> Result<(), Error> {
        Ok(())
    }

    pub(super) fn check_vector(
        &mut self,
        _: &'static str,
        _: &dyn Parameters,
    ) -> Result<(), Error> {
        Ok(())
    }

    pub(super) fn submit_before(&self) -> Result<(), Error> {
        Ok(())
    }

    pub(super) fn with_update<R>(
        &mut self,
        update: Option<Given<'_>>,
        with: impl FnOnce(&mut Self, Option<Given<'_>>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        with(self, update)
    }

    pub(super) fn staged<R>(
        &mut self,
        vector: &mut dyn Parameters,
        _: bool,
        with: impl FnOnce(&mut Self, &mut dyn Parameters) -> Result<R, Error>,
    ) -> Result<R, Error> {
        with(self, vector)
    }

    pub(super) fn bring_in(
        &mut self,
        _: &dyn Parameters,
        _: bool,
    ) -> Result<Option<Vec<f32>>, Error> {
        Ok(None)
    }

    pub(super) fn bring_back<R>(
        &mut self,
        _: &dyn Parameters,
        _: Vec<f32>,
        outcome: Result<R, Error>,
    ) -> Result<R, Error> {
        outcome
    }

    pub(super) fn failed(&self, error: Error) -> Error {
        error
    }

    pub(super) fn hash_of(&self, vector: &mut dyn Parameters) -> Result<u64, Error> {
        Ok(hash::of_parts(vector))
    }

    /// The residual that is not in this process's memory.
    pub(super) fn download_residual(&self) -> Result<Vec<f32>, StateError> {
        Ok(Vec::new())
    }

    /// Whether updates are encoded on a device.
    pub(super) fn encodes_on_device(&self) -> bool {
        false
    }
}
