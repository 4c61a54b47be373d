//! A chunk's hits block by block, as codes of two bytes, whatever format they came in.

use crate::codec::format::{Checked, Format, NEGATIVE, half, hits_of};
use crate::codec::{BLOCK, CHUNK};

/// The codes of each block of a right record: ascending, inside their block.
pub(super) struct Blocks<'a> {
    codes: [&'a [u8]; CHUNK / BLOCK],
    blocks: usize,
}

impl<'a> Blocks<'a> {
    /// The blocks of `record`. A bitmap's hits are written to `converted`.
    pub(super) fn of(record: &Checked<'a>, converted: &'a mut Vec<u8>) -> Blocks<'a> {
        let blocks = record.record().elements.div_ceil(BLOCK);
        if record.record().format == Format::Bitmap {
            *converted = to_sparse(record);
            return Blocks::of_payload(converted, blocks);
        }
        let mut codes = [&[][..]; CHUNK / BLOCK];
        for (place, (_, found)) in codes.iter_mut().zip(record.blocks()) {
            *place = found;
        }
        Blocks { codes, blocks }
    }

    /// The blocks of a sparse payload that is right.
    pub(super) fn of_payload(payload: &'a [u8], blocks: usize) -> Blocks<'a> {
        let (counts, mut rest) = payload.split_at(2 * blocks);
        let mut codes = [&[][..]; CHUNK / BLOCK];
        for (block, place) in codes[..blocks].iter_mut().enumerate() {
            (*place, rest) = rest.split_at(2 * usize::from(half(counts, block)));
        }
        Blocks { codes, blocks }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        self.codes[..self.blocks].iter().copied()
    }
}

/// The sparse payload of a bitmap's hits.
fn to_sparse(record: &Checked<'_>) -> Vec<u8> {
    let record = record.record();
    let blocks = record.elements.div_ceil(BLOCK);
    let mut payload = vec![0; 2 * blocks + 2 * record.hits as usize];
    let (counts, codes) = payload.split_at_mut(2 * blocks);
    let mut codes = codes.chunks_exact_mut(2);
    let words = record.payload.chunks(BLOCK / 4);
    for (count, words) in counts.chunks_exact_mut(2).zip(words) {
        let before = codes.len();
        for (at, word) in words.chunks_exact(4).enumerate() {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            for (element, negative) in hits_of(word) {
                let index = (16 * at + element) as u16;
                let sign = if negative { NEGATIVE } else { 0 };
                // A checked bitmap has as many hits as its record says.
                if let Some(code) = codes.next() {
                    code.copy_from_slice(&(index | sign).to_le_bytes());
                }
            }
        }
        count.copy_from_slice(&((before - codes.len()) as u16).to_le_bytes());
    }
    payload
}
