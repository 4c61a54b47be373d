//! The poison word: the first culprit wins, all agree.

use super::sync::{Ordering, Padded, Site, Word, mutant, ord};
use bytemuck::Zeroable;

/// Who and why, in 8 bytes. `cause` 0 is "not poisoned".
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(8))]
pub struct Verdict {
    /// The culprit's operation number, bits 0..32.
    pub operation_low: u32,
    /// The culprit's operation number, bits 32..48.
    pub operation_high: u16,
    /// The culprit's rank; 255 is the launcher.
    pub rank: u8,
    /// What happened; the user's numbers, not 0.
    pub cause: u8,
}

impl Verdict {
    /// A verdict on `rank` in its operation `operation`, of which the low 48 bits are kept.
    #[must_use]
    pub const fn new(rank: u8, cause: u8, operation: u64) -> Self {
        Self {
            operation_low: operation as u32,
            operation_high: (operation >> 32) as u16,
            rank,
            cause,
        }
    }

    /// The operation number (48 bits).
    #[must_use]
    pub const fn operation(&self) -> u64 {
        (self.operation_high as u64) << 32 | self.operation_low as u64
    }

    /// The whole operation number, for somebody whose own is `near`: of all with these 48 bits the nearest.
    #[must_use]
    pub const fn operation_near(&self, near: u64) -> u64 {
        // Their difference in 48 bits, with its sign.
        let difference = (self.operation().wrapping_sub(near) << 16) as i64 >> 16;
        near.wrapping_add_signed(difference)
    }
}

/// The poison word, alone on its line.
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | the first who finds a culprit | everybody | exchange AcqRel, load Acquire: what the finder wrote before (its reason, its arrivals) comes with it | 10, 11 |
#[repr(C)]
pub struct Poison {
    word: Padded<Word<Verdict>>,
}

impl Default for Poison {
    fn default() -> Self {
        Self::new()
    }
}

impl Poison {
    /// Not poisoned.
    pub fn new() -> Self {
        Self {
            word: Padded::new(Word::new(Verdict::zeroed())),
        }
    }

    /// The verdict, if there is one. One Acquire load.
    #[inline]
    pub fn get(&self) -> Option<Verdict> {
        let found = self.word.load(ord(Site::PoisonGet, Ordering::Acquire));
        (found.cause != 0).then_some(found)
    }

    /// Poisons, unless somebody has already; the verdict that holds afterwards (the first one's).
    ///
    /// `verdict.cause` must not be 0: such a verdict is none.
    pub fn set(&self, verdict: Verdict) -> Verdict {
        if mutant(Site::PoisonByStore) {
            if let Some(found) = self.get() {
                return found;
            }
            self.word.store(verdict, Ordering::Release);
            return verdict;
        }
        let mut current = Verdict::zeroed();
        // Once is enough, unless somebody has scribbled on the other fields of a word without a cause.
        for _ in 0..4 {
            match self.word.compare_exchange(
                current,
                verdict,
                ord(Site::PoisonSet, Ordering::AcqRel),
                ord(Site::PoisonFound, Ordering::Acquire),
            ) {
                Ok(_) => return verdict,
                Err(found) if found.cause != 0 => return found,
                Err(found) => current = found,
            }
        }
        verdict
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_culprit_stays() {
        let poison = Poison::new();
        assert_eq!(poison.get(), None);
        let first = Verdict::new(3, 7, 0x0001_2345_6789_ABCD);
        assert_eq!(poison.set(first), first);
        assert_eq!(poison.set(Verdict::new(1, 2, 5)), first);
        assert_eq!(poison.get(), Some(first));
    }

    #[test]
    fn a_scribbled_word_without_a_cause_can_still_be_poisoned() {
        let poison = Poison::new();
        poison.word.store(
            Verdict {
                operation_low: 9,
                operation_high: 9,
                rank: 9,
                cause: 0,
            },
            Ordering::Relaxed,
        );
        assert_eq!(poison.get(), None);
        let verdict = Verdict::new(0, 1, 2);
        assert_eq!(poison.set(verdict), verdict);
        assert_eq!(poison.get(), Some(verdict));
    }

    #[test]
    fn operations_keep_48_bits() {
        assert_eq!(
            Verdict::new(0, 1, 0xFFFF_2345_6789_ABCD).operation(),
            0x2345_6789_ABCD
        );
    }

    #[test]
    fn the_whole_operation_is_the_one_near_the_own() {
        for near in [1, 77, 1 << 48, (1 << 48) + 3, 1 << 63, u64::MAX - 4] {
            for whole in [near - 1, near, near + 1, near + 2] {
                let verdict = Verdict::new(0, 1, whole);
                assert_eq!(verdict.operation_near(near), whole);
            }
        }
    }
}
