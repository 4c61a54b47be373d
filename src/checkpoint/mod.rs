//! Named states: what a run must keep so that another run goes on where it stopped.

mod error;
mod format;
mod state;

pub use error::StateError;
pub(crate) use format::{Reader, Writer};
pub use state::{State, Whose};
