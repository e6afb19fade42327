//! What `config.json` says.

use std::path::Path;

use candle_transformers::models::qwen3;
use serde_json::{Value, json};

use super::{ModelError, kernels::Heads};

/// Sizes and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub vocabulary: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: Heads,
    /// Longest sequence, in tokens.
    pub context: usize,
    pub rope_theta: f64,
    pub norm_epsilon: f32,
    /// The output projection is the embedding.
    pub tied: bool,
}

impl ModelConfig {
    /// Reads `config.json` of a Hugging Face folder.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let wrong = |reason: String| ModelError::Config { path: path.clone(), reason };
        let mut value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let found = value["model_type"].as_str().unwrap_or("(none)").to_owned();
        if found != "qwen3" {
            return Err(ModelError::Architecture { path, found });
        }
        // Transformers 5 moved the base of the rotary embedding into a table of its own.
        if value.get("rope_theta").is_none() {
            let rope = &value["rope_parameters"];
            if !matches!(rope["rope_type"].as_str(), None | Some("default")) {
                return Err(wrong(format!("rope type {} is not supported", rope["rope_type"])));
            }
            value["rope_theta"] = rope["rope_theta"].clone();
        }
        for (key, default) in [("max_window_layers", json!(0)), ("use_sliding_window", json!(false))] {
            if value.get(key).is_none_or(Value::is_null) {
                value[key] = default;
            }
        }
        if value["hidden_act"] != "silu" {
            return Err(wrong(format!("activation {} is not supported, only silu", value["hidden_act"])));
        }
        let config: qwen3::Config =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        if config.attention_bias || config.use_sliding_window {
            return Err(wrong("attention_bias and use_sliding_window are not supported".into()));
        }
        let this = Self {
            vocabulary: config.vocab_size,
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            layers: config.num_hidden_layers,
            heads: Heads {
                query: config.num_attention_heads,
                kv: config.num_key_value_heads,
                dim: config.head_dim,
            },
            context: config.max_position_embeddings,
            rope_theta: config.rope_theta,
            norm_epsilon: config.rms_norm_eps as f32,
            tied: config.tie_word_embeddings,
        };
        this.check().map_err(wrong)?;
        Ok(this)
    }

    /// What would make the decoder's arithmetic meaningless.
    fn check(&self) -> Result<(), String> {
        let sizes = [
            ("vocab_size", self.vocabulary),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads.query),
            ("num_key_value_heads", self.heads.kv),
            ("head_dim", self.heads.dim),
            ("max_position_embeddings", self.context),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(format!("{name} is 0"));
        }
        if !self.heads.query.is_multiple_of(self.heads.kv) || !self.heads.dim.is_multiple_of(2) {
            return Err("query heads must be a multiple of kv heads, and head_dim even".into());
        }
        Ok(())
    }

    /// `config.json` as Transformers reads it.
    pub fn to_json(&self) -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads.query,
            "num_key_value_heads": self.heads.kv,
            "head_dim": self.heads.dim,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": f64::from(self.norm_epsilon),
            "tie_word_embeddings": self.tied,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "sliding_window": null,
            "max_window_layers": self.layers,
            "use_sliding_window": false,
            "use_cache": true,
            "torch_dtype": "float32",
        })
    }
}
