//! Small values and texts in a rank's own lines: words that only their rank writes.

use crate::shm::segment::{Inline, Reason};
use crate::shm::sync::{AtomicU64, Ordering};

/// What fits into an inline slot, in bytes.
pub(crate) const INLINE_BYTES: usize = 1024;

/// In a value's length: its rank has made asynchronous steps since the last settle.
const UNSETTLED: u64 = 1 << 63;

/// What a rank gave to an operation.
pub(crate) struct InlineValue {
    pub(crate) length: u64,
    /// Empty if there are more than [`INLINE_BYTES`].
    pub(crate) bytes: Vec<u8>,
    /// Whether the rank has made asynchronous steps since the last settle.
    pub(crate) unsettled: bool,
}

/// Writes the value of operation `number`: length and words Relaxed, the number last with Release. Of a value that does
/// not fit only the length is written. Nobody can still read what the slot held: it belongs to the operation two
/// before, which every rank has finished before any rank can enter this one.
pub(crate) fn write_value(slot: &Inline, number: u64, bytes: &[u8], unsettled: bool) {
    let mark = if unsettled { UNSETTLED } else { 0 };
    slot.length
        .store(bytes.len() as u64 | mark, Ordering::Relaxed);
    if bytes.len() <= INLINE_BYTES {
        write_words(&slot.words, bytes);
    }
    // Publishes the words above to whoever reads this number with Acquire.
    slot.number.store(number, Ordering::Release);
}

/// Operation `number`'s value; `None` if it has not come.
pub(crate) fn read_value(slot: &Inline, number: u64) -> Option<InlineValue> {
    if slot.number.load(Ordering::Acquire) != number {
        return None;
    }
    let word = slot.length.load(Ordering::Relaxed);
    let length = word & !UNSETTLED;
    let inline = usize::try_from(length)
        .ok()
        .filter(|&length| length <= INLINE_BYTES);
    Some(InlineValue {
        length,
        bytes: inline.map_or_else(Vec::new, |length| read_words(&slot.words, length)),
        unsettled: word != length,
    })
}

/// Writes a text, cut to what fits at a character's boundary.
pub(crate) fn write_text(reason: &Reason, text: &str) {
    let text = &text[..text.floor_char_boundary(reason.words.len() * 8)];
    write_words(&reason.words, text.as_bytes());
    reason.length.store(text.len() as u64, Ordering::Release);
}

/// The text; what is not UTF-8 is replaced.
pub(crate) fn read_text(reason: &Reason) -> String {
    let length = reason
        .length
        .load(Ordering::Acquire)
        .min(reason.words.len() as u64 * 8);
    String::from_utf8_lossy(&read_words(&reason.words, length as usize)).into_owned()
}

fn write_words(words: &[AtomicU64], bytes: &[u8]) {
    for (word, part) in words.iter().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..part.len()].copy_from_slice(part);
        word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
    }
}

fn read_words(words: &[AtomicU64], length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length.next_multiple_of(8));
    for word in &words[..length.div_ceil(8).min(words.len())] {
        bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
