//! From the last replica's start to the last one's end, in one generation: who ended how, who is to blame, who is to stop.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use super::desk::Desk;
use super::error::LaunchError;
use super::event::wait;
use super::generation::Generation;
use super::outcome::{Outcome, Ranks, exit_code, signal_name, status_text};
use super::plan::Plan;
use super::process::{POLL, Process};
use crate::replica::{Cause, Flags};
use crate::shm::seat::Seated;

/// How long the culprit may take to end by itself: a killed large process is reaped last.
const CULPRIT: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody waits for a rank that has ended without coming.
const EARLY: Duration = Duration::from_millis(50);
/// After how long of waiting for replicas to stop the launcher says so.
const PATIENCE: Duration = Duration::from_secs(1);
/// A second stop within this time is the first one's echo.
const ECHO: Duration = Duration::from_millis(250);

/// What a run is coming to.
#[derive(Debug)]
pub(super) enum Phase {
    Running,
    /// A rank has failed; the others have been asked to stop.
    Failing(Blame),
    /// A stop was asked for from outside.
    Stopping {
        signal: i32,
        at: Instant,
    },
}

/// Who is to blame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blame {
    pub(super) rank: usize,
    pub(super) cause: Cause,
    pub(super) at: Instant,
    /// It did not stop as all had agreed, after a signal of which it had no need to die.
    pub(super) while_stopping: bool,
}

/// What the watch has seen, beside the processes themselves.
pub(super) struct Watch {
    pub(super) phase: Phase,
    /// Ended with 0, and never came, when nobody had come.
    early: Vec<usize>,
    /// How many stops have been acted on.
    pub(super) heeded: u32,
    /// All were killed at a person's word: no more waiting.
    pub(super) hurry: bool,
    /// Whether the launcher has said whom it waits for.
    told: bool,
    /// Ranks whose own process has ended by the launcher's signal, while the one that has joined for them lives on: behind
    /// a shell. It is given the grace time too.
    lingering: Vec<usize>,
    /// The signal by which the run was asked to stop before anybody had failed.
    pub(super) stopped_by: Option<i32>,
    /// When the first rank ended because all had agreed to stop.
    agreed_at: Option<Instant>,
}

impl Generation<'_> {
    /// Until the last replica has ended; then cleans up. `None`: the plan has another generation.
    pub(super) fn supervise(
        mut self,
        plan: &mut Plan,
        desk: &mut Desk,
    ) -> Result<Option<Outcome>, LaunchError> {
        let mut watch = Watch {
            phase: Phase::Running,
            early: Vec::new(),
            heeded: 0,
            hurry: false,
            told: false,
            lingering: Vec::new(),
            stopped_by: None,
            agreed_at: None,
        };
        loop {
            let looks = self.processes.list.iter_mut().enumerate();
            let ended: Vec<usize> = looks
                .filter_map(|(rank, process)| process.look().then_some(rank))
                .collect();
            // A stop first: who signals launcher and replicas alike has asked for no failure.
            self.heed_stops(&mut watch);
            for rank in ended {
                if self.lingers(rank, &watch) {
                    watch.lingering.push(rank);
                } else {
                    self.has_ended(rank, &mut watch);
                }
            }
            self.look_for_lingering(&mut watch);
            self.look_for_waiting(&mut watch);
            self.lose_patience(&mut watch);
            self.see_begin(plan, desk);
            desk.serve(&self.world, &self.output, self.busy(&watch).as_deref());
            if !self.processes.list.iter().any(Process::is_running) && watch.lingering.is_empty() {
                break;
            }
            self.sleep(&watch, desk)?;
        }
        Ok(self.finish(&watch, plan, desk))
    }

    fn has_ended(&mut self, rank: usize, watch: &mut Watch) {
        let status = self.processes.list[rank].end.and_then(|end| end.status);
        let agreed = self.stopped_by_agreement(rank);
        if agreed {
            watch.agreed_at.get_or_insert_with(Instant::now);
        }
        // Whoever goes on after an agreed stop is asked to end, and may do so as it likes.
        if self.straggled(rank, watch) {
            return;
        }
        let success = agreed || status.is_some_and(|status| status.success());
        let cause = match (self.world.seat(rank), success) {
            (Seated::Left, _) => None,
            (Seated::Free, true) if !self.world.anybody_came() => {
                watch.early.push(rank);
                None
            }
            (Seated::Free, true) => Some(Cause::NeverJoined),
            _ => Some(Cause::Died),
        };
        if let Some(cause) = cause {
            self.world.poison(rank, cause);
        }
        if !success || cause.is_some() {
            self.fail(rank, watch);
        }
    }

    /// Whether `rank` was asked to end because it went on after an agreed stop.
    fn straggled(&self, rank: usize, watch: &Watch) -> bool {
        matches!(watch.phase, Phase::Running)
            && watch.agreed_at.is_some()
            && self.processes.list[rank].signalled.is_some()
    }

    /// Whether the process that has joined as `rank` lives on, though a stop has ended the one that the launcher started.
    fn lingers(&self, rank: usize, watch: &Watch) -> bool {
        matches!(watch.phase, Phase::Stopping { .. })
            && !watch.hurry
            && self.ended_by_us(rank)
            && self.world.lives(rank)
    }

    fn look_for_lingering(&mut self, watch: &mut Watch) {
        for rank in std::mem::take(&mut watch.lingering) {
            let process = &mut self.processes.list[rank];
            let late = killed_at(process, self.grace).is_some_and(|at| Instant::now() >= at);
            if late || watch.hurry {
                process.signal(libc::SIGKILL);
            } else if self.world.lives(rank) {
                watch.lingering.push(rank);
                continue;
            }
            self.has_ended(rank, watch);
        }
    }

    /// Whether a rank's process has ended by a signal that the launcher had sent.
    pub(super) fn ended_by_us(&self, rank: usize) -> bool {
        let Some(end) = self.processes.list[rank].end else {
            return false;
        };
        let code = exit_code(end.status);
        // By an earlier signal perhaps, if it was the last one that none survives.
        end.signalled
            .is_some_and(|signal| signal == libc::SIGKILL || code == 128 + (signal & 0x7f) as u8)
    }

    /// Whether a rank's process has died of this signal, which the launcher had sent.
    pub(super) fn died_of(&self, rank: usize, signal: i32) -> bool {
        let end = self.processes.list[rank].end;
        end.is_some_and(|end| {
            let sent = end.signalled == Some(signal);
            sent && end
                .status
                .is_some_and(|status| status.signal() == Some(signal))
        })
    }

    /// Whether `rank` has left and ended as a rank does when all have agreed to stop.
    pub(super) fn stopped_by_agreement(&self, rank: usize) -> bool {
        let status = self.processes.list[rank].end.and_then(|end| end.status);
        self.world.seat(rank) == Seated::Left
            && self.world.agreed_by(rank).stop().is_some()
            && matches!(exit_code(status), 130 | 143)
    }

    /// Notes when a generation of a new size has shown that it can run.
    pub(super) fn see_begin(&self, plan: &mut Plan, desk: &mut Desk) {
        if plan.on_trial() && self.world.all_begun() {
            plan.has_begun();
            desk.has_begun(&self.output);
        }
    }

    /// Why the run cannot be resized now.
    fn busy(&self, watch: &Watch) -> Option<String> {
        let stop = self.world.agreed().without(Flags::RESIZE).stop();
        let ended = |process: &Process| process.end.is_some();
        match watch.phase {
            Phase::Failing(_) => Some("a replica has failed".to_owned()),
            Phase::Stopping { .. } => Some("the run is being stopped".to_owned()),
            Phase::Running if stop.is_some() => Some("the run is being stopped".to_owned()),
            Phase::Running => {
                let rank = self.processes.list.iter().position(ended)?;
                Some(format!(
                    "rank {rank} has ended: the run is coming to its end"
                ))
            }
        }
    }

    /// A rank that ended before anybody had come is missed as soon as somebody comes.
    fn look_for_waiting(&mut self, watch: &mut Watch) {
        let world = &self.world;
        watch.early.retain(|rank| world.seat(*rank) == Seated::Free);
        if let Some(&rank) = watch.early.first()
            && world.anybody_came()
        {
            watch.early.clear();
            world.poison(rank, Cause::NeverJoined);
            self.fail(rank, watch);
        }
    }

    /// `rank` has failed. If it is the first, the others are asked to stop.
    fn fail(&mut self, rank: usize, watch: &mut Watch) {
        let (asks, fails) = match watch.phase {
            Phase::Running => (true, true),
            // All had agreed to stop in order, and this one did not.
            Phase::Stopping { .. } => {
                let stop = self.world.agreed_by(rank).stop();
                (false, stop.is_some() && !self.ended_by_us(rank))
            }
            Phase::Failing(_) => (false, false),
        };
        if !fails {
            return;
        }
        let (culprit, cause) = self.world.culprit().unwrap_or((rank, Cause::Died));
        watch.phase = Phase::Failing(Blame {
            rank: culprit,
            cause,
            at: Instant::now(),
            while_stopping: !asks,
        });
        if !asks {
            return;
        }
        for (rank, process) in self.processes.list.iter_mut().enumerate() {
            // The culprit's own end is its exit code: it is not cut short yet.
            if rank != culprit || process.end.is_some() {
                process.signal(libc::SIGTERM);
            }
        }
    }

    fn heed_stops(&mut self, watch: &mut Watch) {
        self.stopped.clear();
        let asked = self.stopper.asked();
        if asked == watch.heeded {
            return;
        }
        let (first, last) = self.stopper.signals();
        let again = match watch.phase {
            Phase::Running => {
                watch.phase = Phase::Stopping {
                    signal: first,
                    at: Instant::now(),
                };
                watch.stopped_by = Some(first);
                for process in &mut self.processes.list {
                    process.signal(first);
                }
                // Where the signal does not reach the replica itself, or not as a flag, this does.
                match first {
                    libc::SIGTERM => self.world.ask(Flags::TERMINATE),
                    libc::SIGINT => self.world.ask(Flags::INTERRUPT),
                    _ => {}
                }
                self.output.say(&format!(
                    "{}: the replicas are asked to stop, and killed in {} s; a second {} kills them at once",
                    signal_name(first),
                    self.grace.as_secs_f64(),
                    if first == libc::SIGINT { "Ctrl-C" } else { "signal" },
                ));
                asked > 1 && last == libc::SIGINT
            }
            Phase::Stopping { at, .. } => last == libc::SIGINT || at.elapsed() >= ECHO,
            Phase::Failing(_) => true,
        };
        watch.heeded = asked;
        if again && !watch.hurry {
            watch.hurry = true;
            self.output
                .say(&format!("{}: the replicas are killed", signal_name(last)));
            for process in self
                .processes
                .list
                .iter_mut()
                .filter(|process| process.is_running())
            {
                process.signal(libc::SIGKILL);
            }
        }
    }

    /// What falls due by the clock alone.
    fn lose_patience(&mut self, watch: &mut Watch) {
        let now = Instant::now();
        if let Phase::Failing(blame) = watch.phase
            && let Some(process) = self.processes.list.get_mut(blame.rank)
            && process.is_running()
            && process.signalled.is_none()
            && now >= blame.at + CULPRIT
        {
            process.signal(libc::SIGTERM);
        }
        let grace = self.grace;
        let straggles_at = straggles_at(watch, grace);
        for (rank, process) in self.processes.list.iter_mut().enumerate() {
            if !process.is_running() {
                continue;
            }
            if process.signalled.is_none() && straggles_at.is_some_and(|at| now >= at) {
                let pid = process.pid();
                let seconds = grace.as_secs_f64();
                self.output.say(&format!(
                    "rank {rank} (pid {pid}) still runs {seconds} s after all had agreed to stop: it is asked to end"
                ));
                process.signal(libc::SIGTERM);
            }
            if killed_at(process, grace).is_some_and(|at| now >= at) {
                process.signal(libc::SIGKILL);
            }
            process.give_up_if_unkillable(now);
            if process.unkillable {
                let pid = process.pid();
                self.output.say(&format!(
                    "rank {rank} (pid {pid}) does not end though it was killed, and is left behind"
                ));
            }
        }
        if let Phase::Failing(blame) = watch.phase
            && !watch.told
            && now >= blame.at + PATIENCE
        {
            watch.told = true;
            self.tell(blame);
        }
    }

    /// Says why nothing happens.
    fn tell(&self, blame: Blame) {
        let running: Vec<usize> = (0..self.processes.list.len())
            .filter(|rank| self.processes.list[*rank].is_running())
            .collect();
        let what = match self
            .processes
            .list
            .get(blame.rank)
            .and_then(|process| process.end)
        {
            Some(end) => status_text(end.status),
            None => blame.cause.to_string(),
        };
        self.output.say(&format!(
            "rank {} failed ({what}); waiting for {} to stop, killed {} s after SIGTERM",
            blame.rank,
            Ranks(&running),
            self.grace.as_secs_f64(),
        ));
    }

    /// Until something has happened or falls due.
    fn sleep(&self, watch: &Watch, desk: &Desk) -> Result<(), LaunchError> {
        let running = || {
            self.processes
                .list
                .iter()
                .filter(|process| process.is_running())
        };
        let now = Instant::now();
        let mut due: Vec<Instant> = Vec::new();
        due.extend(running().filter_map(|process| killed_at(process, self.grace)));
        due.extend(running().filter_map(Process::gives_up_at));
        if running().any(|process| process.signalled.is_none()) {
            due.extend(straggles_at(watch, self.grace));
        }
        if let Phase::Failing(blame) = watch.phase {
            due.push(blame.at + CULPRIT);
            if !watch.told {
                due.push(blame.at + PATIENCE);
            }
        }
        if !watch.early.is_empty() {
            due.push(now + EARLY);
        }
        if running().any(|process| process.pidfd().is_none()) || !watch.lingering.is_empty() {
            due.push(now + POLL);
        }
        due.retain(|at| *at > now);
        // Unlike the others this one is done as soon as it is due.
        due.extend(desk.due(now));
        let limit = due.iter().min();
        let limit = limit.map(|at| at.saturating_duration_since(now));
        let mut fds = vec![self.stopped.as_fd()];
        fds.extend(running().filter_map(Process::pidfd));
        fds.extend(desk.fds());
        wait(&fds, limit).map_err(|source| LaunchError::Os {
            call: "poll",
            source,
        })?;
        Ok(())
    }
}

/// When the grace of a process that was asked to stop is over.
fn killed_at(process: &Process, grace: Duration) -> Option<Instant> {
    match process.signalled {
        Some((signal, at)) if signal != libc::SIGKILL => at.checked_add(grace),
        _ => None,
    }
}

/// When whoever still runs after an agreed stop has had the grace time: counted from the first that ended, which no
/// replica does before all have made the checkpoint.
fn straggles_at(watch: &Watch, grace: Duration) -> Option<Instant> {
    match watch.phase {
        Phase::Running => watch.agreed_at?.checked_add(grace),
        Phase::Failing(_) | Phase::Stopping { .. } => None,
    }
}
