//! The first stage of chunks that several threads encode at the same time.

use crate::codec::cpu::Kernels;
use crate::codec::draft::Draft;
use crate::codec::encode::{Budget, ChunkOptions, Encoded, accumulate, look_at};
use crate::codec::given::Given;
use crate::codec::ranges::{Chunk, ChunkCoding};
use crate::codec::{Dense, Unit, dense};
use std::ops::Range;

/// A chunk that a thread has taken through the fused pass, or all of one that is dense.
pub(super) struct Slot {
    pub(super) draft: Draft,
    pub(super) chunk: usize,
    pub(super) unit: Option<Unit>,
    pub(super) budgets: (usize, usize),
    pub(super) aim: Aim,
    /// What a dense chunk came to, if it is to be sent.
    whole: Option<Encoded>,
    /// What a dense chunk dropped, if it may be kept.
    dropped: u32,
}

/// What becomes of a chunk in the second stage.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim {
    Send,
    Keep,
    /// It is not known yet: its turn has not come.
    Either,
}

impl Slot {
    pub(super) fn new(elements: usize) -> Slot {
        Slot {
            draft: Draft::with_room(elements),
            chunk: 0,
            unit: None,
            budgets: (0, 0),
            aim: Aim::Send,
            whole: None,
            dropped: 0,
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
        (self.whole, self.dropped) = (None, 0);
        self.draft.payload_mut().clear();
        let mut update = update.cursor();
        update.skip(chunk.elements.start);
        match (chunk.coding, self.unit, self.aim) {
            (ChunkCoding::Threshold(_), Some(unit), aim) => {
                let (least, most) = match aim {
                    Aim::Send => self.budgets,
                    Aim::Keep => (0, 0),
                    Aim::Either => (0, self.budgets.1),
                };
                self.draft
                    .fill(kernels, residual, update, unit, least..=most);
            }
            (ChunkCoding::Dense(number), _, Aim::Send) => {
                let out = self.draft.payload_mut();
                self.whole = Some(dense::encode(kernels, residual, update, number, out));
            }
            // What goes out as bf16 cannot be had back to the bit: that waits for its turn.
            (ChunkCoding::Dense(_), ..) | (ChunkCoding::Threshold(_), None, _) => {
                self.dropped = accumulate(kernels, residual, update);
            }
        }
    }

    /// The second stage of a chunk of values.
    pub(super) fn send_whole(
        &mut self,
        kernels: Kernels,
        residual: &mut [f32],
        number: Dense,
    ) -> Encoded {
        if let Some(whole) = self.whole {
            return whole;
        }
        let in_residual = Given::InResidual.cursor();
        let out = self.draft.payload_mut();
        let encoded = dense::encode(kernels, residual, in_residual, number, out);
        Encoded {
            dropped: encoded.dropped + self.dropped,
            ..encoded
        }
    }

    /// The second stage of a chunk that is not sent after all: all that the first one took comes back. How many elements
    /// were dropped, and the look at the residual.
    pub(super) fn keep(&mut self, kernels: Kernels, residual: &mut [f32]) -> (u32, f32, f64) {
        let nothing = ChunkOptions {
            clip: None,
            budget: Some(Budget {
                max_hits: 0,
                start: 0,
            }),
        };
        match self.unit {
            Some(unit) => {
                let kept = self.draft.finish(kernels, residual, unit, &nothing);
                self.draft.payload_mut().clear();
                (kept.dropped, kept.residual_max, kept.residual_l1)
            }
            None => {
                let (most, l1) = look_at(residual);
                (self.dropped, most, l1)
            }
        }
    }
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
