//! The numbers of the tests, as f32 and as f64.

use super::random::Random;
use gradring::codec::compat::Element;
use serde_json::Value;
use std::fmt::Debug;

/// An element type as the tests see it: numbers from cases, and bits to compare.
pub(crate) trait Number: Element + Debug {
    fn of(x: f64) -> Self;
    fn bits(self) -> u64;
    fn any(bits: u64) -> Self;
}

impl Number for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
    fn any(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
}

impl Number for f64 {
    fn of(x: f64) -> f64 {
        x
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn any(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
}

pub(crate) fn bits<T: Number>(numbers: &[T]) -> Vec<u64> {
    numbers.iter().map(|x| x.bits()).collect()
}

/// Equal as numbers, NaN to NaN, and 0 to -0 as the cases are written.
pub(crate) fn equal<T: Number>(found: &[T], expected: &[T]) -> bool {
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(a, b)| a == b || is_nan(a) && is_nan(b))
}

pub(crate) fn is_nan<T: Number>(x: &T) -> bool {
    x.partial_cmp(x).is_none()
}

pub(crate) fn numbers<T: Number>(values: &[Value]) -> Vec<T> {
    let number = |value: &Value| match value {
        Value::String(name) => name.parse::<f64>().expect("NaN or an infinity"),
        value => value.as_f64().expect("a number"),
    };
    values.iter().map(|value| T::of(number(value))).collect()
}

/// Multiples of 2^-10, of which about this share can be hits of 1/16, and most others are 0.
pub(crate) fn dyadic<T: Number>(random: &mut Random, n: usize, density: f64) -> Vec<T> {
    let one = |random: &mut Random| {
        let most = match random.unit() {
            x if x <= density => 256,
            x if x > 0.98 => 8,
            _ => 0,
        };
        let quanta = random.below(2 * most + 1) as f64 - most as f64;
        T::of(quanta / 1024.0)
    };
    (0..n).map(|_| one(random)).collect()
}
