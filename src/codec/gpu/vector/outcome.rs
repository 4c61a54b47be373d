//! What came of a step, as it is read back.

use super::layout::{OUTCOME_WORDS, SEEN};
use super::{GpuChunk, GpuStep};
use crate::codec::format::{Format, NEGATIVE, half, hits_of, payload_len};
use crate::codec::ranges::{Chunk, ChunkCoding};
use crate::codec::{BLOCK, Unit};
use std::ops::Range;

/// Words of what clipping took away of a scope: of 256 exponents, elements, and the sum of significands in two words.
pub(super) const CUT_WORDS: usize = 3 * 256;

/// The word at a place of what was read back.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(4 * at..4 * at + 4);
    four.map_or(0, |four| {
        u32::from_le_bytes([four[0], four[1], four[2], four[3]])
    })
}

/// A chunk's record.
pub(super) struct Outcome {
    pub(super) format: Format,
    pub(super) sent: u32,
    /// Its part of the message, in words: the payload, then what stays of the hits that are looked at.
    pub(super) words: Range<usize>,
    /// Bytes of the payload.
    pub(super) payload: usize,
    residual_max: u32,
    sum: [u32; 3],
}

impl Outcome {
    /// The record of chunk number `at`. `None` if no kernel gives such a one.
    pub(super) fn read(records: &[u8], at: usize, chunk: &Chunk) -> Option<Outcome> {
        let field = |field| word(records, OUTCOME_WORDS * at + field);
        let format = Format::try_from(u8::try_from(field(3)).ok()?).ok()?;
        let is_dense = matches!(chunk.coding, ChunkCoding::Dense(_));
        let (elements, sent) = (chunk.elements.len(), field(1));
        if format.dense().is_some() != is_dense {
            return None;
        }
        let payload = payload_len(format, elements, sent as usize)?;
        let seen = match format {
            Format::Sparse => seen_of(sent as usize),
            Format::Bitmap => seen_of(elements.div_ceil(16)),
            Format::DenseF32 | Format::DenseBf16 => 0,
        };
        let start = field(4) as usize;
        Some(Outcome {
            format,
            sent,
            words: start..start + payload.div_ceil(4) + seen,
            payload,
            residual_max: field(5),
            sum: [field(6), field(7), field(8)],
        })
    }

    /// The numbers of the chunk, with its part of the message.
    pub(super) fn chunk(&self, elements: usize, unit: Option<Unit>, message: &[u8]) -> GpuChunk {
        let (payload, seen) = message.split_at(self.payload.next_multiple_of(4));
        let mean = unit.map_or(0.0, |unit| {
            self.mean(elements, unit, &payload[..self.payload], seen)
        });
        GpuChunk {
            format: self.format,
            hits: self.sent,
            mean,
            residual_max: f32::from_bits(self.residual_max),
            residual_l1: self.l1(elements),
        }
    }

    /// The mean |s| of the hits that are looked at: the unit, and what stays of them, in the order of
    /// `Draft::mean_of_hits`, so that it is the same number.
    fn mean(&self, elements: usize, unit: Unit, payload: &[u8], seen: &[u8]) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        let (mut sum, mut count) = (0f64, 0u32);
        let mut see = |at: usize, negative: bool| {
            let rest = f64::from(f32::from_bits(word(seen, at)));
            sum += f64::from(unit.v()) + if negative { -rest } else { rest };
            count += 1;
        };
        if self.format == Format::Bitmap {
            let words = payload.len() / 4;
            for (at, place) in (0..words).step_by(words.div_ceil(SEEN)).enumerate() {
                if let Some((_, negative)) = hits_of(word(payload, place)).next() {
                    see(at, negative);
                }
            }
        } else {
            let (blocks, hits) = (elements.div_ceil(BLOCK), self.sent as usize);
            for (at, rank) in (0..hits).step_by(hits.div_ceil(SEEN)).enumerate() {
                see(at, half(payload, blocks + rank) & NEGATIVE != 0);
            }
        }
        if count == 0 {
            f64::from(unit.v())
        } else {
            sum / f64::from(count)
        }
    }

    /// As `look_at`.
    fn l1(&self, elements: usize) -> f64 {
        let [low, middle, high] = self.sum.map(u64::from);
        let sum = low + (middle << 16) + (high << 32);
        let exponent = (self.residual_max >> 23) as i32;
        let mean = sum as f64 * 2f64.powi(exponent - 174) / looked_at(elements).max(1) as f64;
        mean * elements as f64
    }
}

/// How many of `count` hits, or words, are looked at.
fn seen_of(count: usize) -> usize {
    count.div_ceil(count.div_ceil(SEEN).max(1))
}

/// Elements of the residual's sample: see `look_at`.
fn looked_at(elements: usize) -> usize {
    const LINE: usize = 16;
    const LINES: usize = 64;
    if elements <= LINE * LINES {
        return elements;
    }
    let stride = elements / LINES;
    LINE * (elements / stride) + (elements % stride).min(LINE)
}

/// Bits of the bound of clipping: a multiple of the threshold, rounded once.
pub(super) fn bound(step: &GpuStep<'_>, unit: Unit) -> u32 {
    step.clip
        .map_or(f32::INFINITY, |clip| clip.multiple() * unit.t())
        .to_bits()
}

/// What clipping took away of a scope: exactly, but for the last conversion.
pub(super) fn taken(cut: &[u8], bound: u32) -> f64 {
    let significand = |bits: u32| u128::from(bits & 0x007f_ffff | 0x0080_0000);
    let least = bound >> 23;
    let mut all = 0.0;
    for exponent in least..255 {
        let bucket = 3 * exponent as usize;
        let elements = u128::from(word(cut, bucket));
        if elements == 0 {
            continue;
        }
        let sum = u128::from(word(cut, bucket + 1)) + (u128::from(word(cut, bucket + 2)) << 32);
        let (up, unit) = (exponent - least, 2f64.powi(least as i32 - 150));
        all += if up < 64 {
            // Sums have at most 56 bits.
            ((sum << up).saturating_sub(elements * significand(bound))) as f64 * unit
        } else {
            // The bound is nothing beside them.
            sum as f64 * 2f64.powi(exponent as i32 - 150)
        };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clipping_took_is_exact_whatever_the_exponents() {
        for (bound, values) in [
            (2f32, vec![2.0000002f32, 2.5, 3.999, 4.0, 1e30, 3e38]),
            (2f32.powi(-99), vec![2f32.powi(-98), 2f32.powi(-60), 1.0]),
            (3.0, vec![3.5; 1000]),
        ] {
            let mut cut = vec![0u8; 4 * CUT_WORDS];
            let mut expected = 0.0;
            for x in &values {
                let bits = x.to_bits();
                let at = 12 * (bits >> 23) as usize;
                let mut add = |at: usize, x: u32| {
                    let (sum, is_over) = word(&cut, at / 4).overflowing_add(x);
                    cut[at..at + 4].copy_from_slice(&sum.to_le_bytes());
                    is_over
                };
                add(at, 1);
                if add(at + 4, bits & 0x007f_ffff | 0x0080_0000) {
                    add(at + 8, 1);
                }
                expected += f64::from(*x) - f64::from(bound);
            }
            let found = taken(&cut, bound.to_bits());
            assert!(
                (found - expected).abs() <= 1e-14 * expected,
                "{found} {expected}"
            );
        }
    }

    #[test]
    fn as_many_are_looked_at_as_the_strides_say() {
        for count in 0..1000usize {
            let stride = count.div_ceil(SEEN).max(1);
            assert_eq!(seen_of(count), (0..count).step_by(stride).count());
            assert!(seen_of(count) <= SEEN);
        }
        for elements in (1..5000).chain([32_768, 262_143, 262_144]) {
            let stride = if elements <= 1024 { 16 } else { elements / 64 };
            let runs = (0..elements).step_by(stride);
            let expected: usize = runs.map(|start| (elements - start).min(16)).sum();
            assert_eq!(looked_at(elements), expected, "{elements}");
        }
    }
}
