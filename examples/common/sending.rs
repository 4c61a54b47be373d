//! What is chosen of an update to be sent: the options that the examples have for it, and an exchange made of them.

use std::fmt;

use gradring::codec::policy::{Adaptive, Magnitude, PolicyError, TargetDensity};
use gradring::codec::{Clipping, ClippingError, MomentumMemory};
use gradring::exchange::{BackendChoice, Builder};
use gradring::{Error, Exchange, Fixed, Quantile, Reduction, Replica};

use super::job::Job;
use super::momentum::MOMENTUM;

/// How the threshold is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Policy {
    /// The part of its residual's elements that a replica sends in a step, after so many steps of warm-up.
    Quantile {
        density: f64,
        warm_up: u64,
    },
    Fixed {
        threshold: f32,
    },
    /// The first threshold; `None`: the first update's quantile.
    Adaptive {
        start: Option<f64>,
    },
    Target {
        density: f64,
    },
    /// What Deeplearning4j does on one machine unless told otherwise: the threshold starts at 1e-4, the replicas' units
    /// are added up, and residual and threshold are dropped at each epoch's end.
    Dl4j,
    /// The same with Deeplearning4j's defaults on Spark, which clip the residual.
    Dl4jSpark,
}

/// Who keeps the momentum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MomentumKeeping {
    /// The trainer: its update is handed over.
    Own,
    /// The trainer, whose velocity starts anew at the elements that were sent.
    Masked,
    /// The encoder: the gradient, times the rate, is handed over.
    Memory,
}

/// Clamps the residual to a multiple of the threshold, every so many steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clip {
    pub(crate) multiple: f32,
    pub(crate) every: u64,
}

/// Deeplearning4j's defaults on Spark.
const SPARK_CLIP: Clip = Clip {
    multiple: 5.0,
    every: 5,
};

/// All that was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sending {
    pub(crate) policy: Policy,
    /// What a hit sends; `None`: as the policy has it.
    pub(crate) magnitude: Option<Magnitude>,
    /// The most hits of a step; `None`: as the policy has it.
    pub(crate) limit: Option<usize>,
    pub(crate) clip: Option<Clip>,
    pub(crate) momentum: MomentumKeeping,
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            policy: Policy::Quantile {
                density: 1e-2,
                warm_up: 0,
            },
            magnitude: None,
            limit: None,
            clip: None,
            momentum: MomentumKeeping::Own,
        }
    }
}

impl Policy {
    /// `name[:number..]`, as on the command line; `None` if it is none of these.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let name = parts.next()?;
        let numbers: Vec<&str> = parts.collect();
        Some(match (name, numbers.as_slice()) {
            ("quantile", []) => Sending::default().policy,
            ("quantile", [density]) => Self::Quantile {
                density: density.parse().ok()?,
                warm_up: 0,
            },
            ("quantile", [density, steps]) => Self::Quantile {
                density: density.parse().ok()?,
                warm_up: steps.parse().ok()?,
            },
            ("fixed", [threshold]) => Self::Fixed {
                threshold: threshold.parse().ok()?,
            },
            ("adaptive", []) => Self::Adaptive { start: None },
            ("adaptive", [start]) => Self::Adaptive {
                start: Some(start.parse().ok()?),
            },
            ("target", []) => Self::Target { density: 1e-3 },
            ("target", [density]) => Self::Target {
                density: density.parse().ok()?,
            },
            ("dl4j", []) => Self::Dl4j,
            ("dl4j-spark", []) => Self::Dl4jSpark,
            _ => return None,
        })
    }

    /// Whether it can be made with its numbers.
    pub(crate) fn check(self) -> Result<(), PolicyError> {
        let sending = Sending {
            policy: self,
            ..Sending::default()
        };
        sending.with_policy(Exchange::builder(1)).map(drop)
    }

    /// Whether it is a set of defaults as they stand, with which no other option goes.
    pub(crate) fn is_dl4j(self) -> bool {
        matches!(self, Self::Dl4j | Self::Dl4jSpark)
    }
}

impl Clip {
    /// `multiple[:steps]`, as on the command line; `None` if it is not that.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (multiple, every) = text.split_once(':').unwrap_or((text, "5"));
        Some(Self {
            multiple: multiple.parse().ok()?,
            every: every.parse().ok()?,
        })
    }

    pub(crate) fn processor(self) -> Result<Clipping, ClippingError> {
        Clipping::new(self.multiple, self.every)
    }
}

impl Sending {
    /// What a hit sends.
    pub(crate) fn magnitude(&self) -> Magnitude {
        self.magnitude.unwrap_or(match self.policy {
            Policy::Quantile { .. } => Magnitude::Mean,
            _ => Magnitude::Threshold,
        })
    }

    pub(crate) fn clip(&self) -> Option<Clip> {
        match self.policy {
            Policy::Dl4jSpark => Some(SPARK_CLIP),
            _ => self.clip,
        }
    }

    pub(crate) fn reduction(&self) -> Reduction {
        if self.policy.is_dl4j() {
            Reduction::Sum
        } else {
            Reduction::Mean
        }
    }

    /// Whether each epoch has an exchange of its own: residual and threshold end with it.
    pub(crate) fn forgets(&self) -> bool {
        self.policy.is_dl4j()
    }

    /// The best first learning rate with `replicas` replicas, of those tried. Where units are added up it is that of one
    /// replica, as the step already grows with their number.
    pub(crate) fn rate(&self, job: &Job, replicas: usize) -> f32 {
        match (self.reduction(), self.momentum) {
            (Reduction::Sum, _) => job.rates.at(1),
            (Reduction::Mean, MomentumKeeping::Own) => job.rates.at(replicas),
            (Reduction::Mean, MomentumKeeping::Masked | MomentumKeeping::Memory) => {
                job.masked_rates.at(replicas)
            }
        }
    }

    /// Makes the exchange, on all replicas together; where updates are encoded is this one's own business.
    pub(crate) fn exchange(
        &self,
        job: &Job,
        elements: usize,
        backend: BackendChoice,
        replica: &Replica,
    ) -> Result<Exchange, Error> {
        let mut builder = Exchange::builder(elements)
            .name(job.name)
            .backend(backend)
            .reduction(self.reduction())
            .keep_hits(self.momentum == MomentumKeeping::Masked);
        if let Some(clip) = self.clip() {
            builder = builder.post_processor(clip.processor()?);
        }
        if self.momentum == MomentumKeeping::Memory {
            builder = builder.momentum(MomentumMemory::new(MOMENTUM)?);
        }
        self.with_policy(builder)?.build(replica)
    }

    fn with_policy(&self, builder: Builder) -> Result<Builder, PolicyError> {
        // Each policy is a type of its own, with methods of the same names.
        macro_rules! with {
            ($policy:expr) => {{
                let policy = $policy.with_magnitude(self.magnitude());
                builder.policy(match self.limit {
                    Some(hits) => policy.with_limit(hits),
                    None => policy,
                })
            }};
        }
        Ok(match self.policy {
            Policy::Quantile {
                density,
                warm_up: 0,
            } => with!(Quantile::new(density)?),
            Policy::Quantile { density, warm_up } => {
                with!(Quantile::new(density)?.with_warm_up(warm_up)?)
            }
            Policy::Fixed { threshold } => with!(Fixed::new(threshold)?),
            Policy::Adaptive { start: None } => with!(Adaptive::default()),
            Policy::Adaptive { start: Some(t) } => with!(Adaptive::default().starting_at(t)?),
            Policy::Target { density } => with!(TargetDensity::new(density)?),
            Policy::Dl4j | Policy::Dl4jSpark => with!(Adaptive::dl4j()),
        })
    }
}

impl fmt::Display for Policy {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantile {
                density,
                warm_up: 0,
            } => write!(f, "quantile:{density}"),
            Self::Quantile { density, warm_up } => write!(f, "quantile:{density}:{warm_up}"),
            Self::Fixed { threshold } => write!(f, "fixed:{threshold}"),
            Self::Adaptive { start: None } => f.write_str("adaptive"),
            Self::Adaptive { start: Some(t) } => write!(f, "adaptive:{t}"),
            Self::Target { density } => write!(f, "target:{density}"),
            Self::Dl4j => f.write_str("dl4j"),
            Self::Dl4jSpark => f.write_str("dl4j-spark"),
        }
    }
}

impl fmt::Display for Clip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.multiple, self.every)
    }
}

/// The word on the command line for what a hit sends.
pub(crate) fn magnitude_word(magnitude: Magnitude) -> &'static str {
    match magnitude {
        Magnitude::Mean => "mean",
        Magnitude::Threshold => "threshold",
    }
}

impl fmt::Display for MomentumKeeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Masked => "masked",
            Self::Memory => "memory",
        })
    }
}
