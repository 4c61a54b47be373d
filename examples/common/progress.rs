//! How far a run is: a bar on a terminal, a line an epoch elsewhere.
//!
//! A replica's output goes through its launcher's pipes, so it never sees the terminal itself. Where there is one, the
//! parent draws the bar, and rank 0 tells it through a socket how far it is. A message that finds the socket full is
//! dropped: training never waits for the display.

use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use indicatif::{ProgressBar, ProgressStyle};

/// How many messages a run sends at most for its steps: a bar shows no more.
const MOST_MESSAGES: usize = 400;

/// Where a trainer says how far it is.
pub(crate) enum Progress {
    /// A bar on this process's terminal.
    Bar(ProgressBar),
    /// A line for each epoch on standard output, with this in front.
    Lines(&'static str),
    /// To the process that draws the bar: each so many steps, and the last one.
    Socket {
        socket: UnixDatagram,
        every: usize,
        steps: usize,
    },
    /// Another replica says it.
    Silent,
}

impl Progress {
    /// A bar if this process has a terminal, lines if not.
    pub(crate) fn here(label: &'static str, steps: usize) -> Self {
        if io::stderr().is_terminal() {
            Self::Bar(bar(label, steps))
        } else {
            Self::Lines(label)
        }
    }

    /// To the process that watches the socket at `path`, or as [`here`](Self::here) if there is none.
    pub(crate) fn to(path: Option<PathBuf>, label: &'static str, steps: usize) -> Self {
        let connect = |path: PathBuf| -> io::Result<UnixDatagram> {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        match path.map(connect) {
            Some(Ok(socket)) => Self::Socket {
                socket,
                every: steps.div_ceil(MOST_MESSAGES),
                steps,
            },
            _ => Self::here(label, steps),
        }
    }

    /// Whether anybody sees what is given to `epoch`.
    pub(crate) fn is_shown(&self) -> bool {
        !matches!(self, Self::Silent)
    }

    /// So many steps are done.
    pub(crate) fn step(&self, done: usize) {
        match self {
            Self::Bar(bar) => bar.set_position(done as u64),
            Self::Socket {
                socket,
                every,
                steps,
            } if done.is_multiple_of(*every) || done == *steps => {
                let _ = socket.send(Message::Position(done as u64).to_text().as_bytes());
            }
            _ => {}
        }
    }

    /// So many of all epochs are done, with this mean loss in the last one.
    pub(crate) fn epoch(&self, done: usize, epochs: usize, loss: f64, accuracy: f64) {
        let width = epochs.to_string().len();
        let line = format!(
            "epoch {done:>width$}/{epochs}  loss {loss:.4}  held out {:.2} %",
            100.0 * accuracy
        );
        match self {
            Self::Bar(bar) => bar.set_message(line),
            Self::Lines(label) => {
                let _ = writeln!(io::stdout(), "{label}  {line}");
            }
            Self::Socket { socket, .. } => {
                let _ = socket.send(Message::Line(line).to_text().as_bytes());
            }
            Self::Silent => {}
        }
    }

    /// All is done.
    pub(crate) fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}

fn bar(label: &'static str, steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:<7}{bar:30} {pos:>5}/{len} {eta:>4}  {msg}")
        .expect("the template is a constant that indicatif accepts");
    ProgressBar::new(steps as u64)
        .with_style(style)
        .with_prefix(label)
}

/// What goes through the socket.
enum Message {
    Position(u64),
    Line(String),
    /// The run has ended, well or not. Sent by the watcher to itself.
    End,
}

impl Message {
    fn to_text(&self) -> String {
        match self {
            Self::Position(steps) => steps.to_string(),
            Self::Line(line) => format!("={line}"),
            Self::End => String::new(),
        }
    }

    /// `None`: not of this program.
    fn from_text(text: &str) -> Option<Self> {
        match text.strip_prefix('=') {
            Some(line) => Some(Self::Line(line.to_owned())),
            None if text.is_empty() => Some(Self::End),
            None => text.parse().ok().map(Self::Position),
        }
    }
}

/// Draws the bar of another process until it is dropped.
pub(crate) struct Watcher {
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Watches a new socket at `path`. `None` if there can be none there, as when the path is too long for one: rank 0
    /// then writes lines.
    pub(crate) fn begin(path: &Path, label: &'static str, steps: usize) -> Option<Self> {
        let socket = UnixDatagram::bind(path).ok()?;
        let thread = thread::spawn(move || watch(&socket, &bar(label, steps)));
        Some(Self {
            path: path.to_owned(),
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let ended = UnixDatagram::unbound()
            .and_then(|socket| socket.send_to(Message::End.to_text().as_bytes(), &self.path));
        if let (Ok(_), Some(thread)) = (ended, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn watch(socket: &UnixDatagram, bar: &ProgressBar) {
    let mut bytes = [0; 256];
    bar.tick();
    while let Ok(length) = socket.recv(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..length]);
        match Message::from_text(&text) {
            Some(Message::Position(steps)) => bar.set_position(steps),
            Some(Message::Line(line)) => bar.set_message(line),
            Some(Message::End) => break,
            None => {}
        }
    }
    bar.abandon();
}
