//! One replica's training, elastic: stopped, killed, or given another number of replicas, it goes on where it was.
//!
//! What that takes: everything that must not be lost is kept (`keep_value`, `keep`), the loops know how far they are
//! (`epochs`, `batches`), and what is to be said at the end of an epoch is summed up by accumulators. No other line here
//! is about checkpoints: loops make them, and end this process in order when it is to stop.

use std::time::Instant;

use gradring::checkpoint::Value;
use gradring::progress::Sampler;
use gradring::{Replica, Update, parameter_hash};

use super::arguments::Arguments;
use super::data::Dataset;
use super::job::{Failure, Job};
use super::momentum;
use super::progress::Progress;
use super::resume;
use super::schedule::Schedule;
use super::sending::MomentumKeeping;
use super::trained::{Course, Epoch, Trained};

/// Held-out samples that a replica judges between two places where the run may stop.
const VALIDATION_BATCH: usize = 256;

/// Trains together with the other replicas. All return the same.
pub(crate) fn train(
    job: &Job,
    arguments: &Arguments,
    replica: &Replica,
    schedule: &Schedule,
    data: &Dataset,
    progress: &Progress,
) -> Result<Trained, Failure> {
    let (model, sending) = (job.model, &arguments.sending);
    let elements = model.parameters();
    resume::refuse_another_run(job, arguments, replica, schedule)?;

    // All of it is as it was, where this run goes on from a checkpoint. Equal everywhere: parameters, and the course of
    // the training so far. Each replica's own: velocity, and what the exchange carries (residual, threshold).
    let parameters =
        replica.keep_value(Value::shared("parameters", model.initial(schedule.seed)))?;
    let velocity = replica.keep_value(Value::per_replica("velocity", vec![0.0_f32; elements]))?;
    let new_exchange = || sending.exchange(job, elements, arguments.backend, replica);
    let exchange = replica.keep(new_exchange()?)?;
    let course = replica.keep_value(Value::shared("course", Course::default()))?;
    let mut training = replica.accumulator("training")?;
    let mut validation = replica.accumulator("validation")?;
    let mut work = replica.accumulator("work")?;
    if !parameters.resumed() {
        exchange.lock()?.start(&mut *parameters.lock()?)?;
    }
    resume::tell(replica, &*course.lock()?, schedule, progress)?;

    let first_rate = arguments.rate(job, replica.world_size());
    let mut update = vec![0.0_f32; elements];
    let mut room = model.workspace();
    for epoch in replica.epochs(schedule.epochs)? {
        let epoch = epoch?;
        // What stands before a data loop runs again after a restart in this epoch, and must do no harm then. (This is for
        // Deeplearning4j's defaults: with them nothing is carried from one epoch to the next.)
        if sending.forgets() && course.lock()?.samples == epoch * schedule.samples as u64 {
            *exchange.lock()? = new_exchange()?;
        }

        for batch in replica.batches("training", schedule.sampler())? {
            let (batch, begun) = (batch?, Instant::now());
            // Up to the end of this body: between two of them everything must be there to be saved.
            let (mut parameters, mut velocity) = (parameters.lock()?, velocity.lock()?);
            let (mut exchange, mut course) = (exchange.lock()?, course.lock()?);
            let given: Option<&dyn Update> = if batch.is_empty() {
                // The data has run out for this replica, not for all: it takes the others' updates.
                None
            } else {
                // The mean of what replicas send is the mean over samples, however few the last ones are: it is over those
                // replicas that have any.
                let giving = replica.world_size().min(batch.together());
                let weight = giving as f32 / batch.together() as f32;
                let seen = batch.indices();
                let loss = model.gradient(
                    &parameters,
                    &data.train,
                    seen,
                    weight,
                    &mut update,
                    &mut room,
                );
                training.add("loss", loss)?;
                training.add("samples", batch.len())?;
                let rate = schedule.rate(first_rate, course.samples);
                match sending.momentum {
                    MomentumKeeping::Own | MomentumKeeping::Masked => {
                        momentum::turn_into_update(&mut velocity, &mut update, rate);
                    }
                    // The exchange's velocity is then one of steps, not of gradients: each keeps the rate of its own time.
                    MomentumKeeping::Memory => update.iter_mut().for_each(|value| *value *= rate),
                }
                Some(&update)
            };
            let report = exchange.step(given, &mut *parameters)?;
            if sending.momentum == MomentumKeeping::Masked && given.is_some() {
                momentum::start_anew(&mut velocity, exchange.encoder().hits());
            }
            course.steps += 1;
            course.samples += batch.together() as u64;
            progress.seen(course.samples);

            work.add("samples", batch.len())?;
            work.add("messages", given.is_some())?;
            work.add("bytes", report.bytes)?;
            work.add("hits", report.hits)?;
            work.add("sent", report.l1_sent)?;
            work.add("clipped", report.clipped)?;
            work.add("steps", 1)?;
            work.add("seconds", begun.elapsed().as_secs_f64())?;
        }

        let held_out = Sampler::new(data.held_out.len()).batch(VALIDATION_BATCH);
        for batch in replica.batches("validation", held_out)? {
            let parameters = parameters.lock()?;
            for &index in batch?.indices() {
                let (loss, right) = model.judge(&parameters, &data.held_out, index, &mut room);
                validation.add("loss", loss)?;
                validation.add("right", right)?;
                validation.add("samples", 1)?;
            }
        }

        // After the last data loop: once an epoch, whatever is stopped when.
        let mut all = training.synchronized()?;
        let loss = all.sum("loss")? / all.count("samples")? as f64;
        all.clear();
        drop(all);
        let mut all = validation.synchronized()?;
        let samples = all.count("samples")? as f64;
        let reached = Epoch {
            loss,
            validation_loss: all.sum("loss")? / samples,
            accuracy: all.count("right")? as f64 / samples,
        };
        all.clear();
        drop(all);
        progress.epoch(epoch + 1, schedule.epochs, &reached);
        course.lock()?.epochs.push(reached);
    }
    progress.end();

    // So that the same command with more epochs goes on from here. It comes before the last sums: a synchronization that
    // a checkpoint knows of would give that run what it gave this one.
    replica.checkpoint()?;
    let hash = parameter_hash(&parameters.lock()?);
    let hashes = replica.all_gather(bytemuck::bytes_of(&hash))?;
    let backend = exchange.lock()?.backend().to_string();
    let backends = replica.all_gather(backend.as_bytes())?;
    let all = work.synchronized()?;
    let course = course.lock()?;
    Ok(Trained {
        elements: elements as u64,
        steps: course.steps,
        epochs: course.epochs.clone(),
        samples: all.count("samples")?,
        messages: all.count("messages")?,
        bytes: all.count("bytes")?,
        hits: all.count("hits")?,
        sent: all.sum("sent")?,
        clipped: all.sum("clipped")?,
        steps_per_second: all.count("steps")? as f64 / all.sum("seconds")?,
        hashes: hashes
            .iter()
            .map(|hash| bytemuck::pod_read_unaligned(hash))
            .collect(),
        backends: backends
            .iter()
            .map(|backend| String::from_utf8_lossy(backend).into_owned())
            .collect(),
    })
}
