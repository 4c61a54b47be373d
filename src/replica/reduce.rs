//! The dense reduction over the rings: everybody's values folded in rank order, so that all ranks get the same bits.
//!
//! *Flat* for short vectors and for one or two ranks: a rank publishes all of its values and folds everybody's. One
//! hand-over; N S bytes read for a vector of S. *Scattered* for long ones from three ranks on: a rank folds its own
//! slice of each chunk and publishes what came out ([`Phases`]). Two hand-overs; 2 S bytes read at most. Which of the
//! two depends on length and world size only, and neither changes a bit: each element is folded over ranks 0, 1, ..
//! N-1 by one rank or by all.
//!
//! Chunks are small enough to stay in a cache from the pass that publishes a value to the one that folds it. Values
//! are copied once, from the rank's own memory into the ring, and folded from there, each where it lies: a peer that
//! writes it meanwhile makes a wrong number and nothing else.

use super::error::Error;
use super::phases::{Item, Phases, slice};
use super::port::{Blocked, Port, Taken};
use super::progress::Lists;
use super::record::{HAS_DATA, HAS_HASH, Record, RecordKind};
use super::wait::Wait;
use crate::shm::crash::{self, Point};
use crate::shm::ring::WriteGrant;
use bytemuck::Zeroable;
use std::ops::Range;

/// Payload of a contribution at most, in bytes: one dense block of f32.
const CHUNK_BYTES: usize = 131_072;
/// Values are folded in multiples of this, so that slices begin at whole cache lines.
const LINE: usize = 16;
/// From how many ranks on, and for vectors of how many bytes, slices are folded instead of everything. With two ranks
/// both ways read as much, and the flat one has one hand-over less.
const SCATTERED_RANKS: usize = 3;
const SCATTERED_BYTES: usize = 131_072;

/// How `elements` values of `width` bytes are cut, and which way they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    elements: usize,
    width: usize,
    /// Elements of a chunk.
    chunk: usize,
    scattered: bool,
    world_size: usize,
}

impl Cut {
    pub(crate) fn new(
        elements: usize,
        width: usize,
        world_size: usize,
        max_payload: usize,
    ) -> Self {
        let chunk = CHUNK_BYTES.min(max_payload) / width / LINE * LINE;
        Self {
            elements,
            width,
            chunk: chunk.max(1),
            scattered: world_size >= SCATTERED_RANKS
                && elements.saturating_mul(width) > SCATTERED_BYTES,
            world_size,
        }
    }

    pub(crate) fn is_scattered(&self) -> bool {
        self.scattered
    }

    fn chunks(&self) -> u64 {
        self.elements.div_ceil(self.chunk) as u64
    }

    /// The elements of a chunk.
    fn elements(&self, chunk: u64) -> Range<usize> {
        let start = chunk as usize * self.chunk;
        start..(start + self.chunk).min(self.elements)
    }

    /// Which elements of a chunk `rank` folds, whichever way they go.
    fn folded(&self, chunk: u64, rank: usize) -> Range<usize> {
        let elements = self.elements(chunk);
        if !self.scattered {
            return elements;
        }
        let slice = slice(elements.len(), rank, self.world_size);
        elements.start + slice.start..elements.start + slice.end
    }

    /// The most elements that a rank folds of a chunk.
    pub(crate) fn most_folded(&self) -> usize {
        let chunk = self.chunk.min(self.elements);
        if self.scattered {
            slice(chunk, 0, self.world_size).len()
        } else {
            chunk
        }
    }
}

/// Whose values are folded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) chunk: u64,
    pub(crate) rank: usize,
    /// No values of this chunk have been folded before.
    pub(crate) first: bool,
    /// None are folded after these.
    pub(crate) last: bool,
}

/// What is done with the values. Elements are counted over the whole vector.
pub(crate) trait Work {
    /// Whether values of others may overwrite this rank's own, which must be out by then.
    const IN_PLACE: bool;
    /// What all of this rank's records say: the numbers of exchange and step, flags, hash.
    fn record(&self) -> Record;
    /// Whether this rank gives values.
    fn gives(&self) -> bool;
    /// Looks at the first records of all ranks. Nothing has been folded before.
    fn begin(&mut self, wait: &Wait<'_>, heads: &[Record]) -> Result<(), Error>;
    /// Writes this rank's values into a frame, from byte `offset` of its payload on.
    fn contribute(&mut self, elements: Range<usize>, into: &mut WriteGrant<'_, '_>, offset: usize);
    /// Folds this rank's own values.
    fn fold_own(&mut self, turn: Turn, elements: Range<usize>);
    /// Folds the values of another rank that are in its frame from byte `offset` on.
    fn fold(&mut self, turn: Turn, elements: Range<usize>, theirs: &Taken<'_>, offset: usize);
    /// Bytes behind the reduced slice of the last chunk.
    fn trailer(&self) -> usize {
        0
    }
    /// Writes this rank's reduced slice into a frame; `last`: and the trailer.
    fn publish_reduced(
        &mut self,
        chunk: u64,
        elements: Range<usize>,
        last: bool,
        into: &mut WriteGrant<'_, '_>,
    );
    /// This rank's own slice is due.
    fn take_own_reduced(&mut self, chunk: u64, elements: Range<usize>);
    /// Takes another rank's reduced slice, and the trailer after the last.
    fn take_reduced(&mut self, elements: Range<usize>, last: bool, theirs: &Taken<'_>);
}

/// One reduction under way.
pub(crate) struct Reduction<'a, W> {
    pub(crate) port: Port<'a>,
    pub(crate) work: W,
    cut: Cut,
    phases: Phases,
    /// By rank, whether it gives values; `None` before all first records have been seen.
    gives: Option<Vec<bool>>,
    /// The next item to publish.
    published: u64,
    /// The next item to take, and whose.
    taken: u64,
    rank: usize,
    /// Bytes of all frames published, headers included.
    pub(crate) bytes: u64,
}

impl<'a, W: Work> Reduction<'a, W> {
    pub(crate) fn new(port: Port<'a>, work: W, cut: Cut) -> Self {
        Self {
            port,
            work,
            cut,
            phases: Phases::new(cut.chunks(), cut.scattered),
            gives: None,
            published: 0,
            taken: 0,
            rank: 0,
            bytes: 0,
        }
    }

    /// How many items there are. Without any values there are only the first records.
    fn items(&self) -> u64 {
        match &self.gives {
            Some(gives) if !gives.contains(&true) => 1,
            _ => self.phases.items(),
        }
    }

    /// Moves on to the next item that this rank publishes: without values one record says so.
    fn published(&mut self) {
        self.published += 1;
        while self.published < self.phases.items()
            && !self.work.gives()
            && matches!(self.phases.item(self.published), Item::Contribution(_))
        {
            self.published += 1;
        }
    }

    /// Moves on to the next record that there is.
    fn taken(&mut self) {
        let Some(gives) = &self.gives else { return };
        loop {
            self.rank += 1;
            if self.rank == gives.len() {
                (self.taken, self.rank) = (self.taken + 1, 0);
                if self.taken >= self.items() {
                    return;
                }
            }
            // Everybody's first record has been looked at, and must be given back.
            let contributes =
                self.taken > 0 && matches!(self.phases.item(self.taken), Item::Contribution(_));
            if !contributes || gives[self.rank] {
                return;
            }
        }
    }

    /// Looks at the first records of all ranks, before anything is folded. False if one has not come.
    pub(crate) fn look_at_heads(&mut self) -> Result<bool, Error> {
        if self.gives.is_some() {
            return Ok(true);
        }
        let ranks = self.port.shared.world_size;
        let mut heads = Vec::with_capacity(ranks);
        for rank in 0..ranks {
            match self.port.peek(rank)? {
                Some(taken) => heads.push(taken.record),
                None => {
                    self.rank = rank;
                    return Ok(false);
                }
            }
        }
        self.rank = 0;
        self.work.begin(&self.port.wait, &heads)?;
        let gives = heads.iter().map(|head| head.flags & HAS_DATA != 0);
        self.gives = Some(gives.collect());
        Ok(true)
    }
}

impl<W: Work> Lists for Reduction<'_, W> {
    type Error = Error;

    fn publishing(&self) -> Option<u64> {
        (self.published < self.items()).then_some(self.published)
    }

    fn taking(&self) -> Option<u64> {
        (self.taken < self.items()).then_some(self.taken)
    }

    fn publish(&mut self) -> Result<bool, Error> {
        if !self.phases.may_publish(self.published, self.taken) {
            return Ok(false);
        }
        let (cut, me, work) = (self.cut, self.port.shared.rank, &mut self.work);
        let gives = work.gives();
        let flags = work.record().flags | (u8::from(gives) * HAS_DATA);
        let (length, fits) = match self.phases.item(self.published) {
            Item::Contribution(chunk) => {
                let elements = cut.elements(chunk);
                let own = cut.folded(chunk, me);
                let length = if gives { cut.width * elements.len() } else { 0 };
                let record = Record {
                    kind: RecordKind::Reduce as u8,
                    chunk: chunk as u32,
                    flags,
                    ..work.record()
                };
                let fits = self.port.publish_with(record, length, |frame| {
                    if !gives {
                        return;
                    }
                    if !cut.scattered {
                        work.contribute(elements, frame, 0);
                        return;
                    }
                    // Nobody reads this rank's own slice from here: what stands there stays.
                    let behind = cut.width * (own.end - elements.start);
                    work.contribute(elements.start..own.start, frame, 0);
                    work.contribute(own.end..elements.end, frame, behind);
                })?;
                (length, fits)
            }
            Item::Reduced(chunk) => {
                let own = cut.folded(chunk, me);
                let last = chunk + 1 == cut.chunks();
                let trailer = if last { work.trailer() } else { 0 };
                let length = cut.width * own.len() + trailer;
                let record = Record {
                    kind: RecordKind::Reduced as u8,
                    chunk: chunk as u32,
                    flags,
                    ..work.record()
                };
                let fits = self.port.publish_with(record, length, |frame| {
                    work.publish_reduced(chunk, own, last, frame);
                })?;
                (length, fits)
            }
        };
        if fits {
            self.published();
            self.bytes += (size_of::<Record>() + length) as u64;
        }
        Ok(fits)
    }

    fn take(&mut self) -> Result<bool, Error> {
        if !self.look_at_heads()? {
            return Ok(false);
        }
        let Some(gives) = &self.gives else {
            return Ok(false);
        };
        let (rank, me, wait) = (self.rank, self.port.shared.rank, self.port.wait);
        let first = gives.iter().position(|gives| *gives) == Some(rank);
        let last = gives.iter().rposition(|gives| *gives) == Some(rank);
        let gives = gives[rank];
        let cut = self.cut;
        let item = self.phases.item(self.taken);
        let (kind, chunk, length) = match item {
            Item::Contribution(chunk) if !gives => (RecordKind::Reduce, chunk, 0),
            Item::Contribution(chunk) => (
                RecordKind::Reduce,
                chunk,
                cut.width * cut.elements(chunk).len(),
            ),
            Item::Reduced(chunk) => {
                let last = chunk + 1 == cut.chunks();
                let trailer = if last { self.work.trailer() } else { 0 };
                let length = cut.width * cut.folded(chunk, rank).len() + trailer;
                (RecordKind::Reduced, chunk, length)
            }
        };
        // That one is out as soon as it has room, and so waits for lower items only.
        if W::IN_PLACE && self.published <= self.taken {
            return Ok(false);
        }
        let base = self.work.record();
        let Some(theirs) = self.port.peek(rank)? else {
            return Ok(false);
        };
        let expected = Record {
            kind: kind as u8,
            chunk: chunk as u32,
            flags: (u8::from(gives) * HAS_DATA) | (theirs.record.flags & HAS_HASH),
            hash: theirs.record.hash,
            ..base
        };
        let expected = expected.framed_as(&theirs.record);
        let expected = (expected, length);
        let found = (theirs.record, theirs.payload_len());
        if found != expected {
            return Err(wait.protocol(rank, || {
                format!(
                    "expected {:?} with {} bytes, found {:?} with {} bytes",
                    expected.0, expected.1, found.0, found.1
                )
            }));
        }
        let work = &mut self.work;
        match item {
            Item::Contribution(_) if !gives => {}
            Item::Contribution(chunk) => {
                let elements = self.cut.folded(chunk, me);
                let turn = Turn {
                    chunk,
                    rank,
                    first,
                    last,
                };
                if rank == me {
                    work.fold_own(turn, elements);
                } else {
                    let start = self.cut.elements(chunk).start;
                    let offset = self.cut.width * (elements.start - start);
                    work.fold(turn, elements, &theirs, offset);
                }
                if last {
                    crash::point(Point::Folded);
                }
            }
            Item::Reduced(chunk) => {
                let elements = self.cut.folded(chunk, rank);
                let last = chunk + 1 == self.cut.chunks();
                if rank == me {
                    work.take_own_reduced(chunk, elements);
                } else {
                    work.take_reduced(elements, last, &theirs);
                }
            }
        }
        theirs.give_back();
        self.taken();
        Ok(true)
    }
}

impl<W> Blocked for Reduction<'_, W> {
    fn blocked_by(&self) -> Option<usize> {
        Some(self.rank)
    }
}

impl Record {
    /// Of a reduction, everything 0.
    pub(crate) fn of_reduction() -> Self {
        Self::zeroed()
    }
}
