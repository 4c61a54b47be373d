//! The second pass of a step: external updates, after the last chunk of all ranks, in one order everywhere.
//!
//! By rank, by number, by visit. An update's chunk is one record of hits, or as many dense ones as it has blocks.

use super::ExternalUpdate;
use crate::codec::{BLOCK, Chunk, Format, Record as Message, canon, visited};
use crate::exchange::onto::{NotApplied, Onto};
use crate::exchange::taking::{Taking, payload_of};
use crate::exchange::{Report, nanoseconds};
use crate::replica::Error;
use crate::replica::record::{Record, RecordKind};
use std::ops::Range;
use std::time::Instant;

/// The pass of one step.
pub(in crate::exchange) struct Pass<'a> {
    own: &'a [ExternalUpdate],
    /// Which of the own updates is published next.
    publishing: Place,
    /// Which of all ranks' updates is taken next.
    taking: Place,
    /// Whose that is.
    rank: usize,
    /// The record that is to be published next, once it is made.
    pending: Option<Record>,
    payload: Vec<u8>,
}

/// A place in the pass.
#[derive(Clone, Copy, Default)]
struct Place {
    update: u64,
    visit: u64,
    /// Of a dense chunk.
    piece: usize,
}

impl Place {
    /// The place after this record.
    fn after(self, chunks: u64, elements: usize, dense: bool) -> Place {
        if dense && (self.piece + 1) * BLOCK < elements {
            Place {
                piece: self.piece + 1,
                ..self
            }
        } else if self.visit + 1 < chunks {
            Place {
                visit: self.visit + 1,
                piece: 0,
                ..self
            }
        } else {
            Place {
                update: self.update + 1,
                ..Place::default()
            }
        }
    }

    /// How far that is from the step's first chunk, in visits.
    fn number(self, before: u64, chunks: u64) -> u64 {
        chunks + (before + self.update) * chunks + self.visit
    }
}

/// The elements of a chunk's record: all where it has hits, one block where it is dense.
fn piece_of(chunk: &Range<usize>, piece: usize, dense: bool) -> Range<usize> {
    if dense {
        let start = chunk.start + piece * BLOCK;
        start..(start + BLOCK).min(chunk.end)
    } else {
        chunk.clone()
    }
}

impl<'a> Pass<'a> {
    pub(in crate::exchange) fn new(own: &'a [ExternalUpdate]) -> Self {
        Self {
            own,
            publishing: Place::default(),
            taking: Place::default(),
            rank: 0,
            pending: None,
            payload: Vec::new(),
        }
    }

    /// How many updates of this rank follow.
    pub(in crate::exchange) fn announced(&self) -> u16 {
        self.own.len() as u16
    }

    /// How far in visits the next record to publish lies; `None` when all are out.
    pub(in crate::exchange) fn publishing(&self, taking: &Taking<'_>) -> Option<u64> {
        if self.publishing.update == self.own.len() as u64 {
            return None;
        }
        let chunks = taking.chunks();
        match &taking.heads {
            // Whether it follows at all is not known before all first records have come.
            None => Some(chunks),
            Some(heads) => {
                heads.first?;
                let before = heads.updates[..taking.port.shared.rank].iter();
                let before = before.map(|&updates| u64::from(updates)).sum();
                Some(self.publishing.number(before, chunks))
            }
        }
    }

    /// How far in visits the next record to take lies; `None` when all are in.
    pub(in crate::exchange) fn taking(&self, taking: &Taking<'_>) -> Option<u64> {
        let heads = taking.heads.as_ref()?;
        heads.first?;
        let all: u64 = heads
            .updates
            .iter()
            .map(|&updates| u64::from(updates))
            .sum();
        (self.taking.update < all).then(|| self.taking.number(0, taking.chunks()))
    }

    /// Whose record is taken next, once one has been sought.
    pub(in crate::exchange) fn blocked_by(&self) -> Option<usize> {
        (self.rank > 0).then_some(self.rank)
    }

    /// Publishes the next record if it fits now.
    pub(in crate::exchange) fn publish(&mut self, taking: &mut Taking<'_>) -> Result<bool, Error> {
        if taking.heads.is_none() {
            return Ok(false);
        }
        let Place {
            update,
            visit,
            piece,
        } = self.publishing;
        let update = &self.own[update as usize];
        let chunk = taking.chunk_at(visit);
        let elements = &taking.layout[chunk].elements;
        let record = match self.pending {
            Some(record) => record,
            None => {
                let start = Instant::now();
                self.payload.clear();
                let (format, hits, value) = update.chunk_record(elements, piece, &mut self.payload);
                taking.report.encode_ns += nanoseconds(start);
                Record {
                    chunk: chunk as u32,
                    frame: piece as u16,
                    format: format as u8,
                    hits,
                    hash: u64::from(value.to_bits()),
                    ..taking.stamp.record(RecordKind::External)
                }
            }
        };
        let fits = taking.port.publish(record, &self.payload)?;
        if fits {
            taking.report.bytes += (size_of::<Record>() + self.payload.len()) as u64;
            let dense =
                Format::try_from(record.format).is_ok_and(|format| format.dense().is_some());
            self.publishing = self
                .publishing
                .after(taking.chunks(), elements.len(), dense);
        }
        self.pending = if fits { None } else { Some(record) };
        Ok(fits)
    }

    /// Whose the next update to take is.
    fn owner(&self, updates: &[u16]) -> usize {
        let mut end = 0;
        let past = updates.iter().take_while(|&&of_rank| {
            end += u64::from(of_rank);
            end <= self.taking.update
        });
        past.count()
    }

    /// Takes the next record and applies it. False if it has not come.
    pub(in crate::exchange) fn take(&mut self, taking: &mut Taking<'_>) -> Result<bool, Error> {
        let Some(heads) = &taking.heads else {
            return Ok(false);
        };
        let (rank, inverse) = (self.owner(&heads.updates), heads.inverse);
        self.rank = rank;
        let Place { visit, piece, .. } = self.taking;
        let wait = taking.port.wait;
        let chunk = taking.chunk_at(visit);
        let elements = &taking.layout[chunk].elements;
        let expected = Record {
            chunk: chunk as u32,
            frame: piece as u16,
            ..taking.stamp.record(RecordKind::External)
        };
        let Some(taken) = taking.port.peek(rank)? else {
            return Ok(false);
        };
        let began = Instant::now();
        let record = taken.record;
        let expected = Record {
            kind: expected.kind,
            exchange: expected.exchange,
            step: expected.step,
            chunk: expected.chunk,
            frame: expected.frame,
            flags: 0,
            t: 0,
            v: 0,
            dropped: 0,
            ..record
        };
        if record != expected {
            return Err(wait.protocol(rank, || format!("expected {expected:?}, found {record:?}")));
        }
        let format = Format::try_from(record.format)
            .map_err(|error| wait.protocol(rank, || error.to_string()))?;
        let dense = format.dense().is_some();
        if piece > 0 && !dense {
            return Err(wait.protocol(rank, || {
                format!("a {format} record behind {piece} dense ones of its chunk")
            }));
        }
        let value = f32::from_bits(record.hash as u32);
        if record.hash > u64::from(u32::MAX) || !value.is_finite() {
            return Err(wait.protocol(rank, || {
                format!("an external update of value bits {:#x}", record.hash)
            }));
        }
        let of_piece = piece_of(elements, piece, dense);
        let message = Message {
            format,
            hits: record.hits,
            elements: of_piece.len(),
            payload: payload_of(taken, &wait, rank, format, of_piece.len())?,
        };
        let x = canon(canon(value) * inverse);
        let not_finite = taking.onto.apply(&message, x, of_piece.start);
        taking.report.parameters_not_finite +=
            not_finite.map_err(|error| error.ends(&wait, rank))?;
        self.taking = self.taking.after(taking.chunks(), elements.len(), dense);
        if self.taking.visit == 0 && self.taking.piece == 0 {
            taking.report.external_updates += 1;
        }
        taking.report.decode_ns += nanoseconds(began);
        Ok(true)
    }
}

/// Applies updates without any ring: those of a world of one, in this step and of these chunks.
pub(in crate::exchange) fn apply_here(
    updates: &[ExternalUpdate],
    (step, layout): (u64, &[Chunk]),
    onto: &mut Onto<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let began = Instant::now();
    let mut payload = Vec::new();
    for update in updates {
        for visit in 0..layout.len() {
            let chunk = &layout[visited(step, visit, layout.len())].elements;
            let mut place = Place::default();
            while place.update == 0 && place.visit == 0 {
                payload.clear();
                let (format, hits, value) = update.chunk_record(chunk, place.piece, &mut payload);
                let dense = format.dense().is_some();
                let elements = piece_of(chunk, place.piece, dense);
                let message = Message {
                    format,
                    hits,
                    elements: elements.len(),
                    payload: &payload,
                };
                let not_finite = onto.apply(&message, canon(value), elements.start);
                report.parameters_not_finite += not_finite.map_err(NotApplied::of_own)?;
                place = place.after(1, chunk.len(), dense);
            }
        }
        report.external_updates += 1;
    }
    report.decode_ns += nanoseconds(began);
    Ok(())
}
