//! The models of `mcprl serve`, by OpenAI's API.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use super::{Served, added, user};
use crate::common::{Project, training_run, until};

/// Random text in which a token ends a turn now and then.
fn babbler() -> (Project, Served) {
    let project = Project::new("");
    project.llama(1);
    let served = Served::new(&project, &["llama"]);
    (project, served)
}

#[test]
fn a_stream_adds_up_to_the_whole_answer() {
    let (_project, served) = babbler();
    let whole = |request: &Value| {
        let mut whole = served.completion(request);
        let mut streamed = request.clone();
        streamed["stream_options"] = json!({"include_usage": true});
        let chunks = served.chunks(&streamed);
        assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
        let ids: Vec<&Value> = chunks.iter().map(|chunk| &chunk["id"]).collect();
        assert!(ids.iter().all(|id| *id == ids[0]) && *ids[0] != whole["id"]);
        let added = added(&chunks);
        assert_eq!(added["choices"], whole["choices"], "{request}");
        assert_eq!(added["usage"], whole["usage"]);
        whole["choices"].take()
    };
    let mut ends = Vec::new();
    for seed in 0..12 {
        let request =
            json!({"messages": user("Tell me."), "seed": seed, "max_tokens": 120, "logprobs": true});
        let choice = whole(&request)[0].take();
        let tokens = choice["logprobs"]["content"].as_array().unwrap();
        assert!(tokens.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0));
        ends.push(choice["finish_reason"].clone());
    }
    assert!(ends.contains(&"length".into()), "{ends:?}");
    let mut request =
        json!({"messages": user("Tell me."), "seed": 3, "max_tokens": 60, "n": 3, "temperature": 1.5});
    let three = whole(&request);
    assert_eq!(three.as_array().unwrap().len(), 3);
    assert_ne!(three[0]["message"], three[1]["message"]);
    request["n"] = 1.into();
    assert_eq!(whole(&request)[0], three[0], "the first answer does not depend on how many there are");

    let text = three[0]["message"]["content"].as_str().unwrap();
    let (at, _) = text.char_indices().nth(10).unwrap();
    let stop: String = text[at..].chars().take(3).collect();
    request["stop"] = json!([stop, "never written"]);
    let stopped = whole(&request)[0].take();
    let cut = text.find(&stop).unwrap();
    assert_eq!(
        (&stopped["message"]["content"], &stopped["finish_reason"]),
        (&json!(text[..cut]), &json!("stop"))
    );
}

#[test]
fn log_probabilities_are_those_of_every_sampled_token() {
    let (_project, served) = babbler();
    let request = json!({"messages": user("Hi"), "temperature": 0, "max_tokens": 20, "logprobs": true});
    let answer = served.completion(&request);
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], tokens.len());
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"]["total_tokens"], prompt + tokens.len() as u64);
    assert_eq!(served.completion(&request)["choices"], answer["choices"], "the same tokens again");
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("mcprl-"));
}

#[test]
fn the_most_likely_tokens_stand_beside_each_sampled_one() {
    let (_project, served) = babbler();
    let mut request = json!({
        "messages": user("Hi"), "temperature": 0, "max_tokens": 12, "logprobs": true, "top_logprobs": 3,
    });
    let answer = served.completion(&request);
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert!(!tokens.is_empty());
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        let logprobs: Vec<f64> = top.iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
        assert!(logprobs.len() == 3 && logprobs.is_sorted_by(|a, b| a >= b), "{token}");
        // The greedy token is the most likely one.
        assert_eq!(top[0]["logprob"], token["logprob"]);
    }
    request["stream"] = true.into();
    let chunks = served.chunks(&request);
    assert_eq!(added(&chunks)["choices"], answer["choices"]);
}

const CALLS: &str = "Looking.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": parameters}}])
}

/// A server of a model that replies so.
fn replier(reply: &str) -> (Project, Served) {
    let project = Project::new("");
    project.replier("model", reply);
    let served = Served::new(&project, &["model"]);
    (project, served)
}

#[test]
fn calls_are_made_in_the_templates_form_and_their_results_read() {
    let (_project, served) = replier(CALLS);
    let mut request = json!({"messages": user("Weather?"), "tools": weather(), "temperature": 0});
    let answer = served.completion(&request);
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("Looking."))
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let made: Vec<(&str, &Value)> =
        calls.iter().map(|call| (call["function"]["arguments"].as_str().unwrap(), &call["type"])).collect();
    assert_eq!(
        made,
        [("{\"city\":\"Bern\"}", &json!("function")), ("{\"city\":\"Rome\"}", &json!("function"))]
    );
    let ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() >= 9), "{ids:?}");
    assert_eq!(added(&served.chunks(&request))["choices"], answer["choices"]);

    let mut single = request.clone();
    single["parallel_tool_calls"] = false.into();
    let first = served.completion(&single);
    assert_eq!(first["choices"][0]["message"]["tool_calls"], json!([calls[0]]), "one at most");
    assert_eq!(added(&served.chunks(&single))["choices"], first["choices"]);

    // The conversation goes on with the results, and its next calls have other ids.
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    for (id, text) in ids.iter().zip(["sunny", "rain"]) {
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    }
    let next = served.completion(&request);
    assert!(next["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64());
    let next = next["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert!(next.iter().all(|call| !ids.contains(&call["id"].as_str().unwrap())), "{next:?}");

    request["tool_choice"] = "none".into();
    let none = served.completion(&request);
    let message = &none["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["tool_calls"]),
        (&json!(CALLS), &Value::Null),
        "text, if nothing is offered"
    );
    assert_eq!(added(&served.chunks(&request))["choices"], none["choices"]);
}

#[test]
fn what_a_model_writes_is_read_as_in_episodes() {
    let task = |answer: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"complete_task\", \"arguments\": {{\"answer\": \"{answer}\"}}}}\n</tool_call>"
        )
    };
    for (reply, content, calls, end) in [
        (
            "```json\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n```".to_owned(),
            Value::Null,
            1,
            "tool_calls",
        ),
        (
            "<tool_call>\n{\"name\": \"weather\", \"argu".to_owned(),
            json!("<tool_call>\n{\"name\": \"weather\", \"argu"),
            0,
            "stop",
        ),
        (task("8 degrees"), json!("8 degrees"), 0, "stop"),
        (format!("Done.\n{}", task("8")), json!("Done.\n\n8"), 0, "stop"),
        ("a < b and <i>so</i> on".to_owned(), json!("a < b and <i>so</i> on"), 0, "stop"),
    ] {
        let (_project, served) = replier(&reply);
        let request = json!({"messages": user("Weather?"), "tools": weather(), "temperature": 0});
        let answer = served.completion(&request);
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&content, &json!(end)),
            "{reply}"
        );
        assert_eq!(choice["message"]["tool_calls"].as_array().map_or(0, Vec::len), calls, "{reply}");
        assert_eq!(added(&served.chunks(&request))["choices"], answer["choices"], "{reply}");
    }
    let (_project, served) = replier("<think>\nHm.\n</think>\n\nYes.");
    let request = json!({"messages": user("Weather?"), "temperature": 0});
    let answer = served.completion(&request);
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        [&message["content"], &message["reasoning"], &message["reasoning_content"]],
        ["Yes.", "Hm.", "Hm."]
    );
    assert_eq!(added(&served.chunks(&request))["choices"], answer["choices"]);
}

#[test]
fn what_is_wrong_is_said_with_its_status_and_others_are_still_served() {
    let (_project, served) = babbler();
    let fine = json!({"messages": user("Hi"), "max_tokens": 4});
    let with = |name: &str, value: Value| {
        let mut request = fine.clone();
        request[name] = value;
        request
    };
    for (request, status, param, code) in [
        (with("tool_choice", json!("required")), 400, json!("tool_choice"), Value::Null),
        (with("logit_bias", json!({"7": 1})), 400, json!("logit_bias"), json!("unsupported_parameter")),
        (with("n", json!(100_000)), 400, json!("n"), Value::Null),
        (with("model", json!("gpt-4")), 404, Value::Null, json!("model_not_found")),
        (
            with("messages", user(&"word ".repeat(9000))),
            400,
            json!("messages"),
            json!("context_length_exceeded"),
        ),
        // Refused before it is made tokens.
        (
            with("messages", user(&"x ".repeat(3_000_000))),
            400,
            json!("messages"),
            json!("context_length_exceeded"),
        ),
    ] {
        let (found, body) = served.chat(&request);
        let error = &body["error"];
        assert_eq!((found, &error["param"], &error["code"]), (status, &param, &code), "{body}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    let post = "POST /v1/chat/completions";
    assert_eq!(served.request(post, &[], b"{\"messages\": [").status, 400);
    assert_eq!(served.request(post, &[], b"\xff\xfe").status, 400);
    assert_eq!(served.request("GET /v1/chat/completions", &[], &[]).status, 405);
    assert_eq!(served.request("GET /v1/embeddings", &[], &[]).status, 404);
    assert_eq!(served.request(post, &[("Content-Length", "99999999999")], &[]).status, 413);
    assert_eq!(served.request(post, &[], &vec![b' '; (32 << 20) + 1]).status, 413);
    assert_eq!(served.get("/health").body, "{\"status\":\"ok\"}");
    let completion = served.completion(&fine);
    assert_eq!(completion["choices"][0]["message"]["role"], "assistant");
    assert_eq!(served.metric("mcprl_answers_in_progress"), 0.0);
    assert!(served.metric("mcprl_sampled_tokens_total{policy=\"llama\"}") > 0.0);
}

#[test]
fn a_key_is_needed_if_there_is_one_and_otherwise_the_host_of_this_machine() {
    let (project, served) = babbler();
    for (headers, status) in [
        (vec![("Host", "evil.example")], 403),
        (vec![("Host", "127.0.0.1.nip.io")], 403),
        (vec![("Host", "127.0.0.1:1")], 200),
        (vec![("Host", "LOCALHOST")], 200),
        (vec![("Host", "localhost:9000"), ("Origin", "http://localhost:9000")], 200),
        (vec![("Host", "localhost:9000"), ("Origin", "http://localhost:3000")], 403),
        (vec![("Origin", "http://evil.example")], 403),
        (vec![("Origin", "null")], 403),
        (vec![], 200),
    ] {
        assert_eq!(served.request("GET /v1/models", &headers, &[]).status, status, "{headers:?}");
    }
    let keyed = Served::with(&project, &["llama", "--api-key-env", "KEY"], &[("KEY", "s3cret")]);
    for (headers, status) in [
        (vec![], 401),
        (vec![("Authorization", "Bearer s3cre")], 401),
        (vec![("Authorization", "s3cret")], 401),
        (vec![("Authorization", "Bearer s3cret")], 200),
        (vec![("Authorization", "Bearer s3cret"), ("Host", "my-machine:80")], 200),
    ] {
        assert_eq!(keyed.request("GET /v1/models", &headers, &[]).status, status, "{headers:?}");
    }
    assert_eq!(keyed.get("/health").status, 200);
    for path in ["/", "/style.css", "/page.js"] {
        assert_eq!(keyed.get(path).status, 200, "the page itself, which asks for the key");
    }
    assert_eq!((keyed.get("/about").status, keyed.request("POST /check", &[], b"{}").status), (401, 401));
    let unset = project.mcprl(&["serve", "llama", "--api-key-env", "NO_SUCH_KEY", "--json"]);
    assert!(unset.code == Some(2) && unset.err.contains("serve::no_key"), "{}", unset.err);
    let open = project.mcprl(&["serve", "llama", "--host", "0.0.0.0", "--port", "0", "--json"]);
    assert!(open.code == Some(2) && open.err.contains("serve::open"), "{}", open.err);
}

#[test]
fn a_full_queue_refuses_and_a_client_that_goes_makes_room() {
    let project = Project::new("");
    project.llama(1);
    let served = Served::new(&project, &["llama", "--max-requests", "64"]);
    // So many answers that one is long.
    let long = json!({"messages": user("Hi"), "stream": true, "n": 64, "seed": 1, "temperature": 2});
    let stream = served.open("POST /v1/chat/completions", &[], long.to_string().as_bytes());
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ends before an answer begins");
    }
    let fine = json!({"messages": user("Hi"), "max_tokens": 2});
    let refused = served.request("POST /v1/chat/completions", &[], fine.to_string().as_bytes());
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(refused.head.to_lowercase().contains("retry-after: 1"), "{}", refused.head);
    assert!(refused.body.contains("rate_limit_error"), "{}", refused.body);
    drop(lines);
    until("its place is free", || served.metric("mcprl_answers_in_progress") == 0.0);
    until("it is counted", || served.metric("mcprl_cancelled_total") == 1.0);
    let sampled = served.metric("mcprl_sampled_tokens_total{policy=\"llama\"}");
    assert!(sampled < 64.0 * 300.0, "{sampled} tokens were sampled for nobody");
    served.completion(&fine);
}

#[test]
fn a_run_serves_all_its_policies_under_their_names() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let served = Served::new(&project, &[]);
    for name in ["base", "trained", "update", "agent"] {
        assert!(served.models.iter().any(|model| model == name), "{:?}", served.models);
    }
    let listed: Value = serde_json::from_str(&served.get("/v1/models").body).unwrap();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, served.models);
    let answer = |model: &str| {
        let request = json!({"model": model, "messages": user("Hi"), "temperature": 0, "max_tokens": 8});
        let answer = served.completion(&request);
        (answer["system_fingerprint"].clone(), answer["choices"][0]["message"]["content"].clone())
    };
    let (trained, base) = (answer("trained"), answer("base"));
    assert_ne!(trained.0, base.0);
    assert_eq!(answer("update"), trained, "one policy by another name");
    let run = project.runs().pop().unwrap();
    assert_eq!(answer(&format!("{run}/base")), base);
    assert_eq!(served.get("/v1/models/base").status, 200);
    assert_eq!(served.get("/v1/models/b%61se").status, 200);
    assert_eq!(served.get("/v1/models/none").status, 404);
}

#[test]
fn an_adapter_is_served_on_its_model() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let exported = project.mcprl(&["export", "latest", "--out", "adapter"]);
    assert_eq!(exported.code, Some(0), "{}", exported.err);
    let request = json!({"messages": user("Hi"), "temperature": 0, "max_tokens": 8, "logprobs": true});
    let mut named = request.clone();
    named["model"] = "trained".into();
    let of_run = Served::new(&project, &["latest"]).completion(&named);
    for arguments in [&["adapter"][..], &["adapter", "--base", "llama"]] {
        let served = Served::new(&project, arguments);
        assert_eq!(served.completion(&request)["choices"], of_run["choices"], "{arguments:?}");
    }
}

#[test]
fn a_request_has_a_bound_of_tokens_choices_and_alternatives() {
    let project = Project::new("");
    project.llama(1);
    let served = Served::new(&project, &["llama", "--max-tokens", "800"]);
    let asked = |more: Value| {
        let mut request = json!({"messages": user("Hi"), "max_tokens": 4});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        served.chat(&request)
    };
    let alternatives = |most: u64| json!({"logprobs": true, "top_logprobs": 20, "n": 2, "max_tokens": most});
    assert_eq!(asked(alternatives(2)).0, 200);
    assert_eq!(asked(json!({"n": 64})).0, 200, "answers alone may take all");
    let (status, body) = asked(json!({"n": 64, "max_tokens": 20}));
    assert_eq!((status, &body["error"]["param"]), (400, &json!("n")), "{body}");
    for part in ["1280 tokens", "800", "--max-tokens", "top_logprobs"] {
        assert!(body["error"]["message"].as_str().unwrap().contains(part), "{part}: {body}");
    }
    assert_eq!(asked(json!({"max_tokens": 4})).0, 200);
}

#[test]
fn a_stop_string_ends_sampling_within_what_is_held_back() {
    for (reply, content) in [
        ("Here:\n```python\nprint(1)\nEND of it, and so on", "Here:\n```python\nprint(1)\n"),
        ("{\"a\": 1}END of it, and so on", "{\"a\": 1}"),
        ("a <b END of it, and so on", "a <b "),
        ("[A END of it, and so on", "[A "),
    ] {
        let (_project, served) = replier(reply);
        let request = json!({"messages": user("Hi"), "temperature": 0, "stop": ["END"]});
        let whole = served.completion(&request);
        let choice = &whole["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(content), &json!("stop"))
        );
        assert_eq!(added(&served.chunks(&request))["choices"], whole["choices"]);
        let free = served.completion(&json!({"messages": user("Hi"), "temperature": 0}));
        let tokens = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(tokens(&whole) < tokens(&free), "{reply}: {} of {}", tokens(&whole), tokens(&free));
    }
}
