//! Values as states: a vector of f32, or whatever serde can write.
//!
//! # The bytes
//!
//! Between the head and the checksum of all states of this crate (`checkpoint/format.rs`): a vector's are its length (u64)
//! and its elements, those of any other value are CBOR (RFC 8949).

use super::entry::Entry;
use super::kept::{Cell, Kept};
use super::{Reader, StateError, Whose, Writer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

const VECTOR: &str = "vector";
const VALUE: &str = "value";
const VERSION: u32 = 1;

/// Makes one replica's value out of those of all replicas of an old run, of which there were another number: their values
/// by rank, this replica's rank, the world size.
type Merge<T> = fn(Vec<T>, usize, usize) -> T;

/// A value under a name, to be [kept](crate::Replica::keep_value): a `Vec<f32>`, or anything that serde can write and read.
///
/// A vector of f32 is written as it lies in memory. Loaded into one that is not empty, it must have that length.
///
/// ```
/// use gradring::checkpoint::Value;
///
/// let parameters = Value::shared("parameters", vec![0.0_f32; 1000]);
/// // Each replica's own. With another number of replicas everybody goes on from the mean of all.
/// let velocity = Value::per_replica("velocity", vec![0.0_f32; 1000]);
/// // Each replica's own, and not a vector of f32: what a new replica makes of all old ones must be said.
/// let seen = Value::per_replica("seen", 0_u64)
///     .merged_by(|old, rank, _| if rank == 0 { old.iter().sum() } else { 0 });
/// ```
pub struct Value<T> {
    name: String,
    whose: Whose,
    value: T,
    merge: Option<Merge<T>>,
}

impl<T> Value<T> {
    /// One that is equal on all replicas: rank 0's is saved.
    pub fn shared(name: impl Into<String>, value: T) -> Self {
        Self::new(name.into(), Whose::Shared, value)
    }

    /// One that each replica has of its own: each one's is saved.
    ///
    /// Where a run of another number of replicas goes on from it, a vector of f32 becomes the mean of all, element by
    /// element. Any other value is an error then, unless [`merged_by`](Self::merged_by) says what it becomes.
    pub fn per_replica(name: impl Into<String>, value: T) -> Self {
        Self::new(name.into(), Whose::Replica, value)
    }

    fn new(name: String, whose: Whose, value: T) -> Self {
        Self {
            name,
            whose,
            value,
            merge: None,
        }
    }

    /// What it becomes where a run of another number of replicas goes on from it: a function of the values of all old
    /// replicas by rank, this replica's rank, and the world size. A shared value needs none, and asks none.
    #[must_use]
    pub fn merged_by(mut self, merge: fn(Vec<T>, usize, usize) -> T) -> Self {
        self.merge = Some(merge);
        self
    }
}

impl<T> fmt::Debug for Value<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("name", &self.name)
            .field("whose", &self.whose)
            .finish_non_exhaustive()
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Value<T> {
    /// The handle, and what is registered.
    pub(crate) fn into_kept(self) -> (Kept<T>, Arc<dyn Entry>) {
        let kept = Kept::new(&self.name, self.whose, self.value);
        let entry = KeptValue {
            cell: Arc::clone(kept.cell()),
            merge: self.merge,
        };
        (kept, Arc::new(entry))
    }
}

/// A value in the registry.
struct KeptValue<T> {
    cell: Arc<Cell<T>>,
    merge: Option<Merge<T>>,
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Entry for KeptValue<T> {
    fn name(&self) -> &str {
        self.cell.name()
    }

    fn whose(&self) -> Whose {
        self.cell.whose()
    }

    fn not_ready(&self) -> Option<String> {
        self.cell.not_ready()
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        save(self.name(), &*self.cell.try_lock()?, out)
    }

    fn load(
        &self,
        old: &mut [&mut dyn Read],
        rank: usize,
        world_size: usize,
    ) -> Result<(), StateError> {
        let value = &mut *self.cell.try_lock()?;
        let name = self.name();
        let own = match self.whose() {
            Whose::Shared => 0,
            Whose::Replica if old.len() == world_size => rank,
            Whose::Replica => return self.merge(value, old, rank, world_size),
        };
        *value = load(name, value, &mut *old[own])?;
        Ok(())
    }
}

impl<T: Serialize + DeserializeOwned + 'static> KeptValue<T> {
    fn merge(
        &self,
        value: &mut T,
        old: &mut [&mut dyn Read],
        rank: usize,
        world_size: usize,
    ) -> Result<(), StateError> {
        let name = self.cell.name();
        if let Some(merge) = self.merge {
            let values: Result<Vec<T>, StateError> = old
                .iter_mut()
                .map(|from| load(name, value, &mut **from))
                .collect();
            *value = merge(values?, rank, world_size);
            return Ok(());
        }
        match (value as &mut dyn Any).downcast_mut::<Vec<f32>>() {
            Some(vector) => {
                *vector = mean(name, vector.len(), old)?;
                Ok(())
            }
            None => Err(StateError::WorldSize {
                state: name.to_owned(),
                expected: old.len(),
                found: world_size,
            }),
        }
    }
}

fn save<T: Serialize + 'static>(
    name: &str,
    value: &T,
    out: &mut dyn Write,
) -> Result<(), StateError> {
    if let Some(vector) = (value as &dyn Any).downcast_ref::<Vec<f32>>() {
        let mut writer = Writer::begin(out, name, VECTOR, VERSION)?;
        writer.u64(vector.len() as u64)?;
        writer.floats(vector)?;
        return writer.finish();
    }
    let mut writer = Writer::begin(out, name, VALUE, VERSION)?;
    let mut failed = None;
    let written = ciborium::into_writer(
        value,
        Passing {
            writer: &mut writer,
            failed: &mut failed,
        },
    );
    match (failed, written) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(StateError::Encoding {
            state: name.to_owned(),
            why: error.to_string(),
        }),
        (None, Ok(())) => writer.finish(),
    }
}

/// Passes CBOR on to a writer, and keeps why that failed.
struct Passing<'a, W> {
    writer: &'a mut W,
    failed: &'a mut Option<StateError>,
}

impl Write for Passing<'_, Writer<'_>> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.writer.bytes(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                *self.failed = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Passing<'_, Reader<'_>> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.writer.some(out).map_err(|error| {
            *self.failed = Some(error);
            io::ErrorKind::Other.into()
        })
    }
}

/// The value that was saved, to take the place of `present`.
fn load<T: DeserializeOwned + 'static>(
    name: &str,
    present: &T,
    from: &mut dyn Read,
) -> Result<T, StateError> {
    if let Some(present) = (present as &dyn Any).downcast_ref::<Vec<f32>>() {
        let vector: Box<dyn Any> = Box::new(load_vector(name, present.len(), from)?);
        return match vector.downcast() {
            Ok(vector) => Ok(*vector),
            Err(_) => unreachable!("the present one is such a vector"),
        };
    }
    let mut reader = Reader::begin(from, name, VALUE, VERSION)?;
    let mut failed = None;
    let value = ciborium::from_reader(Passing {
        writer: &mut reader,
        failed: &mut failed,
    });
    match (failed, value) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(StateError::Encoding {
            state: name.to_owned(),
            why: error.to_string(),
        }),
        (None, Ok(value)) => {
            reader.finish()?;
            Ok(value)
        }
    }
}

/// How many elements there are: as many as now, unless there are none now.
fn begin_vector<'a>(
    name: &'a str,
    present: usize,
    from: &'a mut dyn Read,
) -> Result<(Reader<'a>, usize), StateError> {
    let mut reader = Reader::begin(from, name, VECTOR, VERSION)?;
    let found = reader.u64("number of elements")?;
    match usize::try_from(found) {
        Ok(elements) if present == 0 || elements == present => Ok((reader, elements)),
        _ => {
            let expected = if present == 0 {
                "as many as fit into memory".to_owned()
            } else {
                present.to_string()
            };
            Err(reader.differs("number of elements", expected, found))
        }
    }
}

fn load_vector(name: &str, present: usize, from: &mut dyn Read) -> Result<Vec<f32>, StateError> {
    let (mut reader, elements) = begin_vector(name, present, from)?;
    let mut vector = room(name, present)?;
    reader.floats("the vector", elements, |_, piece| {
        reserve(name, elements, &mut vector, piece.len())?;
        vector.extend_from_slice(piece);
        Ok(())
    })?;
    reader.finish()?;
    Ok(vector)
}

/// The mean of the vectors of all old replicas, summed in f64 and rounded once.
fn mean(name: &str, present: usize, old: &mut [&mut dyn Read]) -> Result<Vec<f32>, StateError> {
    let count = old.len() as f64;
    let mut sums: Vec<f64> = room(name, present)?;
    for (rank, from) in old.iter_mut().enumerate() {
        let present = if rank == 0 { present } else { sums.len() };
        let (mut reader, elements) = begin_vector(name, present, &mut **from)?;
        if rank > 0 && elements != sums.len() {
            // None in the first one is no length that any other may have.
            return Err(reader.differs(
                format!("number of elements of rank {rank}"),
                sums.len(),
                elements,
            ));
        }
        reader.floats("the vector", elements, |start, piece| {
            if rank == 0 {
                reserve(name, elements, &mut sums, piece.len())?;
                sums.extend(piece.iter().map(|&x| f64::from(x)));
            } else {
                for (sum, &x) in sums[start..].iter_mut().zip(piece) {
                    *sum += f64::from(x);
                }
            }
            Ok(())
        })?;
        reader.finish()?;
    }
    Ok(sums.iter().map(|sum| (sum / count) as f32).collect())
}

/// Memory for elements that are sure to come.
fn room<E>(state: &str, elements: usize) -> Result<Vec<E>, StateError> {
    let mut room = Vec::new();
    reserve(state, elements, &mut room, elements)?;
    Ok(room)
}

/// Memory for `more` of `elements` elements, as they come.
fn reserve<E>(
    state: &str,
    elements: usize,
    room: &mut Vec<E>,
    more: usize,
) -> Result<(), StateError> {
    room.try_reserve(more).map_err(|_| StateError::Memory {
        state: state.to_owned(),
        elements,
    })
}
