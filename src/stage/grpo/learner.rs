//! The policy in training: loading it with its optimizer, saving it, and scoring with the reference policy.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use super::{
    GrpoError, Params,
    step::{Rollout, cut, microbatch},
};
use crate::{
    engine::{
        EngineError, Microbatch, Resumed, Rule, Trainer, check_trained, min_microbatches, score_across,
    },
    error::Result,
    model::{
        Adapter, AdapterConfig, Decoder, ModelConfig, ModelError, Parameter, copy_companions,
        read_safetensors, write_safetensors,
    },
    stage::{
        Context,
        memory::{Load, workspace_bytes},
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

/// A policy in training, with what is needed to save it.
pub struct Learner {
    pub trainer: Trainer,
    /// None where all weights are trained.
    adapter: Option<AdapterConfig>,
}

const OPTIMIZER: &str = "optimizer.safetensors";

impl Learner {
    /// Training of an adapter, or of a model that was trained whole, continues with its optimizer state. A
    /// model gets a new adapter if adapters are trained.
    pub fn load(policy: &PolicyFolder, params: &Params, context: &Context) -> Result<Self> {
        let workspace = workspace(policy, params, context)?;
        let moments = params.optimizer.moment_bytes();
        let config = ModelConfig::load(policy.model())?;
        let (mut decoder, places) = match params.lora {
            true => policy.load(&context.models, &context.engine, workspace)?,
            false => {
                let places = context.models.bases.open_devices(&context.engine)?;
                context.models.bases.make_room(&places, workspace);
                check_trained(&config, None, &places, moments)?;
                (Decoder::load_on(policy.model(), None, &places.first.device)?, places)
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
                Some(Adapter::load(&mut decoder, &policy.folder)?)
            }
            (true, None) => {
                let config = params.adapter();
                fits(&config)?;
                Adapter::fresh(&mut decoder, &config, context.seed)?;
                Some(config)
            }
            (false, None) => None,
            (false, Some(_)) => return Err(GrpoError::WholeAdapter.into()),
        };
        let rules = |parameters: &[Parameter<'_>]| params.rules(parameters, adapter.is_none());
        let mut trainer = Trainer::across(decoder, rules, &places)?;
        trainer.recompute = params.recompute;
        let dropout = adapter.as_ref().map(|adapter| adapter.dropout).filter(|rate| *rate > 0.0);
        trainer.dropout = dropout.map(|rate| (rate, context.seed));
        let path = policy.folder.join(OPTIMIZER);
        // An imported adapter has none.
        let continues = path.is_file() && (policy.base.is_some() || adapter.is_none());
        if continues {
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
        Ok(Self { trainer, adapter })
    }

    /// Writes the policy after the last step, and its optimizer state.
    pub fn save(&mut self, policy: &PolicyFolder, folder: &Path) -> Result<()> {
        let write = |path: std::path::PathBuf, source| ModelError::Write { path, source };
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
        write_safetensors(&folder.join(OPTIMIZER), &self.trainer.optimizer().state()?)?;
        Ok(())
    }
}

impl Params {
    fn rules(&self, parameters: &[Parameter<'_>], whole: bool) -> Vec<Rule> {
        let Self { beta1, beta2, weight_decay, momentum, .. } = *self;
        let adamw = Rule::AdamW { rate: 1.0, beta1, beta2, weight_decay };
        let rule = |(index, parameter): (usize, &Parameter<'_>)| match (self.optimizer, parameter) {
            (OptimizerKind::AdamW8Bit, _) => Rule::AdamW8Bit { rate: 1.0, beta1, beta2, weight_decay },
            // In a whole model the first parameter is the embedding, which Muon must not orthogonalise.
            (OptimizerKind::Muon, Parameter::Matrix(_)) if !whole || index > 0 => {
                Rule::Muon { rate: 1.0, momentum }
            }
            _ => adamw,
        };
        parameters.iter().enumerate().map(rule).collect()
    }
}

/// Bytes that an update needs in addition to the frozen weights of this policy's model.
fn workspace(policy: &PolicyFolder, params: &Params, context: &Context) -> Result<usize> {
    let peak = params.footprint(&Load::of(&context.engine), &policy.expected()?);
    Ok(peak.map_or(usize::MAX, |peak| workspace_bytes(&peak, &context.engine)))
}

/// Fills in every rollout's log-probabilities under the reference policy. Returns its vocabulary size.
pub fn score_reference(
    groups: &mut [Vec<Rollout<'_>>],
    reference: &PolicyFolder,
    params: &Params,
    context: &Context,
) -> Result<usize> {
    let workspace = workspace(reference, params, context)?;
    let (mut decoder, places) = reference.load(&context.models, &context.engine, workspace)?;
    if reference.base.is_some() {
        Adapter::load(&mut decoder, &reference.folder)?;
    }
    let shares = min_microbatches(&decoder, places.count());
    let mut found = scored(groups, params, shares, |batches| score_across(&decoder, &places, batches))?;
    for rollout in groups.iter_mut().flatten() {
        rollout.reference = found.remove(&rollout.trajectory.id).unwrap_or_default();
    }
    Ok(decoder.config.vocabulary)
}

/// Fills in every rollout's importance weights, from its log-probabilities under the policy before its first
/// step.
pub fn weigh(groups: &mut [Vec<Rollout<'_>>], trainer: &Trainer, params: &Params) -> Result<(), EngineError> {
    let shares = min_microbatches(&trainer.decoder, trainer.devices());
    let mut found = scored(groups, params, shares, |batches| trainer.score(batches))?;
    for rollout in groups.iter_mut().flatten() {
        rollout.proximal = found.remove(&rollout.trajectory.id).unwrap_or_default();
        rollout.weigh(params);
    }
    Ok(())
}

/// The log-probabilities of the sampled tokens of rollouts with terms, by trajectory.
fn scored(
    groups: &[Vec<Rollout<'_>>],
    params: &Params,
    shares: usize,
    score: impl Fn(&[Microbatch]) -> Result<Vec<Vec<f32>>, EngineError>,
) -> Result<BTreeMap<String, Vec<f32>>, EngineError> {
    let slices: Vec<&[Rollout<'_>]> = groups.iter().map(Vec::as_slice).collect();
    let cut = cut(&slices, params.tokens_per_microbatch, shares);
    let (batches, indices): (Vec<Microbatch>, Vec<_>) =
        cut.iter().map(|rows| microbatch(rows, false)).unzip();
    let mut found: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for ((rows, targets), logprobs) in cut.iter().zip(&indices).zip(&score(&batches)?) {
        for (row, targets) in rows.iter().zip(targets) {
            let rollout = row.rollout;
            let of_rollout =
                found.entry(rollout.trajectory.id.clone()).or_insert_with(|| vec![f32::NAN; rollout.length]);
            for (at, target) in targets.iter().enumerate() {
                of_rollout[row.before + at] = logprobs[*target];
            }
        }
    }
    Ok(found)
}
