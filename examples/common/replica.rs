//! One replica's training: the loop of any trainer, with three lines of gradring in it.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use gradring::{Replica, op, parameter_hash};
use serde::{Deserialize, Serialize};

use super::arguments::Arguments;
use super::data::Dataset;
use super::job::Job;
use super::momentum::Momentum;
use super::progress::Progress;
use super::schedule::Schedule;
use super::sending::MomentumKeeping;

/// What the replicas reached together.
#[derive(Serialize, Deserialize)]
pub(crate) struct Trained {
    /// On held-out data, as a part of 1.
    pub(crate) accuracy: f64,
    /// Elements of the update.
    pub(crate) elements: u64,
    /// Steps that all made together.
    pub(crate) steps: u64,
    /// Seconds that these took.
    pub(crate) seconds: f64,
    /// Bytes of all messages of all replicas, headers included.
    pub(crate) bytes: u64,
    /// Hits in all messages of all replicas.
    pub(crate) hits: u64,
    /// Sum of the magnitudes that all replicas sent.
    pub(crate) sent: f64,
    /// Sum of the magnitudes that clipping took away from all residuals.
    pub(crate) clipped: f64,
    /// The hash of every replica's parameters, by rank.
    pub(crate) hashes: Vec<u64>,
}

/// Trains together with the other replicas. All return the same, save for the time that they took.
pub(crate) fn train(
    job: &Job,
    arguments: &Arguments,
    replica: &Replica,
    schedule: &Schedule,
    data: &Dataset,
    progress: &Progress,
) -> Result<Trained, gradring::Error> {
    let sending = &arguments.sending;
    let mut parameters = job.model.initial(schedule.seed);
    let mut optimizer = Momentum::new(parameters.len());
    let mut update = vec![0.0; parameters.len()];
    let mut room = job.model.workspace();

    let mut exchange = sending.exchange(job, parameters.len(), replica)?;
    exchange.start(&mut parameters)?;

    let rate = arguments.rate(job, replica.world_size());
    let own = replica.rank() * job.batch..(replica.rank() + 1) * job.batch;
    let mut step = 0;
    let mut time = Duration::ZERO;
    let (mut bytes, mut hits, mut sent, mut clipped) = (0, 0, 0.0, 0.0);
    for epoch in 0..schedule.epochs {
        if epoch > 0 && sending.forgets() {
            exchange = sending.exchange(job, parameters.len(), replica)?;
        }
        let mut loss = 0.0;
        let begun = Instant::now();
        for batch in schedule.order(epoch).chunks_exact(schedule.global_batch) {
            let batch = &batch[own.clone()];
            loss += job
                .model
                .gradient(&parameters, &data.train, batch, &mut update, &mut room);
            let rate = schedule.rate(rate, step);
            match sending.momentum {
                MomentumKeeping::Own | MomentumKeeping::Masked => {
                    optimizer.turn_into_update(&mut update, rate);
                }
                // The exchange's velocity is then one of steps, not of gradients: each keeps the rate of its own time.
                MomentumKeeping::Memory => update.iter_mut().for_each(|value| *value *= rate),
            }
            let report = exchange.step(Some(&update), &mut parameters)?;
            if sending.momentum == MomentumKeeping::Masked {
                optimizer.start_anew(exchange.encoder().hits());
            }
            bytes += report.bytes;
            hits += report.hits;
            sent += report.l1_sent;
            clipped += report.clipped;
            step += 1;
            progress.step(step);
        }
        time += begun.elapsed();

        let mut total = [loss];
        replica.all_reduce(&mut total, op::Sum)?;
        if progress.is_shown() {
            let seen = schedule.steps_per_epoch() * schedule.global_batch;
            let accuracy = job.model.accuracy(&parameters, &data.held_out, &mut room);
            progress.epoch(epoch + 1, schedule.epochs, total[0] / seen as f64, accuracy);
        }
    }
    progress.end();

    let mut masses = [sent, clipped];
    replica.all_reduce(&mut masses, op::Sum)?;
    let mine = [parameter_hash(&parameters), bytes, hits];
    let all: Vec<[u64; 3]> = replica
        .all_gather(bytemuck::bytes_of(&mine))?
        .iter()
        .map(|theirs| bytemuck::pod_read_unaligned(theirs))
        .collect();
    Ok(Trained {
        accuracy: job.model.accuracy(&parameters, &data.held_out, &mut room),
        elements: parameters.len() as u64,
        steps: step as u64,
        seconds: time.as_secs_f64(),
        bytes: all.iter().map(|&[_, bytes, _]| bytes).sum(),
        hits: all.iter().map(|&[_, _, hits]| hits).sum(),
        sent: masses[0],
        clipped: masses[1],
        hashes: all.iter().map(|&[hash, _, _]| hash).collect(),
    })
}

impl Trained {
    pub(crate) fn replicas(&self) -> usize {
        self.hashes.len()
    }

    /// Whether all replicas hold the same parameters.
    pub(crate) fn identical(&self) -> bool {
        self.hashes.iter().all(|&hash| hash == self.hashes[0])
    }

    /// How many bytes the same updates would be without compression, for one byte of messages.
    pub(crate) fn compression(&self) -> f64 {
        (4 * self.elements * self.steps) as f64 * self.replicas() as f64 / self.bytes as f64
    }

    /// Hits per element.
    pub(crate) fn density(&self) -> f64 {
        self.hits as f64 / ((self.elements * self.steps) as f64 * self.replicas() as f64)
    }

    pub(crate) fn steps_per_second(&self) -> f64 {
        self.steps as f64 / self.seconds
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, serde_json::to_vec(self)?)
    }

    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}
