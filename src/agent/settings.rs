//! `[agent]`: what an agent may do, what it sees of results, and how its turns are read.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::repeats::Repeats;
use crate::{
    chat::{HistoryThinking, Reading, Thinking},
    error::Diagnostic,
};

/// The resolved section `[agent]`, whose keys `stages/agent/params.toml` documents. Rollouts, exams, demonstrations and tries
/// play by it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct AgentSettings {
    /// File with the system prompt.
    pub system: Option<PathBuf>,
    /// Model turns.
    pub max_turns: u32,
    /// Tokens sampled in one turn.
    pub max_turn_tokens: usize,
    /// Tokens of the whole episode, prompt and results included. If earlier turns lose their reasoning, tokens of a turn
    /// and its context.
    pub max_episode_tokens: usize,
    /// Calls that reach the server. Further calls get an error.
    pub max_calls: u32,
    /// Characters of one result that the agent sees.
    pub result_chars: usize,
    /// Value of `enable_thinking` for the chat template.
    pub thinking: Thinking,
    /// How to treat the reasoning of earlier turns.
    pub history_thinking: HistoryThinking,
    /// Whether calls count only in the template's own form.
    pub strict_calls: bool,
    /// Whether the first turn without a call is answered with a reminder.
    pub reminder: bool,
    /// Whether the text of a turn without a call is an answer.
    pub text_answers: bool,
    /// What the agent is told about a call that it has made before with the same result.
    #[serde(default)]
    pub repeats: Repeats,
    /// The words of a program that plays episodes in place of mcprl's own loop.
    #[serde(default)]
    pub harness: Vec<String>,
    /// How long it may take for an episode.
    pub harness_timeout_s: f64,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(code = "agent::system_prompt")]
pub enum SettingsError {
    #[error("cannot read the system prompt {path}")]
    #[hint = "`system` under [agent] names a text file, relative to the run file"]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot render the system prompt")]
    #[hint = "a file that ends in `.jinja` sees `tools`, the list of function schemas"]
    Render(#[source] minijinja::Error),
}

impl AgentSettings {
    pub fn reading(&self) -> Reading {
        if self.strict_calls { Reading::Strict } else { Reading::Lenient }
    }

    /// The system prompt for an agent with these tools. `built_in` is the template that applies if no file is named.
    ///
    /// # Errors
    /// If the file cannot be read or rendered.
    pub fn system_prompt(&self, built_in: &str, tools: &[Value]) -> Result<String, SettingsError> {
        system_prompt(self.system.as_deref(), built_in, tools)
    }
}

/// The same, for a stage that takes only the key `system`.
///
/// # Errors
/// If the file cannot be read or rendered.
pub fn system_prompt(file: Option<&Path>, built_in: &str, tools: &[Value]) -> Result<String, SettingsError> {
    let text = match file {
        None => return render(built_in, tools),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?,
    };
    match file.and_then(Path::extension) {
        Some(extension) if extension == "jinja" => render(&text, tools),
        _ => Ok(text.trim().to_owned()),
    }
}

fn render(template: &str, tools: &[Value]) -> Result<String, SettingsError> {
    let context = minijinja::Value::from(minijinja::value::Serde(json!({"tools": tools})));
    let text = minijinja::Environment::new().render_str(template, context).map_err(SettingsError::Render)?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_is_the_prompt_as_it_is_and_a_template_sees_the_tools() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name)
        };
        let tools = [json!({"function": {"name": "look"}})];
        let of = |path: &Path| system_prompt(Some(path), "built in", &tools).unwrap();
        assert_eq!(of(&write("prompt.md", "Use {{ braces }}.\n")), "Use {{ braces }}.");
        assert_eq!(of(&write("prompt.jinja", "{{ tools[0].function.name }}!")), "look!");
        assert_eq!(system_prompt(None, "{{ tools | length }} tools", &tools).unwrap(), "1 tools");
        let missing = system_prompt(Some(&folder.path().join("none.md")), "", &tools).unwrap_err();
        assert!(missing.to_string().contains("none.md"));
    }
}
