//! A chunk's payload in the making.
//!
//! Two stages, so that several chunks can be in the first one at the same time: [`Draft::fill`] is the fused pass over
//! the vectors, for any budget; [`Draft::finish`] keeps the budget, clips and lays the payload out, chunk after chunk.

use super::arithmetic::{INFINITY, SIGN, Unit};
use super::cpu::{Kernels, Logged, Rule, SLACK, Tally};
use super::encode::{ChunkOptions, Encoded, look_at};
use super::format::{Format, NEGATIVE, bitmap_len, half, hits_of, sparse_len};
use super::given::{self, Cursor, Room, with_piece};
use super::values::Element;
use super::{BLOCK, CHUNK};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;

/// Bytes of a sparse hit.
pub(crate) const CODE: usize = 2;

/// Elements between two looks at which format is the smaller one. Pieces never cross a block's end.
const PIECE: usize = given::PIECE;
const _: () = assert!(BLOCK.is_multiple_of(PIECE) && PIECE.is_multiple_of(32));

/// One hit in so many elements makes a piece dense.
const DENSE: usize = 256;
/// One in so many makes it crowded.
const CROWDED: usize = 32;

/// About how many hits of a chunk [`Encoded::mean`] looks at.
const SEEN: usize = 64;

/// A payload in the making, in the spare capacity of its buffer: an area where it will stand, and another of the same
/// size where hits lie aside while they are turned from one format to the other.
///
/// Filled again and again, it keeps its memory.
#[derive(Default)]
pub(crate) struct Draft {
    out: Vec<u8>,
    elements: usize,
    area: usize,
    format: Format,
    /// Elements seen so far.
    done: usize,
    /// Hits in it so far.
    hits: usize,
    /// Of each block; kept in the sparse format only.
    counts: [u16; CHUNK / BLOCK],
    /// Empty, and so without memory that was ever touched, unless hits that may be put back meet elements of more than
    /// 2^16 v.
    log: Vec<Logged>,
    tally: Tally,
}

impl Draft {
    /// A draft with room for chunks of up to `elements`, whatever their format.
    pub(crate) fn with_room(elements: usize) -> Draft {
        let bytes = (2 * area(elements)).max(size_of::<f32>() * elements.min(BLOCK));
        Draft {
            out: Vec::with_capacity(bytes),
            log: Vec::with_capacity(elements),
            ..Draft::default()
        }
    }

    /// A draft whose payload is to be appended to `out`.
    pub(crate) fn after(out: Vec<u8>) -> Draft {
        Draft {
            out,
            ..Draft::default()
        }
    }

    /// The buffer, with the payload of a finished draft at its end.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.out
    }

    /// The buffer, to be emptied or to be taken away.
    pub(crate) fn payload_mut(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes of the payload in its format.
    fn length(&self) -> usize {
        if self.format == Format::Bitmap {
            bitmap_len(self.elements)
        } else {
            sparse_len(self.elements, self.hits)
        }
    }

    /// The fused pass over a chunk: accumulates, and collects all hits (none if even the largest budget is 0).
    ///
    /// `budgets`: what the budget in [`finish`](Draft::finish) may come to be.
    pub(crate) fn fill(
        &mut self,
        kernels: Kernels,
        residual: &mut [f32],
        mut update: Cursor<'_>,
        unit: Unit,
        budgets: RangeInclusive<usize>,
    ) {
        let elements = residual.len();
        self.area = area(elements);
        self.out.reserve(2 * self.area);
        self.elements = elements;
        self.format = Format::Sparse;
        (self.done, self.hits) = (0, 0);
        self.counts = [0; CHUNK / BLOCK];
        self.log.clear();
        self.tally = Tally::default();

        let nothing = *budgets.end() == 0;
        let may_bind = !nothing && *budgets.start() < elements;
        let mut rule = Rule {
            threshold: if nothing {
                INFINITY
            } else {
                unit.t().to_bits()
            },
            unit: unit.v(),
            // Below 2^16 v what a hit leaves is exact, so that `s` can be had back from it.
            logged: if may_bind {
                (unit.v() * 65536.0).to_bits()
            } else {
                u32::MAX
            },
            dense: false,
            crowded: false,
        };
        let mut room = Room::default();
        for residual in residual.chunks_mut(PIECE) {
            let piece = update.next(residual.len(), &mut room);
            let seen = with_piece!(piece, update => self.piece(kernels, &rule, update, residual));
            // The next piece is likely to be as this one.
            rule.dense = DENSE * seen.hits > residual.len();
            rule.crowded = CROWDED * seen.hits > residual.len();
            self.tally.add(seen);
        }
    }

    /// Ends a draft that was filled from this chunk with this unit: puts hits back that are past the budget, clips, and
    /// appends the payload.
    pub(crate) fn finish(
        &mut self,
        kernels: Kernels,
        residual: &mut [f32],
        unit: Unit,
        options: &ChunkOptions,
    ) -> Encoded {
        let elements = residual.len();
        if let Some(budget) = options.budget
            && self.hits > budget.max_hits
        {
            let log = std::mem::take(&mut self.log);
            // Both the log and what is put back ascend.
            let mut logged = log.iter().peekable();
            self.keep(
                budget.max_hits,
                budget.start % elements,
                |index, negative| {
                    let place = index as u32;
                    while logged.next_if(|entry| entry.0 < place).is_some() {}
                    let sign = if negative { SIGN } else { 0 };
                    residual[index] = match logged.next_if(|entry| entry.0 == place) {
                        Some(&(_, s)) => s,
                        None => residual[index] + f32::from_bits(unit.v().to_bits() | sign),
                    };
                },
            );
            self.log = log;
        }
        let before = self.out.len();
        self.lay_out();
        let mean = self.mean_of_hits(before, residual, unit);

        let mut clipped = 0.0;
        if let Some(clip) = options.clip {
            let bound = clip.multiple() * unit.t();
            // A hit leaves at most its |s|, or t.
            if f32::from_bits(self.tally.largest) > bound {
                clipped = kernels.clamp(residual, bound);
            }
        }
        let (residual_max, residual_l1) = look_at(residual);
        Encoded {
            format: self.format,
            hits: self.hits as u32,
            dropped: self.tally.dropped,
            clipped,
            mean,
            residual_max,
            residual_l1,
        }
    }

    /// The mean |s| of about [`SEEN`] hits, evenly spread over those of the payload that begins at `start`: the unit, and
    /// what stays of them in the cache-hot residual.
    fn mean_of_hits(&self, start: usize, residual: &[f32], unit: Unit) -> f64 {
        if self.hits == 0 {
            return 0.0;
        }
        let payload = &self.out[start..];
        let (mut sum, mut seen) = (0f64, 0u32);
        let mut see = |index: usize, negative: bool| {
            let rest = f64::from(residual[index]);
            sum += f64::from(unit.v()) + if negative { -rest } else { rest };
            seen += 1;
        };
        if self.format == Format::Bitmap {
            let stride = (payload.len() / 4).div_ceil(SEEN);
            for (at, word) in payload.chunks_exact(4).enumerate().step_by(stride) {
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                if let Some((element, negative)) = hits_of(word).next() {
                    see(16 * at + element, negative);
                }
            }
        } else {
            let stride = self.hits.div_ceil(SEEN);
            let (mut first, mut next) = (0, 0);
            for block in 0..self.blocks() {
                let end = first + usize::from(self.counts[block]);
                while next < end {
                    let code = half(payload, self.blocks() + next);
                    see(
                        block * BLOCK + usize::from(code & !NEGATIVE),
                        code & NEGATIVE != 0,
                    );
                    next += stride;
                }
                first = end;
            }
        }
        if seen == 0 {
            f64::from(unit.v())
        } else {
            sum / f64::from(seen)
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
    fn piece<T: Element>(
        &mut self,
        kernels: Kernels,
        rule: &Rule,
        update: &[T],
        residual: &mut [f32],
    ) -> Tally {
        let (blocks, done, hits) = (self.blocks(), self.done, self.hits);
        let format = self.format;
        let mut log = std::mem::take(&mut self.log);
        let (area, _) = self.areas();
        let tally = if format == Format::Bitmap {
            let words = &mut area[bitmap_len(done)..];
            kernels.bitmap(rule, update, residual, done, words, &mut log)
        } else {
            let codes = &mut area[sparse_len(blocks * BLOCK, hits)..];
            kernels.sparse(rule, update, residual, done, codes, &mut log)
        };
        self.log = log;
        self.done += update.len();
        self.hits += tally.hits;
        if format != Format::Bitmap {
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
                let code = unsafe { written_half(aside, at) };
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
            for (element, negative) in hits_of(word) {
                let index = 16 * at + element;
                let sign = if negative { NEGATIVE } else { 0 };
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
    /// to `put_back` with index, ascending, and whether negative.
    fn keep(&mut self, limit: usize, start: usize, mut put_back: impl FnMut(usize, bool)) {
        if self.format == Format::Bitmap && sparse_len(self.elements, self.hits) <= self.area {
            self.turn_to_sparse();
        }
        if self.format == Format::Bitmap {
            self.keep_bitmap(limit, start, &mut put_back);
        } else {
            self.keep_sparse(limit, start, &mut put_back);
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
            let code = unsafe { written_half(codes, rank) };
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
            for (element, negative) in hits_of(word) {
                if (rank + total - before) % total >= limit {
                    put_back(16 * at + element, negative);
                    word &= !(0b11 << (2 * element));
                }
                rank += 1;
            }
            put(area, 4 * at, &word.to_le_bytes());
        }
    }

    /// Takes the smaller format and appends the payload to the buffer.
    fn lay_out(&mut self) {
        let smaller = if sparse_len(self.elements, self.hits) <= bitmap_len(self.elements) {
            Format::Sparse
        } else {
            Format::Bitmap
        };
        if self.format != smaller {
            match smaller {
                Format::Bitmap => self.turn_to_bitmap(),
                _ => self.turn_to_sparse(),
            }
        }
        if smaller == Format::Sparse {
            let (blocks, counts) = (self.blocks(), self.counts);
            let (area, _) = self.areas();
            for (block, count) in counts[..blocks].iter().enumerate() {
                put(area, CODE * block, &count.to_le_bytes());
            }
        }
        let length = self.length();
        // SAFETY: the area's first `length` bytes are written: the counts just now and the codes of all hits, or the
        // words of all elements.
        unsafe { self.out.set_len(self.out.len() + length) };
    }
}

/// Calls `with` for the index of each hit of a payload that this encoder, or a device, has laid out.
pub(crate) fn each_hit(
    format: Format,
    elements: usize,
    payload: &[u8],
    mut with: impl FnMut(usize),
) {
    match format {
        Format::Sparse => {
            let halves = payload.as_chunks::<CODE>().0;
            let (counts, codes) = halves.split_at(elements.div_ceil(BLOCK).min(halves.len()));
            let mut codes = codes.iter();
            for (block, &count) in counts.iter().enumerate() {
                for &code in codes.by_ref().take(usize::from(u16::from_le_bytes(count))) {
                    let index = usize::from(u16::from_le_bytes(code) & !NEGATIVE);
                    with(block * BLOCK + index);
                }
            }
        }
        Format::Bitmap => {
            for (at, &word) in payload.as_chunks::<4>().0.iter().enumerate() {
                let word = u32::from_le_bytes(word);
                hits_of(word).for_each(|(element, _)| with(16 * at + element));
            }
        }
        Format::DenseF32 | Format::DenseBf16 => {}
    }
}

/// Bytes of an area. While the format is sparse, it is not larger than the bitmap of what is done, and one more piece.
fn area(elements: usize) -> usize {
    bitmap_len(elements) + CODE * PIECE.min(elements) + 2 * (CHUNK / BLOCK) + SLACK
}

fn put(bytes: &mut [MaybeUninit<u8>], at: usize, what: &[u8]) {
    for (place, &byte) in bytes[at..][..what.len()].iter_mut().zip(what) {
        place.write(byte);
    }
}

/// # Safety
/// The `at`-th two bytes have been written.
unsafe fn written_half(bytes: &[MaybeUninit<u8>], at: usize) -> u16 {
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
