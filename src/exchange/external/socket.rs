//! A source that other processes send to, over a Unix socket.
//!
//! One thread serves all clients, none of which it waits for. What a client says is read by [`frame`](super::frame) and
//! [`message`](super::message); each message is answered, accepted or refused with the reason. Bytes that are no frame end
//! the connection, since nobody knows where the next one begins.

use super::frame::{FrameReader, Side, frame};
use super::message::{Kind, MOST_REASON, decode};
use super::queue::{DEFAULT_LIMIT, QueueSender, QueueSource, queue};
use super::{ExternalUpdate, SourceCounts, SourceError, UpdateSource};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are read from a client at a time.
const PIECE: usize = 64 << 10;
/// How long no connection is accepted after the system refused one.
const REFUSED_FOR: Duration = Duration::from_millis(100);

/// What a [`SocketSource`] allows.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// Clients at the same time, at least 1; more are refused. Each takes at most the memory of one message.
    pub clients: usize,
    /// Updates that wait before they are added up. See [`queue`].
    pub limit: usize,
    /// How long a client may take over a message of which a part has come, or over reading an answer, without going on.
    pub patience: Duration,
}

impl Default for SocketOptions {
    /// 8 clients, 32 updates, 30 seconds.
    fn default() -> SocketOptions {
        SocketOptions {
            clients: 8,
            limit: DEFAULT_LIMIT,
            patience: Duration::from_secs(30),
        }
    }
}

/// A source that other processes of the same user send to, over a Unix socket: [`SocketClient`](super::SocketClient), or
/// whoever speaks its frames.
///
/// Dropped, it ends its thread and its connections and removes its socket.
pub struct SocketSource {
    queue: QueueSource,
    path: PathBuf,
    /// Device and number of the socket's file: at its path there may be another one by then.
    file: (u64, u64),
    /// Dropped, it wakes the thread, which ends.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    /// Why the thread has ended.
    ended: Arc<Mutex<Option<String>>>,
    /// The thread is this process's, not its forked children's.
    pid: u32,
}

impl SocketSource {
    /// A source of updates of `elements`, at a path where nothing is yet.
    ///
    /// # Errors
    /// [`SourceError::Exists`]; [`SourceError::Io`] when the system refuses.
    pub fn bind(
        path: impl AsRef<Path>,
        elements: usize,
        options: SocketOptions,
    ) -> Result<SocketSource, SourceError> {
        let path = path.as_ref();
        let failed = |call| move |source| SourceError::Io { call, source };
        let listener = UnixListener::bind(path).map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => SourceError::Exists {
                path: path.to_owned(),
            },
            _ => failed("bind")(source),
        })?;
        // Whatever fails from here on, the file goes.
        let remove = |error| {
            let _ = fs::remove_file(path);
            error
        };
        let made = (|| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))
                .map_err(failed("chmod"))?;
            let file = fs::symlink_metadata(path).map_err(failed("stat"))?;
            listener.set_nonblocking(true).map_err(failed("fcntl"))?;
            let pair = UnixStream::pair().map_err(failed("socketpair"))?;
            Ok(((file.dev(), file.ino()), pair))
        })();
        let (file, (wake, woken)) = made.map_err(remove)?;
        let (sender, queue) = queue(elements, options.limit);
        let ended = Arc::new(Mutex::new(None));
        let why = Arc::clone(&ended);
        let server = Server {
            listener,
            woken,
            sender,
            options,
            clients: Vec::new(),
            accepts_from: None,
        };
        let serve = move || {
            let error = server.serve();
            *why.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        };
        let thread = std::thread::Builder::new()
            .name("gradring source".to_owned())
            .spawn(serve)
            .map_err(failed("a thread"))
            .map_err(remove)?;
        Ok(SocketSource {
            queue,
            path: path.to_owned(),
            file,
            wake: Some(wake),
            thread: Some(thread),
            ended,
            pid: std::process::id(),
        })
    }

    /// Where its socket is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl UpdateSource for SocketSource {
    fn elements(&self) -> usize {
        self.queue.elements()
    }

    fn poll(&mut self) -> Result<Option<ExternalUpdate>, SourceError> {
        // Looked at first: what it took before it ended is there.
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let update = self.queue.poll()?;
        if update.is_some() || !has_ended {
            return Ok(update);
        }
        let why = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        Err(SourceError::Ended {
            why: why.clone().unwrap_or_else(|| "its thread panicked".into()),
        })
    }

    fn give_back(&mut self, update: ExternalUpdate) {
        self.queue.give_back(update);
    }

    fn counts(&self) -> SourceCounts {
        self.queue.counts()
    }
}

impl Drop for SocketSource {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            // A forked child has neither the thread nor the right to the file.
            std::mem::forget(self.thread.take());
            return;
        }
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let here = fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        if here.is_ok_and(|here| here == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl std::fmt::Debug for SocketSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketSource")
            .field("path", &self.path)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// What the thread has.
struct Server {
    listener: UnixListener,
    /// Its other end is closed when the thread is to end.
    woken: UnixStream,
    sender: QueueSender,
    options: SocketOptions,
    clients: Vec<Client>,
    /// When connections are accepted again, if not now.
    accepts_from: Option<Instant>,
}

impl Server {
    /// Serves until it is told to end, or cannot go on.
    fn serve(mut self) -> io::Error {
        let mut room = vec![0; PIECE];
        loop {
            let (woken, accepts, ready) = match self.wait() {
                Ok(found) => found,
                Err(Errno::EINTR) => continue,
                Err(error) => return error.into(),
            };
            if woken {
                return io::Error::other("it was dropped");
            }
            let now = Instant::now();
            let Server {
                clients,
                sender,
                options,
                ..
            } = &mut self;
            let mut ready = ready.into_iter();
            clients.retain_mut(|client| {
                let goes_on = match ready.next() {
                    Some(true) => client.go_on(&mut room, sender, now),
                    _ => true,
                };
                let is_late = client
                    .until(options.patience)
                    .is_some_and(|until| until <= now);
                if (!goes_on || is_late) && client.reader.is_inside() && !client.is_closing {
                    sender.refused();
                }
                goes_on && !is_late
            });
            if accepts {
                self.accept(now);
            }
        }
    }

    /// Waits for anything to do: whether to end, whether to accept, and which clients can go on.
    fn wait(&mut self) -> Result<(bool, bool, Vec<bool>), Errno> {
        let now = Instant::now();
        self.accepts_from = self.accepts_from.filter(|from| *from > now);
        let ends = self.clients.iter();
        let ends = ends.filter_map(|client| client.until(self.options.patience));
        let end = ends.chain(self.accepts_from).min();
        let timeout = end.map_or(PollTimeout::NONE, |end| {
            // Up to the next whole millisecond: else the last one would be spent in asking.
            let left = end.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let accepts = match self.accepts_from {
            None => PollFlags::POLLIN,
            Some(_) => PollFlags::empty(),
        };
        let mut waiting = vec![
            PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), accepts),
        ];
        waiting.extend(self.clients.iter().map(|client| {
            let wanted = if client.answers.is_empty() {
                PollFlags::POLLIN
            } else {
                PollFlags::POLLOUT
            };
            PollFd::new(client.stream.as_fd(), wanted)
        }));
        poll(&mut waiting, timeout)?;
        let mut found = waiting.iter().map(|one| one.any().unwrap_or(true));
        let woken = found.next().unwrap_or(true);
        let accepts = found.next().unwrap_or(false);
        Ok((woken, accepts, found.collect()))
    }

    fn accept(&mut self, now: Instant) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_err() {
                    return;
                }
                let elements = self.sender.elements();
                let mut client = Client {
                    stream,
                    reader: FrameReader::new(Side::Source { elements }),
                    answers: Vec::new(),
                    sent: 0,
                    is_closing: false,
                    last: now,
                };
                if self.clients.len() >= self.options.clients.max(1) {
                    let clients = self.options.clients.max(1);
                    client.refuse(&format!("it has {clients} clients already"));
                    // There is room for one answer in a new connection; without it the client sees the end alone.
                    let _ = client.write();
                    return;
                }
                self.clients.push(client);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) => {}
            // No descriptors, no memory: it is tried again, but not at once.
            Err(_) => self.accepts_from = Some(now + REFUSED_FOR),
        }
    }
}

/// A connection.
struct Client {
    stream: UnixStream,
    reader: FrameReader,
    /// Answers that have not been sent; nothing is read meanwhile.
    answers: Vec<u8>,
    /// How much of them has been.
    sent: usize,
    /// The answers are the last ones.
    is_closing: bool,
    /// When it last went on.
    last: Instant,
}

impl Client {
    /// When it is given up, unless it goes on.
    fn until(&self, patience: Duration) -> Option<Instant> {
        let waits = self.reader.is_inside() || !self.answers.is_empty();
        if waits {
            self.last.checked_add(patience)
        } else {
            None
        }
    }

    /// Reads or writes what it can; false when the connection is over.
    fn go_on(&mut self, room: &mut [u8], sender: &QueueSender, now: Instant) -> bool {
        self.last = now;
        if self.answers.is_empty() {
            match self.stream.read(room) {
                Ok(0) => return false,
                Ok(read) => self.take(&room[..read], sender),
                Err(error) => return is_for_now(&error),
            }
        }
        self.write()
    }

    /// Takes bytes, and answers every message that ends in them.
    fn take(&mut self, mut bytes: &[u8], sender: &QueueSender) {
        loop {
            match self.reader.read(&mut bytes) {
                Ok(None) => return,
                Ok(Some((kind, payload))) => {
                    let update = decode(kind, &payload, sender.elements());
                    let taken = match update {
                        Ok(update) => sender.send(update),
                        Err(error) => {
                            sender.refused();
                            Err(error)
                        }
                    };
                    match taken {
                        Ok(()) => self.answers.extend(frame(Kind::Accepted, &[])),
                        Err(error) => self.refuse(&error.to_string()),
                    }
                }
                Err(error) => {
                    sender.refused();
                    self.refuse(&error.to_string());
                    self.is_closing = true;
                    return;
                }
            }
        }
    }

    fn refuse(&mut self, reason: &str) {
        let mut end = reason.len().min(MOST_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = &reason.as_bytes()[..end];
        self.answers.extend(frame(Kind::Refused, reason));
    }

    /// Sends as many of the answers as go now; false when the connection is over.
    fn write(&mut self) -> bool {
        while self.sent < self.answers.len() {
            match self.stream.write(&self.answers[self.sent..]) {
                Ok(0) => return false,
                Ok(sent) => self.sent += sent,
                Err(error) => return is_for_now(&error),
            }
        }
        self.answers.clear();
        self.sent = 0;
        !self.is_closing
    }
}

/// Whether the next try may succeed.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
