//! A sandbox for a server's process: bubblewrap (`bwrap`), which uses the Linux kernel's namespaces.
//!
//! | the server | in the sandbox |
//! |---|---|
//! | reads | all files but credentials in the home folder (`CREDENTIALS`), `/run` and the temporary folders |
//! | writes | its own empty `/tmp`, and what `write` lists |
//! | reaches over the network | nothing, unless `network` |
//! | sees of other processes | none but those it starts; all of them end with it, even if mcprl is killed |

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::tokens::token_folder;

pub const BWRAP: &str = "bwrap";

/// What a sandboxed server may do beyond reading files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    pub network: bool,
    /// Files and folders that it may write.
    pub write: Vec<PathBuf>,
}

/// Folders that are empty in the sandbox.
const HIDDEN: [&str; 3] = ["/tmp", "/var/tmp", "/run"];
/// Files and folders of the home folder that hold credentials.
const CREDENTIALS: [&str; 19] = [
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/credentials.toml",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".docker",
    ".git-credentials",
    ".gnupg",
    ".kube",
    ".local/share/keyrings",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pypirc",
    ".ssh",
    ".cache/huggingface/token",
];

impl Sandbox {
    /// The words before a command that runs in this sandbox. `needed` are paths that the server must be able to read,
    /// wherever they are.
    pub(super) fn words(&self, home: Option<&Path>, cwd: &Path, needed: &[PathBuf]) -> Vec<OsString> {
        let always = "--unshare-all --die-with-parent --new-session --cap-drop ALL \
                      --ro-bind / / --dev /dev --proc /proc --setenv TMPDIR /tmp";
        let mut words: Vec<OsString> =
            [BWRAP].into_iter().chain(always.split(' ')).map(OsString::from).collect();
        words.extend(HIDDEN.iter().flat_map(|folder| ["--tmpfs", folder]).map(OsString::from));
        let mut add = |option: &str, from: &Path, to: &Path| {
            words.extend([OsString::from(option), from.into(), to.into()]);
        };
        if self.network {
            // Where /etc/resolv.conf may point to.
            add("--ro-bind-try", Path::new("/run/systemd/resolve"), Path::new("/run/systemd/resolve"));
            add("--ro-bind-try", Path::new("/run/resolvconf"), Path::new("/run/resolvconf"));
        }
        let in_home = CREDENTIALS.iter().filter_map(|name| Some(home?.join(name)));
        let credentials: Vec<PathBuf> = in_home.chain(token_folder()).collect();
        // What is not in a folder that is hidden here can be read anyway.
        let is_hidden = |path: &&PathBuf| {
            HIDDEN.iter().any(|folder| path.starts_with(folder) && *path != Path::new(folder))
        };
        for path in needed.iter().filter(is_hidden) {
            add("--ro-bind-try", path, path);
        }
        for path in &self.write {
            add("--bind", path, path);
        }
        for path in credentials.iter().filter(|path| path.is_file()) {
            add("--ro-bind", Path::new("/dev/null"), path);
        }
        for path in credentials.iter().filter(|path| path.is_dir()) {
            words.extend([OsString::from("--tmpfs"), path.into()]);
        }
        if self.network {
            words.push("--share-net".into());
        }
        words.extend([OsString::from("--chdir"), cwd.into(), "--".into()]);
        words
    }
}
