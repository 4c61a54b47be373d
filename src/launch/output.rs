//! What the replicas write: one thread for their standard output, one for their standard error, whole lines with a prefix.
//!
//! The supervising thread never writes. So a standard output that is slow, stopped or closed holds up the text, and the
//! replicas once their pipes are full, but never the watch over them.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::event::{Event, wait};
use super::lines::{Lines, Page, Tail};

/// What is read at once, in bytes.
const PIECE: usize = 64 * 1024;

/// Which of the two standard streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Out = 0,
    Err = 1,
}

/// Both threads, seen from the supervising one.
pub(super) struct Output {
    shared: Arc<Shared>,
}

struct Shared {
    /// The launcher's own lines, to be written to standard error.
    notices: Mutex<Vec<u8>>,
    /// No more waiting: what is in the pipes, and then the end.
    finish: AtomicBool,
    wake: [Event; 2],
    /// All pipes of a thread have ended.
    drained: [AtomicBool; 2],
    /// A thread has written its last.
    done: [AtomicBool; 2],
    /// `drained` or `done` have changed.
    changed: Event,
    /// The last lines of each rank's standard error.
    tails: Vec<Mutex<Tail>>,
}

/// A thread that panicked must not take the others with it: what it guarded is text.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Output {
    /// Starts both threads. `pipes`: standard output and standard error of each rank.
    pub(super) fn start(pipes: Vec<(OwnedFd, OwnedFd)>, prefix: bool) -> io::Result<Output> {
        let shared = Arc::new(Shared {
            notices: Mutex::default(),
            finish: AtomicBool::new(false),
            wake: [Event::new()?, Event::new()?],
            drained: [AtomicBool::new(false), AtomicBool::new(false)],
            done: [AtomicBool::new(false), AtomicBool::new(false)],
            changed: Event::new()?,
            tails: pipes.iter().map(|_| Mutex::default()).collect(),
        });
        // From here on dropping it ends the threads.
        let output = Output { shared };
        let mut of_out = Vec::with_capacity(pipes.len());
        let mut of_err = Vec::with_capacity(pipes.len());
        for (rank, (out, err)) in pipes.into_iter().enumerate() {
            let prefix = if prefix {
                format!("[{rank}] ").into_bytes()
            } else {
                Vec::new()
            };
            of_out.push(Source::new(rank, 2 * rank, prefix.clone(), out)?);
            of_err.push(Source::new(rank, 2 * rank + 1, prefix, err)?);
        }
        let page = Arc::new(Mutex::new(Page::default()));
        let other = if same_file(io::stdout().as_fd(), io::stderr().as_fd()) {
            Arc::clone(&page)
        } else {
            Arc::default()
        };
        output.thread("gradring-stdout", Kind::Out, of_out, page)?;
        output.thread("gradring-stderr", Kind::Err, of_err, other)?;
        Ok(output)
    }

    fn thread(
        &self,
        name: &str,
        kind: Kind,
        sources: Vec<Source>,
        page: Arc<Mutex<Page>>,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let collector = Collector {
            kind,
            sources,
            page,
            shared,
            closed: false,
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        // Not joined: it may hang in a write to somebody who has stopped reading. `done` tells.
        thread.spawn(move || collector.run()).map(drop)
    }

    /// Becomes readable when [`drained`](Self::drained) or [`done`](Self::done) may have changed.
    pub(super) fn changed(&self) -> &Event {
        &self.shared.changed
    }

    /// Nobody can write to the pipes any more, and all that was in them is written.
    pub(super) fn drained(&self) -> bool {
        self.shared
            .drained
            .iter()
            .all(|drained| drained.load(Ordering::Acquire))
    }

    /// Both threads have written their last.
    pub(super) fn done(&self) -> bool {
        self.shared
            .done
            .iter()
            .all(|done| done.load(Ordering::Acquire))
    }

    /// Writes what is in the pipes now, then closes them, whoever still holds their other ends.
    pub(super) fn finish(&self) {
        self.shared.finish.store(true, Ordering::Release);
        self.shared.wake.iter().for_each(Event::set);
    }

    /// A line of the launcher's own, on standard error.
    pub(super) fn say(&self, line: &str) {
        self.shared.say(line);
    }

    /// The last lines of a rank's standard error.
    pub(super) fn tail(&self, rank: usize) -> Vec<String> {
        self.shared
            .tails
            .get(rank)
            .map(|tail| lock(tail).lines())
            .unwrap_or_default()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn say(&self, line: &str) {
        let mut notices = lock(&self.notices);
        notices.extend_from_slice(line.as_bytes());
        notices.push(b'\n');
        drop(notices);
        self.wake[Kind::Err as usize].set();
    }
}

/// The launcher's end of one pipe.
struct Source {
    rank: usize,
    fd: OwnedFd,
    lines: Lines,
}

impl Source {
    fn new(rank: usize, stream: usize, prefix: Vec<u8>, fd: OwnedFd) -> io::Result<Source> {
        // SAFETY: fcntl takes no pointers here. The flag is this end's alone, the replica's end still blocks.
        let rc = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Source {
            rank,
            fd,
            lines: Lines::new(stream, prefix),
        })
    }

    /// The next bytes; 0 at the end, `None` if there are none now.
    fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            // SAFETY: the buffer is valid for writes of its length and outlives the call.
            let read = unsafe {
                libc::read(
                    self.fd.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                )
            };
            if let Ok(read) = usize::try_from(read) {
                return Some(read);
            }
            match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return None,
                _ => return Some(0),
            }
        }
    }

    /// How many bytes are in the pipe now.
    fn waiting(&self) -> usize {
        let mut count: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int, to `count`.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::FIONREAD, &mut count) };
        usize::try_from(count).unwrap_or(0)
    }
}

/// One of the two threads.
struct Collector {
    kind: Kind,
    sources: Vec<Source>,
    /// Shared with the other thread where both write to the same file.
    page: Arc<Mutex<Page>>,
    shared: Arc<Shared>,
    /// Nobody reads what is written here: it is thrown away, so that the replicas go on.
    closed: bool,
}

impl Collector {
    fn run(mut self) {
        // The program's handlers are not to run here, and a closed pipe is an error of the write, not a signal.
        let _ = nix::sys::signal::SigSet::all().thread_block();
        let mut buffer = vec![0; PIECE];
        while !self.shared.finish.load(Ordering::Acquire) {
            if self.sources.is_empty() {
                self.shared.drained[self.kind as usize].store(true, Ordering::Release);
                self.shared.changed.set();
            }
            let mut fds = vec![self.shared.wake[self.kind as usize].as_fd()];
            fds.extend(self.sources.iter().map(|source| source.fd.as_fd()));
            let Ok(ready) = wait(&fds, None) else {
                break;
            };
            if ready[0] {
                self.shared.wake[self.kind as usize].clear();
                self.notices();
            }
            for at in (0..self.sources.len()).rev().filter(|at| ready[at + 1]) {
                match self.sources[at].read(&mut buffer) {
                    None => {}
                    Some(0) => self.end(at),
                    Some(read) => self.feed(at, &buffer[..read]),
                }
            }
        }
        self.notices();
        while let Some(at) = self.sources.len().checked_sub(1) {
            // Only what is there already: somebody may go on writing for ever.
            let mut rest = self.sources[at].waiting();
            while rest > 0 {
                let room = rest.min(PIECE);
                match self.sources[at].read(&mut buffer[..room]) {
                    None | Some(0) => break,
                    Some(read) => {
                        rest -= read;
                        self.feed(at, &buffer[..read]);
                    }
                }
            }
            self.end(at);
        }
    }

    fn feed(&mut self, at: usize, bytes: &[u8]) {
        let source = &mut self.sources[at];
        if self.kind == Kind::Err
            && let Some(tail) = self.shared.tails.get(source.rank)
        {
            lock(tail).feed(bytes);
        }
        let page = Arc::clone(&self.page);
        let mut page = lock(&page);
        source.lines.feed(bytes, &mut page);
        self.write(&mut page);
    }

    fn end(&mut self, at: usize) {
        let mut source = self.sources.swap_remove(at);
        let page = Arc::clone(&self.page);
        let mut page = lock(&page);
        source.lines.end(&mut page);
        self.write(&mut page);
    }

    fn notices(&mut self) {
        if self.kind == Kind::Err {
            let notices = std::mem::take(&mut *lock(&self.shared.notices));
            let page = Arc::clone(&self.page);
            let mut page = lock(&page);
            Lines::new(usize::MAX, b"gradring: ".to_vec()).feed(&notices, &mut page);
            self.write(&mut page);
        }
    }

    fn write(&mut self, page: &mut Page) {
        if page.text.is_empty() {
            return;
        }
        let written = match self.kind {
            _ if self.closed => Ok(()),
            Kind::Out => {
                let mut file = io::stdout().lock();
                // What the program itself has begun to print comes first.
                file.flush()
                    .and_then(|()| write_all(file.as_fd(), &page.text))
            }
            Kind::Err => write_all(io::stderr().lock().as_fd(), &page.text),
        };
        page.text.clear();
        if let Err(error) = written {
            self.closed = true;
            if self.kind == Kind::Out && error.kind() != io::ErrorKind::BrokenPipe {
                let line =
                    format!("standard output: {error}: the replicas' output is lost from here on");
                self.shared.say(&line);
            }
        }
    }
}

/// However the thread ends: nobody waits for it any more.
impl Drop for Collector {
    fn drop(&mut self) {
        self.shared.drained[self.kind as usize].store(true, Ordering::Release);
        self.shared.done[self.kind as usize].store(true, Ordering::Release);
        self.shared.changed.set();
    }
}

fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(file, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(nix::errno::Errno::EINTR) => {}
            // Somebody made the file non-blocking for himself, and with it for us.
            Err(nix::errno::Errno::EAGAIN) => {
                match poll(
                    &mut [PollFd::new(file, PollFlags::POLLOUT)],
                    PollTimeout::NONE,
                ) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    match (nix::sys::stat::fstat(one), nix::sys::stat::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}
