//! Trainers whose own commands make the update: in buffers of their own, or in the residual itself.

use super::device::{ALL, buffer, context, step, write};
use super::world::tell;
use super::{Mode, all_alike, hash, mode_of, update};
use gradring::codec::gpu::wgpu::CommandEncoder;
use gradring::codec::gpu::{GpuContext, GradRef};
use gradring::exchange::BackendChoice;
use gradring::{Error, Exchange, InResidual, Quantile, Replica};

const LENGTH: usize = 50_000;

pub(crate) fn replica(case: &str, replica: &Replica) -> bool {
    let what = case.rsplit_once(' ').map_or(case, |(what, _)| what);
    let run: fn(&Replica, &Mode) = match what {
        "in residual" => in_residual,
        "recorded" => recorded,
        _ => return false,
    };
    run(replica, &mode_of(case, replica).1);
    true
}

fn exchange(mode: &Mode, replica: &Replica) -> Exchange {
    let policy = Quantile::new(0.02).expect("a density");
    let builder = Exchange::builder(LENGTH).policy(policy).check_every(1);
    mode.builder(builder).build(replica).expect("agreed")
}

/// Updates that are in the residual when a step begins. It begins at +0 here each time, so that what is added to it is
/// all that it holds.
fn in_residual(replica: &Replica, mode: &Mode) {
    let rank = replica.rank();
    let mut exchange = exchange(mode, replica);
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[77]);
    for number in 0..4 {
        let flushed = parameters.onto(|parameters| exchange.flush(parameters));
        flushed.expect("flushes");
        let mut given = update(rank, number, LENGTH);
        // What is no number becomes +0, and is told.
        given[number] = f32::NAN;
        if mode.backend == BackendChoice::Gpu {
            assert!(exchange.residual_mut().is_empty());
            let context = exchange.gpu().expect("it has one").clone();
            let mut rest = &given[..];
            for part in exchange.residual_on_device() {
                let (now, later) = rest.split_at(part.len());
                let GradRef::Device { buffer, .. } = part else {
                    panic!("it is on the device");
                };
                write(&context, buffer, 0, now);
                rest = later;
            }
            assert!(rest.is_empty(), "all of it");
        } else {
            assert!(exchange.residual_on_device().is_empty());
            exchange.residual_mut().copy_from_slice(&given);
        }
        let stepped = parameters.onto(|parameters| exchange.step(Some(&InResidual), parameters));
        let Err(Error::NonFinite { total, .. }) = stepped else {
            panic!("{stepped:?}");
        };
        assert_eq!(total, replica.world_size() as u64);
    }
    tell(format!("parameters {}", hash(&parameters.get())));
    let residual = exchange.encoder().download_residual().expect("it is there");
    tell(format!("residual {}", hash(&residual)));
}

/// Commands that copy an update to where the step takes it from.
fn copying(context: &GpuContext, values: &[f32], to: &GradRef<'_>) -> CommandEncoder {
    let GradRef::Device { buffer: to, .. } = to else {
        panic!("it is on the device");
    };
    let from = buffer(context, values.len(), ALL);
    write(context, &from, 0, values);
    let mut commands = context.device().create_command_encoder(&Default::default());
    commands.copy_buffer_to_buffer(&from, 0, to, 0, from.size());
    commands
}

/// Updates that are made by commands which nobody has submitted when the step begins.
fn recorded(replica: &Replica, mode: &Mode) {
    let rank = replica.rank();
    let mut exchange = exchange(mode, replica);
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[]);
    let mut given = mode.vector(&vec![0.0; LENGTH], &[]);
    let hand_over = |exchange: &mut Exchange, values: &[f32], to: &mut super::Vector| match exchange
        .gpu()
        .cloned()
    {
        Some(context) if mode.memory == super::Memory::Device => {
            let to = to.device_refs().swap_remove(0);
            let commands = copying(&context, values, &to);
            exchange.record_after(commands).expect("an own device");
        }
        _ => to.set(values),
    };
    for number in 0..4 {
        hand_over(&mut exchange, &update(rank, number, LENGTH), &mut given);
        step(&mut exchange, Some(&given), &mut parameters).expect("steps");
    }
    tell(format!("parameters {}", hash(&parameters.get())));
    // Before anything else too: the parameters of rank 0, a comparison, a step without an update.
    hand_over(&mut exchange, &vec![rank as f32; LENGTH], &mut parameters);
    let started = parameters.onto(|parameters| exchange.start(parameters));
    started.expect("starts");
    assert!(parameters.get().iter().all(|&p| p == 0.0));
    // Twice before one step: in order.
    for value in [3.0, 4.0] {
        hand_over(&mut exchange, &vec![value; LENGTH], &mut parameters);
    }
    let checked = parameters.onto(|parameters| exchange.check(parameters));
    checked.expect("the same everywhere");
    assert!(parameters.get().iter().all(|&p| p == 4.0));
    hand_over(&mut exchange, &vec![5.0; LENGTH], &mut parameters);
    let gives = (rank > 0).then_some(&given);
    step(&mut exchange, gives, &mut parameters).expect("steps");
    tell(format!("after {}", hash(&parameters.get())));
    if mode.context.is_none() {
        let context = context();
        let commands = context.device().create_command_encoder(&Default::default());
        let error = exchange.record_after(commands).expect_err("it has none");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[test]
fn updates_that_a_trainer_adds_to_the_residual_on_a_device_are_those_of_the_processor() {
    all_alike("in residual", "dgh", &["parameters", "residual"]);
}

#[test]
fn a_step_goes_behind_the_commands_that_make_its_update() {
    all_alike("recorded", "dsh", &["parameters", "after"]);
}
