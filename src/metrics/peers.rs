//! Reading what all ranks have published for one synchronization: compare first, then add up.
//!
//! What a rank's entry says never changes, so each is read once and remembered.

use super::content::{Content, Form};
use super::registry::{Core, Results, hash};
use super::value::Value;
use crate::replica::Error;
use crate::replica::shared::Shared;
use crate::shm::cells::{Entry, Region, each_pending};
use std::collections::HashMap;
use std::sync::Arc;

/// What is known of the ranks' directories, for one accumulator.
#[derive(Default)]
pub(super) struct Peers {
    ranks: Vec<Peer>,
    slots: Vec<Slot>,
    by_key: HashMap<Arc<str>, usize>,
    /// Counts the synchronizations.
    round: u64,
}

/// One rank.
#[derive(Default)]
struct Peer {
    /// Entries that have been looked through for the accumulator's own.
    looked: u32,
    entry: Option<u32>,
    keys: HashMap<u32, (usize, Form)>,
}

/// A key that some rank has.
struct Slot {
    key: Arc<str>,
    /// In which round a rank had something pending for it, what the first of them had, and where it is added up.
    pending: Option<(u64, Form, usize)>,
}

/// Why there is no result.
pub(super) enum Failure {
    /// All ranks find the same.
    Agreed(Error),
    /// A rank's words are none that a correct replica writes.
    Broken(usize, String),
}

impl Peers {
    /// The new results: `old`, and what all ranks have published in `buffer`.
    pub(super) fn add_up(
        &mut self,
        shared: &Shared,
        core: &Core,
        buffer: usize,
        old: &Arc<Results>,
    ) -> Result<Arc<Results>, Failure> {
        self.round += 1;
        self.ranks.resize_with(shared.world_size, Peer::default);
        let cells = shared.segment.layout().cells;
        self.same_changes(shared, core, buffer)?;
        let mut sums: Vec<(usize, Content)> = Vec::new();
        let mut differs = None;
        for rank in 0..shared.world_size {
            let region = Region::new(shared.segment.cells(rank), cells);
            let broken =
                |what: &str| Failure::Broken(rank, format!("cells of {}: {what}", core.name));
            let entry = self.ranks[rank]
                .find(region, core)
                .ok_or_else(|| broken("it has no such accumulator"))?;
            let mut nonsense = false;
            let whole = each_pending(region, entry, buffer, |number, entry, words| {
                let Some(slot) = self.slot(rank, region, number, entry) else {
                    nonsense = true;
                    return;
                };
                let form = &self.ranks[rank].keys[&number].1;
                let Slot { key, pending } = &mut self.slots[slot];
                let at = match pending {
                    Some((round, first, at)) if *round == self.round => {
                        if form != first {
                            differs.get_or_insert(slot);
                            return;
                        }
                        *at
                    }
                    _ => {
                        let content = match old.get(key) {
                            Some(value) if value.0.is(form) => value.0.clone(),
                            // Not by a correct rank: all have the same results, and add only what fits.
                            Some(_) => {
                                nonsense = true;
                                return;
                            }
                            None => Content::nothing(form),
                        };
                        sums.push((slot, content));
                        *pending = Some((self.round, form.clone(), sums.len() - 1));
                        sums.len() - 1
                    }
                };
                sums[at].1.add_words(words);
            });
            if !whole || nonsense {
                return Err(broken("what it has published is not what was agreed"));
            }
        }
        if let Some(slot) = differs {
            return Err(Failure::Agreed(
                self.disagreement(shared, core, buffer, slot),
            ));
        }
        for (slot, content) in &mut sums {
            if !content.finish() {
                let key = &self.slots[*slot].key;
                return Err(Failure::Agreed(core.overflow(key)));
            }
        }
        let mut results = Arc::clone(old);
        if !sums.is_empty() {
            let results = Arc::make_mut(&mut results);
            for (slot, content) in sums {
                let key = Arc::clone(&self.slots[slot].key);
                results.insert(key, Arc::new(Value(content)));
            }
        }
        Ok(results)
    }

    /// Refuses ranks that have made something else of the content: what they add up would not be the same.
    fn same_changes(&mut self, shared: &Shared, core: &Core, buffer: usize) -> Result<(), Failure> {
        let cells = shared.segment.layout().cells;
        let mut said = Vec::with_capacity(shared.world_size);
        for (rank, peer) in self.ranks.iter_mut().enumerate() {
            let region = Region::new(shared.segment.cells(rank), cells);
            let found = peer.find(region, core);
            let changes = found.and_then(|entry| region.changes(entry, buffer));
            said.push((
                rank,
                changes.ok_or_else(|| {
                    let what = format!("cells of {}: it has no such accumulator", core.name);
                    Failure::Broken(rank, what)
                })?,
            ));
        }
        match content_differs(&core.name, &said) {
            Some(error) => Err(Failure::Agreed(error)),
            None => Ok(()),
        }
    }

    /// Which key an entry of a rank is of.
    fn slot(
        &mut self,
        rank: usize,
        region: Region<'_>,
        number: u32,
        entry: Entry,
    ) -> Option<usize> {
        if let Some((slot, _)) = self.ranks[rank].keys.get(&number) {
            return Some(*slot);
        }
        let Entry::Key { shape, start, .. } = entry else {
            return None;
        };
        let mut form = Form { shape, edges: None };
        if shape.edges() > 0 {
            form.edges = Some(region.edges(shape, start).into());
        }
        let key: Arc<str> = region.text(number)?.into();
        let slot = *self.by_key.entry(Arc::clone(&key)).or_insert_with(|| {
            self.slots.push(Slot { key, pending: None });
            self.slots.len() - 1
        });
        self.ranks[rank].keys.insert(number, (slot, form));
        Some(slot)
    }

    /// Who has added what to a key.
    fn disagreement(&self, shared: &Shared, core: &Core, buffer: usize, slot: usize) -> Error {
        let cells = shared.segment.layout().cells;
        let mut values = Vec::new();
        for (rank, peer) in self.ranks.iter().enumerate() {
            let region = Region::new(shared.segment.cells(rank), cells);
            each_pending(
                region,
                peer.entry.unwrap_or(u32::MAX),
                buffer,
                |number, _, _| {
                    if let Some((_, form)) = peer.keys.get(&number).filter(|(of, _)| *of == slot) {
                        values.push((rank, form.to_string()));
                    }
                },
            );
        }
        differ(&core.name, &self.slots[slot].key, values)
    }
}

/// Why replicas that have said this of their own changes have not the same content.
pub(super) fn content_differs(accumulator: &str, said: &[(usize, u64)]) -> Option<Error> {
    if said.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return None;
    }
    let text = |(rank, changes): &(usize, u64)| {
        let text = match changes {
            0 => "nothing".to_owned(),
            changes => format!("changes with hash {changes:016x}"),
        };
        (*rank, text)
    };
    Some(Error::Disagreement {
        what: format!("accumulator {accumulator}"),
        field: "what its content began with and the last block made of it".to_owned(),
        values: said.iter().map(text).collect(),
    })
}

/// Replicas have added different kinds of things to a key.
pub(super) fn differ(accumulator: &str, key: &str, values: Vec<(usize, String)>) -> Error {
    Error::Disagreement {
        what: format!("accumulator {accumulator}"),
        field: format!("key {key}"),
        values,
    }
}

impl Peer {
    /// The accumulator's entry.
    fn find(&mut self, region: Region<'_>, core: &Core) -> Option<u32> {
        while self.entry.is_none() && self.looked < region.entries() {
            let number = self.looked;
            let own = region.entry(number) == Some(Entry::Accumulator)
                && region.text(number).as_deref() == Some(&*core.name);
            self.entry = own.then_some(number);
            self.looked += 1;
        }
        self.entry
    }
}

/// What the accumulator of a rank with this hash is called.
pub(super) fn name_of(shared: &Shared, rank: usize, hashed: u64) -> Option<String> {
    let region = Region::new(shared.segment.cells(rank), shared.segment.layout().cells);
    let mut names = (0..region.entries())
        .filter(|&number| region.entry(number) == Some(Entry::Accumulator))
        .filter_map(|number| region.text(number));
    names.find(|name| hash(name) == hashed)
}
