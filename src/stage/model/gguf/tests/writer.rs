//! Writes small GGUF files, as llama.cpp's converter does from a Hugging Face folder.

use std::{collections::BTreeMap, path::Path};

use candle_core::{
    Device, Tensor,
    quantized::{
        GgmlDType, QTensor,
        gguf_file::{self, Value},
    },
};
use serde_json::Value as Json;

use crate::model::{Biases, Design, Family, Heads, LayerKind, ModelConfig, Scaling, Sliding};

pub const TEMPLATE: &str = "tests/reference/chat/qwen3/chat_template.jinja";

pub fn reference(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A file to be written, and what it was made of.
#[derive(Clone)]
pub struct Draft {
    /// The decoder's tensors under their names in safetensors, with values that bf16 holds.
    pub weights: BTreeMap<String, Tensor>,
    pub metadata: Vec<(String, Value)>,
    /// Stored tensors by name.
    pub tensors: Vec<(String, Tensor, GgmlDType)>,
}

pub fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(texts.into_iter().map(|text| Value::String(text.to_owned())).collect())
}

/// A configuration whose rows are long enough for every type.
pub fn config(family: Family) -> ModelConfig {
    let mut design = Design::of(family);
    if family == Family::Llama {
        design.biases = Biases { input: true, output: true, feed_forward: true };
    }
    if family == Family::Gemma3 {
        // Every sixth layer has full attention, and there are two.
        design.layers = vec![LayerKind::SlidingAttention; 2];
        design.sliding = Some(Sliding { window: 48, rope_theta: Some(10_000.0) });
        design.query_scalar = Some(64);
    }
    ModelConfig {
        vocabulary: 420,
        hidden: 256,
        intermediate: 512,
        layers: 2,
        heads: Heads { query: 4, kv: 2, dim: 64 },
        context: 128,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
        tied: false,
        design,
    }
}

/// The same values of a tensor, whoever asks.
fn values(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let value = |index: usize| {
        let mixed = (seed.wrapping_add(index as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = (mixed >> 40) as f32 / (1 << 24) as f32 - 0.5;
        half::bf16::from_f32(value / 4.0).to_f32()
    };
    (0..count).map(value).collect()
}

/// llama.cpp's `permute`: rows of halves become rows of adjacent pairs.
fn permuted(tensor: &Tensor, heads: usize) -> Tensor {
    let dims = tensor.dims().to_vec();
    let columns = if dims.len() > 1 { dims[1] } else { 1 };
    let split = tensor.reshape((heads, 2, dims[0] / heads / 2, columns)).unwrap();
    split.transpose(1, 2).unwrap().contiguous().unwrap().reshape(dims).unwrap()
}

impl Draft {
    pub fn new(config: ModelConfig) -> Self {
        let family = config.design.family;
        let architecture = if family == Family::Gemma3 { "gemma3" } else { family.model_type() };
        let mut metadata: Vec<(String, Value)> = vec![
            ("general.architecture".into(), Value::String(architecture.into())),
            ("general.name".into(), Value::String("small".into())),
        ];
        let sizes = [
            ("block_count", config.layers),
            ("context_length", config.context),
            ("embedding_length", config.hidden),
            ("feed_forward_length", config.intermediate),
            ("attention.head_count", config.heads.query),
            ("attention.head_count_kv", config.heads.kv),
            ("attention.key_length", config.heads.dim),
            ("rope.dimension_count", config.heads.dim),
        ];
        let key = |name: &str| format!("{architecture}.{name}");
        metadata.extend(sizes.map(|(name, size)| (key(name), Value::U32(size as u32))));
        metadata.push((key("rope.freq_base"), Value::F32(config.rope_theta as f32)));
        metadata.push((key("attention.layer_norm_rms_epsilon"), Value::F32(config.norm_epsilon)));
        if let Some(sliding) = config.design.sliding {
            metadata.push((key("attention.sliding_window"), Value::U32(sliding.window as u32)));
        }
        metadata.extend(tokenizer());
        let (mut weights, mut tensors) = (BTreeMap::new(), Vec::new());
        for (name, shape) in config.tensors() {
            let values = values(&name, shape.iter().product());
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            let stored = stored_name(&name, &config);
            let of_llama = family == Family::Llama;
            let bits = match stored.rsplit('.').nth(1) {
                Some("attn_q") if of_llama => permuted(&tensor, config.heads.query),
                Some("attn_k") if of_llama => permuted(&tensor, config.heads.kv),
                Some(part) if part.ends_with("norm") => {
                    (&tensor + f64::from(config.design.norm_offset())).unwrap()
                }
                _ => tensor.clone(),
            };
            tensors.push((stored, bits, GgmlDType::F32));
            weights.insert(name, tensor);
        }
        Self { weights, metadata, tensors }
    }

    /// The content of a file, without what it was made of.
    pub fn read(path: &Path) -> Self {
        let mut file = std::fs::File::open(path).unwrap();
        let content = gguf_file::Content::read(&mut file).unwrap();
        let stored = content.tensor_infos.keys().map(|name| {
            let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
            (name.clone(), tensor.dequantize(&Device::Cpu).unwrap(), GgmlDType::F32)
        });
        let tensors = stored.collect();
        Self { weights: BTreeMap::new(), metadata: content.metadata.into_iter().collect(), tensors }
    }

    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub fn without(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self.tensors.retain(|(known, _, _)| known != key);
        self
    }

    pub fn add(&mut self, name: &str, tensor: Tensor) -> &mut Self {
        self.tensors.push((name.to_owned(), tensor, GgmlDType::F32));
        self
    }

    /// Stores the matrices in this type.
    pub fn stored(&mut self, dtype: GgmlDType) -> &mut Self {
        for (_, tensor, stored) in &mut self.tensors {
            *stored = if tensor.rank() > 1 { dtype } else { GgmlDType::F32 };
        }
        self
    }

    pub fn write(&self, path: &Path) {
        let quantized: Vec<(&str, QTensor)> = self
            .tensors
            .iter()
            .map(|(name, tensor, dtype)| (name.as_str(), QTensor::quantize(tensor, *dtype).unwrap()))
            .collect();
        let metadata: Vec<(&str, &Value)> =
            self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<(&str, &QTensor)> = quantized.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let mut file = std::fs::File::create(path).unwrap();
        gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    }
}

/// The name in the file of a tensor of safetensors.
fn stored_name(name: &str, config: &ModelConfig) -> String {
    let of_gemma = config.design.family == Family::Gemma3;
    let parts = [
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", if of_gemma { "post_attention_norm" } else { "ffn_norm" }),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    parts.into_iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// The tokenizer of a test folder, with its template, filled up to the size of the embedding.
fn tokenizer() -> Vec<(String, Value)> {
    let file: Json = serde_json::from_str(&reference("tests/reference/chat/qwen3/tokenizer.json")).unwrap();
    let mut tokens: BTreeMap<u64, (String, i32)> = BTreeMap::new();
    for (token, id) in file["model"]["vocab"].as_object().unwrap() {
        tokens.insert(id.as_u64().unwrap(), (token.clone(), 1));
    }
    for token in file["added_tokens"].as_array().unwrap() {
        let kind = if token["special"] == true { 3 } else { 4 };
        tokens.insert(token["id"].as_u64().unwrap(), (token["content"].as_str().unwrap().into(), kind));
    }
    let id =
        |text: &str| tokens.iter().find(|(_, (token, _))| token == text).map(|(id, _)| *id as u32).unwrap();
    let (end, pad) = (id("<|im_end|>"), id("<|endoftext|>"));
    for id in tokens.len() as u64..420 {
        tokens.insert(id, (format!("[PAD{id}]"), 5));
    }
    let merges = file["model"]["merges"].as_array().unwrap();
    let merges: Vec<String> = merges
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    vec![
        (key("model"), Value::String("gpt2".into())),
        (key("pre"), Value::String("gpt-2".into())),
        (key("tokens"), texts(tokens.values().map(|(token, _)| token.as_str()))),
        (key("token_type"), Value::Array(tokens.values().map(|(_, kind)| Value::I32(*kind)).collect())),
        (key("merges"), texts(merges.iter().map(String::as_str))),
        (key("eos_token_id"), Value::U32(end)),
        (key("padding_token_id"), Value::U32(pad)),
        (key("add_bos_token"), Value::Bool(false)),
        ("tokenizer.chat_template".into(), Value::String(reference(TEMPLATE))),
    ]
}

/// The scaling of Llama 3.1, and its factors as llama.cpp's converter writes them.
pub fn llama3(theta: f64, dim: usize) -> (Scaling, Tensor) {
    let (factor, low, high, original) = (8.0_f64, 1.0_f64, 4.0_f64, 8192.0_f64);
    let of_pair = |pair: usize| {
        let length = std::f64::consts::TAU * theta.powf(2.0 * pair as f64 / dim as f64);
        if length < original / high {
            1.0
        } else if length > original / low {
            factor
        } else {
            let smooth = (original / length - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    let factors: Vec<f32> = (0..dim / 2).map(|pair| of_pair(pair) as f32).collect();
    let scaling = Scaling::Llama3 {
        factor,
        low_freq_factor: low,
        high_freq_factor: high,
        original_max_position_embeddings: original,
    };
    (scaling, Tensor::from_vec(factors, dim / 2, &Device::Cpu).unwrap())
}
