//! What the user types: with an editor and a history at a terminal, line by line otherwise.

use std::{
    cell::Cell,
    io::{IsTerminal as _, Lines, StdinLock},
    path::PathBuf,
    sync::Arc,
};

use parking_lot::Mutex;
use rustyline::{
    Config, Context, Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::error::TalkError;
use crate::cli::approval::{Ask, Person};

const PROMPT: &str = "> ";
/// Messages that are remembered.
const REMEMBERED: usize = 1000;

pub enum Input {
    Terminal(Arc<Mutex<Terminal>>),
    Pipe(Lines<StdinLock<'static>>),
}

impl Input {
    /// # Errors
    /// If the terminal cannot be used.
    pub fn open() -> Result<Self, TalkError> {
        let (input, output) = (std::io::stdin(), std::io::stdout());
        if input.is_terminal() && output.is_terminal() {
            return Ok(Self::Terminal(Arc::new(Mutex::new(Terminal::open()?))));
        }
        Ok(Self::Pipe(input.lines()))
    }

    /// Who can be asked about calls.
    pub fn person(&self) -> Option<Person> {
        match self {
            Self::Terminal(terminal) => Some(terminal.clone()),
            Self::Pipe(_) => None,
        }
    }

    /// The next message; none at the end.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn next(&mut self) -> Result<Option<String>, TalkError> {
        match self {
            Self::Terminal(terminal) => terminal.lock().message(),
            Self::Pipe(lines) => {
                let line = lines.next().transpose();
                line.map_err(|cause| TalkError::Terminal { reason: cause.to_string() })
            }
        }
    }
}

pub struct Terminal {
    editor: Editor<Typing, FileHistory>,
    history: Option<PathBuf>,
}

impl Terminal {
    fn open() -> Result<Self, TalkError> {
        let config = Config::builder().max_history_size(REMEMBERED).map(|config| config.build());
        let mut editor = config.and_then(Editor::with_config).map_err(terminal)?;
        editor.set_helper(Some(Typing::default()));
        let history = state_folder().map(|folder| folder.join("chat_history"));
        if let Some(path) = &history {
            // There is none yet, or it is another program's: not a reason to refuse to chat.
            _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    fn message(&mut self) -> Result<Option<String>, TalkError> {
        loop {
            let typing = self.editor.helper().map(|typing| &typing.is_empty);
            typing.into_iter().for_each(|is_empty| is_empty.set(true));
            match self.editor.readline(PROMPT) {
                Ok(line) => {
                    _ = self.editor.add_history_entry(line.as_str());
                    if let Some(path) = &self.history {
                        _ = path.parent().map(std::fs::create_dir_all);
                        // Another chat may have added to it.
                        _ = self.editor.append_history(path);
                    }
                    return Ok(Some(joined(&line)));
                }
                Err(ReadlineError::Eof) => return Ok(None),
                // With a text at the prompt, Ctrl-C drops the text.
                Err(ReadlineError::Interrupted) => {
                    if self.editor.helper().is_none_or(|typing| typing.is_empty.get()) {
                        return Ok(None);
                    }
                }
                Err(cause) => return Err(terminal(cause)),
            }
        }
    }
}

impl Ask for Terminal {
    fn ask(&mut self, question: &str, initial: &str) -> Option<String> {
        // The editor counts columns, so only the last line of a question is its prompt.
        let (before, prompt) = question.rsplit_once('\n').unwrap_or(("", question));
        let prompt = if before.is_empty() { prompt.to_owned() } else { format!("({before}) {prompt}") };
        // Keys that were typed before the question do not answer it: neither those that wait in the terminal, nor those that the
        // editor of messages has read ahead.
        _ = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
        let mut editor = rustyline::DefaultEditor::new().ok()?;
        editor.readline_with_initial(&prompt, (initial, "")).ok()
    }
}

fn terminal(cause: ReadlineError) -> TalkError {
    TalkError::Terminal { reason: cause.to_string() }
}

/// The folder for state that may be lost.
fn state_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("mcprl"))
}

/// A message of several lines, without the backslashes that continued them.
fn joined(line: &str) -> String {
    line.replace("\\\n", "\n")
}

/// Knows whether something is typed, and that a backslash at the end continues the message.
#[derive(Default)]
struct Typing {
    is_empty: Cell<bool>,
}

impl Helper for Typing {}

impl Highlighter for Typing {}

impl Completer for Typing {
    type Candidate = String;
}

impl Hinter for Typing {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Validator for Typing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match context.input().ends_with('\\') {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_at_the_end_of_a_line_continues_the_message() {
        assert_eq!(joined("one\\\ntwo\nthree \\ four"), "one\ntwo\nthree \\ four");
    }
}
