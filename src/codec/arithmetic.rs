//! The numbers of the codec.
//!
//! Everything is f32 and *canonical*: no NaN, infinity, subnormal or negative zero ever enters a residual or a sum.
//! Only single additions of canonical numbers are made, so a processor, a GPU that flushes subnormals and one that does
//! not give the same bits.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bits of the least normal f32, 2^-126.
pub(crate) const LEAST_NORMAL: u32 = 0x0080_0000;
/// Bits of 2^-101. A sum that is smaller, but not 0, may be subnormal, or the sum of a tiny residual and a subnormal
/// update, which is to count as 0. In larger sums a subnormal update is lost by rounding anyway.
pub(crate) const TINY: u32 = (127 - 101) << 23;
/// Bits of +infinity: every finite magnitude is below.
pub(crate) const INFINITY: u32 = 0x7f80_0000;
/// All bits but the sign.
pub(crate) const MAGNITUDE: u32 = 0x7fff_ffff;
/// The sign bit.
pub(crate) const SIGN: u32 = 0x8000_0000;

/// `x` with a subnormal or a negative zero made +0. Everything else, NaN and infinities too, stays as it is.
#[inline(always)]
#[must_use]
pub fn canon(x: f32) -> f32 {
    choose(x.to_bits() & MAGNITUDE >= LEAST_NORMAL, x, 0.0)
}

/// `x` if so, else `y`, by masks: what a compiler makes vectors of more readily than of branches.
#[inline(always)]
pub(crate) fn choose(so: bool, x: f32, y: f32) -> f32 {
    let mask = u32::from(so).wrapping_neg();
    f32::from_bits(x.to_bits() & mask | y.to_bits() & !mask)
}

/// `x` rounded towards zero to 8 significant bits: the upper half of its 32 bits.
///
/// Thresholds and units are of this kind, which is what makes the subtraction of a unit exact (see [`Unit`]), and what
/// lets a record carry each in 2 bytes.
#[inline]
#[must_use]
pub fn cut8(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_0000)
}

/// The threshold `t` of a step and the unit `v` that a hit sends.
///
/// Both have 8 significant bits and `2^-100 <= t <= v <= 2t < 2^100`. With these bounds the rest that a hit leaves,
/// `s - v`, is exact while `|s| < 2^16 v`, and it is never subnormal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)", into = "(u16, u16)")]
pub struct Unit {
    t: f32,
    v: f32,
}

impl Unit {
    /// The least threshold, 2^-100.
    pub const LEAST: f32 = f32::from_bits((127 - 100) << 23);
    /// The largest threshold that a policy gives, 2^98.
    pub const MOST: f32 = f32::from_bits((127 + 98) << 23);

    /// A threshold `t` and a unit `v`.
    ///
    /// # Errors
    /// [`UnitError::Digits`] when either has more than 8 significant bits (see [`cut8`]); [`UnitError::Range`] unless
    /// `2^-100 <= t <= v <= 2t < 2^100`.
    pub fn new(t: f32, v: f32) -> Result<Unit, UnitError> {
        // Written so that a NaN fails it.
        let within = Unit::LEAST <= t && t <= v && v <= 2.0 * t && 2.0 * t < 2f32.powi(100);
        if !within {
            return Err(UnitError::Range { t, v });
        }
        for x in [t, v] {
            if x != cut8(x) {
                return Err(UnitError::Digits { found: x });
            }
        }
        Ok(Unit { t, v })
    }

    /// The threshold next to `t` that a policy may give: cut to 8 significant bits, from [`LEAST`](Unit::LEAST) to
    /// [`MOST`](Unit::MOST).
    pub(crate) fn nearest_threshold(t: f32) -> f32 {
        if t.is_nan() {
            return Unit::LEAST;
        }
        cut8(t.clamp(Unit::LEAST, Unit::MOST))
    }

    /// The unit next to these numbers, whatever they are: `t` from [`LEAST`](Unit::LEAST), which a NaN becomes, to
    /// [`MOST`](Unit::MOST), then `v` from `t` to `2t`, both cut to 8 significant bits.
    #[must_use]
    pub fn nearest(t: f32, v: f32) -> Unit {
        let t = Unit::nearest_threshold(t);
        Unit {
            t,
            v: cut8(v.max(t).min(2.0 * t)),
        }
    }

    /// The threshold: an element is a hit when its magnitude is at least this.
    #[inline]
    #[must_use]
    pub fn t(self) -> f32 {
        self.t
    }

    /// What a hit sends, with the element's sign.
    #[inline]
    #[must_use]
    pub fn v(self) -> f32 {
        self.v
    }

    /// The upper halves of the bits of `t` and `v`, as a record's header carries them. The lower halves are 0.
    #[must_use]
    pub fn halves(self) -> (u16, u16) {
        (
            (self.t.to_bits() >> 16) as u16,
            (self.v.to_bits() >> 16) as u16,
        )
    }

    /// The unit whose upper halves these are.
    ///
    /// # Errors
    /// [`UnitError::Range`], as [`Unit::new`]: the halves may come from anywhere.
    pub fn from_halves(t: u16, v: u16) -> Result<Unit, UnitError> {
        let whole = |half: u16| f32::from_bits(u32::from(half) << 16);
        Unit::new(whole(t), whole(v))
    }
}

impl From<Unit> for (u16, u16) {
    fn from(unit: Unit) -> (u16, u16) {
        unit.halves()
    }
}

impl TryFrom<(u16, u16)> for Unit {
    type Error = UnitError;

    fn try_from((t, v): (u16, u16)) -> Result<Unit, UnitError> {
        Unit::from_halves(t, v)
    }
}

/// Why two numbers are no [`Unit`].
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum UnitError {
    /// A number of more than 8 significant bits.
    #[error("{found:e} has more than 8 significant bits; cut8 gives {}", cut8(*.found))]
    Digits {
        /// The number.
        found: f32,
    },
    /// Out of order, too small, too large or no number.
    #[error("threshold {t:e} and unit {v:e} are not 2^-100 <= t <= v <= 2t < 2^100")]
    Range {
        /// The threshold.
        t: f32,
        /// The unit.
        v: f32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canon_clears_subnormals_and_negative_zero_only() {
        let least = f32::from_bits(LEAST_NORMAL);
        for (x, expected) in [
            (-0.0, 0.0),
            (f32::from_bits(1), 0.0),
            (-f32::from_bits(LEAST_NORMAL - 1), 0.0),
            (least, least),
            (-least, -least),
            (f32::MAX, f32::MAX),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
        ] {
            assert_eq!(canon(x).to_bits(), expected.to_bits(), "canon({x:e})");
        }
        assert!(canon(f32::NAN).is_nan());
    }

    #[test]
    fn a_unit_keeps_its_bounds_and_travels_as_two_halves() {
        assert_eq!(
            Unit::new(Unit::LEAST, Unit::LEAST).map(|u| u.t()),
            Ok(Unit::LEAST)
        );
        assert_eq!(
            Unit::new(Unit::MOST, 2.0 * Unit::MOST).map(|u| u.v()),
            Ok(2.0 * Unit::MOST)
        );
        let unit = Unit::new(cut8(1e-3), cut8(1.4e-3)).unwrap();
        let (t, v) = unit.halves();
        assert_eq!(Unit::from_halves(t, v), Ok(unit));

        for (t, v) in [
            (0.0, 0.0),
            (-1.0, -1.0),
            (1.0, 0.5),
            (1.0, 2.5),
            (2f32.powi(-101), 2f32.powi(-101)),
            (2f32.powi(99), 2f32.powi(99)),
            (1.0, f32::NAN),
            (f32::NAN, 1.0),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert!(
                matches!(Unit::new(t, v), Err(UnitError::Range { .. })),
                "t {t:e} v {v:e}"
            );
        }
        let fine = f32::from_bits(1f32.to_bits() + 1);
        assert_eq!(
            Unit::new(fine, fine),
            Err(UnitError::Digits { found: fine })
        );
        assert_eq!(Unit::new(1.0, fine), Err(UnitError::Digits { found: fine }));
    }
}
