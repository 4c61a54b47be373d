//! What the policies of an encoder go on from: saved, restored and merged.

use super::Encoder;
use super::scope::{Scope, ScopeState, ScopeStateError};
use crate::codec::canon;
use crate::codec::policy::PolicyState;

impl Encoder {
    /// What the policies go on from, by scope.
    #[must_use]
    pub fn scope_states(&self) -> Vec<ScopeState> {
        let state = |scope: &Scope| ScopeState {
            policy: scope.policy.state(),
            last: scope.last,
        };
        self.scopes.iter().map(state).collect()
    }

    /// Goes on from such states, bit for bit. They may come from a damaged file.
    ///
    /// # Errors
    /// [`ScopeStateError`] when they are not as many as there are scopes, or one is none of its scope; nothing has
    /// changed then.
    pub fn restore_scopes(&mut self, states: &[ScopeState]) -> Result<(), ScopeStateError> {
        self.check_count(states)?;
        let before = self.scope_states();
        for (at, state) in states.iter().enumerate() {
            if let Err(error) = self.scopes[at].restore(state) {
                for (scope, state) in self.scopes.iter_mut().zip(&before).take(at + 1) {
                    // Its own state of a moment ago.
                    let _ = scope.restore(state);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The states of several replicas as one, scope by scope; thresholds by their geometric mean. For a run that goes on
    /// with another number of replicas.
    ///
    /// # Errors
    /// As [`restore_scopes`](Self::restore_scopes).
    pub fn merge_scopes(
        &self,
        states: &[Vec<ScopeState>],
    ) -> Result<Vec<ScopeState>, ScopeStateError> {
        for states in states {
            self.check_count(states)?;
        }
        let merge = |(at, scope): (usize, &Scope)| {
            let states: Vec<PolicyState> = states
                .iter()
                .map(|states| states[at].policy.clone())
                .collect();
            let policy = scope
                .policy
                .merge(&states)
                .map_err(|source| scope.error(source))?;
            // What came of the step before differs: the policy goes on from its own state alone.
            Ok(ScopeState { policy, last: None })
        };
        self.scopes.iter().enumerate().map(merge).collect()
    }

    fn check_count(&self, states: &[ScopeState]) -> Result<(), ScopeStateError> {
        self.expect_count(states.len())
    }

    fn expect_count(&self, found: usize) -> Result<(), ScopeStateError> {
        let expected = self.scopes.len();
        if found == expected {
            Ok(())
        } else {
            Err(ScopeStateError::Count { expected, found })
        }
    }

    /// The samples that the last step gathered for the thresholds of the next one, by scope, if both are streamed; empty
    /// where there is none. Each is a magnitude an element.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.scopes.iter().map(Scope::sample)
    }

    /// Goes on from such samples, bit for bit. They may come from a damaged file.
    ///
    /// # Errors
    /// [`ScopeStateError::Count`] when they are not as many as there are scopes, [`ScopeStateError::SampleLength`],
    /// [`ScopeStateError::Sample`], [`ScopeStateError::Open`] in a step; nothing has changed then.
    pub fn restore_samples<S: AsRef<[f32]>>(
        &mut self,
        samples: &[S],
    ) -> Result<(), ScopeStateError> {
        self.expect_count(samples.len())?;
        if self.is_open() {
            return Err(ScopeStateError::Open);
        }
        for (scope, sample) in self.scopes.iter().zip(samples) {
            let (elements, sample) = (scope.stats.elements, sample.as_ref());
            if sample.len() > elements {
                return Err(ScopeStateError::SampleLength {
                    name: scope.stats.name.clone(),
                    elements,
                    found: sample.len(),
                });
            }
            let is_right = |x: f32| x.is_finite() && canon(x.abs()).to_bits() == x.to_bits();
            if let Some(element) = sample.iter().position(|&x| !is_right(x)) {
                return Err(ScopeStateError::Sample {
                    name: scope.stats.name.clone(),
                    element,
                    found: sample[element],
                });
            }
        }
        for (scope, sample) in self.scopes.iter_mut().zip(samples) {
            scope.restore_sample(sample.as_ref());
        }
        Ok(())
    }
}
