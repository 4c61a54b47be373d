//! A multilayer perceptron with one hidden layer: ReLU inside, softmax and cross-entropy at the end.

use std::ops::Range;

use super::data::{CLASSES, Samples};
use super::random::Random;

/// The shape. The parameters are one vector: the first layer's weights row by row (a row per *input*), its biases, and
/// then the same for the second layer.
///
/// A row per input makes both passes a sum of whole rows, each weighted by one input. Inputs that are 0 (four pixels in
/// five of MNIST, and half of what leaves a ReLU) then cost nothing, which beats a blocked matrix product here.
#[derive(Clone, Copy)]
pub(crate) struct Mlp {
    pub(crate) inputs: usize,
    pub(crate) hidden: usize,
}

/// Room for one sample's activations and errors, reused.
pub(crate) struct Workspace {
    hidden: Vec<f32>,
    hidden_error: Vec<f32>,
    output: [f32; CLASSES],
}

impl Mlp {
    /// How many parameters there are.
    pub(crate) fn parameters(self) -> usize {
        self.parts().3.end
    }

    pub(crate) fn workspace(self) -> Workspace {
        Workspace {
            hidden: vec![0.0; self.hidden],
            hidden_error: vec![0.0; self.hidden],
            output: [0.0; CLASSES],
        }
    }

    fn parts(self) -> (Range<usize>, Range<usize>, Range<usize>, Range<usize>) {
        let w1 = self.inputs * self.hidden;
        let b1 = w1 + self.hidden;
        let w2 = b1 + self.hidden * CLASSES;
        (0..w1, w1..b1, b1..w2, w2..w2 + CLASSES)
    }

    /// Weights uniform with the variance of He et al. (2015); biases 0.
    pub(crate) fn initial(self, seed: u64) -> Vec<f32> {
        let mut random = Random::new(seed, u64::MAX);
        let mut parameters = vec![0.0; self.parameters()];
        let (w1, _, w2, _) = self.parts();
        for (weights, fan_in) in [(w1, self.inputs), (w2, self.hidden)] {
            let limit = (6.0 / fan_in as f32).sqrt();
            parameters[weights].fill_with(|| random.symmetric(limit));
        }
        parameters
    }

    /// Writes `weight` times the sum of the gradients of the losses of `batch` (indices of samples) to `gradient`, and
    /// returns the sum of the losses.
    pub(crate) fn gradient(
        self,
        parameters: &[f32],
        samples: &Samples,
        batch: &[usize],
        weight: f32,
        gradient: &mut [f32],
        room: &mut Workspace,
    ) -> f64 {
        let (_, _, w2, _) = self.parts();
        let weights2 = &parameters[w2];
        gradient.fill(0.0);
        let (grad_w1, rest) = gradient.split_at_mut(self.inputs * self.hidden);
        let (grad_b1, rest) = rest.split_at_mut(self.hidden);
        let (grad_w2, grad_b2) = rest.split_at_mut(self.hidden * CLASSES);
        let mut loss = 0.0;
        for &index in batch {
            let image = samples.image(index);
            let label = usize::from(samples.labels[index]);
            self.forward(parameters, samples, index, room);
            loss += softmax_loss(&mut room.output, label);

            // From here `output` is the loss's gradient with regard to the last layer's sums.
            room.output[label] -= 1.0;
            room.output.iter_mut().for_each(|error| *error *= weight);
            add_scaled(grad_b2, 1.0, &room.output);
            for (unit, &activation) in room.hidden.iter().enumerate() {
                room.hidden_error[unit] = 0.0;
                if activation > 0.0 {
                    let row = unit * CLASSES..(unit + 1) * CLASSES;
                    room.hidden_error[unit] = dot(&weights2[row.clone()], &room.output);
                    add_scaled(&mut grad_w2[row], activation, &room.output);
                }
            }
            add_scaled(grad_b1, 1.0, &room.hidden_error);
            for (row, &pixel) in grad_w1.chunks_exact_mut(self.hidden).zip(image) {
                if pixel != 0 {
                    let input = f32::from(pixel) * samples.unit();
                    add_scaled(row, input, &room.hidden_error);
                }
            }
        }
        loss
    }

    /// A sample's loss, and whether it is classified right.
    pub(crate) fn judge(
        self,
        parameters: &[f32],
        samples: &Samples,
        index: usize,
        room: &mut Workspace,
    ) -> (f64, bool) {
        self.forward(parameters, samples, index, room);
        let label = usize::from(samples.labels[index]);
        let best = (0..CLASSES).max_by(|&a, &b| room.output[a].total_cmp(&room.output[b]));
        (softmax_loss(&mut room.output, label), best == Some(label))
    }

    /// Leaves the hidden layer's activations and the last layer's sums in `room`.
    fn forward(self, parameters: &[f32], samples: &Samples, index: usize, room: &mut Workspace) {
        let (w1, b1, w2, b2) = self.parts();
        room.hidden.copy_from_slice(&parameters[b1]);
        for (row, &pixel) in parameters[w1]
            .chunks_exact(self.hidden)
            .zip(samples.image(index))
        {
            if pixel != 0 {
                add_scaled(&mut room.hidden, f32::from(pixel) * samples.unit(), row);
            }
        }
        room.output.copy_from_slice(&parameters[b2]);
        for (row, sum) in parameters[w2].chunks_exact(CLASSES).zip(&mut room.hidden) {
            *sum = sum.max(0.0);
            if *sum > 0.0 {
                add_scaled(&mut room.output, *sum, row);
            }
        }
    }
}

/// Turns sums into probabilities and returns the cross-entropy against `label`.
fn softmax_loss(sums: &mut [f32; CLASSES], label: usize) -> f64 {
    let largest = sums.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let own = sums[label] - largest;
    sums.iter_mut()
        .for_each(|sum| *sum = (*sum - largest).exp());
    let total: f32 = sums.iter().sum();
    sums.iter_mut().for_each(|sum| *sum /= total);
    f64::from(total.ln() - own)
}

fn add_scaled(sums: &mut [f32], factor: f32, row: &[f32]) {
    for (sum, &value) in sums.iter_mut().zip(row) {
        *sum += factor * value;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}
