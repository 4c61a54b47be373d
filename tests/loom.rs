//! What the model checker says about the shipped code: every interleaving of small scenarios, within a bound on
//! preemptions, and that it would have noticed each of the mistakes that could have been made.
//!
//! `cargo loom` runs it; in an ordinary build there is nothing here. The numbers in the modules' titles are those by
//! which the code's tables of orderings refer to the models.
#![cfg(loom)]

#[path = "loom/barrier.rs"]
mod barrier;
#[path = "loom/bell.rs"]
mod bell;
#[path = "loom/cells.rs"]
mod cells;
#[path = "loom/crash.rs"]
mod crash;
#[path = "loom/end.rs"]
mod end;
#[path = "loom/join.rs"]
mod join;
#[path = "loom/left.rs"]
mod left;
#[path = "loom/pace.rs"]
mod pace;
#[path = "loom/padding.rs"]
mod padding;
#[path = "loom/poison.rs"]
mod poison;
#[path = "loom/poisoned_barrier.rs"]
mod poisoned_barrier;
#[path = "loom/progress.rs"]
mod progress;
#[path = "loom/reduce.rs"]
mod reduce;
#[path = "loom/ring.rs"]
mod ring;
#[path = "loom/run.rs"]
mod run;
#[path = "loom/sites.rs"]
mod sites;
