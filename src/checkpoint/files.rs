//! Files of a checkpoint: written with a checksum and brought to the disk, and read with it.

use super::damage::Damage;
use super::manifest::FileRecord;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes that go to the system, or come from it, at a time.
const PIECE: usize = 1 << 20;
/// After so many bytes the system is asked to begin bringing them to the disk, so that little is left for the end.
const AHEAD: u64 = 8 << 20;

/// Opens a regular file for reading. Neither a link nor a pipe is one; nothing is waited for.
pub(crate) fn open_regular(directory: &Path, file: &str) -> Result<File, Damage> {
    let unreadable = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => Damage::Missing {
            file: file.to_owned(),
        },
        _ => Damage::Unreadable {
            file: file.to_owned(),
            why: error.to_string(),
        },
    };
    let no_file = || Damage::NoFile {
        file: file.to_owned(),
    };
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(directory.join(file));
    let opened = match opened {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(no_file()),
        other => other.map_err(unreadable)?,
    };
    match opened.metadata().map_err(unreadable)?.is_file() {
        true => Ok(opened),
        false => Err(no_file()),
    }
}

/// A new file that is being written.
pub(crate) struct Output {
    file: File,
    buffer: Vec<u8>,
    crc: u32,
    written: u64,
    /// Up to where the system has been asked to bring it to the disk.
    asked: u64,
}

impl Output {
    /// There must be no such file.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Self {
            file,
            buffer: Vec::new(),
            crc: 0,
            written: 0,
            asked: 0,
        })
    }

    fn pass_on(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written - self.asked >= AHEAD {
            let (from, length) = (self.asked, self.written - self.asked);
            // SAFETY: a call with numbers only. It may fail, where a file system knows nothing of it: then all is left
            // for the end.
            unsafe {
                libc::sync_file_range(
                    self.file.as_raw_fd(),
                    from as i64,
                    length as i64,
                    libc::SYNC_FILE_RANGE_WRITE,
                )
            };
            self.asked = self.written;
        }
        Ok(())
    }

    fn pass_on_buffer(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let passed = self.pass_on(&buffer);
        buffer.clear();
        self.buffer = buffer;
        passed
    }

    /// Brings it to the disk; its length and checksum.
    pub(crate) fn finish(mut self) -> io::Result<(u64, u32)> {
        self.pass_on_buffer()?;
        self.file.sync_all()?;
        Ok((self.written, self.crc))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > PIECE {
            self.pass_on_buffer()?;
        }
        if bytes.len() >= PIECE {
            self.pass_on(bytes)?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    /// What is written comes to the disk at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is being read, and compared with what the manifest says. It is opened when somebody reads: of several ranks'
/// files most may not be needed.
///
/// The last bytes are handed out only if all of them are as they were written.
pub(crate) struct Input {
    directory: PathBuf,
    record: FileRecord,
    file: Option<File>,
    buffer: Vec<u8>,
    /// How far the buffer has been handed out.
    at: usize,
    crc: u32,
    /// Bytes that have come from the file.
    came: u64,
    damage: Option<Damage>,
}

impl Input {
    pub(crate) fn new(directory: &Path, record: FileRecord) -> Self {
        Self {
            directory: directory.to_owned(),
            record,
            file: None,
            buffer: Vec::new(),
            at: 0,
            crc: 0,
            came: 0,
            damage: None,
        }
    }

    /// Its name.
    pub(crate) fn file(&self) -> &str {
        &self.record.file
    }

    fn open(&mut self) -> Result<&mut File, Damage> {
        if self.file.is_none() {
            let file = open_regular(&self.directory, &self.record.file)?;
            let found = file.metadata().map_err(|error| self.unreadable(&error))?;
            if found.len() != self.record.bytes {
                return Err(Damage::Length {
                    file: self.record.file.clone(),
                    expected: self.record.bytes,
                    found: found.len(),
                });
            }
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => Ok(file),
            None => unreachable!("it has just been opened"),
        }
    }

    fn unreadable(&self, error: &io::Error) -> Damage {
        Damage::Unreadable {
            file: self.record.file.clone(),
            why: error.to_string(),
        }
    }

    /// Fills the buffer again. Empty afterwards: the file has ended, and is as it should be.
    fn fill(&mut self) -> Result<(), Damage> {
        let left = self.record.bytes - self.came;
        let mut buffer = std::mem::take(&mut self.buffer);
        // Memory for what is there, not for what a manifest claims.
        buffer.resize(left.min(PIECE as u64) as usize, 0);
        self.at = 0;
        let file = self.open()?;
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..]) {
                Ok(0) => {
                    return Err(Damage::Length {
                        file: self.record.file.clone(),
                        expected: self.record.bytes,
                        found: self.came + filled as u64,
                    });
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        self.crc = crc32c::crc32c_append(self.crc, &buffer);
        self.came += filled as u64;
        self.buffer = buffer;
        if self.came == self.record.bytes && self.crc != self.record.crc32c {
            return Err(Damage::Checksum {
                file: self.record.file.clone(),
                expected: self.record.crc32c,
                found: self.crc,
            });
        }
        Ok(())
    }

    /// Whether anything of it has been read.
    fn is_touched(&self) -> bool {
        self.file.is_some() || self.damage.is_some()
    }

    /// Reads what is left of a file that has been read from; what was wrong with it.
    pub(crate) fn finish(mut self) -> Result<(), Damage> {
        if !self.is_touched() {
            return Ok(());
        }
        self.check()
    }

    /// Reads it to the end; what is wrong with it.
    pub(crate) fn check(&mut self) -> Result<(), Damage> {
        loop {
            if let Some(damage) = &self.damage {
                return Err(damage.clone());
            }
            self.refill()?;
            if self.buffer.is_empty() {
                return Ok(());
            }
        }
    }

    fn refill(&mut self) -> Result<(), Damage> {
        let filled = self.fill();
        if let Err(damage) = &filled {
            self.damage = Some(damage.clone());
            self.buffer.clear();
            self.at = 0;
        }
        filled
    }
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(damage) = &self.damage {
            return Err(io::Error::new(ErrorKind::InvalidData, damage.clone()));
        }
        if out.is_empty() {
            return Ok(0);
        }
        if self.at == self.buffer.len() {
            self.refill()
                .map_err(|damage| io::Error::new(ErrorKind::InvalidData, damage))?;
        }
        let count = out.len().min(self.buffer.len() - self.at);
        out[..count].copy_from_slice(&self.buffer[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Brings a directory's entries to the disk. Where a file system knows nothing of that, there is nothing to be done.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{Input, Output, PIECE, open_regular};
    use crate::checkpoint::damage::Damage;
    use crate::checkpoint::manifest::FileRecord;
    use std::io::{Read, Write};
    use std::path::Path;

    fn write(directory: &Path, pieces: &[&[u8]]) -> FileRecord {
        let mut output = Output::create(&directory.join("file")).unwrap();
        for piece in pieces {
            output.write_all(piece).unwrap();
        }
        let (bytes, crc32c) = output.finish().unwrap();
        FileRecord {
            file: "file".to_owned(),
            bytes,
            crc32c,
        }
    }

    #[test]
    fn a_file_has_what_was_written_whatever_the_pieces() {
        let large: Vec<u8> = (0..2 * PIECE + 11).map(|i| (i * 7 % 251) as u8).collect();
        for pieces in [
            vec![],
            vec![&large[..1]],
            vec![&large[..10], &large[10..]],
            vec![&large[..], &large[..5]],
            vec![&large[..PIECE], &large[..PIECE - 1], &large[..2]],
            large[..5000].chunks(3).collect(),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let record = write(directory.path(), &pieces);
            let expected = pieces.concat();
            assert_eq!(record.crc32c, crc32c::crc32c(&expected));
            assert_eq!(
                std::fs::read(directory.path().join("file")).unwrap(),
                expected
            );
            let mut input = Input::new(directory.path(), record);
            let mut found = Vec::new();
            input.read_to_end(&mut found).unwrap();
            assert!(found == expected);
            input.finish().unwrap();
        }
    }

    #[test]
    fn the_end_of_a_damaged_file_is_never_handed_out() {
        let directory = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..PIECE + 1000).map(|i| (i % 256) as u8).collect();
        let record = write(directory.path(), &[&content]);
        for at in [0, PIECE, content.len() - 1] {
            let mut damaged = content.clone();
            damaged[at] ^= 8;
            std::fs::write(directory.path().join("file"), &damaged).unwrap();
            let mut input = Input::new(directory.path(), record.clone());
            let mut found = Vec::new();
            input.read_to_end(&mut found).unwrap_err();
            assert!(found.len() <= PIECE);
            let damage = input.finish().unwrap_err();
            assert!(matches!(damage, Damage::Checksum { .. }), "{damage}");
            // Who reads the beginning only hears of it at the end.
            let mut input = Input::new(directory.path(), record.clone());
            if at >= PIECE {
                input.read_exact(&mut [0; 10]).unwrap();
                input.finish().unwrap_err();
            }
        }
        for length in [0, PIECE, content.len() + 1] {
            let mut other = content.clone();
            other.resize(length, 0);
            std::fs::write(directory.path().join("file"), &other).unwrap();
            let damage = Input::new(directory.path(), record.clone())
                .check()
                .unwrap_err();
            assert!(matches!(damage, Damage::Length { .. }), "{damage}");
        }
        // Nobody has read it, so nothing is wrong.
        Input::new(directory.path(), record).finish().unwrap();
    }

    #[test]
    fn links_pipes_and_directories_are_no_files() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("target"), "x").unwrap();
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        for name in ["link", "pipe", "directory"] {
            let damage = open_regular(directory.path(), name).unwrap_err();
            assert!(matches!(damage, Damage::NoFile { .. }), "{damage}");
        }
        let damage = open_regular(directory.path(), "other").unwrap_err();
        assert!(matches!(damage, Damage::Missing { .. }), "{damage}");
    }
}
