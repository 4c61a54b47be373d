//! A wake-up that `poll` can wait for, and that a signal handler may give.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Set or not set, as an eventfd.
#[derive(Debug)]
pub(super) struct Event(OwnedFd);

impl Event {
    pub(super) fn new() -> io::Result<Event> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made this descriptor, and nobody else has it.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Whoever waits for it goes on. Async-signal-safe, errno apart.
    pub(super) fn set(&self) {
        let one = 1u64.to_ne_bytes();
        // The only failure is a counter at its end, and then the event is set already.
        // SAFETY: the buffer is 8 bytes long and outlives the call.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Not set until the next [`set`](Self::set).
    pub(super) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is 8 bytes long and outlives the call. It does not block: EFD_NONBLOCK.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the descriptors can be read (or is at its end), or `limit` has passed; which ones can.
/// An interrupted wait is a wait in which nothing came.
pub(super) fn wait(fds: &[BorrowedFd<'_>], limit: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    let timeout = match limit {
        None => PollTimeout::NONE,
        // Rounded up: rounded down, the last millisecond would be spent in a busy loop.
        Some(limit) => PollTimeout::try_from(limit.saturating_add(Duration::from_micros(999)))
            .unwrap_or(PollTimeout::MAX),
    };
    match poll(&mut polled, timeout) {
        Ok(_) => Ok(polled.iter().map(|fd| fd.any().unwrap_or(true)).collect()),
        Err(nix::errno::Errno::EINTR) => Ok(vec![false; fds.len()]),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_event_is_seen_until_it_is_cleared() {
        let event = Event::new().unwrap();
        let other = Event::new().unwrap();
        let fds = [event.as_fd(), other.as_fd()];
        assert_eq!(wait(&fds, Some(Duration::ZERO)).unwrap(), [false, false]);
        event.set();
        event.set();
        assert_eq!(wait(&fds, None).unwrap(), [true, false]);
        event.clear();
        assert_eq!(wait(&fds, Some(Duration::ZERO)).unwrap(), [false, false]);
    }
}
