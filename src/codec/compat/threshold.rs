//! A vector into a threshold message.

use super::{CompatError, Element, Encoding, HEADER, Sent, check};

/// Elements that are looked at together: most groups have no hit.
const GROUP: usize = 32;

/// Appends to `out` the threshold message of `x`, and subtracts from `x` what it says.
///
/// At most `limit` elements are encoded, the lowest indices. The message's order is ascending. As upstream, nothing is
/// sent when that would be fewer than two elements; [`Handler`](super::Handler) sends a single one too.
///
/// # Errors
/// [`CompatError::Threshold`] unless `threshold` is finite and above 0; [`CompatError::TooLong`].
pub fn encode_threshold<T: Element>(
    x: &mut [T],
    threshold: f32,
    limit: Option<usize>,
    out: &mut Vec<i32>,
) -> Result<Sent, CompatError> {
    check(x.len(), threshold)?;
    let found = hits(x, threshold);
    let encoded = limit.map_or(found, |limit| limit.min(found));
    if encoded < 2 {
        return Ok(Sent::Nothing { hits: found });
    }
    encode(x, threshold, encoded, out)?;
    Ok(Sent::Threshold { hits: encoded })
}

/// How many elements are hits.
pub(super) fn hits<T: Element>(x: &[T], threshold: f32) -> usize {
    let t = T::from_threshold(threshold);
    x.iter().filter(|x| x.magnitude() >= t).count()
}

/// The message of the first `encoded` hits, of which `x` has at least so many.
pub(super) fn encode<T: Element>(
    x: &mut [T],
    threshold: f32,
    encoded: usize,
    out: &mut Vec<i32>,
) -> Result<(), CompatError> {
    let (length, bits) = check(x.len(), threshold)?;
    let t = T::from_threshold(threshold);
    out.reserve(HEADER + encoded);
    // There are not more hits than elements, and those have a length.
    out.extend([encoded as i32, length, bits, Encoding::Threshold as i32]);
    let end = out.len() + encoded;
    let mut first = 1;
    for group in x.chunks_mut(GROUP) {
        if group
            .iter()
            .fold(false, |any, x| any | (x.magnitude() >= t))
        {
            for (index, x) in (first..).zip(group) {
                if x.magnitude() >= t && out.len() < end {
                    // Neither is NaN, and t is above 0.
                    if *x >= t {
                        out.push(index);
                        *x = *x - t;
                    } else {
                        out.push(-index);
                        *x = *x + t;
                    }
                }
            }
            if out.len() == end {
                break;
            }
        }
        first += GROUP as i32;
    }
    Ok(())
}
