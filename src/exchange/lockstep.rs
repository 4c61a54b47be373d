//! The lockstep schedule: a pipeline over chunks without any barrier. Every replica takes the records of ranks 0, 1, ..
//! N-1 of each chunk in that order and applies each by itself, so that all end with the same bits.

use super::{Reduction, Report, codec_error, compare_hashes, nanoseconds};
use crate::codec::{
    Apply, Budget, CHUNK, ChunkOptions, Format, Path, Record as Message, Unit, canon, payload_len,
};
use crate::replica::Error;
use crate::replica::port::{Blocked, Port};
use crate::replica::progress::Lists;
use crate::replica::record::{HAS_DATA, HAS_HASH, IS_LAST, Record, RecordKind};
use std::ops::Range;
use std::time::Instant;

/// This replica's update.
pub(super) struct Update<'a> {
    pub(super) values: &'a [f32],
    pub(super) unit: Unit,
    /// How many hits the limit still allows; `None` without a limit.
    pub(super) left: Option<u64>,
}

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
    pub(super) path: Path,
    pub(super) step: u64,
    /// Hash of the parameters after the last checked step, if it has not been compared.
    pub(super) hash: Option<u64>,
    /// The chunk that is visited first.
    pub(super) first: u64,
    pub(super) chunks: u64,
    pub(super) update: Option<Update<'a>>,
    pub(super) residual: &'a mut [f32],
    /// Payload of the record that is to be published next.
    pub(super) encoded: &'a mut Vec<u8>,
    /// That record, once its chunk is encoded.
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
        (self.first + visit) % self.chunks
    }

    fn range(&self, chunk: u64) -> Range<usize> {
        let start = chunk as usize * CHUNK;
        start..(start + CHUNK).min(self.target.len())
    }

    /// How many records a rank publishes.
    fn records(&self, gives: bool) -> u64 {
        if gives { self.chunks } else { 1 }
    }

    /// Encodes the next chunk, or says that there is no data.
    fn encode(&mut self) -> Result<Record, Error> {
        self.encoded.clear();
        let record = Record {
            exchange: self.exchange,
            step: self.step as u32,
            flags: if self.hash.is_some() { HAS_HASH } else { 0 },
            hash: self.hash.unwrap_or(0),
            ..Record::new(RecordKind::Step)
        };
        let (chunk, is_last) = (
            self.chunk_at(self.published),
            self.published + 1 == self.chunks,
        );
        let range = self.range(chunk);
        let Some(update) = &mut self.update else {
            return Ok(Record {
                flags: record.flags | IS_LAST,
                chunk: chunk as u32,
                ..record
            });
        };
        let start = Instant::now();
        let length = range.len();
        let budget = update.left.map(|left| Budget {
            max_hits: usize::try_from(left).unwrap_or(usize::MAX),
            start: ((self.step as u32).wrapping_mul(0x9E37_79B1) as usize) % length,
        });
        let options = ChunkOptions { clip: None, budget };
        let values = &update.values[range.clone()];
        let encoded = self.path.encode(
            &mut self.residual[range],
            values,
            update.unit,
            &options,
            self.encoded,
        );
        let encoded = encoded.map_err(codec_error)?;
        if let Some(left) = &mut update.left {
            *left = left.saturating_sub(u64::from(encoded.hits));
        }
        let report = &mut self.report;
        report.threshold = update.unit.t();
        report.unit = update.unit.v();
        report.hits += u64::from(encoded.hits);
        report.dropped += u64::from(encoded.dropped);
        report.residual_max = report.residual_max.max(encoded.residual_max);
        report.residual_l1 += encoded.residual_l1;
        match encoded.format {
            Format::Sparse => report.sparse_chunks += 1,
            Format::Bitmap => report.bitmap_chunks += 1,
            Format::DenseF32 | Format::DenseBf16 => {}
        }
        report.encode_ns += nanoseconds(start);
        let (t, v) = update.unit.halves();
        Ok(Record {
            flags: record.flags | HAS_DATA | if is_last { IS_LAST } else { 0 },
            format: encoded.format as u8,
            t,
            v,
            chunk: chunk as u32,
            hits: encoded.hits,
            dropped: u32::try_from(report.dropped).unwrap_or(u32::MAX),
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
            let last = self.chunk >= self.chunks || self.chunk > 0 && self.report.contributors == 0;
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
        let fits = self.port.publish(record, self.encoded)?;
        if fits {
            self.published += 1;
            self.report.bytes += (size_of::<Record>() + self.encoded.len()) as u64;
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
        let (visit, chunk) = (self.chunk, self.chunk_at(self.chunk));
        let range = self.range(chunk);
        let (gives, is_first) = (
            heads.gives[rank],
            heads.gives.iter().position(|gives| *gives) == Some(rank),
        );
        let Some(taken) = self.port.peek(rank)? else {
            return Ok(false);
        };
        let began = Instant::now();
        let record = taken.record;
        let is_last = !gives || visit + 1 == self.chunks;
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
        let format = Format::try_from(record.format).map_err(|_| {
            wait.protocol(rank, || {
                format!("format {}, expected 1 or 2", record.format)
            })
        })?;
        let unit = Unit::from_halves(record.t, record.v)
            .map_err(|error| wait.protocol(rank, || error.to_string()))?;
        let length = payload_len(format, range.len(), record.hits as usize);
        if length != Some(taken.payload_len()) {
            let found = taken.payload_len();
            return Err(wait.protocol(rank, || {
                format!("payload of {found} bytes, expected {length:?}")
            }));
        }
        let x = match self.reduction {
            Reduction::Mean => canon(unit.v() * heads.inverse),
            Reduction::Sum => unit.v(),
        };
        let target = &mut self.target[range.clone()];
        if is_first && self.apply == Apply::Add {
            target.fill(0.0);
        }
        let message = Message {
            format,
            hits: record.hits,
            elements: range.len(),
            payload: taken.take(),
        };
        let applied = self.path.apply(&message, x, self.apply, target);
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
