//! The trait of whatever is kept.

use super::StateError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{Read, Write};

/// Whose a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// Equal on all replicas: rank 0 writes it, and all read the same.
    Shared,
    /// Each replica's own: each writes its own, and reads it again where the world size is the same.
    #[serde(rename = "per-replica")]
    Replica,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Replica => "per replica",
        })
    }
}

/// What a run must keep so that another run goes on where it stopped.
///
/// A state that fails to load or to merge has not changed. Bytes to be read may come from a damaged file: whatever they
/// are, they give a [`StateError`] or a state.
///
/// ```
/// use gradring::checkpoint::{State, StateError, Whose};
/// use std::io::{Read, Write};
///
/// /// How many samples all replicas have seen.
/// struct Seen(u64);
///
/// impl State for Seen {
///     fn name(&self) -> &str { "seen" }
///     fn whose(&self) -> Whose { Whose::Shared }
///     fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
///         out.write_all(&self.0.to_le_bytes()).map_err(|error| StateError::io("seen", error))
///     }
///     fn load(&mut self, from: &mut dyn Read) -> Result<(), StateError> {
///         let mut bytes = [0; 8];
///         from.read_exact(&mut bytes).map_err(|error| StateError::io("seen", error))?;
///         self.0 = u64::from_le_bytes(bytes);
///         Ok(())
///     }
/// }
///
/// let mut file = Vec::new();
/// Seen(7).save(&mut file)?;
/// let mut again = Seen(0);
/// again.load(&mut &file[..])?;
/// assert_eq!(again.0, 7);
/// # Ok::<(), StateError>(())
/// ```
pub trait State {
    /// Its name, by which it is found again. One of a kind in a checkpoint.
    fn name(&self) -> &str;

    /// Whether all replicas have the same.
    fn whose(&self) -> Whose;

    /// Writes it.
    ///
    /// # Errors
    /// [`StateError`] when it cannot be written, or not now.
    fn save(&self, out: &mut dyn Write) -> Result<(), StateError>;

    /// Goes on from what [`save`](Self::save) wrote: from this replica's own, or from the shared one. `from` ends where
    /// the state ends.
    ///
    /// # Errors
    /// [`StateError`]; nothing has changed then.
    fn load(&mut self, from: &mut dyn Read) -> Result<(), StateError>;

    /// Goes on in a run of `world_size` replicas, as its `rank`, from the states of all replicas of a run that may have had
    /// another number of them: `old[i]` is what rank i saved. As it stands, for a shared state: all are the same, and one is
    /// loaded.
    ///
    /// # Errors
    /// [`StateError`]; nothing has changed then.
    fn merge(
        &mut self,
        old: &mut [&mut dyn Read],
        rank: usize,
        world_size: usize,
    ) -> Result<(), StateError> {
        let name = self.name().to_owned();
        match self.whose().own(old.len(), rank, world_size) {
            Some(own) => self.load(saved_by(&name, old, own)?),
            None => Err(StateError::WorldSize {
                state: name,
                expected: old.len(),
                found: world_size,
            }),
        }
    }
}

impl Whose {
    /// Of so many saved states the one from which `rank` goes on; `None` where it takes all of them.
    pub(crate) fn own(self, saved: usize, rank: usize, world_size: usize) -> Option<usize> {
        match self {
            Self::Shared => Some(0),
            Self::Replica => (saved == world_size).then_some(rank),
        }
    }
}

/// What rank `at` has saved.
pub(crate) fn saved_by<'a, 'b>(
    state: &str,
    old: &'a mut [&'b mut dyn Read],
    at: usize,
) -> Result<&'a mut (dyn Read + 'b), StateError> {
    let count = old.len();
    match old.get_mut(at) {
        Some(from) => Ok(&mut **from),
        None => Err(StateError::Rank {
            state: state.to_owned(),
            expected: count,
            found: at,
        }),
    }
}
