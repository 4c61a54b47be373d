//! What synchronizations have come to, so that code that is run again after a restart gets the same.
//!
//! A restart in epoch e runs the code from the top of e again, but not the data loops that are over: what it adds outside
//! of them has been counted, and what its synchronizations gave must be given again.

use super::registry::Results;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// One synchronization outside of data loops, as it was when its block began. Never changed again.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// Where it was called.
    pub(super) site: Arc<str>,
    pub(super) results: Arc<Results>,
}

/// The snapshots of one accumulator.
#[derive(Debug, Default)]
pub(super) struct History {
    /// By epoch; `None` for the time outside of epochs.
    pub(super) snapshots: BTreeMap<Option<u64>, Vec<Snapshot>>,
    /// How many synchronizations this process has come to. Not saved.
    come_to: HashMap<Option<u64>, u64>,
}

impl History {
    /// The ordinal of the next synchronization in this epoch, and its snapshot if it has happened before a restart.
    pub(super) fn next(&self, epoch: Option<u64>) -> (u64, Option<&Snapshot>) {
        let ordinal = self.come_to.get(&epoch).copied().unwrap_or(0);
        let snapshots = self.snapshots.get(&epoch);
        let at = usize::try_from(ordinal).ok();
        (ordinal, snapshots.zip(at).and_then(|(all, at)| all.get(at)))
    }

    /// One more has been come to.
    pub(super) fn count(&mut self, epoch: Option<u64>) {
        *self.come_to.entry(epoch).or_insert(0) += 1;
    }

    /// Keeps what one more has come to.
    pub(super) fn record(&mut self, epoch: Option<u64>, snapshot: Snapshot) {
        self.count(epoch);
        self.snapshots.entry(epoch).or_default().push(snapshot);
    }

    /// Drops what is never replayed: all epochs before this one. Outside of epochs, once something new happens there, all
    /// epochs so far are over.
    pub(super) fn prune(&mut self, epoch: Option<u64>) {
        let stays = |of: Option<u64>| match (of, epoch) {
            (None, _) => true,
            (Some(of), Some(now)) => of >= now,
            (Some(_), None) => false,
        };
        self.snapshots.retain(|of, _| stays(*of));
        self.come_to.retain(|of, _| stays(*of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(site: &str) -> Snapshot {
        Snapshot {
            site: site.into(),
            results: Arc::default(),
        }
    }

    #[test]
    fn what_this_process_has_not_come_to_is_replayed() {
        let mut history = History::default();
        history.record(Some(3), snapshot("a"));
        history.record(Some(3), snapshot("b"));
        let mut restarted = History {
            snapshots: history.snapshots.clone(),
            ..History::default()
        };
        let site = |(ordinal, found): (u64, Option<&Snapshot>)| {
            (ordinal, found.map(|found| found.site.to_string()))
        };
        assert_eq!(site(history.next(Some(3))), (2, None));
        assert_eq!(site(restarted.next(Some(3))), (0, Some("a".into())));
        restarted.count(Some(3));
        assert_eq!(site(restarted.next(Some(3))), (1, Some("b".into())));
        restarted.count(Some(3));
        assert_eq!(site(restarted.next(Some(3))), (2, None));
    }

    #[test]
    fn finished_epochs_go_and_the_time_outside_of_epochs_stays() {
        let mut history = History::default();
        for epoch in [None, Some(1), Some(2), Some(3)] {
            history.record(epoch, snapshot("x"));
        }
        let epochs = |history: &History| history.snapshots.keys().copied().collect::<Vec<_>>();
        history.prune(Some(2));
        assert_eq!(epochs(&history), [None, Some(2), Some(3)]);
        history.prune(None);
        assert_eq!(epochs(&history), [None]);
    }
}
