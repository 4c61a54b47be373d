//! Accumulators: what an addition costs, and what a synchronization, with real processes, as replicas of this very program.
//!
//! An addition by a typed handle is compared with `+=` on a number in memory and with another exact sum (`xsum`). A
//! synchronization is compared with a barrier of the same replicas; every one of them adds to all keys before each, and that
//! is not counted.

mod common;

use common::replicas::{hand_over, launch_with, number, slowest, task};
use common::{Against, Bench, Random, Times, median, time};
use gradring::{Accumulator, Error, Replica};
use std::hint::black_box;
use std::time::Instant;
use xsum::Xsum as _;

fn main() {
    if Replica::is_replica() {
        synchronize();
        return;
    }
    let mut bench = Bench::from_args();
    additions(&mut bench);
    for (keys, world_size) in [
        (2, 2),
        (100, 2),
        (1000, 2),
        (10_000, 2),
        (2, 4),
        (2, 8),
        (2, 16),
        (100, 16),
    ] {
        let name = format!("synchronize {keys} keys, {world_size} replicas");
        if bench.wants(&name) {
            let rounds = bench
                .size(20_000 / world_size, 20)
                .min(200_000 / keys)
                .max(20);
            let rows = launch_with(world_size, &format!("{keys} {rounds}"), |launch| {
                launch.cells(keys.max(256))
            });
            let column = |at: usize| -> f64 {
                median(rows.iter().filter_map(|row| row.get(at).copied()).collect())
            };
            let (ours, barrier) = (column(0), column(1));
            let against = Against {
                ratio: ours / barrier,
                reference: "a barrier",
            };
            bench.report(&name, ours * 1e6, "us", Some(against));
        }
    }
}

/// Additions, with those of numbers in private memory in the same run.
fn additions(bench: &mut Bench) {
    const NUMBERS: usize = 1 << 14;
    let replica = Replica::join().expect("a world of one");
    let a = replica.accumulator("bench").expect("is new");
    let mut random = Random(1);
    let numbers: Vec<f64> = (0..NUMBERS)
        .map(|_| f64::from(random.laplace(1.0)))
        .collect();
    let (sum, count) = (handle(a.sum("sum")), handle(a.count("count")));
    let (mean, max) = (handle(a.mean("mean")), handle(a.max("max")));
    let edges: Vec<f64> = (-5..=5).map(f64::from).collect();
    let histogram = handle(a.histogram("histogram", &edges));
    let mut plain = 0.0;
    let mut exact = xsum::XsumSmall::new();
    // Inlined as it is in a trainer.
    macro_rules! each {
        ($with:expr) => {
            || {
                #[allow(unused_mut, reason = "one of them changes what it adds to")]
                let mut with = $with;
                time(|| {
                    for x in &numbers {
                        with(*x);
                    }
                })
            }
        };
    }
    let times = bench.interleave(
        101,
        &mut [
            &mut || {
                time(|| {
                    for x in &numbers {
                        plain += black_box(*x);
                    }
                    black_box(&mut plain);
                })
            },
            &mut each!(|x| exact.add(x)),
            &mut each!(|x| handle(sum.add(x))),
            &mut each!(|_| handle(count.add(1))),
            &mut each!(|x| handle(mean.add(x))),
            &mut each!(|x| handle(max.add(x))),
            &mut each!(|x| handle(histogram.add(x))),
            &mut each!(|x| handle(a.add("sum", x))),
            &mut each!(|_| handle(a.add("count", 1))),
        ],
    );
    let [plain, exact, ours @ ..] = &times[..] else {
        return;
    };
    let mut report = |name: &str, times: &Times, reference: &Times, of: &str| {
        if bench.wants(name) {
            let against = Against {
                ratio: times.over(reference),
                reference: of,
            };
            let nanoseconds = times.median() * 1e9 / NUMBERS as f64;
            bench.report(name, nanoseconds, "ns", Some(against));
        }
    };
    report("add, another exact sum", exact, plain, "+= in memory");
    let names = ["sum", "count", "mean", "maximum", "histogram of 11 edges"];
    let named = names.iter().map(|name| format!("add to a {name}"));
    let by_name = ["sum", "count"].map(|name| format!("add to a {name}, by its name"));
    for (name, times) in named.chain(by_name).zip(ours) {
        if name.contains("sum") {
            report(&name, times, exact, "another exact sum");
        } else {
            report(&name, times, plain, "+= in memory");
        }
    }
}

fn handle<T>(result: Result<T, Error>) -> T {
    result.expect("has room, and is of this kind")
}

/// What a replica does: rows of the seconds of a synchronization and of a barrier.
fn synchronize() {
    let replica = Replica::join().expect("this program's launcher");
    let task = task();
    let (keys, rounds): (usize, usize) = (number(&task, 0), number(&task, 1));
    let mut a = handle(replica.accumulator("bench"));
    let sums: Vec<_> = (0..keys / 2)
        .map(|i| handle(a.sum(&format!("sum {i}"))))
        .collect();
    let counts: Vec<_> = (0..keys - keys / 2)
        .map(|i| handle(a.count(&format!("count {i}"))))
        .collect();
    let batches = 11_u64;
    let each = (rounds / batches as usize).max(1);
    let mut rows = Vec::new();
    // Epochs, because the history of one that is over is dropped.
    for batch in replica.epochs(batches + 1).expect("all come") {
        let batch = batch.expect("all come");
        let mut row = [0.0; 2];
        for _ in 0..each {
            for sum in &sums {
                handle(sum.add(0.1));
            }
            for count in &counts {
                handle(count.add(1));
            }
            replica.barrier().expect("all come");
            let start = Instant::now();
            synchronized(&mut a);
            row[0] += start.elapsed().as_secs_f64();
            let start = Instant::now();
            replica.barrier().expect("all come");
            row[1] += start.elapsed().as_secs_f64();
        }
        let row = row.map(|seconds| slowest(&replica, seconds / each as f64));
        if batch > 0 {
            rows.push(row.to_vec());
        }
    }
    hand_over(&replica, &rows);
}

fn synchronized(a: &mut Accumulator) {
    drop(handle(a.synchronized()));
}
