//! Child processes that never outlive this process.
//!
//! A child leads its own process group, and the group is killed when it is no longer needed, with everything the child
//! started in it. On Linux a child also adopts what its children leave behind, so that it can be found while the child runs
//! (`mcp/descendants.rs`), and the parent-death signal ends the child even if this process is killed. That signal does not
//! reach the child's own children.

use std::{
    io,
    process::Stdio,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

/// Starts a program as the leader of a process group. `command` sets its stdin; stdout and stderr are piped.
pub async fn spawn(mut command: Command) -> io::Result<(Child, Group)> {
    command.kill_on_drop(true).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = spawn_on_permanent_thread(command).await?;
    let group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    Ok((child, group))
}

/// A child's process group. Killed when dropped.
pub struct Group(Option<Pid>);

impl Group {
    /// Sends SIGTERM to every process of the group.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // Usually fails because the whole group has already ended.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What `/proc/ID/stat` says of a process.
pub struct Stat {
    /// Its parent has not reaped it yet.
    pub has_exited: bool,
    pub parent: i32,
    pub group: i32,
    /// When it started, in ticks since boot.
    pub started: u64,
}

/// None if there is no such process, or on a system without `/proc`.
pub fn stat(id: i32) -> Option<Stat> {
    let stat = std::fs::read(format!("/proc/{id}/stat")).ok()?;
    // The second field, a name in brackets, may have spaces, brackets and bytes that are no text.
    let stat = String::from_utf8_lossy(&stat);
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Stat {
        has_exited: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// Disables transparent huge pages for this process, but not for its children.
///
/// With 2 MiB pages, each allocation is rounded up: an update of Qwen3-0.6B took 125 MiB more with them, and was not
/// faster.
#[cfg(target_os = "linux")]
pub fn use_small_pages() {
    use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};
    // A kernel without huge pages needs no change.
    if transparent_huge_pages_are_disabled().is_ok_and(|disabled| !disabled)
        && disable_transparent_huge_pages(true).is_ok()
    {
        HUGE_PAGES_DISABLED.store(true, Ordering::Relaxed);
    }
}

#[cfg(not(target_os = "linux"))]
pub fn use_small_pages() {}

#[cfg(target_os = "linux")]
static HUGE_PAGES_DISABLED: AtomicBool = AtomicBool::new(false);

/// Makes the kernel kill the child when the thread that spawned it ends, and re-enables huge pages for the child.
#[cfg(target_os = "linux")]
fn kill_with_parent(command: &mut Command) {
    let setup = || {
        if HUGE_PAGES_DISABLED.load(Ordering::Relaxed) {
            rustix::thread::disable_transparent_huge_pages(false)?;
        }
        // Without it, less is found later.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
    };
    #[expect(unsafe_code, reason = "the only way to run code in the child before exec")]
    // SAFETY: runs between fork and exec, and makes system calls that neither allocate nor lock.
    unsafe {
        command.pre_exec(setup);
    }
}

#[cfg(not(target_os = "linux"))]
fn kill_with_parent(_: &mut Command) {}

struct Spawn {
    command: Command,
    runtime: Handle,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// Spawns on a thread that lives as long as this process. The parent-death signal is sent when the *thread* that spawned
/// the child ends, and a runtime worker may end much earlier.
async fn spawn_on_permanent_thread(mut command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Spawn>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Spawn>();
        std::thread::spawn(move || {
            for Spawn { mut command, runtime, reply } in requests {
                let _runtime = runtime.enter();
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    kill_with_parent(&mut command);
    let (reply, answer) = oneshot::channel();
    let ended = || io::Error::other("the thread that starts programs has ended");
    spawner.send(Spawn { command, runtime: Handle::current(), reply }).map_err(|_| ended())?;
    answer.await.map_err(|_| ended())?
}
