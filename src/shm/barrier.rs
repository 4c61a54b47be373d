//! A barrier in one word: `[sum of identity hashes 32 | poison 1 | mismatch 1 | stop 1 | generation 13 | stops 8 | arrivals 8]`.

use super::sync::{AtomicU64, Padded};

/// The barrier's word.
#[repr(C)]
pub struct Barrier { word: Padded<AtomicU64> }
/// Proof of arrival.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Ticket { generation: u64 }
/// What a look at the barrier says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Somebody is missing.
    Waiting,
    /// All have arrived with the same identity. `stop`: some of them with a raised flag.
    Passed { stop: bool },
    /// All have arrived, not all with the same identity.
    Mismatch { stop: bool },
    /// Poisoned before all had arrived.
    Poisoned,
}
impl Barrier {
    pub fn new() -> Self { todo!() }
    /// Arrives. AcqRel. `raised`: this rank has a flag up.
    pub fn arrive(&self, world_size: u8, identity: u32, raised: bool) -> Ticket { todo!() }
    pub fn look(&self, ticket: Ticket) -> Look { todo!() }
    pub fn poison(&self) { todo!() }
}
