//! Accumulators as bytes: in a checkpoint, and in what ranks tell each other when one is made.
//!
//! Little-endian; how many there are of something, and how long a text is, are u32. Whatever the bytes are, reading gives what
//! they stand for or nothing.

use super::content::Content;
use super::history::Snapshot;
use super::registry::Results;
use super::value::Value;
use crate::shm::cells::MAX_TEXT;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest text that says where a synchronization was called.
const LONGEST_SITE: usize = 1 << 16;
/// What a rank tells of its accumulators.
pub(super) type Pending = Vec<Told>;

/// What a rank tells of one accumulator.
pub(super) struct Told {
    pub(super) name: String,
    /// What is pending, by key.
    pub(super) keys: Vec<(String, Content)>,
    pub(super) has: Has,
}

/// What a rank has of an accumulator's content.
pub(super) enum Has {
    /// It has not asked for the accumulator yet.
    Nothing,
    /// What all have, and what it has made of that by itself.
    Common(u64),
    /// What it was given to begin with, which others may not have been given.
    Begun(u64, Arc<Results>),
}

impl Has {
    pub(super) fn changes(&self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Common(changes) | Self::Begun(changes, _) => Some(*changes),
        }
    }
}

/// What a checkpoint has of one accumulator.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) results: Arc<Results>,
    pub(super) snapshots: BTreeMap<Option<u64>, Vec<Snapshot>>,
}

pub(super) fn put_count(out: &mut Vec<u8>, count: usize) {
    // More than 2^32 would be as many times more bytes than there is memory.
    out.extend((count as u32).to_le_bytes());
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_count(out, text.len());
    out.extend(text.as_bytes());
}

pub(super) fn put_results(out: &mut Vec<u8>, results: &Results) {
    put_count(out, results.len());
    for (key, value) in results {
        put_text(out, key);
        value.0.write(out);
    }
}

pub(super) fn get_count(from: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(from.split_off(..4)?.try_into().ok()?))
}

pub(super) fn get_word(from: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(from.split_off(..8)?.try_into().ok()?))
}

pub(super) fn get_text(from: &mut &[u8], longest: usize) -> Option<String> {
    let length = get_count(from)? as usize;
    if length == 0 || length > longest {
        return None;
    }
    String::from_utf8(from.split_off(..length)?.to_vec()).ok()
}

pub(super) fn get_results(from: &mut &[u8]) -> Option<Arc<Results>> {
    let mut results = Results::new();
    for _ in 0..get_count(from)? {
        let key = get_text(from, MAX_TEXT)?;
        let mut content = Content::read(from)?;
        let value = content.finish().then(|| Arc::new(Value(content)))?;
        if results.insert(key.into(), value).is_some() {
            return None;
        }
    }
    Some(Arc::new(results))
}

pub(super) fn get_accumulators(from: &mut &[u8]) -> Option<BTreeMap<String, Loaded>> {
    let mut all = BTreeMap::new();
    for _ in 0..get_count(from)? {
        let name = get_text(from, MAX_TEXT)?;
        let mut loaded = Loaded {
            results: get_results(from)?,
            snapshots: BTreeMap::new(),
        };
        for _ in 0..get_count(from)? {
            let epoch = get_word(from)?;
            let mut snapshots = Vec::new();
            for _ in 0..get_count(from)? {
                snapshots.push(Snapshot {
                    site: get_text(from, LONGEST_SITE)?.into(),
                    results: get_results(from)?,
                });
            }
            let epoch = epoch.checked_sub(1);
            if loaded.snapshots.insert(epoch, snapshots).is_some() {
                return None;
            }
        }
        if all.insert(name, loaded).is_some() {
            return None;
        }
    }
    Some(all)
}

pub(super) fn get_pending(from: &mut &[u8]) -> Option<Pending> {
    let mut pending = Vec::new();
    for _ in 0..get_count(from)? {
        let name = get_text(from, MAX_TEXT)?;
        let mut keys = Vec::new();
        for _ in 0..get_count(from)? {
            keys.push((get_text(from, MAX_TEXT)?, Content::read(from)?));
        }
        let has = match from.split_off_first()? {
            0 => Has::Nothing,
            1 => Has::Common(get_word(from)?),
            2 => Has::Begun(get_word(from)?, get_results(from)?),
            _ => return None,
        };
        pending.push(Told { name, keys, has });
    }
    Some(pending)
}
