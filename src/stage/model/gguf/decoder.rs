//! The configuration of the decoder that a GGUF file describes.

use super::{Content, Feature, GgufError, supported::ARCHITECTURES};
use crate::model::{Biases, DeltaHeads, Design, Family, Heads, LayerKind, ModelConfig, Scaling, Sliding};

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
/// Every so many layers of Qwen3.5 have full attention, unless the file says otherwise.
const QWEN3_5_PATTERN: usize = 4;

/// Reads the configuration from metadata and the list of tensors.
///
/// # Errors
/// If the decoder does not support something that the file asks for, by its name.
pub fn config(content: &Content<'_>) -> Result<ModelConfig, GgufError> {
    let architecture = architecture(content)?;
    let Some(&(_, family)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        return Err(content.unsupported(Feature::Architecture, architecture));
    };
    let split = content.size("split.count")?.unwrap_or(1);
    if split > 1 {
        let reason = format!("the model is in {split} files; join them with `llama-gguf-split --merge`");
        return Err(content.metadata("split.count", reason));
    }
    let key = |name: &str| format!("{architecture}.{name}");
    check_settings(content, architecture)?;
    let size = |name: &str| {
        let key = key(name);
        content.size(&key)?.ok_or_else(|| content.missing(&key))
    };
    let hidden = size("embedding_length")?;
    let (heads, by_layer) = heads(content, (architecture, family), size("attention.head_count")?, hidden)?;
    let Heads { query, dim, .. } = heads;
    let rotary = content.size(&key("rope.dimension_count"))?.filter(|rotary| *rotary != dim);
    let is_whole = rotary.is_none() || family == Family::Qwen3_5;
    let value_dim = content.size(&key("attention.value_length"))?.filter(|value_dim| *value_dim != dim);
    for (name, is_supported) in
        [("attention.value_length", value_dim.is_none()), ("rope.dimension_count", is_whole)]
    {
        if !is_supported {
            return Err(
                content.metadata(&key(name), format!("only the width of a head, {dim}, is supported"))
            );
        }
    }
    let embedding = content.tensors.get(EMBEDDING).map(|tensor| tensor.shape.as_slice());
    let Some(&[vocabulary, _]) = embedding else {
        return Err(GgufError::MissingTensor { path: content.path.to_owned(), name: EMBEDDING.into() });
    };
    let mut design = Design::of(family);
    design.rotary = rotary;
    // Llama's configuration has one switch for all four of attention and one for the feed-forward.
    if family == Family::Llama {
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
        design.scaling = llama3(content, theta, rotary.unwrap_or(dim))?;
    }
    let epsilon = key("attention.layer_norm_rms_epsilon");
    let mut window = content.size(&key("attention.sliding_window"))?.filter(|window| *window > 0);
    let layers = size("block_count")?.saturating_sub(predicting(content)?);
    // A file has a tensor for every layer, so more layers than tensors are refused.
    let listed = layers.min(content.tensors.len());
    if family == Family::Lfm2 {
        if window.is_some() {
            return Err(content.unsupported(Feature::Setting, &key("attention.sliding_window")));
        }
        let kind = |index: usize| match by_layer.get(index).or(by_layer.last()) {
            Some(0) => LayerKind::Conv,
            _ => LayerKind::FullAttention,
        };
        design.layers = (0..listed).map(kind).collect();
        design.convolution = Some(size("shortconv.l_cache")?);
    }
    if family == Family::Qwen3_5 {
        (design.layers, design.delta) = linear_attention(content, listed)?;
    }
    if family == Family::Gemma3 {
        let key = key("attention.sliding_window_pattern");
        let pattern = content.size(&key)?.filter(|pattern| *pattern > 0).unwrap_or(GEMMA_PATTERN);
        let rope_theta = content.number("gemma3.rope.freq_base_swa")?.unwrap_or(ROPE_THETA);
        let window = window.take().ok_or_else(|| content.missing("gemma3.attention.sliding_window"))?;
        let kind = |index: usize| match (index + 1).is_multiple_of(pattern) {
            true => LayerKind::FullAttention,
            false => LayerKind::SlidingAttention,
        };
        design.layers = (0..listed).map(kind).collect();
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

/// Refuses what the decoder does not have, unless it is off.
fn check_settings(content: &Content<'_>, architecture: &str) -> Result<(), GgufError> {
    for name in REFUSED {
        let key = format!("{architecture}.{name}");
        let neutral = content.flag(&key).is_ok_and(|value| value == Some(false))
            || content.number(&key).is_ok_and(|value| value == Some(0.0));
        if content.has(&key) && !neutral {
            return Err(content.unsupported(Feature::Setting, &key));
        }
    }
    let key = format!("{architecture}.attention.causal");
    match content.flag(&key)? {
        Some(false) => Err(content.unsupported(Feature::Setting, &key)),
        _ => Ok(()),
    }
}

/// The heads of a layer, and the number of keys of each layer.
fn heads(
    content: &Content<'_>,
    (architecture, family): (&str, Family),
    query: usize,
    hidden: usize,
) -> Result<(Heads, Vec<usize>), GgufError> {
    let even = (query > 0).then(|| hidden / query);
    let dim = content.size(&format!("{architecture}.attention.key_length"))?.or(even).unwrap_or_default();
    let key = format!("{architecture}.attention.head_count_kv");
    let by_layer = content.sizes(&key)?.unwrap_or(vec![query]);
    // A layer without attention has no heads.
    let kv = by_layer.iter().copied().find(|heads| *heads > 0).unwrap_or(query);
    let is_mixed = by_layer.iter().any(|heads| *heads != kv && (*heads != 0 || family != Family::Lfm2));
    if is_mixed {
        return Err(content.metadata(&key, "only one number of heads for all layers is supported"));
    }
    Ok((Heads { query, kv, dim }, by_layer))
}

fn architecture<'a>(content: &Content<'a>) -> Result<&'a str, GgufError> {
    const KEY: &str = "general.architecture";
    content.text(KEY)?.ok_or_else(|| content.missing(KEY))
}

/// The number of layers behind the decoder's that predict further tokens. They are not used.
pub fn predicting(content: &Content<'_>) -> Result<usize, GgufError> {
    let key = format!("{}.nextn_predict_layers", architecture(content)?);
    Ok(content.size(&key)?.unwrap_or_default())
}

/// The kinds of Qwen3.5's layers, and the sizes of those with linear attention.
fn linear_attention(
    content: &Content<'_>,
    layers: usize,
) -> Result<(Vec<LayerKind>, Option<DeltaHeads>), GgufError> {
    let key = |name: &str| format!("qwen35.{name}");
    let size = |name: &str| content.size(&key(name))?.ok_or_else(|| content.missing(&key(name)));
    let every = content.size(&key("full_attention_interval"))?.unwrap_or(QWEN3_5_PATTERN).max(1);
    let is_linear = match content.flags(&key("attention.recurrent_layers"))? {
        Some(flags) => flags,
        None => (1..=layers).map(|number| !number.is_multiple_of(every)).collect(),
    };
    let kind = |is_linear| if is_linear { LayerKind::LinearAttention } else { LayerKind::FullAttention };
    let (value, width) = (size("ssm.time_step_rank")?, size("ssm.inner_size")?);
    let delta = DeltaHeads {
        key: size("ssm.group_count")?,
        value,
        key_dim: size("ssm.state_size")?,
        value_dim: width.checked_div(value).unwrap_or_default(),
        window: size("ssm.conv_kernel")?,
    };
    if delta.value_dim * value != width {
        let reason = format!("it is not a multiple of {value}, the number of value heads");
        return Err(content.metadata(&key("ssm.inner_size"), reason));
    }
    Ok((is_linear.into_iter().take(layers).map(kind).collect(), Some(delta)))
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
    let found = content.floats(ROPE_FACTORS, content.tensor_of_shape(ROPE_FACTORS, &[dim / 2])?)?;
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
