use std::{fmt, path::PathBuf};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::error::{Diagnostic, Failure, Reported};

/// Where a mistake is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In the run file; lines and columns count from 1, columns in characters.
    File { path: PathBuf, line: usize, column: usize, excerpt: String },
    /// In an override, as the person gave it: `--set seed=x`.
    Override(String),
}

/// An error in a run file or an override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub message: String,
    pub place: Option<Location>,
    pub hint: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, "\n{place}"))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column, excerpt } => {
                write!(f, " --> {}:{line}:{column}\n{excerpt}", path.display())
            }
            Self::Override(text) => write!(f, " --> {text}"),
        }
    }
}

/// What a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Stage,
    /// `[server]` or `[engine]`; the stage is the first to need the section.
    Section,
}

/// Why a stage would fail, or what may go wrong with it.
#[derive(Debug)]
pub struct Problem {
    /// None if the problem affects every stage that will run.
    pub stage: Option<String>,
    pub subject: Subject,
    pub place: Option<Location>,
    pub cause: Failure,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stage) = &self.stage {
            write!(f, "stage \"{stage}\": ")?;
        }
        write!(f, "{}", self.cause)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, "\n{place}"))
    }
}

impl Location {
    /// The line of the file that it quotes.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::File { line, .. } => Some(*line),
            Self::Override(_) => None,
        }
    }

    /// Replaces quoted text, and numbers behind `=`, with stars.
    pub fn without_values(self) -> Self {
        let Self::File { path, line, column, excerpt } = self else { return self };
        let mut within: Option<char> = None;
        let mut is_escaped = false;
        let mut is_value = false;
        let star = |letter: char| match within {
            _ if letter == '\n' => {
                (within, is_value) = (None, false);
                letter
            }
            None if is_value && letter.is_ascii_digit() => '*',
            None => {
                is_value |= letter == '=';
                within = Some(letter).filter(|letter| matches!(letter, '"' | '\''));
                letter
            }
            Some(quote) if letter == quote && !is_escaped => {
                within = None;
                letter
            }
            Some(quote) => {
                is_escaped = letter == '\\' && quote == '"' && !is_escaped;
                '*'
            }
        };
        Self::File { path, line, column, excerpt: excerpt.chars().map(star).collect() }
    }

    /// Adds the location to a JSON object.
    fn add_to(&self, object: &mut Value) {
        match self {
            Self::File { path, line, column, .. } => {
                object["place"] = format!("{}:{line}:{column}", path.display()).into();
                (object["line"], object["column"]) = ((*line).into(), (*column).into());
            }
            Self::Override(text) => object["place"] = text.as_str().into(),
        }
    }
}

impl Mistake {
    fn json(&self) -> Value {
        let mut object = json!({ "code": "plan::run_file", "message": self.message, "hint": self.hint });
        self.place.iter().for_each(|place| place.add_to(&mut object));
        object
    }
}

impl Problem {
    fn json(&self) -> Value {
        let (code, message) = (self.cause.code(), self.cause.to_string());
        let mut object =
            json!({ "stage": self.stage, "code": code, "message": message, "hint": self.cause.hint() });
        self.place.iter().for_each(|place| place.add_to(&mut object));
        object
    }
}

/// With its stage and its place.
impl From<&Problem> for Reported {
    fn from(problem: &Problem) -> Self {
        Self::from(&problem.cause).saying(problem.to_string())
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

/// Why a run file cannot become a plan.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "plan", class = usage)]
pub enum PlanError {
    #[error("cannot read the run file {path}")]
    #[hint(format!("it is a folder; name the run file in it, such as {}", path.join("run.toml").display()) if path.is_dir())]
    #[hint = "the run files that come with mcprl are in `pipelines/`"]
    Read { path: PathBuf, source: std::io::Error },
    /// The mistakes of a run file, each with its line.
    #[error("{}", several(.0.iter().map(|mistake| (mistake.to_string(), mistake.hint.clone()))))]
    #[diagnostic(code = "run_file", problems = _0.iter().map(Mistake::json).collect())]
    #[hint(_0.last().and_then(|mistake| mistake.hint.clone()))]
    Mistakes(Vec<Mistake>),
    #[error(
        "`{path}` is \"unconfirmed\": an agent calls every tool that it sees, and nobody has said what calls change"
    )]
    #[hint = "write \"read-only\" if calls change nothing, or how each episode gets data of its own: \"snapshot-dir\", \
        \"fresh-process\", \"fresh-session\", \"reset-tool\", or `before_episode` for a database (docs/guides/servers.md)"]
    Unconfirmed { path: String },
    /// Stages that should run would fail.
    #[error("{}", several(.0.iter().map(|problem| (problem.to_string(), problem.cause.hint()))))]
    #[diagnostic(code = _0.first().map_or("plan::refused", |first| first.cause.code()))]
    #[diagnostic(problems = _0.iter().map(Problem::json).collect())]
    #[hint(_0.last().and_then(|problem| problem.cause.hint()))]
    Refused(Vec<Problem>),
    #[error("stage \"{stage}\" reported no metric `{metric}`, which loop \"{in_loop}\" waits for")]
    #[diagnostic(class = work)]
    #[hint = "the stage should report the metric `{metric}` as a finite number"]
    NoMetric { stage: String, metric: String, in_loop: String },
    #[error("this run has no stage \"{name}\"")]
    #[hint(hint.clone())]
    NoStage { name: String, hint: String },
    #[error("stage \"{stage}\" is {class}: running it again gives the same result")]
    #[hint = "set another `seed` for other random choices"]
    NotResampled { stage: String, class: &'static str },
    #[error("stage \"{stage}\" has no iteration {iteration}")]
    #[hint("its iterations are 1 to {last}" if let Some(last) = last)]
    #[hint = "it is not in a loop"]
    NoIteration { stage: String, iteration: u32, last: Option<u32> },
    #[error("{}", match names.len() {
        0 => "`--iterations`: the run file has no loop".to_owned(),
        _ => format!("`--iterations`: the run file has several loops, {}", names.join(", ")),
    })]
    #[diagnostic(class = usage)]
    #[hint("`--set loop.{first}.iterations=…` says it of one" if let Some(first) = names.first())]
    #[hint = "`extends = \"standard\"` has one"]
    NotOneLoop { names: Vec<String> },
    #[error("`--no-start`: the run file has no stage `start`")]
    #[diagnostic(class = usage)]
    #[hint = "`mcprl plan --expand` shows its stages; `--set stages.NAME=false` leaves one out"]
    NoStart,
}

/// The first mistake without a prefix, the others as separate errors. Each but the last has its hint.
fn several(mistakes: impl Iterator<Item = (String, Option<String>)>) -> String {
    let mut all: Vec<(String, Option<String>)> = mistakes.collect();
    all.last_mut().and_then(|(_, hint)| hint.take());
    let hinted = |(mistake, hint): (String, Option<String>)| match hint {
        Some(hint) => format!("{mistake}\nhint: {hint}"),
        None => mistake,
    };
    all.into_iter().map(hinted).collect::<Vec<_>>().join("\nerror: ")
}
