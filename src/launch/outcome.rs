//! How a run ended, for programs and for people.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::plan::Plan;
use crate::replica::Cause;

/// How a run ended; of several generations, the last. [`Display`](fmt::Display) is the report for people: one screen at most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What the launcher's process should exit with: 0, or the culprit's exit code (128 + n if signal n killed it; 1 if
    /// it exited with 0 all the same, or has not ended), or 128 + n if the run was stopped by signal n.
    pub code: u8,
    /// Who failed first. `None` if nobody did, and if the run was stopped.
    pub culprit: Option<Culprit>,
    /// Every rank's end in the last generation, by rank. Empty if the run was stopped before that one began.
    pub ranks: Vec<RankEnd>,
    /// The signal by which the run was stopped from outside, before anybody had failed: one that the launcher got, or one
    /// that a replica got and on which all replicas agreed.
    pub stopped_by: Option<i32>,
    /// How often the run was started again after a failure.
    pub restarts: usize,
    /// How often it might have been.
    pub max_restarts: usize,
    /// From the start of the first replica to the end of the last.
    pub elapsed: Duration,
}

/// The replica that a failed run failed at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Culprit {
    /// Its rank.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
    /// What it did, as the replicas or the launcher saw it.
    pub cause: Cause,
    /// Its own reason, where the cause is [`Cause::Aborted`]; else empty.
    pub reason: String,
    /// How its process ended. `None` if it had not within 5 seconds, or if nobody knows.
    pub status: Option<ExitStatus>,
    /// How long it had run when it ended, or when it was named.
    pub after: Duration,
    /// The last lines of its standard error, at most 20, each cut to 1 KiB.
    pub stderr_tail: Vec<String>,
}

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankEnd {
    /// Its number.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
    /// Its process's status. `None` if it could not be killed, or if other code of this process took the status.
    pub status: Option<ExitStatus>,
    /// In one word.
    pub how: How,
}

/// How a rank ended, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// With exit code 0, nobody's fault.
    Succeeded,
    /// It is the culprit.
    Failed,
    /// All replicas had agreed to stop, and it left and ended as agreed.
    StoppedByAgreement,
    /// The launcher sent it a signal, and it ended by that.
    StoppedByUs,
    /// It failed by itself, after the culprit.
    FailedBecauseOfAnother,
}

impl Outcome {
    /// Stopped before the generation that the plan names had begun.
    pub(super) fn not_begun(signal: i32, elapsed: Duration, plan: &Plan) -> Outcome {
        let code = 128 + (signal & 0x7f) as u8;
        Outcome {
            code,
            culprit: None,
            ranks: Vec::new(),
            stopped_by: Some(signal),
            restarts: plan.restarts,
            max_restarts: plan.max_restarts,
            elapsed,
        }
    }

    /// Whether every rank did its work: the code is 0.
    pub fn is_success(&self) -> bool {
        self.code == 0
    }

    /// The report for people, as [`Display`](fmt::Display) writes it.
    pub fn report(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.culprit {
            Some(culprit) => write!(f, "{culprit}")?,
            None => match self.stopped_by {
                Some(signal) => {
                    write!(
                        f,
                        "stopped by {} after {}",
                        signal_name(signal),
                        Seconds(self.elapsed)
                    )?;
                }
                None => write!(f, "all replicas succeeded in {}", Seconds(self.elapsed))?,
            },
        }
        self.others(f)?;
        if self.max_restarts > 0 {
            let (used, allowed) = (self.restarts, self.max_restarts);
            let plural = if allowed == 1 { "" } else { "s" };
            write!(f, "\n  {used} of {allowed} restart{plural} used")?;
        }
        if self.code != 0 {
            write!(f, "\n  exit code {}", self.code)?;
        }
        Ok(())
    }
}

impl Outcome {
    /// One line for all that are not the culprit, alike ends together.
    fn others(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let culprit = self.culprit.as_ref().map(|culprit| culprit.rank);
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for end in self.ranks.iter().filter(|end| Some(end.rank) != culprit) {
            let text = end.text(culprit);
            match groups.iter_mut().find(|(other, _)| *other == text) {
                Some((_, ranks)) => ranks.push(end.rank),
                None => groups.push((text, vec![end.rank])),
            }
        }
        if culprit.is_none() && self.stopped_by.is_none() {
            return Ok(());
        }
        for (at, (text, ranks)) in groups.iter().enumerate() {
            write!(
                f,
                "{}{} {text}",
                if at == 0 { "\n  " } else { "; " },
                Ranks(ranks)
            )?;
        }
        Ok(())
    }
}

impl RankEnd {
    fn text(&self, culprit: Option<usize>) -> String {
        let how = status_text(self.status);
        match (self.how, culprit) {
            (How::Succeeded, _) => "succeeded".to_owned(),
            (How::FailedBecauseOfAnother, Some(culprit)) => {
                format!("failed after rank {culprit} ({how})")
            }
            (How::StoppedByAgreement, _) => format!("stopped by agreement ({how})"),
            (How::StoppedByUs, _) => format!("stopped by us ({how})"),
            (How::Failed | How::FailedBecauseOfAnother, _) => format!("failed ({how})"),
        }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        if !self.stderr_tail.is_empty() {
            write!(f, "\n  the last lines of its stderr:")?;
            for line in &self.stderr_tail {
                write!(f, "\n  | {line}")?;
            }
        }
        Ok(())
    }
}

impl Culprit {
    /// Who failed, how and when, in one line.
    pub fn headline(&self) -> String {
        let mut line = format!("rank {} (pid {}) failed first: ", self.rank, self.pid);
        match self.status {
            Some(status) => {
                line += &format!(
                    "{} after {}",
                    status_text(Some(status)),
                    Seconds(self.after)
                );
                // That a killed process died is said already.
                if self.cause != Cause::Died || status.success() {
                    line += &format!("; it {}", self.what());
                }
            }
            None => {
                line += &format!(
                    "it {} (seen after {}); its process did not end by itself, so its exit code is not known",
                    self.what(),
                    Seconds(self.after),
                );
            }
        }
        line
    }

    fn what(&self) -> String {
        match self.cause {
            Cause::Died if self.status.is_some_and(|status| status.success()) => {
                "had not left the run".to_owned()
            }
            Cause::Aborted if !self.reason.is_empty() => format!("{}: {}", self.cause, self.reason),
            cause => cause.to_string(),
        }
    }
}

/// The exit code by which a shell would know this status; 1 if it is not known.
pub(super) fn exit_code(status: Option<ExitStatus>) -> u8 {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => (code & 0xff) as u8,
        Some((None, Some(signal))) => 128u8.saturating_add((signal & 0x7f) as u8),
        _ => 1,
    }
}

pub(super) fn status_text(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal(), status.core_dumped())) {
        Some((Some(code), ..)) => format!("exit code {code}"),
        Some((None, Some(signal), false)) => format!("killed by {}", signal_name(signal)),
        Some((None, Some(signal), true)) => {
            format!("killed by {}, core dumped", signal_name(signal))
        }
        _ => "exit status unknown".to_owned(),
    }
}

pub(super) fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

/// `rank 3`, `ranks 0, 2-5`.
pub(super) struct Ranks<'a>(pub(super) &'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        let mut rest = self.0;
        let mut separator = " ";
        while let Some(&first) = rest.first() {
            let run = rest
                .iter()
                .zip(first..)
                .take_while(|(rank, next)| **rank == *next)
                .count();
            match run {
                1 => write!(f, "{separator}{first}")?,
                2 => write!(f, "{separator}{first}, {}", first + 1)?,
                _ => write!(f, "{separator}{first}-{}", first + run - 1)?,
            }
            separator = ", ";
            rest = &rest[run..];
        }
        Ok(())
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, raw: i32, how: How) -> RankEnd {
        let pid = 21326 + rank as u32;
        RankEnd {
            rank,
            pid,
            status: Some(ExitStatus::from_raw(raw)),
            how,
        }
    }

    fn culprit(cause: Cause, status: Option<i32>) -> Culprit {
        Culprit {
            rank: 1,
            pid: 21327,
            cause,
            reason: String::new(),
            status: status.map(ExitStatus::from_raw),
            after: Duration::from_millis(540),
            stderr_tail: Vec::new(),
        }
    }

    #[test]
    fn a_failed_run_is_reported_on_one_screen() {
        let mut culprit = culprit(Cause::Died, Some(3 << 8));
        culprit.stderr_tail = vec!["loading".to_owned(), "no such file".to_owned()];
        let outcome = Outcome {
            code: 3,
            culprit: Some(culprit),
            ranks: vec![
                end(0, 15, How::StoppedByUs),
                end(1, 3 << 8, How::Failed),
                end(2, 15, How::StoppedByUs),
                end(3, 1 << 8, How::FailedBecauseOfAnother),
            ],
            stopped_by: None,
            restarts: 2,
            max_restarts: 2,
            elapsed: Duration::from_secs(1),
        };
        let expected = "\
rank 1 (pid 21327) failed first: exit code 3 after 0.5 s
  the last lines of its stderr:
  | loading
  | no such file
  ranks 0, 2 stopped by us (killed by SIGTERM); rank 3 failed after rank 1 (exit code 1)
  2 of 2 restarts used
  exit code 3";
        assert_eq!(outcome.report(), expected);
    }

    #[test]
    fn the_cause_is_said_where_the_status_does_not_tell() {
        let text = |cause, status| culprit(cause, status).to_string();
        let first = "rank 1 (pid 21327) failed first: ";
        assert_eq!(
            text(Cause::Died, Some(9)),
            format!("{first}killed by SIGKILL after 0.5 s")
        );
        assert_eq!(
            text(Cause::NeverJoined, Some(0)),
            format!("{first}exit code 0 after 0.5 s; it ended without joining")
        );
        assert_eq!(
            text(Cause::Died, Some(0)),
            format!("{first}exit code 0 after 0.5 s; it had not left the run")
        );
        let stopped = text(Cause::TimedOut, None);
        assert!(stopped.contains(
            "it did not go on within the deadline (seen after 0.5 s); its process did not end"
        ));
    }

    #[test]
    fn an_abort_says_its_reason() {
        let mut culprit = culprit(Cause::Aborted, Some(1 << 8));
        culprit.reason = "loss is nan".to_owned();
        assert!(
            culprit
                .to_string()
                .ends_with("; it aborted the run: loss is nan")
        );
    }

    #[test]
    fn a_status_has_the_code_that_a_shell_would_give_it() {
        let code = |raw| exit_code(Some(ExitStatus::from_raw(raw)));
        assert_eq!(code(3 << 8), 3);
        assert_eq!(code(0), 0);
        assert_eq!(code(11 | 0x80), 139);
        assert_eq!(code(40), 168);
        assert_eq!(exit_code(None), 1);
    }

    #[test]
    fn ranks_are_listed_in_short() {
        assert_eq!(Ranks(&[3]).to_string(), "rank 3");
        assert_eq!(Ranks(&[0, 2]).to_string(), "ranks 0, 2");
        assert_eq!(
            Ranks(&[0, 1, 3, 4, 5, 6, 9]).to_string(),
            "ranks 0, 1, 3-6, 9"
        );
    }
}
