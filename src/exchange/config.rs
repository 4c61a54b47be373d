//! What an exchange is made with, and what of it must agree.

use super::asynchronous::{Asynchronous, Since};
use super::backend::{self, BackendChoice};
use super::device::Device;
use super::external::Sources;
use super::{Bypass, Exchange};
#[cfg(feature = "gpu")]
use crate::codec::gpu::GpuContext;
use crate::codec::policy::{PolicyError, ThresholdPolicy};
use crate::codec::{
    ClippingError, Dense, Encoder, EncoderBuilder, EncoderError, MemoryError, MomentumMemory,
    NamedRange, Path, PostProcessor,
};
use crate::replica::{Error, Flags, Kind, Operation, Replica, gather};
use std::sync::Arc;

/// What becomes of the sum of all updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Divided by the number of replicas that gave data.
    #[default]
    Mean,
    /// Left as it is, as Deeplearning4j does: the effective step grows with the number of replicas.
    Sum,
}

/// In which order things are done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Schedule {
    Lockstep,
    Streamed,
    Asynchronous(Asynchronous),
    Uncompressed(Dense),
    Bypass(Bypass),
}

impl Schedule {
    /// Whether vectors on a device stay there.
    pub(super) fn stays_on_device(self) -> bool {
        matches!(self, Self::Lockstep | Self::Bypass(Bypass::Encoded))
    }
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lockstep => f.write_str("lockstep"),
            Self::Streamed => f.write_str("streamed"),
            Self::Asynchronous(_) => f.write_str("asynchronous"),
            Self::Uncompressed(number) => write!(f, "uncompressed as {number}"),
            Self::Bypass(Bypass::Encoded) => f.write_str("a bypass"),
            Self::Bypass(Bypass::Whole) => f.write_str("a bypass with whole updates"),
        }
    }
}

/// How an exchange is made.
#[derive(Debug)]
pub struct Builder {
    length: usize,
    reduction: Reduction,
    check_every: u64,
    schedule: Schedule,
    /// Schedules that were asked for one after the other.
    conflict: Option<[Schedule; 2]>,
    path: Option<Path>,
    backend: BackendChoice,
    #[cfg(feature = "gpu")]
    context: Option<GpuContext>,
    memory: Option<MomentumMemory>,
    encoder: EncoderBuilder,
    /// The first setting made that only compression has.
    of_compression: Option<&'static str>,
}

impl Builder {
    pub(super) fn new(length: usize) -> Self {
        Self {
            length,
            reduction: Reduction::Mean,
            check_every: 100,
            schedule: Schedule::Lockstep,
            conflict: None,
            path: None,
            backend: BackendChoice::Auto,
            #[cfg(feature = "gpu")]
            context: None,
            memory: None,
            encoder: Encoder::builder(length).name("model"),
            of_compression: None,
        }
    }

    /// Sends everything, every step, without any residual: as f32, or as bf16 with half the bytes and 8 significant bits.
    /// Must agree. Default: compressed.
    ///
    /// The values of all replicas that give data are summed from +0 in rank order, then divided for Mean, then applied
    /// once. An element that is not finite, or that makes the sum so far infinite, is left out and counted for its rank
    /// ([`Error::NonFinite`]). As bf16 every value is rounded when it is sent and the sum once more; what that takes away
    /// is lost: [`NamedRange::dense`] keeps it. What only compression has, such as a policy or ranges, must not be set.
    /// Source: Deeplearning4j's `BasicGradientsAccumulator`, AdaptDL's plain synchronization.
    #[must_use]
    pub fn uncompressed(self, number: Dense) -> Self {
        self.scheduled(Schedule::Uncompressed(number))
    }

    fn of_compression(&mut self, what: &'static str) {
        self.of_compression.get_or_insert(what);
    }

    /// The exchange's name, for messages. Must agree. Default: "model".
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.encoder = self.encoder.name(name);
        self
    }

    /// Mean (default) or sum. Must agree.
    #[must_use]
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// How the threshold is chosen. Its kind must agree, its numbers need not. Default:
    /// [`Quantile`](crate::codec::policy::Quantile) at density 1e-2.
    #[must_use]
    pub fn policy(mut self, policy: impl ThresholdPolicy + 'static) -> Self {
        self.of_compression("a threshold policy");
        self.encoder = self.encoder.policy(policy);
        self
    }

    /// Named ranges of the vector, whose lengths add up to its: each with the common threshold, with one of its own, or
    /// sent dense. Must agree. Default: one range, with the common threshold.
    #[must_use]
    pub fn ranges(mut self, ranges: impl IntoIterator<Item = NamedRange>) -> Self {
        self.of_compression("ranges");
        self.encoder = self.encoder.ranges(ranges);
        self
    }

    /// What is done to the residual after the hits. Its kind must agree. Default: nothing.
    #[must_use]
    pub fn post_processor(mut self, post: impl PostProcessor + 'static) -> Self {
        self.of_compression("a post-processor");
        self.encoder = self.encoder.post_processor(post);
        self
    }

    /// Momentum in front of the encoder, for trainers that hand over gradients. Must agree. Default: none.
    #[must_use]
    pub fn momentum(mut self, memory: MomentumMemory) -> Self {
        self.of_compression("a momentum memory");
        self.memory = Some(memory);
        self
    }

    /// How many threads of this replica encode, the caller's included. The bytes are those of one. Default: 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.of_compression("encoding threads");
        self.encoder = self.encoder.threads(threads);
        self
    }

    /// Keeps the places of a step's own hits for [`Encoder::hits`]. Default: no.
    #[must_use]
    pub fn keep_hits(mut self, keep: bool) -> Self {
        self.of_compression("keeping hits");
        self.encoder = self.encoder.keep_hits(keep);
        self
    }

    /// Makes [`Encoder::percentiles`] after each step, which takes 10 to 50 times as long as encoding. Default: no.
    #[must_use]
    pub fn debug(mut self, debug: bool) -> Self {
        self.of_compression("debugging percentiles");
        self.encoder = self.encoder.debug(debug);
        self
    }

    /// After how many steps the replicas compare the hashes of their parameters (and after the first one). Must agree.
    /// Default: 100. A comparison costs a pass over the parameters.
    #[must_use]
    pub fn check_every(mut self, steps: u64) -> Self {
        self.check_every = steps;
        self
    }

    /// Makes steps streamed: [`Exchange::begin`] takes an update in parts, in any order, and publishes them as they come, so
    /// that the exchange hides behind the backward pass. A whole update can still be handed over. The threshold of a step is
    /// chosen from what the step before looked like. Must agree. Default: not.
    #[must_use]
    pub fn streamed(self) -> Self {
        self.scheduled(Schedule::Streamed)
    }

    /// Steps without waiting for the others. Must agree, with both numbers. Default: lockstep.
    ///
    /// Settle before the exchange is dropped: what its steps have left in the rings only its own settle takes out, and until
    /// then the replica is [`Error::Unsettled`].
    #[must_use]
    pub fn asynchronous(self, settings: Asynchronous) -> Self {
        self.scheduled(Schedule::Asynchronous(settings))
    }

    /// Leaves out the rings: for a world of one, where nobody else takes part. Default: not.
    #[must_use]
    pub fn bypass(self, how: Bypass) -> Self {
        self.scheduled(Schedule::Bypass(how))
    }

    fn scheduled(mut self, schedule: Schedule) -> Self {
        if self.schedule != Schedule::Lockstep && self.schedule != schedule {
            self.conflict = Some([self.schedule, schedule]);
        }
        self.schedule = schedule;
        self
    }

    /// Forces a code path of the codec. All give the same bits. Default: `GRADRING_SIMD`, else the best one here.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
        self
    }

    /// Where updates are encoded: on a GPU or on the processor. Local: the bytes are the same. Default:
    /// [`BackendChoice::Auto`].
    ///
    /// A GPU encodes in lockstep and in [`Bypass::Encoded`], without a momentum memory, and without post-processors that do
    /// more than [clip](PostProcessor::processes). Where the exchange was given no [context](Self::gpu) it makes its own, which
    /// is [`Exchange::gpu`]; vectors on any other device are then an error.
    #[must_use]
    pub fn backend(mut self, choice: BackendChoice) -> Self {
        self.backend = choice;
        self
    }

    /// The device of the caller's vectors: update, parameters and sums may then be in its memory
    /// ([`GradRef`](crate::codec::gpu::GradRef)). Local. Default: none.
    ///
    /// With a real GPU updates are encoded there, too, unless [`backend`](Self::backend) says otherwise. Records are applied
    /// where the parameters are. A schedule that a GPU does not do (streamed, asynchronous, uncompressed,
    /// [`Bypass::Whole`]) copies vectors to this process's memory and back.
    ///
    /// Waits for the device are from then on not longer than three quarters of this replica's deadline.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn gpu(mut self, context: GpuContext) -> Self {
        self.context = Some(context);
        self
    }

    /// Where a GPU encodes: copies the residual to this process's memory after each so many steps, 0: never. See
    /// [`EncoderBuilder::snapshot_every`]. Local. Default: 0.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn snapshot_every(mut self, steps: u64) -> Self {
        self.of_compression("snapshots of the residual");
        self.encoder = self.encoder.snapshot_every(steps);
        self
    }

    /// Where a GPU encodes: goes on on the processor if the device is lost, with the last
    /// [snapshot](Self::snapshot_every) of the residual. Vectors in the memory of that device are lost all the same. See
    /// [`EncoderBuilder::fall_back`]; [`Exchange::backend`] tells, and [`Encoder::fell_back`] why. Local. Default: no.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn fall_back(mut self, yes: bool) -> Self {
        self.of_compression("falling back to the processor");
        self.encoder = self.encoder.fall_back(yes);
        self
    }

    /// Makes the exchange, on all replicas together. Blocking.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that cannot be (local); [`Error::Disagreement`] if replicas asked for different
    /// ones (agreed: the same on all, nothing was made); what ended the run.
    pub fn build(self, replica: &Replica) -> Result<Exchange, Error> {
        let Self {
            length,
            reduction,
            check_every,
            schedule,
            conflict,
            path,
            backend,
            #[cfg(feature = "gpu")]
            context,
            memory,
            mut encoder,
            of_compression,
        } = self;
        if let Schedule::Asynchronous(settings) = schedule {
            settings.check()?;
        }
        if length == 0 {
            return Err(invalid("elements of an exchange", "at least 1", length));
        }
        if check_every == 0 {
            return Err(invalid(
                "steps between comparisons",
                "at least 1",
                check_every,
            ));
        }
        if let Some([one, other]) = conflict {
            return Err(invalid(
                "schedules of an exchange",
                "one",
                format!("{one} and {other}"),
            ));
        }
        if let (Schedule::Uncompressed(number), Some(what)) = (schedule, of_compression) {
            return Err(invalid(
                what,
                "no such setting in an uncompressed exchange",
                format!("it set beside {number} without compression"),
            ));
        }
        if let Schedule::Bypass(_) = schedule
            && replica.world_size() > 1
        {
            let found = format!("{} replicas", replica.world_size());
            return Err(invalid("replicas of a bypass", "1", found));
        }
        if let (Schedule::Bypass(Bypass::Whole), Some(memory)) = (schedule, memory) {
            return Err(invalid(
                "momentum memory",
                "none where updates are applied whole",
                format!("{memory:?}"),
            ));
        }
        let path = match path {
            Some(path) if !path.is_available() => {
                return Err(invalid("code path", "one that this processor has", path));
            }
            Some(path) => path,
            None => Path::from_env().map_err(|error| {
                invalid("GRADRING_SIMD", "a path that this processor has", error)
            })?,
        };
        if let Some(memory) = memory {
            encoder = encoder.momentum(memory, replica.world_size());
        }
        let name = encoder.name.clone();
        let fields = agreement(length, reduction, check_every, schedule, &encoder);
        let ranges = match encoder.ranges.as_slice() {
            [] => vec![NamedRange::compressed(&name, length).agreement()],
            ranges => ranges.iter().map(NamedRange::agreement).collect(),
        };
        if let Schedule::Uncompressed(number) = schedule {
            let nothing = NamedRange::dense(name.clone(), 0, number);
            encoder = Encoder::builder(0).name(name.clone()).ranges([nothing]);
        }
        let asked = backend.or_from_env()?;
        #[cfg(not(feature = "gpu"))]
        let device = {
            backend::choose(asked)?;
            Device
        };
        #[cfg(feature = "gpu")]
        let device = {
            let chosen = backend::choose(&backend::Known {
                asked,
                context: context.as_ref(),
                elements: length,
                cannot: (!schedule.stays_on_device())
                    .then(|| format!("{schedule} steps"))
                    .or_else(|| encoder.gpu_cannot()),
            })?;
            let is_given = context.is_some();
            if asked == BackendChoice::Auto && context.is_none() {
                encoder = encoder.if_there_is_room();
            }
            let context = context.or_else(|| chosen.clone());
            if let Some(context) = &context {
                // So that the others hear why, before their own patience ends.
                context.timeout_at_most(replica.shared().deadline / 4 * 3);
            }
            if let Some(context) = chosen {
                encoder = encoder.gpu(context);
            }
            Device::new(context, is_given)
        };
        let encoder = encoder.path(path).build()?;
        if schedule == Schedule::Streamed {
            encoder
                .check_streams()
                .map_err(|error| invalid("momentum memory", "one that can be streamed", error))?;
        }
        if encoder.chunks() > u32::MAX as usize {
            return Err(invalid(
                "chunks of an exchange",
                "at most 2^32",
                encoder.chunks(),
            ));
        }
        let shared = Arc::clone(replica.shared());
        let index = {
            let engine = &mut *shared.engine()?;
            let index = engine.exchanges;
            if index == u16::MAX {
                return Err(invalid(
                    "exchanges of a replica",
                    "fewer than 65,535",
                    index,
                ));
            }
            let operation = Operation::new(Kind::NewExchange, index, 0, 0);
            let theirs = gather(&shared, engine, operation, &encode(&fields))?;
            compare(&name, &fields, &theirs)?;
            engine.exchanges += 1;
            if let Schedule::Asynchronous(_) = schedule {
                engine.begin_pacing();
            }
            index
        };
        Ok(Exchange {
            shared,
            index,
            name,
            ranges,
            reduction,
            check_every,
            schedule,
            length,
            encoder,
            sums: Default::default(),
            device,
            sources: Sources::default(),
            step: 0,
            hash: None,
            since_settle: Since::default(),
            missed: Flags::NONE,
        })
    }
}

fn invalid(what: &'static str, expected: &str, found: impl std::fmt::Display) -> Error {
    Error::Invalid {
        what,
        expected: expected.into(),
        found: found.to_string(),
    }
}

/// What an exchange is made of cannot be made with these numbers: local, and nothing was made.
macro_rules! invalid_numbers {
    ($($error:ty => $what:literal),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                invalid($what, "numbers that it can be made with", error)
            }
        }
    )*};
}
invalid_numbers!(
    PolicyError => "a threshold policy",
    ClippingError => "a post-processor",
    MemoryError => "a momentum memory"
);

impl From<EncoderError> for Error {
    fn from(error: EncoderError) -> Self {
        match error {
            #[cfg(feature = "gpu")]
            EncoderError::Gpu(error) => Self::Gpu(error),
            error => invalid("an encoder", "numbers that it can be made with", error),
        }
    }
}

/// What replicas must agree on, by name. How many ranges there are comes before the ranges, so that what differs first
/// has the same place on all.
fn agreement(
    length: usize,
    reduction: Reduction,
    check_every: u64,
    schedule: Schedule,
    encoder: &EncoderBuilder,
) -> Vec<(String, String)> {
    let post = encoder.post.as_ref().map_or("none", |post| post.kind());
    let memory = encoder
        .memory
        .map_or("none".to_owned(), |memory| format!("{memory:?}"));
    let (max_lag, settle_every) = match schedule {
        Schedule::Asynchronous(settings) => (
            settings.max_lag.to_string(),
            settings.settle_every.to_string(),
        ),
        _ => ("none".to_owned(), "never".to_owned()),
    };
    let mut fields: Vec<(String, String)> = [
        ("name", encoder.name.clone()),
        ("length", length.to_string()),
        ("reduction", format!("{reduction:?}")),
        ("schedule", schedule.to_string()),
        ("max_lag", max_lag),
        ("settle_every", settle_every),
        ("policy", encoder.policy.kind().to_owned()),
        ("check interval", check_every.to_string()),
        ("post-processor", post.to_owned()),
        ("momentum memory", memory),
        ("number of ranges", encoder.ranges.len().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    for (at, range) in encoder.ranges.iter().enumerate() {
        fields.push((format!("range {at}"), range.agreement()));
    }
    fields
}

/// Length-prefixed values, in the order of the fields.
fn encode(fields: &[(String, String)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (_, value) in fields {
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes
}

/// The values again; what a peer wrote wrongly reads as "?".
fn decode(mut bytes: &[u8], fields: usize) -> Vec<String> {
    let mut values = Vec::with_capacity(fields);
    for _ in 0..fields {
        let value = bytes.split_at_checked(4).and_then(|(length, rest)| {
            let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
            rest.split_at_checked(length)
        });
        let Some((value, rest)) = value else {
            values.push("?".into());
            continue;
        };
        values.push(String::from_utf8_lossy(value).into_owned());
        bytes = rest;
    }
    values
}

/// The first field that differs, with every rank's value: the same on all ranks, since all compare the same bytes.
fn compare(name: &str, fields: &[(String, String)], theirs: &[Vec<u8>]) -> Result<(), Error> {
    let values: Vec<Vec<String>> = theirs
        .iter()
        .map(|bytes| decode(bytes, fields.len()))
        .collect();
    for (column, (field, _)) in fields.iter().enumerate() {
        let of_rank = |rank: usize| &values[rank][column];
        if (0..values.len()).any(|rank| of_rank(rank) != of_rank(0)) {
            return Err(Error::Disagreement {
                what: format!(
                    "making exchange {}",
                    if column == 0 { of_rank(0) } else { name }
                ),
                field: field.clone(),
                values: (0..values.len())
                    .map(|rank| (rank, of_rank(rank).clone()))
                    .collect(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{compare, decode, encode};
    use crate::replica::Error;

    #[test]
    fn the_first_field_that_differs_is_named_with_every_value() {
        let fields = |length: &str| {
            [("name", "a"), ("length", length)].map(|(name, value)| (name.into(), value.into()))
        };
        let (mine, other) = (fields("10"), fields("11"));
        let Err(Error::Disagreement { field, values, .. }) =
            compare("a", &mine, &[encode(&mine), encode(&other), encode(&mine)])
        else {
            panic!("no disagreement")
        };
        assert_eq!(field, "length");
        assert_eq!(
            values,
            [(0, "10".into()), (1, "11".into()), (2, "10".into())]
        );
        assert!(compare("a", &mine, &[encode(&mine), encode(&mine)]).is_ok());
    }

    #[test]
    fn bytes_that_no_replica_writes_read_as_question_marks() {
        assert_eq!(decode(&[255; 7], 2), ["?", "?"]);
        assert_eq!(decode(&[], 1), ["?"]);
    }
}
