//! The commands of a step.

use super::bound::{Bindable, Use};
use super::feed::{Commands, Feed};
use super::layout::{self, Layout};
use super::memory::{SCOPE_WORDS, SLOT};
use super::source::Shares;
use super::timed::{self, Stage};
use super::{GpuStep, GpuVector, outcome};
use crate::codec::gpu::context::GpuContext;
use crate::codec::gpu::error::GpuError;
use crate::codec::gpu::slices::DeviceSlice;
use crate::codec::gpu::transfer::Uploads;
use wgpu::{BufferUsages, CommandEncoder, ComputePassDescriptor};

impl GpuVector {
    /// Uploads what the kernels need to know of a step, and clears what they count in.
    pub(super) fn upload_step(
        &mut self,
        shares: Option<&[Shares<'_>]>,
        step: &GpuStep<'_>,
        commands: &mut CommandEncoder,
    ) -> Result<(), GpuError> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let alignment = self.context.alignment();
        let windows = &self.layout.windows;
        let all_chunks = self.chunks.len();
        let first = (step.first % all_chunks as u64) as u32;
        let rotation = (step.step as u32).wrapping_mul(0x9E37_79B1);

        let mut parts: Vec<[u32; 4]> = Vec::new();
        let mut slots = vec![0u32; windows.len() * SLOT / 4];
        for (number, (window, slot)) in windows
            .iter()
            .zip(slots.chunks_exact_mut(SLOT / 4))
            .enumerate()
        {
            let mut skip = 0;
            if let Some(shares) = shares.map(|shares| &shares[number]) {
                let skip_of = |from: &Option<DeviceSlice<'_>>| {
                    from.as_ref()
                        .map_or(0, |slice| Bindable::of(slice, alignment).1)
                };
                if shares.is_whole(window) {
                    skip = skip_of(&shares.shares[0].from);
                } else {
                    parts.extend(shares.shares.iter().map(|share| {
                        let skip = match share.from {
                            Some(_) => skip_of(&share.from),
                            None => share.start as u32,
                        };
                        let tiles = share.len.div_ceil(layout::TILE) as u32;
                        [share.start as u32, share.len as u32, skip, tiles]
                    }));
                }
            }
            slot[..8].copy_from_slice(&[
                window.tiles.start as u32,
                window.tiles.len() as u32,
                window.chunks.start as u32,
                window.chunks.len() as u32,
                skip,
                rotation,
                all_chunks as u32,
                self.layout.order.len() as u32,
            ]);
        }
        let mut scopes: Vec<u32> = Vec::new();
        for (places, &(unit, limit)) in self.layout.scopes.iter().zip(step.scopes) {
            let order = &self.layout.order[places.clone()];
            let pivot = places.start + order.partition_point(|&chunk| chunk < first);
            scopes.extend([
                unit.t().to_bits(),
                unit.v().to_bits(),
                outcome::bound(step, unit),
                u32::try_from(limit).unwrap_or(u32::MAX),
                places.start as u32,
                pivot as u32,
                places.end as u32,
            ]);
        }

        if step_bytes(&self.layout, parts.len()) > self.uploads.room() {
            self.uploads = Uploads::new(&self.context, step_bytes(&self.layout, 2 * parts.len()))?;
        }
        if memory.make_room_for_parts(&self.context, parts.len())? {
            self.bound.forget(Use::Accumulate);
        }
        let uploads = &mut self.uploads;
        uploads.write(bytemuck::cast_slice(&slots), &memory.slots, 0)?;
        uploads.write(bytemuck::cast_slice(&scopes), &memory.scopes, 0)?;
        if !parts.is_empty() {
            let mut slots = vec![0u32; parts.len() * SLOT / 4];
            for (slot, part) in slots.chunks_exact_mut(SLOT / 4).zip(&parts) {
                slot[..4].copy_from_slice(part);
            }
            uploads.write(bytemuck::cast_slice(&slots), &memory.parts, 0)?;
        }
        uploads.record(commands);
        commands.clear_buffer(&memory.totals, 0, None);
        if step.clip.is_some() {
            commands.clear_buffer(&memory.cut, 0, None);
        }
        for window in &mut memory.windows {
            if window.written > 0 {
                commands.clear_buffer(&window.message, 0, Some(4 * window.written));
            }
            // Until it is known how much it was.
            window.written = window.message.size() / 4;
        }
        memory.next_part = 0;
        Ok(())
    }

    /// Records the counting of a window's hits.
    pub(super) fn count(
        &mut self,
        number: usize,
        shares: Option<&Shares<'_>>,
        commands: &mut Commands,
    ) -> Result<(), GpuError> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let kernels = &self.context.kernels().encode;
        let window = &self.layout.windows[number];
        let slot = Some((SLOT * number) as u32);
        let alignment = self.context.alignment();
        let mut adding = Vec::new();
        let mut whole = None;
        if let Some(shares) = shares {
            if !shares.host.is_empty() {
                let elements = self
                    .layout
                    .windows
                    .iter()
                    .map(|window| window.elements.len())
                    .max()
                    .unwrap_or(0);
                let (feed, buffer) = match &mut self.host {
                    Some(host) => host,
                    none => none.insert(host(&self.context, elements)?),
                };
                for &(start, values) in &shares.host {
                    feed.write_values(commands, values, buffer, 4 * start as u64)?;
                }
                // What this step's own uploads are recorded in goes with it.
                self.uploads.settle(feed.flush(commands))?;
            }
            let own = self.host.as_ref().map(|(_, buffer)| buffer);
            let is_whole = shares.is_whole(window);
            for share in &shares.shares {
                let slice = match (share.from, own) {
                    (Some(slice), _) => slice,
                    (None, Some(buffer)) => DeviceSlice {
                        buffer,
                        offset: 0,
                        len: window.elements.len() as u64,
                    },
                    (None, None) => continue,
                };
                let (bindable, _) = Bindable::of(&slice, alignment);
                let memory = &*memory;
                if is_whole {
                    whole = Some(self.bound.get(Use::Count, number, bindable, |update| {
                        memory.bind_count(&self.context, number, update)
                    })?);
                } else {
                    let bound = self
                        .bound
                        .get(Use::Accumulate, number, bindable, |update| {
                            memory.bind_accumulate(&self.context, number, update)
                        })?;
                    adding.push((bound, share.len.div_ceil(layout::TILE) as u64));
                }
            }
        }
        let ends = [number == 0, number + 1 == self.layout.windows.len()];
        let mut pass = commands.encoder.begin_compute_pass(&ComputePassDescriptor {
            label: Some("count"),
            timestamp_writes: timed::writes(self.timer.as_ref(), Stage::Count, ends),
        });
        for (bound, tiles) in &adding {
            let part = Some((SLOT * memory.next_part) as u32);
            memory.next_part += 1;
            kernels.accumulate.dispatch(&mut pass, bound, part, *tiles);
        }
        let tiles = window.tiles.len() as u64;
        match &whole {
            Some(bound) => kernels.count.dispatch(&mut pass, bound, slot, tiles),
            None => {
                let bound = &memory.windows[number].count_in_residual;
                kernels
                    .count_in_residual
                    .dispatch(&mut pass, bound, slot, tiles);
            }
        }
        Ok(())
    }

    /// Records everything behind the counting.
    pub(super) fn emit(&self, step: &GpuStep<'_>, commands: &mut CommandEncoder) {
        let Some(memory) = &self.memory else { return };
        let kernels = &self.context.kernels().encode;
        let pass_of = |label, stage| ComputePassDescriptor {
            label: Some(label),
            timestamp_writes: timed::writes(self.timer.as_ref(), stage, [true, true]),
        };
        let windows = || {
            let bound = memory.windows.iter().enumerate();
            bound
                .zip(&self.layout.windows)
                .map(|((number, bound), window)| {
                    let (tiles, chunks) = (window.tiles.len() as u64, window.chunks.len() as u64);
                    let slot = Some((SLOT * number) as u32);
                    (window, bound, slot, tiles, chunks)
                })
        };
        let mut pass = commands.begin_compute_pass(&pass_of("plan", Stage::Plan));
        kernels.plan.dispatch(&mut pass, &memory.plan, Some(0), 1);
        drop(pass);
        let mut pass = commands.begin_compute_pass(&pass_of("write", Stage::Write));
        for (window, bound, slot, tiles, chunks) in windows() {
            if window.has_hits {
                kernels
                    .sparse
                    .dispatch(&mut pass, &bound.sparse, slot, tiles);
                kernels
                    .bitmap
                    .dispatch(&mut pass, &bound.bitmap, slot, tiles);
                kernels.seen.dispatch(&mut pass, &bound.seen, slot, chunks);
            }
            if window.has_f32 {
                kernels
                    .dense_f32
                    .dispatch(&mut pass, &bound.dense_f32, slot, tiles);
            }
            if window.has_bf16 {
                kernels
                    .dense_bf16
                    .dispatch(&mut pass, &bound.dense_bf16, slot, tiles);
            }
        }
        drop(pass);
        let mut pass = commands.begin_compute_pass(&pass_of("look", Stage::Look));
        for (window, bound, slot, tiles, chunks) in windows() {
            if step.clip.is_some() && window.has_hits {
                kernels.clamp.dispatch(&mut pass, &bound.clamp, slot, tiles);
            }
            kernels.look.dispatch(&mut pass, &bound.look, slot, chunks);
        }
    }
}

/// Bytes that a step uploads, but for its update: of windows, scopes and parts, with the gaps between.
pub(super) fn step_bytes(layout: &Layout, parts: usize) -> usize {
    SLOT * (layout.windows.len() + parts) + 4 * SCOPE_WORDS * layout.scopes.len() + 32
}

/// A buffer for updates in this process's memory, and the way to it.
fn host(context: &GpuContext, elements: usize) -> Result<(Feed, wgpu::Buffer), GpuError> {
    let bytes = 4 * elements;
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
    Ok((
        Feed::new(context, bytes)?,
        context.buffer("an update", bytes as u64, usage, false)?,
    ))
}
