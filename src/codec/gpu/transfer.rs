//! Bytes between this process's memory and a device's, through staging buffers that are made once and used again.

use super::context::GpuContext;
use super::error::GpuError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use wgpu::{Buffer, BufferUsages, CommandEncoder, MapMode, SubmissionIndex};

/// How far a buffer's mapping is.
const UNMAPPED: u8 = 0;
/// It is asked for.
const COMING: u8 = 1;
const MAPPED: u8 = 2;
const FAILED: u8 = 3;

/// How long the callback of a mapping that is done may take, if another thread is to call it.
const CALLBACK: Duration = Duration::from_secs(30);

/// A staging buffer, and whether this process may use it.
struct Staging {
    buffer: Buffer,
    state: Arc<AtomicU8>,
    /// The last submission that uses it.
    used_by: Option<SubmissionIndex>,
}

impl Staging {
    fn map(&self, mode: MapMode, bytes: u64) {
        let state = Arc::clone(&self.state);
        state.store(COMING, Ordering::Release);
        self.buffer.slice(..bytes).map_async(mode, move |mapped| {
            let now = if mapped.is_ok() { MAPPED } else { FAILED };
            state.store(now, Ordering::Release);
        });
    }

    /// Waits until this process may use it.
    fn ready(&self, context: &GpuContext, during: &'static str) -> Result<(), GpuError> {
        if self.state.load(Ordering::Acquire) == COMING {
            match &self.used_by {
                Some(index) => context.wait(during, index.clone())?,
                None => context.look(during)?,
            }
        }
        // Another thread that waits for the same device may have taken the callback, and be about to call it.
        let began = Instant::now();
        loop {
            match self.state.load(Ordering::Acquire) {
                MAPPED => return Ok(()),
                COMING if began.elapsed() < CALLBACK => {
                    std::thread::yield_now();
                    context.look(during)?;
                }
                _ => {
                    let why = "a staging buffer could not be mapped".to_owned();
                    return Err(context.lose(during, why));
                }
            }
        }
    }

    fn unmap(&self, context: &GpuContext) {
        context.unmap(&self.buffer);
        self.state.store(UNMAPPED, Ordering::Release);
    }
}

/// Staging buffers through which bytes go to a device.
///
/// Bytes are [written](Uploads::write) one behind the other; [`Uploads::record`] puts copies of them into a command
/// encoder, and [`Uploads::settle`] is told what came of submitting it.
pub(super) struct Uploads {
    context: GpuContext,
    ring: Vec<Staging>,
    bytes: usize,
    /// The buffer that is written.
    current: usize,
    filled: usize,
    /// What is written and not recorded: from where, to which buffer and offset, how much.
    copies: Vec<(usize, Buffer, u64, usize)>,
    /// Whether commands that read the current buffer are waiting to be submitted.
    is_recorded: bool,
}

impl Uploads {
    /// Buffers of a ring: one is filled while the device reads another.
    const BUFFERS: usize = 3;

    /// Room for `bytes` between two submissions.
    pub(super) fn new(context: &GpuContext, bytes: usize) -> Result<Uploads, GpuError> {
        let bytes = bytes.max(4096).next_multiple_of(256);
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        let ring = (0..Self::BUFFERS).map(|_| {
            Ok(Staging {
                buffer: context.buffer("an upload buffer", bytes as u64, usage, true)?,
                state: Arc::new(AtomicU8::new(MAPPED)),
                used_by: None,
            })
        });
        Ok(Uploads {
            context: context.clone(),
            ring: ring.collect::<Result<_, GpuError>>()?,
            bytes,
            current: 0,
            filled: 0,
            copies: Vec::new(),
            is_recorded: false,
        })
    }

    /// Bytes that can still be written before the next submission.
    pub(super) fn room(&self) -> usize {
        if self.is_recorded {
            self.bytes
        } else {
            self.bytes - self.filled
        }
    }

    /// Writes bytes, at most [`room`](Self::room) and a multiple of 4, that are to be copied to `offset` of `to`, which has
    /// the usage `COPY_DST`.
    pub(super) fn write(&mut self, bytes: &[u8], to: &Buffer, offset: u64) -> Result<(), GpuError> {
        debug_assert!(bytes.len() <= self.room() && bytes.len().is_multiple_of(4));
        if bytes.is_empty() {
            return Ok(());
        }
        if self.is_recorded {
            // An error came between: those commands were given up, and the buffer is nobody's.
            self.map()?;
        }
        let staging = &self.ring[self.current];
        staging.ready(&self.context, "an upload")?;
        let from = self.filled as u64;
        let range = from..from + bytes.len() as u64;
        // Views begin at multiples of 8.
        let view = staging.buffer.slice(range).get_mapped_range_mut();
        let mut view = view.map_err(|error| {
            let why = error.to_string();
            self.context.lose("an upload", why)
        })?;
        view.copy_from_slice(bytes);
        drop(view);
        self.copies
            .push((self.filled, to.clone(), offset, bytes.len()));
        self.filled = (self.filled + bytes.len())
            .next_multiple_of(8)
            .min(self.bytes);
        Ok(())
    }

    /// Records the copies of all that was written. The encoder must be submitted next, and [`settle`](Self::settle) be told.
    pub(super) fn record(&mut self, commands: &mut CommandEncoder) {
        if self.copies.is_empty() {
            return;
        }
        let staging = &self.ring[self.current];
        staging.unmap(&self.context);
        self.is_recorded = true;
        for (from, to, offset, bytes) in self.copies.drain(..) {
            let (from, bytes) = (from as u64, bytes as u64);
            commands.copy_buffer_to_buffer(&staging.buffer, from, &to, offset, bytes);
        }
    }

    /// The encoder with the copies has been submitted, or never will be: then the buffer is free for other bytes.
    pub(super) fn settle(
        &mut self,
        submitted: Result<SubmissionIndex, GpuError>,
    ) -> Result<SubmissionIndex, GpuError> {
        match &submitted {
            Ok(index) => self.submitted(index)?,
            // Of a lost device nothing is free any more.
            Err(_) if self.context.check("an upload").is_err() => {}
            Err(_) => self.abandoned()?,
        }
        submitted
    }

    fn submitted(&mut self, index: &SubmissionIndex) -> Result<(), GpuError> {
        if self.filled == 0 {
            return Ok(());
        }
        self.ring[self.current].used_by = Some(index.clone());
        self.map()?;
        self.current = (self.current + 1) % self.ring.len();
        Ok(())
    }

    /// Has the current buffer mapped once it is free, empty.
    fn map(&mut self) -> Result<(), GpuError> {
        (self.filled, self.is_recorded) = (0, false);
        let staging = &self.ring[self.current];
        self.context.scoped("an upload", |_| {
            staging.map(MapMode::Write, self.bytes as u64)
        })
    }

    fn abandoned(&mut self) -> Result<(), GpuError> {
        self.copies.clear();
        self.filled = 0;
        if self.is_recorded {
            self.map()?;
        }
        Ok(())
    }
}

/// A staging buffer through which bytes come back.
pub(super) struct Download {
    context: GpuContext,
    staging: Option<Staging>,
    bytes: u64,
}

impl Download {
    pub(super) fn new(context: &GpuContext) -> Download {
        Download {
            context: context.clone(),
            staging: None,
            bytes: 0,
        }
    }

    /// The most bytes that are read back at a time: what a device's buffers hold, and not all of a host's memory that devices
    /// can write to.
    pub(super) fn most(&self) -> u64 {
        const MOST: u64 = 256 << 20;
        let most = self.context.device().limits().max_buffer_size;
        most.min(MOST) / 256 * 256
    }

    /// The buffer, with at least so many bytes: the target of copies that are recorded next. What it held is gone.
    pub(super) fn buffer(&mut self, bytes: u64) -> Result<&Buffer, GpuError> {
        if self.staging.is_none() || self.bytes < bytes {
            // Somewhat more, as far as buffers go: the next message may be longer.
            let roomy = (bytes + bytes / 4).max(4096).next_multiple_of(256);
            let bytes = roomy.min(self.most()).max(bytes);
            let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
            self.staging = Some(Staging {
                buffer: self
                    .context
                    .buffer("a read-back buffer", bytes, usage, false)?,
                state: Arc::new(AtomicU8::new(UNMAPPED)),
                used_by: None,
            });
            self.bytes = bytes;
        }
        match &self.staging {
            Some(staging) => Ok(&staging.buffer),
            None => Err(self
                .context
                .lose("a read-back", "there is no buffer".to_owned())),
        }
    }

    /// Waits for the submission that copies to it, and hands over its first `bytes`, a multiple of 4.
    pub(super) fn read<T>(
        &mut self,
        index: SubmissionIndex,
        bytes: u64,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, GpuError> {
        const DURING: &str = "a read-back";
        let Some(staging) = &mut self.staging else {
            return Err(self.context.lose(DURING, "there is no buffer".to_owned()));
        };
        staging.used_by = Some(index);
        let (context, staging) = (&self.context, &*staging);
        context.scoped(DURING, |_| staging.map(MapMode::Read, bytes))?;
        staging.ready(context, DURING)?;
        let view = staging.buffer.slice(..bytes).get_mapped_range();
        let view = view.map_err(|error| context.lose(DURING, error.to_string()))?;
        let made = with(&view);
        drop(view);
        staging.unmap(context);
        Ok(made)
    }
}
