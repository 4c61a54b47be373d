//! How this crate's own states are written.
//!
//! Little-endian: `gradring` (8 bytes), a version (u32), the state's kind (a text), what the state consists of, and the
//! CRC-32C (u32) of all bytes before it. A text is its length (u32) and its bytes in UTF-8. What is read is compared or
//! counted before memory is taken for it, and goes through one buffer of 64 KiB; long vectors are written from where they lie.

use super::StateError;
use std::io::{ErrorKind, Read, Write};

const MAGIC: [u8; 8] = *b"gradring";
/// Bytes that are written or read at a time.
const PIECE: usize = 64 << 10;
/// Bytes that are written at a time where they lie together: few enough to be in a cache still when they are copied.
const LARGE: usize = 1 << 20;
/// The most bytes of a text that a message shows.
const SHOWN: usize = 200;

/// Writes a state.
pub(crate) struct Writer<'a> {
    out: &'a mut dyn Write,
    state: &'a str,
    buffer: Vec<u8>,
    crc: u32,
}

impl<'a> Writer<'a> {
    /// Begins a state called `state`, of a kind and a version of it.
    pub(crate) fn begin(
        out: &'a mut dyn Write,
        state: &'a str,
        kind: &str,
        version: u32,
    ) -> Result<Self, StateError> {
        let mut writer = Self {
            out,
            state,
            buffer: Vec::with_capacity(PIECE),
            crc: 0,
        };
        writer.bytes(&MAGIC)?;
        writer.u32(version)?;
        writer.text(kind)?;
        Ok(writer)
    }

    pub(crate) fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), StateError> {
        while !bytes.is_empty() {
            if self.buffer.is_empty() && bytes.len() >= PIECE {
                // Nothing to be gathered: without a copy.
                let (now, later) = bytes.split_at(bytes.len().min(LARGE));
                self.pass_on(now)?;
                bytes = later;
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == PIECE {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn pass_on(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        let written = self.out.write_all(bytes);
        written.map_err(|error| StateError::io(self.state, error))
    }

    fn flush(&mut self) -> Result<(), StateError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let passed = self.pass_on(&buffer);
        buffer.clear();
        self.buffer = buffer;
        passed
    }

    pub(crate) fn u8(&mut self, x: u8) -> Result<(), StateError> {
        self.bytes(&[x])
    }

    pub(crate) fn u16(&mut self, x: u16) -> Result<(), StateError> {
        self.bytes(&x.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, x: u32) -> Result<(), StateError> {
        self.bytes(&x.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, x: u64) -> Result<(), StateError> {
        self.bytes(&x.to_le_bytes())
    }

    /// Whether there is a number, and the number.
    pub(crate) fn optional(&mut self, x: Option<u64>) -> Result<(), StateError> {
        self.u8(u8::from(x.is_some()))?;
        x.map_or(Ok(()), |x| self.u64(x))
    }

    /// How many there are of something.
    pub(crate) fn count(&mut self, what: &'static str, count: usize) -> Result<(), StateError> {
        let fits = u32::try_from(count).map_err(|_| StateError::Differs {
            state: self.state.to_owned(),
            what: what.to_owned(),
            expected: "fewer than 2^32".to_owned(),
            found: count.to_string(),
        });
        self.u32(fits?)
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), StateError> {
        self.count("bytes of a text", text.len())?;
        self.bytes(text.as_bytes())
    }

    pub(crate) fn floats(&mut self, floats: &[f32]) -> Result<(), StateError> {
        if cfg!(target_endian = "little") {
            return self.bytes(bytemuck::cast_slice(floats));
        }
        let mut room = [0; 1024];
        for few in floats.chunks(room.len() / 4) {
            for (bytes, x) in room.chunks_exact_mut(4).zip(few) {
                bytes.copy_from_slice(&x.to_le_bytes());
            }
            self.bytes(&room[..4 * few.len()])?;
        }
        Ok(())
    }

    /// Ends the state with its checksum.
    pub(crate) fn finish(mut self) -> Result<(), StateError> {
        self.flush()?;
        let crc = self.crc;
        self.u32(crc)?;
        self.flush()?;
        self.out
            .flush()
            .map_err(|error| StateError::io(self.state, error))
    }
}

/// Reads a state.
pub(crate) struct Reader<'a> {
    from: &'a mut dyn Read,
    state: &'a str,
    crc: u32,
}

impl<'a> Reader<'a> {
    /// Begins to read a state called `state`, of this kind and version.
    pub(crate) fn begin(
        from: &'a mut dyn Read,
        state: &'a str,
        kind: &str,
        version: u32,
    ) -> Result<Self, StateError> {
        let mut reader = Self {
            from,
            state,
            crc: 0,
        };
        let found = reader.array("its first bytes")?;
        if found != MAGIC {
            return Err(StateError::Magic {
                state: state.to_owned(),
                expected: MAGIC,
                found,
            });
        }
        let found = reader.u32("its version")?;
        if found != version {
            return Err(StateError::Version {
                state: state.to_owned(),
                expected: version,
                found,
            });
        }
        reader.expect_text("kind", kind)?;
        Ok(reader)
    }

    /// Reads until `out` is full or the bytes end; how many there were.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, StateError> {
        let mut done = 0;
        while done < out.len() {
            match self.from.read(&mut out[done..]) {
                Ok(0) => break,
                Ok(read) => done += read.min(out.len() - done),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(StateError::io(self.state, error)),
            }
        }
        Ok(done)
    }

    fn read_all(&mut self, what: &'static str, out: &mut [u8]) -> Result<(), StateError> {
        match self.read(out)? {
            found if found < out.len() => Err(StateError::Short {
                state: self.state.to_owned(),
                what,
                expected: out.len() as u64,
                found: found as u64,
            }),
            _ => Ok(()),
        }
    }

    fn bytes(&mut self, what: &'static str, out: &mut [u8]) -> Result<(), StateError> {
        self.read_all(what, out)?;
        self.crc = crc32c::crc32c_append(self.crc, out);
        Ok(())
    }

    /// As many bytes as come at once; none at the end.
    pub(crate) fn some(&mut self, out: &mut [u8]) -> Result<usize, StateError> {
        let read = self.read(out)?;
        self.crc = crc32c::crc32c_append(self.crc, &out[..read]);
        Ok(read)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], StateError> {
        let mut bytes = [0; N];
        self.bytes(what, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, StateError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, StateError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, StateError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, StateError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Whether there is something.
    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, StateError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(self.differs(what, "0 or 1", found)),
        }
    }

    /// A number that may be missing.
    pub(crate) fn optional(&mut self, what: &'static str) -> Result<Option<u64>, StateError> {
        self.flag(what)?.then(|| self.u64(what)).transpose()
    }

    /// A text that must be this one.
    pub(crate) fn expect_text(
        &mut self,
        what: &'static str,
        expected: &str,
    ) -> Result<(), StateError> {
        let length = self.u32(what)? as usize;
        let mut found = vec![0; length.min(SHOWN.max(expected.len()))];
        self.bytes(what, &mut found)?;
        if length == expected.len() && found == expected.as_bytes() {
            return Ok(());
        }
        found.truncate(SHOWN);
        let shown = String::from_utf8_lossy(&found);
        Err(self.differs(what, expected, format!("{shown} ({length} bytes)")))
    }

    /// A number that must be this one.
    pub(crate) fn expect(&mut self, what: &'static str, expected: u64) -> Result<(), StateError> {
        match self.u64(what)? {
            found if found == expected => Ok(()),
            found => Err(self.differs(what, expected, found)),
        }
    }

    /// As many numbers as they are said to be; memory is taken as they come.
    pub(crate) fn numbers(&mut self, what: &'static str) -> Result<Vec<u64>, StateError> {
        let count = self.u32(what)?;
        let mut numbers = Vec::new();
        for _ in 0..count {
            numbers.push(self.u64(what)?);
        }
        Ok(numbers)
    }

    /// Hands over `elements` numbers in pieces: where each begins, and the piece.
    pub(crate) fn floats(
        &mut self,
        what: &'static str,
        elements: usize,
        mut with: impl FnMut(usize, &[f32]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut bytes = vec![0; PIECE.min(elements.saturating_mul(4))];
        let mut singles = vec![0.0; bytes.len() / 4];
        let mut start = 0;
        while start < elements {
            let count = (elements - start).min(singles.len());
            let (bytes, singles) = (&mut bytes[..4 * count], &mut singles[..count]);
            self.bytes(what, bytes)?;
            for (single, bytes) in singles.iter_mut().zip(bytes.as_chunks().0) {
                *single = f32::from_le_bytes(*bytes);
            }
            with(start, singles)?;
            start += count;
        }
        Ok(())
    }

    /// Reads the checksum, compares it, and makes sure that nothing follows.
    pub(crate) fn finish(mut self) -> Result<(), StateError> {
        let mut found = [0; 4];
        self.read_all("its checksum", &mut found)?;
        let found = u32::from_le_bytes(found);
        if found != self.crc {
            return Err(StateError::Checksum {
                state: self.state.to_owned(),
                expected: self.crc,
                found,
            });
        }
        match self.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(StateError::Long {
                state: self.state.to_owned(),
            }),
        }
    }

    pub(crate) fn differs(
        &self,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> StateError {
        StateError::Differs {
            state: self.state.to_owned(),
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PIECE, Reader, Writer};
    use crate::checkpoint::StateError;

    fn written() -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::begin(&mut out, "s", "kind", 3).unwrap();
        writer.text("a text").unwrap();
        writer.optional(None).unwrap();
        writer.optional(Some(7)).unwrap();
        let floats: Vec<f32> = (0..PIECE).map(|i| i as f32 - 9.0).collect();
        writer.floats(&floats).unwrap();
        writer.finish().unwrap();
        out
    }

    fn read(mut bytes: &[u8]) -> Result<(), StateError> {
        let mut reader = Reader::begin(&mut bytes, "s", "kind", 3)?;
        reader.expect_text("a text", "a text")?;
        assert_eq!(reader.optional("nothing")?, None);
        assert_eq!(reader.optional("seven")?, Some(7));
        reader.floats("floats", PIECE, |start, floats| {
            for (i, x) in (start..).zip(floats) {
                assert_eq!(*x, i as f32 - 9.0);
            }
            Ok(())
        })?;
        reader.finish()
    }

    #[test]
    fn what_is_written_is_read_and_nothing_may_lack_or_follow() {
        let mut bytes = written();
        read(&bytes).unwrap();
        for end in [0, 7, 8, 11, 15, 20, bytes.len() - 5, bytes.len() - 1] {
            let error = read(&bytes[..end]).unwrap_err();
            assert!(matches!(error, StateError::Short { .. }), "{error}");
        }
        bytes.push(0);
        assert!(matches!(read(&bytes), Err(StateError::Long { .. })));
    }

    #[test]
    fn a_checksum_is_that_of_all_bytes_before_it() {
        let bytes = written();
        let (before, crc) = bytes.split_at(bytes.len() - 4);
        assert_eq!(crc, crc32c::crc32c(before).to_le_bytes());
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert!(matches!(read(&damaged), Err(StateError::Checksum { .. })));
    }

    #[test]
    fn a_count_takes_memory_only_for_what_comes() {
        let mut out = Vec::new();
        let mut writer = Writer::begin(&mut out, "s", "kind", 3).unwrap();
        writer.u32(u32::MAX).unwrap();
        writer.u64(1).unwrap();
        writer.finish().unwrap();
        let mut bytes = &out[..];
        let mut reader = Reader::begin(&mut bytes, "s", "kind", 3).unwrap();
        let error = reader.numbers("numbers").unwrap_err();
        assert!(matches!(error, StateError::Short { .. }), "{error}");
        let mut bytes = &out[..];
        let mut reader = Reader::begin(&mut bytes, "s", "kind", 3).unwrap();
        let error = reader.expect_text("a name", "b").unwrap_err();
        assert!(matches!(error, StateError::Short { .. }), "{error}");
    }
}
