//! By what a call differs from that of the reference solution, in words. SQL is compared roughly: the words of a statement, not
//! its meaning.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// By what a call differs.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Whether it lacks a condition of the reference, or names other values in it.
    pub is_filter: bool,
    pub text: String,
}

impl Difference {
    fn filter(text: String) -> Self {
        Self { is_filter: true, text }
    }

    fn other(text: String) -> Self {
        Self { is_filter: false, text }
    }
}

/// What sets the arguments of a call apart from those of the reference; none if they are equal.
pub fn difference(reference: &Map<String, Value>, made: &Map<String, Value>) -> Option<Difference> {
    let changed = reference.iter().find(|(name, value)| made.get(*name) != Some(value));
    let Some((name, wanted)) = changed else {
        let extra = made.keys().find(|name| !reference.contains_key(*name))?;
        return Some(Difference::filter(format!("`{extra}` is given, the reference leaves it out")));
    };
    Some(match (wanted.as_str(), made.get(name)) {
        (_, None) => Difference::filter(format!("`{name}` is left out")),
        (Some(wanted), Some(Value::String(given))) if is_sql(wanted) => of_sql(name, wanted, given),
        _ => Difference::other(format!("`{name}` has another value")),
    })
}

/// Says so of SQL without any condition.
pub fn unconditional(made: &Map<String, Value>) -> Option<String> {
    let is_it = |text: &str| is_sql(text) && !Statement::read(text).words.contains("where");
    let (name, _) = made.iter().find(|(_, value)| value.as_str().is_some_and(is_it))?;
    Some(format!("`{name}` has no WHERE"))
}

fn is_sql(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    ["select", "with", "insert", "update", "delete", "pragma"].contains(&first.to_lowercase().as_str())
}

fn of_sql(name: &str, wanted: &str, given: &str) -> Difference {
    if !is_sql(given) {
        return Difference::other(format!("`{name}` is no SQL"));
    }
    let (wanted, given) = (Statement::read(wanted), Statement::read(given));
    let lacks = |word: &str| wanted.words.contains(word) && !given.words.contains(word);
    let missing = |of: fn(&Statement) -> &BTreeSet<String>| of(&wanted).difference(of(&given)).next();
    if let Some(clause) = ["where", "having"].into_iter().find(|clause| lacks(clause)) {
        return Difference::filter(format!("`{name}` has no {}", clause.to_uppercase()));
    }
    if let Some(table) = missing(|statement| &statement.tables) {
        return Difference::other(format!("`{name}` leaves out `{table}`"));
    }
    if missing(|statement| &statement.values).is_some() {
        return Difference::filter(format!("`{name}` compares with other values"));
    }
    let lacking: Vec<&str> = WORDS.into_iter().filter(|word| lacks(word)).collect();
    if let Some(word) = lacking.first() {
        return Difference::other(format!("`{name}` has no {}", word.to_uppercase()));
    }
    if let Some(column) = missing(|statement| &statement.columns) {
        return Difference::other(format!("`{name}` does not use `{column}`"));
    }
    Difference::other(format!("`{name}` is another statement"))
}

/// Words that change what a statement asks for.
const WORDS: [&str; 9] = ["count", "sum", "avg", "min", "max", "distinct", "group", "order", "limit"];
/// Other words that name no column.
const KEYWORDS: [&str; 34] = [
    "select", "from", "where", "having", "join", "inner", "left", "outer", "on", "as", "and", "or", "not",
    "in", "is", "null", "like", "between", "exists", "by", "asc", "desc", "round", "case", "when", "then",
    "else", "end", "union", "all", "with", "cast", "coalesce", "offset",
];

/// What a statement consists of, in lower case.
#[derive(Debug, Default)]
struct Statement {
    words: BTreeSet<String>,
    /// Names after FROM and JOIN.
    tables: BTreeSet<String>,
    /// Names without their table.
    columns: BTreeSet<String>,
    /// Quoted texts and numbers of conditions.
    values: BTreeSet<String>,
}

impl Statement {
    fn read(text: &str) -> Self {
        let mut found = Self::default();
        let mut before = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_word = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.');
            let end = match first {
                '\'' => rest[1..].find('\'').map_or(rest.len(), |at| at + 2),
                _ if is_word(first) => rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            let (token, after) = rest.split_at(end);
            rest = after;
            let lower = token.to_lowercase();
            if first == '\'' || first.is_ascii_digit() {
                if ["where", "having"].into_iter().any(|clause| found.words.contains(clause)) {
                    found.values.insert(lower);
                }
            } else if is_word(first) {
                let is_keyword = KEYWORDS.contains(&lower.as_str()) || WORDS.contains(&lower.as_str());
                if matches!(before.as_str(), "from" | "join") && !is_keyword {
                    found.tables.insert(lower.clone());
                } else if !is_keyword {
                    found.columns.insert(lower.rsplit('.').next().unwrap_or(&lower).to_owned());
                }
                found.words.insert(lower.clone());
                before = lower;
            }
        }
        // An alias, or a table named before its column.
        found.columns.retain(|column| !found.tables.contains(column));
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_says_what_the_call_lacks() {
        let sql = |text: &str| json!({ "query": text });
        let paid = "SELECT COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id WHERE customers.name = 'Tom' AND status = 'paid'";
        for (reference, made, expected) in [
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1, "b": 2}), json!({"a": 1}), Some((true, "`b` is left out"))),
            (json!({"a": 1}), json!({"a": 2}), Some((false, "`a` has another value"))),
            (
                json!({"a": 1}),
                json!({"a": 1, "b": 2}),
                Some((true, "`b` is given, the reference leaves it out")),
            ),
            (sql(paid), sql("SELECT COUNT(*) FROM orders"), Some((true, "`query` has no WHERE"))),
            (sql(paid), sql("Tom"), Some((false, "`query` is no SQL"))),
            (
                sql(paid),
                sql("select count(*) from orders where status = 'paid'"),
                Some((false, "`query` leaves out `customers`")),
            ),
            (
                sql(paid),
                sql(
                    "SELECT COUNT(*) FROM orders WHERE status = 'paid' AND customer_id = (SELECT customer_id FROM customers WHERE name = 'Tom')",
                ),
                Some((false, "`query` does not use `id`")),
            ),
            (
                sql("SELECT name FROM t WHERE a = 'x'"),
                sql("SELECT name FROM t WHERE a = 'y'"),
                Some((true, "`query` compares with other values")),
            ),
            (sql("SELECT MAX(a) FROM t"), sql("SELECT MIN(a) FROM t"), Some((false, "`query` has no MAX"))),
            (
                sql("SELECT a, b FROM t"),
                sql("SELECT b, a FROM t"),
                Some((false, "`query` is another statement")),
            ),
            (sql("SELECT a FROM t"), sql("SELECT 'never closed"), Some((false, "`query` leaves out `t`"))),
        ] {
            let object = |value: &serde_json::Value| value.as_object().unwrap().clone();
            let found = difference(&object(&reference), &object(&made));
            let found = found.as_ref().map(|found| (found.is_filter, found.text.as_str()));
            assert_eq!(found, expected, "{made}");
        }
    }
}
