//! The accumulator in its accumulation mode.

use super::addend::Addend;
use super::content::{Form, are_edges};
use super::handles::{Count, Counts, Handle, Histogram, Max, Mean, Min, Sum, Sums};
use super::registry::{
    Cells, Core, Metrics, Place, Results, check_text, check_value, inside_block,
};
use super::saved;
use super::synchronized::Synchronized;
use super::value::Value;
use crate::replica::{Error, Replica};
use crate::shm::cells::{Kind, Mirror};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

/// An accumulator in use: by the accumulator itself and by the handles to its keys, all on one thread.
pub(super) struct Lease {
    pub(super) replica: Replica,
    pub(super) metrics: Arc<Metrics>,
    pub(super) core: Arc<Core>,
    pub(super) cells: Arc<Cells>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.core.holder() = None;
    }
}

impl Lease {
    /// Where to add to a key.
    pub(super) fn open(&self, key: &str, form: &Form) -> Result<Place, Error> {
        let mut state = self.core.state().ok_or_else(inside_block)?;
        state.open(&self.metrics, &self.cells, &self.core, key, form)
    }

    /// Takes the cells that a key needs.
    fn declare(&self, key: &str, form: &Form) -> Result<(), Error> {
        let mut state = self.core.state().ok_or_else(inside_block)?;
        let (metrics, cells) = (&self.metrics, &self.cells);
        state
            .declare(metrics, cells, &self.core, key, form)
            .map(drop)
    }
}

/// Where a key was found, as long as the accumulator's version is the same.
struct Known {
    version: u64,
    form: Form,
    place: Place,
}

/// Named sums, counts and more over all replicas: each adds its own, without any communication, and
/// [`synchronized`](Self::synchronized) gives the same totals to all.
///
/// ```
/// # fn main() -> Result<(), gradring::Error> {
/// # let batches = || [(0.5_f64, 3_usize, 4_usize), (0.25, 4, 4)];
/// let replica = gradring::Replica::join()?;
/// let mut training = replica.accumulator("training")?;
/// for epoch in 0..2 {
///     for (loss_sum, correct, samples) in batches() {
///         training.add("loss_sum", loss_sum)?;
///         training.add("correct", correct)?;
///         training.add("total", samples)?;
///     }
///     let mut all = training.synchronized()?; // the one place where replicas wait for each other
///     let total = all.count("total")? as f64;
///     let (loss, accuracy) = (all.sum("loss_sum")? / total, all.count("correct")? as f64 / total);
///     if replica.rank() == 0 {
///         println!("epoch {epoch}: loss {loss:.4}, accuracy {accuracy:.4}");
///     }
///     all.clear(); // begin again; the block ends where `all` is dropped
/// #   drop(all);
/// }
/// # Ok(())
/// # }
/// ```
///
/// **Ratios are computed from sums, inside the block. A mean of the replicas' means is wrong as soon as one of them has had
/// more samples than another.** ([`mean`](Self::mean) keeps sum and count by itself.)
///
/// Two modes, two types. In accumulation mode, this one, there is nothing to read: a replica knows its own part only. In the
/// [synchronized](Synchronized) mode all replicas have the same content, and must do the same with it: the next
/// synchronization or checkpoint compares what they did. Nothing but `synchronized` and a checkpoint communicates, and in a
/// run that has a checkpoint directory the first call for an accumulator.
///
/// What is added is exact: sums keep every bit of every addend ([`Value`]), so that totals are the same bits in whatever
/// order and by however many replicas they were added. Kinds of keys: [`add`](Self::add) takes them from the type of what is
/// added, the typed handles ([`sum`](Self::sum), [`count`](Self::count), ..) say them, are faster in hot loops, and have
/// kinds that `add` does not know. A key keeps its kind until it is removed.
///
/// The name is given by the user, and so an accumulator may be made anywhere: outside of epochs, in an epoch, in a data loop,
/// in any order. Replicas need not all have all of them; those that synchronize one must all do so. Of one name there is one
/// at a time ([`Error::Duplicate`]); a dropped one goes on where the next one of its name is made, with what was pending.
/// It is used by one thread, the one that made it, and keeps the replica in the run as an exchange does. A forked child must
/// not add: it would add to its parent's.
///
/// # Restarts
/// All accumulators are part of every [checkpoint](Replica::checkpoint), which merges what is pending first, so nothing is
/// lost when the number of replicas changes. (Where one is made, either all replicas have accumulators or none.) After a
/// restart in an epoch the program runs from the top of that epoch again, but data loops that are over are skipped. A
/// synchronization outside of data loops that had happened before returns what it returned then, without communication, and
/// drops what was added for it, for it has been counted ([`Synchronized::replayed`] tells). So the code just before an epoch
/// and just before a data loop must do no harm when it runs twice, and must come to the same synchronizations
/// ([`Error::Replay`]): in the same lines of the source, so that a program that was changed above them goes on only from a
/// checkpoint between two epochs. A synchronization inside a data loop is never repeated. What the others gave is kept until
/// their epoch is over; outside of epochs it is kept for good, so a program that synchronizes often does so in epochs or data
/// loops.
///
/// A loop of one's own that goes on from a step that was [kept](Replica::keep_value), and does not run from the top again,
/// calls [`synchronized_unrecorded`](Self::synchronized_unrecorded): by the other it would be given what its first steps gave.
///
/// # What does not compile
/// What AdaptDL's accumulator refuses when it happens:
///
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// training["loss"] = 1.0; // nothing is set in accumulation mode
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// training["loss"] += 1.0; // what is added may be refused: `add` returns a result
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// let loss = training.get("loss"); // nor read, nor compared, nor used in arithmetic
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// for key in &training {} // nor walked over
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// let keys = training.len(); // nor counted
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// training.remove("loss"); // nor removed
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// training.clear(); // nor cleared
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// let loss = training.sum("loss").unwrap();
/// training.add("loss", loss); // one key is not added to another
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// training.extend(5); // pairs of a key and a number, not a number
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// training.add(vec![1], 1.0); // keys are texts
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// let all = training.synchronized().unwrap();
/// training.add("loss", 1.0); // in the block there is only the synchronized mode
/// drop(all);
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// std::thread::spawn(move || training.add("loss", 1.0)); // one thread
/// ```
/// ```compile_fail
/// # let mut training = gradring::Replica::join().unwrap().accumulator("training").unwrap();
/// let copy = training.clone(); // one at a time
/// ```
pub struct Accumulator {
    lease: Rc<Lease>,
    known: RefCell<HashMap<Box<str>, Known>>,
}

impl Replica {
    /// The accumulator of this name, empty at first, or with what a checkpoint has kept for it.
    ///
    /// # Errors
    /// [`Error::Duplicate`] if there is one, or a handle of one; [`Error::Invalid`] for a name of no or more than 192 bytes;
    /// [`Error::MetricsFull`]: all local. In a run that has a checkpoint directory the first call waits for all replicas, as
    /// the first [`keep`](Self::keep) does, with its errors.
    pub fn accumulator(&self, name: &str) -> Result<Accumulator, Error> {
        let nothing: [(&str, Value); 0] = [];
        self.accumulator_from(name, nothing)
    }

    /// As [`accumulator`](Self::accumulator), with content that counts as synchronized: once, not once for each replica, and
    /// all must give the same: the next synchronization or checkpoint compares it. It is not used where there is an
    /// accumulator of this name already, in a checkpoint that this run has made, or in the one that it resumes from.
    ///
    /// ```
    /// # let replica = gradring::Replica::join()?;
    /// let mut best = replica.accumulator_from("best", [("epochs", 1)])?;
    /// best.add("epochs", 1)?;
    /// assert_eq!(best.synchronized()?.count("epochs")?, 2);
    /// # Ok::<(), gradring::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`accumulator`](Self::accumulator); [`Error::Invalid`] for a key of no or more than 192 bytes, or a vector of more
    /// than 2^24 elements.
    pub fn accumulator_from<K: AsRef<str>, V: Into<Value>>(
        &self,
        name: &str,
        initial: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Accumulator, Error> {
        check_text("name of an accumulator", name)?;
        let metrics = self.shared().attached::<Metrics>();
        saved::register(self, &metrics)?;
        let cells = metrics.cells(self.shared());
        let core = metrics.core(name);
        {
            let mut holder = core.holder();
            if holder.is_some() {
                return Err(Error::Duplicate {
                    what: "accumulator",
                    name: name.to_owned(),
                });
            }
            *holder = Some(thread::current().id());
        }
        let lease = Rc::new(Lease {
            replica: self.clone(),
            metrics,
            core,
            cells,
        });
        {
            let mut state = lease.core.state().ok_or_else(inside_block)?;
            state.enter(&lease.metrics, &lease.cells, name)?;
            if !state.kept {
                let mut results = Results::new();
                for (key, value) in initial {
                    let (key, value): (&str, Value) = (key.as_ref(), value.into());
                    check_text("key of an accumulator", key)?;
                    check_value(&value)?;
                    results.insert(key.into(), Arc::new(value));
                }
                for (key, value) in &results {
                    state.note(key, Some(value));
                }
                state.results = Arc::new(results);
                state.begins = true;
                state.kept = true;
            }
        }
        Ok(Accumulator {
            lease,
            known: RefCell::default(),
        })
    }
}

impl Accumulator {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.lease.core.name
    }

    /// Adds to a key, which begins at 0: an f32 or f64 to a sum, an integer or a bool to a count, a slice element by element
    /// to a vector of them. Never waits for anybody.
    ///
    /// # Errors
    /// [`Error::Kind`] if the key is something else, [`Error::Overflow`], [`Error::MetricsFull`], [`Error::Invalid`] for a
    /// key of no or more than 192 bytes. All local, and nothing has changed.
    pub fn add(&self, key: &str, x: impl Addend) -> Result<(), Error> {
        self.apply(key, &x, false)
    }

    /// Subtracts from a key; as [`add`](Self::add).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn sub(&self, key: &str, x: impl Addend) -> Result<(), Error> {
        self.apply(key, &x, true)
    }

    /// Adds each of these; a key that comes twice is added to twice.
    ///
    /// ```
    /// # let replica = gradring::Replica::join()?;
    /// let mut seen = replica.accumulator("seen")?;
    /// seen.extend([("d", 1), ("d", 2)])?;
    /// assert_eq!(seen.synchronized()?.count("d")?, 3);
    /// # Ok::<(), gradring::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`add`](Self::add), for the first that cannot be added; those before it have been.
    pub fn extend<K: AsRef<str>, X: Addend>(
        &self,
        all: impl IntoIterator<Item = (K, X)>,
    ) -> Result<(), Error> {
        for (key, x) in all {
            self.add(key.as_ref(), x)?;
        }
        Ok(())
    }

    fn apply(&self, key: &str, x: &impl Addend, subtract: bool) -> Result<(), Error> {
        let Lease { core, cells, .. } = &*self.lease;
        let (version, form) = (core.version(), x.form());
        let known = self.known.borrow().get(key).and_then(|known| {
            let same = known.version == version && known.form == form;
            same.then_some(known.place)
        });
        let place = match known {
            Some(place) => place,
            None => {
                let place = self.lease.open(key, &form)?;
                let known = Known {
                    version,
                    form,
                    place,
                };
                self.known.borrow_mut().insert(key.into(), known);
                place
            }
        };
        let words = cells.words();
        let added = words
            .get(place.mirror..)
            .and_then(|words| words.first_chunk())
            .and_then(|mirror| {
                let elements = words.get(place.elements..)?;
                x.add(elements, Mirror::new(mirror), subtract)
            });
        added.ok_or_else(|| core.overflow(key))
    }

    /// Drops what this replica has added to a key since the last synchronization: the way on after replicas have added
    /// different kinds of things to it.
    ///
    /// # Errors
    /// None but [`Error::Invalid`] after a block that was leaked.
    pub fn discard(&mut self, key: &str) -> Result<(), Error> {
        let mut state = self.lease.core.state().ok_or_else(inside_block)?;
        state.forget_key(&self.lease.cells, key);
        self.lease.core.outdate();
        Ok(())
    }

    fn handle(&self, key: &str, form: Form) -> Result<Handle, Error> {
        self.lease.declare(key, &form)?;
        Ok(Handle::new(Rc::clone(&self.lease), key, form))
    }

    /// A handle that adds to a sum. A key that nothing is added to does not come to be.
    ///
    /// # Errors
    /// [`Error::Kind`], [`Error::MetricsFull`], [`Error::Invalid`] as [`add`](Self::add).
    pub fn sum(&self, key: &str) -> Result<Sum, Error> {
        Ok(Sum(self.handle(key, Form::scalar(Kind::Sum))?))
    }

    /// A handle that counts.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn count(&self, key: &str) -> Result<Count, Error> {
        Ok(Count(self.handle(key, Form::scalar(Kind::Count))?))
    }

    /// A handle to a mean: an exact sum and a count, divided when they are read.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn mean(&self, key: &str) -> Result<Mean, Error> {
        Ok(Mean(self.handle(key, Form::scalar(Kind::Mean))?))
    }

    /// A handle that keeps the smallest number.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn min(&self, key: &str) -> Result<Min, Error> {
        Ok(Min(self.handle(key, Form::scalar(Kind::Min))?))
    }

    /// A handle that keeps the largest number.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn max(&self, key: &str) -> Result<Max, Error> {
        Ok(Max(self.handle(key, Form::scalar(Kind::Max))?))
    }

    /// A handle to a histogram: how many numbers were at most the first edge, above it and at most the second, .., above the
    /// last, and how many were NaN; and the exact sum of all. All replicas must give the same edges, which are finite and
    /// ascending.
    ///
    /// # Errors
    /// As [`sum`](Self::sum); [`Error::Invalid`] for edges that cannot be.
    pub fn histogram(&self, key: &str, edges: &[f64]) -> Result<Histogram, Error> {
        if !are_edges(edges) || u32::try_from(edges.len()).is_err() {
            return Err(Error::Invalid {
                what: "edges of a histogram",
                expected: "at least one, all finite, each larger than the one before".into(),
                found: format!("{edges:?}").chars().take(200).collect(),
            });
        }
        // One zero, whichever sign it came with.
        let edges: Vec<f64> = edges.iter().map(|edge| edge + 0.0).collect();
        Ok(Histogram(self.handle(key, Form::histogram(edges.into()))?))
    }

    /// A handle to a vector of sums, one for each class, layer, ..
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn sums(&self, key: &str, length: usize) -> Result<Sums, Error> {
        Ok(Sums(self.handle(key, vector(Kind::Sums, length)?)?))
    }

    /// A handle to a vector of counts.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn counts(&self, key: &str, length: usize) -> Result<Counts, Error> {
        Ok(Counts(self.handle(key, vector(Kind::Counts, length)?)?))
    }

    /// The synchronized mode: adds what all replicas have added since the last time to what was there, and gives it to all of
    /// them. Operation of all replicas, of one barrier, except where it is replayed (see [Restarts](Self#restarts)). The mode
    /// ends where the guard is dropped, also by a panic; what was written before stays.
    ///
    /// # Errors
    /// Agreed, with nothing changed and nothing lost, so that the run can go on: [`Error::Disagreement`] if replicas came
    /// for different accumulators or places, or added different kinds of things to one key (then [`discard`](Self::discard)
    /// it on those that were wrong), or have different content, because they began with another one or did not do the same in
    /// a block (there is no way on with this accumulator); [`Error::Overflow`]. [`Error::Replay`]. What ended the run.
    #[track_caller]
    pub fn synchronized(&mut self) -> Result<Synchronized<'_>, Error> {
        super::synchronize::synchronize(&self.lease, Location::caller(), true)
    }

    /// As [`synchronized`](Self::synchronized), but never replayed: as inside a data loop. For loops of one's own that go on
    /// from a step that was [kept](Replica::keep_value), and do not run from the top again after a restart.
    ///
    /// # Errors
    /// As [`synchronized`](Self::synchronized), but for [`Error::Replay`].
    #[track_caller]
    pub fn synchronized_unrecorded(&mut self) -> Result<Synchronized<'_>, Error> {
        super::synchronize::synchronize(&self.lease, Location::caller(), false)
    }
}

fn vector(kind: Kind, length: usize) -> Result<Form, Error> {
    let length = u32::try_from(length).map_err(|_| Error::Invalid {
        what: "length of a vector",
        expected: "less than 2^32".into(),
        found: length.to_string(),
    })?;
    Ok(Form::vector(kind, length))
}

impl std::fmt::Debug for Accumulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accumulator")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
