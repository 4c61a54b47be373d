//! Waiting: for a condition, with a deadline, watching everybody's life and the poison word.

use super::cause::{Cause, LAUNCHER};
use super::error::Error;
use super::operation::{Kind, Operation, announced, has_come};
use super::shared::Shared;
use crate::shm::crash::{self, Point};
use crate::shm::life::{self, Life};
use crate::shm::poison::Verdict;
use crate::shm::seat::{Sight, sight};
use std::time::{Duration, Instant};

/// How long a rank that has a processor of its own spins before it yields. A hand-over takes about 0.1 us; waking a
/// sleeper takes 3 us and more, and costs the waker a system call.
const SPIN: Duration = Duration::from_micros(30);
/// How often it yields before it sleeps.
const YIELDS: u32 = 20;
/// How often a rank without a processor of its own yields: its peer needs this processor to go on.
const CROWDED_YIELDS: u32 = 40;
/// How long a rank sleeps at most before it looks who is alive. Bounds every detection even if no bell rings.
const SLICE: Duration = Duration::from_millis(20);

/// How long others may write or verify a checkpoint before the deadline counts all the same: any bytes can stand in their words.
const WRITING: Duration = Duration::from_secs(3600);

/// How long a mismatch between other ranks waits for rank 0: who differs is told by what rank 0 came for.
const REFERENCE: Duration = Duration::from_millis(100);

/// What a look at a condition says.
pub(crate) enum Look<T> {
    /// It holds.
    Ready(T),
    /// It does not hold yet; which rank it waits for, if that is known without effort.
    Pending(Option<usize>),
}

/// What a slice's end found.
struct Trouble {
    cause: Cause,
    rank: u8,
}

/// Everything that a wait of one operation needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) operation: Operation,
    pub(crate) number: u64,
    pub(crate) deadline: Duration,
    /// The flags with which this rank entered.
    pub(crate) flags: u8,
}

impl Wait<'_> {
    /// Waits until `look` is ready. The deadline counts from this call, which is this rank's own last progress.
    ///
    /// # Errors
    /// What `look` returns; the poison's error; a death, a leave, a mismatch or the deadline, after poisoning.
    pub(crate) fn until<T>(
        &self,
        mut look: impl FnMut() -> Result<Look<T>, Error>,
    ) -> Result<T, Error> {
        if let Look::Ready(value) = look()? {
            return Ok(value);
        }
        let mut hint = None;
        let crowded = self.shared.crowded();
        // Read only when a burst of looks has found nothing: reading it takes as long as a hand-over.
        let mut started: Option<Instant> = None;
        while !crowded && started.is_none_or(|start| start.elapsed() < SPIN) {
            for turn in 0..64 {
                if turn % 8 == 0 {
                    std::hint::spin_loop();
                }
                if let Look::Ready(value) = look()? {
                    return Ok(value);
                }
            }
            if let Some(result) = self.poisoned(&mut look) {
                return result;
            }
            started = started.or_else(|| Some(Instant::now()));
        }
        let start = started.unwrap_or_else(Instant::now);
        for _ in 0..if crowded { CROWDED_YIELDS } else { YIELDS } {
            std::thread::yield_now();
            match look()? {
                Look::Ready(value) => return Ok(value),
                Look::Pending(other) => hint = other.or(hint),
            }
        }
        let began = start;
        let mut start = start;
        let mut checked: Option<Instant> = None;
        loop {
            // At the first sleep too: a rank that died before this one began to wait is reported at once.
            let since = checked.map_or(SLICE, |checked| checked.elapsed());
            if since >= SLICE {
                let now = Instant::now();
                checked = Some(now);
                if matches!(self.operation.kind, Kind::Checkpoint | Kind::Resume)
                    && began.elapsed() < WRITING
                    && self.shared.others_write()
                {
                    start = now;
                }
                let came = || match look() {
                    Ok(Look::Ready(value)) => Some(Ok(value)),
                    Ok(Look::Pending(_)) => None,
                    Err(error) => Some(Err(error)),
                };
                match sight(came, || self.trouble(start.elapsed(), hint)) {
                    Sight::Came(result) => return result,
                    Sight::NotYet => continue,
                    Sight::Gone(trouble) => {
                        crash::point(Point::DeathFound);
                        return Err(self.poison(trouble.cause, trouble.rank));
                    }
                }
            }
            let mut seen = Ok(Look::Pending(None));
            self.shared
                .segment
                .bells()
                .sleep_unless(self.shared.rank, SLICE - since, || {
                    seen = look();
                    // Poison is a condition too: whoever sets it rings the bells.
                    !matches!(seen, Ok(Look::Pending(_)))
                        || self.shared.segment.poison().get().is_some()
                });
            if let Look::Ready(value) = seen? {
                return Ok(value);
            }
            match look()? {
                Look::Ready(value) => return Ok(value),
                Look::Pending(other) => hint = other.or(hint),
            }
            if let Some(result) = self.poisoned(&mut look) {
                return result;
            }
        }
    }

    /// What a wait ends with once the run is over; `None` while it goes on. What this rank waits for may have come just
    /// before: then the operation can end here as it has elsewhere.
    fn poisoned<T>(
        &self,
        look: &mut impl FnMut() -> Result<Look<T>, Error>,
    ) -> Option<Result<T, Error>> {
        let error = self.shared.check_poison(self).err()?;
        Some(match look() {
            Ok(Look::Ready(value)) => Ok(value),
            Ok(Look::Pending(_)) => Err(error),
            Err(seen) => Err(seen),
        })
    }

    /// Who is dead, gone, elsewhere, or too late.
    fn trouble(&self, waited: Duration, hint: Option<usize>) -> Option<Trouble> {
        let shared = self.shared;
        let segment = &shared.segment;
        let others = || (0..shared.world_size).filter(|&rank| rank != shared.rank);
        for rank in others() {
            let lines = segment.rank(rank);
            if matches!(life::look(&lines.life), Life::Dead) {
                return Some(Trouble {
                    cause: Cause::Died,
                    rank: rank as u8,
                });
            }
            // Nobody leaves between joining and the first operation of all, but for an error.
            if shared.has_left(rank)
                && self.operation.kind != Kind::AsynchronousStep
                && (self.operation.kind == Kind::Join || !has_come(lines, self.number))
            {
                return Some(Trouble {
                    cause: Cause::Left,
                    rank: rank as u8,
                });
            }
        }
        if matches!(life::look(segment.launcher_life()), Life::Dead) {
            return Some(Trouble {
                cause: Cause::LauncherGone,
                rank: LAUNCHER,
            });
        }
        if let Some(rank) = self.mismatch()
            && (waited >= REFERENCE || has_come(segment.rank(0), self.number))
        {
            return Some(Trouble {
                cause: Cause::Mismatch,
                rank,
            });
        }
        if waited >= self.deadline && self.operation.kind == Kind::AsynchronousStep {
            return Some(Trouble {
                cause: Cause::TimedOut,
                rank: hint.unwrap_or(shared.rank) as u8,
            });
        }
        if waited >= self.deadline {
            let missing = others().find(|&rank| !has_come(segment.rank(rank), self.number));
            // Whose record is missing may itself wait for room that another rank does not give.
            let rank = missing
                .or_else(|| shared.behind())
                .or(hint)
                .unwrap_or(shared.rank);
            return Some(Trouble {
                cause: Cause::TimedOut,
                rank: rank as u8,
            });
        }
        None
    }

    /// Whether the run is over, and whether everybody still lives: what a rank looks at that does not wait. One Acquire
    /// load for each.
    pub(crate) fn check_lives(&self) -> Result<(), Error> {
        let (shared, segment) = (self.shared, &self.shared.segment);
        shared.check_poison(self)?;
        let dead = |rank: &usize| matches!(life::look(&segment.rank(*rank).life), Life::Dead);
        if let Some(rank) = (0..shared.world_size).find(dead) {
            return Err(self.poison(Cause::Died, rank as u8));
        }
        if matches!(life::look(segment.launcher_life()), Life::Dead) {
            return Err(self.poison(Cause::LauncherGone, LAUNCHER));
        }
        Ok(())
    }

    /// The lowest rank that came for something else than rank 0 (seen from here: than this rank or rank 0), unless all
    /// that came are in a barrier, which tells its ranks itself.
    fn mismatch(&self) -> Option<u8> {
        if matches!(self.operation.kind, Kind::Join | Kind::AsynchronousStep) {
            // Nobody says anything before the first operation, and steps between two operations are none.
            return None;
        }
        let identity = self.operation.identity();
        let came = |rank: usize| announced(self.shared.segment.rank(rank), self.number);
        let differs = |rank: &usize| {
            came(*rank).is_some_and(|other| {
                let barriers = self.operation.kind.is_by_barrier()
                    && other
                        .operation
                        .is_some_and(|operation| operation.kind.is_by_barrier());
                other.identity != identity && !barriers
            })
        };
        let other = (0..self.shared.world_size).find(differs)?;
        // If rank 0 is the one that differs from this rank, then the lowest rank that differs from rank 0 is sought.
        let zero = came(0).map_or(identity, |zero| zero.identity);
        let lowest = (1..self.shared.world_size)
            .find(|&rank| came(rank).is_some_and(|came| came.identity != zero));
        Some(lowest.unwrap_or(other) as u8)
    }

    /// Poisons the segment because `rank` came for another operation than this rank.
    pub(crate) fn mismatched(&self, rank: usize) -> Error {
        let culprit = self
            .mismatch()
            .unwrap_or(if rank == 0 { self.shared.rank } else { rank } as u8);
        self.poison(Cause::Mismatch, culprit)
    }

    /// Poisons the segment and returns the error of the verdict that holds: the first culprit's.
    pub(crate) fn poison(&self, cause: Cause, rank: u8) -> Error {
        let verdict = self.shared.poison(cause, rank, self.number);
        self.verdict(verdict, None)
    }

    /// As [`poison`](Self::poison), for a broken protocol of which this rank knows the details.
    pub(crate) fn protocol(&self, rank: usize, what: impl FnOnce() -> String) -> Error {
        let verdict = self.shared.poison(Cause::Protocol, rank as u8, self.number);
        self.verdict(verdict, Some(what()))
    }

    /// What an error in the middle of an operation comes to: it ends the run, since the others wait for the rest of it.
    pub(crate) fn broken_off(&self, error: Error) -> Error {
        if error.ends_the_run() {
            return error;
        }
        #[cfg(feature = "gpu")]
        if let Error::Gpu(error) = error {
            return self.shared.gpu_failed(error);
        }
        self.protocol(self.shared.rank, || error.to_string())
    }

    /// The error that a verdict stands for; `what` this rank knows of a broken protocol.
    pub(crate) fn verdict(&self, verdict: Verdict, what: Option<String>) -> Error {
        let during = self.operation;
        let rank = usize::from(verdict.rank);
        let number = verdict.operation_near(self.number);
        let known = rank < self.shared.world_size;
        match Cause::from_u8(verdict.cause) {
            Some(Cause::LauncherGone) => Error::LauncherGone { during },
            Some(Cause::Died) if known => Error::ReplicaDied { rank, during },
            Some(Cause::Left) if known => Error::ReplicaLeft { rank, during },
            Some(Cause::TimedOut) if known => Error::TimedOut {
                rank,
                deadline: self.deadline,
                during,
            },
            Some(Cause::Mismatch) => self.shared.mismatch(number),
            Some(Cause::Panicked) if known => Error::Panicked { rank },
            Some(Cause::Aborted) if known => Error::Aborted {
                rank,
                reason: self.shared.reason(rank),
            },
            Some(Cause::StepAborted) if known => Error::StepAborted { rank },
            Some(Cause::NeverJoined) if known => Error::NeverJoined { rank },
            Some(Cause::Diverged) if known => {
                let (step, hashes) = self.shared.divergence();
                Error::Diverged { step, hashes }
            }
            Some(Cause::Protocol) if known => Error::Protocol {
                rank,
                what: what.unwrap_or_else(|| "found by another replica".into()),
            },
            _ => Error::Protocol {
                rank,
                what: format!("a verdict that no replica gives: {verdict:?}"),
            },
        }
    }
}
