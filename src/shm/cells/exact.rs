//! Sums of f64 without any rounding: every bit of every addend is kept, and reading rounds once.
//!
//! The sum is an integer in units of 2^-1074, the smallest f64, in digits of 32 bits with 64-bit places, so that carries
//! may wait (a small superaccumulator, Neal 2015, arXiv 1505.05571). Integers add up to the same in any order and in any
//! grouping, so the result is the same bits however the addends were split between replicas and restarts.

/// Digits of a sum. Any f64 has its bits in the first 66; the rest is room for carries, more than any program can fill.
pub const DIGITS: usize = 68;
/// Bits of a digit.
const BITS: u32 = 32;
const MASK: i64 = (1 << BITS) - 1;
/// Where the exponent and the fraction of an f64 lie.
const FRACTION_BITS: u32 = 52;
const INFINITY: u64 = 0x7ff << FRACTION_BITS;
/// The only NaN that is ever handed out.
pub const NAN: f64 = f64::from_bits(0x7ff8_0000_0000_0000);

/// What a finite number adds to three digits that follow each other, and where the first of them is, at most 63.
#[inline]
pub(super) fn parts(x: f64) -> (usize, [i64; 3]) {
    let bits = x.to_bits();
    let exponent = (bits >> FRACTION_BITS & 0x7ff) as u32;
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    // A subnormal number has no leading one, and the exponent of the smallest normal ones.
    let normal = u64::from(exponent != 0);
    let position = exponent - normal as u32;
    let wide = u128::from(fraction | normal << FRACTION_BITS) << (position % BITS);
    let sign = -((bits >> 63) as i64);
    let signed = |digit: u128| ((digit as i64 & MASK) ^ sign) - sign;
    let digits = [
        signed(wide),
        signed(wide >> BITS),
        signed(wide >> (2 * BITS)),
    ];
    ((position / BITS) as usize & 63, digits)
}

/// An exact sum in private memory.
#[derive(Clone, Debug)]
pub struct Exact {
    /// Signed, and each worth 2^32 of the one before. After [`settle`](Self::settle) all but the last are in 0..2^32.
    digits: [i64; DIGITS],
    nans: u64,
    positive: u64,
    negative: u64,
}

impl Default for Exact {
    fn default() -> Self {
        Self {
            digits: [0; DIGITS],
            nans: 0,
            positive: 0,
            negative: 0,
        }
    }
}

impl PartialEq for Exact {
    fn eq(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.clone(), other.clone());
        a.settle();
        b.settle();
        (a.digits, a.nans, a.positive, a.negative) == (b.digits, b.nans, b.positive, b.negative)
    }
}

impl Exact {
    /// Adds one number.
    pub fn add(&mut self, x: f64) {
        if !x.is_finite() {
            return self.add_special(x, 1);
        }
        let (at, parts) = parts(x);
        for (digit, part) in self.digits[at..].iter_mut().zip(parts) {
            *digit = digit.wrapping_add(part);
        }
        self.settle();
    }

    /// Adds something that is not finite, so many times.
    pub(super) fn add_special(&mut self, x: f64, times: u64) {
        let count = if x.is_nan() {
            &mut self.nans
        } else if x > 0.0 {
            &mut self.positive
        } else {
            &mut self.negative
        };
        *count = count.saturating_add(times);
    }

    /// Adds to one digit, which must then be [settled](Self::settle) before 255 ranks have added 2^53 each.
    #[inline]
    pub(super) fn add_digit(&mut self, at: usize, x: i64) {
        if let Some(digit) = self.digits.get_mut(at) {
            *digit = digit.wrapping_add(x);
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        for (digit, x) in self.digits.iter_mut().zip(other.digits) {
            *digit = digit.wrapping_add(x);
        }
        self.settle();
        self.nans = self.nans.saturating_add(other.nans);
        self.positive = self.positive.saturating_add(other.positive);
        self.negative = self.negative.saturating_add(other.negative);
    }

    /// Carries what is too much for a digit, so that equal sums have equal digits.
    pub(crate) fn settle(&mut self) {
        let mut carry = 0;
        for digit in &mut self.digits[..DIGITS - 1] {
            let all = digit.wrapping_add(carry);
            *digit = all & MASK;
            carry = all >> BITS;
        }
        self.digits[DIGITS - 1] = self.digits[DIGITS - 1].wrapping_add(carry);
    }

    /// The sum with the other sign.
    #[must_use]
    pub fn negated(&self) -> Self {
        let mut negated = self.clone();
        for digit in &mut negated.digits {
            *digit = digit.wrapping_neg();
        }
        negated.settle();
        (negated.positive, negated.negative) = (self.negative, self.positive);
        negated
    }

    /// The sum, rounded once, half to even; an infinity where it is too large; [`NAN`] where it is none. Never -0.
    #[must_use]
    pub fn round(&self) -> f64 {
        if self.nans > 0 || (self.positive > 0 && self.negative > 0) {
            return NAN;
        }
        if self.positive > 0 {
            return f64::INFINITY;
        }
        if self.negative > 0 {
            return f64::NEG_INFINITY;
        }
        let mut settled = self.clone();
        settled.settle();
        if settled.digits[DIGITS - 1] < 0 {
            -f64::from_bits(magnitude(&settled.negated().digits))
        } else {
            f64::from_bits(magnitude(&settled.digits))
        }
    }

    /// Appends the sum: its specials, its last digit, and the digits between the lowest and the highest that say something.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut settled = self.clone();
        settled.settle();
        let (last, digits) = (settled.digits[DIGITS - 1], &settled.digits[..DIGITS - 1]);
        let fill = last >> 63 & MASK;
        let end = digits.iter().rposition(|&x| x != fill).map_or(0, |i| i + 1);
        let start = digits[..end].iter().position(|&x| x != 0).unwrap_or(end);
        for x in [self.nans, self.positive, self.negative, last as u64] {
            out.extend(x.to_le_bytes());
        }
        out.extend([start as u8, end as u8]);
        for digit in &digits[start..end] {
            out.extend((*digit as u32).to_le_bytes());
        }
    }

    /// Takes a sum from the front of `from`; `None` if there is none.
    pub(crate) fn read(from: &mut &[u8]) -> Option<Self> {
        let mut number = || Some(u64::from_le_bytes(from.split_off(..8)?.try_into().ok()?));
        let (nans, positive, negative, last) = (number()?, number()?, number()?, number()? as i64);
        let [start, end] = from.split_off(..2)?.try_into().ok()?;
        let (start, end) = (usize::from(start), usize::from(end));
        if start > end || end >= DIGITS {
            return None;
        }
        let mut digits = [0; DIGITS];
        for digit in &mut digits[start..end] {
            *digit = u32::from_le_bytes(from.split_off(..4)?.try_into().ok()?).into();
        }
        digits[end..DIGITS - 1].fill(last >> 63 & MASK);
        digits[DIGITS - 1] = last;
        Some(Self {
            digits,
            nans,
            positive,
            negative,
        })
    }
}

/// The bits of the f64 that is nearest to a settled sum of at least 0.
fn magnitude(digits: &[i64; DIGITS]) -> u64 {
    // With anything there it is beyond every f64, and what follows has digits of 32 bits only.
    if digits[66..].iter().any(|&digit| digit != 0) {
        return INFINITY;
    }
    let Some(top) = digits[..66].iter().rposition(|&digit| digit != 0) else {
        return 0;
    };
    let highest = BITS * top as u32 + (digits[top] as u64).ilog2();
    let window = top.max(2);
    let of = |at: usize| digits[at] as u128;
    let three = of(window) << (2 * BITS) | of(window - 1) << BITS | of(window - 2);
    let Some(drop) = highest.checked_sub(FRACTION_BITS).filter(|&drop| drop > 0) else {
        // So small that all of its bits are there: subnormal, or with the exponent of the smallest normal numbers.
        return three as u64;
    };
    let cut = drop - BITS * (window as u32 - 2);
    let mantissa = (three >> cut) as u64;
    let (rest, half) = (three & ((1 << cut) - 1), 1 << (cut - 1));
    let below = digits[..window - 2].iter().any(|&digit| digit != 0);
    let up = rest > half || (rest == half && (below || mantissa & 1 == 1));
    // A carry out of the mantissa goes to the exponent, as it must.
    let bits = mantissa + u64::from(up) + (u64::from(drop) << FRACTION_BITS);
    bits.min(INFINITY)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use xsum::Xsum as _;

    fn sum(values: &[f64]) -> Exact {
        let mut sum = Exact::default();
        values.iter().for_each(|&x| sum.add(x));
        sum
    }

    #[test]
    fn what_cancels_leaves_what_is_left() {
        assert_eq!(sum(&[1e16, 1.0, -1e16, 1.0]).round(), 2.0);
        assert_eq!(sum(&[0.1; 10]).round(), 1.0);
        let harmonic: Vec<f64> = (1..=1000).map(|k| 1.0 / f64::from(k)).collect();
        assert_eq!(sum(&harmonic).round(), 7.485_470_860_550_345);
    }

    #[test]
    fn a_single_number_is_its_own_sum() {
        let edges = [
            f64::MAX,
            f64::MIN_POSITIVE,
            5e-324,
            f64::MIN_POSITIVE - 5e-324,
            1.0,
            1.5,
            2.0_f64.powi(-1021),
        ];
        for x in edges.into_iter().flat_map(|x| [x, -x]) {
            assert_eq!(sum(&[x]).round().to_bits(), x.to_bits());
        }
        assert_eq!(sum(&[-0.0]).round().to_bits(), 0);
    }

    #[test]
    fn halves_go_to_even_and_what_is_too_large_is_infinite() {
        let ulp = 2.0_f64.powi(-52);
        assert_eq!(sum(&[1.0, ulp / 2.0]).round(), 1.0);
        assert_eq!(sum(&[1.0 + ulp, ulp / 2.0]).round(), 1.0 + 2.0 * ulp);
        assert_eq!(sum(&[1.0, ulp / 2.0, 5e-324]).round(), 1.0 + ulp);
        assert_eq!(sum(&[f64::MAX, f64::MAX]).round(), f64::INFINITY);
        assert_eq!(sum(&[f64::MAX, f64::MAX, f64::MIN]).round(), f64::MAX);
        // Half a unit beyond the largest: the tie goes to the even neighbour, which is infinite.
        let half = 2.0_f64.powi(970);
        assert_eq!(sum(&[f64::MAX, half]).round(), f64::INFINITY);
        assert_eq!(sum(&[f64::MAX, half, -5e-324]).round(), f64::MAX);
        assert_eq!(sum(&[f64::MIN, -half]).round(), f64::NEG_INFINITY);
    }

    #[test]
    fn specials_are_counted_and_cancel_to_the_one_nan() {
        assert_eq!(sum(&[f64::INFINITY, -1e308]).round(), f64::INFINITY);
        let odd = f64::from_bits(0xfff8_0000_0000_0007);
        for values in [&[odd, 1.0][..], &[f64::INFINITY, f64::NEG_INFINITY]] {
            assert_eq!(sum(values).round().to_bits(), NAN.to_bits());
        }
        assert_eq!(sum(&[f64::INFINITY]).negated().round(), f64::NEG_INFINITY);
    }

    proptest! {
        #[test]
        fn the_bits_are_those_of_another_exact_sum(bits in prop::collection::vec(any::<u64>(), 0..40)) {
            let mut values: Vec<f64> = bits.into_iter().map(f64::from_bits).filter(|x| x.is_finite()).collect();
            let mut ours = sum(&values).round();
            if ours < 0.0 {
                // The other one errs by a unit where the sum is a negative power of two.
                values.iter_mut().for_each(|x| *x = -*x);
                ours = -ours;
            }
            let mut other = xsum::XsumSmall::new();
            other.add_list(&values);
            // It calls an empty sum -0.
            prop_assert_eq!(ours.to_bits(), (other.sum() + 0.0).to_bits());
        }

        #[test]
        fn the_smallest_numbers_add_up_as_integers_do(units in prop::collection::vec(any::<i64>(), 1..40)) {
            let units: Vec<i64> = units.into_iter().map(|x| x >> 11).collect();
            let smallest = |x: &i64| f64::from_bits(x.unsigned_abs()).copysign(*x as f64);
            let values: Vec<f64> = units.iter().map(smallest).collect();
            let half = 2.0_f64.powi(-537);
            let expected = units.iter().map(|&x| i128::from(x)).sum::<i128>() as f64 * half * half;
            prop_assert_eq!(sum(&values).round().to_bits(), (expected + 0.0).to_bits());
        }

        #[test]
        fn any_split_and_order_is_the_same_and_bytes_bring_it_back(
            mut values in prop::collection::vec(-1e300..1e300_f64, 1..40), cut in 0_usize..40,
        ) {
            let whole = sum(&values);
            values.reverse();
            let (a, b) = values.split_at(cut.min(values.len()));
            let mut merged = sum(a);
            merged.merge(&sum(b));
            prop_assert_eq!(&merged, &whole);
            let mut bytes = Vec::new();
            whole.write(&mut bytes);
            let mut rest = &bytes[..];
            prop_assert_eq!(Exact::read(&mut rest), Some(whole.clone()));
            prop_assert!(rest.is_empty());
            let mut less = whole.negated();
            less.merge(&whole);
            prop_assert_eq!(less, Exact::default());
        }

        #[test]
        fn any_bytes_are_a_sum_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Some(sum) = Exact::read(&mut &bytes[..]) {
                let _ = sum.round();
                let _ = sum.negated();
            }
        }
    }
}
