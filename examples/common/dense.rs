//! What the replicas are compared with: one process, the same total batch, no compression.

use super::data::Dataset;
use super::mlp::Mlp;
use super::momentum::Momentum;
use super::progress::Progress;
use super::schedule::Schedule;

/// Trains from the same first parameters on the same batches, and returns the accuracy on held-out data.
pub(crate) fn train(model: Mlp, schedule: &Schedule, rate: f32, data: &Dataset) -> f64 {
    let mut parameters = model.initial(schedule.seed);
    let mut optimizer = Momentum::new(parameters.len());
    let mut update = vec![0.0; parameters.len()];
    let mut room = model.workspace();
    let progress = Progress::here("dense", schedule.steps());
    let mut step = 0;
    for epoch in 0..schedule.epochs {
        let mut loss = 0.0;
        for batch in schedule.order(epoch).chunks_exact(schedule.global_batch) {
            loss += model.gradient(&parameters, &data.train, batch, &mut update, &mut room);
            optimizer.turn_into_update(&mut update, schedule.rate(rate, step));
            for (parameter, update) in parameters.iter_mut().zip(&update) {
                *parameter -= update;
            }
            step += 1;
            progress.step(step);
        }
        let seen = schedule.steps_per_epoch() * schedule.global_batch;
        let accuracy = model.accuracy(&parameters, &data.held_out, &mut room);
        progress.epoch(epoch + 1, schedule.epochs, loss / seen as f64, accuracy);
    }
    progress.end();
    model.accuracy(&parameters, &data.held_out, &mut room)
}
