//! The processes that the launcher has started: seeing their ends, signalling their groups, leaving none behind.
//!
//! Every rank is the leader of its own process group. An end is first only *looked at* (`WNOWAIT`): the zombie keeps the
//! pid, so that a signal to the group can never reach strangers. All ranks are reaped together when the run is over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::event::wait;

/// How often ends are looked for where the kernel cannot tell of them.
pub(super) const POLL: Duration = Duration::from_millis(10);
/// How long a killed process may take before it is given up as one that cannot be killed.
const UNKILLABLE: Duration = Duration::from_secs(10);

/// How long the end waits for what a rank has left behind, which was killed, but is not this process's to wait for.
const LEFTOVERS: Duration = Duration::from_millis(50);

/// One rank's process, from its start to its end.
#[derive(Debug)]
pub(super) struct Process {
    pid: libc::pid_t,
    /// Readable when the process has ended. `None` where the kernel has none, or no descriptor was left.
    pidfd: Option<OwnedFd>,
    started: Instant,
    /// The last signal that the launcher sent, and when.
    pub(super) signalled: Option<(i32, Instant)>,
    pub(super) end: Option<End>,
    /// Killed, and given up: it does not end.
    pub(super) unkillable: bool,
    reaped: bool,
}

/// How and when a process ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// `None`: somebody else in this process has taken it.
    pub(super) status: Option<ExitStatus>,
    pub(super) after: Duration,
    /// The signal that the launcher had sent to it before.
    pub(super) signalled: Option<i32>,
}

impl Process {
    pub(super) fn new(pid: u32, pidfds: bool) -> Process {
        let pid = pid as libc::pid_t;
        let pidfd = if pidfds { pidfd_open(pid).ok() } else { None };
        Process {
            pid,
            pidfd,
            started: Instant::now(),
            signalled: None,
            end: None,
            unkillable: false,
            reaped: false,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Still to be waited for.
    pub(super) fn is_running(&self) -> bool {
        self.end.is_none() && !self.unkillable
    }

    /// What `poll` can wait for.
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Whether it has ended since the last look.
    pub(super) fn look(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let Some(status) = peek_status(self.pid) else {
            return false;
        };
        self.end = Some(End {
            status,
            after: self.started.elapsed(),
            signalled: self.signalled.map(|(signal, _)| signal),
        });
        self.pidfd = None;
        true
    }

    /// Sends `signal` to the whole group of this rank. A stopped process is continued, or it would never see it.
    pub(super) fn signal(&mut self, signal: i32) {
        if self.reaped {
            return;
        }
        self.signalled = Some((signal, Instant::now()));
        // SAFETY: kill takes no pointers. The group is this rank's: its leader is not reaped yet.
        unsafe {
            libc::kill(-self.pid, signal);
            if signal != libc::SIGKILL {
                libc::kill(-self.pid, libc::SIGCONT);
            }
        }
    }

    /// Killed long ago, and still there.
    pub(super) fn give_up_if_unkillable(&mut self, now: Instant) {
        if let (None, Some((libc::SIGKILL, at))) = (self.end, self.signalled) {
            self.unkillable = now.duration_since(at) > UNKILLABLE;
        }
    }

    /// When [`give_up_if_unkillable`](Self::give_up_if_unkillable) should be called.
    pub(super) fn gives_up_at(&self) -> Option<Instant> {
        match (self.end, self.signalled) {
            (None, Some((libc::SIGKILL, at))) => Some(at + UNKILLABLE + POLL),
            _ => None,
        }
    }
}

/// All processes of a run. However it goes away, they go first.
#[derive(Debug)]
pub(super) struct Processes {
    pub(super) list: Vec<Process>,
    /// A forked child of the launcher has a copy of this, and nothing to do with it.
    owner: u32,
    finished: bool,
}

impl Processes {
    pub(super) fn new() -> Processes {
        Processes {
            list: Vec::new(),
            owner: std::process::id(),
            finished: false,
        }
    }

    /// Kills what is left of every group, and reaps the leaders.
    pub(super) fn finish(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        for process in self.list.iter_mut().filter(|process| !process.reaped) {
            // What the leader got as its last signal stays what the report says.
            let signalled = process.signalled;
            process.signal(libc::SIGKILL);
            if process.end.is_some() {
                process.signalled = signalled;
            }
        }
        for process in &mut self.list {
            while process.is_running() && !process.look() {
                let ended = match process.pidfd() {
                    Some(pidfd) => wait(&[pidfd], Some(UNKILLABLE)).map(drop),
                    None => {
                        std::thread::sleep(POLL);
                        Ok(())
                    }
                };
                if ended.is_err() {
                    std::thread::sleep(POLL);
                }
                process.give_up_if_unkillable(Instant::now());
            }
            if process.end.is_some() && !process.reaped {
                reap(process.pid);
                process.reaped = true;
            }
        }
        if !std::mem::replace(&mut self.finished, true) {
            self.wait_for_leftovers();
        }
    }

    /// Until every group is empty, if that is soon: where the first process of a container does not reap, the zombies of a
    /// group stay for ever.
    fn wait_for_leftovers(&self) {
        let until = Instant::now() + LEFTOVERS;
        // SAFETY: kill takes no pointers, and signal 0 is sent to nobody.
        let exists = |pid: libc::pid_t| unsafe { libc::kill(-pid, 0) } == 0;
        while self
            .list
            .iter()
            .any(|process| process.reaped && exists(process.pid))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.finish();
    }
}

fn pidfd_open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes no pointers. Its descriptors are close-on-exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: the call has just made this descriptor, and nobody else has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `None`: has not ended. `Some(None)`: has, but its status is lost.
fn peek_status(pid: libc::pid_t) -> Option<Option<ExitStatus>> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        // SAFETY: all-zero is a value of this plain C struct.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is valid for writes and outlives the call.
        let rc = unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, options) };
        if rc != 0 {
            match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => continue,
                _ => return Some(None),
            }
        }
        // SAFETY: after a successful waitid these fields are set, or zero if nobody has ended.
        let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
        if found == 0 {
            return None;
        }
        let raw = match info.si_code {
            libc::CLD_EXITED => (status & 0xff) << 8,
            libc::CLD_DUMPED => status | 0x80,
            _ => status,
        };
        return Some(Some(ExitStatus::from_raw(raw)));
    }
}

fn reap(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is valid for writes. The process is a zombie, so the call does not block.
    unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[expect(clippy::zombie_processes, reason = "`Processes` reaps it")]
    fn start(script: &str, pidfds: bool) -> Processes {
        let child = Command::new("/bin/sh")
            .args(["-c", script])
            .process_group(0)
            .spawn()
            .unwrap();
        let mut processes = Processes::new();
        processes.list.push(Process::new(child.id(), pidfds));
        processes
    }

    fn ended(processes: &mut Processes) -> End {
        let process = &mut processes.list[0];
        while !process.look() {
            match process.pidfd() {
                Some(pidfd) => drop(wait(&[pidfd], None).unwrap()),
                None => std::thread::yield_now(),
            }
        }
        process.end.unwrap()
    }

    fn exists(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn an_end_is_seen_with_and_without_pidfd() {
        for pidfds in [true, false] {
            let mut processes = start("exit 7", pidfds);
            assert_eq!(processes.list[0].pidfd().is_some(), pidfds);
            assert_eq!(ended(&mut processes).status.unwrap().code(), Some(7));
            let mut processes = start("kill -SEGV $$", pidfds);
            assert_eq!(
                ended(&mut processes).status.unwrap().signal(),
                Some(libc::SIGSEGV)
            );
        }
    }

    #[test]
    fn a_real_time_signal_is_a_status_too() {
        let mut processes = start("kill -40 $$", true);
        assert_eq!(ended(&mut processes).status.unwrap().signal(), Some(40));
    }

    #[test]
    fn dropping_them_leaves_no_process() {
        for pidfds in [true, false] {
            let processes = start("trap '' TERM INT; while :; do sleep 60; done", pidfds);
            let pid = processes.list[0].pid();
            assert!(exists(pid));
            drop(processes);
            assert!(!exists(pid));
        }
    }

    #[test]
    fn a_status_that_somebody_else_took_is_lost_and_nobody_waits_for_it() {
        let mut processes = start("exit 0", true);
        let pid = processes.list[0].pid;
        while peek_status(pid).is_none() {
            std::thread::yield_now();
        }
        reap(pid);
        assert!(ended(&mut processes).status.is_none());
    }
}
