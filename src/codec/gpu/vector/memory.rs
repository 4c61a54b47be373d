//! A vector's buffers on a device, and what binds them.

use super::layout::{Layout, MASK_WORDS, OUTCOME_WORDS, Window};
use super::outcome::CUT_WORDS;
use crate::codec::gpu::context::GpuContext;
use crate::codec::gpu::error::GpuError;
use crate::codec::gpu::kernels::Kernel;
use std::num::NonZeroU64;
use wgpu::{BindGroup, BindingResource, Buffer, BufferBinding, BufferUsages};

/// Bytes from one offset of a uniform buffer to the next: what every device allows.
pub(super) const SLOT: usize = 256;
/// Words of a scope's record.
pub(super) const SCOPE_WORDS: usize = 7;

const UPLOADED: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_DST);
const BOTH_WAYS: BufferUsages = UPLOADED.union(BufferUsages::COPY_SRC);
const UNIFORM: BufferUsages = BufferUsages::UNIFORM.union(BufferUsages::COPY_DST);

/// What all windows share.
pub(super) struct Memory {
    chunks: Buffer,
    tiles: Buffer,
    pub(super) scopes: Buffer,
    tile_hits: Buffer,
    pub(super) totals: Buffer,
    pub(super) outcomes: Buffer,
    /// What clipping takes away.
    pub(super) cut: Buffer,
    /// A slot a window.
    pub(super) slots: Buffer,
    /// A slot for each part of an update that is added on its own.
    pub(super) parts: Buffer,
    /// The next one that is used.
    pub(super) next_part: usize,
    /// Stands for the update where none is read.
    nothing: Buffer,
    pub(super) plan: BindGroup,
    pub(super) windows: Vec<WindowMemory>,
}

/// A window's buffers and bind groups.
pub(super) struct WindowMemory {
    pub(super) residual: Buffer,
    mask: Buffer,
    pub(super) message: Buffer,
    /// Words of the message that are not 0.
    pub(super) written: u64,
    /// Words of the message that are read back with the outcome.
    pub(super) guess: usize,
    /// Words that it can have at most.
    most: usize,
    pub(super) count_in_residual: BindGroup,
    pub(super) sparse: BindGroup,
    pub(super) bitmap: BindGroup,
    pub(super) dense_f32: BindGroup,
    pub(super) dense_bf16: BindGroup,
    pub(super) seen: BindGroup,
    pub(super) clamp: BindGroup,
    pub(super) look: BindGroup,
}

impl WindowMemory {
    /// A message of so many words came: the next one will not be much longer.
    pub(super) fn expect(&mut self, words: usize) {
        self.guess = (words + words / 4 + 256).min(self.most);
    }
}

impl Memory {
    /// All buffers for a layout that has windows; the residual is +0.
    pub(super) fn new(context: &GpuContext, layout: &Layout) -> Result<Memory, GpuError> {
        let uploaded = |what, words: &[u32]| filled(context, what, words);
        let made = |what, words: usize, usage| {
            context.buffer(what, 4 * words.max(16) as u64, usage, false)
        };
        let chunks = uploaded("the table of chunks", &layout.chunks)?;
        let tiles = uploaded("the table of tiles", &layout.tiles)?;
        let order = uploaded("the order of chunks", &layout.order)?;
        let all_chunks = layout.windows.last().map_or(0, |window| window.chunks.end);
        let scopes = layout.scopes.len().max(1);
        let scopes_buffer = made("the scopes", SCOPE_WORDS * scopes, UPLOADED)?;
        let tile_hits = made("the tiles' hits", layout.tiles.len(), UPLOADED)?;
        let totals = made("the chunks' hits", 1 + 2 * all_chunks, UPLOADED)?;
        let before = made("sums of hits", layout.order.len() + 1, UPLOADED)?;
        let outcomes = made(
            "the chunks' outcomes",
            OUTCOME_WORDS * (all_chunks + 1),
            BOTH_WAYS,
        )?;
        let cut = made("what is clipped", CUT_WORDS * scopes, BOTH_WAYS)?;
        let slots = made("the windows", SLOT / 4 * layout.windows.len(), UNIFORM)?;
        let parts = made("an update's parts", SLOT / 4, UNIFORM)?;
        let nothing = made("no update", 4, UPLOADED)?;
        let kernels = &context.kernels().encode;
        let plan = bind(
            context,
            &kernels.plan,
            &[
                slot_of(&slots),
                chunks.as_entire_binding(),
                order.as_entire_binding(),
                scopes_buffer.as_entire_binding(),
                totals.as_entire_binding(),
                before.as_entire_binding(),
                outcomes.as_entire_binding(),
            ],
        )?;
        let mut memory = Memory {
            chunks,
            tiles,
            scopes: scopes_buffer,
            tile_hits,
            totals,
            outcomes,
            cut,
            slots,
            parts,
            next_part: 0,
            nothing,
            plan,
            windows: Vec::new(),
        };
        for window in &layout.windows {
            let window = memory.window(context, window)?;
            memory.windows.push(window);
        }
        Ok(memory)
    }

    fn window(&self, context: &GpuContext, window: &Window) -> Result<WindowMemory, GpuError> {
        let made = |what, words: usize, usage| {
            context.buffer(what, 4 * words.max(16) as u64, usage, false)
        };
        let residual = made("the residual", window.elements.len(), BOTH_WAYS)?;
        let mask = made("the mask", MASK_WORDS * window.tiles.len(), UPLOADED)?;
        let message = made("the message", window.message, BOTH_WAYS)?;
        let kernels = &context.kernels().encode;
        let slot = || slot_of(&self.slots);
        let [chunks, tiles, scopes, outcomes, tile_hits] = [
            &self.chunks,
            &self.tiles,
            &self.scopes,
            &self.outcomes,
            &self.tile_hits,
        ]
        .map(Buffer::as_entire_binding);
        let (residual_all, mask_all, message_all) = (
            residual.as_entire_binding(),
            mask.as_entire_binding(),
            message.as_entire_binding(),
        );
        let hits = [
            slot(),
            tiles.clone(),
            chunks.clone(),
            scopes.clone(),
            outcomes.clone(),
            tile_hits,
            mask_all.clone(),
            residual_all.clone(),
            message_all.clone(),
        ];
        let dense = [
            slot(),
            tiles.clone(),
            chunks.clone(),
            outcomes.clone(),
            residual_all.clone(),
            message_all.clone(),
        ];
        let seen = [
            slot(),
            chunks.clone(),
            outcomes.clone(),
            residual_all.clone(),
            message_all.clone(),
        ];
        let clamp = [
            slot(),
            tiles,
            chunks.clone(),
            scopes,
            outcomes.clone(),
            residual_all.clone(),
            self.cut.as_entire_binding(),
        ];
        let look = [slot(), chunks, residual_all.clone(), outcomes];
        let nothing = self.nothing.as_entire_binding();
        let count = self.count_bindings(nothing, residual_all, mask_all);
        let bound =
            |kernel: &Kernel, bindings: &[BindingResource<'_>]| bind(context, kernel, bindings);
        let mut made = WindowMemory {
            count_in_residual: bound(&kernels.count_in_residual, &count)?,
            sparse: bound(&kernels.sparse, &hits)?,
            bitmap: bound(&kernels.bitmap, &hits)?,
            dense_f32: bound(&kernels.dense_f32, &dense)?,
            dense_bf16: bound(&kernels.dense_bf16, &dense)?,
            seen: bound(&kernels.seen, &seen)?,
            clamp: bound(&kernels.clamp, &clamp)?,
            look: bound(&kernels.look, &look)?,
            most: window.message,
            written: 0,
            guess: 0,
            residual,
            mask,
            message,
        };
        // About one hit in a hundred.
        made.expect(window.elements.len() / 200);
        Ok(made)
    }

    fn count_bindings<'a>(
        &'a self,
        update: BindingResource<'a>,
        residual: BindingResource<'a>,
        mask: BindingResource<'a>,
    ) -> [BindingResource<'a>; 9] {
        [
            slot_of(&self.slots),
            update,
            residual,
            mask,
            self.tiles.as_entire_binding(),
            self.chunks.as_entire_binding(),
            self.scopes.as_entire_binding(),
            self.tile_hits.as_entire_binding(),
            self.totals.as_entire_binding(),
        ]
    }

    /// Binds an update of a whole window.
    pub(super) fn bind_count(
        &self,
        context: &GpuContext,
        window: usize,
        update: BindingResource<'_>,
    ) -> Result<BindGroup, GpuError> {
        let window = &self.windows[window];
        let bindings = self.count_bindings(
            update,
            window.residual.as_entire_binding(),
            window.mask.as_entire_binding(),
        );
        bind(context, &context.kernels().encode.count, &bindings)
    }

    /// Binds a part of an update.
    pub(super) fn bind_accumulate(
        &self,
        context: &GpuContext,
        window: usize,
        update: BindingResource<'_>,
    ) -> Result<BindGroup, GpuError> {
        let bindings = [
            slot_of(&self.parts),
            update,
            self.windows[window].residual.as_entire_binding(),
            self.totals.as_entire_binding(),
        ];
        bind(context, &context.kernels().encode.accumulate, &bindings)
    }

    /// Makes slots for so many parts. Whether there are new ones: what binds the old ones is of no use any more.
    pub(super) fn make_room_for_parts(
        &mut self,
        context: &GpuContext,
        parts: usize,
    ) -> Result<bool, GpuError> {
        if self.parts.size() >= (SLOT * parts) as u64 {
            return Ok(false);
        }
        let bytes = (SLOT * 2 * parts) as u64;
        self.parts = context.buffer("an update's parts", bytes, UNIFORM, false)?;
        Ok(true)
    }
}

/// A slot of a uniform buffer, whose offset comes with each dispatch.
pub(super) fn slot_of(buffer: &Buffer) -> BindingResource<'_> {
    BindingResource::Buffer(BufferBinding {
        buffer,
        offset: 0,
        size: NonZeroU64::new(SLOT as u64),
    })
}

/// A buffer that holds these words from the start.
fn filled(context: &GpuContext, what: &'static str, words: &[u32]) -> Result<Buffer, GpuError> {
    let bytes = 4 * words.len().max(16);
    let buffer = context.buffer(what, bytes as u64, UPLOADED, true)?;
    if !words.is_empty() {
        let view = buffer
            .slice(..4 * words.len() as u64)
            .get_mapped_range_mut();
        let mut view = view.map_err(|error| context.lose(what, error.to_string()))?;
        view.copy_from_slice(bytemuck::cast_slice(words));
    }
    context.unmap(&buffer);
    Ok(buffer)
}

pub(super) fn bind(
    context: &GpuContext,
    kernel: &Kernel,
    bindings: &[BindingResource<'_>],
) -> Result<BindGroup, GpuError> {
    #[cfg(test)]
    context.note_made();
    context.scoped("a binding", |device| kernel.bind(device, bindings))
}
