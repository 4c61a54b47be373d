//! What the frames of a source's socket carry.
//!
//! | kind | payload |
//! |---|---|
//! | 1, compact | elements (u64), value (f32), hits of each chunk of 262,144 elements (u32 each), and the chunks' [compact](crate::codec::compact) streams, one behind another |
//! | 2, Deeplearning4j | the words of one of its [messages](crate::codec::compat) |
//! | 3, dense | all elements (f32 each) |
//! | 128, accepted | nothing |
//! | 129, refused | the reason, in UTF-8 |
//!
//! Little-endian. The first three go to the source; each is answered by one of the others, in order.

use super::update::{Content, Hit};
use super::{ExternalUpdate, SourceError};
use crate::codec::format::{Checked, NEGATIVE, half};
use crate::codec::{BLOCK, CHUNK, Format, Record, compact, compat};

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Compact = 1,
    Dl4j = 2,
    Dense = 3,
    Accepted = 128,
    Refused = 129,
}

/// The most bytes of a reason.
pub(super) const MOST_REASON: usize = 1024;

impl Kind {
    pub(super) fn from_u8(number: u8) -> Option<Kind> {
        [
            Kind::Compact,
            Kind::Dl4j,
            Kind::Dense,
            Kind::Accepted,
            Kind::Refused,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }

    /// The most bytes that a payload of this kind has, of a source of `elements`.
    pub(super) fn most(self, elements: usize) -> u64 {
        let elements = elements as u64;
        match self {
            // At most 35 bits a hit; for each chunk the number of its hits, 33 bits, and what fills its last byte.
            Kind::Compact => {
                let chunks = elements.div_ceil(CHUNK as u64);
                elements
                    .saturating_mul(35)
                    .div_ceil(8)
                    .saturating_add(12 + 10 * chunks)
            }
            // A threshold message may name each element.
            Kind::Dl4j => elements.saturating_add(5).saturating_mul(4),
            Kind::Dense => elements.saturating_mul(4),
            Kind::Accepted => 0,
            Kind::Refused => MOST_REASON as u64,
        }
    }
}

/// The update that a payload of this kind says, for a source of `elements`.
pub(super) fn decode(
    kind: Kind,
    payload: &[u8],
    elements: usize,
) -> Result<ExternalUpdate, SourceError> {
    match kind {
        Kind::Compact => decode_compact(payload, elements),
        Kind::Dl4j => {
            let mut words = Vec::new();
            compat::from_bytes(payload, &mut words)?;
            decode_dl4j(&words, elements)
        }
        Kind::Dense => {
            let expected = (elements as u64).saturating_mul(4);
            if payload.len() as u64 != expected {
                return Err(SourceError::Message {
                    what: "the values",
                    expected,
                    found: payload.len() as u64,
                });
            }
            let mut values = room(elements)?;
            for (value, bytes) in values.iter_mut().zip(payload.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            ExternalUpdate::dense(values)
        }
        Kind::Accepted | Kind::Refused => Err(super::FrameError::Kind { found: kind as u8 }.into()),
    }
}

/// A vector of +0.
fn room(elements: usize) -> Result<Vec<f32>, SourceError> {
    // Only asks whether there is room: then zeros come from the system, without a pass over them.
    Vec::<f32>::new()
        .try_reserve_exact(elements)
        .map_err(|_| SourceError::Memory { elements })?;
    Ok(vec![0.0; elements])
}

/// Takes the front off some bytes.
fn split<'a>(
    bytes: &mut &'a [u8],
    what: &'static str,
    expected: usize,
) -> Result<&'a [u8], SourceError> {
    let Some((front, rest)) = bytes.split_at_checked(expected) else {
        return Err(SourceError::Message {
            what,
            expected: expected as u64,
            found: bytes.len() as u64,
        });
    };
    *bytes = rest;
    Ok(front)
}

fn decode_compact(mut payload: &[u8], elements: usize) -> Result<ExternalUpdate, SourceError> {
    let head = split(&mut payload, "the head", 12)?;
    let (length, value) = head.split_at(8);
    let found = u64::from_le_bytes(length.try_into().unwrap_or_default());
    let value = f32::from_le_bytes(value.try_into().unwrap_or_default());
    if found != elements as u64 {
        return Err(SourceError::Length {
            expected: elements,
            found: usize::try_from(found).unwrap_or(usize::MAX),
        });
    }
    let counts = split(&mut payload, "the counts", 4 * elements.div_ceil(CHUNK))?;
    let mut hits = Vec::new();
    let mut sparse = Vec::new();
    for (chunk, count) in counts.as_chunks().0.iter().enumerate() {
        let start = chunk * CHUNK;
        let of_chunk = (elements - start).min(CHUNK);
        let count = u32::from_le_bytes(*count);
        sparse.clear();
        let taken = compact::decode_front(payload, of_chunk, count, &mut sparse)
            .map_err(|source| SourceError::Compact { chunk, source })?;
        payload = &payload[taken..];
        let record = Record {
            format: Format::Sparse,
            hits: count,
            elements: of_chunk,
            payload: &sparse,
        };
        let checked = Checked::new(&record).map_err(|error| SourceError::Compact {
            chunk,
            source: error.into(),
        })?;
        for (first, codes) in checked.blocks() {
            hits.extend((0..codes.len() / 2).map(|at| {
                let code = half(codes, at);
                let element = start + first + usize::from(code & !NEGATIVE);
                Hit::new(element, code & NEGATIVE != 0)
            }));
        }
    }
    if !payload.is_empty() {
        return Err(SourceError::Message {
            what: "what is behind the last chunk",
            expected: 0,
            found: payload.len() as u64,
        });
    }
    ExternalUpdate::of_hits(elements, value, hits)
}

/// The update that a Deeplearning4j message says. It may name an element more than once; then it is added as often.
pub(super) fn decode_dl4j(words: &[i32], elements: usize) -> Result<ExternalUpdate, SourceError> {
    if let Some(update) = dl4j_hits(words, elements) {
        return Ok(update);
    }
    // A bitmap, whose codes have two magnitudes; an element that is named twice; or something that is wrong.
    let mut values = room(elements)?;
    compat::decode(words, &mut values)?;
    ExternalUpdate::dense(values)
}

/// What a right threshold message says that names no element twice.
fn dl4j_hits(words: &[i32], elements: usize) -> Option<ExternalUpdate> {
    let (&[count, length, bits, encoding], content) = words.split_first_chunk::<4>()?;
    if encoding != 0
        || usize::try_from(count) != Ok(content.len())
        || usize::try_from(length) != Ok(elements)
    {
        return None;
    }
    let mut hits = Vec::with_capacity(content.len());
    for word in content {
        let element = (word.unsigned_abs() as usize).checked_sub(1)?;
        if element >= elements {
            return None;
        }
        hits.push(Hit::new(element, *word < 0));
    }
    if !hits.is_sorted() {
        hits.sort_unstable();
    }
    if hits
        .windows(2)
        .any(|pair| pair[0].element() == pair[1].element())
    {
        return None;
    }
    ExternalUpdate::of_hits(elements, f32::from_bits(bits as u32), hits).ok()
}

/// A payload that says this update, and its kind: compact where all that is not 0 has one magnitude, else dense.
pub(super) fn encode(update: &ExternalUpdate) -> Result<(Kind, Vec<u8>), SourceError> {
    let elements = update.elements();
    let mut payload = Vec::new();
    let reserve = |payload: &mut Vec<u8>, words: usize| {
        payload
            .try_reserve_exact(words.saturating_mul(4))
            .map_err(|_| SourceError::Memory { elements })
    };
    let Some(value) = update.magnitude(0..elements) else {
        reserve(&mut payload, elements)?;
        if let Content::All(values) = &update.content {
            payload.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        } else {
            payload.resize(4 * elements, 0);
            for (element, x) in update.values() {
                payload[4 * element..][..4].copy_from_slice(&x.to_le_bytes());
            }
        }
        return Ok((Kind::Dense, payload));
    };
    // Without hits any value says the same.
    let value = if value == 0.0 { 1.0 } else { value };
    payload.extend_from_slice(&(elements as u64).to_le_bytes());
    payload.extend_from_slice(&value.to_le_bytes());
    let counts = payload.len();
    reserve(&mut payload, elements.div_ceil(CHUNK))?;
    payload.resize(counts + 4 * elements.div_ceil(CHUNK), 0);
    let mut of_chunk = Vec::new();
    for (chunk, start) in (0..elements).step_by(CHUNK).enumerate() {
        let range = start..(start + CHUNK).min(elements);
        of_chunk.clear();
        let (format, hits, _) = update.chunk_record(&range, 0, &mut of_chunk);
        let record = Record {
            format,
            hits,
            elements: range.len(),
            payload: &of_chunk,
        };
        payload[counts + 4 * chunk..][..4].copy_from_slice(&hits.to_le_bytes());
        compact::encode(&record, &mut payload)
            .map_err(|source| SourceError::Compact { chunk, source })?;
    }
    Ok((Kind::Compact, payload))
}

const _: () = assert!(CHUNK.is_multiple_of(BLOCK));

#[cfg(test)]
mod tests {
    use super::*;

    fn values(update: &ExternalUpdate) -> Vec<(usize, f32)> {
        update.values().collect()
    }

    fn some(elements: usize, every: usize) -> ExternalUpdate {
        let hits = (0..elements)
            .filter(|i| i % every == every / 2)
            .map(|i| (i, i % 3 == 0));
        ExternalUpdate::hits(elements, 0.1, hits).unwrap()
    }

    #[test]
    fn every_update_comes_out_as_it_went_in_and_within_the_most_bytes() {
        for (elements, every) in [(1, 1), (50, 9), (CHUNK, 1), (CHUNK + 1, 2), (700_001, 301)] {
            let update = some(elements, every);
            let (kind, payload) = encode(&update).unwrap();
            assert_eq!(kind, Kind::Compact);
            assert!(payload.len() as u64 <= kind.most(elements));
            assert_eq!(decode(kind, &payload, elements).unwrap(), update);
            let mut sum = update.clone();
            sum.add(&some(elements, 2 * every)).unwrap();
            sum.add(&ExternalUpdate::hits(elements, 7.0, [(elements - 1, true)]).unwrap())
                .unwrap();
            let (kind, payload) = encode(&sum).unwrap();
            assert!(payload.len() as u64 <= kind.most(elements));
            let back = decode(kind, &payload, elements).unwrap();
            assert_eq!(values(&back), values(&sum));
        }
        let nothing = ExternalUpdate::dense(vec![0.0; 9]).unwrap();
        let (kind, payload) = encode(&nothing).unwrap();
        assert_eq!(values(&decode(kind, &payload, 9).unwrap()), []);
    }

    #[test]
    fn a_deeplearning4j_message_in_any_order_is_what_its_decoder_says() {
        let t = 0.001_f32.to_bits() as i32;
        let messages: [&[i32]; 6] = [
            &[3, 40, t, 0, 7, -1, 40],
            &[0, 40, t, 0],
            &[4, 40, t, 0, 2, -3, 2, 3],
            &[1, 40, 1, 0, 5],
            &[40, 40, t, 1, 0x0003_0001, 0x8000_8000_u32 as i32, 1],
            &[40, 40, t, 1, 7, 0, 0],
        ];
        for message in messages {
            let mut expected = vec![0.0_f32; 40];
            compat::decode(message, &mut expected).unwrap();
            let update = decode_dl4j(message, 40).unwrap();
            let expected = ExternalUpdate::dense(expected).unwrap();
            assert_eq!(values(&update), values(&expected), "{message:?}");
        }
        for wrong in [
            &[1, 40, t, 0][..],
            &[1, 41, t, 0, 1],
            &[1, 40, t, 0, 41],
            &[1, 40, t, 0, 0],
            &[1, 40, t, 0, i32::MIN],
            &[1, 40, 0, 0, 1],
            &[40, 40, t, 1, 0, 0, 0x100],
            &[1, 40],
        ] {
            let error = decode_dl4j(wrong, 40).unwrap_err();
            assert!(matches!(error, SourceError::Compat(_)), "{error}");
        }
        // Named so often that the sum is no number.
        let huge = f32::MAX.to_bits() as i32;
        let error = decode_dl4j(&[2, 40, huge, 0, 3, 3], 40).unwrap_err();
        assert!(matches!(error, SourceError::NotFinite { element: 2, .. }));
    }

    #[test]
    fn updates_of_more_elements_than_memory_are_refused() {
        let elements = usize::MAX;
        let mut update = ExternalUpdate::hits(elements, 1.0, [(3, false)]).unwrap();
        let error = encode(&update).unwrap_err();
        assert!(matches!(error, SourceError::Memory { .. }), "{error}");
        // A sum of two magnitudes, which would have to go out dense.
        let other = ExternalUpdate::hits(elements, 2.0, [(4, true)]).unwrap();
        update.add(&other).unwrap();
        let error = encode(&update).unwrap_err();
        assert!(matches!(error, SourceError::Memory { .. }), "{error}");
    }

    #[test]
    fn any_bytes_are_an_update_or_an_error() {
        let elements = CHUNK + 40;
        let (_, good) = encode(&some(elements, 5000)).unwrap();
        for end in 0..good.len() {
            decode(Kind::Compact, &good[..end], elements).unwrap_err();
        }
        let mut x = 1_u64;
        for round in 0..3000 {
            x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let mut damaged = good.clone();
            let at = (x >> 33) as usize % good.len();
            damaged[at] ^= 1 << (x >> 60 & 7);
            if round % 3 == 0 {
                damaged.truncate(good.len() - (x >> 40) as usize % 4);
            }
            for kind in [Kind::Compact, Kind::Dl4j, Kind::Dense] {
                if let Ok(update) = decode(kind, &damaged, elements) {
                    assert_eq!(update.elements(), elements);
                    assert!(
                        update
                            .values()
                            .all(|(at, x)| at < elements && x.is_finite())
                    );
                }
            }
        }
        let mut long = good.clone();
        long.push(0);
        decode(Kind::Compact, &long, elements).unwrap_err();
        decode(Kind::Compact, &good, elements + 1).unwrap_err();
        decode(Kind::Dense, &[0; 8], 3).unwrap_err();
    }
}
