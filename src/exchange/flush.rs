//! Flushing: the whole residuals at once.

use super::config::Schedule;
use super::lockstep::Giving;
use super::onto::Onto;
use super::taking::Taking;
use super::{Concluded, Exchange, Report, Target, codec_error, run_lockstep};
use crate::codec::{Apply, Dense, Parameters, in_dense_chunks};
use crate::replica::port::Port;
use crate::replica::{Error, Kind};
use std::sync::Arc;
use std::time::Instant;

impl Exchange {
    /// Sends all that waits in the residuals of all replicas at once, uncompressed, and subtracts the reduced sum from
    /// the parameters; all residuals are +0 afterwards. Blocking; all replicas call it together.
    ///
    /// **It often harms the model.** What waits in a residual is motion of many steps ago that the parameters were never
    /// evaluated with, and all of it at once is a large step. It is never done by itself. Use it where nothing may be
    /// missing from a sum, not to end a training: there let the rate decay to 0 and leave the rest.
    ///
    /// It is no step: neither policies nor momentum hear of it, and it does not count in [`steps`](Self::steps).
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Invalid`] where there is no residual to send (local); what ended the run.
    pub fn flush<P: Parameters + ?Sized>(&mut self, parameters: &mut P) -> Result<Report, Error> {
        let mut parameters = parameters;
        self.flush_onto(Target {
            vector: &mut parameters,
            apply: Apply::Subtract,
        })
    }

    /// As [`flush`](Self::flush), but hands over the reduced sum, for replicas that call [`all_reduce`](Self::all_reduce).
    /// The same warning holds.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_all_reduce<P: Parameters + ?Sized>(
        &mut self,
        sum: &mut P,
    ) -> Result<Report, Error> {
        let mut sum = sum;
        self.flush_onto(Target {
            vector: &mut sum,
            apply: Apply::Add,
        })
    }

    fn flush_onto(&mut self, target: Target<'_>) -> Result<Report, Error> {
        self.check_length(target.what(), target.vector.elements())?;
        self.check_vector(target.what(), target.vector)?;
        self.submit_before()?;
        self.with_target(target, Self::flush_here)
    }

    fn flush_here(&mut self, target: Target<'_>) -> Result<Report, Error> {
        let began = Instant::now();
        if let Schedule::Uncompressed(_) = self.schedule {
            return Err(Error::Invalid {
                what: "a flush",
                expected: "an exchange that has a residual".into(),
                found: "an uncompressed one".into(),
            });
        }
        let kind = match target.apply {
            Apply::Subtract => Kind::Flush,
            Apply::Add => Kind::FlushSum,
        };
        let shared = Arc::clone(&self.shared);
        let engine = &mut *shared.engine()?;
        let length = self.length;
        let operation = self.step_operation(kind);
        let wait = shared.enter(engine, operation)?;
        let begun = self.encoder.begin_flush().map_err(codec_error);
        begun.map_err(|error| wait.broken_off(error))?;
        let layout = in_dense_chunks(length, Dense::F32);
        let report = Report {
            step: self.step,
            ..Report::default()
        };
        let port = Port::new(&shared, engine, wait);
        let (stamp, path, apply) = (self.stamp(), self.encoder.path(), target.apply);
        let onto = Onto::new(&mut self.device, path, &mut *target.vector, apply);
        let taking = Taking::new(stamp, self.reduction, &layout, onto, report, port);
        let giving = Giving::Residual(&mut self.encoder, Vec::new());
        let taking = run_lockstep(&shared, taking, giving, &[])?;
        let (report, dropped, agreed) = taking.ended()?;
        let concluded = Concluded {
            report,
            dropped,
            agreed,
            updates: Vec::new(),
            began,
            gave: false,
            counts: false,
        };
        self.conclude(engine, target, concluded)
    }
}
