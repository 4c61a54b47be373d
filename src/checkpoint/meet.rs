//! How replicas tell each other what a checkpoint or a resumption needs: CBOR in gathers of their own.

use crate::replica::shared::{Engine, Shared};
use crate::replica::{Cause, Error, Kind, Operation, gather};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::Path;

/// What one rank could not do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    path: String,
    why: String,
}

impl Failure {
    pub(super) fn new(path: &Path, why: impl ToString) -> Self {
        Self {
            path: path.display().to_string(),
            why: why.to_string(),
        }
    }

    /// The error on all ranks.
    pub(super) fn not_saved(self, rank: usize) -> Error {
        Error::NotSaved {
            rank,
            path: self.path.into(),
            why: self.why,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.why)
    }
}

/// What every rank gives, by rank. `phase` counts the gathers of one operation.
pub(super) fn meet(
    shared: &Shared,
    kind: Kind,
    phase: u16,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, Error> {
    let engine = &mut *shared.engine()?;
    meet_with(shared, engine, kind, phase, bytes)
}

/// As [`meet`], with the engine in hand.
pub(super) fn meet_with(
    shared: &Shared,
    engine: &mut Engine,
    kind: Kind,
    phase: u16,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, Error> {
    gather(shared, engine, Operation::new(kind, phase, 0, 0), bytes)
}

/// A message.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    ciborium::into_writer(message, &mut bytes).map_err(|error| Error::Os {
        call: "writing a message to the other replicas",
        source: io::Error::other(error.to_string()),
    })?;
    Ok(bytes)
}

/// The message of `rank`; `bytes` go on behind it.
///
/// # Errors
/// [`Error::Protocol`], which ends the run.
pub(super) fn decode<T: DeserializeOwned>(
    shared: &Shared,
    rank: usize,
    bytes: &mut &[u8],
) -> Result<T, Error> {
    ciborium::from_reader(bytes)
        .map_err(|error: ciborium::de::Error<_>| shared.broken(rank, error.to_string()))
}

/// While it lives, the others know that this rank writes or reads a checkpoint, and wait for it without looking at their
/// deadlines. A panic of a trainer's code in the meantime ends the run: nobody waits for the rest.
pub(super) struct Writing<'a>(&'a Shared);

impl<'a> Writing<'a> {
    pub(super) fn begin(shared: &'a Shared) -> Self {
        shared.writing(true);
        Self(shared)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let number = self.0.engine().map_or(0, |engine| engine.number);
            self.0.poison(Cause::Panicked, self.0.rank as u8, number);
        }
        self.0.writing(false);
    }
}
