//! An update as its trainer has it: one slice, a list of slices, parts in the memory of a GPU, or nothing but what it has
//! added to the residual.

use super::values::Values;
use half::{bf16, f16};
use std::ops::Range;

/// An update as its trainer has it.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a> {
    /// One slice.
    Slice(Values<'a>),
    /// Slices of any lengths that follow one another: a model's tensors. What is sent is what the whole vector would
    /// send, to the last bit.
    Parts(&'a [Values<'a>]),
    /// Parts of which some, or all, are in the memory of a GPU: see [`GradRef`](super::gpu::GradRef).
    #[cfg(feature = "gpu")]
    Device(&'a [super::gpu::GradRef<'a>]),
    /// The trainer has added it to the residual already: see [`InResidual`].
    InResidual,
}

impl<'a> Given<'a> {
    /// How many elements there are; `None` of what is in the residual, which fits always.
    #[must_use]
    pub fn elements(self) -> Option<usize> {
        match self {
            Given::Slice(values) => Some(values.len()),
            // The same slice may be there several times, so that the sum may be more than there is memory.
            Given::Parts(parts) => Some(
                parts
                    .iter()
                    .fold(0usize, |sum, part| sum.saturating_add(part.len())),
            ),
            #[cfg(feature = "gpu")]
            Given::Device(parts) => Some(
                parts
                    .iter()
                    .fold(0usize, |sum, part| sum.saturating_add(part.len())),
            ),
            Given::InResidual => None,
        }
    }

    /// Calls `with` for the slices that hold `elements`, in order, with how many elements have come before.
    pub(crate) fn each(self, elements: Range<usize>, with: &mut dyn FnMut(usize, Values<'a>)) {
        let mut cursor = self.cursor();
        cursor.skip(elements.start);
        let mut done = 0;
        while done < elements.len() {
            let Piece::Values(values) = cursor.some(elements.len() - done) else {
                return;
            };
            if values.is_empty() {
                return;
            }
            with(done, values);
            done += values.len();
        }
    }

    /// Reads it from its first element on.
    pub(crate) fn cursor(self) -> Cursor<'a> {
        match self {
            Given::Slice(rest) => Cursor::Values { rest, parts: &[] },
            Given::Parts(parts) => Cursor::Values {
                rest: Values::F32(&[]),
                parts,
            },
            Given::InResidual => Cursor::Nothing,
            // Lengths are compared first, and that refuses it.
            #[cfg(feature = "gpu")]
            Given::Device(_) => Cursor::Values {
                rest: Values::F32(&[]),
                parts: &[],
            },
        }
    }
}

/// The update of a trainer that has added it to the residual itself, in place ([`Encoder::residual_mut`]): a step then
/// reads the residual alone.
///
/// [`Encoder::residual_mut`]: super::Encoder::residual_mut
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InResidual;

/// What can be handed over as an update: vectors, arrays and slices of f32, f16 or bf16, or of such slices ([`Values`]),
/// [`InResidual`], and with the feature `gpu` a `GradRef`, or a list of them, whose parts may be in the memory of a GPU.
///
/// ```
/// use gradring::codec::{Given, Update};
///
/// /// A model's two layers.
/// struct Gradients<'a>([gradring::codec::Values<'a>; 2]);
///
/// impl Update for Gradients<'_> {
///     fn given(&self) -> Given<'_> {
///         Given::Parts(&self.0)
///     }
/// }
///
/// let (weights, bias) = ([0.5_f32; 6], [0.25_f32; 2]);
/// let gradients = Gradients([(&weights).into(), (&bias).into()]);
/// assert_eq!(gradients.given().elements(), Some(8));
/// ```
pub trait Update {
    /// Its elements. The same from call to call during a step.
    fn given(&self) -> Given<'_>;
}

macro_rules! updates {
    ($($element:ty),*) => {$(
        impl Update for [$element] {
            fn given(&self) -> Given<'_> {
                Given::Slice(self.into())
            }
        }

        impl Update for Vec<$element> {
            fn given(&self) -> Given<'_> {
                Given::Slice(self.into())
            }
        }

        impl Update for &[$element] {
            fn given(&self) -> Given<'_> {
                Given::Slice((**self).into())
            }
        }

        impl Update for &mut [$element] {
            fn given(&self) -> Given<'_> {
                Given::Slice((&**self).into())
            }
        }

        impl<const N: usize> Update for [$element; N] {
            fn given(&self) -> Given<'_> {
                Given::Slice(self.into())
            }
        }
    )*};
}

updates!(f32, f16, bf16);

impl Update for [Values<'_>] {
    fn given(&self) -> Given<'_> {
        Given::Parts(self)
    }
}

impl Update for &[Values<'_>] {
    fn given(&self) -> Given<'_> {
        Given::Parts(self)
    }
}

impl Update for Vec<Values<'_>> {
    fn given(&self) -> Given<'_> {
        Given::Parts(self)
    }
}

impl<const N: usize> Update for [Values<'_>; N] {
    fn given(&self) -> Given<'_> {
        Given::Parts(self)
    }
}

impl Update for Values<'_> {
    fn given(&self) -> Given<'_> {
        Given::Slice(*self)
    }
}

impl Update for Given<'_> {
    fn given(&self) -> Given<'_> {
        *self
    }
}

impl Update for InResidual {
    fn given(&self) -> Given<'_> {
        Given::InResidual
    }
}

impl<'a, U: Update + ?Sized> From<&'a U> for Given<'a> {
    fn from(update: &'a U) -> Given<'a> {
        update.given()
    }
}

impl<'a> From<Values<'a>> for Given<'a> {
    fn from(values: Values<'a>) -> Given<'a> {
        Given::Slice(values)
    }
}

impl From<InResidual> for Given<'_> {
    fn from(_: InResidual) -> Self {
        Given::InResidual
    }
}

/// An element of what is in the residual already: +0, and no memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nothing;

/// As many of them as anyone can want.
static NOTHING: [Nothing; usize::MAX] = [Nothing; usize::MAX];

/// So many elements of what is in the residual.
pub(crate) fn nothing(count: usize) -> &'static [Nothing] {
    &NOTHING[..count]
}

/// Some elements of an update that lie one behind the other.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    Values(Values<'a>),
    Nothing(&'static [Nothing]),
}

impl Piece<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Piece::Values(values) => values.len(),
            Piece::Nothing(nothing) => nothing.len(),
        }
    }
}

/// Calls a generic function with the slice inside.
macro_rules! with_piece {
    ($piece:expr, $slice:ident => $body:expr) => {
        match $piece {
            $crate::codec::given::Piece::Nothing($slice) => $body,
            $crate::codec::given::Piece::Values(values) => {
                $crate::codec::values::with_slice!(values, $slice => $body)
            }
        }
    };
}
pub(crate) use with_piece;

/// The most elements of a piece that spans parts.
pub(crate) const PIECE: usize = 4096;

/// Where a piece that spans parts is put together. Not touched before there is one.
#[derive(Default)]
pub(crate) struct Room(Option<[f32; PIECE]>);

/// Reads an update in order.
#[derive(Clone, Copy)]
pub(crate) enum Cursor<'a> {
    /// What is left of one slice, and those that follow.
    Values {
        rest: Values<'a>,
        parts: &'a [Values<'a>],
    },
    Nothing,
}

impl<'a> Cursor<'a> {
    /// Leaves out so many elements. Costs a look at each part.
    pub(crate) fn skip(&mut self, mut count: usize) {
        if let Cursor::Values { rest, parts } = self {
            while count >= rest.len()
                && let Some((first, others)) = parts.split_first()
            {
                count -= rest.len();
                (*rest, *parts) = (*first, others);
            }
            *rest = rest.slice(count..rest.len());
        }
    }

    /// The next elements, at most so many: those that lie in one slice. None only at the end.
    pub(crate) fn some(&mut self, most: usize) -> Piece<'a> {
        self.skip(0);
        match self {
            Cursor::Values { rest, .. } => {
                let count = most.min(rest.len());
                let piece = rest.slice(0..count);
                *rest = rest.slice(count..rest.len());
                Piece::Values(piece)
            }
            Cursor::Nothing => Piece::Nothing(nothing(most)),
        }
    }

    /// The next `count` elements, at most [`PIECE`], which must be there. They are put together in `room` if they do not
    /// lie in one slice.
    pub(crate) fn next<'r>(&mut self, count: usize, room: &'r mut Room) -> Piece<'r>
    where
        'a: 'r,
    {
        self.skip(0);
        match self {
            Cursor::Values { rest, .. } if rest.len() < count => {
                Piece::Values(Values::F32(self.gather(count, room)))
            }
            _ => self.some(count),
        }
    }

    #[cold]
    fn gather<'r>(&mut self, count: usize, room: &'r mut Room) -> &'r [f32] {
        let room = &mut room.0.get_or_insert([0.0; PIECE])[..count];
        let mut done = 0;
        while done < count {
            let Piece::Values(values) = self.some(count - done) else {
                break;
            };
            if values.is_empty() {
                break;
            }
            let end = done + values.len();
            values.to_singles(&mut room[done..end]);
            done = end;
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_parts_as_the_vector_that_they_make() {
        let singles: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let halves: Vec<f16> = singles.iter().map(|&x| f16::from_f32(x)).collect();
        let parts = [
            Values::F32(&[]),
            Values::F32(&singles[..3]),
            Values::F16(&halves[3..4]),
            Values::F16(&[]),
            Values::F32(&singles[4..20]),
            Values::Bf16(&[]),
        ];
        let given = Given::from(&parts);
        assert_eq!(given.elements(), Some(20));
        for start in 0..=20 {
            for count in 0..=20 - start {
                let mut cursor = given.cursor();
                cursor.skip(start);
                let mut room = Room::default();
                let Piece::Values(values) = cursor.next(count, &mut room) else {
                    panic!("parts are values");
                };
                let mut found = vec![0.0; values.len()];
                values.to_singles(&mut found);
                assert_eq!(found, singles[start..start + count]);
                let Piece::Values(values) = cursor.some(20) else {
                    panic!("parts are values");
                };
                assert_eq!(values.is_empty(), start + count == 20);
            }
        }
    }

    #[test]
    fn lengths_past_all_memory_do_not_overflow() {
        let huge = [Values::F32(&[0.0; 3]); 4];
        assert_eq!(Given::from(&huge).elements(), Some(12));
        assert_eq!(Given::from(InResidual).elements(), None);
        assert_eq!(Given::from(&InResidual as &dyn Update).elements(), None);
        let Piece::Nothing(nothing) = Given::InResidual.cursor().some(usize::MAX) else {
            panic!("nothing is given");
        };
        assert_eq!((nothing.len(), size_of_val(nothing)), (usize::MAX, 0));
    }
}
