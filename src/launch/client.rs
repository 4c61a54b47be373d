//! Asking a running launcher for something, from another process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::control::{ANSWER, Word, address, peer, runs_in};

/// How long a launcher may take to say that it has heard.
const HEARS: Duration = Duration::from_secs(30);

/// Why a run was not resized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// This user has no run in this network namespace.
    #[error("no run of this user is found on this machine")]
    NoRun,
    /// It is not clear which run is meant.
    #[error("{} runs of this user: {}; say which", runs.len(), runs.join(", "))]
    SeveralRuns {
        /// All of them.
        runs: Vec<String>,
    },
    /// There is no such run.
    #[error("no run {run} of this user is found on this machine")]
    NotFound {
        /// As it was given.
        run: String,
    },
    /// Another user listens where the run should.
    #[error("run {run} is not this user's: expected user {expected}, found {found}")]
    NotOurs {
        /// As it was given.
        run: String,
        /// This process's user.
        expected: u32,
        /// Whose socket it is.
        found: u32,
    },
    /// The run cannot be resized, and goes on as it is.
    #[error("refused: {reason}")]
    Refused {
        /// The launcher's reason.
        reason: String,
    },
    /// It was tried, and has not come about.
    #[error("{reason}")]
    Failed {
        /// What happened instead.
        reason: String,
    },
    /// The launcher went away.
    #[error("run {run} ended before it was resized")]
    Ended {
        /// Which run.
        run: String,
    },
    /// The launcher says nothing.
    #[error("run {run} does not answer: expected a line within {} s, found none", HEARS.as_secs())]
    NoAnswer {
        /// Which run.
        run: String,
    },
    /// The launcher says something that this version does not understand.
    #[error("run {run} says {found:?}: expected note, done, refused or failed")]
    Answer {
        /// Which run.
        run: String,
        /// What it said.
        found: String,
    },
    /// The system refused a call.
    #[error("{call}: {source}")]
    Os {
        /// What was called.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

/// The runs of this user that can be resized, by the names that [`resize`] understands: the launcher's process id, with
/// `.1`, `.2` .. behind it for further runs in the same process.
///
/// Those in other network namespaces (other containers) are not seen.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn runs() -> io::Result<Vec<String>> {
    let list = std::fs::read("/proc/net/unix")?;
    Ok(runs_in(&String::from_utf8_lossy(&list)))
}

/// Lets a run go on with another number of replicas, and waits until it does.
///
/// `run` is the launcher's process id; without, it is the only run of this user. The replicas agree, checkpoint and end,
/// and as many as are asked for resume from that checkpoint. If these do not all come to their first operation, the run
/// goes on as before. Each line that the launcher has to say on the way is `told`; the last one is returned. That the
/// caller goes away meanwhile takes nothing back.
///
/// # Errors
/// [`ResizeError`]; the run goes on with as many replicas as before, unless it has ended.
pub fn resize(
    run: Option<&str>,
    replicas: usize,
    told: &mut dyn FnMut(&str),
) -> Result<String, ResizeError> {
    let os = |call| move |source| ResizeError::Os { call, source };
    let run = match run {
        Some(run) => run.to_owned(),
        None => {
            let mut runs = runs().map_err(os("reading /proc/net/unix"))?;
            match (runs.pop(), runs.is_empty()) {
                (None, _) => return Err(ResizeError::NoRun),
                (Some(run), true) => run,
                (Some(run), false) => {
                    runs.push(run);
                    return Err(ResizeError::SeveralRuns { runs });
                }
            }
        }
    };
    // A name that is none, or too long to be one, is nobody's either.
    let name = address(&run).map_err(|_| ResizeError::NotFound { run: run.clone() })?;
    let stream = match UnixStream::connect_addr(&name) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(ResizeError::NotFound { run });
        }
        Err(source) => return Err(os("connect")(source)),
    };
    let found = peer(&stream).map_err(os("getsockopt(SO_PEERCRED)"))?;
    let expected = nix::unistd::geteuid().as_raw();
    if found != expected {
        return Err(ResizeError::NotOurs {
            run,
            expected,
            found,
        });
    }
    // Who has gone already is seen when reading.
    let _ = (&stream).write_all(format!("resize {replicas}\n").as_bytes());
    stream
        .set_read_timeout(Some(HEARS))
        .map_err(os("setsockopt(SO_RCVTIMEO)"))?;
    converse(&run, stream, told)
}

/// Reads until the last line.
fn converse(
    run: &str,
    stream: UnixStream,
    told: &mut dyn FnMut(&str),
) -> Result<String, ResizeError> {
    let run = || run.to_owned();
    let os = |call| move |source| ResizeError::Os { call, source };
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader)
            .take(ANSWER as u64)
            .read_until(b'\n', &mut line);
        match read {
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Err(ResizeError::NoAnswer { run: run() }),
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::ConnectionReset => line.clear(),
                _ => return Err(os("recv")(error)),
            },
        }
        if !line.ends_with(b"\n") {
            return Err(ResizeError::Ended { run: run() });
        }
        let line = String::from_utf8_lossy(&line).replace(|c: char| c.is_control(), "");
        match Word::parse(&line) {
            Some((Word::Note, text)) => told(text),
            Some((Word::Done, text)) => return Ok(text.to_owned()),
            Some((Word::Refused, reason)) => {
                let reason = reason.to_owned();
                return Err(ResizeError::Refused { reason });
            }
            Some((Word::Failed, reason)) => {
                let reason = reason.to_owned();
                return Err(ResizeError::Failed { reason });
            }
            None => {
                return Err(ResizeError::Answer {
                    run: run(),
                    found: line,
                });
            }
        }
        // From here on the launcher takes the time that the replicas need.
        let stream = reader.get_ref();
        stream
            .set_read_timeout(None)
            .map_err(os("setsockopt(SO_RCVTIMEO)"))?;
    }
}
