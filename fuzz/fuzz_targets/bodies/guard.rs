//! Memory that ends where a page begins that nobody may touch: an access past its end is a SIGSEGV, without any
//! sanitizer.

use std::ops::{Deref, DerefMut};

/// A copy of a slice whose end is a page's end, before a page without access.
pub struct Guarded<T> {
    mapping: *mut libc::c_void,
    bytes: usize,
    first: *mut T,
    length: usize,
}

impl<T: Copy> Guarded<T> {
    /// Copies `slice`.
    pub fn new(slice: &[T]) -> Guarded<T> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let size = size_of_val(slice);
        let inside = size.next_multiple_of(page);
        let bytes = inside + page;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping wherever there is room.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert!(mapping != libc::MAP_FAILED, "no memory for {bytes} bytes");
        // SAFETY: the mapping's last page.
        let end = unsafe { mapping.byte_add(inside) };
        // SAFETY: the same page, which nobody uses.
        let guarded = unsafe { libc::mprotect(end, page, libc::PROT_NONE) };
        assert!(guarded == 0, "no page can be protected");
        // SAFETY: `size` is at most `inside`. A page's end is aligned for any T, and so is what lies whole Ts before it.
        let first = unsafe { end.byte_sub(size) }.cast::<T>();
        // SAFETY: room for all of `slice`, in new memory.
        unsafe { std::ptr::copy_nonoverlapping(slice.as_ptr(), first, slice.len()) };
        Guarded {
            mapping,
            bytes,
            first,
            length: slice.len(),
        }
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `length` Ts were copied there, and the mapping is this value's own.
        unsafe { std::slice::from_raw_parts(self.first, self.length) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.length) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, which nothing borrows any more.
        unsafe { libc::munmap(self.mapping, self.bytes) };
    }
}
