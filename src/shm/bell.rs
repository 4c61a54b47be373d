//! Bells: how a rank sleeps until one of several conditions may have become true.
//!
//! One side makes a condition true and then looks who sleeps; the other says that it sleeps and then looks at its
//! conditions. A full fence between the two steps on each side makes it impossible that both look too early.

use super::sync::{AtomicU64, Futex, Ordering, Padded, Site, fence, mutant};
use std::time::Duration;

/// A bit per rank that sleeps or is about to.
///
/// | writer | reader | ordering | model |
/// |---|---|---|---|
/// | each rank its own bit | whoever rings | Relaxed, between the fences of [`Bells`] | 12 |
#[derive(Debug, Default)]
#[repr(C)]
pub struct Asleep {
    words: Padded<[AtomicU64; 4]>,
}

impl Asleep {
    /// Nobody sleeps.
    pub fn new() -> Self {
        Self {
            words: Padded::new(core::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

/// All bells of a segment: one futex a rank. A rank waits at its own bell with one thread at a time.
#[derive(Clone, Copy)]
pub struct Bells<'a> {
    asleep: &'a Asleep,
    bells: &'a [Padded<Futex>],
}

impl<'a> Bells<'a> {
    /// The bells of ranks 0, 1, .. (at most 256).
    pub fn new(asleep: &'a Asleep, bells: &'a [Padded<Futex>]) -> Self {
        Self { asleep, bells }
    }

    /// Called after something that others may wait for has become true: fence, look, wake those who sleep.
    ///
    /// While nobody sleeps this costs the fence and a load for each 64 ranks.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in `sleep_unless`: either the waiter's check sees what was true before this fence, or
        // the loads below see the waiter's bit.
        if !mutant(Site::RingFence) {
            fence(Ordering::SeqCst);
        }
        for (asleep, bells) in self.asleep.words.iter().zip(self.bells.chunks(64)) {
            let bits = asleep.load(Ordering::Relaxed);
            if bits != 0 {
                wake(bits, bells);
            }
        }
    }

    /// Sleeps at most `slice` unless `ready` is true after the bit is set; true if `ready` said so.
    ///
    /// `ready` must check everything that this rank waits for. After a sleep the caller looks again by itself: the
    /// return value false says nothing about why the sleep ended.
    pub fn sleep_unless(&self, me: usize, slice: Duration, ready: impl FnOnce() -> bool) -> bool {
        let (Some(bell), Some(word)) = (self.bells.get(me), self.asleep.words.get(me / 64)) else {
            return ready();
        };
        let bit = 1 << (me % 64);
        // Read before the bit is set: whoever sees the bit bumps the bell after this, and the kernel will notice.
        let mut heard = bell.load();
        let is_ready;
        if mutant(Site::BitAfterCheck) {
            fence(Ordering::SeqCst);
            is_ready = ready();
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_or(bit, Ordering::Relaxed);
            // Pairs with the fence in `ring`.
            if !mutant(Site::SleepFence) {
                fence(Ordering::SeqCst);
            }
            is_ready = ready();
        }
        if mutant(Site::HeardAfterCheck) {
            heard = bell.load();
        }
        if !is_ready {
            bell.wait(heard, slice);
        }
        word.fetch_and(!bit, Ordering::Relaxed);
        is_ready
    }
}

#[cold]
fn wake(mut bits: u64, bells: &[Padded<Futex>]) {
    while bits != 0 {
        // A bit without a bell is somebody's scribble.
        if let Some(bell) = bells.get(bits.trailing_zeros() as usize) {
            bell.bump();
            bell.wake_all();
        }
        bits &= bits - 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Instant;

    const SLICE: Duration = Duration::from_secs(60);

    fn bells(count: usize) -> Vec<Padded<Futex>> {
        (0..count).map(|_| Padded::default()).collect()
    }

    #[test]
    fn whoever_is_ready_does_not_sleep() {
        let (asleep, futexes) = (Asleep::new(), bells(255));
        let bells = Bells::new(&asleep, &futexes);
        assert!(bells.sleep_unless(254, SLICE, || true));
        assert!(
            asleep
                .words
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0),
            "its bit is cleared"
        );
    }

    #[test]
    fn a_bell_rung_while_its_rank_checks_keeps_it_awake() {
        let (asleep, futexes) = (Asleep::new(), bells(70));
        let bells = Bells::new(&asleep, &futexes);
        let start = Instant::now();
        // The bit is set while the closure runs, so ringing finds it, and the kernel refuses to sleep.
        assert!(!bells.sleep_unless(69, SLICE, || {
            bells.ring();
            false
        }));
        assert!(start.elapsed() < SLICE / 2);
        assert_eq!(futexes[69].load(), 1);
        assert!(
            futexes[..69].iter().all(|bell| bell.load() == 0),
            "nobody else is woken"
        );
    }

    #[test]
    fn bits_without_a_bell_are_ignored() {
        let (asleep, futexes) = (Asleep::new(), bells(3));
        for word in asleep.words.iter() {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        Bells::new(&asleep, &futexes).ring();
        assert!(futexes.iter().all(|bell| bell.load() == 1));
        assert!(Bells::new(&asleep, &[]).sleep_unless(0, SLICE, || true));
        assert!(
            !Bells::new(&asleep, &futexes).sleep_unless(999, SLICE, || false),
            "no bell, no sleep"
        );
    }

    #[test]
    fn ping_and_pong_never_miss_each_other() {
        let (asleep, futexes) = (Asleep::new(), bells(2));
        let bells = Bells::new(&asleep, &futexes);
        let turn = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for me in 0..2 {
                let turn = &turn;
                scope.spawn(move || {
                    for round in 0..2_000u64 {
                        let mine = || turn.load(Ordering::Acquire) == 2 * round + me as u64;
                        while !mine() {
                            bells.sleep_unless(me, SLICE, mine);
                        }
                        turn.fetch_add(1, Ordering::Release);
                        bells.ring();
                    }
                });
            }
        });
        assert_eq!(turn.load(Ordering::Relaxed), 4_000);
        assert!(
            start.elapsed() < SLICE,
            "a lost wake-up would have slept a whole slice"
        );
    }
}
