//! `teacher`: passes a teacher on, if it knows something that the policy does not.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{FEW, HeadroomError, greedy_outcomes, known, pass_on};
use crate::{
    data::Scenario,
    engine::Footprint,
    error::Result,
    eval::{Clusters, Interval, difference_interval},
    stage::{
        Context, Metrics, StageError, StageKind,
        kind::StageFuture,
        mean,
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

    /// Whether a teacher may be refused.
    fn is_gate(&self) -> bool {
        self.params.least_gain > 0.0
    }

    async fn compare(&self, context: &Context) -> Result<Metrics> {
        let mut tasks: Vec<Scenario> = known(context, "scenarios")?;
        // A teacher may have voted on their answers.
        tasks.retain(|task| task.voted.is_none());
        if tasks.is_empty() {
            return Err(HeadroomError::NoTasks.into());
        }
        if self.is_gate() && tasks.len() < FEW {
            return Err(HeadroomError::FewTasks { tasks: tasks.len(), least: FEW }.into());
        }
        context.observer.phase("episodes", 2 * tasks.len() as u64);
        let (teacher, student) = (context.input(TEACHER)?, context.input(STUDENT)?);
        let taught = greedy_outcomes(context, &self.play, student, &tasks).await?;
        let teaches = greedy_outcomes(context, &self.play, teacher, &tasks).await?;
        let one = |right: bool| f64::from(u8::from(right));
        let pairs: Vec<(f64, f64)> = teaches
            .iter()
            .zip(&taught)
            .filter_map(|(teaches, taught)| Some((one((*teaches)?), one((*taught)?))))
            .collect();
        let teaches = mean(pairs.iter().map(|(teaches, _)| *teaches));
        let taught = mean(pairs.iter().map(|(_, taught)| *taught));
        let (teaches, taught) = teaches.zip(taught).ok_or(HeadroomError::ServerLost)?;
        let differences: Vec<f64> = pairs.iter().map(|(teaches, taught)| teaches - taught).collect();
        let members: Vec<usize> = (0..differences.len()).collect();
        let Interval { low, high } = difference_interval(&Clusters::new(&differences, &members));
        let (gain, least, tasks) = (teaches - taught, self.params.least_gain, pairs.len());
        let [teacher_percent, policy_percent] = [teaches, taught].map(|share| 100.0 * share);
        if self.is_gate() && (gain < least || low <= 0.0) {
            let [gain, low, high, least] = [gain, low, high, least].map(|share| 100.0 * share);
            let (teacher, policy) = (teacher_percent, policy_percent);
            return Err(HeadroomError::WeakTeacher { teacher, policy, gain, low, high, least, tasks }.into());
        }
        context.observer.note(&format!(
            "greedy, on {tasks} tasks that nothing trains on: teacher {teacher_percent:.1} %, policy {policy_percent:.1} %",
        ));
        pass_on(teacher, context)?;
        Ok(metrics([("teacher", teaches), ("policy", taught), ("gain", gain), ("tasks", tasks as f64)]))
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
        let few = |tasks: &usize| self.is_gate() && *tasks < FEW;
        if let Some(tasks) = context.scenarios().map(|tasks| tasks.answered).filter(few) {
            preflight.error("scenarios", HeadroomError::FewTasks { tasks, least: FEW });
        }
        if context.is_voted() {
            preflight.error("scenarios", HeadroomError::NoTasks);
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
