//! What a result says, read without knowing the server: records with named fields.
//!
//! JSON, Python, tables, `key: value` lines and plain lines are recognised. Everything has a bound, and a result whose
//! middle was cut says nothing.

mod markdown;

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;
use serde_json::{Map, Value, json};

use super::{
    results::{Footer, Results},
    words,
};
use crate::{chat::python_repr, json, mcp::plain};

/// Most records of a list; a longer list is known in part.
const RECORDS: usize = 200;
const FIELDS: usize = 24;
const LISTS: usize = 16;
const DEPTH: usize = 5;
/// Longest value that is kept.
const VALUE_BYTES: usize = 400;
/// Most items of a field that is a list.
const ITEMS: usize = 8;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Field {
    /// Empty for a value without a name.
    pub name: String,
    pub value: String,
    /// Several values, joined by `, `.
    pub is_set: bool,
    /// The result quotes it: a text, whatever it looks like.
    pub is_text: bool,
}

pub type Record = Vec<Field>;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct List {
    pub name: String,
    pub records: Vec<Record>,
    /// Several records by nature, and all of them are here.
    pub is_list: bool,
    /// There are more records than these, as the result says, or as other calls show.
    pub is_part: bool,
    /// Within a record of another list: good for values, not for answers.
    pub is_nested: bool,
}

impl List {
    /// Others than these may exist.
    pub fn cut(&mut self) {
        self.is_list = false;
        self.is_part = true;
    }
}

/// A result as lists of records.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    pub lists: Vec<List>,
    /// The whole result, if it is one short line.
    pub line: Option<String>,
}

static KEY_VALUE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\s*[-*]?\s*([A-Za-z][A-Za-z0-9 _./()-]{0,40}?)\s*(?::|=)\s+(\S.*)$").ok());
static MARK: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\s*(?:\[([A-Za-z]{1,12})\]|[*+•-]|\d{1,3}[.)])\s+(.*)$").ok());

/// Reads any text; what is not understood gives nothing.
pub fn read(text: &str) -> Reading {
    let trimmed = text.trim();
    if trimmed.is_empty() || trimmed.contains(" bytes left out …]") {
        return Reading::default();
    }
    let mut reading = Reading::default();
    let (above, remark) = Footer::split(trimmed);
    let (text, remark, value) = match (value(trimmed), remark) {
        (None, Some(_)) => (above, remark, value(above)),
        (value, _) => (trimmed, None, value),
    };
    match value {
        Some(value @ (Value::Object(_) | Value::Array(_))) => reading.add(&value, "", 0, false),
        Some(scalar) => reading.line = Some(plain(&scalar)),
        None => reading.add_text(text),
    }
    if let Some(remark) = remark {
        reading.lists.iter_mut().filter(|list| !remark.is_all(list.records.len())).for_each(List::cut);
    }
    if trimmed.lines().filter(|line| line.len() <= VALUE_BYTES).any(says_part) {
        reading.lists.iter_mut().filter(|list| list.is_list).for_each(List::cut);
    }
    if reading.line.is_none() && !trimmed.contains('\n') && trimmed.len() <= VALUE_BYTES {
        reading.line = Some(trimmed.to_owned());
    }
    reading
}

fn value(text: &str) -> Option<Value> {
    let python = || text.starts_with(['[', '{', '(']).then(|| python_repr(text)).flatten();
    json::exact(text).ok().or_else(|| json_stream(text)).or_else(python).or_else(|| announced(text))
}

/// An object or a list behind a line of prose, also in a fence: `Found 2 notes:\n{…}`.
fn announced(text: &str) -> Option<Value> {
    let (prose, rest) = text.split_once('\n')?;
    let rest = rest.trim();
    let fenced = rest.strip_prefix("```json").or_else(|| rest.strip_prefix("```"));
    let rest = fenced.and_then(|rest| rest.strip_suffix("```")).unwrap_or(rest).trim();
    let is_prose = !prose.trim().is_empty() && !prose.starts_with(['{', '[']);
    (is_prose && rest.starts_with(['{', '['])).then(|| json::exact(rest).ok()).flatten()
}

/// Objects one behind the other, as lines or as blocks of several lines.
fn json_stream(text: &str) -> Option<Value> {
    if !text.starts_with('{') {
        return None;
    }
    let text = json::with_texts(text);
    let items = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let items: Vec<Value> = items.collect::<Result<_, _>>().ok()?;
    items.iter().all(Value::is_object).then_some(Value::Array(items))
}

/// The objects of an object that has nothing else, such as those by id: at least one, all with a field in common.
fn is_map(fields: &Map<String, Value>) -> bool {
    let mut objects = fields.values().map(Value::as_object);
    let Some(Some(first)) = objects.next() else { return false };
    objects.all(|other| other.is_some_and(|other| first.keys().any(|key| other.contains_key(key))))
        && first.values().any(is_scalar)
}

/// Whether the keys of such a map name its objects: they are codes, or all objects have the same fields.
fn is_keyed(fields: &Map<String, Value>) -> bool {
    let names = |value: &Value| -> Option<Vec<String>> { Some(value.as_object()?.keys().cloned().collect()) };
    let mut all = fields.values().map(names);
    let first = all.next();
    is_map(fields)
        && (fields.keys().all(|key| words::is_code(key))
            || fields.len() > 1 && all.all(|other| Some(other) == first))
}

/// The objects of such a map, with their keys as a field unless one says it.
fn of_map(fields: &Map<String, Value>) -> Vec<Value> {
    let has = |name: &str| fields.values().any(|value| value.get(name).is_some());
    let are_codes = fields.keys().all(|key| words::is_code(key));
    let names = if are_codes { ["id", "name", "key"] } else { ["name", "id", "key"] };
    let own = names.into_iter().find(|name| !has(name)).unwrap_or("key");
    let item = |(name, value): (&String, &Value)| {
        let mut item = value.as_object().cloned().unwrap_or_default();
        if item.values().all(|value| plain(value) != *name) {
            item.insert(own.to_owned(), name.as_str().into());
        }
        Value::Object(item)
    };
    fields.iter().map(item).collect()
}

/// Names of what an envelope contains, and of what else stands on it.
const CONTENTS: [&str; 10] = [
    "result",
    "data",
    "content",
    "response",
    "parsed content",
    "structured",
    "structured content",
    "output",
    "payload",
    "body",
];
const STAMPS: [&str; 18] = [
    "status",
    "ok",
    "success",
    "error",
    "errors",
    "message",
    "meta",
    "metadata",
    "code",
    "request id",
    "timestamp",
    "time",
    "duration ms",
    "duration",
    "version",
    "warnings",
    "tool",
    "type",
];

/// Fewest names with values that are a list.
const PAIRS: usize = 5;

/// What an envelope contains: `{"status": "ok", "data": …, "meta": …}`.
fn enveloped(fields: &Map<String, Value>) -> Option<&Value> {
    let is_content = |key: &String| CONTENTS.contains(&words::spoken(key).as_str());
    let (key, inner) = fields.iter().find(|(key, value)| is_content(key) && !is_scalar(value))?;
    let is_stamp = |name: &String| name == key || STAMPS.contains(&words::spoken(name).as_str());
    let is_certain =
        ["parsed content", "structured content", "payload"].contains(&words::spoken(key).as_str());
    (fields.len() > 1 && (is_certain || fields.keys().all(is_stamp))).then_some(inner)
}

/// The fields of an object that pairs names with values of one kind, as records: `{"Desk lamp": "7233", "Garden hose": "6679"}`.
fn pairs(fields: &Map<String, Value>) -> Option<Vec<Value>> {
    let is_name =
        |key: &&String| key.contains(|letter: char| letter.is_uppercase() || letter == ' ' || letter == '.');
    let are_texts = fields.values().all(Value::is_string);
    let is_one_kind = are_texts || fields.values().all(Value::is_number);
    if fields.len() > 1 && is_one_kind && fields.keys().all(|key| words::is_file(key)) {
        return Some(fields.iter().map(|(key, value)| json!({"path": key, "value": value})).collect());
    }
    if fields.len() < PAIRS || !is_one_kind || fields.keys().filter(is_name).count() * 2 < fields.len() {
        return None;
    }
    let distinct: BTreeSet<String> = fields.values().map(plain).collect();
    let are_ids =
        distinct.len() == fields.len() && distinct.iter().all(|value| words::is_code(value)) && are_texts;
    let value_name = if are_ids { "id" } else { "value" };
    Some(fields.iter().map(|(key, value)| json!({"name": key, value_name: value})).collect())
}

/// The names in `users, groups, log_entries`.
fn named_in_a_line(text: &str) -> Option<Vec<&str>> {
    let names: Vec<&str> = text.trim().split(", ").collect();
    let is_name = |name: &&str| {
        let letters = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
        !name.is_empty() && name.chars().all(letters)
    };
    (names.len() > 1 && names.iter().all(is_name)).then_some(names)
}

static OF_ALL: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?i)\b(showing|displaying|page|first|results?|items?|records?|rows?|entries)\b[^.\n]{0,24}?(?:\d+\s*[-–]\s*)?\b(\d+) (?:of|out of|/) (\d+)\b").ok()
});

/// Whether a line says that there is more: `Showing 10 of 57`, `page 1 of 3`.
fn says_part(line: &str) -> bool {
    let found = OF_ALL.as_ref().and_then(|pattern| pattern.captures(line));
    found.is_some_and(|found| found[2] != found[3])
}

/// Whether the lists of an object are only a part: it names a next page, or another number of items.
fn is_page(fields: &Map<String, Value>) -> bool {
    let lengths: Vec<u64> =
        fields.values().filter_map(Value::as_array).map(|items| items.len() as u64).collect();
    let lists = fields.iter().filter(|(_, value)| value.is_array());
    let of_lists: Vec<String> = lists.flat_map(|(key, _)| words::tokens(key)).collect();
    // `total_bags` is not about a list of flights.
    let is_of_list = |word: &String| {
        let general = ["total", "count", "result", "item", "number", "record", "entry", "row", "size"];
        let word = words::singular(word);
        general.contains(&word.as_str()) || of_lists.contains(&word)
    };
    let continues = |(key, value): (&String, &Value)| {
        let words = words::split(key);
        let says = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
        let is_set = !matches!(value, Value::Null | Value::Bool(false)) && value != "";
        says(&["next", "more", "cursor", "truncated"]) && is_set
            || says(&["pages"]) && value.as_u64().is_some_and(|pages| pages > 1)
            || value.as_str().is_some_and(says_part)
            || says(&["total", "count"])
                && words.iter().all(is_of_list)
                && value.as_u64().is_some_and(|total| !lengths.contains(&total))
    };
    !lengths.is_empty() && fields.iter().any(continues)
}

fn is_scalar(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

impl Reading {
    fn add(&mut self, value: &Value, name: &str, depth: usize, is_nested: bool) {
        if depth > DEPTH || self.lists.len() >= LISTS {
            return;
        }
        match value {
            Value::Array(items) => {
                let is_list = items.len() <= RECORDS;
                let place = self.lists.len();
                let list =
                    List { name: name.to_owned(), is_list, is_part: !is_list, is_nested, ..List::default() };
                self.lists.push(list);
                for item in items.iter().take(RECORDS) {
                    let record = self.record(item, depth + 1);
                    self.lists[place].records.push(record);
                }
            }
            Value::Object(fields) => {
                if let Some(inner) = enveloped(fields) {
                    return self.add(inner, name, depth + 1, is_nested);
                }
                if is_keyed(fields) {
                    let mut items = of_map(fields);
                    let only = if items.len() == 1 && !words::is_plural(&words::spoken(name)) {
                        items.pop()
                    } else {
                        None
                    };
                    return self.add(&only.unwrap_or(Value::Array(items)), name, depth + 1, is_nested);
                }
                if let Some(items) = pairs(fields) {
                    return self.add(&Value::Array(items), name, depth + 1, is_nested);
                }
                // `{"result": …}` is what it contains.
                if let [(only, inner)] = fields.iter().collect::<Vec<_>>()[..]
                    && !is_scalar(inner)
                {
                    let name =
                        if ["result", "data", "content"].contains(&only.as_str()) { name } else { only };
                    return self.add(inner, name, depth + 1, is_nested);
                }
                let place = self.lists.len();
                self.lists.push(List { name: name.to_owned(), is_nested, ..List::default() });
                let mut record = Record::new();
                for (key, value) in fields {
                    match value {
                        Value::Array(items) => {
                            record.extend(set(key, items));
                            self.add(value, key, depth + 1, is_nested);
                        }
                        Value::Object(inner) if is_map(inner) => {
                            self.add(&Value::Array(of_map(inner)), key, depth + 1, is_nested);
                        }
                        _ => self.field(&mut record, key, value, depth + 1),
                    }
                }
                if is_page(fields) {
                    self.lists[place..].iter_mut().filter(|list| list.is_list).for_each(List::cut);
                }
                record.truncate(FIELDS);
                self.lists[place].records.extend(Some(record).filter(|record| !record.is_empty()));
            }
            _ => {}
        }
    }

    /// A record of a list.
    fn record(&mut self, item: &Value, depth: usize) -> Record {
        let mut record = Record::new();
        match item {
            Value::Object(fields) => {
                for (key, value) in fields {
                    self.field(&mut record, key, value, depth);
                }
            }
            Value::Array(items) => {
                for item in items.iter().filter(|item| is_scalar(item)) {
                    push(&mut record, "", item);
                }
            }
            scalar => push(&mut record, "", scalar),
        }
        record.truncate(FIELDS);
        record
    }

    fn field(&mut self, record: &mut Record, key: &str, value: &Value, depth: usize) {
        match value {
            Value::Object(inner) if depth <= DEPTH => {
                for (name, value) in inner.iter().filter(|(_, value)| is_scalar(value)) {
                    push(record, &format!("{key}.{name}"), value);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                record.extend(set(key, items));
                self.add(value, key, depth + 1, true);
            }
            _ => push(record, key, value),
        }
    }

    /// The files of a diff, with their numbers of lines.
    fn add_diff(&mut self, text: &str) {
        let mut files: Vec<(&str, usize, usize)> = Vec::new();
        for line in text.lines() {
            if let Some(paths) = line.strip_prefix("diff --git ") {
                files.push((paths.split_once(" b/").map_or(paths, |(_, path)| path), 0, 0));
            } else if let Some((_, added, removed)) = files.last_mut() {
                *added += usize::from(line.starts_with('+') && !line.starts_with("+++ "));
                *removed += usize::from(line.starts_with('-') && !line.starts_with("--- "));
            }
        }
        let field = |name: &str, value: String| Field { name: name.into(), value, ..Field::default() };
        let record = |(path, added, removed): &(&str, usize, usize)| {
            vec![
                field("name", (*path).to_owned()),
                field("added lines", added.to_string()),
                field("removed lines", removed.to_string()),
            ]
        };
        let is_list = files.len() <= RECORDS;
        let records = files.iter().take(RECORDS).map(record).collect();
        self.lists.push(List { name: "changed files".into(), records, is_list, ..List::default() });
    }

    fn add_text(&mut self, text: &str) {
        if text.lines().any(|line| line.starts_with("diff --git ")) {
            return self.add_diff(text);
        }
        if let Some(lists) = markdown::read(text) {
            return self.lists.extend(lists);
        }
        // A table may stand below its heading.
        let (heading, below) = match text.split_once('\n') {
            Some((first, below)) if first.trim().ends_with(':') && below.contains(['|', '\t']) => {
                (first.trim().trim_end_matches(':').to_lowercase(), below)
            }
            _ => (String::new(), text),
        };
        let rows = Results::Auto.read(below);
        let is_identifier = |name: &String| {
            name.len() <= 40
                && !name.is_empty()
                && name.chars().all(|letter| letter.is_alphanumeric() || "_ -./".contains(letter))
        };
        // One row under names that only commas separate is probably a sentence.
        let is_table = rows.rows.len() > 1 || rows.rows.len() == 1 && text.contains(['|', '\t']);
        if rows.names.len() > 1 && is_table && rows.names.iter().all(is_identifier) {
            let record = |row: &Vec<String>| {
                let fields = rows.names.iter().cloned().zip(row.iter().map(|value| json!(value)));
                let mut record = self.record(&Value::Object(fields.collect()), 0);
                // A table does not say which of its values are texts.
                record.iter_mut().for_each(|field| field.is_text = false);
                record
            };
            let records: Vec<Record> = rows.rows.iter().take(RECORDS).map(record).collect();
            let is_list = rows.rows.len() <= RECORDS && !rows.more;
            return self.lists.push(List {
                name: heading,
                records,
                is_list,
                is_part: !is_list,
                ..List::default()
            });
        }
        self.add_lines(text);
    }

    fn add_lines(&mut self, text: &str) {
        let (Some(key_value), Some(mark)) = (&*KEY_VALUE, &*MARK) else { return };
        let mut name = String::new();
        let mut blocks: Vec<Record> = vec![Record::new()];
        let mut items: Vec<Record> = Vec::new();
        let mut is_prose = false;
        let lines: Vec<&str> = named_in_a_line(text).unwrap_or_else(|| text.lines().collect());
        for line in lines.into_iter().filter(|line| !line.trim().is_empty()).take(4 * RECORDS) {
            if let Some(heading) = line.trim().strip_suffix(':') {
                let is_title = |word: &str| !word.contains(|letter: char| letter.is_ascii_digit());
                if name.is_empty()
                    && heading.split_whitespace().count() <= 4
                    && heading.split_whitespace().all(is_title)
                {
                    name = heading.to_lowercase();
                }
                continue;
            }
            if let Some(found) = key_value.captures(line).filter(|_| !mark.is_match(line)) {
                let (key, value) = (found[1].trim().to_owned(), unquoted(found[2].trim()));
                let is_next = blocks.last().is_some_and(|block| block.iter().any(|field| field.name == key));
                if is_next {
                    blocks.push(Record::new());
                }
                if let Some(block) = blocks.last_mut().filter(|_| value.len() <= VALUE_BYTES) {
                    block.push(Field { name: key, value, ..Field::default() });
                }
                continue;
            }
            let marked = mark.captures(line);
            let (tag, rest) = match &marked {
                Some(found) => (found.get(1).map(|tag| tag.as_str().to_owned()), found[2].to_owned()),
                None => (None, line.to_owned()),
            };
            // What is behind a gap is another column.
            let value = rest.trim().split("   ").next().unwrap_or_default().trim().to_owned();
            is_prose |=
                value.split_whitespace().count() > 10 || value.len() > VALUE_BYTES || value.contains(" | ");
            let kind = tag.map(|tag| Field { name: "kind".into(), value: tag, ..Field::default() });
            items.push(std::iter::once(Field { value, ..Field::default() }).chain(kind).collect());
        }
        // `Found 3 files` and `total 24` are about the list.
        let first = text.trim_start().to_lowercase();
        let has_summary =
            ["found ", "total ", "showing ", "page "].iter().any(|word| first.starts_with(word));
        if has_summary && !items.is_empty() {
            items.remove(0);
        }
        blocks.retain(|block| !block.is_empty());
        if !blocks.is_empty() && blocks.len() <= RECORDS {
            let is_list = blocks.len() > 1;
            let name = if items.is_empty() { name.clone() } else { String::new() };
            self.lists.push(List { name, records: blocks, is_list, ..List::default() });
        }
        if !items.is_empty() && !is_prose && items.len() <= RECORDS {
            let is_whole = self.lists.is_empty() && text.lines().count() > 1 && !has_summary;
            self.lists.push(List {
                name,
                records: items,
                is_list: is_whole,
                is_part: has_summary,
                ..List::default()
            });
        }
    }
}

fn push(record: &mut Record, name: &str, value: &Value) {
    // A note in a field is what it says.
    if let Some(fields) = value.as_str().and_then(markdown::record) {
        let is_new = |field: &Field| record.iter().all(|own| own.name != field.name);
        let new: Vec<Field> = fields.into_iter().filter(is_new).collect();
        return record.extend(new);
    }
    let is_text = value.is_string();
    let value = plain(value);
    if value.len() <= VALUE_BYTES {
        record.push(Field { name: name.to_owned(), value, is_text, ..Field::default() });
    }
}

/// A field with several values, if these are short and no records.
fn set(name: &str, items: &[Value]) -> Option<Field> {
    if items.is_empty() || !items.iter().all(is_scalar) {
        return None;
    }
    let items: Vec<String> = items.iter().map(plain).collect();
    let fits = items.len() <= ITEMS && items.iter().all(|item| item.len() <= 60 && !item.contains(','));
    fits.then(|| Field { name: name.to_owned(), value: items.join(", "), is_set: true, is_text: true })
}

fn unquoted(text: &str) -> String {
    ['"', '\'', '`']
        .into_iter()
        .find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(text)
        .to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn json_behind_a_line_of_prose_is_read() {
        for text in [
            "Found 2 notes.\n[{\"id\": 1, \"title\": \"a\"}, {\"id\": 2, \"title\": \"b\"}]",
            "Found 2 notes.\n```json\n[{\"id\": 1, \"title\": \"a\"}, {\"id\": 2, \"title\": \"b\"}]\n```",
        ] {
            let list = &super::read(text).lists[0];
            assert!(list.is_list && list.records.len() == 2 && list.records[1][1].value == "b", "{list:?}");
        }
    }

    #[test]
    fn names_of_files_in_keys_are_values() {
        let list = &super::read("{\"budget.xlsx\": 5215, \"old/staff.xlsx\": 6182}").lists[0];
        let paths: Vec<&str> = list.records.iter().map(|record| record[0].value.as_str()).collect();
        assert_eq!(
            (list.records[0][0].name.as_str(), paths),
            ("path", vec!["budget.xlsx", "old/staff.xlsx"])
        );
    }

    use proptest::prelude::*;

    #[test]
    fn names_with_values_are_a_list_and_fields_of_a_thing_are_none() {
        let of = |text: &str| {
            let list = &read(text).lists[0];
            let names: BTreeSet<String> = list.records[0].iter().map(|field| field.name.clone()).collect();
            (list.records.len(), names.into_iter().collect::<Vec<_>>())
        };
        let named =
            r#"{"Desk lamp": "7233", "Hose": "6679", "Old chair": "1", "Pan": "22", "Tea pot": "35"}"#;
        assert_eq!(of(named), (5, vec!["id".into(), "name".into()]));
        let wrapped = format!(r#"{{"ok": true, "state": {{"calls": 3}}, "parsed_content": {named}}}"#);
        assert_eq!(of(&wrapped).0, 5);
        let sizes = r#"{"a.xlsx": 1, "b.xlsx": 2, "c.xlsx": 3, "d.xlsx": 4, "e.xlsx": 5}"#;
        assert_eq!(of(sizes), (5, vec!["path".into(), "value".into()]));
        let thing = r#"{"id": "7", "city": "Bern", "zip": "3001", "name": "Ann", "street": "Gasse"}"#;
        assert_eq!(of(thing).0, 1);
    }

    #[test]
    fn an_envelope_is_what_it_contains_and_keys_of_like_objects_are_values() {
        let text = r#"{"status": "ok", "parsed_content": {"products": {"SKU-1": {"name": "Hose", "price": 3},
            "SKU-2": {"name": "Can", "price": 5}}}, "meta": {"num_args": 1, "request_id": "r-7"}}"#;
        let reading = read(text);
        let [list] = &*reading.lists else { panic!("{reading:?}") };
        assert_eq!((list.name.as_str(), list.is_list, list.records.len()), ("products", true, 2));
        let mut fields: Vec<(&str, &str)> =
            list.records[0].iter().map(|field| (field.name.as_str(), field.value.as_str())).collect();
        fields.sort_unstable();
        assert_eq!(fields, [("id", "SKU-1"), ("name", "Hose"), ("price", "3")]);
        // One object by its key is a record, where nothing says that there may be more.
        let reading = read(r#"{"data": {"SKU-1": {"on_hand": 4, "reserved": 1}}, "ok": true}"#);
        assert!(!reading.lists[0].is_list && reading.lists[0].records[0].len() == 3, "{reading:?}");
        // Something else beside it: no envelope.
        assert_eq!(read(r#"{"data": {"a": 1}, "owner": "Ann"}"#).lists[0].records[0].len(), 2);
    }

    use super::*;

    /// Lists as `name[a=1 b=2; …]`; a list that is complete has brackets.
    fn shown(text: &str) -> String {
        let record = |record: &Record| {
            let fields = record.iter().map(|field| format!("{}={}", field.name, field.value));
            fields.collect::<Vec<_>>().join(" ")
        };
        let list = |list: &List| {
            let records = list.records.iter().map(record).collect::<Vec<_>>().join("; ");
            if list.is_list {
                format!("{}[{records}]", list.name)
            } else {
                format!("{}({records})", list.name)
            }
        };
        let reading = read(text);
        let line = reading.line.map(|line| format!("<{line}>"));
        reading.lists.iter().map(list).chain(line).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn results_of_any_format_become_records() {
        for (text, expected) in [
            (r#"[{"a": 1, "b": {"c": "x"}}]"#, r#"[a=1 b.c=x] <[{"a": 1, "b": {"c": "x"}}]>"#),
            ("[{'name': 'books'},\n {'name': 'authors'}]", "[name=books; name=authors]"),
            (
                "{\"entities\": [\n{\"name\": \"Ada\", \"notes\": [\"x\", \"y\"]}]}",
                "entities[name=Ada notes=x, y] notes[=x; =y]",
            ),
            ("{\n\"a\": 1\n}\n{\n\"a\": 2\n}", "[a=1; a=2]"),
            (
                "{\"n\": \"Ada\", \"cards\":\n{\"c1\": {\"id\": \"c1\", \"kind\": \"gift\"}, \"c2\": {\"kind\": \"visa\"}}}",
                "(n=Ada) cards[id=c1 kind=gift; kind=visa name=c2]",
            ),
            (
                "{\"total_bags\": 3, \"total\": 1,\n\"flights\": [{\"a\": 1}]}",
                "(total_bags=3 total=1) flights[a=1]",
            ),
            ("{\"flight_count\": 3,\n\"flights\": [{\"a\": 1}]}", "(flight_count=3) flights(a=1)"),
            ("a | b\n1 | 2\n3 | 4", "[a=1 b=2; a=3 b=4]"),
            (
                "Commit: 'f1'\nAuthor: Ada\nCommit: 'f2'\nAuthor: Bob",
                "[Commit=f1 Author=Ada; Commit=f2 Author=Bob]",
            ),
            ("[FILE] a.txt\n[DIR] sub", "[=a.txt kind=FILE; =sub kind=DIR]"),
            ("Allowed directories:\n/snapshot", "allowed directories[=/snapshot]"),
            ("size: 10\nisFile: true", "(size=10 isFile=true)"),
            ("a | b\n1 | 2\n3 | 4\n(5 of 8 rows)", "(a=1 b=2; a=3 b=4)"),
            ("a | b\n1 | 2\n3 | 4\n(2 rows)", "[a=1 b=2; a=3 b=4]"),
            ("x.txt\ny.txt\n(2 of 9 files)", "(=x.txt; =y.txt)"),
            (
                "Changes:\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n+c\ndiff --git a/y b/y\n+d",
                "changed files[name=x added lines=2 removed lines=1; name=y added lines=1 removed lines=0]",
            ),
            ("7", "<7>"),
            ("", ""),
            ("a\n[… 9 bytes left out …]\nb", ""),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_within_bounds(text in r#"([\[\](){},:'"|\\ ;\t\n\r-]|None|1|é|a: b|\[X\] |\|-|\n){0,60}"#) {
            for list in read(&text).lists {
                prop_assert!(list.records.len() <= RECORDS);
            }
        }
    }

    #[test]
    fn hostile_nesting_gives_nothing() {
        for open in ["[", "{\"a\":", "{'a':"] {
            assert_eq!(read(&open.repeat(100_000)).lists, []);
        }
    }
}
