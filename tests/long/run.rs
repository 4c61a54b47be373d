//! A replica that follows a plan.

use super::plan::{Event, Form, Model, Number, Plan, Schedule, Shape, cuts, shuffled};
use super::simulation::{burst_event, digest, subtract, whole};
use gradring::checkpoint::State;
use gradring::codec::{Given, Values};
use gradring::exchange::external::{QueueSender, queue};
use gradring::{Asynchronous, EpochEnd, Error, Exchange, InResidual, Replica, Report, Update, op};
use half::{bf16, f16};

/// One model of this replica.
pub struct Trained<'a> {
    pub model: &'a Model,
    pub exchange: Exchange,
    pub parameters: Vec<f32>,
    sender: Option<QueueSender>,
}

fn build(model: &Model, rank: usize, replica: &Replica) -> Result<Exchange, Error> {
    let mut builder = Exchange::builder(model.length())
        .name(format!("model {}", model.number))
        .reduction(model.reduction)
        .check_every(model.check_every)
        .path(model.path(rank));
    match model.schedule {
        Schedule::Lockstep => {}
        Schedule::Streamed => builder = builder.streamed(),
        Schedule::Uncompressed(number) => return builder.uncompressed(number).build(replica),
        Schedule::Asynchronous => {
            builder = builder.asynchronous(Asynchronous {
                max_lag: 4,
                settle_every: 1000,
            });
        }
    }
    builder = builder
        .ranges(model.named_ranges(rank))
        .policy(model.policy(rank))
        .threads(model.threads(rank));
    if model.clips {
        builder = builder.post_processor(model.clipping(rank));
    }
    if model.remembers {
        builder = builder.momentum(model.memory());
    }
    builder.build(replica)
}

/// An update as a rank has it.
struct Owned {
    singles: Vec<f32>,
    f16s: Vec<f16>,
    bf16s: Vec<bf16>,
    number: Number,
}

impl Owned {
    /// Takes values that are those of this number.
    fn new(singles: Vec<f32>, number: Number) -> Owned {
        let wants = |wanted: Number| if number == wanted { &singles[..] } else { &[] };
        Owned {
            f16s: wants(Number::Half)
                .iter()
                .map(|&x| f16::from_f32(x))
                .collect(),
            bf16s: wants(Number::Bf16)
                .iter()
                .map(|&x| bf16::from_f32(x))
                .collect(),
            singles,
            number,
        }
    }

    fn values(&self, start: usize, end: usize) -> Values<'_> {
        match self.number {
            Number::Single => (&self.singles[start..end]).into(),
            Number::Half => (&self.f16s[start..end]).into(),
            Number::Bf16 => (&self.bf16s[start..end]).into(),
        }
    }

    fn parts(&self, seed: u64) -> Vec<Values<'_>> {
        let mut at = 0;
        let lengths = cuts(seed, self.singles.len()).into_iter();
        let parts = lengths.map(|length| {
            at += length;
            self.values(at - length, at)
        });
        parts.collect()
    }
}

impl Update for Owned {
    fn given(&self) -> Given<'_> {
        Given::Slice(self.values(0, self.singles.len()))
    }
}

/// Elements that are not finite are told, and no reason to stop.
fn went_on(result: Result<Report, Error>) -> Result<bool, Error> {
    match result {
        Ok(report) => Ok(!report.epoch_ended()),
        Err(Error::NonFinite { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

impl Trained<'_> {
    /// Loads a state of no steps in which that number is another one.
    pub fn goes_on_at(&mut self, step: u64) {
        let mut bytes = Vec::new();
        self.exchange.save(&mut bytes).expect("between steps");
        let field = |bytes: &[u8], at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize
        };
        let text = |bytes: &[u8], at: usize| at + 4 + field(bytes, at);
        // Magic and version, kind, name, elements, ranges, whether there is a velocity.
        let mut at = text(&bytes, text(&bytes, 12)) + 8;
        let ranges = field(&bytes, at);
        at += 4;
        for _ in 0..ranges {
            at = text(&bytes, at);
        }
        at += 1;
        assert_eq!(bytes[at..at + 8], 0_u64.to_le_bytes());
        bytes[at..at + 8].copy_from_slice(&step.to_le_bytes());
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&checksum);
        self.exchange.load(&mut bytes.as_slice()).expect("whole");
        assert_eq!(self.exchange.steps(), step);
    }

    /// A step, or an `all_reduce`; whether anybody gave data.
    fn step(
        &mut self,
        update: Option<&dyn Update>,
        sum: Option<&mut [f32]>,
    ) -> Result<bool, Error> {
        let exchange = &mut self.exchange;
        match sum {
            Some(sum) => went_on(exchange.all_reduce(update, sum)),
            // Parameters in parts on every other model.
            None if self.model.number % 2 == 1 => {
                let (one, other) = self.parameters.split_at_mut(self.model.length() / 3);
                let parts: &mut [&mut [f32]] = &mut [one, &mut [], other];
                went_on(exchange.step(update, parts))
            }
            None => went_on(exchange.step(update, &mut self.parameters)),
        }
    }

    /// A streamed step of parts in random order.
    fn stream(
        &mut self,
        update: &Owned,
        seed: u64,
        sum: Option<&mut [f32]>,
    ) -> Result<bool, Error> {
        let mut step = match sum {
            Some(_) => self.exchange.begin_all_reduce()?,
            None => self.exchange.begin()?,
        };
        for part in shuffled(seed, update.singles.len()) {
            step.push(part.clone(), update.values(part.start, part.end))?;
        }
        went_on(match sum {
            Some(sum) => step.finish(sum),
            None => step.finish(&mut self.parameters),
        })
    }

    fn give(
        &mut self,
        given: Option<(Vec<f32>, Form)>,
        sum: Option<&mut [f32]>,
    ) -> Result<bool, Error> {
        let Some((values, form)) = given else {
            return self.step(None, sum);
        };
        if form.shape == Shape::InResidual {
            for (r, u) in self.exchange.residual_mut().iter_mut().zip(values) {
                *r += u;
            }
            return self.step(Some(&InResidual), sum);
        }
        let owned = Owned::new(values, form.number);
        match form.shape {
            Shape::Parts(seed) if self.model.schedule == Schedule::Streamed => {
                self.stream(&owned, seed, sum)
            }
            Shape::Parts(seed) => self.step(Some(&owned.parts(seed)), sum),
            _ => self.step(Some(&owned), sum),
        }
    }
}

/// Makes a plan's exchanges.
pub fn begin<'a>(replica: &Replica, plan: &'a Plan) -> Result<Vec<Trained<'a>>, Error> {
    let rank = replica.rank();
    let mut all = Vec::new();
    for (model, sources) in plan.models.iter().zip(&plan.sources) {
        let mut exchange = build(model, rank, replica)?;
        let mut sender = None;
        if sources[rank] {
            let (send, source) = queue(model.length(), 3);
            exchange.attach(source)?;
            sender = Some(send);
        }
        // Only rank 0's count.
        let mut parameters = match rank {
            0 => model.first_parameters(),
            _ => vec![f32::NAN; model.length()],
        };
        exchange.start(&mut parameters)?;
        all.push(Trained {
            model,
            exchange,
            parameters,
            sender,
        });
    }
    Ok(all)
}

/// Does one event.
pub fn event(
    replica: &Replica,
    plan: &Plan,
    all: &mut [Trained<'_>],
    number: usize,
) -> Result<(), Error> {
    let (rank, ranks) = (replica.rank(), plan.world_size);
    match plan.event(number) {
        Event::Step {
            model,
            onto_sum,
            gives,
            external,
        } => {
            let one = &mut all[model];
            for &seed in &external[rank] {
                let sender = one.sender.as_ref().expect("it has a source");
                sender
                    .send(one.model.external(seed))
                    .expect("it is attached");
            }
            let given = gives[rank].map(|form| (one.model.update(rank, number, form), form));
            if onto_sum {
                let mut sum = vec![f32::NAN; one.model.length()];
                if one.give(given, Some(&mut sum))? {
                    subtract(&mut one.parameters, &sum);
                }
            } else {
                one.give(given, None)?;
            }
        }
        Event::Flush { model, onto_sum } => {
            let one = &mut all[model];
            if onto_sum {
                let mut sum = vec![f32::NAN; one.model.length()];
                one.exchange.flush_all_reduce(&mut sum)?;
                subtract(&mut one.parameters, &sum);
            } else {
                one.exchange.flush(&mut one.parameters)?;
            }
        }
        Event::Burst { model, steps } => {
            let one = &mut all[model];
            for step in 0..steps[rank] {
                let update = one.model.update(rank, burst_event(number, step), whole());
                one.exchange.step(Some(&update), &mut one.parameters)?;
            }
            if number.is_multiple_of(2) {
                one.exchange.settle(&mut one.parameters)?;
            } else {
                let ended = one.exchange.finish_epoch(&mut one.parameters)?;
                assert_eq!(ended, EpochEnd::Ended);
            }
        }
        Event::Check { model } => {
            let one = &mut all[model];
            one.exchange.check(&mut one.parameters)?;
        }
        Event::Barrier => replica.barrier()?,
        Event::Gather(bytes) => {
            let own = |rank: usize| vec![rank as u8 ^ number as u8; bytes * (1 + rank % 2)];
            let parts = replica.all_gather(&own(rank))?;
            assert!(
                parts
                    .iter()
                    .enumerate()
                    .all(|(rank, part)| *part == own(rank))
            );
        }
        Event::Reduce(values) => {
            let own =
                |rank: usize, i: usize| (rank as u64 + 3).wrapping_mul(i as u64 ^ number as u64);
            let mut values: Vec<u64> = (0..values).map(|i| own(rank, i)).collect();
            replica.all_reduce(&mut values, op::Sum)?;
            let sum = |i: usize| (0..ranks).fold(0_u64, |sum, rank| sum.wrapping_add(own(rank, i)));
            assert!(values.iter().enumerate().all(|(i, value)| *value == sum(i)));
        }
        Event::Broadcast { root, elements } => {
            let of = |rank: usize| (rank * 1000 + number) as f32;
            let mut vector = vec![of(rank); elements];
            replica.broadcast(root, &mut vector)?;
            assert!(vector.iter().all(|x| *x == of(root)));
        }
    }
    Ok(())
}

/// What this replica says after event `number`.
pub fn says(all: &[Trained<'_>], number: usize) -> String {
    let vectors = all
        .iter()
        .map(|one| (one.parameters.as_slice(), one.exchange.residual()));
    digest(number, vectors)
}
