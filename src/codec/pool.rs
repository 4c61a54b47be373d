//! A few threads that encode chunks at the same time.
//!
//! Not a general pool: it runs one batch at a time, one piece a thread, the caller's included, and needs no memory for it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// What a batch runs: called once for each piece's number.
type Work = *const (dyn Fn(usize) + Sync);

#[derive(Default)]
struct State {
    /// The batch under way.
    work: Option<Batch>,
    /// Pieces that no thread has taken yet: those below.
    left: usize,
    /// Pieces that have been taken and are not done.
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
    ended: bool,
}

#[derive(Clone, Copy)]
struct Batch(Work);

// SAFETY: the function is Sync, and `Pool::run` keeps it alive until all pieces are done.
unsafe impl Send for Batch {}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a piece to take, or an end.
    begun: Condvar,
    /// The last piece is done.
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes pieces until there are none.
    fn help<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(Batch(work)) = state.work
            && state.left > 0
        {
            state.left -= 1;
            state.running += 1;
            let piece = state.left;
            drop(state);
            // SAFETY: `Pool::run` returns only when no piece is left or running.
            let ended = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(piece) }));
            state = self.lock();
            state.running -= 1;
            if let Err(panic) = ended {
                state.panic = Some(panic);
            }
            if state.left == 0 && state.running == 0 {
                self.done.notify_one();
            }
        }
        state
    }
}

/// Threads that wait for batches. They end when it is dropped.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The process whose threads they are.
    pid: u32,
}

impl Pool {
    /// A pool in which `threads` threads work, the caller's one of them.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        let mut pool = Pool {
            shared: Arc::default(),
            threads: Vec::new(),
            pid: std::process::id(),
        };
        for number in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("gradring encode {number}"));
            pool.threads.push(builder.spawn(move || {
                let mut state = shared.lock();
                while !state.ended {
                    state = shared.help(state);
                    if !state.ended {
                        state = shared
                            .begun
                            .wait(state)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                }
            })?);
        }
        Ok(pool)
    }

    /// Whether its threads are there. A forked child has none, and one of them may have held the lock at that moment.
    fn is_own(&self) -> bool {
        std::process::id() == self.pid
    }

    /// How many threads work, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work` for each number below `pieces`, on all threads together, and returns when all are done. A panic in it
    /// goes on here.
    pub(crate) fn run(&mut self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        if !self.is_own() {
            (0..pieces).for_each(work);
            return;
        }
        let work: *const (dyn Fn(usize) + Sync + '_) = work;
        // SAFETY: only the lifetime differs. The pointer is not used after this call: it waits for all pieces, and takes
        // the batch away.
        let work = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Work>(work) };
        let mut state = self.shared.lock();
        state.work = Some(Batch(work));
        state.left = pieces;
        for _ in 1..pieces.min(self.threads()) {
            self.shared.begun.notify_one();
        }
        state = self.shared.help(state);
        while state.left > 0 || state.running > 0 {
            state = self
                .shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.work = None;
        let panic = state.panic.take();
        drop(state);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.is_own() {
            // It would wait for them for ever.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.shared.lock().ended = true;
        self.shared.begun.notify_all();
        for thread in self.threads.drain(..) {
            // A thread ends without a panic: pieces' panics are caught.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Pool;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_piece_of_every_batch_runs_once() {
        for threads in 1..5 {
            let mut pool = Pool::new(threads).unwrap();
            for pieces in [0, 1, 2, 3, 7, 100] {
                let runs: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                pool.run(pieces, &|piece| {
                    runs[piece].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_forked_child_works_alone_whatever_the_threads_were_about() {
        use nix::sys::wait::{WaitStatus, waitpid};
        use nix::unistd::{ForkResult, fork};
        let mut pool = Pool::new(3).unwrap();
        let shared = std::sync::Arc::clone(&pool.shared);
        let held = shared.lock();
        // SAFETY: the child allocates nothing, and ends without running anything of the parent's.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                // Ends a child that waits for a lock which nobody gives back.
                nix::unistd::alarm::set(20);
                let runs = [const { AtomicUsize::new(0) }; 5];
                pool.run(5, &|piece| {
                    runs[piece].fetch_add(1, Ordering::Relaxed);
                });
                let once = runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1);
                // SAFETY: ends this process.
                unsafe { libc::_exit(if once { 0 } else { 1 }) }
            }
            ForkResult::Parent { child } => {
                drop(held);
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            }
        }
    }

    #[test]
    fn a_panic_comes_back_and_the_pool_goes_on() {
        let mut pool = Pool::new(3).unwrap();
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.run(5, &|piece| assert_ne!(piece, 2));
        }));
        assert!(failed.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(4, &|piece| {
            sum.fetch_add(piece, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 6);
    }
}
