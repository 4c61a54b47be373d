//! A vector into a bitmap message.

use super::{CompatError, Element, Encoding, check, max_message_words};

/// Elements of a word.
pub(super) const PER_WORD: usize = 16;

/// Appends to `out` the bitmap message of `x`, and subtracts from `x` what it says; how many elements that changed,
/// those of -t/2 among them.
///
/// # Errors
/// [`CompatError::Threshold`] unless `threshold` is finite and above 0; [`CompatError::TooLong`].
pub fn encode_bitmap<T: Element>(
    x: &mut [T],
    threshold: f32,
    out: &mut Vec<i32>,
) -> Result<usize, CompatError> {
    let (length, bits) = check(x.len(), threshold)?;
    let end = out.len() + max_message_words(x.len());
    out.reserve(max_message_words(x.len()));
    out.extend([length, length, bits, Encoding::Bitmap as i32]);
    let t = T::from_threshold(threshold);
    let mut touched = 0;
    out.extend(x.chunks_mut(PER_WORD).map(|group| {
        let word = word(group, t);
        touched += ((word | word >> PER_WORD) & 0xffff).count_ones() as usize;
        word as i32
    }));
    // One spare word where the last one is full.
    out.resize(end, 0);
    Ok(touched)
}

/// The word of at most 16 elements; subtracts what it says.
#[inline(always)]
fn word<T: Element>(group: &mut [T], t: T) -> u32 {
    let half = t.halved();
    let mut word = 0;
    for (bit, x) in group.iter_mut().enumerate() {
        // All comparisons with NaN are false, and so it stays.
        let (hit, negative) = (x.magnitude() >= t, *x < T::default());
        let half_hit = !hit & negative & (x.magnitude() >= half);
        word |= (u32::from(hit) | u32::from((hit & negative) | half_hit) << PER_WORD) << bit;
        *x = match (hit, negative) {
            (true, true) => *x + t,
            (true, false) => *x - t,
            _ if half_hit => *x + half,
            _ => *x,
        };
    }
    word
}
