//! Taking a step's records: the first ones of all ranks, then each by itself onto parameters or sum.
//!
//! In which order records are taken is the schedule's business ([`super::lockstep`], [`super::streamed`]); per element it
//! is always the order of the ranks, so that all end with the same bits.

use super::onto::Onto;
use super::stamp::Stamp;
use super::{Reduction, Report, compare_hashes, nanoseconds};
use crate::codec::{
    Apply, Chunk, ChunkCoding, DecodeError, Format, Record as Message, Unit, bitmap_len, canon,
    payload_len, sparse_len, visited,
};
use crate::replica::Error;
use crate::replica::port::{Port, Taken};
use crate::replica::record::{HAS_DATA, HAS_HASH, IS_LAST, Record, RecordKind};
use crate::replica::wait::Wait;
use std::time::Instant;

/// What the first records of all ranks say.
pub(super) struct Heads {
    /// Which ranks give data.
    pub(super) gives: Vec<bool>,
    /// The first rank that does, if any.
    pub(super) first: Option<usize>,
    /// How many external updates follow from each rank.
    pub(super) updates: Vec<u16>,
    /// What values are multiplied with: 1 / how many give data, rounded once, or 1.
    pub(super) inverse: f32,
    /// All ranks' flags.
    pub(super) agreed: u8,
}

/// A step under way, as far as it takes.
pub(super) struct Taking<'a> {
    pub(super) stamp: Stamp,
    pub(super) reduction: Reduction,
    /// Where the chunks lie: the same on all ranks.
    pub(super) layout: &'a [Chunk],
    pub(super) onto: Onto<'a>,
    /// How many external updates this rank has announced.
    pub(super) announced: u16,
    pub(super) heads: Option<Heads>,
    /// By rank: elements that were not finite.
    pub(super) dropped: Vec<u64>,
    pub(super) report: Report,
    pub(super) port: Port<'a>,
}

impl<'a> Taking<'a> {
    /// A step of which nothing has been taken.
    pub(super) fn new(
        stamp: Stamp,
        reduction: Reduction,
        layout: &'a [Chunk],
        onto: Onto<'a>,
        report: Report,
        port: Port<'a>,
    ) -> Self {
        Self {
            stamp,
            reduction,
            layout,
            onto,
            announced: 0,
            heads: None,
            dropped: vec![0; port.shared.world_size],
            report,
            port,
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.port.shared.world_size
    }

    pub(super) fn chunks(&self) -> u64 {
        self.layout.len() as u64
    }

    /// The chunk that is visited as number `visit`.
    pub(super) fn chunk_at(&self, visit: u64) -> usize {
        visited(self.stamp.step, visit as usize, self.layout.len())
    }

    /// What all records came to: the report, by rank how many elements were not finite, and all ranks' flags.
    pub(super) fn ended(mut self) -> Result<(Report, Vec<u64>, u8), Error> {
        let (wait, began) = (self.port.wait, Instant::now());
        let not_finite = self.onto.finish();
        self.report.parameters_not_finite +=
            not_finite.map_err(|error| error.ends(&wait, self.port.shared.rank))?;
        self.report.decode_ns += nanoseconds(began);
        let agreed = self.heads.map_or(0, |heads| heads.agreed);
        Ok((self.report, self.dropped, agreed))
    }

    /// Looks at the first records of all ranks; nothing is applied before all of them have been seen, so that who gives
    /// data is known, and the same everywhere. The rank whose record has not come, if there is one.
    pub(super) fn look_at_heads(&mut self) -> Result<Option<usize>, Error> {
        if self.heads.is_some() {
            return Ok(None);
        }
        let mut heads = Vec::with_capacity(self.ranks());
        for rank in 0..self.ranks() {
            match self.port.peek(rank)? {
                Some(taken) => heads.push(taken.record),
                None => return Ok(Some(rank)),
            }
        }
        self.compare_hashes(&heads)?;
        let (me, expected) = (self.port.shared.rank, self.announced);
        let found = heads[me].frame;
        if found != expected {
            // Somebody has written over it: all would wait for updates that never come.
            return Err(self.port.wait.protocol(me, || {
                format!("{found} external updates announced, expected {expected}")
            }));
        }
        let gives: Vec<bool> = heads
            .iter()
            .map(|head| head.flags & HAS_DATA != 0)
            .collect();
        let contributors = gives.iter().filter(|&&gives| gives).count();
        self.report.contributors = contributors;
        self.heads = Some(Heads {
            first: gives.iter().position(|gives| *gives),
            gives,
            updates: heads.iter().map(|head| head.frame).collect(),
            inverse: match self.reduction {
                Reduction::Mean => 1.0 / contributors as f32,
                Reduction::Sum => 1.0,
            },
            agreed: heads.iter().fold(0, |or, head| or | head.agreement),
        });
        Ok(None)
    }

    fn compare_hashes(&self, heads: &[Record]) -> Result<(), Error> {
        let hash = |head: &Record| (head.flags & HAS_HASH != 0).then_some(head.hash);
        if let Some(rank) = heads
            .iter()
            .position(|head| hash(head).is_some() != self.stamp.hash.is_some())
        {
            let expected = self.stamp.hash.is_some();
            return Err(self.port.wait.protocol(rank, || {
                format!("hash present: {}, expected {expected}", !expected)
            }));
        }
        let hashes = heads.iter().map(|head| head.hash).collect();
        compare_hashes(&self.port.wait, self.stamp.step, hashes)
    }

    /// A peer that saw a divergence first has poisoned the run, maybe before this rank had looked: it can see the same,
    /// since all first records were out by then.
    pub(super) fn explain(&mut self, error: Error) -> Error {
        if matches!(&error, Error::Diverged { hashes, .. } if hashes.is_empty())
            && self.heads.is_none()
            && let Err(seen) = self.look_at_heads()
        {
            return seen;
        }
        error
    }

    /// Takes the record in which `rank` says that it gives no data. False if it has not come.
    pub(super) fn take_nothing(&mut self, rank: usize) -> Result<bool, Error> {
        let (wait, chunk) = (self.port.wait, self.chunk_at(0));
        let expected = self.expected(chunk, IS_LAST);
        let Some(taken) = self.port.peek(rank)? else {
            return Ok(false);
        };
        let record = taken.record;
        check(&wait, rank, &record, true, expected)?;
        let found = taken.take().len();
        if found != 0 {
            return Err(wait.protocol(rank, || format!("{found} bytes in a record without data")));
        }
        self.dropped[rank] = u64::from(record.dropped);
        Ok(true)
    }

    /// What the header of a record of `chunk` must say, besides what it tells.
    fn expected(&self, chunk: usize, flags: u8) -> Record {
        Record {
            chunk: chunk as u32,
            flags,
            ..self.stamp.record(RecordKind::Step)
        }
    }

    /// Takes `rank`'s record of `chunk`, its first, last, or in between, and applies it. False if it has not come.
    pub(super) fn take_chunk(
        &mut self,
        rank: usize,
        chunk: usize,
        (is_first, is_last): (bool, bool),
    ) -> Result<bool, Error> {
        let wait = self.port.wait;
        let Chunk { elements, coding } = &self.layout[chunk];
        let expected = self.expected(chunk, HAS_DATA | (u8::from(is_last) * IS_LAST));
        let Some(heads) = &self.heads else {
            return Ok(false);
        };
        let (zeroes, inverse) = (
            self.onto.apply == Apply::Add && heads.first == Some(rank),
            heads.inverse,
        );
        let Some(taken) = self.port.peek(rank)? else {
            return Ok(false);
        };
        let began = Instant::now();
        let record = taken.record;
        check(&wait, rank, &record, is_first, expected)?;
        if is_last {
            self.dropped[rank] = u64::from(record.dropped);
        }
        let (format, unit) =
            scaled(&record, *coding).map_err(|what| wait.protocol(rank, || what))?;
        let payload = payload_of(taken, &wait, rank, format, elements.len())?;
        if zeroes {
            let cleared = self.onto.clear(elements.clone());
            cleared.map_err(|error| error.ends(&wait, rank))?;
        }
        let message = Message {
            format,
            hits: record.hits,
            elements: elements.len(),
            payload,
        };
        let x = canon(unit * inverse);
        let not_finite = self.onto.apply(&message, x, elements.start);
        self.report.parameters_not_finite += not_finite.map_err(|error| error.ends(&wait, rank))?;
        self.report.decode_ns += nanoseconds(began);
        Ok(true)
    }
}

/// Ends the run because a record of `rank` could not be applied: its fault, unless it is this rank's own target that is
/// wrong.
pub(super) fn not_applied(wait: &Wait<'_>, rank: usize, error: DecodeError) -> Error {
    let culprit = if error.is_of_target() {
        wait.shared.rank
    } else {
        rank
    };
    wait.protocol(culprit, || error.to_string())
}

/// Takes the payload of a record whose format, hits and elements say how long it must be.
pub(super) fn payload_of<'a>(
    taken: Taken<'a>,
    wait: &Wait<'_>,
    rank: usize,
    format: Format,
    elements: usize,
) -> Result<&'a [u8], Error> {
    let length = payload_len(format, elements, taken.record.hits as usize);
    if length != Some(taken.payload_len()) {
        let found = taken.payload_len();
        return Err(wait.protocol(rank, || {
            format!("payload of {found} bytes, expected {length:?}")
        }));
    }
    Ok(taken.take())
}

/// Compares what a header must say with what it says. What it tells may be anything: threshold, unit, hits, what was
/// dropped, and of a rank's first record the hash and how many external updates follow.
fn check(
    wait: &Wait<'_>,
    rank: usize,
    record: &Record,
    is_first: bool,
    expected: Record,
) -> Result<(), Error> {
    let expected = Record {
        kind: expected.kind,
        exchange: expected.exchange,
        step: expected.step,
        chunk: expected.chunk,
        flags: expected.flags | (record.flags & HAS_HASH),
        frame: if is_first { record.frame } else { 0 },
        ..*record
    };
    if *record == expected {
        Ok(())
    } else {
        Err(wait.protocol(rank, || format!("expected {expected:?}, found {record:?}")))
    }
}

/// The format of a chunk's record, and what a unit of it counts: 1 where it is dense. Or what is wrong with it.
pub(super) fn scaled(record: &Record, coding: ChunkCoding) -> Result<(Format, f32), String> {
    let format = Format::try_from(record.format).map_err(|error| error.to_string())?;
    match coding {
        ChunkCoding::Threshold(_) if format.dense().is_none() => {
            let unit = Unit::from_halves(record.t, record.v).map_err(|error| error.to_string())?;
            Ok((format, unit.v()))
        }
        ChunkCoding::Dense(number) if format == number.format() => match (record.t, record.v) {
            (0, 0) => Ok((format, 1.0)),
            (t, v) => Err(format!(
                "threshold {t} and unit {v} of a dense chunk, expected 0"
            )),
        },
        coding => Err(format!(
            "a {format} record of a chunk that is encoded as {coding:?}"
        )),
    }
}

/// Bytes of the largest payload that a chunk's record can have: it is a bitmap where it is not dense.
pub(super) fn largest_payload(chunk: &Chunk) -> usize {
    let elements = chunk.elements.len();
    match chunk.coding {
        ChunkCoding::Threshold(_) => bitmap_len(elements).max(sparse_len(elements, 0)),
        ChunkCoding::Dense(number) => number.bytes() * elements,
    }
}
