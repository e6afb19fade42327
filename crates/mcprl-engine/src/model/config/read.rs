//! Reads `config.json` of a Hugging Face folder, as written by Transformers 4 and 5.
//!
//! A family's file is converted to the form of candle's Qwen3 configuration. Unsupported features are refused
//! by name: no key that would change the arithmetic is ignored.

use std::path::Path;

use candle_transformers::models::qwen3;
use mcprl_base::{document, json};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{Biases, Design, Experts, Family, GEMMA_ACTIVATION, LayerKind, ModelConfig, Sliding};
use crate::model::{
    ModelError,
    kernels::{DeltaHeads, Heads},
    rope::Scaling,
};

/// Default base of the rotary embedding, as in Transformers.
const ROPE_THETA: f64 = 10_000.0;
/// Default window of a `mistral` file, as in Transformers.
const MISTRAL_WINDOW: usize = 4096;
/// Every so many layers of Gemma 3 have full attention, unless the file says otherwise.
const GEMMA_PATTERN: usize = 6;
/// Default of `max_window_layers`, as in Transformers.
const WINDOW_LAYERS: usize = 28;
/// Far more than any model has.
pub const MOST_LAYERS: usize = 1 << 16;

/// The additional keys of a mixture of experts.
#[derive(Deserialize)]
struct Mixture {
    moe_intermediate_size: usize,
    /// Transformers 5 writes the second name.
    #[serde(alias = "num_local_experts")]
    num_experts: usize,
    num_experts_per_tok: usize,
    #[serde(default)]
    norm_topk_prob: bool,
    #[serde(default)]
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Option<Vec<usize>>,
}

impl ModelConfig {
    /// Reads `config.json` of a Hugging Face folder.
    ///
    /// # Errors
    /// Fails if the file is unreadable, describes another architecture or a quantised checkpoint, or needs an
    /// unsupported feature.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("config.json");
        let text = document::read(&path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let text = document::without_python(&text);
        let wrong = |reason: String| ModelError::Config { path: path.clone(), reason };
        let file: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let (file, is_part) = language_model(file);
        let found = match (file.get("model_type"), file.get("architectures")) {
            (Some(Value::String(name)), _) => name.clone(),
            (_, Some(architectures)) => architectures.to_string(),
            _ => "(none)".to_owned(),
        };
        let Some(family) = Family::ALL.iter().copied().find(|family| family.model_type() == found) else {
            return Err(ModelError::Architecture { path, found });
        };
        if let Some(quantised) = file.get("quantization_config").filter(|value| !value.is_null()) {
            let method = quantised["quant_method"].as_str().unwrap_or("unknown").to_owned();
            return Err(ModelError::Quantised { path, method });
        }
        let mut config = read(family, file).map_err(wrong)?;
        config.design.is_part = is_part;
        config.check().map_err(wrong)?;
        Ok(config)
    }
}

/// The `model_type` of models with vision, whose language model is one of this family.
const LARGER: [(&str, Family); 2] = [("gemma3", Family::Gemma3), ("qwen3_5", Family::Qwen3_5)];

/// The part of a file that describes the language model, if the file is that of a larger model.
fn language_model(mut file: Map<String, Value>) -> (Map<String, Value>, bool) {
    let found = file.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let Some((_, family)) = LARGER.into_iter().find(|(name, _)| *name == found) else { return (file, false) };
    let Some(Value::Object(mut part)) = file.remove("text_config") else { return (file, false) };
    part.entry("model_type").or_insert(json!(family.model_type()));
    part.remove("architectures");
    part.extend(file.remove_entry("quantization_config"));
    part.extend(file.remove_entry("tie_word_embeddings"));
    (part, true)
}

/// The value of a key that is present and not null.
fn given<'a>(file: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    file.get(key).filter(|value| !value.is_null())
}

/// Sets keys that are absent or null. The table of the rotary embedding precedes what is set here.
fn fill<const N: usize>(file: &mut Map<String, Value>, defaults: [(&str, Value); N]) {
    for (key, default) in defaults {
        if given(file, key).is_none() {
            file.insert(key.into(), default);
        }
    }
}

/// The value of a key that is a whole number. Python writes some as `4096.0`.
fn size(file: &Map<String, Value>, key: &str) -> Result<Option<usize>, String> {
    let Some(value) = given(file, key) else { return Ok(None) };
    let whole =
        value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number));
    let size = value.as_u64().or(whole.map(|number| number as u64));
    size.map(|size| Some(size as usize)).ok_or(format!("{key} should be a whole number, found {value}"))
}

fn number(file: &Map<String, Value>, key: &str) -> Result<Option<f64>, String> {
    let value = given(file, key);
    value.map(|value| value.as_f64().ok_or(format!("{key} should be a number, found {value}"))).transpose()
}

/// The value of a key that is true or false; false if it is absent.
fn flag(file: &Map<String, Value>, key: &str) -> Result<bool, String> {
    let value = given(file, key);
    value.map_or(Ok(false), |value| {
        value.as_bool().ok_or(format!("{key} should be true or false, found {value}"))
    })
}

/// Parses the keys into a struct's fields. An error names the key.
fn typed<T: DeserializeOwned>(mut file: Map<String, Value>) -> Result<T, String> {
    file.retain(|_, value| !value.is_null());
    json::typed(&file).map_err(|mistake| mistake.to_string())
}

fn read(family: Family, mut file: Map<String, Value>) -> Result<ModelConfig, String> {
    let classes = given(&file, "architectures").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if let Some(other) = classes.iter().find(|class| *class != family.class()) {
        return Err(format!("architecture {other} is not supported, only {}", family.class()));
    }
    if family == Family::Gemma3 {
        gemma(&mut file)?;
    }
    let delta = if family == Family::Qwen3_5 { Some(qwen3_5(&mut file)?) } else { None };
    let convolution = if family == Family::Lfm2 { Some(lfm2(&mut file)?) } else { None };
    let known: &[&str] = if family == Family::Gemma3 { &[GEMMA_ACTIVATION] } else { &["silu", "swish"] };
    if let Some(other) = given(&file, "hidden_act").filter(|act| !known.iter().any(|a| act == a)) {
        return Err(format!("activation {other} is not supported, only {}", known[0]));
    }
    let mut design = Design::of(family);
    if family == Family::Gemma3 {
        design.query_scalar = size(&file, "query_pre_attn_scalar")?;
    }
    let (theta, rotary) = rotary(&mut file, &mut design)?;
    let mixture = match family {
        Family::Qwen3Moe => Some(mixture(&file)?),
        _ => None,
    };
    windows(family, &file, &mut design)?;
    (design.delta, design.convolution) = (delta, convolution);
    if delta.is_some() || convolution.is_some() {
        design.layers = layer_types(&file)?;
    }
    let biased = flag(&file, "attention_bias")?;
    if biased {
        design.biases = Biases { input: true, output: true, ..design.biases };
    }
    design.biases.feed_forward = family == Family::Llama && flag(&file, "mlp_bias")?;

    // Keys of candle's type that files of another family or release omit.
    let heads = size(&file, "num_attention_heads")?.filter(|heads| *heads > 0);
    let head_dim = size(&file, "hidden_size")?.zip(heads).map(|(hidden, heads)| hidden / heads);
    let intermediate = mixture.as_ref().map(|mixture| mixture.moe_intermediate_size);
    let defaults = [
        ("head_dim", json!(head_dim)),
        ("num_key_value_heads", json!(heads)),
        ("max_window_layers", json!(0)),
        ("tie_word_embeddings", json!(false)),
        ("rms_norm_eps", json!(1e-6)),
        ("intermediate_size", json!(intermediate)),
    ];
    fill(&mut file, defaults);
    let settled = [
        ("attention_bias", json!(biased)),
        ("use_sliding_window", json!(false)),
        ("sliding_window", Value::Null),
        ("rope_theta", json!(theta)),
        ("hidden_act", json!("silu")),
    ];
    file.extend(settled.map(|(key, value)| (key.to_owned(), value)));
    let config: qwen3::Config = typed(file)?;

    design.rotary = rotary.map(|share| (share * config.head_dim as f64) as usize);
    design.experts = mixture.map(|mixture| Experts {
        count: mixture.num_experts,
        per_token: mixture.num_experts_per_tok,
        normalised: mixture.norm_topk_prob,
    });
    // Within the context of its frequencies, a sequence is computed as in Transformers.
    let context = design.scaling.context().unwrap_or(usize::MAX).min(config.max_position_embeddings);
    Ok(ModelConfig {
        vocabulary: config.vocab_size,
        hidden: config.hidden_size,
        intermediate: intermediate.unwrap_or(config.intermediate_size),
        layers: config.num_hidden_layers,
        heads: Heads {
            query: config.num_attention_heads,
            kv: config.num_key_value_heads,
            dim: config.head_dim,
        },
        context,
        rope_theta: config.rope_theta,
        norm_epsilon: config.rms_norm_eps as f32,
        tied: config.tie_word_embeddings,
        design,
    })
}

/// Every so many layers of Qwen3.5 have full attention, unless the file says otherwise.
const QWEN3_5_PATTERN: usize = 4;

/// Gives a Qwen3.5 file the form of other families, with the defaults of Transformers. Returns the sizes of its linear
/// attention.
///
/// # Errors
/// Names what the decoder does not have.
fn qwen3_5(file: &mut Map<String, Value>) -> Result<DeltaHeads, String> {
    if let Some(other) = given(file, "attn_output_gate").filter(|gate| **gate != true) {
        return Err(format!("attn_output_gate {other} is not supported, only true"));
    }
    if let Some(other) = given(file, "output_gate_type").filter(|gate| **gate != "swish" && **gate != "silu")
    {
        return Err(format!("output_gate_type {other} is not supported, only swish"));
    }
    // The three positions of a token of text are equal.
    for table in ["rope_parameters", "rope_scaling"] {
        if let Some(Value::Object(table)) = file.get_mut(table) {
            table.retain(|key, _| !["mrope_section", "mrope_interleaved"].contains(&key.as_str()));
        }
    }
    let layers = number_of_layers(file)?;
    let every = size(file, "full_attention_interval")?.unwrap_or(QWEN3_5_PATTERN).max(1);
    let kinds = kinds(layers, |index| (index + 1).is_multiple_of(every), LayerKind::LinearAttention);
    let delta = DeltaHeads {
        key: size(file, "linear_num_key_heads")?.unwrap_or(16),
        value: size(file, "linear_num_value_heads")?.unwrap_or(32),
        key_dim: size(file, "linear_key_head_dim")?.unwrap_or(128),
        value_dim: size(file, "linear_value_head_dim")?.unwrap_or(128),
        window: size(file, "linear_conv_kernel_dim")?.unwrap_or(4),
    };
    let defaults =
        [("head_dim", json!(256)), ("layer_types", json!(kinds)), ("partial_rotary_factor", json!(0.25))];
    fill(file, defaults);
    Ok(delta)
}

/// Gives an LFM2 file the names and the form of other families, with the defaults of Transformers. Returns the rows that its
/// convolutions span.
///
/// # Errors
/// Names what the decoder does not have.
fn lfm2(file: &mut Map<String, Value>) -> Result<usize, String> {
    if flag(file, "conv_bias")? {
        return Err("conv_bias true is not supported".into());
    }
    for (old, key) in [
        ("block_ff_dim", "intermediate_size"),
        ("norm_eps", "rms_norm_eps"),
        ("tie_embedding", "tie_word_embeddings"),
    ] {
        if let Some(value) = file.remove(old).filter(|value| !value.is_null()) {
            file.insert(key.into(), value);
        }
    }
    let wide = size(file, "intermediate_size")?.unwrap_or(12_288);
    let less = wide.saturating_mul(2) / 3;
    let wide = match file.get("block_auto_adjust_ff_dim").is_none() || flag(file, "block_auto_adjust_ff_dim")?
    {
        // As Transformers does: no rounding then.
        true if file.get("block_ffn_dim_multiplier").is_some_and(Value::is_null) => less,
        true => {
            let factor = number(file, "block_ffn_dim_multiplier")?.unwrap_or(1.0);
            let multiple = size(file, "block_multiple_of")?.filter(|multiple| *multiple > 0).unwrap_or(256);
            ((factor * less as f64) as usize).div_ceil(multiple).saturating_mul(multiple)
        }
        false => wide,
    };
    file.insert("intermediate_size".into(), json!(wide));
    let indices = |indices: &Value| {
        serde_json::from_value(indices.clone())
            .map_err(|_| format!("full_attn_idxs should be whole numbers, found {indices}"))
    };
    let full: Option<Vec<usize>> = given(file, "full_attn_idxs").map(indices).transpose()?;
    let is_full = |index| full.as_ref().is_none_or(|full| full.contains(&index));
    let kinds = kinds(number_of_layers(file)?, is_full, LayerKind::Conv);
    let defaults = [
        ("layer_types", json!(kinds)),
        ("max_position_embeddings", json!(128_000)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("tie_word_embeddings", json!(true)),
    ];
    fill(file, defaults);
    Ok(size(file, "conv_L_cache")?.unwrap_or(3))
}

/// # Errors
/// Refuses a number that no model has, before a list of as many is made.
fn number_of_layers(file: &Map<String, Value>) -> Result<usize, String> {
    let layers = size(file, "num_hidden_layers")?.unwrap_or_default();
    if layers > MOST_LAYERS { Err(format!("num_hidden_layers is {layers}")) } else { Ok(layers) }
}

/// The kinds of layers, of which some have full attention.
fn kinds(layers: usize, is_full: impl Fn(usize) -> bool, other: LayerKind) -> Vec<LayerKind> {
    (0..layers).map(|index| if is_full(index) { LayerKind::FullAttention } else { other }).collect()
}

fn layer_types(file: &Map<String, Value>) -> Result<Vec<LayerKind>, String> {
    let kinds: Vec<LayerKind> = serde_json::from_value(file.get("layer_types").cloned().unwrap_or_default())
        .map_err(|error| format!("layer_types is not supported: {error}"))?;
    if kinds.is_empty() { Err("layer_types is empty".into()) } else { Ok(kinds) }
}

/// Gives a Gemma 3 file the names and the form of other families, with the defaults of Transformers.
///
/// # Errors
/// Names what the decoder does not have.
fn gemma(file: &mut Map<String, Value>) -> Result<(), String> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if given(file, key).is_some() {
            return Err(format!("{key} is not supported"));
        }
    }
    if given(file, "use_bidirectional_attention").is_some_and(|value| value != false) {
        return Err("use_bidirectional_attention is not supported: it is not a model that writes text".into());
    }
    // Transformers 5 has a table of the rotary embedding for each kind of layer.
    let table = given(file, "rope_parameters").and_then(Value::as_object).cloned().unwrap_or_default();
    let of_kind = |kind: &str| table.get(kind).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut full, mut local) = (of_kind("full_attention"), of_kind("sliding_attention"));
    if !full.is_empty() || !local.is_empty() {
        // What stands beside the tables is for full attention.
        if let Some(Value::Object(scaling)) = file.remove("rope_scaling") {
            full.extend(scaling);
        }
        file.insert("rope_parameters".into(), full.into());
    }
    let theta = local.remove("rope_theta");
    let is_plain =
        |(key, value): (&String, &Value)| value.is_null() || key == "rope_type" && value == "default";
    if !local.iter().all(is_plain) {
        return Err("a scaled rotary embedding in layers with sliding_attention is not supported".into());
    }
    if let Some(activation) = file.remove("hidden_activation") {
        file.insert("hidden_act".into(), activation);
    }
    let defaults = [
        ("attention_bias", json!(false)),
        ("head_dim", json!(256)),
        ("hidden_act", json!(GEMMA_ACTIVATION)),
        ("hidden_size", json!(2304)),
        ("intermediate_size", json!(9216)),
        ("max_position_embeddings", json!(131_072)),
        ("num_attention_heads", json!(8)),
        ("num_hidden_layers", json!(26)),
        ("num_key_value_heads", json!(4)),
        ("query_pre_attn_scalar", json!(256)),
        ("rope_local_base_freq", theta.unwrap_or(json!(10_000.0))),
        ("rope_theta", json!(1_000_000.0)),
        ("sliding_window", json!(4096)),
        ("tie_word_embeddings", json!(true)),
        ("vocab_size", json!(262_208)),
    ];
    fill(file, defaults);
    Ok(())
}

/// Reads which layers have sliding attention into `design`.
///
/// Mistral, Phi-3 and Qwen's mixtures have it in every layer. Qwen's others have it where `layer_types` says so, or from
/// `max_window_layers` on.
fn windows(family: Family, file: &Map<String, Value>, design: &mut Design) -> Result<(), String> {
    let is_used = flag(file, "use_sliding_window")?;
    let window = match family {
        Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe if !is_used => None,
        Family::Lfm2 | Family::Llama | Family::Qwen3_5 => None,
        Family::Mistral if !file.contains_key("sliding_window") => Some(MISTRAL_WINDOW),
        _ => size(file, "sliding_window")?,
    };
    let Some(window) = window else { return Ok(()) };
    let layers = number_of_layers(file)?;
    let is_listed = matches!(family, Family::Gemma3 | Family::Qwen2 | Family::Qwen3);
    let pattern =
        size(file, "sliding_window_pattern")?.filter(|pattern| *pattern > 0).unwrap_or(GEMMA_PATTERN);
    design.layers = match given(file, "layer_types").filter(|_| is_listed) {
        Some(_) => layer_types(file)?,
        None => {
            let first = if is_listed { size(file, "max_window_layers")?.unwrap_or(WINDOW_LAYERS) } else { 0 };
            let is_full = |index: usize| match family {
                Family::Gemma3 => (index + 1).is_multiple_of(pattern),
                _ => index < first,
            };
            kinds(layers, is_full, LayerKind::SlidingAttention)
        }
    };
    let rope_theta = number(file, "rope_local_base_freq")?;
    design.sliding = Some(Sliding { window, rope_theta });
    Ok(())
}

fn mixture(file: &Map<String, Value>) -> Result<Mixture, String> {
    let mixture: Mixture = typed(file.clone())?;
    if mixture.decoder_sparse_step.is_some_and(|step| step != 1)
        || mixture.mlp_only_layers.as_ref().is_some_and(|layers| !layers.is_empty())
    {
        return Err("layers without experts (decoder_sparse_step, mlp_only_layers) are not supported".into());
    }
    Ok(mixture)
}

/// The table of the rotary embedding. One that stands beside Transformers 5's table replaces it there, its base included.
fn rope_table(file: &Map<String, Value>) -> Result<Option<&Value>, String> {
    let is_table = |value: &&Value| value.as_object().is_none_or(|table| !table.is_empty());
    let of = |key: &str| given(file, key).filter(is_table);
    match (of("rope_parameters"), of("rope_scaling")) {
        (Some(new), Some(scaling)) if new != scaling => {
            let has_base = given(file, "rope_theta").is_some()
                || scaling.get("rope_theta").is_some_and(|theta| !theta.is_null());
            match has_base {
                true => Ok(Some(scaling)),
                false => Err(
                    "rope_scaling stands beside rope_parameters, which it replaces, and has no rope_theta; \
                              put its keys into rope_parameters"
                        .into(),
                ),
            }
        }
        (new, scaling) => Ok(new.or(scaling)),
    }
}

/// Reads the rotary embedding's table into `design`: the base, and the rotated share of a head.
///
/// Transformers 4 writes `rope_theta` and `rope_scaling`, Transformers 5 one table `rope_parameters`.
fn rotary(file: &mut Map<String, Value>, design: &mut Design) -> Result<(f64, Option<f64>), String> {
    let mut table = match rope_table(file)? {
        None => Map::new(),
        Some(Value::Object(table)) => table.clone(),
        Some(other) => return Err(format!("rope_scaling should be a table, found {other}")),
    };
    let mut of = |key: &str| {
        let in_table = number(&table, key)?;
        table.remove(key);
        Ok::<_, String>((in_table, number(file, key)?))
    };
    let (in_table, own) = of("rope_theta")?;
    let theta = in_table.or(own).unwrap_or(ROPE_THETA);
    let (in_table, own) = of("partial_rotary_factor")?;
    let share = in_table.or(own).filter(|share| *share != 1.0);
    let (in_table, own) = of("max_position_embeddings")?;
    let longest = in_table.or(own).unwrap_or_default();
    // The file's own key precedes the table's, as in Transformers.
    let (in_table, own) = of("original_max_position_embeddings")?;
    let original = own.or(in_table).unwrap_or(longest);

    let legacy = table.remove("type");
    let kind = table.remove("rope_type").or(legacy).unwrap_or(json!("default"));
    // The original Phi-3 name.
    let kind = if kind == "su" { json!("longrope") } else { kind };
    if ["llama3", "yarn", "longrope"].iter().any(|stretched| kind == *stretched) {
        table.insert("original_max_position_embeddings".into(), json!(original));
        table.retain(|_, value| !value.is_null());
        if kind != "llama3" {
            table.entry("factor").or_insert(json!(longest / original));
        }
    }
    table.retain(|_, value| !value.is_null());
    // A variant without fields takes any.
    if let Some(key) = table.keys().next().filter(|_| kind == "default") {
        return Err(format!("the rotary embedding is not supported: it has `{key}` without a `rope_type`"));
    }
    table.insert("rope_type".into(), kind);
    design.scaling = serde_json::from_value::<Scaling>(table.into())
        .map_err(|error| format!("the rotary embedding is not supported: {error}"))?;
    Ok((theta, share))
}
