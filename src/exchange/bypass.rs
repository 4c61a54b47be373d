//! A world of one without its ring.

use super::external::apply_here;
use super::{Concluded, Exchange, Report, Target, codec_error, nanoseconds, own};
use crate::codec::{
    Apply, Dense, Given, Parameters, Path, Record, Unit, canon, parameters, pieces,
};
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
        let mut dropped = 0;
        if let Some(update) = update {
            match how {
                Bypass::Encoded => {
                    self.encode_and_apply(update, target.vector, target.apply, &mut report)
                        .and_then(|()| self.note_encoded(&mut report))
                        .map_err(|error| wait.broken_off(error))?;
                    dropped = report.dropped;
                }
                Bypass::Whole => {
                    let path = self.encoder.path();
                    dropped = apply_whole(path, update, target.vector, target.apply, &mut report)
                        .map_err(|error| wait.broken_off(error))?;
                    report.dropped = dropped;
                }
            }
            let layout = self.encoder.layout();
            let place = (self.step, self.encoder.path(), &layout[..]);
            apply_here(&updates, place, target.vector, target.apply, &mut report)
                .map_err(|error| wait.broken_off(error))?;
        }
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

    fn encode_and_apply(
        &mut self,
        update: Given<'_>,
        target: &mut dyn Parameters,
        apply: Apply,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut start = Instant::now();
        self.encoder.begin(self.step, update).map_err(codec_error)?;
        for visit in 0..self.encoder.chunks() {
            let message = self.encoder.encode(visit, update).map_err(codec_error)?;
            let payload = self.encoder.payload();
            report.bytes += (size_of::<Header>() + payload.len()) as u64;
            report.encode_ns += nanoseconds(start);
            start = Instant::now();
            if apply == Apply::Add {
                parameters::clear(target, message.elements.clone());
            }
            let record = Record {
                format: message.format,
                hits: message.hits,
                elements: message.elements.len(),
                payload,
            };
            let x = message.unit.map_or(1.0, Unit::v);
            let path = self.encoder.path();
            let applied = path.apply_at(&record, x, apply, target, message.elements.start);
            report.parameters_not_finite += u64::from(own(applied)?.not_finite);
            report.decode_ns += nanoseconds(start);
            start = Instant::now();
        }
        Ok(())
    }
}

/// Applies an update without compression. How many of its elements were not finite and were left out.
fn apply_whole(
    path: Path,
    update: Given<'_>,
    target: &mut dyn Parameters,
    apply: Apply,
    report: &mut Report,
) -> Result<u64, Error> {
    let began = Instant::now();
    let elements = target.elements();
    if apply == Apply::Add {
        parameters::clear(target, 0..elements);
    }
    let (mut payload, mut dropped) = (Vec::new(), 0);
    let mut start = 0;
    let mut result = Ok(());
    pieces(elements, update, |piece| {
        payload.clear();
        for u in piece {
            let finite = u.is_finite();
            dropped += u64::from(!finite);
            payload.extend_from_slice(&if finite { canon(*u) } else { 0.0 }.to_le_bytes());
        }
        let record = Record {
            format: Dense::F32.format(),
            hits: 0,
            elements: piece.len(),
            payload: &payload,
        };
        match own(path.apply_at(&record, 1.0, apply, target, start)) {
            Ok(applied) => report.parameters_not_finite += u64::from(applied.not_finite),
            Err(error) => result = Err(error),
        }
        start += piece.len();
    });
    result?;
    report.decode_ns += nanoseconds(began);
    Ok(dropped)
}
