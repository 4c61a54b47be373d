//! Deeplearning4j's two wire formats, bit for bit in both directions, to talk to JVM peers.
//!
//! A message is a sequence of 32-bit words. N is the vector's length, t the threshold; a hit is an element with
//! `|x| >= t`, ties included. NaN is never a hit.
//!
//! | word | threshold message, 4 + k words | bitmap message, N / 16 + 5 words |
//! |---|---|---|
//! | 0 | k, the number of elements encoded | N |
//! | 1 | N | N |
//! | 2 | the bits of t, an f32 | the same |
//! | 3 | 0 | 1 |
//! | 4 and on | i + 1 where element i sends +t, -(i + 1) where it sends -t | bit i mod 16 of word 4 + i / 16 is element i's *value*, the bit 16 above it its *sign* |
//!
//! In a bitmap, value and sign are 00: nothing; 10: +t; 11: -t; 01: -t/2. A negative element that is at least t/2, but
//! no hit, sends -t/2; a positive one sends nothing. An encoder subtracts from the vector what it sends; a decoder adds
//! it to the target. Whoever has an f64 threshold rounds it to f32 first, as upstream does, so that 1e-3 in an f64
//! vector is no hit of threshold 1e-3.
//!
//! What the format does with special values is its own and is kept: NaN stays in the vector and is never sent; an
//! infinity sends t in every message and stays; -0 and subnormals are numbers as any.
//!
//! What upstream does besides and what is not done here:
//!
//! | upstream | here |
//! |---|---|
//! | writes wherever a message points to | [`decode`] checks everything before it writes anything |
//! | takes a threshold of 0, negative, NaN | [`CompatError::Threshold`] |
//! | a limit keeps any elements, by arrival of threads | the lowest indices, ascending |
//! | gives up a threshold message for a bitmap after the vector was reduced, and so loses what it said | [`Handler`] decides first |
//! | never sends a single hit, and nothing at all below 32 elements in its sparse mode | [`Handler`] sends both |
//!
//! ```
//! use gradring::codec::compat::{decode, encode_threshold, Sent};
//!
//! let mut residual = [0.5_f32, -0.25, 0.125, -1.0];
//! let mut message = Vec::new();
//! let sent = encode_threshold(&mut residual, 0.25, None, &mut message)?;
//! assert_eq!(sent, Sent::Threshold { hits: 3 });
//! assert_eq!(message, [3, 4, 0x3e80_0000, 0, 1, -2, -4]);
//! assert_eq!(residual, [0.25, 0.0, 0.125, -0.75]);
//!
//! let mut sum = [0.0_f32; 4];
//! decode(&message, &mut sum)?;
//! assert_eq!(sum, [0.25, -0.25, 0.0, -0.25]);
//! # Ok::<(), gradring::codec::compat::CompatError>(())
//! ```

mod bitmap;
mod bytes;
mod decode;
mod element;
mod error;
mod handler;
mod threshold;

pub use bitmap::encode_bitmap;
pub use bytes::{from_bytes, to_bytes};
pub use decode::{Decoded, decode};
pub use element::Element;
pub use error::CompatError;
pub use handler::{Handler, Mode};
pub use threshold::encode_threshold;

/// Words before a message's content.
const HEADER: usize = 4;

/// How a message is laid out. The number is its word 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Encoding {
    /// A word for each hit.
    Threshold = 0,
    /// Two bits for each element.
    Bitmap = 1,
}

/// What an encoder sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Nothing: no message was appended, and the vector is as it was.
    Nothing {
        /// The vector's hits.
        hits: usize,
    },
    /// A threshold message.
    Threshold {
        /// The elements that it encodes.
        hits: usize,
    },
    /// A bitmap message.
    Bitmap {
        /// The elements that send something, those of -t/2 among them.
        touched: usize,
    },
}

/// The most words of a message that [`Handler`] makes, and those of every bitmap: `elements / 16 + 5`.
#[must_use]
pub fn max_message_words(elements: usize) -> usize {
    elements / 16 + 1 + HEADER
}

/// Whether the formats can number so many elements: at most 2^31 - 1.
///
/// # Errors
/// [`CompatError::TooLong`].
pub fn check_length(elements: usize) -> Result<(), CompatError> {
    length(elements).map(|_| ())
}

/// A vector's length as a message says it.
fn length(elements: usize) -> Result<i32, CompatError> {
    i32::try_from(elements).map_err(|_| CompatError::TooLong { found: elements })
}

/// What an encoder needs to know before it touches anything: length and threshold as the header says them.
fn check(elements: usize, threshold: f32) -> Result<(i32, i32), CompatError> {
    let length = length(elements)?;
    if !is_threshold(threshold) {
        return Err(CompatError::Threshold { found: threshold });
    }
    Ok((length, threshold.to_bits() as i32))
}

fn is_threshold(t: f32) -> bool {
    t > 0.0 && t.is_finite()
}
