//! Points at which a test can kill a replica, to see that what it leaves behind is harmless.
//!
//! Compiled only with the feature `crash-points`, which this package's own tests switch on; then each point is one
//! relaxed load. `GRADRING_CRASH_POINT` holds a rank, a point's name and a number n: that rank's process kills itself
//! (SIGKILL) when it comes to that point for the n-th time, or stops itself (SIGSTOP) where the word `stop` follows.

/// A point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Point {
    /// A rank's seat is claimed, its life token not yet taken.
    Claimed = 1,
    /// The life token is taken, the rank has not joined.
    Alive = 2,
    /// A frame is written, the tail not stored.
    FrameWritten = 3,
    /// The tail is stored, nobody woken.
    TailStored = 4,
    /// A frame is read, the cursor not stored.
    FrameRead = 5,
    /// A rank has arrived at a barrier, nobody woken.
    Arrived = 6,
    /// A rank has found another one dead and not yet said so.
    DeathFound = 7,
    /// A rank has left its seat, the life token is still there.
    SeatLeft = 8,
    /// A rank has said what it has come for and done nothing of it.
    Announced = 9,
    /// A value that travels without the rings is written, nobody woken.
    ValueWritten = 10,
    /// All contributions to a slice are folded, what came out is not published.
    Folded = 11,
    /// An asynchronous step's records are out, the step is not counted.
    StepOut = 12,
    /// A rank's first marker of a settle is taken: when it is the last one, the parameters are not yet on their way.
    MarkerTaken = 13,
    /// A streamed step is about to be finished: what fitted is out, nothing is taken.
    PartsOut = 14,
    /// The temporary directory of a checkpoint is made, nobody knows of it.
    TemporaryMade = 15,
    /// A state is written and on the disk, nobody knows of it.
    StateWritten = 16,
    /// All states are on the disk, and all replicas know it.
    StatesSynced = 17,
    /// A checkpoint's manifest is on the disk, under a name that is not the checkpoint's.
    ManifestWritten = 18,
    /// A checkpoint has its name, which may not be on the disk.
    Renamed = 19,
    /// Old checkpoints are removed, nobody knows of the new one.
    Pruned = 20,
}

/// Ends or stops this process if a test wants that here.
#[inline]
pub fn point(here: Point) {
    #[cfg(all(feature = "crash-points", not(loom)))]
    armed::check(here);
    #[cfg(not(all(feature = "crash-points", not(loom))))]
    let _ = here;
}

#[cfg(all(feature = "crash-points", not(loom)))]
mod armed {
    use super::Point;
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

    /// Which point is armed: 0 none, `UNREAD` before the environment was looked at.
    static ARMED: AtomicU32 = AtomicU32::new(UNREAD);
    /// How often it must still be reached.
    static LEFT: AtomicU32 = AtomicU32::new(0);
    /// The signal that is sent then.
    static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGKILL);
    const UNREAD: u32 = u32::MAX;

    const NAMES: [(&str, Point); 20] = [
        ("claimed", Point::Claimed),
        ("alive", Point::Alive),
        ("frame-written", Point::FrameWritten),
        ("tail-stored", Point::TailStored),
        ("frame-read", Point::FrameRead),
        ("arrived", Point::Arrived),
        ("death-found", Point::DeathFound),
        ("seat-left", Point::SeatLeft),
        ("announced", Point::Announced),
        ("value-written", Point::ValueWritten),
        ("folded", Point::Folded),
        ("step-out", Point::StepOut),
        ("marker-taken", Point::MarkerTaken),
        ("parts-out", Point::PartsOut),
        ("temporary-made", Point::TemporaryMade),
        ("state-written", Point::StateWritten),
        ("states-synced", Point::StatesSynced),
        ("manifest-written", Point::ManifestWritten),
        ("renamed", Point::Renamed),
        ("pruned", Point::Pruned),
    ];

    pub(super) fn check(here: Point) {
        let armed = match ARMED.load(Ordering::Relaxed) {
            UNREAD => read(),
            armed => armed,
        };
        if armed == here as u32 && LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SAFETY: a signal to this very process.
            unsafe { libc::kill(libc::getpid(), SIGNAL.load(Ordering::Relaxed)) };
        }
    }

    #[cold]
    fn read() -> u32 {
        let armed = wanted().unwrap_or((0, 0));
        LEFT.store(armed.1, Ordering::Relaxed);
        ARMED.store(armed.0, Ordering::Relaxed);
        armed.0
    }

    fn wanted() -> Option<(u32, u32)> {
        let text = std::env::var("GRADRING_CRASH_POINT").ok()?;
        let mut words = text.split_whitespace();
        if words.next()? != std::env::var("GRADRING_RANK").ok()? {
            return None;
        }
        let name = words.next()?;
        let (_, point) = NAMES.iter().find(|(known, _)| *known == name)?;
        let left = words.next()?.parse().ok()?;
        if words.next() == Some("stop") {
            SIGNAL.store(libc::SIGSTOP, Ordering::Relaxed);
        }
        Some((*point as u32, left))
    }
}
