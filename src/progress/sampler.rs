//! Which samples a replica sees, and when.

use super::order::Order;
use super::positions::Positions;
use super::split::Split;
use crate::replica::Error;

/// How a data set's samples are handed out: each exactly once in a pass, whatever the world size.
///
/// A sampler says nothing of what a sample is: it gives indices from 0 to the number of samples. Their order is that of
/// the data set, or a shuffled one that follows from the seed, the epoch and how often this loop has run in the epoch. In
/// each iteration all replicas together take the next samples of that order, each a contiguous part. In the last one,
/// where fewer are left, parts differ by one at most and may be empty: nothing is padded, and nothing counted twice.
///
/// A shuffled order takes 256 KiB a replica for up to 65,536 samples, and no memory for more.
///
/// ```
/// use gradring::progress::Sampler;
///
/// let sampler = Sampler::new(10).batch(2).shuffled(7);
/// let mut seen: Vec<usize> = Vec::new();
/// for rank in 0..3 {
///     let batches: Vec<Vec<usize>> = sampler.pass(0, rank, 3)?.collect();
///     assert_eq!(batches.len(), 2, "6 samples, then 4, for all replicas");
///     seen.extend(batches.into_iter().flatten());
/// }
/// seen.sort();
/// assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
/// # Ok::<(), gradring::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a sampler does nothing by itself"]
pub struct Sampler {
    samples: usize,
    size: Size,
    seed: Option<u64>,
}

/// How many samples an iteration takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// Each replica.
    Each(usize),
    /// All replicas together.
    Together(usize),
}

impl Sampler {
    /// `samples` samples in their order, one a replica and iteration. None is an empty loop.
    pub fn new(samples: usize) -> Self {
        Self {
            samples,
            size: Size::Each(1),
            seed: None,
        }
    }

    /// So many samples a replica and iteration: at another world size the samples of an iteration are others in number,
    /// those of a replica are not.
    pub fn batch(self, samples: usize) -> Self {
        Self {
            size: Size::Each(samples),
            ..self
        }
    }

    /// So many samples an iteration for all replicas together, split as evenly as can be: the same iterations at any
    /// world size.
    pub fn global_batch(self, samples: usize) -> Self {
        Self {
            size: Size::Together(samples),
            ..self
        }
    }

    /// In an order that is another one in each epoch, and at each time that a loop runs in an epoch. The same for the same
    /// seed.
    pub fn shuffled(self, seed: u64) -> Self {
        Self {
            seed: Some(seed),
            ..self
        }
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The seed of a shuffled order.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// How many samples `world_size` replicas take together in an iteration, but for the last.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that is none.
    pub(crate) fn together(&self, world_size: usize) -> Result<u64, Error> {
        let (what, size, replicas) = match self.size {
            Size::Each(size) => ("samples a replica and iteration", size, world_size),
            Size::Together(size) => ("samples an iteration", size, 1),
        };
        if size == 0 {
            return Err(Error::Invalid {
                what,
                expected: "at least 1".to_owned(),
                found: "0".to_owned(),
            });
        }
        Ok((size as u64).saturating_mul(replicas as u64))
    }

    /// The order in an epoch (`None` outside of all) when the loop has run `pass` times in it.
    pub(crate) fn order(&self, epoch: Option<u64>, pass: u64) -> Order {
        self.seed.map_or(Order::AsTheyAre, |seed| {
            Order::shuffled(self.samples as u64, seed, epoch, pass)
        })
    }

    /// What rank `rank` of `world_size` sees in the first loop of an epoch: a batch an iteration. For use without
    /// [`Replica::batches`](crate::Replica::batches), which also keeps the position.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a batch has no samples or there is no such rank.
    pub fn pass(&self, epoch: u64, rank: usize, world_size: usize) -> Result<Pass, Error> {
        if rank >= world_size {
            return Err(Error::Invalid {
                what: "rank",
                expected: format!("below the world size of {world_size}"),
                found: rank.to_string(),
            });
        }
        let together = self.together(world_size)?;
        let split = Split::new(
            self.samples as u64,
            Positions::default(),
            together,
            world_size,
        );
        Ok(Pass::new(self.order(Some(epoch), 0), split, rank))
    }
}

/// One replica's way through the remaining samples of a loop: the indices of its samples in each iteration.
#[derive(Clone, Debug)]
pub struct Pass {
    order: Order,
    split: Split,
    rank: usize,
    iteration: u64,
}

impl Pass {
    pub(crate) fn new(order: Order, split: Split, rank: usize) -> Self {
        Self {
            order,
            split,
            rank,
            iteration: 0,
        }
    }

    /// How many iterations have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.iteration
    }

    /// How many iterations are left: the same number on every replica.
    pub fn iterations_left(&self) -> u64 {
        self.split.iterations() - self.iteration
    }

    /// How many samples the last iteration had for all replicas together.
    pub(crate) fn last_together(&self) -> u64 {
        let window = self.iteration.checked_sub(1);
        window.map_or(0, |iteration| {
            let window = self.split.window(iteration);
            window.end - window.start
        })
    }
}

impl Iterator for Pass {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        if self.iterations_left() == 0 {
            return None;
        }
        let positions = self.split.positions(self.iteration, self.rank).flatten();
        // Each is below the number of samples, which is a usize.
        let indices = positions.map(|position| self.order.at(position) as usize);
        let indices = indices.collect();
        self.iteration += 1;
        Some(indices)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.iterations_left());
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::Sampler;
    use crate::replica::Error;
    use std::collections::BTreeSet;

    fn passes(sampler: Sampler, epoch: u64, world_size: usize) -> Vec<Vec<Vec<usize>>> {
        let pass = |rank| sampler.pass(epoch, rank, world_size).unwrap().collect();
        (0..world_size).map(pass).collect()
    }

    #[test]
    fn any_size_over_any_replicas_is_even_complete_and_the_same_when_asked_again() {
        for samples in [0, 9, 15, 25] {
            for world_size in [1, 3, 5] {
                for sampler in [
                    Sampler::new(samples).batch(2),
                    Sampler::new(samples).batch(2).shuffled(1),
                    Sampler::new(samples).global_batch(4).shuffled(1),
                    Sampler::new(samples).global_batch(1000),
                ] {
                    let passes_of = |epoch| passes(sampler, epoch, world_size);
                    let all = passes_of(0);
                    assert!(all.iter().all(|pass| pass.len() == all[0].len()));
                    let sizes: BTreeSet<usize> =
                        all.iter().map(|pass| pass.concat().len()).collect();
                    assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1);
                    let mut seen = all.concat().concat();
                    seen.sort();
                    assert!(seen.into_iter().eq(0..samples));
                    assert_eq!(all, passes_of(0));
                    if samples > 0 {
                        assert_eq!(all != passes_of(1), sampler.seed().is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn the_order_does_not_depend_on_the_number_of_replicas() {
        let sampler = Sampler::new(100).global_batch(7).shuffled(3);
        let of = |world_size| {
            let passes = passes(sampler, 2, world_size);
            let iteration = |i: usize| passes.iter().flat_map(move |pass| pass[i].clone());
            (0..15).flat_map(iteration).collect::<Vec<usize>>()
        };
        let alone = of(1);
        for world_size in [2, 3, 5, 8] {
            assert_eq!(of(world_size), alone);
        }
    }

    #[test]
    fn a_batch_of_nothing_and_a_rank_that_is_none_are_typed_errors() {
        for sampler in [Sampler::new(5).batch(0), Sampler::new(5).global_batch(0)] {
            let error = sampler.pass(0, 0, 1).unwrap_err();
            assert!(
                matches!(error, Error::Invalid { ref found, .. } if found == "0"),
                "{error}"
            );
        }
        for (rank, world_size) in [(2, 2), (0, 0)] {
            let error = Sampler::new(5).pass(0, rank, world_size).unwrap_err();
            assert!(
                matches!(error, Error::Invalid { what: "rank", .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn a_batch_larger_than_anything_is_all_of_the_data() {
        let sampler = Sampler::new(10).batch(usize::MAX);
        let passes = passes(sampler, 0, 4);
        let sizes: Vec<usize> = passes.iter().map(|pass| pass[0].len()).collect();
        assert_eq!(sizes, [3, 3, 2, 2]);
        assert!(passes.iter().all(|pass| pass.len() == 1));
    }
}
