//! The numbers of a vector.

use std::ops::{Add, Sub};

/// An element of a vector: `f32` or `f64`. A message is the same for both.
pub trait Element: Number {}

impl Element for f32 {}
impl Element for f64 {}

/// What the formats do with a number. Nobody outside can see it, so [`Element`] has no other types.
pub trait Number: Copy + PartialOrd + Default + Add<Output = Self> + Sub<Output = Self> {
    /// A threshold in this type, exactly.
    fn from_threshold(threshold: f32) -> Self;

    /// A half of it, rounded once where it is subnormal.
    fn halved(self) -> Self;

    /// Without its sign.
    fn magnitude(self) -> Self;
}

macro_rules! number {
    ($float:ty) => {
        impl Number for $float {
            #[inline(always)]
            fn from_threshold(threshold: f32) -> $float {
                threshold.into()
            }

            #[inline(always)]
            fn halved(self) -> $float {
                self / 2.0
            }

            #[inline(always)]
            fn magnitude(self) -> $float {
                self.abs()
            }
        }
    };
}

number!(f32);
number!(f64);
