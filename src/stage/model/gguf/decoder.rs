//! The decoder that a GGUF file describes: its configuration, and its tensors under their names in safetensors.

use std::collections::BTreeMap;

use super::{Content, Feature, GgufError};
use crate::model::{Biases, Design, Family, Heads, LayerKind, ModelConfig, Scaling, Sliding};

/// Supported values of `general.architecture`.
pub const ARCHITECTURES: [(&str, Family); 4] = [
    ("gemma3", Family::Gemma3),
    ("llama", Family::Llama),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
];

/// Settings, after the architecture's name, that change the arithmetic in a way the decoder does not have.
const REFUSED: [&str; 11] = [
    "attention.alibi_bias_max",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_count",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "use_parallel_residual",
];

pub const EMBEDDING: &str = "token_embd.weight";
pub const OUTPUT: &str = "output.weight";
/// One divisor per rotated pair.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";
const ROPE_THETA: f64 = 10_000.0;
/// Every so many layers of Gemma 3 have full attention. The file need not say it.
const GEMMA_PATTERN: usize = 6;
/// Layers of Gemma 3 27B, whose scores have a scale of their own. The file does not say it.
const GEMMA_27B_LAYERS: usize = 62;

/// A tensor of the decoder and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Name in the file.
    pub name: String,
    /// Rows of each head, if the file has them in the order of adjacent pairs.
    pub paired: Option<usize>,
    /// What the file's values are larger by.
    pub offset: f32,
}

/// Reads the configuration from metadata and the list of tensors.
///
/// # Errors
/// If the decoder does not support something that the file asks for, by its name.
pub fn config(content: &Content<'_>) -> Result<ModelConfig, GgufError> {
    const KEY: &str = "general.architecture";
    let architecture = content.text(KEY)?.ok_or_else(|| content.missing(KEY))?;
    let Some((_, family)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        return Err(content.unsupported(Feature::Architecture, architecture));
    };
    let split = content.size("split.count")?.unwrap_or(1);
    if split > 1 {
        let reason = format!("the model is in {split} files; join them with `llama-gguf-split --merge`");
        return Err(content.metadata("split.count", reason));
    }
    let key = |name: &str| format!("{architecture}.{name}");
    for name in REFUSED {
        let key = key(name);
        let neutral = content.flag(&key).is_ok_and(|value| value == Some(false))
            || content.number(&key).is_ok_and(|value| value == Some(0.0));
        if content.has(&key) && !neutral {
            return Err(content.unsupported(Feature::Setting, &key));
        }
    }
    if content.flag(&key("attention.causal"))? == Some(false) {
        return Err(content.unsupported(Feature::Setting, &key("attention.causal")));
    }
    let size = |name: &str| {
        let key = key(name);
        content.size(&key)?.ok_or_else(|| content.missing(&key))
    };
    let hidden = size("embedding_length")?;
    let query = size("attention.head_count")?;
    let even = (query > 0).then(|| hidden / query);
    let dim = content.size(&key("attention.key_length"))?.or(even).unwrap_or_default();
    let heads = Heads { query, kv: content.size(&key("attention.head_count_kv"))?.unwrap_or(query), dim };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if content.size(&key(name))?.is_some_and(|size| size != dim) {
            return Err(
                content.metadata(&key(name), format!("only the width of a head, {dim}, is supported"))
            );
        }
    }
    let embedding = content.tensors.get(EMBEDDING).map(|tensor| tensor.shape.as_slice());
    let Some(&[vocabulary, _]) = embedding else {
        return Err(GgufError::MissingTensor { path: content.path.to_owned(), name: EMBEDDING.into() });
    };
    let mut design = Design::of(*family);
    // Llama's configuration has one switch for all four of attention and one for the feed-forward.
    if *family == Family::Llama {
        let has = |name: &str| content.tensors.contains_key(format!("blk.0.{name}.bias").as_str());
        let attention = has("attn_output");
        design.biases = Biases { input: attention, output: attention, feed_forward: has("ffn_down") };
    }
    let longest = size("context_length")?;
    let theta = content.number(&key("rope.freq_base"))?.unwrap_or(ROPE_THETA);
    design.scaling = scaling(content, architecture, longest)?;
    if content.tensors.contains_key(ROPE_FACTORS) {
        if design.scaling != Scaling::Default {
            return Err(content.unsupported(Feature::Rope, "factors with another scaling"));
        }
        design.scaling = llama3(content, theta, dim)?;
    }
    let epsilon = key("attention.layer_norm_rms_epsilon");
    let mut window = content.size(&key("attention.sliding_window"))?.filter(|window| *window > 0);
    let layers = size("block_count")?;
    if *family == Family::Gemma3 {
        let key = key("attention.sliding_window_pattern");
        let pattern = content.size(&key)?.filter(|pattern| *pattern > 0).unwrap_or(GEMMA_PATTERN);
        let rope_theta = content.number("gemma3.rope.freq_base_swa")?.unwrap_or(ROPE_THETA);
        let window = window.take().ok_or_else(|| content.missing("gemma3.attention.sliding_window"))?;
        let kind = |index: usize| match (index + 1).is_multiple_of(pattern) {
            true => LayerKind::FullAttention,
            false => LayerKind::SlidingAttention,
        };
        // A file has a tensor for every layer, so more layers than tensors are refused.
        design.layers = (0..layers.min(content.tensors.len())).map(kind).collect();
        design.sliding = Some(Sliding { window, rope_theta: Some(rope_theta) });
        design.query_scalar = Some(if layers == GEMMA_27B_LAYERS { hidden / query.max(1) } else { dim });
    }
    let config = ModelConfig {
        vocabulary,
        hidden,
        intermediate: size("feed_forward_length")?,
        layers,
        heads,
        // llama.cpp has no window for these families. Up to the model's, all tokens are seen.
        context: window.map_or(longest, |window| longest.min(window)),
        rope_theta: theta,
        norm_epsilon: content.number(&epsilon)?.ok_or_else(|| content.missing(&epsilon))? as f32,
        tied: !content.tensors.contains_key(OUTPUT),
        design,
    };
    config.check().map_err(|reason| content.metadata(architecture, reason))?;
    Ok(config)
}

/// `rope.scaling` of the metadata.
fn scaling(content: &Content<'_>, architecture: &str, longest: usize) -> Result<Scaling, GgufError> {
    let key = |name: &str| format!("{architecture}.rope.{name}");
    let old = content.number(&key("scale_linear"))?.filter(|factor| *factor != 1.0);
    let kind = content.text(&key("scaling.type"))?;
    let factor = content.number(&key("scaling.factor"))?;
    let needed = || factor.ok_or_else(|| content.missing(&key("scaling.factor")));
    match (kind, old) {
        (None | Some("none"), None) => match factor.is_some_and(|factor| factor != 1.0 && factor != 0.0) {
            true if kind.is_none() => Err(content.missing(&key("scaling.type"))),
            _ => Ok(Scaling::Default),
        },
        (None, Some(factor)) => Ok(Scaling::Linear { factor }),
        (Some("linear"), None) => Ok(Scaling::Linear { factor: needed()? }),
        (Some("yarn"), None) => {
            let original = content.size(&key("scaling.original_context_length"))?.unwrap_or(longest);
            // Other values of these change the frequencies in ways that `rope_scaling` cannot say.
            for (name, only) in [("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("attn_factor", 1.0)] {
                let key = key(&format!("scaling.{name}"));
                if content.number(&key)?.is_some_and(|value| value != only) {
                    return Err(content.unsupported(Feature::Setting, &key));
                }
            }
            let multiplier = key("scaling.yarn_log_multiplier");
            if content.number(&multiplier)?.is_some_and(|value| value != 0.0 && (value - 0.1).abs() > 1e-6) {
                return Err(content.unsupported(Feature::Setting, &multiplier));
            }
            Ok(Scaling::Yarn {
                factor: needed()?,
                original_max_position_embeddings: original as f64,
                beta_fast: content.number(&key("scaling.yarn_beta_fast"))?.unwrap_or(32.0),
                beta_slow: content.number(&key("scaling.yarn_beta_slow"))?.unwrap_or(1.0),
                truncate: true,
                attention_factor: None,
            })
        }
        (Some(other), _) => Err(content.unsupported(Feature::Rope, other)),
    }
}

/// Llama 3's scaling, which the file has as factors only. The parameters are found again: the factor is the largest, and
/// all published models share the others.
fn llama3(content: &Content<'_>, theta: f64, dim: usize) -> Result<Scaling, GgufError> {
    let found = content.floats(ROPE_FACTORS, checked(content, ROPE_FACTORS, &[dim / 2])?)?;
    if found.iter().all(|factor| *factor == 1.0) {
        return Ok(Scaling::Default);
    }
    let largest = found.iter().copied().fold(1.0_f32, f32::max);
    let scaling = Scaling::Llama3 {
        factor: f64::from(largest),
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    let equal = |(expected, found): (f32, &f32)| ((expected - found) / expected).abs() < 1e-4;
    match scaling.divisors(theta, dim).into_iter().zip(&found).all(equal) {
        true => Ok(scaling),
        false => Err(content.unsupported(Feature::Rope, ROPE_FACTORS)),
    }
}

/// The tensor of this name, which should have this shape.
fn checked<'c>(
    content: &'c Content<'_>,
    name: &str,
    shape: &[usize],
) -> Result<&'c super::file::StoredTensor, GgufError> {
    let tensor = content.tensor(name)?;
    if tensor.shape != shape {
        let (path, name) = (content.path.to_owned(), name.to_owned());
        return Err(GgufError::Shape { path, name, found: tensor.shape.clone(), expected: shape.to_vec() });
    }
    Ok(tensor)
}

/// Every tensor of the decoder by its name in safetensors, with its shape.
///
/// # Errors
/// If one is missing or has another shape, or the file has one that the decoder has no place for.
pub fn sources(
    content: &Content<'_>,
    config: &ModelConfig,
) -> Result<BTreeMap<String, (Source, Vec<usize>)>, GgufError> {
    let mut sources = BTreeMap::new();
    let mut used = std::collections::BTreeSet::from([ROPE_FACTORS.to_owned()]);
    // The configuration may announce any number of layers, so the first missing tensor ends this.
    for (name, shape) in config.tensors() {
        let source = source(&name, config);
        checked(content, &source.name, &shape)?;
        used.insert(source.name.clone());
        sources.insert(name, (source, shape));
    }
    match content.tensors.keys().find(|name| !used.contains(**name)) {
        Some(name) => {
            Err(GgufError::UnknownTensor { path: content.path.to_owned(), name: (*name).to_owned() })
        }
        None => Ok(sources),
    }
}

/// Where the tensor of this name in safetensors is.
pub fn source(name: &str, config: &ModelConfig) -> Source {
    const PARTS: [(&str, &str); 13] = [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
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
    let offset = if name.ends_with("norm.weight") { config.design.norm_offset() } else { 0.0 };
    let of = |name: &str, paired| Source { name: name.to_owned(), paired, offset };
    match name {
        "model.embed_tokens.weight" => return of(EMBEDDING, None),
        "model.norm.weight" => return of("output_norm.weight", None),
        "lm_head.weight" => return of(OUTPUT, None),
        _ => {}
    }
    let inner = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let parts = inner.and_then(|(layer, rest)| Some((layer, rest.rsplit_once('.')?)));
    let known = parts.and_then(|(layer, (part, kind))| {
        let (_, stored) = PARTS.iter().find(|(known, _)| *known == part)?;
        let stored = if part == config.design.names().middle_norm { &"ffn_norm" } else { stored };
        let rotated = ["attn_q", "attn_k"].contains(stored) && config.design.family == Family::Llama;
        Some(of(&format!("blk.{layer}.{stored}.{kind}"), rotated.then_some(config.heads.dim)))
    });
    // A name without a counterpart is then reported as missing from the file.
    known.unwrap_or_else(|| of(name, None))
}

/// Puts the rows of each head from the order of adjacent pairs, which llama.cpp rotates, into that of halves. `row` is
/// the width of a row in bytes.
pub fn halves(paired: &[u8], row: usize, dim: usize) -> Vec<u8> {
    transposed(paired, row, (dim / 2, 2))
}

/// The reverse of [`halves`], for values of rows of this many columns.
pub fn pairs(halves: &[f32], columns: usize, dim: usize) -> Vec<f32> {
    transposed(halves, columns, (2, dim / 2))
}

/// Each matrix of `rows` by `columns` items, an item being so many values, with its axes swapped.
fn transposed<T: Copy>(values: &[T], item: usize, (rows, columns): (usize, usize)) -> Vec<T> {
    let mut out = Vec::with_capacity(values.len());
    for matrix in values.chunks(rows * columns * item) {
        for (column, row) in (0..columns).flat_map(|column| (0..rows).map(move |row| (column, row))) {
            let at = (row * columns + column) * item;
            out.extend_from_slice(&matrix[at..at + item]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_pairs_become_rows_of_halves() {
        // Two heads of width 4, rows of two bytes.
        let paired: Vec<u8> = [0, 2, 1, 3, 4, 6, 5, 7].into_iter().flat_map(|row| [row, row]).collect();
        let expected: Vec<u8> = (0..8).flat_map(|row| [row, row]).collect();
        assert_eq!(halves(&paired, 2, 4), expected);
    }
}
