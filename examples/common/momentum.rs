//! Stochastic gradient descent with momentum.
//!
//! Each replica keeps a velocity of its own, of its own samples only: what replicas exchange is the update that comes out
//! of it.

/// How much of the last step's motion goes on in the next.
pub(crate) const MOMENTUM: f32 = 0.9;

/// Turns a gradient, in place, into the update: what is to be *subtracted* from the parameters.
pub(crate) fn turn_into_update(velocity: &mut [f32], gradient: &mut [f32], rate: f32) {
    for (velocity, value) in velocity.iter_mut().zip(gradient) {
        *velocity = MOMENTUM * *velocity + *value;
        *value = rate * *velocity;
    }
}

/// Ends the motion of these elements: what it was has been sent, and need not go on.
pub(crate) fn start_anew(velocity: &mut [f32], elements: &[usize]) {
    for &element in elements {
        velocity[element] = 0.0;
    }
}
