//! What thresholds come to in whole encoders: of many ranges, of short vectors, of updates that are mostly 0.

use gradring::codec::policy::{PolicyInput, ThresholdPolicy};
use gradring::codec::{Dense, Encoder, NamedRange, Path, Unit};
use std::sync::{Arc, Mutex};

/// A number that depends on its argument alone; heavy-tailed, as updates are.
fn noise(i: usize) -> f32 {
    let mut x = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for _ in 0..2 {
        x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    }
    let uniform = (x >> 40) as f32 / (1 << 24) as f32 - 0.5;
    1e-2 * uniform / (1.05 - 2.0 * uniform.abs())
}

fn step(encoder: &mut Encoder, step: u64, update: &[f32]) {
    encoder.begin(step, update).expect("its length");
    for visit in 0..encoder.chunks() {
        encoder.encode(visit, update).expect("in turn");
    }
    encoder.end().expect("all were visited");
}

/// Keeps the samples that it is given.
#[derive(Clone, Debug, Default)]
struct Keeps {
    size: usize,
    sample: Arc<Mutex<Vec<f32>>>,
}

impl ThresholdPolicy for Keeps {
    fn kind(&self) -> &'static str {
        "Keeps"
    }

    fn sample_size(&self, _: usize, _: u64) -> usize {
        self.size
    }

    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        *self.sample.lock().unwrap() = input.sample.to_vec();
        Unit::nearest(1.0, 1.0)
    }

    fn limit(&self, _: usize, _: u64) -> Option<usize> {
        Some(0)
    }
}

#[test]
fn ranges_that_share_a_threshold_are_sampled_as_if_they_stood_one_behind_the_other() {
    let ranges = || {
        (0..601).map(|i| match i {
            0 => NamedRange::compressed("large", 100_000),
            i if i % 2 == 1 => NamedRange::dense("between", 1, Dense::F32),
            _ => NamedRange::compressed("small", 30),
        })
    };
    let total = 100_000 + 300 * 31;
    let update: Vec<f32> = (0..total).map(noise).collect();
    let compressed = |i: usize| i < 100_000 || !(i - 100_000).is_multiple_of(31);
    let end_to_end: Vec<f32> = (0..total)
        .filter(|&i| compressed(i))
        .map(|i| update[i])
        .collect();
    for size in [1, 640, 5_000, usize::MAX] {
        let policy = Keeps {
            size,
            ..Keeps::default()
        };
        let sample = Arc::clone(&policy.sample);
        let mut encoder = Encoder::builder(total)
            .policy(policy)
            .ranges(ranges())
            .build()
            .expect("ranges that cover the vector");
        encoder.begin(7, &update).expect("its length");
        let mut expected = Vec::new();
        let residual = vec![0.0; end_to_end.len()];
        Path::Scalar
            .magnitudes(
                &residual,
                &end_to_end,
                size.min(end_to_end.len()),
                7,
                &mut expected,
            )
            .expect("one length");
        assert_eq!(*sample.lock().unwrap(), expected, "of {size}");
    }
}

#[test]
fn many_small_ranges_do_not_change_what_a_large_one_sends() {
    const LARGE: usize = 1 << 20;
    let ranges = (0..600).map(|i| match i {
        0 => NamedRange::compressed("large", LARGE),
        i if i % 2 == 1 => NamedRange::dense("between", 1, Dense::F32),
        _ => NamedRange::compressed("small", 60),
    });
    let total = LARGE + 300 + 299 * 60;
    let mut encoder = Encoder::builder(total)
        .ranges(ranges)
        .build()
        .expect("ranges that cover the vector");
    for s in 0..10 {
        // What is small in number is large in size.
        let scale = |i: usize| if i < LARGE { 1.0 } else { 10.0 };
        let update: Vec<f32> = (0..total)
            .map(|i| scale(i) * noise(i + s * total))
            .collect();
        step(&mut encoder, s as u64, &update);
        let density = encoder.scopes().next().expect("one threshold").density;
        assert!((0.0075..0.0125).contains(&density), "step {s}: {density}");
    }
}

#[test]
fn short_vectors_and_updates_that_are_mostly_0_are_sent_by_the_default_policy() {
    for elements in [1_usize, 2, 5, 10, 32, 33, 100, 320, 1000, 10_000] {
        for zeros in [
            0,
            1.min(elements - 1),
            elements / 2,
            elements.saturating_sub(5),
        ] {
            let mut encoder = Encoder::builder(elements).build().expect("a length");
            let update: Vec<f32> = (0..elements)
                .map(|i| if i < zeros { 0.0 } else { noise(i).abs() })
                .collect();
            let (mut sent, mut given) = (0.0, 0.0);
            for s in 0..200 {
                step(&mut encoder, s, &update);
                sent += encoder.stats().l1_sent;
                given += update.iter().map(|&u| f64::from(u)).sum::<f64>();
            }
            let share = sent / given;
            assert!(
                share > 0.75,
                "{elements} elements, {zeros} of them 0: {share:.3}"
            );
        }
    }
}
