//! What keeps episodes from the right answer, counted.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Display};

use crate::{
    chat::CallForm,
    data::{End, Trajectory, paired_calls},
};

/// How far an episode came that is not right. The first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
enum Hurdle {
    #[strum(to_string = "reached `max_turns`")]
    Turns,
    #[strum(to_string = "reached `max_turn_tokens`")]
    TurnTokens,
    #[strum(to_string = "reached `max_episode_tokens` or the end of the model's context")]
    Tokens,
    /// Its own call crashed the server.
    #[strum(to_string = "crashed the server")]
    Crash,
    /// No turn has a call that can be read.
    #[strum(to_string = "wrote no call that can be read")]
    NoCall,
    /// It answers, but called no tool.
    #[strum(to_string = "answered without calling a tool")]
    NoLookup,
    /// No call gave a result.
    #[strum(to_string = "got only errors from their calls")]
    OnlyErrors,
    /// It has results, and the answer is not the expected one.
    #[strum(to_string = "got results and gave another answer")]
    OtherAnswer,
}

/// Counts over episodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conduct {
    pub episodes: u64,
    /// Those with a right answer.
    pub right: u64,
    /// Those with a wrong one, or without a known answer.
    hurdles: BTreeMap<Hurdle, u64>,
    /// Calls that were read, by their form.
    forms: BTreeMap<CallForm, u64>,
}

impl Conduct {
    pub fn of<'a>(trajectories: impl IntoIterator<Item = &'a Trajectory>) -> Self {
        let mut conduct = Self::default();
        for trajectory in trajectories {
            conduct.episodes += 1;
            let calls = paired_calls(&trajectory.messages);
            for call in calls.iter().filter_map(|paired| paired.call) {
                *conduct.forms.entry(call.form).or_default() += 1;
            }
            if trajectory.correct == Some(true) {
                conduct.right += 1;
                continue;
            }
            let has_result = || calls.iter().any(|call| call.result.is_some() && call.error().is_none());
            let hurdle = match trajectory.end() {
                Some(End::OutOfTurns) => Hurdle::Turns,
                Some(End::OutOfTurnTokens) => Hurdle::TurnTokens,
                Some(End::OutOfTokens) => Hurdle::Tokens,
                Some(End::ServerDown) => Hurdle::Crash,
                _ if calls.iter().all(|paired| paired.call.is_none()) && trajectory.answer.is_none() => {
                    Hurdle::NoCall
                }
                _ if calls.iter().all(|call| call.result.is_none()) => Hurdle::NoLookup,
                _ if !has_result() => Hurdle::OnlyErrors,
                _ => Hurdle::OtherAnswer,
            };
            *conduct.hurdles.entry(hurdle).or_default() += 1;
        }
        conduct
    }

    /// What the episodes that are not right did, the most frequent first; none if all are right.
    pub fn hurdles(&self) -> Option<String> {
        let hurdles = most_frequent_first(self.hurdles.iter())?;
        let Self { episodes, right, .. } = self;
        Some(format!("{} of {episodes} episodes have no right answer: {hurdles}", episodes - right))
    }

    /// How many calls are not written as the chat template writes them, by form; none if all are.
    pub fn forms(&self) -> Option<String> {
        let loose = || self.forms.iter().filter(|(form, _)| **form != CallForm::Template);
        let forms = most_frequent_first(loose())?;
        let (count, all): (u64, u64) = (loose().map(|(_, count)| count).sum(), self.forms.values().sum());
        Some(format!("{count} of {all} calls are not in the form of the chat template: {forms}"))
    }
}

/// `5 a, 2 b`. None if nothing is counted.
fn most_frequent_first<'a, T: Display + Ord + 'a>(
    counts: impl Iterator<Item = (&'a T, &'a u64)>,
) -> Option<String> {
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by_key(|(what, count)| (Reverse(*count), *what));
    let parts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn call(name: &str, form: Option<&str>) -> Value {
        let mut call = json!({"id": "a", "function": {"name": name, "arguments": {}}});
        if let Some(form) = form {
            call["form"] = form.into();
        }
        json!({"role": "assistant", "content": "", "tool_calls": [call]})
    }

    fn result(is_error: bool) -> Value {
        let mut result = json!({"role": "tool", "tool_call_id": "a", "name": "find", "content": "text"});
        if is_error {
            result["is_error"] = true.into();
            result["error"] = "tool".into();
        }
        result
    }

    fn episode(messages: Vec<Value>, end: &str, answer: Option<&str>) -> Trajectory {
        Trajectory {
            messages: serde_json::from_value(messages.into()).unwrap(),
            end: end.into(),
            answer: answer.map(str::to_owned),
            correct: Some(false),
            ..Trajectory::default()
        }
    }

    #[test]
    fn each_episode_that_is_not_right_counts_for_the_first_thing_that_stopped_it() {
        let done = || call("complete_task", Some("tags"));
        let text = || json!({"role": "assistant", "content": "No idea."});
        let unread = [json!({"role": "assistant", "content": "<tool_call>{"}), {
            let mut malformed = result(true);
            malformed["error"] = "unparsable".into();
            malformed["name"] = "".into();
            malformed
        }];
        let cases = [
            (episode(vec![text()], "no_call", None), Hurdle::NoCall),
            (episode(unread.to_vec(), "no_call", None), Hurdle::NoCall),
            (episode(vec![text()], "completed", Some("No idea.")), Hurdle::NoLookup),
            (episode(vec![done()], "completed", Some("5")), Hurdle::NoLookup),
            (
                episode(vec![call("find", None), result(true), done()], "completed", Some("5")),
                Hurdle::OnlyErrors,
            ),
            (
                episode(
                    vec![call("find", None), result(true), call("find", None), result(false), done()],
                    "completed",
                    Some("5"),
                ),
                Hurdle::OtherAnswer,
            ),
            (episode(vec![call("find", None), result(false)], "out_of_turns", None), Hurdle::Turns),
            (episode(vec![call("find", None)], "server_down", None), Hurdle::Crash),
        ];
        for (episode, hurdle) in &cases {
            let conduct = Conduct::of([episode]);
            assert_eq!(conduct.hurdles, BTreeMap::from([(*hurdle, 1)]), "{:?}", episode.messages);
        }
        let right = Trajectory { correct: Some(true), ..cases[3].0.clone() };
        let all = Conduct::of(cases.iter().map(|(episode, _)| episode).chain([&right]));
        insta::assert_snapshot!([all.hurdles().unwrap(), all.forms().unwrap()].join("\n"), @r"
        8 of 9 episodes have no right answer: 2 wrote no call that can be read, 2 answered without calling a tool, 1 reached `max_turns`, 1 crashed the server, 1 got only errors from their calls, 1 got results and gave another answer
        4 of 9 calls are not in the form of the chat template: 4 tags
        ");
        let solved = Conduct::of([&right]);
        assert_eq!((solved.hurdles(), solved.right), (None, 1));
    }
}
