//! The compact format: a chunk's hits within 2 % of their entropy, for what leaves the node or rests in a checkpoint.
//!
//! A record's hits become a stream of bits: for each hit the gap to the one before it, Golomb-Rice coded (Golomb 1966,
//! Rice 1979), and the sign. A hit takes 15.8 bits at density 1e-4, 12.5 at 1e-3, 9.1 at 1e-2 and 5.8 at 1e-1, where the
//! sparse format takes 16 and more.
//!
//! # The stream
//!
//! The bits of a byte are used from the lowest up; numbers stand with their lowest bit first. `elements` and `hits` are
//! not in it: whoever keeps a record keeps these two anyway, and in a nearly empty chunk they would cost more than the
//! 2 %. A chunk without hits has an empty stream. Else:
//!
//! | bits | content |
//! |---|---|
//! | 1 | 0: all blocks share the parameter that follows from elements and hits. 1: each block has its own |
//! | 4 a block | with its own: the parameter of each block, 0 to 15 |
//! | for each hit | its gap and its sign, ascending |
//! | 0 to 7 | zeros up to the byte's end |
//!
//! The *gap* of a hit is the number of elements between the hit before it (or the chunk's begin) and itself. Gaps run on
//! over the ends of blocks; a gap uses the parameter k of the block in which it begins, so that empty blocks cost
//! nothing. With q = gap >> k:
//!
//! | gap | bits |
//! |---|---|
//! | q < 16 | q zeros, a one, the sign (1 is negative), the k low bits of the gap |
//! | else | 16 zeros, the sign, gap - (16 << k) in as many bits as `elements - 1` has |
//!
//! So a hit costs at most 35 bits, however clustered the hits are.
//!
//! The parameters follow from the hits (`parameter.rs`): a set of hits has one stream, and the decoder refuses all others.
//!
//! ```
//! use gradring::codec::{Format, Record, compact};
//!
//! // Elements 3 (+) and 700 (-) of a chunk of 1000.
//! let payload = [2, 0, 3, 0, 0xbc, 0x82];
//! let record = Record { format: Format::Sparse, hits: 2, elements: 1000, payload: &payload };
//! let mut bytes = Vec::new();
//! compact::encode(&record, &mut bytes)?;
//! assert_eq!(bytes.len(), 3);
//!
//! let mut back = Vec::new();
//! compact::decode(&bytes, 1000, 2, &mut back)?;
//! assert_eq!(back, payload);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod blocks;
mod decode;
mod encode;
mod error;
mod parameter;

pub use decode::{decode, decode_front};
pub use encode::encode;
pub use error::CompactError;

use super::CHUNK;
use bits::ROOM;

/// Zeros that announce a gap too long for its parameter.
const ESCAPE: u32 = 16;
/// Bits of a block's own parameter.
const PARAMETER: u32 = 4;
/// The most bits of a hit: an escape, a sign, and a gap's 18 bits.
const MOST: usize = ESCAPE as usize + 1 + CHUNK.ilog2() as usize;

/// The largest parameter of which two hits have room in a word, unless one is an escape.
const PAIRED: u32 = ROOM / 2 - ESCAPE - 1;

/// Bits of the largest index of a chunk.
fn width(elements: usize) -> u32 {
    usize::BITS - elements.saturating_sub(1).leading_zeros()
}
