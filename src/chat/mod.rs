//! Conversation to tokens and back: templates, tool-call formats, masks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Diagnostic;

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("to be written")]
    Todo,
}

impl Diagnostic for ChatError {
    fn code(&self) -> &'static str {
        "chat::todo"
    }
}

/// One tool call as the model means it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub name: String,
    pub arguments: Map<String, Value>,
}

/// What a model turn says.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Text outside calls and reasoning.
    pub text: String,
    pub reasoning: Option<String>,
    /// Calls in order; a malformed one says what is wrong with it, for the model to read.
    pub calls: Vec<Result<ToolCall, String>>,
}

/// The opening of an episode, cut where sharing ends. All end at token boundaries.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// System prompt and tools: the same for every episode of a run.
    pub shared: Vec<u32>,
    /// The task and the assistant header: the same for every episode of a group.
    pub task: Vec<u32>,
}

/// A model's way of writing conversations: tokenizer, chat template and tool-call format.
pub struct Chat {}

impl Chat {
    /// Loads `tokenizer.json`, `tokenizer_config.json` (and `chat_template.jinja`) of a Hugging Face folder.
    pub fn load(_folder: &Path) -> Result<Self, ChatError> {
        todo!()
    }
    /// Renders system text, tools (OpenAI-style function schemas) and task with the model's own template.
    pub fn prompt(&self, _system: &str, _tools: &[Value], _task: &str) -> Result<Prompt, ChatError> {
        todo!()
    }
    /// What the model would have sampled to say this turn, its end-of-turn token included.
    pub fn assistant(&self, _text: &str, _calls: &[ToolCall]) -> Vec<u32> {
        todo!()
    }
    /// Everything between one sampled turn's end-of-turn token and the next sampled token: results and assistant header.
    pub fn results(&self, _results: &[String]) -> Vec<u32> {
        todo!()
    }
    /// Reads a sampled turn. Total: any tokens give a turn.
    pub fn parse(&self, _tokens: &[u32]) -> Turn {
        todo!()
    }
    /// Tokens that end a turn.
    pub fn stop(&self) -> &[u32] {
        todo!()
    }
    pub fn decode(&self, _tokens: &[u32]) -> String {
        todo!()
    }
    /// Tokens of untrusted text: never any special token.
    pub fn encode_text(&self, _text: &str) -> Vec<u32> {
        todo!()
    }
}
