//! Words into bytes and back. A peer's words are little-endian.

use super::CompatError;

/// Appends the bytes of `message` to `out`.
pub fn to_bytes(message: &[i32], out: &mut Vec<u8>) {
    out.extend(message.iter().flat_map(|word| word.to_le_bytes()));
}

/// Appends the words of `bytes` to `out`. They are checked when they are decoded.
///
/// # Errors
/// [`CompatError::Bytes`] when they are not whole words; `out` is as it was.
pub fn from_bytes(bytes: &[u8], out: &mut Vec<i32>) -> Result<(), CompatError> {
    let (words, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(CompatError::Bytes { found: bytes.len() });
    }
    out.extend(words.iter().map(|word| i32::from_le_bytes(*word)));
    Ok(())
}
