//! A source in memory, which other threads of the process send to.

use super::{ExternalUpdate, SourceCounts, SourceError, UpdateSource};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Updates that may wait before they are added up: as in Deeplearning4j's tail.
pub const DEFAULT_LIMIT: usize = 32;
/// Bytes that may wait, however few the elements are.
const LEAST_BYTES: usize = 64 << 10;

/// A source of updates of `elements`, and what sends to it.
///
/// Updates wait in order of arrival. When more than `limit` of them wait ([`DEFAULT_LIMIT`]), or when they take more
/// memory than a vector of all elements, they are added up into one sum. So the memory is that of about two such vectors,
/// however long nobody asks; and since whatever waits is added up in the same order when the source is asked, its bits do
/// not depend on the limit.
///
/// ```
/// use gradring::exchange::external::{ExternalUpdate, UpdateSource, queue};
///
/// let (sender, mut source) = queue(4, 32);
/// let other = sender.clone();
/// std::thread::spawn(move || other.send(ExternalUpdate::hits(4, 0.5, [(1, false), (3, true)])?))
///     .join()
///     .expect("it does not panic")?;
/// sender.send(ExternalUpdate::dense(vec![0.25; 4])?)?;
/// let update = source.poll()?.expect("two have come");
/// assert_eq!(update.values().collect::<Vec<_>>(), [(0, 0.25), (1, 0.75), (2, 0.25), (3, -0.25)]);
/// assert!(source.poll()?.is_none());
/// # Ok::<(), gradring::exchange::external::SourceError>(())
/// ```
#[must_use]
pub fn queue(elements: usize, limit: usize) -> (QueueSender, QueueSource) {
    let shared = Arc::new(Shared {
        elements,
        limit,
        state: Mutex::default(),
    });
    let sender = QueueSender {
        shared: Arc::clone(&shared),
    };
    (sender, QueueSource { shared })
}

struct Shared {
    elements: usize,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<ExternalUpdate>,
    /// That those waiting take.
    bytes: usize,
    counts: SourceCounts,
    is_closed: bool,
}

impl Shared {
    /// The state is whole between any two calls that change it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes one sum of all that wait.
    fn add_up(&mut self) -> Result<(), SourceError> {
        while let Some(next) = self.waiting.remove(1) {
            let Some(sum) = self.waiting.front_mut() else {
                return Ok(());
            };
            match sum.add(&next) {
                Ok(left_out) => self.counts.left_out += left_out,
                Err(error) => {
                    self.waiting.insert(1, next);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn count_bytes(&mut self) {
        self.bytes = self.waiting.iter().map(ExternalUpdate::bytes).sum();
    }
}

/// Sends updates to a [`QueueSource`]. Clones send to the same one, from any thread.
#[derive(Clone)]
pub struct QueueSender {
    shared: Arc<Shared>,
}

impl QueueSender {
    /// Elements of the updates that it takes.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shared.elements
    }

    /// Sends one. Waits for nothing but other senders.
    ///
    /// # Errors
    /// [`SourceError::Length`] if it has another length than the source; [`SourceError::Closed`] if the source is gone;
    /// [`SourceError::Memory`]. The update was not taken then.
    pub fn send(&self, update: ExternalUpdate) -> Result<(), SourceError> {
        let (expected, found) = (self.shared.elements, update.elements());
        let state = &mut *self.shared.state();
        let taken = if state.is_closed {
            Err(SourceError::Closed)
        } else if found != expected {
            Err(SourceError::Length { expected, found })
        } else {
            self.put(state, update)
        };
        match taken {
            Ok(()) => state.counts.accepted += 1,
            Err(_) => state.counts.refused += 1,
        }
        taken
    }

    fn put(&self, state: &mut State, update: ExternalUpdate) -> Result<(), SourceError> {
        state.bytes += update.bytes();
        state.waiting.push_back(update);
        let most = self.shared.elements.saturating_mul(4).max(LEAST_BYTES);
        if state.waiting.len() <= self.shared.limit && state.bytes <= most {
            return Ok(());
        }
        let several = state.waiting.len() > 1;
        let added = state.add_up();
        match added {
            Ok(()) => state.counts.collapsed += u64::from(several),
            // Without the memory for a sum it stays as it is without this one.
            Err(_) => drop(state.waiting.pop_back()),
        }
        state.count_bytes();
        added
    }

    /// Counts one that was refused before it was an update.
    pub(super) fn refused(&self) {
        self.shared.state().counts.refused += 1;
    }

    /// What the source has done so far.
    #[must_use]
    pub fn counts(&self) -> SourceCounts {
        self.shared.state().counts
    }
}

impl std::fmt::Debug for QueueSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueSender")
            .field("elements", &self.shared.elements)
            .finish_non_exhaustive()
    }
}

/// A source in memory. Dropped, it closes: senders get an error.
pub struct QueueSource {
    shared: Arc<Shared>,
}

impl UpdateSource for QueueSource {
    fn elements(&self) -> usize {
        self.shared.elements
    }

    fn poll(&mut self) -> Result<Option<ExternalUpdate>, SourceError> {
        let state = &mut *self.shared.state();
        // Without the memory for a sum they come one after another.
        let _ = state.add_up();
        let update = state.waiting.pop_front();
        state.count_bytes();
        Ok(update)
    }

    fn give_back(&mut self, update: ExternalUpdate) {
        let state = &mut *self.shared.state();
        state.waiting.push_front(update);
        state.count_bytes();
    }

    fn counts(&self) -> SourceCounts {
        self.shared.state().counts
    }
}

impl Drop for QueueSource {
    fn drop(&mut self) {
        let state = &mut *self.shared.state();
        state.is_closed = true;
        state.waiting.clear();
        state.bytes = 0;
    }
}

impl std::fmt::Debug for QueueSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueSource")
            .field("elements", &self.shared.elements)
            .field("limit", &self.shared.limit)
            .finish_non_exhaustive()
    }
}
