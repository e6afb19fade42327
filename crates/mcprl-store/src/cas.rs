//! Artifacts by content: moving them into place, and checking cheaply that they are unchanged.
//!
//! A seal lets readers trust bytes without reading them, so it is written only after they are durable
//! (`sync.rs`).

use std::{
    fs::Permissions,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use mcprl_base::{error::if_found, hash::Digest};
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreError, aside, failpoint,
    lease::touch,
    tree::{self, Entry, FileStamp, Tree},
    write,
};

/// How often an artifact is tried to be put in place while other processes put damaged ones there or take them away.
const CONTENDERS: usize = 16;

/// An artifact that is in place but not durable yet.
#[derive(Debug)]
pub struct UnsyncedArtifact {
    pub digest: Digest,
    /// Stamps from before the bytes were read; absent if the artifact already existed.
    pub(super) seal: Option<Seal>,
}

/// One output of a finished stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub digest: Digest,
    /// Name of the file if the output is a single file; absent if it is a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// The state of an artifact in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Its files are unchanged since they were last hashed.
    Sealed,
    /// The seal does not fit (a copied store, a touched file), but the bytes are right.
    Unsealed,
    Absent,
    /// It is unusable, for this reason.
    Damaged(String),
}

impl Condition {
    /// Hashes the artifact at this path. Never `Sealed`.
    pub(super) fn of(folder: &Path, digest: &Digest) -> Self {
        match tree::list(folder).and_then(|entries| tree::digest(folder, &entries)) {
            Ok(found) if found == *digest => Self::Unsealed,
            Ok(_) => Self::Damaged("its bytes changed since it was written".into()),
            Err(StoreError::Read { path, source })
                if source.kind() == ErrorKind::NotFound && path == *folder =>
            {
                Self::Absent
            }
            Err(cause) => Self::Damaged(cause.to_string()),
        }
    }

    pub fn is_intact(&self) -> bool {
        matches!(self, Self::Sealed | Self::Unsealed)
    }
}

/// The files and folders of an artifact when it was last hashed.
pub(super) type Seal = Tree;

impl Seal {
    /// All its folders and files, with their paths.
    fn entries(&self, folder: &Path) -> impl Iterator<Item = (PathBuf, &Entry)> {
        let path = |entry: &Entry| match entry.path.is_empty() {
            true => folder.to_owned(),
            false => folder.join(&entry.path),
        };
        self.folders.iter().chain(&self.files).map(move |entry| (path(entry), entry))
    }

    pub(super) fn paths(&self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        self.entries(folder).map(|(path, _)| path)
    }

    /// Whether this is what was read earlier, except that other hard links to its files are gone, which changes their ctime.
    fn is_as_read(&self, earlier: &Self) -> bool {
        let same = |(now, then): (&Entry, &Entry)| {
            let (of, old) = (&now.stamp, &then.stamp);
            now.path == then.path && (of.inode, of.size, of.mtime) == (old.inode, old.size, old.mtime)
        };
        let lengths = |seal: &Self| (seal.folders.len(), seal.files.len());
        lengths(self) == lengths(earlier)
            && self.folders.iter().zip(&earlier.folders).all(same)
            && self.files.iter().zip(&earlier.files).all(same)
    }

    /// Whether everything is unchanged. Only stats the listed paths, lists no folder.
    fn fits(&self, folder: &Path) -> bool {
        let same = |(path, entry): (PathBuf, &Entry)| {
            path.symlink_metadata().is_ok_and(|metadata| {
                let (now, then) = (FileStamp::from(&metadata), &entry.stamp);
                // A folder's ctime changes when it is moved into place.
                let moved = metadata.is_dir() && (now.inode, now.mtime) == (then.inode, then.mtime);
                moved || now == *then
            })
        };
        self.entries(folder).all(same)
    }
}

impl Store {
    /// Path of the artifact, whether or not it exists.
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

    /// Whether its files are unchanged since they were last hashed. Reads none.
    pub(super) fn is_sealed(&self, digest: &Digest) -> bool {
        let seal = std::fs::read(self.seal_path(digest)).ok();
        let seal = seal.and_then(|seal| serde_json::from_slice::<Seal>(&seal).ok());
        seal.is_some_and(|seal| seal.fits(&self.artifact(digest)))
    }

    /// Whether the artifact is usable. Stats its files, and reads them only if the seal does not fit. Writes
    /// nothing.
    pub fn inspect(&self, digest: &Digest) -> Condition {
        if self.is_sealed(digest) { Condition::Sealed } else { Condition::of(&self.artifact(digest), digest) }
    }

    /// The folder of an artifact whose bytes are right.
    ///
    /// # Errors
    /// If it is gone or damaged.
    pub fn intact(&self, digest: &Digest) -> Result<PathBuf, StoreError> {
        match self.inspect(digest) {
            Condition::Sealed | Condition::Unsealed => Ok(self.artifact(digest)),
            Condition::Absent => Err(StoreError::Absent { digest: digest.short() }),
            Condition::Damaged(_) => {
                Err(StoreError::Corrupt { root: self.root.clone(), digest: digest.short() })
            }
        }
    }

    /// Writes the seal of an intact artifact, so that the next lookup is cheap. Makes it durable first.
    pub fn seal(&self, digest: &Digest) -> Result<(), StoreError> {
        let seal = Seal::read(&self.artifact(digest))?;
        self.sync(&[UnsyncedArtifact { digest: *digest, seal: Some(seal) }], &[])
    }

    pub(super) fn write_seal(&self, digest: &Digest, seal: &Seal) -> Result<(), StoreError> {
        let seal = serde_json::to_vec(seal).unwrap_or_default();
        write::replace(self, &self.seal_path(digest), &seal)
    }

    /// Like [`Store::place`], and makes the artifact durable.
    pub fn publish(&self, staged: &Path) -> Result<Digest, StoreError> {
        let placed = self.place(staged)?;
        let digest = placed.digest;
        self.sync(&[placed], &[])?;
        Ok(digest)
    }

    /// Moves a folder from the store's own `tmp/` into place as an artifact. The source folder is gone
    /// afterwards.
    ///
    /// Equal content that exists is kept, also if another process publishes it at the same time: of several publishers,
    /// one puts its folder in place, and the others use that. A damaged artifact under the same digest is replaced. From
    /// here on a killed process loses nothing of it, but a power failure may until it is synced.
    pub fn place(&self, staged: &Path) -> Result<UnsyncedArtifact, StoreError> {
        for entry in tree::list(staged)? {
            let path = staged.join(&entry.path);
            std::fs::set_permissions(&path, Permissions::from_mode(0o444))
                .map_err(|cause| StoreError::writing(path, cause))?;
        }
        // Stamps are taken before the bytes are read, so that a change in between invalidates the seal.
        let seal = Seal::read(staged)?;
        let digest = tree::digest(staged, &seal.files)?;
        failpoint("publish::hashed");

        let target = self.artifact(&digest);
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(|cause| StoreError::writing(parent, cause))?;
        }
        for _ in 0..CONTENDERS {
            if self.retain(&digest)? {
                // An NFS client that missed the reply to its rename finds the folder gone.
                if_found(std::fs::remove_dir_all(staged))
                    .map_err(|cause| StoreError::writing(staged, cause))?;
                return Ok(UnsyncedArtifact { digest, seal: None });
            }
            // A folder that is in place is never renamed over, so at most one publisher succeeds.
            let refused = match std::fs::rename(staged, &target) {
                Ok(()) => {
                    failpoint("publish::renamed");
                    return Ok(UnsyncedArtifact { digest, seal: Some(seal) });
                }
                Err(cause) => cause,
            };
            match refused.kind() {
                // Damaged, or published by another process since: the next round tells.
                ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => self.discard_damaged(&digest)?,
                // An NFS client that missed the reply to its rename.
                ErrorKind::NotFound if target.is_dir() => {}
                _ => return Err(StoreError::writing(target, refused)),
            }
        }
        Err(StoreError::writing(target, ErrorKind::ResourceBusy.into()))
    }

    /// Takes the stamps of an artifact again, because other hard links to its files were removed since it was placed. If more
    /// than that has changed, the old stamps stay, and they do not fit: the artifact is hashed before it is used.
    pub fn stamp_again(&self, placed: &mut UnsyncedArtifact) -> Result<(), StoreError> {
        if let Some(seal) = &mut placed.seal {
            let now = Seal::read(&self.artifact(&placed.digest))?;
            if now.is_as_read(seal) {
                *seal = now;
            }
        }
        Ok(())
    }

    /// Whether the artifact is usable. For callers that rely on it from now on.
    pub(super) fn retain(&self, digest: &Digest) -> Result<bool, StoreError> {
        if !self.inspect(digest).is_intact() {
            return Ok(false);
        }
        // The seal changes before the caller relies on the artifact, so that a concurrent sweep spares it.
        self.renew(digest)?;
        self.after_sweep();
        Ok(self.artifact(digest).is_dir())
    }

    /// Updates the seal's mtime. If that is impossible, syncs the artifact and writes a new seal.
    fn renew(&self, digest: &Digest) -> Result<(), StoreError> {
        let path = self.seal_path(digest);
        let sealed = match touch(&path) {
            // Another user's seal cannot be touched, but may be replaceable.
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                self.seal(digest)
            }
            touched => touched.map_err(|cause| StoreError::writing(path, cause)),
        };
        match sealed {
            // A sweep has just removed it.
            Err(_) if !self.artifact(digest).exists() => Ok(()),
            sealed => sealed,
        }
    }

    /// Removes an artifact that is damaged. One that is intact stays: another process may have replaced it since it was
    /// inspected, and relies on it.
    pub(super) fn discard_damaged(&self, digest: &Digest) -> Result<(), StoreError> {
        let target = self.artifact(digest);
        if Condition::of(&target, digest).is_intact() {
            return Ok(());
        }
        let grave = aside(&self.tmp()).map_err(|cause| StoreError::writing(self.tmp(), cause))?;
        let moved = grave.path().join("artifact");
        // If another process was faster, nothing is moved.
        if_found(std::fs::rename(&target, &moved)).map_err(|cause| StoreError::writing(&target, cause))?;
        if Condition::of(&moved, digest).is_intact() {
            // It was replaced in between. If yet another process has published it since, that one stays.
            _ = std::fs::rename(&moved, &target);
        }
        Ok(())
    }
}
