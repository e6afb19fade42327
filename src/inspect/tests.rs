use std::io::{Cursor, Read};

use serde_json::Value;

use super::*;
use crate::{
    data::Trajectory,
    view::{
        conversation::{conversation, turns},
        synthetic::{self, HOSTILE, RUN, Size},
    },
};

fn made(size: Size) -> (tempfile::TempDir, Run) {
    let folder = tempfile::tempdir().unwrap();
    let store = synthetic::write(&folder.path().join("cache"), size);
    let run = Run::open(&store, RUN).unwrap();
    (folder, run)
}

fn bytes(log: &Log<'_>) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    log.write(&mut file).unwrap();
    file.into_inner()
}

/// The files of a log by name.
fn files(log: &Log<'_>) -> BTreeMap<String, Value> {
    let mut zip = zip::ZipArchive::new(Cursor::new(bytes(log))).unwrap();
    let mut found = BTreeMap::new();
    for index in 0..zip.len() {
        let mut text = String::new();
        let mut file = zip.by_index(index).unwrap();
        file.read_to_string(&mut text).unwrap();
        found.insert(file.name().unwrap().into_owned(), serde_json::from_str(&text).unwrap());
    }
    found
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let (_folder, run) = made(Size::SMALL);
    let once: Vec<Vec<u8>> = logs(&run, None).unwrap().iter().map(bytes).collect();
    let again: Vec<Vec<u8>> = logs(&run, None).unwrap().iter().map(bytes).collect();
    assert_eq!(once, again);
}

#[test]
fn each_policy_of_the_exam_has_a_log() {
    let (_folder, run) = made(Size::SMALL);
    let found = logs(&run, None).unwrap();
    assert_eq!(names(&found), ["base", "trained"]);
    for (log, policy) in found.iter().zip(["base", "trained"]) {
        let header = &files(log)["header.json"];
        assert_eq!(header["eval"]["model"], format!("mcprl/{policy}"));
        assert_eq!(header["eval"]["task"], "run/exam");
        assert_eq!(header["eval"]["model_generate_config"]["temperature"], 0.0);
        let episodes: Vec<OutcomeRow> = run.stage("exam").unwrap().table().unwrap();
        let of_policy = &episodes[if policy == "base" { 0..4 } else { 4..8 }];
        let right = of_policy.iter().filter(|episode| episode.correct == Some(true)).count();
        let accuracy = &header["results"]["scores"][0]["metrics"]["accuracy"]["value"];
        assert_eq!(accuracy.as_f64().unwrap(), right as f64 / 4.0);
        assert_eq!(header["results"]["total_samples"], 4);
    }
}

#[test]
fn a_stage_of_a_loop_has_a_log_for_each_iteration() {
    let (_folder, run) = made(Size::SMALL);
    let found = logs(&run, Some("train/rollout")).unwrap();
    assert_eq!(names(&found), ["train-0001-rollout", "train-0002-rollout", "train-0003-rollout"]);
    assert_eq!(names(&logs(&run, Some("train[2]/rollout")).unwrap()), [""]);
    let policies: Vec<&str> = found.iter().map(Log::policy).collect();
    assert_eq!(policies, ["base", "train[0001]/update", "train[0002]/update"]);
    let samples: Vec<String> =
        files(&found[0]).into_keys().filter(|name| name.starts_with("samples/")).collect();
    assert_eq!(samples.len(), 16);
    assert_eq!(samples[..2], ["samples/train-000000_epoch_1.json", "samples/train-000000_epoch_2.json"]);
}

#[test]
fn a_sample_has_the_conversation_its_events_and_its_scores() {
    let (_folder, run) = made(Size::SMALL);
    let found = logs(&run, Some("train[1]/rollout")).unwrap();
    let files = files(&found[0]);
    let episodes: Vec<EpisodeRow> = run.stage("train[0001]/rollout").unwrap().table().unwrap();
    for episode in &episodes {
        let name = format!("samples/{}_epoch_{}.json", episode.scenario_id, episode.sample + 1);
        let sample = &files[&name];
        let spoken = conversation(episode);
        for (message, shown) in spoken.iter().zip(sample["messages"].as_array().unwrap()) {
            assert_eq!(shown["role"], message.role);
            if message.role == "assistant" {
                assert_eq!(shown["tool_calls"][0]["function"], message.calls[0].tool);
            } else {
                assert_eq!(shown["content"], message.text);
            }
            assert_eq!(shown.get("error").is_some(), message.error.is_some());
        }
        let reasoning = &sample["messages"][2]["content"][0];
        assert_eq!((&reasoning["type"], &reasoning["reasoning"]), (&"reasoning".into(), &HOSTILE.into()));
        let kinds: Vec<&str> = sample["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["event"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["sample_init", "model", "tool", "model", "score", "score"]);
        let value = if episode.correct == Some(true) { "C" } else { "I" };
        assert_eq!(sample["scores"]["correct"]["value"], value);
        assert!(sample["scores"]["reward"]["value"].is_number());
        assert_eq!(sample["metadata"]["family"], episode.family);
        assert_eq!(sample["metadata"]["episode"], episode.id);
        assert!(sample["metadata"]["advantage"].is_number() || sample["metadata"]["no_signal"].is_string());
        // 12 tokens of prompt, then 12 that were sampled, without a result between two turns.
        assert_eq!(sample["model_usage"]["mcprl/base"]["output_tokens"], 12);
    }
    let explained = files.values().filter(|sample| sample["scores"]["reward"]["explanation"].is_string());
    assert!(explained.count() > 0, "the judge's words");
}

#[test]
fn long_texts_of_events_are_attachments() {
    let (_folder, run) = made(Size { result: 5000, ..Size::SMALL });
    let found = logs(&run, Some("train[1]/rollout")).unwrap();
    let sample = &files(&found[0])["samples/train-000000_epoch_1.json"];
    let pooled = sample["events_data"]["messages"][3]["content"].as_str().unwrap();
    let key = pooled.strip_prefix("attachment://").unwrap();
    assert_eq!(sample["attachments"][key], sample["messages"][3]["content"]);
    let summaries = &files(&found[0])["summaries.json"];
    assert!(summaries.to_string().len() < 100_000);
}

#[test]
fn a_call_that_could_not_be_parsed_is_one_with_a_parse_error() {
    let messages = serde_json::json!([
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "<tool_call>{broken"},
        {"role": "tool", "tool_call_id": "1", "name": "", "content": "error: …", "is_error": true, "error": "unparsable"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "2", "type": "function", "function": {"name": "find", "arguments": [1]}},
            {"id": "2", "type": "function", "function": {"name": "find", "arguments": {}}},
        ]},
        {"role": "tool", "tool_call_id": "2", "name": "find", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "name": "find", "content": "b"},
        {"role": "developer", "content": "hm"},
    ]);
    let episode = EpisodeRow { id: "t".into(), messages: messages.to_string(), ..EpisodeRow::default() };
    let spoken = conversation(&episode);
    let turns = turns(&spoken);
    let shown = sample::messages(&spoken, &turns, "t", "m");
    assert_eq!(shown[1]["tool_calls"][0]["function"], "unparsable");
    assert_eq!(shown[1]["tool_calls"][0]["parse_error"], "error: …");
    assert_eq!(shown[2]["tool_call_id"], shown[1]["tool_calls"][0]["id"]);
    assert_eq!(shown[2]["error"]["type"], "parsing");
    assert_eq!(shown[3]["tool_calls"][0]["arguments"]["value"][0], 1);
    assert_eq!(shown[3]["tool_calls"][0]["parse_error"], "the arguments are not an object");
    assert_eq!((&shown[4]["content"], &shown[5]["content"]), (&"a".into(), &"b".into()));
    assert_eq!((&shown[6]["role"], &shown[6]["metadata"]["role"]), (&"user".into(), &"developer".into()));
}

#[test]
fn a_run_without_such_episodes_is_an_error_that_names_others() {
    let (_folder, run) = made(Size::SMALL);
    let error = logs(&run, Some("train[1]/update")).err().unwrap();
    assert_eq!(error.code(), "inspect::no_episodes");
    assert_eq!(
        error.hint().unwrap(),
        "name a stage with episodes, as in `mcprl export 'made-20260101-000000/exam' --inspect FILE.eval`"
    );
    let mut unfinished = run.clone();
    unfinished.stages.retain(|stage| stage.id != "exam");
    assert_eq!(logs(&unfinished, None).err().unwrap().code(), "inspect::no_exam");
    let exam = run.stage("exam").unwrap();
    std::fs::remove_dir_all(exam.artifact("trajectories").unwrap().path.parent().unwrap()).unwrap();
    assert_eq!(logs(&run, None).err().unwrap().code(), "inspect::unavailable");
}

/// For `tests/reference/inspect.sh`, which reads the logs with Inspect.
#[test]
#[ignore = "writes logs of hostile episodes into the folder named by MCPRL_INSPECT_LOGS"]
fn hostile_logs() {
    let to = std::path::PathBuf::from(std::env::var_os("MCPRL_INSPECT_LOGS").unwrap());
    let (_folder, run) = made(Size { iterations: 1, scenarios: 4, group: 2, result: 10_000_000, task: 0 });
    for part in [None, Some("train[1]/rollout")] {
        let found = logs(&run, part).unwrap();
        for (log, name) in found.iter().zip(names(&found)) {
            let name = if name.is_empty() { "rollout" } else { &name };
            std::fs::write(to.join(format!("{name}.eval")), bytes(log)).unwrap();
        }
    }
    let episodes: Vec<Trajectory> = run.stage("train[0001]/rollout").unwrap().table().unwrap();
    let texts: Vec<Value> =
        episodes.iter().map(|episode| serde_json::from_str(&episode.messages).unwrap()).collect();
    std::fs::write(to.join("rollout.json"), Value::from(texts).to_string()).unwrap();
}
