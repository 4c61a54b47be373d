//! How a vector lies in the memory of a device: the twin of `shaders/shared/layout.wgsl`.
//!
//! Chunks, tiles and scopes are numbered through the whole vector. What a device binds at a time is bounded, so the
//! vector's memory is cut into windows of whole chunks.

use crate::codec::format::bitmap_len;
use crate::codec::ranges::{Chunk, ChunkCoding};
use crate::codec::{BLOCK, Dense};
use std::ops::Range;

/// Elements of a tile: a workgroup's work.
pub(super) const TILE: usize = 4096;
/// Words of a tile's mask: a bit an element.
pub(super) const MASK_WORDS: usize = TILE / 32;
/// What stands for a scope where a chunk is sent whole.
const DENSE_F32: u32 = u32::MAX;
const DENSE_BF16: u32 = u32::MAX - 1;
/// The most hits of a chunk, or words of its bitmap, whose mean is looked at.
pub(super) const SEEN: usize = 64;
/// Words of a chunk's record.
const CHUNK_WORDS: usize = 5;
/// Words of what a step finds out of a chunk.
pub(super) const OUTCOME_WORDS: usize = 9;

/// Whole chunks, whose memory is one buffer of each kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Window {
    pub(super) elements: Range<usize>,
    pub(super) chunks: Range<usize>,
    pub(super) tiles: Range<usize>,
    /// Words that the message can have at most.
    pub(super) message: usize,
    /// Which kinds of chunks it has.
    pub(super) has_hits: bool,
    pub(super) has_f32: bool,
    pub(super) has_bf16: bool,
}

impl Window {
    fn after(before: Option<&Window>) -> Window {
        let (elements, chunks, tiles) = before.map_or((0, 0, 0), |window| {
            (window.elements.end, window.chunks.end, window.tiles.end)
        });
        Window {
            elements: elements..elements,
            chunks: chunks..chunks,
            tiles: tiles..tiles,
            message: 0,
            has_hits: false,
            has_f32: false,
            has_bf16: false,
        }
    }

    /// The bytes of its largest buffer.
    fn bytes(&self) -> usize {
        let words = self.elements.len().max(self.message);
        4 * words.max(MASK_WORDS * self.tiles.len())
    }
}

/// Where everything lies.
pub(super) struct Layout {
    pub(super) windows: Vec<Window>,
    /// A record of each chunk.
    pub(super) chunks: Vec<u32>,
    /// The chunk of each tile.
    pub(super) tiles: Vec<u32>,
    /// The chunks that have a threshold, by scope.
    pub(super) order: Vec<u32>,
    /// Where in that order each scope's chunks are.
    pub(super) scopes: Vec<Range<usize>>,
}

impl Layout {
    /// Cuts windows of at most so many bytes a buffer.
    pub(super) fn new(chunks: &[Chunk], scopes: usize, most: u64) -> Layout {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut order: Vec<(usize, u32)> = Vec::new();
        for (number, chunk) in (0..).zip(chunks) {
            if let ChunkCoding::Threshold(scope) = chunk.coding {
                order.push((scope, number));
            }
        }
        order.sort_unstable();
        let mut places = vec![0; chunks.len()];
        for (place, &(_, number)) in (0..).zip(&order) {
            places[number as usize] = place;
        }
        let of_scope = |scope: usize| {
            let first = order.partition_point(|entry| entry.0 < scope);
            first..order.partition_point(|entry| entry.0 <= scope)
        };
        let scopes = (0..scopes).map(of_scope).collect();

        let mut windows = Vec::new();
        let mut records = Vec::with_capacity(CHUNK_WORDS * chunks.len());
        let mut tiles: Vec<u32> = Vec::new();
        let mut open = Window::after(None);
        for (number, chunk) in chunks.iter().enumerate() {
            let mut longer = with(&open, chunk);
            if longer.bytes() > most && !open.chunks.is_empty() {
                let next = Window::after(Some(&open));
                longer = with(&next, chunk);
                windows.push(open);
            }
            open = longer;
            let coding = match chunk.coding {
                ChunkCoding::Threshold(scope) => scope as u32,
                ChunkCoding::Dense(Dense::F32) => DENSE_F32,
                ChunkCoding::Dense(Dense::Bf16) => DENSE_BF16,
            };
            let start = chunk.elements.start - open.elements.start;
            records.extend([
                start as u32,
                chunk.elements.len() as u32,
                tiles.len() as u32,
                coding,
                places[number],
            ]);
            tiles.resize(open.tiles.end, number as u32);
        }
        if !open.chunks.is_empty() {
            windows.push(open);
        }
        Layout {
            windows,
            chunks: records,
            tiles,
            order: order.into_iter().map(|entry| entry.1).collect(),
            scopes,
        }
    }
}

/// A window with one more chunk.
fn with(window: &Window, chunk: &Chunk) -> Window {
    let mut window = window.clone();
    let elements = chunk.elements.len();
    window.elements.end += elements;
    window.chunks.end += 1;
    window.tiles.end += elements.div_ceil(TILE);
    window.message += match chunk.coding {
        // The longer format, and what stays of the hits that are looked at.
        ChunkCoding::Threshold(_) => {
            let payload = bitmap_len(elements).max(2 * elements.div_ceil(BLOCK));
            payload.div_ceil(4) + elements.min(SEEN)
        }
        ChunkCoding::Dense(number) => (number.bytes() * elements).div_ceil(4),
    };
    match chunk.coding {
        ChunkCoding::Threshold(_) => window.has_hits = true,
        ChunkCoding::Dense(Dense::F32) => window.has_f32 = true,
        ChunkCoding::Dense(Dense::Bf16) => window.has_bf16 = true,
    }
    window
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CHUNK;
    use crate::codec::ranges::chunks;

    #[test]
    fn windows_cover_the_vector_and_hold_no_more_than_they_may() {
        let ranges = (0..40).map(|range: usize| {
            let coding = match range % 4 {
                0 => ChunkCoding::Dense(Dense::F32),
                1 => ChunkCoding::Dense(Dense::Bf16),
                scope => ChunkCoding::Threshold(scope - 2),
            };
            (range * range * 997, coding)
        });
        let chunks: Vec<Chunk> = chunks(ranges).collect();
        for most in [1 << 20, 1 << 22, 1 << 30] {
            let layout = Layout::new(&chunks, 2, most);
            let mut elements = 0;
            for (window, next) in layout.windows.iter().zip(1..) {
                assert!(window.bytes() as u64 <= most);
                assert_eq!(window.elements.start, elements);
                elements = window.elements.end;
                let of_chunks = &chunks[window.chunks.clone()];
                assert_eq!(of_chunks[0].elements.start, window.elements.start);
                assert_eq!(of_chunks[of_chunks.len() - 1].elements.end, elements);
                // It could not have held one more chunk.
                if let Some(next) = layout.windows.get(next) {
                    let first = &chunks[next.chunks.start];
                    assert!(with(window, first).bytes() as u64 > most);
                }
            }
            assert_eq!(elements, chunks[chunks.len() - 1].elements.end);
            let ends = layout.windows.last().unwrap();
            assert_eq!(ends.chunks.end, chunks.len());
            assert_eq!(ends.tiles.end, layout.tiles.len());
            for (tile, &chunk) in layout.tiles.iter().enumerate() {
                let record = &layout.chunks[CHUNK_WORDS * chunk as usize..][..CHUNK_WORDS];
                let inside = (tile - record[2] as usize) * TILE;
                assert!(inside < record[1] as usize);
            }
        }
    }

    #[test]
    fn chunks_are_ordered_by_scope_and_each_knows_its_place() {
        let ranges = [
            (CHUNK + 5, ChunkCoding::Threshold(1)),
            (3, ChunkCoding::Dense(Dense::F32)),
            (7, ChunkCoding::Threshold(0)),
            (9, ChunkCoding::Threshold(1)),
        ];
        let chunks: Vec<Chunk> = chunks(ranges).collect();
        let layout = Layout::new(&chunks, 3, 1 << 30);
        assert_eq!(layout.order, [3, 0, 1, 4]);
        assert_eq!(layout.scopes, [0..1, 1..4, 4..4]);
        for (place, &chunk) in (0..).zip(&layout.order) {
            assert_eq!(layout.chunks[CHUNK_WORDS * chunk as usize + 4], place);
        }
        assert!(Layout::new(&[], 1, 1 << 30).windows.is_empty());
    }
}
