//! A query in a normal form: two queries that differ in case, spaces, quotes, aliases, qualifiers, the order of tables and of
//! conditions, or in the way to say a largest value, are the same text. What it does not understand stays as it is.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// A keyword or a name, in lower case.
    Word(String),
    /// A text or a number.
    Value(String),
    Sign(String),
    /// What stands in parentheses.
    Group(Vec<Token>),
    /// A query in parentheses, in its normal form.
    Query(String),
}

use Token::{Group, Query, Sign, Value, Word};

const CLAUSES: [&str; 6] = ["from", "where", "group", "having", "order", "limit"];
const RESERVED: [&str; 26] = [
    "where",
    "join",
    "inner",
    "left",
    "right",
    "full",
    "outer",
    "cross",
    "natural",
    "on",
    "using",
    "group",
    "order",
    "limit",
    "having",
    "union",
    "offset",
    "intersect",
    "except",
    "as",
    "and",
    "or",
    "not",
    "from",
    "select",
    "set",
];
const COMPARISONS: [&str; 6] = ["=", "<>", "<", ">", "<=", ">="];
/// Functions that change how a value is written.
const WRAPPERS: [&str; 6] = ["round", "coalesce", "ifnull", "lower", "upper", "trim"];
/// Deepest nesting that is read.
const DEPTH: usize = 24;

/// Longest query that is read, and longest text that an alias of a column stands for.
const QUERY_BYTES: usize = 16 << 10;
const COLUMN_BYTES: usize = 400;

pub fn is_query(text: &str) -> bool {
    let mut text = text.trim_start();
    while let Some(rest) = text.strip_prefix("--") {
        text = rest.split_once('\n').map_or("", |(_, rest)| rest.trim_start());
    }
    let first = text.trim_start_matches('(').split(|letter: char| !letter.is_ascii_alphabetic()).next();
    first.is_some_and(|word| word.eq_ignore_ascii_case("select") || word.eq_ignore_ascii_case("with"))
}

/// The normal form. `of_kind`: with `?` in place of texts and numbers.
pub fn normal(query: &str, of_kind: bool) -> String {
    let mut letters = query.chars().peekable();
    let tokens = if query.len() > QUERY_BYTES { None } else { tokens(&mut letters, 0, of_kind) };
    match tokens.as_deref() {
        Some([Query(only)]) => only.clone(),
        Some(tokens) if is_select(tokens) => select(tokens),
        Some(tokens) => shown(tokens),
        None => query.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase(),
    }
}

impl Token {
    fn is(&self, word: &str) -> bool {
        matches!(self, Word(own) if own == word)
    }
}

fn is_select(tokens: &[Token]) -> bool {
    tokens.first().is_some_and(|first| first.is("select"))
}

type Letters<'t> = std::iter::Peekable<std::str::Chars<'t>>;

fn word(text: &str) -> Token {
    Word(text.to_owned())
}

/// The tokens up to the end, or up to a closing parenthesis. `None` where a quote or a parenthesis is not closed.
fn tokens(letters: &mut Letters<'_>, depth: usize, of_kind: bool) -> Option<Vec<Token>> {
    let mut tokens: Vec<Token> = Vec::new();
    while let Some(letter) = letters.next() {
        // `LIMIT 1` says what is asked for.
        let hides = of_kind && !tokens.last().is_some_and(|last| last.is("limit"));
        let value = |text: String| Value(if hides { "?".into() } else { text });
        match letter {
            ')' => return (depth > 0).then_some(tokens),
            '(' if depth < DEPTH => {
                let inner = self::tokens(letters, depth + 1, of_kind)?;
                tokens.push(if is_select(&inner) { Query(select(&inner)) } else { Group(inner) });
            }
            '(' => return None,
            '\'' => tokens.push(value(text_value(&quoted(letters, '\'')?))),
            // People write texts so, too.
            '"' if tokens.last().is_some_and(is_comparison) => {
                let text = quoted(letters, letter)?;
                let is_qualifier = letters.peek() == Some(&'.');
                tokens.push(if is_qualifier { Word(text.to_lowercase()) } else { value(text_value(&text)) });
            }
            '"' | '`' => tokens.push(Word(quoted(letters, letter)?.to_lowercase())),
            '[' => tokens.push(Word(quoted(letters, ']')?.to_lowercase())),
            '-' if letters.peek() == Some(&'-') => _ = letters.by_ref().find(|letter| *letter == '\n'),
            ';' => {}
            letter if letter.is_whitespace() => {}
            letter if letter.is_ascii_digit() => {
                let text = run(letters, letter, |next| next.is_ascii_digit() || next == '.');
                tokens.push(value(super::number(&text).unwrap_or(text)));
            }
            letter if letter.is_alphabetic() || letter == '_' => {
                let name = run(letters, letter, |next| next.is_alphanumeric() || next == '_');
                tokens.push(Word(name.to_lowercase()));
            }
            letter => {
                let is_second = |next: &char| {
                    matches!((letter, next), ('<' | '>' | '=' | '!', '=') | ('<', '>') | ('|', '|'))
                };
                let second = letters.next_if(is_second);
                let sign: String = std::iter::once(letter).chain(second).collect();
                tokens.push(Sign(match sign.as_str() {
                    "!=" => "<>".into(),
                    "==" => "=".into(),
                    _ => sign,
                }));
            }
        }
    }
    (depth == 0).then_some(tokens)
}

/// What stands before the closing quote, which is doubled within.
fn quoted(letters: &mut Letters<'_>, quote: char) -> Option<String> {
    let mut text = String::new();
    loop {
        match letters.next()? {
            letter if letter == quote && letters.next_if_eq(&quote).is_none() => return Some(text),
            letter => text.push(letter),
        }
    }
}

fn is_comparison(token: &Token) -> bool {
    matches!(token, Sign(sign) if COMPARISONS.contains(&sign.as_str()))
}

fn run(letters: &mut Letters<'_>, first: char, goes_on: impl Fn(char) -> bool) -> String {
    let mut text = String::from(first);
    while let Some(letter) = letters.next_if(|letter| goes_on(*letter)) {
        text.push(letter);
    }
    text
}

/// A quoted number is one if it has no zeros that a number lacks: a version or a code keeps its text.
fn text_value(text: &str) -> String {
    super::number(text).filter(|number| number == text).unwrap_or_else(|| text.to_lowercase())
}

fn shown(tokens: &[Token]) -> String {
    let one = |token: &Token| match token {
        Word(text) | Sign(text) => text.clone(),
        Value(text) => format!("'{text}'"),
        Query(text) => format!("({text})"),
        Group(inner) => format!("({})", shown(inner)),
    };
    tokens.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Parts between tokens that separate them.
fn split(tokens: &[Token], separator: &Token) -> Vec<Vec<Token>> {
    let mut parts = vec![Vec::new()];
    let mut is_range = false;
    for token in tokens {
        is_range |= token.is("between");
        let ends = token == separator && !(is_range && token.is("and"));
        if is_range && token.is("and") {
            is_range = false;
        }
        match parts.last_mut() {
            Some(last) if !ends => last.push(token.clone()),
            _ => parts.push(Vec::new()),
        }
    }
    parts
}

/// The clauses of a SELECT, each by its first keyword; what is selected is under `select`.
fn clauses(tokens: &[Token]) -> BTreeMap<String, Vec<Token>> {
    let mut clauses: BTreeMap<String, Vec<Token>> = BTreeMap::new();
    let mut current = "select".to_owned();
    for token in tokens.iter().skip(1) {
        match token {
            Word(word) if CLAUSES.contains(&word.as_str()) && !clauses.contains_key(word) => {
                current.clone_from(word)
            }
            // What joins whole queries stays where it is.
            token => clauses.entry(current.clone()).or_default().push(token.clone()),
        }
    }
    for by in ["group", "order"] {
        if let Some(tokens) =
            clauses.get_mut(by).filter(|tokens| tokens.first().is_some_and(|first| first.is("by")))
        {
            tokens.remove(0);
        }
    }
    clauses
}

/// A SELECT in its normal form.
fn select(tokens: &[Token]) -> String {
    let mut clauses = clauses(tokens);
    let mut from = clauses.remove("from").unwrap_or_default();
    let aliases = without_aliases(&mut from);
    let (tables, mut conditions) = tables(&from, &aliases);
    let mut take = |clause: &str| plain(&clauses.remove(clause).unwrap_or_default(), &aliases);
    let selected: Vec<Token> = take("select").into_iter().filter(|token| !token.is("distinct")).collect();
    let mut names: BTreeMap<String, Vec<Token>> = BTreeMap::new();
    let mut columns: Vec<Vec<Token>> =
        split(&selected, &Sign(",".into())).into_iter().map(|column| named(column, &mut names)).collect();
    let [filter, group, having, order, limit] =
        ["where", "group", "having", "order", "limit"].map(&mut take).map(|tokens| resolved(&tokens, &names));
    conditions.extend(self::conditions(&filter));
    let mut ordered: Vec<String> = split(&order, &Sign(",".into()))
        .iter()
        .map(|part| shown(part))
        .filter(|part| !part.is_empty())
        .collect();
    // Those with the largest value, and the first of all in its order, are the same, also where the value and some more rows
    // are shown. What is grouped to compare is a matter of taste: a name or its key.
    let limit_tokens = limit;
    let (mut limit, mut group) = (shown(&limit_tokens), group);
    if let ([only], [Value(_)]) = (ordered.as_slice(), limit_tokens.as_slice()) {
        let is_last = only.ends_with(" desc");
        let by = only.trim_end_matches(" desc").trim_end_matches(" asc").to_owned();
        conditions.insert(format!("{by} is {}", if is_last { "largest" } else { "smallest" }));
        if columns.len() > 1 {
            columns.retain(|column| shown(column) != by);
        }
        (ordered, limit, group) = (Vec::new(), String::new(), Vec::new());
    }
    // An order of all rows says nothing of what they are.
    if limit.is_empty() {
        ordered.clear();
    }
    if let [column] = columns.as_mut_slice()
        && let Some((by, which)) = extreme(column)
        && group.is_empty()
    {
        conditions.insert(format!("{} is {which}", shown(&by)));
        *column = by;
    }
    let conditions: BTreeSet<String> = conditions
        .iter()
        .map(|condition| {
            of_extreme(condition, &tables.join(", "), &conditions).unwrap_or_else(|| condition.clone())
        })
        .collect();
    let mut columns: Vec<String> = columns.iter().map(|column| shown(column)).collect();
    columns.sort();
    let mut parts = vec![format!("select {}", columns.join(", "))];
    let lists = [
        ("from", tables),
        ("where", conditions.into_iter().collect()),
        ("group by", split(&group, &Sign(",".into())).iter().map(|part| shown(part)).collect()),
        ("having", self::conditions(&having).into_iter().collect()),
        ("order by", ordered),
        ("limit", vec![limit]),
    ];
    for (clause, list) in lists {
        let list: Vec<String> = list.into_iter().filter(|part: &String| !part.is_empty()).collect();
        if !list.is_empty() {
            parts.push(format!("{clause} {}", list.join(if clause == "where" { " and " } else { ", " })));
        }
    }
    parts.join(" ")
}

/// Removes the aliases of tables, and returns what they stand for.
fn without_aliases(from: &mut Vec<Token>) -> BTreeMap<String, String> {
    let mut aliases = BTreeMap::new();
    let mut kept: Vec<Token> = Vec::new();
    let mut table: Option<String> = None;
    for token in std::mem::take(from) {
        let is_reserved = matches!(&token, Word(name) if RESERVED.contains(&name.as_str()));
        match (&token, &table) {
            (Word(name), _) if name == "as" => continue,
            (Word(alias), Some(table)) if !is_reserved && !kept.ends_with(&[Sign(".".into())]) => {
                aliases.insert(alias.clone(), table.clone());
                continue;
            }
            (Word(name), _) if !is_reserved && is_place(&kept) => table = Some(name.clone()),
            (Group(_) | Query(_), _) if is_place(&kept) => table = Some(String::new()),
            _ => table = None,
        }
        kept.push(token);
    }
    *from = kept;
    number_twins(&mut aliases);
    aliases
}

/// A table that stands twice has two roles: its aliases are told apart.
fn number_twins(aliases: &mut BTreeMap<String, String>) {
    let tables: Vec<String> = aliases.values().cloned().collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for table in aliases.values_mut().filter(|table| tables.iter().filter(|other| other == table).count() > 1)
    {
        let count = counts.entry(table.clone()).or_default();
        *count += 1;
        *table = format!("{table}#{count}");
    }
}

/// Whether a table comes next.
fn is_place(before: &[Token]) -> bool {
    match before.last() {
        None => true,
        Some(Word(last)) => last == "join",
        Some(Sign(last)) => last == ",",
        _ => false,
    }
}

/// Tokens without qualifiers and without functions that only change how a value is written.
fn plain(tokens: &[Token], aliases: &BTreeMap<String, String>) -> Vec<Token> {
    let mut plain: Vec<Token> = Vec::new();
    let mut tokens = tokens.iter().peekable();
    while let Some(token) = tokens.next() {
        match (token, tokens.peek()) {
            (Word(name), Some(Sign(dot))) if dot == "." => {
                plain.extend(aliases.get(name).filter(|table| table.contains('#')).cloned().map(Word));
                tokens.next();
            }
            (Word(name), Some(Group(inner))) if WRAPPERS.contains(&name.as_str()) => {
                let first = split(inner, &Sign(",".into())).into_iter().next().unwrap_or_default();
                let first: Vec<Token> = first.into_iter().take_while(|token| !token.is("as")).collect();
                plain.extend(self::plain(&first, aliases));
                tokens.next();
            }
            (Word(name), Some(Group(inner))) if name == "count" && counts_rows(inner) => {
                plain.extend([word("count"), Group(vec![Sign("*".into())])]);
                tokens.next();
            }
            (Group(inner), _) => plain.push(Group(self::plain(inner, aliases))),
            _ => plain.push(token.clone()),
        }
    }
    plain
}

/// Whether what COUNT has is no DISTINCT: people count a key instead of rows.
fn counts_rows(inner: &[Token]) -> bool {
    matches!(inner, [Value(_)] | [Word(_)] | [Word(_), Sign(_), Word(_)])
}

/// The tables of a FROM clause in alphabetical order, and the conditions of its joins. An outer join stays as it is.
fn tables(from: &[Token], aliases: &BTreeMap<String, String>) -> (Vec<String>, BTreeSet<String>) {
    let is_outer = from
        .iter()
        .any(|token| matches!(token, Word(name) if ["left", "right", "full"].contains(&name.as_str())));
    if is_outer {
        return (vec![shown(&plain(from, aliases))], BTreeSet::new());
    }
    let mut tables = Vec::new();
    let mut conditions = BTreeSet::new();
    let is_word =
        |token: &Token| matches!(token, Word(name) if ["inner", "cross", "natural"].contains(&name.as_str()));
    let from: Vec<Token> = from.iter().filter(|token| !is_word(token)).cloned().collect();
    let parts = split(&from, &Sign(",".into())).into_iter().flat_map(|part| split(&part, &word("join")));
    for part in parts {
        let on = part.iter().position(|token| token.is("on") || token.is("using"));
        let (table, condition) = part.split_at(on.unwrap_or(part.len()));
        tables.push(shown(&plain(table, aliases)));
        match condition {
            [Word(using), Group(columns)] if using == "using" => {
                let columns = shown(columns);
                conditions.insert(format!("{columns} = {columns}"));
            }
            [_, condition @ ..] => conditions.extend(self::conditions(&plain(condition, aliases))),
            [] => {}
        }
    }
    tables.sort();
    (tables, conditions)
}

/// A selected column without its alias, which is noted.
fn named(column: Vec<Token>, names: &mut BTreeMap<String, Vec<Token>>) -> Vec<Token> {
    let alias = match column.as_slice() {
        [.., before, Word(alias)] if before.is("as") => Some((alias.clone(), column.len() - 2)),
        [.., Group(_), Word(alias)] => Some((alias.clone(), column.len() - 1)),
        _ => None,
    };
    let Some((alias, end)) = alias else { return column };
    let column = column[..end].to_vec();
    if shown(&column).len() <= COLUMN_BYTES {
        names.insert(alias, column.clone());
    }
    column
}

/// Tokens with what aliases of columns stand for.
fn resolved(tokens: &[Token], names: &BTreeMap<String, Vec<Token>>) -> Vec<Token> {
    let of = |token: &Token| match token {
        Word(name) => names.get(name).cloned().unwrap_or_else(|| vec![token.clone()]),
        token => vec![token.clone()],
    };
    tokens.iter().flat_map(of).collect()
}

/// The conditions that AND joins, each in its normal form.
fn conditions(tokens: &[Token]) -> BTreeSet<String> {
    if let [Group(inner)] = tokens {
        return conditions(inner);
    }
    let parts = split(tokens, &word("and")).into_iter().filter(|part| !part.is_empty());
    parts
        .flat_map(|part| match part.as_slice() {
            [Group(inner)] if split(inner, &word("or")).len() == 1 => conditions(inner),
            _ => BTreeSet::from([alternatives(&part)]),
        })
        .collect()
}

/// The conditions that OR joins, in alphabetical order.
fn alternatives(tokens: &[Token]) -> String {
    let tokens = if let [Group(inner)] = tokens { inner } else { tokens };
    let mut parts: Vec<String> = split(tokens, &word("or")).iter().map(|part| comparison(part)).collect();
    parts.sort();
    if parts.len() > 1 { format!("({})", parts.join(" or ")) } else { parts.pop().unwrap_or_default() }
}

/// A comparison, with its column before the value, and those that are the same either way in alphabetical order.
fn comparison(tokens: &[Token]) -> String {
    match tokens.iter().position(is_comparison) {
        Some(at) => {
            let [left, right] = [&tokens[..at], &tokens[at + 1..]].map(shown);
            let sign = shown(&tokens[at..=at]);
            let turned = match sign.as_str() {
                "<" => ">",
                ">" => "<",
                "<=" => ">=",
                ">=" => "<=",
                same => same,
            };
            let is_value = |side: &[Token]| matches!(side, [Value(_)]);
            if let ([Sign(sign)], [Value(least)]) = (&tokens[at..=at], &tokens[at + 1..])
                && let Some(before) = least.parse::<i64>().ok().and_then(|least| least.checked_sub(1))
                && sign == ">="
                && left.starts_with("count (")
            {
                return format!("{left} > '{before}'");
            }
            let turns = match (is_value(&tokens[..at]), is_value(&tokens[at + 1..])) {
                (true, false) => true,
                (false, false) => ["=", "<>"].contains(&sign.as_str()) && right < left,
                _ => false,
            };
            if turns { format!("{right} {turned} {left}") } else { format!("{left} {sign} {right}") }
        }
        None => match tokens {
            // A pattern without a wildcard, and a list of one.
            [column @ .., Word(like), Value(value)] if like == "like" && !value.contains(['%', '_']) => {
                format!("{} = '{value}'", shown(column))
            }
            [column @ .., Word(within), Group(list)]
                if within == "in" && matches!(list.as_slice(), [Value(_)]) =>
            {
                format!("{} = {}", shown(column), shown(list))
            }
            _ => shown(tokens),
        },
    }
}

/// `max(price)` is the price that is the largest.
fn extreme(column: &[Token]) -> Option<(Vec<Token>, &'static str)> {
    match column {
        [Word(function), Group(inner)] if function == "max" => Some((inner.clone(), "largest")),
        [Word(function), Group(inner)] if function == "min" => Some((inner.clone(), "smallest")),
        _ => None,
    }
}

/// `price = (select max(price) from …)` over the same tables, under no other conditions than those beside it, is the largest.
fn of_extreme(condition: &str, tables: &str, all: &BTreeSet<String>) -> Option<String> {
    let (by, inner) = match condition.starts_with("(select ") {
        true => condition.rsplit_once(" = ").map(|(inner, by)| (by, inner))?,
        false => condition.split_once(" = ")?,
    };
    let inner = inner.strip_prefix("(select ")?.strip_suffix(')')?;
    let (column, rest) = inner.split_once(" from ")?;
    let (from, filter) = rest.split_once(" where ").map_or((rest, ""), |(from, filter)| (from, filter));
    if column != by || from != tables {
        return None;
    }
    let mut conditions: BTreeSet<&str> = filter.split(" and ").filter(|part| !part.is_empty()).collect();
    let which = [" is largest", " is smallest"]
        .into_iter()
        .find(|which| conditions.remove(&*format!("{by}{which}")))?;
    conditions.iter().all(|part| all.contains(*part)).then(|| format!("{by}{which}"))
}
