//! Which samples are seen when, and at which learning rate: the same for any number of processes that share the work.

use super::random::Random;

/// A run's steps: every epoch in a new order, a global batch a step, the rest that does not fill one left out.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    pub(crate) samples: usize,
    pub(crate) global_batch: usize,
    pub(crate) epochs: usize,
    pub(crate) seed: u64,
}

impl Schedule {
    pub(crate) fn steps_per_epoch(&self) -> usize {
        self.samples / self.global_batch
    }

    pub(crate) fn steps(&self) -> usize {
        self.epochs * self.steps_per_epoch()
    }

    /// The order of an epoch: everybody who has the seed has the same.
    pub(crate) fn order(&self, epoch: usize) -> Vec<usize> {
        Random::new(self.seed, epoch as u64).permutation(self.samples)
    }

    /// The rate at `step` (over all epochs) of a run that starts at `start`: a straight line to 0.
    pub(crate) fn rate(&self, start: f32, step: usize) -> f32 {
        start * (1.0 - step as f32 / self.steps() as f32)
    }
}

/// Learning rates that were tuned at some world sizes, ascending.
pub(crate) struct Rates(pub(crate) &'static [(usize, f32)]);

impl Rates {
    /// The rate for `replicas`: between two known world sizes on the straight line through both on logarithmic scales,
    /// as rates scale with a power of the batch; beyond the known ones the nearest.
    pub(crate) fn at(&self, replicas: usize) -> f32 {
        let above = self.0.partition_point(|&(known, _)| known < replicas);
        let (Some(&(high, high_rate)), Some(&(low, low_rate))) =
            (self.0.get(above), self.0.get(above.wrapping_sub(1)))
        else {
            return self.0[above.min(self.0.len() - 1)].1;
        };
        let position = (replicas as f32 / low as f32).ln() / (high as f32 / low as f32).ln();
        low_rate * (high_rate / low_rate).powf(position)
    }
}
