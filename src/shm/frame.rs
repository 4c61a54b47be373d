//! The 64 bytes in front of everything that a ring carries.
//!
//! ```text
//!  0      2 3 4                48           52        60      64
//! [magic|v|k| the user's bytes | length u32 | user's  | crc32c ]
//! ```
//!
//! Little-endian. The checksum is over bytes 0..60.

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
///
/// A user's own type of 64 bytes with its fields at bytes 4..48 and 52..60 can be cast to and from it by `bytemuck`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(8))]
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

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Header>() == UNIT);
    assert!(offset_of!(Header, kind) == 3 && offset_of!(Header, user) == 4);
    assert!(
        offset_of!(Header, length) == 48
            && offset_of!(Header, tail) == 52
            && offset_of!(Header, crc) == 60
    );
    // The fields above are little-endian because the processor is.
    assert!(cfg!(target_endian = "little"));
};

/// Why a peer's bytes are refused. Positions and values as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// Not a frame.
    #[error("frame's magic: expected {MAGIC:#06x}, found {found:#06x}")]
    Magic {
        /// What stands there.
        found: u16,
    },
    /// Another build's frame.
    #[error("frame's version: expected {VERSION}, found {found}")]
    Version {
        /// What stands there.
        found: u8,
    },
    /// Changed after it was written, or half written.
    #[error("frame's checksum: expected {expected:#010x}, found {found:#010x}")]
    Checksum {
        /// What its bytes give.
        expected: u32,
        /// What stands there.
        found: u32,
    },
    /// A frame that is longer or shorter than its place.
    #[error("frame's length: expected {min} to {max} bytes, found {found}")]
    Length {
        /// The least that it can be here.
        min: u64,
        /// The most that it can be here.
        max: u64,
        /// What stands there.
        found: u64,
    },
    /// Padding where none can be: it fills the end of a ring and has a frame behind it.
    #[error("padding: expected {room} bytes and a frame behind them, found {found}")]
    Padding {
        /// What is left at the ring's end, in bytes; 0 right behind other padding.
        room: u64,
        /// The padding's length.
        found: u32,
    },
    /// A position that is no multiple of [`UNIT`].
    #[error("position: expected a multiple of {UNIT}, found {found}")]
    Misaligned {
        /// What stands there.
        found: u64,
    },
    /// A producer took back what it had published.
    #[error("ring's tail went back: expected {expected} or more, found {found}")]
    TailWentBack {
        /// Where it was before.
        expected: u64,
        /// Where it is now.
        found: u64,
    },
    /// A producer overwrote what had not been consumed.
    #[error("ring's tail is too far ahead: expected {expected} or less, found {found}")]
    TailTooFar {
        /// Where it can be at most.
        expected: u64,
        /// Where it is.
        found: u64,
    },
    /// A consumer took back what it had released.
    #[error("ring's cursor went back: expected {expected} or more, found {found}")]
    CursorWentBack {
        /// Where it was before.
        expected: u64,
        /// Where it is now.
        found: u64,
    },
    /// A consumer released what had not been published.
    #[error("ring's cursor is past the tail: expected {expected} or less, found {found}")]
    CursorPastTail {
        /// Where the tail is.
        expected: u64,
        /// Where the cursor is.
        found: u64,
    },
}

impl Header {
    /// A header of the given kind, the user's bytes all 0. The ring fills in the rest when the frame is committed.
    #[must_use]
    pub fn new(kind: u8) -> Self {
        Self {
            kind,
            ..Self::zeroed()
        }
    }

    /// Length of header and payload in bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Fills in what the ring knows.
    #[must_use]
    pub(super) fn sealed(mut self, kind: u8, length: u32) -> Self {
        self.magic = MAGIC;
        self.version = VERSION;
        self.kind = kind;
        self.length = length;
        self.crc = self.checksum();
        self
    }

    /// Magic, version and checksum. What the length may be depends on the place, so the ring looks at it.
    pub(super) fn check(&self) -> Result<(), Corrupt> {
        if self.magic != MAGIC {
            return Err(Corrupt::Magic { found: self.magic });
        }
        if self.version != VERSION {
            return Err(Corrupt::Version {
                found: self.version,
            });
        }
        let expected = self.checksum();
        if self.crc != expected {
            return Err(Corrupt::Checksum {
                expected,
                found: self.crc,
            });
        }
        Ok(())
    }

    fn checksum(&self) -> u32 {
        crc32c::crc32c(&bytemuck::bytes_of(self)[..core::mem::offset_of!(Header, crc)])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn sample() -> Header {
        let mut header = Header::new(9);
        header.user = core::array::from_fn(|i| i as u8 + 1);
        header.tail = [0xA5; 8];
        header.sealed(9, 1_000)
    }

    #[test]
    fn a_sealed_header_is_accepted_as_it_is() {
        assert_eq!(sample().check(), Ok(()));
        assert_eq!(sample().length(), 1_000);
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let bytes: [u8; UNIT] = bytemuck::cast(sample());
        for bit in 0..8 * UNIT {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let refusal = bytemuck::cast::<_, Header>(flipped)
                .check()
                .expect_err("one bit is flipped");
            match bit / 8 {
                0 | 1 => assert!(matches!(refusal, Corrupt::Magic { .. })),
                2 => assert!(matches!(refusal, Corrupt::Version { .. })),
                _ => assert!(matches!(refusal, Corrupt::Checksum { .. })),
            }
        }
    }

    #[test]
    fn every_changed_byte_is_refused() {
        let bytes: [u8; UNIT] = bytemuck::cast(sample());
        for at in 0..UNIT {
            for change in 1..=255 {
                let mut changed = bytes;
                changed[at] ^= change;
                assert!(
                    bytemuck::cast::<_, Header>(changed).check().is_err(),
                    "byte {at} xor {change}"
                );
            }
        }
    }

    #[test]
    fn the_header_lies_in_memory_as_documented() {
        let bytes: [u8; UNIT] = bytemuck::cast(sample());
        assert_eq!(bytes[..4], [0x72, 0x67, VERSION, 9]);
        assert_eq!(bytes[48..52], 1_000u32.to_le_bytes());
        assert_eq!(bytes[60..], crc32c::crc32c(&bytes[..60]).to_le_bytes());
        assert_eq!(
            crc32c::crc32c(b"123456789"),
            0xE306_9283,
            "the Castagnoli polynomial (RFC 3720)"
        );
    }
}
