//! How long the device takes for a step: for this package's own benchmark.

use super::feed::Commands;
use super::{GpuStep, GpuVector};
use crate::codec::Unit;
use crate::codec::given::Given;
use crate::codec::gpu::context::GpuContext;
use crate::codec::gpu::error::GpuError;
use crate::codec::gpu::transfer::Download;
use crate::codec::ranges::{ChunkCoding, chunks};
use std::time::Duration;
use wgpu::{
    Buffer, BufferUsages, ComputePassTimestampWrites, Features, QuerySet, QuerySetDescriptor,
    QueryType,
};

/// What a step consists of on the device.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    Count,
    Plan,
    Write,
    Look,
}

const STAGES: u32 = 4;

/// Where the device notes when it begins and ends each stage.
pub(super) struct Timer {
    set: QuerySet,
    resolved: Buffer,
}

impl Timer {
    fn new(context: &GpuContext) -> Result<Timer, GpuError> {
        if !context
            .device()
            .features()
            .contains(Features::TIMESTAMP_QUERY)
        {
            return Err(GpuError::Refused {
                adapter: context.name(),
                what: "timestamps",
                why: "the device does not have the feature".to_owned(),
            });
        }
        let set = context.scoped("timestamps", |device| {
            device.create_query_set(&QuerySetDescriptor {
                label: Some("a step's stages"),
                ty: QueryType::Timestamp,
                count: 2 * STAGES,
            })
        })?;
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let bytes = 8 * 2 * u64::from(STAGES);
        Ok(Timer {
            set,
            resolved: context.buffer("timestamps", bytes, usage, false)?,
        })
    }
}

/// Has a pass note when it begins and ends, if it is the stage's first and last one.
pub(super) fn writes(
    timer: Option<&Timer>,
    stage: Stage,
    [is_first, is_last]: [bool; 2],
) -> Option<ComputePassTimestampWrites<'_>> {
    let timer = timer?;
    let first = 2 * stage as u32;
    (is_first || is_last).then(|| ComputePassTimestampWrites {
        query_set: &timer.set,
        beginning_of_pass_write_index: is_first.then_some(first),
        end_of_pass_write_index: is_last.then_some(first + 1),
    })
}

/// How long the device took for the stages of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTimes {
    /// Adding the update, finding the hits and counting them.
    pub count: Duration,
    /// Saying what is sent, and where it stands.
    pub plan: Duration,
    /// Writing the message.
    pub write: Duration,
    /// Looking at what stays.
    pub look: Duration,
    /// From the beginning of the first one to the end of the last one.
    pub all: Duration,
}

/// A vector of one threshold on a device with timestamps.
pub struct TimedVector {
    vector: GpuVector,
    download: Download,
    elements: usize,
}

impl TimedVector {
    /// A residual of +0.
    ///
    /// # Errors
    /// [`GpuError::Refused`] on a device without timestamps; [`GpuError`] as the device has it.
    pub fn new(context: &GpuContext, elements: usize) -> Result<TimedVector, GpuError> {
        let chunks = chunks([(elements, ChunkCoding::Threshold(0))]).collect();
        let mut vector = GpuVector::new(context, chunks, 1)?;
        vector.timer = Some(Timer::new(context)?);
        Ok(TimedVector {
            vector,
            download: Download::new(context),
            elements,
        })
    }

    /// Encodes an update, with at most `limit` hits.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn encode<'a>(
        &mut self,
        update: impl Into<Given<'a>>,
        unit: Unit,
        limit: usize,
        step: u64,
    ) -> Result<StageTimes, GpuError> {
        self.vector.encode(
            update.into(),
            &GpuStep {
                step,
                first: step,
                scopes: &[(unit, limit)],
                clip: None,
            },
        )?;
        let context = self.vector.context.clone();
        let mut commands = Commands::new(&context)?;
        let bytes = 8 * 2 * u64::from(STAGES);
        if let Some(timer) = &self.vector.timer {
            (commands.encoder).resolve_query_set(&timer.set, 0..2 * STAGES, &timer.resolved, 0);
            let staging = self.download.buffer(bytes)?;
            (commands.encoder).copy_buffer_to_buffer(&timer.resolved, 0, staging, 0, bytes);
        }
        let index = commands.submit(&context, "timestamps")?;
        let mut ticks = [0u64; 2 * STAGES as usize];
        self.download.read(index, bytes, |bytes| {
            for (ticks, bytes) in ticks.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *ticks = u64::from_le_bytes(*bytes);
            }
        })?;
        let nanoseconds = f64::from(context.queue().get_timestamp_period());
        let between = |from: usize, to: usize| {
            let ticks = ticks[to].saturating_sub(ticks[from]) as f64;
            Duration::from_nanos((ticks * nanoseconds) as u64)
        };
        let of = |stage: Stage| between(2 * stage as usize, 2 * stage as usize + 1);
        Ok(StageTimes {
            count: of(Stage::Count),
            plan: of(Stage::Plan),
            write: of(Stage::Write),
            look: of(Stage::Look),
            all: between(0, ticks.len() - 1),
        })
    }

    /// Bytes of the last step's message.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        let payloads = self.vector.came.payloads.iter();
        payloads.map(|payload| payload.len()).sum()
    }

    /// Hits of the last step.
    #[must_use]
    pub fn hits(&self) -> u64 {
        let chunks = self.vector.came.chunks.iter();
        chunks.map(|chunk| u64::from(chunk.hits)).sum()
    }

    /// Elements of the vector.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }
}

impl std::fmt::Debug for TimedVector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimedVector")
            .field("elements", &self.elements)
            .finish_non_exhaustive()
    }
}
