//! The trainer whose model is in the memory of a GPU: its kernels against the processor's network, and whole runs.
//!
//! `cargo test` builds the example; for `cargo test --test wgpu_trainer` it must have been built before. Without any adapter,
//! not even a software one, what needs one says NOT RUN, and fails if `GRADRING_REQUIRE_GPU` is 1.
#![cfg(all(feature = "gpu", feature = "cli"))]

#[path = "../examples/wgpu_trainer/common.rs"]
mod common;
#[path = "../examples/digits/data.rs"]
mod digits;
#[path = "../examples/wgpu_trainer/gpu.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod gpu;
#[path = "../examples/wgpu_trainer/model.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod model;

#[path = "wgpu_trainer/kernels.rs"]
mod kernels;
#[path = "wgpu_trainer/runs.rs"]
mod runs;

use gpu::Gpu;
use std::io::Write;

/// A device; `None` where there is no adapter.
fn device() -> Option<Gpu> {
    match Gpu::open(None, 0) {
        Ok(gpu) => {
            println!("on {}", gpu.info.name);
            Some(gpu)
        }
        Err(error) => {
            let required = std::env::var("GRADRING_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "GRADRING_REQUIRE_GPU is 1: {error}");
            let _ = writeln!(std::io::stderr(), "NOT RUN: {error}");
            None
        }
    }
}
