//! `mcprl export`: a policy as a folder of its own, for PEFT or, merged, for Transformers and every server of models.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{Outcome, place::Place, target::Target};
use crate::{
    chat::{Chat, TOOL_TEMPLATE},
    error::{Class, Diagnostic, Result},
    exec::{
        folder,
        history::{self, RunHistory, StageHistory, Stages, Standing},
    },
    hash::Digest,
    model::{ModelError, copy_adapter, copy_model, merge},
    plan::NodeName,
    stage::policy::{AdapterOf, PolicyError, is_given},
    store::{Condition, Store},
    ui::{OutputFormat, Printer},
};

#[derive(Args)]
pub struct Export {
    /// A run, whose newest policy is taken; a stage of it, as in `RUN/train[3]/update`; or a folder: a run's, as `run`
    /// printed it, or a policy's.
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
    /// What `adapter_config.json` is to name as the base model: a hub id or a path [default: the hub id or folder that
    /// the run took it from; a model that was made in the run is copied to FOLDER/base].
    #[arg(long, value_name = "NAME", conflicts_with = "merge")]
    base_name: Option<String>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("there is neither a run nor a folder \"{0}\"")]
    NotThere(String),
    #[error("{0} holds no policy")]
    NoPolicy(String),
    #[error(
        "run \"{run}\" has trained no policy yet: its newest is that of \"{stage}\", which it began with"
    )]
    Untrained { run: String, stage: String },
    #[error("run \"{run}\" has written no policy yet")]
    NoneYet { run: String },
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
            Self::Untrained { .. } | Self::NoneYet { .. } => "export::untrained",
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
            Self::Untrained { run, stage } => {
                format!(
                    "`mcprl resume {run}` goes on with the run; `mcprl export {run}/{stage}` writes that one"
                )
            }
            Self::NoneYet { run } => format!("`mcprl resume {run}` goes on with the run"),
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
            Self::Write { .. } | Self::Gone { .. } | Self::Untrained { .. } | Self::NoneYet { .. } => {
                Class::Work
            }
            _ => Class::Usage,
        }
    }
}

/// A policy that was named.
struct Found {
    store: Store,
    folder: PathBuf,
    /// The run and stage that wrote it, where it was named by them.
    of: Option<(RunHistory, String)>,
}

/// How an adapter names its base model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct BaseName {
    /// `base_model_name_or_path`.
    name: String,
    /// Of a hub id.
    revision: Option<String>,
    /// Whether a copy of it lies beside the adapter, in `base/`.
    copied: bool,
}

/// Folder of a base model beside an adapter.
const BASE: &str = "base";

impl Export {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Found { store, folder: policy, of } = self.find()?;
        if self.out.exists() {
            return Err(ExportError::Exists(self.out).into());
        }
        let adapted = policy.join("adapter_config.json").is_file();
        let base = if adapted { self.base_of(&policy, &store)? } else { None };
        let base_folder = base.as_ref().map(|(folder, _)| folder.as_path());
        let kind = if adapted && !self.merge { "adapter" } else { "model" };
        let model = if adapted { base_folder } else { Some(policy.as_path()) };
        let replaced = model.and_then(replaced_template);
        let name = match kind {
            "adapter" => self.base_name(base.as_ref(), &store)?,
            _ => None,
        };
        let copied = base_folder.filter(|_| name.as_ref().is_some_and(|name| name.copied));
        self.whole(|folder| {
            match (base_folder, kind) {
                (Some(base), "model") => merge(base, &policy, folder)?,
                (None, "model") => copy_model(&policy, folder)?,
                _ => {
                    let named = name.as_ref().map(|base| (base.name.as_str(), base.revision.as_deref()));
                    copy_adapter(&policy, named, folder)?;
                }
            }
            let mut written = (kind == "model").then(|| folder.to_owned());
            if let Some(base) = copied {
                let inner = folder.join(BASE);
                std::fs::create_dir(&inner)
                    .map_err(|source| ModelError::Write { path: inner.clone(), source })?;
                copy_model(base, &inner)?;
                written = Some(inner);
            }
            match (&replaced, written) {
                (Some((_, template)), Some(model)) => write_template(&model, template),
                _ => Ok(()),
            }
        })?;
        let notice = replaced.map(|(notice, _)| match (kind, copied) {
            ("model", _) => format!("{notice}, and written as its chat_template.jinja"),
            (_, Some(_)) => format!("{notice}, and written as {BASE}/chat_template.jinja"),
            _ => format!("{notice}; `--merge` writes it beside the model"),
        });
        match printer.format {
            OutputFormat::Json => {
                let (run, stage) = of.map(|(run, stage)| (run.id, stage)).unzip();
                printer.json(&json!({
                    "policy": policy, "run": run, "stage": stage, "kind": kind, "out": self.out, "base": name,
                    "notice": notice,
                }));
            }
            OutputFormat::Human => {
                printer.data(&format!("{kind} written to {}", self.out.display()));
                let source = of.map(|(run, stage)| source_text(&run, &stage));
                let name = name.map(|base| base.text(&self.out));
                for line in source.into_iter().chain(name).chain(notice) {
                    printer.say(&line);
                }
            }
        }
        Ok(Outcome::Success)
    }

    /// The policy that was named: in a run's folder, in a folder of its own, or by a run's id.
    fn find(&self) -> Result<Found> {
        let folder = Path::new(&self.policy);
        if let Some(Target { store, run, part }) = Target::at(folder)? {
            return self.of_run(store, &run, part.as_deref());
        }
        if folder.is_dir() {
            let inner = folder.join("policy");
            let found = [folder.to_owned(), inner].into_iter().find(|folder| folder::is_policy(folder));
            let folder = found.ok_or_else(|| ExportError::NoPolicy(self.policy.clone()))?;
            return Ok(Found { store: self.place.store(None)?, folder, of: None });
        }
        let Target { store, run, part } = Target::new(&self.place, &self.policy)?;
        let run = folder::named(&store, &run);
        if run.is_empty() || !store.runs().join(&run).is_dir() {
            return Err(ExportError::NotThere(self.policy.clone()).into());
        }
        self.of_run(store, &run, part.as_deref())
    }

    /// The newest policy of a run, or of a part of it. A run that did not come to its end may have trained none: what it
    /// began with is not what was asked for then.
    fn of_run(&self, store: Store, id: &str, part: Option<&str>) -> Result<Found> {
        let run = history::run(&store, id)?;
        let path = store.runs().join(id);
        let mut policies = folder::policies(&store, id);
        if let Some(part) = part {
            run.named(part)?;
            let named = NodeName::parse(part);
            policies.retain(|policy| policy.strip_prefix(&path).is_ok_and(|inner| means(&named, inner)));
        }
        let none = || match part {
            None if run.standing != Standing::Finished => ExportError::NoneYet { run: id.to_owned() },
            _ => ExportError::NoPolicy(self.policy.clone()),
        };
        let folder = policies.pop().ok_or_else(none)?;
        // An earlier one in its place would pass for it.
        if !folder::is_policy(&folder) {
            return Err(ExportError::Gone { link: folder, run: id.to_owned() }.into());
        }
        let writer = folder.strip_prefix(&path).ok().and_then(Path::to_str).and_then(|at| run.node(at).ok());
        if let Some(node) = writer.filter(|_| part.is_none() && run.standing != Standing::Finished)
            && is_start(&store, &Stages::new(&store, &run).stage(node))
        {
            let (run, stage) = (run.id.clone(), node.id.clone());
            return Err(ExportError::Untrained { run, stage }.into());
        }
        let writer = writer.map(|node| node.id.clone());
        Ok(Found { store, folder, of: writer.map(|stage| (run, stage)) })
    }

    /// The model of an adapter and its digest: the one given, or else the artifact that `policy.json` names. LiveSet for a
    /// merge alone.
    fn base_of(&self, policy: &Path, store: &Store) -> Result<Option<(PathBuf, Option<Digest>)>> {
        if let Some(base) = &self.base {
            return Ok(Some((base.clone(), None)));
        }
        let marker = policy.join("policy.json");
        let found = match std::fs::read(&marker) {
            Ok(text) => {
                let of: AdapterOf = serde_json::from_slice(&text)
                    .map_err(|source| PolicyError::NoBase { path: marker, source })?;
                match store.inspect(&of.base) {
                    Condition::Sealed | Condition::Unsealed => {
                        Some((store.artifact(&of.base), Some(of.base)))
                    }
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

    /// What PEFT is to load the adapter's base from: the name given; the folder given; the hub id or folder that the run
    /// took the model from; else a copy beside the adapter, for the cache is no place to load a model from.
    fn base_name(
        &self,
        base: Option<&(PathBuf, Option<Digest>)>,
        store: &Store,
    ) -> Result<Option<BaseName>, ExportError> {
        let named = |name: String| Some(BaseName { name, revision: None, copied: false });
        let at = |path: &Path| {
            let absolute = std::path::absolute(path);
            let absolute = absolute.map_err(|source| ExportError::Write { path: path.to_owned(), source })?;
            Ok::<_, ExportError>(absolute.display().to_string())
        };
        Ok(match (&self.base_name, base) {
            (Some(name), _) => named(name.clone()),
            (None, None) => None,
            (None, Some((folder, None))) => named(at(folder)?),
            (None, Some((_, Some(digest)))) => match origin(store, digest) {
                Some(Origin::Hub { id, revision }) => Some(BaseName { name: id, revision, copied: false }),
                Some(Origin::Folder(folder)) => named(at(&folder)?),
                None => Some(BaseName { name: at(&self.out.join(BASE))?, revision: None, copied: true }),
            },
        })
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

impl BaseName {
    fn text(&self, out: &Path) -> String {
        let Self { name, revision, copied } = self;
        let revision = revision.as_ref().map(|revision| format!(" at {revision}")).unwrap_or_default();
        let base = format!("its base model is {name}{revision}, as adapter_config.json says");
        match copied {
            true => format!(
                "{base}\nthat is a copy of the model this run was given or made; where {} is moved, or the model is \
                 published, name it with `--base-name`",
                out.display()
            ),
            false => base,
        }
    }
}

/// Which policy it is.
fn source_text(run: &RunHistory, stage: &str) -> String {
    match run.standing {
        Standing::Finished => format!("it is that of {stage}, in run {}", run.id),
        _ => format!("it is that of {stage}, the newest in run {}, which has not come to its end", run.id),
    }
}

/// Whether the output at this path in a run's folder is meant.
fn means(named: &NodeName, inner: &Path) -> bool {
    inner.to_str().is_some_and(|inner| named.means(inner))
}

/// Whether a stage's policy is one that the run began with.
fn is_start(store: &Store, stage: &StageHistory) -> bool {
    let reads_policy = stage.inputs.iter().any(|input| folder::is_policy(&store.artifact(&input.digest)));
    stage.fields.as_ref().is_some_and(|fields| is_given(&fields.kind) || !reads_policy)
}

/// Where a model in the cache came from.
enum Origin {
    Hub { id: String, revision: Option<String> },
    Folder(PathBuf),
}

/// Where the stage that wrote this model took it from; nothing where it was made by a run, or where its folder is gone.
fn origin(store: &Store, model: &Digest) -> Option<Origin> {
    let records = store.records().into_iter();
    let mut writers = records.filter(|record| record.outputs.values().any(|output| output.digest == *model));
    let record = writers.find(|record| record.fields.get("kind").is_some_and(|kind| kind == "model"))?;
    let param = |name: &str| record.fields.get("params")?.get(name)?.as_str().map(str::to_owned);
    match param("from") {
        Some(from) => {
            let (id, behind) = match from.split_once('@') {
                Some((id, revision)) => (id.to_owned(), Some(revision.to_owned())),
                None => (from, None),
            };
            Some(Origin::Hub { id, revision: behind.or_else(|| param("revision")) })
        }
        // Of a folder its content is in the key, and where it is in the run file.
        None => {
            let spec = history::spec(store, record.run.as_deref()?)?;
            let folder = history::asked(&spec, &["stages", &record.stage, "from"])
                .or_else(|| history::asked(&spec, &["model"]))?;
            let folder = spec.file.parent().unwrap_or(Path::new("")).join(folder);
            folder.join("config.json").is_file().then_some(Origin::Folder(folder))
        }
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
