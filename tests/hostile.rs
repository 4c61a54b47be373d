//! Bytes that no correct replica writes, in a live segment: errors or wrong numbers, and nothing worse.

mod world;

use gradring::codec::{Dense, NamedRange};
use gradring::{Error, Exchange, Replica, op};
use nix::sys::signal::Signal;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use world::{PATIENCE, Setup, World, tell};

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let rank = replica.rank();
    match case.as_str() {
        "one step" | "one step of f32" | "one step of bf16" | "one step uncompressed" => {
            let builder = Exchange::builder(1000);
            let first = |number| NamedRange::dense("first", 1000, number);
            let builder = match case.as_str() {
                "one step of f32" => builder.ranges([first(Dense::F32)]),
                "one step of bf16" => builder.ranges([first(Dense::Bf16)]),
                "one step uncompressed" => builder.uncompressed(Dense::F32),
                _ => builder,
            };
            let mut exchange = builder.build(&replica).expect("agreed");
            tell("made");
            if rank == 0 {
                nix::sys::signal::raise(Signal::SIGSTOP).expect("stops");
            }
            let mut parameters = vec![0.0; 1000];
            match exchange.step(Some(&[1.0; 1000]), &mut parameters) {
                Ok(_) => tell("error none"),
                Err(Error::Protocol { rank, what }) => {
                    tell(format!("error protocol {rank}"));
                    tell(format!("what {what}"));
                }
                Err(error) => tell(format!("error {error}")),
            }
        }
        "scribbled" => {
            let end = Instant::now() + Duration::from_millis(700);
            let mut vector = vec![0.5_f32; 300_000];
            let update = vec![1e-3_f32; 300_000];
            let agreed = |error: Error| {
                if error.ends_the_run() {
                    Err(error)
                } else {
                    Ok(())
                }
            };
            let mut sum = vec![1_u64; 100_000];
            let mut run = || -> Result<(), Error> {
                let mut exchange = Exchange::builder(300_000).build(&replica)?;
                let mut uncompressed = Exchange::builder(300_000)
                    .uncompressed(Dense::Bf16)
                    .build(&replica)?;
                tell("running");
                while Instant::now() < end {
                    exchange
                        .step(Some(&update), &mut vector)
                        .map(drop)
                        .or_else(agreed)?;
                    uncompressed
                        .step(Some(&update), &mut vector)
                        .map(drop)
                        .or_else(agreed)?;
                    replica.all_reduce(&mut sum, op::Sum)?;
                    replica.all_reduce(&mut sum[..20], op::Max)?;
                    replica.barrier()?;
                    replica.all_gather(&[1; 2000])?;
                    replica.broadcast(0, &mut vector)?;
                }
                Ok(())
            };
            let result = run();
            tell(format!("ended {result:?}"));
        }
        other => panic!("no case {other}"),
    }
}

/// Where a rank's ring lies in the segment's file.
fn arena(world: &World, rank: usize) -> u64 {
    let layout = world.segment.layout();
    (layout.ring(rank) + layout.arena) as u64
}

/// Writes into a segment from outside, as anybody of the same user can.
fn scribble(world: &World, offset: u64, bytes: &[u8]) {
    let path = format!("/dev/shm{}", world.segment.name());
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("the segment is there");
    file.write_all_at(bytes, offset)
        .expect("inside the segment");
}

fn read(world: &World, offset: u64) -> u8 {
    let path = format!("/dev/shm{}", world.segment.name());
    let mut byte = [0];
    std::fs::File::open(path)
        .expect("the segment is there")
        .read_exact_at(&mut byte, offset)
        .expect("inside");
    byte[0]
}

/// A world of two of which rank 0 is stopped before its first step, when rank 1 has published its own record and waits.
/// Where that record lies.
fn stopped_before_a_record(case: &str) -> (World, u64) {
    let mut world = World::start(case, 2);
    world.hear("made");
    let record = arena(&world, 1);
    let end = Instant::now() + PATIENCE;
    // The checksum comes with the rest.
    while (60..64).all(|byte| read(&world, record + byte) == 0) {
        assert!(Instant::now() < end, "rank 1 publishes nothing");
        std::thread::yield_now();
    }
    world.replicas[0].wait_for_stop();
    (world, record)
}

/// Lets rank 0 go on; both must find that rank 1 broke the protocol. What rank 0 says of it.
fn found_by_both(world: World, case: &str) -> String {
    world.replicas[0].signal(Signal::SIGCONT);
    let ended = world.finish();
    for replica in &ended {
        assert_eq!(
            replica.one("error"),
            "protocol 1",
            "{case}: {:?}",
            replica.heard
        );
    }
    ended[0].one("what").to_owned()
}

#[test]
fn every_byte_of_a_records_header_is_checked() {
    for byte in 0..64 {
        let (world, record) = stopped_before_a_record("one step");
        let offset = record + byte;
        scribble(&world, offset, &[read(&world, offset) ^ 0x10]);
        found_by_both(world, &format!("byte {byte}"));
    }
}

fn make_checksum_fit(world: &World, record: u64) {
    let header: Vec<u8> = (0..60).map(|byte| read(world, record + byte)).collect();
    scribble(world, record + 60, &crc32c::crc32c(&header).to_le_bytes());
}

#[test]
fn a_header_that_lies_in_any_byte_is_an_error_though_its_checksum_fits() {
    let steps = ["one step", "one step uncompressed"];
    for (case, byte) in steps
        .into_iter()
        .flat_map(|case| (0..60).map(move |byte| (case, byte)))
    {
        let (world, record) = stopped_before_a_record(case);
        let offset = record + byte;
        scribble(&world, offset, &[read(&world, offset) ^ 0x10]);
        make_checksum_fit(&world, record);
        world.replicas[0].signal(Signal::SIGCONT);
        let ended = world.finish();
        // What a peer may say as it likes: its flags for the agreement, a hash that is not said to be there, another
        // threshold and unit, how many of its elements were not finite. Without compression nobody says the last three.
        let of_compression = [10, 11, 12, 13].contains(&byte) || byte >= 56;
        let may_be_so =
            byte == 5 || (40..48).contains(&byte) || case == "one step" && of_compression;
        for (rank, replica) in ended.iter().enumerate() {
            assert!(
                replica.status.success(),
                "{case}, byte {byte}, rank {rank}: {:?}",
                replica.heard
            );
            let error = replica.one("error");
            assert!(
                error != "none" || may_be_so,
                "{case}, byte {byte}, rank {rank}: {:?}",
                replica.heard
            );
        }
        if !may_be_so {
            assert_eq!(
                ended[0].one("error"),
                ended[1].one("error"),
                "{case}, byte {byte}"
            );
        }
    }
}

/// Where a record's header has its fields.
const FORMAT: usize = 7;
const THRESHOLD: usize = 10;
const UNIT: usize = 12;
const HITS: usize = 52;
const PAYLOAD: usize = 64;

#[test]
fn a_record_of_another_coding_than_was_agreed_breaks_the_protocol() {
    let one = |place: usize, bytes: &[u8]| (place, bytes.to_vec());
    let cases = [
        // Dense, where what is compressed is expected, and the other way round.
        ("one step", one(FORMAT, &[3]), "dense f32 record"),
        ("one step", one(FORMAT, &[4]), "dense bf16 record"),
        ("one step of f32", one(FORMAT, &[1]), "sparse record"),
        ("one step of f32", one(FORMAT, &[2]), "bitmap record"),
        ("one step of f32", one(FORMAT, &[4]), "dense bf16 record"),
        ("one step of bf16", one(FORMAT, &[3]), "dense f32 record"),
        ("one step of bf16", one(FORMAT, &[0]), "format 0 is unknown"),
        ("one step", one(FORMAT, &[200]), "format 200 is unknown"),
        // Numbers that no such record has.
        (
            "one step of f32",
            one(THRESHOLD, &[0x80, 0x3f]),
            "expected 0",
        ),
        ("one step of bf16", one(UNIT, &[0x80, 0x3f]), "expected 0"),
        ("one step of f32", one(HITS, &[1]), "expected None"),
        ("one step", one(UNIT, &[0xff, 0x7f]), "2^-100"),
        ("one step", one(THRESHOLD, &[0, 0]), "2^-100"),
        ("one step", one(HITS, &[0xff, 0xff]), "payload of"),
        // Values that no encoder sends: an infinity, a NaN, a subnormal number, -0.
        (
            "one step of f32",
            one(PAYLOAD + 8, &[0, 0, 0x80, 0x7f]),
            "element 2 is inf",
        ),
        (
            "one step of f32",
            one(PAYLOAD + 3996, &[1, 0, 0xc0, 0xff]),
            "element 999 is NaN",
        ),
        (
            "one step of f32",
            one(PAYLOAD, &[1, 0, 0, 0]),
            "element 0 is",
        ),
        (
            "one step of bf16",
            one(PAYLOAD + 6, &[0, 0x80]),
            "element 3 is -0",
        ),
        (
            "one step of bf16",
            one(PAYLOAD + 6, &[0x80, 0xff]),
            "element 3 is -inf",
        ),
    ];
    for (case, (place, bytes), expected) in cases {
        let (world, record) = stopped_before_a_record(case);
        scribble(&world, record + place as u64, &bytes);
        make_checksum_fit(&world, record);
        let what = format!("{bytes:?} at {place} of {case}");
        let found = found_by_both(world, &what);
        assert!(found.contains(expected), "{what}: {found}");
    }
}

#[test]
fn random_bytes_anywhere_in_a_live_segment_are_never_more_than_errors_or_wrong_numbers() {
    let mut seed = 0x1234_5678_9ABC_DEF1_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..25 {
        let setup = Setup {
            deadline: Duration::from_secs(2),
            ..Setup::default()
        };
        let mut world = World::with("scribbled", 3, &setup);
        let total = world.segment.layout().total as u64;
        // Half of the rounds in the lines that decide something, half anywhere, arenas mostly.
        let within = if round % 2 == 0 {
            total
        } else {
            arena(&world, 0)
        };
        world.replicas[0].hear("running");
        for _ in 0..if round % 4 < 2 { 2000 } else { 20 } {
            let bytes = random().to_le_bytes();
            let length = 1 + (random() % 8) as usize;
            scribble(&world, random() % (within - 8), &bytes[..length]);
        }
        for (rank, replica) in world.finish().iter().enumerate() {
            assert!(
                replica.status.success(),
                "round {round}, rank {rank}: {} {:?}",
                replica.status,
                replica.heard
            );
            replica.one("ended");
        }
    }
}
