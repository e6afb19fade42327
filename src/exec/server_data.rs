//! Whether the files of a server have changed since a run began.

use std::{collections::BTreeMap, path::Path};

use super::{Listener, error::ExecError, event::Event, folder::RunFolder};
use crate::{error::Result, hash::Digest, plan::Plan, store::FileDigests};

/// Notes the server's files in the run's journal, and reports those that have changed since they were noted.
pub fn check(plan: &Plan, files: &FileDigests, run: &RunFolder, listener: &dyn Listener) -> Result<()> {
    let name = |path: &Path| path.display().to_string();
    let mut now: BTreeMap<String, Digest> =
        plan.server_files().map(|(path, digest)| (name(path), *digest)).collect();
    let counted = now.clone();
    for path in plan.uncounted_files() {
        // It may be gone.
        if let Ok(digest) = files.digest(path) {
            now.insert(name(path), digest);
        }
    }
    let before = run.server_files();
    for (path, digest) in &now {
        if before.get(path).is_some_and(|before| before != digest) {
            let (path, is_counted) = (path.clone(), counted.contains_key(path));
            let changed = ExecError::DataChanged { path, is_counted };
            listener.event(&Event::Finding { error: (&crate::error::Failure::from(changed)).into() });
        }
    }
    if now != before {
        run.note(&Event::ServerFiles { files: now })?;
    }
    Ok(())
}
