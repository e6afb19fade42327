//! The locations of the run file, the cache and the stage cards on disk.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::{error::Result, stage::Cards, store::Store};

/// Options that replace the default locations.
#[derive(Args, Clone, Debug, Default)]
pub struct Locations {
    /// The cache (or `MCPRL_CACHE`) [default: `cache/` next to `.git`, `stages/` or an existing cache,
    /// searched for from the run file's folder upwards].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Stage cards on disk (or `MCPRL_STAGES`) [default: the nearest `stages/` next to or above the run file,
    /// or the cache].
    #[arg(long, value_name = "DIR")]
    stages: Option<PathBuf>,
}

impl Locations {
    /// The store for a run file, or for the current folder if there is none.
    pub fn store(&self, run_file: Option<&Path>) -> Result<Store> {
        let root = self.cache.clone().or_else(|| variable("MCPRL_CACHE"));
        Ok(Store::open(root.unwrap_or_else(|| project(run_file).join("cache")))?)
    }

    /// The `stages/` folder given by option or environment.
    pub fn given_stages(&self) -> Option<PathBuf> {
        self.stages.clone().or_else(|| variable("MCPRL_STAGES"))
    }

    /// The `stages/` folder, if there is one.
    pub fn stages(&self, run_file: Option<&Path>) -> Option<PathBuf> {
        let folder = self.given_stages().unwrap_or_else(|| project(run_file).join("stages"));
        folder.is_dir().then(|| std::path::absolute(&folder).unwrap_or(folder))
    }

    pub fn cards(&self, run_file: Option<&Path>) -> Cards {
        Cards::new(self.stages(run_file))
    }
}

/// The option that names this cache; empty if it is the default one in the current folder.
pub fn cache_option(store: &Store) -> String {
    let default = variable("MCPRL_CACHE").unwrap_or_else(|| project(None).join("cache"));
    if std::path::absolute(store.root()).ok() == std::path::absolute(default).ok() {
        String::new()
    } else {
        format!(" --cache {}", store.root().display())
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The nearest folder above the run file that looks like a project; else the run file's own.
fn project(run_file: Option<&Path>) -> PathBuf {
    let folder = match run_file.and_then(Path::parent) {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let absolute = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
    let marked =
        |folder: &&Path| [".git", "stages", "cache/version"].iter().any(|mark| folder.join(mark).exists());
    let found = absolute.ancestors().find(marked).unwrap_or(&absolute);
    // Users see this path, so it is relative where that is shorter.
    let here = std::env::current_dir().unwrap_or_default();
    match found.strip_prefix(&here) {
        Ok(below) => below.to_owned(),
        Err(_) => found.to_owned(),
    }
}
