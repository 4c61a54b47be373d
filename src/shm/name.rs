//! Names of segments, and removing those in which nobody lives.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

use super::descriptor::Inode;
use super::header::{Refusal, hex};

/// Where glibc and musl keep what `shm_open` makes.
pub(crate) const DIRECTORY: &str = "/dev/shm";
/// What all names begin with.
const PREFIX: &str = "/gradring-";
/// Nobody but the owner may read or write a segment.
pub(crate) const MODE: u32 = 0o600;

/// The name that 128 bits stand for.
pub(crate) fn name_of(id: &[u8; 16]) -> String {
    format!("{PREFIX}{}", hex(id))
}

/// The 128 bits of a name; `None` if no segment is named so.
pub(crate) fn id_of(name: &str) -> Option<[u8; 16]> {
    let digits = name.strip_prefix(PREFIX)?;
    let lower = digits
        .bytes()
        .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if digits.len() != 32 || !lower {
        return None;
    }
    Some(u128::from_str_radix(digits, 16).ok()?.to_be_bytes())
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}{name}")
}

/// Opens what has the name, without following a link and without waiting for the other end of a FIFO.
pub(crate) fn open(name: &str, access: OFlag) -> io::Result<File> {
    let flags = access | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    Ok(shm_open(name, flags, Mode::empty())?.into())
}

/// What the name stands for now, a link not followed; `None` for nothing.
pub(crate) fn look_up(name: &str) -> io::Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path(name)) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which file it is.
pub(crate) fn inode(metadata: &fs::Metadata) -> Inode {
    Inode::new(metadata.dev(), metadata.ino())
}

/// True if the name still stands for this file.
pub(crate) fn names(name: &str, file: Inode) -> io::Result<bool> {
    Ok(look_up(name)?.is_some_and(|found| inode(&found) == file))
}

/// Removes the name if it stands for this file; true if it did.
///
/// Names have 128 random bits, so nobody takes this one between the look and the removal.
pub(crate) fn unlink(name: &str, file: Inode) -> io::Result<bool> {
    if !names(name, file)? {
        return Ok(false);
    }
    match shm_unlink(name) {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether this can be a segment of this user's, judged by what the kernel says of the file.
pub(crate) fn check(metadata: &fs::Metadata) -> Result<(), Refusal> {
    let kind = metadata.file_type();
    if !kind.is_file() {
        let found = if kind.is_symlink() {
            "a symbolic link"
        } else if kind.is_fifo() {
            "a FIFO"
        } else if kind.is_dir() {
            "a directory"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a device"
        };
        return Err(Refusal::new("kind of file", "a regular file", found));
    }
    let user = geteuid().as_raw();
    if metadata.uid() != user {
        return Err(Refusal::new(
            "owner",
            format!("uid {user}"),
            format!("uid {}", metadata.uid()),
        ));
    }
    let mode = metadata.mode() & 0o7777;
    if mode != MODE {
        return Err(Refusal::new(
            "mode",
            format!("{MODE:04o}"),
            format!("{mode:04o}"),
        ));
    }
    Ok(())
}

/// How a lock is taken on a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// By all who live in the segment.
    Shared,
    /// By who wants to know that nobody does.
    Exclusive,
}

/// Takes the lock if that needs no waiting; false if somebody has it otherwise.
pub(crate) fn try_lock(file: &File, lock: Lock) -> io::Result<bool> {
    let operation = match lock {
        Lock::Shared => libc::LOCK_SH,
        Lock::Exclusive => libc::LOCK_EX,
    };
    loop {
        // SAFETY: the descriptor is open; flock touches no memory of ours.
        if unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        match Errno::last() {
            Errno::EINTR => {}
            Errno::EWOULDBLOCK => return Ok(false),
            error => return Err(error.into()),
        }
    }
}

/// Removes the names of this user's segments in which nobody lives; the names that it removed.
///
/// Never removes one in which somebody lives: they hold a lock, and whoever is about to attach takes it first and then
/// looks whether the name is still there. What is no regular file, or another user's, is left alone, and so is what
/// cannot be opened.
pub(crate) fn sweep() -> Vec<String> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| segment_name(&entry.file_name()))
        .filter(|name| sweep_one(name).unwrap_or(false))
        .collect()
}

fn segment_name(file_name: &OsStr) -> Option<String> {
    let name = format!("/{}", file_name.to_str()?);
    id_of(&name).map(|_| name)
}

fn sweep_one(name: &str) -> io::Result<bool> {
    let user = geteuid().as_raw();
    let ours = |found: &fs::Metadata| found.is_file() && found.uid() == user;
    // Before it is opened: to open a device can have effects.
    if !look_up(name)?.is_some_and(|found| ours(&found)) {
        return Ok(false);
    }
    let file = open(name, OFlag::O_RDONLY)?;
    let metadata = file.metadata()?;
    if !ours(&metadata) || !try_lock(&file, Lock::Exclusive)? {
        return Ok(false);
    }
    // The lock is held until after the removal: whoever attaches in between waits for it, then finds the name gone.
    unlink(name, inode(&metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_bits_belong_together() {
        let id = 0x0123_4567_89ab_cdef_0000_0000_0000_00ff_u128.to_be_bytes();
        let name = name_of(&id);
        assert_eq!(name, "/gradring-0123456789abcdef00000000000000ff");
        assert_eq!(id_of(&name), Some(id));
    }

    #[test]
    fn other_names_are_no_segments() {
        for name in [
            "",
            "/gradring-",
            "gradring-0123456789abcdef00000000000000ff",
            "/gradring-0123456789abcdef00000000000000f",
            "/gradring-0123456789abcdef00000000000000fff",
            "/gradring-0123456789ABCDEF00000000000000ff",
            "/gradring-+123456789abcdef00000000000000ff",
            "/gradring-../456789abcdef00000000000000ff0",
            "/gradring-0123456789abcdef0000000000000\u{e9}f",
        ] {
            assert_eq!(id_of(name), None, "{name}");
        }
    }
}
