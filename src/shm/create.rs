//! How a segment comes to be: made whole before anybody can use it, or not at all.

use std::fs::{self, File};
use std::io;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{OFlag, posix_fallocate};
use nix::sys::mman::shm_unlink;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use shared_memory::ShmemConf;

use super::attach::{canary, open_own};
use super::descriptor::{Inode, open_standard_descriptors};
use super::header::{Facts, Header, Refusal};
use super::layout::Layout;
use super::mapping::{Mapping, Presence};
use super::name;
use super::segment::{Segment, SegmentError, TICK, from_crate, os};

/// How long a sweeper may hold a lock before whoever creates takes another name.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much is allocated at once: between two pieces a signal is no reason to begin again.
const PIECE: usize = 256 << 10;

/// A name that is removed unless the segment comes to be.
struct Unfinished<'a> {
    name: &'a str,
    /// `None`: not looked at yet; then whatever has the new random name is ours.
    file: Option<Inode>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // Where it fails nothing better can be done than to leave the name to the next sweep.
        let _ = match self.file {
            Some(file) => name::unlink(self.name, file).is_ok(),
            None => shm_unlink(self.name).is_ok(),
        };
    }
}

/// Makes the segment with this name; `None` if a sweeper took it before it was locked.
pub(super) fn create_as(
    id: [u8; 16],
    layout: Layout,
    cores: u32,
) -> Result<Option<Segment>, SegmentError> {
    let name = name::name_of(&id);
    let name = name.as_str();
    open_standard_descriptors().map_err(os("open", name))?;
    // Beyond this limit the kernel sends a signal that by default ends the process.
    let (limit, _) =
        getrlimit(Resource::RLIMIT_FSIZE).map_err(|e| os("getrlimit", name)(e.into()))?;
    if layout.total as u64 > limit {
        return Err(os("ftruncate", name)(Errno::EFBIG.into()));
    }
    let mut object = ShmemConf::new()
        .os_id(name)
        .size(layout.total)
        .create()
        .map_err(|error| from_crate("shm_open", name, error))?;
    object.set_owner(false);
    let mut unfinished = Unfinished { name, file: None };

    let Some(own) = open_own(name, OFlag::O_RDWR)? else {
        return Ok(None);
    };
    let metadata = own.metadata().map_err(os("fstat", name))?;
    let file = name::inode(&metadata);
    unfinished.file = Some(file);
    name::check(&metadata).map_err(|refusal| SegmentError::refused(name, refusal))?;
    if metadata.len() != layout.total as u64 {
        let refusal = Refusal::new("length", layout.total, metadata.len());
        return Err(SegmentError::refused(name, refusal));
    }

    // Before the allocation, which takes its time: until the lock is held a sweeper takes the segment for dead.
    let Some(presence) = establish(name)? else {
        return Ok(None);
    };
    if let Err(error) = allocate(&own, layout.total) {
        if error != Errno::ENOSPC {
            return Err(os("posix_fallocate", name)(error.into()));
        }
        // Everything of ours goes first, so that `free` is what somebody who tries again would find.
        drop((unfinished, object, presence, own));
        return Err(SegmentError::NoSpace {
            need: layout.total as u64,
            free: free_bytes().unwrap_or(0),
        });
    }

    // From here on every page exists, and the mapping may be touched.
    let Some(canary) = canary(name, file)? else {
        return Ok(None);
    };
    let mapping = Mapping::new(object, presence, canary.into()).map_err(os("mmap", name))?;
    let header = Header::new(&Facts {
        layout,
        cores,
        id,
        nonce: random()?,
        creator: std::process::id(),
        creator_start: process_start().unwrap_or(0),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        owner: geteuid().as_raw(),
    });
    let bytes = bytemuck::bytes_of(&header);
    let page = mapping.bytes(0, bytes.len());
    // SAFETY: inside the mapping; nobody reads the header before the state word is published, except through pread.
    unsafe {
        page.as_ptr()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
    };
    let segment = Segment {
        mapping,
        layout,
        header,
        name: name.to_owned(),
    };
    // SYNC POINT: publishes the header, and that all pages exist, to whoever opens (Release here, Acquire in `try_open`).
    segment.state().publish();
    std::mem::forget(unfinished);
    Ok(Some(segment))
}

/// The creator's lock on its new segment; `None` if the name is gone, or if somebody keeps the lock from it.
fn establish(name: &str) -> Result<Option<Presence>, SegmentError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // A description for the lock alone, open for as short as possible: a child forked meanwhile would keep it.
        let Some(own) = open_own(name, OFlag::O_RDONLY)? else {
            return Ok(None);
        };
        if let Some(presence) = Presence::establish(&own, name).map_err(os("flock", name))? {
            return Ok(Some(presence));
        }
        drop(own);
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(TICK);
    }
}

/// Allocates every page of the file.
fn allocate(file: &File, length: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < length {
        let piece = PIECE.min(length - done);
        match posix_fallocate(file, done as libc::off_t, piece as libc::off_t) {
            Ok(()) => done += piece,
            // On some kernels any signal interrupts tmpfs, and what the call had allocated is given back.
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes that the file system behind shared memory has left for this user; `None` if it does not say.
pub(crate) fn free_bytes() -> Option<u64> {
    let fs = statvfs(name::DIRECTORY).ok()?;
    Some(fs.blocks_available().saturating_mul(fs.fragment_size()))
}

/// 128 random bits.
pub(super) fn random() -> Result<[u8; 16], SegmentError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| SegmentError::Os {
        call: "getrandom",
        name: String::new(),
        source: error.raw_os_error().map_or_else(
            || io::Error::other(error.to_string()),
            io::Error::from_raw_os_error,
        ),
    })?;
    Ok(bits)
}

/// When this process started, in clock ticks after boot: field 22 of its stat file.
fn process_start() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in brackets, and may itself hold brackets and blanks.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_start_is_a_number_of_ticks_that_stays() {
        let start = process_start().unwrap();
        assert!(start > 0);
        assert_eq!(process_start(), Some(start));
    }
}
