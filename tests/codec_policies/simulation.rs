//! A replica alone: a policy, an encoder with its residual, and updates of no end.

use super::random::Random;
use gradring::codec::policy::{LastStep, PolicyInput, ThresholdPolicy};
use gradring::codec::{Budget, CHUNK, ChunkOptions, Path, Unit, canon};

/// Layers of a vector whose updates differ in size, by a hundred in all.
const LAYERS: usize = 16;

/// One replica's steps. Cloned, both go on alike.
#[derive(Clone)]
pub(crate) struct Simulation {
    random: Random,
    residual: Vec<f32>,
    update: Vec<f32>,
    sample: Vec<f32>,
    out: Vec<u8>,
    step: u64,
    pub(crate) last: Option<LastStep>,
}

impl Simulation {
    /// At most a chunk of elements.
    pub(crate) fn new(elements: usize) -> Simulation {
        assert!(elements <= CHUNK);
        Simulation {
            random: Random(elements as u64),
            residual: vec![0.0; elements],
            update: vec![0.0; elements],
            sample: Vec::new(),
            out: Vec::new(),
            step: 0,
            last: None,
        }
    }

    /// One step with an update whose elements are Laplace, of the mean magnitude `scale`, times 0.1 to 10 by layer.
    pub(crate) fn step(&mut self, policy: &mut dyn ThresholdPolicy, scale: f64) -> LastStep {
        let path = Path::best();
        let elements = self.update.len();
        for (i, update) in self.update.iter_mut().enumerate() {
            let layer = i * LAYERS / elements;
            let layer = 10f64.powf(2.0 * layer as f64 / (LAYERS - 1) as f64 - 1.0);
            let size = -self.random.unit().ln() * scale * layer;
            let sign = if self.random.next() & 1 == 0 {
                1.0
            } else {
                -1.0
            };
            *update = (sign * size) as f32;
        }
        self.sample.clear();
        let wanted = policy.sample_size(elements, self.step);
        if wanted > 0 {
            let (residual, update) = (&self.residual, &self.update);
            path.magnitudes(residual, update, wanted, self.step, &mut self.sample)
                .unwrap();
        }
        let unit = policy.unit(&PolicyInput {
            step: self.step,
            elements,
            sample: &self.sample,
            last: self.last,
        });
        let mean = mean_of_hits(&self.residual, &self.update, unit);
        let budget = policy.limit(elements, self.step).map(|hits| Budget {
            max_hits: hits,
            start: 0,
        });
        self.out.clear();
        let options = ChunkOptions { clip: None, budget };
        let sent = path
            .encode(
                &mut self.residual,
                &self.update,
                unit,
                &options,
                &mut self.out,
            )
            .unwrap();
        let last = LastStep {
            unit,
            hits: sent.hits.into(),
            density: f64::from(sent.hits) / elements as f64,
            mean: (sent.hits > 0).then_some(mean),
        };
        self.last = Some(last);
        self.step += 1;
        last
    }

    /// As many steps of one scale.
    pub(crate) fn steps(
        &mut self,
        policy: &mut dyn ThresholdPolicy,
        scale: f64,
        count: usize,
    ) -> Vec<LastStep> {
        (0..count).map(|_| self.step(policy, scale)).collect()
    }
}

fn mean_of_hits(residual: &[f32], update: &[f32], unit: Unit) -> f64 {
    let sums = residual.iter().zip(update).map(|(r, u)| canon(r + u).abs());
    let hits = sums.filter(|s| *s >= unit.t());
    let (sum, count) = hits.fold((0.0, 0u32), |(sum, count), s| {
        (sum + f64::from(s), count + 1)
    });
    sum / f64::from(count)
}
