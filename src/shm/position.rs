//! Position arithmetic of rings, all in one place.
//!
//! A position counts bytes from the start of the run and never wraps (2^64 bytes at 100 GB/s are 5.8 years); its place
//! in a ring is the position modulo the capacity, a power of two. Own positions can be trusted. Those that others have
//! written are checked here before anything is derived from them.

use super::frame::{Corrupt, UNIT};

const UNIT_U64: u64 = UNIT as u64;

/// `length` in whole units.
pub(super) fn round_up(length: u64) -> u64 {
    length.next_multiple_of(UNIT_U64)
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes of padding in front of it, because it may not be cut by the ring's end: 0, or all that is left there.
    pub(super) padding: u64,
    /// Where the padding begins, or the frame if there is none; an offset in the ring.
    pub(super) start: u64,
    /// Where the frame begins; an offset in the ring.
    pub(super) offset: u64,
    /// Bytes that it takes, in whole units.
    pub(super) taken: u64,
}

impl Place {
    /// The place of a frame of `length` bytes that is published at `position`. `length` <= `capacity` / 2, so that
    /// padding and frame together fit an empty ring, wherever it stands.
    pub(super) fn of(position: u64, length: u64, capacity: u64) -> Self {
        let start = position & (capacity - 1);
        let room = capacity - start;
        let taken = round_up(length);
        if taken > room {
            Self {
                padding: room,
                start,
                offset: 0,
                taken,
            }
        } else {
            Self {
                padding: 0,
                start,
                offset: start,
                taken,
            }
        }
    }

    /// Padding and frame together.
    pub(super) fn total(&self) -> u64 {
        self.padding + self.taken
    }
}

/// Whether a consumer at `cursor` that last saw the tail at `seen` may believe that it is at `found` now.
pub(super) fn check_tail(seen: u64, found: u64, cursor: u64, capacity: u64) -> Result<(), Corrupt> {
    if found < seen {
        return Err(Corrupt::TailWentBack {
            expected: seen,
            found,
        });
    }
    if found - cursor > capacity {
        return Err(Corrupt::TailTooFar {
            expected: cursor.saturating_add(capacity),
            found,
        });
    }
    if !found.is_multiple_of(UNIT_U64) {
        return Err(Corrupt::Misaligned { found });
    }
    Ok(())
}

/// Whether a producer at `tail`, to which all cursors were at `gate` or further, may believe one that is at `found` now.
pub(super) fn check_cursor(gate: u64, found: u64, tail: u64) -> Result<(), Corrupt> {
    if found < gate {
        return Err(Corrupt::CursorWentBack {
            expected: gate,
            found,
        });
    }
    if found > tail {
        return Err(Corrupt::CursorPastTail {
            expected: tail,
            found,
        });
    }
    if !found.is_multiple_of(UNIT_U64) {
        return Err(Corrupt::Misaligned { found });
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_frame_is_never_cut_and_always_fits_an_empty_ring(
            units in 0..u64::MAX / UNIT_U64, length in 1..=512u64, log in 10..14u32,
        ) {
            let (position, capacity) = (units * UNIT_U64, 1u64 << log);
            let place = Place::of(position, length, capacity);
            prop_assert!(place.offset + place.taken <= capacity);
            prop_assert!(place.total() <= capacity);
            prop_assert!(place.taken >= length && place.taken - length < UNIT_U64);
            prop_assert_eq!(place.offset, (place.start + place.padding) % capacity);
            prop_assert!(place.padding == 0 || place.padding == capacity - place.start);
        }
    }

    #[test]
    fn impossible_positions_have_names() {
        assert_eq!(check_tail(128, 192, 64, 256), Ok(()));
        assert_eq!(check_tail(128, 320, 64, 256), Ok(()), "a full ring");
        assert_eq!(
            check_tail(128, 64, 64, 256),
            Err(Corrupt::TailWentBack {
                expected: 128,
                found: 64
            })
        );
        assert_eq!(
            check_tail(128, 384, 64, 256),
            Err(Corrupt::TailTooFar {
                expected: 320,
                found: 384
            })
        );
        assert_eq!(
            check_tail(128, u64::MAX, 64, 256),
            Err(Corrupt::TailTooFar {
                expected: 320,
                found: u64::MAX
            })
        );
        assert_eq!(
            check_tail(128, 129, 64, 256),
            Err(Corrupt::Misaligned { found: 129 })
        );
        assert_eq!(check_cursor(64, 128, 128), Ok(()), "an empty ring");
        assert_eq!(
            check_cursor(64, 0, 128),
            Err(Corrupt::CursorWentBack {
                expected: 64,
                found: 0
            })
        );
        assert_eq!(
            check_cursor(64, 192, 128),
            Err(Corrupt::CursorPastTail {
                expected: 128,
                found: 192
            })
        );
        assert_eq!(
            check_cursor(64, 65, 128),
            Err(Corrupt::Misaligned { found: 65 })
        );
    }
}
