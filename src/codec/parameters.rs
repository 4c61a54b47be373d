//! What records are applied to, as its trainer has it: one slice, a list of slices, or parts in the memory of a GPU.

use super::residual::Residual;
use std::ops::Range;

/// Parameters, or a sum, as their trainer has them: one slice, or a list of slices of any lengths that follow one
/// another, such as a model's tensors. With the feature `gpu` also a `GradRef`, or a list of them: buffers of a GPU.
///
/// What is applied to parts gives the bits that it would give to the whole vector.
pub trait Parameters {
    /// How many elements there are in all.
    fn elements(&self) -> usize;

    /// The rest, from `element` on, of the part that holds it; not empty for an element inside, empty past the end.
    fn rest(&mut self, element: usize) -> &mut [f32];

    /// The parts, if any of them is in the memory of a GPU; then [`rest`](Self::rest) has nothing there.
    #[cfg(feature = "gpu")]
    fn device(&self) -> Option<&[super::gpu::GradRef<'_>]> {
        None
    }

    /// Calls `with` for the slices that hold `elements`, in order: one look at the list of parts.
    fn each(&mut self, elements: Range<usize>, with: &mut dyn FnMut(&mut [f32])) {
        let mut at = elements.start;
        while at < elements.end {
            let rest = self.rest(at);
            let count = rest.len().min(elements.end - at);
            if count == 0 {
                return;
            }
            with(&mut rest[..count]);
            at += count;
        }
    }
}

impl<P: Parameters + ?Sized> Parameters for &mut P {
    fn elements(&self) -> usize {
        (**self).elements()
    }

    fn rest(&mut self, element: usize) -> &mut [f32] {
        (**self).rest(element)
    }

    #[cfg(feature = "gpu")]
    fn device(&self) -> Option<&[super::gpu::GradRef<'_>]> {
        (**self).device()
    }

    fn each(&mut self, elements: Range<usize>, with: &mut dyn FnMut(&mut [f32])) {
        (**self).each(elements, with);
    }
}

impl<P: Parameters + ?Sized> Parameters for Box<P> {
    fn elements(&self) -> usize {
        (**self).elements()
    }

    fn rest(&mut self, element: usize) -> &mut [f32] {
        (**self).rest(element)
    }

    #[cfg(feature = "gpu")]
    fn device(&self) -> Option<&[super::gpu::GradRef<'_>]> {
        (**self).device()
    }

    fn each(&mut self, elements: Range<usize>, with: &mut dyn FnMut(&mut [f32])) {
        (**self).each(elements, with);
    }
}

impl Parameters for [f32] {
    fn elements(&self) -> usize {
        self.len()
    }

    fn rest(&mut self, element: usize) -> &mut [f32] {
        self.get_mut(element..).unwrap_or_default()
    }
}

macro_rules! as_slice {
    ($([$($generics:tt)*] $vector:ty),* $(,)?) => {$(
        impl<$($generics)*> Parameters for $vector {
            fn elements(&self) -> usize {
                self.len()
            }

            fn rest(&mut self, element: usize) -> &mut [f32] {
                self[..].rest(element)
            }
        }
    )*};
}

as_slice!([] Vec<f32>, [const N: usize] [f32; N], [] Residual);

/// The rest of the part that holds `element`.
fn rest_of<P: AsMut<[f32]> + AsRef<[f32]>>(parts: &mut [P], mut element: usize) -> &mut [f32] {
    for part in parts {
        let length = part.as_ref().len();
        if element < length {
            return &mut part.as_mut()[element..];
        }
        element -= length;
    }
    &mut []
}

fn each_of<P: AsMut<[f32]> + AsRef<[f32]>>(
    parts: &mut [P],
    elements: Range<usize>,
    with: &mut dyn FnMut(&mut [f32]),
) {
    let (mut skipped, mut left) = (elements.start, elements.len());
    for part in parts {
        if left == 0 {
            return;
        }
        let length = part.as_ref().len();
        if skipped >= length {
            skipped -= length;
            continue;
        }
        let count = left.min(length - skipped);
        with(&mut part.as_mut()[skipped..skipped + count]);
        (skipped, left) = (0, left - count);
    }
}

macro_rules! as_parts {
    ($([$($generics:tt)*] $parts:ty),* $(,)?) => {$(
        impl<$($generics)*> Parameters for $parts {
            fn elements(&self) -> usize {
                self.iter().map(|part| part.len()).sum()
            }

            fn rest(&mut self, element: usize) -> &mut [f32] {
                rest_of(self, element)
            }

            fn each(&mut self, elements: Range<usize>, with: &mut dyn FnMut(&mut [f32])) {
                each_of(self, elements, with);
            }
        }
    )*};
}

as_parts!(
    [] [&mut [f32]],
    [] Vec<&mut [f32]>,
    [const N: usize] [&mut [f32]; N],
    [] [Vec<f32>],
    [] Vec<Vec<f32>>,
    [const N: usize] [Vec<f32>; N],
);

/// Makes `elements` +0.
pub(crate) fn clear(target: &mut dyn Parameters, elements: Range<usize>) {
    target.each(elements, &mut |part| part.fill(0.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(parameters: &mut dyn Parameters) {
        let elements = parameters.elements();
        for start in 0..=elements {
            for end in start..=elements {
                let mut found = Vec::new();
                parameters.each(start..end, &mut |part| {
                    assert!(!part.is_empty());
                    found.extend_from_slice(part);
                });
                let expected: Vec<f32> = (start..end).map(|i| i as f32).collect();
                assert_eq!(found, expected);
            }
            let rest = parameters.rest(start);
            assert_eq!(rest.is_empty(), start == elements);
            assert!(rest.iter().zip(start..).all(|(&x, i)| x == i as f32));
        }
        assert!(parameters.rest(usize::MAX).is_empty());
    }

    #[test]
    fn slices_and_lists_of_slices_hold_the_same_elements() {
        let vector: Vec<f32> = (0..12).map(|i| i as f32).collect();
        all_of(&mut vector.clone());
        all_of(&mut vector.clone().into_boxed_slice());
        all_of(&mut [0.0, 1.0, 2.0]);
        all_of(&mut &mut vector.clone()[..]);
        let mut lists = vec![
            vec![],
            vector[..5].to_vec(),
            vec![],
            vector[5..].to_vec(),
            vec![],
        ];
        all_of(&mut lists);
        let mut slices: Vec<&mut [f32]> = lists.iter_mut().map(Vec::as_mut_slice).collect();
        all_of(&mut slices);
        all_of(&mut &mut slices[..]);
        all_of(&mut Vec::<Vec<f32>>::new());
    }

    #[test]
    fn what_is_cleared_is_that_range_alone() {
        let mut lists = vec![vec![1.0; 3], vec![1.0; 4]];
        clear(&mut lists, 2..5);
        assert_eq!(lists, [vec![1.0, 1.0, 0.0], vec![0.0, 0.0, 1.0, 1.0]]);
    }
}
