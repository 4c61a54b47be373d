//! Signals and requests at random moments on random ranks.

use crate::harness::{Setup, elastic_with};
use crate::random::Random;
use crate::seen::{Seen, exactly_once};
use gradring::progress::Sampler;
use gradring::{Exchange, Flags, Replica, Update};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Descriptors of all replicas' processes, which are them alone whoever comes after them.
fn processes(replica: &Replica) -> Vec<i32> {
    let pid = std::process::id().to_le_bytes();
    let pids = replica.all_gather(&pid).unwrap();
    let pids = pids
        .iter()
        .map(|pid| u32::from_le_bytes(pid[..].try_into().unwrap()));
    let open = |pid: u32| {
        // SAFETY: a system call on numbers.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
        descriptor as i32
    };
    let open = pids.map(open).collect();
    // Nobody leaves before all have them.
    replica.barrier().unwrap();
    open
}

/// Sends a signal to a process, which may have ended.
fn send(process: i32, signal: i32) {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a descriptor of this process, no information.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, none, 0) };
}

#[test]
fn storms_of_signals_and_checkpoints_leave_all_at_the_same_step() {
    let name = "storms::storms_of_signals_and_checkpoints_leave_all_at_the_same_step";
    const WORLDS: [usize; 8] = [3, 2, 5, 1, 4, 2, 3, 0];
    const SAMPLES: usize = 20_000;
    let setup = Setup::default();
    let ended = elastic_with(name, WORLDS[0], &setup, |generation| {
        let last = generation.number + 2 == WORLDS.len();
        generation.next(if last {
            0
        } else {
            WORLDS[generation.number + 1]
        });
        let replica = Replica::join().unwrap();
        let seen = Seen::of(&replica);
        let mut exchange = Exchange::builder(64).name("model").build(&replica).unwrap();
        let mut parameters = vec![0.5_f32; 64];
        let processes = processes(&replica);
        let over = AtomicBool::new(false);
        let (replica, processes, over) = (&replica, &processes, &over);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let seed = (generation.number * 16 + replica.rank()) as u64;
                let mut random = Random(seed);
                let mut storm = false;
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(random.below(4000)));
                    if random.below(3) == 0 {
                        replica.raise(Flags::CHECKPOINT);
                    }
                    storm |= !last && random.below(20) == 0;
                    if storm {
                        send(processes[random.index(processes.len())], libc::SIGTERM);
                    }
                }
            });
            for epoch in replica.epochs(2).unwrap() {
                let epoch = epoch.unwrap();
                // In the last generation there is no stop: with larger batches it comes to the end.
                let batch = if last { 500 } else { 3 };
                let sampler = Sampler::new(SAMPLES).batch(batch).shuffled(2);
                for batch in replica.batches("train", sampler).unwrap() {
                    let batch = batch.unwrap();
                    seen.see(&format!("{epoch}"), &batch);
                    let update = vec![batch.len() as f32; 64];
                    let update = (!batch.is_empty()).then_some(&update as &dyn Update);
                    exchange.step(update, &mut parameters).unwrap();
                    generation.tell("step");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(last, "it is stopped before");
        seen.tell(generation);
        0
    });
    assert_eq!(ended.len(), WORLDS.len() - 1);
    for (number, ended) in ended.iter().enumerate() {
        let steps: Vec<usize> = ended.all("step").iter().map(Vec::len).collect();
        assert!(
            steps
                .iter()
                .all(|steps| *steps == ended_steps(&ended.told[0])),
            "{number}: {steps:?}"
        );
        let code = if number + 1 == WORLDS.len() - 1 {
            0
        } else {
            143
        };
        assert_eq!(ended.outcome.code, code, "{}", ended.outcome);
    }
    exactly_once(&ended, &[("0", SAMPLES), ("1", SAMPLES)]);
}

fn ended_steps(told: &[String]) -> usize {
    told.iter().filter(|line| *line == "step").count()
}
