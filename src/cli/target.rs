//! Parses references to a run or a part of one: by id, or by a path that `run` printed.

use std::path::Path;

use super::locations::Locations;
use crate::{error::Result, store::Store};

/// A run, or a part of it.
pub struct Target {
    pub store: Store,
    /// May be `latest`.
    pub run: String,
    /// A stage, an iteration or an output, spelled as [`crate::plan::NodeName`] reads it.
    pub part: Option<String>,
}

impl Target {
    /// Parses a path into a run's folder, `RUN` or `RUN/STAGE`.
    pub fn new(locations: &Locations, text: &str) -> Result<Self> {
        if let Some(target) = Self::at(Path::new(text))? {
            return Ok(target);
        }
        let (run, part) = text.split_once('/').unwrap_or((text, ""));
        Ok(Self { store: locations.store(None)?, run: run.to_owned(), part: part_of(part) })
    }

    /// The target at this path if it is in a run's folder. Its cache is the one that contains the folder.
    pub fn at(path: &Path) -> Result<Option<Self>> {
        // A link whose artifact is gone still counts.
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        for folder in path.ancestors().filter(|folder| folder.join("journal.jsonl").is_file()) {
            let Some(runs) = folder.parent().filter(|runs| runs.ends_with("runs")) else { continue };
            let (Some(root), Some(run)) = (runs.parent(), folder.file_name().and_then(|name| name.to_str()))
            else {
                continue;
            };
            let part = path.strip_prefix(folder).ok().and_then(Path::to_str).unwrap_or_default();
            return Ok(Some(Self { store: Store::open(root)?, run: run.to_owned(), part: part_of(part) }));
        }
        Ok(None)
    }
}

fn part_of(text: &str) -> Option<String> {
    let text = text.trim_end_matches('/');
    (!text.is_empty()).then(|| text.to_owned())
}
