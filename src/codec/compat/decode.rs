//! A message onto a vector.

use super::bitmap::PER_WORD;
use super::{CompatError, Element, Encoding, HEADER, is_threshold, length, max_message_words};

/// What a message said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoded {
    /// How it was laid out.
    pub encoding: Encoding,
    /// Its threshold.
    pub threshold: f32,
    /// The elements that it encodes, those of -t/2 among them.
    pub touched: usize,
}

/// Adds to `target` what `message` says.
///
/// The message is all of `message`: the words of one, no more. It may come from anywhere; all of it is checked, in time
/// linear in its words, before anything is added.
///
/// A threshold message of one element, or of none, is right, although upstream never sends one. One that names an
/// element more than once is added as often, in its order: that is what every JVM peer does with the same message, so
/// that refusing it here would set this replica apart from them; it writes nothing outside; and an encoder's order is
/// free, so that finding it out would take memory for each element.
///
/// # Errors
/// [`CompatError`] for whatever is wrong; the target is as it was.
pub fn decode<T: Element>(message: &[i32], target: &mut [T]) -> Result<Decoded, CompatError> {
    let Some((&[first, elements, bits, encoding], content)) = message.split_first_chunk::<HEADER>()
    else {
        return Err(CompatError::Short {
            found: message.len(),
        });
    };
    let encoding = match encoding {
        0 => Encoding::Threshold,
        1 => Encoding::Bitmap,
        found => return Err(CompatError::Encoding { found }),
    };
    if elements != length(target.len())? {
        return Err(CompatError::Length {
            expected: target.len(),
            found: elements,
        });
    }
    let threshold = f32::from_bits(bits as u32);
    if !is_threshold(threshold) {
        return Err(CompatError::Threshold { found: threshold });
    }
    let t = T::from_threshold(threshold);
    let touched = match encoding {
        Encoding::Threshold => {
            check_threshold(first, content, target.len())?;
            add_threshold(content, t, target);
            content.len()
        }
        Encoding::Bitmap => {
            check_bitmap(first, message.len(), content, target.len())?;
            add_bitmap(content, t, target)
        }
    };
    Ok(Decoded {
        encoding,
        threshold,
        touched,
    })
}

fn check_threshold(encoded: i32, content: &[i32], elements: usize) -> Result<(), CompatError> {
    if usize::try_from(encoded) != Ok(content.len()) {
        return Err(CompatError::Count {
            expected: content.len(),
            found: encoded,
        });
    }
    // The magnitude of i32::MIN is 2^31: more than there can be elements.
    let exists = |word: i32| (1..=elements).contains(&(word.unsigned_abs() as usize));
    // All of them without a branch first.
    if content.iter().fold(true, |all, &word| all & exists(word)) {
        return Ok(());
    }
    match (HEADER..).zip(content).find(|(_, word)| !exists(**word)) {
        None => Ok(()),
        Some((word, &found)) => Err(CompatError::Index {
            word,
            elements,
            found,
        }),
    }
}

/// The words have been checked.
fn add_threshold<T: Element>(content: &[i32], t: T, target: &mut [T]) {
    for &word in content {
        let x = &mut target[word.unsigned_abs() as usize - 1];
        *x = if word > 0 { *x + t } else { *x - t };
    }
}

fn check_bitmap(
    first: i32,
    words: usize,
    content: &[i32],
    elements: usize,
) -> Result<(), CompatError> {
    if usize::try_from(first) != Ok(elements) {
        return Err(CompatError::Length {
            expected: elements,
            found: first,
        });
    }
    if words != max_message_words(elements) {
        return Err(CompatError::Words {
            expected: max_message_words(elements),
            found: words,
        });
    }
    // There is always a word behind the last full one.
    let last = content[content.len() - 1];
    let used = (1u32 << (elements % PER_WORD)) - 1;
    if last as u32 & !(used | used << PER_WORD) != 0 {
        return Err(CompatError::Spare {
            elements,
            found: last,
        });
    }
    Ok(())
}

/// The words have been checked. How many elements it added to.
fn add_bitmap<T: Element>(content: &[i32], t: T, target: &mut [T]) -> usize {
    let half = t.halved();
    let mut touched = 0;
    for (&word, group) in content.iter().zip(target.chunks_mut(PER_WORD)) {
        let word = word as u32;
        let mut left = (word | word >> PER_WORD) & 0xffff;
        touched += left.count_ones() as usize;
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let x = &mut group[bit as usize];
            *x = match (word >> bit & 1, word >> bit >> PER_WORD & 1) {
                (1, 0) => *x + t,
                (1, _) => *x - t,
                _ => *x - half,
            };
        }
    }
    touched
}
