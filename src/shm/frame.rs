//! The 64 bytes in front of everything that a ring carries.

use bytemuck::{Pod, Zeroable};

/// First two bytes of every frame.
pub const MAGIC: u16 = 0x6772;
/// Version of the frame's layout.
pub const VERSION: u8 = 1;
/// Kind of a frame that only fills the end of a ring. Every other kind is the user's.
pub const PADDING: u8 = 0;
/// Length of a header, and the unit in which rings are divided, in bytes.
pub const UNIT: usize = 64;

/// A header as the ring sees it: it knows magic, version, kind, length and checksum, the rest is its user's.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    magic: u16,
    version: u8,
    /// What the frame is; [`PADDING`] belongs to the ring.
    pub kind: u8,
    /// The user's bytes 4..48.
    pub user: [u8; 44],
    /// Length of header and payload in bytes, before rounding up to [`UNIT`].
    length: u32,
    /// The user's bytes 52..60.
    pub tail: [u8; 8],
    crc: u32,
}
const _: () = assert!(size_of::<Header>() == UNIT);

/// Why a header is refused. Positions and values as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    // TODO(shm): magic, version, checksum, length, tail went back, tail too far, cursor back, cursor past tail
}
