//! `mcprl push`: uploads an exported policy, or data, to the Hugging Face hub. Shows what will leave first.

use std::{
    io::{BufRead, IsTerminal},
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::json;

use super::{Outcome, export::Export, locations::Locations, runtime, unless_interrupted};
use crate::{
    error::Result,
    hub::{self, File, Hub, HubError, Kind, Repo, Step},
    stage::model::hub_settings,
    traces::secrets,
    ui::{OutputFormat, Printer, bytes, plural},
};

#[derive(Args)]
pub struct Push {
    /// A folder, as `mcprl export` writes it, or files of data; or a run, whose newest policy is exported first.
    #[arg(value_name = "FOLDER|FILE|RUN", required = true)]
    what: Vec<String>,
    /// The repository; it is made if there is none.
    #[arg(long, value_name = "hub:ORG/NAME")]
    to: String,
    /// A repository of data: files go into its folder `data`.
    #[arg(long)]
    dataset: bool,
    /// Make the repository public, or upload to a public one.
    #[arg(long)]
    public: bool,
    /// Upload files that hold what looks like a key, token or password.
    #[arg(long)]
    allow_secrets: bool,
    /// What the commit says.
    #[arg(long, value_name = "TEXT", default_value = "Upload with mcprl")]
    message: String,
    /// Upload without asking.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    locations: Locations,
}

/// Bytes of a text file in which secrets are looked for.
const SEARCHED: u64 = 64 << 20;

impl Push {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let repo = Repo::parse(&self.to, if self.dataset { Kind::Dataset } else { Kind::Model })?;
        let (endpoint, token) = hub_settings()?;
        let hub = Hub::new(&endpoint, token)?;
        let scratch =
            tempfile::tempdir().map_err(|source| HubError::Read { path: std::env::temp_dir(), source })?;
        let files = self.files(&repo, scratch.path(), printer)?;
        if !self.allow_secrets {
            files.iter().try_for_each(search)?;
        }
        runtime()?.block_on(unless_interrupted(self.upload(&hub, &repo, &files, printer)))
    }

    async fn upload(&self, hub: &Hub, repo: &Repo, files: &[File], printer: Printer) -> Result<Outcome> {
        let found = hub.is_private(repo).await?;
        if found == Some(false) && !self.public {
            return Err(HubError::Public { repo: repo.to_string() }.into());
        }
        let is_private = found.unwrap_or(!self.public);
        let all: u64 = files.iter().map(|file| file.bytes).sum();
        if printer.format == OutputFormat::Human {
            files.iter().for_each(|file| printer.say(&format!("{:>10}  {}", bytes(file.bytes), file.name)));
        }
        printer.say(&format!(
            "{}, {}, to the {} repository {}{}",
            plural(files.len(), "file"),
            bytes(all),
            if is_private { "private" } else { "PUBLIC" },
            hub.page(repo),
            if found.is_none() { ", which is made" } else { "" }
        ));
        if !self.yes && !confirmed(printer) {
            return Err(HubError::NotConfirmed.into());
        }
        if found.is_none() {
            hub.create(repo, is_private).await?;
        }
        let say = &mut |file: &File, step: Step| {
            let what = match step {
                Step::Ignored => "left out, because the hub ignores it",
                Step::There => "is there",
                Step::Uploading => "uploading",
            };
            printer.say(&format!("{}: {what}", file.name));
        };
        let commit = hub.upload(repo, files, &self.message, say).await?;
        printer.show(
            &json!({"repo": repo.to_string(), "private": is_private, "files": files.len(), "bytes": all, "commit": commit}),
            || commit.clone(),
        );
        Ok(Outcome::Success)
    }

    fn files(&self, repo: &Repo, scratch: &Path, printer: Printer) -> Result<Vec<File>> {
        let mut files = Vec::new();
        for what in &self.what {
            let path = PathBuf::from(what);
            if path.is_file() {
                let name = Path::new(path.file_name().unwrap_or_default());
                let name = if self.dataset { Path::new("data").join(name) } else { name.to_owned() };
                files.push(hub::file(&path, &name)?);
            } else if path.is_dir()
                && path.canonicalize().is_ok_and(|path| !path.join("journal.jsonl").is_file())
            {
                files.extend(hub::files(&path)?);
            } else {
                let folder = scratch.join(&repo.name);
                Export::to(what, &folder, &self.locations).execute(printer)?;
                files.extend(hub::files(&folder)?);
            }
        }
        match files.is_empty() {
            true => Err(HubError::Nothing { path: self.what.join(", ").into() }.into()),
            false => Ok(files),
        }
    }
}

/// Looks for secrets in a text file. Weights and tables are no text; the tables of a run have no server's secret in them,
/// because results are redacted before they are kept.
fn search(file: &File) -> Result<(), HubError> {
    if file.bytes > SEARCHED {
        return Ok(());
    }
    let Ok(text) = std::fs::read_to_string(&file.path) else { return Ok(()) };
    match secrets::found(&text) {
        Some(kind) => Err(HubError::Secret { file: file.name.clone(), kind }),
        None => Ok(()),
    }
}

/// Asks a person.
fn confirmed(printer: Printer) -> bool {
    if printer.format == OutputFormat::Json || !std::io::stdin().is_terminal() {
        return false;
    }
    printer.say("upload? [y/N]");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).is_ok() && line.trim().eq_ignore_ascii_case("y")
}
