use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{
    chat::Chat,
    data::{Role, VerdictRow},
    demo::HttpServer,
    error::Failure,
    hash::Digest,
    mcp::{ServerSpec, Session, State, Transport},
    model::{Adapter, AdapterConfig, Decoder, Design, Init, ModelConfig, kernels::Heads},
    stage::{
        Artifacts, Rows,
        testing::{self, caller, tool_server},
    },
};

fn scenario(id: &str, split: &str, answer: Option<&str>) -> Scenario {
    Scenario {
        id: id.into(),
        split: split.into(),
        family: "f".into(),
        task: "t".into(),
        answer: answer.map(str::to_owned),
        check: if answer.is_some() { "number" } else { "none" }.into(),
        ..Scenario::default()
    }
}

fn params(greedy: bool, samples: u32) -> Params {
    Params {
        greedy,
        samples,
        temperature: 1.0,
        vote: 0,
        endpoints: BTreeMap::new(),
        variants: BTreeMap::new(),
    }
}

#[test]
fn the_policy_named_base_is_the_baseline_in_any_position() {
    let named = |names: &[&str]| -> Vec<Input> {
        let input =
            |name: &&str| Input { name: (*name).to_owned(), digest: Digest::of(b""), path: "policy".into() };
        names.iter().map(input).collect()
    };
    let order = |names: &[&str]| -> Vec<String> {
        baseline_first(&named(names)).into_iter().map(|policy| policy.name.clone()).collect()
    };
    assert_eq!(order(&["trained", "base", "other"]), ["base", "trained", "other"]);
    assert_eq!(order(&["second", "first"]), ["second", "first"]);
}

#[test]
fn scenarios_without_an_answer_are_left_out_and_counted() {
    let (kept, unknown) = known(vec![scenario("s", "a", Some("1")), scenario("t", "a", None)]).unwrap();
    assert_eq!((kept.len(), unknown), (1, 1));
    assert_eq!(known(vec![scenario("t", "a", None)]), Err(EvalError::NoTruth { scenarios: 1 }));
}

#[test]
fn the_greedy_episode_comes_first_and_every_episode_has_its_own_seed() {
    let scenarios = [scenario("s", "a", Some("1")), scenario("t", "a", Some("1"))];
    let rollouts = rollouts(&scenarios, (true, 2, 0.5), 7);
    let drawn: Vec<_> =
        rollouts.iter().map(|a| (a.scenario.id.as_str(), a.sample, a.sampling.temperature)).collect();
    assert_eq!(
        drawn,
        [("s", 0, 0.0), ("s", 1, 0.5), ("s", 2, 0.5), ("t", 0, 0.0), ("t", 1, 0.5), ("t", 2, 0.5)]
    );
    let seeds: std::collections::BTreeSet<u64> = rollouts.iter().map(|rollout| rollout.seed).collect();
    assert_eq!(seeds.len(), rollouts.len());
}

#[test]
fn an_exam_without_episodes_is_refused() {
    let scenarios = [scenario("s", "a", Some("1"))];
    let nobody = Entrants::of(&[], Vec::new());
    assert_eq!(plans(&nobody, &scenarios, &[], &params(false, 0), 7).err(), Some(EvalError::NothingToPlay));
}

#[test]
fn the_notes_say_what_was_played_and_what_was_left_out() {
    let scenarios = [("s", "unseen_entities"), ("t", "unseen_entities"), ("u", "file")]
        .map(|(id, split)| scenario(id, split, Some("1")));
    insta::assert_snapshot!(notes(&params(true, 4), &scenarios, 2, 3).join("\n\n"), @r"
    - file: 1 scenario
    - unseen entities: 2 scenarios

    Per scenario and policy: one greedy episode and 4 episodes at temperature 1.

    Left out: 2 scenarios without a known answer.

    Left out: 3 episodes in which the server was lost.
    ");
}

/// Parameters that `eval` shares with `rollout`, with all their card entries.
/// A folder with a server, two random policies and three questions.
struct Hall {
    folder: TempDir,
    server: ServerSpec,
    recorded: Arc<Recorded>,
}

#[derive(Default)]
struct Recorded(Mutex<BTreeMap<String, Vec<u8>>>);

impl Rows for Recorded {
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        Ok(self.0.lock().unwrap().clone())
    }
    fn record(&self, key: &str, row: &[u8]) -> Result<()> {
        self.0.lock().unwrap().insert(key.to_owned(), row.to_vec());
        Ok(())
    }
    fn replace_checkpoint(&self, _: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
        panic!("an exam has no checkpoint")
    }
}

/// Resolves every digest to the base.
struct BaseAlone(PathBuf);

impl Artifacts for BaseAlone {
    fn folder(&self, _: &Digest) -> Result<PathBuf> {
        Ok(self.0.clone())
    }
}

impl Hall {
    async fn open() -> Self {
        let listening = HttpServer::bind("sqlite", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let transport = Transport::http(listening.url().unwrap());
        tokio::spawn(listening.serve());
        let server = ServerSpec::new(transport, State::ReadOnly);
        let hall = Self { folder: tempfile::tempdir().unwrap(), server, recorded: Arc::default() };
        let tools = Session::connect(&hall.server).await.unwrap().describe().await.unwrap().tools;
        let tools = crate::offered::tool_rows(tools);
        data::write(&hall.path("tools.parquet"), &tools).unwrap();
        let scenarios =
            [scenario("s", "a", Some("1")), scenario("t", "a", Some("2")), scenario("u", "c", Some("3"))];
        data::write(&hall.path("scenarios.parquet"), &scenarios).unwrap();
        write_policies(&hall.path("base"), &hall.path("trained"));
        hall
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn context(&self, output: &str, threads: usize, concurrency: usize) -> Context {
        let output = self.path(output);
        let input = |name: &str, file: &str| Input {
            name: name.into(),
            digest: Digest::of(file.as_bytes()),
            path: self.path(file),
        };
        let params = json!({
            "greedy": true, "samples": 1, "concurrency": concurrency,
            "max_turns": 2, "max_turn_tokens": 12, "max_episode_tokens": 1500, "max_calls": 4,
            "result_chars": 256, "thinking": "template", "history_thinking": "template",
            "strict_calls": true, "reminder": false, "text_answers": false, "max_lost_share": 0.05,
        });
        let (mut context, _) = testing::context("eval", &[], &output, params);
        context.inputs = BTreeMap::from([
            ("policies".into(), vec![input("trained", "trained"), input("base", "base")]),
            ("tools".into(), vec![input("tools", "tools.parquet")]),
            ("scenarios".into(), vec![input("scenarios", "scenarios.parquet")]),
        ]);
        context.servers = Some(self.server.clone().into());
        context.engine.threads = Some(threads);
        context.artifacts = Arc::new(BaseAlone(self.path("base")));
        context.rows = self.recorded.clone();
        context
    }
}

/// A random decoder with the reference chat files, and an adapter on it that changes its output.
fn write_policies(base: &Path, trained: &Path) {
    std::fs::create_dir(base).unwrap();
    std::fs::create_dir(trained).unwrap();
    let chat = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/chat/qwen3_instruct_2507");
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(Path::new(chat).join(file), base.join(file)).unwrap();
    }
    let stops = Chat::load(base).unwrap().stop().to_vec();
    let config = ModelConfig {
        vocabulary: 512.max(stops.iter().max().map_or(0, |stop| *stop as usize + 1)),
        hidden: 32,
        intermediate: 32,
        layers: 1,
        heads: Heads { query: 2, kv: 1, dim: 16 },
        context: 2048,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-6,
        tied: true,
        design: Design::default(),
    };
    let mut decoder = Decoder::random(config, Init { seed: 3, deviation: 0.3 }).unwrap();
    decoder.save(base).unwrap();
    let adapter = AdapterConfig::new(2, 4.0);
    Adapter::fresh(&mut decoder, &adapter, 5).unwrap();
    for parameter in &mut decoder.trained().unwrap() {
        let moved = (parameter.tensor() + 0.1).unwrap();
        parameter.set(moved);
    }
    Adapter::save(&decoder, &adapter, "base", trained).unwrap();
    let of = json!({"base": Digest::of(b"base")}).to_string();
    std::fs::write(trained.join("policy.json"), of).unwrap();
}

fn files(output: &Path) -> Vec<Vec<u8>> {
    let read = |name| std::fs::read(output.join(name)).unwrap();
    ["verdict.parquet", "episodes.parquet", "report.md"].map(read).into()
}

/// Whether the row is of an agent that knows nothing.
fn is_idle(row: &VerdictRow) -> bool {
    super::idle::NAMES.contains(&row.policy.as_str())
}

#[tokio::test]
async fn policies_sit_the_same_exam_on_a_live_server() {
    let hall = Hall::open().await;
    let context = hall.context("out", 2, 8);
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!((metrics["scenarios"], metrics["lost"], metrics["all.gain"]), (3.0, 0.0, 0.0));

    let rows: Vec<VerdictRow> = data::read(&context.output_folder.join("verdict.parquet")).unwrap();
    let all: Vec<_> = rows
        .iter()
        .filter(|row| row.scope == "all" && !is_idle(row))
        .map(|row| (row.policy.as_str(), row.mode.as_str(), row.episodes, row.gain.is_some()))
        .collect();
    assert_eq!(
        all,
        [
            ("base", "greedy", 3, false),
            ("trained", "greedy", 3, true),
            ("base", "sampled", 3, false),
            ("trained", "sampled", 3, true),
        ]
    );
    let episodes: Vec<Trajectory> = data::read(&context.output_folder.join("episodes.parquet")).unwrap();
    assert_eq!(episodes.len(), 2 * 3 * 2);
    assert_ne!(episodes[0].tokens, episodes[6].tokens, "the adapter reaches the sampler");
    let report = std::fs::read_to_string(context.output_folder.join("report.md")).unwrap();
    assert!(
        report.starts_with("# Verdict\n\nno measurable gain of trained over base on held-out tasks: "),
        "{report}"
    );
}

#[tokio::test]
async fn an_evaluation_gives_the_same_bytes_at_any_concurrency_and_after_interruptions() {
    let hall = Hall::open().await;
    let first = hall.context("first", 2, 8);
    testing::run(&first).await.unwrap();
    // Half of the episodes are lost to a kill -9.
    let mut half = 0;
    hall.recorded.0.lock().unwrap().retain(|_, _| {
        half += 1;
        half % 2 == 0
    });
    let resumed = hall.context("resumed", 1, 1);
    testing::run(&resumed).await.unwrap();
    assert_eq!(files(&first.output_folder), files(&resumed.output_folder));
}

#[tokio::test]
async fn an_episode_lost_with_the_server_is_left_out_and_one_that_took_it_down_has_failed() {
    let mut hall = Hall::open().await;
    let status = |arguments: &serde_json::Value| match arguments["how"].as_str() {
        Some("refused") => 408,
        Some("crash") => 500,
        _ => 200,
    };
    hall.server = tool_server(status).await;
    let tools = Session::connect(&hall.server).await.unwrap().describe().await.unwrap().tools;
    let tools = crate::offered::tool_rows(tools);
    data::write(&hall.path("tools.parquet"), &tools).unwrap();
    std::fs::remove_dir_all(hall.path("trained")).unwrap();
    let call = |how: &str| json!({"name": "t", "arguments": {"how": how}});
    let done = json!({"name": "complete_task", "arguments": {"answer": "1"}});
    caller(&hall.path("base"), &[call("fine"), done.clone()]);
    caller(&hall.path("trained"), &[call("refused"), call("crash"), call("fine"), done]);
    let mut context = hall.context("out", 2, 8);
    for (name, value) in [("greedy", json!(false)), ("samples", json!(8)), ("max_lost_share", json!(0.9))] {
        context.params.insert(name.into(), value);
    }
    let metrics = testing::run(&context).await.unwrap();
    let episodes: Vec<Trajectory> = data::read(&context.output_folder.join("episodes.parquet")).unwrap();
    assert!(metrics["lost"] > 0.0 && metrics["lost"] + episodes.len() as f64 == 48.0, "{metrics:?}");
    assert!(episodes.iter().any(|episode| episode.end == "server_down"));
    let rows: Vec<VerdictRow> = data::read(&context.output_folder.join("verdict.parquet")).unwrap();
    let played: Vec<_> = rows
        .iter()
        .filter(|row| row.scope == "all" && !is_idle(row))
        .map(|row| (row.policy.as_str(), row.episodes))
        .collect();
    assert_eq!(played, [("base", 24), ("trained", episodes.len() as u32 - 24)]);
}

#[tokio::test]
async fn an_exam_that_is_interrupted_ends_as_interrupted() {
    let hall = Hall::open().await;
    let context = hall.context("out", 1, 1);
    context.cancel.cancel();
    let ended: Result<Metrics, Failure> = testing::run(&context).await;
    assert_eq!(ended.unwrap_err().code(), "interrupted");
    assert!(!context.output_folder.join("verdict.parquet").exists());
}

/// A task whose solution is this query, with how its answer is read and the checks of the state.
fn solved(
    id: &str,
    sql: &str,
    (reads, checks): (Option<serde_json::Value>, Option<serde_json::Value>),
) -> Scenario {
    let json = |value: serde_json::Value| data::Json(value.to_string());
    Scenario {
        reference: Some(json!([{"name": "run_query", "arguments": {"sql": sql}}]).to_string()),
        reads: reads.map(json),
        checks: checks.map(json),
        ..scenario(id, "a", Some("7"))
    }
}

/// Seven tasks, of which these no longer hold: `changed`, `gone` and `state`.
fn aging() -> Vec<Scenario> {
    let n = || Some(json!({"field": {"list": "", "key": null, "field": "n"}}));
    let state = |expected: &str| {
        let call =
            json!({"tool": "run_query", "arguments": {"sql": "SELECT 7"}, "expect": {"matches": expected}});
        Some(json!({"state": [call]}))
    };
    vec![
        solved("same", "SELECT 7 AS n", (n(), state("7"))),
        solved("changed", "SELECT 8 AS n", (n(), None)),
        solved("gone", "SELECT nothing FROM nowhere", (None, None)),
        solved("state", "SELECT 7 AS n", (n(), state("nine"))),
        // How their answers follow from the result is not known.
        solved("counted", "SELECT 8 AS n", (None, None)),
        solved("quoted", "SELECT 7 AS n", (Some(json!({"quoted": "7"})), None)),
        scenario("unsolved", "c", Some("3")),
    ]
}

#[tokio::test]
async fn tasks_whose_answer_has_changed_on_the_server_are_left_out_for_all_policies() {
    let hall = Hall::open().await;
    data::write(&hall.path("scenarios.parquet"), &aging()).unwrap();
    let context = hall.context("out", 2, 8);
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!((metrics["scenarios"], metrics["aged"]), (4.0, 3.0));
    let episodes: Vec<Trajectory> = data::read(&context.output_folder.join("episodes.parquet")).unwrap();
    let played: std::collections::BTreeSet<&str> =
        episodes.iter().map(|episode| episode.scenario_id.as_str()).collect();
    assert_eq!(played.into_iter().collect::<Vec<_>>(), ["counted", "quoted", "same", "unsolved"]);
    assert_eq!(episodes.len(), 2 * 4 * 2);

    let rows: Vec<data::Replay> = data::read(&context.output_folder.join("replays.parquet")).unwrap();
    let shown: Vec<_> =
        rows.iter().map(|row| (row.scenario_id.as_str(), row.holds, row.now.as_deref())).collect();
    assert_eq!(shown[..2], [("same", Some(true), None), ("changed", Some(false), Some("8"))]);
    assert_eq!((shown[2].0, shown[2].1), ("gone", Some(false)));
    assert!(shown[2].2.unwrap().contains("error"), "{shown:?}");
    assert_eq!((shown[3].0, shown[3].1), ("state", Some(false)));
    assert_eq!(shown[4..], [("counted", Some(true), None), ("quoted", Some(true), None)]);

    let report = std::fs::read_to_string(context.output_folder.join("report.md")).unwrap();
    let left_out = "Left out: 3 of 7 tasks no longer hold: their answer has changed on the server.\n";
    assert!(report.contains(left_out) && report.contains("- `changed`: was `7`, is `8`\n"), "{report}");
}

#[tokio::test]
async fn an_exam_most_of_whose_tasks_no_longer_hold_fails_with_the_first_of_them() {
    let hall = Hall::open().await;
    let tasks: Vec<Scenario> =
        aging().into_iter().filter(|task| task.id != "same" && task.id != "quoted").collect();
    data::write(&hall.path("scenarios.parquet"), &tasks).unwrap();
    let failed = testing::run(&hall.context("out", 2, 8)).await.unwrap_err();
    assert_eq!(failed.code(), "eval::aged");
    let message = "3 of 5 tasks no longer hold: their answer has changed on the server; the first, changed: was \"7\", is \"8\"";
    assert!(failed.to_string().contains(message), "{failed}");
    assert!(failed.hint().unwrap().contains("--resample"));
}

#[tokio::test]
async fn an_exam_that_goes_on_replays_the_solutions_again() {
    let hall = Hall::open().await;
    data::write(&hall.path("scenarios.parquet"), &[solved("s", "SELECT 7 AS n", (None, None))]).unwrap();
    testing::run(&hall.context("first", 2, 8)).await.unwrap();
    let names = hall.recorded.0.lock().unwrap().len();
    assert_eq!(names, 4, "the episodes of two policies alone are recorded");
}

/// The baseline answers 1, 1.0 or 2 with equal probability, the other policy always 1.
async fn voting() -> Hall {
    let hall = Hall::open().await;
    std::fs::remove_dir_all(hall.path("trained")).unwrap();
    let done = |answer: &str| json!({"name": "complete_task", "arguments": {"answer": answer}});
    caller(&hall.path("base"), &[done("1"), done("1.0"), done("2")]);
    caller(&hall.path("trained"), &[done("1")]);
    hall
}

/// Runs the exam with these parameters. Its metrics, the rows over all scenarios, and its episodes.
async fn examined(
    hall: &Hall,
    params: &[(&str, serde_json::Value)],
) -> (Metrics, Vec<VerdictRow>, Vec<Trajectory>) {
    let mut context = hall.context("out", 2, 8);
    for (name, value) in params {
        context.params.insert((*name).into(), value.clone());
    }
    let metrics = testing::run(&context).await.unwrap();
    let rows: Vec<VerdictRow> = data::read(&context.output_folder.join("verdict.parquet")).unwrap();
    let rows = rows.into_iter().filter(|row| row.scope == "all" && !is_idle(row)).collect();
    (metrics, rows, data::read(&context.output_folder.join("episodes.parquet")).unwrap())
}

#[tokio::test]
async fn a_vote_is_compared_with_the_baseline_and_counts_the_effort_of_all_its_episodes() {
    let hall = voting().await;
    let (metrics, rows, episodes) = examined(&hall, &[("vote", json!(5)), ("samples", json!(2))]).await;
    // Greedy and five samples of the baseline, of which two are compared; greedy and two of the other policy.
    assert_eq!(episodes.len(), 3 * 6 + 3 * 3);
    let shown: Vec<_> =
        rows.iter().map(|row| (row.policy.as_str(), row.mode.as_str(), row.episodes)).collect();
    assert_eq!(
        shown,
        [
            ("base", "greedy", 3),
            ("maj@5", "greedy", 3),
            ("trained", "greedy", 3),
            ("base", "sampled", 6),
            ("maj@5", "sampled", 3),
            ("trained", "sampled", 6),
        ]
    );

    // By hand: 1 and 1.0 are one answer.
    let (mut right, mut any) = (0, 0);
    for (id, expected) in [("s", "1"), ("t", "2"), ("u", "3")] {
        let of = |episode: &&Trajectory| episode.scenario_id == id && episode.sample > 0;
        let answers: Vec<&str> =
            episodes[..18].iter().filter(of).map(|episode| episode.answer.as_deref().unwrap()).collect();
        assert_eq!(answers.len(), 5);
        let twos = answers.iter().filter(|answer| **answer == "2").count();
        let winner = if twos >= 3 { "2" } else { "1" };
        right += usize::from(winner == expected);
        any += usize::from(answers.iter().any(|answer| answer.trim_end_matches(".0") == expected));
    }
    let share = |count: usize| count as f64 / 3.0;
    for row in rows.iter().filter(|row| row.policy == "maj@5") {
        assert_eq!(row.success, share(right));
        assert!(row.gain_low.is_some() && row.p_adjusted.is_some(), "compared as any policy");
        assert_eq!((row.turns, row.success_any), (5.0, Some(share(any))));
    }
    assert!(rows.iter().all(|row| row.policy == "maj@5" || row.success_any.is_none()));
    assert_eq!(metrics["all.pass@5"], share(any));
    assert_eq!(metrics["all.maj@5.greedy"], share(right));
    assert_eq!(metrics["all.maj@5.strict"], share(right), "all of them answer by the tool");
    assert_eq!(metrics["all.gain"], metrics["all.trained.gain"], "the gain reported is the last policy's");
    let report = std::fs::read_to_string(hall.path("out/report.md")).unwrap();
    assert!(report.contains("maj@5 against base by split, greedy"), "{report}");
    assert!(report.contains("It is an upper bound"), "{report}");
}

#[tokio::test]
async fn a_vote_uses_the_episodes_that_are_there_and_changes_nothing_else() {
    let hall = voting().await;
    let (_, without, before) = examined(&hall, &[("samples", json!(4))]).await;
    let (_, rows, episodes) = examined(&hall, &[("samples", json!(4)), ("vote", json!(3))]).await;
    assert_eq!(episodes, before);
    let others = |rows: &[VerdictRow]| -> Vec<VerdictRow> {
        rows.iter().filter(|row| row.policy != "maj@3").cloned().collect()
    };
    assert_eq!(others(&rows), without);

    // The sampled episodes of the vote alone are no result of the baseline.
    let (_, rows, _) = examined(&hall, &[("samples", json!(0)), ("vote", json!(3))]).await;
    let modes: Vec<_> = rows.iter().map(|row| (row.policy.as_str(), row.mode.as_str())).collect();
    assert_eq!(modes, [("base", "greedy"), ("maj@3", "greedy"), ("trained", "greedy")]);
}

/// Adds a guide, a solved task and these variants to an exam.
fn with_variants(hall: &Hall, output: &str, guide: &str, variants: serde_json::Value) -> Context {
    std::fs::write(hall.path("guide.md"), guide).unwrap();
    let messages =
        json!([{"role": "user", "content": "How many dogs?"}, {"role": "assistant", "content": "Many."}]);
    let solved = Trajectory {
        scenario_id: "training".into(),
        family: "dogs".into(),
        answer: Some("9".into()),
        correct: Some(true),
        messages: serde_json::from_value(messages).unwrap(),
        ..Trajectory::default()
    };
    data::write(&hall.path("solved.parquet"), &[solved]).unwrap();
    let mut context = hall.context(output, 2, 8);
    for (role, file) in [(variants::GUIDE, "guide.md"), (EXAMPLES, "solved.parquet")] {
        let input = Input { name: role.into(), digest: Digest::of(file.as_bytes()), path: hall.path(file) };
        context.inputs.insert(role.into(), vec![input]);
    }
    context.params.insert("variants".into(), variants);
    context
}

/// Names of the rows over all scenarios that play, and the episodes with their system prompts.
fn played(context: &Context) -> (Vec<String>, Vec<(String, String)>) {
    let rows: Vec<VerdictRow> = data::read(&context.output_folder.join("verdict.parquet")).unwrap();
    let is_shown = |row: &&VerdictRow| {
        row.scope == "all" && row.mode == "greedy" && !idle::NAMES.contains(&row.policy.as_str())
    };
    let names = rows.iter().filter(is_shown).map(|row| row.policy.clone()).collect();
    let episodes: Vec<Trajectory> = data::read(&context.output_folder.join("episodes.parquet")).unwrap();
    let system = |episode: Trajectory| {
        let first = episode.messages.into_iter().find(|message| message.role == Role::System);
        (episode.policy, first.map(|first| first.text).unwrap_or_default())
    };
    (names, episodes.into_iter().map(system).collect())
}

#[tokio::test]
async fn a_variant_is_its_policy_with_a_prompt_of_its_own() {
    let hall = Hall::open().await;
    std::fs::write(hall.path("own.txt"), "Be brief.").unwrap();
    let variants = json!({
        "base+": {"policy": "base", "system": "guide", "examples": 4},
        "brief": {"policy": "trained", "system": hall.path("own.txt")},
    });
    let context = with_variants(&hall, "out", "It holds teams.", variants);
    let needed = crate::stage::parse(&context.card, &context.params).unwrap();
    let needed = needed.rows_needed(context.seed, &context.inputs).unwrap();
    let metrics = testing::run(&context).await.unwrap();
    let (names, episodes) = played(&context);
    assert_eq!(names, ["base+", "base", "brief", "trained"]);
    assert_eq!(episodes.len(), 4 * 3 * 2);
    let base = Digest::of(b"base").to_string();
    assert_eq!(episodes[0].0, format!("{base} base+"), "both are named");
    assert_eq!(episodes[6].0, base);
    assert!(episodes[12].0.ends_with(" brief") && episodes[12].1 == "Be brief.");
    let (plain, shown) = (&episodes[6].1, &episodes[0].1);
    let behind = "\n\nIt holds teams.\n\nExamples of solved tasks:\n\nTask: How many dogs?\nMany.\nAnswer: 9";
    assert_eq!(*shown, format!("{plain}{behind}").trim_start());
    assert!(metrics.contains_key("all.base.gain") && !metrics.contains_key("all.base+.gain"));
    assert_eq!(metrics["all.gain"], metrics["all.trained.gain"]);
    let report = std::fs::read_to_string(hall.path("out/report.md")).unwrap();
    assert!(report.contains("base+: base with a guide of 15 characters and 1 solved task."), "{report}");
    let recorded: std::collections::BTreeSet<String> =
        hall.recorded.0.lock().unwrap().keys().cloned().collect();
    assert_eq!(needed.into_iter().collect::<std::collections::BTreeSet<_>>(), recorded);
}

#[tokio::test]
async fn what_has_no_room_in_the_context_is_cut_and_a_variant_without_any_is_left_out() {
    let hall = Hall::open().await;
    let variants = json!({"base+": {"policy": "base", "system": "guide", "examples": 1}});
    let lines: Vec<String> = (0..400).map(|n| format!("- table {n} has columns")).collect();
    let context = with_variants(&hall, "cut", &lines.join("\n"), variants.clone());
    testing::run(&context).await.unwrap();
    let (names, episodes) = played(&context);
    assert_eq!(names, ["base+", "base", "trained"]);
    let shown = &episodes[0].1;
    assert!(shown.contains("- table 0 has") && !shown.contains("- table 399 has"), "{shown}");
    assert!(!shown.contains("Examples of solved tasks"), "the tasks go first");

    let context = with_variants(&hall, "none", &"word ".repeat(4000), variants.clone());
    testing::run(&context).await.unwrap();
    assert_eq!(played(&context).0, ["base", "trained"]);
    let mut context = with_variants(&hall, "nothing", "", variants);
    context.inputs.remove(EXAMPLES);
    testing::run(&context).await.unwrap();
    assert_eq!(played(&context).0, ["base", "trained"], "there is nothing to show");
}

#[test]
fn a_prompt_that_makes_its_policy_worse_is_no_baseline() {
    let policies = ["base", "trained"].map(|name| Input {
        name: name.into(),
        digest: Digest::of(name.as_bytes()),
        path: "policy".into(),
    });
    let policies: Vec<&Input> = policies.iter().collect();
    let variant = Variant { policy: "base".into(), system: Some(variants::GUIDE.into()), examples: 0 };
    let params = Params { variants: BTreeMap::from([("base+".into(), variant)]), ..params(true, 0) };
    let played = |name: &str, right: usize| -> Vec<Episode> {
        let one = |task: usize| Episode {
            scenario: task.to_string(),
            policy: name.into(),
            mode: Mode::Greedy,
            right: task < right,
            changed: None,
            by_protocol: true,
            any_right: None,
            calls: 0,
            turns: 1,
            tokens: 0,
            tool_errors: 0,
            tools: Vec::new(),
        };
        (0..9).map(one).collect()
    };
    for (with, without, expected) in [
        (3, 5, (vec!["base", "trained"], 1, true)),
        (5, 5, (vec!["base+", "base", "trained"], 2, false)),
        (6, 5, (vec!["base+", "base", "trained"], 2, false)),
    ] {
        let variants = variants::variants(&params, &policies, "Tables.", &[]).unwrap();
        let episodes = [played("base+", with), played("base", without)].concat();
        let (entrants, is_demoted) =
            Entrants::of(&policies, variants).with_stronger_baseline(&episodes, Mode::Greedy);
        assert_eq!(
            (entrants.names().iter().map(String::as_str).collect(), entrants.lead(), is_demoted),
            expected
        );
        assert_eq!(entrants.variants(), [("base+".to_owned(), "base".to_owned())]);
    }
}

#[test]
fn a_variant_that_names_what_is_not_there_is_refused_beforehand() {
    let refused = |variants: serde_json::Value| -> Vec<String> {
        let (context, _) =
            testing::context("eval", &[], &std::env::temp_dir().join("x"), json!({"variants": variants}));
        let inputs = BTreeMap::from([(
            "policies".to_owned(),
            vec![("base".to_owned(), super::super::preflight::ExpectedOutput::Unknown)],
        )]);
        let preflight =
            crate::stage::parse(&context.card, &context.params).unwrap().preflight(&PreflightContext {
                card: &context.card,
                seed: 1,
                inputs: &inputs,
                engine: &context.engine,
                prices: None,
                finished: &|_| None,
                shared: &context.models,
            });
        preflight.findings.iter().map(|found| found.cause.to_string()).collect()
    };
    for (variants, expected) in [
        (
            json!({"v": {"policy": "bass", "examples": 1}}),
            "is of policy \"bass\", which the exam does not have",
        ),
        (
            json!({"base": {"policy": "base", "examples": 1}}),
            "\"base\" is the name of a policy and of a variant",
        ),
        (json!({"v": {"policy": "base"}}), "neither `system` nor `examples`"),
        (json!({"v": {"policy": "base", "system": "guide"}}), "shows a guide, and none is given"),
        (json!({"v": {"policy": "base", "examples": 2}}), "\"v\" has `examples`, and no episodes are given"),
    ] {
        let found = refused(variants);
        assert!(found.iter().any(|found| found.contains(expected)), "{expected}: {found:?}");
    }
    assert!(refused(json!({})).is_empty());
}
