//! Two agents that know nothing and call no tool: one says the commonest answer of the exam, the other "done".
//!
//! What they solve, an exam does not measure. They are rows of the verdict, and the tasks that they solve are named.

use crate::{
    data::{Scenario, Trajectory},
    error::Result,
    eval::{Episode, Mode},
    judge::{DONE, commonest_answer, truth},
    stage::{
        Context, Input,
        rollout::{play::Player, records::of_references, settings::PlaySettings},
    },
};

/// Most tasks that a report names.
const NAMED: usize = 20;

/// The names that the verdict gives them.
pub const NAMES: [&str; 2] = ["common", "done"];

/// What they solve.
#[derive(Debug, Default)]
pub struct Idle {
    pub episodes: Vec<Episode>,
    /// Texts of the tasks that one of them solves.
    solved: Vec<String>,
    tasks: usize,
}

impl Idle {
    /// Plays the tasks as both. A session is opened for tasks whose state is checked alone. `policy` is any whose model can write
    /// an episode.
    ///
    /// # Errors
    /// If the server is lost.
    pub async fn of(
        context: &Context,
        policy: &Input,
        scenarios: &[Scenario],
        (play, modes): (&PlaySettings, &[Mode]),
    ) -> Result<Self> {
        let answers = [commonest_answer(scenarios), DONE];
        let mut idle = Self { tasks: scenarios.len(), ..Self::default() };
        let mut solves = vec![false; scenarios.len()];
        for (name, answer) in NAMES.into_iter().zip(answers) {
            let played = play_as(context, policy, scenarios, answer, play).await?;
            for ((scenario, played), solves) in scenarios.iter().zip(&played).zip(&mut solves) {
                let Some(played) = played else { continue };
                let is_right = truth::correct(scenario, played.into()) == Some(true);
                *solves |= is_right;
                idle.episodes.extend(modes.iter().map(|mode| episode(name, *mode, &scenario.id, is_right)));
            }
        }
        let solved = scenarios.iter().zip(solves).filter(|(_, solves)| *solves);
        idle.solved = solved.map(|(scenario, _)| scenario.task.clone()).collect();
        Ok(idle)
    }

    pub fn count(&self) -> usize {
        self.solved.len()
    }

    /// The paragraph of the verdict page, with the tasks.
    pub fn paragraph(&self) -> Option<String> {
        if self.solved.is_empty() {
            return None;
        }
        let mut text = format!(
            "{} of {} are solved without a call, by saying the commonest answer or \"done\". They measure nothing: give them \
             `checks`, or another answer.\n",
            self.count(),
            super::several(self.tasks, "task"),
        );
        for task in self.solved.iter().take(NAMED) {
            text += &format!("\n- {}", super::aging::shown(Some(task)));
        }
        if self.count() > NAMED {
            text += &format!("\n- {} more", self.count() - NAMED);
        }
        Some(text)
    }
}

/// The episodes of an agent that says this at once.
async fn play_as(
    context: &Context,
    policy: &Input,
    scenarios: &[Scenario],
    answer: &str,
    play: &PlaySettings,
) -> Result<Vec<Option<Trajectory>>> {
    let said = |scenario: &Scenario| Scenario {
        reference: Some("[]".into()),
        answer: Some(answer.to_owned()),
        ..scenario.clone()
    };
    let scenarios: Vec<Scenario> = scenarios.iter().map(said).collect();
    let tools = &context.input("tools")?.path;
    let mut player = Player::of_replay(context, policy, tools, &scenarios, play.clone())?;
    context.observer.phase("controls", scenarios.len() as u64);
    let played = player.play(context, &of_references(&scenarios)).await;
    player.close().await;
    played
}

fn episode(name: &str, mode: Mode, scenario: &str, right: bool) -> Episode {
    Episode {
        scenario: scenario.to_owned(),
        policy: name.to_owned(),
        mode,
        right,
        changed: None,
        by_protocol: right,
        any_right: None,
        calls: 0,
        turns: 1,
        tokens: 0,
        tool_errors: 0,
        tools: Vec::new(),
    }
}
