//! The tools that exploration may call, and how they are called in tasks.

use serde_json::Value;

use super::seeds::{self, Param};
use crate::{
    data::Tool,
    mcp::{Servers, State},
    stage::scenarios::words,
};

/// What exploration knows of a tool before it calls it.
#[derive(Debug)]
pub struct ToolProfile {
    /// The agent's name.
    pub name: String,
    /// The server's own name.
    pub server_name: String,
    pub description: String,
    pub params: Vec<Param>,
    /// The words of its name that are no verbs, as written.
    pub nouns: Vec<String>,
    /// What it gives, as a noun phrase.
    pub phrase: words::Phrase,
    /// It changes nothing, by the server's contract or its own annotation.
    pub reads: bool,
    /// The server says itself that it changes nothing.
    pub is_annotated: bool,
    /// The server says itself that it changes something.
    pub writes: bool,
}

/// Tools that are safe to call, in the server's order.
///
/// Where every session has a state of its own that is restored (a snapshot, a reset tool, or `before_episode`), these are all tools.
/// A new process alone may open the same files, so there a tool must declare that it reads or is not destructive, or have the name of one that
/// reads. On a server whose contract is `read-only`, these are the tools that do not contradict it. Tools that the server
/// declares destructive are never called.
pub fn profiles(tools: &[Tool], servers: &Servers) -> Vec<ToolProfile> {
    tools.iter().filter(|tool| !tool.synthetic).filter_map(|tool| profile(tool, servers)).collect()
}

/// Whether the server declares that a tool destroys something.
pub fn is_destructive(tool: &Tool) -> bool {
    tool.hint("destructiveHint") == Some(true) && tool.hint("readOnlyHint") != Some(true)
}

fn profile(tool: &Tool, servers: &Servers) -> Option<ToolProfile> {
    let spec = servers.of_tool(&tool.server_name)?;
    let state = &spec.state;
    let is_read_only = *state == State::ReadOnly;
    let is_annotated = tool.hint("readOnlyHint") == Some(true);
    let is_safe = match state {
        State::ReadOnly => tool.hint("readOnlyHint") != Some(false),
        State::FreshProcess => {
            spec.isolates()
                || is_annotated
                || tool.hint("destructiveHint") == Some(false)
                || words::is_reading(&tool.name)
        }
        State::SnapshotDir(_) | State::ResetTool(_) => true,
        State::Unconfirmed => is_annotated,
    };
    if is_destructive(tool) || !is_safe {
        return None;
    }
    let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
    let mut params = seeds::params(&schema);
    seeds::add_globs(&mut params, &tool.description);
    let nameable: Vec<words::Nameable<'_>> = params
        .iter()
        .filter(|param| param.is_required)
        .map(|param| words::Nameable { name: &param.name, words: &param.words, is_path: param.is_path() })
        .collect();
    let phrase = words::phrase(&tool.name, &tool.description, &nameable);
    Some(ToolProfile {
        name: tool.name.clone(),
        server_name: tool.server_name.clone(),
        description: tool.description.clone(),
        nouns: words::nouns(&tool.name),
        phrase,
        params,
        reads: is_read_only || is_annotated,
        is_annotated,
        writes: tool.hint("readOnlyHint") == Some(false),
    })
}

impl ToolProfile {
    /// What one record of an unnamed list is: the last noun of the name, if it is in plural.
    pub fn thing(&self, list: &str) -> String {
        if !list.is_empty() {
            let mut words = words::split(list);
            // A `commit history` has commits.
            let is_form = |word: &String| {
                ["history", "list", "log", "logs", "results", "listing", "details", "info"]
                    .contains(&word.as_str())
            };
            while words.len() > 1 && words.last().is_some_and(is_form) {
                words.pop();
            }
            if let Some(last) = words.last_mut() {
                *last = words::singular(last);
            }
            return words.join(" ");
        }
        // `direct flights` are flights, if the tool's name says so.
        let head = words::head(&self.phrase.text);
        if let Some(last) = words::split(&head).pop().filter(|last| words::singular(last) != *last)
            && self.nouns.iter().any(|noun| words::singular(noun) == words::singular(&last))
            && !head.contains(" and ")
            && !head.contains(" or ")
            && head.split_whitespace().count() <= 3
        {
            return words::singular(&head.to_lowercase());
        }
        // A listing with sizes is one of entries.
        let is_link =
            |noun: &&String| !["with", "by", "for", "from", "of", "as", "in", "to"].contains(&noun.as_str());
        match self.nouns.iter().take_while(is_link).last() {
            Some(noun) if words::singular(noun) != *noun => words::singular(noun),
            _ => "entry".into(),
        }
    }
}
