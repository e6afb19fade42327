//! Models behind an endpoint as the agent: in a chat and in an exam. The endpoint is `mcprl serve`, which answers as the engine
//! does.

use mcprl::data::{self, Trajectory, VerdictRow};
use serde_json::{Value, json};

use super::Served;
use crate::common::{Project, output, training_run};

const QUESTION: &str = "How many departments are there?";

fn base_url(served: &Served) -> String {
    format!("http://{}/v1", served.host)
}

#[test]
fn a_chat_with_an_endpoint_is_the_chat_with_its_model() {
    let project = Project::new("");
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>\n{}\n</tool_call>\n", json!({"name": name, "arguments": arguments}))
    };
    let query = json!({"sql": "SELECT COUNT(*) AS n FROM departments"});
    let reply = call("run_query", query) + &call("complete_task", json!({"answer": "There are 8."}));
    project.replier("caller", &reply);
    let served = Served::new(&project, &["caller"]);
    let url = base_url(&served);
    let say = |subject: &[&str]| {
        let server = ["--", env!("CARGO_BIN_EXE_mcprl"), "demo-server", "sqlite"];
        let once = ["--once", QUESTION, "--json", "--trace-dir", "traces"];
        output(&mut project.command(&[&["chat"], subject, &once, &server].concat()))
    };
    let parsed = |subject: &[&str]| -> Value {
        let done = say(subject);
        serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{}\n{}", done.out, done.err))
    };
    let (local, remote) = (parsed(&["caller"]), parsed(&[&url, "--model", "caller"]));
    assert_eq!(remote["answer"], "There are 8.");
    for key in ["answer", "calls", "end"] {
        assert_eq!(remote[key], local[key], "{key}");
    }
    assert_eq!(remote["tokens"]["sampled"], local["tokens"]["sampled"]);
    let trace = std::fs::read_to_string(project.path(remote["trace"].as_str().unwrap())).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    assert_eq!((&trace["model"], &trace["messages"][1]["content"]), (&json!("caller"), &json!(QUESTION)));

    for (subject, code) in [
        (&[url.as_str()][..], "talk::no_model_name"),
        (&["caller", "--model", "caller"], "talk::no_endpoint"),
        (&[&url, "--model", "other"], "llm::status"),
        (&["https://host/v1", "--model", "m", "--api-key-env", "MCPRL_TEST_NO_SUCH_KEY"], "llm::no_key"),
        (&["http://host/v1", "--model", "m", "--api-key-env", "PATH"], "llm::unencrypted"),
    ] {
        let done = say(subject);
        assert!(done.code != Some(0) && done.err.contains(code), "{subject:?}: {}", done.err);
    }
}

#[test]
fn an_exam_takes_models_behind_endpoints_for_comparison() {
    let run = training_run("group_size = 2");
    let project = Project::with_model(&run);
    project.run(&[]);
    let served = Served::new(&project, &[]);
    let url = base_url(&served);
    let endpoints =
        |of: &str| format!("endpoints = {{ api = {{ base_url = \"{url}\", model = \"{of}\" }} }}\n");
    project.write("run.toml", &(run.clone() + &endpoints("trained")));
    let again = project.run(&[]);
    assert!(again.err.contains("episodes are reused"), "{}", again.err);

    let exam = project.newest().join("exam");
    let rows: Vec<VerdictRow> = data::read(&exam.join("verdict.parquet")).unwrap();
    let greedy = |policy: &str| {
        let is_it = |row: &&VerdictRow| row.scope == "all" && row.mode == "greedy" && row.policy == policy;
        rows.iter().find(is_it).unwrap()
    };
    let names: Vec<&str> = rows.iter().take(3).map(|row| row.policy.as_str()).collect();
    assert_eq!(names, ["base", "api", "trained"], "the last one stays the one that is reported");
    let (api, trained) = (greedy("api"), greedy("trained"));
    assert_eq!((api.success, api.turns, api.tokens), (trained.success, trained.turns, trained.tokens));
    assert!(api.comparison_only == Some(true) && trained.comparison_only.is_none());
    assert_eq!(trained.previous, None, "no policy continues a model behind an endpoint");
    let episodes: Vec<Trajectory> = data::read(&exam.join("episodes.parquet")).unwrap();
    let of_api: Vec<_> = episodes.iter().filter(|episode| episode.counted_tokens.is_some()).collect();
    assert_eq!(of_api.len(), episodes.len() / 3);
    assert!(of_api.iter().all(|episode| episode.tokens.is_empty()));

    let few = endpoints("trained").replacen(" }", ", examples = 2 }", 1).replace("api =", "few =");
    project.write("run.toml", &(run.clone() + &few));
    let without = output(&mut project.command(&["plan", "run.toml"]));
    assert!(without.err.contains("\"few\" has `examples`, and no episodes are given"), "{}", without.err);
    let tasks = project.read("tasks.jsonl");
    let reference = ", \"reference\": [{\"name\": \"list_tables\", \"arguments\": {}}]}";
    project.write("tasks.jsonl", &tasks.replace('}', reference));
    let solved = "[stages.solved]\nkind = \"demonstrations\"\npolicy = \"base\"\ntools = \"tools\"\n\
                  scenarios = \"tasks.train\"\nepisodes = 4\n";
    project.write("run.toml", &format!("{run}examples = \"solved\"\n{few}{solved}"));
    project.run(&[]);
    let episodes: Vec<Trajectory> = data::read(&project.newest().join("exam/episodes.parquet")).unwrap();
    let shown = |episode: &&Trajectory| episode.messages[0].text.contains("Examples of solved tasks:");
    assert_eq!(episodes.iter().filter(shown).count(), episodes.len() / 3, "those of the endpoint alone");
    assert!(
        episodes
            .iter()
            .filter(shown)
            .all(|episode| episode.messages[0].text.matches("Answer: ").count() >= 2)
    );

    drop(served);
    project.write("run.toml", &(run.clone() + &endpoints("base")));
    let without_retries = ["run", "run.toml", "--set", "stages.exam.endpoints.api.retries=0"];
    let gone = output(&mut project.command(&without_retries));
    assert!(gone.code != Some(0) && gone.err.contains("cannot be reached"), "{}", gone.err);
    project.write("run.toml", &(run + &endpoints("base").replace("api =", "base =")));
    let same = output(&mut project.command(&["plan", "run.toml"]));
    assert!(same.err.contains("is the name of a policy and of an endpoint"), "{}", same.err);
}
