//! `Replica::all_reduce`: up to 1 KiB through the ranks' own lines, more through the rings.

use super::collectives::{came_for_the_same, gather_inline};
use super::error::Error;
use super::inline::{Came, INLINE_BYTES, has_value, read_value_into, write_value};
use super::op::{Op, Value};
use super::operation::{Kind, Operation};
use super::port::{Port, Taken, run};
use super::record::{HAS_DATA, Record};
use super::reduce::{Cut, PIECE, Piece, Reduction, Turn, Work};
use super::shared::{Engine, Shared};
use super::wait::{Look, Wait};
use crate::shm::ring::WriteGrant;
use std::marker::PhantomData;
use std::ops::Range;

/// Reduces `values` element by element over the ranks, in rank order.
pub(crate) fn all_reduce<T: Value, O: Op<T>>(
    shared: &Shared,
    values: &mut [T],
) -> Result<(), Error> {
    let operation = Operation::new(Kind::AllReduce, T::NUMBER, values.len() as u64, O::NUMBER);
    let engine = &mut *shared.engine();
    let wait = shared.enter(engine, operation)?;
    if size_of_val(values) <= INLINE_BYTES {
        through_lines::<T, O>(shared, engine, &wait, values)
    } else {
        if engine.is_paced() {
            // The rings may hold asynchronous steps: all see the same ranks' marks, and so decide the same.
            let parts = gather_inline(shared, engine, &wait, &[])?;
            if let Some(rank) = parts.iter().position(|part| part.head.came.unsettled) {
                return Err(Error::Unsettled { rank, operation });
            }
        }
        through_rings::<T, O>(shared, engine, wait, values)
    }
}

fn through_lines<T: Value, O: Op<T>>(
    shared: &Shared,
    engine: &mut Engine,
    wait: &Wait<'_>,
    values: &mut [T],
) -> Result<(), Error> {
    let parity = (wait.number & 1) as usize;
    let slot = |rank: usize| &shared.segment.rank(rank).inline[parity];
    let length = size_of_val(values);
    let identity = wait.operation.identity();
    write_value(
        slot(shared.rank),
        wait.number,
        Came {
            identity,
            flags: wait.flags,
            unsettled: engine.unsettled.is_some(),
        },
        bytemuck::cast_slice(values),
    );
    shared.segment.bells().ring();

    let (mut sum, mut theirs) = (Piece::new(), Piece::new());
    let (mut rank, mut flags) = (0, wait.flags);
    // Of the ranks that came for the same, the first whose value is not as long as that says; of the others, the first.
    let (mut broken, mut other) = (None, None);
    wait.until(|| {
        while rank < shared.world_size {
            let into = if rank == 0 { &mut sum } else { &mut theirs };
            if rank == shared.rank {
                // Its own it knows better than the shared words do.
                into.values(values.len()).copy_from_slice(values);
            } else if has_value(slot(rank), wait.number) {
                let head = read_value_into(slot(rank), into.bytes(length));
                if head.came.identity != identity {
                    other = other.or(Some(rank));
                } else if head.length != length as u64 {
                    broken = broken.or(Some((rank, head.length)));
                }
                flags |= head.came.flags;
            } else {
                return Ok(Look::Pending(Some(rank)));
            }
            if rank > 0 {
                combine::<T, O>(sum.values(values.len()), theirs.values(values.len()));
            }
            rank += 1;
        }
        Ok(Look::Ready(()))
    })?;
    if let Some(rank) = other {
        // What it came for stands in its slot, unless its line lies.
        came_for_the_same(shared, wait, rank)?;
        return Err(wait.protocol(rank, || "a value of another operation".into()));
    }
    if let Some((rank, found)) = broken {
        return Err(wait.protocol(rank, || {
            format!("expected {length} bytes of values, found {found}")
        }));
    }
    engine.agreed |= flags;
    values.copy_from_slice(sum.values(values.len()));
    Ok(())
}

fn through_rings<T: Value, O: Op<T>>(
    shared: &Shared,
    engine: &mut Engine,
    wait: Wait<'_>,
    values: &mut [T],
) -> Result<(), Error> {
    let max_payload = shared.segment.ring(shared.rank).max_payload();
    let cut = Cut::new(values.len(), size_of::<T>(), shared.world_size, max_payload);
    // Of the ranks before this one, whose values come first, while this one's wait for their turn.
    let mut lower = std::mem::take(&mut engine.lower);
    if shared.rank > 0 {
        lower.resize((cut.most_folded() * size_of::<T>()).div_ceil(8), 0);
    }
    let work = InPlace::<T, O> {
        values,
        me: shared.rank,
        lower,
        flags: 0,
        op: PhantomData,
    };
    let mut reduction = Reduction::new(Port::new(shared, engine, wait), work, cut);
    let ran = run(&wait, &mut reduction, shared.ahead());
    let InPlace { lower, flags, .. } = reduction.work;
    engine.lower = lower;
    ran?;
    engine.agreed |= flags;
    Ok(())
}

/// Values that are reduced where they lie.
struct InPlace<'a, T, O> {
    values: &'a mut [T],
    me: usize,
    /// What the ranks before this one gave, in 8-byte words.
    lower: Vec<u64>,
    /// All ranks' flags.
    flags: u8,
    op: PhantomData<O>,
}

impl<T: Value, O: Op<T>> InPlace<'_, T, O> {
    fn bytes(&self, elements: Range<usize>) -> &[u8] {
        bytemuck::cast_slice(&self.values[elements])
    }
}

impl<T: Value, O: Op<T>> Work for InPlace<'_, T, O> {
    fn record(&self) -> Record {
        Record::of_reduction()
    }

    fn gives(&self) -> bool {
        true
    }

    fn begin(&mut self, wait: &Wait<'_>, heads: &[Record]) -> Result<(), Error> {
        if let Some(rank) = heads.iter().position(|head| head.flags & HAS_DATA == 0) {
            return Err(wait.protocol(rank, || "no values in an all_reduce".into()));
        }
        self.flags = heads.iter().fold(0, |or, head| or | head.agreement);
        Ok(())
    }

    fn contribute(&mut self, elements: Range<usize>, into: &mut WriteGrant<'_, '_>, offset: usize) {
        let whole = into.write(offset, self.bytes(elements));
        debug_assert!(whole, "it was reserved for these");
    }

    fn fold_own(&mut self, turn: Turn, elements: Range<usize>) {
        if !turn.first {
            let values = &mut self.values[elements];
            let lower = &bytemuck::cast_slice(&self.lower)[..values.len()];
            combine_own::<T, O>(lower, values);
        }
    }

    fn fold(&mut self, turn: Turn, elements: Range<usize>, theirs: &Taken<'_>, mut offset: usize) {
        let length = elements.len();
        let sum = if turn.rank < self.me {
            &mut bytemuck::cast_slice_mut(&mut self.lower)[..length]
        } else {
            &mut self.values[elements]
        };
        if turn.first {
            let whole = theirs.read(offset, bytemuck::cast_slice_mut(sum));
            debug_assert!(whole, "the length has been compared");
            return;
        }
        let mut piece = Piece::new();
        for sum in sum.chunks_mut(PIECE / size_of::<T>()) {
            let bytes = size_of_val(sum);
            let whole = theirs.read(offset, piece.bytes(bytes));
            debug_assert!(whole, "the length has been compared");
            combine::<T, O>(sum, piece.values(sum.len()));
            offset += bytes;
        }
    }

    fn folded(&mut self, _chunk: u64, _elements: Range<usize>, _whole: bool) {}

    fn publish_reduced(
        &mut self,
        _chunk: u64,
        elements: Range<usize>,
        _last: bool,
        into: &mut WriteGrant<'_, '_>,
    ) {
        let whole = into.write(0, self.bytes(elements));
        debug_assert!(whole, "it was reserved for these");
    }

    fn take_own_reduced(&mut self, _chunk: u64, _elements: Range<usize>) {}

    fn take_reduced(&mut self, elements: Range<usize>, _last: bool, theirs: &Taken<'_>) {
        let into = bytemuck::cast_slice_mut(&mut self.values[elements]);
        let whole = theirs.read(0, into);
        debug_assert!(whole, "the length has been compared");
    }
}

/// `sum` with the next rank's values.
fn combine<T: Value, O: Op<T>>(sum: &mut [T], next: &[T]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { combine_avx2::<T, O>(sum, next) };
    }
    combine_all::<T, O>(sum, next);
}

/// This rank's values behind those of the ranks before it.
fn combine_own<T: Value, O: Op<T>>(lower: &[T], own: &mut [T]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { combine_own_avx2::<T, O>(lower, own) };
    }
    combine_all_own::<T, O>(lower, own);
}

/// The same code, where the compiler may use vectors of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn combine_avx2<T: Value, O: Op<T>>(sum: &mut [T], next: &[T]) {
    combine_all::<T, O>(sum, next);
}

/// As above.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn combine_own_avx2<T: Value, O: Op<T>>(lower: &[T], own: &mut [T]) {
    combine_all_own::<T, O>(lower, own);
}

#[inline(always)]
fn combine_all<T: Value, O: Op<T>>(sum: &mut [T], next: &[T]) {
    for (sum, next) in sum.iter_mut().zip(next) {
        *sum = O::combine(*sum, *next);
    }
}

#[inline(always)]
fn combine_all_own<T: Value, O: Op<T>>(lower: &[T], own: &mut [T]) {
    for (lower, own) in lower.iter().zip(own) {
        *own = O::combine(*lower, *own);
    }
}
