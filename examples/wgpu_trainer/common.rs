//! What is the same in all examples: data, network, schedule.
#![allow(dead_code, reason = "the other examples need more of it")]

#[path = "../common/data.rs"]
pub(crate) mod data;
#[path = "../common/mlp.rs"]
pub(crate) mod mlp;
#[path = "../common/momentum.rs"]
pub(crate) mod momentum;
#[path = "../common/random.rs"]
pub(crate) mod random;
#[path = "../common/schedule.rs"]
pub(crate) mod schedule;
