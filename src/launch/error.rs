//! Why a run did not come about.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::shm::segment::SegmentError;

/// Why a run, or a new generation of it, did not come about. No process and no segment is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A run of no replicas.
    #[error("0 replicas cannot run: the number must be 1 to 255")]
    NoReplicas,
    /// More replicas than a world can have.
    #[error("{asked} replicas are too many: the number must be 1 to 255")]
    TooManyReplicas {
        /// How many were asked for.
        asked: usize,
    },
    /// A number of replicas for restarted generations, where none is ever restarted.
    #[error(
        "{replicas} replicas after a restart, but no restart is allowed: give --max-restarts too"
    )]
    NoRestarts {
        /// How many were asked for.
        replicas: usize,
    },
    /// There is no such program.
    #[error("{}: program not found", program.display())]
    NotFound {
        /// As it was given.
        program: OsString,
    },
    /// The program is there, but the system does not execute it.
    #[error("{}: cannot be executed: {why}", program.display())]
    NotExecutable {
        /// Where it was found.
        program: PathBuf,
        /// The system's reason, or what it is in plain words.
        why: String,
    },
    /// A replica's process could not be started; those before it were killed.
    #[error("rank {rank} could not be started: {source}")]
    Spawn {
        /// Which one.
        rank: usize,
        /// Why.
        source: io::Error,
    },
    /// The shared segment could not be made.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// Something else that the launcher needs from the system.
    #[error("{call}: {source}")]
    Os {
        /// What was called.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

impl LaunchError {
    /// The code with which a command line ends: 2 for what can never run, 127 for a program that is not there,
    /// 126 for one that cannot be executed, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NoReplicas
            | LaunchError::TooManyReplicas { .. }
            | LaunchError::NoRestarts { .. } => 2,
            LaunchError::NotFound { .. } => 127,
            LaunchError::NotExecutable { .. } => 126,
            _ => 1,
        }
    }
}
