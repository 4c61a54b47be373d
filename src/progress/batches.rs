//! A loop over data.

use super::leave;
use super::position::{Ahead, Position};
use super::sampler::{Pass, Sampler};
use super::tracker::Tracker;
use crate::replica::{Error, Kind, NOTHING, Operation, Replica, digest};
use std::sync::Arc;

/// One replica's samples of one iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    indices: Vec<usize>,
    together: usize,
}

impl Batch {
    /// Which samples of the data set, by index. None where this replica's data ran out before the others': it takes part
    /// in the iteration all the same, with `None` for its update.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// How many samples these are.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are none for this replica.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// How many samples all replicas have together in this iteration.
    ///
    /// The mean over all these samples is a step of each replica's sum over its own, times the number of replicas that
    /// have any, divided by this: [`Reduction::Mean`](crate::Reduction::Mean) divides by that number again. It is the
    /// smaller one of the world size and this. With [`Reduction::Sum`](crate::Reduction::Sum) only divide.
    pub fn together(&self) -> usize {
        self.together
    }
}

/// The iterations that are left of a data loop, from [`Replica::batches`].
///
/// All replicas make the same number. Each begins with what a [`checkpoint_point`](Replica::checkpoint_point) does; from
/// when a batch has been handed out, it counts as done. The loop is over when this ends or is dropped. After an error it
/// ends, and the loop is not over: asked for again, it goes on where it was.
#[derive(Debug)]
#[must_use = "a data loop does nothing until it is iterated over"]
pub struct Batches<'a> {
    replica: &'a Replica,
    tracker: Arc<Tracker>,
    number: u64,
    /// `None` if there is nothing to do.
    pass: Option<Pass>,
    /// The replicas had stopped before.
    stopped: bool,
    over: bool,
}

/// How a loop is left.
#[derive(Clone, Copy)]
enum Left {
    Finished,
    Unfinished,
}

impl<'a> Batches<'a> {
    pub(super) fn begin(replica: &'a Replica, name: &str, sampler: Sampler) -> Result<Self, Error> {
        replica.shared().look_at_stops();
        let tracker = Tracker::of(replica)?;
        let ahead = tracker.lock().ahead(name, &sampler)?;
        if let Ahead::Runs(what) = ahead {
            agree_on_loop(replica, &what)?;
        }
        let position: &mut Position = &mut tracker.lock();
        let (number, pass) = position.begin_loop(name, &sampler)?;
        let stopped = position.is_stopped();
        Ok(Self {
            replica,
            tracker: Arc::clone(&tracker),
            number,
            pass,
            stopped,
            over: false,
        })
    }

    /// How many iterations are left: the same number on every replica. 0 in a loop that a checkpoint has as finished.
    pub fn iterations_left(&self) -> u64 {
        match &self.pass {
            Some(pass) if !self.over => pass.iterations_left(),
            _ => 0,
        }
    }

    fn advance(&mut self) -> Result<Option<Batch>, Error> {
        if self.stopped {
            self.replica.checkpoint_point()?;
            return Ok(None);
        }
        let Some(pass) = &mut self.pass else {
            return Ok(None);
        };
        if !self.tracker.lock().is_in_loop(self.number) {
            // The epoch that it was in is over.
            return Ok(None);
        }
        self.replica.shared().stage().set_in_loop(true);
        if self.replica.checkpoint_point()?.is_some() {
            self.tracker.lock().stop();
            return Ok(None);
        }
        let Some(indices) = pass.next() else {
            return Ok(None);
        };
        self.tracker.lock().set_begun(self.number, pass.begun());
        // Not more than there are samples, which is a usize.
        let together = pass.last_together() as usize;
        Ok(Some(Batch { indices, together }))
    }

    fn end(&mut self, left: Left) {
        self.over = true;
        let mut position = self.tracker.lock();
        if !position.is_in_loop(self.number) {
            return;
        }
        self.replica.shared().stage().set_in_loop(false);
        match left {
            Left::Finished if !position.is_stopped() => position.finish_loop(self.number),
            _ => position.leave_loop(self.number),
        }
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.advance().transpose();
        match next {
            Some(Ok(_)) => {}
            None => self.end(Left::Finished),
            Some(Err(_)) => self.end(Left::Unfinished),
        }
        next
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let most = usize::try_from(self.iterations_left());
        // A stop ends it before; an error takes the place of what follows.
        (0, most.ok().and_then(|most| most.checked_add(1)))
    }
}

impl Drop for Batches<'_> {
    fn drop(&mut self) {
        if !self.over {
            leave(self.replica, &self.tracker);
            self.end(Left::Finished);
        }
    }
}

/// Makes sure that all replicas begin the same loop. One barrier.
fn agree_on_loop(replica: &Replica, what: &str) -> Result<(), Error> {
    let shared = replica.shared();
    let operation = Operation::new(Kind::Loop, 0, 0, digest(NOTHING, what.bytes()));
    let met = shared.meet(&mut *shared.engine()?, operation);
    match met {
        Err(Error::Mismatch { came, .. })
            if came
                .iter()
                .all(|(_, operation)| operation.kind == Kind::Loop)
                && came.len() == replica.world_size() =>
        {
            let said = replica.all_gather(what.as_bytes())?;
            let said = said
                .iter()
                .map(|said| String::from_utf8_lossy(said).into_owned());
            Err(Error::Disagreement {
                what: "a data loop".to_owned(),
                field: "what is to run".to_owned(),
                values: said.enumerate().collect(),
            })
        }
        met => met,
    }
}
