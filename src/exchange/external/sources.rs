//! The sources that are attached at this replica.

use super::{ExternalUpdate, SourceCounts, SourceError, UpdateSource};
use crate::exchange::Exchange;
use crate::exchange::config::Schedule;
use crate::replica::Error;

/// Sources, by number.
#[derive(Default)]
pub(in crate::exchange) struct Sources {
    all: Vec<Attached>,
    /// Whose the updates of the last poll are.
    polled: Vec<usize>,
}

struct Attached {
    source: Box<dyn UpdateSource>,
    /// Of the exchange.
    elements: usize,
    /// Why no more will come from it.
    ended: Option<SourceError>,
}

impl Sources {
    /// What waits, at most one update a source.
    pub(in crate::exchange) fn poll(&mut self) -> Vec<ExternalUpdate> {
        self.polled.clear();
        let mut updates = Vec::new();
        for (number, attached) in self.all.iter_mut().enumerate() {
            if attached.ended.is_some() {
                continue;
            }
            match attached.source.poll() {
                Ok(None) => {}
                Ok(Some(update)) if update.elements() != attached.elements => {
                    attached.ended = Some(SourceError::Length {
                        expected: attached.elements,
                        found: update.elements(),
                    });
                }
                Ok(Some(update)) => {
                    self.polled.push(number);
                    updates.push(update);
                }
                Err(error) => attached.ended = Some(error),
            }
        }
        updates
    }

    /// Gives the updates of the last poll back, which nobody has applied.
    pub(in crate::exchange) fn give_back(&mut self, updates: Vec<ExternalUpdate>) {
        for (number, update) in self.polled.drain(..).zip(updates) {
            self.all[number].source.give_back(update);
        }
    }
}

impl Exchange {
    /// Attaches a source of external updates at this replica alone. It is asked before each step, without waiting; what it
    /// has goes out behind the last chunk of all ranks, and every replica applies it in that place: subtracted from the
    /// parameters or added to the sum, divided as updates are, not counted among those who give data. In a step in which
    /// nobody gives data it waits. A replica without data passes updates on too.
    ///
    /// Its number, by which [`sources`](Self::sources) lists it. Source: Deeplearning4j's external source and its tail.
    ///
    /// # Errors
    /// [`Error::Length`] for a source of another length; [`Error::Invalid`] for an exchange whose steps have no second pass
    /// (asynchronous, uncompressed), or too many sources. Local.
    pub fn attach(&mut self, source: impl UpdateSource + 'static) -> Result<usize, Error> {
        self.check_length("an external source", source.elements())?;
        match self.schedule {
            Schedule::Lockstep | Schedule::Streamed | Schedule::Bypass(_) => {}
            other => {
                return Err(Error::Invalid {
                    what: "schedule of an exchange with external updates",
                    expected: "lockstep, streamed or a bypass".into(),
                    found: other.to_string(),
                });
            }
        }
        let number = self.sources.all.len();
        if number == usize::from(u16::MAX) {
            return Err(Error::Invalid {
                what: "sources of an exchange",
                expected: "at most 65,535".into(),
                found: number.to_string(),
            });
        }
        self.sources.all.push(Attached {
            source: Box::new(source),
            elements: self.length,
            ended: None,
        });
        Ok(number)
    }

    /// What each source that is attached here has done so far, and why no more will come from it, if so.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = (SourceCounts, Option<&SourceError>)> {
        let all = self.sources.all.iter();
        all.map(|attached| (attached.source.counts(), attached.ended.as_ref()))
    }
}
