//! The manifest: what a checkpoint consists of.

use super::damage::Damage;
use super::files::open_regular;
use super::{Whose, name};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The manifest's file name.
pub(crate) const MANIFEST: &str = "manifest";
/// The format that this version writes and reads.
pub(crate) const FORMAT: u32 = 1;
/// No manifest is longer: 255 files of a thousand states need less.
const MOST_BYTES: u64 = 256 << 20;
/// The last line: this, and the checksum of all bytes before the line.
const CHECKSUM: &str = "crc32c ";

/// What a checkpoint consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) number: u64,
    pub(crate) world_size: usize,
    /// When, in UTC: `2026-01-31T23:59:59Z`.
    pub(crate) written: String,
    /// How often the launcher had started the replicas again.
    pub(crate) restart: u64,
    pub(crate) states: Vec<StateRecord>,
}

/// A state of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateRecord {
    pub(crate) name: String,
    pub(crate) whose: Whose,
    /// The checkpoint in which it was written; later ones may carry it on.
    pub(crate) checkpoint: u64,
    /// One if it is shared, else one a rank, by rank.
    pub(crate) files: Vec<FileRecord>,
}

/// A file of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    #[serde(with = "hexadecimal")]
    pub(crate) crc32c: u32,
}

/// As people read checksums.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(crc: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{crc:08x}"))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        let is_one = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let crc = is_one
            .then(|| u32::from_str_radix(&text, 16).ok())
            .flatten();
        crc.ok_or_else(|| {
            serde::de::Error::custom(format!("expected 8 hexadecimal digits, found {text:?}"))
        })
    }
}

impl Manifest {
    /// Its bytes, with the checksum's line.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(format!("{CHECKSUM}{crc:08x}\n").as_bytes());
        Ok(bytes)
    }

    /// The manifest of checkpoint `number` in this directory, and the checksum in it.
    pub(crate) fn read(directory: &Path, number: u64) -> Result<(Self, u32), Damage> {
        let (manifest, crc) = Self::read_any(directory)?;
        if manifest.number != number {
            return Err(content(format!(
                "it is that of checkpoint {}, expected {number}",
                manifest.number
            )));
        }
        Ok((manifest, crc))
    }

    /// The manifest in this directory, whatever number it has.
    pub(crate) fn read_any(directory: &Path) -> Result<(Self, u32), Damage> {
        let file = open_regular(directory, MANIFEST)?;
        let unreadable = |error: std::io::Error| Damage::Unreadable {
            file: MANIFEST.to_owned(),
            why: error.to_string(),
        };
        let length = file.metadata().map_err(unreadable)?.len();
        if length > MOST_BYTES {
            return Err(content(format!(
                "expected at most {MOST_BYTES} bytes, found {length}"
            )));
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        Self::from_bytes(&bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Result<(Self, u32), Damage> {
        let line = CHECKSUM.len() + 8 + 1;
        let (json, line) = bytes.split_at(bytes.len().saturating_sub(line));
        let found = crc32c::crc32c(json);
        let digits = std::str::from_utf8(line).ok().and_then(|line| {
            let digits = line.strip_prefix(CHECKSUM)?.strip_suffix('\n')?;
            u32::from_str_radix(digits, 16).ok()
        });
        let Some(expected) = digits else {
            return Err(content(format!(
                "expected a last line '{CHECKSUM}' and 8 hexadecimal digits, found '{}'",
                line.escape_ascii()
            )));
        };
        if found != expected {
            return Err(Damage::Checksum {
                file: MANIFEST.to_owned(),
                expected,
                found,
            });
        }
        /// What every format has.
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let wrong = |error: serde_json::Error| content(error.to_string());
        let Format { format } = serde_json::from_slice(json).map_err(wrong)?;
        if format != FORMAT {
            return Err(content(format!("expected format {FORMAT}, found {format}")));
        }
        let manifest: Self = serde_json::from_slice(json).map_err(wrong)?;
        manifest.check()?;
        Ok((manifest, found))
    }

    /// Whether all that can be compared fits together: no name leads out of the checkpoint, or to another state's file.
    fn check(&self) -> Result<(), Damage> {
        if !(1..=255).contains(&self.world_size) {
            return Err(content(format!(
                "expected a world size of 1 to 255, found {}",
                self.world_size
            )));
        }
        let mut names = HashSet::new();
        for state in &self.states {
            let StateRecord {
                name, whose, files, ..
            } = state;
            let encoded = name::encode(name).map_err(|error| content(error.to_string()))?;
            if !names.insert(name) {
                return Err(content(format!("state {name:?} is there twice")));
            }
            let most = if *whose == Whose::Shared { 1 } else { 255 };
            if files.is_empty() || files.len() > most {
                return Err(content(format!(
                    "state {name:?}: expected 1 to {most} files, found {}",
                    files.len()
                )));
            }
            for (rank, FileRecord { file, .. }) in files.iter().enumerate() {
                let expected = name::file(&encoded, *whose, rank);
                if *file != expected {
                    return Err(content(format!(
                        "state {name:?}: expected file {expected}, found {file:?}"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl StateRecord {
    /// Of all its files together.
    pub(crate) fn bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| file.bytes.saturating_add(sum))
    }
}

fn content(what: String) -> Damage {
    Damage::Content {
        file: MANIFEST.to_owned(),
        what,
    }
}

const DAY: u64 = 86_400;

/// A time in UTC as text, to the second. Before 1970 it is 1970.
pub(crate) fn to_utc(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let (mut days, of_day) = (seconds / DAY, seconds % DAY);
    let mut year = 1970;
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let mut month = 0;
    while days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    format!(
        "{year:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        month + 1,
        days + 1,
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// The time that [`to_utc`] wrote; `None` of anything else.
pub(crate) fn from_utc(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = text.get(from..to)?;
        let all = digits.bytes().all(|byte| byte.is_ascii_digit());
        all.then(|| digits.parse().ok()).flatten()
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    if year < 1970 || month > 11 {
        return None;
    }
    let days = (1970..year).map(days_of_year).sum::<u64>()
        + (0..month)
            .map(|month| days_of_month(year, month))
            .sum::<u64>()
        + day.checked_sub(1)?;
    let seconds = days * DAY + hour * 3600 + minute * 60 + second;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    // Whatever else is not as it should be does not come out the same.
    (to_utc(time) == text).then_some(time)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

/// `month`: 0 to 11.
fn days_of_month(year: u64, month: usize) -> u64 {
    let days = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month];
    days + u64::from(month == 1 && is_leap(year))
}

#[cfg(test)]
mod tests {
    use super::{FORMAT, FileRecord, Manifest, StateRecord, from_utc, to_utc};
    use crate::checkpoint::Whose;
    use crate::checkpoint::damage::Damage;
    use std::time::{Duration, SystemTime};

    fn manifest() -> Manifest {
        let file = |file: &str| FileRecord {
            file: file.to_owned(),
            bytes: 12,
            crc32c: 0xAB,
        };
        Manifest {
            format: FORMAT,
            number: 7,
            world_size: 2,
            written: "2026-01-31T23:59:59Z".to_owned(),
            restart: 1,
            states: vec![
                StateRecord {
                    name: "model/layer 1".to_owned(),
                    whose: Whose::Shared,
                    checkpoint: 7,
                    files: vec![file("model%2Flayer%201.shared")],
                },
                StateRecord {
                    name: "exchange".to_owned(),
                    whose: Whose::Replica,
                    checkpoint: 6,
                    files: vec![file("exchange.rank-0"), file("exchange.rank-1")],
                },
            ],
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_no_bit_of_it_may_change() {
        let bytes = manifest().to_bytes().unwrap();
        assert_eq!(Manifest::from_bytes(&bytes).unwrap().0, manifest());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                // A digit of the checksum may be a capital one.
                let other_case = damaged.eq_ignore_ascii_case(&bytes) && at + 9 >= bytes.len();
                assert!(
                    other_case || Manifest::from_bytes(&damaged).is_err(),
                    "byte {at}, bit {bit}"
                );
            }
            assert!(Manifest::from_bytes(&bytes[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn a_manifest_that_does_not_fit_together_is_refused() {
        let refused = |change: &dyn Fn(&mut Manifest), expected: &str| {
            let mut manifest = manifest();
            change(&mut manifest);
            let error = Manifest::from_bytes(&manifest.to_bytes().unwrap()).unwrap_err();
            assert!(matches!(error, Damage::Content { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        };
        refused(&|m| m.format = 2, "expected format 1, found 2");
        refused(&|m| m.world_size = 0, "world size");
        refused(&|m| m.world_size = 256, "world size");
        refused(&|m| m.states[1].name = "model/layer 1".into(), "twice");
        // What a message shows moves no terminal's cursor.
        refused(
            &|m| m.states[1].name = "\u{1b}[2J".into(),
            "state \"\\u{1b}[2J\"",
        );
        refused(&|m| m.states[0].name = String::new(), "name of a state");
        refused(&|m| m.states[0].files.clear(), "files");
        refused(
            &|m| m.states[0].files[0].file = "../secret".into(),
            "expected file model%2Flayer%201.shared",
        );
        refused(
            &|m| m.states[1].files.swap(0, 1),
            "expected file exchange.rank-0",
        );
    }

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(to_utc(at(seconds)), text);
            assert_eq!(from_utc(text), Some(at(seconds)));
        }
        for text in [
            "",
            "2024-13-01T00:00:00Z",
            "2023-02-29T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00",
        ] {
            assert_eq!(from_utc(text), None, "{text}");
        }
    }
}
