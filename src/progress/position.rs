//! Where a program is in its epochs and data loops: what of it is kept, and what follows for each loop that it comes to.
//!
//! Loops are counted by their order, within an epoch or outside of all epochs. After a restart the program comes to the
//! same loops again. One that the checkpoint has as finished is skipped and changes nothing; the next one goes on where it
//! was, with the positions of its order that are not done; all later ones begin.

use super::positions::Positions;
use super::sampler::{Pass, Sampler};
use super::split::Split;
use crate::replica::{Error, NOTHING, digest};

/// More epochs than anybody finishes.
pub(super) const MOST_EPOCHS: u64 = 1 << 63;
/// Bytes of the longest name of a loop.
pub(super) const LONGEST_NAME: usize = 255;

/// The loops of the current epoch, or those outside of all epochs.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The names of those that are finished, in order.
    pub(super) finished: Vec<String>,
    pub(super) running: Option<Running>,
    /// How many this process has come to and left. Not kept.
    left: usize,
}

/// A loop that has begun and is not finished.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) name: String,
    pub(super) samples: u64,
    pub(super) seed: Option<u64>,
    split: Split,
    /// How many iterations of the split this rank has begun; 0 unless this process runs it.
    begun: u64,
}

impl Running {
    /// One of which these positions are done.
    pub(super) fn kept(name: String, samples: u64, seed: Option<u64>, done: Positions) -> Self {
        let split = Split::new(samples, done, 1, 1);
        Self {
            name,
            samples,
            seed,
            split,
            begun: 0,
        }
    }

    fn text(&self) -> String {
        text(&self.name, self.samples, self.seed)
    }
}

fn text(name: &str, samples: u64, seed: Option<u64>) -> String {
    match seed {
        None => format!("{name:?} ({samples} samples in their order)"),
        Some(seed) => format!("{name:?} ({samples} samples, shuffled with seed {seed})"),
    }
}

/// The loop that this process is in.
#[derive(Clone, Copy, Debug)]
struct Active {
    number: u64,
    in_epoch: bool,
    skipped: bool,
}

/// What a loop that a program comes to will do.
pub(crate) enum Ahead {
    /// Nothing: the replicas have stopped.
    Stopped,
    /// Nothing: it is finished.
    Skipped,
    /// It begins or goes on; what all replicas must agree on.
    Runs(String),
}

/// Where a program is. Everything but the ranks' own iterations is equal on all replicas.
#[derive(Debug)]
pub(crate) struct Position {
    rank: usize,
    world_size: usize,
    /// How many epochs are finished.
    pub(super) finished: u64,
    pub(super) outside: Place,
    /// Of epoch `finished`.
    pub(super) epoch: Place,
    in_epoch: bool,
    in_epochs: bool,
    active: Option<Active>,
    /// How many loops this process has come to, the number of the next.
    numbered: u64,
    /// The replicas have stopped: what is left now is not finished.
    stopped: bool,
    /// What all replicas have done of the running loop, from when they agreed on it until one of them goes on.
    agreed: Option<Positions>,
}

impl Position {
    pub(crate) fn new(rank: usize, world_size: usize) -> Self {
        Self {
            rank,
            world_size,
            finished: 0,
            outside: Place::default(),
            epoch: Place::default(),
            in_epoch: false,
            in_epochs: false,
            active: None,
            numbered: 0,
            stopped: false,
            agreed: None,
        }
    }

    pub(crate) fn finished_epochs(&self) -> u64 {
        self.finished
    }

    fn current_epoch(&self) -> Option<u64> {
        self.in_epoch.then_some(self.finished)
    }

    fn place(&self, in_epoch: bool) -> &Place {
        if in_epoch { &self.epoch } else { &self.outside }
    }

    fn place_mut(&mut self, in_epoch: bool) -> &mut Place {
        if in_epoch {
            &mut self.epoch
        } else {
            &mut self.outside
        }
    }

    /// What a program that is in a loop must not begin.
    fn not_in_loop(&self, what: &'static str) -> Result<(), Error> {
        let Some(active) = self.active else {
            return Ok(());
        };
        let place = self.place(active.in_epoch);
        let name = match place.finished.get(place.left) {
            Some(name) => name,
            None => place.running.as_ref().map_or("", |running| &running.name),
        };
        Err(Error::Invalid {
            what,
            expected: "no other data loop at the same time".to_owned(),
            found: format!("the data loop {name:?}, which is not over"),
        })
    }

    /// A loop over epochs begins.
    pub(crate) fn begin_epochs(&mut self) -> Result<(), Error> {
        self.not_in_loop("a loop over epochs")?;
        if self.in_epochs {
            return Err(Error::Invalid {
                what: "a loop over epochs",
                expected: "one at a time".to_owned(),
                found: "another one, which is not over".to_owned(),
            });
        }
        self.in_epochs = true;
        Ok(())
    }

    /// The current epoch's body has ended, if there is one: the epoch is finished.
    pub(crate) fn end_epoch(&mut self) -> Result<(), Error> {
        if !self.in_epoch || self.stopped {
            return Ok(());
        }
        self.not_in_loop("the end of an epoch")?;
        let place = &self.epoch;
        let missing = match place.finished.get(place.left) {
            Some(name) => Some(format!("{name:?}")),
            None => place.running.as_ref().map(Running::text),
        };
        if let Some(expected) = missing {
            return Err(Error::OtherLoop {
                epoch: self.current_epoch(),
                position: place.left as u64,
                expected,
                found: "the end of the epoch".to_owned(),
            });
        }
        self.finish_epoch();
        Ok(())
    }

    fn finish_epoch(&mut self) {
        self.finished += 1;
        self.epoch = Place::default();
        self.in_epoch = false;
        self.active = None;
        self.agreed = None;
    }

    /// The next epoch, unless `until` are finished.
    pub(crate) fn begin_epoch(&mut self, until: u64) -> Option<u64> {
        self.in_epoch = !self.stopped && self.finished < until.min(MOST_EPOCHS);
        self.epoch.left = 0;
        self.current_epoch()
    }

    /// The loop over epochs is over. The epoch that it is in is finished if `finish`, and the replicas have not stopped:
    /// else it begins again when epochs do, and its finished loops are skipped.
    pub(crate) fn end_epochs(&mut self, finish: bool) {
        if self.in_epoch && finish && !self.stopped {
            self.finish_epoch();
        }
        if let Some(active) = self.active.filter(|active| active.in_epoch) {
            self.leave_loop(active.number);
        }
        self.in_epochs = false;
        self.in_epoch = false;
    }

    /// The replicas have agreed to stop, and the checkpoint is made.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// What the loop that the program has come to will do. Nothing changes.
    pub(crate) fn ahead(&self, name: &str, sampler: &Sampler) -> Result<Ahead, Error> {
        let together = sampler.together(self.world_size)?;
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(Error::Invalid {
                what: "bytes of a data loop's name",
                expected: format!("1 to {LONGEST_NAME}"),
                found: name.len().to_string(),
            });
        }
        self.not_in_loop("a data loop")?;
        if self.stopped {
            return Ok(Ahead::Stopped);
        }
        let place = self.place(self.in_epoch);
        let other = |expected, found| Error::OtherLoop {
            epoch: self.current_epoch(),
            position: place.left as u64,
            expected,
            found,
        };
        if let Some(finished) = place.finished.get(place.left) {
            return if finished == name {
                Ok(Ahead::Skipped)
            } else {
                Err(other(format!("{finished:?}"), format!("{name:?}")))
            };
        }
        let found = text(name, sampler.samples() as u64, sampler.seed());
        let mut remaining = sampler.samples() as u64;
        if let Some(running) = &place.running {
            if running.text() != found {
                return Err(other(running.text(), found));
            }
            remaining = running.split.len();
        }
        let within = match self.current_epoch() {
            Some(epoch) => format!("epoch {epoch}"),
            None => format!("no epoch ({} are finished)", self.finished),
        };
        Ok(Ahead::Runs(format!(
            "{found}, loop {} of {within}, {remaining} samples left, {together} an iteration",
            place.left
        )))
    }

    /// The loop that the program has come to begins: its number, and the samples that it goes through, none if it is
    /// skipped.
    pub(crate) fn begin_loop(
        &mut self,
        name: &str,
        sampler: &Sampler,
    ) -> Result<(u64, Option<Pass>), Error> {
        let skipped = match self.ahead(name, sampler)? {
            Ahead::Runs(_) => false,
            Ahead::Skipped | Ahead::Stopped => true,
        };
        let number = self.numbered;
        self.numbered += 1;
        let (in_epoch, epoch) = (self.in_epoch, self.current_epoch());
        let (rank, world_size) = (self.rank, self.world_size);
        if !self.stopped {
            self.active = Some(Active {
                number,
                in_epoch,
                skipped,
            });
        }
        if skipped {
            return Ok((number, None));
        }
        let together = sampler.together(world_size)?;
        let place = self.place_mut(in_epoch);
        let samples = sampler.samples() as u64;
        let before = match place.running.take() {
            Some(running) => running.split.before().clone(),
            None => Positions::default(),
        };
        let split = Split::new(samples, before, together, world_size);
        let earlier = place.finished.iter().filter(|finished| *finished == name);
        let order = sampler.order(epoch, earlier.count() as u64);
        place.running = Some(Running {
            name: name.to_owned(),
            samples,
            seed: sampler.seed(),
            split: split.clone(),
            begun: 0,
        });
        self.agreed = None;
        Ok((number, Some(Pass::new(order, split, rank))))
    }

    fn active(&self, number: u64) -> Option<Active> {
        self.active.filter(|active| active.number == number)
    }

    /// Whether the process is in this loop.
    pub(crate) fn is_in_loop(&self, number: u64) -> bool {
        self.active(number).is_some()
    }

    /// This rank has begun so many iterations of a loop, the last of which counts as done from now on.
    pub(crate) fn set_begun(&mut self, number: u64, begun: u64) {
        let Some(active) = self.active(number) else {
            return;
        };
        self.agreed = None;
        if let Some(running) = &mut self.place_mut(active.in_epoch).running {
            running.begun = begun;
        }
    }

    /// A loop is over, and finished.
    pub(crate) fn finish_loop(&mut self, number: u64) {
        let Some(active) = self.active(number) else {
            return;
        };
        self.active = None;
        self.agreed = None;
        let place = self.place_mut(active.in_epoch);
        place.left += 1;
        if !active.skipped
            && let Some(running) = place.running.take()
        {
            place.finished.push(running.name);
        }
    }

    /// A loop is left, but not finished: when the program comes to it again, it goes on where it was.
    pub(crate) fn leave_loop(&mut self, number: u64) {
        let Some(active) = self.active(number) else {
            return;
        };
        if active.skipped {
            self.active = None;
            return;
        }
        let done = self.done(active.in_epoch).map(|(_, done)| done);
        self.active = None;
        self.agreed = None;
        if let (Some(done), Some(running)) = (done, &mut self.place_mut(active.in_epoch).running) {
            running.split = Split::new(running.samples, done, 1, 1);
            running.begun = 0;
        }
    }

    /// What is done of the loop that has begun and not finished, in the current epoch or outside.
    pub(super) fn done(&self, in_epoch: bool) -> Option<(&Running, Positions)> {
        let running = self.place(in_epoch).running.as_ref()?;
        let is_active = |active: Active| active.in_epoch == in_epoch && !active.skipped;
        let agreed = self.agreed.clone();
        let agreed = agreed.filter(|_| self.active.is_some_and(is_active));
        let all_alike = || running.split.done(&vec![running.begun; self.world_size]);
        Some((running, agreed.or_else(all_alike)?))
    }

    /// Goes on from what was kept, which this process has not begun to do.
    pub(super) fn set_kept(&mut self, finished: u64, outside: Place, epoch: Place) {
        self.finished = finished;
        self.outside = outside;
        self.epoch = epoch;
    }

    /// Whether this process has come to an epoch or a loop.
    pub(super) fn has_begun(&self) -> bool {
        self.in_epochs || self.numbered > 0 || self.finished > 0
    }

    /// What this rank says of its position when a checkpoint begins.
    pub(crate) fn contribution(&self) -> Vec<u8> {
        let kept = |place: &Place| {
            place.running.as_ref().map_or(0, |running| {
                let done = running.split.before().ranges().iter();
                done.fold(digest(NOTHING, running.text().bytes()), |hash, range| {
                    hash.rotate_left(9) ^ range.start ^ range.end.rotate_left(32)
                })
            })
        };
        let begun = [&self.outside, &self.epoch]
            .iter()
            .filter_map(|place| place.running.as_ref())
            .map(|running| running.begun)
            .max();
        let words = [
            self.finished,
            u64::from(self.in_epoch),
            self.outside.finished.len() as u64,
            self.epoch.finished.len() as u64,
            kept(&self.outside),
            kept(&self.epoch),
            begun.unwrap_or(0),
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Takes what all ranks have said: from now until one goes on, what is done is what any of them has done.
    pub(crate) fn agree(&mut self, all: &[&[u8]]) -> Result<(), Error> {
        const WORDS: usize = 7;
        let mut said = Vec::with_capacity(all.len());
        for (rank, bytes) in all.iter().enumerate() {
            let words = bytes.as_chunks::<8>().0.iter().copied();
            let words: Vec<u64> = words.map(u64::from_le_bytes).collect();
            match <[u64; WORDS]>::try_from(words) {
                Ok(words) if bytes.len() == 8 * WORDS => said.push(words),
                _ => {
                    return Err(Error::Protocol {
                        rank,
                        what: format!(
                            "its position in a checkpoint has {} bytes, expected {}",
                            bytes.len(),
                            8 * WORDS
                        ),
                    });
                }
            }
        }
        let differ = |field: &str| {
            let value = |words: &[u64; WORDS]| {
                let [finished, in_epoch, outside, within, _, _, begun] = *words;
                let place = if in_epoch == 0 {
                    format!("after {finished} epochs, loop {outside}")
                } else {
                    format!("epoch {finished}, loop {within}")
                };
                format!("{place}, after iteration {begun}")
            };
            Error::Disagreement {
                what: "a checkpoint".to_owned(),
                field: field.to_owned(),
                values: said.iter().map(value).enumerate().collect(),
            }
        };
        let alike = |pair: &[[u64; WORDS]]| pair[0][..WORDS - 1] == pair[1][..WORDS - 1];
        if !said.windows(2).all(alike) {
            return Err(differ("the position"));
        }
        self.agreed = None;
        let active = self.active.filter(|active| !active.skipped);
        if let Some(active) = active
            && let Some(running) = &self.place(active.in_epoch).running
        {
            let begun: Vec<u64> = said.iter().map(|words| words[WORDS - 1]).collect();
            let Some(done) = running.split.done(&begun) else {
                return Err(differ("the iteration"));
            };
            self.agreed = Some(done);
        }
        Ok(())
    }
}
