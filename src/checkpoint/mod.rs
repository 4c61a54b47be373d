//! Checkpoints: named states that are saved as one, so that another run goes on where this one stopped.
//!
//! A trainer [keeps](crate::Replica::keep) what it must not lose: its parameters, its optimizer, its exchange, how far it is.
//! All replicas together make a checkpoint of it, when the trainer says so ([`Replica::checkpoint`](crate::Replica::checkpoint)),
//! when the clock does (`GRADRING_CHECKPOINT_EVERY`), or when they are asked to stop. In a run that has a checkpoint to go on
//! from (`GRADRING_CHECKPOINT_DIR`) what is kept is loaded at once, also by another number of replicas than had made it.
//!
//! # An elastic trainer
//!
//! It can be stopped at any [`checkpoint_point`](crate::Replica::checkpoint_point), and goes on with as many replicas as it
//! is started with then. (A trainer that also has [accumulators](crate::Accumulator#restarts) runs its steps as a
//! [data loop](crate::progress), so that it is not given old metrics again.)
//!
//! ```
//! use gradring::checkpoint::Value;
//! use gradring::{Exchange, Replica};
//!
//! fn train(replica: &Replica) -> Result<Vec<f32>, gradring::Error> {
//!     let length = 1000;
//!     // Made, then kept: in a run that is resumed they are now what they were.
//!     let parameters = replica.keep_value(Value::shared("parameters", vec![0.5_f32; length]))?;
//!     let step = replica.keep_value(Value::shared("step", 0_u64))?;
//!     let exchange = replica.keep(Exchange::builder(length).build(replica)?)?;
//!     // Each replica's own; with another number of replicas, the mean of all.
//!     let velocity = replica.keep_value(Value::per_replica("velocity", vec![0.0_f32; length]))?;
//!
//!     while *step.lock()? < 20 {
//!         // Guards end before a checkpoint begins.
//!         {
//!             let (mut parameters, mut velocity) = (parameters.lock()?, velocity.lock()?);
//!             for (v, p) in velocity.iter_mut().zip(parameters.iter()) {
//!                 *v = 0.9 * *v + 0.01 * p; // the gradient of p * p / 2, times a rate
//!             }
//!             exchange.lock()?.step(Some(&*velocity), &mut parameters)?;
//!             *step.lock()? += 1;
//!         }
//!         replica.checkpoint_point()?;
//!     }
//!     replica.checkpoint()?;
//!     Ok(parameters.lock()?.clone())
//! }
//!
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let directory = folder.path();
//! let join = || Replica::builder().checkpoint_directory(directory).join();
//! let first = train(&join()?)?;
//! // A second run has nothing left to do.
//! let replica = join()?;
//! assert_eq!(train(&replica)?, first);
//! assert_eq!(replica.resumed()?.map(|resumed| resumed.number), Some(1));
//! # Ok::<(), gradring::Error>(())
//! ```
//!
//! # What is promised
//!
//! * A checkpoint is whole or is not there. Whatever kills a process or the machine, at whatever moment: a run goes on from
//!   the last checkpoint that was made, or from the one that was being made when it has all of it.
//! * Each byte of it has a checksum. What is damaged is not loaded: the run goes on from the newest checkpoint that is whole,
//!   and says which it skipped and why ([`Resumed::skipped`]; rank 0 also on standard error). If there are some and none is
//!   whole, that is an error, not a beginning from nothing.
//! * What cannot be written (a full disk) is the same error on all replicas. The checkpoints before are as they were, and the
//!   run goes on.
//! * States that a resumed run has not kept yet go from checkpoint to checkpoint as they are.
//!
//! The newest two checkpoints stay, or as many as `GRADRING_CHECKPOINT_KEEP` says. A directory is for one run at a time.
//!
//! # The format
//!
//! In the directory:
//!
//! | name | what it is |
//! |---|---|
//! | `checkpoint-<n>` | a checkpoint; n is decimal without zeros in front, one more than the largest before |
//! | `.tmp-<n>-<pid>-<16 hexadecimal digits>` | one that is being written, or removed, by that process; removed by a later save when the process is gone |
//! | anything else | not touched, not read |
//!
//! In a checkpoint, for each state, one file if it is shared, else one of each rank, and the manifest:
//!
//! | name | content |
//! |---|---|
//! | `<state>.shared` | what [`State::save`] wrote on rank 0 |
//! | `<state>.rank-<rank>` | what it wrote on this rank |
//! | `manifest` | text: a JSON object, and a line `crc32c ` with 8 hexadecimal digits, the CRC-32C of all bytes before that line |
//!
//! `<state>` is the state's name in UTF-8, where each byte other than an ASCII letter, a digit, `-`, `_` or `.`, and a `.` at
//! the beginning, is `%` and two hexadecimal digits: 1 to 200 bytes.
//!
//! The JSON object:
//!
//! | field | value |
//! |---|---|
//! | `format` | 1; other formats are not read |
//! | `number` | that of the directory |
//! | `world_size` | how many replicas made it, 1 to 255 |
//! | `written` | when, in UTC: `2026-01-31T23:59:59Z` |
//! | `restart` | how often the launcher had started the replicas again |
//! | `states` | a list, for each state: |
//! | `.name`, `.whose` | its name; `shared` or `per-replica` |
//! | `.checkpoint` | the number of the checkpoint in which it was written: an older one where it was carried on |
//! | `.files` | a list, by rank: `file` (its name), `bytes`, `crc32c` (8 hexadecimal digits) |
//!
//! Values ([`Value`]) and this crate's own states lie between a head and a checksum of their own. Little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `gradring` |
//! | 4 | version of the kind |
//! | 4, n | the kind: its length, its name; `vector` (a `Vec<f32>`), `value`, `exchange`, .. |
//! | n | `vector`: elements (8), then 4 each; `value`: CBOR (RFC 8949) |
//! | 4 | the CRC-32C of all bytes before |
//!
//! A save makes the temporary directory; each rank writes its files and brings them to the disk (fsync); when all have, rank 0
//! writes the manifest, brings it and the directory to the disk, renames the directory, brings that to the disk, and removes
//! what is not to be kept: first renamed, then removed. States that are carried on are hard links where the file system has
//! them, so that a damaged one may be damaged in several checkpoints.
//!
//! `gradring checkpoint show PATH` prints what is there, `gradring checkpoint verify PATH` reads all of it; [`inspect`] is
//! both for programs.

mod damage;
mod directory;
mod entry;
mod error;
mod files;
mod format;
mod inspect;
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
pub use inspect::{Content, InspectError, Inspected, InspectedState, Inspection, inspect};
pub use kept::{Kept, KeptGuard};
pub(crate) use resume::register;
pub use saved::{Resumed, Saved, Skipped};
pub(crate) use state::saved_by;
pub use state::{State, Whose};
pub use value::Value;
