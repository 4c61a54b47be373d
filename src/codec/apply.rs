//! A record onto parameters, or onto a sum.
//!
//! Each record is applied by itself, one addition of canonical numbers per hit, whatever its format: that is what keeps
//! replicas identical when they chose different formats. Elements that a record does not touch are not written.

use super::BLOCK;
use super::arithmetic::{INFINITY, LEAST_NORMAL, SIGN};
use super::cpu::Kernels;
use super::dense::Dense;
use super::format::{Checked, DecodeError, Format, Record};

/// What is done with a hit's unit, or with a dense value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// `p = canon(canon(p) - x)`: updates are subtracted from parameters.
    Subtract,
    /// `s = canon(canon(s) + x)`: updates are summed. A sum starts at +0 and so is always canonical.
    Add,
}

/// What applying met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Hits, or dense values, whose target element was not finite, and stayed as it was.
    pub not_finite: u32,
}

pub(super) fn apply(
    kernels: Kernels,
    record: &Record<'_>,
    x: f32,
    how: Apply,
    target: &mut [f32],
) -> Result<Applied, DecodeError> {
    if target.len() != record.elements {
        return Err(DecodeError::TargetLength {
            expected: record.elements,
            found: target.len(),
        });
    }
    if x.to_bits() != 0 && !(LEAST_NORMAL..INFINITY).contains(&x.to_bits()) {
        return Err(DecodeError::ScaledUnit { found: x });
    }
    let record = Checked::new(record)?;
    // a - b is a + (-b) to the bit, so one kernel does both.
    let x = match how {
        Apply::Subtract => f32::from_bits(x.to_bits() ^ SIGN),
        Apply::Add => x,
    };
    let not_finite = match record.record().format {
        Format::Sparse => record
            .blocks()
            .map(|(first, hits)| {
                let end = (first + BLOCK).min(target.len());
                // SAFETY: the record is checked: each index lies in its block, and `target` has the record's length.
                unsafe { kernels.apply_sparse(hits, x, &mut target[first..end]) }
            })
            .sum(),
        Format::Bitmap => {
            let Record { payload, hits, .. } = record.record();
            kernels.apply_bitmap(payload, hits as usize, x, target)
        }
        Format::DenseF32 => kernels.apply_dense(Dense::F32, record.record().payload, x, target),
        Format::DenseBf16 => kernels.apply_dense(Dense::Bf16, record.record().payload, x, target),
    };
    Ok(Applied { not_finite })
}
