//! The lockstep schedule: a pipeline over chunks without any barrier. Every replica takes the records of ranks 0, 1, ..
//! N-1 of each chunk in that order and applies each by itself, so that all end with the same bits.

use super::{Reduction, Report, codec_error, compare_hashes, nanoseconds};
use crate::codec::{
    Apply, Chunk, ChunkCoding, Encoder, Format, Record as Message, Unit, Values, canon,
    payload_len, visited,
};
use crate::replica::Error;
use crate::replica::port::{Blocked, Port};
use crate::replica::progress::Lists;
use crate::replica::record::{HAS_DATA, HAS_HASH, IS_LAST, Record, RecordKind};
use std::time::Instant;

/// What the first records of all ranks say.
pub(super) struct Heads {
    /// Which ranks give data.
    gives: Vec<bool>,
    /// 1 / how many do, rounded once.
    inverse: f32,
    /// All ranks' flags.
    pub(super) agreed: u8,
}

/// One step under way.
pub(super) struct Lockstep<'a> {
    pub(super) exchange: u16,
    pub(super) reduction: Reduction,
    pub(super) step: u64,
    /// Hash of the parameters after the last checked step, if it has not been compared.
    pub(super) hash: Option<u64>,
    pub(super) update: Option<Values<'a>>,
    pub(super) encoder: &'a mut Encoder,
    /// Where the chunks lie: the same on all ranks.
    pub(super) layout: &'a [Chunk],
    /// The record that is to be published next, once its chunk is encoded. Its payload is with the encoder.
    pub(super) pending: Option<Record>,
    /// How many of this rank's records are out.
    pub(super) published: u64,
    pub(super) target: &'a mut [f32],
    pub(super) apply: Apply,
    pub(super) heads: Option<Heads>,
    /// The next record to take: how many chunks are done, and whose record of the next one.
    pub(super) chunk: u64,
    pub(super) rank: usize,
    /// By rank: elements that were not finite.
    pub(super) dropped: Vec<u64>,
    pub(super) report: Report,
    pub(super) port: Port<'a>,
}

impl Lockstep<'_> {
    /// The chunk that is visited as number `visit`.
    fn chunk_at(&self, visit: u64) -> u64 {
        visited(self.step, visit as usize, self.layout.len()) as u64
    }

    fn chunks(&self) -> u64 {
        self.layout.len() as u64
    }

    /// How many records a rank publishes.
    fn records(&self, gives: bool) -> u64 {
        if gives { self.chunks() } else { 1 }
    }

    /// Encodes the next chunk, or says that there is no data.
    fn encode(&mut self) -> Result<Record, Error> {
        let record = Record {
            exchange: self.exchange,
            step: self.step as u32,
            chunk: self.chunk_at(self.published) as u32,
            flags: if self.hash.is_some() { HAS_HASH } else { 0 },
            hash: self.hash.unwrap_or(0),
            ..Record::new(RecordKind::Step)
        };
        let Some(update) = self.update else {
            return Ok(Record {
                flags: record.flags | IS_LAST,
                ..record
            });
        };
        let start = Instant::now();
        let visit = self.published as usize;
        let message = self.encoder.encode(visit, update).map_err(codec_error)?;
        self.report.encode_ns += nanoseconds(start);
        let is_last = self.published + 1 == self.chunks();
        let (t, v) = message.unit.map_or((0, 0), Unit::halves);
        let dropped = self.encoder.stats().dropped;
        Ok(Record {
            flags: record.flags | HAS_DATA | if is_last { IS_LAST } else { 0 },
            format: message.format as u8,
            t,
            v,
            hits: message.hits,
            dropped: u32::try_from(dropped).unwrap_or(u32::MAX),
            ..record
        })
    }

    /// Looks at the first records of all ranks; nothing is applied before all of them have been seen, so that who gives
    /// data is known, and the same everywhere. False if one has not come.
    fn look_at_heads(&mut self) -> Result<bool, Error> {
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
        self.compare_hashes(&heads)?;
        let gives: Vec<bool> = heads
            .iter()
            .map(|head| head.flags & HAS_DATA != 0)
            .collect();
        let contributors = gives.iter().filter(|&&gives| gives).count();
        self.report.contributors = contributors;
        let inverse = 1.0 / contributors as f32;
        self.heads = Some(Heads {
            gives,
            inverse,
            agreed: heads.iter().fold(0, |or, head| or | head.agreement),
        });
        Ok(true)
    }

    fn compare_hashes(&self, heads: &[Record]) -> Result<(), Error> {
        let hash = |head: &Record| (head.flags & HAS_HASH != 0).then_some(head.hash);
        if let Some(rank) = heads
            .iter()
            .position(|head| hash(head).is_some() != self.hash.is_some())
        {
            let expected = self.hash.is_some();
            return Err(self.port.wait.protocol(rank, || {
                format!("hash present: {}, expected {expected}", !expected)
            }));
        }
        let hashes = heads.iter().map(|head| head.hash).collect();
        compare_hashes(&self.port.wait, self.step, hashes)
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

    /// Moves on to the next record that there is.
    fn move_on(&mut self) {
        let Some(heads) = &self.heads else { return };
        loop {
            self.rank += 1;
            if self.rank == heads.gives.len() {
                (self.chunk, self.rank) = (self.chunk + 1, 0);
            }
            let last =
                self.chunk >= self.chunks() || self.chunk > 0 && self.report.contributors == 0;
            if last || self.chunk == 0 || heads.gives[self.rank] {
                return;
            }
        }
    }
}

impl Lists for Lockstep<'_> {
    type Error = Error;

    fn publishing(&self) -> Option<u64> {
        (self.published < self.records(self.update.is_some())).then_some(self.published)
    }

    fn taking(&self) -> Option<u64> {
        let chunks = match &self.heads {
            Some(_) => self.records(self.report.contributors > 0),
            None => 1,
        };
        (self.chunk < chunks).then_some(self.chunk)
    }

    fn publish(&mut self) -> Result<bool, Error> {
        let record = match self.pending {
            Some(record) => record,
            None => self.encode()?,
        };
        let payload = match self.update {
            Some(_) => self.encoder.payload(),
            None => &[],
        };
        let fits = self.port.publish(record, payload)?;
        if fits {
            self.published += 1;
            self.report.bytes += (size_of::<Record>() + payload.len()) as u64;
        }
        self.pending = if fits { None } else { Some(record) };
        Ok(fits)
    }

    fn take(&mut self) -> Result<bool, Error> {
        if self.heads.is_none() && !self.look_at_heads()? {
            return Ok(false);
        }
        let Some(heads) = &self.heads else {
            return Ok(false);
        };
        let (rank, wait) = (self.rank, self.port.wait);
        let (chunks, chunk) = (self.chunks(), self.chunk_at(self.chunk));
        let Chunk { elements, coding } = &self.layout[chunk as usize];
        let (gives, is_first) = (
            heads.gives[rank],
            heads.gives.iter().position(|gives| *gives) == Some(rank),
        );
        let Some(taken) = self.port.peek(rank)? else {
            return Ok(false);
        };
        let began = Instant::now();
        let record = taken.record;
        let is_last = !gives || self.chunk + 1 == chunks;
        let expected = Record {
            kind: RecordKind::Step as u8,
            exchange: self.exchange,
            step: self.step as u32,
            chunk: chunk as u32,
            flags: (u8::from(gives) * HAS_DATA)
                | (u8::from(is_last) * IS_LAST)
                | (record.flags & HAS_HASH),
            frame: 0,
            epoch: 0,
            ..record
        };
        if record != expected {
            return Err(wait.protocol(rank, || format!("expected {expected:?}, found {record:?}")));
        }
        if is_last {
            self.dropped[rank] = u64::from(record.dropped);
        }
        if !gives {
            let found = taken.take().len();
            if found != 0 {
                return Err(
                    wait.protocol(rank, || format!("{found} bytes in a record without data"))
                );
            }
            self.move_on();
            return Ok(true);
        }
        let (format, unit) =
            scaled(&record, *coding).map_err(|what| wait.protocol(rank, || what))?;
        let length = payload_len(format, elements.len(), record.hits as usize);
        if length != Some(taken.payload_len()) {
            let found = taken.payload_len();
            return Err(wait.protocol(rank, || {
                format!("payload of {found} bytes, expected {length:?}")
            }));
        }
        let x = match self.reduction {
            Reduction::Mean => canon(unit * heads.inverse),
            Reduction::Sum => unit,
        };
        let target = &mut self.target[elements.clone()];
        if is_first && self.apply == Apply::Add {
            target.fill(0.0);
        }
        let message = Message {
            format,
            hits: record.hits,
            elements: elements.len(),
            payload: taken.take(),
        };
        let applied = self.encoder.path().apply(&message, x, self.apply, target);
        let applied = applied.map_err(|error| wait.protocol(rank, || error.to_string()))?;
        self.report.parameters_not_finite += u64::from(applied.not_finite);
        self.report.decode_ns += nanoseconds(began);
        self.move_on();
        Ok(true)
    }
}

impl Blocked for Lockstep<'_> {
    fn blocked_by(&self) -> Option<usize> {
        Some(self.rank)
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
