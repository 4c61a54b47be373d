//! How encoders can be made, at random.

use super::plain::{Kind, Random};
use gradring::codec::policy::{
    Adaptive, Fixed, Magnitude, PolicyInput, PolicyState, PolicyStateError, Quantile,
    TargetDensity, ThresholdPolicy,
};
use gradring::codec::{
    BLOCK, CHUNK, Clip, Clipping, Dense, Encoder, EncoderBuilder, MomentumMemory, NamedRange, Path,
    PostInput, PostProcessor, Unit,
};

/// Any policy as one type.
#[derive(Debug)]
pub(super) struct AnyPolicy(pub(super) Box<dyn ThresholdPolicy>);

impl ThresholdPolicy for AnyPolicy {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }
    fn sample_size(&self, elements: usize, step: u64) -> usize {
        self.0.sample_size(elements, step)
    }
    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        self.0.unit(input)
    }
    fn limit(&self, elements: usize, step: u64) -> Option<usize> {
        self.0.limit(elements, step)
    }
    fn state(&self) -> PolicyState {
        self.0.state()
    }
    fn restore(&mut self, state: &PolicyState) -> Result<(), PolicyStateError> {
        self.0.restore(state)
    }
    fn merge(&self, states: &[PolicyState]) -> Result<PolicyState, PolicyStateError> {
        self.0.merge(states)
    }
}

/// A policy that can be made again and again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Policy {
    Fixed(f32, Option<usize>, Magnitude),
    Quantile(f64, Magnitude),
    WarmUp(f64, u64),
    Adaptive(f64, f64, Option<usize>, Magnitude),
    TargetDensity(f64),
}

impl Policy {
    pub(super) fn make(self) -> AnyPolicy {
        AnyPolicy(match self {
            Policy::Fixed(t, limit, magnitude) => {
                let policy = Fixed::new(t).unwrap().with_magnitude(magnitude);
                Box::new(match limit {
                    Some(limit) => policy.with_limit(limit),
                    None => policy,
                })
            }
            Policy::Quantile(density, magnitude) => {
                Box::new(Quantile::new(density).unwrap().with_magnitude(magnitude))
            }
            Policy::WarmUp(density, steps) => {
                Box::new(Quantile::new(density).unwrap().with_warm_up(steps).unwrap())
            }
            Policy::Adaptive(least, most, limit, magnitude) => {
                let policy = Adaptive::new(least, most)
                    .unwrap()
                    .with_magnitude(magnitude);
                Box::new(match limit {
                    Some(limit) => policy.with_limit(limit),
                    None => policy,
                })
            }
            Policy::TargetDensity(target) => Box::new(TargetDensity::new(target).unwrap()),
        })
    }

    fn any(random: &mut Random, elements: usize) -> Policy {
        let magnitude = random.one_of(&[Magnitude::Mean, Magnitude::Threshold]);
        let limit = random
            .coin()
            .then(|| random.below(elements as u64 / 4 + 2) as usize);
        match random.below(5) {
            0 => Policy::Fixed(random.one_of(&[0.25, 0.04, 1e-30]), limit, magnitude),
            1 => Policy::Quantile(random.one_of(&[0.01, 0.1, 0.4]), magnitude),
            2 => Policy::WarmUp(0.02, 4),
            3 => Policy::Adaptive(1e-2, 0.1, limit, magnitude),
            _ => Policy::TargetDensity(0.05),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Coding {
    Shared,
    Own(Policy),
    Dense(Dense),
}

/// A post-processor of a user's own: larger ones are halved, and in odd steps some are scribbled over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halving;

impl PostProcessor for Halving {
    fn kind(&self) -> &'static str {
        "Halving"
    }

    fn clip(&self, step: u64) -> Option<Clip> {
        (step % 3 == 1).then(|| Clip::new(4.0).unwrap())
    }

    fn process(&self, input: &PostInput, residual: &mut [f32]) -> Option<f64> {
        if input.step.is_multiple_of(2) {
            return None;
        }
        let mut taken = 0.0;
        for r in residual {
            if r.abs() > 1.5 * input.unit.v() {
                *r /= 2.0;
                taken += f64::from(r.abs());
            } else if r.to_bits() % 7 == 3 {
                taken += f64::from(r.abs());
                *r = f32::from_bits(r.to_bits() << 9 >> 9 | 0x8000_0000);
            } else if r.to_bits() % 11 == 5 {
                taken += f64::from(r.abs());
                *r = f32::NAN;
            }
        }
        Some(taken)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Post {
    None,
    Clipping(f32, u64),
    Halving,
}

/// Everything that decides what an encoder sends.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) ranges: Vec<(usize, Coding)>,
    pub(super) policy: Policy,
    pub(super) post: Post,
    /// Momentum, norm for local clipping, replicas.
    pub(super) memory: Option<(f32, Option<f32>, usize)>,
    /// The number of the first step.
    pub(super) first: u64,
}

impl Config {
    pub(super) fn elements(&self) -> usize {
        self.ranges.iter().map(|range| range.0).sum()
    }

    /// Small vectors of many chunks, since no chunk spans two ranges; now and then a longer one.
    pub(super) fn any(random: &mut Random) -> Config {
        let large = random.below(6) == 0;
        let count = if large { 3 } else { 1 + random.below(14) };
        let ranges = (0..count).map(|_| {
            let length = match random.below(8) {
                0 => 0,
                1 => 1 + random.below(40) as usize,
                2 if large => CHUNK + random.below(5000) as usize,
                3 if large => BLOCK + random.below(5000) as usize,
                _ => random.below(2500) as usize,
            };
            let coding = match random.below(9) {
                0 => Coding::Dense(Dense::F32),
                1 => Coding::Dense(Dense::Bf16),
                2 => Coding::Own(Policy::any(random, length)),
                _ => Coding::Shared,
            };
            (length, coding)
        });
        let ranges: Vec<(usize, Coding)> = ranges.collect();
        let elements = ranges.iter().map(|range| range.0).sum();
        Config {
            ranges,
            policy: Policy::any(random, elements),
            post: match random.below(4) {
                0 => Post::Clipping(2.0, 1),
                1 => Post::Halving,
                _ => Post::None,
            },
            memory: (random.below(3) == 0).then(|| {
                let norm = random.coin().then_some(2.5);
                (
                    random.one_of(&[0.0, 0.5, 0.9]),
                    norm,
                    1 + random.below(8) as usize,
                )
            }),
            first: random.one_of(&[0, 1, 5, u64::from(u32::MAX) - 2, u64::MAX - 20]),
        }
    }

    pub(super) fn builder(&self) -> EncoderBuilder {
        let ranges = self
            .ranges
            .iter()
            .enumerate()
            .map(|(at, &(length, coding))| {
                let name = name_of(at);
                match coding {
                    Coding::Shared => NamedRange::compressed(name, length),
                    Coding::Own(policy) => {
                        NamedRange::compressed(name, length).with_policy(policy.make())
                    }
                    Coding::Dense(number) => NamedRange::dense(name, length, number),
                }
            });
        let mut builder = Encoder::builder(self.elements())
            .name("all")
            .ranges(ranges)
            .policy(self.policy.make())
            .path(Path::Scalar)
            .keep_hits(true)
            .debug(true);
        builder = match self.post {
            Post::None => builder,
            Post::Clipping(multiple, every) => {
                builder.post_processor(Clipping::new(multiple, every).unwrap())
            }
            Post::Halving => builder.post_processor(Halving),
        };
        if let Some((momentum, norm, replicas)) = self.memory {
            let mut memory = MomentumMemory::new(momentum).unwrap();
            if let Some(norm) = norm {
                memory = memory.with_local_clipping(norm).unwrap();
            }
            builder = builder.momentum(memory, replicas);
        }
        builder
    }
}

pub(super) fn name_of(at: usize) -> String {
    format!("range {at}")
}

/// What the numbers of a step's update are like.
pub(super) fn kind_of(random: &mut Random) -> Kind {
    match random.below(8) {
        0 => Kind::Edges,
        1 => Kind::AnyBits,
        2 => Kind::Single(300),
        3 => Kind::Single(u64::MAX),
        4 => Kind::Mixed,
        _ => Kind::Ordinary(10f64.powf(-3.0 * random.unit())),
    }
}
