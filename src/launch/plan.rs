//! Which generation comes next, and why.

use std::fmt::Display;
use std::path::PathBuf;

use super::builder::Launch;

/// What a run has come to, over its generations, and what it may still do.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many replicas the present generation has, or the one that begins next.
    pub(super) replicas: usize,
    /// How many generations there have been before it.
    pub(super) number: u32,
    /// How often a failure was followed by a new generation.
    pub(super) restarts: usize,
    pub(super) max_restarts: usize,
    on_restart: Option<usize>,
    /// Where the replicas keep their checkpoints.
    directory: Option<PathBuf>,
    trial: Option<Trial>,
    /// What is to be said as soon as there is somebody to say it.
    unsaid: Vec<String>,
}

/// A generation has another size than the one before, and has not shown yet that it can run.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// How many replicas ran before.
    from: usize,
    /// Until when this is a trial.
    until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// All processes are there.
    Started,
    /// All have entered their first operation.
    Begun,
}

impl Plan {
    pub(super) fn new(launch: &Launch) -> Plan {
        Plan {
            replicas: launch.replicas,
            number: 0,
            restarts: 0,
            max_restarts: launch.max_restarts,
            on_restart: launch.resize_on_restart,
            directory: launch.directory(),
            trial: None,
            unsaid: Vec::new(),
        }
    }

    /// After a failure: the next generation, if one is allowed; the line that tells of both.
    pub(super) fn restart(&mut self, why: &dyn Display) -> Option<String> {
        if self.restarts >= self.max_restarts {
            return None;
        }
        self.restarts += 1;
        self.number = self.number.saturating_add(1);
        let from = self.replicas;
        self.replicas = self.on_restart.unwrap_or(from);
        self.trial = (self.replicas != from).then_some(Trial {
            from,
            until: Until::Started,
        });
        let source = match &self.directory {
            Some(directory) => format!(
                "from the newest checkpoint in {}, if there is one",
                directory.display()
            ),
            None => "from scratch, as there is no checkpoint directory".to_owned(),
        };
        Some(format!(
            "{why}; restart {} of {} begins, with {}, {source}",
            self.restarts,
            self.max_restarts,
            Replicas(self.replicas),
        ))
    }

    /// The replicas have agreed to go on as `to`; the line that says so.
    pub(super) fn resize(&mut self, to: usize) -> String {
        let from = self.replicas;
        self.number = self.number.saturating_add(1);
        self.replicas = to;
        self.trial = Some(Trial {
            from,
            until: Until::Begun,
        });
        format!(
            "{} have stopped by agreement; the run goes on with {to}",
            Replicas(from)
        )
    }

    /// The present generation's processes have all been started.
    pub(super) fn has_started(&mut self) {
        self.trial = self.trial.filter(|trial| trial.until == Until::Begun);
    }

    /// Every replica of the present generation has entered its first operation.
    pub(super) fn has_begun(&mut self) {
        self.trial = None;
    }

    /// Whether it is still open if the run can go on with the size to which it was resized.
    pub(super) fn on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// The present generation did not come up because of its new size, as far as can be known: back to the size before.
    /// The line that says so; `None` if the size is not new.
    pub(super) fn go_back(&mut self, why: &dyn Display) -> Option<String> {
        let trial = self.trial.take()?;
        let to = self.replicas;
        self.replicas = trial.from;
        let from = match self.directory {
            Some(_) => " from the same checkpoint",
            None => "",
        };
        Some(format!(
            "the run does not go on with {} ({why}): back to {}{from}",
            Replicas(to),
            trial.from
        ))
    }

    /// A generation of its own ends with a step back.
    pub(super) fn next_number(&mut self) {
        self.number = self.number.saturating_add(1);
    }

    /// Keeps a line until there is an output.
    pub(super) fn say(&mut self, line: String) {
        self.unsaid.push(line);
    }

    pub(super) fn unsaid(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unsaid)
    }
}

/// `1 replica`, `2 replicas`.
pub(super) struct Replicas(pub(super) usize);

impl Display for Replicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} replica{plural}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(max_restarts: usize, on_restart: Option<usize>) -> Plan {
        let mut launch = Launch::new("true").replicas(2).max_restarts(max_restarts);
        launch.resize_on_restart = on_restart;
        Plan::new(&launch.checkpoint_directory("d"))
    }

    #[test]
    fn restarts_are_counted_and_come_to_an_end() {
        let mut plan = plan(2, None);
        let line = plan.restart(&"rank 1 failed").unwrap();
        let expected = "rank 1 failed; restart 1 of 2 begins, with 2 replicas, from the newest checkpoint in d, if there is one";
        assert_eq!(line, expected);
        assert!(plan.restart(&"again").is_some());
        assert!(plan.restart(&"and again").is_none());
        assert_eq!((plan.restarts, plan.number, plan.replicas), (2, 2, 2));
    }

    #[test]
    fn a_resize_uses_up_no_restart_and_can_be_taken_back_until_all_have_begun() {
        let mut plan = plan(1, None);
        plan.resize(4);
        plan.has_started();
        assert!(plan.on_trial());
        assert_eq!((plan.replicas, plan.number), (4, 1));
        let line = plan.go_back(&"rank 3 failed").unwrap();
        let expected = "the run does not go on with 4 replicas (rank 3 failed): back to 2 from the same checkpoint";
        assert_eq!(line, expected);
        assert_eq!((plan.replicas, plan.restarts), (2, 0));
        assert!(plan.go_back(&"twice").is_none());
        plan.resize(1);
        plan.has_begun();
        assert!(plan.go_back(&"too late").is_none());
        assert_eq!(plan.replicas, 1);
    }

    #[test]
    fn a_restart_with_another_size_goes_back_only_if_it_cannot_be_started() {
        let mut plan = plan(2, Some(3));
        assert!(plan.restart(&"x").unwrap().contains("with 3 replicas"));
        assert!(plan.on_trial());
        assert!(plan.go_back(&"no room").is_some());
        assert_eq!(plan.replicas, 2);
        assert!(plan.restart(&"x").is_some());
        plan.has_started();
        assert!(!plan.on_trial());
        assert_eq!(plan.replicas, 3);
    }
}
