//! Model 16: a reduction in two phases. Each rank folds its slice of everybody's words and publishes what came out; the
//! next reduction uses the same rings and the same memory at once.

use crate::run::{KIND, Memory, check_reaching, notices, reached};
use gradring::replica::phases::{Item, Phases};
use gradring::replica::progress::{Advance, Lists, advance};
use gradring::shm::bell::{Asleep, Bells};
use gradring::shm::frame::Header;
use gradring::shm::ring::{Consumer, Producer, Refused};
use gradring::shm::sync::{Futex, Padded, Site, mutate};
use loom::thread;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

const WORD: usize = size_of::<u64>();
const SLEPT: &str = "a rank slept";

struct Shared {
    rings: Vec<Arc<Memory>>,
    asleep: Asleep,
    futexes: Vec<Padded<Futex>>,
}

impl Shared {
    /// Rings of so many frames.
    fn new(world_size: usize, frames: usize) -> Arc<Self> {
        Arc::new(Self {
            rings: (0..world_size)
                .map(|_| Memory::new(world_size, 2 * frames))
                .collect(),
            asleep: Asleep::new(),
            futexes: (0..world_size).map(|_| Padded::new(Futex::new())).collect(),
        })
    }

    fn bells(&self) -> Bells<'_> {
        Bells::new(&self.asleep, &self.futexes)
    }
}

/// What a rank keeps from one reduction to the next.
struct Rank<'a> {
    shared: &'a Shared,
    me: usize,
    producer: Producer,
    consumers: Vec<Consumer>,
    /// The sum of this rank's slice of each chunk that has not been published.
    sums: Vec<u64>,
}

/// One reduction under way: `chunks` chunks with one word for each rank.
struct Reduction<'a, 'b> {
    rank: &'b mut Rank<'a>,
    round: u64,
    phases: Phases,
    published: u64,
    taken: u64,
    /// Whose record is taken next.
    turn: usize,
    /// What was reduced, slice by slice.
    reduced: Vec<u64>,
}

/// What `rank` gives for slice `slice`: every set of ranks has another sum.
fn given(round: u64, chunk: u64, rank: usize, slice: usize) -> u64 {
    (1 + round * 100 + chunk * 10 + slice as u64) << (16 * rank)
}

/// What a frame says it is.
fn header(item: Item) -> Header {
    let (phase, chunk) = match item {
        Item::Contribution(chunk) => (0, chunk),
        Item::Reduced(chunk) => (1, chunk),
    };
    let mut header = Header::new(KIND);
    (header.user[0], header.user[1]) = (phase, chunk as u8);
    header
}

impl Lists for Reduction<'_, '_> {
    type Error = Infallible;

    fn publishing(&self) -> Option<u64> {
        (self.published < self.phases.items()).then_some(self.published)
    }

    fn taking(&self) -> Option<u64> {
        (self.taken < self.phases.items()).then_some(self.taken)
    }

    fn publish(&mut self) -> Result<bool, Infallible> {
        if !self.phases.may_publish(self.published, self.taken) {
            return Ok(false);
        }
        let (round, world_size) = (self.round, self.rank.consumers.len());
        let (me, item) = (self.rank.me, self.phases.item(self.published));
        let words: Vec<u64> = match item {
            Item::Contribution(chunk) => (0..world_size)
                .map(|slice| given(round, chunk, me, slice))
                .collect(),
            Item::Reduced(chunk) => vec![self.rank.sums[chunk as usize]],
        };
        let ring = self.rank.shared.rings[me].ring();
        let mut grant = match ring.reserve(&mut self.rank.producer, WORD * words.len()) {
            Ok(grant) => grant,
            Err(Refused::Full) => return Ok(false),
            Err(other) => panic!("{other}"),
        };
        assert!(grant.write(0, bytemuck::cast_slice(&words)));
        grant.commit(header(item));
        self.published += 1;
        Ok(true)
    }

    fn take(&mut self) -> Result<bool, Infallible> {
        let (me, turn, item) = (self.rank.me, self.turn, self.phases.item(self.taken));
        let ring = self.rank.shared.rings[turn].ring();
        let consumer = &mut self.rank.consumers[turn];
        let Some(grant) = ring.peek(consumer).expect("nobody breaks the protocol") else {
            return Ok(false);
        };
        assert_eq!(grant.header().user, header(item).user, "another item");
        let mut word = [0; WORD];
        match item {
            Item::Contribution(chunk) => {
                // Its own slice only; the cursor moves past the rest without a look.
                assert!(grant.read(WORD * me, &mut word));
                let sum = &mut self.rank.sums[chunk as usize];
                *sum = if turn == 0 { 0 } else { *sum } + u64::from_ne_bytes(word);
            }
            Item::Reduced(_) => {
                assert!(grant.read(0, &mut word));
                self.reduced.push(u64::from_ne_bytes(word));
            }
        }
        grant.release();
        self.turn = (turn + 1) % self.rank.consumers.len();
        self.taken += u64::from(self.turn == 0);
        Ok(true)
    }
}

/// One rank through `rounds` reductions, without anything between them.
fn run(shared: &Shared, me: usize, chunks: u64, rounds: u64) {
    let world_size = shared.rings.len();
    let mut rank = Rank {
        shared,
        me,
        producer: Producer::default(),
        consumers: (0..world_size).map(|_| Consumer::at(me, 0)).collect(),
        sums: vec![0; chunks as usize],
    };
    for round in 0..rounds {
        let mut reduction = Reduction {
            rank: &mut rank,
            round,
            phases: Phases::new(chunks, true),
            published: 0,
            taken: 0,
            turn: 0,
            reduced: Vec::new(),
        };
        // As far ahead as the rings allow: with one item only the progress rule would hide a missing second phase.
        let turn = |reduction: &mut Reduction<'_, '_>| {
            let Ok(went) = advance(reduction, u64::MAX);
            if went == Advance::Went {
                shared.bells().ring();
            }
            went
        };
        loop {
            match turn(&mut reduction) {
                Advance::Went => {}
                Advance::Finished => break,
                Advance::Blocked => {
                    let ready = shared.bells().sleep_unless(me, Duration::ZERO, || {
                        turn(&mut reduction) != Advance::Blocked
                    });
                    if !ready {
                        reached(SLEPT);
                    }
                }
            }
        }
        let expected: Vec<u64> = (0..chunks)
            .flat_map(|chunk| (0..world_size).map(move |slice| (chunk, slice)))
            .map(|(chunk, slice)| {
                (0..world_size)
                    .map(|rank| given(round, chunk, rank, slice))
                    .sum()
            })
            .collect();
        assert_eq!(
            reduction.reduced, expected,
            "a slice is not everybody's sum"
        );
    }
}

fn ranks(world_size: usize, frames: usize, chunks: u64, rounds: u64) {
    let shared = Shared::new(world_size, frames);
    let others: Vec<_> = (1..world_size)
        .map(|me| {
            let shared = shared.clone();
            thread::spawn(move || run(&shared, me, chunks, rounds))
        })
        .collect();
    run(&shared, 0, chunks, rounds);
    for other in others {
        other.join().expect("loom reports a panic itself");
    }
}

#[test]
fn each_slice_is_read_only_after_its_owner_has_folded_everybodys() {
    check_reaching(2, &[SLEPT], || ranks(2, 2, 2, 1));
}

#[test]
fn the_next_reduction_uses_the_same_memory_at_once() {
    check_reaching(2, &[SLEPT], || ranks(2, 2, 1, 2));
}

#[test]
fn three_ranks_reduce_twice_through_rings_of_two_frames() {
    check_reaching(1, &[SLEPT], || ranks(3, 2, 1, 2));
}

#[test]
fn a_slice_that_is_published_before_all_contributions_were_taken_is_noticed() {
    for world_size in [2, 3] {
        notices(
            || mutate(Site::ReducedTooEarly),
            "a slice is not everybody's sum",
            1,
            move || ranks(world_size, 2, 1, 2),
        );
    }
}
