//! What is asked about tables, with the query that answers it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Reference, Table, literal, quoted};
use crate::stage::scenarios::{
    candidate::{AnswerRule, Candidate, Check, value_of},
    explored::{graph, wording, words},
};

const ALL: &str = "Give all of them, separated by commas.";
/// Values that tasks say of a column with few values.
const VALUES: usize = 12;

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
        totals(&mut asked);
        for reference in table.references(tables) {
            asked.tables = vec![table, reference.to];
            if let Some(key) = table.key() {
                referred(&mut asked, &reference, key);
            }
            if let Some(name) = reference.to.name() {
                referring(&mut asked, &reference, name);
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
    fn push(&mut self, kind: &str, entity: &[(&str, &str)], sql: String, rule: AnswerRule, texts: &[String]) {
        let table = self.table();
        let family = format!("{}: {kind}", table.name);
        let entity: BTreeMap<String, String> =
            entity.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let place = graph::rank(self.seed, &family, &format!("{entity:?}")) % texts.len().max(1) as u64;
        let Some(text) = usize::try_from(place).ok().and_then(|place| texts.get(place)) else { return };
        let mut calls: Vec<_> = table.listing.clone().into_iter().collect();
        calls.extend(self.tables.iter().filter_map(|table| table.describing.clone()));
        calls.push(table.query(sql));
        let check = match rule {
            AnswerRule::Column { .. } => Check::Set,
            _ => Check::Text,
        };
        self.candidates.push(Candidate {
            phrasing: format!("{} {}", kind.split(' ').next().unwrap_or_default(), place + 1),
            family,
            entity,
            task: wording::sentence(text),
            calls,
            rule,
            check,
            checks: None,
            alternatives: BTreeSet::new(),
            may_fail: false,
        });
    }
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

/// A row in words: `the product "Desk Lamp"`, `the order with the id 17`.
fn named(thing: &str, key: &str, value: &str) -> String {
    let value = words::shown(value);
    match words::tokens(key).iter().any(|word| ["name", "title"].contains(&word.as_str())) {
        true => format!("the {thing} {value}"),
        false => format!("the {thing} with the {} {value}", words::spoken(key)),
    }
}

fn is(column: &str, value: &str) -> String {
    format!("{} = {}", quoted(column), literal(value))
}

fn of(table: &Table<'_>, column: &str) -> String {
    format!("{}.{}", quoted(&table.name), quoted(column))
}

/// A column of the row that is named.
fn lookups(asked: &mut Asked<'_, '_, '_>, key: &str) {
    let table = asked.table();
    for row in &table.rows {
        let Some(value) = value_of(row, key) else { continue };
        for column in table.facts() {
            let (c, row) = (words::spoken(column), named(&table.thing, key, value));
            asked.push(
                &format!("{column} by {key}"),
                &[(key, value)],
                format!("SELECT {} FROM {} WHERE {}", quoted(column), quoted(&table.name), is(key, value)),
                field(column),
                &[
                    format!("What is the {c} of {row}?"),
                    format!("Tell me the {c} of {row}."),
                    format!("Find {row}. What is its {c}?"),
                    format!("I need the {c} of {row}."),
                ],
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
        let (t, c, row) = (&table.thing, words::spoken(column), named(&table.thing, name, value));
        asked.push(
            &format!("{column} by {name}, if any"),
            &[(name, value)],
            format!("SELECT {} FROM {} WHERE {}", quoted(column), quoted(&table.name), is(name, value)),
            rule,
            &[
                format!("What is the {c} of {row}? If there is no such {t}, answer none."),
                format!("Tell me the {c} of {row}, or none if there is no such {t}."),
            ],
        );
    }
}

/// The rows that share a value, and the values themselves.
fn members(asked: &mut Asked<'_, '_, '_>, name: &str) {
    let table = asked.table();
    let (things, names) = (words::plural(&table.thing), words::plural(&words::spoken(name)));
    for (category, values) in table.categories() {
        let c = words::spoken(category);
        asked.push(
            &format!("values of {category}"),
            &[],
            format!("SELECT DISTINCT {} FROM {}", quoted(category), quoted(&table.name)),
            column(category),
            &[
                format!("Which {} do the {things} have? {ALL}", words::plural(&c)),
                format!("List the different {} of the {things}. {ALL}", words::plural(&c)),
            ],
        );
        for value in values.into_iter().take(VALUES) {
            let v = words::shown(value);
            asked.push(
                &format!("{name} by {category}"),
                &[(category, value)],
                format!("SELECT {} FROM {} WHERE {}", quoted(name), quoted(&table.name), is(category, value)),
                column(name),
                &[
                    format!("What are the {names} of the {things} with the {c} {v}? {ALL}"),
                    format!("Which {things} have the {c} {v}? Give their {names}, separated by commas."),
                    format!("List the {names} of all {things} whose {c} is {v}. {ALL}"),
                ],
            );
        }
    }
}

/// A threshold that divides the sampled numbers.
fn threshold<'v>(table: &'v Table<'_>, column: &str, share: f64) -> Option<&'v str> {
    let mut values: Vec<(f64, &str)> =
        table.values(column).into_iter().filter_map(|value| Some((value.parse().ok()?, value))).collect();
    values.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a place in a short list"
    )]
    let place = (values.len() as f64 * share) as usize;
    values.get(place).map(|(_, value)| *value)
}

/// How many rows there are: all, and those that fit a condition or two.
fn counts(asked: &mut Asked<'_, '_, '_>) {
    let table = asked.table();
    let things = words::plural(&table.thing);
    let count = |condition: &str| {
        let condition = if condition.is_empty() { String::new() } else { format!(" WHERE {condition}") };
        format!("SELECT COUNT(*) FROM {}{condition}", quoted(&table.name))
    };
    asked.push(
        "count",
        &[],
        count(""),
        AnswerRule::Only,
        &[
            format!("How many {things} are there?"),
            format!("Count all {things}."),
            format!("What is the total number of {things}?"),
        ],
    );
    let categories: Vec<(&str, Vec<&str>)> = table.categories().collect();
    for (category, values) in &categories {
        let c = words::spoken(category);
        for value in values.iter().take(VALUES) {
            let v = words::shown(value);
            asked.push(
                &format!("count by {category}"),
                &[(category, value)],
                count(&is(category, value)),
                AnswerRule::Only,
                &[
                    format!("How many {things} have the {c} {v}?"),
                    format!("Count the {things} whose {c} is {v}."),
                    format!("What is the number of {things} with the {c} {v}?"),
                ],
            );
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
            &[
                format!("Which {c} do most {things} have?"),
                format!("What is the most frequent {c} of the {things}?"),
            ],
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
            let (c, v) = (words::spoken(one.0), words::shown(first));
            let (d, w) = (words::spoken(other.0), words::shown(second));
            asked.push(
                &format!("count by {} and {}", one.0, other.0),
                &[(one.0, first), (other.0, second)],
                count(&format!("{} AND {}", is(one.0, first), is(other.0, second))),
                AnswerRule::Only,
                &[
                    format!("How many {things} have the {c} {v} and the {d} {w}?"),
                    format!("Count the {things} whose {c} is {v} and whose {d} is {w}."),
                ],
            );
        }
    }
    for (number, _) in table.quantities() {
        let n = words::spoken(number);
        for share in [0.3, 0.5, 0.7] {
            let Some(value) = threshold(table, number, share) else { continue };
            for (sign, more, above) in [(">", "more", "above"), ("<", "less", "below")] {
                asked.push(
                    &format!("count {above} {number}"),
                    &[(number, value)],
                    count(&format!("{} {sign} {}", quoted(number), literal(value))),
                    AnswerRule::Only,
                    &[
                        format!("How many {things} have a {n} {above} {value}?"),
                        format!("Count the {things} whose {n} is {more} than {value}."),
                    ],
                );
            }
        }
    }
}

/// An operation on a column of numbers.
struct Operation {
    kind: &'static str,
    sql: String,
    words: String,
}

fn operations(table: &Table<'_>, number: &str, column: &str, is_whole: bool) -> Vec<Operation> {
    let spoken = words::spoken(number);
    let is_year = |value: &str| value.parse::<i64>().is_ok_and(|value| (1800..2200).contains(&value));
    let are_years = table.values(number).into_iter().all(is_year);
    let rounded = |sql: String| if is_whole { sql } else { format!("ROUND({sql}, 2)") };
    let decimals = if is_whole { "" } else { ", rounded to two decimals" };
    let mut operations = vec![
        Operation {
            kind: "highest",
            sql: format!("MAX({column})"),
            words: format!("highest {spoken} of {{}}"),
        },
        Operation {
            kind: "lowest",
            sql: format!("MIN({column})"),
            words: format!("lowest {spoken} of {{}}"),
        },
    ];
    // Nobody adds up years.
    if !are_years {
        operations.push(Operation {
            kind: "total",
            sql: rounded(format!("SUM({column})")),
            words: format!("total {spoken} of {{}}{decimals}"),
        });
        operations.push(Operation {
            kind: "average",
            sql: format!("ROUND(AVG({column}), 2)"),
            words: format!("average {spoken} of {{}}, rounded to two decimals"),
        });
    }
    operations
}

/// Totals, averages, highest and lowest numbers: of all rows, and of those that share a value.
fn totals(asked: &mut Asked<'_, '_, '_>) {
    let table = asked.table();
    let things = words::plural(&table.thing);
    for (number, is_whole) in table.quantities() {
        for Operation { kind, sql, words } in operations(table, number, &quoted(number), is_whole) {
            let ask = |place: &str| {
                let what = words.replace("{}", place);
                [format!("What is the {what}?"), format!("Tell me the {what}."), format!("Find the {what}.")]
            };
            asked.push(
                &format!("{kind} {number}"),
                &[],
                format!("SELECT {sql} FROM {}", quoted(&table.name)),
                AnswerRule::Only,
                &ask(&format!("all {things}")),
            );
            for (category, values) in table.categories() {
                for value in values.into_iter().take(VALUES) {
                    asked.push(
                        &format!("{kind} {number} by {category}"),
                        &[(category, value)],
                        format!("SELECT {sql} FROM {} WHERE {}", quoted(&table.name), is(category, value)),
                        AnswerRule::Only,
                        &ask(&format!(
                            "the {things} with the {} {}",
                            words::spoken(category),
                            words::shown(value)
                        )),
                    );
                }
            }
        }
    }
}

/// The row with the largest or smallest number: of all, and of those that share a value.
fn superlatives(asked: &mut Asked<'_, '_, '_>, key: &str) {
    let table = asked.table();
    let (t, k, name) = (&table.thing, words::spoken(key), quoted(&table.name));
    for (number, _) in table.quantities() {
        let (n, column) = (words::spoken(number), quoted(number));
        for (size, function) in [("largest", "MAX"), ("smallest", "MIN")] {
            // Several rows if it is shared, which is then no answer.
            let sql = |condition: &str, and: &str| {
                format!(
                    "SELECT {} FROM {name} WHERE {condition}{and}{column} = (SELECT {function}({column}) FROM {name}{}{condition})",
                    quoted(key),
                    if condition.is_empty() { "" } else { " WHERE " },
                )
            };
            asked.push(
                &format!("{size} {number}"),
                &[],
                sql("", ""),
                field(key),
                &[
                    format!("Which {t} has the {size} {n}? Give its {k}."),
                    format!("What is the {k} of the {t} with the {size} {n}?"),
                ],
            );
            for (category, values) in table.categories() {
                let c = words::spoken(category);
                for value in values.into_iter().take(VALUES) {
                    let v = words::shown(value);
                    asked.push(
                        &format!("{size} {number} by {category}"),
                        &[(category, value)],
                        sql(&is(category, value), " AND "),
                        field(key),
                        &[
                            format!("Which {t} with the {c} {v} has the {size} {n}? Give its {k}."),
                            format!(
                                "Of all {} whose {c} is {v}, what is the {k} of the one with the {size} {n}?",
                                words::plural(t)
                            ),
                        ],
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
        let Some(value) = value_of(row, key) else { continue };
        let row = named(&table.thing, key, value);
        for column in to.facts().chain(to.name()) {
            let c = words::spoken(column);
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
                &[
                    format!("What is the {c} of the {role} of {row}?"),
                    format!("Tell me the {c} of the {role} of {row}."),
                    format!("Find {row}. What is the {c} of its {role}?"),
                ],
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
        let row = named(role, name, value);
        let condition = format!("{} = {}", of(to, name), literal(value));
        asked.push(
            &format!("count by {role}"),
            &[(name, value)],
            format!("SELECT COUNT(*) FROM {from} WHERE {condition}"),
            AnswerRule::Only,
            &[
                format!("How many {things} of {row} are there?"),
                format!("How many {things} belong to {row}?"),
                format!("Count the {things} of {row}."),
            ],
        );
        for (number, is_whole) in table.quantities() {
            for Operation { kind, sql, words } in operations(table, number, &of(table, number), is_whole) {
                let what = words.replace("{}", &format!("the {things} of {row}"));
                asked.push(
                    &format!("{kind} {number} by {role}"),
                    &[(name, value)],
                    format!("SELECT {sql} FROM {from} WHERE {condition}"),
                    AnswerRule::Only,
                    &[format!("What is the {what}?"), format!("Tell me the {what}.")],
                );
            }
        }
        for (category, values) in table.categories() {
            for which in values.into_iter().take(4) {
                let (c, v) = (words::spoken(category), words::shown(which));
                asked.push(
                    &format!("count by {role} and {category}"),
                    &[(name, value)],
                    format!(
                        "SELECT COUNT(*) FROM {from} WHERE {condition} AND {} = {}",
                        of(table, category),
                        literal(which)
                    ),
                    AnswerRule::Only,
                    &[
                        format!("How many {things} of {row} have the {c} {v}?"),
                        format!("Count the {things} of {row} whose {c} is {v}."),
                    ],
                );
            }
        }
    }
    let (r, n) = (role, words::spoken(name));
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
        &[
            format!("Which {r} has the most {things}? Give the {n}."),
            format!("What is the {n} of the {r} with the most {things}?"),
        ],
    );
    for (number, _) in table.quantities() {
        let q = words::spoken(number);
        asked.push(
            &format!("most {number} by {role}"),
            &[],
            grouped(&format!("SUM({})", of(table, number))),
            largest("total", name),
            &[
                format!("Which {r} has the largest total {q} over all {things}? Give the {n}."),
                format!("Over all {things}, which {r} has the largest total {q}? Give the {n}."),
            ],
        );
    }
    for (category, values) in to.categories() {
        for value in values.into_iter().take(VALUES) {
            let (c, v) = (words::spoken(category), words::shown(value));
            asked.push(
                &format!("count by {category} of the {role}"),
                &[(category, value)],
                format!("SELECT COUNT(*) FROM {from} WHERE {} = {}", of(to, category), literal(value)),
                AnswerRule::Only,
                &[
                    format!("How many {things} have a {r} whose {c} is {v}?"),
                    format!("Count the {things} whose {r} has the {c} {v}."),
                ],
            );
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
        let row = named(&reference.role, name, value);
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
            &[
                format!("Which {o} are in the {things} of {row}? Give the {w} of each, separated by commas."),
                format!("List the {} of the {o} in the {things} of {row}. {ALL}", words::plural(&w)),
            ],
        );
    }
}
