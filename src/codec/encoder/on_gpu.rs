//! A residual in the memory of a GPU, and what happens when that is lost.

use super::Encoder;
use super::builder::EncoderError;
use super::home::Home;
use super::on_processor::{OnProcessor, Threads};
use crate::codec::Unit;
use crate::codec::encode::{EncodeError, Encoded};
use crate::codec::given::Given;
use crate::codec::gpu::wgpu::{Buffer, BufferUsages, CommandBuffer, CommandEncoder};
use crate::codec::gpu::{GpuContext, GpuError, GpuStep, GpuVector, GradRef};
use crate::codec::ranges::Chunk;
use crate::codec::residual::Residual;
use std::ops::Range;
use std::sync::Arc;

/// A residual in the memory of a GPU, and what encodes it there.
pub(super) struct OnGpu {
    vector: GpuVector,
    elements: usize,
    /// The chunk that was handed over last.
    current: Option<usize>,
    snapshots: Snapshots,
    /// What encodes on the processor, if that is to go on when the device is lost.
    threads: Option<Threads>,
    /// Where the samples of a step are taken: the pieces, and how many elements each scope has.
    pieces: Vec<Range<usize>>,
    sampled: Vec<usize>,
    /// Of each scope.
    units: Vec<(Unit, usize)>,
    /// The residual after the step, where that is looked at.
    looked_at: Vec<f32>,
    /// What is left of the residual that is flushed.
    flushed: Vec<f32>,
}

/// Copies of the residual in this process's memory.
pub(super) struct Snapshots {
    /// How many steps are between two; 0: there are none.
    every: u64,
    /// How many steps have been made since the last one.
    since: u64,
    /// The last one. An empty one is of +0, as all residuals begin.
    last: Vec<f32>,
}

impl Snapshots {
    pub(super) fn every(every: u64) -> Snapshots {
        Snapshots {
            every,
            since: 0,
            last: Vec::new(),
        }
    }

    /// Whether the step under way is to be followed by one.
    fn is_due(&self) -> bool {
        self.every > 0 && self.since + 1 >= self.every
    }

    /// The step under way has ended, with this residual if one was copied.
    fn count(&mut self, residual: Option<Vec<f32>>) {
        match residual {
            Some(residual) => (self.last, self.since) = (residual, 0),
            None => self.since = self.since.saturating_add(1),
        }
    }

    /// The residual is this one from now on. It is remembered only where it could be asked for again.
    fn set(&mut self, residual: &[f32]) {
        self.since = 0;
        self.last.clear();
        if self.every > 0 {
            self.last.extend_from_slice(residual);
        }
    }
}

/// A residual of +0 on a GPU; on the processor, if there is none to be had and `threads` are for that.
pub(super) fn home(
    context: &GpuContext,
    chunks: &Arc<[Chunk]>,
    scopes: usize,
    snapshots: Snapshots,
    threads: Option<Threads>,
) -> Result<Home, EncoderError> {
    let elements = chunks.last().map_or(0, |chunk| chunk.elements.end);
    let error = match GpuVector::new(context, Arc::clone(chunks), scopes) {
        Ok(vector) => {
            return Ok(Home::Gpu(Box::new(OnGpu {
                vector,
                elements,
                current: None,
                snapshots,
                threads,
                pieces: Vec::new(),
                sampled: Vec::new(),
                units: Vec::new(),
                looked_at: Vec::new(),
                flushed: Vec::new(),
            })));
        }
        Err(error) => error,
    };
    match threads {
        Some(threads) if is_reason(&error) => without(error, chunks, threads),
        _ => Err(error.into()),
    }
}

/// A residual of +0 on the processor, where there is no room on a GPU.
pub(super) fn without(
    error: GpuError,
    chunks: &Arc<[Chunk]>,
    threads: Threads,
) -> Result<Home, EncoderError> {
    let elements = chunks.last().map_or(0, |chunk| chunk.elements.end);
    let mut home = OnProcessor::new(Residual::zeroed(elements)?, chunks, threads);
    home.fell_back = Some(error);
    Ok(Home::Processor(home))
}

/// Whether the processor can go on where the device cannot.
fn is_reason(error: &GpuError) -> bool {
    error.is_final() || matches!(error, GpuError::OutOfMemory { .. })
}

impl OnGpu {
    pub(super) fn adapter(&self) -> String {
        self.vector.context().name()
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.current = None;
        self.flushed = Vec::new();
    }

    /// Whether this is a buffer of the residual's own.
    fn has_residual_in(&self, buffer: &Buffer) -> bool {
        self.vector.residuals().any(|own| own == buffer)
    }

    /// Refuses parts of an update that cannot be read where they are.
    pub(super) fn check_slices(&self, update: Given<'_>) -> Result<(), GpuError> {
        let Given::Device(parts) = update else {
            return Ok(());
        };
        for slice in parts.iter().filter_map(GradRef::on_device) {
            slice.check("an update", BufferUsages::STORAGE)?;
            if self.has_residual_in(slice.buffer) {
                return Err(slice.refused("an update", "a buffer that is not the residual's own"));
            }
        }
        Ok(())
    }

    /// Hands over a chunk of the step. What was dropped and clipped is that of the whole step, and counted already.
    pub(super) fn send(&mut self, number: usize) -> Encoded {
        self.current = Some(number);
        let chunk = self.vector.chunk(number);
        Encoded {
            format: chunk.format,
            hits: chunk.hits,
            dropped: 0,
            clipped: 0.0,
            mean: chunk.mean,
            residual_max: chunk.residual_max,
            residual_l1: chunk.residual_l1,
        }
    }

    pub(super) fn payload(&self) -> &[u8] {
        self.current
            .map_or(&[], |number| self.vector.payload(number))
    }

    pub(super) fn looked_at(&self) -> &[f32] {
        &self.looked_at
    }

    pub(super) fn flushed(&mut self) -> &mut [f32] {
        &mut self.flushed
    }

    /// The residual, or the last copy of one that is lost.
    pub(super) fn download(&self) -> Result<Vec<f32>, GpuError> {
        match self.vector.residual() {
            Err(error) if error.is_final() && self.snapshots.every > 0 => {
                let mut residual = self.snapshots.last.clone();
                residual.resize(self.elements, 0.0);
                Ok(residual)
            }
            downloaded => downloaded,
        }
    }

    /// Copies the residual to this process's memory, and leaves +0.
    fn flush(&mut self) -> Result<(), GpuError> {
        let residual = self.vector.residual()?;
        if let Err(error) = self.vector.restore(&vec![0.0; self.elements]) {
            // It is known, wherever it is now.
            self.snapshots.last = residual;
            return Err(error);
        }
        self.snapshots.set(&[]);
        self.flushed = residual;
        Ok(())
    }
}

impl Encoder {
    /// Begins a step on the GPU: chooses the thresholds, and encodes all chunks.
    pub(super) fn begin_on_gpu(&mut self, update: Given<'_>) -> Result<(), EncodeError> {
        if let Err(error) = self.sample_on_gpu(update) {
            self.leave_gpu(error, update)?;
            self.choose(update);
            return Ok(());
        }
        let Home::Gpu(home) = &mut self.home else {
            return Ok(());
        };
        home.units.clear();
        let mut rest = &self.magnitudes[..];
        for (scope, &count) in self.scopes.iter_mut().zip(&home.sampled) {
            let (sample, others) = rest.split_at(count.min(rest.len()));
            rest = others;
            let unit = scope.choose_from(self.step, sample);
            home.units.push((unit, scope.left));
        }
        if let Err(error) = self.encode_on_gpu(update) {
            let left = self.leave_gpu(error, update);
            if left.is_err() {
                // Policies have been asked for a step that has met no element.
                self.scopes.iter_mut().for_each(|scope| scope.give_up());
            }
            return left;
        }
        Ok(())
    }

    /// Takes the samples that the policies want to see: with one read-back for all of them.
    fn sample_on_gpu(&mut self, update: Given<'_>) -> Result<(), GpuError> {
        let Home::Gpu(home) = &mut self.home else {
            return Ok(());
        };
        home.pieces.clear();
        home.sampled.clear();
        self.magnitudes.clear();
        for scope in &mut self.scopes {
            home.sampled.push(scope.pieces(self.step, &mut home.pieces));
        }
        if home.pieces.is_empty() {
            return Ok(());
        }
        home.vector
            .magnitudes(update, &home.pieces, &mut self.magnitudes)
    }

    /// Encodes all chunks with the thresholds that have been chosen.
    fn encode_on_gpu(&mut self, update: Given<'_>) -> Result<(), GpuError> {
        let Home::Gpu(home) = &mut self.home else {
            return Ok(());
        };
        let step = GpuStep {
            step: self.step,
            first: self.first,
            scopes: &home.units,
            clip: self.post.as_ref().and_then(|post| post.clip(self.step)),
        };
        home.vector.encode(update, &step)?;
        let is_due = home.snapshots.is_due();
        let is_looked_at = self.percentiles.is_some();
        let mut residual = None;
        if is_due || is_looked_at {
            let copy = home.vector.residual()?;
            if is_looked_at {
                home.looked_at.clear();
                home.looked_at.extend_from_slice(&copy);
            }
            residual = is_due.then_some(copy);
        }
        home.snapshots.count(residual);
        self.stats.dropped += home.vector.dropped();
        self.stats.clipped += home.vector.clipped();
        Ok(())
    }

    /// Goes on on the processor after an error, if that is asked for: with the step under way too, if its update is in this
    /// process's memory.
    fn leave_gpu(&mut self, error: GpuError, update: Given<'_>) -> Result<(), EncodeError> {
        let is_here = matches!(update, Given::Slice(_) | Given::Parts(_));
        if self.falls_back(&error) && is_here {
            return Ok(());
        }
        self.unreported = self.stats.dropped;
        Err(error.into())
    }

    /// Goes to the processor after an error, if that is asked for; whether it has. The device's memory is given back.
    fn falls_back(&mut self, error: &GpuError) -> bool {
        let Home::Gpu(home) = &mut self.home else {
            return false;
        };
        if !is_reason(error) || home.threads.is_none() {
            return false;
        }
        // Without memory for it here either, the error stays what it is.
        let Ok(mut residual) = Residual::zeroed(self.elements) else {
            return false;
        };
        let last = &home.snapshots.last;
        residual[..last.len()].copy_from_slice(last);
        let Some(threads) = home.threads.take() else {
            return false;
        };
        let mut home = OnProcessor::new(residual, &self.chunks, threads);
        home.fell_back = Some(error.clone());
        // A copy for a flush may have what a trainer wrote.
        home.touched = true;
        self.home = Home::Processor(home);
        true
    }

    /// Replaces the residual, if it is on a GPU.
    pub(super) fn restore_on_gpu(&mut self, residual: &[f32]) -> Result<(), GpuError> {
        let Home::Gpu(home) = &mut self.home else {
            return Ok(());
        };
        match home.vector.restore(residual) {
            Ok(()) => home.snapshots.set(residual),
            // The processor has it from its caller.
            Err(error) if self.falls_back(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Copies the residual to this process's memory for a flush, if it is on a GPU, and leaves +0 there.
    pub(super) fn flush_on_gpu(&mut self) -> Result<(), GpuError> {
        let Home::Gpu(home) = &mut self.home else {
            return Ok(());
        };
        match home.flush() {
            Err(error) if !self.falls_back(&error) => Err(error),
            // Whoever has fallen back flushes what it has on the processor.
            _ => Ok(()),
        }
    }

    /// Why the residual is on the processor and not on a GPU any more, if that is so.
    #[must_use]
    pub fn fell_back(&self) -> Option<&GpuError> {
        match &self.home {
            Home::Processor(home) => home.fell_back.as_ref(),
            Home::Gpu(_) => None,
        }
    }

    /// The buffers in which the residual lies, one behind the other, for trainers that add their updates to it in place,
    /// between steps: what they submit before a step of [`InResidual`] is taken by it. Whole numbers of elements from the
    /// start of each. Empty on the processor.
    ///
    /// As on the processor, subnormal numbers and -0 count as +0, and what is not finite becomes +0 in the next step, and is
    /// counted as dropped; once, if the element of that step's update is not finite either.
    ///
    /// [`InResidual`]: crate::codec::InResidual
    #[must_use]
    pub fn residual_on_device(&self) -> Vec<GradRef<'_>> {
        match &self.home {
            Home::Processor(_) => Vec::new(),
            Home::Gpu(home) => home.vector.parts(),
        }
    }

    /// Puts the first submission of the next step behind these commands, and into the same submission: for trainers whose
    /// commands make the update. Before others that wait for the step already, those are submitted by themselves.
    ///
    /// # Errors
    /// [`EncodeError::OnProcessor`], and [`EncodeError::Gpu`] of commands that cannot be: they are not submitted;
    /// [`EncodeError::Gpu`] of those before them.
    pub fn record_after(&mut self, commands: CommandEncoder) -> Result<(), EncodeError> {
        let finished = match &self.home {
            Home::Processor(_) => return Err(commands_here()),
            Home::Gpu(home) => home.vector.context().finish_commands(commands)?,
        };
        self.record_after_finished(finished)
    }

    /// The same of commands that have been ended.
    pub(crate) fn record_after_finished(
        &mut self,
        commands: CommandBuffer,
    ) -> Result<(), EncodeError> {
        match &mut self.home {
            Home::Processor(_) => Err(commands_here()),
            Home::Gpu(home) => Ok(home.vector.record_after(commands)?),
        }
    }

    /// Whether this is a buffer of the residual's own.
    pub(crate) fn has_residual_in(&self, buffer: &Buffer) -> bool {
        match &self.home {
            Home::Processor(_) => false,
            Home::Gpu(home) => home.has_residual_in(buffer),
        }
    }
}

fn commands_here() -> EncodeError {
    EncodeError::OnProcessor {
        what: "commands of a GPU before a step",
    }
}

#[cfg(test)]
mod tests;
