//! The mcprl side of a comparison with PyTorch; `benches/gpu/parity.py` is the other side.
//!
//! Reads a folder: `model/` and `adapter/` as Transformers and PEFT write them, and these tensors of
//! `step.safetensors`:
//!
//! | name | shape | what |
//! |---|---|---|
//! | `tokens` | `[n, length]` | token ids of the sequences |
//! | `old` | `[n, length − prompt]` | log-probabilities of the tokens after the prompt under the sampling
//! policy |
//! | `advantages` | `[n]` | advantages of the sequences |
//!
//! Writes `ours.safetensors` there: `logits` (`[n, length, vocabulary]`), `gradient.{i}` of one step's DAPO
//! loss, and `parameter.{i}` after that step of AdamW. Gradients and parameters are those of the adapter's
//! matrices, ordered by layer and linear, A before B.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use candle_core::{DType, Device, Tensor, safetensors};
use mcprl_base::error::Result;
use mcprl_engine::{
    DeviceSet, EngineError, Microbatch, Rule, Trainer, load_frozen, logits,
    model::{Adapter, kernels::Format},
};

/// A microbatch, and for each of its targets the tokens it covers.
type Batch = (Microbatch, Vec<Vec<Token>>);
/// Token ids, and which of them were sampled.
type Sequence = (Vec<u32>, Vec<bool>);

/// The same values as in `parity.py`.
const RATE: f64 = 1e-3;
const CLIP: [f64; 2] = [0.8, 1.28];
const MAX_NORM: f64 = 1.0;
const ADAMW: Rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };

/// A token after the prompt.
#[derive(Clone)]
struct Token {
    advantage: f64,
    old: f32,
}

impl Token {
    /// d term / d log p of the DAPO loss (Yu et al. 2025, §3.3), whose term is −min(ρA, clip(ρ)A).
    fn dloss_dlogp(&self, new: f32) -> f64 {
        let ratio = (f64::from(new) - f64::from(self.old)).exp();
        let clipped = if self.advantage > 0.0 { ratio > CLIP[1] } else { ratio < CLIP[0] };
        if clipped { 0.0 } else { -ratio * self.advantage }
    }
}

struct Step {
    tokens: Vec<Vec<u32>>,
    old: Vec<Vec<f32>>,
    advantages: Vec<f32>,
}

impl Step {
    fn read(path: &Path) -> candle_core::Result<Self> {
        let tensors = safetensors::load(path, &Device::Cpu)?;
        let named = |name: &str, dtype| match tensors.get(name) {
            Some(tensor) => tensor.to_dtype(dtype),
            None => candle_core::bail!("{} has no `{name}`", path.display()),
        };
        Ok(Self {
            tokens: named("tokens", DType::U32)?.to_vec2()?,
            old: named("old", DType::F32)?.to_vec2()?,
            advantages: named("advantages", DType::F32)?.to_vec1()?,
        })
    }

    /// Two microbatches, and for each target the tokens it covers.
    fn batches(&self) -> Vec<Batch> {
        let marked = |(tokens, old): (&Vec<u32>, &Vec<f32>)| {
            let prompt = tokens.len().saturating_sub(old.len());
            (tokens.clone(), (0..tokens.len()).map(|at| at >= prompt).collect())
        };
        let sequences: Vec<Sequence> = self.tokens.iter().zip(&self.old).map(marked).collect();
        let half = sequences.len().div_ceil(2).max(1);
        let batch = |(part, sequences): (usize, &[Sequence])| {
            let (batch, indices) = Microbatch::new(sequences);
            let mut covered = vec![Vec::new(); batch.targets.len()];
            for (sequence, targets) in (part * half..).zip(&indices) {
                for (target, old) in targets.iter().zip(&self.old[sequence]) {
                    let advantage = f64::from(self.advantages[sequence]);
                    covered[*target].push(Token { advantage, old: *old });
                }
            }
            (batch, covered)
        };
        sequences.chunks(half).enumerate().map(batch).collect()
    }
}

/// Computes the results and writes them. Returns the file's path.
pub fn write(folder: &Path, format: Format, places: &DeviceSet) -> Result<PathBuf> {
    let step = Step::read(&folder.join("step.safetensors")).map_err(EngineError::from)?;
    let mut decoder = load_frozen(&folder.join("model"), format, &places.first.device)?;
    Adapter::load(&mut decoder, &folder.join("adapter"))?;
    let mut found = HashMap::new();
    let cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu).and_then(|tensor| tensor.copy());
    let all = step.tokens.iter().map(|tokens| cpu(&logits(&decoder, tokens)?).map_err(EngineError::from));
    let all = all.collect::<Result<Vec<_>, EngineError>>()?;
    found.insert("logits".to_owned(), Tensor::stack(&all, 0).map_err(EngineError::from)?);

    let (batches, covered): (Vec<_>, Vec<_>) = step.batches().into_iter().unzip();
    let weight = 1.0 / step.old.iter().map(Vec::len).sum::<usize>() as f64;
    let slope = |batch: usize, target: usize, new: f32| {
        let terms = covered[batch][target].iter().map(|token| token.dloss_dlogp(new));
        (terms.sum::<f64>() * weight) as f32
    };
    let mut trainer = Trainer::across(decoder, |parameters| vec![ADAMW; parameters.len()], places)?;
    let (gradients, _) = trainer.gradients(&batches, &slope)?;
    trainer.step(&batches, &slope, RATE, MAX_NORM)?;
    let parameters = trainer.decoder.trained().map_err(EngineError::from)?;
    for (index, (gradient, parameter)) in gradients.slots.iter().zip(&parameters).enumerate() {
        for (name, tensor) in [("gradient", gradient), ("parameter", parameter.tensor())] {
            found.insert(format!("{name}.{index}"), cpu(tensor).map_err(EngineError::from)?);
        }
    }
    let path = folder.join("ours.safetensors");
    safetensors::save(&found, &path).map_err(EngineError::from)?;
    Ok(path)
}
