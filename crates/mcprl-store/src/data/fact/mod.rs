//! What a task asks about, so that nothing that an exam asks is trained on in other words.

mod conversation;
mod sql;

use std::collections::{BTreeMap, BTreeSet};

use mcprl_base::json;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Json, Scenario, folded, is_of_trained_cases};

/// What a task asks about.
///
/// Two tasks ask about the same if their sentences are the same, if both have reference solutions whose last calls look up the same
/// and answers that may be equal, or if they name the same values and have the same answer. A query of another form, such as a
/// subquery in place of a join, is recognised by values and answer alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// The task as [`folded`] writes it.
    pub task: String,
    /// What the last call of the reference solution looks up: a query without differences of case, quotes, aliases, qualifiers and
    /// the order of conditions; otherwise the values of its arguments, whichever tool takes them, or a tool that takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The last query with `?` in place of values, or the field of a tool's result that an explored task asks for: tasks of one kind
    /// differ in what they name. `None` where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The values that the task names.
    pub values: BTreeSet<String>,
    /// The task in words between single spaces, and the values in the same way.
    #[serde(skip)]
    spaced: String,
    #[serde(skip)]
    spaced_values: Vec<String>,
    /// Words that say what a task is about that names no value.
    #[serde(skip)]
    words: BTreeSet<String>,
    /// The words of the task, and those of its values, each as a bit.
    #[serde(skip)]
    bits: [u64; 2],
}

/// The last call of a reference solution.
#[derive(Deserialize)]
struct Call {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl Fact {
    pub fn of(scenario: &Scenario) -> Self {
        let calls = scenario.reference.as_deref();
        let calls: Vec<Call> = calls.and_then(|calls| serde_json::from_str(calls).ok()).unwrap_or_default();
        let last = calls.last();
        let entity = scenario.entity.as_deref().map(entity).unwrap_or_default();
        let asks = scenario.asks.as_ref().and_then(|asks| serde_json::from_str(&asks.0).ok());
        // A change of a thing is something else than a look at it.
        let changes = scenario.check == "none" && scenario.checks.is_some();
        let call = last.map(|call| match changes {
            true => format!("{}: {}", call.name, call.normal()),
            false => call.normal(),
        });
        Self {
            call,
            kind: last.and_then(|call| call.kind(asks.as_ref())),
            // What is said at the end of a change is no answer.
            ..Self::asked(&scenario.task, &entity, scenario.answer.as_deref().filter(|_| !changes))
        }
    }

    /// The fact of a task without a solution. `entity`: what it is about; a source may describe its tasks by more than they say.
    fn asked(task: &str, entity: &[String], answer: Option<&str>) -> Self {
        let (named, task) = (named(task), folded(task));
        let spaced = spaced(&task);
        let said = entity.iter().map(|value| folded(value));
        let said = said.filter(|value| *value != task && states(&spaced, &self::spaced(value)));
        let values: BTreeSet<String> = said.chain(named).collect();
        let spaced_values: Vec<String> = values.iter().map(|value| self::spaced(value)).collect();
        let spaced_values: Vec<String> =
            spaced_values.into_iter().filter(|value| !value.trim().is_empty()).collect();
        Self {
            call: None,
            kind: None,
            answer: answer.map(self::answer),
            values,
            words: if spaced_values.is_empty() { words(&spaced) } else { BTreeSet::new() },
            bits: [
                bits(&spaced),
                spaced_values.iter().map(|value| bits(value)).fold(0, |all, one| all | one),
            ],
            spaced_values,
            spaced,
            task,
        }
    }

    /// As the column `fact` of a scenario.
    pub fn to_json(&self) -> Json {
        Json(serde_json::json!(self).to_string())
    }

    /// Whether two tasks ask about the same.
    pub fn is(&self, other: &Self) -> bool {
        self.is_certainly(other) || self.is_in_other_words(other)
    }

    /// Whether two tasks are the same sentence, or look up the same.
    pub fn is_certainly(&self, other: &Self) -> bool {
        if self.task == other.task {
            return true;
        }
        match (&self.call, &other.call) {
            (Some(one), Some(two)) => {
                one == two
                    && may_be_equal(self.answer.as_deref(), other.answer.as_deref())
                    && (!lists(one) || self.names_the_same(other))
            }
            _ => false,
        }
    }

    fn is_in_other_words(&self, other: &Self) -> bool {
        self.answer.is_some() && self.answer == other.answer && self.names_the_same(other)
    }

    /// Whether each task says the values that the other one names. Without any, they have half of their words in common.
    fn names_the_same(&self, other: &Self) -> bool {
        if self.spaced_values.is_empty() && other.spaced_values.is_empty() {
            let common = self.words.intersection(&other.words).count();
            return common > 0 && 2 * common >= self.words.len().min(other.words.len());
        }
        let may = |one: &Self, two: &Self| one.bits[1] & !two.bits[0] == 0;
        let all = |one: &Self, two: &Self| one.spaced_values.iter().all(|value| states(&two.spaced, value));
        may(self, other) && may(other, self) && all(self, other) && all(other, self)
    }
}

/// Facts of tasks, to look others up in.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    facts: Vec<Fact>,
    by_task: BTreeMap<String, usize>,
    by_call: BTreeMap<String, Vec<usize>>,
    by_answer: BTreeMap<String, Vec<usize>>,
    kinds: BTreeSet<String>,
}

impl Facts {
    /// The tasks of these scenarios.
    pub fn of<'s>(scenarios: impl IntoIterator<Item = &'s Scenario>) -> Self {
        scenarios.into_iter().map(Fact::of).collect()
    }

    /// The facts of held-out tasks. Tasks that ask about trained cases on purpose count by their words alone.
    pub fn of_exam<'s>(scenarios: impl IntoIterator<Item = &'s Scenario>) -> Self {
        let fact = |scenario: &Scenario| match is_of_trained_cases(&scenario.split) {
            true => Fact::asked(&scenario.task, &[], None),
            false => Fact::of(scenario),
        };
        scenarios.into_iter().map(fact).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    pub fn extend(&mut self, other: Self) {
        other.facts.into_iter().for_each(|fact| self.insert(fact));
    }

    pub fn insert(&mut self, fact: Fact) {
        let place = self.facts.len();
        self.by_task.entry(fact.task.clone()).or_insert(place);
        if let Some(call) = &fact.call {
            self.by_call.entry(call.clone()).or_default().push(place);
        }
        if let Some(answer) = &fact.answer {
            self.by_answer.entry(answer.clone()).or_default().push(place);
        }
        self.kinds.extend(fact.kind.clone());
        self.facts.push(fact);
    }

    /// The first of these facts that is the same.
    pub fn find(&self, fact: &Fact) -> Option<&Fact> {
        self.find_certain(fact).or_else(|| {
            let mut places =
                self.by_answer.get(fact.answer.as_ref()?)?.iter().map(|place| &self.facts[*place]);
            places.find(|other| other.is_in_other_words(fact))
        })
    }

    /// The first of these facts that is the same by its sentence or its call.
    pub fn find_certain(&self, fact: &Fact) -> Option<&Fact> {
        let of_call = || {
            let mut places = self.by_call.get(fact.call.as_ref()?)?.iter().map(|place| &self.facts[*place]);
            places.find(|other| other.is_certainly(fact))
        };
        self.by_task.get(&fact.task).map(|place| &self.facts[*place]).or_else(of_call)
    }

    /// Whether one of these tasks asks about the same as this one.
    pub fn has(&self, scenario: &Scenario) -> bool {
        self.find(&Fact::of(scenario)).is_some()
    }

    /// Whether one of these tasks is of the same kind. `None` if a kind is not known.
    pub fn has_kind(&self, fact: &Fact) -> Option<bool> {
        fact.kind.as_ref().filter(|_| !self.kinds.is_empty()).map(|kind| self.kinds.contains(kind))
    }
}

impl FromIterator<Fact> for Facts {
    fn from_iter<I: IntoIterator<Item = Fact>>(facts: I) -> Self {
        let mut all = Self::default();
        facts.into_iter().for_each(|fact| all.insert(fact));
        all
    }
}

/// Arguments that say how much of a result is wanted.
const PAGING: [&str; 7] = ["limit", "offset", "page", "page_size", "per_page", "cursor", "max_results"];

/// Whether a call looks up nothing in particular: many questions are answered by its result, some of them alike.
fn lists(call: &str) -> bool {
    call.ends_with("()")
}

impl Call {
    /// The arguments in the order of their names, without those that say nothing of what is looked up.
    fn given(&self) -> BTreeMap<&String, &Value> {
        let is_empty = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        let given = self.arguments.iter();
        given.filter(|(name, value)| !is_empty(value) && !PAGING.contains(&name.as_str())).collect()
    }

    /// What the call looks up.
    fn normal(&self) -> String {
        let values: Vec<String> = self.given().into_values().flat_map(leaves).collect();
        if values.is_empty() { format!("{}()", self.name) } else { values.join(", ") }
    }

    /// `asks`: what an explored task asks.
    fn kind(&self, asks: Option<&Value>) -> Option<String> {
        let query =
            |value: &Value| Some(sql::normal(value.as_str().filter(|text| sql::is_query(text))?, true));
        self.arguments.values().find_map(query).or_else(|| {
            let asks = asks?;
            let names = self.given().into_keys().cloned().collect::<Vec<_>>().join(", ");
            Some(format!("{}({names}): {} {}", self.name, asks["operation"], asks["field"]))
        })
    }
}

/// The values in a value, without differences of type and case. Items of a list have no order.
fn leaves(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => {
            let mut leaves: Vec<String> = items.iter().flat_map(leaves).collect();
            leaves.sort();
            leaves
        }
        Value::Object(fields) => fields.values().flat_map(leaves).collect(),
        Value::String(text) if sql::is_query(text) => vec![sql::normal(text, false)],
        Value::String(text) => vec![number(text).unwrap_or_else(|| folded(text))],
        Value::Null => Vec::new(),
        value => vec![number(&value.to_string()).unwrap_or_else(|| value.to_string())],
    }
}

/// A number without differences of notation: `1,200.50` is `1200.5`. `None` for other texts.
fn number(text: &str) -> Option<String> {
    let text = text.trim();
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_whole = !first.is_empty()
        && are_digits(first)
        && groups.all(|group| first.len() <= 3 && group.len() == 3 && are_digits(group));
    if !is_whole || !are_digits(part) || digits.ends_with('.') {
        return None;
    }
    let (whole, part) = (whole.replace(',', ""), part.trim_end_matches('0'));
    Some(if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") })
}

/// The items of an answer: `Oslo, Bern and Rome`.
fn items(answer: &str) -> impl Iterator<Item = &str> {
    let parts = answer.split(", ").flat_map(|part| part.split("; ")).flat_map(|part| part.split('\n'));
    parts.flat_map(|part| part.split(" and ")).map(str::trim).filter(|part| !part.is_empty())
}

/// An answer without differences of notation and order.
fn answer(text: &str) -> String {
    if let Some(number) = number(text) {
        return number;
    }
    let mut items: Vec<String> =
        items(text).map(|item| number(item).unwrap_or_else(|| folded(item))).collect();
    items.sort();
    items.join(", ")
}

/// Whether two answers to one call may be the same: one is not known, or they are numbers that differ in their decimals alone.
fn may_be_equal(one: Option<&str>, two: Option<&str>) -> bool {
    let (Some(one), Some(two)) = (one, two) else { return true };
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let decimals = |text: &str| text.split_once('.').map_or(0, |(_, part)| part.len());
    let are_close = || {
        let (Some(a), Some(b)) = (number(one), number(two)) else { return false };
        let fewer = decimals(one).min(decimals(two));
        fewer > 0 && (a - b).abs() <= 0.5001 * 0.1_f64.powi(i32::try_from(fewer).unwrap_or(i32::MAX))
    };
    one == two || are_close()
}

/// The values in the column `entity`: those of a JSON object, or the text.
fn entity(text: &str) -> Vec<String> {
    match json::exact(text) {
        Ok(Value::Object(fields)) => {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            fields.values().map(plain).filter(|value| !value.trim().is_empty()).collect()
        }
        _ => vec![text.to_owned()],
    }
}

const QUOTES: [(char, char); 4] = [('"', '"'), ('“', '”'), ('«', '»'), ('`', '`')];

/// The values that a sentence names: what it quotes, words with digits or signs of an identifier, and names.
fn named(task: &str) -> BTreeSet<String> {
    let mut values = BTreeSet::new();
    for (open, close) in QUOTES {
        let mut rest = task;
        while let Some((_, behind)) = rest.split_once(open) {
            let Some((inner, after)) = behind.split_once(close) else { break };
            values.extend(Some(folded(inner)).filter(|value| !value.is_empty()));
            rest = after;
        }
    }
    let mut name: Vec<&str> = Vec::new();
    let mut is_start = true;
    for word in task.split_whitespace() {
        let bare = word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '-');
        let bare = bare.trim_end_matches("'s").trim_end_matches("’s");
        let is_identifier = bare.contains(|letter: char| letter.is_ascii_digit() || "_@/".contains(letter));
        let is_name = !is_start && bare.len() > 1 && bare.starts_with(char::is_uppercase);
        if is_identifier {
            values.insert(number(bare).unwrap_or_else(|| folded(bare)));
        }
        if is_name && !is_identifier {
            name.push(bare);
        }
        let ends = word.ends_with(['.', '?', '!', ':', ',', ';']);
        if !is_name || is_identifier || ends {
            values.extend((!name.is_empty()).then(|| folded(&name.join(" "))));
            name.clear();
        }
        is_start = word.ends_with(['.', '?', '!', ':']);
    }
    values.extend((!name.is_empty()).then(|| folded(&name.join(" "))));
    values
}

/// Letters and digits, other characters as single spaces, with a space at both ends. Numbers are without differences of notation.
fn spaced(text: &str) -> String {
    let mut spaced = String::from(" ");
    for word in text.split_whitespace() {
        let word = word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '-');
        if let Some(number) = number(word) {
            spaced.push_str(&number);
            spaced.push(' ');
            continue;
        }
        for part in word.split(|letter: char| !letter.is_alphanumeric()).filter(|part| !part.is_empty()) {
            spaced.extend(part.chars().flat_map(char::to_lowercase));
            spaced.push(' ');
        }
    }
    spaced
}

/// Whether a text has a value as whole words; both are [`spaced`].
fn states(text: &str, value: &str) -> bool {
    value.trim().is_empty() || text.contains(value)
}

/// A bit for each word.
fn bits(spaced: &str) -> u64 {
    let bit = |word: &str| {
        1_u64 << (word.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % 61)
    };
    spaced.split(' ').filter(|word| !word.is_empty()).map(bit).fold(0, |all, one| all | one)
}

/// The words of a sentence that say what it is about, without their endings.
fn words(spaced: &str) -> BTreeSet<String> {
    const EMPTY: &[&str] = &[
        "and",
        "any",
        "are",
        "answer",
        "count",
        "different",
        "does",
        "each",
        "find",
        "for",
        "from",
        "give",
        "had",
        "has",
        "have",
        "how",
        "into",
        "know",
        "list",
        "look",
        "many",
        "much",
        "name",
        "need",
        "number",
        "our",
        "please",
        "report",
        "show",
        "tell",
        "that",
        "the",
        "their",
        "them",
        "there",
        "they",
        "this",
        "total",
        "want",
        "was",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whose",
        "with",
        "you",
        "your",
    ];
    let stem = |word: &str| {
        let stem =
            word.strip_suffix("ies").or_else(|| word.strip_suffix("es")).or_else(|| word.strip_suffix('s'));
        stem.filter(|stem| stem.len() > 2).unwrap_or(word).to_owned()
    };
    spaced.split(' ').filter(|word| word.len() > 2 && !EMPTY.contains(word)).map(stem).collect()
}

#[cfg(test)]
mod tests;
