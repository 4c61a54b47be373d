//! Where a running run is asked for another number of replicas, and what has come of it.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::builder::Launch;
use super::control::{Client, Control, Request, Word};
use super::output::Output;
use super::plan::{Plan, Replicas};
use super::world::World;
use crate::replica::Flags;
use crate::shm::layout::MAX_WORLD_SIZE;

/// How often it is looked whether all replicas of a resized run have begun.
const TRIAL: Duration = Duration::from_millis(20);

/// The one who answers whoever wants the run to have another size.
#[derive(Debug)]
pub(super) struct Desk {
    /// `None` where the system has no such sockets: the run cannot be resized then.
    control: Option<Control>,
    timeout: Duration,
    has_checkpoints: bool,
    ring_capacity: usize,
    cells: usize,
    state: State,
}

/// What has become of a resize.
#[derive(Debug)]
enum State {
    /// There is none.
    Idle,
    /// The replicas have been asked. Taken back at `until`, unless they agree.
    Asked {
        to: usize,
        until: Option<Instant>,
        client: Client,
    },
    /// They were asked, and then asked no more; they may have agreed in that very moment.
    TakenBack { to: usize },
    /// They have agreed, and a new generation is to show that it can run.
    Trial { to: usize, client: Option<Client> },
}

impl Desk {
    /// Opens the socket. Where that fails, the run goes on without, and says so if it could have been resized.
    pub(super) fn open(launch: &Launch, plan: &mut Plan) -> Desk {
        let control = match Control::open() {
            Ok(control) => Some(control),
            Err(error) => {
                if launch.directory().is_some() {
                    plan.say(format!("this run cannot be resized: its socket: {error}"));
                }
                None
            }
        };
        Desk {
            control,
            timeout: launch.resize_timeout,
            has_checkpoints: launch.directory().is_some(),
            ring_capacity: launch.ring_capacity,
            cells: launch.cells,
            state: State::Idle,
        }
    }

    /// What `poll` can wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.control.iter().flat_map(Control::fds)
    }

    /// When [`serve`](Self::serve) should be called at the latest.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let own = match self.state {
            State::Asked { until, .. } => until,
            State::Trial { .. } => Some(now + TRIAL),
            State::Idle | State::TakenBack { .. } => None,
        };
        let callers = self.control.as_ref().and_then(Control::due);
        own.into_iter().chain(callers).min()
    }

    /// Hears who has something to ask, and takes back what was not agreed in time. `busy`: why the run cannot be resized
    /// now, if so.
    pub(super) fn serve(&mut self, world: &World, output: &Output, busy: Option<&str>) {
        let requests = match &mut self.control {
            Some(control) => control.requests(),
            None => Vec::new(),
        };
        for Request { replicas, client } in requests {
            match self.judge(replicas, world, busy) {
                Ok(to) if to == world.size() => {
                    let text = format!("the run has {} already", Replicas(to));
                    client.tell(Word::Done, &text);
                }
                Ok(to) => {
                    let from = world.size();
                    output.say(&format!(
                        "a resize from {from} to {} is asked for",
                        Replicas(to)
                    ));
                    client.tell(
                        Word::Note,
                        &format!(
                            "the run is asked to go on with {} instead of {from}; it stops at its next checkpoint point",
                            Replicas(to)
                        ),
                    );
                    world.ask(Flags::RESIZE);
                    let until = Instant::now().checked_add(self.timeout);
                    self.state = State::Asked { to, until, client };
                }
                Err(why) => client.tell(Word::Refused, &why),
            }
        }
        let now = Instant::now();
        if let State::Asked { to, until, client } = &mut self.state
            && until.is_some_and(|until| now >= until)
        {
            if world.agreed().contains(Flags::RESIZE) {
                *until = None;
                return;
            }
            world.ask_no_more(Flags::RESIZE);
            let seconds = self.timeout.as_secs_f64();
            let line = format!(
                "the resize to {} was not agreed on within {seconds} s and is taken back",
                Replicas(*to)
            );
            output.say(&line);
            client.tell(Word::Failed, &line);
            self.state = State::TakenBack { to: *to };
        }
    }

    /// The new size, or why there is none.
    fn judge(&self, replicas: u64, world: &World, busy: Option<&str>) -> Result<usize, String> {
        let to = match usize::try_from(replicas) {
            Ok(to @ 1..=MAX_WORLD_SIZE) => to,
            _ => {
                return Err(format!(
                    "{replicas} replicas cannot run: the number must be 1 to {MAX_WORLD_SIZE}"
                ));
            }
        };
        if let State::Asked { to, .. } | State::Trial { to, .. } = self.state {
            return Err(format!(
                "the run is being resized to {} already",
                Replicas(to)
            ));
        }
        if let Some(busy) = busy {
            return Err(busy.to_owned());
        }
        if !self.has_checkpoints {
            return Err(
                "the run has no checkpoint directory (gradring run --checkpoint-dir DIR): it would begin from scratch"
                    .to_owned(),
            );
        }
        world.room_for(to, self.ring_capacity, self.cells)?;
        Ok(to)
    }

    /// The size that the run is to have, if the replicas have agreed on a resize.
    pub(super) fn target(&self) -> Option<usize> {
        match self.state {
            State::Asked { to, .. } | State::TakenBack { to } => Some(to),
            State::Idle | State::Trial { .. } => None,
        }
    }

    /// The replicas have agreed, checkpointed and ended.
    pub(super) fn was_agreed(&mut self, line: &str) {
        self.state = match std::mem::replace(&mut self.state, State::Idle) {
            State::Asked { to, client, .. } => {
                client.tell(Word::Note, line);
                let client = Some(client);
                State::Trial { to, client }
            }
            State::TakenBack { to } => State::Trial { to, client: None },
            other => other,
        };
    }

    /// All replicas of the present generation have entered their first operation.
    pub(super) fn has_begun(&mut self, output: &Output) {
        if let State::Trial { to, client } = &self.state {
            let line = format!("the run has {} now", Replicas(*to));
            output.say(&line);
            if let Some(client) = client {
                client.tell(Word::Done, &line);
            }
            self.state = State::Idle;
        }
    }

    /// Every replica has ended well.
    pub(super) fn done(&mut self) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Asked { client, .. } => client.tell(
                Word::Failed,
                "the run came to its end before the replicas had agreed",
            ),
            State::Trial {
                to,
                client: Some(client),
            } => {
                let line = format!("the run has come to its end with {}", Replicas(to));
                client.tell(Word::Done, &line);
            }
            State::Idle | State::TakenBack { .. } | State::Trial { client: None, .. } => {}
        }
    }

    /// Nothing comes of a resize in hand.
    pub(super) fn failed(&mut self, why: &str) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Asked { client, .. }
            | State::Trial {
                client: Some(client),
                ..
            } => client.tell(Word::Failed, why),
            State::Idle | State::TakenBack { .. } | State::Trial { client: None, .. } => {}
        }
    }
}
