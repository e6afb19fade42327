//! The run file as text and as raw values, with the location of each key.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use figment::{
    Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};
use serde::{Deserialize, Serialize};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::error::{Location, Mistake, PlanError};

/// The position of one key of the run file, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpan {
    pub key: Range<usize>,
    pub value: Range<usize>,
}

/// A run file's text, its values, and the location of each. It is the layer below the overrides.
#[derive(Debug, Clone)]
pub struct RunFile {
    path: PathBuf,
    text: String,
    values: Dict,
    spans: BTreeMap<String, SourceSpan>,
    /// What it extends, which is the layer below it.
    base: Option<Box<RunFile>>,
}

/// A file that a run file extends, as a run keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendedFile {
    pub path: PathBuf,
    pub text: String,
}

/// `extends = "standard"` at the top of a run file.
pub const EXTENDS: &str = "extends";

/// Pipelines that the binary contains, by name.
const BUILT_IN: [(&str, &str); 1] = [("standard", include_str!("../../pipelines/standard.toml"))];

/// Most files that extend each other.
const DEEPEST: usize = 8;

/// Where the text of an extended file comes from.
type Load<'l> = &'l dyn Fn(&Path) -> std::io::Result<String>;

impl Provider for RunFile {
    fn metadata(&self) -> Metadata {
        Metadata::from("run file", self.path.as_path())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

impl RunFile {
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PlanError::Read { path: path.to_owned(), source })?;
        Self::parse(path, text)
    }

    /// Parses a run file. What it extends is read from disk.
    ///
    /// # Errors
    /// If one of the files is not TOML, or cannot be read.
    pub fn parse(path: &Path, text: String) -> Result<Self, PlanError> {
        Self::with_base(path, text, &|path| std::fs::read_to_string(path), DEEPEST)
    }

    /// The same, with a layer below all others.
    ///
    /// # Errors
    /// If that is not TOML.
    pub fn upon(mut self, text: &str) -> Result<Self, PlanError> {
        self.base = Some(Box::new(match self.base.take() {
            Some(base) => base.upon(text)?,
            None => Self::alone(Path::new("built in"), text.to_owned())?,
        }));
        Ok(self)
    }

    /// Parses a run file as a run keeps it, with what it extended then.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn stored(path: &Path, text: String, extended: &[ExtendedFile]) -> Result<Self, PlanError> {
        let load = |path: &Path| match extended.iter().find(|file| file.path == path) {
            Some(file) => Ok(file.text.clone()),
            None => std::fs::read_to_string(path),
        };
        Self::with_base(path, text, &load, DEEPEST)
    }

    fn with_base(path: &Path, text: String, load: Load<'_>, deepest: usize) -> Result<Self, PlanError> {
        let mut source = Self::alone(path, text)?;
        let Some(extends) = source.values.remove(EXTENDS) else { return Ok(source) };
        let wrong = |message: String, hint: &str| {
            let place = source.span(EXTENDS).map(|span| source.place(span.value.clone()));
            PlanError::Mistakes(vec![Mistake { message, place, hint: Some(hint.to_owned()) }])
        };
        let names = BUILT_IN.map(|(name, _)| format!("\"{name}\"")).join(", ");
        let hint = format!("built in: {names}; or the path of a run file, relative to this one");
        let Some(name) = extends.as_str() else {
            return Err(wrong("`extends` should be a string".into(), &hint));
        };
        if deepest == 0 {
            return Err(wrong(
                format!("more than {DEEPEST} files extend each other"),
                "does one extend itself?",
            ));
        }
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
        let (path, text) = match built_in {
            Some((name, text)) => {
                let path = PathBuf::from(format!("{name} (built in)"));
                // A run keeps the text that it began with.
                let text = load(&path).unwrap_or_else(|_| (*text).to_owned());
                (path, text)
            }
            None if name.ends_with(".toml") => {
                let path = super::absolute(&source.folder().join(name));
                match load(&path) {
                    Ok(text) => (path, text),
                    Err(cause) => return Err(wrong(format!("cannot read \"{name}\": {cause}"), &hint)),
                }
            }
            None => return Err(wrong(format!("there is no pipeline \"{name}\""), &hint)),
        };
        source.base = Some(Box::new(Self::with_base(&path, text, load, deepest - 1)?));
        Ok(source)
    }

    /// Without what it extends.
    fn alone(path: &Path, text: String) -> Result<Self, PlanError> {
        let mut source = Self {
            path: path.to_owned(),
            text: String::new(),
            values: Dict::new(),
            spans: BTreeMap::new(),
            base: None,
        };
        let mut mistakes = Vec::new();
        match DeTable::parse(&text) {
            Ok(table) => source.values = source.dict(table.get_ref(), "", &text, &mut mistakes),
            Err(cause) => {
                let span = cause.span().unwrap_or_default();
                let place = Some(place(path, &text, span));
                mistakes.push(Mistake { message: cause.message().to_owned(), place, hint: None });
            }
        }
        source.text = text;
        if mistakes.is_empty() { Ok(source) } else { Err(PlanError::Mistakes(mistakes)) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This file, what it extends, and so on.
    pub fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |source| source.base.as_deref())
    }

    pub fn extends_another(&self) -> bool {
        self.base.is_some()
    }

    /// The files that it extends.
    pub fn extended(&self) -> Vec<ExtendedFile> {
        let file = |source: &Self| ExtendedFile { path: source.path.clone(), text: source.text.clone() };
        self.chain().skip(1).map(file).collect()
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The folder that relative paths in the run file start from.
    pub fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        }
    }

    /// The location of the key with this dotted path, if the run file has it.
    pub fn span(&self, path: &str) -> Option<&SourceSpan> {
        self.spans.get(path)
    }

    pub fn place(&self, span: Range<usize>) -> Location {
        place(&self.path, &self.text, span)
    }

    fn dict(&mut self, table: &DeTable<'_>, prefix: &str, text: &str, mistakes: &mut Vec<Mistake>) -> Dict {
        let mut dict = Dict::new();
        for (key, value) in table {
            let path = join(prefix, key.get_ref());
            self.spans.insert(path.clone(), SourceSpan { key: key.span(), value: value.span() });
            if let Some(value) = self.value(value, &path, text, mistakes) {
                dict.insert(key.get_ref().to_string(), value);
            }
        }
        dict
    }

    fn value(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        path: &str,
        text: &str,
        mistakes: &mut Vec<Mistake>,
    ) -> Option<Value> {
        let mut wrong = |message: &str| {
            let place = place(&self.path, text, value.span());
            mistakes.push(Mistake { message: message.into(), place: Some(place), hint: None });
            None
        };
        match value.get_ref() {
            DeValue::String(text) => Some(Value::from(text.as_ref())),
            DeValue::Boolean(bit) => Some(Value::from(*bit)),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Some(Value::from(number)),
                Err(_) => wrong("the number does not fit 64 bits"),
            },
            DeValue::Float(number) => match number.as_str().parse::<f64>() {
                Ok(number) if number.is_finite() => Some(Value::from(number)),
                _ => wrong("the number should be finite"),
            },
            DeValue::Datetime(_) => wrong("a date has no meaning in a run file"),
            DeValue::Array(items) => {
                let mut values = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    let path = join(path, &index.to_string());
                    self.spans.insert(path.clone(), SourceSpan { key: item.span(), value: item.span() });
                    values.extend(self.value(item, &path, text, mistakes));
                }
                Some(Value::from(values))
            }
            DeValue::Table(table) => Some(Value::from(self.dict(table, path, text, mistakes))),
        }
    }
}

/// Extends a dotted path.
pub fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// Tables of a server's settings with values that no message shows.
pub const SECRET_TABLES: [&str; 4] = ["env", "headers", "elicitation", "oauth"];

/// Whether a line of the run file names such a table or is in one. `before`: the text before it.
fn may_hold_secret(before: &str, line: &str) -> bool {
    let names = |text: &str| {
        let mut words = text.split(|letter: char| !letter.is_alphanumeric() && !"_-".contains(letter));
        words.any(|word| SECRET_TABLES.contains(&word))
    };
    let header = before.lines().rev().find(|line| line.trim_start().starts_with('['));
    names(line) || header.is_some_and(names)
}

/// Line, column, and the line itself with a caret under the span. Values that may be secret are masked.
fn place(path: &Path, text: &str, span: Range<usize>) -> Location {
    let start = (0..=span.start.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let before = text.get(..start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let whole = text.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    let marked = text.get(start..span.end.max(start)).unwrap_or_default();
    let width = marked.lines().next().unwrap_or_default().chars().count().max(1);
    let gutter = " ".repeat(line.to_string().len());
    let indent = " ".repeat(column - 1);
    let caret = "^".repeat(width);
    let excerpt = format!("{gutter} |\n{line} | {whole}\n{gutter} | {indent}{caret}");
    let place = Location::File { path: path.to_owned(), line, column, excerpt };
    if may_hold_secret(before, whole) { place.without_values() } else { place }
}
