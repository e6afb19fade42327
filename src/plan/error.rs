use std::{fmt, path::PathBuf};

use crate::error::{Class, Diagnostic};

/// Where a mistake stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the run file; lines and columns count from 1, columns in characters.
    File { path: PathBuf, line: usize, column: usize, excerpt: String },
    /// In an override, as the person gave it: `--set seed=x`.
    Override(String),
}

/// One thing wrong with a run file or an override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub message: String,
    pub place: Option<Place>,
    pub hint: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        match &self.place {
            Some(Place::File { path, line, column, excerpt }) => {
                write!(f, "\n --> {}:{line}:{column}\n{excerpt}", path.display())
            }
            Some(Place::Override(text)) => write!(f, "\n --> {text}"),
            None => Ok(()),
        }
    }
}

/// What keeps a run file from becoming a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("cannot read the run file {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}", several(.0))]
    Mistakes(Vec<Mistake>),
    #[error("stage \"{stage}\" reported no metric `{metric}`, which loop \"{turns}\" waits for")]
    NoMetric { stage: String, metric: String, turns: String },
    #[error("nothing in this run is called \"{0}\"")]
    NoStage(String, Option<String>),
    #[error("stage \"{stage}\" is {class}: running it again gives the same result")]
    NotResampled { stage: String, class: &'static str },
    #[error("stage \"{stage}\" has no iteration {iteration}")]
    NoIteration { stage: String, iteration: String, last: Option<u32> },
}

/// The first mistake bare, the others as errors of their own, each but the last with its hint.
fn several(mistakes: &[Mistake]) -> String {
    let mut text = String::new();
    for (index, mistake) in mistakes.iter().enumerate() {
        if index > 0 {
            text += "\nerror: ";
        }
        text += &mistake.to_string();
        if let Some(hint) = mistake.hint.as_ref().filter(|_| index + 1 < mistakes.len()) {
            text += &format!("\nhint: {hint}");
        }
    }
    text
}

impl Diagnostic for PlanError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "plan::read",
            Self::Mistakes(_) => "plan::run_file",
            Self::NoMetric { .. } => "plan::no_metric",
            Self::NoStage(..) => "plan::no_stage",
            Self::NotResampled { .. } => "plan::not_resampled",
            Self::NoIteration { .. } => "plan::no_iteration",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Read { path, .. } if path.is_dir() => Some(format!(
                "it is a folder; name the run file in it, such as {}",
                path.join("run.toml").display()
            )),
            Self::Read { .. } => Some("the run files that come with mcprl are in `pipelines/`".into()),
            Self::Mistakes(mistakes) => mistakes.last().and_then(|mistake| mistake.hint.clone()),
            Self::NoStage(_, near) => near.as_ref().map(|near| format!("did you mean \"{near}\"?")),
            Self::NotResampled { .. } => Some("for other random choices set another `seed`".into()),
            Self::NoIteration { last: Some(last), .. } => Some(format!("its iterations are 1 to {last}")),
            Self::NoIteration { last: None, .. } => Some("it is in no loop".into()),
            Self::NoMetric { .. } => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::NoMetric { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}
