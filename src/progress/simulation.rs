//! Programs of epochs and data loops, run by several positions side by side, stopped anywhere and started again with
//! another number of them: every loop sees each of its samples once.

use super::position::Position;
use super::sampler::{Pass, Sampler};
use crate::replica::Error;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A generator that needs no luck: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

#[derive(Clone, Debug)]
struct Loop {
    name: String,
    sampler: Sampler,
}

#[derive(Clone, Debug)]
struct Program {
    before: Vec<Loop>,
    within: Vec<Loop>,
    after: Vec<Loop>,
    epochs: u64,
}

/// What loops have seen, by epoch and order; loops after the epochs count on from those before.
type Seen = BTreeMap<(Option<u64>, usize), Vec<usize>>;

/// What is on the disk: a position, and what had been seen when it was kept.
#[derive(Clone, Default)]
struct Kept {
    position: Option<Vec<u8>>,
    seen: Seen,
}

/// The process has been killed, or has stopped after a checkpoint.
struct Ended;

struct World<'a> {
    program: &'a Program,
    ranks: Vec<Position>,
    kept: &'a mut Kept,
    seen: Seen,
    random: &'a mut Random,
    /// Whether ranks may be at different iterations.
    apart: bool,
    /// Iterations of any rank until it ends.
    left: u64,
}

fn saved(position: &Position) -> Vec<u8> {
    let mut bytes = Vec::new();
    position.save(&mut bytes).unwrap();
    bytes
}

impl World<'_> {
    fn checkpoint(&mut self) {
        let said: Vec<Vec<u8>> = self.ranks.iter().map(Position::contribution).collect();
        let said: Vec<&[u8]> = said.iter().map(Vec::as_slice).collect();
        for rank in &mut self.ranks {
            rank.agree(&said).unwrap();
        }
        let bytes = saved(&self.ranks[0]);
        for rank in &self.ranks {
            assert!(saved(rank) == bytes, "all ranks keep the same");
        }
        self.kept.position = Some(bytes);
        self.kept.seen = self.seen.clone();
    }

    /// What may happen at the beginning of every iteration.
    fn point(&mut self) -> Result<(), Ended> {
        if self.random.below(6) == 0 {
            self.checkpoint();
        }
        self.left = self.left.checked_sub(1).ok_or(Ended)?;
        if self.left == 0 && self.random.below(2) == 0 {
            // A stop: nothing is lost.
            self.checkpoint();
        }
        Ok(())
    }

    fn run_loop(&mut self, which: &Loop, key: (Option<u64>, usize)) -> Result<(), Ended> {
        let begin = |rank: &mut Position| rank.begin_loop(&which.name, &which.sampler).unwrap();
        let begun: Vec<(u64, Option<Pass>)> = self.ranks.iter_mut().map(begin).collect();
        let number = begun[0].0;
        let passes: Option<Vec<Pass>> = begun.into_iter().map(|(_, pass)| pass).collect();
        let Some(mut passes) = passes else {
            for rank in &mut self.ranks {
                rank.finish_loop(number);
            }
            return Ok(());
        };
        // So that a loop without samples has been seen.
        self.seen.entry(key).or_default();
        loop {
            let left: Vec<u64> = passes.iter().map(Pass::iterations_left).collect();
            let most = *left.iter().max().unwrap();
            if most == 0 {
                break;
            }
            self.point()?;
            for (rank, pass) in passes.iter_mut().enumerate() {
                // No rank is more than 3 iterations ahead of the slowest.
                let goes = !self.apart || self.random.below(2) == 0;
                if goes && left[rank] + 3 > most {
                    let Some(batch) = pass.next() else { continue };
                    self.ranks[rank].set_begun(number, pass.begun());
                    self.seen.entry(key).or_default().extend(batch);
                }
            }
        }
        self.point()?;
        for rank in &mut self.ranks {
            rank.finish_loop(number);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Ended> {
        let program = self.program;
        for (order, which) in program.before.iter().enumerate() {
            self.run_loop(which, (None, order))?;
        }
        for rank in &mut self.ranks {
            rank.begin_epochs().unwrap();
        }
        loop {
            for rank in &mut self.ranks {
                rank.end_epoch().unwrap();
            }
            self.point()?;
            let begin = |rank: &mut Position| rank.begin_epoch(program.epochs);
            let epochs: Vec<Option<u64>> = self.ranks.iter_mut().map(begin).collect();
            assert!(epochs.iter().all(|epoch| *epoch == epochs[0]));
            let Some(epoch) = epochs[0] else { break };
            for (order, which) in program.within.iter().enumerate() {
                self.run_loop(which, (Some(epoch), order))?;
            }
        }
        for rank in &mut self.ranks {
            rank.end_epochs(true);
        }
        for (order, which) in (program.before.len()..).zip(&program.after) {
            self.run_loop(which, (None, order))?;
        }
        Ok(())
    }
}

fn a_loop() -> impl Strategy<Value = Loop> {
    let size = prop_oneof![Just(0_usize), 1..40_usize];
    (
        0..2_u8,
        size,
        1..6_usize,
        any::<bool>(),
        prop::option::of(0..3_u64),
    )
        .prop_map(|(name, samples, batch, together, seed)| {
            let sampler = Sampler::new(samples);
            let sampler = if together {
                sampler.global_batch(batch)
            } else {
                sampler.batch(batch)
            };
            let sampler = match seed {
                Some(seed) => sampler.shuffled(seed),
                None => sampler,
            };
            // Few names, so that loops of one name run several times.
            let name = ["train", "valid"][usize::from(name)].to_owned();
            Loop { name, sampler }
        })
}

fn program() -> impl Strategy<Value = Program> {
    let loops = |most| prop::collection::vec(a_loop(), 0..most);
    (loops(3), loops(4), loops(3), 0..4_u64).prop_map(|(before, within, after, epochs)| Program {
        before,
        within,
        after,
        epochs,
    })
}

fn exactly_once(program: &Program, seed: u64, apart: bool) {
    let random = &mut Random(seed);
    let mut kept = Kept::default();
    let seen = loop {
        let world_size = 1 + random.below(5) as usize;
        let mut ranks: Vec<Position> = (0..world_size)
            .map(|rank| Position::new(rank, world_size))
            .collect();
        if let Some(bytes) = &kept.position {
            for rank in &mut ranks {
                rank.load(&mut &bytes[..]).unwrap();
            }
        }
        let mut world = World {
            program,
            ranks,
            seen: kept.seen.clone(),
            kept: &mut kept,
            left: 1 + random.below(60),
            random,
            apart,
        };
        if world.run().is_ok() {
            break world.seen;
        }
    };
    let outside = program.before.iter().chain(&program.after).enumerate();
    let mut expected: Vec<((Option<u64>, usize), usize)> = outside
        .map(|(order, which)| ((None, order), which.sampler.samples()))
        .collect();
    for epoch in 0..program.epochs {
        let within = program.within.iter().enumerate();
        expected
            .extend(within.map(|(order, which)| ((Some(epoch), order), which.sampler.samples())));
    }
    assert_eq!(seen.len(), expected.len());
    for (key, samples) in expected {
        let mut seen = seen[&key].clone();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..samples), "{key:?}: {seen:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn each_sample_once_through_stops_kills_and_other_world_sizes(program in program(), seed: u64) {
        exactly_once(&program, seed, false);
    }

    #[test]
    fn each_sample_once_where_ranks_are_at_different_iterations(program in program(), seed: u64) {
        exactly_once(&program, seed, true);
    }

    #[test]
    fn any_bytes_are_an_error_or_a_position(bytes: Vec<u8>, at: usize, change in 1..=255_u8) {
        let mut position = Position::new(0, 1);
        assert!(position.load(&mut &bytes[..]).is_err());
        let mut good = saved(&in_the_middle(10));
        assert!(position.load(&mut &good[..]).is_ok());
        let at = at % good.len();
        good[at] ^= change;
        assert!(Position::new(0, 1).load(&mut &good[..]).is_err());
        assert!(Position::new(0, 1).load(&mut &good[..at]).is_err());
    }
}

/// In the second loop of epoch 1, at its second batch of two samples.
fn in_the_middle(samples: usize) -> Position {
    let sampler = Sampler::new(samples).batch(2).shuffled(5);
    let mut position = Position::new(0, 1);
    position.begin_epochs().unwrap();
    position.begin_epoch(9).unwrap();
    position.end_epoch().unwrap();
    position.begin_epoch(9).unwrap();
    let (number, _) = position.begin_loop("valid", &sampler).unwrap();
    position.finish_loop(number);
    let (number, pass) = position.begin_loop("train", &sampler).unwrap();
    pass.unwrap().next().unwrap();
    position.set_begun(number, 1);
    position
}

fn again(position: &Position) -> Position {
    let mut again = Position::new(0, 1);
    again.load(&mut &saved(position)[..]).unwrap();
    again.begin_epochs().unwrap();
    again.begin_epoch(9).unwrap();
    again
}

#[test]
fn another_loop_in_the_place_of_one_that_was_kept_is_a_typed_error() {
    let sampler = Sampler::new(10).batch(2).shuffled(5);
    let kept = in_the_middle(10);
    let mut position = again(&kept);
    let error = position.begin_loop("train", &sampler).unwrap_err();
    let Error::OtherLoop {
        epoch: Some(1),
        position: 0,
        expected,
        found,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (expected.as_str(), found.as_str()),
        ("\"valid\"", "\"train\"")
    );
    // A finished loop may have had any samples: nothing of it is run.
    let (number, pass) = position.begin_loop("valid", &Sampler::new(3)).unwrap();
    assert!(pass.is_none());
    position.finish_loop(number);
    for other in [
        Sampler::new(11).batch(2).shuffled(5),
        Sampler::new(10).batch(2).shuffled(6),
        Sampler::new(10).batch(2),
    ] {
        let error = position.begin_loop("train", &other).unwrap_err();
        let expected = "\"train\" (10 samples, shuffled with seed 5)";
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = position.end_epoch().unwrap_err();
    assert!(
        error.to_string().contains("the end of the epoch"),
        "{error}"
    );
    let (_, pass) = position
        .begin_loop("train", &sampler.global_batch(3))
        .unwrap();
    assert_eq!(pass.unwrap().flatten().count(), 8);
}

#[test]
fn one_loop_at_a_time_and_one_loop_over_epochs() {
    let mut position = in_the_middle(10);
    let sampler = Sampler::new(3);
    for error in [
        position.begin_loop("b", &sampler).unwrap_err(),
        position.begin_epochs().unwrap_err(),
        position.end_epoch().unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("\"train\""), "{error}");
    }
    let mut position = Position::new(0, 1);
    position.begin_epochs().unwrap();
    let error = position.begin_epochs().unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    for name in ["", &"x".repeat(256)] {
        let error = position.begin_loop(name, &sampler).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    assert!(position.begin_loop(&"x".repeat(255), &sampler).is_ok());
}

#[test]
fn a_loop_that_an_error_has_ended_goes_on_where_it_was() {
    let sampler = Sampler::new(10).batch(2).shuffled(5);
    let mut position = Position::new(0, 1);
    let (number, pass) = position.begin_loop("train", &sampler).unwrap();
    let mut pass = pass.unwrap();
    let mut seen = [pass.next().unwrap(), pass.next().unwrap()].concat();
    position.set_begun(number, pass.begun());
    position.leave_loop(number);
    let (number, pass) = position.begin_loop("train", &sampler).unwrap();
    seen.extend(pass.unwrap().flatten());
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..10));
    position.finish_loop(number);
    let (_, pass) = position.begin_loop("train", &sampler).unwrap();
    let second: Vec<usize> = pass.unwrap().flatten().collect();
    assert_eq!(second.len(), 10, "a second pass");
    let mut fresh = Position::new(0, 1);
    let (_, pass) = fresh.begin_loop("train", &sampler).unwrap();
    assert!(pass.unwrap().flatten().ne(second), "in another order");
}

#[test]
fn what_is_left_after_a_stop_is_not_finished() {
    let mut position = in_the_middle(10);
    let before = saved(&position);
    position.stop();
    position.leave_loop(1);
    position.end_epochs(true);
    assert_eq!(position.finished_epochs(), 1);
    assert_eq!(saved(&position), before);
    let (_, pass) = position.begin_loop("other", &Sampler::new(3)).unwrap();
    assert!(pass.is_none());
    position.begin_epochs().unwrap();
    assert_eq!(position.begin_epoch(9), None);
}

#[test]
fn ranks_that_are_in_different_places_agree_that_they_are() {
    let (mut one, other) = (in_the_middle(10), in_the_middle(12));
    let said = [one.contribution(), other.contribution()];
    let error = one.agree(&[&said[0], &said[1]]).unwrap_err();
    assert!(matches!(error, Error::Disagreement { .. }), "{error}");
    let error = one.agree(&[&said[0], &said[0][1..]]).unwrap_err();
    assert!(matches!(error, Error::Protocol { rank: 1, .. }), "{error}");
    one.agree(&[&said[0], &said[0]]).unwrap();
}
