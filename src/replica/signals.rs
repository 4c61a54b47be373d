//! SIGTERM and SIGINT become flags, for whoever looks at flags.
//!
//! The handlers only count. What they have counted since a replica joined is raised with its next operation. They are
//! installed once, call what was installed before them, and stay; as long as no replica of this process [looks at
//! stops](Listener), a signal does what it would do without them. A signal that the process was started to ignore stays
//! ignored.

use super::flags::Flags;
use signal_hook::low_level::{emulate_default_handler, register};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many replicas of this process look at stops.
static LISTENERS: AtomicU32 = AtomicU32::new(0);
/// The process that installed the handlers: its forked children have copies, and no replica.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// How often each signal has come.
static CAME: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
/// How many SIGINT had come when somebody began to look at stops.
static LISTENED: AtomicU32 = AtomicU32::new(0);
/// When the first SIGINT since then came.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
/// A second SIGINT within so many milliseconds is the first one's echo.
pub(crate) const ECHO: u64 = 100;
/// Whether the handlers are installed.
static INSTALLED: Mutex<bool> = Mutex::new(false);

const SIGNALS: [(i32, Flags); 2] = [
    (libc::SIGTERM, Flags::TERMINATE),
    (libc::SIGINT, Flags::INTERRUPT),
];

/// Installs the handlers, unless they are.
pub(crate) fn install() -> std::io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    OWNER.store(std::process::id(), Ordering::SeqCst);
    for (index, (signal, _)) in SIGNALS.into_iter().enumerate() {
        let Some(is_default) = disposition(signal)? else {
            continue;
        };
        // SAFETY: `came` is async-signal-safe: atomics, and what emulates a default action, which is made for handlers.
        unsafe { register(signal, move || came(index, signal, is_default)) }?;
    }
    *installed = true;
    Ok(())
}

/// Whether a signal's action is the default one; `None` where it is ignored.
pub(crate) fn disposition(signal: i32) -> std::io::Result<Option<bool>> {
    // SAFETY: all-zero is a value of this plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; `action` is valid for writes and outlives the call.
    if unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok((action.sa_sigaction != libc::SIG_IGN).then_some(action.sa_sigaction == libc::SIG_DFL))
}

/// In a handler. The handler that was there before has been called already.
fn came(index: usize, signal: i32, was_default: bool) {
    let own = std::process::id() == OWNER.load(Ordering::SeqCst);
    let listeners = LISTENERS.load(Ordering::SeqCst);
    let before = CAME[index].fetch_add(1, Ordering::SeqCst);
    // A second Ctrl-C ends the program, as people expect it; a second SIGTERM says nothing new, nor does the echo of a
    // Ctrl-C that reached this process both from the terminal and from whoever passes it on.
    let insists = signal == libc::SIGINT && {
        let (now, first) = (milliseconds(), INTERRUPTED.load(Ordering::SeqCst));
        let is_second = before != LISTENED.load(Ordering::SeqCst);
        if !is_second {
            INTERRUPTED.store(now, Ordering::SeqCst);
        }
        is_second && now.saturating_sub(first) >= ECHO
    };
    if was_default && (listeners == 0 || insists || !own) {
        let _ = emulate_default_handler(signal);
    }
}

/// Of a clock that never goes back. Async-signal-safe.
pub(crate) fn milliseconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writes and outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// What has come when a replica joined. Later signals are its flags.
#[derive(Debug)]
pub(crate) struct Heard([u32; 2]);

impl Heard {
    pub(crate) fn now() -> Self {
        Self([0, 1].map(|index| CAME[index].load(Ordering::SeqCst)))
    }

    /// The flags of the signals that have come since.
    pub(crate) fn since(&self) -> Flags {
        let mut flags = Flags::NONE;
        for (index, (_, flag)) in SIGNALS.into_iter().enumerate() {
            if CAME[index].load(Ordering::Relaxed) != self.0[index] {
                flags |= flag;
            }
        }
        flags
    }
}

/// While it lives, this process looks at stops: signals are flags.
#[derive(Debug)]
pub(crate) struct Listener(());

impl Listener {
    pub(crate) fn new() -> Self {
        if LISTENERS.load(Ordering::SeqCst) == 0 {
            LISTENED.store(CAME[1].load(Ordering::SeqCst), Ordering::SeqCst);
        }
        LISTENERS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::SeqCst);
    }
}
