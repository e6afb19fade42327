//! The policy in training: loading it with its optimizer, and saving it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Training, TrainingError};
use crate::{
    engine::{Resumed, Rule, Trainer, check_trained},
    error::Result,
    model::{
        Adapter, AdapterConfig, Decoder, ModelConfig, ModelError, Parameter, copy_companions,
        read_safetensors, write_safetensors,
    },
    stage::{
        Context,
        policy::{AdapterOf, PolicyFolder},
    },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum OptimizerKind {
    #[serde(rename = "adamw")]
    AdamW,
    #[serde(rename = "adamw_8bit")]
    AdamW8Bit,
    #[serde(rename = "muon")]
    Muon,
}

impl OptimizerKind {
    /// Bytes of moments per trained parameter.
    pub fn moment_bytes(self) -> usize {
        match self {
            Self::AdamW => 8,
            Self::AdamW8Bit => 2,
            Self::Muon => 4,
        }
    }
}

/// The loss that an optimizer's state belongs to: moments and the number of steps mean little to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossState {
    Grpo,
    Sft,
}

impl LossState {
    const ALL: [Self; 2] = [Self::Grpo, Self::Sft];

    /// The state's file in the policy's folder.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Grpo => "optimizer.safetensors",
            Self::Sft => "sft_optimizer.safetensors",
        }
    }
}

/// A policy in training, with what is needed to save it.
pub struct Learner {
    pub trainer: Trainer,
    /// None where all weights are trained.
    adapter: Option<AdapterConfig>,
    state: LossState,
    /// The folder with the optimizer states that the policy has so far, if its training continues.
    continued: Option<PathBuf>,
}

impl Learner {
    /// Training of an adapter, or of a model that was trained whole, continues with its optimizer state of this loss. A model
    /// gets a new adapter if adapters are trained.
    ///
    /// `workspace`: bytes that training needs in addition to the frozen weights.
    pub fn load(
        policy: &PolicyFolder,
        params: &Training,
        state: LossState,
        workspace: usize,
        context: &Context,
    ) -> Result<Self> {
        let moments = params.optimizer.moment_bytes();
        let config = ModelConfig::load(policy.model())?;
        let (mut decoder, places) = match params.lora {
            true => policy.load(&context.models, &context.engine, workspace)?,
            false => {
                let places = context.models.bases.open_devices(&context.engine)?;
                context.models.bases.make_room(&places, workspace);
                check_trained(&config, None, &places, moments)?;
                (Decoder::load_across(policy.model(), None, places.of_decoder())?, places)
            }
        };
        let fits = |adapter: &AdapterConfig| match adapter.size(&config) {
            Ok(size) => check_trained(&config, Some(size), &places, moments),
            // Loading reports what is wrong with it.
            Err(_) => Ok(()),
        };
        let adapter = match (params.lora, &policy.base) {
            (true, Some(_)) => {
                fits(&AdapterConfig::load(&policy.folder)?)?;
                let adapter = Adapter::load(&mut decoder, &policy.folder)?;
                Some(AdapterConfig { dropout: params.dropout, ..adapter })
            }
            (true, None) => {
                let config = params.adapter();
                fits(&config)?;
                Adapter::fresh(&mut decoder, &config, context.seed)?;
                Some(config)
            }
            (false, None) => None,
            (false, Some(_)) => return Err(TrainingError::WholeAdapter.into()),
        };
        let mut trainer = Trainer::across(decoder, |parameters| params.rules(parameters), &places)?;
        (trainer.recompute, trainer.cancel) = (params.recompute, context.cancel.clone());
        let dropout = adapter.as_ref().map(|adapter| adapter.dropout).filter(|rate| *rate > 0.0);
        trainer.dropout = dropout.map(|rate| (rate, context.seed));
        let continued = (policy.base.is_some() || adapter.is_none()).then(|| policy.folder.clone());
        // An imported adapter has none.
        let path = continued.as_ref().map(|folder| folder.join(state.file())).filter(|path| path.is_file());
        if let Some(path) = path {
            match trainer.resume_optimizer(&read_safetensors(&path)?)? {
                Resumed::Restored => {}
                Resumed::Mismatch => context.observer.note(
                    "the policy was trained with another optimizer; the state of this one starts from zero",
                ),
                Resumed::Incomplete => {
                    let reason = "the optimizer state does not fit the policy".into();
                    return Err(ModelError::Adapter { path, reason }.into());
                }
            }
        }
        Ok(Self { trainer, adapter, state, continued })
    }

    /// Writes the policy after the last step, and its optimizer state. Those of other losses stay with it, so that stages of
    /// both kinds can take turns.
    pub fn save(&mut self, policy: &PolicyFolder, folder: &Path) -> Result<()> {
        let write = |path: PathBuf, source| ModelError::Write { path, source };
        std::fs::create_dir_all(folder).map_err(|source| write(folder.to_owned(), source))?;
        match &self.adapter {
            Some(adapter) => {
                let base = policy.model_digest();
                Adapter::save(&self.trainer.decoder, adapter, &base.to_string(), folder)?;
                AdapterOf { base }.write(folder)?;
            }
            None => {
                self.trainer.decoder.save(folder)?;
                copy_companions(policy.model(), folder)?;
                // It lists the original weight files; now there is only one.
                let index = folder.join("model.safetensors.index.json");
                if index.exists() {
                    std::fs::remove_file(&index).map_err(|source| write(index, source))?;
                }
            }
        }
        write_safetensors(&folder.join(self.state.file()), &self.trainer.optimizer().state()?)?;
        let Some(before) = &self.continued else { return Ok(()) };
        for other in LossState::ALL.into_iter().filter(|other| *other != self.state) {
            let (from, to) = (before.join(other.file()), folder.join(other.file()));
            if from.is_file() {
                copy(&from, &to).map_err(|source| write(to, source))?;
            }
        }
        Ok(())
    }
}

/// Not `fs::copy`, which also copies permissions: files in a store are read-only.
fn copy(from: &Path, to: &Path) -> std::io::Result<u64> {
    std::io::copy(&mut std::fs::File::open(from)?, &mut std::fs::File::create(to)?)
}

impl Training {
    /// The rule of every parameter. Muon orthogonalises the matrices of the layers and of adapters; embedding and output
    /// projection have a row for each token, and AdamW trains them, as it does vectors. Vectors have no weight decay.
    fn rules(&self, parameters: &[Parameter<'_>]) -> Vec<Rule> {
        let Self { beta1, beta2, momentum, .. } = *self;
        let rule = |parameter: &Parameter<'_>| {
            let weight_decay = parameter.decay(self.weight_decay);
            match (self.optimizer, parameter) {
                (OptimizerKind::AdamW8Bit, _) => Rule::AdamW8Bit { rate: 1.0, beta1, beta2, weight_decay },
                (OptimizerKind::Muon, Parameter::Matrix(_)) => Rule::Muon { rate: 1.0, momentum },
                _ => Rule::AdamW { rate: 1.0, beta1, beta2, weight_decay },
            }
        };
        parameters.iter().map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{model::Init, stage::testing};

    #[test]
    fn muon_leaves_the_embedding_and_an_untied_output_projection_to_adamw_which_decays_no_norm() {
        let folder = tempfile::tempdir().unwrap();
        let (context, _) =
            testing::context("sft", &[], folder.path(), json!({"optimizer": "muon", "weight_decay": 0.1}));
        let training: Training = crate::stage::typed(&context.params).unwrap();
        for tied in [true, false] {
            let config = ModelConfig { tied, ..testing::small_model() };
            let mut decoder = Decoder::random(config.clone(), Init { seed: 1, deviation: 0.1 }).unwrap();
            let rules = training.rules(&decoder.trained().unwrap());
            for ((name, shape), rule) in config.tensors().zip(rules) {
                let is_inner_matrix = name.starts_with("model.layers.") && shape.len() == 2;
                assert_eq!(matches!(rule, Rule::Muon { .. }), is_inner_matrix, "{name}");
                if let Rule::AdamW { weight_decay, .. } = rule {
                    assert_eq!(weight_decay > 0.0, shape.len() == 2, "{name}");
                }
            }
        }
    }
}
