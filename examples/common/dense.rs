//! What the replicas are compared with: one process, the same total batch, no compression.

use super::data::{Dataset, Samples};
use super::mlp::{Mlp, Workspace};
use super::momentum;
use super::progress::Progress;
use super::schedule::Schedule;
use super::trained::Epoch;

/// Trains from the same first parameters on the same batches, and returns the accuracy on held-out data.
pub(crate) fn train(
    model: Mlp,
    schedule: &Schedule,
    rate: f32,
    data: &Dataset,
) -> Result<f64, gradring::Error> {
    let mut parameters = model.initial(schedule.seed);
    let mut velocity = vec![0.0; parameters.len()];
    let mut update = vec![0.0; parameters.len()];
    let mut room = model.workspace();
    let progress = Progress::here("dense", schedule.total());
    let (mut seen, mut accuracy) = (0, f64::NAN);
    for epoch in 0..schedule.epochs {
        let mut loss = 0.0;
        for batch in schedule.sampler().pass(epoch, 0, 1)? {
            let weight = 1.0 / batch.len() as f32;
            loss += model.gradient(
                &parameters,
                &data.train,
                &batch,
                weight,
                &mut update,
                &mut room,
            );
            momentum::turn_into_update(&mut velocity, &mut update, schedule.rate(rate, seen));
            for (parameter, update) in parameters.iter_mut().zip(&update) {
                *parameter -= update;
            }
            seen += batch.len() as u64;
            progress.seen(seen);
        }
        let (validation_loss, right) = judge_all(model, &parameters, &data.held_out, &mut room);
        accuracy = right;
        let reached = Epoch {
            loss: loss / schedule.samples as f64,
            validation_loss,
            accuracy,
        };
        progress.epoch(epoch + 1, schedule.epochs, &reached);
    }
    progress.end();
    Ok(accuracy)
}

/// The mean loss, and the part that is classified right.
fn judge_all(
    model: Mlp,
    parameters: &[f32],
    samples: &Samples,
    room: &mut Workspace,
) -> (f64, f64) {
    let (mut loss, mut right) = (0.0, 0);
    for index in 0..samples.len() {
        let (own, is_right) = model.judge(parameters, samples, index, room);
        loss += own;
        right += u32::from(is_right);
    }
    let count = samples.len() as f64;
    (loss / count, f64::from(right) / count)
}
