//! Plain models of the codec, one element at a time, and the numbers that tests feed to it.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses a part"
)]

mod model;
mod numbers;
mod random;

pub use model::{
    Message, Outcome, decode, dense, encode, payload, payload_of_values, smaller, to_bf16,
};
pub use numbers::{
    Kind, kinds, lengths, lengths_around_everything, options, residual, units, vector,
};
pub use random::Random;

use gradring::codec::Path;

/// Every path that this processor has.
pub fn paths() -> impl Iterator<Item = Path> + Clone {
    Path::ALL.into_iter().filter(|path| path.is_available())
}

/// Numbers are compared by their bits: -0 is not +0, and a NaN is itself.
pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Where two vectors of numbers differ first.
pub fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    if a.len() != b.len() {
        return Some(a.len().min(b.len()));
    }
    a.iter()
        .zip(b)
        .position(|(a, b)| a.to_bits() != b.to_bits())
}
