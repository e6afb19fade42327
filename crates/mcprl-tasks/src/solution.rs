//! The reference solution of a question, call by call.

use std::collections::{BTreeMap, VecDeque};

use super::{
    declaration::{AnswerShape, Rows},
    families::{Answer, Families, Family, Step},
    phrase::Binding,
};
use crate::chat::ToolCall;

/// Why a question was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Dropped {
    /// The reference call returned an error.
    Failed,
    /// The result is empty.
    Unanswerable,
    /// Several rows instead of one, or one sentence with two answers.
    Ambiguous,
    /// The server shows only part of the answer's rows.
    Truncated,
    /// The sentence already exists.
    Duplicate,
}

impl Dropped {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Steps under way: gives one call after the other and takes what later calls need from the results.
pub(super) struct Solution<'a> {
    families: &'a Families,
    steps: std::slice::Iter<'a, Step>,
    step: Option<&'a Step>,
    /// Calls of the current step that are left.
    calls: VecDeque<ToolCall>,
    known: Binding,
    /// Values that were taken from every row.
    lists: BTreeMap<String, Vec<String>>,
    /// The last result.
    text: String,
}

impl<'a> Solution<'a> {
    pub fn new(families: &'a Families, steps: &'a [Step], known: Binding) -> Self {
        let (steps, lists) = (steps.iter(), BTreeMap::new());
        Self { families, steps, step: None, calls: VecDeque::new(), known, lists, text: String::new() }
    }

    /// The next call; none at the end.
    pub fn call(&mut self) -> Option<ToolCall> {
        while self.calls.is_empty() {
            let step = self.steps.next()?;
            self.step = Some(step);
            match step.each.as_ref().and_then(|name| Some((name, self.lists.get(name)?))) {
                None => self.calls.push_back(step.call.fill(&self.known)),
                Some((name, values)) => {
                    let mut known = self.known.clone();
                    for value in values {
                        known.insert(name.clone(), value.clone());
                        self.calls.push_back(step.call.fill(&known));
                    }
                }
            }
        }
        self.calls.pop_front()
    }

    /// Takes the result of the last call.
    ///
    /// # Errors
    /// If it has not the rows that the step wants.
    pub fn result(&mut self, text: String) -> Result<(), Dropped> {
        let Some(step) = self.step.filter(|step| !step.take.is_empty()) else {
            self.text = text;
            return Ok(());
        };
        let rows = self.families.results.read(&text);
        for (name, field) in &step.take {
            let position = rows.position(field.as_deref()).ok_or(Dropped::Unanswerable)?;
            let cell = |row: usize| match rows.field(row, position) {
                Some(value) if !value.is_empty() && value != "NULL" => Ok(value.to_owned()),
                _ => Err(Dropped::Unanswerable),
            };
            let last = rows.rows.len().checked_sub(1).ok_or(Dropped::Unanswerable)?;
            let value = match step.rows {
                Rows::First => cell(0)?,
                Rows::Only if last > 0 || rows.more => return Err(Dropped::Ambiguous),
                Rows::Last | Rows::All if rows.more => return Err(Dropped::Truncated),
                Rows::Only | Rows::Last => cell(last)?,
                Rows::All => {
                    let values = (0..=last).map(cell).collect::<Result<Vec<_>, _>>()?;
                    let all = values.join(", ");
                    self.lists.insert(name.clone(), values);
                    all
                }
            };
            self.known.insert(name.clone(), value);
        }
        self.text = text;
        Ok(())
    }

    /// The answer of the family.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn answer(&self, family: &Family) -> Result<String, Dropped> {
        match &family.answer {
            Answer::Taken(phrase) => {
                Some(phrase.fill(&self.known)).filter(|text| !text.is_empty()).ok_or(Dropped::Unanswerable)
            }
            Answer::Read { read, field } => self.families.answer(&self.text, *read, field.as_deref()),
        }
    }
}

impl Families {
    /// Reads an answer from a result.
    fn answer(&self, text: &str, read: AnswerShape, field: Option<&str>) -> Result<String, Dropped> {
        if read == AnswerShape::Text {
            let text = text.trim();
            return if text.is_empty() { Err(Dropped::Unanswerable) } else { Ok(text.to_owned()) };
        }
        let rows = self.results.read(text);
        let position = rows.position(field).ok_or(Dropped::Unanswerable)?;
        let mut values = Vec::new();
        for row in 0..rows.rows.len() {
            match rows.field(row, position) {
                Some(value) if !value.is_empty() && value != "NULL" => values.push(value),
                _ => return Err(Dropped::Unanswerable),
            }
        }
        match (read, values.as_slice()) {
            (_, []) => Err(Dropped::Unanswerable),
            (_, _) if rows.more && read == AnswerShape::Column => Err(Dropped::Truncated),
            (AnswerShape::Column, values) => Ok(values.join(", ")),
            (_, [value]) if !rows.more => Ok((*value).to_owned()),
            _ => Err(Dropped::Ambiguous),
        }
    }
}
