//! `Replica::all_reduce`: up to 1 KiB through the ranks' own lines, more through the rings.

use super::collectives::{came_for_the_same, gather_inline};
use super::error::Error;
use super::inline::{Came, INLINE_BYTES, has_value, read_value_into, write_value};
use super::op::{Op, Value};
use super::operation::{Kind, Operation};
use super::port::{Port, Taken, run};
use super::raw::Source;
use super::record::{HAS_DATA, Record};
use super::reduce::{Cut, Reduction, Turn, Work};
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
    let engine = &mut *shared.engine()?;
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

    let (mut sum, mut theirs) = (Words::new(), Words::new());
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
                combine::<T, O, _>(sum.values(values.len()), &*theirs.values(values.len()));
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
    engine.agree_on(flags);
    values.copy_from_slice(sum.values(values.len()));
    Ok(())
}

/// Private memory for an inline value.
struct Words([u64; INLINE_BYTES / 8]);

impl Words {
    fn new() -> Self {
        Self([0; INLINE_BYTES / 8])
    }

    fn bytes(&mut self, length: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..length]
    }

    fn values<T: Value>(&mut self, length: usize) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..length]
    }
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
    if shared.rank > 1 {
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
    engine.agree_on(flags);
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
    const IN_PLACE: bool = true;

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

    fn fold_own(&mut self, _turn: Turn, _elements: Range<usize>) {
        // Done with the values of the rank before.
    }

    fn fold(&mut self, turn: Turn, elements: Range<usize>, frame: &Taken<'_>, offset: usize) {
        let theirs = frame.values::<T>(offset, elements.len());
        let own = &mut self.values[elements];
        let lower: &mut [T] = bytemuck::cast_slice_mut(&mut self.lower);
        let lower = &mut lower[..if self.me > 1 && turn.rank < self.me {
            own.len()
        } else {
            0
        }];
        let own_is_next = turn.rank + 1 == self.me;
        if turn.rank > self.me {
            combine::<T, O, _>(own, theirs);
        } else if turn.first && own_is_next {
            combine_own::<T, O, _>(own, theirs);
        } else if turn.first {
            let whole = frame.read(offset, bytemuck::cast_slice_mut(lower));
            debug_assert!(whole, "the length has been compared");
        } else {
            combine::<T, O, _>(lower, theirs);
            if own_is_next {
                combine_own::<T, O, _>(own, &*lower);
            }
        }
    }

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

/// Each of these with two loops: as it stands, and where the compiler may use vectors of 256 bits.
macro_rules! by_lanes {
    ($($(#[$doc:meta])* fn $name:ident($into:ident, $from:ident) = $value:expr;)*) => {$(
        $(#[$doc])*
        fn $name<T: Value, O: Op<T>, S: Source<T>>($into: &mut [T], $from: S) {
            #[inline(always)]
            fn plain<T: Value, O: Op<T>, S: Source<T>>($into: &mut [T], $from: S) {
                let into = &mut $into[..$from.len()];
                #[allow(clippy::needless_range_loop, reason = "so that no value is seen to lie outside")]
                for i in 0..into.len() {
                    let ($into, $from) = (into[i], $from.get(i));
                    into[i] = $value;
                }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn wide<T: Value, O: Op<T>, S: Source<T>>($into: &mut [T], $from: S) {
                plain::<T, O, S>($into, $from);
            }

            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                return unsafe { wide::<T, O, S>($into, $from) };
            }
            plain::<T, O, S>($into, $from);
        }
    )*};
}

by_lanes! {
    /// A sum, and the next rank's values.
    fn combine(sum, next) = O::combine(sum, next);
    /// This rank's own values, behind those of the ranks before it.
    fn combine_own(own, lower) = O::combine(lower, own);
}
