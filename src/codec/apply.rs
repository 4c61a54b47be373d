//! A record onto parameters, or onto a sum.
//!
//! Each record is applied by itself, one addition of canonical numbers per hit, whatever its format: that is what keeps
//! replicas identical when they chose different formats. Elements that a record does not touch are not written.

use super::BLOCK;
use super::arithmetic::{INFINITY, LEAST_NORMAL, SIGN};
use super::cpu::{Kernels, scalar};
use super::dense::Dense;
use super::format::{Checked, DecodeError, Format, NEGATIVE, Record};
use super::parameters::Parameters;

/// What is done with a hit's unit, or with a dense value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// `p = canon(canon(p) - x)`: updates are subtracted from parameters.
    Subtract,
    /// `s = canon(canon(s) + x)`: updates are summed. A sum starts at +0 and so is always canonical.
    Add,
}

/// What applying met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Hits, or dense values, whose target element was not finite, and stayed as it was.
    pub not_finite: u32,
}

pub(super) fn apply(
    kernels: Kernels,
    record: &Record<'_>,
    x: f32,
    how: Apply,
    target: &mut [f32],
) -> Result<Applied, DecodeError> {
    if target.len() != record.elements {
        return Err(DecodeError::TargetLength {
            expected: record.elements,
            found: target.len(),
        });
    }
    let (record, x) = checked(record, x, how)?;
    Ok(whole(kernels, &record, x, target))
}

pub(super) fn apply_at(
    kernels: Kernels,
    record: &Record<'_>,
    x: f32,
    how: Apply,
    target: &mut dyn Parameters,
    start: usize,
) -> Result<Applied, DecodeError> {
    let found = target.elements();
    let Some(end) = start
        .checked_add(record.elements)
        .filter(|&end| end <= found)
    else {
        return Err(DecodeError::Place {
            elements: record.elements,
            start,
            found,
        });
    };
    let (record, x) = checked(record, x, how)?;
    let elements = end - start;
    let (mut done, mut applied) = (0, Applied::default());
    target.each(start..end, &mut |part| {
        let count = part.len().min(elements - done);
        let part = &mut part[..count];
        if count == elements {
            applied = whole(kernels, &record, x, part);
        } else {
            applied.not_finite += some(kernels, &record, x, done, part);
        }
        done += count;
    });
    if done < elements {
        return Err(DecodeError::Part {
            element: start + done,
        });
    }
    Ok(applied)
}

/// The record once all of it has been looked at, and what is to be added for a hit: a - b is a + (-b) to the bit, so one
/// kernel does both.
pub(super) fn checked<'a>(
    record: &Record<'a>,
    x: f32,
    how: Apply,
) -> Result<(Checked<'a>, f32), DecodeError> {
    if x.to_bits() != 0 && !(LEAST_NORMAL..INFINITY).contains(&x.to_bits()) {
        return Err(DecodeError::ScaledUnit { found: x });
    }
    let record = Checked::new(record)?;
    let x = match how {
        Apply::Subtract => f32::from_bits(x.to_bits() ^ SIGN),
        Apply::Add => x,
    };
    Ok((record, x))
}

/// Adds all of a record; the target has its length.
fn whole(kernels: Kernels, record: &Checked<'_>, x: f32, target: &mut [f32]) -> Applied {
    let not_finite = match record.record().format {
        Format::Sparse => record
            .blocks()
            .map(|(first, hits)| {
                let end = (first + BLOCK).min(target.len());
                // SAFETY: the record is checked: each index lies in its block, and `target` has the record's length.
                unsafe { kernels.apply_sparse(hits, x, &mut target[first..end]) }
            })
            .sum(),
        Format::Bitmap => {
            let Record { payload, hits, .. } = record.record();
            kernels.apply_bitmap(payload, hits as usize, x, target)
        }
        Format::DenseF32 => kernels.apply_dense(Dense::F32, record.record().payload, x, target),
        Format::DenseBf16 => kernels.apply_dense(Dense::Bf16, record.record().payload, x, target),
    };
    Applied { not_finite }
}

/// Adds what a record has for its elements from `first` on, as many as `part` has. How many were not finite.
fn some(kernels: Kernels, record: &Checked<'_>, x: f32, first: usize, part: &mut [f32]) -> u32 {
    let Record {
        payload,
        hits,
        elements,
        format,
    } = record.record();
    if let Some(number) = format.dense() {
        let bytes = number.bytes();
        let values = &payload[bytes * first..bytes * (first + part.len())];
        return kernels.apply_dense(number, values, x, part);
    }
    if format == Format::Bitmap {
        return some_of_bitmap(kernels, payload, (hits as usize, elements), x, first, part);
    }
    let end = first + part.len();
    let blocks = record.blocks().skip(first / BLOCK);
    blocks
        .take_while(|&(block, _)| block < end)
        .map(|(block, hits)| {
            let inside = first.max(block)..end.min(block + BLOCK);
            let part = &mut part[inside.start - first..inside.end - first];
            some_of_block(kernels, hits, x, inside.start - block, part)
        })
        .sum()
}

/// Adds a block's hits on the elements from `skipped` on, as many as `part` has.
fn some_of_block(kernels: Kernels, hits: &[u8], x: f32, skipped: usize, part: &mut [f32]) -> u32 {
    let (codes, _) = hits.as_chunks::<2>();
    let index = |code: &[u8; 2]| usize::from(u16::from_le_bytes(*code) & !NEGATIVE);
    let from = codes.partition_point(|code| index(code) < skipped);
    let to = codes.partition_point(|code| index(code) < skipped + part.len());
    let codes = &codes[from..to];
    if skipped == 0 {
        // SAFETY: the hits are those below the part's length.
        return unsafe { kernels.apply_sparse(codes.as_flattened(), x, part) };
    }
    let mut not_finite = 0;
    let mut room = [[0u8; 2]; REBASED];
    for few in codes.chunks(REBASED) {
        for (rebased, code) in room.iter_mut().zip(few) {
            // The sign stays as it is: the index is at least as large as what is taken away.
            *rebased = (u16::from_le_bytes(*code) - skipped as u16).to_le_bytes();
        }
        // SAFETY: the hits were those from `skipped` on and below that and the part's length.
        not_finite += unsafe { kernels.apply_sparse(room[..few.len()].as_flattened(), x, part) };
    }
    not_finite
}

/// Hits whose indices are counted from a part's start at a time.
const REBASED: usize = 256;

/// Adds a bitmap's hits on the elements from `first` on, as many as `part` has. The whole bitmap has so many hits on so
/// many elements.
fn some_of_bitmap(
    kernels: Kernels,
    words: &[u8],
    (hits, elements): (usize, usize),
    x: f32,
    first: usize,
    part: &mut [f32],
) -> u32 {
    const WORD: usize = 16;
    let (words, _) = words.as_chunks::<4>();
    let before = first.next_multiple_of(WORD).min(first + part.len()) - first;
    let (head, rest) = part.split_at_mut(before);
    let mut not_finite = 0;
    if !head.is_empty() {
        let word = u32::from_le_bytes(words[first / WORD]) >> (2 * (first % WORD));
        not_finite += scalar::apply_word(word, x, head);
    }
    let (bulk, tail) = rest.split_at_mut(rest.len() / WORD * WORD);
    let next = (first + before) / WORD;
    let bulk_words = &words[next..next + bulk.len() / WORD];
    // About as many as come on so many elements: only the effort depends on it.
    let share = (hits as u64 * bulk.len() as u64 / elements.max(1) as u64) as usize;
    not_finite += kernels.apply_bitmap(bulk_words.as_flattened(), share, x, bulk);
    if !tail.is_empty() {
        let word = u32::from_le_bytes(words[next + bulk_words.len()]);
        not_finite += scalar::apply_word(word, x, tail);
    }
    not_finite
}
