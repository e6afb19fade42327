use crate::{error::Diagnostic, llm::LlmError};

/// Errors of a judge.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "judge")]
pub enum JudgeError {
    #[error(transparent)]
    #[diagnostic(transparent)]
    Llm(#[from] LlmError),
    #[error("the judge's prompt cannot be rendered")]
    #[hint = "relative.jinja can use `task`, `tools` and `attempts` (id, conversation); rubric.jinja `task`, `tools`, `criteria` (name, about, weight) and `conversation`; yes_no.jinja `task`, `tools`, `criterion` and `conversation`"]
    Prompt(#[source] minijinja::Error),
    #[error("the judge's reply cannot be used after {attempts} attempts: {problem}")]
    #[hint = "use a larger judge model or one with a longer context, a higher max_tokens or smaller groups"]
    Reply { attempts: u32, problem: String },
    #[error("the judge's program `{program}` failed: {problem}")]
    #[hint = "docs/guides/judges.md says what the program reads and prints"]
    Program { program: String, problem: String },
}
