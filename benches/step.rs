//! A whole step of real replicas, against all replicas running `r += u` at once, and against the sum of its parts.
//!
//! Each replica's time of a round is measured between two barriers; the slowest replica counts.

mod common;

use common::replicas::{hand_over, launch, number, seconds, slowest, task};
use common::{Against, Bench, Random, median};
use gradring::codec::policy::{LastStep, PolicyInput, ThresholdPolicy};
use gradring::codec::{Apply, CHUNK, ChunkOptions, Encoded, Path, Record, Residual, Unit};
use gradring::{BackendChoice, Exchange, InResidual, Quantile, Replica};
use std::ops::Range;
use std::time::Instant;

fn main() {
    if Replica::is_replica() {
        measure();
        return;
    }
    let mut bench = Bench::from_args();
    let large = bench.size(25_557_032, 300_000);
    let small = bench.size(1_000_000, 100_000);
    for world_size in [2, 4] {
        for elements in [small, large] {
            for density in [1e-4, 1e-3, 1e-2] {
                let name =
                    format!("step, {world_size} replicas, {elements} elements, density {density}");
                let in_place = format!("step in place{}", &name["step".len()..]);
                if !bench.wants(&name) && !bench.wants(&in_place) {
                    continue;
                }
                let rounds = if bench.quick() {
                    2
                } else if elements > 2_000_000 {
                    11
                } else {
                    51
                };
                let rows = launch(world_size, &format!("{elements} {density} {rounds}"));
                let column =
                    |which: usize| -> Vec<f64> { rows.iter().map(|row| row[which]).collect() };
                let mut report = |name: &str, which: usize, other: usize, reference| {
                    let ms = median(column(which)) * 1e3;
                    let ratios = rows.iter().map(|row| row[which] / row[other]);
                    let against = Against {
                        ratio: median(ratios.collect()),
                        reference,
                    };
                    bench.report(name, ms, "ms", Some(against));
                };
                let adding = "all replicas running r += u at once";
                report(&name, 0, 1, adding);
                let parts = "encode + policy + applies, each alone";
                report(&format!("{name}, against its parts"), 0, 2, parts);
                report(&in_place, 3, 1, adding);
            }
        }
    }
}

fn measure() {
    let replica = Replica::join().expect("this program's launcher");
    let task = task();
    let (elements, rounds): (usize, usize) = (number(&task, 0), number(&task, 2));
    let density: f64 = number(&task, 1);

    let mut random = Random(replica.rank() as u64 + 1);
    // Laplace: the tail of a real update; two of them taken in turns, so that hits move.
    let updates: Vec<Vec<f32>> = (0..2)
        .map(|_| (0..elements).map(|_| random.laplace(1e-3)).collect())
        .collect();
    let policy = || Quantile::new(density).expect("a density");
    let mut exchange = Exchange::builder(elements)
        .policy(policy())
        // Beside figures of the processor's memory.
        .backend(BackendChoice::Processor)
        .check_every(u64::MAX)
        .build(&replica)
        .expect("agreed");
    let mut parameters = Residual::zeroed(elements).expect("memory");
    let mut accumulated = Residual::zeroed(elements).expect("memory");
    exchange.start(&mut parameters).expect("starts");
    let mut parts = Parts::new(elements, &policy(), replica.world_size());
    for step in 0..3 {
        exchange
            .step(Some(&updates[step % 2]), &mut parameters)
            .expect("steps");
        parts.run(&updates[step % 2], &mut parameters);
    }
    let mut rows = Vec::new();
    for round in 0..rounds {
        let update = &updates[round % 2];
        let step = seconds(&replica, 1, || {
            exchange.step(Some(update), &mut parameters).expect("steps");
        });
        let add = seconds(&replica, 1, || {
            for (sum, u) in accumulated.iter_mut().zip(update) {
                *sum += u;
            }
        });
        // The parts alone: one replica at a time, the others wait.
        let mut alone = 0.0_f64;
        for rank in 0..replica.world_size() {
            replica.barrier().expect("all come");
            if rank == replica.rank() {
                alone = parts.run(update, &mut parameters);
            }
        }
        let alone = slowest(&replica, alone);
        // In place the trainer has written its update where it accumulates, which is no part of the step.
        for (r, u) in exchange.residual_mut().iter_mut().zip(update) {
            *r += u;
        }
        let in_place = seconds(&replica, 1, || {
            exchange
                .step(Some(&InResidual), &mut parameters)
                .expect("steps");
        });
        // The parts changed these parameters by themselves.
        exchange.start(&mut parameters).expect("starts");
        rows.push(vec![step, add, alone, in_place]);
    }
    hand_over(&replica, &rows);
}

/// What a step does, without any exchange: the policy, the encode, and the applies of as many messages as there are
/// replicas. Those of the others are made beforehand, of updates of their own: their hits lie elsewhere.
struct Parts {
    path: Path,
    policy: Quantile,
    residual: Residual,
    sample: Vec<f32>,
    payload: Vec<u8>,
    step: u64,
    last: Option<LastStep>,
    others: Vec<Vec<Chunk>>,
}

/// One chunk's record.
struct Chunk {
    sent: Encoded,
    payload: Vec<u8>,
    unit: Unit,
}

impl Parts {
    fn new(elements: usize, policy: &Quantile, world_size: usize) -> Self {
        let residual = Residual::zeroed(elements).expect("memory");
        let mut parts = Self {
            path: Path::best(),
            policy: policy.clone(),
            residual,
            sample: Vec::new(),
            payload: Vec::new(),
            step: 0,
            last: None,
            others: Vec::new(),
        };
        for other in 1..world_size {
            let mut random = Random(1000 + other as u64);
            let update: Vec<f32> = (0..elements).map(|_| random.laplace(1e-3)).collect();
            let mut maker = Self::new(elements, policy, 1);
            maker.choose(&update);
            let message = chunks(elements).map(|range| maker.encode(&update, range));
            let message: Vec<Chunk> = message.collect();
            parts.others.push(message);
        }
        parts
    }

    fn choose(&mut self, update: &[f32]) {
        self.sample.clear();
        let elements = update.len();
        let wanted = self.policy.sample_size(elements, self.step);
        self.path
            .magnitudes(&self.residual, update, wanted, self.step, &mut self.sample)
            .expect("equal lengths");
        let input = PolicyInput {
            step: self.step,
            elements,
            sample: &self.sample,
            last: self.last,
        };
        let unit = self.policy.unit(&input);
        self.last = Some(LastStep {
            unit,
            hits: 0,
            density: 0.0,
            mean: None,
        });
    }

    fn encode(&mut self, update: &[f32], range: Range<usize>) -> Chunk {
        let unit = self.last.expect("chosen before").unit;
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        let residual = &mut self.residual[range.clone()];
        let options = ChunkOptions::default();
        let sent = self
            .path
            .encode(residual, &update[range], unit, &options, &mut payload);
        Chunk {
            sent: sent.expect("equal lengths"),
            payload,
            unit,
        }
    }

    fn apply(&self, chunk: &Chunk, parameters: &mut [f32]) {
        let Chunk {
            sent,
            payload,
            unit,
        } = chunk;
        let record = Record {
            format: sent.format,
            hits: sent.hits,
            elements: parameters.len(),
            payload,
        };
        self.path
            .apply(&record, unit.v(), Apply::Subtract, parameters)
            .expect("an own record");
    }

    fn run(&mut self, update: &[f32], parameters: &mut [f32]) -> f64 {
        let start = Instant::now();
        self.choose(update);
        for (c, range) in chunks(update.len()).enumerate() {
            let own = self.encode(update, range.clone());
            self.apply(&own, &mut parameters[range.clone()]);
            for other in &self.others {
                self.apply(&other[c], &mut parameters[range.clone()]);
            }
            self.payload = own.payload;
        }
        self.step += 1;
        start.elapsed().as_secs_f64()
    }
}

fn chunks(elements: usize) -> impl Iterator<Item = Range<usize>> {
    (0..elements)
        .step_by(CHUNK)
        .map(move |start| start..(start + CHUNK).min(elements))
}
