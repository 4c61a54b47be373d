//! Descriptors in a process that is not ours.
//!
//! A trainer may close descriptors that it never opened (`closefrom(3)` in a daemon, a library that tidies up before
//! `exec`), and the numbers are then given to files of its own. So nothing here is read, written, polled or closed by
//! number before that number was found to stand for the same file as at first.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use nix::sys::stat::fstat;

/// A file, for good: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    pub(crate) fn new(device: u64, number: u64) -> Self {
        Self { device, number }
    }
}

/// A descriptor that is ours as long as nobody else closes it.
#[derive(Debug)]
pub(crate) struct Watched {
    number: RawFd,
    inode: Inode,
}

impl Watched {
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&descriptor)?;
        Ok(Self {
            inode: Inode::new(stat.st_dev, stat.st_ino),
            number: descriptor.into_raw_fd(),
        })
    }

    pub(crate) fn inode(&self) -> Inode {
        self.inode
    }

    /// The number, if it still stands for our file.
    ///
    /// Another thread may close it before the caller uses it: what remains of the danger is that instant.
    pub(crate) fn get(&self) -> Option<RawFd> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` is writable for its size; any descriptor number may be asked about.
        let known = unsafe { libc::fstat(self.number, stat.as_mut_ptr()) } == 0;
        if !known {
            return None;
        }
        // SAFETY: fstat returned 0, so it filled the structure.
        let stat = unsafe { stat.assume_init() };
        (Inode::new(stat.st_dev, stat.st_ino) == self.inode).then_some(self.number)
    }

    /// Closes the descriptor if it is still ours.
    pub(crate) fn close(&self) {
        if let Some(number) = self.get() {
            // SAFETY: the number stands for the file that we opened; whoever closes it twice finds another or none.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// Opens the descriptors 0, 1 and 2 on /dev/null where they are closed.
///
/// The `shared_memory` crate takes number 0 for "no descriptor", and a print of the user's would go into the segment if
/// it had number 1 or 2.
pub(crate) fn open_standard_descriptors() -> io::Result<()> {
    loop {
        let missing = (0..3).any(|number| {
            // SAFETY: F_GETFD reads a flag of any descriptor number.
            unsafe { libc::fcntl(number, libc::F_GETFD) == -1 }
        });
        if !missing {
            return Ok(());
        }
        let null = File::options().read(true).write(true).open("/dev/null")?;
        if null.as_raw_fd() > 2 {
            // Another thread was quicker.
            continue;
        }
        let number = null.into_raw_fd();
        // Like any other standard descriptor it passes to the programs that the user starts.
        // SAFETY: we have just opened the number; F_SETFD sets a flag.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_not_ours_once_its_number_stands_for_another_file() {
        let watched = Watched::new(tempfile::tempfile().unwrap().into()).unwrap();
        assert_eq!(watched.get(), Some(watched.number));
        let other = tempfile::tempfile().unwrap();
        // SAFETY: both numbers are ours.
        let duplicate = unsafe { libc::dup2(other.as_raw_fd(), watched.number) };
        assert_eq!(duplicate, watched.number);
        assert_eq!(watched.get(), None);
        watched.close();
        // SAFETY: the number is the duplicate made above, if nobody has closed it.
        let duplicate = File::from(unsafe { OwnedFd::from_raw_fd(duplicate) });
        assert!(
            duplicate.metadata().is_ok(),
            "closed although it was another file"
        );
    }
}
