//! Loads, initialises and saves decoders.

use std::{collections::BTreeMap, path::Path};

use candle_core::{DType, Device, Tensor};
use mcprl_base::random;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::{Decoder, DeltaParameters, Init, Layer, Mixing, Placement, Ropes};
use crate::model::{
    Linear, Matrix, ModelConfig, ModelError, Recurrence, Vector,
    config::OUTPUT_NORMS,
    kernels::Format,
    rope::{Rope, Scaling},
    weights::{Weights, to_f32, write_safetensors},
};

/// Returns the tensor of this name and shape.
type TensorReader<'a> = &'a mut dyn FnMut(&str, &[usize]) -> Result<Tensor, ModelError>;

/// The number of the layer that a tensor of this name belongs to.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

/// The parameters of a recurrence.
fn mixing(recurrence: Recurrence, take: TensorReader<'_>) -> Result<Mixing, ModelError> {
    let mut vectors = Vec::new();
    for (name, shape) in recurrence.tensors() {
        vectors.push(Vector { tensor: to_f32(take(name, &shape)?)?, slot: None });
    }
    let mut vectors = vectors.into_iter();
    let mut next = || vectors.next().expect("as many as the recurrence has");
    Ok(match recurrence {
        Recurrence::Delta(heads) => {
            let (a_log, dt_bias, conv, norm) = (next(), next(), next(), next());
            Mixing::Delta(Box::new(DeltaParameters { heads, a_log, dt_bias, conv, norm }))
        }
        Recurrence::Convolution(_) => Mixing::Convolution(next()),
    })
}

impl Decoder {
    /// Loads a Hugging Face folder for training all weights on the CPU.
    ///
    /// # Errors
    /// If a file is missing or wrong, or the family is not known.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        Self::load_on(folder, None, &Device::Cpu)
    }

    /// Loads `config.json` and the safetensors of a Hugging Face folder to this device, frozen in this format or
    /// trainable.
    ///
    /// Tensors are read one by one from the mapped files: at most one is in memory besides the decoder.
    pub fn load_on(folder: &Path, format: Option<Format>, device: &Device) -> Result<Self, ModelError> {
        Self::load_across(folder, format, vec![device.clone()])
    }

    /// The same, with the layers spread over these devices, of which there is at least one.
    pub fn load_across(
        folder: &Path,
        format: Option<Format>,
        devices: Vec<Device>,
    ) -> Result<Self, ModelError> {
        let config = ModelConfig::load(folder)?;
        let mut weights = Weights::open(folder)?;
        let placement = Placement::across(&config, format.unwrap_or(Format::F32), devices);
        let decoder = Self::build(config, format, placement.clone(), &mut |name, shape| {
            let device = layer_of(name).map_or(placement.first(), |layer| placement.device(layer));
            Ok(weights.take(name, shape)?.to_device(device)?)
        })?;
        weights.finish(decoder.config.tied)?;
        Ok(decoder)
    }

    /// A decoder with random weights: normal linears and embedding, norms of one, biases of zero.
    pub fn random(config: ModelConfig, init: Init) -> Result<Self, ModelError> {
        let mut rng = ChaCha8Rng::seed_from_u64(init.seed);
        let one = 1.0 - config.design.norm_offset();
        Self::build(config, None, Device::Cpu.into(), &mut |name, shape| {
            let count = shape.iter().product();
            let data: Vec<f32> = match shape {
                [_] if name.ends_with(".bias") => vec![0.0; count],
                // As Transformers draws them.
                [_] if name.ends_with(".A_log") => {
                    (0..count).map(|_| (0.01 + 15.99 * random::unit(&mut rng)).ln() as f32).collect()
                }
                [_] if name.contains(".linear_attn.") => vec![1.0; count],
                // As PyTorch draws a convolution.
                [_, 1, window] => {
                    let bound = 1.0 / (*window as f64).sqrt();
                    (0..count).map(|_| ((2.0 * random::unit(&mut rng) - 1.0) * bound) as f32).collect()
                }
                [_] => vec![one; count],
                _ => (0..count).map(|_| random::normal(&mut rng) * init.deviation).collect(),
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
        let one = 1.0 - config.design.norm_offset();
        Self::build(config, Some(format), device.clone().into(), &mut |name, shape| {
            Ok(match shape {
                [_] if name.ends_with(".bias") => Tensor::zeros(shape, DType::F32, device)?,
                [_] if name.contains(".linear_attn.") => Tensor::ones(shape, DType::F32, device)?,
                [_] => (Tensor::ones(shape, DType::F32, device)? * f64::from(one))?,
                _ => Tensor::randn(0.0, deviation, shape, device)?,
            })
        })
    }

    /// `tensor` gives each tensor on its device.
    fn build(
        config: ModelConfig,
        format: Option<Format>,
        placement: Placement,
        tensor: TensorReader<'_>,
    ) -> Result<Self, ModelError> {
        let (hidden, heads) = (config.hidden, config.heads);
        let matrix = |tensor: Tensor, format: Option<Format>| match format {
            Some(format) => Matrix::frozen(&tensor, format),
            None => Matrix::new(tensor),
        };
        let ends = format.map(Format::at_the_ends);
        let output = |tensor: Tensor| match ends {
            Some(format) => Matrix::frozen_output(&tensor, format),
            None => Matrix::new(tensor),
        };
        let offset = config.design.norm_offset();
        let norm = |tensor: Tensor| -> Result<Vector, ModelError> {
            let tensor = to_f32(tensor)?;
            let tensor = if offset == 0.0 { tensor } else { (tensor + f64::from(offset))? };
            Ok(Vector { tensor, slot: None })
        };
        let embedding = tensor("model.embed_tokens.weight", &[config.vocabulary, hidden])?;
        let embedding = if config.tied { output(embedding)? } else { matrix(embedding, ends)? };
        let (names, linears_by_kind) = (config.design.names(), config.linears_by_kind());
        // Not the declared number: the files may contain fewer.
        let mut layers = Vec::new();
        for index in 0..config.layers {
            let mut take =
                |name: &str, shape: &[usize]| tensor(&format!("model.layers.{index}.{name}"), shape);
            let mut vector = |name: &str, width| norm(take(&format!("{name}.weight"), &[width])?);
            let input_norm = vector(names.input_norm, hidden)?;
            let kind = config.layer(index);
            let mixing = match config.recurrence(kind) {
                None if config.design.head_norms => {
                    let [query, key] = names.head_norms;
                    Mixing::Attention(Some([vector(query, heads.dim)?, vector(key, heads.dim)?]))
                }
                None => Mixing::Attention(None),
                Some(recurrence) => mixing(recurrence, &mut take)?,
            };
            let mut vector = |name: &str, width| norm(take(&format!("{name}.weight"), &[width])?);
            let middle_norm = vector(names.middle_norm, hidden)?;
            let output_norms = match config.design.output_norms {
                true => Some([vector(OUTPUT_NORMS[0], hidden)?, vector(OUTPUT_NORMS[1], hidden)?]),
                false => None,
            };
            let shapes = &linears_by_kind[&kind.by_weights()];
            let mut linears = Vec::with_capacity(shapes.len());
            for shape in shapes {
                let weight = take(&format!("{}.weight", shape.name), &[shape.outputs, shape.inputs])?;
                let format = if shape.role.is_stored_wider() { ends } else { format };
                let mut linear = Linear::new(matrix(weight, format)?);
                if shape.bias {
                    let tensor = to_f32(take(&format!("{}.bias", shape.name), &[shape.outputs])?)?;
                    linear.bias = Some(Vector { tensor, slot: None });
                }
                linears.push(linear);
            }
            layers.push(Layer { input_norm, mixing, middle_norm, output_norms, linears });
        }
        let norm = norm(tensor(&format!("{}.weight", names.last_norm), &[hidden])?)?;
        let head = match config.tied {
            true => None,
            false => Some(output(tensor("lm_head.weight", &[config.vocabulary, hidden])?)?),
        };
        let rotary = (config.rotary(), heads.dim);
        let rope = Rope::new(config.rope_theta, rotary, &config.design.scaling, config.context);
        let sliding_theta = config.design.sliding.and_then(|sliding| sliding.rope_theta);
        let sliding = sliding_theta.map(|theta| Rope::new(theta, rotary, &Scaling::Default, config.context));
        let ropes = Ropes { rope, sliding }.replicas(placement.devices().len());
        Ok(Self { config, embedding, layers, norm, head, ropes, placement, base_user: None })
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
