//! A step: every replica gives an update, or none, and gets the reduced sum.
//!
//! It does the work of Deeplearning4j's `EncodedGradientsAccumulator` and mends what is wrong with it:
//!
//! | there | here |
//! |---|---|
//! | threads sleep a millisecond and look again, four times a step | a spin, then a futex: a hand-over takes less than a microsecond |
//! | no time limit; an interrupt is swallowed | every wait has a deadline and ends when somebody dies or aborts |
//! | only the accumulator's own exceptions are shared; a worker that fails elsewhere leaves the others spinning | a panic, an exit, a kill of any replica is an error with its rank on all |
//! | failures are looked for in the order of the workers | whoever waits looks at all |
//! | a lock that an exception leaves locked | nothing on the way of a record is locked |
//! | after an exception the next `fit` hangs | the run is over, says so from every call, and can be started anew |
//! | each message is copied for every worker, idle ones too | one copy in the producer's ring, read by all |
//! | every message is decoded into a zeroed vector, which is subtracted whole | hits go straight into the parameters |
//! | messages come in different orders, and replicas drift apart unseen | one order everywhere; replicas compare hashes |
//! | three to five passes over the vector a step | one |
//! | an atomic increment for each hit | none |
//! | buffers whose size must be guessed | rings whose size does not depend on the model |
//! | a sum, whatever the number of workers | [`Reduction`]: mean or sum |
//! | residuals, thresholds and modes are lost with each `fit` | an [`Exchange`] keeps them, and is a [`State`](crate::checkpoint::State); [`flush`](Exchange::flush) sends them |
//! | infinities freeze weights silently | they are left out and reported ([`Error::NonFinite`]) |
//! | a wrong header writes out of bounds | every field is checked before it is used |

mod asynchronous;
mod backend;
mod bypass;
mod config;
#[cfg_attr(not(feature = "gpu"), path = "no_device.rs")]
mod device;
mod ends;
pub mod external;
mod flush;
mod hash;
mod lockstep;
mod onto;
mod report;
mod settle;
mod stamp;
mod state;
mod streamed;
mod sums;
mod taking;
mod uncompressed;

pub use asynchronous::Asynchronous;
pub use backend::{BackendChoice, BackendKind};
pub use bypass::Bypass;
pub use config::{Builder, Reduction};
pub use ends::EpochEnd;
pub use hash::parameter_hash;
pub use report::Report;
pub use settle::SettleReport;
pub use streamed::OpenStep;

use crate::codec::{
    Apply, Backend, EncodeError, Encoder, Given, Parameters, Path, ScopeState, ScopeStateError,
    Update,
};
use crate::replica::Cause;
use crate::replica::Counters;
use crate::replica::port::{Port, run};
use crate::replica::shared::{Engine, Shared};
use crate::replica::wait::Wait;
use crate::replica::{Error, Flags, Kind, Operation, broadcast, gather};
use asynchronous::Since;
use config::Schedule;
use device::Device;
use external::{ExternalUpdate, Pass, Sources};
use lockstep::{Giving, Lockstep};
use onto::Onto;
use stamp::Stamp;
use std::sync::Arc;
use std::time::Instant;
use taking::Taking;
use uncompressed::Sums;

/// One model's exchange of updates: in lockstep and compressed, unless its [`Builder`] says otherwise.
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
    /// What its ranges are, as replicas have agreed.
    ranges: Vec<String>,
    reduction: Reduction,
    check_every: u64,
    schedule: Schedule,
    /// Elements of the vector.
    length: usize,
    /// Of an uncompressed exchange one for no elements.
    encoder: Encoder,
    /// Of an uncompressed exchange.
    sums: Sums,
    /// For vectors on a device.
    device: Device,
    sources: Sources,
    /// How many steps have been made.
    step: u64,
    /// The hash after the last checked step, until it has been compared.
    hash: Option<u64>,
    /// Of an asynchronous exchange.
    since_settle: Since,
    /// Flags that were agreed on in a step of `finish_epoch` that ended with an error instead of telling them.
    missed: Flags,
}

/// What a step does with the reduced sum.
struct Target<'a> {
    vector: &'a mut dyn Parameters,
    apply: Apply,
}

impl Target<'_> {
    fn what(&self) -> &'static str {
        what_of(self.apply)
    }
}

fn what_of(apply: Apply) -> &'static str {
    match apply {
        Apply::Subtract => "parameters",
        Apply::Add => "the sum",
    }
}

/// A step whose records have all been taken.
struct Concluded {
    report: Report,
    dropped: Vec<u64>,
    /// All ranks' flags.
    agreed: u8,
    updates: Vec<ExternalUpdate>,
    began: Instant,
    /// Whether this replica gave an update.
    gave: bool,
    /// Whether it counts as a step.
    counts: bool,
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

    /// Where updates are encoded now: on the GPU or the processor that was [chosen](Builder::backend), or on the processor
    /// since the exchange fell back to it.
    pub fn backend(&self) -> Backend {
        self.encoder.backend()
    }

    /// This replica's encoder: what each threshold did, the places of the hits, percentiles of the residual, what the
    /// policies remember. Of an [uncompressed](Builder::uncompressed) exchange it is one for no elements.
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

    /// What this replica has not sent yet, by element. Of an uncompressed exchange nothing: it sends everything. Empty where
    /// a GPU encodes: there it is [`Encoder::download_residual`].
    pub fn residual(&self) -> &[f32] {
        self.encoder.residual()
    }

    /// The same, for trainers that add their updates to it in place, between steps, instead of handing them over: a step
    /// of [`InResidual`](crate::InResidual) then moves 4 bytes an element instead of 12.
    ///
    /// What is not finite becomes +0 in the next step and is reported as [`Error::NonFinite`]. Empty where a GPU encodes:
    /// there the residual lies in the buffers that `residual_on_device` gives.
    ///
    /// ```
    /// use gradring::{Exchange, InResidual, Replica};
    ///
    /// let replica = Replica::join()?;
    /// let mut parameters = vec![0.0_f32; 1000];
    /// let mut exchange = Exchange::builder(parameters.len()).build(&replica)?;
    /// exchange.start(&mut parameters)?;
    /// for (r, p) in exchange.residual_mut().iter_mut().zip(&parameters) {
    ///     *r += 0.1 * (p - 1.0);
    /// }
    /// exchange.step(Some(&InResidual), &mut parameters)?;
    /// # Ok::<(), gradring::Error>(())
    /// ```
    pub fn residual_mut(&mut self) -> &mut [f32] {
        self.encoder.residual_mut()
    }

    /// Gives every replica the parameters of rank 0. Blocking.
    ///
    /// # Errors
    /// [`Error::Length`] (local); what ended the run.
    pub fn start<P: Parameters + ?Sized>(&mut self, parameters: &mut P) -> Result<(), Error> {
        let mut parameters = parameters;
        let elements = parameters.elements();
        self.check_length("parameters", elements)?;
        self.check_vector("parameters", &parameters)?;
        self.submit_before()?;
        let gives = self.shared.rank == 0;
        self.staged(&mut parameters, gives, |exchange, parameters| {
            broadcast(&exchange.shared, 0, elements, &mut |range, with| {
                parameters.each(range, with);
            })
        })
    }

    /// One step: gives this replica's update, or none where its data has run out, and subtracts the reduced sum of what
    /// all replicas sent from the parameters. Blocking.
    ///
    /// The update is a vector, array or slice of f32, f16 or bf16, a list of such slices, or in the residual already
    /// ([`Update`]); the parameters are one slice or a list of slices ([`Parameters`]). Either may be in the memory of the
    /// GPU whose context the exchange was made with (`codec::gpu::GradRef`), the parameters with all their parts.
    ///
    /// # Errors
    /// [`Error::Length`], and `Error::Gpu` and [`Error::Invalid`] for vectors on a device that cannot be used (local: nothing
    /// happened); [`Error::NonFinite`] (agreed: the step happened without those elements); what ended the run, `GpuFailed`
    /// among it: then parameters and residual are partly updated and must not be used.
    pub fn step<P: Parameters + ?Sized>(
        &mut self,
        update: Option<&dyn Update>,
        parameters: &mut P,
    ) -> Result<Report, Error> {
        let mut parameters = parameters;
        let target = Target {
            vector: &mut parameters,
            apply: Apply::Subtract,
        };
        self.exchange(update.map(Update::given), target)
    }

    /// As [`step`](Self::step), but hands over the reduced sum in `sum` instead of applying it. If no replica gave data,
    /// `sum` is left as it is. Since the exchange does not see the parameters, it compares no hashes: call
    /// [`check`](Self::check) now and then.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn all_reduce<P: Parameters + ?Sized>(
        &mut self,
        update: Option<&dyn Update>,
        sum: &mut P,
    ) -> Result<Report, Error> {
        let mut sum = sum;
        let target = Target {
            vector: &mut sum,
            apply: Apply::Add,
        };
        self.exchange(update.map(Update::given), target)
    }

    /// Compares the hashes of all replicas' parameters. Blocking.
    ///
    /// # Errors
    /// [`Error::Length`] (local); [`Error::Diverged`], the same on all replicas; what ended the run.
    pub fn check<P: Parameters + ?Sized>(&mut self, mut parameters: &mut P) -> Result<(), Error> {
        let elements = parameters.elements();
        self.check_length("parameters", elements)?;
        self.check_vector("parameters", &parameters)?;
        self.submit_before()?;
        let hash = self.hash_of(&mut parameters)?;
        let engine = &mut *self.shared.engine()?;
        let operation = Operation::new(Kind::Check, self.index, elements as u64, 0);
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
        let expected = self.length;
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

    fn exchange(&mut self, update: Option<Given<'_>>, target: Target<'_>) -> Result<Report, Error> {
        self.check_length(target.what(), target.vector.elements())?;
        if let Some(found) = update.and_then(Given::elements) {
            self.check_length("the update", found)?;
        }
        if let Some(Given::InResidual) = update {
            self.check_in_residual()?;
        }
        self.check_update(update)?;
        self.check_vector(target.what(), target.vector)?;
        self.with_update(update, |exchange, update| {
            exchange.with_target(target, |exchange, target| {
                exchange.exchange_here(update, target)
            })
        })
    }

    /// Does something with a target, which is staged if it is on a device where this schedule applies nothing.
    fn with_target(
        &mut self,
        target: Target<'_>,
        with: impl FnOnce(&mut Self, Target<'_>) -> Result<Report, Error>,
    ) -> Result<Report, Error> {
        if self.schedule.stays_on_device() {
            return with(self, target);
        }
        let apply = target.apply;
        self.staged(target.vector, true, |exchange, vector| {
            with(exchange, Target { vector, apply })
        })
    }

    /// A step of vectors that are where this schedule has them.
    fn exchange_here(
        &mut self,
        update: Option<Given<'_>>,
        target: Target<'_>,
    ) -> Result<Report, Error> {
        match self.schedule {
            Schedule::Asynchronous(settings) => self.step_asynchronously(settings, update, target),
            Schedule::Uncompressed(number) => self.step_uncompressed(number, update, target),
            Schedule::Lockstep => self.lockstep(update, target),
            Schedule::Streamed => self.step_streamed(update, target),
            Schedule::Bypass(how) => self.step_bypassed(how, update, target),
        }
    }

    /// Refuses an update in the residual where it cannot be what is sent.
    fn check_in_residual(&self) -> Result<(), Error> {
        let found = match self.schedule {
            Schedule::Streamed | Schedule::Uncompressed(_) | Schedule::Bypass(Bypass::Whole) => {
                self.schedule.to_string()
            }
            _ if self.encoder.velocity().is_some() => "a momentum memory before it".into(),
            _ => return Ok(()),
        };
        Err(Error::Invalid {
            what: "an update in the residual",
            expected: "an exchange that sends whole residuals as they are".into(),
            found,
        })
    }

    /// A step, or something like one, of this kind. Ranks that are in different epochs do not make the same one.
    fn step_operation(&self, kind: Kind) -> Operation {
        let epoch = self.shared.stage().ordinal();
        Operation::new(kind, self.index, self.length as u64, epoch)
    }

    /// What stands in the records of the next step.
    fn stamp(&self) -> Stamp {
        Stamp {
            exchange: self.index,
            step: self.step,
            hash: self.hash,
        }
    }

    fn lockstep(&mut self, update: Option<Given<'_>>, target: Target<'_>) -> Result<Report, Error> {
        let began = Instant::now();
        let kind = match target.apply {
            Apply::Subtract => Kind::Step,
            Apply::Add => Kind::StepSum,
        };
        let shared = Arc::clone(&self.shared);
        let engine = &mut *shared.engine()?;
        let operation = self.step_operation(kind);
        // What entering refuses has not happened: neither policies nor the momentum memory may have seen the update.
        let wait = shared.enter(engine, operation)?;
        let mut report = Report {
            step: self.step,
            ..Report::default()
        };
        let entered = Instant::now();
        let layout = self.encoder.layout();
        if let Some(update) = update {
            let begun = self.encoder.begin(self.step, update).map_err(codec_error);
            begun.map_err(|error| wait.broken_off(error))?;
        }
        report.encode_ns = nanoseconds(entered);
        let port = Port::new(&shared, engine, wait);
        let (stamp, path, apply) = (self.stamp(), self.encoder.path(), target.apply);
        let onto = Onto::new(&mut self.device, path, &mut *target.vector, apply);
        let mut taking = Taking::new(stamp, self.reduction, &layout, onto, report, port);
        let updates = self.sources.poll();
        taking.announced = updates.len() as u16;
        let giving = match update {
            None => Giving::Nothing,
            Some(update) => Giving::Update(&mut self.encoder, update),
        };
        let taking = run_lockstep(&shared, taking, giving, &updates)?;
        let (mut report, dropped, agreed) = taking.ended()?;
        if update.is_some() {
            let noted = self.note_encoded(&mut report);
            noted.map_err(|error| wait.broken_off(error))?;
        }
        let concluded = Concluded {
            report,
            dropped,
            agreed,
            updates,
            began,
            gave: update.is_some(),
            counts: true,
        };
        self.conclude(engine, target, concluded)
    }

    /// Ends the encoder's step, and notes what it says of it.
    fn note_encoded(&mut self, report: &mut Report) -> Result<(), Error> {
        self.encoder.end().map_err(codec_error)?;
        report.note(&self.encoder);
        Ok(())
    }

    /// What follows when all records of a step have been taken.
    fn conclude(
        &mut self,
        engine: &mut Engine,
        target: Target<'_>,
        concluded: Concluded,
    ) -> Result<Report, Error> {
        let Concluded {
            mut report,
            dropped,
            agreed,
            updates,
            began,
            gave,
            counts,
        } = concluded;
        engine.agree_on(agreed);
        report.backend = BackendKind::of(&self.encoder);
        self.hash = None;
        if report.contributors == 0 {
            self.sources.give_back(updates);
        } else if counts {
            if target.apply == Apply::Subtract
                && (self.step == 0 || (self.step + 1).is_multiple_of(self.check_every))
            {
                let hash = self.hash_of(target.vector);
                self.hash = Some(hash.map_err(|error| self.failed(error))?);
            }
            self.step += 1;
        }
        report.wait_ns = nanoseconds(began).saturating_sub(report.encode_ns + report.decode_ns);
        let steps = u64::from(counts);
        self.shared.count(&Counters {
            steps,
            ..report.counters(gave)
        });

        let total = dropped
            .iter()
            .fold(0_u64, |sum, count| sum.saturating_add(*count));
        match dropped.iter().position(|count| *count > 0) {
            None => Ok(report),
            Some(rank) => Err(Error::NonFinite {
                first: (rank, dropped[rank]),
                total,
            }),
        }
    }
}

/// Runs a step whose ranks all visit the chunks in one order, to its end.
fn run_lockstep<'a>(
    shared: &Shared,
    mut taking: Taking<'a>,
    giving: Giving<'a>,
    updates: &'a [ExternalUpdate],
) -> Result<Taking<'a>, Error> {
    let wait = taking.port.wait;
    taking.announced = updates.len() as u16;
    let mut lockstep = Lockstep::new(taking, giving, Pass::new(updates));
    let ran = run(&wait, &mut lockstep, shared.ahead());
    let mut taking = lockstep.taking;
    match ran {
        Ok(()) => Ok(taking),
        Err(error) => Err(taking.explain(error)),
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

/// Besides what a device refuses: slices of wrong lengths, which are compared before the codec is called, and visits out
/// of turn.
fn codec_error(error: EncodeError) -> Error {
    match error {
        #[cfg(feature = "gpu")]
        EncodeError::Gpu(error) => Error::Gpu(error),
        error => Error::Invalid {
            what: "a chunk",
            expected: "residual and update of one length".into(),
            found: error.to_string(),
        },
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
