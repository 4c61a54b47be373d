//! A rank's cells: its words for what it counts and sums up. One writer, the rank; readers never hold it up.

use super::layout::PAGE;

/// Cells of a rank unless somebody asks for another number.
pub const DEFAULT_CELLS: usize = 256;
/// 8-byte words of a cell.
pub const CELL_WORDS: usize = 160;
/// The most cells of a rank.
pub const MAX_CELLS: usize = 1 << 24;

/// Bytes of a rank's cells, whole pages; `None` if that is more than anybody has.
pub const fn bytes(cells: usize) -> Option<usize> {
    if cells > MAX_CELLS {
        return None;
    }
    Some((cells * CELL_WORDS * 8).next_multiple_of(PAGE))
}
