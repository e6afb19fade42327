//! What most rollouts at a task agree on, for tasks whose answer nobody knows (TTRL, Zuo et al. 2025).
//!
//! A rollout votes for its answer; where the scenario reads a state after the episode, for that state. Rollouts that looked at
//! nothing, repeat the task, hedge or only say that they are done have no vote, so that they never win. Neither has one that leaves
//! the state as it was before, which the scenario or a rollout that only read tells.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::{DONE, JudgedTrajectory, Score, Scores, flags, state, truth};
use crate::data::{Checks, Message, Role, Scenario, StateCheck};

/// Words of which an answer says no more than that the rollout has ended.
const EMPTY_WORDS: [&str; 15] = [
    DONE,
    "ok",
    "okay",
    "success",
    "successfully",
    "completed",
    "finished",
    "complete",
    "task",
    "all",
    "the",
    "is",
    "it",
    "i",
    "have",
];
/// Words of an answer that says that the rollout has failed.
const FAILED_WORDS: [&str; 8] = ["not", "no", "none", "unknown", "unable", "cannot", "sorry", "error"];

/// What a rollout votes for.
enum Vote<'a> {
    Answer(&'a str),
    /// The results of the state checks, in one notation.
    State(Vec<Value>),
}

/// The state checks of a scenario.
fn state_checks(scenario: &Scenario) -> Vec<StateCheck> {
    let checks = scenario.checks.as_ref().and_then(|checks| Checks::parse(&checks.0).ok());
    checks.map(|checks| checks.state).unwrap_or_default()
}

/// What the state checks found after a rollout, in one notation. `None` if one could not be read.
fn state_after(checks: &[StateCheck], rollout: &JudgedTrajectory<'_>) -> Option<Vec<Value>> {
    let left = truth::state_left(rollout.trajectory);
    let left = left.iter().chain(std::iter::repeat(&None));
    let normal = |(check, left): (&StateCheck, &Option<Value>)| {
        left.as_ref().map(|left| state::normal(left, &check.expect.ignore))
    };
    checks.iter().zip(left).map(normal).collect()
}

/// The states before a rollout that are known: what the scenario says, and what rollouts found that only read.
fn states_before(group: &[JudgedTrajectory<'_>], reads: &dyn Fn(&str) -> bool) -> Vec<Vec<Value>> {
    let Some(first) = group.first() else { return Vec::new() };
    let checks = state_checks(first.scenario);
    if checks.is_empty() {
        return Vec::new();
    }
    let before = |check: &StateCheck| Some(state::normal(check.before.as_ref()?, &check.expect.ignore));
    let known: Option<Vec<Value>> = checks.iter().map(before).collect();
    let only_read = group
        .iter()
        .filter(|rollout| truth::called_tools(&rollout.trajectory.messages).iter().all(|tool| reads(tool)));
    known.into_iter().chain(only_read.filter_map(|rollout| state_after(&checks, rollout))).collect()
}

/// Whether a text gives several values to choose from, as in `12 / 13`. A name with such a mark stands in the task or a result.
fn is_choice(answer: &str, scenario: &Scenario, messages: &[Message]) -> bool {
    static CHOICE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\S+(\s+/\s+\S+)+").expect("a valid pattern"));
    let results: Vec<&Message> = messages.iter().filter(|message| message.role == Role::Tool).collect();
    let is_named = |part: &str| {
        let part = part.trim_matches(|letter: char| !letter.is_alphanumeric());
        scenario.task.contains(part) || results.iter().any(|result| result.text.contains(part))
    };
    CHOICE.find_iter(answer).any(|part| !is_named(part.as_str()))
}

impl<'a> Vote<'a> {
    /// `reads` tells whether a tool only reads. A state is a vote only of a rollout that changed something, as far as is known.
    fn of(
        rollout: &JudgedTrajectory<'a>,
        before: &[Vec<Value>],
        reads: &dyn Fn(&str) -> bool,
    ) -> Option<Self> {
        let JudgedTrajectory { scenario, trajectory } = rollout;
        let checks = state_checks(scenario);
        let succeeded = truth::successful_tools(&trajectory.messages);
        if !checks.is_empty() {
            let after = state_after(&checks, rollout)?;
            let has_changed = succeeded.iter().any(|tool| !reads(tool)) && !before.contains(&after);
            return has_changed.then_some(Self::State(after));
        }
        let answer = trajectory.answer.as_deref()?;
        let (words, of_task) = (flags::words(answer), flags::words(&scenario.task));
        let says_nothing = words.iter().all(|word| EMPTY_WORDS.contains(&&**word));
        let has_failed = words.iter().any(|word| FAILED_WORDS.contains(&&**word)) || answer.contains("n't");
        let is_echo = words.iter().all(|word| of_task.contains(word));
        let is_choice = is_choice(answer, scenario, &trajectory.messages);
        let is_vote = !(succeeded.is_empty() || says_nothing || has_failed || is_echo || is_choice)
            && flags(scenario, trajectory, None).is_empty();
        is_vote.then_some(Self::Answer(answer))
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Answer(one), Self::Answer(other)) => truth::agree(one, other),
            (Self::State(one), Self::State(other)) => one == other,
            _ => false,
        }
    }
}

/// The votes of a group, as the class of each rollout's vote and the number of votes of each class.
struct Count {
    class: Vec<Option<usize>>,
    votes: Vec<usize>,
}

fn count(group: &[JudgedTrajectory<'_>], reads: &dyn Fn(&str) -> bool) -> Count {
    let before = states_before(group, reads);
    let votes: Vec<Option<Vote<'_>>> =
        group.iter().map(|rollout| Vote::of(rollout, &before, reads)).collect();
    let mut firsts: Vec<&Vote<'_>> = Vec::new();
    let mut found = Count { class: Vec::with_capacity(group.len()), votes: Vec::new() };
    for vote in &votes {
        let class = vote.as_ref().map(|vote| {
            let known = firsts.iter().position(|first| first.is_same(vote));
            known.unwrap_or_else(|| {
                firsts.push(vote);
                found.votes.push(0);
                firsts.len() - 1
            })
        });
        class.into_iter().for_each(|class| found.votes[class] += 1);
        found.class.push(class);
    }
    found
}

/// Scores of a group: the share of its rollouts that agree with each. `None` unless more than half of them agree.
///
/// `reads` tells whether a tool only reads.
pub fn consensus(group: &[JudgedTrajectory<'_>], reads: &dyn Fn(&str) -> bool) -> Option<Scores> {
    let Count { class, votes } = count(group, reads);
    let most = votes.iter().max().copied().unwrap_or(0);
    if group.len() < 2 || 2 * most <= group.len() {
        return None;
    }
    let score = |class: &Option<usize>| {
        let votes = class.map_or(0, |class| votes[class]);
        #[expect(clippy::cast_precision_loss, reason = "attempts of a group")]
        let score = votes as f64 / group.len() as f64;
        Some(Score { score, ..Score::default() })
    };
    Some(Scores { scores: class.iter().map(score).collect(), ..Scores::default() })
}

/// The first rollout with the result that at least this many of a group agree on.
///
/// `reads` tells whether a tool only reads.
pub fn agreed(group: &[JudgedTrajectory<'_>], least: usize, reads: &dyn Fn(&str) -> bool) -> Option<usize> {
    let Count { class, votes } = count(group, reads);
    let (winner, most) = votes.iter().copied().enumerate().max_by_key(|(_, votes)| *votes)?;
    (most >= least.max(1)).then(|| class.iter().position(|class| *class == Some(winner)))?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::{Json, Trajectory};

    fn task(task: &str) -> Scenario {
        Scenario { task: task.into(), check: "none".into(), ..Scenario::default() }
    }

    /// An episode with one call of this tool, which succeeds or not, and this answer.
    fn episode(tool: &str, succeeds: bool, answer: Option<&str>) -> Trajectory {
        let call = json!({"id": "a", "type": "function", "function": {"name": tool, "arguments": {}}, "form": "template"});
        let mut result = json!({"role": "tool", "tool_call_id": "a", "content": "x"});
        if !succeeds {
            result["is_error"] = true.into();
            result["error"] = "tool".into();
        }
        let messages = json!([
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            result
        ]);
        Trajectory {
            messages: serde_json::from_value(messages).unwrap(),
            answer: answer.map(str::to_owned),
            ..Trajectory::default()
        }
    }

    fn with_result(episode: &Trajectory, text: &str) -> Vec<Message> {
        let mut messages = episode.messages.clone();
        messages
            .iter_mut()
            .filter(|message| message.role == Role::Tool)
            .for_each(|message| message.text = text.into());
        messages
    }

    fn scores(scenario: &Scenario, episodes: &[Trajectory]) -> Option<Vec<f64>> {
        let group: Vec<JudgedTrajectory<'_>> =
            episodes.iter().map(|trajectory| JudgedTrajectory { scenario, trajectory }).collect();
        let scores = consensus(&group, &|tool| tool.starts_with("get"))?.scores;
        Some(scores.into_iter().map(|score| score.unwrap().score).collect())
    }

    fn answers(asked: &str, answers: &[&str]) -> Option<Vec<f64>> {
        let episodes: Vec<Trajectory> =
            answers.iter().map(|answer| episode("get", true, Some(answer))).collect();
        scores(&task(asked), &episodes)
    }

    #[test]
    fn an_attempt_earns_the_share_that_agrees_with_it() {
        let asked = "How many orders are paid?";
        assert_eq!(answers(asked, &["5", "5.", "6", "5"]), Some(vec![0.75, 0.75, 0.25, 0.75]));
        assert_eq!(
            answers(asked, &["5", "There are 5 paid orders.", "7"]),
            None,
            "a sentence is another answer"
        );
        assert_eq!(answers(asked, &["007", "7", "007"]), Some(vec![2.0 / 3.0, 1.0 / 3.0, 2.0 / 3.0]));
        assert_eq!(
            answers("Who has them?", &["Ann, Ben", "Ben, Ann", "Ann"]).unwrap()[..2],
            [2.0 / 3.0, 2.0 / 3.0]
        );
    }

    #[test]
    fn without_more_than_half_there_is_no_reward() {
        let asked = "How many orders are paid?";
        assert_eq!(answers(asked, &["5", "5", "6", "7"]), None);
        assert_eq!(answers(asked, &["5", "6"]), None);
        assert_eq!(answers(asked, &["5"]), None, "one attempt agrees with nobody");
        assert_eq!(answers(asked, &[]), None);
    }

    #[test]
    fn echoes_nothing_and_done_never_win() {
        let nothing =
            ["done", "Done!", "OK", "The task is complete.", "", "?", "T107", "the ticket T107 owner"];
        let failed = ["Ann or Ben", "not found", "I don't know", "error: no such table: owners", "unknown"];
        for said in nothing.into_iter().chain(failed) {
            assert_eq!(answers("Who is the owner of ticket T107?", &[said; 4]), None, "{said:?}");
        }
        let unlooked =
            Trajectory { answer: Some("Ann".into()), messages: Vec::new(), ..Trajectory::default() };
        let failed = episode("get", false, Some("Ann"));
        let right = episode("get", true, Some("Ann"));
        let asked = task("Who is the owner of ticket T107?");
        assert_eq!(scores(&asked, &[unlooked.clone(), unlooked.clone(), unlooked.clone()]), None);
        assert_eq!(scores(&asked, &[failed.clone(), failed.clone()]), None);
        assert_eq!(
            scores(&asked, &[right.clone(), unlooked, right.clone(), failed]),
            None,
            "half is no majority"
        );
        assert_eq!(scores(&asked, &[right.clone(), right]), Some(vec![1.0, 1.0]));
    }

    #[test]
    fn a_vote_is_one_answer() {
        let asked = "How many orders are paid?";
        for said in ["12 / 13", "12 or 13", "12 (or 13)", "most likely 12", "12, alternatively 13"] {
            assert_eq!(answers(asked, &[said; 4]), None, "{said:?}");
        }
        for said in ["12/03/2026", "3/4", "src/main.rs", "90 km/h", "Ann, Ben"] {
            assert_eq!(answers(asked, &[said; 2]), Some(vec![1.0, 1.0]), "{said:?}");
        }
        let named = episode("get", true, Some("Sales / Support"));
        let named = Trajectory { messages: with_result(&named, "team: Sales / Support"), ..named.clone() };
        assert_eq!(scores(&task("Which team?"), &[named.clone(), named]), Some(vec![1.0, 1.0]));
    }

    #[test]
    fn of_a_change_the_states_have_to_agree() {
        let checks = json!({"state": [{"tool": "list", "expect": {"ignore": ["at"]}}]}).to_string();
        let order = Scenario { checks: Some(Json(checks)), ..task("Close ticket T107.") };
        let left = |tool: &str, state: &Value| Trajectory {
            state: Some(Json(json!([state.to_string()]).to_string())),
            ..episode(tool, true, Some("done"))
        };
        let (open, closed) = (json!([{"status": "open", "at": 1}]), json!([{"status": "closed", "at": 2}]));
        let later = json!([{"at": 3, "status": "closed"}]);
        let found = [left("close", &closed), left("close", &later), left("close", &open)];
        assert_eq!(scores(&order, &found), Some(vec![2.0 / 3.0, 2.0 / 3.0, 1.0 / 3.0]));
        let idle = [left("get", &open), left("get", &open), left("close", &closed)];
        assert_eq!(scores(&order, &idle), None, "attempts that only read have no vote");
        let undone = [left("close", &open), left("close", &open), left("get", &open), left("close", &open)];
        assert_eq!(scores(&order, &undone), None, "what changes nothing in the end has no vote");
        let told = json!({"state": [{"tool": "list", "expect": {"ignore": ["at"]}, "before": open}]});
        let told = Scenario { checks: Some(Json(told.to_string())), ..order.clone() };
        assert_eq!(scores(&told, &[left("close", &open), left("close", &open)]), None);
        let unread = Trajectory { state: Some(Json("[null]".into())), ..left("close", &closed) };
        assert_eq!(scores(&order, &[unread.clone(), unread]), None);
    }

    #[test]
    fn an_answer_is_agreed_on_by_enough_attempts() {
        let asked = task("How many orders are paid?");
        let of = |said: &[&str]| {
            let episodes: Vec<Trajectory> =
                said.iter().map(|answer| episode("get", true, Some(answer))).collect();
            let group: Vec<JudgedTrajectory<'_>> =
                episodes.iter().map(|trajectory| JudgedTrajectory { scenario: &asked, trajectory }).collect();
            agreed(&group, 3, &|_| true)
        };
        assert_eq!(of(&["6", "5", "5", "5"]), Some(1));
        assert_eq!(of(&["6", "6", "5", "5"]), None);
        assert_eq!(of(&[]), None);
    }
}
