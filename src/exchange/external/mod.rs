//! External updates: what comes from outside the run, applied everywhere in the same place.

mod pass;
mod sources;

pub(super) use pass::{Pass, apply_here};
pub(super) use sources::Sources;

use crate::codec::Format;
use std::ops::Range;

/// TEMPORARY until merged.
#[derive(Debug)]
pub struct ExternalUpdate {
    values: Vec<f32>,
}

impl ExternalUpdate {
    pub(crate) fn is_dense(&self) -> bool {
        true
    }
    pub(crate) fn chunk_record(
        &self,
        elements: Range<usize>,
        out: &mut Vec<u8>,
    ) -> (Format, u32, f32) {
        out.extend_from_slice(bytemuck::cast_slice(&self.values[elements]));
        (Format::DenseF32, 0, 1.0)
    }
}

/// TEMPORARY
pub trait UpdateSource: Send {
    /// x
    fn poll(&mut self) -> Option<ExternalUpdate>;
    /// x
    fn give_back(&mut self, update: ExternalUpdate);
}
