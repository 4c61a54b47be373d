//! From the last replica's start to the last one's end: who ended how, who is to blame, who is to stop.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::error::LaunchError;
use super::event::{Event, wait};
use super::outcome::{Culprit, How, Outcome, RankEnd, Ranks, exit_code, signal_name, status_text};
use super::output::Output;
use super::process::{POLL, Process, Processes};
use super::spawn::Lifeline;
use super::stopper::Stopper;
use super::world::World;
use crate::replica::Cause;
use crate::shm::seat::Seated;

/// How long the culprit may take to end by itself: a killed large process is reaped last.
const CULPRIT: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody waits for a rank that has ended without coming.
const EARLY: Duration = Duration::from_millis(50);
/// After how long of waiting for replicas to stop the launcher says so.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long what the ranks have started may go on writing when they have ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the last output may take to be written when nobody has time.
const HURRY: Duration = Duration::from_millis(250);
/// A second stop within this time is the first one's echo.
const ECHO: Duration = Duration::from_millis(250);

/// A run whose replicas have all been started.
pub(super) struct Run<'a> {
    pub(super) processes: Processes,
    pub(super) output: Output,
    pub(super) world: World,
    /// Held until the last rank has ended.
    pub(super) lifeline: Option<Lifeline>,
    pub(super) stopper: &'a Stopper,
    pub(super) stopped: &'a Event,
    pub(super) grace: Duration,
    pub(super) began: Instant,
}

/// What a run is coming to.
#[derive(Debug)]
enum Phase {
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
struct Blame {
    rank: usize,
    cause: Cause,
    at: Instant,
}

/// What the watch has seen, beside the processes themselves.
struct Watch {
    phase: Phase,
    /// Ended with 0, and never came, when nobody had come.
    early: Vec<usize>,
    /// How many stops have been acted on.
    heeded: u32,
    /// All were killed at a person's word: no more waiting.
    hurry: bool,
    /// Whether the launcher has said whom it waits for.
    told: bool,
}

impl Run<'_> {
    /// Until the last replica has ended; then cleans up.
    pub(super) fn supervise(mut self) -> Result<Outcome, LaunchError> {
        let mut watch = Watch {
            phase: Phase::Running,
            early: Vec::new(),
            heeded: 0,
            hurry: false,
            told: false,
        };
        loop {
            let looks = self.processes.list.iter_mut().enumerate();
            let ended: Vec<usize> = looks
                .filter_map(|(rank, process)| process.look().then_some(rank))
                .collect();
            // A stop first: who signals launcher and replicas alike has asked for no failure.
            self.heed_stops(&mut watch);
            for rank in ended {
                self.has_ended(rank, &mut watch);
            }
            self.look_for_waiting(&mut watch);
            self.lose_patience(&mut watch);
            if !self.processes.list.iter().any(Process::is_running) {
                break;
            }
            self.sleep(&watch)?;
        }
        Ok(self.finish(watch))
    }

    fn has_ended(&mut self, rank: usize, watch: &mut Watch) {
        let status = self.processes.list[rank].end.and_then(|end| end.status);
        let success = status.is_some_and(|status| status.success());
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
        let Phase::Running = watch.phase else {
            return;
        };
        let (culprit, cause) = self.world.culprit().unwrap_or((rank, Cause::Died));
        watch.phase = Phase::Failing(Blame {
            rank: culprit,
            cause,
            at: Instant::now(),
        });
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
                for process in &mut self.processes.list {
                    process.signal(first);
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
        for (rank, process) in self.processes.list.iter_mut().enumerate() {
            if !process.is_running() {
                continue;
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
    fn sleep(&self, watch: &Watch) -> Result<(), LaunchError> {
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
        if let Phase::Failing(blame) = watch.phase {
            due.push(blame.at + CULPRIT);
            if !watch.told {
                due.push(blame.at + PATIENCE);
            }
        }
        if !watch.early.is_empty() {
            due.push(now + EARLY);
        }
        if running().any(|process| process.pidfd().is_none()) {
            due.push(now + POLL);
        }
        due.retain(|at| *at > now);
        let limit = due.iter().min().map(|at| at.duration_since(now));
        let mut fds = vec![self.stopped.as_fd()];
        fds.extend(running().filter_map(Process::pidfd));
        wait(&fds, limit).map_err(|source| LaunchError::Os {
            call: "poll",
            source,
        })?;
        Ok(())
    }

    /// All have ended. Nothing stays: no name, no process, no thread that could still write.
    fn finish(mut self, watch: Watch) -> Outcome {
        let elapsed = self.began.elapsed();
        if let Err(error) = self.world.close() {
            self.output.say(&error.to_string());
        }
        // Who catches every error and exits with 0 has not succeeded all the same.
        let blame = match watch.phase {
            Phase::Failing(blame) => Some(blame),
            Phase::Stopping { .. } => None,
            Phase::Running => {
                let culprit = self.world.culprit();
                culprit.map(|(rank, cause)| Blame {
                    rank,
                    cause,
                    at: Instant::now(),
                })
            }
        };
        let mut hurry = watch.hurry;
        if !hurry {
            // A `tee` behind a replica, for example, ends by itself as soon as it has written all.
            hurry = self.wait_for(Output::drained, Some(LAST_WORDS), watch.heeded);
        }
        // Whoever has joined and outlives its rank in a group of its own hangs up with this.
        self.lifeline = None;
        self.processes.finish();
        self.output.finish();
        let limit = match (hurry, watch.heeded) {
            (true, _) => Some(HURRY),
            (false, 0) => None,
            (false, _) => Some(self.grace),
        };
        self.wait_for(Output::done, limit, self.stopper.asked());

        let culprit = blame.map(|blame| self.culprit(blame));
        let stopped_by = match watch.phase {
            Phase::Stopping { signal, .. } => Some(signal),
            _ => None,
        };
        let ranks = self.rank_ends(culprit.as_ref().map(|culprit| culprit.rank), stopped_by);
        let code = match (&culprit, stopped_by) {
            (Some(culprit), _) => exit_code(culprit.status).max(1),
            (None, Some(signal)) => 128 + (signal & 0x7f) as u8,
            (None, None) => 0,
        };
        Outcome {
            code,
            culprit,
            ranks,
            stopped_by,
            elapsed,
        }
    }

    /// Until the output threads are so far, the limit has passed, or more than `heeded` stops are asked for: then true.
    fn wait_for(&self, so_far: fn(&Output) -> bool, limit: Option<Duration>, heeded: u32) -> bool {
        let until = limit.map(|limit| Instant::now() + limit);
        while !so_far(&self.output) {
            if self.stopper.asked() > heeded {
                return true;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let fds = [self.output.changed().as_fd(), self.stopped.as_fd()];
            if wait(&fds, left).is_err() {
                break;
            }
            self.output.changed().clear();
            self.stopped.clear();
        }
        false
    }

    fn culprit(&self, blame: Blame) -> Culprit {
        let process = &self.processes.list[blame.rank];
        // What ended by the launcher's hand says nothing about the fault.
        let own_end = process.end.filter(|end| end.signalled.is_none());
        Culprit {
            rank: blame.rank,
            pid: process.pid(),
            cause: blame.cause,
            reason: match blame.cause {
                Cause::Aborted => self.world.reason(blame.rank),
                _ => String::new(),
            },
            status: own_end.and_then(|end| end.status),
            after: own_end.map_or_else(|| blame.at.duration_since(self.began), |end| end.after),
            stderr_tail: self.output.tail(blame.rank),
        }
    }

    fn rank_ends(&self, culprit: Option<usize>, stopped_by: Option<i32>) -> Vec<RankEnd> {
        let ends = self
            .processes
            .list
            .iter()
            .enumerate()
            .map(|(rank, process)| {
                let status = process.end.and_then(|end| end.status);
                let code = exit_code(status);
                let by_signal = |signal: i32| {
                    code == 128 + (signal & 0x7f) as u8 || code == 128 + libc::SIGKILL as u8
                };
                let how = match process.end {
                    _ if culprit == Some(rank) => How::Failed,
                    _ if status.is_some_and(|status| status.success()) => How::Succeeded,
                    _ if stopped_by.is_some() => How::StoppedByUs,
                    Some(end) if end.signalled.is_some_and(by_signal) => How::StoppedByUs,
                    None => How::StoppedByUs,
                    Some(_) => How::FailedBecauseOfAnother,
                };
                RankEnd {
                    rank,
                    pid: process.pid(),
                    status,
                    how,
                }
            });
        ends.collect()
    }
}

/// When the grace of a process that was asked to stop is over.
fn killed_at(process: &Process, grace: Duration) -> Option<Instant> {
    match process.signalled {
        Some((signal, at)) if signal != libc::SIGKILL => at.checked_add(grace),
        _ => None,
    }
}
