//! The locations of the run file, the cache and the stage cards on disk.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::{error::Result, stage::Cards, store::Store};

/// Options that replace the default locations.
#[derive(Args, Clone, Debug, Default)]
pub struct Locations {
    /// The cache (or `MCPRL_CACHE`) [default: the nearest existing one above the run file, up to `.git`; else `cache/`
    /// next to the nearest `stages/` or `.git`; else next to the run file].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Stage cards on disk (or `MCPRL_STAGES`) [default: the nearest `stages/` next to or above the run file, up to
    /// `.git`].
    #[arg(long, value_name = "DIR")]
    stages: Option<PathBuf>,
}

impl Locations {
    /// The store for a run file, or for the current folder if there is none.
    pub fn store(&self, run_file: Option<&Path>) -> Result<Store> {
        let root = self.cache.clone().or_else(|| variable("MCPRL_CACHE"));
        Ok(Store::open(root.unwrap_or_else(|| default_cache(run_file)))?)
    }

    /// The `stages/` folder given by option or environment.
    pub fn given_stages(&self) -> Option<PathBuf> {
        self.stages.clone().or_else(|| variable("MCPRL_STAGES"))
    }

    /// The `stages/` folder, if there is one.
    pub fn stages(&self, run_file: Option<&Path>) -> Option<PathBuf> {
        let nearest = || Some(nearest(run_file, &["stages"])?.join("stages"));
        let folder = self.given_stages().or_else(nearest)?;
        folder.is_dir().then(|| std::path::absolute(&folder).unwrap_or(folder))
    }

    pub fn cards(&self, run_file: Option<&Path>) -> Cards {
        Cards::new(self.stages(run_file))
    }
}

/// The option that names this cache; empty if it is the default one in the current folder.
pub fn cache_option(store: &Store) -> String {
    let default = variable("MCPRL_CACHE").unwrap_or_else(|| default_cache(None));
    if std::path::absolute(store.root()).ok() == std::path::absolute(default).ok() {
        String::new()
    } else {
        format!(" --cache {}", store.root().display())
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn default_cache(run_file: Option<&Path>) -> PathBuf {
    let project = nearest(run_file, &["cache/version"]).or_else(|| nearest(run_file, &[".git", "stages"]));
    let project = project.unwrap_or_else(|| folder_of(run_file));
    // Users see this path, so it is relative where that is shorter.
    let here = std::env::current_dir().unwrap_or_default();
    project.strip_prefix(&here).unwrap_or(&project).join("cache")
}

/// The nearest folder with one of these, from the run file's own upwards to the root of the repository.
fn nearest(run_file: Option<&Path>, marks: &[&str]) -> Option<PathBuf> {
    let own = folder_of(run_file);
    for folder in own.ancestors() {
        if marks.iter().any(|mark| folder.join(mark).exists()) {
            return Some(folder.to_owned());
        }
        if folder.join(".git").exists() {
            break;
        }
    }
    None
}

/// The folder of the run file, or the current one.
fn folder_of(run_file: Option<&Path>) -> PathBuf {
    let folder = match run_file.and_then(Path::parent) {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A project with these files and folders, and the places for a run file in its folder `agents`.
    fn places(paths: &[&str]) -> (tempfile::TempDir, PathBuf, Option<PathBuf>) {
        let project = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(project.path().join("agents")).unwrap();
        for path in paths {
            std::fs::create_dir_all(project.path().join(path)).unwrap();
        }
        let run_file = project.path().join("agents/run.toml");
        let below = |path: PathBuf| path.strip_prefix(project.path()).unwrap().to_owned();
        let cache = below(default_cache(Some(&run_file)));
        let stages = Locations::default().stages(Some(&run_file)).map(below);
        (project, cache, stages)
    }

    #[test]
    fn an_existing_cache_stays_the_cache_when_a_nearer_folder_gets_stages() {
        let (_project, cache, stages) = places(&[".git", "cache/version", "agents/stages"]);
        assert_eq!((cache, stages), ("cache".into(), Some("agents/stages".into())));
    }

    #[test]
    fn stages_are_found_above_a_nearer_cache() {
        let (_project, cache, stages) = places(&[".git", "stages", "agents/cache/version"]);
        assert_eq!((cache, stages), ("agents/cache".into(), Some("stages".into())));
    }

    #[test]
    fn a_new_cache_is_next_to_the_nearest_stages_or_git() {
        assert_eq!(places(&[".git"]).1, Path::new("cache"));
        assert_eq!(places(&[".git", "agents/stages"]).1, Path::new("agents/cache"));
        assert_eq!(places(&[]).1, Path::new("agents/cache"));
    }

    #[test]
    fn nothing_outside_the_repository_is_used() {
        let (_project, cache, stages) = places(&["cache/version", "stages", "agents/.git"]);
        assert_eq!((cache, stages), ("agents/cache".into(), None));
    }
}
