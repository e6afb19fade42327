//! Reads typed values from the merged tree and collects all mistakes, so that they are reported together.
//!
//! A table that is a struct is checked against the struct's JSON Schema, the one that `mcprl schema` prints.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    error::{Location, Mistake, PlanError},
    layers::{Entry, EntryPart},
    section::schema_of,
};
use crate::{error::did_you_mean, json::json_type};

pub struct Reader {
    mistakes: RefCell<Vec<Mistake>>,
    /// Lines of the file that hold a secret.
    secret_lines: RefCell<BTreeSet<usize>>,
}

impl Reader {
    /// Starts with these mistakes.
    pub fn new(mistakes: Vec<Mistake>) -> Self {
        Self { mistakes: mistakes.into(), secret_lines: RefCell::default() }
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
                let secret_lines = self.secret_lines.borrow();
                for Mistake { place, .. } in &mut mistakes {
                    let line = place.as_ref().and_then(Location::line);
                    if line.is_some_and(|line| secret_lines.contains(&line)) {
                        *place = place.take().map(Location::without_values);
                    }
                }
                Err(PlanError::Mistakes(mistakes))
            }
        }
    }

    pub fn clean(&self) -> bool {
        self.mistakes.borrow().is_empty()
    }

    /// Notes a mistake at an entry. Always returns `None`, to end a chain.
    pub fn wrong<T>(
        &self,
        entry: &Entry<'_>,
        part: EntryPart,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> Option<T> {
        self.note(Mistake { message: message.into(), place: entry.place(part), hint })
    }

    /// Like `wrong`, for a value that must not be shown: points at the key and masks the quoted text of its
    /// line, in every mistake of that line.
    pub fn wrong_secret<T>(&self, entry: &Entry<'_>, message: String, hint: String) -> Option<T> {
        let place = entry.place(EntryPart::Key).map(Location::without_values);
        self.secret_lines.borrow_mut().extend(place.as_ref().and_then(Location::line));
        self.note(Mistake { message, place, hint: Some(hint) })
    }

    /// Always returns `None`.
    fn note<T>(&self, mistake: Mistake) -> Option<T> {
        let mut mistakes = self.mistakes.borrow_mut();
        if !mistakes.contains(&mistake) {
            mistakes.push(mistake);
        }
        None
    }

    pub fn table<'e>(&self, entry: &Entry<'e>) -> Option<BTreeMap<&'e str, Entry<'e>>> {
        entry.fields().or_else(|| self.mistyped(entry, "a table"))
    }

    pub fn text<'e>(&self, entry: &Entry<'e>) -> Option<&'e str> {
        entry.text().or_else(|| self.mistyped(entry, "a string"))
    }

    /// Checks a value against the schema of `T` and notes all mistakes. Keys with mistakes are left out; there
    /// is no result if one of them is required.
    pub fn read<T: JsonSchema + DeserializeOwned>(&self, entry: &Entry<'_>) -> Option<T> {
        let found = serde_json::from_value(self.checked(entry, &schema_of::<T>())?);
        // If there are mistakes, they are the cause.
        let unforeseen = |cause: serde_json::Error| {
            self.clean().then(|| self.wrong::<()>(entry, EntryPart::Value, cause.to_string(), None))
        };
        found.map_err(unforeseen).ok()
    }

    fn checked(&self, entry: &Entry<'_>, schema: &Value) -> Option<Value> {
        let kind = schema["type"].as_str().unwrap_or_default();
        if kind == "object" && entry.value.as_dict().is_some() {
            return self.checked_table(entry, schema);
        }
        let value = entry.json();
        let (fits, expected) = match kind {
            "integer" => (value.is_i64() || value.is_u64(), "an integer"),
            "number" => (value.is_number(), "a number"),
            "string" => (value.is_string(), "a string"),
            "boolean" => (value.is_boolean(), "a boolean"),
            "array" => (value.is_array(), "a list of strings"),
            "object" => (false, "a table"),
            _ => (true, ""),
        };
        if !fits {
            return self.mistyped(entry, expected);
        }
        let bound = |name: &str| value.as_f64().zip(schema[name].as_f64());
        if let Some((found, least)) = bound("minimum").filter(|(found, least)| found < least) {
            let message = format!("`{}` should be at least {least}, found {found}", entry.path);
            return self.wrong(entry, EntryPart::Value, message, None);
        }
        if let Some((_, most)) = bound("maximum").filter(|(found, most)| found > most) {
            let message = format!("`{}` should be at most {most}", entry.path);
            return self.wrong(entry, EntryPart::Value, message, None);
        }
        // The caller explains which choices there are.
        if schema["oneOf"].as_array().is_some_and(|choices| !choices.iter().any(|one| one["const"] == value))
        {
            return None;
        }
        if kind == "array" {
            let items = entry.items().map(|item| self.checked(&item, &schema["items"]));
            return items.collect::<Vec<_>>().into_iter().collect();
        }
        Some(value)
    }

    fn checked_table(&self, entry: &Entry<'_>, schema: &Value) -> Option<Value> {
        let (none, others) = (Map::new(), &schema["additionalProperties"]);
        let known = schema["properties"].as_object().unwrap_or(&none);
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        let meant = if *others == false { self.only(entry, &names) } else { Vec::new() };
        let fields = entry.fields()?;
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) && !meant.contains(&name) {
                let about = known[name]["description"].as_str();
                let message = format!("`{}` needs `{name}`", entry.path);
                self.wrong::<()>(
                    entry,
                    EntryPart::Key,
                    message,
                    about.map(|about| format!("{name}: {about}")),
                );
            }
        }
        let rules = fields.iter().map(|(name, field)| (name, field, known.get(*name).unwrap_or(others)));
        let checked = |(name, field, rule): (&&str, &Entry<'_>, &Value)| {
            Some(((*name).to_owned(), self.checked(field, rule)?))
        };
        Some(Value::Object(rules.filter(|(_, _, rule)| **rule != false).filter_map(checked).collect()))
    }

    /// Notes all unknown keys of a table. Returns the known keys that these probably meant, so that they are
    /// not also reported as missing.
    pub fn only<'k>(&self, table: &Entry<'_>, known: &[&'k str]) -> Vec<&'k str> {
        let mut meant = Vec::new();
        let Some(fields) = self.table(table) else { return meant };
        for (name, entry) in fields.iter().filter(|(name, _)| !known.contains(name)) {
            let within =
                if table.path.is_empty() { "the run file".into() } else { format!("`{}`", table.path) };
            let near = did_you_mean(name, known.iter().copied());
            meant.extend(near);
            let hint = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            self.wrong::<()>(entry, EntryPart::Key, format!("unknown key `{name}` in {within}"), Some(hint));
        }
        meant
    }

    pub fn mistyped<T>(&self, entry: &Entry<'_>, expected: &str) -> Option<T> {
        let message = format!("`{}` should be {expected}, found {}", entry.path, json_type(&entry.json()));
        self.wrong(entry, EntryPart::Value, message, None)
    }
}
