//! One shared mapping: how it comes to be, who may attach, how it goes away.
use super::sync::*;
use super::{
    barrier::Barrier, bell::Bells, layout::Layout, life::Life, poison::Poison, ring::Ring,
};
use std::time::{Duration, Instant};

/// What a new segment is made for.
#[derive(Clone, Debug)]
pub struct Config {
    pub world_size: usize,
    pub ring_capacity: usize,
    /** distinct CPUs that the replicas together may use */
    pub cores: usize,
}
/// The mapping and everything in it.
pub struct Segment(());
/// One rank's own lines (single writer: that rank, unless a field says otherwise).
#[repr(C)]
pub struct RankLines {
    /// free 0, joining 1, joined 2, left 3. CAS free -> joining by joiners, then by the rank itself.
    pub state: Padded<AtomicU32>,
    /// life token, written by the kernel too
    pub life: Padded<AtomicU32>,
    pub identity: Padded<RankIdentity>,
    /// the 64 operation slots
    pub slots: [Slot; 64],
    /// inline values of all_gather and all_reduce: operation & 1
    pub inline: [Inline; 2],
    /// why this rank aborted, UTF-8, written before the poison
    pub reason: Reason,
    pub counters: Padded<[AtomicU64; 16]>,
}
/// pid etc.
#[repr(C)]
pub struct RankIdentity {
    pub pid: AtomicU32,
    pub tid: AtomicU32,
    /** raised, not yet agreed flags */
    pub raised: AtomicU32,
    pub spare: AtomicU32,
}
/// What a rank has come for: one writer, Relaxed words, number last with Release; read number, words, number.
#[repr(C)]
pub struct Slot {
    pub number: AtomicU64,
    pub identity: AtomicU64,
    pub detail: AtomicU64,
    pub extra: AtomicU64,
}
/// length and up to 1 KiB as Relaxed words, number last with Release
#[repr(C)]
pub struct Inline {
    pub number: Padded<AtomicU64>,
    pub length: AtomicU64,
    pub words: [AtomicU64; 127 + 1],
}
#[repr(C)]
pub struct Reason {
    pub length: AtomicU64,
    pub words: [AtomicU64; 31],
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    #[error("/dev/shm has no room: {need} bytes needed, {free} free")]
    NoSpace { need: u64, free: u64 },
    #[error("segment {name} refused: {what} (expected {expected}, found {found})")]
    Refused {
        name: String,
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error("segment {name} was not ready after {waited:?}")]
    NotReady { name: String, waited: Duration },
    #[error("no segment {name}")]
    NotFound { name: String },
    #[error("{call}({name}): {source}")]
    Os {
        call: &'static str,
        name: String,
        source: std::io::Error,
    },
    #[error("a segment cannot be made so: {0}")]
    Config(String),
}
impl Segment {
    /// Makes one, with a random name; sweeps stale ones first. Header written, state ready.
    pub fn create(config: &Config) -> Result<Segment, SegmentError> {
        todo!()
    }
    /// Attaches; waits until `deadline` for the header to be ready. `world_size`: what the opener expects.
    pub fn open(name: &str, world_size: usize, deadline: Instant) -> Result<Segment, SegmentError> {
        todo!()
    }
    /// "/gradring-<32 hex digits>"
    pub fn name(&self) -> &str {
        todo!()
    }
    /// Removes the name; true if this call did it.
    pub fn unlink(&self) -> Result<bool, SegmentError> {
        todo!()
    }
    /// Removes the names of segments in which nobody lives; their names.
    pub fn sweep() -> Vec<String> {
        todo!()
    }
    pub fn layout(&self) -> &Layout {
        todo!()
    }
    pub fn world_size(&self) -> usize {
        todo!()
    }
    pub fn cores(&self) -> usize {
        todo!()
    }
    pub fn barrier(&self) -> &Barrier {
        todo!()
    }
    pub fn bells(&self) -> Bells<'_> {
        todo!()
    }
    pub fn poison(&self) -> &Poison {
        todo!()
    }
    /// panics? no: rank must be < world_size (checked by callers at join); out of range returns rank 0? -> helper: debug_assert + slice index on a checked slice
    pub fn rank(&self, rank: usize) -> &RankLines {
        todo!()
    }
    pub fn launcher_life(&self) -> &AtomicU32 {
        todo!()
    }
    pub fn ring(&self, rank: usize) -> Ring<'_> {
        todo!()
    }
}
