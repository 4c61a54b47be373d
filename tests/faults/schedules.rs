//! Every schedule and operation, over and over until an error ends the run.

use gradring::codec::Apply;
use gradring::exchange::Builder;
use gradring::exchange::external::{ExternalUpdate, QueueSender, queue};
use gradring::{
    Asynchronous, Dense, Error, Exchange, Fixed, InResidual, NamedRange, Replica, Report, op,
};

/// Elements: several chunks of each kind, and long enough to be reduced in slices.
pub(crate) const LENGTH: usize = 120_000;

/// All that can be done over and over.
pub(crate) const OPERATIONS: [&str; 22] = [
    "lockstep",
    "lockstep onto a sum",
    "without data",
    "nobody has data",
    "in place",
    "streamed",
    "streamed onto a sum",
    "streamed without data",
    "flush",
    "external",
    "lockstep finish_epoch",
    "uncompressed flat",
    "uncompressed scattered",
    "uncompressed bf16",
    "asynchronous",
    "asynchronous without data",
    "settle",
    "asynchronous finish_epoch",
    "check",
    "long broadcast",
    "very long all_gather",
    "long all_reduce",
];

fn ranges() -> Vec<NamedRange> {
    vec![
        NamedRange::compressed("weights", 70_000),
        NamedRange::dense("bias", 10_000, Dense::F32),
        NamedRange::dense("norm", 10_000, Dense::Bf16),
        NamedRange::compressed("rest", LENGTH - 90_000),
    ]
}

/// How an operation's exchange is made.
fn builder(operation: &str) -> Builder {
    let compressed = || {
        Exchange::builder(LENGTH)
            .ranges(ranges())
            .policy(Fixed::new(1e-3).expect("a threshold"))
    };
    let asynchronous = |settle_every| {
        compressed().asynchronous(Asynchronous {
            max_lag: 3,
            settle_every,
        })
    };
    match operation {
        // Short enough that each reduces all of it.
        "uncompressed flat" => Exchange::builder(length(operation)).uncompressed(Dense::F32),
        "uncompressed scattered" => Exchange::builder(LENGTH).uncompressed(Dense::F32),
        "uncompressed bf16" => Exchange::builder(LENGTH).uncompressed(Dense::Bf16),
        "asynchronous" | "asynchronous without data" => asynchronous(20),
        "settle" | "asynchronous finish_epoch" => asynchronous(1000),
        "streamed" | "streamed onto a sum" | "streamed without data" => compressed().streamed(),
        _ => compressed(),
    }
}

fn length(operation: &str) -> usize {
    match operation {
        "uncompressed flat" => 30_000,
        _ => LENGTH,
    }
}

/// What one operation needs.
pub(crate) struct Doing {
    replica: Replica,
    operation: String,
    exchange: Exchange,
    sender: Option<QueueSender>,
    update: Vec<f32>,
    parameters: Vec<f32>,
    turn: usize,
}

impl Doing {
    pub(crate) fn new(replica: &Replica, operation: &str) -> Result<Self, Error> {
        let length = length(operation);
        let mut exchange = builder(operation).check_every(1).build(replica)?;
        let mut sender = None;
        if operation == "external" && replica.rank() != 2 {
            let (send, source) = queue(length, 4);
            exchange.attach(source)?;
            sender = Some(send);
        }
        let mut parameters = vec![0.5; length];
        exchange.start(&mut parameters)?;
        let size = 1e-3 * (1.0 + replica.rank() as f32);
        Ok(Self {
            replica: replica.clone(),
            operation: operation.to_owned(),
            exchange,
            sender,
            update: (0..length).map(|i| size * ((i % 7) as f32 - 3.0)).collect(),
            parameters,
            turn: 0,
        })
    }

    /// A streamed step, of two parts a chunk, those of the last chunks first.
    fn stream(&mut self, apply: Apply) -> Result<Report, Error> {
        let mut step = match apply {
            Apply::Subtract => self.exchange.begin()?,
            Apply::Add => self.exchange.begin_all_reduce()?,
        };
        let parts = self.update.chunks(7_000).enumerate();
        for (at, part) in parts.collect::<Vec<_>>().into_iter().rev() {
            let start = 7_000 * at;
            step.push(start..start + part.len(), part)?;
        }
        step.finish(&mut self.parameters)
    }

    fn step(&mut self) -> Result<Report, Error> {
        self.exchange.step(Some(&self.update), &mut self.parameters)
    }

    /// Asynchronous steps until all ranks wait, each elsewhere: rank 1 is stopped, rank 0 settles, rank 2 goes on.
    pub(crate) fn apart(&mut self) -> Result<(), Error> {
        self.step()?;
        match self.replica.rank() {
            0 => self.exchange.settle(&mut self.parameters).map(drop),
            1 => {
                super::tell("stops");
                nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP).expect("it stops");
                Ok(())
            }
            _ => loop {
                self.step()?;
            },
        }
    }

    /// Does it once more.
    pub(crate) fn once(&mut self) -> Result<(), Error> {
        let rank = self.replica.rank();
        self.turn += 1;
        let steps = (self.turn + rank) % 4;
        match self.operation.as_str() {
            "lockstep"
            | "uncompressed flat"
            | "uncompressed scattered"
            | "uncompressed bf16"
            | "asynchronous" => self.step().map(drop),
            "lockstep onto a sum" => {
                let sum = &mut self.parameters;
                self.exchange.all_reduce(Some(&self.update), sum).map(drop)
            }
            "without data" if rank == 0 => self.step().map(drop),
            "asynchronous without data" if rank != 1 => self.step().map(drop),
            "streamed" => self.stream(Apply::Subtract).map(drop),
            "streamed onto a sum" => self.stream(Apply::Add).map(drop),
            "streamed without data" if rank != 1 => self.stream(Apply::Subtract).map(drop),
            "streamed without data"
            | "without data"
            | "nobody has data"
            | "asynchronous without data" => {
                self.exchange.step(None, &mut self.parameters).map(drop)
            }
            "in place" => {
                self.exchange.residual_mut()[self.turn % LENGTH] += 0.25;
                let parameters = &mut self.parameters;
                self.exchange.step(Some(&InResidual), parameters).map(drop)
            }
            "flush" => self.exchange.flush(&mut self.parameters).map(drop),
            "external" => {
                if let Some(sender) = &self.sender {
                    let hits = (0..LENGTH).step_by(10).map(|i| (i, i % 20 == 0));
                    let update = ExternalUpdate::hits(LENGTH, 0.125, hits).expect("ascending");
                    sender.send(update).expect("it is attached");
                }
                self.step().map(drop)
            }
            "lockstep finish_epoch" | "asynchronous finish_epoch" => {
                for _ in 0..steps {
                    self.step()?;
                }
                self.exchange.finish_epoch(&mut self.parameters).map(drop)
            }
            "settle" => {
                for _ in 0..steps {
                    self.step()?;
                }
                self.exchange.settle(&mut self.parameters).map(drop)
            }
            "check" => self.exchange.check(&mut self.parameters),
            "long broadcast" => self.replica.broadcast(2, &mut self.parameters),
            "very long all_gather" => self.replica.all_gather(&vec![7; 3_000_000]).map(drop),
            "long all_reduce" => self.replica.all_reduce(&mut self.parameters, op::Max),
            other => panic!("no operation {other}"),
        }
    }
}

/// Does it until an error ends the run; the error.
pub(crate) fn until_error(replica: &Replica, operation: &str) -> Error {
    let mut doing = match Doing::new(replica, operation) {
        Ok(doing) => doing,
        Err(error) => return error,
    };
    super::tell("running");
    loop {
        if let Err(error) = doing.once() {
            return error;
        }
    }
}
