//! Words of identifiers, tools and descriptions: what fits what, and how it is called in a task.

use std::collections::BTreeSet;

/// Words that fit almost anything. They count less.
const WEAK: [&str; 18] = [
    "id", "key", "name", "value", "type", "text", "path", "query", "number", "data", "item", "content",
    "title", "input", "string", "list", "result", "uri",
];

/// Verbs at the beginning of tool names and descriptions.
const VERBS: [&str; 50] = [
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
    "ensure",
    "obtain",
    "echo",
    "switch",
];

/// Words of a description's beginning that say nothing about its object.
const FILLERS: [&str; 21] = [
    "the", "a", "an", "to", "all", "every", "back", "out", "complete", "detailed", "entire", "full",
    "specific", "given", "single", "multiple", "some", "any", "of", "for", "up",
];
/// Words between a preposition and the noun of a parameter: `of a specific table`.
const DETERMINERS: [&str; 18] = [
    "their",
    "its",
    "the",
    "a",
    "an",
    "all",
    "every",
    "each",
    "specific",
    "specified",
    "given",
    "single",
    "multiple",
    "one",
    "some",
    "any",
    "particular",
    "existing",
];
const PREPOSITIONS: [&str; 13] =
    ["for", "of", "about", "in", "from", "by", "with", "to", "at", "on", "within", "matching", "between"];
/// What a path may be called.
const PATHS: [&str; 6] = ["path", "file", "directory", "folder", "repository", "repo"];

/// Words of what tells things apart.
pub const KEYS: [&str; 9] = ["id", "no", "nr", "num", "number", "code", "key", "ref", "uuid"];
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
    if let Some((singular, _)) = PLURALS.iter().find(|(_, plural)| *plural == word) {
        return (*singular).to_owned();
    }
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

/// Nouns whose plural is another word, or the same.
const PLURALS: [(&str, &str); 14] = [
    ("person", "people"),
    ("child", "children"),
    ("man", "men"),
    ("woman", "women"),
    ("foot", "feet"),
    ("shelf", "shelves"),
    ("staff", "staff"),
    ("equipment", "equipment"),
    ("furniture", "furniture"),
    ("information", "information"),
    ("data", "data"),
    ("stock", "stock"),
    ("series", "series"),
    ("species", "species"),
];

pub fn plural(words: &str) -> String {
    let (start, last) =
        words.rsplit_once(' ').map_or(("", words), |(_, last)| (&words[..words.len() - last.len()], last));
    if let Some((_, plural)) = PLURALS.iter().find(|(singular, _)| *singular == last) {
        return format!("{start}{plural}");
    }
    match words {
        _ if words.ends_with('y') && !["ay", "ey", "oy"].iter().any(|end| words.ends_with(end)) => {
            format!("{}ies", &words[..words.len() - 1])
        }
        _ if last.ends_with("sis") => format!("{}es", &words[..words.len() - 2]),
        // `class` and `status` are no plurals, `orders` is one.
        _ if words.ends_with('s') && (singular(last) != last || last.len() < 4) => words.to_owned(),
        _ if words.ends_with('s')
            || words.ends_with("ch")
            || words.ends_with("sh")
            || words.ends_with('x') =>
        {
            format!("{words}es")
        }
        _ => format!("{words}s"),
    }
}

/// The words of an identifier in singular.
pub fn tokens(identifier: &str) -> BTreeSet<String> {
    split(identifier).iter().map(|word| singular(word)).collect()
}

/// Whether one of these words, in singular, is in an identifier.
pub fn has_any(identifier: &str, words: &[&str]) -> bool {
    let tokens = tokens(identifier);
    words.iter().any(|word| tokens.contains(*word))
}

/// Words of what is counted, measured or paid.
const AMOUNTS: [&str; 57] = [
    "age",
    "amount",
    "amt",
    "average",
    "avg",
    "balance",
    "budget",
    "capacity",
    "cost",
    "count",
    "date",
    "day",
    "discount",
    "duration",
    "fare",
    "fee",
    "height",
    "hour",
    "income",
    "length",
    "level",
    "limit",
    "max",
    "mean",
    "min",
    "minute",
    "month",
    "offset",
    "pay",
    "percent",
    "percentage",
    "population",
    "price",
    "qty",
    "quantity",
    "rank",
    "rate",
    "rating",
    "rent",
    "revenue",
    "salary",
    "score",
    "second",
    "size",
    "stock",
    "sum",
    "tax",
    "temperature",
    "time",
    "total",
    "value",
    "volume",
    "wage",
    "weight",
    "width",
    "year",
    "quota",
];
/// Words of numbers and texts that say which one a thing is, and count nothing.
const IDENTIFIERS: [&str; 47] = [
    "barcode",
    "bic",
    "cell",
    "code",
    "ean",
    "epoch",
    "ext",
    "extension",
    "fax",
    "gtin",
    "guid",
    "iban",
    "id",
    "imei",
    "ip",
    "isbn",
    "issn",
    "key",
    "lat",
    "latitude",
    "lng",
    "lon",
    "longitude",
    "mobile",
    "nr",
    "phone",
    "pin",
    "plz",
    "port",
    "postal",
    "postcode",
    "ref",
    "room",
    "serial",
    "sku",
    "ssn",
    "stamp",
    "tel",
    "telephone",
    "timestamp",
    "ts",
    "upc",
    "uuid",
    "vat",
    "version",
    "vin",
    "zip",
];

/// Whether a word has no plural.
pub fn is_uncountable(word: &str) -> bool {
    PLURALS.iter().any(|(one, many)| one == many && *one == word)
}

/// Whether a field's name says that it is an amount, a count, a price or a measure: `employee_count`, `num_rooms`.
pub fn is_amount(identifier: &str) -> bool {
    let said = split(identifier);
    let is_plural = said.last().is_some_and(|last| singular(last) != *last);
    let is_number =
        |first: &String| ["number", "num", "no", "nr", "count", "total"].contains(&first.as_str());
    let counts = said.len() > 1 && said.first().is_some_and(is_number) && (is_plural || said[1] == "of");
    counts || said.last().is_some_and(|last| AMOUNTS.contains(&singular(last).as_str()))
}

/// Amounts whose sum says nothing.
const MEANS: [&str; 34] = [
    "priority",
    "sequence",
    "age",
    "average",
    "avg",
    "day",
    "index",
    "lat",
    "latitude",
    "level",
    "lng",
    "lon",
    "longitude",
    "max",
    "mean",
    "floor",
    "grade",
    "min",
    "month",
    "order",
    "percent",
    "semester",
    "percentage",
    "position",
    "rank",
    "rate",
    "rating",
    "score",
    "temperature",
    "version",
    "year",
    "height",
    "limit",
    "date",
];

/// Amounts whose mean, largest and smallest say little.
const PLACES: [&str; 16] = [
    "day",
    "grade",
    "index",
    "lat",
    "latitude",
    "level",
    "lng",
    "lon",
    "longitude",
    "month",
    "order",
    "position",
    "priority",
    "rank",
    "sequence",
    "version",
];

/// Whether people ask for the mean of a field's numbers.
pub fn is_compared(identifier: &str) -> bool {
    !has_any(identifier, &PLACES)
}

/// Whether people add up the numbers of a field.
pub fn is_added_up(identifier: &str) -> bool {
    !has_any(identifier, &MEANS)
}

/// Whether a field's name says that its values tell things apart: `phone`, `room_no`, `isbn`.
pub fn is_identifier(identifier: &str) -> bool {
    let said = split(identifier);
    let ends = |words: &[&str]| said.last().is_some_and(|last| words.contains(&singular(last).as_str()));
    !is_amount(identifier)
        && (ends(&["no", "number", "num"])
            || said.iter().any(|word| IDENTIFIERS.contains(&singular(word).as_str())))
}

pub fn is_weak(word: &str) -> bool {
    WEAK.contains(&word)
}

pub fn is_verb(word: &str) -> bool {
    let stems = [word, word.strip_suffix('s').unwrap_or(word), word.strip_suffix("es").unwrap_or(word)];
    stems.iter().any(|stem| VERBS.contains(stem))
        || word.strip_suffix("ies").is_some_and(|stem| VERBS.contains(&&*format!("{stem}y")))
}

/// The words of a tool's name that are no verbs, as written.
pub fn nouns(tool: &str) -> Vec<String> {
    split(tool).into_iter().filter(|word| !is_verb(word)).collect()
}

/// What a tool gives, in words: `contents of`, and behind it the parameter that is meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Phrase {
    pub text: String,
    pub slot: Option<Slot>,
}

/// Where a phrase names a parameter: `of a file` with the parameter `path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub param: String,
    /// `file`; empty if several nouns are possible or the noun says no more than the value.
    pub noun: String,
}

/// A parameter that a phrase may name.
pub struct Nameable<'a> {
    pub name: &'a str,
    pub words: &'a BTreeSet<String>,
    pub is_path: bool,
}

pub fn is_preposition(word: &str) -> bool {
    PREPOSITIONS.contains(&word.to_lowercase().as_str())
}

/// Such as `recursively`.
fn is_adverb(word: &str) -> bool {
    word.len() > 5 && word.ends_with("ly") && !["family", "reply", "assembly", "supply"].contains(&word)
}

/// The first sentence of a description, up to what is behind a comma, colon or parenthesis.
pub fn first_sentence(description: &str) -> Vec<&str> {
    let sentence = description.split(['\n', ':', '(', ',', ';']).next().unwrap_or_default();
    let sentence = sentence.split(". ").next().unwrap_or_default().trim().trim_end_matches('.');
    sentence.split_whitespace().collect()
}

/// Cuts what is only said besides: `… or ensure that …`, `… as text`, `… from an optional …`.
pub fn cut_asides(words: &mut Vec<&str>) {
    let is_aside = |at: usize| {
        let next = words.get(at + 1).map(|word| word.to_lowercase()).unwrap_or_default();
        match words[at].to_lowercase().as_str() {
            "and" | "or" => is_verb(&next),
            "as" | "along" | "using" => true,
            "that" | "which" => {
                ["can", "may", "could", "will", "should", "reference"].contains(&next.as_str())
            }
            _ => is_preposition(words[at]) && words[at + 1..].iter().take(2).any(|word| *word == "optional"),
        }
    };
    if let Some(cut) = (1..words.len()).find(|at| is_aside(*at)) {
        words.truncate(cut);
    }
    while words.last().is_some_and(|word| is_adverb(word)) {
        words.pop();
    }
}

/// What a tool gives, from its description or else its name: `Shows the commit logs.` is `commit logs`. It ends where it
/// names one of the required parameters.
pub fn phrase(tool: &str, description: &str, params: &[Nameable<'_>]) -> Phrase {
    let mut words = first_sentence(description);
    while words.first().is_some_and(|word| is_adverb(&word.to_lowercase())) {
        words.remove(0);
    }
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
    if words
        .first()
        .is_some_and(|word| ["how", "that", "whether", "if", "what"].contains(&&*word.to_lowercase()))
    {
        words.clear();
    }
    // `list of all airports` is the airports.
    if words.len() > 2 && ["list", "lists"].contains(&words[0]) && words[1] == "of" {
        words.drain(..2);
        while words.first().is_some_and(|word| FILLERS.contains(&&*word.to_lowercase())) {
            words.remove(0);
        }
    }
    cut_asides(&mut words);
    if params.len() > 1 {
        cut_pair(&mut words);
    }
    let slot = (1..words.len()).rev().find_map(|at| Some((at, slot(&words, at, params)?)));
    if let Some((at, _)) = &slot {
        words.truncate(at + 1);
    } else {
        words.truncate(PHRASE_WORDS);
        while words
            .last()
            .is_some_and(|word| is_preposition(word) || ["and", "or", "a", "the"].contains(word))
        {
            words.pop();
        }
    }
    if words.is_empty() || words.len() > PHRASE_WORDS {
        let nouns = nouns(tool);
        let text = if nouns.is_empty() { "result".into() } else { nouns.join(" ") };
        return Phrase { text, slot: None };
    }
    Phrase { text: words.join(" "), slot: slot.map(|(_, slot)| slot) }
}

/// The parameter that the words behind a preposition name: `of a file or directory`.
fn slot(words: &[&str], at: usize, params: &[Nameable<'_>]) -> Option<Slot> {
    if !is_preposition(words[at]) {
        return None;
    }
    let mut rest = words[at + 1..].iter().map(|word| word.to_lowercase()).collect::<Vec<_>>();
    while rest.first().is_some_and(|word| DETERMINERS.contains(&word.as_str())) {
        rest.remove(0);
    }
    let end = rest.iter().position(|word| is_preposition(word)).unwrap_or(rest.len());
    let nouns: Vec<String> = rest[..end]
        .iter()
        .filter(|word| !["or", "and"].contains(&word.as_str()))
        .map(|word| singular(word))
        .collect();
    let names = |param: &&Nameable<'_>| {
        let fits =
            |noun: &String| param.words.contains(noun) || param.is_path && PATHS.contains(&noun.as_str());
        nouns.len() == rest[..end].len().div_ceil(2) && !nouns.is_empty() && nouns.iter().all(fits)
    };
    let mut named = params.iter().filter(names);
    let (Some(param), None) = (named.next(), named.next()) else { return None };
    let noun = match nouns.as_slice() {
        [noun] if noun != "path" => noun.clone(),
        _ => String::new(),
    };
    Some(Slot { param: param.name.to_owned(), noun })
}

/// Units that end the names of columns, and how they are said.
pub const UNITS: [(&str, &str); 24] = [
    ("kg", "kg"),
    ("g", "g"),
    ("mg", "mg"),
    ("lb", "lb"),
    ("km", "km"),
    ("m", "m"),
    ("cm", "cm"),
    ("mm", "mm"),
    ("mi", "miles"),
    ("ml", "ml"),
    ("l", "l"),
    ("eur", "EUR"),
    ("usd", "USD"),
    ("gbp", "GBP"),
    ("chf", "CHF"),
    ("min", "minutes"),
    ("mins", "minutes"),
    ("minutes", "minutes"),
    ("sec", "seconds"),
    ("secs", "seconds"),
    ("seconds", "seconds"),
    ("hours", "hours"),
    ("days", "days"),
    ("months", "months"),
];

/// Names of fields that nobody says as they are written.
const SAID: [(&str, &str); 12] = [
    ("at", "time"),
    ("starts", "start"),
    ("ends", "end"),
    ("begins", "beginning"),
    ("expires", "expiry"),
    ("departs", "departure"),
    ("arrives", "arrival"),
    ("requires", "requirements"),
    ("dob", "date of birth"),
    ("created at", "creation time"),
    ("updated at", "time of the last update"),
    ("modified at", "time of the last change"),
];

/// A field's name in a sentence: quoted if it is a preposition. A nested one is `price for economy` or `address city`, and
/// `first name` if that says it.
pub fn spoken_field(name: &str) -> String {
    let words = match name.split_once('.') {
        Some((outer, inner)) if !inner.is_empty() => {
            let (within, last) = (tokens(outer), split(outer).pop().unwrap_or_default());
            let says_nothing = [
                "address",
                "attribute",
                "contact",
                "data",
                "detail",
                "info",
                "location",
                "option",
                "profile",
                "property",
                "setting",
                "spec",
            ]
            .contains(&&*singular(&last));
            match spoken(inner) {
                inner if says_nothing => inner,
                inner if within.is_subset(&tokens(&inner)) || inner.starts_with(&last) => inner,
                inner if singular(&last) != last => {
                    let outer = spoken(outer);
                    let is_amount = ["price", "cost", "fare", "amount", "rate", "fee"]
                        .contains(&singular(&last).as_str());
                    match outer.strip_suffix(&last).filter(|_| is_amount) {
                        Some(outer) => format!("{outer}{} for {inner}", singular(&last)),
                        None => format!("number of {outer} for {inner}"),
                    }
                }
                inner => format!("{} {inner}", spoken(outer)),
            }
        }
        _ => spoken(name),
    };
    if let Some((rest, unit)) = words.rsplit_once(' ')
        && let Some((_, unit)) = UNITS.iter().find(|(short, _)| *short == unit)
    {
        return format!("{rest} in {unit}");
    }
    let words = match words.rsplit_once(' ') {
        Some((rest, "no" | "nr" | "num")) => format!("{rest} number"),
        _ => words,
    };
    let known = SAID.iter().find(|(written, _)| *written == words);
    match known {
        Some((_, said)) => (*said).to_owned(),
        None if is_preposition(&words) => format!("\"{words}\""),
        None => words,
    }
}

/// Short forms in names of fields, and what people say.
const SHORT_FORMS: [(&str, &str); 24] = [
    ("addr", "address"),
    ("amt", "amount"),
    ("approx", "approximate"),
    ("avg", "average"),
    ("cust", "customer"),
    ("dept", "department"),
    ("desc", "description"),
    ("dest", "destination"),
    ("dist", "distance"),
    ("est", "estimated"),
    ("freq", "frequency"),
    ("img", "image"),
    ("lang", "language"),
    ("max", "maximum"),
    ("mgr", "manager"),
    ("min", "minimum"),
    ("msg", "message"),
    ("org", "organization"),
    ("pct", "percentage"),
    ("prev", "previous"),
    ("qty", "quantity"),
    ("ref", "reference"),
    ("req", "required"),
    ("temp", "temperature"),
];
const ORDINALS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

/// A field's name as words of English: short forms in full, and a number at the end of a name as people say it: `second line of the
/// address` for `address2`.
pub fn in_full(said: &str) -> String {
    let full = |word: &str| {
        let known = SHORT_FORMS.iter().find(|(short, _)| *short == word);
        known.map_or(word, |(_, full)| *full).to_owned()
    };
    const CAPITALS: [&str; 8] = ["api", "iban", "id", "isbn", "pdf", "sku", "url", "vat"];
    let words: Vec<String> = said.split(' ').map(full).collect();
    let said = words.join(" ");
    let said = match said.rsplit_once(' ') {
        Some((rest, "bytes")) => format!("{rest} in bytes"),
        Some((_, "zip")) => format!("{said} code"),
        None if said == "zip" => "zip code".to_owned(),
        Some((rest, last)) if CAPITALS.contains(&last) => format!("{rest} {}", last.to_uppercase()),
        None if CAPITALS.contains(&said.as_str()) => said.to_uppercase(),
        _ => said,
    };
    let stem = said.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = said[stem.len()..].parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let (Some(ordinal), stem) = (number.and_then(|number| ORDINALS.get(number)), stem.trim_end()) else {
        return said;
    };
    let lines = ["address", "street", "line", "addr"];
    match stem.rsplit_once(' ').map_or(stem, |(_, last)| last) {
        last if last.len() < 3 => said,
        "line" => format!(
            "{ordinal} line{}",
            stem.strip_suffix("line").map_or(String::new(), |of| {
                if of.trim().is_empty() { String::new() } else { format!(" of the {}", of.trim()) }
            })
        ),
        last if lines.contains(&last) => format!("{ordinal} line of the {stem}"),
        _ => format!("{ordinal} {stem}"),
    }
}

/// Words of fields that are no nouns: nobody asks for the `free` of something.
pub const ADJECTIVES: [&str; 22] = [
    "active",
    "available",
    "busy",
    "current",
    "due",
    "empty",
    "free",
    "full",
    "high",
    "large",
    "left",
    "low",
    "new",
    "next",
    "occupied",
    "old",
    "open",
    "overdue",
    "previous",
    "ready",
    "remaining",
    "used",
];

/// Whether a field's name is English as far as its letters tell: each word has a vowel, or is known in capitals.
pub fn is_english(said: &str) -> bool {
    const KNOWN: [&str; 26] = [
        "bmi", "cc", "cpu", "css", "cv", "dvd", "gps", "gpu", "html", "http", "https", "kg", "km", "pdf",
        "php", "ph", "pm", "sku", "sms", "sql", "ssn", "tv", "vat", "vin", "www", "xml",
    ];
    let has_vowel =
        |word: &str| word.contains(|letter: char| "aeiouyäöüéèà".contains(letter) || !letter.is_ascii());
    said.split(' ').all(|word| {
        word.len() < 2
            || has_vowel(&word.to_lowercase())
            || KNOWN.contains(&word.to_lowercase().as_str())
            || word.chars().all(|letter| letter.is_ascii_digit())
    })
}

/// What a field's value stands for: `user_id` for the user; the field itself if it is no name of something.
pub fn spoken_thing(name: &str) -> String {
    let mut words = split(name);
    let names = ["id", "number", "code", "name", "key", "uuid"];
    let is_name = words.last().is_some_and(|last| names.contains(&last.as_str()));
    if is_name {
        words.pop();
        return words.join(" ");
    }
    if name.is_empty() { String::new() } else { spoken_field(name) }
}

/// The preposition that says what a parameter is: `from` for the parameter `origin`, `on` for `date`.
pub fn preposition_of(param: &str) -> Option<&'static str> {
    match spoken(param).as_str() {
        "origin" | "from" => Some("from"),
        "destination" | "to" => Some("to"),
        "date" | "day" => Some("on"),
        _ => None,
    }
}

/// The phrase without `between two cities`, which only says that two parameters follow.
fn cut_pair(words: &mut Vec<&str>) {
    let pair =
        |at: &usize| words[*at].eq_ignore_ascii_case("between") && words[*at + 1].eq_ignore_ascii_case("two");
    if let Some(at) = (1..words.len().saturating_sub(2)).find(pair) {
        words.drain(at..at + 3);
    }
}

/// A phrase about one of what it is about: `direct flight on Monday`.
pub fn singular_head(phrase: &str) -> String {
    let head = head(phrase);
    format!("{}{}", singular(&head), &phrase[head.len().min(phrase.len())..])
}

/// The nouns in front of a phrase's first preposition.
pub fn head(phrase: &str) -> String {
    let words = phrase.split_whitespace().take_while(|word| !is_preposition(word));
    words.collect::<Vec<_>>().join(" ")
}

/// A parameter and its value: `the repo /snapshot`, `max count 5`, `a = 3`.
pub fn said(name: &str, shown: &str) -> String {
    let words = spoken_param(name);
    match words.split(' ').count() {
        _ if words.chars().count() == 1 => format!("{words} = {shown}"),
        1 if !is_code(shown) => format!("the {words} {shown}"),
        _ => format!("{words} {shown}"),
    }
}

/// The name of a parameter in words, without what only says how it is written: `repo_path` is `repo`.
pub fn spoken_param(name: &str) -> String {
    let mut words = split(name);
    if words.len() > 1
        && words.last().is_some_and(|last| ["path", "name", "uri", "url"].contains(&last.as_str()))
    {
        words.pop();
    }
    words.join(" ")
}

/// Whether the noun in front of the first preposition is in plural.
pub fn is_plural(phrase: &str) -> bool {
    head(phrase).rsplit(' ').next().is_some_and(|noun| singular(noun) != noun)
}

/// A value within a sentence.
pub fn shown(value: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "_-./:+@#%".contains(letter);
    // Quotes within quotes say little.
    if value.contains('"') || !value.is_empty() && value.chars().all(is_plain) && !value.ends_with(['.', ':'])
    {
        value.to_owned()
    } else {
        format!("\"{value}\"")
    }
}

/// Whether a value is a number or a code and no name: `4`, `B-0360`, `valve-021`.
pub fn is_code(value: &str) -> bool {
    value.contains(|letter: char| letter.is_ascii_digit())
        && value.chars().all(|letter| letter.is_alphanumeric() || "_-.#+".contains(letter))
}

/// Whether a value is the name of a file, with or without its folder: `notes/a.txt`.
pub fn is_file(value: &str) -> bool {
    is_spaced_file(value) && !value.contains(char::is_whitespace)
}

/// The same of a name that may have spaces: `Books/Pan y ceniza.md`.
pub fn is_spaced_file(value: &str) -> bool {
    let extension = value.rsplit_once('.').map(|(_, end)| end).unwrap_or_default();
    (1..=5).contains(&extension.len())
        && extension.chars().all(|letter| letter.is_ascii_alphanumeric())
        && extension.contains(|letter: char| letter.is_ascii_alphabetic())
        && !value.contains(|letter: char| letter.is_whitespace() && letter != ' ')
}

/// Whether an identifier is one that nobody says: `3b60ef37-c0a1-5044-af48-3a5bf9b604ab`.
pub fn is_opaque(value: &str) -> bool {
    let digits = value.chars().filter(char::is_ascii_digit).count();
    value.len() >= 16
        && 4 * digits >= value.len()
        && digits < value.len()
        && value.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter))
}

/// A thing by its name, or without an article by its number: `the teacher Ada`, `room 001`, `the extra "breakfast"`.
pub fn called(thing: &str, value: &str) -> String {
    // A name that is written like any noun.
    let is_word = value.chars().all(|letter| letter.is_lowercase() || "_-".contains(letter));
    match value {
        code if is_code(code) => format!("{thing} {code}"),
        word if is_word && !word.is_empty() => format!("the {thing} \"{word}\""),
        _ => format!("the {thing} {}", shown(value)),
    }
}

/// Whether words name one thing, as [`called`] writes it.
pub fn is_called(phrase: &str) -> bool {
    let mut words = phrase.split(' ').skip_while(|word| !is_code(word) && !is_preposition(word));
    phrase.starts_with("the ")
        || words.next().is_some_and(is_code) && !phrase.split(' ').next().is_some_and(is_code)
}

/// Verbs that name a field with the moment when something does so.
const MOMENTS: [(&str, &str); 10] = [
    ("start", "start"),
    ("starts", "start"),
    ("end", "end"),
    ("ends", "end"),
    ("begins", "begin"),
    ("expires", "expire"),
    ("departs", "depart"),
    ("arrives", "arrive"),
    ("opens", "open"),
    ("closes", "close"),
];

/// What a thing does at the moment that a field holds: `depart` for `departs`.
pub fn verb_of(field: &str) -> Option<&'static str> {
    let said = spoken(field);
    MOMENTS.iter().find(|(name, _)| *name == said).map(|(_, verb)| *verb)
}

/// What a thing did at the moment that a field holds, and its infinitive: `joined` and `join`.
pub fn did(field: &str) -> Option<(&'static str, &'static str)> {
    const DID: [(&str, &str); 12] = [
        ("joined", "join"),
        ("arrived", "arrive"),
        ("departed", "depart"),
        ("expired", "expire"),
        ("died", "die"),
        ("happened", "happen"),
        ("started", "start"),
        ("ended", "end"),
        ("finished", "finish"),
        ("retired", "retire"),
        ("left", "leave"),
        ("began", "begin"),
    ];
    let mut said = split(field);
    while said.len() > 1
        && said.last().is_some_and(|last| ["at", "on", "date", "time"].contains(&last.as_str()))
    {
        said.pop();
    }
    let [past] = said.as_slice() else { return None };
    DID.iter().find(|(known, _)| known == past).copied()
}

/// Whether a plural is one of a unit of time.
pub fn is_time(plural: &str) -> bool {
    ["seconds", "minutes", "hours", "days", "weeks", "months", "years"].contains(&plural)
}

/// Fields that are called like no noun.
pub const NO_NOUNS: [&str; 8] = ["what", "how", "when", "who", "why", "since", "until", "till"];
/// Fields that say something about a list.
pub const ABOUT_LISTS: [&str; 11] = [
    "page",
    "pages",
    "total",
    "count",
    "next",
    "limit",
    "offset",
    "cursor",
    "truncated",
    "per_page",
    "has_more",
];
/// Verbs of tools that probably read, where the server does not say it.
const READING: [&str; 9] = ["get", "list", "read", "describe", "show", "search", "find", "view", "status"];
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
    fn what_nobody_says_is_told_from_what_people_read_out() {
        for opaque in ["3b60ef37-c0a1-5044-af48-3a5bf9b604ab", "64f1c0ffee00a1b2c3d4e5f6"] {
            assert!(is_opaque(opaque), "{opaque}");
        }
        for said in ["T-00142", "3821016478", "9007199254740996", "fire-safety-report-2025", "budget.xlsx"] {
            assert!(!is_opaque(said), "{said}");
        }
    }

    #[test]
    fn a_thing_with_a_number_or_a_code_has_no_article() {
        for (thing, value, expected) in [
            ("parcel", "4", "parcel 4"),
            ("room", "001", "room 001"),
            ("booking", "B-0360", "booking B-0360"),
            ("teacher", "Bruno Fischer", "the teacher \"Bruno Fischer\""),
            ("course", "Statistics", "the course Statistics"),
            ("extra", "breakfast", "the extra \"breakfast\""),
        ] {
            assert_eq!(called(thing, value), expected);
            assert!(is_called(&called(thing, value)));
        }
        for phrase in ["courses of the teacher", "rooms", "flights on 2024-05-01", "5 rooms"] {
            assert!(!is_called(phrase), "{phrase}");
        }
    }

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
            ("class", "classes"),
        ] {
            assert_eq!(singular(many), one);
            assert_eq!(plural(one), many);
        }
        for word in ["status", "is", "address", "this"] {
            assert_eq!(singular(word), word, "{word}");
        }
    }

    #[test]
    fn amounts_and_identifiers_are_told_by_their_names() {
        for (name, expected) in [
            ("employee_count", [true, false]),
            ("num_rooms", [true, false]),
            ("number_of_orders", [true, false]),
            ("order_total", [true, false]),
            ("order_number", [false, true]),
            ("customer_id", [false, true]),
            ("zip", [false, true]),
            ("name", [false, false]),
        ] {
            assert_eq!([is_amount(name), is_identifier(name)], expected, "{name}");
        }
    }

    #[test]
    fn a_description_becomes_a_noun_phrase_up_to_a_parameter() {
        let words =
            ["table", "path", "pattern", "name", "timezone"].map(|word| BTreeSet::from([word.to_owned()]));
        let params: Vec<Nameable<'_>> = ["table_name", "path", "pattern", "name", "timezone"]
            .into_iter()
            .zip(&words)
            .map(|(name, words)| Nameable { name, words, is_path: name == "path" })
            .collect();
        for (tool, description, expected) in [
            (
                "describe_table",
                "Get the schema information for a specific table",
                "schema information for <table_name: table>",
            ),
            ("git_log", "Shows the commit logs", "commit logs"),
            ("list_tables", "List all tables in the SQLite database", "tables in the SQLite database"),
            ("get-sum", "Returns the sum of two numbers", "sum of two numbers"),
            ("search_nodes", "", "nodes"),
            ("get", "", "result"),
            (
                "read",
                "Read the complete contents of a file from the file system as text.",
                "contents of <path: file>",
            ),
            ("read_many", "Read the contents of multiple files simultaneously.", "contents of <path: file>"),
            (
                "info",
                "Retrieve detailed metadata about a file or directory. More.",
                "metadata about <path: >",
            ),
            (
                "ls",
                "Get a detailed listing of all files and directories in a specified path.",
                "listing of all files and directories in <path: >",
            ),
            (
                "search",
                "Recursively search for files and directories matching a pattern.",
                "files and directories matching <pattern: pattern>",
            ),
            ("mk", "Create a new directory or ensure a directory exists.", "new directory"),
            ("airports", "Returns a list of all available airports.", "available airports"),
            (
                "search_flight",
                "Search for flights between two cities at a specific timezone.",
                "flights at <timezone: timezone>",
            ),
            ("now", "Get current time in a specific timezone", "current time in <timezone: timezone>"),
        ] {
            let Phrase { text, slot } = phrase(tool, description, &params);
            let slot = slot.map(|slot| format!(" <{}: {}>", slot.param, slot.noun)).unwrap_or_default();
            assert_eq!(text + &slot, expected, "{tool}");
        }
    }

    #[test]
    fn parameters_are_named_as_people_do() {
        for (name, expected) in
            [("repo_path", "the repo v"), ("path", "the path v"), ("maxCount", "max count v"), ("a", "a = v")]
        {
            assert_eq!(said(name, "v"), expected);
        }
        for (phrase, expected) in
            [("contents of the file x", true), ("status", false), ("sum of two numbers", false)]
        {
            assert_eq!(is_plural(phrase), expected, "{phrase}");
        }
    }

    #[test]
    fn fields_are_named_as_people_do() {
        for (name, expected) in [
            ("name.first_name", "first name"),
            ("address.address1", "address1"),
            ("address.city", "city"),
            ("options.color", "color"),
            ("available_seats.basic_economy", "number of available seats for basic economy"),
            ("prices.economy", "price for economy"),
            ("dob", "date of birth"),
            ("created_at", "creation time"),
            ("from", "\"from\""),
            ("total_bags", "total bags"),
        ] {
            assert_eq!(spoken_field(name), expected);
        }
        assert_eq!(preposition_of("origin"), Some("from"));
        assert_eq!(preposition_of("original"), None);
    }

    #[test]
    fn fields_are_said_in_full_and_what_is_no_english_is_known() {
        for (said, expected) in [
            ("address2", "second line of the address"),
            ("address line 2", "second line of the address"),
            ("phone 2", "second phone"),
            ("min stock", "minimum stock"),
            ("qty", "quantity"),
            ("external url", "external URL"),
            ("size bytes", "size in bytes"),
            ("zip", "zip code"),
            ("zip code", "zip code"),
            ("price", "price"),
            ("q1", "q1"),
        ] {
            assert_eq!(in_full(said), expected);
        }
        assert!(is_english("first name") && is_english("external URL") && !is_english("xfr cd"));
    }

    #[test]
    fn values_with_spaces_are_quoted() {
        assert_eq!(
            (shown("a/b.txt"), shown("Low Tide"), shown("")),
            ("a/b.txt".into(), "\"Low Tide\"".into(), "\"\"".into())
        );
    }
}
