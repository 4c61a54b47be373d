//! The asynchronous schedule: nobody is ever blocked by a slow peer, and nothing is lost.
//!
//! A step publishes, chunk by chunk, what fits this rank's ring at that moment; what does not fit stays in the residual
//! and goes out later. It applies what has come at its start and at its end, in whatever order it has come. So replicas
//! hold the same sum of updates only up to what is still under way, and up to the order of additions in f32, until they
//! [settle](super::settle).

use super::taking::{largest_payload, not_applied, payload_of, scaled};
use super::{Exchange, Reduction, Report, Target, codec_error, nanoseconds};
use crate::codec::{
    Apply, Chunk, DecodeError, Given, Message, Parameters, Path, Record as Payload, Unit, canon,
    visited,
};
use crate::replica::port::{Accepts, Port, Taken};
use crate::replica::record::{HAS_DATA, Record, RecordKind};
use crate::replica::shared::{Engine, Shared};
use crate::replica::wait::{Look, Wait};
use crate::replica::{Error, Kind, Operation};
use crate::shm::barrier::{Look as Seen, Ticket};
use crate::shm::crash::{self, Point};
use crate::shm::pace::slowest;
use std::sync::Arc;
use std::time::Instant;

/// How far replicas of an asynchronous exchange may be apart. Both numbers must agree.
///
/// The idea is that of stale synchronous parallel training (Ho et al., NIPS 2013): replicas work with parameters that lack
/// some of the others' updates, but never more than a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asynchronous {
    /// A replica waits, and goes on applying what comes, before a step that would bring it more than so many steps ahead
    /// of the slowest. At least 1.
    ///
    /// Default: 8, an eighth of `settle_every`. A replica that comes to a settle first waits there for the others'
    /// remaining steps, which are at most so many, so that a replica's hiccup of up to 8 steps costs nobody anything, and a
    /// settle at most an eighth of the steps between two.
    pub max_lag: u64,
    /// Replicas settle by themselves after so many own steps. At least 1. Default: 64. A settle broadcasts all
    /// parameters: at 64 that is little beside the steps, and roundings have not had the time to add up.
    pub settle_every: u64,
}

impl Default for Asynchronous {
    fn default() -> Self {
        Self {
            max_lag: 8,
            settle_every: 64,
        }
    }
}

impl Asynchronous {
    /// Refuses numbers with which no step could be made.
    pub(super) fn check(self) -> Result<(), Error> {
        let numbers = [
            ("steps that a replica may be ahead", self.max_lag),
            ("steps between settles", self.settle_every),
        ];
        match numbers.into_iter().find(|(_, number)| *number == 0) {
            None => Ok(()),
            Some((what, found)) => Err(Error::Invalid {
                what,
                expected: "at least 1".into(),
                found: found.to_string(),
            }),
        }
    }
}

/// What an asynchronous exchange knows besides its encoder.
#[derive(Debug, Default)]
pub(super) struct Since {
    /// How many settles there have been.
    pub(super) settles: u64,
    /// Elements that were not finite, since the last settle.
    pub(super) dropped: u64,
    /// The chunk that the next step visits first: the one behind the first of the last step, or the first that had no room
    /// in it. With less room than chunks, a place that moves by one a step would leave most of them out for long.
    first: usize,
}

/// Applies records of asynchronous steps, one by one.
pub(super) struct Applying<'a> {
    pub(super) exchange: u16,
    pub(super) path: Path,
    pub(super) layout: &'a [Chunk],
    /// 1 / world size, rounded once, where the mean is asked for.
    pub(super) inverse: Option<f32>,
    pub(super) parameters: &'a mut dyn Parameters,
    /// Records applied, this replica's own left out.
    pub(super) records: u64,
    pub(super) not_finite: u64,
    pub(super) decode_ns: u64,
}

impl<'a> Applying<'a> {
    pub(super) fn new(
        exchange: u16,
        path: Path,
        layout: &'a [Chunk],
        scale: (Reduction, usize),
        parameters: &'a mut dyn Parameters,
    ) -> Self {
        Self {
            exchange,
            path,
            layout,
            inverse: (scale.0 == Reduction::Mean).then(|| 1.0 / scale.1 as f32),
            parameters,
            records: 0,
            not_finite: 0,
            decode_ns: 0,
        }
    }

    /// Applies a record that `rank` has published.
    pub(super) fn apply(
        &mut self,
        wait: &Wait<'_>,
        rank: usize,
        taken: Taken<'_>,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let record = taken.record;
        let expected = Record {
            kind: RecordKind::Asynchronous as u8,
            exchange: self.exchange,
            flags: HAS_DATA,
            hash: 0,
            frame: 0,
            ..record
        };
        if record != expected {
            return Err(wait.protocol(rank, || format!("expected {expected:?}, found {record:?}")));
        }
        let Some(chunk) = self.layout.get(record.chunk as usize) else {
            let (chunks, found) = (self.layout.len(), record.chunk);
            return Err(wait.protocol(rank, || format!("chunk {found} of {chunks}")));
        };
        let (format, unit) =
            scaled(&record, chunk.coding).map_err(|what| wait.protocol(rank, || what))?;
        let elements = chunk.elements.len();
        let payload = Payload {
            format,
            hits: record.hits,
            elements,
            payload: payload_of(taken, wait, rank, format, elements)?,
        };
        self.add(record.chunk as usize, unit, &payload)
            .map_err(|error| not_applied(wait, rank, error))?;
        self.records += 1;
        self.decode_ns += nanoseconds(began);
        Ok(())
    }

    fn add(&mut self, chunk: usize, unit: f32, payload: &Payload<'_>) -> Result<(), DecodeError> {
        let start = self.layout[chunk].elements.start;
        let x = self.inverse.map_or(unit, |inverse| canon(unit * inverse));
        let applied = self
            .path
            .apply_at(payload, x, Apply::Subtract, self.parameters, start);
        self.not_finite += u64::from(applied?.not_finite);
        Ok(())
    }
}

/// One step's access to the rings and to the parameters.
struct Step<'a> {
    port: Port<'a>,
    /// The barrier that this rank has entered and not waited for.
    open: Option<Ticket>,
    applying: Applying<'a>,
    report: Report,
}

impl Step<'_> {
    /// Applies everything that has come; whether there was anything. Of each rank at most what its ring holds, so that
    /// one that publishes faster than this one applies does not keep it from its own steps.
    fn apply_all(&mut self) -> Result<bool, Error> {
        let before = self.applying.records;
        let wait = self.port.wait;
        for rank in 0..self.port.shared.world_size {
            let mut left = self.port.shared.segment.ring(rank).capacity();
            while left > 0
                && let Some(taken) = self.port.peek(rank)?
            {
                left = left.saturating_sub((size_of::<Record>() + taken.payload_len()) as u64);
                self.applying.apply(&wait, rank, taken)?;
            }
        }
        Ok(self.applying.records > before)
    }

    /// The last operation in which nobody waits for this rank or for one that it waits for: of an open barrier that is
    /// known once all have come.
    fn finished(&self) -> u64 {
        let number = self.port.wait.number;
        let arrivals = || self.port.shared.segment.arrivals();
        match self.open {
            Some(ticket) if matches!(ticket.look(arrivals()), Seen::Waiting { .. }) => number - 1,
            _ => number,
        }
    }

    /// How far ahead of the slowest rank that is stepping this one is with `steps`, and who that is.
    fn lead(&self, steps: u64) -> (u64, Option<usize>) {
        let shared = self.port.shared;
        let others = (0..shared.world_size).filter(|&rank| rank != shared.rank);
        let paces = others.filter(|&rank| !shared.has_left(rank));
        let number = self.finished();
        match slowest(paces.map(|rank| (rank, shared.pace_of(rank, number)))) {
            Some((rank, least)) => (steps.saturating_sub(least), Some(rank)),
            None => (0, None),
        }
    }

    /// Waits while this rank, which has made `steps`, must not make another, and goes on applying.
    fn keep_pace(&mut self, steps: u64, max_lag: u64) -> Result<(), Error> {
        let (lead, _) = self.lead(steps);
        self.report.lag = lead;
        if lead < max_lag {
            return Ok(());
        }
        self.report.lag_waits = 1;
        let began = Instant::now();
        let wait = self.port.wait;
        // Applying something is progress, from which the deadline counts anew.
        while wait.until(|| {
            let applied = self.apply_all()?;
            Ok(match self.lead(steps) {
                (lead, Some(_)) if lead >= max_lag && applied => Look::Ready(true),
                (lead, Some(rank)) if lead >= max_lag => Look::Pending(Some(rank)),
                _ => Look::Ready(false),
            })
        })? {}
        self.report.lag_ns = nanoseconds(began);
        Ok(())
    }

    /// Publishes this rank's message for a chunk, for which there is room, and applies it.
    fn send(&mut self, number: usize, message: &Message, payload: &[u8]) -> Result<(), Error> {
        let (t, v) = message.unit.map_or((0, 0), Unit::halves);
        let record = Record {
            exchange: self.applying.exchange,
            step: self.report.step as u32,
            chunk: number as u32,
            flags: HAS_DATA,
            format: message.format as u8,
            t,
            v,
            hits: message.hits,
            ..Record::new(RecordKind::Asynchronous)
        };
        let (wait, rank) = (self.port.wait, self.port.shared.rank);
        if !self.port.publish(record, payload)? {
            return Err(wait.protocol(rank, || "room that was there is gone".into()));
        }
        self.report.bytes += (size_of::<Record>() + payload.len()) as u64;
        let began = Instant::now();
        let own = Payload {
            format: message.format,
            hits: message.hits,
            elements: message.elements.len(),
            payload,
        };
        let unit = message.unit.map_or(1.0, Unit::v);
        self.applying
            .add(number, unit, &own)
            .map_err(|error| not_applied(&wait, rank, error))?;
        self.applying.decode_ns += nanoseconds(began);
        // Its own cursor must not hold the ring. All before this frame have been given back in the same way.
        if let Some(taken) = self.port.peek(rank)? {
            taken.give_back();
        }
        Ok(())
    }
}

impl Exchange {
    /// One asynchronous step. Never waits for room; waits for slow replicas only when it is too far ahead of them, and in
    /// the settle with which it may end.
    pub(super) fn step_asynchronously(
        &mut self,
        settings: Asynchronous,
        update: Option<Given<'_>>,
        target: Target<'_>,
    ) -> Result<Report, Error> {
        if target.apply == Apply::Add {
            return Err(Error::Invalid {
                what: "a reduced sum",
                expected: "an exchange that is not asynchronous".into(),
                found: "an asynchronous one, whose steps have no common sum".into(),
            });
        }
        let parameters = target.vector;
        let start = Instant::now();
        let shared = Arc::clone(&self.shared);
        let engine = &mut *shared.engine()?;
        let length = self.length as u64;
        let operation = Operation::new(Kind::AsynchronousStep, self.index, length, 0);
        if engine.unsettled.is_some_and(|other| other != self.index) {
            let rank = shared.rank;
            return Err(Error::Unsettled { rank, operation });
        }
        let wait = shared.wait(operation, engine.number);
        wait.check_lives()?;
        if engine.is_step_open() {
            // Its records would lie between those of that step, where nobody takes them.
            return Err(Error::StepOpen);
        }
        // Without data too: this rank counts its steps, and the others' records are for it to take.
        engine.unsettled = Some(self.index);
        let stepped = self.publish_and_apply(&shared, engine, &wait, settings, update, parameters);
        let mut report = stepped.map_err(|error| wait.broken_off(error))?;
        crash::point(Point::StepOut);
        engine.steps += 1;
        shared.pace().stepping(engine.steps);
        shared.segment.bells().ring();
        self.step += 1;
        let settles = engine.steps >= settings.settle_every;
        let settled = settles.then(|| self.settle_with(&shared, engine, parameters, false));
        report.settled = settled.transpose()?;
        report.wait_ns = nanoseconds(start).saturating_sub(report.encode_ns + report.decode_ns);
        shared.count(&report.counters(update.is_some()));
        Ok(report)
    }

    fn publish_and_apply(
        &mut self,
        shared: &Shared,
        engine: &mut Engine,
        wait: &Wait<'_>,
        settings: Asynchronous,
        update: Option<Given<'_>>,
        parameters: &mut dyn Parameters,
    ) -> Result<Report, Error> {
        let layout = self.encoder.layout();
        let identity = self.settle_operation().identity();
        let (steps, max_lag) = (engine.steps, settings.max_lag);
        let scale = (self.reduction, shared.world_size);
        let mut step = Step {
            open: engine.open.map(|(ticket, _)| ticket),
            port: Port::accepting(Accepts::Steps, shared, engine, *wait, identity),
            applying: Applying::new(self.index, self.encoder.path(), &layout, scale, parameters),
            report: Report {
                step: self.step,
                contributors: shared.world_size,
                ..Report::default()
            },
        };
        step.apply_all()?;
        step.keep_pace(steps, max_lag)?;
        if let Some(update) = update {
            let began = Instant::now();
            self.encoder.begin(self.step, update).map_err(codec_error)?;
            let first = self.since_settle.first;
            self.encoder.visit_from(first);
            let mut without_room = None;
            step.report.encode_ns += nanoseconds(began);
            for visit in 0..layout.len() {
                let number = visited(first as u64, visit, layout.len());
                let fits = step.port.fits(largest_payload(&layout[number]))?;
                let began = Instant::now();
                if fits {
                    let message = self.encoder.encode(visit, update).map_err(codec_error)?;
                    step.report.encode_ns += nanoseconds(began);
                    step.send(number, &message, self.encoder.payload())?;
                    // What has come meanwhile, so that the others have room too.
                    step.apply_all()?;
                } else {
                    self.encoder
                        .accumulate(visit, update)
                        .map_err(codec_error)?;
                    step.report.encode_ns += nanoseconds(began);
                    step.report.accumulated_chunks += 1;
                    without_room = without_room.or(Some(number));
                }
            }
            self.encoder.end().map_err(codec_error)?;
            step.report.note(&self.encoder);
            let dropped = &mut self.since_settle.dropped;
            *dropped = dropped.saturating_add(step.report.dropped);
            self.since_settle.first = without_room.unwrap_or((first + 1) % layout.len());
        }
        step.apply_all()?;
        let Step {
            applying,
            mut report,
            ..
        } = step;
        report.applied_records = applying.records;
        report.parameters_not_finite = applying.not_finite;
        report.decode_ns = applying.decode_ns;
        Ok(report)
    }

    /// The settle that comes next: the steps before it carry its identity.
    pub(super) fn settle_operation(&self) -> Operation {
        let settles = self.since_settle.settles;
        Operation::new(Kind::Settle, self.index, self.length as u64, settles)
    }
}
