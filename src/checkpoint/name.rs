//! What the files and directories of a checkpoint are called.
//!
//! A state may have any name; its files must have one that every file system takes, that no other state's has, and that
//! leads nowhere else. So each byte other than a letter of ASCII, a digit, `-`, `_` and `.` becomes `%` and two digits, and
//! so does a `.` at the beginning. Behind that stands `.shared`, or `.rank-` and a number: no two states can meet, nor one of
//! them the manifest.

use super::Whose;
use crate::replica::Error;

/// The most bytes of a state's name as a part of a file's: with what is appended it must fit into 255.
const MOST_BYTES: usize = 200;
/// Every checkpoint's directory begins so, and its number follows.
const CHECKPOINT: &str = "checkpoint-";
/// What is being written, or removed, begins so.
const TEMPORARY: &str = ".tmp-";

/// A state's name as the beginning of its files' names.
///
/// # Errors
/// [`Error::Invalid`] if it is empty or too long.
pub(crate) fn encode(state: &str) -> Result<String, Error> {
    let mut encoded = String::with_capacity(state.len());
    for (at, byte) in state.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(byte.into()),
            b'.' if at > 0 => encoded.push('.'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        if encoded.len() > MOST_BYTES {
            return Err(invalid(format!(
                "{} bytes, {:?} ..",
                state.len(),
                state.chars().take(40).collect::<String>()
            )));
        }
    }
    if encoded.is_empty() {
        return Err(invalid("none".to_owned()));
    }
    Ok(encoded)
}

fn invalid(found: String) -> Error {
    Error::Invalid {
        what: "name of a state",
        expected: format!(
            "1 to {MOST_BYTES} bytes, where what is no ASCII letter, digit, '-', '_' or '.' counts three times"
        ),
        found,
    }
}

/// The name of the file of an encoded state; `rank` counts only where it is per replica.
pub(crate) fn file(encoded: &str, whose: Whose, rank: usize) -> String {
    match whose {
        Whose::Shared => format!("{encoded}.shared"),
        Whose::Replica => format!("{encoded}.rank-{rank}"),
    }
}

/// The name of a checkpoint's directory.
pub(crate) fn checkpoint(number: u64) -> String {
    format!("{CHECKPOINT}{number}")
}

/// The number in the name of a checkpoint's directory. Names that only resemble one have none.
pub(crate) fn checkpoint_number(name: &str) -> Option<u64> {
    decimal(name.strip_prefix(CHECKPOINT)?)
}

/// The name of the directory in which process `pid` writes checkpoint `number`, or from which it removes it.
pub(crate) fn temporary(number: u64, pid: u32, random: u64) -> String {
    format!("{TEMPORARY}{number}-{pid}-{random:016x}")
}

/// The process in the name of a temporary directory; only of names that [`temporary`] makes.
pub(crate) fn temporary_pid(name: &str) -> Option<u32> {
    let mut words = name.strip_prefix(TEMPORARY)?.split('-');
    let (_, pid, random) = (decimal(words.next()?)?, words.next()?, words.next()?);
    let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_random = random.len() == 16 && random.bytes().all(lower_hex);
    if !is_random || words.next().is_some() {
        return None;
    }
    u32::try_from(decimal(pid)?).ok()
}

/// A number as it is written here: digits only, no zeros in front.
fn decimal(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    (digits && plain).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{checkpoint_number, encode, file, temporary, temporary_pid};
    use crate::checkpoint::Whose;
    use std::collections::HashSet;

    #[test]
    fn files_of_any_names_differ_and_stay_in_their_directory() {
        let names = [
            "a",
            "A",
            ".",
            "..",
            "/",
            "a/b",
            "../a",
            "a.shared",
            "a.rank-0",
            "a.rank-0.shared",
            "%2E",
            "a b",
            "a\0b",
            "\n",
            "manifest",
            "größe",
            "größe ",
            "-",
            "~",
            "*",
        ];
        let mut seen = HashSet::new();
        for name in names {
            let encoded = encode(name).unwrap();
            for (whose, rank) in [
                (Whose::Shared, 0),
                (Whose::Replica, 0),
                (Whose::Replica, 254),
            ] {
                let file = file(&encoded, whose, rank);
                assert!(!file.starts_with('.') && !file.contains('/') && file != "manifest");
                assert!(file.is_ascii() && file.len() < 256, "{file}");
                assert!(seen.insert(file.clone()), "{name:?} is {file} too");
            }
        }
    }

    #[test]
    fn names_that_no_file_can_have_are_refused() {
        assert!(encode("").is_err());
        assert!(encode(&"x".repeat(200)).is_ok());
        assert!(encode(&"x".repeat(201)).is_err());
        assert!(encode(&"/".repeat(66)).is_ok());
        assert!(encode(&"/".repeat(67)).is_err());
        assert!(encode(&"ö".repeat(1 << 20)).is_err());
    }

    #[test]
    fn only_exact_names_are_those_of_checkpoints() {
        assert_eq!(checkpoint_number("checkpoint-0"), Some(0));
        assert_eq!(checkpoint_number("checkpoint-17"), Some(17));
        assert_eq!(
            checkpoint_number("checkpoint-18446744073709551615"),
            Some(u64::MAX)
        );
        for name in [
            "checkpoint-",
            "checkpoint-old",
            "checkpoint-01",
            "checkpoint-+1",
            "checkpoint-1 ",
            "checkpoint-1.bak",
            "Checkpoint-1",
            "checkpoint--1",
            "checkpoint-18446744073709551616",
            "checkpoint",
            "xcheckpoint-1",
            "checkpoint-１",
        ] {
            assert_eq!(checkpoint_number(name), None, "{name}");
        }
    }

    #[test]
    fn only_own_temporary_names_have_a_maker() {
        assert_eq!(temporary_pid(&temporary(3, 4711, 9)), Some(4711));
        for name in [
            ".tmp-3-4711",
            ".tmp-3-4711-9",
            ".tmp-3-4711-00000000000000AB",
            ".tmp-3-4711-0000000000000009-1",
            ".tmp--4711-0000000000000009",
            ".tmp-3-99999999999-0000000000000009",
            "tmp-3-4711-0000000000000009",
        ] {
            assert_eq!(temporary_pid(name), None, "{name}");
        }
    }
}
