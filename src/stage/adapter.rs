//! `adapter`: imports an existing LoRA adapter, on the model it was trained on.
//!
//! Its two files become an artifact that names the model, in the layout that `grpo` writes. Only the model's
//! configuration is read to check that they fit. PEFT's format has no optimiser state: training starts with a
//! new one.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{
    Context, Metrics,
    memory::Policy,
    policy::{AdapterOf, PolicyFolder},
    prospect::{Outlook, Prospect},
};
use crate::{
    error::{At, Class, Diagnostic, Result},
    model::{ADAPTER_FILES, Adapter, AdapterConfig, ModelConfig, ModelError},
};

#[derive(Debug, Deserialize)]
struct Params {
    from: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum AdapterStageError {
    #[error("there is no folder \"{from}\"")]
    NotAFolder { from: PathBuf },
    #[error("{folder} has no {file}")]
    NoFile { folder: PathBuf, file: &'static str },
    #[error("the base is an adapter itself")]
    OnAdapter,
}

impl Diagnostic for AdapterStageError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotAFolder { .. } => "adapter::no_folder",
            Self::NoFile { .. } => "adapter::no_file",
            Self::OnAdapter => "adapter::on_adapter",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotAFolder { .. } => {
                "an adapter is read from a folder, relative to the run file; fetch one of the hub first"
                    .into()
            }
            Self::NoFile { file, .. } => {
                format!("PEFT's `save_pretrained` writes {file}; older .bin files have to be saved anew")
            }
            Self::OnAdapter => "name the stage of the model that both were trained on".into(),
        })
    }

    fn class(&self) -> Class {
        Class::Usage
    }
}

/// Rejects anything that is not a folder with an adapter's files.
fn check(from: &Path) -> Result<(), AdapterStageError> {
    if !from.is_absolute() || !from.is_dir() {
        return Err(AdapterStageError::NotAFolder { from: from.to_owned() });
    }
    match ADAPTER_FILES.into_iter().find(|file| !from.join(file).is_file()) {
        Some(file) => Err(AdapterStageError::NoFile { folder: from.to_owned(), file }),
        None => Ok(()),
    }
}

/// Writes the folder `policy`.
pub async fn run(context: &Context) -> Result<Metrics> {
    let Params { from } = context.params()?;
    check(&from)?;
    let base = PolicyFolder::open(context.input("base")?, context)?;
    if base.base.is_some() {
        return Err(AdapterStageError::OnAdapter.into());
    }
    let config = ModelConfig::load(base.model())?;
    let adapter = Adapter::check(&config, &from)?;
    let size = adapter.size(&config).unwrap_or_default();
    let policy = context.output.join("policy");
    let writing = |path: &Path| {
        let path = path.to_owned();
        move |source| ModelError::Write { path, source }
    };
    std::fs::create_dir_all(&policy).map_err(writing(&policy))?;
    for file in ADAPTER_FILES {
        let to = policy.join(file);
        std::fs::copy(from.join(file), &to).map_err(writing(&to))?;
    }
    AdapterOf { base: base.digest }.write(&policy).at(|| "the adapter".into())?;
    let named = [("rank", adapter.rank as f64), ("parameters", size.values as f64)];
    Ok(named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Checks that the folder holds an adapter whose targets are layers of the base.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    let Some(Params { from }) = prospect.params(&mut outlook) else { return outlook };
    if outlook.take("from", check(&from)).is_none() {
        return outlook;
    }
    let Some(adapter) = outlook.take("from", AdapterConfig::load(&from)) else { return outlook };
    let Some(Policy { config, adapter: other, folder }) = prospect.policy("base").cloned() else {
        return outlook;
    };
    if other.is_some() {
        outlook.object("base", AdapterStageError::OnAdapter);
        return outlook;
    }
    outlook.take("from", adapter.targets.check(&config));
    let adapter = Some(adapter.size(&config).unwrap_or_default());
    outlook.with("policy", Policy { config, adapter, folder }.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stage::testing::context;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures").join(name)
    }

    async fn taken(from: &Path, base: &Path) -> (tempfile::TempDir, Result<Metrics>) {
        let folder = tempfile::tempdir().unwrap();
        let (context, _) =
            context("adapter", &[("base", base)], &folder.path().join("out"), json!({"from": from}));
        let result = run(&context).await;
        (folder, result)
    }

    #[tokio::test]
    async fn the_files_are_taken_as_they_are_with_the_name_of_their_model() {
        let (from, base) = (fixture("qwen3-tiny-lora"), fixture("qwen3-tiny"));
        let (folder, metrics) = taken(&from, &base).await;
        let metrics = metrics.unwrap();
        let policy = folder.path().join("out/policy");
        for file in ADAPTER_FILES {
            assert!(
                std::fs::read(policy.join(file)).unwrap() == std::fs::read(from.join(file)).unwrap(),
                "{file}"
            );
        }
        let of: AdapterOf =
            serde_json::from_slice(&std::fs::read(policy.join("policy.json")).unwrap()).unwrap();
        assert_eq!(of.base, crate::hash::Digest::of(b"base"));
        assert!(metrics["rank"] > 0.0 && metrics["parameters"] > metrics["rank"]);
    }

    #[tokio::test]
    async fn an_adapter_of_another_model_and_what_is_no_adapter_are_refused() {
        let code = |(_, result): (tempfile::TempDir, Result<Metrics>)| result.unwrap_err().code();
        let (from, base) = (fixture("qwen3-tiny-lora"), fixture("qwen3-tiny"));
        assert_eq!(code(taken(&from, &fixture("families/llama")).await), "model::adapter");
        assert_eq!(code(taken(&base, &base).await), "adapter::no_file");
        assert_eq!(code(taken(Path::new("owner/name"), &base).await), "adapter::no_folder");
    }
}
