//! One shared mapping: how it comes to be, who may attach, how it goes away.
//!
//! A segment has a random name, belongs to one user, and is made whole before anybody can use it: all its pages are
//! allocated before the first is touched (so that a full /dev/shm is an error and not a bus error), its header is
//! written, and its state word says so last. Whoever attaches believes nothing that it has not checked. All who live in a
//! segment hold a lock that ends with them; a segment without a lock is dead, and the next start removes it.
//!
//! The same user can still truncate the file of a living segment, and all its processes then die of a bus error: a named
//! segment cannot be sealed.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{OFlag, posix_fallocate};
use nix::sys::mman::shm_unlink;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use shared_memory::{ShmemConf, ShmemError};

use super::barrier::Barrier;
use super::bell::{Asleep, Bells};
use super::descriptor::{Inode, open_standard_descriptors};
use super::header::{self, Expected, Facts, Header, Refusal};
use super::layout::{self, DEFAULT_RING_CAPACITY, LINE, Layout};
pub use super::lines::*;
use super::mapping::{Mapping, Presence, Shared};
use super::name::{self, Lock};
use super::poison::Poison;
use super::ring::{Arena, Ring};
use super::state::{Phase, State};
use super::sync::{AtomicU32, AtomicU64, Futex, Ordering, Padded, fence};

// SAFETY: made of atomics only, and so all bytes are values.
unsafe impl Shared for State {}
// SAFETY: as above.
unsafe impl Shared for Poison {}
// SAFETY: as above.
unsafe impl Shared for Barrier {}
// SAFETY: as above.
unsafe impl Shared for Asleep {}
// SAFETY: as above.
unsafe impl Shared for LauncherLines {}
// SAFETY: as above.
unsafe impl Shared for RankLines {}
// SAFETY: as above.
unsafe impl Shared for Padded<Futex> {}
// SAFETY: as above.
unsafe impl Shared for Padded<AtomicU64> {}

/// Between two looks at something that another process does in microseconds.
const TICK: Duration = Duration::from_millis(1);
/// How long a sweeper may hold a lock before whoever creates takes another name.
const PATIENCE: Duration = Duration::from_secs(2);
/// New names that a creator tries when sweepers take the old ones for dead.
const NAMES: usize = 16;
/// How much is allocated at once: between two pieces a signal is no reason to begin again.
const PIECE: usize = 256 << 10;

/// What a new segment is made for.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of ranks, 1..=255.
    pub world_size: usize,
    /// Bytes of each rank's ring, a power of two of at least [`layout::MIN_RING_CAPACITY`].
    pub ring_capacity: usize,
    /// Distinct CPUs that the replicas together may use, at least 1.
    pub cores: usize,
}

impl Config {
    /// For `world_size` ranks on `cores` CPUs, with rings of the default size.
    pub fn new(world_size: usize, cores: usize) -> Self {
        Self {
            world_size,
            ring_capacity: DEFAULT_RING_CAPACITY,
            cores,
        }
    }
}

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The file system behind shared memory is full or too small.
    #[error(
        "/dev/shm has no room: {need} bytes needed, {free} free (make it larger: in a container --shm-size, else mount -o \
         remount,size=.. /dev/shm)"
    )]
    NoSpace {
        /// Length of the segment in bytes.
        need: u64,
        /// Bytes that the file system has left.
        free: u64,
    },
    /// Something has the name, but not a segment that this process may use.
    #[error("segment {name} refused: {what} (expected {expected}, found {found})")]
    Refused {
        /// The segment's name.
        name: String,
        /// What is wrong.
        what: &'static str,
        /// How it would be right.
        expected: String,
        /// How it is.
        found: String,
    },
    /// Its creator has not finished it, and may be dead.
    #[error("segment {name} was not ready after {waited:?}")]
    NotReady {
        /// The segment's name.
        name: String,
        /// How long this process has waited.
        waited: Duration,
    },
    /// Nothing has the name.
    #[error("no segment {name}")]
    NotFound {
        /// The segment's name.
        name: String,
    },
    /// The system refused a call.
    #[error("{call}({name}): {source}")]
    Os {
        /// The call.
        call: &'static str,
        /// The segment's name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// No segment can be like that.
    #[error("a segment cannot be made so: {0}")]
    Config(String),
}

impl SegmentError {
    fn refused(name: &str, refusal: Refusal) -> Self {
        Self::Refused {
            name: name.to_owned(),
            what: refusal.what,
            expected: refusal.expected,
            found: refusal.found,
        }
    }
}

/// Names the call in an error.
fn os(call: &'static str, name: &str) -> impl FnOnce(io::Error) -> SegmentError {
    let name = name.to_owned();
    move |source| SegmentError::Os { call, name, source }
}

/// The mapping and everything in it.
///
/// Dropped, it is unmapped; its name stays until [`Segment::unlink`]. A forked child that drops its copy changes nothing.
pub struct Segment {
    mapping: Mapping,
    layout: Layout,
    header: Header,
    name: String,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("name", &self.name)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl Segment {
    /// Makes a segment with a random name, all words zero, ready; dead ones are swept first.
    ///
    /// # Errors
    /// [`SegmentError::Config`], [`SegmentError::NoSpace`] (nothing is left behind), [`SegmentError::Os`].
    pub fn create(config: &Config) -> Result<Segment, SegmentError> {
        let invalid = |why: &dyn ToString| SegmentError::Config(why.to_string());
        let layout =
            Layout::new(config.world_size, config.ring_capacity).map_err(|e| invalid(&e))?;
        let cores = u32::try_from(config.cores)
            .ok()
            .filter(|cores| *cores > 0)
            .ok_or_else(|| invalid(&format!("{} cores", config.cores)))?;
        Self::sweep();
        for _ in 0..NAMES {
            let id = random()?;
            if let Some(segment) = create_as(id, layout, cores)? {
                return Ok(segment);
            }
        }
        Err(SegmentError::Os {
            call: "flock",
            name: name::name_of(&[0; 16]),
            source: io::Error::other("somebody removes every new segment before it is ready"),
        })
    }

    /// Makes a segment for one process alone: `config.world_size` must be 1, and no name is left to clean up.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn alone(config: &Config) -> Result<Segment, SegmentError> {
        if config.world_size != 1 {
            return Err(SegmentError::Config(format!(
                "alone with world size {}",
                config.world_size
            )));
        }
        let segment = Self::create(config)?;
        segment.unlink()?;
        Ok(segment)
    }

    /// Attaches to the segment with this name, which must be for `world_size` ranks; waits until `deadline` for its
    /// creator to finish it.
    ///
    /// # Errors
    /// [`SegmentError::NotFound`] at once if nothing has the name; [`SegmentError::NotReady`] at the deadline;
    /// [`SegmentError::Refused`] for what is no segment of this user, build and world size, is over, or is dead;
    /// [`SegmentError::Os`].
    pub fn open(name: &str, world_size: usize, deadline: Instant) -> Result<Segment, SegmentError> {
        let id = name::id_of(name).ok_or_else(|| {
            SegmentError::refused(
                name,
                Refusal::new("name", "/gradring-<32 hex digits>", name.escape_debug()),
            )
        })?;
        open_standard_descriptors().map_err(os("open", name))?;
        let begun = Instant::now();
        loop {
            if let Some(segment) = try_open(name, id, world_size)? {
                return Ok(segment);
            }
            // No lock is held between two looks, so that a sweeper can come in.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SegmentError::NotReady {
                    name: name.to_owned(),
                    waited: begun.elapsed(),
                });
            }
            thread::sleep(left.min(TICK));
        }
    }

    /// Removes the names of this user's segments in which nobody lives; the names that it removed.
    pub fn sweep() -> Vec<String> {
        name::sweep()
    }

    /// The name, `/gradring-<32 hex digits>`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes the name; true if this call did it. Who has attached stays attached.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn unlink(&self) -> Result<bool, SegmentError> {
        name::unlink(&self.name, self.mapping.inode()).map_err(os("shm_unlink", &self.name))
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What the segment says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.layout.world_size
    }

    /// Distinct CPUs that the replicas together may use, at least 1.
    pub fn cores(&self) -> usize {
        self.header.cores()
    }

    /// The state word.
    pub fn state(&self) -> &State {
        self.mapping.get(layout::STATE)
    }

    /// The poison word.
    pub fn poison(&self) -> &Poison {
        self.mapping.get(layout::POISON)
    }

    /// The barrier.
    pub fn barrier(&self) -> &Barrier {
        self.mapping.get(layout::BARRIER)
    }

    /// The bells of all ranks.
    pub fn bells(&self) -> Bells<'_> {
        let bells = self.mapping.slice(layout::BELLS, self.layout.world_size);
        Bells::new(self.mapping.get(layout::ASLEEP), bells)
    }

    /// The lines of all ranks.
    pub fn ranks(&self) -> &[RankLines] {
        self.mapping
            .slice(self.layout.ranks, self.layout.world_size)
    }

    /// The lines of one rank.
    ///
    /// # Panics
    /// If there is no such rank. A number that a peer wrote must be checked first.
    pub fn rank(&self, rank: usize) -> &RankLines {
        &self.ranks()[rank]
    }

    /// The launcher's lines.
    pub fn launcher(&self) -> &LauncherLines {
        self.mapping.get(layout::LAUNCHER)
    }

    /// The launcher's life token.
    pub fn launcher_life(&self) -> &AtomicU32 {
        &self.launcher().life
    }

    /// The ring of one producer, with a cursor for every rank.
    ///
    /// # Panics
    /// If there is no such rank. A number that a peer wrote must be checked first.
    pub fn ring(&self, rank: usize) -> Ring<'_> {
        let (world_size, capacity) = (self.layout.world_size, self.layout.ring_capacity);
        assert!(rank < world_size, "rank {rank} of {world_size}");
        let ring = self.layout.ring(rank);
        let tail: &Padded<AtomicU64> = self.mapping.get(ring + layout::RING_TAIL);
        let cursors = self.mapping.slice(ring + layout::RING_CURSORS, world_size);
        let bytes = self.mapping.bytes(ring + self.layout.arena, capacity);
        // SAFETY: `capacity` bytes of this mapping, page aligned, that live as long as the borrow of `self` and to which
        // no reference is ever made. One producer and one user of each cursor is what a rank's seat gives its owner.
        let arena = unsafe { Arena::from_raw(bytes, capacity) };
        Ring::new(tail, cursors, arena)
    }
}

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
fn create_as(id: [u8; 16], layout: Layout, cores: u32) -> Result<Option<Segment>, SegmentError> {
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
            free: free_bytes(),
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

/// Attaches if the segment is ready; `None`: not yet, look again.
fn try_open(name: &str, id: [u8; 16], world_size: usize) -> Result<Option<Segment>, SegmentError> {
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
fn open_own(name: &str, access: OFlag) -> Result<Option<File>, SegmentError> {
    match name::open(name, access) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(os("shm_open", name)(error)),
    }
}

/// A descriptor on the same file that has no other use than to be there; `None` if the name stands for another file.
fn canary(name: &str, file: Inode) -> Result<Option<File>, SegmentError> {
    let Some(canary) = open_own(name, OFlag::O_RDONLY)? else {
        return Ok(None);
    };
    let metadata = canary.metadata().map_err(os("fstat", name))?;
    Ok((name::inode(&metadata) == file).then_some(canary))
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

/// Bytes that the file system behind shared memory has left for this user; 0 if it does not say.
fn free_bytes() -> u64 {
    statvfs(name::DIRECTORY).map_or(0, |fs| {
        fs.blocks_available().saturating_mul(fs.fragment_size())
    })
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

/// 128 random bits.
fn random() -> Result<[u8; 16], SegmentError> {
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

fn from_crate(call: &'static str, name: &str, error: ShmemError) -> SegmentError {
    let source = match error {
        ShmemError::MapCreateFailed(code)
        | ShmemError::MapOpenFailed(code)
        | ShmemError::UnknownOsError(code) => io::Error::from_raw_os_error(code as i32),
        ShmemError::MappingIdExists => Errno::EEXIST.into(),
        other => io::Error::other(other.to_string()),
    };
    os(call, name)(source)
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
