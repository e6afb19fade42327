//! From traces to tokens: a tokenizer trained on them, and the tokenized conversations.
//!
//! The chat files decide how a conversation is written. The tokenizer is trained on written conversations,
//! and is itself a chat file. So traces are first written with a tokenizer without merges: nothing here
//! duplicates the template or the tool-call format.

use std::{collections::BTreeMap, path::Path};

use rayon::prelude::*;
use serde_json::Value;

use super::{
    WarmupError, folder,
    phrases::{Counted, phrases},
    renamed::groups,
    tokenizer::{self, Split},
    traces::{Trace, TraceTurn},
};
use crate::{
    chat::{Chat, ChatError, Prompt},
    engine::Example,
    error::Result,
};

/// How a base writes its conversations.
#[derive(Debug, Clone)]
pub struct Dialect<'a> {
    pub template: &'a str,
    /// System text of every conversation.
    pub system: &'a str,
    /// OpenAI-style function schemas, by the server whose tools alone a conversation has.
    pub tools: &'a BTreeMap<Option<String>, Vec<Value>>,
    /// Total number of tokens.
    pub vocabulary: usize,
    /// How many of these are whole phrases.
    pub phrases: usize,
    pub split: Split,
    /// Longest conversation, in tokens.
    pub context: usize,
}

/// Writes the chat files of a base model for these traces, then loads and primes them.
///
/// # Errors
/// If the vocabulary is too small, the template is unusable or the folder cannot be written.
pub fn write_chat(folder: &Path, traces: &[Trace], dialect: &Dialect<'_>) -> Result<Chats> {
    let texts = Texts::written(traces, dialect)?;
    let phrases = phrases(&texts.said, &texts.read, dialect.phrases, dialect.split).map_err(unusable)?;
    let tokenizer =
        tokenizer::train(&texts.weighted(), dialect.vocabulary, &phrases, dialect.split).map_err(unusable)?;
    folder::write(folder, &tokenizer, dialect.template, dialect.context)?;
    chats(folder, dialect)
}

/// How conversations are written, by the server whose tools alone they have.
pub type Chats = BTreeMap<Option<String>, Chat>;

fn chats(folder: &Path, dialect: &Dialect<'_>) -> Result<Chats> {
    let chat = |(server, tools): (&Option<String>, &Vec<Value>)| {
        Ok((server.clone(), Chat::load(folder)?.with_tools(dialect.system, tools)?))
    };
    dialect.tools.iter().map(chat).collect()
}

/// The traces as tokens, with the assistant's tokens marked.
///
/// # Errors
/// If the template cannot write a task.
pub fn examples(traces: &[Trace], chats: &Chats) -> Result<Vec<Example>> {
    // All write turns and results alike.
    let Some(chat) = chats.values().next() else { return Ok(Vec::new()) };
    let prompt = |chat: &Chat, task: &str| {
        let Prompt { shared, task } = chat.prompt(task)?;
        Ok::<_, ChatError>([shared, task].concat())
    };
    let usual = traces.iter().filter(|trace| trace.tools.is_none());
    let tasks = usual.map(|trace| {
        let question = (&trace.server, trace.task.as_str());
        (question, question)
    });
    let prompts = each_once(tasks, |(server, task)| prompt(chats.get(server).unwrap_or(chat), task))?;
    let renamed = groups(traces).filter_map(|group| Some((group, group[0].tools.as_ref()?))).enumerate();
    let renamed = each_once(renamed, |(group, tools)| {
        let chat = chat.with_other_tools(tools)?;
        group.iter().map(|trace| prompt(&chat, &trace.task)).collect::<Result<Vec<_>, _>>()
    })?;
    let mut renamed = renamed.values().flatten();
    let turns = || traces.iter().flat_map(|trace| &trace.turns);
    let said = each_once(turns().map(|turn| (key(turn), turn)), |turn| Ok(said(chat, turn)))?;
    let results = turns().filter_map(|turn| turn.result.as_ref()).map(|result| (result.as_str(), result));
    let results = each_once(results, |result| Ok(chat.results(&[], std::slice::from_ref(result))))?;

    let example = |trace: &Trace| {
        let (mut tokens, mut trained) = (Vec::new(), Vec::new());
        let mut append = |more: Option<&Vec<u32>>, is_trained: bool| {
            tokens.extend(more.into_iter().flatten());
            trained.resize(tokens.len(), is_trained);
        };
        let prompt = match trace.tools {
            Some(_) => renamed.next(),
            None => prompts.get(&(&trace.server, trace.task.as_str())),
        };
        append(prompt, false);
        for turn in &trace.turns {
            append(said.get(&key(turn)), true);
            append(turn.result.as_ref().and_then(|result| results.get(result.as_str())), false);
        }
        (tokens, trained)
    };
    Ok(traces.iter().map(example).collect())
}

/// Most of the text repeats across traces. Each distinct item is written once, on all processors.
fn each_once<K: Ord + Send, T: Send, W: Send>(
    things: impl Iterator<Item = (K, T)>,
    write: impl Fn(T) -> Result<W, ChatError> + Sync,
) -> Result<BTreeMap<K, W>, ChatError> {
    let distinct: BTreeMap<K, T> = things.collect();
    let written = distinct.into_par_iter().map(|(key, thing)| Ok((key, write(thing)?)));
    written.collect::<Vec<_>>().into_iter().collect()
}

/// Identifies a turn.
fn key(turn: &TraceTurn) -> String {
    serde_json::to_string(&(&turn.text, &turn.call)).unwrap_or_default()
}

fn said(chat: &Chat, turn: &TraceTurn) -> Vec<u32> {
    chat.assistant(&turn.text, turn.call.as_slice())
}

/// Distinct texts of the conversations, with how often each occurs.
struct Texts {
    /// Text the model says: the assistant's turns, and the template's text around results.
    said: Counted,
    /// Text the model reads: tasks, results, system text and tools.
    read: Counted,
}

impl Texts {
    fn written(traces: &[Trace], dialect: &Dialect<'_>) -> Result<Self> {
        let scratch = tempfile::tempdir()
            .map_err(|source| WarmupError::Write { path: std::env::temp_dir(), source })?;
        let size = tokenizer::SPECIAL.len() + tokenizer::MARKS.len() + 256;
        let bytes = tokenizer::train(&[], size, &[], dialect.split).map_err(unusable)?;
        folder::write(scratch.path(), &bytes, dialect.template, dialect.context)?;
        let chats = chats(scratch.path(), dialect)?;

        let mut turns: BTreeMap<String, (u64, &TraceTurn)> = BTreeMap::new();
        let mut read: Counted = Counted::new();
        let mut prompts: BTreeMap<&Option<String>, u64> = BTreeMap::new();
        let mut results = 0;
        for trace in traces {
            *read.entry(trace.task.clone()).or_default() += 1;
            *prompts.entry(&trace.server).or_default() += 1;
            for turn in &trace.turns {
                // Rendering is costly and most turns are equal: deduplicate before rendering.
                turns.entry(key(turn)).or_insert((0, turn)).0 += 1;
                if let Some(result) = &turn.result {
                    *read.entry(result.clone()).or_default() += 1;
                    results += 1;
                }
            }
        }
        let mut written: Counted = Counted::new();
        let Some(chat) = chats.values().next() else { return Ok(Self { said: written, read }) };
        for (times, turn) in turns.into_values() {
            *written.entry(chat.decode(&said(chat, turn))).or_default() += times;
        }
        // A digit stands for the result or task, so that no phrase crosses it.
        *written.entry(chat.decode(&chat.results(&[], &["0".to_owned()]))).or_default() += results;
        for (server, chat) in &chats {
            let prompts = *prompts.get(server).unwrap_or(&0);
            let Prompt { shared, task } = chat.prompt("0")?;
            *written.entry(chat.decode(&task)).or_default() += prompts;
            *read.entry(chat.decode(&shared)).or_default() += prompts;
        }
        Ok(Self { said: written, read })
    }

    /// Repeats each text by the square root of its count: rare names deserve tokens too, because they are
    /// copied.
    fn weighted(&self) -> Vec<String> {
        let times = |count: &u64| (*count as f64).sqrt().ceil() as usize;
        let all = self.said.iter().chain(&self.read);
        all.flat_map(|(text, count)| std::iter::repeat_n(text.clone(), times(count))).collect()
    }
}

fn unusable(error: tokenizers::Error) -> WarmupError {
    WarmupError::Tokenizer { reason: error.to_string() }
}
