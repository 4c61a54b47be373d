//! Epochs and data loops through stops, kills and other numbers of replicas: each sample exactly once.
#![allow(unreachable_pub, reason = "its modules are shared with other tests")]

#[path = "elastic/boundaries.rs"]
mod boundaries;
#[path = "elastic/mod.rs"]
mod harness;
#[path = "elastic/loops.rs"]
mod loops;
#[path = "elastic/misuse.rs"]
mod misuse;
#[path = "plain/random.rs"]
mod random;
#[path = "elastic/seen.rs"]
mod seen;
#[path = "elastic/stops.rs"]
mod stops;
#[path = "elastic/storms.rs"]
mod storms;
#[path = "elastic/sums.rs"]
mod sums;
