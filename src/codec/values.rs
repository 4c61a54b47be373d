//! The numbers of an update, in the type in which the trainer has them.

use super::arithmetic::{LEAST_NORMAL, TINY};
use super::given::Nothing;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;

/// An update's elements, borrowed. Half-precision numbers become f32, exactly, in the pass that reads them.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// The upper half of an f32.
    Bf16(&'a [bf16]),
}

impl<'a> Values<'a> {
    /// How many elements there are.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::F16(values) => values.len(),
            Values::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Some of them; the range must lie inside.
    #[inline]
    pub(crate) fn slice(self, range: Range<usize>) -> Values<'a> {
        match self {
            Values::F32(values) => Values::F32(&values[range]),
            Values::F16(values) => Values::F16(&values[range]),
            Values::Bf16(values) => Values::Bf16(&values[range]),
        }
    }

    /// All of them as f32, into as much room.
    pub(crate) fn to_singles(self, room: &mut [f32]) {
        match self {
            Values::F32(values) => room.copy_from_slice(values),
            Values::F16(values) => values.convert_to_f32_slice(room),
            Values::Bf16(values) => values.convert_to_f32_slice(room),
        }
    }
}

/// Calls a generic function with the slice inside.
macro_rules! with_slice {
    ($values:expr, $slice:ident => $body:expr) => {
        match $values {
            $crate::codec::Values::F32($slice) => $body,
            $crate::codec::Values::F16($slice) => $body,
            $crate::codec::Values::Bf16($slice) => $body,
        }
    };
}
pub(crate) use with_slice;

macro_rules! from_slices {
    ($($element:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$element]> for Values<'a> {
            fn from(values: &'a [$element]) -> Self {
                Values::$variant(values)
            }
        }

        impl<'a> From<&'a Vec<$element>> for Values<'a> {
            fn from(values: &'a Vec<$element>) -> Self {
                Values::$variant(values)
            }
        }

        impl<'a, const N: usize> From<&'a [$element; N]> for Values<'a> {
            fn from(values: &'a [$element; N]) -> Self {
                Values::$variant(values)
            }
        }
    )*};
}

from_slices!(f32 => F32, f16 => F16, bf16 => Bf16);

/// Elements that [`Element::singles`] makes f32 at a time.
pub(crate) const SINGLES: usize = 1024;

/// What an update's element can be.
pub(crate) trait Element: super::cpu::Input {
    /// Whether it stands for nothing: the update is in the residual already. What is not finite there cannot be had back
    /// and becomes +0.
    const IN_RESIDUAL: bool = false;

    /// Bits of the magnitude below which a sum, if it is not 0, has to be looked at with care.
    const TINY: u32 = TINY;

    fn to_f32(self) -> f32;

    /// At most [`SINGLES`] elements as f32; `room` is used if they are not.
    fn singles<'a>(piece: &'a [Self], room: &'a mut [f32; SINGLES]) -> &'a [f32];
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn singles<'a>(piece: &'a [f32], _: &'a mut [f32; SINGLES]) -> &'a [f32] {
        piece
    }
}

impl Element for Nothing {
    const IN_RESIDUAL: bool = true;
    /// Nothing is added: only what is subnormal already changes.
    const TINY: u32 = LEAST_NORMAL;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        0.0
    }

    #[inline(always)]
    fn singles<'a>(piece: &'a [Nothing], _: &'a mut [f32; SINGLES]) -> &'a [f32] {
        const ZEROS: &[f32; SINGLES] = &[0.0; SINGLES];
        &ZEROS[..piece.len()]
    }
}

impl Element for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    fn singles<'a>(piece: &'a [f16], room: &'a mut [f32; SINGLES]) -> &'a [f32] {
        piece.convert_to_f32_slice(&mut room[..piece.len()]);
        &room[..piece.len()]
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    #[inline(always)]
    fn singles<'a>(piece: &'a [bf16], room: &'a mut [f32; SINGLES]) -> &'a [f32] {
        piece.convert_to_f32_slice(&mut room[..piece.len()]);
        &room[..piece.len()]
    }
}
