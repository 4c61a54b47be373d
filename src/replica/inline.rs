//! Small values and texts in a rank's own lines: words that only their rank writes.

use crate::shm::crash::{self, Point};
use crate::shm::segment::{Inline, Reason};
use crate::shm::sync::{AtomicU64, Ordering};

/// What fits into an inline slot, in bytes.
pub(crate) const INLINE_BYTES: usize = 1024;

/// How a rank came to an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// Of the operation.
    pub(crate) identity: u32,
    /// The flags that it had raised.
    pub(crate) flags: u8,
    /// Whether it has made asynchronous steps since the last settle.
    pub(crate) unsettled: bool,
}

/// What stands in front of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Bytes.
    pub(crate) length: u64,
    pub(crate) came: Came,
}

/// What a rank gave to an operation.
pub(crate) struct InlineValue {
    pub(crate) head: Head,
    /// Empty if there are more than [`INLINE_BYTES`].
    pub(crate) bytes: Vec<u8>,
}

/// Writes the value of operation `number` by a rank that came so: length and words Relaxed, the number last with
/// Release. Of a value that does not fit only the length is written. Nobody can still read what the slot held: it
/// belongs to the operation two before, which every rank has finished before any rank can enter this one.
pub(crate) fn write_value(slot: &Inline, number: u64, came: Came, bytes: &[u8]) {
    if bytes.len() <= INLINE_BYTES {
        write_words(&slot.words, bytes);
    }
    slot.length.store(bytes.len() as u64, Ordering::Relaxed);
    let came =
        u64::from(came.identity) | u64::from(came.flags) << 32 | u64::from(came.unsettled) << 40;
    slot.came.store(came, Ordering::Relaxed);
    // Publishes the words above to whoever reads this number with Acquire.
    slot.number.store(number, Ordering::Release);
    crash::point(Point::ValueWritten);
}

/// Whether operation `number`'s value has come.
#[inline]
pub(crate) fn has_value(slot: &Inline, number: u64) -> bool {
    slot.number.load(Ordering::Acquire) == number
}

fn head(slot: &Inline) -> Head {
    let came = slot.came.load(Ordering::Relaxed);
    Head {
        length: slot.length.load(Ordering::Relaxed),
        came: Came {
            identity: came as u32,
            flags: (came >> 32) as u8,
            unsettled: came >> 40 & 1 != 0,
        },
    }
}

/// Copies the value, which [has come](has_value) and should be as long as `into`, and says what stands in front of it.
/// Of a shorter one the rest is what another one left there.
pub(crate) fn read_value_into(slot: &Inline, into: &mut [u8]) -> Head {
    for (word, part) in slot.words.iter().zip(into.chunks_mut(8)) {
        let word = word.load(Ordering::Relaxed).to_le_bytes();
        match <&mut [u8; 8]>::try_from(&mut *part) {
            Ok(part) => *part = word,
            Err(_) => part.copy_from_slice(&word[..part.len()]),
        }
    }
    head(slot)
}

/// Operation `number`'s value; `None` if it has not come.
pub(crate) fn read_value(slot: &Inline, number: u64) -> Option<InlineValue> {
    if !has_value(slot, number) {
        return None;
    }
    let head = head(slot);
    let inline = usize::try_from(head.length)
        .ok()
        .filter(|&length| length <= INLINE_BYTES);
    Some(InlineValue {
        head,
        bytes: inline.map_or_else(Vec::new, |length| read_words(&slot.words, length)),
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
    // From the end on, so that the line on which others look for the number is the last one to be written.
    for (word, part) in words.iter().zip(bytes.chunks(8)).rev() {
        let padded = part.try_into().unwrap_or_else(|_| {
            let mut padded = [0; 8];
            padded[..part.len()].copy_from_slice(part);
            padded
        });
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
