//! The command line.

use std::ffi::OsString;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use gradring::launch::{self, Launch, Stopper};

/// Data-parallel training on one node: starts the replicas of a program and watches over them.
#[derive(Debug, Parser)]
#[command(name = "gradring", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start N replicas of a program and wait for them.
    ///
    /// Every replica gets its number in RANK, and joins the others by itself if it calls gradring's Replica::join(). A
    /// program that does not join just runs N times. What the replicas write comes out line by line, with [rank] in front;
    /// their standard input is empty.
    ///
    /// If a replica fails, the others are stopped, a report says which one failed first and why, and the exit code is that
    /// replica's (128 + n if signal n killed it). Ctrl-C stops all replicas and gives them the grace time, in which those
    /// that keep checkpoints agree, finish the step and make one; a second Ctrl-C kills them at once.
    #[command(
        after_help = "Examples:\n  gradring run -n 2 ./trainer --epochs 20\n  \
                      gradring run -n 4 --grace 5 -- python3 train.py\n  \
                      gradring run -n 4 --checkpoint-dir checkpoints --checkpoint-every 600 --max-restarts 3 ./trainer"
    )]
    Run(Run),
    /// Let a running run go on with N replicas.
    ///
    /// Its replicas agree, make a checkpoint and end, and N replicas resume from it. If these do not all come to their
    /// first operation, the run goes on as before. This command waits until it is known what has come of it; to interrupt
    /// it takes nothing back.
    Resize(Resize),
    /// Look at the checkpoints of a run.
    #[command(subcommand)]
    Checkpoint(Checkpoint),
}

#[derive(Debug, Subcommand)]
enum Checkpoint {
    /// Print what is there: states, sizes, ages, damages, and from which one a run would go on.
    Show {
        /// The directory of the checkpoints, or one of them.
        path: PathBuf,
    },
    /// Read everything and name what is damaged. The exit code is 1 if anything is, or if there is no checkpoint.
    Verify {
        /// The directory of the checkpoints, or one of them.
        path: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// How many replicas to start, 1 to 255.
    #[arg(short = 'n', long = "replicas", value_name = "N")]
    replicas: usize,
    /// How many seconds a replica that is asked to stop may take before it is killed.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", allow_negative_numbers = true)]
    grace: Duration,
    /// Size of each replica's ring in shared memory, a power of two; K, M and G are understood.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1M")]
    ring: usize,
    /// How many seconds a replica waits for another one that makes no progress before that is an error [default: 600].
    #[arg(long, value_name = "SECONDS", value_parser = seconds_above_0, allow_negative_numbers = true)]
    deadline: Option<Duration>,
    /// Where the replicas keep their checkpoints.
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// After how many seconds a checkpoint is due, in replicas that have a directory for it.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_above_0, allow_negative_numbers = true)]
    checkpoint_every: Option<Duration>,
    /// How many checkpoints are kept, at least 1 [default: 2].
    #[arg(long, value_name = "K")]
    checkpoint_keep: Option<NonZeroUsize>,
    /// How many cells each replica has in shared memory for its metrics [default: 256].
    #[arg(long, value_name = "N")]
    metrics: Option<usize>,
    /// How often the run is started again after a failure, from the newest checkpoint.
    #[arg(long, value_name = "K", default_value_t = 0)]
    max_restarts: usize,
    /// How many replicas a restarted run has [default: as many as before].
    #[arg(long, value_name = "N", requires = "max_restarts")]
    resize: Option<usize>,
    /// How many seconds the replicas may take to agree on a resize before it is taken back.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_above_0, default_value = "600", allow_negative_numbers = true)]
    resize_timeout: Duration,
    /// Pass the replicas' lines on without [rank] in front.
    #[arg(long)]
    no_prefix: bool,
    /// The program, and what it is called with.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
struct Resize {
    /// How many replicas it is to have, 1 to 255.
    #[arg(value_name = "N")]
    replicas: usize,
    /// Its launcher's process id [default: the only run of this user].
    #[arg(value_name = "RUN")]
    run: Option<String>,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match cli.command {
        Command::Run(run) => start(run),
        Command::Resize(resize) => ask(&resize),
        Command::Checkpoint(asked) => checkpoint(&asked),
    }
}

fn start(run: Run) -> ExitCode {
    let mut program = run.program.into_iter();
    let mut launch = Launch::new(program.next().unwrap_or_default())
        .args(program)
        .replicas(run.replicas)
        .grace(run.grace)
        .ring_capacity(run.ring)
        .max_restarts(run.max_restarts)
        .resize_timeout(run.resize_timeout)
        .prefix(!run.no_prefix);
    if let Some(deadline) = run.deadline {
        launch = launch.deadline(deadline);
    }
    if let Some(directory) = run.checkpoint_dir {
        launch = launch.checkpoint_directory(directory);
    }
    if let Some(interval) = run.checkpoint_every {
        launch = launch.checkpoint_every(interval);
    }
    if let Some(checkpoints) = run.checkpoint_keep {
        launch = launch.checkpoint_keep(checkpoints.get());
    }
    if let Some(cells) = run.metrics {
        launch = launch.cells(cells);
    }
    if let Some(replicas) = run.resize {
        launch = launch.resize_on_restart(replicas);
    }
    if let Err(error) = listen(&launch.stopper()) {
        say(&format_args!("signal handlers: {error}"));
        return ExitCode::FAILURE;
    }
    match launch.run() {
        Ok(outcome) => {
            if !outcome.is_success() || outcome.restarts > 0 {
                say(&outcome);
            }
            ExitCode::from(outcome.code)
        }
        Err(error) => {
            say(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn checkpoint(asked: &Checkpoint) -> ExitCode {
    let (Checkpoint::Show { path } | Checkpoint::Verify { path }) = asked;
    let found = match gradring::checkpoint::inspect(path) {
        Ok(found) => found,
        Err(error) => {
            say(&error);
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout();
    // Who closes the pipe has read enough.
    if matches!(asked, Checkpoint::Show { .. }) {
        let _ = writeln!(out, "{found}");
        return ExitCode::SUCCESS;
    }
    for damage in found.damages() {
        let _ = writeln!(out, "{damage}");
    }
    if !found.is_sound() {
        return ExitCode::FAILURE;
    }
    let count = found.checkpoints.len();
    let _ = writeln!(out, "{}: {count} checkpoints, all whole", path.display());
    ExitCode::SUCCESS
}

fn ask(resize: &Resize) -> ExitCode {
    match launch::resize(resize.run.as_deref(), resize.replicas, &mut |line| {
        say(&line)
    }) {
        Ok(line) => {
            say(&line);
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

/// To standard error. Where nobody can be told, the exit code still tells: `eprintln` would panic.
fn say(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "gradring: {what}");
}

/// Help and version as they are, an error in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // Who closes the pipe has read enough.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command given".to_owned(),
        _ => error.to_string(),
    };
    // Up to the empty line behind which usage and hints begin.
    let lines = text
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .map(str::trim);
    let line = lines.collect::<Vec<_>>().join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    say(&format_args!("{line} (see gradring --help)"));
    ExitCode::from(2)
}

/// Lets the signals that end a program stop the run instead.
fn listen(stopper: &Stopper) -> std::io::Result<()> {
    // SAFETY: no handler is installed, the default comes back: with SIGCHLD ignored nobody could be waited for.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    stopper.forward_signals()
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "expected a number of seconds".to_owned())
}

fn seconds_above_0(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("expected a number of seconds above 0".to_owned()),
        seconds => Ok(seconds),
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => Some(1),
        "K" | "KIB" => Some(1 << 10),
        "M" | "MIB" => Some(1 << 20),
        "G" | "GIB" => Some(1 << 30),
        _ => None,
    };
    let number: Option<usize> = digits.parse().ok();
    number
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit))
        .ok_or_else(|| "expected a number of bytes, such as 1048576 or 1M".to_owned())
}
