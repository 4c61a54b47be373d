//! Bits into bytes and back, 64 at a time.

/// The bytes that are loaded and stored at once.
const WORD: usize = size_of::<u64>();
/// The bits of a word that are there whatever part of a byte was used before.
pub(super) const ROOM: u32 = u64::BITS - 8;

/// Writes bits into a slice that has room for all of them, and for a word more.
pub(super) struct Writer<'a> {
    bytes: &'a mut [u8],
    /// Whole bytes written.
    at: usize,
    /// What does not fill a byte yet.
    bits: u64,
    fill: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer {
            bytes,
            at: 0,
            bits: 0,
            fill: 0,
        }
    }

    /// So many zeros, and the lowest `length` bits of `value`, the others of which are 0. Between two flushes there is
    /// room for [`ROOM`] bits.
    #[inline(always)]
    pub(super) fn put(&mut self, zeros: u32, value: u64, length: u32) {
        debug_assert!(self.fill + zeros + length <= 7 + ROOM && value >> length == 0);
        self.bits |= value << (zeros + self.fill);
        self.fill += zeros + length;
    }

    /// Writes what was put.
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        self.bytes[self.at..][..WORD].copy_from_slice(&self.bits.to_le_bytes());
        self.at += (self.fill / 8) as usize;
        self.bits >>= self.fill & !7;
        self.fill %= 8;
    }

    /// Fills the last byte with zeros; the length.
    pub(super) fn finish(mut self) -> usize {
        self.flush();
        // The last store has written the bits of a byte that is not full.
        self.at + usize::from(self.fill > 0)
    }
}

/// Reads bits from any bytes. Past their end it reads zeros, and knows.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// Where the next word is loaded.
    at: usize,
    /// What was loaded and not yet taken: the lowest `fill` bits. The bits above are 0, or already those that follow.
    bits: u64,
    fill: u32,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            bytes,
            at: 0,
            bits: 0,
            fill: 0,
        }
    }

    /// The next [`ROOM`] bits and perhaps more.
    ///
    /// The word is ORed over what is there before its place depends on the last code (Giesen 2018), which keeps the
    /// load out of the chain from one code to the next.
    #[inline(always)]
    pub(super) fn window(&mut self) -> u64 {
        let word = match self.bytes.get(self.at..self.at + WORD) {
            Some(word) => u64::from_le_bytes(word.try_into().expect("a word's bytes")),
            None => last(self.bytes, self.at),
        };
        self.bits |= word << self.fill;
        self.at += ((63 - self.fill) / 8) as usize;
        self.fill |= ROOM;
        self.bits
    }

    /// What is left of the last window.
    #[inline(always)]
    pub(super) fn rest(&self) -> u64 {
        self.bits
    }

    /// Goes on by so many bits; from one window to the next at most [`ROOM`].
    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        debug_assert!(bits <= self.fill);
        self.bits >>= bits;
        self.fill -= bits;
    }

    pub(super) fn take(&mut self, bits: u32) -> u64 {
        let value = self.window() & ((1 << bits) - 1);
        self.skip(bits);
        value
    }

    /// In bits.
    fn position(&self) -> usize {
        8 * self.at - self.fill as usize
    }

    /// Whether more bits were taken than there are.
    pub(super) fn is_past_end(&self) -> bool {
        self.position().div_ceil(8) > self.bytes.len()
    }

    /// The bytes taken, a part of one as a whole.
    pub(super) fn taken(&self) -> usize {
        self.position().div_ceil(8)
    }

    /// The bits of the last byte that were not taken.
    pub(super) fn padding(&self) -> u8 {
        match self.position() % 8 {
            0 => 0,
            used => self.bytes[self.position() / 8] >> used,
        }
    }
}

/// The word at `at`, of which not all bytes are there. (Takes no reader, so that a reader can live in registers.)
#[inline(never)]
fn last(bytes: &[u8], at: usize) -> u64 {
    let there = bytes.len().saturating_sub(at);
    if there == 0 {
        return 0;
    }
    match bytes.last_chunk() {
        // The last whole word, without what comes before.
        Some(word) => u64::from_le_bytes(*word) >> (8 * (WORD - there)),
        None => {
            let mut word = [0; WORD];
            word[..there].copy_from_slice(&bytes[at..]);
            u64::from_le_bytes(word)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_taken() {
        let values = [
            (0b1, 1),
            (0, 3),
            (0x00ab_cdef_0123_4567, 56),
            (5, 3),
            (0, 0),
            (0x7fff, 15),
            (1, 7),
        ];
        let mut bytes = [0xff; 32];
        let mut writer = Writer::new(&mut bytes);
        for (value, length) in values {
            writer.put(0, value, length);
            writer.flush();
        }
        let length = writer.finish();
        assert_eq!(length, 85usize.div_ceil(8));
        let mut reader = Reader::new(&bytes[..length]);
        for (value, length) in values {
            assert_eq!(reader.take(length), value);
        }
        assert_eq!((reader.taken(), reader.padding()), (length, 0));
        assert!(!reader.is_past_end());
    }

    #[test]
    fn past_the_end_there_are_zeros_and_it_is_known() {
        let mut reader = Reader::new(&[0xff]);
        assert_eq!(reader.take(7), 0x7f);
        assert_eq!(reader.padding(), 1);
        assert_eq!(reader.window(), 1);
        assert!(!reader.is_past_end());
        reader.skip(2);
        assert!(reader.is_past_end());
        for _ in 0..100 {
            assert_eq!(reader.take(40), 0);
        }
        assert!(reader.is_past_end());
    }
}
