//! The kernels against the network of the other examples, which runs on the processor.

use crate::common::data::{Dataset, Samples};
use crate::common::mlp::Mlp;
use crate::common::momentum;
use crate::common::random::Random;
use crate::device;
use crate::digits;
use crate::gpu::Gpu;
use crate::model::Model;
use std::path::Path;

const RATE: f32 = 0.05;
const BATCH: usize = 64;

fn data() -> Dataset {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data");
    digits::load(Path::new(directory)).expect("the project's own data")
}

/// Parameters of which none is 0, the biases least of all.
fn parameters(shape: Mlp) -> Vec<f32> {
    let mut random = Random::new(7, 7);
    let count = shape.parameters();
    (0..count).map(|_| random.symmetric(0.3)).collect()
}

/// Trains a step on the device.
fn step(gpu: &Gpu, model: &Model, samples: &Samples, batch: &[usize], weight: f32) {
    let commands = model.train(samples, batch, weight, RATE);
    gpu.queue.submit([commands.finish()]);
}

/// The largest difference, in parts of the largest value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    assert!(largest > 0.0);
    let pairs = found.iter().zip(expected);
    // A number that is none is no largest one: it must not be left out.
    pairs.fold(0.0_f32, |most, (a, b)| match (a - b).abs() / largest {
        apart if apart <= most => most,
        apart => apart,
    })
}

#[test]
fn the_gradient_is_that_of_the_network_on_the_processor() {
    let Some(gpu) = device() else { return };
    let data = data();
    for hidden in [1, 32, 100] {
        let shape = Mlp {
            inputs: digits::WIDTH,
            hidden,
        };
        let model = Model::new(&gpu, shape, 48);
        let parameters = parameters(shape);
        assert_eq!(model.parameters.elements(), parameters.len());
        model
            .parameters
            .write(&parameters)
            .expect("the device works");
        let mut expected = vec![0.0; parameters.len()];
        let mut room = shape.workspace();
        let (mut losses, mut seen) = (0.0, 0);
        // A short batch after a long one: the rows of the long one are still there.
        for batch in [0..48, 100..101, 200..216] {
            let batch: Vec<usize> = batch.collect();
            let weight = 1.0 / batch.len() as f32;
            step(&gpu, &model, &data.train, &batch, weight);
            losses += shape.gradient(
                &parameters,
                &data.train,
                &batch,
                weight,
                &mut expected,
                &mut room,
            );
            seen += batch.len();
            let found = model.gradient.read().expect("a read-back");
            let apart = difference(&found, &expected);
            assert!(apart < 1e-5, "{hidden} units: {apart}");
        }
        let tally = model.trained.read().expect("a read-back");
        assert!((f64::from(tally[0]) / losses - 1.0).abs() < 1e-5);
        assert_eq!(tally[2] as usize, seen);
    }
}

#[test]
fn the_update_is_that_of_the_optimizer_on_the_processor() {
    let Some(gpu) = device() else { return };
    let (data, shape) = (data(), crate::runs::SHAPE);
    let model = Model::new(&gpu, shape, 16);
    let parameters = parameters(shape);
    model
        .parameters
        .write(&parameters)
        .expect("the device works");
    let mut velocity = vec![0.0; parameters.len()];
    for first in [0, 16, 32] {
        let batch: Vec<usize> = (first..first + 16).collect();
        step(&gpu, &model, &data.train, &batch, 1.0 / 16.0);
        let mut expected = model.gradient.read().expect("a read-back");
        momentum::turn_into_update(&mut velocity, &mut expected, RATE);
        let found = model.update.read().expect("a read-back");
        let apart = difference(&found, &expected);
        assert!(apart < 1e-6, "{apart}");
        assert_eq!(
            model.parameters.read().expect("a read-back"),
            parameters,
            "only an exchange changes them"
        );
    }
}

#[test]
fn held_out_samples_are_judged_as_on_the_processor() {
    let Some(gpu) = device() else { return };
    let (data, shape) = (data(), crate::runs::SHAPE);
    let model = Model::new(&gpu, shape, BATCH);
    let parameters = parameters(shape);
    model
        .parameters
        .write(&parameters)
        .expect("the device works");
    let all: Vec<usize> = (0..data.held_out.len()).collect();
    for batch in all.chunks(BATCH) {
        model.judge(&data.held_out, batch);
    }
    let found = model.judged.read().expect("a read-back");

    let mut room = shape.workspace();
    let (mut loss, mut right) = (0.0, 0);
    for &index in &all {
        let (own, is_right) = shape.judge(&parameters, &data.held_out, index, &mut room);
        loss += own;
        right += usize::from(is_right);
    }
    assert!((f64::from(found[0]) / loss - 1.0).abs() < 1e-5);
    assert_eq!(found[1..], [right as f32, all.len() as f32]);
    let trained = model.trained.read().expect("a read-back");
    assert_eq!(trained, [0.0; 3], "nothing was trained on");
}
