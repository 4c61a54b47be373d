//! Counting and summing up in words of shared memory. One writer; all Relaxed, all plain loads and stores.
//!
//! A writer does not trust its own words either: another process may have written them. Then its numbers are wrong, and
//! nothing else is.

use super::exact::{self, DIGITS, Exact};
use super::{MIRROR_WORDS, SUM_WORDS};
use crate::shm::sync::{AtomicU64, Ordering::Relaxed};

/// Additions before carries are taken out of a sum's digits: then each is below 2^53, and 255 of them below 2^61.
const CARRY_AFTER: u64 = 1 << 20;
/// Words of a sum before its digits: what is in use, and how many NaN, infinities and negative infinities there were.
const SPECIALS: usize = 4;

/// Adds to a count; `None`, and nothing changed, where it overflows.
#[inline]
pub fn count(word: &AtomicU64, x: i64) -> Option<()> {
    let sum = (word.load(Relaxed) as i64).checked_add(x)?;
    word.store(sum as u64, Relaxed);
    Some(())
}

/// Adds to the exact sum in these [`SUM_WORDS`] words.
#[inline]
pub fn sum(words: &[AtomicU64; SUM_WORDS], x: f64) {
    if !x.is_finite() {
        return special(words, x);
    }
    let (at, parts) = exact::parts(x);
    let in_use = words[0].load(Relaxed);
    let (low, high) = (in_use & 0xff, in_use >> 8 & 0xff);
    let next = in_use.wrapping_add(1 << 16);
    if (at as u64) < low || at as u64 + 3 > high || in_use >> 16 >= CARRY_AFTER {
        widen(words, at as u64, in_use);
    } else {
        words[0].store(next, Relaxed);
    }
    for (i, part) in parts.into_iter().enumerate() {
        let word = &words[SPECIALS + at + i];
        word.store(word.load(Relaxed).wrapping_add(part as u64), Relaxed);
    }
}

#[cold]
fn special(words: &[AtomicU64; SUM_WORDS], x: f64) {
    let which = match x {
        x if x.is_nan() => 1,
        x if x > 0.0 => 2,
        _ => 3,
    };
    let word = &words[which];
    word.store(word.load(Relaxed).saturating_add(1), Relaxed);
}

/// Says that three digits more, from `at` on, are in use by one more addition; carries if that is due.
#[cold]
fn widen(words: &[AtomicU64; SUM_WORDS], at: u64, in_use: u64) {
    let (low, high, adds) = (in_use & 0xff, in_use >> 8 & 0xff, in_use >> 16);
    let (mut low, mut high) = match high {
        0 => (at, at + 3),
        _ => (low.min(at), high.max(at + 3).min(DIGITS as u64)),
    };
    let mut adds = adds + 1;
    if adds > CARRY_AFTER {
        adds = 1;
        (low, high) = carry(words, low, high);
    }
    words[0].store(low | high << 8 | adds << 16, Relaxed);
}

/// Carries what is too much for a digit. Digits keep the sign of what they stand for, so that a small negative sum does not
/// fill all digits up to the last one. What is in use now.
fn carry(words: &[AtomicU64; SUM_WORDS], low: u64, high: u64) -> (u64, u64) {
    let mut carry = 0_i64;
    let mut at = low as usize;
    while at < DIGITS - 1 && (at < high as usize || carry != 0) {
        let word = &words[SPECIALS + at];
        let all = (word.load(Relaxed) as i64).wrapping_add(carry);
        carry = all.wrapping_add(1 << 31) >> 32;
        word.store(all.wrapping_sub(carry << 32) as u64, Relaxed);
        at += 1;
    }
    if carry != 0 {
        let word = &words[SPECIALS + DIGITS - 1];
        let all = (word.load(Relaxed) as i64).wrapping_add(carry);
        word.store(all as u64, Relaxed);
        at = DIGITS;
    }
    (low, high.max(at as u64))
}

/// The digits that are in use, whatever the word says.
fn range(in_use: u64) -> std::ops::Range<usize> {
    let high = (in_use >> 8 & 0xff).min(DIGITS as u64);
    (in_use & 0xff).min(high) as usize..high as usize
}

/// Adds the exact sum in these words to `sum`, which must be settled after at most 255 of them.
pub fn read_sum(words: &[AtomicU64; SUM_WORDS], sum: &mut Exact) {
    for at in range(words[0].load(Relaxed)) {
        sum.add_digit(at, words[SPECIALS + at].load(Relaxed) as i64);
    }
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for (word, special) in words[1..SPECIALS].iter().zip(specials) {
        let times = word.load(Relaxed);
        if times > 0 {
            sum.add_special(special, times);
        }
    }
}

/// Makes an exact sum 0 again.
pub fn clear(words: &[AtomicU64; SUM_WORDS]) {
    for at in range(words[0].load(Relaxed)) {
        words[SPECIALS + at].store(0, Relaxed);
    }
    words[..SPECIALS]
        .iter()
        .for_each(|word| word.store(0, Relaxed));
}

/// The place of a number among all numbers, as a word that is not 0: -infinity, .., -0, +0, .., infinity, and every NaN at
/// the end that `nan_last` says.
fn place(x: f64, nan_last: bool) -> u64 {
    match (x.is_nan(), nan_last) {
        (true, true) => u64::MAX,
        (true, false) => 1,
        _ => {
            let bits = x.to_bits();
            bits ^ ((bits as i64 >> 63) as u64 | 1 << 63)
        }
    }
}

/// The number at a place; NaN where no number is.
pub(crate) fn at_place(place: u64) -> f64 {
    let bits = place ^ ((!place as i64 >> 63) as u64 | 1 << 63);
    let x = f64::from_bits(bits);
    if x.is_nan() { exact::NAN } else { x }
}

/// Keeps the smaller or larger of a word and a number. 0 is no number; NaN stays.
#[inline]
pub fn extreme(word: &AtomicU64, x: f64, largest: bool) {
    let (old, new) = (word.load(Relaxed), place(x, largest));
    if old == 0 || (new > old) == largest {
        word.store(new, Relaxed);
    }
}

/// The one of two such words that stays.
pub(crate) fn later(a: u64, b: u64, largest: bool) -> u64 {
    match (a, b) {
        (0, _) => b,
        (_, 0) => a,
        _ if largest => a.max(b),
        _ => a.min(b),
    }
}

/// The word for one number.
pub(crate) fn extreme_of(x: f64, largest: bool) -> u64 {
    place(x, largest)
}

/// A key's running numbers, since its rank first asked for it: never reset, so a display takes differences. Each word is
/// right by itself at any time.
#[derive(Clone, Copy, Debug)]
pub struct Mirror<'a>(&'a [AtomicU64; MIRROR_WORDS]);

impl<'a> Mirror<'a> {
    /// The mirror in these words.
    pub fn new(words: &'a [AtomicU64; MIRROR_WORDS]) -> Self {
        Self(words)
    }

    /// Counts.
    #[inline]
    pub fn count(self, x: i64) {
        let word = &self.0[0];
        word.store(word.load(Relaxed).wrapping_add(x as u64), Relaxed);
    }

    /// Adds to the sum, and so many to the count.
    #[inline]
    pub fn sum(self, x: f64, count: i64) {
        self.count(count);
        let word = &self.0[1];
        let sum = f64::from_bits(word.load(Relaxed)) + x;
        word.store(sum.to_bits(), Relaxed);
    }

    /// Counts one more, and keeps the smaller or larger.
    #[inline]
    pub fn extreme(self, x: f64, largest: bool) {
        self.count(1);
        extreme(&self.0[2], x, largest);
    }

    /// How many there were; a count's own number.
    pub fn counted(self) -> i64 {
        self.0[0].load(Relaxed) as i64
    }

    /// Their sum, rounded at each addition.
    pub fn summed(self) -> f64 {
        f64::from_bits(self.0[1].load(Relaxed))
    }

    /// The smallest or largest, if there was any.
    pub fn extreme_yet(self) -> Option<f64> {
        match self.0[2].load(Relaxed) {
            0 => None,
            place => Some(at_place(place)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn zeros<const N: usize>() -> [AtomicU64; N] {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    fn read(words: &[AtomicU64; SUM_WORDS]) -> Exact {
        let mut sum = Exact::default();
        read_sum(words, &mut sum);
        sum.settle();
        sum
    }

    #[test]
    fn words_add_up_to_what_private_memory_adds_up_to() {
        let words = zeros();
        let mut expected = Exact::default();
        let mut random = 1_u64;
        for _ in 0..5000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let x = f64::from_bits(random);
            sum(&words, x);
            expected.add(x);
        }
        assert_eq!(read(&words), expected);
        clear(&words);
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn carries_change_nothing_and_a_small_negative_sum_stays_short() {
        let words = zeros();
        for _ in 0..3 * CARRY_AFTER {
            sum(&words, -1.0 - f64::EPSILON);
        }
        let in_use = words[0].load(Relaxed);
        assert!(range(in_use).len() <= 5, "{:?}", range(in_use));
        let expected = -((3 * CARRY_AFTER) as f64);
        let mut rest = read(&words);
        rest.add(-expected);
        assert_eq!(rest.round(), expected * f64::EPSILON);
    }

    #[test]
    fn any_words_are_a_sum() {
        for bits in [u64::MAX, i64::MIN as u64, i64::MAX as u64, 0xff << 8] {
            let words = zeros();
            words.iter().for_each(|word| word.store(bits, Relaxed));
            for x in [f64::MAX, -5e-324, f64::NAN, 1.0] {
                sum(&words, x);
                let _ = read(&words).round();
            }
            clear(&words);
        }
    }

    #[test]
    fn extremes_order_zeros_and_a_nan_wins() {
        let run = |values: &[f64], largest| {
            let word = AtomicU64::new(0);
            values.iter().for_each(|&x| extreme(&word, x, largest));
            at_place(word.load(Relaxed)).to_bits()
        };
        let inf = f64::INFINITY;
        for (values, min, max) in [
            (&[0.0, -0.0][..], -0.0, 0.0),
            (&[-0.0, 0.0], -0.0, 0.0),
            (&[3.0, -2.0, 1.0], -2.0, 3.0),
            (&[inf, -inf], -inf, inf),
            (&[1.0, -f64::NAN, 2.0], exact::NAN, exact::NAN),
            (&[f64::NAN, -inf, inf], exact::NAN, exact::NAN),
            (&[f64::MIN], f64::MIN, f64::MIN),
        ] {
            assert_eq!(run(values, false), f64::to_bits(min));
            assert_eq!(run(values, true), f64::to_bits(max));
        }
    }

    #[test]
    fn a_count_that_overflows_does_not_change() {
        let word = AtomicU64::new(0);
        assert!(count(&word, i64::MAX).is_some());
        assert!(count(&word, 1).is_none());
        assert!(count(&word, -3).is_some());
        assert_eq!(word.load(Relaxed) as i64, i64::MAX - 3);
    }
}
