//! Ctrl-C and requests to end, while replicas run: the run is stopped in order, and nothing of it stays behind.

use std::thread;

use gradring::launch::Stopper;
use nix::sys::signal::{SigSet, Signal};

/// As long as this lives, the signals that ask this process to end go to a run instead.
///
/// They are blocked in this thread, and in those that it makes later, and one thread of their own waits for them. (The
/// replicas do not inherit that: the launcher starts them with nothing blocked.)
pub(crate) struct Forwarding(SigSet);

impl Forwarding {
    /// `None` if the system does not allow it: the signals then end this process, and with it, less tidily, the run.
    pub(crate) fn begin(run: Stopper) -> Option<Self> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
            .into_iter()
            .collect();
        signals.thread_block().ok()?;
        thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                run.stop(signal as i32);
            }
        });
        Some(Self(signals))
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        // Whatever comes from now on finds this thread ready for it, and ends the process.
        let _ = self.0.thread_unblock();
    }
}
