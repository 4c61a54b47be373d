//! How messages follow one another on a stream of bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 3 | `grxu` |
//! | 4 | version, 1 |
//! | 5 | kind of the payload |
//! | 6, 7 | 0 |
//! | 8 to 15 | length of the payload (u64) |
//! | 16 and on | the payload |
//! | 4 behind it | CRC-32C of all bytes before (u32) |
//!
//! Little-endian. Memory is taken for bytes that have come, not for those that a length announces.

use super::message::Kind;
use super::{FrameError, SourceError};

const MAGIC: [u8; 4] = *b"grxu";
const VERSION: u8 = 1;
const HEAD: usize = 16;
const TAIL: usize = 4;

/// The bytes of a frame.
pub(super) fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + payload.len() + TAIL);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, kind as u8, 0, 0]);
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(payload);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Which frames are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// Updates of so many elements.
    Source { elements: usize },
    /// Answers.
    Client,
}

impl Side {
    /// The kind of this number, and the most bytes that it can have here.
    fn kind(self, number: u8) -> Option<(Kind, u64)> {
        let kind = Kind::from_u8(number)?;
        let is_answer = matches!(kind, Kind::Accepted | Kind::Refused);
        match self {
            Side::Source { elements } if !is_answer => Some((kind, kind.most(elements))),
            Side::Client if is_answer => Some((kind, kind.most(0))),
            _ => None,
        }
    }
}

/// Finds frames in bytes that come in any pieces.
#[derive(Debug)]
pub(super) struct FrameReader {
    side: Side,
    head: [u8; HEAD],
    /// Bytes of the frame that have come.
    come: u64,
    /// What its head says, once that has come.
    said: Option<(Kind, u64)>,
    payload: Vec<u8>,
    tail: [u8; TAIL],
}

impl FrameReader {
    pub(super) fn new(side: Side) -> FrameReader {
        FrameReader {
            side,
            head: [0; HEAD],
            come: 0,
            said: None,
            payload: Vec::new(),
            tail: [0; TAIL],
        }
    }

    /// Whether a part of a frame has come.
    pub(super) fn is_inside(&self) -> bool {
        self.come > 0
    }

    /// Takes bytes off the front of `bytes`, up to the end of a frame: then the frame. `None`: all were taken.
    ///
    /// # Errors
    /// [`SourceError::Frame`], [`SourceError::Memory`]: there is no way of telling where the next frame begins.
    pub(super) fn read(
        &mut self,
        bytes: &mut &[u8],
    ) -> Result<Option<(Kind, Vec<u8>)>, SourceError> {
        let (kind, length) = match self.said {
            Some(said) => said,
            None => {
                fill(&mut self.head, self.come, bytes, &mut self.come);
                if self.come < HEAD as u64 {
                    // What is wrong from the first bytes on need not wait for the rest.
                    self.check_magic()?;
                    return Ok(None);
                }
                *self.said.insert(self.check_head()?)
            }
        };
        let now = (length - self.payload.len() as u64).min(bytes.len() as u64) as usize;
        if now > 0 {
            let (front, rest) = bytes.split_at(now);
            self.payload
                .try_reserve(now)
                .map_err(|_| SourceError::Memory {
                    elements: (self.payload.len() + now) / 4,
                })?;
            self.payload.extend_from_slice(front);
            (*bytes, self.come) = (rest, self.come + now as u64);
        }
        if (self.payload.len() as u64) < length {
            return Ok(None);
        }
        let before = HEAD as u64 + length;
        fill(&mut self.tail, self.come - before, bytes, &mut self.come);
        if self.come < before + TAIL as u64 {
            return Ok(None);
        }
        let found = u32::from_le_bytes(self.tail);
        let expected = crc32c::crc32c_append(crc32c::crc32c(&self.head), &self.payload);
        if found != expected {
            return Err(FrameError::Checksum { expected, found }.into());
        }
        (self.come, self.said) = (0, None);
        Ok(Some((kind, std::mem::take(&mut self.payload))))
    }

    fn check_magic(&self) -> Result<(), FrameError> {
        let [a, b, c, d, ..] = self.head;
        let come = (self.come as usize).min(MAGIC.len());
        if self.head[..come] == MAGIC[..come] {
            Ok(())
        } else {
            Err(FrameError::Magic {
                expected: MAGIC,
                found: [a, b, c, d],
            })
        }
    }

    fn check_head(&self) -> Result<(Kind, u64), FrameError> {
        self.check_magic()?;
        let [_, _, _, _, version, number, low, high, length @ ..] = self.head;
        if version != VERSION {
            return Err(FrameError::Version {
                expected: VERSION,
                found: version,
            });
        }
        let Some((kind, most)) = self.side.kind(number) else {
            return Err(FrameError::Kind { found: number });
        };
        let unused = u16::from_le_bytes([low, high]);
        if unused != 0 {
            return Err(FrameError::Unused { found: unused });
        }
        let length = u64::from_le_bytes(length);
        if length > most {
            return Err(FrameError::TooLong {
                kind: number,
                expected: most,
                found: length,
            });
        }
        Ok((kind, length))
    }
}

/// Fills `room` from the byte at `from` on, and counts what came.
fn fill(room: &mut [u8], from: u64, bytes: &mut &[u8], come: &mut u64) {
    let room = &mut room[from as usize..];
    let (front, rest) = bytes.split_at(room.len().min(bytes.len()));
    room[..front.len()].copy_from_slice(front);
    *bytes = rest;
    *come += front.len() as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Side = Side::Source { elements: 100 };

    fn read_all(side: Side, mut bytes: &[u8]) -> Result<Vec<(Kind, Vec<u8>)>, SourceError> {
        let mut reader = FrameReader::new(side);
        let mut frames = Vec::new();
        while let Some(frame) = reader.read(&mut bytes)? {
            frames.push(frame);
        }
        assert!(bytes.is_empty());
        Ok(frames)
    }

    #[test]
    fn frames_come_out_whatever_the_pieces() {
        let expected = [
            (Kind::Dense, (0..200).collect::<Vec<u8>>()),
            (Kind::Compact, vec![]),
            (Kind::Dl4j, vec![7; 3]),
        ];
        let stream: Vec<u8> = expected
            .iter()
            .flat_map(|(kind, payload)| frame(*kind, payload))
            .collect();
        assert_eq!(read_all(SOURCE, &stream).unwrap(), expected);
        for piece in [1, 2, 3, 16, 17, 100] {
            let mut reader = FrameReader::new(SOURCE);
            let mut frames = Vec::new();
            for mut bytes in stream.chunks(piece) {
                while let Some(frame) = reader.read(&mut bytes).unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames, expected);
            assert!(!reader.is_inside());
        }
    }

    #[test]
    fn no_prefix_is_a_frame_and_every_flipped_bit_is_found() {
        let whole = frame(Kind::Dense, &[9; 40]);
        for end in 0..whole.len() {
            assert_eq!(read_all(SOURCE, &whole[..end]).unwrap(), []);
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                // A longer length goes on waiting.
                if let Ok(frames) = read_all(SOURCE, &damaged) {
                    assert_eq!(frames, []);
                    assert!((8..16).contains(&at));
                }
            }
        }
    }

    #[test]
    fn a_length_is_refused_before_memory_is_taken() {
        let mut head = frame(Kind::Dense, &[]);
        head.truncate(HEAD);
        for length in [401, u64::MAX] {
            head[8..].copy_from_slice(&length.to_le_bytes());
            let error = read_all(SOURCE, &head).unwrap_err();
            assert!(
                matches!(error, SourceError::Frame(FrameError::TooLong { kind: 3, expected: 400, found }) if found == length)
            );
        }
        head[8..].copy_from_slice(&400_u64.to_le_bytes());
        let mut reader = FrameReader::new(SOURCE);
        reader.read(&mut &head[..]).unwrap();
        assert_eq!(reader.payload.capacity(), 0);
    }

    #[test]
    fn frames_of_the_other_side_are_refused() {
        for (side, kind) in [
            (SOURCE, Kind::Accepted),
            (SOURCE, Kind::Refused),
            (Side::Client, Kind::Dense),
        ] {
            let error = read_all(side, &frame(kind, &[])).unwrap_err();
            assert!(matches!(error, SourceError::Frame(FrameError::Kind { .. })));
        }
        assert_eq!(
            read_all(Side::Client, &frame(Kind::Refused, b"no")).unwrap(),
            [(Kind::Refused, b"no".to_vec())]
        );
    }

    #[test]
    fn random_bytes_end_in_an_error_and_take_no_memory() {
        let mut x = 3_u64;
        for round in 0..2000 {
            let mut bytes: Vec<u8> = (0..300)
                .map(|_| {
                    x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    (x >> 56) as u8
                })
                .collect();
            // Some get past the first checks.
            if round % 2 == 0 {
                bytes[..4].copy_from_slice(&MAGIC);
            }
            if round % 4 == 0 {
                bytes[4..8].copy_from_slice(&[VERSION, 1 + (round % 3) as u8, 0, 0]);
            }
            if round % 8 == 0 {
                bytes[8..16].copy_from_slice(&(x >> 56).to_le_bytes());
            }
            let mut reader = FrameReader::new(SOURCE);
            let mut rest = &bytes[..];
            assert!(matches!(
                reader.read(&mut rest),
                Err(SourceError::Frame(_)) | Ok(None)
            ));
            assert!(reader.payload.capacity() <= 1024);
        }
    }
}
