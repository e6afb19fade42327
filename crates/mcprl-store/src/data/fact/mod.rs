//! What a task asks about, so that nothing that an exam asks is trained on in other words.

mod sql;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Json, Scenario, folded, is_of_trained_cases};

/// What a task asks about. Two tasks that have the same fact differ in their words alone.
///
/// Where both tasks have reference solutions, that is the last call of the solution in a normal form, and the answer. Elsewhere it
/// is the values that the tasks name, and the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The task as [`folded`] writes it.
    pub task: String,
    /// What the last call of the reference solution looks up: a query without differences of case, quotes, aliases, qualifiers and
    /// the order of conditions; otherwise the values of its arguments, whichever tool takes them, or a tool that takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The last call with `?` in place of values, `get_order(id=?)`: tasks of one kind differ in what they name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The values that the task names.
    pub values: BTreeSet<String>,
}

/// The last call of a reference solution.
#[derive(Deserialize)]
struct Call {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl Call {
    /// A call of a message, its arguments as an object or as text.
    fn of_message(call: &Value) -> Option<Self> {
        let function = call.get("function").unwrap_or(call);
        let arguments = match &function["arguments"] {
            Value::String(text) => serde_json::from_str(text).ok()?,
            Value::Object(arguments) => arguments.clone(),
            _ => Map::new(),
        };
        Some(Self { name: function["name"].as_str()?.to_owned(), arguments })
    }
}

impl Fact {
    pub fn of(scenario: &Scenario) -> Self {
        let calls = scenario.reference.as_deref();
        let calls: Vec<Call> = calls.and_then(|calls| serde_json::from_str(calls).ok()).unwrap_or_default();
        let last = calls.last();
        let task = folded(&scenario.task);
        let entity = scenario.entity.as_deref().map(entity).unwrap_or_default();
        // A source may describe its tasks by more than they say.
        let said =
            entity.iter().map(|value| folded(value)).filter(|value| *value != task && states(&task, value));
        Self {
            call: last.map(Call::normal),
            kind: last.map(Call::kind),
            answer: scenario.answer.as_deref().map(answer),
            values: said.chain(named(&scenario.task)).collect(),
            task,
        }
    }

    /// As the column `fact` of a scenario.
    pub fn to_json(&self) -> Json {
        Json(serde_json::json!(self).to_string())
    }

    /// Whether two tasks ask about the same.
    pub fn is(&self, other: &Self) -> bool {
        if self.task == other.task {
            return true;
        }
        match (&self.call, &other.call) {
            (Some(one), Some(two)) => {
                one == two && self.answer == other.answer && (!lists(one) || self.names_the_same(other))
            }
            _ => self.answer.is_some() && self.answer == other.answer && self.names_the_same(other),
        }
    }

    /// Whether each task says the values that the other one names. Without any, they have a word of their own in common.
    fn names_the_same(&self, other: &Self) -> bool {
        let all = |one: &Self, two: &Self| one.values.iter().all(|value| states(&two.task, value));
        if self.values.is_empty() && other.values.is_empty() {
            return !words(&self.task).is_disjoint(&words(&other.task));
        }
        all(self, other) && all(other, self)
    }
}

/// Facts of tasks, to look others up in.
#[derive(Debug, Default)]
pub struct Facts {
    facts: Vec<Fact>,
    by_task: BTreeMap<String, usize>,
    by_call: BTreeMap<(String, Option<String>), usize>,
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
        let fact = |scenario: &Scenario| {
            let fact = Fact::of(scenario);
            match is_of_trained_cases(&scenario.split) {
                true => Fact { call: None, kind: None, answer: None, values: BTreeSet::new(), ..fact },
                false => fact,
            }
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
        if let Some(call) = fact.call.as_ref().filter(|call| !lists(call)) {
            self.by_call.entry((call.clone(), fact.answer.clone())).or_insert(place);
        }
        if let Some(answer) = &fact.answer {
            self.by_answer.entry(answer.clone()).or_default().push(place);
        }
        self.kinds.extend(fact.kind.clone());
        self.facts.push(fact);
    }

    /// The first of these facts that is the same.
    pub fn find(&self, fact: &Fact) -> Option<&Fact> {
        let of_task = self.by_task.get(&fact.task);
        let of_call = || self.by_call.get(&(fact.call.clone()?, fact.answer.clone()));
        let of_answer = || {
            let mut places = self.by_answer.get(fact.answer.as_ref()?)?.iter();
            places.find(|place| self.facts[**place].is(fact))
        };
        of_task.or_else(of_call).or_else(of_answer).map(|place| &self.facts[*place])
    }

    /// The first of these facts that a conversation is about. It is a message of a user, or a line of one, in the same words; or
    /// the calls behind a message are that of the fact, or the message names its values, and what is said then states the answer.
    pub fn in_conversation(&self, messages: &[Value]) -> Option<&Fact> {
        let role = |message: &&Value, role: &str| message["role"] == role;
        let starts = (0..messages.len()).filter(|at| role(&&messages[*at], "user"));
        starts.into_iter().find_map(|start| {
            let behind = messages[start + 1..].iter().take_while(|message| !role(message, "user"));
            let (mut calls, mut said) = (BTreeSet::new(), String::new());
            for message in behind.filter(|message| role(message, "assistant")) {
                let made = message["tool_calls"].as_array().into_iter().flatten();
                calls.extend(made.filter_map(|call| Some(Call::of_message(call)?.normal())));
                said = [&*said, " ", &text(message), " ", &message["tool_calls"].to_string()].concat();
            }
            self.told(&text(&messages[start]), &calls, &said)
        })
    }

    fn told(&self, asked: &str, calls: &BTreeSet<String>, said: &str) -> Option<&Fact> {
        let parts = std::iter::once(asked).chain(asked.lines());
        if let Some(place) = parts.filter_map(|part| self.by_task.get(&folded(part))).next() {
            return Some(&self.facts[*place]);
        }
        let values = named(asked);
        self.facts.iter().find(|fact| {
            let names_the_same = || {
                !fact.values.is_empty()
                    && fact.values.iter().all(|value| states(asked, value))
                    && values.iter().all(|value| states(&fact.task, value))
            };
            let is_answered = fact.answer.as_ref().is_some_and(|answer| states(said, answer));
            let is_called = |call: &String| !lists(call) && calls.contains(call);
            is_answered && (fact.call.as_ref().is_some_and(is_called) || names_the_same())
        })
    }

    /// Whether one of these tasks asks about the same as this one.
    pub fn has(&self, scenario: &Scenario) -> bool {
        self.find(&Fact::of(scenario)).is_some()
    }

    /// Whether one of these tasks is of the same kind. `None` if a kind is not known: a task has no reference solution.
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

/// Whether a call looks up nothing in particular: many questions are answered by its result, some of them alike.
fn lists(call: &str) -> bool {
    call.ends_with("()")
}

/// Arguments that say how much of a result is wanted.
const PAGING: [&str; 7] = ["limit", "offset", "page", "page_size", "per_page", "cursor", "max_results"];

impl Call {
    fn given(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.arguments.iter().filter(|(name, value)| !value.is_null() && !PAGING.contains(&name.as_str()))
    }

    /// What the call looks up.
    fn normal(&self) -> String {
        let mut values = Vec::new();
        self.given().for_each(|(_, value)| leaves(value, &mut values));
        values.sort();
        values.dedup();
        if values.is_empty() { format!("{}()", self.name) } else { values.join(", ") }
    }

    fn kind(&self) -> String {
        let argument = |(name, value): (&String, &Value)| match value {
            Value::String(text) if sql::is_query(text) => format!("{name}={}", sql::normal(text, true)),
            _ => format!("{name}=?"),
        };
        let mut arguments: Vec<String> = self.given().map(argument).collect();
        arguments.sort();
        format!("{}({})", self.name, arguments.join(", "))
    }
}

/// The values in a value, without differences of type and case.
fn leaves(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| leaves(item, found)),
        Value::Object(fields) => fields.values().for_each(|value| leaves(value, found)),
        Value::String(text) if sql::is_query(text) => found.push(sql::normal(text, false)),
        Value::String(text) => found.push(number(text).unwrap_or_else(|| folded(text))),
        Value::Null => {}
        value => found.push(number(&value.to_string()).unwrap_or_else(|| value.to_string())),
    }
}

/// What a message says.
fn text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// A number without differences of notation: `1,200.50` is `1200.5`. `None` for other texts.
fn number(text: &str) -> Option<String> {
    let text = text.trim();
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let plain = digits.replace(',', "");
    let is_number = plain.starts_with(|first: char| first.is_ascii_digit())
        && plain.ends_with(|last: char| last.is_ascii_digit())
        && plain.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
        && plain.matches('.').count() < 2;
    let plain = is_number.then(|| match plain.split_once('.') {
        Some(_) => plain.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => plain,
    })?;
    Some(format!("{sign}{plain}"))
}

/// An answer without differences of notation and order.
fn answer(text: &str) -> String {
    if let Some(number) = number(text) {
        return number;
    }
    let mut items: Vec<String> =
        text.split(", ").map(|item| number(item).unwrap_or_else(|| folded(item))).collect();
    items.sort();
    items.join(", ")
}

/// The values in the column `entity`: those of a JSON object, or the text.
fn entity(text: &str) -> Vec<String> {
    match serde_json::from_str(text) {
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

/// Letters and digits, other characters as single spaces, with a space at both ends.
fn spaced(text: &str) -> String {
    let words: Vec<String> = text
        .split_whitespace()
        .flat_map(|word| {
            let word = word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '-');
            match number(word) {
                Some(number) => vec![number],
                None => word.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase).collect(),
            }
        })
        .filter(|word| !word.is_empty())
        .collect();
    format!(" {} ", words.join(" "))
}

fn states(text: &str, value: &str) -> bool {
    let value = spaced(value);
    value.trim().is_empty() || spaced(text).contains(&value)
}

/// The words of a sentence that say what it is about, without their endings.
fn words(task: &str) -> BTreeSet<String> {
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
    spaced(task).split(' ').filter(|word| word.len() > 2 && !EMPTY.contains(word)).map(stem).collect()
}

#[cfg(test)]
mod tests;
