//! The files that a server's command and environment name: which of them identify the server, by their content.
//!
//! | named | counts |
//! |---|---|
//! | by a word of the command | always; a database only under `read-only` |
//! | within a word (`--db=PATH`, `sqlite:///PATH`) or a variable's value | under `read-only`, but not a program, a log, a cache, or a credential |
//! | a folder, by or within a word | under `read-only`, if it is small and not around the run file; hidden files and caches in it do not |
//!
//! With a SQLite database counts its write-ahead log. A server of another `state` may write to its database, which would
//! change every key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{
    error::Result,
    hash::Digest,
    mcp::{ServerSpec, State},
    store::FileDigests,
};

/// Most files and bytes of a folder that counts.
const FOLDER_FILES: usize = 1000;
const FOLDER_BYTES: u64 = 64 << 20;

/// Parts of the names of options and variables whose files a server writes, or that hold credentials.
const NO_DATA: [&str; 22] = [
    "cache",
    "credential",
    "credentials",
    "history",
    "key",
    "lock",
    "log",
    "logfile",
    "logging",
    "logs",
    "out",
    "output",
    "password",
    "pid",
    "secret",
    "sock",
    "socket",
    "temp",
    "tmp",
    "token",
    "tokens",
    "trace",
];
/// Endings of files that a server writes.
const WRITTEN: [&str; 5] = ["lock", "log", "pid", "sock", "tmp"];

pub struct NamedFiles<'a> {
    cwd: &'a Path,
    /// The run file's.
    folder: &'a Path,
    is_read_only: bool,
    /// Files and folders that the server may write to in its sandbox.
    written: &'a [PathBuf],
    digests: &'a FileDigests,
    /// Digests by the name that stands for the file in the key.
    pub contents: BTreeMap<String, Digest>,
    pub by_content: BTreeMap<PathBuf, Digest>,
    /// Databases that do not count, because the server may write to them.
    pub uncounted: BTreeSet<PathBuf>,
}

impl<'a> NamedFiles<'a> {
    pub fn new(spec: &'a ServerSpec, cwd: &'a Path, folder: &'a Path, digests: &'a FileDigests) -> Self {
        let is_read_only = spec.state == State::ReadOnly;
        let written = spec.limits.sandbox.as_ref().map_or(&[][..], |sandbox| sandbox.write.as_slice());
        let (contents, by_content, uncounted) = Default::default();
        Self { cwd, folder, is_read_only, written, digests, contents, by_content, uncounted }
    }

    /// A word of the command with the names of files in place of their paths; `None` if it names none that counts.
    pub fn word(&mut self, word: &str) -> Result<Option<String>> {
        let path = self.cwd.join(word);
        if path.is_file() {
            return self.file(&path);
        }
        if let Some(named) = self.value("", word)? {
            return Ok(Some(named));
        }
        for part in parts(word) {
            if let Some(label) = self.data_folder(&self.cwd.join(&word[part.clone()]))? {
                return Ok(Some(format!("{}{label}{}", &word[..part.start], &word[part.end..])));
            }
        }
        Ok(None)
    }

    /// The same for the value of a variable, or a word that has a path within it.
    pub fn value(&mut self, name: &str, text: &str) -> Result<Option<String>> {
        for part in parts(text) {
            let path = self.cwd.join(&text[part.clone()]);
            let option = format!("{name} {}", &text[..part.start]);
            if path.is_file() && self.is_data(&option, &path) {
                let label = self.file(&path)?;
                return Ok(label.map(|label| format!("{}{label}{}", &text[..part.start], &text[part.end..])));
            }
        }
        Ok(None)
    }

    /// A file of the setting `files`, or of a folder.
    pub fn listed(&mut self, path: PathBuf, name: String) -> Result<String> {
        let digest = self.digests.digest(&path)?;
        self.by_content.insert(path, digest);
        let mut label = name;
        while self.contents.get(&label).is_some_and(|other| *other != digest) {
            label += "'";
        }
        self.contents.insert(label.clone(), digest);
        Ok(label)
    }

    /// The name of a file that counts.
    fn file(&mut self, path: &Path) -> Result<Option<String>> {
        let is_database = is_database(path);
        if is_database && !self.is_read_only {
            self.uncounted.insert(path.to_owned());
            return Ok(None);
        }
        let name = file_name(path);
        if is_database {
            let log = PathBuf::from(format!("{}-wal", path.display()));
            if log.metadata().is_ok_and(|log| log.len() > 0) {
                self.listed(log, format!("{name}-wal"))?;
            }
        }
        self.listed(path.to_owned(), name).map(Some)
    }

    fn is_data(&self, option: &str, path: &Path) -> bool {
        let may_write = self.written.iter().any(|written| path.starts_with(written));
        is_database(path)
            || self.is_read_only
                && !may_write
                && !is_no_data(option)
                && !is_written(path)
                && !is_program(path)
    }

    /// The name of a folder whose files count.
    fn data_folder(&mut self, path: &Path) -> Result<Option<String>> {
        if !self.is_read_only || !path.is_dir() {
            return Ok(None);
        }
        let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let may_write = self.written.iter().any(|written| path.starts_with(written));
        let (path, around) = (whole(path), [self.folder, self.cwd, &std::env::temp_dir()].map(whole));
        if may_write || around.iter().any(|around| around.starts_with(&path)) {
            return Ok(None);
        }
        let Some(files) = small_folder(&path) else { return Ok(None) };
        let label = file_name(&path);
        for file in files {
            let inner = file.strip_prefix(&path).unwrap_or(&file).to_string_lossy().into_owned();
            self.listed(file, format!("{label}/{inner}"))?;
        }
        Ok(Some(label))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Where a path may stand in a text: all of it, behind `=`, in a URL of a file or database.
fn parts(text: &str) -> Vec<Range<usize>> {
    let after = |mark: &str| text.find(mark).map(|at| at + mark.len());
    let starts = [Some(0), after("="), after(":///"), after("://"), after("file:")];
    let ends = [Some(text.len()), text.find('?')];
    let of =
        |start: usize| ends.into_iter().flatten().filter(move |end| *end > start).map(move |end| start..end);
    starts.into_iter().flatten().flat_map(of).collect()
}

/// Whether an option or variable is that of a file that a server writes, or of a credential.
fn is_no_data(option: &str) -> bool {
    let lower = option.to_lowercase();
    lower.split(|letter: char| !letter.is_alphanumeric()).any(|word| NO_DATA.contains(&word))
}

/// Whether a server writes such a file, by its ending.
fn is_written(path: &Path) -> bool {
    WRITTEN.iter().any(|ending| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending)))
}

/// Every file in the folder, if they are few and small. Hidden files, caches and logs do not count, and links to folders are not
/// followed.
fn small_folder(folder: &Path) -> Option<Vec<PathBuf>> {
    let (mut files, mut bytes, mut open) = (Vec::new(), 0, vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).ok()?.flatten().filter(is_content) {
            let path = entry.path();
            if is_written(&path) {
                continue;
            }
            if path.is_file() {
                bytes += path.metadata().ok()?.len();
                files.push(path);
            } else if path.is_dir() && !path.is_symlink() {
                open.push(path);
            }
            if files.len() + open.len() > FOLDER_FILES || bytes > FOLDER_BYTES {
                return None;
            }
        }
    }
    files.sort();
    Some(files)
}

/// Whether an entry of a folder is no hidden file and no cache.
pub fn is_content(entry: &std::fs::DirEntry) -> bool {
    let name = entry.file_name();
    !name.as_encoded_bytes().starts_with(b".") && name != "__pycache__" && name != "node_modules"
}

/// The first bytes of a file.
fn head(path: &Path) -> [u8; 16] {
    let mut head = [0; 16];
    let read = File::open(path).and_then(|file| file.take(16).read(&mut head));
    if read.is_ok() { head } else { [0; 16] }
}

/// Whether the file is a SQLite or DuckDB database.
fn is_database(path: &Path) -> bool {
    let head = head(path);
    head == *b"SQLite format 3\0" || head[8..12] == *b"DUCK"
}

/// Whether the file is a program of Linux, macOS or Windows. A script is none: it counts.
fn is_program(path: &Path) -> bool {
    let head = head(path);
    let magic = [b"\x7fELF".as_slice(), b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"];
    magic.iter().any(|magic| head.starts_with(magic))
}
