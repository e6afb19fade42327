//! Admission: what a candidate must be before it counts as a scenario.
//!
//! Its calls are executed on two separate sets of sessions, and a second later once more if a time of day is the answer.
//! [`refusals`](super::refusals) has the reasons for which it is left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    answer_rule::{Answer, AnswerRule, normal, states},
    candidate::{Candidate, Check, NONE},
    refusals::{Admitted, Judged, Reason, Refusal, refused_row},
    runner::{Runner, TICK},
};
use crate::{
    chat::ToolCall,
    data::{Admission, Checks, Scenario, StateCheck, folded},
    error::Result,
    judge::truth,
    mcp::Outcome,
};

/// Sequences that are executed twice before others.
const PORTION: usize = 64;
/// How long an execution may take that finds clocks, where no time is left.
const GRACE: Duration = Duration::from_secs(10);
const LOST: &str = "a call was lost, or there was no time for it";
/// Seconds around now that a number may be a time of.
const DAY: f64 = 86_400.0;

/// The answer, if the task has one, or why the candidate is left out.
type Verdict = Result<Option<Answer>, Refusal>;

/// Admits candidates. `tools` are the names that no task may say; `breaking` are those that changed a server's state.
///
/// # Errors
/// If the stage is cancelled, or the server is lost.
pub async fn admit(
    candidates: Vec<Candidate>,
    tools: &BTreeSet<String>,
    breaking: &BTreeSet<String>,
    runners: &[Runner<'_>; 2],
) -> Result<Judged> {
    let names: Vec<String> = tools.iter().filter_map(|tool| forbidden(tool)).collect();
    let mut verdicts: Vec<Verdict> = Vec::new();
    for candidate in &candidates {
        let task = normal(&candidate.task);
        // Who orders a change says what the tool is called: `close ticket T107`.
        let is_order = candidate.rule == AnswerRule::Nothing && !candidate.calls.is_empty();
        let named = names.iter().find(|name| task.contains(name.as_str())).filter(|_| !is_order);
        let breaks = candidate.calls.iter().find(|call| breaking.contains(&call.name));
        verdicts.push(match (named, breaks) {
            (Some(name), _) => Err((Reason::Leaking, format!("the task says `{}`", name.trim()))),
            (None, Some(call)) => {
                Err((Reason::StateBreaking, format!("`{}` changes the server's state", call.name)))
            }
            _ => Ok(None),
        });
    }

    let (places, [first, second]) = executed_twice(&candidates, &verdicts, runners).await?;
    let today = Today::now();
    for ((candidate, verdict), place) in candidates.iter().zip(&mut verdicts).zip(&places) {
        if let Some(place) = *place {
            *verdict = answer(candidate, [&first[place], &second[place]], &today, runners[0].result_chars);
        }
    }
    executed_later(&candidates, &mut verdicts, &places, &runners[1]).await?;
    sentences(&candidates, &mut verdicts);
    constants(&candidates, &mut verdicts);

    let mut judged = Judged::default();
    for (mut candidate, verdict) in candidates.into_iter().zip(verdicts) {
        judged.rows.push(row(&candidate, &verdict));
        let Ok(answer) = verdict else { continue };
        let answer = answer.map(|Answer { text, alternatives, working }| {
            candidate.alternatives.extend(alternatives);
            candidate.working = working;
            text
        });
        judged.admitted.push(Admitted { candidate, answer });
    }
    Ok(judged)
}

/// Executes the calls of candidates twice, equal calls once for all. Gives the place of each candidate's outcomes, none for one that is
/// left out already, and those of both executions.
async fn executed_twice(
    candidates: &[Candidate],
    verdicts: &[Verdict],
    runners: &[Runner<'_>; 2],
) -> Result<(Vec<Option<usize>>, [Vec<Vec<Outcome>>; 2])> {
    let mut sequences: Vec<Vec<ToolCall>> = Vec::new();
    // Once is enough for what was executed already.
    let mut executed: BTreeMap<usize, Vec<Outcome>> = BTreeMap::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut of_candidate = Vec::new();
    for (candidate, verdict) in candidates.iter().zip(verdicts) {
        of_candidate.push(verdict.is_ok().then(|| {
            let mut calls = candidate.calls.clone();
            calls.extend(candidate.checks.iter().flat_map(state_calls));
            let key = serde_json::json!(calls).to_string();
            let place = *places.entry(key).or_insert_with(|| {
                sequences.push(calls);
                sequences.len() - 1
            });
            if !candidate.executed.is_empty() {
                executed.insert(place, candidate.executed.clone());
            }
            place
        }));
    }
    let observer = runners[0].observer;
    observer.phase("reference chains", 2 * sequences.len() as u64);
    let mut outcomes = [Vec::new(), Vec::new()];
    // A portion is executed twice before the next one: the time may end at any of them.
    for (start, portion) in (0..).step_by(PORTION).zip(sequences.chunks(PORTION)) {
        let is_new = |place: &usize| !executed.contains_key(place);
        let new: Vec<usize> = (start..start + portion.len()).filter(is_new).collect();
        let calls: Vec<Vec<ToolCall>> = new.iter().map(|place| sequences[*place].clone()).collect();
        executed.extend(new.into_iter().zip(runners[0].run(&calls).await?));
        let first = (start..).map_while(|place| executed.remove(&place)).take(portion.len());
        let first: Vec<Vec<Outcome>> = first.collect();
        outcomes[1].extend(executed_again(portion, &first, &runners[1]).await?);
        outcomes[0].extend(first);
    }
    Ok((of_candidate, outcomes))
}

/// The second execution of sequences, in the reverse order: what depends on the calls in front of it gives something else. Such a
/// sequence is executed once more on a session of its own, which decides.
async fn executed_again(
    sequences: &[Vec<ToolCall>],
    first: &[Vec<Outcome>],
    runner: &Runner<'_>,
) -> Result<Vec<Vec<Outcome>>> {
    let reversed: Vec<Vec<ToolCall>> = sequences.iter().rev().cloned().collect();
    let mut second = runner.run(&reversed).await?;
    second.reverse();
    let differing: Vec<usize> = (0..sequences.len())
        .filter(|place| runner.shares(&sequences[*place]) && first[*place] != second[*place])
        .collect();
    let apart: Vec<Vec<ToolCall>> = differing.iter().map(|place| sequences[*place].clone()).collect();
    for (place, outcomes) in differing.into_iter().zip(runner.run_apart(&apart).await?) {
        second[place] = outcomes;
    }
    Ok(second)
}

/// Refuses answers with a time of day that are others a moment later: both executions may have been within a second of a clock.
/// `places`: as [`executed_twice`] gives them, equal for equal calls.
async fn executed_later(
    candidates: &[Candidate],
    verdicts: &mut [Verdict],
    places: &[Option<usize>],
    runner: &Runner<'_>,
) -> Result<()> {
    let mut timed: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, (verdict, place)) in verdicts.iter().zip(places).enumerate() {
        let has_calls = !candidates[index].calls.is_empty();
        if let Some(place) = place.filter(|_| has_calls && text(verdict).is_some_and(has_time)) {
            timed.entry(place).or_default().push(index);
        }
    }
    if timed.is_empty() {
        return Ok(());
    }
    tokio::time::sleep(TICK).await;
    let sequences: Vec<_> = timed.values().map(|group| candidates[group[0]].calls.clone()).collect();
    runner.live.forget(sequences.iter().flatten());
    let deadline = runner.deadline();
    runner.set_deadline(deadline.max(Instant::now() + GRACE));
    let outcomes = runner.run(&sequences).await;
    runner.set_deadline(deadline);
    for (group, outcomes) in timed.values().zip(outcomes?) {
        let texts: Vec<&str> = outcomes.iter().map(|outcome| outcome.text.as_str()).collect();
        for &index in group {
            let Candidate { calls, rule, may_fail, .. } = &candidates[index];
            let failed = outcomes.iter().find(|outcome| outcome.is_failure() && !may_fail);
            let refusal = match (failed, rule.answer(&texts)) {
                (Some(failed), _) => (Reason::Unsolvable, format!("a call fails: {}", failed.text)),
                _ if outcomes.len() < calls.len() => (Reason::Unsolvable, LOST.to_owned()),
                (_, Ok(later)) if Some(later.as_str()) == text(&verdicts[index]) => continue,
                (_, Ok(later)) => (Reason::Unstable, format!("a moment later, the answer is \"{later}\"")),
                (_, Err(why)) => (Reason::Unstable, format!("a moment later, {why}")),
            };
            verdicts[index] = Err(refusal);
        }
    }
    Ok(())
}

/// The calls of state checks, which are executed behind the reference calls.
pub fn state_calls(checks: &Checks) -> impl Iterator<Item = ToolCall> {
    checks.state.iter().map(|StateCheck { tool, arguments, .. }| ToolCall {
        name: tool.clone(),
        arguments: arguments.clone(),
    })
}

fn row(candidate: &Candidate, verdict: &Verdict) -> Admission {
    let (family, task) = (candidate.family.clone(), candidate.task.clone());
    let row = match verdict {
        Ok(_) => Admission { family, task, verdict: "admitted".into(), ..Admission::default() },
        Err((reason, detail)) => refused_row(family, task, *reason, detail),
    };
    let answer = text(verdict);
    let calls = u32::try_from(candidate.calls.len()).unwrap_or(u32::MAX);
    Admission { id: candidate.id(answer), calls, ..row }
}

fn text(verdict: &Verdict) -> Option<&str> {
    verdict.as_ref().ok()?.as_ref().map(|answer| answer.text.as_str())
}

/// The name as [`normal`] text, if a sentence could not contain it by chance: several words, or one that is no English
/// word by its looks.
fn forbidden(tool: &str) -> Option<String> {
    let name = normal(tool);
    let is_word = name.trim().chars().all(|letter| letter.is_ascii_alphabetic());
    (!is_word || name.len() > 12).then_some(name)
}

fn answer(
    candidate: &Candidate,
    outcomes: [&Vec<Outcome>; 2],
    today: &Today,
    result_chars: usize,
) -> Verdict {
    if today.is_in(&candidate.task) {
        return Err((Reason::Unstable, "the task names today's date".into()));
    }
    if let (true, AnswerRule::Quoted(answer)) = (candidate.calls.is_empty(), &candidate.rule) {
        return Ok(Some(Answer { text: answer.clone(), ..Answer::default() }));
    }
    let is_absent = matches!(candidate.rule, AnswerRule::Absent { .. });
    // An error, too, says that there is nothing.
    let finds_nothing = is_absent && candidate.may_fail;
    // What the server refuses fails in its last call. Checks of the state do not.
    let is_refused = candidate.rule == AnswerRule::Nothing && candidate.may_fail;
    let checks = candidate.checks.iter().flat_map(|checks| &checks.state);
    let wanted = candidate.calls.len() + checks.clone().count();
    for outcomes in outcomes {
        let counts = |(place, outcome): &(usize, &Outcome)| {
            let is_last = place + 1 >= candidate.calls.len();
            let is_check = *place >= candidate.calls.len();
            let may_be_last = finds_nothing || is_refused && !is_check;
            outcome.is_failure() && (is_last && !may_be_last || !candidate.may_fail)
        };
        if let Some((_, failed)) = outcomes.iter().enumerate().find(counts) {
            return Err((Reason::Unsolvable, format!("a call fails: {}", failed.text)));
        }
        if outcomes.len() < wanted {
            return Err((Reason::Unsolvable, LOST.into()));
        }
    }
    let [one, other] = outcomes.map(|outcomes| -> Vec<&str> {
        outcomes[..candidate.calls.len()].iter().map(|outcome| outcome.text.as_str()).collect()
    });
    if finds_nothing && outcomes.iter().all(|outcomes| outcomes.last().is_some_and(Outcome::is_failure)) {
        return Ok(Some(candidate.rule.explained(NONE.to_owned(), &one)));
    }
    let read =
        |texts: &[&str]| candidate.rule.answer(texts).map_err(|why| (Reason::Unsolvable, why.to_owned()));
    let (first, second) = (read(&one)?, read(&other)?);
    if first != second {
        return Err((Reason::Unstable, format!("two executions answer \"{first}\" and \"{second}\"")));
    }
    if !candidate.rule.is_visible(&one, &first, result_chars) {
        let detail = format!(
            "\"{first}\" does not follow from the {result_chars} characters that an agent sees of a result"
        );
        return Err((Reason::Hidden, detail));
    }
    // A check of the state is a call like any other.
    for (check, place) in checks.zip(candidate.calls.len()..) {
        if outcomes.iter().any(|outcomes| !truth::text_holds(&check.expect, &outcomes[place].text)) {
            let detail = format!("what `{}` shows afterwards differs between two executions", check.tool);
            return Err((Reason::Unstable, detail));
        }
    }
    if candidate.rule == AnswerRule::Nothing {
        return Ok(None);
    }
    let arguments: String =
        candidate.calls.iter().map(|call| serde_json::json!(call.arguments).to_string()).collect();
    let is_dated = today.is_in(one.last().copied().unwrap_or_default());
    if (is_dated && today.is_clock(&first) || today.is_now(&first)) && !today.is_in(&arguments) {
        return Err((Reason::Unstable, format!("\"{first}\" depends on today's date")));
    }
    if is_absent {
        return Ok(Some(candidate.rule.explained(first, &one)));
    }
    let says = match candidate.check {
        Check::Set => first.split(", ").all(|item| states(&candidate.task, item)),
        _ => states(&candidate.task, &first),
    };
    if says {
        return Err((Reason::Trivial, format!("the task says the answer \"{first}\"")));
    }
    Ok(Some(candidate.rule.explained(first, &one)))
}

/// What results of the reference solution answer, which was played again. None if the task does not say how its answer is
/// read.
///
/// # Errors
/// If they give no answer.
pub fn answer_again(scenario: &Scenario, outcomes: &[Outcome]) -> Option<Result<String, String>> {
    let rule: AnswerRule = serde_json::from_str(&scenario.reads.as_ref()?.0).ok()?;
    let last = outcomes.last()?;
    // An error, too, says that there is nothing.
    if matches!(rule, AnswerRule::Absent { .. }) && last.is_failure() {
        return Some(Ok(NONE.to_owned()));
    }
    if last.is_error {
        return Some(Err(last.text.clone()));
    }
    let texts: Vec<&str> = outcomes.iter().map(|outcome| outcome.text.as_str()).collect();
    Some(rule.answer(&texts).map_err(str::to_owned))
}

/// Refuses sentences that exist already, and all that have two answers.
fn sentences(candidates: &[Candidate], verdicts: &mut [Verdict]) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut answers: BTreeMap<String, BTreeSet<Option<String>>> = BTreeMap::new();
    for (candidate, verdict) in candidates.iter().zip(&*verdicts) {
        if verdict.is_ok() {
            answers.entry(folded(&candidate.task)).or_default().insert(text(verdict).map(normal));
        }
    }
    for (candidate, verdict) in candidates.iter().zip(verdicts).filter(|(_, verdict)| verdict.is_ok()) {
        let task = folded(&candidate.task);
        if answers.get(&task).is_some_and(|answers| answers.len() > 1) {
            *verdict = Err((Reason::Ambiguous, "the same sentence has another answer elsewhere".into()));
        } else if !seen.insert(task) {
            *verdict = Err((Reason::Duplicate, "the same sentence exists".into()));
        }
    }
}

/// Fewer tasks of a family with one and the same answer are chance.
const CONSTANT: usize = 3;

/// Refuses families whose answer is always the same, and yes-or-no answers that are hardly ever different.
fn constants(candidates: &[Candidate], verdicts: &mut [Verdict]) {
    /// Entities by answer.
    type Answers<'a> = BTreeMap<String, BTreeSet<&'a BTreeMap<String, String>>>;
    let mut answers: BTreeMap<&str, Answers<'_>> = BTreeMap::new();
    for (candidate, verdict) in candidates.iter().zip(&*verdicts) {
        if let Some(answer) = text(verdict) {
            let of_family = answers.entry(&candidate.family).or_default();
            of_family.entry(normal(answer)).or_default().insert(&candidate.entity);
        }
    }
    let is_flag = |answer: &str| ["true", "false", "yes", "no", "0", "1"].contains(&answer.trim());
    for (candidate, verdict) in candidates.iter().zip(verdicts) {
        let (Some(answer), Some(of_family)) = (text(verdict), answers.get(candidate.family.as_str())) else {
            continue;
        };
        // Tasks that cannot be done have one answer, and others in the same words have not.
        if candidate.may_fail && matches!(candidate.rule, AnswerRule::Absent { .. }) {
            continue;
        }
        let entities: BTreeSet<_> = of_family.values().flatten().collect();
        let is_constant = of_family.len() == 1 && (entities.len() >= CONSTANT || is_flag(&normal(answer)));
        let flags = of_family.keys().all(|answer| is_flag(answer));
        let most = of_family.values().map(BTreeSet::len).max().unwrap_or_default();
        let is_lopsided = flags && most * 10 > entities.len() * 9;
        if is_constant || is_lopsided {
            let detail = format!("\"{answer}\" answers (nearly) every task of the family");
            *verdict = Err((Reason::Trivial, detail));
        }
    }
}

/// Today's date, to recognise what a clock gave.
pub struct Today {
    dates: Vec<String>,
    days: Vec<String>,
    seconds: f64,
}

impl Today {
    pub fn now() -> Self {
        let now = chrono::Utc::now();
        let days = [-1, 0, 1].map(|days| now + chrono::Duration::days(days));
        let formats = [
            "%Y-%m-%d",
            "%a %b %e %Y",
            "%a %b %d %Y",
            "%a %b %e",
            "%d/%m/%Y",
            "%m/%d/%Y",
            "%d %b %Y",
            "%B %d, %Y",
        ];
        Self {
            dates: days.iter().flat_map(|day| formats.map(|format| day.format(format).to_string())).collect(),
            days: days.iter().map(|day| day.format("%A").to_string().to_lowercase()).collect(),
            seconds: now.timestamp() as f64,
        }
    }

    pub fn is_in(&self, text: &str) -> bool {
        self.dates.iter().any(|date| text.contains(date.as_str()))
    }

    /// Whether a text has a date of today, or is the number of a second or millisecond around now.
    pub fn is_now(&self, text: &str) -> bool {
        let is_near = |number: f64| (number - self.seconds).abs() < DAY;
        let is_time = |number: f64| is_near(number) || is_near(number / 1000.0);
        self.is_in(text) || text.parse::<f64>().is_ok_and(is_time)
    }

    /// The day in UTC.
    pub fn date(&self) -> Option<chrono::NaiveDate> {
        Some(chrono::DateTime::from_timestamp(self.seconds as i64, 0)?.date_naive())
    }

    /// Whether an answer can be that of a clock: a date, a time of day, or a day of the week.
    fn is_clock(&self, answer: &str) -> bool {
        has_time(answer) || self.is_in(answer) || self.days.contains(&answer.to_lowercase())
    }
}

/// Whether a text has a time of day: `7:53 PM`, `2026-01-01T07:53:55Z`.
fn has_time(text: &str) -> bool {
    text.split(|letter: char| !letter.is_ascii_digit() && letter != ':').any(|part| {
        matches!(part.split(':').collect::<Vec<_>>()[..], [hour, minute, ..] if (1..=2).contains(&hour.len()) && minute.len() == 2)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::{Router, http::StatusCode, response::IntoResponse, routing::post};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        live::Live,
        mcp::{ServerSpec, State, Transport},
        progress::NoProgress,
    };

    /// A server whose tools give the time of day, seconds since 1970, and when a train leaves.
    async fn station() -> ServerSpec {
        let answer = async |body: String| {
            let request: Value = serde_json::from_str(&body).unwrap();
            let now = chrono::Utc::now();
            let result = match request["method"].as_str().unwrap() {
                "initialize" => json!({
                    "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
                }),
                "tools/call" => {
                    let text = match request["params"]["name"].as_str().unwrap() {
                        "clock" => now.format("%-I:%M:%S %p").to_string(),
                        "seconds" => (now.timestamp() / 1000 * 1000).to_string(),
                        _ => "8:45 AM".to_owned(),
                    };
                    json!({"content": [{"type": "text", "text": text}]})
                }
                _ => return StatusCode::ACCEPTED.into_response(),
            };
            axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/mcp", post(answer))).await });
        ServerSpec::new(Transport::http(url), State::ReadOnly)
    }

    #[tokio::test]
    async fn what_a_clock_answers_is_no_task_and_another_time_of_day_is() {
        let servers = station().await.into();
        let cancel = tokio_util::sync::CancellationToken::new();
        let lives = [Live::new(&servers, &[]), Live::new(&servers, &[])];
        let deadline = Instant::now() + Duration::from_secs(60);
        let tools: BTreeSet<String> = ["clock", "seconds", "train"].map(str::to_owned).into();
        let runner = |live| Runner::new(live, tools.clone(), (deadline, 1000), &NoProgress, &cancel);
        let runners = [runner(&lives[0]), runner(&lives[1])];
        let candidate = |(tool, task): (&str, &str)| Candidate {
            family: tool.into(),
            task: task.into(),
            calls: vec![ToolCall { name: tool.into(), arguments: serde_json::Map::new() }],
            rule: AnswerRule::Only,
            check: Check::Text,
            ..Candidate::default()
        };
        let tasks = [
            ("clock", "What time is it?"),
            ("seconds", "How old is Unix?"),
            ("train", "When does it leave?"),
        ];
        let judged =
            admit(tasks.map(candidate).into(), &BTreeSet::new(), &BTreeSet::new(), &runners).await.unwrap();
        let reasons: Vec<Option<&str>> = judged.rows.iter().map(|row| row.reason.as_deref()).collect();
        assert_eq!(reasons, [Some("unstable"), Some("unstable"), None], "{:?}", judged.rows);
        assert_eq!(judged.admitted[0].answer.as_deref(), Some("8:45 AM"));
    }
}
