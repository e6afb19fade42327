//! Which tasks are held out, and the digest that freezes them.
//!
//! Tasks are held out by groups: all tasks with the same entity, family, phrasing, tool or server are on one side. The seed orders
//! the groups; nothing else does.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{
    TaskError,
    answer_rule::{ANSWER_BYTES, AnswerRule},
    candidate::{Candidate, reference_calls},
    refusals::{Admitted, hold_out},
    words,
};
use crate::{
    data::{Admission, Fact, Facts, Scenario, Sparse, folded},
    hash::{Digest, Encoder},
    mcp::plain,
};

/// What no held-out task has in common with a training task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SplitBy {
    /// The task itself.
    Task,
    Entity,
    Family,
    Phrasing,
    /// A tool of the reference calls.
    Tool,
    /// The server that the task names. A task that names none is trained on.
    Server,
}

impl SplitBy {
    /// The value of `split` for tasks that are held out.
    pub fn heldout(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Entity => "unseen_entities",
            Self::Phrasing => "unseen_phrasings",
            Self::Family => "unseen_families",
            Self::Tool => "unseen_tools",
            Self::Server => "unseen_servers",
        }
    }

    /// The groups of a task. `phrasing`: which wording it has. `thing`: what it is about; without it, that is its entity.
    pub fn keys(self, scenario: &Scenario, phrasing: &str, thing: Option<&str>) -> Vec<String> {
        match self {
            Self::Task => vec![scenario.task.clone()],
            Self::Entity => {
                let entity = thing.or(scenario.entity.as_deref());
                vec![entity.unwrap_or(&scenario.task).to_owned()]
            }
            Self::Family => vec![scenario.family.clone()],
            Self::Phrasing => vec![phrasing.to_owned()],
            Self::Tool => {
                let names = reference_calls(scenario).into_iter().map(|call| call.name);
                names.collect::<BTreeSet<_>>().into_iter().collect()
            }
            Self::Server => scenario.server.iter().map(|server| server.0.clone()).collect(),
        }
    }
}

/// So many tasks may be about one thing in any case.
const FEW: usize = 4;

/// A task, which wording it has, and what it is about.
pub struct Marked {
    pub scenario: Scenario,
    pub phrasing: String,
    pub thing: Option<String>,
}

impl Marked {
    pub fn of(admitted: &Admitted) -> Self {
        let candidate = &admitted.candidate;
        Self {
            scenario: admitted.scenario(),
            phrasing: candidate.phrasing.clone(),
            thing: thing_of(candidate),
        }
    }
}

/// What the task is about, for splits by entity: the thing whose name the last call takes or the task says, whichever family
/// the task is of, and for a count, a total or another aggregate the family, which is its table or tool, column and
/// operation. None if only the task itself or its `entity` can say it.
fn thing_of(candidate: &Candidate) -> Option<String> {
    if matches!(candidate.rule, AnswerRule::Quoted(_) | AnswerRule::Recorded { .. })
        || candidate.rule == AnswerRule::Nothing && candidate.closing.is_none()
    {
        return None;
    }
    const NAMES: [&str; 9] = ["id", "name", "title", "key", "path", "file", "uri", "number", "code"];
    let is_short = |value: &String| !value.trim().is_empty() && value.len() <= ANSWER_BYTES;
    let of_call = candidate.calls.last().into_iter().flat_map(|call| &call.arguments);
    let of_call = of_call
        .filter(|(_, value)| !value.is_object() && !value.is_array())
        .map(|(name, value)| (name.clone(), plain(value)));
    let of_task = candidate.entity.iter().map(|(name, value)| (name.clone(), value.clone()));
    let thing = of_call.chain(of_task).find(|(name, value)| words::has_any(name, &NAMES) && is_short(value));
    match thing {
        // A number names nothing by itself.
        Some((name, value)) if value.parse::<f64>().is_ok() => Some(format!("{name} {value}")),
        Some((_, value)) => Some(folded(&value)),
        None => match candidate.rule {
            AnswerRule::Field { .. } => None,
            _ => Some(candidate.family.clone()),
        },
    }
}

/// Removes things that so many tasks are about that they tell none from the others, such as the only repository there is.
pub fn drop_common(tasks: &mut [Marked]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for thing in tasks.iter().filter_map(|task| task.thing.as_ref()) {
        *counts.entry(thing.clone()).or_default() += 1;
    }
    let most = (tasks.len() / 5).max(FEW);
    for task in tasks {
        task.thing = task.thing.take().filter(|thing| counts[thing] <= most);
    }
}

/// Which of the tasks with these groups are held out: about this share, at least one group if there are several, never all.
pub fn held_out(keys: &[Vec<String>], share: f64, seed: u64) -> Vec<bool> {
    let groups: BTreeSet<&str> = keys.iter().flatten().map(String::as_str).collect();
    let draw = |key: &str| Encoder::new("mcprl held-out groups v1").number(seed).text(key).finish();
    let mut order = Vec::from_iter(groups);
    order.sort_by_cached_key(|key| draw(key));
    let wanted = (share * keys.len() as f64).ceil() as usize;
    let mut held: BTreeSet<&str> = BTreeSet::new();
    let is_held =
        |held: &BTreeSet<&str>, keys: &Vec<String>| keys.iter().any(|key| held.contains(key.as_str()));
    let mut sum = 0;
    // Groups that would hold out far too much are left to training, unless there are no others.
    let most = keys.len().saturating_sub(1);
    for limit in [wanted + wanted / 2, most] {
        for key in &order {
            if sum >= wanted || (limit > wanted + wanted / 2 && sum > 0) {
                break;
            }
            held.insert(key);
            let now = keys.iter().filter(|keys| is_held(&held, keys)).count();
            if now > limit.min(most) && share < 1.0 {
                held.remove(key);
            } else {
                sum = now;
            }
        }
    }
    keys.iter().map(|keys| is_held(&held, keys)).collect()
}

/// Divides tasks into training and held-out tasks, and sets their `split`.
pub fn divide(tasks: Vec<Marked>, by: SplitBy, share: f64, seed: u64) -> (Vec<Scenario>, Vec<Scenario>) {
    let keys = |task: &Marked| by.keys(&task.scenario, &task.phrasing, task.thing.as_deref());
    let held = held_out(&tasks.iter().map(keys).collect::<Vec<_>>(), share, seed);
    let (mut train, mut heldout) = (Vec::new(), Vec::new());
    for (Marked { mut scenario, .. }, held) in tasks.into_iter().zip(held) {
        scenario.split = if held { by.heldout() } else { "train" }.into();
        if held { heldout.push(scenario) } else { train.push(scenario) }
    }
    (train, heldout)
}

/// Takes so many training tasks at most for `dev`, no more than a fifth, but one if there are two. Tasks that ask the same as one of
/// these are left out of training. The seed decides which.
pub fn dev(train: &mut Vec<Scenario>, rows: &mut [Admission], most: usize, seed: u64) -> Vec<Scenario> {
    let draw = |id: &str| Encoder::new("mcprl dev tasks v1").number(seed).text(id).finish();
    let wanted = most.min((train.len() / 5).max(1)).min(train.len().saturating_sub(1));
    let mut order: Vec<&Scenario> = train.iter().collect();
    order.sort_by_cached_key(|task| draw(&task.id));
    let (mut chosen, mut facts) = (BTreeSet::new(), Facts::default());
    for task in order {
        if chosen.len() < wanted && !facts.has(task) {
            facts.insert(Fact::of(task));
            chosen.insert(task.id.clone());
        }
    }
    let dev = train.extract_if(.., |task| chosen.contains(&task.id)).collect();
    hold_out(train, rows, &facts, "a task of `dev`");
    dev
}

/// Notes of each task its fact, and of a held-out one whether a training task is of its kind.
pub fn mark(start: &mut [Scenario], train: &mut [Scenario], dev: &mut [Scenario], heldout: &mut [Scenario]) {
    let mut trained = Facts::default();
    for task in start.iter_mut().chain(train) {
        let fact = Fact::of(task);
        task.fact = Some(fact.to_json());
        trained.insert(fact);
    }
    for task in dev.iter_mut().chain(heldout) {
        let fact = Fact::of(task);
        task.trained_kind = trained.has_kind(&fact).map(Sparse);
        task.fact = Some(fact.to_json());
    }
}

/// The digest of a held-out set: of its tasks, answers, checks and candidates, in any order.
pub fn digest(heldout: &[Scenario]) -> Digest {
    let one = |scenario: &Scenario| {
        let mut encoder = Encoder::new("mcprl held-out task v2");
        encoder
            .text(&folded(&scenario.task))
            .text(scenario.answer.as_deref().unwrap_or_default())
            .text(&scenario.check);
        encoder.text(scenario.checks.as_ref().map_or("", |checks| checks.0.as_str()));
        if let Some(candidates) = &scenario.candidates {
            encoder.number(candidates.len() as u64);
            candidates.iter().for_each(|candidate| _ = encoder.text(candidate));
        }
        encoder.finish()
    };
    let all: BTreeSet<Digest> = heldout.iter().map(one).collect();
    let mut encoder = Encoder::new("mcprl held-out set v1");
    all.iter().for_each(|digest| _ = encoder.digest(digest));
    encoder.finish()
}

/// Refuses a held-out set that is not the frozen one, and training on a held-out task.
///
/// # Errors
/// As said; names the task, or both digests.
pub fn check_frozen(train: &[Scenario], heldout: &[Scenario], frozen: Option<&str>) -> Result<(), TaskError> {
    let texts: BTreeSet<String> = heldout.iter().map(|scenario| folded(&scenario.task)).collect();
    let ids: BTreeSet<&str> = heldout.iter().map(|scenario| scenario.id.as_str()).collect();
    let is_held =
        |scenario: &&Scenario| ids.contains(scenario.id.as_str()) || texts.contains(&folded(&scenario.task));
    let mut found = train.iter().filter(is_held);
    if let Some(first) = found.next() {
        return Err(TaskError::TrainsOnHeldOut { task: first.task.clone(), count: 1 + found.count() });
    }
    let found = digest(heldout).to_string();
    match frozen {
        Some(expected) if expected != found => {
            Err(TaskError::HeldOutDiffers { expected: expected.to_owned(), found })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::{candidate::Check, refusals::admitted_row},
        *,
    };
    use crate::chat::ToolCall;
    use crate::data::ServerName;

    fn task(text: &str, family: &str, entity: &str, tools: &[&str]) -> Scenario {
        let calls: Vec<_> = tools.iter().map(|tool| json!({"name": tool, "arguments": {}})).collect();
        Scenario {
            id: text.into(),
            task: text.into(),
            family: family.into(),
            entity: Some(entity.into()),
            reference: Some(json!(calls).to_string()),
            ..Scenario::default()
        }
    }

    fn many() -> Vec<Marked> {
        (0..100)
            .map(|n| {
                let tools: &[&str] = if n % 4 == 0 { &["list", "open"] } else { &["list"] };
                let scenario = task(&format!("t{n}"), &format!("f{}", n % 7), &format!("e{}", n % 10), tools);
                Marked {
                    scenario: Scenario { server: Some(ServerName(format!("s{}", n % 8))), ..scenario },
                    phrasing: format!("p{}", n % 5),
                    thing: None,
                }
            })
            .collect()
    }

    #[test]
    fn a_group_is_on_one_side() {
        for by in [
            SplitBy::Task,
            SplitBy::Entity,
            SplitBy::Family,
            SplitBy::Phrasing,
            SplitBy::Tool,
            SplitBy::Server,
        ] {
            let tasks = many();
            let phrasings: BTreeMap<String, String> =
                tasks.iter().map(|task| (task.scenario.id.clone(), task.phrasing.clone())).collect();
            let (train, heldout) = divide(tasks, by, 0.2, 7);
            assert_eq!(train.len() + heldout.len(), 100);
            assert!((14..=30).contains(&heldout.len()), "{by:?}: {}", heldout.len());
            let keys = |scenarios: &[Scenario]| -> BTreeSet<String> {
                let keys = |one: &Scenario| by.keys(one, &phrasings[&one.id], None);
                scenarios.iter().flat_map(keys).collect()
            };
            let shared: Vec<String> = keys(&train).intersection(&keys(&heldout)).cloned().collect();
            let expected: &[&str] = if by == SplitBy::Tool { &["list"] } else { &[] };
            assert_eq!(shared, expected, "{by:?}");
            assert!(heldout.iter().all(|one| one.split == by.heldout()));
        }
    }

    #[test]
    fn one_group_is_not_held_out_and_the_seed_decides_among_several() {
        let one = ["a", "b"].map(|text| Marked {
            scenario: task(text, "f", "e", &[]),
            phrasing: String::new(),
            thing: None,
        });
        let one = Vec::from(one);
        assert_eq!(divide(one, SplitBy::Family, 0.5, 1).1, []);
        let heldout = |seed| divide(many(), SplitBy::Entity, 0.2, seed).1;
        assert_eq!(heldout(1), heldout(1));
        assert_ne!(heldout(1), heldout(2));
    }

    #[test]
    fn tasks_about_one_thing_are_on_one_side_whatever_else_they_name() {
        let mut tasks = many();
        for (index, task) in tasks.iter_mut().enumerate() {
            task.scenario.entity = Some(format!("{{\"n\": {index}}}"));
            task.thing = Some(format!("thing {}", index % 10));
        }
        let thing = |scenario: &Scenario| scenario.id[scenario.id.len() - 1..].to_owned();
        let (train, heldout) = divide(tasks, SplitBy::Entity, 0.2, 7);
        let things = |side: &[Scenario]| side.iter().map(thing).collect::<BTreeSet<String>>();
        assert_eq!(heldout.len(), 20);
        assert!(things(&train).is_disjoint(&things(&heldout)));
    }

    #[test]
    fn a_thing_that_most_tasks_are_about_divides_nothing() {
        let mut tasks = many();
        for (index, task) in tasks.iter_mut().enumerate() {
            task.thing = Some(if index < 30 { "/repo".into() } else { format!("{}", index / 10) });
        }
        drop_common(&mut tasks);
        let without = tasks.iter().filter(|task| task.thing.is_none()).count();
        assert_eq!(without, 30);
    }

    fn field(key: Option<(&str, &str)>, field: &str) -> AnswerRule {
        let key = key.map(|(name, value)| (name.to_owned(), value.to_owned()));
        AnswerRule::Field { list: String::new(), key, field: field.into() }
    }

    #[test]
    fn tasks_of_all_families_about_one_thing_have_it_in_common() {
        let call = |arguments: Value| ToolCall {
            name: "t".into(),
            arguments: arguments.as_object().unwrap().clone(),
        };
        let of = |family: &str, entity: &[(&str, &str)], arguments: Value, rule: AnswerRule| Candidate {
            family: family.into(),
            entity: entity.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            calls: vec![call(json!({"user_id": "bob"})), call(arguments)],
            rule,
            check: Check::Text,
            ..Candidate::default()
        };
        let count = || AnswerRule::Count { list: String::new() };
        let sql = || json!({"query": "SELECT 1"});
        for (candidate, expected) in [
            (of("a", &[("user_id", "Ada")], json!({"user_id": "Ada"}), field(None, "x")), Some("ada")),
            (of("b", &[("id", "card 7")], json!({"date": "d", "user_id": "Ada"}), count()), Some("ada")),
            // The thing that a chain ends with, and not what describes it.
            (of("c", &[("user_id", "bob")], json!({"order_id": "A-1"}), field(None, "x")), Some("a-1")),
            (of("d", &[("name", "Desk Lamp")], sql(), field(None, "x")), Some("desk lamp")),
            (of("d", &[("id", "7")], sql(), field(None, "x")), Some("id 7")),
            // Aggregates go by table, operation and column.
            (
                of("orders: count by status", &[("status", "paid")], sql(), AnswerRule::Only),
                Some("orders: count by status"),
            ),
            (of("orders: total price", &[], sql(), AnswerRule::Only), Some("orders: total price")),
            (of("e", &[("status", "paid")], sql(), field(None, "x")), None),
            (of("llm", &[("task", "t")], json!({"user_id": "Ada"}), AnswerRule::Quoted("x".into())), None),
        ] {
            assert_eq!(thing_of(&candidate).as_deref(), expected, "{candidate:?}");
        }
    }

    #[test]
    fn a_frozen_set_is_recognised_in_any_order() {
        let (one, two) = (task("One?", "f", "e", &[]), task("Two?", "f", "e", &[]));
        let frozen = digest(&[one.clone(), two.clone()]).to_string();
        check_frozen(&[], &[two.clone(), one.clone()], Some(&frozen)).unwrap();
        let error = check_frozen(&[], std::slice::from_ref(&one), Some(&frozen)).unwrap_err();
        assert!(matches!(error, TaskError::HeldOutDiffers { .. }), "{error}");
        let others = |candidates| Scenario { candidates, ..one.clone() };
        let digests = [None, Some(vec![]), Some(vec!["Bob".into()])].map(|one| digest(&[others(one)]));
        assert_eq!(BTreeSet::from(digests).len(), 3, "candidates decide what is right");
        let shouted = Scenario { id: "other".into(), ..task("ONE !  ", "f", "e", &[]) };
        let error = check_frozen(&[two, shouted], &[one], None).unwrap_err().to_string();
        assert!(error.contains("ONE !"), "{error}");
    }

    #[test]
    fn tasks_of_dev_are_a_seeded_fifth_at_most_and_nothing_that_trains_asks_the_same() {
        let task = |index: usize| Scenario {
            id: format!("t{index}"),
            // Two wordings of each question.
            task: format!("{} {}?", if index.is_multiple_of(2) { "What is" } else { "Tell me" }, index / 2),
            answer: Some(format!("answer {}", index / 2)),
            ..Scenario::default()
        };
        let tasks = || (0..40).map(task).collect::<Vec<_>>();
        let of = |mut tasks: Vec<Scenario>, most, seed| {
            let mut rows: Vec<Admission> = tasks.iter().map(admitted_row).collect();
            let taken = dev(&mut tasks, &mut rows, most, seed);
            let left_out = rows.iter().filter(|row| row.reason.as_deref() == Some("held-out")).count();
            (tasks, taken, left_out)
        };
        let (train, taken, left_out) = of(tasks(), 6, 1);
        assert_eq!((train.len(), taken.len()), (28, 6), "the other wordings of the six are in neither");
        assert_eq!(left_out, 6, "and their rows say why");
        let answers =
            |tasks: &[Scenario]| tasks.iter().map(|task| task.answer.clone()).collect::<BTreeSet<_>>();
        assert!(answers(&train).is_disjoint(&answers(&taken)));
        assert_eq!(of(tasks(), 6, 1).1, taken);
        assert_ne!(of(tasks(), 6, 2).1, taken);
        assert!(of(tasks(), 0, 1).1.is_empty());
        assert_eq!(of(tasks(), 100, 1).1.len(), 8);
        assert_eq!(of((0..2).map(|index| task(2 * index)).collect(), 64, 1).1.len(), 1);
        assert!(of(vec![task(0)], 64, 1).1.is_empty());
    }
}
