//! `mcprl export`: writes a policy as a folder for PEFT or, merged, for Transformers and model servers; or what else a run
//! has for other programs.

mod card;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum, builder::PossibleValue};
use serde::Serialize;
use serde_json::json;

use card::{Card, Form};

use super::{
    Outcome,
    locations::Locations,
    policy_source::{PolicySource, find, model_param},
    runtime,
    subject::{Named, Subject},
    target::Target,
};
use crate::{
    chat::{Chat, PlainChat, TOOL_TEMPLATE},
    data::{self, Label},
    error::{Diagnostic, Result},
    exec::{
        RunState,
        history::{self, RunHistory},
        labels,
    },
    hash::Digest,
    model::{ModelConfig, ModelError, copy_adapter, copy_model, merge},
    secret,
    stage::{
        model::{
            gguf::{self, write::Quantization},
            untrained::{self, Record},
        },
        policy::{AdapterOf, PolicyError},
    },
    store::{Store, StoreError},
    ui::{OutputFormat, Printer, plural},
};

#[derive(Args, Default)]
pub struct Export {
    /// A run, for its newest policy; a stage of a run, as in `RUN/train[3]/update`; or the folder of a run,
    /// as `run` printed it, or of a policy.
    #[arg(value_name = "RUN|FOLDER")]
    policy: String,
    /// The folder to write; it must not exist yet.
    #[arg(long, value_name = "FOLDER", required_unless_present = "labels")]
    out: Option<PathBuf>,
    /// Write the labels of a run instead, which people gave in `mcprl ui`: as a table to FILE.parquet, or as tasks with
    /// answers, for `source = "file"`, to FILE.jsonl.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "merge", "base", "base_name"])]
    labels: Option<PathBuf>,
    /// Merge the adapter into the model's weights and write the whole model, instead of the adapter alone.
    #[arg(long)]
    merge: bool,
    /// Write a GGUF file for llama.cpp, Ollama and LM Studio instead: the merged model with its matrices in this type, or the
    /// adapter alone, for use with a GGUF file of its base.
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["labels", "merge", "base_name"])]
    gguf: Option<GgufForm>,
    /// The adapter's base model [default: the one it was trained on, from the cache].
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,
    /// The base model's name in `adapter_config.json`: a hub id or a path [default: the hub id or folder that
    /// the run loaded it from; a model made in the run is copied to FOLDER/base].
    #[arg(long, value_name = "NAME", conflicts_with = "merge")]
    base_name: Option<String>,
    /// Whether the folder goes to another machine, which has no path of this one.
    #[arg(skip)]
    leaves: bool,
    #[command(flatten)]
    locations: Locations,
}

/// What a GGUF file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GgufForm {
    Model(Quantization),
    Adapter,
}

impl ValueEnum for GgufForm {
    fn value_variants<'a>() -> &'a [Self] {
        use Quantization::{Bf16, F16, Q4KM, Q8};
        &[Self::Model(Bf16), Self::Model(F16), Self::Model(Q8), Self::Model(Q4KM), Self::Adapter]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Model(quantization) => quantization.name(),
            Self::Adapter => "adapter",
        }))
    }
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "export", class = usage)]
enum ExportError {
    #[error("{0} exists already")]
    #[hint = "choose another `--out`, or remove it"]
    Exists(PathBuf),
    #[error("{0} exists already")]
    #[diagnostic(code = "exists")]
    #[hint = "choose another file, or remove it"]
    FileExists(PathBuf),
    #[error("nobody has labelled an episode of run \"{run}\"")]
    #[hint = "open an episode in `mcprl ui {run}` and say whether it is right"]
    NoLabels { run: String },
    #[error("none of the {labels} labels of run \"{run}\" calls an answer right")]
    #[hint = "`--labels FILE.parquet` writes all labels, with their notes"]
    NoTruth { run: String, labels: usize },
    #[error("{0} should end in .parquet or .jsonl")]
    #[diagnostic(code = "label_file")]
    #[hint = "FILE.parquet is a table of all labels, FILE.jsonl has tasks with answers"]
    NotALabelFile(PathBuf),
    #[error("{0} is a whole model, not an adapter")]
    #[hint = "write it with `--gguf bf16`, `f16`, `q8_0` or `q4_k_m`"]
    NoAdapter(PathBuf),
    #[error("the base model of {policy} is unknown")]
    #[hint = "name it with `--base FOLDER`, or its cache with `--cache DIR`"]
    NoBase { policy: PathBuf },
    #[error("cannot write {path}")]
    #[diagnostic(class = work)]
    Write { path: PathBuf, source: std::io::Error },
}

/// How an adapter names its base model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct BaseName {
    /// The value of `base_model_name_or_path`.
    name: String,
    /// The revision of a hub id.
    revision: Option<String>,
    /// Whether a copy is written next to the adapter, in `base/`.
    copied: bool,
}

/// The context that a `Modelfile` asks for at most. Ollama reserves its memory at once.
const LONGEST_CONTEXT: usize = 32_768;

/// The folder of a base model, next to its adapter.
const BASE: &str = "base";

impl Export {
    /// An export of the newest policy of a run, as `mcprl export RUN --out FOLDER`, to be uploaded.
    pub fn to(run: &str, folder: &Path, locations: &Locations) -> Self {
        Self {
            policy: run.to_owned(),
            out: Some(folder.to_owned()),
            leaves: true,
            locations: locations.clone(),
            ..Self::default()
        }
    }

    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        if let Some(file) = &self.labels {
            return self.write_labels(printer, file);
        }
        let PolicySource { store, folder: policy, of } = find(&self.policy, &self.locations)?;
        let out = self.out().to_owned();
        if out.exists() {
            return Err(ExportError::Exists(out).into());
        }
        let adapted = policy.join("adapter_config.json").is_file();
        let base = if adapted { self.base_of(&policy, &store)? } else { None };
        let base_folder = base.as_ref().map(|(folder, _)| folder.as_path());
        let merges = self.merge || matches!(self.gguf, Some(GgufForm::Model(_)));
        let form = if adapted && !merges { "adapter" } else { "model" };
        let model = if adapted { base_folder } else { Some(policy.as_path()) };
        let replaced = model.and_then(replaced_template);
        let name = match (form, self.gguf) {
            ("adapter", None) => self.base_name(base.as_ref(), &store)?,
            _ => None,
        };
        let copied = base_folder.filter(|_| name.as_ref().is_some_and(|name| name.copied));
        let demoted = self.demoted(&policy, model)?;
        let template = replaced.as_ref().map(|(_, template)| *template);
        let write_model = |folder: &Path| -> Result<()> {
            match base_folder.filter(|_| adapted) {
                Some(base) => {
                    merge(base, &policy, folder)?;
                    if !demoted.is_empty() && Record::load(folder).demoted_tokens.is_empty() {
                        untrained::demote(folder, &demoted)?;
                    }
                }
                None => copy_model(&policy, folder)?,
            }
            template.map_or(Ok(()), |template| Ok(write_template(folder, template)?))
        };
        let subject = match of {
            Some(_) => self.subject(printer)?,
            None => None,
        };
        let found = base.as_ref().and_then(|(_, digest)| origin(&store, digest.as_ref()?));
        let hub = match (&self.base_name, found) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(Origin::Hub { id, .. })) => Some(id),
            _ => None,
        };
        let write = |folder: &Path| match (self.gguf, form) {
            (Some(gguf), _) => self.write_gguf(gguf, &policy, model, adapted, folder, write_model),
            (None, "model") => write_model(folder),
            (None, _) => {
                let named = name.as_ref().map(|base| (base.name.as_str(), base.revision.as_deref()));
                copy_adapter(&policy, named, folder)?;
                let Some(base) = copied else { return Ok(()) };
                let inner = folder.join(BASE);
                std::fs::create_dir(&inner)
                    .map_err(|source| ModelError::Write { path: inner.clone(), source })?;
                copy_model(base, &inner)?;
                template.map_or(Ok(()), |template| Ok(write_template(&inner, template)?))
            }
        };
        let out_name = self.out_name();
        let concealed = self.whole(|folder| {
            write(folder)?;
            let Some(subject) = &subject else { return Ok(Vec::new()) };
            let (form, file) = match (self.gguf, form) {
                (Some(GgufForm::Model(quantization)), _) => (Form::GgufModel, Some(gguf_file(quantization))),
                (Some(GgufForm::Adapter), _) => (Form::GgufAdapter, Some(ADAPTER_FILE.to_owned())),
                (None, "model") => (Form::Model, None),
                (None, _) => (Form::Adapter, None),
            };
            let (base, has_base) = (hub.as_deref(), copied.is_some());
            let is_rounded =
                matches!(self.gguf, Some(GgufForm::Model(Quantization::Q8 | Quantization::Q4KM)));
            let card =
                Card { subject, form, name: &out_name, base, has_base, file: file.as_deref(), is_rounded };
            card.write(folder)
        })?;
        let of_template = replaced.map(|(notice, _)| match (form, copied) {
            ("model", _) => format!("{notice}, and written as its chat_template.jinja"),
            (_, Some(_)) => format!("{notice}, and written as {BASE}/chat_template.jinja"),
            _ => format!("{notice}; `--merge` writes it with the model"),
        });
        let of_tokenizer = (!demoted.is_empty()).then(|| {
            let written = match (form, copied) {
                ("model", _) => "ordinary text in its tokenizer",
                (_, Some(_)) => "ordinary text in the tokenizer in base/",
                _ => "ordinary text in training; `--merge` writes that tokenizer with the model",
            };
            format!("{}; {written}", untrained::sentence(&demoted))
        });
        let of_secrets = (!concealed.is_empty()).then(|| {
            format!("{} has `…` in place of what looks like a key or token", concealed.join(" and "))
        });
        let notices: Vec<String> = of_template.into_iter().chain(of_tokenizer).chain(of_secrets).collect();
        let notice = (!notices.is_empty()).then(|| notices.join("\n"));
        match printer.format {
            OutputFormat::Json => {
                let (run, stage) = of.map(|(run, stage)| (run.id, stage)).unzip();
                printer.json(&json!({
                    "policy": policy, "run": run, "stage": stage, "kind": form, "out": out, "base": name,
                    "notice": notice,
                }));
            }
            OutputFormat::Human => {
                printer.data(&format!("{form} written to {}", out.display()));
                let source = of.map(|(run, stage)| source_text(&run, &stage));
                let name = name.map(|base| base.text(&out));
                for line in source.into_iter().chain(name).chain(notice) {
                    printer.say(&line);
                }
            }
        }
        Ok(Outcome::Success)
    }

    /// Writes a GGUF file and a `Modelfile` for Ollama into the folder. `write_model` fills a folder with the merged model.
    fn write_gguf(
        &self,
        gguf: GgufForm,
        policy: &Path,
        model: Option<&Path>,
        adapted: bool,
        folder: &Path,
        write_model: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let name = self.out_name();
        let failed = |source| ExportError::Write { path: self.out().to_owned(), source };
        let GgufForm::Model(quantization) = gguf else {
            if !adapted {
                return Err(ExportError::NoAdapter(policy.to_owned()).into());
            }
            let base = model.ok_or_else(|| ExportError::NoBase { policy: policy.to_owned() })?;
            let file = folder.join(ADAPTER_FILE);
            return gguf::write::adapter(policy, &ModelConfig::load(base)?, &name, &file);
        };
        let parent = folder.parent().unwrap_or(folder);
        let merged = tempfile::Builder::new().prefix(".export-").tempdir_in(parent).map_err(failed)?;
        write_model(merged.path())?;
        let file = gguf_file(quantization);
        gguf::write::model(merged.path(), &name, quantization, &folder.join(&file))?;
        std::fs::write(folder.join("Modelfile"), modelfile(merged.path(), &file)?).map_err(failed)?;
        Ok(())
    }

    /// What the folder is called.
    fn out_name(&self) -> String {
        self.out().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// The policy with its tools and settings. None, with the reason, if the run file can no longer be read or the run has
    /// played no episode: the weights are there all the same.
    fn subject(&self, printer: Printer) -> Result<Option<Subject>> {
        let named = Named {
            subject: &self.policy,
            policy: None,
            server: &[],
            server_name: None,
            base: None,
            locations: &self.locations,
        };
        match runtime()?.block_on(named.find()) {
            Ok(subject) => Ok(Some(subject)),
            Err(failure) => {
                printer.say(&format!("note: there is no agent.json and no model card: {failure}"));
                Ok(None)
            }
        }
    }

    /// The folder to write; clap requires it unless `labels` is given.
    fn out(&self) -> &Path {
        self.out.as_deref().unwrap_or(Path::new(""))
    }

    /// Writes what people said about the episodes of a run.
    fn write_labels(&self, printer: Printer, file: &Path) -> Result<Outcome> {
        let Target { store, run, .. } = Target::new(&self.locations, &self.policy)?;
        let run = history::run(&store, &run)?.id;
        let labels = labels::read(&store, &run)?;
        if labels.is_empty() {
            return Err(ExportError::NoLabels { run }.into());
        }
        if file.exists() {
            return Err(ExportError::FileExists(file.to_owned()).into());
        }
        let written = match file.extension().and_then(|end| end.to_str()) {
            Some("parquet") => {
                data::write(file, &labels)?;
                plural(labels.len(), "label")
            }
            Some("jsonl") => {
                let tasks = tasks(&labels);
                if tasks.is_empty() {
                    return Err(ExportError::NoTruth { run, labels: labels.len() }.into());
                }
                let lines: String = tasks.iter().map(|task| format!("{task}\n")).collect();
                std::fs::write(file, lines)
                    .map_err(|source| ExportError::Write { path: file.to_owned(), source })?;
                format!(
                    "{} with an answer, from {},",
                    plural(tasks.len(), "task"),
                    plural(labels.len(), "label")
                )
            }
            _ => return Err(ExportError::NotALabelFile(file.to_owned()).into()),
        };
        let text = || format!("{written} written to {}", file.display());
        printer.show(&json!({ "run": run, "labels": labels.len(), "out": file }), text);
        Ok(Outcome::Success)
    }

    /// The adapter's base model and its digest: the given one, or else the artifact that `policy.json` names.
    /// Required only for a merge.
    fn base_of(&self, policy: &Path, store: &Store) -> Result<Option<(PathBuf, Option<Digest>)>> {
        if let Some(base) = &self.base {
            return Ok(Some((base.clone(), None)));
        }
        let marker = policy.join(AdapterOf::FILE);
        let found = match std::fs::read(&marker) {
            Ok(text) => {
                let of: AdapterOf = serde_json::from_slice(&text)
                    .map_err(|source| PolicyError::NoBase { path: marker, source })?;
                match store.intact(&of.base) {
                    Ok(folder) => Some((folder, Some(of.base))),
                    Err(StoreError::Absent { .. }) => None,
                    Err(cause) => return Err(cause.into()),
                }
            }
            Err(_) => None,
        };
        match found {
            None if self.merge => Err(ExportError::NoBase { policy: policy.to_owned() }.into()),
            found => Ok(found),
        }
    }

    /// The path or id from which PEFT loads the adapter's base: the given name; else the given folder; else
    /// the hub id or folder that the run loaded the model from; else a copy next to the adapter, because
    /// models should not be loaded from the cache.
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
            // Without a token in the base's tokenizer, only the copy has the tokenizer that the adapter was trained with.
            (None, Some((folder, Some(digest)))) => match origin(store, digest)
                .filter(|_| demoted(folder).is_empty())
            {
                Some(Origin::Hub { id, revision }) => Some(BaseName { name: id, revision, copied: false }),
                Some(Origin::Folder(folder)) if self.leaves => {
                    named(folder.file_name().unwrap_or_default().to_string_lossy().into_owned())
                }
                Some(Origin::Folder(folder)) => named(at(&folder)?),
                None => {
                    let name = if self.leaves { BASE.to_owned() } else { at(&self.out().join(BASE))? };
                    Some(BaseName { name, revision: None, copied: true })
                }
            },
        })
    }

    /// Tokens of the chat template that were ordinary text in training. The user's copy of the base may have its own
    /// tokenizer, which has them; a run treats that as its stage `model` does.
    fn demoted(&self, policy: &Path, model: Option<&Path>) -> Result<Vec<String>> {
        let Some(model) = model else { return Ok(Vec::new()) };
        let recorded = demoted(model);
        let is_of_run = self.base.is_some() && policy.join(AdapterOf::FILE).is_file();
        Ok(if recorded.is_empty() && is_of_run { untrained::untrained_tags(model)? } else { recorded })
    }

    /// Lets `write` fill a temporary folder, then renames it to `--out`.
    fn whole<T>(&self, write: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let writing = |source| ExportError::Write { path: self.out().to_owned(), source };
        let out = std::path::absolute(self.out()).map_err(writing)?;
        let parent = out.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(parent).map_err(writing)?;
        let folder = tempfile::Builder::new().prefix(".export-").tempdir_in(parent).map_err(writing)?;
        let written = write(folder.path())?;
        // Temporary folders are private to their owner; the exported folder is not.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).map_err(writing)?;
        std::fs::rename(folder.path(), &out).map_err(writing)?;
        Ok(written)
    }
}

/// The file of an adapter alone.
const ADAPTER_FILE: &str = "adapter.gguf";

fn gguf_file(quantization: Quantization) -> String {
    format!("model-{}.gguf", quantization.name())
}

/// Ollama's description of a model in this file.
fn modelfile(model: &Path, file: &str) -> Result<String> {
    let chat = PlainChat::load(model)?;
    let stops = chat.stop_texts();
    let stops = stops.iter().map(|stop| format!("PARAMETER stop \"{stop}\"\n"));
    let context = ModelConfig::load(model)?.context.min(LONGEST_CONTEXT);
    Ok(format!("FROM ./{file}\n{}PARAMETER num_ctx {context}\n", stops.collect::<String>()))
}

impl BaseName {
    fn text(&self, out: &Path) -> String {
        let Self { name, revision, copied } = self;
        let revision = revision.as_ref().map(|revision| format!(" at {revision}")).unwrap_or_default();
        let base = format!("its base model is {name}{revision}, as adapter_config.json says");
        match copied {
            true => format!(
                "{base}\nthis is a copy of the model; if you move {} or publish the model, set its name with `--base-name`",
                out.display()
            ),
            false => base,
        }
    }
}

/// Tasks whose answer a person called right; of several answers to a task, the first that was labelled.
fn tasks(labels: &[Label]) -> Vec<serde_json::Value> {
    let mut known = BTreeSet::new();
    let right = labels.iter().filter(|label| label.right == Some(true) && !label.task.is_empty());
    let answered = right.filter_map(|label| Some((label, label.answer.as_ref()?)));
    let first = answered.filter(|(label, _)| known.insert(&label.task));
    let task = |(label, answer): (&Label, _)| {
        let mut task = json!({ "task": label.task, "answer": answer, "family": label.family });
        secret::conceal(&mut task);
        task
    };
    first.map(task).collect()
}

/// Describes the policy's run and stage.
fn source_text(run: &RunHistory, stage: &str) -> String {
    match run.state {
        RunState::Finished => format!("policy of {stage} in run {}", run.id),
        _ => format!("newest policy of run {}, which has not finished: {stage}", run.id),
    }
}

/// Where a model in the cache came from.
enum Origin {
    Hub { id: String, revision: Option<String> },
    Folder(PathBuf),
}

/// The source that the model's stage loaded it from. `None` if a run made the model, or if its folder is
/// gone.
fn origin(store: &Store, model: &Digest) -> Option<Origin> {
    let records = store.records().into_iter();
    let mut writers = records.filter(|record| record.outputs.values().any(|output| output.digest == *model));
    let (record, from) = writers.find_map(|record| {
        let from = model_param(record.fields.get("kind")?.as_str()?)?;
        Some((record, from))
    })?;
    let param = |name: &str| record.fields.get("params")?.get(name)?.as_str().map(str::to_owned);
    match param(&from) {
        Some(from) => {
            let (id, behind) = match from.split_once('@') {
                Some((id, revision)) => (id.to_owned(), Some(revision.to_owned())),
                None => (from, None),
            };
            Some(Origin::Hub { id, revision: behind.or_else(|| param("revision")) })
        }
        // The key has a folder's content; the run file has its path.
        None => {
            let spec = history::spec(store, record.run.as_deref()?)?;
            let folder = history::setting(&spec, &["stages", &record.stage, &from])
                .or_else(|| history::setting(&spec, &["model"]))?;
            let folder = spec.file.parent().unwrap_or(Path::new("")).join(folder);
            folder.join("config.json").is_file().then_some(Origin::Folder(folder))
        }
    }
}

/// Tokens of the chat template that the model's tokenizer has as ordinary text.
fn demoted(model: &Path) -> Vec<String> {
    Record::load(model).demoted_tokens
}

/// The reason why the model's own chat template is replaced, and the template that replaces it. Sampling and
/// training used that template.
fn replaced_template(model: &Path) -> Option<(String, &'static str)> {
    // A folder without a tokenizer is not an error here.
    let chat = Chat::load(model).ok()?;
    Some((chat.notice()?.to_owned(), chat.own_template()?))
}

fn write_template(folder: &Path, template: &str) -> Result<(), ModelError> {
    let writing = |path: PathBuf| |source| ModelError::Write { path, source };
    // This file would take precedence over the other.
    let for_tools = folder.join(TOOL_TEMPLATE);
    if for_tools.exists() {
        std::fs::remove_file(&for_tools).map_err(writing(for_tools))?;
    }
    let path = folder.join("chat_template.jinja");
    std::fs::write(&path, template).map_err(writing(path))
}
