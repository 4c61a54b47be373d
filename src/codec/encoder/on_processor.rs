//! A residual in this process's memory, and the threads that encode it.

use super::builder::EncoderError;
use super::scope::Scope;
use super::slot::{Aim, Disjoint, Slot};
use crate::codec::cpu::Kernels;
use crate::codec::encode::{ChunkOptions, Encoded, look_at};
use crate::codec::given::Given;
use crate::codec::pool::Pool;
use crate::codec::post::{self, PostInput, PostProcessor};
use crate::codec::ranges::{Chunk, ChunkCoding, visited};
use crate::codec::residual::Residual;
use crate::codec::{Dense, Unit, canon};
use std::ops::Range;

/// The threads that encode, the caller's included.
pub(super) struct Threads {
    count: usize,
    /// Those besides the caller's.
    pool: Option<Pool>,
}

impl Threads {
    pub(super) fn new(count: usize) -> Result<Threads, EncoderError> {
        let spawned = |error: std::io::Error| EncoderError::Spawn {
            threads: count,
            error: error.to_string(),
        };
        let pool = match count {
            1 => None,
            _ => Some(Pool::new(count).map_err(spawned)?),
        };
        Ok(Threads { count, pool })
    }
}

/// A residual in this process's memory, and what encodes it.
pub(super) struct OnProcessor {
    pub(super) residual: Residual,
    /// Whether others may have written to the residual since it was canonical.
    pub(super) touched: bool,
    pool: Option<Pool>,
    /// One a thread.
    slots: Vec<Slot>,
    /// The visits whose chunks the slots hold.
    batch: Range<usize>,
    /// The slot that was finished last.
    current: usize,
    /// Why the residual is not on a GPU any more.
    #[cfg(feature = "gpu")]
    pub(super) fell_back: Option<crate::codec::gpu::GpuError>,
}

/// What the chunks of a step are encoded with.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) kernels: Kernels,
    pub(super) chunks: &'a [Chunk],
    pub(super) scopes: &'a [Scope],
    /// The chunk that is visited first, modulo their number.
    pub(super) first: u64,
}

impl OnProcessor {
    pub(super) fn new(residual: Residual, chunks: &[Chunk], threads: Threads) -> OnProcessor {
        let most = chunks.iter().map(|chunk| chunk.elements.len()).max();
        let slots = (0..threads.count).map(|_| Slot::new(most.unwrap_or(0)));
        OnProcessor {
            residual,
            touched: false,
            slots: slots.collect(),
            pool: threads.pool,
            batch: 0..0,
            current: 0,
            #[cfg(feature = "gpu")]
            fell_back: None,
        }
    }

    /// Begins a step, which makes the residual canonical by itself if it reads it in place. How many elements of it were
    /// not finite.
    pub(super) fn begin(&mut self, reads_in_place: bool) -> u64 {
        self.batch = 0..0;
        if std::mem::take(&mut self.touched) && !reads_in_place {
            make_canonical(&mut self.residual)
        } else {
            0
        }
    }

    /// Makes the visit's chunk that of the current slot, with the first stage done.
    pub(super) fn take_turn(&mut self, plan: Plan<'_>, visit: usize, update: Given<'_>, aim: Aim) {
        if !self.batch.contains(&visit) {
            self.fill(plan, visit, update, aim);
        }
        self.current = visit - self.batch.start;
    }

    /// Takes the next chunks through the first stage, one a thread. What becomes of the first one is known.
    fn fill(&mut self, plan: Plan<'_>, visit: usize, update: Given<'_>, aim: Aim) {
        let Plan {
            kernels,
            chunks,
            scopes,
            first,
        } = plan;
        let count = self.slots.len().min(chunks.len() - visit);
        self.batch = 0..0;
        for (ahead, slot) in self.slots[..count].iter_mut().enumerate() {
            slot.chunk = visited(first, visit + ahead, chunks.len());
            slot.aim = if ahead == 0 { aim } else { Aim::Either };
            slot.unit = None;
            if let ChunkCoding::Threshold(scope) = chunks[slot.chunk].coding {
                slot.unit = scopes[scope].stats.unit;
                // Before a chunk's turn comes, those before it may use up its scope's budget.
                let most = scopes[scope].left;
                slot.budgets = (most, most);
            }
        }
        let slots = &mut self.slots[..count];
        match &mut self.pool {
            Some(pool) if count > 1 => {
                let slots = Disjoint::of(slots);
                let residual = Disjoint::of(&mut self.residual[..]);
                pool.run(count, &|piece| {
                    // SAFETY: each piece has a slot and a chunk of its own: a batch has each chunk once.
                    let (slot, residual) = unsafe {
                        let slot = &mut slots.range(piece..piece + 1)[0];
                        let elements = chunks[slot.chunk].elements.clone();
                        (slot, residual.range(elements))
                    };
                    slot.fill(kernels, &chunks[slot.chunk], residual, update);
                });
            }
            _ => {
                for slot in slots {
                    let chunk = &chunks[slot.chunk];
                    let residual = &mut self.residual[chunk.elements.clone()];
                    slot.fill(kernels, chunk, residual, update);
                }
            }
        }
        self.batch = visit..visit + count;
    }

    /// Takes a chunk of a streamed step, all of whose update is in the residual, through the first stage: on the caller's
    /// thread.
    pub(super) fn fill_complete(&mut self, plan: Plan<'_>, number: usize) {
        let chunk = &plan.chunks[number];
        let residual = &mut self.residual[chunk.elements.clone()];
        let slot = &mut self.slots[0];
        (slot.chunk, slot.unit, slot.aim) = (number, None, Aim::Send);
        if let ChunkCoding::Threshold(scope) = chunk.coding {
            let scope = &plan.scopes[scope];
            slot.unit = scope.stats.unit;
            slot.budgets = (scope.left, scope.left);
        }
        slot.fill(plan.kernels, chunk, residual, Given::InResidual);
        self.current = 0;
    }

    /// The second stage of the current slot's chunk, whose hits are sent.
    pub(super) fn send_hits(
        &mut self,
        kernels: Kernels,
        chunk: &Chunk,
        unit: Unit,
        options: &ChunkOptions,
    ) -> Encoded {
        let slot = &mut self.slots[self.current];
        let residual = &mut self.residual[chunk.elements.clone()];
        slot.draft.finish(kernels, residual, unit, options)
    }

    /// The second stage of the current slot's chunk, all of which is sent.
    pub(super) fn send_whole(&mut self, kernels: Kernels, chunk: &Chunk, number: Dense) -> Encoded {
        let residual = &mut self.residual[chunk.elements.clone()];
        self.slots[self.current].send_whole(kernels, residual, number)
    }

    /// Lets a post-processor at the current slot's chunk.
    pub(super) fn process(
        &mut self,
        chunk: &Chunk,
        post: &dyn PostProcessor,
        input: &PostInput,
        encoded: &mut Encoded,
    ) {
        let residual = &mut self.residual[chunk.elements.clone()];
        if let Some(taken) = post::process(post, input, residual) {
            encoded.clipped += taken;
            (encoded.residual_max, encoded.residual_l1) = look_at(residual);
        }
    }

    /// The second stage of the current slot's chunk, which is not sent: how many elements were dropped, and the look at
    /// the residual.
    pub(super) fn keep(&mut self, kernels: Kernels, chunk: &Chunk) -> (u32, f32, f64) {
        let residual = &mut self.residual[chunk.elements.clone()];
        self.slots[self.current].keep(kernels, residual)
    }

    /// The payload of the chunk that was encoded last.
    pub(super) fn payload(&self) -> &[u8] {
        self.slots[self.current].draft.payload()
    }
}

/// Makes what is not finite, subnormal or -0 +0. How many were not finite.
fn make_canonical(residual: &mut [f32]) -> u64 {
    let mut dropped = 0;
    for r in residual {
        let finite = r.is_finite();
        dropped += u64::from(!finite);
        *r = if finite { canon(*r) } else { 0.0 };
    }
    dropped
}
