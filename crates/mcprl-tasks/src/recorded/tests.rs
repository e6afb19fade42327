use serde_json::json;

use super::*;

fn one(text: &str) -> RecordedTrace {
    let mut found = parse(text, "file.jsonl").unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn trace(value: &Value) -> Trace {
    one(&value.to_string()).trace.unwrap()
}

fn refused(value: &Value) -> String {
    one(&value.to_string()).trace.unwrap_err()
}

fn call(id: &str, name: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The conversation that most of these formats say: a thought, two calls at once, and an answer.
fn expected() -> Vec<Message> {
    let messages = json!([
        {"role": "user", "content": "Who is older?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Two ages.", "tool_calls": [
            call("call_00000001", "age", json!({"of": "Ada"})), call("call_00000002", "age", json!({"of": "Bob"})),
        ]},
        {"role": "tool", "name": "age", "tool_call_id": "call_00000001", "content": "36"},
        {"role": "tool", "name": "age", "tool_call_id": "call_00000002", "content": "41"},
        {"role": "assistant", "content": "Bob."},
    ]);
    serde_json::from_value(messages).unwrap()
}

#[test]
fn chat_completions_are_read_whatever_holds_their_arguments_and_in_whatever_order_results_come() {
    for (ada, bob) in [
        (json!({"of": "Ada"}), json!({"of": "Bob"})),
        (json!("{\"of\": \"Ada\"}"), json!("\"{\\\"of\\\": \\\"Bob\\\"}\"")),
    ] {
        let item = json!({"tools": [{"type": "function", "function": {"name": "age"}}], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Who is older?"}]},
            {"role": "assistant", "content": "Let me see.", "reasoning": "Two ages.",
             "tool_calls": [call("a", "age", ada), call("b", "age", bob)]},
            {"role": "tool", "tool_call_id": "b", "content": "41"},
            {"role": "tool", "tool_call_id": "a", "content": "36"},
            {"role": "assistant", "content": "Bob."},
        ]});
        let trace = trace(&item);
        assert_eq!(trace.messages, expected());
        assert_eq!((trace.tools.unwrap().len(), trace.repairs), (1, vec![]));
    }
}

#[test]
fn messages_may_be_a_text_a_prompt_with_its_completion_or_a_bare_list() {
    let (user, assistant) =
        (json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "Ho"}));
    let both = json!([user, assistant]);
    for item in [
        json!({"messages": both.to_string()}),
        json!({"prompt": [user], "completion": [assistant]}),
        json!({"messages_and_choices": [user, {"finish_reason": "stop", "index": 0, "message": assistant}]}),
    ] {
        assert_eq!(json!(trace(&item).messages), both, "{item}");
    }
    assert_eq!(one(&both.to_string()).place, "file.jsonl", "a list of messages is one conversation");
    assert_eq!(parse(&json!([{"messages": both}, {"messages": both}]).to_string(), "f").unwrap().len(), 2);
    let lines = format!("{}\n\n{}\n", json!({"messages": both}), json!({"messages": both, "correct": false}));
    let found = parse(&lines, "f").unwrap();
    assert_eq!([found[0].place.as_str(), found[1].place.as_str()], ["f:1", "f:3"]);
    assert_eq!(found[1].trace.as_ref().unwrap().correct, Some(false));
}

#[test]
fn sharegpt_has_its_calls_and_results_in_tags() {
    let item = json!({"conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Who is older?"},
        {"from": "gpt", "value": "<think>\nTwo ages.\n</think>\nLet me see.\n<tool_call>\n{\"name\": \"age\", \"arguments\": {\"of\": \"Ada\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"age\", \"arguments\": {\"of\": \"Bob\"}}\n</tool_call>"},
        {"from": "tool", "value": "<tool_response>\n36\n</tool_response>\n<tool_response>\n41\n</tool_response>"},
        {"from": "gpt", "value": "Bob."},
    ]});
    let found = one(&item.to_string());
    assert_eq!(found.format, Format::Sharegpt);
    let messages = found.trace.unwrap().messages;
    assert_eq!(messages[0], Message::system("Be brief."));
    assert_eq!(messages[1..], expected());
}

#[test]
fn a_content_may_have_the_blocks_of_anthropic() {
    let used = |id: &str, of: &str| json!({"type": "tool_use", "id": id, "name": "age", "input": {"of": of}});
    let result = |id: &str, text: &str| json!({"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": text}]});
    let trace = trace(&json!({"messages": [
        {"role": "user", "content": "Who is older?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Two ages.", "signature": "…"}, {"type": "text", "text": "Let me see."},
            used("a", "Ada"), used("b", "Bob"),
        ]},
        {"role": "user", "content": [result("b", "41"), result("a", "36")]},
        {"role": "assistant", "content": [{"type": "redacted_thinking"}, {"type": "text", "text": "Bob."}]},
    ]}));
    assert_eq!(trace.messages, expected());
    assert_eq!(trace.repairs, ["reasoning that is encrypted is lost"]);
}

#[test]
fn a_session_of_the_hub_has_its_messages_in_lines() {
    let line = |message: Value| json!({"type": "message", "message": message});
    let called = |id: &str, of: &str| json!({"id": id, "function": {"name": "age", "arguments": json!({"of": of}).to_string()}});
    let lines = [
        json!({"type": "session", "harness": "pi", "id": "1"}),
        line(json!({"role": "user", "content": "Who is older?"})),
        line(
            json!({"role": "assistant", "content": "Let me see.", "reasoningContent": "Two ages.", "toolCalls": [called("a", "Ada"), called("b", "Bob")]}),
        ),
        line(json!({"role": "tool", "toolCallId": "a", "content": "36"})),
        line(json!({"role": "tool", "toolCallId": "b", "content": "41"})),
        line(json!({"role": "assistant", "content": "Bob."})),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let found = one(&text);
    assert_eq!((found.format, found.trace.unwrap().messages), (Format::Session, expected()));
}

#[test]
fn what_is_lost_is_named() {
    let trace = trace(&json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {}}]},
        {"role": "user", "content": "at this"},
        {"role": "assistant", "content": "A cat."},
        {"role": "system", "content": "note"},
        {"role": "user", "content": "Thanks"},
    ]}));
    assert_eq!(trace.messages[0].text, "Look:\nat this");
    assert_eq!(trace.messages.len(), 2);
    assert_eq!(
        trace.repairs,
        [
            "a part of type \"image_url\" is lost",
            "user messages in a row are joined",
            "a system message within the conversation is lost",
            "the last user message, which has no answer, is lost",
        ]
    );
}

#[test]
fn what_would_no_longer_say_what_happened_is_refused() {
    let user = json!({"role": "user", "content": "x"});
    let calls = |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "y"});
    let end = json!({"role": "assistant", "content": "z"});
    let age = || call("a", "age", json!({}));
    for (messages, reason) in [
        (json!([user, calls(json!([age()])), end]), "the call of `age` has no result"),
        (json!([user, calls(json!([age()])), result("b"), end]), "the call of `age` has no result"),
        (json!([user, calls(json!([age()])), result("a"), result("a"), end]), "1 calls have 2 results"),
        (json!([user, result("a"), end]), "a result has no call before it"),
        (json!([user, calls(json!([call("a", "age", json!("{"))])), result("a"), end]), "are not JSON"),
        (json!([user, calls(json!([call("a", "age", json!([1]))])), result("a"), end]), "are no object"),
        (json!([user, {"role": "narrator", "content": "x"}]), "message 2: \"narrator\" is no role"),
        (json!([user]), "there is no user message"),
        (json!([end]), "there is no user message"),
        (json!([user, {"role": "assistant", "content": 7}]), "its content is no text"),
    ] {
        let found = refused(&json!({"messages": messages}));
        assert!(found.contains(reason), "{messages}: {found}");
    }
    assert!(refused(&json!({"text": "x"})).contains("no `messages`"));
}

#[test]
fn a_file_that_is_not_json_names_the_line() {
    assert!(parse("{\"messages\": []}\n{", "f").unwrap_err().starts_with("line 2, column 1: "));
    assert_eq!(parse("\n", "f").unwrap_err(), "there is no conversation");
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    for name in ["b.jsonl", "a/c.json", "a/d.txt", ".e.jsonl"] {
        std::fs::write(folder.path().join(name), "[]").unwrap();
    }
    let files = files(folder.path()).unwrap();
    assert_eq!(files, [folder.path().join("a/c.json"), folder.path().join("b.jsonl")]);
    let error = read(&files[0]).unwrap_err();
    assert!(error.to_string().ends_with("c.json: there is no conversation"), "{error}");
}

#[test]
fn of_several_decisions_on_a_conversation_the_last_one_counts() {
    let talk = |text: &str| json!([{"role": "user", "content": text}, {"role": "assistant", "content": "7"}]);
    let line = |id: &str, decision: &str, text: &str| {
        json!({"reviewed": id, "decision": decision, "messages": talk(text)}).to_string()
    };
    let drop = |id: &str| json!({"reviewed": id, "decision": "drop"}).to_string();
    let lines = [
        line("a", "accept", "dropped later"),
        drop("b"),
        line("c", "accept", "as it was"),
        drop("a"),
        line("b", "accept", "taken back"),
        line("c", "edit", "as it is"),
    ];
    let found = parse(&lines.join("\n"), "kept.jsonl").unwrap();
    let kept: Vec<String> =
        found.into_iter().map(|found| found.trace.unwrap().messages[0].text.clone()).collect();
    assert_eq!(kept, ["taken back", "as it is"]);
}

#[test]
fn files_of_one_name_are_told_apart_by_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let talk = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]);
    for name in ["a", "b", "c/b"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("x.jsonl"), json!({"messages": talk}).to_string())
            .unwrap();
    }
    std::fs::write(folder.path().join("a/y.jsonl"), json!({"messages": talk}).to_string()).unwrap();
    let found = read_all(&["a", "b", "c/b"].map(|name| folder.path().join(name))).unwrap();
    let places: Vec<&str> = found.iter().map(|found| found.place.as_str()).collect();
    assert_eq!(places[..2], ["a/x.jsonl:1", "y.jsonl:1"]);
    assert!(places[2].ends_with("/b/x.jsonl:1") && places[3] == "c/b/x.jsonl:1", "{places:?}");
}

#[test]
fn of_a_session_only_what_it_ended_with_is_read() {
    let entry = |id: &str, parent: Option<&str>, role: &str, text: &str| json!({"type": "message", "id": id, "parentId": parent, "message": {"role": role, "content": text}});
    let lines = |entries: &[Value]| {
        let all: Vec<String> = std::iter::once(&json!({"type": "session", "id": "s"}))
            .chain(entries)
            .map(Value::to_string)
            .collect();
        one(&all.join("\n")).trace
    };
    let begun = [
        entry("1", None, "user", "Delete all boats."),
        entry("2", Some("1"), "assistant", "Deleted."),
        entry("3", None, "user", "List all boats."),
        entry("4", Some("3"), "assistant", "Two."),
    ];
    let trace = lines(&begun).unwrap();
    let texts: Vec<&str> = trace.messages.iter().map(|message| message.text.as_str()).collect();
    assert_eq!(texts, ["List all boats.", "Two."]);
    assert_eq!(trace.repairs, ["messages that were taken back are lost"]);

    let more = [
        json!({"type": "compaction", "id": "5", "parentId": "4", "summary": "Boats."}),
        entry("6", Some("5"), "user", "And cars?"),
        entry("7", Some("6"), "assistant", "None."),
    ];
    let trace = lines(&[&begun[2..], &more].concat()).unwrap();
    assert_eq!(
        (trace.messages.len(), &trace.repairs[..]),
        (2, &["what follows a compaction is lost".to_owned()][..])
    );
}

#[test]
fn what_a_program_wrote_in_the_models_place_is_not_learned() {
    let trace = trace(&json!({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "API Error: 529", "isApiErrorMessage": true},
        {"role": "assistant", "model": "<synthetic>", "content": "No response requested."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": "no"}]},
        {"role": "assistant", "content": "Ho"},
    ]}));
    assert_eq!(trace.messages.len(), 4);
    assert_eq!(
        trace.repairs,
        ["messages that the program wrote in the model's place are lost", "which results are errors is lost"]
    );
}

#[test]
fn a_token_is_found_behind_a_line_break_in_arguments_and_in_tools() {
    let token = format!("hf_{}", "kLmNoPqR".repeat(5));
    let user = json!({"role": "user", "content": "Show the file"});
    let said = |text: &str| json!({"role": "assistant", "content": text});
    let clean = trace(&json!({"messages": [user, said("It is empty.")]}));
    assert_eq!(secret(&clean), None);
    let found = trace(&json!({"messages": [user, said(&format!("tokens:\n{token}\n\tx"))]}));
    assert_eq!(secret(&found), Some("a token of Hugging Face"));
    let inner = json!({"output": format!("a\n{token}")}).to_string();
    let found = trace(&json!({"messages": [user, said(&inner)]}));
    assert_eq!(secret(&found), Some("a token of Hugging Face"));
}
