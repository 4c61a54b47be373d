//! The few options of the examples.

use std::ffi::OsString;
use std::path::PathBuf;

use thiserror::Error;

use super::job::Job;

/// The engine's most replicas in one run.
const MOST_REPLICAS: usize = 255;

/// What was asked for.
pub(crate) struct Arguments {
    /// `None`: not given.
    pub(crate) replicas: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) epochs: usize,
    pub(crate) data: PathBuf,
    pub(crate) json: bool,
    pub(crate) help: bool,
}

/// An option that is not one, or has a value that is none.
#[derive(Debug, Error)]
pub(crate) enum ArgumentError {
    #[error("{0:?} is not an option (--help lists them)")]
    Unknown(OsString),
    #[error("{0} needs a value")]
    NoValue(&'static str),
    #[error("{option} is {found:?}, expected {expected}")]
    Value {
        option: &'static str,
        found: OsString,
        expected: String,
    },
    #[error("-n is {asked}, but the launcher of this run started {world}")]
    OtherWorld { asked: usize, world: usize },
    #[error(
        "{replicas} replicas of {batch} samples a step need {} samples, the data has {samples}", .replicas * .batch
    )]
    TooManyReplicas {
        replicas: usize,
        batch: usize,
        samples: usize,
    },
}

impl Arguments {
    /// Reads what follows the program's name.
    pub(crate) fn parse(
        job: &Job,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, ArgumentError> {
        let mut parsed = Self {
            replicas: None,
            seed: 0,
            epochs: job.epochs,
            data: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data")),
            json: false,
            help: false,
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            // `--name=value` is taken apart; a value that is not UTF-8 can still follow as an argument of its own.
            let (name, attached) = match argument.to_str().and_then(|text| text.split_once('=')) {
                Some((name, value)) => (OsString::from(name), Some(OsString::from(value))),
                None => (argument.clone(), None),
            };
            let mut value = |option| {
                attached
                    .clone()
                    .or_else(|| arguments.next())
                    .ok_or(ArgumentError::NoValue(option))
            };
            match name.to_str() {
                Some("-n" | "--replicas") => {
                    parsed.replicas = Some(number("-n", value("-n")?, 1, MOST_REPLICAS)?);
                }
                Some("--seed") => {
                    parsed.seed = number("--seed", value("--seed")?, 0, u64::MAX)?;
                }
                Some("--epochs") => {
                    parsed.epochs = number("--epochs", value("--epochs")?, 1, 1_000_000)?;
                }
                Some("--data") => parsed.data = value("--data")?.into(),
                Some("--json") if attached.is_none() => parsed.json = true,
                Some("-h" | "--help") if attached.is_none() => parsed.help = true,
                _ => return Err(ArgumentError::Unknown(argument)),
            }
        }
        Ok(parsed)
    }
}

fn number<T>(option: &'static str, found: OsString, least: T, most: T) -> Result<T, ArgumentError>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    match found.to_str().map(str::parse::<T>) {
        Some(Ok(number)) if number >= least && number <= most => Ok(number),
        _ => Err(ArgumentError::Value {
            option,
            found,
            expected: format!("a whole number from {least} to {most}"),
        }),
    }
}

/// The text of `--help`.
pub(crate) fn help(job: &Job) -> String {
    format!(
        "\
{about}

Usage: {name} [OPTIONS]
       gradring run -n N -- {name} [OPTIONS]

It starts itself N times; these replicas train one model together. Then it trains the same model again in one process,
without compression, on batches of the same total size, and prints both.

Options:
  -n, --replicas N  how many replicas train together, 1 to {MOST_REPLICAS} (default 2)
      --seed S      of the first parameters and of the order of the samples (default 0)
      --epochs E    how often every sample is seen (default {epochs})
      --data DIR    where the data is, if not in the project's examples/data
      --json        end with one line of JSON: replicas, accuracy, dense_accuracy (parts of 1, on held-out data),
                    compression, density, identical, steps_per_second
  -h, --help        this text",
        about = job.about,
        name = job.name,
        epochs = job.epochs,
    )
}
