//! The wording of explored tasks: a small grammar over the names of fields and parameters and the descriptions of tools.

use super::templates::sentence;
use crate::{answer_rule::AnswerRule, words};

/// Where the answer is: the phrase of a tool's result, with its arguments, and the word for one record.
#[derive(Clone, Copy, Default)]
pub struct Scene<'a> {
    pub place: &'a str,
    pub thing: &'a str,
    /// What is asked for or compared are dates or times.
    pub of_moments: bool,
    /// These are dates without a time.
    pub of_days: bool,
    /// What is asked for is a number of what the field is called.
    pub is_count: bool,
    /// What the values are if they are codes or numbers of things: `code`.
    pub codes: Option<&'static str>,
    /// Several records have the same value.
    pub repeats: bool,
}

pub const ALL: &str = "Give all of them, separated by commas.";
/// The same where several records have one value.
pub const EACH: &str = "Give each once, separated by commas.";

/// Ways to ask, by name. The names decide splits by phrasing.
pub fn ask(rule: &AnswerRule, scene: &Scene<'_>) -> Vec<(String, String)> {
    let Scene { place, thing, .. } = scene;
    let things = words::plural(thing);
    let texts = match rule {
        AnswerRule::Field { key: Some((key, value)), field: wanted, .. } if field(wanted) == *thing => {
            let (k, v) = (field(key), words::shown(value));
            vec![
                format!("What is the {thing} whose {k} is {v} in the {place}?"),
                format!("Look at the {place}. Which {thing} has the {k} {v}?"),
                format!("Tell me the {thing} whose {k} is {v} in the {place}."),
                format!("In the {place}, find the {thing} whose {k} is {v}."),
            ]
        }
        AnswerRule::Field { key: Some((key, value)), field: wanted, .. } => {
            let (f, k, v) = (field(wanted), field(key), words::shown(value));
            let be = be(&f);
            vec![
                format!("What {be} the {f} of the {thing} whose {k} is {v} in the {place}?"),
                format!("Look at the {place}. What {be} the {f} of the {thing} with {k} {v}?"),
                format!("Tell me the {f} of the {thing} whose {k} is {v} in the {place}."),
                format!("In the {place}, find the {thing} whose {k} is {v} and report its {f}."),
                format!("I need the {f} that the {thing} with {k} {v} has in the {place}."),
            ]
        }
        AnswerRule::Field { key: None, field: wanted, .. } => {
            let f = field(wanted);
            let be = be(&f);
            vec![
                format!("What {be} the {f} in the {place}?"),
                format!("Look at the {place}. What {be} the {f}?"),
                format!("Tell me the {f} in the {place}."),
                format!(
                    "Report the {f} that the {place} {}.",
                    if words::is_plural(place) { "show" } else { "shows" }
                ),
                format!("According to the {place}, what {be} the {f}?"),
            ]
        }
        AnswerRule::Count { .. } => vec![
            format!("How many {things} are there in the {place}?"),
            format!("Count the {things} in the {place}."),
            format!("Look at the {place}. How many {things} are there?"),
            format!("Report the number of {things} in the {place}."),
        ],
        AnswerRule::Column { field: wanted, .. } if wanted.is_empty() => vec![
            format!("Which {things} are there in the {place}? {ALL}"),
            format!("List the {things} in the {place}, separated by commas."),
            format!("Look at the {place}. Which {things} are there? {ALL}"),
        ],
        AnswerRule::Column { field: wanted, .. } => {
            let f = match field(wanted) {
                odd if odd.ends_with('"') => format!("values of {odd}"),
                name => words::plural(&name),
            };
            let (different, all) = if scene.repeats { ("different ", EACH) } else { ("", ALL) };
            vec![
                format!("Which {different}{f} do the {things} in the {place} have? {all}"),
                format!("List the {different}{f} of the {things} in the {place}, separated by commas."),
                format!("Look at the {place}. Which {different}{f} do the {things} have? {all}"),
            ]
        }
        AnswerRule::Only | AnswerRule::Number { .. } => vec![
            format!("What {} the {place}?", be(place)),
            format!("Tell me the {place}."),
            format!("Find out the {place}."),
            format!("I need to know the {place}."),
        ],
        _ => Vec::new(),
    };
    named(rule, &texts)
}

/// A field's name in a sentence.
pub fn field(name: &str) -> String {
    if name.is_empty() { "name".to_owned() } else { words::in_full(&words::spoken_field(name)) }
}

/// What was done, by a field of moments: `installed`.
pub fn done(f: &str) -> Option<&str> {
    (f.ends_with("ed") && !f.contains(' ')).then_some(f)
}

/// Whether a field is a participle and has no moments: nobody asks for `the installed`.
pub fn is_odd(name: &str, of_moments: bool) -> bool {
    let said = field(name);
    let last = said.rsplit(' ').next().unwrap_or_default();
    let is_verb = words::is_preposition(last) || last == "as" || last == "with";
    (done(&said).is_some()
        || is_verb && !said.ends_with('"')
        || words::ADJECTIVES.contains(&said.as_str())
        || !words::is_english(&said))
        && !of_moments
}

pub fn be(phrase: &str) -> &'static str {
    if words::is_plural(phrase) { "are" } else { "is" }
}

/// Texts as sentences, by name.
pub fn named(rule: &AnswerRule, texts: &[String]) -> Vec<(String, String)> {
    let name = |(index, text): (usize, &String)| (format!("{} {}", rule.kind(), index + 1), sentence(text));
    texts.iter().enumerate().map(name).collect()
}

/// Phrases joined as `a, b and c`.
pub fn joined(phrases: &[String]) -> String {
    match phrases {
        [] => String::new(),
        [only] => only.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}
