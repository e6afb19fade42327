use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use super::*;
use crate::{
    data::{Message, Role},
    mcp::{self, Session, State, Transport},
    model::{Decoder, Init, ModelConfig},
    stage::{
        Rows as _, Shard,
        testing::{self, Ledger, caller, context, sqlite_server, tool_server},
    },
};

/// A policy that says random tokens.
fn babbler(folder: &Path) {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    let config = std::fs::read(reference.join("fixtures/qwen3-tiny/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["vocab_size"] = json!(407);
    config["max_position_embeddings"] = json!(2048);
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::load(folder).unwrap();
    Decoder::random(config, Init { seed: 1, deviation: 0.02 }).unwrap().save(folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(reference.join("chat/qwen3").join(name), folder.join(name)).unwrap();
    }
}

/// A folder with all inputs of a rollout.
struct Bench {
    folder: tempfile::TempDir,
    servers: mcp::Servers,
}

impl Bench {
    async fn new() -> Self {
        let bench = Self::on(sqlite_server().await).await;
        babbler(&bench.path("policy"));
        bench
    }

    /// With a policy that makes these calls and answers some tasks right.
    async fn calling(servers: impl Into<mcp::Servers>, calls: &[Value]) -> Self {
        let bench = Self::on(servers).await;
        let mut calls = calls.to_vec();
        calls.push(json!({"name": "complete_task", "arguments": {"answer": "7"}}));
        caller(&bench.path("policy"), &calls);
        bench
    }

    async fn on(servers: impl Into<mcp::Servers>) -> Self {
        let servers = servers.into();
        let folder = tempfile::tempdir().unwrap();
        let mut lists = Vec::new();
        for (name, server) in servers.iter() {
            let session = Session::connect(server).await.unwrap();
            lists.push((name.to_owned(), session.tools().await.unwrap()));
            session.close().await;
        }
        let tools = crate::offered::tool_rows(mcp::merged(lists));
        data::write(&folder.path().join("tools.parquet"), &tools).unwrap();
        let scenario = |index: usize| Scenario {
            id: format!("scenario {index}"),
            split: "train".into(),
            family: format!("family {}", index % 2),
            task: format!("Question {index}?"),
            answer: Some("7".into()),
            check: "number".into(),
            ..Scenario::default()
        };
        let scenarios: Vec<Scenario> = (0..6).map(scenario).collect();
        data::write(&folder.path().join("scenarios.parquet"), &scenarios).unwrap();
        Self { folder, servers }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn context(&self, params: Value) -> (Context, Arc<Ledger>) {
        let (policy, tools, scenarios) =
            (self.path("policy"), self.path("tools.parquet"), self.path("scenarios.parquet"));
        let inputs = [("policy", policy.as_path()), ("tools", &tools), ("scenarios", &scenarios)];
        let mut given =
            json!({"prompts": 2, "group_size": 3, "refill_waves": 1, "max_turns": 6, "max_turn_tokens": 12});
        given.as_object_mut().unwrap().extend(params.as_object().cloned().unwrap());
        let (mut context, rows) = context("rollout", &inputs, &self.path("out"), given);
        context.servers = Some(self.servers.clone());
        (context, rows)
    }

    fn trajectories(&self) -> Vec<Trajectory> {
        data::read(&self.path("out/trajectories.parquet")).unwrap()
    }
}

#[tokio::test]
async fn shards_play_the_first_wave_between_them_and_the_stage_plays_the_rest() {
    let (bench, whole) = (Bench::new().await, Bench::new().await);
    testing::run(&whole.context(json!({})).0).await.unwrap();
    let mut names: Vec<BTreeMap<String, Vec<u8>>> = Vec::new();
    for index in 0..2 {
        let (mut context, rows) = bench.context(json!({}));
        context.shard = Some(Shard { index, of: 2 });
        assert!(testing::run(&context).await.unwrap().is_empty());
        assert!(!bench.path("out/trajectories.parquet").exists());
        names.push(rows.finished().unwrap());
    }
    // A scenario of two each, with its three episodes.
    assert_eq!(names.iter().map(BTreeMap::len).collect::<Vec<_>>(), [3, 3]);
    assert!(names[0].keys().all(|name| !names[1].contains_key(name)));
    let (context, rows) = bench.context(json!({}));
    for (name, row) in names.iter().flatten() {
        rows.record(name, row).unwrap();
    }
    testing::run(&context).await.unwrap();
    assert_eq!(rows.finished().unwrap().len(), 12);
    let of = |bench: &Bench| bench.trajectories().into_iter().map(|row| row.tokens).collect::<Vec<_>>();
    assert_eq!(of(&bench), of(&whole));
}

#[tokio::test]
async fn episodes_come_in_the_order_of_scenarios_and_samples_with_a_seed_each() {
    let bench = Bench::new().await;
    let metrics = testing::run(&bench.context(json!({})).0).await.unwrap();
    let trajectories = bench.trajectories();

    // All groups stay wrong, so the second wave draws as many scenarios as the first.
    assert_eq!((metrics["episodes"], metrics["groups"], metrics["informative_groups"]), (12.0, 4.0, 0.0));
    assert_eq!(metrics["success"], 0.0);
    let ended: f64 = End::ALL.iter().map(|end| metrics[&format!("ended_{end}")]).sum();
    assert!((ended - 1.0).abs() < 1e-9);
    let places: Vec<(&str, u32)> = trajectories.iter().map(|t| (t.scenario_id.as_str(), t.sample)).collect();
    assert!(places.is_sorted());
    let distinct = |of: fn(&Trajectory) -> String| {
        trajectories.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!((distinct(|t| t.id.clone()), distinct(|t| t.seed.to_string())), (12, 12));
    for trajectory in &trajectories {
        assert_eq!(trajectory.tokens.len(), trajectory.sampled.len());
        assert_eq!(trajectory.tokens.len(), trajectory.logprobs.len());
        assert!(trajectory.sampled.contains(&true));
    }
    let beginnings =
        |row: &Trajectory| (1..=row.tokens.len()).map(|end| row.tokens[..end].to_vec()).collect::<Vec<_>>();
    let beginnings: std::collections::BTreeSet<Vec<u32>> = trajectories.iter().flat_map(beginnings).collect();
    assert_eq!(metrics["distinct_tokens"], beginnings.len() as f64);
}

#[tokio::test]
async fn groups_that_do_not_vary_grow_before_scenarios_are_drawn() {
    let bench = Bench::new().await;
    let metrics = testing::run(&bench.context(json!({"max_group_size": 5})).0).await.unwrap();
    // Both groups of the first wave stay wrong and take the places of the second wave.
    assert_eq!((metrics["episodes"], metrics["groups"], metrics["grown_groups"]), (10.0, 2.0, 2.0));
    let grown = bench.trajectories();
    let samples: Vec<u32> = grown.iter().map(|trajectory| trajectory.sample).collect();
    assert_eq!(samples, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    // What they have in common with smaller groups are the same episodes.
    testing::run(&bench.context(json!({"refill_waves": 0})).0).await.unwrap();
    assert!(bench.trajectories().iter().all(|trajectory| grown.contains(trajectory)));
}

#[tokio::test]
async fn where_judges_alone_score_nothing_is_refilled_grown_or_drawn_by_what_is_right() {
    let bench = Bench::new().await;
    let rates = bench.path("rates.parquet");
    let rate = |index: usize| data::PassRate {
        episodes: 1e6,
        right: 1e6,
        ..data::PassRate::unknown(&format!("scenario {index}"))
    };
    data::write(&rates, &(0..3).map(rate).collect::<Vec<_>>()).unwrap();
    let mut played = Vec::new();
    for draw in ["uniform", "pass_rate"] {
        let (mut context, _) =
            bench.context(json!({"scored_by": "judges", "max_group_size": 5, "draw": draw}));
        let mut input = context.inputs["scenarios"][0].clone();
        input.path.clone_from(&rates);
        context.inputs.insert("pass_rates".into(), vec![input]);
        let metrics = testing::run(&context).await.unwrap();
        // All episodes are wrong.
        let counts = ["episodes", "groups", "grown_groups", "informative_groups"].map(|name| metrics[name]);
        assert_eq!((counts, metrics["success"]), ([6.0, 2.0, 0.0, 2.0], 0.0));
        played.push(bench.trajectories());
    }
    assert!(played[0] == played[1]);
}

#[tokio::test]
async fn tasks_that_nothing_can_score_are_left_out() {
    let bench = Bench::new().await;
    let path = bench.path("scenarios.parquet");
    let mut scenarios: Vec<Scenario> = data::read(&path).unwrap();
    for scenario in &mut scenarios[1..5] {
        scenario.answer = None;
    }
    data::write(&path, &scenarios).unwrap();
    let played = |bench: &Bench| {
        let mut ids: Vec<String> = bench.trajectories().into_iter().map(|row| row.scenario_id).collect();
        ids.dedup();
        ids
    };
    let all = json!({"prompts": 6, "refill_waves": 0, "group_size": 2, "scored_by": "both"});
    testing::run(&bench.context(all.clone()).0).await.unwrap();
    assert_eq!(played(&bench).len(), 6);

    let mut answers = all;
    answers["scored_by"] = "answers".into();
    let (mut context, rows) = bench.context(answers.clone());
    let notes = Arc::new(testing::Notes::default());
    context.observer = notes.clone();
    testing::run(&context).await.unwrap();
    assert_eq!(played(&bench), ["scenario 0", "scenario 5"]);
    let notes = notes.0.lock().unwrap().clone();
    assert!(notes[0].starts_with("4 of 6 tasks are left out: "), "{notes:?}");
    let inputs = context.inputs.clone();
    let needed =
        crate::stage::parse(&context.card, &context.params).unwrap().rows_needed(7, &inputs).unwrap();
    assert!(needed.iter().all(|name| rows.finished().unwrap().contains_key(name)) && needed.len() == 4);

    scenarios.iter_mut().for_each(|scenario| scenario.answer = None);
    data::write(&path, &scenarios).unwrap();
    let failure = testing::run(&bench.context(answers).0).await.unwrap_err();
    assert_eq!(failure.code(), "rollout::nothing_scored");
}

#[tokio::test]
async fn pass_rates_are_passed_on_and_draw_the_next_scenarios() {
    let bench = Bench::new().await;
    testing::run(&bench.context(json!({"refill_waves": 0})).0).await.unwrap();
    let first: Vec<data::PassRate> = data::read(&bench.path("out/pass_rates.parquet")).unwrap();
    assert_eq!(first.len(), 2);
    assert!(first.iter().all(|rate| (rate.episodes, rate.right) == (3.0, 0.0)));

    // All but two scenarios are always right: these two are drawn, and what is known of the others stays.
    let rates: Vec<data::PassRate> = (0..6)
        .map(|index| data::PassRate {
            episodes: 1e6,
            right: if index == 2 || index == 5 { 5e5 } else { 1e6 },
            ..data::PassRate::unknown(&format!("scenario {index}"))
        })
        .collect();
    let path = bench.path("rates.parquet");
    data::write(&path, &rates).unwrap();
    let mut drawn = std::collections::BTreeMap::<String, usize>::new();
    for seed in 0..8 {
        let (mut context, _) =
            bench.context(json!({"refill_waves": 0, "draw": "pass_rate", "group_size": 2}));
        let mut input = context.inputs["scenarios"][0].clone();
        input.path.clone_from(&path);
        context.inputs.insert("pass_rates".into(), vec![input]);
        context.seed = seed;
        assert_eq!(testing::run(&context).await.unwrap()["known_pass_rates"], 1.0);
        for trajectory in bench.trajectories() {
            *drawn.entry(trajectory.scenario_id).or_default() += 1;
        }
    }
    let likely = drawn["scenario 2"] + drawn["scenario 5"];
    assert!(likely > 20, "of 32 episodes: {drawn:?}");
    let after: Vec<data::PassRate> = data::read(&bench.path("out/pass_rates.parquet")).unwrap();
    assert_eq!(after.len(), 6);
    assert_eq!(after.iter().filter(|rate| rate.episodes == 5e5 + 2.0).count(), 2);
}

#[tokio::test]
async fn success_on_tasks_that_no_rollout_has_played_is_measured_apart() {
    let call = json!({"name": "list_tables", "arguments": {}});
    let bench = Bench::calling(sqlite_server().await, &[call]).await;
    let path = bench.path("rates.parquet");
    let play = async |rates: &[data::PassRate]| {
        data::write(&path, rates).unwrap();
        let (mut context, _) =
            bench.context(json!({"prompts": 6, "group_size": 8, "refill_waves": 0, "max_turns": 1}));
        let mut input = context.inputs["scenarios"][0].clone();
        input.path.clone_from(&path);
        context.inputs.insert("pass_rates".into(), vec![input]);
        testing::run(&context).await.unwrap()
    };
    // The last has been tried, which trains nothing.
    let known = |index: u32| data::PassRate {
        rollouts: u32::from(index < 3),
        ..data::PassRate::unknown(&format!("scenario {index}"))
    };
    let metrics = play(&(0..4).map(known).collect::<Vec<_>>()).await;
    let of_new = bench.trajectories().into_iter().filter(|row| row.scenario_id.as_str() > "scenario 2");
    let right: Vec<bool> = of_new.filter_map(|row| row.correct).collect();
    let share = right.iter().filter(|right| **right).count() as f64 / 24.0;
    assert_eq!((right.len(), metrics["success_new"]), (24, share));
    assert!(share > 0.0 && share != metrics["success"], "{metrics:?}");
    let after: Vec<data::PassRate> = data::read(&bench.path("out/pass_rates.parquet")).unwrap();
    assert_eq!(after.iter().map(|rate| rate.rollouts).collect::<Vec<_>>(), [2, 2, 2, 1, 1, 1]);
    assert!(!play(&after).await.contains_key("success_new"));
}

#[tokio::test]
async fn how_many_episodes_are_played_at_once_changes_no_byte() {
    let bench = Bench::new().await;
    testing::run(&bench.context(json!({"concurrency": 1})).0).await.unwrap();
    let alone = std::fs::read(bench.path("out/trajectories.parquet")).unwrap();
    let (mut context, _) = bench.context(json!({"concurrency": 64}));
    context.engine.threads = Some(1);
    testing::run(&context).await.unwrap();
    assert_eq!(std::fs::read(bench.path("out/trajectories.parquet")).unwrap(), alone);
}

#[tokio::test]
async fn rollouts_of_one_run_load_their_model_once_with_the_same_results() {
    let bench = Bench::new().await;
    let models = Arc::<crate::stage::SharedModels>::default();
    let mut played = Vec::new();
    for shared in [true, true, false] {
        let (mut context, _) = bench.context(json!({}));
        if shared {
            context.models = models.clone();
        }
        testing::run(&context).await.unwrap();
        played.push(std::fs::read(bench.path("out/trajectories.parquet")).unwrap());
    }
    assert_eq!(models.bases.loads(), 1);
    assert!(played[0] == played[1] && played[1] == played[2]);
    models.retain(|_| false);
    assert!(models.is_empty());
}

#[tokio::test]
async fn an_interrupted_rollout_resumes() {
    let bench = Bench::new().await;
    let (context, rows) = bench.context(json!({}));
    testing::run(&context).await.unwrap();
    let whole = bench.trajectories();

    let (resumed, kept) = bench.context(json!({}));
    let recorded = crate::stage::Rows::finished(&*rows).unwrap();
    let marked = recorded.keys().find(|name| name.starts_with(&whole[4].id)).unwrap();
    let mut row: Trajectory = serde_json::from_slice(&recorded[marked]).unwrap();
    assert_eq!(row, whole[4]);
    row.answer = Some("kept".into());
    crate::stage::Rows::record(&*kept, marked, &serde_json::to_vec(&row).unwrap()).unwrap();
    testing::run(&resumed).await.unwrap();
    let after = bench.trajectories();
    assert_eq!(after[4].answer.as_deref(), Some("kept"));
    assert_eq!((&after[..4], &after[5..]), (&whole[..4], &whole[5..]));
}

/// Turns long enough for a random policy to open a call and close a thought before it ends one.
fn ruminating() -> Value {
    json!({"max_turn_tokens": 1500, "max_episode_tokens": 2040, "max_turns": 4, "refill_waves": 0, "history_thinking": "strip",
           "thinking": "off"})
}

#[tokio::test]
async fn rows_without_earlier_reasoning_are_scored_in_training_as_they_were_sampled() {
    let bench = Bench::new().await;
    let (context, _) = bench.context(ruminating());
    testing::run(&context).await.unwrap();
    let played = std::fs::read(bench.path("out/trajectories.parquet")).unwrap();
    let trajectories = bench.trajectories();
    assert!(trajectories.iter().all(Trajectory::is_consistent));
    let several = trajectories.iter().filter(|trajectory| trajectory.row_starts.is_some()).count();
    assert!(several > 1, "episodes of several turns, among {}", trajectories.len());
    for trajectory in &trajectories {
        let rows: Vec<_> = trajectory.rows().collect();
        assert!(rows.iter().all(|row| row.sampled.contains(&true) && !row.sampled[0]));
        assert!(rows.windows(2).all(|rows| rows[0].tokens[..64] == rows[1].tokens[..64]));
    }

    // At any concurrency.
    let mut params = ruminating();
    params["concurrency"] = 1.into();
    let (context, _) = bench.context(params);
    testing::run(&context).await.unwrap();
    assert!(std::fs::read(bench.path("out/trajectories.parquet")).unwrap() == played);

    let reward = |trajectory: &Trajectory| data::Reward {
        trajectory_id: trajectory.id.clone(),
        scenario_id: trajectory.scenario_id.clone(),
        reward: trajectory.sample as f32,
        correct: None,
        components: "{}".into(),
        explanation: None,
    };
    let rewards: Vec<data::Reward> = trajectories.iter().map(reward).collect();
    let path = bench.path("rewards.parquet");
    data::write(&path, &rewards).unwrap();
    let (policy, trajectories) = (bench.path("policy"), bench.path("out/trajectories.parquet"));
    let inputs = [("policy", policy.as_path()), ("trajectories", &trajectories), ("rewards", &path)];
    let (context, _) = crate::stage::testing::context("grpo", &inputs, &bench.path("update"), json!({}));
    let metrics = crate::stage::testing::run(&context).await.unwrap();
    assert_eq!(metrics["max_logprob_gap"], 0.0);
}

#[tokio::test]
async fn a_cancelled_rollout_is_interrupted() {
    let bench = Bench::new().await;
    let (context, _) = bench.context(json!({}));
    context.cancel.cancel();
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "interrupted");
}

#[tokio::test]
async fn prompts_without_room_for_an_answer_are_an_error() {
    let bench = Bench::new().await;
    let error = testing::run(&bench.context(json!({ "max_episode_tokens": 20 })).0).await.unwrap_err();
    assert_eq!(error.code(), "play::no_room");
    let tokens: usize = error.to_string().split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!(tokens > 100, "the prompt's tokens: {error}");
    testing::run(&bench.context(json!({ "max_episode_tokens": tokens + 30 })).0).await.unwrap();
}

#[tokio::test]
async fn a_rollout_needs_a_server_and_scenarios() {
    let bench = Bench::new().await;
    let (mut context, _) = bench.context(json!({}));
    context.servers = None;
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "play::no_server");

    data::write::<Scenario>(&bench.path("scenarios.parquet"), &[]).unwrap();
    assert_eq!(testing::run(&bench.context(json!({})).0).await.unwrap_err().code(), "rollout::no_scenarios");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_fails_the_stage() {
    let bench =
        Bench::calling(sqlite_server().await, &[json!({"name": "list_tables", "arguments": {}})]).await;
    let (mut context, _) = bench.context(json!({"group_size": 12}));
    let url = "http://127.0.0.1:1/mcp".to_owned();
    let transport = Transport::http(url);
    context.servers = Some(mcp::ServerSpec { transport, ..bench.servers.single().unwrap().clone() }.into());
    let failure = testing::run(&context).await.unwrap_err();
    assert_eq!(failure.code(), "play::server_lost");
    // Episodes that call no tool need no server.
    assert!(failure.to_string().contains(" of 24 episodes: "), "{failure}");
    assert!(failure.to_string().contains("Connection refused"), "{failure}");
}

#[tokio::test]
async fn a_call_goes_to_the_server_of_its_tool() {
    let servers = [("db".to_owned(), sqlite_server().await), ("sh".to_owned(), tool_process())];
    let servers = mcp::Servers::named(servers.into());
    let calls = ["db_list_tables", "sh_t", "t"].map(|name| json!({"name": name, "arguments": {}}));
    let bench = Bench::calling(servers, &calls).await;
    testing::run(&bench.context(json!({"group_size": 12})).0).await.unwrap();
    let played = bench.trajectories();
    let messages: Vec<&Message> = played.iter().flat_map(|played| &played.messages).collect();
    let answers = |name: &str| -> std::collections::BTreeSet<&str> {
        let of_tool = messages.iter().filter(|message| message.tool() == name);
        of_tool.map(|message| crate::agent::result_of(message)).collect()
    };
    assert!(
        answers("db_list_tables").iter().all(|answer| answer.contains("employees")),
        "{:?}",
        answers("db_list_tables")
    );
    assert_eq!(answers("sh_t"), ["fine"].into());
    assert!(answers("t").iter().all(|answer| answer.contains("no tool named t")), "{:?}", answers("t"));
    assert_eq!(answers("db_list_tables").len(), 1);
}

#[tokio::test]
async fn a_task_about_one_server_offers_the_tools_of_that_server_alone() {
    let servers = [("db".to_owned(), sqlite_server().await), ("sh".to_owned(), tool_process())];
    let calls = ["db_list_tables", "sh_t"].map(|name| json!({"name": name, "arguments": {}}));
    let bench = Bench::calling(mcp::Servers::named(servers.into()), &calls).await;
    let about = |server: &str| {
        let scenarios: Vec<Scenario> = data::read(&bench.path("scenarios.parquet")).unwrap();
        let server = Some(data::ServerName(server.to_owned()));
        let scenarios: Vec<Scenario> =
            scenarios.into_iter().map(|scenario| Scenario { server: server.clone(), ..scenario }).collect();
        data::write(&bench.path("scenarios.parquet"), &scenarios).unwrap();
    };
    about("sh");
    testing::run(&bench.context(json!({"group_size": 12})).0).await.unwrap();
    let results: Vec<Message> = bench
        .trajectories()
        .into_iter()
        .flat_map(|played| played.messages)
        .filter(|message| message.role == Role::Tool)
        .collect();
    let of = |name: &str| {
        results.iter().find(|message| message.tool() == name).expect("it was called").text.clone()
    };
    assert_eq!(of("sh_t"), "fine");
    assert_eq!(of("db_list_tables"), "error: no tool named db_list_tables; there is complete_task, sh_t");

    about("crm");
    let failure = testing::run(&bench.context(json!({"group_size": 12})).0).await.unwrap_err();
    assert_eq!(failure.code(), "play::unknown_server", "{failure}");
}

#[tokio::test]
async fn episodes_on_several_servers_do_not_wait_for_each_other_forever() {
    let one_session = || {
        let mut server = tool_process();
        server.state = State::FreshProcess;
        server.limits.sessions = Some(1);
        server
    };
    let servers = [("a".to_owned(), one_session()), ("b".to_owned(), one_session())];
    let calls = ["a_t", "b_t"].map(|name| json!({"name": name, "arguments": {}}));
    let bench = Bench::calling(mcp::Servers::named(servers.into()), &calls).await;
    let context = bench.context(json!({"group_size": 12, "concurrency": 24})).0;
    let played = tokio::time::timeout(Duration::from_secs(120), testing::run(&context)).await;
    played.expect("no episode waits for another one").unwrap();
    assert!(bench.trajectories().iter().any(|played| played.tools.windows(2).any(|two| two[0] != two[1])));
}

#[tokio::test]
async fn a_list_of_tools_of_other_servers_is_refused() {
    let bench = Bench::calling(tool_process(), &[call("x")]).await;
    let (mut context, _) = bench.context(json!({"group_size": 12}));
    context.servers = Some(mcp::Servers::named([("sh".to_owned(), tool_process())].into()));
    let failure = testing::run(&context).await.unwrap_err();
    assert_eq!(failure.code(), "mcp::no_server_of_tool", "{failure}");
}

#[tokio::test]
async fn a_server_that_is_not_called_is_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let mut server = tool_process();
    let Transport::Stdio { command, .. } = &mut server.transport else { unreachable!() };
    command[2].insert_str(0, &format!("echo >> {}\n", starts.display()));
    server.state = State::FreshProcess;
    server.limits.sessions = Some(2);
    let count = || std::fs::read_to_string(&starts).unwrap().lines().count();

    let bench = Bench::on(server.clone()).await;
    babbler(&bench.path("policy"));
    let before = count();
    testing::run(&bench.context(json!({"group_size": 64})).0).await.unwrap();
    assert!(bench.trajectories().len() >= 128 && bench.trajectories().iter().all(|played| played.calls == 0));
    assert_eq!(count(), before);

    let bench = Bench::calling(server, &[call("x")]).await;
    let before = count();
    testing::run(&bench.context(json!({"concurrency": 8})).0).await.unwrap();
    let callers = bench.trajectories().iter().filter(|played| played.calls > 0).count();
    assert!(callers > 0);
    assert_eq!(count() - before, callers);
}

#[tokio::test]
async fn a_tool_that_changed_since_it_was_listed_fails_the_stage() {
    let bench = Bench::calling(tool_process(), &[call("x")]).await;
    let mut tools: Vec<data::Tool> = data::read(&bench.path("tools.parquet")).unwrap();
    tools[0].function = tools[0].function.replace("\"description\":\"\"", "\"description\":\"Adds.\"");
    data::write(&bench.path("tools.parquet"), &tools).unwrap();
    assert_eq!(testing::run(&bench.context(json!({})).0).await.unwrap_err().code(), "mcp::tool_changed");
}

/// A process with a tool `t` that exits on a call that says `crash`.
fn tool_process() -> mcp::ServerSpec {
    let script = r#"
        reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
        while IFS= read -r line; do
            id=${line#*'"id":'}; id=${id%%[,\}]*}
            case $line in
                *'"crash"'*) echo 'out of cheese' >&2; exit 7;;
                *'"initialize"'*) reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}';;
                *'"tools/list"'*) reply '{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}';;
                *'"tools/call"'*) reply '{"content":[{"type":"text","text":"fine"}]}';;
            esac
        done"#;
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    mcp::ServerSpec::new(
        Transport::Stdio { command, env: BTreeMap::new(), cwd: None, files: Vec::new() },
        State::ReadOnly,
    )
}

fn call(how: &str) -> Value {
    json!({"name": "t", "arguments": {"how": how}})
}

#[tokio::test]
async fn a_server_that_answers_no_call_fails_the_stage_and_what_it_lost_is_played_when_it_is_back() {
    let status = Arc::new(AtomicU16::new(200));
    let now = status.clone();
    let server = tool_server(move |_| now.load(Ordering::SeqCst)).await;
    let bench = Bench::on(server).await;
    caller(&bench.path("policy"), &[call("x")]);
    testing::run(&bench.context(json!({})).0).await.unwrap();
    let untroubled = bench.trajectories();
    for (failing, said) in [
        (401, "refused a request with HTTP status 401"),
        (403, "refused a request with HTTP status 403"),
        (503, "refused a request with HTTP status 503"),
        (500, "lost the connection to the server"),
    ] {
        status.store(failing, Ordering::SeqCst);
        let (context, rows) = bench.context(json!({}));
        let failure = testing::run(&context).await.unwrap_err();
        assert_eq!(failure.code(), "play::server_lost");
        let text = failure.to_string();
        assert!(text.contains("lost in 6 of 6 episodes: ") && text.contains(said), "{text}");
        assert!(failure.hint().unwrap().contains("resume plays the lost ones"));
        assert!(crate::stage::Rows::finished(&*rows).unwrap().is_empty(), "{failing}");

        status.store(200, Ordering::SeqCst);
        let (mut resumed, _) = bench.context(json!({}));
        resumed.rows = rows;
        assert_eq!(testing::run(&resumed).await.unwrap()["lost"], 0.0);
        assert!(bench.trajectories() == untroubled);
    }
}

#[tokio::test]
async fn a_server_that_is_back_in_time_changes_no_byte() {
    let calls = Arc::new(AtomicUsize::new(1000));
    let count = calls.clone();
    let down = move |_: &Value| if count.fetch_add(1, Ordering::SeqCst) < 5 { 503 } else { 200 };
    let bench = Bench::calling(tool_server(down).await, &[call("x"), call("y")]).await;
    testing::run(&bench.context(json!({})).0).await.unwrap();
    let untroubled = std::fs::read(bench.path("out/trajectories.parquet")).unwrap();
    calls.store(0, Ordering::SeqCst);
    let metrics = testing::run(&bench.context(json!({})).0).await.unwrap();
    assert!(calls.load(Ordering::SeqCst) > 5);
    assert_eq!((metrics["lost"], metrics["ended_server_down"]), (0.0, 0.0));
    assert!(std::fs::read(bench.path("out/trajectories.parquet")).unwrap() == untroubled);
}

#[tokio::test]
async fn a_policy_whose_own_call_takes_the_server_down_has_failed_and_is_not_played_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let over_http = tool_server(move |arguments| {
        count.fetch_add(1, Ordering::SeqCst);
        if arguments["how"] == "crash" { 500 } else { 200 }
    });
    for server in [over_http.await, tool_process()] {
        let bench = Bench::calling(server, &[call("crash"), call("fine"), call("good")]).await;
        let (context, rows) = bench.context(json!({"max_lost_share": 0.0}));
        let metrics = testing::run(&context).await.unwrap();
        assert_eq!(metrics["lost"], 0.0);
        let trajectories = bench.trajectories();
        let down = trajectories.iter().filter(|episode| episode.end == "server_down");
        let down: Vec<&Vec<Message>> = down.map(|episode| &episode.messages).collect();
        assert!(!down.is_empty() && down.len() < trajectories.len(), "{metrics:?}");
        for messages in down {
            let last = messages.last().unwrap().json().to_string();
            assert!(last.contains("crash"), "{last}");
        }

        let (mut again, _) = bench.context(json!({"max_lost_share": 0.0}));
        again.rows = rows;
        let before = calls.load(Ordering::SeqCst);
        testing::run(&again).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), before);
        assert!(bench.trajectories() == trajectories);
    }
}

#[tokio::test]
async fn a_call_that_a_gateway_gives_up_on_every_time_is_the_policys_failure_where_sessions_leave_nothing() {
    for (status, state, is_own) in [
        (502, State::ReadOnly, true),
        (503, State::ReadOnly, true),
        (504, State::ReadOnly, true),
        (408, State::ReadOnly, false),
        (504, State::FreshProcess, false),
        (500, State::FreshProcess, false),
    ] {
        let down = move |arguments: &Value| if arguments["how"] == "heavy" { status } else { 200 };
        let mut server = tool_server(down).await;
        server.state = state.clone();
        let bench = Bench::calling(server, &[call("heavy"), call("fine")]).await;
        let params = json!({"max_lost_share": 0.9, "group_size": 8, "refill_waves": 0});
        let metrics = testing::run(&bench.context(params).0).await.unwrap();
        let down = bench.trajectories().iter().filter(|episode| episode.end == "server_down").count();
        assert_eq!((down > 0, metrics["lost"] > 0.0), (is_own, !is_own), "{status} {state:?}: {metrics:?}");
    }
}

#[tokio::test]
async fn a_process_that_each_call_ends_is_no_outage() {
    let bench = Bench::calling(tool_process(), &[call("crash")]).await;
    let metrics = testing::run(&bench.context(json!({"max_lost_share": 0.0})).0).await.unwrap();
    assert!(metrics["lost"] == 0.0 && metrics["ended_server_down"] > 0.0, "{metrics:?}");
}

#[tokio::test]
async fn episodes_that_are_lost_are_left_out_up_to_a_share_and_played_later() {
    let status = Arc::new(AtomicU16::new(408));
    let now = status.clone();
    let server = tool_server(move |arguments| match arguments["how"] == "shy" {
        true => now.load(Ordering::SeqCst),
        false => 200,
    });
    let bench = Bench::calling(server.await, &[call("shy"), call("fine")]).await;
    let some = json!({"max_lost_share": 0.9, "group_size": 8, "refill_waves": 0});
    let (context, rows) = bench.context(some.clone());
    let metrics = testing::run(&context).await.unwrap();
    let left = bench.trajectories();
    assert!(metrics["lost"] > 0.0 && !left.is_empty());
    assert_eq!(metrics["lost"] + left.len() as f64, 16.0);
    assert_eq!((metrics["episodes"], metrics["ended_server_down"]), (left.len() as f64, 0.0));
    let right = left.iter().filter(|episode| episode.answer.as_deref() == Some("7")).count();
    assert_eq!(metrics["success"], right as f64 / left.len() as f64);
    assert_eq!(crate::stage::Rows::finished(&*rows).unwrap().len(), left.len());

    let (mut strict, _) = bench.context(json!({"group_size": 8, "refill_waves": 0}));
    strict.rows = rows.clone();
    let failure = testing::run(&strict).await.unwrap_err();
    assert!(failure.to_string().contains(&format!("in {} of 16 episodes", metrics["lost"])), "{failure}");

    status.store(200, Ordering::SeqCst);
    let (mut resumed, _) = bench.context(some);
    resumed.rows = rows;
    assert_eq!(testing::run(&resumed).await.unwrap()["lost"], 0.0);
    let all = bench.trajectories();
    assert!(all.len() == 16 && left.iter().all(|episode| all.contains(episode)));
}

/// Begins a program that asks as a client does. `chat BODY` gives a completion, `tool NAME ARGUMENTS` a result.
const CLIENT: &str = r#"
host=${OPENAI_BASE_URL#http://}; host=${host%%/*}
post() {
    exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
    printf 'POST %s HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s' "${1#http://"$host"}" "$host" "${#2}" "$2" >&3
    cat <&3
}
chat() { post "$OPENAI_BASE_URL/chat/completions" "$1"; }
tool() { post "$MCPRL_MCP_URL" '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"'"$1"'","arguments":'"$2"'}}'; }
tools='[{"type":"function","function":{"name":"describe_table","parameters":{"type":"object","properties":{"table_name":{"type":"string"}}}}}]'
said='{"role":"user","content":"'"$1"'"}'
ask() { chat '{"messages":['"$said"'],"tools":'"$tools"'}'; }
"#;

/// A rollout of this program, which has [`CLIENT`].
fn harness(script: &str, more: Value) -> Value {
    let mut params = json!({
        "prompts": 1, "group_size": 2, "refill_waves": 0, "harness": ["bash", "-c", format!("{CLIENT}{script}"), "harness"],
    });
    params.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    params
}

/// A policy that calls `describe_table`, for a client that does not offer `complete_task`.
async fn counting() -> Bench {
    let bench = Bench::on(sqlite_server().await).await;
    caller(
        &bench.path("policy"),
        &[json!({"name": "describe_table", "arguments": {"table_name": "employees"}})],
    );
    bench
}

#[tokio::test]
async fn a_program_plays_episodes_whose_tokens_are_what_the_policy_sampled_for_it() {
    let bench = Bench::on(sqlite_server().await).await;
    testing::replier(&bench.path("policy"), &["Looking.".to_owned()], 2048);
    let script = r#"
ask | grep -q 'Looking' || exit 1
result=$(tool describe_table '{"table_name":"employees"}')
[[ $result == *'"isError":false'* ]] || { echo "$result" >&2; exit 1; }
said+=',{"role":"assistant","content":"Looking."},{"role":"user","content":"What do you see?"}'
ask > /dev/null
# Another conversation.
said='{"role":"user","content":"Something else."}'
ask > /dev/null
echo 'some talk'; echo 7; echo
"#;
    let metrics = testing::run(&bench.context(harness(script, json!({}))).0).await.unwrap();
    assert_eq!((metrics["episodes"], metrics["ended_completed"], metrics["success"]), (2.0, 1.0, 1.0));
    for trajectory in bench.trajectories() {
        assert_eq!((trajectory.answer.as_deref(), trajectory.turns), (Some("7"), 3));
        assert_eq!((trajectory.tools, trajectory.calls), (vec!["describe_table".to_owned()], 1));
        let rows = trajectory.row_starts.map(|starts| starts.len() + 1);
        assert_eq!(rows, Some(2), "the second request continued the first");
        let turns = trajectory.sampled.chunk_by(|one, other| one == other).filter(|run| run[0]).count();
        assert_eq!(turns, 3);
        let contents: Vec<&str> = trajectory.messages.iter().map(|message| message.text.as_str()).collect();
        assert_eq!(contents[1..], ["Looking.", "What do you see?", "Looking."]);
    }
}

#[tokio::test]
async fn a_program_that_fails_before_it_asks_fails_the_stage_and_says_why() {
    let bench = counting().await;
    let failed = testing::run(&bench.context(harness("echo no such module >&2; exit 3", json!({}))).0)
        .await
        .unwrap_err();
    assert_eq!(failed.code(), "play::harness");
    assert!(failed.to_string().contains("exit status: 3\nno such module"), "{failed}");
    let (context, _) = bench.context(json!({"harness": ["/no/such/program"]}));
    let failed = testing::run(&context).await.unwrap_err();
    assert!(failed.to_string().contains("cannot be started"), "{failed}");
}

#[tokio::test]
async fn an_episode_whose_program_fails_or_hangs_has_no_answer_and_is_not_recorded_for_a_resumed_stage() {
    let bench = counting().await;
    let flaky = r#"ask > /dev/null; [[ $1 == *1* ]] && { echo wrong >&2; exit 1; }; [[ $1 == *2* ]] && sleep 60; echo 7"#;
    let params = harness(flaky, json!({"prompts": 6, "harness_timeout_s": 2.0}));
    let (context, rows) = bench.context(params);
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!((metrics["episodes"], metrics["success"]), (12.0, 4.0 / 6.0));
    assert!((metrics["ended_harness_failed"] - 2.0 / 6.0).abs() < 1e-9);
    assert_eq!(crate::stage::Rows::finished(&*rows).unwrap().len(), 8);

    let all = harness("ask > /dev/null; echo wrong >&2; exit 1", json!({}));
    let failed = testing::run(&bench.context(all).0).await.unwrap_err();
    assert!(failed.to_string().contains("wrong"), "{failed}");
}

#[tokio::test]
async fn a_program_meets_the_limits_of_an_episode() {
    let bench = counting().await;
    let endless = "while ask | grep -q '200 OK'; do :; done; exit 1";
    testing::run(&bench.context(harness(endless, json!({"max_turns": 3}))).0).await.unwrap();
    for trajectory in bench.trajectories() {
        assert_eq!((trajectory.end(), trajectory.turns), (Some(End::OutOfTurns), 3));
        assert_eq!(trajectory.row_starts.unwrap_or_default().len() + 1, 1, "the same answer stands once");
        let call = &trajectory.messages[1].calls[0];
        assert_eq!(call.arguments_json(), r#"{"table_name":"employees"}"#);
    }
    let calls = r#"ask > /dev/null; for i in 1 2 3; do tool describe_table '{"table_name":"employees"}'; done > /dev/null; tool nothing '{}' | grep -o 'no calls are left'"#;
    testing::run(&bench.context(harness(calls, json!({"max_calls": 2}))).0).await.unwrap();
    for trajectory in bench.trajectories() {
        assert_eq!((trajectory.calls, trajectory.tool_errors), (2, 2));
        assert_eq!(trajectory.answer.as_deref(), Some("no calls are left"));
    }
    let long = r#"said='{"role":"user","content":"'$(printf 'word %.0s' {1..3000})'"}'; ask | grep -q context_length && exit 1"#;
    let failed = testing::run(&bench.context(harness(long, json!({}))).0).await.unwrap_err();
    assert_eq!(failed.code(), "play::no_room");
}

#[tokio::test]
async fn greedy_episodes_measure_the_policy_and_are_no_success_in_training() {
    let bench = Bench::new().await;
    let metrics = testing::run(&bench.context(json!({"temperature": 0.0, "group_size": 1})).0).await.unwrap();
    assert!(metrics.contains_key("success_greedy"), "{metrics:?}");
    assert!(!metrics.contains_key("success") && !metrics.contains_key("success_new"), "{metrics:?}");
    let bench = Bench::new().await;
    data::write(&bench.path("scenarios.parquet"), &[] as &[Scenario]).unwrap();
    let metrics = testing::run(&bench.context(json!({"temperature": 0.0})).0).await.unwrap();
    assert!(metrics.is_empty(), "no tasks: {metrics:?}");
}

#[tokio::test]
async fn a_program_that_never_asks_the_policy_fails_the_stage() {
    let bench = counting().await;
    let failed = testing::run(&bench.context(harness("echo 7", json!({}))).0).await.unwrap_err();
    assert_eq!(failed.code(), "play::harness");
    assert!(failed.to_string().contains("without asking the policy"), "{failed}");
}

#[tokio::test]
async fn what_only_a_guide_can_keep_is_refused_and_takes_no_turn() {
    let bench = counting().await;
    let script = r#"
for more in '"tool_choice":"required","tools":'"$tools" '"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object","properties":{}}}}'; do
    chat '{"messages":['"$said"'],'"$more"'}' | grep -q 'would be forced' || { echo taken >&2; exit 1; }
done
tools=${tools/\"parameters\"/\"strict\":true,\"parameters\"}
ask | grep -q describe_table || { echo refused >&2; exit 1; }
echo 7
"#;
    testing::run(&bench.context(harness(script, json!({"max_turns": 1}))).0).await.unwrap();
    assert!(bench.trajectories().iter().all(|episode| episode.turns == 1));
}
