//! Worlds: servers drawn from a seed. A world has one to three kinds of things with properties, and a tool for each property: 3 to 18
//! tools.
//!
//! Everything that an agent could remember of a server differs from world to world: what there is, the names and descriptions
//! of the tools and their parameters, how many tools there are, whether a thing is found by its name or by an id that
//! another tool gives, how results look, and what errors say. So an agent that works in a world it has not seen has learned
//! to read tools.
//!
//! A world states what can be asked about it in the resource [`crate::mcp::FAMILIES_URI`].

mod families;
mod words;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use rmcp::model::Tool;

use super::server::{Answer, Arguments, Demo, Effect::Reads, tool};
use crate::random::shuffle;
use words::{FIRST, LINKS, NOUNS, NUMBERS, SECOND, VALUES, WORDS, plural};

pub(super) struct World {
    kinds: Vec<Kind>,
    style: Style,
    actions: Vec<(String, Action)>,
    families: String,
}

/// A kind of thing.
struct Kind {
    noun: &'static str,
    /// The name and the id of each thing.
    things: Vec<(String, String)>,
    properties: Vec<Property>,
    /// Whether properties are asked for by id.
    by_id: bool,
}

struct Property {
    word: &'static str,
    /// The value of each thing.
    values: Vec<String>,
    /// The kind whose things the values are.
    link: Option<usize>,
}

/// What a tool does.
#[derive(Clone, Copy)]
enum Action {
    /// The names of all things of a kind.
    List(usize),
    /// The id of a thing, by name.
    Find(usize),
    /// A property of a thing: the kind's index and the property's.
    Get(usize, usize),
}

/// How a world names and says things.
struct Style {
    getter: fn(noun: &str, property: &str) -> String,
    finder: fn(noun: &str) -> String,
    lister: fn(plural: &str) -> String,
    /// The parameter for a name, and the one for an id; `{}` is the noun.
    name: &'static str,
    id: &'static str,
    /// The descriptions; `{p}` is the property.
    gets: &'static str,
    finds: &'static str,
    lists: &'static str,
    /// The first line of results, if there is one.
    has_header: bool,
    /// An error; `{}` is what was asked for.
    unknown: &'static str,
}

const GETTERS: [fn(&str, &str) -> String; 8] = [
    |_, property| format!("get_{property}"),
    |noun, property| format!("{noun}_{property}"),
    |noun, property| format!("{property}_of_{noun}"),
    |_, property| property.to_owned(),
    |noun, property| format!("{noun}{}", capital(property)),
    |_, property| format!("read-{property}"),
    |noun, property| format!("get_{noun}_{property}"),
    |_, property| format!("{property}_lookup"),
];
const FINDERS: [fn(&str) -> String; 4] = [
    |noun| format!("find_{noun}"),
    |noun| format!("lookup{}", capital(noun)),
    |noun| format!("search-{noun}"),
    |noun| format!("{noun}_id"),
];
const LISTERS: [fn(&str) -> String; 4] = [
    |plural| format!("list_{plural}"),
    |plural| format!("all{}", capital(plural)),
    |plural| format!("all-{plural}"),
    |plural| plural.to_owned(),
];
const NAMES: [&str; 5] = ["name", "{}", "title", "called", "{}_name"];
const IDS: [&str; 4] = ["id", "{}_id", "key", "number"];
const GETS: [&str; 5] = [
    "The {p} of a {n}.",
    "Returns the {p} of the given {n}.",
    "What {p} a {n} has.",
    "Looks up the {p} of one {n}.",
    "Gives a {n}'s {p}.",
];
const FINDS: [&str; 3] = ["Finds the id of a {n}.", "The id of a {n}, by name.", "Returns a {n}'s id."];
const LISTS: [&str; 3] = ["Lists the {n}.", "All {n}.", "The names of all {n}."];
const UNKNOWN: [&str; 4] = ["unknown: {}", "there is no {}", "not found: {}", "error 404 for {}"];

/// Things of a kind.
const THINGS: usize = 10;

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

fn below(rng: &mut ChaCha8Rng, limit: usize) -> usize {
    (rng.next_u64() % limit as u64) as usize
}

fn one<T: Copy>(of: &[T], rng: &mut ChaCha8Rng) -> T {
    of[below(rng, of.len())]
}

/// Items of a list without repetition.
fn several<T: Copy>(of: &[T], count: usize, rng: &mut ChaCha8Rng) -> Vec<T> {
    let mut all = of.to_vec();
    shuffle(&mut all, rng);
    all.truncate(count);
    all
}

impl World {
    pub(super) fn open(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rng = &mut rng;
        let style = Style {
            getter: one(&GETTERS, rng),
            finder: one(&FINDERS, rng),
            lister: one(&LISTERS, rng),
            name: one(&NAMES, rng),
            id: one(&IDS, rng),
            gets: one(&GETS, rng),
            finds: one(&FINDS, rng),
            lists: one(&LISTS, rng),
            has_header: below(rng, 2) == 0,
            unknown: one(&UNKNOWN, rng),
        };
        let kinds = kinds(rng);
        let mut world = Self { kinds, style, actions: Vec::new(), families: String::new() };
        world.actions = world.actions(rng);
        world.families = families::families(&world);
        world
    }

    /// The tools by name, in an order drawn from the seed.
    fn actions(&self, rng: &mut ChaCha8Rng) -> Vec<(String, Action)> {
        let Style { getter, finder, lister, .. } = self.style;
        let mut actions = Vec::new();
        for (index, kind) in self.kinds.iter().enumerate() {
            actions.push((lister(&plural(kind.noun)), Action::List(index)));
            if kind.by_id {
                actions.push((finder(kind.noun), Action::Find(index)));
            }
            for (position, property) in kind.properties.iter().enumerate() {
                actions.push((getter(kind.noun, property.word), Action::Get(index, position)));
            }
        }
        shuffle(&mut actions, rng);
        actions
    }

    fn tool(&self, name: &str, action: Action) -> Tool {
        let parameter = self.parameter(action);
        let parameters: Vec<&str> = parameter.iter().map(String::as_str).collect();
        let description = match action {
            Action::List(kind) => self.style.lists.replace("{n}", &plural(self.kinds[kind].noun)),
            Action::Find(kind) => self.style.finds.replace("{n}", self.kinds[kind].noun),
            Action::Get(kind, position) => {
                let kind = &self.kinds[kind];
                self.style.gets.replace("{p}", kind.properties[position].word).replace("{n}", kind.noun)
            }
        };
        tool(name.to_owned(), description, &parameters, Reads)
    }

    /// The name of the tool that does this.
    fn name_of(&self, wanted: impl Fn(Action) -> bool) -> &str {
        let found = self.actions.iter().find(|(_, action)| wanted(*action));
        found.map_or("", |(name, _)| name)
    }

    /// The name of a tool's only parameter.
    fn parameter(&self, action: Action) -> Option<String> {
        let (kind, pattern) = match action {
            Action::List(_) => return None,
            Action::Find(kind) => (kind, self.style.name),
            Action::Get(kind, _) if self.kinds[kind].by_id => (kind, self.style.id),
            Action::Get(kind, _) => (kind, self.style.name),
        };
        Some(pattern.replace("{}", self.kinds[kind].noun))
    }

    fn answer(&self, action: Action, arguments: Arguments<'_>) -> Answer {
        let given = match self.parameter(action) {
            Some(name) => arguments.text(&name)?.trim().to_owned(),
            None => String::new(),
        };
        let unknown = || self.style.unknown.replace("{}", &given);
        let (header, lines) = match action {
            Action::List(kind) => {
                ("name", self.kinds[kind].things.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())
            }
            Action::Find(kind) => {
                let mut things = self.kinds[kind].things.iter();
                let found = things.find(|(name, _)| name.eq_ignore_ascii_case(&given));
                ("id", vec![found.map(|(_, id)| id.as_str()).ok_or_else(unknown)?])
            }
            Action::Get(kind, position) => {
                let kind = &self.kinds[kind];
                let is_meant = |(name, id): &(String, String)| {
                    if kind.by_id { *id == given } else { name.eq_ignore_ascii_case(&given) }
                };
                let thing = kind.things.iter().position(is_meant).ok_or_else(unknown)?;
                let property = &kind.properties[position];
                (property.word, vec![property.values[thing].as_str()])
            }
        };
        let header = self.style.has_header.then_some(header);
        Ok(header.into_iter().chain(lines).collect::<Vec<_>>().join("\n"))
    }
}

/// One to three kinds of things. No word is a property of two of them.
fn kinds(rng: &mut ChaCha8Rng) -> Vec<Kind> {
    let nouns = several(&NOUNS, 1 + below(rng, 3), rng);
    let count = nouns.len();
    let mut numbers = several(&NUMBERS, NUMBERS.len(), rng);
    let mut words = several(&WORDS, WORDS.len(), rng);
    let mut links = several(&LINKS, LINKS.len(), rng);
    let mut names: Vec<String> =
        FIRST.iter().flat_map(|first| SECOND.iter().map(move |second| format!("{first}{second}"))).collect();
    shuffle(&mut names, rng);
    let mut ids: Vec<String> = (10..100).map(|id| id.to_string()).collect();
    shuffle(&mut ids, rng);
    let mut kinds: Vec<Kind> = nouns
        .into_iter()
        .map(|noun| Kind {
            noun,
            things: names.drain(..THINGS).zip(ids.drain(..THINGS)).collect(),
            properties: Vec::new(),
            by_id: below(rng, 3) == 0,
        })
        .collect();
    for index in 0..count {
        let mut properties = Vec::new();
        for _ in 0..2 + below(rng, 4 - count.max(2)) {
            let is_number = below(rng, 2) == 0;
            let Some(word) = (if is_number { &mut numbers } else { &mut words }).pop() else { continue };
            let mut value = || match is_number {
                true => (10 + below(rng, 90)).to_string(),
                false => one(&VALUES, rng).to_owned(),
            };
            properties.push(Property { word, values: (0..THINGS).map(|_| value()).collect(), link: None });
        }
        if let Some(word) = links.pop().filter(|_| below(rng, 2) == 0) {
            let other = below(rng, count);
            let values = (0..THINGS).map(|thing| {
                // Not itself.
                let step = 1 + below(rng, THINGS - 1);
                kinds[other].things[(thing + step) % THINGS].0.clone()
            });
            let values = values.collect();
            properties.push(Property { word, values, link: Some(other) });
        }
        shuffle(&mut properties, rng);
        kinds[index].properties = properties;
    }
    kinds
}

impl Demo for World {
    fn name(&self) -> &'static str {
        "mcprl-demo-world"
    }

    fn tools(&self) -> Vec<Tool> {
        self.actions.iter().map(|(name, action)| self.tool(name, *action)).collect()
    }

    fn call(&self, tool: &str, arguments: Arguments<'_>) -> Option<Answer> {
        let (_, action) = self.actions.iter().find(|(name, _)| name == tool)?;
        Some(self.answer(*action, arguments))
    }

    fn families(&self) -> Option<&str> {
        Some(&self.families)
    }
}

#[cfg(test)]
mod tests;
