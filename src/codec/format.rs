//! What the payload of a record looks like.
//!
//! Little-endian. For a chunk of n elements in B = ceil(n / 32768) blocks with h hits:
//!
//! | format | bytes | layout |
//! |---|---|---|
//! | *sparse* | 2 B + 2 h | B counts (u16), the hits of each block; then the hits, block by block, ascending, one u16 each: bit 15 the sign, bits 0 to 14 the index in the block |
//! | *bitmap* | 4 ceil(n / 16) | element i in bits 2 (i mod 16) of word i / 16: 00 nothing, 01 +v, 10 -v, 11 invalid; bits past the end are 00 |
//!
//! | *dense f32*, *dense bf16* | 4 n, 2 n | the values of a chunk that is not compressed (see [`dense`](mod@super::dense)); 0 hits |
//!
//! Of the first two the smaller one is used, sparse when equal; the change is at density 1/8. The choice never changes a
//! value. Both go back to Deeplearning4j's threshold and bitmap encodings, with half the bytes a hit and symmetric signs.

use super::dense::{self, Dense};
use super::{BLOCK, CHUNK};
use thiserror::Error;

/// How a payload is laid out. The number is what a record's header carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Format {
    /// Two bytes a hit.
    #[default]
    Sparse = 1,
    /// Two bits an element.
    Bitmap = 2,
    /// Four bytes an element, not compressed.
    DenseF32 = 3,
    /// Two bytes an element, not compressed.
    DenseBf16 = 4,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 4] = [
        Format::Sparse,
        Format::Bitmap,
        Format::DenseF32,
        Format::DenseBf16,
    ];

    /// The numbers of a dense format; `None` of one that sends hits.
    #[must_use]
    pub fn dense(self) -> Option<Dense> {
        match self {
            Format::Sparse | Format::Bitmap => None,
            Format::DenseF32 => Some(Dense::F32),
            Format::DenseBf16 => Some(Dense::Bf16),
        }
    }
}

impl TryFrom<u8> for Format {
    type Error = UnknownFormat;

    fn try_from(number: u8) -> Result<Format, UnknownFormat> {
        let known = Format::ALL
            .into_iter()
            .find(|format| *format as u8 == number);
        known.ok_or(UnknownFormat { number })
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Format::Sparse => "sparse",
            Format::Bitmap => "bitmap",
            Format::DenseF32 => "dense f32",
            Format::DenseBf16 => "dense bf16",
        })
    }
}

/// A number that is no [`Format`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("format {number} is unknown (1 is sparse, 2 bitmap, 3 dense f32, 4 dense bf16)")]
pub struct UnknownFormat {
    /// The number.
    pub number: u8,
}

/// Bytes of the payload of a chunk of `elements` with `hits`: it follows from format, chunk and hits.
///
/// `None` when no such record exists: more than [`CHUNK`] elements, more hits than elements, or hits in a dense record.
#[must_use]
pub fn payload_len(format: Format, elements: usize, hits: usize) -> Option<usize> {
    if elements > CHUNK || hits > most_hits(format, elements) {
        return None;
    }
    Some(match (format, format.dense()) {
        (_, Some(number)) => number.bytes() * elements,
        (Format::Sparse, _) => sparse_len(elements, hits),
        (_, None) => bitmap_len(elements),
    })
}

/// A dense record has values, no hits.
fn most_hits(format: Format, elements: usize) -> usize {
    if format.dense().is_some() {
        0
    } else {
        elements
    }
}

pub(crate) fn sparse_len(elements: usize, hits: usize) -> usize {
    2 * elements.div_ceil(BLOCK) + 2 * hits
}

pub(crate) fn bitmap_len(elements: usize) -> usize {
    4 * elements.div_ceil(16)
}

/// One chunk's message, as it came from somewhere: nothing in it is trusted.
///
/// The payload must be private: nobody else may write it while it is read.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// How the payload is laid out.
    pub format: Format,
    /// How many elements it says are hits.
    pub hits: u32,
    /// Elements of the chunk.
    pub elements: usize,
    /// The payload.
    pub payload: &'a [u8],
}

/// Bit 15 of a hit: it sends -v.
pub(crate) const NEGATIVE: u16 = 0x8000;
/// The lower bit of each of a bitmap word's 16 elements.
pub(crate) const LOWER: u32 = 0x5555_5555;

/// The hits of a bitmap's word, ascending: which of its 16 elements, and whether it is negative.
#[inline(always)]
pub(crate) fn hits_of(word: u32) -> impl Iterator<Item = (usize, bool)> {
    let mut left = (word | word >> 1) & LOWER;
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros())?;
        left &= left - 1;
        Some((bit as usize / 2, word >> bit & 0b10 != 0))
    })
}

/// The u16 that stands at the `at`-th place of `bytes`.
#[inline(always)]
pub(crate) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])
}

/// A record whose every byte has been checked.
///
/// In a checked sparse record each block's hits are strictly ascending and inside the block, and the counts add up to
/// the payload's end; in a checked bitmap no element is 11 and no bit is set past the end.
#[derive(Clone, Copy)]
pub(crate) struct Checked<'a> {
    record: Record<'a>,
}

impl<'a> Checked<'a> {
    /// Checks `record` in time linear in its payload.
    pub(crate) fn new(record: &Record<'a>) -> Result<Checked<'a>, DecodeError> {
        let Record {
            format,
            elements,
            payload,
            ..
        } = *record;
        let hits = record.hits as usize;
        if elements > CHUNK {
            return Err(DecodeError::Elements {
                expected: CHUNK,
                found: elements,
            });
        }
        let Some(expected) = payload_len(format, elements, hits) else {
            return Err(DecodeError::TooManyHits {
                expected: most_hits(format, elements),
                found: hits,
            });
        };
        if payload.len() != expected {
            return Err(DecodeError::PayloadLength {
                format,
                expected,
                found: payload.len(),
            });
        }
        match format {
            Format::Sparse => check_sparse(elements, hits, payload)?,
            Format::Bitmap => check_bitmap(elements, hits, payload)?,
            Format::DenseF32 => dense::check(Dense::F32, payload)?,
            Format::DenseBf16 => dense::check(Dense::Bf16, payload)?,
        }
        Ok(Checked { record: *record })
    }

    pub(crate) fn record(&self) -> Record<'a> {
        self.record
    }

    /// The blocks of a sparse record: where each starts, and its hits, two bytes each.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        debug_assert_eq!(self.record.format, Format::Sparse);
        let blocks = self.record.elements.div_ceil(BLOCK);
        let (counts, mut rest) = self.record.payload.split_at(2 * blocks);
        (0..blocks).map(move |block| {
            let (hits, after) = rest.split_at(2 * usize::from(half(counts, block)));
            rest = after;
            (block * BLOCK, hits)
        })
    }
}

fn check_sparse(elements: usize, hits: usize, payload: &[u8]) -> Result<(), DecodeError> {
    let blocks = elements.div_ceil(BLOCK);
    let (counts, mut rest) = payload.split_at(2 * blocks);
    let sum = (0..blocks)
        .map(|block| usize::from(half(counts, block)))
        .sum();
    if sum != hits {
        return Err(DecodeError::Counts {
            expected: hits,
            found: sum,
        });
    }
    for block in 0..blocks {
        // The counts add up to the payload's end, so no split can be out of range.
        let (codes, after) = rest.split_at(2 * usize::from(half(counts, block)));
        rest = after;
        let length = (elements - block * BLOCK).min(BLOCK);
        // All pairs without a branch first: ascending and the last inside means that all are inside.
        let index = |at: usize| half(codes, at) & !NEGATIVE;
        let pairs = codes.as_chunks::<2>().0.iter();
        let differences = pairs.clone().zip(pairs.skip(1)).map(|(&a, &b)| {
            let [a, b] = [
                u16::from_le_bytes(a) & !NEGATIVE,
                u16::from_le_bytes(b) & !NEGATIVE,
            ];
            a.wrapping_sub(b)
        });
        // The difference of two numbers of 15 bits has bit 15 where the first one is less.
        let ascending = differences.fold(NEGATIVE, |all, difference| all & difference) != 0;
        let count = codes.len() / 2;
        if ascending && (count == 0 || usize::from(index(count - 1)) < length) {
            continue;
        }
        for at in 0..count {
            let found = index(at);
            if usize::from(found) >= length {
                return Err(DecodeError::Index {
                    block,
                    hit: at,
                    expected: length,
                    found: usize::from(found),
                });
            }
            if at > 0 && index(at - 1) >= found {
                let previous = usize::from(index(at - 1));
                return Err(DecodeError::Order {
                    block,
                    hit: at,
                    previous,
                    found: usize::from(found),
                });
            }
        }
    }
    Ok(())
}

fn check_bitmap(elements: usize, hits: usize, payload: &[u8]) -> Result<(), DecodeError> {
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut found = 0;
    let mut invalid = 0;
    for bytes in payload.chunks_exact(4) {
        let word = word(bytes);
        invalid |= word & (word >> 1) & LOWER;
        found += word.count_ones();
    }
    if invalid != 0 {
        for (at, bytes) in payload.chunks_exact(4).enumerate() {
            let both = word(bytes) & (word(bytes) >> 1) & LOWER;
            if both != 0 {
                return Err(DecodeError::Code {
                    element: 16 * at + both.trailing_zeros() as usize / 2,
                });
            }
        }
    }
    if !elements.is_multiple_of(16) {
        let last = word(&payload[payload.len() - 4..]);
        if last >> (2 * (elements % 16)) != 0 {
            return Err(DecodeError::Padding {
                elements,
                found: last,
            });
        }
    }
    if found as usize != hits {
        return Err(DecodeError::Counts {
            expected: hits,
            found: found as usize,
        });
    }
    Ok(())
}

impl DecodeError {
    /// Whether it is the target that is wrong, whatever the record.
    pub(crate) fn is_of_target(self) -> bool {
        matches!(
            self,
            Self::TargetLength { .. } | Self::Place { .. } | Self::Part { .. }
        )
    }
}

/// What is wrong with a record, or with the target that it was to be applied to. Nothing has been applied.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum DecodeError {
    /// The target has another length than the record.
    #[error("a record of {expected} elements cannot be applied to {found}")]
    TargetLength {
        /// The record's elements.
        expected: usize,
        /// The target's length.
        found: usize,
    },
    /// The record would end past the target's elements.
    #[error("a record of {elements} elements at element {start} cannot be applied to {found}")]
    Place {
        /// The record's elements.
        elements: usize,
        /// Where its first one was to go.
        start: usize,
        /// The target's elements.
        found: usize,
    },
    /// A list of slices has none for an element below the number that it said it had.
    #[error("no part of the target holds element {element}; what lies before it has been applied")]
    Part {
        /// The element.
        element: usize,
    },
    /// The scaled unit is not a finite canonical number of at least 0.
    #[error("the scaled unit is {found:e}; it must be finite, not subnormal, and at least +0")]
    ScaledUnit {
        /// The number.
        found: f32,
    },
    /// More elements than a chunk can have.
    #[error("the record says {found} elements; a chunk has at most {expected}")]
    Elements {
        /// The most that a chunk has.
        expected: usize,
        /// What the record says.
        found: usize,
    },
    /// More hits than the record can have.
    #[error("the record says {found} hits; it can have at most {expected}")]
    TooManyHits {
        /// The record's elements; 0 of a dense one.
        expected: usize,
        /// What the record says.
        found: usize,
    },
    /// The payload has another length than follows from format, chunk and hits.
    #[error("a {format} payload of {found} bytes; its record calls for {expected}")]
    PayloadLength {
        /// The record's format.
        format: Format,
        /// The bytes that it must have.
        expected: usize,
        /// The bytes that it has.
        found: usize,
    },
    /// The payload's hits are not as many as the record says.
    #[error("the payload has {found} hits; its record says {expected}")]
    Counts {
        /// What the record says.
        expected: usize,
        /// What the payload has.
        found: usize,
    },
    /// A hit's index is past the end of its block.
    #[error("hit {hit} of block {block} has index {found}; the block has {expected} elements")]
    Index {
        /// The block.
        block: usize,
        /// Which of the block's hits.
        hit: usize,
        /// The block's elements.
        expected: usize,
        /// The index.
        found: usize,
    },
    /// A hit's index is not above the one before it.
    #[error("hit {hit} of block {block} has index {found} after {previous}; they must ascend")]
    Order {
        /// The block.
        block: usize,
        /// Which of the block's hits.
        hit: usize,
        /// The index before it.
        previous: usize,
        /// The index.
        found: usize,
    },
    /// A bitmap's element is 11.
    #[error("element {element} of the bitmap is 11, which is nothing")]
    Code {
        /// The element.
        element: usize,
    },
    /// A dense value is not a finite canonical number.
    #[error("element {element} is {found:e}; it must be finite, and neither subnormal nor -0")]
    Value {
        /// The element.
        element: usize,
        /// The number.
        found: f32,
    },
    /// A bitmap has bits past its last element.
    #[error("the bitmap's last word {found:#010x} has bits past element {elements}")]
    Padding {
        /// The record's elements.
        elements: usize,
        /// The last word.
        found: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse<'a>(elements: usize, hits: u32, payload: &'a [u8]) -> Record<'a> {
        Record {
            format: Format::Sparse,
            hits,
            elements,
            payload,
        }
    }

    fn refusal(record: &Record<'_>) -> DecodeError {
        Checked::new(record).err().expect("the record is wrong")
    }

    #[test]
    fn lengths_follow_from_format_chunk_and_hits() {
        assert_eq!(payload_len(Format::Sparse, 0, 0), Some(0));
        assert_eq!(payload_len(Format::Sparse, BLOCK, 3), Some(8));
        assert_eq!(payload_len(Format::Sparse, BLOCK + 1, 3), Some(10));
        assert_eq!(payload_len(Format::Bitmap, 17, 3), Some(8));
        assert_eq!(payload_len(Format::Sparse, CHUNK + 1, 0), None);
        assert_eq!(payload_len(Format::Bitmap, 5, 6), None);
        assert_eq!(payload_len(Format::DenseF32, 5, 0), Some(20));
        assert_eq!(payload_len(Format::DenseBf16, 5, 0), Some(10));
        assert_eq!(payload_len(Format::DenseF32, 5, 1), None);
    }

    #[test]
    fn each_way_in_which_a_sparse_payload_can_be_wrong_has_its_name() {
        let n = BLOCK + 5;
        let bytes = |halves: &[u16]| {
            halves
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let fine = bytes(&[2, 1, 7, 9 | NEGATIVE, 4]);
        assert!(Checked::new(&sparse(n, 3, &fine)).is_ok());

        assert_eq!(
            refusal(&sparse(CHUNK + 1, 3, &fine)),
            DecodeError::Elements {
                expected: CHUNK,
                found: CHUNK + 1
            }
        );
        assert_eq!(
            refusal(&sparse(2, 3, &fine)),
            DecodeError::TooManyHits {
                expected: 2,
                found: 3
            }
        );
        assert_eq!(
            refusal(&sparse(n, 4, &fine)),
            DecodeError::PayloadLength {
                format: Format::Sparse,
                expected: 12,
                found: 10
            }
        );
        assert_eq!(
            refusal(&sparse(n, 3, &bytes(&[2, 2, 7, 9, 4]))),
            DecodeError::Counts {
                expected: 3,
                found: 4
            }
        );
        assert_eq!(
            refusal(&sparse(n, 3, &bytes(&[2, 1, 7, 9, 5]))),
            DecodeError::Index {
                block: 1,
                hit: 0,
                expected: 5,
                found: 5
            }
        );
        assert_eq!(
            refusal(&sparse(n, 3, &bytes(&[2, 1, 7, 7 | NEGATIVE, 4]))),
            DecodeError::Order {
                block: 0,
                hit: 1,
                previous: 7,
                found: 7
            }
        );
        assert_eq!(
            refusal(&sparse(n, 3, &bytes(&[2, 1, 9, 7, 4]))),
            DecodeError::Order {
                block: 0,
                hit: 1,
                previous: 9,
                found: 7
            }
        );
    }

    #[test]
    fn each_way_in_which_a_bitmap_can_be_wrong_has_its_name() {
        let bitmap = |hits, words: &[u32]| {
            let payload: Vec<u8> = words.iter().flat_map(|x| x.to_le_bytes()).collect();
            Checked::new(&Record {
                format: Format::Bitmap,
                hits,
                elements: 17,
                payload: &payload,
            })
            .err()
        };
        assert_eq!(bitmap(3, &[0b1001, 0b10]), None);
        assert_eq!(
            bitmap(3, &[0b1001, 0b11]),
            Some(DecodeError::Code { element: 16 })
        );
        assert_eq!(
            bitmap(3, &[0b1001, 0b110]),
            Some(DecodeError::Padding {
                elements: 17,
                found: 0b110
            })
        );
        assert_eq!(
            bitmap(2, &[0b1001, 0b10]),
            Some(DecodeError::Counts {
                expected: 2,
                found: 3
            })
        );
    }

    #[test]
    fn formats_have_numbers_and_no_others_are_known() {
        for format in Format::ALL {
            assert_eq!(Format::try_from(format as u8), Ok(format));
        }
        for number in [0, 5, 255] {
            assert_eq!(Format::try_from(number), Err(UnknownFormat { number }));
        }
    }
}
