//! Where in its program a replica is: in which epoch, and whether in a data loop.
//!
//! Whoever runs epochs and loops writes it; steps carry the epoch, and synchronizations are counted by it. All replicas are
//! in the same place whenever they do something together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where a replica is. Written by the thread that trains.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// 0 outside of epochs, else the epoch's number and 1.
    epoch: AtomicU64,
    in_loop: AtomicBool,
    broken_off: AtomicBool,
}

impl Stage {
    /// The number of the epoch, from 0; `None` outside of epochs.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.ordinal().checked_sub(1)
    }

    /// What steps carry: 0 outside of epochs, else the epoch's number and 1.
    pub(crate) fn ordinal(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn set_epoch(&self, epoch: Option<u64>) {
        let ordinal = epoch.map_or(0, |epoch| epoch.saturating_add(1));
        self.epoch.store(ordinal, Ordering::Relaxed);
    }

    /// Whether it is in a data loop: what happens there is not done again after a restart.
    pub(crate) fn in_loop(&self) -> bool {
        self.in_loop.load(Ordering::Relaxed)
    }

    pub(crate) fn set_in_loop(&self, in_loop: bool) {
        self.in_loop.store(in_loop, Ordering::Relaxed);
    }

    /// Whether the trainer itself has left a loop because all had agreed to stop: the checkpoint of the stop has to be made
    /// before anything that will be done again.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.broken_off.load(Ordering::Relaxed)
    }

    pub(crate) fn break_off(&self) {
        self.broken_off.store(true, Ordering::Relaxed);
    }
}
