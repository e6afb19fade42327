//! Parses tool results into rows.

use serde::Deserialize;
use serde_json::Value;

/// This server's result format, from the families file.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(tag = "format", rename_all = "lowercase", deny_unknown_fields)]
pub enum Results {
    /// A line of column names, then a line per row, with fields between separators. A line that begins with
    /// `remark` is a remark: there are no rows, or more than are shown.
    Table { separator: String, remark: Option<String> },
    /// One row per line, with a single field.
    #[default]
    Lines,
    /// An array of objects, arrays or plain values; `at` points to it (RFC 6901) if it is not the root.
    Json {
        #[serde(default)]
        at: String,
    },
}

/// A result as rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Rows {
    /// Names of the fields, if the format has them.
    pub names: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// The server reports more rows than these.
    pub more: bool,
}

impl Results {
    /// Never fails: text without rows in this format gives none.
    pub(super) fn read(&self, text: &str) -> Rows {
        match self {
            Self::Table { separator, remark } => {
                let is_remark =
                    |line: &&str| remark.as_ref().is_some_and(|mark| line.starts_with(mark.as_str()));
                let fields =
                    |line: &str| line.split(separator.as_str()).map(str::to_owned).collect::<Vec<_>>();
                let (remarks, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(is_remark);
                let mut lines = lines.into_iter();
                let names = lines.next().map(fields).unwrap_or_default();
                let rows: Vec<_> = lines.map(fields).collect();
                Rows { names, more: !remarks.is_empty() && !rows.is_empty(), rows }
            }
            Self::Lines => Rows {
                rows: text
                    .lines()
                    .filter(|line| !line.is_empty())
                    .map(|line| vec![line.to_owned()])
                    .collect(),
                ..Rows::default()
            },
            Self::Json { at } => {
                let value: Value = serde_json::from_str(text).unwrap_or_default();
                let items = match value.pointer(at) {
                    Some(Value::Array(items)) => items.clone(),
                    Some(Value::Null) | None => Vec::new(),
                    Some(other) => vec![other.clone()],
                };
                let names = match items.first() {
                    Some(Value::Object(fields)) => fields.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                let row = |item: &Value| match item {
                    Value::Object(fields) => names
                        .iter()
                        .map(|name: &String| fields.get(name).map(plain).unwrap_or_default())
                        .collect(),
                    Value::Array(fields) => fields.iter().map(plain).collect(),
                    value => vec![plain(value)],
                };
                let rows = items.iter().map(row).collect();
                Rows { names, rows, more: false }
            }
        }
    }
}

impl Rows {
    /// The index of a field: by name, or the first if none is given.
    pub fn position(&self, field: Option<&str>) -> Option<usize> {
        match field {
            Some(field) => self.names.iter().position(|name| name == field),
            None => Some(0),
        }
    }

    pub fn field(&self, row: usize, position: usize) -> Option<&str> {
        self.rows.get(row)?.get(position).map(String::as_str)
    }
}

/// A value as a person would write it.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|field| (*field).to_owned()).collect()).collect()
    }

    #[test]
    fn a_table_has_names_rows_and_remarks() {
        let table = Results::Table { separator: " | ".into(), remark: Some("(".into()) };
        let read = table.read("name | pay\nAda | 84\nBob | 7\n(12 rows)");
        assert_eq!(read.names, ["name", "pay"]);
        assert_eq!(read.rows, rows(&[&["Ada", "84"], &["Bob", "7"]]));
        assert!(read.more);
        assert_eq!(read.position(Some("pay")), Some(1));
        assert_eq!(table.read("(no rows)"), Rows::default());
    }

    #[test]
    fn json_fields_are_found_at_any_depth() {
        let json = Results::Json { at: "/items".into() };
        let read = json.read(r#"{"items": [{"id": 1, "name": "Ada"}, {"name": "Bob"}]}"#);
        assert_eq!(read.names, ["id", "name"]);
        assert_eq!(read.rows, rows(&[&["1", "Ada"], &["", "Bob"]]));
        assert_eq!(json.read("not json"), Rows::default());
    }

    #[test]
    fn lines_are_rows_of_one_field() {
        assert_eq!(Results::Lines.read("a\n\nb\n").rows, rows(&[&["a"], &["b"]]));
    }
}
