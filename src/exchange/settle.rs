//! Settling: everything that asynchronous steps have published is applied everywhere, and all replicas are made identical.
//!
//! An operation of all. Each rank publishes a marker behind its steps' records and applies everybody's records up to the
//! markers; then rank 0 publishes its parameters, which replace the others'; then each rank publishes how far it was from
//! them, and the hash of what it holds now. Whatever is agreed (flags, whether all are done, elements that were not finite,
//! the largest difference) follows from the markers of all ranks, and so is the same on all.

use super::asynchronous::Applying;
use super::config::Schedule;
use super::{EpochEnd, Exchange, compare_hashes, hash, nanoseconds};
use crate::codec::Parameters;
use crate::replica::port::{Accepts, Blocked, Port, run};
use crate::replica::progress::Lists;
use crate::replica::record::{HAS_HASH, IS_DONE, Record, RecordKind};
use crate::replica::shared::{Engine, Shared};
use crate::replica::{Error, Flags, PIECE};
use crate::shm::crash::{self, Point};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What a settle came to.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SettleReport {
    /// Which settle of the exchange, counted from 0.
    pub settle: u64,
    /// How many steps this replica has made since the one before.
    pub steps: u64,
    /// The largest difference of a parameter between rank 0 and any other replica, after all updates were applied
    /// everywhere and before they were made identical: what the order of additions in f32 has come to. Infinite where one
    /// was no number. The same on all replicas.
    pub largest_difference: f32,
    /// Whether all replicas have called [`Exchange::finish_epoch`]. The same on all replicas.
    pub all_done: bool,
    /// The flags that any replica had raised when it came to this settle. The same on all replicas.
    pub flags: Flags,
    /// Records of other replicas that this one applied.
    pub applied_records: u64,
    /// Hits and dense values that met a parameter of this replica that is not finite; it was left as it was.
    pub parameters_not_finite: u64,
    /// Nanoseconds in applying records.
    pub decode_ns: u64,
    /// Nanoseconds in everything else: waiting for the others, mostly.
    pub wait_ns: u64,
}

/// A rank's first marker: `dropped` counts its elements that were not finite.
const OPENING: u32 = 0;
/// A rank's second marker: `hits` holds the bits of the largest difference, `hash` the hash of its parameters.
const CLOSING: u32 = 1;
const ROOT: usize = 0;

/// One settle under way.
struct Settle<'a> {
    port: Port<'a>,
    applying: Applying<'a>,
    /// This rank's first marker.
    opening: Record,
    opening_out: bool,
    closing_out: bool,
    /// Pieces of the parameters, how many elements each, and how many are out and in.
    elements: usize,
    pieces: u64,
    piece: usize,
    /// A piece that lies in several parts.
    gathered: Vec<u8>,
    published: u64,
    taken: u64,
    /// The markers that have come, by rank.
    opened: Vec<Option<Record>>,
    closed: Vec<Option<Record>>,
    difference: f32,
}

impl Settle<'_> {
    fn all_opened(&self) -> bool {
        self.opened.iter().all(Option::is_some)
    }

    fn range(&self, piece: u64) -> Range<usize> {
        let start = piece as usize * self.piece;
        start..(start + self.piece).min(self.elements)
    }

    fn is_root(&self) -> bool {
        self.port.shared.rank == ROOT
    }

    /// A marker with what all of this settle's have in common.
    fn marker(&self, chunk: u32) -> Record {
        Record {
            exchange: self.applying.exchange,
            step: self.opening.step,
            chunk,
            ..Record::new(RecordKind::Marker)
        }
    }

    /// Takes one record of a rank whose first marker has not come; false if no such record has come.
    fn take_steps(&mut self) -> Result<bool, Error> {
        let wait = self.port.wait;
        for rank in 0..self.opened.len() {
            if self.opened[rank].is_some() {
                continue;
            }
            let Some(taken) = self.port.peek(rank)? else {
                continue;
            };
            if taken.record.kind == RecordKind::Asynchronous as u8 {
                self.applying.apply(&wait, rank, taken)?;
                return Ok(true);
            }
            self.opened[rank] = Some(self.take_marker(rank, OPENING)?);
            crash::point(Point::MarkerTaken);
            return Ok(true);
        }
        Ok(false)
    }

    /// Takes the marker that is the next record of `rank`.
    fn take_marker(&mut self, rank: usize, chunk: u32) -> Result<Record, Error> {
        let (wait, marker) = (self.port.wait, self.marker(chunk));
        let Some(taken) = self.port.peek(rank)? else {
            return Err(wait.protocol(rank, || "a record that was there is gone".into()));
        };
        let (record, length) = (taken.record, taken.payload_len());
        let expected = match chunk {
            OPENING => Record {
                flags: record.flags & IS_DONE,
                dropped: record.dropped,
                ..marker
            },
            _ => Record {
                flags: HAS_HASH,
                hits: record.hits,
                hash: record.hash,
                ..marker
            },
        };
        let expected = expected.framed_as(&record);
        if record != expected || length != 0 {
            return Err(wait.protocol(rank, || {
                format!(
                    "expected {expected:?} without payload, found {record:?} with {length} bytes"
                )
            }));
        }
        taken.give_back();
        Ok(record)
    }

    /// Takes a piece of rank 0's parameters.
    fn take_piece(&mut self) -> Result<bool, Error> {
        let (wait, range, own) = (self.port.wait, self.range(self.taken), self.is_root());
        let Some(taken) = self.port.peek(ROOT)? else {
            return Ok(false);
        };
        let expected = (
            RecordKind::Broadcast as u8,
            self.taken as u32,
            range.len() * size_of::<f32>(),
        );
        let found = (taken.record.kind, taken.record.chunk, taken.payload_len());
        if found != expected {
            return Err(wait.protocol(ROOT, || {
                format!("expected kind, piece and bytes {expected:?}, found {found:?}")
            }));
        }
        if own {
            taken.give_back();
        } else {
            let (mut values, mut difference) = (taken.take(), self.difference);
            self.applying.parameters.each(range, &mut |part| {
                let (now, rest) = values.split_at(size_of_val(part));
                values = rest;
                difference = difference.max(replace(part, now));
            });
            self.difference = difference;
        }
        self.taken += 1;
        Ok(true)
    }

    fn hashes(&self) -> Vec<u64> {
        let records = self.closed.iter().flatten();
        records.map(|record| record.hash).collect()
    }

    /// A peer that saw replicas differ has ended the run, maybe before this rank had looked: all second markers were out
    /// by then, so that it can see the same.
    fn explain(&mut self, step: u64, error: Error) -> Error {
        if !matches!(&error, Error::Diverged { hashes, .. } if hashes.is_empty()) {
            return error;
        }
        while self.taking().is_some() {
            match self.take() {
                Ok(true) => {}
                _ => return error,
            }
        }
        match compare_hashes(&self.port.wait, step, self.hashes()) {
            Err(seen) => seen,
            Ok(()) => error,
        }
    }
}

/// Puts f32 values, little-endian, in the place of the parameters; the largest difference.
fn replace(parameters: &mut [f32], values: &[u8]) -> f32 {
    let mut largest = 0.0_f32;
    let (values, _) = values.as_chunks::<4>();
    for (parameter, value) in parameters.iter_mut().zip(values) {
        let value = f32::from_le_bytes(*value);
        if value.to_bits() != parameter.to_bits() {
            let difference = (value - *parameter).abs();
            largest = largest.max(if difference.is_nan() {
                f32::INFINITY
            } else {
                difference
            });
            *parameter = value;
        }
    }
    largest
}

impl Lists for Settle<'_> {
    type Error = Error;

    // Items 0: first markers; 1 to `pieces`: the parameters; then second markers. Each depends on takes of lower items
    // only.
    fn publishing(&self) -> Option<u64> {
        if !self.opening_out {
            return Some(0);
        }
        if !self.all_opened() {
            return None;
        }
        if self.is_root() && self.published < self.pieces {
            return Some(1 + self.published);
        }
        (self.taken == self.pieces && !self.closing_out).then_some(1 + self.pieces)
    }

    fn taking(&self) -> Option<u64> {
        if !self.all_opened() {
            Some(0)
        } else if self.taken < self.pieces {
            Some(1 + self.taken)
        } else {
            let all = self.closed.iter().all(Option::is_some);
            (!all).then_some(1 + self.pieces)
        }
    }

    fn publish(&mut self) -> Result<bool, Error> {
        if !self.opening_out {
            self.opening_out = self.port.publish(self.opening, &[])?;
            return Ok(self.opening_out);
        }
        if self.is_root() && self.published < self.pieces {
            let range = self.range(self.published);
            let record = Record {
                chunk: self.published as u32,
                ..Record::new(RecordKind::Broadcast)
            };
            let gathered = &mut self.gathered;
            gathered.clear();
            self.applying.parameters.each(range, &mut |part| {
                gathered.extend_from_slice(bytemuck::cast_slice(part));
            });
            let fits = self.port.publish(record, gathered)?;
            self.published += u64::from(fits);
            return Ok(fits);
        }
        if !self.port.fits(0)? {
            return Ok(false);
        }
        let record = Record {
            flags: HAS_HASH,
            hits: self.difference.to_bits(),
            hash: hash::of_parts(self.applying.parameters),
            ..self.marker(CLOSING)
        };
        self.closing_out = self.port.publish(record, &[])?;
        Ok(self.closing_out)
    }

    fn take(&mut self) -> Result<bool, Error> {
        if !self.all_opened() {
            return self.take_steps();
        }
        if self.taken < self.pieces {
            return self.take_piece();
        }
        for rank in 0..self.closed.len() {
            if self.closed[rank].is_none() && self.port.peek(rank)?.is_some() {
                self.closed[rank] = Some(self.take_marker(rank, CLOSING)?);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Blocked for Settle<'_> {
    fn blocked_by(&self) -> Option<usize> {
        let missing = |markers: &[Option<Record>]| markers.iter().position(Option::is_none);
        match missing(&self.opened) {
            Some(rank) => Some(rank),
            None if self.taken < self.pieces => Some(ROOT),
            None => missing(&self.closed),
        }
    }
}

impl Exchange {
    /// Makes all replicas of an asynchronous exchange identical: everything that anybody has published is applied
    /// everywhere, then rank 0's parameters become everybody's. What is still in residuals stays there. Blocking; other
    /// replicas come to it by calling it too, or by themselves when they have made
    /// [`settle_every`](super::Asynchronous::settle_every) steps, so that this call may be one that another replica's step
    /// makes.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Invalid`] for a lockstep exchange, [`Error::Unsettled`] while another exchange must
    /// settle first (local: nothing happened); [`Error::NonFinite`] (agreed: the settle happened, and steps since the last
    /// one had left such elements out); [`Error::Diverged`] and whatever else ended the run.
    pub fn settle<P: Parameters + ?Sized>(
        &mut self,
        parameters: &mut P,
    ) -> Result<SettleReport, Error> {
        self.check_length("parameters", parameters.elements())?;
        let Schedule::Asynchronous(_) = self.schedule else {
            return Err(Error::Invalid {
                what: "a settle",
                expected: "an asynchronous exchange".into(),
                found: self.schedule.to_string(),
            });
        };
        let mut parameters = parameters;
        self.check_vector("parameters", &parameters)?;
        self.submit_before()?;
        let shared = Arc::clone(&self.shared);
        self.staged(&mut parameters, true, |exchange, parameters| {
            let engine = &mut *shared.engine()?;
            exchange.settle_with(&shared, engine, parameters, false)
        })
    }

    /// [`finish_epoch`](Self::finish_epoch) of an asynchronous exchange: settles, as often as the others do, until all
    /// are done.
    pub(super) fn finish_epoch_asynchronously(
        &mut self,
        parameters: &mut dyn Parameters,
    ) -> Result<EpochEnd, Error> {
        self.check_length("parameters", parameters.elements())?;
        self.check_vector("parameters", parameters)?;
        self.submit_before()?;
        self.staged(parameters, true, Self::settle_until_the_end)
    }

    fn settle_until_the_end(&mut self, parameters: &mut dyn Parameters) -> Result<EpochEnd, Error> {
        let shared = Arc::clone(&self.shared);
        // Held between settles too, so that this rank is not taken for one that steps.
        let engine = &mut *shared.engine()?;
        let missed = std::mem::take(&mut self.missed);
        if !missed.is_empty() {
            return Ok(EpochEnd::Interrupted(missed));
        }
        loop {
            let before = Flags::from_bits(engine.agreed);
            let settled = self.settle_with(&shared, engine, parameters, true);
            if let Err(Error::NonFinite { .. }) = settled {
                self.missed = Flags::from_bits(engine.agreed).without(before);
            }
            let report = settled?;
            let flags = report.flags.without(before);
            if report.all_done {
                return Ok(EpochEnd::Ended);
            }
            if !flags.is_empty() {
                return Ok(EpochEnd::Interrupted(flags));
            }
        }
    }

    pub(super) fn settle_with(
        &mut self,
        shared: &Shared,
        engine: &mut Engine,
        parameters: &mut dyn Parameters,
        done: bool,
    ) -> Result<SettleReport, Error> {
        let began = Instant::now();
        let operation = self.settle_operation();
        let (settle, dropped) = (self.since_settle.settles, self.since_settle.dropped);
        let wait = shared.enter(engine, operation)?;
        let steps = engine.steps;
        let layout = self.encoder.layout();
        let scale = (self.reduction, shared.world_size);
        let identity = operation.identity();
        let port = Port::accepting(Accepts::Settle, shared, engine, wait, identity);
        let piece = port.max_payload().min(PIECE) / size_of::<f32>();
        let opening = Record {
            exchange: self.index,
            step: settle as u32,
            chunk: OPENING,
            flags: if done { IS_DONE } else { 0 },
            dropped: u32::try_from(dropped).unwrap_or(u32::MAX),
            ..Record::new(RecordKind::Marker)
        };
        let mut lists = Settle {
            port,
            elements: self.length,
            pieces: self.length.div_ceil(piece) as u64,
            piece,
            gathered: Vec::new(),
            published: 0,
            taken: 0,
            applying: Applying::new(self.index, self.encoder.path(), &layout, scale, parameters),
            opening,
            opening_out: false,
            closing_out: false,
            opened: vec![None; shared.world_size],
            closed: vec![None; shared.world_size],
            difference: 0.0,
        };
        if let Err(error) = run(&wait, &mut lists, u64::MAX) {
            return Err(lists.explain(self.step, error));
        }
        compare_hashes(&wait, self.step, lists.hashes())?;
        let markers = || lists.opened.iter().flatten();
        let differences = lists.closed.iter().flatten();
        let differences = differences.map(|record| f32::from_bits(record.hits));
        let decode_ns = lists.applying.decode_ns;
        let report = SettleReport {
            settle,
            steps,
            largest_difference: differences.fold(0.0, f32::max),
            all_done: markers().all(|marker| marker.flags & IS_DONE != 0),
            flags: Flags::from_bits(markers().fold(0, |flags, marker| flags | marker.agreement)),
            applied_records: lists.applying.records,
            parameters_not_finite: lists.applying.not_finite,
            decode_ns,
            wait_ns: nanoseconds(began).saturating_sub(decode_ns),
        };
        let counts: Vec<u64> = markers().map(|marker| marker.dropped.into()).collect();

        engine.agree_on(report.flags.bits());
        engine.steps = 0;
        engine.unsettled = None;
        self.since_settle.settles += 1;
        self.since_settle.dropped = 0;
        match counts.iter().position(|count| *count > 0) {
            None => Ok(report),
            Some(rank) => Err(Error::NonFinite {
                first: (rank, counts[rank]),
                total: counts.iter().sum(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn the_largest_difference_is_found_and_what_is_no_number_counts_as_infinite() {
        let bytes =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let mut parameters = [1.0, -2.0, 0.5];
        assert_eq!(replace(&mut parameters, &bytes(&[1.25, -2.0, 0.0])), 0.5);
        assert_eq!(parameters, [1.25, -2.0, 0.0]);
        assert_eq!(replace(&mut parameters, &bytes(&[1.25, -2.0, 0.0])), 0.0);
        let mut parameters = [f32::INFINITY, f32::NAN];
        let same = bytes(&parameters);
        assert_eq!(replace(&mut parameters, &same), 0.0, "the same bits");
        assert_eq!(
            replace(&mut parameters, &bytes(&[f32::INFINITY, 1.0])),
            f32::INFINITY
        );
        assert_eq!(parameters, [f32::INFINITY, 1.0]);
    }
}
