//! Wordings of tasks by a language model, so that a policy learns how people ask.
//!
//! The model is not believed: a wording counts only if it keeps the values, the numbers, the operations, the negations and what
//! is asked for, by [`kept`]. A task whose wordings are refused keeps its own.

use std::collections::BTreeSet;

use super::{
    answer_rule::{AnswerRule, is_moment},
    candidate::Candidate,
    llm::{ReplyContext, ReplyRequest},
    refusals::{Admitted, Judged, Reason, refused_row},
    words,
};
use crate::{
    data::{Tool, folded},
    error::Result,
    hash::Encoder,
    judge::llm::Message,
    senses::is_person,
};

/// Tasks longer than this keep their wording, and no new one is longer.
const TASK_BYTES: usize = 600;

/// Operations, each with the words that say it. Longer expressions come first: what is found is taken out.
const OPERATIONS: [(&str, &[&str]); 10] = [
    (
        "below",
        &[
            "less than",
            "fewer than",
            "lower than",
            "smaller than",
            "cheaper than",
            "younger than",
            "earlier than",
            "below",
            "under",
            "before",
        ],
    ),
    (
        "above",
        &[
            "more than",
            "greater than",
            "higher than",
            "larger than",
            "older than",
            "later than",
            "above",
            "after",
            "exceeding",
            "exceed",
        ],
    ),
    ("number", &["how many", "how often", "number of", "count"]),
    ("total", &["in total", "total", "sum", "altogether", "overall", "add up", "combined"]),
    ("average", &["average", "mean"]),
    (
        "most",
        &[
            "most", "largest", "highest", "greatest", "biggest", "maximum", "latest", "last", "oldest",
            "longest", "heaviest", "tallest", "best", "newest",
        ],
    ),
    (
        "least",
        &[
            "least", "smallest", "lowest", "cheapest", "minimum", "earliest", "first", "youngest",
            "shortest", "lightest", "fewest", "worst",
        ],
    ),
    ("not", &["not", "no", "none", "without", "never", "missing", "cannot", "nobody", "neither"]),
    ("different", &["different", "distinct", "unique"]),
    ("form", &["separated by commas", "comma separated", "rounded to", "decimals", "decimal places"]),
];
/// Words that ask, and say nothing of what is asked for.
const EMPTY: [&str; 63] = [
    "the", "and", "for", "from", "with", "that", "this", "those", "these", "what", "which", "who", "whom",
    "whose", "where", "when", "how", "are", "was", "were", "is", "does", "did", "has", "have", "had",
    "there", "their", "its", "our", "you", "your", "give", "tell", "find", "show", "need", "want", "know",
    "look", "please", "could", "would", "can", "report", "list", "all", "each", "every", "them", "any",
    "into", "like", "much", "many", "often", "get", "let", "see", "out", "about", "also", "within",
];

/// Wordings that are asked for, of one task.
const WORDINGS: usize = 4;
/// Tasks whose wordings show whether the model can write at all, and the least share of them that must get one.
const FIRST: usize = 24;
const LEAST: f64 = 0.25;
/// Bytes of a tool's description that the model sees.
const DESCRIPTION: usize = 160;

/// What words tasks anew.
pub struct Writer<'a> {
    pub asking: &'a ReplyContext<'a>,
    /// Instructions and examples.
    pub prompt: &'a str,
    pub tools: &'a [Tool],
    pub seed: u64,
}

/// Wordings of a task that say what it says.
struct Wordings {
    index: usize,
    texts: Vec<String>,
    /// The first wording that was refused, and why.
    refused: Option<(String, String)>,
}

impl Writer<'_> {
    /// Asks for other wordings of a share of the admitted tasks, and gives each the shortest that says the same.
    ///
    /// # Errors
    /// If the model fails, its ceiling is reached, or the stage is cancelled.
    pub async fn word(&self, judged: &mut Judged, share: f64) -> Result<()> {
        let observer = self.asking.observer;
        let rank = |task: &str| Encoder::new("mcprl rewording v1").number(self.seed).text(task).finish();
        let mut chosen: Vec<usize> = (0..judged.admitted.len())
            .filter(|index| judged.admitted[*index].candidate.task.len() <= TASK_BYTES)
            .collect();
        chosen.sort_by_cached_key(|index| rank(&judged.admitted[*index].candidate.task));
        chosen.truncate((chosen.len() as f64 * share).round() as usize);
        let none = |index| Wordings { index, texts: Vec::new(), refused: None };
        let mut wordings: Vec<Wordings> = chosen.into_iter().map(none).collect();
        observer.phase("wordings", (wordings.len() * WORDINGS) as u64);
        let first = FIRST.min(wordings.len());
        let (first, rest) = wordings.split_at_mut(first);
        self.ask(judged, first, 0).await?;
        let worded = |some: &[Wordings]| some.iter().filter(|one| !one.texts.is_empty()).count();
        let (count, all) = (worded(first), first.len());
        if (count as f64) < all as f64 * LEAST {
            observer.note(&format!(
                "of {all} tasks, the language model words only {count} so that they say the same, and is asked no further; the \
                 table `admission` has the reasons"
            ));
        } else {
            self.ask(judged, rest, FIRST).await?;
            let (count, all) = (worded(&wordings), wordings.len());
            observer.note(&format!("the language model words {count} of {all} tasks anew"));
        }
        wordings.sort_by_key(|one| one.index);
        take(judged, wordings);
        Ok(())
    }

    /// Adds what the model writes and what says the same.
    async fn ask(&self, judged: &Judged, wordings: &mut [Wordings], before: usize) -> Result<()> {
        let prompt = Prompt::read(self.prompt);
        let mut asked = Vec::new();
        for (place, one) in wordings.iter().enumerate() {
            let messages = prompt.messages(&self.request(&judged.admitted[one.index].candidate));
            let draw = |draw| ((before + place) * WORDINGS + draw) as u64;
            asked.extend(
                (0..WORDINGS).map(|number| ReplyRequest { messages: messages.clone(), draw: draw(number) }),
            );
        }
        let replies = self.asking.all(&asked).await?;
        for (one, replies) in wordings.iter_mut().zip(replies.chunks(WORDINGS)) {
            let admitted = &judged.admitted[one.index];
            for text in replies.iter().map(|reply| sentence(reply)) {
                match kept(admitted, &text) {
                    Ok(()) if !one.texts.contains(&text) => one.texts.push(text),
                    Ok(()) => {}
                    Err(why) => one.refused = one.refused.take().or(Some((text, why))),
                }
            }
        }
        Ok(())
    }

    /// The tools of a task and its own wording.
    fn request(&self, candidate: &Candidate) -> String {
        let mut names: Vec<&str> = candidate.calls.iter().map(|call| call.name.as_str()).collect();
        names.dedup();
        let described = |name: &str| {
            let tool = self.tools.iter().find(|tool| tool.name == name);
            let words =
                tool.map(|tool| words::first_sentence(&tool.description).join(" ")).unwrap_or_default();
            let words: String = words.chars().take(DESCRIPTION).collect();
            if words.is_empty() { name.to_owned() } else { format!("{name} ({words}.)") }
        };
        let tools: Vec<String> = names.into_iter().map(described).collect();
        let tools = if tools.is_empty() { "none".to_owned() } else { tools.join(", ") };
        format!("Tools: {tools}\nRequest: {}\nNew request:", candidate.task)
    }
}

/// Gives each task the shortest of its wordings that no other task has. What people write is short: the shorter of two
/// wordings is people's in 24 of 26 pairs; the one with the higher log-probability per token, of models of 0.1 and 0.5 B, in 12 and 5.
fn take(judged: &mut Judged, wordings: Vec<Wordings>) {
    let mut sentences: BTreeSet<String> =
        judged.admitted.iter().map(|admitted| folded(&admitted.candidate.task)).collect();
    for Wordings { index, mut texts, refused } in wordings {
        texts.sort_by_key(|text| (text.split_whitespace().count(), text.len()));
        let Candidate { family, task, .. } = &judged.admitted[index].candidate;
        match (texts.into_iter().find(|text| !sentences.contains(&folded(text))), refused) {
            (Some(text), _) => {
                sentences.insert(folded(&text));
                reworded(judged, index, text);
            }
            (None, Some((text, why))) => {
                let detail = format!("{why}: {task}");
                judged.rows.push(refused_row(family.clone(), text, Reason::Wording, &detail));
            }
            (None, None) => {}
        }
    }
}

/// Gives a task another wording, in the table too.
fn reworded(judged: &mut Judged, index: usize, text: String) {
    let Admitted { candidate, answer } = &mut judged.admitted[index];
    let before = candidate.id(answer.as_deref());
    candidate.task = text;
    candidate.phrasing.push_str(", reworded");
    if let Some(row) = judged.rows.iter_mut().find(|row| row.reason.is_none() && row.id == before) {
        row.id = candidate.id(answer.as_deref());
        row.task.clone_from(&candidate.task);
    }
}

/// Instructions and examples, as the text of the card has them: paragraphs, whose last line is what is to be written.
struct Prompt<'a> {
    instructions: &'a str,
    examples: Vec<(&'a str, &'a str)>,
}

impl<'a> Prompt<'a> {
    fn read(text: &'a str) -> Self {
        let mut paragraphs = text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty());
        let instructions = paragraphs.next().unwrap_or_default();
        let example = |paragraph: &'a str| {
            let (_, last) = paragraph.rsplit_once('\n')?;
            let (_, new) = last.split_once(": ")?;
            Some((paragraph[..paragraph.len() - new.len()].trim_end(), new))
        };
        Self { instructions, examples: paragraphs.filter_map(example).collect() }
    }

    /// A conversation of examples that ends with a request.
    fn messages(&self, request: &str) -> Vec<Message> {
        let mut messages = Vec::new();
        let asked = self.examples.iter().map(|(asked, _)| (*asked).to_owned()).chain([request.to_owned()]);
        for (number, asked) in asked.enumerate() {
            let text = if number == 0 { format!("{}\n\n{asked}", self.instructions) } else { asked };
            messages.push(Message::user(text));
            messages.extend(self.examples.get(number).map(|(_, new)| Message::assistant(*new)));
        }
        messages
    }
}

/// The first line of a reply that says something, without quotes around it.
fn sentence(reply: &str) -> String {
    let reply = reply.rsplit_once("</think>").map_or(reply, |(_, rest)| rest);
    let line = reply.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line = line
        .split_once(": ")
        .filter(|(head, _)| head.split(' ').count() <= 3 && head.to_lowercase().contains("request"))
        .map_or(line, |(_, rest)| rest);
    let quoted =
        line.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).filter(|inner| !inner.contains('"'));
    quoted.unwrap_or(line).trim().to_owned()
}

/// Checks that a wording says what the task says, and neither its answer nor the name of a tool.
fn kept(Admitted { candidate, answer }: &Admitted, text: &str) -> Result<(), String> {
    let task = candidate.task.as_str();
    let values: Vec<&str> = candidate.entity.values().map(String::as_str).collect();
    says_the_same(task, text, &values)?;
    let (lower_task, lower) = (plain(&task.to_lowercase(), &[]), plain(&text.to_lowercase(), &[]));
    asks_for_the_same(candidate, answer.as_deref(), text, &values)?;
    if let Some(answer) = answer.as_deref().map(|answer| plain(&answer.to_lowercase(), &[]))
        && answer.len() > 4
        && lower.contains(&answer)
        && !lower_task.contains(&answer)
    {
        return Err("it says the answer".into());
    }
    // Who is told to answer has done nothing.
    if lower.contains(" did you ") && !lower_task.contains(" did you ") {
        return Err("it asks what the reader did".into());
    }
    let is_name = |word: &&str| word.contains('_') && !task.contains(*word);
    if let Some(name) = text.split_whitespace().find(is_name) {
        return Err(format!("it says the name {name}"));
    }
    // A change is ordered by its verb.
    let verbs = candidate.calls.iter().filter(|_| candidate.rule == AnswerRule::Nothing);
    let verbs = verbs.filter_map(|call| words::split(&call.name).into_iter().next());
    for verb in verbs {
        let stem = verb.trim_end_matches('e');
        let has = |text: &str| text.split(' ').any(|word| word.starts_with(stem));
        if has(&lower_task) && !has(&lower) {
            return Err(format!("it does not say to {verb}"));
        }
    }
    Ok(())
}

/// Checks the words for what is wanted, and that none of the things on the way to it is lost: the nights of a booking are not
/// those that its guest has stayed.
fn asks_for_the_same(
    candidate: &Candidate,
    answer: Option<&str>,
    text: &str,
    values: &[&str],
) -> Result<(), String> {
    let before = content(&candidate.task.to_lowercase(), values);
    let after = content(&text.to_lowercase(), values);
    let lower = plain(&text.to_lowercase(), &[]);
    let asks = |word: &str| lower.contains(&format!(" {word} "));
    let is_lost = |word: &&String| !after.iter().any(|other| is_same(word, other));
    let wanted: BTreeSet<String> = wanted(&candidate.rule)
        .iter()
        .flat_map(|field| words::split(field))
        .map(|word| words::singular(&word))
        .collect();
    if let Some(word) = before.iter().filter(|word| wanted.contains(*word)).find(is_lost) {
        return Err(format!("it does not ask for the {word}"));
    }
    let is_moment = answer.is_some_and(is_moment);
    let is_named = wanted.iter().any(|word| is_person(word)) && !answer.is_some_and(words::is_code);
    for (word, fits) in [("who", is_named), ("when", is_moment), ("where", false)] {
        let is_new = asks(word) && !plain(&candidate.task.to_lowercase(), &[]).contains(&format!(" {word} "));
        if is_new && !fits {
            return Err(format!("it asks {word}"));
        }
    }
    let others: Vec<&String> = before.iter().filter(|word| !wanted.contains(*word)).filter(is_lost).collect();
    let most = if candidate.calls.len() > 1 { 0 } else { before.len() / 3 };
    match others.as_slice() {
        [first, ..] if others.len() > most => Err(format!("it does not say {first}")),
        _ => Ok(()),
    }
}

/// The fields whose values are wanted.
fn wanted(rule: &AnswerRule) -> Vec<&str> {
    fn last(field: &str) -> &str {
        field.rsplit('.').next().unwrap_or_default()
    }
    match rule {
        AnswerRule::Field { field, .. }
        | AnswerRule::Column { field, .. }
        | AnswerRule::Matching { field: Some(field), .. }
        | AnswerRule::Absent { field }
        | AnswerRule::Measured { field, key: None, .. } => vec![last(field)],
        AnswerRule::Measured { field, key: Some(key), .. } => vec![last(field), last(key)],
        _ => Vec::new(),
    }
}

/// Whether two words are forms of one: `arrival` and `arrive`.
fn is_same(one: &str, other: &str) -> bool {
    let common = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    let shorter = one.chars().count().min(other.chars().count());
    one == other || common >= 4 && common + 2 >= shorter
}

/// Checks that a sentence keeps the values, numbers, operations, negations and what is asked for. `values` are those that the
/// task is about.
fn says_the_same(task: &str, text: &str, values: &[&str]) -> Result<(), String> {
    if text.is_empty() || text.len() > 2 * task.len() + 40 {
        return Err("it is empty or long".into());
    }
    let (lower_task, lower) = (task.to_lowercase(), text.to_lowercase());
    for value in values {
        let value = value.to_lowercase();
        if lower_task.contains(&value) && !lower.contains(&value) {
            return Err(format!("it loses {value}"));
        }
    }
    if numbers(task) != numbers(text) {
        return Err("its numbers differ".into());
    }
    let (before, after) = (operations(&lower_task, values), operations(&lower, values));
    if let Some(other) = before.symmetric_difference(&after).next() {
        return Err(format!("its operations differ: {other}"));
    }
    let (before, after) = (content(&lower_task, values), content(&lower, values));
    if !before.is_empty() && before.intersection(&after).count() * 2 < before.len() {
        return Err("it does not name what is asked for".into());
    }
    Ok(())
}

fn numbers(text: &str) -> BTreeSet<String> {
    let parts = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != '-');
    let parts = parts.map(|part| part.trim_matches(['.', '-']).to_owned());
    parts.filter(|part| part.contains(|letter: char| letter.is_ascii_digit())).collect()
}

/// The text's words between single spaces, without the values.
fn plain(text: &str, values: &[&str]) -> String {
    let mut text = text.to_owned();
    for value in values {
        text = text.replace(&value.to_lowercase(), " ");
    }
    let words: Vec<&str> =
        text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    format!(" {} ", words.join(" "))
}

fn operations(text: &str, values: &[&str]) -> BTreeSet<&'static str> {
    let mut rest = plain(text, values);
    let mut found = BTreeSet::new();
    for (operation, expressions) in OPERATIONS {
        for expression in expressions {
            let expression = format!(" {expression} ");
            if rest.contains(&expression) {
                found.insert(operation);
                rest = rest.replace(&expression, " ");
            }
        }
    }
    found
}

/// The words that say what is asked for.
fn content(text: &str, values: &[&str]) -> BTreeSet<String> {
    let of_operations: BTreeSet<&str> = OPERATIONS
        .iter()
        .flat_map(|(_, expressions)| expressions.iter().flat_map(|one| one.split(' ')))
        .collect();
    let text = plain(text, values);
    let words = text.split(' ').filter(|word| {
        (word.len() > 2 || *word == "id") && !EMPTY.contains(word) && !of_operations.contains(word)
    });
    words.map(words::singular).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(task: &str, entity: &str, calls: &[&str], answer: Option<&str>) -> Admitted {
        let call = |name: &&str| crate::chat::ToolCall {
            name: (*name).to_owned(),
            arguments: serde_json::Map::new(),
        };
        let candidate = Candidate {
            task: task.into(),
            entity: [("x".to_owned(), entity.to_owned())].into(),
            calls: calls.iter().map(call).collect(),
            rule: answer.map_or(AnswerRule::Nothing, |_| AnswerRule::Only),
            ..Candidate::default()
        };
        Admitted { candidate, answer: answer.map(str::to_owned) }
    }

    #[test]
    fn a_wording_neither_says_the_answer_nor_a_tool_and_orders_the_same() {
        let who = admitted("Who is the assignee of T107?", "T107", &["get_ticket"], Some("Ben Okafor"));
        let close = admitted("Close ticket T107.", "T107", &["close_ticket"], None);
        for (task, text, why) in [
            (&who, "Which assignee does T107 have?", ""),
            (&who, "Is Ben Okafor the assignee of T107?", "it says the answer"),
            (&who, "What is the assignee_id of T107?", "it says the name assignee_id"),
            (&close, "Can you close ticket T107?", ""),
            (&close, "Reopen ticket T107.", "it does not say close"),
        ] {
            assert_eq!(kept(task, text).err().unwrap_or_default(), why, "{text}");
        }
    }

    #[test]
    fn a_wording_asks_for_the_same_field_of_the_same_thing() {
        let of = |task: &str, field: &str, calls: &[&str], answer: &str| {
            let mut task = admitted(task, "B-1", calls, Some(answer));
            task.candidate.rule = AnswerRule::Field { list: String::new(), key: None, field: field.into() };
            task
        };
        let (get, both) = (&["get_booking"][..], &["get_booking", "get_guest"][..]);
        let stayed = of("How many nights has the guest of booking B-1 stayed?", "nights_stayed", both, "58");
        let arrival = of("What is the arrival of booking B-1?", "arrival", get, "2024-08-13");
        let guest = of("What is the guest id of booking B-1?", "guest_id", get, "49");
        let id = of("What is the id of the book \"B-1\"?", "id", &["find_books"], "16");
        let city = of("What is the city of guest B-1?", "address.city", &["get_guest"], "Cork");
        let mut latest = admitted(
            "Which booking of guest B-1 has the latest arrival? Give its code.",
            "B-1",
            &["bookings_of_guest"],
            Some("B-2"),
        );
        latest.candidate.rule = AnswerRule::Measured {
            list: String::new(),
            field: "arrival".into(),
            key: Some("code".into()),
            wanted: crate::answer_rule::Aggregate::Most,
        };
        for (task, text, why) in [
            (&stayed, "How many nights did the guest of booking B-1 stay?", ""),
            (&stayed, "How many nights did booking B-1 stay?", "it does not say guest"),
            (&arrival, "When did booking B-1 arrive?", ""),
            (&arrival, "When was booking B-1?", "it does not ask for the arrival"),
            (&guest, "Who is booking B-1?", "it does not name what is asked for"),
            (&id, "What's the ID of book B-1?", ""),
            (&id, "Which book is \"B-1\"?", "it does not ask for the id"),
            (&arrival, "When did you arrive for booking B-1?", "it asks what the reader did"),
            (&city, "Which city is guest B-1 from?", ""),
            (&city, "Where is guest B-1 staying?", "it does not ask for the city"),
            (&latest, "What is the latest arrival of guest B-1?", "it does not ask for the code"),
        ] {
            assert_eq!(kept(task, text).err().unwrap_or_default(), why, "{text}");
        }
    }

    #[test]
    fn the_shortest_wording_that_no_other_task_has_is_taken() {
        let mut judged = Judged {
            admitted: vec![
                admitted("What is the price of the desk?", "desk", &["get"], Some("7")),
                admitted("Price of desk?", "desk", &["get"], Some("8")),
            ],
            rows: Vec::new(),
            limit: None,
        };
        let texts = ["Tell me the price of the desk", "price of desk?", "price of the desk?"];
        let refused = Some(("no".to_owned(), "why".to_owned()));
        let first = Wordings { index: 0, texts: texts.map(str::to_owned).into(), refused: refused.clone() };
        take(&mut judged, vec![first, Wordings { index: 1, texts: Vec::new(), refused }]);
        let tasks: Vec<&str> = judged.admitted.iter().map(|one| one.candidate.task.as_str()).collect();
        assert_eq!(tasks, ["price of the desk?", "Price of desk?"]);
        assert_eq!(judged.rows.iter().map(|row| row.task.as_str()).collect::<Vec<_>>(), ["no"]);
    }

    #[test]
    fn examples_are_turns_of_a_conversation() {
        let prompt = Prompt::read("Do it.\n\nRequest: a\nNew: b: c\n\nRequest: d\nNew: e\n");
        let messages = prompt.messages("Request: f\nNew:");
        let said: Vec<(&str, &str)> =
            messages.iter().map(|message| (&*message.role, &*message.content)).collect();
        let expected = [
            ("user", "Do it.\n\nRequest: a\nNew:"),
            ("assistant", "b: c"),
            ("user", "Request: d\nNew:"),
            ("assistant", "e"),
            ("user", "Request: f\nNew:"),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_wording_counts_if_it_keeps_values_numbers_operations_negations_and_what_is_asked_for() {
        let price = ("What is the price of the product \"Oak Desk\"?", ["Oak Desk"]);
        for (text, why) in [
            ("Can you tell me the price of the Oak Desk?", ""),
            ("Oak desk, which price?", ""),
            ("What is the price of the product?", "it loses oak desk"),
            ("What is the stock of the Oak Desk?", "it does not name what is asked for"),
            ("What is the highest price of the Oak Desk?", "its operations differ: most"),
            ("What is not the price of the product Oak Desk?", "its operations differ: not"),
            ("What is the price of 2 products like Oak Desk?", "its numbers differ"),
            ("", "it is empty or long"),
        ] {
            let verdict = says_the_same(price.0, text, &price.1);
            assert_eq!(verdict.err().unwrap_or_default(), why, "{text}");
        }
        let count = "How many orders cost more than 20 and have no note?";
        for (text, is_kept) in [
            ("Number of orders that cost more than 20, with no note?", true),
            ("Count orders without a note that cost more than 20.", true),
            ("Which orders cost more than 20 and have no note?", false),
            ("How many orders cost less than 20 and have no note?", false),
            ("How many orders cost more than 20 and have a note?", false),
            ("How many orders cost more than 200 and have no note?", false),
        ] {
            assert_eq!(says_the_same(count, text, &[]).is_ok(), is_kept, "{text}");
        }
    }

    #[test]
    fn the_sentence_is_found_in_what_models_write_around_it() {
        for (reply, text) in [
            ("What is it?", "What is it?"),
            ("\n\"What is it?\"\n", "What is it?"),
            ("<think>\nhm\n</think>\n\nWhat is it?\nOr: what?", "What is it?"),
            ("New request: What is it?", "What is it?"),
            ("\"a\" or \"b\"", "\"a\" or \"b\""),
            ("", ""),
        ] {
            assert_eq!(sentence(reply), text, "{reply}");
        }
    }
}
