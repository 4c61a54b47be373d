//! What is applied with one submission.
//!
//! Additions of floats do not commute with one another: what touches an element must do so in the order of the calls. A
//! batch is a list of *layers*, one after the other on the device; what comes goes into the first layer after the last
//! one that touches any of its elements. So the records of many chunks and N ranks make N layers, however many chunks
//! there are, and a layer is one dispatch for each kernel and window that it needs.

use super::kernels::Kind;
use crate::codec::gpu::windows::Piece;
use bytemuck::{Pod, Zeroable};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// What a workgroup does. See `shaders/shared/applying.wgsl`.
#[derive(Clone, Copy, Debug, Pod, Zeroable, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Item {
    pub(super) place: u32,
    pub(super) entries: u32,
    pub(super) element: u32,
    pub(super) x: u32,
}

/// Bytes of payloads in a batch.
pub(super) const PAYLOAD: usize = 7 << 19;
/// Items in a batch.
pub(super) const ITEMS: usize = 1 << 14;
/// Dispatches in a batch.
pub(super) const DISPATCHES: usize = 1 << 9;

// The largest record, a chunk of values, fits.
const _: () = assert!(PAYLOAD >= 4 * crate::codec::CHUNK);

/// The items of one dispatch.
pub(super) struct Group {
    pub(super) window: usize,
    pub(super) kind: Kind,
    pub(super) items: Vec<Item>,
}

/// What can be done at the same time.
#[derive(Default)]
pub(super) struct Layer {
    /// Windows, and elements of theirs, that become +0.
    pub(super) clears: Vec<(usize, Range<u32>)>,
    /// Which groups.
    pub(super) groups: Vec<usize>,
}

/// The elements of a window that a batch touches: where a run of them begins to where it ends, and the last layer that
/// touches it.
type Touched = BTreeMap<u32, (u32, usize)>;

#[derive(Default)]
pub(super) struct Batch {
    pub(super) payload: Vec<u8>,
    /// The first `layers_used` are of this batch; the others keep their memory for the next one. Likewise the groups.
    layers: Vec<Layer>,
    layers_used: usize,
    groups: Vec<Group>,
    groups_used: usize,
    /// Which group has the items of a layer, a window and a kind.
    numbers: HashMap<(usize, usize, Kind), usize>,
    items: usize,
    touched: Vec<Touched>,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            payload: Vec::with_capacity(PAYLOAD),
            ..Batch::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.layers_used == 0
    }

    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers[..self.layers_used]
    }

    pub(super) fn group(&self, number: usize) -> &Group {
        &self.groups[number]
    }

    /// How many groups there are.
    pub(super) fn dispatches(&self) -> usize {
        self.groups_used
    }

    pub(super) fn clear(&mut self) {
        self.payload.clear();
        for layer in &mut self.layers[..self.layers_used] {
            layer.clears.clear();
            layer.groups.clear();
        }
        for group in &mut self.groups[..self.groups_used] {
            group.items.clear();
        }
        (self.layers_used, self.groups_used, self.items) = (0, 0, 0);
        self.numbers.clear();
        self.touched.iter_mut().for_each(BTreeMap::clear);
    }

    /// The bytes for which a payload has room, if it begins at a whole word.
    pub(super) fn room(&self) -> usize {
        PAYLOAD - self.payload.len().next_multiple_of(4)
    }

    /// Whether one more item, in a group of its own, has room.
    pub(super) fn has_room(&self) -> bool {
        self.items < ITEMS && self.groups_used < DISPATCHES
    }

    /// The layer in which a piece can be touched now. From now on it is touched there.
    pub(super) fn layer(&mut self, piece: &Piece) -> usize {
        if self.touched.len() <= piece.window {
            self.touched.resize_with(piece.window + 1, Touched::new);
        }
        let layer = touch(&mut self.touched[piece.window], piece.elements.clone());
        while self.layers_used <= layer {
            if self.layers_used == self.layers.len() {
                self.layers.push(Layer::default());
            }
            self.layers_used += 1;
        }
        layer
    }

    /// Adds an item to a layer. There must be [room](Self::has_room).
    pub(super) fn add(&mut self, layer: usize, window: usize, kind: Kind, item: Item) {
        let number = *self
            .numbers
            .entry((layer, window, kind))
            .or_insert_with(|| {
                let number = self.groups_used;
                match self.groups.get_mut(number) {
                    Some(group) => (group.window, group.kind) = (window, kind),
                    None => self.groups.push(Group {
                        window,
                        kind,
                        items: Vec::new(),
                    }),
                }
                self.groups_used += 1;
                self.layers[layer].groups.push(number);
                number
            });
        self.groups[number].items.push(item);
        self.items += 1;
    }

    /// Makes a piece +0, after what touches it already.
    pub(super) fn make_zero(&mut self, piece: &Piece) {
        let layer = self.layer(piece);
        let clears = &mut self.layers[layer].clears;
        let elements = piece.elements.clone();
        match clears.last_mut() {
            // Chunk for chunk is one run.
            Some((window, before)) if *window == piece.window && before.end == elements.start => {
                before.end = elements.end;
            }
            _ => clears.push((piece.window, elements)),
        }
    }
}

/// The first layer after all that touch any of these elements; now it is the last one that does.
fn touch(touched: &mut Touched, elements: Range<u32>) -> usize {
    split(touched, elements.start);
    split(touched, elements.end);
    let mut layer = 0;
    while let Some((&start, &(_, last))) = touched.range(elements.clone()).next() {
        layer = layer.max(last + 1);
        touched.remove(&start);
    }
    touched.insert(elements.start, (elements.end, layer));
    layer
}

/// Makes `at` the start of a run, if it is inside of one.
fn split(touched: &mut Touched, at: u32) {
    if let Some((&start, &(end, layer))) = touched.range(..at).next_back()
        && end > at
    {
        touched.insert(start, (at, layer));
        touched.insert(at, (end, layer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_an_element_goes_behind_whatever_touched_it_before() {
        let mut touched = Touched::new();
        // The last layer of each element, one by one.
        let mut last: [Option<usize>; 24] = [None; 24];
        let mut state = 1u32;
        for _ in 0..2000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let start = state >> 8 & 15;
            let end = start + 1 + (state >> 16 & 7);
            let range = start as usize..end as usize;
            let expected = last[range.clone()]
                .iter()
                .map(|last| last.map_or(0, |last| last + 1))
                .max();
            assert_eq!(Some(touch(&mut touched, start..end)), expected);
            last[range].fill(expected);
            if expected >= Some(9) {
                touched.clear();
                last.fill(None);
            }
        }
    }

    #[test]
    fn records_of_many_chunks_and_some_ranks_make_a_layer_a_rank() {
        let mut touched = Touched::new();
        for chunk in 0..100 {
            for rank in 0..4 {
                assert_eq!(touch(&mut touched, 10 * chunk..10 * chunk + 10), rank);
            }
        }
    }
}
