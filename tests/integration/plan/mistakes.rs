//! Mistakes that show only in files: `plan` and `run` report them before any stage runs.

use crate::common::{self, DEMO, Project};

const LOOP: &str = r#"
[loop.train]
iterations = 2
carry = { policy = "base" }

[loop.train.stages.rollout]
kind = "rollout"
policy = "@policy"
tools = "tools"
scenarios = "tasks.train"

[loop.train.stages.reward]
kind = "judge"
trajectories = "rollout"
scenarios = "tasks.train"

[loop.train.stages.update]
kind = "grpo"
policy = "@policy"
trajectories = "rollout"
rewards = "reward"
yields = "policy"

[stages.exam]
kind = "eval"
policies = { base = "base", trained = "train.policy" }
tools = "tools"
scenarios = "tasks.heldout"
"#;

fn run_file() -> String {
    format!("name = \"own\"\nmodel = \"llama\"\n{DEMO}{LOOP}")
}

fn project() -> Project {
    Project::with_model(&run_file())
}

type Change = fn(&Project);

fn remove(project: &Project, file: &str) {
    std::fs::remove_file(project.path(file)).unwrap();
}

/// A stage of a kind of its own with these words as its command, beside a file `run.sh`.
fn with_command(project: &Project, words: &str) {
    project.kind("odd", "pure", "[outputs.number]\ntype = \"number\"\npath = \"n\"\n", "");
    project.replace("stages/odd/card.toml", "\"sh\", \"-e\", \"run.sh\"", words);
    project.replace("run.toml", "[stages.exam]", "[stages.odd]\nkind = \"odd\"\n\n[stages.exam]");
}

const MISTAKES: &[(&str, Change)] = &[
    ("a weight that is no number", |p| {
        p.replace(
            "run.toml",
            "[loop.train.stages.update]",
            "weights = { consensus = \"x\" }\n\n[loop.train.stages.update]",
        );
    }),
    ("a family that is not known", |p| {
        p.replace("llama/config.json", "\"llama\"", "\"gemma2\"");
    }),
    ("no configuration", |p| remove(p, "llama/config.json")),
    ("no tokenizer", |p| remove(p, "llama/tokenizer.json")),
    ("a tokenizer that is a pointer to one", |p| p.write("llama/tokenizer.json", "version https://git-lfs")),
    ("no chat template", |p| remove(p, "llama/chat_template.jinja")),
    ("weights cut short", |p| {
        let weights = p.path("llama/model.safetensors");
        let bytes = std::fs::read(&weights).unwrap();
        std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    }),
    ("weights of another shape", |p| {
        p.replace("llama/config.json", "\"vocab_size\": 407", "\"vocab_size\": 408")
    }),
    ("an adapter in place of a model", |p| {
        std::fs::rename(p.path("llama/config.json"), p.path("llama/adapter_config.json")).unwrap();
    }),
    ("a revision of a folder", |p| {
        p.replace(
            "run.toml",
            "model = \"llama\"",
            "stages.base = { kind = \"model\", from = \"llama\", revision = \"v1\" }",
        );
    }),
    ("a hub id that is none", |p| p.replace("run.toml", "\"llama\"", "\"Qwen/Qwen3-4B@a b\"")),
    ("lines that are no tasks", |p| {
        p.write("tasks.jsonl", "{\"task\": \"a\", \"answer\": 1}\nwhat\n{\"tsak\": 1}\n")
    }),
    ("tasks without answers", |p| {
        p.write("tasks.jsonl", "{\"task\": \"a\"}\n{\"task\": \"b\"}\n{\"task\": \"c\"}\n")
    }),
    ("no task to train on", |p| {
        p.write("tasks.jsonl", "{\"task\": \"a\", \"answer\": 1, \"split\": \"heldout\"}\n")
    }),
    ("no task held out", |p| {
        p.write("tasks.jsonl", "{\"task\": \"a\", \"answer\": 1, \"split\": \"train\"}\n")
    }),
    ("no file of tasks", |p| p.replace("run.toml", "file = \"tasks.jsonl\"\n", "")),
    ("one task alone, which is held out", |p| p.write("tasks.jsonl", "{\"task\": \"a\", \"answer\": 1}\n")),
    ("episodes without room for a word", |p| {
        p.replace("run.toml", "kind = \"rollout\"", "kind = \"rollout\"\nmax_episode_tokens = 20");
    }),
    ("prompts that do not fit the model", |p| {
        let config = p.read("llama/config.json");
        p.write("llama/config.json", &config.replace("4096", "32"));
    }),
    ("keys and values without room for a prompt", |p| {
        let config = p.read("llama/config.json");
        p.write("llama/config.json", &config.replace("4096", "100000"));
        p.replace("run.toml", "[stages.tools]", "[engine]\nkv_cache_mib = 1\nthreads = 4\n\n[stages.tools]");
        let task = "word ".repeat(3000);
        p.write(
            "tasks.jsonl",
            &(1..9).map(|i| format!("{{\"task\": \"{task}{i}\", \"answer\": {i}}}\n")).collect::<String>(),
        );
        p.replace("run.toml", "kind = \"rollout\"", "kind = \"rollout\"\nmax_episode_tokens = 50000");
        p.replace("run.toml", "kind = \"eval\"", "kind = \"eval\"\nmax_episode_tokens = 50000");
    }),
    ("targets that no layer has", |p| {
        p.replace("run.toml", "yields =", "targets = [\"qkv_proj\"]\nyields =");
    }),
    ("a pattern that is none", |p| p.replace("run.toml", "yields =", "targets = [\"regex:(\"]\nyields =")),
    ("a penalty without a reference", |p| p.replace("run.toml", "yields =", "kl = 0.1\nyields =")),
    ("a schedule without its end", |p| p.replace("run.toml", "yields =", "schedule = \"linear\"\nyields =")),
    ("all weights of an adapter", |p| {
        p.replace("run.toml",
            "[stages.exam]",
            "[stages.more]\nkind = \"grpo\"\nlora = false\npolicy = \"train.policy\"\ntrajectories = \"try.trajectories\"\nrewards = \"score\"\n\n[stages.try]\nkind = \"rollout\"\npolicy = \"train.policy\"\ntools = \"tools\"\nscenarios = \"tasks.train\"\n\n[stages.score]\nkind = \"judge\"\ntrajectories = \"try\"\nscenarios = \"tasks.train\"\n\n[stages.exam]",
        );
    }),
    ("nothing that earns", |p| {
        p.replace("run.toml", "kind = \"judge\"", "kind = \"judge\"\nweights = { truth = 0 }");
    }),
    ("a weight below 0", |p| {
        p.replace("run.toml", "kind = \"judge\"", "kind = \"judge\"\nweights = { truth = -1 }");
    }),
    ("a judge whose key is not there", |p| {
        p.replace("run.toml",
            "kind = \"judge\"",
            "kind = \"judge\"\nweights.relative = 1\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\napi_key_env = \"NO_SUCH_KEY\"",
        );
    }),
    ("an endpoint that is none", |p| {
        p.replace(
            "run.toml",
            "kind = \"judge\"",
            "kind = \"judge\"\nweights.relative = 1\nbase_url = \"localhost/v1\"\nmodel = \"m\"",
        );
    }),
    ("nothing to play", |p| {
        p.replace("run.toml", "kind = \"eval\"", "kind = \"eval\"\ngreedy = false\nsamples = 0")
    }),
    ("a tool both allowed and denied", |p| {
        p.replace(
            "run.toml",
            "kind = \"discover\"",
            "kind = \"discover\"\nallow = [\"query\"]\ndeny = [\"query\"]",
        );
    }),
    ("a server that is not installed", |p| p.replace("run.toml", "\"{mcprl}\"", "\"no-such-server\"")),
    ("a server whose variable is not set", |p| {
        p.replace("run.toml", "state =", "env = { TOKEN = \"${NO_SUCH_TOKEN}\" }\nstate =");
    }),
    ("a command that is not installed", |p| with_command(p, "\"no-such-program\", \"-e\", \"run.sh\"")),
    ("a command whose script is not there", |p| with_command(p, "\"python3\", \"-u\", \"a.py\"")),
    ("a command that is a script which is not there", |p| with_command(p, "\"./a.sh\"")),
    ("a command that is a script without the right to be executed", |p| with_command(p, "\"./run.sh\"")),
    ("a server without the right to be executed", |p| {
        p.write("server.sh", "#!/bin/sh\n");
        p.replace("run.toml", "\"{mcprl}\"", "\"./server.sh\"");
    }),
    #[cfg(not(feature = "cuda"))]
    ("a device that this build does not have", |p| {
        p.replace("run.toml", "[stages.tools]", "[engine]\ndevices = [\"cuda:0\"]\n\n[stages.tools]");
    }),
];

#[test]
fn a_run_file_without_mistakes_has_no_messages() {
    let output = project().mcprl(&["plan", "run.toml"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
}

#[test]
fn plan_and_run_report_every_mistake_before_any_stage_runs() {
    let mut all = String::new();
    for (name, change) in MISTAKES {
        let project = project();
        change(&project);
        let (plan, run) = (project.mcprl(&["plan", "run.toml"]), project.mcprl(&["run", "run.toml"]));
        assert_eq!((plan.code, run.code), (Some(2), Some(2)), "{name}: {}{}", plan.err, run.err);
        assert!(plan.out.contains("to run"), "{name}: the plan is shown all the same");
        assert!(run.err.ends_with(&plan.err), "{name}: {}\n{}", plan.err, run.err);
        assert_eq!(project.runs(), [""; 0], "{name}: no run is left behind");
        assert!(!run.err.contains("/tmp/work/"), "{name}: {}", run.err);
        let folder = project.path("").display().to_string();
        all += &format!("# {name}\n{}\n", plan.err.replace(&folder, ""));
    }
    insta::assert_snapshot!(all);
}

/// Warnings about stages that can run.
const NOTES: &[(&str, Change)] = &[
    ("tasks of which some have no answer", |p| {
        let tasks = p.read("tasks.jsonl");
        p.write("tasks.jsonl", &format!("{tasks}{{\"task\": \"a\", \"split\": \"train\"}}\n{{\"task\": \"b\", \"split\": \"heldout\"}}\n"));
    }),
    ("a task that leaves no room for a word", |p| {
        let tasks = p.read("tasks.jsonl");
        let task = "word ".repeat(9000);
        p.write(
            "tasks.jsonl",
            &format!("{tasks}{{\"task\": \"{task}\", \"answer\": 1, \"split\": \"train\"}}\n"),
        );
    }),
    ("keys and values without room for a long conversation", |p| {
        p.replace("run.toml", "[stages.tools]", "[engine]\nkv_cache_mib = 1\nthreads = 4\n\n[stages.tools]");
    }),
];

#[test]
fn plan_and_run_note_possible_problems_and_continue() {
    let mut all = String::new();
    for (name, change) in NOTES {
        let project = project();
        change(&project);
        // So that `run` stops at its first stage.
        project.replace("run.toml", "{mcprl}", "false");
        let (plan, run) =
            (project.mcprl(&["plan", "run.toml", "--offline"]), project.mcprl(&["run", "run.toml"]));
        assert_eq!((plan.code, run.code), (Some(0), Some(1)), "{name}: {}{}", plan.err, run.err);
        assert!(run.err.contains(plan.err.trim_end()), "{name}: {}\n{}", plan.err, run.err);
        all += &format!("# {name}\n{}\n", plan.err);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn known_tools_count_towards_the_prompt_length() {
    let project = project();
    project.write(
        "only.toml",
        &run_file().split("[stages.tasks]").next().unwrap().replace("\"own\"", "\"only\""),
    );
    let run = project.mcprl(&["run", "only.toml"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    project.replace("run.toml", "kind = \"rollout\"", "kind = \"rollout\"\nmax_episode_tokens = 300");
    let plan = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(plan.code, Some(2), "{}", plan.err);
    assert!(
        plan.err.contains("no episode has room for a sampled token: the shortest prompt has "),
        "{}",
        plan.err
    );
}

#[test]
fn the_json_plan_contains_its_problems() {
    let project = project();
    remove(&project, "llama/tokenizer.json");
    let plan = project.mcprl(&["plan", "run.toml", "--json"]);
    let output: serde_json::Value = serde_json::from_str(&plan.out).unwrap();
    let [problem] = &output["problems"].as_array().unwrap()[..] else { panic!("{}", plan.out) };
    assert_eq!((&problem["stage"], &problem["place"]), (&"base".into(), &"run.toml:2:9".into()));
    assert_eq!((&problem["line"], &problem["column"]), (&2.into(), &9.into()));
    assert_eq!(problem["code"], "chat::read");
    assert!(problem["hint"].as_str().unwrap().contains("save_pretrained"));
    let run = project.mcprl(&["run", "run.toml", "--json"]);
    let error: serde_json::Value = serde_json::from_str(run.err.lines().last().unwrap()).unwrap();
    assert_eq!(error["error"]["problems"], output["problems"], "an error holds the same");
}

#[test]
fn a_cached_stage_is_not_checked_again() {
    let project = project();
    let run_file = run_file();
    let only_the_model = run_file.split("[server]").next().unwrap();
    project.write("run.toml", only_the_model);
    project.run(&[]);
    // The preflight of a stage that runs would report it; the store has the result.
    project.write("run.toml", &format!("{only_the_model}\n[stages.more]\nkind = \"gen\"\n"));
    let output = project.mcprl(&["plan", "run.toml", "--set", "engine.devices=[\"cuda:0\"]"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    assert!(output.out.contains("1 cached, 1 to run"), "{}", output.out);
}

/// The lines of a look at the run file, those about this machine left out.
fn looked_at(project: &Project, expected: i32) -> String {
    let output = project.mcprl(&["doctor", "run.toml"]);
    assert_eq!((output.code, output.err.as_str()), (Some(expected), ""), "{}", output.out);
    let lines: Vec<&str> = output.out.lines().skip_while(|line| !line.contains("run file")).collect();
    lines.join("\n").replace(&project.path("").display().to_string(), "")
}

#[test]
fn doctor_checks_everything_a_run_file_needs() {
    let project = project();
    // Somebody who answers, and a port at which nobody does.
    let endpoint = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = endpoint.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in endpoint.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 512];
            _ = std::io::Read::read(&mut stream, &mut request);
            let refusal = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            std::io::Write::write_all(&mut stream, refusal).unwrap();
        }
    });
    let judge = |port| {
        format!(
            "kind = \"judge\"\nweights.relative = 1\nbase_url = \"http://127.0.0.1:{port}/v1\"\nmodel = \"m\"\napi_key_env = \"HOME\""
        )
    };
    project.replace("run.toml", "kind = \"judge\"", &judge(9));
    let output = looked_at(&project, 1);
    let dead = "bad   stage      train/reward: m at http://127.0.0.1:9/v1 cannot be reached";
    assert!(output.contains(dead) && output.contains("hint: check that the endpoint is up"), "{output}");
    project.replace("run.toml", &judge(9), &judge(port));
    let answers =
        format!("train/reward: m at http://127.0.0.1:{port}/v1 with the key in HOME: the endpoint answers");
    let output = looked_at(&project, 0);
    assert!(output.contains(&answers), "{output}");
    for line in [
        "ok    devices    cpu",
        "demo-server sqlite answers in ",
        "ok    stage      base: llama: Llama 2 and 3, 2 layers, context of 4096 tokens",
        "ok    stage      base: its own chat template is used, with several calls per turn",
        "note  stage      tasks: tasks.jsonl: 8 to train on, 2 held out",
        "hint: that is few: a gain is measurable where at least 6 held-out tasks come out better",
        "ok    memory     ",
        "ok    disk       a copy of the model takes ",
    ] {
        assert!(output.contains(line), "{line}\n{output}");
    }
}

#[test]
fn doctor_reports_what_is_missing_with_hints() {
    let project = project();
    project.replace(
        "run.toml",
        "\"{mcprl}\", \"demo-server\", \"sqlite\"",
        "\"sh\", \"-c\", \"echo no such database >&2; exit 3\"",
    );
    project.replace(
        "run.toml",
        "[stages.tools]",
        "[cache]\nremote = \"mount/shared\"\n\n[track]\ntensorboard = true\n\n[stages.odd]\nkind = \"odd\"\n\n[stages.tools]",
    );
    project.kind("odd", "pure", "[outputs.number]\ntype = \"number\"\npath = \"n\"\n", "");
    project.replace("stages/odd/card.toml", "\"sh\"", "\"no-such-program\"");
    remove(&project, "llama/tokenizer.json");
    let output = looked_at(&project, 1);
    for line in [
        "bad   server     the server `sh -c echo no such database >&2; exit 3` ended before it was ready (exit status: 3); stderr: no such database",
        "hint: run the command in a terminal to see its full output",
        "bad   stage      base: cannot read llama/tokenizer.json",
        "hint: a policy folder needs tokenizer.json",
        "bad   stage      odd: cannot start `no-such-program -e run.sh`",
        "bad   shared     ",
        "ok    tracker    tensorboard: ",
    ] {
        assert!(output.contains(line), "{line}\n{output}");
    }
}

/// A server with 30 tools that do nothing.
const MANY_TOOLS: &str = r#"
list=$(seq 30 | sed 's/.*/{"name":"t&","inputSchema":{"type":"object"}}/' | paste -sd, -)
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"many","version":"1"}}' ;;
    *'"tools/list"'*) result="{\"tools\":[$list]}" ;;
    *) result='{}' ;;
  esac
  if [ -n "$id" ]; then printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"; fi
done
"#;

#[test]
fn doctor_notes_more_tools_than_a_small_model_can_choose_among() {
    let project = project();
    project.write("many.sh", MANY_TOOLS);
    project.replace(
        "run.toml",
        "\"{mcprl}\", \"demo-server\", \"sqlite\"",
        &format!("\"sh\", \"{}\"", project.path("many.sh").display()),
    );
    let output = looked_at(&project, 0);
    let note = "note  tools      tools: 30 tools are offered; small models choose badly among more than 25";
    assert!(output.contains(note) && output.contains("`allow` of the stage `tools`"), "{output}");
    project.replace("run.toml", "kind = \"discover\"", "kind = \"discover\"\nallow = [\"t1\", \"t2\"]");
    let output = looked_at(&project, 0);
    assert!(output.contains("30 tools: t1") && !output.contains("small models"), "{output}");
}

#[test]
fn doctor_asks_for_examples_of_what_no_tool_lists() {
    let project = project();
    let schema = r#"{"type":"object","required":["user_id"],"properties":{"user_id":{"type":"string"}}}"#;
    project.write("many.sh", &MANY_TOOLS.replace(r#"{"type":"object"}"#, schema));
    project.replace(
        "run.toml",
        "\"{mcprl}\", \"demo-server\", \"sqlite\"",
        &format!("\"sh\", \"{}\"", project.path("many.sh").display()),
    );
    project.replace("run.toml", "source = \"file\"\nfile = \"tasks.jsonl\"", "source = \"explored\"");
    let output = looked_at(&project, 0);
    let asks = "tasks: no tool lists values for `user_id`";
    assert!(output.contains(asks) && output.contains("values = { user_id = [\"…\"] }"), "{output}");
    project.replace("run.toml", "\"explored\"", "\"explored\"\nvalues = { user_id = [\"ada\"] }");
    let output = looked_at(&project, 0);
    assert!(!output.contains("lists values"), "{output}");
    project.replace("run.toml", "{ user_id =", "{ user =");
    let output = looked_at(&project, 1);
    assert!(output.contains("`values.user` names no parameter") && output.contains("`user_id`"), "{output}");
}

#[test]
fn a_misspelt_variable_is_an_unknown_key_and_its_value_is_not_shown() {
    let project = project();
    let mut command = project.command(&["plan", "run.toml"]);
    command.env("MCPRL_SEVER__ENV__API_KEY", "s3cret").env("MCPRL_OTHER", "of another program");
    let output = common::output(&mut command);
    let text = &output.err;
    assert_eq!(output.code, Some(2), "{text}");
    assert!(text.contains("MCPRL_SEVER__ENV__API_KEY") && text.contains("did you mean `server`"), "{text}");
    assert!(!text.contains("s3cret") && !text.contains("MCPRL_OTHER"), "{text}");
}

#[test]
fn a_run_that_would_train_on_the_tasks_of_another_stages_comparison_is_refused() {
    let project = project();
    let held_out = "[stages.others]\nkind = \"scenarios\"\ntools = \"tools\"\nsource = \"file\"\nfile = \"others.jsonl\"\n";
    project.replace(
        "run.toml",
        "scenarios = \"tasks.heldout\"",
        &format!("scenarios = \"others.heldout\"\n\n{held_out}"),
    );
    let small = "prompts = 2\ngroup_size = 2\nmax_turns = 1\nmax_turn_tokens = 4\nrefill_waves = 0\n";
    project.replace(
        "run.toml",
        "\n[loop.train.stages.reward]",
        &format!("{small}\n[loop.train.stages.reward]"),
    );
    let tasks = project.read("tasks.jsonl");
    let trained: serde_json::Value = serde_json::from_str(tasks.lines().next().unwrap()).unwrap();
    let task = trained["task"].as_str().unwrap();
    let other =
        |task: &str| serde_json::json!({ "task": task, "answer": "1", "split": "heldout" }).to_string();
    let train = serde_json::json!({ "task": "What is 1?", "answer": "1", "split": "train" });
    project.write("others.jsonl", &format!("{train}\n{}\n", other(&task.to_uppercase())));
    let refused = project.mcprl(&["run", "run.toml"]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    // Whichever stage of the loop begins after both tables are there.
    let expected = format!(" trains on a task that exam compares policies on: \"{task}\"");
    assert!(refused.err.contains(&expected), "{}", refused.err);
}

#[test]
fn what_only_a_teacher_or_a_voter_uses_needs_one() {
    let project = project();
    project.replace("run.toml", "rewards = \"reward\"", "rewards = \"reward\"\nteacher_weight = 0.5");
    let votes = "[stages.more]\nkind = \"scenarios\"\ntools = \"tools\"\nanswers_votes = 4\n\n[loop.train]";
    project.replace("run.toml", "[loop.train]", votes);
    let err = project.mcprl(&["plan", "run.toml"]).err;
    assert!(err.contains("`loop.train.stages.update.teacher_weight` needs `teacher`"), "{err}");
    assert!(err.contains("`stages.more.answers_votes` needs `answers_from` or `answers_endpoint`"), "{err}");
}
