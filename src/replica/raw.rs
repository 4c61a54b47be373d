//! Values where they lie: in a frame that a peer may write at any time, or in private memory.

use bytemuck::Pod;
use std::marker::PhantomData;

/// A run of values that are read one by one.
pub(crate) trait Source<T>: Copy {
    /// How many there are.
    fn len(self) -> usize;
    /// Number `i`; 0 where there are not so many.
    fn get(self, i: usize) -> T;
}

impl<T: Pod> Source<T> for &[T] {
    #[inline(always)]
    fn len(self) -> usize {
        <[T]>::len(self)
    }

    #[inline(always)]
    fn get(self, i: usize) -> T {
        <[T]>::get(self, i).copied().unwrap_or_else(T::zeroed)
    }
}

/// Values in a frame. A peer that breaks the protocol may write them meanwhile: whoever reads one gets some value, and
/// not twice the same.
#[derive(Debug)]
pub(crate) struct Raw<'a, T> {
    start: *const T,
    length: usize,
    frame: PhantomData<&'a ()>,
}

impl<T> Clone for Raw<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<'_, T> {}

impl<T: Pod> Raw<'_, T> {
    /// # Safety
    /// At `start` there are bytes for `length` values, of any alignment, that may be read through raw pointers for as
    /// long as this lives.
    pub(crate) unsafe fn new(start: *const T, length: usize) -> Self {
        Self {
            start,
            length,
            frame: PhantomData,
        }
    }

    /// At most `length` of them from `start` on.
    #[inline(always)]
    pub(crate) fn part(self, start: usize, length: usize) -> Self {
        let start = start.min(self.length);
        Self {
            // SAFETY: inside, or one past the end.
            start: unsafe { self.start.add(start) },
            length: length.min(self.length - start),
            frame: PhantomData,
        }
    }
}

impl<T: Pod> Source<T> for Raw<'_, T> {
    #[inline(always)]
    fn len(self) -> usize {
        self.length
    }

    #[inline(always)]
    fn get(self, i: usize) -> T {
        if i >= self.length {
            return T::zeroed();
        }
        // SAFETY: inside, and any bytes are a value.
        unsafe { self.start.add(i).read_unaligned() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Raw, Source};

    #[test]
    fn nothing_is_read_outside() {
        let values = [1_u32, 2, 3];
        // SAFETY: the array has three values.
        let raw = unsafe { Raw::new(values.as_ptr(), 3) };
        assert_eq!((raw.len(), raw.get(2), raw.get(3)), (3, 3, 0));
        let part = raw.part(1, 9);
        assert_eq!(
            (part.len(), part.get(0), part.get(1), part.get(2)),
            (2, 2, 3, 0)
        );
        assert_eq!(
            (raw.part(7, 1).len(), raw.part(usize::MAX, 1).get(0)),
            (0, 0)
        );
        assert_eq!(Source::get(values.as_slice(), 3), 0);
    }
}
