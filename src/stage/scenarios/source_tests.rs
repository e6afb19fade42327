//! The sources that make scenarios from a live server: exploration, a language model, conversations, and their mix.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use axum::{Json, Router, extract::State as Shared, http::StatusCode, response::IntoResponse, routing::post};
use serde_json::{Value, json};

use super::{tests::Demo, *};
use crate::{
    data::{self, Admission, Scenario, Tool},
    mcp::{ServerSpec, State, Transport},
    stage::{Rows as _, testing},
    tasks::{answer_rule, candidate},
};

struct Output {
    metrics: Metrics,
    start: Vec<Scenario>,
    train: Vec<Scenario>,
    heldout: Vec<Scenario>,
    admission: Vec<Admission>,
    guide: String,
}

impl Output {
    fn all(&self) -> impl Iterator<Item = &Scenario> {
        self.train.iter().chain(&self.heldout)
    }

    fn reasons(&self) -> BTreeSet<&str> {
        self.admission.iter().filter_map(|row| row.reason.as_deref()).collect()
    }
}

async fn stage(demo: &Demo, params: Value) -> Result<Output> {
    stage_with(&demo.server, &demo.tools, params).await
}

async fn stage_with(server: &ServerSpec, tools: &[Tool], params: Value) -> Result<Output> {
    let folder = tempfile::tempdir().unwrap();
    let (table, output) = (folder.path().join("tools.parquet"), folder.path().join("out"));
    data::write(&table, tools).unwrap();
    let (mut context, _) = testing::context("scenarios", &[("tools", &table)], &output, params);
    context.servers = Some(server.clone().into());
    let metrics = testing::run(&context).await?;
    Ok(Output {
        metrics,
        start: data::read(&output.join("start.parquet")).unwrap(),
        train: data::read(&output.join("train.parquet")).unwrap(),
        heldout: data::read(&output.join("heldout.parquet")).unwrap(),
        admission: data::read(&output.join("admission.parquet")).unwrap(),
        guide: std::fs::read_to_string(output.join("guide.md")).unwrap(),
    })
}

fn explored() -> Value {
    json!({"source": "explored", "explore_calls": 120, "tasks": 150})
}

/// What exploring the demo gives. It takes seconds, so tests that only read it share one.
async fn explored_once() -> &'static Output {
    static OUTPUT: tokio::sync::OnceCell<Output> = tokio::sync::OnceCell::const_new();
    OUTPUT.get_or_init(async || stage(&Demo::start().await, explored()).await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_server_is_explored_without_a_model() {
    let demo = Demo::start().await;
    let output = explored_once().await;
    assert!(output.metrics["admitted"] >= 100.0, "{:?}", output.metrics);
    assert_eq!(output.metrics["tools_covered"], output.metrics["tools"], "{:?}", output.metrics);
    assert_eq!(output.metrics["admitted"] as usize, output.all().count());
    let names: Vec<&str> = demo.tools.iter().map(|tool| tool.name.as_str()).collect();
    let mut tasks = BTreeSet::new();
    for scenario in output.all() {
        assert!(tasks.insert(&scenario.task), "twice: {}", scenario.task);
        assert!(!names.iter().any(|name| scenario.task.contains(name)), "names a tool: {}", scenario.task);
        let answer = scenario.answer.as_deref().unwrap();
        assert!(
            answer == candidate::NONE
                || scenario.family.starts_with("no call needed")
                || scenario.check == "set"
                || !answer_rule::states(&scenario.task, answer),
            "{} → {answer}",
            scenario.task
        );
        let candidates = scenario.candidates.as_deref();
        match scenario.check.as_str() {
            "number" => assert_eq!(candidates, Some(&[][..]), "{}", scenario.task),
            _ => assert!(
                candidates.is_none_or(|known| !known.iter().any(|one| one == answer)),
                "{}",
                scenario.task
            ),
        }
    }
    // What one task asks for is a candidate of the others of its kind.
    let mut checked = 0;
    for one in output.all().filter(|one| one.check == "text") {
        let candidates = one.candidates.as_deref().unwrap_or_default();
        let others = output.all().filter(|other| other.family == one.family && other.answer != one.answer);
        let answers = others.filter_map(|other| other.answer.as_ref());
        for other in answers.filter(|answer| *answer != candidate::NONE) {
            assert!(candidates.contains(other), "{}: {other} and {candidates:?}", one.task);
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked}");
    assert!(
        output.metrics["calls_2"] + output.metrics["calls_3"] + output.metrics["calls_4"] > 20.0,
        "{:?}",
        output.metrics
    );
    // Rows that tasks name.
    let entities = |scenarios: &[Scenario]| -> BTreeSet<String> {
        let named = scenarios.iter().filter_map(|scenario| {
            let entity: BTreeMap<String, String> = serde_json::from_str(scenario.entity.as_deref()?).unwrap();
            entity.into_iter().find(|(key, _)| key.ends_with("name")).map(|(_, name)| name)
        });
        named.collect()
    };
    assert!(!entities(&output.heldout).is_empty());
    assert!(entities(&output.train).is_disjoint(&entities(&output.heldout)));
}

#[tokio::test(flavor = "multi_thread")]
async fn exploration_depends_on_the_seed_and_the_state_alone() {
    let first = explored_once().await;
    let again = stage(&Demo::start().await, explored()).await.unwrap();
    let tables = |output: &Output| [&output.train, &output.heldout].map(Vec::clone);
    assert_eq!(tables(first), tables(&again));
    assert_eq!((&first.admission, &first.guide), (&again.admission, &again.guide));
}

#[tokio::test(flavor = "multi_thread")]
async fn exploration_writes_what_the_server_holds_and_how_it_is_called() {
    let demo = Demo::start().await;
    let guide = &explored_once().await.guide;
    assert!(guide.chars().count() <= 1500, "{guide}");
    assert!(guide.starts_with("What the server holds:\n- "), "{guide}");
    assert!(guide.contains(" number key") && guide.contains(" number of "), "{guide}");
    for tool in &demo.tools {
        assert!(tool.synthetic || guide.contains(&format!("\n- {}(", tool.name)), "{}: {guide}", tool.name);
    }
}

/// A server whose tools behave badly: a clock, a counter that calls change, errors, and a tool that is declared destructive.
async fn odd_server(calls: std::sync::Arc<std::sync::Mutex<Vec<String>>>) -> ServerSpec {
    let answer = move |Shared(calls): Shared<std::sync::Arc<std::sync::Mutex<Vec<String>>>>, body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        let tool = |name: &str, description: &str, annotations: Value| json!({"name": name, "description": description, "inputSchema": {"type": "object"}, "annotations": annotations});
        let result = match request["method"].as_str().unwrap() {
            "initialize" => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
            }),
            "tools/list" => json!({"tools": [
                tool("list_pets", "Lists the pets", json!({"readOnlyHint": true})),
                tool("tick", "Gives the number of ticks so far", json!({"readOnlyHint": true})),
                tool("adopt", "Adopts a pet", json!({})),
                tool("broken", "Gives the state of the shelter", json!({})),
                tool("wipe", "Deletes all pets", json!({"destructiveHint": true})),
            ]}),
            "tools/call" => {
                let name = request["params"]["name"].as_str().unwrap().to_owned();
                let mut calls = calls.lock().unwrap();
                calls.push(name.clone());
                let adopted = calls.iter().filter(|call| *call == "adopt").count();
                let (text, is_error) = match name.as_str() {
                    "list_pets" => (json!([{"name": "Rex", "age": 3}, {"name": "Tom", "age": 5}, {"name": "Ada", "age": 7 + adopted}]).to_string(), false),
                    "tick" => (calls.len().to_string(), false),
                    "adopt" => ("Adopted.".into(), false),
                    "broken" => ("Error: no such shelter".into(), false),
                    _ => ("gone".into(), true),
                };
                json!({"content": [{"type": "text", "text": text}], "isError": is_error})
            }
            _ => return StatusCode::ACCEPTED.into_response(),
        };
        let reply = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        ([("mcp-session-id", "s")], Json(reply)).into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let app = Router::new().route("/mcp", post(answer)).with_state(calls);
    tokio::spawn(async { axum::serve(listener, app).await });
    ServerSpec::new(Transport::http(url), State::ReadOnly)
}

/// A shop whose lists end after some orders, and which answers one question by chance.
async fn paged_server() -> ServerSpec {
    let orders: Vec<Value> = (1..58)
        .map(|id| json!({"order_id": id, "customer": format!("cust{}", id % 7), "total": 10 + 3 * id % 50, "city": (["Oslo", "Bern", "Rome"][id % 3])}))
        .collect();
    let rolls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let answer = move |body: String| {
        let (orders, rolls) = (orders.clone(), rolls.clone());
        async move {
            let request: Value = serde_json::from_str(&body).unwrap();
            let tool = |name: &str, description: &str, required: Value, properties: Value| {
                json!({"name": name, "description": description,
            "inputSchema": {"type": "object", "required": required, "properties": properties}})
            };
            let result = match request["method"].as_str().unwrap() {
                "initialize" => json!({
                    "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
                }),
                "tools/list" => json!({"tools": [
                    tool("list_orders", "List the orders of the shop.", json!([]), json!({"limit": {"type": "integer", "default": 20}, "offset": {"type": "integer", "default": 0}})),
                    tool("get_order", "Get the details of an order.", json!(["order_id"]), json!({"order_id": {"type": "integer"}})),
                    tool("orders_of_customer", "List the orders of a customer.", json!(["customer"]), json!({"customer": {"type": "string"}})),
                    tool("roll", "Tell whether the shop has a lottery winner.", json!([]), json!({})),
                ]}),
                "tools/call" => {
                    let arguments = &request["params"]["arguments"];
                    let of = |name: &str| arguments[name].as_u64().map(|value| value as usize);
                    let text = match request["params"]["name"].as_str().unwrap() {
                        "list_orders" => {
                            let shown =
                                orders.iter().skip(of("offset").unwrap_or(0)).take(of("limit").unwrap_or(20));
                            json!(shown.collect::<Vec<_>>()).to_string()
                        }
                        "get_order" => {
                            let found =
                                orders.iter().find(|order| order["order_id"] == arguments["order_id"]);
                            found.map_or_else(|| "Error: no such order".to_owned(), Value::to_string)
                        }
                        "orders_of_customer" => {
                            let own =
                                orders.iter().filter(|order| order["customer"] == arguments["customer"]);
                            json!(own.take(5).collect::<Vec<_>>()).to_string()
                        }
                        _ => ["yes", "no", "no"]
                            [rolls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3]
                            .to_owned(),
                    };
                    json!({"content": [{"type": "text", "text": text}], "isError": false})
                }
                _ => return StatusCode::ACCEPTED.into_response(),
            };
            let reply = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
            ([("mcp-session-id", "s")], Json(reply)).into_response()
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let app = Router::new().route("/mcp", post(answer));
    tokio::spawn(async { axum::serve(listener, app).await });
    ServerSpec::new(Transport::http(url), State::ReadOnly)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_no_whole_an_amount_no_id_and_chance_spoils_nothing() {
    let server = paged_server().await;
    let session = crate::mcp::Session::connect(&server).await.unwrap();
    let tools = crate::offered::tool_rows(session.describe().await.unwrap().tools);
    session.close().await;
    let output =
        stage_with(&server, &tools, json!({"source": "explored", "explore_calls": 120})).await.unwrap();
    assert!(!output.reasons().contains("state-breaking"), "{:?}", output.admission);
    let mut used = BTreeSet::new();
    for scenario in output.all() {
        let calls: Vec<Value> = serde_json::from_str(scenario.reference.as_deref().unwrap()).unwrap();
        let names: Vec<&str> = calls.iter().filter_map(|call| call["name"].as_str()).collect();
        used.extend(names.iter().map(|name| (*name).to_owned()));
        assert!(!names.contains(&"roll"), "{}", scenario.task);
        // What is asked about all orders is not known.
        let asks: Value = serde_json::from_str(&scenario.asks.as_ref().unwrap().0).unwrap();
        let operation = asks["operation"].as_str().unwrap();
        assert!(["field", "absent", "said"].contains(&operation), "{}: {asks}", scenario.task);
        // An order's id is said, or the id of an order.
        let id = &asks["source"]["arguments"]["order_id"];
        assert!(!id.is_object() || id["of"]["field"] == "order_id", "{}: {asks}", scenario.task);
        assert!(!["limit", "offset"].iter().any(|word| scenario.task.contains(word)), "{}", scenario.task);
    }
    assert!(used.contains("get_order"), "{used:?}");
    // Of few tasks, few need no call.
    let count = output.all().filter(|scenario| scenario.family.starts_with("no call needed")).count();
    assert!(count * 15 <= output.all().count(), "{count} of {}", output.all().count());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_task_is_refused_with_its_reason_and_destructive_tools_are_not_called() {
    let calls = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let server = odd_server(calls.clone()).await;
    let session = crate::mcp::Session::connect(&server).await.unwrap();
    let tools = crate::offered::tool_rows(session.describe().await.unwrap().tools);
    session.close().await;
    let output =
        stage_with(&server, &tools, json!({"source": "explored", "explore_calls": 40})).await.unwrap();
    assert!(!calls.lock().unwrap().iter().any(|call| call == "wipe"));
    let reasons = output.reasons();
    assert!(reasons.contains("state-breaking"), "{:?}", output.admission);
    assert!(output.all().any(|scenario| scenario.task.contains("Rex")), "{:?}", output.admission);
    for scenario in output.all() {
        let reference = scenario.reference.as_deref().unwrap();
        assert!(!["adopt", "tick", "broken"].iter().any(|name| reference.contains(name)), "{reference}");
    }
    // Two nouns of coverage: what is declared destructive does not count.
    assert_eq!((output.metrics["tools"], output.metrics["tools_covered"]), (4.0, 1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_safe_tool_gives_no_task() {
    let demo = Demo::start().await;
    let Err(error) = stage_with(&demo.server, &[], explored()).await else {
        panic!("no task is possible");
    };
    assert_eq!(error.cause().code(), "scenarios::nothing_admitted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_held_out_set_is_the_same_or_refused() {
    let demo = Demo::start().await;
    let mut params = json!({"source": "explored", "explore_calls": 40, "tasks": 40});
    let digest = split::digest(&stage(&demo, params.clone()).await.unwrap().heldout).to_string();
    params["heldout_digest"] = digest.into();
    stage(&demo, params.clone()).await.unwrap();
    params["split_by"] = "family".into();
    let Err(error) = stage(&demo, params).await else { panic!("another set") };
    assert_eq!(error.cause().code(), "scenarios::heldout_differs");
}

#[tokio::test]
async fn a_task_in_both_splits_of_a_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.jsonl");
    let lines = "{\"task\": \"How old is Ada?\", \"split\": \"train\"}\n{\"task\": \"how old is  ADA?\", \"split\": \"heldout\"}\n";
    std::fs::write(&file, lines).unwrap();
    let (context, _) = testing::context(
        "scenarios",
        &[],
        &folder.path().join("out"),
        json!({"source": "file", "file": file}),
    );
    let error = testing::run(&context).await.unwrap_err();
    assert_eq!(error.cause().code(), "scenarios::trains_on_heldout");
    assert!(error.to_string().contains("How old is Ada?"), "{error}");
}

/// The stage over the demo with this exam of other stages.
async fn stage_beside(demo: &Demo, exam: &[Scenario], params: Value) -> [Vec<Scenario>; 3] {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    data::write(&path("tools.parquet"), &demo.tools).unwrap();
    data::write(&path("exam.parquet"), exam).unwrap();
    let (tools, other) = (path("tools.parquet"), path("exam.parquet"));
    let inputs = [("tools", tools.as_path()), ("held_out", other.as_path())];
    let (mut context, _) = testing::context("scenarios", &inputs, &path("out"), params);
    context.servers = Some(demo.server.clone().into());
    testing::run(&context).await.unwrap();
    ["start", "train", "heldout"].map(|table| data::read(&path(&format!("out/{table}.parquet"))).unwrap())
}

/// A person's question about the same: other words, the query written otherwise, or without a solution.
fn asked_by_a_person(task: &Scenario, number: usize) -> Scenario {
    let mut calls = candidate::reference_calls(task);
    let query = calls.last().unwrap().arguments["sql"].as_str().unwrap().to_owned();
    calls.drain(..calls.len() - 1);
    calls[0].arguments["sql"] = format!("  {} ;", query.replace("SELECT ", "select  ")).into();
    let reference = number.is_multiple_of(2).then(|| candidate::calls_json(&calls));
    Scenario {
        id: format!("person {number}"),
        split: "file".into(),
        family: "file".into(),
        task: format!("Hello! {} Thank you!", task.task),
        answer: task.answer.clone(),
        check: task.check.clone(),
        entity: task.entity.clone(),
        reference,
        ..Scenario::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_exam_asks_in_other_words_is_neither_trained_on_nor_examined() {
    let demo = Demo::start().await;
    let Output { start, train, heldout, .. } = explored_once().await;
    let queried = |task: &&Scenario| task.reference.as_ref().is_some_and(|calls| calls.contains("SELECT"));
    let found: Vec<&Scenario> = start.iter().chain(train).chain(heldout).filter(queried).collect();
    let exam: Vec<Scenario> =
        found.iter().step_by(3).enumerate().map(|(number, task)| asked_by_a_person(task, number)).collect();
    let facts = data::Facts::of_exam(&exam);
    assert!(exam.len() > 20 && found.iter().filter(|task| facts.has(task)).count() >= exam.len());
    let tables = stage_beside(&demo, &exam, explored()).await;
    let asked: Vec<&Scenario> = tables.iter().flatten().filter(|task| facts.has(task)).collect();
    assert!(asked.is_empty(), "{asked:#?}");
    assert!(tables.iter().map(Vec::len).sum::<usize>() > 60, "others take their place");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lesson_asks_what_the_users_own_held_out_tasks_ask() {
    let demo = Demo::start().await;
    let folder = tempfile::tempdir().unwrap();
    let Output { start, train, .. } = explored_once().await;
    let queried = |task: &&Scenario| task.reference.as_ref().is_some_and(|calls| calls.contains("SELECT"));
    let found = start.iter().chain(train).filter(queried).step_by(2).enumerate();
    let own: Vec<Scenario> = found.map(|(number, task)| asked_by_a_person(task, number)).collect();
    let file = folder.path().join("own.parquet");
    data::write(&file, &own).unwrap();
    let params = json!({"source": "file", "file": file, "explore_calls": 120, "lessons": 100});
    let [start, train, heldout] = stage_beside(&demo, &[], params).await;
    let facts = data::Facts::of_exam(&heldout);
    assert!(heldout.len() > 20 && start.len() > 20, "{} {}", heldout.len(), start.len());
    let asked: Vec<&Scenario> = start.iter().chain(&train).filter(|task| facts.has(task)).collect();
    assert!(asked.is_empty(), "{asked:#?}");
    let marked = heldout.iter().filter(|task| task.trained_kind.is_some()).count();
    assert!(marked > 5, "a solution says its kind");
    let fact = |task: &Scenario| task.fact.as_ref().unwrap().0.contains("\"values\"");
    assert!(heldout.iter().chain(&start).all(fact), "for those who read the tables");
}

fn chat(task: &str, call: Value, answer: &str) -> Value {
    json!({"messages": [
        {"role": "user", "content": task},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "whatever it said then"},
        {"role": "assistant", "content": answer},
    ]})
}

fn query(sql: &str) -> Value {
    json!({"name": "run_query", "arguments": json!({"sql": sql}).to_string()})
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_become_tasks_if_they_reproduce() {
    let demo = Demo::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chats.json");
    let chats = json!([
        chat("How many departments are there?", query("SELECT COUNT(*) AS n, 1 AS one FROM departments"), "There are 8 departments."),
        chat("How many people work here?", query("SELECT COUNT(*) FROM employees"), "There are 51."),
        chat("Which tables are there?", query("SELECT nonsense"), "None."),
        chat("Drop it.", json!({"name": "drop_table", "arguments": {}}), "Done."),
        {"messages": "broken"},
    ]);
    std::fs::write(&file, chats.to_string()).unwrap();
    let output =
        stage(&demo, json!({"source": "traces", "traces": file, "heldout_share": 0.0})).await.unwrap();
    let found: Vec<_> = output
        .train
        .iter()
        .map(|one| (one.task.as_str(), one.answer.as_deref().unwrap(), one.check.as_str()))
        .collect();
    assert_eq!(found, [("How many departments are there?", "8", "number")]);
    assert_eq!(output.train[0].candidates, Some(vec![]));
    assert_eq!((output.admission.len(), output.metrics["refused_unsolvable"]), (5, 4.0));
}

/// An endpoint that gives these replies in turn, and the number of its requests.
async fn counted_generator(
    replies: &[Value],
) -> (String, std::sync::Arc<(std::sync::atomic::AtomicUsize, Vec<String>)>) {
    let replies: Vec<String> =
        replies.iter().map(|reply| reply.as_str().map_or_else(|| reply.to_string(), str::to_owned)).collect();
    let state = std::sync::Arc::new((std::sync::atomic::AtomicUsize::new(0), replies));
    let reply = |Shared(state): Shared<std::sync::Arc<(std::sync::atomic::AtomicUsize, Vec<String>)>>,
                 body: String| async move {
        assert!(body.contains("departments"), "the prompt is grounded in sampled results");
        let turn = state.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % state.1.len();
        Json(
            json!({"choices": [{"message": {"role": "assistant", "content": state.1[turn]}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}),
        )
    };
    let app = Router::new().route("/v1/chat/completions", post(reply)).with_state(state.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    (url, state)
}

async fn generator(replies: &[Value]) -> String {
    counted_generator(replies).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_language_models_tasks_count_once_their_calls_solve_them() {
    let demo = Demo::start().await;
    let task = |task: &str, kind: &str, calls: Value, answer: &str| json!({"task": task, "kind": kind, "calls": calls, "answer": answer});
    let call = |sql: &str| json!({"tool": "run_query", "arguments": {"sql": sql}});
    let url = generator(&[
        json!([
            task(
                "How many departments does the company have?",
                "single-tool",
                json!([call("SELECT COUNT(*) FROM departments")]),
                "8"
            ),
            task(
                "How many projects are there?",
                "error-recovery",
                json!([call("SELECT COUNT(*) FROM project"), call("SELECT COUNT(*) FROM projects")]),
                "24"
            ),
            task("Book a table for two.", "no-call", json!([]), ""),
        ]),
        "no JSON at all".into(),
        "{\"task\": \"cut off".into(),
        json!([
            task(
                "How many people work here?",
                "single-tool",
                json!([call("SELECT COUNT(*) FROM employees")]),
                "51"
            ),
            task("What is 8?", "single-tool", json!([call("SELECT COUNT(*) FROM departments")]), "8"),
            task(
                "Use run_query to count the projects.",
                "single-tool",
                json!([call("SELECT COUNT(*) FROM projects")]),
                "24"
            ),
            task("Erase all.", "single-tool", json!([{"tool": "erase"}]), "done"),
            task(
                "How many departments does the company have?",
                "single-tool",
                json!([call("SELECT COUNT(*) FROM departments")]),
                "8"
            ),
        ]),
    ])
    .await;
    let params = json!({"source": "llm", "base_url": url, "model": "m", "tasks": 16, "explore_calls": 40, "heldout_share": 0.0, "concurrency": 1});
    let output = stage(&demo, params).await.unwrap();
    let found: BTreeSet<&str> = output.train.iter().map(|one| one.task.as_str()).collect();
    assert_eq!(
        found,
        [
            "Book a table for two.",
            "How many departments does the company have?",
            "How many projects are there?"
        ]
        .into()
    );
    let expected = ["duplicate", "leaking", "trivial", "unsolvable"];
    assert_eq!(output.reasons(), expected.into(), "{:?}", output.admission);
    let refusal = output.train.iter().find(|one| one.answer.is_none()).unwrap();
    assert!(refusal.checks.as_ref().unwrap().0.contains("\"at_most\":0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_the_engine_writes_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let reply = |task: &str, answer: &str| {
        json!([{"task": task, "kind": "single-tool", "calls": [{"tool": "t"}], "answer": answer}]).to_string()
    };
    let replies = [
        reply("How is the weather?", "fine"),
        reply("How is the sea?", "rough"),
        "I cannot think of a task.".to_owned(),
    ];
    testing::replier(&path("model"), &replies, 8192);
    let server = testing::tool_server(|_| 200).await;
    let tools = crate::mcp::Session::connect(&server).await.unwrap().describe().await.unwrap().tools;
    let tools = crate::offered::tool_rows(tools);
    data::write(&path("tools.parquet"), &tools).unwrap();
    let stage = |name: &str, params: Value| {
        let (tools, model) = (path("tools.parquet"), path("model"));
        let inputs = [("tools", tools.as_path()), ("local_model", model.as_path())];
        let mut all =
            json!({"source": "llm", "tasks": 40, "explore_calls": 3, "heldout_share": 0.0, "max_tokens": 50});
        all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        let (mut context, rows) = testing::context("scenarios", &inputs, &path(name), all);
        context.servers = Some(server.clone().into());
        (context, rows)
    };
    let (context, rows) = stage("one", json!({}));
    let metrics = testing::run(&context).await.unwrap();
    let train: Vec<Scenario> = data::read(&path("one/train.parquet")).unwrap();
    assert_eq!(
        train.iter().map(|one| (one.task.as_str(), one.answer.as_deref())).collect::<Vec<_>>(),
        [("How is the weather?", Some("fine"))]
    );
    assert!(metrics["refused_unsolvable"] >= 2.0 && metrics["refused_duplicate"] >= 1.0, "{metrics:?}");
    let usage = context.meter.total();
    assert!(usage.sampled_tokens == 30 && !usage.is_billed(), "{usage:?}");
    assert_eq!(rows.finished().unwrap().len(), 15, "a resumed stage samples none again");
    testing::run(&context).await.unwrap();
    assert_eq!(context.meter.total().sampled_tokens, 30);

    let (alone, _) = stage("alone", json!({"concurrency": 1}));
    testing::run(&alone).await.unwrap();
    for table in ["train.parquet", "admission.parquet"] {
        assert_eq!(
            std::fs::read(path("one").join(table)).unwrap(),
            std::fs::read(path("alone").join(table)).unwrap()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ceiling_stops_the_generator_and_replies_that_are_paid_for_are_kept() {
    let demo = Demo::start().await;
    let task = json!([{
        "task": "How many departments does the company have?", "kind": "single-tool", "answer": "8",
        "calls": [{"tool": "run_query", "arguments": {"sql": "SELECT COUNT(*) FROM departments"}}],
    }]);
    let (url, state) = counted_generator(&[task]).await;
    let folder = tempfile::tempdir().unwrap();
    let (table, output) = (folder.path().join("tools.parquet"), folder.path().join("out"));
    data::write(&table, &demo.tools).unwrap();
    // A request costs 0.000002 dollars, and reserves about a thousandth for its reply.
    let params = json!({
        "source": "llm", "base_url": url, "model": "m", "tasks": 16, "explore_calls": 40, "heldout_share": 0.0,
        "concurrency": 1, "max_tokens": 1000, "max_cost": 0.0,
    });
    let (mut context, rows) = testing::context("scenarios", &[("tools", &table)], &output, params);
    context.servers = Some(demo.server.clone().into());
    let code = async |context: &Context| testing::run(context).await.map_err(|failure| failure.code());
    assert_eq!(code(&context).await.unwrap_err(), "scenarios::no_prices");
    context.prices = Some(crate::usage::Prices { prompt: 1.0, completion: 1.0 });
    assert_eq!(code(&context).await.unwrap_err(), "llm::ceiling");
    let asked = || state.0.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!((asked(), rows.finished().unwrap().len()), (0, 0));
    // Enough for the reserve of the first requests only: the reserve shrinks to what they cost.
    context.prices = Some(crate::usage::Prices { prompt: 0.0, completion: 1.0 });
    context.params.insert("max_cost".into(), json!(0.001_002_5));
    assert_eq!(code(&context).await.unwrap_err(), "llm::ceiling");
    let paid = asked();
    assert!((1..6).contains(&paid) && rows.finished().unwrap().len() == paid, "{paid} requests");
    context.params.remove("max_cost");
    testing::run(&context).await.unwrap();
    assert_eq!(asked(), 6, "what is paid for is not asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mix_takes_of_each_source_by_weight() {
    let demo = Demo::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.jsonl");
    let lines: String = (0..40)
        .map(|n| {
            format!(
                "{{\"task\": \"task {n}\", \"answer\": \"{n}!\", \"split\": \"{}\"}}\n",
                if n < 30 { "train" } else { "heldout" }
            )
        })
        .collect();
    std::fs::write(&file, lines).unwrap();
    let mut params = explored();
    params["source"] = "mix".into();
    params["file"] = json!(file);
    params["mix"] = json!({"explored": 2, "file": 1});
    let output = stage(&demo, params.clone()).await.unwrap();
    let of_file = |scenarios: &[Scenario]| scenarios.iter().filter(|one| one.family == "file").count();
    let (train, own) = (output.train.len(), of_file(&output.train));
    assert!((own * 3).abs_diff(train) <= 3, "{own} of {train}");
    for (mix, problem) in [
        (json!({}), "it is empty"),
        (json!({"explored": 0}), "0 is no weight"),
        (json!({"mix": 1}), "cannot contain a mix"),
    ] {
        params["mix"] = mix;
        let Err(error) = stage(&demo, params.clone()).await else { panic!("{problem}") };
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_a_mix_holds_out_stays_admitted_where_another_source_would_train_on_it() {
    let demo = Demo::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.parquet");
    let trained = |task: &Scenario| Scenario { split: "train".into(), ..task.clone() };
    let tasks: Vec<Scenario> = explored_once().await.heldout.iter().map(trained).collect();
    data::write(&file, &tasks).unwrap();
    let mut params = explored();
    params["source"] = "mix".into();
    params["file"] = json!(file);
    params["mix"] = json!({"explored": 1, "file": 1});
    let output = stage(&demo, params).await.unwrap();
    let admitted = output.admission.iter().filter(|row| row.reason.is_none()).map(|row| row.id.as_str());
    let mut admitted: Vec<&str> = admitted.collect();
    admitted.sort_unstable();
    let tables = output.train.iter().chain(&output.heldout).map(|task| task.id.as_str());
    let mut tables: Vec<&str> = tables.collect();
    tables.sort_unstable();
    assert_eq!(admitted, tables);
    let is_held = |row: &&Admission| row.reason.as_deref() == Some("held-out");
    assert!(output.admission.iter().filter(is_held).count() >= tasks.len());
}

#[test]
fn tasks_are_read_from_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.parquet");
    let row = |task: &str, split: &str| Scenario {
        id: task.into(),
        task: task.into(),
        split: split.into(),
        check: "none".into(),
        ..Scenario::default()
    };
    data::write(&path, &[row("one", "train"), row("two", "a")]).unwrap();
    let (train, heldout) = file::load(&path, (0.5, 1).into()).unwrap();
    assert_eq!((train[0].task.as_str(), heldout[0].split.as_str()), ("one", "a"));
    write_columns(&path, &[("task", &["three", "four"]), ("answer", &["3", "x"]), ("note", &["", ""])]);
    let (train, _) = file::load(&path, (0.0, 1).into()).unwrap();
    let found: Vec<_> =
        train.iter().map(|one| (one.answer.as_deref().unwrap(), one.check.as_str())).collect();
    assert_eq!(found, [("3", "number"), ("x", "text")]);
    write_columns(&path, &[("task", &["five"]), ("answer", &["x"]), ("candidates", &["[\"y\", 7]"])]);
    let (train, _) = file::load(&path, (0.0, 1).into()).unwrap();
    assert_eq!(train[0].candidates, Some(vec!["y".to_owned(), "7".to_owned()]));
    data::write(&path, &train).unwrap();
    assert_eq!(file::load(&path, (0.0, 1).into()).unwrap().0, train, "a table of a stage keeps them");
    write_columns(&path, &[("question", &["three"])]);
    let error = file::load(&path, (0.0, 1).into()).unwrap_err().to_string();
    assert_eq!(error, "tasks.parquet: there is no column `task`");
    std::fs::write(&path, "no Parquet").unwrap();
    assert!(file::load(&path, (0.0, 1).into()).unwrap_err().to_string().contains("cannot be read"));
}

fn write_columns(path: &Path, columns: &[(&str, &[&str])]) {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    let columns = columns.iter().map(|(name, values)| {
        (*name, std::sync::Arc::new(StringArray::from_iter_values(values.iter())) as ArrayRef)
    });
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Records messages to the user.
#[derive(Default)]
struct Notes(std::sync::Mutex<Vec<String>>);

impl crate::progress::Observer for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[tokio::test]
async fn an_empty_split_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.jsonl");
    for (split, lack) in [("train", "no task is held out"), ("heldout", "no task is left to train on")] {
        std::fs::write(&file, format!("{{\"task\": \"a\", \"split\": \"{split}\"}}\n")).unwrap();
        let params = json!({"source": "file", "file": file});
        let (mut context, _) = testing::context("scenarios", &[], &folder.path().join("out"), params);
        let notes = std::sync::Arc::new(Notes::default());
        context.observer = notes.clone();
        testing::run(&context).await.unwrap();
        let notes = notes.0.lock().unwrap();
        assert!(notes[0].contains(lack), "{split}: {notes:?}");
    }
}
