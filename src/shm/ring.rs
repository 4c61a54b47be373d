//! A multicast ring: one producer, a cursor for each consumer, everybody takes everything in order.
//!
//! The producer copies a frame into the ring and then stores its tail; each consumer takes the frame and then stores its
//! cursor; the producer never passes the slowest cursor by more than the capacity. Every shared word has one writer, and
//! nothing here waits: a refusal says why.
//!
//! Own positions are kept in private memory ([`Producer`], [`Consumer`]). Those of others, and every header, are checked
//! before they are used, so that a peer that writes nonsense causes a [`Corrupt`] and nothing else.

pub use super::arena::Arena;
#[cfg(loom)]
pub use super::arena::Cells;
use super::crash::{self, Point};
use super::frame::{Corrupt, Header, PADDING, UNIT};
use super::position::{Place, check_cursor, check_tail, round_up};
use super::sync::{AtomicU64, Ordering, Padded, Site, mutant, ord};

/// One ring in somebody's memory: positions are u64 byte counts that never wrap.
///
/// | word | writer | reader | ordering | model |
/// |---|---|---|---|---|
/// | `tail` | the producer | consumers | store Release publishes the frames before it, load Acquire | 1, 3, 5, 7 |
/// | `cursors[i]` | consumer i | the producer | store Release gives the bytes before it back, load Acquire | 2, 3, 4 |
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    tail: &'a AtomicU64,
    cursors: &'a [Padded<AtomicU64>],
    arena: Arena<'a>,
}

/// What the producer alone knows.
#[derive(Debug, Default)]
pub struct Producer {
    /// What it has published.
    pub(crate) tail: u64,
    /// What all consumers had released when it last looked.
    pub(crate) gate: u64,
}

/// What consumer `me` alone knows.
#[derive(Debug)]
pub struct Consumer {
    pub(crate) me: usize,
    /// What it has taken.
    pub(crate) cursor: u64,
    /// What was published when it last looked.
    pub(crate) tail: u64,
}

impl Producer {
    /// Continues at `position`, rounded down to a whole [`UNIT`].
    #[must_use]
    pub fn at(position: u64) -> Self {
        let position = position - position % UNIT as u64;
        Self {
            tail: position,
            gate: position,
        }
    }

    /// What it has published, in bytes from the start of the run.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.tail
    }
}

impl Consumer {
    /// Continues at `position`, rounded down to a whole [`UNIT`], as consumer `me`.
    #[must_use]
    pub fn at(me: usize, position: u64) -> Self {
        let position = position - position % UNIT as u64;
        Self {
            me,
            cursor: position,
            tail: position,
        }
    }

    /// What it has taken, in bytes from the start of the run.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.cursor
    }
}

/// Why there is no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No room now: some consumer is behind.
    #[error("the ring is full")]
    Full,
    /// Never fits.
    #[error("the payload is larger than {max} bytes")]
    TooLarge {
        /// The largest payload, in bytes.
        max: usize,
    },
    /// A consumer's cursor is impossible.
    #[error("consumer {consumer}: {why}")]
    Corrupt {
        /// Whose cursor.
        consumer: usize,
        /// What is wrong with it.
        why: Corrupt,
    },
}

impl<'a> Ring<'a> {
    /// The ring of these words and bytes. `cursors[i]` is consumer i's.
    ///
    /// All words 0 are an empty ring for `Producer::default()` and `Consumer::at(i, 0)`.
    pub fn new(tail: &'a AtomicU64, cursors: &'a [Padded<AtomicU64>], arena: Arena<'a>) -> Self {
        Self {
            tail,
            cursors,
            arena,
        }
    }

    /// How much the ring holds, headers included, in bytes: a power of two.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.arena.capacity()
    }

    /// Largest payload of a frame, in bytes: header and payload together fit half the ring, so that with the padding in
    /// front of it every frame fits an empty ring, wherever it stands.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        let half = (self.capacity() / 2).min(u64::from(u32::MAX / UNIT as u32 * UNIT as u32));
        (half as usize).saturating_sub(UNIT)
    }

    /// Room for a frame of `payload` bytes.
    ///
    /// Looks at the consumers' cursors only if what it knew of them says that the ring is full.
    ///
    /// # Errors
    /// Why not; only [`Refused::Full`] can pass.
    pub fn reserve<'p>(
        &self,
        producer: &'p mut Producer,
        payload: usize,
    ) -> Result<WriteGrant<'a, 'p>, Refused> {
        self.reserve_past(producer, payload, |_| false)
    }

    /// As [`reserve`](Self::reserve), but a consumer of which `has_left` says so holds nothing: its cursor will never move
    /// again. `has_left` is asked only about consumers that stand in the way. It must stay true once it was, and order
    /// whatever that consumer has read before what follows, as [`Seat::get`](super::seat::Seat::get) does.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_past<'p>(
        &self,
        producer: &'p mut Producer,
        payload: usize,
        has_left: impl Fn(usize) -> bool,
    ) -> Result<WriteGrant<'a, 'p>, Refused> {
        let max = self.max_payload();
        if payload > max || self.capacity() < 2 * UNIT as u64 {
            return Err(Refused::TooLarge { max });
        }
        let place = Place::of(producer.tail, (UNIT + payload) as u64, self.capacity());
        let mut room = self.capacity();
        if mutant(Site::RoomOffByOne) {
            room += UNIT as u64;
        }
        // The tail is never behind the gate, nor further ahead than the capacity.
        if producer.tail - producer.gate + place.total() > room {
            // How far all must be for the frame to fit.
            let wanted = (producer.tail + place.total()).saturating_sub(room);
            producer.gate = self.read_gate(producer, wanted, has_left)?;
            if producer.tail - producer.gate + place.total() > room {
                return Err(Refused::Full);
            }
        }
        Ok(WriteGrant {
            ring: *self,
            producer,
            place,
            payload,
        })
    }

    /// The least of all cursors, without those behind `wanted` that belong to consumers that have left. Acquire: whoever
    /// it belongs to has read everything before it.
    fn read_gate(
        &self,
        producer: &Producer,
        wanted: u64,
        has_left: impl Fn(usize) -> bool,
    ) -> Result<u64, Refused> {
        // Without consumers nobody holds anything.
        let mut gate = producer.tail;
        let forgotten = usize::from(mutant(Site::GateForgetsOne));
        if mutant(Site::GateFastest) {
            gate = producer.gate;
        }
        for (consumer, cursor) in self
            .cursors
            .iter()
            .enumerate()
            .take(self.cursors.len() - forgotten)
        {
            let found = cursor.load(ord(Site::GateLoad, Ordering::Acquire));
            // Before it is checked: others may have let the producer pass this one already.
            if found < wanted && (has_left(consumer) || mutant(Site::PassesReader)) {
                continue;
            }
            check_cursor(producer.gate, found, producer.tail)
                .map_err(|why| Refused::Corrupt { consumer, why })?;
            gate = if mutant(Site::GateFastest) {
                gate.max(found)
            } else {
                gate.min(found)
            };
        }
        Ok(gate)
    }

    /// The next frame of this consumer, its header copied and checked; `None` if none has come.
    ///
    /// If none has come this is one Acquire load.
    ///
    /// # Errors
    /// The tail or the frame's header is impossible: the producer, or whoever can write to the segment, broke the
    /// protocol. Nothing is consumed.
    #[inline]
    pub fn peek<'c>(
        &self,
        consumer: &'c mut Consumer,
    ) -> Result<Option<ReadGrant<'a, 'c>>, Corrupt> {
        if consumer.cursor == consumer.tail {
            // Acquire: everything before the tail has been written. Pairs with the store in `commit`.
            let found = self.tail.load(ord(Site::TailLoad, Ordering::Acquire));
            if found == consumer.tail {
                return Ok(None);
            }
            check_tail(consumer.tail, found, consumer.cursor, self.capacity())?;
            consumer.tail = found;
        }
        self.next(consumer).map(Some)
    }

    /// The frame at the cursor, which the tail has passed.
    fn next<'c>(&self, consumer: &'c mut Consumer) -> Result<ReadGrant<'a, 'c>, Corrupt> {
        let mut header = self.header(consumer)?;
        if header.kind == PADDING && !mutant(Site::PaddingDelivered) {
            // It is published with a frame behind it, and so the frame is there too, at the ring's start.
            consumer.cursor += u64::from(header.length());
            header = self.header(consumer)?;
            if header.kind == PADDING {
                return Err(Corrupt::Padding {
                    room: 0,
                    found: header.length(),
                });
            }
        }
        Ok(ReadGrant {
            ring: *self,
            consumer,
            header,
        })
    }

    /// The header at the cursor, checked.
    fn header(&self, consumer: &Consumer) -> Result<Header, Corrupt> {
        let offset = consumer.cursor & (self.capacity() - 1);
        let header = self.arena.header(offset);
        header.check()?;
        let found = u64::from(header.length());
        let published = consumer.tail - consumer.cursor;
        let room = self.capacity() - offset;
        let half = self.capacity() / 2;
        if header.kind == PADDING {
            // All that is left at the end, less than a frame, and never without the frame behind it.
            if found != room || found >= half || found >= published {
                return Err(Corrupt::Padding {
                    room,
                    found: header.length(),
                });
            }
        } else {
            let max = room.min(half).min(published);
            if found < UNIT as u64 || round_up(found) > max {
                return Err(Corrupt::Length {
                    min: UNIT as u64,
                    max,
                    found,
                });
            }
        }
        Ok(header)
    }

    /// Puts the tail and all cursors of an empty ring at `position`, rounded down to a whole [`UNIT`], before anybody uses
    /// it: for tests of large positions.
    #[cfg(all(feature = "crash-points", not(loom)))]
    pub(super) fn begin_at(&self, position: u64) {
        let position = position - position % UNIT as u64;
        self.tail.store(position, Ordering::Release);
        for cursor in self.cursors {
            cursor.store(position, Ordering::Release);
        }
    }

    /// What `consumer` has given back, in bytes from the start of the run; 0 if there is no such consumer. One Relaxed
    /// load: for looking at a run that does not go on.
    #[must_use]
    pub fn released(&self, consumer: usize) -> u64 {
        self.cursors
            .get(consumer)
            .map_or(0, |cursor| cursor.load(Ordering::Relaxed))
    }
}

/// Room for one frame. Dropped: nothing has happened.
#[must_use = "a grant that is dropped publishes nothing"]
pub struct WriteGrant<'a, 'p> {
    ring: Ring<'a>,
    producer: &'p mut Producer,
    place: Place,
    payload: usize,
}

impl WriteGrant<'_, '_> {
    /// Length of the payload in bytes.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload
    }

    /// Copies `bytes` into the payload at `offset`. False, and nothing is written, if they do not all fit in there.
    #[must_use = "bytes outside of the payload are not written"]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let inside = offset
            .checked_add(bytes.len())
            .is_some_and(|end| end <= self.payload);
        inside
            && self
                .ring
                .arena
                .write(self.place.offset + (UNIT + offset) as u64, bytes)
    }

    /// The payload's first byte, aligned to 64 bytes if the ring's memory is; [`payload_len`](Self::payload_len) bytes
    /// may be written until the grant ends. Peers may write them too: make no reference of it.
    #[cfg(not(loom))]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        let payload = self
            .ring
            .arena
            .pointer(self.place.offset + UNIT as u64, self.payload);
        // A granted payload is always inside.
        payload.map_or(core::ptr::null_mut(), core::ptr::NonNull::as_ptr)
    }

    /// Makes the payload shorter than it was reserved: what was reserved as the most that it could become. A longer
    /// `payload` changes nothing.
    pub fn shorten(&mut self, payload: usize) {
        if payload < self.payload {
            self.payload = payload;
            self.place.taken = round_up((UNIT + payload) as u64);
        }
    }

    /// Fills in magic, version, length and checksum and publishes (padding first where the end is too short).
    ///
    /// The frame and its padding become visible together, by one Release store. Whoever may sleep for it is not woken:
    /// ring the bells. A header of kind [`PADDING`] is none; the frame is then not published.
    pub fn commit(self, header: Header) {
        debug_assert!(header.kind != PADDING, "padding belongs to the ring");
        if header.kind == PADDING {
            return;
        }
        let Self {
            ring,
            producer,
            place,
            payload,
        } = self;
        let tail = producer.tail + place.total();
        if mutant(Site::TailBeforeFrame) {
            ring.tail.store(tail, Ordering::Release);
        }
        if place.padding != 0 && !mutant(Site::PaddingAfterTail) {
            ring.write_padding(&place);
        }
        if mutant(Site::StopAfterPadding) {
            return;
        }
        let header = header.sealed(header.kind, (UNIT + payload) as u32);
        ring.arena.write(place.offset, bytemuck::bytes_of(&header));
        if mutant(Site::StopAfterHeader) {
            return;
        }
        crash::point(Point::FrameWritten);
        // Release: publishes padding, payload and header. Pairs with the load in `peek`.
        ring.tail
            .store(tail, ord(Site::TailStore, Ordering::Release));
        if place.padding != 0 && mutant(Site::PaddingAfterTail) {
            ring.write_padding(&place);
        }
        producer.tail = tail;
    }
}

impl Ring<'_> {
    fn write_padding(&self, place: &Place) {
        let padding = Header::new(PADDING).sealed(PADDING, place.padding as u32);
        self.arena.write(place.start, bytemuck::bytes_of(&padding));
    }
}

/// One frame to read. Dropped: not consumed.
#[must_use = "a grant that is dropped has not consumed the frame"]
pub struct ReadGrant<'a, 'c> {
    ring: Ring<'a>,
    consumer: &'c mut Consumer,
    header: Header,
}

impl ReadGrant<'_, '_> {
    /// The header, as it was when it was checked.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Length of the payload in bytes.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.header.length() as usize - UNIT
    }

    fn payload_offset(&self) -> u64 {
        (self.consumer.cursor & (self.ring.capacity() - 1)) + UNIT as u64
    }

    /// Copies the payload to private memory (`into` is cleared and filled).
    pub fn copy_payload(&self, into: &mut Vec<u8>) {
        into.clear();
        let whole = self
            .ring
            .arena
            .append_to(self.payload_offset(), self.payload_len(), into);
        debug_assert!(whole, "a checked frame lies inside the ring");
    }

    /// Copies the payload's bytes from `offset` on to `into`. False, and nothing is read, if they do not reach that far.
    #[must_use = "bytes outside of the payload are not read"]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let inside = offset
            .checked_add(into.len())
            .is_some_and(|end| end <= self.payload_len());
        inside
            && self
                .ring
                .arena
                .read(self.payload_offset() + offset as u64, into)
    }

    /// The payload's first byte, aligned to 64 bytes if the ring's memory is; [`payload_len`](Self::payload_len) bytes
    /// may be read until the grant ends. A peer that breaks the protocol may write them meanwhile: make no reference of
    /// it, and read each byte that decides anything once.
    #[cfg(not(loom))]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        let payload = self
            .ring
            .arena
            .pointer(self.payload_offset(), self.payload_len());
        // A checked frame is always inside.
        payload.map_or(core::ptr::null(), |payload| payload.as_ptr())
    }

    /// The producer may overwrite the frame from now on. It may wait for that: ring the bells.
    pub fn release(self) {
        let Self {
            ring,
            consumer,
            header,
        } = self;
        crash::point(Point::FrameRead);
        consumer.cursor += round_up(header.length().into());
        // Release: the reads of the frame come before it. Pairs with the loads in `read_gate`.
        if let Some(cursor) = ring.cursors.get(consumer.me) {
            cursor.store(consumer.cursor, ord(Site::CursorStore, Ordering::Release));
        }
    }
}
