//! Which tasks are left out, and why.
//!
//! | step, in this order | what it leaves out | row in `admission` |
//! |---|---|---|
//! | reading [`traces`](super::traces), [`llm`](super::llm), [`families`](super::families) | what is no task | with the [`Reason`] |
//! | [`explored`](super::explored): `chosen` | candidates beyond those that are tried | none |
//! | [`admit`](super::admission::admit) | what two executions do not prove | with the [`Reason`] |
//! | `refuse_changes` | what reads a state that changes | [`Reason::Unstable`], [`Reason::StateBreaking`] |
//! | [`Judged::hold_out`] | what held-out tasks of other tables ask | [`Reason::HeldOut`] |
//! | [`Judged::trim`], [`Judged::trim_those`] | what is more than is wanted | none |
//! | [`writer`](super::writer) | a wording; the task keeps its own | [`Reason::Wording`] |
//! | [`mix::draw`](super::mix::draw) | what the weights of a mix leave | none |
//! | [`hold_out`] | the same for every source, and training tasks that ask what a held-out one asks | [`Reason::HeldOut`] |
//! | [`check_frozen`](super::split::check_frozen) | nothing: it is an error if a held-out task is trained on | |
//! | votes, tries | what rollouts disagree on, what a policy solves too often or too seldom | [`Reason::Disagreed`], [`Reason::TooEasy`], [`Reason::TooHard`] |
//! | [`split::dev`](super::split::dev) | training tasks that ask what one of `dev` asks | [`Reason::HeldOut`] |
//!
//! A row without a reason is that of a task that is in a table.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    answer_rule::AnswerRule,
    candidate::{Candidate, Check, reference_calls},
};
use crate::data::{Admission, Fact, Facts, Scenario};

/// Why a candidate is no scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Reason {
    /// A reference call fails, or its result has no answer.
    Unsolvable,
    /// The answer is in a part of a result that an agent does not see.
    Hidden,
    /// Two executions differ, or the answer is the clock's.
    Unstable,
    /// One sentence with two answers.
    Ambiguous,
    /// The task says the answer, or it is always the same.
    Trivial,
    /// The sentence already exists.
    Duplicate,
    /// A held-out task asks the same, or one of `dev`.
    HeldOut,
    /// The task names a tool.
    Leaking,
    /// A call changes the state of a server that should not change.
    StateBreaking,
    /// A new wording of a task does not say the same. The task keeps its own.
    Wording,
    /// The policy solves it too often to learn from it.
    TooEasy,
    /// The policy solves it too seldom.
    TooHard,
    /// Attempts at it come to different answers.
    Disagreed,
}

impl Reason {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// What is left out, and why.
pub type Refusal = (Reason, String);

/// An admitted candidate and its answer.
#[derive(Debug, Clone)]
pub struct Admitted {
    pub candidate: Candidate,
    pub answer: Option<String>,
}

impl Admitted {
    pub fn scenario(&self) -> Scenario {
        self.candidate.scenario(self.answer.clone())
    }

    pub fn id(&self) -> String {
        self.candidate.id(self.answer.as_deref())
    }
}

/// Results of candidates in their order, and the table.
#[derive(Debug, Default)]
pub struct Judged {
    pub admitted: Vec<Admitted>,
    pub rows: Vec<Admission>,
    /// The parameter whose limit ended exploration before all was tried.
    pub limit: Option<&'static str>,
}

impl Judged {
    /// Keeps as many tasks as are wanted.
    pub fn trim(&mut self, most: usize) {
        self.trim_those(|_| true, most);
    }

    /// Keeps as many of those tasks as are wanted.
    pub fn trim_those(&mut self, those: impl Fn(&Admitted) -> bool, most: usize) {
        let surplus: BTreeSet<String> =
            self.admitted.iter().filter(|one| those(one)).skip(most).map(Admitted::id).collect();
        self.admitted.retain(|one| !surplus.contains(&one.id()));
        self.rows.retain(|row| row.reason.is_some() || !surplus.contains(&row.id));
    }

    /// Makes the answers of a family's tasks alternatives of each other. A sample of the data has not all of them.
    pub fn share_answers(&mut self) {
        let mut answers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for Admitted { candidate, answer } in &self.admitted {
            let is_value =
                !matches!(candidate.rule, AnswerRule::Absent { .. }) && candidate.check != Check::Number;
            if let Some(answer) = answer.as_ref().filter(|_| is_value) {
                answers.entry(candidate.family.clone()).or_default().insert(answer.clone());
            }
        }
        for Admitted { candidate, .. } in &mut self.admitted {
            candidate.alternatives.extend(answers.get(&candidate.family).into_iter().flatten().cloned());
        }
    }

    /// Leaves out what held-out tasks ask.
    pub fn hold_out(&mut self, held_out: &Facts) {
        self.refuse(|admitted| asked_by(held_out, &admitted.scenario(), EXAM));
    }

    /// Leaves out admitted candidates for a reason found later.
    pub fn refuse(&mut self, why: impl Fn(&Admitted) -> Option<Refusal>) {
        refuse(&mut self.admitted, &mut self.rows, Admitted::id, why);
    }
}

/// What a task is called that is examined, in the details of refusals.
pub const EXAM: &str = "a held-out task";

/// Leaves out what held-out tasks ask, each of which is `who`: [`EXAM`], or a task of `dev`.
pub fn hold_out(tasks: &mut Vec<Scenario>, rows: &mut [Admission], held_out: &Facts, who: &str) {
    refuse(tasks, rows, |task| task.id.clone(), |task| asked_by(held_out, task, who));
}

fn asked_by(held_out: &Facts, task: &Scenario, who: &str) -> Option<Refusal> {
    let fact = held_out.find(&Fact::of(task))?;
    Some((Reason::HeldOut, format!("{who} asks: {}", fact.task)))
}

/// Leaves out tasks for a reason, which their rows get.
pub fn refuse<T>(
    tasks: &mut Vec<T>,
    rows: &mut [Admission],
    id: impl Fn(&T) -> String,
    why: impl Fn(&T) -> Option<Refusal>,
) {
    let mut refused: BTreeMap<String, Refusal> = BTreeMap::new();
    tasks.retain(|task| match why(task) {
        Some(refusal) => {
            refused.insert(id(task), refusal);
            false
        }
        None => true,
    });
    for row in rows.iter_mut().filter(|row| row.reason.is_none()) {
        if let Some((reason, detail)) = refused.get(&row.id) {
            row.verdict = "refused".into();
            row.reason = Some(reason.name().to_owned());
            row.detail = Some(detail.clone());
        }
    }
}

/// The row of a task that was not executed here, or was when it was made.
pub fn admitted_row(scenario: &Scenario) -> Admission {
    Admission {
        id: scenario.id.clone(),
        family: scenario.family.clone(),
        task: scenario.task.clone(),
        verdict: "admitted".into(),
        calls: u32::try_from(reference_calls(scenario).len()).unwrap_or(u32::MAX),
        ..Admission::default()
    }
}

/// The row of a candidate that was refused before it was executed.
pub fn refused_row(family: String, task: String, reason: Reason, detail: &str) -> Admission {
    Admission {
        family,
        task,
        verdict: "refused".into(),
        reason: Some(reason.name().into()),
        detail: Some(detail.chars().take(300).collect()),
        ..Admission::default()
    }
}
