//! A stream into a sparse payload.

use super::bits::Reader;
use super::parameter::{Lengths, Parameters, length};
use super::{CompactError, ESCAPE, PAIRED, PARAMETER, width};
use crate::codec::format::sparse_len;
use crate::codec::{BLOCK, CHUNK};

/// Decodes a stream that is all of `bytes`, and appends the sparse payload of its hits to `out`.
///
/// The payload is that of a right sparse record of `elements` and `hits`, even where a bitmap would be smaller.
///
/// Takes any bytes, in time linear in `hits`, and `hits` that the bytes cannot hold are refused at once. What is
/// accepted is exactly what [`encode`](super::encode()) gives: encoding the payload gives the same bytes.
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
    let mut codes = codes.as_chunks_mut::<2>().0.iter_mut();
    let mut gaps = Gaps {
        reader,
        k: 0,
        width: width(elements),
    };
    let mut next = 0;
    while codes.len() > 0 {
        let before = codes.len();
        if next >= elements {
            return Err(outside(&gaps.reader, hits - before, next));
        }
        let block = next / BLOCK;
        gaps.k = parameters.of(block);
        let end = ((block + 1) * BLOCK).min(elements);
        next = gaps.up_to(next, end, &mut codes, &mut lengths[block]);
        let last = next - 1;
        if last >= elements {
            return Err(outside(&gaps.reader, hits - codes.len() - 1, last));
        }
        of_block[block] += (before - codes.len() - 1) as u16;
        of_block[last / BLOCK] += 1;
    }
    let reader = gaps.reader;
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

/// Reads gaps.
struct Gaps<'a> {
    reader: Reader<'a>,
    /// The parameter.
    k: u32,
    /// Bits of an escaped gap.
    width: u32,
}

impl Gaps<'_> {
    /// Writes the codes of all gaps that begin from `next` up to `end`, at least one, and counts their lengths. The last
    /// of them may end behind. The element behind the last hit.
    fn up_to(
        &mut self,
        mut next: usize,
        end: usize,
        codes: &mut std::slice::IterMut<'_, [u8; 2]>,
        lengths: &mut Lengths,
    ) -> usize {
        let mut write = |code: &mut [u8; 2], next: usize, (gap, negative): (usize, u16)| {
            let hit = next + gap;
            *code = ((hit % BLOCK) as u16 | negative << 15).to_le_bytes();
            lengths[length(gap)] += 1;
            hit + 1
        };
        while next < end {
            let Some(code) = codes.next() else { break };
            let window = self.reader.window();
            next = write(code, next, self.gap(window));
            // A second one from the same window, if it surely has room.
            if self.k <= PAIRED && next < end {
                let Some(code) = codes.next() else { break };
                let rest = self.reader.rest();
                next = write(code, next, self.gap(rest));
            }
        }
        next
    }

    /// The gap that `window` begins with, and 1 when its hit is negative.
    #[inline(always)]
    fn gap(&mut self, window: u64) -> (usize, u16) {
        let k = self.k;
        let q = (window | 1 << ESCAPE).trailing_zeros();
        if q < ESCAPE {
            self.reader.skip(q + 2 + k);
            let rest = window >> q >> 1;
            let low = (rest >> 1) as usize & ((1 << k) - 1);
            ((q as usize) << k | low, rest as u16 & 1)
        } else {
            // Neither has an escape room behind another gap, nor another gap behind an escape.
            let rest = self.reader.window() >> ESCAPE;
            self.reader.skip(ESCAPE + 1 + self.width);
            self.reader.window();
            let above = (rest >> 1) as usize & ((1 << self.width) - 1);
            (((ESCAPE as usize) << k) + above, rest as u16 & 1)
        }
    }
}
