//! What a replica has done so far, in its own lines of the segment: for displays, which read them from outside.

use crate::shm::segment::{COUNTERS, RankLines};
use crate::shm::sync::{AtomicU64, Ordering};

/// What a replica has done since it joined, over all its exchanges, and what its last step was like.
///
/// Each number is right by itself; read while the replica steps, they may be of two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Counters {
    /// Steps made, those included in which this replica gave no data.
    pub steps: u64,
    /// Steps in which it gave data.
    pub updates: u64,
    /// Elements that it sent as hits.
    pub hits: u64,
    /// Bytes of the messages that it made, headers included.
    pub bytes: u64,
    /// Elements of its updates that were not finite and were left out.
    pub dropped: u64,
    /// Nanoseconds in choosing thresholds and in encoding.
    pub encode_ns: u64,
    /// Nanoseconds in applying messages.
    pub decode_ns: u64,
    /// Nanoseconds of its steps in everything else: waiting, mostly.
    pub wait_ns: u64,
    /// Hits per element of the last step in which it gave data.
    pub density: f64,
    /// Threshold of that step.
    pub threshold: f32,
    /// Estimated sum of the absolute values in its residual after that step.
    pub residual_l1: f64,
}

/// The sums among a rank's counter words; those of the last update follow them.
const SUMS: usize = 8;
const DENSITY: usize = SUMS;
const THRESHOLD: usize = SUMS + 1;
const RESIDUAL_L1: usize = SUMS + 2;
const _: () = assert!(RESIDUAL_L1 < COUNTERS);

impl Counters {
    fn sums(&self) -> [u64; SUMS] {
        [
            self.steps,
            self.updates,
            self.hits,
            self.bytes,
            self.dropped,
            self.encode_ns,
            self.decode_ns,
            self.wait_ns,
        ]
    }

    /// Adds what one step did to a rank's words, of which its thread is the only writer.
    pub(super) fn add_to(&self, lines: &RankLines) {
        let words: &[AtomicU64; COUNTERS] = &lines.counters;
        for (word, more) in words.iter().zip(self.sums()) {
            let sum = word.load(Ordering::Relaxed).wrapping_add(more);
            word.store(sum, Ordering::Relaxed);
        }
        if self.updates > 0 {
            words[DENSITY].store(self.density.to_bits(), Ordering::Relaxed);
            words[THRESHOLD].store(u64::from(self.threshold.to_bits()), Ordering::Relaxed);
            words[RESIDUAL_L1].store(self.residual_l1.to_bits(), Ordering::Relaxed);
        }
    }

    /// What a rank's words say.
    #[must_use]
    pub fn read(lines: &RankLines) -> Self {
        let word = |at: usize| lines.counters[at].load(Ordering::Relaxed);
        Self {
            steps: word(0),
            updates: word(1),
            hits: word(2),
            bytes: word(3),
            dropped: word(4),
            encode_ns: word(5),
            decode_ns: word(6),
            wait_ns: word(7),
            density: f64::from_bits(word(DENSITY)),
            threshold: f32::from_bits(word(THRESHOLD) as u32),
            residual_l1: f64::from_bits(word(RESIDUAL_L1)),
        }
    }
}
