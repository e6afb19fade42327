//! The content of a folder: its files in a fixed order, their stamps, and one digest over names, lengths and
//! bytes.
//!
//! The digest ignores owners, permissions, times and empty folders.

use std::{
    fs::{File, Metadata},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use mcprl_base::hash::{Digest, Encoder};
use serde::{Deserialize, Serialize};

use super::StoreError;

/// File metadata, read without opening the file. Changing the bytes changes the stamp, because `ctime` cannot
/// be set back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    pub size: u64,
    pub inode: u64,
    /// Nanoseconds since the epoch.
    pub mtime: i128,
    pub ctime: i128,
}

impl From<&Metadata> for FileStamp {
    fn from(metadata: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            size: metadata.size(),
            inode: metadata.ino(),
            mtime: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            ctime: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// One file of a folder, by its path relative to the folder, with `/` between names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub path: String,
    pub stamp: FileStamp,
}

/// The files and folders below a folder, each sorted by path.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tree {
    pub files: Vec<Entry>,
    /// The folder itself comes first, with an empty path. Their stamps show whether files were added or removed.
    pub folders: Vec<Entry>,
}

impl Tree {
    pub fn read(folder: &Path) -> Result<Self, StoreError> {
        let mut tree = Self::default();
        tree.descend(folder, String::new())?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree.folders.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn descend(&mut self, folder: &Path, path: String) -> Result<(), StoreError> {
        let reading = |cause| StoreError::reading(folder, cause);
        // Taken before the folder is listed, so that a change in between is detected.
        let stamp = FileStamp::from(&folder.metadata().map_err(reading)?);
        for item in std::fs::read_dir(folder).map_err(reading)? {
            let item = item.map_err(reading)?;
            let name = item.file_name();
            let Some(name) = name.to_str() else { return Err(StoreError::Name { path: item.path() }) };
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            let metadata = item.metadata().map_err(|cause| StoreError::reading(item.path(), cause))?;
            if metadata.is_dir() {
                self.descend(&item.path(), path)?;
            } else if metadata.is_file() {
                self.files.push(Entry { path, stamp: FileStamp::from(&metadata) });
            } else {
                return Err(StoreError::Special { path: item.path() });
            }
        }
        self.folders.push(Entry { path, stamp });
        Ok(())
    }
}

/// All files under `folder`, sorted by path.
pub fn list(folder: &Path) -> Result<Vec<Entry>, StoreError> {
    Ok(Tree::read(folder)?.files)
}

/// The digest of a folder's files. Reads all of them.
pub fn tree_digest(folder: &Path) -> Result<Digest, StoreError> {
    digest(folder, &list(folder)?)
}

/// The digest of these files. Reads all of them.
pub fn digest(folder: &Path, entries: &[Entry]) -> Result<Digest, StoreError> {
    let mut files = Vec::with_capacity(entries.len());
    for entry in entries {
        files.push((entry.path.as_str(), entry.stamp.size, file_digest(&folder.join(&entry.path))?));
    }
    Ok(digest_of(files.into_iter()))
}

/// The digest of files with these paths, lengths and contents, sorted by path.
pub fn digest_of<'f>(files: impl ExactSizeIterator<Item = (&'f str, u64, Digest)>) -> Digest {
    let mut encoder = Encoder::new("mcprl artifact v1");
    encoder.number(files.len() as u64);
    for (path, size, content) in files {
        encoder.text(path).number(size).digest(&content);
    }
    encoder.finish()
}

/// Bytes of the hash tree that one thread reads at a time: a power of two.
const LEAF: u64 = 4 << 20;
const BLOCK: usize = 256 << 10;

/// The digest of one file's bytes. Several threads read a large file; blake3 is a tree hash, so the hashes of
/// the halves are merged.
pub fn file_digest(path: &Path) -> Result<Digest, StoreError> {
    let reading = |cause| StoreError::reading(path, cause);
    let file = File::open(path).map_err(reading)?;
    let length = file.metadata().map_err(reading)?.len();
    if length > 2 * LEAF {
        let left = left_subtree_len(length);
        let (left, right) = rayon::join(|| subtree(&file, 0, left), || subtree(&file, left, length - left));
        let root = merge_subtrees_root(&left.map_err(reading)?, &right.map_err(reading)?, Mode::Hash);
        return Ok(Digest::from_bytes(*root.as_bytes()));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file).map_err(reading)?;
    Ok(Digest::from_bytes(*hasher.finalize().as_bytes()))
}

/// The hash of `length` bytes from `offset`, as an inner node of the whole file's tree.
fn subtree(file: &File, offset: u64, length: u64) -> std::io::Result<ChainingValue> {
    if length > LEAF {
        let left = left_subtree_len(length);
        let (left, right) =
            rayon::join(|| subtree(file, offset, left), || subtree(file, offset + left, length - left));
        return Ok(merge_subtrees_non_root(&left?, &right?, Mode::Hash));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    let mut block = vec![0; BLOCK];
    let mut done = 0;
    while done < length {
        let most = usize::try_from(length - done).unwrap_or(BLOCK).min(BLOCK);
        let read = file.read_at(&mut block[..most], offset + done)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&block[..read]);
        done += read as u64;
    }
    Ok(hasher.finalize_non_root())
}

/// When a file or folder was last changed, if it is there.
pub fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// What is directly in a folder; nothing if it cannot be read.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|item| item.path()).collect()
}

pub fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_dir()).collect()
}

pub fn files(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_hashed_in_parts_has_the_digest_of_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        for length in [2 * LEAF - 1, 2 * LEAF, 2 * LEAF + 1, 3 * LEAF, 5 * LEAF + 12345] {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(file_digest(&path).unwrap(), Digest::of(&bytes), "{length}");
        }
    }
}
