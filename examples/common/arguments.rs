//! The few options of the examples.

use std::ffi::OsString;
use std::path::PathBuf;

use gradring::codec::ClippingError;
use gradring::codec::policy::{Magnitude, PolicyError};
use thiserror::Error;

use super::job::Job;
use super::sending::{Clip, MomentumKeeping, Policy, Sending, magnitude_word};

/// The engine's most replicas in one run.
const MOST_REPLICAS: usize = 255;

/// What was asked for.
pub(crate) struct Arguments {
    /// `None`: not given.
    pub(crate) replicas: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) epochs: usize,
    pub(crate) data: PathBuf,
    pub(crate) sending: Sending,
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
    #[error("--policy is {found:?}: {source}")]
    Policy {
        found: OsString,
        source: PolicyError,
    },
    #[error("--clip is {found:?}: {source}")]
    Clip {
        found: OsString,
        source: ClippingError,
    },
    #[error(
        "{option} does not go with --policy {policy}: those are Deeplearning4j's defaults as they stand, {theirs}"
    )]
    NotDl4j {
        option: String,
        policy: Policy,
        theirs: &'static str,
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
            sending: Sending::default(),
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
                Some("--policy") => parsed.sending.policy = policy(value("--policy")?)?,
                Some("--clip") => parsed.sending.clip = Some(clip(value("--clip")?)?),
                Some("--limit") => {
                    parsed.sending.limit =
                        Some(number("--limit", value("--limit")?, 1, usize::MAX)?);
                }
                Some("--magnitude") => {
                    let words = [Magnitude::Mean, Magnitude::Threshold]
                        .map(|magnitude| (magnitude_word(magnitude).to_owned(), magnitude));
                    parsed.sending.magnitude =
                        Some(word("--magnitude", value("--magnitude")?, words)?);
                }
                Some("--momentum") => {
                    let words = [
                        MomentumKeeping::Own,
                        MomentumKeeping::Masked,
                        MomentumKeeping::Memory,
                    ]
                    .map(|momentum| (momentum.to_string(), momentum));
                    parsed.sending.momentum = word("--momentum", value("--momentum")?, words)?;
                }
                Some("--json") if attached.is_none() => parsed.json = true,
                Some("-h" | "--help") if attached.is_none() => parsed.help = true,
                _ => return Err(ArgumentError::Unknown(argument)),
            }
        }
        refuse_changed_defaults(&parsed.sending)?;
        Ok(parsed)
    }
}

fn policy(found: OsString) -> Result<Policy, ArgumentError> {
    let Some(policy) = found.to_str().and_then(Policy::parse) else {
        return Err(ArgumentError::Value {
            option: "--policy",
            found,
            expected:
                "quantile[:DENSITY[:WARM-UP STEPS]], fixed:THRESHOLD, adaptive[:FIRST THRESHOLD], \
                       target[:DENSITY], dl4j or dl4j-spark"
                    .to_owned(),
        });
    };
    match policy.check() {
        Ok(()) => Ok(policy),
        Err(source) => Err(ArgumentError::Policy { found, source }),
    }
}

fn clip(found: OsString) -> Result<Clip, ArgumentError> {
    let Some(clip) = found.to_str().and_then(Clip::parse) else {
        return Err(ArgumentError::Value {
            option: "--clip",
            found,
            expected: "MULTIPLE[:EVERY], a number and a whole number".to_owned(),
        });
    };
    match clip.processor() {
        Ok(_) => Ok(clip),
        Err(source) => Err(ArgumentError::Clip { found, source }),
    }
}

/// Deeplearning4j's defaults with something else in their place would be called by a name that is not theirs.
fn refuse_changed_defaults(sending: &Sending) -> Result<(), ArgumentError> {
    let policy = sending.policy;
    if !policy.is_dl4j() {
        return Ok(());
    }
    let (option, theirs) = if sending.clip.is_some() {
        let theirs = match policy {
            Policy::Dl4jSpark => "which clip at 5 thresholds every 5 steps",
            _ => "without clipping (dl4j-spark clips)",
        };
        ("--clip".to_owned(), theirs)
    } else if sending.limit.is_some() {
        ("--limit".to_owned(), "without a limit")
    } else if sending.magnitude == Some(Magnitude::Mean) {
        (
            "--magnitude mean".to_owned(),
            "where a hit sends the threshold",
        )
    } else if sending.momentum != MomentumKeeping::Own {
        let option = format!("--momentum {}", sending.momentum);
        (option, "where each replica keeps its own momentum")
    } else {
        return Ok(());
    };
    Err(ArgumentError::NotDl4j {
        option,
        policy,
        theirs,
    })
}

/// The value that `found` is the word for.
fn word<T: Copy, const N: usize>(
    option: &'static str,
    found: OsString,
    words: [(String, T); N],
) -> Result<T, ArgumentError> {
    match words.iter().find(|(word, _)| found == word.as_str()) {
        Some((_, value)) => Ok(*value),
        None => Err(ArgumentError::Value {
            option,
            found,
            expected: words.map(|(word, _)| word).join(" or "),
        }),
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
      --json        end with one line of JSON: replicas, policy, magnitude, limit, clip, momentum, accuracy and
                    dense_accuracy (parts of 1, on held-out data), compression, density, clipped, identical,
                    steps_per_second
  -h, --help        this text

What is sent:
      --policy P    how the threshold is chosen (default {policy}):
                      quantile[:DENSITY[:STEPS]]  so that such a part of the elements is sent, after so many steps of
                                                  warm-up from 0.25
                      fixed:THRESHOLD             always the same
                      adaptive[:THRESHOLD]        steered to densities of 1e-4 to 1e-2; starts with this threshold,
                                                  or with what fits the first update
                      target[:DENSITY]            steered to this density (0.001)
                      dl4j                        Deeplearning4j's defaults on one machine, for comparison: starts at
                                                  1e-4, adds the replicas' updates up at the rate for one replica,
                                                  drops residual and threshold at each epoch's end
                      dl4j-spark                  the same, clipping at 5 thresholds every 5 steps as on Spark
      --magnitude M what an element sends: the mean of those sent (with quantile the default), or the threshold (with
                    all others)
      --limit HITS  the most elements sent in a step (default: with quantile twice those wanted, else all)
      --clip M[:E]  clamp what stays to M thresholds every E steps (5): what that takes away is lost (default: never)
      --momentum W  who keeps the momentum (default own):
                      own     the trainer: its optimizer's update is handed over
                      masked  the same; starts anew at the elements that were sent
                      memory  the encoder: the gradient times the rate is handed over (deep gradient compression)",
        about = job.about,
        name = job.name,
        epochs = job.epochs,
        policy = Sending::default().policy,
    )
}
