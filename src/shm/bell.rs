//! Bells: how a rank sleeps until one of several conditions may have become true.

use super::sync::{AtomicU64, Futex, Padded};
use std::time::Duration;

/// A bit per rank that sleeps or is about to.
#[repr(C)]
pub struct Asleep { words: Padded<[AtomicU64; 4]> }
/// All bells of a segment.
#[derive(Clone, Copy)]
pub struct Bells<'a> { asleep: &'a Asleep, bells: &'a [Padded<Futex>] }
impl<'a> Bells<'a> {
    pub fn new(asleep: &'a Asleep, bells: &'a [Padded<Futex>]) -> Self { Self { asleep, bells } }
    /// Called after something that others may wait for has become true: fence, look, wake those who sleep.
    pub fn ring(&self) { todo!() }
    /// Sleeps at most `slice` unless `ready` is true after the bit is set; true if `ready` said so.
    pub fn sleep_unless(&self, me: usize, slice: Duration, ready: impl FnOnce() -> bool) -> bool { todo!() }
}
