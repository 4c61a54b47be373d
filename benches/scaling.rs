//! How a step grows with replicas, also where they outnumber the cores, and with the vector; and how a streamed step
//! hides behind the backward pass.
//!
//! The growth is held against a model of the bytes that a step moves. Each of N replicas reads its update and its
//! residual and writes the residual: 12 bytes an element, as `r += u` does. Then it applies N messages: each hit reads and
//! writes one cache line of the parameters, 128 bytes, but never more than all of them, 8 bytes an element. So the step
//! should take `1 + min(8, 128 N d) / 12` times as long as all replicas running `r += u` at once, at density d. What is
//! above that is no memory traffic: instructions by hit, hand-overs, and switches between processes.

mod common;

use common::replicas::{hand_over, launch, number, seconds, slowest, task};
use common::{Against, Bench, Random, median};
use gradring::codec::Residual;
use gradring::{BackendChoice, Exchange, Quantile, Replica};
use std::ops::Range;
use std::time::{Duration, Instant};

fn main() {
    if Replica::is_replica() {
        let task = task();
        match task[0].as_str() {
            "growth" => measure_growth(&task),
            _ => measure_hiding(&task),
        }
        return;
    }
    let mut bench = Bench::from_args();
    let density = 1e-2;
    let [small, middle, large, huge] =
        [1_000_000, 5_000_000, 25_557_032, 200_000_000].map(|full| bench.size(full, full / 200));
    let mut growth: Vec<(usize, usize)> = Vec::new();
    for elements in [small, middle, large] {
        growth.extend([2, 3, 4, 8, 16].map(|world_size| (world_size, elements)));
    }
    growth.push((2, huge));
    for (world_size, elements) in growth {
        let name = format!("growth, {world_size} replicas, {elements} elements, density {density}");
        if !bench.wants(&name) {
            continue;
        }
        let rounds = match elements {
            _ if bench.quick() => 2,
            ..=2_000_000 => 31,
            2_000_001..=10_000_000 => 11,
            _ => 5,
        };
        let rows = launch(world_size, &format!("growth {elements} {density} {rounds}"));
        let ms = median(rows.iter().map(|row| row[0]).collect()) * 1e3;
        let ratio = median(rows.iter().map(|row| row[0] / row[1]).collect());
        let adding = Against {
            ratio,
            reference: "all replicas running r += u at once",
        };
        bench.report(&name, ms, "ms", Some(adding));
        let model = 1.0 + f64::min(8.0, 128.0 * world_size as f64 * density) / 12.0;
        let bytes = Against {
            ratio: ratio / model,
            reference: "the bytes that it moves, at the speed of r += u",
        };
        bench.report(&format!("{name}, against its bytes"), ms, "ms", Some(bytes));
    }
    for (world_size, elements) in [(2, small), (2, large)] {
        let name = format!("hidden, {world_size} replicas, {elements} elements, density {density}");
        if !bench.wants(&name) {
            continue;
        }
        let rounds = if bench.quick() { 2 } else { 15 };
        let rows = launch(world_size, &format!("hidden {elements} {density} {rounds}"));
        let column = |at: usize| median(rows.iter().map(|row| row[at]).collect()) * 1e3;
        let over =
            |at: usize, other: usize| median(rows.iter().map(|row| row[at] / row[other]).collect());
        let after = Against {
            ratio: over(1, 0),
            reference: "the lockstep step after the same backward",
        };
        bench.report(
            &format!("{name}, lockstep after backward"),
            column(0),
            "ms",
            None,
        );
        bench.report(
            &format!("{name}, streamed, left after backward"),
            column(1),
            "ms",
            Some(after),
        );
    }
}

struct Setup {
    replica: Replica,
    update: Vec<f32>,
    parameters: Residual,
}

impl Setup {
    fn new(elements: usize) -> Self {
        let replica = Replica::join().expect("this program's launcher");
        let mut random = Random(replica.rank() as u64 + 1);
        Self {
            update: (0..elements).map(|_| random.laplace(1e-3)).collect(),
            parameters: Residual::zeroed(elements).expect("memory"),
            replica,
        }
    }

    fn exchange(&mut self, density: f64, streamed: bool) -> Exchange {
        let builder = Exchange::builder(self.update.len())
            .policy(Quantile::new(density).expect("a density"))
            // Beside figures of the processor's memory.
            .backend(BackendChoice::Processor)
            .check_every(u64::MAX);
        let builder = if streamed {
            builder.streamed()
        } else {
            builder
        };
        let mut exchange = builder.build(&self.replica).expect("agreed");
        exchange.start(&mut self.parameters).expect("starts");
        exchange
    }
}

/// Per round: seconds of a step, and of `r += u`.
fn measure_growth(task: &[String]) {
    let (elements, rounds): (usize, usize) = (number(task, 1), number(task, 3));
    let mut setup = Setup::new(elements);
    let mut exchange = setup.exchange(number(task, 2), false);
    let Setup {
        replica,
        update,
        mut parameters,
    } = setup;
    let mut accumulated = Residual::zeroed(elements).expect("memory");
    let mut rows = Vec::new();
    for round in 0..rounds + 2 {
        let step = seconds(&replica, 1, || {
            exchange
                .step(Some(&update), &mut parameters)
                .expect("steps");
        });
        let add = seconds(&replica, 1, || {
            for (sum, u) in accumulated.iter_mut().zip(&update) {
                *sum += u;
            }
        });
        if round >= 2 {
            rows.push(vec![step, add]);
        }
    }
    hand_over(&replica, &rows);
}

/// Parts of a backward pass that another device makes: tensors, the last one first.
const PARTS: usize = 50;

/// Per round: seconds from the end of the backward pass to the end of the step, in lockstep and streamed. The backward
/// pass takes place elsewhere, on an accelerator: the processor waits for it, for twice as long as a step takes, and has
/// each part at its time.
fn measure_hiding(task: &[String]) {
    let (elements, rounds): (usize, usize) = (number(task, 1), number(task, 3));
    let density = number(task, 2);
    let mut setup = Setup::new(elements);
    let mut lockstep = setup.exchange(density, false);
    let mut streamed = setup.exchange(density, true);
    let Setup {
        replica,
        update,
        mut parameters,
    } = setup;
    let cut = |part: usize| part * elements / PARTS;
    let parts: Vec<Range<usize>> = (0..PARTS).rev().map(|p| cut(p)..cut(p + 1)).collect();
    let mut step = seconds(&replica, 2, || {
        lockstep
            .step(Some(&update), &mut parameters)
            .expect("steps");
    });
    let mut rows = Vec::new();
    for round in 0..rounds + 2 {
        let backward = Duration::from_secs_f64(2.0 * step);
        // As an accelerator's queue is waited for: asleep until the part is there.
        let wait_for = |began: Instant, part: usize| {
            let due = backward * (part as u32 + 1) / PARTS as u32;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        };
        replica.barrier().expect("all come");
        let began = Instant::now();
        wait_for(began, PARTS - 1);
        let report = lockstep.step(Some(&update), &mut parameters);
        report.expect("steps");
        step = slowest(&replica, began.elapsed().as_secs_f64()) - backward.as_secs_f64();

        replica.barrier().expect("all come");
        let began = Instant::now();
        let mut open = streamed.begin().expect("begins");
        for (number, part) in parts.iter().enumerate() {
            wait_for(began, number);
            open.push(part.clone(), &update[part.clone()])
                .expect("is pushed");
        }
        open.finish(&mut parameters).expect("finishes");
        drop(open);
        let left = slowest(&replica, began.elapsed().as_secs_f64()) - backward.as_secs_f64();
        if round >= 2 {
            rows.push(vec![step, left]);
        }
    }
    hand_over(&replica, &rows);
}
