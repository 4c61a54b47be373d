//! How far a run is: a bar on a terminal, a line an epoch elsewhere.
//!
//! A replica's output goes through its launcher's pipes, so it never sees the terminal itself. Where there is one, the
//! parent draws the bar, and rank 0 tells it through a socket how far it is. A message that finds the socket full is
//! dropped: training never waits for the display.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use indicatif::{ProgressBar, ProgressStyle};

use super::trained::Epoch;

/// How many messages a run sends at most for its samples: a bar shows no more.
const MOST_MESSAGES: u64 = 400;

/// Where a trainer says how far it is.
pub(crate) enum Progress {
    /// A bar on this process's terminal.
    Bar(ProgressBar),
    /// A line for each epoch on standard output, with this in front.
    Lines(&'static str),
    /// To the process that draws the bar: each so many samples, and the last ones.
    Socket {
        socket: UnixDatagram,
        every: u64,
        total: u64,
        /// How many were sent last.
        sent: Cell<u64>,
    },
    /// Another replica says it.
    Silent,
}

impl Progress {
    /// A bar if this process has a terminal, lines if not.
    pub(crate) fn here(label: &'static str, total: u64) -> Self {
        if io::stderr().is_terminal() {
            Self::Bar(bar(label, total))
        } else {
            Self::Lines(label)
        }
    }

    /// To the process that watches the socket at `path`, or as [`here`](Self::here) if there is none.
    pub(crate) fn to(path: Option<PathBuf>, label: &'static str, total: u64) -> Self {
        let connect = |path: PathBuf| -> io::Result<UnixDatagram> {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        match path.map(connect) {
            Some(Ok(socket)) => Self::Socket {
                socket,
                every: total.div_ceil(MOST_MESSAGES),
                total,
                sent: Cell::new(0),
            },
            _ => Self::here(label, total),
        }
    }

    /// So many samples have been seen, in all epochs.
    pub(crate) fn seen(&self, samples: u64) {
        match self {
            Self::Bar(bar) => bar.set_position(samples),
            Self::Socket {
                socket,
                every,
                total,
                sent,
            } if samples >= sent.get() + every || samples == *total => {
                sent.set(samples);
                let _ = socket.send(Message::Position(samples).to_text().as_bytes());
            }
            _ => {}
        }
    }

    /// So many of all epochs are done, and this is what the last one has reached.
    pub(crate) fn epoch(&self, done: u64, epochs: u64, reached: &Epoch) {
        let width = epochs.to_string().len();
        let line = format!(
            "epoch {done:>width$}/{epochs}  loss {:.4}  held out: loss {:.4}, {:.2} % right",
            reached.loss,
            reached.validation_loss,
            100.0 * reached.accuracy
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

    /// Something that is to stay in sight.
    pub(crate) fn note(&self, text: &str) {
        match self {
            Self::Bar(bar) => bar.println(text),
            Self::Lines(label) => {
                let _ = writeln!(io::stdout(), "{label}  {text}");
            }
            Self::Socket { socket, .. } => {
                let _ = socket.send(Message::Note(text.to_owned()).to_text().as_bytes());
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

fn bar(label: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:<7}{bar:30} {percent:>3} % {eta:>4}  {msg}")
        .expect("the template is a constant that indicatif accepts");
    ProgressBar::new(total).with_style(style).with_prefix(label)
}

/// What goes through the socket.
enum Message {
    Position(u64),
    Line(String),
    Note(String),
    /// The run has ended, well or not. Sent by the watcher to itself.
    End,
}

impl Message {
    fn to_text(&self) -> String {
        match self {
            Self::Position(samples) => samples.to_string(),
            Self::Line(line) => format!("={line}"),
            Self::Note(text) => format!("!{text}"),
            Self::End => String::new(),
        }
    }

    /// `None`: not of this program.
    fn from_text(text: &str) -> Option<Self> {
        match text.split_at_checked(1) {
            Some(("=", line)) => Some(Self::Line(line.to_owned())),
            Some(("!", text)) => Some(Self::Note(text.to_owned())),
            None if text.is_empty() => Some(Self::End),
            _ => text.parse().ok().map(Self::Position),
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
    pub(crate) fn begin(path: &Path, label: &'static str, total: u64) -> Option<Self> {
        let socket = UnixDatagram::bind(path).ok()?;
        let thread = thread::spawn(move || watch(&socket, &bar(label, total)));
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
    let mut bytes = [0; 8192];
    bar.tick();
    while let Ok(length) = socket.recv(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..length]);
        match Message::from_text(&text) {
            Some(Message::Position(samples)) => bar.set_position(samples),
            Some(Message::Note(text)) => bar.println(text),
            Some(Message::Line(line)) => bar.set_message(line),
            Some(Message::End) => break,
            None => {}
        }
    }
    bar.abandon();
}
