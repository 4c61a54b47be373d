//! Life tokens: the kernel writes into a word when the process that holds it dies.
//!
//! A token is one u32 in the segment: 0 when nobody holds it, the thread id of its holder, or FUTEX_OWNER_DIED. The
//! holder is a thread that does nothing else: it registers a robust list (`set_robust_list(2)`) with this one word, and
//! whatever ends the thread without a word (a signal, `exit`, `abort`, `exec`) makes the kernel mark the word, before it
//! takes the process's memory apart. So death is seen within a millisecond, of a large process too, by one load, and
//! neither a forked child that lives on nor a pid that is used again can hide it.
//!
//! The list's head and node are private memory; the segment holds no pointer, so whatever is scribbled into it leads
//! nobody astray. (A robust pthread mutex keeps its list in the shared memory itself, and makes its checker its owner.)
//!
//! In a replica the same thread sleeps on the lifeline, a pipe of which only the launcher has the other end: when the
//! launcher is gone, whatever the replica does, the process kills itself.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};

use super::descriptor::Watched;
use super::lines::RankIdentity;
use super::segment::Segment;
use super::sync::{AtomicU32, Ordering};

/// At least so often the engine thread looks around although nothing has woken it.
const SLICE: Duration = Duration::from_secs(1);
/// How long [`Keeper::leave`] waits for its thread, which needs at most a slice.
const PATIENCE: Duration = Duration::from_secs(3);
/// The thread's stack: it calls a handful of functions.
const STACK: usize = 128 << 10;

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Nobody has come, or the holder has left in order.
    Absent,
    /// The holder lives.
    Alive {
        /// Its engine thread, in its pid namespace.
        tid: u32,
    },
    /// The holder died without leaving. Who it was is in the [`RankIdentity`].
    Dead,
}

/// What a token says: one Acquire load. Whoever sees the end sees what the holder published before.
#[inline]
pub fn look(word: &AtomicU32) -> Life {
    let word = word.load(Ordering::Acquire);
    if word & libc::FUTEX_OWNER_DIED != 0 {
        return Life::Dead;
    }
    match word & libc::FUTEX_TID_MASK {
        0 => Life::Absent,
        tid => Life::Alive { tid },
    }
}

/// Whose token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A rank's.
    Rank(usize),
    /// The launcher's.
    Launcher,
}

/// The parked engine thread that holds a token.
///
/// Dropped, it leaves; a forked child that drops its copy changes nothing.
#[derive(Debug)]
pub struct Keeper {
    parked: Arc<Parked>,
    thread: Option<JoinHandle<()>>,
    /// The process that started the thread.
    process: u32,
}

impl Keeper {
    /// Starts the engine thread; it holds the token when this returns.
    ///
    /// `lifeline` is the reading end of a pipe or a socket; when all other ends are closed, this process is killed with
    /// SIGKILL. The thread blocks all signals, so it never runs a handler.
    ///
    /// # Errors
    /// `InvalidInput`: no such rank. `AlreadyExists`: somebody holds or held the token. Else what the system says of the
    /// thread or its socket pair.
    pub fn start(
        segment: Arc<Segment>,
        holder: Holder,
        lifeline: Option<OwnedFd>,
    ) -> io::Result<Keeper> {
        if let Holder::Rank(rank) = holder
            && rank >= segment.world_size()
        {
            let why = format!("rank {rank} of {}", segment.world_size());
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        if let Some(lifeline) = &lifeline {
            // It is this process's own; programs that the user starts need not hold it.
            // SAFETY: an open descriptor; F_SETFD sets a flag.
            unsafe { libc::fcntl(lifeline.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        let (waker, wakened) = UnixStream::pair()?;
        let parked = Arc::new(Parked {
            segment,
            holder,
            lifeline: lifeline.map(Watched::new).transpose()?,
            waker: Watched::new(waker.into())?,
            wakened: Watched::new(wakened.into())?,
            leaving: AtomicBool::new(false),
            ended: Mutex::new(false),
            change: Condvar::new(),
            process: std::process::id(),
        });
        let (report, reported) = mpsc::sync_channel(1);
        let body = {
            let parked = Arc::clone(&parked);
            move || parked.run(&report)
        };
        // The thread inherits the mask, so there is no moment in which it could run a handler.
        let former = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let spawned = thread::Builder::new()
            .name("gradring-life".to_owned())
            .stack_size(STACK)
            .spawn(body);
        // A mask that the system gave out is one that it takes.
        let _ = former.thread_set_mask();
        let thread = spawned?;
        let silent = |_| Err(io::Error::other("the engine thread ended before it began"));
        match reported.recv().unwrap_or_else(silent) {
            Ok(()) => Ok(Keeper {
                parked,
                thread: Some(thread),
                process: std::process::id(),
            }),
            Err(error) => {
                // It holds nothing: the word is somebody else's, and stays as it is.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Gives the token back in order: word 0, thread ended.
    ///
    /// Takes microseconds; up to a second if the user has closed the thread's descriptors.
    pub fn leave(self) {
        // Drop does it.
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.parked.dismiss();
        if self.parked.wait_for_the_end(PATIENCE) {
            // Nothing is left for it to do but to return.
            let _ = thread.join();
        }
        // Else it goes on alone, and holds the segment until it ends.
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            self.end();
        } else {
            // There is no such thread in a forked child.
            std::mem::forget(self.thread.take());
        }
    }
}

/// What the engine thread and its keeper share.
#[derive(Debug)]
struct Parked {
    segment: Arc<Segment>,
    holder: Holder,
    lifeline: Option<Watched>,
    /// A pair of sockets, not a pipe: writing to one whose other end is closed raises no signal.
    waker: Watched,
    wakened: Watched,
    /// Set by the keeper (Release, under the lock of `ended`), read by the thread (Acquire).
    leaving: AtomicBool,
    ended: Mutex<bool>,
    change: Condvar,
    process: u32,
}

impl Parked {
    fn word(&self) -> &AtomicU32 {
        match self.holder {
            Holder::Rank(rank) => &self.segment.rank(rank).life,
            Holder::Launcher => self.segment.launcher_life(),
        }
    }

    fn identity(&self) -> &RankIdentity {
        match self.holder {
            Holder::Rank(rank) => &self.segment.rank(rank).identity,
            Holder::Launcher => &self.segment.launcher().identity,
        }
    }

    /// The engine thread.
    fn run(&self, report: &SyncSender<io::Result<()>>) {
        // The keeper waits for the report.
        let _ = match self.take() {
            Err(error) => report.send(Err(error)),
            Ok(list) => {
                let reported = report.send(Ok(()));
                self.rest();
                // The word is 0 by now. Once the segment is unmapped its address may be anything.
                list.withdraw();
                reported
            }
        };
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.change.notify_all();
    }

    /// Makes this thread the holder: first the list, then the word, so that there is no moment in which the word names a
    /// thread whose death the kernel would not report.
    fn take(&self) -> io::Result<RobustList> {
        let list = RobustList::register(self.word())?;
        // SAFETY: gettid has no arguments and always succeeds.
        let tid = unsafe { libc::gettid() } as u32;
        let free = self.word().load(Ordering::Relaxed) == 0;
        if free {
            let identity = self.identity();
            identity.pid.store(std::process::id(), Ordering::Relaxed);
            identity.tid.store(tid, Ordering::Relaxed);
        }
        // SYNC POINT: publishes pid and tid to whoever sees the token (Release here, Acquire in `look`).
        let taken = free
            && self
                .word()
                .compare_exchange(0, tid, Ordering::Release, Ordering::Relaxed)
                .is_ok();
        if taken {
            return Ok(list);
        }
        list.withdraw();
        Err(io::Error::new(
            ErrorKind::AlreadyExists,
            format!("the life token of {:?} is taken", self.holder),
        ))
    }

    /// Sleeps until dismissed.
    fn rest(&self) {
        let mut wakeable = true;
        while !self.leaving.load(Ordering::Acquire) {
            let wakened = self.wakened.get().filter(|_| wakeable);
            let lifeline = self.lifeline.as_ref().and_then(Watched::get);
            if wakened.is_none() && lifeline.is_none() {
                // The user has closed them. What the lifeline would have said the launcher's token says too.
                self.sleep();
            } else {
                let [by_waker, by_lifeline] = poll(
                    [(wakened, libc::POLLIN), (lifeline, 0)],
                    SLICE.as_millis() as libc::c_int,
                );
                // Only a dismissal is ever sent; anything else would come again at once.
                wakeable &= by_waker == 0;
                if by_lifeline & libc::POLLHUP != 0 && self.launcher_hung_up() {
                    kill_this_process();
                }
            }
            if self.lifeline.as_ref().is_some_and(|l| l.get().is_none())
                && look(self.segment.launcher_life()) == Life::Dead
            {
                kill_this_process();
            }
        }
    }

    /// Sleeps a slice, or until dismissed.
    fn sleep(&self) {
        let guard = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.leaving.load(Ordering::Acquire) {
            drop(self.change.wait_timeout(guard, SLICE));
        }
    }

    /// Looks once more, now that the number has been found to be ours before and after: the hang-up of a file that the
    /// user opened in its place is no reason to die.
    fn launcher_hung_up(&self) -> bool {
        let lifeline = self.lifeline.as_ref();
        let ours = || lifeline.and_then(Watched::get);
        let before = ours();
        let [found] = poll([(before, 0)], 0);
        before.is_some() && ours() == before && found & libc::POLLHUP != 0
    }

    /// Word 0, and the thread told to end.
    fn dismiss(&self) {
        // SYNC POINT: whoever sees the rank gone sees all that it published (Release here, Acquire in `look`).
        self.word().store(0, Ordering::Release);
        {
            let _guard = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            self.leaving.store(true, Ordering::Release);
        }
        self.change.notify_all();
        if let Some(waker) = self.waker.get() {
            // SAFETY: one byte is read from a literal; the descriptor was found to be ours. Without the byte the thread
            // looks at `leaving` at the end of its slice.
            unsafe {
                libc::send(
                    waker,
                    b"!".as_ptr().cast(),
                    1,
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                )
            };
        }
    }

    fn wait_for_the_end(&self, patience: Duration) -> bool {
        let guard = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = self
            .change
            .wait_timeout_while(guard, patience, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner);
        *ended
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            self.waker.close();
            self.wakened.close();
            if let Some(lifeline) = &self.lifeline {
                lifeline.close();
            }
        }
    }
}

/// poll(2) on descriptors that may be missing; what it found of each, 0 for nothing.
fn poll<const N: usize>(
    descriptors: [(Option<i32>, libc::c_short); N],
    milliseconds: libc::c_int,
) -> [libc::c_short; N] {
    let mut asked = descriptors.map(|(number, events)| libc::pollfd {
        // poll skips negative numbers.
        fd: number.unwrap_or(-1),
        events,
        revents: 0,
    });
    // SAFETY: N entries, writable. A number that has been closed meanwhile is reported, not used.
    let found = unsafe { libc::poll(asked.as_mut_ptr(), N as libc::nfds_t, milliseconds) };
    if found <= 0 {
        return [0; N];
    }
    asked.map(|entry| entry.revents)
}

/// Ends the process as if from outside, and leaves no choice to handlers or destructors.
fn kill_this_process() -> ! {
    // SAFETY: a signal to ourselves.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The first process of a pid namespace is immune to its own signals.
    // SAFETY: ends the process.
    unsafe { libc::_exit(128 + libc::SIGKILL) }
}

/// An entry of the kernel's list: `struct robust_list`.
#[repr(C)]
struct Node {
    next: *mut Node,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Node,
    /// From an entry to its futex word.
    futex_offset: libc::c_long,
    pending: *mut Node,
}

/// This thread's robust list with one word, and the list that the C library had registered before.
struct RobustList {
    former: *mut Head,
}

impl RobustList {
    /// Tells the kernel to mark `word` if it names this thread when the thread ends.
    ///
    /// From here on the thread must not lock a robust pthread mutex: the C library's list is no longer looked at.
    fn register(word: &AtomicU32) -> io::Result<RobustList> {
        let mut former: *mut Head = ptr::null_mut();
        let mut length = 0_usize;
        // SAFETY: both are writable; 0 asks about this thread.
        let known = unsafe {
            libc::syscall(
                libc::SYS_get_robust_list,
                0,
                &raw mut former,
                &raw mut length,
            )
        };
        if known != 0 {
            return Err(io::Error::last_os_error());
        }
        // Never freed: the kernel reads them when the thread ends, whenever that is.
        let node = Box::into_raw(Box::new(Node {
            next: ptr::null_mut(),
        }));
        let head = Box::into_raw(Box::new(Head {
            list: Node { next: node },
            futex_offset: (word.as_ptr().addr()).wrapping_sub(node.addr()) as libc::c_long,
            pending: ptr::null_mut(),
        }));
        // SAFETY: both were made above and nobody else has them. The list is a ring that ends at its head.
        unsafe { (*node).next = head.cast() };
        // SAFETY: a valid list that lives for ever. The kernel writes to the word only while it names this thread, and
        // whoever stores the thread's id there holds the segment until the word is 0 or the thread has ended.
        let set = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(RobustList { former })
    }

    /// Gives the C library its list back.
    fn withdraw(self) {
        // SAFETY: what the kernel had before, for this thread.
        unsafe { libc::syscall(libc::SYS_set_robust_list, self.former, size_of::<Head>()) };
    }
}
