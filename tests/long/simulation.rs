//! One process, one thread, the plainest code: what every rank must hold after a plan's events.

use super::plan::{Event, Form, Model, Number, Plan, Schedule, Shape, shuffled};
use gradring::codec::{Apply, Encoder, Message, Path, Record, Unit, canon};
use gradring::exchange::external::ExternalUpdate;
use gradring::{Dense, Reduction, parameter_hash};
use half::bf16;

/// A model as all ranks together have it.
struct Simulated<'a> {
    model: &'a Model,
    parameters: Vec<f32>,
    /// By rank; none without compression.
    encoders: Vec<Encoder>,
    /// By rank, what waits at its source, added up in order of arrival.
    waiting: Vec<Option<Vec<f32>>>,
    /// Counts those in which somebody gave.
    step: u64,
}

fn encoder(model: &Model, rank: usize, world_size: usize) -> Encoder {
    let mut builder = Encoder::builder(model.length())
        .ranges(model.named_ranges(rank))
        .policy(model.policy(rank))
        .path(Path::Scalar);
    if model.clips {
        builder = builder.post_processor(model.clipping(rank));
    }
    if model.remembers {
        builder = builder.momentum(model.memory(), world_size);
    }
    builder.build().expect("an encoder")
}

/// To nearest even, never to infinity.
fn rounded(x: f32) -> f32 {
    let near = bf16::from_f32(canon(x));
    if near.is_infinite() && x.is_finite() {
        f32::from_bits(x.to_bits() & 0xffff_0000)
    } else {
        near.to_f32()
    }
}

impl Simulated<'_> {
    fn inverse(&self, giving: usize) -> f32 {
        match self.model.reduction {
            Reduction::Mean => 1.0 / giving as f32,
            Reduction::Sum => 1.0,
        }
    }

    fn send(&mut self, rank: usize, update: &ExternalUpdate) {
        let sum = self.waiting[rank].get_or_insert_with(|| vec![0.0; self.parameters.len()]);
        for (i, x) in update.values() {
            sum[i] = canon(sum[i] + x);
        }
    }

    /// A step's sum onto a target, by `apply`.
    fn step(
        &mut self,
        apply: Apply,
        target: &mut [f32],
        updates: &[Option<(Form, Vec<f32>)>],
        numbers: Option<Dense>,
    ) {
        let giving = updates.iter().flatten().count();
        if giving == 0 {
            return;
        }
        if apply == Apply::Add {
            target.fill(0.0);
        }
        match numbers {
            Some(number) => self.sum(number, apply, target, updates, giving),
            None => {
                let x = |unit: f32, inverse: f32| canon(unit * inverse);
                let inverse = self.inverse(giving);
                let mut send = |encoder: &Encoder, message: Message| {
                    let record = Record {
                        format: message.format,
                        hits: message.hits,
                        elements: message.elements.len(),
                        payload: encoder.payload(),
                    };
                    let x = x(message.unit.map_or(1.0, Unit::v), inverse);
                    Path::Scalar
                        .apply(&record, x, apply, &mut target[message.elements])
                        .expect("an own record");
                };
                for (encoder, update) in self.encoders.iter_mut().zip(updates) {
                    let Some((form, update)) = update else {
                        continue;
                    };
                    if self.model.schedule == Schedule::Streamed {
                        let whole = 0..update.len();
                        let parts = match form.shape {
                            Shape::Parts(seed) => shuffled(seed, update.len()),
                            _ => Vec::from([whole]),
                        };
                        encoder.begin_streamed(self.step).expect("no step is open");
                        let mut complete = Vec::new();
                        for part in parts {
                            let values = &update[part.clone()];
                            let before = complete.len();
                            encoder.push(part, values, &mut complete).expect("once");
                            for &chunk in &complete[before..] {
                                let message = encoder.encode_complete(chunk).expect("whole");
                                send(encoder, message);
                            }
                        }
                    } else {
                        encoder.begin(self.step, update).expect("one length");
                        for visit in 0..encoder.chunks() {
                            let message = encoder.encode(visit, update).expect("its turn");
                            send(encoder, message);
                        }
                    }
                    encoder.end().expect("all chunks");
                }
            }
        }
        let inverse = self.inverse(giving);
        for waited in self.waiting.iter_mut().filter_map(Option::take) {
            for (p, x) in target.iter_mut().zip(waited) {
                if x != 0.0 {
                    let x = canon(x * inverse);
                    *p = match apply {
                        Apply::Subtract => canon(canon(*p) - x),
                        Apply::Add => canon(*p + x),
                    };
                }
            }
        }
        self.step += 1;
    }

    fn sum(
        &mut self,
        number: Dense,
        apply: Apply,
        target: &mut [f32],
        updates: &[Option<(Form, Vec<f32>)>],
        giving: usize,
    ) {
        let round = |x: f32| match number {
            Dense::F32 => x,
            Dense::Bf16 => rounded(x),
        };
        let inverse = self.inverse(giving);
        for (i, p) in target.iter_mut().enumerate() {
            let sum = updates.iter().flatten().fold(0.0_f32, |sum, (_, update)| {
                let next = sum + canon(round(update[i]));
                if next.is_finite() { canon(next) } else { sum }
            });
            let sum = canon(round(sum) * inverse);
            *p = match apply {
                Apply::Subtract => canon(canon(*p) - sum),
                Apply::Add => sum,
            };
        }
    }

    fn flush(&mut self, apply: Apply, target: &mut [f32]) {
        if apply == Apply::Add {
            target.fill(0.0);
        }
        let inverse = self.inverse(self.encoders.len());
        for encoder in &mut self.encoders {
            for (r, p) in encoder.residual_mut().iter_mut().zip(&mut *target) {
                let x = canon(canon(*r) * inverse);
                *p = match apply {
                    Apply::Subtract => canon(canon(*p) - x),
                    Apply::Add => canon(*p + x),
                };
                *r = 0.0;
            }
        }
    }
}

/// What each rank says at the end of every `every` events: hashes of all parameters, and of its own residuals.
pub fn simulate(plan: &Plan, events: usize, every: usize, first_step: u64) -> Vec<Vec<String>> {
    let ranks = plan.world_size;
    let mut all: Vec<Simulated<'_>> = plan
        .models
        .iter()
        .map(|model| Simulated {
            model,
            parameters: model.first_parameters(),
            encoders: match model.schedule.is_compressed() {
                true => (0..ranks).map(|rank| encoder(model, rank, ranks)).collect(),
                false => Vec::new(),
            },
            waiting: vec![None; ranks],
            step: first_step,
        })
        .collect();
    let mut said = vec![Vec::new(); ranks];
    for number in 0..events {
        match plan.event(number) {
            Event::Step {
                model,
                onto_sum,
                gives,
                external,
            } => {
                let one = &mut all[model];
                for (rank, seeds) in external.iter().enumerate() {
                    for &seed in seeds {
                        one.send(rank, &one.model.external(seed));
                    }
                }
                let updates: Vec<Option<(Form, Vec<f32>)>> = gives
                    .iter()
                    .enumerate()
                    .map(|(rank, form)| Some(((*form)?, one.model.update(rank, number, (*form)?))))
                    .collect();
                let numbers = match one.model.schedule {
                    Schedule::Uncompressed(number) => Some(number),
                    _ => None,
                };
                let gave = updates.iter().any(Option::is_some);
                let mut parameters = std::mem::take(&mut one.parameters);
                if onto_sum {
                    let mut sum = vec![0.0; parameters.len()];
                    one.step(Apply::Add, &mut sum, &updates, numbers);
                    if gave {
                        subtract(&mut parameters, &sum);
                    }
                } else {
                    one.step(Apply::Subtract, &mut parameters, &updates, numbers);
                }
                one.parameters = parameters;
            }
            Event::Flush { model, onto_sum } => {
                let one = &mut all[model];
                let mut parameters = std::mem::take(&mut one.parameters);
                if onto_sum {
                    let mut sum = vec![0.0; parameters.len()];
                    one.flush(Apply::Add, &mut sum);
                    subtract(&mut parameters, &sum);
                } else {
                    one.flush(Apply::Subtract, &mut parameters);
                }
                one.parameters = parameters;
            }
            Event::Burst { model, steps } => {
                // Every sum is exact, so that all steps of one rank may come first.
                let one = &mut all[model];
                let mut parameters = std::mem::take(&mut one.parameters);
                for (rank, &steps) in steps.iter().enumerate() {
                    for step in 0..steps {
                        let updates = one_of_many(one.model, ranks, rank, number, step);
                        asynchronous(one, &mut parameters, &updates);
                    }
                }
                one.parameters = parameters;
            }
            Event::Check { .. }
            | Event::Barrier
            | Event::Gather(_)
            | Event::Reduce(_)
            | Event::Broadcast { .. } => {}
        }
        if (number + 1) % every == 0 {
            for (rank, said) in said.iter_mut().enumerate() {
                let vectors = all.iter().map(|one| {
                    let residual = one.encoders.get(rank).map_or(&[][..], Encoder::residual);
                    (one.parameters.as_slice(), residual)
                });
                said.push(digest(number, vectors));
            }
        }
    }
    said
}

/// What replicas and simulation compare.
pub fn digest<'a>(number: usize, vectors: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> String {
    let mut line = format!("{number}:");
    for (parameters, residual) in vectors {
        let hashes = [parameters, residual].map(parameter_hash);
        line += &format!(" {:016x} {:016x}", hashes[0], hashes[1]);
    }
    line
}

/// What every replica does with a sum that it was handed.
pub fn subtract(parameters: &mut [f32], sum: &[f32]) {
    for (p, s) in parameters.iter_mut().zip(sum) {
        *p -= s;
    }
}

/// The number by which an asynchronous step's update is made: no two steps of a run share it.
pub fn burst_event(event: usize, step: usize) -> usize {
    1_000_000 + event * 8 + step
}

pub fn whole() -> Form {
    Form {
        number: Number::Single,
        shape: Shape::Whole,
    }
}

fn one_of_many(
    model: &Model,
    ranks: usize,
    rank: usize,
    event: usize,
    step: usize,
) -> Vec<Option<Vec<f32>>> {
    let update = model.update(rank, burst_event(event, step), whole());
    let mut updates = vec![None; ranks];
    updates[rank] = Some(update);
    updates
}

/// An asynchronous step of one rank: a mean divides by all.
fn asynchronous(one: &mut Simulated<'_>, parameters: &mut [f32], updates: &[Option<Vec<f32>>]) {
    let inverse = one.inverse(updates.len());
    for (encoder, update) in one.encoders.iter_mut().zip(updates) {
        let Some(update) = update else { continue };
        encoder.begin(0, update).expect("one length");
        for visit in 0..encoder.chunks() {
            let message = encoder.encode(visit, update).expect("its turn");
            let record = Record {
                format: message.format,
                hits: message.hits,
                elements: message.elements.len(),
                payload: encoder.payload(),
            };
            let x = canon(message.unit.map_or(1.0, Unit::v) * inverse);
            Path::Scalar
                .apply(
                    &record,
                    x,
                    Apply::Subtract,
                    &mut parameters[message.elements],
                )
                .expect("an own record");
        }
        encoder.end().expect("all chunks");
    }
}
