//! Stochastic gradient descent with momentum.

/// How much of the last step's motion goes on in the next.
pub(crate) const MOMENTUM: f32 = 0.9;

/// One trainer's velocity. Each replica keeps its own, of its own samples only: what replicas exchange is the update that
/// comes out of it.
pub(crate) struct Momentum {
    velocity: Vec<f32>,
}

impl Momentum {
    pub(crate) fn new(parameters: usize) -> Self {
        Self {
            velocity: vec![0.0; parameters],
        }
    }

    /// Turns a gradient, in place, into the update: what is to be *subtracted* from the parameters.
    pub(crate) fn turn_into_update(&mut self, gradient: &mut [f32], rate: f32) {
        for (velocity, value) in self.velocity.iter_mut().zip(gradient) {
            *velocity = MOMENTUM * *velocity + *value;
            *value = rate * *velocity;
        }
    }

    /// Ends the motion of these elements: what it was has been sent, and need not go on.
    pub(crate) fn start_anew(&mut self, elements: &[usize]) {
        for &element in elements {
            self.velocity[element] = 0.0;
        }
    }
}
