//! Replicas train a perceptron of 64-64-10 units on 1,797 real handwritten digits, and are compared with a dense run.
//!
//! ```text
//! cargo run --release --example digits
//! cargo run --release --example digits -- -n 4 --json
//! cargo run --release --example digits -- --checkpoint-dir checkpoints      # Ctrl-C, and again: it goes on
//! gradring run -n 4 -- target/release/examples/digits
//! ```
//!
//! The trainer itself is in `examples/common/replica.rs`.

use std::process::ExitCode;

use common::job::{Job, run};
use common::mlp::Mlp;
use common::schedule::Rates;

#[path = "../common/mod.rs"]
mod common;
mod data;

fn main() -> ExitCode {
    run(&Job {
        name: "digits",
        about: "Trains a multilayer perceptron on 1,797 handwritten digits of 8x8 pixels.",
        load: data::load,
        model: Mlp {
            inputs: data::WIDTH,
            hidden: 64,
        },
        batch: 16,
        epochs: 20,
        // Best of a search at these world sizes. A compressed run takes the rate that is best for one replica at any
        // world size; a dense one takes more the larger its batch, and so does one whose momentum ends at what was sent.
        rates: Rates(&[(1, 0.1)]),
        masked_rates: Rates(&[(1, 0.1), (2, 0.2), (4, 0.4)]),
        dense_rates: Rates(&[(1, 0.1), (2, 0.2), (4, 0.2), (8, 0.4)]),
    })
}
