//! The tests of what both examples share. The examples themselves are built as programs, which other tests run.

#[path = "../examples/common/mod.rs"]
#[allow(dead_code, reason = "an example uses all of it, its tests do not")]
mod common;
