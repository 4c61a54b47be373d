//! Saved on a GPU, loaded on the processor, and back.

use super::device::{Memory, context, is_here, step};
use super::world::{World, tell};
use super::{Mode, update};
use gradring::checkpoint::State;
use gradring::exchange::BackendChoice;
use gradring::{Clipping, Dense, Exchange, NamedRange, Quantile, Replica, TargetDensity};
use std::io::Read;

const LENGTH: usize = 30_000;
const STEPS: usize = 12;

pub(crate) fn replica(case: &str, replica: &Replica) -> bool {
    match case {
        "resumed" => resumed(replica),
        "merged" => merged(replica),
        _ => return false,
    }
    true
}

fn exchange(mode: &Mode, replica: &Replica) -> Exchange {
    let quantile = Quantile::new(0.02).expect("a density");
    let builder = Exchange::builder(LENGTH)
        .policy(quantile.with_warm_up(10).expect("a warm-up"))
        .ranges([
            NamedRange::compressed("weights", LENGTH - 5070),
            NamedRange::dense("bias", 70, Dense::Bf16),
            NamedRange::compressed("embedding", 5000)
                .with_policy(TargetDensity::dl4j().with_limit(200)),
        ])
        .post_processor(Clipping::new(3.0, 4).expect("a clipping"))
        .check_every(4);
    mode.builder(builder).build(replica).expect("agreed")
}

fn saved(exchange: &Exchange) -> Vec<u8> {
    let mut bytes = Vec::new();
    exchange.save(&mut bytes).expect("between steps");
    bytes
}

/// On the processor; on a GPU, with vectors in either memory.
fn modes() -> [Mode; 3] {
    let context = context();
    let on_gpu = |memory| Mode {
        backend: BackendChoice::Gpu,
        memory,
        context: Some(context.clone()),
    };
    [Mode::of('h'), on_gpu(Memory::Device), on_gpu(Memory::Host)]
}

/// A run that goes on somewhere else after every three steps, against one that never left the processor.
fn resumed(replica: &Replica) {
    let (rank, modes) = (replica.rank(), modes());
    let mut never_stopped = exchange(&modes[0], replica);
    let mut expected = modes[0].vector(&vec![0.5; LENGTH], &[]);
    let mut state = None;
    let mut values = vec![0.5; LENGTH];
    for stage in 0..STEPS / 3 {
        // Replicas are somewhere else at any time.
        let mode = &modes[(stage + rank) % modes.len()];
        let mut resumed = exchange(mode, replica);
        if let Some(bytes) = &state {
            let bytes: &Vec<u8> = bytes;
            resumed.load(&mut bytes.as_slice()).expect("its own");
            assert_eq!(&saved(&resumed), bytes, "what it has loaded");
        }
        let mut parameters = mode.vector(&values, &[12_345]);
        let mut given = mode.vector(&vec![0.0; LENGTH], &[]);
        for number in 3 * stage..3 * stage + 3 {
            let gives = !(rank + number).is_multiple_of(4);
            given.set(&update(rank, number, LENGTH));
            let on_host = super::Vector::Host(update(rank, number, LENGTH));
            step(&mut resumed, gives.then_some(&given), &mut parameters).expect("steps");
            step(&mut never_stopped, gives.then_some(&on_host), &mut expected).expect("steps");
        }
        let bytes = saved(&resumed);
        assert!(bytes == saved(&never_stopped), "stage {stage}");
        values = parameters.get();
        assert_eq!(
            values.iter().map(|p| p.to_bits()).collect::<Vec<_>>(),
            expected
                .get()
                .iter()
                .map(|p| p.to_bits())
                .collect::<Vec<_>>(),
            "stage {stage}"
        );
        state = Some(bytes);
    }
    tell("done");
}

/// What two replicas had is merged for one, on a GPU as on the processor.
fn merged(replica: &Replica) {
    let modes = modes();
    let old: Vec<Vec<u8>> = (0..2)
        .map(|rank| {
            let mode = &modes[rank];
            let mut exchange = exchange(mode, replica);
            let mut parameters = mode.vector(&vec![0.5; LENGTH], &[]);
            // The hash that waits to be compared is of the parameters, which would be the same.
            let mut given = mode.vector(&vec![0.0; LENGTH], &[]);
            for number in 0..2 {
                given.set(&update(rank, number, LENGTH));
                step(&mut exchange, Some(&given), &mut parameters).expect("steps");
            }
            saved(&exchange)
        })
        .collect();
    let merged = modes.each_ref().map(|mode| {
        let mut files: Vec<&[u8]> = old.iter().map(Vec::as_slice).collect();
        let mut readers: Vec<&mut dyn Read> = files.iter_mut().map(|file| file as _).collect();
        let mut exchange = exchange(mode, replica);
        exchange.merge(&mut readers, 0, 1).expect("of one run");
        let residual = exchange.encoder().download_residual();
        (saved(&exchange), residual.expect("it is there"))
    });
    let [(bytes, residual), others @ ..] = &merged;
    assert!(residual.iter().any(|&r| r != 0.0));
    assert!(others.iter().all(|(other, _)| other == bytes));
    tell("done");
}

#[test]
fn a_run_goes_on_bit_for_bit_from_a_gpu_on_the_processor_and_back() {
    if is_here() {
        for replica in World::start("resumed", 2).succeed() {
            replica.one("done");
        }
    }
}

#[test]
fn states_are_merged_on_a_gpu_as_on_the_processor() {
    if is_here() {
        World::start("merged", 1).succeed()[0].one("done");
    }
}
