//! Parses tool results into rows.

use serde::Deserialize;
use serde_json::Value;

use crate::{chat::python_repr, json, mcp::plain};

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
    /// One JSON value per line.
    Jsonl,
    /// The same as `Json`, as Python prints it.
    Python {
        #[serde(default)]
        at: String,
    },
    /// A line of column names, then rows. Fields may be in double quotes (RFC 4180).
    Csv {
        #[serde(default = "comma")]
        separator: char,
    },
    /// The first pipe table.
    Markdown,
    /// The first of these that the result is: JSON, JSON lines, Python, a Markdown table, CSV with one of
    /// [`SEPARATORS`], lines. Below them there may be a [`Footer`].
    Auto,
}

fn comma() -> char {
    ','
}

/// Separators of columns that `auto` tries, in this order.
const SEPARATORS: [char; 4] = ['\t', '|', ';', ','];

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
                let rows = Rows::with_header(lines.into_iter().map(fields));
                Rows { more: !remarks.is_empty() && !rows.rows.is_empty(), ..rows }
            }
            Self::Lines => {
                let lines = text.lines().filter(|line| !line.is_empty());
                Rows { rows: lines.map(|line| vec![line.to_owned()]).collect(), ..Rows::default() }
            }
            Self::Json { at } => Rows::of_value(json::exact(text).unwrap_or_default(), at),
            Self::Jsonl => json_lines(text).map(|items| Rows::of_value(items, "")).unwrap_or_default(),
            Self::Python { at } => Rows::of_value(python_repr(text).unwrap_or_default(), at),
            Self::Csv { separator } => Rows::with_header(records(text, *separator).into_iter()),
            Self::Markdown => markdown(text).unwrap_or_default(),
            Self::Auto => auto(text),
        }
    }
}

impl Rows {
    /// The first record has the names.
    fn with_header(mut records: impl Iterator<Item = Vec<String>>) -> Self {
        let names = records.next().unwrap_or_default();
        Self { names, rows: records.collect(), more: false }
    }

    fn of_value(value: Value, at: &str) -> Self {
        let items = match value.pointer(at) {
            Some(Value::Array(items)) => items.as_slice(),
            Some(Value::Null) | None => &[],
            Some(other) => std::slice::from_ref(other),
        };
        let names: Vec<String> = match items.first() {
            Some(Value::Object(fields)) => fields.keys().cloned().collect(),
            _ => Vec::new(),
        };
        let row = |item: &Value| match item {
            Value::Object(fields) => {
                names.iter().map(|name| fields.get(name).map(plain).unwrap_or_default()).collect()
            }
            Value::Array(fields) => fields.iter().map(plain).collect(),
            value => vec![plain(value)],
        };
        Self { rows: items.iter().map(row).collect(), names, more: false }
    }

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

/// A last line in parentheses, such as `(5 of 8 rows)`: it is about the rows above it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Footer<'a>(&'a str);

impl<'a> Footer<'a> {
    /// The text above the remark, and the remark, if there is one below something else.
    pub fn split(text: &'a str) -> (&'a str, Option<Self>) {
        let text = text.trim();
        let found = text.rsplit_once('\n').and_then(|(above, line)| {
            let remark = line.trim().strip_prefix('(')?.strip_suffix(')')?;
            Some((above.trim_end(), Some(Self(remark))))
        });
        found.unwrap_or((text, None))
    }

    /// Whether it says that these rows are all: `8 rows`, `8 of 8 rows`.
    pub fn is_all(self, rows: usize) -> bool {
        let is_count = |word: &str| word.parse() == Ok(rows);
        match self.0.split_whitespace().collect::<Vec<_>>()[..] {
            [count, _] => is_count(count),
            [shown, "of", all, _] => is_count(shown) && is_count(all),
            _ => false,
        }
    }
}

fn auto(text: &str) -> Rows {
    let value = |text: &str| json::exact(text).ok().or_else(|| python_repr(text));
    let (above, remark) = match value(text.trim()) {
        Some(_) => (text.trim(), None),
        None => Footer::split(text),
    };
    let rows = rows(above);
    Rows { more: remark.is_some_and(|remark| !remark.is_all(rows.rows.len())), ..rows }
}

fn rows(trimmed: &str) -> Rows {
    let value = json::exact(trimmed).ok().or_else(|| json_lines(trimmed));
    if let Some(value) = value.or_else(|| python_repr(trimmed)) {
        return Rows::of_value(only_list(value), "");
    }
    // JSON or Python that was cut off; its lines are no rows.
    if trimmed.starts_with(['{', '[', '(']) {
        return Rows::default();
    }
    let table = || SEPARATORS.into_iter().find_map(|separator| table(trimmed, separator));
    markdown(trimmed).or_else(table).unwrap_or_else(|| Results::Lines.read(trimmed))
}

/// The list, if it is the only member of an object, as in `{"result": […]}`.
fn only_list(value: Value) -> Value {
    match value {
        Value::Object(fields) if fields.len() == 1 && fields.values().all(Value::is_array) => {
            fields.into_iter().next().map(|(_, list)| list).unwrap_or_default()
        }
        value => value,
    }
}

/// Rows that all have as many fields as the header, at least two.
fn table(text: &str, separator: char) -> Option<Rows> {
    let trimmed = |record: Vec<String>| record.iter().map(|field| field.trim().to_owned()).collect();
    let rows = Rows::with_header(records(text, separator).into_iter().map(trimmed));
    let is_even = rows.names.len() > 1 && rows.rows.iter().all(|row| row.len() == rows.names.len());
    (is_even && !rows.rows.is_empty()).then_some(rows)
}

fn json_lines(text: &str) -> Option<Value> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let items: Vec<Value> = lines.map(json::exact).collect::<Result<_, _>>().ok()?;
    (!items.is_empty()).then_some(items.into())
}

/// Records of CSV. An empty line is none; a quote that is not closed extends to the end.
fn records(text: &str, separator: char) -> Vec<Vec<String>> {
    let (mut records, mut record, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut is_quoted = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' if is_quoted => is_quoted = false,
            '"' if field.is_empty() => is_quoted = true,
            _ if is_quoted => field.push(letter),
            _ if letter == separator => record.push(std::mem::take(&mut field)),
            '\r' if letters.peek() == Some(&'\n') => {}
            '\n' => {
                if !record.is_empty() || !field.is_empty() {
                    record.push(std::mem::take(&mut field));
                    records.push(std::mem::take(&mut record));
                }
            }
            _ => field.push(letter),
        }
    }
    if !record.is_empty() || !field.is_empty() {
        record.push(field);
        records.push(record);
    }
    records
}

/// The first table: a header, a row of dashes, and rows until a line without a pipe.
fn markdown(text: &str) -> Option<Rows> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let header = lines.windows(2).position(|pair| pair[0].contains('|') && is_separator(pair[1]))?;
    let names = cells(lines[header]);
    let rows = lines[header + 2..].iter().take_while(|line| line.contains('|')).map(|line| cells(line));
    Some(Rows { rows: rows.collect(), names, more: false })
}

fn is_separator(line: &str) -> bool {
    let is_dashes = |cell: &String| {
        let dashes = cell.trim_start_matches(':').trim_end_matches(':');
        !dashes.is_empty() && dashes.bytes().all(|byte| byte == b'-')
    };
    line.contains('|') && cells(line).iter().all(is_dashes)
}

/// The cells of a row. `\|` is a pipe.
fn cells(line: &str) -> Vec<String> {
    let line = line.strip_prefix('|').unwrap_or(line);
    let mut cells = vec![String::new()];
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.next_if_eq(&'|').is_some() => {
                cells.last_mut().into_iter().for_each(|cell| cell.push('|'))
            }
            '|' if letters.peek().is_none() => {}
            '|' => cells.push(String::new()),
            _ => cells.last_mut().into_iter().for_each(|cell| cell.push(letter)),
        }
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|field| (*field).to_owned()).collect()).collect()
    }

    fn format(table: &str) -> Results {
        toml::from_str(table).unwrap()
    }

    /// Names and rows, as `a,b: 1,2; 3,4`.
    fn shown(rows: &Rows) -> String {
        let records: Vec<String> = rows.rows.iter().map(|row| row.join(",")).collect();
        format!("{}: {}", rows.names.join(","), records.join("; "))
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

    #[test]
    fn every_format_reads_its_own() {
        let (python, csv, markdown) = ("format = \"python\"", "format = \"csv\"", "format = \"markdown\"");
        let jsonl = "format = \"jsonl\"";
        for (declared, text, read) in [
            (python, "[{'id': 1, 'name': 'it\\'s'}, {'id': 2, 'name': None}]", "id,name: 1,it's; 2,"),
            (python, "[(1, Decimal('2.50')), (3, True)]", ": 1,2.50; 3,true"),
            (python, "['a', 'b']", ": a; b"),
            (python, "7", ": 7"),
            (python, "[]", ": "),
            (python, "Error: no", ": "),
            (python, "[1, 2\n[… 9 bytes left out …]\n8]", ": "),
            ("format = \"python\"\nat = \"/rows\"", "{'rows': [(1,)]}", ": 1"),
            (csv, "a,b\r\n1,\"x, \"\"y\"\"\"\r\n\r\n2,\n", "a,b: 1,x, \"y\"; 2,"),
            (csv, "a,b\n1,\"two\nlines\"", "a,b: 1,two\nlines"),
            ("format = \"csv\"\nseparator = \";\"", "a;b\n1;2,5", "a,b: 1,2,5"),
            (csv, "", ": "),
            (
                markdown,
                "Found:\n\n| a | b \\| c |\n|:--|--:|\n| 1 | |\n| 2 | 3 |\n\n| x |",
                "a,b | c: 1,; 2,3",
            ),
            (markdown, "a | b\n--- | ---\n1 | 2", "a,b: 1,2"),
            (markdown, "| a |\n|---|", "a: "),
            (markdown, "no | table", ": "),
            (jsonl, "{\"a\": 1}\n\n{\"a\": 2}\n", "a: 1; 2"),
            (jsonl, "{\"a\": 1}\n{cut", ": "),
            (jsonl, "", ": "),
        ] {
            assert_eq!(shown(&format(declared).read(text)), read, "{declared} {text}");
        }
    }

    #[test]
    fn the_format_is_recognised() {
        for (text, read) in [
            (r#"[{"a": 1}]"#, "a: 1"),
            (r#"{"result": [1, 2]}"#, ": 1; 2"),
            (r#"{"a": 1, "b": [2]}"#, "a,b: 1,[2]"),
            ("{\"a\": 1}\n{\"a\": 2}", "a: 1; 2"),
            ("[{'a': None, 'b': 'x'}]", "a,b: ,x"),
            ("[('x', 1)]", ": x,1"),
            ("| a | b |\n|---|---|\n| 1 | 2 |", "a,b: 1,2"),
            ("a | b\n1 | 2", "a,b: 1,2"),
            ("a\tb\n1\t2,5", "a,b: 1,2,5"),
            ("a,b\n\"1,5\",2", "a,b: 1,5,2"),
            ("a;b\n1,5;2", "a,b: 1,5,2"),
            ("one\ntwo", ": one; two"),
            ("Paris, France", ": Paris, France"),
            ("one, two\nthree", ": one, two; three"),
            ("7", ": 7"),
            ("None", ": "),
            ("", ": "),
            ("[{'a': 1\n[… 9 bytes left out …]\n}]", ": "),
        ] {
            assert_eq!(shown(&Results::Auto.read(text)), read, "{text}");
        }
    }

    #[test]
    fn a_last_line_in_parentheses_is_a_remark_about_the_rows() {
        for (text, read, more) in [
            ("a | b\n1 | 2\n3 | 4\n(5 of 8 rows)", "a,b: 1,2; 3,4", true),
            ("a | b\n1 | 2\n3 | 4\n(2 rows)", "a,b: 1,2; 3,4", false),
            ("a | b\n1 | 2\n\n(1 of 1 rows)\n", "a,b: 1,2", false),
            ("a | b\n1 | 2\n(more than 1 rows)", "a,b: 1,2", true),
            ("a | b\n1 | 2\n(1 of 3 rows)", "a,b: 1,2", true),
            ("a | b\n1 | 2\n(cut)", "a,b: 1,2", true),
            ("one\ntwo\n(2 items)", ": one; two", false),
            ("[1, 2]\n(2 of 9 items)", ": 1; 2", true),
            ("(no rows)", ": ", false),
            ("((1, 2),\n(3, 4))", ": 1,2; 3,4", false),
        ] {
            let rows = Results::Auto.read(text);
            assert_eq!((shown(&rows).as_str(), rows.more), (read, more), "{text}");
        }
    }

    #[test]
    fn an_unknown_key_of_a_format_is_an_error() {
        for declared in
            ["format = \"python\"\nform = 1", "format = \"csv\"\nseparator = \"::\"", "format = \"yaml\""]
        {
            assert!(toml::from_str::<Results>(declared).is_err(), "{declared}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in r#"([\[\](){},:'"|\\ ;\t\n\r-]|None|1|é|\|-|\n\|){0,60}"#) {
            for declared in ["json", "jsonl", "python", "csv", "markdown", "auto", "lines"] {
                format(&format!("format = \"{declared}\"")).read(&text);
            }
        }
    }

    #[test]
    fn hostile_nesting_has_no_rows() {
        for open in ["[", "{'a':", "(", "{\"a\":"] {
            let text = open.repeat(200_000);
            for results in [Results::Auto, format("format = \"python\""), format("format = \"json\"")] {
                assert_eq!(results.read(&text), Rows::default(), "{open} {results:?}");
            }
        }
    }
}
