//! The loop over epochs.

use super::leave;
use super::tracker::Tracker;
use crate::replica::{Error, Replica};
use std::sync::Arc;

/// The epochs that are left, from [`Replica::epochs`].
///
/// An epoch is finished when the next one is asked for, or when this is dropped: however its body is left. Before an
/// epoch begins, what a [`checkpoint_point`](Replica::checkpoint_point) does is done. After an error this iterator ends.
#[derive(Debug)]
#[must_use = "epochs do nothing until they are iterated over"]
pub struct Epochs<'a> {
    replica: &'a Replica,
    tracker: Arc<Tracker>,
    until: u64,
    over: bool,
}

impl<'a> Epochs<'a> {
    pub(super) fn begin(replica: &'a Replica, until: u64) -> Result<Self, Error> {
        replica.shared().look_at_stops();
        let tracker = Tracker::of(replica)?;
        tracker.lock().begin_epochs()?;
        Ok(Self {
            replica,
            tracker,
            until,
            over: false,
        })
    }

    fn advance(&mut self) -> Result<Option<u64>, Error> {
        self.tracker.lock().end_epoch()?;
        let stage = self.replica.shared().stage();
        stage.set_epoch(None);
        if self.replica.checkpoint_point()?.is_some() {
            self.tracker.lock().stop();
        }
        let epoch = self.tracker.lock().begin_epoch(self.until);
        stage.set_epoch(epoch);
        Ok(epoch)
    }

    fn end(&mut self, finish: bool) {
        self.over = true;
        self.tracker.lock().end_epochs(finish);
        let stage = self.replica.shared().stage();
        stage.set_epoch(None);
        // A loop that outlives its epoch is none any more.
        stage.set_in_loop(false);
    }
}

impl Iterator for Epochs<'_> {
    type Item = Result<u64, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.advance().transpose();
        match next {
            Some(Ok(_)) => {}
            None => self.end(true),
            // What could not be finished is not.
            Some(Err(_)) => self.end(false),
        }
        next
    }
}

impl Drop for Epochs<'_> {
    fn drop(&mut self) {
        if !self.over {
            leave(self.replica, &self.tracker);
            self.end(true);
        }
    }
}
