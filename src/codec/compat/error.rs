//! What can be wrong with a message, or with what should become one.

use thiserror::Error;

/// Why nothing was encoded or decoded. Vector, message and target are as they were.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum CompatError {
    /// More elements than an index of the format can name.
    #[error("{found} elements; the format's indices end at {}", i32::MAX)]
    TooLong {
        /// The vector's length.
        found: usize,
    },
    /// No threshold: NaN, infinite, negative or 0.
    #[error("the threshold is {found:e}; it must be finite and above 0")]
    Threshold {
        /// The number.
        found: f32,
    },
    /// Bytes that are not whole words.
    #[error("{found} bytes are not whole words of 4")]
    Bytes {
        /// How many there are.
        found: usize,
    },
    /// The message is shorter than its header.
    #[error("a message of {found} words; its header alone has 4")]
    Short {
        /// Its words.
        found: usize,
    },
    /// Word 3 names no encoding.
    #[error("encoding {found} is unknown (0 is threshold, 1 is bitmap)")]
    Encoding {
        /// The word.
        found: i32,
    },
    /// The message is of a vector of another length than the target.
    #[error("a message of {found} elements cannot be added to {expected}")]
    Length {
        /// The target's length.
        expected: usize,
        /// What the message says.
        found: i32,
    },
    /// A threshold message has another number of indices than it says.
    #[error("the message says {found} encoded elements; it has {expected} words for them")]
    Count {
        /// The words behind its header.
        expected: usize,
        /// What it says.
        found: i32,
    },
    /// A threshold message names an element that does not exist.
    #[error("word {word} is {found}; elements are from 1 to {elements}, or negative so")]
    Index {
        /// Which word.
        word: usize,
        /// The target's elements.
        elements: usize,
        /// The word.
        found: i32,
    },
    /// A bitmap message has another number of words than its vector calls for.
    #[error("a bitmap message of {found} words; its vector calls for {expected}")]
    Words {
        /// The words that it must have.
        expected: usize,
        /// The words that it has.
        found: usize,
    },
    /// A bitmap message has bits behind its last element.
    #[error("the bitmap's last word {found:#010x} has bits behind element {elements}")]
    Spare {
        /// The vector's elements.
        elements: usize,
        /// The last word.
        found: i32,
    },
}
