//! Uneven ends: what a replica does whose data runs out before that of the others.

use super::config::Schedule;
use super::{Exchange, Report};
use crate::codec::Parameters;
use crate::replica::{Error, Flags};

/// How [`Exchange::finish_epoch`] ended: the same on all replicas, after the same step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochEnd {
    /// No replica has data any more.
    Ended,
    /// A flag was agreed on meanwhile, such as a stop or a checkpoint that is due: the flags that are new. Once they have
    /// been dealt with, the epoch may be finished by another call.
    Interrupted(Flags),
}

impl Exchange {
    /// Takes part in the others' steps, without data, until nobody has any. Blocking.
    ///
    /// All replicas call it, each when its own data of the epoch has run out; meanwhile the others may only step this
    /// exchange. A loop that does more between its steps makes the same number of iterations on all replicas instead,
    /// and steps with `None` where its data has run out. The parameters change as they do on the other replicas. An
    /// asynchronous exchange settles when the others do, until all are done.
    ///
    /// # Errors
    /// [`Error::Length`] (local); [`Error::NonFinite`] (agreed: the step happened; another call goes on, or is
    /// [`Interrupted`](EpochEnd::Interrupted) at once by flags that were agreed on in that step); what ended the run.
    pub fn finish_epoch<P: Parameters + ?Sized>(
        &mut self,
        parameters: &mut P,
    ) -> Result<EpochEnd, Error> {
        self.shared.look_at_stops();
        if let Schedule::Asynchronous(_) = self.schedule {
            let mut parameters = parameters;
            return self.finish_epoch_asynchronously(&mut parameters);
        }
        self.until_the_end(|exchange| exchange.step(None, parameters))
    }

    /// As [`finish_epoch`](Self::finish_epoch), for replicas that call [`all_reduce`](Self::all_reduce): `apply` is called
    /// after each step in which somebody gave data, with the reduced sum and the report, and does what all replicas do
    /// with it: their optimizers must stay the same.
    ///
    /// `sum` is the vector into which sums go.
    ///
    /// # Errors
    /// As [`finish_epoch`](Self::finish_epoch). After [`Error::NonFinite`] `sum` holds the step's sum, to which `apply` has
    /// not been called: the others have the same error from their [`all_reduce`](Self::all_reduce).
    pub fn finish_epoch_with<P: Parameters + ?Sized>(
        &mut self,
        sum: &mut P,
        mut apply: impl FnMut(&mut P, &Report),
    ) -> Result<EpochEnd, Error> {
        self.shared.look_at_stops();
        self.until_the_end(|exchange| {
            let report = exchange.all_reduce(None, sum)?;
            if !report.epoch_ended() {
                apply(sum, &report);
            }
            Ok(report)
        })
    }

    /// Steps until nobody gives data, or a flag is agreed on.
    fn until_the_end(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<Report, Error>,
    ) -> Result<EpochEnd, Error> {
        let missed = std::mem::take(&mut self.missed);
        if !missed.is_empty() {
            return Ok(EpochEnd::Interrupted(missed));
        }
        let before = self.shared.agreed();
        loop {
            let stepped = step(self);
            let flags = self.shared.agreed().without(before);
            if let Err(Error::NonFinite { .. }) = stepped {
                self.missed = flags;
            }
            let report = stepped?;
            if report.epoch_ended() {
                return Ok(EpochEnd::Ended);
            }
            if !flags.is_empty() {
                return Ok(EpochEnd::Interrupted(flags));
            }
        }
    }
}
