//! A stream into a sparse payload.

use super::bits::Reader;
use super::parameter::{Lengths, Parameters, length};
use super::{CompactError, ESCAPE, PARAMETER, width};
use crate::codec::format::sparse_len;
use crate::codec::{BLOCK, CHUNK};

/// Decodes a stream that is all of `bytes`, and appends the sparse payload of its hits to `out`.
///
/// The payload is that of a right sparse record of `elements` and `hits`, even where a bitmap would be smaller.
///
/// Takes any bytes, in time linear in `hits`, and `hits` that the bytes cannot hold are refused at once. What is
/// accepted is exactly what [`encode`] gives: encoding the payload gives the same bytes.
///
/// # Errors
/// [`CompactError`] for whatever is wrong; `out` is as it was.
pub fn decode(
    bytes: &[u8],
    elements: usize,
    hits: u32,
    out: &mut Vec<u8>,
) -> Result<(), CompactError> {
    let before = out.len();
    let found = decode_front(bytes, elements, hits, out)?;
    if found != bytes.len() {
        out.truncate(before);
        return Err(CompactError::Length {
            expected: found,
            found: bytes.len(),
        });
    }
    Ok(())
}

/// The same for a stream that other bytes may follow; how many bytes it took. So streams of several chunks can stand
/// one behind the other without their lengths.
///
/// # Errors
/// As [`decode`], but for bytes behind the stream.
pub fn decode_front(
    bytes: &[u8],
    elements: usize,
    hits: u32,
    out: &mut Vec<u8>,
) -> Result<usize, CompactError> {
    let hits = hits as usize;
    if elements > CHUNK {
        return Err(CompactError::Elements {
            expected: CHUNK,
            found: elements,
        });
    }
    if hits > elements {
        return Err(CompactError::TooManyHits {
            elements,
            found: hits,
        });
    }
    // A hit has at least the one that ends its zeros, and a sign; the chunk has a bit of its own.
    if hits > 0 && 1 + 2 * hits > bytes.len().saturating_mul(8) {
        return Err(CompactError::Short {
            hits,
            found: bytes.len(),
        });
    }
    let before = out.len();
    out.resize(before + sparse_len(elements, hits), 0);
    let taken = fill(bytes, elements, hits, &mut out[before..]);
    if taken.is_err() {
        out.truncate(before);
    }
    taken
}

/// Decodes into a sparse payload of the right length, all zeros before.
fn fill(
    bytes: &[u8],
    elements: usize,
    hits: usize,
    payload: &mut [u8],
) -> Result<usize, CompactError> {
    if hits == 0 {
        return Ok(0);
    }
    let blocks = elements.div_ceil(BLOCK);
    let mut reader = Reader::new(bytes);
    let parameters = if reader.take(1) == 1 {
        let mut own = [0; CHUNK / BLOCK];
        for k in &mut own[..blocks] {
            *k = reader.take(PARAMETER) as u8;
        }
        Parameters::Own(own)
    } else {
        Parameters::shared(elements, hits)
    };

    let short = CompactError::Short {
        hits,
        found: bytes.len(),
    };
    let outside = |reader: &Reader<'_>, hit, found| {
        if reader.is_past_end() {
            return short;
        }
        CompactError::Index {
            hit,
            expected: elements,
            found,
        }
    };
    let (counts, codes) = payload.split_at_mut(2 * blocks);
    let mut of_block = [0u16; CHUNK / BLOCK];
    let mut lengths = [Lengths::default(); CHUNK / BLOCK];
    let width = width(elements);
    let mut codes = codes.chunks_exact_mut(2);
    let mut next = 0;
    while codes.len() > 0 {
        if next >= elements {
            return Err(outside(&reader, hits - codes.len(), next));
        }
        // All gaps that begin in this block. The last of them may end in a later one.
        let block = next / BLOCK;
        let end = ((block + 1) * BLOCK).min(elements);
        let k = parameters.of(block);
        let lengths = &mut lengths[block];
        let before = codes.len();
        let mut hit = next;
        while next < end {
            let Some(code) = codes.next() else { break };
            let (gap, negative) = gap(&mut reader, k, width);
            hit = next + gap;
            if hit >= elements {
                return Err(outside(&reader, hits - 1 - codes.len(), hit));
            }
            let index = (hit % BLOCK) as u16;
            code.copy_from_slice(&(index | negative << 15).to_le_bytes());
            lengths[length(gap)] += 1;
            next = hit + 1;
        }
        of_block[block] += (before - codes.len() - 1) as u16;
        of_block[hit / BLOCK] += 1;
    }
    if reader.is_past_end() {
        return Err(short);
    }
    let padding = reader.padding();
    if padding != 0 {
        return Err(CompactError::Padding { found: padding });
    }
    for (count, of_block) in counts.chunks_exact_mut(2).zip(of_block) {
        count.copy_from_slice(&of_block.to_le_bytes());
    }
    let expected = if Parameters::may_differ(of_block.into_iter().map(usize::from)) {
        Parameters::choose(&lengths, elements, hits)
    } else {
        Parameters::shared(elements, hits)
    };
    parameters.check(&expected)?;
    Ok(reader.taken())
}

/// The next gap, and 1 when its hit is negative.
#[inline(always)]
fn gap(reader: &mut Reader<'_>, k: u32, width: u32) -> (usize, u16) {
    let window = reader.window();
    let q = (window | 1 << ESCAPE).trailing_zeros();
    if q < ESCAPE {
        reader.skip(q + 2 + k);
        let rest = window >> q >> 1;
        let low = (rest >> 1) as usize & ((1 << k) - 1);
        ((q as usize) << k | low, rest as u16 & 1)
    } else {
        reader.skip(ESCAPE + 1 + width);
        let rest = window >> ESCAPE;
        let above = (rest >> 1) as usize & ((1 << width) - 1);
        (((ESCAPE as usize) << k) + above, rest as u16 & 1)
    }
}
