//! A word that threads of several processes can sleep on.

use super::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// A u32 that threads of several processes can sleep on (`futex(2)`, shared, not private).
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | whoever wakes | the sleeper, and the kernel when it falls asleep | Relaxed: [`Bells`](super::bell::Bells) has the fences | 12 |
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Futex(AtomicU32);

/// The kernel's part in loom's models: it compares the word and puts the thread to sleep in one step. It has no timeout,
/// so that a lost wake-up is a deadlock, which loom reports.
#[cfg(loom)]
pub struct Futex {
    word: AtomicU32,
    kernel: loom::sync::Mutex<()>,
    sleepers: loom::sync::Condvar,
}

#[cfg(not(loom))]
impl Futex {
    /// A word that holds 0.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The word.
    pub fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds 1, so that nobody falls asleep any more who has read the word before. It may wrap: a sleeper is fooled only
    /// by exactly 2^32 additions, and only until its timeout.
    pub fn bump(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Sleeps while the word is `expected`, at most `timeout`. Returns for any reason or none: woken, another value,
    /// timeout, a signal.
    pub fn wait(&self, expected: u32, timeout: Duration) {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            // A C long holds every number below 10^9.
            tv_nsec: timeout.subsec_nanos() as libc::c_long,
        };
        // SAFETY: the word lives as long as `self`, the timespec until the call returns; the kernel only reads both.
        // FUTEX_WAIT without FUTEX_PRIVATE_FLAG finds sleepers of all processes that map the word.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAIT,
                expected,
                &raw const timeout,
                core::ptr::null::<u32>(),
                0u32,
            );
        }
    }

    /// Wakes everybody who sleeps on the word, in all processes.
    pub fn wake_all(&self) {
        // SAFETY: the word lives as long as `self`; FUTEX_WAKE uses its address only.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
                core::ptr::null::<libc::timespec>(),
                core::ptr::null::<u32>(),
                0u32,
            );
        }
    }
}

#[cfg(loom)]
impl Default for Futex {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(loom)]
impl Futex {
    /// A word that holds 0.
    pub fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            kernel: loom::sync::Mutex::new(()),
            sleepers: loom::sync::Condvar::new(),
        }
    }

    /// The word.
    pub fn load(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    /// Adds 1.
    pub fn bump(&self) {
        self.word.fetch_add(1, Ordering::Relaxed);
    }

    /// Sleeps while the word is `expected`, without a timeout.
    pub fn wait(&self, expected: u32, _timeout: Duration) {
        let kernel = self.kernel.lock().expect("no model panics in the kernel");
        if self.word.load(Ordering::Relaxed) == expected {
            drop(self.sleepers.wait(kernel));
        }
    }

    /// Wakes everybody.
    pub fn wake_all(&self) {
        let kernel = self.kernel.lock().expect("no model panics in the kernel");
        self.sleepers.notify_all();
        drop(kernel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    const _: () = assert!(size_of::<Futex>() == 4 && align_of::<Futex>() == 4);

    #[test]
    fn a_sleeper_is_woken_by_another_thread() {
        let futex = Futex::new();
        let woken = AtomicBool::new(false);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while futex.load() == 0 {
                    futex.wait(0, Duration::from_secs(60));
                }
                woken.store(true, Ordering::Release);
            });
            futex.bump();
            futex.wake_all();
        });
        assert!(woken.load(Ordering::Acquire));
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "woken, not timed out"
        );
    }

    #[test]
    fn nobody_sleeps_on_a_word_that_has_changed() {
        let futex = Futex::new();
        futex.bump();
        let start = Instant::now();
        futex.wait(0, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_sleep_ends_at_its_timeout() {
        let futex = Futex::new();
        let start = Instant::now();
        futex.wait(0, Duration::from_millis(5));
        // A signal may end it early; nothing may make it last.
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(futex.load(), 0);
    }
}
