//! The words of orders, from the table `phrases.toml`: verbs by class, roles of parameters, and values for what is new.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde::Deserialize;

use crate::{explored::seeds::Param, words};

#[derive(Debug, Default, Deserialize)]
pub struct Phrases {
    #[serde(rename = "class")]
    classes: Vec<Class>,
    prepositions: BTreeMap<String, String>,
    objects: BTreeMap<String, String>,
    places: Places,
    particles: BTreeSet<String>,
    /// Verbs by which a thing gets another day or time.
    pub moved: BTreeSet<String>,
    /// Verbs by which a thing becomes another one with a name of its own.
    pub copied: BTreeSet<String>,
    #[serde(rename = "role")]
    roles: Vec<Role>,
    pub fields: Fields,
    states: BTreeMap<String, String>,
    pools: BTreeMap<String, Vec<String>>,
    participles: BTreeMap<String, String>,
}

/// Verbs whose orders have the same sentences.
#[derive(Debug, Deserialize)]
pub struct Class {
    pub name: String,
    verbs: Vec<String>,
    pub orders: Vec<String>,
    pub closing: String,
}

/// What things are put into, and the verbs that do so or take them from there.
#[derive(Debug, Default, Deserialize)]
struct Places {
    words: Vec<String>,
    into: Vec<String>,
    from: Vec<String>,
}

/// What a parameter is, by its words.
#[derive(Debug, Clone, Deserialize)]
pub struct Role {
    words: Vec<String>,
    pub said: String,
    /// Its value stands in front of the thing: `5 of item X`.
    #[serde(default)]
    pub is_in_front: bool,
    /// It names what is new.
    #[serde(default)]
    pub is_name: bool,
    /// It stands directly behind what is done to it: `the fine of 3`.
    #[serde(default)]
    pub is_of: bool,
    /// It is whose the item is: `the comment "x" by Ann`.
    #[serde(default)]
    pub is_by: bool,
    /// Where its values come from if it is a free text.
    pool: Option<String>,
}

impl Role {
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Where its values come from if it is a free text.
    pub fn pool(&self) -> Option<&str> {
        self.pool.as_deref()
    }

    /// Whether it is the day or the time at which something is done.
    pub fn is_plain_moment(&self) -> bool {
        ["on {value}", "at {value}"].contains(&self.said.as_str())
    }

    /// Whether any value works: what works says nothing about what it is.
    pub fn is_free(&self) -> bool {
        self.is_name || self.is_in_front || self.pool.is_some()
    }
}

/// Words of fields by the way a value stands beside its thing.
#[derive(Debug, Default, Deserialize)]
pub struct Fields {
    adjectives: Vec<String>,
    of: Vec<String>,
    #[serde(rename = "in")]
    within: Vec<String>,
    first: Vec<String>,
}

/// How a field's value stands beside the thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldPlace {
    /// `open tickets`
    Adjective,
    /// `tickets of Ann`
    Of,
    /// `items in Hall 2`
    Within,
    /// `tickets with high priority`
    First,
    /// `rooms with the size 4`
    With,
}

/// A file that is embedded and tested, so that it can be read.
pub static PHRASES: LazyLock<Phrases> =
    LazyLock::new(|| toml::from_str(include_str!("phrases.toml")).unwrap_or_default());

/// The verb of a tool, and what else its name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verb {
    /// `check`
    pub stem: String,
    /// `out`, or empty.
    pub particle: String,
    /// The nouns behind it: `book`.
    pub object: Vec<String>,
    /// What stands behind the thing: `as read`.
    pub tail: String,
}

impl Phrases {
    /// The verb of a tool's name, or of its description.
    pub fn verb(&self, name: &str, description: &str) -> Option<Verb> {
        let said = words::split(name);
        let place = said.iter().position(|word| self.is_change(word));
        let (mut rest, stem) = match place {
            Some(place) => {
                let before = said[..place].iter().cloned();
                (before.chain(said[place + 1..].iter().cloned()).collect::<Vec<_>>(), said[place].clone())
            }
            None => {
                let first = words::first_sentence(description).first().map(|word| word.to_lowercase())?;
                let stems = ["", "s", "es"].map(|end| first.strip_suffix(end).unwrap_or_default().to_owned());
                (said, stems.into_iter().find(|stem| self.is_change(stem))?)
            }
        };
        let stem = if stem == "checkout" { "check".to_owned() } else { stem };
        let mut particle = String::new();
        if name.to_lowercase().contains("checkout") {
            particle = "out".into();
        } else if rest.first().is_some_and(|word| self.particles.contains(word)) {
            particle = rest.remove(0);
        }
        let tail = rest.iter().position(|word| word == "as").map(|place| rest.split_off(place).join(" "));
        // `add_item_to_cart` is about an item.
        if let Some(place) = rest.iter().position(|word| words::is_preposition(word) || word == "to") {
            rest.truncate(place);
        }
        Some(Verb { stem, particle, object: rest, tail: tail.unwrap_or_default() })
    }

    /// Whether a word says that something changes.
    pub fn is_change(&self, verb: &str) -> bool {
        self.classes.iter().any(|class| class.verbs.iter().any(|known| known == verb))
    }

    /// The first class with a verb, of those that fit.
    pub fn class(&self, verb: &str, fits: impl Fn(&str) -> bool) -> Option<&Class> {
        let has = |class: &&Class| class.verbs.iter().any(|known| known == verb);
        let other = || self.classes.iter().find(|class| class.name == "other");
        self.classes.iter().filter(has).find(|class| fits(&class.name)).or_else(other)
    }

    /// The word between what is made and the thing that it is about, which is called so.
    pub fn preposition_of_object(&self, object: &str, noun: &str) -> Option<&str> {
        let is_whose = matches!(self.place_of(noun), FieldPlace::Of) || ["card", "account"].contains(&noun);
        self.objects.get(object).map(String::as_str).filter(|_| !is_whose)
    }

    /// The word between what is done and a thing that is called so: `to` a person, `into` a bin.
    pub fn preposition(&self, verb: &str, noun: &str) -> &str {
        let is_one = |known: &[String]| known.iter().any(|known| known == verb);
        let is_place =
            words::split(noun).last().is_some_and(|last| self.places.words.contains(&words::singular(last)));
        match self.prepositions.get(verb) {
            // What is returned to a place comes from a person.
            Some(own) if !(is_place && own == "from" && is_one(&self.places.into)) => own,
            _ if is_place && is_one(&self.places.into) => "into",
            _ if is_place && is_one(&self.places.from) => "from",
            _ if is_place => "in",
            _ => "for",
        }
    }

    pub fn role(&self, param: &str) -> Option<&Role> {
        let said = words::split(param);
        self.roles.iter().find(|role| said.iter().any(|word| role.words.contains(word)))
    }

    /// Values for a free text.
    pub fn pool(&self, param: &Param, thing: &str) -> &[String] {
        let role = self.role(&param.name);
        let is_of = |words: &[&str]| words.iter().any(|word| param.words.contains(*word));
        let is_person = || {
            words::has_any(
                thing,
                &[
                    "member", "user", "person", "customer", "employee", "contact", "student", "patron",
                    "author", "agent",
                ],
            )
        };
        let name = match role {
            _ if is_of(&["date", "day", "due", "deadline", "until"]) => "dates",
            _ if is_of(&["time", "start", "end", "hour"]) => "times",
            Some(role) if role.is_name && is_of(&["title", "subject", "summary"]) => "titles",
            Some(role) if role.is_name && is_person() => "people",
            Some(role) if role.is_name => "names",
            Some(role) => role.pool.as_deref().unwrap_or("remarks"),
            None if is_of(&["person", "assignee", "author", "owner", "customer", "member"]) => "people",
            None => "names",
        };
        self.pools.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn participle(&self, verb: &Verb) -> String {
        let stem = verb.stem.as_str();
        let vowels = "aeiou";
        let done = match self.participles.get(stem) {
            Some(done) => done.clone(),
            None if stem.ends_with('e') => format!("{stem}d"),
            None => match stem.strip_suffix('y').filter(|rest| !rest.ends_with(|end| vowels.contains(end))) {
                Some(rest) => format!("{rest}ied"),
                None if doubles(stem) => format!("{stem}{}ed", stem.chars().last().unwrap_or_default()),
                None => format!("{stem}ed"),
            },
        };
        if verb.particle.is_empty() { done } else { format!("{done} {}", verb.particle) }
    }

    /// What a thing is to the value of a field: `assigned to`.
    pub fn state_of(&self, field: &str) -> Option<&str> {
        self.states.get(words::split(field).last()?).map(String::as_str)
    }

    pub fn place_of(&self, field: &str) -> FieldPlace {
        let last = words::split(field).pop().unwrap_or_default();
        let is_one = |known: &[String]| known.contains(&last);
        match &self.fields {
            fields if is_one(&fields.adjectives) => FieldPlace::Adjective,
            fields if is_one(&fields.of) => FieldPlace::Of,
            fields if is_one(&fields.within) => FieldPlace::Within,
            fields if is_one(&fields.first) => FieldPlace::First,
            _ => FieldPlace::With,
        }
    }
}

/// Whether a verb of one syllable doubles its last letter: `pin`, `ship`, `tag`.
fn doubles(stem: &str) -> bool {
    let letters: Vec<char> = stem.chars().rev().collect();
    let is_vowel = |letter: &char| "aeiou".contains(*letter);
    let count = letters.iter().filter(|letter| is_vowel(letter)).count();
    match letters.as_slice() {
        [last, before, rest @ ..] => {
            let ends = !is_vowel(last) && !"wxy".contains(*last) && is_vowel(before);
            let is_short = count == 1 || ["submit", "admit", "permit", "refer", "enrol"].contains(&stem);
            ends && is_short && !rest.first().is_some_and(is_vowel)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        toml::from_str::<Phrases>(include_str!("phrases.toml")).unwrap();
        assert!(PHRASES.is_change("close") && !PHRASES.is_change("list"));
    }

    #[test]
    fn a_tools_name_has_a_verb_an_object_and_what_stands_behind_the_thing() {
        let of = |name: &str, description: &str| {
            let verb = PHRASES.verb(name, description).unwrap();
            format!("{} {}|{}|{}", verb.stem, verb.particle, verb.object.join(" "), verb.tail)
        };
        assert_eq!(of("close_ticket", ""), "close |ticket|");
        assert_eq!(of("check_out_book", ""), "check out|book|");
        assert_eq!(of("markAsRead", ""), "mark ||as read");
        assert_eq!(of("add_item_to_cart", ""), "add |item|");
        assert_eq!(of("notes-add", ""), "add |notes|");
        assert_eq!(of("triage", "Assigns a ticket to an agent."), "assign |triage|");
        assert_eq!(PHRASES.verb("look", "Shows a ticket."), None);
    }

    #[test]
    fn a_preposition_is_that_of_the_verb_and_of_what_stands_behind_it() {
        for (verb, noun, expected) in [
            ("receive", "bin", "into"),
            ("pick", "bin", "from"),
            ("move", "bin", "to"),
            ("assign", "agent", "to"),
            ("return", "shelf", "into"),
            ("return", "card", "from"),
            ("reserve", "room", "in"),
            ("reserve", "member", "for"),
        ] {
            assert_eq!(PHRASES.preposition(verb, noun), expected, "{verb} {noun}");
        }
    }

    #[test]
    fn participles_are_those_of_the_language() {
        for (name, expected) in [
            ("close_x", "closed"),
            ("pin_x", "pinned"),
            ("cancel_x", "canceled"),
            ("apply_x", "applied"),
            ("lend_x", "lent"),
            ("check_out_x", "checked out"),
            ("return_x", "returned"),
            ("submit_x", "submitted"),
            ("pay_x", "paid"),
            ("delay_x", "delayed"),
        ] {
            let verb = PHRASES.verb(name, "").unwrap_or(Verb {
                stem: "apply".into(),
                particle: String::new(),
                object: vec![],
                tail: String::new(),
            });
            assert_eq!(PHRASES.participle(&verb), expected);
        }
    }
}
