//! What can be wrong with a state.

use crate::codec::ScopeStateError;
use std::io;
use thiserror::Error;

/// Why a state was not saved, loaded or merged. What was to be changed has not.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// Reading or writing failed.
    #[error("state {state}: {source}")]
    Io {
        /// The state's name.
        state: String,
        /// Why.
        source: io::Error,
    },
    /// It cannot be saved or replaced at this moment.
    #[error("state {state} can neither be saved nor loaded now: {why}")]
    NotNow {
        /// The state's name.
        state: String,
        /// What is in the way.
        why: String,
    },
    /// The bytes end too early.
    #[error("state {state} ends inside {what}: expected {expected} bytes more, found {found}")]
    Short {
        /// The state's name.
        state: String,
        /// What it ends in.
        what: &'static str,
        /// How many bytes that needs.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// There are bytes behind the state.
    #[error("state {state} has bytes behind its end")]
    Long {
        /// The state's name.
        state: String,
    },
    /// The bytes do not begin as a state does.
    #[error("state {state} begins with {found:02x?}, expected {expected:02x?}")]
    Magic {
        /// The state's name.
        state: String,
        /// How a state begins.
        expected: [u8; 8],
        /// How this begins.
        found: [u8; 8],
    },
    /// Written by a version that this one cannot read.
    #[error("state {state} has version {found}, expected {expected}")]
    Version {
        /// The state's name.
        state: String,
        /// This version.
        expected: u32,
        /// The version that wrote it.
        found: u32,
    },
    /// The checksum is not that of the bytes.
    #[error(
        "state {state} is damaged: its checksum is {found:08x}, that of its bytes {expected:08x}"
    )]
    Checksum {
        /// The state's name.
        state: String,
        /// Of the bytes before it.
        expected: u32,
        /// What is written.
        found: u32,
    },
    /// The state is of something else: another exchange, other lengths, other ranges.
    #[error("state {state}: {what}: expected {expected}, found {found}")]
    Differs {
        /// The state's name.
        state: String,
        /// In what it differs.
        what: String,
        /// What it should be.
        expected: String,
        /// What the bytes say.
        found: String,
    },
    /// A number that no such state has.
    #[error("state {state}: {what} {at} is {found:e}, expected {expected}")]
    Number {
        /// The state's name.
        state: String,
        /// What it is one of.
        what: &'static str,
        /// Which one.
        at: usize,
        /// What it could be.
        expected: &'static str,
        /// What it is.
        found: f32,
    },
    /// A policy refuses what it should go on from.
    #[error("state {state}: {source}")]
    Scopes {
        /// The state's name.
        state: String,
        /// Why.
        source: ScopeStateError,
    },
    /// There is no memory to read it into.
    #[error("state {state}: no memory for {elements} elements")]
    Memory {
        /// The state's name.
        state: String,
        /// How many.
        elements: usize,
    },
    /// What serde says of a value, or of its bytes.
    #[error("state {state}: {why}")]
    Encoding {
        /// The state's name.
        state: String,
        /// What is wrong.
        why: String,
    },
    /// A state of another number of replicas, and it cannot be merged.
    #[error(
        "state {state} is of {expected} replicas, found {found}, and cannot be merged (`State::merge`, `Value::merged_by`)"
    )]
    WorldSize {
        /// The state's name.
        state: String,
        /// How many it is of.
        expected: usize,
        /// How many there are now.
        found: usize,
    },
    /// There is no such rank.
    #[error("state {state}: expected a rank below {expected}, found {found}")]
    Rank {
        /// The state's name.
        state: String,
        /// How many ranks there are.
        expected: usize,
        /// The rank.
        found: usize,
    },
}

impl StateError {
    /// Reading or writing the state of this name failed.
    pub fn io(state: impl Into<String>, source: io::Error) -> StateError {
        StateError::Io {
            state: state.into(),
            source,
        }
    }
}
