//! Who works on a key now, so that two runs on one store do not do the same stage twice.
//!
//! A lease names its holder by host, boot, process id namespace, process id and the process's start time: a process id
//! alone is reused by another process sooner or later. A holder on this machine is judged by whether that very process
//! lives; one on another machine by its heartbeat, which is the lease file's modification time as this process sees it
//! change, so that clocks need not agree.
//!
//! Reading, judging and replacing a lease happens under a file lock that the kernel drops with the process, so two
//! processes never both take over. Every lease has its own token; one that lost its lease does not publish.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, write};
use crate::hash::Digest;

const HEARTBEAT: Duration = Duration::from_secs(5);
/// A holder elsewhere whose heartbeat stands still this long is taken for dead.
const SILENCE: Duration = Duration::from_secs(60);

/// A process, told apart from every other that ever was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub host: String,
    /// Identity of the machine's present boot; empty where the system has none.
    pub boot: String,
    pub pid_namespace: String,
    pub pid: u32,
    /// Ticks from boot to the start of the process; absent where the system does not tell.
    pub started: Option<u64>,
}

impl Holder {
    /// This process.
    pub fn current() -> Self {
        let line = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        let pid = std::process::id();
        Self {
            host: line("/proc/sys/kernel/hostname")
                .or_else(|_| std::env::var("HOSTNAME"))
                .unwrap_or_else(|_| "localhost".into()),
            boot: line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            pid_namespace: namespace.map(|path| path.display().to_string()).unwrap_or_default(),
            pid,
            started: start_time(pid),
        }
    }

    /// Whether the process lives; absent where this process can not tell.
    fn lives(&self) -> Option<bool> {
        let here = Self::current();
        if self.host != here.host || self.pid_namespace != here.pid_namespace {
            return None;
        }
        if self.boot != here.boot {
            return Some(false);
        }
        match self.started {
            Some(started) => Some(start_time(self.pid) == Some(started)),
            None => {
                let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw)?;
                match rustix::process::test_kill_process(pid) {
                    // Without a start time this could be another process with the same id: the heartbeat decides.
                    Ok(()) => None,
                    Err(_) => Some(false),
                }
            }
        }
    }
}

/// Field 22 of `/proc/<pid>/stat`, counted after the parenthesised name.
fn start_time(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    // A zombie has ended; only its parent has not looked.
    if fields.next() == Some("Z") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[derive(Serialize, Deserialize)]
struct Content {
    token: String,
    stage: String,
    run: String,
    holder: Holder,
}

/// The right to work on a key. Ends when dropped, or with the process.
pub struct Lease {
    path: PathBuf,
    token: String,
    dropped: Arc<AtomicBool>,
}

/// What came of asking for a lease.
pub enum Acquired {
    Mine(Lease),
    /// Another run works on it.
    Taken {
        run: String,
        holder: Holder,
    },
}

impl Store {
    /// Asks once for the right to work on `key`; never waits. `watch` remembers heartbeats between calls.
    pub fn lease(
        &self,
        key: &Digest,
        stage: &str,
        run: &str,
        watch: &mut Watch,
    ) -> Result<Acquired, StoreError> {
        let folder = self.root.join("leases");
        let path = folder.join(format!("{key}.json"));
        let guard = folder.join(".lock");
        let lock = File::create(&guard).map_err(|cause| StoreError::writing(&guard, cause))?;
        lock.lock().map_err(|cause| StoreError::writing(&guard, cause))?;

        if let Some(content) = read(&path)
            && watch.believes(&path, &content)
        {
            return Ok(Acquired::Taken { run: content.run, holder: content.holder });
        }
        let token = token();
        let content =
            Content { token: token.clone(), stage: stage.into(), run: run.into(), holder: Holder::current() };
        let bytes = serde_json::to_vec_pretty(&content)
            .map_err(|cause| StoreError::writing(&path, std::io::Error::other(cause)))?;
        write::replace(self, &path, &bytes)?;
        let lease = Lease { path, token, dropped: Arc::default() };
        lease.beat();
        Ok(Acquired::Mine(lease))
    }
}

/// The heartbeats one waiter has seen.
#[derive(Default)]
pub struct Watch {
    seen: Option<(SystemTime, Instant)>,
}

impl Watch {
    fn believes(&mut self, path: &Path, content: &Content) -> bool {
        if let Some(lives) = content.holder.lives() {
            return lives;
        }
        let Ok(beat) = std::fs::metadata(path).and_then(|metadata| metadata.modified()) else { return false };
        match self.seen {
            Some((last, at)) if last == beat => at.elapsed() < SILENCE,
            _ => {
                self.seen = Some((beat, Instant::now()));
                true
            }
        }
    }
}

impl Lease {
    /// Fails if another process took the lease over.
    pub fn check(&self) -> Result<(), StoreError> {
        match read(&self.path) {
            Some(content) if content.token == self.token => Ok(()),
            _ => Err(StoreError::LeaseLost),
        }
    }

    /// Touches the file until the lease is dropped. A thread, for stages may block the async workers.
    fn beat(&self) {
        let (path, dropped) = (self.path.clone(), self.dropped.clone());
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(HEARTBEAT);
                if dropped.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(file) = File::options().append(true).open(&path) {
                    // A missed beat is made up by the next one.
                    _ = file.set_modified(SystemTime::now());
                }
            }
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
        if self.check().is_ok() {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

fn read(path: &Path) -> Option<Content> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// A text no other lease has.
fn token() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{now}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.prepare().unwrap();
        (folder, store)
    }

    fn ask(store: &Store, key: &Digest) -> Acquired {
        store.lease(key, "stage", "run", &mut Watch::default()).unwrap()
    }

    fn leave_behind(store: &Store, key: &Digest, holder: Holder) {
        let content = Content { token: "old".into(), stage: "s".into(), run: "r".into(), holder };
        let path = store.root().join("leases").join(format!("{key}.json"));
        std::fs::write(path, serde_json::to_vec(&content).unwrap()).unwrap();
    }

    #[test]
    fn a_lease_is_held_until_dropped() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let Acquired::Mine(lease) = ask(&store, &key) else { panic!("free") };
        assert!(matches!(ask(&store, &key), Acquired::Taken { .. }));
        drop(lease);
        assert!(matches!(ask(&store, &key), Acquired::Mine(_)));
    }

    #[test]
    fn a_dead_process_loses_its_lease_even_if_its_id_was_given_away() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let mut holder = Holder::current();
        holder.started = holder.started.map(|ticks| ticks + 1);
        leave_behind(&store, &key, holder);
        assert!(matches!(ask(&store, &key), Acquired::Mine(_)));
    }

    #[test]
    fn a_lease_from_before_the_boot_is_free() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        leave_behind(&store, &key, Holder { boot: "another".into(), ..Holder::current() });
        assert!(matches!(ask(&store, &key), Acquired::Mine(_)));
    }

    #[test]
    fn a_holder_on_another_host_is_believed_while_its_heart_beats() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        leave_behind(&store, &key, Holder { host: "elsewhere".into(), ..Holder::current() });
        assert!(matches!(ask(&store, &key), Acquired::Taken { .. }));
    }

    #[test]
    fn one_who_lost_the_lease_learns_of_it() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let Acquired::Mine(lease) = ask(&store, &key) else { panic!("free") };
        leave_behind(&store, &key, Holder::current());
        assert!(matches!(lease.check(), Err(StoreError::LeaseLost)));
    }
}
