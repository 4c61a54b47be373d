//! The sources that are attached at this replica.

use super::{ExternalUpdate, SourceCounts, SourceError, UpdateSource};
use crate::exchange::{Exchange, config::invalid};
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
    /// Why it gave nothing when it was asked last.
    error: Option<SourceError>,
}

/// How a source of an exchange is doing.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SourceStatus<'a> {
    /// What it has done since it was made.
    pub counts: SourceCounts,
    /// Why it gave nothing when it was asked last, if that was an error.
    pub error: Option<&'a SourceError>,
}

impl Sources {
    /// What waits, at most one update a source, each of so many elements.
    pub(in crate::exchange) fn poll(&mut self, elements: usize) -> Vec<ExternalUpdate> {
        self.polled.clear();
        let mut updates = Vec::new();
        for (number, Attached { source, error }) in self.all.iter_mut().enumerate() {
            *error = match source.poll() {
                Ok(None) => None,
                Ok(Some(update)) if update.elements() == elements => {
                    self.polled.push(number);
                    updates.push(update);
                    None
                }
                Ok(Some(update)) => Some(SourceError::Length {
                    expected: elements,
                    found: update.elements(),
                }),
                Err(error) => Some(error),
            };
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
    /// Attaches a source of external updates at this replica: before each step it is asked what has come, and that is
    /// applied at all replicas in the same place, behind all that they gave, scaled as theirs. Local; any replica may have
    /// any number of sources, and each needs to be attached at one only.
    ///
    /// What a source has is kept while nobody gives data. An error of a source stops no step: it gives nothing then, and
    /// [`sources`](Self::sources) says why. What waits in a source is no part of the exchange's
    /// [`State`](crate::checkpoint::State).
    ///
    /// ```
    /// use gradring::exchange::external::{ExternalUpdate, queue};
    /// use gradring::{Exchange, Replica};
    ///
    /// let replica = Replica::join()?;
    /// let mut parameters = vec![0.0_f32; 100];
    /// let mut exchange = Exchange::builder(parameters.len()).build(&replica)?;
    /// let (sender, source) = queue(parameters.len(), 32);
    /// exchange.attach(source)?;
    /// sender.send(ExternalUpdate::hits(100, 0.5, [(7, false), (9, true)])?)?;
    /// let report = exchange.step(Some(&[0.0; 100]), &mut parameters)?;
    /// assert_eq!(report.external_updates, 1);
    /// assert_eq!(parameters[6..10], [0.0, -0.5, 0.0, 0.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] if its updates have another length than the exchange's; [`Error::Invalid`] beyond 65,535 sources.
    pub fn attach(&mut self, source: impl UpdateSource + 'static) -> Result<(), Error> {
        self.check_length("an update of the source", source.elements())?;
        let count = self.sources.all.len();
        if count == usize::from(u16::MAX) {
            return Err(invalid("sources of an exchange", "at most 65,535", count));
        }
        self.sources.all.push(Attached {
            source: Box::new(source),
            error: None,
        });
        Ok(())
    }

    /// How the sources that are attached here are doing, in the order in which they were.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = SourceStatus<'_>> {
        self.sources.all.iter().map(|attached| SourceStatus {
            counts: attached.source.counts(),
            error: attached.error.as_ref(),
        })
    }
}
