//! The streamed schedule: parts of an update go out as backward makes them, so that the exchange hides behind it.
//!
//! A chunk is published as soon as all of it has been pushed, if its largest record fits this rank's ring now; what does
//! not fit stays in the residual until [`OpenStep::finish`]. Nothing is taken before that. Ranks publish their chunks in
//! different orders; a rank's next record may be taken as soon as all ranks below it have had that chunk: the order of
//! each element is still that of the ranks.

use super::config::Schedule;
use super::external::{ExternalUpdate, Pass};
use super::onto::Onto;
use super::stamp::{Stamp, with_message};
use super::taking::{Taking, largest_payload};
use super::{Concluded, Exchange, Report, Target, codec_error, nanoseconds, what_of};
use crate::codec::{Apply, Encoder, Given, Parameters, Values};
use crate::replica::port::{Blocked, Port, run};
use crate::replica::progress::Lists;
use crate::replica::record::Record;
use crate::replica::shared::{Engine, Shared};
use crate::replica::wait::Wait;
use crate::replica::{Cause, Error, Kind, Operation};
use crate::shm::crash::{self, Point};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A streamed step that has begun: parts of the update are pushed in any order, then it is finished.
///
/// It owns the replica: until it is finished every other operation is [`Error::StepOpen`]. Dropped before something went
/// out, the step has not happened; what was pushed stays in the residual and goes out later. Dropped afterwards, the run
/// ends with [`Error::StepAborted`] on all replicas.
///
/// ```
/// use gradring::{Exchange, Replica};
///
/// let replica = Replica::join()?;
/// let mut parameters = vec![0.0_f32; 1000];
/// let mut exchange = Exchange::builder(parameters.len()).streamed().build(&replica)?;
/// exchange.start(&mut parameters)?;
/// let mut step = exchange.begin()?;
/// // Backward: the last layer's update is known first.
/// step.push(400..1000, &[0.5_f32; 600])?;
/// step.push(0..400, &[0.25_f32; 400])?;
/// let report = step.finish(&mut parameters)?;
/// assert_eq!(report.contributors, 1);
/// # Ok::<(), gradring::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a step that is dropped is given up"]
pub struct OpenStep<'a> {
    exchange: &'a mut Exchange,
    operation: Operation,
    apply: Apply,
    /// Whether anything has been pushed.
    pushed: bool,
    /// Number and flags of the operation; it is entered when the first record goes out.
    entered: Option<(u64, u8)>,
    updates: Vec<ExternalUpdate>,
    /// How many chunks are out.
    published: u64,
    out: Vec<bool>,
    complete: Vec<usize>,
    report: Report,
    /// Inside a push; still so afterwards: that has panicked.
    pushing: bool,
    finished: bool,
}

impl Exchange {
    /// Begins a streamed step, whose sum is subtracted from the parameters. Does not wait, unless a barrier that was
    /// entered must be finished first.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the exchange was made [`streamed`](super::Builder::streamed) (local); what ended the run.
    pub fn begin(&mut self) -> Result<OpenStep<'_>, Error> {
        self.open(Kind::Streamed, Apply::Subtract)
    }

    /// As [`begin`](Self::begin), for a step that hands over the reduced sum, as [`all_reduce`](Self::all_reduce) does.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_all_reduce(&mut self) -> Result<OpenStep<'_>, Error> {
        self.open(Kind::StreamedSum, Apply::Add)
    }

    fn open(&mut self, kind: Kind, apply: Apply) -> Result<OpenStep<'_>, Error> {
        if self.schedule != Schedule::Streamed {
            return Err(Error::Invalid {
                what: "a step in parts",
                expected: "an exchange that was made streamed".into(),
                found: self.schedule.to_string(),
            });
        }
        let operation = self.step_operation(kind);
        let chunks = self.encoder.chunks();
        self.shared.open_step(operation)?;
        Ok(OpenStep {
            operation,
            apply,
            pushed: false,
            entered: None,
            updates: Vec::new(),
            published: 0,
            out: vec![false; chunks],
            complete: Vec::new(),
            report: Report {
                step: self.step,
                ..Report::default()
            },
            pushing: false,
            finished: false,
            exchange: self,
        })
    }

    /// A whole update as a streamed step.
    pub(super) fn step_streamed(
        &mut self,
        update: Option<Given<'_>>,
        target: Target<'_>,
    ) -> Result<Report, Error> {
        let mut step = match target.apply {
            Apply::Subtract => self.begin()?,
            Apply::Add => self.begin_all_reduce()?,
        };
        match update {
            None | Some(Given::InResidual) => {}
            #[cfg(feature = "gpu")]
            Some(Given::Device(_)) => {
                return Err(super::codec_error(crate::codec::EncodeError::OnDevice));
            }
            Some(Given::Slice(values)) => step.push(0..values.len(), values)?,
            Some(Given::Parts(parts)) => {
                let mut start = 0;
                for part in parts {
                    step.push(start..start + part.len(), *part)?;
                    start += part.len();
                }
            }
        }
        step.run_here(target.vector)
    }
}

impl OpenStep<'_> {
    /// Gives the elements of a range, as f32, f16 or bf16. Each element must be given once, in any order and in any
    /// ranges. Never waits, and applies nothing.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::Invalid`] for a range that is not the part's length, not inside the vector, or
    /// overlaps what has been given (local: nothing happened); what ended the run.
    pub fn push<'v>(
        &mut self,
        elements: Range<usize>,
        part: impl Into<Values<'v>>,
    ) -> Result<(), Error> {
        self.check_open()?;
        let part = part.into();
        if part.len() != elements.len() {
            return Err(Error::Length {
                what: "a part of the update",
                expected: elements.len(),
                found: part.len(),
            });
        }
        if elements.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let exchange = &mut *self.exchange;
        self.complete.clear();
        self.pushing = true;
        let begun = match self.pushed {
            true => Ok(()),
            false => exchange.encoder.begin_streamed(exchange.step),
        };
        self.pushed |= begun.is_ok();
        let complete = &mut self.complete;
        let pushed = begun.and_then(|()| exchange.encoder.push(elements, part, complete));
        self.pushing = false;
        pushed.map_err(codec_error)?;
        self.report.encode_ns += nanoseconds(began);
        let shared = Arc::clone(&exchange.shared);
        let engine = &mut *shared.engine()?;
        for at in 0..self.complete.len() {
            self.publish_if_it_fits(engine, self.complete[at])?;
        }
        Ok(())
    }

    /// Publishes what has not gone out, takes what all replicas gave and subtracts the reduced sum from the parameters, or
    /// hands it over, as the step was begun. Blocking. Nothing pushed: this replica gives no data.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Invalid`] when elements have not been given (local: the step stays open);
    /// [`Error::NonFinite`] (agreed); what ended the run.
    pub fn finish<P: Parameters + ?Sized>(&mut self, vector: &mut P) -> Result<Report, Error> {
        let mut vector = vector;
        self.run(&mut vector)
    }

    /// Finishes the step onto a vector that may be on a device.
    fn run(&mut self, vector: &mut dyn Parameters) -> Result<Report, Error> {
        self.check_open()?;
        let (what, exchange) = (what_of(self.apply), &mut *self.exchange);
        exchange.check_length(what, vector.elements())?;
        exchange.check_vector(what, vector)?;
        exchange.submit_before()?;
        match exchange.bring_in(vector, true)? {
            None => self.run_here(vector),
            Some(mut room) => {
                let outcome = self.run_here(&mut room);
                self.exchange.bring_back(vector, room, outcome)
            }
        }
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.finished {
            return Err(Error::Invalid {
                what: "a step in parts",
                expected: "one that is open".into(),
                found: "one that has been finished".into(),
            });
        }
        if self.pushing {
            return Err(Error::Invalid {
                what: "a step in parts",
                expected: "one that is whole".into(),
                found: "one in which a push has panicked, which can only be given up".into(),
            });
        }
        Ok(())
    }

    fn publish_if_it_fits(&mut self, engine: &mut Engine, chunk: usize) -> Result<(), Error> {
        let began = Instant::now();
        let shared = Arc::clone(&self.exchange.shared);
        let largest = largest_payload(&self.exchange.encoder.layout()[chunk]);
        let wait = shared.wait(self.operation, engine.number);
        if !Port::new(&shared, engine, wait).fits(largest)? {
            return Ok(());
        }
        let wait = self.enter(&shared, engine)?;
        let next = Next {
            stamp: self.exchange.stamp(),
            updates: self.updates.len() as u16,
            published: self.published,
        };
        let record = next.encode(&mut self.exchange.encoder, chunk)?;
        let payload = self.exchange.encoder.payload();
        let mut port = Port::new(&shared, engine, wait);
        if !port.publish(record, payload)? {
            // Nobody else publishes here, so that room which was there is there. Unless its words were overwritten.
            return Err(wait.protocol(shared.rank, || "the room in its ring went away".into()));
        }
        self.report.bytes += (size_of::<Record>() + payload.len()) as u64;
        self.published += 1;
        self.out[chunk] = true;
        self.report.encode_ns += nanoseconds(began);
        Ok(())
    }

    /// Enters the operation with the first record that goes out.
    fn enter<'s>(&mut self, shared: &'s Shared, engine: &mut Engine) -> Result<Wait<'s>, Error> {
        if let Some((number, flags)) = self.entered {
            return Ok(Wait {
                flags,
                ..shared.wait(self.operation, number)
            });
        }
        let wait = shared.enter_open_step(engine, self.operation)?;
        self.entered = Some((wait.number, wait.flags));
        self.updates = self.exchange.sources.poll();
        Ok(wait)
    }

    fn run_here(&mut self, vector: &mut dyn Parameters) -> Result<Report, Error> {
        let began = Instant::now();
        self.check_open()?;
        if self.pushed {
            let missing = self.exchange.encoder.check_pushed();
            missing.map_err(codec_error)?;
        }
        let shared = Arc::clone(&self.exchange.shared);
        let engine = &mut *shared.engine()?;
        let wait = self.enter(&shared, engine)?;
        crash::point(Point::PartsOut);
        let updates = std::mem::take(&mut self.updates);
        let layout = self.exchange.encoder.layout();
        // Local errors have left the step open; from here on whatever fails ends the run.
        self.finished = true;
        shared.close_step(engine);
        let exchange = &mut *self.exchange;
        let report = std::mem::take(&mut self.report);
        // What pushing took came before, so that it is no part of what was waited.
        let pushing = Duration::from_nanos(report.encode_ns);
        let began = began.checked_sub(pushing).unwrap_or(began);
        let port = Port::new(&shared, engine, wait);
        let (stamp, path) = (exchange.stamp(), exchange.encoder.path());
        let onto = Onto::new(&mut exchange.device, path, &mut *vector, self.apply);
        let mut taking = Taking::new(stamp, exchange.reduction, &layout, onto, report, port);
        taking.announced = updates.len() as u16;
        let mut streamed = Streamed {
            taking,
            encoder: self.pushed.then_some(&mut exchange.encoder),
            pass: Pass::new(&updates),
            out: &mut self.out,
            published: self.published,
            visit: 0,
            pending: None,
            turns: Vec::new(),
            taken: vec![0; shared.world_size],
            from: 0,
            missing: None,
        };
        let ran = run(&wait, &mut streamed, u64::MAX);
        let Streamed { mut taking, .. } = streamed;
        if let Err(error) = ran {
            return Err(taking.explain(error));
        }
        let (mut report, dropped, agreed) = taking.ended()?;
        if self.pushed {
            let noted = self.exchange.note_encoded(&mut report);
            noted.map_err(|error| wait.broken_off(error))?;
        }
        let concluded = Concluded {
            report,
            dropped,
            agreed,
            updates,
            began,
            gave: self.pushed,
            counts: true,
        };
        let target = Target {
            vector,
            apply: self.apply,
        };
        self.exchange.conclude(engine, target, concluded)
    }
}

impl Drop for OpenStep<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let shared = Arc::clone(&self.exchange.shared);
        if let Ok(mut engine) = shared.engine() {
            shared.close_step(&mut engine);
        }
        if self.pushed {
            // What has gone out ends the run below; what has not stays in the residual.
            let _ = self.exchange.encoder.abandon_streamed();
        }
        if let Some((number, _)) = self.entered {
            let cause = if std::thread::panicking() {
                Cause::Panicked
            } else {
                Cause::StepAborted
            };
            shared.poison(cause, shared.rank as u8, number);
        }
    }
}

/// The next record that this rank publishes.
struct Next {
    stamp: Stamp,
    updates: u16,
    published: u64,
}

impl Next {
    /// Encodes a chunk of which everything has been pushed.
    fn encode(self, encoder: &mut Encoder, chunk: usize) -> Result<Record, Error> {
        let updates = if self.published == 0 { self.updates } else { 0 };
        let is_last = self.published + 1 == encoder.chunks() as u64;
        let record = self.stamp.of_chunk(chunk, updates, is_last);
        let message = encoder.encode_complete(chunk).map_err(codec_error)?;
        Ok(with_message(record, &message, encoder))
    }
}

/// A streamed step that is being finished.
struct Streamed<'a> {
    taking: Taking<'a>,
    /// Of a rank that gives data.
    encoder: Option<&'a mut Encoder>,
    pass: Pass<'a>,
    /// Which chunks are out.
    out: &'a mut [bool],
    published: u64,
    /// The visit up to which all chunks are out.
    visit: u64,
    pending: Option<Record>,
    /// By chunk: whose record of it is to be applied next.
    turns: Vec<usize>,
    /// By rank: how many of its records have been taken.
    taken: Vec<u64>,
    /// The rank whose next record is looked at first: the one after the last taken, which has most likely published the
    /// same chunk.
    from: usize,
    missing: Option<usize>,
}

impl Streamed<'_> {
    /// How many records a rank publishes.
    fn records(&self, gives: bool) -> u64 {
        if gives { self.taking.chunks() } else { 1 }
    }

    /// How many records of a rank are still to be taken.
    fn left(&self, rank: usize) -> u64 {
        let gives = self
            .taking
            .heads
            .as_ref()
            .is_none_or(|heads| heads.gives[rank]);
        self.records(gives) - self.taken[rank]
    }

    /// Whether the chunks of all ranks have been taken.
    fn chunks_are_in(&self) -> bool {
        self.taking.heads.is_some() && (0..self.taken.len()).all(|rank| self.left(rank) == 0)
    }

    /// Takes the next record of `rank`, if it is there and all ranks below have had that chunk.
    fn take_of(&mut self, rank: usize) -> Result<bool, Error> {
        let wait = self.taking.port.wait;
        let Some(heads) = &self.taking.heads else {
            return Ok(false);
        };
        if !heads.gives[rank] {
            return self.taking.take_nothing(rank);
        }
        let Some(next) = self.taking.port.peek(rank)? else {
            return Ok(false);
        };
        let chunk = next.record.chunk as usize;
        let turn = match self.turns.get(chunk) {
            Some(&turn) if turn <= rank => turn,
            found => {
                let found = found.map_or("which there is not", |_| "which it has given before");
                return Err(wait.protocol(rank, || format!("a record of chunk {chunk}, {found}")));
            }
        };
        if turn < rank {
            return Ok(false);
        }
        let ends = (self.taken[rank] == 0, self.left(rank) == 1);
        if !self.taking.take_chunk(rank, chunk, ends)? {
            return Ok(false);
        }
        if let Some(heads) = &self.taking.heads {
            self.turns[chunk] = next_giving(&heads.gives, rank + 1);
        }
        Ok(true)
    }
}

/// The first rank from `rank` on that gives data; how many ranks there are if none does.
fn next_giving(gives: &[bool], rank: usize) -> usize {
    let found = gives[rank..].iter().position(|gives| *gives);
    found.map_or(gives.len(), |ahead| rank + ahead)
}

impl Lists for Streamed<'_> {
    type Error = Error;

    fn publishing(&self) -> Option<u64> {
        if self.published < self.records(self.encoder.is_some()) {
            return Some(0);
        }
        self.pass.publishing(&self.taking)
    }

    fn taking(&self) -> Option<u64> {
        if self.chunks_are_in() {
            self.pass.taking(&self.taking)
        } else {
            Some(0)
        }
    }

    fn publish(&mut self) -> Result<bool, Error> {
        if self.published == self.records(self.encoder.is_some()) {
            return self.pass.publish(&mut self.taking);
        }
        let chunks = self.taking.chunks();
        while self.visit < chunks && self.out[self.taking.chunk_at(self.visit)] {
            self.visit += 1;
        }
        let chunk = self.taking.chunk_at(self.visit);
        let next = Next {
            stamp: self.taking.stamp,
            updates: self.pass.announced(),
            published: self.published,
        };
        let began = Instant::now();
        let record = match (self.pending, &mut self.encoder) {
            (Some(record), _) => record,
            (None, Some(encoder)) => next.encode(encoder, chunk)?,
            (None, None) => self.taking.stamp.of_chunk(chunk, next.updates, true),
        };
        self.taking.report.encode_ns += nanoseconds(began);
        let payload = self
            .encoder
            .as_ref()
            .map_or(&[][..], |encoder| encoder.payload());
        let fits = self.taking.port.publish(record, payload)?;
        if fits {
            self.published += 1;
            self.out[chunk] = true;
            self.taking.report.bytes += (size_of::<Record>() + payload.len()) as u64;
        }
        self.pending = if fits { None } else { Some(record) };
        Ok(fits)
    }

    fn take(&mut self) -> Result<bool, Error> {
        self.missing = self.taking.look_at_heads()?;
        let Some(heads) = &self.taking.heads else {
            return Ok(false);
        };
        if self.turns.is_empty() {
            let first = next_giving(&heads.gives, 0);
            self.turns = vec![first; self.taking.layout.len()];
        }
        if self.chunks_are_in() {
            return self.pass.take(&mut self.taking);
        }
        let ranks = self.taken.len();
        for ahead in 0..ranks {
            let rank = (self.from + ahead) % ranks;
            if self.left(rank) == 0 {
                continue;
            }
            if self.take_of(rank)? {
                self.taken[rank] += 1;
                self.from = (rank + 1) % ranks;
                self.missing = None;
                return Ok(true);
            }
            self.missing = self.missing.or(Some(rank));
        }
        Ok(false)
    }
}

impl Blocked for Streamed<'_> {
    fn blocked_by(&self) -> Option<usize> {
        self.missing.or(self.pass.blocked_by())
    }
}
