//! `source = "llm"`: a language model writes tasks with their calls, grounded in sampled results.
//!
//! It is not believed: every call is executed, and the answer it states must be in the results. Its replies are read
//! tolerantly; what cannot be used is refused with its reason.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use futures::StreamExt;
use minijinja::{AutoEscape, Environment, context, value::Serde};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    TaskError,
    answer_rule::AnswerRule,
    candidate::{CANNOT, Candidate, Check},
    refusals::{Reason, Refusal},
};
use crate::{
    chat::ToolCall,
    data::{CallChecks, Checks, TextCheck, Tool},
    error::{Interrupted, Result},
    hash::Encoder,
    judge::{
        ReplyCache,
        llm::{self, LanguageModel, Message},
    },
    mcp::plain,
    progress::Observer,
};

/// Tasks asked for in one request.
const BATCH: usize = 8;
/// Requests for each wanted batch: many tasks are refused.
const SPARE: usize = 3;
const TASK_BYTES: usize = 2000;
const ANSWER_BYTES: usize = 200;
const CALLS: usize = 8;
/// Tasks read of one reply.
const OF_REPLY: usize = 64;
/// Instructions that a template may execute.
const FUEL: u64 = 2_000_000;

/// What a generator is asked for, and what it may use.
pub struct Request<'a> {
    pub prompt: &'a str,
    pub tools: &'a [Tool],
    /// Tools that may be called.
    pub callable: &'a BTreeSet<String>,
    pub examples: &'a [(ToolCall, String)],
    pub tasks: usize,
    pub seed: u64,
}

/// Asks for tasks in a fixed number of requests.
///
/// # Errors
/// If the prompt cannot be rendered, the model fails, the ceiling is reached, or the stage is cancelled.
pub async fn generate(
    request: &Request<'_>,
    asking: &ReplyContext<'_>,
) -> Result<Vec<Result<Candidate, (String, Refusal)>>> {
    let batches = request.tasks.div_ceil(BATCH).saturating_mul(SPARE).clamp(1, 500);
    let prompts: Vec<String> =
        (0..batches).map(|batch| request.render(batch)).collect::<Result<_, TaskError>>()?;
    let asked = |(batch, prompt): (usize, String)| ReplyRequest {
        messages: vec![Message::user(prompt)],
        draw: batch as u64,
    };
    let asked: Vec<ReplyRequest> = prompts.into_iter().enumerate().map(asked).collect();
    asking.observer.phase("requests", asked.len() as u64);
    let replies = asking.all(&asked).await?;
    let mut found = Vec::new();
    for reply in &replies {
        let objects = objects(reply);
        if objects.is_empty() {
            found.push(Err((String::new(), (Reason::Unsolvable, "a reply has no task in JSON".into()))));
        }
        found.extend(objects.iter().map(|object| candidate(object, request.callable)));
    }
    Ok(found)
}

/// A conversation to reply to, and its number among the stage's.
pub struct ReplyRequest {
    pub messages: Vec<Message>,
    pub draw: u64,
}

/// A language model that is asked by a stage.
pub struct ReplyContext<'a> {
    pub model: &'a dyn LanguageModel,
    /// The replies to an interrupted run of the stage, and where new ones are recorded.
    pub replies: &'a dyn ReplyCache,
    pub observer: &'a dyn Observer,
    pub cancel: &'a CancellationToken,
}

impl ReplyContext<'_> {
    /// The replies to conversations, each a step of the observer's phase.
    ///
    /// # Errors
    /// If the model fails, the ceiling is reached, or the stage is cancelled.
    pub async fn all(&self, asked: &[ReplyRequest]) -> Result<Vec<String>> {
        let shared = shared_bytes(asked);
        let failed = AtomicBool::new(false);
        // After a failure, requests in flight are completed, since they are paid for, and no other is begun.
        let ask_unless_failed = async |one| match failed.load(Ordering::Relaxed) {
            true => None,
            false => Some(self.ask(one, shared).await.inspect_err(|_| failed.store(true, Ordering::Relaxed))),
        };
        let replies: Vec<_> = asked.iter().map(ask_unless_failed).collect();
        let all = futures::stream::iter(replies).buffered(self.model.concurrency()).collect::<Vec<_>>();
        let replies = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(Interrupted.into()),
            replies = all => replies,
        };
        replies.into_iter().flatten().collect()
    }

    /// `shared`: bytes that all conversations begin with.
    async fn ask(&self, ReplyRequest { messages, draw }: &ReplyRequest, shared: usize) -> Result<String> {
        let question =
            Encoder::new("mcprl generator request v2").number(*draw).json(&json!(messages)).finish();
        let reply = match self.replies.get(&question) {
            Some(reply) => reply,
            None => {
                let request = llm::Request { messages, shared, draw: *draw, ..llm::Request::default() };
                let reply = self.model.complete(&request).await?.text;
                self.replies.put(&question, &reply)?;
                reply
            }
        };
        self.observer.advance(1);
        Ok(reply)
    }
}

/// Bytes that the first messages begin with.
fn shared_bytes(asked: &[ReplyRequest]) -> usize {
    let first =
        |asked: &ReplyRequest| asked.messages.first().map_or(String::new(), |one| one.content.clone());
    let mut shared = asked.first().map(first).unwrap_or_default();
    for other in asked.iter().map(first) {
        let differ = shared.char_indices().zip(other.chars()).find(|((_, one), other)| one != other);
        let most = differ.map_or(shared.len().min(other.len()), |((at, _), _)| at);
        shared.truncate(most);
    }
    shared.len()
}

impl Request<'_> {
    fn render(&self, batch: usize) -> Result<String, TaskError> {
        let kinds = ["single-tool", "multi-tool", "multi-tool", "error-recovery", "no-call"];
        let tool = |tool: &Tool| {
            let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
            json!({"name": tool.name, "description": tool.description, "parameters": schema.to_string()})
        };
        let callable = self.tools.iter().filter(|tool| self.callable.contains(&tool.name));
        let tools: Vec<Value> = callable.map(tool).collect();
        // Each request sees other examples.
        let mut order: Vec<&(ToolCall, String)> = self.examples.iter().collect();
        order.sort_by_cached_key(|(call, _)| {
            let mut encoder = Encoder::new("mcprl generator examples v1");
            encoder.number(self.seed).number(batch as u64).json(&json!(call));
            encoder.finish()
        });
        let example = |(call, result): &&(ToolCall, String)| json!({"tool": call.name, "arguments": json!(call.arguments).to_string(), "result": result});
        let examples: Vec<Value> = order.iter().take(12).map(example).collect();
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        let values = context! {
            tools => Serde(tools), examples => Serde(examples), count => BATCH, kind => kinds[batch % kinds.len()],
            difficulty => 1 + batch % 5,
        };
        environment
            .render_str(self.prompt, values)
            .map_err(|cause| TaskError::Prompt { problem: cause.to_string() })
    }
}

/// The JSON objects with a `task` in a reply, whatever is around them.
fn objects(reply: &str) -> Vec<Value> {
    let reply = reply.rsplit_once("</think>").map_or(reply, |(_, rest)| rest);
    let mut found = Vec::new();
    let mut rest = reply;
    while let Some(start) = rest.find('{') {
        if found.len() >= OF_REPLY {
            break;
        }
        rest = &rest[start..];
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match stream.next() {
            Some(Ok(Value::Object(fields))) => {
                let end = stream.byte_offset();
                match fields.values().find_map(Value::as_array).filter(|_| !fields.contains_key("task")) {
                    Some(inner) => {
                        found.extend(inner.iter().filter(|item| item.get("task").is_some()).cloned())
                    }
                    None if fields.contains_key("task") => found.push(Value::Object(fields)),
                    None => {}
                }
                rest = &rest[end.max(1)..];
            }
            _ => rest = &rest[1..],
        }
    }
    found.truncate(OF_REPLY);
    found
}

fn candidate(object: &Value, callable: &BTreeSet<String>) -> Result<Candidate, (String, Refusal)> {
    let task = object["task"].as_str().unwrap_or_default().trim().to_owned();
    let refused = |why: String| (task.clone(), (Reason::Unsolvable, why));
    if task.is_empty() || task.len() > TASK_BYTES {
        return Err(refused("`task` is no text, or too long".into()));
    }
    let kind = object["kind"].as_str().unwrap_or("multi-tool");
    let listed = object.get("calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if listed.len() > CALLS {
        return Err(refused(format!("it has {} calls; at most {CALLS} are allowed", listed.len())));
    }
    let calls: Vec<ToolCall> = listed
        .iter()
        .map(call)
        .collect::<Option<_>>()
        .ok_or_else(|| refused("a call is not {tool, arguments}".into()))?;
    if let Some(call) = calls.iter().find(|call| !callable.contains(&call.name)) {
        return Err(refused(format!("`{}` is no tool that is safe to call here", call.name)));
    }
    let difficulty = object["difficulty"].as_u64().unwrap_or(0).min(5);
    let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
    let answer = plain(object.get("answer").unwrap_or(&Value::Null)).trim().to_owned();
    let is_refusal = kind == "no-call";
    if is_refusal != calls.is_empty() {
        return Err(refused(format!("its kind is {kind}, but it has {} calls", calls.len())));
    }
    if !is_refusal && (answer.is_empty() || answer.len() > ANSWER_BYTES || answer.contains('\n')) {
        return Err(refused("`answer` is empty or long".into()));
    }
    let checks = is_refusal.then(|| Checks {
        answer: vec![TextCheck { matches: Some(CANNOT.into()), ..TextCheck::default() }],
        calls: Some(CallChecks { at_most: Some(0), ..CallChecks::default() }),
        ..Checks::default()
    });
    Ok(Candidate {
        family: format!("llm: {kind}: {} (difficulty {difficulty})", names.join(" > ")),
        entity: [("task".to_owned(), task.clone())].into(),
        task,
        phrasing: kind.to_owned(),
        check: if is_refusal { Check::None } else { Check::of(&answer) },
        rule: if is_refusal { AnswerRule::Nothing } else { AnswerRule::Quoted(answer) },
        calls,
        checks,
        may_fail: kind == "error-recovery",
        ..Candidate::default()
    })
}

fn call(value: &Value) -> Option<ToolCall> {
    let name = value["tool"].as_str().or_else(|| value["name"].as_str())?.to_owned();
    let arguments = match value.get("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(_) => return None,
    };
    Some(ToolCall { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_found_in_replies_of_any_shape() {
        let task = r#"{"task": "a {b}", "calls": []}"#;
        for reply in [
            task.to_owned(),
            format!("[{task}]"),
            format!("```json\n[{task}]\n```"),
            format!("<think>{{\"task\": \"no\"}}</think>Sure! {task} Done {{"),
            format!("{{\"tasks\": [{task}]}}"),
            format!("{{ broken {task}"),
            format!("[{task}, {{\"task\": \"cut"),
        ] {
            let found = objects(&reply);
            assert_eq!(
                found.iter().map(|one| one["task"].as_str().unwrap()).collect::<Vec<_>>(),
                ["a {b}"],
                "{reply}"
            );
        }
        for reply in ["", "no", "{{{{", "{\"x\": 1}"] {
            assert_eq!(objects(reply), Vec::<Value>::new(), "{reply}");
        }
        assert!(objects(&"{".repeat(5000)).is_empty());
        assert_eq!(objects(&task.repeat(200)).len(), OF_REPLY);
    }

    #[test]
    fn adversarial_tasks_are_refused_with_a_reason() {
        let callable = BTreeSet::from(["get".to_owned()]);
        for (object, why) in [
            (json!({"task": 7}), "`task` is no text"),
            (json!({"task": "x".repeat(3000)}), "too long"),
            (json!({"task": "x", "calls": [7], "answer": "y"}), "a call is not"),
            (json!({"task": "x", "calls": [{"tool": "rm"}], "answer": "y"}), "`rm` is no tool"),
            (json!({"task": "x", "calls": [], "answer": "y"}), "but it has 0 calls"),
            (json!({"task": "x", "kind": "no-call", "calls": [{"tool": "get"}]}), "but it has 1 calls"),
            (json!({"task": "x", "calls": [{"tool": "get"}]}), "`answer` is empty"),
            (json!({"task": "x", "calls": vec![json!({"tool": "get"}); 9], "answer": "y"}), "at most 8"),
        ] {
            let (_, (_, detail)) = candidate(&object, &callable).unwrap_err();
            assert!(detail.contains(why), "{object}: {detail}");
        }
        let refusal = candidate(&json!({"task": "Book a flight.", "kind": "no-call"}), &callable).unwrap();
        assert_eq!((refusal.check, refusal.rule), (Check::None, AnswerRule::Nothing));
    }
}
