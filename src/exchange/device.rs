//! Vectors in the memory of a GPU.
//!
//! In lockstep, and without rings where updates are encoded, what is on a device stays there: updates are encoded there if
//! the encoder is there too, and records are applied there. Everything else is *staged*: brought into this process's
//! memory, done on the processor, and, where it may have changed, brought back. The bits are the same.

use super::{BackendKind, Exchange, codec_error, hash};
use crate::checkpoint::{State, StateError};
use crate::codec::gpu::wgpu::{BufferUsages, CommandBuffer, CommandEncoder};
use crate::codec::gpu::{
    GpuApplier, GpuContext, GpuError, GradRef, PARAMETERS, Whole, check_apart,
};
use crate::codec::{Given, Parameters};
use crate::replica::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What an exchange has for vectors on a device.
#[derive(Default)]
pub(super) struct Device {
    context: Option<GpuContext>,
    /// Whether the caller can have made anything on it: it is the caller's, or was asked for. Nothing else tells a buffer
    /// of another device: wgpu may take one of another instance for a buffer of this one.
    is_known: AtomicBool,
    /// Copies whole vectors.
    whole: Option<Whole>,
    /// Made for the first target on a device.
    applier: Option<GpuApplier>,
    /// The caller's commands, behind which the next step's first submission goes.
    before: Mutex<Option<CommandBuffer>>,
    /// Memory of vectors that are staged: parameters and update.
    parameters: Vec<f32>,
    update: Vec<f32>,
}

impl Device {
    /// `is_given`: the context is the caller's.
    pub(super) fn new(context: Option<GpuContext>, is_given: bool) -> Self {
        Self {
            whole: context.as_ref().map(Whole::new),
            context,
            is_known: AtomicBool::new(is_given),
            ..Self::default()
        }
    }

    pub(super) fn applier(&mut self) -> Option<&mut GpuApplier> {
        self.applier.as_mut()
    }

    /// The device for `what`.
    fn context(&self, what: &'static str) -> Result<&GpuContext, Error> {
        let context = self.context.as_ref();
        let known = context.filter(|_| self.is_known.load(Ordering::Relaxed));
        known.ok_or_else(|| without_context(what))
    }

    /// What copies whole vectors: `what`.
    fn whole(&mut self, what: &'static str) -> Result<&mut Whole, Error> {
        self.whole.as_mut().ok_or_else(|| without_context(what))
    }

    fn take_before(&self) -> Option<CommandBuffer> {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.take()
    }

    fn submit_before(&self) -> Result<(), GpuError> {
        match (self.take_before(), &self.context) {
            (Some(commands), Some(context)) => context.submit_commands(commands),
            _ => Ok(()),
        }
    }
}

fn without_context(what: &'static str) -> Error {
    Error::Invalid {
        what,
        expected: "an exchange that was made with the context of its device".into(),
        found: "one that was made without any".into(),
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.context).finish()
    }
}

/// Memory for a vector of so many elements. What it holds is of no meaning.
fn room_for(room: &mut Vec<f32>, elements: usize) -> Result<Vec<f32>, Error> {
    let mut room = std::mem::take(room);
    let missing = elements.saturating_sub(room.len());
    room.try_reserve_exact(missing)
        .map_err(|error| Error::Invalid {
            what: "memory for a copy of a vector on a device",
            expected: format!("room for {elements} elements"),
            found: error.to_string(),
        })?;
    room.resize(elements, 0.0);
    Ok(room)
}

impl Exchange {
    /// The device of the exchange, on which its updates are encoded or its vectors may be: for buffers of your own.
    #[must_use]
    pub fn gpu(&self) -> Option<&GpuContext> {
        self.device.is_known.store(true, Ordering::Relaxed);
        self.device.context.as_ref()
    }

    /// The buffers in which the residual lies while a GPU encodes, one behind the other: for trainers that add their
    /// updates to it in place and then step with [`InResidual`](crate::InResidual). Empty where the processor encodes:
    /// there it is [`residual_mut`](Self::residual_mut).
    #[must_use]
    pub fn residual_on_device(&self) -> Vec<GradRef<'_>> {
        self.encoder.residual_on_device()
    }

    /// Puts the next step's own commands behind these, and into the same submission where the step begins on this device
    /// too. Any other operation of this exchange submits them first.
    ///
    /// ```no_run
    /// # fn train(exchange: &mut gradring::Exchange) -> Result<(), gradring::Error> {
    /// if let Some(context) = exchange.gpu() {
    ///     let commands = context.device().create_command_encoder(&Default::default());
    ///     // Backward and optimizer are recorded here.
    ///     exchange.record_after(commands)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an exchange without a device, and for one that made its own, which nobody has asked for with
    /// [`gpu`](Self::gpu); [`Error::Gpu`] when these commands, or such as were handed over before, are refused (local: they
    /// do nothing).
    pub fn record_after(&mut self, commands: CommandEncoder) -> Result<(), Error> {
        let context = self.device.context("commands for a device")?;
        let commands = context.finish_commands(commands).map_err(Error::Gpu)?;
        if !self.encodes_on_device() {
            return context.submit_commands(commands).map_err(Error::Gpu);
        }
        self.submit_before()?;
        let before = &mut self.device.before;
        *before.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(commands);
        Ok(())
    }

    /// Whether updates are encoded on a device.
    pub(super) fn encodes_on_device(&self) -> bool {
        BackendKind::of(&self.encoder) == BackendKind::Gpu
    }

    /// The residual that is not in this process's memory.
    pub(super) fn download_residual(&self) -> Result<Vec<f32>, StateError> {
        let unreadable = |error: String| StateError::Io {
            state: State::name(self).to_owned(),
            source: std::io::Error::other(error),
        };
        let submitted = self.device.submit_before();
        submitted.map_err(|error| unreadable(error.to_string()))?;
        let residual = self.encoder.download_residual();
        residual.map_err(|error| unreadable(error.to_string()))
    }

    /// Submits what the caller has recorded for the next step, for whatever else is done now.
    pub(super) fn submit_before(&self) -> Result<(), Error> {
        self.device.submit_before().map_err(Error::Gpu)
    }

    /// Whether an update on a device is encoded where it is.
    fn encodes_in_place(&self) -> bool {
        self.schedule.stays_on_device() && self.encodes_on_device()
    }

    /// Refuses an update that cannot be read where it is. Local.
    pub(super) fn check_update(&self, update: Option<Given<'_>>) -> Result<(), Error> {
        let Some(Given::Device(parts)) = update else {
            return Ok(());
        };
        let usages = if self.encodes_in_place() {
            BufferUsages::STORAGE
        } else {
            BufferUsages::STORAGE | BufferUsages::COPY_SRC
        };
        for part in parts.iter().filter_map(GradRef::on_device) {
            self.device.context("an update on a device")?;
            part.check("the update", usages).map_err(Error::Gpu)?;
            if self.encoder.has_residual_in(part.buffer) {
                let expected = "a buffer that is not the residual's own; InResidual is for that";
                return Err(Error::Gpu(part.refused("the update", expected)));
            }
        }
        Ok(())
    }

    /// Refuses a vector to which nothing can be applied where it is, and makes what applying to it takes. Local.
    pub(super) fn check_vector(
        &mut self,
        what: &'static str,
        vector: &dyn Parameters,
    ) -> Result<(), Error> {
        let Some(parts) = vector.device() else {
            return Ok(());
        };
        let context = self.device.context(what)?;
        for part in parts {
            let Some(part) = part.on_device() else {
                let on_device = parts.iter().filter_map(GradRef::on_device).count();
                let here = parts.len() - on_device;
                return Err(Error::Invalid {
                    what,
                    expected: "parts that are all in one kind of memory".into(),
                    found: format!("{on_device} on a device and {here} in this process's memory"),
                });
            };
            part.check(what, PARAMETERS).map_err(Error::Gpu)?;
            if self.encoder.has_residual_in(part.buffer) {
                let expected = "a buffer that is not the residual's own";
                return Err(Error::Gpu(part.refused(what, expected)));
            }
        }
        check_apart(what, parts).map_err(Error::Gpu)?;
        if self.schedule.stays_on_device() && self.device.applier.is_none() {
            self.device.applier = Some(GpuApplier::new(context).map_err(Error::Gpu)?);
        }
        Ok(())
    }

    /// Does something with an update, which is staged if it is on a device and encoded elsewhere.
    pub(super) fn with_update<R>(
        &mut self,
        update: Option<Given<'_>>,
        with: impl FnOnce(&mut Self, Option<Given<'_>>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if update.is_some() && self.encodes_on_device() {
            if let Some(commands) = self.device.take_before() {
                let recorded = self.encoder.record_after_finished(commands);
                recorded.map_err(codec_error)?;
            }
        } else {
            self.submit_before()?;
        }
        let parts = match update {
            Some(Given::Device(parts)) if !self.encodes_in_place() => parts,
            _ => return with(self, update),
        };
        let mut room = room_for(&mut self.device.update, self.length)?;
        let outcome = self
            .bring("an update on a device", parts, &mut room)
            .and_then(|()| with(self, Some(Given::Slice(room.as_slice().into()))));
        self.device.update = room;
        outcome
    }

    /// Copies a vector into this process's memory.
    fn bring(
        &mut self,
        what: &'static str,
        parts: &[GradRef<'_>],
        room: &mut [f32],
    ) -> Result<(), Error> {
        if parts.iter().any(|part| part.on_device().is_some()) {
            let whole = self.device.whole(what)?;
            return whole.download(parts, room).map_err(Error::Gpu);
        }
        let mut rest = room;
        for part in parts {
            if let GradRef::Host(values) = part {
                let (now, later) = rest.split_at_mut(values.len());
                now.copy_from_slice(values);
                rest = later;
            }
        }
        Ok(())
    }

    /// Does something with a vector, which is staged if it is on a device. `reads`: what it holds counts.
    pub(super) fn staged<R>(
        &mut self,
        vector: &mut dyn Parameters,
        reads: bool,
        with: impl FnOnce(&mut Self, &mut dyn Parameters) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match self.bring_in(vector, reads)? {
            None => with(self, vector),
            Some(mut room) => {
                let outcome = with(self, &mut room);
                self.bring_back(vector, room, outcome)
            }
        }
    }

    /// A copy of a vector that is on a device, to work with instead; goes to [`bring_back`](Self::bring_back).
    pub(super) fn bring_in(
        &mut self,
        vector: &dyn Parameters,
        reads: bool,
    ) -> Result<Option<Vec<f32>>, Error> {
        let Some(parts) = vector.device() else {
            return Ok(None);
        };
        let mut room = room_for(&mut self.device.parameters, self.length)?;
        let brought = match reads {
            true => self.bring("a vector on a device", parts, &mut room),
            false => Ok(()),
        };
        match brought {
            Ok(()) => Ok(Some(room)),
            Err(error) => {
                self.device.parameters = room;
                Err(error)
            }
        }
    }

    /// Brings such a copy back, where it may have changed.
    pub(super) fn bring_back<R>(
        &mut self,
        vector: &dyn Parameters,
        room: Vec<f32>,
        outcome: Result<R, Error>,
    ) -> Result<R, Error> {
        // After any other error nothing has changed, or the run is over.
        let happened = matches!(outcome, Ok(_) | Err(Error::NonFinite { .. }));
        let brought = match (happened, vector.device(), &mut self.device.whole) {
            (true, Some(parts), Some(whole)) => whole.upload(&room, parts),
            _ => Ok(()),
        };
        self.device.parameters = room;
        match brought {
            Ok(()) => outcome,
            // The others have gone on.
            Err(error) => Err(self.shared.gpu_failed(error)),
        }
    }

    /// What an error of a device comes to inside of an operation, which the others cannot end either.
    pub(super) fn failed(&self, error: Error) -> Error {
        match error {
            Error::Gpu(error) => self.shared.gpu_failed(error),
            error => error,
        }
    }

    /// The hash of a vector, wherever it is.
    pub(super) fn hash_of(&mut self, vector: &mut dyn Parameters) -> Result<u64, Error> {
        let Some(parts) = vector.device() else {
            return Ok(hash::of_parts(vector));
        };
        let whole = self.device.whole("a vector on a device")?;
        let sums = whole.hash_sums(parts).map_err(Error::Gpu)?;
        Ok(hash::joined(sums))
    }
}
