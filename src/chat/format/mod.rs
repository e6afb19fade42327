//! The tool-call formats of model families, one file per format.
//!
//! Parsers accept any text. A call that cannot be parsed gives an error text for the model.

mod hermes;
mod json;
mod llama;
mod mistral;
mod phi;
mod python_call;
mod reasoning;
mod schemas;
mod xml;

#[cfg(test)]
mod tests;

pub(super) use schemas::Schemas;

use super::{
    ToolCall, Turn,
    ids::{call_id, generated_id},
};

#[cfg(test)]
pub(super) use tests::tool_call;

/// A tool-call format: how calls are written by the model, and read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// JSON between `<tool_call>` tags: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// Tags for function and parameters: Qwen3-Coder, Qwen3.5.
    Xml,
    /// JSON after control tokens in brackets.
    Mistral(mistral::Version),
    /// JSON between control tokens, or after `functools`.
    Phi(phi::Style),
    /// JSON as a whole turn: Llama 3.
    Llama,
    /// A Python list of calls as a whole turn: Llama 3.2, Llama 4.
    Pythonic,
}

impl Format {
    pub const ALL: [Self; 11] = [
        Self::Hermes,
        Self::Xml,
        Self::Mistral(mistral::Version::V3),
        Self::Mistral(mistral::Version::V7),
        Self::Mistral(mistral::Version::V11),
        Self::Mistral(mistral::Version::V13),
        Self::Phi(phi::Style::List),
        Self::Phi(phi::Style::Each),
        Self::Phi(phi::Style::Functools),
        Self::Llama,
        Self::Pythonic,
    ];

    /// The format in which a template wrote this call, with this id, as a whole turn. If several formats can parse it, the
    /// one whose own text matches best.
    pub fn detect(text: &str, call: &ToolCall, id: &str, tools: &Schemas) -> Option<Self> {
        let reads = |format: &Self| format.parse(text, tools).calls == [Ok(call.clone())];
        let alike = |format: &Self| {
            let written = format.assistant("", std::slice::from_ref(call)).replace(&call_id(0, call), id);
            let same = written.chars().zip(text.trim_start().chars()).take_while(|(a, b)| a == b);
            (text.contains(&written), same.count())
        };
        let mut best: Option<Self> = None;
        for format in Self::ALL.into_iter().filter(reads) {
            if best.is_none_or(|best| alike(&format) > alike(&best)) {
                best = Some(format);
            }
        }
        best
    }

    /// A turn as the model writes it, without the end-of-turn token. If a format does not allow text with calls, only the
    /// calls.
    pub fn assistant(self, text: &str, calls: &[ToolCall]) -> String {
        match self {
            Self::Hermes => hermes::assistant(text, calls),
            Self::Xml => xml::assistant(text, calls),
            Self::Mistral(version) => mistral::assistant(version, text, calls),
            Self::Phi(style) => phi::assistant(style, text, calls),
            Self::Llama => llama::assistant(text, calls),
            Self::Pythonic => python_call::assistant(text, calls),
        }
    }

    /// Parses a turn. Any text gives a turn.
    pub fn parse(self, text: &str, tools: &Schemas) -> Turn {
        let mut turn = match self {
            Self::Hermes => hermes::parse(text),
            Self::Xml => xml::parse(text, tools),
            Self::Mistral(_) => mistral::parse(text),
            Self::Phi(_) => phi::parse(text),
            Self::Llama => llama::parse(text),
            Self::Pythonic => python_call::parse(text),
        };
        let missing = turn.calls.iter().enumerate().skip(turn.ids.len());
        let missing: Vec<String> = missing.map(|(index, call)| generated_id(index, call)).collect();
        turn.ids.extend(missing);
        turn
    }

    /// The part of a turn after its reasoning, or all of it if there is none.
    pub fn after_reasoning(self, text: &str) -> &str {
        let (_, rest) = match self {
            Self::Hermes => hermes::split(text),
            Self::Xml => xml::split(text),
            Self::Mistral(_) => mistral::split(text),
            Self::Phi(_) => phi::split(text),
            Self::Llama => llama::split(text),
            Self::Pythonic => python_call::split(text),
        };
        rest
    }

    /// Further end-of-turn tokens of this format, used if the tokenizer has them.
    pub fn ends(self) -> &'static [&'static str] {
        match self {
            Self::Llama | Self::Pythonic => &["<|eot_id|>", "<|eom_id|>"],
            Self::Phi(_) => &["<|end|>", "<|endoftext|>"],
            Self::Hermes | Self::Xml | Self::Mistral(_) => &[],
        }
    }
}
