use crate::{error::Diagnostic, llm::LlmError};

/// Errors of a judge.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "judge::", serialize_all = "snake_case")]
pub enum JudgeError {
    #[error(transparent)]
    Llm(#[from] LlmError),
    #[error("the judge's prompt cannot be rendered")]
    Prompt(#[source] minijinja::Error),
    #[error("the judge's reply cannot be used after {attempts} attempts: {problem}")]
    Reply { attempts: u32, problem: String },
    #[error("the judge's program `{program}` failed: {problem}")]
    Program { program: String, problem: String },
}

impl Diagnostic for JudgeError {
    fn code(&self) -> &'static str {
        match self {
            Self::Llm(error) => error.code(),
            other => other.into(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Llm(error) => error.hint(),
            Self::Prompt(_) => Some(
                "relative.jinja can use `task` and `attempts` (id, conversation); rubric.jinja `task`, `criteria` (name, about, weight) and `conversation`; yes_no.jinja `task`, `criterion` and `conversation`"
                    .into(),
            ),
            Self::Reply { .. } => {
                Some("use a larger judge model or one with a longer context, a higher max_tokens or smaller groups".into())
            }
            Self::Program { .. } => {
                Some("docs/guides/judges.md says what the program reads and prints".into())
            }
        }
    }

    fn is_transient(&self) -> bool {
        matches!(self, Self::Llm(error) if error.is_transient())
    }

    fn class(&self) -> crate::error::Class {
        match self {
            Self::Llm(error) => error.class(),
            Self::Prompt(_) | Self::Reply { .. } | Self::Program { .. } => crate::error::Class::Work,
        }
    }
}
