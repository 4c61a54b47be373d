//! Values as states: a vector of f32, or whatever serde can write.
//!
//! # The bytes
//!
//! Between the head and the checksum of all states of this crate (`checkpoint/format.rs`): a vector's are its length (u64)
//! and its elements, those of any other value are CBOR (RFC 8949).

use super::entry::Entry;
use super::kept::{Cell, Kept};
use super::state::saved_by;
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
    ///
    /// A run that begins anew does not make it equal: give all replicas the same, or send it from one of them afterwards
    /// ([`Exchange::start`](crate::Exchange::start), [`Replica::broadcast`](crate::Replica::broadcast)). In a resumed run
    /// that changes nothing.
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
        let kept = Kept::new(self.name, self.whose, self.value);
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

    fn is_held_here(&self) -> bool {
        self.cell.is_held_here()
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
        match self.whose().own(old.len(), rank, world_size) {
            Some(own) => *value = load(name, value, saved_by(name, old, own)?)?,
            None => self.merge(value, old, rank, world_size)?,
        }
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

#[cfg(test)]
mod tests {
    use super::{VALUE, VECTOR, VERSION, load, mean, save};
    use crate::checkpoint::{StateError, Writer};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    type Nested = BTreeMap<String, Vec<(Option<u64>, f64)>>;

    fn nested() -> Nested {
        let numbers = vec![(None, f64::NAN), (Some(u64::MAX), -0.0), (Some(24), 1e300)];
        [("a".to_owned(), numbers), (String::new(), vec![])].into()
    }

    /// Bytes that are intact, whatever they say.
    fn enveloped(kind: &str, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::begin(&mut out, "s", kind, VERSION).unwrap();
        writer.bytes(bytes).unwrap();
        writer.finish().unwrap();
        out
    }

    #[test]
    fn a_value_ends_where_it_ends() {
        let mut bytes = Vec::new();
        save("s", &nested(), &mut bytes).unwrap();
        let found = load("s", &Nested::new(), &mut &bytes[..]).unwrap();
        assert_eq!(format!("{found:?}"), format!("{:?}", nested()));
        for end in 0..bytes.len() {
            load("s", &Nested::new(), &mut &bytes[..end]).unwrap_err();
        }
        bytes.push(0);
        let error = load("s", &Nested::new(), &mut &bytes[..]).unwrap_err();
        assert!(matches!(error, StateError::Long { .. }), "{error}");
        // A number, and one behind it.
        let error = load("s", &0_u8, &mut &enveloped(VALUE, &[1, 1])[..]).unwrap_err();
        assert!(
            matches!(error, StateError::Checksum { .. } | StateError::Long { .. }),
            "{error}"
        );
    }

    #[test]
    fn lengths_that_are_claimed_take_no_memory() {
        // An array, a text and a map of 2^60 entries; a vector of 2^62 elements.
        for first in [0x9b, 0x7b, 0xbb] {
            let mut bytes = vec![first];
            bytes.extend((1_u64 << 60).to_be_bytes());
            load("s", &Vec::<u64>::new(), &mut &enveloped(VALUE, &bytes)[..]).unwrap_err();
            load("s", &String::new(), &mut &enveloped(VALUE, &bytes)[..]).unwrap_err();
            load("s", &Nested::new(), &mut &enveloped(VALUE, &bytes)[..]).unwrap_err();
        }
        let mut bytes = (1_u64 << 62).to_le_bytes().to_vec();
        bytes.extend([0; 400]);
        let bytes = enveloped(VECTOR, &bytes);
        let error = load("s", &Vec::<f32>::new(), &mut &bytes[..]).unwrap_err();
        assert!(matches!(error, StateError::Short { .. }), "{error}");
        // As deep as anybody likes.
        let deep = enveloped(VALUE, &[0x81; 100_000]);
        load("s", &serde_json::Value::Null, &mut &deep[..]).unwrap_err();
    }

    fn saved(vectors: &[&[f32]]) -> Vec<Vec<u8>> {
        let save = |vector: &&[f32]| {
            let mut bytes = Vec::new();
            save("s", &vector.to_vec(), &mut bytes).unwrap();
            bytes
        };
        vectors.iter().map(save).collect()
    }

    fn mean_of(vectors: &[&[f32]], present: usize) -> Result<Vec<f32>, StateError> {
        let saved = saved(vectors);
        let mut files: Vec<&[u8]> = saved.iter().map(Vec::as_slice).collect();
        let mut readers: Vec<&mut dyn Read> = files.iter_mut().map(|file| file as _).collect();
        mean("s", present, &mut readers)
    }

    #[test]
    fn a_mean_is_rounded_once() {
        let (x, y, z) = (0.1_f32, 0.2_f32, 16_777_216.0_f32);
        let expected = ((f64::from(x) + f64::from(y) + f64::from(z)) / 3.0) as f32;
        let vectors: [&[f32]; 3] = [&[x, f32::MAX], &[y, f32::MAX], &[z, f32::MAX]];
        for present in [0, 2] {
            assert_eq!(mean_of(&vectors, present).unwrap(), [expected, f32::MAX]);
        }
        assert_eq!(mean_of(&[&[], &[]], 0).unwrap(), [0.0_f32; 0]);
    }

    #[test]
    fn vectors_of_several_lengths_have_no_mean() {
        for (vectors, present) in [
            ([&[1.0][..], &[1.0, 2.0][..]], 0),
            ([&[1.0][..], &[][..]], 0),
            ([&[][..], &[1.0][..]], 0),
            ([&[1.0][..], &[1.0][..]], 2),
        ] {
            let error = mean_of(&vectors, present).unwrap_err();
            assert!(matches!(error, StateError::Differs { .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for bytes in [bytes.clone(), enveloped(VALUE, &bytes), enveloped(VECTOR, &bytes)] {
                let _ = load("s", &nested(), &mut &bytes[..]);
                let _ = load("s", &Vec::<f32>::new(), &mut &bytes[..]);
                let _ = load("s", &serde_json::Value::Null, &mut &bytes[..]);
                let _ = load("s", &String::new(), &mut &bytes[..]);
            }
        }
    }
}
