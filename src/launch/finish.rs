//! The end of a generation: what it has come to, whether another one follows, and that nothing of it stays.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use super::desk::Desk;
use super::event::wait;
use super::generation::Generation;
use super::outcome::{Culprit, How, Outcome, RankEnd, exit_code};
use super::output::Output;
use super::plan::Plan;
use super::supervise::{Blame, Phase, Watch};
use crate::replica::{Cause, Flags, Stop};

/// How long what the ranks have started may go on writing when they have ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the last output may take to be written when nobody has time.
const HURRY: Duration = Duration::from_millis(250);

/// What a generation has come to.
enum End {
    /// Every replica has ended well.
    Done,
    Failed(Box<Culprit>),
    /// By this signal: the launcher's, or one on which the replicas have agreed.
    Stopped(i32),
    /// The replicas have agreed to go on as so many.
    Resized(usize),
}

impl Generation<'_> {
    /// All have ended. Nothing stays: no name, no process, no thread that could still write. `None`: the plan has another
    /// generation.
    pub(super) fn finish(
        mut self,
        watch: &Watch,
        plan: &mut Plan,
        desk: &mut Desk,
    ) -> Option<Outcome> {
        let elapsed = self.run_began.elapsed();
        if let Err(error) = self.world.close() {
            self.output.say(&error.to_string());
        }
        let mut end = self.end(watch, desk.target());
        let mut hurry = watch.hurry;
        if !hurry {
            // A `tee` behind a replica, for example, ends by itself as soon as it has written all.
            hurry = self.wait_for(Output::drained, Some(LAST_WORDS), watch.heeded);
        }
        self.see_begin(plan, desk);
        if matches!(end, End::Resized(_)) && self.stopper.asked() > 0 {
            // There is nobody any more to whom it could be forwarded.
            end = End::Stopped(self.stopper.signals().0);
        }
        let goes_on = self.decide(&end, plan, desk);
        // Whoever has joined and outlives its rank in a group of its own hangs up with this.
        self.lifeline = None;
        self.processes.finish();
        self.output.finish();
        // A stop that came a moment ago counts now; only a later one can be waited for.
        let asked = self.stopper.asked();
        let limit = match (hurry || asked > watch.heeded, watch.heeded) {
            (true, _) => Some(HURRY),
            (false, 0) => None,
            (false, _) => Some(self.grace),
        };
        self.wait_for(Output::done, limit, asked);
        if goes_on {
            return None;
        }

        let (mut culprit, stopped_by) = match end {
            End::Failed(culprit) => (Some(*culprit), watch.stopped_by),
            End::Stopped(signal) => (None, Some(signal)),
            End::Done | End::Resized(_) => (None, None),
        };
        if let Some(culprit) = &mut culprit {
            culprit.stderr_tail = self.output.tail(culprit.rank);
        }
        let ranks = self.rank_ends(culprit.as_ref().map(|culprit| culprit.rank), stopped_by);
        let code = match (&culprit, stopped_by) {
            (Some(culprit), _) => exit_code(culprit.status).max(1),
            (None, Some(signal)) => 128 + (signal & 0x7f) as u8,
            (None, None) => 0,
        };
        Some(Outcome {
            code,
            culprit,
            ranks,
            stopped_by,
            restarts: plan.restarts,
            max_restarts: plan.max_restarts,
            elapsed,
        })
    }

    /// `target`: the size to which the replicas may have agreed to change.
    fn end(&self, watch: &Watch, target: Option<usize>) -> End {
        let failed = |blame| End::Failed(Box::new(self.culprit(blame)));
        match watch.phase {
            Phase::Failing(blame) => {
                // Who does not look at stops is ended by the signal as any program is. That others have seen it die, and
                // ended in their own way, is no failure of anybody.
                return match watch.stopped_by {
                    Some(signal) if blame.while_stopping && self.died_of(blame.rank, signal) => {
                        End::Stopped(signal)
                    }
                    _ => failed(blame),
                };
            }
            Phase::Stopping { signal, .. } => return End::Stopped(signal),
            Phase::Running => {}
        }
        // Who catches every error and exits with 0 has not succeeded all the same.
        if let Some((rank, cause)) = self.world.culprit() {
            return failed(Blame {
                rank,
                cause,
                at: Instant::now(),
                while_stopping: false,
            });
        }
        // Agreed in the very last operation, it has changed nothing: all have done their work.
        let early = (0..self.world.size()).any(|rank| self.stopped_by_agreement(rank));
        match (self.world.agreed().stop(), target) {
            (Some(Stop::Interrupt), _) => End::Stopped(libc::SIGINT),
            (Some(Stop::Terminate), _) => End::Stopped(libc::SIGTERM),
            (Some(Stop::Resize), Some(to)) if early => End::Resized(to),
            // The program has raised that flag by itself, and nobody has said what size is wanted.
            (Some(Stop::Resize), None) if early => End::Stopped(libc::SIGTERM),
            _ => End::Done,
        }
    }

    /// Whether another generation follows; tells all who want to know.
    fn decide(&self, end: &End, plan: &mut Plan, desk: &mut Desk) -> bool {
        let stop = self.world.agreed().without(Flags::RESIZE).stop();
        let is_stopped = self.stopper.asked() > 0 || stop.is_some();
        let line = match end {
            End::Done => {
                desk.done();
                return false;
            }
            End::Stopped(_) => {
                desk.failed("the run was stopped");
                return false;
            }
            End::Failed(_) if is_stopped => {
                desk.failed("the run was stopped");
                return false;
            }
            End::Resized(to) => {
                let line = plan.resize(*to);
                desk.was_agreed(&line);
                line
            }
            End::Failed(culprit) => {
                let why = culprit.headline();
                let back = plan.go_back(&why);
                if back.is_some() {
                    plan.next_number();
                }
                match back.or_else(|| plan.restart(&why)) {
                    Some(line) => {
                        desk.failed(&line);
                        line
                    }
                    None => {
                        desk.failed(&why);
                        return false;
                    }
                }
            }
        };
        self.output.say(&line);
        true
    }

    /// Until the output threads are so far, the limit has passed, or more than `heeded` stops are asked for: then true.
    fn wait_for(&self, so_far: fn(&Output) -> bool, limit: Option<Duration>, heeded: u32) -> bool {
        // A time that the clock does not reach is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
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

    /// All about the culprit but what it wrote last, which comes only when all is written.
    fn culprit(&self, blame: Blame) -> Culprit {
        let process = &self.processes.list[blame.rank];
        // What ended by the launcher's hand says nothing about the fault.
        let own_end = process.end.filter(|end| {
            end.signalled.is_none() || blame.while_stopping && !self.ended_by_us(blame.rank)
        });
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
            stderr_tail: Vec::new(),
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
                let how = match process.end {
                    _ if culprit == Some(rank) => How::Failed,
                    _ if status.is_some_and(|status| status.success()) => How::Succeeded,
                    _ if self.stopped_by_agreement(rank)
                        && status.is_some_and(|status| status.code().is_some()) =>
                    {
                        How::StoppedByAgreement
                    }
                    None => How::StoppedByUs,
                    _ if self.ended_by_us(rank) => How::StoppedByUs,
                    // Told to stop, a program may exit as it likes, but does not crash.
                    Some(_)
                        if stopped_by.is_some() && status.is_none_or(|s| s.signal().is_none()) =>
                    {
                        How::StoppedByUs
                    }
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
