//! Publishing and taking records: the ring's grants with the checks that every operation needs.

use super::error::Error;
use super::progress::{Advance, Lists, advance};
use super::raw::Raw;
use super::record::{Record, RecordKind};
use super::shared::{Engine, Shared};
use super::wait::{Look, Wait};
use crate::shm::crash::{self, Point};
use crate::shm::ring::{Consumer, Producer, ReadGrant, Refused, WriteGrant};
use bytemuck::Pod;

/// Which records are taken; others have not come yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepts {
    /// Those of this operation. A rank whose next record is one of an asynchronous step has not come for it.
    Operation,
    /// Those of asynchronous steps before the settle with this identity. What comes after them waits for that settle.
    Steps,
    /// Both: this operation is the settle.
    Settle,
}

/// One operation's access to the rings.
pub(crate) struct Port<'a> {
    pub(crate) wait: Wait<'a>,
    pub(crate) shared: &'a Shared,
    identity: u32,
    accepts: Accepts,
    producer: &'a mut Producer,
    consumers: &'a mut [Consumer],
    /// Private memory for a payload.
    payload: &'a mut Vec<u8>,
}

impl<'a> Port<'a> {
    pub(crate) fn new(shared: &'a Shared, engine: &'a mut Engine, wait: Wait<'a>) -> Self {
        let identity = wait.operation.identity();
        Self::accepting(Accepts::Operation, shared, engine, wait, identity)
    }

    /// Access to the rings for asynchronous steps, or for the settle that comes after them, whose identity it is.
    pub(crate) fn accepting(
        accepts: Accepts,
        shared: &'a Shared,
        engine: &'a mut Engine,
        wait: Wait<'a>,
        identity: u32,
    ) -> Self {
        let Engine {
            producer,
            consumers,
            payload,
            ..
        } = engine;
        Self {
            identity,
            accepts,
            wait,
            shared,
            producer,
            consumers,
            payload,
        }
    }

    pub(crate) fn max_payload(&self) -> usize {
        self.shared.segment.ring(self.shared.rank).max_payload()
    }

    /// Publishes one frame if it fits now. `record` gets this operation's number and identity and this rank.
    pub(crate) fn publish(&mut self, record: Record, payload: &[u8]) -> Result<bool, Error> {
        self.publish_with(record, payload.len(), |frame| {
            let whole = frame.write(0, payload);
            debug_assert!(whole, "it was reserved for this payload");
        })
    }

    /// As [`publish`](Self::publish); `fill` writes the payload's `length` bytes into the frame, if it fits.
    pub(crate) fn publish_with(
        &mut self,
        record: Record,
        length: usize,
        fill: impl FnOnce(&mut WriteGrant<'_, '_>),
    ) -> Result<bool, Error> {
        self.shared.check_poison(&self.wait)?;
        let record = Record {
            agreement: self.wait.flags,
            rank: self.shared.rank as u8,
            operation: self.wait.number,
            identity: self.identity,
            epoch: self.wait.operation.epoch(),
            ..record
        };
        let ring = self.shared.segment.ring(self.shared.rank);
        let shared = self.shared;
        let has_left = |rank| shared.has_left(rank);
        let refused = match ring.reserve_past(self.producer, length, has_left) {
            Ok(mut grant) => {
                fill(&mut grant);
                grant.commit(record.into_header());
                crash::point(Point::TailStored);
                self.shared.segment.bells().ring();
                return Ok(true);
            }
            Err(refused) => refused,
        };
        self.refused(refused, length)
    }

    /// Whether a frame of `payload` bytes, and so any shorter one, fits now. It still does when it is published: nobody
    /// takes room away.
    pub(crate) fn fits(&mut self, payload: usize) -> Result<bool, Error> {
        let shared = self.shared;
        let ring = shared.segment.ring(shared.rank);
        let has_left = |rank| shared.has_left(rank);
        match ring.reserve_past(self.producer, payload, has_left) {
            Ok(_) => Ok(true),
            Err(refused) => self.refused(refused, payload),
        }
    }

    fn refused(&self, refused: Refused, found: usize) -> Result<bool, Error> {
        match refused {
            Refused::Full => Ok(false),
            Refused::TooLarge { max } => Err(Error::Length {
                what: "a frame",
                expected: max,
                found,
            }),
            Refused::Corrupt { consumer, why } => {
                Err(self.wait.protocol(consumer, || why.to_string()))
            }
        }
    }

    /// The next record of `rank`, checked to belong to this operation; `None` if it has not come.
    pub(crate) fn peek(&mut self, rank: usize) -> Result<Option<Taken<'_>>, Error> {
        let ring = self.shared.segment.ring(rank);
        let grant = match ring.peek(&mut self.consumers[rank]) {
            Ok(Some(grant)) => grant,
            Ok(None) => return Ok(None),
            Err(why) => return Err(self.wait.protocol(rank, || why.to_string())),
        };
        let record = Record::from_header(grant.header());
        let (number, identity) = (self.wait.number, self.identity);
        let of_steps = record.kind == RecordKind::Asynchronous as u8;
        if of_steps {
            if self.accepts == Accepts::Operation || record.identity != identity {
                return Ok(None);
            }
        } else if self.accepts == Accepts::Steps {
            return Ok(None);
        }
        if !of_steps && record.operation != number || usize::from(record.rank) != rank {
            let found = (record.operation, record.rank);
            return Err(self.wait.protocol(rank, || {
                format!(
                    "record of operation {} by rank {}, expected {number} by {rank}",
                    found.0, found.1
                )
            }));
        }
        if !of_steps && record.identity != identity {
            return Err(self.wait.mismatched(rank));
        }
        let epoch = if of_steps {
            0
        } else {
            self.wait.operation.epoch()
        };
        if record.epoch != epoch {
            return Err(self.wait.protocol(rank, || {
                format!("record of epoch {}, expected {epoch}", record.epoch)
            }));
        }
        Ok(Some(Taken {
            record,
            grant,
            payload: self.payload,
            shared: self.shared,
        }))
    }
}

/// A record to take. Dropped: not taken.
pub(crate) struct Taken<'a> {
    pub(crate) record: Record,
    grant: ReadGrant<'a, 'a>,
    payload: &'a mut Vec<u8>,
    shared: &'a Shared,
}

impl<'a> Taken<'a> {
    pub(crate) fn payload_len(&self) -> usize {
        self.grant.payload_len()
    }

    /// Copies the payload to private memory and gives the frame back to its producer.
    pub(crate) fn take(self) -> &'a [u8] {
        let Self {
            grant,
            payload,
            shared,
            ..
        } = self;
        grant.copy_payload(payload);
        grant.release();
        shared.segment.bells().ring();
        payload
    }

    /// Copies the payload's bytes from `offset` on to `into`. False, and nothing is read, if they do not reach that far.
    #[must_use = "bytes outside of the payload are not read"]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        self.grant.read(offset, into)
    }

    /// The payload's values from byte `offset` on; none if so many do not reach that far.
    pub(crate) fn values<T: Pod>(&self, offset: usize, count: usize) -> Raw<'_, T> {
        let inside = count
            .checked_mul(size_of::<T>())
            .and_then(|length| length.checked_add(offset))
            .is_some_and(|end| end <= self.payload_len());
        debug_assert!(inside, "the caller has compared the lengths");
        let (offset, count) = if inside { (offset, count) } else { (0, 0) };
        // SAFETY: these bytes lie inside the payload, which may be read through raw pointers until the grant ends.
        unsafe { Raw::new(self.grant.as_ptr().add(offset).cast(), count) }
    }

    /// Gives the frame back to its producer.
    pub(crate) fn give_back(self) {
        self.grant.release();
        self.shared.segment.bells().ring();
    }
}

/// Lists that can say whom they wait for.
pub(crate) trait Blocked {
    /// The rank whose record is taken next.
    fn blocked_by(&self) -> Option<usize>;
}

/// Runs an operation's two lists to their end by the progress rule.
///
/// Whatever fails on the way ends the run: the others wait for the rest of the operation.
pub(crate) fn run<L>(wait: &Wait<'_>, lists: &mut L, ahead: u64) -> Result<(), Error>
where
    L: Lists<Error = Error> + Blocked,
{
    run_on(wait, lists, ahead).map_err(|error| wait.broken_off(error))
}

fn run_on<L>(wait: &Wait<'_>, lists: &mut L, ahead: u64) -> Result<(), Error>
where
    L: Lists<Error = Error> + Blocked,
{
    loop {
        match advance(lists, ahead)? {
            Advance::Finished => return Ok(()),
            Advance::Went => {}
            Advance::Blocked => wait.until(|| {
                Ok(match advance(lists, ahead)? {
                    Advance::Blocked => Look::Pending(lists.blocked_by()),
                    Advance::Went | Advance::Finished => Look::Ready(()),
                })
            })?,
        }
    }
}
