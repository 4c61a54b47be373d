//! What a policy remembers from step to step, as numbers that can be saved, restored and merged.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// What a policy remembers from step to step. Settings are no part of it: a restored policy keeps its own.
///
/// Two states are equal when their kinds are and their numbers have the same bits. With serde each number becomes the
/// integer that has its 64 bits: not every format, nor every reader of one, keeps a decimal's last digit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyState {
    /// The [`kind`](super::ThresholdPolicy::kind) of the policy that it is of.
    pub kind: String,
    /// The policy's own numbers, in its own order. Finite in every state that this crate's policies give.
    #[serde(serialize_with = "write_bits", deserialize_with = "read_bits")]
    pub numbers: Vec<f64>,
}

fn write_bits<S: Serializer>(numbers: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|x| x.to_bits()))
}

fn read_bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let bits = Vec::<u64>::deserialize(deserializer)?;
    Ok(bits.into_iter().map(f64::from_bits).collect())
}

impl PolicyState {
    /// The state of a policy of this kind.
    #[must_use]
    pub fn new(kind: impl Into<String>, numbers: impl Into<Vec<f64>>) -> PolicyState {
        PolicyState {
            kind: kind.into(),
            numbers: numbers.into(),
        }
    }

    /// The numbers, if the state is of this kind.
    ///
    /// # Errors
    /// [`PolicyStateError::Kind`] if it is of another one.
    pub fn numbers_of(&self, kind: &str) -> Result<&[f64], PolicyStateError> {
        if self.kind == kind {
            Ok(&self.numbers)
        } else {
            Err(PolicyStateError::Kind {
                expected: kind.into(),
                found: self.kind.clone(),
            })
        }
    }

    /// Makes sure that the state is of this kind and has no numbers: what a policy without memory takes.
    ///
    /// # Errors
    /// [`PolicyStateError::Kind`], [`PolicyStateError::Count`].
    pub fn expect_none(&self, kind: &str) -> Result<(), PolicyStateError> {
        match self.numbers_of(kind)?.len() {
            0 => Ok(()),
            found => Err(PolicyStateError::Count {
                expected: "none",
                found,
            }),
        }
    }
}

impl PartialEq for PolicyState {
    fn eq(&self, other: &PolicyState) -> bool {
        let bits = |state: &PolicyState| state.numbers.clone().into_iter().map(f64::to_bits);
        self.kind == other.kind && bits(self).eq(bits(other))
    }
}

impl Eq for PolicyState {}

/// Why a state cannot be restored or merged. The policy is as it was before.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PolicyStateError {
    /// Another policy's state.
    #[error("a state of policy {found}, expected one of {expected}")]
    Kind {
        /// The policy's kind.
        expected: String,
        /// The state's kind.
        found: String,
    },
    /// A wrong number of numbers.
    #[error("a state of {found} numbers, expected {expected}")]
    Count {
        /// How many it can have.
        expected: &'static str,
        /// How many there are.
        found: usize,
    },
    /// A number that the policy never has.
    #[error("{what} of {found:e} in a state, expected {expected}")]
    Number {
        /// What it stands for.
        what: &'static str,
        /// What it can be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// There is nothing to merge.
    #[error("no states to merge, expected at least 1")]
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_equal_when_kinds_and_bits_are() {
        let state = |kind: &str, x: f64| PolicyState::new(kind, [x]);
        assert_eq!(state("a", f64::NAN), state("a", f64::NAN));
        assert_eq!(state("a", 1.0), state("a", 1.0));
        assert_ne!(state("a", 0.0), state("a", -0.0));
        assert_ne!(state("a", 1.0), state("b", 1.0));
        assert_ne!(state("a", 1.0), PolicyState::new("a", []));
    }

    #[test]
    fn a_state_goes_through_serde_bit_for_bit() {
        // The first is one whose decimal digits serde_json reads as its neighbour.
        let numbers = [0.051_965_728_701_737_476, 1.0 / 3.0, -0.0, f64::NAN, 1e300];
        let state = PolicyState::new("Adaptive", numbers);
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<PolicyState>(&text).unwrap(), state);
        for damaged in [
            r#"{"kind":"a"}"#,
            r#"{"kind":"a","numbers":[0.5]}"#,
            r#"{"kind":"a","numbers":[-1]}"#,
        ] {
            assert!(serde_json::from_str::<PolicyState>(damaged).is_err());
        }
    }
}
