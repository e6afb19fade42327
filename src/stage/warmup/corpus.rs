//! From traces to tokens: the tokenizer they are worth, and the conversations in it.
//!
//! The chat files decide how a conversation is written, the tokenizer is trained on conversations as they are
//! written, and it is one of the chat files. So the traces are written out once with a tokenizer that knows no word:
//! nothing here repeats what the template or the tool-call format says.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

use super::{
    WarmupError, folder,
    tokenizer,
    traces::{Trace, TraceTurn},
    train::Example,
};
use crate::{chat::{Chat, Prompt}, error::Result};

/// How a base writes its conversations.
#[derive(Debug, Clone)]
pub struct Dialect<'a> {
    pub template: &'a str,
    /// System text of every conversation.
    pub system: &'a str,
    /// OpenAI-style function schemas.
    pub tools: &'a [Value],
    /// Tokens in all.
    pub vocabulary: usize,
    /// Of these, phrases that are one token as they stand.
    pub phrases: usize,
    /// Longest conversation, in tokens.
    pub context: usize,
}

/// Writes the chat files of a base that is to speak like these traces, and loads them.
///
/// # Errors
/// If the vocabulary is too small, the template is unusable or the folder cannot be written.
pub fn write_chat(folder: &Path, traces: &[Trace], dialect: &Dialect<'_>) -> Result<Chat> {
    let texts = Texts::written(traces, dialect)?;
    let phrases = super::phrases::phrases(&texts.said, dialect.phrases);
    let tokenizer = tokenizer::train(&texts.weighted(), dialect.vocabulary, &phrases).map_err(unusable)?;
    folder::write(folder, &tokenizer, dialect.template, dialect.context)?;
    Ok(Chat::load(folder)?)
}

/// The traces as tokens; those of the assistant are marked.
///
/// # Errors
/// If the template cannot write a task.
pub fn examples(traces: &[Trace], chat: &Chat, system: &str, tools: &[Value]) -> Result<Vec<Example>> {
    // Most of the work is writing prompts, and most prompts are written more than once.
    let mut prompts: BTreeMap<&str, Prompt> = BTreeMap::new();
    for trace in traces {
        if !prompts.contains_key(trace.task.as_str()) {
            prompts.insert(&trace.task, chat.prompt(system, tools, &trace.task)?);
        }
    }
    let example = |trace: &Trace| {
        let (mut tokens, mut trained) = (Vec::new(), Vec::new());
        let mut append = |more: &[u32], is_trained: bool| {
            tokens.extend(more);
            trained.resize(tokens.len(), is_trained);
        };
        if let Some(prompt) = prompts.get(trace.task.as_str()) {
            append(&prompt.shared, false);
            append(&prompt.task, false);
        }
        for turn in &trace.turns {
            append(&said(chat, turn), true);
            if let Some(result) = &turn.result {
                append(&chat.results(std::slice::from_ref(result)), false);
            }
        }
        (tokens, trained)
    };
    Ok(traces.iter().map(example).collect())
}

fn said(chat: &Chat, turn: &TraceTurn) -> Vec<u32> {
    chat.assistant(&turn.text, turn.call.as_slice())
}

/// Distinct texts of the conversations, with how often each occurs.
struct Texts {
    /// The assistant's turns, and what the template writes around results.
    said: BTreeMap<String, u64>,
    /// Tasks, results, system text and tools.
    read: BTreeMap<String, u64>,
}

impl Texts {
    fn written(traces: &[Trace], dialect: &Dialect<'_>) -> Result<Self> {
        let scratch = tempfile::tempdir()
            .map_err(|source| WarmupError::Write { path: std::env::temp_dir(), source })?;
        let size = tokenizer::SPECIAL.len() + tokenizer::MARKS.len() + 256;
        let bytes = tokenizer::train(&[], size, &[]).map_err(unusable)?;
        folder::write(scratch.path(), &bytes, dialect.template, dialect.context)?;
        let chat = Chat::load(scratch.path())?;

        let mut turns: BTreeMap<String, (u64, &TraceTurn)> = BTreeMap::new();
        let mut read: BTreeMap<String, u64> = BTreeMap::new();
        let (mut prompts, mut results) = (0, 0);
        for trace in traces {
            *read.entry(trace.task.clone()).or_default() += 1;
            prompts += 1;
            for turn in &trace.turns {
                // Writing is costly and most turns are alike: they are told apart before they are written.
                let key = serde_json::to_string(&(&turn.text, &turn.call)).unwrap_or_default();
                turns.entry(key).or_insert((0, turn)).0 += 1;
                if let Some(result) = &turn.result {
                    *read.entry(result.clone()).or_default() += 1;
                    results += 1;
                }
            }
        }
        let mut written: BTreeMap<String, u64> = BTreeMap::new();
        for (times, turn) in turns.into_values() {
            *written.entry(chat.decode(&said(&chat, turn))).or_default() += times;
        }
        // A digit stands for the result or the task: no phrase reaches across it.
        *written.entry(chat.decode(&chat.results(&["0".to_owned()]))).or_default() += results;
        let Prompt { shared, task } = chat.prompt(dialect.system, dialect.tools, "0")?;
        *written.entry(chat.decode(&task)).or_default() += prompts;
        *read.entry(chat.decode(&shared)).or_default() += prompts;
        Ok(Self { said: written, read })
    }

    /// Each text as often as the root of its count: rare names deserve a token too, for they are copied.
    fn weighted(&self) -> Vec<String> {
        let times = |count: &u64| (*count as f64).sqrt().ceil() as usize;
        let all = self.said.iter().chain(&self.read);
        all.flat_map(|(text, count)| std::iter::repeat_n(text.clone(), times(count))).collect()
    }
}

fn unusable(error: tokenizers::Error) -> WarmupError {
    WarmupError::Tokenizer { reason: error.to_string() }
}
