//! Solved tasks in a system prompt.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    answer::COMPLETE_TASK,
    data::{Facts, Role, Scenario, Trajectory, result_view},
};

/// Characters of a result that an example shows.
const RESULT_CHARS: usize = 400;

/// The episodes that are about none of these tasks.
pub fn unseen<'t>(episodes: &'t [Trajectory], exam: &[Scenario]) -> Vec<&'t Trajectory> {
    let ids: BTreeSet<&str> = exam.iter().map(|task| task.id.as_str()).collect();
    let exam = Facts::of_exam(exam);
    let is_unseen = |episode: &&Trajectory| {
        !ids.contains(episode.scenario_id.as_str()) && exam.in_conversation(&episode.messages).is_none()
    };
    episodes.iter().filter(is_unseen).collect()
}

/// The text of this many right episodes, as it stands behind a system prompt. Empty if there are none.
pub fn text(episodes: &[&Trajectory], count: usize) -> String {
    joined(&texts(episodes, count))
}

/// These texts behind a system prompt.
pub fn joined(examples: &[String]) -> String {
    if examples.is_empty() {
        return String::new();
    }
    format!("\n\nExamples of solved tasks:\n\n{}", examples.join("\n\n"))
}

/// This many right episodes, of as many families as there are.
pub fn texts(episodes: &[&Trajectory], count: usize) -> Vec<String> {
    let mut by_family: BTreeMap<&str, Vec<&Trajectory>> = BTreeMap::new();
    for episode in episodes.iter().copied().filter(|episode| episode.correct == Some(true)) {
        by_family.entry(&episode.family).or_default().push(episode);
    }
    let rounds = by_family.values().map(Vec::len).max().unwrap_or_default();
    let in_turn = (0..rounds).flat_map(|round| by_family.values().filter_map(move |all| all.get(round)));
    in_turn.take(count).map(|episode| example(episode)).collect()
}

fn example(episode: &Trajectory) -> String {
    let mut lines = Vec::new();
    for message in &episode.messages {
        let text = message.text.trim();
        match message.role {
            Role::System => {}
            Role::User => lines.push(format!("Task: {text}")),
            Role::Tool => lines.push(format!("Result: {}", result_view(text.to_owned(), RESULT_CHARS).0)),
            Role::Assistant => {
                lines.extend((!text.is_empty()).then(|| text.to_owned()));
                let calls = message.calls.iter().filter(|call| call.name != COMPLETE_TASK);
                lines.extend(calls.map(|call| format!("Call: {}({})", call.name, call.arguments_json())));
            }
        }
    }
    lines.extend(episode.answer.as_ref().map(|answer| format!("Answer: {answer}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn episode(family: &str, answer: &str, correct: bool) -> Trajectory {
        let call = |name: &str, arguments: Value| json!({"id": "c", "function": {"name": name, "arguments": arguments}});
        let messages = json!([
            {"role": "system", "content": "Use the tools."},
            {"role": "user", "content": format!("How many {family}?")},
            {"role": "assistant", "content": "", "tool_calls": [call("look", json!({"at": family}))]},
            {"role": "tool", "tool_call_id": "c", "content": "x".repeat(2000)},
            {"role": "assistant", "content": "2 + 5", "tool_calls": [call("complete_task", json!({"answer": answer}))]},
        ]);
        Trajectory {
            family: family.into(),
            answer: Some(answer.into()),
            correct: Some(correct),
            messages: serde_json::from_value(messages).unwrap(),
            ..Trajectory::default()
        }
    }

    #[test]
    fn an_example_has_task_calls_results_and_answer_and_no_prompt() {
        let text = text(&[&episode("cats", "7", true)], 1);
        let lines: Vec<&str> = text.trim().lines().collect();
        assert_eq!(lines[2..4], ["Task: How many cats?", "Call: look({\"at\":\"cats\"})"]);
        assert!(lines[4].starts_with("Result: xxx") && text.len() < 800, "{text}");
        assert_eq!(lines[lines.len() - 2..], ["2 + 5", "Answer: 7"]);
        assert!(!text.contains("Use the tools."));
    }

    #[test]
    fn examples_are_right_episodes_of_as_many_families_as_there_are() {
        let all = [
            episode("cats", "1", true),
            episode("cats", "2", true),
            episode("dogs", "3", false),
            episode("dogs", "4", true),
        ];
        let all: Vec<&Trajectory> = all.iter().collect();
        let answers = |count: usize| {
            let text = text(&all, count);
            text.lines()
                .filter_map(|line| line.strip_prefix("Answer: "))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(answers(2), ["1", "4"]);
        assert_eq!(answers(9), ["1", "4", "2"]);
        assert!(text(&all, 0).is_empty() && text(&all[2..3], 3).is_empty());
    }

    #[test]
    fn no_task_of_the_exam_is_an_example() {
        let [cats, dogs] = ["cats", "dogs"].map(|family| episode(family, "7", true));
        let exam = Scenario { id: "other".into(), task: "how many CATS".into(), ..Scenario::default() };
        let all = [cats, dogs, Trajectory { scenario_id: "s1".into(), ..episode("birds", "7", true) }];
        let named = Scenario { id: "s1".into(), task: "What?".into(), ..Scenario::default() };
        let left: Vec<&str> = unseen(&all, &[exam, named]).iter().map(|one| one.family.as_str()).collect();
        assert_eq!(left, ["dogs"]);
    }
}
