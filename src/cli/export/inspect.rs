//! `mcprl export --inspect`: episodes as logs of Inspect.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Export, ExportError};
use crate::{
    cli::{Outcome, target::Target},
    error::Result,
    exec::folder,
    inspect::{self, InspectError},
    ui::{OutputFormat, Printer, plural},
    view::Run,
};

impl Export {
    /// Writes episodes of a run as logs of Inspect.
    pub(super) fn write_logs(&self, printer: Printer, file: &Path) -> Result<Outcome> {
        if file.extension().is_none_or(|end| end != "eval") {
            return Err(ExportError::NotALogFile(file.to_owned()).into());
        }
        let Target { store, run, part } = Target::new(&self.locations, &self.policy)?;
        let run = Run::open(&store, &folder::named(&store, &run))?;
        let logs = inspect::logs(&run, part.as_deref())?;
        let files: Vec<PathBuf> = inspect::names(&logs).iter().map(|name| named(file, name)).collect();
        if let Some(there) = files.iter().find(|file| file.exists()) {
            return Err(ExportError::FileExists(there.clone()).into());
        }
        let mut written = Vec::new();
        for (log, path) in logs.iter().zip(&files) {
            write_whole(path, log)?;
            written.push(json!({
                "out": path, "stage": log.stage(), "policy": log.policy(), "mode": log.mode(), "samples": log.samples(),
            }));
            if printer.format == OutputFormat::Human {
                let samples = plural(log.samples(), "sample");
                printer.data(&format!("{samples} of {} written to {}", log.policy(), path.display()));
            }
        }
        match printer.format {
            OutputFormat::Json => printer.json(&json!({ "run": run.id, "logs": written })),
            OutputFormat::Human => {
                let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                printer.say(&format!("open with `inspect view --log-dir {}`", folder.display()));
            }
        }
        Ok(Outcome::Success)
    }
}

/// `log.eval` for a name: `log-base-greedy.eval`.
fn named(file: &Path, name: &str) -> PathBuf {
    if name.is_empty() {
        return file.to_owned();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}-{name}.eval"))
}

/// Writes a temporary file, then renames it: an interrupted export leaves no torn log.
fn write_whole(path: &Path, log: &inspect::Log<'_>) -> Result<()> {
    let writing = |source| ExportError::Write { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(writing)?;
    let parent = absolute.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).map_err(writing)?;
    let mut file = tempfile::Builder::new().prefix(".export-").tempfile_in(parent).map_err(writing)?;
    log.write(file.as_file_mut()).map_err(|error| match error {
        InspectError::Write(source) => writing(source).into(),
        error => crate::error::Failure::from(error),
    })?;
    // Temporary files are private to their owner; the log is not.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(open).map_err(writing)?;
    file.persist_noclobber(&absolute).map_err(|error| writing(error.error))?;
    Ok(())
}
