//! Asynchronous steps against lockstep, where replicas are not equally fast.
//!
//! A replica's computation is a sleep, so that what is measured is the exchange and the waiting, whatever the number of
//! cores. Rounds of all schedules take turns within one run; a ratio is the median over rounds of two throughputs of one
//! round, asynchronous by lockstep.

mod common;

use common::replicas::{hand_over, launch, number, slowest, task};
use common::{Against, Bench, Random, median};
use gradring::{Asynchronous, Exchange, Quantile, Replica};
use std::time::{Duration, Instant};

/// A quick replica's computation.
const COMPUTE: Duration = Duration::from_millis(3);

/// Who is slow.
#[derive(Clone, Copy, PartialEq)]
enum Slow {
    /// The last rank takes twice as long, always, and has half the data.
    Last,
    /// Every rank takes three times as long in a quarter of its steps, at random.
    Sometimes,
}

const CASES: [(Slow, &str, &str); 2] = [
    (Slow::Last, "last", "one replica half as fast"),
    (Slow::Sometimes, "sometimes", "all with hiccups"),
];
const SCHEDULES: [&str; 3] = [
    "lockstep",
    "asynchronous, settled at the end",
    "asynchronous, defaults",
];

fn main() {
    if Replica::is_replica() {
        measure();
        return;
    }
    let mut bench = Bench::from_args();
    let elements = bench.size(1_000_000, 50_000);
    let steps = bench.size(128, 8);
    let rounds = bench.size(7, 1);
    for world_size in [2, 4] {
        for (_, case, title) in CASES {
            let begin = format!("schedules, {world_size} replicas, {title}");
            if !bench.wants(&begin) {
                continue;
            }
            let rows = launch(world_size, &format!("{case} {elements} {steps} {rounds}"));
            // By schedule: steps a second of the quickest replica, and of all.
            let column = |at: usize| -> Vec<f64> { rows.iter().map(|row| row[at]).collect() };
            let over = |at: usize, other: usize| {
                median(rows.iter().map(|row| row[at] / row[other]).collect())
            };
            for (number, schedule) in SCHEDULES.iter().enumerate() {
                for (at, who) in ["quickest replica", "all replicas"].iter().enumerate() {
                    let at = 2 * number + at;
                    let against = (number > 0).then(|| Against {
                        ratio: over(at, at % 2),
                        reference: "lockstep",
                    });
                    let name = format!("{begin}: {schedule}, {who}");
                    bench.report(&name, median(column(at)), "steps/s", against);
                }
            }
        }
    }
}

fn measure() {
    let replica = Replica::join().expect("this program's launcher");
    let task = task();
    let slow = CASES
        .iter()
        .find(|(_, case, _)| *case == task[0])
        .expect("written by the launcher")
        .0;
    let (elements, steps): (usize, usize) = (number(&task, 1), number(&task, 2));
    let rounds: usize = number(&task, 3);

    let build = |schedule: Option<Asynchronous>| {
        let builder = Exchange::builder(elements).policy(Quantile::new(1e-2).expect("a density"));
        let builder = match schedule {
            Some(settings) => builder.asynchronous(settings),
            None => builder,
        };
        builder.build(&replica).expect("agreed")
    };
    let unbounded = Asynchronous {
        max_lag: u64::MAX,
        settle_every: u64::MAX,
    };
    let mut exchanges = [
        build(None),
        build(Some(unbounded)),
        build(Some(Asynchronous::default())),
    ];
    let mut random = Random(replica.rank() as u64 + 1);
    let update: Vec<f32> = (0..elements).map(|_| random.laplace(1e-3)).collect();
    let mut parameters = vec![0.5_f32; elements];
    let is_last = replica.rank() + 1 == replica.world_size();
    let mut rows = Vec::new();
    for round in 0..=rounds {
        let mut row = Vec::new();
        for exchange in &mut exchanges {
            exchange.start(&mut parameters).expect("settled");
            let own_steps = if slow == Slow::Last && is_last {
                steps / 2
            } else {
                steps
            };
            replica.barrier().expect("all come");
            let began = Instant::now();
            for _ in 0..own_steps {
                let slowly = match slow {
                    Slow::Last => u32::from(is_last),
                    Slow::Sometimes => 2 * u32::from(random.next().is_multiple_of(4)),
                };
                std::thread::sleep(COMPUTE * (1 + slowly));
                exchange
                    .step(Some(&update), &mut parameters)
                    .expect("steps");
            }
            let own = own_steps as f64 / began.elapsed().as_secs_f64();
            exchange.finish_epoch(&mut parameters).expect("ends");
            let all = began.elapsed().as_secs_f64();
            row.extend(reduce(&replica, own, own_steps as f64, all));
        }
        // The first round is for warmth.
        if round > 0 {
            rows.push(row);
        }
    }
    hand_over(&replica, &rows);
}

/// The quickest replica's throughput, and all replicas' steps by the time until the last had ended.
fn reduce(replica: &Replica, own: f64, steps: f64, seconds: f64) -> [f64; 2] {
    let mut sum = [steps];
    replica
        .all_reduce(&mut sum, gradring::op::Sum)
        .expect("all come");
    [slowest(replica, own), sum[0] / slowest(replica, seconds)]
}
