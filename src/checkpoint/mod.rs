//! Named states: what a run must keep so that another run goes on where it stopped.

mod damage;
mod directory;
mod entry;
mod error;
mod files;
mod format;
mod kept;
mod manifest;
mod meet;
mod name;
mod replica;
mod resume;
mod save;
mod saved;
mod state;
mod value;

pub use damage::Damage;
pub(crate) use entry::Entry;
pub use error::StateError;
pub(crate) use format::{Reader, Writer};
pub use kept::{Kept, KeptGuard};
pub(crate) use resume::register;
pub use saved::{Resumed, Saved, Skipped};
pub use state::{State, Whose};
pub use value::Value;
