//! Handles of what is kept: the trainer changes it, a checkpoint saves it.

use super::entry::Entry;
use super::state::saved_by;
use super::{State, StateError, Whose};
use crate::codec::Parameters;
use crate::replica::Error;
use crate::replica::shared::this_thread;
use std::fmt;
use std::io::{Read, Write};
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// What a replica keeps: every checkpoint saves it, and a run that is resumed has it again.
///
/// Clones are the same. The last handle may be dropped: it is saved all the same.
pub struct Kept<S>(Arc<Cell<S>>);

/// What handles and the registry share.
pub(crate) struct Cell<S> {
    name: String,
    whose: Whose,
    content: Mutex<S>,
    /// The thread that holds the content; 0 for none.
    holder: AtomicUsize,
    resumed: AtomicBool,
}

impl<S> Kept<S> {
    pub(crate) fn new(name: String, whose: Whose, content: S) -> Self {
        Self(Arc::new(Cell {
            name,
            whose,
            content: Mutex::new(content),
            holder: AtomicUsize::new(0),
            resumed: AtomicBool::new(false),
        }))
    }

    pub(crate) fn cell(&self) -> &Arc<Cell<S>> {
        &self.0
    }

    /// The content, until the guard is dropped. Waits for another thread's guard. While there is a guard no checkpoint can
    /// be made: [`Error::NotSaved`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if this thread has a guard of it already, or one panicked with a guard in its hands: then the
    /// content may be half of what it was to be.
    pub fn lock(&self) -> Result<KeptGuard<'_, S>, Error> {
        self.0.lock()
    }

    /// Whether it was loaded from a checkpoint.
    pub fn resumed(&self) -> bool {
        self.0.resumed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_resumed(&self) {
        self.0.resumed.store(true, Ordering::Relaxed);
    }
}

impl<S> Cell<S> {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn whose(&self) -> Whose {
        self.whose
    }

    /// Whether this thread has a guard of it.
    pub(crate) fn is_held_here(&self) -> bool {
        // Any thread sees its own last store.
        self.holder.load(Ordering::Relaxed) == this_thread()
    }

    fn lock(&self) -> Result<KeptGuard<'_, S>, Error> {
        if self.is_held_here() {
            return Err(Error::Invalid {
                what: "a guard of what is kept",
                expected: "one at a time on a thread".to_owned(),
                found: format!("a second one of {}", self.name),
            });
        }
        let guard = self.content.lock().map_err(|_| Error::Invalid {
            what: "what is kept",
            expected: "whole".to_owned(),
            found: format!("{}, with which a thread panicked in its hands", self.name),
        })?;
        Ok(self.held(guard))
    }

    /// The content, if nobody has it.
    pub(crate) fn try_lock(&self) -> Result<KeptGuard<'_, S>, StateError> {
        let locked = self.content.try_lock().map_err(|error| {
            let why = match error {
                TryLockError::WouldBlock => "a guard of it is held",
                TryLockError::Poisoned(_) => "a thread panicked with its guard in its hands",
            };
            StateError::NotNow {
                state: self.name.clone(),
                why: why.to_owned(),
            }
        });
        Ok(self.held(locked?))
    }

    fn held<'a>(&'a self, guard: MutexGuard<'a, S>) -> KeptGuard<'a, S> {
        self.holder.store(this_thread(), Ordering::Relaxed);
        KeptGuard { cell: self, guard }
    }

    /// Why it cannot be saved now.
    pub(crate) fn not_ready(&self) -> Option<String> {
        self.try_lock().err().map(|error| error.to_string())
    }
}

impl<S> Clone for Kept<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Kept<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("name", &self.0.name)
            .field("whose", &self.0.whose)
            .field("resumed", &self.resumed())
            .finish_non_exhaustive()
    }
}

/// What is kept, in the hands of one thread.
#[must_use = "dropped at once, it locks nothing"]
pub struct KeptGuard<'a, S> {
    cell: &'a Cell<S>,
    guard: MutexGuard<'a, S>,
}

impl<S> Deref for KeptGuard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.guard
    }
}

impl<S> DerefMut for KeptGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.guard
    }
}

impl<S> Drop for KeptGuard<'_, S> {
    fn drop(&mut self) {
        self.cell.holder.store(0, Ordering::Relaxed);
    }
}

/// So that kept parameters can be handed to a step as they are.
impl<P: Parameters> Parameters for KeptGuard<'_, P> {
    fn elements(&self) -> usize {
        self.guard.elements()
    }

    fn rest(&mut self, element: usize) -> &mut [f32] {
        self.guard.rest(element)
    }

    fn each(&mut self, elements: Range<usize>, with: &mut dyn FnMut(&mut [f32])) {
        self.guard.each(elements, with);
    }
}

impl<S: fmt::Debug> fmt::Debug for KeptGuard<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// A trainer's state in the registry.
pub(crate) struct KeptState<S>(pub(crate) Arc<Cell<S>>);

impl<S: State + Send + 'static> Entry for KeptState<S> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn whose(&self) -> Whose {
        self.0.whose()
    }

    fn not_ready(&self) -> Option<String> {
        self.0.not_ready()
    }

    fn is_held_here(&self) -> bool {
        self.0.is_held_here()
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        self.0.try_lock()?.save(out)
    }

    fn load(
        &self,
        old: &mut [&mut dyn Read],
        rank: usize,
        world_size: usize,
    ) -> Result<(), StateError> {
        let mut state = self.0.try_lock()?;
        match self.whose().own(old.len(), rank, world_size) {
            Some(own) => state.load(saved_by(self.name(), old, own)?),
            None => state.merge(old, rank, world_size),
        }
    }
}
