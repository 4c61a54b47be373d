//! A chunk without compression: every s goes out, as f32 or as bf16.
//!
//! For what compression harms more than it saves: biases, norms, short vectors. As f32 nothing stays in the residual; as
//! bf16 `m = bf16(s)`, to nearest even but never to infinity, and `canon(s - m)` stays. The payload is the values,
//! little-endian, in order; a record of it says 0 hits.

use super::arithmetic::{INFINITY, LEAST_NORMAL, MAGNITUDE};
use super::cpu::Kernels;
use super::encode::{Encoded, look_at};
use super::format::{DecodeError, Format};
use super::given::{Cursor, Piece, nothing, with_piece};

/// The numbers of a dense payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dense {
    /// Single precision, 4 bytes an element: exact.
    F32,
    /// The upper half of an f32, 2 bytes an element: 8 significant bits now, the rest later.
    Bf16,
}

impl Dense {
    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Dense::F32 => 4,
            Dense::Bf16 => 2,
        }
    }

    /// The format of its records.
    #[must_use]
    pub fn format(self) -> Format {
        match self {
            Dense::F32 => Format::DenseF32,
            Dense::Bf16 => Format::DenseBf16,
        }
    }
}

impl std::fmt::Display for Dense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dense::F32 => "f32",
            Dense::Bf16 => "bf16",
        })
    }
}

/// The nearest bf16, of two equally near the even one, of those past the largest finite one that: its upper half.
/// `s` is finite.
#[inline(always)]
pub(crate) fn to_bf16(s: f32) -> u16 {
    let bits = s.to_bits();
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    let upper = if rounded & MAGNITUDE >= INFINITY {
        bits
    } else {
        rounded
    };
    (upper >> 16) as u16
}

#[inline(always)]
pub(crate) fn from_bf16(m: u16) -> f32 {
    f32::from_bits(u32::from(m) << 16)
}

/// Encodes a chunk; `update` has an element for each of the residual's.
pub(super) fn encode(
    kernels: Kernels,
    residual: &mut [f32],
    mut update: Cursor<'_>,
    number: Dense,
    out: &mut Vec<u8>,
) -> Encoded {
    let bytes = number.bytes() * residual.len();
    out.reserve(bytes);
    let spare = &mut out.spare_capacity_mut()[..bytes];
    let (mut done, mut dropped) = (0, 0);
    while done < residual.len() {
        let left = residual.len() - done;
        let piece = match update.some(left) {
            // An update that ended early, which callers rule out, would have nothing more to add.
            piece if piece.len() == 0 => Piece::Nothing(nothing(left)),
            piece => piece,
        };
        let end = done + piece.len();
        let residual = &mut residual[done..end];
        let spare = &mut spare[number.bytes() * done..number.bytes() * end];
        dropped += with_piece!(piece, update => kernels.dense(number, update, residual, spare));
        done = end;
    }
    // SAFETY: the kernel wrote a value for each element.
    unsafe { out.set_len(out.len() + bytes) };
    let (residual_max, residual_l1) = look_at(residual);
    Encoded {
        format: number.format(),
        hits: 0,
        dropped,
        clipped: 0.0,
        mean: 0.0,
        residual_max,
        residual_l1,
    }
}

/// The bits of a payload's values as f32.
macro_rules! with_bits {
    ($number:expr, $payload:expr, $bits:ident => $body:expr) => {
        match $number {
            Dense::F32 => {
                let (values, _) = $payload.as_chunks::<4>();
                let $bits = values.iter().map(|value| u32::from_le_bytes(*value));
                $body
            }
            Dense::Bf16 => {
                let (values, _) = $payload.as_chunks::<2>();
                let $bits = values
                    .iter()
                    .map(|value| u32::from(u16::from_le_bytes(*value)) << 16);
                $body
            }
        }
    };
}

/// Checks that a payload of the right length holds canonical finite numbers.
pub(super) fn check(number: Dense, payload: &[u8]) -> Result<(), DecodeError> {
    let wrong = |bits: u32| {
        let size = bits & MAGNITUDE;
        (size >= INFINITY) | ((size < LEAST_NORMAL) & (bits != 0))
    };
    // Without a branch for each first.
    let any =
        with_bits!(number, payload, bits => bits.fold(0, |any, bits| any | u32::from(wrong(bits))));
    if any != 0
        && let Some((element, found)) =
            with_bits!(number, payload, bits => bits.enumerate().find(|&(_, bits)| wrong(bits)))
    {
        return Err(DecodeError::Value {
            element,
            found: f32::from_bits(found),
        });
    }
    Ok(())
}

/// The sum of the magnitudes of a payload of our own, estimated from 1024 of its values if there are more.
pub(super) fn l1(number: Dense, payload: &[u8]) -> f64 {
    let all = payload.len() / number.bytes();
    let size = |bits: u32| f64::from(f32::from_bits(bits & MAGNITUDE));
    let stride = all.div_ceil(1024).max(1);
    let (sum, seen) = with_bits!(number, payload, bits => bits
        .step_by(stride)
        .fold((0.0, 0u32), |(sum, seen), bits| (sum + size(bits), seen + 1)));
    sum / f64::from(seen.max(1)) * all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_the_nearest_even_and_never_infinite() {
        let of = |bits: u32| to_bf16(f32::from_bits(bits));
        for (bits, expected) in [
            (0, 0),
            (0x3f80_0000, 0x3f80),
            (0x3f80_7fff, 0x3f80),
            // Halfway: to the even one.
            (0x3f80_8000, 0x3f80),
            (0x3f81_8000, 0x3f82),
            (0x3f80_8001, 0x3f81),
            (0xbf80_8001, 0xbf81),
            (0x7f7f_ffff, 0x7f7f),
            (0x7f7f_8000, 0x7f7f),
            (0xff7f_ffff, 0xff7f),
            (0x7f7f_7fff, 0x7f7f),
            (LEAST_NORMAL, 0x0080),
        ] {
            assert_eq!(of(bits), expected, "{bits:08x}");
        }
    }

    #[test]
    fn values_that_are_not_canonical_are_refused_with_their_place() {
        let payload =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
        assert_eq!(check(Dense::F32, &payload(&[0.0, -1.0, f32::MAX])), Ok(()));
        for found in [-0.0, f32::INFINITY, 1e-45, -f32::MIN_POSITIVE / 2.0] {
            assert_eq!(
                check(Dense::F32, &payload(&[1.0, found])),
                Err(DecodeError::Value { element: 1, found })
            );
        }
        assert!(check(Dense::F32, &payload(&[f32::NAN])).is_err());
        assert_eq!(check(Dense::Bf16, &[0x80, 0x00, 0x80, 0x3f]), Ok(()));
        assert!(check(Dense::Bf16, &[0x01, 0x00]).is_err());
        assert!(check(Dense::Bf16, &[0x80, 0x7f]).is_err());
    }
}
