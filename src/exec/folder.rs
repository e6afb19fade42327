//! A run's folder: `runs/<id>/` with a copy of the run file (`run.toml`), the journal, and links to the
//! artifacts.
//!
//! Only its owner can read `run.toml` (mode 0600): a run file may hold an undetected secret. Everyone who
//! shares the cache can read the journal, since a sweep depends on it, so no secret is written to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{
    error::ExecError,
    event::{Event, RunState},
    journal::{self, Journal, TimedEvent},
};
use crate::{
    engine,
    error::{Result, did_you_mean, if_found},
    hash::Digest,
    plan::{ExtendedFile, Node, Overrides, PlanError, RunFile},
    store::{CachedResult, Lease, Output, Store, StoreError, aside, failpoint, replace_file},
};

/// A run's request, sufficient to repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Path of the run file; relative paths in it start from its folder.
    pub file: PathBuf,
    /// The `stages/` folder on disk, if there was one.
    pub stages: Option<PathBuf>,
    #[serde(default)]
    pub resample: Vec<String>,
    /// Nothing else is run but these stages and what they need; empty for everything.
    #[serde(default)]
    pub until: Vec<String>,
    #[serde(default)]
    pub keep_going: bool,
    #[serde(default)]
    pub overrides: Overrides,
    /// Text of the run file.
    pub text: String,
    /// Whether it only tries the run file out, so that it is not the latest run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_trial: bool,
    /// The files that it extends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extended: Vec<ExtendedFile>,
}

impl RunSpec {
    /// The request of the run in this folder.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(folder: &Path) -> Result<Self, ExecError> {
        let path = folder.join("run.toml");
        let wrong = |problem: String| ExecError::BadRun { path: path.clone(), problem };
        let text = std::fs::read_to_string(&path).map_err(|cause| wrong(cause.to_string()))?;
        toml::from_str(&text).map_err(|cause| wrong(cause.message().to_owned()))
    }

    /// The run file with what it extends, as the run began with them.
    ///
    /// # Errors
    /// If it has mistakes.
    pub fn source(&self) -> Result<RunFile, PlanError> {
        RunFile::stored(&self.file, self.text.clone(), &self.extended)
    }
}

/// A run's folder in the store.
pub struct RunFolder {
    pub id: String,
    pub path: PathBuf,
    journal: Journal,
    /// Created by this process.
    is_new: bool,
    /// The run's earlier state.
    before: RunState,
    /// Marks the run as active.
    _presence: Lease,
}

impl RunFolder {
    /// Creates the folder of a new run. The id is the run's name and the local time.
    pub fn create(store: &Store, name: &str, spec: &RunSpec) -> Result<Self> {
        let now = chrono::Local::now().format("%Y%m%d-%H%M%S");
        let mut id = format!("{name}-{now}");
        let mut again = 1;
        let (path, presence) = loop {
            let path = store.runs().join(&id);
            // Taken before the folder exists, so that no sweep sees a folder without an active run.
            let presence = store.attend(&id)?;
            store.after_sweep();
            match std::fs::create_dir(&path) {
                Ok(()) => break (path, presence),
                Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
                    again += 1;
                    id = format!("{name}-{now}-{again}");
                }
                Err(cause) => return Err(StoreError::writing(path, cause).into()),
            }
        };
        failpoint("run::folder");
        let file = path.join("run.toml");
        let text = toml::to_string(spec)
            .map_err(|cause| ExecError::BadRun { path: file.clone(), problem: cause.to_string() })?;
        // Renamed into place, so that a run killed here leaves no partial description.
        replace_file(&file, 0o600, text.as_bytes()).map_err(|cause| StoreError::writing(file, cause))?;
        failpoint("run::described");
        Ok(Self { is_new: true, ..Self::at(id, path, presence)? })
    }

    /// Opens the folder of an earlier run, with its request.
    pub fn open(store: &Store, id: &str) -> Result<(Self, RunSpec)> {
        let id = &named(store, id);
        let path = existing(store, id)?;
        let spec = RunSpec::read(&path)?;
        store.prepare()?;
        let presence = store.attend(id)?;
        // Mark the run active, then check again: a sweep may be removing it.
        store.after_sweep();
        existing(store, id)?;
        Ok((Self::at(id.to_owned(), path, presence)?, spec))
    }

    fn at(id: String, path: PathBuf, presence: Lease) -> Result<Self> {
        let file = path.join("journal.jsonl");
        let before = journal::state(&journal::read(&file));
        let journal = Journal::open(&file)?;
        let folder = Self { id, path, journal, is_new: false, before, _presence: presence };
        let (pid, version) = (std::process::id(), env!("CARGO_PKG_VERSION").into());
        folder.note(&Event::Opened { pid, version, machine: Some(engine::machine()) })?;
        Ok(folder)
    }

    pub fn note(&self, event: &Event) -> Result<()> {
        Ok(self.journal.add(event)?)
    }

    /// Ends a run that was refused before it started. A new run is removed; a resumed one keeps its earlier
    /// state.
    pub fn refused(&self) -> Result<()> {
        match self.is_new {
            true => std::fs::remove_dir_all(&self.path)
                .map_err(|cause| StoreError::writing(&self.path, cause).into()),
            false => self.note(&Event::Closed { state: self.before }),
        }
    }

    /// The stages that this run already ran, by stage and key, with their results.
    pub fn own_results(&self) -> BTreeMap<(String, Digest), CachedResult> {
        let finished = |timed: TimedEvent| match timed.event {
            Event::Finished { id, key, result } => Some(((id, key), result)),
            _ => None,
        };
        journal::read(&self.path.join("journal.jsonl")).into_iter().filter_map(finished).collect()
    }

    /// The server's files when the run began, or went on last.
    pub fn server_files(&self) -> BTreeMap<String, Digest> {
        let noted = |timed: TimedEvent| match timed.event {
            Event::ServerFiles { files } => Some(files),
            _ => None,
        };
        let events = journal::read(&self.path.join("journal.jsonl"));
        events.into_iter().rev().find_map(noted).unwrap_or_default()
    }

    /// Links a node's artifacts under their names in its card: `exam/report.md`, `train.0003/update/policy`.
    pub fn link(&self, store: &Store, node: &Node, outputs: &BTreeMap<String, Output>) -> Result<()> {
        for (port, output) in outputs {
            let Some(inner) = inner_path(node, port) else { continue };
            let link = self.path.join(&inner);
            let target = store.path(output);
            // Relative to the link, so that a cache can be moved.
            let up = "../".repeat(inner.components().count() + 1);
            let target = Path::new(&up).join(target.strip_prefix(store.root()).unwrap_or(&target));
            if std::fs::read_link(&link).is_ok_and(|found| found == target) {
                continue;
            }
            point(&self.path, &link, &target).map_err(|cause| StoreError::writing(&link, cause))?;
        }
        Ok(())
    }
}

/// Points a link at this target, replacing any earlier one. Creates the link in the run's folder and renames
/// it, since another process may be working on the same run.
fn point(run: &Path, link: &Path, target: &Path) -> std::io::Result<()> {
    if let Some(parent) = link.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let new = |path: &Path| std::os::unix::fs::symlink(target, path);
    let aside = tempfile::Builder::new().prefix(".link-").make_in(run, new)?;
    aside.persist(link)?;
    Ok(())
}

/// Path of the link to a node's output, relative to the run's folder.
pub fn inner_path(node: &Node, port: &str) -> Option<PathBuf> {
    Some(Path::new(&node_folder(&node.id)).join(&node.stage.card.outputs.get(port)?.path))
}

/// `train[0003]/update` as a path.
fn node_folder(id: &str) -> String {
    id.replace('[', ".").replace(']', "")
}

/// Resolves a run id: `latest` is the newest run that does more than try its run file out.
pub fn named(store: &Store, id: &str) -> String {
    if id != "latest" {
        return id.to_owned();
    }
    let is_trial = |id: &String| RunSpec::read(&store.runs().join(id)).is_ok_and(|spec| spec.is_trial);
    // If they cannot be read, opening the run says so.
    list(store)
        .unwrap_or_default()
        .into_iter()
        .rev()
        .find(|id| !is_trial(id))
        .unwrap_or_else(|| id.to_owned())
}

/// The folder of an existing run.
pub fn existing(store: &Store, id: &str) -> Result<PathBuf> {
    let path = store.runs().join(id);
    if !id.is_empty() && !id.contains('/') && !id.starts_with('.') && path.is_dir() {
        return Ok(path);
    }
    let runs = list(store)?;
    if runs.is_empty() {
        return Err(ExecError::NoRuns { cache: store.root().to_owned() }.into());
    }
    let near = did_you_mean(id, runs.iter().map(String::as_str)).map(str::to_owned);
    Err(ExecError::NoRun { id: id.to_owned(), near }.into())
}

/// Ids of all runs, oldest first.
///
/// # Errors
/// If the folder of the runs is there and cannot be read.
pub fn list(store: &Store) -> Result<Vec<String>, StoreError> {
    let reading = |cause| StoreError::reading(store.runs(), cause);
    let items = if_found(std::fs::read_dir(store.runs())).map_err(reading)?.into_iter().flatten();
    let items = items.collect::<std::io::Result<Vec<_>>>().map_err(reading)?;
    let mut runs: Vec<_> = items
        .into_iter()
        // A link counts even if it leads nowhere: it stands for a run.
        .filter(|item| item.path().is_dir() || item.path().is_symlink())
        .filter_map(|item| {
            let created = item.metadata().ok()?.modified().ok()?;
            // Without a readable line, the time of the folder has to do.
            let made = || created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
            let events = journal::read(&item.path().join("journal.jsonl"));
            let first = events.first().map_or_else(made, |timed| timed.at.into());
            Some((first, created, item.file_name().into_string().ok()?))
        })
        .collect();
    runs.sort();
    Ok(runs.into_iter().map(|(_, _, id)| id).collect())
}

/// The artifacts that the links in a run's folder lead to; none if the folder was removed.
pub fn linked(folder: &Path) -> std::io::Result<BTreeSet<Digest>> {
    let mut found = BTreeSet::new();
    let items = match std::fs::read_dir(folder) {
        Err(_) if folder.symlink_metadata().is_err_and(|cause| cause.kind() == ErrorKind::NotFound) => {
            return Ok(found);
        }
        items => items?,
    };
    for item in items {
        let item = item?;
        if item.file_type()?.is_dir() {
            found.extend(linked(&item.path())?);
        } else {
            found.extend(target(&item.path()));
        }
    }
    Ok(found)
}

/// The artifact that a link leads to.
pub fn target(link: &Path) -> Option<Digest> {
    let target = std::fs::read_link(link).ok()?;
    target.iter().find_map(|name| name.to_str()?.parse().ok())
}

/// Whether a folder holds a policy: a model, or an adapter.
pub fn is_policy(folder: &Path) -> bool {
    ["adapter_config.json", "config.json"].iter().any(|file| folder.join(file).is_file())
}

/// The policies that a run's stages wrote, as linked in its folder, the newest last. Includes broken links
/// whose name is that of a policy.
pub fn policies(store: &Store, id: &str) -> Vec<PathBuf> {
    let folder = store.runs().join(id);
    let mut found: Vec<PathBuf> = Vec::new();
    for timed in journal::read(&folder.join("journal.jsonl")) {
        let (Event::Finished { id, .. } | Event::Cached { id, .. }) = timed.event else { continue };
        let items = std::fs::read_dir(folder.join(node_folder(&id))).into_iter().flatten().flatten();
        let links = items.map(|item| item.path()).filter(|path| is_policy(path) || !path.exists());
        for policy in links {
            found.retain(|earlier| *earlier != policy);
            found.push(policy);
        }
    }
    let there = found.iter().filter(|path| is_policy(path)).filter_map(|path| path.file_name());
    let names: BTreeSet<OsString> = there.map(ToOwned::to_owned).chain(["policy".into()]).collect();
    found.retain(|path| path.file_name().is_some_and(|name| names.contains(name)));
    found
}

/// Copies a run's description, journal and links into another store that has its results. Keeps existing
/// files.
pub fn copy(from: &Store, to: &Store, id: &str) -> Result<()> {
    let (source, target) = (existing(from, id)?, to.runs().join(id));
    if target.exists() {
        return Ok(());
    }
    let staged = aside(&to.root().join("tmp"));
    let staged = staged.map_err(|cause| StoreError::writing(to.root(), cause))?;
    let inner = staged.path().join("run");
    copy_tree(&source, &inner)?;
    match std::fs::rename(&inner, &target) {
        Err(_) if target.exists() => Ok(()),
        done => Ok(done.map_err(|cause| StoreError::writing(target, cause))?),
    }
}

/// Links are relative to the run's folder, so they are valid in any store.
fn copy_tree(from: &Path, to: &Path) -> Result<(), StoreError> {
    let writing = |cause| StoreError::writing(to, cause);
    std::fs::create_dir_all(to).map_err(writing)?;
    for item in std::fs::read_dir(from).map_err(writing)? {
        let path = item.map_err(writing)?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if let Ok(link) = std::fs::read_link(&path) {
            std::os::unix::fs::symlink(link, target).map_err(writing)?;
        } else if path.is_dir() {
            copy_tree(&path, &target)?;
        } else {
            std::fs::copy(&path, target).map_err(writing)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_writers_of_a_link_leave_one_valid_target() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("end/number.txt");
        std::thread::scope(|scope| {
            for target in ["a", "b", "c", "d"] {
                let (run, link) = (folder.path(), &link);
                scope.spawn(move || {
                    for _ in 0..200 {
                        point(run, link, Path::new(target)).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_link(&link).unwrap().as_os_str().len(), 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
    }
}
