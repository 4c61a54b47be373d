//! Sums of f32 numbers without any rounding: dyadic rationals as fixed-point integers.

use std::cmp::Ordering;

/// Digits of 32 bits, least first.
const DIGITS: usize = 12;
/// The first digit's unit is 2 to the minus this: below the least f32, 2^-149.
const BELOW: i32 = 160;

/// A number of which every f32, and every sum of a few million of them, is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Exact {
    /// Between additions each is at least 0 and below 2^32, but for the last one, which has the sign.
    digits: [i64; DIGITS],
}

impl Exact {
    /// A finite number.
    pub(super) fn of(x: f32) -> Exact {
        assert!(x.is_finite(), "{x} is in no sum");
        let bits = x.to_bits();
        let exponent = (bits >> 23 & 0xff) as i32;
        let mantissa = u64::from(bits & 0x7f_ffff | u32::from(exponent > 0) << 23);
        // x is the mantissa times 2 to this.
        let power = exponent.max(1) - 150;
        let place = (power + BELOW) as usize;
        let shifted = mantissa << (place % 32);
        let mut exact = Exact::default();
        exact.digits[place / 32] = (shifted & 0xffff_ffff) as i64;
        exact.digits[place / 32 + 1] = (shifted >> 32) as i64;
        if x.is_sign_negative() { -exact } else { exact }
    }

    fn carried(mut self) -> Exact {
        for at in 0..DIGITS - 1 {
            let carry = self.digits[at] >> 32;
            self.digits[at] -= carry << 32;
            self.digits[at + 1] += carry;
        }
        self
    }

    pub(super) fn is_zero(self) -> bool {
        self == Exact::default()
    }

    pub(super) fn abs(self) -> Exact {
        if self.digits[DIGITS - 1] < 0 {
            -self
        } else {
            self
        }
    }

    /// Near enough to be read.
    pub(super) fn to_f64(self) -> f64 {
        let digits = self.digits.iter().enumerate().rev();
        digits.fold(0.0, |sum, (at, &digit)| {
            sum + digit as f64 * 2f64.powi(32 * at as i32 - BELOW)
        })
    }
}

impl std::ops::Neg for Exact {
    type Output = Exact;

    fn neg(self) -> Exact {
        let digits = self.digits.map(|digit| -digit);
        Exact { digits }.carried()
    }
}

impl std::ops::Add for Exact {
    type Output = Exact;

    fn add(mut self, other: Exact) -> Exact {
        for (mine, theirs) in self.digits.iter_mut().zip(other.digits) {
            *mine += theirs;
        }
        self.carried()
    }
}

impl std::ops::Sub for Exact {
    type Output = Exact;

    fn sub(self, other: Exact) -> Exact {
        self + -other
    }
}

impl std::ops::AddAssign for Exact {
    fn add_assign(&mut self, other: Exact) {
        *self = *self + other;
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Exact) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Exact {
    fn cmp(&self, other: &Exact) -> Ordering {
        // All digits but the last are at least 0, and the last counts most.
        self.digits.iter().rev().cmp(other.digits.iter().rev())
    }
}

#[test]
fn sums_of_numbers_far_apart_are_exact() {
    let least = f32::from_bits(1);
    let numbers = [f32::MAX, least, -1.5, -f32::MAX, 1.5, -least];
    let sum = numbers
        .iter()
        .fold(Exact::default(), |sum, &x| sum + Exact::of(x));
    assert!(sum.is_zero());
    assert_eq!(Exact::of(0.0), Exact::of(-0.0));
    assert_eq!(Exact::of(0.75) + Exact::of(0.25), Exact::of(1.0));
    assert!(Exact::of(f32::MAX) + Exact::of(least) > Exact::of(f32::MAX));
    assert!(Exact::of(-f32::MAX) - Exact::of(least) < Exact::of(-f32::MAX));
    assert!(Exact::of(-2.0) < Exact::of(-least) && Exact::of(-least) < Exact::of(least));
    assert_eq!((Exact::of(-3.0) - Exact::of(4.5)).abs(), Exact::of(7.5));
    assert_eq!((Exact::of(-3.0) + Exact::of(0.5)).to_f64(), -2.5);
}
