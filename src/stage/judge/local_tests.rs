//! Judges that the engine runs: a model whose weights are set by hand, and one with random weights.

use std::{path::Path, sync::Arc};

use serde_json::{Value, json};

use super::{
    tests::{scenario, trajectory},
    *,
};
use crate::{
    data::Message,
    model::{Decoder, Init},
    stage::{
        Rows as _,
        testing::{self, Ledger, context},
    },
    usage::Usage,
};

/// A reply that scores the attempts `1` and `2`, in the only form that can be drawn.
fn scored(one: f64, two: f64) -> String {
    let entry = |id: u32, score: f64| {
        format!("{{\"id\": \"{id}\", \"explanation\": \"so\", \"score\": {}}}", json!(score))
    };
    format!("{{\"scores\": [{}, {}]}}", entry(1, one), entry(2, two))
}

/// Groups of two episodes about tasks without a known answer.
fn episodes(groups: usize) -> (Vec<Scenario>, Vec<Trajectory>) {
    let ids: Vec<String> = (0..groups).map(|index| format!("s{index}")).collect();
    let tasks = ids.iter().map(|id| Scenario { task: format!("How many of {id}?"), ..scenario(id, None) });
    let trajectories = ids.iter().flat_map(|id| [trajectory(id, "2"), trajectory(id, "8")]);
    (tasks.collect(), trajectories.collect())
}

/// A stage that asks the model in the folder `model`, without running it.
fn stage(
    folder: &Path,
    (scenarios, trajectories): &(Vec<Scenario>, Vec<Trajectory>),
    more: Value,
) -> (Context, Arc<Ledger>) {
    let path = |name: &str| folder.join(name);
    data::write(&path("scenarios.parquet"), scenarios).unwrap();
    data::write(&path("trajectories.parquet"), trajectories).unwrap();
    let (tasks, episodes, model) = (path("scenarios.parquet"), path("trajectories.parquet"), path("model"));
    let inputs = [
        ("scenarios", tasks.as_path()),
        ("trajectories", episodes.as_path()),
        ("local_model", model.as_path()),
    ];
    let mut params = json!({"weights": {"relative": 1.0}, "orders": 1});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    context("judge", &inputs, &path("out"), params)
}

fn rewards(context: &Context) -> Vec<String> {
    let rewards: Vec<Reward> = data::read(&context.output_folder.join("rewards.parquet")).unwrap();
    rewards.iter().map(|reward| format!("{} {}", reward.trajectory_id, reward.components)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_the_engine_scores_the_attempts_of_a_group() {
    let folder = tempfile::tempdir().unwrap();
    testing::replier(&folder.path().join("model"), &[scored(0.25, 0.75)], 4096);
    let (context, _) = stage(folder.path(), &episodes(1), json!({"orders": 2}));
    let metrics = testing::run(&context).await.unwrap();
    // The second order is the first one reversed, and the model scores places.
    assert_eq!(rewards(&context), [r#"s0/2 {"relative":0.5}"#, r#"s0/8 {"relative":0.5}"#]);
    assert_eq!(metrics["audit.relative.position_bias"], -0.5);
    assert_eq!((metrics["judge_requests"], metrics["judge_completion_tokens"]), (2.0, 4.0));

    let usage = context.meter.total();
    assert!(!usage.is_billed(), "{usage:?}");
    assert_eq!(Usage { computed_tokens: 0, ..usage }, Usage { sampled_tokens: 4, ..Usage::default() });
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_in_flight_share_their_instructions() {
    let folder = tempfile::tempdir().unwrap();
    testing::replier(&folder.path().join("model"), &[scored(0.25, 0.75)], 4096);
    let (mut context, _) = stage(folder.path(), &episodes(6), json!({"concurrency": 6}));
    context.engine.threads = Some(1);
    let sent = testing::run(&context).await.unwrap()["judge_prompt_tokens"];
    let computed = context.meter.total().computed_tokens as f64;
    assert!(computed < 0.7 * sent, "{computed} computed, {sent} sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rubric_is_scored_by_a_model_of_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let reply =
        "<think>\nThe attempt is short.\n</think>\n\n{\"scores\": [{\"id\": \"brief\", \"score\": 0.5}]}";
    testing::replier(&folder.path().join("model"), &[reply.to_owned()], 4096);
    // Reasoning before the scores is not of their form.
    let params =
        json!({"weights": {"rubric": 1.0}, "criteria": {"brief": "It is brief."}, "structured": false});
    let (context, _) = stage(folder.path(), &episodes(1), params);
    testing::run(&context).await.unwrap();
    assert_eq!(rewards(&context), [r#"s0/2 {"rubric":0.5}"#, r#"s0/8 {"rubric":0.5}"#]);
}

/// A rubric of yes-or-no questions to a model with these answers, equally probable.
fn yes_or_no(folder: &Path, answers: &[&str]) -> (Context, Arc<Ledger>) {
    let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
    testing::replier(&folder.join("model"), &answers, 4096);
    let criteria = json!({"brief": "It is brief.", "safe": {"about": "It is safe.", "weight": 3}});
    let params = json!({"weights": {"rubric": 1.0}, "rubric_scores": "probability", "criteria": criteria});
    stage(folder, &episodes(1), params)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_criterions_score_can_be_the_probability_of_yes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut context, rows) = yes_or_no(folder.path(), &["Yes", "yes.", " YES", "No", "Yesterday"]);
    context.engine.threads = Some(1);
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!(rewards(&context), [r#"s0/2 {"rubric":0.75}"#, r#"s0/8 {"rubric":0.75}"#]);
    assert_eq!((metrics["judge_requests"], metrics["judge_completion_tokens"]), (4.0, 4.0));
    let (sent, computed) = (metrics["judge_prompt_tokens"], context.meter.total().computed_tokens as f64);
    assert!(computed < 0.7 * sent, "criteria share the conversation: {computed} computed, {sent} sent");

    assert_eq!(rows.finished().unwrap().len(), 4);
    let again = testing::run(&context).await.unwrap();
    assert_eq!((again["judge_requests"], again["reward"]), (0.0, metrics["reward"]), "scores are recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_says_neither_yes_nor_no_scores_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (context, rows) = yes_or_no(folder.path(), &["Perhaps"]);
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!((metrics["unjudged_groups"], rewards(&context).len()), (1.0, 0));
    assert!(rows.finished().unwrap().is_empty(), "what cannot be used is not kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_depend_on_the_seed_and_not_on_what_is_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let replies: Vec<String> = (0..8).map(|reply| scored(f64::from(reply) / 10.0, 1.0)).collect();
    testing::replier(&folder.path().join("model"), &replies, 4096);
    let asked = async |concurrency: usize, seed: u64| {
        let params = json!({"temperature": 1.0, "repeats": 2, "concurrency": concurrency});
        let (mut context, _) = stage(folder.path(), &episodes(6), params);
        context.seed = seed;
        testing::run(&context).await.unwrap();
        rewards(&context)
    };
    let alone = asked(1, 7).await;
    assert_eq!(asked(6, 7).await, alone);
    assert_ne!(asked(6, 8).await, alone);
    let distinct: std::collections::BTreeSet<&str> =
        alone.iter().filter_map(|line| line.split_once(' ')).map(|(_, reward)| reward).collect();
    assert!(distinct.len() > 3, "questions and repeats are separate draws: {alone:?}");
}

/// A model with random weights.
fn clueless(folder: &Path) {
    let model = folder.join("model");
    testing::replier(&model, &[], 4096);
    let config = crate::model::ModelConfig::load(&model).unwrap();
    Decoder::random(config, Init { seed: 3, deviation: 0.1 }).unwrap().save(&model).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_replies_of_the_form_are_drawn_so_that_any_model_gives_scores() {
    let folder = tempfile::tempdir().unwrap();
    clueless(folder.path());
    for (structured, unjudged) in [(true, 0.0), (false, 2.0)] {
        let params = json!({"max_tokens": 2500, "attempts": 1, "structured": structured, "temperature": 1.0});
        let (context, _) = stage(folder.path(), &episodes(2), params);
        let metrics = testing::run(&context).await;
        let found = metrics.map_or(2.0, |metrics| metrics["unjudged_groups"]);
        assert_eq!(found, unjudged, "structured = {structured}");
    }
    let rubric = json!({
        "weights": {"rubric": 1.0}, "criteria": {"brief": "It is brief.", "kind": "It is kind."}, "max_tokens": 2500,
    });
    let (context, _) = stage(folder.path(), &episodes(2), rubric);
    assert_eq!(testing::run(&context).await.unwrap()["unjudged_groups"], 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_judge_leaves_groups_without_its_scores() {
    let folder = tempfile::tempdir().unwrap();
    clueless(folder.path());
    let mut known = episodes(2);
    known
        .0
        .iter_mut()
        .for_each(|scenario| (scenario.answer, scenario.check) = (Some("8".into()), "number".into()));
    let (context, rows) = stage(folder.path(), &known, json!({"max_tokens": 6, "attempts": 2}));
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!((metrics["unjudged_groups"], metrics["judge_requests"]), (2.0, 4.0));
    assert_eq!((metrics["success"], metrics["reward"]), (0.5, 0.5), "ground truth still counts");
    assert!(rows.finished().unwrap().is_empty(), "what cannot be used is not kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_beyond_the_context_leaves_its_group_unjudged() {
    let folder = tempfile::tempdir().unwrap();
    testing::replier(&folder.path().join("model"), &[scored(0.25, 0.75)], 2048);
    let mut groups = episodes(2);
    let long = vec![Message::assistant("word ".repeat(2000), Vec::new())];
    groups.1[0].messages = long.clone();
    let (context, _) = stage(folder.path(), &groups, json!({}));
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!(metrics["unjudged_groups"], 1.0);
    // The first group has none.
    assert_eq!(rewards(&context), [r#"s1/2 {"relative":0.25}"#, r#"s1/8 {"relative":0.75}"#]);

    groups.1.iter_mut().for_each(|trajectory| trajectory.messages = long.clone());
    groups.1[1].messages[0].text.push(' ');
    let (context, _) = stage(folder.path(), &groups, json!({}));
    let failure = testing::run(&context).await.unwrap_err();
    assert_eq!(failure.code(), "judge::reply");
    assert!(failure.to_string().contains("the model's context is 2048"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_replies_count_for_their_model_alone() {
    let folder = tempfile::tempdir().unwrap();
    testing::replier(&folder.path().join("model"), &[scored(0.25, 0.75)], 4096);
    let (mut context, rows) = stage(folder.path(), &episodes(3), json!({}));
    let asked = async |context: &Context| testing::run(context).await.unwrap()["judge_requests"];
    assert_eq!(asked(&context).await, 3.0);
    assert_eq!(rows.finished().unwrap().len(), 3);
    assert_eq!(asked(&context).await, 0.0);
    context.inputs.get_mut("local_model").unwrap()[0].digest = crate::hash::Digest::of(b"another model");
    assert_eq!(asked(&context).await, 3.0);
}
