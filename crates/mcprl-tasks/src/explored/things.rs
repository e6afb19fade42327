//! Things: what the tools of a server list, find or get by an identifier.
//!
//! A thing is seen across tools: `T107` in a search result, a ticket and a list of comments is one ticket. Its fields have the
//! role that their values show. What says nothing about a thing (echoes of arguments, logs of calls, keys of sessions) has none
//! and is never asked.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    changes,
    graph::{self, Arg, Graph, SuccessfulCall},
    pages,
    seeds::is_query,
    sql, templates,
    tools::ToolProfile,
};
use crate::{
    answer_rule::{is_moment, value_of},
    harvest::{Field, List, Record},
    senses::is_person,
    words,
};

/// Words of what tells things apart.
const KEYS: [&str; 11] =
    ["id", "no", "nr", "num", "number", "code", "key", "uuid", "slug", "sku", "identifier"];
/// Fields by which people call things, the best first.
const NAMES: [&str; 4] = ["title", "name", "subject", "headline"];
/// Names of lists that say nothing about what is in them.
const GENERIC: [&str; 16] = [
    "result", "item", "data", "row", "record", "entry", "match", "hit", "content", "list", "output", "value",
    "page", "response", "object", "element",
];
/// Words of a tool's name that say how it shows something.
const FORMS: [&str; 20] = [
    "detail",
    "details",
    "info",
    "information",
    "stats",
    "statistics",
    "stat",
    "summary",
    "overview",
    "report",
    "list",
    "record",
    "profile",
    "data",
    "by",
    "all",
    "entry",
    "full",
    "count",
    "result",
];
/// What is a thing's own, and no other thing.
const OF_THINGS: [&str; 12] = [
    "inventory",
    "stock",
    "availability",
    "price",
    "pricing",
    "status",
    "state",
    "level",
    "rating",
    "score",
    "quantity",
    "position",
];
/// Tools with these words are about the server itself, unless they take something.
const OF_SERVER: [&str; 18] = [
    "server",
    "health",
    "healthcheck",
    "version",
    "ping",
    "uptime",
    "heartbeat",
    "capability",
    "schema",
    "help",
    "diagnostic",
    "namespace",
    "session",
    "tool",
    "about",
    "config",
    "configuration",
    "debug",
];
/// Words of what belongs to a session and to no thing.
const OF_SESSIONS: [&str; 8] =
    ["session", "namespace", "state", "cursor", "token", "trace", "tenant", "correlation"];
/// Words of logs of calls.
const OF_CALLS: [&str; 12] = [
    "elapsed",
    "latency",
    "took",
    "arg",
    "argument",
    "etag",
    "cached",
    "cache",
    "trace",
    "cursor",
    "session",
    "namespace",
];
/// The same as whole names.
const LOGGED: [&str; 13] = [
    "total characters",
    "request id",
    "state key",
    "duration ms",
    "num args",
    "arguments",
    "ok",
    "success",
    "error",
    "message",
    "has more",
    "next page",
    "schema version",
];
/// Longest value that is asked for, and longest name.
const VALUE: usize = 80;
const NAME: usize = 60;
/// Most values of a state.
const STATES: usize = 8;

/// What the values of a field show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Which one the thing is.
    Id,
    /// The identifier of another thing.
    Reference,
    Name,
    Moment,
    Amount,
    Person,
    State,
    Set,
    Text,
}

/// What an argument does.
#[derive(Debug, Clone, PartialEq)]
pub enum ArgumentRole {
    /// It names a thing that is called so.
    Key { noun: String },
    /// It names the file that has the thing of another argument.
    File,
    /// It is the only one that there is, so nobody says it: this call lists it.
    Sole { listed: usize },
    /// All records have it in this field.
    Filter { field: String },
    /// All records have this field, and it contains what the argument says.
    Search { field: String },
}

impl ArgumentRole {
    /// Whether it leaves things out.
    pub fn narrows(&self) -> bool {
        matches!(self, Self::Filter { .. } | Self::Search { .. })
    }
}

/// What a call is about.
#[derive(Debug, PartialEq)]
pub enum Matter {
    /// Things, and what each argument does.
    Things(Vec<ArgumentRole>),
    /// Nothing that anybody asks.
    Nothing,
    /// Something else than things.
    Other,
}

/// A record that tells what a thing is called.
#[derive(Debug, Clone)]
pub struct KnownThing {
    pub noun: String,
    pub id: (String, String),
    pub name: (String, String),
    /// The call that shows it, and the list there.
    pub call: usize,
    pub list: String,
    /// The field and the value by which the call finds it among others.
    pub among: Option<(String, String)>,
}

type CallField = (usize, String, String);

#[derive(Debug)]
pub struct Things<'g> {
    graph: &'g Graph,
    profiles: &'g [ToolProfile],
    /// What parameters call the things that these values name.
    taken: BTreeMap<String, String>,
    /// By identifier.
    known: BTreeMap<String, Vec<KnownThing>>,
    /// How many identifiers things of one name have.
    names: BTreeMap<(String, String), BTreeSet<String>>,
    roles: BTreeMap<CallField, Role>,
}

impl<'g> Things<'g> {
    pub fn new(graph: &'g Graph, profiles: &'g [ToolProfile]) -> Self {
        let mut things = Self {
            graph,
            profiles,
            taken: taken(graph),
            known: BTreeMap::new(),
            names: BTreeMap::new(),
            roles: BTreeMap::new(),
        };
        things.add_roles();
        things.add_known();
        things
    }

    /// Whether the results of a call are facts that others may build on.
    fn is_sound(&self, index: usize) -> bool {
        let seen = &self.graph.seen[index];
        !sql::is_sql(self.graph, self.profiles, index)
            && !changes::writes(self.graph, self.profiles, index)
            && !self.graph.is_random(seen.tool)
            && !self.is_of_server(seen.tool)
    }

    /// Whether a tool tells about the server and not about what it has.
    pub fn is_of_server(&self, tool: usize) -> bool {
        let profile = &self.profiles[tool];
        let is_of_sessions = words::split(&profile.name).windows(2).any(|two| two == ["state", "keys"]);
        let says = profile.nouns.iter().any(|noun| OF_SERVER.contains(&words::singular(noun).as_str()));
        is_of_sessions || says && profile.params.iter().all(|param| !param.is_required)
    }

    fn add_roles(&mut self) {
        let mut places: BTreeMap<CallField, Vec<(usize, &Field)>> = BTreeMap::new();
        for (index, seen) in self.graph.seen.iter().enumerate() {
            for list in &seen.reading.lists {
                for field in list.records.iter().flatten() {
                    let place = (seen.tool, list.name.clone(), field.name.clone());
                    places.entry(place).or_default().push((index, field));
                }
            }
        }
        let roles = places.into_iter().filter_map(|(place, fields)| {
            let role = self.role_of(&place, &fields)?;
            Some((place, role))
        });
        self.roles = roles.collect();
    }

    fn role_of(&self, (tool, list, name): &CallField, fields: &[(usize, &Field)]) -> Option<Role> {
        let said = words::spoken(name);
        let head = words::split(name).pop().unwrap_or_default();
        let is_odd = words::is_preposition(&said) || words::NO_NOUNS.contains(&head.as_str());
        let is_logged =
            is_odd || said == "value" || words::has_any(name, &OF_CALLS) || LOGGED.contains(&said.as_str());
        if is_logged || name.is_empty() || self.graph.changing(*tool).contains(name) {
            return None;
        }
        let noun = self.noun(*tool, list);
        let is_key = |word: &String| KEYS.contains(&word.as_str());
        let (tokens, own) = (words::tokens(name), words::tokens(&noun));
        let filled: Vec<&str> =
            fields.iter().map(|(_, field)| field.value.as_str()).filter(|value| !is_empty(value)).collect();
        if filled.is_empty() {
            return None;
        }
        if tokens.iter().any(is_key) && tokens.iter().all(|word| is_key(word) || own.contains(word)) {
            return Some(Role::Id);
        }
        // What every call is given is no news.
        let is_echo = |(index, field): &(usize, &Field)| {
            self.graph.seen[*index].args.iter().any(|arg| arg.leaf.as_ref() == Some(&field.value))
        };
        if fields.iter().all(is_echo) || filled.iter().all(|value| ["true", "false"].contains(value)) {
            return None;
        }
        if fields.iter().all(|(_, field)| field.is_set) {
            return Some(Role::Set);
        }
        if filled.iter().all(|value| is_moment(value)) {
            return Some(Role::Moment);
        }
        // Nobody adds up telephone numbers.
        let is_number = |value: &&str| {
            let is_padded = value.len() > 1 && value.starts_with('0') && !value.contains('.');
            value.parse::<f64>().is_ok() && !is_padded
        };
        let are_numbers = filled.iter().all(is_number);
        let is_reference =
            filled.iter().all(|value| words::is_code(value) || self.taken.contains_key(*value))
                && (tokens.iter().any(is_key)
                    || !are_numbers && filled.iter().all(|value| self.taken.contains_key(*value)));
        if is_reference {
            return Some(Role::Reference);
        }
        let is_text = fields.iter().any(|(_, field)| field.is_text) && !words::is_amount(name);
        if are_numbers && !is_text && !words::is_identifier(name) {
            return Some(Role::Amount);
        }
        let are_codes = || filled.iter().all(|value| words::is_code(value));
        let is_person = is_person(&templates::word(name)) && head != "email" || templates::asks_who(name);
        if is_person && are_codes() {
            return Some(Role::Reference);
        }
        if is_person && head != "email" {
            return Some(Role::Person);
        }
        if NAMES.contains(&head.as_str()) && tokens.iter().all(|word| *word == head || own.contains(word))
            || said == noun
        {
            return Some(Role::Name);
        }
        let distinct: BTreeSet<&str> = filled.iter().copied().collect();
        let is_state = |value: &&str| value.split_whitespace().count() <= 2 && value.len() <= 24;
        let repeats = distinct.len() <= STATES && 2 * filled.len() >= 3 * distinct.len();
        if repeats && !are_numbers && distinct.iter().all(is_state) && !words::is_identifier(name) {
            return Some(Role::State);
        }
        Some(Role::Text)
    }

    pub fn role(&self, tool: usize, list: &str, field: &str) -> Option<Role> {
        self.roles.get(&(tool, list.to_owned(), field.to_owned())).copied()
    }

    /// What one record of a list is called.
    pub fn noun(&self, tool: usize, list: &str) -> String {
        let profile = &self.profiles[tool];
        let is_generic = |name: &str| words::tokens(name).iter().all(|word| GENERIC.contains(&word.as_str()));
        if !list.is_empty() && !is_generic(list) {
            return profile.thing(list);
        }
        let lists =
            self.graph.seen.iter().filter(|seen| seen.tool == tool).flat_map(|seen| &seen.reading.lists);
        let records = lists.filter(|one| one.name == list && !one.is_nested).flat_map(|one| &one.records);
        let mut nouns: BTreeMap<&String, usize> = BTreeMap::new();
        for field in records.flatten().filter(|field| KEYS.contains(&words::spoken(&field.name).as_str())) {
            *nouns.entry(self.taken.get(&field.value).unwrap_or(&field.name)).or_default() += 1;
        }
        // What one of them is called, all are.
        nouns.retain(|noun, _| !KEYS.contains(&words::spoken(noun).as_str()));
        let taken = nouns.into_iter().max_by_key(|(_, count)| *count).map(|(noun, _)| noun.clone());
        match profile.thing("") {
            // What is low on stock is an item.
            thing if is_of_thing(&thing) => self.owner_of(tool, list).unwrap_or(thing),
            thing if thing != "entry" && !FORMS.contains(&thing.as_str()) => thing,
            // The items of a cart are no carts.
            _ if taken.is_none() && !list.is_empty() && !words::is_plural(&self.own_name(tool)) => {
                "entry".into()
            }
            _ => match taken.unwrap_or_else(|| self.own_noun(tool)) {
                noun if is_of_thing(&noun) && list.is_empty() => self.owner_of(tool, list).unwrap_or(noun),
                noun => noun,
            },
        }
    }

    /// What the things of a list are called elsewhere.
    fn owner_of(&self, tool: usize, list: &str) -> Option<String> {
        let lists =
            self.graph.seen.iter().filter(|seen| seen.tool == tool).flat_map(|seen| &seen.reading.lists);
        let first = lists.filter(|one| one.name == list).find_map(|one| one.records.first());
        let mut keys = first.into_iter().flatten().filter(|field| words::has_any(&field.name, &KEYS));
        keys.find_map(|field| self.listed_as(&field.value))
    }

    /// What the things of a list have in common, if the tool's name says it: `low stock`.
    pub fn quality(&self, tool: usize, list: &str) -> Option<String> {
        let is_generic = words::tokens(list).iter().all(|word| GENERIC.contains(&word.as_str()));
        let thing = match self.profiles[tool].thing("").as_str() {
            "entry" => self.own_noun(tool),
            thing => thing.to_owned(),
        };
        (is_generic && is_of_thing(&thing) && thing.contains(' ') && self.owner_of(tool, list).is_some())
            .then_some(thing)
    }

    /// What a list of things that an identifier is in calls them.
    fn listed_as(&self, id: &str) -> Option<String> {
        let of = |seen: &SuccessfulCall| {
            let is_it = |field: &Field| field.value == id && words::has_any(&field.name, &KEYS);
            let has = |list: &&List| {
                (list.is_list || list.is_part) && !list.is_nested && list.records.iter().flatten().any(is_it)
            };
            let list = seen.reading.lists.iter().find(has)?;
            let is_generic = words::tokens(&list.name).iter().all(|word| GENERIC.contains(&word.as_str()));
            let noun = match self.profiles[seen.tool].thing(if is_generic { "" } else { &list.name }).as_str()
            {
                "entry" => self.own_noun(seen.tool),
                noun => noun.to_owned(),
            };
            (noun != "entry" && !is_of_thing(&noun) && !FORMS.contains(&noun.as_str())).then_some(noun)
        };
        self.graph.seen.iter().find_map(of)
    }

    /// The last noun of a tool's name, as written.
    fn own_name(&self, tool: usize) -> String {
        let nouns = self.profiles[tool].nouns.iter().filter(|noun| !FORMS.contains(&noun.as_str()));
        nouns.take_while(|noun| !words::is_preposition(noun)).last().cloned().unwrap_or_default()
    }

    /// What a tool's name says that it is about: `ticket` of `get_ticket_details`.
    pub fn own_noun(&self, tool: usize) -> String {
        let is_link = |noun: &&String| !words::is_preposition(noun);
        let nouns = self.profiles[tool].nouns.iter().take_while(is_link);
        let mut nouns: Vec<&String> = nouns.filter(|noun| !FORMS.contains(&noun.as_str())).collect();
        let Some(last) = nouns.pop() else { return "entry".to_owned() };
        let start: String = nouns.into_iter().map(|noun| format!("{noun} ")).collect();
        format!("{start}{}", words::singular(last))
    }

    /// The field by which a list's records are called.
    pub fn name_field(&self, tool: usize, list: &List) -> Option<String> {
        let fields: Vec<&String> = list.records.first()?.iter().map(|field| &field.name).collect();
        let of = |role: Role| {
            fields.iter().copied().filter(move |field| self.role(tool, &list.name, field) == Some(role))
        };
        let best = |field: &&String| {
            NAMES.iter().position(|name| words::tokens(field).contains(*name)).unwrap_or(NAMES.len())
        };
        let distinct = |field: &&String| {
            let values: Vec<&str> =
                list.records.iter().filter_map(|record| value_of(record, field)).collect();
            let once: BTreeSet<String> = values.iter().map(|value| value.to_lowercase()).collect();
            once.len() == list.records.len()
                && values.iter().all(|value| value.len() <= NAME && !is_empty(value))
        };
        let said =
            |field: &&String| words::split(field).pop().is_some_and(|last| NAMES.contains(&last.as_str()));
        of(Role::Name)
            .filter(distinct)
            .min_by_key(best)
            .or_else(|| of(Role::Text).filter(distinct).find(said))
            .cloned()
    }

    /// The field that says which one a record is.
    pub fn id_field(&self, tool: usize, list: &str, record: &Record) -> Option<String> {
        let mut ids = record.iter().filter(|field| self.role(tool, list, &field.name) == Some(Role::Id));
        ids.next().map(|field| field.name.clone())
    }

    fn add_known(&mut self) {
        let mut all = Vec::new();
        for (index, seen) in self.graph.seen.iter().enumerate().filter(|(index, _)| self.is_sound(*index)) {
            let is_paged = pages::is_paged(seen, &self.profiles[seen.tool]);
            for list in
                seen.reading.lists.iter().filter(|list| !list.is_nested && (list.is_list || list.is_part))
            {
                let noun = self.noun(seen.tool, &list.name);
                let Some(name) = self.name_field(seen.tool, list) else { continue };
                for record in &list.records {
                    let Some(id) = self.id_field(seen.tool, &list.name, record) else { continue };
                    let (Some(id_value), Some(called)) = (value_of(record, &id), value_of(record, &name))
                    else {
                        continue;
                    };
                    // By a list of all of them, or by a search for the name.
                    let is_found = |arg: &Arg| is_search(arg) && arg.leaf.as_deref() == Some(called);
                    let among = match &*seen.args {
                        [only] if !is_search(only) => match self.part(seen, only, false) {
                            Some(ArgumentRole::Filter { field }) => {
                                only.leaf.clone().map(|leaf| (field, leaf))
                            }
                            _ => None,
                        },
                        _ => None,
                    };
                    let has_pages =
                        self.profiles[seen.tool].params.iter().any(|one| one.is_limit() || one.is_page());
                    let is_plain = (seen.args.is_empty() || among.is_some()) && !(list.is_part && has_pages)
                        || matches!(&*seen.args, [only] if is_found(only));
                    let known = KnownThing {
                        noun: noun.clone(),
                        id: (id, id_value.to_owned()),
                        name: (name.clone(), called.to_owned()),
                        call: index,
                        list: list.name.clone(),
                        among,
                    };
                    all.push((is_plain && !is_paged, known));
                }
            }
        }
        for (is_plain, known) in all {
            let name = (known.noun.clone(), known.name.1.to_lowercase());
            self.names.entry(name).or_default().insert(known.id.1.clone());
            if is_plain && words::split(&known.name.1).len() <= 10 {
                self.known.entry(known.id.1.clone()).or_default().push(known);
            }
        }
    }

    /// Ways to find what an identifier means by its name, which nothing else of its kind has.
    pub fn called(&self, noun: &str, id: &str) -> Vec<&KnownThing> {
        let of_noun = |known: &&KnownThing| {
            let name = (known.noun.clone(), known.name.1.to_lowercase());
            is_alike(&known.noun, noun) && self.names.get(&name).is_some_and(|ids| ids.len() == 1)
        };
        self.known.get(id).into_iter().flatten().filter(of_noun).collect()
    }

    /// The same, whatever it is.
    pub fn called_anything(&self, id: &str) -> Option<&KnownThing> {
        let known = self.known.get(id)?;
        known.iter().find(|one| self.called(&one.noun, id).iter().any(|other| other.call == one.call))
    }

    /// Whether one thing alone has this name, as far as anybody saw.
    pub fn is_sole(&self, noun: &str, name: &str) -> bool {
        self.names.get(&(noun.to_owned(), name.to_lowercase())).is_none_or(|ids| ids.len() == 1)
    }

    /// What a call is about, and what its arguments do.
    pub fn matter(&self, index: usize) -> Matter {
        let seen = &self.graph.seen[index];
        let profile = &self.profiles[seen.tool];
        let is_placed = |arg: &Arg| {
            arg.leaf.as_deref().is_some_and(graph::is_path) && self.takes_names(seen.tool, &arg.name)
        };
        if self.is_of_server(seen.tool) || seen.args.iter().any(is_placed) {
            return Matter::Nothing;
        }
        let is_required =
            |arg: &Arg| profile.params.iter().any(|param| param.name == arg.name && param.is_required);
        // How a result is shown is not asked for.
        let is_form = |arg: &Arg| {
            profile.params.iter().any(|param| param.name == arg.name && param.is_closed && !param.is_required)
        };
        let lists = || seen.reading.lists.iter().filter(|list| !list.is_nested);
        let has_records = lists()
            .flat_map(|list| &list.records)
            .any(|record| record.iter().filter(|one| !one.name.is_empty()).count() > 1);
        if !has_records {
            let is_nothing = seen.args.iter().any(|arg| is_of_session(arg) || is_form(arg));
            return if is_nothing { Matter::Nothing } else { Matter::Other };
        }
        if seen.args.iter().any(|arg| !is_required(arg) && self.part(seen, arg, false).is_none()) {
            return Matter::Nothing;
        }
        let mut parts = Vec::new();
        for arg in &seen.args {
            match self.part(seen, arg, is_required(arg)) {
                _ if is_of_session(arg) => return Matter::Nothing,
                Some(part) => parts.push(part),
                // A search that finds something else than a word.
                None if is_search(arg) => return Matter::Nothing,
                // Something in a file that nobody has a word for.
                None if parts.contains(&ArgumentRole::File) => return Matter::Nothing,
                None => return Matter::Other,
            }
        }
        // A file in which nothing else is named is the thing.
        if !parts.iter().any(|part| matches!(part, ArgumentRole::Key { .. })) {
            let noun = match self.own_noun(seen.tool) {
                own if own == "entry" || words::is_plural(&own) => "file".to_owned(),
                own => own,
            };
            let files = parts.iter_mut().filter(|part| **part == ArgumentRole::File);
            files.for_each(|part| *part = ArgumentRole::Key { noun: noun.clone() });
        }
        // One thing by its key, or several things.
        let is_many = lists().any(|list| list.is_list || list.is_part);
        let keys = parts.iter().filter(|part| matches!(part, ArgumentRole::Key { .. })).count();
        match (is_many, keys) {
            (_, 2..) => Matter::Other,
            (false, 0) if !parts.is_empty() => Matter::Nothing,
            (false, 0) if !self.is_summary(seen) => Matter::Other,
            _ => Matter::Things(parts),
        }
    }

    /// Whether a tool takes a file by a name, as the server says it, and not by its place on the disk alone.
    fn takes_names(&self, tool: usize, param: &str) -> bool {
        let args = self.graph.seen.iter().filter(|seen| seen.tool == tool).flat_map(|seen| &seen.args);
        let mut leaves = args.filter(|arg| arg.name == param).filter_map(|arg| arg.leaf.as_deref());
        leaves.any(|leaf| words::is_spaced_file(leaf) && !graph::is_path(leaf))
    }

    /// Whether a result counts things by the values of their fields.
    fn is_summary(&self, seen: &SuccessfulCall) -> bool {
        let fields = || seen.reading.lists.iter().flat_map(|list| &list.records).flatten();
        fields().any(|field| tallied(&field.name).is_some())
    }

    fn part(&self, seen: &SuccessfulCall, arg: &Arg, is_required: bool) -> Option<ArgumentRole> {
        let leaf = arg.leaf.as_deref()?;
        let is_path = |one: &super::seeds::Param| one.name == arg.name && one.is_path();
        if self.profiles[seen.tool].params.iter().any(is_path) {
            return (is_required && words::is_spaced_file(leaf)).then_some(ArgumentRole::File);
        }
        if words::preposition_of(&arg.name).is_some_and(|preposition| preposition != "on") {
            return None;
        }
        if let Some(listed) = self.sole(arg, leaf).filter(|_| is_required) {
            return Some(ArgumentRole::Sole { listed });
        }
        let key = self.key(seen, arg, leaf);
        if is_required && key.is_some() {
            return key;
        }
        let list = self.main(seen)?;
        let all_have = |field: &str, fits: &dyn Fn(&str) -> bool| {
            !list.records.is_empty()
                && list.records.iter().all(|record| value_of(record, field).is_some_and(fits))
        };
        let fields: Vec<&str> = list.records.first()?.iter().map(|field| field.name.as_str()).collect();
        if is_search(arg) {
            let named = self.name_field(seen.tool, list)?;
            let query = leaf.to_lowercase();
            // Nobody searches for a part of a word.
            let has_word = |value: &str| contains_words(&value.to_lowercase(), &query);
            return (all_have(&named, &has_word) && query.trim().len() > 2)
                .then_some(ArgumentRole::Search { field: named });
        }
        let without_keys = |name: &str| -> BTreeSet<String> {
            words::tokens(name).into_iter().filter(|word| !KEYS.contains(&word.as_str())).collect()
        };
        let own = without_keys(&arg.name);
        let field = fields.into_iter().find(|field| !own.is_empty() && without_keys(field) == own)?;
        let is_set = list.records.iter().flatten().any(|one| one.name == field && one.is_set);
        let is_it = all_have(field, &|value: &str| {
            value.eq_ignore_ascii_case(leaf)
                || is_set && value.split(", ").any(|item| item.eq_ignore_ascii_case(leaf))
        });
        (is_it && self.filters(seen, arg, list)).then(|| ArgumentRole::Filter { field: field.to_owned() })
    }

    /// The call that lists the value of an argument as the only one, if no call took another one.
    fn sole(&self, arg: &Arg, leaf: &str) -> Option<usize> {
        let args = self.graph.seen.iter().flat_map(|seen| &seen.args).filter(|other| other.name == arg.name);
        if args.into_iter().any(|other| other.leaf.as_deref() != Some(leaf)) {
            return None;
        }
        let is_sole = |list: &List| {
            let value = |record: &Record| matches!(&**record, [only] if only.value == leaf);
            list.is_list && !list.is_nested && list.records.len() == 1 && list.records.iter().all(value)
        };
        let lists = |seen: &SuccessfulCall| seen.args.is_empty() && seen.reading.lists.iter().any(is_sole);
        self.graph.seen.iter().position(lists)
    }

    /// Whether an argument leaves something out: no call without it, or with another value of it, shows the same.
    fn filters(&self, seen: &SuccessfulCall, arg: &Arg, list: &List) -> bool {
        let others = self.graph.seen.iter().filter(|other| other.tool == seen.tool);
        let differs = |other: &SuccessfulCall| {
            let is_other = other.call.arguments.get(&arg.name) != seen.call.arguments.get(&arg.name);
            let same =
                other.reading.lists.iter().any(|one| one.name == list.name && one.records == list.records);
            is_other && !same
        };
        others.into_iter().any(differs)
    }

    /// The thing that an argument names.
    fn key(&self, seen: &SuccessfulCall, arg: &Arg, leaf: &str) -> Option<ArgumentRole> {
        let mut said = words::split(&arg.name);
        let has_key = said.last().is_some_and(|last| KEYS.contains(&last.as_str()));
        if has_key || said.len() > 1 && said.last().is_some_and(|last| last == "name") {
            said.pop();
        }
        let own = || {
            let noun = self.own_noun(seen.tool);
            let noun = if is_of_thing(&noun) { self.listed_as(leaf).unwrap_or(noun) } else { noun };
            (noun != "entry").then_some(noun)
        };
        let noun = if said.is_empty() { own()? } else { said.join(" ") };
        let is_name =
            || self.names.keys().any(|(thing, name)| is_alike(thing, &noun) && *name == leaf.to_lowercase());
        // `jakub`, which stands under `short name`.
        let is_short = |field: &str| {
            words::split(field).last().is_some_and(|last| NAMES.contains(&last.as_str()) || last == "login")
        };
        let takes_names = words::split(&arg.name).last().is_some_and(|last| last == "name");
        let is_own = || {
            let known = self.graph.known.get(leaf);
            takes_names && known.is_some_and(|known| known.fields().any(is_short))
                || words::is_code(leaf)
                    && known.is_some_and(|known| known.words.contains(&words::singular(&noun)))
        };
        (has_key || !is_moment(leaf) && (is_name() || is_own())).then_some(ArgumentRole::Key { noun })
    }

    /// The list that a call is about.
    pub fn main<'s>(&self, seen: &'s SuccessfulCall) -> Option<&'s List> {
        let lists = || seen.reading.lists.iter().filter(|list| !list.is_nested && !list.records.is_empty());
        lists().find(|list| list.is_list || list.is_part).or_else(|| lists().next())
    }

    /// The thing that a call by a key is about: `ticket T107`, or what belongs to it.
    pub fn subject(&self, index: usize, key: &str, one: &str) -> String {
        let (own, seen) = (self.own_noun(self.graph.seen[index].tool), &self.graph.seen[index]);
        let container = self.main(seen).map(|list| words::spoken(&list.name)).unwrap_or_default();
        let last = own.rsplit(' ').next().unwrap_or_default();
        let is_itself = OF_THINGS.contains(&last)
            || is_alike(&own, key)
            || own == "entry"
            || is_alike(&container, key)
            || own.ends_with(key);
        // A card is its member's, and a member has a card.
        let link = if is_person(&own) { "with" } else { "of" };
        if is_itself { one.to_owned() } else { format!("the {own} {link} {one}") }
    }
}

/// What parameters call the things that their values name: `T107` a `ticket` by `ticket_id`.
fn taken(graph: &Graph) -> BTreeMap<String, String> {
    let mut taken: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    // What finds nothing names nothing.
    let finds = |seen: &&SuccessfulCall| {
        !seen.reading.lists.iter().any(|list| list.is_list && list.records.is_empty())
    };
    for seen in graph.seen.iter().filter(finds) {
        for arg in &seen.args {
            let mut said = words::split(&arg.name);
            let is_key = said.pop().is_some_and(|last| KEYS.contains(&last.as_str()));
            if let Some(leaf) = arg.leaf.as_ref().filter(|_| is_key) {
                let noun = if said.is_empty() { continue } else { said.join(" ") };
                *taken.entry(leaf.clone()).or_default().entry(noun).or_default() += 1;
            }
        }
    }
    let best = |nouns: BTreeMap<String, usize>| nouns.into_iter().max_by_key(|(_, count)| *count);
    taken.into_iter().filter_map(|(value, nouns)| Some((value, best(nouns)?.0))).collect()
}

/// Whether two words are for one thing: `agent` for a `support agent`.
fn is_alike(one: &str, other: &str) -> bool {
    let last = |phrase: &str| phrase.rsplit(' ').next().map(words::singular).unwrap_or_default();
    !one.is_empty() && last(one) == last(other)
}

/// Whether a noun is of something that things have: the stock of an item.
fn is_of_thing(noun: &str) -> bool {
    noun.rsplit(' ').next().is_some_and(|last| OF_THINGS.contains(&words::singular(last).as_str()))
}

fn is_empty(value: &str) -> bool {
    value.trim().is_empty() || ["null", "None", "[]", "{}", "-"].contains(&value)
}

/// Whether a value is worth an answer.
pub fn tells(value: &str) -> bool {
    !is_empty(value) && value.len() <= VALUE && !["true", "false"].contains(&value)
}

/// Whether a text has these words, from the beginning of a word to the end of one.
fn contains_words(text: &str, words: &str) -> bool {
    let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    text.match_indices(words).any(|(at, _)| {
        !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + words.len()..].chars().next())
    })
}

/// Whether an argument is what a search looks for.
pub fn is_search(arg: &Arg) -> bool {
    is_query(&arg.name)
}

/// Whether an argument is the key of a session.
fn is_of_session(arg: &Arg) -> bool {
    words::split(&arg.name).iter().any(|word| OF_SESSIONS.contains(&word.as_str()))
        && (words::has_any(&arg.name, &["key", "id", "token"]) || words::split(&arg.name).len() == 1)
        && arg.name != "state"
}

/// The field and the value that a field of a summary counts: `status` and `open` of `by_status.open`.
pub fn tallied(field: &str) -> Option<(&str, &str)> {
    let (outer, value) = field.split_once('.')?;
    Some((outer.strip_prefix("by_").or_else(|| outer.strip_suffix("_counts"))?, value))
}

/// A field's name without the word that says that it is a key: `customer` of `customer_id`.
pub fn without_key(field: &str) -> String {
    let mut said = words::split(field);
    while said.len() > 1
        && said
            .last()
            .is_some_and(|last| ["id", "no", "nr", "number", "code", "key"].contains(&last.as_str()))
    {
        said.pop();
    }
    said.join("_")
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::chat::ToolCall;

    pub fn profile(name: &str, description: &str, schema: &Value) -> ToolProfile {
        let params = super::super::seeds::params(schema);
        let nameable: Vec<words::Nameable<'_>> = params
            .iter()
            .filter(|param| param.is_required)
            .map(|param| words::Nameable { name: &param.name, words: &param.words, is_path: false })
            .collect();
        ToolProfile {
            name: name.into(),
            server_name: name.into(),
            description: description.into(),
            nouns: words::nouns(name),
            phrase: words::phrase(name, description, &nameable),
            params,
            reads: true,
            is_annotated: false,
            writes: false,
        }
    }

    pub fn add(graph: &mut Graph, profiles: &[ToolProfile], tool: usize, arguments: &Value, result: &Value) {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let arg = |(name, value): (&String, &Value)| {
            let leaf = value.as_str().unwrap_or_default().to_owned();
            Arg { name: name.clone(), shown: words::shown(&leaf), leaf: Some(leaf) }
        };
        let args = arguments.iter().map(arg).collect();
        let call = ToolCall { name: profiles[tool].name.clone(), arguments };
        graph.add(profiles, tool, call, args, result.to_string());
    }

    #[test]
    fn a_thing_is_one_across_tools_and_its_fields_have_roles() {
        let id = json!({"required": ["ticket_id"], "properties": {"ticket_id": {"type": "string"}}});
        let filter = json!({"properties": {"query": {"type": "string"}, "status": {"type": "string"}}});
        let profiles = [
            profile("search_tickets", "Search tickets by text in the title.", &filter),
            profile("get_ticket", "Get one ticket with all its fields.", &id),
            profile("server_info", "Version and health of this server.", &json!({})),
        ];
        let brief = |id: &str, title: &str, status: &str| json!({"id": id, "title": title, "status": status});
        let all = [
            brief("T1", "Dark mode flickers", "open"),
            brief("T2", "Login is slow", "closed"),
            brief("T3", "Typo", "open"),
        ];
        let mut graph = Graph::default();
        add(&mut graph, &profiles, 0, &json!({}), &json!({"results": all}));
        add(&mut graph, &profiles, 0, &json!({"status": "open"}), &json!({"results": [all[0], all[2]]}));
        add(&mut graph, &profiles, 0, &json!({"query": "tYpo?"}), &json!({"results": [all[0]]}));
        let ticket = json!({"ticket": {"id": "T1", "title": "Dark mode flickers", "created_at": "2025-03-01T10:00:00Z",
            "assignee": {"id": "U3", "name": "Aiko Tanaka"}, "request_id": "r-81"}});
        add(&mut graph, &profiles, 1, &json!({"ticket_id": "T1"}), &ticket);
        add(&mut graph, &profiles, 2, &json!({}), &json!({"version": "1", "status": "ok"}));
        let things = Things::new(&graph, &profiles);
        assert_eq!([things.noun(0, "results"), things.noun(1, "ticket")], ["ticket", "ticket"]);
        assert_eq!(things.called("ticket", "T1")[0].name.1, "Dark mode flickers");
        assert_eq!(things.matter(0), Matter::Things(Vec::new()));
        assert_eq!(things.matter(1), Matter::Things(vec![ArgumentRole::Filter { field: "status".into() }]));
        assert_eq!(things.matter(2), Matter::Nothing, "the search finds something else");
        assert_eq!(things.matter(3), Matter::Things(vec![ArgumentRole::Key { noun: "ticket".into() }]));
        assert_eq!(things.matter(4), Matter::Nothing);
        for (field, role) in [
            ("id", Some(Role::Id)),
            ("title", Some(Role::Name)),
            ("created_at", Some(Role::Moment)),
            ("assignee.name", Some(Role::Person)),
            ("assignee.id", Some(Role::Reference)),
            ("request_id", None),
        ] {
            assert_eq!(things.role(1, "ticket", field), role, "{field}");
        }
    }

    #[test]
    fn how_a_result_is_shown_is_not_asked_for() {
        let read = json!({"required": ["sheet"], "properties": {"sheet": {"type": "string"},
            "mode": {"type": "string", "enum": ["values", "formulas"]}}});
        let profiles = [profile("read_range", "Read cells.", &read)];
        let mut graph = Graph::default();
        let cells = json!([["Rent", 900], ["Wages", 1200]]);
        add(&mut graph, &profiles, 0, &json!({"sheet": "2026"}), &cells);
        add(&mut graph, &profiles, 0, &json!({"sheet": "2026", "mode": "formulas"}), &cells);
        let things = Things::new(&graph, &profiles);
        assert_eq!([things.matter(0), things.matter(1)], [Matter::Other, Matter::Nothing]);
    }

    #[test]
    fn things_with_a_quality_are_called_by_their_own_noun() {
        let profiles = [
            profile("list_items", "All items.", &json!({})),
            profile("low_stock", "Items below their minimum.", &json!({})),
        ];
        let item = |sku: &str, name: &str| json!({"sku": sku, "name": name, "on_hand": 4});
        let mut graph = Graph::default();
        add(
            &mut graph,
            &profiles,
            0,
            &json!({}),
            &json!([item("007", "Saw"), item("008", "Hammer"), item("009", "File")]),
        );
        add(&mut graph, &profiles, 1, &json!({}), &json!([item("008", "Hammer"), item("009", "File")]));
        let things = Things::new(&graph, &profiles);
        assert_eq!(
            (things.noun(1, ""), things.quality(1, "").as_deref()),
            ("item".into(), Some("low stock"))
        );
        assert_eq!(things.quality(0, ""), None);
    }

    #[test]
    fn an_argument_with_one_value_is_looked_up_and_not_said() {
        let note = json!({"required": ["vault", "note_id"], "properties": {"vault": {"type": "string"},
            "note_id": {"type": "string"}}});
        let profiles =
            [profile("list_vaults", "All vaults.", &json!({})), profile("read_note", "Read a note.", &note)];
        let mut graph = Graph::default();
        add(&mut graph, &profiles, 0, &json!({}), &json!({"vaults": ["home"]}));
        for id in ["n1", "n2"] {
            let found = json!({"note": {"id": id, "author": format!("Ann {id}"), "pages": 3}});
            add(&mut graph, &profiles, 1, &json!({"vault": "home", "note_id": id}), &found);
        }
        let parts = vec![ArgumentRole::Sole { listed: 0 }, ArgumentRole::Key { noun: "note".into() }];
        assert_eq!(Things::new(&graph, &profiles).matter(1), Matter::Things(parts.clone()));
        add(
            &mut graph,
            &profiles,
            1,
            &json!({"vault": "work", "note_id": "n3"}),
            &json!({"note": {"id": "n3", "pages": 1}}),
        );
        assert_ne!(Things::new(&graph, &profiles).matter(1), Matter::Things(parts));
    }

    #[test]
    fn a_search_is_for_whole_words() {
        assert!(contains_words("import of products", "import") && contains_words("a b", "b"));
        assert!(!contains_words("marguerite", "it") && !contains_words("", "it"));
    }
}
