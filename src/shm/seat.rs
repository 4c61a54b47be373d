//! A rank's seat: free, being taken, taken, left; and how to look at a rank that may be gone.

use super::sync::{AtomicU32, Ordering, Site, mutant, ord};

/// What a seat says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seated {
    /// Nobody has come.
    Free,
    /// Somebody is joining.
    Joining,
    /// Its rank takes part.
    Joined,
    /// Its rank has left in order.
    Left,
    /// Somebody has scribbled on the word.
    Unknown(u32),
}

const FREE: u32 = 0;
const JOINING: u32 = 1;
const JOINED: u32 = 2;
const LEFT: u32 = 3;

/// A rank's state word. It only goes forward: free, joining, joined, left.
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | whoever claims it, then its rank | everybody | exchange AcqRel, stores Release, load Acquire | 14, 15 |
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Seat(AtomicU32);

impl Seat {
    /// A free one.
    pub fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Takes the seat; false if somebody has it or had it.
    #[must_use]
    pub fn claim(&self) -> bool {
        if mutant(Site::ClaimByStore) {
            let free = self.0.load(Ordering::Acquire) == FREE;
            if free {
                self.0.store(JOINING, Ordering::Release);
            }
            return free;
        }
        self.0
            .compare_exchange(FREE, JOINING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The rank that has claimed the seat takes part from now on: its life token and identity are written.
    pub fn joined(&self) {
        self.0
            .store(JOINED, ord(Site::SeatStore, Ordering::Release));
    }

    /// The rank leaves; everything that it has published stands.
    pub fn leave(&self) {
        self.0.store(LEFT, ord(Site::SeatStore, Ordering::Release));
    }

    /// One Acquire load: whoever sees [`Seated::Left`] sees everything that the rank has published.
    #[inline]
    pub fn get(&self) -> Seated {
        match self.0.load(ord(Site::SeatLoad, Ordering::Acquire)) {
            FREE => Seated::Free,
            JOINING => Seated::Joining,
            JOINED => Seated::Joined,
            LEFT => Seated::Left,
            other => Seated::Unknown(other),
        }
    }
}

/// What [`sight`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight<T, G> {
    /// What was waited for has come.
    Came(T),
    /// It has not come, and whoever should make it come may still do so.
    NotYet,
    /// It has not come, and never will.
    Gone(G),
}

/// Looks for something that another rank makes come, and at whether that rank is still there.
///
/// A rank may publish and then leave or die between the look for the one and the look for the other. So whoever finds it
/// gone looks once more: what was published before its end is seen now for certain, as `gone` reads the end with Acquire.
pub fn sight<T, G>(
    mut came: impl FnMut() -> Option<T>,
    gone: impl FnOnce() -> Option<G>,
) -> Sight<T, G> {
    if let Some(what) = came() {
        return Sight::Came(what);
    }
    let Some(end) = gone() else {
        return Sight::NotYet;
    };
    if !mutant(Site::NoSecondLook)
        && let Some(what) = came()
    {
        return Sight::Came(what);
    }
    Sight::Gone(end)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_taken_once() {
        let seat = Seat::new();
        assert_eq!(seat.get(), Seated::Free);
        assert!(seat.claim());
        assert_eq!(seat.get(), Seated::Joining);
        assert!(!seat.claim());
        seat.joined();
        assert_eq!(seat.get(), Seated::Joined);
        assert!(!seat.claim());
        seat.leave();
        assert_eq!(seat.get(), Seated::Left);
        assert!(
            !seat.claim(),
            "a rank that has left does not come back into the same generation"
        );
    }

    #[test]
    fn a_scribbled_seat_is_neither_free_nor_taken() {
        let seat = Seat(AtomicU32::new(77));
        assert_eq!(seat.get(), Seated::Unknown(77));
        assert!(!seat.claim());
    }

    #[test]
    fn what_came_just_before_the_end_is_found_by_the_second_look() {
        let mut looks = 0;
        let found = sight(
            || {
                looks += 1;
                (looks == 2).then_some("frame")
            },
            || Some("left"),
        );
        assert_eq!(found, Sight::Came("frame"));
        assert_eq!(sight(|| None::<()>, || Some("left")), Sight::Gone("left"));
        assert_eq!(sight(|| None::<()>, || None::<()>), Sight::NotYet);
    }
}
