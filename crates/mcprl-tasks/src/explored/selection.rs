//! Which of the many questions about what was seen are tried, and which of those that are admitted are kept.

use super::{Budget, ExploreInputs, Sampled, beyond, chains, graph, sql, statements, things::Things};
use crate::{
    answer_rule::AnswerRule,
    candidate::{Candidate, Check},
    mix::in_turn,
    refusals::{Admitted, Judged},
};

/// Largest share of tasks whose answer is that there are none.
const ZEROS: f64 = 0.04;
/// Candidates for each wanted task: some are refused.
const SPARE: f64 = 1.6;
/// Smallest share of the tasks in words that fit any server, where there are some in people's own: about tables, or statements.
const GENERAL: f64 = 0.1;

/// The candidates that are tried. Of each kind of question there are more.
pub fn candidates(task: &ExploreInputs<'_>, Sampled { graph, profiles, .. }: &Sampled) -> Vec<Candidate> {
    let mut own = sql::candidates(graph, profiles, task.seed);
    own.extend(statements::candidates(graph, profiles, task.seed));
    let things = Things::new(graph, profiles);
    let others = chains::candidates(graph, profiles, &things, task.seed);
    // Of what was found: a small server has few tasks.
    let found = task.budget.tasks.min(own.len() + others.len());
    let share = |share: f64| share_of(found, share);
    // First, because tasks beyond those that are wanted are left out at the end.
    let mut candidates =
        beyond::impossible(graph, profiles, &things, task.seed, share(task.budget.impossible_share));
    if !own.is_empty() || !others.is_empty() {
        let mut names: Vec<String> = profiles.iter().map(|profile| profile.name.clone()).collect();
        names.extend(sql::tables(graph));
        candidates.extend(beyond::without_calls(&names, task.seed, share(task.budget.no_call_share)));
    }
    let hops = |candidate: &Candidate| (candidate.family.matches(" > ").count(), String::new());
    // What lists and describes the tables is asked about itself, but is there for the queries.
    let general = (1.0 - own.len() as f64 / (task.budget.tasks as f64 * SPARE)).max(GENERAL);
    let own = chosen(own, sql::subject, task.budget, SPARE * (1.0 - general), task.seed);
    candidates.extend(interleaved(own, chosen(others, hops, task.budget, SPARE * general, task.seed)));
    // The values that results of the same tool have where the answer stands.
    for candidate in candidates.iter_mut().filter(|candidate| candidate.check != Check::Number) {
        let last = candidate.calls.last().map(|call| call.name.as_str());
        let of_tool = graph.seen.iter().filter(|seen| Some(profiles[seen.tool].name.as_str()) == last);
        let known = of_tool.flat_map(|seen| candidate.rule.alternatives(&seen.reading, ""));
        candidate.alternatives.extend(known.collect::<Vec<_>>());
    }
    candidates
}

/// Keeps as many tasks as are wanted in all, and of those whose answer is that there are none, that ask for what does not exist and
/// that need no call.
pub fn trim(judged: &mut Judged, budget: Budget) {
    // Whoever guesses that there is none is right too often.
    let is_zero = |one: &Admitted| {
        one.answer.as_deref() == Some("0") && !matches!(one.candidate.rule, AnswerRule::Field { .. })
    };
    let others = judged.admitted.iter().filter(|one| !is_zero(one)).count();
    judged.trim_those(is_zero, share_of(others.min(budget.tasks), ZEROS));
    judged.trim(budget.tasks);
    let of = |family: &str| {
        let prefix = format!("{family}: ");
        move |admitted: &Admitted| admitted.candidate.family.starts_with(&prefix)
    };
    let found = judged.admitted.iter().filter(|one| !of(beyond::NO_CALL)(one)).count();
    judged.trim_those(of(beyond::NO_CALL), share_of(found, budget.no_call_share));
    judged.trim_those(of(beyond::IMPOSSIBLE), share_of(found, budget.impossible_share));
}

/// The few among the many, at even distances.
fn interleaved(many: Vec<Candidate>, few: Vec<Candidate>) -> Vec<Candidate> {
    let step = many.len() / few.len().max(1);
    let mut few = few.into_iter();
    let mut mixed = Vec::new();
    for (place, one) in many.into_iter().enumerate() {
        if step > 0 && place % step == 0 {
            mixed.extend(few.next());
        }
        mixed.push(one);
    }
    mixed.extend(few);
    mixed
}

/// This share of a number of tasks, rounded down.
pub fn share_of(tasks: usize, share: f64) -> usize {
    (tasks as f64 * share) as usize
}

/// Takes candidates from the tools, subjects and families in turn, in seeded order: `spare` times as many as are wanted. A
/// subject is first the number of things that are described on the way to what is asked about, then that thing.
pub fn chosen(
    candidates: Vec<Candidate>,
    subject: impl Fn(&Candidate) -> (usize, String),
    budget: Budget,
    spare: f64,
    seed: u64,
) -> Vec<Candidate> {
    let order =
        |candidate: &Candidate| graph::rank(seed, &candidate.task, &format!("{:?}", candidate.entity));
    let of_family = |mut family: Vec<Candidate>| {
        family.sort_by_cached_key(order);
        family.truncate(budget.per_family);
        family
    };
    let of_thing = |all| in_turn(all, |candidate| candidate.family.clone(), of_family);
    let of_hops = |all| in_turn(all, |candidate| subject(candidate).1, of_thing);
    let of_tool = |all| in_turn(all, |candidate| subject(candidate).0, of_hops);
    let tool = |candidate: &Candidate| candidate.calls.last().map(|call| call.name.clone());
    let mut chosen = in_turn(candidates, tool, of_tool);
    chosen.truncate(share_of(budget.tasks, spare));
    chosen
}
