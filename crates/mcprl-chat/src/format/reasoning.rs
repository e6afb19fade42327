//! Reasoning before a turn's text and calls.

/// The tags that open and close reasoning.
pub type Tags = [&'static str; 2];
pub const THINK: Tags = ["<think>", "</think>"];
/// Mistral's tags, which are control tokens.
pub const BRACKETS: Tags = ["[THINK]", "[/THINK]"];

/// Splits a turn into its reasoning and the rest. If the opening tag was part of the prompt, the closing tag counts
/// unless a `call` starts before it.
pub fn split<'a>(text: &'a str, tags: Tags, call: &str) -> (Option<String>, &'a str) {
    let [open, close] = tags;
    let opened = text.trim_start().strip_prefix(open);
    let body = opened.unwrap_or(text);
    let end = body.find(close).filter(|end| opened.is_some() || !body[..*end].contains(call));
    let (reasoning, rest) = match end {
        Some(end) => (&body[..end], &body[end + close.len()..]),
        None if opened.is_some() => (body, ""),
        None => ("", text),
    };
    let reasoning = reasoning.trim();
    ((!reasoning.is_empty()).then(|| reasoning.to_owned()), rest)
}
