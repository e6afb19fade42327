//! Objects as files in a folder that several machines mount.
//!
//! A file is written to a temporary path, synced and renamed. To create one only if absent, a hard link is
//! used: on NFS, too, exactly one of several concurrent callers succeeds. The folder itself may be missing,
//! but its parent must exist, so that nothing is written under a missing mount.

use std::{
    fs::File,
    io::{Error, ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use mcprl_base::error::if_found;
use tempfile::NamedTempFile;

use super::{
    super::{
        die, reached,
        write::{Created, link},
    },
    objects::{ObjectError, Objects},
};

/// Bytes of a file that the failpoint `push::torn` leaves.
const TORN: u64 = 10;

pub struct Folder {
    root: PathBuf,
}

impl Folder {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn error(&self, cause: &Error) -> ObjectError {
        let text = format!("{}: {cause}", self.root.display());
        match cause.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ObjectError::Refused(text),
            _ => ObjectError::Unreachable(text),
        }
    }

    /// The result if nothing is found: `none` if the folder is available, else an error.
    fn there<T>(&self, none: T) -> Result<T, ObjectError> {
        let place = self.root.parent().unwrap_or(&self.root);
        match self.root.metadata() {
            Ok(found) if found.is_dir() => Ok(none),
            Ok(_) => Err(ObjectError::Unreachable(format!("{} is not a folder", self.root.display()))),
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(self.error(&cause)),
            Err(_) if place.is_dir() => Ok(none),
            Err(_) => Err(ObjectError::Unreachable(format!("there is no folder {}", place.display()))),
        }
    }

    /// A synced temporary file with these bytes.
    fn staged(&self, mut bytes: impl Read) -> Result<NamedTempFile, ObjectError> {
        self.there(())?;
        let mut stage = || {
            let folder = self.root.join("tmp");
            std::fs::create_dir_all(&folder)?;
            let mut file = NamedTempFile::new_in(&folder)?;
            if reached("push::torn") {
                _ = std::io::copy(&mut (&mut bytes).take(TORN), &mut file);
                die();
            }
            std::io::copy(&mut bytes, file.as_file_mut())?;
            // Other users read it.
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            file.as_file().set_permissions(mode)?;
            file.as_file().sync_all()?;
            Ok(file)
        };
        stage().map_err(|cause| self.error(&cause))
    }

    /// The path of an object. Creates its folder.
    fn target(&self, name: &str) -> Result<PathBuf, ObjectError> {
        let path = self.root.join(name);
        let parent = path.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(parent).map_err(|cause| self.error(&cause))?;
        Ok(path)
    }

    fn sync_parent(&self, path: &Path) -> Result<(), ObjectError> {
        let parent = path.parent().unwrap_or(&self.root);
        File::open(parent).and_then(|folder| folder.sync_all()).map_err(|cause| self.error(&cause))
    }

    fn place(&self, file: NamedTempFile, name: &str) -> Result<(), ObjectError> {
        let path = self.target(name)?;
        file.persist(&path).map_err(|cause| self.error(&cause.error))?;
        self.sync_parent(&path)
    }
}

impl Objects for Folder {
    fn read(&self, name: &str, to: &mut dyn Write) -> Result<bool, ObjectError> {
        let file = if_found(File::open(self.root.join(name))).map_err(|cause| self.error(&cause))?;
        let Some(mut file) = file else { return self.there(false) };
        let mut block = vec![0; 256 << 10];
        loop {
            let read = file.read(&mut block).map_err(|cause| self.error(&cause))?;
            if read == 0 {
                return Ok(true);
            }
            to.write_all(&block[..read]).map_err(ObjectError::Sink)?;
        }
    }

    fn size(&self, name: &str) -> Result<Option<u64>, ObjectError> {
        let metadata = if_found(self.root.join(name).metadata()).map_err(|cause| self.error(&cause))?;
        metadata.map_or_else(|| self.there(None), |metadata| Ok(Some(metadata.len())))
    }

    fn write(&self, name: &str, file: &Path) -> Result<(), ObjectError> {
        let file = File::open(file).map_err(ObjectError::Sink)?;
        self.place(self.staged(file)?, name)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectError> {
        self.place(self.staged(bytes)?, name)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, ObjectError> {
        let (file, path) = (self.staged(bytes)?, self.target(name)?);
        let created = link(&file, &path).map_err(|cause| self.error(&cause))?;
        if created == Created::New {
            self.sync_parent(&path)?;
        }
        Ok(created)
    }
}
