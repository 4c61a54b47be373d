//! How a process comes into a segment that is there: believing nothing that it has not checked.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use shared_memory::{ShmemConf, ShmemError};

use super::descriptor::Inode;
use super::header::{self, Expected, Header, Refusal};
use super::layout::{self, LINE};
use super::mapping::{Mapping, Presence};
use super::name::{self, Lock};
use super::segment::{Segment, SegmentError, from_crate, os};
use super::state::{Phase, State};
use super::sync::{Ordering, fence};

/// Attaches if the segment is ready; `None`: not yet, look again.
pub(super) fn try_open(
    name: &str,
    id: [u8; 16],
    world_size: usize,
) -> Result<Option<Segment>, SegmentError> {
    let refuse = |refusal| SegmentError::refused(name, refusal);
    let not_found = || SegmentError::NotFound {
        name: name.to_owned(),
    };
    // By name first: to open what is no regular file can have effects.
    let found = name::look_up(name)
        .map_err(os("lstat", name))?
        .ok_or_else(not_found)?;
    name::check(&found).map_err(refuse)?;
    let own = open_own(name, OFlag::O_RDONLY)?.ok_or_else(not_found)?;
    let metadata = own.metadata().map_err(os("fstat", name))?;
    let file = name::inode(&metadata);
    if file != name::inode(&found) {
        return Ok(None);
    }
    name::check(&metadata).map_err(refuse)?;
    if metadata.len() == 0 {
        // Its creator is between two calls, or died there.
        return Ok(None);
    }
    // Whoever gets the exclusive lock is alone with a dead segment, or with a creator that has not come to its lock.
    let deserted = name::try_lock(&own, Lock::Exclusive).map_err(os("flock", name))?;
    let Some(presence) = Presence::establish(&own, name).map_err(os("flock", name))? else {
        return Ok(None);
    };
    // Through the descriptor: in a mapping a page that is not allocated would be a bus error.
    match read_phase(&own).map_err(os("pread", name))? {
        None => {
            let least = layout::STATE + LINE;
            return Err(refuse(Refusal::new(
                "length",
                format!("at least {least}"),
                metadata.len(),
            )));
        }
        Some(Phase::Empty) => return Ok(None),
        Some(Phase::Ready | Phase::Full) => {}
        Some(other) => return Err(refuse(Refusal::new("state", "Ready", format!("{other:?}")))),
    }
    // Orders the read of the header after that of the state, as the Acquire load of it below does for everything else.
    fence(Ordering::Acquire);
    let mut bytes = [0; header::LENGTH];
    own.read_exact_at(&mut bytes, 0)
        .map_err(os("pread", name))?;
    drop(own);
    let expected = Expected {
        world_size,
        id,
        length: metadata.len(),
        owner: metadata.uid(),
    };
    let (header, layout) = Header::validate(&bytes, &expected).map_err(refuse)?;
    let allocated = metadata.blocks().saturating_mul(512);
    if allocated < metadata.len() {
        let refusal = Refusal::new("allocated bytes", metadata.len(), allocated);
        return Err(refuse(refusal));
    }
    if deserted {
        let refusal = Refusal::new("life", "somebody who lives in it", "a dead run's leftover");
        return Err(refuse(refusal));
    }

    let Some(canary) = canary(name, file)? else {
        return Ok(None);
    };
    let object = match ShmemConf::new().os_id(name).open() {
        Ok(object) => object,
        Err(ShmemError::MapOpenFailed(code)) if code == Errno::ENOENT as u32 => return Ok(None),
        Err(error) => return Err(from_crate("shm_open", name, error)),
    };
    // The crate has opened by name, so the name must have stood for our file before and after.
    if !name::names(name, file).map_err(os("lstat", name))? || object.len() != layout.total {
        return Ok(None);
    }
    let segment = Segment {
        mapping: Mapping::new(object, presence, canary.into()).map_err(os("mmap", name))?,
        layout,
        header,
        name: name.to_owned(),
    };
    // SYNC POINT: pairs with the creator's publish (Release).
    match segment.state().get() {
        Phase::Ready | Phase::Full => Ok(Some(segment)),
        other => Err(refuse(Refusal::new("state", "Ready", format!("{other:?}")))),
    }
}

/// A description of this process's own on what has the name; `None` if nothing has.
pub(super) fn open_own(name: &str, access: OFlag) -> Result<Option<File>, SegmentError> {
    match name::open(name, access) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(os("shm_open", name)(error)),
    }
}

/// A descriptor on the same file that has no other use than to be there; `None` if the name stands for another file.
pub(super) fn canary(name: &str, file: Inode) -> Result<Option<File>, SegmentError> {
    let Some(canary) = open_own(name, OFlag::O_RDONLY)? else {
        return Ok(None);
    };
    let metadata = canary.metadata().map_err(os("fstat", name))?;
    Ok((name::inode(&metadata) == file).then_some(canary))
}

/// The state word as the file has it; `None` if the file ends before it.
fn read_phase(file: &File) -> io::Result<Option<Phase>> {
    let mut word = [0; size_of::<State>()];
    match file.read_exact_at(&mut word, layout::STATE as u64) {
        Ok(()) => Ok(Some(Phase::from_word(u32::from_ne_bytes(word)))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
