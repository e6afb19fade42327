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
        if self.out().exists() {
            return Err(ExportError::Exists(self.out().to_owned()).into());
        }
        let weights = self.weights(policy, &store)?;
        let subject = match of {
            Some(_) => self.subject(printer)?,
            None => None,
        };
        let out_name = self.out_name();
        let concealed = self.whole(|folder| {
            weights.write(folder)?;
            let Some(subject) = &subject else { return Ok(Vec::new()) };
            let hub = self.base_name.clone().or_else(|| weights.hub(&store));
            let file = weights.file();
            let card = Card {
                subject,
                form: weights.form,
                name: &out_name,
                base: hub.as_deref(),
                has_base: weights.copied().is_some(),
                file: file.as_deref(),
                is_rounded: matches!(self.gguf, Some(GgufForm::Model(Quantization::Q8 | Quantization::Q4KM))),
            };
            card.write(folder)
        })?;
        let of_secrets = (!concealed.is_empty()).then(|| {
            format!("{} has `…` in place of what looks like a key or token", concealed.join(" and "))
        });
        let notices: Vec<String> = weights.notices().into_iter().chain(of_secrets).collect();
        let notice = (!notices.is_empty()).then(|| notices.join("\n"));
        let (kind, out) = (weights.kind(), self.out());
        match printer.format {
            OutputFormat::Json => {
                let (run, stage) = of.map(|(run, stage)| (run.id, stage)).unzip();
                printer.json(&json!({
                    "policy": weights.policy, "run": run, "stage": stage, "kind": kind, "out": out,
                    "base": weights.name, "notice": notice,
                }));
            }
            OutputFormat::Human => {
                printer.data(&format!("{kind} written to {}", out.display()));
                let source = of.map(|(run, stage)| source_text(&run, &stage));
                let name = weights.name.as_ref().map(|base| base.text(out));
                for line in source.into_iter().chain(name).chain(notice) {
                    printer.say(&line);
                }
            }
        }
        Ok(Outcome::Success)
    }

    /// What is written of a policy.
    fn weights(&self, policy: PathBuf, store: &Store) -> Result<Weights<'_>> {
        let adapted = policy.join("adapter_config.json").is_file();
        let base = if adapted { self.base_of(&policy, store)? } else { None };
        let form = match self.gguf {
            Some(GgufForm::Model(_)) => Form::GgufModel,
            Some(GgufForm::Adapter) => Form::GgufAdapter,
            None if adapted && !self.merge => Form::Adapter,
            None => Form::Model,
        };
        let model = if adapted { base.as_ref().map(|(folder, _)| folder.as_path()) } else { Some(&*policy) };
        let replaced = model.and_then(replaced_template);
        let demoted = self.demoted(&policy, model)?;
        let name = match form {
            Form::Adapter => self.base_name(base.as_ref(), store)?,
            _ => None,
        };
        Ok(Weights { export: self, policy, adapted, base, form, replaced, demoted, name })
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

/// The weights that are written, and what belongs to them.
struct Weights<'e> {
    export: &'e Export,
    policy: PathBuf,
    /// Whether the policy is an adapter.
    adapted: bool,
    /// The adapter's base, and its digest if it is in the cache.
    base: Option<(PathBuf, Option<Digest>)>,
    form: Form,
    /// A chat template in place of the model's own, and what is said of it.
    replaced: Option<(String, &'static str)>,
    /// Tokens of the template that are ordinary text.
    demoted: Vec<String>,
    /// How an adapter names its base.
    name: Option<BaseName>,
}

impl Weights<'_> {
    fn kind(&self) -> &'static str {
        match self.form {
            Form::Adapter | Form::GgufAdapter => "adapter",
            Form::Model | Form::GgufModel => "model",
        }
    }

    fn base(&self) -> Option<&Path> {
        self.base.as_ref().map(|(folder, _)| folder.as_path())
    }

    fn model(&self) -> Option<&Path> {
        if self.adapted { self.base() } else { Some(&self.policy) }
    }

    /// The base that is copied beside the adapter.
    fn copied(&self) -> Option<&Path> {
        self.base().filter(|_| self.name.as_ref().is_some_and(|name| name.copied))
    }

    /// The id on the hub that the base was loaded from.
    fn hub(&self, store: &Store) -> Option<String> {
        match origin(store, self.base.as_ref()?.1.as_ref()?)? {
            Origin::Hub { id, .. } => Some(id),
            Origin::Folder(_) => None,
        }
    }

    /// The one file that holds the weights, if there is one.
    fn file(&self) -> Option<String> {
        match self.export.gguf? {
            GgufForm::Model(quantization) => Some(gguf_file(quantization)),
            GgufForm::Adapter => Some(ADAPTER_FILE.to_owned()),
        }
    }

    fn write(&self, folder: &Path) -> Result<()> {
        match self.export.gguf {
            Some(GgufForm::Model(quantization)) => return self.write_gguf(quantization, folder),
            Some(GgufForm::Adapter) => return self.write_gguf_adapter(folder),
            None if matches!(self.form, Form::Model) => return self.write_model(folder),
            None => {}
        }
        let named = self.name.as_ref().map(|base| (base.name.as_str(), base.revision.as_deref()));
        copy_adapter(&self.policy, named, folder)?;
        let Some(base) = self.copied() else { return Ok(()) };
        let inner = folder.join(BASE);
        std::fs::create_dir(&inner).map_err(|source| ModelError::Write { path: inner.clone(), source })?;
        copy_model(base, &inner)?;
        self.write_template(&inner)
    }

    /// Writes the whole model, merged if the policy is an adapter.
    fn write_model(&self, folder: &Path) -> Result<()> {
        match self.base().filter(|_| self.adapted) {
            Some(base) => {
                merge(base, &self.policy, folder)?;
                if !self.demoted.is_empty() && Record::load(folder).demoted_tokens.is_empty() {
                    untrained::demote(folder, &self.demoted)?;
                }
            }
            None => copy_model(&self.policy, folder)?,
        }
        self.write_template(folder)
    }

    fn write_template(&self, folder: &Path) -> Result<()> {
        let template = self.replaced.as_ref().map(|(_, template)| *template);
        template.map_or(Ok(()), |template| Ok(write_template(folder, template)?))
    }

    fn failed(&self, source: std::io::Error) -> ExportError {
        ExportError::Write { path: self.export.out().to_owned(), source }
    }

    fn write_gguf_adapter(&self, folder: &Path) -> Result<()> {
        if !self.adapted {
            return Err(ExportError::NoAdapter(self.policy.clone()).into());
        }
        let base = self.model().ok_or_else(|| ExportError::NoBase { policy: self.policy.clone() })?;
        let file = folder.join(ADAPTER_FILE);
        gguf::write::adapter(&self.policy, &ModelConfig::load(base)?, &self.export.out_name(), &file)
    }

    /// Writes a GGUF file of the whole model, and a `Modelfile` for Ollama.
    fn write_gguf(&self, quantization: Quantization, folder: &Path) -> Result<()> {
        let parent = folder.parent().unwrap_or(folder);
        let merged = tempfile::Builder::new().prefix(".export-").tempdir_in(parent);
        let merged = merged.map_err(|source| self.failed(source))?;
        self.write_model(merged.path())?;
        let file = gguf_file(quantization);
        gguf::write::model(merged.path(), &self.export.out_name(), quantization, &folder.join(&file))?;
        let modelfile = modelfile(merged.path(), &file)?;
        Ok(std::fs::write(folder.join("Modelfile"), modelfile).map_err(|source| self.failed(source))?)
    }

    /// What was done to the template and to the tokenizer.
    fn notices(&self) -> Vec<String> {
        let is_whole = self.kind() == "model";
        let of_template = self.replaced.as_ref().map(|(notice, _)| match self.copied() {
            _ if is_whole => format!("{notice}, and written as its chat_template.jinja"),
            Some(_) => format!("{notice}, and written as {BASE}/chat_template.jinja"),
            None => format!("{notice}; `--merge` writes it with the model"),
        });
        let of_tokenizer = (!self.demoted.is_empty()).then(|| {
            let written = match self.copied() {
                _ if is_whole => "ordinary text in its tokenizer",
                Some(_) => "ordinary text in the tokenizer in base/",
                None => "ordinary text in training; `--merge` writes that tokenizer with the model",
            };
            format!("{}; {written}", untrained::sentence(&self.demoted))
        });
        of_template.into_iter().chain(of_tokenizer).collect()
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
