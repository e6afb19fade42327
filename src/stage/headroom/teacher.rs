//! `teacher`: passes a teacher on, if it knows something that the policy does not.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{HeadroomError, known, pass_on, play_greedily};
use crate::{
    data::Scenario,
    engine::Footprint,
    error::Result,
    stage::{
        Context, Metrics, StageError, StageKind,
        kind::StageFuture,
        memory::Load,
        metrics,
        preflight::{Preflight, PreflightContext},
        rollout::{prompts, settings::PlaySettings},
        typed,
    },
};

const TEACHER: &str = "teacher";
const STUDENT: &str = "policy";

#[derive(Debug, Deserialize)]
pub(in crate::stage) struct Params {
    least_gain: f64,
}

pub struct TeacherStage {
    params: Params,
    play: PlaySettings,
}

impl TeacherStage {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, play: PlaySettings::parse(params)? })
    }

    async fn compare(&self, context: &Context) -> Result<Metrics> {
        let mut tasks: Vec<Scenario> = known(context, "scenarios")?;
        // A teacher may have voted on their answers.
        tasks.retain(|task| task.voted.is_none());
        if tasks.is_empty() {
            return Err(HeadroomError::NoTasks.into());
        }
        context.observer.phase("episodes", 2 * tasks.len() as u64);
        let (teacher, student) = (context.input(TEACHER)?, context.input(STUDENT)?);
        let taught = play_greedily(context, &self.play, student, &tasks).await?;
        let teaches = play_greedily(context, &self.play, teacher, &tasks).await?;
        let gain = teaches - taught;
        let least = self.params.least_gain;
        if gain < least {
            let [teacher, policy, least] = [teaches, taught, least].map(|share| 100.0 * share);
            return Err(HeadroomError::WeakTeacher { teacher, policy, least, tasks: tasks.len() }.into());
        }
        context.observer.note(&format!(
            "greedy, on {} tasks that nothing trains on: teacher {:.1} %, policy {:.1} %",
            tasks.len(),
            100.0 * teaches,
            100.0 * taught
        ));
        pass_on(teacher, context)?;
        Ok(metrics([("teacher", teaches), ("policy", taught), ("gain", gain), ("tasks", tasks.len() as f64)]))
    }
}

impl StageKind for TeacherStage {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.compare(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        for role in [TEACHER, STUDENT] {
            prompts::check(context, role, &self.play.agent, &mut preflight);
        }
        let teacher = context.inputs.get(TEACHER).and_then(|given| given.first());
        match teacher {
            Some((_, teacher)) => preflight.with("policy", teacher.clone()),
            None => preflight,
        }
    }

    fn adapter_base(&self) -> Option<&'static str> {
        Some(TEACHER)
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        // One after the other.
        let of =
            |role| load.policies(role).next().map(|policy| self.play.footprint(load, policy, usize::MAX));
        [of(TEACHER), of(STUDENT)].into_iter().flatten().max_by_key(Footprint::total)
    }

    fn shares_model(&self, _: &str) -> bool {
        true
    }
}
