//! Where the model checker may weaken the code, to prove that it would have noticed.
//!
//! Each ordering and each order of accesses that matters asks this file. In every ordinary build the answers are
//! constants, so nothing of it is left. Under loom a test sets a mutation for as long as its guard lives, runs the same
//! model as its unmutated twin, and must see it fail.

use super::sync::Ordering;

/// A place in the code that a model can weaken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Site {
    /// Ring: the producer's store of its tail.
    TailStore,
    /// Ring: a consumer's load of the tail.
    TailLoad,
    /// Ring: a consumer's store of its cursor.
    CursorStore,
    /// Ring: the producer's loads of the cursors.
    GateLoad,
    /// Ring: the producer waits for the fastest consumer instead of the slowest.
    GateFastest,
    /// Ring: the producer does not look at the last cursor.
    GateForgetsOne,
    /// Ring: the producer counts one unit too much room.
    RoomOffByOne,
    /// Ring: a consumer hands out padding as if it were a frame.
    PaddingDelivered,
    /// Ring: the padding's header is written after the tail.
    PaddingAfterTail,
    /// Ring: the tail is stored before the frame is complete.
    TailBeforeFrame,
    /// Ring: the producer ends after it wrote the padding's header.
    StopAfterPadding,
    /// Ring: the producer ends after it wrote the frame's header.
    StopAfterHeader,
    /// Barrier: the arrival.
    Arrival,
    /// Barrier: a waiter's look.
    ArrivalLook,
    /// Barrier: one word for even and odd numbers.
    OneArrivalWord,
    /// Poison: the winner's exchange.
    PoisonSet,
    /// Poison: the loser's load in its exchange.
    PoisonFound,
    /// Poison: a reader's load.
    PoisonGet,
    /// Poison: stored, not exchanged.
    PoisonByStore,
    /// Bell: the notifier's fence is missing.
    RingFence,
    /// Bell: the waiter's fence is missing.
    SleepFence,
    /// Bell: the waiter sets its bit after it has looked.
    BitAfterCheck,
    /// Bell: the waiter reads its bell after it has looked.
    HeardAfterCheck,
    /// State: the creator's last store.
    StatePublish,
    /// State: an opener's load.
    StateLoad,
    /// State: the exchange of the last to join.
    Fill,
    /// State: two ranks can both be the last to join.
    FillByStore,
    /// Seat: claimed by a load and a store.
    ClaimByStore,
    /// Seat: what a rank stores when it has joined or leaves.
    SeatStore,
    /// Seat: what others load.
    SeatLoad,
    /// Seat: nobody looks a second time at what a rank left behind.
    NoSecondLook,
    /// Muster: a rank looks at the others' seats without a fence behind its own store.
    MusterFence,
    /// Ring: the producer passes a consumer that has not left.
    PassesReader,
    /// Pace: a rank's store of its word.
    PaceStore,
    /// Pace: what others load.
    PaceLoad,
    /// Pace: a rank that goes into an operation does not say so.
    AwayForgotten,
    /// Progress: the publisher waits for room and does not take meanwhile.
    PublishBlocks,
    /// Reduction: a reduced slice is published before all contributions to it have been taken.
    ReducedTooEarly,
    /// Cells: what is added goes to the same buffer before and after a synchronization.
    OneBuffer,
    /// Cells: the keys of both buffers are published in one place.
    OneKeyCount,
    /// Cells: the other buffer is cleared before all ranks have come.
    ClearBeforeBarrier,
    /// Cells: a synchronization that is replayed takes a turn of the buffers.
    ReplayAdvances,
    /// Cells: the store that says how many entries are whole.
    EntriesStore,
    /// Cells: the load of that number.
    EntriesLoad,
}

#[cfg(not(loom))]
mod answers {
    use super::{Ordering, Site};

    /// The ordering to use at `site`.
    #[inline(always)]
    #[must_use]
    pub const fn ord(_site: Site, default: Ordering) -> Ordering {
        default
    }

    /// Whether the code at `site` is to be wrong.
    #[inline(always)]
    #[must_use]
    pub const fn mutant(_site: Site) -> bool {
        false
    }
}

#[cfg(loom)]
mod answers {
    use super::{Ordering, Site};
    use std::cell::RefCell;

    // All threads of a loom model are coroutines on the test's own thread, so this is per model.
    thread_local! {
        static MUTATIONS: RefCell<Vec<(Site, Option<Ordering>)>> = const { RefCell::new(Vec::new()) };
    }

    /// The ordering to use at `site`.
    #[must_use]
    pub fn ord(site: Site, default: Ordering) -> Ordering {
        MUTATIONS.with_borrow(|all| {
            all.iter()
                .find(|(at, _)| *at == site)
                .and_then(|(_, ordering)| *ordering)
                .unwrap_or(default)
        })
    }

    /// Whether the code at `site` is to be wrong.
    #[must_use]
    pub fn mutant(site: Site) -> bool {
        MUTATIONS.with_borrow(|all| all.contains(&(site, None)))
    }

    /// Makes one site wrong for as long as it lives.
    #[derive(Debug)]
    #[must_use]
    pub struct Mutation(Site);

    /// Uses `ordering` at `site`.
    pub fn weaken(site: Site, ordering: Ordering) -> Mutation {
        MUTATIONS.with_borrow_mut(|all| all.push((site, Some(ordering))));
        Mutation(site)
    }

    /// Makes the code at `site` wrong.
    pub fn mutate(site: Site) -> Mutation {
        MUTATIONS.with_borrow_mut(|all| all.push((site, None)));
        Mutation(site)
    }

    /// Takes back what a model that panicked has left behind on this thread.
    pub fn forget_mutations() {
        MUTATIONS.with_borrow_mut(Vec::clear);
    }

    impl Drop for Mutation {
        fn drop(&mut self) {
            MUTATIONS.with_borrow_mut(|all| {
                if let Some(at) = all.iter().rposition(|(site, _)| *site == self.0) {
                    all.remove(at);
                }
            });
        }
    }
}

pub use answers::*;
