//! The tools that exploration may call, and how they are called in tasks.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{
    phrases::PHRASES,
    seeds::{self, Param},
};
use crate::{
    TaskError,
    data::Tool,
    error::did_you_mean,
    mcp::{ServerSpec, Servers, State},
    words,
};

/// Names of tools in a note.
const NAMED: usize = 5;

/// The parameter `explore_writes`: which tools may write although a session may leave something behind, or are called although
/// the server declares that they destroy something.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ExploreWrites {
    /// All that are not declared destructive, or none.
    All(bool),
    /// These.
    Named(Vec<String>),
}

impl Default for ExploreWrites {
    fn default() -> Self {
        Self::All(false)
    }
}

impl ExploreWrites {
    fn names(&self, tool: &Tool) -> bool {
        matches!(self, Self::Named(names) if names.contains(&tool.name) || names.contains(&tool.server_name))
    }

    /// # Errors
    /// If a name is none of a tool.
    pub fn check(&self, tools: &[Tool]) -> Result<(), TaskError> {
        let Self::Named(names) = self else { return Ok(()) };
        let known =
            || tools.iter().filter(|tool| !tool.synthetic).flat_map(|tool| [&*tool.name, &*tool.server_name]);
        match names.iter().find(|name| !known().any(|known| known == *name)) {
            Some(name) => {
                let near = did_you_mean(name, known()).map(str::to_owned);
                Err(TaskError::UnknownWriter { name: name.clone(), near })
            }
            None => Ok(()),
        }
    }
}

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
/// A new process alone may open the same files, so there a tool must declare that it reads, or have the name of one that reads,
/// unless `writes` says otherwise. On a server whose contract is `read-only`, these are the tools that do not contradict it. Tools
/// that the server declares destructive are called only if `writes` names them, where there is a state of their own.
pub fn profiles(tools: &[Tool], servers: &Servers, writes: &ExploreWrites) -> Vec<ToolProfile> {
    let mut profiles: Vec<ToolProfile> = tools
        .iter()
        .filter(|tool| !tool.synthetic)
        .filter_map(|tool| profile(tool, servers, writes))
        .collect();
    without_server(&mut profiles);
    profiles
}

/// Drops the word with which the names of all tools begin, if each goes on with another noun: it is the server's name.
fn without_server(profiles: &mut [ToolProfile]) {
    const FEW: usize = 3;
    let first = |profile: &ToolProfile| words::split(&profile.name).into_iter().next();
    let Some(name) = profiles.first().and_then(first) else { return };
    let is_server = |profile: &ToolProfile| {
        first(profile).as_ref() == Some(&name)
            && profile.nouns.first() == Some(&name)
            && profile.nouns.len() > 1
    };
    if profiles.len() >= FEW && profiles.iter().all(is_server) {
        profiles.iter_mut().for_each(|profile| _ = profile.nouns.remove(0));
    }
}

/// Why a tool is not called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftOut {
    /// A session may leave behind what it writes.
    MayLast,
    Destructive,
    /// The contract of its server forbids it, or there is none yet.
    Contract,
}

/// Whether a tool may be called.
fn access(tool: &Tool, spec: &ServerSpec, writes: &ExploreWrites) -> Result<(), LeftOut> {
    let is_annotated = tool.hint("readOnlyHint") == Some(true);
    let declares_writing = tool.hint("readOnlyHint") == Some(false);
    match spec.state {
        State::ReadOnly if declares_writing || is_destructive(tool) => Err(LeftOut::Contract),
        State::ReadOnly => Ok(()),
        State::Unconfirmed if is_annotated => Ok(()),
        State::Unconfirmed => Err(LeftOut::Contract),
        _ if writes.names(tool) => Ok(()),
        _ if is_destructive(tool) || destroys_by_name(tool) => Err(LeftOut::Destructive),
        State::SnapshotDir(_) | State::ResetTool(_) => Ok(()),
        State::FreshProcess if spec.isolates() || *writes == ExploreWrites::All(true) => Ok(()),
        State::FreshProcess if is_annotated || !declares_writing && reads_by_name(&tool.name) => Ok(()),
        State::FreshProcess => Err(LeftOut::MayLast),
    }
}

/// Whether the name of a tool says that it reads. `set_status` does not.
pub fn reads_by_name(tool: &str) -> bool {
    words::is_reading(tool) && !words::split(tool).first().is_some_and(|verb| PHRASES.is_change(verb))
}

/// Whether a tool only reads, as far as its annotations and its name say so.
pub fn only_reads(tools: &[Tool]) -> impl Fn(&str) -> bool + use<> {
    let declared = tools.iter().filter_map(|tool| Some((tool.name.clone(), tool.hint("readOnlyHint")?)));
    let declared: BTreeMap<String, bool> = declared.collect();
    move |name| declared.get(name).copied().unwrap_or_else(|| reads_by_name(name))
}

/// Tools that write and are called, as far as names and annotations say it.
pub fn writing<'t>(tools: &'t [Tool], servers: &Servers, writes: &ExploreWrites) -> Vec<&'t str> {
    let is_called = |tool: &&Tool| {
        servers
            .of_tool(&tool.server_name)
            .is_some_and(|spec| spec.state != State::ReadOnly && access(tool, spec, writes).is_ok())
    };
    let may_write = |tool: &&Tool| {
        !tool.synthetic && tool.hint("readOnlyHint") != Some(true) && !reads_by_name(&tool.name)
    };
    tools.iter().filter(may_write).filter(is_called).map(|tool| &*tool.name).collect()
}

/// Sentences about tools that write and are not called, and what would change it.
pub fn left_out(tools: &[Tool], servers: &Servers, writes: &ExploreWrites) -> Vec<(String, String)> {
    let of = |why: LeftOut| -> Vec<&str> {
        let is_so = |tool: &&Tool| {
            let spec = servers.of_tool(&tool.server_name);
            !tool.synthetic && spec.is_some_and(|spec| access(tool, spec, writes) == Err(why))
        };
        tools.iter().filter(is_so).map(|tool| &*tool.name).collect()
    };
    let named = |names: &[&str]| {
        let shown: Vec<String> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
        let more = names.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let (is, them) = if names.len() == 1 { ("is", "it") } else { ("are", "them") };
        format!("{}{more} {is} not called, and no task changes anything by {them}", shown.join(", "))
    };
    let (lasting, destructive) = (of(LeftOut::MayLast), of(LeftOut::Destructive));
    let mut notes = Vec::new();
    if !lasting.is_empty() {
        notes.push((
            format!("{}: a new process may open the same files or database", named(&lasting)),
            "with state = \"snapshot-dir\", \"reset-tool\" or `before_episode` they are explored, or with explore_writes = true, if the \
             server keeps all in memory"
                .to_owned(),
        ));
    }
    if !destructive.is_empty() {
        let all = writing(tools, servers, writes).into_iter().chain(destructive.iter().copied());
        let list: Vec<String> = all.map(|name| format!("\"{name}\"")).collect();
        notes.push((
            format!("{}: the server or the name says that something is destroyed", named(&destructive)),
            format!(
                "a list explores what it names, and no other tool that writes: explore_writes = [{}]",
                list.join(", ")
            ),
        ));
    }
    notes
}

/// Whether the server declares that a tool destroys something.
pub fn is_destructive(tool: &Tool) -> bool {
    tool.hint("destructiveHint") == Some(true) && tool.hint("readOnlyHint") != Some(true)
}

/// Whether a tool's name says that it destroys something, and the server does not say that it does not.
fn destroys_by_name(tool: &Tool) -> bool {
    const VERBS: [&str; 8] = ["delete", "destroy", "purge", "drop", "erase", "wipe", "truncate", "uninstall"];
    let says = words::split(&tool.name).iter().any(|word| VERBS.contains(&word.as_str()));
    says && tool.hint("destructiveHint") != Some(false) && tool.hint("readOnlyHint") != Some(true)
}

fn profile(tool: &Tool, servers: &Servers, writes: &ExploreWrites) -> Option<ToolProfile> {
    let spec = servers.of_tool(&tool.server_name)?;
    access(tool, spec, writes).ok()?;
    let is_read_only = spec.state == State::ReadOnly;
    let is_annotated = tool.hint("readOnlyHint") == Some(true);
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
