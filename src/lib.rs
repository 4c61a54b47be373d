//! gradring makes a Rust trainer data-parallel on one node.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("gradring's engine needs Linux (futexes, robust lists, /dev/shm)");

pub mod codec;
pub mod shm;
