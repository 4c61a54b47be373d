//! The progress rule over real rings, in one thread: whoever's turn it is, an operation always ends.

use gradring::replica::progress::{Advance, Lists, advance};
use gradring::shm::frame::{Header, UNIT};
use gradring::shm::ring::{Arena, Consumer, Producer, Refused, Ring};
use gradring::shm::sync::{AtomicU64, Padded};
use proptest::prelude::*;
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Bytes of a ring.
const CAPACITY: usize = 4096;
const KIND: u8 = 7;

/// One rank's ring, its words and its bytes.
struct Memory {
    tail: AtomicU64,
    cursors: Vec<Padded<AtomicU64>>,
    bytes: Box<[UnsafeCell<u64>]>,
}

impl Memory {
    fn new(ranks: usize, start: u64) -> Self {
        Self {
            tail: AtomicU64::new(start),
            cursors: (0..ranks)
                .map(|_| Padded::new(AtomicU64::new(start)))
                .collect(),
            bytes: (0..CAPACITY / 8).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn ring(&self) -> Ring<'_> {
        let base = NonNull::from(&*self.bytes).cast::<u8>();
        // SAFETY: the bytes live as long as `self`, nobody makes a reference to them, and there is one producer and one
        // user of each cursor.
        let arena = unsafe { Arena::from_raw(base, CAPACITY) };
        Ring::new(&self.tail, &self.cursors, arena)
    }
}

/// What a rank publishes: for each chunk the payload lengths of its frames; maybe none.
type Chunks = Vec<Vec<usize>>;

/// One rank in the middle of an operation.
struct Rank<'a> {
    rank: usize,
    memory: &'a [Memory],
    plan: &'a [Chunks],
    producer: Producer,
    consumers: Vec<Consumer>,
    published: (usize, usize),
    /// Chunk, rank, frame.
    next: (usize, usize, usize),
    taken: usize,
}

impl<'a> Rank<'a> {
    fn new(rank: usize, memory: &'a [Memory], plan: &'a [Chunks], start: u64) -> Self {
        let mut this = Self {
            rank,
            memory,
            plan,
            producer: Producer::at(start),
            consumers: (0..memory.len())
                .map(|_| Consumer::at(rank, start))
                .collect(),
            published: (0, 0),
            next: (0, 0, 0),
            taken: 0,
        };
        this.skip_published();
        this.skip_taken();
        this
    }

    fn skip_published(&mut self) {
        let plan = &self.plan[self.rank];
        while self.published.0 < plan.len() && self.published.1 == plan[self.published.0].len() {
            self.published = (self.published.0 + 1, 0);
        }
    }

    fn skip_taken(&mut self) {
        let chunks = self.plan[0].len();
        while self.next.0 < chunks && self.next.2 == self.plan[self.next.1][self.next.0].len() {
            self.next = if self.next.1 + 1 == self.plan.len() {
                (self.next.0 + 1, 0, 0)
            } else {
                (self.next.0, self.next.1 + 1, 0)
            };
        }
    }
}

fn payload(rank: usize, chunk: usize, frame: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (rank * 97 + chunk * 31 + frame * 7 + i) as u8)
        .collect()
}

impl Lists for Rank<'_> {
    type Error = String;

    fn publishing(&self) -> Option<u64> {
        (self.published.0 < self.plan[0].len()).then_some(self.published.0 as u64)
    }

    fn taking(&self) -> Option<u64> {
        (self.next.0 < self.plan[0].len()).then_some(self.next.0 as u64)
    }

    fn publish(&mut self) -> Result<bool, String> {
        let (chunk, frame) = self.published;
        let bytes = payload(self.rank, chunk, frame, self.plan[self.rank][chunk][frame]);
        match self.memory[self.rank]
            .ring()
            .reserve(&mut self.producer, bytes.len())
        {
            Ok(mut grant) => {
                assert!(grant.write(0, &bytes));
                grant.commit(Header::new(KIND));
            }
            Err(Refused::Full) => return Ok(false),
            Err(refused) => return Err(refused.to_string()),
        }
        self.published.1 += 1;
        self.skip_published();
        Ok(true)
    }

    fn take(&mut self) -> Result<bool, String> {
        let (chunk, rank, frame) = self.next;
        let ring = self.memory[rank].ring();
        let grant = match ring.peek(&mut self.consumers[rank]) {
            Ok(Some(grant)) => grant,
            Ok(None) => return Ok(false),
            Err(why) => return Err(why.to_string()),
        };
        let mut bytes = Vec::new();
        grant.copy_payload(&mut bytes);
        if bytes != payload(rank, chunk, frame, self.plan[rank][chunk][frame]) {
            return Err(format!(
                "rank {} took other bytes for {:?}",
                self.rank, self.next
            ));
        }
        grant.release();
        self.taken += 1;
        self.next.2 += 1;
        self.skip_taken();
        Ok(true)
    }
}

/// Frames of at most half, a third, or an eighth of a ring: header included.
fn plans() -> impl Strategy<Value = (Vec<Chunks>, u64, u64, Vec<u8>)> {
    let shape = (
        1..=5_usize,
        prop_oneof![Just(2_usize), Just(3), Just(8)],
        1..=5_usize,
    );
    shape.prop_flat_map(|(ranks, frames, chunks)| {
        let longest = CAPACITY / frames / UNIT * UNIT - UNIT;
        let length = prop_oneof![Just(0), Just(longest), 0..=longest];
        let chunk = prop::collection::vec(length, 0..=4);
        let plan = prop::collection::vec(prop::collection::vec(chunk, chunks), ranks);
        let ahead = prop_oneof![Just(1_u64), Just(0), Just(u64::MAX)];
        let units = prop_oneof![
            Just(0_u64),
            0..200_u64,
            Just((1 << 26) - 5),
            Just((1 << 57) - 5)
        ];
        (plan, ahead, units, prop::collection::vec(any::<u8>(), 64))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_operation_ends_in_every_schedule((plan, ahead, units, schedule) in plans()) {
        let start = units * UNIT as u64;
        let memory: Vec<Memory> = plan.iter().map(|_| Memory::new(plan.len(), start)).collect();
        let mut ranks: Vec<Rank> = (0..plan.len()).map(|rank| Rank::new(rank, &memory, &plan, start)).collect();
        let frames: usize = plan.iter().flatten().map(Vec::len).sum();
        let mut finished = 0;
        let mut blocked = 0;
        let mut turn = 0;
        while finished < ranks.len() {
            // The schedule's bursts first, then whoever can.
            let rank = usize::from(schedule[turn % schedule.len()]) + turn / schedule.len();
            let rank = rank % ranks.len();
            let burst = 1 + usize::from(schedule[(turn + 1) % schedule.len()]) % 9;
            turn += 1;
            for _ in 0..burst {
                match advance(&mut ranks[rank], ahead).map_err(TestCaseError::fail)? {
                    Advance::Went => blocked = 0,
                    Advance::Blocked | Advance::Finished => {
                        blocked += 1;
                        break;
                    }
                }
            }
            if blocked > 64 * ranks.len() {
                // Nobody went for long: either all are done, or it hangs.
                finished = 0;
                for rank in &mut ranks {
                    match advance(rank, ahead).map_err(TestCaseError::fail)? {
                        Advance::Finished => finished += 1,
                        Advance::Went => blocked = 0,
                        Advance::Blocked => {}
                    }
                }
                prop_assert!(finished == ranks.len() || blocked == 0, "it hangs: {plan:?}");
            }
        }
        prop_assert!(ranks.iter().all(|rank| rank.taken == frames));
    }
}
