//! Replicas train a perceptron of 784-256-10 units on MNIST, and are compared with a dense run.
//!
//! ```text
//! cargo run --release --example mnist
//! cargo run --release --example mnist -- -n 4 --data ~/mnist
//! gradring run -n 4 --checkpoint-dir checkpoints --max-restarts 3 -- target/release/examples/mnist
//! ```
//!
//! Without `--data` it takes the 10,000 digits in `examples/data`. The trainer itself is in
//! `examples/common/replica.rs`.

use std::process::ExitCode;

use common::job::{Job, run};
use common::mlp::Mlp;
use common::schedule::Rates;

#[path = "../common/mod.rs"]
mod common;
mod data;

fn main() -> ExitCode {
    run(&Job {
        name: "mnist",
        about: "Trains a multilayer perceptron on MNIST: a part of it that comes along, or all of it (--data DIR).",
        load: data::load,
        model: Mlp {
            inputs: data::WIDTH,
            hidden: 256,
        },
        batch: 32,
        epochs: 5,
        // Best of a search at these world sizes. A compressed run takes one to two times the rate that is best for one
        // replica, and four times at eight; a dense one takes more the larger its batch. One whose momentum ends at what
        // was sent needs more than both.
        rates: Rates(&[(1, 0.05), (2, 0.1), (4, 0.1), (8, 0.2)]),
        masked_rates: Rates(&[(1, 0.2), (2, 0.4), (4, 0.8)]),
        dense_rates: Rates(&[(1, 0.05), (2, 0.1), (4, 0.2), (8, 0.4)]),
    })
}
