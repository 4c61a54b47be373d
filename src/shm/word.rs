//! Several small fields that are read and written as one.

use super::sync::Ordering;
use bytemuck::Pod;

/// 8 bytes of plain data, read and written as one.
///
/// `T` is a `#[repr(C, align(8))]` type of 8 bytes without padding; anything else does not compile.
#[cfg(not(loom))]
#[repr(transparent)]
pub struct Word<T: Pod>(atomic::Atomic<T>);

/// 8 bytes of plain data, read and written as one (here: in a loom atomic).
#[cfg(loom)]
pub struct Word<T: Pod>(super::sync::AtomicU64, core::marker::PhantomData<T>);

#[cfg(not(loom))]
impl<T: Pod> Word<T> {
    /// With a smaller alignment the atomic would silently be a lock of this process alone.
    const LOCK_FREE: () = {
        assert!(
            size_of::<T>() == 8 && align_of::<T>() == 8,
            "a word has 8 bytes, aligned to 8"
        );
        assert!(
            atomic::Atomic::<T>::is_lock_free(),
            "a word needs 64-bit atomics"
        );
        assert!(size_of::<Word<T>>() == 8 && align_of::<Word<T>>() == 8);
    };

    /// A word that holds `value`.
    pub const fn new(value: T) -> Self {
        const { Self::LOCK_FREE };
        Self(atomic::Atomic::new(value))
    }

    /// Reads all fields at once.
    pub fn load(&self, order: Ordering) -> T {
        const { Self::LOCK_FREE };
        self.0.load(order)
    }

    /// Writes all fields at once.
    pub fn store(&self, value: T, order: Ordering) {
        const { Self::LOCK_FREE };
        self.0.store(value, order);
    }

    /// Writes `new` if the word holds `current`; the word as it was, as an error if it was another one.
    ///
    /// # Errors
    /// The word held something else, which is handed over.
    pub fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        const { Self::LOCK_FREE };
        self.0.compare_exchange(current, new, success, failure)
    }
}

#[cfg(loom)]
impl<T: Pod> Word<T> {
    const EIGHT_BYTES: () = assert!(
        size_of::<T>() == 8 && align_of::<T>() == 8,
        "a word has 8 bytes, aligned to 8"
    );

    /// A word that holds `value`.
    pub fn new(value: T) -> Self {
        const { Self::EIGHT_BYTES };
        Self(
            super::sync::AtomicU64::new(bytemuck::cast(value)),
            core::marker::PhantomData,
        )
    }

    /// Reads all fields at once.
    pub fn load(&self, order: Ordering) -> T {
        bytemuck::cast(self.0.load(order))
    }

    /// Writes all fields at once.
    pub fn store(&self, value: T, order: Ordering) {
        self.0.store(bytemuck::cast(value), order);
    }

    /// Writes `new` if the word holds `current`; the word as it was, as an error if it was another one.
    ///
    /// # Errors
    /// The word held something else, which is handed over.
    pub fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        self.0
            .compare_exchange(
                bytemuck::cast(current),
                bytemuck::cast(new),
                success,
                failure,
            )
            .map(bytemuck::cast)
            .map_err(bytemuck::cast)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
    #[repr(C, align(8))]
    struct Pair {
        low: u32,
        high: u32,
    }

    #[test]
    fn a_word_is_exchanged_as_one() {
        let word = Word::new(Pair::zeroed());
        let one = Pair { low: 1, high: 2 };
        assert_eq!(
            word.compare_exchange(Pair::zeroed(), one, Ordering::AcqRel, Ordering::Acquire),
            Ok(Pair::zeroed())
        );
        let two = Pair { low: 1, high: 3 };
        assert_eq!(
            word.compare_exchange(two, Pair::zeroed(), Ordering::AcqRel, Ordering::Acquire),
            Err(one)
        );
        word.store(two, Ordering::Release);
        assert_eq!(word.load(Ordering::Acquire), two);
    }
}
