//! Whole vectors: an encoder against a plain model of one, whatever its ranges, policies, threads and path.

#[path = "codec_encoder/config.rs"]
mod config;
#[path = "codec_encoder/keeping.rs"]
mod keeping;
#[path = "codec_encoder/limits.rs"]
mod limits;
#[path = "codec_encoder/misuse.rs"]
mod misuse;
#[path = "codec_encoder/model.rs"]
mod model;
#[path = "codec_encoder/parts.rs"]
mod parts;
mod plain;
#[path = "codec_encoder/states.rs"]
mod states;
#[path = "codec_encoder/steps.rs"]
mod steps;
#[path = "codec_encoder/streamed.rs"]
mod streamed;
#[path = "codec_encoder/sums.rs"]
mod sums;

use gradring::codec::{Encoder, Given, Message, Values};

/// Makes a whole step; its messages with their payloads.
fn step(encoder: &mut Encoder, number: u64, update: Values<'_>) -> Vec<(Message, Vec<u8>)> {
    step_given(encoder, number, update.into())
}

fn step_given(encoder: &mut Encoder, number: u64, update: Given<'_>) -> Vec<(Message, Vec<u8>)> {
    encoder.begin(number, update).expect("a step begins");
    let messages = (0..encoder.chunks())
        .map(|visit| {
            let message = encoder.encode(visit, update).expect("it is its turn");
            (message, encoder.payload().to_vec())
        })
        .collect();
    encoder.end().expect("all chunks have been encoded");
    messages
}
