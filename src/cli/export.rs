//! `mcprl export`: a policy as a folder of its own, for PEFT or, merged, for Transformers and every server of models.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::{Outcome, place::Place};
use crate::{
    chat::{Chat, TOOL_TEMPLATE},
    error::{Class, Diagnostic, Result},
    exec::folder,
    model::{ModelError, copy_adapter, copy_model, merge},
    stage::policy::{AdapterOf, PolicyError},
    store::{Condition, Store},
    ui::{Printer, Voice},
};

#[derive(Args)]
pub struct Export {
    /// A run, whose newest policy is taken; a stage of it, as in `RUN/train.0003/update`; or a policy's folder.
    #[arg(value_name = "RUN|FOLDER")]
    policy: String,
    /// Where to write; must not exist yet.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Add the adapter into the model's weights and write the whole model; without it, the adapter alone.
    #[arg(long)]
    merge: bool,
    /// The model an adapter sits on [default: the one it was trained on, from the cache].
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("there is neither a run nor a folder \"{0}\"")]
    NotThere(String),
    #[error("{0} holds no policy")]
    NoPolicy(String),
    #[error("{link} is no longer in the cache")]
    Gone { link: PathBuf, run: String },
    #[error("{0} exists already")]
    Exists(PathBuf),
    #[error("the model that {policy} sits on is not known here")]
    NoBase { policy: PathBuf },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Diagnostic for ExportError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotThere(_) => "export::not_there",
            Self::NoPolicy(_) => "export::no_policy",
            Self::Gone { .. } => "export::gone",
            Self::Exists(_) => "export::exists",
            Self::NoBase { .. } => "export::no_base",
            Self::Write { .. } => "export::write",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotThere(_) => {
                "`mcprl runs` lists the runs in the cache; `--cache DIR` names another".into()
            }
            Self::NoPolicy(_) => "`model`, `adapter`, `warmup` and `grpo` stages write policies".into(),
            Self::Gone { run, .. } => {
                format!("`mcprl resume {run}` makes it anew; `mcprl export {run}/STAGE` names another policy")
            }
            Self::Exists(_) => "choose another `--out`, or remove it".into(),
            Self::NoBase { .. } => {
                "name it with `--base FOLDER`, or the cache it lies in with `--cache DIR`".into()
            }
            Self::Write { .. } => return None,
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::Write { .. } | Self::Gone { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}

impl Export {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.place.store(None)?;
        let policy = self.find(&store)?;
        if self.out.exists() {
            return Err(ExportError::Exists(self.out).into());
        }
        let adapted = policy.join("adapter_config.json").is_file();
        let base = if adapted { self.base_of(&policy, &store)? } else { None };
        let kind = if adapted && !self.merge { "adapter" } else { "model" };
        let model = if adapted { base.as_deref() } else { Some(policy.as_path()) };
        let replaced = model.and_then(replaced_template);
        self.whole(|folder| {
            match (&base, kind) {
                (Some(base), "model") => merge(base, &policy, folder)?,
                (None, "model") => copy_model(&policy, folder)?,
                (base, _) => copy_adapter(&policy, base.as_deref(), folder)?,
            }
            match &replaced {
                Some((_, template)) if kind == "model" => write_template(folder, template),
                _ => Ok(()),
            }
        })?;
        let notice = replaced.map(|(notice, _)| match kind {
            "model" => format!("{notice}, and written as its chat_template.jinja"),
            _ => format!("{notice}; `--merge` writes it beside the model"),
        });
        match printer.voice {
            Voice::Json => {
                let written = json!({ "policy": policy, "kind": kind, "out": self.out, "notice": notice });
                printer.json(&written);
            }
            Voice::Human => {
                printer.data(&format!("{kind} written to {}", self.out.display()));
                if let Some(notice) = notice {
                    printer.say(&notice);
                }
            }
        }
        Ok(Outcome::Worked)
    }

    /// The folder of the policy that was named.
    fn find(&self, store: &Store) -> Result<PathBuf, ExportError> {
        let folder = Path::new(&self.policy);
        if folder.is_dir() {
            let inner = folder.join("policy");
            let found = [folder.to_owned(), inner].into_iter().find(|folder| folder::is_policy(folder));
            return found.ok_or_else(|| ExportError::NoPolicy(self.policy.clone()));
        }
        let (run, stage) = self.policy.split_once('/').unwrap_or((&self.policy, ""));
        let run = &folder::named(store, run);
        if run.is_empty() || !store.runs().join(run).is_dir() {
            return Err(ExportError::NotThere(self.policy.clone()));
        }
        let mut policies = folder::policies(store, run);
        let wanted = store.runs().join(run).join(stage.trim_end_matches('/'));
        policies.retain(|policy| policy.starts_with(&wanted));
        let policy = policies.pop().ok_or_else(|| ExportError::NoPolicy(self.policy.clone()))?;
        // An earlier one in its place would pass for it.
        if folder::is_policy(&policy) {
            Ok(policy)
        } else {
            Err(ExportError::Gone { link: policy, run: run.clone() })
        }
    }

    /// The model of an adapter: the one given, or else the artifact that `policy.json` names. Needed for a merge alone.
    fn base_of(&self, policy: &Path, store: &Store) -> Result<Option<PathBuf>> {
        if let Some(base) = &self.base {
            return Ok(Some(base.clone()));
        }
        let marker = policy.join("policy.json");
        let found = match std::fs::read(&marker) {
            Ok(text) => {
                let of: AdapterOf = serde_json::from_slice(&text)
                    .map_err(|source| PolicyError::NoBase { path: marker, source })?;
                match store.inspect(&of.base) {
                    Condition::Sealed | Condition::Unsealed => Some(store.artifact(&of.base)),
                    Condition::Absent | Condition::Damaged(_) => None,
                }
            }
            Err(_) => None,
        };
        match found {
            None if self.merge => Err(ExportError::NoBase { policy: policy.to_owned() }.into()),
            found => Ok(found),
        }
    }

    /// Lets `write` fill a folder that is renamed to `--out` once it is whole.
    fn whole(&self, write: impl FnOnce(&Path) -> Result<(), ModelError>) -> Result<()> {
        let writing = |source| ExportError::Write { path: self.out.clone(), source };
        let out = std::path::absolute(&self.out).map_err(writing)?;
        let parent = out.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(parent).map_err(writing)?;
        let folder = tempfile::Builder::new().prefix(".export-").tempdir_in(parent).map_err(writing)?;
        write(folder.path())?;
        // A temporary folder is its owner's alone; this one is not temporary any more.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).map_err(writing)?;
        std::fs::rename(folder.path(), &out).map_err(writing)?;
        Ok(())
    }
}

/// Where a model's own chat template is replaced by one of ours: why, and by which. What was sampled and trained on was
/// written with that.
fn replaced_template(model: &Path) -> Option<(String, &'static str)> {
    // A folder without a tokenizer is no matter of this command.
    let chat = Chat::load(model).ok()?;
    Some((chat.notice()?.to_owned(), chat.own_template()?))
}

fn write_template(folder: &Path, template: &str) -> Result<(), ModelError> {
    let writing = |path: PathBuf| |source| ModelError::Write { path, source };
    // It would be taken before the other.
    let for_tools = folder.join(TOOL_TEMPLATE);
    if for_tools.exists() {
        std::fs::remove_file(&for_tools).map_err(writing(for_tools))?;
    }
    let path = folder.join("chat_template.jinja");
    std::fs::write(&path, template).map_err(writing(path))
}
