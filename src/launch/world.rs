//! The launcher's side of the segment: makes it, watches the seats, names the culprit, removes it.

use std::sync::Arc;

use super::error::LaunchError;
use crate::replica::{Cause, read_text};
use crate::shm::life::{Holder, Keeper};
use crate::shm::poison::Verdict;
use crate::shm::seat::Seated;
use crate::shm::segment::{Config, Segment, SegmentError};

/// The segment of a run, and the launcher's life token in it. Dropped: the name is gone.
pub(super) struct World {
    segment: Arc<Segment>,
    keeper: Option<Keeper>,
    owner: u32,
}

impl World {
    pub(super) fn create(world_size: usize, ring_capacity: usize) -> Result<World, LaunchError> {
        let segment = Segment::create(&Config {
            ring_capacity,
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

    pub(super) fn seat(&self, rank: usize) -> Seated {
        self.segment.rank(rank).state.get()
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
