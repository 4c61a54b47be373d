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
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use shared_memory::ShmemError;

use super::attach::try_open;
use super::barrier::Arrival;
use super::bell::{Asleep, Bells};
use super::cells::DEFAULT_CELLS;
pub(crate) use super::create::free_bytes;
use super::create::{create_as, random};
use super::descriptor::open_standard_descriptors;
use super::header::{Header, Refusal};
use super::layout::{self, DEFAULT_RING_CAPACITY, Layout};
pub use super::lines::*;
use super::mapping::{Mapping, Shared};
use super::name;
pub(crate) use super::name::DIRECTORY;
use super::poison::Poison;
use super::ring::{Arena, Ring};
use super::state::State;
use super::sync::{AtomicU32, AtomicU64, Futex, Padded};

// SAFETY: made of atomics only, and so all bytes are values.
unsafe impl Shared for State {}
// SAFETY: as above.
unsafe impl Shared for Poison {}
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
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}

/// Between two looks at something that another process does in microseconds.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// How long new names are tried while sweepers remove them in the moment before their lock.
const TRYING: Duration = Duration::from_secs(2);

/// What a new segment is made for.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of ranks, 1..=255.
    pub world_size: usize,
    /// Bytes of each rank's ring, a power of two of at least [`layout::MIN_RING_CAPACITY`].
    pub ring_capacity: usize,
    /// Distinct CPUs that the replicas together may use, at least 1.
    pub cores: usize,
    /// Cells of each rank, for what it counts and sums up.
    pub cells: usize,
}

impl Config {
    /// For `world_size` ranks on `cores` CPUs, with rings and cells as they are by default.
    pub fn new(world_size: usize, cores: usize) -> Self {
        Self {
            world_size,
            ring_capacity: DEFAULT_RING_CAPACITY,
            cores,
            cells: DEFAULT_CELLS,
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
    pub(super) fn refused(name: &str, refusal: Refusal) -> Self {
        Self::Refused {
            name: name.to_owned(),
            what: refusal.what,
            expected: refusal.expected,
            found: refusal.found,
        }
    }
}

/// Names the call in an error.
pub(super) fn os(call: &'static str, name: &str) -> impl FnOnce(io::Error) -> SegmentError {
    let name = name.to_owned();
    move |source| SegmentError::Os { call, name, source }
}

pub(super) fn from_crate(call: &'static str, name: &str, error: ShmemError) -> SegmentError {
    let source = match error {
        ShmemError::MapCreateFailed(code)
        | ShmemError::MapOpenFailed(code)
        | ShmemError::UnknownOsError(code) => io::Error::from_raw_os_error(code as i32),
        ShmemError::MappingIdExists => Errno::EEXIST.into(),
        other => io::Error::other(other.to_string()),
    };
    os(call, name)(source)
}

/// The mapping and everything in it.
///
/// Dropped, it is unmapped; its name stays until [`Segment::unlink`]. A forked child that drops its copy changes nothing.
pub struct Segment {
    pub(super) mapping: Mapping,
    pub(super) layout: Layout,
    pub(super) header: Header,
    pub(super) name: String,
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
        let layout = Layout::new(config.world_size, config.ring_capacity, config.cells)
            .map_err(|e| invalid(&e))?;
        let cores = u32::try_from(config.cores)
            .ok()
            .filter(|cores| *cores > 0)
            .ok_or_else(|| invalid(&format!("{} cores", config.cores)))?;
        Self::sweep();
        let began = Instant::now();
        // A time and not a number of names: who sweeps again and again wins this race more often than not.
        while began.elapsed() < TRYING {
            let id = random()?;
            if let Some(segment) = create_as(id, layout, cores)? {
                return Ok(segment);
            }
        }
        Err(SegmentError::Os {
            call: "flock",
            name: name::DIRECTORY.to_owned(),
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

    /// Every rank's word of the barrier, in rank order.
    pub fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.ranks().iter().map(|lines| &*lines.arrival)
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

    /// Puts all rings at `position`, rounded down to a whole [`UNIT`](super::frame::UNIT), before any rank joins: for tests
    /// of large positions.
    #[cfg(all(feature = "crash-points", not(loom)))]
    pub fn begin_rings_at(&self, position: u64) {
        for rank in 0..self.world_size() {
            self.ring(rank).begin_at(position);
        }
    }

    /// The cells of one rank: all of its words, at first zero. Who may write them says [`cells`](super::cells).
    ///
    /// # Panics
    /// If there is no such rank. A number that a peer wrote must be checked first.
    pub fn cells(&self, rank: usize) -> &[AtomicU64] {
        let world_size = self.layout.world_size;
        assert!(rank < world_size, "rank {rank} of {world_size}");
        let words = self.layout.cells_stride / size_of::<AtomicU64>();
        self.mapping.slice(self.layout.cells(rank), words)
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
