//! Starting a run: spawn the replicas, pass on what they write, watch them, clean up behind them.
//!
//! `gradring run` is this module with a command line. A program can also start itself as replicas:
//!
//! ```no_run
//! # fn train() {}
//! use gradring::launch::Launch;
//!
//! fn main() -> Result<(), gradring::launch::LaunchError> {
//!     if gradring::Replica::is_replica() {
//!         train(); // calls Replica::join()
//!         return Ok(());
//!     }
//!     let outcome = Launch::this_program().replicas(2).run()?;
//!     if !outcome.is_success() {
//!         eprintln!("{outcome}");
//!     }
//!     std::process::exit(outcome.code.into());
//! }
//! ```
//!
//! It installs no signal handlers unless it is [asked](Stopper::forward_signals): a program like the one above is ended by
//! Ctrl-C or SIGTERM as any other, and its replicas die with it, without a checkpoint. With
//! `launch.stopper().forward_signals()?` before `run` they agree to stop, and save.
//!
//! A run is one *generation* of processes after another, mostly one: a new generation, with a new segment, begins when a
//! replica has failed and [`Launch::max_restarts`] allows it, and when the run is to have another number of replicas
//! ([`resize`], `gradring resize`). Each resumes from the newest checkpoint, if the program makes any.
//!
//! What a run promises: when [`Launch::run`] returns, every replica has ended, with all that it started in its process
//! group, and the shared segment has no name any more. If the launcher itself dies, the replicas die with it: by the
//! kernel's parent-death signal, by a pipe that hangs up, and by the launcher's life token in the segment. What a
//! replica's shell has started and has not joined the run is reached by none of these.

mod builder;
mod client;
mod control;
mod desk;
mod error;
mod event;
mod finish;
mod generation;
mod lines;
mod outcome;
mod output;
mod plan;
mod process;
mod spawn;
mod stopper;
mod supervise;
mod world;

pub use builder::{DEFAULT_GRACE, DEFAULT_RESIZE_TIMEOUT, Launch};
pub use client::{ResizeError, resize, runs};
pub use error::LaunchError;
pub use outcome::{Culprit, How, Outcome, RankEnd};
pub use stopper::Stopper;

pub use crate::shm::layout::DEFAULT_RING_CAPACITY;
