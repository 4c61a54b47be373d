//! What is said of a checkpoint that was made, and of one that a run goes on from.

use super::damage::Damage;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A checkpoint that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Its number: one more than the largest before it.
    pub number: u64,
    /// Its directory.
    pub path: PathBuf,
    /// Bytes of all states of all replicas.
    pub bytes: u64,
    /// How long this replica was busy with it.
    pub took: Duration,
    /// Older checkpoints that should have been removed and could not be. The next one tries again.
    pub not_removed: Vec<PathBuf>,
}

/// The checkpoint that a run goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// Its number.
    pub number: u64,
    /// Its directory.
    pub path: PathBuf,
    /// How many replicas had made it.
    pub world_size: usize,
    /// Newer ones that cannot be used, the newest first.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Its number.
    pub number: u64,
    /// Its directory.
    pub path: PathBuf,
    /// What is wrong with its files; at least one thing.
    pub damages: Vec<Damage>,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        for (i, damage) in self.damages.iter().enumerate() {
            write!(f, "{}{damage}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
