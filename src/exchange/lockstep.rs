//! The lockstep schedule: a pipeline over chunks without any barrier. Every replica takes the records of ranks 0, 1, ..
//! N-1 of each chunk in that order and applies each by itself.

use super::external::Pass;
use super::stamp::with_message;
use super::taking::Taking;
use super::{codec_error, nanoseconds};
use crate::codec::{Encoder, Format, Given};
use crate::replica::Error;
use crate::replica::port::Blocked;
use crate::replica::progress::Lists;
use crate::replica::record::{HAS_DATA, Record};
use std::time::Instant;

/// What this rank gives.
pub(super) enum Giving<'a> {
    /// None: its data has run out.
    Nothing,
    /// An update, with which the encoder has begun the step.
    Update(&'a mut Encoder, Given<'a>),
    /// The whole residual, in dense records.
    Residual(&'a mut Encoder, Vec<u8>),
}

/// One step under way.
pub(super) struct Lockstep<'a> {
    pub(super) taking: Taking<'a>,
    pub(super) giving: Giving<'a>,
    pub(super) pass: Pass<'a>,
    /// The record that is to be published next, once its chunk is encoded.
    pending: Option<Record>,
    /// How many of this rank's records are out.
    published: u64,
    /// The next record to take: how many chunks are done, and whose record of the next one.
    chunk: u64,
    rank: usize,
    /// Elements of a residual sent whole that were not finite.
    dropped: u64,
    /// Whose first record has not come.
    missing: Option<usize>,
}

impl<'a> Lockstep<'a> {
    pub(super) fn new(taking: Taking<'a>, giving: Giving<'a>, pass: Pass<'a>) -> Self {
        Self {
            taking,
            giving,
            pass,
            pending: None,
            published: 0,
            chunk: 0,
            rank: 0,
            dropped: 0,
            missing: None,
        }
    }

    /// How many records a rank publishes.
    fn records(&self, gives: bool) -> u64 {
        if gives { self.taking.chunks() } else { 1 }
    }

    fn gives(&self) -> bool {
        !matches!(self.giving, Giving::Nothing)
    }

    /// Encodes the next chunk, or says that there is no data.
    fn encode(&mut self) -> Result<Record, Error> {
        let chunk = self.taking.chunk_at(self.published);
        let updates = match self.published {
            0 => self.pass.announced(),
            _ => 0,
        };
        let is_last = self.published + 1 == self.records(self.gives());
        let record = self.taking.stamp.of_chunk(chunk, updates, is_last);
        let start = Instant::now();
        let record = match &mut self.giving {
            Giving::Nothing => record,
            Giving::Update(encoder, update) => {
                let visit = self.published as usize;
                let message = encoder.encode(visit, *update).map_err(codec_error)?;
                with_message(record, &message, encoder)
            }
            Giving::Residual(encoder, payload) => {
                let elements = self.taking.layout[chunk].elements.clone();
                payload.clear();
                self.dropped += encoder.take_whole(elements, payload).map_err(codec_error)?;
                self.taking.report.dense_chunks += 1;
                Record {
                    flags: record.flags | HAS_DATA,
                    format: Format::DenseF32 as u8,
                    dropped: u32::try_from(self.dropped).unwrap_or(u32::MAX),
                    ..record
                }
            }
        };
        self.taking.report.encode_ns += nanoseconds(start);
        Ok(record)
    }

    /// Moves on to the next record that there is.
    fn move_on(&mut self) {
        let Some(heads) = &self.taking.heads else {
            return;
        };
        let chunks = self.taking.chunks();
        loop {
            self.rank += 1;
            if self.rank == heads.gives.len() {
                (self.chunk, self.rank) = (self.chunk + 1, 0);
            }
            let last = self.chunk >= chunks || self.chunk > 0 && heads.first.is_none();
            if last || self.chunk == 0 || heads.gives[self.rank] {
                return;
            }
        }
    }
}

impl Lists for Lockstep<'_> {
    type Error = Error;

    fn publishing(&self) -> Option<u64> {
        if self.published < self.records(self.gives()) {
            return Some(self.published);
        }
        self.pass.publishing(&self.taking)
    }

    fn taking(&self) -> Option<u64> {
        let chunks = match &self.taking.heads {
            Some(heads) => self.records(heads.first.is_some()),
            None => 1,
        };
        if self.chunk < chunks {
            return Some(self.chunk);
        }
        self.pass.taking(&self.taking)
    }

    fn publish(&mut self) -> Result<bool, Error> {
        if self.published == self.records(self.gives()) {
            return self.pass.publish(&mut self.taking);
        }
        let record = match self.pending {
            Some(record) => record,
            None => self.encode()?,
        };
        let payload = match &self.giving {
            Giving::Nothing => &[],
            Giving::Update(encoder, _) => encoder.payload(),
            Giving::Residual(_, payload) => payload.as_slice(),
        };
        let fits = self.taking.port.publish(record, payload)?;
        if fits {
            self.published += 1;
            self.taking.report.bytes += (size_of::<Record>() + payload.len()) as u64;
        }
        self.pending = if fits { None } else { Some(record) };
        Ok(fits)
    }

    fn take(&mut self) -> Result<bool, Error> {
        self.missing = self.taking.look_at_heads()?;
        let Some(heads) = &self.taking.heads else {
            return Ok(false);
        };
        if self.chunk == self.records(heads.first.is_some()) {
            return self.pass.take(&mut self.taking);
        }
        let rank = self.rank;
        let came = if heads.gives[rank] {
            let ends = (self.chunk == 0, self.chunk + 1 == self.taking.chunks());
            let chunk = self.taking.chunk_at(self.chunk);
            self.taking.take_chunk(rank, chunk, ends)?
        } else {
            self.taking.take_nothing(rank)?
        };
        if came {
            self.move_on();
        }
        Ok(came)
    }
}

impl Blocked for Lockstep<'_> {
    fn blocked_by(&self) -> Option<usize> {
        self.missing.or(self.pass.blocked_by()).or(Some(self.rank))
    }
}
