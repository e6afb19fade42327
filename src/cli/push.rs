//! `mcprl push`: uploads an exported policy, or data, to the Hugging Face hub. Shows what will leave first.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, IsTerminal},
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::json;

use super::{Outcome, export::Export, locations::Locations, runtime, unless_interrupted};
use crate::{
    error::Result,
    hub::{self, File, Hub, HubError, Kind, Repo, Step},
    secret,
    stage::model::hub_settings,
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

impl Push {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let repo = Repo::parse(&self.to, if self.dataset { Kind::Dataset } else { Kind::Model })?;
        let (endpoint, token) = hub_settings()?;
        let hub = Hub::new(&endpoint, token)?;
        let scratch =
            tempfile::tempdir().map_err(|source| HubError::Read { path: std::env::temp_dir(), source })?;
        let files = self.files(&repo, scratch.path(), printer)?;
        let not_searched = if self.allow_secrets { Vec::new() } else { search(&files)? };
        runtime()?.block_on(unless_interrupted(self.upload(&hub, &repo, &files, &not_searched, printer)))
    }

    /// Uploads files. `not_searched`: those that secrets cannot be found in.
    async fn upload(
        &self,
        hub: &Hub,
        repo: &Repo,
        files: &[File],
        not_searched: &[&str],
        printer: Printer,
    ) -> Result<Outcome> {
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
        if !not_searched.is_empty() {
            let names = not_searched.join(", ");
            printer.say(&format!("not searched for keys and tokens, because it is no text: {names}"));
        }
        if !self.yes && !confirmed(printer) {
            return Err(HubError::NotConfirmed.into());
        }
        if found.is_none() {
            hub.create(repo, is_private).await?;
            // Somebody may have been faster.
            if is_private && hub.is_private(repo).await? == Some(false) {
                return Err(HubError::Public { repo: repo.to_string() }.into());
            }
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
            &json!({"repo": repo.to_string(), "private": is_private, "files": files.len(), "bytes": all, "not_searched": not_searched, "commit": commit}),
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
        let mut names = BTreeSet::new();
        match files.iter().find(|file| !names.insert(&file.name)) {
            _ if files.is_empty() => Err(HubError::Nothing { path: self.what.join(", ").into() }.into()),
            Some(twice) => Err(HubError::Twice { name: twice.name.clone() }.into()),
            None => Ok(files),
        }
    }
}

/// Looks for secrets in files. Returns the names of those that are no text, in which they may stand all the same.
fn search(files: &[File]) -> Result<Vec<&str>, HubError> {
    let mut not_searched = Vec::new();
    for file in files {
        let found = fs::File::open(&file.path).and_then(secret::in_file);
        let found = found.map_err(|source| HubError::Read { path: file.path.clone(), source })?;
        if let Some(kind) = found.kind.or_else(|| secret::in_text(&file.name)) {
            return Err(HubError::Secret { file: file.name.clone(), kind });
        }
        not_searched.extend((!found.is_text).then_some(file.name.as_str()));
    }
    Ok(not_searched)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_in_every_file_and_what_is_no_text_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            hub::file(&path, Path::new(name)).unwrap()
        };
        let token = format!("hf_{}", "kLmNoPqR".repeat(5));
        let line =
            json!({"messages": [{"role": "assistant", "content": format!("tokens:\n{token}")}]}).to_string();
        let wide: Vec<u8> = line.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let late = [&vec![b'x'; 65 << 20], token.as_bytes()].concat();
        for (name, bytes) in [
            ("a.jsonl", line.as_bytes().to_vec()),
            ("b.txt", [b"caf\xe9 ", token.as_bytes()].concat()),
            ("c.txt", wide),
            ("d.txt", late),
            ("e.bin", [b"\x01\x02\x03\x04", token.as_bytes()].concat()),
        ] {
            let files = [file(name, &bytes)];
            let found = search(&files);
            assert!(matches!(found, Err(HubError::Secret { .. })), "{name}: {found:?}");
        }
        assert!(matches!(search(&[file(&token, b"fine")]), Err(HubError::Secret { .. })), "in a name");
        let random: Vec<u8> =
            (0..9000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let files = [file("t.parquet", &random), file("f.md", b"# fine\n")];
        assert_eq!(search(&files).unwrap(), ["t.parquet"]);
    }
}
