//! The arithmetic of uncompressed sums, element by element: the same bits from every instruction set.
//!
//! The loops are such that a compiler makes vectors of them, where it may.
#![allow(
    clippy::needless_range_loop,
    reason = "by index the compiler sees that no value lies outside; otherwise each is masked"
)]

use crate::codec::Path;
use crate::codec::arithmetic::choose;
use crate::codec::dense::{from_bf16, to_bf16};
use crate::replica::raw::Source;

/// How wide the vectors are that the compiled code may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lanes {
    /// What every processor of this architecture has.
    Plain,
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bits, and masks.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Lanes {
    /// Those of a path of the codec, if this processor has it.
    pub(super) fn of(path: Path) -> Self {
        match path {
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 if path.is_available() => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 if path.is_available() => Self::Avx512,
            _ => Self::Plain,
        }
    }
}

/// Each function once for each width.
macro_rules! by_lanes {
    ($($(#[$doc:meta])* fn $name:ident $(<$source:ident of $value:ty>)? ($($argument:ident: $type:ty),*)
        $(-> $result:ty)? $body:block)*) => {$(
        $(#[$doc])*
        pub(super) fn $name$(<$source: Source<$value>>)?(lanes: Lanes, $($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn plain$(<$source: Source<$value>>)?($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn wide$(<$source: Source<$value>>)?($($argument: $type),*) $(-> $result)? {
                plain($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn widest$(<$source: Source<$value>>)?($($argument: $type),*) $(-> $result)? {
                plain($($argument),*)
            }

            match lanes {
                Lanes::Plain => plain($($argument),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `Lanes::of` has seen that the processor has AVX2.
                Lanes::Avx2 => unsafe { wide($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `Lanes::of` has seen that the processor has what the codec's path asks for, which is more.
                Lanes::Avx512 => unsafe { widest($($argument),*) },
            }
        }
    )*};
}

/// [`codec::canon`](crate::codec::canon) by comparisons of numbers: fewer instructions where those of integers are signed.
#[inline(always)]
fn canon(x: f32) -> f32 {
    // So that a NaN stays one.
    choose(x.abs() < f32::MIN_POSITIVE, 0.0, x)
}

/// `canon(s + canon(x))`, or `s` and 1 where that is not finite: the element is left out.
#[inline(always)]
fn added(s: f32, x: f32) -> (f32, u32) {
    let sum = s + canon(x);
    let size = sum.abs();
    let finite = size < f32::INFINITY;
    let canonical = choose(size >= f32::MIN_POSITIVE, sum, 0.0);
    (choose(finite, canonical, s), u32::from(!finite))
}

/// `x` as bf16: the nearest, never infinite. What is not finite stays so, for those who add it to see.
#[inline(always)]
fn rounded(x: f32) -> u16 {
    let finite = x.abs() < f32::INFINITY;
    let mask = u32::from(finite).wrapping_neg();
    // Of what is not finite some finite number, which is not used.
    let nearest = u32::from(to_bf16(choose(finite, canon(x), 0.0)));
    (nearest & mask | x.to_bits() >> 16 & !mask) as u16
}

by_lanes! {
    /// Begins a sum: +0 with each value added. How many were left out.
    fn begin<S of f32>(sum: &mut [f32], values: S) -> u32 {
        let sum = &mut sum[..values.len()];
        let mut dropped = 0;
        for i in 0..sum.len() {
            let (s, not_finite) = added(0.0, values.get(i));
            sum[i] = s;
            dropped += not_finite;
        }
        dropped
    }

    /// Goes on with a sum. How many values were left out.
    fn add<S of f32>(sum: &mut [f32], values: S) -> u32 {
        let sum = &mut sum[..values.len()];
        let mut dropped = 0;
        for i in 0..sum.len() {
            let (s, not_finite) = added(sum[i], values.get(i));
            sum[i] = s;
            dropped += not_finite;
        }
        dropped
    }

    /// Values as bf16.
    fn round(values: &[f32], into: &mut [u16]) {
        for (into, x) in into.iter_mut().zip(values) {
            *into = rounded(*x);
        }
    }

    /// bf16 as f32, exactly.
    fn widen<S of u16>(values: S, into: &mut [f32]) {
        let into = &mut into[..values.len()];
        for i in 0..into.len() {
            into[i] = from_bf16(values.get(i));
        }
    }

    /// A finished sum rounded to bf16, where it lies.
    fn round_sum(sum: &mut [f32]) {
        for sum in sum {
            *sum = from_bf16(rounded(*sum));
        }
    }

    /// `p = canon(canon(p) - canon(s * x))`. How many parameters were not finite, and stay.
    fn subtract<S of f32>(sum: S, x: f32, parameters: &mut [f32]) -> u32 {
        let parameters = &mut parameters[..sum.len()];
        let mut not_finite = 0;
        for i in 0..parameters.len() {
            let p = parameters[i];
            let finite = p.abs() < f32::INFINITY;
            parameters[i] = choose(finite, canon(canon(p) - canon(sum.get(i) * x)), p);
            not_finite += u32::from(!finite);
        }
        not_finite
    }

    /// `canon(s * x)`.
    fn hand_over<S of f32>(sum: S, x: f32, into: &mut [f32]) {
        let into = &mut into[..sum.len()];
        for i in 0..into.len() {
            into[i] = canon(sum.get(i) * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every kind.
    fn numbers() -> Vec<f32> {
        let mut x = 1_u32;
        let mut numbers: Vec<f32> = (0..4001)
            .map(|_| {
                x = x.wrapping_mul(0x9E37_79B1) ^ x >> 15;
                f32::from_bits(x)
            })
            .collect();
        numbers.extend([
            0.0,
            -0.0,
            1e-45,
            f32::MAX,
            f32::MIN,
            f32::INFINITY,
            f32::NAN,
        ]);
        numbers
    }

    #[test]
    fn every_set_of_lanes_gives_the_same_bits() {
        let [plain, wide, widest] = [Path::Scalar, Path::Avx2, Path::Avx512].map(Lanes::of);
        let (a, b) = (numbers(), numbers().into_iter().rev().collect::<Vec<_>>());
        let all = |lanes| {
            let (mut sum, mut half, mut wide) =
                (vec![0.0; a.len()], vec![0; a.len()], vec![0.0; a.len()]);
            let dropped = begin(lanes, &mut sum, a.as_slice()) + add(lanes, &mut sum, b.as_slice());
            round(lanes, &a, &mut half);
            widen(lanes, half.as_slice(), &mut wide);
            let mut parameters = b.clone();
            let met = subtract(lanes, sum.as_slice(), 0.25, &mut parameters);
            let mut handed = vec![1.0; a.len()];
            hand_over(lanes, sum.as_slice(), 1.0 / 3.0, &mut handed);
            round_sum(lanes, &mut sum);
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            (
                (dropped, met, half),
                [sum, wide, parameters, handed].map(|values| bits(&values)),
            )
        };
        assert_eq!(all(plain), all(wide));
        assert_eq!(all(plain), all(widest));
    }

    #[test]
    fn what_is_not_finite_is_left_out_and_counted() {
        let lanes = Lanes::of(Path::Scalar);
        let mut sum = [7.0; 4];
        assert_eq!(
            begin(
                lanes,
                &mut sum,
                [f32::NAN, f32::INFINITY, f32::MAX, -0.0].as_slice()
            ),
            2
        );
        assert_eq!(
            sum.map(f32::to_bits),
            [0.0, 0.0, f32::MAX, 0.0].map(f32::to_bits)
        );
        assert_eq!(
            add(lanes, &mut sum, [1.0, -2.0, f32::MAX, 1e-45].as_slice()),
            1
        );
        assert_eq!(sum, [1.0, -2.0, f32::MAX, 0.0]);
    }

    #[test]
    fn rounding_keeps_what_is_not_finite_so_and_nothing_else() {
        for x in numbers() {
            let back = from_bf16(rounded(x));
            assert_eq!(back.is_finite(), x.is_finite(), "{x:e}");
            if x.is_finite() {
                assert!(
                    (back - x).abs() <= x.abs() / 256.0 || x.abs() < f32::MIN_POSITIVE,
                    "{x:e}"
                );
            }
        }
    }
}
