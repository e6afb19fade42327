//! `model`: imports an existing base model, from disk or the hub.
//!
//! Its files become an artifact, so that a run continues if the source is deleted or changed. Models that the
//! engine does not support are rejected here, not an hour later. A folder is copied (with reflinks where the
//! file system supports them); a download is linked from the hub's cache; a GGUF file is converted. Tokens of the
//! chat template that the model was never trained on become text ([`untrained`]).

mod error;
pub mod gguf;
mod hub;
mod long_context;
mod preflight;
#[cfg(test)]
mod tests;
pub mod untrained;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenizers::Tokenizer;

pub use self::error::ModelStageError;
use self::{
    gguf::is_gguf,
    hub::Hub,
    untrained::{Record, Untrained, demote, sentence},
};
use super::{
    Context, Metrics, StageKind,
    kind::{Requirement, StageFuture},
    metrics,
    model_files::{wanted, wanted_in},
    preflight::{ExpectedOutput, ExpectedOutputs, Preflight, PreflightContext},
};
use crate::{
    chat::{Chat, PlainChat, TOOL_TEMPLATE},
    error::{At, Interrupted, Result},
    model::{ModelConfig, Weights},
};

#[derive(Debug, Deserialize)]
pub struct ModelStage {
    /// An absolute path of a folder or GGUF file, or a hub id.
    from: String,
    revision: Option<String>,
    /// Whether the model acts, and not only judges or writes.
    calls_tools: bool,
    /// Whether LongRoPE's long factors are used.
    #[serde(default)]
    long_context: bool,
}

/// Files of a model folder by name and path.
type Files = Vec<(String, PathBuf)>;

/// The hub's address and the token, as huggingface_hub has them.
///
/// # Errors
/// If no cache location is known.
pub fn hub_settings() -> Result<(String, Option<String>), ModelStageError> {
    let hub = hub::Hub::from_env()?;
    Ok((hub.endpoint, hub.token))
}

/// The name of this kind, which the key `model` at the top of a run file stands for.
pub const KIND: &str = "model";

impl ModelStage {
    async fn import(&self, context: &Context) -> Result<Metrics> {
        let policy = context.output("policy", "policy")?;
        std::fs::create_dir_all(&policy).map_err(|source| ModelStageError::write(&policy, source))?;
        let folder = Path::new(&self.from);
        let local = folder.is_absolute();
        let of_model = || format!("model {}", self.from);
        let files = match local {
            true if is_gguf(folder) => {
                let is_cancelled = || context.cancel.is_cancelled();
                gguf::convert(folder, &policy, &*context.observer, &is_cancelled).at(of_model)?;
                Files::new()
            }
            true => listed(folder)?,
            false => self.download(context).await?,
        };
        // Checked in place, so that errors name a file the user can fix.
        context.observer.status("checking");
        let source = match local {
            true if files.is_empty() => &policy,
            true => folder,
            false => folder_of(&files).unwrap_or(folder),
        };
        let Checked { mut config, parameters, chat } = check(source, self.calls_tools).at(of_model)?;
        for (name, path) in &files {
            if context.cancel.is_cancelled() {
                return Err(Interrupted.into());
            }
            context.observer.status(name);
            copy(path, &policy.join(name), local)?;
        }
        if self.long_context {
            config = long_context::lengthen(&policy).at(of_model)?;
        }
        if let Some(chat) = chat {
            chat.notice().iter().for_each(|notice| context.observer.note(notice));
            let Untrained { tags, controls } = Untrained::of(&policy, &config, &chat)?;
            if !tags.is_empty() {
                let done = match demote(&policy, &tags)? {
                    true => "ordinary text in the tokenizer of this artifact",
                    false => "left as they are: this tokenizer cannot do without them",
                };
                context.observer.note(&format!("{}; {done}", sentence(&tags)));
            }
            if !controls.is_empty() {
                context.observer.note(&sentence(&controls));
            }
        }
        Ok(metrics([
            ("parameters", parameters as f64),
            ("bytes", bytes_of(&policy) as f64),
            ("context", config.context as f64),
        ]))
    }

    async fn download(&self, context: &Context) -> Result<Files> {
        let hub = Hub::from_env()?;
        let (id, behind) = hub::split(&self.from);
        let fetching = hub.fetch(id, behind.or(self.revision.as_deref()), &*context.observer);
        Ok(context.cancel.run_until_cancelled(fetching).await.ok_or(Interrupted)??)
    }

    fn requirements(&self, expected: &ExpectedOutputs) -> Vec<Requirement> {
        let from = &self.from;
        let Some(policy) = expected.get("policy").and_then(ExpectedOutput::policy) else {
            return vec![Requirement::Doubtful {
                text: format!(
                    "{from} is not downloaded yet: neither it, nor its chat template, nor memory is checked"
                ),
                hint: "`mcprl run` downloads it from the hub first; use `doctor` again afterwards".into(),
            }];
        };
        let (config, family) = (&policy.config, policy.config.design.family.known_as());
        let (layers, context, stored) = (config.layers, config.context, policy.stored.name());
        let shape =
            format!("{from}: {family}, {layers} layers, context of {context} tokens, weights in {stored}");
        let path = Path::new(from);
        let of_chat = match &policy.folder {
            Some(folder) => self.of_chat(folder, |chat| Ok(Untrained::of(folder, config, chat)?)),
            None if is_gguf(path) => self.of_chat_in_file(path, config),
            None => Vec::new(),
        };
        std::iter::once(Requirement::Met(shape)).chain(of_chat).collect()
    }

    /// What `doctor` says about tokenizer and chat template in a folder.
    fn of_chat(&self, folder: &Path, untrained: impl FnOnce(&Chat) -> Result<Untrained>) -> Vec<Requirement> {
        let (template, chat) = template(folder, self.calls_tools);
        let Some(chat) = chat else { return vec![template] };
        let recorded = Record::load(folder).demoted_tokens;
        let found = match recorded.is_empty() {
            true => untrained(&chat),
            false => Ok(Untrained { tags: recorded, controls: Vec::new() }),
        };
        let doubtful = |tokens: &[String], hint: &str| {
            let (text, hint) = (sentence(tokens), hint.to_owned());
            (!tokens.is_empty()).then_some(Requirement::Doubtful { text, hint })
        };
        let mut requirements = vec![template];
        match found {
            Err(cause) => requirements.push(Requirement::Missing(cause)),
            Ok(Untrained { tags, controls }) => {
                const TAGS: &str =
                    "they are ordinary text in the tokenizer of the run, and in an exported one";
                const CONTROLS: &str =
                    "the model may not know this template's conversations: check its first episodes";
                requirements.extend(doubtful(&tags, TAGS));
                requirements.extend(doubtful(&controls, CONTROLS));
            }
        }
        requirements
    }

    /// The same for a GGUF file.
    fn of_chat_in_file(&self, path: &Path, config: &ModelConfig) -> Vec<Requirement> {
        let written = || -> Result<tempfile::TempDir> {
            let folder = tempfile::tempdir();
            let folder = folder.map_err(|source| ModelStageError::write(&std::env::temp_dir(), source))?;
            gguf::write_small_files(path, folder.path())?;
            Ok(folder)
        };
        match written() {
            Err(cause) => vec![Requirement::Missing(cause)],
            Ok(folder) => self
                .of_chat(folder.path(), |chat| Ok(Untrained::among(&gguf::embeddings(path)?, config, chat)?)),
        }
    }
}

impl StageKind for ModelStage {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.import(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        preflight::preflight(self, context)
    }

    fn requirements<'a>(&'a self, expected: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(async { self.requirements(expected) })
    }

    fn copies(&self) -> Option<(PathBuf, u64)> {
        let path = Path::new(&self.from);
        let bytes = || match is_gguf(path) {
            true => gguf::converted_bytes(path).unwrap_or_default(),
            false => bytes_of(path),
        };
        path.is_absolute().then(|| (path.to_owned(), bytes()))
    }
}

/// The chat template that a model is used with, and why; and the conversation format if it calls tools.
fn template(folder: &Path, calls_tools: bool) -> (Requirement, Option<Chat>) {
    if !calls_tools {
        let found = match PlainChat::load(folder) {
            Err(cause) => Requirement::Missing(cause.into()),
            Ok(_) => Requirement::Met("its own chat template is used, without tools".into()),
        };
        return (found, None);
    }
    let chat = match Chat::load(folder) {
        Err(cause) => return (Requirement::Missing(cause.into()), None),
        Ok(chat) => chat,
    };
    let found = match chat.notice() {
        Some(notice) => Requirement::Doubtful {
            text: notice.to_owned(),
            hint: "`mcprl export --merge` writes that template beside the trained model".into(),
        },
        None => {
            let calls = if chat.has_parallel_calls() { "several calls" } else { "one call" };
            Requirement::Met(format!("its own chat template is used, with {calls} per turn"))
        }
    };
    (found, Some(chat))
}

/// Whether the model's template has a switch for reasoning. None if it is not on this machine. `folder`: the run file's.
pub fn knows_thinking(from: &str, folder: &Path) -> Option<bool> {
    let path = folder.join(from);
    if is_gguf(&path) {
        let small = tempfile::tempdir().ok()?;
        gguf::write_small_files(&path, small.path()).ok()?;
        return Some(Chat::knows_thinking(small.path()));
    }
    if path.is_dir() {
        return Some(Chat::knows_thinking(&path));
    }
    let (id, revision) = hub::split(from);
    let revision = revision.unwrap_or("main");
    hub::check_id(id, revision).ok()?;
    let files = Hub::from_env().ok()?.cached(id, revision).ok()?;
    Some(Chat::knows_thinking(folder_of(&files)?))
}

/// The folder of a model's files.
fn folder_of(files: &Files) -> Option<&Path> {
    files.iter().find(|(name, _)| name == "config.json")?.1.parent()
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

/// Copies a file into the artifact. The hub's own copy is linked: nobody writes to it.
fn copy(from: &Path, to: &Path, local: bool) -> Result<(), ModelStageError> {
    let reading = |source| ModelStageError::Read { path: from.to_owned(), source };
    let real = from.canonicalize().map_err(reading)?;
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).map_err(|source| ModelStageError::write(folder, source))?;
    }
    if local || std::fs::hard_link(&real, to).is_err() {
        std::fs::copy(&real, to).map_err(|source| ModelStageError::write(to, source))?;
    }
    Ok(())
}

/// A model whose files are right.
struct Checked {
    config: ModelConfig,
    /// Number of weights.
    parameters: usize,
    /// If it calls tools.
    chat: Option<Chat>,
}

/// Reads every file as later stages do.
fn check(folder: &Path, calls_tools: bool) -> Result<Checked> {
    let config = ModelConfig::load(folder)?;
    let mut weights = Weights::open(folder)?;
    let mut parameters = 0;
    for (name, shape) in config.tensors() {
        parameters += weights.take(&name, &shape)?.elem_count();
    }
    weights.finish(config.tied)?;
    let chat = match calls_tools {
        true => Some(Chat::load(folder)?),
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
        _ => Ok(Checked { config, parameters, chat }),
    }
}
