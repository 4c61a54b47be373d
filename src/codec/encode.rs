//! One fused pass over a chunk: accumulate, threshold, collect.
//!
//! Per element: `s = canon(r + canon(u))`, or `s = r` where the update or the sum is not finite (dropped and counted);
//! a hit when `|s| >= t`; a hit sends `v` with the sign of `s` and keeps `s - v`; everything else stays. Then, if asked
//! for, all elements are clamped (clipping), and what that took away is counted. So what is sent and what stays add up
//! to what came, exactly while `|s| < 2^16 v`, else within half an ulp of `s`.
//!
//! The pass collects hits in one of the two formats and turns to the other when it sees that it would be smaller; the
//! final choice is by size alone. A [`Budget`] is kept without counting first: all hits are collected, and those past
//! the budget are put back.

use super::arithmetic::{INFINITY, SIGN, Unit};
use super::cpu::{Kernels, Logged, Rule, SLACK, Tally};
use super::format::{Format, LOWER, NEGATIVE, bitmap_len, sparse_len};
use super::{BLOCK, CHUNK};
use std::mem::MaybeUninit;
use thiserror::Error;

/// Bytes of a sparse hit.
pub(crate) const CODE: usize = 2;

/// Elements between two looks at which format is the smaller one. Pieces never cross a block's end.
const PIECE: usize = 4096;
const _: () = assert!(BLOCK.is_multiple_of(PIECE) && PIECE.is_multiple_of(32));

/// One hit in so many elements makes a piece dense.
const DENSE: usize = 256;

/// What may differ from chunk to chunk and from step to step.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkOptions {
    /// Clamp what stays.
    pub clip: Option<Clip>,
    /// Send at most so many hits.
    pub budget: Option<Budget>,
}

/// Clipping: after the hits, each element of the residual is clamped to `[-b, b]`, where b is a multiple of the
/// threshold, rounded once. It throws mass away, and counts it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    multiple: f32,
}

impl Clip {
    /// Clips to `multiple` thresholds.
    ///
    /// # Errors
    /// [`ClipError`] when `multiple` is below 2 or no number: such a bound could cut what a hit leaves.
    pub fn new(multiple: f32) -> Result<Clip, ClipError> {
        if multiple >= 2.0 {
            Ok(Clip { multiple })
        } else {
            Err(ClipError { found: multiple })
        }
    }

    /// The multiple.
    #[must_use]
    pub fn multiple(self) -> f32 {
        self.multiple
    }
}

/// A clipping multiple that is too small.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error("a clipping multiple must be at least 2, not {found}")]
pub struct ClipError {
    /// The multiple.
    pub found: f32,
}

/// How many hits of a chunk may still be sent: exactly the lesser of this and of the chunk's hits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most hits.
    pub max_hits: usize,
    /// Where in the chunk the search begins when there are more: from this element (modulo the chunk's length)
    /// ascending, wrapping at the end. Moved from step to step, it starves nobody.
    pub start: usize,
}

/// What an encode did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoded {
    /// How the payload is laid out.
    pub format: Format,
    /// The hits sent.
    pub hits: u32,
    /// The elements of the update that were not finite, or whose sum with the residual was not.
    pub dropped: u32,
    /// The mass that clipping took away: the sum of magnitudes.
    pub clipped: f64,
    /// The largest magnitude in the residual's sample (see [`residual_l1`](Encoded::residual_l1)).
    pub residual_max: f32,
    /// An estimate of the residual's L1 norm in this chunk: the mean magnitude of a sample of the residual, times the
    /// chunk's elements. The sample is 64 runs of 16 elements, evenly spread, or everything up to 1024 elements.
    pub residual_l1: f64,
}

/// Why nothing was encoded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EncodeError {
    /// Residual and update differ in length.
    #[error("an update of {found} elements for a residual of {expected}")]
    Lengths {
        /// The residual's length.
        expected: usize,
        /// The update's length.
        found: usize,
    },
    /// More than a chunk.
    #[error("a chunk of {found} elements; it can have at most {CHUNK}")]
    TooLong {
        /// The length.
        found: usize,
    },
}

pub(super) fn encode(
    kernels: Kernels,
    residual: &mut [f32],
    update: &[f32],
    unit: Unit,
    options: &ChunkOptions,
    out: &mut Vec<u8>,
) -> Result<Encoded, EncodeError> {
    let elements = residual.len();
    if update.len() != elements {
        return Err(EncodeError::Lengths {
            expected: elements,
            found: update.len(),
        });
    }
    if elements > CHUNK {
        return Err(EncodeError::TooLong { found: elements });
    }
    let limit = options
        .budget
        .map_or(elements, |budget| budget.max_hits.min(elements));
    let mut rule = Rule {
        threshold: if limit == 0 {
            INFINITY
        } else {
            unit.t().to_bits()
        },
        unit: unit.v(),
        // Below 2^16 v what a hit leaves is exact, so that `s` can be had back from it.
        logged: if (1..elements).contains(&limit) {
            (unit.v() * 65536.0).to_bits()
        } else {
            u32::MAX
        },
        dense: false,
    };
    // Empty, and so without memory, unless a budget meets elements of more than 2^16 v.
    let mut log = Vec::new();
    let mut draft = Draft::new(elements, out);
    let mut total = Tally::default();
    for (update, residual) in update.chunks(PIECE).zip(residual.chunks_mut(PIECE)) {
        let seen = draft.piece(kernels, &rule, update, residual, &mut log);
        // The next piece is likely to be as this one.
        rule.dense = DENSE * seen.hits > update.len();
        total.add(seen);
    }

    if total.hits > limit {
        let start = options.budget.map_or(0, |budget| budget.start % elements);
        draft.keep(limit, start, |index, negative| {
            let sign = if negative { SIGN } else { 0 };
            residual[index] = match log.binary_search_by_key(&index, |entry| entry.0) {
                Ok(at) => log[at].1,
                Err(_) => residual[index] + f32::from_bits(rule.unit.to_bits() | sign),
            };
        });
        total.hits = limit;
    }

    let mut clipped = 0.0;
    if let Some(clip) = options.clip {
        let bound = clip.multiple * unit.t();
        // A hit leaves at most its |s|, or t.
        if f32::from_bits(total.largest) > bound {
            clipped = kernels.clamp(residual, bound);
        }
    }
    let (residual_max, residual_l1) = look_at(residual);
    let format = draft.finish();
    Ok(Encoded {
        format,
        hits: total.hits as u32,
        dropped: total.dropped,
        clipped,
        residual_max,
        residual_l1,
    })
}

/// The largest magnitude and the estimated L1 norm, from 64 lines of a cache-hot chunk: too few to cost anything.
fn look_at(residual: &[f32]) -> (f32, f64) {
    const LINE: usize = 16;
    const LINES: usize = 64;
    let stride = if residual.len() <= LINE * LINES {
        LINE
    } else {
        residual.len() / LINES
    };
    let (mut largest, mut sum, mut seen) = (0f32, 0f64, 0);
    for run in residual.chunks(stride) {
        let run = &run[..run.len().min(LINE)];
        seen += run.len();
        for r in run {
            largest = largest.max(r.abs());
        }
        sum += f64::from(run.iter().map(|r| r.abs()).sum::<f32>());
    }
    if seen == 0 {
        (0.0, 0.0)
    } else {
        (largest, sum / seen as f64 * residual.len() as f64)
    }
}

/// A payload in the making, in the spare capacity behind `out`: an area where it will stand, and another of the same
/// size where hits lie aside while they are turned from one format to the other.
struct Draft<'a> {
    out: &'a mut Vec<u8>,
    elements: usize,
    area: usize,
    format: Format,
    /// Elements seen so far.
    done: usize,
    /// Hits in it so far.
    hits: usize,
    /// Of each block; kept in the sparse format only.
    counts: [u16; CHUNK / BLOCK],
}

impl<'a> Draft<'a> {
    fn new(elements: usize, out: &'a mut Vec<u8>) -> Draft<'a> {
        // While the format is sparse, it is not larger than the bitmap of what is done, and one more piece.
        let area = bitmap_len(elements) + CODE * PIECE.min(elements) + 2 * (CHUNK / BLOCK) + SLACK;
        out.reserve(2 * area);
        Draft {
            out,
            elements,
            area,
            format: Format::Sparse,
            done: 0,
            hits: 0,
            counts: [0; CHUNK / BLOCK],
        }
    }

    fn blocks(&self) -> usize {
        self.elements.div_ceil(BLOCK)
    }

    /// The payload's area, and the one aside.
    fn areas(&mut self) -> (&mut [MaybeUninit<u8>], &mut [MaybeUninit<u8>]) {
        let (area, aside) = self.out.spare_capacity_mut().split_at_mut(self.area);
        (area, &mut aside[..self.area])
    }

    /// Takes the next piece through the fused pass.
    #[inline]
    fn piece(
        &mut self,
        kernels: Kernels,
        rule: &Rule,
        update: &[f32],
        residual: &mut [f32],
        log: &mut Vec<Logged>,
    ) -> Tally {
        let (blocks, done, hits) = (self.blocks(), self.done, self.hits);
        let format = self.format;
        let (area, _) = self.areas();
        let tally = match format {
            Format::Sparse => {
                let codes = &mut area[sparse_len(blocks * BLOCK, hits)..];
                kernels.sparse(rule, update, residual, done, codes, log)
            }
            Format::Bitmap => kernels.bitmap(
                rule,
                update,
                residual,
                done,
                &mut area[bitmap_len(done)..],
                log,
            ),
        };
        self.done += update.len();
        self.hits += tally.hits;
        if format == Format::Sparse {
            self.counts[done / BLOCK] += tally.hits as u16;
            if sparse_len(self.done, self.hits) > bitmap_len(self.done) {
                self.turn_to_bitmap();
            }
        }
        tally
    }

    fn turn_to_bitmap(&mut self) {
        let (codes, blocks, done) = (CODE * self.hits, self.blocks(), self.done);
        let counts = self.counts;
        let (area, aside) = self.areas();
        aside[..codes].copy_from_slice(&area[CODE * blocks..][..codes]);
        area[..bitmap_len(done)].fill(MaybeUninit::new(0));
        let mut at = 0;
        for (block, count) in counts.into_iter().enumerate() {
            for _ in 0..count {
                // SAFETY: the first `codes` bytes aside are a copy of what the sparse kernels wrote.
                let code = unsafe { half(aside, at) };
                at += 1;
                let index = block * BLOCK + usize::from(code & !NEGATIVE);
                let bits: u8 = if code & NEGATIVE == 0 { 0b01 } else { 0b10 };
                // SAFETY: all bytes up to `bitmap_len(done)` were just filled.
                unsafe { *area[index / 4].assume_init_mut() |= bits << (2 * (index % 4)) };
            }
        }
        self.format = Format::Bitmap;
    }

    fn turn_to_sparse(&mut self) {
        let (blocks, done) = (self.blocks(), self.done);
        let mut counts = [0; CHUNK / BLOCK];
        let (area, aside) = self.areas();
        let mut hits = 0;
        for at in 0..bitmap_len(done) / 4 {
            // SAFETY: the format is bitmap, so the kernels wrote all words of what is done.
            let word = unsafe { word(area, at) };
            let mut left = (word | word >> 1) & LOWER;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let index = 16 * at + bit as usize / 2;
                let sign = if word >> bit & 0b10 == 0 { 0 } else { NEGATIVE };
                put(
                    aside,
                    CODE * hits,
                    &((index % BLOCK) as u16 | sign).to_le_bytes(),
                );
                hits += 1;
                counts[index / BLOCK] += 1;
            }
        }
        area[CODE * blocks..][..CODE * hits].copy_from_slice(&aside[..CODE * hits]);
        self.counts = counts;
        self.hits = hits;
        self.format = Format::Sparse;
    }

    /// Keeps only `limit` of the hits: the first ones ascending from element `start`, wrapping. The others are handed
    /// to `put_back` with index and whether negative.
    fn keep(&mut self, limit: usize, start: usize, mut put_back: impl FnMut(usize, bool)) {
        if self.format == Format::Bitmap && sparse_len(self.elements, self.hits) <= self.area {
            self.turn_to_sparse();
        }
        match self.format {
            Format::Sparse => self.keep_sparse(limit, start, &mut put_back),
            Format::Bitmap => self.keep_bitmap(limit, start, &mut put_back),
        }
        self.hits = limit;
    }

    fn keep_sparse(&mut self, limit: usize, start: usize, put_back: &mut impl FnMut(usize, bool)) {
        let (blocks, total, counts) = (self.blocks(), self.hits, self.counts);
        let mut kept_of = [0; CHUNK / BLOCK];
        let (area, _) = self.areas();
        let codes = &mut area[CODE * blocks..];
        let hits = |codes: &[MaybeUninit<u8>], rank: usize, block: usize| {
            // SAFETY: all codes up to `total` were written by the sparse kernels or by `turn_to_sparse`, and `put`
            // below writes only over codes that have been read.
            let code = unsafe { half(codes, rank) };
            (code, block * BLOCK + usize::from(code & !NEGATIVE))
        };
        let places = || {
            counts
                .into_iter()
                .enumerate()
                .flat_map(|(block, n)| (0..n).map(move |_| block))
                .enumerate()
        };
        let before = places()
            .take_while(|&(rank, block)| hits(codes, rank, block).1 < start)
            .count();
        let mut kept = 0;
        for (rank, block) in places() {
            let (code, index) = hits(codes, rank, block);
            if (rank + total - before) % total < limit {
                put(codes, CODE * kept, &code.to_le_bytes());
                kept += 1;
                kept_of[block] += 1;
            } else {
                put_back(index, code & NEGATIVE != 0);
            }
        }
        self.counts = kept_of;
    }

    fn keep_bitmap(&mut self, limit: usize, start: usize, put_back: &mut impl FnMut(usize, bool)) {
        let (total, done) = (self.hits, self.done);
        let (area, _) = self.areas();
        // SAFETY: the format is bitmap, so the kernels wrote all words of what is done; `put` writes whole words.
        let word_at = |area: &[MaybeUninit<u8>], at| unsafe { word(area, at) };
        let mut before = 0;
        for at in 0..start.div_ceil(16) {
            let inside = (start - 16 * at).min(16);
            let mask = if inside == 16 {
                u32::MAX
            } else {
                (1 << (2 * inside)) - 1
            };
            before += (word_at(area, at) & mask).count_ones() as usize;
        }
        let mut rank = 0;
        for at in 0..bitmap_len(done) / 4 {
            let mut word = word_at(area, at);
            let mut left = (word | word >> 1) & LOWER;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                if (rank + total - before) % total >= limit {
                    put_back(16 * at + bit as usize / 2, word >> bit & 0b10 != 0);
                    word &= !(0b11 << bit);
                }
                rank += 1;
            }
            put(area, 4 * at, &word.to_le_bytes());
        }
    }

    /// Takes the smaller format and appends the payload to `out`.
    fn finish(mut self) -> Format {
        let smaller = if sparse_len(self.elements, self.hits) <= bitmap_len(self.elements) {
            Format::Sparse
        } else {
            Format::Bitmap
        };
        match (self.format, smaller) {
            (Format::Bitmap, Format::Sparse) => self.turn_to_sparse(),
            (Format::Sparse, Format::Bitmap) => self.turn_to_bitmap(),
            _ => {}
        }
        let length = match smaller {
            Format::Sparse => {
                let (blocks, counts) = (self.blocks(), self.counts);
                let (area, _) = self.areas();
                for (block, count) in counts[..blocks].iter().enumerate() {
                    put(area, CODE * block, &count.to_le_bytes());
                }
                sparse_len(self.elements, self.hits)
            }
            Format::Bitmap => bitmap_len(self.elements),
        };
        // SAFETY: the area's first `length` bytes are written: the counts just now and the codes of all hits, or the
        // words of all elements.
        unsafe { self.out.set_len(self.out.len() + length) };
        smaller
    }
}

fn put(bytes: &mut [MaybeUninit<u8>], at: usize, what: &[u8]) {
    for (place, &byte) in bytes[at..][..what.len()].iter_mut().zip(what) {
        place.write(byte);
    }
}

/// # Safety
/// The `at`-th two bytes have been written.
unsafe fn half(bytes: &[MaybeUninit<u8>], at: usize) -> u16 {
    let pair = &bytes[CODE * at..][..CODE];
    // SAFETY: the caller's promise.
    u16::from_le_bytes(unsafe { [pair[0].assume_init(), pair[1].assume_init()] })
}

/// # Safety
/// The `at`-th four bytes have been written.
unsafe fn word(bytes: &[MaybeUninit<u8>], at: usize) -> u32 {
    let four = &bytes[4 * at..][..4];
    // SAFETY: the caller's promise.
    u32::from_le_bytes([0, 1, 2, 3].map(|i| unsafe { four[i].assume_init() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_residuals_statistics_are_of_all_when_small_and_near_when_large() {
        assert_eq!(look_at(&[]), (0.0, 0.0));
        assert_eq!(look_at(&[1.0, -3.0, 0.5]), (3.0, 4.5));
        let all: Vec<f32> = (0..1024).map(|i| i as f32).collect();
        assert_eq!(look_at(&all), (1023.0, 1023.0 * 512.0));

        let large: Vec<f32> = (0..CHUNK).map(|i| (i * 7919 % 1000) as f32).collect();
        let (most, l1) = look_at(&large);
        let exact: f64 = large.iter().copied().map(f64::from).sum();
        assert!(
            (900.0..1000.0).contains(&most) && (l1 / exact - 1.0).abs() < 0.1,
            "{most} {l1} {exact}"
        );
    }

    #[test]
    fn clipping_multiples_that_could_cut_what_a_hit_leaves_are_refused() {
        assert_eq!(Clip::new(2.0).map(Clip::multiple), Ok(2.0));
        assert_eq!(Clip::new(1.99), Err(ClipError { found: 1.99 }));
        assert!(Clip::new(f32::NAN).is_err());
    }
}
