//! The directory in which a run's checkpoints lie.

use super::damage::Damage;
use super::files::{Input, open_regular};
use super::manifest::{MANIFEST, Manifest};
use super::name;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// What a directory has of checkpoints. Whatever else is in it is nobody's business here.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Everything that is called as a checkpoint is, in order.
    pub(crate) numbers: BTreeSet<u64>,
    /// Everything that is called as a temporary directory is.
    pub(crate) temporary: Vec<(PathBuf, u32)>,
}

impl Listing {
    /// A directory that does not exist has nothing.
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        let mut listing = Self::default();
        let entries = match std::fs::read_dir(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(listing),
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(number) = name::checkpoint_number(name) {
                listing.numbers.insert(number);
            } else if let Some(pid) = name::temporary_pid(name) {
                listing.temporary.push((entry.path(), pid));
            }
        }
        Ok(listing)
    }

    /// The number after all that are there.
    pub(crate) fn next(&self) -> Option<u64> {
        match self.numbers.last() {
            None => Some(1),
            Some(last) => last.checked_add(1),
        }
    }
}

/// Reads all of checkpoint `number` in `path`: its manifest and the manifest's checksum, and what is wrong with its files.
pub(crate) fn verify(path: &Path, number: u64) -> Result<(Manifest, u32), Vec<Damage>> {
    let (manifest, crc) = Manifest::read(path, number).map_err(|damage| vec![damage])?;
    let damages = damages(path, &manifest);
    if damages.is_empty() {
        Ok((manifest, crc))
    } else {
        Err(damages)
    }
}

/// What is wrong with the files of a manifest.
pub(crate) fn damages(path: &Path, manifest: &Manifest) -> Vec<Damage> {
    let files = manifest.states.iter().flat_map(|state| &state.files);
    let checked = files.map(|file| Input::new(path, file.clone()).check());
    checked.filter_map(Result::err).collect()
}

/// Whether a directory is a checkpoint, as far as its content goes.
pub(crate) fn has_manifest(path: &Path) -> bool {
    open_regular(path, MANIFEST).is_ok()
}

/// A temporary directory. Dropped before it has become a checkpoint, it is removed.
pub(crate) struct Temporary {
    path: PathBuf,
    /// Locked as long as somebody writes there: the kernel unlocks it whatever becomes of the process.
    _lock: File,
    kept: bool,
}

impl Temporary {
    /// Makes one for checkpoint `number`.
    pub(crate) fn create(directory: &Path, number: u64) -> io::Result<Self> {
        let random = random()?;
        let path = directory.join(name::temporary(number, std::process::id(), random));
        std::fs::create_dir(&path)?;
        let lock = File::open(&path)?;
        // Where a file system has no locks, the process in the name still tells who writes there.
        let _ = lock.try_lock_shared();
        Ok(Self {
            path,
            _lock: lock,
            kept: false,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it the name of a checkpoint. It stays.
    pub(crate) fn rename(&mut self, to: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, to).map_err(|error| match error.kind() {
            ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
                io::Error::other("it is there: does another run use this directory?")
            }
            _ => error,
        })?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed now is stale for the next save.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

/// Removes temporary directories that nobody writes to any more.
pub(crate) fn remove_stale(listing: &Listing) {
    for (path, pid) in &listing.temporary {
        if is_stale(path, *pid) {
            // Another one may remove it too; what cannot be removed is only in the way of nobody.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn is_stale(path: &Path, pid: u32) -> bool {
    // This process writes one at a time, and is about to make it.
    let gone = pid == std::process::id() || !is_alive(pid);
    // A process number says nothing of a process in another container; the lock does.
    let unlocked = || match File::open(path) {
        Ok(directory) => match directory.try_lock() {
            Ok(()) => true,
            Err(std::fs::TryLockError::WouldBlock) => false,
            Err(std::fs::TryLockError::Error(_)) => true,
        },
        Err(_) => false,
    };
    gone && unlocked()
}

fn is_alive(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return false;
    };
    // SAFETY: signal 0 is not sent, only whether it could be.
    let sent = unsafe { libc::kill(pid, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Removes checkpoints: first out of the way, so that none is ever half a checkpoint, then for good. Gives what could not
/// be moved away.
pub(crate) fn remove(
    directory: &Path,
    numbers: impl Iterator<Item = u64>,
) -> Vec<(PathBuf, io::Error)> {
    let mut left = Vec::new();
    for number in numbers {
        let path = directory.join(name::checkpoint(number));
        let moved = random().and_then(|random| {
            let away = directory.join(name::temporary(number, std::process::id(), random));
            std::fs::rename(&path, &away)?;
            Ok(away)
        });
        match moved {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => left.push((path, error)),
            Ok(away) => {
                // The next save removes what is left of it.
                let _ = std::fs::remove_dir_all(away);
            }
        }
    }
    left
}

/// Which of `numbers` go, if the newest `keep` stay that are not `damaged`. A damaged one stays while an older one does.
pub(crate) fn superseded(
    numbers: &BTreeSet<u64>,
    damaged: &BTreeSet<u64>,
    keep: usize,
) -> Vec<u64> {
    let sound = numbers
        .iter()
        .rev()
        .filter(|number| !damaged.contains(number));
    match sound.take(keep.max(1)).last() {
        None => Vec::new(),
        Some(oldest) => numbers.range(..oldest).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Listing, Temporary, remove_stale, superseded};
    use crate::checkpoint::name;
    use std::collections::BTreeSet;

    #[test]
    fn the_newest_stay_and_damaged_ones_do_not_count() {
        let superseded = |numbers: &[u64], damaged: &[u64], keep| {
            let set = |numbers: &[u64]| numbers.iter().copied().collect::<BTreeSet<u64>>();
            superseded(&set(numbers), &set(damaged), keep)
        };
        assert_eq!(superseded(&[1, 2, 3, 9], &[], 2), [1, 2]);
        assert_eq!(superseded(&[1, 2, 3, 9], &[], 1), [1, 2, 3]);
        assert_eq!(superseded(&[1, 2, 3, 9], &[3], 2), [1]);
        assert_eq!(superseded(&[1, 2], &[], 2), [0_u64; 0]);
        assert_eq!(superseded(&[1, 2], &[1, 2], 1), [0_u64; 0]);
        assert_eq!(superseded(&[1, 2], &[], 0), [1]);
    }

    #[test]
    fn only_temporaries_that_nobody_writes_to_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let stale = at(&name::temporary(1, dead, 1));
        let of_the_living = at(&name::temporary(1, std::os::unix::process::parent_id(), 1));
        let foreign = at(".tmp-old");
        for path in [&stale, &of_the_living, &foreign] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), "x").unwrap();
        }
        let ours = Temporary::create(directory.path(), 2).unwrap();
        let path = ours.path().to_owned();
        remove_stale(&Listing::of(directory.path()).unwrap());
        assert!(!stale.exists());
        assert!(of_the_living.exists() && foreign.exists() && path.exists());
        drop(ours);
        assert!(!path.exists());
    }

    #[test]
    fn numbers_go_on_after_the_largest_whatever_else_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let next = || Listing::of(directory.path()).unwrap().next();
        assert_eq!(Listing::of(&at("none")).unwrap().next(), Some(1));
        for name in ["checkpoint-old", "checkpoint-07", "notes"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        assert_eq!(next(), Some(1));
        std::fs::create_dir(at("checkpoint-9")).unwrap();
        std::fs::write(at("checkpoint-10"), "a file").unwrap();
        assert_eq!(next(), Some(11));
        std::fs::create_dir(at(&name::checkpoint(u64::MAX))).unwrap();
        assert_eq!(next(), None);
    }
}
