//! Conversations that other programs have recorded, read into one form.
//!
//! [`read_all`] knows chat completions of OpenAI (also with `messages` as a text, as `prompt` and `completion`, or as a bare list),
//! ShareGPT and Hermes, and the session format of the Hugging Face hub. Whatever of a conversation is lost or changed on the way
//! is named in [`Trace::repairs`]; a conversation that would no longer say what happened is refused with the reason.

mod message;
mod session;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    answer::COMPLETE_TASK,
    data::{Message, Role},
    document,
    error::Diagnostic,
    secret,
};

/// The form in which a conversation was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Format {
    Openai,
    Sharegpt,
    /// The session format of the Hugging Face hub.
    Session,
}

impl Format {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Each call has an id and its result, in the order of the calls, except perhaps those of the last message. A system message
    /// is the first.
    pub messages: Vec<Message>,
    /// OpenAI's function schemas. None if the trace does not have them.
    pub tools: Option<Vec<Value>>,
    /// Whether whoever recorded it calls it right.
    pub correct: Option<bool>,
    /// What was lost or changed.
    pub repairs: Vec<String>,
}

impl Trace {
    /// How many messages have this role.
    pub fn count(&self, role: Role) -> usize {
        self.messages.iter().filter(|message| message.role == role).count()
    }
}

/// A conversation of a file, or why it cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedTrace {
    /// `FILE:LINE`, or `FILE` for one that takes a whole file; with folders where files have one name.
    pub place: String,
    pub format: Format,
    pub trace: Result<Trace, String>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "traces", class = usage)]
pub enum TraceError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} has more than {most} MiB")]
    #[hint = "split it into several files, a conversation per line"]
    TooLarge { path: PathBuf, most: u64 },
    #[error("{path}: {problem}")]
    #[hint = "docs/guides/traces.md shows the formats"]
    Malformed { path: PathBuf, problem: String },
}

/// The value of `decision` in the line of a conversation that a review has dropped.
pub const DROPPED: &str = "drop";

/// Bytes of a file that are read.
const FILE_MIB: u64 = 512;

/// Reasons why conversations are not used, in groups: `4 × ends with a result, without an answer; 2 × …`.
pub fn in_groups<'r>(reasons: impl Iterator<Item = &'r str>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    reasons.for_each(|reason| *counts.entry(group(reason)).or_default() += 1);
    let mut groups: Vec<(String, usize)> = counts.into_iter().collect();
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let others: usize = groups.iter().skip(GROUPS).map(|(_, count)| count).sum();
    groups.truncate(GROUPS);
    let mut said: Vec<String> = groups.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
    said.extend((others > 0).then(|| format!("{others} × something else")));
    said.join("; ")
}

/// Most groups of reasons that are named.
const GROUPS: usize = 6;

/// A reason without what differs from conversation to conversation.
fn group(reason: &str) -> String {
    let reason = match reason.strip_prefix("message ").and_then(|rest| rest.split_once(": ")) {
        Some((_, of_message)) => of_message,
        None => reason,
    };
    let start = reason.split(": ").next().unwrap_or(reason);
    let words = start.split(' ').map(|word| if word.parse::<u64>().is_ok() { "N" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// How a conversation ends: with an answer, or with what in its place.
pub fn ending(trace: &Trace) -> &'static str {
    let Some(last) = trace.messages.last() else { return "empty" };
    let completes = || last.calls.iter().any(|call| call.name == COMPLETE_TASK);
    match last.role {
        Role::Assistant if last.calls.is_empty() || completes() => "an answer",
        Role::Assistant => "a call",
        _ => "a result",
    }
}

/// The first secret in a conversation or its tools, by its kind.
pub fn secret(trace: &Trace) -> Option<&'static str> {
    let messages = trace.messages.iter().map(Message::json);
    messages.chain(trace.tools.iter().flatten().cloned()).find_map(|value| secret::in_value(&value))
}

/// Tools that a conversation calls and that are none of these, each once. A name may have a server's before it, as
/// `mcp__shop__`.
pub fn unknown_tools(trace: &Trace, offered: &[String]) -> Vec<String> {
    let calls = trace.messages.iter().flat_map(|message| &message.calls);
    let names: BTreeSet<&str> = calls.map(|call| call.name.as_str()).collect();
    let is_known = |name: &&str| {
        let short = name.rsplit("__").next().unwrap_or(name);
        *name == COMPLETE_TASK || offered.iter().any(|offered| offered == *name || offered == short)
    };
    names.into_iter().filter(|name| !is_known(name)).map(str::to_owned).collect()
}

/// The files of traces in a folder and one level below it, or this file.
///
/// # Errors
/// If the folder cannot be read.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(folder) = open.pop() {
        let failed = |source| TraceError::Read { path: folder.clone(), source };
        for item in std::fs::read_dir(&folder).map_err(failed)? {
            let item = item.map_err(failed)?.path();
            let name = item.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if item.is_file() && is_wanted(name) {
                files.push(item);
            } else if item.is_dir() && folder == path && is_wanted(&format!("{name}/")) {
                open.push(item);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a file of a folder is read; the name of a folder ends with `/`.
pub fn is_wanted(name: &str) -> bool {
    let own = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    !own.starts_with('.') && (name.ends_with('/') || name.ends_with(".jsonl") || name.ends_with(".json"))
}

/// All conversations of these files and folders.
///
/// # Errors
/// If one cannot be read.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<RecordedTrace>, TraceError> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(files(path)?);
    }
    let mut found = Vec::new();
    for (file, name) in all.iter().zip(names(&all)) {
        found.extend(read_named(file, &name)?);
    }
    Ok(found)
}

/// A name for each file: its own, and as many folders as tell files of one name apart.
fn names(files: &[PathBuf]) -> Vec<String> {
    let last = |path: &Path, count: usize| {
        let parts: Vec<_> = path.components().collect();
        parts[parts.len().saturating_sub(count)..].iter().collect::<PathBuf>().display().to_string()
    };
    let mut counts = vec![1; files.len()];
    loop {
        let names: Vec<String> = files.iter().zip(&counts).map(|(file, count)| last(file, *count)).collect();
        let mut of = BTreeMap::<&String, BTreeSet<&PathBuf>>::new();
        names.iter().zip(files).for_each(|(name, file)| _ = of.entry(name).or_default().insert(file));
        let mut is_longer = false;
        for ((file, name), count) in files.iter().zip(&names).zip(&mut counts) {
            if of[name].len() > 1 && *count < file.components().count() {
                *count += 1;
                is_longer = true;
            }
        }
        if !is_longer {
            return names;
        }
    }
}

/// All conversations of a file.
///
/// # Errors
/// If it cannot be read, or is neither JSON nor a JSON object on each line.
pub fn read(path: &Path) -> Result<Vec<RecordedTrace>, TraceError> {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    read_named(path, &name)
}

/// All conversations of a file, under this name.
///
/// # Errors
/// If it cannot be read, or is neither JSON nor a JSON object on each line.
fn read_named(path: &Path, name: &str) -> Result<Vec<RecordedTrace>, TraceError> {
    let reading = |source| TraceError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(reading)?.len() > FILE_MIB << 20 {
        return Err(TraceError::TooLarge { path: path.to_owned(), most: FILE_MIB });
    }
    let text = document::read(path).map_err(reading)?;
    parse(&text, name).map_err(|problem| TraceError::Malformed { path: path.to_owned(), problem })
}

fn parse(text: &str, name: &str) -> Result<Vec<RecordedTrace>, String> {
    let mut items = items(text)?;
    // Of several decisions on a conversation, the last one counts.
    let last: BTreeMap<String, usize> = items
        .iter()
        .filter_map(|(line, item)| Some((item.get("reviewed")?.as_str()?.to_owned(), *line)))
        .collect();
    items.retain(|(line, item)| {
        let reviewed = item.get("reviewed").and_then(Value::as_str);
        reviewed.is_none_or(|reviewed| last.get(reviewed) == Some(line))
            && item.get("decision").is_none_or(|decision| decision != DROPPED)
    });
    if items.is_empty() {
        return Err("there is no conversation".into());
    }
    // A session has its messages among other lines.
    if items[0].1["type"] == "session" {
        let trace = session::trace(items.into_iter().map(|(_, item)| item).collect());
        return Ok(vec![RecordedTrace { place: name.to_owned(), format: Format::Session, trace }]);
    }
    let found = |(line, item): &(usize, Value)| {
        let (format, trace) = of_item(item);
        RecordedTrace { place: format!("{name}:{line}"), format, trace }
    };
    // A list of messages is one conversation, and not one for each message.
    if items.iter().all(|(_, item)| item.get("role").is_some()) {
        let messages = items.into_iter().map(|(_, item)| item).collect::<Vec<_>>();
        let (format, trace) = of_item(&Value::Array(messages));
        return Ok(vec![RecordedTrace { place: name.to_owned(), format, trace }]);
    }
    Ok(items.iter().map(found).collect())
}

/// The JSON values of a text with the numbers of their lines: those of an array, or one per line.
fn items(text: &str) -> Result<Vec<(usize, Value)>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Array(items)) => return Ok((1..).zip(items).collect()),
        Ok(item) => return Ok(vec![(1, item)]),
        Err(_) => {}
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| match serde_json::from_str(line) {
            Ok(item) => Ok((index + 1, item)),
            // The parser counts lines within the line.
            Err(error) => {
                let what = error.to_string();
                let what = what.split(" at line ").next().unwrap_or_default();
                Err(format!("line {}, column {}: {what}", index + 1, error.column()))
            }
        })
        .collect()
}

/// A list that may be written as JSON in a text.
pub fn list(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) => Some(items.clone()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

/// Tools in a column of another name: a list of what has a name and says what it takes.
fn declared(item: &Value) -> Option<Vec<Value>> {
    let is_tool = |tool: &Value| {
        let tool = tool.get("function").unwrap_or(tool);
        let schemas = ["parameters", "inputSchema", "input_schema"];
        tool.get("name").is_some_and(Value::is_string) && schemas.iter().any(|key| tool.get(key).is_some())
    };
    let columns = item.as_object()?.iter().filter(|(name, _)| {
        let name = name.to_ascii_lowercase();
        name.contains("tool") || name.contains("function")
    });
    let mut lists = columns.filter_map(|(_, value)| list(value));
    lists.find(|list| !list.is_empty() && list.iter().all(is_tool))
}

/// A conversation that is one value.
fn of_item(item: &Value) -> (Format, Result<Trace, String>) {
    let known = ["tools", "available_tools", "functions"].iter().find_map(|key| list(item.get(key)?));
    let tools = known.or_else(|| declared(item));
    let tools = tools.map(|tools| tools.iter().map(message::function).collect());
    let correct = item.get("correct").and_then(Value::as_bool);
    if let Some(turns) = item.get("conversations").and_then(list) {
        return (Format::Sharegpt, message::trace(&turns, tools, correct));
    }
    let both = || {
        let (mut prompt, completion) = (list(item.get("prompt")?)?, list(item.get("completion")?)?);
        prompt.extend(completion);
        Some(prompt)
    };
    let messages = match item {
        Value::Array(messages) => Some(messages.clone()),
        item => {
            ["messages", "messages_and_choices"].iter().find_map(|key| list(item.get(key)?)).or_else(both)
        }
    };
    let Some(mut messages) = messages else {
        return (Format::Openai, Err("it has no `messages` and no `conversations`".into()));
    };
    // A system prompt beside the messages.
    if let Some(system) = item.get("system").and_then(Value::as_str) {
        messages.insert(0, serde_json::json!({"role": "system", "content": system}));
    }
    (Format::Openai, message::trace(&messages, tools, correct))
}
