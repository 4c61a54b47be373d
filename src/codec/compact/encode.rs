//! A record's hits into a stream.

use super::bits::Writer;
use super::blocks::Blocks;
use super::parameter::{Lengths, Parameters, length};
use super::{CompactError, ESCAPE, MOST, PAIRED, PARAMETER, width};
use crate::codec::format::{Checked, NEGATIVE, Record};
use crate::codec::{BLOCK, CHUNK};

/// Appends the compact stream of `record`'s hits to `out`; the bytes that it took.
///
/// The stream depends on the hits alone: a sparse record and a bitmap of the same hits give the same bytes. It is never
/// longer than 35 bits a hit and 33 bits.
///
/// # Errors
/// [`CompactError::Record`] when the record is wrong, [`CompactError::Dense`] when it is a dense one; `out` is as it was.
pub fn encode(record: &Record<'_>, out: &mut Vec<u8>) -> Result<usize, CompactError> {
    let record = Checked::new(record)?;
    let Record {
        format,
        elements,
        hits,
        ..
    } = record.record();
    if format.dense().is_some() {
        return Err(CompactError::Dense { format });
    }
    if hits == 0 {
        return Ok(0);
    }
    let mut converted = Vec::new();
    let blocks = Blocks::of(&record, &mut converted);
    let parameters = if Parameters::may_differ(blocks.iter().map(|codes| codes.len() / 2)) {
        Parameters::choose(&lengths(&blocks), elements, hits as usize)
    } else {
        Parameters::shared(elements, hits as usize)
    };

    let before = out.len();
    let head = 1 + PARAMETER as usize * blocks.len();
    let most = (head + MOST * hits as usize).div_ceil(8) + size_of::<u64>();
    out.resize(before + most, 0);
    let mut writer = Writer::new(&mut out[before..]);
    match parameters {
        Parameters::Shared(_) => writer.put(0, 0, 1),
        Parameters::Own(own) => {
            writer.put(0, 1, 1);
            for &k in &own[..blocks.len()] {
                writer.put(0, u64::from(k), PARAMETER);
            }
        }
    }
    write(&blocks, &parameters, width(elements), &mut writer);
    let taken = writer.finish();
    out.truncate(before + taken);
    Ok(taken)
}

/// A hit's element in its block, and whether it is negative.
#[inline(always)]
fn read(code: &[u8; 2]) -> (usize, bool) {
    let code = u16::from_le_bytes(*code);
    (usize::from(code & !NEGATIVE), code & NEGATIVE != 0)
}

/// The lengths of the gaps that begin in each block.
fn lengths(blocks: &Blocks<'_>) -> [Lengths; CHUNK / BLOCK] {
    let mut lengths = [Lengths::default(); CHUNK / BLOCK];
    let mut next = 0;
    for (block, codes) in blocks.iter().enumerate() {
        let first = block * BLOCK;
        let (codes, _) = codes.as_chunks::<2>();
        let Some((code, codes)) = codes.split_first() else {
            continue;
        };
        let hit = first + read(code).0;
        lengths[next / BLOCK][length(hit - next)] += 1;
        next = hit + 1;
        // Neighbours are counted in different places, so that they need not wait for each other.
        let mut odd = Lengths::default();
        let even = &mut lengths[block];
        let (pairs, rest) = codes.as_chunks::<2>();
        for [a, b] in pairs {
            let (a, b) = (first + read(a).0, first + read(b).0);
            even[length(a - next)] += 1;
            odd[length(b - a - 1)] += 1;
            next = b + 1;
        }
        for code in rest {
            let hit = first + read(code).0;
            even[length(hit - next)] += 1;
            next = hit + 1;
        }
        for (even, odd) in even.iter_mut().zip(odd) {
            *even += odd;
        }
    }
    lengths
}

/// All gaps and signs.
fn write(blocks: &Blocks<'_>, parameters: &Parameters, width: u32, writer: &mut Writer<'_>) {
    let mut next = 0;
    for (block, codes) in blocks.iter().enumerate() {
        let first = block * BLOCK;
        let (codes, _) = codes.as_chunks::<2>();
        let Some((code, codes)) = codes.split_first() else {
            continue;
        };
        // The first gap of a block may begin in an earlier one.
        let k = parameters.of(next / BLOCK);
        next = put(writer, code, first, next, k, width);
        writer.flush();
        let k = parameters.of(block);
        let (pairs, rest) = codes.as_chunks::<2>();
        for [a, b] in pairs {
            next = put(writer, a, first, next, k, width);
            if k > PAIRED {
                writer.flush();
            }
            next = put(writer, b, first, next, k, width);
            writer.flush();
        }
        for code in rest {
            next = put(writer, code, first, next, k, width);
            writer.flush();
        }
    }
}

/// A hit's gap and its sign; the element behind it. `next` is the one behind the hit before it.
#[inline(always)]
fn put(
    writer: &mut Writer<'_>,
    code: &[u8; 2],
    first: usize,
    next: usize,
    k: u32,
    width: u32,
) -> usize {
    let (index, negative) = read(code);
    let (hit, negative) = (first + index, u64::from(negative));
    let gap = (hit - next) as u64;
    let q = (gap >> k) as u32;
    if q < ESCAPE {
        let rest = (gap & ((1 << k) - 1)) << 2 | negative << 1 | 1;
        writer.put(q, rest, 2 + k);
    } else {
        writer.flush();
        let above = gap - (u64::from(ESCAPE) << k);
        writer.put(ESCAPE, above << 1 | negative, 1 + width);
        writer.flush();
    }
    hit + 1
}
