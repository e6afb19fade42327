//! The folder of a job, which the run and the job's worker share. It holds what there is to do, and what comes of it.
//!
//! | file | written by | holds |
//! |---|---|---|
//! | `job` | the run | the job's name in the batch system |
//! | `task.json` | the run | the task; while it is there, the job is wanted |
//! | `script` | the run | what the batch system starts |
//! | `log` | the script | what the worker prints |
//! | `holder` | a worker | the name of the newest worker of this job |
//! | `NAME/said.jsonl` | the worker NAME | what its stage reports, and how it ended |
//! | `NAME/out/` | the worker NAME | outputs |
//!
//! A batch system may start a job twice, and may call one dead whose process goes on. So each worker writes into a folder of its
//! own, the run reads that of the newest one alone, and a worker ends as soon as it is not the newest, or the task is gone.

use std::{
    ffi::OsString,
    fs::{DirBuilder, File, Permissions},
    io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::report::Report;
use crate::{
    error::if_found,
    exec::task::StageTask,
    hash::Digest,
    plan::absolute,
    store::{Holder, Store, StoreError, link_tree, own_files, replace_file, token, tree_digest},
};

/// Bytes of the longest report of a worker.
const LONGEST_LINE: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub struct JobFolder {
    pub path: PathBuf,
}

impl JobFolder {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    fn task_path(&self) -> PathBuf {
        self.path.join("task.json")
    }

    pub fn script(&self) -> PathBuf {
        self.path.join("script")
    }

    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Whether the job is still wanted, and this is its newest worker.
    pub fn claim(&self, worker: &WorkerFolder) -> Claim {
        let is_missing = |path: &Path| match path.symlink_metadata() {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Some(true),
            Err(_) => None,
            Ok(_) => Some(false),
        };
        match is_missing(&self.task_path()) {
            // With its folder: the shared folder may be away.
            Some(true) if is_missing(&self.path) == Some(false) => return Claim::Lost,
            Some(false) => {}
            _ => return Claim::Unknown,
        }
        match std::fs::read_to_string(self.path.join("holder")) {
            Ok(name) if name == worker.name => Claim::Held,
            Ok(_) => Claim::Lost,
            Err(_) => Claim::Unknown,
        }
    }

    /// Makes the folder with what there is to do.
    pub fn create(&self, (job, task): (&str, &StageTask), script: &str) -> Result<(), StoreError> {
        make_private(&self.path)?;
        place(&self.path.join("job"), job.as_bytes())?;
        place(&self.script(), script.as_bytes())?;
        let text = serde_json::to_vec(task).map_err(std::io::Error::other);
        place(&self.task_path(), &text.map_err(|cause| StoreError::writing(self.task_path(), cause))?)
    }

    /// Whether the shared folder is there with this one in it.
    pub fn is_there(&self) -> bool {
        self.path.is_dir()
    }

    /// The job's name.
    pub fn job(&self) -> Result<String, StoreError> {
        let path = self.path.join("job");
        std::fs::read_to_string(&path).map_err(|cause| StoreError::reading(path, cause))
    }

    /// The task, unless the run does not want it any more. Another version of this program may have written it.
    pub fn task(&self) -> Result<Option<Value>, StoreError> {
        let reading = |cause| StoreError::reading(self.task_path(), cause);
        let text = if_found(std::fs::read(self.task_path())).map_err(reading)?;
        text.map(|text| serde_json::from_slice(&text).map_err(|cause| reading(cause.into()))).transpose()
    }

    /// Whether this job is wanted, and makes the result that the task wants. Name and place of the stage may be other ones in
    /// the run file of the run that submitted it.
    pub fn is_for(&self, task: &StageTask) -> bool {
        let own = self.task().ok().flatten().and_then(|own| serde_json::from_value::<StageTask>(own).ok());
        own.is_some_and(|own| own.result() == task.result())
    }

    /// Whether there is something new after all: a client of a network file system may have an old list of the folder, which
    /// is read again once the folder changes.
    pub fn look_again(&self, hearing: Option<&Hearing>) -> bool {
        for folder in std::iter::once(&self.path).chain(hearing.map(|hearing| &hearing.worker.path)) {
            drop(tempfile::NamedTempFile::new_in(folder));
        }
        let holder = self.holder();
        let is_same = holder.as_ref() == hearing.map(|hearing| &hearing.worker);
        let length =
            |hearing: &Hearing| hearing.worker.said().metadata().map_or(0, |metadata| metadata.len());
        !is_same || hearing.is_some_and(|hearing| length(hearing) > hearing.at)
    }

    /// Tells the workers that the job is not wanted any more. What they wrote stays.
    pub fn close(&self) {
        // Gone already if another run did.
        _ = std::fs::remove_file(self.task_path());
    }

    /// The newest worker.
    pub fn holder(&self) -> Option<WorkerFolder> {
        let name = std::fs::read_to_string(self.path.join("holder")).ok()?;
        Some(WorkerFolder { path: self.path.join(&name), name })
    }

    /// Makes this process the newest worker.
    pub fn take(&self) -> Result<WorkerFolder, StoreError> {
        let name = format!("{}-{}", Holder::current().host, token());
        let worker = WorkerFolder { path: self.path.join(&name), name };
        for folder in [worker.out(), worker.scratch()] {
            std::fs::create_dir_all(&folder).map_err(|cause| StoreError::writing(folder, cause))?;
        }
        place(&self.path.join("holder"), worker.name.as_bytes())?;
        Ok(worker)
    }

    /// The last lines of the log.
    pub fn last_lines(&self, count: usize) -> String {
        const MOST: u64 = 16 << 10;
        let mut bytes = Vec::new();
        let read = File::open(self.log()).and_then(|mut file| {
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
            file.take(MOST).read_to_end(&mut bytes)
        });
        if read.is_err() {
            return String::new();
        }
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(count)..].join(" / ")
    }
}

/// Whether a job is a worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    Held,
    /// It is another worker's, or not wanted any more.
    Lost,
    /// The folder cannot be read.
    Unknown,
}

/// The folder of one worker of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFolder {
    pub path: PathBuf,
    pub name: String,
}

impl WorkerFolder {
    pub fn said(&self) -> PathBuf {
        self.path.join("said.jsonl")
    }

    pub fn out(&self) -> PathBuf {
        self.path.join("out")
    }

    pub fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// Makes the outputs appear in this folder too, if they have this digest. They stay here until the result is recorded. Returns
    /// whether they have it.
    pub fn link_outputs(&self, digest: &Digest, to: &Path) -> Result<bool, StoreError> {
        let out = self.out();
        // What an earlier run has taken is not to be changed by this one, nor what else has these files.
        own_files(&out).map_err(|cause| StoreError::writing(&out, cause))?;
        if tree_digest(&out)? != *digest {
            return Ok(false);
        }
        let linked = if_found(std::fs::remove_dir_all(to))
            .and_then(|_| std::fs::create_dir(to))
            .and_then(|()| link_tree(&out, to));
        linked.map_err(|cause| StoreError::writing(to, cause)).map(|()| true)
    }
}

/// Reads what a worker says, as far as it has said it.
pub struct Hearing {
    pub worker: WorkerFolder,
    at: u64,
}

impl Hearing {
    pub fn new(worker: WorkerFolder) -> Self {
        Self { worker, at: 0 }
    }

    /// What is new. A line that is not whole yet comes later.
    pub fn new_lines(&mut self) -> Vec<Report> {
        let Ok(mut file) = File::open(self.worker.said()) else { return Vec::new() };
        if file.seek(SeekFrom::Start(self.at)).is_err() {
            return Vec::new();
        }
        let (mut reader, mut line, mut new) = (BufReader::new(file), Vec::new(), Vec::new());
        // A line without end is read in parts, which are no reports.
        while let Ok(read) = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)
            && (line.ends_with(b"\n") || read as u64 == LONGEST_LINE)
        {
            self.at += read as u64;
            new.extend(serde_json::from_slice::<Report>(&line));
            line.clear();
        }
        new
    }
}

/// The folders of the attempts at a task.
#[derive(Debug, Clone)]
pub struct Attempts {
    path: PathBuf,
}

impl Attempts {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn of(store: &Store, task: &StageTask) -> Self {
        let shard = task.shard.map_or(String::new(), |shard| format!("-{}of{}", shard.index + 1, shard.of));
        Self { path: absolute(&store.jobs()).join(format!("{}-{}{shard}", task.key, task.draw)) }
    }

    /// The number of the newest attempt, and its folder.
    pub fn newest(&self) -> Option<(u32, JobFolder)> {
        let entries = std::fs::read_dir(&self.path).ok()?.flatten();
        let number = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()?;
        Some((number, self.number(number)))
    }

    pub fn number(&self, number: u32) -> JobFolder {
        JobFolder::at(self.path.join(number.to_string()))
    }

    /// Removes what attempts before this one left. They are closed, and a worker of theirs ends by itself.
    pub fn forget_older(&self, number: u32) {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_older = |name: OsString| {
            name.to_str().and_then(|name| name.parse().ok()).is_some_and(|own: u32| own < number)
        };
        for entry in entries.filter(|entry| is_older(entry.file_name())) {
            _ = std::fs::remove_dir_all(entry.path());
        }
    }

    /// The name of the task.
    pub fn name(&self) -> OsString {
        self.path.file_name().unwrap_or_default().to_owned()
    }

    /// Forgets attempts that were made before the record at `path` was written: it holds what came of them, or replaces it.
    pub fn forget_before(&self, path: &Path) {
        let at = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        let made = self.newest().and_then(|(_, folder)| at(&folder.task_path()));
        if let Some((made, recorded)) = made.zip(at(path))
            && made <= recorded
        {
            self.forget();
        }
    }

    /// Removes what the attempts left.
    pub fn forget(&self) {
        if let Some((_, newest)) = self.newest() {
            newest.close();
        }
        // A worker that is called dead may be writing; a sweep removes the rest.
        _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Makes a folder that only this user can look into: programs print what they like.
pub fn make_private(path: &Path) -> Result<(), StoreError> {
    let made = || {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
                std::fs::set_permissions(path, Permissions::from_mode(0o700))
            }
            made => made,
        }
    };
    made().map_err(|cause| StoreError::writing(path, cause))
}

/// Renamed into place, so that nobody reads a part of it. Only this user can read it.
pub fn place(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    replace_file(path, 0o600, content).map_err(|cause| StoreError::writing(path, cause))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_the_owner_sees_a_job_and_what_it_prints() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobFolder::at(folder.path().join("key/1"));
        std::fs::create_dir_all(&job.path).unwrap();
        make_private(&job.path).unwrap();
        assert_eq!(job.path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let shared = job.path.parent().unwrap().metadata().unwrap().permissions().mode();
        assert_ne!(shared & 0o777, 0o700, "others have jobs of this key, too");
    }

    #[test]
    fn a_line_is_heard_once_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobFolder::at(folder.path().to_owned());
        let worker = job.take().unwrap();
        assert_eq!(job.holder(), Some(worker.clone()));
        let mut hearing = Hearing::new(worker.clone());
        assert!(hearing.new_lines().is_empty());
        let line = serde_json::to_string(&Report::Note("a".into())).unwrap();
        let mut file = File::create(worker.said()).unwrap();
        write!(file, "{line}\n{}", &line[..4]).unwrap();
        assert_eq!(hearing.new_lines().len(), 1);
        assert!(hearing.new_lines().is_empty());
        writeln!(file, "{}", &line[4..]).unwrap();
        assert!(matches!(&hearing.new_lines()[..], [Report::Note(text)] if text == "a"));
    }

    #[test]
    fn a_line_without_end_is_no_report_and_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let worker = JobFolder::at(folder.path().to_owned()).take().unwrap();
        let mut hearing = Hearing::new(worker.clone());
        let mut file = File::create(worker.said()).unwrap();
        file.write_all(&vec![b'a'; 2 * LONGEST_LINE as usize]).unwrap();
        assert!(hearing.new_lines().is_empty());
        assert_eq!(hearing.at, 2 * LONGEST_LINE);
        let line = serde_json::to_string(&Report::Note("a".into())).unwrap();
        write!(file, "a\n{line}\n").unwrap();
        assert_eq!(hearing.new_lines().len(), 1);
    }

    #[test]
    fn outputs_can_be_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobFolder::at(folder.path().join("job"));
        std::fs::create_dir(&job.path).unwrap();
        let worker = job.take().unwrap();
        std::fs::create_dir(worker.out().join("policy")).unwrap();
        std::fs::write(worker.out().join("policy/a"), "1").unwrap();
        let digest = tree_digest(&worker.out()).unwrap();
        for name in ["one", "two"] {
            let to = folder.path().join(name);
            assert!(worker.link_outputs(&digest, &to).unwrap());
            assert_eq!(std::fs::read(to.join("policy/a")).unwrap(), b"1");
        }
        std::fs::write(worker.out().join("policy/a"), "2").unwrap();
        assert!(!worker.link_outputs(&digest, &folder.path().join("one")).unwrap(), "other bytes");
    }

    #[test]
    fn an_output_that_is_a_link_of_another_file_becomes_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let worker = JobFolder::at(folder.path().to_owned()).take().unwrap();
        let other = folder.path().join("private");
        std::fs::write(&other, "1").unwrap();
        std::fs::hard_link(&other, worker.out().join("a")).unwrap();
        let to = folder.path().join("to");
        assert!(worker.link_outputs(&tree_digest(&worker.out()).unwrap(), &to).unwrap());
        std::fs::set_permissions(to.join("a"), Permissions::from_mode(0o444)).unwrap();
        std::fs::set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(to.join("a").metadata().unwrap().permissions().mode() & 0o777, 0o444);
    }

    #[test]
    fn the_newest_worker_holds_the_job() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobFolder::at(folder.path().to_owned());
        let (first, second) = (job.take().unwrap(), job.take().unwrap());
        assert_ne!(first, second);
        assert_eq!(job.holder(), Some(second));
    }
}
