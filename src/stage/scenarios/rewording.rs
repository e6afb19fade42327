//! `reword`: a language model words questions anew, so that a policy does not learn the sentences of a grammar.
//!
//! It is not believed: a wording counts only if it keeps the values, the numbers, the operations, the negations and what is
//! asked for, by [`kept`]. A task whose new wording is refused keeps its own.

use std::collections::BTreeSet;

use super::{
    Context,
    admission::{Admitted, Judged, Reason, refused},
    llm::ask_all,
    words,
};
use crate::{data::folded, error::Result, hash::Encoder, llm::LanguageModel};

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
const EMPTY: [&str; 62] = [
    "the", "and", "for", "from", "with", "that", "this", "those", "these", "what", "which", "who", "whom",
    "whose", "where", "when", "how", "are", "was", "were", "is", "does", "did", "has", "have", "had",
    "there", "their", "its", "our", "you", "your", "give", "tell", "find", "show", "need", "want", "know",
    "look", "please", "could", "would", "can", "report", "list", "all", "each", "every", "them", "any",
    "into", "much", "many", "often", "get", "let", "see", "out", "about", "also", "within",
];

/// Asks for other wordings of a share of the admitted tasks, and takes those that keep what the task says.
///
/// # Errors
/// If the model fails, its ceiling is reached, or the stage is cancelled.
pub async fn reword(
    model: &dyn LanguageModel,
    judged: &mut Judged,
    share: f64,
    context: &Context,
) -> Result<()> {
    let rank = |task: &str| Encoder::new("mcprl rewording v1").number(context.seed).text(task).finish();
    let mut chosen: Vec<usize> = (0..judged.admitted.len())
        .filter(|index| judged.admitted[*index].candidate.task.len() <= TASK_BYTES)
        .collect();
    chosen.sort_by_cached_key(|index| rank(&judged.admitted[*index].candidate.task));
    chosen.truncate((chosen.len() as f64 * share).round() as usize);
    chosen.sort_unstable();
    let head = context.text("reword").trim_end();
    let prompt = |index: &usize| format!("{head} {}\nNew request:", judged.admitted[*index].candidate.task);
    let prompts: Vec<String> = chosen.iter().map(prompt).collect();
    let replies = ask_all(model, &prompts, head.len(), context).await?;
    let mut sentences: BTreeSet<String> =
        judged.admitted.iter().map(|admitted| folded(&admitted.candidate.task)).collect();
    for (index, reply) in chosen.into_iter().zip(&replies) {
        let Admitted { candidate, answer } = &mut judged.admitted[index];
        let text = sentence(reply);
        let values: Vec<&str> = candidate.entity.values().map(String::as_str).collect();
        let mut verdict = kept(&candidate.task, &text, &values);
        if verdict.is_ok() && !sentences.insert(folded(&text)) {
            verdict = Err("the sentence exists".into());
        }
        if let Err(why) = verdict {
            let detail = format!("{why}: {}", candidate.task);
            judged.rows.push(refused(candidate.family.clone(), text, Reason::Wording, &detail));
            continue;
        }
        let before = candidate.id(answer.as_deref());
        candidate.task = text;
        candidate.phrasing.push_str(", reworded");
        if let Some(row) = judged.rows.iter_mut().find(|row| row.reason.is_none() && row.id == before) {
            row.id = candidate.id(answer.as_deref());
            row.task.clone_from(&candidate.task);
        }
    }
    Ok(())
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

/// Checks that a wording says what the task says. `values` are those that the task is about.
fn kept(task: &str, text: &str, values: &[&str]) -> Result<(), String> {
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
    let words = text
        .split(' ')
        .filter(|word| word.len() > 2 && !EMPTY.contains(word) && !of_operations.contains(word));
    words.map(words::singular).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let verdict = kept(price.0, text, &price.1);
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
            assert_eq!(kept(count, text, &[]).is_ok(), is_kept, "{text}");
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
