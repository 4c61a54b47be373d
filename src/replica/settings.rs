//! What a replica was told when it joined, by its builder or by variables.

use super::error::Error;
use super::variables::{number, seconds};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Name of the variable with the directory of checkpoints.
pub const CHECKPOINT_DIRECTORY: &str = "GRADRING_CHECKPOINT_DIR";
/// Name of the variable with the seconds between two checkpoints that are made by the clock.
pub const CHECKPOINT_EVERY: &str = "GRADRING_CHECKPOINT_EVERY";
/// Name of the variable with the number of checkpoints that are kept.
pub const CHECKPOINT_KEEP: &str = "GRADRING_CHECKPOINT_KEEP";
/// Name of the variable with how often the run has been started again; 0, or not set, at first.
pub const RESTART: &str = "GRADRING_RESTART";

/// Checkpoints that are kept unless another number is given.
const KEEP: usize = 2;

/// What a replica was told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Where checkpoints are.
    pub(crate) directory: Option<PathBuf>,
    /// After how much time rank 0 asks for one.
    pub(crate) every: Option<Duration>,
    /// How many are kept, at least 1.
    pub(crate) keep: usize,
    /// How often the run has been started again.
    pub(crate) restart: u64,
    /// Whether loops end the process when all have agreed to stop.
    pub(crate) exit_on_stop: bool,
    /// Whether SIGTERM and SIGINT are flags.
    pub(crate) handle_signals: bool,
}

/// What a builder says of them; the variables say the rest.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) directory: Option<PathBuf>,
    pub(super) every: Option<Duration>,
    pub(super) keep: Option<usize>,
    pub(super) exit_on_stop: bool,
    pub(super) handle_signals: bool,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            directory: None,
            every: None,
            keep: None,
            exit_on_stop: true,
            handle_signals: true,
        }
    }
}

impl Asked {
    /// # Errors
    /// [`Error::Environment`] if a variable does not hold what it must; [`Error::Invalid`] if nothing is to be kept.
    pub(super) fn settle(&self) -> Result<Settings, Error> {
        let directory = std::env::var_os(CHECKPOINT_DIRECTORY).filter(|path| !path.is_empty());
        let kept = "a number of checkpoints, at least 1";
        let keep = match (self.keep, number::<usize>(CHECKPOINT_KEEP, kept)?) {
            (Some(0), _) => {
                return Err(Error::Invalid {
                    what: "checkpoints to be kept",
                    expected: "at least 1".into(),
                    found: "0".into(),
                });
            }
            (None, Some(0)) => {
                return Err(Error::Environment {
                    variable: CHECKPOINT_KEEP,
                    expected: kept.into(),
                    found: "\"0\"".into(),
                });
            }
            (asked, variable) => asked.or(variable).unwrap_or(KEEP),
        };
        let every = match self.every {
            Some(every) => Some(every),
            None => seconds(CHECKPOINT_EVERY)?,
        };
        let directory = self.directory.clone().or(directory.map(PathBuf::from));
        Ok(Settings {
            // The same one wherever the trainer goes later.
            directory: directory.map(|path| std::path::absolute(&path).unwrap_or(path)),
            every,
            keep,
            restart: number(RESTART, "how often the run has been started again")?.unwrap_or(0),
            exit_on_stop: self.exit_on_stop,
            handle_signals: self.handle_signals,
        })
    }
}

impl Settings {
    /// When the clock of this rank asks for the next checkpoint: only rank 0's does, so that all ranks hear of the same.
    pub(super) fn next_due(&self, rank: usize) -> Option<Instant> {
        let every = self.every.filter(|_| rank == 0)?;
        Instant::now().checked_add(every)
    }
}
