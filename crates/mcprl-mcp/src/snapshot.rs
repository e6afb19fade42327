//! A server's scratch folder: a copy of a template, made for one session and deleted with it.
//!
//! The server gets the folder's real path in place of `{dir}`. The agent sees [`SHOWN`] instead, in results and in what it
//! sends, so that an episode does not depend on a random path.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use tempfile::TempDir;

use super::McpError;

/// The folder's path as the agent sees it.
pub const SHOWN: &str = "/snapshot";
/// What stands for the folder in `command`, `env` and `cwd`.
pub const PLACEHOLDER: &str = "{dir}";

pub(super) struct Snapshot {
    folder: TempDir,
    path: PathBuf,
}

impl Snapshot {
    /// Copies the template.
    ///
    /// # Errors
    /// If it cannot be copied, or has a link that leads out of it.
    pub(super) async fn of(template: &Path) -> Result<Self, McpError> {
        let template = template.to_owned();
        let failed = |source| McpError::Snapshot { template: template.clone(), source };
        let from = template.clone();
        let copied = tokio::task::spawn_blocking(move || {
            let folder = tempfile::Builder::new().prefix("mcprl-").tempdir()?;
            let path = folder.path().canonicalize()?;
            copy(&from, &path, &from.canonicalize()?)?;
            Ok(Self { folder, path })
        });
        copied.await.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the folder.
    pub(super) async fn delete(self) {
        // What cannot be deleted stays in the temporary folder; a result does not depend on it.
        let _ = tokio::task::spawn_blocking(move || self.folder.close()).await;
    }
}

/// Replaces [`SHOWN`] where it is a whole component of an absolute path.
pub(super) fn replace_path(text: &str, real: &str) -> String {
    let is_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/');
    let (mut replaced, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find(SHOWN) {
        let (before, after) = (&rest[..start], &rest[start + SHOWN.len()..]);
        let is_path = !before.ends_with(is_name) && (after.starts_with('/') || !after.starts_with(is_name));
        replaced += before;
        replaced += if is_path { real } else { SHOWN };
        rest = after;
    }
    replaced + rest
}

/// Copies what is in `from` into the existing folder `to`.
fn copy(from: &Path, to: &Path, root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target, kind) = (entry.path(), to.join(entry.file_name()), entry.file_type()?);
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy(&source, &target, root)?;
            copy_time(&source, &target)?;
        } else if kind.is_symlink() {
            let leads_to = fs::read_link(&source)?;
            if !stays_inside(&source, &leads_to, root) {
                return Err(io::Error::other(format!("the link {} leads out of it", source.display())));
            }
            #[cfg(unix)]
            std::os::unix::fs::symlink(leads_to, target)?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
            copy_time(&source, &target)?;
        }
    }
    Ok(())
}

/// A file is as old in every episode as it is in the template.
fn copy_time(from: &Path, to: &Path) -> io::Result<()> {
    fs::File::open(to)?.set_modified(from.metadata()?.modified()?)
}

/// Whether a relative link leads to something in the template, on a way that does not leave it: the copy is elsewhere.
fn stays_inside(link: &Path, leads_to: &Path, root: &Path) -> bool {
    let Some(folder) = link.parent().and_then(|folder| folder.canonicalize().ok()) else { return false };
    let Ok(inner) = folder.strip_prefix(root) else { return false };
    let mut depth = inner.components().count();
    for part in leads_to.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    folder.join(leads_to).canonicalize().is_ok_and(|path| path.starts_with(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folder_itself_is_replaced() {
        let check = |text: &str, expected: &str| assert_eq!(replace_path(text, "/tmp/x"), expected, "{text}");
        check("/snapshot/a.txt", "/tmp/x/a.txt");
        check("cat '/snapshot' /snapshot/b", "cat '/tmp/x' /tmp/x/b");
        check("/snapshots /home/snapshot my/snapshot", "/snapshots /home/snapshot my/snapshot");
        check("", "");
    }

    #[tokio::test]
    async fn a_copy_has_all_files_and_ends_with_its_session() {
        let template = tempfile::tempdir().unwrap();
        fs::create_dir_all(template.path().join(".git/refs")).unwrap();
        let head = template.path().join(".git/HEAD");
        fs::write(&head, "main").unwrap();
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        for aged in [head, template.path().join(".git/refs")] {
            fs::File::open(aged).unwrap().set_modified(old).unwrap();
        }
        std::os::unix::fs::symlink(".git/HEAD", template.path().join("head")).unwrap();
        let copied = Snapshot::of(template.path()).await.unwrap();
        let path = copied.path().to_owned();
        for aged in [".git/HEAD", ".git/refs"] {
            assert_eq!(path.join(aged).metadata().unwrap().modified().unwrap(), old, "{aged}");
        }
        fs::write(path.join("head"), "other").unwrap();
        assert_eq!(fs::read_to_string(path.join(".git/HEAD")).unwrap(), "other");
        assert_eq!(fs::read_to_string(template.path().join("head")).unwrap(), "main");
        copied.delete().await;
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_template_whose_link_leads_out_of_it_is_refused() {
        let template = tempfile::tempdir().unwrap();
        let back = format!("../{}/notes", template.path().file_name().unwrap().to_str().unwrap());
        drop(template);
        for outside in ["/etc/passwd", "../..", "no-such-file", &back] {
            let template = tempfile::tempdir().unwrap();
            fs::write(template.path().join("notes"), "x").unwrap();
            std::os::unix::fs::symlink(outside, template.path().join("link")).unwrap();
            let error = Snapshot::of(template.path()).await.err().unwrap();
            assert!(matches!(error, McpError::Snapshot { .. }), "{outside}: {error}");
        }
    }
}
