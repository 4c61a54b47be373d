//! Devices that are lost: what is an error, what is kept, and what goes on on the processor.

use super::config::Policy;
use super::plain::{Random, bits};
use super::{Said, Whose, buffer_of, compare, new_context, said, write_residual};
use gradring::codec::gpu::{GpuContext, GpuError, GradRef};
use gradring::codec::policy::Magnitude;
use gradring::codec::{
    Backend, Clipping, Dense, EncodeError, Encoder, EncoderBuilder, EncoderError, InResidual,
    NamedRange, Path,
};
use std::time::{Duration, Instant};

const ELEMENTS: usize = 5000;

/// One whose policy wants to see a sample, so that the loss is met there, and one where it is met by the encoding.
const POLICIES: [Policy; 2] = [
    Policy::Quantile(0.02, Magnitude::Mean),
    Policy::Adaptive(0.01, 0.05, Some(80), Magnitude::Mean),
];

fn builder(policy: Policy) -> EncoderBuilder {
    Encoder::builder(ELEMENTS)
        .path(Path::Scalar)
        .ranges([
            NamedRange::compressed("weights", ELEMENTS - 1000),
            NamedRange::compressed("more", 900).with_policy(Policy::TargetDensity(0.05).make()),
            NamedRange::dense("bias", 100, Dense::Bf16),
        ])
        .policy(policy.make())
        .post_processor(Clipping::new(4.0, 3).unwrap())
        .keep_hits(true)
        .debug(true)
}

fn updates(seed: u64) -> impl Iterator<Item = Vec<f32>> {
    let mut random = Random(seed);
    std::iter::repeat_with(move || (0..ELEMENTS).map(|_| random.laplace(0.1)).collect())
}

/// Takes the device away, as a driver does.
fn destroy(context: &GpuContext) {
    context.device().destroy();
}

fn is_lost(error: &EncodeError) -> bool {
    matches!(error, EncodeError::Gpu(GpuError::Lost { .. }))
}

/// An encoder on the processor that goes on from these numbers.
fn from(policy: Policy, residual: &[f32], states: &Said) -> Encoder {
    let mut encoder = builder(policy).build().unwrap();
    encoder.restore_scopes(&states.states).unwrap();
    encoder.restore_vectors(residual, None).unwrap();
    encoder
}

#[test]
fn a_lost_device_is_an_error_and_the_last_copy_of_the_residual_is_left() {
    let whose = [Whose::Own, Whose::Callers, Whose::Own, Whose::Callers];
    let settings = whose.into_iter().zip([0, 1, 3, 0]);
    for ((whose, every), policy) in settings.zip(POLICIES.iter().cycle()) {
        let Some(context) = new_context(whose) else {
            return;
        };
        let mut encoder = builder(*policy)
            .gpu(context.clone())
            .snapshot_every(every)
            .build()
            .unwrap();
        let (mut updates, mut residuals) = (updates(1), vec![vec![0.0; ELEMENTS]]);
        for number in 0..5 {
            let update = updates.next().unwrap();
            residuals.push(said(&mut encoder, number, &update).unwrap().residual);
        }
        let states = encoder.scope_states();
        destroy(&context);
        let update = updates.next().unwrap();
        for _ in 0..3 {
            let error = encoder.begin(5, &update).unwrap_err();
            assert!(is_lost(&error), "{error}");
            assert_eq!(encoder.end(), Err(EncodeError::NotBegun));
        }
        assert!(matches!(encoder.backend(), Backend::Gpu { .. }));
        assert_eq!(encoder.fell_back(), None);
        assert_eq!(encoder.scope_states().len(), states.len());
        match every {
            0 => assert!(is_lost(&encoder.download_residual().unwrap_err())),
            _ => {
                let kept = encoder.download_residual().unwrap();
                let expected = &residuals[5 / every as usize * every as usize];
                assert_eq!(bits(&kept), bits(expected), "every {every}");
            }
        }
        assert!(encoder.restore_vectors(&residuals[1], None).is_err());
    }
}

#[test]
fn a_copy_after_each_step_loses_nothing() {
    for (policy, whose) in POLICIES.into_iter().zip([Whose::Callers, Whose::Own]) {
        let Some(context) = new_context(whose) else {
            return;
        };
        let mut encoder = builder(policy)
            .gpu(context.clone())
            .snapshot_every(1)
            .fall_back(true)
            .threads(2)
            .build()
            .unwrap();
        let mut expected = builder(policy).build().unwrap();
        for (number, update) in (0..9).zip(updates(2)) {
            if number == 5 {
                destroy(&context);
            }
            let found = said(&mut encoder, number, &update).unwrap();
            let wanted = said(&mut expected, number, &update).unwrap();
            compare(&found, &wanted, &format!("{policy:?}, step {number}"));
            let is_here = encoder.backend() == Backend::Processor(Path::Scalar);
            assert_eq!(is_here, number >= 5);
        }
        assert!(matches!(encoder.fell_back(), Some(GpuError::Lost { .. })));
        assert_eq!(encoder.residual().len(), ELEMENTS);
    }
}

#[test]
fn copies_after_every_few_steps_lose_what_the_steps_since_have_changed() {
    for policy in POLICIES {
        for (every, lost_at) in [(3, 7), (4, 4), (3, 2), (0, 4)] {
            let whose = if lost_at == 4 {
                Whose::Callers
            } else {
                Whose::Own
            };
            let Some(context) = new_context(whose) else {
                return;
            };
            let mut encoder = builder(policy)
                .gpu(context.clone())
                .snapshot_every(every)
                .fall_back(true)
                .build()
                .unwrap();
            let mut updates = updates(3);
            let (mut kept, mut last) = (vec![0.0; ELEMENTS], None);
            for number in 0..lost_at {
                let update = updates.next().unwrap();
                let step = said(&mut encoder, number, &update).unwrap();
                if every > 0 && (number + 1) % every == 0 {
                    kept.clone_from(&step.residual);
                }
                last = Some(step);
            }
            destroy(&context);
            let mut expected = from(policy, &kept, &last.unwrap());
            for number in lost_at..lost_at + 4 {
                let update = updates.next().unwrap();
                let found = said(&mut encoder, number, &update).unwrap();
                let wanted = said(&mut expected, number, &update).unwrap();
                let case = format!("{policy:?}, every {every}, lost at {lost_at}, step {number}");
                compare(&found, &wanted, &case);
            }
            assert!(encoder.fell_back().is_some());
        }
    }
}

#[test]
fn a_device_that_is_lost_before_the_first_step_has_nothing_to_lose() {
    for (policy, whose) in POLICIES.into_iter().zip([Whose::Callers, Whose::Own]) {
        let Some(context) = new_context(whose) else {
            return;
        };
        let on_gpu = |falls_back| {
            let builder = builder(policy).gpu(context.clone());
            builder.fall_back(falls_back)
        };
        let [mut one, mut other] = [false, true].map(|yes| on_gpu(yes).build().unwrap());
        destroy(&context);
        let mut expected = builder(policy).build().unwrap();
        for (number, update) in (0..3).zip(updates(4)) {
            let error = one.begin(number, &update).unwrap_err();
            assert!(is_lost(&error), "{error}");
            let found = said(&mut other, number, &update).unwrap();
            let wanted = said(&mut expected, number, &update).unwrap();
            compare(&found, &wanted, &format!("step {number}"));
        }
        // Nor can one be made there any more.
        let refused = on_gpu(false).build().err();
        assert!(
            matches!(refused, Some(EncoderError::Gpu(GpuError::Lost { .. }))),
            "{refused:?}"
        );
        let made = on_gpu(true).build().unwrap();
        assert_eq!(made.backend(), Backend::Processor(Path::Scalar));
        assert!(made.fell_back().is_some());
    }
}

#[test]
fn a_step_whose_update_is_lost_too_is_an_error_and_the_next_is_made_on_the_processor() {
    for policy in POLICIES {
        for in_place in [false, true] {
            let whose = if in_place { Whose::Callers } else { Whose::Own };
            let Some(context) = new_context(whose) else {
                return;
            };
            let mut encoder = builder(policy)
                .gpu(context.clone())
                .snapshot_every(2)
                .fall_back(true)
                .build()
                .unwrap();
            let mut updates = updates(5);
            let mut last = None;
            for number in 0..4 {
                let update = updates.next().unwrap();
                last = Some(said(&mut encoder, number, &update).unwrap());
            }
            let last = last.unwrap();
            let update = updates.next().unwrap();
            let buffer = buffer_of(&context, 0, &update);
            if in_place {
                write_residual(&context, &encoder, &update);
            }
            destroy(&context);
            let refused = match in_place {
                true => encoder.begin(4, InResidual),
                false => encoder.begin(4, &GradRef::device(&buffer)),
            };
            assert!(is_lost(&refused.unwrap_err()));
            assert_eq!(encoder.backend(), Backend::Processor(Path::Scalar));
            assert_eq!(bits(encoder.residual()), bits(&last.residual));
            let again = encoder.begin(4, &GradRef::device(&buffer));
            assert_eq!(again, Err(EncodeError::OnDevice));

            let mut expected = from(policy, &last.residual, &last);
            for number in 4..7 {
                let update = updates.next().unwrap();
                let found = said(&mut encoder, number, &update).unwrap();
                let wanted = said(&mut expected, number, &update).unwrap();
                assert_eq!(found.messages.len(), wanted.messages.len());
                // A policy that has been asked for the lost step may have taken one more.
                if matches!(policy, Policy::Quantile(..)) {
                    assert_eq!(found.messages[0], wanted.messages[0], "step {number}");
                }
            }
        }
    }
}

#[test]
fn a_step_that_has_begun_ends_without_the_device() {
    let Some(context) = new_context(Whose::Own) else {
        return;
    };
    let mut encoder = builder(POLICIES[0]).gpu(context.clone()).build().unwrap();
    let mut expected = builder(POLICIES[0]).build().unwrap();
    let update = updates(6).next().unwrap();
    let wanted = said(&mut expected, 0, &update).unwrap();
    encoder.begin(0, &update).unwrap();
    destroy(&context);
    for (visit, (message, payload)) in wanted.messages.iter().enumerate() {
        assert_eq!(encoder.encode(visit, &update).unwrap(), *message);
        assert_eq!(encoder.payload(), payload);
    }
    encoder.end().unwrap();
    assert_eq!(encoder.scope_states(), wanted.states);
    assert!(is_lost(&encoder.begin(1, &update).unwrap_err()));
}

#[test]
fn a_residual_that_is_restored_is_not_lost_with_the_device() {
    for falls_back in [false, true] {
        let Some(context) = new_context(Whose::Own) else {
            return;
        };
        let mut encoder = builder(POLICIES[0])
            .gpu(context.clone())
            .snapshot_every(100)
            .fall_back(falls_back)
            .build()
            .unwrap();
        let mut updates = updates(7);
        let residual = said(&mut encoder, 0, &updates.next().unwrap())
            .unwrap()
            .residual;
        said(&mut encoder, 1, &updates.next().unwrap()).unwrap();
        encoder.restore_vectors(&residual, None).unwrap();
        destroy(&context);
        assert_eq!(bits(&encoder.download_residual().unwrap()), bits(&residual));
        let half: Vec<f32> = residual.iter().map(|r| r / 2.0).collect();
        let restored = encoder.restore_vectors(&half, None);
        assert_eq!(restored.is_ok(), falls_back, "{restored:?}");
        let expected = if falls_back { &half } else { &residual };
        let found = encoder.download_residual().unwrap();
        assert_eq!(bits(&found), bits(expected));
        assert_eq!(encoder.fell_back().is_some(), falls_back);
    }
}

#[test]
fn a_device_that_does_not_end_in_time_is_given_up() {
    let Some(context) = new_context(Whose::Own) else {
        return;
    };
    let elements = 1 << 20;
    let on_gpu = |context: GpuContext| Encoder::builder(elements).gpu(context);
    let mut encoder = on_gpu(context.clone()).build().unwrap();
    let mut other = on_gpu(context.clone()).fall_back(true).build().unwrap();
    let update = vec![0.5f32; elements];
    // Nobody encodes a million elements within a nanosecond.
    let context = context.timeout(Duration::from_nanos(1));
    let began = Instant::now();
    let error = encoder.begin(0, &update).unwrap_err();
    assert!(
        matches!(&error, EncodeError::Gpu(error) if error.is_final()),
        "{error}"
    );
    let found = said(&mut other, 0, &update).unwrap();
    let mut expected = Encoder::builder(elements).build().unwrap();
    let wanted = said(&mut expected, 0, &update).unwrap();
    compare(&found, &wanted, "after a timeout");
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(context);
}
