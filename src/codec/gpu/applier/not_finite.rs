//! How many elements were not finite: counted on the device, read when it is there.

use crate::codec::gpu::context::GpuContext;
use crate::codec::gpu::error::GpuError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use wgpu::{Buffer, BufferUsages, CommandEncoder, MapMode};

/// Bytes of the number.
const BYTES: u64 = 8;

/// Nobody uses it.
const FREE: u8 = 0;
/// A copy into it has been recorded.
const RECORDED: u8 = 1;
/// The copy is submitted: it will be mapped.
const COMING: u8 = 2;
const MAPPED: u8 = 3;

struct Slot {
    buffer: Buffer,
    state: Arc<AtomicU8>,
}

/// A counter on the device, and what its copies say.
pub(super) struct NotFinite {
    counter: Buffer,
    slots: [Slot; 3],
    /// Something may have been counted that no copy says.
    counting: bool,
}

impl NotFinite {
    pub(super) fn new(context: &GpuContext) -> Result<NotFinite, GpuError> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let slot = || {
            let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
            Ok(Slot {
                buffer: context.buffer("a count", BYTES, usage, false)?,
                state: Arc::new(AtomicU8::new(FREE)),
            })
        };
        Ok(NotFinite {
            counter: context.buffer("a count", BYTES, usage, false)?,
            slots: [slot()?, slot()?, slot()?],
            counting: false,
        })
    }

    pub(super) fn counter(&self) -> &Buffer {
        &self.counter
    }

    /// Something has been submitted that counts.
    pub(super) fn counts(&mut self) {
        self.counting = true;
    }

    /// Whether [`record`](Self::record) would do something.
    pub(super) fn wants_copy(&self) -> bool {
        self.counting && self.free().is_some()
    }

    fn free(&self) -> Option<&Slot> {
        let is_free = |slot: &&Slot| slot.state.load(Ordering::Acquire) == FREE;
        self.slots.iter().find(is_free)
    }

    /// Copies the counter and begins anew, if a slot is free; else it counts on.
    pub(super) fn record(&self, commands: &mut CommandEncoder) {
        if let Some(slot) = self.free() {
            commands.copy_buffer_to_buffer(&self.counter, 0, &slot.buffer, 0, BYTES);
            commands.clear_buffer(&self.counter, 0, None);
            slot.state.store(RECORDED, Ordering::Release);
        }
    }

    /// What was recorded has been submitted, or will never be.
    pub(super) fn submitted(&mut self, context: &GpuContext, done: bool) -> Result<(), GpuError> {
        for slot in &self.slots {
            if slot.state.load(Ordering::Acquire) != RECORDED {
                continue;
            }
            if !done {
                slot.state.store(FREE, Ordering::Release);
                continue;
            }
            self.counting = false;
            slot.state.store(COMING, Ordering::Release);
            let state = Arc::clone(&slot.state);
            context.scoped("a count", |_| {
                slot.buffer
                    .slice(..BYTES)
                    .map_async(MapMode::Read, move |mapped| {
                        let now = if mapped.is_ok() { MAPPED } else { FREE };
                        state.store(now, Ordering::Release);
                    });
            })?;
        }
        Ok(())
    }

    /// What the copies that are there say; each is told once.
    pub(super) fn take(&mut self, context: &GpuContext) -> u64 {
        if context.look("a count").is_err() {
            // Whoever applies next hears of it.
            return 0;
        }
        let mapped = |slot: &&Slot| slot.state.load(Ordering::Acquire) == MAPPED;
        let mut sum: u64 = 0;
        for slot in self.slots.iter().filter(mapped) {
            if let Ok(view) = slot.buffer.slice(..BYTES).get_mapped_range()
                && let Some(bytes) = view.first_chunk()
            {
                sum = sum.saturating_add(u64::from_le_bytes(*bytes));
            }
            context.unmap(&slot.buffer);
            slot.state.store(FREE, Ordering::Release);
        }
        sum
    }
}
