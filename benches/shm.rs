//! Hand-over of a frame, barrier, death: with real processes, as replicas of this very program.
//!
//! `hand-over` is one way: half of a round trip of two all_reduces of one value. `barrier` carries its identity. The
//! reference of both is a barrier of bare counters in a shared file: what the hardware takes for the same exchange.

mod common;

use common::{Against, Bench, median};
use gradring::launch::Launch;
use gradring::{Replica, op};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What a replica measures, one line of numbers by rank 0 into the file that the variable names.
const RESULT: &str = "GRADRING_BENCH_RESULT";
const COUNTERS: &str = "GRADRING_BENCH_COUNTERS";
const WHAT: &str = "GRADRING_BENCH_WHAT";

fn main() {
    if Replica::is_replica() {
        measure();
        return;
    }
    let mut bench = Bench::from_args();
    let rounds = bench.size(20_000, 500);
    for world_size in [2, 4, 8] {
        let name = format!("barrier, {world_size} replicas");
        if bench.wants(&name) {
            let [ours, bare] = run(world_size, "barrier", rounds / world_size);
            let against = Against {
                ratio: ours / bare,
                reference: "a bare counter barrier",
            };
            bench.report(&name, ours * 1e6, "us", Some(against));
        }
    }
    if bench.wants("hand-over of 8 bytes, 2 replicas") {
        let [ours, bare] = run(2, "hand-over", rounds);
        let against = Against {
            ratio: ours / bare,
            reference: "a bare counter barrier",
        };
        bench.report(
            "hand-over of 8 bytes, 2 replicas",
            ours * 1e6,
            "us",
            Some(against),
        );
    }
    if bench.wants("death") {
        for (name, megabytes) in [
            ("death of a small replica", 1),
            ("death of a replica with 512 MiB", 512),
        ] {
            let times: Vec<f64> = (0..bench.size(21, 2))
                .map(|_| death(if bench.quick() { 1 } else { megabytes }))
                .collect();
            let worst = times.iter().copied().fold(0.0, f64::max);
            bench.report(name, median(times) * 1e3, "ms", None);
            bench.report(&format!("{name}, worst"), worst * 1e3, "ms", None);
        }
    }
    if bench.wants("memory a replica") {
        let layout = gradring::shm::layout::Layout::new(
            8,
            gradring::shm::layout::DEFAULT_RING_CAPACITY,
            gradring::shm::cells::DEFAULT_CELLS,
        );
        if let Ok(layout) = layout {
            bench.report(
                "memory a replica, 8 replicas",
                layout.total as f64 / 8.0 / f64::from(1 << 20),
                "MiB",
                None,
            );
        }
    }
}

/// Seconds for one of ours and one of the reference, medians over interleaved batches.
fn run(world_size: usize, what: &str, rounds: usize) -> [f64; 2] {
    let numbers = launch(world_size, what, rounds);
    let column = |which: usize| median(numbers.iter().skip(which).step_by(2).copied().collect());
    [column(0), column(1)]
}

fn launch(world_size: usize, what: &str, rounds: usize) -> Vec<f64> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, counters) = (folder.path().join("result"), folder.path().join("counters"));
    std::fs::write(&counters, vec![0; world_size * 128]).expect("a temporary file");
    let outcome = Launch::this_program()
        .replicas(world_size)
        .env(WHAT, format!("{what} {rounds}"))
        .env(RESULT, &file)
        .env(COUNTERS, &counters)
        .run();
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    match outcome {
        Ok(outcome) if what == "death" || outcome.code == 0 => {}
        other => {
            eprintln!("the replicas of '{what}' failed: {other:?}");
            std::process::exit(1);
        }
    }
    text.split_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Seconds from a replica's kill to the error of the other.
fn death(megabytes: usize) -> f64 {
    launch(2, "death", megabytes)
        .first()
        .copied()
        .unwrap_or(f64::NAN)
}

fn measure() {
    let replica = Replica::join().expect("this program's launcher");
    let task = std::env::var(WHAT).unwrap_or_default();
    let mut words = task.split_whitespace();
    let (what, rounds) = (
        words.next().unwrap_or_default(),
        words.next().and_then(|n| n.parse().ok()).unwrap_or(1),
    );
    let mut result = String::new();
    if what == "death" {
        let mut memory = vec![0_u8; if replica.rank() == 1 { rounds << 20 } else { 1 }];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        replica.barrier().expect("both come");
        if replica.rank() == 1 {
            // The clock of the kill, for the survivor: the same monotonic clock in both processes.
            let _ = replica.all_gather(&now().to_le_bytes());
            std::hint::black_box(&memory);
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).expect("this ends it");
        }
        let killed = replica.all_gather(&[]).expect("both come");
        let killed = u64::from_le_bytes(killed[1].as_slice().try_into().expect("8 bytes"));
        replica.barrier().expect_err("the other is dead");
        write(&format!("{}", (now() - killed) as f64 * 1e-9));
        return;
    }
    let counters = Counters::map(replica.world_size());
    let batches = 15;
    for batch in 0..batches + 2 {
        let times = [
            time(&replica, rounds, || ours(&replica, what)),
            counters.time(&replica, rounds),
        ];
        if batch >= 2 {
            result += &format!("{} {} ", times[0], times[1]);
        }
    }
    if replica.rank() == 0 {
        write(&result);
    }
}

fn now() -> u64 {
    let time =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("every Linux has it");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

fn write(result: &str) {
    let file = std::env::var_os(RESULT).expect("the parent names it");
    std::fs::write(file, result).expect("a temporary file");
}

fn ours(replica: &Replica, what: &str) {
    match what {
        "barrier" => replica.barrier().expect("all come"),
        _ => replica.all_reduce(&mut [1_u64], op::Sum).expect("all come"),
    }
}

fn time(replica: &Replica, rounds: usize, mut work: impl FnMut()) -> f64 {
    replica.barrier().expect("all come");
    let start = Instant::now();
    for _ in 0..rounds {
        work();
    }
    start.elapsed().as_secs_f64() / rounds as f64
}

/// One counter per rank, each alone on its lines, in a file that all replicas map.
struct Counters {
    base: std::ptr::NonNull<std::ffi::c_void>,
    world_size: usize,
}

impl Counters {
    fn map(world_size: usize) -> Self {
        let path = std::env::var_os(COUNTERS).expect("the parent names it");
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("the parent made it");
        let length = std::num::NonZeroUsize::new(world_size * 128).expect("at least one replica");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping of a file that is as long; it is never unmapped.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, 0) };
        Self {
            base: base.expect("room for a page"),
            world_size,
        }
    }

    fn counter(&self, rank: usize) -> &AtomicU64 {
        assert!(rank < self.world_size);
        // SAFETY: inside the mapping, aligned, and touched by atomics only.
        unsafe { self.base.byte_add(rank * 128).cast::<AtomicU64>().as_ref() }
    }

    /// Seconds for a barrier of nothing but counters.
    fn time(&self, replica: &Replica, rounds: usize) -> f64 {
        let crowded = self.world_size > std::thread::available_parallelism().map_or(1, usize::from);
        let own = self.counter(replica.rank());
        time(replica, rounds, || {
            let round = own.load(Ordering::Relaxed) + 1;
            own.store(round, Ordering::Release);
            for rank in 0..self.world_size {
                while self.counter(rank).load(Ordering::Acquire) < round {
                    if crowded {
                        std::thread::yield_now();
                    } else {
                        std::hint::spin_loop();
                    }
                }
            }
        })
    }
}
