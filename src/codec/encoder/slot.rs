//! The first stage of chunks that several threads encode at the same time.

use crate::codec::cpu::Kernels;
use crate::codec::draft::Draft;
use crate::codec::encode::{Budget, ChunkOptions, EncodeError, Encoded, look_at};
use crate::codec::given::Given;
use crate::codec::ranges::{Chunk, ChunkCoding};
use crate::codec::{Unit, dense};
use std::ops::Range;

/// A chunk that a thread has taken through the fused pass, or all of one that is dense.
pub(super) struct Slot {
    pub(super) draft: Draft,
    pub(super) chunk: usize,
    pub(super) unit: Option<Unit>,
    /// What a dense chunk came to.
    pub(super) whole: Option<Encoded>,
    pub(super) budgets: (usize, usize),
}

impl Slot {
    pub(super) fn new(elements: usize) -> Slot {
        Slot {
            draft: Draft::with_room(elements),
            chunk: 0,
            unit: None,
            whole: None,
            budgets: (0, 0),
        }
    }

    /// The first stage of a chunk.
    pub(super) fn fill(
        &mut self,
        kernels: Kernels,
        chunk: &Chunk,
        residual: &mut [f32],
        update: Given<'_>,
    ) {
        self.whole = None;
        self.draft.payload_mut().clear();
        let mut update = update.cursor();
        update.skip(chunk.elements.start);
        match (chunk.coding, self.unit) {
            (ChunkCoding::Threshold(_), Some(unit)) => {
                let (least, most) = self.budgets;
                self.draft
                    .fill(kernels, residual, update, unit, least..=most);
            }
            (ChunkCoding::Dense(number), _) => {
                let out = self.draft.payload_mut();
                self.whole = Some(dense::encode(kernels, residual, update, number, out));
            }
            (ChunkCoding::Threshold(_), None) => {}
        }
    }

    /// Adds an update to the residual and nothing else: a draft without hits.
    pub(super) fn accumulate(
        &mut self,
        kernels: Kernels,
        residual: &mut [f32],
        start: usize,
        update: Given<'_>,
    ) {
        self.whole = None;
        self.unit = None;
        self.draft.payload_mut().clear();
        let mut update = update.cursor();
        update.skip(start);
        self.draft
            .fill(kernels, residual, update, any_unit(), 0..=0);
    }

    /// Puts everything that the first stage took out of the residual back into it.
    pub(super) fn put_back(
        &mut self,
        kernels: Kernels,
        coding: ChunkCoding,
        residual: &mut [f32],
    ) -> Result<Encoded, EncodeError> {
        if let (Some(whole), ChunkCoding::Dense(number)) = (self.whole, coding) {
            let encoded = whole;
            kernels.apply_dense(number, self.draft.payload(), 1.0, residual);
            let (residual_max, residual_l1) = look_at(residual);
            return Ok(Encoded {
                residual_max,
                residual_l1,
                ..encoded
            });
        }
        let unit = self.unit.unwrap_or_else(any_unit);
        let nothing = ChunkOptions {
            clip: None,
            budget: Some(Budget {
                max_hits: 0,
                start: 0,
            }),
        };
        Ok(self.draft.finish(kernels, residual, unit, &nothing))
    }
}

/// A unit for drafts without hits.
fn any_unit() -> Unit {
    Unit::new(1.0, 1.0).expect("powers of two are units")
}

/// A slice whose parts several threads may borrow, if the parts do not overlap.
pub(super) struct Disjoint<T> {
    start: *mut T,
    length: usize,
}

// SAFETY: it hands out mutable borrows of its elements, and nothing else.
unsafe impl<T: Send> Sync for Disjoint<T> {}

impl<T> Disjoint<T> {
    pub(super) fn of(slice: &mut [T]) -> Disjoint<T> {
        Disjoint {
            start: slice.as_mut_ptr(),
            length: slice.len(),
        }
    }

    /// Some elements.
    ///
    /// # Safety
    /// The slice is still borrowed for this, and nobody else has any of these elements.
    #[allow(clippy::mut_from_ref, reason = "the caller's promise")]
    pub(super) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: inside, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
