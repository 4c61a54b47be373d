//! What can be wrong with a checkpoint's files.

use serde::{Deserialize, Serialize};

/// What is wrong with a file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Damage {
    /// It is not there.
    #[error("{file} is missing")]
    Missing {
        /// Its name.
        file: String,
    },
    /// It is a directory, a link or something else that nobody reads.
    #[error("{file} is no regular file")]
    NoFile {
        /// Its name.
        file: String,
    },
    /// It has another length than the manifest says.
    #[error("{file} has {found} bytes, expected {expected}")]
    Length {
        /// Its name.
        file: String,
        /// Bytes, as the manifest says.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// It has another checksum than the manifest says.
    #[error("{file} is damaged: the CRC-32C of its bytes is {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Its name.
        file: String,
        /// As the manifest says.
        expected: u32,
        /// That of its bytes.
        found: u32,
    },
    /// The system does not let it be read.
    #[error("{file} cannot be read: {why}")]
    Unreadable {
        /// Its name.
        file: String,
        /// The system's reason.
        why: String,
    },
    /// The manifest's bytes are intact, but not what a manifest is.
    #[error("{file}: {what}")]
    Content {
        /// Its name.
        file: String,
        /// What is wrong: expected and found.
        what: String,
    },
}
