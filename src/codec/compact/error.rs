//! What can be wrong with a compact stream.

use crate::codec::format::{DecodeError, Format};
use thiserror::Error;

/// Why a record has no compact stream, or a stream was refused. Nothing has been appended.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum CompactError {
    /// The record to be encoded is wrong.
    #[error(transparent)]
    Record(#[from] DecodeError),
    /// The record to be encoded has values instead of hits.
    #[error("a {format} record has values instead of hits; only hits have a compact stream")]
    Dense {
        /// Its format.
        format: Format,
    },
    /// More elements than a chunk can have.
    #[error("a compact stream of {found} elements; a chunk has at most {expected}")]
    Elements {
        /// The most that a chunk has.
        expected: usize,
        /// What the caller says.
        found: usize,
    },
    /// More hits than elements.
    #[error("a compact stream of {found} hits in {elements} elements")]
    TooManyHits {
        /// The chunk's elements.
        elements: usize,
        /// What the caller says.
        found: usize,
    },
    /// The bytes end before the last hit.
    #[error("the compact stream ends after {found} bytes, before the last of its {hits} hits")]
    Short {
        /// The hits that it should have.
        hits: usize,
        /// Its bytes.
        found: usize,
    },
    /// There are bytes behind the stream.
    #[error("a compact stream of {expected} bytes stands in {found}")]
    Length {
        /// The bytes that its hits take.
        expected: usize,
        /// The bytes given.
        found: usize,
    },
    /// A hit is past the end of the chunk.
    #[error("hit {hit} of the compact stream is element {found}; the chunk has {expected}")]
    Index {
        /// Which of the hits.
        hit: usize,
        /// The chunk's elements.
        expected: usize,
        /// The element that it names.
        found: usize,
    },
    /// The stream says that blocks have parameters of their own where their hits call for a shared one, or the reverse.
    #[error(
        "the compact stream's parameters are {}; its hits call for {}",
        kind(*.own), kind(!*.own)
    )]
    Kind {
        /// Whether each block has its own.
        own: bool,
    },
    /// A block's parameter is not the one that its hits call for.
    #[error("the parameter of block {block} is {found}; its hits call for {expected}")]
    Parameter {
        /// The block.
        block: usize,
        /// The parameter of its hits.
        expected: u8,
        /// The parameter in the stream.
        found: u8,
    },
    /// The bits that fill the last byte are not 0.
    #[error("the last byte of the compact stream ends in {found:#b} instead of zeros")]
    Padding {
        /// The bits.
        found: u8,
    },
}

fn kind(own: bool) -> &'static str {
    if own { "each block's own" } else { "shared" }
}
