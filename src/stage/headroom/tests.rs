use serde_json::json;

use super::*;
use crate::{
    data::{self, End},
    mcp::Session,
    stage::testing,
};

/// Samples of one task with these answers, of which `right` is right.
fn played(id: &str, answers: &[Option<&str>], right: &str) -> Vec<Trajectory> {
    let of = |answer: &Option<&str>| Trajectory {
        scenario_id: id.into(),
        answer: answer.map(str::to_owned),
        correct: Some(*answer == Some(right)),
        end: End::Completed.to_string(),
        ..Trajectory::default()
    };
    answers.iter().map(of).collect()
}

#[test]
fn the_answer_that_most_samples_give_is_taken_by_meaning() {
    let mut all = played("a", &[Some("7"), Some("7.0"), Some("8"), None], "7");
    all[1].correct = Some(true);
    all.extend(played("b", &[Some("Oslo"), Some("Rome"), Some("Rome")], "Oslo"));
    let samples = of_tasks(&all, |id| if id == "a" { "number" } else { "text" });
    let expected =
        [Samples { right: 2, of: 4, majority: true }, Samples { right: 1, of: 3, majority: false }];
    assert_eq!(samples, expected);
}

#[test]
fn pass_rates_are_of_training_tasks_alone_and_count_as_never_trained_on() {
    let mut all = played("a", &[Some("7"), Some("8")], "7");
    all.extend(played("dev", &[Some("7")], "7"));
    all.push(Trajectory { correct: None, ..all[0].clone() });
    let rates = pass_rates(&all, &BTreeSet::from(["a"]));
    assert_eq!(rates, [PassRate { episodes: 2.0, right: 1.0, ..PassRate::unknown("a") }]);
}

/// Compares a policy that answers 8 with a teacher that gives one of these answers, each equally likely, on tasks whose answer is 7.
async fn taught_by(answer: &str, tasks: usize, folder: &std::path::Path) -> (Result<Metrics>, Vec<String>) {
    let server = testing::tool_server(|_| 200).await;
    let session = Session::connect(&server).await.unwrap();
    let path = |name: &str| folder.join(name);
    data::write(&path("tools.parquet"), &crate::offered::tool_rows(session.tools().await.unwrap())).unwrap();
    session.close().await;
    let task = |index: usize| Scenario {
        id: format!("s{index}"),
        task: format!("Task {index}?"),
        answer: Some("7".into()),
        check: "number".into(),
        ..Scenario::default()
    };
    data::write(&path("tasks.parquet"), &(0..tasks).map(task).collect::<Vec<_>>()).unwrap();
    for (name, answer) in [("teacher", answer), ("policy", "8")] {
        testing::caller(&path(name), &[json!({"name": "complete_task", "arguments": {"answer": answer}})]);
    }
    let (tools, scenarios, teacher, policy) =
        (path("tools.parquet"), path("tasks.parquet"), path("teacher"), path("policy"));
    let inputs = [
        ("tools", tools.as_path()),
        ("scenarios", scenarios.as_path()),
        ("teacher", teacher.as_path()),
        ("policy", policy.as_path()),
    ];
    let params = json!({"max_turns": 2, "max_turn_tokens": 12});
    let (mut context, _) =
        testing::context("teacher", &inputs, &path(&format!("out-{answer}-{tasks}")), params);
    context.servers = Some(server.into());
    let done = testing::run(&context).await;
    let written = std::fs::read_dir(context.output_folder.join("policy")).into_iter().flatten();
    (done, written.map(|item| item.unwrap().file_name().to_string_lossy().into_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_teacher_is_passed_on_only_if_it_solves_more() {
    let folder = tempfile::tempdir().unwrap();
    let (better, written) = taught_by("7", 20, folder.path()).await;
    let better = better.unwrap();
    assert_eq!([better["teacher"], better["policy"], better["gain"]], [1.0, 0.0, 1.0]);
    assert!(written.contains(&"model.safetensors".to_owned()), "{written:?}");
    let (same, written) = taught_by("9", 20, folder.path()).await;
    let same = same.unwrap_err();
    assert_eq!((same.code(), written.len()), ("headroom::weak_teacher", 0));
    assert!(same.to_string().contains("the teacher solves 0.0 % of 20 tasks"), "{same}");
    let few = taught_by("7", 19, folder.path()).await.0.unwrap_err();
    assert_eq!(few.code(), "headroom::few_tasks");
}
