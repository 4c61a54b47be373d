//! Why something could not be done on a GPU.

use std::time::Duration;
use thiserror::Error;

/// Why something could not be done on a GPU.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter is what was asked for.
    #[error("no GPU adapter is {wanted}; there is {}", listed(.found))]
    NoAdapter {
        /// What was asked for.
        wanted: String,
        /// The adapters of this machine.
        found: Vec<String>,
    },
    /// A selection that can be none.
    #[error(
        "GRADRING_ADAPTER is {found:?}; it can be a part of an adapter's name, a number, or local_rank"
    )]
    Selection {
        /// What it says.
        found: String,
    },
    /// The adapter gives no device, or one that cannot do the codec's work.
    #[error("{adapter} gives no device that can be used: {why}")]
    Device {
        /// The adapter.
        adapter: String,
        /// Why.
        why: String,
    },
    /// The device is lost: destroyed, reset by its driver, or taken away.
    #[error("{adapter} was lost during {during}: {why}")]
    Lost {
        /// The adapter.
        adapter: String,
        /// What was under way.
        during: &'static str,
        /// What the driver says.
        why: String,
    },
    /// The device did not end its work in time.
    #[error("{adapter} did not end {during} within {waited:?}")]
    Timeout {
        /// The adapter.
        adapter: String,
        /// What was under way.
        during: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// The device has no memory left.
    #[error("{adapter} has no memory for {what}")]
    OutOfMemory {
        /// The adapter.
        adapter: String,
        /// What it was for.
        what: &'static str,
    },
    /// The device refused a command.
    #[error("{adapter} refused {what}: {why}")]
    Refused {
        /// The adapter.
        adapter: String,
        /// The command.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// A buffer that cannot be read or written as it was handed over.
    #[error("{what} at byte {offset} of a buffer of {size} bytes, {len} elements: {expected}")]
    Buffer {
        /// What it was to be.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// Its elements.
        len: u64,
        /// The whole buffer's bytes.
        size: u64,
        /// What was expected.
        expected: &'static str,
    },
    /// As many elements as there are, and no others, can be copied.
    #[error("{found} elements for parts that have {expected}")]
    Length {
        /// The parts' elements.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A part that has to be in the memory of the device.
    #[error(
        "part {part} of the {what} is in this process's memory; all have to be in the device's"
    )]
    InHostMemory {
        /// What it was to be.
        what: &'static str,
        /// Which of its parts.
        part: usize,
    },
}

impl GpuError {
    /// Whether nothing more can be had from this device.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Timeout { .. })
    }
}

fn listed(found: &[String]) -> String {
    if found.is_empty() {
        "none".to_owned()
    } else {
        found.join(", ")
    }
}
