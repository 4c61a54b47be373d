//! What a replica's handle offers of all this.

use super::State;
use super::entry::Registry;
use super::kept::{Kept, KeptState};
use super::resume::{look, register};
use super::save;
use super::saved::{Resumed, Saved};
use super::value::Value;
use crate::replica::{Error, Flags, Replica, Stop};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Checkpoints: see [`checkpoint`](crate::checkpoint).
impl Replica {
    /// Keeps a state: every checkpoint saves it, and if the run goes on from a checkpoint that has a state of this name, it
    /// is loaded here. One that the checkpoint does not have stays as it is.
    ///
    /// All replicas keep the same. The first such call of a run that has a checkpoint directory waits for all replicas.
    ///
    /// What is kept lives as long as the replica. So a state must not own a clone of this handle: the replica would never
    /// leave the run, and count as dead when its process ends. (An exchange owns none.)
    ///
    /// # Errors
    /// [`Error::Duplicate`] if a state of this name is kept, [`Error::Invalid`] if its name is empty or too long,
    /// [`Error::NotLoaded`] if it could not be loaded, or no checkpoint that is there can be used,
    /// [`Error::Disagreement`] if replicas see different checkpoints; what ended the run.
    pub fn keep<S: State + Send + 'static>(&self, state: S) -> Result<Kept<S>, Error> {
        let kept = Kept::new(state.name().to_owned(), state.whose(), state);
        let entry = Arc::new(KeptState(Arc::clone(kept.cell())));
        if register(self, entry)? {
            kept.set_resumed();
        }
        Ok(kept)
    }

    /// Keeps a value, as [`keep`](Self::keep) does a state.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn keep_value<T>(&self, value: Value<T>) -> Result<Kept<T>, Error>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let (kept, entry) = value.into_kept();
        if register(self, entry)? {
            kept.set_resumed();
        }
        Ok(kept)
    }

    /// Makes a checkpoint of everything that is kept. All replicas call it at the same place; it returns when the checkpoint
    /// is on the disk. `None` if no checkpoint directory was given: then only the accumulators' pending values are merged, as
    /// with one.
    ///
    /// After the checkpoint of a stop it does nothing and returns that one.
    ///
    /// # Errors
    /// [`Error::NotSaved`] if any replica could not write its part or was not ready (a guard is held, a step is open, an
    /// asynchronous exchange has not settled); [`Error::Disagreement`] if replicas keep different states. All replicas have the
    /// same error, the checkpoints before are as they were, and the run goes on. [`Error::StepOpen`] where a part of an open
    /// step is with the others already: for them this is another operation. What ended the run.
    pub fn checkpoint(&self) -> Result<Option<Saved>, Error> {
        let shared = self.shared();
        let registry = shared.attached::<Registry>();
        {
            let registered = registry.lock();
            if registered.stopped {
                return Ok(registered.saved.clone());
            }
        }
        save::checkpoint(shared, &registry)
    }

    /// A place at which a checkpoint can be made and the run can stop: for loops other than those of epochs and batches. All
    /// replicas call it at the same place.
    ///
    /// If all have agreed on a checkpoint, it is made. If they have agreed to stop, a checkpoint is made, and this process
    /// leaves the run and ends with the [code of the stop](Stop::exit_code); where the builder said not to end it, the stop
    /// is returned. While an asynchronous exchange has not settled nothing happens.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint); [`Error::Invalid`] if this thread holds a guard of what is kept (local).
    pub fn checkpoint_point(&self) -> Result<Option<Stop>, Error> {
        let shared = self.shared();
        shared.look_at_stops();
        let registry = shared.attached::<Registry>();
        // Also where nothing is due: a trainer should know before it is asked to stop, and cannot save.
        if let Some(name) = registry.held_here() {
            return Err(Error::Invalid {
                what: "a place to save or to stop",
                expected: "no guard of what is kept in the hands of this thread".to_owned(),
                found: format!("one of {name}"),
            });
        }
        if shared.not_ready().is_some() {
            return Ok(None);
        }
        let flags = shared.agree_now()?;
        let Some(stop) = flags.stop() else {
            if flags.contains(Flags::CHECKPOINT) {
                self.checkpoint()?;
            }
            return Ok(None);
        };
        self.checkpoint()?;
        registry.lock().stopped = true;
        if shared.settings.exit_on_stop {
            shared.leave_and_exit(stop.exit_code());
        }
        Ok(Some(stop))
    }

    /// The checkpoint that this run goes on from; `None` where it begins anew. The first call of a run that has a checkpoint
    /// directory waits for all replicas.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn resumed(&self) -> Result<Option<Resumed>, Error> {
        let shared = self.shared();
        let registry = shared.attached::<Registry>();
        look(shared, &registry)?;
        let registered = registry.lock();
        let resume = registered.resume.as_ref();
        Ok(resume.and_then(|resume| resume.from.clone()))
    }
}
