//! Which samples are seen when, and at which learning rate: the same for any number of processes that share the work.

use gradring::progress::Sampler;

/// A run's samples: every epoch all of them, in a new order.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    pub(crate) samples: usize,
    /// Samples of a step, of all replicas together; the last step of an epoch has what is left.
    pub(crate) global_batch: usize,
    pub(crate) epochs: u64,
    pub(crate) seed: u64,
}

impl Schedule {
    /// Who sees which samples when: for replicas, and for one process in their place.
    pub(crate) fn sampler(&self) -> Sampler {
        Sampler::new(self.samples)
            .global_batch(self.global_batch)
            .shuffled(self.seed)
    }

    /// How many samples are seen in all epochs, each as often as it is.
    pub(crate) fn total(&self) -> u64 {
        self.samples as u64 * self.epochs
    }

    /// The rate of a run that began at `first` and has seen so many samples in all epochs: a straight line to 0. By
    /// samples, not steps: it goes on where it was when the number of replicas has changed.
    pub(crate) fn rate(&self, first: f32, seen: u64) -> f32 {
        (f64::from(first) * (1.0 - seen as f64 / self.total() as f64)) as f32
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
