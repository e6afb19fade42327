//! Leases: which process executes a key, so that two runs on one store do not execute the same stage twice,
//! and which runs are active.
//!
//! A lease is a file `leases/<name>.<epoch>.json`, created by a hard link, which fails if the name is taken.
//! On local file systems and NFS servers alike, exactly one of several concurrent callers succeeds. No file
//! locks. The highest epoch of a name holds the lease. To take over from a dead holder, a process creates the
//! next epoch, and again only one succeeds. Nobody removes or replaces the lease of another process that may
//! be alive.
//!
//! A lease names its holder by host, boot, process id namespace, process id and process start time, because
//! process ids are reused. A holder on this machine is checked by whether that very process is alive. A
//! holder elsewhere is checked by its heartbeat, the mtime of the lease file. That time is only compared with
//! its own earlier values: the holder is dead if it does not change for a minute on this process's monotonic
//! clock. So clock differences between hosts and clock jumps never make a live holder look dead. The file is
//! opened before its mtime is read, because an NFS client may otherwise return cached attributes.
//!
//! Every lease has its own token. A holder that finds a higher epoch, or another token in its place, does not
//! publish.

use std::{
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::Read,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant, SystemTime},
};

use mcprl_base::{child, error::if_found, hash::Digest};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreError,
    write::{self, Created},
};

const HEARTBEAT: Duration = Duration::from_secs(5);
/// A holder elsewhere counts as dead after its heartbeat is unchanged this long.
const SILENCE: Duration = Duration::from_secs(60);
/// A holder from an earlier boot of this machine counts as dead after this long without a heartbeat, by the
/// store's clock.
const REBOOT_SILENCE: Duration = Duration::from_secs(20);
/// A holder whose state is unknown is listed as live until its heartbeat is this old by the store's clock.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// The lease file of a run on another host is removed when its heartbeat is this old: longer than a machine sleeps.
const LONG_FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
/// How the names of the leases of runs begin.
const OF_RUN: &str = "run-";
/// How long the folder of leases may be away.
const AWAY: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(250);

/// A globally unique identity of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub host: String,
    /// Id of the machine's current boot; empty if the system has none.
    pub boot: String,
    pub pid_namespace: String,
    pub pid: u32,
    /// Ticks from boot to the start of the process; absent if the system does not report it.
    pub started: Option<u64>,
}

/// The state of a holder, judged without its heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HolderState {
    Alive,
    Dead,
    /// The host has rebooted since, or another host has the same name.
    Rebooted,
    Unknown,
}

impl Holder {
    /// This process.
    pub fn current() -> Self {
        let line = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        let pid = std::process::id();
        Self {
            host: host(),
            boot: line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            pid_namespace: namespace.map(|path| path.display().to_string()).unwrap_or_default(),
            pid,
            started: start_time(pid),
        }
    }

    fn state(&self) -> HolderState {
        let here = Self::current();
        if self.host != here.host {
            return HolderState::Unknown;
        }
        if self.boot != here.boot {
            return HolderState::Rebooted;
        }
        if self.pid_namespace != here.pid_namespace {
            return HolderState::Unknown;
        }
        if self.started.is_some() {
            let alive = start_time(self.pid) == self.started;
            return if alive { HolderState::Alive } else { HolderState::Dead };
        }
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        match pid.map(rustix::process::test_kill_process) {
            // Without a start time this could be another process with the same id, so the heartbeat decides.
            Some(Ok(())) | None => HolderState::Unknown,
            Some(Err(_)) => HolderState::Dead,
        }
    }
}

/// The host name of this machine.
pub(super) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map(|text| text.trim().to_owned());
    name.or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "localhost".into())
}

/// None for a process that has exited.
fn start_time(pid: u32) -> Option<u64> {
    let process = child::stat(pid.try_into().ok()?)?;
    (!process.has_exited).then_some(process.started)
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    token: String,
    stage: String,
    run: String,
    holder: Holder,
}

impl Content {
    /// Stands in for a lease file that another user made unreadable. Its host name matches no host, so the
    /// heartbeat decides.
    fn hidden() -> Self {
        Self { run: "another user's run".into(), ..Self::default() }
    }
}

/// A lease file as it was when opened.
struct LeaseFile {
    epoch: u64,
    content: Content,
    beat: SystemTime,
}

impl LeaseFile {
    fn open(epoch: u64, path: &Path) -> Option<Self> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            // Its heartbeat is still readable.
            Err(cause) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                let beat = path.metadata().ok()?.modified().ok()?;
                return Some(Self { epoch, content: Content::hidden(), beat });
            }
            Err(_) => return None,
        };
        let beat = file.metadata().ok()?.modified().ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        Some(Self { epoch, content: serde_json::from_slice(&bytes).ok()?, beat })
    }
}

/// The exclusive right to execute something. Ends when dropped, or with the process.
pub struct Lease {
    folder: PathBuf,
    name: String,
    epoch: u64,
    token: String,
    /// While it is there, a thread touches the file.
    heart: Option<mpsc::Sender<()>>,
}

/// The outcome of requesting a lease.
pub enum LeaseOutcome {
    Mine(Lease),
    /// Another run holds it.
    Taken {
        run: String,
        holder: Holder,
    },
}

impl Store {
    /// Requests the lease of `key` once, without waiting. `watch` remembers heartbeats between calls.
    pub fn lease(
        &self,
        key: &Digest,
        stage: &str,
        run: &str,
        watch: &mut HeartbeatWatch,
    ) -> Result<LeaseOutcome, StoreError> {
        self.request_lease(&key.to_string(), stage, run, watch)
    }

    /// Marks a run as active until dropped. A run that two processes execute has two leases.
    pub fn attend(&self, run: &str) -> Result<Lease, StoreError> {
        let name = format!("{OF_RUN}{}", token());
        for path in self.dead_leases() {
            _ = std::fs::remove_file(path);
        }
        match self.request_lease(&name, "", run, &mut HeartbeatWatch::default())? {
            LeaseOutcome::Mine(lease) => Ok(lease),
            LeaseOutcome::Taken { .. } => Err(StoreError::LeaseLost),
        }
    }

    /// Marks the results of a run as used, by who does not execute it: no sweep removes them, nor what is unfinished.
    ///
    /// # Errors
    /// As [`Self::attend`].
    pub fn use_results(&self, run: &str) -> Result<Lease, StoreError> {
        self.attend(&use_of(run))
    }

    /// Runs that are active, or may be, and [uses](Self::use_results) of results. Sorted, without duplicates.
    pub fn live_runs(&self) -> Vec<String> {
        let mut runs: Vec<String> = leases(&self.leases())
            .into_iter()
            .filter_map(|(_, epoch, path)| LeaseFile::open(epoch, &path))
            .filter(|found| self.is_live(found, FORGOTTEN))
            .map(|found| found.content.run)
            .filter(|run| !run.is_empty())
            .collect();
        runs.sort();
        runs.dedup();
        runs
    }

    /// Leases of runs whose processes are dead: nobody takes over those of a killed run.
    pub(super) fn dead_leases(&self) -> Vec<PathBuf> {
        let of_runs = leases(&self.leases()).into_iter().filter(|(name, ..)| name.starts_with(OF_RUN));
        let is_dead = |found: LeaseFile| !self.is_live(&found, LONG_FORGOTTEN);
        let dead = of_runs
            .filter(|(_, epoch, path)| LeaseFile::open(*epoch, path).is_some_and(is_dead))
            .map(|(.., path)| path);
        dead.collect()
    }

    fn leases(&self) -> PathBuf {
        self.root.join("leases")
    }

    /// The time of the clock that stamps the store's files: on a shared path the server's, not this host's.
    pub(super) fn clock(&self) -> Result<SystemTime, StoreError> {
        let writing = |cause| StoreError::writing(self.tmp(), cause);
        let file = tempfile::tempfile_in(self.tmp()).map_err(writing)?;
        file.metadata().and_then(|metadata| metadata.modified()).map_err(writing)
    }

    /// Whether a holder is or may be alive: if its state is unknown, until its heartbeat is this old.
    fn is_live(&self, found: &LeaseFile, silence: Duration) -> bool {
        match found.content.holder.state() {
            HolderState::Alive => true,
            HolderState::Dead => false,
            HolderState::Rebooted | HolderState::Unknown => {
                let now = self.clock().unwrap_or_else(|_| SystemTime::now());
                now.duration_since(found.beat).unwrap_or_default() < silence
            }
        }
    }

    /// Whether a holder that is or may be alive has this lease.
    pub(super) fn is_leased(&self, name: &str) -> bool {
        let leases = of_name(&self.leases(), name);
        let mut found = leases.into_iter().filter_map(|(epoch, path)| LeaseFile::open(epoch, &path));
        found.any(|found| self.is_live(&found, SILENCE))
    }

    pub(super) fn request_lease(
        &self,
        name: &str,
        stage: &str,
        run: &str,
        watch: &mut HeartbeatWatch,
    ) -> Result<LeaseOutcome, StoreError> {
        let folder = self.leases();
        let token = token();
        let content =
            Content { token: token.clone(), stage: stage.into(), run: run.into(), holder: Holder::current() };
        let bytes = serde_json::to_vec(&content)
            .map_err(|cause| StoreError::writing(&folder, std::io::Error::other(cause)))?;
        loop {
            let highest = of_name(&folder, name).into_iter().max();
            let epoch = match highest {
                None => 1,
                Some((epoch, path)) => match LeaseFile::open(epoch, &path) {
                    Some(found) if watch.is_alive(self, &found)? => {
                        return Ok(LeaseOutcome::Taken {
                            run: found.content.run,
                            holder: found.content.holder,
                        });
                    }
                    Some(found) => found.epoch + 1,
                    // Released since it was listed.
                    None if !path.exists() => continue,
                    // Unreadable: it names no holder. It was linked into place whole, so nobody is writing
                    // it.
                    None => epoch + 1,
                },
            };
            if write::create(self, &place(&folder, name, epoch), &bytes)? == Created::Exists {
                continue;
            }
            let mut lease = Lease { folder, name: name.to_owned(), epoch, token, heart: None };
            // A cached listing may have hidden a higher epoch, whose holder was first.
            if lease.check().is_err() {
                drop(lease);
                return self.request_lease(name, stage, run, watch);
            }
            for (earlier, path) in of_name(&lease.folder, name) {
                if earlier < epoch {
                    // Its holder is dead. If removal fails, the higher epoch still overrides it.
                    _ = std::fs::remove_file(path);
                }
            }
            lease.beat();
            return Ok(LeaseOutcome::Mine(lease));
        }
    }
}

fn place(folder: &Path, name: &str, epoch: u64) -> PathBuf {
    folder.join(format!("{name}.{epoch}.json"))
}

/// Every lease file: name, epoch, path. None if the folder cannot be read.
fn leases(folder: &Path) -> Vec<(String, u64, PathBuf)> {
    listed(folder).unwrap_or_default()
}

fn listed(folder: &Path) -> std::io::Result<Vec<(String, u64, PathBuf)>> {
    let items = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let parts = |item: std::fs::DirEntry| {
        let file = item.file_name().into_string().ok()?;
        let (name, epoch) = file.strip_suffix(".json")?.rsplit_once('.')?;
        Some((name.to_owned(), epoch.parse().ok()?, item.path()))
    };
    Ok(items.into_iter().filter_map(parts).collect())
}

fn of_name(folder: &Path, name: &str) -> Vec<(u64, PathBuf)> {
    let all = leases(folder).into_iter();
    all.filter(|(found, ..)| found == name).map(|(_, epoch, path)| (epoch, path)).collect()
}

/// The heartbeats that one waiter has seen.
#[derive(Default)]
pub struct HeartbeatWatch {
    seen: Option<(u64, SystemTime, Instant)>,
}

impl HeartbeatWatch {
    fn is_alive(&mut self, store: &Store, found: &LeaseFile) -> Result<bool, StoreError> {
        match found.content.holder.state() {
            HolderState::Alive => return Ok(true),
            HolderState::Dead => return Ok(false),
            HolderState::Rebooted => {
                let silent = store.clock()?.duration_since(found.beat).unwrap_or_default();
                if silent > REBOOT_SILENCE {
                    return Ok(false);
                }
            }
            HolderState::Unknown => {}
        }
        Ok(match self.seen {
            Some((epoch, last, at)) if (epoch, last) == (found.epoch, found.beat) => at.elapsed() < SILENCE,
            _ => {
                self.seen = Some((found.epoch, found.beat, Instant::now()));
                true
            }
        })
    }
}

impl Lease {
    fn path(&self) -> PathBuf {
        place(&self.folder, &self.name, self.epoch)
    }

    /// Fails if another process took the lease over. While the folder cannot be read, that is not known, and this waits.
    ///
    /// # Errors
    /// [`StoreError::LeaseLost`], or that the folder cannot be read for minutes.
    pub fn check(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        loop {
            match self.is_held() {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(StoreError::LeaseLost),
                Err(cause) if began.elapsed() > AWAY => return Err(StoreError::reading(&self.folder, cause)),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn is_held(&self) -> std::io::Result<bool> {
        let own = listed(&self.folder)?.into_iter().filter(|(name, ..)| *name == self.name);
        let highest = own.map(|(_, epoch, path)| (epoch, path)).max();
        let Some((_, path)) = highest.filter(|(epoch, _)| *epoch == self.epoch) else { return Ok(false) };
        let Some(content) = if_found(std::fs::read(path))? else {
            // Removed, or the folder is away since.
            return listed(&self.folder).map(|_| false);
        };
        let content = serde_json::from_slice::<Content>(&content);
        Ok(content.is_ok_and(|content| content.token == self.token))
    }

    /// Touches the file until the lease is dropped. Uses a thread, because stages may block the async
    /// workers.
    fn beat(&mut self) {
        let (path, (heart, dropped)) = (self.path(), mpsc::channel::<()>());
        std::thread::spawn(move || {
            while dropped.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                // The next beat makes up for a missed one.
                _ = touch(&path);
            }
        });
        self.heart = Some(heart);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.heart.take());
        let path = self.path();
        let own = LeaseFile::open(self.epoch, &path);
        if own.is_some_and(|found| found.content.token == self.token) {
            _ = std::fs::remove_file(path);
        }
    }
}

/// Sets the mtime to now, by the clock of the file's server. Sets the atime too, because a writer who does
/// not own the file may only set both.
pub(super) fn touch(path: &Path) -> std::io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())?)
}

/// A unique token.
pub fn token() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    // Seeded by the system and different in each call, so unique even if the clock does not advance.
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{now:x}-{random:016x}", std::process::id())
}

/// What stands among the active runs for the use of this one's results. No run has such a name.
pub fn use_of(run: &str) -> String {
    format!("use of {run}")
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

    fn request(store: &Store, key: &Digest) -> LeaseOutcome {
        store.lease(key, "stage", "run", &mut HeartbeatWatch::default()).unwrap()
    }

    fn mine(store: &Store, key: &Digest) -> Lease {
        let LeaseOutcome::Mine(lease) = request(store, key) else { panic!("should be free") };
        lease
    }

    fn abandoned(store: &Store, key: &Digest, epoch: u64, holder: Holder) -> PathBuf {
        let content = Content { token: "old".into(), stage: "s".into(), run: "r".into(), holder };
        let path = place(&store.leases(), &key.to_string(), epoch);
        std::fs::write(&path, serde_json::to_vec(&content).unwrap()).unwrap();
        path
    }

    fn age(path: &Path, seconds: u64) {
        let file = File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    fn dead() -> Holder {
        let mut holder = Holder::current();
        holder.started = holder.started.map(|ticks| ticks + 1);
        holder
    }

    #[test]
    fn a_lease_lasts_until_dropped() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let lease = mine(&store, &key);
        assert!(matches!(request(&store, &key), LeaseOutcome::Taken { .. }));
        drop(lease);
        drop(mine(&store, &key));
        assert_eq!(leases(&store.leases()).len(), 0);
    }

    #[test]
    fn a_dead_process_loses_its_lease_even_if_its_id_is_reused() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        abandoned(&store, &key, 1, dead());
        assert_eq!(mine(&store, &key).epoch, 2);
    }

    #[test]
    fn exactly_one_of_many_takes_over_from_a_dead_holder() {
        let (_folder, store) = store();
        for round in 0..20 {
            let key = Digest::of(&[round]);
            abandoned(&store, &key, 3, dead());
            let all: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| request(&store, &key))).collect();
                threads.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let leases = all.iter().filter(|one| matches!(one, LeaseOutcome::Mine(_))).count();
            assert_eq!(leases, 1);
        }
    }

    #[test]
    fn a_lease_from_before_a_reboot_is_free_once_its_heartbeat_stops() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let path = abandoned(&store, &key, 1, Holder { boot: "another".into(), ..Holder::current() });
        assert!(matches!(request(&store, &key), LeaseOutcome::Taken { .. }));
        age(&path, 30);
        assert!(matches!(request(&store, &key), LeaseOutcome::Mine(_)));
    }

    #[test]
    fn a_holder_on_another_host_is_alive_whatever_its_clock_says() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let path = abandoned(&store, &key, 1, Holder { host: "elsewhere".into(), ..Holder::current() });
        for seconds in [0, 3600, 86400] {
            age(&path, seconds);
            assert!(matches!(request(&store, &key), LeaseOutcome::Taken { .. }));
        }
    }

    #[test]
    fn a_heartbeat_that_stops_counts_for_a_minute_of_monotonic_time() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let holder = Holder { host: "elsewhere".into(), ..Holder::current() };
        let path = abandoned(&store, &key, 1, holder);
        let mut watch = HeartbeatWatch::default();
        let taken = |watch: &mut HeartbeatWatch| {
            matches!(store.lease(&key, "stage", "run", watch).unwrap(), LeaseOutcome::Taken { .. })
        };
        assert!(taken(&mut watch));
        let back = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        watch.seen = watch.seen.map(|(epoch, beat, _)| (epoch, beat, back(50)));
        assert!(taken(&mut watch));
        // The clock jumps back by a day, which still counts as a heartbeat.
        age(&path, 86400);
        watch.seen = watch.seen.map(|(epoch, beat, _)| (epoch, beat, back(70)));
        assert!(taken(&mut watch));
        watch.seen = watch.seen.map(|(epoch, beat, _)| (epoch, beat, back(70)));
        assert!(!taken(&mut watch));
    }

    #[test]
    fn a_dead_holder_whose_lease_cannot_be_removed_is_waited_for_once() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let holder = Holder { host: "elsewhere".into(), ..Holder::current() };
        let path = abandoned(&store, &key, 1, holder.clone());
        let beat = path.metadata().unwrap().modified().unwrap();
        let minute = Instant::now().checked_sub(Duration::from_secs(70)).unwrap();
        let mut watch = HeartbeatWatch { seen: Some((1, beat, minute)) };
        for _ in 0..2 {
            let taken = store.lease(&key, "stage", "run", &mut watch).unwrap();
            assert!(matches!(taken, LeaseOutcome::Mine(_)));
            // Another user's, in a folder with the sticky bit.
            abandoned(&store, &key, 1, holder.clone());
            std::fs::File::open(&path).unwrap().set_modified(beat).unwrap();
        }
    }

    #[test]
    fn a_lease_is_not_lost_while_its_folder_is_away() {
        let (folder, store) = store();
        let lease = mine(&store, &Digest::of(b"k"));
        let (leases, away) = (store.leases(), folder.path().join("away"));
        std::fs::rename(&leases, &away).unwrap();
        std::thread::scope(|scope| {
            let checked = scope.spawn(|| lease.check());
            std::thread::sleep(Duration::from_millis(600));
            std::fs::rename(&away, &leases).unwrap();
            checked.join().unwrap().unwrap();
        });
    }

    #[test]
    fn leases_of_dead_runs_go_when_the_next_run_begins() {
        let (_folder, store) = store();
        let held = store.attend("one").unwrap();
        let content = Content { token: "t".into(), run: "two".into(), holder: dead(), ..Content::default() };
        let path = place(&store.leases(), "run-killed", 1);
        std::fs::write(&path, serde_json::to_vec(&content).unwrap()).unwrap();
        let _other = store.attend("three").unwrap();
        assert!(!path.exists());
        held.check().unwrap();
    }

    #[test]
    fn a_holder_that_lost_its_lease_detects_it_and_keeps_the_other_lease() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        let lease = mine(&store, &key);
        let other = abandoned(&store, &key, 2, Holder::current());
        assert!(matches!(lease.check(), Err(StoreError::LeaseLost)));
        drop(lease);
        assert!(other.exists());
    }

    #[test]
    fn an_unreadable_lease_blocks_nobody() {
        let (_folder, store) = store();
        let key = Digest::of(b"k");
        std::fs::write(place(&store.leases(), &key.to_string(), 1), "{").unwrap();
        assert!(matches!(request(&store, &key), LeaseOutcome::Mine(_)));
    }

    #[test]
    fn who_uses_the_results_of_a_run_does_not_make_it_an_active_one() {
        let (_folder, store) = store();
        let using = store.use_results("one").unwrap();
        assert!(!store.live_runs().contains(&"one".to_owned()));
        assert_eq!(store.live_runs(), [use_of("one")]);
        drop(using);
        assert_eq!(store.live_runs(), [""; 0]);
    }

    #[test]
    fn active_runs_are_listed_until_they_end() {
        let (_folder, store) = store();
        let presence = store.attend("one").unwrap();
        abandoned(&store, &Digest::of(b"k"), 1, dead());
        assert_eq!(store.live_runs(), ["one"]);
        drop(presence);
        assert_eq!(store.live_runs(), [""; 0]);
    }
}
