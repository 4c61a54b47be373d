//! Where a run begins to count: 0, unless a test wants to see what becomes of large numbers.
//!
//! Only with the feature `crash-points`. `GRADRING_TEST_START` holds the number of the operation before the first and the
//! position of all rings, two numbers, the same for all ranks; the test has put the rings' words there before
//! ([`Segment::begin_rings_at`](crate::shm::segment::Segment::begin_rings_at)).

/// The number of the operation before the first, and the position of all rings.
#[cfg(feature = "crash-points")]
pub(super) fn start() -> (u64, u64) {
    let numbers = || {
        let text = std::env::var("GRADRING_TEST_START").ok()?;
        let (number, position) = text.split_once(' ')?;
        Some((number.parse().ok()?, position.parse().ok()?))
    };
    numbers().unwrap_or((0, 0))
}

#[cfg(not(feature = "crash-points"))]
pub(super) fn start() -> (u64, u64) {
    (0, 0)
}
