//! What can be wrong with an external update, or with the way that it came.

use crate::codec::compact::CompactError;
use crate::codec::compat::CompatError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why an external update was refused, or why none will come.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// An update of another length than the source's.
    #[error("an update of {found} elements for a source of {expected}")]
    Length {
        /// The source's elements.
        expected: usize,
        /// The update's elements.
        found: usize,
    },
    /// A dense value that is not finite.
    #[error("element {element} of the update is {found}, which is not finite")]
    NotFinite {
        /// Which element.
        element: usize,
        /// What it is.
        found: f32,
    },
    /// A value of hits that is none.
    #[error("hits of {found:e}; their value must be at least 2^-126, and finite")]
    Value {
        /// The value.
        found: f32,
    },
    /// A hit past the end.
    #[error("hit {hit} is element {found}; the update has {expected}")]
    Element {
        /// Which of the hits.
        hit: usize,
        /// The update's elements.
        expected: usize,
        /// The element that it names.
        found: usize,
    },
    /// A hit that does not lie behind the one before it.
    #[error("hit {hit} is element {found} after {previous}; they must ascend")]
    Order {
        /// Which of the hits.
        hit: usize,
        /// The element before it.
        previous: usize,
        /// The element.
        found: usize,
    },
    /// A message that is not as long as what it says calls for.
    #[error("{what} of a message: expected {expected} bytes, found {found}")]
    Message {
        /// Which part.
        what: &'static str,
        /// How many bytes it takes.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// A chunk's compact stream is wrong.
    #[error("chunk {chunk}: {source}")]
    Compact {
        /// Which chunk.
        chunk: usize,
        /// What is wrong with it.
        source: CompactError,
    },
    /// A Deeplearning4j message is wrong.
    #[error(transparent)]
    Compat(#[from] CompatError),
    /// The bytes are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// There is no memory for it.
    #[error("no memory for an update of {elements} elements")]
    Memory {
        /// How many.
        elements: usize,
    },
    /// The other end is gone, or this connection is of no more use after an error.
    #[error("the source is closed")]
    Closed,
    /// The source refused the update.
    #[error("the source refused the update: {reason}")]
    Refused {
        /// What it says.
        reason: String,
    },
    /// There is already something where the socket should be.
    #[error("{} exists; a socket is made where nothing is", path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("{call}: {source}")]
    Io {
        /// What failed.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The source's own thread has ended.
    #[error("the source has ended: {why}")]
    Ended {
        /// Why.
        why: String,
    },
}

/// Why bytes are no frame. What follows them means nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// They do not begin as a frame does.
    #[error("a frame begins with {found:02x?}, expected {expected:02x?}")]
    Magic {
        /// How a frame begins.
        expected: [u8; 4],
        /// How this begins.
        found: [u8; 4],
    },
    /// Another version.
    #[error("a frame of version {found}, expected {expected}")]
    Version {
        /// This one.
        expected: u8,
        /// The frame's.
        found: u8,
    },
    /// A kind that has no place here.
    #[error("a frame of kind {found}, which is none that is read here")]
    Kind {
        /// The kind.
        found: u8,
    },
    /// Bytes that must be 0 are not.
    #[error("the unused bytes of a frame's head are {found:#06x}, expected 0")]
    Unused {
        /// What they are.
        found: u16,
    },
    /// A longer payload than any message of this kind has.
    #[error("a frame of kind {kind} with {found} bytes, expected at most {expected}")]
    TooLong {
        /// The frame's kind.
        kind: u8,
        /// The most that it can have.
        expected: u64,
        /// What it says.
        found: u64,
    },
    /// The checksum is not that of the bytes.
    #[error("a frame with checksum {found:08x}; that of its bytes is {expected:08x}")]
    Checksum {
        /// Of its bytes.
        expected: u32,
        /// What it says.
        found: u32,
    },
}
