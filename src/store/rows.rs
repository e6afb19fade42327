//! Finished rows of a stage that is not finished: `tmp/rows/<key>/rows.log`.
//!
//! A frame is: length of the name (u32, little endian), length of the row (u32), the name, the row, and the first
//! eight bytes of the blake3 of all that. Frames are appended with one write each; the first frame that does not
//! check ends the log, so a torn tail costs one row. Kept in the page cache, not synced: a killed process loses
//! nothing, a power cut may lose the newest rows.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use super::{Store, StoreError, die, failpoint, reached};
use crate::hash::Digest;

const CHECK: usize = 8;

/// The rows of one stage key.
pub struct RowLog {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

impl Store {
    pub fn rows(&self, key: &Digest) -> RowLog {
        RowLog {
            path: self.tmp().join("rows").join(key.to_string()).join("rows.log"),
            file: Mutex::new(None),
        }
    }
}

impl RowLog {
    /// Every row recorded so far; the last one of a name counts.
    pub fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        Ok(parse(&self.bytes()?).0)
    }

    /// Appends one row.
    pub fn record(&self, name: &str, row: &[u8]) -> Result<(), StoreError> {
        let writing = |cause| StoreError::writing(&self.path, cause);
        let frame = frame(name, row).map_err(writing)?;
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &mut *slot {
            Some(file) => file,
            None => slot.insert(self.open()?),
        };
        if reached("rows::torn") {
            _ = file.write_all(&frame[..frame.len() / 2]);
            die();
        }
        file.write_all(&frame).map_err(writing)?;
        failpoint("rows::recorded");
        Ok(())
    }

    /// Forgets all rows: the stage is published.
    pub fn clear(&self) -> Result<(), StoreError> {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let Some(folder) = self.path.parent().filter(|folder| folder.exists()) else { return Ok(()) };
        std::fs::remove_dir_all(folder).map_err(|cause| StoreError::writing(folder, cause))
    }

    fn bytes(&self) -> Result<Vec<u8>, StoreError> {
        match std::fs::read(&self.path) {
            Ok(bytes) => Ok(bytes),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(cause) => Err(StoreError::reading(&self.path, cause)),
        }
    }

    /// Opens for appending, a torn tail cut off first.
    fn open(&self) -> Result<File, StoreError> {
        let writing = |cause| StoreError::writing(&self.path, cause);
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(writing)?;
        }
        let whole = parse(&self.bytes()?).1;
        let file = OpenOptions::new().create(true).append(true).open(&self.path).map_err(writing)?;
        file.set_len(whole as u64).map_err(writing)?;
        Ok(file)
    }
}

fn frame(name: &str, row: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = |bytes: &[u8]| {
        u32::try_from(bytes.len()).map_err(|_| std::io::Error::other("a row is limited to 4 GiB"))
    };
    let mut frame = Vec::with_capacity(8 + name.len() + row.len() + CHECK);
    frame.extend(length(name.as_bytes())?.to_le_bytes());
    frame.extend(length(row)?.to_le_bytes());
    frame.extend(name.as_bytes());
    frame.extend(row);
    let check = Digest::of(&frame);
    frame.extend(&check.as_bytes()[..CHECK]);
    Ok(frame)
}

/// The rows of all whole frames, and how many bytes these take.
fn parse(bytes: &[u8]) -> (BTreeMap<String, Vec<u8>>, usize) {
    let mut rows = BTreeMap::new();
    let mut at = 0;
    while let Some((name, row, length)) = first(bytes.get(at..).unwrap_or_default()) {
        rows.insert(name, row);
        at += length;
    }
    (rows, at)
}

fn first(bytes: &[u8]) -> Option<(String, Vec<u8>, usize)> {
    let length = |at: usize| -> Option<usize> {
        let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(four)).ok()
    };
    let name_end = 8usize.checked_add(length(0)?)?;
    let row_end = name_end.checked_add(length(4)?)?;
    let end = row_end.checked_add(CHECK)?;
    let check = bytes.get(row_end..end)?;
    if check != &Digest::of(bytes.get(..row_end)?).as_bytes()[..CHECK] {
        return None;
    }
    let name = String::from_utf8(bytes.get(8..name_end)?.to_vec()).ok()?;
    Some((name, bytes.get(name_end..row_end)?.to_vec(), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (tempfile::TempDir, Store, Digest) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.prepare().unwrap();
        (folder, store, Digest::of(b"key"))
    }

    #[test]
    fn rows_outlive_the_writer_and_the_last_of_a_name_counts() {
        let (_folder, store, key) = log();
        let rows = store.rows(&key);
        rows.record("a", b"1").unwrap();
        rows.record("b", b"").unwrap();
        rows.record("a", b"2").unwrap();
        let found = store.rows(&key).finished().unwrap();
        assert_eq!(found, BTreeMap::from([("a".into(), b"2".to_vec()), ("b".into(), b"".to_vec())]));
    }

    #[test]
    fn a_tail_torn_at_any_byte_costs_the_torn_row_alone() {
        let (_folder, store, key) = log();
        store.rows(&key).record("a", b"first").unwrap();
        let path = store.rows(&key).path;
        let whole = std::fs::read(&path).unwrap().len();
        store.rows(&key).record("b", b"second").unwrap();
        let both = std::fs::read(&path).unwrap();
        for cut in whole..both.len() {
            std::fs::write(&path, &both[..cut]).unwrap();
            store.rows(&key).record("c", b"third").unwrap();
            let names: Vec<_> = store.rows(&key).finished().unwrap().into_keys().collect();
            assert_eq!(names, ["a", "c"], "cut at {cut}");
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_log() {
        let (_folder, store, key) = log();
        for name in ["a", "b", "c"] {
            store.rows(&key).record(name, b"row").unwrap();
        }
        let path = store.rows(&key).path;
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(store.rows(&key).finished().unwrap().len(), 1);
    }

    #[test]
    fn cleared_rows_are_gone() {
        let (_folder, store, key) = log();
        let rows = store.rows(&key);
        rows.record("a", b"1").unwrap();
        rows.clear().unwrap();
        assert!(rows.finished().unwrap().is_empty());
    }
}
