//! Where everything lies in a segment.
/// Sizes and offsets of a segment for one world size and ring capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub world_size: usize,
    pub ring_capacity: usize,
    pub total: usize,
}
