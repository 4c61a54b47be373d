//! The one object through which a process holds a segment's memory.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use shared_memory::Shmem;

use super::descriptor::{Inode, Watched};
use super::layout::PAGE;
use super::name::{Lock, inode, names, try_lock};

/// Says that a type can be a view of shared memory.
///
/// # Safety
/// Every bit pattern is a value, and every byte that is ever read or written lies in an atomic: other processes write
/// here at any time.
pub(crate) unsafe trait Shared {}

/// Proof that this process lives in a segment: a lock that ends with the process and with nothing else.
///
/// The lock belongs to an open file description of which no descriptor is left, only this mapping of one page. So it
/// survives that the user closes all descriptors; a forked child does not inherit the mapping (MADV_DONTFORK) and does
/// not keep the lock; `exec` and death of any kind end it. Only a child forked in the few microseconds in which the
/// descriptor is still open keeps the lock: then a dead segment is not swept, never a living one swept.
#[derive(Debug)]
pub(crate) struct Presence {
    page: NonNull<u8>,
}

impl Presence {
    /// Takes the lock on a description opened for this alone, and only then looks whether the name still stands for
    /// that file: a sweeper that was quicker has removed it, and one that comes later sees the lock. `None`: it has been
    /// removed, or a sweeper or another look is just at it; start over.
    ///
    /// The file must not be empty; the page is never touched. The caller closes the descriptor as soon as it can.
    pub(crate) fn establish(file: &File, name: &str) -> io::Result<Option<Presence>> {
        const LENGTH: NonZeroUsize = NonZeroUsize::new(PAGE).expect("a page is not empty");
        let (access, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice, which nobody reads: no reference into it exists.
        let page = unsafe { mmap(None, LENGTH, access, flags, file, 0) }?;
        let presence = Presence { page: page.cast() };
        // SAFETY: advice on the page mapped above.
        unsafe { madvise(page, PAGE, MmapAdvise::MADV_DONTFORK) }?;
        let lives = try_lock(file, Lock::Shared)? && names(name, inode(&file.metadata()?))?;
        Ok(lives.then_some(presence))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `establish` and nothing points into it.
        let unmapped = unsafe { munmap(self.page.cast(), PAGE) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A mapped segment.
///
/// `Send` and `Sync` although the crate's object is neither: that object is not used between the making and the dropping
/// of this one, and what lies behind the pointer is reached as [`Shared`] types only, or through raw pointers by the
/// rules of the rings, which hold between processes and so between threads.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    object: ManuallyDrop<Shmem>,
    presence: ManuallyDrop<Presence>,
    canary: Watched,
    /// The process that made this. In a forked child dropping does nothing.
    process: u32,
}

// SAFETY: see above; munmap and close may be called from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; all methods take atomics' references or copy a pointer.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes over the crate's object. `canary` is a descriptor of its own on the same file.
    pub(crate) fn new(object: Shmem, presence: Presence, canary: OwnedFd) -> io::Result<Self> {
        let base = NonNull::new(object.as_ptr())
            .filter(|base| base.addr().get().is_multiple_of(PAGE))
            .ok_or_else(|| io::Error::other("no mapping"))?;
        Ok(Self {
            base,
            length: object.len(),
            canary: Watched::new(canary)?,
            object: ManuallyDrop::new(object),
            presence: ManuallyDrop::new(presence),
            process: std::process::id(),
        })
    }

    /// The file.
    pub(crate) fn inode(&self) -> Inode {
        self.canary.inode()
    }

    /// The bytes from `offset` on, of which `length` exist.
    ///
    /// # Panics
    /// If they do not. Offsets come from a layout as long as the mapping.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length);
        assert!(inside, "{length} bytes at {offset} of {}", self.length);
        // SAFETY: within one mapping, as just checked.
        unsafe { self.base.add(offset) }
    }

    /// The `T`s that lie one after another at `offset`.
    ///
    /// # Panics
    /// If they are not inside, or not aligned.
    pub(crate) fn slice<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let length = count
            .checked_mul(size_of::<T>())
            .expect("a slice of the mapping");
        let first = self.bytes(offset, length).cast::<T>();
        assert!(first.is_aligned());
        // SAFETY: inside the mapping and aligned; `Shared` says that any bytes are a value and that writes of others
        // go to atomics; the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
    }

    /// The `T` at `offset`.
    ///
    /// # Panics
    /// As [`Mapping::slice`].
    pub(crate) fn get<T: Shared>(&self, offset: usize) -> &T {
        &self.slice(offset, 1)[0]
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return;
        }
        // The crate closes its descriptor by number. If our own is gone, somebody has closed them all, and that number
        // may be the user's file by now.
        if self.canary.get().is_some() {
            // SAFETY: dropped once, here; nothing borrows from it.
            unsafe { ManuallyDrop::drop(&mut self.object) };
            self.canary.close();
        } else {
            // SAFETY: the crate's mapping, whose object is forgotten; no reference into it outlives `self`.
            let unmapped = unsafe { munmap(self.base.cast(), self.length) };
            debug_assert!(unmapped.is_ok());
        }
        // Last: as long as anything of the segment is mapped, somebody lives there.
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.presence) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::name;
    use nix::fcntl::OFlag;
    use std::fs;

    /// A file in shared memory, under a name that is no segment's.
    struct Planted(String);

    impl Planted {
        fn new(test: &str) -> Self {
            let planted = Self(format!("/{test}-{}", std::process::id()));
            planted.plant();
            planted
        }

        fn path(&self) -> String {
            format!("{}{}", name::DIRECTORY, self.0)
        }

        fn plant(&self) {
            fs::write(self.path(), [0; PAGE]).unwrap();
        }

        fn open(&self) -> File {
            name::open(&self.0, OFlag::O_RDONLY).unwrap()
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            let _ = fs::remove_file(self.path());
        }
    }

    #[test]
    fn a_presence_is_a_lock_without_a_descriptor() {
        let planted = Planted::new("a_presence");
        let own = planted.open();
        let presence = Presence::establish(&own, &planted.0).unwrap().unwrap();
        drop(own);
        assert!(!try_lock(&planted.open(), Lock::Exclusive).unwrap());
        let second = Presence::establish(&planted.open(), &planted.0).unwrap();
        drop(presence);
        assert!(!try_lock(&planted.open(), Lock::Exclusive).unwrap());
        drop(second.unwrap());
        assert!(try_lock(&planted.open(), Lock::Exclusive).unwrap());
    }

    #[test]
    fn nobody_comes_to_live_where_a_sweeper_is_at_work() {
        let planted = Planted::new("nobody_comes");
        let sweeper = planted.open();
        assert!(try_lock(&sweeper, Lock::Exclusive).unwrap());
        assert!(
            Presence::establish(&planted.open(), &planted.0)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn nobody_comes_to_live_in_a_file_that_was_swept_before_the_lock() {
        let planted = Planted::new("was_swept");
        let own = planted.open();
        fs::remove_file(planted.path()).unwrap();
        assert!(Presence::establish(&own, &planted.0).unwrap().is_none());
        planted.plant();
        assert!(
            Presence::establish(&own, &planted.0).unwrap().is_none(),
            "another file"
        );
        assert!(
            Presence::establish(&planted.open(), &planted.0)
                .unwrap()
                .is_some()
        );
    }
}
