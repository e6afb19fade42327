//! The families of models that one decoder covers.

use strum::VariantArray;

/// A family of models, by the `model_type` of its `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray)]
pub enum Family {
    Gemma3,
    Lfm2,
    Llama,
    Mistral,
    Phi3,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3_5,
}

/// By family: its `model_type`, its class in Transformers, and the common name of its models.
const NAMES: [[&str; 3]; 9] = [
    ["gemma3_text", "Gemma3ForCausalLM", "Gemma 3"],
    ["lfm2", "Lfm2ForCausalLM", "LFM2, LFM2.5"],
    ["llama", "LlamaForCausalLM", "Llama 2 and 3"],
    ["mistral", "MistralForCausalLM", "Mistral, Ministral 8B, Mistral Nemo"],
    ["phi3", "Phi3ForCausalLM", "Phi-3, Phi-3.5, Phi-4, Phi-4-mini"],
    ["qwen2", "Qwen2ForCausalLM", "Qwen2, Qwen2.5"],
    ["qwen3", "Qwen3ForCausalLM", "Qwen3"],
    ["qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3 mixtures of experts"],
    ["qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3.5, Qwen3.6"],
];

impl Family {
    pub const ALL: &[Self] = Self::VARIANTS;

    pub fn model_type(self) -> &'static str {
        NAMES[self as usize][0]
    }

    /// Its class in Transformers.
    pub fn class(self) -> &'static str {
        NAMES[self as usize][1]
    }

    /// The common name of the models of this family.
    pub fn known_as(self) -> &'static str {
        NAMES[self as usize][2]
    }
}
