//! What `all_reduce` can do with small values.

use bytemuck::Pod;

/// A number that replicas can reduce: `f32`, `f64`, `i32`, `i64`, `u32`, `u64`.
pub trait Value: Pod + sealed::Sealed {
    #[doc(hidden)]
    const NUMBER: u16;
}

/// An operation on two values; applied in rank order, so that the result is the same bits on all ranks.
pub trait Op<T: Value>: sealed::Sealed {
    #[doc(hidden)]
    const NUMBER: u64;
    /// `a` from the lower ranks, `b` from the next one.
    fn combine(a: T, b: T) -> T;
}

/// Sum; integers wrap.
#[derive(Clone, Copy, Debug)]
pub struct Sum;
/// Smallest value. A NaN at any rank gives NaN.
#[derive(Clone, Copy, Debug)]
pub struct Min;
/// Largest value. A NaN at any rank gives NaN.
#[derive(Clone, Copy, Debug)]
pub struct Max;
/// Bitwise and, for integers.
#[derive(Clone, Copy, Debug)]
pub struct And;
/// Bitwise or, for integers.
#[derive(Clone, Copy, Debug)]
pub struct Or;

mod sealed {
    pub trait Sealed {}
}
impl sealed::Sealed for Sum {}
impl sealed::Sealed for Min {}
impl sealed::Sealed for Max {}
impl sealed::Sealed for And {}
impl sealed::Sealed for Or {}

macro_rules! value {
    ($($type:ty, $number:literal;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Value for $type {
            const NUMBER: u16 = $number;
        }
    )*};
}
value! { f32, 0; f64, 1; i32, 2; i64, 3; u32, 4; u64, 5; }

macro_rules! op {
    ($op:ty, $number:literal, $($type:ty)*, $combine:expr) => {$(
        impl Op<$type> for $op {
            const NUMBER: u64 = $number;
            #[inline(always)]
            fn combine(a: $type, b: $type) -> $type {
                let combine: fn($type, $type) -> $type = $combine;
                combine(a, b)
            }
        }
    )*};
}
op!(Sum, 0, i32 i64 u32 u64, |a, b| a.wrapping_add(b));
op!(Sum, 0, f32 f64, |a, b| a + b);
op!(Min, 1, i32 i64 u32 u64, |a, b| a.min(b));
op!(Max, 2, i32 i64 u32 u64, |a, b| a.max(b));
// f32::min would pass over a NaN, which hides that one replica has lost its numbers.
op!(Min, 1, f32 f64, |a, b| if b < a || b.is_nan() { b } else { a });
op!(Max, 2, f32 f64, |a, b| if b > a || b.is_nan() { b } else { a });
op!(And, 3, i32 i64 u32 u64, |a, b| a & b);
op!(Or, 4, i32 i64 u32 u64, |a, b| a | b);

#[cfg(test)]
mod tests {
    use super::{Max, Min, Op, Sum};

    #[test]
    fn a_nan_at_any_place_is_seen() {
        let nan = f64::NAN;
        for (a, b) in [(1.0, nan), (nan, 1.0), (nan, nan)] {
            assert!(<Min as Op<f64>>::combine(a, b).is_nan());
            assert!(<Max as Op<f64>>::combine(a, b).is_nan());
        }
    }

    #[test]
    fn integer_sums_wrap() {
        assert_eq!(<Sum as Op<u32>>::combine(u32::MAX, 2), 1);
        assert_eq!(<Sum as Op<i64>>::combine(i64::MAX, 1), i64::MIN);
    }
}
