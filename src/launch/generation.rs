//! One generation of a run's processes: its segment, its pipes, its replicas.

use std::io;
use std::time::{Duration, Instant};

use super::builder::Launch;
use super::error::LaunchError;
use super::event::Event;
use super::output::Output;
use super::plan::Plan;
use super::process::{Process, Processes};
use super::spawn::{self, Lifeline, Recipe};
use super::stopper::Stopper;
use super::world::World;

/// A generation whose replicas have all been started. Dropped, nothing of it is left.
pub(super) struct Generation<'a> {
    pub(super) processes: Processes,
    pub(super) output: Output,
    pub(super) world: World,
    /// Held until the last rank has ended.
    pub(super) lifeline: Option<Lifeline>,
    pub(super) stopper: &'a Stopper,
    pub(super) stopped: &'a Event,
    pub(super) grace: Duration,
    /// When the run began.
    pub(super) run_began: Instant,
    /// When this generation began.
    pub(super) began: Instant,
}

impl<'a> Generation<'a> {
    /// Starts the replicas that the plan names. An error leaves none.
    pub(super) fn start(
        launch: &'a Launch,
        plan: &Plan,
        stopped: &'a Event,
        run_began: Instant,
    ) -> Result<Generation<'a>, LaunchError> {
        let began = Instant::now();
        let world = World::create(plan.replicas, launch.ring_capacity, launch.cells)?;
        let os = |call| move |source| LaunchError::Os { call, source };
        let (lifeline, lifeline_end) = spawn::lifeline().map_err(os("pipe"))?;
        let recipe = Recipe {
            program: &launch.program,
            args: &launch.args,
            env: &launch.env,
            segment: world.name().to_owned(),
            world_size: plan.replicas,
            restart: plan.number,
            lifeline: lifeline_end,
        };
        // From here on an early return kills those that run.
        let mut processes = Processes::new();
        let mut pipes = Vec::with_capacity(plan.replicas);
        for rank in 0..plan.replicas {
            let spawned =
                spawn::spawn(&recipe, rank).map_err(|error| spawn_error(&recipe, rank, error))?;
            processes
                .list
                .push(Process::new(spawned.pid, launch.pidfds));
            pipes.push((spawned.stdout, spawned.stderr));
        }
        // This process's copy of the replicas' end is not needed any more.
        drop(recipe);
        let output =
            Output::start(pipes, launch.prefix).map_err(os("starting the output threads"))?;
        Ok(Generation {
            processes,
            output,
            world,
            lifeline: Some(lifeline),
            stopper: &launch.stopper,
            stopped,
            grace: launch.grace,
            run_began,
            began,
        })
    }
}

/// What a failed start means to somebody who typed the program's name.
fn spawn_error(recipe: &Recipe<'_>, rank: usize, source: io::Error) -> LaunchError {
    let given = recipe.env.iter().rev().find(|(key, _)| key == "PATH");
    let path = given
        .map(|(_, value)| value.clone())
        .or_else(|| std::env::var_os("PATH"));
    let found = spawn::find(recipe.program, path.as_deref());
    let why = match source.raw_os_error() {
        Some(libc::ENOENT) if found.is_some() => {
            "its interpreter or loader is not there".to_owned()
        }
        Some(libc::ENOENT) => {
            return LaunchError::NotFound {
                program: recipe.program.to_owned(),
            };
        }
        Some(libc::EACCES) if found.as_ref().is_some_and(|found| found.is_dir()) => {
            "it is a directory".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => "no permission".to_owned(),
        Some(libc::ENOEXEC) => "it is no program for this machine".to_owned(),
        Some(libc::ETXTBSY | libc::ENOTDIR | libc::ELIBBAD | libc::EISDIR) => plain(&source),
        _ => return LaunchError::Spawn { rank, source },
    };
    let program = found.unwrap_or_else(|| recipe.program.to_owned().into());
    LaunchError::NotExecutable { program, why }
}

/// The system's words without the number behind them.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}
