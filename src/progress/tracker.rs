//! A replica's position, and how checkpoints keep it.

use super::position::Position;
use super::state::NAME;
use crate::checkpoint::{Entry, StateError, Whose, register, saved_by};
use crate::replica::{Error, Replica};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a replica keeps its tracker, once it has one.
#[derive(Default)]
struct Attached(Mutex<Option<Arc<Tracker>>>);

/// One replica's position.
#[derive(Debug)]
pub(crate) struct Tracker(Mutex<Position>);

impl Tracker {
    /// The one of this replica. The first call makes it, and loads it if the run goes on from a checkpoint.
    pub(crate) fn of(replica: &Replica) -> Result<Arc<Self>, Error> {
        let attached = replica.shared().attached::<Attached>();
        let mut attached = attached.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tracker) = &*attached {
            return Ok(Arc::clone(tracker));
        }
        let position = Position::new(replica.rank(), replica.world_size());
        let tracker = Arc::new(Self(Mutex::new(position)));
        let entry: Arc<dyn Entry> = Arc::clone(&tracker) as _;
        register(replica, entry)?;
        *attached = Some(Arc::clone(&tracker));
        Ok(tracker)
    }

    /// Held for moments only.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Position> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry for Tracker {
    fn name(&self) -> &str {
        NAME
    }

    fn whose(&self) -> Whose {
        Whose::Shared
    }

    fn not_ready(&self) -> Option<String> {
        None
    }

    fn contribution(&self) -> Vec<u8> {
        self.lock().contribution()
    }

    fn agree(&self, all: &[&[u8]]) -> Result<(), Error> {
        self.lock().agree(all)
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        self.lock().save(out)
    }

    fn load(
        &self,
        old: &mut [&mut dyn Read],
        _rank: usize,
        _world_size: usize,
    ) -> Result<(), StateError> {
        self.lock().load(saved_by(NAME, old, 0)?)
    }
}
