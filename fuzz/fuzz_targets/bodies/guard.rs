//! Memory that ends where a page begins that nobody may touch: an access past its end is a SIGSEGV, without any
//! sanitizer.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// A copy of a slice whose end is a page's end, before a page without access.
pub struct Guarded<T> {
    region: Region,
    first: *mut T,
    length: usize,
}

/// Pages that may be used, and one behind them that may not.
#[derive(Clone, Copy)]
struct Region {
    mapping: *mut libc::c_void,
    /// Of the pages that may be used.
    inside: usize,
    page: usize,
}

thread_local! {
    /// Regions that wait for the next use: making one takes longer than most inputs.
    static WAITING: RefCell<Vec<Region>> = const { RefCell::new(Vec::new()) };
}

impl<T: Copy> Guarded<T> {
    /// Copies `slice`.
    pub fn new(slice: &[T]) -> Guarded<T> {
        let size = size_of_val(slice);
        let region = Region::of(size);
        // SAFETY: `size` is at most `inside`. A page's end is aligned for any T, and so is what lies whole Ts before it.
        let first = unsafe { region.mapping.byte_add(region.inside - size) }.cast::<T>();
        // SAFETY: room for all of `slice`, in memory that nobody else uses.
        unsafe { std::ptr::copy_nonoverlapping(slice.as_ptr(), first, slice.len()) };
        Guarded {
            region,
            first,
            length: slice.len(),
        }
    }
}

impl Region {
    /// One with at least so many bytes, but not with many more.
    fn of(size: usize) -> Region {
        let waiting = WAITING.with_borrow_mut(|waiting| {
            let fits =
                |region: &Region| size <= region.inside && region.inside <= 4 * size + (1 << 16);
            let at = waiting.iter().position(fits)?;
            Some(waiting.swap_remove(at))
        });
        waiting.unwrap_or_else(|| Region::new(size))
    }

    fn new(size: usize) -> Region {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let inside = size.max(1).next_multiple_of(page);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping wherever there is room.
        let mapping =
            unsafe { libc::mmap(std::ptr::null_mut(), inside + page, access, kind, -1, 0) };
        assert!(mapping != libc::MAP_FAILED, "no memory for {size} bytes");
        // SAFETY: the mapping's last page, which nobody uses.
        let guarded = unsafe { libc::mprotect(mapping.byte_add(inside), page, libc::PROT_NONE) };
        assert!(guarded == 0, "no page can be protected");
        Region {
            mapping,
            inside,
            page,
        }
    }

    fn unmap(self) {
        // SAFETY: this value's own mapping, which nothing borrows.
        unsafe { libc::munmap(self.mapping, self.inside + self.page) };
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `length` Ts were copied there, and the region is this value's own.
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
        let region = self.region;
        WAITING.with_borrow_mut(|waiting| {
            waiting.insert(0, region);
            if waiting.len() > 32
                && let Some(oldest) = waiting.pop()
            {
                oldest.unmap();
            }
        });
    }
}
