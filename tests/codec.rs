//! What holds of the codec for any data: every path gives the bits of a plain model, nothing is lost, any bytes can be
//! decoded.

#[path = "codec/applying.rs"]
mod applying;
#[path = "codec/dense.rs"]
mod dense;
#[path = "codec/encoding.rs"]
mod encoding;
#[path = "codec/exact.rs"]
mod exact;
#[path = "codec/flushing.rs"]
mod flushing;
#[path = "codec/in_place.rs"]
mod in_place;
#[path = "codec/law.rs"]
mod law;
mod plain;
#[path = "codec/sampling.rs"]
mod sampling;
