//! Processes that a server started, wherever they moved.
//!
//! A process that leaves its group (`setsid`, a daemon) survives when the group is killed. On Linux a server adopts such
//! processes when their own parent ends (`mcprl_base::child`), so while it runs, everything that it started is below it. They
//! are listed before the server is told to end, and killed once it has ended.
//!
//! Not found: what left the group of a server that ended by itself, and any process if mcprl itself is killed before it
//! could end its servers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

/// How often the list is read again, because a process may start another before it is killed.
const ROUNDS: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// The processes below one process, as of the last [`mark`](Self::mark).
#[derive(Clone)]
pub(super) struct Descendants {
    root: Option<i32>,
    found: Arc<Mutex<BTreeSet<Process>>>,
}

/// A process; its number alone may be given to another one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    id: i32,
    /// When it started, in ticks since boot.
    started: u64,
}

impl Descendants {
    pub(super) fn of(root: Option<u32>) -> Self {
        Self { root: root.and_then(|root| root.try_into().ok()), found: Arc::default() }
    }

    /// Lists what is below the process now.
    pub(super) fn mark(&self) {
        let Some(root) = self.root else { return };
        let found = below(&running(), [root].into());
        self.found.lock().extend(found);
    }

    /// Bytes of memory of the process and what is below it now. Pages that several processes share count in part.
    pub(super) fn memory(&self) -> Option<usize> {
        let root = self.root?;
        let below = below(&running(), [root].into());
        let others: usize = below.iter().filter_map(|process| memory(process.id)).sum();
        Some(memory(root)? + others)
    }

    /// Kills what was listed, and what it has started since.
    pub(super) async fn kill(&self) {
        let listed = std::mem::take(&mut *self.found.lock());
        for _ in 0..ROUNDS {
            let running = running();
            let is_alive = |listed: &Process| running.get(&listed.id).is_some_and(|(_, now)| now == listed);
            let mut alive: BTreeSet<Process> = listed.iter().copied().filter(is_alive).collect();
            alive.extend(below(&running, alive.iter().map(|process| process.id).collect()));
            if alive.is_empty() {
                return;
            }
            alive.iter().for_each(|process| kill(*process));
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The running processes by number, each with its parent's number.
type Running = BTreeMap<i32, (i32, Process)>;

fn below(running: &Running, mut parents: BTreeSet<i32>) -> BTreeSet<Process> {
    let mut found = BTreeSet::new();
    while !parents.is_empty() {
        let children = running.values().filter(|(parent, _)| parents.contains(parent));
        let new: Vec<Process> =
            children.map(|(_, process)| *process).filter(|process| !found.contains(process)).collect();
        parents = new.iter().map(|process| process.id).collect();
        found.extend(new);
    }
    found
}

#[cfg(target_os = "linux")]
fn running() -> Running {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, read(id)?))).collect()
}

/// The process with its parent's number; `None` if it has ended.
#[cfg(target_os = "linux")]
fn read(id: i32) -> Option<(i32, Process)> {
    let stat = mcprl_base::child::stat(id).filter(|stat| !stat.has_exited)?;
    Some((stat.parent, Process { id, started: stat.started }))
}

/// The proportional set size of a process, in bytes.
#[cfg(target_os = "linux")]
fn memory(id: i32) -> Option<usize> {
    let rollup = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}

#[cfg(target_os = "linux")]
fn kill(process: Process) {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let handle = Pid::from_raw(process.id).and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
    // The handle keeps the number from being given to another process after this check.
    if let Some(handle) = handle
        && read(process.id).is_some_and(|(_, now)| now == process)
    {
        // Fails only if it has just ended.
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
}

#[cfg(not(target_os = "linux"))]
fn running() -> Running {
    Running::new()
}

#[cfg(not(target_os = "linux"))]
fn memory(_: i32) -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
fn kill(_: Process) {}
