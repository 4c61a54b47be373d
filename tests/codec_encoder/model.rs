//! A plain model of an encoder: one chunk after the other, one element at a time.

use super::config::{Coding, Config, Halving, Post, name_of};
use super::plain;
use gradring::codec::policy::{LastStep, PolicyInput, ThresholdPolicy};
use gradring::codec::{
    BLOCK, Budget, CHUNK, ChunkOptions, Clip, Format, Path, PostInput, PostProcessor, Unit, canon,
};
use std::ops::Range;

struct Scope {
    name: String,
    policy: super::config::AnyPolicy,
    ranges: Vec<Range<usize>>,
    unit: Option<Unit>,
    last: Option<LastStep>,
    left: usize,
    hits: u64,
    mass: f64,
    /// Elements that were held against the threshold.
    tested: usize,
    untested: bool,
    /// What a streamed step gathered for the next one.
    gathered: Option<Vec<f32>>,
}

impl Scope {
    fn choose(&mut self, step: u64, sample: &[f32]) {
        let elements = self.elements();
        let input = PolicyInput {
            step,
            elements,
            sample,
            last: self.last,
        };
        if !self.untested || !sample.is_empty() || self.unit.is_none() {
            self.unit = Some(self.policy.unit(&input));
        }
        self.left = self.policy.limit(elements, step).unwrap_or(usize::MAX);
        (self.hits, self.mass, self.tested) = (0, 0.0, 0);
    }

    fn elements(&self) -> usize {
        self.ranges.iter().map(ExactSizeIterator::len).sum()
    }
}

/// What a model's step came to.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) messages: Vec<Chunk>,
    pub(super) hits: Vec<usize>,
    pub(super) clipped: f64,
    pub(super) dropped: u64,
    pub(super) l1_of_hits: f64,
    /// By scope: its name, its elements, its unit, what it sent, and what it would have sent without a limit.
    pub(super) scopes: Vec<(String, usize, Unit, u64, usize)>,
    /// Whether a limit ended in a chunk that was neither the first nor the last of its scope.
    pub(super) limit_inside: bool,
}

pub(super) struct Chunk {
    pub(super) elements: Range<usize>,
    pub(super) format: Format,
    pub(super) unit: Option<Unit>,
    pub(super) hits: usize,
    pub(super) payload: Vec<u8>,
}

/// A sample of these ranges' magnitudes, as if they were one vector.
fn sample_of(ranges: &[Range<usize>], s: &[f32], wanted: usize, step: u64) -> Vec<f32> {
    let ranges = ranges.iter().cloned();
    let s: Vec<f32> = ranges.flat_map(|range| &s[range]).copied().collect();
    let mut sample = Vec::new();
    if wanted > 0 {
        let nothing = vec![0.0f32; s.len()];
        Path::Scalar
            .magnitudes(&s, &nothing, wanted, step, &mut sample)
            .unwrap();
    }
    sample
}

fn any_unit() -> Unit {
    Unit::nearest(1.0, 1.0)
}

/// No hits.
fn nothing() -> ChunkOptions {
    ChunkOptions {
        clip: None,
        budget: Some(Budget {
            max_hits: 0,
            start: 0,
        }),
    }
}

pub(super) struct Model {
    pub(super) residual: Vec<f32>,
    velocity: Option<Vec<f32>>,
    config: Config,
    scopes: Vec<Scope>,
    /// The elements of each chunk, and its scope or number.
    chunks: Vec<(Range<usize>, Coding, Option<usize>)>,
}

impl Model {
    pub(super) fn new(config: &Config) -> Model {
        let mut scopes: Vec<Scope> = Vec::new();
        let scope = |name: String, policy: super::config::AnyPolicy| Scope {
            name,
            policy,
            ranges: Vec::new(),
            unit: None,
            last: None,
            left: 0,
            hits: 0,
            mass: 0.0,
            tested: 0,
            untested: false,
            gathered: None,
        };
        let is_shared = |range: &(usize, Coding)| matches!(range.1, Coding::Shared);
        if config.ranges.iter().any(is_shared) {
            scopes.push(scope("all".to_owned(), config.policy.make()));
        }
        let (mut start, mut chunks) = (0, Vec::new());
        for (at, &(length, coding)) in config.ranges.iter().enumerate() {
            let range = start..start + length;
            start += length;
            let number = match coding {
                Coding::Shared => Some(0),
                Coding::Own(policy) => {
                    scopes.push(scope(name_of(at), policy.make()));
                    Some(scopes.len() - 1)
                }
                Coding::Dense(_) => None,
            };
            let most = if number.is_some() { CHUNK } else { BLOCK };
            for first in range.clone().step_by(most) {
                chunks.push((first..range.end.min(first + most), coding, number));
            }
            if let Some(number) = number {
                scopes[number].ranges.push(range);
            }
        }
        Model {
            residual: vec![0.0; config.elements()],
            velocity: config.memory.map(|_| vec![0.0; config.elements()]),
            config: config.clone(),
            scopes,
            chunks,
        }
    }

    /// `w = canon(canon(m w) + canon(c g))`; how many elements were left out.
    fn remember(&mut self, gradient: &[f32]) -> u64 {
        let Some((momentum, norm, replicas)) = self.config.memory else {
            return 0;
        };
        let mut scale = 1.0f32;
        if let Some(norm) = norm {
            // The sum's order is part of the bits: four sums, each of every fourth element.
            let mut sums = [0f64; 4];
            for (i, g) in gradient.iter().enumerate() {
                let g = if g.is_finite() { f64::from(*g) } else { 0.0 };
                sums[i % 4] += g * g;
            }
            let found = sums.iter().sum::<f64>().sqrt();
            let most = f64::from(norm) / (replicas as f64).sqrt();
            if found > most {
                scale = (most / found) as f32;
            }
        }
        let mut left_out = 0;
        for (w, &g) in self.velocity.as_mut().unwrap().iter_mut().zip(gradient) {
            let kept = canon(momentum * *w);
            let sum = kept + canon(canon(g) * scale);
            *w = if sum.is_finite() { canon(sum) } else { kept };
            left_out += u64::from(!sum.is_finite());
        }
        left_out
    }

    fn choose(&mut self, step: u64, update: &[f32]) {
        for scope in &mut self.scopes {
            scope.gathered = None;
            let wanted = scope.policy.sample_size(scope.elements(), step);
            // As if its ranges were one vector.
            let ranges = || scope.ranges.iter().cloned();
            let residual: Vec<f32> = ranges()
                .flat_map(|range| &self.residual[range])
                .copied()
                .collect();
            let update: Vec<f32> = ranges().flat_map(|range| &update[range]).copied().collect();
            let mut sample = Vec::new();
            if wanted > 0 {
                Path::Scalar
                    .magnitudes(&residual, &update, wanted, step, &mut sample)
                    .unwrap();
            }
            scope.choose(step, &sample);
        }
    }

    pub(super) fn step(&mut self, step: u64, gradient: &[f32]) -> Sent {
        self.step_keeping(step, gradient, &[])
    }

    /// A step of which the visits that `kept` has are only accumulated.
    pub(super) fn step_keeping(&mut self, step: u64, gradient: &[f32], kept: &[bool]) -> Sent {
        let mut sent = Sent {
            dropped: self.remember(gradient),
            ..Sent::default()
        };
        let update = self.velocity.clone().unwrap_or_else(|| gradient.to_vec());
        self.choose(step, &update);
        let count = self.chunks.len() as u128;
        let at = |visit| ((step as u128 + visit) % count) as usize;
        let order: Vec<usize> = (0..count).map(at).collect();
        self.send(step, &update, &order, kept, &mut sent);
        sent
    }

    /// A streamed step: which chunk of each scope was complete first follows from the order in which they were, and they
    /// are encoded in the other one.
    pub(super) fn streamed_step(
        &mut self,
        step: u64,
        gradient: &[f32],
        complete: &[usize],
        order: &[usize],
    ) -> Sent {
        let mut sent = Sent {
            dropped: self.remember(gradient),
            ..Sent::default()
        };
        let update = self.velocity.clone().unwrap_or_else(|| gradient.to_vec());
        let sums = plain::encode(&self.residual, &update, any_unit(), &nothing()).residual;
        for (number, scope) in self.scopes.iter_mut().enumerate() {
            let elements = scope.elements();
            let wanted = scope.policy.sample_size(elements, step).min(elements);
            let gathered = scope.gathered.take();
            let sample = match gathered {
                _ if wanted == 0 => Vec::new(),
                Some(sample) => sample,
                None => {
                    let of_scope = |&&at: &&usize| self.chunks[at].2 == Some(number);
                    let first = *complete.iter().find(of_scope).unwrap();
                    let range = self.chunks[first].0.clone();
                    sample_of(
                        std::slice::from_ref(&range),
                        &sums,
                        wanted.min(range.len()),
                        step,
                    )
                }
            };
            scope.choose(step, &sample);
            let wanted = scope.policy.sample_size(elements, step + 1).min(elements);
            scope.gathered =
                (wanted > 0).then(|| sample_of(&scope.ranges, &sums, wanted, step + 1));
        }
        self.send(step, &update, order, &[], &mut sent);
        sent
    }

    fn send(&mut self, step: u64, update: &[f32], order: &[usize], kept: &[bool], sent: &mut Sent) {
        let mut unlimited = vec![0; self.scopes.len()];
        for (visit, &at) in order.iter().enumerate() {
            let (elements, coding, number) = self.chunks[at].clone();
            if kept.get(visit) == Some(&true) {
                let before = &mut self.residual[elements.clone()];
                let outcome = plain::encode(before, &update[elements], any_unit(), &nothing());
                before.copy_from_slice(&outcome.residual);
                sent.dropped += u64::from(outcome.dropped);
                continue;
            }
            let chunk = match (coding, number) {
                (Coding::Dense(dense), _) => {
                    let before = &mut self.residual[elements.clone()];
                    let (message, rest, dropped) =
                        plain::dense(before, &update[elements.clone()], dense);
                    before.copy_from_slice(&rest);
                    sent.dropped += u64::from(dropped);
                    let bytes = message.iter().flat_map(|m| m.to_le_bytes());
                    let payload: Vec<u8> = match dense.bytes() {
                        4 => bytes.collect(),
                        _ => bytes
                            .collect::<Vec<u8>>()
                            .chunks(4)
                            .flat_map(|x| [x[2], x[3]])
                            .collect(),
                    };
                    Chunk {
                        elements,
                        format: dense.format(),
                        unit: None,
                        hits: 0,
                        payload,
                    }
                }
                (_, Some(number)) => {
                    self.scopes[number].tested += elements.len();
                    self.threshold(step, number, elements, update, sent, &mut unlimited)
                }
                _ => unreachable!("what is not dense has a scope"),
            };
            sent.messages.push(chunk);
        }
        for (scope, unlimited) in self.scopes.iter_mut().zip(unlimited) {
            let (elements, unit) = (scope.elements(), scope.unit.unwrap());
            sent.scopes
                .push((scope.name.clone(), elements, unit, scope.hits, unlimited));
            scope.untested = elements > 0 && scope.tested == 0;
            if scope.untested {
                continue;
            }
            // As if chunks that were kept had as many hits as the others.
            let hits = scope.hits as u128 * elements as u128 / scope.tested.max(1) as u128;
            scope.last = Some(LastStep {
                unit,
                hits: hits as u64,
                density: hits as f64 / elements.max(1) as f64,
                mean: (scope.hits > 0).then(|| scope.mass / scope.hits as f64),
            });
        }
    }

    fn clip(&self, step: u64) -> Option<Clip> {
        match self.config.post {
            Post::None => None,
            Post::Clipping(multiple, every) => {
                (step > 0 && step.is_multiple_of(every)).then(|| Clip::new(multiple).unwrap())
            }
            Post::Halving => Halving.clip(step),
        }
    }

    fn threshold(
        &mut self,
        step: u64,
        number: usize,
        elements: Range<usize>,
        update: &[f32],
        sent: &mut Sent,
        unlimited: &mut [usize],
    ) -> Chunk {
        let clip = self.clip(step);
        let scope = &mut self.scopes[number];
        let unit = scope.unit.unwrap();
        let start = (step as u32).wrapping_mul(0x9E37_79B1) as usize;
        let options = ChunkOptions {
            clip,
            budget: (scope.left < usize::MAX).then_some(Budget {
                max_hits: scope.left,
                start,
            }),
        };
        let before = &mut self.residual[elements.clone()];
        let update = &update[elements.clone()];
        let all = plain::encode(before, update, unit, &ChunkOptions::default());
        let outcome = plain::encode(before, update, unit, &options);
        unlimited[number] += all.hits.len();
        sent.limit_inside |= outcome.hits.len() < all.hits.len() && !outcome.hits.is_empty();
        // The mean of the hits is from a sample whose choice is the codec's own.
        let mut scalar = before.to_vec();
        let encoded = Path::Scalar
            .encode(&mut scalar, update, unit, &options, &mut Vec::new())
            .unwrap();
        before.copy_from_slice(&outcome.residual);

        let hits = outcome.hits.len();
        if scope.left < usize::MAX {
            scope.left -= hits;
        }
        scope.hits += hits as u64;
        scope.mass += encoded.mean * hits as f64;
        sent.l1_of_hits += hits as f64 * f64::from(unit.v());
        sent.clipped += outcome.clipped;
        sent.dropped += u64::from(outcome.dropped);
        if let Post::Halving = self.config.post
            && let Some(taken) = Halving.process(&PostInput { step, unit }, before)
        {
            sent.clipped += taken;
            for r in before {
                *r = if r.is_finite() { canon(*r) } else { 0.0 };
            }
        }
        for (i, _) in &outcome.hits {
            let element = elements.start + i;
            sent.hits.push(element);
            if let Some(velocity) = &mut self.velocity {
                velocity[element] = 0.0;
            }
        }
        let format = plain::smaller(elements.len(), hits);
        Chunk {
            format,
            unit: Some(unit),
            hits,
            payload: plain::payload(format, elements.len(), &outcome.hits),
            elements,
        }
    }

    /// The percentiles of each scope's residual, from a sorted copy.
    pub(super) fn percentiles(&self) -> Vec<(usize, [f32; 5], usize)> {
        let of = |scope: &Scope| {
            let ranges = scope.ranges.iter();
            let mut sizes: Vec<f32> = ranges
                .flat_map(|range| &self.residual[range.clone()])
                .map(|r| r.abs())
                .collect();
            sizes.sort_by(f32::total_cmp);
            let t = scope.unit.unwrap().t();
            let above = sizes.iter().filter(|&&r| r >= t).count();
            let rank = |tenthousandths: usize| {
                let at = tenthousandths * sizes.len() / 10_000;
                sizes.get(at).or(sizes.last()).copied().unwrap_or(0.0)
            };
            (sizes.len(), [5000, 9500, 9900, 9990, 9999].map(rank), above)
        };
        self.scopes.iter().map(of).collect()
    }
}
