//! The accumulator in its synchronized mode.

use super::addend::Addend;
use super::registry::{Results, State, check_text, check_value};
use super::value::Value;
use crate::replica::Error;
use std::sync::{Arc, MutexGuard};

/// An accumulator's content, the same on all replicas, to be read and changed like a map. All replicas must do the same with
/// it, in the same order: the next synchronization or checkpoint compares what they did, and is the same
/// [`Error::Disagreement`] on all where they differ. Made by
/// [`Accumulator::synchronized`](super::Accumulator::synchronized); dropped, it ends the mode.
///
/// What is changed here stays for the next synchronization, also what was changed before a panic. In a block that is
/// [replayed](Self::replayed) it does not: what came of it is known already.
#[must_use = "the synchronized mode ends where this is dropped"]
pub struct Synchronized<'a> {
    name: &'a str,
    state: MutexGuard<'a, State>,
    /// A copy: what happened is not changed by what is done with it again.
    replayed: Option<Arc<Results>>,
}

impl<'a> Synchronized<'a> {
    pub(super) fn new(
        name: &'a str,
        state: MutexGuard<'a, State>,
        replayed: Option<Arc<Results>>,
    ) -> Self {
        Self {
            name,
            state,
            replayed,
        }
    }

    fn map(&self) -> &Results {
        self.replayed.as_deref().unwrap_or(&self.state.results)
    }

    /// Sets a key, or removes it; what it was.
    fn change(&mut self, key: &str, to: Option<Value>) -> Option<Value> {
        if self.replayed.is_none() {
            self.state.note(key, to.as_ref());
        }
        let map = Arc::make_mut(self.replayed.as_mut().unwrap_or(&mut self.state.results));
        let old = match to {
            Some(value) => map.insert(key.into(), Arc::new(value)),
            None => map.remove(key),
        };
        old.map(Arc::unwrap_or_clone)
    }

    /// Whether this happened before a restart, and is only shown again: code that must not be run twice, such as printing,
    /// can ask.
    pub fn replayed(&self) -> bool {
        self.replayed.is_some()
    }

    /// The same block: a nested one communicates nothing, and its end does not end this one.
    ///
    /// ```
    /// # let replica = gradring::Replica::join()?;
    /// let mut training = replica.accumulator("training")?;
    /// training.add("x", 1)?;
    /// let mut all = training.synchronized()?;
    /// all.synchronized().insert("y", 2);
    /// assert_eq!((all.count("x")?, all.count("y")?), (1, 2));
    /// # Ok::<(), gradring::Error>(())
    /// ```
    pub fn synchronized(&mut self) -> &mut Self {
        self
    }

    /// What stands under a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map().get(key).map(|value| &**value)
    }

    /// Whether there is this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.map().contains_key(key)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    /// Keys and what stands under them, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map().iter().map(|(key, value)| (&**key, &**value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// Sets a key, whatever it was; what it was.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key of no or more than 192 bytes, or a vector of more than 2^24 elements.
    pub fn insert(&mut self, key: &str, value: impl Into<Value>) -> Result<Option<Value>, Error> {
        check_text("key of an accumulator", key)?;
        let value = value.into();
        check_value(&value)?;
        Ok(self.change(key, Some(value)))
    }

    /// Removes a key; what it was.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        if !self.contains_key(key) {
            return None;
        }
        self.change(key, None)
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        if self.replayed.is_none() {
            for key in self.state.results.clone().keys() {
                self.state.note(key, None);
            }
        }
        *self.replayed.as_mut().unwrap_or(&mut self.state.results) = Arc::default();
    }

    /// Adds to a key that is there: once, since all replicas do it.
    ///
    /// # Errors
    /// [`Error::Kind`] if it is not there or is something else; [`Error::Overflow`]. Nothing has changed then.
    pub fn add(&mut self, key: &str, x: impl Addend) -> Result<(), Error> {
        self.apply(key, &x, false)
    }

    /// Subtracts from a key that is there.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn sub(&mut self, key: &str, x: impl Addend) -> Result<(), Error> {
        self.apply(key, &x, true)
    }

    /// Adds each of these, as [`add`](Self::add).
    ///
    /// # Errors
    /// As [`add`](Self::add), for the first that cannot be added; those before it have been.
    pub fn extend<K: AsRef<str>, X: Addend>(
        &mut self,
        all: impl IntoIterator<Item = (K, X)>,
    ) -> Result<(), Error> {
        for (key, x) in all {
            self.add(key.as_ref(), x)?;
        }
        Ok(())
    }

    fn apply(&mut self, key: &str, x: &impl Addend, subtract: bool) -> Result<(), Error> {
        let form = x.form();
        let old = match self.get(key) {
            Some(value) if value.0.is(&form) => value,
            found => return Err(self.other(key, &form.to_string(), found)),
        };
        let mut content = old.0.clone();
        if !content.merge(&x.content(subtract)) || !content.finish() {
            return Err(Error::Overflow {
                accumulator: self.name.to_owned(),
                key: key.to_owned(),
            });
        }
        self.change(key, Some(Value(content)));
        Ok(())
    }

    #[cold]
    fn other(&self, key: &str, expected: &str, found: Option<&Value>) -> Error {
        Error::Kind {
            accumulator: self.name.to_owned(),
            key: key.to_owned(),
            expected: expected.to_owned(),
            found: found.map_or_else(|| "not there".into(), |value| value.form().to_string()),
        }
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        as_it: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        let found = self.get(key);
        found
            .and_then(as_it)
            .ok_or_else(|| self.other(key, expected, found))
    }

    /// [`Value::count`] of a key.
    ///
    /// # Errors
    /// [`Error::Kind`] if it is not there or has none.
    pub fn count(&self, key: &str) -> Result<i64, Error> {
        self.read(key, "a count", Value::count)
    }

    /// [`Value::sum`] of a key.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn sum(&self, key: &str) -> Result<f64, Error> {
        self.read(key, "a sum", Value::sum)
    }

    /// [`Value::mean`] of a key.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn mean(&self, key: &str) -> Result<f64, Error> {
        self.read(key, "a mean", Value::mean)
    }

    /// [`Value::min`] of a key.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn min(&self, key: &str) -> Result<f64, Error> {
        self.read(key, "a minimum", Value::min)
    }

    /// [`Value::max`] of a key.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn max(&self, key: &str) -> Result<f64, Error> {
        self.read(key, "a maximum", Value::max)
    }

    /// [`Value::counts`] of a key.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn counts(&self, key: &str) -> Result<Vec<i64>, Error> {
        self.read(key, "a vector of counts", Value::counts)
    }

    /// [`Value::sums`] of a key.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn sums(&self, key: &str) -> Result<Vec<f64>, Error> {
        self.read(key, "a vector of sums", Value::sums)
    }
}

impl std::fmt::Debug for Synchronized<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
