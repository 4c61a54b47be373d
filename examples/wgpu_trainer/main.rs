//! A trainer on a GPU: forward, backward, optimizer and exchange are commands to one device, and neither parameters nor
//! updates ever leave it. Replicas train a perceptron of 64-32-10 units on 1,797 real handwritten digits.
//!
//! ```text
//! cargo run --release --example wgpu_trainer -- -n 2
//! cargo run --release --example wgpu_trainer -- -n 4 --epochs 5 --adapter llvmpipe --json
//! gradring run -n 2 --checkpoint-dir checkpoints -- target/release/examples/wgpu_trainer
//! ```
//!
//! Without a GPU, Mesa's software for Vulkan (lavapipe) stands in for one: on two cores the first of these lines then takes
//! some ten seconds.
//!
//! What is this program's own: its device, its buffers (`gpu.rs`), its kernels (`*.wgsl`) and the order in which they run
//! (`model.rs`). This file is about replicas.

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use gradring::GpuError;
use gradring::checkpoint::Value;
use gradring::exchange::BackendChoice;
use gradring::progress::Sampler;
use gradring::{Exchange, Launch, Quantile, Replica, Update, op, parameter_hash};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use common::data::DataError;
use common::mlp::Mlp;
use common::schedule::Schedule;
use gpu::{DeviceError, Gpu};
use model::Model;

mod common;
#[path = "../digits/data.rs"]
mod digits;
mod gpu;
mod model;

const SHAPE: Mlp = Mlp {
    inputs: digits::WIDTH,
    hidden: 32,
};
/// Samples that one replica sees in one step, and those that it judges at once.
const BATCH: usize = 16;
const VALIDATION_BATCH: usize = 64;
/// The first learning rate; it falls to 0.
const RATE: f32 = 0.1;
const SEED: u64 = 0;
const MOST_REPLICAS: usize = 255;

const HELP: &str = "\
Trains a multilayer perceptron on 1,797 handwritten digits of 8x8 pixels, on a GPU.

Usage: wgpu_trainer [OPTIONS]
       gradring run -n N -- wgpu_trainer [OPTIONS]

Options:
  -n N            how many replicas train together, 1 to 255 (default 2)
  --epochs E      how often every sample is seen (default 20)
  --adapter NAME  the GPU: a part of its name (default: real ones, each replica the next one; software if there is none)
  --backend B     where updates are encoded: gpu (default), or processor, for which they are copied; the bits are the same
  --json          end with one line of JSON: replicas, adapter, backend, accuracy, identical, hashes, steps_per_second,
                  compression, steps, seen (samples), losses and accuracies (of each epoch)
  -h, --help      this text";

/// Why there is no result.
#[derive(Debug, Error)]
enum Failure {
    #[error("{0}")]
    Argument(String),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Engine(#[from] gradring::Error),
    #[error(transparent)]
    Launch(#[from] gradring::launch::LaunchError),
}

/// What was asked for.
struct Arguments {
    /// `None`: not given.
    replicas: Option<usize>,
    epochs: u64,
    adapter: Option<String>,
    backend: BackendChoice,
    json: bool,
}

/// How far the training is: the same on all replicas, and kept by every checkpoint.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Course {
    /// Steps that were made, and samples that all replicas have seen together.
    steps: u64,
    seen: u64,
    /// Of each epoch that is finished: the mean loss of the samples trained on, each at the time when it was seen, and what
    /// is classified right of the held-out ones, as a part of 1.
    losses: Vec<f64>,
    accuracies: Vec<f64>,
}

/// What came of it.
#[derive(Serialize)]
struct Trained {
    replicas: usize,
    adapter: String,
    /// What has encoded.
    backend: String,
    accuracy: f64,
    identical: bool,
    hashes: Vec<String>,
    /// Of the mean replica, without the time between its steps.
    steps_per_second: f64,
    /// How many bytes the same updates would be without compression, for one byte of messages.
    compression: f64,
    #[serde(flatten)]
    course: Course,
}

fn main() -> ExitCode {
    let ended = match Arguments::parse() {
        Ok(Some(arguments)) if Replica::is_replica() => as_replica(&arguments),
        Ok(Some(arguments)) => as_parent(&arguments),
        Ok(None) => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => Err(failure),
    };
    ended.unwrap_or_else(|failure| {
        eprintln!("wgpu_trainer: {failure}");
        match failure {
            Failure::Argument(_) => ExitCode::from(2),
            Failure::Launch(error) => ExitCode::from(error.exit_code()),
            _ => ExitCode::FAILURE,
        }
    })
}

/// Starts this program once for each replica. Rank 0 says what came of it.
fn as_parent(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // Said once, and not by every replica.
    load()?;
    gpu::adapter(arguments.adapter.as_deref(), 0)?;
    let launch = Launch::this_program()
        .replicas(arguments.replicas.unwrap_or(2))
        .prefix(false);
    let outcome = launch.run()?;
    if outcome.code != 0 {
        eprintln!("{outcome}");
    }
    Ok(ExitCode::from(outcome.code))
}

fn as_replica(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let replica = Replica::join()?;
    let world = replica.world_size();
    if let Some(asked) = arguments.replicas.filter(|&asked| asked != world) {
        let other = format!("-n is {asked}, but the launcher of this run started {world}");
        return Err(Failure::Argument(other));
    }
    let trained = train(arguments, &replica)?;
    if replica.rank() == 0 {
        let Trained {
            adapter, accuracy, ..
        } = &trained;
        println!(
            "{world} replicas on {adapter}: {:.2} % right, {:.0} steps/s each, {:.0} times fewer bytes",
            100.0 * accuracy,
            trained.steps_per_second,
            trained.compression
        );
        if arguments.json {
            let line = serde_json::to_string(&trained);
            println!(
                "{}",
                line.expect("numbers and texts can be written as JSON")
            );
        }
    }
    if !trained.identical {
        eprintln!("the replicas hold different parameters");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Trains together with the other replicas. All return the same.
fn train(arguments: &Arguments, replica: &Replica) -> Result<Trained, Failure> {
    let (data, world) = (load()?, replica.world_size());
    let gpu = Gpu::open(arguments.adapter.as_deref(), replica.rank())?;
    let model = Model::new(&gpu, SHAPE, BATCH.max(VALIDATION_BATCH));
    let elements = model.parameters.elements();
    let schedule = Schedule {
        samples: data.train.len(),
        global_batch: world * BATCH,
        epochs: arguments.epochs,
        seed: SEED,
    };

    // A run that goes on from a checkpoint has all of it as it was.
    let parameters = replica.keep(model.parameters.clone())?;
    replica.keep(model.velocity.clone())?;
    replica.keep(model.trained.clone())?;
    replica.keep(model.judged.clone())?;
    let policy = Quantile::new(1e-2).map_err(gradring::Error::from)?;
    let exchange = Exchange::builder(elements)
        .policy(policy)
        .gpu(gpu.context.clone())
        // Left to itself it would not encode on software that stands in for a GPU.
        .backend(arguments.backend)
        .build(replica)?;
    let exchange = replica.keep(exchange)?;
    let course = replica.keep_value(Value::shared("course", Course::default()))?;
    if !parameters.resumed() {
        model.parameters.write(&SHAPE.initial(SEED))?;
        exchange.lock()?.start(&mut model.parameters.parts())?;
    }

    let (mut messages, mut bytes, mut steps, mut seconds) = (0_u32, 0, 0_u32, 0.0);
    for epoch in replica.epochs(schedule.epochs)? {
        let epoch = epoch?;
        for batch in replica.batches("training", schedule.sampler())? {
            let (batch, begun) = (batch?, Instant::now());
            let (mut exchange, mut course) = (exchange.lock()?, course.lock()?);
            let update = model.update.parts();
            let mut given: Option<&dyn Update> = None;
            if !batch.is_empty() {
                // The mean of what replicas send is the mean over samples, however few the last ones are.
                let giving = world.min(batch.together());
                let weight = giving as f32 / batch.together() as f32;
                let rate = schedule.rate(RATE, course.seen);
                // Not submitted here: the exchange puts its own commands behind them, and submits all at once.
                exchange.record_after(model.train(&data.train, batch.indices(), weight, rate))?;
                given = Some(&update);
            }
            let report = exchange.step(given, &mut model.parameters.parts())?;
            course.seen += batch.together() as u64;
            course.steps += 1;
            messages += u32::from(!batch.is_empty());
            bytes += report.bytes;
            steps += 1;
            seconds += begun.elapsed().as_secs_f64();
        }
        let held_out = Sampler::new(data.held_out.len()).batch(VALIDATION_BATCH);
        for batch in replica.batches("validation", held_out)? {
            let batch = batch?;
            if !batch.is_empty() {
                model.judge(&data.held_out, batch.indices());
            }
        }
        let [loss, _, trained] = sums(replica, &model.trained)?;
        let [_, right, judged] = sums(replica, &model.judged)?;
        let (loss, accuracy) = (loss / trained, right / judged);
        let mut course = course.lock()?;
        course.losses.push(loss);
        course.accuracies.push(accuracy);
        if replica.rank() == 0 {
            let (epoch, epochs) = (epoch + 1, schedule.epochs);
            println!(
                "epoch {epoch}/{epochs}: loss {loss:.4}, {:.2} % right",
                100.0 * accuracy
            );
        }
    }

    // The same command with more epochs goes on from here.
    replica.checkpoint()?;

    let hash = parameter_hash(&model.parameters.read()?);
    let hashes = replica.all_gather(&hash.to_le_bytes())?;
    let mut all = [f64::from(messages), bytes as f64, f64::from(steps), seconds];
    replica.all_reduce(&mut all, op::Sum)?;
    let [messages, bytes, steps, seconds] = all;
    let course = &*course.lock()?;
    Ok(Trained {
        replicas: world,
        adapter: gpu.info.name,
        backend: exchange.lock()?.backend().to_string(),
        accuracy: course.accuracies.last().copied().unwrap_or(f64::NAN),
        identical: hashes.iter().all(|other| *other == hashes[0]),
        hashes: hashes.iter().map(|hash| hex(hash)).collect(),
        steps_per_second: steps / seconds,
        compression: 4.0 * elements as f64 * messages / bytes,
        course: course.clone(),
    })
}

/// Adds the replicas' tallies up, and begins them anew.
fn sums(replica: &Replica, tally: &gpu::Tensors) -> Result<[f64; 3], Failure> {
    let own = tally.read()?;
    tally.write(&[0.0; 3])?;
    let mut all = [own[0], own[1], own[2]].map(f64::from);
    replica.all_reduce(&mut all, op::Sum)?;
    Ok(all)
}

fn hex(hash: &[u8]) -> String {
    let bytes = hash.iter().rev();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn load() -> Result<common::data::Dataset, DataError> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data");
    digits::load(Path::new(directory))
}

impl Arguments {
    /// `None`: help is asked for.
    fn parse() -> Result<Option<Arguments>, Failure> {
        let mut parsed = Arguments {
            replicas: None,
            epochs: 20,
            adapter: None,
            backend: BackendChoice::Gpu,
            json: false,
        };
        let mut arguments = env::args();
        arguments.next();
        while let Some(option) = arguments.next() {
            let mut value = || {
                let missing = || Failure::Argument(format!("{option} needs a value"));
                arguments.next().ok_or_else(missing)
            };
            match &*option {
                "-n" => parsed.replicas = Some(number("-n", &value()?, MOST_REPLICAS)?),
                "--epochs" => parsed.epochs = number("--epochs", &value()?, 1_000_000)? as u64,
                "--adapter" => parsed.adapter = Some(value()?),
                "--backend" => parsed.backend = backend(&value()?)?,
                "--json" => parsed.json = true,
                "-h" | "--help" => return Ok(None),
                _ => {
                    let unknown = format!("{option:?} is not an option (--help lists them)");
                    return Err(Failure::Argument(unknown));
                }
            }
        }
        Ok(Some(parsed))
    }
}

fn backend(found: &str) -> Result<BackendChoice, Failure> {
    match found {
        "gpu" => Ok(BackendChoice::Gpu),
        "processor" => Ok(BackendChoice::Processor),
        _ => Err(Failure::Argument(format!(
            "--backend is {found:?}, expected gpu or processor"
        ))),
    }
}

fn number(option: &str, found: &str, most: usize) -> Result<usize, Failure> {
    match found.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(Failure::Argument(format!(
            "{option} is {found:?}, expected a whole number from 1 to {most}"
        ))),
    }
}
