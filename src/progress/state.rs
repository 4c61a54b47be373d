//! The bytes of a position.
//!
//! Between the head and the checksum of all states of this crate:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | finished epochs |
//! | | the loops outside of epochs, then those of the current epoch, each as: |
//! | 4, texts | how many are finished, and their names in order |
//! | 1 | whether one is running; if so: |
//! | text, 8 | its name and its number of samples |
//! | 1 (8) | whether its order is shuffled, and the seed |
//! | 4, 8 each | what is done of its order: ascending ranges, begin and end of each |
//!
//! How often a running loop ran before in its epoch, which its order follows from, is told by the names before it.

use super::position::{LONGEST_NAME, MOST_EPOCHS, Place, Position, Running};
use super::positions::Positions;
use crate::checkpoint::{Reader, StateError, Writer};
use std::io::{Read, Write};

/// The state's name in a checkpoint.
pub(super) const NAME: &str = "gradring.progress";
const KIND: &str = "progress";
const VERSION: u32 = 1;

impl Position {
    /// Writes what is kept.
    pub(super) fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        let mut writer = Writer::begin(out, NAME, KIND, VERSION)?;
        writer.u64(self.finished)?;
        for (place, in_epoch) in [(&self.outside, false), (&self.epoch, true)] {
            writer.count("finished loops", place.finished.len())?;
            for name in &place.finished {
                writer.text(name)?;
            }
            let running = self.done(in_epoch);
            writer.u8(u8::from(running.is_some()))?;
            if let Some((running, done)) = running {
                writer.text(&running.name)?;
                writer.u64(running.samples)?;
                writer.optional(running.seed)?;
                writer.count("ranges", 2 * done.ranges().len())?;
                for range in done.ranges() {
                    writer.u64(range.start)?;
                    writer.u64(range.end)?;
                }
            }
        }
        writer.finish()
    }

    /// Goes on from what was written. Where that fails nothing has changed.
    pub(super) fn load(&mut self, from: &mut dyn Read) -> Result<(), StateError> {
        if self.has_begun() {
            return Err(StateError::NotNow {
                state: NAME.to_owned(),
                why: "epochs or data loops have begun".to_owned(),
            });
        }
        let mut reader = Reader::begin(from, NAME, KIND, VERSION)?;
        let finished = reader.u64("finished epochs")?;
        if finished > MOST_EPOCHS {
            return Err(reader.differs("finished epochs", "at most 2^63", finished));
        }
        let outside = read_place(&mut reader)?;
        let epoch = read_place(&mut reader)?;
        reader.finish()?;
        self.set_kept(finished, outside, epoch);
        Ok(())
    }
}

fn read_place(reader: &mut Reader<'_>) -> Result<Place, StateError> {
    let mut place = Place::default();
    for _ in 0..reader.u32("number of finished loops")? {
        place.finished.push(read_name(reader)?);
    }
    if reader.flag("whether a loop is running")? {
        let name = read_name(reader)?;
        let samples = reader.u64("samples of a loop")?;
        let seed = reader.optional("seed of a loop")?;
        let numbers = reader.numbers("what is done of a loop")?;
        let Some(done) = Positions::from_numbers(&numbers, samples) else {
            let expected = format!("ascending ranges of positions below {samples}");
            let shown = &numbers[..numbers.len().min(8)];
            return Err(reader.differs("what is done of a loop", expected, format!("{shown:?}")));
        };
        place.running = Some(Running::kept(name, samples, seed, done));
    }
    Ok(place)
}

fn read_name(reader: &mut Reader<'_>) -> Result<String, StateError> {
    const WHAT: &str = "name of a loop";
    let length = reader.u32(WHAT)? as usize;
    if length == 0 || length > LONGEST_NAME {
        let expected = format!("1 to {LONGEST_NAME} bytes");
        return Err(reader.differs(WHAT, expected, length));
    }
    let mut bytes = Vec::with_capacity(length);
    for _ in 0..length {
        bytes.push(reader.u8(WHAT)?);
    }
    String::from_utf8(bytes).map_err(|error| reader.differs(WHAT, "UTF-8", error))
}
