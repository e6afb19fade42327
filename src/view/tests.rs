use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::{
    data::{Call, Reward, Scenario, Step, Trajectory},
    eval::{Comparison, Episode, Mode, verdict},
    store::{ActionRecord, Cost, Output},
};

/// A store in which a test writes a run line by line.
pub(crate) struct TestRun {
    pub(crate) store: Store,
    journal: Vec<String>,
    _folder: tempfile::TempDir,
}

/// A stage to enter: its kind, inputs (role, name, digest) and outputs (port, digest).
#[derive(Default)]
struct Done<'a> {
    kind: &'a str,
    inputs: Vec<(&'a str, &'a str, Digest)>,
    outputs: Vec<(&'a str, Output)>,
    metrics: Value,
}

/// Of every stage. A run of an earlier mcprl may have a secret in them.
const PARAMS: &str = r#"{"samples": 1, "api_key": "s3cr3t", "args": ["--token", "s3cr3t"]}"#;

impl TestRun {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("cache")).unwrap();
        store.prepare().unwrap();
        Self {
            store,
            journal: vec![json!({"at": 1000, "event": "opened", "pid": 1, "version": "9.9"}).to_string()],
            _folder: folder,
        }
    }

    fn artifact(&self, write: impl FnOnce(&Path), file: &str) -> Output {
        let staged = tempfile::tempdir_in(self.store.root().join("tmp")).unwrap().keep();
        write(&staged.join(file));
        Output { digest: self.store.publish(&staged).unwrap(), file: Some(file.into()) }
    }

    fn table<T: Table>(&self, rows: &[T]) -> Output {
        self.artifact(|path| data::write(path, rows).unwrap(), &format!("{}.parquet", T::NAME))
    }

    /// Enters the record of a finished stage and its lines in the journal.
    fn finished(&mut self, node: &str, done: Done<'_>) {
        let key = Digest::of(node.as_bytes());
        let mut inputs = BTreeMap::<&str, Vec<Value>>::new();
        for (role, name, digest) in &done.inputs {
            inputs.entry(role).or_default().push(json!({"name": name, "digest": digest}));
        }
        let fields = json!({
            "schema": 2, "kind": done.kind, "revision": 1, "card": key, "params": PARAMS.parse::<Value>().unwrap(), "inputs": inputs,
            "seed": 1, "iteration": null, "server": null, "numerics": null,
        });
        let outputs: BTreeMap<String, Output> =
            done.outputs.into_iter().map(|(port, output)| (port.to_owned(), output)).collect();
        let metrics: BTreeMap<String, f64> = serde_json::from_value(done.metrics).unwrap_or_default();
        let cost = Cost { seconds: 2.5, ..Cost::default() };
        let record = ActionRecord {
            key,
            stage: node.into(),
            fields,
            outputs: outputs.clone(),
            metrics: metrics.clone(),
            cost,
            notes: Vec::new(),
            run: Some("r".into()),
            withheld: false,
        };
        self.store.enter(&record).unwrap();
        let at = 2000 + 10 * self.journal.len();
        self.line(json!({"at": at, "event": "started", "id": node, "key": key, "reasons": []}));
        let result = json!({"outputs": outputs, "metrics": metrics, "cost": cost});
        self.line(json!({
            "at": at + 5, "event": "finished", "id": node, "key": key, "result": result,
        }));
    }

    /// Enters an exam with this verdict.
    pub(crate) fn examined(&mut self, rows: &[data::VerdictRow]) {
        let outputs = vec![("verdict", self.table(rows))];
        let metrics = json!({"all.base.greedy": 0.5});
        self.finished("exam", Done { kind: "eval", outputs, metrics, ..Done::default() });
    }

    pub(crate) fn line(&mut self, line: Value) {
        self.journal.push(line.to_string());
    }

    pub(crate) fn run(&self) -> Run {
        let folder = self.store.runs().join("r");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("journal.jsonl"), self.journal.join("\n") + "\n").unwrap();
        Run::open(&self.store, "latest").unwrap()
    }

    pub(crate) fn sweep(&self, output: &Output) {
        let folder = self.store.artifact(&output.digest);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn no_view_of_a_run_has_a_secret_of_its_parameters() {
    let mut made = TestRun::new();
    made.finished("tools", Done { kind: "discover", ..Done::default() });
    let run = made.run();
    assert_eq!(json!(run.stages[0].params), json!({"samples": 1, "api_key": "…", "args": ["--token", "…"]}));
    assert!(!json!(run).to_string().contains("s3cr3t"));
}

fn tools() -> Vec<Tool> {
    let tool = |name: &str| Tool {
        name: name.into(),
        server_name: name.into(),
        input_schema: "{}".into(),
        function: "{}".into(),
        ..Tool::default()
    };
    vec![tool("look"), tool("never")]
}

fn scenario(id: &str) -> Scenario {
    Scenario {
        id: id.into(),
        split: "a".into(),
        family: "f".into(),
        task: format!("Task {id}?"),
        answer: Some("1".into()),
        check: "number".into(),
        ..Scenario::default()
    }
}

/// An episode in which the first call fails and the second does not.
fn episode(scenario: &str, policy: &Digest, sample: u32, right: bool) -> Trajectory {
    let messages = json!([
        {"role": "user", "content": format!("Task {scenario}?")},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}]},
        {"role": "tool", "tool_call_id": "1", "name": "look", "content": "no such row 17", "is_error": true},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "2", "type": "function", "function": {"name": "look", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "2", "name": "look", "content": "one"},
        {"role": "assistant", "content": "done"},
    ]);
    Trajectory {
        id: format!("{scenario}-{}-{sample}", policy.short()),
        scenario_id: scenario.into(),
        family: "f".into(),
        split: "a".into(),
        sample,
        policy: policy.to_string(),
        messages: serde_json::from_value(messages).unwrap(),
        turns: 3,
        calls: 2,
        tools: vec!["look".into(); 2],
        tool_errors: 1,
        end: "completed".into(),
        answer: Some(if right { "1" } else { "2" }.into()),
        correct: Some(right),
        ..Trajectory::default()
    }
}

pub(crate) struct Parts {
    pub(crate) made: TestRun,
    pub(crate) rollout: Output,
    pub(crate) verdict: Output,
    pub(crate) episodes: Output,
}

/// A run with one iteration and an exam in which `b` is won, `c` is lost and `a` stays right.
pub(crate) fn parts(with_calls: bool) -> Parts {
    let mut made = TestRun::new();
    let (base, trained) = (Digest::of(b"base"), Digest::of(b"trained"));
    let tools_table = made.table(&tools());
    let scenarios = ["a", "b", "c"].map(scenario);
    let tasks = made.table(&scenarios);
    let rollouts: Vec<Trajectory> = (0..4).map(|sample| episode("a", &base, sample, sample < 3)).collect();
    let rollout = made.table(&rollouts);
    let rewards: Vec<Reward> = rollouts
        .iter()
        .map(|row| Reward { trajectory_id: row.id.clone(), reward: 0.5, ..Reward::default() })
        .collect();
    let signal = json!({"rollouts": 4, "with_gradient": 4, "groups": 1, "groups_with_gradient": 1, "all_right": 0, "all_wrong": 0, "all_equal": 0, "silent": {}});
    let step = |step, loss| Step {
        step,
        loss,
        entropy: Some(1.0),
        signal: Some(signal.to_string()),
        ..Step::default()
    };
    let outcomes = [(&base, [true, false, true]), (&trained, [true, true, false])];
    let exam: Vec<Trajectory> = outcomes
        .iter()
        .flat_map(|(policy, right)| {
            ["a", "b", "c"].into_iter().zip(right).map(|(id, right)| episode(id, policy, 0, *right))
        })
        .collect();
    let names = ["base".to_owned(), "trained".to_owned()];
    let of_verdict: Vec<Episode> = exam
        .iter()
        .map(|row| Episode {
            changed: None,
            scenario: row.scenario_id.clone(),
            policy: names[usize::from(row.policy != base.to_string())].clone(),
            mode: Mode::Greedy,
            right: row.correct == Some(true),
            by_protocol: true,
            any_right: None,
            calls: 2,
            turns: 3,
            tokens: 9,
            tool_errors: 1,
            tools: row.tools.clone(),
        })
        .collect();
    let comparison = Comparison {
        policies: &names,
        scenarios: &scenarios,
        tools: &["look".to_owned()],
        ..Default::default()
    };
    let verdict = made.table(&verdict(&comparison, &of_verdict));
    let episodes = made.table(&exam);
    let rewards = made.table(&rewards);
    let steps = made.table(&[step(0, 1.0), step(1, 3.0)]);
    made.finished(
        "tools",
        Done { kind: "discover", outputs: vec![("tools", tools_table.clone())], ..Done::default() },
    );
    made.finished(
        "tasks",
        Done { kind: "scenarios", outputs: vec![("heldout", tasks.clone())], ..Done::default() },
    );
    let mut outputs = vec![("trajectories", rollout.clone())];
    if with_calls {
        let calls: Vec<Call> =
            rollouts.iter().flat_map(|row| data::calls::calls(&row.into(), &Default::default())).collect();
        outputs.push(("calls", made.table(&calls)));
    }
    made.finished(
        "train[0001]/rollout",
        Done {
            kind: "rollout",
            inputs: vec![("tools", "tools", tools_table.digest), ("policy", "policy", base)],
            outputs,
            metrics: json!({"success": 0.75, "turns": 3.0, "ended_out_of_turns": 0.25, "ended_completed": 0.75,
                "answered_as_text": 0.25, "form_template": 0.5}),
        },
    );
    made.finished(
        "train[0001]/reward",
        Done { kind: "judge", outputs: vec![("rewards", rewards)], ..Done::default() },
    );
    made.finished(
        "train[0001]/update",
        Done {
            kind: "grpo",
            outputs: vec![("steps", steps)],
            metrics: json!({"signal": 1.0, "loss": 3.0}),
            ..Done::default()
        },
    );
    made.finished("exam", Done {
        kind: "eval",
        inputs: vec![
            ("policies", "base", base),
            ("policies", "trained", trained),
            ("tools", "tools", tools_table.digest),
            ("scenarios", "scenarios", tasks.digest),
        ],
        outputs: vec![("verdict", verdict.clone()), ("episodes", episodes.clone())],
        metrics: json!({"all.base.greedy": 0.6, "all.trained.greedy": 0.6, "all.gain": 0.0, "all.trained.gain": 0.0}),
    });
    Parts { made, rollout, verdict, episodes }
}

#[test]
fn a_run_has_its_stages_with_times_edges_and_iterations() {
    let mut made = parts(true).made;
    made.line(json!({"at": 9000, "event": "closed", "state": "finished"}));
    let run = made.run();
    assert_eq!(
        (run.state, run.versions.as_slice(), run.ended_ms),
        (RunState::Finished, &["9.9".to_owned()][..], Some(9000))
    );
    let ids: Vec<&str> = run.stages.iter().map(|stage| stage.id.as_str()).collect();
    assert_eq!(
        ids,
        ["tools", "tasks", "train[0001]/rollout", "train[0001]/reward", "train[0001]/update", "exam"]
    );
    let rollout = run.stage("train[0001]/rollout").unwrap();
    assert_eq!(
        (rollout.name.as_str(), rollout.iteration.clone()),
        ("train/rollout", Some(("train".into(), 1)))
    );
    assert_eq!((rollout.state, rollout.seconds), (StageState::Ran, Some(2.5)));
    assert!(rollout.started_ms < rollout.ended_ms);
    let tools = rollout.inputs.iter().find(|edge| edge.role == "tools").unwrap();
    assert_eq!(tools.from.as_deref(), Some("tools.tools"));
    assert_eq!((run.loops.len(), run.loops[0].iterations[0].stages.len()), (1, 3));
    assert_eq!(run.tools(rollout).unwrap().len(), 2);
    assert!(run.gone().is_empty());
}

#[test]
fn a_curve_has_the_means_of_an_iteration_and_an_interval_by_scenario() {
    let parts = parts(true);
    let run = parts.made.run();
    let curves = curves::curves(&run);
    let point = &curves.loops[0].points[0];
    let interval = point.interval.unwrap();
    assert_eq!((point.success, interval.of, point.reward), (Some(0.75), 4, Some(0.5)));
    assert!(interval.low < 0.75 && interval.high > 0.75);
    assert_eq!((point.loss, point.entropy, point.signal_share), (Some(2.0), Some(1.0), Some(1.0)));
    assert_eq!(point.signal.as_ref().map(|signal| signal.with_gradient), Some(4));
    assert_eq!((point.seconds, point.truncated, point.steps.len()), (Some(7.5), Some(0.25), 2));
    assert_eq!((point.template_calls, point.tool_answers), (Some(0.5), Some(0.5)));
}

#[test]
fn an_exam_pairs_the_episodes_of_a_scenario_and_names_the_change() {
    let parts = parts(true);
    let run = parts.made.run();
    let exams = exam::exams(&run);
    assert_eq!(
        (exams.len(), exams[0].policies.as_slice()),
        (1, &["base".to_owned(), "trained".to_owned()][..])
    );
    let pairs = exams[0].pairs(&run).unwrap();
    let shown: Vec<_> = pairs
        .iter()
        .map(|pair| (pair.scenario.as_str(), pair.change, pair.base.position, pair.other.position))
        .collect();
    use exam::Change::{Lost, StillRight, Won};
    assert_eq!(shown, [("a", StillRight, 0, 3), ("b", Won, 1, 4), ("c", Lost, 2, 5)]);
    assert_eq!((pairs[1].base.answer.as_deref(), pairs[1].other.answer.as_deref()), (Some("2"), Some("1")));
    assert_eq!((pairs[1].task.as_deref(), pairs[1].expected.as_deref()), (Some("Task b?"), Some("1")));
}

#[test]
fn calls_are_counted_by_tool_also_where_a_run_has_no_table_of_them() {
    let mut found = Vec::new();
    for with_calls in [true, false] {
        let parts = parts(with_calls);
        let run = parts.made.run();
        let rollout = run.stage("train[0001]/rollout").unwrap();
        let calls = calls::of_stage(&run, rollout).unwrap();
        assert_eq!(calls.len(), 8);
        let outcomes: Vec<data::OutcomeRow> = rollout.table().unwrap();
        found.push(calls::by_tool(&run.tools(rollout).unwrap(), outcomes.iter(), &calls));
    }
    assert_eq!(found[0], found[1]);
    let (look, never) = (&found[0][0], &found[0][1]);
    assert_eq!((look.calls, look.failed, look.recovered, look.episodes, look.right), (8, 4, 4, 4, 3));
    assert_eq!((look.errors.get("tool"), look.result_bytes), (Some(&4), Some(3.0)));
    assert_eq!((never.calls, never.offered), (0, true));
}

#[test]
fn what_a_sweep_removed_is_named_and_the_rest_is_shown() {
    let Parts { made, rollout, verdict, episodes } = parts(false);
    made.sweep(&rollout);
    made.sweep(&episodes);
    let run = made.run();
    assert_eq!(run.gone(), ["train[0001]/rollout.trajectories", "exam.episodes"]);
    let point = &curves::curves(&run).loops[0].points[0];
    assert_eq!((point.success, point.interval), (Some(0.75), None), "the metric is in the journal");
    assert_eq!(exam::exams(&run)[0].pairs(&run).unwrap_err(), Missing::Gone);
    let stage = run.stage("train[0001]/rollout").unwrap();
    assert_eq!(calls::of_stage(&run, stage).unwrap_err(), Missing::Gone);
    made.sweep(&verdict);
    let run = made.run();
    assert_eq!(exam::exam(run.stage("exam").unwrap()).unwrap_err(), Missing::Gone);
}

#[test]
fn a_damaged_table_is_not_shown() {
    let Parts { made, rollout, .. } = parts(false);
    let table = made.store.path(&rollout);
    let mut bytes = std::fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::remove_file(&table).unwrap();
    std::fs::write(&table, bytes).unwrap();
    let run = made.run();
    assert_eq!(run.gone(), ["train[0001]/rollout.trajectories"]);
    let stage = run.stage("train[0001]/rollout").unwrap();
    assert_eq!(stage.table::<data::OutcomeRow>().unwrap_err(), Missing::Gone);
}

#[test]
fn a_run_without_records_is_read_from_its_journal() {
    let Parts { made, .. } = parts(false);
    std::fs::remove_dir_all(made.store.root().join("ac")).unwrap();
    let run = made.run();
    assert!(run.stages.iter().all(|stage| stage.kind.is_none()));
    let pairs = exam::exams(&run)[0].pairs(&run).unwrap();
    assert_eq!((pairs[1].change, pairs[1].task.as_deref()), (exam::Change::Won, Some("Task b?")));
}

#[test]
fn a_stopped_run_has_an_unfinished_stage() {
    let mut made = TestRun::new();
    let key = Digest::of(b"x");
    made.line(
        json!({"at": 2000, "event": "started", "node": "train[0001]/rollout", "key": key, "reasons": []}),
    );
    let run = made.run();
    assert_eq!((run.state, run.stages[0].state), (RunState::Killed, StageState::Unfinished));
    assert_eq!(run.loops[0].iterations[0].state, StageState::Unfinished);
    assert_eq!(curves::curves(&run).loops[0].points[0].success, None);
    assert!(exam::exams(&run).is_empty());
    assert!(serde_json::to_string(&run).is_ok());
}

#[test]
fn stages_that_have_not_begun_follow_from_the_run_file() {
    let made = parts(true).made;
    let file = made.store.root().join("demo.toml");
    let text = "name = \"demo\"\n[server]\ncommand = [\"x\"]\nstate = \"read-only\"\n[stages.tools]\nkind = \"discover\"\n[stages.more]\nkind = \"scenarios\"\ntools = \"tools\"\nsource = \"grounded\"\nfamilies = \"demo.families.toml\"\n";
    std::fs::write(&file, text).unwrap();
    std::fs::write(made.store.root().join("demo.families.toml"), "").unwrap();
    let spec = crate::exec::RunSpec {
        extended: Vec::new(),
        file,
        stages: None,
        resample: Vec::new(),
        until: Vec::new(),
        keep_going: false,
        overrides: crate::plan::Overrides::default(),
        text: text.into(),
        is_trial: false,
    };
    std::fs::create_dir_all(made.store.runs().join("r")).unwrap();
    std::fs::write(made.store.runs().join("r/run.toml"), toml::to_string(&spec).unwrap()).unwrap();
    let run = made.run().with_pending(&made.store);
    let more = run.stage("more").unwrap();
    assert_eq!((more.state, more.kind.as_deref()), (StageState::Pending, Some("scenarios")));
    assert_eq!(more.inputs[0].from.as_deref(), Some("tools.tools"));
    assert_eq!((run.stages[0].id.as_str(), run.file.as_deref()), ("tools", Some("demo.toml")));
    assert!(run.stage("exam").is_some(), "a stage that the file no longer has is kept");
}

#[test]
fn a_conversation_marks_the_results_that_are_errors() {
    let row = episode("a", &Digest::of(b"p"), 0, true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    data::write(&path, &[row]).unwrap();
    let episodes: Vec<data::EpisodeRow> = data::read(&path).unwrap();
    let shown = episode::shown(episodes[0].messages.clone());
    let errors: Vec<_> = shown.iter().map(|message| message.error).collect();
    assert_eq!(errors, [None, None, Some("tool"), None, None, None]);
    let call = &shown[1].calls[0];
    assert_eq!((call.name.as_str(), call.arguments.text.as_str()), ("look", "{\n  \"at\": 1\n}"));
    assert_eq!((shown[2].name.as_deref(), shown[2].clipped_from), (Some("look"), None));
}

#[test]
fn a_reference_solution_has_the_tokenizer_it_was_written_with_and_no_log_probabilities() {
    let mut made = TestRun::new();
    let base = Digest::of(b"base");
    let solved = Trajectory {
        policy: data::REFERENCE.into(),
        tokens: vec![1, 2, 3],
        sampled: vec![false, true, true],
        logprobs: vec![0.0; 3],
        ..episode("a", &base, 0, true)
    };
    let outputs = vec![("trajectories", made.table(&[solved]))];
    let inputs = vec![("policy", "policy", base), ("tools", "tools", made.table(&tools()).digest)];
    made.finished("solved", Done { kind: "demonstrations", inputs, outputs, ..Done::default() });
    let run = made.run();
    assert!(!run.stage("solved").unwrap().is_played(), "no policy played them");
    let episodes = episodes::EpisodeCache::default().episodes(episodes::sources(&run));
    let table = &episodes.tables[0];
    let found = &table.episodes[0];
    assert_eq!(table.policy_name(&found.summary.policy), "reference");
    assert_eq!(table.writer_of(&found.summary.policy), base.to_string());
    let page = tokens::tokens(table, 0, found, Err("none".into()), 0, 10).unwrap();
    assert_eq!((page.sampled_count, page.mean_logprob, page.logprobs), (2, None, vec![None; 3]));
    assert_eq!(page.sampled, [false, true, true]);
}

#[test]
fn sample_0_of_an_exam_is_greedy_where_the_verdict_has_greedy_rows() {
    let row = |mode: Mode| data::VerdictRow { mode: mode.name().into(), ..data::VerdictRow::default() };
    let modes =
        |rows: &[data::VerdictRow]| [0, 1].map(|sample| exam::Counted::of(rows.iter()).mode_of(sample));
    assert_eq!(modes(&[row(Mode::Greedy), row(Mode::Sampled)]), [Mode::Greedy, Mode::Sampled]);
    assert_eq!(modes(&[row(Mode::Sampled)]), [Mode::Sampled, Mode::Sampled]);
}

#[test]
fn a_failure_counts_once_in_the_mode_and_on_the_tasks_of_the_headline() {
    let row = |slice: &str, mode: Mode| data::VerdictRow {
        scope: "split".into(),
        slice: slice.into(),
        mode: mode.name().into(),
        ..data::VerdictRow::default()
    };
    let episode =
        |split: &str, sample| data::OutcomeRow { split: split.into(), sample, ..data::OutcomeRow::default() };
    let both = [row("unseen_entities", Mode::Greedy), row("unseen_phrasings", Mode::Sampled)];
    let counted = exam::Counted::of(both.iter());
    assert!(counted.episode(&episode("unseen_entities", 0)));
    assert!(!counted.episode(&episode("unseen_entities", 1)), "sampled");
    assert!(!counted.episode(&episode("unseen_phrasings", 0)), "a trained case in other words");
    let only = [row("unseen_phrasings", Mode::Sampled)];
    assert!(exam::Counted::of(only.iter()).episode(&episode("unseen_phrasings", 1)), "there are no others");
}
