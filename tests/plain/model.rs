//! The rules of the codec, one element at a time.

use super::{Kind, Random, residual};
use gradring::codec::{BLOCK, ChunkOptions, Dense, Format, Unit, canon, payload_len};

/// What one encode leaves and says.
#[derive(Debug)]
pub struct Outcome {
    pub hits: Vec<(usize, bool)>,
    pub residual: Vec<f32>,
    pub clipped: f64,
    pub dropped: u32,
}

/// `s`, and whether the element of the update was dropped.
fn accumulate(r: f32, u: f32) -> (f32, bool) {
    let sum = r + canon(u);
    if u.is_finite() && sum.is_finite() {
        (canon(sum), false)
    } else {
        (r, true)
    }
}

fn accumulated(residual: &[f32], update: &[f32]) -> (Vec<f32>, u32) {
    assert_eq!(residual.len(), update.len());
    let mut dropped = 0;
    let sums = residual.iter().zip(update).map(|(&r, &u)| {
        let (s, is_dropped) = accumulate(r, u);
        dropped += u32::from(is_dropped);
        s
    });
    (sums.collect(), dropped)
}

/// A chunk with a threshold.
pub fn encode(residual: &[f32], update: &[f32], unit: Unit, options: &ChunkOptions) -> Outcome {
    let n = residual.len();
    let (mut after, dropped) = accumulated(residual, update);
    let start = options.budget.map_or(0, |budget| budget.start);
    let order = (0..n).map(|k| (start + k) % n);
    let mut chosen: Vec<usize> = order.filter(|&i| after[i].abs() >= unit.t()).collect();
    chosen.truncate(options.budget.map_or(n, |budget| budget.max_hits));
    chosen.sort_unstable();
    let mut hits = Vec::new();
    for i in chosen {
        let negative = after[i] < 0.0;
        hits.push((i, negative));
        after[i] = canon(if negative {
            after[i] + unit.v()
        } else {
            after[i] - unit.v()
        });
    }
    let mut clipped = 0.0;
    if let Some(clip) = options.clip {
        let bound = clip.multiple() * unit.t();
        for r in &mut after {
            let kept = r.clamp(-bound, bound);
            clipped += (f64::from(*r) - f64::from(kept)).abs();
            *r = kept;
        }
    }
    Outcome {
        hits,
        residual: after,
        clipped,
        dropped,
    }
}

/// The bf16 nearest to `s`, of two equally near the even one, never an infinity, by looking at both neighbours.
pub fn to_bf16(s: f32) -> f32 {
    let towards_zero = f32::from_bits(s.to_bits() & 0xffff_0000);
    let away = f32::from_bits((s.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
    if !away.is_finite() {
        return towards_zero;
    }
    let distance = |m: f32| (f64::from(s) - f64::from(m)).abs();
    let is_even = |m: f32| m.to_bits() >> 16 & 1 == 0;
    let (low, high) = (distance(towards_zero), distance(away));
    if low < high || low == high && is_even(towards_zero) {
        towards_zero
    } else {
        away
    }
}

/// A chunk without compression: what goes out, what stays, and how many elements were dropped.
pub fn dense(residual: &[f32], update: &[f32], number: Dense) -> (Vec<f32>, Vec<f32>, u32) {
    let (sums, dropped) = accumulated(residual, update);
    let message: Vec<f32> = match number {
        Dense::F32 => sums.clone(),
        Dense::Bf16 => sums.iter().map(|&s| to_bf16(s)).collect(),
    };
    let rest = sums.iter().zip(&message).map(|(&s, &m)| canon(s - m));
    (message.clone(), rest.collect(), dropped)
}

/// The payload of these hits, made by hand.
pub fn payload(format: Format, elements: usize, hits: &[(usize, bool)]) -> Vec<u8> {
    match format {
        Format::Sparse => {
            let blocks = elements.div_ceil(BLOCK);
            let mut counts = vec![0u16; blocks];
            for (i, _) in hits {
                counts[i / BLOCK] += 1;
            }
            let code =
                |&(i, negative): &(usize, bool)| (i % BLOCK) as u16 | u16::from(negative) << 15;
            let halves = counts.into_iter().chain(hits.iter().map(code));
            halves.flat_map(u16::to_le_bytes).collect()
        }
        Format::Bitmap => {
            let mut bytes = vec![0u8; 4 * elements.div_ceil(16)];
            for &(i, negative) in hits {
                bytes[i / 4] |= if negative { 2 } else { 1 } << (2 * (i % 4));
            }
            bytes
        }
        other => panic!("{other} has no hits"),
    }
}

/// The payload, as f32, of values that are those of either number.
pub fn payload_of_values(random: &mut Random, elements: usize, unit: Unit) -> Vec<u8> {
    let values = residual(random, elements, Kind::Mixed, unit);
    let values = values.into_iter().map(|x| canon(to_bf16(x)).to_le_bytes());
    values.flatten().collect()
}

/// What a payload says, read by hand.
#[derive(Debug, PartialEq)]
pub enum Message {
    Hits(Vec<(usize, bool)>),
    Values(Vec<u32>),
}

/// Reads a payload of our own.
pub fn decode(format: Format, elements: usize, payload: &[u8]) -> Message {
    let half = |at: usize| u16::from_le_bytes([payload[2 * at], payload[2 * at + 1]]);
    match format {
        Format::Sparse => {
            let blocks = elements.div_ceil(BLOCK);
            let mut at = blocks;
            let mut hits = Vec::new();
            for block in 0..blocks {
                for _ in 0..half(block) {
                    let code = half(at);
                    hits.push((BLOCK * block + usize::from(code & 0x7fff), code >> 15 == 1));
                    at += 1;
                }
            }
            assert_eq!(2 * at, payload.len());
            Message::Hits(hits)
        }
        Format::Bitmap => {
            assert_eq!(payload.len(), 4 * elements.div_ceil(16));
            let code = |i: usize| payload[i / 4] >> (2 * (i % 4)) & 3;
            let hits = (0..elements).filter_map(|i| match code(i) {
                0 => None,
                1 => Some((i, false)),
                2 => Some((i, true)),
                _ => panic!("element {i} is 11"),
            });
            Message::Hits(hits.collect())
        }
        Format::DenseF32 => {
            assert_eq!(payload.len(), 4 * elements);
            let values = payload.chunks_exact(4);
            let bits = values.map(|x| u32::from_le_bytes([x[0], x[1], x[2], x[3]]));
            Message::Values(bits.collect())
        }
        Format::DenseBf16 => {
            assert_eq!(payload.len(), 2 * elements);
            Message::Values((0..elements).map(|at| u32::from(half(at)) << 16).collect())
        }
    }
}

/// The smaller of the two formats with hits.
pub fn smaller(elements: usize, hits: usize) -> Format {
    let length = |format| payload_len(format, elements, hits).expect("a possible record");
    if length(Format::Sparse) <= length(Format::Bitmap) {
        Format::Sparse
    } else {
        Format::Bitmap
    }
}
