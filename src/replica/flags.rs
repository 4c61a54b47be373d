//! What a replica asks of all: flags that it raises, and that all agree on.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// What is asked of all replicas, any of four things.
///
/// A flag that one replica raises goes with everything that it does from then on. When an operation of all has ended,
/// the flags with which any of them entered it are *agreed*: the same on all replicas after the same operation. Nobody acts
/// on a flag before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u8);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Stop, because of a SIGTERM.
    pub const TERMINATE: Self = Self(1);
    /// Stop, because of a Ctrl-C (SIGINT).
    pub const INTERRUPT: Self = Self(2);
    /// Make a checkpoint. Gone when it is made.
    pub const CHECKPOINT: Self = Self(4);
    /// Stop, to go on with another number of replicas.
    pub const RESIZE: Self = Self(8);

    const NAMES: [(Self, &str); 4] = [
        (Self::TERMINATE, "terminate"),
        (Self::INTERRUPT, "interrupt"),
        (Self::CHECKPOINT, "checkpoint"),
        (Self::RESIZE, "resize"),
    ];

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Why the replicas are to stop, if they are.
    pub const fn stop(self) -> Option<Stop> {
        if self.contains(Self::INTERRUPT) {
            Some(Stop::Interrupt)
        } else if self.contains(Self::TERMINATE) {
            Some(Stop::Terminate)
        } else if self.contains(Self::RESIZE) {
            Some(Stop::Resize)
        } else {
            None
        }
    }

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Those that these bits stand for; others mean nothing.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & 0b1111)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(flag, _)| self.contains(*flag));
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        f.write_str(&if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        })
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({self})")
    }
}

/// Why all replicas stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// A replica or the launcher got SIGTERM.
    Terminate,
    /// Somebody pressed Ctrl-C.
    Interrupt,
    /// The run goes on with another number of replicas.
    Resize,
}

impl Stop {
    /// The code with which a replica ends that has stopped so: 130 after Ctrl-C, else 143.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate | Self::Resize => 143,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "terminated",
            Self::Interrupt => "interrupted",
            Self::Resize => "stopped to be resized",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Flags, Stop};

    #[test]
    fn a_stop_is_told_by_the_most_urgent_flag() {
        assert_eq!(Flags::NONE.stop(), None);
        assert_eq!(Flags::CHECKPOINT.stop(), None);
        assert_eq!(Flags::RESIZE.stop(), Some(Stop::Resize));
        let both = Flags::RESIZE | Flags::TERMINATE;
        assert_eq!(both.stop(), Some(Stop::Terminate));
        assert_eq!((both | Flags::INTERRUPT).stop(), Some(Stop::Interrupt));
        assert_eq!(both.without(Flags::TERMINATE), Flags::RESIZE);
        assert_eq!(Flags::from_bits(0xf0), Flags::NONE);
        assert_eq!(both.to_string(), "terminate, resize");
        assert_eq!(Stop::Interrupt.exit_code(), 130);
        assert_eq!(Stop::Resize.exit_code(), 143);
    }
}
