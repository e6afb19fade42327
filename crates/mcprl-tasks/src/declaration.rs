//! The families file as written (TOML): its tables and keys, but not how they combine.
//!
//! ```toml
//! [results]                       # how this server's results are read
//! format = "table"
//! separator = " | "
//!
//! [calls]                         # short names for tools: `query = "…"` wherever a call is asked for
//! query = { tool = "run_query", argument = "sql" }
//!
//! [entities.project]              # what questions are about, listed by the live server
//! call = { query = "SELECT name FROM projects" }
//! columns = ["project"]
//!
//! [axes.fact.cost]                # values that families are combined from: words, entities, check
//! check = "number"
//! column = "cost"
//! noun = ["cost", "price"]
//!
//! [[families]]
//! name = "project_{fact}"
//! over = ["fact"]
//! entities = ["project"]
//! solve = { query = "SELECT {column} FROM projects WHERE name = {project:quoted}" }
//! phrasings = { train = ["What is the {noun} of {project}?"], unseen = ["{project} has what {noun}?"] }
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{candidate::Check, results::Results};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub results: Results,
    #[serde(default)]
    pub errors: ErrorsDeclaration,
    #[serde(default)]
    pub calls: BTreeMap<String, ToolAlias>,
    #[serde(default)]
    pub entities: BTreeMap<String, EntityDeclaration>,
    pub state: Option<StateDeclaration>,
    #[serde(default)]
    pub words: BTreeMap<String, Alternatives>,
    #[serde(default)]
    pub axes: BTreeMap<String, BTreeMap<String, Axis>>,
    #[serde(default)]
    pub families: Vec<FamilyDeclaration>,
}

/// What to do when a call fails.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ErrorsDeclaration {
    /// A failed call whose message begins with this is made once more.
    pub retry: Option<String>,
}

/// A call whose result shows the state of the server. What the reference solution leaves is what an episode must leave.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateDeclaration {
    pub call: CallDeclaration,
}

/// A short name for a tool, and the argument that a plain string sets.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolAlias {
    pub tool: String,
    pub argument: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntityDeclaration {
    pub call: CallDeclaration,
    pub page: Option<usize>,
    pub columns: Columns,
}

/// Placeholders by position, or by the name of the result's field.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`columns` should be a list of names, or a table from name to field")]
pub(super) enum Columns {
    Positions(Vec<String>),
    Fields(BTreeMap<String, String>),
}

impl Columns {
    pub fn pairs(&self) -> Option<Vec<(String, Option<String>)>> {
        let pairs: Vec<_> = match self {
            Self::Positions(names) => names.iter().map(|name| (name.clone(), None)).collect(),
            Self::Fields(fields) => {
                fields.iter().map(|(name, field)| (name.clone(), Some(field.clone()))).collect()
            }
        };
        (!pairs.is_empty()).then_some(pairs)
    }
}

/// `{ tool = { argument = … } }` or `{ short = "…" }`.
#[derive(Debug, Deserialize)]
pub(super) struct CallDeclaration {
    /// Names for fields of the result, for later calls.
    pub take: Option<Take>,
    /// The rows to take from: the name of a [`Rows`], which may be in a word.
    pub rows: Option<String>,
    /// The call is made for every value of this name, which an earlier call took from all rows.
    pub each: Option<String>,
    #[serde(flatten)]
    pub call: Map<String, Value>,
}

/// A name for the first field, or names for fields.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`take` should be a name, or a table from name to field")]
pub(super) enum Take {
    First(String),
    Fields(BTreeMap<String, String>),
}

/// The rows of a result that values are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rows {
    /// The only row; more are an error.
    #[default]
    Only,
    First,
    Last,
    /// Every row; the values are a list.
    All,
}

impl Rows {
    pub const ALL: [(&str, Self); 4] =
        [("only", Self::Only), ("first", Self::First), ("last", Self::Last), ("all", Self::All)];
}

/// One call, or several in order.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "it should be a call, or a list of calls")]
pub(super) enum Solve {
    One(CallDeclaration),
    Several(Vec<CallDeclaration>),
}

impl Solve {
    pub fn calls(&self) -> &[CallDeclaration] {
        match self {
            Self::One(call) => std::slice::from_ref(call),
            Self::Several(calls) => calls,
        }
    }
}

/// Alternatives for a word.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a word should be a text, a list of texts, or { train = […], unseen = […] }")]
pub(super) enum Alternatives {
    One(String),
    Several(Vec<String>),
    Split { train: Vec<String>, unseen: Vec<String> },
}

impl Alternatives {
    /// For training, and held out from training.
    pub fn lists(&self) -> (&[String], &[String]) {
        match self {
            Self::One(text) => (std::slice::from_ref(text), &[]),
            Self::Several(texts) => (texts, &[]),
            Self::Split { train, unseen } => (train, unseen),
        }
    }
}

/// One value of an axis: part of every family that uses it. All other keys are words.
#[derive(Debug, Deserialize)]
pub(super) struct Axis {
    #[serde(default)]
    pub entities: Vec<String>,
    pub check: Option<Check>,
    #[serde(flatten)]
    pub words: BTreeMap<String, Alternatives>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FamilyDeclaration {
    pub name: String,
    /// Axes whose values are combined; `{axis}` in `name` is the value.
    #[serde(default)]
    pub over: Vec<String>,
    /// For two axes, the combinations that exist; all if absent.
    pub cells: Option<BTreeMap<String, Vec<String>>>,
    #[serde(default)]
    pub holdout: Holdout,
    #[serde(default)]
    pub entities: Vec<String>,
    pub check: Option<Check>,
    pub read: Option<AnswerShape>,
    /// The field of the result that is the answer; the first if absent.
    pub field: Option<String>,
    /// The answer, from what the calls took. Without it, it is read from the last result.
    pub answer: Option<String>,
    pub solve: Solve,
    pub phrasings: Alternatives,
    #[serde(default)]
    pub words: BTreeMap<String, Alternatives>,
}

/// What is held out: the family, or these of the families that its axes produce.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`holdout` should be true, false, or a list of family names")]
pub(super) enum Holdout {
    Whole(bool),
    Cells(Vec<String>),
}

impl Default for Holdout {
    fn default() -> Self {
        Self::Whole(false)
    }
}

/// How the answer is read from the last result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerShape {
    /// One field of the only row.
    #[default]
    Cell,
    /// One field of every row, joined by `, `.
    Column,
    /// The whole text.
    Text,
}
