//! Locks between processes for files that people's commands change, such as labels. Leases need none.

use std::{
    fs::{File, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// Keeps other holders away, in this process or another, until it is dropped or the process ends.
pub struct FileLock(#[expect(dead_code, reason = "holds the lock")] Option<File>);

impl FileLock {
    /// Waits for the lock of this name, a hidden file in the folder. It stays there, since a waiter may have it
    /// open. Without support for locks, nobody is kept away.
    pub fn take(folder: &Path, name: &str) -> Self {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join(format!(".{name}.lock")));
        if let Ok(file) = &file {
            // Another user of a shared cache may take it, too. Fails if it is another's file.
            _ = file.set_permissions(Permissions::from_mode(0o666));
        }
        Self(file.ok().filter(|file| file.lock().is_ok()))
    }
}
