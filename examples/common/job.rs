//! The whole run: a parent that starts the replicas and compares them with a dense run.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gradring::replica::RESTART;
use gradring::{Launch, Replica};
use thiserror::Error;

use super::arguments::{ArgumentError, Arguments, help};
use super::data::{DataError, Dataset};
use super::dense;
use super::mlp::Mlp;
use super::progress::{Progress, Watcher};
use super::replica;
use super::report;
use super::resume;
use super::schedule::{Rates, Schedule};
use super::trained::Trained;

/// The directory through which the parent hears from rank 0: the result, and how far it is.
const MEETING_PLACE: &str = "GRADRING_EXAMPLE_DIRECTORY";
const RESULT: &str = "result.json";
const PROGRESS: &str = "progress";

/// What an example trains.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) load: fn(&Path) -> Result<Dataset, DataError>,
    pub(crate) model: Mlp,
    /// Samples that one replica sees in one step.
    pub(crate) batch: usize,
    pub(crate) epochs: u64,
    /// First learning rate of the replicas, by world size.
    pub(crate) rates: Rates,
    /// The same where the momentum ends at what was sent.
    pub(crate) masked_rates: Rates,
    /// First learning rate of the dense run of the same total batch, by world size.
    pub(crate) dense_rates: Rates,
}

impl Job {
    /// Which samples are seen when, with `replicas` replicas or by one process in their place.
    fn schedule(&self, arguments: &Arguments, samples: usize, replicas: usize) -> Schedule {
        Schedule {
            samples,
            global_batch: replicas * self.batch,
            epochs: arguments.epochs,
            seed: arguments.seed,
        }
    }
}

/// Why an example ends without a result.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Engine(#[from] gradring::Error),
    #[error(transparent)]
    Launch(#[from] gradring::launch::LaunchError),
    #[error("{what}: {source}")]
    HandOver {
        what: &'static str,
        source: io::Error,
    },
}

/// Runs the example; its result is the process's.
pub(crate) fn run(job: &Job) -> ExitCode {
    let arguments = match Arguments::parse(job, env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => return complain(job, &error.into()),
    };
    if arguments.help {
        println!("{}", help(job));
        return ExitCode::SUCCESS;
    }
    let result = if Replica::is_replica() {
        as_replica(job, &arguments)
    } else {
        as_parent(job, &arguments)
    };
    result.unwrap_or_else(|failure| complain(job, &failure))
}

fn complain(job: &Job, failure: &Failure) -> ExitCode {
    eprintln!("{}: {failure}", job.name);
    match failure {
        Failure::Arguments(_) => ExitCode::from(2),
        Failure::Launch(error) => ExitCode::from(error.exit_code()),
        _ => ExitCode::FAILURE,
    }
}

fn as_parent(job: &Job, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let replicas = arguments.replicas.unwrap_or(2);
    // Read before anything is started, so that what is wrong with the data is said once and not by every replica.
    let data = (job.load)(&arguments.data)?;
    let schedule = job.schedule(arguments, data.train.len(), replicas);

    let meeting_place = tempfile::Builder::new()
        .prefix("gradring-example-")
        .tempdir()
        .map_err(|source| Failure::HandOver {
            what: "cannot make a directory for the result",
            source,
        })?;
    let mut launch = Launch::this_program()
        .replicas(replicas)
        .max_restarts(arguments.max_restarts.unwrap_or(0))
        .env(MEETING_PLACE, meeting_place.path());
    if let Some(directory) = &arguments.checkpoint_directory {
        launch = launch.checkpoint_directory(directory);
    }
    if let Some(interval) = arguments.checkpoint_every {
        launch = launch.checkpoint_every(interval);
    }
    // Where the system does not allow it, signals end this process, and with it, less tidily, the run.
    let _ = launch.stopper().forward_signals();
    let watcher = if io::stderr().is_terminal() {
        let socket = meeting_place.path().join(PROGRESS);
        Watcher::begin(&socket, job.name, schedule.total())
    } else {
        None
    };
    let outcome = launch.run();
    drop(watcher);
    let outcome = outcome?;
    if outcome.code != 0 || outcome.restarts > 0 {
        eprintln!("{outcome}");
    }
    if outcome.code != 0 {
        if outcome.stopped_by.is_some() {
            eprintln!("{}: {}", job.name, resume::way_on(arguments, &outcome));
        }
        return Ok(ExitCode::from(outcome.code));
    }

    let trained =
        Trained::read(&meeting_place.path().join(RESULT)).map_err(|source| Failure::HandOver {
            what: "the replicas left no result",
            source,
        })?;
    drop(meeting_place);
    compare(job, arguments, &data, &trained)
}

fn as_replica(job: &Job, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let data = (job.load)(&arguments.data)?;
    let meeting_place = env::var_os(MEETING_PLACE).map(PathBuf::from);
    // What its own parent has passed on to the launcher is true; what was meant for another launcher is not.
    if meeting_place.is_none() && arguments.max_restarts.is_some() {
        return Err(ArgumentError::OtherLauncher("--max-restarts").into());
    }
    let mut builder = Replica::builder();
    if let Some(directory) = &arguments.checkpoint_directory {
        builder = builder.checkpoint_directory(directory);
    }
    if let Some(interval) = arguments.checkpoint_every {
        builder = builder.checkpoint_every(interval);
    }
    let replica = builder.join()?;
    let world = replica.world_size();
    // A run that was started again may have been resized.
    let is_first_start = env::var_os(RESTART).is_none_or(|restart| restart == OsStr::new("0"));
    if let Some(asked) = arguments.replicas
        && asked != world
        && is_first_start
    {
        return Err(ArgumentError::OtherWorld { asked, world }.into());
    }
    let schedule = job.schedule(arguments, data.train.len(), world);
    let first = replica.rank() == 0;
    let progress = if first {
        let socket = meeting_place.as_deref().map(|place| place.join(PROGRESS));
        Progress::to(socket, job.name, schedule.total())
    } else {
        Progress::Silent
    };
    let trained = replica::train(job, arguments, &replica, &schedule, &data, &progress)?;
    // What follows is no business of the others: they may go.
    drop(replica);

    if !first {
        return Ok(exit_code(&trained));
    }
    match meeting_place {
        Some(place) => {
            trained
                .write(&place.join(RESULT))
                .map_err(|source| Failure::HandOver {
                    what: "cannot write the result",
                    source,
                })?;
            Ok(exit_code(&trained))
        }
        // Started by another launcher: there is no parent to make the comparison.
        None => compare(job, arguments, &data, &trained),
    }
}

/// Makes the dense run and prints both.
fn compare(
    job: &Job,
    arguments: &Arguments,
    data: &Dataset,
    trained: &Trained,
) -> Result<ExitCode, Failure> {
    // As many as there were at the end.
    let schedule = job.schedule(arguments, data.train.len(), trained.replicas());
    let rate = job.dense_rates.at(trained.replicas());
    let accuracy = dense::train(job.model, &schedule, rate, data)?;
    let mut text = report::table(job, arguments, &schedule, trained, accuracy);
    if arguments.json {
        text.push_str(&report::json(job, arguments, trained, accuracy));
        text.push('\n');
    }
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|source| Failure::HandOver {
            what: "cannot write the report",
            source,
        })?;
    Ok(exit_code(trained))
}

fn exit_code(trained: &Trained) -> ExitCode {
    if trained.identical() {
        ExitCode::SUCCESS
    } else {
        eprintln!("the replicas hold different parameters");
        ExitCode::FAILURE
    }
}
