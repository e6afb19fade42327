//! Questions about things: what people ask of what a tool lists, finds or gets by an identifier.
//!
//! What is asked of a thing is one of its fields, and of several things how many there are, what they are called, and which
//! has the most of something. A thing is said by its identifier or, with a call more, by its name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    asks::{self, Asks, Column, Condition, FactSource, Operation as Asked, Test},
    graph::{self, Graph},
    pages,
    templates::{self, QuestionKind},
    things::{self, ArgumentRole, KnownThing, Matter, Role, Things},
    tools::ToolProfile,
    wording,
};
use crate::{
    answer_rule::{Aggregate, AnswerRule, value_of},
    candidate::Candidate,
    harvest::{Field, List, Record},
    senses::is_person,
    words,
};

/// Questions about one result.
const RULES: usize = 40;
/// Ways to say the thing that a call takes.
const WAYS: usize = 3;
/// Most things that are listed.
const LISTED: usize = 8;
/// Most conditions that a question has.
const CONDITIONS: usize = 2;
/// Things that are texts.
const TEXTS: [&str; 6] = ["article", "doc", "document", "file", "note", "page"];
/// Most conditions that are asked of one field.
const VALUES: usize = 4;

/// One way to say what a call takes.
struct CallWording {
    calls: Vec<usize>,
    arguments: Map<String, Value>,
    entity: BTreeMap<String, String>,
    /// The thing that the call takes: `ticket T107`, or `the ticket "Dark mode flickers"`.
    one: Option<String>,
    /// What is said in place of an argument, by its place.
    instead: Option<(usize, String)>,
}

/// A question and how it is answered.
struct Question {
    rule: AnswerRule,
    operation: QuestionKind,
    role: &'static str,
    field: String,
    gaps: Vec<(&'static str, String)>,
    /// What it says beside what the call takes.
    said: Option<(String, String)>,
}

/// Candidates about the result of a call; none if it is about something else than things.
pub fn candidates(
    graph: &Graph,
    profiles: &[ToolProfile],
    things: &Things<'_>,
    index: usize,
    seed: u64,
) -> Option<Vec<Candidate>> {
    let seen = &graph.seen[index];
    let parts = match things.matter(index) {
        Matter::Things(parts) => parts,
        Matter::Nothing => return Some(Vec::new()),
        Matter::Other => return None,
    };
    if pages::is_paged(seen, &profiles[seen.tool]) {
        return Some(Vec::new());
    }
    let context = Context { graph, profiles, things, index, parts };
    let mut ways = context.ways();
    // What nobody says is looked up first.
    for part in context.parts.iter().rev() {
        if let ArgumentRole::Sole { listed } = part {
            ways.iter_mut().for_each(|way| way.calls.insert(0, *listed));
        }
    }
    let mut found = Vec::new();
    for way in &ways {
        found.extend(context.questions(way).into_iter().map(|question| (way, question)));
    }
    found.sort_by_cached_key(|(way, question)| {
        graph::rank(seed, &format!("{:?}", way.one), &question.rule.text())
    });
    found.truncate(RULES * ways.len());
    Some(found.into_iter().filter_map(|(way, question)| context.candidate(way, question, seed)).collect())
}

struct Context<'a, 'g> {
    graph: &'g Graph,
    profiles: &'g [ToolProfile],
    things: &'a Things<'g>,
    index: usize,
    parts: Vec<ArgumentRole>,
}

impl<'g> Context<'_, 'g> {
    fn seen(&self) -> &'g graph::SuccessfulCall {
        &self.graph.seen[self.index]
    }

    /// The argument that names a thing.
    fn key(&self) -> Option<(usize, &str)> {
        let noun = |part: &'_ ArgumentRole| matches!(part, ArgumentRole::Key { .. });
        let place = self.parts.iter().position(noun)?;
        match &self.parts[place] {
            ArgumentRole::Key { noun } => Some((place, noun)),
            _ => None,
        }
    }

    /// By the thing's name first.
    fn ways(&self) -> Vec<CallWording> {
        let seen = self.seen();
        let entity: BTreeMap<String, String> = seen.args.iter().map(graph::Arg::said).collect();
        let plain = |one: Option<String>| CallWording {
            calls: vec![self.index],
            arguments: seen.call.arguments.clone(),
            entity: entity.clone(),
            one,
            instead: None,
        };
        let Some((place, noun)) = self.key() else {
            return match self.parts.iter().position(|part| self.is_reference(part)) {
                Some(place) => self.by_name(place).into_iter().collect(),
                None => vec![plain(None)],
            };
        };
        if self.parts.iter().any(|part| self.is_reference(part)) {
            return Vec::new();
        }
        let arg = &seen.args[place];
        let leaf = arg.leaf.clone().unwrap_or_default();
        let named = self.things.called(noun, &leaf);
        // What nobody says has a name, or is not asked about.
        let is_said = !words::is_opaque(&leaf);
        let mut named: Vec<&KnownThing> =
            named.into_iter().filter(|known| known.call != self.index).collect();
        // What it is listed among is said only if no other call finds it.
        named.sort_by_key(|known| known.among.is_some());
        named.truncate(1);
        let file = self.parts.iter().position(|part| *part == ArgumentRole::File);
        let file = file.and_then(|place| seen.args[place].leaf.as_deref());
        let within = |one: String| match file {
            Some(file) => format!("{one} in {file}"),
            None => one,
        };
        let way = |known: &KnownThing| {
            Some(CallWording { one: Some(within(among(known)?)), ..self.described(place, known) })
        };
        let mut ways: Vec<CallWording> = named.into_iter().filter_map(way).take(WAYS - 1).collect();
        ways.extend(is_said.then(|| plain(Some(within(called(noun, &leaf))))));
        ways
    }

    /// Whether an argument narrows things down by the identifier of something else.
    fn is_reference(&self, part: &ArgumentRole) -> bool {
        let ArgumentRole::Filter { field } = part else { return false };
        let lists = self.seen().reading.lists.iter();
        lists
            .into_iter()
            .any(|list| self.things.role(self.seen().tool, &list.name, field) == Some(Role::Reference))
    }

    /// A way that says the name of what an argument identifies, if anybody knows it.
    fn by_name(&self, place: usize) -> Option<CallWording> {
        let known = self.things.called_anything(self.seen().args[place].leaf.as_deref()?)?;
        let instead = Some((place, among(known)?));
        (known.call != self.index).then(|| CallWording { instead, ..self.described(place, known) })
    }

    /// The calls and arguments where one of these is found by a name.
    fn described(&self, place: usize, known: &KnownThing) -> CallWording {
        let (seen, arg) = (self.seen(), &self.seen().args[place]);
        let mut entity: BTreeMap<String, String> = seen.args.iter().map(graph::Arg::said).collect();
        entity.remove(&arg.name);
        entity.insert(known.name.0.clone(), known.name.1.clone());
        let mut arguments = seen.call.arguments.clone();
        if let Some(argument) = arguments.get_mut(&arg.name) {
            let asked = self.asked(known);
            *argument = if argument.is_array() { serde_json::json!([asked]) } else { asked };
        }
        CallWording { calls: vec![known.call, self.index], arguments, entity, one: None, instead: None }
    }

    /// An identifier as what is asked for by the name.
    fn asked(&self, known: &KnownThing) -> Value {
        let source = &self.graph.seen[known.call];
        let (field, name) = (Column::One(known.id.0.clone()), &known.name);
        let is = asks::typed(&source.reading, &known.list, &name.0, &name.1);
        let tool = FactSource::Tool {
            tool: self.profiles[source.tool].name.clone(),
            arguments: source.call.arguments.clone(),
            list: known.list.clone(),
        };
        let condition = Condition { column: Column::One(name.0.clone()), test: Test::Is(is) };
        Asks::new(Asked::Field { field }, tool).filtered([condition]).as_argument()
    }

    fn questions(&self, way: &CallWording) -> Vec<Question> {
        let seen = self.seen();
        let mut questions = Vec::new();
        for list in seen.reading.lists.iter().filter(|list| !list.is_nested) {
            match (list.is_list || list.is_part, way.one.as_ref(), list.records.as_slice()) {
                (true, ..) => questions.extend(self.of_several(list, way)),
                (false, Some(one), [record]) => questions.extend(self.of_subject(list, record, one)),
                (false, None, [record]) => questions.extend(self.of_summary(list, record)),
                _ => {}
            }
        }
        questions
    }

    fn role(&self, list: &List, field: &Field) -> Option<Role> {
        let said = self.seen().args.iter().any(|arg| arg.leaf.as_ref() == Some(&field.value));
        let role = self.things.role(self.seen().tool, &list.name, &field.name)?;
        (!said && things::tells(&field.value)).then_some(role)
    }

    /// Fields of the thing that the call takes.
    fn of_subject(&self, list: &List, record: &Record, one: &str) -> Vec<Question> {
        let noun = self.key().map(|(_, noun)| noun.to_owned()).unwrap_or_default();
        let subject = self.things.subject(self.index, &noun, one);
        let is_named = !subject.contains(&words::shown(&self.leaf()));
        let has_lists = self.seen().reading.lists.len() > 1;
        let fields = record.iter().filter_map(|field| Some((field, self.role(list, field)?)));
        let of = |(field, role): (&Field, Role)| {
            // What its name has been said for is no news, and neither is its name.
            let is_said = role == Role::Name && is_named || subject.contains(&words::shown(&field.value));
            let is_about_list = has_lists && words::ABOUT_LISTS.contains(&field.name.as_str()) && {
                let lists = self.seen().reading.lists.iter().filter(|list| list.is_list || list.is_part);
                field.name != "total"
                    || lists.clone().any(|list| list.is_part || list.records.len().to_string() == field.value)
            };
            (!is_said && !is_about_list)
                .then(|| self.of_field(list, None, field, role, &noun, &subject))
                .flatten()
        };
        fields.filter_map(of).collect()
    }

    fn leaf(&self) -> String {
        let key = self.key().and_then(|(place, _)| self.seen().args[place].leaf.clone());
        key.unwrap_or_default()
    }

    fn of_field(
        &self,
        list: &List,
        key: Option<(String, String)>,
        field: &Field,
        role: Role,
        noun: &str,
        one: &str,
    ) -> Option<Question> {
        // The email of the requester of a ticket is not its own.
        let of_person = field.name.split_once('.').filter(|(outer, inner)| {
            (is_person(&templates::word(outer)) || templates::asks_who(outer)) && *inner != "name"
        });
        let (said, one) = match of_person {
            Some((outer, inner)) => (
                words::in_full(&words::spoken_field(inner)),
                format!("the {} of {one}", words::spoken_field(outer)),
            ),
            None => (said(&field.name, noun), one.to_owned()),
        };
        // An order has no city, its address has one.
        let is_of_address =
            field.name.starts_with("address.") && !said.contains("address") && !is_person(noun);
        let one = if is_of_address { format!("the address of {one}") } else { one };
        let one = one.as_str();
        let is_many = words::is_plural(&said) && field.value.parse::<u32>().is_ok();
        let done = done(&field.name);
        let role = match role {
            Role::Reference | Role::Id => return None,
            Role::Set if words::is_uncountable(&said) => "mass",
            Role::Set => "set",
            Role::Moment if words::did(&field.name).is_some() => "did",
            Role::Moment if done.is_some() => "done",
            Role::Moment if words::verb_of(&field.name).is_some() => "verb",
            Role::Moment => "moment",
            Role::Amount if spent(&said).is_some() => "spent",
            Role::Amount if is_many => "number",
            Role::Amount => "amount",
            Role::Person => "person",
            Role::Name => "name",
            Role::State => "state",
            Role::Text => "text",
        };
        let role = if ["text", "state", "amount"].contains(&role) && words::is_plural(&said) {
            "plural"
        } else {
            role
        };
        let under = self.under(list, key.as_ref(), field, noun, one);
        let is_odd = wording::is_odd(&field.name, ["done", "did"].contains(&role));
        if under.is_some() || is_odd && !templates::has_words(&field.name) {
            return under;
        }
        let said = match words::split(&field.name).last() {
            Some(last) if role == "person" && last == "name" => {
                said.strip_suffix(" name").unwrap_or(&said).to_owned()
            }
            _ => said,
        };
        // The name of a count is not the count of what it is called.
        let said = match said.strip_suffix(" count").filter(|_| role == "amount") {
            Some(many) => return Some(self.counted(list, key, field, many, one)),
            None => said,
        };
        let verb = words::verb_of(&field.name).map(str::to_owned);
        let (said, done) = match spent(&said) {
            Some((many, done)) if role == "spent" => (many.to_owned(), done.to_owned()),
            _ => (said, done.or(verb).unwrap_or_default()),
        };
        let (done, does) = words::did(&field.name).map_or((done, ""), |(past, does)| (past.to_owned(), does));
        let gaps = vec![
            ("does", does.to_owned()),
            ("one", one.to_owned()),
            ("fields", words::plural(&said)),
            ("field", said),
            ("done", done),
        ];
        let rule = AnswerRule::Field { list: list.name.clone(), key: key.clone(), field: field.name.clone() };
        Some(Question {
            rule,
            operation: QuestionKind::Field,
            role,
            field: field.name.clone(),
            gaps,
            said: key,
        })
    }

    /// What a text has under a key as people write it, which may be no noun: `Lent to`.
    fn under(
        &self,
        list: &List,
        key: Option<&(String, String)>,
        field: &Field,
        noun: &str,
        one: &str,
    ) -> Option<Question> {
        let key = key.cloned();
        let is_written = field.name.starts_with(char::is_uppercase) && !field.is_text;
        let gaps = vec![("one", one.to_owned()), ("field", field.name.clone())];
        let rule = AnswerRule::Field { list: list.name.clone(), key: key.clone(), field: field.name.clone() };
        (is_written && words::has_any(noun, &TEXTS)).then(|| Question {
            rule,
            operation: QuestionKind::Field,
            role: "under",
            field: String::new(),
            gaps,
            said: key,
        })
    }

    /// `comment_count`, as how many comments there are.
    fn counted(
        &self,
        list: &List,
        key: Option<(String, String)>,
        field: &Field,
        many: &str,
        one: &str,
    ) -> Question {
        let gaps = vec![("one", one.to_owned()), ("field", words::plural(many))];
        let rule = AnswerRule::Field { list: list.name.clone(), key: key.clone(), field: field.name.clone() };
        Question {
            rule,
            operation: QuestionKind::Field,
            role: "number",
            field: field.name.clone(),
            gaps,
            said: key,
        }
    }

    /// What a summary counts: things, by the values of their fields.
    fn of_summary(&self, list: &List, record: &Record) -> Vec<Question> {
        let noun = self.things.own_noun(self.seen().tool);
        let of = |field: &Field| {
            let total = ["total", "count"].contains(&field.name.as_str());
            let things = match things::tallied(&field.name) {
                Some((outer, value)) => {
                    let value = value.replace('_', " ");
                    templates::with_condition(
                        &words::plural(&noun),
                        outer,
                        &words::spoken_field(outer),
                        &value,
                    )
                }
                None if total => words::plural(&noun),
                None => return None,
            };
            let rule = AnswerRule::Field { list: list.name.clone(), key: None, field: field.name.clone() };
            let role = if total { "all" } else { "of" };
            let gaps = vec![("things", things)];
            Some(Question {
                rule,
                operation: QuestionKind::Tally,
                role,
                field: String::new(),
                gaps,
                said: None,
            })
        };
        let is_sound = noun != "entry" && record.iter().any(|field| things::tallied(&field.name).is_some());
        record.iter().filter(|_| is_sound).filter_map(of).collect()
    }

    /// The things of a list as the call's arguments narrow them down.
    fn things_of(&self, list: &List, noun: &str, way: &CallWording) -> String {
        let seen = self.seen();
        let mut text = words::plural(noun);
        if let Some(one) = way.one.as_ref().filter(|_| !list.records.is_empty()) {
            text = templates::with_owner(&text, noun, one);
        }
        for (place, (part, arg)) in self.parts.iter().zip(&seen.args).enumerate() {
            let instead = way.instead.as_ref().filter(|(other, _)| *other == place);
            let value =
                instead.map_or_else(|| arg.leaf.clone().unwrap_or_default(), |(_, name)| name.clone());
            text = match part {
                ArgumentRole::Key { .. } | ArgumentRole::File | ArgumentRole::Sole { .. } => text,
                ArgumentRole::Filter { field } => {
                    let value = if words::is_code(&value) { value } else { value.replace('_', " ") };
                    // Whose name is said has no id: tickets of a customer.
                    let field = if instead.is_some() { &things::without_key(field) } else { field };
                    let role = self.things.role(seen.tool, &list.name, field);
                    let called = said(field, noun);
                    match role {
                        Some(Role::Person) => templates::with_person(&text, field, &called, &value),
                        Some(Role::Set) => {
                            templates::with_condition(&text, field, &words::singular_head(&called), &value)
                        }
                        _ => templates::with_condition(&text, field, &called, &value),
                    }
                }
                ArgumentRole::Search { field } => {
                    templates::with_search(&text, &said(field, noun), &format!("\"{value}\""))
                }
            };
        }
        if let Some(quality) = self.things.quality(seen.tool, &list.name) {
            text = format!("{text} with {quality}");
        }
        text
    }

    fn of_several(&self, list: &List, way: &CallWording) -> Vec<Question> {
        let seen = self.seen();
        let noun = self.things.noun(seen.tool, &list.name);
        if noun == "entry" || list.records.is_empty() {
            return Vec::new();
        }
        let conditions = self.parts.iter().filter(|part| part.narrows()).count();
        if conditions > CONDITIONS {
            return Vec::new();
        }
        let name = self.things.name_field(seen.tool, list);
        let mut questions = Vec::new();
        let is_exact = |part: (&ArgumentRole, &graph::Arg)| {
            matches!(part.0, ArgumentRole::Search { .. }) && self.names(list, &name, part.1)
        };
        let is_found = self.parts.iter().zip(&seen.args).any(is_exact);
        let is_narrowed = self.parts.iter().any(ArgumentRole::narrows);
        if let Some(name) = name.as_ref().filter(|_| !is_narrowed || is_found) {
            questions.extend(self.of_each(list, name, &noun, way));
        }
        if list.is_part || !list.is_list || is_found || list.records.len() < 2 {
            return questions;
        }
        let things = self.things_of(list, &noun, way);
        questions.extend(self.of_all(list, name.as_deref(), &noun, &things));
        if !self.parts.iter().any(|part| matches!(part, ArgumentRole::Search { .. }))
            && conditions < CONDITIONS
        {
            questions.extend(self.by_values(list, name.as_deref(), &noun, &things));
        }
        questions
    }

    /// Whether an argument is the whole name of a record.
    fn names(&self, list: &List, name: &Option<String>, arg: &graph::Arg) -> bool {
        let Some((name, leaf)) = name.as_ref().zip(arg.leaf.as_ref()) else { return false };
        let mut values = list.records.iter().filter_map(|record| value_of(record, name));
        values.any(|value| value.eq_ignore_ascii_case(leaf))
    }

    /// A field of the one that is called so.
    fn of_each(&self, list: &List, name: &str, noun: &str, way: &CallWording) -> Vec<Question> {
        let mut questions = Vec::new();
        for record in &list.records {
            let Some(value) = value_of(record, name) else { continue };
            let is_sole = self.things.is_sole(noun, value);
            // A list that is known in part may have another one.
            let is_searched = self.seen().args.iter().any(|arg| arg.leaf.as_deref() == Some(value));
            let is_narrowed = self.parts.iter().any(|part| matches!(part, ArgumentRole::Search { .. }));
            let is_owned = way.one.is_some();
            if !is_sole && !is_owned || (list.is_part || is_narrowed) && !is_searched {
                continue;
            }
            let one = match &way.one {
                Some(owner) => templates::with_owner(&words::called(noun, value), noun, owner),
                None => called(noun, value),
            };
            let key = (name.to_owned(), value.to_owned());
            for field in record.iter().filter(|field| field.name != name) {
                let Some(role) = self.things.role(self.seen().tool, &list.name, &field.name) else {
                    continue;
                };
                let is_said = self.seen().args.iter().any(|arg| arg.leaf.as_ref() == Some(&field.value));
                if is_said || !things::tells(&field.value) {
                    continue;
                }
                // Who knows a name may want the identifier, and nobody wants that of something else.
                questions.extend(match role {
                    Role::Id => {
                        (!words::is_opaque(&field.value)).then(|| self.id_of(list, &key, field, noun, &one))
                    }
                    role => self.of_field(list, Some(key.clone()), field, role, noun, &one),
                });
            }
        }
        questions
    }

    fn id_of(&self, list: &List, key: &(String, String), field: &Field, noun: &str, one: &str) -> Question {
        let gaps = vec![("one", one.to_owned()), ("field", own_id(&field.name, noun))];
        let rule =
            AnswerRule::Field { list: list.name.clone(), key: Some(key.clone()), field: field.name.clone() };
        let said = Some(key.clone());
        Question { rule, operation: QuestionKind::Field, role: "id", field: "id".into(), gaps, said }
    }

    /// How many there are, what they are called, and which has the most.
    fn of_all(&self, list: &List, name: Option<&str>, noun: &str, things: &str) -> Vec<Question> {
        let of_list = || list.name.clone();
        let is_owned = self.key().is_some();
        let things = || ("things", things.to_owned());
        let mut questions = Vec::new();
        let mut ask = |rule, operation, role, field: &str, gaps| {
            questions.push(Question { rule, operation, role, field: field.to_owned(), gaps, said: None });
        };
        // Nobody counts the tags of something.
        let are_words = list.records.iter().all(|record| record.len() == 1 && record[0].name.is_empty());
        if !(is_owned && are_words) {
            ask(AnswerRule::Count { list: of_list() }, QuestionKind::Count, "all", "", vec![things()]);
        }
        let Some(name) = name else { return questions };
        let called = said(name, noun);
        if list.records.len() <= LISTED {
            let rule = AnswerRule::Column { list: of_list(), field: name.to_owned() };
            let role = match () {
                () if called == noun => "itself",
                () if is_person(noun) => "person",
                () => "all",
            };
            ask(rule, QuestionKind::List, role, "", vec![things(), ("names", words::plural(&called))]);
        }
        for field in list.records[0].iter().filter(|field| field.name != name) {
            let role = self.things.role(self.seen().tool, &list.name, &field.name);
            let said = said(&field.name, noun);
            let did = words::did(&field.name).map(|(past, _)| past.to_owned());
            let is_did = did.is_some();
            let done = did.or_else(|| done(&field.name));
            let are_whole = || {
                let mut values = list.records.iter().filter_map(|record| value_of(record, &field.name));
                values.all(|value| value.parse::<u32>().is_ok())
            };
            let role = match role {
                Some(Role::Moment) if is_did => "did",
                Some(Role::Moment) if done.is_some() => "done",
                Some(Role::Moment) => "moment",
                Some(Role::Amount) if words::is_plural(&said) && are_whole() => "number",
                Some(Role::Amount) if words::is_plural(&said) => "plural",
                Some(Role::Amount) if words::is_amount(&field.name) || is_compared(&field.name) => "amount",
                _ => continue,
            };
            let values: BTreeSet<&str> =
                list.records.iter().filter_map(|record| value_of(record, &field.name)).collect();
            if values.len() < 2 {
                continue;
            }
            let gaps = || {
                vec![
                    things(),
                    ("thing", noun.to_owned()),
                    ("field", said.clone()),
                    ("name", called.clone()),
                    (
                        "give",
                        match called == noun {
                            true => String::new(),
                            false => {
                                format!(" Give {} {called}.", if is_person(noun) { "their" } else { "its" })
                            }
                        },
                    ),
                    ("done", done.clone().unwrap_or_default()),
                ]
            };
            let measured = |key: Option<&str>, wanted| AnswerRule::Measured {
                list: of_list(),
                field: field.name.clone(),
                key: key.map(str::to_owned),
                wanted,
            };
            let compared = if role == "plural" { "amount" } else { role };
            ask(measured(Some(name), Aggregate::Most), QuestionKind::Most, compared, &field.name, gaps());
            ask(measured(Some(name), Aggregate::Least), QuestionKind::Least, compared, &field.name, gaps());
            if ["amount", "number", "plural"].contains(&role)
                && words::is_added_up(&field.name)
                && adds_up(&field.name)
            {
                ask(measured(None, Aggregate::Total), QuestionKind::Total, role, &field.name, gaps());
            }
        }
        questions
    }

    /// How many, and which, have a value that several share.
    fn by_values(&self, list: &List, name: Option<&str>, noun: &str, things: &str) -> Vec<Question> {
        let mut questions = Vec::new();
        for field in &list.records[0] {
            let role = self.things.role(self.seen().tool, &list.name, &field.name);
            if !matches!(role, Some(Role::State | Role::Person)) {
                continue;
            }
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for value in list.records.iter().filter_map(|record| value_of(record, &field.name)) {
                *counts.entry(value).or_default() += 1;
            }
            let some = |(value, count): &(&str, usize)| *count < list.records.len() && things::tells(value);
            for (value, count) in counts.into_iter().filter(some).take(VALUES) {
                let shown = value.replace('_', " ");
                let all = things;
                let called = said(&field.name, noun);
                let things = match role {
                    Some(Role::Person) => templates::with_person(all, &field.name, &called, &shown),
                    _ => templates::with_condition(all, &field.name, &called, &shown),
                };
                let keys = vec![(field.name.clone(), value.to_owned())];
                let asked = Some((field.name.clone(), value.to_owned()));
                let rule = AnswerRule::Matching { list: list.name.clone(), keys: keys.clone(), field: None };
                // `of the tickets of Ann are assigned to Ben`
                let state = things.strip_prefix(all).map(str::trim).filter(|state| {
                    all.contains(' ') && state.split(' ').next().is_some_and(|word| word.ends_with("ed"))
                });
                let (role, gaps) = match state {
                    Some(state) => ("state", vec![("things", all.to_owned()), ("state", state.to_owned())]),
                    None => ("owned", vec![("things", things.clone())]),
                };
                let question = |rule, operation, role, gaps| Question {
                    rule,
                    operation,
                    role,
                    field: String::new(),
                    gaps,
                    said: asked.clone(),
                };
                questions.push(question(rule, QuestionKind::Count, role, gaps));
                if let Some(name) = name.filter(|_| (2..=LISTED).contains(&count)) {
                    let rule =
                        AnswerRule::Matching { list: list.name.clone(), keys, field: Some(name.to_owned()) };
                    let called = said(name, noun);
                    let role = if called == noun { "itself" } else { "all" };
                    let gaps = vec![("things", things), ("names", words::plural(&called))];
                    questions.push(question(rule, QuestionKind::List, role, gaps));
                }
            }
        }
        questions
    }

    fn candidate(&self, way: &CallWording, question: Question, seed: u64) -> Option<Candidate> {
        let seen = self.seen();
        let Question { rule, operation, role, field, gaps, said } = question;
        let answer = rule.answer(&[&seen.text]).ok()?;
        let list = rule.list().to_owned();
        let tools: Vec<&str> =
            way.calls.iter().map(|call| self.profiles[self.graph.seen[*call].tool].name.as_str()).collect();
        let about = match &rule {
            AnswerRule::Field { key: Some((key, _)), field, .. } => format!("{field} by {key}"),
            AnswerRule::Matching { keys, .. } => keys.first().map(|key| key.0.clone()).unwrap_or_default(),
            AnswerRule::Field { field, .. }
            | AnswerRule::Column { field, .. }
            | AnswerRule::Measured { field, .. } => field.clone(),
            _ => String::new(),
        };
        let family = format!("{}: {} {list} {about}", tools.join(" > "), rule.kind());
        let mut entity = way.entity.clone();
        entity.extend(said);
        let gaps: Vec<(&str, &str)> = gaps.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let asked = templates::ask(operation, role, &field, &gaps);
        let place = graph::place(seed, &family, &format!("{entity:?}"), asked.len());
        let (phrasing, task) = asked.get(place)?.clone();
        // What stands in the question is no answer.
        let is_said = answer.len() > 2 && task.to_lowercase().contains(&answer.to_lowercase());
        if is_said && answer.parse::<f64>().is_err() {
            return None;
        }
        let calls = way.calls.iter().map(|call| self.graph.seen[*call].call.clone()).collect();
        let asked = Candidate { family, entity, task, phrasing, calls, rule, ..Candidate::default() };
        let tool = &self.profiles[seen.tool].name;
        Some(asks::answered(
            asked,
            seen,
            tool,
            way.arguments.clone(),
            (&answer, ["set", "mass"].contains(&role)),
        ))
    }
}

/// One thing: `ticket T107`, `the ticket "Dark mode flickers"`, `Maria Lopez`.
fn called(noun: &str, value: &str) -> String {
    // `Noor van Dijk`
    let is_capital = |word: &str| word.chars().next().is_some_and(char::is_uppercase);
    let is_full_name = value.split(' ').count() > 1
        && is_capital(value)
        && value.rsplit(' ').next().is_some_and(is_capital)
        && value.split(' ').all(|word| is_capital(word) || word.len() <= 3);
    // A person is called by a short name, too.
    let is_short = value.len() > 2 && value.chars().all(|letter| letter.is_lowercase() || letter == '_');
    if is_person(noun) && (is_full_name || is_short) && !value.contains('"') {
        return value.to_owned();
    }
    words::called(noun, value)
}

/// A thing by its name, and by what it is listed among: `the on-hold project "Room 4"`. None if that is no word in front of it.
fn among(known: &KnownThing) -> Option<String> {
    let Some((field, value)) = &known.among else { return Some(called(&known.noun, &known.name.1)) };
    let noun = templates::with_condition(&known.noun, field, "", &value.replace('_', " "));
    (noun.len() > known.noun.len() && noun.ends_with(&known.noun)).then(|| called(&noun, &known.name.1))
}

/// A field's name in a sentence, without the name of the thing that has it: `status` for `ticket_status`.
fn said(field: &str, noun: &str) -> String {
    let said = words::in_full(&words::spoken_field(field));
    match said.strip_prefix(&format!("{noun} ")) {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => said,
    }
}

/// An identifier in a sentence: `ID`, `student number`.
fn own_id(field: &str, noun: &str) -> String {
    match said(field, noun).as_str() {
        "ID" | "SKU" => said(field, noun),
        // The number of a person is no telephone number.
        said if is_person(noun) && !said.contains(' ') => format!("{noun} {said}"),
        said => said.to_owned(),
    }
}

/// What was done at the moment that a field holds: `created` for `created_at`, `opened` for `opened`.
fn done(field: &str) -> Option<String> {
    let said = words::split(field);
    let ends = ["at", "on", "date", "time"];
    let verbs: Vec<&String> = said.iter().filter(|word| !ends.contains(&word.as_str())).collect();
    let [verb] = verbs.as_slice() else { return None };
    let verb = match verb.as_str() {
        "published" | "paid" | "sent" | "born" | "built" | "sold" | "bought" | "taken" | "lent" | "given"
        | "written" => (*verb).clone(),
        one if one.len() > 4 && one.ends_with("ed") => one.to_owned(),
        _ => return None,
    };
    Some(if verb == "updated" || verb == "modified" { format!("last {verb}") } else { verb })
}

/// Whether people compare the numbers of a field.
fn is_compared(field: &str) -> bool {
    words::is_compared(field) && words::is_added_up(field)
}

/// What was done with a number of things: `nights` and `stayed`.
fn spent(said: &str) -> Option<(&str, &str)> {
    let (many, done) = said.rsplit_once(' ')?;
    (done.ends_with("ed") && words::is_plural(many)).then_some((many, done))
}

/// Whether the sum of a field is one that people ask for.
fn adds_up(field: &str) -> bool {
    const NEVER: [&str; 20] = [
        "price",
        "fare",
        "fee",
        "duration",
        "length",
        "width",
        "pages",
        "salary",
        "progress",
        "percent",
        "percentage",
        "rating",
        "score",
        "rate",
        "age",
        "year",
        "level",
        "rank",
        "temperature",
        "priority",
    ];
    !words::has_any(field, &NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_say_what_was_done() {
        for (field, expected) in [
            ("created_at", Some("created")),
            ("updatedAt", Some("last updated")),
            ("ordered_on", Some("ordered")),
            ("due_date", None),
            ("opened", Some("opened")),
        ] {
            assert_eq!(done(field).as_deref(), expected, "{field}");
        }
    }

    #[test]
    fn fields_are_said_without_the_name_of_their_thing() {
        assert_eq!(said("ticket_status", "ticket"), "status");
        assert_eq!(said("status", "ticket"), "status");
        assert_eq!(called("agent", "Maria Lopez"), "Maria Lopez");
        assert_eq!(called("person", "Noor van Dijk"), "Noor van Dijk");
        assert_eq!(called("person", "maja"), "maja");
        assert_eq!(called("ticket", "Dark mode flickers"), "the ticket \"Dark mode flickers\"");
        assert_eq!(called("ticket", "T107"), "ticket T107");
    }
}
