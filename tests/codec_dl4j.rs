//! Deeplearning4j's formats: its own vectors word for word, its tests, and what it gets wrong.

#[path = "codec_dl4j/any.rs"]
mod any;
#[path = "codec_dl4j/cases.rs"]
mod cases;
#[path = "codec_dl4j/handler.rs"]
mod handler;
#[path = "codec_dl4j/numbers.rs"]
mod numbers;
#[path = "plain/random.rs"]
mod random;
#[path = "codec_dl4j/special.rs"]
mod special;
#[path = "codec_dl4j/upstream.rs"]
mod upstream;
