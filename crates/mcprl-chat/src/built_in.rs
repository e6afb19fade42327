//! mcprl's templates, for families whose own template hides or refuses tools.

use super::vocabulary::Vocabulary;

pub(super) struct BuiltInTemplate {
    pub family: &'static str,
    pub template: &'static str,
    /// Token that the family's own templates write around turns, with or without tools.
    pub turn: &'static str,
    /// Tokens that identify the family's tokenizers.
    tokens: &'static [&'static str],
}

const GEMMA: BuiltInTemplate = BuiltInTemplate {
    family: "Gemma 3",
    template: include_str!("own/gemma.jinja"),
    turn: "<start_of_turn>",
    tokens: &["<start_of_turn>", "<end_of_turn>"],
};

/// The template for a model without one, if the tokenizer has tokens of turns that belong to one family only.
pub fn base_template(has: impl Fn(&'static str) -> bool) -> Option<&'static str> {
    GEMMA.tokens.iter().all(|token| has(token)).then_some(GEMMA.template)
}

/// Most specific first: a tokenizer may have the tokens of several families.
pub(super) const ALL: [BuiltInTemplate; 8] = [
    BuiltInTemplate {
        family: "Phi-4-mini",
        template: include_str!("own/phi4_mini.jinja"),
        turn: "<|end|>",
        tokens: &["<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>", "<|tool_response|>", "<|end|>"],
    },
    BuiltInTemplate {
        family: "Phi-3",
        template: include_str!("own/phi3.jinja"),
        turn: "<|end|>",
        tokens: &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
    },
    BuiltInTemplate {
        family: "Phi-4",
        template: include_str!("own/phi4.jinja"),
        turn: "<|im_sep|>",
        tokens: &["<|im_start|>", "<|im_sep|>", "<|im_end|>"],
    },
    BuiltInTemplate {
        family: "Llama 3",
        template: include_str!("own/llama.jinja"),
        turn: "<|start_header_id|>",
        tokens: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    },
    BuiltInTemplate {
        family: "Mistral",
        template: include_str!("own/mistral.jinja"),
        turn: "[INST]",
        tokens: &["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]"],
    },
    GEMMA,
    BuiltInTemplate {
        family: "LFM2",
        template: include_str!("own/lfm2.jinja"),
        turn: "<|im_start|>",
        tokens: &[
            "<|im_start|>",
            "<|im_end|>",
            "<|tool_list_start|>",
            "<|tool_call_start|>",
            "<|tool_response_start|>",
        ],
    },
    BuiltInTemplate {
        family: "ChatML",
        template: include_str!("own/chatml.jinja"),
        turn: "<|im_start|>",
        tokens: &["<|im_start|>", "<|im_end|>"],
    },
];

/// The template of the family whose tokens the tokenizer has and whose turns the model's own template writes. `rendered`
/// is a conversation without tools. The tokens are not enough: a tokenizer may have tokens that the model never saw.
pub(super) fn find(vocabulary: &Vocabulary, rendered: &str) -> Option<&'static BuiltInTemplate> {
    let has = |template: &BuiltInTemplate| template.tokens.iter().all(|token| vocabulary.id(token).is_some());
    ALL.iter().find(|template| rendered.contains(template.turn) && has(template))
}
