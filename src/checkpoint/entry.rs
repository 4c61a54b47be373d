//! What a replica has registered to be kept.

use super::resume::Resume;
use super::saved::Saved;
use super::{StateError, Whose};
use crate::replica::Error;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that a checkpoint consists of.
pub(crate) trait Entry: Send + Sync {
    /// As [`State::name`](super::State::name).
    fn name(&self) -> &str;

    /// As [`State::whose`](super::State::whose).
    fn whose(&self) -> Whose;

    /// Why it cannot be saved now.
    fn not_ready(&self) -> Option<String>;

    /// Whether this very thread has it in its hands, so that no checkpoint can be made here.
    fn is_held_here(&self) -> bool {
        false
    }

    /// What this rank tells the others of it, just before they all meet for a checkpoint.
    fn contribution(&self) -> Vec<u8> {
        Vec::new()
    }

    /// What all ranks have told, by rank, just after they met. The same result on all ranks.
    fn agree(&self, _all: &[&[u8]]) -> Result<(), Error> {
        Ok(())
    }

    /// Writes it.
    fn save(&self, out: &mut dyn Write) -> Result<(), StateError>;

    /// Goes on from what all ranks of an old run have saved, by rank, or from the one that is shared.
    fn load(
        &self,
        old: &mut [&mut dyn Read],
        rank: usize,
        world_size: usize,
    ) -> Result<(), StateError>;
}

/// What a replica keeps: one of it for each replica.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Registered>);

#[derive(Default)]
pub(crate) struct Registered {
    /// By name.
    pub(crate) entries: Vec<Arc<dyn Entry>>,
    /// What the run goes on from; `None` before all have looked.
    pub(crate) resume: Option<Resume>,
    /// The last checkpoint of this run.
    pub(crate) saved: Option<Saved>,
    /// Whether that is the one of a stop: there is none after it.
    pub(crate) stopped: bool,
}

impl Registry {
    /// Held for moments only: neither while replicas meet nor while a trainer's code runs.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this thread has in its hands, if anything.
    pub(crate) fn held_here(&self) -> Option<String> {
        let registered = self.lock();
        let held = registered.entries.iter().find(|entry| entry.is_held_here());
        held.map(|entry| entry.name().to_owned())
    }

    /// All entries, by name.
    pub(crate) fn entries(&self) -> Vec<Arc<dyn Entry>> {
        self.lock().entries.clone()
    }
}

impl Registered {
    /// Where an entry of this name is, or belongs.
    pub(crate) fn place(&self, name: &str) -> Result<usize, usize> {
        self.entries
            .binary_search_by(|entry| entry.name().cmp(name))
    }
}

/// There is an entry of this name already.
pub(crate) fn duplicate(name: &str) -> Error {
    Error::Duplicate {
        what: "state",
        name: name.to_owned(),
    }
}
