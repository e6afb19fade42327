//! Reads typed values from the merged tree and collects all mistakes, so that they are reported together.

use std::{cell::RefCell, collections::BTreeMap};

use serde_json::Value;

use super::{
    error::{Location, Mistake, PlanError},
    layers::{Entry, Origin, RawValue},
    source::Source,
};
use crate::error::did_you_mean;

/// Which part of an entry a message points at.
#[derive(Clone, Copy)]
pub enum Part {
    Key,
    Value,
}

pub struct Reader<'a> {
    source: &'a Source,
    mistakes: RefCell<Vec<Mistake>>,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a Source) -> Self {
        Self { source, mistakes: RefCell::default() }
    }

    /// Returns the value, or all mistakes if there are any.
    pub fn finish<T>(&self, value: Option<T>) -> Result<T, PlanError> {
        let mut mistakes = self.mistakes.take();
        match value {
            Some(value) if mistakes.is_empty() => Ok(value),
            _ => {
                mistakes.sort_by_key(|mistake| match &mistake.place {
                    Some(Location::File { line, column, .. }) => (*line, *column),
                    _ => (usize::MAX, 0),
                });
                Err(PlanError::Mistakes(mistakes))
            }
        }
    }

    pub fn clean(&self) -> bool {
        self.mistakes.borrow().is_empty()
    }

    /// Notes a mistake at an entry. Always returns `None`, to end a chain.
    pub fn wrong<T>(&self, entry: &Entry, part: Part, message: String, hint: Option<String>) -> Option<T> {
        let place = match (&entry.origin, part) {
            (Origin::File { key, .. }, Part::Key) => Some(self.source.place(key.clone())),
            (Origin::File { value, .. }, Part::Value) => Some(self.source.place(value.clone())),
            (Origin::Override(text), _) => Some(Location::Override(text.clone())),
            (Origin::Card, _) => None,
        };
        self.note(Mistake { message, place, hint })
    }

    /// Like `wrong`, for a value that must not be shown: points at the key and masks the quoted text of its
    /// line.
    pub fn wrong_secret<T>(&self, entry: &Entry, message: String, hint: String) -> Option<T> {
        let place = match &entry.origin {
            Origin::File { key, .. } => Some(self.source.place(key.clone()).without_texts()),
            Origin::Override(text) => Some(Location::Override(text.clone())),
            Origin::Card => None,
        };
        self.note(Mistake { message, place, hint: Some(hint) })
    }

    /// Always returns `None`.
    pub fn note<T>(&self, mistake: Mistake) -> Option<T> {
        let mut mistakes = self.mistakes.borrow_mut();
        if !mistakes.contains(&mistake) {
            mistakes.push(mistake);
        }
        None
    }

    pub fn table<'e>(&self, entry: &'e Entry) -> Option<&'e BTreeMap<String, Entry>> {
        match &entry.value {
            RawValue::Table(fields) => Some(fields),
            _ => self.mistyped(entry, "a table"),
        }
    }

    pub fn text<'e>(&self, entry: &'e Entry) -> Option<&'e str> {
        match &entry.value {
            RawValue::Text(text) => Some(text),
            _ => self.mistyped(entry, "a string"),
        }
    }

    pub fn number(&self, entry: &Entry) -> Option<f64> {
        match entry.value {
            RawValue::Number(number) => Some(number),
            #[expect(clippy::cast_precision_loss, reason = "thresholds are small")]
            RawValue::Integer(number) => Some(number as f64),
            _ => self.mistyped(entry, "a number"),
        }
    }

    /// An integer of at least `least`.
    pub fn integer(&self, entry: &Entry, least: u64) -> Option<u64> {
        let RawValue::Integer(number) = entry.value else { return self.mistyped(entry, "an integer") };
        match u64::try_from(number).ok().filter(|number| *number >= least) {
            Some(number) => Some(number),
            None => {
                let message = format!("`{}` should be at least {least}, found {number}", entry.path);
                self.wrong(entry, Part::Value, message, None)
            }
        }
    }

    pub fn strings(&self, entry: &Entry) -> Option<Vec<String>> {
        let RawValue::List(items) = &entry.value else { return self.mistyped(entry, "a list of strings") };
        items.iter().map(|item| self.text(item).map(str::to_owned)).collect()
    }

    pub fn string_map(&self, entry: &Entry) -> Option<BTreeMap<String, String>> {
        let fields = self.table(entry)?;
        fields.iter().map(|(name, item)| Some((name.clone(), self.text(item)?.to_owned()))).collect()
    }

    /// Notes all unknown keys of a table. Returns the known keys that these probably meant, so that they are
    /// not also reported as missing.
    pub fn only<'k>(&self, table: &Entry, known: &[&'k str]) -> Vec<&'k str> {
        let mut meant = Vec::new();
        let Some(fields) = self.table(table) else { return meant };
        for (name, entry) in fields.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            let within =
                if table.path.is_empty() { "the run file".into() } else { format!("`{}`", table.path) };
            let near = did_you_mean(name, known.iter().copied());
            meant.extend(near);
            let hint = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            self.wrong::<()>(entry, Part::Key, format!("unknown key `{name}` in {within}"), Some(hint));
        }
        meant
    }

    fn mistyped<T>(&self, entry: &Entry, expected: &str) -> Option<T> {
        let message = format!("`{}` should be {expected}, found {}", entry.path, entry.value.named());
        self.wrong(entry, Part::Value, message, None)
    }
}

impl RawValue {
    /// The type with its article, for messages.
    pub fn named(&self) -> &'static str {
        match self {
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) => "an integer",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }

    pub fn json(&self) -> Value {
        match self {
            Self::Boolean(bit) => (*bit).into(),
            Self::Integer(number) => (*number).into(),
            Self::Number(number) => (*number).into(),
            Self::Text(text) => text.as_str().into(),
            Self::List(items) => items.iter().map(|item| item.value.json()).collect(),
            Self::Table(fields) => {
                Value::Object(fields.iter().map(|(name, item)| (name.clone(), item.value.json())).collect())
            }
        }
    }
}
