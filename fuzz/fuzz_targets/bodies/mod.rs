//! What each target does with its input. An ordinary test runs the same on the seeds.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each target includes all and uses its own"
)]

pub mod compact;
pub mod compat;
pub mod guard;
pub mod record;

/// An input's bytes, taken from the front. Where there are no more, zeros.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    /// Three bytes, little-endian: as many as a chunk's elements have, and more.
    pub fn number(&mut self) -> usize {
        (0..3).map(|at| usize::from(self.byte()) << (8 * at)).sum()
    }
}
