//! How long a device works, by its own clock.

use super::context::GpuContext;
use super::error::GpuError;
use std::time::Duration;
use wgpu::{
    Buffer, BufferUsages, CommandEncoder, ComputePassTimestampWrites, Features, QuerySet,
    QuerySetDescriptor, QueryType,
};

/// Reads a device's clock where a pass begins and where another one ends.
pub(super) struct Timer {
    queries: QuerySet,
    resolved: Buffer,
    /// Nanoseconds of a tick.
    period: f32,
}

impl Timer {
    /// Bytes of the two readings.
    pub(super) const BYTES: u64 = 16;

    /// None where the device was made without [`Features::TIMESTAMP_QUERY`].
    pub(super) fn new(context: &GpuContext) -> Result<Option<Timer>, GpuError> {
        if !context
            .device()
            .features()
            .contains(Features::TIMESTAMP_QUERY)
        {
            return Ok(None);
        }
        let descriptor = QuerySetDescriptor {
            label: Some("gradring: a timer"),
            ty: QueryType::Timestamp,
            count: 2,
        };
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        Ok(Some(Timer {
            queries: context.scoped("a timer", |device| device.create_query_set(&descriptor))?,
            resolved: context.buffer("a timer", Self::BYTES, usage, false)?,
            period: context.queue().get_timestamp_period(),
        }))
    }

    /// For the pass that begins what is timed.
    pub(super) fn begins(&self) -> ComputePassTimestampWrites<'_> {
        ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: None,
        }
    }

    /// For the pass that ends it.
    pub(super) fn ends(&self) -> ComputePassTimestampWrites<'_> {
        ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: None,
            end_of_pass_write_index: Some(1),
        }
    }

    /// Copies the readings to a buffer, behind both passes.
    pub(super) fn record(&self, commands: &mut CommandEncoder, to: &Buffer, offset: u64) {
        commands.resolve_query_set(&self.queries, 0..2, &self.resolved, 0);
        commands.copy_buffer_to_buffer(&self.resolved, 0, to, offset, Self::BYTES);
    }

    /// What the readings say; a clock that was set back in between says 0.
    pub(super) fn between(&self, readings: &[u8]) -> Duration {
        let (readings, _) = readings.as_chunks::<8>();
        let ticks = match readings {
            [begin, end, ..] => u64::from_le_bytes(*end).saturating_sub(u64::from_le_bytes(*begin)),
            _ => 0,
        };
        Duration::from_nanos((ticks as f64 * f64::from(self.period)) as u64)
    }
}
