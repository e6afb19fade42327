//! What tools that write can be told to do: the things that reading calls list, and what stands in each argument.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::contents;
use crate::{
    answer_rule::{is_moment, value_of},
    chat::ToolCall,
    explored::{
        changes,
        graph::{self, Graph},
        phrases::{Class, FieldPlace, PHRASES, Role, Verb},
        seeds::{Kind, Param, is_query},
        tools::ToolProfile,
    },
    harvest::{self, List, Record},
    mcp::plain,
    words,
};

/// Names of lists that say nothing.
const ENVELOPES: [&str; 9] =
    ["result", "results", "item", "items", "data", "content", "structured", "records", "entries"];
/// Words of what tells things apart.
const KEYS: [&str; 8] = ["id", "no", "nr", "number", "code", "key", "uuid", "sku"];
/// Names of fields with the name of a thing.
const NAMES: [&str; 6] = ["name", "title", "subject", "label", "summary", "headline"];
/// Words of what no person writes.
const ENCODED: [&str; 9] = ["base64", "bytes", "blob", "binary", "hash", "checksum", "html", "json", "xml"];
/// Most texts of one's own that a tool needs.
const FREE: usize = 3;
/// Longest name of a thing in an order.
const NAME_CHARS: usize = 60;
/// Most values of a field that is a category, and words of what is old or new in a parameter's name.
const CATEGORIES: usize = 10;
const QUALIFIERS: [&str; 8] = ["new", "to", "from", "target", "source", "destination", "by", "current"];

/// A list of things that a reading call without arguments gives, or else the longest that a search finds.
#[derive(Debug)]
pub struct Things {
    /// `ticket`
    pub noun: String,
    /// The tool that lists them without arguments, and the characters of its result.
    pub tool: usize,
    pub chars: usize,
    /// The field that tells them apart, and the one with their names, if it tells them apart, too.
    pub key: String,
    pub name: Option<String>,
    pub records: Vec<Record>,
    /// All of them.
    pub is_whole: bool,
    /// A call that shows one of them: the tool, and its parameter.
    pub getters: Vec<(usize, String)>,
    pub views: Vec<View>,
    /// Searches for the name of a thing that find it, by its key.
    pub searches: BTreeMap<String, ToolCall>,
    /// The parameter of a search, if no call lists them without one.
    pub search: Option<String>,
}

/// Those of the things that have a value, as their list gives them if it is asked for these.
#[derive(Debug)]
pub struct View {
    pub call: ToolCall,
    pub field: String,
    pub value: String,
    pub keys: BTreeSet<String>,
    pub chars: usize,
}

impl Things {
    pub fn key_of<'t>(&'t self, record: &'t Record) -> &'t str {
        value_of(record, &self.key).unwrap_or_default()
    }

    pub fn name_of<'t>(&'t self, record: &'t Record) -> Option<&'t str> {
        value_of(record, self.name.as_deref()?)
    }

    /// What a thing is called, though others may be called so.
    pub fn title_of<'t>(&'t self, record: &'t Record) -> Option<&'t str> {
        let is_title = |field: &&harvest::Field| {
            field.name.is_empty()
                || words::split(&field.name).last().is_some_and(|last| NAMES.contains(&last.as_str()))
        };
        self.name_of(record).or_else(|| Some(record.iter().find(is_title)?.value.as_str()))
    }

    /// Fields with few values that several things share.
    pub fn categories(&self) -> Vec<(&str, Vec<&str>)> {
        let Some(first) = self.records.first() else { return Vec::new() };
        let of = |name: &str| -> Option<Vec<&str>> {
            self.records.iter().map(|record| value_of(record, name)).collect()
        };
        let category = |field: &'_ harvest::Field| {
            let values = of(&field.name)?;
            let distinct: BTreeSet<&str> = values.iter().copied().collect();
            let is_word = |value: &&str| {
                !value.trim().is_empty()
                    && value.len() <= 30
                    && value.parse::<f64>().is_err()
                    && *value != "None"
            };
            // People say states and names, and neither codes nor dates.
            let words: Vec<&str> = distinct.iter().copied().filter(is_word).collect();
            let is_said = |value: &&str| !is_moment(value) && !words::is_code(value);
            let is_one = !field.is_set
                && !field.name.is_empty()
                && field.name != self.key
                && Some(&field.name) != self.name.as_ref()
                && (2..=CATEGORIES).contains(&distinct.len())
                && distinct.len() < values.len()
                && words.len() >= 2
                && words.iter().all(is_said)
                && !words.iter().all(|word| ["true", "false", "True", "False"].contains(word));
            is_one.then_some(words)
        };
        first.iter().filter_map(|field| Some((field.name.as_str(), category(field)?))).collect()
    }
}

/// The lists of things, one for each noun and key.
pub fn things(graph: &Graph, profiles: &[ToolProfile]) -> Vec<Things> {
    let mut found: Vec<Things> = Vec::new();
    let taken = taken(graph, profiles);
    let longest: Vec<&graph::SuccessfulCall> =
        (0..profiles.len()).filter_map(|tool| longest_search(graph, &profiles[tool], tool)).collect();
    let plain = graph.seen.iter().filter(|seen| seen.args.is_empty());
    for seen in plain.chain(longest) {
        let profile = &profiles[seen.tool];
        if !changes::reads(profile) || graph.is_random(seen.tool) {
            continue;
        }
        // A list that ends at ten is whole where the tool has no pages.
        let has_pages = profile.params.iter().any(|param| param.is_limit() || param.is_page());
        let own = harvest::read(&seen.text);
        let changing = graph.changing(seen.tool);
        for list in own.lists.into_iter().filter(|list| !list.is_nested && list.records.len() > 1) {
            let Some(key) = key(&list, &changing, &taken) else { continue };
            let is_whole = list.is_list && !list.is_part && !has_pages && seen.args.is_empty();
            let noun = noun(profile, &list.name);
            if found.iter().any(|known| known.noun == noun && known.key == key) {
                continue;
            }
            let name = name(&list, &key);
            found.push(Things {
                noun,
                tool: seen.tool,
                chars: seen.text.chars().count(),
                key,
                name,
                records: list.records,
                is_whole,
                getters: Vec::new(),
                views: Vec::new(),
                searches: BTreeMap::new(),
                search: seen.args.first().map(|arg| arg.name.clone()),
            });
        }
    }
    for tool in 0..profiles.len() {
        if changes::reads(&profiles[tool]) && found.iter().all(|things| things.tool != tool) {
            let keys: BTreeSet<&str> = found
                .iter()
                .flat_map(|known| known.records.iter().map(|record| known.key_of(record)))
                .collect();
            let is_new = |own: &Things| !own.records.iter().any(|record| keys.contains(own.key_of(record)));
            let own = of_parts(graph, profiles, tool, &taken).filter(is_new);
            found.extend(own);
        }
    }
    for things in &mut found {
        let keys: BTreeSet<&str> =
            things.records.iter().filter_map(|record| value_of(record, &things.key)).collect();
        let mut getters: BTreeMap<usize, String> = BTreeMap::new();
        for seen in graph.seen.iter().filter(|seen| changes::reads(&profiles[seen.tool])) {
            // A search for a key may find nothing.
            if let [arg] = seen.args.as_slice()
                && !is_query(&arg.name)
                && arg.leaf.as_deref().is_some_and(|leaf| keys.contains(leaf))
                && !graph.is_random(seen.tool)
            {
                getters.entry(seen.tool).or_insert_with(|| arg.name.clone());
            }
        }
        things.getters = getters.into_iter().collect();
        things.views = graph
            .seen
            .iter()
            .filter(|seen| seen.tool == things.tool)
            .filter_map(|seen| view(seen, &things.key))
            .collect();
        things.searches = searches(graph, profiles, things);
    }
    found
}

/// The things of a tool that lists them by the values of an argument alone, or whose list is too long to be read as a whole.
fn of_parts(graph: &Graph, profiles: &[ToolProfile], tool: usize, taken: &BTreeSet<&str>) -> Option<Things> {
    let profile = &profiles[tool];
    let param = |name: &str| profile.params.iter().find(|param| param.name == name);
    let is_part = |seen: &&graph::SuccessfulCall| {
        seen.tool == tool
            && matches!(&*seen.args, [arg] if param(&arg.name).is_some_and(|own| own.is_closed || own.is_required))
    };
    let mut all = List::default();
    for seen in graph.seen.iter().filter(is_part) {
        for list in seen.reading.lists.iter().filter(|list| list.is_list && !list.is_nested) {
            all.name.clone_from(&list.name);
            let new: Vec<Record> =
                list.records.iter().filter(|record| !all.records.contains(record)).cloned().collect();
            all.records.extend(new);
        }
    }
    let key = key(&all, &graph.changing(tool), taken).filter(|_| all.records.len() > 1)?;
    Some(Things {
        noun: noun(profile, &all.name),
        tool,
        chars: usize::MAX,
        name: name(&all, &key),
        key,
        records: all.records,
        is_whole: false,
        getters: Vec::new(),
        views: Vec::new(),
        searches: BTreeMap::new(),
        search: None,
    })
}

/// The search of a tool that finds most, if the tool needs one.
fn longest_search<'g>(
    graph: &'g Graph,
    profile: &ToolProfile,
    tool: usize,
) -> Option<&'g graph::SuccessfulCall> {
    let required: Vec<&Param> = profile.params.iter().filter(|param| param.is_required).collect();
    let [only] = &required[..] else { return None };
    let is_it = |seen: &&graph::SuccessfulCall| {
        seen.tool == tool && matches!(&*seen.args, [arg] if arg.name == only.name && is_query(&arg.name))
    };
    let records = |seen: &&graph::SuccessfulCall| {
        seen.reading.lists.iter().map(|list| list.records.len()).max().unwrap_or_default()
    };
    graph.seen.iter().filter(is_it).max_by_key(records)
}

fn searches(graph: &Graph, profiles: &[ToolProfile], things: &Things) -> BTreeMap<String, ToolCall> {
    let of = |seen: &graph::SuccessfulCall| {
        let [arg] = seen.args.as_slice() else { return None };
        let name =
            arg.leaf.as_deref().filter(|_| is_query(&arg.name) && changes::reads(&profiles[seen.tool]))?;
        let is_it =
            |record: &&Record| things.name_of(record).is_some_and(|own| own.eq_ignore_ascii_case(name));
        let key = things.key_of(things.records.iter().find(is_it)?);
        let lists = seen.reading.lists.iter().filter(|list| !list.is_nested);
        let mut found = lists.flat_map(|list| &list.records);
        found
            .any(|record| value_of(record, &things.key) == Some(key))
            .then(|| (key.to_owned(), seen.call.clone()))
    };
    graph.seen.iter().filter_map(of).collect()
}

fn view(seen: &graph::SuccessfulCall, key: &str) -> Option<View> {
    let [arg] = seen.args.as_slice() else { return None };
    let value = arg.leaf.as_deref()?;
    let list = seen
        .reading
        .lists
        .iter()
        .find(|list| !list.is_nested && !list.is_part && !list.records.is_empty())?;
    let is_asked = |field: &&harvest::Field| words::tokens(&field.name) == words::tokens(&arg.name);
    let field = list.records.first()?.iter().find(is_asked)?.name.clone();
    let keys = list.records.iter().filter(|record| value_of(record, &field) == Some(value));
    let keys: BTreeSet<String> = keys.filter_map(|record| value_of(record, key)).map(str::to_owned).collect();
    (keys.len() == list.records.len()).then(|| View {
        call: seen.call.clone(),
        field,
        value: value.to_owned(),
        keys,
        chars: seen.text.chars().count(),
    })
}

fn noun(profile: &ToolProfile, list: &str) -> String {
    let says = !words::split(list).iter().all(|word| ENVELOPES.contains(&word.as_str()));
    profile.thing(if says { list } else { "" })
}

/// The only arguments of reading calls that worked.
fn taken<'g>(graph: &'g Graph, profiles: &[ToolProfile]) -> BTreeSet<&'g str> {
    let only = |seen: &'g graph::SuccessfulCall| match seen.args.as_slice() {
        [only] if changes::reads(&profiles[seen.tool]) => only.leaf.as_deref(),
        _ => None,
    };
    graph.seen.iter().filter_map(only).collect()
}

/// The first field that tells the records apart: an identifier by its name or because tools take it, or else a name.
fn key(list: &List, changing: &BTreeSet<String>, taken: &BTreeSet<&str>) -> Option<String> {
    let first = list.records.first()?;
    let is_key = |field: &&harvest::Field| {
        let values: Option<BTreeSet<&str>> = list
            .records
            .iter()
            .map(|record| value_of(record, &field.name).filter(|value| !value.trim().is_empty()))
            .collect();
        !field.is_set
            && !changing.contains(&field.name)
            && values.is_some_and(|values| {
                values.len() == list.records.len()
                    && values.iter().all(|value| value.chars().count() <= NAME_CHARS)
            })
    };
    let keys = || first.iter().filter(is_key);
    let named =
        |names: &'static [&'static str]| move |field: &&harvest::Field| words::has_any(&field.name, names);
    let own = keys().next().filter(|field| field.name.is_empty());
    let is_taken = |field: &&harvest::Field| {
        list.records
            .iter()
            .filter_map(|record| value_of(record, &field.name))
            .any(|value| taken.contains(value))
    };
    own.or_else(|| keys().find(named(&KEYS)))
        .or_else(|| keys().find(is_taken))
        .or_else(|| keys().find(named(&NAMES)))
        .map(|field| field.name.clone())
}

fn name(list: &List, key: &str) -> Option<String> {
    let first = list.records.first()?;
    let is_name = |field: &&harvest::Field| {
        let values: Option<BTreeSet<&str>> =
            list.records.iter().map(|record| value_of(record, &field.name)).collect();
        let says = |value: &&str| {
            value.contains(char::is_alphabetic)
                && value.chars().count() <= NAME_CHARS
                && !value.contains(['"', '\n'])
        };
        field.name != key
            && words::split(&field.name).last().is_some_and(|last| NAMES.contains(&last.as_str()))
            && values.is_some_and(|values| values.len() == list.records.len() && values.iter().all(says))
    };
    first.iter().find(is_name).map(|field| field.name.clone())
}

/// What stands in an argument.
#[derive(Debug, Clone, PartialEq)]
pub enum Fill {
    /// One of these things, by its key or by its name.
    Thing { things: usize, by_name: bool },
    /// One of these values.
    Choice(Vec<String>),
    /// A text of one's own.
    Free(Vec<String>),
}

/// A parameter of a tool that writes.
#[derive(Debug)]
pub struct Slot<'g> {
    pub param: &'g Param,
    pub fill: Fill,
    /// As a noun: `member` for `member_id`.
    pub noun: String,
}

/// A tool that writes, as it can be told to do something.
#[derive(Debug)]
pub struct Deed<'g> {
    pub tool: usize,
    pub profile: &'g ToolProfile,
    pub verb: Verb,
    pub class: &'static Class,
    pub slots: Vec<Slot<'g>>,
    /// The slot of the thing that is changed.
    pub target: Option<usize>,
    /// The slot of what is added or removed.
    pub item: Option<usize>,
}

impl Deed<'_> {
    /// The parameter of the thing that is changed.
    pub fn target_param(&self) -> Option<&str> {
        Some(self.slots[self.target?].param.name.as_str())
    }

    /// Whether an order says what is to be done.
    fn can_be_said(&self) -> bool {
        let Self { verb, class, slots, item, .. } = self;
        let required = || slots.iter().filter(|slot| slot.param.is_required);
        // `insert_rows_or_columns` does not say what is inserted.
        let says_one = !verb.object.iter().any(|word| word == "or");
        says_one
            && match class.name.as_str() {
                "add" | "remove" => item.is_some() || !verb.object.is_empty(),
                // Not what is done to nothing that is listed, `transfer_to_agent(summary)`, and nobody says what is answered with or
                // without accept: `reply(event, accept)`.
                "other" => {
                    let is_free = |slot: &Slot<'_>| matches!(slot.fill, Fill::Free(_));
                    (required().next().is_none() || !required().all(is_free))
                        && !required().any(|slot| slot.param.kind == Kind::Boolean)
                }
                _ => true,
            }
    }
}

/// What can be done. A tool that takes structures, or whose verb is not known, is none.
pub fn deeds<'g>(graph: &Graph, profiles: &'g [ToolProfile], things: &[Things]) -> Vec<Deed<'g>> {
    let writing = profiles.iter().enumerate().filter(|(_, profile)| !changes::reads(profile));
    writing.filter_map(|(tool, profile)| deed(graph, tool, profile, things)).collect()
}

/// Tools that take nothing but texts of one's own, and do something to nothing that is listed: `transfer_to_agent(summary)`. They
/// are no orders.
pub fn about_nothing(graph: &Graph, profiles: &[ToolProfile], things: &[Things]) -> BTreeSet<usize> {
    let is_one = |(tool, profile): &(usize, &ToolProfile)| {
        let required: Vec<&Param> = profile.params.iter().filter(|param| param.is_required).collect();
        let verb = PHRASES.verb(&profile.name, &profile.description).filter(|_| !changes::reads(profile));
        verb.is_some_and(|verb| {
            let is_free = |param: &Param| {
                matches!(other_fill(graph, param, (None, things), &verb), Some(Fill::Free(_)))
            };
            let is_own =
                |param: &&Param| reference(graph, *tool, profile, param, things).is_none() && is_free(param);
            PHRASES.class(&verb.stem, |_| true).is_some_and(|class| class.name == "other")
                && !required.is_empty()
                && required.iter().all(is_own)
                || required.iter().filter(|param| is_own(param)).count() > FREE
        })
    };
    profiles.iter().enumerate().filter(is_one).map(|(tool, _)| tool).collect()
}

fn deed<'g>(graph: &Graph, tool: usize, profile: &'g ToolProfile, things: &[Things]) -> Option<Deed<'g>> {
    let verb = PHRASES.verb(&profile.name, &profile.description)?;
    let is_structure = |param: &&Param| match &param.kind {
        Kind::Object(_) | Kind::Sql => true,
        Kind::Text if words::has_any(&param.name, &ENCODED) => true,
        Kind::List(item) => matches!(item.kind, Kind::Object(_) | Kind::List(_) | Kind::Path),
        _ => false,
    };
    if profile.params.iter().any(|param| param.is_required && is_structure(&param)) {
        return None;
    }
    let params = || {
        profile
            .params
            .iter()
            .filter(|param| !is_structure(param) && (param.is_required || param.kind != Kind::Boolean))
    };
    let referred: Vec<(&Param, Option<Fill>)> =
        params().map(|param| (param, reference(graph, tool, profile, param, things))).collect();
    let first = referred.iter().find_map(|(param, fill)| match fill {
        Some(Fill::Thing { things, .. }) if param.is_required => Some(*things),
        _ => None,
    });
    let of_target = first.map(|first| &things[first]);
    let slots: Vec<Slot<'_>> = referred
        .into_iter()
        .filter_map(|(param, fill)| {
            let noun = slot_noun(param, fill.as_ref(), things, &verb);
            let fill = fill.or_else(|| other_fill(graph, param, (of_target, things), &verb))?;
            Some(Slot { param, fill, noun })
        })
        .collect();
    if params().any(|param| param.is_required && !slots.iter().any(|slot| slot.param.name == param.name)) {
        return None;
    }
    // Nobody makes up an address.
    let is_free = |slot: &&Slot<'_>| slot.param.is_required && matches!(slot.fill, Fill::Free(_));
    if slots.iter().filter(is_free).count() > FREE {
        return None;
    }
    // The last noun is what is meant: `add_project_task` adds a task.
    let object: BTreeSet<String> = verb.object.last().map(|word| words::singular(word)).into_iter().collect();
    let is_thing = |slot: &Slot<'_>| matches!(slot.fill, Fill::Thing { .. }) && slot.param.is_required;
    let is_object = |slot: &Slot<'_>| words::tokens(&slot.noun).iter().any(|word| object.contains(word));
    let first_thing = slots.iter().position(is_thing);
    let own = slots.iter().position(|slot| is_thing(slot) && is_object(slot));
    // What is added to something is no thing that is changed: `add_comment(ticket_id, text)`.
    let fits = |class: &str| match class {
        "make" => own.is_none() && (first_thing.is_none() || object.is_empty() || !verb_adds(&verb)),
        "add" | "remove" => {
            first_thing.is_some() && (own.is_none() || slots.iter().filter(|slot| is_thing(slot)).count() > 1)
        }
        "set" => own.or(first_thing).is_some() && slots.len() > 1,
        _ => true,
    };
    let class = PHRASES.class(&verb.stem, fits)?;
    let (target, item) = match class.name.as_str() {
        "make" => (None, None),
        "add" | "remove" => {
            let item = own.filter(|_| slots.iter().filter(|slot| is_thing(slot)).count() > 1);
            let target =
                slots.iter().enumerate().position(|(place, slot)| is_thing(slot) && Some(place) != item);
            let named = || slots.iter().position(|slot| !is_thing(slot) && is_object(slot));
            let free =
                || slots.iter().position(|slot| matches!(slot.fill, Fill::Free(_)) && slot.param.is_required);
            let other = || {
                slots
                    .iter()
                    .enumerate()
                    .position(|(place, slot)| Some(place) != target && slot.param.is_required)
            };
            (target, item.or_else(named).or_else(free).or_else(other))
        }
        // `change_room(event_id, room)` changes the event.
        "set" => {
            let says_key = |place: &usize| words::has_any(&slots[*place].param.name, &KEYS);
            (
                own.filter(|own| says_key(own) || !first_thing.is_some_and(|first| says_key(&first)))
                    .or(first_thing),
                None,
            )
        }
        "other" => {
            // `lend_copy(card, barcode)` does nothing to the card.
            let is_sole = slots.iter().filter(|slot| slot.param.is_required).count() == 1;
            (own.or(first_thing.filter(|_| verb.object.is_empty() || is_sole)), None)
        }
        _ => (own.or(first_thing), None),
    };
    let deed = Deed { tool, profile, verb, class, slots, target, item };
    deed.can_be_said().then_some(deed)
}

/// Whether a verb rather adds to a thing than makes one.
fn verb_adds(verb: &Verb) -> bool {
    ["add", "insert", "log", "post"].contains(&verb.stem.as_str())
}

/// The things that a parameter names.
fn reference(
    graph: &Graph,
    tool: usize,
    profile: &ToolProfile,
    param: &Param,
    things: &[Things],
) -> Option<Fill> {
    if param.is_closed || matches!(param.kind, Kind::Boolean | Kind::Number) {
        return None;
    }
    let is_key = |word: &String| KEYS.contains(&word.as_str());
    let says_key = param.words.iter().any(is_key);
    let mut own: BTreeSet<String> = param
        .words
        .iter()
        .filter(|word| !is_key(word) && !QUALIFIERS.contains(&word.as_str()))
        .cloned()
        .collect();
    if own.is_empty() {
        own = profile.nouns.iter().map(|noun| words::singular(noun)).collect();
    }
    let taken_by = |is_it: &dyn Fn(usize) -> bool| -> BTreeSet<&str> {
        let seen = graph.seen.iter().filter(|seen| is_it(seen.tool));
        let args = seen.flat_map(|seen| seen.args.iter().filter(|arg| arg.name == param.name));
        args.filter_map(|arg| arg.leaf.as_deref()).collect()
    };
    // What a tool takes that never worked is what others take under this name.
    let mut worked = taken_by(&|other| other == tool);
    if worked.is_empty() {
        worked = taken_by(&|_| true);
    }
    let is_free = PHRASES.role(&param.name).is_some_and(Role::is_free) && !says_key;
    let mut best: Option<((usize, bool, bool), Fill)> = None;
    for (place, things) in things.iter().enumerate() {
        let count = |field: &str| {
            things
                .records
                .iter()
                .filter_map(|record| value_of(record, field))
                .filter(|value| worked.contains(value))
                .count()
        };
        let is_key = words::split(&param.name) == words::split(&things.key);
        let says_key = says_key || is_key;
        let is_named = is_key || words::tokens(&things.noun).iter().any(|word| own.contains(word));
        let (by_key, by_name) = (count(&things.key), things.name.as_deref().map_or(0, count));
        let is_integer = param.kind == Kind::Integer;
        let fits =
            things.records.iter().all(|record| !is_integer || things.key_of(record).parse::<i64>().is_ok());
        let score = by_key.max(by_name) + if is_named { 100 } else { 0 };
        // A number that happens to work is no key.
        let is_proof = is_named && (says_key || score > 100 || worked.is_empty())
            // Names work wherever any text does.
            || !is_integer && !is_free && by_key > 0 && score < 100;
        // Of two lists, the one that is called so, and the one with names.
        let is_exact = words::tokens(&things.noun).len() == 1;
        let rank = (score, things.name.is_some(), is_exact);
        if fits && is_proof && (!is_free || is_named) && best.as_ref().is_none_or(|(other, _)| rank > *other)
        {
            let by_name = by_name > by_key || (!says_key && worked.is_empty() && things.name.is_some());
            best = Some((rank, Fill::Thing { things: place, by_name }));
        }
    }
    // The name of a new thing is no thing, and that of another thing than the tool's own is one.
    let is_new = |fill: &Fill| {
        let Fill::Thing { things: place, .. } = fill else { return true };
        let noun = words::tokens(&things[*place].noun);
        let is_of_tool = profile.nouns.iter().any(|own| noun.contains(&words::singular(own)));
        is_of_tool || !own.iter().any(|word| noun.contains(word))
    };
    let is_name = is_free && PHRASES.role(&param.name).is_some_and(|role| role.is_name);
    best.map(|(_, fill)| fill).filter(|fill| !(is_name && is_new(fill)))
}

/// Values for a parameter that names no thing of a list.
fn other_fill(
    graph: &Graph,
    param: &Param,
    (target, things): (Option<&Things>, &[Things]),
    verb: &Verb,
) -> Option<Fill> {
    let plain_of = |values: &[Value]| values.iter().map(plain).collect::<Vec<String>>();
    if param.is_closed {
        return Some(Fill::Choice(plain_of(&param.seeds)));
    }
    if !param.examples.is_empty() {
        return Some(Fill::Choice(plain_of(&param.examples)));
    }
    let is_free = PHRASES.role(&param.name).is_some_and(|role| role.is_name || role.is_in_front);
    let named = graph.values_named(&param.name);
    if param.kind == Kind::Text && !is_free && words::is_identifier(&param.name) && !named.is_empty() {
        return Some(Fill::Choice(named));
    }
    let own: BTreeSet<&String> =
        param.words.iter().filter(|word| !QUALIFIERS.contains(&word.as_str())).collect();
    let records = target.map(|target| target.records.as_slice()).unwrap_or_default();
    let place = PHRASES.place_of(&param.name);
    let fields = records.first().into_iter().flatten().filter(|field| !field.is_set);
    let like = fields.clone().find(|field| {
        let tokens = words::tokens(&field.name);
        !own.is_empty() && own.iter().all(|word| tokens.contains(*word))
    });
    let like = like.or_else(|| {
        let is_alike = |field: &&harvest::Field| PHRASES.place_of(&field.name) == place;
        fields.clone().find(is_alike).filter(|_| matches!(place, FieldPlace::Of | FieldPlace::Within))
    });
    let values: Vec<String> = like.map_or_else(Vec::new, |field| {
        let values = records.iter().filter_map(|record| value_of(record, &field.name));
        let values = values.filter(|value| {
            !value.trim().is_empty() && !["None", "null"].contains(value) && value.len() <= NAME_CHARS
        });
        values.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
    });
    let is_category = values.len() > 1 && (values.len() < records.len() || place != FieldPlace::With);
    let item = match &param.kind {
        Kind::List(item) => &item.kind,
        kind => kind,
    };
    match item {
        Kind::Integer | Kind::Number => {
            let numbers = values.iter().filter(|value| value.parse::<f64>().is_ok()).cloned();
            let mut numbers: Vec<String> = numbers.collect();
            if numbers.len() < 3 {
                numbers = plain_of(&param.seeds).into_iter().filter(|text| text.len() < 4).take(6).collect();
            }
            (!numbers.is_empty()).then_some(Fill::Choice(numbers))
        }
        Kind::Text if is_category => Some(Fill::Choice(values)),
        // Times like those that the server has.
        Kind::Text if param.seeds.iter().any(|seed| is_moment(&plain(seed))) => {
            let known: Vec<String> = named.into_iter().filter(|text| is_moment(text)).collect();
            Some(Fill::Choice(if known.is_empty() { PHRASES.pool(param, "").to_vec() } else { known }))
        }
        Kind::Text if !param.seeds.is_empty() => Some(Fill::Choice(plain_of(&param.seeds))),
        Kind::Text if words::split(&param.name).last().is_some_and(|last| KEYS.contains(&last.as_str())) => {
            // What it takes is not listed; what worked is a value.
            let worked = graph.seen.iter().flat_map(|seen| &seen.args).filter(|arg| arg.name == param.name);
            let worked: BTreeSet<String> = worked.filter_map(|arg| arg.leaf.clone()).collect();
            (!worked.is_empty()).then(|| Fill::Choice(worked.into_iter().collect()))
        }
        Kind::Text => {
            let thing = target.map_or_else(|| verb.object.join(" "), |target| target.noun.clone());
            let object = verb.object.last().map(String::as_str).unwrap_or_default();
            // The title of a ticket for a customer is that of a ticket.
            let is_named = PHRASES.role(&param.name).is_some_and(|role| role.is_name) && !object.is_empty();
            let thing = if is_named { object } else { thing.as_str() };
            let is_it = |other: &&Things| contents::last(&other.noun) == contents::last(thing);
            let same = things.iter().filter(is_it).chain(target.filter(is_it));
            let titles: Vec<&str> =
                same.flat_map(|of| of.records.iter().filter_map(|record| of.title_of(record))).collect();
            let own = contents::of(graph, param, [object, thing], &titles);
            match own.is_empty() {
                // Nobody knows what stands there.
                true if !param.is_required && PHRASES.role(&param.name).is_none() => None,
                true => Some(Fill::Free(PHRASES.pool(param, thing).to_vec())),
                false => Some(Fill::Free(own)),
            }
        }
        _ => None,
    }
}

fn slot_noun(param: &Param, fill: Option<&Fill>, things: &[Things], verb: &Verb) -> String {
    let own: Vec<String> = words::split(&param.name)
        .into_iter()
        .filter(|word| {
            !KEYS.contains(&word.as_str()) && !QUALIFIERS.contains(&word.as_str()) && word != "name"
        })
        .collect();
    match fill {
        Some(Fill::Thing { things: place, .. }) if own.is_empty() => match things[*place].noun.as_str() {
            "entry" if !verb.object.is_empty() => words::singular(&verb.object.join(" ")),
            noun => noun.to_owned(),
        },
        _ if own.is_empty() => words::spoken(&param.name),
        _ => words::singular(&own.join(" ")),
    }
}

/// A value in the form that a parameter takes.
pub fn typed(param: &Param, text: &str) -> Option<Value> {
    match &param.kind {
        Kind::Integer => text.parse::<i64>().ok().map(Value::from),
        Kind::Number => {
            text.parse::<f64>().ok().filter(|number| number.is_finite()).map(crate::explored::seeds::number)
        }
        Kind::Boolean => text.parse::<bool>().ok().map(Value::from),
        Kind::List(item) => Some(Value::from(vec![typed(item, text)?])),
        Kind::Text | Kind::Path | Kind::Sql => Some(text.into()),
        Kind::Object(_) => None,
    }
}

/// A call with these arguments.
pub fn call(profile: &ToolProfile, arguments: impl IntoIterator<Item = (String, Value)>) -> ToolCall {
    ToolCall { name: profile.name.clone(), arguments: arguments.into_iter().collect() }
}

/// A seeded choice of one of several.
pub fn pick<'v, T>(seed: u64, name: &str, text: &str, values: &'v [T]) -> Option<&'v T> {
    values.get(graph::place(seed, name, text, values.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::explored::things::tests::{add, profile};

    #[test]
    fn things_that_are_listed_day_by_day_are_things() {
        let text = |name: &str| json!({"required": [name], "properties": {name: {"type": "string"}}});
        let profiles = [
            profile("day", "Events of a day.", &text("date")),
            profile("event_details", "One event.", &text("event_id")),
            profile("find_events", "Search in titles.", &text("query")),
        ];
        let mut graph = Graph::default();
        for (date, ids) in [("2027-03-10", ["ev1", "ev2"]), ("2027-03-11", ["ev3", "ev4"])] {
            let events = ids.map(|id| json!({"id": id, "title": format!("Talk {id}")}));
            add(&mut graph, &profiles, 0, &json!({"date": date}), &json!({"events": events}));
        }
        add(&mut graph, &profiles, 1, &json!({"event_id": "ev1"}), &json!({"room": "Fjord", "seats": 6}));
        add(&mut graph, &profiles, 2, &json!({"query": "ev1"}), &json!({"events": []}));
        let things = things(&graph, &profiles);
        let [events] = &things[..] else { panic!("{things:#?}") };
        assert_eq!((events.noun.as_str(), events.records.len(), events.is_whole), ("event", 4, false));
        assert_eq!(events.getters, [(1, "event_id".to_owned())]);
    }
}
