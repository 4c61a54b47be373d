//! Agreement: flags that a rank, a signal, a clock or the launcher raises, and that all ranks act on after the same operation.
//!
//! A raised flag rides in whatever its rank enters. When an operation ends in which all ranks' flags were seen, those are
//! agreed: equal everywhere, without a barrier of their own.

use super::error::Error;
use super::flags::Flags;
use super::operation::announced;
use super::shared::{Engine, Shared};
use super::signals::Listener;
use crate::shm::segment::WRITING;
use crate::shm::sync::Ordering;
use std::sync::PoisonError;
use std::time::Instant;

impl Shared {
    /// The flags that this rank has raised, and those that the launcher asks for: all ranks pass these on.
    pub(crate) fn raised(&self) -> u8 {
        let own = &self.segment.rank(self.rank).identity.raised;
        let launcher = &self.segment.launcher().identity.raised;
        let raised = own.load(Ordering::Relaxed) | launcher.load(Ordering::Relaxed);
        let mut flags = Flags::from_bits(raised as u8);
        if self.settings.handle_signals {
            flags |= self.heard.since();
        }
        if self.settings.every.is_some() && self.is_checkpoint_due() {
            flags |= Flags::CHECKPOINT;
        }
        flags.bits()
    }

    fn is_checkpoint_due(&self) -> bool {
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.is_some_and(|due| Instant::now() >= due)
    }

    /// Raises flags of this rank. Wait-free.
    pub(crate) fn raise(&self, flags: Flags) {
        let raised = &self.segment.rank(self.rank).identity.raised;
        raised.fetch_or(flags.bits().into(), Ordering::Relaxed);
    }

    /// A checkpoint begins: what asked for it until now has got it. What asks for it from now on asks for the next one.
    pub(crate) fn checkpoint_begins(&self, engine: &mut Engine) {
        let flag = Flags::CHECKPOINT.bits();
        let raised = &self.segment.rank(self.rank).identity.raised;
        raised.fetch_and(!u32::from(flag), Ordering::Relaxed);
        engine.agreed &= !flag;
        self.wind_clock();
    }

    /// The next checkpoint by the clock is due when its time has passed from now.
    fn wind_clock(&self) {
        *self.due.lock().unwrap_or_else(PoisonError::into_inner) =
            self.settings.next_due(self.rank);
    }

    /// While this rank writes a checkpoint, others wait for it without looking at their deadlines.
    pub(crate) fn writing(&self, writing: bool) {
        let status = &self.segment.rank(self.rank).identity.status;
        if writing {
            status.fetch_or(WRITING, Ordering::Relaxed);
        } else {
            status.fetch_and(!WRITING, Ordering::Relaxed);
            self.wind_clock();
        }
    }

    /// Whether another rank writes a checkpoint.
    pub(crate) fn others_write(&self) -> bool {
        let writes = |rank| {
            let status = &self.segment.rank(rank).identity.status;
            rank != self.rank && status.load(Ordering::Relaxed) & WRITING != 0
        };
        (0..self.world_size).any(writes)
    }

    /// From now on this process asks whether it is to stop: SIGTERM and SIGINT are flags and do not end it at once.
    pub(crate) fn look_at_stops(&self) {
        if self.settings.handle_signals {
            let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
            listener.get_or_insert_with(Listener::new);
        }
    }

    /// Says in the segment what this rank knows to be agreed.
    pub(super) fn publish_agreed(&self, agreed: u8) {
        use std::sync::atomic::Ordering::Relaxed;
        if self.agreed.load(Relaxed) == agreed {
            return;
        }
        self.agreed.store(agreed, Relaxed);
        let status = &self.segment.rank(self.rank).identity.status;
        // One writer: this thread, which has the engine; the other bits have their own.
        status.fetch_and(!0xff, Ordering::Relaxed);
        status.fetch_or(agreed.into(), Ordering::Relaxed);
    }

    /// The flags that are agreed now. If no operation has told since the last call, there is a barrier first. A rank that
    /// steps asynchronously makes none: it hears of flags when it settles.
    pub(crate) fn agree_now(&self) -> Result<Flags, Error> {
        let engine = &mut *self.engine()?;
        if engine.agreements == engine.asked && !engine.is_paced() {
            super::collectives::arrive(self, engine)?;
            self.finish_open(engine)?;
        }
        engine.asked = engine.agreements;
        Ok(Flags::from_bits(engine.agreed))
    }

    /// The flags that all ranks have agreed on so far. Waits for an operation that another thread is inside.
    pub(crate) fn agreed(&self) -> Flags {
        Flags::from_bits(match self.engine() {
            Ok(engine) => engine.agreed,
            Err(_) => self.agreed.load(std::sync::atomic::Ordering::Relaxed),
        })
    }

    /// ORs the flags with which all ranks came to operation `number`. All must have entered it.
    pub(crate) fn agree(&self, engine: &mut Engine, number: u64) {
        let came = |rank| announced(self.segment.rank(rank), number);
        let flags = (0..self.world_size).map(|rank| came(rank).map_or(0, |came| came.flags));
        engine.agree_on(flags.fold(0, |all, flags| all | flags));
    }
}
