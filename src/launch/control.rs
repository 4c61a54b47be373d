//! The socket on which a running launcher is asked for something.
//!
//! It has an abstract name, `gradring-<uid>-<pid>`: nothing of it is on disk, and it is gone with the launcher. Abstract
//! names have no permissions, so each caller is asked for its user by the kernel. A caller sends one line and reads lines
//! until the end; the launcher neither waits for a caller nor reads more than a short line from it.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// What the name of every launcher's socket begins with.
const PREFIX: &str = "gradring-";
/// How many callers may be connected that have not said what they want.
const CALLERS: usize = 16;
/// The longest request, in bytes.
const REQUEST: usize = 64;
/// The longest line that a caller is told, in bytes.
pub(super) const ANSWER: usize = 2048;
/// How long a caller may take for its request.
const TIME: Duration = Duration::from_secs(5);
/// How long nobody is let in after the system had no descriptor for a caller.
const REST: Duration = Duration::from_secs(1);
/// How many runs one process may have at the same time that can be found.
const RUNS: usize = 256;

/// What a line to a caller begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Something is under way; more lines follow.
    Note,
    /// It was done. The last line.
    Done,
    /// It was refused, and nothing has changed. The last line.
    Refused,
    /// It was tried, and has not come about. The last line.
    Failed,
}

impl Word {
    const ALL: [(Word, &str); 4] = [
        (Word::Note, "note"),
        (Word::Done, "done"),
        (Word::Refused, "refused"),
        (Word::Failed, "failed"),
    ];

    fn text(self) -> &'static str {
        let found = Word::ALL.iter().find(|(word, _)| *word == self);
        found.map_or("note", |(_, text)| text)
    }

    /// A line taken apart.
    pub(super) fn parse(line: &str) -> Option<(Word, &str)> {
        let (first, rest) = line.split_once(' ')?;
        let found = Word::ALL.iter().find(|(_, text)| *text == first);
        found.map(|(word, _)| (*word, rest))
    }
}

/// The listening socket, and those who are just saying what they want.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    callers: Vec<Caller>,
    /// No descriptor was left for a caller: nobody is let in until then.
    rests_until: Option<Instant>,
}

#[derive(Debug)]
struct Caller {
    stream: UnixStream,
    line: Vec<u8>,
    until: Instant,
}

/// Somebody who has asked for so many replicas.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) replicas: u64,
    pub(super) client: Client,
}

/// Somebody who waits for an answer. Dropped, it sees the end of the connection.
#[derive(Debug)]
pub(super) struct Client(UnixStream);

impl Client {
    /// One line. A client that does not read misses it: nobody waits for it.
    pub(super) fn tell(&self, word: Word, text: &str) {
        let mut line = format!("{} ", word.text());
        line.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
        let mut end = line.len().min(ANSWER - 1);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push('\n');
        // A closed connection is no signal: this may be any program's thread.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the buffer is valid for reads of its length and outlives the call.
        unsafe { libc::send(self.0.as_raw_fd(), line.as_ptr().cast(), line.len(), flags) };
    }
}

impl Control {
    /// Listens under the name of this process.
    pub(super) fn open() -> io::Result<Control> {
        let pid = std::process::id();
        for run in 0..RUNS {
            // The first run of a process has the name that everybody expects.
            let id = match run {
                0 => pid.to_string(),
                _ => format!("{pid}.{run}"),
            };
            match UnixListener::bind_addr(&address(&id)?) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(Control {
                        listener,
                        callers: Vec::new(),
                        rests_until: None,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// What `poll` can wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = self.lets_in().then(|| self.listener.as_fd());
        let callers = self.callers.iter().map(|caller| caller.stream.as_fd());
        listener.into_iter().chain(callers)
    }

    /// When [`requests`](Self::requests) should be called at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        let callers = self.callers.iter().map(|caller| caller.until);
        callers.chain(self.rests_until).min()
    }

    fn lets_in(&self) -> bool {
        self.callers.len() < CALLERS && self.rests_until.is_none()
    }

    /// Lets callers in, and returns what they have asked for since the last call. Never waits.
    pub(super) fn requests(&mut self) -> Vec<Request> {
        let now = Instant::now();
        self.rests_until = self.rests_until.filter(|until| now < *until);
        while self.lets_in() {
            match self.listener.accept() {
                Ok((stream, _)) => self.callers.extend(Caller::new(stream, now)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // It would be readable again at once.
                    _ => self.rests_until = Some(now + REST),
                },
            }
        }
        let mut requests = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.listen() {
                Heard::Nothing if now < caller.until => self.callers.push(caller),
                Heard::Nothing | Heard::End => {}
                Heard::Request(replicas) => requests.push(Request {
                    replicas,
                    client: Client(caller.stream),
                }),
                Heard::Nonsense => Client(caller.stream).tell(
                    Word::Refused,
                    "expected a line 'resize N': is this gradring another version?",
                ),
            }
        }
        requests
    }
}

/// What a caller has said so far.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// Nothing whole.
    Nothing,
    /// It has hung up: whatever it has asked for, nobody waits for it any more.
    End,
    /// A request for so many replicas.
    Request(u64),
    /// Something else.
    Nonsense,
}

impl Caller {
    /// `None` for another user.
    fn new(stream: UnixStream, now: Instant) -> Option<Caller> {
        let same = peer(&stream).is_ok_and(|uid| uid == nix::unistd::geteuid().as_raw());
        (same && stream.set_nonblocking(true).is_ok()).then(|| Caller {
            stream,
            line: Vec::new(),
            until: now + TIME,
        })
    }

    /// Reads what is there. A request counts only while the connection is open behind it.
    fn listen(&mut self) -> Heard {
        let mut buffer = [0; REQUEST];
        loop {
            match (&self.stream).read(&mut buffer) {
                Ok(0) => return Heard::End,
                Ok(read) => self.line.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Heard::End,
            }
            if self.line.len() > REQUEST {
                return Heard::Nonsense;
            }
        }
        parse(&self.line)
    }
}

fn parse(line: &[u8]) -> Heard {
    let Some(line) = line.strip_suffix(b"\n") else {
        return Heard::Nothing;
    };
    let number = std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.strip_prefix("resize "))
        .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|number| number.parse().ok());
    number.map_or(Heard::Nonsense, Heard::Request)
}

/// The address of a run's socket.
pub(super) fn address(run: &str) -> io::Result<SocketAddr> {
    let uid = nix::unistd::geteuid();
    SocketAddr::from_abstract_name(format!("{PREFIX}{uid}-{run}"))
}

/// The user at the other end.
pub(super) fn peer(stream: &UnixStream) -> io::Result<u32> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to locals that outlive the call, and `length` is the size of the first.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut length,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(credentials.uid)
}

/// The runs of this user among the kernel's sockets, as `/proc/net/unix` lists them.
pub(super) fn runs_in(list: &str) -> Vec<String> {
    /// Of a socket that listens.
    const LISTENS: u32 = 1 << 16;
    let begin = format!("@{PREFIX}{}-", nix::unistd::geteuid());
    let run = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let flags = fields.nth(3)?;
        let name = fields.nth(3)?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let run = name.strip_prefix(&*begin)?;
        (flags & LISTENS != 0).then(|| run.to_owned())
    };
    let mut runs: Vec<String> = list.lines().filter_map(run).collect();
    runs.sort();
    runs.dedup();
    runs
}

#[cfg(test)]
mod tests {
    use super::super::event::wait;
    use super::*;
    use std::io::Write;

    #[test]
    fn only_a_whole_request_is_one() {
        assert_eq!(parse(b""), Heard::Nothing);
        assert_eq!(parse(b"resize 3"), Heard::Nothing);
        assert_eq!(parse(b"resize 3\n"), Heard::Request(3));
        for nonsense in [
            &b"\n"[..],
            b"resize\n",
            b"resize \n",
            b"resize +3\n",
            b"resize -1\n",
            b"resize 3 \n",
            b"resize 3\n\n",
            b"resize 99999999999999999999\n",
            b"resize \xff\n",
        ] {
            assert_eq!(parse(nonsense), Heard::Nonsense, "{nonsense:?}");
        }
    }

    #[test]
    fn the_kernels_list_is_read_for_own_listening_sockets_only() {
        let uid = nix::unistd::geteuid();
        let list = format!(
            "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 26401 @gradring-{uid}-77\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 26402 @gradring-{uid}-77\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 26403 @gradring-{uid}-78\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 26404 @gradring-{}-79\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 26405 @gradring-{uid}-80.1\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 26406 /run/gradring-{uid}-81\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 26407\n",
            uid.as_raw().wrapping_add(1)
        );
        assert_eq!(runs_in(&list), ["77", "80.1"]);
    }

    /// Serves until something was asked for.
    fn served(control: &mut Control) -> Vec<Request> {
        loop {
            let requests = control.requests();
            if !requests.is_empty() {
                return requests;
            }
            let fds: Vec<_> = control.fds().collect();
            wait(&fds, Some(Duration::from_secs(1))).unwrap();
        }
    }

    fn call(control: &Control) -> UnixStream {
        UnixStream::connect_addr(&control.listener.local_addr().unwrap()).unwrap()
    }

    #[test]
    fn a_slow_a_dead_and_a_talkative_caller_hold_up_nobody() {
        let mut control = Control::open().unwrap();
        let mut slow = call(&control);
        slow.write_all(b"resi").unwrap();
        let mut dead = call(&control);
        dead.write_all(b"resize 9\n").unwrap();
        drop(dead);
        let mut talkative = call(&control);
        talkative.write_all(&[b'x'; 4096]).unwrap();
        let mut asks = call(&control);
        asks.write_all(b"resize 5\n").unwrap();
        let requests = served(&mut control);
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].replicas, 5);
        requests[0].client.tell(Word::Done, "two\nlines");
        drop(requests);
        let mut text = String::new();
        asks.read_to_string(&mut text).unwrap();
        assert_eq!(text, "done two lines\n");
        slow.write_all(b"ze 6\n").unwrap();
        assert_eq!(served(&mut control)[0].replicas, 6);
    }

    #[test]
    fn a_client_that_does_not_read_holds_up_nobody() {
        let mut control = Control::open().unwrap();
        let mut asks = call(&control);
        asks.write_all(b"resize 5\n").unwrap();
        let client = served(&mut control).remove(0).client;
        for _ in 0..10_000 {
            client.tell(Word::Note, &"long ".repeat(1000));
        }
        drop(asks);
        client.tell(Word::Done, "nobody is there");
    }

    #[test]
    fn more_callers_than_there_is_room_for_come_in_one_after_another() {
        let mut control = Control::open().unwrap();
        let silent: Vec<UnixStream> = (0..CALLERS).map(|_| call(&control)).collect();
        assert!(control.requests().is_empty());
        let mut asks = call(&control);
        asks.write_all(b"resize 5\n").unwrap();
        assert!(control.requests().is_empty());
        drop(silent);
        assert_eq!(served(&mut control)[0].replicas, 5);
    }
}
