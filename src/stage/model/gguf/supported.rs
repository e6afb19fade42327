//! What the decoder and the tokenizer support, by its names in files.

use candle_core::quantized::GgmlDType;

use crate::model::Family;

/// Supported values of `general.architecture`.
pub const ARCHITECTURES: [(&str, Family); 6] = [
    ("gemma3", Family::Gemma3),
    ("lfm2", Family::Lfm2),
    ("llama", Family::Llama),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("qwen35", Family::Qwen3_5),
];

/// Stored types that can be dequantized: number, name and candle's type.
pub const TENSOR_TYPES: [(u32, &str, GgmlDType); 13] = [
    (0, "F32", GgmlDType::F32),
    (1, "F16", GgmlDType::F16),
    (30, "BF16", GgmlDType::BF16),
    (2, "Q4_0", GgmlDType::Q4_0),
    (3, "Q4_1", GgmlDType::Q4_1),
    (6, "Q5_0", GgmlDType::Q5_0),
    (7, "Q5_1", GgmlDType::Q5_1),
    (8, "Q8_0", GgmlDType::Q8_0),
    (10, "Q2_K", GgmlDType::Q2K),
    (11, "Q3_K", GgmlDType::Q3K),
    (12, "Q4_K", GgmlDType::Q4K),
    (13, "Q5_K", GgmlDType::Q5K),
    (14, "Q6_K", GgmlDType::Q6K),
];

/// Supported pre-tokenizers of byte-level BPE, by their names in files.
pub const PRE_TOKENIZERS: [(&str, Pre); 8] = [
    ("qwen2", Pre::Qwen2),
    ("qwen35", Pre::Qwen3_5),
    ("llama-bpe", Pre::Llama3),
    ("llama3", Pre::Llama3),
    ("llama-v3", Pre::Llama3),
    ("lfm2", Pre::Llama3),
    ("smollm", Pre::SmolLm),
    ("gpt-2", Pre::Gpt2),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pre {
    Qwen2,
    /// Keeps marks such as accents with their letters.
    Qwen3_5,
    Llama3,
    /// Splits digits before anything else.
    SmolLm,
    Gpt2,
}

impl Pre {
    /// The pattern of the pieces. None if it is that of GPT-2.
    pub fn pattern(self) -> Option<String> {
        let (letter, digits) = match self {
            Self::Qwen2 => (r"\p{L}", r"\p{N}"),
            Self::Qwen3_5 => (r"\p{L}\p{M}", r"\p{N}"),
            Self::Llama3 => (r"\p{L}", r"\p{N}{1,3}"),
            Self::SmolLm | Self::Gpt2 => return None,
        };
        let letters = if letter == r"\p{L}" { letter.to_owned() } else { format!("[{letter}]") };
        Some(format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s{letter}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))
    }
}
