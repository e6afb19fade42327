//! Artifacts by content: putting them in their place, and telling cheaply whether one is still what it was.
//!
//! A seal vouches for bytes without their being read, so it is written once they are durable (`settle.rs`), never before.

use std::{
    fs::Permissions,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    Output, Store, StoreError, aside, failpoint,
    lease::touch,
    tree::{self, Entry, FileStamp},
    write,
};
use crate::hash::Digest;

/// An artifact that is in its place, and not durable yet.
#[derive(Debug)]
pub struct UnsyncedArtifact {
    pub digest: Digest,
    /// As it was before its bytes were read; absent where the artifact was there already.
    pub(super) seal: Option<Seal>,
}

/// What an artifact in the store is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Its files are as they were when last hashed.
    Sealed,
    /// The seal did not fit (a copied store, a touched file), but the bytes are right.
    Unsealed,
    Absent,
    /// It can not be used; says what is wrong with it.
    Damaged(String),
}

impl Condition {
    pub fn is_intact(&self) -> bool {
        matches!(self, Self::Sealed | Self::Unsealed)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Seal {
    files: Vec<Entry>,
    /// The folders, the artifact's own first: their stamps say that no file came or went. Absent in older stores.
    #[serde(default)]
    folders: Vec<Entry>,
}

impl Seal {
    fn of(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self { files: tree::list(folder)?, folders: tree::folders(folder)? })
    }

    /// All its files and folders.
    pub(super) fn paths(&self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        let inner = self.files.iter().chain(&self.folders);
        inner.map(|entry| if entry.path.is_empty() { folder.to_owned() } else { folder.join(&entry.path) })
    }

    /// Whether everything is as it was; asked of the files themselves, no folder is listed.
    fn fits(&self, folder: &Path) -> bool {
        let same = |entry: &Entry| {
            let path = if entry.path.is_empty() { folder.to_owned() } else { folder.join(&entry.path) };
            path.symlink_metadata().is_ok_and(|metadata| {
                let (now, then) = (FileStamp::from(&metadata), &entry.stamp);
                // A folder's time of change moves when it is put in its place.
                let moved = metadata.is_dir() && (now.inode, now.mtime) == (then.inode, then.mtime);
                moved || now == *then
            })
        };
        !self.folders.is_empty() && self.folders.iter().chain(&self.files).all(same)
    }
}

impl Store {
    /// Where the artifact is, if it is there.
    pub fn artifact(&self, digest: &Digest) -> PathBuf {
        let digest = digest.to_string();
        self.root.join("cas").join(&digest[..2]).join(digest)
    }

    /// Path of an output: the file, or the folder.
    pub fn path(&self, output: &Output) -> PathBuf {
        let folder = self.artifact(&output.digest);
        match &output.file {
            Some(file) => folder.join(file),
            None => folder,
        }
    }

    pub(super) fn seal_path(&self, digest: &Digest) -> PathBuf {
        self.artifact(digest).with_extension("seal")
    }

    fn read_seal(&self, digest: &Digest) -> Option<Seal> {
        let seal = std::fs::read(self.seal_path(digest)).ok()?;
        serde_json::from_slice(&seal).ok()
    }

    /// What an artifact's seal vouches for, whether or not it still fits: folders, its own first, then files. With each
    /// whether it is a folder.
    pub(super) fn sealed(&self, digest: &Digest) -> Option<Vec<(Entry, bool)>> {
        let Seal { files, folders } = self.read_seal(digest)?;
        let folders = folders.into_iter().map(|entry| (entry, true));
        Some(folders.chain(files.into_iter().map(|entry| (entry, false))).collect())
    }

    /// Whether its files are as they were when last hashed. Reads none.
    pub(super) fn is_sealed(&self, digest: &Digest) -> bool {
        self.read_seal(digest).is_some_and(|seal| seal.fits(&self.artifact(digest)))
    }

    /// Whether the artifact can be used. Stats its files; reads them only where the seal does not fit. Writes nothing.
    pub fn inspect(&self, digest: &Digest) -> Condition {
        let folder = self.artifact(digest);
        if self.is_sealed(digest) {
            return Condition::Sealed;
        }
        let entries = match tree::list(&folder) {
            Ok(entries) => entries,
            Err(StoreError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Condition::Absent;
            }
            Err(cause) => return Condition::Damaged(cause.to_string()),
        };
        match tree::digest(&folder, &entries) {
            Ok(found) if found == *digest => Condition::Unsealed,
            Ok(_) => Condition::Damaged("its bytes changed since it was written".into()),
            Err(cause) => Condition::Damaged(cause.to_string()),
        }
    }

    /// Records the stamps of an intact artifact, so that the next look at it is cheap. Makes it durable first.
    pub fn seal(&self, digest: &Digest) -> Result<(), StoreError> {
        let seal = Seal::of(&self.artifact(digest))?;
        self.settle(&[UnsyncedArtifact { digest: *digest, seal: Some(seal) }], &[])
    }

    pub(super) fn write_seal(&self, digest: &Digest, seal: &Seal) -> Result<(), StoreError> {
        let seal = serde_json::to_vec(seal).unwrap_or_default();
        write::replace(self, &self.seal_path(digest), &seal)
    }

    /// [`Store::place`], and durable.
    pub fn publish(&self, staged: &Path) -> Result<Digest, StoreError> {
        let placed = self.place(staged)?;
        let digest = placed.digest;
        self.settle(&[placed], &[])?;
        Ok(digest)
    }

    /// Moves a folder of the store's own `tmp/` in as an artifact. The folder is gone afterwards.
    ///
    /// Equal content that is already there is kept; a damaged artifact under the same digest is replaced. A process
    /// that is killed loses nothing of it from here on; the power may fail until it is settled.
    pub fn place(&self, staged: &Path) -> Result<UnsyncedArtifact, StoreError> {
        for entry in tree::list(staged)? {
            let path = staged.join(&entry.path);
            std::fs::set_permissions(&path, Permissions::from_mode(0o444))
                .map_err(|cause| StoreError::writing(path, cause))?;
        }
        // Stamps are taken before the bytes are read: a change in between shows as a seal that does not fit.
        let seal = Seal::of(staged)?;
        let digest = tree::digest(staged, &seal.files)?;
        failpoint("publish::hashed");

        let target = self.artifact(&digest);
        if self.retain(&digest)? {
            remove(staged)?;
            return Ok(UnsyncedArtifact { digest, seal: None });
        }
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(|cause| StoreError::writing(parent, cause))?;
        }
        if target.exists() {
            self.discard(&target)?;
        }
        match std::fs::rename(staged, &target) {
            Ok(()) => failpoint("publish::renamed"),
            // Another process published the same bytes in between.
            Err(_) if self.inspect(&digest).is_intact() => {
                // Which may have been killed since.
                self.renew(&digest)?;
                remove(staged)?;
                return Ok(UnsyncedArtifact { digest, seal: None });
            }
            Err(cause) => return Err(StoreError::writing(target, cause)),
        }
        Ok(UnsyncedArtifact { digest, seal: Some(seal) })
    }

    /// Whether the artifact is there and can be used, for one who counts on it from now on.
    pub(super) fn retain(&self, digest: &Digest) -> Result<bool, StoreError> {
        if !self.inspect(digest).is_intact() {
            return Ok(false);
        }
        // The seal changes before the artifact is counted on, so that a sweep under way spares it.
        self.renew(digest)?;
        self.after_sweep();
        Ok(self.artifact(digest).is_dir())
    }

    /// Changes the seal's time, or makes the artifact durable and the seal.
    fn renew(&self, digest: &Digest) -> Result<(), StoreError> {
        let path = self.seal_path(digest);
        let sealed = match touch(&path) {
            // Another user's seal may be one's own to replace, and not to touch.
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                self.seal(digest)
            }
            touched => touched.map_err(|cause| StoreError::writing(path, cause)),
        };
        match sealed {
            // GcReport just now.
            Err(_) if !self.artifact(digest).exists() => Ok(()),
            sealed => sealed,
        }
    }

    /// Takes a folder out of sight in one step, then deletes it.
    fn discard(&self, folder: &Path) -> Result<(), StoreError> {
        let grave = aside(&self.tmp()).map_err(|cause| StoreError::writing(self.tmp(), cause))?;
        std::fs::rename(folder, grave.path().join("artifact"))
            .map_err(|cause| StoreError::writing(folder, cause))
    }
}

fn remove(folder: &Path) -> Result<(), StoreError> {
    match std::fs::remove_dir_all(folder) {
        // An NFS client that missed the answer to its rename finds the folder gone.
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(StoreError::writing(folder, cause)),
        _ => Ok(()),
    }
}
