//! Rotary position embedding (Su et al. 2021), and the families' methods to extend it to longer contexts.
//!
//! The angles of a position depend only on that position, never on the length of the sequence. Where
//! Transformers chooses frequencies by length (LongRoPE), the configuration's context ends at the length of
//! the change, unless both choices are the same.

use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    kernels::{self, by_rows},
    ops::{Direction, by_kernels, composed, update},
    tree::Positions,
};

/// How the frequencies `theta^(-2i / dim)` are scaled: the names and keys of `rope_scaling` in `config.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Scaling {
    #[default]
    Default,
    /// All divided by the factor (Chen et al. 2023).
    Linear { factor: f64 },
    /// Long waves are divided by the factor, short ones kept, those between blended (Llama 3.1).
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position_embeddings: f64 },
    /// YaRN (Peng et al. 2023).
    Yarn {
        factor: f64,
        original_max_position_embeddings: f64,
        #[serde(default = "beta_fast")]
        beta_fast: f64,
        #[serde(default = "beta_slow")]
        beta_slow: f64,
        #[serde(default = "truncate")]
        truncate: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
    },
    /// One divisor per frequency (Ding et al. 2024): the short list, which is valid up to the original
    /// context. A model for longer sequences has the long list twice.
    LongRope {
        short_factor: Vec<f64>,
        long_factor: Vec<f64>,
        original_max_position_embeddings: f64,
        /// From the file, or the longest context divided by the original one.
        factor: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
    },
}

fn beta_fast() -> f64 {
    32.0
}

fn beta_slow() -> f64 {
    1.0
}

fn truncate() -> bool {
    true
}

impl Scaling {
    /// Rotations per position of each of the `dim / 2` pairs, in radians.
    ///
    /// Computed in `f32` step by step, as in training and in Transformers. An unrounded exponent `2i / dim`
    /// (`dim` 80 or 96) changes a frequency by up to 5 units in the last place, and the angle at position
    /// 4,000 by 1e-3.
    fn frequencies(&self, theta: f64, dim: usize) -> Vec<f32> {
        let scaled = |i: usize| -> f32 {
            let exponent = (2 * i) as f32 / dim as f32;
            let wave = theta.powf(f64::from(exponent)) as f32;
            let plain = 1.0 / wave;
            match self {
                Self::Default => plain,
                Self::Linear { factor } => plain / *factor as f32,
                Self::Llama3 {
                    factor,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: original,
                } => {
                    let turns = (1.0 / (1.0 / plain * std::f32::consts::TAU)) * *original as f32;
                    let kept = ((turns - *low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                    (1.0 - kept) * plain / *factor as f32 + kept * plain
                }
                Self::Yarn { factor, .. } => {
                    let kept = 1.0 - self.ramp(theta, dim, i) as f32;
                    1.0 / (*factor as f32 * wave) * (1.0 - kept) + plain * kept
                }
                Self::LongRope { short_factor, .. } => {
                    1.0 / (short_factor.get(i).copied().unwrap_or(1.0) as f32 * wave)
                }
            }
        };
        (0..dim / 2).map(scaled).collect()
    }

    /// By how much each frequency is divided.
    pub fn divisors(&self, theta: f64, dim: usize) -> Vec<f32> {
        let plain = Self::Default.frequencies(theta, dim);
        plain.into_iter().zip(self.frequencies(theta, dim)).map(|(plain, scaled)| plain / scaled).collect()
    }

    /// YaRN: 0 for frequencies that are kept, 1 for those divided by the factor.
    fn ramp(&self, theta: f64, dim: usize, i: usize) -> f64 {
        let Self::Yarn { original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } = self else {
            return 0.0;
        };
        // The pair that makes this many turns within the original context.
        let turning = |turns: f64| {
            let wave = original_max_position_embeddings / (turns * std::f64::consts::TAU);
            dim as f64 * wave.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (turning(*beta_fast), turning(*beta_slow));
        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        ((i as f64 - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// The factor of cosines and sines that keeps the temperature of attention.
    fn magnitude(&self) -> f32 {
        let magnitude = match self {
            Self::Yarn { attention_factor: Some(given), .. }
            | Self::LongRope { attention_factor: Some(given), .. } => *given,
            Self::Yarn { factor, .. } if *factor > 1.0 => 0.1 * factor.ln() + 1.0,
            Self::LongRope { factor, original_max_position_embeddings: original, .. } if *factor > 1.0 => {
                (1.0 + factor.ln() / original.ln()).sqrt()
            }
            _ => 1.0,
        };
        magnitude as f32
    }

    /// Why these parameters are invalid, if they are. `dim` is the rotated width.
    pub fn problem(&self, dim: usize) -> Option<String> {
        let mut positive: Vec<(&str, f64)> = Vec::new();
        if let Self::LongRope { short_factor, .. } = self {
            if short_factor.len() != dim / 2 {
                return Some(format!("short_factor has {} numbers, not {}", short_factor.len(), dim / 2));
            }
            positive.extend(short_factor.iter().map(|value| ("short_factor", *value)));
        }
        match self {
            Self::Default => {}
            Self::Linear { factor } => positive.push(("factor", *factor)),
            Self::Llama3 { factor, original_max_position_embeddings, .. }
            | Self::Yarn { factor, original_max_position_embeddings, .. }
            | Self::LongRope { factor, original_max_position_embeddings, .. } => {
                positive.push(("factor", *factor));
                if let Self::Llama3 { low_freq_factor: low, high_freq_factor: high, .. } = self {
                    positive.push(("high_freq_factor - low_freq_factor", high - low));
                }
                positive.push(("original_max_position_embeddings", *original_max_position_embeddings));
            }
        }
        let (name, value) = positive.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0))?;
        Some(format!("{name} of the rotary embedding is {value}"))
    }

    /// The longest context that these frequencies support, if shorter than the model's.
    pub fn context(&self) -> Option<usize> {
        match self {
            Self::LongRope {
                short_factor, long_factor, original_max_position_embeddings: original, ..
            } if short_factor != long_factor => Some(*original as usize),
            _ => None,
        }
    }
}

/// Cosines and sines of the rotary embedding: `[positions, dim / 2]`, for the first `dim` values of each
/// head. Clones share them.
#[derive(Debug, Clone)]
pub struct Rope {
    head: usize,
    half: usize,
    cos: Arc<[f32]>,
    sin: Arc<[f32]>,
    /// Both as tensors on the first device that requested them.
    on_device: Arc<OnceLock<[Tensor; 2]>>,
}

impl Rope {
    /// Rotates `dim` of the `head` values of a head.
    pub fn new(theta: f64, (dim, head): (usize, usize), scaling: &Scaling, positions: usize) -> Self {
        let frequencies = scaling.frequencies(theta, dim);
        let magnitude = scaling.magnitude();
        let half = dim / 2;
        // Its length is known, so it is allocated once.
        let table = |of: fn(f32) -> f32| -> Arc<[f32]> {
            let angle = |place: usize| (place / half) as f32 * frequencies[place % half];
            (0..positions * half).map(|place| of(angle(place)) * magnitude).collect()
        };
        Self { head, half, cos: table(f32::cos), sin: table(f32::sin), on_device: Arc::default() }
    }

    /// The same angles for another device.
    pub fn replica(&self) -> Self {
        Self { on_device: Arc::default(), ..self.clone() }
    }

    /// Rotates `x` (`[tokens, heads · head dim]`) in place. The backward of a rotation is its inverse.
    pub fn rotate(&self, x: &Tensor, positions: &Positions<'_>, direction: Direction) -> Result<()> {
        let (_, columns) = x.dims2()?;
        let heads = columns / self.head;
        let sign = match direction {
            Direction::Forward => 1.0,
            Direction::Backward => -1.0,
        };
        let dims = (self.head, self.half);
        if !by_kernels(x) {
            let (positions, tables) = (positions.on(x.device())?, self.tables(x.device())?);
            #[cfg(feature = "cuda")]
            if super::ops::cuda::takes(x) {
                return super::ops::cuda::rotate(x, dims, positions, tables, sign);
            }
            let [cos, sin] = tables;
            let (cos, sin) = (cos.index_select(positions, 0)?, sin.index_select(positions, 0)?);
            return composed::rotate(x, dims, &cos, &(sin * f64::from(sign))?);
        }
        let positions = positions.values;
        update(x, |x| {
            by_rows(positions.len(), 4 * columns, [x], |rows, [x]| {
                kernels::rope(x, heads, dims, &positions[rows], &self.cos, &self.sin, sign);
            });
        })
    }

    fn tables(&self, device: &Device) -> Result<&[Tensor; 2]> {
        if let Some(tables) = self.on_device.get() {
            return Ok(tables);
        }
        let table =
            |values: &[f32]| Tensor::from_slice(values, (values.len() / self.half, self.half), device);
        let tables = [table(&self.cos)?, table(&self.sin)?];
        Ok(self.on_device.get_or_init(|| tables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Case {
        scaling: Scaling,
        theta: f64,
        dim: usize,
        frequencies: Vec<f32>,
    }

    #[test]
    fn frequencies_are_those_of_transformers() {
        let text = include_str!("../../../../tests/reference/fixtures/rope.json");
        for Case { scaling, theta, dim, frequencies } in serde_json::from_str::<Vec<Case>>(text).unwrap() {
            let ours = scaling.frequencies(theta, dim);
            assert_eq!(ours.len(), frequencies.len());
            let apart = |(ours, theirs): (&f32, &f32)| ours.to_bits().abs_diff(theirs.to_bits());
            let off: Vec<u32> = ours.iter().zip(&frequencies).map(apart).filter(|apart| *apart > 0).collect();
            // PyTorch's power is not always rounded to the nearest.
            assert!(
                off.len() <= 1 && off.iter().all(|apart| *apart <= 3),
                "{scaling:?} {theta} {dim}: {off:?}"
            );
        }
    }
}
