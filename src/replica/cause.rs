//! Why a run has ended, in the one byte that the poison word has room for.

use std::fmt;

/// The rank that stands for the launcher in a verdict.
pub const LAUNCHER: u8 = 255;

/// What ended a run. The number is what the poison word carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// A replica died without leaving.
    Died = 1,
    /// A replica left where the others still needed it.
    Left = 2,
    /// A replica did not come, or did not go on, within the deadline.
    TimedOut = 3,
    /// Replicas came for different operations.
    Mismatch = 4,
    /// Bytes in the segment that no correct replica writes.
    Protocol = 5,
    /// A replica's thread panicked.
    Panicked = 6,
    /// A replica called `abort`.
    Aborted = 7,
    /// Replicas hold different parameters.
    Diverged = 8,
    /// A replica gave up a step after a part of it was published.
    StepAborted = 9,
    /// A replica ended without having joined while others waited for it.
    NeverJoined = 10,
    /// The launcher died.
    LauncherGone = 11,
}

impl Cause {
    /// The cause with this number, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Died,
            2 => Self::Left,
            3 => Self::TimedOut,
            4 => Self::Mismatch,
            5 => Self::Protocol,
            6 => Self::Panicked,
            7 => Self::Aborted,
            8 => Self::Diverged,
            9 => Self::StepAborted,
            10 => Self::NeverJoined,
            11 => Self::LauncherGone,
            _ => return None,
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Died => "died",
            Self::Left => "left while the others needed it",
            Self::TimedOut => "did not go on within the deadline",
            Self::Mismatch => "came for another operation than rank 0",
            Self::Protocol => "wrote bytes that no correct replica writes",
            Self::Panicked => "panicked",
            Self::Aborted => "aborted the run",
            Self::Diverged => "holds other parameters than rank 0",
            Self::StepAborted => "gave up a step that it had begun",
            Self::NeverJoined => "ended without joining",
            Self::LauncherGone => "launcher died",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;

    #[test]
    fn every_number_comes_back_as_its_cause() {
        let known: Vec<u8> = (0..=255).filter(|&n| Cause::from_u8(n).is_some()).collect();
        assert_eq!(known, (1..=11).collect::<Vec<u8>>());
        for number in known {
            assert_eq!(
                Cause::from_u8(number).map(|cause| cause as u8),
                Some(number)
            );
        }
    }
}
