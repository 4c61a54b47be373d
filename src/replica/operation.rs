//! Operations: what all replicas do together, how each is numbered and named, and what a rank says it has come for.

use crate::shm::segment::{RankLines, Slot};
use crate::shm::sync::{Ordering, fence};
use std::fmt;

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Join = 1,
    Barrier = 2,
    Broadcast = 3,
    AllGather = 4,
    AllReduce = 5,
    NewExchange = 6,
    Step = 7,
    StepSum = 8,
    Check = 9,
    Flush = 10,
    Streamed = 14,
    StreamedSum = 15,
    FlushSum = 16,
    Uncompressed = 12,
    UncompressedSum = 13,
    Settle = 11,
    /// No operation: what a replica waits for between two of them. Never announced.
    AsynchronousStep = 17,
    Resume = 18,
    Checkpoint = 19,
    Synchronize = 20,
    Loop = 21,
}

impl Kind {
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Join,
            2 => Self::Barrier,
            3 => Self::Broadcast,
            4 => Self::AllGather,
            5 => Self::AllReduce,
            6 => Self::NewExchange,
            7 => Self::Step,
            8 => Self::StepSum,
            9 => Self::Check,
            10 => Self::Flush,
            14 => Self::Streamed,
            15 => Self::StreamedSum,
            16 => Self::FlushSum,
            12 => Self::Uncompressed,
            13 => Self::UncompressedSum,
            11 => Self::Settle,
            17 => Self::AsynchronousStep,
            18 => Self::Resume,
            19 => Self::Checkpoint,
            20 => Self::Synchronize,
            21 => Self::Loop,
            _ => return None,
        })
    }

    /// Whether a program does it before it trains: finding its checkpoint, making exchanges, giving all the same parameters.
    pub(crate) fn prepares(self) -> bool {
        matches!(self, Self::Resume | Self::NewExchange | Self::Broadcast)
    }

    /// Whether ranks come to it by the barrier's words, which tell all of them when they came for different things.
    pub(crate) fn is_by_barrier(self) -> bool {
        matches!(self, Self::Barrier | Self::Synchronize | Self::Loop)
    }
}

/// What a replica has come for: the kind, which exchange, and the numbers that must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub(crate) kind: Kind,
    /// Which exchange, 0 where none is meant; the kind of value for `all_reduce`.
    pub(crate) subject: u16,
    /// Elements, bytes or nothing, by kind.
    pub(crate) length: u64,
    /// Root, reduction, epoch or nothing, by kind.
    pub(crate) extra: u64,
}

impl Operation {
    pub(crate) const fn new(kind: Kind, subject: u16, length: u64, extra: u64) -> Self {
        Self {
            kind,
            subject,
            length,
            extra,
        }
    }

    /// The low 32 bits of the epoch that its records carry: of a step 0 outside of epochs, else the epoch's number and 1;
    /// 0 of everything else.
    pub(crate) fn epoch(&self) -> u32 {
        match self.kind {
            Kind::Step
            | Kind::StepSum
            | Kind::Flush
            | Kind::FlushSum
            | Kind::Streamed
            | Kind::StreamedSum
            | Kind::Uncompressed
            | Kind::UncompressedSum => self.extra as u32,
            _ => 0,
        }
    }

    /// What must be equal on all ranks, in 32 bits.
    pub(crate) fn identity(&self) -> u32 {
        let words = [
            self.kind as u64 | u64::from(self.subject) << 8,
            self.length,
            self.extra,
        ];
        let hash = words.iter().fold(0x9E37_79B9_7F4A_7C15_u64, |hash, word| {
            let mixed = (hash ^ word).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
            (mixed ^ mixed >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53)
        });
        (hash >> 32) as u32
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            subject,
            length,
            extra,
        } = *self;
        let step = match kind {
            Kind::Join => return write!(f, "join"),
            Kind::Barrier => return write!(f, "barrier"),
            Kind::Broadcast => {
                return write!(f, "broadcast of {length} elements from rank {extra}");
            }
            Kind::AllGather => return write!(f, "all_gather"),
            Kind::AllReduce => {
                let value = value_name(subject, extra);
                return write!(f, "all_reduce of {length} values ({value})");
            }
            Kind::NewExchange => return write!(f, "making exchange {subject}"),
            Kind::Resume => return write!(f, "finding the checkpoint to resume from"),
            Kind::Checkpoint => return write!(f, "checkpoint"),
            Kind::Synchronize => {
                return write!(f, "synchronization of accumulator {length:016x}");
            }
            Kind::Loop => return write!(f, "a data loop"),
            Kind::Settle => {
                return write!(
                    f,
                    "settle number {extra} of exchange {subject} ({length} elements)"
                );
            }
            Kind::Check => return write!(f, "check of exchange {subject} ({length} elements)"),
            Kind::AsynchronousStep => {
                return write!(
                    f,
                    "asynchronous step of exchange {subject} ({length} elements)"
                );
            }
            Kind::Step => "step",
            Kind::StepSum => "all_reduce",
            Kind::Flush => "flush",
            Kind::FlushSum => "flush onto a sum",
            Kind::Streamed => "streamed step",
            Kind::StreamedSum => "streamed all_reduce",
            Kind::Uncompressed => "uncompressed step",
            Kind::UncompressedSum => "uncompressed all_reduce",
        };
        write!(f, "{step} of exchange {subject} ({length} elements)")?;
        match extra.checked_sub(1) {
            Some(epoch) => write!(f, " in epoch {epoch}"),
            None => Ok(()),
        }
    }
}

fn value_name(of_type: u16, op: u64) -> String {
    let of_type = ["f32", "f64", "i32", "i64", "u32", "u64"]
        .get(usize::from(of_type))
        .unwrap_or(&"?");
    let op = usize::try_from(op)
        .ok()
        .and_then(|op| ["sum", "min", "max", "and", "or"].get(op).copied());
    format!("{} of {of_type}", op.unwrap_or("?"))
}

/// Where [`digest`] begins.
pub(crate) const NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

/// Bytes behind those of another digest, in 64 bits: what ranks compare in place of texts (FNV-1a, and a last mix).
pub(crate) fn digest(before: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    let hash = bytes.into_iter().fold(before, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

const SLOTS: u64 = 64;

fn slot(lines: &RankLines, number: u64) -> &Slot {
    &lines.slots[(number % SLOTS) as usize]
}

/// Writes what this rank has come for into its next slot: the words Relaxed, the number last with Release.
pub(crate) fn announce(lines: &RankLines, number: u64, operation: &Operation, flags: u8) {
    let slot = slot(lines, number);
    let packed = u64::from(operation.identity())
        | (operation.kind as u64) << 32
        | u64::from(flags) << 40
        | u64::from(operation.subject) << 48;
    slot.identity.store(packed, Ordering::Relaxed);
    slot.detail.store(operation.length, Ordering::Relaxed);
    slot.extra.store(operation.extra, Ordering::Relaxed);
    // Publishes the words above to whoever reads this number with Acquire.
    slot.number.store(number, Ordering::Release);
}

/// What a slot says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) identity: u32,
    pub(crate) flags: u8,
    /// `None` where the slot names a kind that does not exist.
    pub(crate) operation: Option<Operation>,
}

/// Whether this rank has come for operation `number`, or a later one that overwrote it.
pub(crate) fn has_come(lines: &RankLines, number: u64) -> bool {
    slot(lines, number).number.load(Ordering::Acquire) >= number
}

/// What this rank came for as operation `number`, if it has come and the slot still says so.
pub(crate) fn announced(lines: &RankLines, number: u64) -> Option<Announced> {
    let slot = slot(lines, number);
    if slot.number.load(Ordering::Acquire) != number {
        return None;
    }
    let packed = slot.identity.load(Ordering::Relaxed);
    let length = slot.detail.load(Ordering::Relaxed);
    let extra = slot.extra.load(Ordering::Relaxed);
    // The words must have been read before the number is read again.
    fence(Ordering::Acquire);
    if slot.number.load(Ordering::Relaxed) != number {
        return None;
    }
    let operation = Kind::from_u8((packed >> 32) as u8)
        .map(|kind| Operation::new(kind, (packed >> 48) as u16, length, extra));
    Some(Announced {
        identity: packed as u32,
        flags: (packed >> 40) as u8,
        operation,
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, Operation};
    use std::collections::HashSet;

    #[test]
    fn whatever_must_agree_changes_the_identity() {
        let mut seen = HashSet::new();
        let kinds = || (0..=255).filter_map(Kind::from_u8);
        for kind in kinds() {
            for subject in [0, 1, 255, 256, u16::MAX] {
                for length in [0, 1, 2, 1 << 32, u64::MAX] {
                    for extra in [0, 1, 2, 1 << 40] {
                        seen.insert(Operation::new(kind, subject, length, extra).identity());
                    }
                }
            }
        }
        assert_eq!(seen.len(), kinds().count() * 5 * 5 * 4);
    }
}
