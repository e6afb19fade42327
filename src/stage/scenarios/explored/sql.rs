//! Questions for a tool that takes SQL: the language of a parameter, as a format is.
//!
//! Tables are found by name in other results or in the standard catalogs, and sampled. Every answer is that of a query.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Map;

use super::{
    graph::{self, Graph, SuccessfulCall},
    harvest::Record,
    seeds::Kind,
    tools::ToolProfile,
    wording, words,
};
use crate::{
    chat::ToolCall,
    stage::scenarios::candidate::{AnswerRule, Candidate, Check, value_of},
};

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
    thing: String,
    /// The calls that show that it exists and which columns it has.
    before: Vec<ToolCall>,
    tool: &'g ToolProfile,
    parameter: &'g str,
    rows: Vec<&'g Record>,
    columns: Vec<String>,
}

impl Table<'_> {
    fn query(&self, sql: String) -> ToolCall {
        let arguments = Map::from_iter([(self.parameter.to_owned(), sql.into())]);
        ToolCall { name: self.tool.name.clone(), arguments }
    }

    fn values(&self, column: &str) -> Vec<&str> {
        self.rows.iter().filter_map(|row| value_of(row, column)).collect()
    }

    fn distinct(&self, column: &str) -> BTreeSet<&str> {
        self.values(column).into_iter().collect()
    }

    fn is_number(&self, column: &str) -> bool {
        let values = self.values(column);
        !values.is_empty() && values.iter().all(|value| value.parse::<f64>().is_ok())
    }

    fn is_id(column: &str) -> bool {
        words::tokens(column).contains("id")
    }

    /// The column that names a row.
    fn key(&self) -> Option<&str> {
        let names = |column: &&String| {
            self.distinct(column).len() == self.rows.len()
                && !self.is_number(column)
                && self.values(column).iter().all(|value| !value.trim().is_empty() && value.len() <= 60)
        };
        let is_name = |column: &&&String| {
            words::tokens(column).iter().any(|word| ["name", "title"].contains(&word.as_str()))
        };
        let columns: Vec<&String> = self.columns.iter().filter(names).collect();
        columns.iter().find(is_name).or(columns.first()).map(|column| column.as_str())
    }
}

/// Candidates about every table that was sampled.
pub fn candidates(graph: &Graph, profiles: &[ToolProfile], seed: u64) -> Vec<Candidate> {
    let tables = sampled(graph, profiles);
    let mut candidates = Vec::new();
    for table in &tables {
        let mut asked = Asked { table, seed, candidates: &mut candidates };
        if let Some(key) = table.key() {
            lookups(&mut asked, key);
            extremes(&mut asked, key);
            joins(&mut asked, key, &tables);
        }
        groups(&mut asked);
    }
    candidates
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
        let origin = graph.known.get(&name).and_then(|known| known.origins.first());
        let listing = origin.map(|origin| graph.seen[origin.call].call.clone());
        let describes = |seen: &&SuccessfulCall| {
            parameter_is_only(&seen.args, &name) && profiles[seen.tool].name != profile.name
        };
        let describing = graph.seen.iter().find(describes).map(|seen| seen.call.clone());
        let mut words = words::split(&name);
        if let Some(last) = words.last_mut() {
            *last = words::singular(last);
        }
        tables.push(Table {
            thing: words.join(" "),
            before: listing.into_iter().chain(describing).collect(),
            tool: profile,
            parameter,
            columns: first.iter().map(|field| field.name.clone()).filter(|name| !name.is_empty()).collect(),
            rows,
            name,
        });
    }
    tables
}

fn parameter_is_only(args: &[graph::Arg], value: &str) -> bool {
    matches!(args, [only] if only.leaf.as_deref() == Some(value))
}

/// Collects candidates about one table.
struct Asked<'a> {
    table: &'a Table<'a>,
    seed: u64,
    candidates: &'a mut Vec<Candidate>,
}

impl Asked<'_> {
    fn push(
        &mut self,
        kind: &str,
        entity: &[(&str, &str)],
        queries: Vec<String>,
        rule: AnswerRule,
        texts: &[String],
    ) {
        let table = self.table;
        let family = format!("{}: {kind}", table.name);
        let entity: BTreeMap<String, String> =
            entity.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let place = graph::rank(self.seed, &family, &format!("{entity:?}")) % texts.len().max(1) as u64;
        let Some(text) = usize::try_from(place).ok().and_then(|place| texts.get(place)) else { return };
        let calls = table.before.iter().cloned().chain(queries.into_iter().map(|sql| table.query(sql)));
        self.candidates.push(Candidate {
            phrasing: format!("{} {}", kind.split(' ').next().unwrap_or_default(), place + 1),
            family,
            entity,
            task: wording::sentence(text),
            calls: calls.collect(),
            rule,
            check: Check::Text,
            checks: None,
            alternatives: BTreeSet::new(),
            may_fail: false,
        });
    }
}

fn field(name: &str) -> AnswerRule {
    AnswerRule::Field { list: String::new(), key: None, field: name.to_owned() }
}

/// A column of the row that is named.
fn lookups(asked: &mut Asked<'_>, key: &str) {
    let table = asked.table;
    let (t, k) = (&table.thing, words::spoken(key));
    for row in &table.rows {
        let Some(value) = value_of(row, key) else { continue };
        for column in table.columns.iter().filter(|column| *column != key && !Table::is_id(column)) {
            let (c, v) = (words::spoken(column), words::shown(value));
            let sql = format!(
                "SELECT {}, {} FROM {} WHERE {} = {}",
                quoted(key),
                quoted(column),
                quoted(&table.name),
                quoted(key),
                literal(value)
            );
            asked.push(
                &format!("{column} by {key}"),
                &[(key, value)],
                vec![sql],
                field(column),
                &[
                    format!("What is the {c} of the {t} whose {k} is {v}?"),
                    format!("Tell me the {c} of the {t} {v}."),
                    format!("Find the {t} with the {k} {v}. What is its {c}?"),
                    format!("Look up the {c} of the {t} {v}."),
                ],
            );
        }
    }
}

/// Numbers may be stored as texts, which compare otherwise.
fn as_number(column: &str) -> String {
    format!("CAST({} AS NUMERIC)", quoted(column))
}

/// The row with the largest number.
fn extremes(asked: &mut Asked<'_>, key: &str) {
    let table = asked.table;
    let (t, k) = (&table.thing, words::spoken(key));
    for column in table.columns.iter().filter(|column| table.is_number(column) && !Table::is_id(column)) {
        let c = words::spoken(column);
        let sql = format!(
            "SELECT {key}, {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {number} DESC LIMIT 3",
            key = quoted(key),
            column = quoted(column),
            table = quoted(&table.name),
            number = as_number(column)
        );
        let rule = AnswerRule::Largest { list: String::new(), field: column.clone(), key: key.to_owned() };
        asked.push(
            &format!("largest {column}"),
            &[],
            vec![sql],
            rule,
            &[
                format!("Which {t} has the largest {c}? Give its {k}."),
                format!("What is the {k} of the {t} with the largest {c}?"),
            ],
        );
    }
}

/// Counts and sums over the rows that share a value.
fn groups(asked: &mut Asked<'_>) {
    let table = asked.table;
    let things = words::plural(&table.thing);
    for column in &table.columns {
        let distinct = table.distinct(column);
        if Table::is_id(column)
            || distinct.len() < 2
            || distinct.len() * 3 > table.rows.len() * 2
            || table.is_number(column)
        {
            continue;
        }
        for value in distinct.iter().filter(|value| !value.trim().is_empty() && value.len() <= 60) {
            let (c, v) = (words::spoken(column), words::shown(value));
            let from = format!(
                "FROM {} WHERE {} = {} GROUP BY {}",
                quoted(&table.name),
                quoted(column),
                literal(value),
                quoted(column)
            );
            let sql = format!("SELECT {}, COUNT(*) AS total {from}", quoted(column));
            asked.push(
                &format!("count by {column}"),
                &[(column, value)],
                vec![sql],
                field("total"),
                &[
                    format!("How many {things} have the {c} {v}?"),
                    format!("Count the {things} whose {c} is {v}."),
                    format!("What is the number of {things} with the {c} {v}?"),
                ],
            );
            for number in
                table.columns.iter().filter(|number| table.is_number(number) && !Table::is_id(number))
            {
                let is_whole = table.values(number).iter().all(|value| value.parse::<i64>().is_ok());
                if !is_whole {
                    continue;
                }
                let n = words::spoken(number);
                let sql = format!("SELECT {}, MAX({}) AS highest {from}", quoted(column), as_number(number));
                asked.push(
                    &format!("highest {number} by {column}"),
                    &[(column, value)],
                    vec![sql],
                    field("highest"),
                    &[
                        format!("What is the highest {n} among the {things} whose {c} is {v}?"),
                        format!("Among the {things} with the {c} {v}, how large is the largest {n}?"),
                    ],
                );
            }
        }
    }
}

/// A column of the row of another table that this row refers to.
fn joins(asked: &mut Asked<'_>, key: &str, tables: &[Table<'_>]) {
    let table = asked.table;
    let (t, k) = (&table.thing, words::spoken(key));
    for link in table.columns.iter().filter(|column| Table::is_id(column)) {
        let refers = |other: &&Table<'_>| {
            other.name != table.name
                && other.columns.first() == Some(link)
                && other.distinct(link).len() == other.rows.len()
        };
        for other in tables.iter().filter(refers) {
            for row in &table.rows {
                let (Some(value), Some(id)) = (value_of(row, key), value_of(row, link)) else { continue };
                for column in other.columns.iter().filter(|column| !Table::is_id(column)) {
                    let (c, v, o) = (words::spoken(column), words::shown(value), &other.thing);
                    let queries = vec![
                        format!(
                            "SELECT {}, {} FROM {} WHERE {} = {}",
                            quoted(key),
                            quoted(link),
                            quoted(&table.name),
                            quoted(key),
                            literal(value)
                        ),
                        format!(
                            "SELECT {}, {} FROM {} WHERE {} = {}",
                            quoted(link),
                            quoted(column),
                            quoted(&other.name),
                            quoted(link),
                            literal(id)
                        ),
                    ];
                    asked.push(
                        &format!("{column} of {} by {key}", other.name),
                        &[(key, value)],
                        queries,
                        field(column),
                        &[
                            format!("What is the {c} of the {o} of the {t} whose {k} is {v}?"),
                            format!("Tell me the {c} of the {o} that belongs to the {t} {v}."),
                            format!("Find the {o} of the {t} {v}. What is the {c} of this {o}?"),
                        ],
                    );
                }
            }
        }
    }
}
