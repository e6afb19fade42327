//! The tool-call formats of model families, one file per format.
//!
//! Parsers accept any text. A call that cannot be parsed gives an error text for the model.

mod hermes;
mod json;
mod lenient;
mod liquid;
mod llama;
mod mistral;
mod phi;
mod python_call;
mod reasoning;
mod schemas;
mod xml;

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use lenient::may_precede;
pub(super) use reasoning::{BRACKETS, THINK, Tags};
pub(super) use schemas::Schemas;
pub use schemas::type_of;

use super::{
    CallForm, ToolCall, Turn,
    ids::{call_id, generated_id},
};

#[cfg(test)]
pub(super) use tests::tool_call;

/// A turn without its reasoning, as a format parses it. Calls without an id get one later.
#[derive(Default)]
struct Parsed {
    text: String,
    calls: Vec<Result<ToolCall, String>>,
    ids: Vec<String>,
}

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
    /// The same between control tokens: LFM2.
    Liquid,
}

impl Format {
    pub const ALL: [Self; 12] = [
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
        Self::Liquid,
    ];

    /// The value of vLLM's `--tool-call-parser` that reads it.
    pub fn vllm_parser(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Xml => "qwen3_coder",
            Self::Mistral(_) => "mistral",
            Self::Phi(_) => "phi4_mini_json",
            Self::Llama => "llama3_json",
            Self::Pythonic => "pythonic",
            Self::Liquid => "lfm2",
        }
    }

    /// The format in which a template wrote this call, with this id, as a whole turn. If several formats can parse it, the
    /// one whose own text matches best.
    pub fn detect(text: &str, call: &ToolCall, id: &str, tools: &Schemas) -> Option<Self> {
        let parses = |format: &Self| format.parse(text, tools).calls == [Ok(call.clone())];
        let similarity = |format: &Self| {
            let written = format.assistant("", std::slice::from_ref(call)).replace(&call_id(0, call), id);
            let same = written.chars().zip(text.trim_start().chars()).take_while(|(a, b)| a == b);
            (text.contains(&written), same.count())
        };
        // Of equals, `max_by_key` takes the last: here the first of `ALL`.
        Self::ALL.into_iter().rev().filter(parses).max_by_key(similarity)
    }

    /// A turn as the model writes it, without the end-of-turn token. If a format does not allow text with calls, only the
    /// calls.
    pub fn assistant(self, text: &str, calls: &[ToolCall]) -> String {
        if calls.is_empty() {
            return text.to_owned();
        }
        match self {
            Self::Hermes => hermes::assistant(text, calls),
            Self::Xml => xml::assistant(text, calls),
            Self::Mistral(version) => mistral::assistant(version, text, calls),
            Self::Phi(style) => phi::assistant(style, text, calls),
            Self::Llama => llama::assistant(calls),
            Self::Pythonic => python_call::assistant(calls),
            Self::Liquid => liquid::assistant(text, calls),
        }
    }

    /// Parses a turn whose prompt opens no reasoning. Any text gives a turn.
    pub fn parse(self, text: &str, tools: &Schemas) -> Turn {
        self.parse_opened(text, tools, None)
    }

    /// Parses a turn. These tags stand around its reasoning if the prompt has opened it.
    pub fn parse_opened(self, text: &str, tools: &Schemas, opened: Option<Tags>) -> Turn {
        let (reasoning, rest) = self.split(text, opened);
        let Parsed { text, calls, mut ids } = match self {
            Self::Hermes => hermes::parse(rest, tools),
            Self::Xml => xml::parse(rest, tools),
            Self::Mistral(_) => mistral::parse(rest, tools),
            Self::Phi(_) => phi::parse(rest, tools),
            Self::Llama => llama::parse(rest, tools),
            Self::Pythonic => python_call::parse(rest),
            Self::Liquid => liquid::parse(rest),
        };
        for (index, call) in calls.iter().enumerate().skip(ids.len()) {
            ids.push(generated_id(index, call));
        }
        let forms = vec![CallForm::Template; calls.len()];
        Turn { text: text.trim().to_owned(), reasoning, calls, ids, forms }
    }

    /// Reads a turn in all forms if `strict`, the result of [`parse_opened`](Self::parse_opened), has no calls or malformed ones.
    /// `text` is the turn's text as it was written.
    pub fn parse_leniently(self, strict: Turn, text: &str, tools: &Schemas, opened: Option<Tags>) -> Turn {
        // More readable calls are better, and then fewer malformed ones.
        let rank = |turn: &Turn| {
            let readable = turn.calls.iter().filter(|call| call.is_ok()).count();
            (readable, readable > 0 && readable == turn.calls.len())
        };
        if rank(&strict).1 {
            return strict;
        }
        // With tags written in ordinary tokens.
        let plain = self.parse_opened(text, tools, opened);
        if rank(&plain).1 {
            return plain;
        }
        let (reasoning, rest) = self.split(text, opened);
        let lenient::ReadTurn { text, calls } = lenient::read(rest, tools);
        let (calls, forms): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let ids = calls.iter().enumerate().map(|(index, call)| generated_id(index, call)).collect();
        let lenient = Turn { text: text.trim().to_owned(), reasoning, calls, ids, forms };
        let is_better =
            rank(&lenient) > rank(&strict) || strict.calls.is_empty() && !lenient.calls.is_empty();
        if is_better { lenient } else { strict }
    }

    /// Splits a turn into its reasoning and the rest.
    fn split(self, text: &str, opened: Option<Tags>) -> (Option<String>, &str) {
        if let Some(tags) = opened {
            return reasoning::split_opened(text, tags);
        }
        let call = match self {
            Self::Hermes | Self::Xml => hermes::OPEN,
            Self::Mistral(_) => match reasoning::split(text, reasoning::BRACKETS, mistral::OPEN) {
                (None, rest) => return reasoning::split(rest, reasoning::THINK, mistral::OPEN),
                found => return found,
            },
            Self::Phi(_) | Self::Llama => "{",
            Self::Pythonic => "[",
            Self::Liquid => liquid::OPEN,
        };
        reasoning::split(text, reasoning::THINK, call)
    }

    /// The tags that a turn may open its reasoning with.
    pub fn tags(self) -> &'static [Tags] {
        match self {
            Self::Mistral(_) => &[BRACKETS, THINK],
            _ => &[THINK],
        }
    }

    /// A word that begins calls within a text, before a bracket.
    pub fn word(self) -> Option<&'static str> {
        matches!(self, Self::Phi(_)).then_some(phi::FUNCTOOLS)
    }

    /// The part of a turn after its reasoning, or all of it if there is none.
    pub fn after_reasoning(self, text: &str, opened: Option<Tags>) -> &str {
        self.split(text, opened).1
    }

    /// Further end-of-turn tokens of this format, used if the tokenizer has them.
    pub fn ends(self) -> &'static [&'static str] {
        match self {
            Self::Llama | Self::Pythonic => &["<|eot_id|>", "<|eom_id|>"],
            Self::Phi(_) => &["<|end|>", "<|endoftext|>"],
            Self::Hermes | Self::Xml | Self::Mistral(_) | Self::Liquid => &[],
        }
    }
}

/// The text after a call that could not be parsed: after its closing tag, or from the next opening tag on.
fn after_call<'a>(body: &'a str, open: &str, close: &str) -> &'a str {
    match [open, close].into_iter().filter_map(|tag| body.find(tag)).min() {
        Some(at) => body[at..].strip_prefix(close).unwrap_or(&body[at..]),
        None => "",
    }
}
