//! Any number of bytes to a device, through a few small staging buffers.

use crate::codec::Values;
use crate::codec::gpu::context::GpuContext;
use crate::codec::gpu::error::GpuError;
use crate::codec::gpu::transfer::Uploads;
use wgpu::{Buffer, CommandBuffer, CommandEncoder, CommandEncoderDescriptor, SubmissionIndex};

/// Bytes of a staging buffer, at most.
const MOST: usize = 8 << 20;
/// Half-precision elements that become f32 at a time.
const SINGLES: usize = 4096;

/// Commands that are recorded, and those of the caller's that go before them in the same submission.
pub(super) struct Commands {
    before: Option<CommandBuffer>,
    pub(super) encoder: CommandEncoder,
}

impl Commands {
    pub(super) fn new(context: &GpuContext) -> Result<Commands, GpuError> {
        Self::behind(None, context)
    }

    /// Behind these of the caller's, if there are any.
    pub(super) fn behind(
        before: Option<CommandBuffer>,
        context: &GpuContext,
    ) -> Result<Commands, GpuError> {
        let encoder = context.scoped("a command encoder", |device| {
            device.create_command_encoder(&CommandEncoderDescriptor {
                label: Some("gradring"),
            })
        })?;
        Ok(Commands { before, encoder })
    }

    pub(super) fn submit(
        self,
        context: &GpuContext,
        what: &'static str,
    ) -> Result<SubmissionIndex, GpuError> {
        let Commands { before, encoder } = self;
        let own = context.scoped(what, |_| encoder.finish())?;
        context.submit(what, before.into_iter().chain([own]))
    }
}

/// Uploads of any length: what is full is submitted.
pub(super) struct Feed {
    context: GpuContext,
    uploads: Uploads,
}

impl Feed {
    /// For about so many bytes at a time.
    pub(super) fn new(context: &GpuContext, bytes: usize) -> Result<Feed, GpuError> {
        Ok(Feed {
            context: context.clone(),
            uploads: Uploads::new(context, bytes.min(MOST))?,
        })
    }

    /// Has bytes, a multiple of 4, copied after the commands so far.
    pub(super) fn write(
        &mut self,
        commands: &mut Commands,
        mut bytes: &[u8],
        to: &Buffer,
        mut offset: u64,
    ) -> Result<(), GpuError> {
        while !bytes.is_empty() {
            let count = bytes.len().min(self.uploads.room() / 4 * 4);
            if count == 0 {
                self.flush(commands)?;
                continue;
            }
            let (now, later) = bytes.split_at(count);
            self.uploads.write(now, to, offset)?;
            offset += count as u64;
            bytes = later;
        }
        Ok(())
    }

    /// The same of numbers, as f32.
    pub(super) fn write_values(
        &mut self,
        commands: &mut Commands,
        values: Values<'_>,
        to: &Buffer,
        offset: u64,
    ) -> Result<(), GpuError> {
        if let Values::F32(values) = values {
            return self.write(commands, bytemuck::cast_slice(values), to, offset);
        }
        let mut singles = [0f32; SINGLES];
        let mut done = 0;
        while done < values.len() {
            let end = values.len().min(done + SINGLES);
            let room = &mut singles[..end - done];
            values.slice(done..end).to_singles(room);
            let at = offset + 4 * done as u64;
            self.write(commands, bytemuck::cast_slice(room), to, at)?;
            done = end;
        }
        Ok(())
    }

    /// Submits the commands so far and the copies; others can be recorded after them.
    pub(super) fn flush(&mut self, commands: &mut Commands) -> Result<SubmissionIndex, GpuError> {
        let next = Commands::new(&self.context)?;
        let mut full = std::mem::replace(commands, next);
        let uploads = &mut self.uploads;
        let recorded = self
            .context
            .scoped("uploads", |_| uploads.record(&mut full.encoder));
        let submitted = recorded.and_then(|()| full.submit(&self.context, "uploads"));
        self.uploads.settle(submitted)
    }
}
