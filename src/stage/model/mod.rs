//! `model`: imports an existing base model, from disk or the hub.
//!
//! Its files become an artifact, so that a run continues if the source is deleted or changed. Models that the
//! engine does not support are rejected here, not an hour later. A folder is copied (with reflinks where the
//! file system supports them); a download is linked from the hub's cache.

mod error;
mod hub;
mod preflight;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::Tokenizer;
use tokio::sync::oneshot;

pub use self::error::ModelStageError;
use self::hub::Hub;
use super::{
    Context, Metrics, StageError, StageKind,
    kind::{Requirement, StageFuture},
    preflight::{ExpectedOutput, ExpectedOutputs, Preflight, PreflightContext},
    typed,
};
use crate::{
    chat::{Chat, PlainChat, TOOL_TEMPLATE},
    error::{At, Interrupted, Result},
    model::{ADAPTER_FILES, ModelConfig, Weights},
};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    /// An absolute path, or a hub id.
    from: String,
    revision: Option<String>,
    /// Whether the model acts, and not only judges or writes.
    calls_tools: bool,
}

/// Files of a model folder by name and path.
type Files = Vec<(String, PathBuf)>;

/// Whether a model needs the file of this name, or a file in the folder of this name, which ends with `/`.
/// Other formats of the same weights are left out.
pub fn wanted(name: &str) -> bool {
    const NAMED: [&str; 10] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "model.safetensors.index.json",
    ];
    let plain = !name.contains(['/', '\\']);
    let weights = name.starts_with("model") && name.ends_with(".safetensors");
    let for_tools =
        name == TOOL_TEMPLATE || TOOL_TEMPLATE.strip_prefix(name).is_some_and(|_| name.ends_with('/'));
    for_tools || (plain && (NAMED.contains(&name) || name.starts_with("chat_template") || weights))
}

/// [`wanted`] for a folder. If the folder holds an adapter and no model, whether the adapter needs the file.
pub fn wanted_in(folder: &Path) -> fn(&str) -> bool {
    match folder.join("config.json").is_file() || !folder.join(ADAPTER_FILES[0]).is_file() {
        true => wanted,
        false => |name| ADAPTER_FILES.contains(&name),
    }
}

/// The name of this kind, which the key `model` at the top of a run file stands for.
pub const KIND: &str = "model";

pub struct ModelStage(Params);

impl ModelStage {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        typed(params).map(Self)
    }

    async fn import(&self, context: &Context) -> Result<Metrics> {
        let Self(params) = self;
        let policy = context.output("policy", "policy")?;
        std::fs::create_dir_all(&policy).map_err(|source| ModelStageError::write(&policy, source))?;
        let folder = Path::new(&params.from);
        let local = folder.is_absolute();
        let files = match local {
            true => listed(folder)?,
            false => download(params, context).await?,
        };
        // Checked in place, so that errors name a file the user can fix.
        context.observer.status("checking");
        let config = || files.iter().find(|(name, _)| name == "config.json")?.1.parent();
        let source = if local { folder } else { config().unwrap_or(folder) };
        let (config, parameters, notice) =
            check(source, params.calls_tools).at(|| format!("model {}", params.from))?;
        notice.iter().for_each(|notice| context.observer.note(notice));
        let mut bytes = 0;
        for (name, path) in &files {
            if context.cancel.is_cancelled() {
                return Err(Interrupted.into());
            }
            context.observer.status(name);
            bytes += copy(path, &policy.join(name), local)?;
        }
        let named =
            [("parameters", parameters as f64), ("bytes", bytes as f64), ("context", config.context as f64)];
        Ok(named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn requirements(&self, expected: &ExpectedOutputs) -> Vec<Requirement> {
        let from = &self.0.from;
        let Some(policy) = expected.get("policy").and_then(ExpectedOutput::policy) else {
            return vec![Requirement::Doubtful {
                text: format!(
                    "{from} is not downloaded yet: neither it, nor its chat template, nor memory is checked"
                ),
                hint: "`mcprl run` downloads it from the hub first; use `doctor` again afterwards".into(),
            }];
        };
        let (config, family) = (&policy.config, policy.config.design.family.known_as());
        let shape =
            format!("{from}: {family}, {} layers, context of {} tokens", config.layers, config.context);
        std::iter::once(Requirement::Met(shape))
            .chain(policy.folder.as_deref().map(|folder| template(folder, self.0.calls_tools)))
            .collect()
    }
}

impl StageKind for ModelStage {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.import(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        preflight::preflight(&self.0, context)
    }

    fn requirements<'a>(&'a self, expected: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(async { self.requirements(expected) })
    }

    fn copies(&self) -> Option<(PathBuf, u64)> {
        let folder = Path::new(&self.0.from);
        folder.is_absolute().then(|| (folder.to_owned(), bytes_of(folder)))
    }
}

/// The chat template that a model is used with, and why.
fn template(folder: &Path, calls_tools: bool) -> Requirement {
    if !calls_tools {
        return match PlainChat::load(folder) {
            Err(cause) => Requirement::Missing(cause.into()),
            Ok(_) => Requirement::Met("its own chat template is used, without tools".into()),
        };
    }
    match Chat::load(folder) {
        Err(cause) => Requirement::Missing(cause.into()),
        Ok(chat) => match chat.notice() {
            Some(notice) => Requirement::Doubtful {
                text: notice.to_owned(),
                hint: "`mcprl export --merge` writes that template beside the trained model".into(),
            },
            None => {
                let calls = if chat.has_parallel_calls() { "several calls" } else { "one call" };
                Requirement::Met(format!("its own chat template is used, with {calls} per turn"))
            }
        },
    }
}

/// Bytes of the files that are copied from a folder.
fn bytes_of(folder: &Path) -> u64 {
    let items = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let wanted = items.filter(|item| item.file_name().to_str().is_some_and(wanted_in(folder)));
    wanted.filter_map(|item| Some(std::fs::metadata(item.path()).ok()?.len())).sum()
}

/// The files of a folder that belong to a model.
fn listed(folder: &Path) -> Result<Files, ModelStageError> {
    let reading = |source| ModelStageError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for item in std::fs::read_dir(folder).map_err(reading)? {
        let path = item.map_err(reading)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if wanted(&name) && path.is_file() {
            files.push((name, path));
        }
    }
    let for_tools = folder.join(TOOL_TEMPLATE);
    if for_tools.is_file() {
        files.push((TOOL_TEMPLATE.to_owned(), for_tools));
    }
    files.sort();
    Ok(files)
}

/// Copies a file into the artifact and returns its size. The hub's own copy is linked: nobody writes to it.
fn copy(from: &Path, to: &Path, local: bool) -> Result<u64, ModelStageError> {
    let reading = |source| ModelStageError::Read { path: from.to_owned(), source };
    let real = from.canonicalize().map_err(reading)?;
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).map_err(|source| ModelStageError::write(folder, source))?;
    }
    if local || std::fs::hard_link(&real, to).is_err() {
        std::fs::copy(&real, to).map_err(|source| ModelStageError::write(to, source))?;
    }
    Ok(to.metadata().map_err(reading)?.len())
}

/// Downloads on a separate thread, which an interrupted run does not wait for.
async fn download(params: &Params, context: &Context) -> Result<Files> {
    let hub = Hub::from_env()?;
    let (id, revision) = match params.from.split_once('@') {
        Some((id, revision)) => (id.to_owned(), Some(revision.to_owned())),
        None => (params.from.clone(), params.revision.clone()),
    };
    let observer = context.observer.clone();
    let (sender, result) = oneshot::channel();
    let fetch = move || _ = sender.send(hub.fetch(&id, revision.as_deref(), &*observer));
    let thread = std::thread::Builder::new().name("hub".into());
    thread.spawn(fetch).map_err(|source| ModelStageError::Thread { source })?;
    tokio::select! {
        files = result => Ok(files.map_err(|_| ModelStageError::Answer { id: params.from.clone() })??),
        () = context.cancel.cancelled() => Err(Interrupted.into()),
    }
}

/// Reads every file as later stages do. Returns the configuration, the number of weights, and a note for the
/// user about the chat format.
fn check(folder: &Path, calls_tools: bool) -> Result<(ModelConfig, usize, Option<String>)> {
    let config = ModelConfig::load(folder)?;
    let mut weights = Weights::open(folder)?;
    let mut parameters = 0;
    for (name, shape) in config.tensors() {
        parameters += weights.take(&name, &shape)?.elem_count();
    }
    weights.finish(config.tied)?;
    let notice = match calls_tools {
        true => Chat::load(folder)?.notice().map(str::to_owned),
        false => PlainChat::load(folder).map(|_| None)?,
    };
    let path = folder.join("tokenizer.json");
    let tokenizer = Tokenizer::from_file(&path)
        .map_err(|error| ModelStageError::Tokenizer { path: path.clone(), reason: error.to_string() })?;
    let last = tokenizer.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
    match last {
        Some((token, id)) if id as usize >= config.vocabulary => {
            let vocabulary = config.vocabulary;
            Err(ModelStageError::Vocabulary { path, token, id, vocabulary }.into())
        }
        _ => Ok((config, parameters, notice)),
    }
}
