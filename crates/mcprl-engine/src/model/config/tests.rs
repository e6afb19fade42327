use mcprl_base::error::Diagnostic;
use serde_json::{Value, json};

use super::*;
use crate::model::{ModelError, kernels::DeltaHeads};

impl ModelConfig {
    /// The shape of a small model.
    pub fn small() -> Self {
        Self {
            vocabulary: 90,
            hidden: 48,
            intermediate: 80,
            layers: 2,
            heads: Heads { query: 4, kv: 2, dim: 16 },
            context: 128,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-6,
            tied: true,
            design: Design::default(),
        }
    }
}

fn load(file: &Value) -> Result<ModelConfig, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), file.to_string()).unwrap();
    ModelConfig::load(folder.path())
}

/// A small file of this family with these keys set. Null removes a key.
fn file(family: &str, keys: &Value) -> Value {
    let mut file = json!({
        "model_type": family,
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    });
    if family == "gemma3_text" {
        file["hidden_act"] = Value::Null;
    }
    for (key, value) in keys.as_object().unwrap() {
        file[key] = value.clone();
    }
    file
}

fn names(config: &ModelConfig) -> Vec<String> {
    config
        .linears(LayerKind::FullAttention)
        .iter()
        .map(|l| format!("{}{}", l.name, if l.bias { "+bias" } else { "" }))
        .collect()
}

#[test]
fn each_family_has_the_linear_layers_of_its_files() {
    let plain = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let feed = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    for family in ["llama", "mistral", "qwen3"] {
        assert_eq!(names(&load(&file(family, &json!({}))).unwrap()), [&plain[..], &feed].concat());
    }
    let biased = load(&file("qwen2", &json!({}))).unwrap();
    let with =
        ["self_attn.q_proj+bias", "self_attn.k_proj+bias", "self_attn.v_proj+bias", "self_attn.o_proj"];
    assert_eq!(names(&biased), [&with[..], &feed].concat());
    let fused = load(&file("phi3", &json!({}))).unwrap();
    let linears = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"];
    assert_eq!(names(&fused), linears);
    assert_eq!(
        (
            fused.linears(LayerKind::FullAttention)[0].outputs,
            fused.linears(LayerKind::FullAttention)[2].outputs
        ),
        (32 + 2 * 16, 96)
    );
    let mixture = json!({"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16});
    let mixture = load(&file("qwen3_moe", &mixture)).unwrap();
    assert_eq!(names(&mixture)[4..6], ["mlp.gate", "mlp.experts.0.gate_proj"]);
    assert_eq!((mixture.linears(LayerKind::FullAttention).len(), mixture.intermediate), (4 + 1 + 2 * 3, 16));
}

#[test]
fn both_spellings_of_the_rotary_embedding_are_equal() {
    let llama3 = json!({
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    });
    let four = load(&file("llama", &json!({"rope_theta": 5e5, "rope_scaling": llama3}))).unwrap();
    let mut table = llama3.clone();
    table["rope_theta"] = json!(5e5);
    let five = load(&file("llama", &json!({"rope_theta": null, "rope_parameters": table}))).unwrap();
    assert_eq!(four, five);
    assert!(matches!(four.design.scaling, Scaling::Llama3 { factor: 8.0, .. }));

    let factors =
        json!({"type": "longrope", "short_factor": [1.0, 1.1, 1.2], "long_factor": [4.0, 5.0, 6.0]});
    let keys = json!({
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 128,
        "partial_rotary_factor": 0.75,
        "rope_scaling": factors,
    });
    let four = load(&file("phi3", &keys)).unwrap();
    assert_eq!((four.rotary(), four.context), (6, 128), "the short factors hold up to the original context");
    let mut twice = keys.clone();
    twice["rope_scaling"]["short_factor"] = factors["long_factor"].clone();
    let twice = load(&file("phi3", &twice)).unwrap();
    assert_eq!(twice.context, 4096, "the long factors hold for every length");
    let written = twice.to_json();
    assert_eq!(written["original_max_position_embeddings"], 128);
    assert_eq!(load(&written).unwrap(), twice);
    let mut table = factors.clone();
    table["rope_type"] = table["type"].take();
    table["partial_rotary_factor"] = json!(0.75);
    let keys = json!({
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 128,
        "rope_parameters": table,
    });
    assert_eq!(four, load(&file("phi3", &keys)).unwrap());
}

#[test]
fn layers_have_the_windows_that_transformers_gives_them() {
    let windows = |family, keys| {
        let config = load(&file(family, &keys)).unwrap();
        assert!(config.context >= 128, "a window does not bound the context");
        [0, 1].map(|layer| config.attention(layer).window)
    };
    let both = Some(48);
    assert_eq!(windows("mistral", json!({"sliding_window": 48})), [both; 2]);
    assert_eq!(windows("phi3", json!({"sliding_window": 48})), [both; 2]);
    assert_eq!(windows("mistral", json!({"sliding_window": null})), [None; 2]);
    assert_eq!(windows("mistral", json!({"sliding_window": 128})), [None; 2], "no sequence exceeds it");
    let long = json!({"max_position_embeddings": 32768});
    assert_eq!(windows("mistral", long), [Some(4096); 2], "the default");
    let mut qwen = json!({"sliding_window": 48, "use_sliding_window": false});
    assert_eq!(windows("qwen2", qwen.clone()), [None; 2]);
    qwen["use_sliding_window"] = json!(true);
    assert_eq!(windows("qwen2", qwen.clone()), [None; 2], "the first 28 layers have none");
    qwen["max_window_layers"] = json!(1);
    assert_eq!(windows("qwen2", qwen.clone()), [None, both]);
    qwen["layer_types"] = json!(["sliding_attention", "full_attention"]);
    assert_eq!(windows("qwen3", qwen), [both, None]);
    assert_eq!(windows("llama", json!({"sliding_window": 48})), [None; 2]);
}

#[test]
fn gemma_files_of_both_releases_and_of_models_with_vision_are_equal() {
    let four = json!({
        "rope_theta": 1e6, "rope_local_base_freq": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 32, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24, "num_hidden_layers": 3,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": null, "head_dim": 16,
    });
    let four = load(&file("gemma3_text", &four)).unwrap();
    assert_eq!([0, 1, 2].map(|layer| four.attention(layer).window), [Some(32), None, Some(32)]);
    assert!((four.attention(0).scale - 1.0 / 24.0_f32.sqrt()).abs() < 1e-7);
    assert_eq!(four.design.scaling, Scaling::Linear { factor: 8.0 });
    assert_eq!(four.design.sliding, Some(Sliding { window: 32, rope_theta: Some(5e3) }));
    assert!(four.tied && (four.norm_epsilon - 1e-6).abs() < 1e-9);
    let five = json!({
        "rope_theta": null, "sliding_window": 32, "query_pre_attn_scalar": 24, "num_hidden_layers": 3,
        "rms_norm_eps": null, "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
    });
    let five = file("gemma3_text", &five);
    assert_eq!(load(&five).unwrap(), four);

    let vision = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {},
        "text_config": five.clone(),
    });
    let mut part = load(&vision).unwrap();
    assert!(std::mem::take(&mut part.design.is_part));
    assert_eq!(part, four);
    let mut untied = vision.clone();
    untied["tie_word_embeddings"] = json!(false);
    assert!(!load(&untied).unwrap().tied);

    // Python writes whole numbers like this where it computes them.
    let mut computed = five.clone();
    (computed["sliding_window"], computed["query_pre_attn_scalar"]) = (json!(32.0), json!(24.0));
    assert_eq!(load(&computed).unwrap(), four);

    // What the hub's file of the 4B model leaves to the defaults.
    let sparse = json!({"model_type": "gemma3", "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }});
    let sparse = load(&sparse).unwrap();
    assert_eq!((sparse.heads, sparse.context), (Heads { query: 8, kv: 4, dim: 256 }, 131_072));
    assert_eq!((sparse.vocabulary, sparse.rope_theta), (262_208, 1e6));
    assert_eq!([4, 5].map(|layer| sparse.attention(layer).window), [Some(1024), None]);
}

#[test]
fn qwen3_5_has_the_layers_and_sizes_of_its_file_or_the_defaults() {
    let heads = DeltaHeads { key: 16, value: 32, key_dim: 128, value_dim: 128, window: 4 };
    let plain = load(&file("qwen3_5_text", &json!({"num_hidden_layers": 8}))).unwrap();
    let kind = |linear| if linear { LayerKind::LinearAttention } else { LayerKind::FullAttention };
    let kinds: Vec<LayerKind> = (0..8).map(|layer| kind(layer % 4 < 3)).collect();
    assert_eq!((&plain.design.layers, plain.design.delta), (&kinds, Some(heads)));
    assert_eq!((plain.heads.dim, plain.rotary()), (256, 64));
    assert_eq!(plain.kinds(), [(LayerKind::FullAttention, 2), (LayerKind::LinearAttention, 6)]);
    assert_eq!([2, 3].map(|layer| plain.recurrence(plain.layer(layer)).is_some()), [true, false]);

    // As the hub's file of the 0.8B model says it.
    let part = json!({
        "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248_320,
        "attn_output_gate": true, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "full_attention_interval": 4, "max_position_embeddings": 262_144, "tie_word_embeddings": true,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
            "mrope_interleaved": true, "mrope_section": [11, 11, 10],
        },
    });
    let whole = load(&json!({"model_type": "qwen3_5", "text_config": part})).unwrap();
    assert!(whole.design.is_part && whole.tied);
    assert_eq!((whole.design.delta.unwrap().value, whole.rope_theta, whole.rotary()), (16, 1e7, 64));
    let full = whole.linears(LayerKind::FullAttention);
    let linear = whole.linears(LayerKind::LinearAttention);
    assert_eq!((full[0].outputs, full[3].inputs), (8 * 512, 8 * 256));
    let outputs: Vec<usize> = linear.iter().map(|linear| linear.outputs).collect();
    assert_eq!(outputs, [6144, 2048, 16, 16, 1024, 3584, 3584, 1024]);
    // Millions of parameters, without vision and the layers of `mtp`.
    assert_eq!(whole.weights() / 1_000_000, 752);
}

#[test]
fn lfm2_has_the_layers_and_sizes_of_its_file_or_the_defaults() {
    // As the hub's file of the 1.2B model says it.
    let file = json!({
        "model_type": "lfm2", "hidden_size": 2048, "vocab_size": 65_536, "num_hidden_layers": 16, "rope_theta": 1e6,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128_000, "norm_eps": 1e-5,
        "block_auto_adjust_ff_dim": true, "block_ff_dim": 12_288, "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256, "conv_L_cache": 3, "conv_bias": false, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    });
    let config = load(&file).unwrap();
    assert_eq!(config.kinds(), [(LayerKind::FullAttention, 6), (LayerKind::Conv, 10)]);
    assert_eq!([1, 2].map(|layer| config.layer(layer)), [LayerKind::Conv, LayerKind::FullAttention]);
    let shape = ConvolutionShape { channels: 2048, window: 3 };
    assert_eq!(config.recurrence(LayerKind::Conv), Some(Recurrence::Convolution(shape)));
    assert_eq!((config.heads.dim, config.intermediate, config.tied), (64, 8192, true));
    assert!((config.norm_epsilon - 1e-5).abs() < 1e-9);
    // Millions of parameters.
    assert_eq!(config.weights() / 1_000_000, 1170);
    let listed = json!({"rope_theta": null, "layer_types": ["conv", "full_attention"], "norm_eps": null});
    let listed = load(&self::file("lfm2", &listed)).unwrap();
    assert_eq!(
        (&listed.design.layers[..], listed.rope_theta),
        (&[LayerKind::Conv, LayerKind::FullAttention][..], 1e6)
    );
}

#[test]
fn a_written_configuration_is_read_back_equal() {
    for family in Family::ALL.iter().copied() {
        let mixture = json!({"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16});
        let config = load(&file(family.model_type(), &mixture)).unwrap();
        assert_eq!(load(&config.to_json()).unwrap(), config);
    }
}

#[test]
fn unsupported_features_are_refused_by_name() {
    let mixture = |key: &str, value: Value| {
        let mut keys = json!({"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16});
        keys[key] = value;
        file("qwen3_moe", &keys)
    };
    let llama = |keys: Value| file("llama", &keys);
    let gemma = |keys: Value| file("gemma3_text", &keys);
    let qwen3_5 = |keys: Value| file("qwen3_5_text", &keys);
    let lfm2 = |keys: Value| file("lfm2", &keys);
    let refused = [
        (file("gemma2", &json!({})), "model::architecture", "`gemma2`"),
        (json!({"architectures": ["GPT2LMHeadModel"]}), "model::architecture", "GPT2LMHeadModel"),
        (
            llama(json!({"architectures": ["LlamaForSequenceClassification"]})),
            "model::config",
            "LlamaForSequence",
        ),
        (
            llama(json!({"hidden_act": "gelu_pytorch_tanh"})),
            "model::config",
            "activation \"gelu_pytorch_tanh\"",
        ),
        (llama(json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}})), "model::config", "`dynamic`"),
        (llama(json!({"rope_scaling": {"type": "linear", "factor": 0.0}})), "model::config", "factor"),
        (
            llama(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})),
            "model::config",
            "low_freq_factor",
        ),
        (
            llama(json!({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1}})),
            "model::config",
            "`mscale`",
        ),
        (llama(json!({"quantization_config": {"quant_method": "gptq"}})), "model::quantised", "`gptq`"),
        (llama(json!({"quantization_config": {"quant_method": "fp8"}})), "model::quantised", "`fp8`"),
        (llama(json!({"num_key_value_heads": 0})), "model::config", "num_key_value_heads is 0"),
        (llama(json!({"num_key_value_heads": 3})), "model::config", "multiple of kv heads"),
        (llama(json!({"vocab_size": "many"})), "model::config", "vocab_size"),
        (llama(json!({"vocab_size": null})), "model::config", "vocab_size"),
        (mixture("decoder_sparse_step", json!(2)), "model::config", "layers without experts"),
        (mixture("num_experts_per_tok", json!(3)), "model::config", "larger than num_experts"),
        (gemma(json!({"final_logit_softcapping": 30.0})), "model::config", "final_logit_softcapping"),
        (gemma(json!({"attn_logit_softcapping": 50.0})), "model::config", "attn_logit_softcapping"),
        (gemma(json!({"use_bidirectional_attention": true})), "model::config", "use_bidirectional_attention"),
        (gemma(json!({"hidden_activation": "silu"})), "model::config", "only gelu_pytorch_tanh"),
        (gemma(json!({"layer_types": ["mamba", "full_attention"]})), "model::config", "`mamba`"),
        (gemma(json!({"layer_types": ["conv", "full_attention"]})), "model::config", "layer_types has conv"),
        (lfm2(json!({"conv_bias": true})), "model::config", "conv_bias true"),
        (lfm2(json!({"conv_L_cache": 1})), "model::config", "conv_L_cache is 1"),
        (lfm2(json!({"full_attn_idxs": "all"})), "model::config", "full_attn_idxs should be whole numbers"),
        (gemma(json!({"layer_types": ["full_attention"]})), "model::config", "1 entries for 2 layers"),
        (qwen3_5(json!({"attn_output_gate": false})), "model::config", "attn_output_gate false"),
        (qwen3_5(json!({"output_gate_type": "sigmoid"})), "model::config", "output_gate_type \"sigmoid\""),
        (qwen3_5(json!({"linear_num_value_heads": 20})), "model::config", "linear_num_value_heads must be"),
        (qwen3_5(json!({"linear_conv_kernel_dim": 0})), "model::config", "linear_conv_kernel_dim is 0"),
        (
            gemma(json!({"layer_types": ["linear_attention", "full_attention"]})),
            "model::config",
            "linear_attention",
        ),
        (gemma(json!({"sliding_window": 0})), "model::config", "sliding_window is 0"),
        (gemma(json!({"query_pre_attn_scalar": 0})), "model::config", "query_pre_attn_scalar is 0"),
        (
            gemma(json!({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}})),
            "model::config",
            "layers with sliding_attention",
        ),
        (mixture("num_experts", json!(4_000_000_000_u64)), "model::config", "num_experts is 4000000000"),
        (qwen3_5(json!({"linear_key_head_dim": 1 << 20})), "model::config", "linear_key_head_dim is 1048576"),
        (
            gemma(json!({"sliding_window": -1})),
            "model::config",
            "sliding_window should be a whole number, found -1",
        ),
        (gemma(json!({"query_pre_attn_scalar": 0.5})), "model::config", "query_pre_attn_scalar should be"),
        (
            gemma(json!({"rope_local_base_freq": "slow"})),
            "model::config",
            "rope_local_base_freq should be a number",
        ),
        (llama(json!({"attention_bias": "no"})), "model::config", "attention_bias should be true or false"),
    ];
    for (file, code, expected) in refused {
        let error = load(&file).unwrap_err();
        assert_eq!(error.code(), code, "{file}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let hint = load(&file("gemma2", &json!({}))).unwrap_err().hint().unwrap();
    for family in Family::ALL.iter().copied() {
        assert!(hint.contains(family.model_type()), "{hint}");
    }
}

#[test]
fn a_table_of_the_rotary_embedding_beside_another_is_used_or_refused() {
    let new = json!({"rope_type": "default", "rope_theta": 1e6});
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let with = |keys: Value| load(&file("qwen3", &keys));
    let both = with(json!({"rope_theta": null, "rope_parameters": new, "rope_scaling": yarn})).unwrap_err();
    assert!(both.to_string().contains("has no rope_theta"), "{both}");
    let both = with(json!({"rope_theta": 5e5, "rope_parameters": new, "rope_scaling": yarn})).unwrap();
    assert_eq!(both, with(json!({"rope_theta": 5e5, "rope_scaling": yarn})).unwrap());
    assert!((both.rope_theta - 5e5).abs() < 1e-6 && matches!(both.design.scaling, Scaling::Yarn { .. }));
    let same = with(json!({"rope_theta": null, "rope_parameters": new, "rope_scaling": new})).unwrap();
    assert!((same.rope_theta - 1e6).abs() < 1e-6);
    for table in [json!({"rope_type": "default", "factor": 9}), json!({"foo": 1})] {
        let refused = with(json!({"rope_scaling": table})).unwrap_err().to_string();
        assert!(refused.contains("without a `rope_type`"), "{refused}");
    }
    let gemma = |scaling: Value| {
        let tables = json!({
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        });
        load(&file(
            "gemma3_text",
            &json!({"rope_theta": null, "rope_parameters": tables, "rope_scaling": scaling}),
        ))
    };
    let scaled = gemma(json!({"rope_type": "linear", "factor": 8.0})).unwrap();
    assert_eq!(
        (scaled.design.scaling, scaled.rope_theta as u32),
        (Scaling::Linear { factor: 8.0 }, 1_000_000)
    );
}

/// Keys of the files in the tests that change no logits: the size of what they name is that of the tensors, they are for training,
/// or other programs read them.
const INERT: [&str; 24] = [
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "cache_implementation",
    "classifier_dropout",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "initializer_range",
    "mamba_ssm_dtype",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "router_aux_loss_coef",
    "theta",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_pos_enc",
    "architectures",
    "model_type",
];

/// Keys that change logits elsewhere: beside a scaled rotary embedding, a window or a list that says the same, without experts, or in
/// a model with vision.
const WITHOUT_EFFECT: [&str; 19] = [
    "gemma3: _sliding_window_pattern",
    "moe: intermediate_size",
    "moe: mlp_only_layers",
    "moe: use_sliding_window",
    "phi3-window: original_max_position_embeddings",
    "phi3: original_max_position_embeddings",
    "phi4-mini: rope_parameters.original_max_position_embeddings",
    "qwen2-window: max_window_layers",
    "qwen2: layer_types",
    "qwen2: max_window_layers",
    "qwen2: use_sliding_window",
    "qwen3-tiny: layer_types",
    "qwen3-tiny: max_window_layers",
    "qwen3-tiny: use_sliding_window",
    "qwen3_5: rope_parameters.mrope_interleaved",
    "qwen3_5: rope_parameters.mrope_section",
    "yarn: layer_types",
    "yarn: max_window_layers",
    "yarn: use_sliding_window",
];

/// This file with each value of its own or of a table changed, with the names of the keys.
fn changed(file: &Value) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (key, value) in file.as_object().unwrap() {
        let mut set = |value: Value| {
            let mut other = file.clone();
            other[key] = value;
            all.push((key.clone(), other));
        };
        match value {
            Value::Null => {}
            Value::Bool(flag) => set(json!(!flag)),
            Value::Number(number) if number.is_f64() => set(json!(number.as_f64().unwrap() * 1.5)),
            Value::Number(number) => set(json!(number.as_i64().unwrap() * 2 + 1)),
            Value::String(text) => set(json!(format!("{text}x"))),
            Value::Array(items) => set(Value::Array(items.iter().skip(1).cloned().collect())),
            Value::Object(_) => {
                for (inner, table) in changed(value) {
                    let mut other = file.clone();
                    other[key] = table;
                    all.push((format!("{key}.{inner}"), other));
                }
            }
        }
    }
    all
}

#[test]
fn each_key_of_each_family_changes_the_decoder_or_is_refused_when_it_changes() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/fixtures");
    let families = std::fs::read_dir(fixtures.join("families")).unwrap().flatten().map(|entry| entry.path());
    let folders: Vec<_> = families.chain([fixtures.join("qwen3-tiny")]).collect();
    assert!(folders.len() > 10);
    let mut ignored = Vec::new();
    for folder in folders {
        let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        let config = load(&file).unwrap();
        for (key, other) in changed(&file) {
            let is_inert = INERT.contains(&key.rsplit('.').next().unwrap());
            if !is_inert && load(&other).is_ok_and(|other| other == config) {
                ignored.push(format!("{}: {key}", folder.file_name().unwrap().to_string_lossy()));
            }
        }
    }
    ignored.sort();
    assert_eq!(ignored, WITHOUT_EFFECT, "changed without effect");
}
