//! The form of a record in a remote: with the files of its artifacts and a digest of the whole.

use std::collections::BTreeMap;

use mcprl_base::hash::Digest;
use serde::{Deserialize, Serialize};

use super::{Failed, is_below};
use crate::{ActionRecord, Store, tree};

/// One file of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Relative to the artifact, with `/` between names.
    pub path: String,
    pub size: u64,
    pub digest: Digest,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    pub record: ActionRecord,
    /// Files by artifact.
    pub files: BTreeMap<Digest, Vec<Blob>>,
}

impl Shared {
    /// Describes a record whose artifacts are in the store. Reads them.
    pub fn of(store: &Store, record: &ActionRecord) -> Result<Self, Failed> {
        let mut files = BTreeMap::new();
        for output in record.outputs.values() {
            let folder = store.artifact(&output.digest);
            let mut blobs = Vec::new();
            for entry in tree::list(&folder)? {
                let digest = tree::file_digest(&folder.join(&entry.path))?;
                blobs.push(Blob { path: entry.path, size: entry.stamp.size, digest });
            }
            if artifact(&blobs) != output.digest {
                return Err(Failed::Damaged("its bytes changed since it was written".into()));
            }
            files.insert(output.digest, blobs);
        }
        Ok(Self { record: record.clone(), files })
    }

    pub fn bytes(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = format!("{}\n", Digest::of(&text)).into_bytes();
        bytes.extend(text);
        bytes
    }

    /// Parses and checks a record. The error is the reason.
    pub fn read(bytes: &[u8], key: &Digest) -> Result<Self, String> {
        let damaged = || "its record is damaged".to_owned();
        let (digest, text) = bytes.split_at_checked(65).ok_or_else(damaged)?;
        let digest: Option<Digest> =
            std::str::from_utf8(digest).ok().and_then(|text| text.trim_end().parse().ok());
        if digest != Some(Digest::of(text)) {
            return Err(damaged());
        }
        let shared: Self =
            serde_json::from_slice(text).map_err(|_| "its record is of another version".to_owned())?;
        let is_whole = shared.record.outputs.values().all(|output| {
            let files = shared.files.get(&output.digest).map(Vec::as_slice).unwrap_or_default();
            let file = output.file.as_ref();
            artifact(files) == output.digest
                && files.iter().all(|blob| is_below(&blob.path))
                && file.is_none_or(|file| files.iter().any(|blob| blob.path == *file))
        });
        let is_meant = shared.record.key == *key && !shared.record.withheld;
        if is_whole && is_meant { Ok(shared) } else { Err("its record is inconsistent".into()) }
    }
}

/// The digest of an artifact with these files.
fn artifact(files: &[Blob]) -> Digest {
    tree::digest_of(files.iter().map(|blob| (blob.path.as_str(), blob.size, blob.digest)))
}
