//! What a step tells its trainer.

use super::{BackendKind, SettleReport};
use crate::codec::{Encoder, Unit};
use crate::replica::Counters;

/// One step of one replica, in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Which step of the exchange, counted from 0.
    pub step: u64,
    /// Where this replica's updates are encoded; [`Exchange::backend`](super::Exchange::backend) tells more.
    pub backend: BackendKind,
    /// How many replicas gave data. 0: nobody did, the epoch has ended everywhere, nothing was changed, and the step
    /// does not count. Of an asynchronous step the world size, by which a mean is divided.
    pub contributors: usize,
    /// Threshold of this replica's message; 0 without data. Where ranges have thresholds of their own this is the first;
    /// [`Encoder::scopes`] tells all.
    pub threshold: f32,
    /// Unit that a hit of this replica sends; 0 without data.
    pub unit: f32,
    /// Elements that this replica sent as hits.
    pub hits: u64,
    /// Hits per element of the exchange.
    pub density: f64,
    /// Bytes of the message that this replica made, headers included.
    pub bytes: u64,
    /// Its chunks in the sparse format.
    pub sparse_chunks: u64,
    /// Its chunks in the bitmap format.
    pub bitmap_chunks: u64,
    /// Its chunks that are sent dense.
    pub dense_chunks: u64,
    /// Sum of the absolute values that it sent; of dense chunks from a sample.
    pub l1_sent: f64,
    /// Largest absolute value seen in the residual afterwards; from a sample of each chunk.
    pub residual_max: f32,
    /// Sum of the absolute values of the residual afterwards; estimated from the same sample.
    pub residual_l1: f64,
    /// Sum of the absolute values that a post-processor took away from the residual.
    pub clipped: f64,
    /// Elements of this replica's update that were not finite, or whose sums with its residual were not, and were left
    /// out.
    pub dropped: u64,
    /// Hits and dense values, of all replicas, that met a parameter that is not finite; it is left as it is. Others that
    /// are not finite and that nothing met are not counted. Of parameters on a device those of a step are counted when
    /// they are known: in that step or a later one.
    pub parameters_not_finite: u64,
    /// External updates that were applied, of all replicas' sources.
    pub external_updates: u64,
    /// Nanoseconds in choosing the threshold and in encoding.
    pub encode_ns: u64,
    /// Nanoseconds in applying all replicas' messages.
    pub decode_ns: u64,
    /// Nanoseconds in everything else: waiting, mostly.
    pub wait_ns: u64,
    /// Asynchronous: how many steps this replica was ahead of the slowest one that was stepping, when it began.
    pub lag: u64,
    /// Asynchronous: 1 if it had to wait, because it was too far ahead.
    pub lag_waits: u64,
    /// Asynchronous: nanoseconds of that wait; also in `wait_ns`, but for what was applied meanwhile.
    pub lag_ns: u64,
    /// Asynchronous: chunks for which this replica's ring had no room, and which were only added to the residual.
    pub accumulated_chunks: u64,
    /// Asynchronous: records of other replicas that were applied.
    pub applied_records: u64,
    /// Asynchronous: the settle that this step ended with, if it did.
    pub settled: Option<SettleReport>,
}

impl Report {
    /// Takes over what the encoder says of the step that ended.
    pub(super) fn note(&mut self, encoder: &Encoder) {
        let stats = encoder.stats();
        let unit = encoder.scopes().next().and_then(|scope| scope.unit);
        self.threshold = unit.map_or(0.0, Unit::t);
        self.unit = unit.map_or(0.0, Unit::v);
        self.hits = stats.hits;
        self.density = stats.hits as f64 / encoder.elements() as f64;
        self.sparse_chunks = stats.sparse_chunks;
        self.bitmap_chunks = stats.bitmap_chunks;
        self.dense_chunks = stats.dense_chunks;
        self.l1_sent = stats.l1_sent;
        self.residual_max = stats.residual_max;
        self.residual_l1 = stats.residual_l1;
        self.clipped = stats.clipped;
        self.dropped = stats.dropped;
    }

    /// What the segment's counters hear of the step.
    pub(super) fn counters(&self, gave: bool) -> Counters {
        Counters {
            steps: 1,
            updates: u64::from(gave),
            hits: self.hits,
            bytes: self.bytes,
            dropped: self.dropped,
            encode_ns: self.encode_ns,
            decode_ns: self.decode_ns,
            wait_ns: self.wait_ns,
            density: self.density,
            threshold: self.threshold,
            residual_l1: self.residual_l1,
        }
    }

    /// Whether no replica gave data: the same on all replicas after the same step.
    pub fn epoch_ended(&self) -> bool {
        self.contributors == 0
    }
}
