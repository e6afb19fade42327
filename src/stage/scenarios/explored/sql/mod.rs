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

pub use self::phrases::{Sense, is_person};
use super::{
    graph::{Graph, SuccessfulCall},
    seeds::Kind,
    tools::ToolProfile,
};
use crate::{
    chat::ToolCall,
    mcp::plain,
    stage::scenarios::{
        candidate::{Candidate, value_of},
        harvest::{Field, Record},
        words,
    },
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
    rows: Vec<Record>,
    /// All rows were sampled.
    is_complete: bool,
    columns: Vec<String>,
    /// The columns of a first and a last name, which rows then have as [`FULL_NAME`] too.
    full_name: Option<[String; 2]>,
    /// Columns of numbers that are stored as numbers.
    numbers: BTreeSet<String>,
    /// Columns that hold keys of other tables' rows.
    referring: BTreeSet<String>,
}

/// A column that holds keys of another table's rows, or a row of columns by which one gets there.
struct Reference<'t, 'g> {
    joins: Vec<Join<'t, 'g>>,
    to: &'t Table<'g>,
    /// What the other row is to this one: `customer`, or `manager` of a table of people.
    role: String,
}

#[derive(Clone, Copy)]
struct Join<'t, 'g> {
    from: &'t Table<'g>,
    column: &'t str,
    to: &'t Table<'g>,
    key: &'t str,
}

impl<'t> Reference<'t, '_> {
    /// Whether a row names the other row itself.
    fn is_direct(&self) -> bool {
        self.joins.len() == 1
    }

    fn key(&self) -> &'t str {
        self.joins.last().map_or("", |join| join.key)
    }
}

/// What a first and a last name are together.
const FULL_NAME: &str = "full_name";
/// Columns of first names, and of last names.
const NAME_PARTS: [[&str; 4]; 2] = [
    ["first name", "given name", "firstname", "forename"],
    ["last name", "family name", "lastname", "surname"],
];

impl<'g> Table<'g> {
    /// A column in a query of this table, or of several.
    fn expression(&self, column: &str, qualifier: &str) -> String {
        match &self.full_name {
            Some([first, last]) if column == FULL_NAME => {
                format!("{qualifier}{} || ' ' || {qualifier}{}", quoted(first), quoted(last))
            }
            _ => format!("{qualifier}{}", quoted(column)),
        }
    }

    fn qualifier(&self) -> String {
        format!("{}.", quoted(&self.name))
    }

    /// `orders.id`
    fn of(&self, column: &str) -> String {
        self.expression(column, &self.qualifier())
    }

    fn selected(&self, column: &str, qualifier: &str) -> String {
        let expression = self.expression(column, qualifier);
        if self.columns.iter().any(|own| own == column) {
            expression
        } else {
            format!("{expression} AS {column}")
        }
    }

    /// A column behind SELECT.
    fn shown(&self, column: &str) -> String {
        self.selected(column, "")
    }

    fn shown_of(&self, column: &str) -> String {
        self.selected(column, &self.qualifier())
    }

    fn has(&self, column: &str, value: &str, qualifier: &str) -> String {
        match (&self.full_name, value.split_once(' ')) {
            (Some(parts), Some((first, last))) if column == FULL_NAME => {
                let [first, last] = [(first, &parts[0]), (last, &parts[1])]
                    .map(|(value, part)| format!("{qualifier}{} = {}", quoted(part), literal(value)));
                format!("{first} AND {last}")
            }
            _ => format!("{} = {}", self.expression(column, qualifier), literal(value)),
        }
    }

    /// A condition: `status = 'open'`.
    fn is(&self, column: &str, value: &str) -> String {
        self.has(column, value, "")
    }

    /// The same, with the table's name.
    fn is_of(&self, column: &str, value: &str) -> String {
        self.has(column, value, &self.qualifier())
    }

    /// `SELECT … FROM orders WHERE …`; all rows without a condition.
    fn select(&self, what: &str, condition: &str) -> String {
        let all = format!("SELECT {what} FROM {}", quoted(&self.name));
        if condition.is_empty() { all } else { format!("{all} WHERE {condition}") }
    }

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

    /// The distinct values that tasks may say.
    fn said(&self, column: &str) -> impl Iterator<Item = &str> {
        self.distinct(column).into_iter().filter(|value| is_said(value))
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
        if self.full_name.is_some() {
            return Some(FULL_NAME);
        }
        let names = |column: &&String| {
            self.distinct(column).len() == self.rows.len()
                && !self.is_id(column)
                && !self.numbers.contains(*column)
                && self.values(column).iter().all(|value| is_said(value))
        };
        let mut columns = self.columns.iter().filter(names).map(String::as_str);
        columns.find(|column| phrases::is_name(column))
    }

    /// The column that tasks name a row by.
    fn key(&self) -> Option<&str> {
        self.name().or_else(|| self.id())
    }

    /// Columns that say something about a row, other than which one it is.
    fn facts(&self) -> impl Iterator<Item = &str> {
        let key = self.key();
        let is_part = |column: &str| self.full_name.iter().flatten().any(|part| part == column);
        let facts = self.columns.iter().map(String::as_str);
        facts.filter(move |column| Some(*column) != key && !self.is_id(column) && !is_part(column))
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

    /// Columns that are compared: quantities, and dates as if they were whole.
    fn measures(&self) -> impl Iterator<Item = (&str, bool)> {
        self.quantities().chain(self.dates().map(|column| (column, true)))
    }

    /// The tables that a row refers to, and those that these refer to.
    fn references<'t>(&'t self, tables: &'t [Table<'g>]) -> Vec<Reference<'t, 'g>> {
        let direct = self.direct_references(tables);
        let mut further: Vec<Reference<'t, 'g>> = Vec::new();
        for first in &direct {
            for second in first.to.direct_references(tables) {
                let is_known = second.to.name == self.name
                    || direct.iter().chain(&further).any(|known| known.to.name == second.to.name);
                if !is_known {
                    let joins = first.joins.iter().chain(&second.joins).copied().collect();
                    further.push(Reference { joins, ..second });
                }
            }
        }
        direct.into_iter().chain(further).collect()
    }

    /// Columns that refer to other tables: `customer_id` to the table `customers`, if the values are there; `appt_no` to the
    /// table whose key is called so; and `seen_by`, if its values are codes that only the table `staff` has.
    fn direct_references<'t>(&'t self, tables: &'t [Table<'g>]) -> Vec<Reference<'t, 'g>> {
        let own_key = self.id();
        self.columns
            .iter()
            .filter(|column| Some(column.as_str()) != own_key)
            .filter_map(|column| {
                let tokens = words::tokens(column);
                let codes = self.distinct(column);
                let are_codes = codes.len() > 1 && codes.iter().all(|code| is_code(code));
                let others = tables.iter().filter(|other| other.name != self.name);
                let fitting: Vec<(&'t Table<'g>, &'t str)> = others
                    .filter_map(|other| {
                        Some((other, other.id().filter(|key| self.has_values_of(column, other, key))?))
                    })
                    .collect();
                let says_more = tokens.iter().any(|word| !KEYS.contains(&word.as_str()));
                let named = fitting.iter().find(|(other, _)| words::tokens(&other.thing).is_subset(&tokens));
                let same = fitting.iter().find(|(_, key)| says_more && key == column);
                let only = fitting.first().filter(|_| are_codes && fitting.len() == 1);
                let (to, key) = *named.or(same).or(only)?;
                let mut role = words::split(column);
                role.retain(|word| !KEYS.contains(&word.as_str()));
                // `appt` and `seen by` are no nouns.
                let is_noun = named.is_some()
                    || role.last().is_some_and(|last| {
                        same.is_none() && !phrases::PREPOSITIONS.contains(&last.as_str())
                    });
                let role = if is_noun { role.join(" ") } else { to.thing.clone() };
                Some(Reference { joins: vec![Join { from: self, column, to, key }], to, role })
            })
            .collect()
    }

    /// Whether the values of a column are keys of another table.
    fn has_values_of(&self, column: &str, other: &Table<'_>, key: &str) -> bool {
        let (values, keys) = (self.distinct(column), other.distinct(key));
        match other.is_complete {
            true => values.is_subset(&keys),
            false => values.iter().any(|value| keys.contains(value)),
        }
    }
}

/// Whether a value says nothing but which row is meant: `AKO`, `P-0017`.
fn is_code(value: &str) -> bool {
    value.chars().any(|letter| letter.is_alphabetic())
        && value
            .chars()
            .all(|letter| letter.is_uppercase() || letter.is_ascii_digit() || "-_./".contains(letter))
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

/// Whether a query joins tables, and the table that it is about.
pub fn subject(candidate: &Candidate) -> (usize, String) {
    let is_join = |call: &ToolCall| call.arguments.values().any(|value| plain(value).contains(" JOIN "));
    let table = candidate.family.split(':').next().unwrap_or_default();
    (usize::from(candidate.calls.last().is_some_and(is_join)), table.to_owned())
}

/// Candidates about every table that was sampled.
pub fn candidates(graph: &Graph, profiles: &[ToolProfile], seed: u64) -> Vec<Candidate> {
    let mut tables = sampled(graph, profiles);
    let references = tables.iter().map(|table| table.direct_references(&tables));
    let referring: Vec<BTreeSet<String>> = references
        .map(|all| all.iter().flat_map(|one| &one.joins).map(|join| join.column.to_owned()).collect())
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
        let mut rows: Vec<Record> = Vec::new();
        for row in pages.iter().filter_map(|seen| seen.reading.lists.first()).flat_map(|list| &list.records) {
            if !rows.contains(row) {
                rows.push(row.clone());
            }
        }
        let Some(profile) = pages.first().map(|seen| &profiles[seen.tool]) else { continue };
        let (Some(parameter), Some(first)) = (parameter(profile), rows.first()) else { continue };
        // What lists tables without a query comes first.
        let origins = graph.known.get(&name).map_or(&[][..], |known| &known.origins);
        let lists = |origin: &&super::graph::Origin| graph.seen[origin.call].args.is_empty();
        let origin = origins.iter().find(lists).or(origins.first());
        let describes = |seen: &&SuccessfulCall| {
            matches!(&*seen.args, [only] if only.leaf.as_ref() == Some(&name))
                && profiles[seen.tool].name != profile.name
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
            full_name: with_full_names(&mut rows, &columns),
            columns,
            referring: BTreeSet::new(),
            rows,
            name,
        });
    }
    tables
}

/// Adds full names to rows that have a first and a last name, if they tell the rows apart.
fn with_full_names(rows: &mut [Record], columns: &[String]) -> Option<[String; 2]> {
    let part =
        |names: [&str; 4]| columns.iter().find(|column| names.contains(&&*words::spoken(column))).cloned();
    let parts = [part(NAME_PARTS[0])?, part(NAME_PARTS[1])?];
    let full = |row: &Record| {
        let [first, last] = [value_of(row, &parts[0])?, value_of(row, &parts[1])?];
        // Where the first name ends must be plain.
        (is_said(first) && is_said(last) && !first.contains(' ')).then(|| format!("{first} {last}"))
    };
    let names: Option<BTreeSet<String>> = rows.iter().map(full).collect();
    let is_free = columns.iter().all(|column| column != FULL_NAME);
    if !is_free || names?.len() < rows.len() {
        return None;
    }
    for row in rows {
        let value = full(row)?;
        row.push(Field { name: FULL_NAME.to_owned(), value, is_set: false });
    }
    Some(parts)
}
