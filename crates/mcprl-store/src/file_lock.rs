//! Locks between processes for files that people's commands change, such as labels. Leases need none.

use std::{
    fs::{File, OpenOptions, Permissions},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use rustix::fs::OFlags;

/// Keeps other holders away, in this process or another, until it is dropped or the process ends.
pub struct FileLock(#[expect(dead_code, reason = "holds the lock")] Option<File>);

impl FileLock {
    /// Waits for the lock of this name, a hidden file in the folder. It stays there, since a waiter may have it
    /// open. Without support for locks, or behind a symbolic link, nobody is kept away.
    pub fn take(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!(".{name}.lock"));
        // Whoever may write the folder may have put a link there, to a file of this user.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let open = |options: &mut OpenOptions| options.write(true).custom_flags(flags).open(&path);
        let made = open(File::options().create_new(true));
        let file = match made {
            // Another user of a shared cache may take it, too.
            Ok(file) => file.set_permissions(Permissions::from_mode(0o666)).map(|()| file),
            Err(_) => open(File::options().create(true)),
        };
        let is_own_kind = |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_file());
        Self(file.ok().filter(|file| is_own_kind(file) && file.lock().is_ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_for_everyone_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
        drop(FileLock::take(folder.path(), "a"));
        assert_eq!(mode(".a.lock"), 0o666);
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "x").unwrap();
        std::fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(".b.lock")).unwrap();
        std::fs::hard_link(&victim, folder.path().join(".c.lock")).unwrap();
        for name in ["b", "c"] {
            drop(FileLock::take(folder.path(), name));
            assert_eq!(mode("victim"), 0o600, "{name}");
        }
        let missing = folder.path().join("missing");
        std::os::unix::fs::symlink(&missing, folder.path().join(".d.lock")).unwrap();
        drop(FileLock::take(folder.path(), "d"));
        assert!(!missing.exists());
    }
}
