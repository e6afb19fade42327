//! The two kinds of policy folder: a model, and an adapter that names its model.

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Artifacts, Context, Input, SharedModels,
    memory::workspace_bytes,
    preflight::{ExpectedAdapter, ExpectedPolicy},
};
use crate::{
    engine::{Checkpoint, DeviceSet, EngineSpec, Footprint, Sampler},
    error::{At, Diagnostic, Result},
    hash::{Digest, Encoder},
    model::{Adapter, AdapterConfig, Decoder, ModelConfig, ModelError, Weights},
    usage::Usage,
};

/// `policy.json` of an adapter folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterOf {
    /// Digest of the artifact that holds the model.
    pub base: Digest,
}

impl AdapterOf {
    /// Its name.
    pub const FILE: &str = "policy.json";

    pub fn write(&self, folder: &Path) -> Result<(), ModelError> {
        let path = folder.join(Self::FILE);
        std::fs::write(&path, format!("{:#}\n", json!(self)))
            .map_err(|source| ModelError::Write { path, source })
    }
}

/// Where a policy's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFolder {
    /// The adapter's folder, or the model's if there is no adapter.
    pub folder: PathBuf,
    pub digest: Digest,
    /// The adapter's model.
    pub base: Option<(Digest, PathBuf)>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "policy")]
#[hint = "a policy is a Hugging Face model folder, or an adapter folder written by a `grpo`, `sft` or `adapter` stage"]
pub enum PolicyError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} does not name the adapter's base model")]
    NoBase { path: PathBuf, source: serde_json::Error },
    #[error("{path} contains neither config.json nor policy.json")]
    NotAPolicy { path: PathBuf },
    #[error("loading the policy failed: {reason}")]
    #[hint(None)]
    Load { reason: String },
}

impl PolicyFolder {
    pub fn open(input: &Input, context: &Context) -> Result<Self> {
        let marker = input.path.join(AdapterOf::FILE);
        let base = match std::fs::read(&marker) {
            Ok(text) => {
                let of: AdapterOf = serde_json::from_slice(&text)
                    .map_err(|source| PolicyError::NoBase { path: marker.clone(), source })?;
                let folder = context
                    .artifacts
                    .folder(&of.base)
                    .at(|| format!("base model of {}", marker.display()))?;
                Some((of.base, folder))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(PolicyError::Read { path: marker, source }.into()),
        };
        if base.is_none() && !input.path.join("config.json").is_file() {
            return Err(PolicyError::NotAPolicy { path: input.path.clone() }.into());
        }
        Ok(Self { folder: input.path.clone(), digest: input.digest, base })
    }

    /// The folder with config.json, tokenizer and chat template.
    pub fn model(&self) -> &Path {
        self.base.as_ref().map_or(&self.folder, |(_, folder)| folder)
    }

    /// Digest of the artifact that holds the model.
    pub fn model_digest(&self) -> Digest {
        self.base.as_ref().map_or(self.digest, |(digest, _)| *digest)
    }

    /// What a memory estimate needs to know of it.
    pub fn expected(&self) -> Result<ExpectedPolicy> {
        let config = ModelConfig::load(self.model())?;
        let adapter = match &self.base {
            Some(_) => ExpectedAdapter::new(AdapterConfig::load(&self.folder)?, &config).ok(),
            None => None,
        };
        let stored = Weights::open(self.model())?.format();
        Ok(ExpectedPolicy { config, stored, adapter, folder: None })
    }

    /// Loads the frozen model without the adapter, on the devices of a stage that needs this much workspace.
    pub fn load(
        &self,
        models: &SharedModels,
        engine: &EngineSpec,
        workspace_bytes: usize,
    ) -> Result<(Decoder, DeviceSet)> {
        let model = Checkpoint { digest: self.model_digest(), folder: self.model() };
        Ok(models.bases.load(model, engine, workspace_bytes)?)
    }
}

/// Loads a policy with its adapter, and starts it on the stage's devices. `peak`: what the stage needs.
pub async fn start(folder: PolicyFolder, context: &Context, peak: &Footprint) -> Result<Sampler> {
    let (engine, models) = (context.engine.clone(), context.models.clone());
    let workspace = workspace_bytes(peak, &engine);
    let load = move || -> Result<Sampler> {
        let (mut decoder, places) = folder.load(&models, &engine, workspace)?;
        if folder.base.is_some() {
            Adapter::load(&mut decoder, &folder.folder)?;
        }
        Ok(Sampler::new(decoder, &places, &engine)?)
    };
    let started = tokio::task::spawn_blocking(load).await;
    started.map_err(|error| PolicyError::Load { reason: error.to_string() })?
}

/// What a policy has computed so far.
pub fn usage(sampler: &Sampler) -> Usage {
    let usage = sampler.usage();
    Usage {
        sampled_tokens: sampler.sampled_tokens(),
        computed_tokens: usage.computed.load(Ordering::Relaxed),
        recomputed_tokens: usage.recomputed.load(Ordering::Relaxed),
        ..Usage::default()
    }
}

/// Equal for models with the same computation, whatever their weights.
pub fn shape(config: &ModelConfig) -> Digest {
    Encoder::new("mcprl model shape v1").json(&config.to_json()).finish()
}

/// The folder of a policy's model; none if the policy cannot be read. `artifact`: the folder of an artifact.
pub fn model_folder(policy: &Path, artifact: impl FnOnce(&Digest) -> Option<PathBuf>) -> Option<PathBuf> {
    match std::fs::read(policy.join(AdapterOf::FILE)) {
        Ok(text) => artifact(&serde_json::from_slice::<AdapterOf>(&text).ok()?.base),
        Err(_) => Some(policy.to_owned()),
    }
}

/// The shape of a policy's model; none if it cannot be read.
pub fn policy_shape(policy: &Path, artifacts: &dyn Artifacts) -> Option<Digest> {
    let folder = model_folder(policy, |digest| artifacts.folder(digest).ok())?;
    ModelConfig::load(&folder).ok().map(|config| shape(&config))
}
