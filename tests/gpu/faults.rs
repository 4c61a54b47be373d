//! Devices that are lost in the middle of a run.

use super::device::{ALL, Memory, buffer, context, is_here, step, write};
use super::world::{Setup, World, tell};
use super::{Mode, hash, update};
use gradring::checkpoint::State;
use gradring::codec::gpu::{GpuContext, GpuError, wgpu};
use gradring::exchange::{BackendChoice, BackendKind};
use gradring::{Error, Exchange, Quantile, Replica};
use std::time::{Duration, Instant};

const LENGTH: usize = 50_000;
/// Of the replicas whose device hangs.
const DEADLINE: Duration = Duration::from_secs(2);

pub(crate) fn replica(case: &str, replica: &Replica) -> bool {
    match case {
        "lost in a step" => lost(replica, Memory::Host),
        "lost with its vectors" => lost(replica, Memory::Device),
        "falls back" => falls_back(replica, mode(replica, Memory::Host)),
        "has no device" => falls_back(replica, Mode::of('h')),
        "lost between steps" => lost_between_steps(replica),
        "two devices" => two_devices(replica),
        "hangs" => hangs(replica),
        _ => return false,
    }
    true
}

/// A kernel that keeps a device busy for some seconds, and no more: its process can end. (A software adapter ends loops
/// after 65,535 turns.)
const BUSY: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1)
fn main() {
    var y = x[0] | 1u;
    for (var i = 0u; i < x[1]; i++) {
        y ^= y << 13u; y ^= y >> 17u; y ^= y << 5u;
    }
    x[0] = y;
}";

/// Commands with so many times this work.
fn work(context: &GpuContext, times: u32) -> wgpu::CommandEncoder {
    let device = context.device();
    let shader = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(BUSY.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &shader,
        entry_point: None,
        compilation_options: Default::default(),
        cache: None,
    });
    let state = buffer(context, 2, ALL);
    write(context, &state, 0, &[1.0, f32::from_bits(60_000)]);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry {
            binding: 0,
            resource: state.as_entire_binding(),
        }],
    });
    let mut commands = device.create_command_encoder(&Default::default());
    let mut pass = commands.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(times, 1, 1);
    drop(pass);
    commands
}

/// Commands that take a device three deadlines.
fn long_work(context: &GpuContext) -> wgpu::CommandEncoder {
    let once = |times| {
        let began = Instant::now();
        context.queue().submit([work(context, times).finish()]);
        let done = context.device().poll(wgpu::PollType::wait_indefinitely());
        done.expect("the device works");
        began.elapsed()
    };
    once(1);
    let of_one = once(50) / 50;
    let times = (3 * DEADLINE).as_secs_f64() / of_one.as_secs_f64();
    work(context, (times as u32).clamp(1, 65_535))
}

/// The device of rank 1 does not end its work: nobody waits for it longer than the deadline.
fn hangs(replica: &Replica) {
    let rank = replica.rank();
    let mode = mode(replica, Memory::Host);
    let builder = Exchange::builder(LENGTH).policy(policy());
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[]);
    let given = mode.vector(&update(rank, 0, LENGTH), &[]);
    step(&mut exchange, Some(&given), &mut parameters).expect("steps");
    if let Some(context) = &mode.context {
        exchange
            .record_after(long_work(context))
            .expect("an own device");
    }
    replica.barrier().expect("all are here");
    let began = Instant::now();
    let error = step(&mut exchange, Some(&given), &mut parameters).expect_err("it hangs");
    // Software drivers do not come back from a submission before they have done what was submitted before it. That is the
    // rank's own misfortune: the others' deadlines hold.
    assert!(rank == 1 || began.elapsed() < 2 * DEADLINE, "{error}");
    match (rank, &error) {
        (1, Error::GpuFailed(_)) => {}
        (_, Error::Aborted { rank: 1, reason }) => assert!(reason.contains("did not end")),
        (_, Error::TimedOut { rank: 1, .. }) => {}
        (_, error) => panic!("{error}"),
    }
    tell("done");
}

/// Rank 1 is on a GPU, all others are on the processor.
fn mode(replica: &Replica, memory: Memory) -> Mode {
    let mut mode = Mode::of(if replica.rank() == 1 { 'd' } else { 'h' });
    if replica.rank() == 1 {
        mode.memory = memory;
    }
    mode
}

fn policy() -> Quantile {
    Quantile::new(0.02).expect("a density")
}

/// The device of rank 1 is destroyed after three steps: that ends the run for all, at once and with its name.
fn lost(replica: &Replica, memory: Memory) {
    let rank = replica.rank();
    let mode = mode(replica, memory);
    let builder = Exchange::builder(LENGTH).policy(policy());
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[]);
    let given = mode.vector(&update(rank, 0, LENGTH), &[]);
    for _ in 0..3 {
        step(&mut exchange, Some(&given), &mut parameters).expect("steps");
    }
    replica.barrier().expect("all are here");
    if let Some(context) = &mode.context {
        context.device().destroy();
    }
    let began = Instant::now();
    let error = step(&mut exchange, Some(&given), &mut parameters).expect_err("it is lost");
    assert!(began.elapsed() < Duration::from_secs(20));
    if rank == 1 {
        let is_typed = matches!(&error, Error::GpuFailed(GpuError::Lost { .. }));
        assert!(is_typed, "{error}");
    } else {
        let Error::Aborted { rank: 1, reason } = &error else {
            panic!("{error}");
        };
        assert!(reason.contains("lost"), "{reason}");
    }
    assert!(error.ends_the_run());
    // From every call from now on, and nobody saves what such a step left behind.
    let error = step(&mut exchange, None, &mut parameters).expect_err("the run is over");
    assert!(error.ends_the_run(), "{error}");
    assert!(exchange.save(&mut Vec::new()).is_err());
    tell("done");
}

/// The same with vectors in this process's memory and an encoder that may go to the processor: the run goes on.
fn falls_back(replica: &Replica, mode: Mode) {
    let rank = replica.rank();
    let builder = Exchange::builder(LENGTH)
        .policy(policy())
        .snapshot_every(1)
        .fall_back(true)
        .check_every(1);
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[]);
    for number in 0..8 {
        if let Some(context) = mode.context.as_ref().filter(|_| number == 4) {
            context.device().destroy();
        }
        let given = mode.vector(&update(rank, number, LENGTH), &[]);
        let report = step(&mut exchange, Some(&given), &mut parameters).expect("it goes on");
        let on_gpu = mode.context.is_some() && number < 4;
        assert_eq!(report.backend == BackendKind::Gpu, on_gpu, "step {number}");
        let fell_back = exchange.encoder().fell_back().is_some();
        assert_eq!(fell_back, mode.context.is_some() && number >= 4);
    }
    tell(format!("parameters {}", hash(&parameters.get())));
    tell(format!("residual {}", hash(exchange.residual())));
}

/// What is found out before a step begins is this replica's alone.
fn lost_between_steps(replica: &Replica) {
    let mode = Mode::of('s');
    let builder = Exchange::builder(LENGTH).policy(policy());
    let mut exchange = mode.builder(builder).build(replica).expect("agreed");
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[]);
    let given = mode.vector(&update(0, 0, LENGTH), &[]);
    step(&mut exchange, Some(&given), &mut parameters).expect("steps");
    let context = mode.context.as_ref().expect("it has one");
    context.device().destroy();
    for _ in 0..2 {
        let error = step(&mut exchange, Some(&given), &mut parameters).expect_err("it is lost");
        assert!(matches!(error, Error::Gpu(_)), "{error}");
        assert!(!error.ends_the_run());
        let checked = parameters.onto(|parameters| exchange.check(parameters));
        assert!(matches!(checked, Err(Error::Gpu(_))), "{checked:?}");
    }
    // The encoder is on the processor, and what it has goes on with other vectors.
    let mut parameters = vec![0.5; LENGTH];
    exchange
        .step(Some(&update(0, 1, LENGTH)), &mut parameters)
        .expect("steps");
    tell("done");
}

/// Two devices in one process, one of which is lost.
fn two_devices(replica: &Replica) {
    let rank = replica.rank();
    let modes = [context(), context()].map(|context| Mode {
        backend: BackendChoice::Gpu,
        memory: Memory::Device,
        context: Some(context),
    });
    let mut exchanges = modes.each_ref().map(|mode| {
        let builder = Exchange::builder(LENGTH).policy(policy()).check_every(1);
        mode.builder(builder).build(replica).expect("agreed")
    });
    let mut parameters = modes
        .each_ref()
        .map(|mode| mode.vector(&vec![0.5; LENGTH], &[9]));
    let given = modes
        .each_ref()
        .map(|mode| mode.vector(&update(rank, 0, LENGTH), &[]));
    for _ in 0..3 {
        for at in 0..2 {
            let stepped = step(&mut exchanges[at], Some(&given[at]), &mut parameters[at]);
            stepped.expect("steps");
        }
    }
    let hashes = parameters
        .each_ref()
        .map(|parameters| hash(&parameters.get()));
    assert_eq!(hashes[0], hashes[1]);
    // Of the other device, or in its memory: this run ends, as it can be seen only inside of a step.
    let [first, _] = &mut exchanges;
    let stepped = step(first, Some(&given[1]), &mut parameters[0]);
    let error = stepped.expect_err("it is not its device's");
    assert!(
        matches!(
            &error,
            Error::GpuFailed(GpuError::Refused { .. }) | Error::Gpu(_)
        ),
        "{error}"
    );
    tell("done");
}

/// Runs a case; nobody waits for the deadline.
fn run(case: &str, world_size: usize) -> Vec<super::world::Ended> {
    World::with(case, world_size, &Setup::default()).succeed()
}

#[test]
fn a_lost_device_ends_the_run_for_all_with_the_rank_and_the_reason() {
    if !is_here() {
        return;
    }
    for case in ["lost in a step", "lost with its vectors"] {
        for replica in run(case, 3) {
            replica.one("done");
        }
    }
}

#[test]
fn a_device_that_does_not_end_its_work_makes_nobody_hang() {
    if !is_here() {
        return;
    }
    let setup = Setup {
        deadline: DEADLINE,
        ..Setup::default()
    };
    for replica in World::with("hangs", 3, &setup).succeed() {
        replica.one("done");
    }
}

#[test]
fn a_replica_that_falls_back_to_the_processor_goes_on_and_all_are_identical() {
    if !is_here() {
        return;
    }
    // With a snapshot after each step nothing is lost: it is as if there had never been a device.
    let (ended, expected) = (run("falls back", 3), run("has no device", 3));
    for (ended, expected) in ended.iter().zip(&expected) {
        for line in ["parameters", "residual"] {
            assert_eq!(ended.one(line), expected.one(line));
        }
    }
}

#[test]
fn a_device_that_is_lost_before_a_step_is_a_local_error() {
    if is_here() {
        run("lost between steps", 1)[0].one("done");
    }
}

#[test]
fn two_devices_in_one_process_work_side_by_side() {
    if is_here() {
        run("two devices", 1)[0].one("done");
    }
}
