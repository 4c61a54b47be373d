//! An exchange as a state: what a step needs to know of those before it.
//!
//! Kept are the step count, from which the order of the chunks follows, the hash of the parameters that has not been
//! compared yet, what each threshold's policy goes on from, the residual, and the velocity of a momentum memory. With as
//! many replicas as before, and the parameters as they were, the run goes on bit for bit, whatever the threads or the
//! code path. Which epoch it is says the replica, not the exchange.
//!
//! With M replicas instead of N the residual of old rank i is added to that of new rank i mod M, in order of i: their sum
//! is kept (exactly, where the numbers allow), and nothing of it is applied. Each velocity becomes the mean of all old
//! ones, so that the mean motion goes on: a sum would multiply it, and a part of them would forget some replicas' data.
//! A residual in which a trainer accumulates between steps is saved as the next step would find it; one that is not finite
//! is refused, as that step would report it. One in the memory of a GPU is saved and loaded like any other, and goes on on
//! the processor, or the other way round, bit for bit; of a lost GPU its last snapshot is saved, if there is one.
//!
//! Policies go on from one state that all of them are merged into ([`Encoder::merge_scopes`]).
//!
//! # The bytes
//!
//! Between the head and the checksum of all states of this crate (`checkpoint/format.rs`):
//!
//! | bytes | content |
//! |---|---|
//! | text | the exchange's name |
//! | 8 | elements |
//! | 4, texts | its ranges: how many, and each as replicas agreed on it |
//! | 1 | whether there is a velocity |
//! | 8 | steps made |
//! | 1 (8) | whether there is a hash to be compared, and the hash |
//! | 4 | thresholds; for each: |
//! | text, 4, 8 each | its policy's kind; how many numbers that goes on from, and their bits as f64 |
//! | 1 | whether it has made a step; if so: |
//! | 2, 2, 8, 8, 1 (8) | upper halves of threshold and unit, hits, density, whether there is a mean, and the mean |
//! | 8 | elements of the residual: none in an exchange without compression |
//! | 8, 4 each | for each threshold the sample that a streamed step gathered for the next one: its length, and it |
//! | 4 each | the residual, then the velocity, if there is one |

use super::Exchange;
use crate::checkpoint::{Reader, State, StateError, Whose, Writer};
use crate::codec::policy::{LastStep, PolicyState};
use crate::codec::{ScopeState, Unit, canon};
use std::io::{Read, Write};

const KIND: &str = "exchange";
const VERSION: u32 = 1;
/// More steps than anybody makes.
const MOST_STEPS: u64 = 1 << 63;

/// What a state has besides its vectors.
struct Carried {
    step: u64,
    hash: Option<u64>,
    scopes: Vec<ScopeState>,
    samples: Vec<Vec<f32>>,
}

impl Exchange {
    /// Refuses while the state is that of no step's end.
    fn is_between_steps(&self) -> Result<(), StateError> {
        let why = if self.encoder.is_open() {
            "a step has begun and not ended"
        } else if self.shared.segment.poison().get().is_some() {
            "the run has ended, maybe inside a step"
        } else {
            match self.shared.engine() {
                Err(_) => "an operation is under way, which has called this code",
                Ok(engine) if engine.unsettled == Some(self.index) => {
                    "it has stepped asynchronously and not settled"
                }
                Ok(_) => return Ok(()),
            }
        };
        Err(StateError::NotNow {
            state: self.name.clone(),
            why: why.to_owned(),
        })
    }

    /// Reads a state, all of which is compared with this exchange, and hands over its vectors in pieces.
    fn read(
        &self,
        from: &mut dyn Read,
        mut residual: impl FnMut(usize, &[f32]) -> Result<(), StateError>,
        mut velocity: impl FnMut(usize, &[f32]) -> Result<(), StateError>,
    ) -> Result<Carried, StateError> {
        let elements = self.encoder.elements();
        let mut reader = Reader::begin(from, &self.name, KIND, VERSION)?;
        reader.expect_text("name of the exchange", &self.name)?;
        reader.expect("elements", self.length as u64)?;
        let found = reader.u32("number of ranges")? as usize;
        if found != self.ranges.len() {
            return Err(reader.differs("number of ranges", self.ranges.len(), found));
        }
        for range in &self.ranges {
            reader.expect_text("a range", range)?;
        }
        let has_velocity = self.encoder.velocity().is_some();
        let found = reader.flag("whether there is a velocity")?;
        if found != has_velocity {
            return Err(reader.differs("whether there is a velocity", has_velocity, found));
        }
        let step = reader.u64("number of steps")?;
        if step >= MOST_STEPS {
            return Err(reader.differs("number of steps", "fewer than 2^63", step));
        }
        let hash = reader.optional("hash")?;
        let expected = self.encoder.scopes().len();
        let found = reader.u32("number of thresholds")? as usize;
        if found != expected {
            return Err(reader.differs("number of thresholds", expected, found));
        }
        let mut scopes = Vec::with_capacity(expected);
        for own in self.encoder.scope_states() {
            scopes.push(read_scope(&mut reader, own.policy.kind)?);
        }
        let mut samples = Vec::with_capacity(expected);
        for scope in self.encoder.scopes() {
            let found = reader.u64("length of a sample")?;
            if found > scope.elements as u64 {
                return Err(reader.differs("length of a sample", scope.elements, found));
            }
            let mut sample = self.room_for(found as usize)?;
            reader.floats("a sample", found as usize, |start, piece| {
                sample[start..start + piece.len()].copy_from_slice(piece);
                Ok(())
            })?;
            samples.push(sample);
        }
        reader.expect("elements of the residual", elements as u64)?;
        reader.floats("the residual", elements, |start, piece| {
            check(&self.name, "element of the residual", start, piece)?;
            residual(start, piece)
        })?;
        if has_velocity {
            reader.floats("the velocity", elements, |start, piece| {
                check(&self.name, "element of the velocity", start, piece)?;
                velocity(start, piece)
            })?;
        }
        reader.finish()?;
        Ok(Carried {
            step,
            hash,
            scopes,
            samples,
        })
    }

    /// +0 for every element, or for none if there is no such vector.
    fn room(&self, exists: bool) -> Result<Vec<f32>, StateError> {
        self.room_for(if exists { self.encoder.elements() } else { 0 })
    }

    fn room_for(&self, elements: usize) -> Result<Vec<f32>, StateError> {
        let mut room = Vec::new();
        room.try_reserve_exact(elements)
            .map_err(|_| StateError::Memory {
                state: self.name.clone(),
                elements,
            })?;
        room.resize(elements, 0.0);
        Ok(room)
    }

    /// Takes over all of a state, or nothing.
    fn go_on_from(
        &mut self,
        carried: Carried,
        residual: &[f32],
        velocity: &[f32],
    ) -> Result<(), StateError> {
        let before = self.encoder.scope_states();
        let refused = self.encoder.restore_scopes(&carried.scopes);
        refused.map_err(|source| self.scopes_error(source))?;
        let velocity = self.encoder.velocity().is_some().then_some(velocity);
        let own: Vec<Vec<f32>> = self.encoder.samples().map(<[f32]>::to_vec).collect();
        if let Err(source) = self.encoder.restore_samples(&carried.samples) {
            let _ = self.encoder.restore_scopes(&before);
            return Err(self.scopes_error(source));
        }
        if let Err(error) = self.encoder.restore_vectors(residual, velocity) {
            // Its own of a moment ago.
            let _ = self.encoder.restore_scopes(&before);
            let _ = self.encoder.restore_samples(&own);
            return Err(StateError::Differs {
                state: self.name.clone(),
                what: "vectors".to_owned(),
                expected: "those of this exchange".to_owned(),
                found: error.to_string(),
            });
        }
        (self.step, self.hash) = (carried.step, carried.hash);
        Ok(())
    }

    fn scopes_error(&self, source: crate::codec::ScopeStateError) -> StateError {
        StateError::Scopes {
            state: self.name.clone(),
            source,
        }
    }
}

/// The state of the exchange is each replica's own. [`merge`](State::merge) with as many replicas as before is
/// [`load`](State::load).
///
/// Reading takes memory for a second residual, and a second velocity, until all has been checked.
impl State for Exchange {
    fn name(&self) -> &str {
        &self.name
    }

    fn whose(&self) -> Whose {
        Whose::Replica
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        self.is_between_steps()?;
        let downloaded;
        let residual = if self.encodes_on_device() {
            downloaded = self.download_residual()?;
            downloaded.as_slice()
        } else {
            self.encoder.residual()
        };
        // A trainer may have written it since the last step. The next one would tell all replicas of such an element.
        if let Some(at) = residual.iter().position(|r| !r.is_finite()) {
            return Err(StateError::Number {
                state: self.name.clone(),
                what: "element of the residual",
                at,
                expected: "a finite number",
                found: residual[at],
            });
        }
        let mut writer = Writer::begin(out, &self.name, KIND, VERSION)?;
        writer.text(&self.name)?;
        writer.u64(self.length as u64)?;
        writer.count("ranges", self.ranges.len())?;
        for range in &self.ranges {
            writer.text(range)?;
        }
        writer.u8(u8::from(self.encoder.velocity().is_some()))?;
        writer.u64(self.step)?;
        writer.optional(self.hash)?;
        let scopes = self.encoder.scope_states();
        writer.count("thresholds", scopes.len())?;
        for scope in &scopes {
            write_scope(&mut writer, scope)?;
        }
        for sample in self.encoder.samples() {
            writer.u64(sample.len() as u64)?;
            writer.floats(sample)?;
        }
        writer.u64(residual.len() as u64)?;
        let mut room = [0.0; 1024];
        for piece in residual.chunks(room.len()) {
            // What the next step would make of it.
            for (canonical, r) in room.iter_mut().zip(piece) {
                *canonical = canon(*r);
            }
            writer.floats(&room[..piece.len()])?;
        }
        writer.floats(self.encoder.velocity().unwrap_or_default())?;
        writer.finish()
    }

    fn load(&mut self, from: &mut dyn Read) -> Result<(), StateError> {
        self.is_between_steps()?;
        let mut residual = self.room(true)?;
        let mut velocity = self.room(self.encoder.velocity().is_some())?;
        let carried = self.read(
            from,
            |start, piece| {
                residual[start..start + piece.len()].copy_from_slice(piece);
                Ok(())
            },
            |start, piece| {
                velocity[start..start + piece.len()].copy_from_slice(piece);
                Ok(())
            },
        )?;
        self.go_on_from(carried, &residual, &velocity)
    }

    fn merge(
        &mut self,
        old: &mut [&mut dyn Read],
        rank: usize,
        world_size: usize,
    ) -> Result<(), StateError> {
        self.is_between_steps()?;
        let count = old.len();
        if rank >= world_size || count == 0 {
            let (expected, found) = if count == 0 {
                (0, 0)
            } else {
                (world_size, rank)
            };
            return Err(StateError::Rank {
                state: self.name.clone(),
                expected,
                found,
            });
        }
        if count == world_size {
            return self.load(&mut *old[rank]);
        }
        let mut residual = self.room(true)?;
        let mut velocity = self.room(self.encoder.velocity().is_some())?;
        let share = 1.0 / count as f32;
        let name = &self.name;
        let mut first: Option<Carried> = None;
        let mut scopes = Vec::with_capacity(count);
        for (of, from) in old.iter_mut().enumerate() {
            let carried = self.read(
                &mut **from,
                |start, piece| {
                    if of % world_size != rank {
                        return Ok(());
                    }
                    let sums = &mut residual[start..start + piece.len()];
                    add(name, "sum of residuals", start, sums, piece, 1.0)
                },
                |start, piece| {
                    let means = &mut velocity[start..start + piece.len()];
                    add(name, "mean of velocities", start, means, piece, share)
                },
            )?;
            let Carried {
                step,
                hash,
                scopes: of_rank,
                samples,
            } = carried;
            let none = samples.iter().map(|_| Vec::new()).collect();
            scopes.push(of_rank);
            let first = first.get_or_insert(Carried {
                step,
                hash,
                scopes: Vec::new(),
                // Of another number of replicas: the next step is as the first one.
                samples: none,
            });
            let differs = |what: &str, expected: String, found: String| StateError::Differs {
                state: name.clone(),
                what: format!("{what} of rank {of}"),
                expected,
                found,
            };
            if step != first.step {
                let (expected, found) = (first.step.to_string(), step.to_string());
                return Err(differs("number of steps", expected, found));
            }
            if hash != first.hash {
                let (expected, found) = (format!("{:x?}", first.hash), format!("{hash:x?}"));
                return Err(differs("hash of the parameters", expected, found));
            }
        }
        let scopes = self.encoder.merge_scopes(&scopes);
        let scopes = scopes.map_err(|source| self.scopes_error(source))?;
        match first {
            Some(first) => self.go_on_from(Carried { scopes, ..first }, &residual, &velocity),
            None => Ok(()),
        }
    }
}

/// Refuses numbers that neither a residual nor a velocity has.
fn check(state: &str, what: &'static str, start: usize, piece: &[f32]) -> Result<(), StateError> {
    let is_right = |x: f32| x.is_finite() && canon(x).to_bits() == x.to_bits();
    // All of them without a branch first.
    if piece.iter().fold(true, |all, &x| all & is_right(x)) {
        return Ok(());
    }
    match (start..).zip(piece).find(|(_, x)| !is_right(**x)) {
        None => Ok(()),
        Some((at, &found)) => Err(StateError::Number {
            state: state.to_owned(),
            what,
            at,
            expected: "a finite number, neither subnormal nor -0",
            found,
        }),
    }
}

/// `s = canon(s + canon(share x))`, which must be finite.
fn add(
    state: &str,
    what: &'static str,
    start: usize,
    sums: &mut [f32],
    piece: &[f32],
    share: f32,
) -> Result<(), StateError> {
    for (sum, &x) in sums.iter_mut().zip(piece) {
        *sum = canon(*sum + canon(share * x));
    }
    match (start..).zip(&*sums).find(|(_, sum)| !sum.is_finite()) {
        None => Ok(()),
        Some((at, &found)) => Err(StateError::Number {
            state: state.to_owned(),
            what,
            at,
            expected: "a finite number",
            found,
        }),
    }
}

fn write_scope(writer: &mut Writer<'_>, state: &ScopeState) -> Result<(), StateError> {
    // Without `..`: whatever a state gets besides has to be written.
    let ScopeState { policy, last } = state;
    let PolicyState { kind, numbers } = policy;
    writer.text(kind)?;
    writer.count("numbers of a policy", numbers.len())?;
    for number in numbers {
        writer.u64(number.to_bits())?;
    }
    writer.u8(u8::from(last.is_some()))?;
    let Some(LastStep {
        unit,
        hits,
        density,
        mean,
    }) = *last
    else {
        return Ok(());
    };
    let (t, v) = unit.halves();
    writer.u16(t)?;
    writer.u16(v)?;
    writer.u64(hits)?;
    writer.u64(density.to_bits())?;
    writer.optional(mean.map(f64::to_bits))
}

/// The state of a threshold whose policy is of this kind.
fn read_scope(reader: &mut Reader<'_>, kind: String) -> Result<ScopeState, StateError> {
    reader.expect_text("policy", &kind)?;
    let numbers = reader.numbers("numbers of a policy")?;
    let numbers: Vec<f64> = numbers.into_iter().map(f64::from_bits).collect();
    let last = if reader.flag("whether it has made a step")? {
        let (t, v) = (reader.u16("threshold")?, reader.u16("unit")?);
        let unit = Unit::from_halves(t, v)
            .map_err(|error| reader.differs("a unit", "threshold and unit", error))?;
        Some(LastStep {
            unit,
            hits: reader.u64("hits")?,
            density: f64::from_bits(reader.u64("density")?),
            mean: reader.optional("mean")?.map(f64::from_bits),
        })
    } else {
        None
    };
    Ok(ScopeState {
        policy: PolicyState { kind, numbers },
        last,
    })
}
