//! What is said and checked where a run goes on from a checkpoint, and what is said where it stops.

use std::env;
use std::path::PathBuf;

use gradring::Replica;
use gradring::checkpoint::Value;
use gradring::launch::{How, Outcome};
use gradring::replica::CHECKPOINT_DIRECTORY;

use super::arguments::{ArgumentError, Arguments};
use super::job::{Failure, Job};
use super::progress::Progress;
use super::schedule::Schedule;
use super::trained::Course;

/// Ends the run if the checkpoint that it would go on from is of another one: its numbers would be of neither.
///
/// The numbers of replicas and of epochs and the rate may be others than they were, and so may what is sent, but for the
/// policy: the exchange sees to that itself.
pub(crate) fn refuse_another_run(
    job: &Job,
    arguments: &Arguments,
    replica: &Replica,
    schedule: &Schedule,
) -> Result<(), Failure> {
    let given = [
        ("example", job.name.to_owned()),
        ("training samples", schedule.samples.to_string()),
        ("seed", schedule.seed.to_string()),
        ("momentum", arguments.sending.momentum.to_string()),
    ];
    let given = given.map(|(what, value)| (what.to_owned(), value));
    let kept = replica.keep_value(Value::shared("run", given.to_vec()))?;
    let kept = kept.lock()?;
    match kept.iter().zip(given).find(|(kept, given)| *kept != given) {
        None => Ok(()),
        Some(((_, kept), (what, given))) => Err(ArgumentError::AnotherRun {
            what,
            kept: kept.clone(),
            given,
        }
        .into()),
    }
}

/// Says what the run goes on from, if it does.
///
/// # Errors
/// If that is behind the end of this run: what it says of itself would be of an earlier time than its parameters.
pub(crate) fn tell(
    replica: &Replica,
    course: &Course,
    schedule: &Schedule,
    progress: &Progress,
) -> Result<(), Failure> {
    if course.samples > schedule.total() {
        return Err(ArgumentError::FewerEpochs {
            asked: schedule.epochs,
            seen: course.samples as f64 / schedule.samples as f64,
        }
        .into());
    }
    if let Some(from) = replica.resumed()? {
        let replicas = from.world_size;
        progress.note(&format!(
            "goes on from {}, made by {replicas} replica{} after {} epochs and {} steps",
            from.path.display(),
            if replicas == 1 { "" } else { "s" },
            course.epochs.len(),
            course.steps
        ));
        progress.seen(course.samples);
    }
    Ok(())
}

/// How a run that was stopped can go on.
pub(crate) fn way_on(arguments: &Arguments, outcome: &Outcome) -> String {
    let inherited = || env::var_os(CHECKPOINT_DIRECTORY).filter(|path| !path.is_empty());
    let directory = arguments.checkpoint_directory.clone();
    let Some(directory) = directory.or_else(|| inherited().map(PathBuf::from)) else {
        return "stopped, and nothing of it is kept; with --checkpoint-dir DIR it would go on where it was".to_owned();
    };
    let directory = directory.display();
    // Those that end by agreement have all made a checkpoint before.
    let mut ends = outcome.ranks.iter();
    if ends.any(|end| end.how == How::StoppedByAgreement) {
        format!("stopped; the same command goes on from the checkpoint just made in {directory}")
    } else {
        format!(
            "stopped before it could make a checkpoint; the same command goes on from the newest in {directory}, or \
             begins anew where there is none"
        )
    }
}
