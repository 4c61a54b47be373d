//! A world of one without its ring.

use super::external::apply_here;
use super::onto::{NotApplied, Onto};
use super::{Concluded, Exchange, Report, Target, codec_error, nanoseconds};
use crate::codec::{Apply, Dense, Encoder, Given, Record, Unit, canon, pieces};
use crate::replica::record::Record as Header;
use crate::replica::{Error, Kind};
use std::sync::Arc;
use std::time::Instant;

/// What an exchange without rings does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass {
    /// The update is encoded as ever, and what it sends is applied: as Deeplearning4j does.
    Encoded,
    /// The update is applied whole; the residual stays as it is.
    Whole,
}

impl Exchange {
    pub(super) fn step_bypassed(
        &mut self,
        how: Bypass,
        update: Option<Given<'_>>,
        target: Target<'_>,
    ) -> Result<Report, Error> {
        let began = Instant::now();
        let shared = Arc::clone(&self.shared);
        let engine = &mut *shared.engine()?;
        let kind = match target.apply {
            Apply::Subtract => Kind::Step,
            Apply::Add => Kind::StepSum,
        };
        let operation = self.step_operation(kind);
        // Still an operation, though it meets nobody: flags are agreed on, and a run that is over says so.
        let wait = shared.enter(engine, operation)?;
        let mut report = Report {
            step: self.step,
            contributors: usize::from(update.is_some()),
            ..Report::default()
        };
        let updates = self.sources.poll();
        if let Some(update) = update {
            let (step, layout) = (self.step, self.encoder.layout());
            let (path, apply) = (self.encoder.path(), target.apply);
            let mut onto = Onto::new(&mut self.device, path, &mut *target.vector, apply);
            let encoder = &mut self.encoder;
            let report = &mut report;
            let applied = match how {
                Bypass::Encoded => encode_and_apply(encoder, step, update, &mut onto, report),
                Bypass::Whole => apply_whole(self.length, update, &mut onto, report),
            };
            let applied = applied
                .and_then(|()| apply_here(&updates, (step, &layout), &mut onto, report))
                .and_then(|()| onto.finish().map_err(NotApplied::of_own));
            report.parameters_not_finite += applied.map_err(|error| wait.broken_off(error))?;
            if how == Bypass::Encoded {
                let noted = self.note_encoded(report);
                noted.map_err(|error| wait.broken_off(error))?;
            }
        }
        let dropped = report.dropped;
        let concluded = Concluded {
            report,
            dropped: vec![dropped],
            agreed: wait.flags,
            updates,
            began,
            gave: update.is_some(),
            counts: true,
        };
        self.conclude(engine, target, concluded)
    }
}

fn encode_and_apply(
    encoder: &mut Encoder,
    step: u64,
    update: Given<'_>,
    onto: &mut Onto<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let mut start = Instant::now();
    encoder.begin(step, update).map_err(codec_error)?;
    for visit in 0..encoder.chunks() {
        let message = encoder.encode(visit, update).map_err(codec_error)?;
        let payload = encoder.payload();
        report.bytes += (size_of::<Header>() + payload.len()) as u64;
        report.encode_ns += nanoseconds(start);
        start = Instant::now();
        if onto.apply == Apply::Add {
            onto.clear(message.elements.clone())
                .map_err(NotApplied::of_own)?;
        }
        let record = Record {
            format: message.format,
            hits: message.hits,
            elements: message.elements.len(),
            payload,
        };
        let x = message.unit.map_or(1.0, Unit::v);
        let not_finite = onto.apply(&record, x, message.elements.start);
        report.parameters_not_finite += not_finite.map_err(NotApplied::of_own)?;
        report.decode_ns += nanoseconds(start);
        start = Instant::now();
    }
    Ok(())
}

/// Applies an update without compression, but for elements that are not finite: those are left out and counted.
fn apply_whole(
    elements: usize,
    update: Given<'_>,
    onto: &mut Onto<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let began = Instant::now();
    if onto.apply == Apply::Add {
        onto.clear(0..elements).map_err(NotApplied::of_own)?;
    }
    let mut payload = Vec::new();
    let mut start = 0;
    let mut result = Ok(());
    pieces(elements, update, |piece| {
        payload.clear();
        for u in piece {
            let finite = u.is_finite();
            report.dropped += u64::from(!finite);
            payload.extend_from_slice(&if finite { canon(*u) } else { 0.0 }.to_le_bytes());
        }
        let record = Record {
            format: Dense::F32.format(),
            hits: 0,
            elements: piece.len(),
            payload: &payload,
        };
        match onto.apply(&record, 1.0, start) {
            Ok(not_finite) => report.parameters_not_finite += not_finite,
            Err(error) => result = Err(error.of_own()),
        }
        start += piece.len();
    });
    result?;
    report.decode_ns += nanoseconds(began);
    Ok(())
}
