//! The sources that are attached at this replica.

use super::{ExternalUpdate, UpdateSource};

/// Sources, by number.
#[derive(Default)]
pub(in crate::exchange) struct Sources {
    all: Vec<Box<dyn UpdateSource>>,
    /// Whose the updates of the last poll are.
    polled: Vec<usize>,
}

impl Sources {
    pub(in crate::exchange) fn len(&self) -> usize {
        self.all.len()
    }

    pub(in crate::exchange) fn add(&mut self, source: Box<dyn UpdateSource>) {
        self.all.push(source);
    }

    /// What waits, at most one update a source.
    pub(in crate::exchange) fn poll(&mut self) -> Vec<ExternalUpdate> {
        self.polled.clear();
        let mut updates = Vec::new();
        for (number, source) in self.all.iter_mut().enumerate() {
            if let Some(update) = source.poll() {
                self.polled.push(number);
                updates.push(update);
            }
        }
        updates
    }

    /// Gives the updates of the last poll back, which nobody has applied.
    pub(in crate::exchange) fn give_back(&mut self, updates: Vec<ExternalUpdate>) {
        for (number, update) in self.polled.drain(..).zip(updates) {
            self.all[number].give_back(update);
        }
    }
}
