//! The other end of a source's socket.

use super::frame::{FrameReader, Side, frame};
use super::message::{Kind, encode};
use super::{ExternalUpdate, SourceError};
use crate::codec::compat;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a client waits for the source, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends updates to a [`SocketSource`](super::SocketSource), one after another.
///
/// ```
/// use gradring::exchange::external::{
///     ExternalUpdate, SocketClient, SocketOptions, SocketSource, UpdateSource,
/// };
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("updates");
/// let mut source = SocketSource::bind(&path, 1000, SocketOptions::default())?;
/// // In another process:
/// let mut client = SocketClient::connect(&path)?;
/// client.send(&ExternalUpdate::hits(1000, 0.01, [(3, false), (700, true)])?)?;
/// // Deeplearning4j's message of elements 0 and 999 (which it numbers from 1), -0.5 and 0.5.
/// client.send_dl4j(&[2, 1000, 0.5_f32.to_bits() as i32, 0, -1, 1000])?;
///
/// let update = source.poll()?.expect("both were accepted");
/// let expected = [(0, -0.5), (3, 0.01), (700, -0.01), (999, 0.5)];
/// assert_eq!(update.values().collect::<Vec<_>>(), expected);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SocketClient {
    /// `None` once it is of no more use.
    stream: Option<UnixStream>,
    reader: FrameReader,
}

impl SocketClient {
    /// Connects to the source at this path. It waits up to 30 seconds for each answer.
    ///
    /// # Errors
    /// [`SourceError::Io`].
    pub fn connect(path: impl AsRef<Path>) -> Result<SocketClient, SourceError> {
        let failed = |call| move |source| SourceError::Io { call, source };
        let stream = UnixStream::connect(path).map_err(failed("connect"))?;
        let client = SocketClient {
            stream: Some(stream),
            reader: FrameReader::new(Side::Client),
        };
        client.set_patience(PATIENCE)?;
        Ok(client)
    }

    /// How long it waits for the source to take bytes, and to answer. More than 0.
    ///
    /// # Errors
    /// [`SourceError::Io`]; [`SourceError::Closed`].
    pub fn set_patience(&self, patience: Duration) -> Result<(), SourceError> {
        let stream = self.stream.as_ref().ok_or(SourceError::Closed)?;
        stream
            .set_read_timeout(Some(patience))
            .and_then(|()| stream.set_write_timeout(Some(patience)))
            .map_err(|source| SourceError::Io {
                call: "setsockopt",
                source,
            })
    }

    /// Sends an update and waits for the answer: when this returns, the source has it.
    ///
    /// # Errors
    /// [`SourceError::Refused`] with the source's reason, after which more can be sent; [`SourceError::Io`],
    /// [`SourceError::Frame`], after which the connection is [`SourceError::Closed`].
    pub fn send(&mut self, update: &ExternalUpdate) -> Result<(), SourceError> {
        let (kind, payload) = encode(update)?;
        self.exchange(kind, &payload)
    }

    /// Sends a Deeplearning4j message, its words, and waits for the answer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_dl4j(&mut self, words: &[i32]) -> Result<(), SourceError> {
        let mut payload = Vec::with_capacity(4 * words.len());
        compat::to_bytes(words, &mut payload);
        self.exchange(Kind::Dl4j, &payload)
    }

    fn exchange(&mut self, kind: Kind, payload: &[u8]) -> Result<(), SourceError> {
        // Back only where the next answer will be that of the next message.
        let mut stream = self.stream.take().ok_or(SourceError::Closed)?;
        let written = stream.write_all(&frame(kind, payload));
        let answer = match (&written, self.answer(&mut stream)) {
            (_, Ok(answer)) => answer,
            // It closed without a word.
            (Err(_), Err(_)) => {
                return written.map_err(|source| SourceError::Io {
                    call: "send",
                    source,
                });
            }
            (Ok(()), Err(error)) => return Err(error),
        };
        if written.is_ok() {
            self.stream = Some(stream);
        }
        match answer {
            (Kind::Accepted, _) => Ok(()),
            (_, reason) => Err(SourceError::Refused {
                reason: String::from_utf8_lossy(&reason).into_owned(),
            }),
        }
    }

    fn answer(&mut self, stream: &mut UnixStream) -> Result<(Kind, Vec<u8>), SourceError> {
        let failed = |source| SourceError::Io {
            call: "receive",
            source,
        };
        let mut room = [0; 2048];
        loop {
            let read = match stream.read(&mut room) {
                Ok(0) => return Err(failed(io::Error::from(ErrorKind::UnexpectedEof))),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            let mut bytes = &room[..read];
            if let Some(answer) = self.reader.read(&mut bytes)? {
                return Ok(answer);
            }
        }
    }
}
