//! A project of toy stages, written as shell scripts, and the real binary to run it.
//!
//! Every script adds its stage's name to `log`, so that a test knows which stages ran.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use axum::{Json, Router, http::StatusCode, response::IntoResponse, routing::post};
use candle_core::{Device, Tensor};
use mcprl::model::{Decoder, Init, ModelConfig, read_safetensors, write_safetensors};
use serde_json::{Value, json};

/// The time in which what a test waits for comes, on any machine. Nothing takes as long unless it is broken.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a condition; fails if it does not come.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// [`until`] for a test that shares its thread with what it waits for.
pub async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a process runs. A killed one has an entry until it is reaped.
pub fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A run file of toy stages, one after another.
pub const CHAIN: &str = r#"
name = "toy"

[stages.start]
kind = "gen"
value = 4

[stages.middle]
kind = "half"
from = "start"

[stages.end]
kind = "step"
from = "middle"
"#;

/// Twenty steps of 30 ms after one another.
pub const SLOW: &str = r#"
name = "toy"

[stages.start]
kind = "gen"

[loop.count]
iterations = 20
carry = { number = "start" }

[loop.count.stages.step]
kind = "step"
from = "@number"
sleep = 0.03
yields = "number"

[stages.end]
kind = "half"
from = "count.number"
"#;

/// Sections of a run file: the demo server, its tools, and tasks from `tasks.jsonl`.
pub const DEMO: &str = r#"
[server]
command = ["{mcprl}", "demo-server", "sqlite"]
state = "read-only"

[stages.tools]
kind = "discover"

[stages.tasks]
kind = "scenarios"
tools = "tools"
source = "file"
file = "tasks.jsonl"
"#;

/// A run file: episodes of the model `llama` on the demo server, with these settings of their stage `rollout`.
pub fn episodes_run(settings: &str) -> String {
    format!(
        r#"name = "demo"
seed = 3
model = "llama"
{DEMO}
[stages.rollout]
kind = "rollout"
policy = "base"
tools = "tools"
scenarios = "tasks.train"
{settings}
"#
    )
}

/// Like [`episodes_run`], with short episodes, followed by rewards, an update and an exam.
pub fn training_run(settings: &str) -> String {
    let rest = r#"
[stages.reward]
kind = "judge"
trajectories = "rollout"
scenarios = "tasks.train"

[stages.update]
kind = "grpo"
policy = "base"
trajectories = "rollout"
rewards = "reward"

[stages.exam]
kind = "eval"
policies = { base = "base", trained = "update" }
tools = "tools"
scenarios = "tasks.heldout"
max_turns = 2
max_turn_tokens = 6
"#;
    episodes_run(&format!("{settings}\nmax_turns = 2\nmax_turn_tokens = 6")) + rest
}

/// The URL of a judge that replies with these scores to a request; without scores it is busy.
pub fn judge(scores: impl Fn(&Value) -> Option<Vec<Value>> + Clone + Send + Sync + 'static) -> String {
    let reply = move |Json(request): Json<Value>| {
        let scores = scores(&request);
        async move {
            let Some(scores) = scores else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
            let content = json!({ "scores": scores }).to_string();
            Json(json!({ "choices": [{ "message": { "role": "assistant", "content": content } }] }))
                .into_response()
        }
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, Router::new().route("/v1/chat/completions", post(reply))).await.unwrap();
        });
    });
    format!("http://{address}/v1")
}

pub struct Project {
    folder: tempfile::TempDir,
}

pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

const NOTE: &str = "sed -n 's/^{.*\"stage\":\"\\([^\"]*\\)\".*/\\1/p' \"$MCPRL_STAGE\" >> \"$TOY_LOG\"\n";

impl Project {
    /// Kinds: `gen` (a number), `step` (adds one), `half` (pure), `sum` (several), `copy` (a file), `draw` (external),
    /// `gate` (adds one, once [`Project::open_gate`] was called or the project is gone).
    pub fn new(run_file: &str) -> Self {
        let project = Self { folder: tempfile::tempdir().unwrap() };
        let number = "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";
        let from = "[inputs.from]\ntype = \"number\"\n";
        project.kind(
            "gen",
            "seeded",
            &format!("[params.value]\ntype = \"integer\"\ndefault = 1\nmin = 0\nmax = 1000\n{number}"),
            "sed -n 's/.*\"value\":\\([0-9]*\\).*/\\1/p' \"$MCPRL_STAGE\" > \"$MCPRL_OUTPUT_NUMBER\"",
        );
        project.kind(
            "step",
            "seeded",
            &format!("{from}[params.sleep]\ntype = \"number\"\ndefault = 0\n{number}[metrics]\nvalue = \"The number.\"\n"),
            "sleep $(sed -n 's/.*\"sleep\":\\([0-9.]*\\).*/\\1/p' \"$MCPRL_STAGE\")\n\
             n=$(($(cat \"$MCPRL_INPUT_FROM\") + 1))\n\
             echo $n > \"$MCPRL_OUTPUT_NUMBER\"\n\
             echo \"{\\\"value\\\": $n}\" > \"$MCPRL_METRICS\"",
        );
        project.kind(
            "gate",
            "seeded",
            &format!("{from}{number}"),
            "until [ -e \"$TOY_LOG.go\" ] || [ ! -d \"${TOY_LOG%/*}\" ]; do sleep 0.02; done\n\
             echo $(($(cat \"$MCPRL_INPUT_FROM\") + 1)) > \"$MCPRL_OUTPUT_NUMBER\"",
        );
        project.kind(
            "half",
            "pure",
            &format!("{from}{number}"),
            "echo $(($(cat \"$MCPRL_INPUT_FROM\") / 2)) > \"$MCPRL_OUTPUT_NUMBER\"",
        );
        project.kind(
            "sum",
            "pure",
            &format!("[inputs.parts]\ntype = \"number\"\nmany = true\n[outputs.report]\ntype = \"report\"\npath = \"report.md\"\n{number}"),
            "echo $(($(cat \"$MCPRL_INPUT_PARTS_LEFT\") + $(cat \"$MCPRL_INPUT_PARTS_RIGHT\"))) > \"$MCPRL_OUTPUT_NUMBER\"\n\
             echo \"the sum is $(cat \"$MCPRL_OUTPUT_NUMBER\")\" > \"$MCPRL_OUTPUT_REPORT\"",
        );
        project.kind(
            "copy",
            "pure",
            &format!("[params.file]\ntype = \"file\"\n[params.mode]\ntype = \"string\"\ndefault = \"plain\"\nchoices = [\"plain\", \"fancy\"]\n{number}"),
            "cat \"$(sed -n 's/.*\"file\":\"\\([^\"]*\\)\".*/\\1/p' \"$MCPRL_STAGE\")\" > \"$MCPRL_OUTPUT_NUMBER\"",
        );
        project.kind("draw", "external", number, "date +%N > \"$MCPRL_OUTPUT_NUMBER\"");
        project.write("run.toml", run_file);
        project
    }

    /// With a model `llama` and a file `tasks.jsonl`.
    pub fn with_model(run_file: &str) -> Self {
        let project = Self::new(run_file);
        project.llama(1);
        project.ten_tasks();
        project
    }

    pub fn kind(&self, kind: &str, determinism: &str, card: &str, script: &str) {
        let head = format!(
            "kind = \"{kind}\"\nrevision = 1\nabout = \"A toy.\"\ndeterminism = \"{determinism}\"\n\
             command = [\"sh\", \"-e\", \"run.sh\"]\n"
        );
        self.write(&format!("stages/{kind}/card.toml"), &(head + card));
        self.write(&format!("stages/{kind}/run.sh"), &format!("{NOTE}{script}\n"));
    }

    /// A folder `llama`: a tiny random Llama with a tokenizer and chat template.
    pub fn llama(&self, seed: u64) {
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
        let folder = self.path("llama");
        std::fs::create_dir_all(&folder).unwrap();
        let config = std::fs::read(reference.join("fixtures/families/llama/config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        config["vocab_size"] = json!(407);
        config["max_position_embeddings"] = json!(4096);
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let config = ModelConfig::load(&folder).unwrap();
        Decoder::random(config, Init { seed, deviation: 0.1 }).unwrap().save(&folder).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            std::fs::copy(reference.join("chat/qwen3").join(name), folder.join(name)).unwrap();
        }
    }

    /// A folder with a model that replies to everything with this text, which is one token of its tokenizer. Its layers add
    /// nothing, so a token alone decides the next.
    pub fn replier(&self, name: &str, reply: &str) {
        const REPLY: usize = 407;
        const END_OF_TURN: usize = 402;
        let folder = self.path(name);
        std::fs::create_dir_all(&folder).unwrap();
        let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/chat/qwen3");
        for name in ["tokenizer_config.json", "chat_template.jinja"] {
            std::fs::copy(chat.join(name), folder.join(name)).unwrap();
        }
        let mut tokenizer: Value =
            serde_json::from_slice(&std::fs::read(chat.join("tokenizer.json")).unwrap()).unwrap();
        tokenizer["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": REPLY, "content": reply, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
        std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();

        let llama =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures/families/llama/config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(llama).unwrap()).unwrap();
        config["vocab_size"] = json!(REPLY + 1);
        config["max_position_embeddings"] = json!(8192);
        config["tie_word_embeddings"] = json!(false);
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let config = ModelConfig::load(&folder).unwrap();
        let (vocabulary, hidden) = (config.vocabulary, config.hidden);
        Decoder::random(config, Init { seed: 1, deviation: 0.0 }).unwrap().save(&folder).unwrap();
        let mut embedding = vec![0.0_f32; vocabulary * hidden];
        let mut head = embedding.clone();
        for token in 0..vocabulary {
            embedding[token * hidden + usize::from(token == REPLY)] = 1.0;
        }
        head[REPLY * hidden] = 30.0;
        head[END_OF_TURN * hidden + 1] = 30.0;
        let path = folder.join("model.safetensors");
        let mut tensors = read_safetensors(&path).unwrap();
        for (name, values) in [("model.embed_tokens.weight", embedding), ("lm_head.weight", head)] {
            let tensor = Tensor::from_vec(values, (vocabulary, hidden), &Device::Cpu).unwrap();
            assert!(tensors.insert(name.into(), tensor).is_some(), "{name}");
        }
        write_safetensors(&path, &tensors).unwrap();
    }

    /// A file `tasks.jsonl`.
    pub fn ten_tasks(&self) {
        let task =
            |i: usize| format!("{{\"task\": \"How many projects has team {i}?\", \"answer\": \"{i}\"}}\n");
        self.write("tasks.jsonl", &(0..10).map(task).collect::<String>());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Replaces the first occurrence of `from` in a file.
    pub fn replace(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "{name}: {from}");
        self.write(name, &text.replacen(from, to, 1));
    }

    pub fn read(&self, name: impl AsRef<Path>) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcprl"));
        command.args(arguments).current_dir(self.folder.path()).env("TOY_LOG", self.path("log"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MCPRL_")) {
            command.env_remove(name);
        }
        command
    }

    pub fn mcprl(&self, arguments: &[&str]) -> CommandOutput {
        output(&mut self.command(arguments))
    }

    /// Runs and expects success.
    pub fn run(&self, more: &[&str]) -> CommandOutput {
        let arguments: Vec<&str> = ["run", "run.toml"].iter().chain(more).copied().collect();
        let output = self.mcprl(&arguments);
        assert_eq!(output.code, Some(0), "{}", output.err);
        output
    }

    /// What a command prints with `--json`.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.mcprl(&[arguments, &["--json"]].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
        serde_json::from_str(&output.out).unwrap_or_else(|cause| panic!("{cause}: {}", output.out))
    }

    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Stages that ran since the last call, sorted.
    pub fn ran(&self) -> Vec<String> {
        let path = self.path("log");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        _ = std::fs::remove_file(path);
        let mut stages: Vec<_> = text.lines().map(str::to_owned).collect();
        stages.sort();
        stages
    }

    /// Lets stages of the kind `gate` go on.
    pub fn open_gate(&self) {
        self.write("log.go", "");
    }

    /// Whether the program of a stage has begun, since the last call of [`Project::ran`].
    pub fn has_begun(&self, stage: &str) -> bool {
        std::fs::read_to_string(self.path("log")).is_ok_and(|log| log.lines().any(|line| line == stage))
    }

    /// Whether the journal of a run has this event of a stage.
    pub fn has_event(&self, event: &str, stage: &str) -> bool {
        self.count_events(event, stage) > 0
    }

    /// How often the journals of all runs have this event of a stage.
    pub fn count_events(&self, event: &str, stage: &str) -> usize {
        let runs = std::fs::read_dir(self.path("cache/runs")).into_iter().flatten().flatten();
        let journals = runs.filter_map(|run| std::fs::read_to_string(run.path().join("journal.jsonl")).ok());
        // The last line may be half-written.
        let is_it = |line: &&str| {
            let entry: Value = serde_json::from_str(line).unwrap_or_default();
            entry["event"] == event && entry["id"] == stage
        };
        journals.map(|journal| journal.lines().filter(is_it).count()).sum()
    }

    /// The text of an artifact of the newest run.
    pub fn result(&self, name: &str) -> String {
        self.read(self.newest().join(name)).trim().to_owned()
    }

    /// The folder of the newest run.
    pub fn newest(&self) -> PathBuf {
        self.path("cache/runs").join(self.runs().pop().unwrap())
    }

    /// The journal of the newest run.
    pub fn journal(&self) -> Vec<Value> {
        let journal = self.read(self.newest().join("journal.jsonl"));
        journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Ids of all runs, oldest first.
    pub fn runs(&self) -> Vec<String> {
        let output = self.mcprl(&["runs", "--json"]);
        let runs: Vec<Value> = serde_json::from_str(&output.out).unwrap();
        runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    }
}

pub fn output(command: &mut Command) -> CommandOutput {
    let output = command.output().unwrap();
    CommandOutput {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A plan's lines with `|` between columns, without what took how long.
pub fn without_times(plan: &str) -> String {
    let time = |cell: &&str| !(cell.starts_with('~') || cell.starts_with('(') && cell.ends_with(')'));
    let row = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).filter(time);
        cells.collect::<Vec<_>>().join(" | ")
    };
    let lines =
        plan.lines().filter(|line| !line.starts_with("estimated cost") && !line.starts_with("the cache "));
    lines.map(|line| row(&word_apart(line))).collect::<Vec<_>>().join("\n")
}

/// The first word is padded to a width that leaves one space or several.
fn word_apart(line: &str) -> String {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    format!("{word} {}", rest.trim_start())
}
