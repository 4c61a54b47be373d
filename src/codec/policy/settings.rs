//! What every policy can be told: a limit on the hits of a step, and what a hit sends.

use super::PolicyError;
use crate::codec::{Unit, cut8};

/// What a hit sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magnitude {
    /// The mean |s| of the hits, at most two thresholds (sparse ternary compression, Sattler 2019): the same bytes move
    /// the parameters further. A policy that takes no sample uses the mean of the step before, which lies near.
    Mean,
    /// The threshold.
    Threshold,
}

/// The most hits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// As the policy itself has it.
    Own,
    Hits(usize),
    Unlimited,
}

/// The settings that every policy has. [`common_settings`] makes the methods that change them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    limit: Limit,
    magnitude: Magnitude,
}

impl Settings {
    pub(super) fn new(magnitude: Magnitude) -> Settings {
        Settings {
            limit: Limit::Own,
            magnitude,
        }
    }

    pub(super) fn set_limit(&mut self, hits: Option<usize>) {
        self.limit = hits.map_or(Limit::Unlimited, Limit::Hits);
    }

    pub(super) fn set_magnitude(&mut self, magnitude: Magnitude) {
        self.magnitude = magnitude;
    }

    /// The limit, where the policy itself has `own`.
    pub(super) fn limit(&self, own: Option<usize>) -> Option<usize> {
        match self.limit {
            Limit::Own => own,
            Limit::Hits(hits) => Some(hits),
            Limit::Unlimited => None,
        }
    }

    /// Threshold `t` with what a hit sends; `mean` is asked only where it counts, and is `None` without hits.
    pub(super) fn unit(&self, t: f32, mean: impl FnOnce() -> Option<f64>) -> Unit {
        let v = match self.magnitude {
            Magnitude::Threshold => t,
            Magnitude::Mean => mean().map_or(t, |mean| mean as f32),
        };
        Unit::nearest(t, v)
    }
}

/// The methods of `$policy` that change its [`Settings`], which lie at `$settings`.
macro_rules! common_settings {
    ($policy:ident, $($settings:ident).+) => {
        impl $policy {
            /// At most `hits` a step.
            #[must_use]
            pub fn with_limit(mut self, hits: usize) -> $policy {
                self.$($settings).+.set_limit(Some(hits));
                self
            }

            /// As many hits a step as there are.
            #[must_use]
            pub fn without_limit(mut self) -> $policy {
                self.$($settings).+.set_limit(None);
                self
            }

            /// With this magnitude.
            #[must_use]
            pub fn with_magnitude(mut self, magnitude: Magnitude) -> $policy {
                self.$($settings).+.set_magnitude(magnitude);
                self
            }
        }
    };
}
pub(super) use common_settings;

/// A threshold that a user gives, cut to 8 significant bits.
///
/// # Errors
/// [`PolicyError::Threshold`] unless it is then from 2^-100 to 2^98.
pub(super) fn given_threshold(found: f32) -> Result<f32, PolicyError> {
    let t = cut8(found);
    // A NaN is in no range.
    if (Unit::LEAST..=Unit::MOST).contains(&t) {
        Ok(t)
    } else {
        Err(PolicyError::Threshold { found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_the_hits_is_sent_from_one_to_two_thresholds() {
        let settings = Settings::new(Magnitude::Mean);
        let v = |mean| settings.unit(1.0, || mean).v();
        assert_eq!(v(Some(1.5)), 1.5);
        assert_eq!(v(Some(1.501)), 1.5);
        assert_eq!(v(Some(2.5)), 2.0);
        assert_eq!(v(Some(0.3)), 1.0);
        assert_eq!(v(None), 1.0);
        assert_eq!(v(Some(f64::NAN)), 1.0);
        assert_eq!(v(Some(f64::INFINITY)), 2.0);
        let plain = Settings::new(Magnitude::Threshold);
        assert_eq!(plain.unit(1.0, || Some(1.5)).v(), 1.0);
    }

    #[test]
    fn a_given_threshold_is_cut_and_checked_after_that() {
        assert_eq!(given_threshold(1e-3), Ok(cut8(1e-3)));
        assert_eq!(given_threshold(Unit::LEAST), Ok(Unit::LEAST));
        let just_above = f32::from_bits(Unit::MOST.to_bits() + 1);
        assert_eq!(given_threshold(just_above), Ok(Unit::MOST));
        for found in [0.0, -1.0, f32::INFINITY, 1e38, 1e-38] {
            let refused = Err(PolicyError::Threshold { found });
            assert_eq!(given_threshold(found), refused);
        }
        assert!(given_threshold(f32::NAN).is_err());
    }
}
