//! What is asked about tables, with the query that answers it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Reference, Table, literal,
    phrases::{self, Operation, Sense},
    quoted,
};
use crate::{
    chat::ToolCall,
    stage::scenarios::{
        candidate::{AnswerRule, Candidate, Check, value_of},
        explored::{graph, wording, words},
    },
};

const ALL: &str = "Give all of them, separated by commas.";
/// Values that tasks say of a column with few values.
const VALUES: usize = 12;
/// Of so many solutions, one has a query that fails before the right one, so that a model learns to go on.
const SLIPS: u64 = 7;

/// Candidates about every table.
pub fn candidates(tables: &[Table<'_>], seed: u64) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for table in tables {
        let mut asked = Asked { tables: vec![table], seed, candidates: &mut candidates };
        if let Some(key) = table.key() {
            lookups(&mut asked, key);
            superlatives(&mut asked, key);
        }
        if let Some(name) = table.name() {
            lookups_of_nothing(&mut asked, name);
            members(&mut asked, name);
        }
        counts(&mut asked);
        comparisons(&mut asked);
        operations(&mut asked);
        for reference in table.references(tables) {
            asked.tables = vec![table, reference.to];
            if let Some(key) = table.key() {
                referred(&mut asked, &reference, key);
            }
            if let Some(name) = reference.to.name() {
                referring(&mut asked, &reference, name);
                most_referring(&mut asked, &reference, name);
                let others = table.references(tables).into_iter();
                for other in others.filter(|other| other.to.name != reference.to.name) {
                    asked.tables = vec![table, reference.to, other.to];
                    linked(&mut asked, &reference, name, &other);
                }
            }
        }
    }
    candidates
}

/// Wordings of a question, and the forms of their slots: `{row}`.
struct Wordings {
    texts: Vec<String>,
    slots: Vec<(&'static str, Vec<String>)>,
}

impl Wordings {
    fn of(texts: impl Into<Vec<String>>) -> Self {
        Self { texts: texts.into(), slots: Vec::new() }
    }

    fn with(mut self, slot: &'static str, forms: impl Into<Vec<String>>) -> Self {
        self.slots.push((slot, forms.into()));
        self
    }

    /// One wording, which is drawn by the query, and its place.
    fn draw(&self, seed: u64, sql: &str) -> Option<(usize, String)> {
        let draw = |name: &str, forms: &[String]| {
            let rank = graph::rank(seed, name, sql);
            usize::try_from(rank % forms.len().max(1) as u64).unwrap_or_default()
        };
        let place = draw("text", &self.texts);
        let mut text = self.texts.get(place)?.clone();
        for (slot, forms) in &self.slots {
            text = text.replace(slot, forms.get(draw(slot, forms))?);
        }
        Some((place, text))
    }
}

/// Collects candidates about tables, whose first is the one that is asked about.
struct Asked<'a, 't, 'g> {
    tables: Vec<&'t Table<'g>>,
    seed: u64,
    candidates: &'a mut Vec<Candidate>,
}

impl<'t, 'g> Asked<'_, 't, 'g> {
    fn table(&self) -> &'t Table<'g> {
        self.tables[0]
    }

    /// A question in one of these wordings, whose answer is that of a query.
    fn push(
        &mut self,
        kind: &str,
        entity: &[(&str, &str)],
        sql: String,
        rule: AnswerRule,
        wordings: &Wordings,
    ) {
        let table = self.table();
        let family = format!("{}: {kind}", table.name);
        let entity: BTreeMap<String, String> =
            entity.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let Some((place, text)) = wordings.draw(self.seed, &sql) else { return };
        let mut calls: Vec<ToolCall> = table.listing.clone().into_iter().collect();
        calls.extend(self.tables.iter().filter_map(|table| table.describing.clone()));
        let is_slip = graph::rank(self.seed, "slip", &sql).is_multiple_of(SLIPS);
        let slip = is_slip.then(|| slip(table, &sql)).flatten();
        let may_fail = slip.is_some();
        calls.extend(slip.map(|sql| table.query(sql)));
        calls.push(table.query(sql));
        let check = match rule {
            AnswerRule::Column { .. } => Check::Set,
            _ => Check::Text,
        };
        self.candidates.push(Candidate {
            phrasing: format!("{} {}", kind.split(' ').next().unwrap_or_default(), place + 1),
            family,
            entity,
            task: wording::sentence(&text),
            calls,
            rule,
            check,
            checks: None,
            alternatives: BTreeSet::new(),
            may_fail,
        });
    }
}

/// A query with a column that is not there: `order_id` for `id`.
fn slip(table: &Table<'_>, sql: &str) -> Option<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let place = |column: &str| {
        sql.match_indices(column)
            .map(|(at, _)| at)
            .find(|at| !sql[..*at].ends_with(is_word) && !sql[at + column.len()..].starts_with(is_word))
    };
    let thing = table.thing.replace(' ', "_");
    table.columns.iter().rev().find_map(|column| {
        let wrong = format!("{thing}_{column}");
        let at = place(column).filter(|_| !table.columns.contains(&wrong))?;
        Some(format!("{}{wrong}{}", &sql[..at], &sql[at + column.len()..]))
    })
}

fn field(name: &str) -> AnswerRule {
    AnswerRule::Field { list: String::new(), key: None, field: name.to_owned() }
}

fn column(name: &str) -> AnswerRule {
    AnswerRule::Column { list: String::new(), field: name.to_owned() }
}

fn largest(name: &str, key: &str) -> AnswerRule {
    AnswerRule::Largest { list: String::new(), field: name.to_owned(), key: key.to_owned() }
}

fn is(column: &str, value: &str) -> String {
    format!("{} = {}", quoted(column), literal(value))
}

fn of(table: &Table<'_>, column: &str) -> String {
    format!("{}.{}", quoted(&table.name), quoted(column))
}

/// ` WHERE …`, or nothing.
fn filter(condition: &str) -> String {
    if condition.is_empty() { String::new() } else { format!(" WHERE {condition}") }
}

fn count(table: &Table<'_>, condition: &str) -> String {
    format!("SELECT COUNT(*) FROM {}{}", quoted(&table.name), filter(condition))
}

/// A column of the row that is named.
fn lookups(asked: &mut Asked<'_, '_, '_>, key: &str) {
    let table = asked.table();
    for row in &table.rows {
        let Some(value) = value_of(row, key).filter(|value| super::is_said(value)) else { continue };
        for column in table.facts().chain(table.id()).filter(|column| *column != key) {
            asked.push(
                &format!("{column} by {key}"),
                &[(key, value)],
                format!("SELECT {} FROM {} WHERE {}", quoted(column), quoted(&table.name), is(key, value)),
                field(column),
                &Wordings::of(phrases::lookup(table, &table.thing, column))
                    .with("{row}", phrases::row(&table.thing, key, value)),
            );
        }
    }
}

/// The same, where the row may not exist.
fn lookups_of_nothing(asked: &mut Asked<'_, '_, '_>, name: &str) {
    let table = asked.table();
    let Some(column) = table.facts().next() else { return };
    let there = table.distinct(name);
    // The first word of one name and the last of another.
    let mut missing: BTreeSet<String> = BTreeSet::new();
    for (one, other) in there.iter().zip(there.iter().skip(1)) {
        if let (Some((first, _)), Some((_, last))) = (one.split_once(' '), other.rsplit_once(' ')) {
            let made = format!("{first} {last}");
            if !there.iter().any(|name| name.eq_ignore_ascii_case(&made)) {
                missing.insert(made);
            }
        }
    }
    let names = missing.iter().map(|name| (name.as_str(), AnswerRule::Absent { field: column.to_owned() }));
    let there = there.into_iter().take(missing.len()).map(|name| (name, field(column)));
    for (value, rule) in names.chain(there) {
        let (t, c) = (&table.thing, words::spoken(column));
        asked.push(
            &format!("{column} by {name}, if any"),
            &[(name, value)],
            format!("SELECT {} FROM {} WHERE {}", quoted(column), quoted(&table.name), is(name, value)),
            rule,
            &Wordings::of([
                format!("What is the {c} of {{row}}? If there is no such {t}, answer none."),
                format!("Tell me the {c} of {{row}}, or none if there is no such {t}."),
            ])
            .with("{row}", phrases::row(t, name, value)),
        );
    }
}

/// The rows that share a value, and the values themselves.
fn members(asked: &mut Asked<'_, '_, '_>, name: &str) {
    let table = asked.table();
    let (things, names) = (words::plural(&table.thing), words::plural(&words::spoken(name)));
    for (category, values) in table.categories() {
        let cs = words::plural(&words::spoken(category));
        if !super::is_flag(table, category) {
            asked.push(
                &format!("values of {category}"),
                &[],
                format!("SELECT DISTINCT {} FROM {}", quoted(category), quoted(&table.name)),
                column(category),
                &Wordings::of([
                    format!("Which {cs} do the {things} have? {ALL}"),
                    format!("List the different {cs} of the {things}. {ALL}"),
                    format!("Which {cs} are there among the {things}? {ALL}"),
                ]),
            );
            asked.push(
                &format!("number of values of {category}"),
                &[],
                format!("SELECT COUNT(DISTINCT {}) FROM {}", quoted(category), quoted(&table.name)),
                AnswerRule::Only,
                &Wordings::of([
                    format!("How many different {cs} do the {things} have?"),
                    format!("How many {cs} are there among the {things}?"),
                    format!("Count the distinct {cs} of the {things}."),
                ]),
            );
        }
        for value in values.into_iter().take(VALUES) {
            asked.push(
                &format!("{name} by {category}"),
                &[(category, value)],
                format!("SELECT {} FROM {} WHERE {}", quoted(name), quoted(&table.name), is(category, value)),
                column(name),
                &Wordings::of([
                    format!("What are the {names} of the {{rows}}? {ALL}"),
                    format!("Which {{rows}} are there? Give their {names}, separated by commas."),
                    format!("List the {names} of all {{rows}}. {ALL}"),
                    format!("List all {{rows}}, by {}. {ALL}", words::spoken(name)),
                ])
                .with("{rows}", phrases::rows(table, &table.thing, category, value)),
            );
        }
    }
}

/// A value that divides the sampled numbers or dates.
fn threshold<'v>(table: &'v Table<'_>, column: &str, share: f64) -> Option<&'v str> {
    let mut values = table.values(column);
    let number = |value: &str| value.parse::<f64>().unwrap_or_default();
    values.sort_by(|one, other| number(one).total_cmp(&number(other)).then(one.cmp(other)));
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a place in a short list"
    )]
    let place = (values.len() as f64 * share) as usize;
    values.get(place).copied()
}

/// How many rows there are: all, and those that fit a condition or two.
fn counts(asked: &mut Asked<'_, '_, '_>) {
    let table = asked.table();
    let things = words::plural(&table.thing);
    asked.push(
        "count",
        &[],
        count(table, ""),
        AnswerRule::Only,
        &Wordings::of(phrases::count()).with("{rows}", [things.clone()]),
    );
    let categories: Vec<(&str, Vec<&str>)> = table.categories().collect();
    for (category, values) in &categories {
        let c = words::spoken(category);
        for value in values.iter().take(VALUES) {
            let mut texts = phrases::count();
            texts.extend(phrases::count_by(table, &table.thing, category, value));
            asked.push(
                &format!("count by {category}"),
                &[(category, value)],
                count(table, &is(category, value)),
                AnswerRule::Only,
                &Wordings::of(texts).with("{rows}", phrases::rows(table, &table.thing, category, value)),
            );
        }
        if super::is_flag(table, category) {
            continue;
        }
        asked.push(
            &format!("most frequent {category}"),
            &[],
            format!(
                "SELECT {c}, COUNT(*) AS total FROM {t} GROUP BY {c} ORDER BY total DESC LIMIT 3",
                c = quoted(category),
                t = quoted(&table.name)
            ),
            largest("total", category),
            &Wordings::of([
                format!("Which {c} do most {things} have?"),
                format!("What is the most frequent {c} of the {things}?"),
                format!("Which {c} has the most {things}?"),
                format!("What is the most common {c} among the {things}?"),
            ]),
        );
    }
    for column in table.facts().filter(|column| table.values(column).len() < table.rows.len()) {
        let c = words::spoken(column);
        asked.push(
            &format!("count without {column}"),
            &[],
            count(table, &format!("{} IS NULL", quoted(column))),
            AnswerRule::Only,
            &Wordings::of([
                format!("How many {things} have no {c}?"),
                format!("For how many {things} is the {c} missing?"),
                format!("Count the {things} without {c}."),
            ]),
        );
    }
    for (one, other) in categories.iter().zip(categories.iter().skip(1)) {
        for row in &table.rows {
            let (Some(first), Some(second)) = (value_of(row, one.0), value_of(row, other.0)) else {
                continue;
            };
            if !one.1.contains(&first) || !other.1.contains(&second) {
                continue;
            }
            let (d, w) = (words::spoken(other.0), words::shown(second));
            asked.push(
                &format!("count by {} and {}", one.0, other.0),
                &[(one.0, first), (other.0, second)],
                count(table, &format!("{} AND {}", is(one.0, first), is(other.0, second))),
                AnswerRule::Only,
                &Wordings::of([
                    format!("How many {{rows}} have the {d} {w}?"),
                    format!("Count the {{rows}} with the {d} {w}."),
                    format!("Of the {{rows}}, how many have the {d} {w}?"),
                ])
                .with("{rows}", phrases::rows(table, &table.thing, one.0, first)),
            );
        }
    }
}

/// How many rows have more or less of something, or are of a month.
fn comparisons(asked: &mut Asked<'_, '_, '_>) {
    let table = asked.table();
    let columns: Vec<&str> = table.quantities().map(|(column, _)| column).chain(table.dates()).collect();
    for column in columns {
        for share in [0.3, 0.5, 0.7] {
            let Some(value) = threshold(table, column, share) else { continue };
            for (sign, is_above) in [(">", true), ("<", false)] {
                asked.push(
                    &format!("count by size of {column}"),
                    &[(column, value)],
                    count(table, &format!("{} {sign} {}", quoted(column), literal(value))),
                    AnswerRule::Only,
                    &Wordings::of(phrases::compared(table, &table.thing, column, value, is_above)),
                );
            }
        }
    }
    for column in table.dates() {
        let months: BTreeSet<&str> =
            table.values(column).into_iter().filter_map(|date| date.get(..7)).collect();
        for month in months.into_iter().take(VALUES) {
            let Some(wordings) = phrases::of_month(&table.thing, column, month) else { continue };
            asked.push(
                &format!("count by month of {column}"),
                &[(column, month)],
                count(table, &format!("{} LIKE '{month}%'", quoted(column))),
                AnswerRule::Only,
                &Wordings::of(wordings),
            );
        }
    }
}

/// The operations that fit a column, each with its SQL and what the question says about digits.
fn operations_on(sense: Sense, column: &str, is_whole: bool) -> Vec<(Operation, String, &'static str)> {
    let mut operations = vec![
        (Operation::Highest, format!("MAX({column})"), ""),
        (Operation::Lowest, format!("MIN({column})"), ""),
    ];
    // Nobody adds up years.
    if !matches!(sense, Sense::Year | Sense::Date) {
        let decimals = ", rounded to two decimals";
        let sum = format!("SUM({column})");
        operations.push(match is_whole {
            true => (Operation::Total, sum, ""),
            false => (Operation::Total, format!("ROUND({sum}, 2)"), decimals),
        });
        operations.push((Operation::Average, format!("ROUND(AVG({column}), 2)"), decimals));
    }
    operations
}

/// Totals, averages, highest and lowest numbers: of all rows, and of those that share a value.
fn operations(asked: &mut Asked<'_, '_, '_>) {
    let table = asked.table();
    let things = words::plural(&table.thing);
    let columns: Vec<(&str, bool)> =
        table.quantities().chain(table.dates().map(|column| (column, true))).collect();
    for (number, is_whole) in columns {
        let sense = Sense::of(table, number);
        for (operation, sql, decimals) in operations_on(sense, &quoted(number), is_whole) {
            let texts = phrases::operation(table, number, operation, decimals);
            asked.push(
                &format!("summary of {number}"),
                &[],
                format!("SELECT {sql} FROM {}", quoted(&table.name)),
                AnswerRule::Only,
                &Wordings::of(texts.clone())
                    .with("{rows}", ["all", "the", "our"].map(|all| format!("{all} {things}"))),
            );
            for (category, values) in table.categories() {
                for value in values.into_iter().take(VALUES) {
                    let rows = phrases::rows(table, &table.thing, category, value);
                    asked.push(
                        &format!("summary of {number} by {category}"),
                        &[(category, value)],
                        format!("SELECT {sql} FROM {} WHERE {}", quoted(&table.name), is(category, value)),
                        AnswerRule::Only,
                        &Wordings::of(texts.clone()).with(
                            "{rows}",
                            rows.iter().map(|rows| format!("the {rows}")).collect::<Vec<_>>(),
                        ),
                    );
                }
            }
        }
    }
}

/// The row with the largest or smallest number or date: of all, and of those that share a value.
fn superlatives(asked: &mut Asked<'_, '_, '_>, key: &str) {
    let table = asked.table();
    let name = quoted(&table.name);
    let columns: Vec<&str> = table.quantities().map(|(column, _)| column).chain(table.dates()).collect();
    for number in columns {
        let (sense, column) = (Sense::of(table, number), quoted(number));
        for (function, is_largest) in [("MAX", true), ("MIN", false)] {
            // Several rows if it is shared, which is then no answer.
            let sql = |condition: &str, and: &str| {
                format!(
                    "SELECT {} FROM {name} WHERE {condition}{and}{column} = (SELECT {function}({column}) FROM {name}{})",
                    quoted(key),
                    filter(condition),
                )
            };
            let texts = phrases::superlative(sense, &table.thing, number, key, is_largest);
            asked.push(
                &format!("extreme of {number}"),
                &[],
                sql("", ""),
                field(key),
                &Wordings::of(texts.clone())
                    .with("{rows}", [format!("the {}", words::plural(&table.thing))])
                    .with("{one}", [table.thing.clone()]),
            );
            for (category, values) in table.categories() {
                for value in values.into_iter().take(VALUES) {
                    let rows = phrases::rows(table, &table.thing, category, value);
                    asked.push(
                        &format!("extreme of {number} by {category}"),
                        &[(category, value)],
                        sql(&is(category, value), " AND "),
                        field(key),
                        &Wordings::of(texts.clone())
                            .with("{rows}", rows.iter().map(|rows| format!("the {rows}")).collect::<Vec<_>>())
                            .with("{one}", phrases::one(table, &table.thing, category, value)),
                    );
                }
            }
        }
    }
}

/// `orders JOIN customers ON orders.customer_id = customers.id`, behind `from`.
fn join(from: &str, table: &Table<'_>, reference: &Reference<'_, '_>) -> String {
    let Reference { column, to, key, .. } = reference;
    format!("{from} JOIN {} ON {} = {}", quoted(&to.name), of(table, column), of(to, key))
}

/// A column of the row that a named row refers to.
fn referred(asked: &mut Asked<'_, '_, '_>, reference: &Reference<'_, '_>, key: &str) {
    let table = asked.table();
    let Reference { to, role, .. } = reference;
    let from = join(&quoted(&table.name), table, reference);
    for row in &table.rows {
        let Some(value) = value_of(row, key).filter(|value| super::is_said(value)) else { continue };
        for column in to.facts().chain(to.name()) {
            asked.push(
                &format!("{column} of the {role}"),
                &[(key, value)],
                format!(
                    "SELECT {} FROM {from} WHERE {} = {}",
                    of(to, column),
                    of(table, key),
                    literal(value)
                ),
                field(column),
                &Wordings::of(phrases::referred(table, to, role, column))
                    .with("{row}", phrases::row(&table.thing, key, value)),
            );
        }
    }
}

/// What is asked about all rows that refer to a named one.
fn referring(asked: &mut Asked<'_, '_, '_>, reference: &Reference<'_, '_>, name: &str) {
    let table = asked.table();
    let Reference { to, role, .. } = reference;
    let (things, from) = (words::plural(&table.thing), join(&quoted(&table.name), table, reference));
    for value in to.distinct(name).into_iter().filter(|value| super::is_said(value)) {
        let rows = phrases::row(role, name, value);
        let condition = format!("{} = {}", of(to, name), literal(value));
        asked.push(
            &format!("count by {role}"),
            &[(name, value)],
            format!("SELECT COUNT(*) FROM {from} WHERE {condition}"),
            AnswerRule::Only,
            &Wordings::of(phrases::count_of(table, role))
                .with("{row}", rows.clone())
                .with("{things}", [things.clone()]),
        );
        for (number, is_whole) in table.quantities() {
            let sense = Sense::of(table, number);
            for (operation, sql, decimals) in operations_on(sense, &of(table, number), is_whole) {
                let mut texts = phrases::operation(table, number, operation, decimals);
                if operation == Operation::Total && sense == Sense::Pieces {
                    texts.extend(phrases::pieces_of(table, role));
                }
                asked.push(
                    &format!("summary of {number} by {role}"),
                    &[(name, value)],
                    format!("SELECT {sql} FROM {from} WHERE {condition}"),
                    AnswerRule::Only,
                    &Wordings::of(texts)
                        .with(
                            "{rows}",
                            [format!("the {things} of {{row}}"), format!("all {things} of {{row}}")],
                        )
                        .with("{row}", rows.clone()),
                );
            }
        }
        for (category, values) in table.categories().filter(|(column, _)| !super::is_flag(table, column)) {
            for which in values.into_iter().take(4) {
                let (c, v) = (words::spoken(category), words::shown(which));
                let mut texts = vec![
                    "How many {set} does {row} have?".to_owned(),
                    "How many {set} are there for {row}?".to_owned(),
                    "Count the {set} of {row}.".to_owned(),
                    format!("How many of the {things} of {{row}} have the {c} {v}?"),
                ];
                if Sense::of(table, category) == Sense::State {
                    texts.push(format!("How many of the {things} of {{row}} are {which}?"));
                }
                asked.push(
                    &format!("count by {role} and {category}"),
                    &[(name, value)],
                    format!(
                        "SELECT COUNT(*) FROM {from} WHERE {condition} AND {} = {}",
                        of(table, category),
                        literal(which)
                    ),
                    AnswerRule::Only,
                    &Wordings::of(texts)
                        .with("{set}", phrases::rows(table, &table.thing, category, which))
                        .with("{row}", rows.clone()),
                );
            }
        }
    }
}

/// Which row most rows refer to, which none, and how many refer to rows that share a value.
fn most_referring(asked: &mut Asked<'_, '_, '_>, reference: &Reference<'_, '_>, name: &str) {
    let table = asked.table();
    let Reference { to, role, .. } = reference;
    let (things, from) = (words::plural(&table.thing), join(&quoted(&table.name), table, reference));
    let (n, roles) = (words::spoken(name), words::plural(role));
    let grouped = |what: &str| {
        format!(
            "SELECT {name}, {what} AS total FROM {from} GROUP BY {key} ORDER BY total DESC LIMIT 3",
            name = of(to, name),
            key = of(to, reference.key)
        )
    };
    asked.push(
        &format!("most by {role}"),
        &[],
        grouped("COUNT(*)"),
        largest("total", name),
        &Wordings::of(phrases::most_of(table, role, name)),
    );
    for (number, _) in table.quantities() {
        let q = words::spoken(number);
        asked.push(
            &format!("most {number} by {role}"),
            &[],
            grouped(&format!("SUM({})", of(table, number))),
            largest("total", name),
            &Wordings::of([
                format!("Which {role} has the largest total {q} over all {things}?"),
                format!("Over all {things}, which {role} has the largest total {q}? Give the {n}."),
                format!("For which {role} is the sum of the {q} of the {things} largest?"),
            ]),
        );
    }
    let (own, key) = (quoted(reference.column), quoted(reference.key));
    asked.push(
        &format!("{roles} without {things}"),
        &[],
        format!(
            "SELECT COUNT(*) FROM {} WHERE {key} NOT IN (SELECT {own} FROM {})",
            quoted(&to.name),
            quoted(&table.name)
        ),
        AnswerRule::Only,
        &Wordings::of([
            format!("How many {roles} have no {things}?"),
            format!("How many {roles} are without any {}?", table.thing),
        ]),
    );
    asked.push(
        &format!("{roles} with {things}"),
        &[],
        format!("SELECT COUNT(DISTINCT {own}) FROM {}", quoted(&table.name)),
        AnswerRule::Only,
        &Wordings::of([
            format!("How many different {roles} have {things}?"),
            format!("How many {roles} have at least one {}?", table.thing),
            format!("Count the distinct {roles} of the {things}."),
        ]),
    );
    for (category, values) in to.categories() {
        for value in values.into_iter().take(VALUES) {
            let set = phrases::rows(to, role, category, value);
            let condition = format!("{} = {}", of(to, category), literal(value));
            asked.push(
                &format!("count by {category} of the {role}"),
                &[(category, value)],
                format!("SELECT COUNT(*) FROM {from} WHERE {condition}"),
                AnswerRule::Only,
                &Wordings::of(phrases::count_of_set(table, role))
                    .with("{set}", set.clone())
                    .with("{things}", [things.clone()]),
            );
            for (number, is_whole) in
                table.quantities().filter(|(number, _)| Sense::of(table, number) == Sense::Pieces)
            {
                let sense = Sense::Pieces;
                let total = operations_on(sense, &of(table, number), is_whole);
                for (operation, sql, decimals) in
                    total.into_iter().filter(|(one, ..)| *one == Operation::Total)
                {
                    let mut texts = phrases::operation(table, number, operation, decimals);
                    texts.extend(phrases::pieces_of(table, role));
                    asked.push(
                        &format!("total {number} by {category} of the {role}"),
                        &[(category, value)],
                        format!("SELECT {sql} FROM {from} WHERE {condition}"),
                        AnswerRule::Only,
                        &Wordings::of(texts)
                            .with(
                                "{rows}",
                                [format!("the {things} of {{row}}"), format!("the {things} for {{row}}")],
                            )
                            .with("{row}", set.clone()),
                    );
                }
            }
        }
    }
}

/// What a named row is linked to by the rows that refer to both.
fn linked(
    asked: &mut Asked<'_, '_, '_>,
    reference: &Reference<'_, '_>,
    name: &str,
    other: &Reference<'_, '_>,
) {
    let table = asked.table();
    let Some(wanted) = other.to.name() else { return };
    let from = join(&join(&quoted(&table.name), table, reference), table, other);
    let (things, o, w) = (words::plural(&table.thing), words::plural(&other.role), words::spoken(wanted));
    for value in reference.to.distinct(name).into_iter().filter(|value| super::is_said(value)) {
        let mut texts = vec![
            format!("Which {o} are in the {things} of {{row}}? Give the {w} of each, separated by commas."),
            format!("List the {} of the {o} in the {things} of {{row}}. {ALL}", words::plural(&w)),
        ];
        let text = phrases::linked(table, &reference.role, &other.role);
        texts.extend(text.map(|text| format!("{text} {ALL}")));
        asked.push(
            &format!("{} by {}", other.role, reference.role),
            &[(name, value)],
            format!(
                "SELECT DISTINCT {} FROM {from} WHERE {} = {}",
                of(other.to, wanted),
                of(reference.to, name),
                literal(value)
            ),
            column(wanted),
            &Wordings::of(texts).with("{row}", phrases::row(&reference.role, name, value)),
        );
    }
}
