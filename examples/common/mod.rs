//! What both examples share: they differ only in their data, their model's shape, and what was tuned for it.
//!
//! [`replica`] is the part to read first: a trainer made data-parallel, and elastic.

pub(crate) mod arguments;
pub(crate) mod data;
pub(crate) mod dense;
pub(crate) mod job;
pub(crate) mod mlp;
pub(crate) mod momentum;
pub(crate) mod progress;
pub(crate) mod random;
pub(crate) mod replica;
pub(crate) mod report;
pub(crate) mod resume;
pub(crate) mod schedule;
pub(crate) mod sending;
pub(crate) mod trained;
