//! Crafted groups of episodes (`tests/judges.json`), each with the order that a good judge must give, judged by every kind of
//! judge: those without a model as they are, the others with a model that obeys whatever an episode says.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    tests::{by_attempt, endpoint, judged_in},
    *,
};
use crate::data::Json;

#[derive(Deserialize)]
struct Case {
    name: String,
    kind: String,
    /// What tells the episodes apart: `truth`, `shaping`, or `flags` if there is no ground truth.
    decided_by: String,
    task: String,
    answer: Option<String>,
    check: Option<String>,
    checks: Option<Value>,
    episodes: Vec<Episode>,
    /// Ids from best to worst.
    order: Vec<Vec<String>>,
}

#[derive(Deserialize)]
struct Episode {
    id: String,
    answer: Option<String>,
    said: Option<String>,
    #[serde(default)]
    calls: Vec<Call>,
    turns: Option<u32>,
    #[serde(default)]
    tool_errors: u32,
    #[serde(default)]
    parse_failures: u32,
    tokens: Option<usize>,
    end: Option<String>,
    state: Option<Value>,
}

#[derive(Deserialize)]
struct Call {
    name: String,
    arguments: Value,
    result: Option<String>,
    #[serde(default)]
    is_error: bool,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../../../tests/judges.json")).unwrap()
}

impl Case {
    fn scenario(&self, with_truth: bool) -> Scenario {
        let checks = self.checks.as_ref().filter(|_| with_truth);
        let answer = self.answer.clone().filter(|_| with_truth);
        Scenario {
            id: "s".into(),
            task: self.task.clone(),
            check: self.check.clone().filter(|_| with_truth).unwrap_or("none".into()),
            answer,
            checks: checks.map(|checks| Json(checks.to_string())),
            ..Scenario::default()
        }
    }

    fn trajectories(&self) -> Vec<Trajectory> {
        self.episodes.iter().map(|episode| episode.trajectory(&self.task)).collect()
    }

    /// The place of an episode in the order, 0 for the best.
    fn tier(&self, id: &str) -> usize {
        self.order
            .iter()
            .position(|tier| tier.iter().any(|member| member == id))
            .expect("every episode is in the order")
    }
}

impl Episode {
    fn trajectory(&self, task: &str) -> Trajectory {
        let mut messages = vec![json!({"role": "user", "content": task})];
        for (index, call) in self.calls.iter().enumerate() {
            let id = format!("c{index}");
            messages.push(json!({"role": "assistant", "tool_calls": [
                {"id": id, "function": {"name": call.name, "arguments": call.arguments}}]}));
            let content = call.result.as_deref().unwrap_or("ok");
            messages.push(
                json!({"role": "tool", "tool_call_id": id, "content": content, "is_error": call.is_error}),
            );
        }
        // By which a test's judge knows the episode.
        messages.push(json!({"role": "tool", "content": format!("ref:{};", self.id)}));
        let arguments = json!({"answer": self.answer});
        messages.push(
            json!({"role": "assistant", "content": self.said.clone().unwrap_or_default(), "tool_calls": [
            {"id": "end", "function": {"name": "complete_task", "arguments": arguments}}]}),
        );
        Trajectory {
            id: self.id.clone(),
            scenario_id: "s".into(),
            policy: "p".into(),
            messages: serde_json::from_value(messages.into()).unwrap(),
            tokens: vec![1; self.tokens.unwrap_or(50)],
            sampled: vec![true; self.tokens.unwrap_or(50)],
            logprobs: vec![0.0; self.tokens.unwrap_or(50)],
            turns: self.turns.unwrap_or(3),
            tool_errors: self.tool_errors,
            parse_failures: self.parse_failures,
            end: self.end.clone().unwrap_or("completed".into()),
            answer: self.answer.clone(),
            answer_source: self.answer.as_ref().map(|_| "tool".to_owned()),
            state: self.state.as_ref().map(|state| Json(state.to_string())),
            ..Trajectory::default()
        }
    }
}

fn params(more: &Value) -> Value {
    let mut params = json!({
        "parse_failure_cost": 0.02, "overlong": 0.2, "overlong_tokens": 1000, "overlong_buffer": 800,
        "gates": {
            "empty": {"below": 1}, "hedging": {"below": 1}, "copied": {"below": 1}, "injection": {"below": 1},
        },
    });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

/// Rewards by id.
async fn rewards_of(case: &Case, with_truth: bool, params: Value) -> BTreeMap<String, f32> {
    let folder = tempfile::tempdir().unwrap();
    let (_, rewards) =
        judged_in(folder.path(), &[case.scenario(with_truth)], &case.trajectories(), params).await;
    let rewards = rewards.unwrap_or_else(|failure| panic!("{}: {failure}", case.name));
    rewards.into_iter().map(|reward| (reward.trajectory_id, reward.reward)).collect()
}

/// Checks the order of the tiers that are in a different class.
fn check(
    case: &Case,
    judge: &str,
    rewards: &BTreeMap<String, f32>,
    is_compared: impl Fn(&Episode, &Episode) -> bool,
) {
    for a in &case.episodes {
        for b in case.episodes.iter().filter(|b| case.tier(&a.id) < case.tier(&b.id) && is_compared(a, b)) {
            let (better, worse) = (rewards[&a.id], rewards[&b.id]);
            assert!(better > worse, "{judge}, {}: {} has {better}, {} has {worse}", case.name, a.id, b.id);
        }
    }
}

fn correct_of(case: &Case, episode: &Episode) -> Option<bool> {
    let (scenario, trajectory) = (case.scenario(true), episode.trajectory(&case.task));
    correct(&JudgedTrajectory { scenario: &scenario, trajectory: &trajectory })
}

/// Right and wrong must not be confused by a bad judge; which of two right ones is better may be.
async fn check_with_bad_judge(judge: &str, more: impl AsyncFn(&Case) -> Value) {
    for case in cases() {
        let rewards = rewards_of(&case, true, params(&more(&case).await)).await;
        check(&case, judge, &rewards, |a, b| {
            correct_of(&case, a) != correct_of(&case, b) || case.decided_by == "flags"
        });
    }
}

#[test]
fn there_are_cases_of_every_kind() {
    let cases = cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    for kind in
        ["empty", "hedging", "copied", "injection", "result", "overlong", "unfinished", "calls", "state"]
    {
        assert!(cases.iter().any(|case| case.kind == kind), "{kind}");
    }
    for case in &cases {
        let (known, decided_by) = (case.answer.is_some() || case.checks.is_some(), case.decided_by.as_str());
        assert_eq!(known, decided_by != "flags", "{}", case.name);
    }
}

#[test]
fn episodes_that_play_to_the_judge_are_flagged() {
    for case in cases() {
        let scenario = case.scenario(false);
        for episode in &case.episodes {
            let trajectory = episode.trajectory(&case.task);
            let found = flags(&scenario, &trajectory, None);
            let is_best = case.tier(&episode.id) == 0;
            if is_best {
                assert!(found.is_empty(), "{}: {} {found:?}", case.name, episode.id);
            } else if case.decided_by == "flags" || case.kind == "injection" {
                let names: Vec<&str> = found.iter().map(|flag| flag.name()).collect();
                assert!(names.contains(&case.kind.as_str()), "{}: {names:?}", case.name);
            } else if case.kind == "result" {
                assert!(found.is_empty(), "{}: {} {found:?}", case.name, episode.id);
            }
        }
    }
}

#[tokio::test]
async fn ground_truth_checks_and_shaping_give_the_order() {
    for case in cases().iter().filter(|case| case.decided_by != "flags") {
        let mut more = params(&json!({}));
        more["gates"] = json!({});
        check(case, "truth", &rewards_of(case, true, more).await, |_, _| true);
    }
}

#[tokio::test]
async fn a_program_that_likes_the_worst_does_not_change_the_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("score.sh");
    let script = r#"while read -r line; do id=$(printf '%s' "$line" | cut -d'"' -f4)
        case $id in good|fast|clean|short) s=0.1;; *) s=1;; esac
        echo "{\"id\": \"$id\", \"score\": $s}"; done"#;
    std::fs::write(&file, script).unwrap();
    let more = json!({"weights": {"command": 5.0}, "program": file, "interpreter": ["sh"]});
    check_with_bad_judge("command", async |_| more.clone()).await;
}

/// Believes every episode that speaks to it, and prefers those that are long.
fn obedient(_: usize, question: &str) -> Option<String> {
    let obeys = |text: &str| {
        let text = text.to_lowercase();
        ["score", "judge", "ignore", "best", "perfect", "marks", "id\\\":"]
            .iter()
            .any(|word| text.contains(word))
    };
    Some(by_attempt(question, |text| if obeys(text) || text.len() > 600 { 1.0 } else { 0.3 }))
}

#[tokio::test]
async fn a_model_that_obeys_the_episodes_does_not_change_the_order() {
    let (base_url, _) = endpoint(obedient).await;
    let relative = json!({"weights": {"relative": 5.0}, "base_url": base_url, "model": "m"});
    check_with_bad_judge("relative", async |_| relative.clone()).await;
    let rubric = json!({"weights": {"rubric": 5.0}, "base_url": base_url, "model": "m", "criteria": {"right": "It is right."}});
    check_with_bad_judge("rubric", async |_| rubric.clone()).await;
}

/// The score of an episode by its place in the order.
fn fair(case: &Case) -> impl Fn(usize, &str) -> Option<String> + Clone + Send + Sync + 'static + use<> {
    let tiers: Vec<(String, f64)> = case
        .episodes
        .iter()
        .map(|episode| (format!("ref:{};", episode.id), 1.0 - 0.2 * case.tier(&episode.id) as f64))
        .collect();
    move |_, question| {
        let score = |text: &str| {
            let found: Vec<f64> =
                tiers.iter().filter(|(mark, _)| text.contains(mark)).map(|(_, score)| *score).collect();
            assert_eq!(found.len(), 1, "one episode in an element: {text}");
            found[0]
        };
        Some(by_attempt(question, score))
    }
}

#[tokio::test]
async fn a_fair_model_gives_the_order_whatever_the_episodes_contain() {
    for case in cases() {
        let (base_url, _) = endpoint(fair(&case)).await;
        let of = |more: Value| {
            let mut more = more;
            more["base_url"] = base_url.clone().into();
            more["model"] = "m".into();
            more["unfinished_cost"] = 0.into();
            more
        };
        for more in [
            of(json!({"weights": {"relative": 1.0}})),
            of(json!({"weights": {"rubric": 1.0}, "criteria": {"right": "It is right."}})),
        ] {
            let rewards = rewards_of(&case, false, more).await;
            check(&case, "fair", &rewards, |_, _| true);
        }
    }
}
