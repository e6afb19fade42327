//! Questions for a tool that takes SQL: the language of a parameter, as a format is.
//!
//! Tables are found by name in other results or in the standard catalogs, and sampled. Every answer is that of a query, and
//! the reference solution is what a person would call: the list of tables, the description of those in question, one query.

mod columns;
mod phrases;
mod questions;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Map;

use self::schema::{SQLITE, STANDARD, Schema, Type};
use super::{
    asks::{self, Column, Condition, Test},
    graph::{Graph, SuccessfulCall},
    seeds::Kind,
    tools::ToolProfile,
};
use crate::{
    answer_rule::value_of,
    candidate::Candidate,
    chat::ToolCall,
    harvest::{Field, Record},
    mcp::plain,
    senses::{Sense, is_person},
    words::{self, KEYS},
};

/// From here on, numbers are times or names and count nothing, if all of a column are.
const LONG: f64 = 1e9;
/// Rows of a table that are sampled.
const SAMPLE: usize = 20;
const TABLES: usize = 12;

/// The database behind a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Other,
}

impl Dialect {
    fn of(graph: &Graph) -> Self {
        if answer(graph, SQLITE.tables).is_some() { Self::Sqlite } else { Self::Other }
    }
}

/// Queries that explore: the catalogs, then a sample of each table, then how many values its columns have.
pub fn queries(graph: &Graph) -> Vec<String> {
    let mut queries: Vec<String> = [SQLITE.tables, STANDARD.tables].map(str::to_owned).into();
    for catalog in [SQLITE, STANDARD].iter().filter(|catalog| answer(graph, catalog.tables).is_some()) {
        queries.extend(catalog.details.iter().map(|query| (*query).to_owned()));
    }
    let tables = tables(graph);
    queries.extend(tables.iter().flat_map(|table| samples(graph, table)));
    queries.extend(tables.iter().flat_map(|table| counting(graph, table)));
    queries
}

/// The query that counts a table's values, if it was sampled. If the server shows only some of the counts, also those for the next.
fn counting(graph: &Graph, table: &str) -> Vec<String> {
    let rows = samples(graph, table).first().and_then(|query| answer(graph, query));
    let first = rows.and_then(|seen| seen.reading.lists.first()).and_then(|list| list.records.first());
    let Some(first) = first else { return Vec::new() };
    let columns = columns(first);
    let full_name = name_parts(&columns);
    let full_name = full_name.map(|[first, last]| format!("{} || ' ' || {}", quoted(&first), quoted(&last)));
    let full_name = full_name.as_deref().map(|expression| (FULL_NAME, expression));
    let query =
        |columns: &[String], full_name| schema::counting(table, columns, full_name, Dialect::of(graph));
    let all = query(&columns, full_name);
    let shown = answer(graph, &all).and_then(|seen| seen.reading.lists.first());
    match shown.filter(|list| !list.is_list && !list.records.is_empty()) {
        None => vec![all],
        Some(list) => {
            let rest = columns[list.records.len().min(columns.len())..].chunks(list.records.len());
            std::iter::once(all).chain(rest.map(|columns| query(columns, None))).collect()
        }
    }
}

/// The names of a row's columns.
fn columns(row: &Record) -> Vec<String> {
    row.iter().map(|field| field.name.clone()).filter(|name| !name.is_empty()).collect()
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

/// The names of tables and views: those of the catalog, or else those that the server's tools list.
pub fn tables(graph: &Graph) -> Vec<String> {
    let is_shown =
        |text: &str| text.len() < 64 && !text.starts_with("sqlite_") && !text.contains(['\n', '\'']);
    let (names, is_whole) = schema::tables(graph);
    let names = names.into_iter().filter(|name| is_shown(name)).map(str::to_owned);
    let mut catalog: BTreeSet<String> = names.collect();
    if is_whole && !catalog.is_empty() {
        return catalog.into_iter().take(TABLES).collect();
    }
    let is_identifier = |text: &str| {
        text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let named = graph
        .known
        .iter()
        .filter(|(text, known)| known.words.contains("table") && is_shown(text) && is_identifier(text));
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
    catalog.extend(listed.map(|(text, _)| text.clone()));
    catalog.into_iter().take(TABLES).collect()
}

/// Words that are no names without quotes.
const RESERVED: [&str; 36] = [
    "all", "and", "as", "asc", "by", "case", "check", "column", "create", "cross", "default", "desc",
    "distinct", "drop", "else", "end", "exists", "from", "group", "having", "in", "index", "into", "is",
    "join", "like", "limit", "not", "null", "on", "or", "order", "select", "table", "to", "where",
];

fn quoted(name: &str) -> String {
    let is_plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !RESERVED.contains(&name.to_lowercase().as_str());
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
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
    /// The table's name in singular.
    called: String,
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
    /// Columns that hold texts and numbers, or neither.
    odd: BTreeSet<String>,
    schema: Schema,
    /// Columns that hold keys of other rows, or probably do.
    referring: BTreeSet<String>,
    /// What rows of the other tables are.
    others: BTreeSet<String>,
}

/// A column that holds keys of another table's rows, or a row of columns by which one gets there.
struct Reference<'t, 'g> {
    joins: Vec<Join<'t, 'g>>,
    to: &'t Table<'g>,
    /// What the other row is to this one: `customer`, or `manager` of a table of people.
    role: String,
    /// Another column refers to the same table.
    is_one_of_several: bool,
    /// No other column refers to a person, or to a thing, if this one does.
    is_only_one: bool,
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

    /// A value of a column in SQL.
    fn literal(&self, column: &str, value: &str) -> String {
        match self.numbers.contains(column) {
            true => value.to_owned(),
            false => format!("'{}'", value.replace('\'', "''")),
        }
    }

    /// A column, for what a task asks.
    fn column(&self, column: &str) -> Column {
        let of = |column: &str| format!("{}.{column}", self.name);
        match &self.full_name {
            Some(parts) if column == FULL_NAME => Column::Concat { concat: [of(&parts[0]), of(&parts[1])] },
            _ => Column::One(of(column)),
        }
    }

    fn value(&self, column: &str, value: &str) -> serde_json::Value {
        asks::value(value, self.numbers.contains(column))
    }

    /// That a row has this value, for what a task asks.
    fn fits(&self, column: &str, value: &str) -> Condition {
        self.tested(column, Test::Is(self.value(column, value)))
    }

    fn tested(&self, column: &str, test: Test) -> Condition {
        Condition { column: self.column(column), test }
    }

    fn has(&self, column: &str, value: &str, qualifier: &str) -> String {
        match (&self.full_name, value.split_once(' ')) {
            (Some(parts), Some((first, last))) if column == FULL_NAME => {
                let [first, last] = [(first, &parts[0]), (last, &parts[1])].map(|(value, part)| {
                    format!("{qualifier}{} = {}", quoted(part), self.literal(part, value))
                });
                format!("{first} AND {last}")
            }
            _ => format!("{} = {}", self.expression(column, qualifier), self.literal(column, value)),
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
        let fields = self.rows.iter().filter_map(|row| row.iter().find(|field| field.name == column));
        fields.filter(|field| !is_missing(field)).map(|field| field.value.as_str()).collect()
    }

    /// Whether some rows lack a value, as far as is known.
    fn lacks(&self, column: &str) -> bool {
        match self.schema.counts(column) {
            Some(counts) => counts.filled < counts.rows,
            None => self.values(column).len() < self.rows.len() || !self.is_complete,
        }
    }

    /// Whether no two values differ in nothing but case, which nobody says.
    fn is_told_apart(&self, column: &str) -> bool {
        let distinct = self.distinct(column);
        distinct.iter().map(|value| value.to_lowercase()).collect::<BTreeSet<_>>().len() == distinct.len()
    }

    /// Whether every row has a value, and no two have the same.
    fn is_unique(&self, column: &str) -> bool {
        let counts = self.schema.counts(column);
        self.distinct(column).len() == self.rows.len()
            && counts.is_none_or(|counts| counts.different == counts.rows && counts.filled == counts.rows)
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

    /// The column that identifies a row: the declared key, or else by its name and values.
    fn id(&self) -> Option<&str> {
        match &*self.schema.keys {
            [] => {}
            [only] => {
                let key = self.columns.iter().find(|column| column.eq_ignore_ascii_case(only))?;
                return (!columns::is_name(key) && self.is_unique(key)).then_some(key);
            }
            // None of several identifies a row by itself.
            _ => return None,
        }
        let own = words::split(&self.called);
        let is_own = |column: &&String| {
            let mut tokens = words::tokens(column);
            let count = tokens.len();
            tokens.retain(|word| !KEYS.contains(&word.as_str()));
            if tokens.len() == count {
                return false;
            }
            let is_of_thing = tokens.iter().all(|token| own.contains(token))
                && (tokens.is_empty() || own.last().is_some_and(|head| tokens.contains(head)));
            // The first column may abbreviate what a row is: `rx_no`.
            let is_of_other = self.others.iter().any(|other| words::tokens(other) == tokens);
            is_of_thing || self.columns.first() == Some(*column) && !is_of_other
        };
        self.columns.iter().find(is_own).filter(|column| self.is_unique(column)).map(String::as_str)
    }

    /// Whether a view has the name of some rows of a table, `open tickets`, and not these rows.
    fn is_called_like_a_part(&self, tables: &[Table<'_>]) -> bool {
        let is_part = |table: &Table<'_>, column: &str| {
            let called = |value: &&str| format!("{} {}", value.to_lowercase(), table.called) == self.called;
            let Some(value) = table.distinct(column).into_iter().find(called) else { return false };
            let rows = table.values(column).into_iter().filter(|other| *other == value).count();
            !table.is_complete || !self.is_complete || rows != self.rows.len()
        };
        let has_part = |table: &Table<'_>| table.columns.iter().any(|column| is_part(table, column));
        // What its rows are must be a noun.
        let last = words::split(&self.name).pop().unwrap_or_default();
        let is_noun = words::singular(&last) != last;
        self.schema.is_view && (!is_noun || tables.iter().any(has_part))
    }

    /// Whether a row is a person.
    fn is_of_people(&self) -> bool {
        let is_personal = |column: &String| {
            words::has_any(column, &["birth", "dob", "born", "birthday", "birthdate", "gender", "surname"])
        };
        is_person(&self.thing) || self.full_name.is_some() || self.columns.iter().any(is_personal)
    }

    /// Whether a row says little but which rows of other tables belong together.
    fn is_link(&self, references: &[Reference<'_, '_>]) -> bool {
        let direct = references.iter().filter(|reference| reference.is_direct()).count();
        // Where it comes among the others says little more.
        let is_place =
            |column: &str| words::has_any(column, &["position", "order", "sequence", "index", "rank"]);
        direct >= 2 && self.name().is_none() && self.facts().all(is_place)
    }

    /// The column that names a row in words.
    fn name(&self) -> Option<&str> {
        if self.full_name.is_some() {
            return Some(FULL_NAME);
        }
        let names = |column: &&String| {
            self.is_unique(column)
                && !self.is_id(column)
                && !self.numbers.contains(*column)
                && !self.odd.contains(*column)
                && self.values(column).iter().all(|value| is_said(value))
                && self.is_told_apart(column)
        };
        let mut columns = self.columns.iter().filter(names).map(String::as_str);
        columns.find(|column| columns::is_name(column))
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
        let names_itself = |column: &str| words::spoken(column) == self.called;
        facts.filter(move |column| {
            Some(*column) != key
                && !self.is_id(column)
                && !is_part(column)
                && !self.odd.contains(*column)
                && !names_itself(column)
                && !columns::is_odd_flag(self, column)
                && !columns::is_odd_moment(self, column)
        })
    }

    /// Columns with few values, each with those that tasks may say.
    fn categories(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        let is_number = |column: &str| self.numbers.contains(column) && !is_flag(self, column);
        let is_amount = |column: &str| {
            let is_decimal = |value: &&str| value.contains('.') && value.parse::<f64>().is_ok();
            words::is_amount(column) || self.values(column).iter().all(is_decimal)
        };
        let tells_apart = [
            "phone",
            "tel",
            "telephone",
            "mobile",
            "fax",
            "isbn",
            "ean",
            "iban",
            "serial",
            "uuid",
            "ip",
            "email",
        ];
        let is_one = move |column: &&str| {
            !is_number(column)
                && !words::has_any(column, &tells_apart)
                && (!is_amount(column) || is_flag(self, column))
                && (Sense::of(self, column) != Sense::Date || columns::is_done_on(self, column))
        };
        // A text that somebody wrote is no kind of thing.
        let is_prose = |column: &&str| {
            words::has_any(column, &["body", "text", "note", "comment", "description", "message"])
        };
        self.facts().filter(move |column| is_one(column) && !is_prose(column)).filter_map(|column| {
            let distinct = self.distinct(column);
            let is_category = distinct.len() >= 2
                && distinct.len() * 3 <= self.rows.len() * 2
                && self.is_told_apart(column);
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
        let is_number = |column: &&str| {
            self.numbers.contains(*column)
                && !is_flag(self, column)
                && !words::is_identifier(column)
                && !columns::is_odd_moment(self, column)
                && !self.schema.keys.iter().any(|key| key == column)
                && !self
                    .values(column)
                    .iter()
                    .all(|value| value.parse::<f64>().is_ok_and(|number| number >= LONG))
        };
        self.facts()
            .filter(is_number)
            .map(|column| (column, self.values(column).iter().all(|value| value.parse::<i64>().is_ok())))
    }

    /// Columns that are compared: quantities, and dates as if they were whole.
    fn measures(&self) -> impl Iterator<Item = (&str, bool)> {
        self.quantities().chain(self.dates().map(|column| (column, true)))
    }

    /// The tables that a row refers to, and those that these refer to in one way.
    fn references<'t>(&'t self, tables: &'t [Table<'g>]) -> Vec<Reference<'t, 'g>> {
        let direct = self.direct_references(tables);
        let mut further: Vec<Reference<'t, 'g>> = Vec::new();
        for first in direct.iter().filter(|first| !first.is_one_of_several) {
            let of_first = first.to.direct_references(tables);
            for second in of_first.into_iter().filter(|second| !second.is_one_of_several) {
                let is_known =
                    second.to.name == self.name || direct.iter().any(|known| known.to.name == second.to.name);
                if !is_known {
                    let joins = first.joins.iter().chain(&second.joins).copied().collect();
                    further.push(Reference { joins, is_only_one: false, ..second });
                }
            }
        }
        let mut ways: BTreeMap<&str, usize> = BTreeMap::new();
        further.iter().for_each(|reference| *ways.entry(&reference.to.name).or_default() += 1);
        let further = further.into_iter().filter(|reference| ways[reference.to.name.as_str()] == 1);
        direct.into_iter().chain(further.collect::<Vec<_>>()).collect()
    }

    fn direct_references<'t>(&'t self, tables: &'t [Table<'g>]) -> Vec<Reference<'t, 'g>> {
        let mut references: Vec<Reference<'t, 'g>> =
            self.columns.iter().filter_map(|column| self.reference(column, tables)).collect();
        let of_people: Vec<bool> = references.iter().map(|reference| reference.to.is_of_people()).collect();
        let mut ways: BTreeMap<&str, usize> = BTreeMap::new();
        references.iter().for_each(|reference| *ways.entry(&reference.to.name).or_default() += 1);
        for reference in &mut references {
            reference.is_one_of_several = ways[reference.to.name.as_str()] > 1;
            reference.is_only_one =
                of_people.iter().filter(|of| **of == reference.to.is_of_people()).count() == 1;
        }
        references
    }

    /// The table that a column refers to: by declaration; `customer_id` and `customer` to the table `customers`, if the values
    /// are there; `appt_no` to the table whose key is called so; and `seen_by`, if its values are codes that only the table
    /// `staff` has.
    fn reference<'t>(&'t self, column: &'t str, tables: &'t [Table<'g>]) -> Option<Reference<'t, 'g>> {
        let declared = self.schema.references.iter().find(|known| known.column.eq_ignore_ascii_case(column));
        if let Some(declared) = declared {
            let to = tables.iter().find(|other| other.name.eq_ignore_ascii_case(&declared.table))?;
            let key = declared.key.as_ref().or(match &*to.schema.keys {
                [only] => Some(only),
                _ => None,
            });
            let key = match key {
                Some(key) => to.columns.iter().find(|column| column.eq_ignore_ascii_case(key))?,
                None => to.id()?,
            };
            return (to.name != self.name).then(|| self.referring_to(column, to, key));
        }
        if self.id() == Some(column) || words::is_amount(column) {
            return None;
        }
        let codes = self.distinct(column);
        let are_codes = codes.len() > 1 && codes.iter().all(|code| is_code(code));
        let others = tables.iter().filter(|other| other.name != self.name && !other.schema.is_view);
        let fitting: Vec<(&'t Table<'g>, &'t str)> = others
            .filter_map(|other| {
                Some((other, other.id().filter(|key| self.has_values_of(column, other, key))?))
            })
            .collect();
        let is_number = self.numbers.contains(column);
        let named = fitting.iter().filter(|(other, _)| match names(column, &other.called) {
            Some(is_keyed) => is_keyed || !is_number,
            None => false,
        });
        let named = named.max_by_key(|(other, _)| words::split(&other.called).len());
        let says_more = words::tokens(column).iter().any(|word| !KEYS.contains(&word.as_str()));
        let is_key = |other: &Table<'_>| {
            is_keyed(column) || !other.schema.keys.is_empty() && words::is_identifier(column)
        };
        let same = fitting.iter().find(|(other, key)| says_more && *key == column && is_key(other));
        let only = fitting.first().filter(|_| are_codes && fitting.len() == 1);
        let (to, key) = *named.or(same).or(only)?;
        Some(self.referring_to(column, to, key))
    }

    fn referring_to<'t>(&'t self, column: &'t str, to: &'t Table<'g>, key: &'t str) -> Reference<'t, 'g> {
        let mut role = words::split(column);
        role.retain(|word| !KEYS.contains(&word.as_str()));
        // `appt` and `seen by` are no nouns.
        let is_noun = names(column, &to.called).is_some()
            || key != column
                && role.last().is_some_and(|last| !columns::PREPOSITIONS.contains(&last.as_str()));
        // `from_account`
        if let [first, _, ..] = &mut *role
            && let Some((_, end)) =
                [("from", "source"), ("to", "target")].iter().find(|(word, _)| word == first)
        {
            *first = (*end).to_owned();
        }
        let role = if is_noun && !role.is_empty() { role.join(" ") } else { to.thing.clone() };
        Reference {
            joins: vec![Join { from: self, column, to, key }],
            to,
            role,
            is_one_of_several: false,
            is_only_one: false,
        }
    }

    /// Whether a column of numbers may refer to a table that it is called like, although nothing says that these are keys.
    fn may_refer(&self, column: &str, tables: &[Table<'_>]) -> bool {
        let is_own = self.schema.references.iter().any(|known| known.column.eq_ignore_ascii_case(column));
        let is_plural = words::split(column).last().is_some_and(|last| words::singular(last) != *last);
        let is_named = |other: &Table<'_>| {
            names(column, &other.called).is_some()
                && other.id().is_some_and(|key| self.has_values_of(column, other, key))
        };
        is_own || !is_plural && tables.iter().any(|other| other.name != self.name && is_named(other))
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

/// Whether a column's name says that it holds keys: `customer_id`, `id_customer`. `num_rooms` is a number of rooms.
pub fn is_keyed(column: &str) -> bool {
    let said = words::split(column);
    let is = |word: Option<&String>, keys: &[&str]| word.is_some_and(|word| keys.contains(&word.as_str()));
    is(said.last(), &KEYS) || said.len() > 1 && is(said.first(), &["id", "fk", "key", "code"])
}

/// Whether a column is called like a table of such things, and then whether its name says that it holds keys.
fn names(column: &str, thing: &str) -> Option<bool> {
    let is_keyed = is_keyed(column);
    let mut said = words::split(column);
    if is_keyed && said.len() > 1 {
        let at = if KEYS.contains(&said[said.len() - 1].as_str()) { said.len() - 1 } else { 0 };
        said.remove(at);
    }
    let said: Vec<String> = said.iter().map(|word| words::singular(word)).collect();
    let thing = words::split(thing);
    if said.ends_with(&thing) {
        return Some(is_keyed);
    }
    // `customerid`
    let (joined, thing) = (words::split(column).concat(), thing.concat());
    KEYS.iter().any(|key| joined.strip_suffix(key) == Some(&thing)).then_some(true)
}

/// Whether a value says nothing but which row is meant: `AKO`, `P-0017`.
fn is_code(value: &str) -> bool {
    value.len() > 1
        && value.chars().any(|letter| letter.is_alphabetic())
        && value
            .chars()
            .all(|letter| letter.is_uppercase() || letter.is_ascii_digit() || "-_./".contains(letter))
}

/// Whether a task may say this value.
fn is_said(value: &str) -> bool {
    // A sentence has single spaces.
    let is_plain = value.split_whitespace().eq(value.split(' '));
    is_plain && !is_null(value) && value.len() <= 60
}

fn is_missing(field: &Field) -> bool {
    !field.is_text && is_null(&field.value)
}

fn is_null(value: &str) -> bool {
    ["", "null", "none", "nan"].contains(&value.trim().to_lowercase().as_str())
}

/// Whether a column says yes or no.
fn is_flag(table: &Table<'_>, column: &str) -> bool {
    let is_plural = words::split(column).last().is_some_and(|last| words::singular(last) != *last);
    if table.numbers.contains(column) && (is_plural || words::is_amount(column)) {
        return false;
    }
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
    let mut tables = related(graph, profiles);
    let is_clear = tables.iter().map(|table| !table.is_called_like_a_part(&tables)).collect::<Vec<_>>();
    let mut is_clear = is_clear.into_iter();
    // Of one row, nothing is counted or compared.
    tables.retain(|table| is_clear.next() == Some(true) && table.rows.len() > 1);
    questions::candidates(&tables, seed)
}

/// Every table that was sampled, with its columns: what each holds, whether it identifies a row, and what it refers to.
pub fn described(graph: &Graph, profiles: &[ToolProfile]) -> Vec<(String, Vec<String>)> {
    let tables = related(graph, profiles);
    let described = |table: &Table<'_>| {
        let column = |column: &String| {
            let kind = match () {
                () if table.numbers.contains(column) => "number",
                () if Sense::of(table, column) == Sense::Date => "date",
                () => "text",
            };
            let is_key = table.schema.keys.contains(column) || table.id() == Some(column);
            let key = if is_key { " key" } else { "" };
            let reference = table.reference(column, &tables);
            let reference =
                reference.and_then(|reference| reference.joins.first().map(|join| join.to.of(join.key)));
            let reference = reference.map_or_else(String::new, |other| format!(" of {other}"));
            format!("{} {kind}{key}{reference}", quoted(column))
        };
        (quoted(&table.name), table.columns.iter().map(column).collect())
    };
    tables.iter().map(described).collect()
}

/// The tables that were sampled, with what refers to others.
fn related<'g>(graph: &'g Graph, profiles: &'g [ToolProfile]) -> Vec<Table<'g>> {
    let mut tables = sampled(graph, profiles);
    let things: Vec<String> = tables.iter().map(|table| table.called.clone()).collect();
    for table in &mut tables {
        table.others = things.iter().filter(|thing| **thing != table.called).cloned().collect();
    }
    let refers = |table: &Table<'_>, column: &str| {
        table.reference(column, &tables).is_some() || table.may_refer(column, &tables)
    };
    let referring: Vec<BTreeSet<String>> = tables
        .iter()
        .map(|table| table.columns.iter().filter(|column| refers(table, column)).cloned().collect())
        .collect();
    for (table, referring) in tables.iter_mut().zip(referring) {
        table.referring = referring;
    }
    tables
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
        let called = words.join(" ");
        let last = words.last().cloned().unwrap_or_default();
        if words::is_uncountable(&last) && !["series", "species"].contains(&last.as_str()) {
            words.push(if is_person(&last) { "member" } else { "entry" }.to_owned());
        }
        let columns = columns(first);
        let mut schema = Schema::of(graph, profiles, &name, &profile.name);
        for query in counting(graph, &name) {
            let counts = answer(graph, &query).into_iter().flat_map(|seen| &seen.reading.lists);
            schema.count(counts.flat_map(|list| &list.records));
        }
        let kinds: BTreeMap<&String, Option<Type>> =
            columns.iter().map(|column| (column, kind(&rows, column, &schema))).collect();
        let of_kind = |wanted: Option<Type>| {
            kinds.iter().filter(|(_, kind)| **kind == wanted).map(|(column, _)| (*column).clone()).collect()
        };
        tables.push(Table {
            thing: words.join(" "),
            called,
            listing: origin.map(|origin| graph.seen[origin.call].call.clone()),
            describing: graph.seen.iter().find(describes).map(|seen| seen.call.clone()),
            tool: profile,
            parameter,
            is_complete: schema.rows().map_or(rows.len() < SAMPLE, |all| rows.len() >= all),
            numbers: of_kind(Some(Type::Number)),
            odd: of_kind(None),
            full_name: with_full_names(&mut rows, &columns, &schema),
            columns,
            schema,
            referring: BTreeSet::new(),
            others: BTreeSet::new(),
            rows,
            name,
        });
    }
    tables
}

/// What a column holds, by its declaration and its values; none if these are texts and numbers.
fn kind(rows: &[Record], column: &str, schema: &Schema) -> Option<Type> {
    let fields = rows.iter().filter_map(|row| row.iter().find(|field| field.name == column));
    let fields: Vec<&Field> = fields.filter(|field| !is_missing(field)).collect();
    let is_number = |field: &&&Field| field.value.parse::<f64>().is_ok_and(f64::is_finite);
    // `007` and `+49` are no numbers, where nothing says what they are.
    let is_plain = |field: &&&Field| {
        let digits = field.value.trim_start_matches('-');
        !digits.starts_with('+') && (!digits.starts_with('0') || digits == "0" || digits.starts_with("0."))
    };
    let texts = fields.iter().filter(|field| field.is_text).count();
    let numbers = fields.iter().filter(is_number).count();
    match schema.kind(column) {
        Some(Type::Text) => Some(Type::Text),
        Some(Type::Number) if numbers == fields.len() && numbers > 0 => Some(Type::Number),
        Some(Type::Other) if schema.counts(column).is_some_and(|counts| counts.has_types()) => None,
        _ if texts > 0 && fields.iter().any(|field| !field.is_text && field.value.parse::<f64>().is_ok()) => {
            None
        }
        _ if texts > 0 || numbers == 0 => Some(Type::Text),
        _ if numbers == fields.len() && fields.iter().all(|field| is_plain(&field)) => Some(Type::Number),
        _ => Some(Type::Text),
    }
}

/// The columns of a first and a last name.
fn name_parts(columns: &[String]) -> Option<[String; 2]> {
    let part =
        |names: [&str; 4]| columns.iter().find(|column| names.contains(&&*words::spoken(column))).cloned();
    Some([part(NAME_PARTS[0])?, part(NAME_PARTS[1])?])
}

/// Adds full names to rows that have a first and a last name, if they tell the rows apart.
fn with_full_names(rows: &mut [Record], columns: &[String], schema: &Schema) -> Option<[String; 2]> {
    let parts = name_parts(columns)?;
    if schema.counts(FULL_NAME).is_some_and(|counts| counts.different < counts.rows) {
        return None;
    }
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
        row.push(Field { name: FULL_NAME.to_owned(), value, is_text: true, ..Field::default() });
    }
    Some(parts)
}
