//! The small grammar of questions and calls.
//!
//! | written | means |
//! |---|---|
//! | `{person}` | the entity bound to `person`, or one of the alternatives of the word `person` |
//! | `{person:quoted}` | the same as an SQL string: in single quotes, those inside it doubled |
//! | `{What is\|Tell me}` | one of these; they may contain braces, and may be empty |
//! | `{{`, `}}` | a brace |
//!
//! A [`Template`] is the text as written. A [`Phrase`] has all names resolved, so that drawing cannot fail.
//! Alternatives come in two lists, `train` and `unseen`. The latter are kept out of training questions, to
//! test whether an agent understands sentences it never read.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use rand_chacha::{ChaCha8Rng, rand_core::Rng};

/// Values of an entity's columns by name.
pub type Binding = BTreeMap<String, String>;

/// A text as written, not yet resolved.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template(Vec<TemplatePart>);

#[derive(Debug, Clone, PartialEq)]
enum TemplatePart {
    Text(String),
    Name { name: String, quoted: bool },
    Choice(Vec<Template>),
}

impl Template {
    pub fn parse(source: &str) -> Result<Self, String> {
        Self::parts(&mut &*source, false)
    }

    /// Reads to the end, or within braces to the `|` or `}` that ends an alternative.
    fn parts(rest: &mut &str, within: bool) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut text = String::new();
        loop {
            let Some(letter) = rest.chars().next() else {
                if within {
                    return Err("a `{` is never closed".into());
                }
                break;
            };
            if within && (letter == '|' || letter == '}') {
                break;
            }
            let doubled = rest.starts_with("{{") || rest.starts_with("}}");
            *rest = &rest[letter.len_utf8()..];
            match letter {
                '{' | '}' if doubled && !within => {
                    *rest = &rest[1..];
                    text.push(letter);
                }
                '{' => {
                    if !text.is_empty() {
                        parts.push(TemplatePart::Text(std::mem::take(&mut text)));
                    }
                    parts.push(Self::braces(rest)?);
                }
                '}' => return Err("a `}` without a `{` (a brace itself is written `}}`)".into()),
                _ => text.push(letter),
            }
        }
        if !text.is_empty() {
            parts.push(TemplatePart::Text(text));
        }
        Ok(Self(parts))
    }

    /// Reads what follows a `{`, including its `}`.
    fn braces(rest: &mut &str) -> Result<TemplatePart, String> {
        let mut alternatives = Vec::new();
        loop {
            alternatives.push(Self::parts(rest, true)?);
            let more = rest.starts_with('|');
            *rest = &rest[1..];
            if !more {
                break;
            }
        }
        match alternatives.as_slice() {
            [Self(parts)] => match parts.as_slice() {
                [TemplatePart::Text(name)] => Self::name(name),
                _ => Err("`{…}` should hold a name, or alternatives separated by `|`".into()),
            },
            _ => Ok(TemplatePart::Choice(alternatives)),
        }
    }

    fn name(written: &str) -> Result<TemplatePart, String> {
        let (name, quoted) = match written.split_once(':') {
            Some((name, "quoted")) => (name, true),
            Some((_, other)) => return Err(format!("`:{other}` is unknown; there is `:quoted`")),
            None => (written, false),
        };
        if name.is_empty() || !name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_') {
            return Err(format!("`{{{written}}}` should hold a name, or alternatives separated by `|`"));
        }
        Ok(TemplatePart::Name { name: name.to_owned(), quoted })
    }
}

/// The alternatives of a word.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct WordChoices {
    pub train: Vec<Template>,
    pub unseen: Vec<Template>,
}

/// What a name can refer to where a template is used.
pub(super) struct Scope<'a> {
    words: BTreeMap<&'a str, &'a WordChoices>,
    entities: Vec<&'a str>,
    /// Cache of resolved words: most are used within several others.
    known: RefCell<BTreeMap<&'a str, Phrase>>,
}

/// Deepest nesting of words; deeper means a cycle.
const DEPTH: usize = 12;

impl<'a> Scope<'a> {
    pub fn new(words: BTreeMap<&'a str, &'a WordChoices>, entities: Vec<&'a str>) -> Self {
        Self { words, entities, known: RefCell::default() }
    }

    pub fn parse(&self, text: &str) -> Result<Phrase, String> {
        self.resolve(&Template::parse(text)?, DEPTH)
    }

    /// All alternatives of a list of templates as one phrase.
    pub fn choice(&self, word: &WordChoices) -> Result<Phrase, String> {
        self.alternatives(&word.train, &word.unseen, DEPTH)
    }

    fn word(&self, name: &'a str, word: &WordChoices, depth: usize) -> Result<Phrase, String> {
        if let Some(known) = self.known.borrow().get(name) {
            return Ok(known.clone());
        }
        let found = self.alternatives(&word.train, &word.unseen, depth)?;
        self.known.borrow_mut().insert(name, found.clone());
        Ok(found)
    }

    fn resolve(&self, template: &Template, depth: usize) -> Result<Phrase, String> {
        let depth = depth.checked_sub(1).ok_or("words refer to each other in a circle")?;
        let parts = template.0.iter().map(|part| match part {
            TemplatePart::Text(text) => Ok(Phrase::Text(text.as_str().into())),
            TemplatePart::Choice(alternatives) => self.alternatives(alternatives, &[], depth),
            TemplatePart::Name { name, quoted } => match self.words.get_key_value(name.as_str()) {
                Some((name, word)) if !quoted => self.word(name, word, depth),
                _ if self.entities.contains(&name.as_str()) => {
                    Ok(Phrase::Entity { column: name.as_str().into(), quoted: *quoted })
                }
                Some(_) => Err(format!("only an entity can be `:quoted`, and `{name}` is a word")),
                None => {
                    let known = self.words.keys().copied().chain(self.entities.iter().copied());
                    let hint = crate::error::did_you_mean(name, known)
                        .map_or(String::new(), |near| format!("; did you mean `{{{near}}}`?"));
                    Err(format!("there is no word or entity `{{{name}}}` here{hint}"))
                }
            },
        });
        let mut parts: Vec<Phrase> = parts.collect::<Result<_, String>>()?;
        Ok(if parts.len() == 1 { parts.remove(0) } else { Phrase::Sequence(parts.into()) })
    }

    fn alternatives(&self, train: &[Template], unseen: &[Template], depth: usize) -> Result<Phrase, String> {
        let resolved = |templates: &[Template]| {
            templates.iter().map(|template| self.resolve(template, depth)).collect::<Result<Vec<_>, _>>()
        };
        let (mut train, unseen) = (resolved(train)?, resolved(unseen)?);
        if train.len() == 1 && unseen.is_empty() {
            return Ok(train.remove(0));
        }
        Ok(Phrase::Choice { train: train.into(), unseen: unseen.into() })
    }
}

/// A text with all names resolved. Only the entity and the choice among alternatives are open.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phrase {
    Text(Arc<str>),
    Entity { column: Arc<str>, quoted: bool },
    Choice { train: Arc<[Phrase]>, unseen: Arc<[Phrase]> },
    Sequence(Arc<[Phrase]>),
}

impl Phrase {
    /// Draws a text from training alternatives only.
    pub fn draw(&self, binding: &Binding, rng: &mut ChaCha8Rng) -> String {
        let mut draw = Draw { binding, rng, unseen: None, text: String::new() };
        draw.add(self);
        draw.text
    }

    /// Draws a text with at least one unseen alternative; none if a few tries find none.
    pub fn draw_unseen(&self, binding: &Binding, rng: &mut ChaCha8Rng) -> Option<String> {
        const TRIES: usize = 16;
        (0..TRIES).find_map(|_| {
            let mut draw = Draw { binding, rng, unseen: Some(false), text: String::new() };
            draw.add(self);
            (draw.unseen == Some(true)).then_some(draw.text)
        })
    }

    /// The text if it has no alternatives, as in calls.
    pub fn fill(&self, binding: &Binding) -> String {
        match self {
            Self::Text(text) => text.to_string(),
            Self::Entity { column, quoted } => entity(binding, column, *quoted),
            Self::Choice { train, .. } => {
                train.first().map(|phrase| phrase.fill(binding)).unwrap_or_default()
            }
            Self::Sequence(parts) => parts.iter().map(|part| part.fill(binding)).collect(),
        }
    }

    pub fn leaves_a_choice(&self) -> bool {
        match self {
            Self::Text(_) | Self::Entity { .. } => false,
            Self::Choice { .. } => true,
            Self::Sequence(parts) => parts.iter().any(Self::leaves_a_choice),
        }
    }
}

struct Draw<'a> {
    binding: &'a Binding,
    rng: &'a mut ChaCha8Rng,
    /// Whether an unseen alternative was taken; absent if none may be.
    unseen: Option<bool>,
    text: String,
}

impl Draw<'_> {
    fn add(&mut self, phrase: &Phrase) {
        match phrase {
            Phrase::Text(text) => self.text.push_str(text),
            Phrase::Entity { column, quoted } => self.text.push_str(&entity(self.binding, column, *quoted)),
            Phrase::Sequence(parts) => parts.iter().for_each(|part| self.add(part)),
            Phrase::Choice { train, unseen } => {
                // Even odds, however few the unseen alternatives are.
                let is_unseen = self.unseen.is_some()
                    && !unseen.is_empty()
                    && (train.is_empty() || below(self.rng, 2) == 0);
                let among = if is_unseen { unseen } else { train };
                if is_unseen {
                    self.unseen = Some(true);
                }
                if !among.is_empty() {
                    let chosen = below(self.rng, among.len());
                    self.add(&among[chosen]);
                }
            }
        }
    }
}

fn entity(binding: &Binding, column: &str, quoted: bool) -> String {
    let value = binding.get(column).map(String::as_str).unwrap_or_default();
    if quoted { format!("'{}'", value.replace('\'', "''")) } else { value.to_owned() }
}

/// A number in `0..bound`; `bound` is small, so the modulo bias is negligible.
pub(super) fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    (rng.next_u64() % bound.max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn phrase(text: &str) -> Result<Phrase, String> {
        let noun =
            WordChoices { train: vec![Template::parse("pay")?], unseen: vec![Template::parse("salary")?] };
        let who = WordChoices { train: vec![Template::parse("{head|lead} of {team}")?], unseen: Vec::new() };
        let circle = WordChoices { train: vec![Template::parse("{circle}")?], unseen: Vec::new() };
        let words = [("noun", &noun), ("who", &who), ("circle", &circle)];
        let scope = Scope::new(words.into(), vec!["team"]);
        scope.parse(text)
    }

    fn texts(
        phrase: &Phrase,
        draw: impl Fn(&Phrase, &Binding, &mut ChaCha8Rng) -> Option<String>,
    ) -> Vec<String> {
        let binding = Binding::from([("team".into(), "O'Neil".into())]);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut texts: Vec<String> = (0..64).filter_map(|_| draw(phrase, &binding, &mut rng)).collect();
        texts.sort();
        texts.dedup();
        texts
    }

    #[test]
    fn alternatives_words_and_entities_are_combined() {
        let drawn = texts(&phrase("{The |}{noun} of the {who}{{?}}").unwrap(), |p, b, r| Some(p.draw(b, r)));
        assert_eq!(
            drawn,
            [
                "The pay of the head of O'Neil{?}",
                "The pay of the lead of O'Neil{?}",
                "pay of the head of O'Neil{?}",
                "pay of the lead of O'Neil{?}",
            ]
        );
    }

    #[test]
    fn unseen_alternatives_are_drawn_only_on_request() {
        let sentence = phrase("{noun} and {noun}").unwrap();
        assert_eq!(texts(&sentence, |p, b, r| Some(p.draw(b, r))), ["pay and pay"]);
        let unseen = texts(&sentence, Phrase::draw_unseen);
        assert_eq!(unseen, ["pay and salary", "salary and pay", "salary and salary"]);
        assert!(texts(&phrase("no alternatives").unwrap(), Phrase::draw_unseen).is_empty());
    }

    #[test]
    fn a_quoted_entity_cannot_leave_its_quotes() {
        assert_eq!(texts(&phrase("= {team:quoted}").unwrap(), |p, b, _| Some(p.fill(b))), ["= 'O''Neil'"]);
    }

    #[test]
    fn a_bad_template_names_its_problem() {
        let cases = [
            ("{noun", "a `{` is never closed"),
            ("noun}", "a `}` without a `{` (a brace itself is written `}}`)"),
            ("{two words}", "`{two words}` should hold a name, or alternatives separated by `|`"),
            ("{nuon}", "there is no word or entity `{nuon}` here; did you mean `{noun}`?"),
            ("{team:upper}", "`:upper` is unknown; there is `:quoted`"),
            ("{noun:quoted}", "only an entity can be `:quoted`, and `noun` is a word"),
            ("{circle}", "words refer to each other in a circle"),
        ];
        for (text, expected) in cases {
            assert_eq!(phrase(text).unwrap_err(), expected, "{text}");
        }
    }
}
