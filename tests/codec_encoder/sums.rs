//! What a post-processor takes and what a momentum memory makes, where the numbers can be worked out by hand.

use super::step;
use gradring::codec::policy::Fixed;
use gradring::codec::{
    Clipping, Dense, Encoder, EncoderBuilder, MomentumMemory, NamedRange, PostInput, PostProcessor,
};

fn builder(elements: usize) -> EncoderBuilder {
    Encoder::builder(elements)
        .policy(Fixed::new(1.0).unwrap())
        .keep_hits(true)
}

#[test]
fn clipping_takes_what_is_past_the_bound_in_its_steps_only() {
    let mut encoder = builder(5)
        .ranges([
            NamedRange::compressed("clipped", 4),
            NamedRange::dense("left alone", 1, Dense::F32),
        ])
        .post_processor(Clipping::new(2.0, 2).unwrap())
        .build()
        .unwrap();
    let update = [5.0, -5.0, 0.5, 0.0, 100.0];
    step(&mut encoder, 0, (&update).into());
    assert_eq!(encoder.residual(), [4.0, -4.0, 0.5, 0.0, 0.0]);
    assert_eq!(encoder.stats().clipped, 0.0);
    step(&mut encoder, 1, (&[0.0; 5]).into());
    assert_eq!(encoder.residual(), [3.0, -3.0, 0.5, 0.0, 0.0]);
    step(&mut encoder, 2, (&update).into());
    assert_eq!(encoder.residual(), [2.0, -2.0, 0.0, 0.0, 0.0]);
    // 3 + 5 - 1 is 7, of which 2 stay, on both sides.
    assert_eq!(encoder.stats().clipped, 10.0);
    assert_eq!(encoder.stats().residual_max, 2.0);
    assert_eq!(encoder.stats().residual_l1, 4.0);
}

/// Forgets everything that was not sent.
#[derive(Debug)]
struct Forget;

impl PostProcessor for Forget {
    fn kind(&self) -> &'static str {
        "Forget"
    }

    fn process(&self, input: &PostInput, residual: &mut [f32]) -> Option<f64> {
        assert_eq!((input.step, input.unit.v()), (7, 1.0));
        let taken = residual.iter().map(|r| f64::from(r.abs())).sum();
        residual.fill(0.0);
        Some(taken)
    }
}

#[test]
fn what_a_processor_of_ones_own_took_and_left_is_in_the_statistics() {
    let mut encoder = builder(4)
        .ranges([
            NamedRange::dense("rounded", 1, Dense::Bf16),
            NamedRange::compressed("forgotten", 3),
        ])
        .post_processor(Forget)
        .build()
        .unwrap();
    let odd = 1.0 + 1.0 / 512.0;
    step(&mut encoder, 7, (&[odd, 3.0, -0.5, 0.25]).into());
    // Of a dense range what was rounded off stays: it is left out.
    assert_eq!(encoder.residual(), [1.0 / 512.0, 0.0, 0.0, 0.0]);
    let stats = encoder.stats();
    assert_eq!((stats.hits, stats.clipped), (1, 2.75));
    assert_eq!(stats.residual_max, 1.0 / 512.0);
    assert_eq!(stats.residual_l1, 1.0 / 512.0);
}

#[test]
fn a_velocity_starts_anew_where_it_was_sent_and_goes_on_where_not() {
    let mut encoder = builder(4)
        .ranges([
            NamedRange::compressed("sent", 3),
            NamedRange::dense("whole", 1, Dense::F32),
        ])
        .momentum(MomentumMemory::new(0.5).unwrap(), 1)
        .build()
        .unwrap();
    let gradient = [1.0, 0.25, 0.0, 1.0];
    // Velocities 1, 0.25, 0 and 1: the first is a hit, the last is sent as it is.
    let messages = step(&mut encoder, 0, (&gradient).into());
    assert_eq!(encoder.hits(), [0]);
    assert_eq!(encoder.residual(), [0.0, 0.25, 0.0, 0.0]);
    assert_eq!(messages[1].1, 1f32.to_le_bytes());
    // 1 again; 0.375; 0; the dense one goes on to 1.5.
    let messages = step(&mut encoder, 1, (&gradient).into());
    assert_eq!(encoder.hits(), [0]);
    assert_eq!(encoder.residual(), [0.0, 0.625, 0.0, 0.0]);
    assert_eq!(messages[0].1, 1.5f32.to_le_bytes());
    // Without a gradient: half of 0.375 reaches 0.8125, then 0.90625: never a hit, and the last one fades.
    for (number, r) in [(2, 0.8125), (3, 0.90625)] {
        let messages = step(&mut encoder, number, (&[0.0; 4]).into());
        assert_eq!((encoder.hits().len(), encoder.residual()[1]), (0, r));
        let fading = if number == 2 { 0.75f32 } else { 0.375 };
        assert!(
            messages
                .iter()
                .any(|(_, payload)| *payload == fading.to_le_bytes())
        );
    }
}

#[test]
fn gradients_of_too_large_a_norm_are_scaled_to_this_replicas_share() {
    let memory = MomentumMemory::new(0.0)
        .unwrap()
        .with_local_clipping(2.0)
        .unwrap();
    let mut encoder = builder(2).momentum(memory, 4).build().unwrap();
    // A norm of 5 where 2 / sqrt(4) is allowed.
    step(&mut encoder, 0, (&[3.0, -4.0]).into());
    for (r, expected) in encoder.residual().iter().zip([0.6, -0.8]) {
        assert!((r - expected).abs() < 1e-6, "{r} is not {expected}");
    }
    let mut encoder = builder(2).momentum(memory, 1).build().unwrap();
    step(&mut encoder, 0, (&[0.6, -0.8]).into());
    assert_eq!(encoder.residual(), [0.6, -0.8]);
}

#[test]
fn gradients_that_are_not_finite_are_counted_once() {
    let memory = MomentumMemory::new(0.5)
        .unwrap()
        .with_local_clipping(1e9)
        .unwrap();
    for threads in [1, 2] {
        let named = |at: usize| NamedRange::compressed(format!("{at}"), 2);
        let mut encoder = builder(6)
            .ranges((0..3).map(named))
            .momentum(memory, 2)
            .threads(threads)
            .build()
            .unwrap();
        step(&mut encoder, 0, (&[0.5; 6]).into());
        let gradient = [f32::NAN, 0.5, f32::INFINITY, f32::NEG_INFINITY, 0.5, 0.5];
        step(&mut encoder, 1, (&gradient).into());
        assert_eq!(encoder.stats().dropped, 3);
        // Velocities went on without them: a residual of 0.5 and half of 0.5, or 0.75 with the gradient's 0.5.
        assert_eq!(encoder.residual(), [0.75, 0.25, 0.75, 0.75, 0.25, 0.25]);
        // In the order of visits: from the second chunk on.
        assert_eq!(encoder.hits(), [4, 5, 1]);
    }
}
