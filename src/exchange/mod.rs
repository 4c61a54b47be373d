//! A step: every replica gives an update, or none, and gets the reduced sum.

mod asynchronous;
mod config;
mod hash;
mod lockstep;
mod report;
mod settle;

pub use asynchronous::Asynchronous;
pub use config::{Builder, Reduction};
pub use hash::parameter_hash;
pub use report::Report;
pub use settle::{EpochEnd, SettleReport};

use crate::codec::{
    Apply, EncodeError, Encoder, Path, ScopeState, ScopeStateError, Update, Values,
};
use crate::replica::Cause;
use crate::replica::port::{Port, run};
use crate::replica::shared::Shared;
use crate::replica::wait::Wait;
use crate::replica::{Error, Kind, Operation, broadcast, gather};
use lockstep::Lockstep;
use std::sync::Arc;
use std::time::Instant;

/// One model's compressed exchange of updates, in lockstep.
///
/// Every replica makes its exchanges in the same order and with the same settings ([`Exchange::builder`]), begins with
/// [`start`](Self::start), and then steps. What a step does not send stays in the residual and is sent later: nothing is
/// lost. After every step all replicas hold the same parameters, to the last bit, and prove it to each other by hash.
///
/// ```
/// use gradring::{Exchange, Quantile, Replica};
///
/// let replica = Replica::join()?;
/// let mut parameters = vec![0.0_f32; 10_000];
/// let mut exchange = Exchange::builder(parameters.len()).policy(Quantile::new(1e-2)?).build(&replica)?;
/// exchange.start(&mut parameters)?;
/// for step in 0..10 {
///     // The optimizer's output: what is to be subtracted from the parameters.
///     let update: Vec<f32> = (0..parameters.len()).map(|i| 1e-3 * ((i + step) as f32).sin()).collect();
///     let report = exchange.step(Some(&update), &mut parameters)?;
///     assert!(report.density < 0.1);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Exchange {
    shared: Arc<Shared>,
    index: u16,
    name: String,
    reduction: Reduction,
    check_every: u64,
    encoder: Encoder,
    /// How many steps have been made.
    step: u64,
    /// The hash after the last checked step, until it has been compared.
    hash: Option<u64>,
    /// `None` in lockstep.
    asynchronous: Option<asynchronous::State>,
}

/// What a step does with the reduced sum.
struct Target<'a> {
    kind: Kind,
    vector: &'a mut [f32],
    what: &'static str,
    apply: Apply,
}

impl Exchange {
    /// An exchange of vectors of `length` elements.
    pub fn builder(length: usize) -> Builder {
        Builder::new(length)
    }

    /// The exchange's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The codec's code path.
    pub fn path(&self) -> Path {
        self.encoder.path()
    }

    /// This replica's encoder: what each threshold did, the places of the hits, percentiles of the residual, what the
    /// policies remember.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Lets the policies go on from states that [`Encoder::scope_states`] or [`Encoder::merge_scopes`] gave. Local; the
    /// states may differ between replicas.
    ///
    /// # Errors
    /// [`ScopeStateError`]; nothing has changed then.
    pub fn restore_scopes(&mut self, states: &[ScopeState]) -> Result<(), ScopeStateError> {
        self.encoder.restore_scopes(states)
    }

    /// How many steps have been made.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// What this replica has not sent yet, by element.
    pub fn residual(&self) -> &[f32] {
        self.encoder.residual()
    }

    /// Gives every replica the parameters of rank 0. Blocking.
    ///
    /// # Errors
    /// [`Error::Length`] (local); what ended the run.
    pub fn start(&mut self, parameters: &mut [f32]) -> Result<(), Error> {
        self.check_length("parameters", parameters.len())?;
        broadcast(&self.shared, 0, parameters)
    }

    /// One step: gives this replica's update, or none where its data has run out, and subtracts the reduced sum of what
    /// all replicas sent from the parameters. Blocking.
    ///
    /// The update is a vector, array or slice of f32, f16 or bf16 ([`Update`]).
    ///
    /// # Errors
    /// [`Error::Length`] (local: nothing happened); [`Error::NonFinite`] (agreed: the step happened without those
    /// elements); what ended the run: then parameters and residual are partly updated and must not be used.
    pub fn step(
        &mut self,
        update: Option<&dyn Update>,
        parameters: &mut [f32],
    ) -> Result<Report, Error> {
        if self.asynchronous.is_some() {
            return self.step_asynchronously(update.map(Update::values), parameters);
        }
        let target = Target {
            kind: Kind::Step,
            vector: parameters,
            what: "parameters",
            apply: Apply::Subtract,
        };
        self.exchange(update.map(Update::values), target)
    }

    /// As [`step`](Self::step), but hands over the reduced sum in `sum` instead of applying it. If no replica gave data,
    /// `sum` is left as it is. Since the exchange does not see the parameters, it compares no hashes: call
    /// [`check`](Self::check) now and then.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn all_reduce(
        &mut self,
        update: Option<&dyn Update>,
        sum: &mut [f32],
    ) -> Result<Report, Error> {
        if self.asynchronous.is_some() {
            return Err(Error::Invalid {
                what: "a reduced sum",
                expected: "a lockstep exchange".into(),
                found: "an asynchronous one, whose steps have no common sum".into(),
            });
        }
        let target = Target {
            kind: Kind::StepSum,
            vector: sum,
            what: "the sum",
            apply: Apply::Add,
        };
        self.exchange(update.map(Update::values), target)
    }

    /// Goes on until no replica has any more data, for a replica that has none. Blocking.
    ///
    /// In lockstep it steps without data, as often as the others step with some; asynchronously it settles when they do.
    /// Meanwhile they may only step this exchange.
    ///
    /// # Errors
    /// As [`step`](Self::step) and [`settle`](Self::settle).
    pub fn finish_epoch(&mut self, parameters: &mut [f32]) -> Result<EpochEnd, Error> {
        if self.asynchronous.is_some() {
            return self.finish_epoch_asynchronously(parameters);
        }
        loop {
            let before = self.shared.engine().agreed;
            if self.step(None, parameters)?.epoch_ended() {
                return Ok(EpochEnd::Ended);
            }
            let flags = self.shared.engine().agreed & !before;
            if flags != 0 {
                return Ok(EpochEnd::Interrupted(flags));
            }
        }
    }

    /// Compares the hashes of all replicas' parameters. Blocking.
    ///
    /// # Errors
    /// [`Error::Length`] (local); [`Error::Diverged`], the same on all replicas; what ended the run.
    pub fn check(&mut self, parameters: &[f32]) -> Result<(), Error> {
        self.check_length("parameters", parameters.len())?;
        let hash = parameter_hash(parameters);
        let engine = &mut *self.shared.engine();
        let operation = Operation::new(Kind::Check, self.index, parameters.len() as u64, 0);
        let parts = gather(&self.shared, engine, operation, &hash.to_le_bytes())?;
        let wait = self.shared.wait(operation, engine.number);
        let mut hashes = Vec::with_capacity(parts.len());
        for (rank, part) in parts.iter().enumerate() {
            match part.as_slice().try_into() {
                Ok(bytes) => hashes.push(u64::from_le_bytes(bytes)),
                Err(_) => {
                    return Err(wait.protocol(rank, || {
                        format!("a hash of {} bytes, expected 8", part.len())
                    }));
                }
            }
        }
        compare_hashes(&wait, self.step, hashes)
    }

    fn check_length(&self, what: &'static str, found: usize) -> Result<(), Error> {
        let expected = self.encoder.elements();
        if found == expected {
            Ok(())
        } else {
            Err(Error::Length {
                what,
                expected,
                found,
            })
        }
    }

    fn exchange(
        &mut self,
        update: Option<Values<'_>>,
        target: Target<'_>,
    ) -> Result<Report, Error> {
        self.check_length(target.what, target.vector.len())?;
        let start = Instant::now();
        let length = self.encoder.elements();
        if let Some(update) = update {
            self.check_length("the update", update.len())?;
        }
        let shared = Arc::clone(&self.shared);
        let engine = &mut *shared.engine();
        let operation = Operation::new(target.kind, self.index, length as u64, 0);
        // What entering refuses has not happened: neither policies nor the momentum memory may have seen the update.
        let wait = shared.enter(engine, operation)?;
        let entered = Instant::now();
        if let Some(update) = update {
            self.encoder.begin(self.step, update).map_err(codec_error)?;
        }
        let begun_ns = nanoseconds(entered);
        let layout = self.encoder.layout();
        let mut lockstep = Lockstep {
            exchange: self.index,
            reduction: self.reduction,
            step: self.step,
            hash: self.hash,
            update,
            encoder: &mut self.encoder,
            layout: &layout,
            pending: None,
            published: 0,
            target: &mut *target.vector,
            apply: target.apply,
            heads: None,
            chunk: 0,
            rank: 0,
            dropped: vec![0; shared.world_size],
            report: Report {
                step: self.step,
                ..Report::default()
            },
            port: Port::new(&shared, engine, wait),
        };
        let ran = run(&wait, &mut lockstep, shared.ahead());
        if let Err(error) = ran {
            return Err(lockstep.explain(error));
        }
        let Lockstep {
            mut report,
            dropped,
            heads,
            ..
        } = lockstep;
        engine.agreed |= heads.map_or(0, |heads| heads.agreed);
        self.hash = None;

        if update.is_some() {
            self.encoder.end().map_err(codec_error)?;
            report.note(&self.encoder);
        }
        if report.contributors > 0 {
            if target.kind == Kind::Step
                && (self.step == 0 || (self.step + 1).is_multiple_of(self.check_every))
            {
                self.hash = Some(parameter_hash(target.vector));
            }
            self.step += 1;
        }
        report.encode_ns += begun_ns;
        report.wait_ns = nanoseconds(start).saturating_sub(report.encode_ns + report.decode_ns);

        let total: u64 = dropped.iter().sum();
        match dropped.iter().position(|count| *count > 0) {
            None => Ok(report),
            Some(rank) => Err(Error::NonFinite {
                first: (rank, dropped[rank]),
                total,
            }),
        }
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange")
            .field("name", &self.name)
            .field("reduction", &self.reduction)
            .field("encoder", &self.encoder)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

/// Ends the run if the ranks' hashes, taken after the step before `step`, are not all the same.
fn compare_hashes(wait: &Wait<'_>, step: u64, hashes: Vec<u64>) -> Result<(), Error> {
    match hashes.iter().position(|other| *other != hashes[0]) {
        None => Ok(()),
        Some(rank) => {
            wait.shared.set_divergence(step.saturating_sub(1), hashes);
            Err(wait.poison(Cause::Diverged, rank as u8))
        }
    }
}

/// The codec refuses only slices of wrong lengths, which are compared before it is called, and visits out of turn.
fn codec_error(error: EncodeError) -> Error {
    Error::Invalid {
        what: "a chunk",
        expected: "residual and update of one length".into(),
        found: error.to_string(),
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
