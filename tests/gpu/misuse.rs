//! What cannot be is a local error, and the run goes on.

use super::device::{ALL, Memory, buffer, context, is_here, step};
use super::world::{World, tell};
use super::{Mode, update};
use gradring::codec::gpu::wgpu::BufferUsages;
use gradring::codec::gpu::{GpuError, GradRef};
use gradring::exchange::BackendChoice;
use gradring::{
    Asynchronous, Bypass, Dense, Error, Exchange, MomentumMemory, Parameters, Quantile, Replica,
    Update,
};

const LENGTH: usize = 10_000;

pub(crate) fn replica(case: &str, replica: &Replica) -> bool {
    match case {
        "misuse" => misuse(replica),
        "settings" => settings(replica),
        "mixed memories" => mixed_memories(replica),
        _ => return false,
    }
    true
}

fn whole(buffer: &gradring::codec::gpu::wgpu::Buffer) -> GradRef<'_> {
    GradRef::device(buffer)
}

fn misuse(replica: &Replica) {
    let mode = Mode::of('d');
    let context = mode.context.clone().expect("it has one");
    let mut exchange = mode
        .builder(Exchange::builder(LENGTH))
        .build(replica)
        .expect("agreed");
    let right = buffer(&context, LENGTH, ALL);
    let no_storage = buffer(
        &context,
        LENGTH,
        BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
    );
    let no_copies = buffer(&context, LENGTH, BufferUsages::STORAGE);
    let mut refused = |update: &dyn Update, parameters: &mut dyn Parameters| {
        let error = exchange
            .step(Some(update), parameters)
            .expect_err("refused");
        assert!(!error.ends_the_run(), "{error}");
        error
    };
    let part = |buffer, offset, len| GradRef::Device {
        buffer,
        offset,
        len,
    };
    // Updates.
    for wrong in [
        part(&right, 4, LENGTH as u64),
        part(&right, 2, LENGTH as u64),
        part(&right, u64::MAX - 3, LENGTH as u64),
        part(&no_storage, 0, LENGTH as u64),
    ] {
        let error = refused(&wrong, &mut whole(&right));
        assert!(
            matches!(error, Error::Gpu(GpuError::Buffer { .. })),
            "{error}"
        );
    }
    let error = refused(&part(&right, 0, LENGTH as u64 - 1), &mut whole(&right));
    assert!(matches!(error, Error::Length { .. }), "{error}");
    let huge = [part(&right, 0, u64::MAX), part(&right, 0, u64::MAX)];
    let error = refused(&huge, &mut whole(&right));
    assert!(matches!(error, Error::Length { .. }), "{error}");
    // Parameters.
    for wrong in [
        part(&right, 4, LENGTH as u64),
        part(&no_storage, 0, LENGTH as u64),
        part(&no_copies, 0, LENGTH as u64),
    ] {
        let mut wrong = wrong;
        let error = refused(&whole(&right), &mut wrong);
        assert!(
            matches!(error, Error::Gpu(GpuError::Buffer { .. })),
            "{error}"
        );
    }
    // Two parts with an element in common, of which the second one comes first in the buffer.
    let shared = [
        part(&right, 4 * 5999, LENGTH as u64 - 6000),
        part(&right, 0, 6000),
    ];
    let mut wrong = shared;
    let error = refused(&whole(&right), &mut wrong);
    assert!(
        matches!(&error, Error::Gpu(GpuError::Buffer { offset: 23_996, expected, .. }) if expected.contains("no other part")),
        "{error}"
    );
    let mut host = vec![0.0; 1000];
    let mut mixed = [
        part(&right, 0, LENGTH as u64 - 1000),
        GradRef::Host(&mut host),
    ];
    let error = refused(&whole(&right), &mut mixed);
    assert!(
        matches!(&error, Error::Invalid { what: "parameters", found, .. } if found.contains("1 on a device and 1 in")),
        "{error}"
    );
    for wrong in [
        exchange.start(&mut mixed),
        exchange.check(&mut mixed),
        exchange.flush(&mut mixed).map(drop),
        exchange.flush_all_reduce(&mut mixed).map(drop),
    ] {
        assert!(matches!(wrong, Err(Error::Invalid { .. })), "{wrong:?}");
    }
    // An exchange that knows of no device.
    let mut knows_none = Exchange::builder(LENGTH)
        .backend(BackendChoice::Processor)
        .build(replica)
        .expect("agreed");
    let error = knows_none
        .step(Some(&whole(&right)), &mut vec![0.0; LENGTH])
        .expect_err("of no device");
    assert!(
        matches!(
            error,
            Error::Invalid {
                what: "an update on a device",
                ..
            }
        ),
        "{error}"
    );
    let error = knows_none
        .step(Some(&update(0, 0, LENGTH)), &mut whole(&right))
        .expect_err("of no device");
    assert!(
        matches!(
            error,
            Error::Invalid {
                what: "parameters",
                ..
            }
        ),
        "{error}"
    );
    // The residual itself, whose buffers a trainer has to know.
    let parts = exchange.residual_on_device();
    let GradRef::Device { buffer, .. } = &parts[0] else {
        panic!("it is on the device");
    };
    let residual = (*buffer).clone();
    drop(parts);
    let residual = || part(&residual, 0, LENGTH as u64);
    for refused in [
        exchange
            .step(Some(&residual()), &mut whole(&right))
            .map(drop),
        exchange
            .step(Some(&whole(&right)), &mut residual())
            .map(drop),
        exchange.start(&mut residual()),
        exchange.flush(&mut residual()).map(drop),
    ] {
        let error = refused.expect_err("refused");
        assert!(
            matches!(&error, Error::Gpu(GpuError::Buffer { expected, .. }) if expected.contains("residual")),
            "{error}"
        );
    }
    // Commands that cannot be: alone, and while others wait for the step.
    for before in [false, true] {
        let commands = || context.device().create_command_encoder(&Default::default());
        if before {
            exchange.record_after(commands()).expect("good commands");
        }
        let mut bad = commands();
        bad.copy_buffer_to_buffer(&right, 2, &no_storage, 0, 7);
        let refused = exchange.record_after(bad);
        assert!(
            matches!(refused, Err(Error::Gpu(GpuError::Refused { .. }))),
            "{refused:?}"
        );
    }
    // Nothing has happened to any of them.
    let mut parameters = mode.vector(&vec![0.5; LENGTH], &[]);
    let given = mode.vector(&update(0, 0, LENGTH), &[]);
    let report = step(&mut exchange, Some(&given), &mut parameters).expect("the run goes on");
    assert_eq!(report.step, 0);
    let mut parameters = vec![0.5; LENGTH];
    let given = update(0, 0, LENGTH);
    knows_none.step(Some(&given), &mut parameters).expect("too");
    // An update that need not be copied needs no usage for that; one that must be does.
    let mode = Mode::of('d');
    let builder = || Exchange::builder(LENGTH).gpu(context.clone());
    let mut in_place = builder()
        .backend(mode.backend)
        .build(replica)
        .expect("agreed");
    in_place
        .step(Some(&whole(&no_copies)), &mut parameters)
        .expect("steps");
    let on_processor = BackendChoice::Processor;
    let mut staged = builder()
        .backend(on_processor)
        .build(replica)
        .expect("agreed");
    let error = staged
        .step(Some(&whole(&no_copies)), &mut parameters)
        .expect_err("it cannot be");
    assert!(
        matches!(&error, Error::Gpu(GpuError::Buffer { expected, .. }) if expected.contains("COPY_SRC")),
        "{error}"
    );
    tell("done");
}

/// A GPU that is forced on settings with which it cannot encode; left open, the processor does.
fn settings(replica: &Replica) {
    let context = context();
    let builder = || Exchange::builder(LENGTH).gpu(context.clone());
    let memory = || MomentumMemory::new(0.9).expect("a momentum");
    let settings: [(&str, &dyn Fn() -> gradring::exchange::Builder); 5] = [
        ("streamed", &|| builder().streamed()),
        ("asynchronous", &|| {
            builder().asynchronous(Asynchronous::default())
        }),
        ("uncompressed", &|| builder().uncompressed(Dense::F32)),
        ("whole updates", &|| builder().bypass(Bypass::Whole)),
        ("momentum", &|| builder().momentum(memory())),
    ];
    for (what, make) in settings {
        let error = make().backend(BackendChoice::Gpu).build(replica);
        let error = error.expect_err("it is forced");
        assert!(
            matches!(&error, Error::Invalid { found, .. } if found.contains(what)),
            "{what}: {error}"
        );
        let mut exchange = make().build(replica).expect("it is left open");
        assert!(exchange.backend().to_string().starts_with("processor"));
        let mut parameters = vec![0.5; LENGTH];
        let given = update(0, 0, LENGTH);
        exchange.step(Some(&given), &mut parameters).expect("steps");
        if what == "asynchronous" {
            exchange.settle(&mut parameters).expect("settles");
        }
    }
    // No snapshots of what has no residual.
    let error = builder()
        .uncompressed(Dense::F32)
        .snapshot_every(1)
        .build(replica);
    assert!(matches!(error, Err(Error::Invalid { .. })));
    tell("done");
}

/// An update whose parts are in both memories is the update that they make.
fn mixed_memories(replica: &Replica) {
    let values = update(0, 0, LENGTH);
    let policy = || Quantile::new(0.05).expect("a density");
    let mut expected = vec![0.5; LENGTH];
    let mut exchange = Exchange::builder(LENGTH)
        .policy(policy())
        .build(replica)
        .expect("agreed");
    exchange.step(Some(&values), &mut expected).expect("steps");
    for letter in ['d', 's'] {
        let mode = Mode::of(letter);
        let mut exchange = mode
            .builder(Exchange::builder(LENGTH).policy(policy()))
            .build(replica)
            .expect("agreed");
        let middle = mode.vector(&values[1000..4000], &[500]);
        let (mut first, mut last) = (values[..1000].to_vec(), values[4000..].to_vec());
        let mut parts = vec![GradRef::Host(&mut first)];
        parts.extend(middle.device_refs());
        parts.push(GradRef::Host(&mut last));
        let mut parameters = vec![0.5; LENGTH];
        exchange.step(Some(&parts), &mut parameters).expect("steps");
        assert_eq!(parameters, expected, "{letter}");
    }
    // All of them in this process's memory, and no device anywhere.
    let mut exchange = Exchange::builder(LENGTH)
        .policy(policy())
        .build(replica)
        .expect("agreed");
    let (mut first, mut last) = (values[..1000].to_vec(), values[1000..].to_vec());
    let parts = [GradRef::Host(&mut first), GradRef::Host(&mut last)];
    let mut parameters = vec![0.5; LENGTH];
    let (left, right) = parameters.split_at_mut(5000);
    let mut onto = [GradRef::Host(left), GradRef::Host(right)];
    exchange.step(Some(&parts), &mut onto).expect("steps");
    assert_eq!(parameters, expected);
    assert_eq!(Mode::of('h').memory, Memory::Host);
    tell("done");
}

#[test]
fn vectors_that_cannot_be_used_are_refused_before_anything_has_happened() {
    if is_here() {
        World::start("misuse", 1).succeed()[0].one("done");
    }
}

#[test]
fn settings_with_which_a_gpu_cannot_encode_are_refused_where_it_is_forced() {
    if is_here() {
        World::start("settings", 1).succeed()[0].one("done");
    }
}

#[test]
fn updates_may_lie_in_both_memories() {
    if is_here() {
        World::start("mixed memories", 1).succeed()[0].one("done");
    }
}
