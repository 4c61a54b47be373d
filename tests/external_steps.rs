//! External updates in steps of real processes: everywhere in the same place, behind all that the ranks gave.

#[path = "plain/random.rs"]
mod random;
mod world;

use gradring::codec::canon;
use gradring::exchange::external::{ExternalUpdate, QueueSender, SourceError, UpdateSource, queue};
use gradring::{
    Bypass, Dense, Error, Exchange, Fixed, NamedRange, Reduction, Replica, parameter_hash,
};
use random::Random;
use world::{Setup, World, tell};

/// Several chunks, some of them cut by ranges.
const LENGTH: usize = 600_000;
const STEPS: usize = 12;

/// What each rank gives: hits of 1 in some places, so that nothing is left in a residual.
fn gives(rank: usize, step: usize) -> Option<Vec<f32>> {
    // Nobody in step 5.
    if step == 5 || (rank + step).is_multiple_of(4) {
        return None;
    }
    let mut random = Random((rank * 1000 + step) as u64);
    let mut update = vec![0.0; LENGTH];
    for _ in 0..500 {
        update[random.index(LENGTH)] = 1.0;
    }
    Some(update)
}

/// How many sources a rank has.
fn sources(rank: usize) -> usize {
    [2, 0, 1, 1][rank % 4]
}

/// What a source is sent before a step.
fn sent(rank: usize, number: usize, step: usize) -> Vec<ExternalUpdate> {
    let mut random = Random((rank * 7919 + number * 104_729 + step) as u64 ^ 0xABCD);
    (0..random.below(3))
        .map(|_| match random.below(3) {
            0 => {
                let values = (0..LENGTH).map(|i| {
                    let is_some = (i / 50_000 + step).is_multiple_of(3);
                    if is_some { random.laplace(0.01) } else { 0.0 }
                });
                ExternalUpdate::dense(values.collect()).expect("finite")
            }
            _ => {
                let value = random.one_of(&[0.1, 0.37, 0.0625]);
                let mut places: Vec<usize> = (0..3000).map(|_| random.index(LENGTH)).collect();
                places.sort_unstable();
                places.dedup();
                let hits = places.into_iter().map(|i| (i, i % 3 == 0));
                ExternalUpdate::hits(LENGTH, value, hits).expect("ascending")
            }
        })
        .collect()
}

/// What all replicas must hold.
fn simulate(world_size: usize, reduction: Reduction) -> Vec<f32> {
    let mut parameters = vec![0.25_f32; LENGTH];
    // What waits at each source, added up in order of arrival.
    let mut waiting = vec![vec![None::<Vec<f32>>; 2]; world_size];
    for step in 0..STEPS {
        for (rank, waiting) in waiting.iter_mut().enumerate() {
            for (number, sum) in waiting.iter_mut().enumerate().take(sources(rank)) {
                for update in sent(rank, number, step) {
                    let sum = sum.get_or_insert_with(|| vec![0.0; LENGTH]);
                    for (i, x) in update.values() {
                        sum[i] = canon(sum[i] + x);
                    }
                }
            }
        }
        let given: Vec<Vec<f32>> = (0..world_size)
            .filter_map(|rank| gives(rank, step))
            .collect();
        if given.is_empty() {
            continue;
        }
        let inverse = match reduction {
            Reduction::Mean => 1.0 / given.len() as f32,
            Reduction::Sum => 1.0,
        };
        let waited: Vec<Vec<f32>> = waiting
            .iter_mut()
            .flatten()
            .filter_map(Option::take)
            .collect();
        for update in given.iter().chain(&waited) {
            for (p, x) in parameters.iter_mut().zip(update) {
                if *x != 0.0 {
                    *p = canon(canon(*p) - canon(x * inverse));
                }
            }
        }
    }
    parameters
}

/// A source that gives something else than it said.
struct Wrong(usize);

impl UpdateSource for Wrong {
    fn elements(&self) -> usize {
        LENGTH
    }

    fn poll(&mut self) -> Result<Option<ExternalUpdate>, SourceError> {
        self.0 += 1;
        match self.0 {
            1 => Ok(None),
            2 => ExternalUpdate::dense(vec![1.0; LENGTH - 1]).map(Some),
            _ => Err(SourceError::Closed),
        }
    }

    fn give_back(&mut self, _: ExternalUpdate) {}
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    let rank = replica.rank();
    let reduction = match case.as_str() {
        "mean" | "bypassed mean" => Reduction::Mean,
        "sum" | "streamed sum" => Reduction::Sum,
        other => panic!("no case {other}"),
    };
    let builder = Exchange::builder(LENGTH);
    let builder = match case.as_str() {
        "streamed sum" => builder.streamed(),
        "bypassed mean" => builder.bypass(Bypass::Encoded),
        _ => builder,
    };
    let mut exchange = builder
        .reduction(reduction)
        .policy(Fixed::new(1.0).expect("a threshold"))
        .ranges([
            NamedRange::compressed("a", 300_001),
            NamedRange::dense("b", 40_000, Dense::F32),
            NamedRange::compressed("c", LENGTH - 340_001),
        ])
        .check_every(1)
        .build(&replica)
        .expect("agreed");
    let mut senders: Vec<QueueSender> = Vec::new();
    let (_, short) = queue(LENGTH - 1, 8);
    let error = exchange.attach(short).expect_err("another length");
    assert!(matches!(error, Error::Length { .. }), "{error}");
    for _ in 0..sources(rank) {
        let (sender, source) = queue(LENGTH, 2);
        exchange.attach(source).expect("its length");
        senders.push(sender);
    }
    exchange.attach(Wrong(0)).expect("its length");
    let mut parameters = vec![0.25_f32; LENGTH];
    exchange.start(&mut parameters).expect("starts");
    for step in 0..STEPS {
        for (number, sender) in senders.iter().enumerate() {
            for update in sent(rank, number, step) {
                sender.send(update).expect("it is attached");
            }
        }
        let update = gives(rank, step);
        let update = update
            .as_ref()
            .map(|update| update as &dyn gradring::Update);
        let report = exchange.step(update, &mut parameters).expect("steps");
        let nobody = (0..replica.world_size()).all(|rank| gives(rank, step).is_none());
        assert_eq!(report.epoch_ended(), nobody);
        if nobody {
            assert_eq!(report.external_updates, 0);
        }
        let wrong = exchange.sources().last().expect("the last one").1;
        assert!(match step {
            0 => wrong.is_none(),
            // It is not asked again.
            _ => matches!(wrong, Some(SourceError::Length { .. })),
        });
    }
    exchange
        .check(&mut parameters)
        .expect("the same everywhere");
    let accepted: u64 = exchange.sources().map(|(counts, _)| counts.accepted).sum();
    assert_eq!(accepted > 0, sources(rank) > 0);
    tell(format!("parameters {:016x}", parameter_hash(&parameters)));
}

fn all_hold(case: &str, world_size: usize, reduction: Reduction, setup: &Setup) {
    let expected = parameter_hash(&simulate(world_size, reduction));
    for replica in World::with(case, world_size, setup).succeed() {
        assert_eq!(replica.one("parameters"), format!("{expected:016x}"));
    }
}

#[test]
fn external_updates_come_behind_all_ranks_by_rank_and_number_on_every_replica() {
    for world_size in [1, 2, 4] {
        all_hold("mean", world_size, Reduction::Mean, &Setup::default());
    }
    let small = Setup {
        ring_capacity: 1 << 19,
        cores: 1,
        ..Setup::default()
    };
    all_hold("sum", 3, Reduction::Sum, &small);
    all_hold("streamed sum", 3, Reduction::Sum, &small);
    all_hold("streamed sum", 2, Reduction::Sum, &Setup::default());
    all_hold("bypassed mean", 1, Reduction::Mean, &Setup::default());
}
