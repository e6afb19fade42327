//! Orders as sentences with the calls that carry them out.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    Lesson, contents,
    deeds::{Deed, Fill, Slot, Things, View, call, pick, typed},
};
use crate::{
    answer_rule::{day, is_moment, value_of},
    chat::ToolCall,
    explored::{
        graph,
        phrases::{FieldPlace, PHRASES},
        seeds::Kind,
        templates,
        tools::ToolProfile,
        wording,
    },
    harvest::Record,
    senses, words,
};

/// Orders of each tool and kind.
const OF_KIND: usize = 14;
/// Most things that one order changes.
const SEVERAL: usize = 3;

/// What the state is afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Something is changed.
    Changed,
    /// A condition does not hold, so nothing is changed.
    Unchanged,
    /// The server refuses the last call, and nothing is changed.
    Refused,
}

/// A task that changes something, before it is executed.
#[derive(Debug, Clone)]
pub struct Order {
    /// The tool that writes.
    pub tool: usize,
    pub kind: &'static str,
    pub task: String,
    /// What the solution says at the end. Of what is refused, the server's reason follows.
    pub closing: String,
    pub calls: Vec<ToolCall>,
    pub expected: Expected,
    pub entity: BTreeMap<String, String>,
    /// The things that the first call, which looks them up, must give and no other: their list, key and values.
    pub found: Option<(String, Vec<String>)>,
    /// The only thing that it changes: its list and its record there.
    pub target: Option<(usize, usize)>,
}

/// The values of a call.
#[derive(Debug, Clone)]
struct Filled<'d> {
    slots: Vec<(&'d Slot<'d>, Value, ValueText)>,
}

/// How a value is said.
#[derive(Debug, Clone)]
struct ValueText {
    plain: String,
    shown: String,
    /// The record of a thing.
    record: Option<usize>,
}

/// Fields with their values, and the indices of the records that have them.
type Group<'t> = (Vec<(&'t str, &'t str)>, Vec<usize>);

pub struct Maker<'m> {
    pub profiles: &'m [ToolProfile],
    pub things: &'m [Things],
    pub result_chars: usize,
    pub seed: u64,
}

/// The parts of an order's sentence.
#[derive(Default)]
struct Parts {
    /// What is changed.
    target: Option<String>,
    /// What is added or removed, how much of something, and by whom.
    item: Option<String>,
    front: String,
    by: String,
    /// What stands behind, with its rank.
    rest: Vec<(usize, String)>,
    /// Fields that are set, with their values.
    fields: Vec<(String, String)>,
}

impl<'m> Maker<'m> {
    /// Orders to use a tool, of all kinds.
    pub fn orders(&self, deed: &Deed<'m>) -> Vec<Vec<Order>> {
        // What makes something new has only this kind.
        let direct = if deed.target.is_none() { OF_KIND / 2 } else { OF_KIND };
        let kinds = [
            (0..direct).filter_map(|number| self.direct(deed, number)).collect(),
            (0..OF_KIND).filter_map(|number| self.described(deed, number)).collect(),
            (0..OF_KIND).filter_map(|number| self.several(deed, number)).collect(),
            (0..OF_KIND / 3).filter_map(|number| self.missing(deed, number)).collect(),
        ];
        kinds.into_iter().collect()
    }

    /// Orders on a condition, by what the tool is known to do.
    pub fn conditional_orders(&self, deed: &Deed<'m>, lesson: &Lesson) -> Vec<Order> {
        (0..OF_KIND).filter_map(|number| self.conditional(deed, lesson, number)).collect()
    }

    fn target<'t>(&'t self, deed: &Deed<'_>) -> Option<&'t Things> {
        match deed.slots[deed.target?].fill {
            Fill::Thing { things, .. } => self.things.get(things),
            _ => None,
        }
    }

    /// Values for a call, the thing that is changed being this record.
    fn filled<'d>(&self, deed: &'d Deed<'d>, record: Option<usize>, draw: &str) -> Option<Filled<'d>> {
        let of_target = self.target(deed);
        let required = |slot: &Slot<'_>| slot.param.is_required;
        // What is new has no text of another thing.
        let is_remark = |slot: &Slot<'_>| {
            let is_number = matches!(slot.param.kind, Kind::Integer | Kind::Number)
                && !PHRASES.role(&slot.param.name).is_some_and(|role| role.is_in_front);
            deed.class.name == "make" && is_number
                || ["make", "set"].contains(&deed.class.name.as_str())
                    && matches!(slot.fill, Fill::Free(_))
                    && PHRASES.role(&slot.param.name).is_some_and(|role| role.pool() == Some("remarks"))
        };
        let is_extra = |slot: &Slot<'_>| {
            !slot.param.is_required && !matches!(slot.fill, Fill::Thing { .. }) && !is_remark(slot)
        };
        let extras: Vec<usize> =
            (0..deed.slots.len()).filter(|place| is_extra(&deed.slots[*place])).collect();
        let needs = deed
            .slots
            .iter()
            .enumerate()
            .filter(|(place, slot)| required(slot) && Some(*place) != deed.target)
            .count()
            == 0;
        // What sets nothing without an optional argument gets one; what is new may have one.
        let wants = match deed.class.name.as_str() {
            "set" if needs => 1 + graph::place(self.seed, "two", draw, 4) / 3,
            "make" => graph::place(self.seed, "optional", draw, 3).min(2),
            _ => 0,
        };
        let start = graph::place(self.seed, "first optional", draw, extras.len());
        let chosen: Vec<usize> =
            (0..wants.min(extras.len())).map(|step| extras[(start + step) % extras.len()]).collect();
        let mut slots = Vec::new();
        for (place, slot) in deed.slots.iter().enumerate() {
            if !required(slot) && !chosen.contains(&place) {
                continue;
            }
            let name = format!("{}.{}", deed.profile.name, slot.param.name);
            let value = match &slot.fill {
                Fill::Thing { things, by_name } => {
                    let things = &self.things[*things];
                    let index = match record.filter(|_| Some(place) == deed.target) {
                        Some(index) => index,
                        None => graph::place(self.seed, &name, draw, things.records.len()),
                    };
                    let record = things.records.get(index)?;
                    let plain = if *by_name { things.name_of(record)? } else { things.key_of(record) };
                    ValueText { plain: plain.to_owned(), shown: self.named(slot, plain), record: Some(index) }
                }
                Fill::Choice(values) => {
                    // Not what it is already.
                    let now = of_target.zip(record).and_then(|(things, record)| {
                        let record = things.records.get(record)?;
                        let like = record
                            .iter()
                            .find(|field| words::tokens(&field.name) == words::tokens(&slot.noun))?;
                        Some(like.value.as_str())
                    });
                    let others: Vec<&String> =
                        values.iter().filter(|value| Some(value.as_str()) != now).collect();
                    let plain = day(pick(self.seed, &name, draw, &others)?).to_owned();
                    ValueText { shown: said_value(&plain), plain, record: None }
                }
                Fill::Free(values) => {
                    let drawn = || pick(self.seed, &name, draw, values).cloned();
                    // A thing gets a new name after its own.
                    let is_name = PHRASES.role(&slot.param.name).is_some_and(|role| role.is_name);
                    let own = of_target.zip(record).filter(|_| is_name && deed.class.name != "add");
                    let own = own.and_then(|(things, record)| things.title_of(things.records.get(record)?));
                    let renewed = own.and_then(|own| contents::renewed(&[own.to_owned()]).pop());
                    let plain = renewed.or_else(drawn)?;
                    let is_bare =
                        plain.starts_with(|letter: char| letter.is_ascii_digit()) || plain.contains('@');
                    ValueText {
                        shown: if is_bare { plain.clone() } else { format!("\"{plain}\"") },
                        plain,
                        record: None,
                    }
                }
            };
            slots.push((slot, typed(slot.param, &value.plain)?, value));
        }
        self.set_times(&mut slots, draw);
        Some(Filled { slots })
    }

    /// Gives a beginning and an end the times of one thing that has both.
    fn set_times(&self, slots: &mut [(&Slot<'_>, Value, ValueText)], draw: &str) {
        let is_time = |(slot, _, said): &(&Slot<'_>, Value, ValueText)| {
            let is_end = |name: &str| words::has_any(name, &["start", "end", "begin", "from", "until", "to"]);
            is_moment(&said.plain) && is_end(&slot.param.name)
        };
        let places: Vec<usize> = (0..slots.len()).filter(|place| is_time(&slots[*place])).collect();
        let [first, second] = places[..] else { return };
        let both = |record: &Record| -> Option<[String; 2]> {
            let of = |place: usize| {
                value_of(record, &slots[place].0.param.name).map(|value| day(value).to_owned())
            };
            Some([of(first)?, of(second)?])
        };
        let pairs: Vec<[String; 2]> =
            self.things.iter().flat_map(|things| &things.records).filter_map(both).collect();
        let own = [slots[first].2.plain.clone(), slots[second].2.plain.clone()];
        let mut times = pick(self.seed, "times", draw, &pairs).cloned().unwrap_or(own);
        times.sort();
        for (place, plain) in places.into_iter().zip(times) {
            let Some(value) = typed(slots[place].0.param, &plain) else { return };
            slots[place].1 = value;
            slots[place].2 = ValueText { shown: said_value(&plain), plain, record: None };
        }
    }

    /// A thing by its key or its name.
    fn named(&self, slot: &Slot<'_>, value: &str) -> String {
        let has_role =
            PHRASES.role(&slot.param.name).is_some() || PHRASES.place_of(&slot.noun) == FieldPlace::Of;
        // A person is called by a short name, too.
        let is_short = value.len() > 2 && value.chars().all(|letter| letter.is_lowercase() || letter == '_');
        if is_person(value)
            && (has_role || slot.noun.is_empty() || words::has_any(&slot.noun, &["person", "user"]))
            || is_short && senses::is_person(&slot.noun)
        {
            return value.to_owned();
        }
        words::called(&slot.noun, value)
    }

    /// The sentence of a call and what is said when it is done. `thing`: what is changed, in other words.
    fn sentence(
        &self,
        deed: &Deed<'_>,
        filled: &Filled<'_>,
        thing: Option<&str>,
        draw: &str,
    ) -> Option<(String, String)> {
        let Parts { target, item, front, by, mut rest, fields } = self.parts(deed, filled, thing);
        rest.sort_by_key(|(rank, _)| *rank);
        // The fine of 5 is paid: what says which one it is stays with it.
        let is_near =
            |(rank, _): &(usize, String)| *rank == 0 && target.is_none() && deed.class.name == "other";
        let (near, behind): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_near);
        let (near, mut rest) = (joined_rest(&near), joined_rest(&behind));
        let class = deed.class.name.as_str();
        let noun = object_noun(deed);
        let object = match class {
            "add" | "remove" => item? + &by,
            "make" => {
                format!("{} {noun}", if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" })
            }
            _ => match &target {
                Some(target) => format!("{front}{target}"),
                None if !noun.is_empty() => format!("the {noun}{near}"),
                None => return None,
            },
        };
        if !deed.verb.tail.is_empty() {
            rest = format!(" {}{rest}", deed.verb.tail);
        }
        let target = target.unwrap_or_default();
        let (mut its, mut value) = (String::new(), String::new());
        if class == "set" {
            let ((field, first), others) = fields.split_first()?;
            its = match thing {
                Some("it") => format!("its {field}"),
                _ => format!("the {field} of {target}"),
            };
            let others = others.iter().map(|(field, other)| format!(" and its {field} to {other}"));
            value = std::iter::once(first.clone()).chain(others).collect();
        }
        let verb = match (deed.verb.stem.as_str(), deed.verb.particle.as_str()) {
            ("new", "") => "create".to_owned(),
            (stem, "") => stem.to_owned(),
            (stem, particle) => format!("{stem} {particle}"),
        };
        let participle = PHRASES.participle(&deed.verb);
        let fill = |text: &str, object: &str, rest: &str| {
            text.replace("{verb}", &verb)
                .replace("{participle}", &participle)
                .replace("{its}", &its)
                .replace("{value}", &value)
                .replace("{object}", object)
                .replace("{thing}", &target)
                .replace("{rest}", rest)
        };
        let order = pick(self.seed, "wording", draw, &deed.class.orders)?;
        // What is new has a name by now.
        let name = filled.slots.iter().find(|(slot, ..)| {
            class == "make" && PHRASES.role(&slot.param.name).is_some_and(|role| role.is_name)
        });
        let closing = match name {
            Some((_, _, said)) => {
                fill(&deed.class.closing, &format!("the {noun} {}", quoted(&said.shown)), "")
            }
            None => fill(&deed.class.closing, &object, &rest),
        };
        Some((fill(order, &object, &rest), format!("Done: {closing}.")))
    }

    /// What the arguments of a call are in its sentence.
    fn parts(&self, deed: &Deed<'_>, filled: &Filled<'_>, thing: Option<&str>) -> Parts {
        let place = |param: &str| deed.slots.iter().position(|slot| slot.param.name == param);
        let mut parts = Parts::default();
        for (slot, value, said) in &filled.slots {
            let at = place(&slot.param.name);
            let role = PHRASES.role(&slot.param.name);
            let is_thing = matches!(slot.fill, Fill::Thing { .. });
            match deed.class.name.as_str() {
                _ if at == deed.target => {
                    parts.target = Some(thing.map_or_else(|| said.shown.clone(), str::to_owned))
                }
                "add" | "remove" if at == deed.item => {
                    parts.item = Some(match is_thing {
                        true => said.shown.clone(),
                        false => format!("the {} {}", item_noun(deed, slot), quoted(&said.shown)),
                    });
                }
                "set" if !is_thing || parts.rest.is_empty() && parts.fields.is_empty() => {
                    let value = if is_thing { said_value(&said.plain) } else { said.shown.clone() };
                    parts.fields.push((self.field(deed, slot), value))
                }
                _ if value.is_boolean() => {
                    let with = if *value == Value::Bool(true) { "with" } else { "without" };
                    parts.rest.push((2, format!("{with} {}", slot.noun)));
                }
                "add" | "remove" if role.is_some_and(|role| role.is_by) => {
                    parts.by = format!(" by {}", by_whom(said))
                }
                // Order 7, which no list has.
                "other" if deed.target.is_none() && is_of_object(deed, slot) => {
                    parts.target = Some(words::called(&object_noun(deed), &said.plain));
                }
                "other" if role.is_some_and(|role| role.is_in_front) => {
                    parts.front = format!("{} of ", said.shown);
                }
                class => parts.rest.push(self.behind(deed, slot, said, class)),
            }
        }
        parts
    }

    /// The field that an argument sets.
    fn field(&self, deed: &Deed<'_>, slot: &Slot<'_>) -> String {
        let is_vague =
            ["value", "amount", "quantity", "level", "count", "number"].contains(&slot.noun.as_str());
        let own: Vec<&str> = deed
            .verb
            .object
            .iter()
            .map(String::as_str)
            .filter(|word| {
                let thing = self.target(deed).map(|things| words::tokens(&things.noun)).unwrap_or_default();
                !thing.contains(&words::singular(word))
            })
            .collect();
        match own.is_empty() || !is_vague {
            true => words::in_full(&slot.noun),
            false => own.join(" "),
        }
    }

    /// An argument behind the thing, with its place among others.
    fn behind(&self, deed: &Deed<'_>, slot: &Slot<'_>, said: &ValueText, class: &str) -> (usize, String) {
        let role = PHRASES.role(&slot.param.name);
        let value = said.shown.as_str();
        if slot.param.is_path() && words::is_spaced_file(&said.plain) {
            return (1, format!("in {}", said.plain));
        }
        if role.is_some_and(|role| role.is_by) {
            return (2, format!("by {}", by_whom(said)));
        }
        if let Fill::Thing { .. } = slot.fill {
            let own = words::split(&slot.param.name);
            let preposition = match own.first().map(String::as_str) {
                Some("from" | "source" | "origin") => "from",
                Some("to" | "destination" | "target" | "dest" | "new") => "to",
                _ => PHRASES
                    .preposition_of_object(&object_noun(deed), &slot.noun)
                    .filter(|_| class == "make")
                    .unwrap_or_else(|| PHRASES.preposition(&deed.verb.stem, &slot.noun)),
            };
            // What is meant stands in front of whose it is.
            let rank = if preposition == "on" || preposition == "of" { 0 } else { 1 };
            return (rank, format!("{preposition} {value}"));
        }
        match role {
            // A new name: `rename it to`.
            Some(role) if role.is_name && PHRASES.copied.contains(&deed.verb.stem) => {
                (1, format!("as {value}"))
            }
            Some(role) if role.is_name && class != "make" => {
                (1, format!("{} {value}", PHRASES.preposition(&deed.verb.stem, "")))
            }
            Some(role) if role.is_name && !slot.noun.is_empty() => (0, format!("called {value}")),
            Some(role) if role.is_of && class == "other" && deed.target.is_none() => {
                (0, role.said.replace("{value}", value))
            }
            Some(role) if role.is_of => (2, format!("with the {} {value}", spoken(&slot.param.name))),
            Some(role) if role.is_in_front && class == "make" => {
                (2, format!("with the {} {value}", slot.noun))
            }
            // The reminder's date, and not the day when something is done.
            Some(role) if role.is_plain_moment() && words::split(&slot.param.name).len() > 1 => {
                (2, format!("with the {} {value}", spoken(&slot.param.name)))
            }
            Some(role) if role.is_plain_moment() && PHRASES.moved.contains(&deed.verb.stem) => {
                (1, format!("to {value}"))
            }
            Some(role) => {
                // One tag.
                let param = spoken(&slot.param.name);
                let param =
                    if matches!(slot.param.kind, Kind::List(_)) { words::singular(&param) } else { param };
                (2, role.said.replace("{value}", value).replace("{param}", &param))
            }
            None if PHRASES.place_of(&slot.noun) == FieldPlace::First => {
                (2, format!("with {value} {}", slot.noun))
            }
            None if class != "make"
                && !matches!(slot.fill, Fill::Free(_))
                && (is_person(&said.plain) || PHRASES.place_of(&slot.noun) == FieldPlace::Of) =>
            {
                (1, format!("{} {value}", PHRASES.preposition(&deed.verb.stem, &slot.noun)))
            }
            None if class != "make" && PHRASES.place_of(&slot.noun) == FieldPlace::Within => {
                (1, format!("to {value}"))
            }
            // The copy with the barcode 1412 to card L40.
            None if deed.target.is_none() && matches!(slot.fill, Fill::Choice(_)) => {
                (0, format!("with the {} {value}", spoken(&slot.param.name)))
            }
            None => (2, format!("with the {} {value}", spoken(&slot.param.name))),
        }
    }

    fn write(deed: &Deed<'_>, filled: &Filled<'_>) -> ToolCall {
        call(
            deed.profile,
            filled.slots.iter().map(|(slot, value, _)| (slot.param.name.clone(), value.clone())),
        )
    }

    fn entity(filled: &Filled<'_>) -> BTreeMap<String, String> {
        filled.slots.iter().map(|(slot, _, said)| (slot.param.name.clone(), said.plain.clone())).collect()
    }

    /// A record of the things that are changed, another one for each number.
    fn record(&self, deed: &Deed<'_>, kind: &str, number: usize) -> Option<usize> {
        let things = self.target(deed)?;
        let mut order: Vec<usize> = (0..things.records.len()).collect();
        order.sort_by_key(|place| {
            graph::rank(self.seed, &format!("{} {kind}", deed.profile.name), &place.to_string())
        });
        order.get(number % order.len().max(1)).copied()
    }

    fn order(
        &self,
        deed: &Deed<'_>,
        kind: &'static str,
        filled: &Filled<'_>,
        (task, closing): (String, String),
    ) -> Order {
        let target = deed.target.and_then(|target| {
            let name = &deed.slots[target].param.name;
            let (slot, _, said) = filled.slots.iter().find(|(slot, ..)| slot.param.name == *name)?;
            match slot.fill {
                Fill::Thing { things, .. } => Some((things, said.record?)),
                _ => None,
            }
        });
        Order {
            tool: deed.tool,
            kind,
            task: templates::sentence(&task),
            closing,
            calls: vec![Self::write(deed, filled)],
            expected: Expected::Changed,
            entity: Self::entity(filled),
            found: None,
            target,
        }
    }

    fn direct(&self, deed: &Deed<'_>, number: usize) -> Option<Order> {
        let draw = format!("direct {number}");
        let record = self.record(deed, "direct", number);
        let filled = self.filled(deed, record, &draw).filter(|filled| self.is_said(filled))?;
        let said = self.sentence(deed, &filled, None, &draw)?;
        Some(self.order(deed, "direct", &filled, said))
    }

    /// The list of things as a call, if an agent sees all of it.
    fn list(&self, things: &Things) -> Option<ToolCall> {
        (things.chars <= self.result_chars && things.search.is_none())
            .then(|| call(&self.profiles[things.tool], []))
    }

    /// A call that lists a thing, and the word that the call's argument is: `on-hold`.
    fn listed(&self, things: &Things, record: usize) -> Option<(ToolCall, String)> {
        if let Some(list) = self.list(things) {
            return Some((list, String::new()));
        }
        let key = things.key_of(&things.records[record]);
        if let Some((param, name)) = things.search.as_ref().zip(things.name_of(&things.records[record])) {
            let search = call(&self.profiles[things.tool], [(param.clone(), name.into())]);
            return Some((search, String::new()));
        }
        if let Some(search) = things.searches.get(key) {
            return Some((search.clone(), String::new()));
        }
        let is_seen = |view: &&View| view.chars <= self.result_chars && view.keys.contains(key);
        let is_word = |view: &&View| {
            view.value == "false"
                || PHRASES.place_of(&view.field) == FieldPlace::Adjective
                    && view.value.chars().all(|letter| letter.is_lowercase() || letter == '_')
        };
        let view = things.views.iter().filter(is_seen).find(is_word)?;
        // Who says what is to be done to it means one of which it is not done yet.
        let word =
            if view.value == "false" { String::new() } else { format!("{} ", view.value.replace('_', "-")) };
        Some((view.call.clone(), word))
    }

    /// Whether people say what identifies the things.
    fn is_said(&self, filled: &Filled<'_>) -> bool {
        let is_opaque = |(slot, _, said): &(&Slot<'_>, Value, ValueText)| match (&slot.fill, said.record) {
            (Fill::Thing { by_name: false, .. } | Fill::Choice(_), _) => words::is_opaque(&said.plain),
            _ => false,
        };
        !filled.slots.iter().any(is_opaque)
    }

    /// The thing by its name, which a list says.
    fn described(&self, deed: &Deed<'_>, number: usize) -> Option<Order> {
        let draw = format!("described {number}");
        let things = self.target(deed)?;
        let by_name = matches!(deed.slots[deed.target?].fill, Fill::Thing { by_name: true, .. });
        let index = self.record(deed, "described", number).filter(|_| !by_name)?;
        let name = things.name_of(&things.records[index])?.to_owned();
        let mut filled = self.filled(deed, Some(index), &draw)?;
        let (list, among) = self.listed(things, index)?;
        let mut lists = vec![list];
        // The other things by name, too, if their list is another one.
        for (slot, _, said) in &mut filled.slots {
            let (Fill::Thing { things: place, by_name: false }, Some(record)) = (&slot.fill, said.record)
            else {
                continue;
            };
            let other = &self.things[*place];
            if Some(slot.param.name.as_str())
                == deed.target.map(|target| deed.slots[target].param.name.as_str())
            {
                continue;
            }
            if let Some(name) = other.name_of(&other.records[record])
                && lists.len() < 2
                && let Some(list) = self.list(other)
            {
                said.shown = self.named(slot, name);
                if !lists.contains(&list) {
                    lists.push(list);
                }
            } else if words::is_opaque(&said.plain) {
                return None;
            }
        }
        let noun = &deed.slots[deed.target?].noun;
        let thing = match is_person(&name) && words::has_any(noun, &["person", "user"]) {
            true => name.clone(),
            false => format!("the {among}{noun} \"{name}\""),
        };
        let said = self.sentence(deed, &filled, Some(&thing), &draw)?;
        let mut order = self.order(deed, "described", &filled, said);
        // A search must find this one, and no other of the same name.
        let key = things.key_of(&things.records[index]).to_owned();
        order.found = things.search.is_some().then(|| (things.key.clone(), vec![key]));
        order.calls.splice(0..0, lists);
        Some(order)
    }

    /// Several things that have some values in common.
    fn several(&self, deed: &Deed<'_>, number: usize) -> Option<Order> {
        let things = self.target(deed).filter(|things| things.is_whole)?;
        let draw = format!("several {number}");
        let (keys, records) = self.group(deed, things, number)?;
        let phrase = group_phrase(&deed.slots[deed.target?].noun, &keys);
        let first = self.filled(deed, Some(records[0]), &draw)?;
        let (task, closing) = self.sentence(deed, &first, Some(&phrase), &draw)?;
        let closing = match closing.starts_with("Done: all ") {
            true => closing.replacen(" is ", " are ", 1),
            false => closing,
        };
        let mut order = self.order(deed, "several", &first, (task, closing));
        // All get the values of the first.
        order.calls.clear();
        let target = &deed.slots[deed.target?].param;
        for record in &records {
            let mut write = Self::write(deed, &first);
            let own = self.filled(deed, Some(*record), &draw)?;
            let (_, value, _) = own.slots.iter().find(|(slot, ..)| slot.param.name == target.name)?;
            write.arguments.insert(target.name.clone(), value.clone());
            order.calls.push(write);
        }
        let profile = &self.profiles[things.tool];
        let filter = |(field, value): &(&str, &str)| {
            let param =
                profile.params.iter().find(|param| words::tokens(&param.name) == words::tokens(field))?;
            Some((param.name.clone(), typed(param, value)?))
        };
        let filters: Option<Vec<_>> = keys.iter().map(filter).collect();
        order.calls.insert(
            0,
            match filters {
                Some(filters) => {
                    let of = |record: &usize| things.key_of(&things.records[*record]).to_owned();
                    order.found = Some((things.key.clone(), records.iter().map(of).collect()));
                    call(profile, filters)
                }
                None => self.list(things)?,
            },
        );
        order.target = None;
        order.entity.remove(&target.name);
        order.entity.extend(keys.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())));
        Some(order)
    }

    /// Two or three things with these values, and no others.
    fn group<'t>(&self, deed: &Deed<'_>, things: &'t Things, number: usize) -> Option<Group<'t>> {
        let single: Vec<(&str, &str)> = things
            .categories()
            .into_iter()
            .flat_map(|(field, values)| values.into_iter().map(move |value| (field, value)))
            .collect();
        let pairs = single.iter().enumerate().flat_map(|(place, one)| {
            single[place + 1..].iter().filter(|other| other.0 != one.0).map(|other| vec![*one, *other])
        });
        let mut groups: Vec<Group<'_>> = Vec::new();
        for keys in single.iter().map(|one| vec![*one]).chain(pairs) {
            let fits =
                |record: &Record| keys.iter().all(|(field, value)| value_of(record, field) == Some(*value));
            let records: Vec<usize> =
                (0..things.records.len()).filter(|place| fits(&things.records[*place])).collect();
            if (2..=SEVERAL).contains(&records.len()) {
                groups.push((keys, records));
            }
        }
        groups.sort_by_key(|(keys, _)| graph::rank(self.seed, &deed.profile.name, &format!("{keys:?}")));
        groups.into_iter().nth(number)
    }

    /// The fields that a condition may be about, with the values that the order presumes: what it sets, or the state that it
    /// changes, or else a state in which it works.
    fn presumed<'t>(
        &self,
        deed: &Deed<'_>,
        things: &'t Things,
        (lesson, filled): (&Lesson, &Filled<'_>),
    ) -> Vec<(&'t str, Vec<&'t str>)> {
        let categories = things.categories();
        let is_set = |field: &str| {
            let is_it = |slot: &Slot<'_>| words::tokens(&slot.noun) == words::tokens(field);
            deed.class.name == "set"
                && filled
                    .slots
                    .iter()
                    .any(|(slot, ..)| is_it(slot) && Some(slot.param.name.as_str()) != deed.target_param())
        };
        let set: Vec<_> = categories.iter().filter(|(field, _)| is_set(field)).cloned().collect();
        if !set.is_empty() {
            return set;
        }
        let of = |values: &BTreeMap<String, BTreeSet<String>>,
                  fits: &dyn Fn(&str) -> bool|
         -> Vec<(&'t str, Vec<&'t str>)> {
            let known = |(field, all): &(&'t str, Vec<&'t str>)| {
                let known = values.get(*field).filter(|_| fits(field))?;
                Some((*field, all.iter().copied().filter(|value| known.contains(*value)).collect()))
            };
            categories.iter().filter_map(known).collect()
        };
        // Who orders something on a condition means a state, how urgent it is, or whose it is.
        let is_state = |field: &str| PHRASES.place_of(field) == FieldPlace::Adjective;
        let changed = of(&lesson.changed, &is_state);
        if !changed.is_empty() {
            return changed;
        }
        let is_condition = |field: &str| {
            let is_said = match PHRASES.place_of(field) {
                FieldPlace::Adjective | FieldPlace::First => true,
                FieldPlace::Of => PHRASES.state_of(field).is_some(),
                FieldPlace::Within | FieldPlace::With => false,
            };
            is_said && !lesson.changed.contains_key(field)
        };
        of(&lesson.worked, &is_condition)
    }

    /// Something to do if a thing has a value, and a thing that has it or has not.
    fn conditional(&self, deed: &Deed<'_>, lesson: &Lesson, number: usize) -> Option<Order> {
        let things = self.target(deed)?;
        let draw = format!("conditional {number}");
        let index = self.record(deed, "conditional", number)?;
        let record = &things.records[index];
        let filled = self.filled(deed, Some(index), &draw).filter(|filled| self.is_said(filled))?;
        let usable = self.presumed(deed, things, (lesson, &filled));
        let (field, values) = pick(self.seed, "condition", &draw, &usable)?;
        let now = value_of(record, field).filter(|value| !value.trim().is_empty())?;
        // Whoever has it already gets nothing new.
        let is_given = |value: &str| filled.slots.iter().any(|(_, _, said)| said.plain == value);
        let others: Vec<&str> =
            values.iter().copied().filter(|value| *value != now && !is_given(value)).collect();
        // Of what has the state that is presumed, it holds; of every second one, if there is another such state.
        let holds = values.contains(&now) && (number.is_multiple_of(2) || others.is_empty());
        let value = if holds { now } else { *pick(self.seed, "other", &draw, &others)? };
        if is_given(value) {
            return None;
        }
        let target = &deed.slots[deed.target?];
        let thing = self.named(
            target,
            filled.slots.iter().find(|(slot, ..)| slot.param.name == target.param.name)?.2.plain.as_str(),
        );
        let shown = said_value(value);
        let is_adjective = PHRASES.place_of(field) == FieldPlace::Adjective && !shown.contains('"');
        let state = PHRASES.state_of(field);
        let condition = |is: &str| match (is_adjective, state) {
            (true, _) => format!("{thing} {is} {shown}"),
            (_, Some(state)) => format!("{thing} {is} {state} {shown}"),
            _ => {
                let has = match is {
                    "is" => "has",
                    "is still" => "still has",
                    _ => "does not have",
                };
                match PHRASES.place_of(field) {
                    FieldPlace::First => format!("{thing} {has} {shown} {}", words::spoken_thing(field)),
                    _ => format!("{thing} {has} the {} {shown}", words::spoken_thing(field)),
                }
            }
        };
        let (task, _) = self.sentence(deed, &filled, Some("it"), &draw)?;
        let (_, closing) = self.sentence(deed, &filled, None, &draw)?;
        let mut letters = task.chars();
        let task: String = letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
        // What the order ends is said to last until then.
        let is = if lesson.changed.contains_key(*field) { "is still" } else { "is" };
        let task = format!("If {}, {task}", condition(is));
        let look_up = match things.getters.first() {
            Some((tool, param)) => {
                let profile = &self.profiles[*tool];
                let param = profile.params.iter().find(|own| own.name == *param)?;
                call(profile, [(param.name.clone(), typed(param, things.key_of(record))?)])
            }
            None => self.list(things)?,
        };
        let mut order = self.order(deed, if holds { "if so" } else { "if not so" }, &filled, (task, closing));
        order.calls.insert(0, look_up);
        if !holds {
            order.calls.truncate(1);
            order.expected = Expected::Unchanged;
            order.closing = templates::sentence(&format!("{}, so nothing is changed.", condition("is not")));
        }
        order.entity.insert((*field).to_owned(), value.to_owned());
        Some(order)
    }

    /// A thing that does not exist.
    fn missing(&self, deed: &Deed<'_>, number: usize) -> Option<Order> {
        let things = self.target(deed).filter(|things| things.is_whole)?;
        let target = &deed.slots[deed.target?];
        if matches!(target.fill, Fill::Thing { by_name: true, .. }) {
            return None;
        }
        let made = made_up(things, number).filter(|made| !words::is_opaque(made))?;
        let draw = format!("missing {number}");
        let mut filled = self.filled(deed, self.record(deed, "missing", number), &draw)?;
        let slot = filled.slots.iter_mut().find(|(slot, ..)| slot.param.name == target.param.name)?;
        slot.1 = typed(target.param, &made)?;
        slot.2 = ValueText { shown: self.named(target, &made), plain: made, record: None };
        let said = self.sentence(deed, &filled, None, &draw)?;
        let mut order = self.order(deed, "missing", &filled, said);
        order.expected = Expected::Refused;
        order.closing = String::new();
        Some(order)
    }
}

/// A key like those that exist, with another number.
fn made_up(things: &Things, number: usize) -> Option<String> {
    let keys: Vec<&str> = things.records.iter().map(|record| things.key_of(record)).collect();
    let last = keys.last()?;
    let start = last.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    let (before, digits) = last.split_at(start);
    let width = digits.len();
    let most: u64 = digits.parse().ok().filter(|_| width <= 9)?;
    let made = (1..20).map(|step| format!("{before}{:0width$}", most + 40 + 17 * number as u64 + step));
    made.into_iter().find(|made| !keys.contains(&made.as_str()))
}

/// Whether a value is written like a person's name: `Ann`, `Bruno Fischer`.
pub fn is_person(value: &str) -> bool {
    let mut words = value.split(' ').peekable();
    words.peek().is_some()
        && value.split(' ').count() <= 3
        && words.all(|word| {
            let mut letters = word.chars();
            letters.next().is_some_and(char::is_uppercase)
                && letters.all(|letter| letter.is_lowercase() || "'-.".contains(letter))
        })
}

/// A value in a sentence: `high`, `"in progress"`, `Ben`.
fn said_value(value: &str) -> String {
    let value = day(value);
    if is_moment(value) {
        // Nobody says seconds that are none.
        let is_long = value.len() == "0000-00-00 00:00:00".len();
        return value.strip_suffix(":00").filter(|_| is_long).unwrap_or(value).replace('T', " ");
    }
    let is_lower = value.chars().all(|letter| letter.is_lowercase() || letter == '_' || letter == ' ');
    if is_lower && value.contains('_') {
        return format!("\"{}\"", value.replace('_', " "));
    }
    if is_person(value) { value.to_owned() } else { words::shown(value) }
}

/// A person by name or handle, without what they are.
fn by_whom(said: &ValueText) -> &str {
    let is_plain = is_person(&said.plain) || !said.plain.contains(char::is_whitespace);
    if is_plain { &said.plain } else { &said.shown }
}

fn quoted(shown: &str) -> String {
    let is_code = words::is_code(shown);
    if shown.starts_with('"') || is_code { shown.to_owned() } else { format!("\"{shown}\"") }
}

fn spoken(param: &str) -> String {
    words::in_full(&words::spoken_param(param))
}

fn item_noun(deed: &Deed<'_>, slot: &Slot<'_>) -> String {
    match deed.verb.object.is_empty() {
        true => slot.noun.clone(),
        false => words::singular(&deed.verb.object.join(" ")),
    }
}

/// What a tool makes or uses: the nouns behind its verb.
fn object_noun(deed: &Deed<'_>) -> String {
    let nouns = match deed.verb.object.is_empty() {
        true => deed.profile.nouns.join(" ").to_lowercase(),
        false => deed.verb.object.join(" "),
    };
    if deed.class.name == "make" { words::singular_head(&nouns) } else { nouns }
}

/// Whether an argument identifies what a tool uses: `order_id` of `cancel_order`.
fn is_of_object(deed: &Deed<'_>, slot: &Slot<'_>) -> bool {
    matches!(slot.fill, Fill::Choice(_))
        && words::is_identifier(&slot.param.name)
        && deed.verb.object.last().is_some_and(|last| words::singular(last) == slot.noun)
}

/// `for member M3 with the priority high and the reason "x"`.
fn joined_rest(rest: &[(usize, String)]) -> String {
    let (with, others): (Vec<_>, Vec<_>) =
        rest.iter().partition(|(rank, text)| *rank > 0 && text.starts_with("with the "));
    let mut text: String = others.iter().map(|(_, other)| format!(" {other}")).collect();
    let parts: Vec<String> = with
        .iter()
        .enumerate()
        .map(|(place, (_, part))| match place {
            0 => part.clone(),
            _ => part.trim_start_matches("with ").to_owned(),
        })
        .collect();
    if !parts.is_empty() {
        text += &format!(" {}", wording::joined(&parts));
    }
    text
}

/// `all open tickets of Ann`
fn group_phrase(noun: &str, keys: &[(&str, &str)]) -> String {
    let (mut before, mut behind, mut with) = (String::new(), String::new(), Vec::new());
    for (field, value) in keys {
        let shown = said_value(value);
        let name = words::spoken_thing(field);
        match PHRASES.place_of(field) {
            FieldPlace::Adjective => before += &format!("{} ", shown.trim_matches('"')),
            FieldPlace::Of => {
                let said = templates::with_condition("", field, &name, &shown);
                behind += &if said.starts_with(" with ") { format!(" of {shown}") } else { said };
            }
            FieldPlace::Within => {
                let said = templates::with_condition("", field, &name, value);
                behind += &match said.starts_with(" with ") {
                    true if is_person(value) => format!(" in {shown}"),
                    true => format!(" in {}", words::called(&name, value)),
                    false => said,
                };
            }
            FieldPlace::First => with.push(format!("{shown} {name}")),
            FieldPlace::With => with.push(format!("the {name} {shown}")),
        }
    }
    let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(" and ")) };
    format!("all {before}{}{behind}{with}", words::plural(noun))
}
