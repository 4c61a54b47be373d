//! All accumulators of a replica, and what each of them keeps.

use super::content::Form;
use super::history::History;
use super::peers::Peers;
use super::value::Value;
use crate::replica::shared::Shared;
use crate::replica::{Error, NOTHING, digest};
use crate::shm::cells::{Deltas, Directory, Full, Key, MAX_CELLS, MAX_TEXT, Region};
use crate::shm::segment::Segment;
use crate::shm::sync::AtomicU64 as Word;
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

/// What is synchronized, by key. Shared with the history until it changes.
pub(super) type Results = BTreeMap<Arc<str>, Arc<Value>>;

/// One for each replica.
#[derive(Default)]
pub(crate) struct Metrics {
    inner: Mutex<Inner>,
    /// Whether checkpoints know of it.
    pub(super) registered: Mutex<bool>,
}

#[derive(Default)]
struct Inner {
    cells: Option<Arc<Cells>>,
    directory: Directory,
    accumulators: BTreeMap<Arc<str>, Arc<Core>>,
}

impl Metrics {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The accumulator of this name, which is made if there is none.
    pub(super) fn core(&self, name: &str) -> Arc<Core> {
        let mut inner = self.inner();
        if let Some(core) = inner.accumulators.get(name) {
            return Arc::clone(core);
        }
        let core = Arc::new(Core::new(name.into()));
        inner
            .accumulators
            .insert(Arc::clone(&core.name), Arc::clone(&core));
        core
    }

    /// All accumulators, by name.
    pub(super) fn cores(&self) -> Vec<Arc<Core>> {
        self.inner().accumulators.values().cloned().collect()
    }

    /// This replica's words.
    pub(super) fn cells(&self, shared: &Shared) -> Arc<Cells> {
        let mut inner = self.inner();
        let cells = inner
            .cells
            .get_or_insert_with(|| Arc::new(Cells::new(&shared.segment, shared.rank)));
        Arc::clone(cells)
    }

    /// Appends to the directory.
    pub(super) fn append<T>(
        &self,
        with: impl FnOnce(&mut Directory) -> Result<T, Full>,
    ) -> Result<T, Full> {
        with(&mut self.inner().directory)
    }
}

/// The words of one rank, for as long as anybody uses them.
pub(super) struct Cells {
    words: NonNull<[Word]>,
    cells: usize,
    _segment: Arc<Segment>,
}

// SAFETY: atomics in a mapping that lives as long as the segment, which is kept.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(segment: &Arc<Segment>, rank: usize) -> Self {
        Self {
            words: NonNull::from(segment.cells(rank)),
            cells: segment.layout().cells,
            _segment: Arc::clone(segment),
        }
    }

    #[inline]
    pub(super) fn words(&self) -> &[Word] {
        // SAFETY: made from a slice of the segment's mapping, which is kept alive by this very struct.
        unsafe { self.words.as_ref() }
    }

    pub(super) fn region(&self) -> Region<'_> {
        Region::new(self.words(), self.cells)
    }
}

/// One accumulator.
pub(super) struct Core {
    pub(super) name: Arc<str>,
    pub(super) hash: u64,
    /// Changes whenever what was known about where to add is known no more.
    version: AtomicU64,
    /// The thread that has the accumulator or a handle to one of its keys.
    holder: Mutex<Option<ThreadId>>,
    state: Mutex<State>,
}

impl Core {
    fn new(name: Arc<str>) -> Self {
        Self {
            hash: hash(&name),
            name,
            version: AtomicU64::new(1),
            holder: Mutex::new(None),
            state: Mutex::new(State::default()),
        }
    }

    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    pub(super) fn outdate(&self) {
        self.version.fetch_add(1, Relaxed);
    }

    pub(super) fn holder(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its state; `None` while a synchronized block has it. Never waits: the thread that has it may be this one.
    pub(super) fn state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            // A panic in a block: what it wrote before stays.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn kind_error(&self, key: &str, expected: &Form, found: impl ToString) -> Error {
        Error::Kind {
            accumulator: self.name.to_string(),
            key: key.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    pub(super) fn overflow(&self, key: &str) -> Error {
        Error::Overflow {
            accumulator: self.name.to_string(),
            key: key.to_owned(),
        }
    }
}

/// What an accumulator keeps; used by one thread at a time.
#[derive(Default)]
pub(super) struct State {
    /// The number of its entry in this rank's directory, and what is pending.
    pub(super) deltas: Option<(u32, Deltas)>,
    /// This rank's own keys.
    keys: HashMap<Box<str>, Own>,
    /// How often what was pending has been cleared.
    turn: u64,
    /// Whether `results` are older than this process' first call for the accumulator: of a checkpoint, or of a call before.
    pub(super) kept: bool,
    pub(super) results: Arc<Results>,
    /// What this process has made of the results by itself since all compared it: the same on all replicas, or else their
    /// results are not the same any more. 0 for nothing.
    pub(super) changes: u64,
    /// Whether the results are what this process was given to begin with, and others perhaps not yet.
    pub(super) begins: bool,
    pub(super) history: History,
    pub(super) peers: Peers,
}

/// A key of this rank's own.
#[derive(Default)]
struct Own {
    /// Its entries, one for each form that it has had.
    entries: Vec<(Form, Key)>,
    /// Which of them has something pending, where its elements are, and in which turn.
    pending: Option<(usize, usize, u64)>,
}

/// Where a key's words are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The elements of the buffer that is added to.
    pub(super) elements: usize,
    pub(super) mirror: usize,
}

impl State {
    /// Makes sure that the accumulator has an entry in this rank's directory.
    pub(super) fn enter(
        &mut self,
        metrics: &Metrics,
        cells: &Cells,
        name: &str,
    ) -> Result<(), Error> {
        if self.deltas.is_none() {
            let number = metrics
                .append(|directory| directory.accumulator(cells.region(), name))
                .map_err(|full| full_error(name, "another accumulator", full))?;
            self.deltas = Some((number, Deltas::new(number)));
        }
        Ok(())
    }

    /// What is pending for a key.
    fn pending(&self, key: &str) -> Option<&Form> {
        let own = self.keys.get(key)?;
        let (which, _, turn) = own.pending?;
        (turn == self.turn).then(|| &own.entries[which].0)
    }

    /// Every key with something pending: what it is, and its first element.
    pub(super) fn all_pending(&self) -> impl Iterator<Item = (&str, &Form, usize)> {
        self.keys.iter().filter_map(|(key, own)| {
            let (which, elements, turn) = own.pending?;
            (turn == self.turn).then(|| (&**key, &own.entries[which].0, elements))
        })
    }

    /// Refuses a key that holds something else.
    fn check(&self, core: &Core, key: &str, form: &Form) -> Result<(), Error> {
        check_text("key of an accumulator", key)?;
        if let Some(value) = self.results.get(key)
            && !value.0.is(form)
        {
            return Err(core.kind_error(key, form, value.form()));
        }
        match self.pending(key) {
            Some(pending) if pending != form => Err(core.kind_error(key, form, pending)),
            _ => Ok(()),
        }
    }

    /// Which of a key's entries has this form; it is made if there is none.
    pub(super) fn declare(
        &mut self,
        metrics: &Metrics,
        cells: &Cells,
        core: &Core,
        key: &str,
        form: &Form,
    ) -> Result<usize, Error> {
        self.check(core, key, form)?;
        self.enter(metrics, cells, &core.name)?;
        let Some((accumulator, _)) = &self.deltas else {
            return Err(inside_block());
        };
        let found = self.keys.get(key).and_then(|own| {
            let mut entries = own.entries.iter();
            entries.position(|(known, _)| known == form)
        });
        if let Some(found) = found {
            return Ok(found);
        }
        let (number, start) = metrics
            .append(|directory| {
                directory.key(cells.region(), *accumulator, form.shape, key, form.edges())
            })
            .map_err(|full| full_error(&core.name, key, full))?;
        let entry = Key {
            number,
            start,
            shape: form.shape,
        };
        let own = self.keys.entry(key.into()).or_default();
        own.entries.push((form.clone(), entry));
        Ok(own.entries.len() - 1)
    }

    /// Where to add to a key.
    pub(super) fn open(
        &mut self,
        metrics: &Metrics,
        cells: &Cells,
        core: &Core,
        key: &str,
        form: &Form,
    ) -> Result<Place, Error> {
        let which = self.declare(metrics, cells, core, key, form)?;
        let (Some(own), Some((_, deltas))) = (self.keys.get_mut(key), &mut self.deltas) else {
            return Err(inside_block());
        };
        let entry = own.entries[which].1;
        let elements = match own.pending {
            Some((_, elements, turn)) if turn == self.turn => elements,
            _ => deltas.touch(cells.region(), entry),
        };
        own.pending = Some((which, elements, self.turn));
        Ok(Place {
            elements,
            mirror: entry.start,
        })
    }

    /// Drops all that is pending: it has been counted already, or is not wanted.
    pub(super) fn forget(&mut self, cells: &Cells) {
        if let Some((_, deltas)) = &mut self.deltas {
            deltas.forget(cells.region());
        }
        self.turn += 1;
    }

    /// Drops what is pending for one key.
    pub(super) fn forget_key(&mut self, cells: &Cells, key: &str) {
        let (Some(own), Some((_, deltas))) = (self.keys.get_mut(key), &mut self.deltas) else {
            return;
        };
        if let Some((which, _, turn)) = own.pending.take()
            && turn == self.turn
        {
            deltas.forget_key(cells.region(), own.entries[which].1.number);
        }
    }

    /// Notes a change that this process makes to the results by itself: to what a key is set, or that it is removed.
    pub(super) fn note(&mut self, key: &str, to: Option<&Value>) {
        let mut bytes = Vec::new();
        if let Some(value) = to {
            bytes.push(1);
            value.0.write(&mut bytes);
        }
        let all = key.bytes().chain([0]).chain(bytes);
        // Never 0, which stands for no change.
        self.changes = digest(self.changes ^ hash(""), all) | 1;
    }

    /// All have the same results, whatever has been made of them before.
    pub(super) fn agree_on(&mut self, results: Arc<Results>) {
        self.results = results;
        self.changes = 0;
        self.begins = false;
    }

    /// All ranks have read what was pending.
    pub(super) fn advance(&mut self, cells: &Cells) {
        if let Some((_, deltas)) = &mut self.deltas {
            deltas.advance(cells.region());
        }
        self.turn += 1;
    }
}

/// What a thread must not do in a synchronized block, or after one that it has leaked.
pub(super) fn inside_block() -> Error {
    Error::Invalid {
        what: "use of an accumulator",
        expected: "outside of its synchronized block".into(),
        found: "inside of it, or after one that was leaked".into(),
    }
}

pub(super) fn check_text(what: &'static str, text: &str) -> Result<(), Error> {
    if (1..=MAX_TEXT).contains(&text.len()) {
        return Ok(());
    }
    Err(Error::Invalid {
        what,
        expected: format!("1 to {MAX_TEXT} bytes"),
        found: format!("{} bytes", text.len()),
    })
}

/// Refuses what no checkpoint could be read with.
pub(super) fn check_value(value: &Value) -> Result<(), Error> {
    match value.0.elements() {
        0..=MAX_CELLS => Ok(()),
        found => Err(Error::Invalid {
            what: "elements of a vector",
            expected: format!("at most {MAX_CELLS}"),
            found: found.to_string(),
        }),
    }
}

fn full_error(accumulator: &str, key: &str, full: Full) -> Error {
    Error::MetricsFull {
        accumulator: accumulator.to_owned(),
        key: key.to_owned(),
        cells: full.cells,
        needed: full.needed,
    }
}

/// By which replicas know whether they have come for the same accumulator.
pub(super) fn hash(name: &str) -> u64 {
    digest(NOTHING, name.bytes())
}
