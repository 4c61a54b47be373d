//! A segment's state: whether its header can be read, whether everybody has joined, whether it is over.

use super::seat::{Seat, Seated};
use super::sync::{AtomicU32, Ordering, Site, fence, mutant, ord};

/// What a segment's state word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The creator still writes the header.
    Empty,
    /// The header holds; ranks may join.
    Ready,
    /// All ranks have joined.
    Full,
    /// The generation is over.
    Closed,
    /// Somebody has scribbled on the word.
    Unknown(u32),
}

impl Phase {
    /// The phase that a raw word stands for.
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Empty,
            1 => Self::Ready,
            2 => Self::Full,
            3 => Self::Closed,
            other => Self::Unknown(other),
        }
    }

    const fn word(self) -> u32 {
        match self {
            Self::Empty => 0,
            Self::Ready => 1,
            Self::Full => 2,
            Self::Closed => 3,
            Self::Unknown(word) => word,
        }
    }
}

/// The state word of a segment's header. It only goes forward: empty, ready, full, closed.
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | the creator, last of all header fields | openers | store Release, load Acquire | 13 |
/// | the last rank to join | ranks that wait for all | exchange AcqRel, load Acquire | 14 |
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct State(AtomicU32);

impl State {
    /// An empty segment's.
    pub fn new() -> Self {
        Self(AtomicU32::new(Phase::Empty.word()))
    }

    /// The phase. One Acquire load: whoever sees [`Phase::Ready`] or a later one sees the whole header.
    #[inline]
    pub fn get(&self) -> Phase {
        Phase::from_word(self.0.load(ord(Site::StateLoad, Ordering::Acquire)))
    }

    /// The header is complete: the creator's last store to it.
    pub fn publish(&self) {
        self.0.store(
            Phase::Ready.word(),
            ord(Site::StatePublish, Ordering::Release),
        );
    }

    /// All ranks have joined; true for exactly one of all callers.
    fn fill(&self) -> bool {
        let (ready, full) = (Phase::Ready.word(), Phase::Full.word());
        if mutant(Site::FillByStore) {
            let first = self.0.load(Ordering::Acquire) == ready;
            self.0.store(full, Ordering::Release);
            return first;
        }
        self.0
            .compare_exchange(
                ready,
                full,
                ord(Site::Fill, Ordering::AcqRel),
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// The generation is over: nobody may join or look on any more.
    pub fn close(&self) {
        self.0.store(Phase::Closed.word(), Ordering::Release);
    }
}

/// What [`muster`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Muster {
    /// Somebody has not joined yet.
    Missing,
    /// All have joined, and this call was the one that found out.
    Last,
    /// All have joined, as somebody else found out.
    Complete,
}

/// Whether all ranks have joined. A rank calls it after its own [`Seat::joined`], and whenever its bell rings.
///
/// The first who sees all seats joined sets the state to [`Phase::Full`] before it goes on. So nobody misses it for
/// having slept while a quick rank did its work and left.
pub fn muster<'a>(state: &State, mut seats: impl Iterator<Item = &'a Seat>) -> Muster {
    if state.get() == Phase::Full {
        return Muster::Complete;
    }
    // Between the own seat's store and the loads of the others': of several that join at once at least one sees all.
    if !mutant(Site::MusterFence) {
        fence(Ordering::SeqCst);
    }
    if seats.all(|seat| seat.get() == Seated::Joined) {
        return if state.fill() {
            Muster::Last
        } else {
            Muster::Complete
        };
    }
    // A rank that has left in the meantime did so after the state was full.
    if state.get() == Phase::Full {
        Muster::Complete
    } else {
        Muster::Missing
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn phases_survive_their_word() {
        for word in 0..6 {
            assert_eq!(Phase::from_word(word).word(), word);
        }
        assert_eq!(Phase::from_word(4), Phase::Unknown(4));
    }

    #[test]
    fn all_ranks_are_mustered_once_and_a_quick_leaver_does_not_hide_it() {
        let (state, seats) = (State::new(), [Seat::new(), Seat::new()]);
        state.publish();
        assert!(seats[0].claim() && seats[1].claim());
        seats[0].joined();
        assert_eq!(muster(&state, seats.iter()), Muster::Missing);
        seats[1].joined();
        assert_eq!(muster(&state, seats.iter()), Muster::Last);
        seats[1].leave();
        assert_eq!(muster(&state, seats.iter()), Muster::Complete);
    }

    #[test]
    fn a_rank_that_leaves_before_all_have_joined_is_missing() {
        let (state, seats) = (State::new(), [Seat::new(), Seat::new()]);
        state.publish();
        assert!(seats[0].claim() && seats[1].claim());
        seats[1].joined();
        seats[1].leave();
        seats[0].joined();
        assert_eq!(muster(&state, seats.iter()), Muster::Missing);
    }

    #[test]
    fn a_closed_segment_does_not_become_full() {
        let (state, seats) = (State::new(), [Seat::new()]);
        state.publish();
        assert!(seats[0].claim());
        seats[0].joined();
        state.close();
        assert_eq!(muster(&state, seats.iter()), Muster::Complete);
        assert_eq!(state.get(), Phase::Closed);
    }
}
