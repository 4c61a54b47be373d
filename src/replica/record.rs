//! Records: the names that an operation gives to the 64 bytes in front of a frame.

use crate::shm::frame::Header;
use bytemuck::{Pod, Zeroable};

/// What a frame carries. 0 is the ring's own padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// A chunk of a step, or its absence.
    Step = 1,
    /// A piece of a broadcast vector.
    Broadcast = 2,
    /// A piece of what a rank gives to an all_gather.
    Gather = 3,
    /// A chunk of an external update.
    External = 4,
    /// A rank's values of a chunk that is reduced.
    Reduce = 5,
    /// A rank's reduced slice of a chunk.
    Reduced = 6,
    /// A chunk of an asynchronous step. Its identity is that of the settle that comes after it.
    Asynchronous = 7,
    /// The begin (chunk 0) or the end (chunk 1) of a rank's part of a settle. `hits` holds the bits of the largest
    /// difference that the rank has seen, in the second one.
    Marker = 8,
}

/// The header of a frame. Offsets in bytes; little-endian. The ring fills in `magic`, `version`, `length` and `crc`.
///
/// ```text
///  0 magic u16      2 version u8     3 kind u8    4 flags u8      5 agreement u8   6 rank u8    7 format u8
///  8 exchange u16  10 t u16         12 v u16     14 frame u16
/// 16 operation u64
/// 24 identity u32  28 epoch u32 (of a step; 0 outside of epochs, else its number and 1)
/// 32 step u32      36 chunk u32
/// 40 parameter hash u64 (external updates: the value's bits; other kinds: record length)
/// 48 frame length u32  52 hits u32
/// 56 dropped u32   60 crc32c u32
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) magic: u16,
    pub(crate) version: u8,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) agreement: u8,
    pub(crate) rank: u8,
    pub(crate) format: u8,
    pub(crate) exchange: u16,
    pub(crate) t: u16,
    pub(crate) v: u16,
    pub(crate) frame: u16,
    pub(crate) operation: u64,
    pub(crate) identity: u32,
    pub(crate) epoch: u32,
    pub(crate) step: u32,
    pub(crate) chunk: u32,
    pub(crate) hash: u64,
    pub(crate) length: u32,
    pub(crate) hits: u32,
    pub(crate) dropped: u32,
    pub(crate) crc: u32,
}
const _: () = assert!(size_of::<Record>() == size_of::<Header>());
const _: () = assert!(std::mem::offset_of!(Record, operation) == 16);
const _: () = assert!(std::mem::offset_of!(Record, length) == 48);
const _: () = assert!(std::mem::offset_of!(Record, crc) == 60);

impl Record {
    /// A record of this kind, everything else 0.
    pub(crate) fn new(kind: RecordKind) -> Self {
        Self {
            kind: kind as u8,
            ..Self::zeroed()
        }
    }

    /// The same record with what the ring and the port have compared already, as it was found: what is left to compare is
    /// what the operation gives a meaning to.
    pub(crate) fn framed_as(self, found: &Self) -> Self {
        Self {
            magic: found.magic,
            version: found.version,
            agreement: found.agreement,
            rank: found.rank,
            operation: found.operation,
            identity: found.identity,
            epoch: found.epoch,
            length: found.length,
            crc: found.crc,
            ..self
        }
    }

    /// For the ring, which fills in magic, version, length and checksum.
    pub(crate) fn into_header(self) -> Header {
        bytemuck::cast(self)
    }

    /// From a header that the ring has checked.
    pub(crate) fn from_header(header: &Header) -> Self {
        bytemuck::cast(*header)
    }
}

/// The rank gave data.
pub(crate) const HAS_DATA: u8 = 1;
/// The field `hash` holds the hash of the parameters after the last checked step.
pub(crate) const HAS_HASH: u8 = 2;
/// The rank's last record of the step: `dropped` is the step's count.
pub(crate) const IS_LAST: u8 = 4;
/// The rank has no more data in this epoch.
pub(crate) const IS_DONE: u8 = 8;
