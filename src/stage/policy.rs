//! The two kinds of policy folder: a model, and an adapter that names its model.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Context, Input, SharedModels,
    memory::{self, Policy},
};
use crate::{
    engine::{Checkpoint, DeviceSet, EngineSpec},
    error::{At, Diagnostic, Result},
    hash::Digest,
    model::{AdapterConfig, Decoder, ModelConfig, ModelError},
};

/// `policy.json` of an adapter folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterOf {
    /// Digest of the artifact that holds the model.
    pub base: Digest,
}

impl AdapterOf {
    pub fn write(&self, folder: &Path) -> Result<(), ModelError> {
        let path = folder.join("policy.json");
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

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} does not name the model the adapter sits on")]
    NoBase {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path} holds neither config.json nor policy.json")]
    NotAPolicy { path: PathBuf },
}

impl Diagnostic for PolicyError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "policy::read",
            Self::NoBase { .. } => "policy::no_base",
            Self::NotAPolicy { .. } => "policy::not_a_policy",
        }
    }

    fn hint(&self) -> Option<String> {
        Some("a policy is a Hugging Face model folder, or an adapter folder written by a `grpo` or `adapter` stage".into())
    }
}

impl PolicyFolder {
    pub fn open(input: &Input, context: &Context) -> Result<Self> {
        let marker = input.path.join("policy.json");
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

    /// Most bytes a stage of this kind needs in addition to the frozen weights of its model.
    pub fn beside(&self, kind: &str, context: &Context) -> Result<usize> {
        let config = ModelConfig::load(self.model())?;
        let adapter = match &self.base {
            Some(_) => AdapterConfig::load(&self.folder)?.size(&config).ok(),
            None => None,
        };
        let policies = [Policy { config, adapter, folder: None }];
        Ok(memory::beside(kind, context, &policies))
    }

    /// Loads the frozen model without the adapter, on the devices of a stage that needs this many extra
    /// bytes.
    pub fn load(
        &self,
        held: &SharedModels,
        engine: &EngineSpec,
        beside: usize,
    ) -> Result<(Decoder, DeviceSet)> {
        let model = Checkpoint { digest: self.model_digest(), folder: self.model() };
        Ok(held.bases.load(model, engine, beside)?)
    }
}

/// Whether a stage of this kind uses the frozen model of the policy in this role, and so shares it with other
/// stages.
pub fn shares_model(kind: &str, params: &Map<String, Value>, role: &str) -> bool {
    match (kind, role) {
        ("rollout", "policy") | ("eval", "policies") | ("grpo", "reference") => true,
        ("grpo", "policy") => trains_adapter(params),
        _ => false,
    }
}

/// Whether a stage of this kind imports or creates a run's initial policy, rather than training an existing
/// one.
pub fn is_given(kind: &str) -> bool {
    matches!(kind, "model" | "warmup" | "adapter")
}

/// The role of the policy whose model the written adapter belongs to; none if this kind writes a model.
pub fn sits_on(kind: &str, params: &Map<String, Value>) -> Option<&'static str> {
    match kind {
        "grpo" if trains_adapter(params) => Some("policy"),
        "adapter" => Some("base"),
        _ => None,
    }
}

fn trains_adapter(params: &Map<String, Value>) -> bool {
    params.get("lora").and_then(Value::as_bool).unwrap_or(true)
}
