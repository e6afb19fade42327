//! Tests from questions to tokens, on the demo server and the shipped families.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Value, json};

use super::{
    corpus::{Dialect, examples, write_chat},
    plans, renamed,
    tokenizer::Split,
    traces::{Trace, success, traces},
};
use crate::{
    answer::COMPLETE_TASK,
    chat::{Chat, ToolCall},
    data::Scenario,
    progress::NoProgress,
    stage::scenarios::tests::{Demo, company_families, desk_families},
};

/// Questions, the worker's traces, and the schemas of its tools.
async fn work(seed: u64, count: usize) -> (Vec<Scenario>, Vec<Trace>, Tools) {
    let demo = Demo::start().await;
    let families = company_families();
    let questions = demo.generate(&families, seed).await.unwrap().train;
    let traces = traces(&families, &questions, &demo.live, count, seed, &NoProgress, &Default::default());
    let traces = traces.await.unwrap();
    let functions = demo.tools.iter().map(|tool| serde_json::from_str(&tool.function).unwrap()).collect();
    (questions, traces, [(None, functions)].into())
}

/// The tools of the only server.
type Tools = BTreeMap<Option<String>, Vec<Value>>;

fn dialect<'a>(template: &'a str, tools: &'a Tools) -> Dialect<'a> {
    Dialect {
        template,
        system: "Use the tools.",
        tools,
        vocabulary: 1024,
        phrases: 32,
        split: Split::Names,
        context: 1024,
    }
}

fn template() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("stages/warmup/chat_template.jinja"))
        .unwrap()
}

fn pieces(chat: &Chat, text: &str) -> Vec<String> {
    chat.encode_text(text).into_iter().map(|token| chat.decode(&[token])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_is_right_often_enough_to_teach_and_too_rarely_to_copy() {
    let (questions, traces, _) = work(3, 2000).await;
    assert_eq!(traces.len(), 2000);
    let right = success(&traces);
    assert!((0.35..0.55).contains(&right), "{right}");
    let families: BTreeSet<&str> = questions.iter().map(|scenario| scenario.family.as_str()).collect();
    let ids: BTreeSet<&str> = traces.iter().map(|trace| trace.scenario_id.as_str()).collect();
    let worked_on: BTreeSet<&str> = questions
        .iter()
        .filter(|scenario| ids.contains(scenario.id.as_str()))
        .map(|scenario| scenario.family.as_str())
        .collect();
    assert_eq!(worked_on, families);
    for trace in &traces {
        assert!(trace.turns.len() <= 6, "{trace:?}");
        let (last, others) = trace.turns.split_last().unwrap();
        assert!(last.result.is_none() && others.iter().all(|turn| turn.result.is_some()), "{trace:?}");
        assert!(last.call.as_ref().is_none_or(|call| call.name == COMPLETE_TASK), "{trace:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_answers_rightly_but_leaves_the_wrong_state_has_not_solved_its_task() {
    let desk = Demo::desk().await;
    let families = desk_families();
    let questions = desk.generate(&families, 1).await.unwrap().train;
    let traces =
        traces(&families, &questions, &desk.live, 600, 1, &NoProgress, &Default::default()).await.unwrap();
    let answers: BTreeMap<&str, &str> = questions
        .iter()
        .filter_map(|question| Some((question.id.as_str(), question.answer.as_deref()?)))
        .collect();
    let submitted = |trace: &Trace| {
        let call = trace.turns.last()?.call.as_ref().filter(|call| call.name == COMPLETE_TASK)?;
        Some(call.arguments.get("answer")?.as_str()? == answers[trace.scenario_id.as_str()])
    };
    let right = traces.iter().filter(|trace| submitted(trace) == Some(true)).count();
    let solved = traces.iter().filter(|trace| trace.correct).count();
    assert!(solved < right && (0.15..0.6).contains(&success(&traces)), "{solved} of {right}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_gives_the_same_traces_and_the_same_tokenizer() {
    let template = template();
    let mut runs = Vec::new();
    for seed in [5, 5, 6] {
        let (_, traces, tools) = work(seed, 500).await;
        let folder = tempfile::tempdir().unwrap();
        write_chat(folder.path(), &traces, &dialect(&template, &tools)).unwrap();
        runs.push((traces, std::fs::read(folder.path().join("tokenizer.json")).unwrap()));
    }
    assert!(runs[0] == runs[1]);
    assert!(runs[0].0 != runs[2].0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_of_a_trace_are_its_conversation_with_the_workers_part_marked() {
    let (_, traces, tools) = work(4, 1000).await;
    let template = template();
    let folder = tempfile::tempdir().unwrap();
    let chats = write_chat(folder.path(), &traces, &dialect(&template, &tools)).unwrap();
    let rows = examples(&traces, &chats).unwrap();
    let chat = &chats[&None];
    let shared = chat.prompt("?").unwrap().shared;
    for (trace, (tokens, trained)) in traces.iter().zip(&rows) {
        assert!(tokens.starts_with(&shared), "{}", trace.task);
        let text = chat.decode(tokens);
        assert!(text.contains(&trace.task), "{text}");
        let said: Vec<u32> =
            tokens.iter().zip(trained).filter(|(_, trained)| **trained).map(|(token, _)| *token).collect();
        let turns: Vec<_> = said.split_inclusive(|token| *token == chat.stop()[0]).collect();
        assert_eq!(turns.len(), trace.turns.len());
        for (turn, tokens) in trace.turns.iter().zip(turns) {
            let calls: Vec<_> = chat.parse(tokens).calls.into_iter().map(Result::unwrap).collect();
            assert_eq!(calls.as_slice(), turn.call.as_slice());
        }
    }
    let own: usize = rows.iter().map(|(tokens, _)| tokens.len() - shared.len()).sum();
    let said: usize = rows.iter().flat_map(|(_, trained)| trained).filter(|trained| **trained).count();
    let mean = |tokens: usize| tokens as f64 / rows.len() as f64;
    assert!(
        shared.len() <= 100 && mean(own) < 95.0 && mean(said) < 30.0,
        "{} {} {}",
        shared.len(),
        mean(own),
        mean(said)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_columns_and_numbers_have_the_same_tokens_wherever_they_stand() {
    let (questions, traces, tools) = work(4, 1000).await;
    let template = template();
    let folder = tempfile::tempdir().unwrap();
    let chat = &write_chat(folder.path(), &traces, &dialect(&template, &tools)).unwrap()[&None];
    let entities = questions.iter().filter_map(|scenario| scenario.answer.clone());
    let things: BTreeSet<String> = entities
        .chain(["annual_pay".into(), "dept_name".into(), "2013".into()])
        // A lower-case word keeps the space before it.
        .filter(|thing| thing.contains('_') || !thing.starts_with(|letter: char| letter.is_lowercase()))
        .collect();
    for thing in &things {
        let alone = pieces(chat, thing);
        for (before, after) in
            [(" ", "?"), ("'", "'"), (": \"", "\""), ("\n", "\n"), (" | ", " | "), ("= '", "' LIMIT 1")]
        {
            let around = pieces(chat, &format!("x{before}{thing}{after}"));
            assert!(
                around.windows(alone.len()).any(|window| window == alone),
                "{around:?} does not hold {alone:?}"
            );
        }
    }
    for text in
        ["", "  two  spaces\t\n", "Zoë O'Neil — 価格 🦀", "a_b_C__d 12.5%", "<tool_call>\n{}", "<|im_end|>"]
    {
        assert_eq!(chat.decode(&chat.encode_text(text)), text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scenarios_without_reference_solutions_are_refused() {
    let demo = Demo::start().await;
    let families = company_families();
    let mut scenario = demo.generate(&families, 1).await.unwrap().train.remove(0);
    let attempt = async |scenario: &Scenario| {
        let scenarios = std::slice::from_ref(scenario);
        let made = traces(&families, scenarios, &demo.live, 1, 1, &NoProgress, &Default::default()).await;
        made.unwrap_err().code()
    };
    scenario.family = "another".into();
    assert_eq!(attempt(&scenario).await, "scenarios::unknown_family");
    scenario.reference = None;
    assert_eq!(attempt(&scenario).await, "scenarios::no_reference");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_quotes_the_lines_of_the_tools_that_the_worker_then_calls() {
    let (_, mut traces, tools) = work(3, 200).await;
    renamed::rename(&mut traces, &tools, 0.5, 1);
    plans::write(&mut traces, &tools);
    let template = format!("{}{}", plans::DESCRIBED_FIRST, template());
    let folder = tempfile::tempdir().unwrap();
    let chat = &write_chat(folder.path(), &traces, &dialect(&template, &tools)).unwrap()[&None];
    let mut compared = 0;
    for trace in &traces {
        let own = trace.tools.as_ref().map(|tools| chat.with_other_tools(tools).unwrap());
        let list = chat.decode(&own.as_ref().unwrap_or(chat).prompt(&trace.task).unwrap().shared);
        let (first, others) = trace.turns.split_first().unwrap();
        assert!(others.iter().all(|turn| turn.call.is_none() || turn.text.is_empty()), "{trace:?}");
        for (line, tool) in first.text.lines().zip(&trace.planned) {
            assert!(list.lines().any(|listed| listed == line), "{line}\n{list}");
            assert!(line.contains(&format!(" {tool}(")), "{line}");
        }
        if trace.correct {
            let mut called = trace.turns.iter().filter_map(|turn| turn.call.as_ref());
            let last = called.rfind(|call| call.name != COMPLETE_TASK).unwrap();
            assert_eq!(trace.planned[0], last.name);
            assert_eq!(first.text.lines().count(), trace.planned.len());
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
}

/// Output of Transformers' `apply_chat_template` for the same conversation.
const RENDERED: &str = "<|im_start|>system
Use the tools.
run_query(sql): Runs.
<|im_end|>
<|im_start|>user
How much does Ada earn?<|im_end|>
<|im_start|>assistant
<tool_call>
{\"name\": \"run_query\", \"arguments\": {\"sql\": \"SELECT 'é'\"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
x
1
</tool_response>
<tool_response>
y
</tool_response><|im_end|>
<|im_start|>assistant
";

#[test]
fn the_template_renders_as_in_transformers() {
    let tools = vec![json!({"type": "function", "function": {
        "name": "run_query",
        "description": "Runs.",
        "parameters": {"type": "object", "properties": {"sql": {"type": "string"}}},
    }})];
    let tools = [(None, tools)].into();
    let folder = tempfile::tempdir().unwrap();
    let chat = |template: &str| {
        write_chat(folder.path(), &[], &dialect(template, &tools)).unwrap().remove(&None).unwrap()
    };
    let described_first = chat(&format!("{}{}", plans::DESCRIBED_FIRST, template()));
    let prompt = described_first.prompt("?").unwrap().shared;
    assert!(described_first.decode(&prompt).contains("tools.\nRuns. run_query(sql)\n<|im_end|>\n"));

    let chat = chat(&template());
    let prompt = chat.prompt("How much does Ada earn?").unwrap();
    let arguments = json!({"sql": "SELECT 'é'"}).as_object().cloned().unwrap();
    let call = chat.assistant("", &[ToolCall { name: "run_query".into(), arguments }]);
    let results = chat.results(&[], &["x\n1".into(), "y".into()]);
    assert_eq!(chat.decode(&[prompt.shared, prompt.task, call, results].concat()), RENDERED);
}
