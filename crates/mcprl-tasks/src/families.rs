//! Families of questions: what to ask about a server's data, how to find the answer, and how to phrase the
//! question.
//!
//! `declaration.rs` declares the file. This module resolves and checks all of it, so that [`Families`] needs
//! no further checks: every name is known, every call is complete, every list has an item. It does not talk
//! to a server.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value};

use super::{
    TaskError,
    declaration::{self, Alternatives, Axis, CallDeclaration, FamilyDeclaration, Holdout, Rows, Take},
    file,
    phrase::{Binding, Phrase, Scope, Template, WordChoices},
    results::Results,
};
use crate::{chat::ToolCall, error::did_you_mean};

pub use super::{candidate::Check, declaration::AnswerShape};

/// A resolved families file.
#[derive(Debug, Clone, PartialEq)]
pub struct Families {
    pub(super) results: Results,
    /// How the message of a failed call begins that works when it is made again.
    retry: Option<String>,
    pub(super) entities: Vec<EntityList>,
    /// Shows the state of the server.
    pub(super) state: Option<CallTemplate>,
    families: Vec<Family>,
}

/// Entities listed by a tool call on the live server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EntityList {
    pub name: String,
    pub call: CallTemplate,
    /// Rows per call. The call repeats with a larger `{offset}` until a page has fewer rows.
    pub page: Option<usize>,
    /// Placeholders, and the result field bound to each (by position if unnamed).
    pub columns: Vec<(String, Option<String>)>,
}

/// One family of questions.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub name: String,
    /// Never in training: split C.
    pub holdout: bool,
    pub check: Check,
    /// Indices of the entity lists of a question; all combinations are used.
    pub(super) entities: Vec<usize>,
    pub(super) solve: Vec<Step>,
    pub(super) answer: Answer,
    pub(super) phrasings: Phrase,
}

/// A call of the reference solution, and what later calls take from its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub call: CallTemplate,
    /// Names, and the result field bound to each; the first if unnamed.
    pub(super) take: Vec<(String, Option<String>)>,
    pub(super) rows: Rows,
    /// Made for every value of this list.
    pub(super) each: Option<String>,
}

/// Where the answer is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// In what the calls took.
    Taken(Phrase),
    /// In the last result.
    Read { read: AnswerShape, field: Option<String> },
}

/// A tool call to be filled in with an entity.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallTemplate {
    pub tool: String,
    arguments: Vec<(String, Argument)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Argument {
    Text(Phrase),
    Plain(Value),
    List(Vec<Argument>),
    Table(Vec<(String, Argument)>),
}

impl CallTemplate {
    pub fn fill(&self, binding: &Binding) -> ToolCall {
        ToolCall { name: self.tool.clone(), arguments: table(&self.arguments, binding) }
    }
}

fn table(fields: &[(String, Argument)], binding: &Binding) -> Map<String, Value> {
    fields.iter().map(|(name, value)| (name.clone(), value.fill(binding))).collect()
}

impl Argument {
    fn fill(&self, binding: &Binding) -> Value {
        match self {
            Self::Text(phrase) => phrase.fill(binding).into(),
            Self::Plain(value) => value.clone(),
            Self::List(items) => items.iter().map(|item| item.fill(binding)).collect(),
            Self::Table(fields) => Value::Object(table(fields, binding)),
        }
    }
}

impl Families {
    pub fn load(path: &Path) -> Result<Self, TaskError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TaskError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &file::name(path))
    }

    /// `file` is the name used in errors.
    pub fn parse(text: &str, file: &str) -> Result<Self, TaskError> {
        let file = file.to_owned();
        let declared: declaration::File = toml::from_str(text).map_err(|cause| TaskError::Syntax {
            file: file.clone(),
            problem: cause.to_string().trim_end().to_owned(),
        })?;
        Self::look_up(&declared).map_err(|Mistake { place, problem }| TaskError::Families {
            file,
            place,
            problem,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.families.iter()
    }

    fn look_up(file: &declaration::File) -> Result<Self, Mistake> {
        let words = Words::of("words", &file.words)?;
        let mut entities = Vec::new();
        for (name, declared) in &file.entities {
            let place = format!("entities.{name}");
            let offset = if declared.page.is_some() { vec!["offset"] } else { Vec::new() };
            let scope = words.scope(&[], offset);
            let call =
                call_template(&declared.call, file, &scope).map_err(|problem| wrong(&place, problem))?;
            entities.push(EntityList {
                name: name.clone(),
                call,
                page: declared.page,
                columns: declared.columns.pairs().ok_or_else(|| wrong(&place, "`columns` is empty"))?,
            });
        }
        let mut families: Vec<Family> = Vec::new();
        for declared in &file.families {
            for cell in cells(declared, file)? {
                let family =
                    Builder { file, words: &words, entities: &entities, declared, cell: &cell }.build()?;
                if families.iter().any(|other| other.name == family.name) {
                    let place = format!("family \"{}\"", family.name);
                    return Err(wrong(place, "the name is taken by another family"));
                }
                families.push(family);
            }
        }
        if families.is_empty() {
            return Err(wrong("families", "none is declared"));
        }
        let state =
            file.state.as_ref().map(|state| call_template(&state.call, file, &words.scope(&[], Vec::new())));
        let state = state.transpose().map_err(|problem| wrong("state", problem))?;
        let (results, retry) = (file.results.clone(), file.errors.retry.clone());
        Ok(Self { results, retry, entities, state, families })
    }

    /// Whether a call that failed with this message is made once more.
    pub(super) fn is_retried(&self, message: &str) -> bool {
        self.retry.as_ref().is_some_and(|retry| message.trim_start().starts_with(retry))
    }
}

/// A problem and its location in the file.
struct Mistake {
    place: String,
    problem: String,
}

fn wrong(place: impl Into<String>, problem: impl Into<String>) -> Mistake {
    Mistake { place: place.into(), problem: problem.into() }
}

/// Words with their templates parsed.
struct Words(Vec<(String, WordChoices)>);

impl Words {
    fn of(place: &str, declared: &BTreeMap<String, Alternatives>) -> Result<Self, Mistake> {
        let word = |(name, alternatives): (&String, &Alternatives)| {
            let word = parsed(alternatives).map_err(|problem| wrong(format!("{place}.{name}"), problem))?;
            Ok((name.clone(), word))
        };
        declared.iter().map(word).collect::<Result<_, _>>().map(Self)
    }

    /// Words of an inner scope hide those of an outer one.
    fn scope<'a>(&'a self, inner: &[&'a Self], entities: Vec<&'a str>) -> Scope<'a> {
        let all = std::iter::once(self).chain(inner.iter().copied());
        let words = all.flat_map(|words| words.0.iter().map(|(name, word)| (name.as_str(), word))).collect();
        Scope::new(words, entities)
    }
}

fn parsed(alternatives: &Alternatives) -> Result<WordChoices, String> {
    let (train, unseen) = alternatives.lists();
    if train.is_empty() {
        return Err("the list of alternatives is empty".into());
    }
    let templates = |texts: &[String]| {
        texts
            .iter()
            .map(|text| Template::parse(text).map_err(|why| format!("\"{text}\": {why}")))
            .collect::<Result<_, String>>()
    };
    Ok(WordChoices { train: templates(train)?, unseen: templates(unseen)? })
}

/// One value per axis of a family; none for a family without axes.
type Cell<'a> = Vec<(&'a str, &'a str, &'a Axis)>;

fn cells<'a>(declared: &'a FamilyDeclaration, file: &'a declaration::File) -> Result<Vec<Cell<'a>>, Mistake> {
    let place = || format!("family \"{}\"", declared.name);
    let mut cells: Vec<Cell<'a>> = vec![Vec::new()];
    for axis in &declared.over {
        let values = file.axes.get(axis).ok_or_else(|| {
            wrong(place(), format!("over: {}", unknown("axis", axis, file.axes.keys().map(String::as_str))))
        })?;
        cells = cells
            .iter()
            .flat_map(|cell| {
                values.iter().map(move |(value, part)| {
                    cell.iter().copied().chain([(axis.as_str(), value.as_str(), part)]).collect()
                })
            })
            .collect();
    }
    let Some(wanted) = &declared.cells else { return Ok(cells) };
    let [first, second] = declared.over.as_slice() else {
        return Err(wrong(place(), "`cells` is for a family over two axes"));
    };
    for (row, columns) in wanted {
        for (axis, value) in
            std::iter::once((first, row)).chain(columns.iter().map(|column| (second, column)))
        {
            if !file.axes[axis].contains_key(value) {
                let known = file.axes[axis].keys().map(String::as_str);
                return Err(wrong(place(), format!("cells: {}", unknown(axis, value, known))));
            }
        }
    }
    // Cells have a value of each of the two axes.
    let columns = |cell: &Cell| wanted.get(cell[0].1).into_iter().flatten();
    cells.retain(|cell| columns(cell).any(|column| column == cell[1].1));
    Ok(cells)
}

fn unknown<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let hint = did_you_mean(name, known).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    format!("there is no {what} `{name}`{hint}")
}

/// Builds one family from its declaration and the values of its axes.
struct Builder<'a> {
    file: &'a declaration::File,
    words: &'a Words,
    entities: &'a [EntityList],
    declared: &'a FamilyDeclaration,
    cell: &'a Cell<'a>,
}

impl Builder<'_> {
    fn build(&self) -> Result<Family, Mistake> {
        let declared = self.declared;
        let name = self.cell.iter().fold(declared.name.clone(), |name, (axis, value, _)| {
            name.replace(&format!("{{{axis}}}"), value)
        });
        let place = format!("family \"{name}\"");
        let at = |what: &str| {
            let place = place.clone();
            let what = what.to_owned();
            move |problem: String| wrong(place, format!("{what}: {problem}"))
        };

        let parts: Vec<&Axis> = self.cell.iter().map(|(_, _, part)| *part).collect();
        let own = Words::of(&place, &declared.words)?;
        let of_axes = self
            .cell
            .iter()
            .map(|(axis, value, part)| Words::of(&format!("axes.{axis}.{value}"), &part.words))
            .collect::<Result<Vec<_>, _>>()?;
        let inner: Vec<&Words> = of_axes.iter().chain([&own]).collect();

        let mut indices = Vec::new();
        for name in parts.iter().flat_map(|part| &part.entities).chain(&declared.entities) {
            let known = || self.entities.iter().map(|list| list.name.as_str());
            let index = self.entities.iter().position(|list| list.name == *name);
            indices.push(index.ok_or_else(|| at("entities")(unknown("entity list", name, known())))?);
        }
        let bound: Vec<&str> = indices
            .iter()
            .flat_map(|index| self.entities[*index].columns.iter().map(|(column, _)| column.as_str()))
            .collect();

        let scope = self.words.scope(&inner, bound.clone());
        let word = parsed(&declared.phrasings).map_err(at("phrasings"))?;
        let phrasings = scope.choice(&word).map_err(at("phrasings"))?;
        let mut solve: Vec<Step> = Vec::new();
        for call in declared.solve.calls() {
            let taken: Vec<String> = solve.iter().flat_map(Step::names).map(str::to_owned).collect();
            let names = bound.iter().copied().chain(taken.iter().map(String::as_str)).collect();
            let scope = self.words.scope(&inner, names);
            solve.push(step(call, self.file, &scope, &solve).map_err(at("solve"))?);
        }
        if solve.is_empty() {
            return Err(at("solve")("a call is missing".into()));
        }
        let read = declared.read.unwrap_or_default();
        let answer = match &declared.answer {
            None => Answer::Read { read, field: declared.field.clone() },
            Some(text) => {
                let taken = solve.iter().flat_map(Step::names);
                let scope = self.words.scope(&inner, bound.iter().copied().chain(taken).collect());
                let phrase = scope.parse(text).map_err(at("answer"))?;
                if phrase.leaves_a_choice() {
                    return Err(at("answer")("it cannot leave a choice".into()));
                }
                Answer::Taken(phrase)
            }
        };
        let declared_check = parts.iter().find_map(|part| part.check).or(declared.check);
        let check =
            declared_check.unwrap_or(if read == AnswerShape::Column { Check::Set } else { Check::Text });
        let holdout = match &declared.holdout {
            Holdout::Whole(holdout) => *holdout,
            Holdout::Cells(names) => names.contains(&name),
        };
        Ok(Family { name, holdout, check, entities: indices, solve, answer, phrasings })
    }
}

fn step(
    declared: &CallDeclaration,
    file: &declaration::File,
    scope: &Scope,
    earlier: &[Step],
) -> Result<Step, String> {
    let rows = match &declared.rows {
        None => Rows::default(),
        Some(text) => {
            let name = scope.parse(text)?.fill(&Binding::new());
            let known = Rows::ALL.iter().find(|(known, _)| *known == name);
            let list = || Rows::ALL.map(|(name, _)| name).join(", ");
            known.ok_or_else(|| format!("`rows` should be one of {}, found \"{name}\"", list()))?.1
        }
    };
    if let Some(list) = &declared.each {
        // With a word in `rows`, some families take one row where others take all.
        let taken = || earlier.iter().flat_map(Step::names);
        if !taken().any(|name| name == list) {
            return Err(format!("each: {}", unknown("taken value", list, taken())));
        }
    }
    let take = match &declared.take {
        None => Vec::new(),
        Some(Take::First(name)) => vec![(name.clone(), None)],
        Some(Take::Fields(fields)) => {
            fields.iter().map(|(name, field)| (name.clone(), Some(field.clone()))).collect()
        }
    };
    Ok(Step { call: call_template(declared, file, scope)?, take, rows, each: declared.each.clone() })
}

impl Step {
    /// The names that later calls can use.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.take.iter().map(|(name, _)| name.as_str())
    }
}

fn call_template(
    declared: &CallDeclaration,
    file: &declaration::File,
    scope: &Scope,
) -> Result<CallTemplate, String> {
    let [(name, arguments)] = declared.call.iter().collect::<Vec<_>>()[..] else {
        return Err("a call should be one tool with its arguments: { tool = { argument = \"…\" } }".into());
    };
    let short = file.calls.get(name);
    let arguments = match (short, arguments) {
        (Some(short), Value::String(_)) => vec![(short.argument.clone(), argument(arguments, scope)?)],
        (_, Value::Object(fields)) => arguments_of(fields, scope)?,
        (None, Value::String(_)) => {
            let known = file.calls.keys().map(String::as_str);
            return Err(format!("{} under [calls]", unknown("call", name, known)));
        }
        _ => return Err(format!("the arguments of `{name}` should be a table")),
    };
    Ok(CallTemplate { tool: short.map_or(name, |short| &short.tool).clone(), arguments })
}

fn arguments_of(fields: &Map<String, Value>, scope: &Scope) -> Result<Vec<(String, Argument)>, String> {
    fields.iter().map(|(name, value)| Ok((name.clone(), argument(value, scope)?))).collect()
}

fn argument(value: &Value, scope: &Scope) -> Result<Argument, String> {
    Ok(match value {
        Value::String(text) => {
            let phrase = scope.parse(text).map_err(|why| format!("\"{text}\": {why}"))?;
            if phrase.leaves_a_choice() {
                return Err(format!("\"{text}\": a call cannot leave a choice"));
            }
            Argument::Text(phrase)
        }
        Value::Array(items) => {
            Argument::List(items.iter().map(|item| argument(item, scope)).collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => Argument::Table(arguments_of(fields, scope)?),
        plain => Argument::Plain(plain.clone()),
    })
}
