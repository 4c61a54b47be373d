//! Barrier, broadcast and all_gather.

use super::error::Error;
use super::inline::{Came, INLINE_BYTES, InlineValue, read_value, write_value};
use super::operation::{Kind, Operation, announced, has_come};
use super::port::{Blocked, Port, run};
use super::progress::Lists;
use super::record::{Record, RecordKind};
use super::shared::{Engine, Shared};
use super::wait::{Look, Wait};
use crate::shm::crash::{self, Point};
use std::ops::Range;

/// Largest piece of a long vector that is published at once: one dense block of f32.
pub(crate) const PIECE: usize = 131_072;

pub(crate) fn barrier(shared: &Shared) -> Result<(), Error> {
    let engine = &mut *shared.engine()?;
    arrive(shared, engine)?;
    shared.finish_open(engine)
}

/// Enters a barrier; it stays open in the engine until it is waited for.
pub(crate) fn arrive(shared: &Shared, engine: &mut Engine) -> Result<(), Error> {
    let operation = Operation::new(Kind::Barrier, 0, 0, 0);
    let wait = shared.enter(engine, operation)?;
    let arrival = &shared.segment.rank(shared.rank).arrival;
    let ticket = arrival.arrive(wait.number, operation.identity(), wait.flags != 0);
    crash::point(Point::Arrived);
    engine.open = Some((ticket, wait.number));
    shared.segment.bells().ring();
    Ok(())
}

/// Calls what it is given for the slices that hold a range of a vector, in order.
pub(crate) type Each<'a> = &'a mut dyn FnMut(Range<usize>, &mut dyn FnMut(&mut [f32]));

pub(crate) fn broadcast(
    shared: &Shared,
    root: usize,
    elements: usize,
    each: Each<'_>,
) -> Result<(), Error> {
    if root >= shared.world_size {
        return Err(Error::Invalid {
            what: "root of a broadcast",
            expected: format!("a rank below {}", shared.world_size),
            found: root.to_string(),
        });
    }
    let engine = &mut *shared.engine()?;
    let wait = shared.enter(
        engine,
        Operation::new(Kind::Broadcast, 0, elements as u64, root as u64),
    )?;
    let port = Port::new(shared, engine, wait);
    let piece = port.max_payload().min(PIECE) / size_of::<f32>();
    let pieces = elements.div_ceil(piece) as u64;
    let published = if shared.rank == root { 0 } else { pieces };
    run(
        &wait,
        &mut Broadcast {
            port,
            each,
            elements,
            gathered: Vec::new(),
            root,
            piece,
            pieces,
            published,
            taken: 0,
        },
        u64::MAX,
    )?;
    all_have_come(shared, &wait)?;
    shared.agree(engine, wait.number);
    Ok(())
}

/// No operation returns before every rank has entered it, so that nobody is ever two operations ahead of anybody. Nor
/// does it return where a rank has come for something else: the root of a broadcast takes nobody's record, and of an
/// empty one there is none to compare.
fn all_have_come(shared: &Shared, wait: &Wait<'_>) -> Result<(), Error> {
    shared.segment.bells().ring();
    let mut rank = 0;
    wait.until(|| {
        while rank < shared.world_size && has_come(shared.segment.rank(rank), wait.number) {
            came_for_the_same(shared, wait, rank)?;
            rank += 1;
        }
        Ok(if rank == shared.world_size {
            Look::Ready(())
        } else {
            Look::Pending(Some(rank))
        })
    })
}

/// Refuses to go on where `rank`, which has come, came for something else.
pub(super) fn came_for_the_same(
    shared: &Shared,
    wait: &Wait<'_>,
    rank: usize,
) -> Result<(), Error> {
    match announced(shared.segment.rank(rank), wait.number) {
        Some(came) if came.identity == wait.operation.identity() => Ok(()),
        _ => Err(wait.mismatched(rank)),
    }
}

struct Broadcast<'a> {
    port: Port<'a>,
    each: Each<'a>,
    elements: usize,
    /// A piece that lies in several parts.
    gathered: Vec<u8>,
    root: usize,
    /// Elements of a piece.
    piece: usize,
    pieces: u64,
    published: u64,
    taken: u64,
}

impl Broadcast<'_> {
    fn range(&self, piece: u64) -> std::ops::Range<usize> {
        let start = piece as usize * self.piece;
        start..(start + self.piece).min(self.elements)
    }
}

impl Lists for Broadcast<'_> {
    type Error = Error;

    fn publishing(&self) -> Option<u64> {
        (self.published < self.pieces).then_some(self.published)
    }

    fn taking(&self) -> Option<u64> {
        (self.taken < self.pieces).then_some(self.taken)
    }

    fn publish(&mut self) -> Result<bool, Error> {
        let range = self.range(self.published);
        let record = Record {
            chunk: self.published as u32,
            hash: (self.elements as u64).saturating_mul(size_of::<f32>() as u64),
            ..Record::new(RecordKind::Broadcast)
        };
        let (port, gathered, length) = (&mut self.port, &mut self.gathered, range.len());
        let mut whole = None;
        gathered.clear();
        (self.each)(range, &mut |part| {
            let bytes = bytemuck::cast_slice(part);
            if part.len() == length {
                whole = Some(port.publish(record, bytes));
            } else {
                gathered.extend_from_slice(bytes);
            }
        });
        let fits = match whole {
            Some(published) => published?,
            None => port.publish(record, gathered)?,
        };
        self.published += u64::from(fits);
        Ok(fits)
    }

    fn take(&mut self) -> Result<bool, Error> {
        let range = self.range(self.taken);
        let (root, wait, own) = (
            self.root,
            self.port.wait,
            self.port.shared.rank == self.root,
        );
        let Some(taken) = self.port.peek(root)? else {
            return Ok(false);
        };
        let (record, length) = (taken.record, taken.payload_len());
        let bytes = range.len() * size_of::<f32>();
        let expected = (RecordKind::Broadcast as u8, self.taken as u32, bytes);
        if (record.kind, record.chunk, length) != expected {
            let found = (record.kind, record.chunk, length);
            return Err(wait.protocol(root, || broken(expected, found)));
        }
        if own {
            // The root has these bytes; its own cursor must move all the same.
            taken.take();
        } else {
            let mut at = 0;
            let bytes = taken.take();
            (self.each)(range, &mut |part| {
                let end = at + size_of_val(part);
                bytemuck::cast_slice_mut(part).copy_from_slice(&bytes[at..end]);
                at = end;
            });
        }
        self.taken += 1;
        Ok(true)
    }
}

fn broken(expected: (u8, u32, usize), found: (u8, u32, usize)) -> String {
    format!(
        "expected record of kind {} for piece {} with {} bytes, found kind {}, piece {}, {} bytes",
        expected.0, expected.1, expected.2, found.0, found.1, found.2
    )
}

impl Blocked for Broadcast<'_> {
    fn blocked_by(&self) -> Option<usize> {
        Some(self.root)
    }
}

/// What every rank gave, by rank. Up to [`INLINE_BYTES`] travel in the rank's own lines, more through the rings.
pub(crate) fn all_gather(shared: &Shared, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let engine = &mut *shared.engine()?;
    gather(
        shared,
        engine,
        Operation::new(Kind::AllGather, 0, 0, 0),
        bytes,
    )
}

pub(crate) fn gather(
    shared: &Shared,
    engine: &mut Engine,
    operation: Operation,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, Error> {
    let wait = shared.enter(engine, operation)?;
    let parts = gather_inline(shared, engine, &wait, bytes)?;
    let mut lengths: Vec<u64> = parts.iter().map(|part| part.head.length).collect();
    // Its own it knows better than the shared word does.
    lengths[shared.rank] = bytes.len() as u64;
    let unsettled = parts.iter().position(|part| part.head.came.unsettled);
    let mut parts: Vec<Vec<u8>> = parts.into_iter().map(|part| part.bytes).collect();
    let all_inline = lengths.iter().all(|&length| length <= INLINE_BYTES as u64);
    // All ranks see the same lengths and marks, and so decide the same.
    if let Some(rank) = unsettled
        && (!all_inline || operation.kind == Kind::Check)
    {
        return Err(Error::Unsettled { rank, operation });
    }
    if all_inline {
        return Ok(parts);
    }
    for (part, &length) in parts.iter_mut().zip(&lengths) {
        part.clear();
        // A length that a peer claims is not a reason to take that much memory before its bytes have come.
        part.reserve(length.min(PIECE as u64) as usize);
    }
    let port = Port::new(shared, engine, wait);
    let piece = port.max_payload().min(PIECE);
    let pieces: Vec<u64> = lengths
        .iter()
        .map(|length| length.div_ceil(piece as u64))
        .collect();
    let mut lists = Gather {
        port,
        bytes,
        parts,
        lengths,
        pieces,
        piece,
        published: 0,
        chunk: 0,
        rank: 0,
    };
    lists.find();
    run(&wait, &mut lists, u64::MAX)?;
    Ok(lists.parts)
}

/// Everybody's value, whole where it fits inline. All ranks have entered when this returns.
pub(super) fn gather_inline(
    shared: &Shared,
    engine: &mut Engine,
    wait: &Wait<'_>,
    bytes: &[u8],
) -> Result<Vec<InlineValue>, Error> {
    let parity = (wait.number & 1) as usize;
    write_value(
        &shared.segment.rank(shared.rank).inline[parity],
        wait.number,
        Came {
            identity: wait.operation.identity(),
            flags: wait.flags,
            unsettled: engine.unsettled.is_some(),
        },
        bytes,
    );
    shared.segment.bells().ring();
    let mut parts = Vec::with_capacity(shared.world_size);
    wait.until(|| {
        while parts.len() < shared.world_size {
            let rank = parts.len();
            match read_value(&shared.segment.rank(rank).inline[parity], wait.number) {
                None => return Ok(Look::Pending(Some(rank))),
                Some(part) => parts.push(part),
            }
        }
        Ok(Look::Ready(()))
    })?;
    // A rank that came for something else has written its inline value too, where that is an all_gather or all_reduce.
    for rank in 0..shared.world_size {
        came_for_the_same(shared, wait, rank)?;
    }
    shared.agree(engine, wait.number);
    Ok(parts)
}

struct Gather<'a> {
    port: Port<'a>,
    bytes: &'a [u8],
    parts: Vec<Vec<u8>>,
    lengths: Vec<u64>,
    pieces: Vec<u64>,
    piece: usize,
    published: u64,
    chunk: u64,
    rank: usize,
}

impl Gather<'_> {
    /// Moves on to the next (piece, rank) that exists.
    fn find(&mut self) {
        let most = self.pieces.iter().copied().max().unwrap_or(0);
        while self.chunk < most {
            while self.rank < self.pieces.len() {
                if self.chunk < self.pieces[self.rank] {
                    return;
                }
                self.rank += 1;
            }
            (self.chunk, self.rank) = (self.chunk + 1, 0);
        }
    }
}

impl Lists for Gather<'_> {
    type Error = Error;

    fn publishing(&self) -> Option<u64> {
        (self.published < self.pieces[self.port.shared.rank]).then_some(self.published)
    }

    fn taking(&self) -> Option<u64> {
        (self.rank < self.pieces.len() && self.chunk < self.pieces[self.rank]).then_some(self.chunk)
    }

    fn publish(&mut self) -> Result<bool, Error> {
        let start = self.published as usize * self.piece;
        let range = start..(start + self.piece).min(self.bytes.len());
        let record = Record {
            chunk: self.published as u32,
            hash: self.bytes.len() as u64,
            ..Record::new(RecordKind::Gather)
        };
        let fits = self.port.publish(record, &self.bytes[range])?;
        self.published += u64::from(fits);
        Ok(fits)
    }

    fn take(&mut self) -> Result<bool, Error> {
        let (rank, chunk, wait) = (self.rank, self.chunk, self.port.wait);
        let length =
            (self.lengths[rank] - chunk * self.piece as u64).min(self.piece as u64) as usize;
        let Some(taken) = self.port.peek(rank)? else {
            return Ok(false);
        };
        let expected = (RecordKind::Gather as u8, chunk as u32, length);
        let found = (taken.record.kind, taken.record.chunk, taken.payload_len());
        if found != expected {
            return Err(wait.protocol(rank, || broken(expected, found)));
        }
        self.parts[rank].extend_from_slice(taken.take());
        self.rank += 1;
        self.find();
        Ok(true)
    }
}

impl Blocked for Gather<'_> {
    fn blocked_by(&self) -> Option<usize> {
        Some(self.rank)
    }
}
