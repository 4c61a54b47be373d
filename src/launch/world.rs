//! The launcher's side of the segment: makes it, watches the seats, names the culprit, removes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::LaunchError;
use crate::replica::{Cause, Flags, read_text};
use crate::shm::layout::Layout;
use crate::shm::life::{Holder, Keeper, Life, look};
use crate::shm::poison::Verdict;
use crate::shm::seat::Seated;
use crate::shm::segment::{BEGUN, Config, DIRECTORY, Segment, SegmentError, free_bytes};

/// The segment of a run, and the launcher's life token in it. Dropped: the name is gone.
pub(super) struct World {
    segment: Arc<Segment>,
    keeper: Option<Keeper>,
    owner: u32,
}

impl World {
    pub(super) fn create(
        world_size: usize,
        ring_capacity: usize,
        cells: usize,
    ) -> Result<World, LaunchError> {
        let segment = Segment::create(&Config {
            ring_capacity,
            cells,
            ..Config::new(world_size, cores())
        })?;
        // From here on dropping it removes the name.
        let mut world = World {
            segment: Arc::new(segment),
            keeper: None,
            owner: std::process::id(),
        };
        let keeper = Keeper::start(Arc::clone(&world.segment), Holder::Launcher, None).map_err(
            |source| LaunchError::Os {
                call: "starting the engine thread",
                source,
            },
        )?;
        world.keeper = Some(keeper);
        Ok(world)
    }

    pub(super) fn name(&self) -> &str {
        self.segment.name()
    }

    /// How many ranks it has.
    pub(super) fn size(&self) -> usize {
        self.segment.world_size()
    }

    pub(super) fn seat(&self, rank: usize) -> Seated {
        self.segment.rank(rank).state.get()
    }

    /// Whether a living process has joined as `rank` and not left.
    pub(super) fn lives(&self, rank: usize) -> bool {
        let lines = self.segment.rank(rank);
        lines.state.get() != Seated::Left && matches!(look(&lines.life), Life::Alive { .. })
    }

    /// Whether any rank has ever come.
    pub(super) fn anybody_came(&self) -> bool {
        (0..self.segment.world_size()).any(|rank| self.seat(rank) != Seated::Free)
    }

    /// Ends the run for all that wait in it: `rank` is to blame, unless somebody else is already.
    pub(super) fn poison(&self, rank: usize, cause: Cause) {
        // At most 255 replicas, so the rank fits.
        self.segment
            .poison()
            .set(Verdict::new(rank as u8, cause as u8, 0));
        self.segment.bells().ring();
    }

    /// Who is to blame, if the word makes sense: any bytes can stand in a segment.
    pub(super) fn culprit(&self) -> Option<(usize, Cause)> {
        let verdict = self.segment.poison().get()?;
        let rank = usize::from(verdict.rank);
        (rank < self.segment.world_size()).then_some((rank, Cause::from_u8(verdict.cause)?))
    }

    /// The flags on which the replicas have agreed, as far as `rank` knows.
    pub(super) fn agreed_by(&self, rank: usize) -> Flags {
        // The flags are the lowest byte.
        Flags::from_bits(self.status(rank) as u8)
    }

    /// The flags on which the replicas have agreed, as far as any of them knows.
    pub(super) fn agreed(&self) -> Flags {
        let ranks = (0..self.size()).map(|rank| self.agreed_by(rank));
        ranks.fold(Flags::NONE, |all, flags| all | flags)
    }

    /// Whether every replica has entered an operation, after joining and resuming.
    pub(super) fn all_begun(&self) -> bool {
        (0..self.size()).all(|rank| self.status(rank) & BEGUN != 0)
    }

    fn status(&self, rank: usize) -> u32 {
        let identity = &self.segment.rank(rank).identity;
        identity.status.load(Ordering::Relaxed)
    }

    /// Each replica raises these flags when it next enters an operation.
    pub(super) fn ask(&self, flags: Flags) {
        let raised = &self.segment.launcher().identity.raised;
        raised.fetch_or(u32::from(flags.bits()), Ordering::Relaxed);
    }

    /// Takes back what was [asked](Self::ask) for, for those who have not seen it yet.
    pub(super) fn ask_no_more(&self, flags: Flags) {
        let raised = &self.segment.launcher().identity.raised;
        raised.fetch_and(!u32::from(flags.bits()), Ordering::Relaxed);
    }

    /// Whether a segment of another size would have room in place of this one; if not, why.
    pub(super) fn room_for(
        &self,
        replicas: usize,
        ring_capacity: usize,
        cells: usize,
    ) -> Result<(), String> {
        let layout =
            Layout::new(replicas, ring_capacity, cells).map_err(|error| error.to_string())?;
        let need = layout.total as u64;
        // Where the system does not say, the attempt will.
        let free = free_bytes().unwrap_or(u64::MAX);
        let free = free.saturating_add(self.segment.layout().total as u64);
        if need > free {
            return Err(format!(
                "{DIRECTORY} has no room for {replicas} replicas: {need} bytes needed, {free} free"
            ));
        }
        Ok(())
    }

    /// Why `rank` aborted, as far as it can be read.
    pub(super) fn reason(&self, rank: usize) -> String {
        read_text(&self.segment.rank(rank).reason).replace(|c: char| c.is_control(), " ")
    }

    /// The run is over: nobody comes or looks on any more, and the name is gone. Who has the segment mapped keeps it.
    pub(super) fn close(&self) -> Result<(), SegmentError> {
        if self.owner != std::process::id() {
            return Ok(());
        }
        self.segment.state().close();
        self.segment.unlink().map(drop)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A failure leaves the name to the next start's sweep; there is nobody to tell.
        let _ = self.close();
        if let Some(keeper) = self.keeper.take() {
            keeper.leave();
        }
    }
}

/// How many CPUs the replicas together may use: they inherit the affinity of this thread, and share its quota.
///
/// Right in the launcher only: a replica that is bound to its core would see that one core.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
