//! A rank's cells: its words for what it counts and sums up. One writer, the rank; readers never hold it up.
//!
//! ```text
//! word 0                    entries in the directory                   Release after an entry is whole; Acquire
//! entries   E x ENTRY       the directory, append-only: what is where, and what it is called
//! cells     C x CELL        what is counted; a key takes as many as it needs, one after another
//!
//! entry:    kind and length of the text | accumulator | where its words begin | length | keys[2] | first[2] | text
//!           of an accumulator: kind and length | - | changes[2] | keys[2] | first[2] | text
//! a key:    mirror[4] | edges of a histogram | link, buffer 0 | link, buffer 1
//! ```
//!
//! All words are written by their rank only, Relaxed. Zero words are a valid, empty region. Whatever a peer writes there,
//! reading gives numbers or nothing: every index is checked, every walk is bounded.
//!
//! What is added goes to one of two buffers, in turn ([`Deltas`]), and to the key's mirror: words that are right one by
//! one at any time, for displays.

mod deltas;
mod directory;
pub mod exact;
mod words;

#[cfg(not(loom))]
use super::layout::PAGE;
pub use deltas::{Deltas, Key, each_pending};
pub use directory::{Directory, Entry, Full, MAX_TEXT, Region};
pub use words::{Mirror, clear, count, extreme, read_sum, sum};
#[cfg(not(loom))]
pub(crate) use words::{at_place, extreme_of, later};

/// Cells of a rank unless somebody asks for another number.
pub const DEFAULT_CELLS: usize = 256;
/// The most cells of a rank.
pub const MAX_CELLS: usize = 1 << 24;
/// 8-byte words of a cell: whole lines, and room for a mean of two buffers.
#[cfg(not(loom))]
pub const CELL_WORDS: usize = 160;
/// Small, because the model checker makes all of them in each execution.
#[cfg(loom)]
pub const CELL_WORDS: usize = 8;
/// Words of an entry's text.
#[cfg(not(loom))]
const TEXT_WORDS: usize = 24;
#[cfg(loom)]
const TEXT_WORDS: usize = 1;
/// Words before the directory.
const HEAD_WORDS: usize = 16;
/// Words of an entry.
const ENTRY_WORDS: usize = 8 + TEXT_WORDS;

/// What two builds must have in common to read each other's cells.
#[cfg(not(loom))]
pub(super) const COMMON: [usize; 5] =
    [HEAD_WORDS, ENTRY_WORDS, CELL_WORDS, MIRROR_WORDS, SUM_WORDS];

/// Entries of the directory: one for each cell, and some for accumulators.
const fn entries(cells: usize) -> usize {
    cells + cells / 4 + if cfg!(loom) { 1 } else { 4 }
}

/// 8-byte words of a rank's cells; `None` if that is more than anybody has.
pub const fn words(cells: usize) -> Option<usize> {
    if cells > MAX_CELLS {
        return None;
    }
    Some(HEAD_WORDS + entries(cells) * ENTRY_WORDS + cells * CELL_WORDS)
}

/// Bytes of a rank's cells, whole pages; `None` if that is more than anybody has.
#[cfg(not(loom))]
pub const fn bytes(cells: usize) -> Option<usize> {
    match words(cells) {
        Some(words) => Some((words * 8).next_multiple_of(PAGE)),
        None => None,
    }
}

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// An i64.
    Count = 2,
    /// An exact sum of f64.
    Sum = 3,
    /// An exact sum and how many it is of.
    Mean = 4,
    /// The smallest f64.
    Min = 5,
    /// The largest f64.
    Max = 6,
    /// Counts between edges, and the exact sum.
    Histogram = 7,
    /// A vector of i64.
    Counts = 8,
    /// A vector of exact sums.
    Sums = 9,
}

impl Kind {
    /// The kind of this number.
    pub fn from_u8(number: u8) -> Option<Self> {
        use Kind::{Count, Counts, Histogram, Max, Mean, Min, Sum, Sums};
        let all = [Count, Sum, Mean, Min, Max, Histogram, Counts, Sums];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A kind, and how many elements or edges it has: 1 for all but vectors and histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// What it is.
    pub kind: Kind,
    /// Elements of a vector, edges of a histogram.
    pub length: u32,
}

/// Words of a key's mirror.
pub const MIRROR_WORDS: usize = 4;
/// Words of a sum.
pub const SUM_WORDS: usize = 4 + exact::DIGITS;

impl Shape {
    /// Words of the edges.
    pub const fn edges(self) -> usize {
        match self.kind {
            Kind::Histogram => self.length as usize,
            _ => 0,
        }
    }

    /// Words in each of the two buffers, without the link. Cannot overflow: lengths are 32 bits.
    pub const fn elements(self) -> usize {
        let length = self.length as usize;
        match self.kind {
            Kind::Count | Kind::Min | Kind::Max => 1,
            Kind::Sum => SUM_WORDS,
            // The sum comes first.
            Kind::Mean => SUM_WORDS + 1,
            // One more bucket than edges, and one for NaN.
            Kind::Histogram => SUM_WORDS + length + 2,
            Kind::Counts => length,
            Kind::Sums => SUM_WORDS * length,
        }
    }

    /// Words of a key of this shape.
    pub const fn words(self) -> usize {
        MIRROR_WORDS + self.edges() + 2 * (1 + self.elements())
    }

    /// Cells that a key of this shape takes.
    pub const fn cells(self) -> usize {
        self.words().div_ceil(CELL_WORDS)
    }

    /// From the start of a key to the elements of a buffer; the link is the word before.
    pub const fn buffer(self, buffer: usize) -> usize {
        MIRROR_WORDS + self.edges() + buffer * (1 + self.elements()) + 1
    }
}

#[cfg(not(loom))]
const _: () = {
    // What is no vector takes one cell.
    assert!(
        Shape {
            kind: Kind::Mean,
            length: 1
        }
        .cells()
            == 1
    );
    assert!((CELL_WORDS * 8).is_multiple_of(super::layout::LINE));
    assert!((ENTRY_WORDS * 8).is_multiple_of(super::layout::LINE));
    assert!((HEAD_WORDS * 8).is_multiple_of(super::layout::LINE));
};
