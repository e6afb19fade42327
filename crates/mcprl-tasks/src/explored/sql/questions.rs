//! What is asked about tables, with the query that answers it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Reference, Table, columns,
    phrases::{self, Operation},
    quoted,
};
use crate::{
    answer_rule::{Aggregate, AnswerRule, value_of},
    candidate::{Candidate, Check},
    chat::ToolCall,
    explored::{
        asks::{self, Asks, Column, Condition, FactSource, Measure, Size, Test},
        graph, templates,
        wording::{ALL, EACH},
    },
    senses::{self, Sense},
    words,
};

/// Values that tasks say of a column with few values.
const VALUES: usize = 12;
/// Of so many solutions, one has queries that fail before the right one, so that a model learns to go on.
const SLIPS: u64 = 4;

/// Candidates about every table.
pub fn candidates(tables: &[Table<'_>], seed: u64) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for table in tables {
        let mut asked = TableQuestions { tables: vec![table], seed, candidates: &mut candidates };
        let references = table.references(tables);
        let is_link = table.is_link(&references);
        if !is_link {
            of_table(&mut asked);
        }
        for reference in &references {
            asked.tables = tables_of(table, &[reference]);
            if let Some(key) = table.key().filter(|_| !is_link) {
                referred(&mut asked, reference, key);
            }
            let Some(name) = reference.to.name() else { continue };
            if !is_link {
                referring(&mut asked, reference, name);
            }
            // Which of them is meant would have to be said.
            if reference.is_one_of_several {
                continue;
            }
            if !is_link && reference.is_direct() {
                most_referring(&mut asked, reference, name);
            }
            let others = references.iter().filter(|other| other.is_direct() && reference.is_direct());
            for other in others.filter(|other| other.to.name != reference.to.name && !other.is_one_of_several)
            {
                asked.tables = tables_of(table, &[reference, other]);
                linked(&mut asked, reference, name, other, is_link);
            }
            for priced in references.iter().filter(|_| !is_link) {
                asked.tables = tables_of(table, &[priced, reference]);
                spent(&mut asked, reference, name, priced);
            }
        }
    }
    candidates
}

/// What is asked about one table.
fn of_table(asked: &mut TableQuestions<'_, '_, '_>) {
    let table = asked.table();
    if let Some(key) = table.key() {
        lookups(asked, key);
        superlatives(asked, key);
    }
    if let Some(name) = table.name() {
        lookups_of_nothing(asked, name);
        members(asked, name);
    }
    counts(asked);
    comparisons(asked);
    operations(asked);
}

/// The tables of a query, in the order of its joins.
fn tables_of<'t, 'g>(table: &'t Table<'g>, references: &[&Reference<'t, 'g>]) -> Vec<&'t Table<'g>> {
    let mut tables = vec![table];
    for join in references.iter().flat_map(|reference| &reference.joins) {
        if !tables.iter().any(|table| table.name == join.to.name) {
            tables.push(join.to);
        }
    }
    tables
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
        let draw = |name: &str, forms: &[String]| graph::place(seed, name, sql, forms.len());
        let place = draw("text", &self.texts);
        let mut text = self.texts.get(place)?.clone();
        for (slot, forms) in &self.slots {
            text = text.replace(slot, forms.get(draw(slot, forms))?);
        }
        Some((place, text))
    }
}

/// Collects candidates about tables, whose first is the one that is asked about.
struct TableQuestions<'a, 't, 'g> {
    tables: Vec<&'t Table<'g>>,
    seed: u64,
    candidates: &'a mut Vec<Candidate>,
}

impl<'t, 'g> TableQuestions<'_, 't, 'g> {
    fn table(&self) -> &'t Table<'g> {
        self.tables[0]
    }

    /// A question in one of these wordings.
    fn push(&mut self, kind: &str, entity: &[(&str, &str)], query: Query, wordings: &Wordings) {
        let Query { sql, rule, asks } = query;
        let table = self.table();
        let family = format!("{}: {kind}", table.name);
        let entity: BTreeMap<String, String> =
            entity.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let Some((place, text)) = wordings.draw(self.seed, &sql) else { return };
        let rank = graph::rank(self.seed, "slip", &sql);
        let slips = if rank.is_multiple_of(SLIPS) { slips(&self.tables, &sql) } else { Vec::new() };
        let slip = slips.get((rank / SLIPS) as usize % slips.len().max(1));
        let mut calls: Vec<ToolCall> = table.listing.clone().into_iter().collect();
        calls.extend(self.tables.iter().filter_map(|table| table.describing.clone()));
        if let Some((at, wrong)) = slip {
            // A small model tends to repeat what failed.
            let is_repeated = *at == LAST && (rank / SLIPS / slips.len() as u64).is_multiple_of(2);
            let at = (*at).min(calls.len());
            let failing = std::iter::repeat_n(table.query(wrong.clone()), 1 + usize::from(is_repeated));
            calls.splice(at..at, failing);
        }
        let may_fail = slip.is_some();
        calls.push(table.query(sql));
        // A text that looks like a number is right as it is written.
        let is_text = match &rule {
            AnswerRule::Field { field, .. } | AnswerRule::Measured { key: Some(field), .. } => {
                self.tables.iter().all(|table| !table.numbers.contains(field))
            }
            _ => false,
        };
        let check = match rule {
            AnswerRule::Column { .. } => Check::Set,
            _ => Check::Text,
        };
        self.candidates.push(Candidate {
            phrasing: format!("{} {}", kind.split(' ').next().unwrap_or_default(), place + 1),
            family,
            entity,
            task: templates::sentence(&text),
            calls,
            rule,
            check,
            may_fail,
            is_text,
            asks: Some(asks.to_value()),
            ..Candidate::default()
        });
    }
}

/// A query, how its result is the answer, and what is asked.
struct Query {
    sql: String,
    rule: AnswerRule,
    asks: Asks,
}

impl Query {
    fn new(sql: String, rule: AnswerRule, asks: Asks) -> Self {
        Self { sql, rule, asks }
    }

    /// The answer is the only value.
    fn value(sql: String, asks: Asks) -> Self {
        Self::new(sql, AnswerRule::Only, asks)
    }
}

/// Right before the right query.
const LAST: usize = usize::MAX;

/// Queries that fail, each with its place in the solution. Behind it stand the calls that show what is wrong.
fn slips(tables: &[&Table<'_>], sql: &str) -> Vec<(usize, String)> {
    let [table, ..] = tables else { return Vec::new() };
    let thing = table.called.replace(' ', "_");
    let mut slips = Vec::new();
    // `product` for `products`, before anything is known.
    if let Some(wrong) = replaced(sql, &table.name, &thing).filter(|_| thing != table.name) {
        slips.push((0, wrong));
    }
    // `order_id` for `id`: before the table is described, and in spite of it.
    let column = table.columns.iter().rev().find_map(|column| {
        let wrong = format!("{thing}_{column}");
        (!table.columns.contains(&wrong)).then(|| replaced(sql, column, &wrong)).flatten()
    });
    if let Some(wrong) = column {
        slips.extend([(1, wrong.clone()), (LAST, wrong)]);
    }
    // A column of another table, without all of the tables on the way, or without the last.
    let end = [" WHERE ", " GROUP ", " ORDER "].iter().filter_map(|word| sql.find(word)).min();
    let end = end.unwrap_or(sql.len());
    let without = |from: usize| format!("{}{}", &sql[..from], &sql[end..]);
    if let (Some(first), Some(last)) = (sql.find(" JOIN "), sql[..end].rfind(" JOIN ")) {
        slips.push((2, without(first)));
        if last > first {
            slips.push((LAST, without(last)));
        }
    }
    // `SELECT products` for `SELECT products.name`.
    let selected = sql.find(" FROM ").map_or("", |from| &sql[..from]);
    let whole = tables.iter().find_map(|table| {
        let column = selected.split_once(&format!(" {}.", table.name))?.1;
        let is_name = column.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        is_name.then(|| sql.replacen(&format!("{}.{column}", table.name), &table.name, 1))
    });
    slips.extend(whole.map(|wrong| (LAST, wrong)));
    slips
}

/// A query with another name in place of the first that is this one.
fn replaced(sql: &str, name: &str, wrong: &str) -> Option<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let places = sql.match_indices(name).map(|(at, _)| at);
    let mut whole =
        places.filter(|at| !sql[..*at].ends_with(is_word) && !sql[at + name.len()..].starts_with(is_word));
    whole.next().map(|at| format!("{}{wrong}{}", &sql[..at], &sql[at + name.len()..]))
}

fn field(name: &str) -> AnswerRule {
    AnswerRule::Field { list: String::new(), key: None, field: name.to_owned() }
}

fn column(name: &str) -> AnswerRule {
    AnswerRule::Column { list: String::new(), field: name.to_owned() }
}

fn largest(name: &str, key: &str) -> AnswerRule {
    let (list, field, key) = (String::new(), name.to_owned(), Some(key.to_owned()));
    AnswerRule::Measured { list, field, key, wanted: Aggregate::Most }
}

/// The values that tasks say of columns with few values, each behind its column.
fn categorized<'v>(table: &'v Table<'_>) -> impl Iterator<Item = (&'v str, &'v str)> {
    let of_column = |(column, values): (&'v str, Vec<&'v str>)| {
        values.into_iter().take(VALUES).map(move |value| (column, value))
    };
    table.categories().flat_map(of_column)
}

/// The same values, if several rows that have one have a number or a date to compare.
fn compared_within<'v>(table: &'v Table<'_>, number: &'v str) -> impl Iterator<Item = (&'v str, &'v str)> {
    let has_several = move |(category, value): &(&str, &str)| {
        let rows = table.rows.iter().filter(|row| {
            let number = row.iter().find(|field| field.name == number);
            value_of(row, category) == Some(value) && number.is_some_and(|field| !super::is_missing(field))
        });
        *category != number && rows.count() > 1
    };
    categorized(table).filter(has_several)
}

/// A column of the row that is named.
fn lookups(asked: &mut TableQuestions<'_, '_, '_>, key: &str) {
    let table = asked.table();
    for row in &table.rows {
        let Some(value) = value_of(row, key).filter(|value| super::is_said(value)) else { continue };
        for column in table.facts().chain(table.id()).filter(|column| *column != key) {
            asked.push(
                &format!("{column} by {key}"),
                &[(key, value)],
                Query::new(
                    table.select(&table.shown(column), &table.is(key, value)),
                    field(column),
                    table
                        .asked(asks::Operation::Field { field: table.column(column) })
                        .filtered([table.fits(key, value)]),
                ),
                &Wordings::of(phrases::lookup(table, &table.thing, column))
                    .with("{row}", phrases::row(table, &table.thing, key, value)),
            );
        }
    }
}

/// The same, where the row may not exist.
fn lookups_of_nothing(asked: &mut TableQuestions<'_, '_, '_>, name: &str) {
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
        let field = table.column(column);
        let operation = match rule {
            AnswerRule::Absent { .. } => asks::Operation::Absent { field },
            _ => asks::Operation::Field { field },
        };
        let (t, c) = (&table.thing, columns::noun(table, column));
        asked.push(
            &format!("{column} by {name}, if any"),
            &[(name, value)],
            Query::new(
                table.select(&table.shown(column), &table.is(name, value)),
                rule,
                table.asked(operation).filtered([table.fits(name, value)]),
            ),
            &Wordings::of([
                format!("What is the {c} of {{row}}? If there is no such {t}, answer none."),
                format!("Tell me the {c} of {{row}}, or none if there is no such {t}."),
            ])
            .with("{row}", phrases::row(table, t, name, value)),
        );
    }
}

/// The rows that share a value, and the values themselves.
fn members(asked: &mut TableQuestions<'_, '_, '_>, name: &str) {
    let table = asked.table();
    let (things, names) = (words::plural(&table.thing), words::plural(&columns::noun(table, name)));
    for (category, values) in table.categories() {
        let cs = words::plural(&columns::noun(table, category));
        if !super::is_flag(table, category) && Sense::of(table, category) != Sense::Date {
            asked.push(
                &format!("values of {category}"),
                &[],
                Query::new(
                    table.select(&format!("DISTINCT {}", quoted(category)), &table.filled(category)),
                    column(category),
                    table.asked(asks::Operation::List { field: table.column(category) }),
                ),
                &Wordings::of([
                    format!("Which different {cs} do the {things} have? {EACH}"),
                    format!("List the different {cs} of the {things}, separated by commas."),
                    format!("Which different {cs} are there among the {things}? {EACH}"),
                ]),
            );
            asked.push(
                &format!("number of values of {category}"),
                &[],
                Query::value(
                    table.select(&format!("COUNT(DISTINCT {})", quoted(category)), ""),
                    table.asked(asks::Operation::CountDistinct { field: table.column(category) }),
                ),
                &Wordings::of([
                    format!("How many different {cs} do the {things} have?"),
                    format!("How many different {cs} are there among the {things}?"),
                    format!("Count the distinct {cs} of the {things}."),
                ]),
            );
        }
        for value in values.into_iter().take(VALUES) {
            asked.push(
                &format!("{name} by {category}"),
                &[(category, value)],
                Query::new(
                    table.select(&table.shown(name), &table.is(category, value)),
                    column(name),
                    table
                        .asked(asks::Operation::List { field: table.column(name) })
                        .filtered([table.fits(category, value)]),
                ),
                &Wordings::of([
                    format!("What are the {names} of the {{rows}}? {ALL}"),
                    format!("Which {{rows}} are there? Give their {names}, separated by commas."),
                    format!("List the {names} of all {{rows}}, separated by commas."),
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
    let place = (values.len() as f64 * share) as usize;
    values.get(place).copied()
}

/// How many rows there are: all, and those that fit a condition or two.
fn counts(asked: &mut TableQuestions<'_, '_, '_>) {
    let table = asked.table();
    let things = words::plural(&table.thing);
    asked.push(
        "count",
        &[],
        Query::value(table.select("COUNT(*)", ""), table.asked(asks::Operation::Count)),
        &Wordings::of(phrases::with_repeats(table, phrases::count())).with("{rows}", [things.clone()]),
    );
    counts_by_category(asked, &things);
    for column in table.facts().filter(|column| table.has_gaps(column)) {
        let c = phrases::without_unit(columns::noun(table, column));
        asked.push(
            &format!("count without {column}"),
            &[],
            Query::value(
                table.select("COUNT(*)", &format!("{} IS NULL", quoted(column))),
                table.asked(asks::Operation::Count).filtered([table.tested(column, Test::Missing(true))]),
            ),
            &Wordings::of([
                format!("How many {things} have no {c}?"),
                format!("For how many {things} is the {c} missing?"),
                format!("Count the {things} without {c}."),
            ]),
        );
    }
    counts_by_two(asked);
}

/// Of each category, how many rows have a value of it, and which value is the most frequent.
fn counts_by_category(asked: &mut TableQuestions<'_, '_, '_>, things: &str) {
    let table = asked.table();
    for (category, values) in table.categories() {
        let c = columns::noun(table, category);
        for value in values.iter().take(VALUES) {
            let mut texts = phrases::count();
            texts.extend(phrases::count_by(table, &table.thing, category, value));
            asked.push(
                &format!("count by {category}"),
                &[(category, value)],
                Query::value(
                    table.select("COUNT(*)", &table.is(category, value)),
                    table.asked(asks::Operation::Count).filtered([table.fits(category, value)]),
                ),
                &Wordings::of(phrases::with_repeats(table, texts))
                    .with("{rows}", phrases::rows(table, &table.thing, category, value)),
            );
        }
        if super::is_flag(table, category) || Sense::of(table, category) == Sense::Date {
            continue;
        }
        let filled = match table.filled(category) {
            filled if filled.is_empty() => filled,
            filled => format!(" WHERE {filled}"),
        };
        asked.push(
            &format!("most frequent {category}"),
            &[],
            Query::new(
                format!(
                    "SELECT {column}, COUNT(*) AS total FROM {}{filled} GROUP BY {column} ORDER BY total DESC LIMIT 3",
                    quoted(&table.name),
                    column = quoted(category)
                ),
                largest("total", category),
                table.asked(asks::Operation::MostOf {
                    field: table.column(category),
                    group: table.column(category),
                    measure: Measure::Count,
                }),
            ),
            &Wordings::of(match &*c {
                "kind" | "type" => [
                    format!("What is the most frequent {c} of {}?", table.thing),
                    format!("Which {c} of {} is the most common?", table.thing),
                ],
                _ => [
                    format!("Which {c} is the most common among the {things}?"),
                    format!("What is the most frequent {c} among the {things}?"),
                ],
            }),
        );
    }
}

/// How many rows have a value of each of two categories.
fn counts_by_two(asked: &mut TableQuestions<'_, '_, '_>) {
    let table = asked.table();
    let categories: Vec<(&str, Vec<&str>)> = table.categories().collect();
    for pair in categories.windows(2) {
        let [(one, firsts), (other, seconds)] = pair else { continue };
        for row in &table.rows {
            let first = value_of(row, one).filter(|value| firsts.contains(value));
            let second = value_of(row, other).filter(|value| seconds.contains(value));
            let Some((first, second)) = first.zip(second) else { continue };
            asked.push(
                &format!("count by {one} and {other}"),
                &[(*one, first), (*other, second)],
                Query::value(
                    table.select(
                        "COUNT(*)",
                        &format!("{} AND {}", table.is(one, first), table.is(other, second)),
                    ),
                    table
                        .asked(asks::Operation::Count)
                        .filtered([table.fits(one, first), table.fits(other, second)]),
                ),
                &Wordings::of(phrases::also(table, other, second))
                    .with("{rows}", phrases::rows(table, &table.thing, one, first)),
            );
        }
    }
}

/// How many rows have more or less of something, or are of a month.
fn comparisons(asked: &mut TableQuestions<'_, '_, '_>) {
    let table = asked.table();
    for (column, _) in table.measures() {
        for share in [0.3, 0.5, 0.7] {
            let Some(value) = threshold(table, column, share) else { continue };
            for (sign, is_above) in [(">", true), ("<", false)] {
                let value_asked = table.value(column, value);
                let test = if is_above { Test::Above(value_asked) } else { Test::Below(value_asked) };
                asked.push(
                    &format!("count by size of {column}"),
                    &[(column, value)],
                    Query::value(
                        table.select(
                            "COUNT(*)",
                            &format!("{} {sign} {}", quoted(column), table.literal(column, value)),
                        ),
                        table.asked(asks::Operation::Count).filtered([table.tested(column, test)]),
                    ),
                    &Wordings::of(phrases::compared(table, &table.thing, column, value, is_above)),
                );
            }
        }
    }
    for column in table.dates() {
        let months: BTreeSet<&str> =
            table.values(column).into_iter().filter_map(|date| date.get(..7)).collect();
        for month in months.into_iter().take(VALUES) {
            let Some(wordings) = phrases::of_month(table, column, month) else { continue };
            asked.push(
                &format!("count by month of {column}"),
                &[(column, month)],
                Query::value(
                    table.select("COUNT(*)", &format!("{} LIKE '{month}%'", quoted(column))),
                    table
                        .asked(asks::Operation::Count)
                        .filtered([table.tested(column, Test::Month(month.to_owned()))]),
                ),
                &Wordings::of(wordings),
            );
        }
    }
}

/// Whether people ask for the largest or the mean of a column.
fn is_compared(table: &Table<'_>, column: &str) -> bool {
    Sense::of(table, column) == Sense::Date || words::is_compared(column)
}

/// Whether people add up a column: nobody does so with what people weigh.
fn is_added_up(table: &Table<'_>, column: &str) -> bool {
    let is_of_body = matches!(Sense::of(table, column), Sense::Weight | Sense::Height | Sense::Length);
    words::is_added_up(column) && !(is_of_body && table.is_of_people())
}

/// What questions say about digits.
const DECIMALS: &str = ", rounded to two decimals";

impl Operation {
    /// What is asked, with what the question says about digits.
    fn asks(self, field: Column, decimals: &str) -> asks::Operation {
        let digits = (!decimals.is_empty()).then_some(2);
        match self {
            Self::Highest => asks::Operation::Largest { field },
            Self::Lowest => asks::Operation::Smallest { field },
            Self::Total => asks::Operation::Total { field, times: None, decimals: digits },
            Self::Average => asks::Operation::Average { field, decimals: 2 },
        }
    }
}

/// The SQL of a sum, and what the question says about digits.
fn total(column: &str, is_whole: bool) -> (String, &'static str) {
    let sum = format!("SUM({column})");
    if is_whole { (sum, "") } else { (format!("ROUND({sum}, 2)"), DECIMALS) }
}

/// The operations that fit a column, each with its SQL and what the question says about digits.
fn operations_on(
    table: &Table<'_>,
    number: &str,
    column: &str,
    is_whole: bool,
) -> Vec<(Operation, String, &'static str)> {
    let sense = Sense::of(table, number);
    if !is_compared(table, number) {
        return Vec::new();
    }
    let mut operations = vec![
        (Operation::Highest, format!("MAX({column})"), ""),
        (Operation::Lowest, format!("MIN({column})"), ""),
    ];
    // Nobody adds up ages, and years have no mean.
    if !matches!(sense, Sense::Year | Sense::Date) {
        if is_added_up(table, number) {
            let (sum, decimals) = total(column, is_whole);
            operations.push((Operation::Total, sum, decimals));
        }
        operations.push((Operation::Average, format!("ROUND(AVG({column}), 2)"), DECIMALS));
    }
    operations
}

/// Totals, averages, highest and lowest numbers: of all rows, and of those that share a value.
fn operations(asked: &mut TableQuestions<'_, '_, '_>) {
    let table = asked.table();
    for (number, is_whole) in table.measures() {
        for (operation, sql, decimals) in operations_on(table, number, &quoted(number), is_whole) {
            let texts = phrases::operation(table, number, operation, decimals);
            asked.push(
                &format!("summary of {number}"),
                &[],
                Query::value(
                    table.select(&sql, ""),
                    table.asked(operation.asks(table.column(number), decimals)),
                ),
                &Wordings::of(texts.clone()).with("{rows}", phrases::all(table)),
            );
            for (category, value) in compared_within(table, number) {
                asked.push(
                    &format!("summary of {number} by {category}"),
                    &[(category, value)],
                    Query::value(
                        table.select(&sql, &table.is(category, value)),
                        table
                            .asked(operation.asks(table.column(number), decimals))
                            .filtered([table.fits(category, value)]),
                    ),
                    &Wordings::of(texts.clone()).with("{rows}", the_rows(table, category, value)),
                );
            }
        }
    }
}

/// `the customers from Oslo`.
fn the_rows(table: &Table<'_>, category: &str, value: &str) -> Vec<String> {
    let rows = phrases::rows(table, &table.thing, category, value);
    rows.iter().map(|rows| format!("the {rows}")).collect()
}

/// The row with the largest or smallest number or date: of all, and of those that share a value.
fn superlatives(asked: &mut TableQuestions<'_, '_, '_>, key: &str) {
    let table = asked.table();
    for (number, _) in table.measures().filter(|(number, _)| is_compared(table, number)) {
        let column = quoted(number);
        for (function, is_largest) in [("MAX", true), ("MIN", false)] {
            // Several rows if it is shared, which is then no answer.
            let sql = |condition: &str, and: &str| {
                let extreme = table.select(&format!("{function}({column})"), condition);
                table.select(&table.shown(key), &format!("{condition}{and}{column} = ({extreme})"))
            };
            let texts = phrases::superlative(table, number, key, is_largest);
            let (field_asked, by) = (table.column(key), table.column(number));
            let asks = table.asked(match is_largest {
                true => asks::Operation::Most { field: field_asked, by },
                false => asks::Operation::Least { field: field_asked, by },
            });
            asked.push(
                &format!("extreme of {number}"),
                &[],
                Query::new(sql("", ""), field(key), asks.clone()),
                &Wordings::of(texts.clone())
                    .with("{rows}", [format!("the {}", words::plural(&table.thing))])
                    .with("{one}", [table.thing.clone()]),
            );
            for (category, value) in compared_within(table, number) {
                let one = phrases::one(table, &table.thing, category, value);
                // `the class with the room 007 with the most pupils` has one "with" too many.
                let is_long = |text: &&String| {
                    text.contains("{one} with ") && one.iter().any(|one| one.contains(" with "))
                };
                let texts: Vec<String> = texts.iter().filter(|text| !is_long(text)).cloned().collect();
                asked.push(
                    &format!("extreme of {number} by {category}"),
                    &[(category, value)],
                    Query::new(
                        sql(&table.is(category, value), " AND "),
                        field(key),
                        asks.clone().filtered([table.fits(category, value)]),
                    ),
                    &Wordings::of(texts).with("{rows}", the_rows(table, category, value)).with("{one}", one),
                );
            }
        }
    }
}

/// `orders JOIN customers ON orders.customer_id = customers.id`.
fn joined(table: &Table<'_>, references: &[&Reference<'_, '_>]) -> String {
    let mut from = quoted(&table.name);
    for join in references.iter().flat_map(|reference| &reference.joins) {
        let on = format!(
            " JOIN {} ON {} = {}",
            quoted(&join.to.name),
            join.from.of(join.column),
            join.to.of(join.key)
        );
        if !from.contains(&on) {
            from.push_str(&on);
        }
    }
    from
}

/// The same, for what a task asks.
fn source(table: &Table<'_>, references: &[&Reference<'_, '_>]) -> FactSource {
    let mut joins: Vec<asks::Join> = Vec::new();
    for join in references.iter().flat_map(|reference| &reference.joins) {
        let join = asks::Join { column: join.from.column(join.column), key: join.to.column(join.key) };
        if !joins.contains(&join) {
            joins.push(join);
        }
    }
    FactSource::Table { table: table.name.clone(), joins }
}

impl Table<'_> {
    /// What is asked about this table alone.
    fn asked(&self, operation: asks::Operation) -> Asks {
        Asks::new(operation, source(self, &[]))
    }

    /// That a row has a value in a column, where some have none.
    fn filled(&self, column: &str) -> String {
        if self.lacks(column) { format!("{} IS NOT NULL", quoted(column)) } else { String::new() }
    }

    /// Whether rows lack a value in a column, and none has an empty text there, which people also call missing.
    fn has_gaps(&self, column: &str) -> bool {
        let fields = || self.rows.iter().flatten().filter(|field| field.name == column);
        fields().any(super::is_missing)
            && !fields().any(|field| field.is_text && super::is_null(&field.value))
    }
}

/// A column of the row that a named row refers to.
fn referred(asked: &mut TableQuestions<'_, '_, '_>, reference: &Reference<'_, '_>, key: &str) {
    let table = asked.table();
    let Reference { to, role, .. } = reference;
    let from = joined(table, &[reference]);
    for row in &table.rows {
        let Some(value) = value_of(row, key).filter(|value| super::is_said(value)) else { continue };
        // Of what is two references away, who it is.
        let facts = to.facts().filter(|_| reference.is_direct());
        for column in facts.chain(to.name()) {
            asked.push(
                &format!("{column} of the {role}"),
                &[(key, value)],
                Query::new(
                    format!("SELECT {} FROM {from} WHERE {}", to.shown_of(column), table.is_of(key, value)),
                    field(column),
                    Asks::new(
                        asks::Operation::Field { field: to.column(column) },
                        source(table, &[reference]),
                    )
                    .filtered([table.fits(key, value)]),
                ),
                &Wordings::of(phrases::referred(table, reference, column))
                    .with("{row}", phrases::row(table, &table.thing, key, value)),
            );
        }
    }
}

/// Whether no two rows refer to one: of a team's only lead, nothing is counted.
fn is_one_to_one(reference: &Reference<'_, '_>) -> bool {
    let [join] = &*reference.joins else { return false };
    join.from.distinct(join.column).len() == join.from.values(join.column).len()
}

/// What is asked about all rows that refer to a named one.
fn referring(asked: &mut TableQuestions<'_, '_, '_>, reference: &Reference<'_, '_>, name: &str) {
    let table = asked.table();
    let Reference { to, role, .. } = reference;
    if is_one_to_one(reference) {
        return;
    }
    let (things, from) = (words::plural(&table.thing), joined(table, &[reference]));
    for value in to.said(name) {
        let rows = phrases::row_that_is_had(reference, name, value);
        let condition = to.is_of(name, value);
        let asks = |operation: asks::Operation, others: Vec<Condition>| {
            Asks::new(operation, source(table, &[reference]))
                .filtered([to.fits(name, value)])
                .filtered(others)
        };
        asked.push(
            &format!("count by {role}"),
            &[(name, value)],
            Query::value(
                format!("SELECT COUNT(*) FROM {from} WHERE {condition}"),
                asks(asks::Operation::Count, Vec::new()),
            ),
            &Wordings::of(phrases::with_repeats(table, phrases::count_of(table, reference)))
                .with("{row}", rows.clone())
                .with("{things}", [things.clone()]),
        );
        if !reference.is_direct() || reference.is_one_of_several {
            continue;
        }
        for (number, is_whole) in table.quantities() {
            let sense = Sense::of(table, number);
            for (operation, sql, decimals) in operations_on(table, number, &table.of(number), is_whole) {
                let mut texts = phrases::operation(table, number, operation, decimals);
                if operation == Operation::Total && sense == Sense::Pieces {
                    texts.extend(phrases::pieces_of(table, reference));
                }
                asked.push(
                    &format!("summary of {number} by {role}"),
                    &[(name, value)],
                    Query::value(
                        format!("SELECT {sql} FROM {from} WHERE {condition}"),
                        asks(operation.asks(table.column(number), decimals), Vec::new()),
                    ),
                    &Wordings::of(texts)
                        .with(
                            "{rows}",
                            ["the", "all"].map(|all| {
                                format!("{all} {}", phrases::things_of(&things, reference, "{row}"))
                            }),
                        )
                        .with("{row}", rows.clone()),
                );
            }
        }
        for (category, values) in table.categories().filter(|(column, _)| !super::is_flag(table, column)) {
            for which in values.into_iter().take(4) {
                let has = "How many {set} does {row} have?".to_owned();
                let mut texts: Vec<String> = to.is_of_people().then_some(has).into_iter().collect();
                if to.is_of_people() && !to.columns.iter().any(|column| column == category) {
                    texts.push(format!(
                        "Count the {things} {} of {{row}}.",
                        phrases::with(table, category, which)
                    ));
                }
                texts.push(format!(
                    "How many of the {} {}?",
                    phrases::things_of(&things, reference, "{row}"),
                    phrases::condition(table, category, which)
                ));
                asked.push(
                    &format!("count by {role} and {category}"),
                    &[(name, value)],
                    Query::value(
                        format!(
                            "SELECT COUNT(*) FROM {from} WHERE {condition} AND {}",
                            table.is_of(category, which)
                        ),
                        asks(asks::Operation::Count, vec![table.fits(category, which)]),
                    ),
                    &Wordings::of(texts)
                        .with("{set}", phrases::rows(table, &table.thing, category, which))
                        .with("{row}", rows.clone()),
                );
            }
        }
    }
}

/// Which row most rows refer to, which none, and how many refer to rows that share a value.
fn most_referring(asked: &mut TableQuestions<'_, '_, '_>, reference: &Reference<'_, '_>, name: &str) {
    let table = asked.table();
    let Reference { to, role, .. } = reference;
    if is_one_to_one(reference) {
        return;
    }
    let (things, from) = (words::plural(&table.thing), joined(table, &[reference]));
    let n = columns::noun(to, name);
    let grouped = |what: &str| {
        format!(
            "SELECT {name}, {what} AS total FROM {from} GROUP BY {key} ORDER BY total DESC LIMIT 3",
            name = to.shown_of(name),
            key = to.of(reference.key())
        )
    };
    let most = |measure: Measure| {
        let operation =
            asks::Operation::MostOf { field: to.column(name), group: to.column(reference.key()), measure };
        Asks::new(operation, source(table, &[reference]))
    };
    asked.push(
        &format!("most by {role}"),
        &[],
        Query::new(grouped("COUNT(*)"), largest("total", name), most(Measure::Count)),
        &Wordings::of(phrases::most_of(table, reference, name)),
    );
    let [join] = &*reference.joins else { return };
    for (number, _) in table.quantities().filter(|(number, _)| is_added_up(table, number)) {
        let q = columns::noun(table, number);
        let total = match words::tokens(number).contains("total") {
            true => format!("sum of the {}", words::plural(&q)),
            false => format!("total {}", phrases::without_unit(q.clone())),
        };
        let mut texts = vec![
            format!("For which {role} is the {total} of the {things} the largest? Give the {n}."),
            format!("What is the {n} of the {role} with the largest {total} of the {things}?"),
        ];
        let many = q.strip_prefix("number of ").unwrap_or(&q);
        if words::is_plural(many) {
            texts =
                vec![format!("For which {role} do the {things} add up to the most {many}? Give the {n}.")];
        }
        asked.push(
            &format!("most {number} by {role}"),
            &[],
            Query::new(
                grouped(&format!("SUM({})", table.of(number))),
                largest("total", name),
                most(Measure::Total { total: table.column(number) }),
            ),
            &Wordings::of(texts),
        );
    }
    with_and_without(asked, reference, name, join.column);
    for (category, value) in categorized(to) {
        let set = phrases::rows(to, role, category, value);
        let condition = to.is_of(category, value);
        let asks = |operation: asks::Operation| {
            Asks::new(operation, source(table, &[reference])).filtered([to.fits(category, value)])
        };
        asked.push(
            &format!("count by {category} of the {role}"),
            &[(category, value)],
            Query::value(
                format!("SELECT COUNT(*) FROM {from} WHERE {condition}"),
                asks(asks::Operation::Count),
            ),
            &Wordings::of(phrases::with_repeats(table, phrases::count_of_set(table, reference)))
                .with("{set}", set.clone())
                .with(
                    "{one}",
                    phrases::one(to, role, category, value)
                        .iter()
                        .map(|one| senses::a(one))
                        .collect::<Vec<_>>(),
                )
                .with("{things}", [things.clone()]),
        );
        let pieces = table.quantities().filter(|(number, _)| Sense::of(table, number) == Sense::Pieces);
        for (number, is_whole) in pieces {
            let (sql, decimals) = total(&table.of(number), is_whole);
            let mut texts = phrases::operation(table, number, Operation::Total, decimals);
            texts.extend(phrases::pieces_of(table, reference));
            asked.push(
                &format!("total {number} by {category} of the {role}"),
                &[(category, value)],
                Query::value(
                    format!("SELECT {sql} FROM {from} WHERE {condition}"),
                    asks(Operation::Total.asks(table.column(number), decimals)),
                ),
                &Wordings::of(texts)
                    .with("{rows}", [format!("the {things} of {{row}}")])
                    .with("{row}", set.clone()),
            );
        }
    }
}

/// Which rows none refers to, how many have one, and how many have several.
fn with_and_without(
    asked: &mut TableQuestions<'_, '_, '_>,
    reference: &Reference<'_, '_>,
    name: &str,
    referring: &str,
) {
    let table = asked.table();
    let Reference { to, role, .. } = reference;
    let (thing, things, roles) = (&table.thing, words::plural(&table.thing), words::plural(role));
    let (from, ns) = (quoted(&table.name), words::plural(&columns::noun(to, name)));
    let (own, by) = (quoted(referring), table.column(referring));
    // What refers to nothing belongs to no row, and is in no list of keys.
    let filled = match table.filled(referring) {
        filled if filled.is_empty() => filled,
        filled => format!(" WHERE {filled}"),
    };
    let none = format!(
        "FROM {} WHERE {} NOT IN (SELECT {own} FROM {from}{filled})",
        quoted(&to.name),
        quoted(reference.key())
    );
    // A lead is who leads something.
    if *role == to.thing {
        let without = |field: Option<Column>| {
            let of = to.column(reference.key());
            table.asked(asks::Operation::Without { of, by: by.clone(), field })
        };
        asked.push(
            &format!("{roles} without {things}"),
            &[],
            Query::value(format!("SELECT COUNT(*) {none}"), without(None)),
            &Wordings::of([
                format!("How many {roles} have no {things}?"),
                format!("How many {roles} are without any {thing}?"),
            ]),
        );
        asked.push(
            &format!("{ns} of {roles} without {things}"),
            &[],
            Query::new(
                format!("SELECT {} {none}", to.shown(name)),
                column(name),
                without(Some(to.column(name))),
            ),
            &Wordings::of([
                format!("Which {roles} have no {things}? Give their {ns}, separated by commas."),
                format!("List the {ns} of the {roles} without any {thing}, separated by commas."),
            ]),
        );
        asked.push(
            &format!("{roles} with {things}"),
            &[],
            Query::value(
                format!("SELECT COUNT(DISTINCT {own}) FROM {from}"),
                table.asked(asks::Operation::CountDistinct { field: by.clone() }),
            ),
            &Wordings::of([
                format!("How many different {roles} have {things}?"),
                format!("How many {roles} have at least one {thing}?"),
            ]),
        );
    }
    for (many, sign, words) in
        (1..4).flat_map(|many| [(many, ">", "more than"), (many + 1, ">=", "at least")])
    {
        let size = if sign == ">" { Size::MoreThan(many) } else { Size::AtLeast(many) };
        let many_things = if many == 1 { format!("one {thing}") } else { format!("{many} {things}") };
        asked.push(
            &format!("{roles} with several {things}"),
            &[("many", &many.to_string())],
            Query::value(
                format!(
                    "SELECT COUNT(*) FROM (SELECT {own} FROM {from}{filled} GROUP BY {own} HAVING COUNT(*) {sign} {many})"
                ),
                table.asked(asks::Operation::Groups { group: by.clone(), size }),
            ),
            &Wordings::of([
                format!("How many {roles} have {words} {many_things}?"),
                format!("Count the {roles} that have {words} {many_things}."),
            ]),
        );
    }
}

/// Pieces times their price, which stands in another table, over all rows that refer to a named one.
fn spent(
    asked: &mut TableQuestions<'_, '_, '_>,
    reference: &Reference<'_, '_>,
    name: &str,
    priced: &Reference<'_, '_>,
) {
    let table = asked.table();
    let of_sense = |table: &Table<'_>, sense: Sense| {
        let (column, _) = table.quantities().find(|(column, _)| Sense::of(table, column) == sense)?;
        Some((table.of(column), table.column(column)))
    };
    let found = of_sense(table, Sense::Pieces).zip(of_sense(priced.to, Sense::Price));
    let Some(((pieces, field), (price, times))) = found else { return };
    if priced.to.name == reference.to.name && priced.joins.len() != reference.joins.len() {
        return;
    }
    let (things, from) = (words::plural(&table.thing), joined(table, &[priced, reference]));
    for value in reference.to.said(name) {
        let mut texts = vec![
            format!("What are the {things} of {{row}} worth in total, rounded to two decimals?"),
            format!("What is the total value of the {things} of {{row}}, rounded to two decimals?"),
        ];
        texts.extend(phrases::spent(table, reference));
        asked.push(
            &format!("value by {}", reference.role),
            &[(name, value)],
            Query::value(
                format!(
                    "SELECT ROUND(SUM({pieces} * {price}), 2) FROM {from} WHERE {}",
                    reference.to.is_of(name, value)
                ),
                Asks::new(
                    asks::Operation::Total {
                        field: field.clone(),
                        times: Some(times.clone()),
                        decimals: Some(2),
                    },
                    source(table, &[priced, reference]),
                )
                .filtered([reference.to.fits(name, value)]),
            ),
            &Wordings::of(texts).with("{row}", phrases::row(reference.to, &reference.role, name, value)),
        );
    }
}

/// What a named row is linked to by the rows that refer to both.
fn linked(
    asked: &mut TableQuestions<'_, '_, '_>,
    reference: &Reference<'_, '_>,
    name: &str,
    other: &Reference<'_, '_>,
    is_link: bool,
) {
    let table = asked.table();
    let Some(wanted) = other.to.name() else { return };
    let from = joined(table, &[reference, other]);
    let (o, w) = (words::plural(&other.role), columns::noun(other.to, wanted));
    for value in reference.to.said(name) {
        let mut texts: Vec<String> = phrases::linked(table, reference, other)
            .map(|text| format!("{text} {ALL}"))
            .into_iter()
            .collect();
        if is_link {
            let ws = words::plural(&w);
            texts.extend([
                format!("Which {o} does {{row}} have? Give their {ws}, separated by commas."),
                format!("List the {ws} of the {o} of {{row}}, separated by commas."),
            ]);
        }
        let asks = |operation: asks::Operation| {
            Asks::new(operation, source(table, &[reference, other]))
                .filtered([reference.to.fits(name, value)])
        };
        let rows = phrases::row(reference.to, &reference.role, name, value);
        let condition = reference.to.is_of(name, value);
        if is_link {
            asked.push(
                &format!("number of {o} by {}", reference.role),
                &[(name, value)],
                Query::value(
                    format!("SELECT COUNT(DISTINCT {}) FROM {from} WHERE {condition}", other.to.of(wanted)),
                    asks(asks::Operation::CountDistinct { field: other.to.column(wanted) }),
                ),
                &Wordings::of([
                    format!("How many {o} does {{row}} have?"),
                    format!("What is the number of {o} of {{row}}?"),
                ])
                .with("{row}", rows.clone()),
            );
        }
        asked.push(
            &format!("{} by {}", other.role, reference.role),
            &[(name, value)],
            Query::new(
                format!("SELECT DISTINCT {} FROM {from} WHERE {condition}", other.to.shown_of(wanted)),
                column(wanted),
                asks(asks::Operation::List { field: other.to.column(wanted) }),
            ),
            &Wordings::of(texts).with("{row}", rows),
        );
    }
}
