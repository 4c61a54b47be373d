//! Residual and velocity, as a saved state has them.

use super::Encoder;
use crate::codec::encode::EncodeError;

impl Encoder {
    /// The momentum memory's velocity, by element; `None` without such a memory.
    #[must_use]
    pub fn velocity(&self) -> Option<&[f32]> {
        self.memory.as_ref().map(|memory| memory.velocity())
    }

    /// Goes on from this residual and this velocity.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when either has another length than it should; nothing has changed then.
    pub fn restore_vectors(
        &mut self,
        residual: &[f32],
        velocity: Option<&[f32]>,
    ) -> Result<(), EncodeError> {
        let lengths = |expected: usize, found: usize| {
            if expected == found {
                Ok(())
            } else {
                Err(EncodeError::Lengths { expected, found })
            }
        };
        lengths(self.elements(), residual.len())?;
        let of_memory = self.velocity().map_or(0, <[f32]>::len);
        lengths(of_memory, velocity.map_or(0, <[f32]>::len))?;
        self.residual.copy_from_slice(residual);
        if let (Some(memory), Some(velocity)) = (&mut self.memory, velocity) {
            memory.velocity_mut().copy_from_slice(velocity);
        }
        Ok(())
    }

    /// Whether a step has begun and not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.next.is_some()
    }
}
