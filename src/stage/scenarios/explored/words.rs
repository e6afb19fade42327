//! Words of identifiers, tools and descriptions: what fits what, and how it is called in a task.

use std::collections::BTreeSet;

/// Words that fit almost anything. They count less.
const WEAK: [&str; 18] = [
    "id", "key", "name", "value", "type", "text", "path", "query", "number", "data", "item", "content",
    "title", "input", "string", "list", "result", "uri",
];

/// Verbs at the beginning of tool names and descriptions.
const VERBS: [&str; 46] = [
    "get",
    "list",
    "show",
    "describe",
    "read",
    "find",
    "search",
    "fetch",
    "retrieve",
    "return",
    "look",
    "lookup",
    "view",
    "query",
    "count",
    "check",
    "display",
    "open",
    "load",
    "print",
    "provide",
    "give",
    "create",
    "add",
    "write",
    "update",
    "set",
    "make",
    "delete",
    "remove",
    "move",
    "rename",
    "execute",
    "run",
    "convert",
    "compute",
    "calculate",
    "demonstrate",
    "generate",
    "insert",
    "append",
    "edit",
    "record",
    "export",
    "toggle",
    "start",
];

/// Words of a description's beginning that say nothing about its object.
const FILLERS: [&str; 17] = [
    "the", "a", "an", "all", "every", "back", "out", "complete", "entire", "specific", "given", "single",
    "some", "any", "of", "for", "up",
];

/// Most words of a noun phrase.
const PHRASE_WORDS: usize = 12;

/// The words of an identifier: `pub_year`, `pubYear` and `Pub-Year` are `pub year`.
pub fn split(identifier: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut was_lower = false;
    for letter in identifier.chars() {
        let starts = letter.is_uppercase() && was_lower;
        if (starts || !letter.is_alphanumeric()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
        was_lower = letter.is_lowercase() || letter.is_numeric();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// An identifier as words of a sentence.
pub fn spoken(identifier: &str) -> String {
    split(identifier).join(" ")
}

pub fn singular(word: &str) -> String {
    let keeps = |end: &str| word.ends_with(end);
    match word {
        _ if word.len() < 4 || keeps("ss") || keeps("us") || keeps("is") => word.to_owned(),
        _ if keeps("ies") => format!("{}y", &word[..word.len() - 3]),
        _ if keeps("ches") || keeps("shes") || keeps("xes") || keeps("sses") => {
            word[..word.len() - 2].to_owned()
        }
        _ if keeps("s") => word[..word.len() - 1].to_owned(),
        _ => word.to_owned(),
    }
}

pub fn plural(words: &str) -> String {
    match words {
        _ if words.ends_with('y') && !["ay", "ey", "oy"].iter().any(|end| words.ends_with(end)) => {
            format!("{}ies", &words[..words.len() - 1])
        }
        _ if words.ends_with('s') => words.to_owned(),
        _ if words.ends_with("ch") || words.ends_with("sh") || words.ends_with('x') => format!("{words}es"),
        _ => format!("{words}s"),
    }
}

/// The words of an identifier in singular.
pub fn tokens(identifier: &str) -> BTreeSet<String> {
    split(identifier).iter().map(|word| singular(word)).collect()
}

pub fn is_weak(word: &str) -> bool {
    WEAK.contains(&word)
}

fn is_verb(word: &str) -> bool {
    let stems = [word, word.strip_suffix('s').unwrap_or(word), word.strip_suffix("es").unwrap_or(word)];
    stems.iter().any(|stem| VERBS.contains(stem))
        || word.strip_suffix("ies").is_some_and(|stem| VERBS.contains(&&*format!("{stem}y")))
}

/// The words of a tool's name that are no verbs, as written.
pub fn nouns(tool: &str) -> Vec<String> {
    split(tool).into_iter().filter(|word| !is_verb(word)).collect()
}

/// What a tool gives, from its description or else its name: `Shows the commit logs.` is `commit logs`. The end is cut where
/// it repeats one of the parameters, which are named with their values.
pub fn phrase(tool: &str, description: &str, params: &BTreeSet<String>) -> String {
    let sentence = description.split(['\n', ':', '(', ',', ';']).next().unwrap_or_default();
    let sentence = sentence.split(". ").next().unwrap_or_default().trim().trim_end_matches('.');
    let mut words: Vec<&str> = sentence.split_whitespace().collect();
    let first = words.first().map(|word| word.to_lowercase()).unwrap_or_default();
    let is_of_name = split(tool).iter().any(|word| first.starts_with(word.as_str()));
    if !words.is_empty() && (is_verb(&first) || is_of_name) {
        words.remove(0);
    } else if words.len() > PHRASE_WORDS || words.len() < 2 {
        words.clear();
    }
    while words.first().is_some_and(|word| FILLERS.contains(&&*word.to_lowercase())) {
        words.remove(0);
    }
    // `schema of a table` with a parameter `table_name` is `schema`.
    let is_join = |word: &str| ["for", "of", "about", "in", "from", "by", "with", "to", "at"].contains(&word);
    let repeats = |tail: &[&str]| {
        tail.len() <= 6 && tail.iter().any(|word| params.contains(&singular(&word.to_lowercase())))
    };
    if let Some(cut) = (1..words.len()).rev().find(|cut| is_join(words[*cut]) && repeats(&words[*cut + 1..]))
    {
        words.truncate(cut);
    }
    words.truncate(PHRASE_WORDS);
    while words.last().is_some_and(|word| is_join(word) || ["and", "or", "a", "the"].contains(word)) {
        words.pop();
    }
    if words.is_empty() {
        let nouns = nouns(tool);
        return if nouns.is_empty() { "result".into() } else { nouns.join(" ") };
    }
    words.join(" ")
}

/// A value within a sentence.
pub fn shown(value: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "_-./:+@#%".contains(letter);
    if !value.is_empty() && value.chars().all(is_plain) && !value.ends_with(['.', ':']) {
        value.to_owned()
    } else {
        format!("\"{value}\"")
    }
}

/// Verbs of tools that probably read, where the server does not say it.
const READING: [&str; 10] =
    ["get", "list", "read", "describe", "show", "search", "find", "view", "open", "status"];

/// Whether the first word of a tool's name, or the last, says that it reads.
pub fn is_reading(tool: &str) -> bool {
    let words = split(tool);
    let says = |word: Option<&String>| word.is_some_and(|word| READING.contains(&word.as_str()));
    says(words.first()) || says(words.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split_into_words() {
        for (identifier, words) in [
            ("pub_year", "pub year"),
            ("pubYear", "pub year"),
            ("repo-path", "repo path"),
            ("ID", "id"),
            ("", ""),
        ] {
            assert_eq!(spoken(identifier), words);
        }
    }

    #[test]
    fn plural_and_singular_are_told_from_each_other() {
        for (one, many) in [
            ("table", "tables"),
            ("entity", "entities"),
            ("branch", "branches"),
            ("box", "boxes"),
            ("day", "days"),
        ] {
            assert_eq!(singular(many), one);
            assert_eq!(plural(one), many);
        }
        for word in ["status", "is", "address", "this"] {
            assert_eq!(singular(word), word, "{word}");
        }
    }

    #[test]
    fn a_description_becomes_a_noun_phrase() {
        let params = BTreeSet::from(["table".to_owned(), "name".to_owned()]);
        for (tool, description, expected) in [
            ("describe_table", "Get the schema information for a specific table", "schema information"),
            ("git_log", "Shows the commit logs", "commit logs"),
            ("list_tables", "List all tables in the SQLite database", "tables in the SQLite database"),
            ("get-sum", "Returns the sum of two numbers", "sum of two numbers"),
            ("search_nodes", "", "nodes"),
            ("get", "", "result"),
        ] {
            assert_eq!(phrase(tool, description, &params), expected, "{tool}");
        }
    }

    #[test]
    fn values_with_spaces_are_quoted() {
        assert_eq!(
            (shown("a/b.txt"), shown("Low Tide"), shown("")),
            ("a/b.txt".into(), "\"Low Tide\"".into(), "\"\"".into())
        );
    }
}
