//! Traces as episodes of a policy with Qwen3's template.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::{
    answer::COMPLETE_TASK,
    data,
    stage::testing::{self, caller, context},
};

/// A policy, the tool `age`, and files of traces.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new(traces: &[Value]) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        caller(&bench.path("policy"), &[]);
        let schema = json!({"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]});
        let function = json!({"name": "age", "description": "Says an age.", "parameters": schema});
        let age = Tool {
            name: "age".into(),
            server_name: "age".into(),
            function: function.to_string(),
            input_schema: schema.to_string(),
            ..Tool::default()
        };
        let schema =
            json!({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]});
        let complete = Tool {
            name: COMPLETE_TASK.into(),
            function: json!({"name": COMPLETE_TASK, "description": "Ends it.", "parameters": schema})
                .to_string(),
            input_schema: schema.to_string(),
            synthetic: true,
            ..Tool::default()
        };
        data::write(&bench.path("tools.parquet"), &[age, complete]).unwrap();
        let lines: String = traces.iter().map(|trace| format!("{trace}\n")).collect();
        std::fs::write(bench.path("traces.jsonl"), lines).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn run(&self, params: Value) -> Result<(Metrics, Vec<Trajectory>, Vec<TraceRow>)> {
        let (policy, tools, exam) =
            (self.path("policy"), self.path("tools.parquet"), self.path("exam.parquet"));
        let mut inputs: Vec<(&str, &Path)> = vec![("policy", &policy), ("tools", &tools)];
        inputs.extend(exam.is_file().then_some(("exam", exam.as_path())));
        let mut given =
            json!({"files": [self.path("traces.jsonl")], "result_chars": 4000, "thinking": "template"});
        given.as_object_mut().unwrap().extend(params.as_object().cloned().unwrap());
        let context = context("traces", &inputs, &self.path("out"), given).0;
        let metrics = testing::run(&context).await?;
        let read = |name: &str| self.path("out").join(name);
        Ok((metrics, data::read(&read("trajectories.parquet"))?, data::read(&read("traces.parquet"))?))
    }

    /// The rows of an episode as text, with what is learned in ⟦brackets⟧.
    fn shown(&self, episode: &Trajectory) -> Vec<String> {
        let chat = Chat::load(&self.path("policy")).unwrap();
        let row = |row: data::TrainingRow<'_>| {
            let mut text = String::new();
            let mut at = 0;
            while at < row.tokens.len() {
                let learned = row.sampled[at];
                let end =
                    (at..row.tokens.len()).find(|at| row.sampled[*at] != learned).unwrap_or(row.tokens.len());
                let part = chat.decode(&row.tokens[at..end]);
                text += &if learned { format!("⟦{part}⟧") } else { part };
                at = end;
            }
            text
        };
        episode.rows().map(row).collect()
    }
}

fn called(id: &str, of: &str) -> Value {
    json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "age", "arguments": json!({"of": of}).to_string()}}]})
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

fn asked(task: &str) -> Vec<Value> {
    vec![
        json!({"role": "system", "content": "Another prompt."}),
        json!({"role": "user", "content": task}),
        called("a", "Ada"),
        result("a", "36"),
        json!({"role": "assistant", "content": "She is 36."}),
    ]
}

#[tokio::test]
async fn the_turns_of_the_assistant_are_learned_behind_the_prompt_of_the_agent() {
    let bench = Bench::new(&[json!({"messages": asked("How old is Ada?")})]);
    let (metrics, episodes, rows) = bench.run(json!({})).await.unwrap();
    let [episode] = episodes.as_slice() else { panic!("{} episodes", episodes.len()) };
    let shown = bench.shown(episode);
    let [text] = shown.as_slice() else { panic!("{shown:?}") };
    assert!(text.starts_with("<|im_start|>system\n") && !text.contains("Another prompt."), "{text}");
    let behind = text.split_once("<|im_start|>user\n").unwrap().1;
    assert_eq!(
        behind,
        "How old is Ada?<|im_end|>\n<|im_start|>assistant\n\
         ⟦<tool_call>\n{\"name\": \"age\", \"arguments\": {\"of\": \"Ada\"}}\n</tool_call><|im_end|>⟧\n\
         <|im_start|>user\n<tool_response>\n36\n</tool_response><|im_end|>\n<|im_start|>assistant\n\
         ⟦<tool_call>\n{\"name\": \"complete_task\", \"arguments\": {\"answer\": \"She is 36.\"}}\n</tool_call><|im_end|>⟧"
    );
    assert_eq!((episode.correct, episode.answer.as_deref()), (Some(true), Some("She is 36.")));
    assert_eq!((episode.answer_source.as_deref(), episode.tools.join(" ")), (Some("tool"), "age".into()));
    assert_eq!((metrics["episodes"], metrics["turns"], metrics["calls"]), (1.0, 2.0, 1.0));
    assert_eq!((rows[0].place.as_str(), rows[0].format.as_str()), ("traces.jsonl:1", "openai"));
    assert_eq!(f64::from(rows[0].learned), metrics["learned"]);
    assert!(crate::stage::training::check_rows(episode).is_ok());
}

#[tokio::test]
async fn the_traces_own_prompt_a_text_as_answer_and_all_tokens_can_be_chosen() {
    let bench = Bench::new(&[json!({"messages": asked("How old is Ada?")})]);
    let params = json!({"prompt": "trace", "finish": false, "loss": "all"});
    let (_, episodes, _) = bench.run(params).await.unwrap();
    let shown = bench.shown(&episodes[0]);
    assert!(shown[0].starts_with("⟦<|im_start|>system\nAnother prompt."), "{shown:?}");
    assert!(shown[0].ends_with("<|im_start|>assistant\nShe is 36.<|im_end|>⟧"), "{shown:?}");
    assert_eq!(episodes[0].answer_source.as_deref(), Some("text"));
    let (_, episodes, _) = bench.run(json!({"prompt": "none"})).await.unwrap();
    assert!(!bench.shown(&episodes[0])[0].contains("prompt"));
}

#[tokio::test]
async fn reasoning_is_learned_where_the_template_shows_it_and_a_turn_behind_it_sees_what_it_keeps() {
    let mut messages = asked("How old is Ada?");
    messages[2]["reasoning_content"] = "I look it up.".into();
    messages.extend([
        json!({"role": "user", "content": "And Bob?"}),
        called("b", "Bob"),
        result("b", "41"),
        json!({"role": "assistant", "content": "He is 41."}),
    ]);
    let bench = Bench::new(&[json!({"messages": messages})]);
    let (_, episodes, _) = bench.run(json!({})).await.unwrap();
    let shown = bench.shown(&episodes[0]);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(shown[0].contains("⟦<think>\nI look it up.\n</think>\n\n<tool_call>"), "{shown:?}");
    // Behind another question, the template has no reasoning of earlier turns.
    assert!(!shown[1].contains("I look it up.") && shown[1].contains("And Bob?"), "{shown:?}");
    let learned = shown.join("").matches('⟦').count();
    assert_eq!(learned, 4, "each turn once: {shown:?}");
    let (_, episodes, _) = bench.run(json!({"reasoning": "drop"})).await.unwrap();
    let shown = bench.shown(&episodes[0]);
    assert!(shown.len() == 1 && !shown[0].contains("I look it up."), "{shown:?}");
}

#[tokio::test]
async fn what_must_not_be_learned_is_left_out_with_its_reason() {
    let with = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut messages = asked("How old is Ada?");
        messages[1]["content"] = "And who is Ada?".into();
        change(&mut messages);
        json!({"messages": messages})
    };
    let secret = format!("My key is hf_{}", "a1".repeat(20));
    let bench = Bench::new(&[
        json!({"messages": asked("How old is Ada?")}),
        json!({"messages": asked("how old is  ada")}),
        json!({"messages": asked("Who is \"Bob\"?")}),
        with(&|messages| messages[1]["content"] = secret.clone().into()),
        with(&|messages| messages[2]["tool_calls"][0]["function"]["name"] = "drop".into()),
        with(&|messages| _ = messages.pop()),
        json!({"text": "x"}),
        with(&|messages| messages[2]["tool_calls"][0]["function"]["name"] = "mcp__people__age".into()),
    ]);
    let exam = Scenario { task: "who is Bob".into(), ..Scenario::default() };
    data::write(&bench.path("exam.parquet"), &[exam]).unwrap();
    let (metrics, episodes, rows) = bench.run(json!({"max_left_out": 0.8})).await.unwrap();
    let reasons: Vec<&str> = rows.iter().map(|row| row.left_out.as_deref().unwrap_or("-")).collect();
    assert_eq!(
        reasons,
        [
            "-",
            "it has the task and the calls of an earlier one: traces.jsonl:1",
            "the exam asks what it asks: who is bob",
            "it holds what looks like a token of Hugging Face; `allow_secrets` keeps it",
            "it calls `drop`, which is not offered",
            "it ends with a result and without an answer",
            "it has no `messages` and no `conversations`",
            "-",
        ]
    );
    assert_eq!((metrics["traces"], metrics["episodes"], metrics["repaired"]), (8.0, 2.0, 1.0));
    assert_eq!(rows[7].repairs, ["`mcp__people__age` is `age`"]);
    assert_eq!(episodes[1].scenario_id, "traces.jsonl:8");

    let failure = bench.run(json!({})).await.unwrap_err();
    assert_eq!(failure.code(), "traces::left_out");
    assert!(
        failure
            .to_string()
            .starts_with("6 of 8 traces are left out: 1 × it calls `drop`, which is not offered; "),
        "{failure}"
    );
}

#[tokio::test]
async fn a_call_that_does_not_fit_is_seen_and_not_learned() {
    let mut messages = asked("How old is Ada?");
    messages.splice(
        2..2,
        [
            json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "w", "type": "function", "function": {"name": "age", "arguments": "{\"who\": 1}"}}]}),
            result("w", "error: `of` is missing"),
        ],
    );
    let bench = Bench::new(&[json!({"messages": messages, "correct": false})]);
    let (_, episodes, rows) = bench.run(json!({})).await.unwrap();
    let shown = bench.shown(&episodes[0]);
    assert!(
        shown[0].contains("assistant\n<tool_call>\n{\"name\": \"age\", \"arguments\": {\"who\": 1}}"),
        "{shown:?}"
    );
    assert!(rows[0].repairs[0].starts_with("turn 1 is not learned: "), "{:?}", rows[0].repairs);
    assert_eq!((episodes[0].correct, shown[0].matches('⟦').count()), (Some(false), 2));
}

#[tokio::test]
async fn long_results_are_cut_as_the_agent_will_see_them() {
    let mut messages = asked("How old is Ada?");
    messages[3]["content"] = "x".repeat(500).into();
    let bench = Bench::new(&[json!({"messages": messages})]);
    let (_, episodes, rows) = bench.run(json!({"result_chars": 64})).await.unwrap();
    assert!(bench.shown(&episodes[0])[0].contains("characters left out]"));
    assert_eq!(rows[0].repairs, ["results are cut to 64 characters"]);
}

#[tokio::test]
async fn a_conversation_about_the_exam_is_left_out_wherever_and_however_it_asks() {
    let mut later = asked("How old is Ada?");
    later.extend(asked("Who is Bob?").split_off(1));
    let [mut in_part, mut by_call, mut named, mut other] = [(); 4].map(|()| asked(""));
    in_part[1]["content"] = "Hello!\nWho is Bob?\nThanks.".into();
    by_call[1]["content"] = "The years of that person, please".into();
    named[1]["content"] = "Since when has Ada Byron been here?".into();
    other[1]["content"] = "Since when has Ada Lovelace been here?".into();
    (named[2], other[2]) = (called("a", "Byron"), called("a", "Lovelace"));
    let conversations = [later, in_part, by_call, named, other];
    let bench = Bench::new(&conversations.map(|messages| json!({"messages": messages})));
    let call = json!([{"name": "age", "arguments": {"of": "ada"}}]).to_string();
    let task = |task: &str, answer: Option<&str>| Scenario {
        task: task.into(),
        answer: answer.map(str::to_owned),
        ..Scenario::default()
    };
    let exam = [
        task("who is Bob", None),
        Scenario { reference: Some(call), ..task("What is the age of the first of us?", Some("36")) },
        task("How many years is Ada Byron with us?", Some("36")),
    ];
    data::write(&bench.path("exam.parquet"), &exam).unwrap();
    let (_, _, rows) = bench.run(json!({"max_left_out": 1.0})).await.unwrap();
    let out: Vec<bool> = rows.iter().map(|row| row.left_out.is_some()).collect();
    assert_eq!(out, [true, true, true, true, false], "{rows:#?}");
}

#[tokio::test]
async fn conversations_on_one_task_are_episodes_of_one_task() {
    let answered = |asked: &str, answer: &str| json!({"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]});
    let mut second = answered("Hi", "Hello");
    second["messages"].as_array_mut().unwrap().extend([
        json!({"role": "user", "content": "how old is ada"}),
        json!({"role": "assistant", "content": "36, I think"}),
    ]);
    let bench = Bench::new(&[
        answered("How old is Ada?", "36"),
        second,
        answered("How old is Bob?", "41"),
        answered("How old is Ada?", "She is 36"),
    ]);
    let (_, episodes, _) = bench.run(json!({})).await.unwrap();
    let tasks: Vec<&str> = episodes.iter().map(|episode| episode.scenario_id.as_str()).collect();
    assert_eq!(tasks, ["traces.jsonl:1", "traces.jsonl:1", "traces.jsonl:3", "traces.jsonl:1"]);
}

#[tokio::test]
async fn arguments_that_a_table_has_filled_with_null_are_left_out() {
    let mut messages = asked("How old is Ada?");
    let call = &mut messages[2]["tool_calls"][0]["function"];
    let mut arguments: Value = match &call["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        other => other.clone(),
    };
    (arguments["who"], arguments["limit"]) = (Value::Null, Value::Null);
    call["arguments"] = arguments.to_string().into();
    let bench = Bench::new(&[json!({ "messages": messages })]);
    let (_, episodes, rows) = bench.run(json!({})).await.unwrap();
    assert!(rows[0].left_out.is_none(), "{:?}", rows[0].left_out);
    assert!(rows[0].repairs.iter().any(|repair| repair.contains("are null")), "{:?}", rows[0].repairs);
    let said = json!(episodes[0].messages).to_string();
    assert!(!said.contains("limit"), "{said}");
}
