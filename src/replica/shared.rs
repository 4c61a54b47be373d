//! What a replica's handle and its exchanges share: the segment, who this is, and the state of its operations.

use super::attached::Attached;
use super::cause::Cause;
use super::counters::Counters;
use super::error::Error;
use super::flags::Flags;
use super::inline::{read_text, write_text};
use super::operation::{Kind, Operation, announce, announced, has_come};
use super::settings::Settings;
use super::signals::{Heard, Listener};
use super::stage::Stage;
use super::wait::Wait;
use crate::shm::barrier::Ticket;
use crate::shm::crash::{self, Point};
use crate::shm::life::Keeper;
use crate::shm::pace::{Pace, Seen};
use crate::shm::poison::Verdict;
use crate::shm::ring::{Consumer, Producer};
use crate::shm::seat::Seated;
use crate::shm::segment::{BEGUN, Segment};
use crate::shm::sync::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What only the thread that is inside an operation touches.
pub(crate) struct Engine {
    /// Number of the last operation; the first is 1.
    pub(crate) number: u64,
    pub(crate) producer: Producer,
    pub(crate) consumers: Vec<Consumer>,
    /// A private copy of the payload being taken: peers may write the ring's bytes, nobody writes these.
    pub(crate) payload: Vec<u8>,
    /// Private memory for what the ranks before this one gave to a reduction.
    pub(crate) lower: Vec<u64>,
    /// An entered barrier that has not been waited for.
    pub(crate) open: Option<(Ticket, u64)>,
    /// How many exchanges have been made.
    pub(crate) exchanges: u16,
    /// Whether a step in parts has begun: until it is finished no other operation may be entered.
    step_open: bool,
    /// Whether the others have been told of it.
    step_entered: bool,
    /// The flags that all ranks have agreed on so far.
    pub(crate) agreed: u8,
    /// How many operations have ended in which all ranks' flags were seen.
    pub(super) agreements: u64,
    /// How many of them there were when it was last asked what is agreed now.
    pub(super) asked: u64,
    /// Whether there is an asynchronous exchange: then this rank says how far it is.
    paced: bool,
    /// Asynchronous steps since the last settle.
    pub(crate) steps: u64,
    /// The exchange that has made them, even one without data.
    pub(crate) unsettled: Option<u16>,
    /// Whether this rank's pace says that it is inside an operation.
    away: bool,
}

impl Engine {
    /// Whether there is an asynchronous exchange: on all ranks or on none.
    pub(crate) fn is_paced(&self) -> bool {
        self.paced
    }

    /// Whether a step in parts has begun and is not finished.
    pub(crate) fn is_step_open(&self) -> bool {
        self.step_open
    }

    /// An operation has ended to which all ranks, together, came with these flags.
    pub(crate) fn agree_on(&mut self, flags: u8) {
        self.agreed |= flags;
        self.agreements += 1;
    }

    /// There is an asynchronous exchange from now on.
    pub(crate) fn begin_pacing(&mut self) {
        self.paced = true;
        // Giving the engine back says that this rank is stepping.
        self.away = true;
    }
}

/// A number of this thread, never 0, that no other living thread has.
pub(crate) fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// The engine in the hands of one thread. Given back, the rank is on its way to its next asynchronous step again.
pub(crate) struct Held<'a> {
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
    /// Whether the thread was panicking already when it took the engine.
    panicking: bool,
}

impl Deref for Held<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        if std::thread::panicking() && !self.panicking {
            // A trainer's code that an operation has called. Somebody may catch it: nobody may go on from the middle of
            // an operation, nor wait for the rest of it.
            shared.poison(Cause::Panicked, shared.rank as u8, self.engine.number);
        }
        shared.publish_agreed(self.engine.agreed);
        shared.holder.store(0, std::sync::atomic::Ordering::Relaxed);
        if self.engine.away {
            self.engine.away = false;
            self.shared.pace().stepping(self.engine.steps);
        }
    }
}

pub(crate) struct Shared {
    pub(crate) segment: Arc<Segment>,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
    /// Descriptors, threads and words belong to the process that joined, not to its forked children.
    pub(crate) pid: u32,
    pub(crate) keeper: Mutex<Option<Keeper>>,
    engine: Mutex<Engine>,
    /// The thread that holds the engine; 0 for none.
    holder: AtomicUsize,
    /// What the engine said was agreed when it was given back last.
    pub(super) agreed: AtomicU8,
    /// The number of the operation that this rank is in or was in last, for `abort` from another thread.
    current: AtomicU64,
    /// The number of the barrier whose ticket is held; 0 for none.
    pub(crate) ticket: AtomicU64,
    /// Whether this rank's reason is written: others read it from then on.
    aborted: AtomicBool,
    divergence: Mutex<(u64, Vec<u64>)>,
    pub(crate) settings: Settings,
    stage: Stage,
    /// What signals have come since this rank joined are its flags.
    pub(super) heard: Heard,
    pub(super) listener: Mutex<Option<Listener>>,
    /// Whether an operation has been entered that does not prepare for others.
    begun: AtomicBool,
    /// When the next checkpoint is due by the clock; rank 0's counts.
    pub(super) due: Mutex<Option<Instant>>,
    /// What other parts of the crate keep for this replica, one of each type.
    attached: Attached,
}

impl Shared {
    /// `begin`: the number of the operation before the first, and where all rings stand.
    pub(crate) fn new(
        segment: Arc<Segment>,
        rank: usize,
        deadline: Duration,
        keeper: Keeper,
        begin: (u64, u64),
        settings: Settings,
    ) -> Self {
        let world_size = segment.world_size();
        let (number, position) = begin;
        let consumers = (0..world_size).map(|_| Consumer::at(rank, position));
        let engine = Engine {
            number,
            producer: Producer::at(position),
            consumers: consumers.collect(),
            payload: Vec::new(),
            lower: Vec::new(),
            open: None,
            exchanges: 0,
            step_open: false,
            step_entered: false,
            agreed: 0,
            agreements: 0,
            asked: 0,
            paced: false,
            steps: 0,
            unsettled: None,
            away: false,
        };
        Self {
            segment,
            rank,
            world_size,
            deadline,
            pid: std::process::id(),
            keeper: Mutex::new(Some(keeper)),
            engine: Mutex::new(engine),
            holder: AtomicUsize::new(0),
            agreed: AtomicU8::new(0),
            current: AtomicU64::new(number),
            ticket: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
            divergence: Mutex::new((0, Vec::new())),
            due: Mutex::new(settings.next_due(rank)),
            settings,
            stage: Stage::default(),
            heard: Heard::now(),
            listener: Mutex::new(None),
            begun: AtomicBool::new(false),
            attached: Attached::default(),
        }
    }

    /// Whether replicas outnumber the processors that they may use together: then nobody spins.
    pub(crate) fn crowded(&self) -> bool {
        self.world_size > self.segment.cores()
    }

    /// How many chunks a rank publishes past the one it takes. With a processor each, one: the data is still in the
    /// cache. Without, as far as the ring allows: every hand-over costs a switch.
    pub(crate) fn ahead(&self) -> u64 {
        if self.crowded() { u64::MAX } else { 1 }
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.segment.rank(rank).state.get() == Seated::Left
    }

    /// The rank that has taken least, if this rank has taken more: when nothing goes on any more, then because of that
    /// rank. All take the same records in the same order, so what this rank has had is there for the other to take.
    pub(crate) fn behind(&self) -> Option<usize> {
        // Of all rings together it may be more than 64 bits can count.
        let taken = |rank: usize| -> u128 {
            let rings = (0..self.world_size).map(|producer| self.segment.ring(producer));
            rings.map(|ring| u128::from(ring.released(rank))).sum()
        };
        let (least, rank) = (0..self.world_size).map(|rank| (taken(rank), rank)).min()?;
        (least < taken(self.rank)).then_some(rank)
    }

    /// Where this rank is in its program.
    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// What a part of the crate keeps for this replica: the same one for each call with the same type.
    pub(crate) fn attached<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.attached.get()
    }

    /// Lets go of all that other parts of the crate keep for this replica.
    pub(crate) fn detach_all(&self) {
        self.attached.clear();
    }

    /// Why this rank's state is not that of the end of a step now.
    pub(crate) fn not_ready(&self) -> Option<String> {
        let why = match self.engine() {
            Err(_) => "an operation is under way, which has called this code",
            Ok(engine) if engine.step_open => "a step in parts is open",
            Ok(engine) if engine.unsettled.is_some() => {
                "an exchange has stepped asynchronously and not settled"
            }
            Ok(_) => return None,
        };
        Some(why.to_owned())
    }

    /// Leaves the run and ends this process. For the others it has left, not died.
    pub(crate) fn leave_and_exit(&self, code: u8) -> ! {
        self.leave();
        std::process::exit(code.into())
    }

    fn leave(&self) {
        self.segment.rank(self.rank).state.leave();
        crash::point(Point::SeatLeft);
        self.segment.bells().ring();
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = keeper.take() {
            keeper.leave();
        }
    }

    /// The poison's error, if there is one. One Acquire load.
    pub(crate) fn check_poison(&self, wait: &Wait<'_>) -> Result<(), Error> {
        match self.segment.poison().get() {
            None => Ok(()),
            Some(verdict) => Err(wait.verdict(verdict, None)),
        }
    }

    /// Ends the run, unless somebody has already; the verdict that holds.
    pub(crate) fn poison(&self, cause: Cause, rank: u8, number: u64) -> Verdict {
        let verdict = Verdict::new(rank, cause as u8, number);
        let holds = self.segment.poison().set(verdict);
        self.segment.bells().ring();
        holds
    }

    /// Ends the run, since `rank` has told something that no replica tells.
    pub(crate) fn broken(&self, rank: usize, what: impl Into<String>) -> Error {
        let number = self.current.load(std::sync::atomic::Ordering::Relaxed);
        self.poison(Cause::Protocol, rank as u8, number);
        Error::Protocol {
            rank,
            what: what.into(),
        }
    }

    /// Ends the run because this rank says so. Callable from any thread; only the first call has a reason.
    pub(crate) fn abort(&self, reason: &str) {
        if self
            .aborted
            .swap(true, std::sync::atomic::Ordering::Relaxed)
        {
            return;
        }
        write_text(&self.segment.rank(self.rank).reason, reason);
        self.poison(
            Cause::Aborted,
            self.rank as u8,
            self.current.load(std::sync::atomic::Ordering::Relaxed),
        );
    }

    /// Ends the run because this rank's GPU has failed where the others wait for what it was to do. They hear why.
    #[cfg(feature = "gpu")]
    pub(crate) fn gpu_failed(&self, error: crate::codec::gpu::GpuError) -> super::Error {
        self.abort(&error.to_string());
        super::Error::GpuFailed(error)
    }

    pub(crate) fn reason(&self, rank: usize) -> String {
        read_text(&self.segment.rank(rank).reason)
    }

    /// The step and hashes of the divergence that this rank has seen.
    pub(crate) fn divergence(&self) -> (u64, Vec<u64>) {
        self.divergence
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_divergence(&self, step: u64, hashes: Vec<u64>) {
        *self
            .divergence
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = (step, hashes);
    }

    /// The engine, for one operation at a time. A panic of the thread that holds it ends the run.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this thread holds it: a trainer's code that an operation has called asks for another one.
    pub(crate) fn engine(&self) -> Result<Held<'_>, Error> {
        use std::sync::atomic::Ordering::Relaxed;
        // Any thread sees its own last store.
        let me = this_thread();
        if self.holder.load(Relaxed) == me {
            return Err(Error::Invalid {
                what: "an operation",
                expected: "one after another".into(),
                found: "one inside another, which has called this code".into(),
            });
        }
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.holder.store(me, Relaxed);
        Ok(Held {
            shared: self,
            engine,
            panicking: std::thread::panicking(),
        })
    }

    /// This rank's pace.
    pub(crate) fn pace(&self) -> &Pace {
        &self.segment.rank(self.rank).pace
    }

    /// Says that this rank is inside the operation that it has announced: those who are not in it yet do not wait for its
    /// next asynchronous step.
    fn go_away(&self, engine: &mut Engine, steps: u64) {
        if engine.paced {
            engine.away = true;
            self.pace().away(steps);
            self.segment.bells().ring();
        }
    }

    /// The pace of `rank` as it counts for one that is outside of operations and has finished number `number`.
    ///
    /// In an operation that this rank has finished too, `rank` needs nothing more from it: it is on its way to its next
    /// step, and counts. In a later one it may be waiting for this very rank.
    pub(crate) fn pace_of(&self, rank: usize, number: u64) -> Seen {
        let lines = self.segment.rank(rank);
        let seen = lines.pace.get();
        Seen {
            stepping: seen.stepping || !has_come(lines, number + 1),
            ..seen
        }
    }

    /// The lowest rank, this one first, that has made asynchronous steps since the last settle, if `operation` has no
    /// place before that settle. Of others this rank may hear late; then it waits for them, as for ranks that are slow.
    ///
    /// A count that is not 0 is never one of the time before a settle that this rank has finished: every rank takes its
    /// count back before its marker.
    fn unsettled(&self, engine: &Engine, operation: &Operation) -> Option<usize> {
        match operation.kind {
            // Without the rings, or agreed once it is known whether they are needed.
            Kind::Barrier
            | Kind::Synchronize
            | Kind::Loop
            | Kind::AllGather
            | Kind::AllReduce
            | Kind::NewExchange
            | Kind::Check
            | Kind::Resume
            | Kind::Checkpoint => None,
            Kind::Settle => engine
                .unsettled
                .is_some_and(|exchange| exchange != operation.subject)
                .then_some(self.rank),
            _ if engine.unsettled.is_some() => Some(self.rank),
            _ if engine.paced => {
                let mut ranks = self.segment.ranks().iter();
                ranks.position(|lines| lines.pace.get().steps > 0)
            }
            _ => None,
        }
    }

    pub(crate) fn wait(&self, operation: Operation, number: u64) -> Wait<'_> {
        Wait {
            shared: self,
            operation,
            number,
            deadline: self.deadline,
            flags: self.raised(),
        }
    }

    /// Enters an operation: finishes an open barrier first, refuses if the run is over, then says what this rank has
    /// come for. Returns what the waits of this operation need.
    pub(crate) fn enter(
        &self,
        engine: &mut Engine,
        operation: Operation,
    ) -> Result<Wait<'_>, Error> {
        let wait = self.ready(engine, operation)?;
        self.enter_now(engine, wait);
        Ok(wait)
    }

    /// Whether an operation could be entered now: finishes an open barrier first, refuses if the run is over or a step in
    /// parts is open.
    fn ready(&self, engine: &mut Engine, operation: Operation) -> Result<Wait<'_>, Error> {
        if let Some(rank) = self.unsettled(engine, &operation) {
            return Err(Error::Unsettled { rank, operation });
        }
        self.finish_open(engine)?;
        let wait = self.wait(operation, engine.number + 1);
        self.check_poison(&wait)?;
        // A checkpoint is refused on all ranks alike, as long as the others can be told why.
        let tells_why = operation.kind == Kind::Checkpoint && !engine.step_entered;
        if engine.step_open && !tells_why {
            return Err(Error::StepOpen);
        }
        Ok(wait)
    }

    fn enter_now(&self, engine: &mut Engine, wait: Wait<'_>) {
        use std::sync::atomic::Ordering::Relaxed;
        if !wait.operation.kind.prepares() && !self.begun.load(Relaxed) {
            self.begun.store(true, Relaxed);
            let status = &self.segment.rank(self.rank).identity.status;
            status.fetch_or(BEGUN, Ordering::Relaxed);
        }
        engine.number += 1;
        self.current
            .store(engine.number, std::sync::atomic::Ordering::Relaxed);
        announce(
            self.segment.rank(self.rank),
            engine.number,
            &wait.operation,
            wait.flags,
        );
        // What comes after a rank's marker belongs to the time after this settle.
        let steps = if wait.operation.kind == Kind::Settle {
            0
        } else {
            engine.steps
        };
        self.go_away(engine, steps);
        crash::point(Point::Announced);
    }

    /// Opens a step in parts. Its operation is entered later, by [`enter_open_step`](Self::enter_open_step).
    pub(crate) fn open_step(&self, operation: Operation) -> Result<(), Error> {
        let engine = &mut *self.engine()?;
        self.ready(engine, operation)?;
        engine.step_open = true;
        Ok(())
    }

    /// Enters the operation of the step that is open, without waiting for anything.
    pub(crate) fn enter_open_step(
        &self,
        engine: &mut Engine,
        operation: Operation,
    ) -> Result<Wait<'_>, Error> {
        let wait = self.wait(operation, engine.number + 1);
        self.check_poison(&wait)?;
        engine.step_entered = true;
        self.enter_now(engine, wait);
        Ok(wait)
    }

    /// Lets other operations be entered again.
    pub(crate) fn close_step(&self, engine: &mut Engine) {
        engine.step_open = false;
        engine.step_entered = false;
    }

    /// Adds what a step did to this rank's counters.
    pub(crate) fn count(&self, step: &Counters) {
        step.add_to(self.segment.rank(self.rank));
    }

    /// Waits for the barrier that was entered and not waited for.
    pub(crate) fn finish_open(&self, engine: &mut Engine) -> Result<(), Error> {
        match engine.open.take() {
            None => Ok(()),
            Some((ticket, number)) => {
                self.go_away(engine, engine.steps);
                let barrier = Operation::new(Kind::Barrier, 0, 0, 0);
                self.finish_barrier(engine, barrier, ticket, number)
            }
        }
    }

    /// Returns when all replicas have come for the same, by the barrier's words.
    ///
    /// # Errors
    /// [`Error::Mismatch`], agreed: the same on all, and the run goes on; what ended the run.
    pub(crate) fn meet(&self, engine: &mut Engine, operation: Operation) -> Result<(), Error> {
        debug_assert!(operation.kind.is_by_barrier());
        let wait = self.enter(engine, operation)?;
        let arrival = &self.segment.rank(self.rank).arrival;
        let ticket = arrival.arrive(wait.number, operation.identity(), wait.flags != 0);
        crash::point(Point::Arrived);
        self.segment.bells().ring();
        self.finish_barrier(engine, operation, ticket, wait.number)
    }

    fn finish_barrier(
        &self,
        engine: &mut Engine,
        operation: Operation,
        ticket: Ticket,
        number: u64,
    ) -> Result<(), Error> {
        use super::wait::Look;
        use crate::shm::barrier::Look as Seen;
        let wait = self.wait(operation, number);
        let (matched, stop) = wait.until(|| {
            Ok(match ticket.look(self.segment.arrivals()) {
                Seen::Waiting { rank } => Look::Pending(Some(rank)),
                Seen::Passed { stop } => Look::Ready((true, stop)),
                Seen::Mismatch { stop } => match self.differs(&wait) {
                    true => Look::Ready((false, stop)),
                    false => Look::Pending(self.missing(number)),
                },
            })
        })?;
        if stop {
            self.agree(engine, number);
        } else {
            engine.agree_on(0);
        }
        if matched {
            return Ok(());
        }
        Err(self.mismatch(number))
    }

    /// Whether a rank came for something else than `wait` is about. The words of a barrier are no proof: one may be of an
    /// arrival long ago.
    fn differs(&self, wait: &Wait<'_>) -> bool {
        let identity = wait.operation.identity();
        let came = |rank| announced(self.segment.rank(rank), wait.number);
        (0..self.world_size).any(|rank| came(rank).is_some_and(|came| came.identity != identity))
    }

    /// The lowest rank that has not come to operation `number`.
    fn missing(&self, number: u64) -> Option<usize> {
        (0..self.world_size).find(|&rank| !has_come(self.segment.rank(rank), number))
    }

    /// Who came for what as operation `number`.
    pub(crate) fn mismatch(&self, number: u64) -> Error {
        let came = (0..self.world_size)
            .filter_map(|rank| Some((rank, announced(self.segment.rank(rank), number)?.operation?)))
            .collect();
        Error::Mismatch { number, came }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            // A forked child has a copy of this memory; the seat is its parent's. Its own copy of the engine thread
            // does not exist: dropping the handle would wait for it.
            std::mem::forget(
                self.keeper
                    .get_mut()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
            return;
        }
        if std::thread::panicking() {
            let number = self.current.load(std::sync::atomic::Ordering::Relaxed);
            self.poison(Cause::Panicked, self.rank as u8, number);
        }
        let agreed = *self.agreed.get_mut();
        if Flags::from_bits(agreed).stop().is_some() {
            // This process is about to end as it was asked to. A signal that repeats it says nothing new.
            let listener = self.listener.get_mut();
            std::mem::forget(listener.unwrap_or_else(PoisonError::into_inner).take());
        }
        self.leave();
    }
}
