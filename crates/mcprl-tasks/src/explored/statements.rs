//! Questions about things that statements relate and notes describe, as a knowledge graph has them: records that say that one
//! thing does something with another, and short texts about one thing. People ask in the words of the relation and of the
//! note. They never name the fields where these stand.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
};

use serde_json::{Value, json};

use super::{
    asks::{self, Column, Condition, FactSource, Operation, Test},
    changes,
    graph::{self, Graph, SuccessfulCall},
    templates,
    tools::ToolProfile,
    wording::ALL,
};
use crate::{
    answer_rule::{Aggregate, AnswerRule, is_moment, value_of},
    candidate::{Candidate, Check},
    chat::ToolCall,
    harvest::{List, Reading},
    senses::is_person,
    words,
};

/// First words of the fields that hold the two ends of a statement.
const ENDS: [[&str; 2]; 4] = [["from", "to"], ["source", "target"], ["subject", "object"], ["head", "tail"]];
/// Words of the field that says how they are related.
const RELATIONS: [&str; 4] = ["type", "relation", "predicate", "verb"];
/// Most things that are asked for at once.
const SEVERAL: usize = 6;
/// Questions about a thing that is described by a statement.
const FOLLOWED: usize = 2;
/// Fewest calls that must show all about their thing before a tool is taken to show all about any.
const LOOKUPS: usize = 3;

/// Where results have statements.
#[derive(Clone)]
struct Statements {
    list: String,
    from: String,
    relation: String,
    to: String,
}

/// Where results have things with notes.
#[derive(Clone)]
struct Things {
    list: String,
    name: String,
    kind: Option<String>,
    notes: String,
}

/// All that results say, whichever call gave it.
#[derive(Default)]
struct Facts {
    statements_in: Option<Statements>,
    things_in: Option<Things>,
    /// First thing, relation and second thing.
    statements: BTreeSet<[String; 3]>,
    kinds: BTreeMap<String, String>,
    notes: BTreeMap<String, BTreeSet<String>>,
}

/// A tool that takes one text.
#[derive(Clone, Copy)]
struct Tool<'a> {
    name: &'a str,
    param: &'a str,
    /// The parameter takes a list.
    takes_list: bool,
}

impl Tool<'_> {
    fn call(&self, text: &str) -> ToolCall {
        self.call_with(if self.takes_list { Value::from(vec![text]) } else { Value::from(text) })
    }

    /// About several things, of a tool that takes a list.
    fn call_of_all(&self, texts: &[&str]) -> ToolCall {
        self.call_with(Value::from(texts.to_vec()))
    }

    fn call_with(&self, value: Value) -> ToolCall {
        ToolCall {
            name: self.name.to_owned(),
            arguments: [(self.param.to_owned(), value)].into_iter().collect(),
        }
    }
}

/// Candidates about everything that statements and notes say, if a tool shows all about a thing.
pub fn candidates(graph: &Graph, profiles: &[ToolProfile], seed: u64) -> Vec<Candidate> {
    let facts = Facts::of(graph, profiles);
    let Some(about) = facts.lookup(graph, profiles, false) else { return Vec::new() };
    let about_all = facts.lookup(graph, profiles, true);
    let mut gaps: BTreeMap<[String; 2], BTreeSet<String>> = BTreeMap::new();
    for gap in facts.notes.values().flatten().filter_map(|note| Gap::of(note)) {
        gaps.entry(gap.ends()).or_default().insert(gap.value);
    }
    let search = search(graph, profiles);
    let mut asking = Asking { facts: &facts, gaps, about, about_all, search, seed, candidates: Vec::new() };
    asking.ask();
    asking.candidates
}

impl Facts {
    fn of(graph: &Graph, profiles: &[ToolProfile]) -> Self {
        let mut facts = Self::default();
        for (index, seen) in graph.seen.iter().enumerate() {
            if !changes::writes(graph, profiles, index) {
                seen.reading.lists.iter().filter(|list| !list.is_nested).for_each(|list| facts.add(list));
            }
        }
        facts
    }

    fn add(&mut self, list: &List) {
        self.statements_in = self.statements_in.take().or_else(|| statements_in(list));
        self.things_in = self.things_in.take().or_else(|| things_in(list));
        self.statements.extend(self.statements_of(list));
        let Some(things) = self.things_in.clone().filter(|things| things.list == list.name) else { return };
        for (name, notes) in self.notes_of(list) {
            self.notes.entry(name).or_default().extend(notes);
        }
        for record in &list.records {
            let kind = things.kind.as_ref().and_then(|kind| value_of(record, kind));
            if let (Some(name), Some(kind)) = (value_of(record, &things.name), kind) {
                self.kinds.insert(name.to_owned(), words::spoken(kind));
            }
        }
    }

    fn statements_of<'r>(&self, list: &'r List) -> impl Iterator<Item = [String; 3]> + use<'r> {
        let known = self.statements_in.clone().filter(|known| known.list == list.name && !list.is_nested);
        known.into_iter().flat_map(|Statements { from, relation, to, .. }| {
            list.records.iter().filter_map(move |record| {
                let of = |name: &str| value_of(record, name).map(str::to_owned);
                Some([of(&from)?, of(&relation)?, of(&to)?])
            })
        })
    }

    fn notes_of<'r>(&self, list: &'r List) -> impl Iterator<Item = (String, BTreeSet<String>)> + use<'r> {
        let known = self.things_in.clone().filter(|known| known.list == list.name && !list.is_nested);
        known.into_iter().flat_map(|Things { name, notes, .. }| {
            list.records.iter().filter_map(move |record| {
                let all = value_of(record, &notes)?.split(", ").map(str::to_owned).collect();
                Some((value_of(record, &name)?.to_owned(), all))
            })
        })
    }

    /// The reading tool whose calls show all that is known about the thing that they name. `of_lists`: it takes a list.
    fn lookup<'g>(&self, graph: &'g Graph, profiles: &'g [ToolProfile], of_lists: bool) -> Option<Tool<'g>> {
        let mut counts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (index, seen) in graph.seen.iter().enumerate() {
            let [arg] = seen.args.as_slice() else { continue };
            let Some(thing) = arg.leaf.as_deref().filter(|leaf| self.is_thing(leaf)) else { continue };
            if changes::writes(graph, profiles, index) || of_lists && !of_call(seen, profiles).takes_list {
                continue;
            }
            let (shown, all) = counts.entry(seen.tool).or_default();
            *shown += usize::from(self.shows_all(&seen.reading, thing));
            *all += 1;
        }
        // The first of those that are equally good.
        let (tool, _) = counts
            .into_iter()
            .rev()
            .filter(|(_, (shown, all))| *all >= LOOKUPS && 10 * shown >= 9 * all)
            .max_by_key(|(_, (shown, all))| (shown * 100 / all, *shown))?;
        let call = graph.seen.iter().find(|seen| seen.tool == tool && seen.args.len() == 1);
        call.map(|seen| of_call(seen, profiles))
    }

    fn is_thing(&self, name: &str) -> bool {
        self.notes.contains_key(name)
            || self.statements.iter().any(|[from, _, to]| from == name || to == name)
    }

    fn shows_all(&self, reading: &Reading, thing: &str) -> bool {
        let shown: BTreeSet<[String; 3]> =
            reading.lists.iter().flat_map(|list| self.statements_of(list)).collect();
        let mut own = self.statements.iter().filter(|[from, _, to]| from == thing || to == thing);
        let notes = reading.lists.iter().flat_map(|list| self.notes_of(list));
        let notes: BTreeSet<String> =
            notes.filter(|(name, _)| name == thing).flat_map(|(_, notes)| notes).collect();
        own.all(|statement| shown.contains(statement))
            && self.notes.get(thing).is_none_or(|known| known.is_subset(&notes))
    }

    /// The things whose name, kind or notes have these words, as a search finds them.
    fn found_by(&self, words: &str) -> BTreeSet<&str> {
        let words = words.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&words);
        let is_found = |(thing, notes): &(&String, &BTreeSet<String>)| {
            has(thing)
                || self.kinds.get(*thing).is_some_and(|kind| has(kind))
                || notes.iter().any(|note| has(note))
        };
        self.notes.iter().filter(is_found).map(|(thing, _)| thing.as_str()).collect()
    }

    /// The kind that all these things have.
    fn kind<'f>(&'f self, things: &[&str]) -> Option<&'f str> {
        let mut kinds = things.iter().map(|thing| self.kinds.get(*thing));
        let first = kinds.next()??;
        kinds.all(|kind| kind == Some(first)).then_some(first)
    }
}

fn of_call<'g>(seen: &'g SuccessfulCall, profiles: &'g [ToolProfile]) -> Tool<'g> {
    let param = seen.args[0].name.as_str();
    let takes_list = seen.call.arguments.get(param).is_some_and(Value::is_array);
    Tool { name: &profiles[seen.tool].name, param, takes_list }
}

/// The tool that finds things by words.
fn search<'g>(graph: &'g Graph, profiles: &'g [ToolProfile]) -> Option<Tool<'g>> {
    let takes_words = |name: &str| words::has_any(name, &["query", "search", "keyword", "text", "q"]);
    let searches = |(index, seen): &(usize, &SuccessfulCall)| {
        matches!(seen.args.as_slice(), [only] if takes_words(&only.name))
            && !changes::writes(graph, profiles, *index)
    };
    graph.seen.iter().enumerate().find(searches).map(|(_, seen)| of_call(seen, profiles))
}

fn statements_in(list: &List) -> Option<Statements> {
    let names: Vec<&String> = list.records.first()?.iter().map(|field| &field.name).collect();
    let starting =
        |word: &str| names.iter().find(|name| words::split(name).first().is_some_and(|first| first == word));
    let ends = ENDS.iter().find_map(|[from, to]| Some([starting(from)?, starting(to)?]));
    let [from, to] = ends?.map(|name| (*name).clone());
    let says_how = |name: &&&String| words::split(name).iter().any(|word| RELATIONS.contains(&word.as_str()));
    let relation = names.iter().find(says_how)?.to_string();
    Some(Statements { list: list.name.clone(), from, relation, to })
}

fn things_in(list: &List) -> Option<Things> {
    let record = list.records.iter().find(|record| record.iter().any(|field| field.is_set))?;
    let notes = record.iter().find(|field| field.is_set)?.name.clone();
    let with = |word: &str| {
        let named = record.iter().find(|field| !field.is_set && words::tokens(&field.name).contains(word));
        named.map(|field| field.name.clone())
    };
    Some(Things {
        list: list.name.clone(),
        name: with("name").or_else(|| with("title"))?,
        kind: with("type").or_else(|| with("kind")),
        notes,
    })
}

/// What a thing does, in the words of a relation or of a note.
#[derive(Debug, PartialEq)]
struct Verb {
    /// `works on`, `is commissioned by`.
    one: String,
    /// `work on`, `are commissioned by`.
    several: String,
    /// What stands before and behind the thing in a question: `does … work on`, `is … commissioned by`.
    asked: [String; 2],
    /// It may tell what was done, as `joined in`.
    is_past: bool,
}

impl Verb {
    /// None if the first word is not known to be a verb.
    fn of<S: Borrow<str>>(said: &[S]) -> Option<Self> {
        let (first, rest) = said.split_first()?;
        let first: &str = first.borrow();
        let is_past = first.len() > 3 && first.ends_with("ed");
        let base = match first {
            "has" => "have".to_owned(),
            first if first.ends_with("oes") => first[..first.len() - 2].to_owned(),
            first => words::singular(first),
        };
        let (one, several, asked) = match first {
            "is" | "are" => ("is".to_owned(), "are".to_owned(), ["is", ""]),
            "was" | "were" => ("was".to_owned(), "were".to_owned(), ["was", ""]),
            past if is_past => (format!("is {past}"), format!("are {past}"), ["is", past]),
            verb if verb != base => (verb.to_owned(), base.clone(), ["does", &*base]),
            _ => return None,
        };
        let with = |verb: &str| format!("{verb} {}", rest.join(" ")).trim().to_owned();
        Some(Self {
            one: with(&one),
            several: with(&several),
            asked: [asked[0].to_owned(), with(asked[1])],
            is_past,
        })
    }

    /// `does Ada work on`
    fn question(&self, thing: &str) -> String {
        let [before, behind] = &self.asked;
        format!("{before} {thing} {behind}").trim_end().to_owned()
    }

    fn questions(&self, word: &str, thing: &str) -> Vec<String> {
        let told = format!("Tell me {} {thing} {}.", word.to_lowercase(), self.one);
        vec![format!("{word} {}?", self.question(thing)), told]
    }

    /// How a sentence goes on behind "which" and behind "that". `forward`: the thing does it; else something does it with the
    /// thing.
    fn related(&self, thing: &str, does: &str, forward: bool) -> [String; 2] {
        if forward {
            return [self.question(thing), format!("{thing} {}", self.one)];
        }
        let said = format!("{does} {thing}");
        [said.clone(), said]
    }
}

/// A note with a gap: `lives in …`, `budget … euros`.
#[derive(Debug, PartialEq)]
struct Gap {
    before: String,
    value: String,
    after: String,
    asks: AskedFor,
}

#[derive(Debug, PartialEq)]
enum AskedFor {
    /// The value of a noun: `budget`.
    Noun(String),
    /// A number of what stands behind it.
    HowMany(Verb),
    /// A place; the verb without the preposition.
    Where(Verb),
    /// A moment, likewise.
    When(Verb),
    What(Verb),
}

impl Gap {
    fn of(note: &str) -> Option<Self> {
        if let Some((head, value)) = note.split_once(": ") {
            return Self {
                before: format!("{head}: "),
                value: value.to_owned(),
                after: String::new(),
                asks: AskedFor::Noun(head.to_lowercase()),
            }
            .short();
        }
        let said: Vec<&str> = note.split_whitespace().collect();
        said.first()?;
        let split = |at: usize, end: usize, asks: AskedFor| {
            let before = said[..at].iter().map(|word| format!("{word} ")).collect();
            let after = said[end..].iter().map(|word| format!(" {word}")).collect();
            Self { before, value: said[at..end].join(" "), after, asks }.short()
        };
        let verb = |end: usize| Verb::of(&said[..end]);
        let is_link = |word: &str| words::is_preposition(word) || ["as", "since", "to"].contains(&word);
        let number = said.iter().rposition(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        if let Some(at) = number {
            let last = said[..at].last()?;
            let is_dated = at + 1 == said.len() && (is_year(said[at]) || is_moment(said[at]));
            return match verb(at) {
                Some(_) if is_link(last) && is_dated => split(at, at + 1, AskedFor::When(verb(at - 1)?)),
                Some(of_all) if at == 1 && at + 1 < said.len() => {
                    split(at, at + 1, AskedFor::HowMany(of_all))
                }
                Some(of_all) if at + 1 == said.len() => split(at, at + 1, AskedFor::What(of_all)),
                None if at < 3 && !is_link(last) => split(at, at + 1, AskedFor::Noun(said[..at].join(" "))),
                _ => None,
            };
        }
        if let ([noun, is, _, ..], None) = (said.as_slice(), verb(1))
            && *is == "is"
        {
            return split(2, said.len(), AskedFor::Noun(noun.to_lowercase()));
        }
        verb(1)?;
        let link = (1..said.len().min(3)).find(|at| is_link(said[*at])).filter(|at| at + 1 < said.len());
        match link {
            Some(at) => {
                let is_place = ["in", "at"].contains(&said[at])
                    && said[at + 1].starts_with(|first: char| first.is_uppercase());
                let asks = if is_place { AskedFor::Where(verb(at)?) } else { AskedFor::What(verb(at + 1)?) };
                split(at + 1, said.len(), asks)
            }
            None => {
                let has_article = said.get(1).is_some_and(|word| ["a", "an", "the"].contains(word));
                let at = 1 + usize::from(has_article);
                (at < said.len()).then(|| split(at, said.len(), AskedFor::What(verb(1)?)))?
            }
        }
    }

    /// Whether what is in the gap can be compared with others: a number, or a moment.
    fn is_measured(&self) -> bool {
        let is_noun = matches!(self.asks, AskedFor::Noun(_));
        match &self.asks {
            AskedFor::Noun(_) | AskedFor::HowMany(_) if self.is_number() => true,
            AskedFor::When(_) => true,
            _ => is_noun && is_moment(&self.value),
        }
    }

    fn is_number(&self) -> bool {
        self.value.parse::<f64>().is_ok()
    }

    /// Questions for the thing of this kind with the most, or for the sum of all. `of` says which things: those that do
    /// something.
    fn compared(&self, kind: &str, of: &str, wanted: Aggregate) -> Vec<String> {
        let is_total = wanted == Aggregate::Total;
        let pick =
            |most: &'static str, least: &'static str| if wanted == Aggregate::Most { most } else { least };
        let (after, kinds) = (self.after.trim(), words::plural(kind));
        let which = match of {
            "" if is_person(kind) => {
                vec![format!("Which {kind}"), format!("Which of the {kinds}"), "Who".to_owned()]
            }
            "" => vec![format!("Which {kind}"), format!("Which of the {kinds}")],
            of => vec![format!("Of the {kinds} {of}, which one"), format!("Which of the {kinds} {of}")],
        };
        let ask = |what: String| which.iter().map(|which| format!("{which} {what}?")).collect();
        match &self.asks {
            AskedFor::Noun(noun) if is_total && self.is_number() => vec![
                format!("What is the total {noun} of the {kinds} {of}?"),
                format!("What are the {} of the {kinds} {of} together?", words::plural(noun)),
            ],
            AskedFor::HowMany(verb) if is_total => {
                let asked = if verb.asked[0] == "does" { "do" } else { "are" };
                vec![format!("How many {after} {asked} the {kinds} {of} {} together?", verb.asked[1])]
            }
            _ if is_total => Vec::new(),
            AskedFor::Noun(noun) if self.is_number() => {
                ask(format!("has the {} {noun}", pick("largest", "smallest")))
            }
            AskedFor::Noun(noun) => ask(format!("has the {} {noun}", pick("latest", "earliest"))),
            AskedFor::HowMany(verb) => ask(format!("{} the {} {after}", verb.one, pick("most", "fewest"))),
            AskedFor::When(verb) => {
                let done = if verb.is_past { &verb.asked[1] } else { &verb.one };
                ask(format!("{done} {}", pick("last", "first")))
            }
            AskedFor::Where(_) | AskedFor::What(_) => Vec::new(),
        }
    }

    /// Questions for what two things have together.
    fn together(&self, one: &str, other: &str) -> Vec<String> {
        let after = self.after.trim();
        match &self.asks {
            AskedFor::Noun(noun) if self.is_number() => vec![
                format!("What are the {} of {one} and {other} together?", words::plural(noun)),
                format!("Add up the {} of {one} and {other}. What is the sum?", words::plural(noun)),
            ],
            AskedFor::HowMany(verb) if verb.asked[0] == "does" => {
                vec![format!("How many {after} do {one} and {other} {} together?", verb.asked[1])]
            }
            _ => Vec::new(),
        }
    }

    /// What stands before and behind the gap.
    fn ends(&self) -> [String; 2] {
        [self.before.clone(), self.after.clone()]
    }

    fn short(self) -> Option<Self> {
        let count = self.value.split_whitespace().count();
        ((1..=4).contains(&count) && self.value.len() <= 40).then_some(self)
    }

    /// Questions about the thing's note.
    fn questions(&self, thing: &str) -> Vec<String> {
        let after = self.after.trim();
        match &self.asks {
            AskedFor::Noun(noun) => {
                let unit = if after.is_empty() { String::new() } else { format!(" in {after}") };
                vec![
                    format!("What is the {noun} of {thing}{unit}?"),
                    format!("Tell me the {noun} of {thing}{unit}."),
                    format!("What {noun} does {thing} have{unit}?"),
                ]
            }
            AskedFor::HowMany(verb) => vec![format!("How many {after} {}?", verb.question(thing))],
            AskedFor::When(verb) if verb.is_past => {
                let done = verb.asked[1].as_str();
                vec![format!("When was it that {thing} {done}?"), format!("{thing} {done} when?")]
            }
            AskedFor::Where(verb) => verb.questions("Where", thing),
            AskedFor::When(verb) => verb.questions("When", thing),
            AskedFor::What(verb) => verb.questions("What", thing),
        }
    }
}

/// A question about a thing.
struct Question {
    /// What is asked, in the names of families.
    about: String,
    /// The things or the value that answer it.
    answers: BTreeSet<String>,
    /// Other things and values of the same sort.
    others: BTreeSet<String>,
    rule: AnswerRule,
    /// What else is asked for than the rule says.
    conditions: Vec<Condition>,
    check: Check,
    texts: Vec<String>,
}

/// Collects candidates.
struct Asking<'a> {
    facts: &'a Facts,
    /// What stands in each gap in the notes of all things, by what is before and behind it.
    gaps: BTreeMap<[String; 2], BTreeSet<String>>,
    about: Tool<'a>,
    /// The same for several things at once.
    about_all: Option<Tool<'a>>,
    search: Option<Tool<'a>>,
    seed: u64,
    candidates: Vec<Candidate>,
}

impl<'a> Asking<'a> {
    fn ask(&mut self) {
        let facts = self.facts;
        let ends = facts.statements.iter().flat_map(|[from, _, to]| [from, to]);
        let things: BTreeSet<&String> =
            facts.notes.keys().chain(ends).filter(|name| is_sayable(name)).collect();
        for thing in things {
            for question in self.questions(thing, &said(thing)) {
                self.push(question, (thing, thing), &json!(thing), vec![self.about.call(thing)]);
            }
            // By a statement: the project that Ada leads, without its name.
            for (words, start, asked) in self.descriptions(thing) {
                let mut questions = self.questions(thing, &words);
                questions.retain(|question| !question.answers.contains(start));
                questions
                    .sort_by_cached_key(|question| graph::rank(self.seed, &words, &question.rule.text()));
                questions.truncate(FOLLOWED);
                for question in questions {
                    let question = Question { about: format!("followed > {}", question.about), ..question };
                    let calls = vec![self.about.call(start), self.about.call(thing)];
                    self.push(question, (start, thing), &asked, calls);
                }
            }
        }
        self.compare();
        self.ask_by_notes();
    }

    /// A question that names one thing and asks about another, or the same. `asked`: the latter, for what the task asks.
    fn push(
        &mut self,
        question: Question,
        (thing, about_thing): (&str, &str),
        asked: &Value,
        calls: Vec<ToolCall>,
    ) {
        let Question { about, others, rule, conditions, check, texts, .. } = question;
        let typed = |_: &str, text: &str| if text == about_thing { asked.clone() } else { json!(text) };
        let asks = asks::Asks::of_rule(&rule, FactSource::All { list: rule.list().to_owned() }, typed);
        let tool = calls.last().map(|call| call.name.clone()).unwrap_or_default();
        let place = graph::place(self.seed, &about, thing, texts.len());
        let Some(text) = texts.get(place) else { return };
        self.candidates.push(Candidate {
            family: format!("{tool}: {about}"),
            entity: [("name".to_owned(), thing.to_owned())].into(),
            task: templates::sentence(text),
            phrasing: format!("{} {}", about, place + 1),
            calls,
            rule,
            check,
            alternatives: others,
            asks: asks.map(|asks| asks.filtered(conditions).to_value()),
            ..Candidate::default()
        });
    }

    /// Questions about a thing that is called so.
    fn questions(&self, thing: &str, words: &str) -> Vec<Question> {
        let mut questions = Vec::new();
        let relations = self.facts.statements.iter().map(|[_, relation, _]| relation.as_str());
        for relation in relations.collect::<BTreeSet<_>>() {
            let Some(verb) = Verb::of(&words::split(relation)) else { continue };
            questions.extend(self.related(thing, words, relation, &verb, true));
            questions.extend(self.related(thing, words, relation, &verb, false));
        }
        let Some(things) = &self.facts.things_in else { return questions };
        for note in self.facts.notes.get(thing).into_iter().flatten() {
            let Some(gap) = Gap::of(note) else { continue };
            questions.push(Question {
                about: format!("note {}", gap.before.trim()),
                answers: [gap.value.clone()].into(),
                others: self.gaps.get(&gap.ends()).cloned().unwrap_or_default(),
                texts: gap.questions(words),
                conditions: Vec::new(),
                check: Check::of(&gap.value),
                rule: AnswerRule::Between {
                    list: things.list.clone(),
                    key: (things.name.clone(), thing.to_owned()),
                    field: things.notes.clone(),
                    before: gap.before,
                    after: gap.after,
                },
            });
        }
        questions
    }

    /// Which things it is related to by this relation, and how many. `forward`: it is the first thing of the statements.
    fn related(&self, thing: &str, words: &str, relation: &str, verb: &Verb, forward: bool) -> Vec<Question> {
        let Some(form) = &self.facts.statements_in else { return Vec::new() };
        let of_relation = self.facts.statements.iter().filter(|[_, other, _]| other == relation);
        let ends = |[from, _, to]: &[String; 3]| {
            if forward { (from.clone(), to.clone()) } else { (to.clone(), from.clone()) }
        };
        let answers: BTreeSet<String> =
            of_relation.clone().map(ends).filter(|(one, _)| one == thing).map(|(_, other)| other).collect();
        if answers.is_empty() || !answers.iter().all(|answer| is_sayable(answer)) {
            return Vec::new();
        }
        // What is known of some is taken for all that stand there.
        let is_known = |name: &&str| self.facts.kinds.contains_key(*name);
        let others: BTreeSet<String> = of_relation.map(ends).map(|(_, other)| other).collect();
        let of_answers: Vec<&str> = answers.iter().map(String::as_str).collect();
        let of_others: Vec<&str> = others.iter().map(String::as_str).filter(is_known).collect();
        let kind = self.facts.kind(&of_answers).or_else(|| self.facts.kind(&of_others));
        let (own, field) = if forward { (&form.from, &form.to) } else { (&form.to, &form.from) };
        let rule = |field: Option<&String>| AnswerRule::Matching {
            list: form.list.clone(),
            keys: vec![(own.clone(), thing.to_owned()), (form.relation.clone(), relation.to_owned())],
            field: field.cloned(),
        };
        let asked = format!("{} {}", words::spoken(relation), if forward { "of one" } else { "of which" });
        let question = |about: String, rule: AnswerRule, check: Check, texts: Vec<String>| Question {
            about,
            answers: answers.clone(),
            others: others.clone(),
            rule,
            conditions: Vec::new(),
            check,
            texts,
        };
        let mut questions = Vec::new();
        if answers.len() == 1 {
            let texts = one(kind, verb, words, forward);
            questions.push(question(asked.clone(), rule(Some(field)), Check::Text, texts));
        } else if answers.len() <= SEVERAL {
            let texts = several(kind, verb, words, forward);
            questions.push(question(format!("all {asked}"), rule(Some(field)), Check::Set, texts));
        }
        if let Some(kind) = kind.filter(|_| !forward || answers.len() > 1) {
            let kinds = words::plural(kind);
            let texts = match forward {
                true => vec![format!("How many {kinds} {}?", verb.question(words))],
                false => vec![
                    format!("How many {kinds} {} {words}?", verb.several),
                    format!("What is the number of {kinds} that {} {words}?", verb.several),
                ],
            };
            questions.push(question(format!("count {asked}"), rule(None), Check::Number, texts));
        }
        questions
    }

    /// What is asked for the things at the other end of a thing's statements.
    fn asks_for(&self, thing: &str, relation: &str, forward: bool) -> Value {
        let Some(form) = &self.facts.statements_in else { return json!(thing) };
        let (own, other) = if forward { (&form.from, &form.to) } else { (&form.to, &form.from) };
        let is = |column: &String, value: &str| Condition {
            column: Column::One(column.clone()),
            test: Test::Is(json!(value)),
        };
        let operation = Operation::List { field: Column::One(other.clone()) };
        asks::Asks::new(operation, FactSource::All { list: form.list.clone() })
            .filtered([is(own, thing), is(&form.relation, relation)])
            .as_argument()
    }

    /// Ways to call a thing by its only statement of a kind, each with the thing that the statement starts from and what is asked
    /// for.
    fn descriptions(&self, thing: &str) -> Vec<(String, &'a str, Value)> {
        let facts = self.facts;
        let Some(kind) = facts.kinds.get(thing) else { return Vec::new() };
        let link = if is_person(kind) { "who" } else { "that" };
        let is_only = |[from, relation, to]: &[String; 3], forward: bool| {
            let same = facts
                .statements
                .iter()
                .filter(|[a, b, c]| b == relation && if forward { a == from } else { c == to });
            same.count() == 1
        };
        let mut found = Vec::new();
        for statement in &facts.statements {
            let [from, relation, to] = statement;
            let Some(verb) = Verb::of(&words::split(relation)) else { continue };
            if to == thing && is_sayable(from) && is_only(statement, true) {
                let asked = self.asks_for(from, relation, true);
                found.push((format!("the {kind} {link} {} {}", said(from), verb.one), from.as_str(), asked));
            } else if from == thing && is_sayable(to) && is_only(statement, false) {
                let asked = self.asks_for(to, relation, false);
                found.push((format!("the {kind} {link} {} {}", verb.one, said(to)), to.as_str(), asked));
            }
        }
        found
    }

    /// Which of several things has the most of what a note says, and how much all have together. The things are those of a kind
    /// that a search finds, those that are related to one thing, and two of a kind.
    fn compare(&mut self) {
        let facts = self.facts;
        let Some(things) = &facts.things_in else { return };
        let mut alike: BTreeMap<([String; 2], &str), BTreeMap<&str, Gap>> = BTreeMap::new();
        for (thing, notes) in facts.notes.iter().filter(|(thing, _)| is_sayable(thing)) {
            let Some(kind) = facts.kinds.get(thing) else { continue };
            for gap in notes.iter().filter_map(|note| Gap::of(note)).filter(Gap::is_measured) {
                alike.entry((gap.ends(), kind.as_str())).or_default().insert(thing, gap);
            }
        }
        for (([before, after], kind), gaps) in alike {
            let Some(gap) = gaps.values().next().filter(|_| gaps.len() > 1) else { continue };
            let question = |about: &str, wanted: Aggregate, texts: Vec<String>| Question {
                about: format!("{about} {}", before.trim()),
                answers: BTreeSet::new(),
                others: BTreeSet::new(),
                rule: AnswerRule::OfNotes {
                    list: things.list.clone(),
                    name: things.name.clone(),
                    notes: things.notes.clone(),
                    before: before.clone(),
                    after: after.clone(),
                    wanted,
                },
                conditions: Vec::new(),
                check: if wanted == Aggregate::Total { Check::Number } else { Check::Text },
                texts,
            };
            let all: BTreeSet<&str> = gaps.keys().copied().collect();
            let mut words = [after.trim(), before.trim()].into_iter().filter(|words| !words.is_empty());
            let words = words.find(|words| facts.found_by(words) == all);
            if let Some((words, search)) = words.zip(self.search) {
                let call = search.call(words);
                for wanted in [Aggregate::Most, Aggregate::Least] {
                    let texts = gap.compared(kind, "", wanted);
                    let question = question("most of a kind", wanted, texts);
                    self.push(question, (words, words), &Value::Null, vec![call.clone()]);
                }
            }
            // Those that are related to one thing in one way.
            let mut related: BTreeMap<(&str, &str, bool), BTreeSet<&str>> = BTreeMap::new();
            for [from, relation, to] in &facts.statements {
                related.entry((from, relation, true)).or_default().insert(to);
                related.entry((to, relation, false)).or_default().insert(from);
            }
            for ((thing, relation, forward), others) in related {
                let Some(verb) = Verb::of(&words::split(relation)) else { continue };
                let is_whole =
                    (2..=SEVERAL).contains(&others.len()) && others.is_subset(&all) && is_sayable(thing);
                let others: Vec<&str> = others.into_iter().collect();
                let Some(about) = self.about_all.filter(|_| is_whole) else { continue };
                let of = match forward {
                    true => format!("that {} {}", said(thing), verb.one),
                    false => format!("that {} {}", verb.several, said(thing)),
                };
                // One of them, or they crowd out everything else.
                let ways = [Aggregate::Most, Aggregate::Least, Aggregate::Total];
                let wanted = ways[graph::place(self.seed, &of, &before, ways.len())];
                let calls = vec![self.about.call(thing), about.call_of_all(&others)];
                let named = Condition {
                    column: Column::One(things.name.clone()),
                    test: Test::In(self.asks_for(thing, relation, forward)),
                };
                let question = question("most of related", wanted, gap.compared(kind, &of, wanted));
                let question = Question { conditions: vec![named], ..question };
                self.push(question, (thing, thing), &Value::Null, calls);
            }
            let all: Vec<&str> = all.into_iter().collect();
            for pair in all.windows(2) {
                let Some(about) = self.about_all else { continue };
                let (texts, calls) =
                    (gap.together(&said(pair[0]), &said(pair[1])), vec![about.call_of_all(pair)]);
                let column = Column::One(things.name.clone());
                let conditions = vec![Condition { column, test: Test::In(json!(pair)) }];
                let question = Question { conditions, ..question("two together", Aggregate::Total, texts) };
                self.push(question, (pair[0], pair[0]), &Value::Null, calls);
            }
        }
    }

    /// Which things have a note, and how many.
    fn ask_by_notes(&mut self) {
        let facts = self.facts;
        let (Some(things), Some(search)) = (&facts.things_in, self.search) else { return };
        let mut of_note: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (thing, notes) in &facts.notes {
            notes.iter().for_each(|note| _ = of_note.entry(note).or_default().insert(thing));
        }
        for (note, having) in of_note {
            let kind = facts.kind(&Vec::from_iter(having.iter().copied()));
            let Some((gap, kind)) = Gap::of(note).zip(kind) else { continue };
            let Some(verb) = Verb::of(&note.split_whitespace().collect::<Vec<_>>()) else { continue };
            let is_found = |words: &&str| facts.found_by(words) == having;
            let Some(query) = [gap.value.as_str(), note].into_iter().find(is_found) else { continue };
            let (list, name) = (things.list.clone(), things.name.clone());
            let kinds = words::plural(kind);
            let (one, several) =
                if verb.is_past { (note, note) } else { (verb.one.as_str(), verb.several.as_str()) };
            let before = gap.before.trim();
            let all: BTreeSet<String> = having.iter().map(|thing| (*thing).to_owned()).collect();
            let question = |about: &str, rule: AnswerRule, check: Check, texts: Vec<String>| Question {
                about: format!("{about} {before}"),
                answers: all.clone(),
                others: facts.notes.keys().cloned().collect(),
                rule,
                conditions: vec![Condition {
                    column: Column::One(things.notes.clone()),
                    test: Test::Has(note.to_owned()),
                }],
                check,
                texts,
            };
            let mut questions = Vec::new();
            if having.len() == 1 {
                let who = if is_person(kind) { "Who".to_owned() } else { format!("Which {kind}") };
                let texts = vec![
                    format!("{who} {one}?"),
                    format!("Which {kind} {one}?"),
                    format!("Find out which {kind} {one}."),
                ];
                let rule = AnswerRule::Field { list, key: None, field: name };
                questions.push(question("thing that", rule, Check::Text, texts));
            } else {
                let count = vec![
                    format!("How many {kinds} {several}?"),
                    format!("Count the {kinds} that {several}."),
                ];
                let rule = AnswerRule::Count { list: list.clone() };
                questions.push(question("count that", rule, Check::Number, count));
                if having.len() <= SEVERAL && having.iter().all(|thing| is_sayable(thing)) {
                    let texts = vec![
                        format!("Which {kinds} {several}? {ALL}"),
                        format!("List the {kinds} that {several}. {ALL}"),
                    ];
                    let rule = AnswerRule::Column { list, field: name };
                    questions.push(question("things that", rule, Check::Set, texts));
                }
            }
            for question in questions {
                self.push(question, (note, note), &Value::Null, vec![search.call(query)]);
            }
        }
    }
}

/// Questions for the one thing that is related to a thing.
fn one(kind: Option<&str>, verb: &Verb, thing: &str, forward: bool) -> Vec<String> {
    let who = match kind {
        Some(kind) if is_person(kind) => "Who".to_owned(),
        Some(kind) => format!("Which {kind}"),
        None => "Who or what".to_owned(),
    };
    let noun = kind.unwrap_or("thing");
    let [asked, said] = verb.related(thing, &verb.one, forward);
    vec![
        format!("{who} {asked}?"),
        format!("Which {noun} {asked}?"),
        format!("Tell me the {noun} that {said}."),
    ]
}

/// Questions for all things that are related to a thing.
fn several(kind: Option<&str>, verb: &Verb, thing: &str, forward: bool) -> Vec<String> {
    let things = words::plural(kind.unwrap_or("thing"));
    let [asked, said] = verb.related(thing, &verb.several, forward);
    vec![format!("Which {things} {asked}? {ALL}"), format!("List the {things} that {said}. {ALL}")]
}

/// A name within a sentence.
fn said(name: &str) -> String {
    if name.starts_with(|first: char| first.is_uppercase()) { name.to_owned() } else { words::shown(name) }
}

fn is_year(text: &str) -> bool {
    text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_sayable(name: &str) -> bool {
    (1..=60).contains(&name.len()) && !name.contains([',', '\n', '"'])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        data,
        explored::{graph::Arg, profiles},
        mcp::{ServerSpec, Servers, State, Transport},
    };

    fn split(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_first_word_of_a_relation_says_whether_it_is_a_verb() {
        for (said, expected) in [
            ("works on", Some(["works on", "work on", "does Ada work on"])),
            ("has access to", Some(["has access to", "have access to", "does Ada have access to"])),
            ("goes to", Some(["goes to", "go to", "does Ada go to"])),
            ("carries", Some(["carries", "carry", "does Ada carry"])),
            ("is part of", Some(["is part of", "are part of", "is Ada part of"])),
            ("located in", Some(["is located in", "are located in", "is Ada located in"])),
            ("member of", None),
            ("friend", None),
        ] {
            let found = Verb::of(&split(said)).map(|verb| [verb.question("Ada"), verb.one, verb.several]);
            let expected = expected.map(|[one, several, asked]| [asked, one, several].map(str::to_owned));
            assert_eq!(found, expected, "{said}");
        }
    }

    #[test]
    fn a_note_is_asked_for_in_its_own_words() {
        for (note, value, expected) in [
            ("lives in Ghent", "Ghent", "Where does Ada live?"),
            ("speaks Dutch", "Dutch", "What does Ada speak?"),
            ("plays the cello", "cello", "What does Ada play?"),
            ("is allergic to nuts", "nuts", "What is Ada allergic to?"),
            ("used for maps", "maps", "What is Ada used for?"),
            ("joined in 2017", "2017", "When was it that Ada joined?"),
            ("started in 2024-10", "2024-10", "When was it that Ada started?"),
            ("takes place on 2025-06-20", "2025-06-20", "When does Ada take place?"),
            ("has 18 desks", "18", "How many desks does Ada have?"),
            ("costs 320 euros per month", "320", "How many euros per month does Ada cost?"),
            ("budget 640000 euros", "640000", "What is the budget of Ada in euros?"),
            ("deadline 2025-12-20", "2025-12-20", "What is the deadline of Ada?"),
            ("status: on hold", "on hold", "What is the status of Ada?"),
            ("contact is Eva Strand", "Eva Strand", "What is the contact of Ada?"),
        ] {
            let gap = Gap::of(note).unwrap_or_else(|| panic!("{note}"));
            assert_eq!((gap.value.as_str(), gap.questions("Ada")[0].as_str()), (value, expected));
            assert_eq!(format!("{}{}{}", gap.before, gap.value, gap.after), note);
        }
        for note in ["tram line extension", "above a bakery", "client since 2018", "runs", ""] {
            assert_eq!(Gap::of(note), None, "{note}");
        }
    }

    /// What `search` and `open` show of a graph of people and projects.
    fn explored() -> (Graph, Vec<ToolProfile>) {
        let tool = |name: &str, param: &str, schema: Value| data::Tool {
            name: name.into(),
            server_name: name.into(),
            description: format!("{name} nodes"),
            input_schema: json!({"required": [param], "properties": {param: schema}}).to_string(),
            ..data::Tool::default()
        };
        let list = json!({"type": "array", "items": {"type": "string"}});
        let tools =
            [tool("open_nodes", "names", list), tool("search_nodes", "query", json!({"type": "string"}))];
        let transport =
            Transport::Stdio { command: vec!["x".into()], env: BTreeMap::new(), cwd: None, files: vec![] };
        let profiles = profiles(
            &tools,
            &Servers::from(ServerSpec::new(transport, State::ReadOnly)),
            &Default::default(),
        );
        let mut graph = Graph::default();
        for tool in 0..2 {
            for name in ["Ada", "Bo", "Heron", "Wren"] {
                let value = if tool == 0 { json!([name]) } else { json!(name) };
                let arguments = [(profiles[tool].params[0].name.clone(), value)].into_iter().collect();
                let call = ToolCall { name: profiles[tool].name.clone(), arguments };
                let arg = Arg {
                    name: profiles[tool].params[0].name.clone(),
                    leaf: Some(name.into()),
                    shown: name.into(),
                };
                graph.add(&profiles, tool, call, vec![arg], result(name));
            }
        }
        (graph, profiles)
    }

    /// All about a thing.
    fn result(name: &str) -> String {
        let things = [
            ("Ada", "person", ["keeps bees", "joined in 2017"]),
            ("Bo", "person", ["lives in Ghent", "joined in 2017"]),
            ("Heron", "project", ["status: on hold", "budget 640 euros"]),
            ("Wren", "project", ["status: done", "budget 70 euros"]),
        ];
        let statements = [
            ["Ada", "advises", "Heron"],
            ["Ada", "advises", "Wren"],
            ["Ada", "leads", "Heron"],
            ["Bo", "works_on", "Heron"],
            ["Ada", "works_on", "Heron"],
            ["Bo", "reports_to", "Ada"],
        ];
        let entities = things.iter().filter(|thing| thing.0 == name);
        let entities: Vec<Value> = entities
            .map(|(name, kind, notes)| json!({"name": name, "entityType": kind, "observations": notes}))
            .collect();
        let relations = statements.iter().filter(|[from, _, to]| *from == name || *to == name);
        let relations: Vec<Value> = relations
            .map(|[from, relation, to]| json!({"from": from, "to": to, "relationType": relation}))
            .collect();
        json!({"entities": entities, "relations": relations}).to_string()
    }

    #[test]
    fn statements_and_notes_become_questions_that_their_own_calls_answer() {
        let (graph, profiles) = explored();
        let found = candidates(&graph, &profiles, 1);
        let answer = |candidate: &Candidate| {
            let name = |call: &ToolCall| {
                call.arguments.values().next().map(|value| value[0].as_str().unwrap_or_default().to_owned())
            };
            candidate.rule.answer(&[&result(&name(candidate.calls.last().unwrap()).unwrap())])
        };
        let of = |family: &str, thing: &str| {
            let fits =
                |candidate: &&Candidate| candidate.family == family && candidate.entity["name"] == thing;
            found.iter().find(fits).unwrap_or_else(|| {
                panic!(
                    "{family} {thing} in {:?}",
                    found.iter().map(|one| (&one.family, &one.entity, &one.task)).collect::<Vec<_>>()
                )
            })
        };
        for (family, thing, expected) in [
            ("open_nodes: leads of one", "Ada", "Heron"),
            ("open_nodes: leads of which", "Heron", "Ada"),
            ("open_nodes: all works on of which", "Heron", "Ada, Bo"),
            ("open_nodes: count works on of which", "Heron", "2"),
            ("open_nodes: note joined in", "Ada", "2017"),
            ("open_nodes: note status:", "Heron", "on hold"),
        ] {
            assert_eq!(answer(of(family, thing)).as_deref(), Ok(expected), "{family}");
        }
        // The one whom Bo reports to is Ada, who is not named.
        let followed = found.iter().find(|one| one.calls.len() == 2 && one.entity["name"] == "Bo").unwrap();
        assert!(!followed.task.contains("Ada") && followed.task.contains("Bo"), "{}", followed.task);
        let keeper = of("search_nodes: thing that keeps", "keeps bees");
        assert_eq!(keeper.calls[0].arguments["query"], "bees");
        assert!(
            ["Who keeps bees?", "Which person keeps bees?", "Find out which person keeps bees."]
                .contains(&&*keeper.task)
        );
        assert_eq!(
            of("search_nodes: count that joined in", "joined in 2017").calls[0].arguments["query"],
            "2017"
        );
    }

    #[test]
    fn things_of_a_kind_are_compared_and_added_up() {
        let (graph, profiles) = explored();
        let found = candidates(&graph, &profiles, 1);
        let one = |family: &str, kind: &str| {
            let fits = |one: &&Candidate| one.family == family && one.rule.kind() == kind;
            found.iter().find(fits).unwrap_or_else(|| panic!("{family}, {kind}"))
        };
        let of_kind = one("search_nodes: most of a kind budget", "most of notes");
        assert_eq!(of_kind.calls[0].arguments["query"], "euros");
        assert!(of_kind.task.ends_with("has the largest budget?"), "{}", of_kind.task);
        let related = found.iter().find(|one| one.family == "open_nodes: most of related budget").unwrap();
        assert_eq!(related.calls[0].arguments["names"], json!(["Ada"]));
        assert_eq!(related.calls[1].arguments["names"], json!(["Heron", "Wren"]));
        assert!(related.task.contains("projects that Ada advises"), "{}", related.task);
        let both = one("open_nodes: two together budget", "total of notes");
        assert_eq!(both.calls[0].arguments["names"], json!(["Heron", "Wren"]));
        assert!(both.task.contains("budgets of Heron and Wren"), "{}", both.task);
        assert!(!found.iter().any(|one| one.family.contains("most of a kind status")));
    }

    #[test]
    fn the_most_of_a_note_is_asked_for_in_its_own_words() {
        for (note, kind, expected) in [
            ("has 18 desks", "office", "Which office has the most desks?"),
            ("joined in 2017", "person", "Which person joined last?"),
            ("takes place on 2025-06-20", "event", "Which event takes place last?"),
            ("budget 640000 euros", "project", "Which project has the largest budget?"),
            ("deadline 2025-12-20", "project", "Which project has the latest deadline?"),
        ] {
            let gap = Gap::of(note).unwrap();
            assert!(gap.is_measured(), "{note}");
            assert_eq!(gap.compared(kind, "", Aggregate::Most)[0], expected);
        }
        let gap = Gap::of("has 18 desks").unwrap();
        assert_eq!(gap.together("Ghent", "Lyon"), ["How many desks do Ghent and Lyon have together?"]);
        assert!(!Gap::of("lives in Ghent").unwrap().is_measured());
    }

    #[test]
    fn a_server_that_shows_a_part_of_what_is_related_is_not_asked_so() {
        let (mut graph, profiles) = explored();
        for seen in &mut graph.seen {
            seen.reading
                .lists
                .iter_mut()
                .filter(|list| list.name == "relations")
                .for_each(|list| list.records.truncate(1));
        }
        assert_eq!(candidates(&graph, &profiles, 1), []);
    }
}
