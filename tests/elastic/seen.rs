//! What data loops have seen, kept by the same checkpoints as their position.

use crate::harness::{Ended, Generation};
use gradring::Replica;
use gradring::checkpoint::{Kept, Value};
use gradring::progress::Batch;
use std::collections::BTreeMap;

/// Samples that a replica has seen, each with the name of the loop.
pub struct Seen(Kept<Vec<(String, usize)>>);

impl Seen {
    /// Of this replica; what a run of another number of replicas has seen is dealt out to all.
    pub fn of(replica: &Replica) -> Self {
        let value = Value::per_replica("seen", Vec::new());
        let value = value.merged_by(|old, rank, world_size| {
            let old = old.into_iter().enumerate();
            let own = old.filter(|(at, _)| at % world_size == rank);
            own.flat_map(|(_, seen)| seen).collect()
        });
        Self(replica.keep_value(value).expect("nobody else keeps this"))
    }

    pub fn see(&self, name: &str, batch: &Batch) {
        let mut seen = self.0.lock().expect("no guard is held");
        let samples = batch.indices().iter();
        seen.extend(samples.map(|sample| (name.to_owned(), *sample)));
    }

    /// How many samples this replica has seen.
    pub fn len(&self) -> usize {
        self.0.lock().expect("no guard is held").len()
    }

    /// Tells the test all of it.
    pub fn tell(&self, generation: &Generation) {
        for (name, sample) in &*self.0.lock().expect("no guard is held") {
            generation.tell(format!("seen {name} {sample}"));
        }
    }
}

/// What all replicas of the last generation have told, by the loop's name, ascending.
pub fn all(ended: &[Ended]) -> BTreeMap<String, Vec<usize>> {
    let mut all: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let last = ended.last().expect("there was a generation");
    for line in last.all("seen ").into_iter().flatten() {
        let (name, sample) = line.split_once(' ').expect("two words");
        let sample = sample.parse().expect("a number");
        all.entry(name.to_owned()).or_default().push(sample);
    }
    for seen in all.values_mut() {
        seen.sort_unstable();
    }
    all
}

/// Each of these loops, and no other, has seen each sample of its so many once.
pub fn exactly_once(ended: &[Ended], loops: &[(&str, usize)]) {
    let all = all(ended);
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    let mut expected: Vec<&str> = loops.iter().map(|(name, _)| *name).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for (name, samples) in loops {
        assert!(
            all[*name].iter().copied().eq(0..*samples),
            "{name}: {:?}",
            all[*name]
        );
    }
}
