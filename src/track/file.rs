//! Files whose content follows from a run, written so that programs can read them while they grow.

use std::{fs::OpenOptions, io::Write, path::Path};

use super::TrackError;
use crate::{error::if_found, store::replace_file};

/// What was done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    Appended,
    /// It is a new file, or its beginning was another.
    Replaced,
}

/// Gives a file this content. What is missing at its end is appended by one write; a file with another beginning is
/// replaced as a whole, and readers see the old or the new one.
///
/// # Errors
/// If the file or its folder cannot be read or written.
pub fn write(path: &Path, content: &[u8]) -> Result<Change, TrackError> {
    change(path, content).map_err(|source| TrackError::Write { path: path.to_owned(), source })
}

fn change(path: &Path, content: &[u8]) -> std::io::Result<Change> {
    match if_found(std::fs::read(path))? {
        Some(before) if before == content => return Ok(Change::None),
        Some(before) if content.starts_with(&before) => {
            OpenOptions::new().append(true).open(path)?.write_all(&content[before.len()..])?;
            return Ok(Change::Appended);
        }
        _ => {}
    }
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    replace_file(path, 0o666, content)?;
    Ok(Change::Replaced)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_grows_in_place_and_is_replaced_if_its_beginning_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        let inode = || path.metadata().unwrap().ino();
        let check = |content: &[u8], expected| {
            assert_eq!(write(&path, content).unwrap(), expected);
            assert_eq!(std::fs::read(&path).unwrap(), content);
        };
        check(b"one", Change::Replaced);
        let first = inode();
        check(b"one two", Change::Appended);
        check(b"one two", Change::None);
        assert_eq!(inode(), first);
        check(b"two one", Change::Replaced);
        assert_ne!(inode(), first);
        // The file is longer than its new content, for example after a write that was cut short.
        check(b"two", Change::Replaced);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left aside");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let error = write(&folder.path().join("file/inner"), b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot write"), "{error}");
    }
}
