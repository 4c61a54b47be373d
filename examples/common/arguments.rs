//! The few options of the examples.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use gradring::codec::ClippingError;
use gradring::codec::policy::{Magnitude, PolicyError};
use gradring::exchange::BackendChoice;
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
    pub(crate) epochs: u64,
    /// `None`: not given.
    pub(crate) rate: Option<f32>,
    pub(crate) data: PathBuf,
    pub(crate) checkpoint_directory: Option<PathBuf>,
    pub(crate) checkpoint_every: Option<Duration>,
    /// `None`: not given.
    pub(crate) max_restarts: Option<usize>,
    pub(crate) sending: Sending,
    /// Where updates are encoded.
    pub(crate) backend: BackendChoice,
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
    #[error("{0} needs --checkpoint-dir DIR")]
    NoDirectory(&'static str),
    #[error("{0} is for runs that this program starts itself: give it to the launcher of this one")]
    OtherLauncher(&'static str),
    #[error("--epochs is {asked}, but the run that is to go on has seen {seen:.2} epochs already")]
    FewerEpochs { asked: u64, seen: f64 },
    #[error(
        "the checkpoint is of a run with {what} {kept}, and this one has {given}: take another directory for it"
    )]
    AnotherRun {
        what: String,
        kept: String,
        given: String,
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
            rate: None,
            data: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data")),
            checkpoint_directory: None,
            checkpoint_every: None,
            max_restarts: None,
            sending: Sending::default(),
            backend: BackendChoice::Auto,
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
                Some("--rate") => parsed.rate = Some(rate(value("--rate")?)?),
                Some("--data") => parsed.data = value("--data")?.into(),
                Some("--checkpoint-dir") => {
                    parsed.checkpoint_directory = Some(directory(value("--checkpoint-dir")?)?);
                }
                Some("--checkpoint-every") => {
                    parsed.checkpoint_every = Some(seconds(value("--checkpoint-every")?)?);
                }
                Some("--max-restarts") => {
                    parsed.max_restarts = Some(number(
                        "--max-restarts",
                        value("--max-restarts")?,
                        0,
                        usize::MAX,
                    )?);
                }
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
                Some("--backend") => {
                    let words = [
                        ("auto", BackendChoice::Auto),
                        ("processor", BackendChoice::Processor),
                        ("gpu", BackendChoice::Gpu),
                    ]
                    .map(|(word, backend)| (word.to_owned(), backend));
                    parsed.backend = word("--backend", value("--backend")?, words)?;
                }
                Some("--json") if attached.is_none() => parsed.json = true,
                Some("-h" | "--help") if attached.is_none() => parsed.help = true,
                _ => return Err(ArgumentError::Unknown(argument)),
            }
        }
        refuse_changed_defaults(&parsed.sending)?;
        if parsed.checkpoint_every.is_some() && parsed.checkpoint_directory.is_none() {
            return Err(ArgumentError::NoDirectory("--checkpoint-every"));
        }
        Ok(parsed)
    }

    /// The first learning rate of `replicas` replicas.
    pub(crate) fn rate(&self, job: &Job, replicas: usize) -> f32 {
        self.rate
            .unwrap_or_else(|| self.sending.rate(job, replicas))
    }
}

fn rate(found: OsString) -> Result<f32, ArgumentError> {
    match found.to_str().map(str::parse::<f32>) {
        Some(Ok(rate)) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err(ArgumentError::Value {
            option: "--rate",
            found,
            expected: "a number above 0".to_owned(),
        }),
    }
}

fn directory(found: OsString) -> Result<PathBuf, ArgumentError> {
    if found.is_empty() {
        return Err(ArgumentError::Value {
            option: "--checkpoint-dir",
            found,
            expected: "a directory".to_owned(),
        });
    }
    Ok(found.into())
}

fn seconds(found: OsString) -> Result<Duration, ArgumentError> {
    let number = found.to_str().and_then(|text| text.parse().ok());
    match number.map(Duration::try_from_secs_f64) {
        Some(Ok(seconds)) if !seconds.is_zero() => Ok(seconds),
        _ => Err(ArgumentError::Value {
            option: "--checkpoint-every",
            found,
            expected: "a number of seconds above 0".to_owned(),
        }),
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

With --checkpoint-dir it can be stopped (Ctrl-C, SIGTERM) or killed at any time: the same command goes on where it was, to
the same numbers, and to the end with another number of replicas. A run that has ended goes on with more epochs.

Options:
  -n, --replicas N  how many replicas train together, 1 to {MOST_REPLICAS} (default 2)
      --seed S      of the first parameters and of the order of the samples (default 0)
      --epochs E    how often every sample is seen (default {epochs})
      --rate R      the replicas' first learning rate, which falls to 0 (default: the best of those tried, by the
                    number of replicas and by what is sent)
      --data DIR    where the data is, if not in the project's examples/data
      --backend B   where updates are encoded, to the same numbers: on the processor, on a gpu (GRADRING_ADAPTER says
                    which), or auto: as GRADRING_BACKEND says, or as is best for so many parameters (default auto)
      --json        end with one line of JSON: replicas, rate, policy, magnitude, limit, clip, momentum, accuracy
                    and dense_accuracy (parts of 1, on held-out data), compression, density, clipped, identical,
                    steps_per_second, steps, samples (seen, in all epochs), losses, validation_losses, accuracies (of
                    each epoch), backends and hashes (of each replica's parameters)
  -h, --help        this text

To be stopped and go on (with another launcher, `gradring run`, its own options of these names do the same):
      --checkpoint-dir DIR      where checkpoints are kept, and looked for at the start (default: none are made)
      --checkpoint-every SECONDS  how often one is made, beside those at a stop and at the end
      --max-restarts K          how often the replicas are started again when one fails (default 0)

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::data::DataError;
    use crate::common::mlp::Mlp;
    use crate::common::schedule::Rates;

    const JOB: Job = Job {
        name: "none",
        about: "",
        load: |path| Err(DataError::damaged(path, "there is none")),
        model: Mlp {
            inputs: 1,
            hidden: 1,
        },
        batch: 1,
        epochs: 1,
        rates: Rates(&[(1, 0.1), (4, 0.2)]),
        masked_rates: Rates(&[(1, 0.3), (4, 0.4)]),
        dense_rates: Rates(&[(1, 0.5)]),
    };

    fn parse(line: &str) -> Result<Arguments, ArgumentError> {
        Arguments::parse(&JOB, line.split_whitespace().map(OsString::from))
    }

    fn sending(line: &str) -> Sending {
        parse(line).expect(line).sending
    }

    fn refusal(line: &str) -> String {
        match parse(line) {
            Ok(_) => panic!("{line} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_policy_is_read_as_it_is_written() {
        let quantile = |density, warm_up| Policy::Quantile { density, warm_up };
        for (text, policy, full) in [
            ("quantile", quantile(0.01, 0), "quantile:0.01"),
            ("quantile:1e-3", quantile(0.001, 0), "quantile:0.001"),
            ("quantile:1e-3:62", quantile(0.001, 62), "quantile:0.001:62"),
            ("fixed:0.5", Policy::Fixed { threshold: 0.5 }, "fixed:0.5"),
            ("adaptive", Policy::Adaptive { start: None }, "adaptive"),
            (
                "adaptive:1e-4",
                Policy::Adaptive { start: Some(1e-4) },
                "adaptive:0.0001",
            ),
            ("target", Policy::Target { density: 1e-3 }, "target:0.001"),
            (
                "target:0.01",
                Policy::Target { density: 0.01 },
                "target:0.01",
            ),
            ("dl4j", Policy::Dl4j, "dl4j"),
            ("dl4j-spark", Policy::Dl4jSpark, "dl4j-spark"),
        ] {
            assert_eq!(sending(&format!("--policy {text}")).policy, policy);
            assert_eq!(policy.to_string(), full);
            assert_eq!(sending(&format!("--policy={full}")).policy, policy);
        }
        assert_eq!(sending(""), sending("--policy quantile:0.01"));
    }

    #[test]
    fn every_other_option_of_what_is_sent_is_kept() {
        let all = sending("--clip 4:3 --limit 7 --magnitude threshold --momentum memory");
        let clip = Clip {
            multiple: 4.0,
            every: 3,
        };
        assert_eq!(all.clip(), Some(clip));
        assert_eq!(all.limit, Some(7));
        assert_eq!(all.magnitude(), Magnitude::Threshold);
        assert_eq!(all.momentum, MomentumKeeping::Memory);
        assert_eq!(sending("--clip 4").clip().map(|clip| clip.every), Some(5));
        assert_eq!(
            sending("--policy fixed:1").magnitude(),
            Magnitude::Threshold
        );
        let mean = sending("--policy fixed:1 --magnitude mean --momentum masked");
        assert_eq!(mean.magnitude(), Magnitude::Mean);
        assert_eq!(mean.momentum, MomentumKeeping::Masked);
    }

    #[test]
    fn numbers_with_which_nothing_can_be_made_are_refused_with_the_reason() {
        for (line, reason) in [
            ("--policy quantile:0", "must be above 0"),
            ("--policy quantile:0.25:1", "must be below 0.25"),
            ("--policy fixed:NaN", "from 2^-100"),
            ("--policy adaptive:-1", "from 2^-100"),
            ("--policy target:1", "below 1"),
            ("--clip 1.5", "at least 2"),
            ("--clip 5:0", "at least 1"),
            ("--limit 0", "from 1 to"),
            ("--rate 0", "above 0"),
            ("--policy quantile:0.1:2:3", "expected quantile"),
            ("--policy fixed", "expected quantile"),
            ("--policy", "needs a value"),
            ("--clip 5:x", "MULTIPLE[:EVERY]"),
            ("--magnitude exact", "mean or threshold"),
            ("--momentum none", "own or masked or memory"),
        ] {
            let said = refusal(line);
            assert!(said.contains(reason), "{line}: {said}");
        }
    }

    #[test]
    fn deeplearning4js_defaults_go_with_nothing_that_would_change_them() {
        for option in [
            "--clip 5",
            "--limit 9",
            "--magnitude mean",
            "--momentum masked",
        ] {
            for policy in ["dl4j", "dl4j-spark"] {
                let said = refusal(&format!("{option} --policy {policy}"));
                assert!(said.contains("does not go with"), "{said}");
            }
        }
        let spark = sending("--policy dl4j-spark --magnitude threshold --momentum own");
        assert_eq!(
            spark.clip().map(|clip| clip.to_string()),
            Some("5:5".to_owned())
        );
        assert_eq!(sending("--policy dl4j").clip(), None);
        assert!(spark.forgets() && !sending("").forgets());
    }

    #[test]
    fn checkpoints_are_where_and_as_often_as_it_was_said() {
        let parsed = parse("--checkpoint-dir d --checkpoint-every=0.5 --max-restarts 3")
            .expect("all of them");
        assert_eq!(parsed.checkpoint_directory, Some(PathBuf::from("d")));
        assert_eq!(parsed.checkpoint_every, Some(Duration::from_millis(500)));
        assert_eq!(parsed.max_restarts, Some(3));
        for (line, reason) in [
            ("--checkpoint-every 1", "needs --checkpoint-dir"),
            ("--checkpoint-dir=", "expected a directory"),
            ("--checkpoint-dir", "needs a value"),
            ("--checkpoint-every 0", "above 0"),
            ("--checkpoint-every 1e99", "above 0"),
            ("--max-restarts -1", "a whole number"),
        ] {
            let said = refusal(line);
            assert!(said.contains(reason), "{line}: {said}");
        }
    }

    #[test]
    fn updates_are_encoded_where_it_was_said() {
        let backend = |line: &str| parse(line).expect(line).backend;
        assert_eq!(backend(""), BackendChoice::Auto);
        assert_eq!(backend("--backend auto"), BackendChoice::Auto);
        assert_eq!(backend("--backend=processor"), BackendChoice::Processor);
        assert_eq!(backend("--backend gpu"), BackendChoice::Gpu);
        for (line, reason) in [
            ("--backend cuda", "auto or processor or gpu"),
            ("--backend", "needs a value"),
        ] {
            let said = refusal(line);
            assert!(said.contains(reason), "{line}: {said}");
        }
    }

    #[test]
    fn the_rate_follows_from_what_is_sent_unless_it_is_given() {
        let rate = |line: &str| parse(line).expect(line).rate(&JOB, 4);
        assert_eq!(rate(""), 0.2);
        assert_eq!(rate("--momentum masked"), 0.4);
        assert_eq!(rate("--momentum memory"), 0.4);
        assert_eq!(rate("--policy dl4j"), 0.1);
        assert_eq!(rate("--policy dl4j --rate 0.7"), 0.7);
    }
}
