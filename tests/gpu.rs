//! Exchanges whose updates are encoded on a GPU, or whose vectors are in its memory, among replicas that know nothing of
//! it: real processes, the same bits.
//!
//! Any adapter will do, also one in software. Where there is none, tests say NOT RUN, and fail if `GRADRING_REQUIRE_GPU` is
//! 1.
#![cfg(feature = "gpu")]

#[path = "gpu/choices.rs"]
mod choices;
#[path = "gpu/device.rs"]
mod device;
#[path = "gpu/faults.rs"]
mod faults;
#[path = "gpu/in_place.rs"]
mod in_place;
#[path = "gpu/misuse.rs"]
mod misuse;
#[path = "gpu/mixed.rs"]
mod mixed;
#[path = "plain/random.rs"]
mod random;
#[path = "gpu/states.rs"]
mod states;
mod world;

use device::{Memory, Vector};
use gradring::codec::gpu::GpuContext;
use gradring::exchange::{BackendChoice, Builder};
use gradring::{Replica, parameter_hash};
use random::Random;
use world::{Setup, World};

/// A heavy-tailed update.
fn update(rank: usize, step: usize, length: usize) -> Vec<f32> {
    let mut random = Random((rank as u64 + 1) << 32 | step as u64);
    (0..length).map(|_| random.laplace(1e-3)).collect()
}

/// What a replica is: where it encodes, and where its vectors are.
#[derive(Clone)]
struct Mode {
    backend: BackendChoice,
    memory: Memory,
    /// Of its device, if it has anything to do with one.
    context: Option<GpuContext>,
}

impl Mode {
    /// One letter each: `h` all on the processor; `g` encodes on a GPU; `d` has its vectors there too; `s` has its vectors
    /// there, but encodes on the processor.
    fn of(letter: char) -> Self {
        let (backend, memory) = match letter {
            'h' => (BackendChoice::Processor, Memory::Host),
            'g' => (BackendChoice::Gpu, Memory::Host),
            'd' => (BackendChoice::Gpu, Memory::Device),
            's' => (BackendChoice::Processor, Memory::Device),
            other => panic!("no mode {other}"),
        };
        let context = (letter != 'h').then(device::context);
        Self {
            backend,
            memory,
            context,
        }
    }

    fn builder(&self, builder: Builder) -> Builder {
        let builder = builder.backend(self.backend);
        match &self.context {
            Some(context) => builder.gpu(context.clone()),
            None => builder,
        }
    }

    /// A vector where this replica has its vectors, in parts of these lengths and the rest.
    fn vector(&self, values: &[f32], lengths: &[usize]) -> Vector {
        Vector::new(self.memory, self.context.as_ref(), values, lengths)
    }
}

/// This rank's part of a case `what modes`.
fn mode_of<'a>(case: &'a str, replica: &Replica) -> (&'a str, Mode) {
    let (what, modes) = case.rsplit_once(' ').unwrap_or((case, "h"));
    let letter = modes.chars().nth(replica.rank()).expect("a mode each");
    (what, Mode::of(letter))
}

fn hash(vector: &[f32]) -> String {
    format!("{:016x}", parameter_hash(vector))
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let ran = choices::replica(&case, &replica)
        || faults::replica(&case, &replica)
        || in_place::replica(&case, &replica)
        || misuse::replica(&case, &replica)
        || mixed::replica(&case, &replica)
        || states::replica(&case, &replica);
    assert!(ran, "no case {case}");
}

/// Runs `what` with replicas of these modes, and with as many on the processor: each tells the same lines that begin so.
fn all_alike(what: &str, modes: &str, lines: &[&str]) {
    if !device::is_here() {
        return;
    }
    let run = |modes: &str| {
        let case = format!("{what} {modes}");
        World::with(&case, modes.len(), &Setup::default()).succeed()
    };
    let (found, expected) = (run(modes), run(&"h".repeat(modes.len())));
    for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
        for line in lines {
            assert_eq!(
                found.one(line),
                expected.one(line),
                "{what} {modes}, rank {rank}: {line}"
            );
        }
    }
}
