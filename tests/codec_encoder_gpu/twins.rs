//! Two encoders that are fed the same, one on a GPU and one on the processor.

use super::config::{Config, Policy, Post, kind_of};
use super::plain::{Kind, Random, bits, first_difference, paths, vector};
use super::{Said, buffer_of, compare, context, device::device_with, said, wgpu, write_residual};
use gradring::codec::gpu::GradRef;
use gradring::codec::policy::{Fixed, Magnitude};
use gradring::codec::{
    Backend, CHUNK, Clipping, Dense, Encoder, EncoderBuilder, Given, InResidual, NamedRange, Path,
    Unit, Values,
};
use half::{bf16, f16};

const STEPS: usize = 7;

/// Any settings that a GPU can have.
fn any_config(random: &mut Random) -> Config {
    let mut config = Config::any(random);
    config.memory = None;
    if let Post::Halving = config.post {
        config.post = Post::Clipping(3.0, 2);
    }
    config
}

/// The same encoder on a GPU and on the processor.
fn twins(make: impl Fn() -> EncoderBuilder) -> Option<[Encoder; 2]> {
    let on_gpu = make().gpu(context()?.clone()).build().unwrap();
    Some([on_gpu, make().build().unwrap()])
}

/// One way in which a step's update is handed over.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    F32,
    F16,
    Bf16,
    Parts,
    Device,
    /// Parts, some of them on the device.
    Both,
    InResidual,
}

const HOWS: [How; 7] = [
    How::F32,
    How::F16,
    How::Bf16,
    How::Parts,
    How::Device,
    How::Both,
    How::InResidual,
];

/// Makes the same step on both.
fn step_of_both(
    [on_gpu, on_processor]: [&mut Encoder; 2],
    how: How,
    number: u64,
    update: &[f32],
    random: &mut Random,
) -> [Said; 2] {
    let context = context().expect("there are twins");
    let mut both = |given: Given<'_>| {
        let found = said(on_gpu, number, given).unwrap();
        [found, said(on_processor, number, given).unwrap()]
    };
    match how {
        How::F32 => both(update.into()),
        How::F16 => {
            let halves: Vec<f16> = update.iter().map(|&x| f16::from_f32(x)).collect();
            both((&halves).into())
        }
        How::Bf16 => {
            let halves: Vec<bf16> = update.iter().map(|&x| bf16::from_f32(x)).collect();
            both((&halves).into())
        }
        How::Parts => {
            let halves: Vec<bf16> = update.iter().map(|&x| bf16::from_f32(x)).collect();
            let mut cuts = [0, 1, 2, 3].map(|_| random.index(update.len() + 1));
            cuts.sort_unstable();
            let [a, b, c, d] = cuts;
            let parts = [
                Values::F32(&update[..a]),
                Values::F32(&update[a..b]),
                Values::Bf16(&halves[b..c]),
                Values::F32(&update[c..d]),
                Values::F32(&update[d..]),
            ];
            both((&parts).into())
        }
        How::Device => {
            let buffer = buffer_of(context, 0, update);
            let part = GradRef::Device {
                buffer: &buffer,
                offset: 0,
                len: update.len() as u64,
            };
            let found = said(on_gpu, number, &part).unwrap();
            [found, said(on_processor, number, update).unwrap()]
        }
        How::Both => {
            let mut cuts = [0, 1].map(|_| random.index(update.len() + 1));
            cuts.sort_unstable();
            let [a, b] = cuts;
            let before = [0, 1, 63, 64, 1000].map(|before| before + random.index(3));
            let [x, y] = [random.one_of(&before), random.one_of(&before)];
            let buffers = [
                buffer_of(context, x, &update[..a]),
                buffer_of(context, y, &update[b..]),
            ];
            let mut middle = update[a..b].to_vec();
            let part = |at: usize, before: usize, len: usize| GradRef::Device {
                buffer: &buffers[at],
                offset: 4 * before as u64,
                len: len as u64,
            };
            let parts = [
                part(0, x, a),
                GradRef::Host(&mut middle),
                part(1, y, update.len() - b),
            ];
            let found = said(on_gpu, number, &parts).unwrap();
            [found, said(on_processor, number, update).unwrap()]
        }
        How::InResidual => {
            for (r, u) in on_processor.residual_mut().iter_mut().zip(update) {
                *r += u;
            }
            write_residual(context, on_gpu, on_processor.residual());
            let found = said(on_gpu, number, InResidual).unwrap();
            [found, said(on_processor, number, InResidual).unwrap()]
        }
    }
}

/// Updates about a threshold.
fn updates(random: &mut Random, config: &Config) -> Vec<Vec<f32>> {
    let unit = Unit::nearest(random.one_of(&[0.25, 0.05, 3e-6]), 1.0);
    let one = |random: &mut Random| {
        let kind = kind_of(random);
        vector(random, config.elements(), kind, unit)
    };
    (0..STEPS).map(|_| one(random)).collect()
}

#[test]
fn an_encoder_on_a_gpu_says_what_one_on_the_processor_does() {
    let [mut hits, mut dropped, mut clipped, mut limited, mut dense] = [0; 5];
    for seed in 0..40 {
        let mut random = Random(seed);
        let config = any_config(&mut random);
        let path = paths().nth(seed as usize % paths().count()).unwrap();
        let make = || config.builder().path(path);
        let Some([mut on_gpu, mut on_processor]) = twins(make) else {
            return;
        };
        for (at, update) in updates(&mut random, &config).iter().enumerate() {
            let number = config.first + at as u64;
            let how = HOWS[(seed as usize + at) % HOWS.len()];
            let case = format!("seed {seed}, step {number} as {how:?} of {config:?}");
            let both = [&mut on_gpu, &mut on_processor];
            let [found, expected] = step_of_both(both, how, number, update, &mut random);
            compare(&found, &expected, &case);
            hits += expected.stats.hits;
            dropped += expected.stats.dropped;
            clipped += u64::from(expected.stats.clipped > 0.0);
            dense += expected.stats.dense_chunks;
            let of_limit = |scope: &gradring::codec::ScopeStats| {
                scope.hits > 0 && scope.unit.is_some() && scope.density < 0.25
            };
            limited += expected
                .scopes
                .iter()
                .filter(|scope| of_limit(scope))
                .count() as u64;
        }
    }
    let met = [hits, dropped, clipped, limited, dense];
    assert!(met.iter().all(|&times| times > 20), "{met:?}");
}

#[test]
fn what_is_not_finite_in_a_residual_becomes_zero_and_is_counted_wherever_it_is() {
    let builder = || {
        Encoder::builder(3000)
            .policy(Fixed::new(0.25).unwrap())
            .debug(true)
    };
    let Some([mut on_gpu, mut on_processor]) = twins(builder) else {
        return;
    };
    let context = context().unwrap();
    let mut random = Random(31);
    let unit = Unit::nearest(0.25, 0.25);
    for number in 0..6 {
        let residual = vector(&mut random, 3000, Kind::AnyBits, unit);
        on_processor.residual_mut().copy_from_slice(&residual);
        write_residual(context, &on_gpu, &residual);
        // Not where the residual is not finite: there both could count one, or two.
        let finite = vector(&mut random, 3000, Kind::Ordinary(0.1), unit);
        let given = if number % 2 == 0 {
            Given::InResidual
        } else {
            Given::from(&finite)
        };
        let found = said(&mut on_gpu, number, given).unwrap();
        let expected = said(&mut on_processor, number, given).unwrap();
        assert!(expected.stats.dropped > 5);
        compare(&found, &expected, &format!("step {number}"));
    }
}

#[test]
fn a_vector_of_several_chunks_is_encoded_alike_at_every_density() {
    let elements = 2 * CHUNK + 12_345;
    for (density, post) in [(0.003, None), (0.2, Some(Clipping::new(2.0, 1).unwrap()))] {
        let make = || {
            let builder = Encoder::builder(elements)
                .policy(Policy::Quantile(density, Magnitude::Mean).make())
                .ranges([
                    NamedRange::compressed("weights", elements - 5000),
                    NamedRange::dense("bias", 4000, Dense::F32),
                    NamedRange::dense("norm", 1000, Dense::Bf16),
                ])
                .keep_hits(true);
            match post {
                Some(post) => builder.post_processor(post),
                None => builder,
            }
        };
        let Some([mut on_gpu, mut on_processor]) = twins(make) else {
            return;
        };
        let mut random = Random(77);
        for number in 0..4 {
            let update: Vec<f32> = (0..elements).map(|_| random.laplace(1e-3)).collect();
            let how = [How::Device, How::F32, How::Both, How::InResidual][number as usize];
            let both = [&mut on_gpu, &mut on_processor];
            let [found, expected] = step_of_both(both, how, number, &update, &mut random);
            compare(&found, &expected, &format!("step {number} at {density}"));
            assert!(expected.stats.hits as f64 > density * elements as f64 * 0.7);
        }
    }
}

#[test]
fn what_one_has_saved_the_other_goes_on_from() {
    for seed in 300..312 {
        let mut random = Random(seed);
        let config = any_config(&mut random);
        let Some([mut on_gpu, mut on_processor]) = twins(|| config.builder()) else {
            return;
        };
        for (at, update) in updates(&mut random, &config).iter().enumerate() {
            let number = config.first + at as u64;
            let found = said(&mut on_gpu, number, update).unwrap();
            let expected = said(&mut on_processor, number, update).unwrap();
            compare(&found, &expected, &format!("seed {seed}, step {at}"));
            if at % 2 == 1 {
                // Each goes on where the other was, in an encoder of its own.
                let [mut gpu_anew, mut processor_anew] = twins(|| config.builder()).unwrap();
                for (from, to) in [
                    (&on_gpu, &mut processor_anew),
                    (&on_processor, &mut gpu_anew),
                ] {
                    to.restore_scopes(&from.scope_states()).unwrap();
                    let residual = from.download_residual().unwrap();
                    to.restore_vectors(&residual, None).unwrap();
                    let restored = to.download_residual().unwrap();
                    assert_eq!(bits(&restored), bits(&residual));
                }
                (on_gpu, on_processor) = (gpu_anew, processor_anew);
            }
        }
    }
}

#[test]
fn an_encoder_on_a_gpu_says_where_it_is_and_has_no_residual_here() {
    let Some([mut on_gpu, mut on_processor]) = twins(|| Encoder::builder(100).path(Path::Scalar))
    else {
        return;
    };
    let adapter = context().unwrap().name();
    assert_eq!(on_gpu.backend(), Backend::Gpu { adapter });
    assert_eq!(on_processor.backend(), Backend::Processor(Path::Scalar));
    assert_eq!((on_gpu.elements(), on_gpu.chunks()), (100, 1));
    assert!(on_gpu.residual().is_empty() && on_gpu.residual_mut().is_empty());
    assert!(on_gpu.velocity().is_none() && on_gpu.fell_back().is_none());
    let parts = on_gpu.residual_on_device();
    assert_eq!(parts.iter().map(GradRef::len).sum::<usize>(), 100);
    assert!(on_processor.residual_on_device().is_empty());
    assert_eq!(on_processor.residual_mut().len(), 100);
    assert_eq!(on_gpu.download_residual().unwrap(), [0.0; 100]);
    assert!(on_gpu.payload().is_empty());
}

#[test]
fn vectors_of_nothing_and_of_one_element_make_steps() {
    for elements in [0, 1] {
        let make = || Encoder::builder(elements).policy(Fixed::new(0.25).unwrap());
        let Some([mut on_gpu, mut on_processor]) = twins(make) else {
            return;
        };
        for number in 0..3 {
            let update = vec![0.2f32; elements];
            let found = said(&mut on_gpu, number, &update).unwrap();
            let expected = said(&mut on_processor, number, &update).unwrap();
            compare(&found, &expected, &format!("{elements} elements"));
        }
    }
}

#[test]
fn a_residual_in_several_buffers_is_one_vector() {
    let limits = wgpu::Limits {
        max_storage_buffer_binding_size: 1 << 24,
        max_buffer_size: 1 << 24,
        ..wgpu::Limits::default()
    };
    let Some(context) = device_with(wgpu::Features::empty(), limits) else {
        return;
    };
    let elements = (1 << 22) + 12_345;
    let make = || {
        Encoder::builder(elements)
            .policy(Policy::Quantile(0.01, Magnitude::Mean).make())
            .threads(2)
    };
    let mut on_gpu = make().gpu(context.clone()).build().unwrap();
    let mut on_processor = make().build().unwrap();
    assert!(on_gpu.residual_on_device().len() > 1);
    let mut random = Random(5);
    let update: Vec<f32> = (0..elements).map(|_| random.laplace(1.0)).collect();
    let found = said(&mut on_gpu, 0, &update).unwrap();
    let expected = said(&mut on_processor, 0, &update).unwrap();
    compare(&found, &expected, "an update");
    for (r, u) in on_processor.residual_mut().iter_mut().zip(&update) {
        *r += u;
    }
    write_residual(&context, &on_gpu, on_processor.residual());
    let found = said(&mut on_gpu, 1, InResidual).unwrap();
    let expected = said(&mut on_processor, 1, InResidual).unwrap();
    compare(&found, &expected, "in the residual");
    on_gpu.restore_vectors(&expected.residual, None).unwrap();
    let restored = on_gpu.download_residual().unwrap();
    assert_eq!(first_difference(&restored, &expected.residual), None);
}

#[test]
fn an_encoder_can_go_to_another_thread() {
    fn goes<T: Send>() {}
    goes::<Encoder>();
}

#[test]
fn commands_that_make_the_update_come_before_the_step() {
    let make = || Encoder::builder(500).policy(Policy::Quantile(0.1, Magnitude::Mean).make());
    let Some([mut on_gpu, mut on_processor]) = twins(make) else {
        return;
    };
    let context = context().unwrap();
    let mut random = Random(9);
    let update = buffer_of(context, 0, &[0.0; 500]);
    for number in 0..4 {
        let numbers: Vec<f32> = (0..500).map(|_| random.laplace(1.0)).collect();
        // The copy is only recorded here.
        let made = buffer_of(context, 0, &numbers);
        for half in [0, 1000] {
            let mut commands = context.device().create_command_encoder(&Default::default());
            commands.copy_buffer_to_buffer(&made, half, &update, half, 1000);
            on_gpu.record_after(commands).unwrap();
        }
        let found = said(&mut on_gpu, number, &GradRef::device(&update)).unwrap();
        let expected = said(&mut on_processor, number, &numbers).unwrap();
        compare(&found, &expected, &format!("step {number}"));
    }
}

#[test]
fn a_step_waits_for_its_sample_and_for_its_message_however_many_parts_its_update_has() {
    // Nothing else waits for it.
    let Some(context) = device_with(wgpu::Features::empty(), wgpu::Limits::default()) else {
        return;
    };
    let (parts, length) = (1000, 3);
    let mut encoder = Encoder::builder(parts * length)
        .gpu(context.clone())
        .build()
        .unwrap();
    let update: Vec<f32> = (1..=parts * length).map(|at| 1.0 / at as f32).collect();
    let buffer = buffer_of(&context, 0, &update);
    let part = |number| GradRef::Device {
        buffer: &buffer,
        offset: (4 * number * length) as u64,
        len: length as u64,
    };
    let update: Vec<GradRef<'_>> = (0..parts).map(part).collect();
    for number in 0..3 {
        let before = context.waits();
        encoder.begin(number, &update).unwrap();
        assert_eq!(context.waits() - before, 2, "step {number}");
        for visit in 0..encoder.chunks() {
            encoder.encode(visit, &update).unwrap();
        }
        encoder.end().unwrap();
    }
}
