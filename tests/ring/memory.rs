//! Memory for rings, and honest users of it.

use gradring::shm::frame::{Corrupt, Header, UNIT};
use gradring::shm::ring::{Arena, Consumer, Producer, Refused, Ring};
use gradring::shm::sync::{AtomicU64, Padded};
use proptest::prelude::*;
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Memory for a ring, with a page before it and a page behind it that nobody can touch.
pub(crate) struct Memory {
    map: NonNull<u8>,
    mapped: usize,
    pub(crate) base: NonNull<u8>,
    length: usize,
    pub(crate) tail: Padded<AtomicU64>,
    pub(crate) cursors: Vec<Padded<AtomicU64>>,
}

// SAFETY: the mapping belongs to this value; what threads do with its bytes goes through a ring.
unsafe impl Sync for Memory {}

impl Memory {
    /// An empty ring that stands at `position`. It ends where the last page begins.
    pub(crate) fn at(position: u64, consumers: usize, length: usize) -> Self {
        let pages = length.div_ceil(PAGE) * PAGE;
        let mapped = pages + 2 * PAGE;
        // SAFETY: a new private mapping, of which the inner pages are then made accessible.
        let map = unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            let inner = map.cast::<u8>().add(PAGE).cast();
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(inner, pages, access), 0);
            NonNull::new(map.cast::<u8>()).expect("mapped")
        };
        Self {
            map,
            mapped,
            // SAFETY: inside of the mapping.
            base: unsafe { map.add(PAGE + pages - length) },
            length,
            tail: Padded::new(AtomicU64::new(position)),
            cursors: (0..consumers)
                .map(|_| Padded::new(AtomicU64::new(position)))
                .collect(),
        }
    }

    pub(crate) fn ring(&self) -> Ring<'_> {
        // SAFETY: the memory lives as long as the borrow; no test makes references to it or two producers of it.
        let arena = unsafe { Arena::from_raw(self.base, self.length) };
        Ring::new(&self.tail, &self.cursors, arena)
    }

    /// Writes bytes behind the ring's back.
    pub(crate) fn scribble(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: taken modulo the length.
            unsafe { self.base.add((at + i) % self.length).write(*byte) };
        }
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        assert!(at < self.length);
        // SAFETY: inside.
        unsafe { self.base.add(at).read() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `at`, and no ring outlives this value.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.mapped) };
    }
}

pub(crate) const KIND: u8 = 3;

/// Publishes a frame of which every byte is `seed`.
pub(crate) fn send(
    ring: Ring<'_>,
    producer: &mut Producer,
    seed: u8,
    payload: usize,
) -> Result<(), Refused> {
    let mut grant = ring.reserve(producer, payload)?;
    assert_eq!(grant.payload_len(), payload);
    assert!(grant.write(0, &vec![seed; payload]));
    let mut header = Header::new(KIND);
    header.user = [seed; 44];
    header.tail = [seed; 8];
    grant.commit(header);
    Ok(())
}

/// Takes a frame: seed and length.
pub(crate) fn take(
    ring: Ring<'_>,
    consumer: &mut Consumer,
) -> Result<Option<(u8, usize)>, Corrupt> {
    let Some(grant) = ring.peek(consumer)? else {
        return Ok(None);
    };
    let header = *grant.header();
    assert_eq!(header.kind, KIND);
    let seed = header.user[0];
    assert!(header.user == [seed; 44] && header.tail == [seed; 8]);
    let mut payload = vec![1, 2, 3];
    grant.copy_payload(&mut payload);
    assert_eq!(payload, vec![seed; grant.payload_len()]);
    let length = grant.payload_len();
    assert_eq!(header.length() as usize, UNIT + length);
    grant.release();
    Ok(Some((seed, length)))
}

/// Where rings start in tests: at the beginning, and where a counter of fewer bits would wrap or turn negative.
pub(crate) fn position() -> impl Strategy<Value = u64> {
    let unit = UNIT as u64;
    let near = [0, 1 << 32, 1 << 63].map(move |at: u64| {
        (0..64u64).prop_map(move |units| at.saturating_sub(32 * unit) + units * unit)
    });
    let [zero, word, sign] = near;
    prop_oneof![zero, word, sign]
}
