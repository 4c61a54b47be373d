//! Looking at a run's accumulators from outside, while they are added to.

use crate::shm::cells::{Entry, Kind, Region};
use crate::shm::segment::Segment;

/// What one rank has added to one key since it first asked for it: never reset, so a display takes differences. Its own part
/// only, and rounded at each addition: for the eye.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Whose.
    pub rank: usize,
    /// The accumulator's name.
    pub accumulator: String,
    /// The key.
    pub key: String,
    /// What it is.
    pub kind: Kind,
    /// A count's own number; otherwise how many additions, or numbers in a mean, there were.
    pub count: i64,
    /// The sum of a sum, mean or histogram; the smallest or largest number of a minimum or maximum, once there is one.
    pub number: Option<f64>,
}

/// What all ranks have added so far, by rank, in the order in which each asked for its keys.
///
/// Reads without waiting and without disturbing anybody, from any process that has mapped the segment, also read-only: words
/// that are right one by one, not all of the same moment. (Loom model 18.)
pub fn live(segment: &Segment) -> Vec<Live> {
    let cells = segment.layout().cells;
    let ranks = 0..segment.world_size();
    ranks
        .flat_map(|rank| live_of(rank, Region::new(segment.cells(rank), cells)))
        .collect()
}

/// What one rank has added so far, from its words.
pub fn live_of(rank: usize, region: Region<'_>) -> Vec<Live> {
    let entries = 0..region.entries();
    let one = |number| {
        let Some(Entry::Key {
            accumulator,
            shape,
            start,
        }) = region.entry(number)
        else {
            return None;
        };
        let named = region.entry(accumulator) == Some(Entry::Accumulator);
        let mirror = region.mirror(start)?;
        Some(Live {
            rank,
            accumulator: region.text(accumulator).filter(|_| named)?,
            key: region.text(number)?,
            kind: shape.kind,
            count: mirror.counted(),
            number: match shape.kind {
                Kind::Sum | Kind::Mean | Kind::Histogram => Some(mirror.summed()),
                Kind::Min | Kind::Max => mirror.extreme_yet(),
                Kind::Count | Kind::Counts | Kind::Sums => None,
            },
        })
    };
    entries.filter_map(one).collect()
}
