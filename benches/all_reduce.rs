//! Dense sums of real replicas: `Replica::all_reduce` and the exchange of uncompressed runs, from 8 bytes to 32 MiB.
//!
//! Beside each stand, in the same round, all replicas running `r += u` over vectors of this length at once, and copying
//! such a vector; beside the shortest a barrier. Each replica's time of a round is measured between two barriers; the
//! slowest replica counts.

mod common;

use common::replicas::{hand_over, launch, number, seconds, task};
use common::{Against, Bench, median};
use gradring::{Dense, Exchange, Replica, op};
use std::hint::black_box;

/// Elements: 8 bytes, 1 KiB, 64 KiB, 4 MiB, 32 MiB of f32.
const SIZES: [usize; 5] = [2, 256, 16_384, 1 << 20, 8 << 20];
/// How this bench calls what it measures, and the word by which its replicas are told.
const SUMS: [(&str, &str); 3] = [
    ("dense all-reduce", "all_reduce"),
    ("uncompressed step", "f32"),
    ("uncompressed step in bf16", "bf16"),
];

fn main() {
    if Replica::is_replica() {
        measure();
        return;
    }
    let mut bench = Bench::from_args();
    for world_size in [2, 4] {
        for full in SIZES {
            let elements = bench.size(full, full.min(100_000));
            for (sum, word) in SUMS {
                let name = format!("{sum}, {world_size} replicas, {elements} elements");
                if !bench.wants(&name) {
                    continue;
                }
                let (rounds, repeats) = match (bench.quick(), elements) {
                    (true, _) => (2, 2),
                    (false, ..=1024) => (101, 200),
                    (false, ..=100_000) => (101, 10),
                    (false, ..=2_000_000) => (51, 1),
                    (false, _) => (21, 1),
                };
                let task = format!("{word} {elements} {rounds} {repeats}");
                let rows = launch(world_size, &task);
                let us = median(rows.iter().map(|row| row[0]).collect()) * 1e6;
                let references = [
                    (1, "all replicas running r += u at once"),
                    (2, "all replicas copying at once"),
                    (3, "barrier"),
                ];
                for (column, reference) in references {
                    // A few bytes are added in no time, and many take longer than any barrier.
                    if (column == 3) != (elements <= 1024) {
                        continue;
                    }
                    let ratios = rows.iter().map(|row| row[0] / row[column]);
                    let against = Against {
                        ratio: median(ratios.collect()),
                        reference,
                    };
                    bench.report(&name, us, "us", Some(against));
                }
            }
        }
    }
}

fn measure() {
    let replica = Replica::join().expect("this program's launcher");
    let task = task();
    let (elements, rounds): (usize, usize) = (number(&task, 1), number(&task, 2));
    let repeats = number(&task, 3);

    let update: Vec<f32> = (0..elements)
        .map(|i| ((i * 40_503 + replica.rank()) % 2003) as f32 * 1e-6)
        .collect();
    let mut vector = vec![0.0_f32; elements];
    let mut accumulated = vec![1.0_f32; elements];
    let mut exchange = match task[0].as_str() {
        "all_reduce" => None,
        name => {
            let number = if name == "f32" {
                Dense::F32
            } else {
                Dense::Bf16
            };
            let builder = Exchange::builder(elements).uncompressed(number);
            Some(
                builder
                    .check_every(u64::MAX)
                    .build(&replica)
                    .expect("agreed"),
            )
        }
    };
    let mut rows = Vec::new();
    for round in 0..rounds + 2 {
        let sum = seconds(&replica, repeats, || match &mut exchange {
            // Zeros stay zeros however often they are added up.
            None => replica.all_reduce(&mut vector, op::Sum).expect("reduces"),
            Some(exchange) => {
                exchange.step(Some(&update), &mut vector).expect("steps");
            }
        });
        let add = seconds(&replica, repeats, || {
            for (sum, u) in black_box(&mut accumulated)
                .iter_mut()
                .zip(black_box(&update))
            {
                *sum += u;
            }
        });
        let copy = seconds(&replica, repeats, || {
            black_box(&mut accumulated).copy_from_slice(black_box(&update));
        });
        let barrier = seconds(&replica, repeats, || replica.barrier().expect("all come"));
        if round >= 2 {
            rows.push(vec![sum, add, copy, barrier]);
        }
    }
    hand_over(&replica, &rows);
}
