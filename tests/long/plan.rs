//! A random run: which exchanges there are, and what happens in which order. All of it follows from a seed, so that
//! replicas and simulation have the same without a word.

use crate::random::Random;
use gradring::codec::Path;
use gradring::codec::policy::{Adaptive, TargetDensity, ThresholdPolicy};
use gradring::exchange::external::ExternalUpdate;
use gradring::{Clipping, Dense, Fixed, MomentumMemory, NamedRange, Quantile, Reduction};
use half::{bf16, f16};

/// In which order an exchange does things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    Lockstep,
    /// Parts come in random order.
    Streamed,
    Uncompressed(Dense),
    /// Its numbers are dyadic, so that the order in which records come changes nothing.
    Asynchronous,
}

impl Schedule {
    pub const ALL: [Schedule; 5] = [
        Schedule::Lockstep,
        Schedule::Streamed,
        Schedule::Uncompressed(Dense::F32),
        Schedule::Uncompressed(Dense::Bf16),
        Schedule::Asynchronous,
    ];

    /// Whether external updates can be attached.
    fn has_sources(self) -> bool {
        matches!(self, Schedule::Lockstep | Schedule::Streamed)
    }

    /// Whether an update may be in the residual already.
    fn takes_residuals(self) -> bool {
        self == Schedule::Lockstep
    }

    pub fn is_compressed(self) -> bool {
        !matches!(self, Schedule::Uncompressed(_))
    }
}

/// One exchange's settings, some of which are each rank's own.
#[derive(Clone, Debug)]
pub struct Model {
    pub number: usize,
    pub schedule: Schedule,
    pub ranges: Vec<(usize, Option<Dense>, bool)>,
    pub reduction: Reduction,
    pub check_every: u64,
    policy: u64,
    pub clips: bool,
    pub remembers: bool,
    /// Whether a limit may end a step's hits. Streamed, it is spent in the order in which chunks go out, which where a ring
    /// does not hold two steps depends on the moment.
    limits: bool,
    seed: u64,
}

/// The unit of dyadic updates, which are multiples of a sixteenth of it.
const DYADIC: f32 = 1.0 / 128.0;

impl Model {
    /// Model number `number`. `scale` 1: a few thousand elements.
    pub fn random(
        number: usize,
        schedule: Schedule,
        (world_size, scale): (usize, usize),
        random: &mut Random,
    ) -> Model {
        let is_dyadic = schedule == Schedule::Asynchronous;
        let reduction = random.one_of(&[Reduction::Mean, Reduction::Sum]);
        let count = 2 + random.index(4);
        let ranges = (0..count).map(|_| {
            let dense = random.one_of(&[None, None, Some(Dense::F32), Some(Dense::Bf16)]);
            // Rings must hold a burst of asynchronous steps, or else it depends on the moment what is sent.
            let scale = if is_dyadic && dense.is_some() {
                1
            } else {
                scale
            };
            let elements = scale * (1 + random.index(800));
            (elements, dense, random.coin() && !is_dyadic)
        });
        let mut ranges: Vec<_> = ranges.collect();
        ranges[0].1 = None;
        let remembers = !is_dyadic && random.below(3) == 0;
        Model {
            number,
            schedule,
            ranges,
            // A third of a dyadic number is none.
            reduction: if is_dyadic && !world_size.is_power_of_two() {
                Reduction::Sum
            } else {
                reduction
            },
            check_every: random.one_of(&[1, 3, 10, 100]),
            policy: random.next(),
            clips: !is_dyadic && random.below(3) == 0,
            remembers,
            limits: schedule != Schedule::Streamed || scale == 1,
            seed: random.next(),
        }
    }

    pub fn length(&self) -> usize {
        self.ranges.iter().map(|range| range.0).sum()
    }

    fn of_rank(&self, rank: usize) -> Random {
        Random(self.policy ^ (rank as u64 + 1) << 32)
    }

    /// A policy of this kind with numbers of the rank's own.
    fn policy_of(&self, kind: u64, random: &mut Random) -> Box<dyn ThresholdPolicy> {
        if self.schedule == Schedule::Asynchronous {
            return Box::new(Fixed::new(DYADIC).expect("a threshold"));
        }
        let limit = random.coin().then(|| 1 + random.index(60));
        let is_unlimited = !self.limits;
        macro_rules! limited {
            ($policy:expr) => {{
                let policy = $policy;
                match limit {
                    _ if is_unlimited => Box::new(policy.without_limit()),
                    Some(hits) => Box::new(policy.with_limit(hits)),
                    None => Box::new(policy),
                }
            }};
        }
        match kind % 4 {
            0 => {
                limited!(Quantile::new(random.one_of(&[0.3, 0.1, 0.03, 0.01])).expect("a density"))
            }
            1 => limited!(Fixed::new(random.one_of(&[0.03, 0.01, 0.002])).expect("a threshold")),
            2 => limited!(Adaptive::dl4j()),
            _ => limited!(TargetDensity::dl4j()),
        }
    }

    pub fn policy(&self, rank: usize) -> Box<dyn ThresholdPolicy> {
        self.policy_of(self.policy, &mut self.of_rank(rank))
    }

    /// The ranges, as this rank has them.
    pub fn named_ranges(&self, rank: usize) -> Vec<NamedRange> {
        let random = &mut self.of_rank(rank);
        let ranges = self.ranges.iter().enumerate();
        let named = ranges.map(|(at, &(elements, dense, is_own))| {
            let name = format!("range {at}");
            match dense {
                Some(number) => NamedRange::dense(name, elements, number),
                None if is_own => NamedRange::compressed(name, elements)
                    .with_policy(self.policy_of(self.policy >> 8, random)),
                None => NamedRange::compressed(name, elements),
            }
        });
        named.collect()
    }

    pub fn clipping(&self, rank: usize) -> Clipping {
        let every = 1 + (self.policy >> 16) % 3 + rank as u64 % 2;
        Clipping::new(2.0 + rank as f32 * 0.5, every).expect("numbers for clipping")
    }

    pub fn memory(&self) -> MomentumMemory {
        MomentumMemory::new(0.875).expect("a momentum")
    }

    pub fn path(&self, rank: usize) -> Path {
        let mut available = Path::ALL.into_iter().filter(|path| path.is_available());
        let count = available.clone().count();
        let at = self.of_rank(rank).index(count);
        available.nth(at).expect("fewer than there are")
    }

    pub fn threads(&self, rank: usize) -> usize {
        1 + (rank + self.number) % 3
    }

    pub fn first_parameters(&self) -> Vec<f32> {
        (0..self.length())
            .map(|i| (i % 64) as f32 / 64.0 - 0.5)
            .collect()
    }

    /// What a rank gives to an event; as f32 what it is in `form`.
    pub fn update(&self, rank: usize, event: usize, form: Form) -> Vec<f32> {
        let random = &mut Random(self.seed ^ (rank as u64) << 48 ^ (event as u64) << 8);
        let mut values: Vec<f32> = if self.schedule == Schedule::Asynchronous {
            let each = (0..self.length()).map(|_| random.below(25) as f32 - 12.0);
            return each.map(|x| x * DYADIC / 16.0).collect();
        } else {
            (0..self.length()).map(|_| heavy_tailed(random)).collect()
        };
        if form.shape != Shape::InResidual {
            // What is no ordinary number, now and then.
            let at = random.index(values.len());
            match random.below(40) {
                0 => values[at] = f32::NAN,
                1 => values[at] = f32::NEG_INFINITY,
                2..5 => values[at] = 1e-41,
                5..8 => values[at] = -0.0,
                _ => {}
            }
        }
        for value in &mut values {
            *value = match form.number {
                Number::Single => *value,
                Number::Half => f16::from_f32(*value).to_f32(),
                Number::Bf16 => bf16::from_f32(*value).to_f32(),
            };
        }
        values
    }

    /// What a source is sent.
    pub fn external(&self, seed: u64) -> ExternalUpdate {
        let random = &mut Random(seed);
        let length = self.length();
        if random.below(4) == 0 {
            let values = (0..length).map(|_| random.laplace(3e-3)).collect();
            return ExternalUpdate::dense(values).expect("finite");
        }
        let mut places: Vec<usize> = (0..20).map(|_| random.index(length)).collect();
        places.sort_unstable();
        places.dedup();
        let value = random.one_of(&[0.01, 0.0123, 0.0625]);
        let hits = places.into_iter().map(|i| (i, i % 3 == 0));
        ExternalUpdate::hits(length, value, hits).expect("ascending")
    }
}

fn heavy_tailed(random: &mut Random) -> f32 {
    let bits = random.next();
    let uniform = (bits >> 40) as f32 / (1 << 24) as f32 - 0.5;
    1e-2 * uniform / (1.02 - 2.0 * uniform.abs())
}

/// In what numbers a rank has an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    Single,
    Half,
    Bf16,
}

/// How a rank hands it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Whole,
    /// Slices, cut as this seed says.
    Parts(u64),
    InResidual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub number: Number,
    pub shape: Shape,
}

/// What all ranks do next.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step, or an `all_reduce` whose sum is then subtracted. By rank: how it gives its update, and what its source is
    /// sent before.
    Step {
        model: usize,
        onto_sum: bool,
        gives: Vec<Option<Form>>,
        external: Vec<Vec<u64>>,
    },
    Flush {
        model: usize,
        onto_sum: bool,
    },
    /// By rank: so many asynchronous steps. Then they settle.
    Burst {
        model: usize,
        steps: Vec<usize>,
    },
    Check {
        model: usize,
    },
    Barrier,
    /// So many bytes of each rank, more of the higher ones.
    Gather(usize),
    /// So many values.
    Reduce(usize),
    Broadcast {
        root: usize,
        elements: usize,
    },
}

/// The whole run.
pub struct Plan {
    pub world_size: usize,
    pub models: Vec<Model>,
    /// Which ranks have a source, by model.
    pub sources: Vec<Vec<bool>>,
    pub seed: u64,
}

impl Plan {
    /// Vectors of a few thousand elements, times `scale`.
    pub fn new(world_size: usize, schedules: &[Schedule], scale: usize, seed: u64) -> Plan {
        let random = &mut Random(seed);
        let models = schedules.iter().enumerate();
        let models: Vec<Model> = models
            .map(|(number, &schedule)| Model::random(number, schedule, (world_size, scale), random))
            .collect();
        let sources = models.iter().map(|model| {
            let has = model.schedule.has_sources();
            (0..world_size)
                .map(|_| has && random.below(3) == 0)
                .collect()
        });
        Plan {
            world_size,
            sources: sources.collect(),
            models,
            seed: random.next(),
        }
    }

    /// Event number `number`.
    pub fn event(&self, number: usize) -> Event {
        let random = &mut Random(self.seed ^ (number as u64) << 16);
        let model = random.index(self.models.len());
        let of = &self.models[model];
        let onto_sum = random.below(4) == 0;
        match (random.below(40), of.schedule) {
            (0, _) => return Event::Barrier,
            (1, _) => return Event::Gather(random.one_of(&[0, 7, 900, 3000])),
            (2, _) => return Event::Reduce(random.one_of(&[1, 100, 500, 20_000])),
            (3, _) => {
                return Event::Broadcast {
                    root: random.index(self.world_size),
                    elements: random.index(3000),
                };
            }
            (4, _) => return Event::Check { model },
            (5, Schedule::Lockstep | Schedule::Streamed) => {
                return Event::Flush { model, onto_sum };
            }
            (_, Schedule::Asynchronous) => {
                let steps = (0..self.world_size).map(|_| random.index(5));
                return Event::Burst {
                    model,
                    steps: steps.collect(),
                };
            }
            _ => {}
        }
        // In some steps all give, in some a few, in one of many nobody.
        let least = random.one_of(&[0, 0, 0, 0, 3, 5, 20]);
        let nobody = random.below(50) == 0;
        let gives = (0..self.world_size).map(|_| {
            let number = random.one_of(&[Number::Single, Number::Half, Number::Bf16]);
            let in_place = of.schedule.takes_residuals() && !of.remembers && random.below(4) == 0;
            let (skips, seed) = (random.below(20) < least, random.next());
            let form = match (in_place, random.coin()) {
                (true, _) => Form {
                    number: Number::Single,
                    shape: Shape::InResidual,
                },
                (false, true) => Form {
                    number,
                    shape: Shape::Parts(seed),
                },
                (false, false) => Form {
                    number,
                    shape: Shape::Whole,
                },
            };
            (!nobody && !skips).then_some(form)
        });
        let gives = gives.collect();
        let external = self.sources[model].iter().map(|&has| {
            let count = random.one_of(&[0, 0, 0, 0, 1, 1, 2, 5]);
            let seeds = (0..count).map(|_| random.next()).collect();
            if has { seeds } else { Vec::new() }
        });
        Event::Step {
            model,
            onto_sum,
            gives,
            external: external.collect(),
        }
    }
}

/// Parts that follow one another, cut as `seed` says, in an order that it says too.
pub fn shuffled(seed: u64, length: usize) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    let parts = cuts(seed, length).into_iter().map(|length| {
        start += length;
        start - length..start
    });
    let mut parts: Vec<_> = parts.collect();
    let random = &mut Random(seed ^ 0x5EED);
    for last in (1..parts.len()).rev() {
        parts.swap(last, random.index(last + 1));
    }
    parts
}

/// Lengths of parts that `seed` cuts `length` into; some are empty.
pub fn cuts(seed: u64, length: usize) -> Vec<usize> {
    let random = &mut Random(seed);
    let mut ends: Vec<usize> = (0..1 + random.index(6))
        .map(|_| random.index(length + 1))
        .collect();
    ends.extend([0, length]);
    ends.sort_unstable();
    ends.windows(2).map(|pair| pair[1] - pair[0]).collect()
}
