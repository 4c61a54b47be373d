//! The residual's memory.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use thiserror::Error;

/// A huge page, where the system has them.
const HUGE: usize = 2 << 20;
/// A cache line.
const LINE: usize = 64;

/// What one replica has not sent yet: f32, starting at +0, aligned to cache lines, on huge pages where it is large and
/// the system allows (the fused pass is bound by memory, and address translation is a part of that).
///
/// A slice in every other respect. Whoever writes it keeps it canonical: no NaN, infinity, subnormal or -0.
pub struct Residual {
    start: NonNull<f32>,
    length: usize,
    layout: Layout,
}

// SAFETY: it owns its memory, like a Box<[f32]>.
unsafe impl Send for Residual {}
// SAFETY: as above; `&Residual` only reads.
unsafe impl Sync for Residual {}

impl Residual {
    /// `length` elements, all +0.
    ///
    /// # Errors
    /// [`ResidualError`] when the system has no such memory.
    pub fn zeroed(length: usize) -> Result<Residual, ResidualError> {
        let refused = ResidualError { elements: length };
        let bytes = length.checked_mul(size_of::<f32>()).ok_or(refused)?;
        // Small ones would waste most of a huge page.
        let unit = if bytes >= HUGE { HUGE } else { LINE };
        let bytes = bytes.max(1).checked_next_multiple_of(unit).ok_or(refused)?;
        let layout = Layout::from_size_align(bytes, unit).map_err(|_| refused)?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(refused)?;
        if unit == HUGE {
            advise(start, bytes);
        }
        // Not `alloc_zeroed`: it may touch the pages, in small size, before they are advised.
        // SAFETY: the allocation has this many bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Residual {
            start: start.cast(),
            length,
            layout,
        })
    }
}

/// Asks for huge pages. A system that has none, or refuses, changes nothing but speed.
fn advise(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is one allocation of our own in whole huge pages, and this advice keeps its contents.
    unsafe {
        libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

impl Deref for Residual {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        // SAFETY: `length` elements, all initialised, owned by self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Residual {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Residual {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}

impl std::fmt::Debug for Residual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Residual")
            .field("elements", &self.length)
            .finish_non_exhaustive()
    }
}

/// There is no memory for a residual of so many elements.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no memory for a residual of {elements} elements, 4 bytes each")]
pub struct ResidualError {
    /// The elements.
    pub elements: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_starts_at_zero_aligned_and_can_be_written() {
        for (length, alignment) in [
            (0, LINE),
            (1, LINE),
            (1000, LINE),
            (HUGE / 4, HUGE),
            (HUGE / 4 + 1, HUGE),
        ] {
            let mut residual = Residual::zeroed(length).unwrap();
            assert_eq!(residual.len(), length);
            assert_eq!(residual.as_ptr() as usize % alignment, 0);
            assert!(residual.iter().all(|r| r.to_bits() == 0));
            residual.fill(1.5);
            assert_eq!(residual.iter().sum::<f32>(), 1.5 * length as f32);
        }
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error() {
        for elements in [usize::MAX, usize::MAX / 4, usize::MAX / 8] {
            assert_eq!(
                Residual::zeroed(elements).err(),
                Some(ResidualError { elements })
            );
        }
    }
}
