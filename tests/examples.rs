//! The tests of what both examples share, and of a whole one as a program.
//!
//! `cargo test` builds the examples; for `cargo test --test examples` they must have been built before.

#[path = "../examples/common/mod.rs"]
#[allow(dead_code, reason = "an example uses all of it, its tests do not")]
mod common;

#[cfg(feature = "gpu")]
#[path = "examples/backends.rs"]
mod backends;
