//! Momentum in front of the encoder, for trainers that hand over gradients (deep gradient compression, Lin 2018).
//!
//! With sparse updates an optimizer behind the exchange would apply its momentum to what happened to be sent. Here each
//! replica keeps a *velocity* `w = m w + c g` of its own gradients g and hands that to the encoder (momentum correction);
//! c scales down gradients of too large a norm (local clipping); and where an element is sent, its velocity starts anew,
//! so that a motion that is already out does not go on (factor masking).

use super::arithmetic::canon;
use super::given::{Given, Room, with_piece};
use super::residual::{Residual, ResidualError};
use super::values::{Element, SINGLES, Values};
use std::ops::Range;
use thiserror::Error;

/// What a momentum memory is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentumMemory {
    momentum: f32,
    norm: Option<f32>,
}

impl MomentumMemory {
    /// A memory with this momentum, 0.9 for example, without local clipping.
    ///
    /// # Errors
    /// [`MemoryError::Momentum`] unless it is at least 0 and below 1.
    pub fn new(momentum: f32) -> Result<MomentumMemory, MemoryError> {
        if (0.0..1.0).contains(&momentum) {
            Ok(MomentumMemory {
                momentum: canon(momentum),
                norm: None,
            })
        } else {
            Err(MemoryError::Momentum { found: momentum })
        }
    }

    /// With local clipping: a gradient of an L2 norm above `norm / sqrt(N)`, N the number of replicas, is scaled down to
    /// that, so that the sum of all replicas' is at most about `norm`.
    ///
    /// # Errors
    /// [`MemoryError::Norm`] unless it is at least 2^-126, and finite.
    pub fn with_local_clipping(self, norm: f32) -> Result<MomentumMemory, MemoryError> {
        if (f32::MIN_POSITIVE..=f32::MAX).contains(&norm) {
            Ok(MomentumMemory {
                norm: Some(norm),
                ..self
            })
        } else {
            Err(MemoryError::Norm { found: norm })
        }
    }
}

/// A [`MomentumMemory`] cannot be made with these numbers.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum MemoryError {
    /// A momentum out of range.
    #[error("a momentum of {found}; it must be at least 0 and below 1")]
    Momentum {
        /// The momentum.
        found: f32,
    },
    /// A norm out of range.
    #[error("a norm of {found:e} for local clipping; it must be at least 2^-126, and finite")]
    Norm {
        /// The norm.
        found: f32,
    },
}

/// The memory of one replica.
pub(super) struct Velocity {
    settings: MomentumMemory,
    replicas: usize,
    velocity: Residual,
}

impl Velocity {
    pub(super) fn new(
        settings: MomentumMemory,
        replicas: usize,
        elements: usize,
    ) -> Result<Velocity, ResidualError> {
        Ok(Velocity {
            settings,
            replicas,
            velocity: Residual::zeroed(elements)?,
        })
    }

    /// `w = canon(canon(m w) + canon(c g))`. An element of the gradient that is not finite, or with which w would not be,
    /// is left out. How many there were.
    pub(super) fn accumulate(&mut self, gradient: Given<'_>) -> u64 {
        let scale = self.scale(gradient);
        self.add(0..self.velocity.len(), gradient, scale)
    }

    /// Whether gradients are scaled by the norm of all of them.
    pub(super) fn clips(&self) -> bool {
        self.settings.norm.is_some()
    }

    /// The same of some elements, without local clipping.
    pub(super) fn accumulate_part(&mut self, elements: Range<usize>, part: Values<'_>) -> u64 {
        self.add(elements, Given::Slice(part), 1.0)
    }

    fn add(&mut self, elements: Range<usize>, gradient: Given<'_>, scale: f32) -> u64 {
        let momentum = self.settings.momentum;
        let mut dropped = 0;
        let mut velocity = &mut self.velocity[elements];
        let elements = velocity.len();
        pieces(elements, gradient, |gradient| {
            let (now, rest) = std::mem::take(&mut velocity).split_at_mut(gradient.len());
            velocity = rest;
            let mut left_out = 0u32;
            for (w, &g) in now.iter_mut().zip(gradient) {
                let kept = canon(momentum * *w);
                let sum = kept + canon(canon(g) * scale);
                let finite = sum.is_finite();
                left_out += u32::from(!finite);
                *w = if finite { canon(sum) } else { kept };
            }
            dropped += u64::from(left_out);
        });
        dropped
    }

    /// What gradients are multiplied with.
    fn scale(&self, gradient: Given<'_>) -> f32 {
        let Some(norm) = self.settings.norm else {
            return 1.0;
        };
        let most = f64::from(norm) / (self.replicas as f64).sqrt();
        // Four sums, in a fixed order: the same bits everywhere.
        let mut sums = [0f64; 4];
        let elements = self.velocity.len();
        pieces(elements, gradient, |gradient| {
            for few in gradient.chunks(4) {
                for (sum, &g) in sums.iter_mut().zip(few) {
                    let g = if g.is_finite() { f64::from(g) } else { 0.0 };
                    *sum += g * g;
                }
            }
        });
        let found = sums.iter().sum::<f64>().sqrt();
        if found > most {
            (most / found) as f32
        } else {
            1.0
        }
    }

    /// What is handed to the encoder.
    pub(super) fn values(&self) -> Given<'_> {
        Given::Slice(Values::F32(&self.velocity))
    }

    pub(super) fn velocity(&self) -> &[f32] {
        &self.velocity
    }

    pub(super) fn velocity_mut(&mut self) -> &mut [f32] {
        &mut self.velocity
    }

    /// Starts an element anew.
    pub(super) fn mask(&mut self, element: usize) {
        self.velocity[element] = 0.0;
    }
}

/// Calls `with` for at most [`SINGLES`] elements at a time, as f32.
pub(crate) fn pieces(elements: usize, gradient: Given<'_>, mut with: impl FnMut(&[f32])) {
    let (mut cursor, mut left) = (gradient.cursor(), elements);
    let (mut singles, mut room) = ([0f32; SINGLES], Room::default());
    while left > 0 {
        let count = left.min(SINGLES);
        let piece = cursor.next(count, &mut room);
        with_piece!(piece, piece => with(Element::singles(piece, &mut singles)));
        left -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn velocity(settings: MomentumMemory, replicas: usize, elements: usize) -> Velocity {
        Velocity::new(settings, replicas, elements).unwrap()
    }

    #[test]
    fn velocity_is_the_geometric_sum_of_gradients_and_starts_anew_where_it_was_sent() {
        let mut memory = velocity(MomentumMemory::new(0.5).unwrap(), 1, 3);
        let gradient = [1.0f32, -2.0, 0.0];
        for _ in 0..3 {
            assert_eq!(memory.accumulate(Given::from(&gradient)), 0);
        }
        assert_eq!(&memory.velocity[..], [1.75, -3.5, 0.0]);
        memory.mask(1);
        memory.accumulate(Given::from(&gradient));
        assert_eq!(&memory.velocity[..], [1.875, -2.0, 0.0]);
    }

    #[test]
    fn halves_are_what_their_singles_are() {
        let singles: Vec<f32> = (0..2500).map(|i| (i as f32 - 1000.0) / 64.0).collect();
        let f16s: Vec<f16> = singles.iter().map(|&x| f16::from_f32(x)).collect();
        let bf16s: Vec<bf16> = singles.iter().map(|&x| bf16::from_f32(x)).collect();
        let expected = |halves: Vec<f32>| {
            let mut memory = velocity(MomentumMemory::new(0.9).unwrap(), 2, 2500);
            memory.accumulate(Given::from(&halves));
            memory.velocity.to_vec()
        };
        let mut memory = velocity(MomentumMemory::new(0.9).unwrap(), 2, 2500);
        memory.accumulate(Given::from(&f16s));
        assert_eq!(
            &memory.velocity[..],
            expected(f16s.iter().map(|x| x.to_f32()).collect())
        );
        let mut memory = velocity(MomentumMemory::new(0.9).unwrap(), 2, 2500);
        memory.accumulate(Given::from(&bf16s));
        assert_eq!(
            &memory.velocity[..],
            expected(bf16s.iter().map(|x| x.to_f32()).collect())
        );
    }

    #[test]
    fn local_clipping_scales_the_whole_gradient_to_its_share_of_the_norm() {
        let settings = MomentumMemory::new(0.0).unwrap().with_local_clipping(2.0);
        // A quarter of the replicas: half of the norm.
        let mut memory = velocity(settings.unwrap(), 4, 3);
        memory.accumulate(Given::from(&[3.0, -4.0, f32::NAN]));
        for (w, expected) in memory.velocity.iter().zip([0.6, -0.8, 0.0]) {
            assert!((w - expected).abs() < 1e-6, "{w} is not {expected}");
        }
        memory.accumulate(Given::from(&[0.5, 0.5, 0.5]));
        assert_eq!(&memory.velocity[..], [0.5, 0.5, 0.5]);
    }

    #[test]
    fn what_is_not_finite_is_left_out_and_counted() {
        let mut memory = velocity(MomentumMemory::new(0.5).unwrap(), 1, 4);
        memory.accumulate(Given::from(&[1.0, 1.0, f32::MAX, 1e-45]));
        let dropped =
            memory.accumulate(Given::from(&[f32::NAN, f32::NEG_INFINITY, f32::MAX, -0.0]));
        assert_eq!(dropped, 3);
        assert_eq!(&memory.velocity[..], [0.5, 0.5, f32::MAX / 2.0, 0.0]);
        assert!(memory.velocity.iter().all(|w| w.to_bits() != 0x8000_0000));
    }

    #[test]
    fn numbers_that_make_no_memory_are_refused() {
        for found in [-0.1, 1.0, f32::INFINITY] {
            assert_eq!(
                MomentumMemory::new(found),
                Err(MemoryError::Momentum { found })
            );
        }
        assert!(MomentumMemory::new(f32::NAN).is_err());
        let memory = MomentumMemory::new(0.9).unwrap();
        for found in [0.0, -1.0, 1e-40, f32::INFINITY] {
            assert_eq!(
                memory.with_local_clipping(found),
                Err(MemoryError::Norm { found })
            );
        }
    }
}
