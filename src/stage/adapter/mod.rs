//! `adapter`: imports an existing LoRA adapter, on the model it was trained on.
//!
//! Its two files become an artifact that names the model, in the layout that `grpo` writes. Only the model's
//! configuration is read to check that they fit. PEFT's format has no optimizer state: training starts with a
//! new one.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{
    Context, Metrics, StageKind,
    kind::StageFuture,
    metrics,
    policy::{AdapterOf, PolicyFolder},
    preflight::{ExpectedAdapter, ExpectedPolicy, Preflight, PreflightContext},
};
use crate::{
    error::{At, Diagnostic, Result},
    model::{ADAPTER_FILES, Adapter, AdapterConfig, ModelConfig, ModelError},
};

#[derive(Debug, Deserialize)]
pub struct AdapterStage {
    from: PathBuf,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "adapter", class = usage)]
enum AdapterStageError {
    #[error("no folder \"{from}\"")]
    #[diagnostic(code = "no_folder")]
    #[hint = "an adapter is read from a folder, relative to the run file; download it from the hub first"]
    NotAFolder { from: PathBuf },
    #[error("{folder} has no {file}")]
    #[hint = "PEFT's `save_pretrained` writes {file}; older .bin files must be saved again"]
    NoFile { folder: PathBuf, file: &'static str },
    #[error("`base` is itself an adapter")]
    #[hint = "name the stage of the model that both were trained on"]
    OnAdapter,
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

impl AdapterStage {
    fn import(&self, context: &Context) -> Result<Metrics> {
        let Self { from } = self;
        check(from)?;
        let base = PolicyFolder::open(context.input("base")?, context)?;
        if base.base.is_some() {
            return Err(AdapterStageError::OnAdapter.into());
        }
        let config = ModelConfig::load(base.model())?;
        let adapter = Adapter::check(&config, from)?;
        let size = adapter.size(&config).unwrap_or_default();
        let policy = context.output("policy", "policy")?;
        let failed = |path: &Path, source| ModelError::Write { path: path.to_owned(), source };
        std::fs::create_dir_all(&policy).map_err(|source| failed(&policy, source))?;
        for file in ADAPTER_FILES {
            let to = policy.join(file);
            std::fs::copy(from.join(file), &to).map_err(|source| failed(&to, source))?;
        }
        AdapterOf { base: base.digest }.write(&policy).at(|| "the adapter".into())?;
        Ok(metrics([("rank", adapter.rank as f64), ("parameters", size.values as f64)]))
    }
}

impl StageKind for AdapterStage {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(async { self.import(context) })
    }

    /// Checks that the folder holds an adapter whose targets are layers of the base.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let Self { from } = self;
        let mut preflight = Preflight::default();
        if preflight.check("from", check(from)).is_none() {
            return preflight;
        }
        let Some(adapter) = preflight.check("from", AdapterConfig::load(from)) else { return preflight };
        let Some(base) = context.policy("base").cloned() else { return preflight };
        if base.adapter.is_some() {
            preflight.error("base", AdapterStageError::OnAdapter);
            return preflight;
        }
        preflight.check("from", adapter.targets.check(&base.config));
        let size = adapter.size(&base.config).unwrap_or_default();
        let adapter = Some(ExpectedAdapter { config: adapter, size });
        preflight.with("policy", ExpectedPolicy { adapter, ..base })
    }

    fn adapter_base(&self) -> Option<&'static str> {
        Some("base")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stage::testing::{self, context};

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures").join(name)
    }

    async fn taken(from: &Path, base: &Path) -> (tempfile::TempDir, Result<Metrics>) {
        let folder = tempfile::tempdir().unwrap();
        let (context, _) =
            context("adapter", &[("base", base)], &folder.path().join("out"), json!({"from": from}));
        let result = testing::run(&context).await;
        (folder, result)
    }

    #[tokio::test]
    async fn the_files_are_copied_with_a_reference_to_their_model() {
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
    async fn adapters_of_other_models_and_other_folders_are_refused() {
        let code = |(_, result): (tempfile::TempDir, Result<Metrics>)| result.unwrap_err().code();
        let (from, base) = (fixture("qwen3-tiny-lora"), fixture("qwen3-tiny"));
        assert_eq!(code(taken(&from, &fixture("families/llama")).await), "model::adapter");
        assert_eq!(code(taken(&base, &base).await), "adapter::no_file");
        assert_eq!(code(taken(Path::new("owner/name"), &base).await), "adapter::no_folder");
    }
}
