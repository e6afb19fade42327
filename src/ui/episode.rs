//! An episode as a transcript for the terminal. Whatever a server or a model wrote is shown without hidden characters.

use std::borrow::Cow;

use super::{
    human,
    style::{self, paint},
};
use crate::{
    data::End,
    report::escape::visible,
    text::start_of,
    view::episode::{EpisodeDetails, Message},
};

/// Most characters of a result, and of a thought.
const RESULT: usize = 400;
/// Most characters of what the model says.
const SAID: usize = 2000;

/// Which of the episodes it is.
pub struct Heading {
    pub number: usize,
    pub of: usize,
    /// ` wrong`, ` right`, or nothing.
    pub which: &'static str,
}

/// Task, conversation, answer and outcome.
pub fn episode_text(Heading { number, of, which }: &Heading, details: &EpisodeDetails) -> String {
    let EpisodeDetails { episode, task, messages, rewards, .. } = details;
    let text = |name: &str| episode[name].as_str().unwrap_or_default();
    let title = [
        format!("{number} of {of}{which}"),
        text("stage").to_owned(),
        text("policy").to_owned(),
        text("family").to_owned(),
        format!("task {}", start_of(text("scenario"), 8).trim_end_matches('…')),
    ];
    let title: Vec<String> = title.into_iter().filter(|part| !part.is_empty()).collect();
    let mut lines = vec![paint(style::FAINT, &title.join(" · "))];
    if let Some(task) = task {
        lines.push(format!("task      {}", shown(&task.task.text, SAID)));
    }
    // The prompt is the same for all tasks, and its last message is the task.
    let begins = messages.iter().position(|message| message.role == "assistant").unwrap_or(messages.len());
    messages[begins..].iter().for_each(|message| lines.extend(said(message)));
    lines.push(format!(
        "answer    {}",
        episode["answer"].as_str().map_or("none".into(), |text| shown(text, SAID))
    ));
    if let Some(task) = task {
        let checks = task.checks.iter().map(|checks| format!("checks    {}", shown(checks, RESULT)));
        let expected = task.answer.iter().map(|answer| format!("expected  {}", shown(answer, SAID)));
        lines.extend(expected.chain(checks));
    }
    lines.push(outcome(details));
    for reward in rewards {
        let why = reward.explanation.as_ref().map(|why| format!(": {}", shown(&why.text, RESULT)));
        let number = human::number(f64::from(reward.reward));
        lines.push(format!("reward    {number} by {}{}", reward.stage, why.unwrap_or_default()));
    }
    lines.join("\n") + "\n"
}

/// What the model or a tool says.
fn said(message: &Message) -> Vec<String> {
    let content = message.content.as_ref().map(|content| content.text.trim()).filter(|text| !text.is_empty());
    if message.role == "tool" {
        let failed = message.error.as_ref().map(|error| format!("failed ({error}): ")).unwrap_or_default();
        return vec![format!("  ←       {failed}{}", shown(content.unwrap_or("nothing"), RESULT))];
    }
    let who = match message.role {
        "assistant" => "says    ",
        "user" => "user    ",
        role => role,
    };
    let thought = message.reasoning.iter().filter(|thought| !thought.text.trim().is_empty());
    let thought = thought.map(|thought| format!("  thinks  {}", shown(&thought.text, RESULT)));
    let content = content.map(|content| format!("  {who}{}", shown(content, SAID)));
    let calls = message.calls.iter().map(|call| {
        let arguments = serde_json::from_str::<serde_json::Value>(&call.arguments.text);
        let arguments = arguments.map_or_else(|_| call.arguments.text.clone(), |value| value.to_string());
        format!("  →       {} {}", visible(&call.name), shown(&arguments, SAID))
    });
    thought.chain(content).chain(calls).collect()
}

/// `right`, or `wrong` and why.
fn outcome(details: &EpisodeDetails) -> String {
    let episode = &details.episode;
    let end = episode["end"].as_str().unwrap_or_default();
    let limit = match End::parse(end) {
        Some(End::OutOfTurns) => Some("it reached max_turns"),
        Some(End::OutOfTurnTokens) => Some("a turn reached max_turn_tokens"),
        Some(End::OutOfTokens) => Some("it reached max_episode_tokens or the model's context"),
        Some(End::NoCall) => Some("it ended without a call or an answer"),
        Some(End::ServerDown) => Some("the server was lost during a call"),
        Some(End::HarnessFailed) => Some("the program that plays failed"),
        Some(End::Completed) | None => None,
    };
    let has_answer = episode["answer"].is_string();
    let has_checks = details.task.as_ref().is_some_and(|task| task.checks.is_some());
    let unmet = details.unmet.join("; ");
    match episode["correct"].as_bool() {
        Some(true) => paint(style::GOOD, "right"),
        Some(false) => {
            let why = match (limit, has_answer) {
                (Some(limit), _) => limit,
                (None, false) if !has_checks => "it gave no answer",
                (None, _) if !unmet.is_empty() => &unmet,
                (None, true) => "the answer is not the expected one",
                (None, false) => "it gave no answer",
            };
            format!("{}     {}", paint(style::BAD, "wrong"), shown(why, SAID))
        }
        None => limit.map_or("no answer is known".to_owned(), |limit| format!("no answer is known; {limit}")),
    }
}

/// The start of a text on one line.
fn shown(text: &str, most: usize) -> String {
    let words: Cow<'_, str> = match text.contains(['\n', '\t']) {
        true => text.split_whitespace().collect::<Vec<_>>().join(" ").into(),
        false => text.into(),
    };
    visible(&start_of(&words, most)).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::episode::{Clipped, EpisodeTask};

    #[test]
    fn a_wrong_episode_says_what_is_wrong_or_which_limit_ended_it() {
        let of = |end: &str, answer: Option<&str>, unmet: &[&str]| {
            let task = EpisodeTask {
                task: Clipped { text: "t".into(), bytes: 1 },
                answer: None,
                check: "text".into(),
                checks: Some("{}".into()),
                reference: None,
            };
            outcome(&EpisodeDetails {
                episode: json!({"end": end, "answer": answer, "correct": false}),
                answer: None,
                task: Some(task),
                messages: Vec::new(),
                unmet: unmet.iter().map(|text| (*text).to_owned()).collect(),
                rewards: Vec::new(),
                trained_by: None,
                group: Vec::new(),
            })
        };
        let failed = ["`close` was not called with success", "it made 3 calls, more than 2"];
        let said = of("completed", Some("7"), &failed);
        assert!(
            said.ends_with("`close` was not called with success; it made 3 calls, more than 2"),
            "{said}"
        );
        assert!(of("completed", None, &failed[..1]).ends_with("`close` was not called with success"));
        assert!(of("completed", None, &[]).ends_with("it gave no answer"));
        assert!(of("out_of_turn_tokens", None, &failed).ends_with("a turn reached max_turn_tokens"));
    }
}
