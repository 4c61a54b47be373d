//! A multicast ring: one producer, a cursor for each consumer, everybody takes everything in order.

use super::frame::{Corrupt, Header};
use super::sync::{AtomicU64, Padded};

/// One ring in somebody's memory: positions are u64 byte counts that never wrap.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    tail: &'a AtomicU64,
    cursors: &'a [Padded<AtomicU64>],
    arena: Arena<'a>,
}
/// The bytes of a ring.
#[derive(Clone, Copy)]
pub struct Arena<'a>(core::marker::PhantomData<&'a ()>);

/// What the producer alone knows.
#[derive(Debug, Default)]
pub struct Producer { pub(crate) tail: u64, pub(crate) gate: u64 }
/// What consumer `me` alone knows.
#[derive(Debug)]
pub struct Consumer { pub(crate) me: usize, pub(crate) cursor: u64, pub(crate) tail: u64 }

/// Why there is no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now: some consumer is behind.
    Full,
    /// Never fits.
    TooLarge { max: usize },
    /// A consumer's cursor is impossible.
    Corrupt { consumer: usize, why: Corrupt },
}

impl<'a> Ring<'a> {
    pub fn new(tail: &'a AtomicU64, cursors: &'a [Padded<AtomicU64>], arena: Arena<'a>) -> Self { todo!() }
    /// bytes, a power of two
    pub fn capacity(&self) -> u64 { todo!() }
    /// Largest payload of a frame: header and payload together fit half the ring.
    pub fn max_payload(&self) -> usize { todo!() }
    /// Room for a frame of `payload` bytes, or why not.
    pub fn reserve<'p>(&self, producer: &'p mut Producer, payload: usize) -> Result<WriteGrant<'a, 'p>, Refused> { todo!() }
    /// The next frame of this consumer, its header copied and checked; `None` if none has come.
    pub fn peek<'c>(&self, consumer: &'c mut Consumer) -> Result<Option<ReadGrant<'a, 'c>>, Corrupt> { todo!() }
    /// Which consumer is furthest behind this producer.
    pub fn slowest(&self) -> usize { todo!() }
}
/// Room for one frame. Dropped: nothing has happened.
pub struct WriteGrant<'a, 'p> { ring: Ring<'a>, producer: &'p mut Producer }
impl WriteGrant<'_, '_> {
    /// Copies into the payload at `offset`. Panics never: out of range is cut by an internal check -> returns false? (helper decides)
    pub fn write(&mut self, offset: usize, bytes: &[u8]) { todo!() }
    /// Fills in magic, version, length, checksum and publishes (padding first where the end is too short).
    pub fn commit(self, header: Header) { todo!() }
}
/// One frame to read. Dropped: not consumed.
pub struct ReadGrant<'a, 'c> { ring: Ring<'a>, consumer: &'c mut Consumer, header: Header }
impl ReadGrant<'_, '_> {
    pub fn header(&self) -> &Header { &self.header }
    pub fn payload_len(&self) -> usize { todo!() }
    /// Copies the payload to private memory (`into` is cleared and filled).
    pub fn copy_payload(&self, into: &mut Vec<u8>) { todo!() }
    /// The producer may overwrite the frame from now on.
    pub fn release(self) { todo!() }
}
impl Producer { 
    /// Continues at `position` (multiple of UNIT)
    pub fn at(position: u64) -> Self { todo!() } }
impl Consumer { pub fn at(me: usize, position: u64) -> Self { todo!() } }
