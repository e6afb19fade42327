//! Reasoning before a turn's text and calls.

/// The tags that open and close reasoning.
pub type Tags = [&'static str; 2];
pub const THINK: Tags = ["<think>", "</think>"];
/// Mistral's tags, which are control tokens.
pub const BRACKETS: Tags = ["[THINK]", "[/THINK]"];

/// Splits a turn whose reasoning the prompt has opened with these tags. It lasts until it is closed, whatever stands in it.
pub fn split_opened(text: &str, [open, close]: Tags) -> (Option<String>, &str) {
    let body = text.trim_start().strip_prefix(open).unwrap_or(text);
    let (reasoning, rest) = body.split_once(close).unwrap_or((body, ""));
    let reasoning = reasoning.trim();
    ((!reasoning.is_empty()).then(|| reasoning.to_owned()), rest)
}

/// Splits a turn into its reasoning and the rest, where the prompt is not known to have opened it. A closing tag alone counts
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
