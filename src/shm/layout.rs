//! Where everything lies in a segment: offsets, sizes and nothing else.
//!
//! ```text
//! offset                                                                                           writer, how often
//! 0            header page          what the segment is; read once by whoever attaches             creator, once
//! PAGE         state                0 empty, 1 ready, 2 closed                                     creator, twice
//!              poison               first culprit and cause                                        anybody, once
//!              asleep               a bit per rank                                                 all ranks, when they sleep
//!              launcher lines       life token, who it is                                          launcher, kernel
//! bells        N x LINE             one futex word per rank                                        whoever wakes that rank
//! ranks        N x RankLines        state, life, identity, arrival, pace, slots, inline, ..        that rank
//! rings        N x ring_stride, each PAGE aligned:
//!     +0             LINE           tail of ring r                                                 rank r
//!     +LINE          N x LINE       cursor of rank c in ring r                                     rank c
//!     +arena         capacity       the bytes of ring r; PAGE aligned                              rank r
//! cells        N x cells_stride, each PAGE aligned: rank r's cells                              rank r
//! total
//! ```
//!
//! LINE is what [`Padded`] pads to on this architecture, 128 bytes on x86-64 and aarch64: two cache lines, because
//! processors fetch them in pairs.

use core::mem::offset_of;

use super::barrier::Arrival;
use super::bell::Asleep;
use super::cells;
use super::frame;
use super::header::Header;
use super::lines::{Inline, LauncherLines, RankIdentity, RankLines, Reason, Slot};
use super::pace::Pace;
use super::poison::Poison;
use super::sync::{AtomicU32, AtomicU64, Futex, Padded};

/// Version of everything in this file that the layout hash does not see: what a word means and who may write it.
pub const ABI: u32 = 3;
/// Bytes of a page, and the alignment of ring arenas.
pub const PAGE: usize = 4096;
/// Bytes of a padded line.
pub const LINE: usize = size_of::<Padded<u8>>();
/// Ranks are u8 and 255 means the launcher.
pub const MAX_WORLD_SIZE: usize = 255;
/// Payload of the largest frame: one dense block of 32,768 f32.
pub const MAX_PAYLOAD: usize = 131_072;
/// Bytes of the largest frame.
pub const MAX_FRAME: usize = frame::UNIT + MAX_PAYLOAD;
/// Smallest ring, in bytes: any one frame fits an empty ring at any offset only if it is at most half of it.
pub const MIN_RING_CAPACITY: usize = (2 * MAX_FRAME).next_power_of_two();
/// Bytes of a ring unless somebody asks for another size.
pub const DEFAULT_RING_CAPACITY: usize = 1 << 20;
/// What a replica may cost by default, in bytes.
const BUDGET: usize = 2 << 20;

/// The state word.
pub const STATE: usize = PAGE;
/// The poison word.
pub const POISON: usize = STATE + LINE;
/// The bits of those who sleep.
pub const ASLEEP: usize = POISON + size_of::<Poison>();
/// The launcher's lines.
pub const LAUNCHER: usize = ASLEEP + size_of::<Asleep>();
/// The bells.
pub const BELLS: usize = LAUNCHER + size_of::<LauncherLines>();
/// The tail, from the start of a ring.
pub const RING_TAIL: usize = 0;
/// The first cursor, from the start of a ring.
pub const RING_CURSORS: usize = RING_TAIL + LINE;

/// Words of the table of offsets that the header keeps.
pub const TABLE: usize = 11;

/// Sizes and offsets of a segment for one world size, ring capacity and number of cells, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of ranks, 1..=255.
    pub world_size: usize,
    /// Bytes of each ring, a power of two.
    pub ring_capacity: usize,
    /// Cells of each rank.
    pub cells: usize,
    /// Length of the segment.
    pub total: usize,
    /// Where the lines of rank 0 begin.
    pub ranks: usize,
    /// Where ring 0 begins.
    pub rings: usize,
    /// From the start of a ring to its arena.
    pub arena: usize,
    /// From one ring to the next.
    pub ring_stride: usize,
    /// Where the cells of rank 0 begin.
    pub cells_start: usize,
    /// From one rank's cells to the next.
    pub cells_stride: usize,
}

/// Why there is no such layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No rank, or more than a u8 can name.
    #[error("world size {found} is not in 1..={MAX_WORLD_SIZE}")]
    WorldSize {
        /// What was asked for.
        found: usize,
    },
    /// The ring's length is no power of two, or two of the largest frames would not fit.
    #[error("ring capacity {found} is not a power of two of at least {MIN_RING_CAPACITY} bytes")]
    RingCapacity {
        /// What was asked for, in bytes.
        found: usize,
    },
    /// The segment would be longer than the address space.
    #[error(
        "{world_size} rings of {ring_capacity} bytes and {cells} cells each are more than a process can map"
    )]
    TooLarge {
        /// Number of ranks.
        world_size: usize,
        /// Bytes of each ring.
        ring_capacity: usize,
        /// Cells of each rank.
        cells: usize,
    },
}

impl Layout {
    /// The layout for `world_size` ranks, each with a ring of `ring_capacity` bytes and so many cells.
    ///
    /// # Errors
    /// A world size outside 1..=255, a capacity that is no power of two or below [`MIN_RING_CAPACITY`], or a total beyond
    /// `isize::MAX`.
    pub const fn new(
        world_size: usize,
        ring_capacity: usize,
        cells: usize,
    ) -> Result<Layout, LayoutError> {
        if world_size == 0 || world_size > MAX_WORLD_SIZE {
            return Err(LayoutError::WorldSize { found: world_size });
        }
        if !ring_capacity.is_power_of_two() || ring_capacity < MIN_RING_CAPACITY {
            return Err(LayoutError::RingCapacity {
                found: ring_capacity,
            });
        }
        // Small numbers: at most 255 of each.
        let ranks = BELLS + world_size * LINE;
        let rings = (ranks + world_size * size_of::<RankLines>()).next_multiple_of(PAGE);
        let arena = (RING_CURSORS + world_size * LINE).next_multiple_of(PAGE);
        let too_large = LayoutError::TooLarge {
            world_size,
            ring_capacity,
            cells,
        };
        let Some(ring_stride) = ring_capacity.checked_add(arena) else {
            return Err(too_large);
        };
        let Some(bytes) = ring_stride.checked_mul(world_size) else {
            return Err(too_large);
        };
        // A capacity is whole pages, so the end of the rings is one too.
        let Some(cells_start) = bytes.checked_add(rings) else {
            return Err(too_large);
        };
        let Some(cells_stride) = cells::bytes(cells) else {
            return Err(too_large);
        };
        let Some(bytes) = cells_stride.checked_mul(world_size) else {
            return Err(too_large);
        };
        let Some(total) = bytes.checked_add(cells_start) else {
            return Err(too_large);
        };
        if total > isize::MAX as usize {
            return Err(too_large);
        }
        Ok(Layout {
            world_size,
            ring_capacity,
            cells,
            total,
            ranks,
            rings,
            arena,
            ring_stride,
            cells_start,
            cells_stride,
        })
    }

    /// Where the lines of `rank` begin. Meaningful for ranks below the world size only.
    pub const fn rank(&self, rank: usize) -> usize {
        self.ranks + rank * size_of::<RankLines>()
    }

    /// Where the ring of `rank` begins. Meaningful for ranks below the world size only.
    pub const fn ring(&self, rank: usize) -> usize {
        self.rings + rank * self.ring_stride
    }

    /// Where the cells of `rank` begin. Meaningful for ranks below the world size only.
    pub const fn cells(&self, rank: usize) -> usize {
        self.cells_start + rank * self.cells_stride
    }

    /// The offsets as the header keeps them.
    pub const fn table(&self) -> [u64; TABLE] {
        [
            STATE as u64,
            POISON as u64,
            ASLEEP as u64,
            LAUNCHER as u64,
            BELLS as u64,
            self.ranks as u64,
            self.rings as u64,
            self.arena as u64,
            self.ring_stride as u64,
            self.cells_start as u64,
            self.cells_stride as u64,
        ]
    }
}

/// A hash of every size and offset that two builds must have in common to share a segment.
pub const HASH: u64 = fnv1a(&[
    ABI as u64,
    PAGE as u64,
    LINE as u64,
    size_of::<usize>() as u64,
    MAX_FRAME as u64,
    frame::MAGIC as u64,
    frame::VERSION as u64,
    frame::PADDING as u64,
    frame::UNIT as u64,
    size_of::<Header>() as u64,
    STATE as u64,
    POISON as u64,
    size_of::<Poison>() as u64,
    ASLEEP as u64,
    size_of::<Asleep>() as u64,
    LAUNCHER as u64,
    size_of::<LauncherLines>() as u64,
    offset_of!(LauncherLines, life) as u64,
    offset_of!(LauncherLines, identity) as u64,
    BELLS as u64,
    size_of::<Futex>() as u64,
    size_of::<RankLines>() as u64,
    offset_of!(RankLines, state) as u64,
    offset_of!(RankLines, life) as u64,
    offset_of!(RankLines, identity) as u64,
    offset_of!(RankLines, arrival) as u64,
    size_of::<Arrival>() as u64,
    offset_of!(RankLines, pace) as u64,
    size_of::<Pace>() as u64,
    offset_of!(RankLines, slots) as u64,
    offset_of!(RankLines, inline) as u64,
    offset_of!(RankLines, reason) as u64,
    offset_of!(RankLines, counters) as u64,
    size_of::<RankIdentity>() as u64,
    offset_of!(RankIdentity, pid) as u64,
    offset_of!(RankIdentity, tid) as u64,
    offset_of!(RankIdentity, raised) as u64,
    offset_of!(RankIdentity, status) as u64,
    size_of::<Slot>() as u64,
    offset_of!(Slot, number) as u64,
    offset_of!(Slot, identity) as u64,
    offset_of!(Slot, detail) as u64,
    offset_of!(Slot, extra) as u64,
    size_of::<Padded<Inline>>() as u64,
    offset_of!(Inline, number) as u64,
    offset_of!(Inline, length) as u64,
    offset_of!(Inline, came) as u64,
    offset_of!(Inline, words) as u64,
    size_of::<Reason>() as u64,
    offset_of!(Reason, length) as u64,
    offset_of!(Reason, words) as u64,
    RING_TAIL as u64,
    RING_CURSORS as u64,
    cells::COMMON[0] as u64,
    cells::COMMON[1] as u64,
    cells::COMMON[2] as u64,
    cells::COMMON[3] as u64,
    cells::COMMON[4] as u64,
]);

/// FNV-1a over the bytes of the values, with 64 bits.
const fn fnv1a(values: &[u64]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < values.len() {
        let bytes = values[i].to_le_bytes();
        let mut j = 0;
        while j < bytes.len() {
            hash = (hash ^ bytes[j] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            j += 1;
        }
        i += 1;
    }
    hash
}

/// True if values of `T` can follow each other from a line's start without sharing a line with anything else.
const fn fills_lines<T>() -> bool {
    size_of::<T>().is_multiple_of(LINE) && align_of::<T>() <= LINE
}

const _: () = {
    assert!(PAGE.is_multiple_of(LINE));
    assert!(size_of::<Header>() <= PAGE);
    assert!(align_of::<Header>() <= LINE);
    assert!(fills_lines::<Poison>());
    assert!(fills_lines::<Asleep>());
    assert!(fills_lines::<LauncherLines>());
    assert!(fills_lines::<Padded<Futex>>() && size_of::<Padded<Futex>>() == LINE);
    assert!(fills_lines::<Padded<AtomicU64>>() && size_of::<Padded<AtomicU64>>() == LINE);
    assert!(fills_lines::<Padded<AtomicU32>>() && size_of::<Padded<AtomicU32>>() == LINE);
    assert!(fills_lines::<RankLines>());
    assert!(fills_lines::<Padded<Inline>>());
    // Within a rank's lines the words that many poll lie apart from those that the rank writes in every operation.
    assert!(offset_of!(RankLines, arrival).is_multiple_of(LINE));
    assert!(offset_of!(RankLines, pace).is_multiple_of(LINE));
    assert!(offset_of!(RankLines, slots).is_multiple_of(LINE));
    assert!(offset_of!(RankLines, inline).is_multiple_of(LINE));
    assert!(offset_of!(RankLines, reason).is_multiple_of(LINE));
    assert!(offset_of!(RankLines, counters).is_multiple_of(LINE));
    // No frame is larger than half of any ring: without that the progress rule has no proof.
    assert!(MAX_FRAME <= MIN_RING_CAPACITY / 2);
    assert!(MAX_FRAME <= DEFAULT_RING_CAPACITY / 2);
    assert!(MIN_RING_CAPACITY <= DEFAULT_RING_CAPACITY);
    assert!(MIN_RING_CAPACITY.is_multiple_of(PAGE));
    // By default a replica costs at most 2 MiB, whatever the world size.
    let mut world_size = 1;
    while world_size <= MAX_WORLD_SIZE {
        match Layout::new(world_size, DEFAULT_RING_CAPACITY, cells::DEFAULT_CELLS) {
            Ok(layout) => assert!(layout.total <= world_size * BUDGET),
            Err(_) => panic!(),
        }
        world_size += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn world_sizes_outside_one_to_255_are_refused() {
        for found in [0, 256, usize::MAX] {
            assert_eq!(
                Layout::new(found, DEFAULT_RING_CAPACITY, 1),
                Err(LayoutError::WorldSize { found })
            );
        }
        assert!(Layout::new(1, DEFAULT_RING_CAPACITY, 1).is_ok());
        assert!(Layout::new(255, DEFAULT_RING_CAPACITY, 1).is_ok());
    }

    #[test]
    fn ring_capacities_that_cannot_work_are_refused() {
        for found in [
            0,
            1,
            MIN_RING_CAPACITY / 2,
            MIN_RING_CAPACITY + 1,
            usize::MAX,
        ] {
            assert_eq!(
                Layout::new(1, found, 1),
                Err(LayoutError::RingCapacity { found })
            );
        }
        assert!(Layout::new(1, MIN_RING_CAPACITY, 1).is_ok());
    }

    #[test]
    fn a_total_that_overflows_is_refused() {
        for shift in 56..usize::BITS {
            assert_eq!(
                Layout::new(255, 1 << shift, 1),
                Err(LayoutError::TooLarge {
                    world_size: 255,
                    ring_capacity: 1 << shift,
                    cells: 1
                }),
                "1 << {shift}"
            );
        }
        assert!(Layout::new(1, 1 << 63, 1).is_err());
        assert!(Layout::new(1, 1 << 61, 1).is_ok());
        for cells in [usize::MAX, usize::MAX / 8, usize::MAX / 2048] {
            assert!(Layout::new(255, MIN_RING_CAPACITY, cells).is_err());
        }
    }

    #[test]
    fn the_hash_sees_every_value() {
        let values = [3, 1, 4, 1, 5];
        for i in 0..values.len() {
            let mut other = values;
            other[i] += 1;
            assert_ne!(fnv1a(&values), fnv1a(&other));
        }
        // The published test vector of FNV-1a for eight zero bytes is the offset basis times the prime to the eighth.
        let mut expected = 0xcbf2_9ce4_8422_2325_u64;
        for _ in 0..8 {
            expected = expected.wrapping_mul(0x0000_0100_0000_01b3);
        }
        assert_eq!(fnv1a(&[0]), expected);
    }

    proptest! {
        #[test]
        fn regions_follow_each_other_without_overlap(
            world_size in 1_usize..=255,
            shift in 19_u32..34,
            cells in 0_usize..20_000,
        ) {
            let layout = Layout::new(world_size, 1 << shift, cells).unwrap();
            let mut regions = vec![
                (0, PAGE),
                (STATE, LINE),
                (POISON, size_of::<Poison>()),
                (ASLEEP, size_of::<Asleep>()),
                (LAUNCHER, size_of::<LauncherLines>()),
                (BELLS, world_size * LINE),
            ];
            for rank in 0..world_size {
                regions.push((layout.rank(rank), size_of::<RankLines>()));
            }
            for rank in 0..world_size {
                let ring = layout.ring(rank);
                prop_assert_eq!((ring + layout.arena) % PAGE, 0);
                regions.push((ring + RING_TAIL, LINE));
                regions.push((ring + RING_CURSORS, world_size * LINE));
                regions.push((ring + layout.arena, layout.ring_capacity));
            }
            for rank in 0..world_size {
                prop_assert_eq!(layout.cells(rank) % PAGE, 0);
                regions.push((layout.cells(rank), layout.cells_stride));
            }
            let mut end = 0;
            for (start, length) in regions {
                prop_assert!(start >= end, "{} begins before {}", start, end);
                prop_assert_eq!(start % LINE, 0);
                end = start + length;
            }
            prop_assert_eq!(end, layout.total);
        }
    }
}
