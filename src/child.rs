//! Programs we start, and their certain end.
//!
//! A child leads a process group of its own, and the group is killed when it is no longer wanted: nothing a program
//! started in its group outlives it. On Linux the child dies with this process even where that is killed itself (by the
//! parent-death signal; what the child has started by then does not, unless it notices).

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

/// Starts a program as the leader of a group. Its input is what the command says, its outputs are piped.
pub async fn spawn(mut command: Command) -> io::Result<(Child, Group)> {
    command.kill_on_drop(true).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = spawn_from_lasting_thread(command).await?;
    let group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    Ok((child, group))
}

/// A child's process group. Killed when dropped.
pub struct Group(Option<Pid>);

impl Group {
    /// Asks every process of the group to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // No such group is the usual answer: all of it has ended.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Has the memory of this process in small pages, and leaves that of its children as it was.
///
/// A block of memory that is taken in pages of 2 MiB counts up to the next one: an update of Qwen3-0.6B took 125 MiB more
/// with them, and as long.
#[cfg(target_os = "linux")]
pub fn use_small_pages() {
    use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};
    // A kernel that knows no large pages needs nothing.
    if transparent_huge_pages_are_disabled().is_ok_and(|disabled| !disabled)
        && disable_transparent_huge_pages(true).is_ok()
    {
        HUGE_PAGES_TAKEN_AWAY.store(true, Ordering::Relaxed);
    }
}

#[cfg(not(target_os = "linux"))]
pub fn use_small_pages() {}

#[cfg(target_os = "linux")]
static HUGE_PAGES_TAKEN_AWAY: AtomicBool = AtomicBool::new(false);

/// Asks the kernel to kill the child when the thread that spawned it ends, and to give it the pages we had.
#[cfg(target_os = "linux")]
fn die_with_us(command: &mut Command) {
    let ask = || {
        if HUGE_PAGES_TAKEN_AWAY.load(Ordering::Relaxed) {
            rustix::thread::disable_transparent_huge_pages(false)?;
        }
        Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
    };
    #[expect(
        unsafe_code,
        reason = "the only way to have something done in the child before it becomes the program"
    )]
    // SAFETY: runs between fork and exec, and makes two system calls that neither allocate nor lock.
    unsafe {
        command.pre_exec(ask);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_us(_: &mut Command) {}

struct Spawn {
    command: Command,
    runtime: Handle,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// Spawns on a thread that ends with this process: the parent-death signal comes when the *thread* that spawned
/// ends, and a worker of the runtime may do that long before.
async fn spawn_from_lasting_thread(mut command: Command) -> io::Result<Child> {
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
    die_with_us(&mut command);
    let (reply, answer) = oneshot::channel();
    let gone = || io::Error::other("the thread that starts programs is gone");
    spawner.send(Spawn { command, runtime: Handle::current(), reply }).map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}
