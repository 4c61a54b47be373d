//! The bytes of a ring.
//!
//! Peers may write any of them at any time, so nothing here ever makes a reference to them: they are copied, in and out,
//! through raw pointers. Under loom they are cells, one for 8 bytes, so that the model checker sees every race on them.

use super::frame::{Header, UNIT};

/// The bytes of a ring in somebody's memory.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub struct Arena<'a> {
    base: core::ptr::NonNull<u8>,
    capacity: u64,
    memory: core::marker::PhantomData<&'a ()>,
}

// SAFETY: an arena is only an address. Who may touch which bytes is decided by the ring's positions, between threads as
// between processes, and the caller of `from_raw` has promised one producer and one user of each cursor.
#[cfg(not(loom))]
unsafe impl Send for Arena<'_> {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for Arena<'_> {}

#[cfg(not(loom))]
impl<'a> Arena<'a> {
    /// The arena of `length` bytes at `base`. The ring's capacity is the largest power of two in it.
    ///
    /// # Safety
    /// - `base` is aligned to 8 and points to `length` bytes that may be read and written through raw pointers during
    ///   `'a`, and of which nobody holds a Rust reference.
    /// - Over all arenas made of these bytes, in all processes that keep to the protocol, there is one producer, and one
    ///   user of each cursor, at a time. (Bytes that somebody else writes all the same lead to wrong contents, never to
    ///   an access outside.)
    pub unsafe fn from_raw(base: core::ptr::NonNull<u8>, length: usize) -> Self {
        debug_assert!(base.cast::<u64>().is_aligned());
        let capacity = length.checked_ilog2().map_or(0, |log| 1 << log);
        Self {
            base,
            capacity,
            memory: core::marker::PhantomData,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Where `length` bytes at `offset` begin; `None` if they are not all inside.
    pub(super) fn pointer(&self, offset: u64, length: usize) -> Option<core::ptr::NonNull<u8>> {
        if offset.checked_add(length as u64)? > self.capacity {
            return None;
        }
        // SAFETY: the offset lies inside the allocation, as just checked.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// Copies `bytes` to `offset`; false if they are not all inside.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.pointer(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: source and target have this length; `bytes` cannot overlap memory to which no reference exists.
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        true
    }

    /// Copies the bytes at `offset` to `into`; false if they are not all inside.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.pointer(offset, into.len()) else {
            return false;
        };
        // SAFETY: source and target have this length; `into` cannot overlap memory to which no reference exists.
        unsafe {
            from.as_ptr()
                .copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
        };
        true
    }

    /// Appends `length` bytes at `offset` to `into`; false if they are not all inside.
    pub(super) fn append_to(&self, offset: u64, length: usize, into: &mut Vec<u8>) -> bool {
        let Some(from) = self.pointer(offset, length) else {
            return false;
        };
        into.reserve(length);
        // SAFETY: the vector has room for `length` more bytes, which are all written before they count.
        unsafe {
            from.as_ptr()
                .copy_to_nonoverlapping(into.as_mut_ptr().add(into.len()), length);
            into.set_len(into.len() + length);
        }
        true
    }

    /// The header at `offset`, each byte read exactly once; all 0 if it is not inside.
    pub(super) fn header(&self, offset: u64) -> Header {
        let mut words = [0u64; UNIT / 8];
        if let Some(from) = self
            .pointer(offset, UNIT)
            .filter(|from| from.cast::<u64>().is_aligned())
        {
            let from = from.cast::<u64>();
            for (i, word) in words.iter_mut().enumerate() {
                // SAFETY: 64 bytes lie inside, aligned to 8. Volatile, so that what has been checked is what is used.
                *word = unsafe { from.add(i).read_volatile() };
            }
        }
        bytemuck::cast(words)
    }
}

/// Memory for a ring in a loom model.
#[cfg(loom)]
pub struct Cells(Box<[loom::cell::UnsafeCell<u64>]>);

// SAFETY: loom checks every access.
#[cfg(loom)]
unsafe impl Send for Cells {}
// SAFETY: loom checks every access.
#[cfg(loom)]
unsafe impl Sync for Cells {}

#[cfg(loom)]
impl Cells {
    /// `length` bytes, all 0.
    pub fn new(length: usize) -> Self {
        Self(
            (0..length / 8)
                .map(|_| loom::cell::UnsafeCell::new(0))
                .collect(),
        )
    }
}

/// The bytes of a ring in a loom model.
#[cfg(loom)]
#[derive(Clone, Copy)]
pub struct Arena<'a> {
    cells: &'a Cells,
}

#[cfg(loom)]
impl<'a> Arena<'a> {
    /// The arena of these cells.
    pub fn from_cells(cells: &'a Cells) -> Self {
        Self { cells }
    }

    pub(super) fn capacity(&self) -> u64 {
        (8 * self.cells.0.len())
            .checked_ilog2()
            .map_or(0, |log| 1 << log)
    }

    /// The cells of `length` bytes at `offset`: which cell, which bytes in it, which of the `length`.
    fn pieces(
        &self,
        offset: u64,
        length: usize,
    ) -> Option<
        impl Iterator<
            Item = (
                &loom::cell::UnsafeCell<u64>,
                core::ops::Range<usize>,
                core::ops::Range<usize>,
            ),
        >,
    > {
        let start = offset as usize;
        let end = start + length;
        (end as u64 <= self.capacity()).then(|| {
            (start / 8..end.div_ceil(8)).map(move |cell| {
                let (from, to) = (start.max(8 * cell), end.min(8 * cell + 8));
                let inner = from - 8 * cell..to - 8 * cell;
                (&self.cells.0[cell], inner, from - start..to - start)
            })
        })
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(pieces) = self.pieces(offset, bytes.len()) else {
            return false;
        };
        for (cell, inner, outer) in pieces {
            // SAFETY: the cell is only used in closures such as this one; loom checks the race.
            cell.with_mut(|cell| unsafe {
                bytemuck::bytes_of_mut(&mut *cell)[inner].copy_from_slice(&bytes[outer]);
            });
        }
        true
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(pieces) = self.pieces(offset, into.len()) else {
            return false;
        };
        for (cell, inner, outer) in pieces {
            // SAFETY: the cell is only used in closures such as this one; loom checks the race.
            cell.with(|cell| unsafe {
                into[outer].copy_from_slice(&(*cell).to_ne_bytes()[inner]);
            });
        }
        true
    }

    pub(super) fn append_to(&self, offset: u64, length: usize, into: &mut Vec<u8>) -> bool {
        let start = into.len();
        into.resize(start + length, 0);
        self.read(offset, &mut into[start..])
    }

    pub(super) fn header(&self, offset: u64) -> Header {
        let mut bytes = [0; UNIT];
        self.read(offset, &mut bytes);
        bytemuck::cast(bytes)
    }
}
