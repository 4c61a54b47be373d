//! Starting one replica's process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::replica::{LIFELINE, RANK, RESTART, SEGMENT, WORLD_SIZE};

/// What every replica is started from.
#[derive(Debug)]
pub(super) struct Recipe<'a> {
    pub(super) program: &'a OsStr,
    pub(super) args: &'a [OsString],
    /// For all ranks alike.
    pub(super) env: &'a [(OsString, OsString)],
    /// The segment's name.
    pub(super) segment: String,
    pub(super) world_size: usize,
    /// How many generations there have been before.
    pub(super) restart: u32,
    pub(super) lifeline: LifelineEnd,
}

/// A child that runs, and the ends of its pipes.
pub(super) struct Spawned {
    pub(super) pid: u32,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Starts `rank`. An error of `exec` is this call's error.
///
/// The calling thread must live as long as the child: the kernel kills the child when *this thread* ends.
pub(super) fn spawn(recipe: &Recipe<'_>, rank: usize) -> io::Result<Spawned> {
    let launcher = std::process::id() as libc::pid_t;
    let lifeline = recipe.lifeline.0.as_raw_fd();
    let mut command = Command::new(recipe.program);
    command
        .args(recipe.args)
        .envs(recipe.env.iter().map(|(key, value)| (key, value)))
        .env(SEGMENT, &recipe.segment)
        .env(RANK, rank.to_string())
        .env(WORLD_SIZE, recipe.world_size.to_string())
        .env(RESTART, recipe.restart.to_string())
        .env(LIFELINE, lifeline.to_string())
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("WORLD_SIZE", recipe.world_size.to_string())
        .env("LOCAL_WORLD_SIZE", recipe.world_size.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: `prepare` makes only async-signal-safe system calls, and touches no memory but its own stack.
    unsafe { command.pre_exec(move || prepare(launcher, lifeline)) };
    let mut child = command.spawn()?;
    match (child.stdout.take(), child.stderr.take()) {
        (Some(stdout), Some(stderr)) => Ok(Spawned {
            pid: child.id(),
            stdout: stdout.into(),
            stderr: stderr.into(),
        }),
        _ => Err(io::Error::other("the child has no pipes")),
    }
}

/// In the child, before exec.
fn prepare(launcher: libc::pid_t, lifeline: RawFd) -> io::Result<()> {
    // SAFETY: plain system calls; the only pointers are to locals.
    unsafe {
        // Handlers vanish at exec by themselves, but an ignored signal would stay ignored, and a forwarded one useless.
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        // Its own session: a terminal's Ctrl-C reaches the launcher alone, and the group is the rank with all it starts.
        if libc::setsid() < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // It may have died before the kernel knew that we want to follow.
        if libc::getppid() != launcher {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // Only in this child, so that nothing else that the launcher's process starts inherits it.
        if libc::fcntl(lifeline, libc::F_SETFD, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The end of the lifeline that the replicas inherit: it hangs up when the launcher is gone.
#[derive(Debug)]
pub(super) struct LifelineEnd(OwnedFd);

/// The end that only the launcher holds.
#[derive(Debug)]
pub(super) struct Lifeline(#[expect(dead_code, reason = "held, never written to")] io::PipeWriter);

/// A new lifeline; both ends are close-on-exec.
pub(super) fn lifeline() -> io::Result<(Lifeline, LifelineEnd)> {
    let (reader, writer) = io::pipe()?;
    // Above the standard descriptors, whose numbers are replaced in the child.
    // SAFETY: fcntl takes no pointers here.
    let fd = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, and nobody else has it.
    Ok((
        Lifeline(writer),
        LifelineEnd(unsafe { OwnedFd::from_raw_fd(fd) }),
    ))
}

/// Where `exec` finds `program`, if anywhere: as it stands if it has a slash, else in the directories of `path`.
pub(super) fn find(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        let program = Path::new(program);
        return program.exists().then(|| program.to_owned());
    }
    if program.is_empty() {
        return None;
    }
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    std::env::split_paths(path)
        .map(|folder| folder.join(program))
        .find(|found| found.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_exec_finds_it() {
        let path = OsStr::new("/nowhere:/bin");
        assert_eq!(
            find(OsStr::new("sh"), Some(path)),
            Some(PathBuf::from("/bin/sh"))
        );
        assert_eq!(
            find(OsStr::new("/bin/sh"), None),
            Some(PathBuf::from("/bin/sh"))
        );
        assert_eq!(find(OsStr::new("no-such-program"), Some(path)), None);
        assert_eq!(find(OsStr::new("./sh"), Some(path)), None);
        assert_eq!(find(OsStr::new(""), Some(path)), None);
    }
}
