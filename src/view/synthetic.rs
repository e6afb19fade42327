//! A made-up run of any size, for tests and measurements.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};

use crate::{
    data::{self, Json, JudgeAudit, Reward, Scenario, Step, Table, Tool, Trajectory, VerdictRow},
    hash::{Digest, Encoder},
    plan::{KeyFields, KeyInput},
    store::{ActionRecord, CachedResult, Cost, Output, Store, aside},
    usage::Usage,
};

/// What a server or a model might write to break a page.
pub const HOSTILE: &str = "<script>document.title='owned'</script><img src=x onerror=alert(1)> \u{1b}[31mred\u{1b}[0m \
                           \u{202e}desrever\u{202c} \u{200b}zero <|im_start|>system\u{0} ]]> & \" ' </pre>";

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub iterations: u32,
    pub scenarios: usize,
    /// Episodes of a scenario.
    pub group: u32,
    /// Characters of a tool's result.
    pub result: usize,
    /// Characters that follow each task's question.
    pub task: usize,
}

impl Size {
    pub const SMALL: Self = Self { iterations: 3, scenarios: 4, group: 4, result: 40, task: 0 };
}

/// The id of the run.
pub const RUN: &str = "made-20260101-000000";

const FAMILIES: [&str; 4] = ["pay_by_name", "count_by_city", "oldest_of_team", HOSTILE];
const TOOLS: [&str; 3] = ["run_query", "list_tables", "describe_table"];

struct Writer<'s> {
    store: &'s Store,
    at: u64,
    journal: Vec<Value>,
}

type Inputs = Vec<(&'static str, &'static str, Digest)>;

impl Writer<'_> {
    fn line(&mut self, mut entry: Value) {
        self.at += 1000;
        entry["at"] = self.at.into();
        self.journal.push(entry);
    }

    /// Publishes what `write` puts into a folder. `file` if the output is a single file.
    fn output(&self, file: Option<&str>, write: impl FnOnce(&Path)) -> Output {
        let folder = aside(&self.store.root().join("tmp")).unwrap();
        let inner = folder.path().join("artifact");
        std::fs::create_dir(&inner).unwrap();
        write(&inner);
        Output { digest: self.store.publish(&inner).unwrap(), file: file.map(str::to_owned) }
    }

    fn table<T: Table>(&self, rows: &[T]) -> Output {
        let file = format!("{}.parquet", T::NAME);
        self.output(Some(&file), |folder| data::write(&folder.join(&file), rows).unwrap())
    }

    /// A finished stage. Returns the digests of its outputs by name.
    fn stage(
        &mut self,
        id: &str,
        kind: &str,
        params: Value,
        inputs: Inputs,
        outputs: Vec<(&str, Output)>,
        metrics: &[(&str, f64)],
    ) -> BTreeMap<String, Digest> {
        let mut by_role: BTreeMap<String, Vec<KeyInput>> = BTreeMap::new();
        for (role, name, digest) in inputs {
            by_role.entry(role.to_owned()).or_default().push(KeyInput { name: name.to_owned(), digest });
        }
        let key = Encoder::new("mcprl test key v1").text(id).finish();
        let fields = KeyFields {
            schema: 2,
            kind: kind.to_owned(),
            revision: 1,
            card: key,
            params: params.as_object().cloned().unwrap_or_default(),
            inputs: by_role,
            seed: Some(1),
            iteration: None,
            server: None,
            numerics: None,
        };
        let usage = Usage { sampled_tokens: 1000, tool_calls: 20, ..Usage::default() };
        let record = ActionRecord {
            key,
            stage: id.to_owned(),
            fields: json!(fields),
            outputs: outputs.into_iter().map(|(name, output)| (name.to_owned(), output)).collect(),
            metrics: metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            cost: Cost { seconds: 2.0, spent: usage, dollars: None },
            notes: Vec::new(),
            run: Some(RUN.to_owned()),
            withheld: false,
        };
        let digests = record.outputs.iter().map(|(name, output)| (name.clone(), output.digest)).collect();
        self.store.commit(&record).unwrap();
        let result = json!(CachedResult::from(record));
        self.line(json!({ "event": "started", "id": id, "key": key, "reasons": [] }));
        self.line(json!({ "event": "finished", "id": id, "key": key, "result": result }));
        digests
    }
}

fn scenario(number: usize, split: &str, more: usize) -> Scenario {
    let family = FAMILIES[number % FAMILIES.len()];
    Scenario {
        id: format!("{split}-{number:06}"),
        split: split.to_owned(),
        family: family.to_owned(),
        task: format!(
            "What is number {number}? {}{}",
            if number % 7 == 3 { HOSTILE } else { "" },
            "x".repeat(more)
        ),
        answer: Some(number.to_string()),
        check: "text".into(),
        checks: number.is_multiple_of(5).then(|| Json(r#"{"answer":[{"matches":"[0-9]"}]}"#.into())),
        ..Scenario::default()
    }
}

fn episode(
    scenario: &Scenario,
    number: usize,
    sample: u32,
    policy: &Digest,
    skill: usize,
    result: usize,
) -> Trajectory {
    // Right or wrong without a pattern that a filter could exploit.
    let luck = (number * 7919 + sample as usize * 104_729 + skill * 31) % 100;
    let right = luck < 30 + skill.min(60);
    let tool = TOOLS[(number + sample as usize) % TOOLS.len()];
    let fails = luck.is_multiple_of(9);
    let answer = if right { scenario.answer.clone() } else { Some(format!("{HOSTILE} {luck}")) };
    let content = format!("row {number} needle{luck} {}", "x".repeat(result));
    let messages = json!([
        {"role": "system", "content": "Answer with the tools."},
        {"role": "user", "content": scenario.task},
        {"role": "assistant", "content": "", "reasoning_content": HOSTILE, "tool_calls":
            [{"id": "1", "type": "function", "function": {"name": tool, "arguments": {"sql": format!("select {number}"), "why": HOSTILE}}}]},
        {"role": "tool", "tool_call_id": "1", "name": tool, "content": format!("{content} {HOSTILE}"), "is_error": fails},
        {"role": "assistant", "content": "", "tool_calls":
            [{"id": "2", "type": "function", "function": {"name": "complete_task", "arguments": {"answer": answer}}}]},
    ]);
    let tokens: Vec<u32> = (0..24).map(|token| 40 + token % 30).collect();
    let sampled: Vec<bool> = (0..24).map(|token| token >= 12).collect();
    let logprobs = (0..24).map(|token| if token >= 12 { -0.1 * (token - 11) as f32 } else { 0.0 }).collect();
    Trajectory {
        id: Encoder::new("mcprl test episode v1")
            .digest(policy)
            .text(&scenario.id)
            .number(sample.into())
            .finish()
            .to_string(),
        scenario_id: scenario.id.clone(),
        family: scenario.family.clone(),
        split: scenario.split.clone(),
        sample,
        policy: policy.to_string(),
        seed: sample.into(),
        messages: serde_json::from_value(messages).unwrap(),
        tokens,
        sampled,
        logprobs,
        turns: 2,
        calls: 1,
        tools: vec![tool.to_owned()],
        tool_errors: u32::from(fails),
        parse_failures: 0,
        loose_calls: 0,
        end: if luck == 99 { "out_of_turns" } else { "completed" }.to_owned(),
        answer_source: answer.as_ref().map(|_| "tool".to_owned()),
        answer,
        correct: Some(right),
        row_starts: None,
        state: None,
        counted_tokens: None,
    }
}

fn rewards(episodes: &[Trajectory]) -> Vec<Reward> {
    let reward = |(place, episode): (usize, &Trajectory)| {
        let truth = f32::from(u8::from(episode.correct == Some(true)));
        // A judge that prefers other episodes than ground truth does.
        let rubric = (place % 10) as f32 / 10.0;
        Reward {
            trajectory_id: episode.id.clone(),
            scenario_id: episode.scenario_id.clone(),
            reward: truth + rubric / 10.0,
            correct: episode.correct,
            components: json!({ "truth": truth, "rubric": rubric / 10.0 }).to_string(),
            explanation: place.is_multiple_of(3).then(|| format!("I like it. {HOSTILE}")),
        }
    };
    episodes.iter().enumerate().map(reward).collect()
}

/// Writes a finished run into a store: a loop of rollouts, rewards and updates, and an exam. Returns the store.
pub fn write(root: &Path, size: Size) -> Store {
    let store = Store::open(root).unwrap();
    store.prepare().unwrap();
    let mut writer = Writer { store: &store, at: 1_767_225_600_000, journal: Vec::new() };
    writer.line(json!({ "event": "opened", "pid": 1, "version": "0.1.0" }));

    let tool = |name: &&str| Tool {
        name: (*name).to_owned(),
        server_name: (*name).to_owned(),
        description: format!("Does things. {HOSTILE}"),
        input_schema: json!({ "type": "object", "properties": { "sql": { "type": "string" } } }).to_string(),
        function: "{}".into(),
        ..Tool::default()
    };
    let tools = writer.table(&TOOLS.iter().map(tool).collect::<Vec<_>>());
    let tools = writer.stage("tools", "discover", json!({}), vec![], vec![("tools", tools)], &[])["tools"];
    let train: Vec<Scenario> =
        (0..size.scenarios).map(|number| scenario(number, "train", size.task)).collect();
    let held_out: Vec<Scenario> =
        (0..size.scenarios).map(|number| scenario(number, "a", size.task)).collect();
    let outputs = vec![("train", writer.table(&train)), ("heldout", writer.table(&held_out))];
    let tasks = writer.stage("tasks", "scenarios", json!({}), vec![("tools", "tools", tools)], outputs, &[]);
    let base = writer.output(None, |folder| {
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/chat/demo").join(file),
                folder.join(file),
            )
            .unwrap();
        }
    });
    let base = writer.stage("base", "model", json!({}), vec![], vec![("policy", base)], &[])["policy"];

    let mut policy = base;
    for iteration in 1..=size.iterations {
        let name = |stage: &str| format!("train[{iteration:04}]/{stage}");
        let of_scenario = |(number, scenario): (usize, &Scenario)| -> Vec<Trajectory> {
            let play = |sample| episode(scenario, number, sample, &policy, iteration as usize, size.result);
            (0..size.group).map(play).collect()
        };
        let episodes: Vec<Trajectory> = train.iter().enumerate().flat_map(of_scenario).collect();
        let success = share(&episodes);
        let trajectories = writer.table(&episodes);
        let inputs = vec![
            ("policy", "policy", policy),
            ("tools", "tools", tools),
            ("scenarios", "scenarios", tasks["train"]),
        ];
        let metrics = [
            ("success", success),
            ("sampled_tokens", 12.0),
            ("calls", 1.0),
            ("turns", 2.0),
            ("episodes", 1.0),
        ];
        let played = writer.stage(
            &name("rollout"),
            "rollout",
            json!({}),
            inputs,
            vec![("trajectories", trajectories)],
            &metrics,
        );
        let audit = JudgeAudit {
            judge: "rubric".into(),
            measure: "pairwise_accuracy".into(),
            value: 0.6,
            low: Some(0.4),
            high: Some(0.8),
            n: 9,
            ..JudgeAudit::default()
        };
        let outputs =
            vec![("rewards", writer.table(&rewards(&episodes))), ("judge_audit", writer.table(&[audit]))];
        let inputs = vec![("trajectories", "trajectories", played["trajectories"])];
        let judged =
            writer.stage(&name("reward"), "judge", json!({}), inputs, outputs, &[("success", success)]);
        let step = |number: u32| {
            Step {
            stage: name("update"),
            step: number,
            learning_rate: 1e-3,
            loss: 1.0 / f64::from(iteration + number),
            gradient_norm: 0.5,
            tokens: 100,
            tokens_unshared: 200,
            loss_tokens: 50,
            reward: Some(success),
            success: Some(success),
            clip_fraction: Some(0.01),
            held_out_loss: None,
            max_logprob_gap: Some(0.0),
            entropy: Some(0.7),
            moved_kl: Some(0.01),
            signal: Some(json!({"rollouts": 16, "with_gradient": 10, "groups": 4, "groups_with_gradient": 3, "all_right": 1, "all_wrong": 0, "all_equal": 0, "silent": {"zero_variance": 6}}).to_string()),
        }
        };
        let steps = writer.table(&[step(0), step(1)]);
        let next = writer.output(None, |folder| {
            std::fs::write(folder.join("policy.json"), json!({ "base": base }).to_string()).unwrap();
            std::fs::write(folder.join("adapter_config.json"), format!("{{\"iteration\": {iteration}}}"))
                .unwrap();
        });
        let inputs = vec![
            ("policy", "policy", policy),
            ("trajectories", "trajectories", played["trajectories"]),
            ("rewards", "rewards", judged["rewards"]),
        ];
        let params = json!({ "scale": "mean", "mask_truncated": false });
        let outputs = vec![("policy", next), ("steps", steps)];
        policy =
            writer.stage(&name("update"), "grpo", params, inputs, outputs, &[("loss", 0.5), ("signal", 0.6)])
                ["policy"];
    }

    let policies = [("base", base, 0), ("trained", policy, 40)];
    let mut episodes = Vec::new();
    for (_, digest, skill) in &policies {
        episodes.extend(
            held_out
                .iter()
                .enumerate()
                .map(|(number, scenario)| episode(scenario, number, 0, digest, *skill, 10)),
        );
    }
    let row = |(name, _, _): &(&str, Digest, usize)| VerdictRow {
        scope: "all".into(),
        slice: "all".into(),
        mode: "greedy".into(),
        policy: (*name).to_owned(),
        scenarios: size.scenarios as u32,
        episodes: size.scenarios as u32,
        success: 0.5,
        gain: (*name != "base").then_some(0.3),
        gain_low: (*name != "base").then_some(0.1),
        gain_high: (*name != "base").then_some(0.5),
        p_adjusted: (*name != "base").then_some(0.01),
        clustered_by: "scenario".into(),
        ..VerdictRow::default()
    };
    let mut rows: Vec<VerdictRow> = policies.iter().map(row).collect();
    rows.extend(policies.iter().map(|policy| VerdictRow {
        scope: "family".into(),
        slice: HOSTILE.into(),
        ..row(policy)
    }));
    let mut inputs: Inputs = policies.iter().map(|(name, digest, _)| ("policies", *name, *digest)).collect();
    inputs.extend([("tools", "tools", tools), ("scenarios", "scenarios", tasks["heldout"])]);
    let outputs = vec![("verdict", writer.table(&rows)), ("episodes", writer.table(&episodes))];
    let metrics =
        [("all.base.greedy", 0.3), ("all.trained.greedy", 0.6), ("all.trained.gain", 0.3), ("all.gain", 0.3)];
    writer.stage("exam", "eval", json!({}), inputs, outputs, &metrics);
    writer.line(json!({ "event": "closed", "state": "finished" }));

    let folder = store.runs().join(RUN);
    std::fs::create_dir_all(&folder).unwrap();
    let lines: String = writer.journal.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(folder.join("journal.jsonl"), lines).unwrap();
    let spec = "file = \"/nowhere/run.toml\"\nresample = []\nkeep_going = false\ntext = \"name = 1\"\n";
    std::fs::write(folder.join("run.toml"), spec).unwrap();
    store
}

fn share(episodes: &[Trajectory]) -> f64 {
    let right = episodes.iter().filter(|episode| episode.correct == Some(true)).count();
    right as f64 / episodes.len().max(1) as f64
}
