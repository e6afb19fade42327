//! Whether the tasks of an exam still hold: their reference solutions are played again before any policy plays.
//!
//! | the task has | it no longer holds if |
//! |---|---|
//! | a reference solution | its last call fails, unless the answer is that there is nothing |
//! | how its answer is read (column `reads`) | the results now give another answer, or none |
//! | state checks | the state afterwards is not as they expect |
//!
//! Nothing is known of a task without a solution, of one whose calls mcprl refuses, and of one that is lost with the server. It
//! stays in the exam.

use super::EvalError;
use crate::{
    data::{Checks, End, NONE, Replay, Scenario, Trajectory},
    error::Result,
    judge::truth,
    mcp::{Outcome, ServerSpec, Servers, State, Transport},
    stage::{
        Context, Input,
        replay::{ReplayedCall, made},
        rollout::{play::Player, records::of_references, reference, settings::PlaySettings},
    },
    tasks::admission::answer_again,
};

/// Most tasks that a report names.
const NAMED: usize = 20;
/// Characters of a text that it shows.
const SHOWN: usize = 80;

/// What the replay found.
#[derive(Debug, Default)]
pub struct Aging {
    /// A row for each reference solution.
    pub rows: Vec<Replay>,
    /// Tasks of the exam, with those that no longer hold.
    pub tasks: usize,
}

impl Aging {
    /// Plays the reference solutions of scenarios. `policy` is any whose model can write them as an episode.
    ///
    /// # Errors
    /// If the server is lost, or most of the tasks no longer hold.
    pub async fn of(
        context: &Context,
        policy: &Input,
        scenarios: &[Scenario],
        play: &PlaySettings,
    ) -> Result<Self> {
        let tasks = scenarios.len();
        let is_solved =
            |scenario: &&Scenario| reference::calls(scenario).is_some_and(|calls| calls.len() > 1);
        let solved: Vec<Scenario> = scenarios.iter().filter(is_solved).cloned().collect();
        if solved.is_empty() || !context.servers.as_ref().is_some_and(can_change) {
            return Ok(Self { rows: Vec::new(), tasks });
        }
        let tools = &context.input("tools")?.path;
        let mut player = Player::of_replay(context, policy, tools, &solved, play.clone())?;
        context.observer.phase("reference solutions", solved.len() as u64);
        let played = player.play(context, &of_references(&solved)).await;
        player.close().await;
        let rows =
            solved.iter().zip(played?).map(|(scenario, played)| row(scenario, played.as_ref())).collect();
        let aging = Self { rows, tasks };
        aging.check()?;
        Ok(aging)
    }

    fn aged(&self) -> impl Iterator<Item = &Replay> {
        self.rows.iter().filter(|row| row.holds == Some(false))
    }

    pub fn count(&self) -> usize {
        self.aged().count()
    }

    /// The tasks that hold, or of which that is not known.
    pub fn without(&self, mut scenarios: Vec<Scenario>) -> Vec<Scenario> {
        let aged: std::collections::BTreeSet<&str> =
            self.aged().map(|row| row.scenario_id.as_str()).collect();
        scenarios.retain(|scenario| !aged.contains(scenario.id.as_str()));
        scenarios
    }

    fn check(&self) -> Result<(), EvalError> {
        let (aged, judged) = (self.count(), self.rows.iter().filter(|row| row.holds.is_some()).count());
        match self.aged().next() {
            Some(first) if 2 * aged > judged || aged == self.tasks => {
                let [was, now] = [&first.before, &first.now].map(|text| shown(text.as_deref()));
                Err(EvalError::Aged { aged, tasks: self.tasks, id: first.scenario_id.clone(), was, now })
            }
            _ => Ok(()),
        }
    }

    /// The line for the run's output. None if all tasks hold.
    pub fn note(&self) -> Option<String> {
        let verb = match self.count() {
            0 => return None,
            1 => "no longer holds: its",
            _ => "no longer hold: their",
        };
        let (aged, tasks) = (self.count(), super::several(self.tasks, "task"));
        Some(format!("{aged} of {tasks} {verb} answer has changed on the server"))
    }

    /// The paragraph of the verdict page, with the names of the tasks.
    pub fn paragraph(&self) -> Option<String> {
        let mut text = format!("Left out: {}.\n", self.note()?);
        for row in self.aged().take(NAMED) {
            let [id, was, now] = [Some(&row.scenario_id), row.before.as_ref(), row.now.as_ref()]
                .map(|text| shown(text.map(String::as_str)).replace('`', "'"));
            text += &format!("\n- `{id}`: was `{was}`, is `{now}`");
        }
        if self.count() > NAMED {
            text += &format!("\n- {} more in `replays`", self.count() - NAMED);
        }
        Some(text)
    }
}

/// The beginning of a text, in one line.
pub(super) fn shown(text: Option<&str>) -> String {
    let words = text.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() { "nothing".to_owned() } else { words.chars().take(SHOWN).collect() }
}

/// Whether the answers of all servers may change, and each episode is known to be kept apart from others.
fn can_change(servers: &Servers) -> bool {
    let can_change = |spec: &ServerSpec| {
        spec.state != State::Unconfirmed && !matches!(spec.transport, Transport::Cassette(_))
    };
    servers.iter().all(|(_, spec)| can_change(spec))
}

/// The row of a task, whose solution was played as this episode; `None` if it was lost.
fn row(scenario: &Scenario, played: Option<&Trajectory>) -> Replay {
    let mut row =
        Replay { scenario_id: scenario.id.clone(), before: scenario.answer.clone(), ..Replay::default() };
    let Some(played) = played else { return row };
    let results = made(played);
    row.trajectory_id.clone_from(&played.id);
    row.calls = results.len() as u32;
    let Some(found) = found(scenario, played, &results) else { return row };
    row.holds = Some(found.is_ok());
    if let Err(Changed { before, now }) = found {
        row.call = results.len().checked_sub(1).map(|last| last as u32);
        row.tool = results.last().map(|last| last.call.name.clone());
        row.now = Some(now);
        row.before = before.or(row.before);
    }
    row
}

/// What was, if it is not the answer, and what is.
struct Changed {
    before: Option<String>,
    now: String,
}

impl Changed {
    fn to(now: String) -> Self {
        Self { before: None, now }
    }
}

/// Whether the task holds; `None` if that is not known.
fn found(scenario: &Scenario, played: &Trajectory, results: &[ReplayedCall]) -> Option<Result<(), Changed>> {
    match played.end() {
        Some(End::Completed) => {}
        Some(End::ServerDown) => return Some(Err(Changed::to("the call takes the server down".into()))),
        _ => return None,
    }
    if results.iter().any(|made| !made.reached) {
        return None;
    }
    let outcomes =
        results.iter().map(|made| made.result.clone().map(|text| Outcome { text, is_error: made.is_error }));
    let outcomes: Vec<Outcome> = outcomes.collect::<Option<_>>()?;
    if let Some(changed) = state_change(scenario, played) {
        return Some(Err(changed));
    }
    if let (Some(answer), Some(again)) = (&scenario.answer, answer_again(scenario, &outcomes)) {
        let is_same = |now: &String| truth::same_answer(&scenario.check)(answer, now);
        return Some(
            again.map_err(Changed::to).and_then(
                |now| {
                    if is_same(&now) { Ok(()) } else { Err(Changed::to(now)) }
                },
            ),
        );
    }
    let last = outcomes.last()?;
    // What the server refuses is a task, too, whose state says that it holds.
    let may_fail = scenario.answer.as_deref() == Some(NONE) || played.state.is_some();
    Some(if last.is_error && !may_fail { Err(Changed::to(last.text.clone())) } else { Ok(()) })
}

/// The first state check that does not hold after the solution.
fn state_change(scenario: &Scenario, played: &Trajectory) -> Option<Changed> {
    let checks = Checks::parse(&scenario.checks.as_ref()?.0).ok()?;
    let results: Vec<Option<String>> = serde_json::from_str(&played.state.as_ref()?.0).ok()?;
    let mut checked = checks.state.into_iter().zip(results);
    let (check, now) = checked
        .find(|(check, now)| !now.as_ref().is_some_and(|now| truth::text_holds(&check.expect, now)))?;
    let expected = serde_json::to_string(&check.expect).unwrap_or_default();
    let now = now.unwrap_or_else(|| "an error".into());
    Some(Changed { before: Some(format!("`{}` gives {expected}", check.tool)), now })
}
