//! What a training has come to: so far, and at its end.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// How far a training is. The same on all replicas, and kept by every checkpoint.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Course {
    /// Steps that were made, by however many replicas.
    pub(crate) steps: u64,
    /// Samples that all replicas have seen together, over all epochs.
    pub(crate) samples: u64,
    /// The epochs that are finished.
    pub(crate) epochs: Vec<Epoch>,
}

/// What an epoch has reached.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Epoch {
    /// The mean loss of the samples trained on, each at the time when it was seen.
    pub(crate) loss: f64,
    /// The mean loss on held-out data.
    pub(crate) validation_loss: f64,
    /// What is classified right of the held-out data, as a part of 1.
    pub(crate) accuracy: f64,
}

/// What the replicas reached together.
#[derive(Serialize, Deserialize)]
pub(crate) struct Trained {
    /// Elements of the update.
    pub(crate) elements: u64,
    /// Steps that were made, by however many replicas.
    pub(crate) steps: u64,
    /// Each epoch's end.
    pub(crate) epochs: Vec<Epoch>,
    /// Samples that were trained on, counted by the replicas that saw them.
    pub(crate) samples: i64,
    /// Messages of all replicas.
    pub(crate) messages: i64,
    /// Their bytes, headers included.
    pub(crate) bytes: i64,
    /// Hits in them.
    pub(crate) hits: i64,
    /// Sum of the magnitudes that all replicas sent.
    pub(crate) sent: f64,
    /// Sum of the magnitudes that clipping took away from all residuals.
    pub(crate) clipped: f64,
    /// Of the mean replica, without the time between its steps.
    pub(crate) steps_per_second: f64,
    /// The hash of every replica's parameters, by rank.
    pub(crate) hashes: Vec<u64>,
    /// Where every replica encoded at the end, by rank.
    pub(crate) backends: Vec<String>,
}

impl Trained {
    /// How many replicas there were at the end.
    pub(crate) fn replicas(&self) -> usize {
        self.hashes.len()
    }

    /// The last epoch's; not a number if there was none.
    pub(crate) fn accuracy(&self) -> f64 {
        self.epochs.last().map_or(f64::NAN, |epoch| epoch.accuracy)
    }

    /// Whether all replicas hold the same parameters.
    pub(crate) fn identical(&self) -> bool {
        self.hashes.iter().all(|&hash| hash == self.hashes[0])
    }

    /// How many bytes the same updates would be without compression, for one byte of messages.
    pub(crate) fn compression(&self) -> f64 {
        4.0 * self.elements as f64 * self.messages as f64 / self.bytes as f64
    }

    /// Hits per element.
    pub(crate) fn density(&self) -> f64 {
        self.hits_of_a_message() / self.elements as f64
    }

    pub(crate) fn hits_of_a_message(&self) -> f64 {
        self.hits as f64 / self.messages as f64
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, serde_json::to_vec(self)?)
    }

    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}
