//! Bytes that no correct replica writes, in a live segment: errors or wrong numbers, and nothing worse.

mod world;

use gradring::{Error, Exchange, Replica};
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
        "one step" => {
            let mut exchange = Exchange::builder(1000).build(&replica).expect("agreed");
            tell("made");
            if rank == 0 {
                nix::sys::signal::raise(Signal::SIGSTOP).expect("stops");
            }
            let mut parameters = vec![0.0; 1000];
            match exchange.step(Some(&[1.0; 1000]), &mut parameters) {
                Ok(_) => tell("error none"),
                Err(Error::Protocol { rank, .. }) => tell(format!("error protocol {rank}")),
                Err(error) => tell(format!("error {error}")),
            }
        }
        "scribbled" => {
            let end = Instant::now() + Duration::from_millis(700);
            let mut vector = vec![0.5_f32; 300_000];
            let update = vec![1e-3_f32; 300_000];
            let mut run = || -> Result<(), Error> {
                let mut exchange = Exchange::builder(300_000).build(&replica)?;
                tell("running");
                while Instant::now() < end {
                    exchange
                        .step(Some(&update), &mut vector)
                        .map(drop)
                        .or_else(|error| {
                            if error.ends_the_run() {
                                Err(error)
                            } else {
                                Ok(())
                            }
                        })?;
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

#[test]
fn every_byte_of_a_records_header_is_checked() {
    for byte in 0..64 {
        let mut world = World::start("one step", 2);
        world.hear("made");
        // Rank 0 is stopped; rank 1 publishes the only record of its first step and waits.
        let offset_of_ring = arena(&world, 1);
        let end = Instant::now() + PATIENCE;
        while read(&world, offset_of_ring + 60) == 0
            && read(&world, offset_of_ring + 61) == 0
            && read(&world, offset_of_ring + 62) == 0
        {
            assert!(Instant::now() < end, "rank 1 publishes nothing");
            std::thread::yield_now();
        }
        world.replicas[0].wait_for_stop();
        let offset = offset_of_ring + byte;
        scribble(&world, offset, &[read(&world, offset) ^ 0x10]);
        world.replicas[0].signal(Signal::SIGCONT);
        let ended = world.finish();
        assert_eq!(
            ended[0].one("error"),
            "protocol 1",
            "byte {byte}: {:?}",
            ended[0].heard
        );
        assert_eq!(
            ended[1].one("error"),
            "protocol 1",
            "byte {byte}: {:?}",
            ended[1].heard
        );
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
