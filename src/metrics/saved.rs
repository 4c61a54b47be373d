//! Accumulators in a checkpoint.
//!
//! A checkpoint merges what is pending as a synchronization does, but by its own first meeting: every rank tells what it has
//! pending, and all add it up. That is no synchronization: it has no ordinal and is not replayed.
//!
//! What is kept, between the head and the checksum of all states of this crate, is the length in bytes (u32) of:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | number of accumulators; for each: |
//! | text | its name |
//! | | what is synchronized: 4 the number of keys, then each as a text, its kind, length, edges, and what it holds |
//! | 4 | number of epochs with a history; for each: |
//! | 8 | 0 for the time outside of epochs, else the epoch's number and 1 |
//! | 4 | number of synchronizations; for each: |
//! | text | where it was called |
//! | | what was synchronized, as above |

use super::bytes::{
    Has, Pending, Told, get_accumulators, get_pending, put_count, put_results, put_text,
};
use super::content::Content;
use super::peers::{content_differs, differ};
use super::registry::{Metrics, Results, State, inside_block};
use super::value::Value;
use crate::checkpoint::{self, Entry, Reader, StateError, Whose, Writer, saved_by};
use crate::replica::shared::Shared;
use crate::replica::{Error, Replica};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::{Arc, PoisonError, Weak};
use std::thread;

/// The state's name in a checkpoint.
const NAME: &str = "gradring.metrics";
const KIND: &str = "metrics";
const VERSION: u32 = 1;
/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// Makes the accumulators part of checkpoints, and loads them from the one that the run resumes from.
pub(super) fn register(replica: &Replica, metrics: &Arc<Metrics>) -> Result<(), Error> {
    let registered = metrics.registered.lock();
    let mut registered = registered.unwrap_or_else(PoisonError::into_inner);
    if !*registered {
        let saved = Saved {
            metrics: Arc::clone(metrics),
            shared: Arc::downgrade(replica.shared()),
        };
        checkpoint::register(replica, Arc::new(saved))?;
        *registered = true;
    }
    Ok(())
}

struct Saved {
    metrics: Arc<Metrics>,
    /// Which keeps this.
    shared: Weak<Shared>,
}

impl Entry for Saved {
    fn name(&self) -> &str {
        NAME
    }

    fn whose(&self) -> Whose {
        Whose::Shared
    }

    fn not_ready(&self) -> Option<String> {
        let here = thread::current().id();
        self.metrics.cores().into_iter().find_map(|core| {
            if core.holder().is_some_and(|holder| holder != here) {
                return Some(format!("accumulator {} is another thread's", core.name));
            }
            let inside = core.state().is_none();
            inside.then(|| format!("accumulator {} is in its synchronized block", core.name))
        })
    }

    fn contribution(&self) -> Vec<u8> {
        let Some(shared) = self.shared.upgrade() else {
            return Vec::new();
        };
        let cells = self.metrics.cells(&shared);
        let mut out = Vec::new();
        let cores = self.metrics.cores();
        put_count(&mut out, cores.len());
        for core in cores {
            put_text(&mut out, &core.name);
            // Where a block has it this rank is not ready, and nobody looks at what it gives.
            let state = core.state();
            let pending = state.iter();
            let pending: Vec<_> = pending
                .flat_map(|state| state.pending_contents(&cells))
                .collect();
            put_count(&mut out, pending.len());
            for (key, content) in pending {
                put_text(&mut out, key);
                content.write(&mut out);
            }
            match state.as_deref().filter(|state| state.kept) {
                None => out.push(0),
                Some(state) => {
                    out.push(1 + u8::from(state.begins));
                    out.extend(state.changes.to_le_bytes());
                    if state.begins {
                        put_results(&mut out, &state.results);
                    }
                }
            }
        }
        out
    }

    fn agree(&self, all: &[&[u8]]) -> Result<(), Error> {
        let Some(shared) = self.shared.upgrade() else {
            return Ok(());
        };
        let mut ranks: Vec<Pending> = Vec::new();
        for (rank, bytes) in all.iter().enumerate() {
            let mut rest = *bytes;
            match get_pending(&mut rest).filter(|_| rest.is_empty()) {
                Some(pending) => ranks.push(pending),
                None => return Err(broken(&shared, rank)),
            }
        }
        let mut changed: BTreeMap<&str, Arc<Results>> = BTreeMap::new();
        for Told { name, .. } in ranks.iter().flatten() {
            if !changed.contains_key(&**name) {
                changed.insert(name, self.add_up(&shared, name, &ranks)?);
            }
        }
        let cells = self.metrics.cells(&shared);
        for (name, results) in changed {
            let core = self.metrics.core(name);
            let mut state = core.state().ok_or_else(inside_block)?;
            state.agree_on(results);
            // A rank that asks for it later has the same as the others.
            state.kept = true;
            state.forget(&cells);
            core.outdate();
        }
        Ok(())
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        let mut bytes = Vec::new();
        let cores = self.metrics.cores();
        put_count(&mut bytes, cores.len());
        for core in cores {
            let Some(state) = core.state() else {
                return Err(StateError::NotNow {
                    state: NAME.to_owned(),
                    why: format!("accumulator {} is in its synchronized block", core.name),
                });
            };
            put_text(&mut bytes, &core.name);
            put_results(&mut bytes, &state.results);
            let snapshots = &state.history.snapshots;
            put_count(&mut bytes, snapshots.len());
            for (epoch, snapshots) in snapshots {
                let epoch = epoch.map_or(0, |epoch| epoch.saturating_add(1));
                bytes.extend(epoch.to_le_bytes());
                put_count(&mut bytes, snapshots.len());
                for snapshot in snapshots {
                    put_text(&mut bytes, &snapshot.site);
                    put_results(&mut bytes, &snapshot.results);
                }
            }
        }
        let mut writer = Writer::begin(out, NAME, KIND, VERSION)?;
        writer.count("bytes", bytes.len())?;
        writer.bytes(&bytes)?;
        writer.finish()
    }

    fn load(
        &self,
        old: &mut [&mut dyn Read],
        _rank: usize,
        _world_size: usize,
    ) -> Result<(), StateError> {
        let from = saved_by(NAME, old, 0)?;
        let mut reader = Reader::begin(from, NAME, KIND, VERSION)?;
        let length = reader.u32("how many bytes there are")? as usize;
        let mut bytes = Vec::new();
        let mut piece = vec![0; PIECE];
        while bytes.len() < length {
            let most = PIECE.min(length - bytes.len());
            let read = reader.some(&mut piece[..most])?;
            if read == 0 {
                return Err(StateError::Short {
                    state: NAME.to_owned(),
                    what: "its accumulators",
                    expected: length as u64,
                    found: bytes.len() as u64,
                });
            }
            bytes.extend_from_slice(&piece[..read]);
        }
        let mut rest = &bytes[..];
        let all = get_accumulators(&mut rest).filter(|_| rest.is_empty());
        let Some(all) = all else {
            let at = bytes.len() - rest.len();
            return Err(reader.differs(
                "its accumulators",
                "accumulators",
                format!("something else at byte {at} of {length}"),
            ));
        };
        reader.finish()?;
        for (name, loaded) in all {
            let core = self.metrics.core(&name);
            let Some(mut state) = core.state() else {
                continue;
            };
            state.agree_on(loaded.results);
            state.history.snapshots = loaded.snapshots;
            state.kept = true;
            core.outdate();
        }
        Ok(())
    }
}

impl Saved {
    /// What all ranks have pending for one accumulator, added to what is synchronized.
    fn add_up(
        &self,
        shared: &Shared,
        name: &str,
        ranks: &[Pending],
    ) -> Result<Arc<Results>, Error> {
        let core = self.metrics.core(name);
        let state = core.state().ok_or_else(inside_block)?;
        let told = || {
            let ranks = ranks.iter().enumerate();
            ranks.flat_map(|(rank, told)| told.iter().map(move |told| (rank, told)))
        };
        let of_this = || told().filter(move |(_, told)| told.name == name);
        let said: Vec<(usize, u64)> = of_this()
            .filter_map(|(rank, told)| Some((rank, told.has.changes()?)))
            .collect();
        if let Some(error) = content_differs(name, &said) {
            return Err(error);
        }
        let begun = of_this().find_map(|(_, told)| match &told.has {
            Has::Begun(_, results) => Some(results),
            Has::Nothing | Has::Common(_) => None,
        });
        // Who asks for it later would have been given the same.
        let old = match begun {
            Some(begun) if !state.kept => begun,
            _ => &state.results,
        };
        let mut sums: BTreeMap<&str, Content> = BTreeMap::new();
        let of_rank = |rank: &'_ Pending| -> Vec<usize> {
            let named = |told: &Told| told.name == name;
            (0..rank.len()).filter(|&at| named(&rank[at])).collect()
        };
        for (rank, pending) in ranks.iter().enumerate() {
            for (key, content) in of_rank(pending)
                .into_iter()
                .flat_map(|at| &pending[at].keys)
            {
                let form = content.form();
                let sum = match sums.get_mut(&**key) {
                    Some(sum) => sum,
                    None => {
                        let old = old.get(&**key).map(|value| &value.0);
                        // By no correct rank: all have the same results, and add only what fits.
                        if old.is_some_and(|old| !old.is(&form)) {
                            return Err(broken(shared, rank));
                        }
                        let begin = old.cloned().unwrap_or_else(|| Content::nothing(&form));
                        sums.entry(key).or_insert(begin)
                    }
                };
                if !sum.is(&form) {
                    let mut values = Vec::new();
                    for (rank, pending) in ranks.iter().enumerate() {
                        let all = of_rank(pending);
                        let all = all.into_iter().flat_map(|at| &pending[at].keys);
                        let same = all.filter(|(of, _)| of == key);
                        values.extend(same.map(|(_, x)| (rank, x.form().to_string())));
                    }
                    return Err(differ(name, key, values));
                }
                // Of one form they always merge.
                if !sum.merge(content) {
                    return Err(broken(shared, rank));
                }
            }
        }
        let mut results = Arc::clone(old);
        for (key, mut content) in sums {
            if !content.finish() {
                return Err(core.overflow(key));
            }
            let results = Arc::make_mut(&mut results);
            results.insert(key.into(), Arc::new(Value(content)));
        }
        Ok(results)
    }
}

fn broken(shared: &Shared, rank: usize) -> Error {
    shared.broken(
        rank,
        "what it has pending in accumulators is not what was agreed",
    )
}

impl State {
    /// What is pending, by key.
    fn pending_contents(&self, cells: &super::registry::Cells) -> Vec<(&str, Content)> {
        let words = cells.words();
        let read = |(key, form, at): (_, &_, usize)| {
            let mut content = Content::nothing(form);
            content.add_words(words.get(at..).unwrap_or_default());
            // It has been added within 64 bits.
            let _ = content.finish();
            (key, content)
        };
        self.all_pending().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::Snapshot;
    use super::*;
    use proptest::prelude::*;

    fn saved() -> Saved {
        let metrics = Arc::new(Metrics::default());
        let core = metrics.core("training");
        {
            let mut state = core.state().unwrap();
            let mut results = Results::new();
            results.insert("n".into(), Arc::new(Value::from(3)));
            results.insert("loss".into(), Arc::new(Value::from(0.1)));
            results.insert("v".into(), Arc::new(Value::from(vec![0.5, -1e300])));
            results.insert("best".into(), Arc::new(Value::maximum(0.75)));
            state.results = Arc::new(results);
            for epoch in [None, Some(4)] {
                let snapshot = Snapshot {
                    site: "src/main.rs:7:9".into(),
                    results: Arc::clone(&state.results),
                };
                state.history.record(epoch, snapshot);
            }
        }
        metrics.core("another");
        Saved {
            metrics,
            shared: Weak::new(),
        }
    }

    fn bytes(saved: &Saved) -> Vec<u8> {
        let mut bytes = Vec::new();
        saved.save(&mut bytes).unwrap();
        bytes
    }

    fn load(bytes: &[u8]) -> Result<Saved, StateError> {
        let saved = Saved {
            metrics: Arc::default(),
            shared: Weak::new(),
        };
        let mut from = bytes;
        let from: &mut dyn Read = &mut from;
        saved.load(&mut [from], 0, 1)?;
        Ok(saved)
    }

    #[test]
    fn accumulators_come_back_with_their_history() {
        let written = bytes(&saved());
        let loaded = load(&written).unwrap();
        assert_eq!(bytes(&loaded), written);
        let core = loaded.metrics.core("training");
        let state = core.state().unwrap();
        assert_eq!(state.results["loss"].sum(), Some(0.1));
        assert_eq!(state.results["best"].max(), Some(0.75));
        assert_eq!(state.history.next(Some(4)).0, 0);
        assert!(state.history.next(Some(4)).1.is_some());
    }

    #[test]
    fn damage_is_an_error_and_changes_nothing() {
        let written = bytes(&saved());
        for at in 0..written.len() {
            let mut damaged = written.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(load(&damaged).is_err(), "byte {at}");
            assert!(load(&written[..at]).is_err(), "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_accumulators_or_none(
            bytes in prop::collection::vec(prop_oneof![Just(0), 0_u8..10, any::<u8>()], 0..200),
        ) {
            let mut rest = &bytes[..];
            let _ = get_accumulators(&mut rest);
            let mut rest = &bytes[..];
            let _ = get_pending(&mut rest);
        }
    }
}
