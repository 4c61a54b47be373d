//! How a segment comes to be, and what is in it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Instant;

use gradring::shm::cells::DEFAULT_CELLS;
use gradring::shm::frame::Header;
use gradring::shm::layout::{self, Layout, MIN_RING_CAPACITY};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::segment::{Config, Segment, SegmentError};
use gradring::shm::state::Phase;
use gradring::shm::sync::Ordering::{Acquire, Relaxed, Release};

use crate::children::{Child, tell};
use crate::{Named, config, exists, open_now, path, soon};

#[test]
fn what_one_process_writes_another_reads() {
    let segment = Named::new(2);
    let (name, segment) = (segment.0.name().to_owned(), &segment.0);
    let mut child = Child::start("write", &[&name]);
    child.hear("written");
    let rank = segment.rank(1);
    assert_eq!(rank.inline[1].number.load(Acquire), 7);
    assert_eq!(rank.inline[1].words[127].load(Relaxed), u64::MAX);
    assert_eq!(rank.slots[63].extra.load(Acquire), 63);
    assert_eq!(rank.reason.words[30].load(Relaxed), 30);
    assert_eq!(rank.counters[15].load(Relaxed), 15);
    assert_eq!(rank.identity.raised.load(Relaxed), 4);
    assert_eq!(segment.rank(0).counters[15].load(Relaxed), 0);
    // The largest frame, so many times that the arena is full and wrapped.
    let mut consumer = Consumer::at(0, 0);
    let mut payload = Vec::new();
    for round in 0..9_u8 {
        let end = soon();
        loop {
            if let Some(grant) = segment.ring(1).peek(&mut consumer).unwrap() {
                grant.copy_payload(&mut payload);
                grant.release();
                break;
            }
            assert!(Instant::now() < end, "frame {round} has not come");
            std::thread::yield_now();
        }
        assert_eq!(payload, [round; layout::MAX_PAYLOAD]);
    }
    child.passes();
}

pub(crate) fn write(name: &str) {
    let segment = Segment::open(name, 2, soon()).unwrap();
    let rank = segment.rank(1);
    assert!(rank.state.claim());
    assert_eq!(segment.cores(), 2);
    assert_eq!(segment.world_size(), 2);
    assert_ne!(segment.header().creator(), std::process::id());
    rank.inline[1].words[127].store(u64::MAX, Relaxed);
    rank.reason.words[30].store(30, Relaxed);
    rank.counters[15].store(15, Relaxed);
    rank.identity.raised.store(4, Relaxed);
    rank.slots[63].extra.store(63, Release);
    rank.inline[1].number.store(7, Release);
    tell("written");
    // My own cursor is in front of every record.
    let (ring, mut producer, mut own) = (segment.ring(1), Producer::at(0), Consumer::at(1, 0));
    for round in 0..9_u8 {
        let bytes = [round; layout::MAX_PAYLOAD];
        let end = soon();
        loop {
            if let Ok(mut grant) = ring.reserve(&mut producer, bytes.len()) {
                assert!(grant.write(0, &bytes));
                let mut header: Header = bytemuck::Zeroable::zeroed();
                header.kind = 1;
                grant.commit(header);
                break;
            }
            assert!(Instant::now() < end, "no room for frame {round}");
            std::thread::yield_now();
        }
        ring.peek(&mut own)
            .unwrap()
            .expect("just committed")
            .release();
    }
}

#[test]
fn a_new_segment_is_ready_private_allocated_and_zero() {
    let segment = Named::new(3);
    let metadata = fs::metadata(path(segment.0.name())).unwrap();
    let layout = Layout::new(3, MIN_RING_CAPACITY, DEFAULT_CELLS).unwrap();
    assert_eq!(*segment.0.layout(), layout);
    assert_eq!(metadata.len(), layout.total as u64);
    assert!(metadata.blocks() * 512 >= metadata.len());
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert_eq!(segment.0.state().get(), Phase::Ready);
    assert_eq!(segment.0.header().creator(), std::process::id());
    assert_ne!(segment.0.header().creator_start(), 0);
    assert_ne!(segment.0.header().nonce(), Named::new(3).0.header().nonce());
    let digits = segment.0.name().strip_prefix("/gradring-").unwrap();
    assert_eq!(digits.len(), 32);
    let mut bytes = vec![0; layout.total];
    segment.file().read_exact_at(&mut bytes, 0).unwrap();
    let written: HashSet<usize> = (0..layout.total)
        .filter(|i| bytes[*i] != 0)
        .map(|i| i / layout::LINE)
        .collect();
    let lines_of_the_header = 0..2;
    assert!(written.iter().all(|line| lines_of_the_header.contains(line) || *line == layout::STATE / layout::LINE));
}

#[test]
fn two_segments_at_once_have_nothing_in_common() {
    let (a, b) = (Named::new(2), Named::new(2));
    assert_ne!(a.0.name(), b.0.name());
    let again = open_now(a.0.name(), 2).unwrap();
    a.0.rank(0).counters[0].store(11, Relaxed);
    b.0.rank(0).counters[0].store(22, Relaxed);
    assert_eq!(again.rank(0).counters[0].load(Relaxed), 11);
    assert_eq!(b.0.rank(0).counters[0].load(Relaxed), 22);
}

#[test]
fn impossible_configurations_are_refused_before_anything_is_made() {
    for (world_size, ring_capacity, cores, cells) in [
        (0, MIN_RING_CAPACITY, 1, 1),
        (256, MIN_RING_CAPACITY, 1, 1),
        (1, MIN_RING_CAPACITY + 1, 1, 1),
        (1, MIN_RING_CAPACITY / 2, 1, 1),
        (255, 1 << 62, 1, 1),
        (1, MIN_RING_CAPACITY, 0, 1),
        (1, MIN_RING_CAPACITY, 1, usize::MAX),
    ] {
        let config = Config {
            world_size,
            ring_capacity,
            cores,
            cells,
        };
        let result = Segment::create(&config);
        assert!(
            matches!(result, Err(SegmentError::Config(_))),
            "{config:?}: {result:?}"
        );
    }
    let two = Segment::alone(&config(2));
    assert!(matches!(two, Err(SegmentError::Config(_))), "{two:?}");
}

#[test]
fn a_segment_for_one_process_alone_leaves_no_name() {
    let segment = Segment::alone(&config(1)).unwrap();
    assert!(!exists(segment.name()));
    segment.rank(0).counters[0].store(3, Relaxed);
    assert_eq!(segment.rank(0).counters[0].load(Relaxed), 3);
    assert!(!segment.unlink().unwrap());
}

#[test]
fn a_name_is_removed_once_and_only_from_its_own_file() {
    let segment = Segment::create(&config(1)).unwrap();
    assert!(segment.unlink().unwrap());
    assert!(!segment.unlink().unwrap());
    fs::write(path(segment.name()), "somebody else's").unwrap();
    // A sweeper of another test may take the foreign file first, as it is nobody's; then there is nothing to show.
    assert!(!segment.unlink().unwrap());
    let _ = fs::remove_file(path(segment.name()));
}

#[test]
fn whoever_opens_waits_until_the_creator_is_ready() {
    let segment = Named::new(2);
    let state = layout::STATE as u64;
    segment
        .file()
        .write_all_at(&0_u32.to_ne_bytes(), state)
        .unwrap();
    let mut child = Child::start("open when ready", &[&segment.0.name()]);
    child.hear("opening");
    segment.0.rank(1).counters[0].store(42, Relaxed);
    segment.0.state().publish();
    assert_eq!(child.hear("opened"), "42");
    child.passes();
}
