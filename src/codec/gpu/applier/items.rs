//! The work of a record: which of its entries go to which elements.

use super::batch::Item;
use super::kernels::Kind;
use crate::codec::BLOCK;
use crate::codec::format::{Checked, Format, NEGATIVE};
use crate::codec::gpu::windows::Piece;

/// Appends what of a record lies on a piece. Places count from the record's first entry.
pub(super) fn items_of(record: &Checked<'_>, x: f32, piece: &Piece, items: &mut Vec<Item>) {
    let x = x.to_bits();
    let (start, length) = (piece.from, piece.elements.len());
    if record.record().format != Format::Sparse {
        let most = if record.record().format == Format::Bitmap {
            Kind::Bitmap.most()
        } else {
            Kind::Values.most()
        };
        items.extend((0..length).step_by(most).map(|done| Item {
            place: (start + done) as u32,
            entries: (length - done).min(most) as u32,
            element: piece.elements.start + done as u32,
            x,
        }));
        return;
    }
    let end = start + length;
    let mut place = 0;
    for (block, hits) in record.blocks() {
        let (codes, _) = hits.as_chunks::<2>();
        let index = |code: &[u8; 2]| usize::from(u16::from_le_bytes(*code) & !NEGATIVE);
        if block < end && block + BLOCK > start {
            let from = match start.saturating_sub(block) {
                0 => 0,
                skipped => codes.partition_point(|code| index(code) < skipped),
            };
            let to = match end - block {
                BLOCK.. => codes.len(),
                within => codes.partition_point(|code| index(code) < within),
            };
            items.extend((from..to).step_by(Kind::Sparse.most()).map(|at| {
                Item {
                    place: (place + at) as u32,
                    entries: (to - at).min(Kind::Sparse.most()) as u32,
                    element: (piece.elements.start)
                        .wrapping_add(block as u32)
                        .wrapping_sub(start as u32),
                    x,
                }
            }));
        }
        place += codes.len();
    }
}
