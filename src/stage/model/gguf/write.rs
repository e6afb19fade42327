//! A model's folder, or an adapter, as a GGUF file for llama.cpp and what is built on it.
//!
//! A tensor is read, converted and written at a time. Types and names are those of llama.cpp's own converter
//! (`convert_hf_to_gguf.py`, `convert_lora_to_gguf.py`) and quantizer.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use super::{
    Feature, GgufError,
    decoder::{EMBEDDING, OUTPUT, ROPE_FACTORS},
    metadata::{Meta, Metadata, text},
    supported::{ARCHITECTURES, TENSOR_TYPES},
    tensors::{TensorSource, source},
    vocabulary,
};
use crate::{
    error::Result,
    model::{
        AdapterConfig, LayerKind, ModelConfig, ModelError, Scaling, Weights, adapter_matrices, ops, own_name,
    },
};
use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};

/// How the matrices of a model are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    Bf16,
    F16,
    /// 8 bits per weight.
    Q8,
    /// 4 bits per weight, 6 for those that matter most.
    Q4KM,
}

impl Quantization {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8 => "q8_0",
            Self::Q4KM => "q4_k_m",
        }
    }

    /// `general.file_type`
    fn number(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::Q8 => 7,
            Self::Q4KM => 15,
            Self::Bf16 => 32,
        }
    }

    /// The type of a tensor of this name and shape in a model of this many layers.
    fn of(self, name: &str, shape: &[usize], layers: usize, tied: bool) -> GgmlDType {
        let [_, columns] = shape else { return GgmlDType::F32 };
        // A block of 32 weights has one scale, and one of 256 a scale of scales.
        let blocks = |wanted: GgmlDType, narrow: GgmlDType| match columns {
            columns if columns.is_multiple_of(wanted.block_size()) => wanted,
            columns if columns.is_multiple_of(narrow.block_size()) => narrow,
            _ => GgmlDType::F16,
        };
        match self {
            Self::Bf16 => GgmlDType::BF16,
            Self::F16 => GgmlDType::F16,
            Self::Q8 => blocks(GgmlDType::Q8_0, GgmlDType::Q8_0),
            Self::Q4KM => {
                let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
                let layer = layer.and_then(|(layer, part)| Some((layer.parse::<usize>().ok()?, part)));
                let is_more = match layer {
                    Some((layer, "attn_v.weight" | "attn_qkv.weight" | "ffn_down.weight")) => {
                        let eighth = layers / 8;
                        layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
                    }
                    Some(_) => false,
                    None => name == OUTPUT || tied,
                };
                match is_more {
                    true => blocks(GgmlDType::Q6K, GgmlDType::Q8_0),
                    false => blocks(GgmlDType::Q4K, GgmlDType::Q5_0),
                }
            }
        }
    }
}

/// A tensor of the file.
pub struct Planned {
    pub name: String,
    /// `[outputs, inputs]`, as in safetensors.
    pub shape: Vec<usize>,
    pub dtype: GgmlDType,
}

impl Planned {
    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() / self.dtype.block_size() * self.dtype.type_size()
    }
}

const VERSION: u32 = 3;
const ALIGNMENT: usize = 32;

/// Writes a file. `tensor` gives the values of the planned tensors, one after the other, in `f32`.
///
/// # Errors
/// If the file cannot be written, or with the first error of a tensor.
pub fn write(
    path: &Path,
    metadata: &Metadata,
    tensors: &[Planned],
    mut tensor: impl FnMut(usize) -> Result<Tensor>,
) -> Result<()> {
    let failed = |source| GgufError::Write { path: path.to_owned(), source };
    let mut head: Vec<u8> = b"GGUF".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        head.extend(text(key));
        head.extend(value.kind().to_le_bytes());
        head.extend(value.bytes());
    }
    let mut offset = 0;
    for planned in tensors {
        head.extend(text(&planned.name));
        head.extend((planned.shape.len() as u32).to_le_bytes());
        planned.shape.iter().rev().for_each(|size| head.extend((*size as u64).to_le_bytes()));
        let number = TENSOR_TYPES.iter().find(|(_, _, dtype)| *dtype == planned.dtype);
        head.extend(number.map_or(0, |(number, _, _)| *number).to_le_bytes());
        head.extend((offset as u64).to_le_bytes());
        offset += planned.bytes().next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    file.write_all(&head).map_err(failed)?;
    for (index, planned) in tensors.iter().enumerate() {
        let wrong =
            |reason: String| GgufError::Convert { path: path.to_owned(), name: planned.name.clone(), reason };
        let values = tensor(index)?;
        let too_large = |values: &[f32]| values.iter().any(|value| value.abs() > f32::from(half::f16::MAX));
        if planned.dtype == GgmlDType::F16 && too_large(&ops::values(&values).map_err(ModelError::from)?) {
            return Err(wrong("it has values that f16 cannot hold; take bf16 or q8_0".into()).into());
        }
        let stored = QTensor::quantize(&values, planned.dtype).map_err(|error| wrong(error.to_string()))?;
        let bytes = stored.data().map_err(|error| wrong(error.to_string()))?;
        file.write_all(&bytes).map_err(failed)?;
        file.write_all(&vec![0; bytes.len().next_multiple_of(ALIGNMENT) - bytes.len()]).map_err(failed)?;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    Ok(file.sync_all().map_err(failed)?)
}

/// The name of a family's architecture in GGUF files.
fn architecture(config: &ModelConfig) -> Result<&'static str, GgufError> {
    let family = config.design.family;
    let known = ARCHITECTURES.iter().find(|(_, known)| *known == family);
    known.map(|(name, _)| *name).ok_or_else(|| GgufError::Unwritable {
        what: Feature::Architecture,
        found: family.model_type().to_owned(),
    })
}

/// Writes the model in a folder as a file.
///
/// # Errors
/// If llama.cpp has no name for something in it, or the file cannot be written.
pub fn model(folder: &Path, name: &str, quantization: Quantization, path: &Path) -> Result<()> {
    let config = ModelConfig::load(folder)?;
    let architecture = architecture(&config)?;
    let mut metadata: Metadata = vec![
        ("general.architecture".into(), architecture.into()),
        ("general.type".into(), "model".into()),
        ("general.name".into(), name.into()),
        ("general.file_type".into(), Meta::Size(quantization.number())),
        ("general.quantization_version".into(), Meta::Size(2)),
    ];
    let key = |name: &str| format!("{architecture}.{name}");
    // llama.cpp has windows for Gemma only, and its tokenizers are not written yet.
    let windows = (0..config.layers).filter_map(|layer| config.attention(layer).window);
    let sizes = [
        ("vocab_size", config.vocabulary),
        ("context_length", windows.fold(config.context, usize::min)),
        ("embedding_length", config.hidden),
        ("block_count", config.layers),
        ("feed_forward_length", config.intermediate),
        ("attention.head_count", config.heads.query),
        ("attention.key_length", config.heads.dim),
        ("attention.value_length", config.heads.dim),
        ("rope.dimension_count", config.rotary()),
    ];
    metadata.extend(sizes.map(|(name, size)| (key(name), size.into())));
    metadata.extend(mixing(&config).into_iter().map(|(name, value)| (key(&name), value)));
    #[expect(clippy::cast_possible_truncation, reason = "the format has f32")]
    let number = |value: f64| Meta::Number(value as f32);
    metadata.push((key("rope.freq_base"), number(config.rope_theta)));
    metadata.push((key("attention.layer_norm_rms_epsilon"), Meta::Number(config.norm_epsilon)));
    let mut factors = None;
    match &config.design.scaling {
        Scaling::Default => {}
        Scaling::Linear { factor } => {
            metadata.push((key("rope.scaling.type"), "linear".into()));
            metadata.push((key("rope.scaling.factor"), number(*factor)));
        }
        Scaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            truncate: true,
            attention_factor: None,
        } => {
            metadata.push((key("rope.scaling.type"), "yarn".into()));
            let original = *original_max_position_embeddings as usize;
            metadata.push((key("rope.scaling.original_context_length"), original.into()));
            let numbers = [("factor", factor), ("yarn_beta_fast", beta_fast), ("yarn_beta_slow", beta_slow)];
            metadata
                .extend(numbers.map(|(name, value)| (key(&format!("rope.scaling.{name}")), number(*value))));
        }
        scaling @ Scaling::Llama3 { .. } => {
            factors = Some(scaling.divisors(config.rope_theta, config.rotary()));
        }
        scaling => {
            let found = serde_json::to_value(scaling).ok();
            let found = found.and_then(|found| found["rope_type"].as_str().map(str::to_owned));
            return Err(
                GgufError::Unwritable { what: Feature::Rope, found: found.unwrap_or_default() }.into()
            );
        }
    }
    metadata.extend(vocabulary::metadata(folder, config.vocabulary)?);
    let mut sources: Vec<Option<(String, TensorSource, Vec<usize>)>> = Vec::new();
    let mut planned = Vec::new();
    if let Some(factors) = &factors {
        sources.push(None);
        planned.push(Planned {
            name: ROPE_FACTORS.into(),
            shape: vec![factors.len()],
            dtype: GgmlDType::F32,
        });
    }
    for (name, shape) in config.tensors() {
        let source = source(&name, &config);
        let dtype = quantization.of(&source.name, &shape, config.layers, config.tied);
        planned.push(Planned { name: source.name.clone(), shape: TensorSource::shape(&shape), dtype });
        sources.push(Some((name, source, shape)));
    }
    let mut weights = Weights::open(folder)?;
    write(path, &metadata, &planned, |index| {
        let Some((name, source, shape)) = &sources[index] else {
            let factors = factors.clone().unwrap_or_default();
            let shape = factors.len();
            return Ok(Tensor::from_vec(factors, shape, &Device::Cpu).map_err(ModelError::from)?);
        };
        source.written(weights.take(name, shape)?)
    })
}

/// The metadata of what mixes the rows of the layers.
fn mixing(config: &ModelConfig) -> Metadata {
    let kinds = || (0..config.layers).map(|layer| config.layer(layer));
    let kv = i32::try_from(config.heads.kv).unwrap_or(i32::MAX);
    let mut metadata: Metadata = Vec::new();
    let mut add = |name: &str, value: Meta| metadata.push((name.to_owned(), value));
    if let Some(window) = config.design.convolution {
        let heads = kinds().map(|kind| if kind == LayerKind::Conv { 0 } else { kv }).collect();
        add("attention.head_count_kv", Meta::Integers(heads));
        add("shortconv.l_cache", window.into());
    } else {
        add("attention.head_count_kv", config.heads.kv.into());
    }
    if let Some(delta) = config.design.delta {
        let sizes = [
            ("ssm.conv_kernel", delta.window),
            ("ssm.state_size", delta.key_dim),
            ("ssm.group_count", delta.key),
            ("ssm.time_step_rank", delta.value),
            ("ssm.inner_size", delta.width()),
        ];
        sizes.into_iter().for_each(|(name, size)| add(name, size.into()));
        let is_linear: Vec<bool> = kinds().map(|kind| kind == LayerKind::LinearAttention).collect();
        // Earlier releases of llama.cpp read this alone.
        let every = is_linear.iter().take_while(|is_linear| **is_linear).count() + 1;
        add("full_attention_interval", every.into());
        add("attention.recurrent_layers", Meta::Flags(is_linear));
        // Time, height and width of a position share the rotated pairs. They are equal for text.
        let pairs = config.rotary() / 2;
        let sections = [pairs.div_ceil(3), (pairs + 1) / 3, pairs / 3, 0];
        let sections = sections.map(|pairs| i32::try_from(pairs).unwrap_or(i32::MAX));
        add("rope.dimension_sections", Meta::Integers(sections.to_vec()));
    }
    metadata
}

/// Writes the adapter in a folder as a file, for use with its base model as a GGUF file (`llama-server --lora`).
///
/// # Errors
/// As [`model`].
pub fn adapter(folder: &Path, config: &ModelConfig, name: &str, path: &Path) -> Result<()> {
    let architecture = architecture(config)?;
    let adapter = AdapterConfig::load(folder)?;
    let matrices = adapter_matrices(folder, &adapter)?;
    // One alpha for all: a module with another scale has it in its matrix.
    let alpha = matrices.values().next().map_or(1.0, |(a, _, scale)| scale * a.dims()[0] as f32);
    let metadata: Metadata = vec![
        ("general.architecture".into(), architecture.into()),
        ("general.type".into(), "adapter".into()),
        ("general.name".into(), name.into()),
        ("adapter.type".into(), "lora".into()),
        ("adapter.lora.alpha".into(), Meta::Number(alpha)),
    ];
    let known: BTreeMap<String, Vec<usize>> = config.tensors().collect();
    let (mut planned, mut values) = (Vec::new(), Vec::new());
    for (module, (a, b, scale)) in matrices {
        let weight = own_name(&format!("{module}.weight")).unwrap_or_default();
        let source = source(&weight, config);
        let shape = known.get(&weight).filter(|_| source.name != EMBEDDING);
        let Some(shape) = shape else {
            return Err(GgufError::Unwritable { what: Feature::Module, found: module }.into());
        };
        let fits = [b.dims()[0], a.dims()[1]];
        if fits != shape[..] {
            let reason = format!("`{module}` adapts a weight of {fits:?}, the model's has {shape:?}");
            return Err(ModelError::Adapter { path: folder.to_owned(), reason }.into());
        }
        let own = scale * a.dims()[0] as f32 / alpha;
        let b = b.affine(f64::from(own), 0.0).map_err(ModelError::from)?;
        let [a, b] = source.written_adapter(a, b)?;
        for (part, tensor) in [("lora_a", a), ("lora_b", b)] {
            let (name, shape) = (format!("{}.{part}", source.name), tensor.dims().to_vec());
            planned.push(Planned { name, shape, dtype: GgmlDType::F32 });
            values.push(tensor);
        }
    }
    write(path, &metadata, &planned, |index| Ok(values[index].clone()))
}
