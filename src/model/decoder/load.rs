//! Loads, initialises and saves decoders.

use std::{collections::BTreeMap, path::Path};

use candle_core::{DType, Device, Tensor};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{Decoder, Init, Layer};
use crate::model::{
    Linear, Matrix, ModelConfig, ModelError, Role, Vector,
    kernels::Format,
    rope::Rope,
    weights::{Weights, widened, write_safetensors},
};

/// Returns the tensor of this name and shape.
type Source<'a> = &'a mut dyn FnMut(&str, &[usize]) -> Result<Tensor, ModelError>;

impl Decoder {
    /// Loads `config.json` and the safetensors of a Hugging Face folder.
    ///
    /// Tensors are read one by one from the mapped files: at most one is in memory besides the decoder.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        Self::read(folder, None, &Device::Cpu)
    }

    /// Like [`Self::load`] and then [`Self::freeze`], but never stores all weights in two formats at once.
    pub fn load_frozen(folder: &Path, format: Format) -> Result<Self, ModelError> {
        Self::read(folder, Some(format), &Device::Cpu)
    }

    /// Like [`Self::load`], or [`Self::load_frozen`] with a format. Loads each weight straight to this
    /// device.
    pub fn load_on(folder: &Path, format: Option<Format>, device: &Device) -> Result<Self, ModelError> {
        Self::read(folder, format, device)
    }

    fn read(folder: &Path, format: Option<Format>, device: &Device) -> Result<Self, ModelError> {
        let config = ModelConfig::load(folder)?;
        let mut weights = Weights::open(folder)?;
        let decoder = Self::build(config, format, &mut |name, shape| {
            Ok(weights.take(name, shape)?.to_device(device)?)
        })?;
        weights.finish(decoder.config.tied)?;
        Ok(decoder)
    }

    /// A decoder with random weights: normal linears and embedding, norms of one, biases of zero.
    pub fn random(config: ModelConfig, init: Init) -> Result<Self, ModelError> {
        let mut rng = ChaCha8Rng::seed_from_u64(init.seed);
        let mut uniform = move || (f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0;
        Self::build(config, None, &mut |name, shape| {
            let count = shape.iter().product();
            let data: Vec<f32> = match shape {
                [_] if name.ends_with(".bias") => vec![0.0; count],
                [_] => vec![1.0; count],
                _ => (0..count)
                    .map(|_| {
                        let radius = (-2.0 * uniform().ln()).sqrt();
                        (radius * (std::f64::consts::TAU * uniform()).cos()) as f32 * init.deviation
                    })
                    .collect(),
            };
            Ok(Tensor::from_vec(data, shape, &Device::Cpu)?)
        })
    }

    /// A decoder with random weights in this format, each drawn on its own device: for measurements.
    pub fn random_on(
        config: ModelConfig,
        deviation: f32,
        format: Format,
        device: &Device,
    ) -> Result<Self, ModelError> {
        Self::build(config, Some(format), &mut |name, shape| {
            Ok(match shape {
                [_] if name.ends_with(".bias") => Tensor::zeros(shape, DType::F32, device)?,
                [_] => Tensor::ones(shape, DType::F32, device)?,
                _ => Tensor::randn(0.0, deviation, shape, device)?,
            })
        })
    }

    fn build(config: ModelConfig, format: Option<Format>, tensor: Source<'_>) -> Result<Self, ModelError> {
        let (hidden, heads) = (config.hidden, config.heads);
        let held = |tensor: Tensor, format: Option<Format>| match format {
            Some(format) => Matrix::frozen(&tensor, format),
            None => Matrix::new(tensor),
        };
        let ends = format.map(Format::at_the_ends);
        let embedding = held(tensor("model.embed_tokens.weight", &[config.vocabulary, hidden])?, ends)?;
        let shapes = config.linears();
        // Not the declared number: the files may contain fewer.
        let mut layers = Vec::new();
        for index in 0..config.layers {
            let mut take =
                |name: &str, shape: &[usize]| tensor(&format!("model.layers.{index}.{name}"), shape);
            let mut vector = |name: &str, width| {
                Ok::<_, ModelError>(Vector { tensor: widened(take(name, &[width])?)?, slot: None })
            };
            let input_norm = vector("input_layernorm.weight", hidden)?;
            let head_norms = match config.design.head_norms {
                true => Some([
                    vector("self_attn.q_norm.weight", heads.dim)?,
                    vector("self_attn.k_norm.weight", heads.dim)?,
                ]),
                false => None,
            };
            let middle_norm = vector("post_attention_layernorm.weight", hidden)?;
            let mut linears = Vec::with_capacity(shapes.len());
            for shape in &shapes {
                let weight = take(&format!("{}.weight", shape.name), &[shape.outputs, shape.inputs])?;
                let mut linear =
                    Linear::new(held(weight, if shape.role == Role::Router { ends } else { format })?);
                if shape.bias {
                    let tensor = widened(take(&format!("{}.bias", shape.name), &[shape.outputs])?)?;
                    linear.bias = Some(Vector { tensor, slot: None });
                }
                linears.push(linear);
            }
            layers.push(Layer { input_norm, head_norms, middle_norm, linears });
        }
        let norm = Vector { tensor: widened(tensor("model.norm.weight", &[hidden])?)?, slot: None };
        let head = match config.tied {
            true => None,
            false => Some(held(tensor("lm_head.weight", &[config.vocabulary, hidden])?, ends)?),
        };
        let rotary = (config.rotary(), heads.dim);
        let rope = Rope::new(config.rope_theta, rotary, &config.design.scaling, config.context);
        Ok(Self { config, embedding, layers, norm, head, rope, shares: None })
    }

    /// Writes `config.json` and `model.safetensors`, without adapters.
    pub fn save(&self, folder: &Path) -> Result<(), ModelError> {
        let path = folder.join("config.json");
        let text = format!("{:#}\n", self.config.to_json());
        std::fs::write(&path, text).map_err(|source| ModelError::Write { path, source })?;
        let tensors: BTreeMap<_, _> = self.tensors()?.into_iter().collect();
        write_safetensors(&folder.join("model.safetensors"), &tensors)
    }
}
