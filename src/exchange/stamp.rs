//! What a step's records say in their headers.

use crate::codec::{Encoder, Message, Unit};
use crate::replica::record::{HAS_DATA, HAS_HASH, IS_LAST, Record, RecordKind};

/// What stands in each of a step's records.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    pub(super) exchange: u16,
    pub(super) step: u64,
    /// Hash of the parameters after the last checked step, if it has not been compared.
    pub(super) hash: Option<u64>,
}

impl Stamp {
    /// A record of this step, of any kind.
    pub(super) fn record(self, kind: RecordKind) -> Record {
        Record {
            exchange: self.exchange,
            step: self.step as u32,
            ..Record::new(kind)
        }
    }

    /// A rank's record of a chunk, without what it gives of it. `updates`: how many external updates follow; the first
    /// record says so.
    pub(super) fn of_chunk(self, chunk: usize, updates: u16, is_last: bool) -> Record {
        let hash = u8::from(self.hash.is_some()) * HAS_HASH;
        Record {
            chunk: chunk as u32,
            flags: hash | (u8::from(is_last) * IS_LAST),
            frame: updates,
            hash: self.hash.unwrap_or(0),
            ..self.record(RecordKind::Step)
        }
    }
}

/// The same record with a chunk that was just encoded.
pub(super) fn with_message(record: Record, message: &Message, encoder: &Encoder) -> Record {
    let (t, v) = message.unit.map_or((0, 0), Unit::halves);
    Record {
        flags: record.flags | HAS_DATA,
        format: message.format as u8,
        t,
        v,
        hits: message.hits,
        dropped: u32::try_from(encoder.stats().dropped).unwrap_or(u32::MAX),
        ..record
    }
}
