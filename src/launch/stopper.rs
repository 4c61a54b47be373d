//! How a run is asked to stop from outside: from a signal handler, or from another thread.

use signal_hook::low_level::{emulate_default_handler, register};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use super::event::Event;
use crate::replica::{ECHO, disposition, milliseconds};

/// Asks a run to stop; made by [`Launch::stopper`](super::Launch::stopper), cloned and sent at will.
///
/// The first [`stop`](Self::stop) forwards its signal to every replica (those that look at stops agree, finish the step and
/// make a checkpoint) and lets the grace time run; no new generation begins from then on. A second one kills
/// them at once, and so does the first one while the run is ending because of a failure. (Only a second one that is not
/// `SIGINT` and comes within a quarter of a second is taken for an echo: `timeout` sends its signal twice.) After the run
/// it does nothing.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The first signal. Written once, 0 before.
    first: AtomicI32,
    /// The last one so far.
    last: AtomicI32,
    /// How often `stop` was called.
    asked: AtomicU32,
    /// Made by the run, never closed while a handler could write to it.
    event: OnceLock<Event>,
    /// The run has ended.
    over: AtomicBool,
}

impl Stopper {
    pub(super) fn new() -> Stopper {
        Stopper(Arc::new(Shared {
            first: AtomicI32::new(0),
            last: AtomicI32::new(0),
            asked: AtomicU32::new(0),
            event: OnceLock::new(),
            over: AtomicBool::new(false),
        }))
    }

    /// Asks for a stop by `signal` (`SIGINT`, `SIGTERM`, ..). Async-signal-safe; errno is as before.
    ///
    /// A number that is not a signal's counts as `SIGTERM`.
    pub fn stop(&self, signal: i32) {
        let signal = if (1..=64).contains(&signal) {
            signal
        } else {
            libc::SIGTERM
        };
        let shared = &*self.0;
        let _ = shared
            .first
            .compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        shared.last.store(signal, Ordering::SeqCst);
        shared.asked.fetch_add(1, Ordering::SeqCst);
        // Against the fence in `listen`: either this call sees the event, or the run sees the count.
        fence(Ordering::SeqCst);
        if let Some(event) = shared.event.get() {
            // SAFETY: errno's address is this thread's own.
            let errno = unsafe { *libc::__errno_location() };
            event.set();
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }
    }

    /// Lets the signals that ask this process to end stop the run instead, until it has ended: Ctrl-C (`SIGINT`), `SIGTERM`,
    /// `SIGHUP` and `SIGQUIT`. Of two Ctrl-C within a tenth of a second the second is an echo. What was installed for them before is called too; those that this process was started to
    /// ignore (by `nohup`, or in the background of a script) stay ignored.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let launch = gradring::Launch::this_program().replicas(2).checkpoint_directory("checkpoints");
    /// launch.stopper().forward_signals()?;
    /// let outcome = launch.run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the system says.
    pub fn forward_signals(&self) -> io::Result<()> {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            let Some(is_default) = disposition(signal)? else {
                continue;
            };
            let stopper = self.clone();
            let last = AtomicU64::new(0);
            let came = move || {
                let now = milliseconds();
                let before = last.swap(now, Ordering::SeqCst);
                if signal == libc::SIGINT && before > 0 && now.saturating_sub(before) < ECHO {
                    return;
                }
                if !stopper.0.over.load(Ordering::SeqCst) {
                    stopper.stop(signal);
                } else if is_default {
                    let _ = emulate_default_handler(signal);
                }
            };
            // SAFETY: `stop` and the emulation of a default action are async-signal-safe.
            unsafe { register(signal, came) }?;
        }
        Ok(())
    }

    /// The run has ended: signals do again what they did before it.
    pub(super) fn over(&self) {
        self.0.over.store(true, Ordering::SeqCst);
    }

    /// From now on the event is set by every `stop`. Look at [`asked`](Self::asked) afterwards.
    pub(super) fn listen(&self) -> io::Result<&Event> {
        if self.0.event.get().is_none() {
            let _ = self.0.event.set(Event::new()?);
        }
        fence(Ordering::SeqCst);
        self.0
            .event
            .get()
            .ok_or_else(|| io::Error::other("no event"))
    }

    /// How often a stop was asked for.
    pub(super) fn asked(&self) -> u32 {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// The first signal and the last one so far, once a stop was asked for.
    pub(super) fn signals(&self) -> (i32, i32) {
        (
            self.0.first.load(Ordering::SeqCst),
            self.0.last.load(Ordering::SeqCst),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::event::wait;
    use std::os::fd::AsFd;

    #[test]
    fn the_first_signal_stays_and_every_call_is_counted() {
        let stopper = Stopper::new();
        stopper.clone().stop(libc::SIGINT);
        let event = stopper.listen().unwrap();
        assert_eq!(
            (stopper.asked(), stopper.signals()),
            (1, (libc::SIGINT, libc::SIGINT))
        );
        stopper.stop(libc::SIGTERM);
        assert_eq!(
            (stopper.asked(), stopper.signals()),
            (2, (libc::SIGINT, libc::SIGTERM))
        );
        assert_eq!(wait(&[event.as_fd()], None).unwrap(), [true]);
    }

    #[test]
    fn what_is_no_signal_counts_as_sigterm() {
        let stopper = Stopper::new();
        stopper.stop(-7);
        assert_eq!((stopper.asked(), stopper.signals().0), (1, libc::SIGTERM));
    }
}
