//! Questions for a tool that takes SQL: the language of a parameter, as a format is.
//!
//! Tables are found by name in other results or in the standard catalogs, and sampled. Every answer is that of a query, and
//! the reference solution is what a person would call: the list of tables, the description of those in question, one query.

mod phrases;
mod questions;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::Map;

use self::phrases::Sense;
use super::{
    graph::{Arg, Graph, SuccessfulCall},
    harvest::Record,
    seeds::Kind,
    tools::ToolProfile,
    words,
};
use crate::{
    chat::ToolCall,
    stage::scenarios::candidate::{Candidate, value_of},
};

/// Words of columns that identify a row.
const KEYS: [&str; 6] = ["id", "no", "nr", "num", "number", "code"];
/// Rows of a table that are sampled.
const SAMPLE: usize = 20;
const TABLES: usize = 12;
/// Catalogs where tables are listed.
const CATALOGS: [&str; 2] = [
    "SELECT name AS table_name FROM sqlite_master WHERE type = 'table' ORDER BY name",
    "SELECT table_name FROM information_schema.tables WHERE table_schema NOT IN ('information_schema', 'pg_catalog') ORDER BY table_name",
];

/// Queries that explore: the catalogs, then a sample of each table.
pub fn queries(graph: &Graph) -> Vec<String> {
    let mut queries: Vec<String> = CATALOGS.map(str::to_owned).into();
    queries.extend(tables(graph).iter().flat_map(|table| samples(graph, table)));
    queries
}

/// The query for a table's first rows. If the server shows only some of them, also those for the next.
fn samples(graph: &Graph, table: &str) -> Vec<String> {
    let first = format!("SELECT * FROM {} LIMIT {SAMPLE}", quoted(table));
    let shown = match answer(graph, &first).and_then(|seen| seen.reading.lists.first()) {
        Some(list) if !list.is_list && !list.records.is_empty() => list.records.len(),
        _ => SAMPLE,
    };
    let next = (1..SAMPLE.div_ceil(shown)).map(|page| format!("{first} OFFSET {}", page * shown));
    std::iter::once(first.clone()).chain(next).collect()
}

/// The call with this query that worked.
fn answer<'g>(graph: &'g Graph, query: &str) -> Option<&'g SuccessfulCall> {
    graph.seen.iter().find(|seen| seen.args.iter().any(|arg| arg.leaf.as_deref() == Some(query)))
}

fn tables(graph: &Graph) -> Vec<String> {
    let is_identifier = |text: &str| {
        text.len() < 64
            && text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
            && !text.starts_with("sqlite_")
    };
    let named =
        graph.known.iter().filter(|(text, known)| known.words.contains("table") && is_identifier(text));
    // Columns of a table's description are no tables.
    let listed = named.filter(|(_, known)| {
        known.origins.iter().any(|origin| {
            let seen = &graph.seen[origin.call];
            let field = &seen.reading.lists[origin.list].records[origin.record][origin.field];
            let of_field = words::tokens(&field.name);
            (seen.args.is_empty() && (of_field.contains("name") || of_field.is_empty()))
                || of_field.contains("table")
        })
    });
    listed.map(|(text, _)| text.clone()).take(TABLES).collect()
}

fn quoted(name: &str) -> String {
    let is_plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn literal(value: &str) -> String {
    if value.parse::<f64>().is_ok_and(f64::is_finite) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', "''"))
    }
}

/// The parameter of a tool that takes SQL.
fn parameter(profile: &ToolProfile) -> Option<&str> {
    profile.params.iter().find(|param| param.kind == Kind::Sql).map(|param| param.name.as_str())
}

/// Whether a call that was seen is a query.
pub fn is_sql(graph: &Graph, profiles: &[ToolProfile], index: usize) -> bool {
    parameter(&profiles[graph.seen[index].tool]).is_some()
}

/// A sampled table.
struct Table<'g> {
    name: String,
    /// What a row is.
    thing: String,
    /// The calls that show that it exists and which columns it has.
    listing: Option<ToolCall>,
    describing: Option<ToolCall>,
    tool: &'g ToolProfile,
    parameter: &'g str,
    rows: Vec<&'g Record>,
    /// All rows were sampled.
    is_complete: bool,
    columns: Vec<String>,
    /// Columns of numbers that are stored as numbers.
    numbers: BTreeSet<String>,
    /// Columns that hold keys of other tables' rows.
    referring: BTreeSet<String>,
}

/// A column that holds keys of another table's rows.
struct Reference<'t, 'g> {
    column: &'t str,
    to: &'t Table<'g>,
    key: &'t str,
    /// What the other row is to this one: `customer`, or `manager` of a table of people.
    role: String,
}

impl<'g> Table<'g> {
    fn query(&self, sql: String) -> ToolCall {
        let arguments = Map::from_iter([(self.parameter.to_owned(), sql.into())]);
        ToolCall { name: self.tool.name.clone(), arguments }
    }

    /// The values of a column, without those that are missing.
    fn values(&self, column: &str) -> Vec<&str> {
        let values = self.rows.iter().filter_map(|row| value_of(row, column));
        values.filter(|value| !is_null(value)).collect()
    }

    fn distinct(&self, column: &str) -> BTreeSet<&str> {
        self.values(column).into_iter().collect()
    }

    /// Whether a column only says which row it is, or which other row it belongs to.
    fn is_id(&self, column: &str) -> bool {
        words::tokens(column).contains("id") || self.referring.contains(column) || self.id() == Some(column)
    }

    /// The column that identifies a row, by its name and values.
    fn id(&self) -> Option<&str> {
        let own: BTreeSet<String> = words::tokens(&self.thing);
        let is_own = |column: &&String| {
            let mut tokens = words::tokens(column);
            let is_key = KEYS.iter().any(|key| tokens.remove(*key));
            // The first column may abbreviate what a row is: `rx_no`.
            is_key && (tokens.is_subset(&own) || self.columns.first() == Some(*column))
        };
        let column = self.columns.iter().find(is_own)?;
        (self.distinct(column).len() == self.rows.len()).then_some(column)
    }

    /// The column that names a row in words.
    fn name(&self) -> Option<&str> {
        let names = |column: &&String| {
            self.distinct(column).len() == self.rows.len()
                && !self.is_id(column)
                && !self.numbers.contains(*column)
                && self.values(column).iter().all(|value| is_said(value))
        };
        let is_name = |column: &&&String| {
            words::tokens(column).iter().any(|word| ["name", "title"].contains(&word.as_str()))
        };
        let columns: Vec<&String> = self.columns.iter().filter(names).collect();
        columns.iter().find(is_name).map(|column| column.as_str())
    }

    /// The column that tasks name a row by.
    fn key(&self) -> Option<&str> {
        self.name().or_else(|| self.id())
    }

    /// Columns that say something about a row, other than which one it is.
    fn facts(&self) -> impl Iterator<Item = &str> {
        let key = self.key();
        let facts = self.columns.iter().map(String::as_str);
        facts.filter(move |column| Some(*column) != key && !self.is_id(column))
    }

    /// Columns with few values, each with those that tasks may say.
    fn categories(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        let is_number = |column: &str| self.numbers.contains(column) && !is_flag(self, column);
        self.facts().filter(move |column| !is_number(column)).filter_map(|column| {
            let distinct = self.distinct(column);
            let is_category = distinct.len() >= 2 && distinct.len() * 3 <= self.rows.len() * 2;
            let values = distinct.into_iter().filter(|value| is_said(value)).collect();
            is_category.then_some((column, values))
        })
    }

    /// Columns of dates.
    fn dates(&self) -> impl Iterator<Item = &str> {
        self.facts().filter(|column| Sense::of(self, column) == Sense::Date)
    }

    /// Columns of numbers that are quantities, each with whether they are whole.
    fn quantities(&self) -> impl Iterator<Item = (&str, bool)> {
        let is_number = |column: &&str| self.numbers.contains(*column) && !is_flag(self, column);
        self.facts()
            .filter(is_number)
            .map(|column| (column, self.values(column).iter().all(|value| value.parse::<i64>().is_ok())))
    }

    /// Columns that refer to other tables: `customer_id` to the table `customers`, if the values are there.
    fn references<'t>(&'t self, tables: &'t [Table<'g>]) -> Vec<Reference<'t, 'g>> {
        let refers = |column: &'t String| {
            let tokens = words::tokens(column);
            tables.iter().filter(|other| other.name != self.name).find_map(|other| {
                let key = other.id()?;
                let of_name = words::tokens(&other.thing).is_subset(&tokens);
                let values = self.distinct(column);
                let ids = other.distinct(key);
                let are_there = match other.is_complete {
                    true => values.is_subset(&ids),
                    false => values.iter().any(|value| ids.contains(value)),
                };
                let role: Vec<String> =
                    words::split(column).into_iter().filter(|word| !KEYS.contains(&word.as_str())).collect();
                (of_name && are_there).then(|| Reference { column, to: other, key, role: role.join(" ") })
            })
        };
        self.columns.iter().filter(|column| Some(column.as_str()) != self.id()).filter_map(refers).collect()
    }
}

/// Whether a task may say this value.
fn is_said(value: &str) -> bool {
    !is_null(value) && value.len() <= 60
}

fn is_null(value: &str) -> bool {
    ["", "null", "none", "nan"].contains(&value.trim().to_lowercase().as_str())
}

/// Whether a column says yes or no.
fn is_flag(table: &Table<'_>, column: &str) -> bool {
    let values: BTreeSet<String> = table.distinct(column).into_iter().map(str::to_lowercase).collect();
    let pairs = [["0", "1"], ["no", "yes"], ["false", "true"], ["n", "y"], ["f", "t"]];
    pairs.iter().any(|pair| values.iter().eq(pair))
}

/// Candidates about every table that was sampled.
pub fn candidates(graph: &Graph, profiles: &[ToolProfile], seed: u64) -> Vec<Candidate> {
    let mut tables = sampled(graph, profiles);
    let referring: Vec<BTreeSet<String>> = tables
        .iter()
        .map(|table| table.references(&tables).iter().map(|reference| reference.column.to_owned()).collect())
        .collect();
    for (table, referring) in tables.iter_mut().zip(referring) {
        table.referring = referring;
    }
    questions::candidates(&tables, seed)
}

fn sampled<'g>(graph: &'g Graph, profiles: &'g [ToolProfile]) -> Vec<Table<'g>> {
    let mut tables: Vec<Table<'g>> = Vec::new();
    for name in self::tables(graph) {
        let pages: Vec<&SuccessfulCall> =
            samples(graph, &name).iter().filter_map(|query| answer(graph, query)).collect();
        let mut rows: Vec<&Record> = Vec::new();
        for row in pages.iter().filter_map(|seen| seen.reading.lists.first()).flat_map(|list| &list.records) {
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        let Some(profile) = pages.first().map(|seen| &profiles[seen.tool]) else { continue };
        let (Some(parameter), Some(first)) = (parameter(profile), rows.first()) else { continue };
        // What lists tables without a query comes first.
        let origins = graph.known.get(&name).map_or(&[][..], |known| &known.origins);
        let lists = |origin: &&super::graph::Origin| graph.seen[origin.call].args.is_empty();
        let origin = origins.iter().find(lists).or(origins.first());
        let describes = |seen: &&SuccessfulCall| {
            parameter_is_only(&seen.args, &name) && profiles[seen.tool].name != profile.name
        };
        let mut words = words::split(&name);
        if let Some(last) = words.last_mut() {
            *last = words::singular(last);
        }
        let columns: Vec<String> =
            first.iter().map(|field| field.name.clone()).filter(|name| !name.is_empty()).collect();
        let is_number = |column: &&String| {
            let values = rows.iter().filter_map(|row| value_of(row, column));
            let mut values = values.filter(|value| !is_null(value)).peekable();
            values.peek().is_some()
                && values.all(|value| {
                    let is_text = |seen: &&SuccessfulCall| {
                        ['\'', '"'].iter().any(|quote| seen.text.contains(&format!("{quote}{value}{quote}")))
                    };
                    value.parse::<f64>().is_ok_and(f64::is_finite) && !pages.iter().any(is_text)
                })
        };
        tables.push(Table {
            thing: words.join(" "),
            listing: origin.map(|origin| graph.seen[origin.call].call.clone()),
            describing: graph.seen.iter().find(describes).map(|seen| seen.call.clone()),
            tool: profile,
            parameter,
            is_complete: rows.len() < SAMPLE,
            numbers: columns.iter().filter(is_number).cloned().collect(),
            columns,
            referring: BTreeSet::new(),
            rows,
            name,
        });
    }
    tables
}

fn parameter_is_only(args: &[Arg], value: &str) -> bool {
    matches!(args, [only] if only.leaf.as_deref() == Some(value))
}
